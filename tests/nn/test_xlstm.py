"""mLSTM and sLSTM beyond the table of cases: gates that overflow, the paper's matrix form, averages, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cases.mlstm import mlstm_loop
from cases.slstm import slstm_loop
from rotrnn import MLSTM, SLSTM
from rotrnn._cpu import SSD_CHUNK as CHUNK
from rotrnn.ops.mlstm import mlstm, mlstm_backward
from rotrnn.ops.slstm import slstm, slstm_backward

EPS, EPS32 = np.finfo(np.float64).eps, np.finfo(np.float32).eps
B, T, H, P, N = 2, CHUNK + 9, 2, 3, 4


def arguments(dtype: Any = np.float64, steps: int = T) -> dict[str, Any]:
    """Inputs of the matrix memory, without a state; keys and queries are positive."""
    rng = np.random.default_rng(0)
    args = {
        "q": rng.uniform(0.5, 1.5, (B, steps, H, N)),
        "k": rng.uniform(0.5, 1.5, (B, steps, H, N)),
        "v": rng.standard_normal((B, steps, H, P)),
        "log_i": rng.uniform(-1, 1, (B, steps, H)),
        "log_f": rng.uniform(-0.3, 0, (B, steps, H)),
    }
    return {name: one.astype(dtype) for name, one in args.items()}


def zeros() -> tuple[Any, Any, Any]:
    return np.zeros((B, H, P, N)), np.zeros((B, H, N)), np.zeros((B, H))


def named(state: tuple[Any, Any, Any]) -> dict[str, Any]:
    return dict(zip(("c0", "n0", "m0"), state, strict=True))


# --------------------------------------------------------------------------------------------------------- mLSTM


@pytest.mark.parametrize("steps", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_the_chunked_form_is_the_matrix_of_all_pairs(steps: int) -> None:
    """The parallel form of the paper's appendix, without any scaling: S = (Q K^T) * D with
    D_ts = i_s f_{s+1} .. f_t, y = S V / max(|row sums|, 1). An output is `steps` products and sums over N."""
    args = arguments(steps=steps)
    past = np.cumsum(args["log_f"], 1)
    exponent = past[:, :, None] - past[:, None] + args["log_i"][:, None]
    D = np.where(np.tril(np.ones((steps, steps), bool))[..., None], np.exp(np.minimum(exponent, 50)), 0)
    S = np.einsum("bthn,bshn->btsh", args["q"], args["k"]) * D
    expected = np.einsum("btsh,bshp->bthp", S, args["v"]) / np.maximum(np.abs(S.sum(2)), 1)[..., None]
    np.testing.assert_allclose(mlstm(**args).y, expected, rtol=0, atol=8 * (steps + N) * EPS * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_input_gates_do_not_overflow(dtype: Any) -> None:
    """Times e^3000, C and n grow alike and n . q is far above 1 with e^5 already: the quotient is the same, though
    e^3000 is infinite in either dtype. In float32 a gate of 3000 is rounded to 2^-13, so that it is e^(2^-13) off."""
    args = arguments(dtype)
    large = mlstm(**(args | {"log_i": args["log_i"] + dtype(3000)}))
    plain = mlstm(**(args | {"log_i": args["log_i"] + dtype(5)}))
    bound = 2 * 3000 * np.finfo(dtype).eps + 8 * (T + N) * np.finfo(dtype).eps
    np.testing.assert_allclose(large.y, plain.y, rtol=0, atol=bound * np.abs(plain.y).max())
    assert np.isfinite(large.cT).all()
    np.testing.assert_allclose(large.mT - plain.mT, 2995, rtol=0, atol=3000 * np.finfo(dtype).eps)


@pytest.mark.parametrize("rate", [100.0, -100.0])
def test_forget_gates_that_overflow_or_underflow(rate: float) -> None:
    """f_t = e^rate at every step is f_t = 1 with input gates e^{-rate t}, times e^{rate t} for all; where n . q is
    above 1 the quotient is the same. With e^100 each step outweighs all later ones, or all earlier ones, by e^100: y_t
    is the value v_0, or v_t, alone, times a quotient of equal numbers."""
    args = arguments() | {"log_f": np.full((B, T, H), rate)}
    args["log_i"] += 5
    alone = args["v"][:, :1] if rate > 0 else args["v"]
    np.testing.assert_allclose(mlstm(**args).y, np.broadcast_to(alone, args["v"].shape), rtol=0, atol=1e-14)


def test_infinite_gates() -> None:
    """A forget gate of 0 forgets all, an input gate of 0 takes nothing up; no NaN. They count as e^-45000, or 2^-65536,
    so that exponents of the rest of the chunk are rounded to 65536 eps."""
    args = arguments()
    args["log_f"][:, 40], args["log_i"][:, 50] = -np.inf, -np.inf
    later = {name: one[:, 40:].copy() for name, one in args.items()}
    later["log_f"][:, 0], later["log_i"][:, 10] = 0, -60  # e^-60 times a key is below rounding
    bound = 8 * 65536 * EPS * np.abs(args["v"]).max()
    np.testing.assert_allclose(mlstm(**args).y[:, 40:], mlstm(**later).y, rtol=0, atol=bound)


def test_a_query_of_zero_reads_zero() -> None:
    """0 / max(0, e^{-m}), where e^{-m} is 0 in float32: zero, and finite gradients."""
    args = arguments(np.float32)
    args["q"][:, 3] = 0
    args["log_i"] += np.float32(500)
    result = mlstm(**args)
    assert not result.y[:, 3].any()
    grads = mlstm_backward(np.ones_like(result.y), **args, result=result)
    for name in ("dk", "dv", "dlog_i", "dlog_f"):
        assert np.isfinite(getattr(grads, name)).all(), name


def test_gradients_at_large_gates_are_those_of_smaller_ones() -> None:
    """As the outputs: with n . q above 1 everything is the same at e^600 (infinite in float32's range, not in double's
    exponents of the loop) as at e^5. The logarithm 600 is rounded to 600 eps."""
    args = arguments()
    dy = np.random.default_rng(1).standard_normal(args["v"].shape)
    found = []
    for shift in (5, 3000):
        moved = args | {"log_i": args["log_i"] + shift}
        found.append(mlstm_backward(dy, **moved, result=mlstm(**moved)))
    for name, one, other in zip(found[0]._fields[:5], *(grads[:5] for grads in found), strict=True):
        bound = 4 * (3000 + 16 * T) * EPS * max(1.0, np.abs(one).max())
        np.testing.assert_allclose(other, one, rtol=0, atol=bound, err_msg=name)


def test_the_level_of_the_initial_state_is_a_scale() -> None:
    """c0 e^{-a}, n0 e^{-a} at level m0 + a is the same state: same outputs, same final state unscaled."""
    rng = np.random.default_rng(2)
    args = arguments()
    c0, n0, m0 = rng.standard_normal((B, H, P, N)), rng.uniform(0.5, 1.5, (B, H, N)), rng.standard_normal((B, H))
    one, other = mlstm(**args, c0=c0, n0=n0, m0=m0), mlstm(**args, c0=c0 * np.exp(-3), n0=n0 * np.exp(-3), m0=m0 + 3)
    np.testing.assert_allclose(other.y, one.y, rtol=0, atol=8 * (T + N) * EPS * np.abs(one.y).max())
    full = [np.exp(one.mT)[..., None] * one.nT for one in (one, other)]
    np.testing.assert_allclose(full[0], full[1], rtol=8 * (T + N) * EPS)


def test_pieces_of_a_sequence_are_the_whole_memory() -> None:
    """Cut where no chunk ends, so that the pieces' chunks are others; to roundings of each step."""
    args = arguments()
    whole, parts, state = mlstm(**args), [], zeros()
    for first, last in ((0, 17), (17, 17), (17, CHUNK + 2), (CHUNK + 2, T)):
        part = mlstm(**{name: one[:, first:last] for name, one in args.items()}, **named(state))
        parts.append(part.y)
        state = part.cT, part.nT, part.mT
    bound = 8 * (T + N) * EPS
    np.testing.assert_allclose(np.concatenate(parts, 1), whole.y, rtol=0, atol=bound * np.abs(whole.y).max())
    for got, wanted in zip(state, (whole.cT, whole.nT, whole.mT), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound * np.abs(wanted).max())


def test_no_state_is_a_state_of_zeros() -> None:
    args = arguments()
    for got, expected in zip(mlstm(**args), mlstm(**args, **named(zeros())), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_long_float32_sequence_is_that_of_the_loop_in_double() -> None:
    """Forget gates near 1 for 1000 steps: the levels' roundings would add up if the state did not follow them."""
    args = arguments(np.float32, 1000) | {"log_f": np.full((B, 1000, H), -1e-3, np.float32)}
    expected = mlstm_loop(*(one.astype(np.float64) for one in args.values()), *zeros())[0]
    np.testing.assert_allclose(mlstm(**args).y, expected, rtol=0, atol=4 * (CHUNK + N) * EPS32 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": np.ones((B, T, H))}, ValueError, r"^mlstm: q has shape .*, expected \(B, T, H, N\)"),
        ({"k": np.ones((B, T, H, N + 1))}, ValueError, "^mlstm: k has shape .*, expected .*N=4"),
        ({"v": np.ones((B, T, 1, P))}, ValueError, "v has shape .*, expected .*H=2"),
        ({"log_i": np.ones((B, 3, H))}, ValueError, "log_i has shape .*, expected .*T=73"),
        ({"log_f": np.ones((B, T, H)) * 1j}, TypeError, "log_f has dtype complex128, expected float32"),
        ({"c0": np.ones((B, H, N, P))}, ValueError, "c0 has shape .*, expected .*P=3, N=4"),
        ({"n0": np.ones((B, H))}, ValueError, "n0 has shape"),
        ({"m0": np.ones((1, H))}, ValueError, "m0 has shape .*, expected .*B=2"),
        ({"lengths": [0, T + 1]}, ValueError, rf"lengths\[1\] is {T + 1}, expected .* to T={T}"),
    ],
)
def test_bad_input_of_the_matrix_memory(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mlstm(**(arguments() | change))


def test_bad_input_of_its_adjoint() -> None:
    args = arguments()
    result = mlstm(**args)
    for change, error, message in (
        ({"result": result.y}, TypeError, "^mlstm_backward: result is an ndarray, expected an MlstmResult"),
        ({"result": result._replace(carries=result.carries[:, :1])}, ValueError, "carries has shape .*chunks=2"),
        ({"result": result._replace(levels=result.levels[0])}, ValueError, "levels has shape"),
        ({"dcT": result.nT}, ValueError, "dcT has shape"),
    ):
        with pytest.raises(error, match=message):
            mlstm_backward(**({"dy": result.y, **args, "result": result} | change))


# --------------------------------------------------------------------------------------------------------- sLSTM


def slstm_arguments(dtype: Any = np.float64, steps: int = 30) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((H, 4 * P, P)) / 2, rng.standard_normal((B, steps, 4, H, P))
    return w.astype(dtype), x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("forget", ["sigmoid", "exp"])
@pytest.mark.parametrize("shift", [3000, -3000])
def test_input_gates_far_beyond_the_exponents_range(shift: int, forget: str, dtype: Any) -> None:
    """c and n grow alike, so h = o c / n does not change when all input gates are multiplied by e^3000 or e^-3000,
    which are infinite and 0. A logarithm of 3000 is rounded to 3000 eps, by which the weights of each step are off;
    later steps read the outputs, whose errors grow some."""
    w, x = slstm_arguments(dtype)
    moved = x.copy()
    moved[:, :, 0] += dtype(shift)
    expected = slstm(w, x, forget=forget).h
    bound = 8 * (3000 + 30 * (4 * P + 24)) * np.finfo(dtype).eps
    np.testing.assert_allclose(slstm(w, moved, forget=forget).h, expected, rtol=0, atol=bound)


def test_without_recurrent_weights_it_is_a_softmax_over_the_past() -> None:
    """f = e^0 = 1: c_t / n_t is the mean of tanh(z_s), s <= t, by weights e^{i_s}, here of up to e^2000."""
    w, x = slstm_arguments()
    x[:, :, 0] *= 1000
    x[:, :, 1] = 0
    past = np.tril(np.ones((x.shape[1],) * 2, bool))[..., None, None]
    exponents = x[:, None, :, 0] - np.maximum.accumulate(x[:, :, 0], 1)[:, :, None]
    weights = np.exp(np.where(past, exponents, -np.inf))
    expected = np.einsum("btshp,bshp->bthp", weights, np.tanh(x[:, :, 2])) / weights.sum(2)
    expected /= 1 + np.exp(-x[:, :, 3])
    # exponents of 4000 are rounded to 4000 eps
    np.testing.assert_allclose(slstm(0 * w, x, forget="exp").h, expected, rtol=0, atol=4 * (4000 + 30) * EPS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3e9, 1e30, np.inf])
def test_gates_that_no_level_resolves(size: float, dtype: Any) -> None:
    """An input gate of e^size is all that counts, against a forget gate of e^-100 and an input gate of e^-size later: h
    stays s(0) tanh(1). Random gates of this size give finite outputs and gradients."""
    x = np.zeros((1, 2, 4, 1, P), dtype)
    x[:, 0, 0], x[:, 1, 0], x[:, 1, 1], x[:, :, 2] = size, -size, -100, 1
    bound = 16 * np.finfo(dtype).eps  # two functions of a few units each; a level's rounding scales c and n alike
    np.testing.assert_allclose(slstm(np.zeros((1, 4 * P, P), dtype), x).h, np.tanh(1) / 2, rtol=0, atol=bound)
    w, x = slstm_arguments(dtype)
    x[:, :, :2] = np.where(x[:, :, :2] > 0, dtype(size), -dtype(size))
    for forget in ("sigmoid", "exp"):
        result = slstm(w, x, forget=forget)
        assert np.isfinite(result.h).all()
        assert all(np.isfinite(one).all() for one in slstm_backward(np.ones_like(result.h), w, result, forget=forget))


def test_before_the_first_step_there_is_no_past() -> None:
    """n0 = 0: neither c0 nor m0 counts, and they get no gradient, even where e^{m0 - i} is infinite."""
    w, x = slstm_arguments(np.float32)
    x[:, 0, 0] = -500
    state = [np.ones((B, H, P), np.float32) for _ in range(4)]
    state[2][...] = 0
    expected, found = slstm(w, x, state[0]), slstm(w, x, *state)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    ones = np.ones_like(state[0])
    grads = slstm_backward(np.ones_like(found.h), w, found, *state, dcT=ones, dmT=ones)
    assert not any(one.any() for one in (grads.dc0, grads.dn0, grads.dm0))
    assert all(np.isfinite(one).all() for one in grads)


def test_heads_are_apart() -> None:
    """A head's outputs are those of its weights and inputs alone, to the bit."""
    w, x = slstm_arguments()
    both = slstm(w, x).h
    for head in range(H):
        np.testing.assert_array_equal(both[:, :, [head]], slstm(w[[head]], x[:, :, :, [head]]).h)


def test_a_long_float32_sequence_of_the_scalar_memory() -> None:
    """That of the loop in double, for inputs that are the same in both. Without recurrent weights, which could amplify;
    each step rounds c and n, and a forget gate near 1 keeps half of these for some 100 steps."""
    w, x = slstm_arguments(np.float32, 2000)
    x[:, :, 1] = 5
    zero = np.zeros((B, H, P))
    expected = slstm_loop(np.zeros(w.shape), x.astype(np.float64), zero, zero, zero, zero - 1e3)[0]
    np.testing.assert_allclose(slstm(0 * w, x).h, expected, rtol=0, atol=8 * 150 * EPS32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda w, x: slstm(w, x[:, :, :3]), ValueError, r"^slstm: x has shape .*, expected \(B, T, 4, H, P\)"),
        (lambda w, x: slstm(w[:, :-1], x), ValueError, r"^slstm: w has shape .*, expected \(H=2, 4P=12, P=3\)"),
        (lambda w, x: slstm(w[:1], x), ValueError, "w has shape .*, expected .*H=2"),
        (lambda w, x: slstm(w, x, np.ones((B, H))), ValueError, "h0 has shape"),
        (lambda w, x: slstm(w, x, None, None, np.ones((1, H, P))), ValueError, "n0 has shape .*B=2"),
        (
            lambda w, x: slstm(w, x, n0=np.array([0, -0.5]).repeat(H * P).reshape(B, H, P)),
            ValueError,
            r"^slstm: n0 has the number -0\.5, expected numbers of at least 0",
        ),
        (lambda w, x: slstm(w, x.astype(int)), TypeError, "x has dtype int64"),
        (lambda w, x: slstm(w, x, forget="tanh"), ValueError, "forget is 'tanh', expected one of sigmoid, exp"),
        (lambda w, x: slstm(w, x, lengths=[1, 31]), ValueError, r"lengths\[1\] is 31, expected .* to T=30"),
        (lambda w, x: slstm_backward(x[:, :, 0], w, x), TypeError, "result is an ndarray, expected an SlstmResult"),
        (lambda w, x: slstm_backward(x[:, :3, 0], w, slstm(w, x)), ValueError, "gates has shape .*T=3"),
        (
            lambda w, x: slstm_backward(x[:, :, 0], w, slstm(w, x), dmT=np.ones(3)),
            ValueError,
            "^slstm_backward: dmT has shape",
        ),
    ],
)
def test_bad_input_of_the_scalar_memory(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(*slstm_arguments())


# -------------------------------------------------------------------------------------------------------- layers


def test_initial_gates_are_the_released_ones() -> None:
    params = MLSTM(8, heads=4).init(np.random.default_rng(0))
    np.testing.assert_array_equal(params["f_bias"], np.float32([3, 4, 5, 6]))
    assert not params["i_proj"].any()
    assert not params["f_proj"].any()
    bias = SLSTM(8, 6, heads=2).init(np.random.default_rng(0))["bias"].reshape(4, 2, 3)
    np.testing.assert_allclose(bias[1], [[5, 5 - 12 * 0.5**0.3, -7]] * 2, rtol=1e-6)
    assert not bias[[0, 2, 3]].any()


def test_forget_exp_begins_with_the_same_gates() -> None:
    """exp(b) of one is s(b) of the other, in float32."""
    one, other = (MLSTM(8, heads=4, forget=forget).init(np.random.default_rng(0)) for forget in ("sigmoid", "exp"))
    np.testing.assert_allclose(np.exp(other["f_bias"]), 1 / (1 + np.exp(-one["f_bias"])), rtol=4 * EPS32)


@pytest.mark.parametrize("forget", ["sigmoid", "exp"])
def test_eigenvalues_are_the_forget_gates(forget: str) -> None:
    layer = MLSTM(4, heads=2, d_state=3, forget=forget)
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(one.shape) for name, one in layer.init(rng).items()}
    x = rng.standard_normal((2, 5, 4))
    raw = x @ params["f_proj"].T + params["f_bias"]
    expected = np.exp(raw) if forget == "exp" else 1 / (1 + np.exp(-raw))
    np.testing.assert_allclose(layer.eigenvalues(params, x), expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (MLSTM, {"heads": 3}, "heads=3, expected a divisor of expand .* d_model = 4 that leaves each head 2 channels"),
        (MLSTM, {"heads": 4}, "heads=4, expected a divisor"),
        (MLSTM, {"d_state": 0}, "d_state=0, expected a positive integer"),
        (MLSTM, {"forget": "relu"}, "forget='relu', expected one of sigmoid, exp"),
        (MLSTM, {"norm_eps": 0.0}, "norm_eps=0.0, expected a positive number"),
        (MLSTM, {"bias": 1}, "bias=1, expected True or False"),
        (
            SLSTM,
            {"d_state": 6, "heads": 4},
            "heads=4, expected a divisor of d_state=6 that leaves each head 2 channels",
        ),
        (SLSTM, {"d_state": 6, "heads": 6}, "heads=6, expected a divisor"),
        (SLSTM, {"d_state": 6, "forget": "relu"}, "forget='relu', expected one of sigmoid, exp"),
        (SLSTM, {"d_state": 6, "norm_eps": -1.0}, "norm_eps=-1.0, expected a positive number"),
    ],
)
def test_bad_settings_of_xlstm(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}: {message}"):
        kind(4, **settings)
