"""Angles over long sequences and streams, and errors of ops that turn pairs of lanes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rotrnn.ops.turn import Turned, turn, turn_backward

EPS = float(np.finfo(np.float32).eps)
TURN = 2 * Fraction("3.14159265358979323846264338327950288419716939937510582097494459")
UNIT = 12 * EPS
"""Of a number of a turned pair (1, 1), in units of EPS: c, up to pi, is rounded by 1 at most. The sine s and the cosine
k of its half are sums of two terms of up to 1, whose products round two or three times by 1/2: each is wrong by 1.1 at
most, so 1 - 2 s^2 by 4.5 with the last rounding, as is 2 s k. Two such products are added: 2 (1 + 4.5) + 1."""


def long_angles(T: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    theta = rng.uniform(-np.pi, np.pi, (1, T, 1, 2)).astype(np.float32)
    theta[..., 0] = 0.3  # always the same way round: 1,000 turns
    return theta, np.ones((1, T, 1, 1, 4), np.float32)


def whole(theta: Any, x: Any) -> Any:
    c = np.cumsum(theta.astype(np.float64), 1)[:, :, None]
    units = np.exp(1j * c) * (x[..., ::2] + 1j * x[..., 1::2])
    return np.stack([units.real, units.imag], -1).reshape(x.shape)


def test_float32_does_not_drift_over_long_sequences() -> None:
    """The bound does not grow with T; sums in float32 would lose T EPS |c| = 14 here."""
    theta, x = long_angles(20_000)
    y = turn(theta, x).y
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, whole(theta, x), rtol=0, atol=UNIT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("angle", [0.3, 3.0, 1000.3])
def test_the_error_of_an_angle_has_the_bound_that_is_said(angle: float, dtype: Any) -> None:
    """One angle T times, beside the exact sum, modulo 2 pi by fractions: T a 2^-46."""
    T = 20_000
    theta = np.full((1, T, 1, 1), angle, dtype)
    c = turn(theta, np.ones((1, T, 1, 1, 2), dtype)).cT
    exact = T * Fraction(float(theta[0, 0, 0, 0]))
    error = sum(Fraction(float(part)) for part in c.ravel()) - exact
    error -= TURN * round(error / TURN)
    assert abs(float(error)) < T * max(angle, 1) * 2**-46


def test_float32_does_not_drift_in_streams() -> None:
    """One step after the other: the state's second number keeps what its rounding to float32 loses."""
    theta, x = long_angles(5000)
    c, steps = None, []
    for t in range(theta.shape[1]):
        found = turn(theta[:, t : t + 1], x[:, t : t + 1], None, c)
        c = found.cT
        steps.append(found.y)
    np.testing.assert_allclose(np.concatenate(steps, 1), whole(theta, x), rtol=0, atol=UNIT)


def test_what_is_turned_together_has_the_same_angles() -> None:
    rng = np.random.default_rng(1)
    theta, x, z = (rng.standard_normal(shape) for shape in ((2, 9, 3, 2), (2, 9, 1, 3, 5), (2, 9, 2, 3, 5)))
    both = turn(theta, x, z)
    np.testing.assert_array_equal(both.y, turn(theta, x).y)
    np.testing.assert_array_equal(both.w, turn(theta, z).y)


def test_products_of_turned_vectors_depend_on_the_angles_between() -> None:
    """A start c0 changes no product; both are sums of 6 terms of size 3 at most."""
    rng = np.random.default_rng(2)
    theta, x = rng.standard_normal((1, 8, 1, 3)), rng.uniform(-1, 1, (1, 8, 1, 1, 6))
    c0 = rng.standard_normal((1, 2, 1, 3))
    plain, begun = (turn(theta, x, None, start).y.reshape(8, 6) for start in (None, c0))
    np.testing.assert_allclose(plain @ plain.T, begun @ begun.T, rtol=0, atol=100 * np.finfo(float).eps)


@pytest.mark.parametrize("size", [1e3, 1e12, 1e30, np.inf, np.nan])
def test_huge_angles_stay_turns(size: float) -> None:
    y = turn(np.full((1, 1, 1, 1), size, np.float32), np.ones((1, 1, 1, 1, 2), np.float32)).y
    if np.isfinite(size):
        assert abs(np.hypot(*y.ravel()) - np.sqrt(2)) < 2 * UNIT
    else:
        assert np.isnan(y).all()


def test_errors() -> None:
    theta, x = np.zeros((1, 2, 3, 2)), np.zeros((1, 2, 1, 3, 4))
    with pytest.raises(ValueError, match=r"turn: theta has A=2 angles, expected at most N // 2 = 1 pairs of x"):
        turn(theta, x[..., :3])
    with pytest.raises(ValueError, match=r"turn: pairs is 'odd', expected one of adjacent, halves"):
        turn(theta, x, pairs="odd")
    with pytest.raises(ValueError, match=r"turn: z has shape \(1, 2, 1, 2, 4\), expected \(B=1, T=2, M, H=3, N=4\)"):
        turn(theta, x, x[:, :, :, :2])
    found = turn(theta, x, x)
    with pytest.raises(ValueError, match=r"turn_backward: dw is None, expected the gradient of w"):
        turn_backward(x, theta, found)
    with pytest.raises(ValueError, match=r"turn_backward: dw is an array, expected None, since turned.w is None"):
        turn_backward(x, theta, Turned(x, None, found.cT), dw=x)
