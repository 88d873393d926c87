"""Time of one forward and backward of every layer, beside the plain linear layer's.

    python -m benchmarks.layers [--json] [--quick] [--only LAYER] [--beside CHECKOUT | --uneven]

Each layer has the settings of a recipe at this width, in training mode. Its limit is LRU, a layer of one diagonal scan,
timed in the same window: the ratio is the cost of a layer's mathematics relative to that.

With --beside, the folder of another version, built in place, every layer that the other version has is timed in turn
with that version's, each in processes of its own: its time is then the limit. So are tokens of a stream, and a
layer of that version beside itself, for the spread. With all layers, that is written to
benchmarks/results/layers_beside.json.

With --uneven, every layer that reads intervals is timed at uneven times, beside the same layer at even times, in
processor time, and benchmarks/results/layers_uneven.json is written.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, ROOT, arguments, commit, in_turn, origin, row, seconds_in_turn, show, turn
from benchmarks.record import record
from rotrnn.models.build import ModelSettings, build_model, make_layer
from rotrnn.nn.layer import Context
from rotrnn.nn.registry import LAYERS

CHUNK = 64  # tokens of a turn of a stream
ROUNDS = 4  # of processes, beside another version

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
    params = layer.init(np.random.default_rng(0))
    ctx = Context(train=True) if dt is None else Context(train=True, dt=dt)  # versions before had no dt
    return lambda: layer.backward(params, layer.forward(params, x, ctx)[1], dy)


def rows(names: list[str], size: Size, window: float) -> Iterator[dict[str, Any]]:
    """One row per layer."""
    plain = both("lru", size)
    for name in names:
        seconds, limit = seconds_in_turn([both(name, size), plain], window=window)
        yield row(f"{name} forward and backward", seconds, limit, limit="LRU", layer=name, **sizes(size))


def sizes(size: Size) -> dict[str, int]:
    return dict(zip("BTD", size, strict=True))


def tagger(name: str, D: int) -> tuple[Any, Any]:
    """A model of two blocks that reads tokens, and its parameters."""
    settings = ModelSettings(layer=name, d_model=D, n_layers=2)
    model = build_model(settings, settings_of(name, D), head="tagger", n_classes=32, vocab=32)
    return model, model.init(np.random.default_rng(0))


def streamed(name: str, size: Size) -> Callable[[], object]:
    """The first CHUNK tokens, pushed one by one to a stream of a model of this width."""
    model, params = tagger(name, size[2])
    tokens = np.random.default_rng(0).integers(0, 32, (1, CHUNK))
    stream = model.stream(params)

    def push() -> None:
        stream.reset()  # attention would take longer with each turn
        for t in range(CHUNK):
            stream.push(tokens[:, t])

    return push


WORK: dict[str, Callable[[str, Size], Callable[[], object]]] = {
    "forward and backward": both,
    f"{CHUNK} tokens of a stream": streamed,
}
"""What is timed beside another version."""


@contextmanager
def other(checkout: Path, *arguments: str) -> Iterator[Callable[[], str]]:
    """A line of the answer of `serve`, by this file in a process with the package of the version in `checkout`."""
    path = os.pathsep.join([str(checkout / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "benchmarks.layers", "--serve", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        ask, answer = child.stdin, child.stdout

        def line() -> str:
            ask.write("\n")
            ask.flush()
            return answer.readline()

        yield line
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


def serve(arguments: Sequence[str]) -> None:
    """Answers each line of the standard input with the time of a turn of a work, or with the names of the layers."""

    def answer() -> object:
        return " ".join(LAYERS)

    if arguments:
        work, name, *size, window = arguments
        run = WORK[work](name, (int(size[0]), int(size[1]), int(size[2])))
        run()
        answer = partial(turn, run, float(window))
    for _ in sys.stdin:
        print(answer(), flush=True)


def rows_beside(checkout: Path, names: list[str], size: Size, window: float) -> Iterator[dict[str, Any]]:
    """Rows of each layer that the version in `checkout` has, whose limit is that version's time; `again` is its time in
    processes of their own. The minima are over ROUNDS of new processes, since the memory that a process gets may make
    all its calls slow."""
    with other(checkout) as their_names:
        known = their_names().split()
    for name in names:
        for work in WORK if name in known else ():
            asked = (work, name, *map(str, size), str(window))
            least = [float("inf")] * 3
            for _ in range(ROUNDS):
                with other(ROOT, *asked) as ours, other(checkout, *asked) as theirs, other(checkout, *asked) as again:
                    times = in_turn([partial(_seconds, line) for line in (ours, theirs, again)], window=window)
                least = list(map(min, least, times))
            seconds, limit, spread = least
            told = {"limit": "other version", "layer": name, "again": spread}
            yield row(f"{name}: {work}", seconds, limit, **told, **sizes(size))


def _seconds(line: Callable[[], str]) -> float:
    return float(line())


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2:])
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
