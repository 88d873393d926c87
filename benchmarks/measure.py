"""Functions that all benchmarks share: minima over a window of time, this machine's limits, memory, a run's provenance.

Machines in a cloud share their memory bus with others and stall at times, so a time is the minimum of many short runs,
and functions to be compared run in turn in the same window.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn import _cpu
from rotrnn._support.platform import processor

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark. OMP_NUM_THREADS sets the threads of the kernels and of NumPy's products alike."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the benchmark itself")
    return parser


def in_turn(turns: Sequence[Callable[[], float]], *, window: float) -> list[float]:
    """The minimum time of each function, in turns for `window` seconds and at least twice."""
    least = [float("inf")] * len(turns)
    start, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - start < window:
        least = [min(seconds, turn()) for seconds, turn in zip(least, turns, strict=True)]
        rounds += 1
    return least


def turn(function: Callable[[], Any], window: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The minimum time of a call by the clock, in a turn of 0.1 s and at least two calls (one if the window is short).

    OpenBLAS's threads spin some 25 ms after a product before they sleep, and would take a core from what runs next, so
    each turn begins with a pause. The kernels' own waiting threads do not spin, as `python -m benchmarks` sets
    OMP_WAIT_POLICY=passive.
    """
    time.sleep(min(0.05, window / 8))
    least, calls, begin = float("inf"), 0, time.perf_counter()
    before = begin
    while before - begin < min(0.1, window / 8) or calls < min(2, window):
        start = clock()
        function()
        least, calls = min(least, clock() - start), calls + 1
        before = time.perf_counter()
    return least


def seconds_in_turn(
    functions: Sequence[Callable[[], Any]], *, window: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The minimum time of a call of each function; each is called once unmeasured, then they take turns."""
    for function in functions:
        function()
    return in_turn([partial(turn, function, window, clock) for function in functions], window=window)


def plain_copy(y: np.ndarray, x: np.ndarray) -> Callable[[], None]:
    """Copies x to y with ordinary stores, with as many threads as the kernels use: this machine's memory bandwidth."""
    return lambda: _cpu.kernels.copy(y=y, x=x, n=x.size)


def products(M: int, shapes: Sequence[tuple[int, int]], backward: bool) -> tuple[Callable[[], None], float]:
    """Runs products of M rows with matrices (d_out, d_in) by NumPy, and their number of floating-point operations.

    Forward is ``y = x W^T``; backward adds ``dx = dy W`` and ``dW = dy^T x``.
    """
    rng = np.random.default_rng(0)
    rows = {width: rng.standard_normal((2, M, width), dtype=np.float32) for shape in shapes for width in shape}
    weights = [rng.standard_normal((d_out, d_in), dtype=np.float32) for d_in, d_out in shapes]

    def run() -> None:
        for w in weights:
            d_out, d_in = w.shape
            np.matmul(rows[d_in][0], w.T, out=rows[d_out][1])
        if backward:
            for w in reversed(weights):
                d_out, d_in = w.shape
                np.matmul(rows[d_out][0], w, out=rows[d_in][1])
                np.matmul(rows[d_out][0].T, rows[d_in][0])

    return run, (3 if backward else 1) * sum(2.0 * M * d_in * d_out for d_in, d_out in shapes)


def layer_products(D: int, N: int) -> list[tuple[int, int]]:
    """(d_in, d_out) of the products of a recurrent layer with N real lanes: in and out."""
    return [(D, N), (N, D)]


def block_products(D: int, N: int) -> list[tuple[int, int]]:
    """(d_in, d_out) of the products of a block: its layer's, and the gate's two."""
    return [*layer_products(D, N), (D, D), (D, D)]


def memory() -> tuple[int, int]:
    """Bytes that this process holds now, and the most that it ever held (Linux; getrusage would count the parent's)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    held, peak = (1024 * int(status[key].split()[0]) for key in ("VmRSS", "VmHWM"))
    return held, peak


def row(name: str, seconds: float, limit_seconds: float | None = None, **more: Any) -> dict[str, Any]:
    """One result: a time, and the time of its limit, which `limit` in `more` names."""
    if limit_seconds is not None:
        more = {"limit_seconds": limit_seconds, "ratio": seconds / limit_seconds, **more}
    return {"name": name, "seconds": seconds, "threads": _cpu.threads(), "simd": _cpu.simd(), **more}


def show(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Prints the results, for people or one JSON object a line."""
    for one in rows:
        print(json.dumps(one) if as_json else line(one), flush=True)


def label(one: dict[str, Any]) -> str:
    """The timed function, and its variant if there are several."""
    return f"{one['name']}, {one['path']}" if "path" in one else str(one["name"])


def line(one: dict[str, Any]) -> str:
    """A result for people."""
    head = f"{label(one):50s}"
    if "error" in one:
        return f"{head}{one['error']}"
    parts = [f"{1e3 * one['seconds']:11.3f} ms"]
    if "ratio" in one:
        parts.append(f"limit {1e3 * one['limit_seconds']:11.3f} ms  ratio {one['ratio']:.3g}")
    parts += [f"{one[key]:7.1f} {key}" for key in ("GB/s", "GFLOP/s", "ns/token") if key in one]
    if "activations" in one:
        parts.append(f"{one['activations']:.1f} activations of (B, T, D)")
    if "peak_bytes" in one:
        parts.append(f"peak {one['peak_bytes'] / 2**20:.0f} MiB")
    if "compile_seconds" in one:
        parts.append(f"compiled in {one['compile_seconds']:.1f} s")
    if "error_bound" in one:
        parts.append(f"differs by {one['difference']:.1e} (bound {one['error_bound']:.1e})")
    return head + "  ".join(parts)


def markdown(head: Sequence[str], body: Iterable[Sequence[str]], rule: str = "---") -> str:
    """A table of Markdown, with this rule under the second and later columns."""
    lines = [head, ["---", *[rule] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rows_of_child(module: str, *args: str, **environment: str) -> Iterator[dict[str, Any]]:
    """The rows that ``python -m module args`` prints, as it prints them, in a process of its own.

    Threads that wait sleep, so that the pools of OpenMP and of other libraries leave one another the cores.
    """
    command = [sys.executable, "-m", module, *args]
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", **environment}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for text in child.stdout:
            yield json.loads(text)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)


def origin() -> dict[str, Any]:
    """Command, commit, machine and versions."""
    return {
        "command": " ".join(["python", "-m", module(), *sys.argv[1:]]),
        "commit": commit(),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "simd": _cpu.simd()},
        "versions": {
            "python": platform.python_version(),
            "compiler": _cpu.COMPILER,
            **{name: version(name) for name in ("numpy", "scipy", "jax", "torch", "torchlpc")},
        },
    }


def module() -> str:
    """The name that ``python -m`` was given."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else "benchmarks"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(checkout: Path = ROOT) -> str | None:
    """The commit that is checked out, with a mark if files other than results have changed since."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
        return git("describe", "--always", "--abbrev=12", "--exclude=*") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
