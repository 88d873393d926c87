"""SLinOSS and its scan beside the table of cases: the quadrature, long sequences in float32, initial values, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rotrnn import SLinOSS
from rotrnn._cpu import SSD_CHUNK as CHUNK
from rotrnn.nn.layer import astype
from rotrnn.ops.hold import QUADRATURE, hold_scan, hold_scan_backward

EPS = np.finfo(np.float64).eps


def test_the_quadrature_is_exact_to_rounding() -> None:
    """int_0^1 s^k e^{ws} ds = sum_n w^n / (n! (n + k + 1)), k = 0, 1, 2, for |w| up to 4. Both are sums of terms below
    e^|w|, of which the rule's have at most ten, and of the series forty count; a complex exponential has five units."""
    rng = np.random.default_rng(0)
    n = np.arange(60)
    factorials = np.cumprod([1.0, *range(1, 60)])
    for w in 4 * np.sqrt(rng.uniform(0, 1, 200)) * np.exp(1j * rng.uniform(-np.pi, np.pi, 200)):
        for k in range(3):
            places, weights = QUADRATURE
            found = (weights * places**k * np.exp(w * places)).sum()
            expected = (w**n / (factorials * (n + k + 1))).sum()
            assert abs(found - expected) <= 55 * EPS * math.exp(abs(w)), (w, k)


@pytest.mark.parametrize(
    ("r_min", "theta_max", "promised"), [(0.8, 2.0, 1.3), (0.8, math.pi, 1.6), (0.1, 2.0, 5.2), (0.1, math.pi, 5.7)]
)
def test_the_share_that_is_subtracted_is_bounded(r_min: float, theta_max: float, promised: float) -> None:
    """The largest |p / rho| over the smallest |q|, of any two tokens (docs/layers/slinoss.md, docs/guarantees.md)."""
    r, theta = np.meshgrid(np.linspace(r_min, 1, 100), np.linspace(SLinOSS(4).theta_min, theta_max, 100))
    places, weights = QUADRATURE
    rho = np.exp(w := np.log(r) + 1j * theta)
    powers = weights * np.exp(w[..., None] * places)
    share, own = abs((powers * places).sum(-1) / rho), abs((powers * (1 - places)).sum(-1))
    assert 0.95 * promised < share.max() / own.min() <= promised


def test_float32_does_not_drift_over_20000_steps() -> None:
    """An error is below the roundings of a chunk, of N products, of the carries that have not decayed, and some thirty
    of angles and taps, times the sizes of all terms. Both lanes of a number have the sum of its parts' sizes, angles of
    zero are where taps are largest, and y and what it is without are each below 1.2 times the largest step."""
    rng, T, P, N, rate = np.random.default_rng(0), 20_000, 3, 4, 0.01
    args = {"x": rng.standard_normal((1, T, 1, P)), "delta": rng.uniform(0.1, 0.2, (1, T, 1))}
    args |= {"log_a": np.full((1, T, 1), -rate), "theta": rng.uniform(-3, 3, (1, T, 1))}
    args |= {name: rng.standard_normal((1, T, 1, N)) for name in "BC"}
    given: Any = {name: one.astype(np.float32) for name, one in args.items()}
    exact: Any = {name: one.astype(np.float64) for name, one in given.items()}
    sizes = exact | {"theta": np.zeros((1, T, 1)), "delta": np.full((1, T, 1), 0.2), "x": abs(exact["x"])}
    for name in "BC":
        both = abs(exact[name]).reshape(1, T, 1, N // 2, 2).sum(-1, keepdims=True)
        sizes[name] = np.repeat(both, 2, -1).reshape(exact[name].shape)
    terms = CHUNK + N + 1 / rate / CHUNK + 30
    error = abs(hold_scan(**given).y - hold_scan(**exact).y)
    assert (error <= terms * 2.0**-24 * 2.4 * hold_scan(**sizes).y).all()


def test_an_input_that_does_not_change_moves_the_state_as_in_continuous_time() -> None:
    """The hold of a constant is exact: z_t = (e^{w t} - 1) / w delta v B, from the second step on. To T roundings."""
    T, w, delta = 40, -0.05 + 0.7j, 0.3
    ones = np.ones((1, T, 1))
    B = np.array([0.6, -0.8])
    found = []
    for C in ([1.0, 0.0], [0.0, 1.0]):
        given = ones[..., None], delta * ones, w.real * ones, w.imag * ones, np.tile(B, (1, T, 1, 1))
        before = {"B0": B[None, None], "x0": np.ones((1, 1, 1))}
        found.append(hold_scan(*given, np.tile(C, (1, T, 1, 1)), **before).y[0, :, 0, 0])
    t = np.arange(1, T + 1)
    expected = (np.exp(w * t) - 1) / w * delta * (B[0] + 1j * B[1])
    np.testing.assert_allclose(found[0] + 1j * found[1], expected, rtol=0, atol=8 * T * EPS)


def test_initial_values_are_those_of_the_released_code() -> None:
    """Seven heads: two step sizes, four angles; log r evenly spaced, but where the sigmoid's inverse is clipped."""
    layer = SLinOSS(28, 3, d_head=8)
    assert layer.heads == 7
    params = astype(layer.init(np.random.default_rng(0)), np.float64)

    def s(name: str) -> Any:
        return 1 / (1 + np.exp(-params[name]))

    delta = 0.005 + 0.095 * s("dt_bias")
    np.testing.assert_allclose(delta, [0.005, 0.1, 0.1, 0.005, 0.005, 0.1, 0.1], rtol=0, atol=2e-7)
    theta = 0.05 + 1.95 * s("theta_bias")
    np.testing.assert_allclose(theta, np.geomspace(0.05, 2, 4)[[0, 0, 1, 1, 2, 2, 3]], rtol=0, atol=3e-6)
    r = 0.8 + 0.2 * np.exp(-20 * s("alpha_bias"))
    np.testing.assert_allclose(np.log(r), np.linspace(np.log(0.8), 0, 7), rtol=0, atol=5e-6)
    assert not params["theta_mod_bias"].any()
    assert (params["D"] == 1).all()
    assert (params["norm"] == 1).all()
    for name, largest in (("in_proj", 28**-0.5), ("conv_w", 0.5), ("out_proj", 56**-0.5)):
        assert 0.95 * largest < np.abs(params[name]).max() <= largest * (1 + 1e-6), name


def test_eigenvalues_are_within_their_bounds() -> None:
    layer = SLinOSS(8, 3, d_head=4)
    params = layer.init(np.random.default_rng(0))
    found = layer.eigenvalues(params, 3 * np.random.default_rng(1).standard_normal((2, 5, 8)))
    assert found.shape == (2, 5, 4)
    size, angle = abs(found), np.angle(found)
    assert ((size >= 0.8 - 1e-7) & (size <= 1)).all()
    assert (angle[..., ::2] >= 0.05 - 1e-7).all()
    assert (angle[..., 1::2] <= -0.05 + 1e-7).all()
    assert (abs(angle) <= 2 + 1e-6).all()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"d_state": 0}, "SLinOSS: d_state=0, expected a positive integer"),
        ({"d_conv": -1}, "SLinOSS: d_conv=-1, expected an integer from 0"),
        ({"d_head": 3}, r"SLinOSS: d_head=3, expected a divisor of expand \* d_model=8"),
        ({"d_head": "all"}, "SLinOSS: d_head='all', expected a positive integer or 'auto'"),
        ({"dt_min": 0.2}, r"SLinOSS: dt_min=0\.2, dt_max=0\.1, expected 0 < dt_min < dt_max$"),
        ({"theta_max": 3.2}, r"SLinOSS: theta_min=0\.05, theta_max=3\.2, expected 0 < theta_min < theta_max <= pi"),
        ({"r_min": 1.0}, r"SLinOSS: r_min=1\.0, expected a number from 0\.1 and below 1"),
        ({"norm_eps": 0.0}, r"SLinOSS: norm_eps=0\.0, expected a positive number"),
    ],
)
def test_bad_settings_are_named(own: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SLinOSS(4, **own)


def test_errors_of_the_scan() -> None:
    x, rates, lanes = np.ones((2, 3, 1, 2)), np.ones((2, 3, 1)), np.ones((2, 3, 1, 4))
    with pytest.raises(ValueError, match=r"hold_scan: B has N=3 lanes, expected an even number"):
        hold_scan(x, rates, rates, rates, lanes[..., :3], lanes[..., :3])
    with pytest.raises(ValueError, match=r"hold_scan: x0 is None and B0 is not, expected both or neither"):
        hold_scan(x, rates, rates, rates, lanes, lanes, B0=lanes[:, 0])
    with pytest.raises(ValueError, match=r"hold_scan: theta has shape \(2, 2, 1\), expected \(B=2, T=3, H=1\)"):
        hold_scan(x, rates, rates, rates[:, :2], lanes, lanes)
    with pytest.raises(ValueError, match=r"hold_scan: c0 has shape \(2, 3, 1\), expected \(B=2, 2, H=1\)"):
        hold_scan(x, rates, rates, rates, lanes, lanes, np.ones((2, 3, 1)))
    with pytest.raises(ValueError, match=r"hold_scan: log_a has -50.0, expected numbers from -4 to 4"):
        hold_scan(x, rates, -50 * rates, rates, lanes, lanes)
    with pytest.raises(ValueError, match=r"hold_scan: theta has inf, expected numbers from -4 to 4"):
        hold_scan(x, rates, rates, np.inf * rates, lanes, lanes)
    padded = np.where(np.arange(3)[:, None] < 2, rates, np.inf)
    assert np.isfinite(hold_scan(x, rates, padded, padded, lanes, lanes, lengths=[2, 2]).y).all()
    found = hold_scan(x, rates, rates, rates, lanes, lanes)
    saved = {"units": found.units, "carries": np.ones((2, 3, 1, 2, 4))}
    with pytest.raises(ValueError, match=r"hold_scan_backward: carries has shape \(2, 3, 1, 2, 4\), expected"):
        hold_scan_backward(x, x, rates, rates, rates, lanes, lanes, **saved)
