"""Properties of selective layers and their ops that the table of cases does not test: known answers, norms, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.layer import Context, Recurrent, astype
from rotrnn.nn.layers.delta_net import DeltaNet
from rotrnn.nn.layers.fpmamba import FPMamba
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.mamba2 import Mamba2
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.layers.selective_rotrnn import SelectiveRotRNN
from rotrnn.nn.program import ProgramSaved
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.pointwise import softplus
from rotrnn.ops.scan import diagonal_scan
from rotrnn.ops.selective import selective_scan, selective_scan_backward

EPS = np.finfo(np.float64).eps
B, T, D, S = 2, 70, 5, 3


def arguments(dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    n = rng.standard_normal
    args = {"x": n((B, T, D)), "delta": rng.uniform(0, 0.4, (B, T, D)), "A": rng.uniform(-2, 0, (D, S))}
    args |= {"B": n((B, T, S)), "C": n((B, T, S)), "skip": n(D), "h0": n((B, D, S))}
    return {name: value.astype(dtype) for name, value in args.items()}


# ---------------------------------------------------------------------------------------------------------- scan


def test_constant_step_and_one_direction_are_the_diagonal_scan() -> None:
    """S = 1, B = C = 1: h_t = e^{delta A} h_{t-1} + delta x_t in each channel; to a few roundings of each step."""
    args = arguments()
    delta, A = 0.3, args["A"][:, :1]
    ones = np.ones((B, T, 1))
    y, hT = selective_scan(
        args["x"], np.full((B, T, D), delta), A, ones, ones, h0=args["h0"][:, :, :1], return_state=True
    )
    a, h0 = np.exp(delta * A[:, 0]), args["h0"][:, :, 0]
    h, last = diagonal_scan(a, delta * args["x"], h0, return_state=True)
    np.testing.assert_allclose(y, h, rtol=0, atol=8 * T * EPS * np.abs(h).max())
    np.testing.assert_allclose(hT[..., 0], last, rtol=0, atol=8 * T * EPS * np.abs(h).max())


def test_no_rate_is_a_cumulative_sum() -> None:
    """A = 0, delta = B = C = 1, of small integers: exact, whichever way time runs."""
    x = np.random.default_rng(0).integers(-9, 10, (B, T, D)).astype(np.float32)
    ones = np.ones((B, T, 1), np.float32)
    arrays = (np.ones_like(x), np.zeros((D, 1), np.float32), ones, ones)
    np.testing.assert_array_equal(selective_scan(x, *arrays), np.cumsum(x, 1))
    np.testing.assert_array_equal(selective_scan(x, *arrays, reverse=True), np.cumsum(x[:, ::-1], 1)[:, ::-1])


def test_a_negative_infinite_rate_forgets() -> None:
    """e^{-inf} = 0: y_t = delta_t x_t (B_t . C_t), no NaN."""
    args = arguments() | {"A": np.full((D, S), -np.inf), "skip": None, "h0": None, "delta": np.full((B, T, D), 0.5)}
    expected = 0.5 * args["x"] * np.sum(args["B"] * args["C"], -1, keepdims=True)
    np.testing.assert_allclose(selective_scan(**args), expected, rtol=0, atol=4 * S * EPS * np.abs(expected).max())


def test_growth_overflows_only_where_the_value_does() -> None:
    """e^{88} three times over is beyond float32; once, it is not."""
    x, ones = np.array([[[1.0], [0.0], [0.0]]], np.float32), np.ones((1, 3, 1), np.float32)
    y = selective_scan(x, ones, np.array([[88.0]], np.float32), ones, ones)[0, :, 0]
    assert y[0] == 1
    # the rate's rounding, 88 eps / 2, is the exponential's
    np.testing.assert_allclose(y[1], np.exp(88.0), rtol=64 * np.finfo(np.float32).eps)
    assert np.isposinf(y[2])


def test_state_passes_through_where_there_are_no_steps() -> None:
    args = arguments()
    y, hT = selective_scan(**args, lengths=[0, T], return_state=True)
    np.testing.assert_array_equal(hT[0], args["h0"][0])
    dhT = np.random.default_rng(1).standard_normal((B, D, S))
    grads = selective_scan_backward(np.ones_like(y), **args, dhT=dhT, lengths=[0, T])
    np.testing.assert_array_equal(grads.dh0[0], dhT[0])


def test_carries_save_a_second_run_and_do_not_change_results() -> None:
    args = arguments(np.float32)
    y, carries = selective_scan(**args, return_carries=True)
    np.testing.assert_array_equal(y, selective_scan(**args))
    assert carries.shape == (B, 3, S, D)
    np.testing.assert_array_equal(carries[:, 0], args["h0"].swapaxes(1, 2))
    _, h = selective_scan(
        **{k: v[:, :64] if k in ("x", "delta", "B", "C") else v for k, v in args.items()}, return_state=True
    )
    np.testing.assert_array_equal(carries[:, 2], h.swapaxes(1, 2))
    for got, expected in zip(
        selective_scan_backward(y, **args, carries=carries), selective_scan_backward(y, **args), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_skip_is_optional() -> None:
    args = arguments() | {"skip": None}
    y = selective_scan(**args)
    np.testing.assert_array_equal(y, selective_scan(**(args | {"skip": np.zeros(D)})))
    assert selective_scan_backward(y, **args).dskip is None


def test_dtypes_are_promoted() -> None:
    args = arguments(np.float32)
    assert selective_scan(**args).dtype == np.float32
    assert selective_scan(**(args | {"A": args["A"].astype(np.float64)})).dtype == np.float64


def test_convolution_of_an_impulse_is_its_taps() -> None:
    x = np.zeros((1, 6, 2))
    x[0, 1] = 1
    w = np.arange(1.0, 7).reshape(2, 3)
    y, final = causal_conv(x, w, return_state=True)
    np.testing.assert_array_equal(y[0, :, 0], [0, 3, 2, 1, 0, 0])  # the last tap meets the present
    np.testing.assert_array_equal(final, x[:, 4:])
    np.testing.assert_array_equal(causal_conv(x[:, 2:], w, state=x[:, :2]), y[:, 2:])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda a: selective_scan(**(a | {"delta": a["delta"][:, :3]})),
            ValueError,
            "delta has shape .*, expected .B=2",
        ),
        (lambda a: selective_scan(**(a | {"C": a["C"][..., :1]})), ValueError, "C has shape .*, expected .*S=3"),
        (lambda a: selective_scan(**(a | {"A": a["A"] * 1j})), TypeError, "A has dtype complex128, expected float32"),
        (lambda a: selective_scan(**a, lengths=[0, 71]), ValueError, r"lengths\[1\] is 71, expected .* to T=70"),
        (
            lambda a: selective_scan_backward(a["x"], **a, carries=np.ones((B, 2, S, D))),
            ValueError,
            "carries has shape",
        ),
        (lambda a: causal_conv(a["x"], np.ones((D, 0))), ValueError, "w has shape .5, 0., expected .D, K. with K"),
        (lambda a: causal_conv(a["x"], np.ones((D, 4)), state=a["x"]), ValueError, "state has shape .*K-1=3"),
        (lambda a: causal_conv_backward(a["x"][:1], a["x"], np.ones((D, 4))), ValueError, "x has shape .*B=1"),
    ],
)
def test_bad_input_of_ops(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(arguments())


# --------------------------------------------------------------------------------------------------------- Mamba


def test_initial_step_sizes_and_rates_are_the_published_ones() -> None:
    """Delta at d = 0 log-uniform on [dt_min, dt_max]; A = -(1..S). float32 holds softplus's inverse to 1e-5 of dt."""
    layer = Mamba(64, d_state=4, dt_min=0.002, dt_max=0.05)
    params = layer.init(np.random.default_rng(0))
    dt = softplus(params["dt_bias"])
    assert 0.002 * (1 - 1e-4) <= dt.min() < 0.003
    assert 0.04 < dt.max() <= 0.05 * (1 + 1e-4)
    A = layer.registers(params, np.zeros((1, 1, layer.d_model)))["A"]
    np.testing.assert_allclose(A, -np.tile([1.0, 2, 3, 4], (128, 1)), rtol=1e-6)
    assert Mamba(64).rank == 4
    assert Mamba(65).rank == 5
    assert np.all(Mamba(64, dt_min=1e-6, dt_max=1e-6).init(np.random.default_rng(0))["dt_bias"] < np.log(2e-4))


def test_parameter_count_is_the_released_models() -> None:
    """mamba-130m has 129,135,360: 24 layers of width 768, each with a norm's scale, an embedding of 50,280 tokens that
    is the head too, and the last norm's scale."""
    count = sum(value.size for value in Mamba(768).init(np.random.default_rng(0)).values())
    assert 24 * (count + 768) + 50_280 * 768 + 768 == 129_135_360


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_state": 0}, "d_state=0, expected a positive integer"),
        ({"d_conv": -1}, "d_conv=-1, expected an integer from 0"),
        ({"dt_rank": 0}, "dt_rank=0, expected a positive integer"),
        ({"dt_rank": "all"}, "dt_rank='all', expected a positive integer or 'auto'"),
        ({"dt_min": 0.0}, "dt_min=0.0, dt_max=0.1, expected 0 < dt_min <= dt_max"),
        ({"dt_init": "zero"}, "dt_init='zero', expected one of random, constant"),
        ({"dt_scale": -1.0}, "dt_scale=-1.0, expected a positive number"),
        ({"bias": 1}, "bias=1, expected True or False"),
        ({"norm_eps": 0.0}, "norm_eps=0.0, expected a positive number"),
    ],
)
def test_bad_settings_of_mamba(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Mamba: {message}"):
        Mamba(4, **settings)


# --------------------------------------------------------------------------------------------- selective rotations


def every_white_sequence(steps: int) -> Any:
    """All sequences of +-sqrt(2) e_1, +-sqrt(2) e_2: drawn with equal chance, steps are independent, of zero mean and
    unit covariance, so means over this batch are expectations."""
    atoms = np.sqrt(2) * np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    return atoms[np.array(list(itertools.product(range(4), repeat=steps)))]


def expected_squares(layer: SelectiveRotRNN, start: bool) -> tuple[Any, Any, ProgramSaved]:
    """(E|x_t|^2 (T, H), gamma (H,), what forward saved) for white input, from zero or from +-h0 with |h0| = 1."""
    params = astype(layer.init(np.random.default_rng(3)), np.float64)
    u = every_white_sequence(5)
    state = None
    if start:
        h0 = np.random.default_rng(4).standard_normal(layer.d_state).view(np.complex128).reshape(layer.heads, -1)
        h0 = (h0 / np.linalg.norm(h0, axis=1, keepdims=True)).ravel()
        u = np.concatenate([u, u])
        state = np.repeat([h0, -h0], len(u) // 2, axis=0)
    _, saved = layer.forward(params, u, state=state)
    h = layer.hidden_states(saved)
    squares = h.reshape(*h.shape[:2], layer.heads, -1) ** 2
    return squares.sum(-1).mean(0), np.exp(-np.exp(params["gamma_log"])), saved


SELECTIVE = {"d_model": 2, "d_state": 8, "heads": 2, "selectivity": 2.0, "gamma_init": (0.6, 0.8)}
"""Settings with which the input changes angles by whole turns."""


def test_angles_from_the_input_keep_the_norm() -> None:
    """E|x_t|^2 = 1 exactly, though R(theta_t) depends on u_t; from zero, 1 - gamma^(2t), t from 1. To rounding of means
    over thousands of numbers near one."""
    layer = SelectiveRotRNN(**SELECTIVE)
    squares, _, saved = expected_squares(layer, start=True)
    np.testing.assert_allclose(squares, 1, rtol=0, atol=1e-12)
    assert layer.report(saved)["state_norm"] == pytest.approx(1, abs=1e-12)
    squares, gamma, _ = expected_squares(layer, start=False)
    np.testing.assert_allclose(squares, 1 - gamma ** (2 * np.arange(1, 6)[:, None]), rtol=0, atol=1e-12)


def test_norms_with_decays_from_the_input_are_reported_but_not_guaranteed() -> None:
    layer = SelectiveRotRNN(**SELECTIVE, gamma="input")
    squares, _, saved = expected_squares(layer, start=True)
    norm = layer.report(saved)["state_norm"]
    assert norm == pytest.approx(np.sqrt(squares.mean()), abs=1e-12)
    assert abs(norm - 1) > 1e-3


def test_report_counts_only_valid_steps() -> None:
    layer = SelectiveRotRNN(3, 4)
    params = layer.init(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((2, 6, 3))
    _, short = layer.forward(params, x[:1, :4])
    x[0, 4:] = np.nan
    _, ragged = layer.forward(params, x, Context(lengths=np.array([4, 0])))
    assert layer.report(ragged)["state_norm"] == pytest.approx(layer.report(short)["state_norm"], rel=1e-6)
    _, none = layer.forward(params, x, Context(lengths=np.array([0, 0])))
    assert layer.report(none) == {}


@pytest.mark.parametrize("gamma", ["constant", "input"])
def test_without_selectivity_it_is_rotrnn(gamma: str) -> None:
    """W = 0: the same function of the same parameters, and the same gradients, to rounding."""
    layer = SelectiveRotRNN(4, 10, heads=2, gamma=gamma, selectivity=0.0)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    base = RotRNN(4, 10, heads=2)
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((2, 2, 20, 4))
    y, saved = layer.forward(params, x, Context(train=True))
    own = {name: params[name] for name in base.shapes}
    y_base, saved_base = base.forward(own, x)
    np.testing.assert_allclose(y, y_base, rtol=0, atol=1e-12)
    dx, dparams, _ = layer.backward(params, saved, dy)
    dx_base, dparams_base, _ = base.backward(own, saved_base, dy)
    np.testing.assert_allclose(dx, dx_base, rtol=0, atol=1e-12)
    for name in ("theta", "M", "B", "C", "D") + (("gamma_log",) if gamma != "input" else ()):
        np.testing.assert_allclose(dparams[name], dparams_base[name], rtol=0, atol=1e-10)


def test_decays_far_out_of_range_leave_finite_gradients() -> None:
    """gamma_t that rounds to 0 or to 1."""
    layer = SelectiveRotRNN(2, 4, gamma="input")
    params = layer.init(np.random.default_rng(0))
    params["W_gamma"] = np.array([[200.0, 0.0]], np.float32)
    x = np.array([[[1.0, 1], [-1, 1], [0, 1], [1, 0], [-1, 0]]], np.float32)
    y, saved = layer.forward(params, x)
    dx, dparams, dstate = layer.backward(params, saved, np.ones_like(y))
    for value in (y, dx, dstate, *dparams.values()):
        assert np.isfinite(value).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "RotRNN: d_state=8 and heads=3, expected a multiple of heads"),
        ({"gamma": "both"}, "SelectiveRotRNN: gamma='both', expected one of constant, input"),
        ({"selectivity": -1.0}, "SelectiveRotRNN: selectivity=-1.0, expected a nonnegative number"),
        ({"gamma_init": (0.5, 1.0)}, "RotRNN: gamma_init="),
    ],
)
def test_bad_settings_of_selective_rotrnn(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelectiveRotRNN(4, 8, **settings)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decays_are_told_from_the_input_alone_where_their_median_is_zero(dtype: type) -> None:
    """gamma = exp(-e^8) rounds to 0 and is no factor of gamma_t, which is the same for gamma_log + e however it is cut.
    The sums are exact, so results differ by roundings in the gain alone."""
    layer = SelectiveRotRNN(2, 5, gamma="input")
    params = astype(layer.init(np.random.default_rng(0)), dtype)
    x = np.random.default_rng(1).standard_normal((2, 9, 2)).astype(dtype)
    x[..., 0] = 1
    results = []
    for shift in (8.0, 0.0):
        params["gamma_log"], params["W_gamma"] = np.array([shift - 1], dtype), np.array([[-shift, 0]], dtype)
        y, saved = layer.forward(params, x)
        dx, dparams, dstate = layer.backward(params, saved, np.ones_like(y))
        results.append([y, saved.state, dx[..., 1], dstate, *dparams.values()])
    for far, near in zip(*results, strict=True):
        np.testing.assert_allclose(far, near, rtol=0, atol=200 * np.finfo(dtype).eps * np.abs(near).max())


@pytest.mark.parametrize(
    "layer",
    [Mamba(4, d_state=3), Mamba2(4, d_state=3), DeltaNet(4, gate=True), FPMamba(4, 3), FPMamba(4, 3, d_head=2)],
    ids=repr,
)
def test_rates_beyond_float32_forget_at_once(layer: Recurrent) -> None:
    """exp(89) overflows, and times a gradient of zero it would be NaN."""
    rng = np.random.default_rng(0)
    params = layer.init(rng)
    x = rng.standard_normal((1, 9, 4)).astype(np.float32)
    params["A_log"][:] = 70
    expected, _ = layer.forward(params, x)
    params["A_log"][:] = 89
    y, saved = layer.forward(params, x)
    np.testing.assert_array_equal(y, expected)
    dx, dparams, _ = layer.backward(params, saved, np.ones_like(y))
    assert all(np.isfinite(one).all() for one in (dx, *dparams.values()))


@pytest.mark.parametrize("gamma", ["constant", "input"])
def test_gradients_of_single_parameters_are_those_of_a_double_input(gamma: str) -> None:
    """All have the wider dtype; in the narrower one, half of a gradient's digits would be lost."""
    layer = SelectiveRotRNN(4, 6, gamma=gamma)
    params = layer.init(np.random.default_rng(0))
    _, saved = layer.forward(params, np.random.default_rng(1).standard_normal((2, 5, 4)), Context(train=True))
    _, grads, _ = layer.backward(params, saved, np.ones((2, 5, 4)))
    assert {name: grad.dtype.name for name, grad in grads.items()} == dict.fromkeys(params, "float64")
