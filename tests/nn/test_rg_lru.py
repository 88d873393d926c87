"""RG-LRU beside the published formula: its first step, decays near 1, the clipped slope, and initial values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rotrnn import RGLRU, Context
from rotrnn.nn.layer import astype
from rotrnn.ops import decay_gain, sigmoid

EPS = np.finfo(np.float64).eps


def made(layer: RGLRU, shape: tuple[int, int]) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    params = {name: one + 0.1 * rng.standard_normal(one.shape) for name, one in layer.init(rng).items()}
    return astype(params, np.float64), rng.standard_normal((*shape, layer.d_model))


def test_a_sequence_begins_with_its_gated_input() -> None:
    """Without a state and with one of no steps, to which its h is added; not with zeros after some steps, where the
    factor is that of a."""
    layer = RGLRU(4, heads=2)
    params, x = made(layer, (3, 5))
    i = np.einsum("hoi,bhi->bho", params["input_gate_w"], x[:, 0].reshape(3, 2, 2)).reshape(3, 4)
    first = sigmoid(i + params["input_gate_bias"]) * x[:, 0]
    a = layer.registers(params, x)["a"][:, 0]
    for state, gain in ((None, np.ones((3, 4))), ((np.array([0, 7, 0]), np.zeros((3, 4))), None)):
        if gain is None:
            gain = np.where([[False], [True], [False]], np.sqrt(1 - a**2), 1)
        y, saved = layer.forward(params, x, state=state)
        np.testing.assert_allclose(y[:, 0], gain * first, rtol=0, atol=32 * EPS)  # some ten operations on numbers of 1
        assert saved.state[0].tolist() == ([5, 5, 5] if state is None else [5, 12, 5])
    y, _ = layer.forward(params, x, state=(np.zeros(3, np.int64), np.full((3, 4), 0.7)))
    np.testing.assert_allclose(y[:, 0], 0.7 * a + first, rtol=0, atol=32 * EPS)


def test_an_empty_sequence_has_not_begun() -> None:
    layer = RGLRU(4)
    params, x = made(layer, (2, 3))
    _, saved = layer.forward(params, x, Context(lengths=np.array([0, 3])))
    assert saved.state[0].tolist() == [0, 3]
    again, _ = layer.forward(params, x, state=saved.state)
    np.testing.assert_array_equal(again[0], layer.forward(params, x)[0][0])


@pytest.mark.parametrize("param", [-12.0, -16.0, -30.0])
def test_decays_near_one_in_float32(param: float) -> None:
    """1 - a is 8 e^param / 2, down to 4e-13, where a is 1 in float32; h then grows by the small gain alone. Each of 100
    steps rounds a few times, relative to h, a sum of positive numbers."""
    layer = RGLRU(2)
    params = {name: np.zeros(shape) for name, shape in layer.shapes.items()} | {"a_param": np.full(2, param)}
    x = 1 + np.random.default_rng(0).random((1, 100, 2))
    x[:, 0] = 0
    wide, _ = layer.forward(params, x)
    narrow, _ = layer.forward(astype(params, np.float32), x.astype(np.float32))
    gain = np.sqrt(-np.expm1(-8 * np.log1p(np.exp(param))))
    np.testing.assert_allclose(wide[0, 1], gain * x[0, 1] / 2, rtol=64 * EPS)
    np.testing.assert_allclose(narrow, wide, rtol=500 * np.finfo(np.float32).eps)


def test_the_slope_of_the_gain_is_at_most_that_of_the_authors() -> None:
    """At softplus(a_param) = 0 the gain is 0; its gradient by v = 1 - a^2 is 1000, by log a -2000."""
    layer = RGLRU(1)
    params = {name: np.zeros(shape) for name, shape in layer.shapes.items()} | {"a_param": np.full(1, -40.0)}
    x = np.array([[[0.0], [1.0]]])
    y, saved = layer.forward(params, x)
    _, grads, _ = layer.backward(params, saved, np.ones_like(y))
    rate = -8 * np.exp(-40.0)  # of log a = rate r, whose slope by a_param is itself; r = i = 1/2
    assert abs(y[0, 1, 0]) <= np.sqrt(-rate)
    np.testing.assert_allclose(grads["a_param"], -2000 * 0.5 * rate / 2, rtol=1e-6)


def test_initial_values_are_those_published() -> None:
    """|a|^2 is uniform on [r_min^2, r_max^2], gates have the variance 1 / width: of 4096 numbers, to 5 sigma."""
    layer = RGLRU(4096, heads=64)
    params = layer.init(np.random.default_rng(0))
    square = np.exp(-2 * np.log1p(np.exp(params["a_param"].astype(np.float64))))
    low, high = 0.9**2, 0.999**2
    assert low - 1e-6 <= square.min()
    assert square.max() <= high + 1e-6
    assert abs(square.mean() - (low + high) / 2) <= 5 * (high - low) / np.sqrt(12 * 4096)
    for name in ("a_gate", "input_gate"):
        w = params[f"{name}_w"]
        assert abs(w.var() * 64 - 1) <= 5 * np.sqrt(2 / w.size)
        assert not params[f"{name}_bias"].any()


def test_the_variance_of_a_white_input_is_kept() -> None:
    """With i = 1 the state of unit white noise has variance 1 from the first step on: 4000 lanes, 5 sigma."""
    layer = RGLRU(4000, heads=4000)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    params["input_gate_w"][:], params["input_gate_bias"][:] = 0, 40.0
    params["a_gate_w"][:] = 0
    y, _ = layer.forward(params, np.random.default_rng(1).standard_normal((1, 30, 4000)))
    assert np.abs(y[0].var(-1) - 1).max() <= 5 * np.sqrt(2 / 4000)


def after(method: str, places: list[int]) -> Any:
    """The call with zeros, after so many steps of each of two sequences."""
    layer = RGLRU(1)
    params, state = layer.init(np.random.default_rng(0)), (np.array(places), np.zeros((2, 1)))
    if method == "step":
        return layer.step(params, state, np.zeros((2, 1)))
    return layer.forward(params, np.zeros((2, 3, 1)), state=state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RGLRU(4, heads=3), "RGLRU: heads=3, expected a divisor of d_model=4"),
        (lambda: RGLRU(4, r_min=0.9, r_max=1.0), "RGLRU: r_min=0.9, r_max=1.0, expected 0 < r_min <= r_max < 1"),
        (lambda: RGLRU(4, r_min=0.9, r_max=0.8), "RGLRU: r_min=0.9, r_max=0.8, expected 0 < r_min <= r_max < 1"),
        (lambda: decay_gain(np.zeros(3, np.int64)), "decay_gain: x has dtype int64"),
        (lambda: after("forward", [0, -1]), r"RGLRU.forward: state.places is \[ 0 -1\], expected the number of steps"),
        (lambda: after("step", [-2, 3]), r"RGLRU.step: state.places is \[-2  3\], expected the number of steps"),
    ],
)
def test_bad_input_is_named(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()
