"""Products of rows of sequences on tensor cores (cuda/products.cu) in the harness."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_block_on_harness import Shape as Blocks
from test_block_on_harness import cast, numbers, over
from test_precision_on_harness import apart, expected, in_precision, run

import rounded
from cuda_harness import built
from strict import to_device

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]
FLOAT32, TF32, BF16 = range(3)
FORMS = ("y", "dx", "dw")
Array = np.ndarray[Any, Any]


class Shape(NamedTuple):
    B: int
    T: int
    d_in: int
    d_out: int
    lengths: tuple[int, ...] | None = None


SHAPES = [
    Shape(1, 1, 1, 1),
    Shape(2, 130, 3, 5, (130, 1)),  # rows that are no chunks of 16 bytes; a tile of two rows
    Shape(3, 70, 36, 132, (0, 69, 33)),  # a sequence without steps; two tiles of columns; k is cut
    Shape(2, 6, 132, 8, (6, 5)),  # two tiles of inputs
    Shape(5, 29, 8, 8),  # sequences as one
    Shape(1, 1100, 4, 4, (1090,)),  # the sum over rows has parts
    Shape(2, 0, 3, 3),
    Shape(1, 3, 0, 2, (2,)),  # an empty sum is zero
]


@functools.cache
def library() -> Any:
    products = ctypes.CDLL(str(built("products")))
    products.call_products.restype = ctypes.c_char_p
    products.product_pays.restype = ctypes.c_bool
    return products


def bits_of(x: Array, dropped: int, *, even: bool) -> Array:
    """Rounds float32 numbers to as many bits fewer, ties to even or away from zero; returns float32."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    half = np.uint64(1 << (dropped - 1))
    tie = (bits >> np.uint64(dropped) & np.uint64(1)) - np.uint64(1) if even else np.uint64(0)
    rounded = (bits + half + tie) >> np.uint64(dropped) << np.uint64(dropped)
    return rounded.astype(np.uint32).view(np.float32).reshape(x.shape)


def to_bf16(x: Array) -> Array:
    return bits_of(x, 16, even=True)


ROUNDED = {FLOAT32: lambda x: x, TF32: lambda x: bits_of(x, 13, even=False), BF16: to_bf16}


def valid(shape: Shape) -> Array:
    steps = np.full(shape.B, shape.T) if shape.lengths is None else np.array(shape.lengths)
    return (np.arange(shape.T) < steps[:, None]).reshape(-1)


def operands(form: str, shape: Shape, seed: int = 0) -> tuple[Array, Array]:
    """Returns the two operands of a form, with NaN in the padding of rows."""
    rng = np.random.default_rng(seed)
    rows = shape.B * shape.T
    sizes = {
        "y": ((rows, shape.d_in), (shape.d_out, shape.d_in)),
        "dx": ((rows, shape.d_out), (shape.d_out, shape.d_in)),
        "dw": ((rows, shape.d_out), (rows, shape.d_in)),
    }
    a, b = (rng.standard_normal(size).astype(np.float32) for size in sizes[form])
    for one in (a, b) if form == "dw" else (a,):
        one[~valid(shape)] = np.nan
    return a, b


def product(
    form: str, precision: int, shape: Shape, a: Array, b: Array, *, halves: bool = False, seed: int = 1
) -> Array:
    """Runs a product in the harness; the result is NaN where nothing is written."""
    rows = shape.B * shape.T
    size = {"y": (rows, shape.d_out), "dx": (rows, shape.d_in), "dw": (shape.d_out, shape.d_in)}[form]
    c = np.full(size, np.nan, np.float32)
    if halves:
        a, b = ((one.view(np.uint32) >> 16).astype(np.uint16) for one in (a, b))
    lengths = None if shape.lengths is None else np.array(shape.lengths, np.int64)
    there = [ctypes.c_void_p(one.ctypes.data) for one in (c, a, b)]
    counts = [ctypes.c_int64(n) for n in (shape.B, shape.T, shape.d_in, shape.d_out)]
    places = ctypes.c_void_p(None if lengths is None else lengths.ctypes.data)
    os.environ["ROT_HOST_SEED"] = str(seed)
    why = library().call_products(
        form.encode(), precision, ctypes.c_bool(halves), *there, *counts[:2], places, *counts[2:]
    )
    assert why is None, why
    return c


def exact(form: str, shape: Shape, a: Array, b: Array) -> Array:
    """The product in double precision, of rows that are no padding; others are NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if form == "dw":
        return a[valid(shape)].T @ b[valid(shape)]
    return np.where(valid(shape)[:, None], a @ (b.T if form == "y" else b), np.nan)


def bound(precision: int, form: str, shape: Shape, a: Array, b: Array) -> Array:
    """The largest error of sums of n products: each of n additions is off by at most half an eps of the sum of all
    products' sizes, and so is that of parts. In float32 the split of each product adds 3 2^-22 (tensor.h)."""
    terms = {"y": shape.d_in, "dx": shape.d_out, "dw": shape.B * shape.T}[form]
    eps = 2.0**-24 * (3 * terms if precision == FLOAT32 else terms) + (3 * 2.0**-22 if precision == FLOAT32 else 0)
    return 1.01 * eps * exact(form, shape, abs(a), abs(b))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("precision", "halves"),
    [(FLOAT32, False), (TF32, False), (BF16, False), (BF16, True)],
    ids=["3x", "tf32", "bf16", "stored"],
)
def test_products(precision: int, halves: bool, form: str, shape: Shape, seed: int) -> None:
    """Sums in double precision of products of rounded operands; padding is not read and its rows are not written."""
    a, b = operands(form, shape)
    if halves:
        a, b = to_bf16(a), to_bf16(b)
    got = product(form, precision, shape, a, b, halves=halves, seed=seed)
    a, b = ROUNDED[precision](a), ROUNDED[precision](b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact(form, shape, a, b)))
    assert np.all(~(abs(got - exact(form, shape, a, b)) > bound(precision, form, shape, a, b)))


def pays(precision: int, shape: Shape, *, halves: bool = False) -> bool:
    lengths = None if shape.lengths is None else np.array(shape.lengths, np.int64)
    counts = [ctypes.c_int64(n) for n in (shape.B, shape.T, shape.d_in, shape.d_out)]
    places = ctypes.c_void_p(None if lengths is None else lengths.ctypes.data)
    return bool(library().product_pays(precision, ctypes.c_bool(halves), *counts[:2], places, *counts[2:]))


def test_when_it_pays() -> None:
    """Only where there may be padding, and tiles are not mostly empty."""
    listops, ragged = Shape(32, 2048, 128, 512), (1,) * 32
    for precision in (FLOAT32, TF32, BF16):
        assert not pays(precision, listops)
        assert pays(precision, listops._replace(lengths=ragged))
        assert pays(precision, listops._replace(d_in=512, d_out=128, lengths=ragged))
        assert not pays(precision, listops._replace(T=40, lengths=ragged))
        assert not pays(precision, listops._replace(d_in=8, d_out=8, lengths=ragged))
    assert not pays(BF16, Shape(32, 2048, 1024, 1024, ragged))  # flops bind, and the library's tensor cores are faster


BLOCK = Blocks(2, 128, 96, 48, 2, (128, 37))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_block(precision: str) -> None:
    """Its products are these, and it is near the reference with the same roundings: each operand that is rounded the
    other way, after an error of float32, moves a result by some units. In float32 sums over time err by T 2^-24, and
    its factors as much. Padding may be NaN."""
    for d_out in (BLOCK.D, 2 * BLOCK.N, 2 * BLOCK.D):
        kind = ("float32", "tf32", "bf16").index(precision)
        assert pays(kind, Shape(BLOCK.B, BLOCK.T, BLOCK.D, d_out, BLOCK.lengths), halves=precision == "bf16")
    n = cast(numbers(BLOCK), np.float32)
    rounding = rounded.Rounding() if precision == "float32" else rounded.Rounding(precision)
    want = expected(n, BLOCK, "channel", "full", rounding)
    for one in (n["x"], n["dy"], n["later"][0]):
        one[1, 37:] = np.nan
    with in_precision(precision):
        got = run(over(n, to_device), BLOCK, "channel", "full")
    del got["saved"]
    assert apart(got, want) < (2 * BLOCK.T * 2.0**-24 if precision == "float32" else 4 * rounded.UNIT[precision])
