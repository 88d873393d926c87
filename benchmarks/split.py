"""One sequence of 2^20 steps on two and on four processes of MPI, beside one process on all cores.

    OMP_NUM_THREADS=1 python -m benchmarks.split [--json] [--quick]

A diagonal scan (N 64, complex) and a residual block of an LRU (D 64, N 64, layer norm), each forward and backward, in
float32. "1 process" has as many threads as this machine has cores, each of several processes has one. Every process
checks its piece against one process that runs the whole, in float32 and, with an eighth of the steps, in float64, where
what is left of rounding shows that nothing else differs. It counts its messages beside what is derived (see
`rotrnn.ops.split_start`).

A time is the minimum over rounds of the slowest process, and the ways take turns. On two cores four processes can at
best be as fast as two. Results are written to benchmarks/results/split.json. Needs the extra "mpi" and 12 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, arguments, in_turn, line, origin
from benchmarks.record import record
from rotrnn import _cpu
from rotrnn._support.platform import cores
from rotrnn.nn.blocks.block import ResidualBlock
from rotrnn.nn.blocks.gate import Gate
from rotrnn.nn.blocks.norm import LayerNorm
from rotrnn.nn.layer import Array, Context, astype, flatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.ops import diagonal_scan, diagonal_scan_backward, split_end, split_start
from rotrnn.training.parallel import Grid, World, world

N = D = 64
PROCESSES = (1, 2, 4)
FORM = 128  # bytes of a message beside its numbers


class Counted:
    """The processes of a row, with the bytes of their messages."""

    def __init__(self, ranks: Any) -> None:
        self.ranks, self.rank, self.size = ranks, ranks.rank, ranks.size
        self.sent: list[int] = []

    def gather(self, x: Array) -> list[Array]:
        self.sent.append(x.nbytes)
        found: list[Array] = self.ranks.gather(x)
        return found


Run = Callable[[slice, Any], dict[str, Array]]
"""Computes a piece of the sequence: outputs by name, those that add up over processes with the sign + before."""


def scan(T: int, dtype: type[np.floating[Any]] = np.float32) -> Run:
    rng = np.random.default_rng(0)
    kind = np.result_type(dtype, np.complex64)
    a = (rng.uniform(0.99, 1, N) * np.exp(1j * rng.uniform(0, 6, N))).astype(kind)
    x, dh = (rng.standard_normal((1, T, 2 * N), np.float32).astype(dtype).view(kind) for _ in range(2))

    def run(part: slice, gather: Any) -> dict[str, Array]:
        start = end = None
        if gather is not None:
            start = split_start(a, x[:, part], split=gather.time)
        h = diagonal_scan(a, x[:, part], start)
        assert isinstance(h, np.ndarray)
        if gather is not None:
            end = split_end(dh[:, part], a, split=gather.time)
        grads = diagonal_scan_backward(dh[:, part], a, h, start, dhT=end)
        return {"h": h, "dx": grads.dx, "+da": grads.da}

    return run


def block(T: int, dtype: type[np.floating[Any]] = np.float32, *, fused: bool) -> Run:
    rng = np.random.default_rng(0)
    one = ResidualBlock(LayerNorm(D), LRU(D, d_state=N, r_min=0.99), Gate(D))
    params = astype(one.init(rng), dtype)
    x, dy = (rng.standard_normal((1, T, D), np.float32).astype(dtype, copy=False) for _ in range(2))

    def run(part: slice, gather: Any) -> dict[str, Array]:
        y, saved = one.forward(params, x[:, part], Context(gather=gather, fused=fused))
        dx, dparams, _ = one.backward(params, saved, dy[:, part], None, gather)
        return {"y": y, "dx": dx, **{f"+{name}": grad for name, grad in flatten(dparams)}}

    return run


CASES: dict[str, Callable[..., Run]] = {
    "diagonal scan": scan,
    "block, layer fused": partial(block, fused=True),
    "block, layer unfused": partial(block, fused=False),
}


def check(run: Run, part: slice, T: int, grid: Grid) -> float:
    """Returns the largest difference of any process's piece from the whole, relative to the largest number there."""
    everyone, worst = grid.everyone, 0.0
    here = run(part, grid)
    totals = everyone.total({name: one for name, one in here.items() if name[0] == "+"})
    for rank in range(everyone.size):
        if everyone.rank == rank:  # one at a time, for their memory
            for name, one in run(slice(0, T), None).items():
                mine, expected = (totals[name], one) if name[0] == "+" else (here[name], one[:, part])
                worst = max(worst, float(np.abs(mine - expected).max() / np.abs(one).max()))
        everyone.tell(None)
    return max(everyone.tell(worst))


def process(everyone: World, name: str, T: int, window: float, verify: bool) -> dict[str, Any]:
    """What a process of MPI does: runs its piece for a while. Returns time, difference and messages."""
    run = CASES[name](T)
    if everyone.size == 1:
        part, gather, found = slice(0, T), None, {}
    else:
        grid = everyone.grid(everyone.size)
        counted = Counted(grid.time)
        gather = replace(grid, time=counted)  # type: ignore[arg-type]
        part = slice(T * everyone.rank // everyone.size, T * (everyone.rank + 1) // everyone.size)
        run(part, gather)
        found = {"messages": list(counted.sent), "derived": [FORM + 16 * (1 + 1) * N] * 2}
        assert found["messages"] == found["derived"], found
        if verify:
            found["difference"] = check(run, part, T, grid)
            short = slice(part.start // 8, part.stop // 8)
            found["difference_float64"] = check(CASES[name](T // 8, np.float64), short, T // 8, grid)
    least, begun = float("inf"), time.monotonic()
    while everyone.tell(time.monotonic() - begun < window)[0]:
        before = time.perf_counter()
        run(part, gather)
        least = min(least, max(everyone.tell(time.perf_counter() - before)))
    return {**found, "seconds": least}


def started(name: str, T: int, processes: int, window: float, found: dict[str, Any]) -> float:
    """Runs a case in new processes, and returns its least time; the first time they check it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        verify = not found
        told = json.dumps([name, T, window, verify, str(path)])
        command = [sys.executable, "-m", "benchmarks.split", "--process", told]
        if processes > 1:
            command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(processes), *command]
        threads = cores() if processes == 1 else 1
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        subprocess.run(command, env=env, check=True, capture_output=True)
        result = json.loads(path.read_text(encoding="utf-8"))
    for key, value in result.items():
        found.setdefault(key, value)
    return float(result["seconds"])


def rows(T: int, window: float, rounds: float) -> list[dict[str, Any]]:
    """One row for each case and number of processes."""
    every = []
    for name in CASES:
        found: list[dict[str, Any]] = [{} for _ in PROCESSES]
        turns = [partial(started, name, T, n, window, one) for n, one in zip(PROCESSES, found, strict=True)]
        times = in_turn(turns, window=rounds)
        for n, one, seconds in zip(PROCESSES, found, times, strict=True):
            threads = cores() if n == 1 else 1
            one |= {"seconds": seconds, "speed": times[0] / seconds, "simd": _cpu.simd(), "threads": threads}
            every.append({"name": f"{name}, T {T}", "path": f"{n} process" + "es" * (n > 1), **one})
    return every


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--process", metavar="JSON", help="for the benchmark itself: what one process of MPI is to do")
    args = parser.parse_args()
    if args.process:
        *told, path = json.loads(args.process)
        everyone = world()
        with everyone.together():
            found = process(everyone, *told)
        if everyone.first:
            Path(path).write_text(json.dumps(found), encoding="utf-8")
        return
    found = rows(2**12, 0.05, 0.1) if args.quick else rows(2**20, 4.0, 60.0)
    for one in found:
        print(json.dumps(one) if args.json else f"{line(one)}  {one['speed']:.2f} times as fast")
    if not args.quick:
        run = {**origin(), "load": os.getloadavg(), "results": found}
        record(RESULTS / "split.json", run)


if __name__ == "__main__":
    main()
