"""Runs the kernels and the pool of memory under the thread sanitizer, without Python (races.c): `make races`.

    python tests/c/races.py [c64 c128 f32 f64]

By clang, whose OpenMP tells the sanitizer of its barriers and locks (Debian: clang, libomp-dev); gcc's does not. A
race planted between threads and one in a parallel loop must both be found, or a clean report would mean nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cross import programs

FLAGS = ["-fsanitize=thread", "-fno-omit-frame-pointer", "-g", "-O1", "-fopenmp"]
FOUND = 66  # the sanitizer's exit code
# Only instrumented code is watched: OpenMP's own is told by its tool, archer. A child of fork may go on.
ENVIRONMENT = {
    "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:die_after_fork=0:halt_on_error=1:exitcode={FOUND}",
    "OMP_WAIT_POLICY": "passive",
}


def races(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=os.environ | ENVIRONMENT)


def main(dtypes: list[str]) -> None:
    sys.path.insert(0, os.getcwd())  # for setup.py
    made = programs(["clang"], "linux-x86_64", Path("build", "races"), FLAGS, Path(__file__).with_name("races.c"))
    for dtype in dtypes or made:
        for planted in ("threads", "openmp"):
            done = races(made[dtype], planted)
            if done.returncode != FOUND or "data race" not in done.stderr:
                sys.exit(f"{dtype}: the race planted by {planted!r} was not found\n{done.stdout}{done.stderr}")
        done = races(made[dtype])
        if done.returncode:
            sys.exit(f"{dtype}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        print(f"{dtype}: both planted races found, and no other; {done.stdout}", end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
