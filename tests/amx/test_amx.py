"""Products of bfloat16 by AMX, csrc/kernels/gemm_amx.c, on any processor: with its tiles in plain C, and where the
compiler has AMX, what it made of that file. Its instructions are done by the processor if it has them, otherwise in a
handler of SIGILL."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rounded
from guard import guarded
from rotrnn import _cpu

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CC = shlex.split(os.environ.get("CC", "cc"))
pytestmark = pytest.mark.skipif(
    not (ROOT / "csrc").exists() or os.name == "nt" or not shutil.which(CC[0]),
    reason="needs the sources and a compiler",
)
Array = np.ndarray[Any, Any]

X86_LINUX = platform.system() == "Linux" and platform.machine() == "x86_64"
PROCESSOR = "avx512_amx" in _cpu.BF16_BY_AVAILABLE
"""Whether the processor has AMX, which this process may use from then on."""


def options(way: str) -> list[str]:
    """Plain C: with panels as wide as for AVX-512, whose instructions nothing needs, since compilers make long vectors
    of short ones. Otherwise as setup.py has them."""
    common = ["-fPIC", "-DROT_AVX512", "-DROT_AMX", "-DROT_DTYPE=f32"]
    if way == "plain":
        return [*common, "-std=c11", "-O1", "-D__AVX512F__=1", "-Wno-psabi", f"-I{HERE / 'plain'}"]
    sys.path.insert(0, str(ROOT))
    import setup

    return [*common, *setup.FLAGS, *setup.BF16["avx512_amx"][1]]


def run(*command: str) -> str:
    """What a command complains of if it fails; otherwise nothing."""
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    return done.stderr or "failed" if done.returncode else ""


@pytest.fixture(scope="module", params=["plain", "compiled"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """products.c and what it calls; `emulated` says whether tiles.h does the instructions, and so counts them."""
    way, folder, csrc = request.param, tmp_path_factory.mktemp("amx"), ROOT / "csrc"
    if way == "compiled" and not (X86_LINUX and "avx512" in _cpu.SIMD_AVAILABLE):
        pytest.skip("needs Linux, and AVX-512")
    folders = [HERE, *(csrc / name for name in ("include", "runtime", "kernels"))]
    compiler = [*CC, *options(way), *(f"-I{one}" for one in folders)]
    if run(*compiler, "-E", "-x", "c", os.devnull, "-o", os.devnull):
        pytest.skip("needs a compiler that has AMX")
    tiles, path = str(folder / "gemm_amx.o"), str(folder / "products.so")
    problem = run(*compiler, "-DROT_ISA=avx512_amx", "-c", str(csrc / "kernels" / "gemm_amx.c"), "-o", tiles)
    assert not problem, problem
    sources = [csrc / "kernels" / "gemm_rounded.c", csrc / "runtime" / "precision.c", HERE / "products.c"]
    emulated = way == "plain" or not PROCESSOR
    sources += [HERE / "trap.c"] * (way == "compiled" and emulated)
    problem = run(*compiler, "-DROT_ISA=avx512", "-shared", *map(str, sources), tiles, "-lm", "-o", path)
    assert not problem, problem
    made = ctypes.CDLL(path)
    made.product_by_tiles.restype = made.one_product.restype = ctypes.c_char_p
    made.emulated = emulated
    return made


def address(array: Array | None) -> Any:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def bf16(x: Any) -> Any:
    """Numbers rounded to bfloat16, in float32."""
    return rounded.to_bf16(x).astype(np.float32)


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def in_order(start: Array, x: Array, w: Array) -> Array:
    """start + x w by TDPBF16PS: products of bfloat16 are exact in float32, so a multiplication and an addition are one
    operation with one rounding. Of each 32 steps of depth the even and the odd ones are summed apart, from zero."""
    y = flushed(start)
    for first in range(0, x.shape[1], 32):
        sums = [np.zeros_like(y), np.zeros_like(y)]
        for k in range(first, min(first + 32, x.shape[1])):
            sums[k % 2] = flushed(sums[k % 2] + flushed(x[:, k, None]) * flushed(w[None, k]))
        y = flushed(y + flushed(sums[0] + sums[1]))
    return y


def product(library: Any, x: Array, w: Array, start: Array | None, at_end: bool = True) -> tuple[Array, int]:
    """start + x w by the library, with its arrays between pages that cannot be accessed, and how many TDPBF16PS that
    took. `start`: None, one row, or as many as x has, and then y is written where it is. x may be transposed."""
    rows, (depth, columns) = len(x), w.shape
    view = x if x.flags.c_contiguous else x.T
    steps = (depth, 1) if view is x else (1, rows)
    y = guarded(np.full((rows, columns), np.nan, np.float32) if start is None or start.ndim == 1 else start, at_end)
    row = None if start is None else guarded(start, at_end) if start.ndim == 1 else y
    at, count = [guarded(one, at_end) for one in (view, w)], ctypes.c_int64()
    sizes = [ctypes.c_int64(one) for one in (*steps, rows, depth, columns)]
    start_row = ctypes.c_int64(columns if row is y else 0)
    fault = library.product_by_tiles(
        address(y), address(row), start_row, address(at[0]), *sizes[:2], address(at[1]), *sizes[2:], ctypes.byref(count)
    )
    assert fault is None, fault
    return y.copy(), count.value


ROWS, COLUMNS = (1, 15, 16, 17, 32, 33, 70), (1, 16, 31, 32, 33, 64, 100)
DEPTHS = (1, 2, 31, 32, 33, 64, 127, 128, 130, 300)
SIZES = [
    *((rows, 47, 20) for rows in ROWS),
    *((18, depth, 20) for depth in DEPTHS),
    *((18, 47, columns) for columns in COLUMNS),
    *((32, 32, 32), (96, 128, 64), (70, 300, 100), (3, 0, 5), (0, 4, 5), (4, 5, 0)),
]


@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_products_have_the_bits_of_the_manual(rows: int, depth: int, columns: int, library: Any) -> None:
    """From zero, one row, or y itself, of x and of x transposed; so an element's bits depend on depth alone."""
    rng = np.random.default_rng(rows + depth + columns)
    x, w, begun = (rng.standard_normal(size, np.float32) for size in ((rows, depth), (depth, columns), (rows, columns)))
    starts = (None, begun[0] if rows else np.ones(columns, np.float32), begun)
    for start, transposed in itertools.product(starts, (False, True)):
        view = np.asfortranarray(x) if transposed else x
        got, count = product(library, view, w, start, at_end=transposed)
        full = np.zeros_like(begun) if start is None else np.broadcast_to(start, begun.shape)
        want = in_order(full, bf16(x), bf16(w))
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        assert (count > 0) == (library.emulated and got.size > 0 and depth > 0)


@pytest.mark.parametrize("depth", [1, 64, 300])
def test_products_are_those_of_the_definition(depth: int, library: Any) -> None:
    """In any order a sum of n terms is within (n - 1) 2^-24 of the sum of magnitudes, to first order, of that of the
    rounded numbers in double precision; here start, and two sums from zero for each 32 steps, are terms too."""
    rng = np.random.default_rng(depth)
    x, w, start = (rng.standard_normal(size, np.float32) for size in ((40, depth), (depth, 50), (40, 50)))
    left, right, terms = rounded.to_bf16(x), rounded.to_bf16(w), depth + 1 + 2 * (depth // 32 + 1)
    got, _ = product(library, x, w, start)
    bound = 1.01 * terms * 2.0**-24 * (np.abs(left) @ np.abs(right) + np.abs(start)) + terms * 2.0**-126
    assert (np.abs(got - (left @ right + start)) <= bound).all()


def test_infinities_and_nan_stay_in_their_row_and_column(library: Any) -> None:
    x, w = np.ones((20, 40), np.float32), np.ones((40, 33), np.float32)
    x[3, 39], w[39, 32] = np.inf, np.nan
    got, _ = product(library, x, w, None)
    assert np.isnan(got[:, 32]).all()
    assert (got[3, :32] == np.inf).all()
    assert (np.delete(got[:, :32], 3, 0) == 40).all()


CONFIG = [1, 0, *[0] * 14, *(64, 0) * 3, *(0, 0) * 5, *[0] * 16, 16, 16, 16, *[0] * 13]
"""Three whole tiles."""


def one_product(library: Any, start: Array, x: Array, w: Array, changes: dict[int, int]) -> tuple[Array, Any]:
    config = np.array(CONFIG, np.uint8)
    for place, value in changes.items():
        config[place] = value
    y, words = start.copy(), [np.ascontiguousarray(one.view(np.uint32) >> 16, np.uint16) for one in (x, w)]
    fault = library.one_product(address(y), *map(address, words), address(config))
    return y, fault


def test_one_instruction(library: Any) -> None:
    """A known case: even and odd steps apart, numbers below the normal ones as zero, and flushed results."""
    x, w, start = np.zeros((16, 32), np.float32), np.zeros((16, 32), np.float32), np.zeros((16, 16), np.float32)
    big, tiny = np.float32(2.0**24), np.float32(2.0**-127)
    x[0, :4], w[:2, :2] = (big, 1, -big, 1), 1  # even: 0; odd: 2. In turn, 2^24 + 1 - 2^24 + 1 would be 1
    x[1, 4], w[2, 2] = 2.0**-100, 2.0**-27  # 2^-127 is flushed
    x[2, 6], w[3, 4] = tiny, 2.0**100  # counts as zero
    start[3, 5], start[4, 6], start[5, 7] = tiny, -tiny, big
    want = np.zeros_like(start)
    want[0, 0], want[5, 7] = 2, big
    got, fault = one_product(library, start, x, w, {})
    assert fault is None
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({0: 2}, "palette"),
        ({1: 1}, "start row"),
        ({2: 1}, "reserved"),
        ({63: 1}, "reserved"),
        ({40: 1}, "reserved"),
        ({16: 68}, "too large"),
        ({48: 17}, "too large"),
        ({48: 0}, "rows or bytes"),
        ({16: 0, 48: 0}, "not configured"),
        ({0: 0}, "not configured"),
        ({48: 8}, "shapes"),
        ({18: 60}, "shapes"),
        ({20: 60}, "shapes"),
        ({18: 62}, "part of a word"),
    ],
)
def test_what_a_processor_refuses(changes: dict[int, int], fault: str, library: Any) -> None:
    """The emulation names the fault. A processor raises it, which ends a child of this process; but it takes a start
    row, at which a load that was interrupted goes on, and which the kernel never has."""
    x, start = np.zeros((16, 32), np.float32), np.zeros((16, 16), np.float32)
    if library.emulated:
        assert fault in one_product(library, start, x, x, changes)[1].decode()
        return
    child = os.fork()
    if child == 0:
        for one in (signal.SIGSEGV, signal.SIGILL):  # sanitizers and pytest have handlers, which would end it otherwise
            signal.signal(one, signal.SIG_DFL)
        one_product(library, start, x, x, changes)
        os._exit(0)
    ends = (0,) if fault == "start row" else (-signal.SIGSEGV, -signal.SIGILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in ends
