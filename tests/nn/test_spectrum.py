"""RotRNN's gain for inputs that are not white: `normalise` "spectrum" and "bounded" (rotrnn.nn.spectrum)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import rotrnn
import theory_of_rotrnn as theory
from rotrnn import Bidirectional, Context, Griffin, RotRNN, SelectiveRotRNN, StoredHistory, build_model
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Params, Recurrent, astype, is_parameter
from rotrnn.nn.spectrum import SQUARINGS, measure, norm_bound
from rotrnn.ops.linear_layer import System

EPS = np.finfo(np.float64).eps
TRAIN = Context(train=True)


def made(seed: int = 0, **settings: Any) -> tuple[RotRNN, Params]:
    layer = RotRNN(3, 6, heads=2, **settings)
    return layer, astype(layer.init(np.random.default_rng(seed)), np.float64)


def inputs(name: str) -> Array:
    return theory.INPUTS[name](np.random.default_rng(5))


@pytest.mark.parametrize("name", theory.INPUTS)
def test_the_mean_norm_of_the_measured_inputs_is_what_is_promised(name: str) -> None:
    """Of the inputs that were measured, mean |x_t|^2 is 1 - gamma^2 |s_T|^2 / (V T) exactly, whatever they are: s_T is
    the last state before the gain. The sums have B T terms."""
    layer, params = theory.coloured("spectrum")
    x = inputs(name)
    layer.forward(params, x, TRAIN)
    gamma = np.exp(-np.exp(params["gamma_log"]))
    norms = theory.squared_norms(layer, params, x)
    B, T, _ = norms.shape
    promised = 1 - gamma**2 * norms[:, -1].mean(0) / ((1 - gamma**2) * T)
    np.testing.assert_allclose(norms.mean((0, 1)), promised, rtol=EPS * B * T / (1 - gamma.max()))
    assert promised.min() > 0.8  # the rest is where the states begin from zero and end


@pytest.mark.parametrize("name", ["AR(1) 0.9", "AR(1) -0.9", "AR(1) 0.99", "sinusoids"])
def test_input_normalisation_misses_by_the_spectrum(name: str) -> None:
    """White noise alone has E|x_t|^2 = 1 under "input": coloured inputs are off by factors."""
    norms = theory.mean_norms("input", name)
    assert max(norms.max(), 1 / norms.min()) > 3


def test_the_energy_of_an_autoregression_is_the_poisson_kernel_at_the_angles() -> None:
    """V = sum_p c_p R(0) c_p^H Pi_{gamma rho}(theta_p) for R(m) = rho^|m| R(0). The estimate errs by about
    sqrt((1 + g^2) / ((1 - g^2) B T)), g the larger of gamma and rho; five times that is allowed."""
    rng = np.random.default_rng(0)
    B, T, gamma, theta = 64, 2000, 0.9, np.array([0.0, 0.3, 1.0, 3.0])
    c = rng.standard_normal((4, 2)) + 1j * rng.standard_normal((4, 2))
    w_in = np.stack([c.real, c.imag], 1).reshape(8, 2)
    for rho in (0.0, 0.8, -0.8):
        x = rng.standard_normal((B, T + 100, 2)) * np.sqrt(1 - rho**2)
        for t in range(1, T + 100):
            x[:, t] += rho * x[:, t - 1]
        for i, angle in enumerate(theta):
            a, g = gamma * np.exp(1j * theta[i : i + 1]), gamma * rho
            found = measure(a, np.array([1 - gamma**2]), w_in[2 * i : 2 * i + 2], x[:, 100:], None, 1).energy
            kernel = (1 - g**2) / (1 - 2 * g * np.cos(angle) + g**2)
            assert found == pytest.approx(np.sum(abs(c[i]) ** 2) * kernel, rel=5 * np.sqrt(1.81 / (0.19 * B * T)))


def test_the_energy_is_its_other_form_and_between_its_bounds() -> None:
    """mean v . (2 s - v) equals the sum of squares that is computed, up to gamma's rounding and T terms."""
    rng = np.random.default_rng(0)
    for gamma in (0.5, 0.999):
        v = rng.standard_normal((1, 40, 2)) * np.exp(rng.standard_normal((1, 40, 1)))
        a = np.array([gamma * np.exp(0.7j)])
        s = rotrnn.ops.diagonal_scan(a, v.view(complex)).view(float)
        found = float(measure(a, np.array([1 - gamma**2]), np.eye(2), v, None, 1).energy[0])
        power, least = float(np.mean(np.sum(v**2, -1))), (1 - gamma) / (1 + gamma)
        assert found == pytest.approx(np.mean(np.sum(v * (2 * s - v), -1)), abs=40 * EPS * power / (1 - gamma))
        assert least * power <= found <= power / least


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 6), (2, 7, 2), (1, 64, 48)])
def test_the_bound_of_the_norm(shape: tuple[int, ...]) -> None:
    """At least the largest singular value, at most n^(1/2p) times it, and exactly the Schatten norm."""
    B = np.random.default_rng(1).standard_normal(shape)
    bound, gradient = norm_bound(B)
    values = np.linalg.svd(B, compute_uv=False)
    n, p = values.shape[1], 2**SQUARINGS
    assert (bound >= values[:, 0] * (1 - 64 * n * EPS)).all()
    assert (bound <= values[:, 0] * n ** (0.5 / p) * (1 + 64 * n * EPS)).all()
    schatten = values[:, 0] * ((values / values[:, :1]) ** (2 * p)).sum(1) ** (0.5 / p)
    np.testing.assert_allclose(bound, schatten, rtol=64 * n * EPS)
    np.testing.assert_allclose((gradient * B).sum((1, 2)), bound, rtol=64 * n * EPS)  # Euler: it is of degree 1
    assert (norm_bound(B.astype(np.float32)).bound >= values[:, 0] * (1 - n * np.finfo(np.float32).eps)).all()


def test_bounded_states_never_exceed_the_largest_input() -> None:
    """Also for the worst input, which turns with a plane and points along the largest singular vector."""
    layer, params = made(normalise="bounded", gamma_init=(0.99, 0.99))
    worst = RotRNN(1, 2, normalise="bounded", gamma_init=(0.9, 0.9), theta_max=0.0)
    given = astype(worst.init(np.random.default_rng(0)), np.float64)
    found = theory.squared_norms(worst, given, np.ones((1, 400, 1)))
    assert 0.98 < found[0, -1, 0] <= 1  # sqrt(n^(1/2p)) below 1: the bound is reached
    rng = np.random.default_rng(1)
    for scale in (1e-3, 1.0, 1e4):
        x = scale * rng.standard_normal((4, 500, 3)) * (rng.random((4, 500, 1)) < 0.1)
        norms = np.sqrt(theory.squared_norms(layer, params, x))
        assert norms.max() <= np.linalg.norm(x, axis=2).max()


def test_bounded_states_in_float32_may_exceed_it_by_the_rounding_of_their_transitions() -> None:
    """gamma rounds by 2^-25, cosine, sine and their products by 2^-24 each, relative: |a| by at most 1.5e-7."""
    layer = RotRNN(2, 600, heads=300, normalise="bounded")
    for leak in (1e-3, 1e-5, 1e-6):
        params = layer.init(np.random.default_rng(0))
        params["gamma_log"][:] = np.log(leak)
        w_in, a, *_ = layer.fold(params).weights
        largest = np.linalg.norm(w_in.astype(float).reshape(300, 2, 2), 2, (1, 2)) / (1 - np.abs(a.astype(complex)))
        assert largest.max() <= 1 / (1 - 1.5e-7 / leak - 1e-6)
        assert leak > 1e-4 or largest.max() > 1  # what docs/guarantees.md admits


def test_sequences_shorter_than_the_memory_measure_too_little() -> None:
    """As docs/layers/rotrnn.md has it, for a constant input: V = mean (2 s_t - 1) over T, beside (1 + g) / (1 - g)."""
    layer = RotRNN(1, 2, normalise="spectrum", theta_max=0.0)
    for steps, promised in ((20, 10.6), (50, 4.7), (100, 2.7), (1000, 1.1)):
        params = astype(layer.init(np.random.default_rng(0)), np.float64) | {"gamma_log": np.log(-np.log([0.99]))}
        layer.forward(params, np.ones((1, steps, 1)), TRAIN)
        found = theory.squared_norms(layer, params, np.ones((1, 3000, 1)))[0, -1, 0]
        assert found == pytest.approx(promised, rel=0.02)


@pytest.mark.parametrize("planes", [1, 16])
def test_the_estimate_errs_less_with_more_planes(planes: int) -> None:
    """By sqrt((1 + g^2) / ((1 - g^2) B T n)) for white input: within a third, from 60 draws."""
    rng, g, steps = np.random.default_rng(0), 0.9, 400
    a = g * np.exp(1j * rng.uniform(0.5, 2.5, planes))
    x = rng.standard_normal((60, steps, 2 * planes))
    found = [measure(a, np.array([1 - g**2]), np.eye(2 * planes), one[None], None, 1).energy[0] for one in x]
    expected = np.sqrt((1 + g**2) / ((1 - g**2) * steps * planes))
    assert np.std(found) / np.mean(found) == pytest.approx(expected, rel=1 / 3)


def test_the_running_spectrum_begins_with_the_first_batch_and_is_constant_in_evaluation() -> None:
    layer, params = made(normalise="spectrum")
    plain = RotRNN(3, 6, heads=2)
    x = np.random.default_rng(1).standard_normal((2, 50, 3)).cumsum(1)
    same = {name: value for name, value in params.items() if name != "running_spectrum"}
    np.testing.assert_array_equal(layer.forward(params, x)[0], plain.forward(same, x)[0])  # nothing measured yet
    assert not params["running_spectrum"].any()
    layer.forward(params, x, TRAIN)
    first = params["running_spectrum"].copy()
    assert (first > 0).all()
    layer.forward(params, 10 * x, TRAIN)
    np.testing.assert_allclose(params["running_spectrum"], (0.9 + 0.1 * 100) * first, rtol=64 * EPS)
    layer.forward(params, x, Context(train=True, lengths=np.array([0, 0])))  # nothing to measure
    layer.forward(params, 0 * x, TRAIN)
    np.testing.assert_allclose(params["running_spectrum"], (0.9 + 0.1 * 100) * first, rtol=64 * EPS)
    params["running_spectrum"].flags.writeable = False
    with pytest.raises(ValueError, match=r"RotRNN\.forward.*running_spectrum is read-only|RotRNN: .* read-only"):
        layer.forward(params, x, TRAIN)


def test_a_batch_whose_squares_overflow_is_not_averaged() -> None:
    """It would end the recurrence for good: an infinite spectrum stays infinite, and the gain zero."""
    layer, params = made(normalise="spectrum")
    params, x = astype(params, np.float32), np.random.default_rng(1).standard_normal((2, 9, 3), np.float32)
    layer.forward(params, x, TRAIN)
    before = params["running_spectrum"].copy()
    layer.forward(params, x * np.float32(1e20), TRAIN)
    np.testing.assert_array_equal(params["running_spectrum"], before)


def test_through_the_spectrum_a_batch_whose_squares_overflow_is_left_out() -> None:
    """The running spectrum is used instead, as a constant: the gradients are those of evaluation, not NaN."""
    layer, params = made(normalise="spectrum", through_spectrum=True)
    params, x = astype(params, np.float32), np.random.default_rng(1).standard_normal((2, 9, 3), np.float32)
    layer.forward(params, x, TRAIN)
    x *= np.float32(1e25)
    dy = np.full_like(x, 1e-25)
    results = []
    for ctx in (TRAIN, Context()):
        y, saved = layer.forward(params, x, ctx)
        dx, dparams, _ = layer.backward(params, saved, dy)
        results.append({"y": y, "x": dx, **dparams})
    for name, one in results[0].items():
        np.testing.assert_array_equal(one, results[1][name], err_msg=name)
        assert np.isfinite(one).all(), name


def test_padding_is_not_measured() -> None:
    layer, params = made(normalise="spectrum", bidirectional=True)
    x = np.random.default_rng(1).standard_normal((2, 9, 3))
    alone = {name: value.copy() for name, value in params.items()}
    layer.forward(alone, x[:, :5], TRAIN)
    x[:, 5:] = np.nan
    layer.forward(params, x, Context(train=True, lengths=np.array([5, 5])))
    np.testing.assert_array_equal(params["running_spectrum"], alone["running_spectrum"])


@pytest.mark.parametrize(
    "settings",
    [
        {"normalise": "spectrum"},
        {"normalise": "spectrum", "through_spectrum": True},
        {"normalise": "spectrum", "through_spectrum": True, "bidirectional": True},
        {"normalise": "spectrum", "through_spectrum": True, "window": 3},
        {"normalise": "spectrum", "through_spectrum": True, "window": 3, "bidirectional": True},
        {"normalise": "spectrum", "window": 3},
        {"normalise": "input", "window": 2},
        {"normalise": "alpha", "window": 4, "c": 2.0},
        {"normalise": "bounded", "window": 2},
    ],
    ids=str,
)
def test_gradients_in_training(settings: dict[str, Any]) -> None:
    """By central differences in a random direction of the parameters and of x. With the running spectrum, the measured
    one is a constant: the difference is that of evaluation after the update."""
    layer, params = made(**settings)
    rng = np.random.default_rng(2)
    x, lengths = rng.standard_normal((3, 7, 3)), np.array([7, 0, 4])
    ctx = Context(train=True, lengths=lengths)
    y, saved = layer.forward(params, x, ctx)
    dy = rng.standard_normal(y.shape) * (np.arange(7)[:, None] < lengths[:, None, None])
    dx, dparams, _ = layer.backward(params, saved, dy)
    assert all(one.dtype == np.float64 for one in dparams.values())
    assert dparams.keys() == params.keys() - {"running_spectrum"}
    again = ctx if layer.through_spectrum else Context(lengths=lengths)

    def loss(params: Params, x: Array) -> float:
        copies = {name: value.copy() for name, value in params.items()}
        return float(np.sum(layer.forward(copies, x, again)[0] * dy))

    h = 1e-5  # of a central difference that errs by h^2 and by eps / h
    for name in [*dparams, "x"]:
        value, grad = (x, dx) if name == "x" else (params[name], dparams[name])
        v = rng.standard_normal(value.shape)
        ends = [
            loss(params if name == "x" else params | {name: value + s * h * v}, x + s * h * v if name == "x" else x)
            for s in (1, -1)
        ]
        expected = float(np.sum(grad * v))
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(expected, abs=1e-6 * max(1, abs(expected))), name


@pytest.mark.parametrize("normalise", ["input", "alpha", "spectrum"])
@pytest.mark.parametrize("window", [1, 4, 50])
def test_a_window_keeps_the_norm_at_c(normalise: str, window: int) -> None:
    """For white input E|x_t|^2 is the sum over the window's lags, ``|a|^2k |W|^2``: c, exactly."""
    layer, params = made(normalise=normalise, window=window, c=2.0)
    w_in, a, *_ = layer.fold(params).weights
    squares = np.sum(w_in.reshape(len(a), -1) ** 2, 1) * np.sum(np.abs(a) ** (2 * np.arange(window)[:, None]), 0)
    np.testing.assert_allclose(squares.reshape(2, -1).sum(1), 2, rtol=64 * window * EPS)


def test_the_spectrum_is_measured_with_the_window() -> None:
    """A batch has c as the mean of |x_t|^2, over the L - 1 steps after the end, too, in the mean of the two directions.
    Lengths differ, and each direction reads zeros beyond an end. Before, white input had 1 - gamma^2L of it."""
    lengths, L = np.array([9, 0, 4]), 4
    x = np.random.default_rng(1).standard_normal((3, 9, 3)).cumsum(1)
    for both in (False, True):
        layer, params = made(normalise="spectrum", window=L, bidirectional=both)
        layer.forward(params, x, Context(train=True, lengths=lengths))
        w_in, a, *_ = layer.fold(params).weights
        squares = np.zeros(2)
        for u in (x[0], x[2, :4]):
            for way in (u, u[::-1])[: 1 + both]:
                v = np.pad(way @ w_in.T, ((L - 1, L - 1), (0, 0))).view(complex)
                h = [sum(a**k * v[t - k] for k in range(L)) for t in range(L - 1, len(v))]
                squares += np.sum(np.abs(h) ** 2, 0).reshape(2, -1).sum(1) / (1 + both)
        np.testing.assert_allclose(squares / lengths.sum(), 1, rtol=1e3 * EPS)


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_fused_blocks_measure_what_the_layer_reads(norm: str) -> None:
    settings = rotrnn.ModelSettings(layer="rotrnn", d_model=4, n_layers=2, norm=norm)
    model = build_model(settings, {"d_state": 8, "heads": 2, "normalise": "spectrum"}, vocab=5, n_classes=3)
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    tokens, lengths = np.random.default_rng(1).integers(5, size=(3, 20)), np.array([20, 7, 0])
    results = []
    for fused in (True, False):
        mine = rotrnn.unflatten({name: value.copy() for name, value in rotrnn.flatten(params)})
        y, saved = model.forward(mine, tokens, Context(train=True, lengths=lengths, fused=fused))
        grads = model.backward(mine, saved, np.ones_like(y))
        results.append({**dict(rotrnn.flatten(mine)), **dict(rotrnn.flatten(grads)), "y": y})
    for name, one in results[0].items():
        np.testing.assert_allclose(one, results[1][name], rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_distributed_batch_has_one_spectrum() -> None:
    """The parts of two processes, gathered, give the spectrum of the whole batch, to rounding of its sums."""
    layer, params = made(normalise="spectrum")
    x = np.random.default_rng(1).standard_normal((4, 30, 3)).cumsum(1)
    whole = {name: value.copy() for name, value in params.items()}
    layer.forward(whole, x, TRAIN)
    rows: list[Array] = []
    with pytest.raises(StopIteration):
        layer.forward(dict(params), x[:1], Context(train=True, gather=lambda row: rows.append(row) or next(iter(()))))
    layer.forward(params, x[1:], Context(train=True, gather=lambda row: [rows[0], row]))
    np.testing.assert_allclose(params["running_spectrum"], whole["running_spectrum"], rtol=256 * EPS)
    exact, params = made(normalise="spectrum", through_spectrum=True)
    with pytest.raises(ValueError, match="through_spectrum=True, expected False: the batch is distributed"):
        exact.forward(params, x, Context(train=True, gather=lambda row: [row]))


def test_a_fold_of_ones_own_is_used_in_training() -> None:
    """With the spectrum measured as before: three times the base's system, and its gradient of D."""

    @dataclass(frozen=True)
    class Louder(RotRNN):
        def fold(self, params: Params) -> Folded[System]:
            folded = super().fold(params)
            return folded._replace(weights=folded.weights._replace(skip=3 * folded.weights.skip))

        def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
            return super().fold_backward(params, folded, dsystem._replace(skip=3 * dsystem.skip))

    layer, params = Louder(3, 6, heads=2, normalise="spectrum"), made(normalise="spectrum")[1]
    same = {name: value.copy() for name, value in params.items()}
    x = np.random.default_rng(1).standard_normal((2, 9, 3))
    y, saved = layer.forward(params, x, TRAIN)
    base, of_base = RotRNN(3, 6, heads=2, normalise="spectrum"), same | {"D": 3 * same["D"]}
    expected, kept = base.forward(of_base, x, TRAIN)
    np.testing.assert_allclose(y, expected, rtol=0, atol=64 * EPS * np.abs(expected).max())
    grads, other = layer.backward(params, saved, y)[1], base.backward(of_base, kept, y)[1]
    np.testing.assert_allclose(grads["D"], 3 * other["D"], rtol=64 * EPS)
    np.testing.assert_allclose(params["running_spectrum"], of_base["running_spectrum"], rtol=64 * EPS)
    exact = Louder(3, 6, heads=2, normalise="spectrum", through_spectrum=True)
    with pytest.raises(ValueError, match="Louder has its own fold"):
        exact.forward(params, x, TRAIN)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "around",
    [
        lambda layer: Bidirectional(3, layer),
        lambda layer: Griffin(2, layer),
        lambda layer: StoredHistory(3, layer, 5),
    ],
    ids=["Bidirectional", "Griffin", "StoredHistory"],
)
def test_layers_around_it_measure_and_have_no_gradient_of_the_spectrum(around: Any, exact: bool) -> None:
    layer: Recurrent = around(RotRNN(3, 6, heads=2, normalise="spectrum", through_spectrum=exact))
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    buffers = [name for name in params if name.startswith("running_spectrum")]
    assert buffers == [name for name in params if not is_parameter(name)]
    x = np.random.default_rng(1).standard_normal((2, 7, layer.d_model))
    y, saved = layer.forward(params, x, TRAIN)
    assert all((params[name] > 0).all() for name in buffers)
    assert layer.backward(params, saved, y)[1].keys() == params.keys() - {*buffers}
    rotrnn.testing.gradcheck(layer, params, x, TRAIN if exact else Context())


@pytest.mark.parametrize("name", ["B", "B_reverse"])
def test_an_input_matrix_of_zeros_is_refused_in_both_directions(name: str) -> None:
    layer = Bidirectional(3, SelectiveRotRNN(3, 4, heads=2))
    params = layer.init(np.random.default_rng(0))
    params[name][1] = 0
    with pytest.raises(ValueError, match=f"Bidirectional: parameter {name} of head 1 is zero, expected a nonzero"):
        layer.forward(params, np.ones((1, 4, 3), np.float32))


def test_settings_that_are_refused() -> None:
    with pytest.raises(ValueError, match="normalise='colour', expected one of input, alpha, spectrum, bounded"):
        RotRNN(2, 4, normalise="colour")
    with pytest.raises(ValueError, match="through_spectrum=True and normalise='input', expected 'spectrum'"):
        RotRNN(2, 4, through_spectrum=True)


@pytest.mark.parametrize("settings", [{}, {"through_spectrum": True, "bidirectional": True}], ids=str)
def test_float32_stays_float32(settings: dict[str, Any]) -> None:
    layer, params = made(normalise="spectrum", **settings)
    narrow, x = astype(params, np.float32), np.random.default_rng(1).standard_normal((2, 40, 3), np.float32)
    y, saved = layer.forward(narrow, x, TRAIN)
    dx, dparams, _ = layer.backward(narrow, saved, y)
    wide, saved = layer.forward(params, x.astype(float), TRAIN)
    ex, expected, _ = layer.backward(params, saved, wide)
    for one, other in [(y, wide), (dx, ex), *((dparams[name], expected[name]) for name in expected)]:
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(other).max())  # some 200 terms, some eps each
    assert narrow["running_spectrum"].dtype == np.float32
