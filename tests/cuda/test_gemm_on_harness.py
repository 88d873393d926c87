"""Products with weights on the CUDA kernels, in the harness: shapes that the table of cases does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_harness import on_harness
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
