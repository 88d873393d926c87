"""The Makefile of the C library: what another option builds again, and programs with what is built."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import librotrnn

pytestmark = pytest.mark.skipif(
    not (librotrnn.ROOT / "csrc").exists() or not shutil.which("make"), reason="needs the sources, and make"
)
COMPILER = """#!/bin/sh
case "$*" in
    -dumpmachine) echo x86_64-linux-gnu ;;
    *" -o "*) echo "$*" >> "$0.log" ;;
esac
for word; do test "$before" = -o && echo "$*" > "$word"; before=$word; done
true
"""
"""It writes its command line instead of an object, and all of them to a file."""


def test_another_option_builds_what_depends_on_it(tmp_path: Path) -> None:
    """Each row differs from the one before in an option; all objects are compiled again and linked, and the same row
    once more compiles nothing."""
    if " " in str(tmp_path):
        pytest.skip("make has no paths with spaces")
    compilers = [tmp_path / "one", tmp_path / "two"]
    for path in compilers:
        path.write_text(COMPILER, encoding="utf-8")
        path.chmod(0o755)

    def compiled(compiler: Path, options: dict[str, str]) -> list[str]:
        """The objects that a build compiles."""
        log = Path(f"{compiler}.log")
        log.write_text("", encoding="utf-8")
        settings = {"LIB_CFLAGS": "", "LIB_ISA": "base avx2 avx512"}
        settings |= {
            "LIB_S4": "1",
            "LIB_HISTORIES": "1",
            "LIB_MATRIX_STATES": "1",
            "LIB_XLSTM": "1",
            "LIB_FIXED_POINTS": "1",
            **options,
        }
        librotrnn.make("lib", folder=str(tmp_path / "lib"), CC=str(compiler), **settings)
        lines = [shlex.split(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return sorted(Path(line[-1]).name for line in lines if "-c" in line)

    for compiler, options in (
        (compilers[0], {}),
        (compilers[0], {"LIB_ISA": "base avx2"}),
        (compilers[0], {"LIB_ISA": "base"}),
        (compilers[0], {}),
        (compilers[0], {"LIB_FIXED_POINTS": "0"}),
        (compilers[0], {"LIB_MATRIX_STATES": "0"}),
        (compilers[0], {"LIB_XLSTM": "0"}),
        (compilers[0], {"LIB_S4": "0"}),
        (compilers[0], {"LIB_CFLAGS": "-DNAME='\"a b\"'"}),
        (compilers[1], {"LIB_CFLAGS": "-DNAME='\"a b\"'"}),
    ):
        first = compiled(compiler, options)
        assert compiled(compiler, options) == []
        assert compiled(compiler, options | {"LIB_WARNINGS": "-Wall"}) == []
        assert "choose.o" in first
        assert ("run.f32_avx2.o" in first) == ("avx2" in options.get("LIB_ISA", "avx2"))
        assert ("fixed_points.o" in first) == ("LIB_FIXED_POINTS" not in options)
        linked = (tmp_path / "lib" / "librotrnn.so").read_text(encoding="utf-8").split()
        assert sorted(Path(word).name for word in linked if word.endswith(".o")) == first


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        *(("LIB_ISA", value, "one or more of base neon avx2 avx512") for value in ("sse2", "base sse2", "")),
        *(("LIB_S4", value, "0 or 1") for value in ("yes", "2", "0 1", "")),
        ("LIB_FIXED_POINTS", "off", "0 or 1"),
    ],
)
def test_a_value_of_an_option_that_is_unknown_is_refused(option: str, value: str, expected: str) -> None:
    with pytest.raises(AssertionError, match=f"{option} is '{value}', expected {expected}"):
        librotrnn.make("lib", folder="build/lib-refused", **{option: value})


def test_an_installation_is_for_all_users_and_names_its_prefix(tmp_path: Path) -> None:
    """With a umask that leaves new files to their owner, and with letters that sed replaces."""
    prefix, before = tmp_path / "r&d|\\1", os.umask(0o077)
    try:
        librotrnn.make("install-lib", PREFIX=str(prefix))
    finally:
        os.umask(before)
    found = {path.name: path for path in prefix.rglob("*")}
    assert found["rotrnn.pc"].read_text(encoding="utf-8").startswith(f"prefix={prefix}\n")
    assert "rotrnn-config-version.cmake" in found
    assert [name for name, path in found.items() if path.stat().st_mode & 0o444 != 0o444] == []


@pytest.mark.parametrize("prefix", ["out", "~/out", ""])
def test_a_prefix_that_is_no_absolute_path_is_refused(prefix: str) -> None:
    """The file for pkg-config would lead there from one folder alone."""
    with pytest.raises(AssertionError, match=f"PREFIX is '{prefix}', expected an absolute path"):
        librotrnn.make("install-lib", PREFIX=prefix)


@pytest.mark.skipif(not sys.platform.startswith("linux") or not shutil.which("gcc"), reason="links by gcc, on Linux")
def test_a_function_that_nothing_defines_is_an_error_of_the_link(tmp_path: Path) -> None:
    """Not of the program that opens the library: each object is replaced by one that calls what is nowhere."""
    calls = "int rot_missing(void);\nint (*rot_call)(void) = rot_missing;\n"
    (tmp_path / "calls.c").write_text(calls, encoding="utf-8")
    compiler = tmp_path / "cc"
    compiler.write_text(
        f"""#!/bin/sh
case " $* " in *" -c "*) for made; do :; done; exec gcc -fPIC -c {shlex.quote(str(tmp_path))}/calls.c -o "$made" ;; esac
exec gcc "$@" -z muldefs
""",
        encoding="utf-8",
    )
    compiler.chmod(0o755)
    with pytest.raises(AssertionError, match="rot_missing"):
        librotrnn.make(
            "lib", folder="build/lib-incomplete", CC=shlex.quote(str(compiler)), LIB_CFLAGS="", LIB_ISA="base"
        )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux finds libraries")
@pytest.mark.skipif("-fsanitize" in os.environ.get("LIB_CFLAGS", ""), reason="the program has no sanitizer")
def test_a_program_runs_with_the_library_where_it_was_built(tmp_path: Path) -> None:
    source, program, folder = tmp_path / "main.c", tmp_path / "main", librotrnn.make("lib")
    source.write_text("#include <rotrnn.h>\nint main(void) { return !rotrnn_version()[0]; }\n", encoding="utf-8")
    cc = shlex.split(os.environ.get("CC", "cc"))
    include = f"-I{librotrnn.ROOT / 'include'}"
    subprocess.run([*cc, include, source, f"-L{folder}", "-lrotrnn", "-o", program], check=True)
    subprocess.run([program], check=True, env={"LD_LIBRARY_PATH": str(folder)})
