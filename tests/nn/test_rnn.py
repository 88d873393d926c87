"""Dense recurrences, LSTM and attention: known answers, special properties, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rotrnn.nn.layer import Context, Recurrent, astype, flatten_state
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from rotrnn.nn.layers.gru import GRU
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.lstm import LSTM
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.layers.rg_lru import RGLRU
from rotrnn.nn.layers.rnn import RNN
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.layers.s5 import S5
from rotrnn.nn.layers.selective_rotrnn import SelectiveRotRNN
from rotrnn.ops import (
    attention,
    attention_backward,
    diagonal_scan,
    diagonal_scan_backward,
    gru,
    lstm,
    rnn,
    rnn_backward,
    rotary,
    rotary_backward,
)

EPS = np.finfo(np.float64).eps


def float64_params(layer: Recurrent, seed: int = 0) -> Any:
    return astype(layer.init(np.random.default_rng(seed)), np.float64)


# ------------------------------------------------------------------------------------------------ dense recurrence


@pytest.mark.parametrize("reverse", [False, True])
def test_a_diagonal_transition_is_the_diagonal_scan(reverse: bool) -> None:
    rng = np.random.default_rng(0)
    B, T, N = 3, 50, 7
    a, x, h0 = rng.choice([-1.0, 1.0], N), rng.standard_normal((B, T, N)), rng.standard_normal((B, N))
    dh, dhT = rng.standard_normal((B, T, N)), rng.standard_normal((B, N))
    lengths = (50, 0, 31)
    how: Any = {"reverse": reverse, "lengths": lengths}
    h, hT = rnn(np.diag(a), x, h0, **how)
    expected = diagonal_scan(a, x, h0, return_state=True, **how)
    for got, want in zip((h, hT), expected, strict=True):
        np.testing.assert_array_equal(got, want)  # every other product is with 0: the sums are the same
    grads = rnn_backward(dh, np.diag(a), h, h0, dhT=dhT, **how)
    scan = diagonal_scan_backward(dh, a, h, h0, dhT=dhT, **how)
    np.testing.assert_array_equal(grads.dx, scan.dx)
    np.testing.assert_array_equal(grads.dh0, scan.dh0)
    # da sums up to B T products of numbers below `size`, in two orders
    size = np.abs(grads.dx).max() * max(np.abs(h).max(), np.abs(h0).max())
    np.testing.assert_allclose(np.diag(grads.dA), scan.da, rtol=0, atol=2 * (B * T) ** 2 * EPS * size)


def test_an_orthogonal_transition_keeps_the_norm() -> None:
    """|A h| = |h|: each of T steps rounds N products a lane."""
    layer = RNN(3, 20, initialisation="orthogonal")
    A = np.linalg.qr(float64_params(layer)["A"])[0]  # float32's rounding of it set right
    h0 = np.random.default_rng(1).standard_normal((2, 20))
    T = 2000
    _, hT = rnn(A, np.zeros((2, T, 20)), h0)
    np.testing.assert_allclose(np.linalg.norm(hT, axis=1), np.linalg.norm(h0, axis=1), rtol=20 * T * EPS)


def test_relu_hides_no_nan() -> None:
    x = np.ones((1, 3, 2))
    x[0, 1, 0] = np.nan
    h, _ = rnn(np.eye(2), x, activation="relu")
    np.testing.assert_array_equal(np.isnan(h[0]), [[False, False], [True, False], [True, True]])


@pytest.mark.parametrize("op", ["rnn", "lstm", "attention"])
def test_a_sequence_is_the_same_bits_in_any_batch(op: str) -> None:
    rng = np.random.default_rng(0)
    B, T, N = 9, 70, 21
    lengths = np.array([70, 3, 70, 0, 69, 12, 65, 1, 40])

    def run(one: slice) -> tuple[Any, ...]:
        if op == "rnn":
            return rnn(A, x[one], activation="tanh", lengths=lengths[one])
        if op == "lstm":
            return lstm(w, z[one], lengths=lengths[one])
        return attention(x[one], k[one], v[one], heads=3, lengths=lengths[one], past=past[one])

    A, w = rng.standard_normal((N, N)) / N**0.5, rng.standard_normal((4 * N, N)) / N**0.5
    x, z = rng.standard_normal((B, T, N)), rng.standard_normal((B, T, 4 * N))
    k, v = rng.standard_normal((2, B, T + 9, N))
    past = np.arange(B)
    together = run(slice(None))
    for b in range(B):
        for whole, alone in zip(together, run(slice(b, b + 1)), strict=True):
            np.testing.assert_array_equal(whole[b : b + 1], alone)


@pytest.mark.slow
def test_glorot_fills_the_disc_and_orthogonal_the_circle() -> None:
    """Theorem 3.1, at N = 400. The count in half the radius r has a standard deviation of some sqrt(2 r sqrt(N / pi)) =
    3.4 (twice a complex Ginibre matrix's variance: eigenvalues come in pairs), the radius of some sqrt(log N / 4N)."""
    N = 400
    moduli = np.abs(RNN(2, N).eigenvalues(RNN(2, N).init(np.random.default_rng(0))))
    assert abs((moduli < 0.5).sum() - N / 4) < 5 * 3.4
    assert abs(moduli.max() - 1) < 3 * 0.06
    layer = RNN(2, 50, initialisation="orthogonal")
    moduli = np.abs(layer.eigenvalues(layer.init(np.random.default_rng(0))))
    np.testing.assert_allclose(moduli, 1, rtol=0, atol=50 * np.finfo(np.float32).eps)
    layer = RNN(2, 5, activation="relu", initialisation="identity")
    np.testing.assert_array_equal(layer.init(np.random.default_rng(0))["A"], np.eye(5))


# ----------------------------------------------------------------------------------------------------------- LSTM


def test_lstm_is_pytorchs() -> None:
    """What torch.nn.LSTM(3, 2) of PyTorch 2.13 gives in float64, its two biases summed."""

    def fill(*shape: int, start: float) -> Any:
        return np.sin(np.arange(np.prod(shape)) + start).reshape(shape)

    params = {
        "weight_ih": fill(8, 3, start=0),
        "weight_hh": fill(8, 2, start=100),
        "bias": fill(8, start=200) + fill(8, start=300),
        "C": np.eye(3, 2),
    }
    state = fill(1, 2, start=500), fill(1, 2, start=600)
    y, saved = LSTM(3, 2).forward(params, fill(1, 2, 3, start=400), state=state)
    h = [[0.004902192690624978, -0.03141522416396287], [0.026752639981243054, -0.21673808502740233]]
    # a dozen operations a step on numbers below 4
    np.testing.assert_allclose(y[0, :, :2], h, rtol=0, atol=100 * EPS)
    np.testing.assert_allclose(saved.state[1], [[0.2560277220698224, -0.7964319447611817]], rtol=0, atol=100 * EPS)


def test_gru_is_pytorchs() -> None:
    """What torch.nn.GRU(3, 2) of PyTorch 2.13 gives in float64."""

    def fill(*shape: int, start: float) -> Any:
        return np.sin(np.arange(np.prod(shape)) + start).reshape(shape)

    params = {
        "weight_ih": fill(6, 3, start=0),
        "weight_hh": fill(6, 2, start=100),
        "bias_ih": fill(6, start=200),
        "bias_hh": fill(6, start=300),
        "C": np.eye(3, 2),
    }
    y, saved = GRU(3, 2).forward(params, fill(1, 2, 3, start=400), state=fill(1, 2, start=500))
    h = [[-0.38630254598778446, -0.963445036978301], [-0.35070792401888123, -0.9005897121587492]]
    np.testing.assert_allclose(y[0, :, :2], h, rtol=0, atol=100 * EPS)  # a dozen operations on numbers below 4
    np.testing.assert_allclose(saved.state, h[1:], rtol=0, atol=100 * EPS)


def test_an_update_gate_that_is_one_keeps_the_bits_of_a_state() -> None:
    """At 50 the sigmoid is 1 to the last bit."""
    rng = np.random.default_rng(0)
    h0, x = rng.standard_normal((2, 3)), rng.standard_normal((2, 500, 9))
    x[..., 3:6] = 50
    result = gru(np.zeros((9, 3)), x, np.zeros(9), h0)
    np.testing.assert_array_equal(result.hT, h0)


def test_a_cell_that_forgets_nothing_and_takes_nothing_in_keeps_its_bits() -> None:
    """At gates of 50 the sigmoid is 1 to the last bit, at -800 it is 0."""
    rng = np.random.default_rng(0)
    c0 = rng.standard_normal((2, 3))
    z = rng.standard_normal((2, 500, 12))
    z[..., :3], z[..., 3:6] = -800, 50
    result = lstm(np.zeros((12, 3)), z, None, c0)
    np.testing.assert_array_equal(result.cT, c0)


def test_lstm_initial_values() -> None:
    params = LSTM(3, 16, forget_bias=2.5).init(np.random.default_rng(0))
    np.testing.assert_array_equal(params["bias"].reshape(4, 16), np.outer([0, 2.5, 0, 0], np.ones(16)))
    for name in ("weight_ih", "weight_hh"):
        assert 0.24 < np.abs(params[name]).max() <= 0.25
    assert LSTM(4, 4, projection=False).shapes.keys() == {"weight_ih", "weight_hh", "bias"}


# ------------------------------------------------------------------------------------------------------ attention


def test_equal_keys_give_the_running_mean() -> None:
    """Beyond one tile of keys, from a past, and over a window."""
    rng = np.random.default_rng(0)
    T, S = 150, 200
    v = rng.standard_normal((1, S, 2))
    q, k = rng.standard_normal((1, T, 2)), np.ones((1, S, 2))
    for window in (None, 30, 100):
        y, norm = attention(q, k, v, heads=1, past=[S - T], window=window)
        for t in (0, 1, 63, 64, 100, T - 1):
            place = S - T + t
            seen = slice(0 if window is None else max(0, place + 1 - window), place + 1)
            # sums of equal weights in two orders
            np.testing.assert_allclose(y[0, t], v[0, seen].mean(0), rtol=0, atol=8 * S * EPS)
            count = seen.stop - seen.start
            score = q[0, t].sum() / np.sqrt(2)
            np.testing.assert_allclose(norm[0, 0, t], score + np.log(count), rtol=0, atol=8 * S * EPS)


def test_huge_scores_do_not_overflow() -> None:
    """The largest score gets all of the weight, although e^score overflows."""
    q, k = np.full((1, 3, 1), 1e3), np.array([[[1.0], [3.0], [2.0]]])
    v = np.array([[[5.0], [7.0], [11.0]]])
    y, norm = attention(q, k, v, heads=1)
    np.testing.assert_array_equal(y[0, :, 0], [5, 7, 7])
    np.testing.assert_array_equal(norm[0, 0], [1e3, 3e3, 3e3])
    y, _ = attention(-q, k, v, heads=1)
    np.testing.assert_array_equal(y[0, :, 0], [5, 5, 5])


def test_attention_does_not_store_scores() -> None:
    """At T = 30,000 they would be 3.6 GB a head, with a window of 8 nothing is to do."""
    q = np.random.default_rng(0).standard_normal((1, 30_000, 4)).astype(np.float32)
    y, norm = attention(q, q, q, heads=1, window=8)
    dq, _, _ = attention_backward(y, q, q, q, y, norm, heads=1, window=8)
    part, _ = attention(q[:, -100:], q[:, -107:], q[:, -107:], heads=1, past=[7], window=8)
    np.testing.assert_allclose(y[:, -50:], part[:, -50:], rtol=0, atol=100 * np.finfo(np.float32).eps)
    assert np.isfinite(dq).all()


def test_rotary_turns_back_and_knows_differences_alone() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 8))
    # angles are of places' own precision: 1e6 eps
    close: Any = {"rtol": 0, "atol": 64 * 1e6 * EPS}
    there = rotary(q, heads=2, past=[1_000_000])
    np.testing.assert_allclose(rotary_backward(there, heads=2, past=[1_000_000]), q, **close)
    np.testing.assert_allclose(np.linalg.norm(there), np.linalg.norm(q), **close)
    np.testing.assert_array_equal(rotary(q, heads=2), q)
    product = [(rotary(q, heads=1, past=[5 + far]) * rotary(k, heads=1, past=[far])).sum() for far in (0, 999_995)]
    np.testing.assert_allclose(product[0], product[1], **close)
    # the fastest plane turns by 1 a step, counter-clockwise; the next by base^(-1/2)
    one = rotary(np.array([[[1.0, 0, 1, 0]]]), heads=1, past=[1], base=100.0)
    np.testing.assert_allclose(one[0, 0], [np.cos(1), np.sin(1), np.cos(0.1), np.sin(0.1)], rtol=0, atol=4 * EPS)


@pytest.mark.parametrize("window", [None, 1, 4])
def test_a_state_grows_by_a_row_a_step_or_has_those_of_the_window(window: int | None) -> None:
    layer = Attention(4, heads=2, window=window)
    params = layer.init(np.random.default_rng(0))
    state = None
    for t in range(1, 8):
        _, state = layer.step(params, state, np.ones((3, 4), np.float32))
        rows = t if window is None else window - 1
        assert state[0].shape == state[1].shape == (3, rows, 4)
        assert state[0].dtype == np.float32
        assert state[0].any(-1).sum(1).tolist() == [min(t, rows)] * 3
        np.testing.assert_array_equal(state[2], [t] * 3)


# --------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    "layer",
    [
        RNN(4, 3, activation="tanh"),
        LSTM(4, 3),
        Attention(4, heads=2),
        Attention(4, heads=1, window=3),
        Attention(4, heads=2, window=3, kv_heads=1),
        Attention(4, heads=1, rotary=False, bias=True, window=1),
    ],
    ids=lambda layer: f"{type(layer).__name__} {getattr(layer, 'window', '')}",
)
def test_ragged_chunks_are_each_sequence_on_its_own(layer: Recurrent) -> None:
    """Sequences that end a chunk at different steps go on from there, in the next chunk and in the gradient."""
    rng = np.random.default_rng(0)
    params = float64_params(layer)
    chunks = [np.array([5, 0, 3]), np.array([2, 4, 0]), np.array([1, 6, 6])]
    x, dy = ([rng.standard_normal((3, count.max() + 1, 4)) for count in chunks] for _ in range(2))
    y, saved, state = [], [], None
    for one, count in zip(x, chunks, strict=True):
        y_one, saved_one = layer.forward(params, one, Context(lengths=count), state)
        y.append(y_one)
        saved.append(saved_one)
        state = saved_one.state
    dx, dparams, dstate = [], [], None
    for one, saved_one in zip(reversed(dy), reversed(saved), strict=True):
        dx_one, dparams_one, dstate = layer.backward(params, saved_one, one, dstate)
        dx.insert(0, dx_one)
        dparams.append(dparams_one)

    def joined(parts: Any, b: int) -> Any:
        return np.concatenate([part[b : b + 1, : count[b]] for part, count in zip(parts, chunks, strict=True)], 1)

    alone = {name: np.zeros_like(value) for name, value in params.items()}
    # some hundred operations, in other orders, on numbers of size 10
    close: Any = {"rtol": 0, "atol": 1e4 * EPS}
    for b in range(3):
        whole, kept = layer.forward(params, joined(x, b))
        np.testing.assert_allclose(joined(y, b), whole, **close)
        for (_, got), (_, want) in zip(flatten_state(state), flatten_state(kept.state), strict=True):
            rows = want.shape[1] if want.ndim == 3 else None
            np.testing.assert_allclose(got[b] if rows is None else got[b, :rows], want[0], **close)
        dwhole, ones, _ = layer.backward(params, kept, joined(dy, b))
        np.testing.assert_allclose(joined(dx, b), dwhole, **close)
        for name in alone:
            alone[name] += ones[name]
    for name in alone:
        np.testing.assert_allclose(sum(part[name] for part in dparams), alone[name], **close)


def test_short_chunks_in_long_arrays_do_not_widen_the_cache() -> None:
    layer = Attention(4)
    params = layer.init(np.random.default_rng(0))
    state: Any = None
    for _ in range(5):
        rows = 0 if state is None else state[0].shape[1]
        saved = layer.forward(params, np.ones((2, 20, 4), np.float32), Context(lengths=np.array([1, 3])), state)[1]
        state = saved.state
        _, _, dstate = layer.backward(params, saved, np.ones((2, 20, 4), np.float32), state)
        assert [one.shape[:2] for one in dstate[:2]] == [(2, rows)] * 2
    assert [one.shape for one in state] == [(2, 15, 4), (2, 15, 4), (2,)]


def test_norms_of_states() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    for layer in (RNN(3, 4), LSTM(3, 4)):
        _, saved = layer.forward(float64_params(layer), x)
        norms = layer.state_norms(saved)
        assert norms is not None
        last = saved.state[0] if isinstance(saved.state, tuple) else saved.state
        np.testing.assert_allclose(norms[:, -1], np.linalg.norm(last, axis=1), rtol=4 * EPS)


def test_sizes_of_the_vectors_whose_norms_are_taken() -> None:
    """Reals in h_t, also where the state is more than h_t: an LSTM's cells, a window's past."""
    sizes = {
        RNN(3, 4): 4,
        LSTM(4, 4): 4,
        LRU(3, 4): 8,
        LRU(3, 4, window=5): 8,
        S5(3, 4): 4,  # one of two conjugate states is kept
        S5(3, 4, conjugate=False): 8,
        RotRNN(4, 8, heads=2): 8,
        SelectiveRotRNN(4, 8, heads=2): 8,
        MinGRU(3, 4): 4,
        RGLRU(4, heads=2): 4,
        FixedPointRNN(3, 4): 4,
        Bidirectional(4, LSTM(4, 4)): 4,
    }
    assert {layer: layer.state_size for layer in sizes} == sizes


# ------------------------------------------------------------------------------------------------------ bad input

X = np.zeros((2, 3, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RNN(4, 2, activation="sigmoid"), "RNN: activation='sigmoid', expected one of identity, tanh, relu"),
        (lambda: RNN(4, 2, initialisation="zero"), "RNN: initialisation='zero', expected one of glorot, ortho"),
        (lambda: RNN(4, True), "RNN: d_state=True, expected an integer"),
        (lambda: LSTM(4, 2, projection=False), "LSTM: d_state=2, expected d_model=4, or projection=True"),
        (lambda: GRU(4, 2, projection=False), "GRU: d_state=2, expected d_model=4, or projection=True"),
        (lambda: LSTM(4, 2, forget_bias=np.nan), "LSTM: forget_bias=nan, expected a finite number"),
        (lambda: Attention(4, heads=3), "Attention: heads=3, expected a divisor of d_model=4"),
        (lambda: Attention(6, heads=2), "Attention: heads=2 of width 3, expected an even one"),
        (
            lambda: Attention(6, rotary="half"),
            "Attention: heads=1 of width 6, expected a multiple of 4 for rotary='half'",
        ),
        (lambda: Attention(8, rotary="third"), "Attention: rotary='third', expected True, False or 'half'"),
        (lambda: Attention(8, bias="in"), "Attention: bias='in', expected True, False or 'out'"),
        (lambda: Attention(8, heads=4, kv_heads=3), "Attention: kv_heads=3, expected a divisor of heads=4"),
        (lambda: Attention(4, kv_heads=0), "Attention: kv_heads=0, expected a positive integer"),
        (lambda: Attention(4, window=0), "Attention: window=0, expected a positive integer"),
        (lambda: Attention(4, base=0.0), "Attention: base=0.0, expected a positive number"),
        (lambda: rnn(np.eye(4), X, activation="gelu"), "rnn: activation is 'gelu', expected one of"),
        (lambda: rnn(np.eye(3), X), r"rnn: A has shape \(3, 3\), expected \(N=4, N=4\), with N from x"),
        (lambda: rnn(np.zeros((4, 3)), X), r"rnn: A has shape \(4, 3\)"),
        (lambda: lstm(np.zeros((4, 2)), X), r"lstm: w has shape \(4, 2\), expected \(4N=8, N\)"),
        (
            lambda: lstm(np.zeros((8, 2)), X),
            r"lstm: x has shape \(2, 3, 4\), expected \(B, T, 4N=8\), with 4N from w",
        ),
        (
            lambda: attention(X, X, X, heads=3),
            "attention: heads is 3, expected a positive number of heads of one width",
        ),
        (lambda: attention(X, X, X, heads=2, window=0), "attention: window=0, expected a positive integer or None"),
        (lambda: attention(X, X, X, heads=2, past=[0, -1]), r"attention: past\[1\] is -1, expected an integer from 0"),
        (lambda: attention(X, X, X, heads=2, past=[0, 1]), "attention: sequence 1 needs 4 keys, past and present, got"),
        (lambda: attention(X, X[:, :1], X[:, :1], heads=2, lengths=[1, 2]), "attention: sequence 1 needs 2 keys"),
        (lambda: rotary(X, heads=4), "rotary: heads is 4, expected a positive number of heads of even width of D=4"),
        (lambda: rotary(X, heads=2, base=-1.0), "rotary: base is -1.0, expected a positive number"),
    ],
)
def test_what_does_not_fit_is_a_value_error_that_says_so(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("layer", [RNN(4, 3), LSTM(4, 3), Attention(4)], ids=lambda layer: type(layer).__name__)
def test_inputs_and_states_that_do_not_fit_a_layer(layer: Recurrent) -> None:
    name, params = type(layer).__name__, float64_params(layer)
    with pytest.raises(ValueError, match=rf"{name}.forward: x has shape \(2, 3, 5\), expected \(B, T, D=4\)"):
        layer.forward(params, np.zeros((2, 3, 5)))
    with pytest.raises(TypeError, match=rf"{name}.forward: x has dtype int64, expected float32 or float64"):
        layer.forward(params, np.zeros((2, 3, 4), np.int64))
    with pytest.raises((TypeError, ValueError), match=rf"{name}.forward: state (is an ndarray|has shape)"):
        layer.forward(params, X, state=np.zeros((2, 3, 4, 5)))
    _, saved = layer.forward(params, X[:1])
    with pytest.raises(ValueError, match=rf"{name}.forward: state.* has shape .* expected \(B=2, "):
        layer.forward(params, X, state=saved.state)


def test_only_a_single_direction_can_be_continued() -> None:
    layer = RNN(4, 3, bidirectional=True)
    params = float64_params(layer)
    with pytest.raises(ValueError, match=r"RNN.forward: a bidirectional layer takes no state"):
        layer.forward(params, X, state=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"RNN.step: a bidirectional layer cannot run step by step"):
        layer.step(params, None, X[:, 0])


@pytest.mark.parametrize("op", [attention, lambda *args, **kw: rotary(args[0], **kw)])
def test_counts_of_the_past_are_integers(op: Any) -> None:
    with pytest.raises(TypeError, match="past has dtype float64, expected an integer dtype"):
        op(X, X, X, heads=2, past=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"past has shape \(1,\), expected \(B=2,\)"):
        op(X, X, X, heads=2, past=[1])


def test_a_score_of_selective_rope_depends_on_the_path_between_tokens_alone() -> None:
    """Another angle before the first step turns queries and keys alike: outputs of a call without earlier keys stay, to
    the roundings of turns, scores and sums."""
    layer = Attention(8, heads=2, rotary=False, rope_base=3.0)
    rng = np.random.default_rng(0)
    params, x = astype(layer.init(rng), np.float64), rng.standard_normal((2, 9, 8))
    y, saved = layer.forward(params, x)
    inputs, c, keys, values, places = saved.state
    start = 0 * inputs, rng.uniform(-3, 3, c.shape), keys[:, :0], values[:, :0], 0 * places
    moved, after = layer.forward(params, x, state=start)
    assert np.abs(after.state[2] - keys).max() > 0.1
    np.testing.assert_allclose(moved, y, rtol=0, atol=100 * np.finfo(np.float64).eps * np.abs(values).max())


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"rope_base": 1}, "Attention: rotary=True, expected False with rope_base"),
        ({"rope_base": 1, "rotary": "half", "heads": 3}, "Attention: rotary='half', expected False with rope_base"),
        ({"rope_base": 1, "rotary": False, "kv_heads": 1}, "Attention: kv_heads=1, expected None with rope_base"),
        ({"rope_base": 0.5, "rotary": False}, r"Attention: rope_base=0\.5, expected a number from 1, or None"),
        ({"rope_base": 1, "rotary": False, "heads": 4}, "of width 3, expected an even one for rope_base"),
        ({"rope_bias": True}, "Attention: rope_bias=True, expected False without rope_base"),
        ({"rope_rank": 0}, "Attention: rope_rank=0, expected a positive integer"),
    ],
)
def test_settings_of_selective_rope_that_do_not_fit(own: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(12, **{"heads": 2, **own})
