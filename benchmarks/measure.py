"""What every benchmark shares: minima over a window of time, the machine's own copy, and records of results.

These machines share their memory bus with others and stall at times, so a time is the least of many short runs, and
what is to be compared runs in turn in the same window.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn import _cpu

RESULTS = Path(__file__).parent / "results"


def seconds_in_turn(
    functions: Sequence[Callable[[], Any]], *, window: float = 2.0, repeats: int | None = None
) -> list[float]:
    """The least time of one call of each function, run in turn for `window` seconds in all, or `repeats` times.

    Each runs at least three times, the first of them unmeasured.
    """
    least = [float("inf")] * len(functions)
    for function in functions:
        function()
    start, rounds = time.perf_counter(), 0
    while rounds < 2 or (rounds < repeats if repeats else time.perf_counter() - start < window):
        for i, function in enumerate(functions):
            before = time.perf_counter()
            function()
            least[i] = min(least[i], time.perf_counter() - before)
        rounds += 1
    return least


def plain_copy(y: np.ndarray, x: np.ndarray) -> Callable[[], None]:
    """Copies x to y with ordinary stores, as many threads as the kernels use: how fast this machine's memory is."""
    return lambda: _cpu.copy(y.reshape(-1), x.reshape(-1), x.size)


def row(name: str, seconds: float, limit_seconds: float, **more: Any) -> dict[str, Any]:
    """One result: a time, and the time of what limits it."""
    ratio = seconds / limit_seconds
    return {"name": name, "seconds": seconds, "limit_seconds": limit_seconds, "ratio": ratio, **more}


def show(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Prints the results, for people or one JSON object a line."""
    for one in rows:
        if as_json:
            print(json.dumps(one))
            continue
        rates = "".join(f"  {value:7.1f} {key}" for key, value in one.items() if key in ("GB/s", "GFLOP/s"))
        times = f"{1e3 * one['seconds']:9.3f} ms{rates}  limit {1e3 * one['limit_seconds']:9.3f} ms"
        print(f"{one['name']:28s}{times}  ratio {one['ratio']:.2f}")


def record(name: str, results: dict[str, Any]) -> None:
    """Writes benchmarks/results/<name>.json: the results, and where they come from."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"results": results, **origin()}, indent=2) + "\n"
    (RESULTS / f"{name}.json").write_text(text)


def origin() -> dict[str, Any]:
    """Command, commit, machine and versions."""
    return {
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "threads": _cpu.threads()},
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "compiler": _cpu.COMPILER,
            "simd": _cpu.simd(),
        },
    }


def commit() -> str | None:
    """The commit this runs at, with a mark if files have changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
