"""The cost of the functions for JAX: forward, and a value with its gradients, beside the layer's own.

    python -m benchmarks.jax [--json] [--quick] [--record]

At B 8, T 1024, D 128 in float32. The layer's own call and the same through `rotrnn.jax.function`, compiled and waited
for, are timed in turn; the layer's own call is the limit. The page faults are counted for one call through JAX; each
takes 4 KB from the system. `--record` writes benchmarks/results/jax.json.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import rotrnn.jax
from benchmarks.layers import data, settings_of
from benchmarks.measure import RESULTS, arguments, origin, row, seconds_in_turn, show
from benchmarks.record import record
from rotrnn.models.build import make_layer

LAYERS = ("lru", "rotrnn", "mamba", "lstm")
SIZE, QUICK = (8, 1024, 128), (2, 64, 32)


def calls(name: str, size: tuple[int, int, int]) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By computation: the layer's own call, and the call through JAX."""
    layer = make_layer(name, size[2], settings_of(name, size[2]))
    params, (x, dy) = layer.init(np.random.default_rng(0)), data(*size)
    f = rotrnn.jax.function(layer)
    forward = jax.jit(f)

    def loss(params: Any, x: Any, dy: Any) -> Any:
        y, pullback = jax.vjp(f, params, x)
        return y, pullback(dy)

    def own() -> Any:
        y, saved = layer.forward(params, x)
        return y, layer.backward(params, saved, dy)

    both = jax.jit(loss)
    jparams, jx, jdy = jax.device_put((params, x, dy))
    return {
        "forward": (
            lambda: layer.forward(params, x),
            lambda: jax.block_until_ready(forward(jparams, jx)),
        ),
        "forward and backward": (
            own,
            lambda: jax.block_until_ready(both(jparams, jx, jdy)),
        ),
    }


def page_faults(function: Callable[[], Any]) -> int:
    """The number of pages that a call takes from the system."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    function()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def rows(size: tuple[int, int, int], window: float) -> Iterator[dict[str, Any]]:
    for name in LAYERS:
        for what, (own, through) in calls(name, size).items():
            limit, seconds = seconds_in_turn([own, through], window=window)
            sizes = dict(zip("BTD", size, strict=True)) | {"page_faults": page_faults(through)}
            yield row(f"{name} in JAX, {what}", seconds, limit, limit="the layer's own call", layer=name, **sizes)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/jax.json")
    args = parser.parse_args()
    came_from = origin()
    found = []
    for one in rows(QUICK if args.quick else SIZE, 0.1 if args.quick else 8.0):
        found.append(one)
        show([one], args.json)
    if args.record:
        record(RESULTS / "jax.json", {"rows": found, **came_from})


if __name__ == "__main__":
    main()
