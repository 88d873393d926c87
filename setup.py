"""Builds rotrnn._cpu. Each kernel file is compiled once per dtype and instruction set (csrc/include/real.h).

csrc/generate.py first writes the declarations for C and Python from csrc/kernels.list.
"""

import os
import runpy
import shlex
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

MACHINE = sysconfig.get_platform().rpartition("-")[2].lower()  # the target, which the environment may set
X86 = MACHINE in ("x86_64", "amd64")
ARM = MACHINE in ("aarch64", "arm64")
# sanitizers need debug lines; more optimisation with them takes many minutes and finds nothing more. Python's own flags
# have -fwrapv, which would hide signed overflow from them
CC = os.environ.get("CC", "")
OPTIMISE = ["-O1", "-fno-wrapv"] if "-fsanitize" in CC else ["-O3"]
DEBUG = [] if "-g" in CC.split() else ["-g0"]  # Python's own flags have -g
FLAGS = [
    *("-std=c11", *OPTIMISE, *DEBUG, "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    "-fvisibility=hidden",
]
STRIP = ["-Wl,-s"] if DEBUG and sysconfig.get_platform().startswith("linux") else []
AVX2 = ["-mavx2", "-mfma"]  # exactly what simd_supported in csrc/module/module.c checks
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
INSTRUCTION_SETS = {"base": [], "avx2": AVX2, "avx512": AVX512} if X86 else {"neon" if ARM else "base": []}
PLAINEST = next(iter(INSTRUCTION_SETS))
MACROS = [("ROT_X86", "1")] * X86 + [("ROT_NEON", "1")] * ARM

REAL = ("f32", "f64")
COMPLEX = ("c64", "c128")
DTYPES_OF = {  # all other files are compiled for real dtypes
    **dict.fromkeys(("scan.c", "window.c", "entries.c"), REAL + COMPLEX),
}
DATA = "data"  # the folder of generators: integer code, as fast on any instruction set
ONCE = "once.c"  # the table of generators
PLAIN = ("module.c", "door.c", "pool.c", "stop.c")  # compiled once, without a variant


class Job(NamedTuple):
    """A file to compile in a variant ("" for none), with its flags and macros."""

    source: str
    variant: str
    flags: list[str]
    macros: list[tuple[str, str]]


def variants(source):
    """Pairs of dtype and instruction set that `source` is compiled for."""
    if source.parent.name == DATA or source.name == ONCE:
        return [("f32", PLAINEST)]
    return [(dtype, isa) for isa in INSTRUCTION_SETS for dtype in DTYPES_OF.get(source.name, REAL)]


def all_jobs():
    """Every file in every variant, the longest first, so that no core starts a long one at the end."""
    jobs = []
    for source in sorted(Path("csrc").glob("*/*.c"), key=lambda path: -path.stat().st_size):
        if source.name in PLAIN:
            jobs.append(Job(str(source), "", [], MACROS))
            continue
        for dtype, isa in variants(source):
            macros = [*MACROS, ("ROT_DTYPE", dtype), ("ROT_ISA", isa)]
            jobs.append(Job(str(source), f"{dtype}_{isa}", INSTRUCTION_SETS[isa], macros))
    return jobs


def cuda_jobs(listing):
    """The files of rotrnn._cuda: those of cuda/, and the door and the tables of csrc; `listing` is the made list.c."""
    jobs = []
    for source in sorted(Path("cuda").glob("*.cu"), key=lambda path: -path.stat().st_size):
        dtypes = [None] if source.name == "runtime.cu" else DTYPES_OF.get(f"{source.stem}.c", REAL)
        jobs += [cuda_job(str(source), dtype) for dtype in dtypes]
    jobs += [cuda_job("csrc/module/entries.c", dtype) for dtype in REAL + COMPLEX]
    return jobs + [Job(source, "", [], MACROS) for source in ("cuda/module.c", "csrc/module/door.c", str(listing))]


def cuda_job(source, dtype):
    if dtype is None:
        return Job(source, "", [], MACROS)
    return Job(source, f"{dtype}_cuda", [], [*MACROS, ("ROT_CUDA", "1"), ("ROT_DTYPE", dtype), ("ROT_ISA", "cuda")])


def check_compiler():
    """Raises PlatformError if there is no C compiler. (On Windows, distutils finds it in other ways.)"""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if sys.platform != "win32" and shutil.which(command) is None:
        raise PlatformError(
            f"rotrnn is built by a C compiler, and there is no {command!r} here: install gcc or clang "
            "(Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc; macOS: xcode-select --install), "
            "or name the one you have: CC=/path/to/cc pip install ..."
        )


def up_to_date(path):
    """Whether an object is newer than all its sources, which the compiler listed beside it (-MMD)."""
    try:
        parts = path.with_suffix(".d").read_text().replace("\\\n", " ").partition(": ")[2].split()
        return all(os.stat(part).st_mtime_ns < path.stat().st_mtime_ns for part in parts)
    except OSError:
        return False


class Build(build):
    """Checks for the compiler before anything is copied, so that only the error is printed."""

    def run(self):
        check_compiler()
        super().run()


class BuildVariants(build_ext):
    """Compiles the files of csrc that changed, each once per variant."""

    def build_extension(self, ext):
        check_compiler()
        made = Path(self.build_temp, "made")
        generate = runpy.run_path("csrc/generate.py")["generate"]
        generate(made, stub_folder=Path(self.get_ext_fullpath(ext.name)).parent)
        include = [*ext.include_dirs, str(made)]
        jobs = [*all_jobs(), Job(str(made / "list.c"), "", [], MACROS)]
        openmp = ["-fopenmp"] if self.accepts("-fopenmp") else []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: self.compile(job, [*FLAGS, *openmp], include), jobs))
        path = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, path, extra_postargs=[*openmp, *STRIP], libraries=["m"])

    def compile(self, job, flags, include):
        """Compiles a job, unless its object is up to date. Returns the object's path."""
        folder = os.path.join(self.build_temp, job.variant)
        (path,) = self.compiler.object_filenames([job.source], output_dir=folder)
        command = repr((self.compiler.compiler_so, flags, job, include))
        record = Path(path).with_suffix(".command")
        if not self.force and record.exists() and record.read_text() == command and up_to_date(Path(path)):
            return path
        record.unlink(missing_ok=True)
        self.compiler.compile(
            [job.source],
            output_dir=folder,
            macros=job.macros,
            include_dirs=include,
            extra_postargs=[*flags, *job.flags, "-MMD"],
        )
        record.write_text(command)
        return path

    def copy_extensions_to_source(self):
        """Copies the stub too: in an editable install it is beside the extension, in the source tree."""
        super().copy_extensions_to_source()
        for ext in self.extensions:
            built = Path(self.build_lib, *ext.name.split(".")).with_suffix(".pyi")
            self.copy_file(str(built), str(Path("python", *ext.name.split(".")).with_suffix(".pyi")))

    def accepts(self, flag):
        """Whether the compiler can compile and link with `flag`."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "try.c")
            source.write_text("int main(void) { return 0; }\n")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=[flag])
                self.compiler.link_executable(objects, os.path.join(folder, "try"), extra_postargs=[flag])
            except Exception:  # each compiler class raises other types
                return False
        return True


include = ["csrc/include", "csrc/kernels", np.get_include()]
extension = Extension("rotrnn._cpu", sorted({job.source for job in all_jobs()}), include_dirs=include)
if __name__ == "__main__":  # tests/c/cross.py imports this file for its jobs
    setup(ext_modules=[extension], cmdclass={"build": Build, "build_ext": BuildVariants})
