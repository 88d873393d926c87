"""Products with weights on the CUDA kernels, in the harness: shapes that the table of cases does not have."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from cuda_harness import load, on_harness
from rotrnn.ops.dense import dense, dense_backward, matmul
from strict import to_device, to_host


def arrays(dtype: type, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def assert_close(got: Any, expected: Any, terms: int) -> None:
    """Sums of so many products of numbers of size one."""
    np.testing.assert_allclose(to_host(got), expected, rtol=0, atol=8 * terms * np.finfo(expected.dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("M", "d_in", "d_out"),
    [
        (1, 7, 5),
        (0, 3, 4),
        (5, 0, 4),
        (5, 3, 0),
        (3 * 512 - 1, 3, 2),  # two groups of rows
        (5 * 512 + 3, 2, 3),  # five, and rows that are left; bias sums of more than one level
    ],
)
def test_dense_and_its_adjoint(M: int, d_in: int, d_out: int, dtype: type) -> None:
    x, w, bias, dy = arrays(dtype, (M, d_in), (d_out, d_in), (d_out,), (M, d_out))
    y, grads = dense(x, w, bias), dense_backward(dy, x, w)
    with on_harness():
        x, w, bias, dy = map(to_device, (x, w, bias, dy))
        got_y, got = dense(x, w, bias), dense_backward(dy, x, w)
    assert_close(got_y, y, d_in + 2)
    for grad, expected, terms in zip(got, grads, (d_out, M, M), strict=True):
        assert_close(grad, expected, terms + 2)


class Product(ctypes.Structure):  # runtime.h's runtime_product
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b", "c")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "inner", "lda", "ldb", "ldc")),
        *((name, ctypes.c_bool) for name in ("a_turned", "b_turned", "keep", "wide", "bf16", "bf16_result")),
        *((name, ctypes.c_int64) for name in ("count", "a_apart", "b_apart", "c_apart")),
    ]


FINE = {
    **dict.fromkeys(("a", "b", "c"), 1024),
    **{"rows": 3, "columns": 5, "inner": 7, "lda": 7, "ldb": 5, "ldc": 5, "count": 2, "c_apart": 15},
}
TURNED = {"a_turned": True, "b_turned": True, "lda": 3, "ldb": 7}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        (TURNED, None),
        ({"count": 1, "c_apart": 0}, None),
        ({"bf16": True, "a": 1026, "b": 1026}, None),
        ({"inner": 0}, "not from 1 to INT_MAX"),
        ({"rows": 2**31}, "not from 1 to INT_MAX"),
        ({"lda": 6}, "lda is less"),
        ({"ldb": 4}, "ldb is less"),
        ({"ldc": 4}, "ldc is less"),
        ({**TURNED, "lda": 2}, "lda is less"),
        ({**TURNED, "ldb": 6}, "ldb is less"),
        ({"c_apart": 14}, "results overlap"),
        ({"a_apart": -1}, "a stride is negative"),
        ({"bf16": True, "bf16_result": True, "c": 1026}, None),
        ({"wide": True, "bf16": True}, "bfloat16 have no result in double"),
        ({"bf16_result": True}, "needs operands of bfloat16"),
        ({"a": 1026}, "an address"),
        ({"bf16": True, "c": 1026}, "an address"),
        ({"wide": True, "b": 1028}, "an address"),
    ],
)
def test_the_twin_of_the_matrix_library_has_its_rules(change: dict[str, Any], fault: str | None) -> None:
    check = ctypes.CDLL(load().__file__).host_product_fault
    check.restype = ctypes.c_char_p
    found = check(ctypes.byref(Product(**{**FINE, **change})))
    assert (found is None) if fault is None else fault in found.decode()


def test_a_long_sum_in_float32_has_a_small_error() -> None:
    rng = np.random.default_rng(4)
    x, dy = (rng.uniform(1, 2, (40000, 1)).astype(np.float32) for _ in range(2))
    with on_harness():
        got = dense_backward(to_device(dy), to_device(x), to_device(np.ones((1, 1), np.float32)))
    exact = float(np.sum(x.astype(float) * dy)), float(np.sum(dy, dtype=float))
    eps = float(np.finfo(np.float32).eps)
    assert float(to_host(got.dw)[0, 0]) == pytest.approx(exact[0], rel=700 * eps)  # 64 groups of 625 rows
    assert float(to_host(got.dbias)[0]) == pytest.approx(exact[1], rel=3 * 64 * eps)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (3, 4, 0, 2), (3, 1, 5, 2), (2, 7, 3, 6)])
def test_a_stack_of_products(shape: tuple[int, ...]) -> None:
    G, M, K, N = shape
    x, y = arrays(np.float64, (G, M, K), (G, K, N))
    expected = matmul(x, y)
    with on_harness():
        assert_close(matmul(to_device(x), to_device(y)), expected, K + 2)
