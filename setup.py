"""Builds rotrnn._cpu, and with ROTRNN_CUDA=1 rotrnn._cuda. Each kernel file is compiled once per dtype and instruction
set (csrc/include/real.h).

csrc/generate.py first writes the declarations for C and Python from csrc/kernels.list. nvcc is looked for in CUDA_HOME,
on PATH and among Python's packages. ROTRNN_ISA=avx2 leaves out the instruction sets that are faster than avx2, for
processors that have none of them.
"""

import os
import re
import runpy
import shlex
import shutil
import sys
import sysconfig
import tempfile
import tomllib
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
LINUX = sysconfig.get_platform().startswith("linux")
STRIP = ["-Wl,-s"] if DEBUG and LINUX else []
# No function's address in the module can be overwritten, and what reads files has a guard of the stack; in what checks
# calls it took some 40 ns of 1200 a call
RELRO = ["-Wl,-z,relro,-z,now"] if LINUX else []
# Python's own symbols are found at import alone; all that is not WITH_PYTHON is linked by itself, where nothing may be
# missing but what the module gives the C library. clang links no sanitizer into a shared library
COMPLETE = ["-Wl,-z,defs", "-Wl,--defsym,choose=0"] if LINUX and "-fsanitize" not in CC else []
GUARD = [] if sysconfig.get_platform().startswith("win") else ["-fstack-protector-strong"]
AVX2 = ["-mavx2", "-mfma"]  # exactly what simd_supported in csrc/module/module.c checks
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
ALL_SETS = {"base": [], "avx2": AVX2, "avx512": AVX512} if X86 else {"neon" if ARM else "base": []}
FASTEST = os.environ.get("ROTRNN_ISA", "").lower() or list(ALL_SETS)[-1]
if FASTEST not in ("base", "avx2", "avx512", "neon"):
    sys.exit(f"rotrnn: ROTRNN_ISA is {FASTEST!r}, expected base, avx2, avx512 or neon")
# another kind of processor has all of its sets
KEPT = list(ALL_SETS).index(FASTEST) + 1 if FASTEST in ALL_SETS else len(ALL_SETS)
INSTRUCTION_SETS = dict(list(ALL_SETS.items())[:KEPT])
# Beside avx512, for products of bfloat16: the file of each, and what bf16_supported checks. A compiler may be older
# than AMX, and of systems only Linux is asked for its registers (csrc/runtime/platform.h)
BF16 = {
    "avx512_bf16": ("gemm_tile.c", [*AVX512, "-mavx512bf16"], [("ROT_PAIRS", "1")]),
    "avx512_amx": ("gemm_amx.c", [*AVX512, "-mamx-tile", "-mamx-bf16"], []),
}
HAS_AMX = ("ROT_AMX", "1")
INCLUDE = ["csrc/include", "csrc/runtime", "csrc/kernels", "include"]
PLAINEST = next(iter(INSTRUCTION_SETS))
MACROS = [(f"ROT_{isa.upper()}", "1") for isa in INSTRUCTION_SETS if isa != "base"]

REAL = ("f32", "f64")
COMPLEX = ("c64", "c128")
GENERATE = runpy.run_path("csrc/generate.py")
DTYPES_OF = {  # all other files are compiled for real dtypes
    **dict.fromkeys([*GENERATE["lane_files"](), "entries.c"], REAL + COMPLEX),
    "gemm_amx.c": (),  # in BF16 alone
}
DATA = "data"  # the folder of generators: integer code, as fast on any instruction set
ONCE = "once.c"  # the table of generators
LIB = "lib"  # the folder of the C library, whose streams the module has; it also has a Makefile of its own
LIB_VARIANTS = ("run.c", "iterate.c")  # what computes
LIB_ALONE = ("choose.c",)  # the module chooses instruction sets by itself
PLAIN = ("module", "runtime")  # folders of what is compiled once, without a variant, but for these tables
TABLES = ("entries.c", ONCE)
WITH_PYTHON = ("csrc/module/", "cuda/module.c")  # all else is plain C

# The GPUs: Ampere and Hopper, and later ones from PTX; or those of ROTRNN_GPUS alone, "90" say. Warnings are errors:
# nvcc is one compiler
CODES = [f"sm_{kind}" for kind in os.environ.get("ROTRNN_GPUS", "").split()] or ["sm_80", "sm_90", "compute_90"]
GPUS = [f"-gencode=arch=compute_{code.split('_')[1]},code={code}" for code in CODES]
NVCC_FLAGS = [
    *("-std=c++17", "-O3", "--extended-lambda", "--Werror", "all-warnings"),
    *("-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra"),
]


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


def all_jobs(amx=False):
    """Every file in every variant, the longest first, so that no core starts a long one at the end."""
    common = [*MACROS, HAS_AMX] if amx else MACROS
    jobs = []
    sources = [source for source in Path("csrc").glob("*/*.c") if source.name not in LIB_ALONE]
    for source in sorted(sources, key=lambda path: -path.stat().st_size):
        if source.parent.name in PLAIN and source.name not in TABLES:
            jobs.append(Job(str(source), "", [], common))
            continue
        if source.parent.name == LIB and source.name not in LIB_VARIANTS:
            jobs.append(Job(str(source), "", GUARD, [*MACROS, ("ROT_DTYPE", "f64"), ("ROTRNN_API", "")]))
            continue
        for dtype, isa in variants(source):
            macros = [*common, ("ROT_DTYPE", dtype), ("ROT_ISA", isa)]
            jobs.append(Job(str(source), f"{dtype}_{isa}", INSTRUCTION_SETS[isa], macros))
    for isa, (file, flags, more) in BF16.items() if "avx512" in INSTRUCTION_SETS else ():
        if amx or isa != "avx512_amx":
            macros = [*common, ("ROT_DTYPE", "f32"), ("ROT_ISA", isa), *more]
            jobs.append(Job(f"csrc/kernels/{file}", f"f32_{isa}", flags, macros))
    return jobs


def cuda_jobs(listing):
    """The files of rotrnn._cuda: those of cuda/, and the door and the tables of csrc; `listing` is the made list.c."""
    jobs = []
    for source in sorted(Path("cuda").glob("*.cu"), key=lambda path: -path.stat().st_size):
        dtypes = [None] if source.name == "runtime.cu" else DTYPES_OF.get(f"{source.stem}.c", REAL)
        jobs += [cuda_job(str(source), dtype) for dtype in dtypes]
    jobs += [cuda_job("csrc/runtime/entries.c", dtype) for dtype in REAL + COMPLEX]
    plain = ("cuda/module.c", "csrc/module/door.c", "csrc/runtime/precision.c", str(listing))
    return jobs + [Job(source, "", [], MACROS) for source in plain]


def cuda_job(source, dtype):
    if dtype is None:
        return Job(source, "", [], MACROS)
    return Job(source, f"{dtype}_cuda", [], [*MACROS, ("ROT_CUDA", "1"), ("ROT_DTYPE", dtype), ("ROT_ISA", "cuda")])


def with_python(job):
    """Whether a job finds Python.h."""
    return Path(job.source).as_posix().startswith(WITH_PYTHON)


def with_cuda():
    """Whether the kernels for GPUs are asked for: they take some ten minutes."""
    return os.environ.get("ROTRNN_CUDA", "") not in ("", "0")


def find_nvcc():
    """The CUDA compiler. PlatformError if there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    package = Path(sysconfig.get_path("purelib"), "nvidia", "cu13")  # PyPI: nvidia-cuda-nvcc
    places = [Path(home, "bin") for home in [*homes, package] if home]
    found = shutil.which("nvcc", path=os.pathsep.join([*map(str, places), os.environ.get("PATH", "")]))
    if found is None:
        raise PlatformError(
            "rotrnn: ROTRNN_CUDA=1 asks for the CUDA kernels, and there is no nvcc in CUDA_HOME, on PATH or among "
            "Python's packages: install CUDA's compiler (nvidia-cuda-nvcc on PyPI), or leave ROTRNN_CUDA out"
        )
    return found


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
        listed = path.with_suffix(".d").read_text("utf-8").replace("\\\n", " ").partition(".o: ")[2]
        parts = re.findall(r"(?:\\.|[^\\\s])+", listed)  # a compiler writes "\ " for a space
        sources = [re.sub(r"\\(.)", r"\1", part).replace("$$", "$") for part in parts]
        return sources != [] and all(os.stat(source).st_mtime_ns < path.stat().st_mtime_ns for source in sources)
    except OSError:
        return False


class Build(build):
    """Checks for the compiler before anything is copied, so that only the error is printed."""

    def run(self):
        check_compiler()
        if with_cuda():
            find_nvcc()
        super().run()


class BuildVariants(build_ext):
    """Compiles the files of csrc and cuda that changed, each once per variant."""

    def finalize_options(self):
        """An editable install keeps its objects where a build does, so that the next one compiles what has changed."""
        super().finalize_options()
        if self.editable_mode:
            self.build_temp = os.path.join("build", f"temp.{self.plat_name}-{sys.implementation.cache_tag}")

    def build_extension(self, ext):
        check_compiler()
        if ext.name == "rotrnn._cuda":
            return self.build_cuda(ext)
        made = Path(self.build_temp, "made")
        GENERATE["generate"](made, stub_folder=Path(self.get_ext_fullpath(ext.name)).parent)
        amx = (
            "avx512" in INSTRUCTION_SETS and sysconfig.get_platform().startswith("linux") and self.accepts("-mamx-bf16")
        )
        jobs = [*all_jobs(amx), Job(str(made / "list.c"), "", [], MACROS)]
        openmp = ["-fopenmp"] if self.accepts("-fopenmp") else []
        include = self.take_include(made)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: self.compile(job, [*FLAGS, *openmp], include), jobs))
        path, options = self.get_ext_fullpath(ext.name), [*openmp, *STRIP, *RELRO]
        if COMPLETE:
            plain = [one for job, one in zip(jobs, objects, strict=True) if not with_python(job)]
            alone = str(Path(self.build_temp, "without_python.so"))
            self.compiler.link_shared_object(plain, alone, extra_postargs=[*options, *COMPLETE], libraries=["m"])
        self.compiler.link_shared_object(objects, path, extra_postargs=options, libraries=["m"])

    def build_cuda(self, ext):
        """Compiles cuda/ by nvcc, which links its own runtime statically: no driver is needed to import the module."""
        made, folder = Path(self.build_temp, "made"), Path(self.build_temp, "cuda")
        include = [*self.take_include(made), "csrc/module", "cuda"]
        nvcc = find_nvcc()

        def compile_one(job):
            if not job.source.endswith(".cu"):
                return self.compile(job, FLAGS, include, folder)
            path = folder / f"{Path(job.source).stem}.{job.variant}.o"
            macros = [f"-D{name}={value}" for name, value in job.macros]
            folders = [f"-I{one}" for one in include]
            command = [nvcc, *NVCC_FLAGS, *GPUS, *macros, *folders, "-MMD", "-MF", str(path.with_suffix(".d"))]
            self.unless_made(path, repr(command), lambda: self.spawn([*command, "-c", job.source, "-o", str(path)]))
            return str(path)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, cuda_jobs(made / "list.c")))
        target = self.get_ext_fullpath(ext.name)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        strip = ["-Xlinker", "-s"] if STRIP else []
        self.spawn([nvcc, "-shared", "-cudart", "static", *strip, *objects, "-o", target])

    def take_include(self, made):
        """Returns the folders of headers. Those of Python and NumPy, whose names differ from build to build, are kept
        apart for the module's files, so that the other objects serve again."""
        if self.compiler.include_dirs:
            self.python_include = [*self.compiler.include_dirs, np.get_include()]
            self.compiler.set_include_dirs([])
        return [*INCLUDE, str(made)]

    def compile(self, job, flags, include, folder=None):
        """Compiles a job, unless its object is up to date. Returns the object's path."""
        folder = os.path.join(folder or self.build_temp, job.variant)
        if with_python(job):
            include = [*include, *self.python_include]
        (path,) = self.compiler.object_filenames([job.source], output_dir=folder)
        command = repr((self.compiler.compiler_so, flags, job, include))
        self.unless_made(
            Path(path),
            command,
            lambda: self.compiler.compile(
                [job.source],
                output_dir=folder,
                macros=job.macros,
                include_dirs=include,
                extra_postargs=[*flags, *job.flags, "-MMD"],
            ),
        )
        return path

    def unless_made(self, path, command, make):
        """Makes an object, unless it was made by the same command and is newer than its sources."""
        record = path.with_suffix(".command")
        if not self.force and record.exists() and record.read_text("utf-8") == command and up_to_date(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        make()
        record.write_text(command, "utf-8")

    def copy_extensions_to_source(self):
        """Copies the stub too: in an editable install it is beside the extension, in the source tree."""
        super().copy_extensions_to_source()
        built = Path(self.build_lib, "rotrnn", "_cpu.pyi")
        self.copy_file(str(built), str(Path("python", "rotrnn", "_cpu.pyi")))

    def accepts(self, flag):
        """Whether the compiler can compile and link with `flag`."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "try.c")
            source.write_text("int main(void) { return 0; }\n", "utf-8")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=[flag])
                self.compiler.link_executable(objects, os.path.join(folder, "try"), extra_postargs=[flag])
            except Exception:  # each compiler class raises other types
                return False
        return True


def package_page(readme, repository, version):
    """Returns the README with addresses in place of relative links, so that a package page shows its pictures, too."""

    def address(found):
        picture, text, path = found.groups()
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", address, readme)


def about():
    """Returns the long description, and the addresses of the repository if ROTRNN_REPOSITORY has its address."""
    text, repository = Path("README.md").read_text(encoding="utf-8"), os.environ.get("ROTRNN_REPOSITORY", "")
    urls = {}
    if repository:
        version = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        text = package_page(text, repository, version)
        documentation, changes = (f"{repository}/blob/v{version}/{path}" for path in ("docs/README.md", "CHANGELOG.md"))
        urls = {"Source": repository, "Issues": f"{repository}/issues", "Documentation": documentation}
        urls["Changelog"] = changes
    return {"long_description": text, "long_description_content_type": "text/markdown", "project_urls": urls}


extensions = [Extension("rotrnn._cpu", sorted({job.source for job in all_jobs()}))]
if with_cuda():
    sources = sorted(map(str, Path("cuda").glob("*.c*")))
    extensions.append(Extension("rotrnn._cuda", sources))
if __name__ == "__main__":  # tests/c/cross.py imports this file for its jobs
    setup(ext_modules=extensions, cmdclass={"build": Build, "build_ext": BuildVariants}, **about())
