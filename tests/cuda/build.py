"""Builds for the harness (host_device.h): the files of cuda/ and of this folder, compiled by a C++ compiler.

    python tests/cuda/build.py             # the module _cuda_host, in build/harness
    python tests/cuda/build.py faults      # the program of faults.cu
    python tests/cuda/build.py traffic     # _cuda_host with kernels that count what they move, for another folder

HARNESS is another folder, CC and CXX other compilers: CXX="g++ -fsanitize=address,undefined -g". Objects that are up to
date are kept.
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
COMPILER = {".c": shlex.split(os.environ.get("CC", "gcc"))}
LINKER = shlex.split(os.environ.get("CXX", "g++"))
INCLUDE = ["csrc/include", "csrc/runtime", "csrc/kernels", "csrc/module", "cuda", str(HERE), str(FOLDER)]
# -ffp-contract=off: a wrong order of operations must not hide behind the rounding of fused ones
COMMON = ["-fPIC", "-O1", "-fvisibility=hidden", "-ffp-contract=off", "-DROT_HOST_DEVICE"]
CXX = ["-std=c++17", "-x", "c++", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
C = ["-std=c11", "-DROT_CUDA_NAME=_cuda_host"]
# The calls before each access that the thread sanitizer has; but the files are not to say that it is there
COUNTED = ["-fsanitize=thread", "-U__SANITIZE_THREAD__"]


def command(job: setup.Job) -> list[str]:
    """Returns the command that compiles a job, without its output."""
    kind = Path(job.source).suffix
    macros = [f"-D{name}={value}" for name, value in job.macros]
    folders = [*INCLUDE, sysconfig.get_path("include"), np.get_include()]
    flags = [*COMMON, *(C if kind == ".c" else CXX), *job.flags, *macros, *(f"-I{folder}" for folder in folders)]
    return [*COMPILER.get(kind, LINKER), *flags, "-MMD", "-c", job.source]


def call(line: list[str]) -> None:
    if subprocess.run(line).returncode:
        sys.exit(f"failed: {shlex.join(line)}")


def compile_job(job: setup.Job) -> Path:
    """Compiles a job, unless its object is up to date. Returns the object's path."""
    path = FOLDER / f"{Path(job.source).name}.{job.variant}.o"
    record, line = path.with_suffix(".command"), command(job)
    if record.exists() and record.read_text(encoding="utf-8") == repr(line) and setup.up_to_date(path):
        return path
    record.unlink(missing_ok=True)
    call([*line, "-MF", str(path.with_suffix(".d")), "-o", str(path)])
    record.write_text(repr(line), encoding="utf-8")
    return path


def link(name: str, jobs: list[setup.Job], flags: list[str]) -> Path:
    """Compiles jobs along with the harness itself, and links them. Returns the file's path."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    setup.runpy.run_path("csrc/generate.py")["generate"](FOLDER)
    # products of matrices are most of the time of many tests, and -O2 makes them five times as fast
    jobs = [*jobs, *(setup.Job(str(path), "", ["-O2"], []) for path in sorted(HERE.glob("host_*.cpp")))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_job, jobs))
    file, record = FOLDER / name, FOLDER / f"{name}.command"
    line = [*LINKER, *flags, *map(str, objects)]
    newest = max(one.stat().st_mtime_ns for one in objects)
    if not record.exists() or record.read_text(encoding="utf-8") != repr(line) or file.stat().st_mtime_ns < newest:
        record.unlink(missing_ok=True)
        call([*line, "-o", f"{file}.new"])
        os.replace(f"{file}.new", file)
        record.write_text(repr(line), encoding="utf-8")
    return file


def link_module(jobs: list[setup.Job]) -> Path:
    return link(f"_cuda_host{sysconfig.get_config_var('EXT_SUFFIX')}", jobs, ["-shared"])


def module_jobs() -> list[setup.Job]:
    return [job for job in setup.cuda_jobs(FOLDER / "list.c") if not job.source.endswith("runtime.cu")]


def module() -> Path:
    return link_module(module_jobs())


def traffic() -> Path:
    """Of float32 and complex64 alone: an entry that is left out says that there is no kernel."""
    jobs = [setup.Job(str(HERE / "traffic_calls.cpp"), "", [], [])]
    for job in [*module_jobs(), setup.cuda_job(str(HERE / "planted.cu"), "f32")]:
        if not job.source.endswith(".cu"):
            jobs.append(job)
        elif job.variant in ("f32_cuda", "c64_cuda"):
            jobs.append(job._replace(flags=COUNTED))
    return link_module(jobs)


def faults() -> Path:
    return link("faults", [setup.cuda_job(str(HERE / "faults.cu"), "f32")], [])


if __name__ == "__main__":
    made = {"module": module, "faults": faults, "traffic": traffic}
    print(made[(sys.argv[1:] or ["module"])[0]]())
