"""Builds rotrnn._cpu. Each kernel file is compiled once per dtype and instruction set (csrc/include/real.h).

What C and Python know of each kernel is made from csrc/kernels.list first (csrc/generate.py).
"""

import os
import platform
import runpy
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

X86 = platform.machine().lower() in ("x86_64", "amd64")
# under sanitizers more optimisation takes many minutes, and finds no more
OPTIMISE = "-O1" if "-fsanitize" in os.environ.get("CC", "") else "-O3"
FLAGS = ["-std=c11", OPTIMISE, "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden"]
AVX2 = ["-mavx2", "-mfma"]  # what simd_supported of csrc/module/module.c asks the processor for, no more
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
INSTRUCTION_SETS = {"base": [], "avx2": AVX2, "avx512": AVX512} if X86 else {"base": []}

REAL = ("f32", "f64")
COMPLEX = ("c64", "c128")
DTYPES_OF = dict.fromkeys(("scan.c", "window.c", "entries.c"), REAL + COMPLEX)  # every other kernel is real


class BuildVariants(build_ext):
    """Compiles the files of ext.sources as they are, and those of ext.kernels once per variant."""

    def build_extension(self, ext):
        made = Path(self.build_temp, "made")
        generate = runpy.run_path("csrc/generate.py")["generate"]
        generate(made, stub_folder=Path(self.get_ext_fullpath(ext.name)).parent)
        ext.sources.append(str(made / "list.c"))
        ext.include_dirs.append(str(made))
        openmp = ["-fopenmp"] if self.accepts("-fopenmp") else []
        macros = [("ROT_X86", "1")] if X86 else []
        jobs = [(source, "", FLAGS + openmp, macros) for source in ext.sources]
        for kernel in ext.kernels:
            for isa, isa_flags in INSTRUCTION_SETS.items():
                for dtype in DTYPES_OF.get(Path(kernel).name, REAL):
                    variant = [("ROT_DTYPE", dtype), ("ROT_ISA", isa)]
                    jobs.append((kernel, f"{dtype}_{isa}", FLAGS + openmp + isa_flags, macros + variant))

        def compile_one(job):
            source, variant, flags, macros = job
            return self.compiler.compile(
                [source],
                output_dir=os.path.join(self.build_temp, variant),
                macros=macros,
                include_dirs=ext.include_dirs,
                extra_postargs=flags,
                depends=ext.depends,
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [path for paths in pool.map(compile_one, jobs) for path in paths]
        path = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, path, extra_postargs=openmp, libraries=["m"])

    def copy_extensions_to_source(self):
        """In an editable install the stub lies beside the extension, in the source tree."""
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
            except CompileError:
                return False
            except Exception:  # a link error has another type in each compiler class
                return False
        return True


sources = sorted(Path("csrc").glob("*/*.c"))
headers = sorted(str(path) for path in Path("csrc").glob("*/*.h"))
once = [path for path in sources if path.parent.name in ("data", "module") and path.name != "entries.c"]
include = ["csrc/include", "csrc/kernels", np.get_include()]
extension = Extension("rotrnn._cpu", list(map(str, once)), include_dirs=include, depends=headers)
extension.kernels = [str(path) for path in sources if path not in once]

setup(ext_modules=[extension], cmdclass={"build_ext": BuildVariants})
