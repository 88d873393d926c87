"""The most multiply-adds of float32 that this machine's cores make in a second, from registers alone (peak.c).

python -m benchmarks.peak
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import seconds_in_turn
from rotrnn import _cpu

ROUNDS = 2_000_000
"""Rounds of peak.c in a run, some 7 ms."""


def multiply_adds() -> tuple[Callable[[], None], float]:
    """A function that makes multiply-adds with as many threads as the kernels use, and its number of floating-point
    operations, two for each."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "peak.so")
        options = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run(["cc", str(Path(__file__).with_suffix(".c")), *options], check=True)
        run_one = ctypes.CDLL(str(library)).multiply_adds
    run_one.argtypes, run_one.restype = [ctypes.c_int64, ctypes.c_void_p], ctypes.c_int64
    threads = _cpu.threads()
    pool, out = ThreadPoolExecutor(threads), (ctypes.c_float * (16 * threads))()

    def one(thread: int) -> int:
        return int(run_one(ROUNDS, ctypes.addressof(out) + 64 * thread))

    count = sum(pool.map(one, range(threads)))
    return lambda: list(pool.map(one, range(threads))) and None, 2.0 * count


def main() -> None:
    run, flops = multiply_adds()
    (seconds,) = seconds_in_turn([run], window=2.0)
    print(f"{1e-9 * flops / seconds:.0f} GFLOP/s with {_cpu.threads()} threads")


if __name__ == "__main__":
    main()
