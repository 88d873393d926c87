"""setup.py: what it does without a compiler, without OpenMP, and when built again; by compilers that only pretend."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rotrnn import _cpu

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "setup.py").exists(), reason="the tests of an installed wheel have no source tree to build"
)

PRETEND = """#!/bin/sh
# a compiler that refuses OpenMP and AMX, notes its arguments, and makes empty objects of one source each
case " $* " in *" -fopenmp "*|*" -mamx-"*) echo "neither here" >&2; exit 1;; esac
echo "$@" >> "$LOG"
while [ $# -gt 0 ]; do
    case $1 in -c) source=$2;; -o) made=$2;; esac
    shift
done
printf '%s: %s\n' "$made" "$(printf %s "$source" | sed 's/ /\\\\ /g')" > "${made%.o}.d"
: > "$made"
"""


def build(folder: Path, compiler: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The build of the extension into `folder`."""
    cc = shlex.quote(str(compiler))
    plain = {"ROTRNN_ISA": "", "ROTRNN_CUDA": "", "CC": cc, "LDSHARED": f"{cc} -shared", "LOG": str(folder / "log")}
    places = [f"--build-temp={folder / 'temp'}", f"--build-lib={folder / 'lib'}"]
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build", f"--build-base={folder}", "build_ext", *places],
        cwd=ROOT,
        env={**os.environ, **plain, **more},
        capture_output=True,
        text=True,
    )


def test_no_compiler_is_one_line_that_says_so(tmp_path: Path) -> None:
    run = build(tmp_path, "no-such-cc")
    assert run.returncode != 0
    assert run.stderr.splitlines()[-1].startswith(
        "error: rotrnn is built by a C compiler, and there is no 'no-such-cc' here: install gcc or clang"
    )
    assert "Traceback" not in run.stderr
    assert "Errno" not in run.stderr


def test_cuda_is_built_where_it_is_asked_for(tmp_path: Path) -> None:
    nowhere = {"PATH": os.path.dirname(sys.executable), "CUDA_HOME": "", "CUDA_PATH": ""}
    asked = build(tmp_path, sys.executable, ROTRNN_CUDA="1", **nowhere)
    assert asked.returncode != 0
    assert asked.stderr.splitlines()[-1].startswith(
        "error: rotrnn: ROTRNN_CUDA=1 asks for the CUDA kernels, and there is no nvcc in CUDA_HOME, on PATH"
    )


def test_a_compiler_without_openmp_builds_each_object_once(tmp_path: Path) -> None:
    tmp_path /= "a folder (1)"
    tmp_path.mkdir()
    cc = tmp_path / "cc"
    cc.write_text(PRETEND, encoding="utf-8")
    cc.chmod(0o755)
    log = tmp_path / "log"
    first = build(tmp_path, cc)
    assert first.returncode == 0, first.stderr
    compiled = [line for line in log.read_text(encoding="utf-8").splitlines() if " -c csrc/" in line]
    made = {re.findall(r" -o (.*?\.o)(?: |$)", line)[0] for line in compiled}
    assert len(made) == len(compiled) > 100
    assert sum(" -c csrc/data/word_problem.c " in line for line in compiled) == 1
    assert not any("-fopenmp" in line or "gemm_amx" in line for line in compiled)

    log.unlink()
    assert build(tmp_path, cc).returncode == 0
    assert not log.exists()  # not even a link

    stale = next((tmp_path / "temp").glob("f32_*/csrc/kernels/conv.o"))  # as if the source were newer
    os.utime(stale, (0, 0))
    assert build(tmp_path, cc).returncode == 0
    assert [
        line.split(" -c ")[1].split()[0] for line in log.read_text(encoding="utf-8").splitlines() if " -c " in line
    ] == ["csrc/kernels/conv.c"]


def test_the_environment_names_the_fastest_instruction_set(tmp_path: Path) -> None:
    run = build(tmp_path, "gcc", ROTRNN_ISA="sse9")
    assert run.returncode != 0
    assert "rotrnn: ROTRNN_ISA is 'sse9', expected base, avx2, avx512 or neon" in run.stderr
    assert "Traceback" not in run.stderr

    cc = tmp_path / "cc"
    cc.write_text(PRETEND, encoding="utf-8")
    cc.chmod(0o755)
    run = build(tmp_path, cc, _PYTHON_HOST_PLATFORM="linux-x86_64", ROTRNN_ISA="avx2")
    assert run.returncode == 0, run.stderr
    compiled = [line for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines() if " -c csrc/" in line]
    options = {word for line in compiled for word in line.split()}
    assert {one for one in options if one.startswith("-DROT_ISA=")} == {"-DROT_ISA=base", "-DROT_ISA=avx2"}
    assert not any("avx512" in one.lower() for one in options if one.startswith(("-D", "-m")))


@pytest.mark.skipif(not sys.platform.startswith("linux") or not shutil.which("readelf"), reason="reads an ELF file")
def test_addresses_of_functions_in_the_module_cannot_be_overwritten() -> None:
    said = [
        subprocess.run(["readelf", one, _cpu.__file__], capture_output=True, text=True).stdout for one in ("-dW", "-lW")
    ]
    assert "BIND_NOW" in said[0]
    assert "GNU_RELRO" in said[1]


REPLACE = """#!/bin/sh
# compiles by copying an object, ready-made; links in truth
source= made=
for word; do
    case $before in -c) source=$word;; -o) made=$word;; esac
    before=$word
done
test -n "$source" || exec gcc "$@"
printf '%s: %s\n' "$made" "$(printf %s "$source" | sed 's/ /\\\\ /g')" > "${made%.o}.d"
case $source in *INCOMPLETE) cp "$OBJECTS/incomplete.o" "$made";; *) cp "$OBJECTS/empty.o" "$made";; esac
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or not shutil.which("gcc"), reason="links by gcc, on Linux")
@pytest.mark.parametrize("source", ["csrc/data/regular.c", "csrc/lib/json.c", "csrc/runtime/pool.c"])
def test_a_function_that_nothing_defines_is_an_error_of_the_link(tmp_path: Path, source: str) -> None:
    """Not of the import, as Python's own functions would be, which only csrc/module calls."""
    cc = tmp_path / "cc"
    cc.write_text(REPLACE.replace("INCOMPLETE", source), encoding="utf-8")
    cc.chmod(0o755)
    missing = "int rot_missing(void);\nint rot_calls(void);\nint rot_calls(void) { return rot_missing(); }\n"
    for name, text in (("empty", "typedef int nothing;\n"), ("incomplete", missing)):
        (tmp_path / f"{name}.c").write_text(text, encoding="utf-8")
        subprocess.run(["gcc", "-fPIC", "-fvisibility=hidden", "-c", f"{name}.c"], cwd=tmp_path, check=True)
    run = build(tmp_path, cc, OBJECTS=str(tmp_path))
    assert run.returncode != 0
    assert "rot_missing" in run.stderr
