"""AUSSM beside what is known of it: moduli, long sequences in float32, initial values, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rotrnn import AUSSM, Mamba3, SLinOSS
from rotrnn.nn.instructions import UnitScan
from rotrnn.nn.layer import astype
from rotrnn.nn.program import Call


def unit_scan(v: Any, theta: Any, w: Any) -> Any:
    call: Any = Call.__new__(Call)
    call.state = call.lengths = None
    return UnitScan().forward(call, v, theta, w)


def test_float32_over_20000_steps_keeps_moduli_and_angles() -> None:
    """One input of 1 and then none: |h| stays 1. Angles add up in double, so of c there is one rounding, 2^-24 pi, and
    of cos c and sin c, of q and of y's two products some four more: 8 * 2^-24 in all, not T times that."""
    T = 20_000
    v = np.zeros((1, T, 1), np.float32)
    v[0, 0] = 1
    theta = np.random.default_rng(0).uniform(-3, 3, (1, T, 1, 1)).astype(np.float32)
    c = np.cumsum(theta[0, :, 0, 0].astype(np.float64))
    h = []
    for w in ([[1], [0]], [[0], [-1]]):
        h.append(unit_scan(v, theta, np.array(w, np.float32))[0, :, 0])
    expected = np.exp(1j * (c - c[0]))
    np.testing.assert_allclose(h[0] + 1j * h[1], expected, rtol=0, atol=8 * 2.0**-23)


@pytest.mark.parametrize(
    "layer",
    [AUSSM(4, 3, d_conv=0), Mamba3(4, 8, d_head=4), SLinOSS(4, 3, d_head=4)],
    ids=lambda one: type(one).__name__,
)
def test_equal_tokens_add_up_the_roundings_of_their_angles(layer: Any) -> None:
    """What the pages of these layers admit: an angle of at most pi is rounded, and each number in it, so that after T
    equal tokens c is off by some T roundings; c itself is kept in two numbers."""
    T = 20_000
    params = layer.init(np.random.default_rng(0))
    x = np.ones((1, T, 4), np.float32)
    place = [one.name for one in layer.state_form].index("c")
    c = [
        layer.forward(astype(params, dtype), x.astype(dtype))[1].state[place][0].astype(np.float64).sum(0)
        for dtype in (np.float32, np.float64)
    ]
    off = np.abs((c[0] - c[1] + np.pi) % (2 * np.pi) - np.pi).max()
    assert 1e-5 < off < 8e-3


def test_noise_over_20000_steps_in_float32() -> None:
    """A sum of T terms of size 1 is off by 2^-24 of each partial sum, so by T 2^-24 of the largest one at most, and the
    terms by some eight roundings each."""
    T = 20_000
    rng = np.random.default_rng(0)
    given = rng.standard_normal((1, T, 2)), rng.uniform(-3, 3, (1, T, 2, 3)), rng.standard_normal((2, 3))
    narrow = [one.astype(np.float32) for one in given]
    exact = unit_scan(*(one.astype(np.float64) for one in narrow))
    size = np.abs(exact).max()
    assert np.abs(unit_scan(*narrow) - exact).max() <= (T + 8) * 2.0**-24 * size


def test_initial_values_are_those_published() -> None:
    layer = AUSSM(30, 20)
    params = layer.init(np.random.default_rng(0))
    for name, largest in (("X_bias", np.pi), ("X", 30**-0.5), ("dt_bias", 2 * 20**-0.5), ("conv_w", 0.5)):
        one = params[name].astype(np.float64)
        assert 0.8 * largest < np.abs(one).max() <= largest * (1 + 1e-6), name
    assert (params["D"] == 1).all()
    values = layer.eigenvalues(astype(params, np.float64), np.random.default_rng(1).standard_normal((2, 5, 30)))
    assert np.abs(np.abs(values) - 1).max() <= 4 * np.finfo(np.float64).eps


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"d_state": 0}, "AUSSM: d_state=0, expected a positive integer"),
        ({"d_conv": -1}, "AUSSM: d_conv=-1, expected an integer from 0"),
        ({"dt_rank": "all"}, "AUSSM: dt_rank='all', expected a positive integer or 'auto'"),
    ],
)
def test_bad_settings_are_named(own: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AUSSM(4, **own)
