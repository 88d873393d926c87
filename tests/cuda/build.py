"""Builds `_cuda_host`: the files of cuda/ compiled by a C++ compiler for the harness, in build/harness.

    python tests/cuda/build.py             # or with a sanitizer: CXX="g++ -fsanitize=address,undefined -g"

`host_device.h` has what the harness finds. Objects that are up to date are kept.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)
import setup  # noqa: E402

HERE = Path("tests/cuda")
FOLDER = Path(os.environ.get("HARNESS", "build/harness"))
INCLUDE = ["csrc/include", "csrc/kernels", "csrc/module", "cuda", str(HERE), str(FOLDER)]
# -ffp-contract=off: a wrong order of operations must not hide behind the rounding of fused ones
COMMON = ["-fPIC", "-O1", "-fvisibility=hidden", "-ffp-contract=off", "-DROT_HOST_DEVICE"]
CXX = ["-std=c++17", "-x", "c++", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
C = ["-std=c11", "-DROT_CUDA_NAME=_cuda_host"]


def command(job: setup.Job) -> list[str]:
    """Returns the command that compiles a job, without its output."""
    plain = job.source.endswith(".c")
    compiler = shlex.split(os.environ.get("CC", "gcc") if plain else os.environ.get("CXX", "g++"))
    macros = [f"-D{name}={value}" for name, value in job.macros]
    folders = [*INCLUDE, sysconfig.get_path("include"), np.get_include()]
    flags = [*COMMON, *(C if plain else CXX), *macros, *(f"-I{folder}" for folder in folders)]
    return [*compiler, *flags, "-MMD", "-c", job.source]


def build(extra: list[str] | None = None) -> Path:
    """Builds the module, with more `.cu` files if `extra` has some. Returns its path."""
    generate = setup.runpy.run_path("csrc/generate.py")["generate"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    generate(FOLDER)
    jobs = [*setup.cuda_jobs(FOLDER / "list.c"), *(setup.Job(str(path), "", [], []) for path in HERE.glob("host_*.cpp"))]
    jobs = [job for job in jobs if not job.source.endswith("runtime.cu")]

    def compile_one(job: setup.Job) -> str:
        path = FOLDER / f"{Path(job.source).name}.{job.variant}.o"
        record, line = path.with_suffix(".command"), command(job)
        if record.exists() and record.read_text() == repr(line) and setup.up_to_date(path):
            return str(path)
        record.unlink(missing_ok=True)
        subprocess.run([*line, "-MF", str(path.with_suffix(".d")), "-o", str(path)], check=True)
        record.write_text(repr(line))
        return str(path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, jobs))
    module = FOLDER / f"_cuda_host{sysconfig.get_config_var('EXT_SUFFIX')}"
    linker = shlex.split(os.environ.get("CXX", "g++"))
    if not module.exists() or any(os.stat(one).st_mtime > module.stat().st_mtime for one in objects):
        subprocess.run([*linker, "-shared", *objects, "-o", f"{module}.new"], check=True)
        os.replace(f"{module}.new", module)
    return module


if __name__ == "__main__":
    print(build())
