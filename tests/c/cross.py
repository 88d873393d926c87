"""Compiles every C file for another system, with the jobs of setup.py, and runs the C tests if it can.

    python tests/c/cross.py linux-aarch64      # gcc-aarch64-linux-gnu, libc6-dev-arm64-cross; runs under qemu-user
    python tests/c/cross.py linux-x86_64       # this machine's compiler, CC
    python tests/c/cross.py macosx-11.0-arm64 macosx-11.0-x86_64 win-amd64 [...]  # zig (PyPI: ziglang); not run

Targets have the names of sysconfig.get_platform(), and are compiled for their baseline instruction set. The headers of
Python and NumPy are those of this machine. On macOS they work with one file added; for Windows they do not, so the
files that call Python are left out.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ZIG = [sys.executable, "-m", "ziglang", "cc", "-target"]
COMPILERS = {
    "linux-aarch64": ["aarch64-linux-gnu-gcc"],
    "linux-x86_64": os.environ.get("CC", "gcc").split(),
    "macosx-11.0-arm64": [*ZIG, "aarch64-macos"],
    "macosx-11.0-x86_64": [*ZIG, "x86_64-macos"],
    "win-amd64": [*ZIG, "x86_64-windows-gnu"],
}
RUNNERS = {"linux-aarch64": ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"], "linux-x86_64": []}
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror"]
TESTS = Path(__file__).parent / "kernels.c"
DOOR = ("door", "module", "stream")  # C files that call Python
TABLES = ("entries", "list", "once")  # C files that only the door reads
Objects = list[tuple[Path, str]]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    print(done.stdout, end="")


def compile_all(compiler: list[str], target: str, folder: Path, more: list[str]) -> tuple[Any, list[str], Objects]:
    """Compiles every C file for a target. Returns setup.py as a module, the flags, and the objects with their files."""
    os.environ["_PYTHON_HOST_PLATFORM"] = target  # what sysconfig.get_platform() returns
    sys.modules.pop("setup", None)
    import setup

    made = folder / "made"
    runpy.run_path("csrc/generate.py")["generate"](made)
    include = [*setup.INCLUDE, str(made), np.get_include(), sysconfig.get_path("include")]
    flags = [*setup.FLAGS, *WARNINGS, "-fPIC", *more, *(f"-I{path}" for path in include)]
    if target.startswith("mac"):
        stub = folder / "include" / "endian.h"
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text("#include <machine/endian.h>\n", encoding="utf-8")
        flags.append(f"-I{stub.parent}")
    if target not in RUNNERS:
        flags.append("-O1")  # the last one counts
    jobs = [*setup.all_jobs(), setup.Job(str(made / "list.c"), "", [], setup.MACROS)]
    jobs = [job for job in jobs if job.variant == "" or job.variant.endswith(f"_{setup.PLAINEST}")]
    if target.startswith("win"):
        jobs = [job for job in jobs if Path(job.source).stem not in DOOR]

    def place(source: str, variant: str) -> str:
        path = folder / variant / Path(source).with_suffix(".o").name
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    def compile_one(job: setup.Job) -> tuple[Path, str]:
        path = place(job.source, job.variant)
        macros = [f"-D{name}={value}" for name, value in job.macros]
        run([*compiler, *flags, *job.flags, *macros, "-c", job.source, "-o", path])
        return Path(job.source), path

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, jobs))
    print(f"{target}: {len(objects)} objects")
    return setup, flags, objects


def programs(compiler: list[str], target: str, folder: Path, more: list[str], tests: Path) -> dict[str, str]:
    """Compiles every C file for a target, and a program of tests with them for each dtype. Returns the programs."""
    setup, flags, objects = compile_all(compiler, target, folder, more)
    kernels = [
        path for source, path in objects if source.stem not in DOOR + TABLES and source.parent.name != setup.LIB
    ]  # the C library's streams take from the door which instruction set is chosen
    made = {}
    for dtype in setup.REAL + setup.COMPLEX:
        made[dtype] = str(folder / f"test_{dtype}")
        macros = [f"-DROT_DTYPE={dtype}", f"-DROT_ISA={setup.PLAINEST}"]
        run([*compiler, *flags, *macros, str(tests), *kernels, "-o", made[dtype], "-lm"])
    return made


def cross(target: str) -> None:
    """Compiles for one target, and runs the C tests where there is a way to."""
    compiler, folder = COMPILERS[target], Path("build", "cross", target)
    if target not in RUNNERS:
        compile_all(compiler, target, folder, [])
        return
    for dtype, program in programs(compiler, target, folder, ["-fopenmp"], TESTS).items():
        print(f"{target} {dtype}: ", end="", flush=True)
        run([*RUNNERS[target], program])


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    for name in sys.argv[1:]:
        if name not in COMPILERS:
            sys.exit(f"target is {name!r}, expected one of {', '.join(COMPILERS)}")
        cross(name)
