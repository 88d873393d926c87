"""exp, tanh, sigmoid and the other functions of one number: accuracy in ulp at every scale, infinities and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rotrnn import _cpu
from rotrnn.ops.pointwise import (
    decay_gain,
    decay_gain_backward,
    exp,
    gelu,
    gelu_backward,
    glu,
    glu_backward,
    sigmoid,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    tanh,
)
from rotrnn.ops.selective import selective_scan

DTYPES = [np.float32, np.float64]
LIMITS = {np.float32: 88.72, np.float64: 709.78}  # e^x overflows just beyond
FLUSHED = {np.float32: 2.0**-125.5, np.float64: 2.0**-1021.5}  # e^x is zero below

over_dtypes = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(params=_cpu.SIMD_AVAILABLE, autouse=True)
def simd(request: pytest.FixtureRequest) -> Any:
    before = _cpu.use_simd(request.param)
    yield request.param
    _cpu.use_simd(before)


def everywhere(dtype: Any, limit: float) -> Any:
    """Numbers of both signs at every scale from subnormal to `limit`, and densely where the functions bend."""
    rng = np.random.default_rng(0)
    small = 10.0 ** rng.uniform(np.log10(np.finfo(dtype).tiny) - 3, np.log10(limit), 200_000)
    return np.concatenate([small, -small, rng.uniform(-limit, limit, 200_000), np.linspace(-2, 2, 100_001)]).astype(
        dtype
    )


def ulps(got: Any, exact: Any) -> float:
    """The largest error in units of the last place of the exact value, subnormal spacing below the normal range."""
    spacing = np.spacing(np.abs(exact).astype(got.dtype))
    return float(np.max(np.abs(got.astype(np.longdouble) - exact) / spacing))


@over_dtypes
def test_power_of_two(dtype: Any) -> None:
    """The transition exp(delta A) of a selective scan, at A = 1 and delta = x: 2^x' with x' = x log2(e) of error 3
    halves of eps (two roundings and the constant's), so |x| eps 3/2 relative in the result; the fraction's factor ln 2,
    the polynomial's last two steps and the product round once each: 2 ulp on top."""
    limit = LIMITS[dtype] - 0.5  # it overflows half a power of two early
    x = everywhere(dtype, limit)
    got = transition(x)
    exact = np.exp(x.astype(np.longdouble))
    kept = exact > 2.0 * FLUSHED[dtype]
    eps = np.finfo(dtype).eps
    error = np.abs(got.astype(np.longdouble) - exact) / exact
    assert np.all(error[kept] <= eps * (2 + 1.5 * np.abs(x[kept])))
    assert np.all(got[exact < FLUSHED[dtype] / 2] == 0)
    big = dtype(10 * limit)
    np.testing.assert_array_equal(transition(np.array([0, -big, big, np.nan], dtype)), [1, 0, np.inf, np.nan])


def transition(x: Any) -> Any:
    """exp(x) as a selective scan computes it: one step from the state 1, without input."""
    D, one = len(x), np.ones((1, 1, 1), x.dtype)
    zero, h0 = np.zeros((1, 1, D), x.dtype), np.ones((1, D, 1), x.dtype)
    return selective_scan(zero, x.reshape(1, 1, D), np.ones((D, 1), x.dtype), one, one, None, h0)[0, 0]


@over_dtypes
def test_exp(dtype: Any) -> None:
    """The result is 2^n (1 + p) with one rounding each of p and of the sum: 2 ulp, for p's own error shrinks there."""
    x = everywhere(dtype, LIMITS[dtype])
    exact = np.exp(x.astype(np.longdouble))
    kept = exact > 1.01 * FLUSHED[dtype]
    got = exp(x)
    assert ulps(got[kept], exact[kept]) <= 2
    assert not got[exact < 0.99 * FLUSHED[dtype]].any()


@over_dtypes
def test_sigmoid(dtype: Any) -> None:
    """e^-|x| to 2 ulp, a sum and a quotient of half an ulp each, less than 3 ulp."""
    x = everywhere(dtype, LIMITS[dtype])
    wide = x.astype(np.longdouble)
    exact = np.where(wide < 0, np.exp(wide), 1) / (1 + np.exp(-np.abs(wide)))
    kept = exact > 1.01 * FLUSHED[dtype]
    assert ulps(sigmoid(x)[kept], exact[kept]) <= 3


@over_dtypes
def test_tanh(dtype: Any) -> None:
    """E / (E + 2) with E = e^(2|x|) - 1 to 2-3 ulp at every scale: 4 ulp, also next to zero."""
    x = everywhere(dtype, 30)
    got = tanh(x)
    assert ulps(got, np.tanh(x.astype(np.longdouble))) <= 4
    assert np.array_equal(tanh(-x), -got)


@over_dtypes
def test_gelu(dtype: Any) -> None:
    """x s(u): u's relative rounding of about 3 eps becomes |u| 3 eps of the exponential's. Where s is flushed to zero,
    x s or x s u' is lost, |x| below 11 and |u'| below 22."""
    x = everywhere(dtype, 10)
    wide, root = x.astype(np.longdouble), np.sqrt(8 / np.longdouble(np.pi))
    u = root * (wide + np.longdouble(0.044715) * wide**3)
    s, off = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))
    tolerance = (6 + 4 * np.abs(u)) * np.finfo(dtype).eps
    lost = 250 * FLUSHED[dtype]
    assert np.all(np.abs(gelu(x) - wide * s) <= tolerance * np.abs(wide * s) + lost)
    bend = wide * s * off * root * (1 + 3 * np.longdouble(0.044715) * wide**2)
    # the two terms cancel at the slope's zero, x = -0.75: the tolerance is that of the terms
    error = np.abs(gelu_backward(np.ones_like(x), x) - (s + bend))
    assert np.all(error <= 2 * tolerance * (s + np.abs(bend)) + lost)


@over_dtypes
def test_silu(dtype: Any) -> None:
    """x s(x) and its slope: a few roundings of s. Where s is flushed to zero, x s is lost, |x| below 710."""
    x = everywhere(dtype, LIMITS[dtype])
    wide = x.astype(np.longdouble)
    s, off = 1 / (1 + np.exp(-wide)), 1 / (1 + np.exp(wide))
    tolerance, lost = 6 * np.finfo(dtype).eps, 2000 * FLUSHED[dtype]
    assert np.all(np.abs(silu(x) - wide * s) <= tolerance * np.abs(wide * s) + lost)
    # the two terms cancel at the slope's zero, x = -1.28: the tolerance is that of the terms
    error = np.abs(silu_backward(np.ones_like(x), x) - s * (1 + wide * off))
    assert np.all(error <= tolerance * s * (1 + np.abs(wide * off)) + lost)


@over_dtypes
def test_softplus(dtype: Any) -> None:
    """log(1 + e) with e = e^-|x| to 2 ulp, which it does not amplify, and two ulp of its own; the slope is s(x)."""
    x = everywhere(dtype, LIMITS[dtype])
    wide = x.astype(np.longdouble)
    exact = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
    kept = exact > 1.01 * FLUSHED[dtype]
    assert ulps(softplus(x)[kept], exact[kept]) <= 4
    assert not softplus(x)[exact < 0.99 * FLUSHED[dtype]].any()
    np.testing.assert_array_equal(softplus_backward(np.ones_like(x), x), sigmoid(x))


@over_dtypes
def test_decay_gain(dtype: Any) -> None:
    """sqrt(2 t / (1 + t)), t = tanh(-x) to 4 ulp, of which the quotient keeps at most the whole and the root half; one
    ulp for the rounding of the quotient, and one of the root. The slope, whose divisor is at least 5e-4: of e^(2x) = (1
    - t) / (1 + t), 1 - t has the absolute error of t, 4 eps."""
    x = -np.abs(everywhere(dtype, 40.0))
    wide, eps = x.astype(np.longdouble), np.finfo(dtype).eps
    exact = np.sqrt(-np.expm1(2 * wide))
    assert ulps(decay_gain(x), exact) <= 4
    slope = -np.exp(2 * wide) / np.maximum(exact, 5e-4)
    assert np.all(np.abs(decay_gain_backward(np.ones_like(x), x) - slope) <= 16 * eps * (1 + np.abs(slope)))
    assert decay_gain(np.zeros(9, dtype)).tolist() == [0] * 9
    np.testing.assert_allclose(decay_gain_backward(np.ones(9, dtype), np.zeros(9, dtype)), -2000, rtol=4 * eps)


@over_dtypes
def test_infinities_nan_and_the_largest_numbers(dtype: Any) -> None:
    big = np.finfo(dtype).max
    inf, nan = np.inf, np.nan
    x = np.array([inf, -inf, nan, big, -big, 0.0, -0.0] * 9, dtype)  # longer than any vector
    y = {f: f(x)[:7] for f in (exp, sigmoid, tanh, gelu, silu, softplus)}
    np.testing.assert_array_equal(y[exp], np.array([inf, 0, nan, inf, 0, 1, 1], dtype))
    np.testing.assert_array_equal(y[sigmoid], np.array([1, 0, nan, 1, 0, 0.5, 0.5], dtype))
    np.testing.assert_array_equal(y[tanh], np.array([1, -1, nan, 1, -1, 0, 0], dtype))
    np.testing.assert_array_equal(np.signbit(y[tanh][[0, 1, 3, 4, 5, 6]]), [False, True, False, True, False, True])
    np.testing.assert_array_equal(y[gelu], np.array([inf, 0, nan, big, 0, 0, 0], dtype))
    np.testing.assert_array_equal(np.signbit(y[gelu][[0, 1, 3, 4, 5, 6]]), [False, True, False, True, False, True])
    slope = gelu_backward(np.ones_like(x), x)[:7]
    np.testing.assert_array_equal(slope, np.array([1, 0, nan, 1, 0, 0.5, 0.5], dtype))
    np.testing.assert_array_equal(y[silu], np.array([inf, 0, nan, big, 0, 0, 0], dtype))
    np.testing.assert_array_equal(np.signbit(y[silu][[0, 1, 3, 4, 5, 6]]), [False, True, False, True, False, True])
    slope = silu_backward(np.ones_like(x), x)[:7]
    np.testing.assert_array_equal(slope, np.array([1, 0, nan, 1, 0, 0.5, 0.5], dtype))
    log2 = np.log(np.longdouble(2)).astype(dtype)
    np.testing.assert_allclose(
        y[softplus], np.array([inf, 0, nan, big, 0, log2, log2], dtype), rtol=np.finfo(dtype).eps
    )
    one = np.ones_like(x)
    np.testing.assert_array_equal(glu(one, x)[:7], np.array([1, 0, nan, 1, 0, 0.5, 0.5], dtype))
    dvalue, dgate = glu_backward(one, one, x)
    np.testing.assert_array_equal(dvalue[:7], np.array([1, 0, nan, 1, 0, 0.5, 0.5], dtype))
    np.testing.assert_array_equal(dgate[:7], np.array([0, 0, nan, 0, 0, 0.25, 0.25], dtype))
    limit = LIMITS[dtype]
    np.testing.assert_array_equal(np.isfinite(exp(np.array([limit, limit + 0.02], dtype))), [True, False])
