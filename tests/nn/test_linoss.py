"""LinOSS beside what is known of its oscillators: moduli, the ends of their range, energy, long sequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rotrnn import LinOSS
from rotrnn.nn.instructions import Oscillators
from rotrnn.nn.layer import astype
from rotrnn.ops import oscillator_scan, oscillator_scan_backward, sigmoid

EPS = np.finfo(np.float64).eps
DT = 0.3
S = float(sigmoid(np.float64(DT)))


def made(method: str, **own: Any) -> tuple[LinOSS, Any]:
    """One oscillator with a and g, an input of ones and x itself as the output."""
    layer = LinOSS(1, 1, method)
    given = {"A": 1.0, "G": 0.0, "dt": DT, "B_re": 1.0, "B_im": 0.0, "C_re": 1.0, "C_im": 0.0, "D": 0.0} | own
    return layer, {name: np.full(shape, given[name]) for name, shape in layer.shapes.items()}


def test_moduli_are_those_published() -> None:
    """1 / sqrt(1 + s^2 a), 1 exactly but for rounding, 1 / sqrt(1 + s g)."""
    rng = np.random.default_rng(0)
    for method in ("im", "imex", "damped"):
        layer = LinOSS(3, 50, method)
        params = astype(layer.init(rng), np.float64)
        s = sigmoid(params["dt"])
        square = {"im": 1 / (1 + s * s * params["A"]), "imex": np.ones(50)}.get(method)
        square = 1 / (1 + s * params["G"]) if square is None else square
        size = np.abs(layer.eigenvalues(params))
        np.testing.assert_allclose(size, np.sqrt(square)[:, None].repeat(2, 1), rtol=64 * EPS)


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("imex", {"A": 0.0}),  # a Jordan block: x grows linearly
        ("imex", {"A": -1.0}),
        ("imex", {"A": 4 / S**2}),  # the eigenvalue -1 twice, with one eigenvector
        ("imex", {"A": 3.999 / S**2}),
        ("imex", {"A": 1e-9}),
        ("im", {"A": 0.0}),
        ("damped", {"A": 0.0, "G": 0.5}),  # a is its lower limit: two equal eigenvalues
        ("damped", {"A": 1e9, "G": 0.5}),  # the upper one
        ("damped", {"A": 0.0, "G": 0.0}),
        ("damped", {"A": 0.1, "G": 1e-9}),
    ],
)
def test_the_ends_of_the_range(method: str, own: dict[str, float]) -> None:
    """Nothing is divided by a difference of eigenvalues. Beside long double: T steps round a few times each; an error
    grows as x does, at a double eigenvalue of modulus 1 by up to T."""
    layer, params = made(method, **own)
    T = 200
    u = np.random.default_rng(0).standard_normal((1, T, 1))
    y, _ = layer.forward(params, u)
    A, g, s = (np.longdouble(params.get(name, [0.0])[0]) for name in ("A", "G", "dt"))
    s = 1 / (1 + np.exp(-s))
    a = max(A, np.longdouble(0))
    if method == "damped":
        root = np.sqrt(1 + s * g)
        a = min(max(A, ((root - 1) / s) ** 2), ((root + 1) / s) ** 2)
    z = x = np.longdouble(0)
    expected = []
    for one in u[0, :, 0]:
        z = (z + s * (one - a * x)) / (1 + s * s * a if method == "im" else 1 + s * g)
        x = x + s * z
        expected.append(float(x))
    assert np.abs(y[0, :, 0] - expected).max() <= 16 * T * T * EPS * max(1, np.abs(expected).max())
    if own.get("A") == 0.0 and method == "imex":
        pushed, _ = layer.forward(params, np.eye(1, 5)[..., None])
        np.testing.assert_allclose(pushed[0, :, 0], S**2 * np.arange(1, 6), rtol=16 * EPS)


@pytest.mark.parametrize("own", [{"dt": -1e4}, {"dt": -100.0}, {"dt": -40.0}, {"G": 1e20}, {"G": 1e38}, {"A": 1e38}])
def test_limits_of_damped_that_float32_does_not_hold(own: dict[str, float]) -> None:
    """s rounds to 0, or squares of 1 / s and of g overflow: nothing is divided by zero, and the numbers, at most 1, are
    those of float64 but for some sixteen roundings."""
    found = []
    for dtype in (np.float32, np.float64):
        layer, params = made("damped", **own)
        params = astype(params, dtype)
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            y, saved = layer.forward(params, np.ones((1, 5, 1), dtype))
            _, grads, _ = layer.backward(params, saved, np.ones_like(y))
        assert all(np.isfinite(one).all() for one in grads.values())
        found.append((y, [grads[name] for name in ("A", "dt", "G")]))
    for narrow, wide in zip(*found, strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=0, atol=16 * 2**-24)


def test_implicit_steps_of_any_lengths_lose_energy() -> None:
    """E = z^2 + a x^2 falls by (z - z')^2 + a (x - x')^2 in each step. In its norm entries of M are at most 1, so an
    error is some roundings of E."""
    rng = np.random.default_rng(1)
    a, steps = np.append(0, np.geomspace(1e-3, 1e3, 40)), rng.exponential(size=(1, 500)) ** 3
    m, f = Oscillators("im").matrices(a, np.zeros(41), at=steps)
    h0 = rng.standard_normal((1, 2, 41))
    h = np.concatenate([h0[:, None], oscillator_scan(m, f, np.zeros((1, 500, 41)), h0)], 1)[0]
    energy, change = h[:, 0] ** 2 + a * h[:, 1] ** 2, np.diff(h, axis=0)
    lost = change[:, 0] ** 2 + a * change[:, 1] ** 2
    np.testing.assert_allclose(energy[:-1] - energy[1:], lost, rtol=0, atol=64 * EPS * energy[0].max())


@pytest.mark.parametrize("method", ["imex", "damped"])
def test_other_steps_of_different_lengths_grow(method: str) -> None:
    """So these methods refuse intervals: two stable steps grow together, and states overflow float32 from initial
    values."""
    of: Any = Oscillators(method, 2.0)
    short, long = of.matrices(np.ones(1), np.zeros(1), at=np.array([[0.67, 1.99]]), G=np.zeros(1))[0][0, ..., 0]
    assert max(np.abs(np.linalg.eigvals(one)).max() for one in (short, long)) < 1 + 1e-6
    assert np.abs(np.linalg.eigvals(short @ long)).max() > 2.9
    rng = np.random.default_rng(0)
    params = astype(LinOSS(1, 256, method).init(rng), np.float64)
    system = Oscillators(method).matrices(params["A"], params["dt"], params.get("G"), rng.exponential(size=(1, 1000)))
    h = oscillator_scan(*system, np.zeros((1, 1000, 256)), np.ones((1, 2, 256)))
    assert np.abs(h[0, -1]).max() > np.finfo(np.float32).max


def test_imex_beyond_the_stable_range_grows() -> None:
    layer, params = made("imex", A=4.1 / S**2)
    assert np.abs(layer.eigenvalues(params)).max() > 1
    assert np.abs(layer.forward(params, np.eye(1, 99)[..., None])[0]).max() > 1e6


def test_energy_is_kept_over_20000_steps() -> None:
    """A symplectic step keeps E = z^2 + a x^2 - s a z x exactly. In float32 each of a step's six roundings changes the
    state by 2^-24 of terms that are at most 3 |h|; in the norm of E, whose condition is below 4 for s^2 a <= 1, they
    add up, over T steps, to 6 * 3 * 4 T 2^-24: 9 %."""
    layer, params = made("imex", A=1.0)
    T = 20_000
    m, f = Oscillators("imex").matrices(params["A"], params["dt"])
    h0 = np.array([[[0.3], [1.0]]])
    wide = oscillator_scan(m, f, np.zeros((1, T, 1)), h0)[0, ..., 0]
    narrow = oscillator_scan(*(one.astype(np.float32) for one in (m, f, np.zeros((1, T, 1)), h0)))[0, ..., 0]
    for h, bound in ((wide, 6 * 3 * 4 * T * 2.0**-53), (narrow.astype(np.float64), 6 * 3 * 4 * T * 2.0**-24)):
        energy = h[:, 0] ** 2 + h[:, 1] ** 2 - S * h[:, 0] * h[:, 1]
        assert np.abs(energy / energy[0] - 1).max() <= 2 * bound
    assert layer.forward(params, np.zeros((1, 3, 1)))[0].shape == (1, 3, 1)


@pytest.mark.parametrize("at", [None, np.array([[0.0, 0.3, 1.7], [1.0, 2.0, 9.0]])], ids=["even", "uneven"])
@pytest.mark.parametrize("method", ["im", "imex", "damped"])
def test_gradients_of_the_matrices(method: str, at: Any) -> None:
    """By central differences, on both sides of the limits of a; they err by some eps / 1e-6 and 1e-12."""
    rng = np.random.default_rng(0)
    args = [np.array([0.5, -0.7, 2.0, 1e3, 1e-4]), rng.standard_normal(5)]
    args += [np.array([0.4, 0.3, -0.2, 0.5, 2.0])] if method == "damped" else []
    one: Any = Oscillators(method, step_scale=1.3)
    own = () if at is None else at.shape
    dm, df = rng.standard_normal((*own, 2, 2, 5)), rng.standard_normal((*own, 2, 5))
    grads = one.backward(SimpleNamespace(kept=at), (dm, df), *args)
    for i, x in enumerate(args):
        step = 1e-6 * np.maximum(1, np.abs(x))

        def f(sign: int, i: int = i, step: Any = step) -> Any:
            moved = [x + sign * step if j == i else x for j, x in enumerate(args)]
            m, gain = one.matrices(*moved, at=at)
            return (dm * m).sum((*range(m.ndim - 1),)) + (df * gain).sum((*range(df.ndim - 1),))

        slope = (f(1) - f(-1)) / (2 * step)
        np.testing.assert_allclose(grads[i], slope, rtol=1e-6, atol=1e-7)


def test_initial_values_are_those_published() -> None:
    """Ranges, and of "damped" eigenvalues on a ring whose squared moduli are uniform: 4000 lanes, 5 sigma."""
    params = LinOSS(5, 4000).init(np.random.default_rng(0))
    for name, low, high in (
        ("A", 0, 1),
        ("dt", 0, 1),
        ("B_re", -(5**-0.5), 5**-0.5),
        ("C_im", -(4e3**-0.5), 4e3**-0.5),
    ):
        one = params[name].astype(np.float64)
        assert low <= one.min() + 1e-7
        assert one.max() <= high + 1e-7
        assert abs(one.mean() - (low + high) / 2) <= 5 * (high - low) / np.sqrt(12 * one.size)
    layer = LinOSS(5, 4000, "damped")
    values = layer.eigenvalues(layer.init(np.random.default_rng(0)))[:, 0]
    square = np.abs(values) ** 2
    assert square.min() >= 0.81 - 1e-6
    assert square.max() <= 1 + 1e-6
    assert abs(square.mean() - 0.905) <= 5 * 0.19 / np.sqrt(12 * 4000)
    assert abs(np.abs(np.angle(values)).mean() - np.pi / 2) <= 5 * np.pi / np.sqrt(12 * 4000)


X = np.zeros((2, 3, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinOSS(4, 3, "ex"), "LinOSS: method='ex', expected one of im, imex, damped"),
        (lambda: LinOSS(4, 0), "LinOSS: d_state=0, expected a positive integer"),
        (lambda: oscillator_scan(np.zeros((2, 3, 4)), X[0, :2], X), "oscillator_scan: m has shape"),
        (lambda: oscillator_scan(np.zeros((2, 2, 3)), X[0, :2], X), "oscillator_scan: f has shape"),
        (
            lambda: oscillator_scan(np.zeros((2, 2, 4)), np.zeros((2, 3, 2, 4)), X),
            r"oscillator_scan: m has shape \(2, 2, 4\) and f \(2, 3, 2, 4\), expected both with \(B, T\)",
        ),
        (lambda: oscillator_scan_backward(X, np.zeros((2, 2, 4)), X[0, :2], X, X), "oscillator_scan_backward: dh has"),
    ],
)
def test_bad_input_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
