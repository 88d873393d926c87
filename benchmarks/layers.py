"""Time of one forward and backward of every layer, beside the plain linear layer's.

    python -m benchmarks.layers [--json] [--quick] [--only LAYER] [--beside CHECKOUT | --uneven]

Each layer has the settings of a recipe at this width, in training mode. Its limit is LRU, a layer of one diagonal scan,
timed in the same window: the ratio is the cost of a layer's mathematics relative to that.

With --beside, the folder of another version, built in place, every layer is timed in turn with that version's, which
runs in a process of its own: its time is then the limit. With all layers, that is written to
benchmarks/results/layers_beside.json.

With --uneven, every layer that reads intervals is timed at uneven times, beside the same layer at even times, in
processor time, and benchmarks/results/layers_uneven.json is written.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, ROOT, arguments, commit, in_turn, origin, row, seconds_in_turn, show, turn
from benchmarks.record import record
from rotrnn.models.build import make_layer
from rotrnn.nn.layer import Context
from rotrnn.nn.registry import LAYERS

Size = tuple[int, int, int]

SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "rotrnn": lambda D: {"d_state": 2 * D, "heads": D // 4},
    "selective_rotrnn": lambda D: {"d_state": 2 * D, "heads": D // 4},
    "s4d": lambda D: {"d_state": 64},
    "s4": lambda D: {"d_state": 64},
    "liquid_s4": lambda D: {"d_state": 64},
}
"""Settings at width D of layers that have no default for them, or one for all states in a head."""
UNEVEN = {"linoss": {"method": "im"}}
"""Settings of layers with which they read intervals."""


def settings_of(name: str, D: int) -> dict[str, Any]:
    """As many states as channels if a layer has no default; for LRU these are 2 D real lanes."""
    if name in SETTINGS:
        return SETTINGS[name](D)
    needed = [one.name for one in fields(LAYERS[name]) if one.default is MISSING and one.name != "d_model"]
    return dict.fromkeys(needed, D)


def data(B: int, T: int, D: int) -> Any:
    """An input, and a gradient of the output."""
    return np.random.default_rng(0).standard_normal((2, B, T, D), dtype=np.float32)


def both(name: str, size: Size, dt: Any = None, **more: Any) -> Callable[[], object]:
    """Forward and backward of a layer, with intervals dt (B, T) if given."""
    x, dy = data(*size)
    layer = make_layer(name, size[2], settings_of(name, size[2]) | more)
    params, ctx = layer.init(np.random.default_rng(0)), Context(train=True, dt=dt)
    return lambda: layer.backward(params, layer.forward(params, x, ctx)[1], dy)


def rows(names: list[str], size: Size, window: float) -> Iterator[dict[str, Any]]:
    """One row per layer."""
    plain = both("lru", size)
    for name in names:
        seconds, limit = seconds_in_turn([both(name, size), plain], window=window)
        yield row(f"{name} forward and backward", seconds, limit, limit="LRU", layer=name, **sizes(size))


def sizes(size: Size) -> dict[str, int]:
    return dict(zip("BTD", size, strict=True))


@contextmanager
def other(checkout: Path, name: str, size: Size, window: float) -> Iterator[Callable[[], float]]:
    """A turn of a layer of the version in `checkout`, by this file in a process with that version's package."""
    path = os.pathsep.join([str(checkout / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "benchmarks.layers", "--serve", name, *map(str, size), str(window)]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        ask, answer = child.stdin, child.stdout

        def one_turn() -> float:
            ask.write("\n")
            ask.flush()
            return float(answer.readline())

        yield one_turn
        ask.close()


def rows_uneven(names: list[str], size: Size, window: float) -> Iterator[dict[str, Any]]:
    """A row for each of the layers that reads intervals, of mean 1."""
    dt = np.random.default_rng(1).exponential(size=size[:2]).astype(np.float32)
    for name in names:
        own = UNEVEN.get(name, {})
        uneven = both(name, size, dt, **own)
        try:
            uneven()
        except NotImplementedError:
            continue
        seconds, limit = seconds_in_turn([uneven, both(name, size, **own)], window=window, clock=time.process_time)
        yield row(f"{name} at uneven times", seconds, limit, limit="even times", layer=name, **sizes(size))


def serve(name: str, size: Size, window: float) -> None:
    """Prints the time of a turn for each line of the standard input."""
    run = both(name, size)
    run()
    for _ in sys.stdin:
        print(turn(run, window), flush=True)


def rows_beside(checkout: Path, names: list[str], size: Size, window: float) -> Iterator[dict[str, Any]]:
    """One row per layer, whose limit is the time of the version in `checkout`."""
    for name in names:
        run = both(name, size)
        run()
        with other(checkout, name, size, window) as theirs:
            theirs()
            seconds, limit = in_turn([partial(turn, run, window), theirs], window=window)
        yield row(f"{name} forward and backward", seconds, limit, limit="other version", layer=name, **sizes(size))


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        name, *size, window = sys.argv[2:]
        return serve(name, (int(size[0]), int(size[1]), int(size[2])), float(window))
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=LAYERS, action="append", help="this layer, and others given likewise")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--uneven", action="store_true", help="at uneven times, beside even times")
    kind.add_argument("--beside", type=Path, metavar="CHECKOUT", help="folder of another version, built in place")
    args = parser.parse_args()
    names = args.only or list(LAYERS)
    size, window = ((2, 64, 16), 0.05) if args.quick else ((8, 1024, 128), 2.0)
    if args.uneven:
        found = list(rows_uneven(names, size, window))
        show(found, args.json)
        if not (args.only or args.quick):
            record(RESULTS / "layers_uneven.json", {"rows": found, "clock": "processor time", **origin()})
        return None
    if args.beside is not None:
        command = "python -m benchmarks.layers --beside CHECKOUT"  # folders say nothing elsewhere
        came_from = {**origin(), "command": command, "beside": commit(args.beside)}
        found = list(rows_beside(args.beside.resolve(), names, size, window))
        show(found, args.json)
        if not (args.only or args.quick):
            record(RESULTS / "layers_beside.json", {"rows": found, **came_from})
        return None
    show(list(rows(names, size, window)), args.json)
    return None


if __name__ == "__main__":
    main()
