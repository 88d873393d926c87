"""Layers and streams on a machine that is busy with other work, by how long a waiting thread spins before it sleeps.

    python -m benchmarks.busy [--json] [--quick]

Times are medians, with no other work and beside as many loops in Python as there are cores, with GNU OpenMP's own
default, the spins that rotrnn sets, and none. Results, and the times over rotrnn's, are written to
benchmarks/results/busy.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

import rotrnn
from benchmarks.measure import RESULTS, ROOT, arguments, line, origin
from benchmarks.record import record
from rotrnn import _cpu
from rotrnn._support.platform import cores

SPINS: dict[str, dict[str, str]] = {
    "GNU OpenMP's default": {"GOMP_SPINCOUNT": "300000"},
    "rotrnn": {},
    "none": {"OMP_WAIT_POLICY": "passive"},
}
LAYERS = {"RotRNN": 64, "LRU": 64, "LSTM": 64, "Mamba": None, "Attention": None}
"""Each with its state size, if not the default."""
TOKENS = 200


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Other work: so many loops in Python."""
    with ExitStack() as stack:
        for _ in range(loops):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(other.kill)
        yield


def step(layer: Any, params: Any, x: np.ndarray) -> None:
    """A layer's forward and backward."""
    y, cache = layer.forward(params, x)
    layer.backward(params, cache, y)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Forward and backward of a layer of 64 channels for 4 sequences of 256 steps, and a push of some tokens."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 256, 64), np.float32)
    for name, d_state in LAYERS.items():
        layer = getattr(rotrnn, name)(d_model=64, **({"d_state": d_state} if d_state else {}))
        yield name, partial(step, layer, layer.init(rng), x)
    settings = rotrnn.ModelSettings("lru", 128, 4)
    model = rotrnn.build_model(settings, {"d_state": 128}, head="tagger", n_classes=2, n_features=2)
    stream = model.stream(model.init(rng), engine="c")
    yield f"push of {TOKENS} tokens", lambda: stream.push(np.ones((1, TOKENS, 2), np.float32))


def median(call: Callable[[], object], window: float) -> float:
    """The median time of a call, over some seconds and at least three calls."""
    call()
    times: list[float] = []
    end = time.perf_counter() + window
    while time.perf_counter() < end or len(times) < 3:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def rows(loops: int, window: float) -> list[dict[str, Any]]:
    """One row for each call and way to wait, each in a separate process."""
    found = []
    for way, environment in SPINS.items():
        env = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        command = [sys.executable, "-m", "benchmarks.busy", "--times", str(window)]
        with busy(loops):
            times = subprocess.run(command, env=env | environment, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        found += [
            {"name": name, "path": f"{way}, {'busy' if loops else 'quiet'}", "way": way, "loops": loops, "seconds": one}
            for name, one in json.loads(times).items()
        ]
    ours = {one["name"]: one["seconds"] for one in found if one["way"] == "rotrnn"}
    return [{**one, "over": one["seconds"] / ours[one["name"]]} for one in found]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--times", type=float, metavar="SECONDS", help="only print this process's own times")
    args = parser.parse_args()
    if args.times:
        print(json.dumps({name: median(call, args.times) for name, call in calls()}))
        return
    found = [one for loops in (0, cores()) for one in rows(loops, 0.02 if args.quick else 2.0)]
    for one in found:
        print(json.dumps(one) if args.json else f"{line(one)}  {one['over']:.2f} of rotrnn's time")
    if not args.quick:
        run = {**origin(), "threads": _cpu.threads(), "results": found}
        record(RESULTS / "busy.json", run)


if __name__ == "__main__":
    main()
