"""csrc/kernels.list: the only place where a kernel's arguments are written, and what is made from it."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from rotrnn import _cpu

CSRC = Path(__file__).parents[2] / "csrc"
pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="the list is in the source tree, not in a wheel")
if CSRC.is_dir():
    generate = runpy.run_path(str(CSRC / "generate.py"))


def listing():
    return generate["read"]((CSRC / "kernels.list").read_text(encoding="utf-8"))


def test_every_kernel_of_the_list_is_there():
    names = [kernel.name for kernel in listing().kernels]
    assert sorted(names) == sorted(name for name in vars(_cpu.kernels) if not name.startswith("__"))


def test_a_kernel_is_defined_once_and_its_kind_says_in_which_dtypes(tmp_path):
    """A module that is built without it cannot be imported."""
    assert {"scan.c", "window.c"} <= set(generate["lane_files"]())
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels.list").write_text("kernel f lane\nkernel g real\n", encoding="utf-8")
    (tmp_path / "kernels" / "a.c").write_text("KERNEL(f) {\n}\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"kernels\.list: g is defined in no file, expected one KERNEL\(g\) there"):
        generate["lane_files"](tmp_path)
    (tmp_path / "kernels" / "b.c").write_text("KERNEL(g) {\n}\n", encoding="utf-8")
    assert generate["lane_files"](tmp_path) == ["a.c"]
    (tmp_path / "kernels" / "c.c").write_text("KERNEL(g) {\n}\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"g is defined in b\.c and c\.c, expected one KERNEL\(g\) there"):
        generate["lane_files"](tmp_path)


def test_enumerations_and_constants_are_shared():
    found = listing()
    for name, values in found.enums.items():
        assert dict(getattr(_cpu, name)) == {value: i for i, value in enumerate(values)}
    for name, value in found.constants.items():
        assert getattr(_cpu, name) == value
    with pytest.raises(TypeError):
        _cpu.CELL["lstm"] = 7


def test_the_stub_is_that_of_the_list():
    """Where the extension was built, beside it."""
    assert (Path(_cpu.__file__).parent / "_cpu.pyi").read_text(encoding="utf-8") == generate["stub"](listing())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("read x[N]", "line 1: expected a kernel or a group first"),
        ("kernel f whole", "line 1: f: expected a new name, and one of lane, real, once"),
        ("kernel f real\nkernel f real", "line 2: f: expected a new name"),
        ("kernel f real\n  read x", "line 2: expected NAME.SHAPE. ..., got 'x'"),
        ("kernel f real\n  group a:b", "line 2: 'b'"),
        (
            "kernel f real\n  string s",
            "line 2: string: expected kernel, group, read, write, int, flag",
        ),
        ("kernel f real\n  choice c:COLOUR", "line 2: 'COLOUR'"),
        ("kernel f real\n  read x[N]{0..9}", "line 2: x: a range needs one of the dtypes int64, float64"),
        ("kernel f real\n  write x[N]\n  int N x", "f has x twice"),
        ("kernel f real\n  write x[B*T]\n  int B T", r"f has B\*T, expected parts of a shape"),
        ("kernel f real\n  write x[count(N) * (N)]\n  int N", "f has count"),
        ("kernel f real\n  write x[N]\n  int N A B\n  where N == 2*A + A*B", "f has N == "),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text, message):
    with pytest.raises(Exception, match=rf"kernels\.list.*{message}"):
        generate["read"](text)


# ---- a planted kernel, and its row with two arguments exchanged ----

ROW = """
kernel planted real
  write {y}[M,N] {s}?[M]
  read {x}[M,N] {w}[N]
  int {M} {N}
"""
BODY = """
#include "kernels.h"
KERNEL(planted) {
    for (int64_t m = 0; m < M; m++) {
        if (s) s[m] = 0;
        for (int64_t n = 0; n < N; n++) {
            y[m * N + n] = w[n] * x[m * N + n];
            if (s) s[m] += y[m * N + n];
        }
    }
    return ROT_OK;
}
"""
CALL = """
import numpy as np
import _cpu
x, w = np.arange(6.0).reshape(2, 3), np.array([1.0, 10.0, 100.0])
y, s = np.full((2, 3), np.nan), np.full(2, np.nan)
_cpu.kernels.planted(y=y, s=s, x=x, w=w, M=2, N=3)
assert (y == w * x).all() and (s == y.sum(1)).all(), (y, s)
"""
WITHOUT_STREAMS = """
#include <Python.h>
int add_stream(PyObject *module);
int add_stream(PyObject *module) { return (void)module, 0; }
const char rot_run_f32_base, rot_run_f64_base, rot_run_f32_neon, rot_run_f64_neon;
"""
NAMES = ("y", "s", "x", "w", "M", "N")
COMPILER = shutil.which("gcc") or shutil.which("cc") or ""
EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")


def run(*command, cwd):
    """Runs a command; without what `make sanitize` preloads, which would report a crash in words of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, env=environment)


def compile_objects(folder, sources, *flags):
    plain = [CSRC / name for name in ("include", "runtime", "kernels")]
    paths = [folder, *plain, np.get_include(), sysconfig.get_paths()["include"]]
    include = [f"-I{path}" for path in paths]
    return run(COMPILER, "-std=c11", "-O0", "-fPIC", "-c", "-Werror", *flags, *include, *sources, cwd=folder)


@pytest.fixture(scope="module")
def common(tmp_path_factory):
    """A folder with the objects that do not depend on the planted row."""
    folder = tmp_path_factory.mktemp("common")
    write(folder, {name: name for name in NAMES})
    runtime = [CSRC / "runtime" / name for name in ("pool.c", "stop.c", "precision.c", "once.c")]
    made = compile_objects(folder, [CSRC / "module" / "module.c", CSRC / "module" / "door.c", *runtime])
    assert not made.returncode, made.stderr
    for dtype in ("f32", "f64", "c64", "c128"):
        made = compile_objects(folder, [CSRC / "runtime" / "entries.c"], f"-DROT_DTYPE={dtype}")
        assert not made.returncode, made.stderr
        (folder / "entries.o").rename(folder / f"entries_{dtype}.o")
    made = compile_objects(folder, [folder / "planted.c"])
    assert not made.returncode, made.stderr
    (folder / "planted.o").rename(folder / "planted_f32.o")
    (folder / "streams.c").write_text(WITHOUT_STREAMS, encoding="utf-8")
    made = compile_objects(folder, [folder / "streams.c"])
    assert not made.returncode, made.stderr
    return folder


def write(folder, names, row=ROW):
    """The files made from the row with these names in place of its own."""
    shared = [
        line
        for line in (CSRC / "kernels.list").read_text(encoding="utf-8").splitlines()
        if line.startswith(("enum", "const"))
    ]
    found = generate["read"]("\n".join([*shared, row.format(**names)]))
    (folder / "kernels.h").write_text(generate["header"](found), encoding="utf-8")
    (folder / "list.c").write_text(generate["table"](found), encoding="utf-8")
    (folder / "planted.c").write_text(BODY, encoding="utf-8")


def build(common, folder, names, row=ROW):
    """Builds the module of the row with these names. Returns what the compiler refused, if it did."""
    write(folder, names, row)
    made = compile_objects(folder, [folder / "planted.c", folder / "list.c"], "-DROT_DTYPE=f64")
    if made.returncode:
        return made.stderr
    objects = [*common.glob("*.o"), folder / "planted.o", folder / "list.o"]
    made = run(COMPILER, "-shared", *objects, "-lpthread", "-lm", "-o", f"_cpu{EXTENSION}", cwd=folder)
    assert not made.returncode, made.stderr
    return ""


def outcome(common, folder, names):
    """ "compile", "call" or "right": where the row with these names fails, or that it gives the right result."""
    refused = build(common, folder, names)
    if refused:
        assert "error:" in refused
        return "compile"
    called = run(sys.executable, "-c", CALL, cwd=folder)
    if called.returncode:
        assert re.search(r"(Type|Value)Error: planted: ", called.stderr), called.stderr
        return "call"
    return "right"


@pytest.mark.skipif(not COMPILER, reason="no C compiler")
def test_the_planted_row_is_right(common, tmp_path):
    assert outcome(common, tmp_path, {name: name for name in NAMES}) == "right"


@pytest.mark.skipif(not COMPILER, reason="no C compiler")
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(NAMES, 2)))
def test_two_exchanged_arguments_of_a_row_are_found(common, tmp_path, one, other):
    """By the compiler or by the call, but for the two sizes, whose order means nothing."""
    exchanged = {**{name: name for name in NAMES}, one: other, other: one}
    expected = ("right",) if {one, other} == {"M", "N"} else ("compile", "call")
    assert outcome(common, tmp_path, exchanged) in expected


# ---- the planted kernel with a wrong extent, or a wrong range ----

GUARDED = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import _cpu
from guard import GuardedKernels
x, w, y = np.ones((2, 3)), np.ones(3), np.zeros({y})
GuardedKernels(_cpu.kernels, at_end={at_end}).planted(y=y, s=np.zeros({s}), x=x, w=w, M=2, N=3)
"""


@pytest.mark.skipif(not COMPILER or sys.platform == "win32", reason="needs a C compiler and mprotect")
@pytest.mark.parametrize(
    ("extents", "y", "s", "ends"),
    [
        ("{y}[M,N] {s}?[M]", 6, 2, False),
        ("{y}[M,N] {s}?[1]", 6, 1, True),
        ("{y}[N] {s}?[M]", 3, 2, True),
        ("{y}[M,N,2] {s}?[M]", 12, 2, False),
    ],
    ids=["as it is", "s too short", "y too short", "y too long"],
)
def test_a_wrong_extent_ends_the_process_on_guarded_arrays(common, tmp_path, extents, y, s, ends):
    """If the list promises less than the kernel uses; more is harmless."""
    row = ROW.replace("{y}[M,N] {s}?[M]", extents)
    assert row != ROW or not ends
    assert not build(common, tmp_path, {name: name for name in NAMES}, row)
    tests = str(Path(__file__).parents[1])
    codes = [
        run(sys.executable, "-c", GUARDED.format(tests=tests, y=y, s=s, at_end=at_end), cwd=tmp_path).returncode
        for at_end in (True, False)
    ]
    assert codes[1] == 0
    assert (codes[0] in (-signal.SIGSEGV, -signal.SIGBUS)) if ends else codes[0] == 0


def test_python_is_told_the_list():
    """What ops check follows from it."""
    assert set(_cpu.LIST) == {one.name for one in listing().kernels}
    for kernel in listing().kernels:
        told = [(one.kind, one.name, ", ".join(one.shape or ()), not one.dtype, one.optional) for one in kernel.every()]
        assert _cpu.LIST[kernel.name] == (kernel.kind == "lane", tuple(told))
