"""What a state is multiplied by, along a sequence: dense A_t of fixed points, eigenvalues of selective layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases.fixed_point import dense_recurrence
from cases.table import normal
from rotrnn.nn import (
    LRU,
    MLSTM,
    RGLRU,
    S5,
    Bedouin,
    Context,
    DeltaNet,
    FixedPointRNN,
    FPMamba,
    Mamba,
    Mamba2,
    MinGRU,
    Recurrent,
    SelectiveRotRNN,
    StoredHistory,
)
from rotrnn.nn.fixed_points.mixer import MIXERS
from rotrnn.nn.layer import astype, zero_state
from rotrnn.ops.linear_layer import System

EPS, EPS32 = np.finfo(np.float64).eps, np.finfo(np.float32).eps


def made(layer: Recurrent, shape: tuple[int, ...], noise: float = 0.1) -> tuple[Any, Any]:
    """Returns float64 parameters a little off their initial values, and an input."""
    rng = np.random.default_rng(0)
    params = astype(layer.init(rng), np.float64)
    return {name: p + noise * normal(rng, p.shape) for name, p in params.items()}, normal(rng, (*shape, layer.d_model))


@pytest.mark.parametrize("selective", [("lambda", "mixer", "B"), ()])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_vector_state_has_the_dense_matrix_of_its_recurrence(mixer: str, selective: tuple[str, ...]) -> None:
    """Both are solutions of one system of N equations, each off by N eps times its condition."""
    layer = FixedPointRNN(3, 6, mixer=mixer, rank=2, selective=selective)
    params, x = made(layer, (2, 5))
    A = layer.transitions(params, x)
    assert A.shape == (2, 5, 6, 6)
    for at in np.ndindex(2, 5):
        expected, _ = dense_recurrence(layer, params, x[at])
        condition = np.linalg.cond(expected)
        np.testing.assert_allclose(A[at], expected, rtol=0, atol=16 * 6 * EPS * condition * np.abs(expected).max())


@pytest.mark.parametrize(
    "own",
    [
        {"feedback": ("mixer",)},
        {"mixer_silu": True},
        {"feedback": ("mixer",), "mixer_silu": True, "symmetric": True, "d_state": 3},
    ],
)
def test_with_other_maps_of_the_mixer_it_is_the_matrix_at_the_last_state(own: dict[str, Any]) -> None:
    """h is within 32 eps of the fixed point, times some dozen of its iterations; A_t moves by as much."""
    layer = FixedPointRNN(3, **{"d_state": 6, "contractive": True, "tol": 1e-14, "max_iterations": 1000} | own)
    params, x = made(layer, (2, 5))
    A, h = layer.transitions(params, x), layer.forward(params, x)[1].iterate
    for b, t in np.ndindex(2, 5):
        expected, _ = dense_recurrence(layer, params, x[b, t], h[b, t - 1] if t else np.zeros(layer.d_state))
        np.testing.assert_allclose(A[b, t], expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_unscaled_it_is_lam_after_the_inverse_of_q() -> None:
    layer = FixedPointRNN(3, 6, rank=2, scaled=False)
    params, x = made(layer, (2, 5))
    A = layer.transitions(params, x)
    for at in np.ndindex(2, 5):
        expected, _ = dense_recurrence(layer, params, x[at])
        condition = np.linalg.cond(expected)
        np.testing.assert_allclose(A[at], expected, rtol=0, atol=16 * 6 * EPS * condition * np.abs(expected).max())


def test_without_mixing_the_eigenvalues_are_lam() -> None:
    layer = FixedPointRNN(3, 4, selective=())
    params, x = made(layer, (1, 2))
    params["alpha"][:] = -1000
    values = layer.eigenvalues(params, x)
    assert values.dtype == np.complex128
    lam = 1 / (1 + np.exp(-params["b_lambda"]))
    np.testing.assert_allclose(np.sort(values.real), np.broadcast_to(np.sort(lam), (1, 2, 4)), rtol=8 * EPS)
    assert not values.imag.any()


DELTA = [DeltaNet(6, heads=2, d_state=4, gate=gate, negative=True, d_conv=0) for gate in (False, True)]


@pytest.mark.parametrize("layer", DELTA, ids=repr)
def test_a_householder_step_moves_one_eigenvalue(layer: DeltaNet) -> None:
    """``I - beta k k^T`` has the eigenvalue 1 but along k, where it is ``1 - beta |k|^2``; the gate multiplies all. The
    matrix is symmetric, so eigenvalues move by no more than its roundings and those of finding them."""
    params, x = made(layer, (2, 5))
    values, found = layer.eigenvalues(params, x), layer.registers(params, x)
    assert values.shape == (2, 5, 2, 4)
    assert values.dtype == np.complex128
    expected = np.ones((2, 5, 2, 4))
    expected[..., 0] -= found["beta"][:, :, 0] * (found["k"][:, :, 0] ** 2).sum(-1)
    assert (expected[..., 0] < 0).any()
    if layer.gate:
        expected *= found["decay"][..., None]
    np.testing.assert_allclose(np.sort(values), np.sort(expected), rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("layer", DELTA, ids=repr)
def test_householder_steps_of_a_token_are_a_product(layer: DeltaNet) -> None:
    layer = replace(layer, steps=3, d_conv=4)
    params, x = made(layer, (2, 5))
    A, found = layer.transitions(params, x), layer.registers(params, x)
    for b, t, head in np.ndindex(2, 5, 2):
        steps = [
            np.eye(4) - beta * np.outer(k, k)
            for beta, k in zip(found["beta"][b, t, :, head], found["k"][b, t, :, head], strict=True)
        ]
        expected = steps[2] @ steps[1] @ steps[0]
        if layer.gate:
            expected = found["decay"][b, t, head] * expected
        np.testing.assert_allclose(A[b, t, head], expected, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize(
    "layer", [*DELTA, DeltaNet(6, heads=3, d_state=4, steps=2, gate=True, negative=True)], ids=repr
)
def test_the_state_of_a_delta_rule_is_multiplied_by_it(layer: DeltaNet) -> None:
    """h_t is an affine function of h_{t-1}, so A_t times any matrix is a difference of two steps; with states of about
    1 it rounds by a few times K eps."""
    params, x = made(layer, (2, 4))
    A, state = layer.transitions(params, x), zero_state("test", layer, 2, np.float64)
    for t in range(4):
        past, h = state
        moved = normal(np.random.default_rng(t), h.shape)
        other, state = (layer.step(params, (past, one), x[:, t])[1] for one in (h + moved, state[1]))
        np.testing.assert_allclose(A[:, t] @ moved, other[1] - state[1], rtol=0, atol=256 * EPS)


MATRIX = [
    *(
        Bedouin(2, d_state=3, mixer=mixer, rank=2, solver="direct")
        for mixer in ("householder", "dplr", "low_rank", "mixture")
    ),
    Bedouin(2, d_state=3, mixer="rotation", solver="direct", feedback=("lambda", "mixer", "C")),
    Bedouin(2, d_state=3, mixer="kronecker", tol=1e-14, max_iterations=1000),
    Bedouin(2, d_state=3, mixer="orthogonal", feedback=("lambda", "B"), tol=1e-14, max_iterations=1000),
]


@pytest.mark.parametrize("layer", MATRIX, ids=repr)
def test_a_matrix_state_is_multiplied_by_it(layer: Bedouin) -> None:
    """With y_{t-1} held, h_t is an affine function of h_{t-1}, so a column of A_t is a difference of two steps.

    A step is sums of E + S terms and a system, or an iteration, of a map of norm 2 delta < 0.3: with states of about 1,
    some hundreds of roundings."""
    params, x = made(layer, (2, 4), noise=0.02)
    whole, state = layer.transitions(params, x), zero_state("test", layer, 2, np.float64)
    for t in range(4):
        A = layer.transitions(params, x[:, t : t + 1], state=state)[:, 0]
        np.testing.assert_allclose(whole[:, t], A, rtol=0, atol=1e-12)
        h, y = state
        _, after = layer.step(params, state, x[:, t])
        for column in range(h[0].size):
            moved = h.reshape(2, -1).copy()
            moved[:, column] += 1
            _, (other, _) = layer.step(params, (moved.reshape(h.shape), y), x[:, t])
            difference = (other - after[0]).reshape(2, -1)
            np.testing.assert_allclose(A[:, :, column], difference, rtol=0, atol=1e3 * EPS)
        assert np.abs(A - np.eye(h[0].size) * A).max() > 1e-3  # dense
        state = after


@pytest.mark.parametrize("settings", [{}, {"d_head": 2, "norm_eps": 0.3}], ids=repr)
def test_with_a_norm_in_the_loop_it_is_the_derivative(settings: dict[str, Any]) -> None:
    """Central differences of step 1e-4: they err by its square, and by the iteration's 1e-12 or so over 1e-4."""
    layer = FPMamba(2, d_state=2, tol=1e-14, max_iterations=5000, **settings)
    params, x = made(layer, (1, 3), noise=0.02)
    state = zero_state("test", layer, 1, np.float64)
    for t in range(3):
        A = layer.transitions(params, x[:, t : t + 1], state=state)[0, 0]
        h, y = state
        size = h[0].size
        for column in range(size):
            step = 1e-4 * np.eye(size)[column].reshape(h.shape)
            up, down = (layer.step(params, (h + sign * step, y), x[:, t])[1][0] for sign in (1, -1))
            np.testing.assert_allclose(A[:, column], (up - down).ravel() / 2e-4, rtol=0, atol=1e-6)
        _, state = layer.step(params, state, x[:, t])


@pytest.mark.parametrize(
    "layer",
    [
        Mamba(2, d_state=3),
        Mamba2(4, d_state=3, d_head=2),
        MinGRU(3, 4),
        RGLRU(4, heads=2),
        SelectiveRotRNN(3, 6, heads=2, gamma="input"),
    ],
    ids=repr,
)
def test_a_diagonal_state_is_multiplied_by_its_eigenvalues(layer: Recurrent) -> None:
    """A step is affine in h, each component by itself; with states of about 1 it rounds by a few eps."""
    params, x = made(layer, (2, 4))
    values, state = layer.eigenvalues(params, x), zero_state("test", layer, 2, np.float64)
    for t in range(4):
        *others, h = state if isinstance(state, tuple) else (state,)
        again = (*others, h + 1) if others else h + 1
        moved, state = (layer.step(params, one, x[:, t])[1] for one in (again, state))
        difference = moved[-1] - state[-1] if others else moved - state
        each = values[:, t]  # of Mamba2 one for all states of a head
        each = each.reshape(each.shape + (1,) * (difference.ndim - each.ndim))
        np.testing.assert_allclose(np.broadcast_to(each, difference.shape), difference, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize(
    "layer",
    [
        *(FixedPointRNN(3, 4), FixedPointRNN(3, 4, feedback=("mixer",), contractive=True, tol=1e-14)),
        *(Bedouin(2, d_state=2), Mamba(2), Mamba2(2), DeltaNet(2, steps=2, gate=True)),
        *(MLSTM(4), MinGRU(3, 4), RGLRU(4), SelectiveRotRNN(3, 4)),
    ],
    ids=repr,
)
def test_padding_is_zero_and_not_read(layer: Recurrent) -> None:
    params, x = made(layer, (2, 5), noise=0.02)
    x[1, 3:] = np.nan
    values = layer.eigenvalues(params, x, Context(lengths=np.array([5, 3])))
    assert np.isfinite(values).all()
    assert not values[1, 3:].any()
    alone = layer.eigenvalues(params, x[1:, :3])[0]
    if hasattr(layer, "transitions"):  # a matrix has its eigenvalues in no order
        values, alone = np.sort(values), np.sort(alone)
    np.testing.assert_allclose(values[1, :3], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", [{"mixer": "dense"}, {"mixer": "low_rank", "rank": 4}], ids=repr)
def test_padding_needs_no_inverse(settings: dict[str, Any]) -> None:
    """These mixers are zero where x is, and only those of valid steps are inverted."""
    layer = FixedPointRNN(3, 4, scaled=False, **settings)
    params, x = made(layer, (2, 5))
    ragged = layer.transitions(params, x, Context(lengths=np.array([5, 3])))
    whole = layer.transitions(params, x)
    np.testing.assert_array_equal(ragged[0], whole[0])
    np.testing.assert_array_equal(ragged[1, :3], whole[1, :3])
    assert not ragged[1, 3:].any()


@pytest.mark.parametrize("settings", [{"d_conv": 3}, {"d_conv": 2, "feedback": ("mixer",)}, {}], ids=repr)
def test_a_state_continues_a_sequence(settings: dict[str, Any]) -> None:
    layer = FixedPointRNN(3, 4, contractive=True, tol=1e-14, max_iterations=1000, **settings)
    params, x = made(layer, (2, 5))
    state = layer.forward(params, x[:, :2])[1].state
    later = layer.transitions(params, x[:, 2:], state=state)
    np.testing.assert_allclose(later, layer.transitions(params, x)[:, 2:], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        layer.eigenvalues(params, x[:, 2:], state=state), np.linalg.eigvals(later), rtol=0, atol=1e-12
    )
    with pytest.raises((TypeError, ValueError), match=r"FixedPointRNN\.transitions: state"):
        layer.transitions(params, x, state=np.zeros((2, 5)))


def test_what_has_no_dense_matrix_and_wrong_arguments() -> None:
    layer = FixedPointRNN(3, 4, mixer="low_rank", rank=2, scaled=False)
    params, x = made(layer, (2, 5))
    with pytest.raises(ValueError, match=r"FixedPointRNN\.transitions: a Q_t has no inverse"):
        layer.transitions(params, x)
    with pytest.raises(ValueError, match=r"FixedPointRNN\.eigenvalues: x has shape \(2, 5, 2\)"):
        layer.eigenvalues(params, x[..., :2])
    with pytest.raises(TypeError, match=r"FixedPointRNN\.transitions: ctx is a str, expected a Context"):
        layer.transitions(params, x, "a")  # type: ignore[arg-type]
    x[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"FixedPointRNN\.eigenvalues: the transitions are not finite"):
        FixedPointRNN(3, 4).eigenvalues(FixedPointRNN(3, 4).init(np.random.default_rng(0)), x)
    for other in (Bedouin(2, d_state=2), DeltaNet(2)):
        name = type(other).__name__
        params, x = made(other, (2, 5))
        with pytest.raises(ValueError, match=rf"{name}\.transitions: lengths"):
            other.transitions(params, x, Context(lengths=np.array([5, 6])))
        with pytest.raises(ValueError, match=rf"{name}\.eigenvalues: x has shape \(2, 5, 1\)"):
            other.eigenvalues(params, x[..., :1])
    x[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"DeltaNet\.eigenvalues: the transitions are not finite"):
        other.eigenvalues(params, x)


def test_a_stored_history_has_the_eigenvalues_of_its_layer() -> None:
    lru, mamba = LRU(3, 4), Mamba(2)
    for layer, inputs in ((lru, ()), (mamba, (normal(np.random.default_rng(1), (1, 3, 2)),))):
        history = StoredHistory(layer.d_model, layer, 4)
        params = history.init(np.random.default_rng(0))
        own = {name: params[name] for name in layer.shapes}
        np.testing.assert_array_equal(history.eigenvalues(params, *inputs), layer.eigenvalues(own, *inputs))


@pytest.mark.parametrize("layer", [LRU(3, 4), LRU(3, 4, form="real_imag", gamma=False, bidirectional=True), S5(3, 4)])
def test_a_diagonal_layer_folds_by_its_equation(layer: Any) -> None:
    """Products with a real gain round once, and so have the bits of the equation; with a complex one, four times."""
    params = astype(made(layer, (1, 1))[0], np.float32)
    folded = layer.fold(params)
    gain = folded.kept.gain[:, None]
    bound = 4 * EPS32 * np.abs(gain).max() * (gain.dtype.kind == "c")
    B = params["B_re"] + 1j * params["B_im"]
    w_in = folded.weights.w_in[0::2] + 1j * folded.weights.w_in[1::2]
    np.testing.assert_allclose(w_in, gain * B, rtol=0, atol=bound * np.abs(B).max())
    for w_out, suffix in zip(folded.weights.w_out, layer.directions, strict=True):
        C = layer.weight * (params["C_re" + suffix] - 1j * params["C_im" + suffix])
        np.testing.assert_array_equal(w_out[:, 0::2] + 1j * w_out[:, 1::2], C)
    rng = np.random.default_rng(1)
    dw_in, a, dw_out, skip = (normal(rng, one.shape).astype(one.dtype) for one in folded.weights)
    dparams = layer.fold_backward(params, folded, System(dw_in, a, dw_out, skip))
    dgB, dB = dw_in[0::2] + 1j * dw_in[1::2], dparams["B_re"] + 1j * dparams["B_im"]
    np.testing.assert_allclose(dB, np.conj(gain) * dgB, rtol=0, atol=bound * np.abs(dgB).max())
    if isinstance(layer, LRU) and layer.form == "log_phase":
        nu, theta = (np.exp(params[name].astype(np.float64)) for name in ("nu_log", "theta_log"))
        here = folded.weights.a
        np.testing.assert_allclose(
            here, np.exp(-nu + 1j * theta), rtol=EPS32 / 2 + 2 * EPS
        )  # each part is rounded once
        turned = np.conj(here.astype(np.complex128)) * a
        for name, by, rate in (("nu_log", -turned.real, nu), ("theta_log", turned.imag, theta)):
            assert (np.abs(dparams[name] - by * rate) <= 2.5 * EPS32 * np.abs(a) * rate).all()  # five roundings
