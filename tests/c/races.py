"""Runs the C code and the CUDA kernels under the thread sanitizer, by clang: `make races`.

    python tests/c/races.py            # all
    python tests/c/races.py kernels    # the kernels and the pool of memory without Python (races.c)
    python tests/c/races.py module     # every op and layer in several Python threads (module_races.py)
    python tests/c/races.py harness    # every CUDA kernel in the harness, at one shape (tests/cuda/races.py)

clang's OpenMP tells the sanitizer of its barriers and locks, gcc's does not (Debian: clang, libomp-dev). Each program
also runs with races that are planted, which must be found, or a clean report would mean nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from cross import programs, run

HERE, BUILD = Path(__file__).parent, Path("build", "races")
SANITIZER = ["-fsanitize=thread", "-fno-omit-frame-pointer", "-g"]
FOUND = 66  # the sanitizer's exit code
# Only instrumented code is watched: OpenMP's own is told by its tool, archer.
ENVIRONMENT = {
    "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:halt_on_error=1:exitcode={FOUND}",
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",
}
# The sanitizer must be in the program, not only in the module that it loads
LAUNCHER = "#include <Python.h>\nint main(int count, char **arguments) { return Py_BytesMain(count, arguments); }\n"


def check(name: str, command: list[str], planted: list[str], **environment: str) -> None:
    """Runs a program, and again with each race that it can plant."""

    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | ENVIRONMENT | environment
        return subprocess.run([*command, *arguments], capture_output=True, text=True, env=env, timeout=1200)

    for one in planted:
        done = ended(one)
        if done.returncode != FOUND or "data race" not in done.stderr:
            sys.exit(f"{name}: the race planted by {one!r} was not found\n{done.stdout}{done.stderr}")
    done = ended()
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(
        f"{name}: planted races found ({', '.join(planted)}), and no other; {done.stdout.splitlines()[-1]}", flush=True
    )


def kernels() -> None:
    made = programs(["clang"], "linux-x86_64", BUILD, [*SANITIZER, "-O1", "-fopenmp"], HERE / "races.c")
    for dtype, program in made.items():
        check(dtype, [program], ["threads", "openmp"])


def python() -> Path:
    """Builds a Python that has the sanitizer. Returns its path."""
    source, program = BUILD / "python.c", BUILD / "python"
    BUILD.mkdir(parents=True, exist_ok=True)
    source.write_text(LAUNCHER, encoding="utf-8")
    at = {name: str(sysconfig.get_config_var(name)) for name in ("LIBDIR", "LIBPL", "LDLIBRARY", "LIBRARY", "LIBS")}
    shared = Path(at["LIBDIR"], at["LDLIBRARY"])
    libpython = shared if shared.exists() else Path(at["LIBPL"], at["LIBRARY"])
    whole = ["-rdynamic", "-Wl,--whole-archive", str(libpython), "-Wl,--no-whole-archive", f"-Wl,-rpath,{at['LIBDIR']}"]
    include = f"-I{sysconfig.get_path('include')}"
    run(["clang", *SANITIZER, "-fopenmp", include, str(source), *whole, *at["LIBS"].split(), "-lm", "-o", str(program)])
    return program


def module() -> None:
    os.environ["CC"] = f"clang {' '.join(SANITIZER)}"
    library, base = (BUILD / "lib").resolve(), BUILD / "module"
    run([sys.executable, "setup.py", "-q", "build", "--build-base", str(base), "--build-lib", str(library)])
    paths = os.pathsep.join([str(library), sysconfig.get_path("purelib")])
    command = [str(python()), str(HERE / "module_races.py")]
    check("module", command, ["threads"], PYTHONHOME=sys.base_prefix, PYTHONPATH=paths)


def harness() -> None:
    flags = " ".join(SANITIZER)
    os.environ.update(CC=f"clang {flags}", CXX=f"clang++ {flags}", HARNESS="build/harness-races")
    script = HERE.parent / "cuda"
    run([sys.executable, str(script / "build.py")])
    paths = os.pathsep.join(["python", "tests", sysconfig.get_path("purelib")])
    command = [str(python()), str(script / "races.py")]
    check("harness", command, ["barriers"], PYTHONHOME=sys.base_prefix, PYTHONPATH=paths)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # for setup.py
    parts = {"kernels": kernels, "module": module, "harness": harness}
    for name in sys.argv[1:] or parts:
        if name not in parts:
            sys.exit(f"part is {name!r}, expected one of {', '.join(parts)}")
        parts[name]()
