"""Time of one forward and backward of every layer, beside the plain linear layer's.

    python -m benchmarks.layers [--json] [--quick]

Each layer has the settings of a recipe at this width, in training mode. Its limit is LRU, a layer of one diagonal scan,
timed in the same window: the ratio is the cost of a layer's mathematics relative to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from benchmarks.measure import arguments, row, seconds_in_turn, show
from rotrnn.models.build import make_layer
from rotrnn.nn.layer import Context
from rotrnn.nn.registry import LAYERS

SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "rotrnn": lambda D: {"d_state": 2 * D, "heads": D // 4},
    "selective_rotrnn": lambda D: {"d_state": 2 * D, "heads": D // 4},
    "s4d": lambda D: {"d_state": 64},
}
"""Settings at width D of layers that have no default for them, or one for all states in a head."""


def settings_of(name: str, D: int) -> dict[str, Any]:
    """As many states as channels if a layer has no default; for LRU these are 2 D real lanes."""
    if name in SETTINGS:
        return SETTINGS[name](D)
    needed = [one.name for one in fields(LAYERS[name]) if one.default is MISSING and one.name != "d_model"]
    return dict.fromkeys(needed, D)


def rows(B: int, T: int, D: int, window: float) -> list[dict[str, Any]]:
    """One row per layer."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, B, T, D), dtype=np.float32)
    ctx = Context(train=True)

    def both(name: str) -> Callable[[], object]:
        layer = make_layer(name, D, settings_of(name, D))
        params = layer.init(np.random.default_rng(0))
        return lambda: layer.backward(params, layer.forward(params, x, ctx)[1], dy)

    plain = both("lru")
    found = []
    for name in LAYERS:
        seconds, limit = seconds_in_turn([both(name), plain], window=window)
        more = {"limit": "LRU", "layer": name, "B": B, "T": T, "D": D}
        found.append(row(f"{name} forward and backward", seconds, limit, **more))
    return found


def main() -> None:
    args = arguments(__doc__).parse_args()
    show(rows(*((2, 64, 16, 0.05) if args.quick else (8, 1024, 128, 2.0))), args.json)


if __name__ == "__main__":
    main()
