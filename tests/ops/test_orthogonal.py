"""Properties of `orthogonal` that the table of cases does not test."""

from __future__ import annotations

import numpy as np
import pytest

from cases.orthogonal import expm_series
from rotrnn import _cpu
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward

EPS = np.finfo(np.float64).eps


def defect(P: np.ndarray) -> float:
    return float(np.max(np.abs(np.swapaxes(P, -1, -2) @ P - np.eye(P.shape[-1]))))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33, 64])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_is_a_rotation(n: int, size: float) -> None:
    P = orthogonal(size * np.random.default_rng(n).standard_normal((4, n, n)).clip(-1, 1))
    # after the Newton step what is left is the rounding of its own products, a few eps an entry
    assert defect(P) <= 1e-14
    np.testing.assert_allclose(np.linalg.det(P), 1, rtol=0, atol=1e-12)


def test_stays_one_over_a_thousand_updates() -> None:
    """Updates like Adam's: every element of M changes by about the learning rate each time."""
    rng = np.random.default_rng(0)
    M = rng.standard_normal((4, 16, 16))
    target = orthogonal(rng.standard_normal((4, 16, 16)))
    mean, square = np.zeros_like(M), np.zeros_like(M)
    start = np.linalg.norm(orthogonal(M) - target)
    for step in range(1, 1001):
        gradient = orthogonal_backward(orthogonal(M) - target, M)
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        M = 0.9999 * M - 0.01 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    P = orthogonal(M)
    assert defect(P) <= 1e-14
    np.testing.assert_allclose(np.linalg.det(P), 1, rtol=0, atol=1e-12)
    assert np.linalg.norm(P - target) < 0.2 * start  # the gradient makes progress


def test_identity_and_symmetric_parts() -> None:
    np.testing.assert_array_equal(orthogonal(np.zeros((2, 5, 5))), np.tile(np.eye(5), (2, 1, 1)))
    M = np.random.default_rng(1).standard_normal((6, 6))
    np.testing.assert_array_equal(orthogonal(M + M.T), np.eye(6))


def test_a_plane_turns_by_the_angle() -> None:
    for angle in (1e-9, 0.3, 3.0, 100.0):
        M = np.array([[0, -angle], [0, 0]])
        c, s = np.cos(angle), np.sin(angle)
        # squaring doubles the rounding of the angle log2(angle) times
        np.testing.assert_allclose(orthogonal(M), [[c, -s], [s, c]], rtol=0, atol=4 * EPS * max(1, angle))


@pytest.mark.parametrize("n", [2, 5, 12])
def test_gradient_in_extended_precision(n: int) -> None:
    """Six-point differences of the series in extended precision: step^6 and eps/step are both below 1e-14."""
    rng = np.random.default_rng(n)
    M, dP, V = rng.standard_normal((3, n, n))
    step = np.longdouble(2.0**-8)
    value = {
        k: np.sum(dP * expm_series((M - M.T) + k * step * (V - V.T).astype(np.longdouble)))
        for k in (-3, -2, -1, 1, 2, 3)
    }
    slope = sum(c * (value[k] - value[-k]) for k, c in ((1, 45), (2, -9), (3, 1))) / (60 * step)
    assert abs(np.sum(orthogonal_backward(dP, M) * V) - slope) <= 1e-10 * np.linalg.norm(dP) * np.linalg.norm(V)


def test_equal_eigenvalues_have_a_gradient() -> None:
    """At M = 0 all coincide, and P = I + (M - M^T) + O(M^2)."""
    dP = np.random.default_rng(2).standard_normal((7, 7))
    np.testing.assert_allclose(orthogonal_backward(dP, np.zeros((7, 7))), dP - dP.T, rtol=0, atol=4 * EPS * 4)


def test_matrices_of_a_stack_are_independent() -> None:
    M = np.random.default_rng(3).standard_normal((3, 6, 6)) * [[[1e-3]], [[1.0]], [[50.0]]]
    dP = np.random.default_rng(4).standard_normal(M.shape)
    for i in range(3):
        np.testing.assert_array_equal(orthogonal(M)[i], orthogonal(M[i]))
        np.testing.assert_array_equal(orthogonal_backward(dP, M)[i], orthogonal_backward(dP[i], M[i]))


def test_large_matrices_are_the_same_bits_for_any_number_of_threads() -> None:
    M, dP = np.random.default_rng(5).standard_normal((2, 1, 256, 256))
    results = []
    before = _cpu.threads()
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            results.append(orthogonal(M).tobytes() + orthogonal_backward(dP, M).tobytes())
    finally:
        _cpu.use_threads(before)
    assert results[0] == results[1] == results[2]


def test_float32_is_float64_rounded() -> None:
    M = np.random.default_rng(6).standard_normal((2, 4, 4)).astype(np.float32)
    P = orthogonal(M)
    assert P.dtype == np.float32
    np.testing.assert_array_equal(P, orthogonal(M.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize(
    ("M", "error", "message"),
    [
        (np.full((2, 2), np.nan), ValueError, "orthogonal: M has the number nan"),
        (np.full((2, 2), -np.inf), ValueError, "orthogonal: M has the number -inf"),
        (np.full((2, 2), 2e6), ValueError, r"M has the number 2000000.0, expected magnitudes up to 1e\+06"),
        (np.ones((2, 3)), ValueError, r"orthogonal: M has shape \(2, 3\), expected \(..., n, n\)"),
        (np.ones(3), ValueError, r"orthogonal: M has shape \(3,\)"),
        (np.ones((2, 2), np.int64), TypeError, "orthogonal: M has dtype int64, expected float32 or float64"),
        (np.ones((2, 2), np.float16), TypeError, "orthogonal: M has dtype float16"),
    ],
)
def test_bad_input(M: np.ndarray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        orthogonal(M)


def test_bad_gradient() -> None:
    with pytest.raises(ValueError, match=r"orthogonal_backward: dP has shape \(1, 3, 3\), expected"):
        orthogonal_backward(np.ones((3, 3)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="orthogonal_backward: M has the number nan"):
        orthogonal_backward(np.ones((2, 2)), np.full((2, 2), np.nan))
