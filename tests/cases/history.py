"""Rows of stored histories: reads by weights of age and by content, and the layer over several recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.fixed_point import TERMS, TOL, fixed_point_loop
from cases.layer_row import LayerRow
from cases.linear import lru_loop
from cases.memory import read_loop
from cases.min_gru import min_gru_reference
from cases.ops import sigmoid_formula
from cases.rnn import attention_reference, lstm_loop, lstm_reference, rnn_loop, rnn_reference
from cases.table import Arrays, Case, normal, padding, scan_loop
from cases.window import windowed_loop
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.lstm import LSTM
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.layers.rnn import RNN
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.ops.history_attention import history_attention, history_attention_backward
from rotrnn.ops.memory import history_read, history_read_backward, history_weights_backward, wrope_angle

# ------------------------------------------------------------------------------------------------------------ ops


def weights_case(B: int, T: int, N: int, M: int, R: int, lengths: Any = None) -> Case:
    """A read with other weights for each state, which have a gradient."""

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = history_read_backward(doutputs[0], args["weights"], R, lengths=lengths)
        dweights = history_weights_backward(doutputs[0], args["h"], args["past"], count=M, lengths=lengths)
        return {"weights": dweights, "h": grads.dh, "past": grads.dpast}

    return Case(
        f"history_read {M} ages of each{' ragged' * (lengths is not None)} {B}x{T}x{N} after {R}",
        lambda rng: {name: normal(rng, shape, True) for name, shape in
                     {"weights": (M, N), "h": (B, T, N), "past": (B, R, N)}.items()},
        lambda args: (history_read(**args, lengths=lengths),),
        backward,
        lambda args: (read_loop(args["weights"], args["h"], args["past"], lengths),),
        terms=8 * (B * T + R) + 50,
        linear=(("h", "past"), ("weights",)),
        ragged=padding(lengths, "h", "out0"),
        lengths=lengths,
    )  # fmt: skip


def softmax_read(q: Any, turned: Any, heads: int) -> Any:
    """What a query (N,) reads of turned states (n, N), head by head."""
    m = np.zeros_like(q)
    for planes in np.split(np.arange(len(q)), heads):
        scores = (turned[:, planes] @ q[planes].conj()).real / np.sqrt(2 * len(planes))
        p = np.exp(scores - scores.max())
        m[planes] = p @ turned[:, planes] / p.sum()
    return m


def attention_loop(q: Any, weights: Any, h: Any, past: Any, heads: int, stored: Any, lengths: Any) -> Any:
    """Each query on its own, over the turned states that it sees, the newest first."""
    m = np.zeros_like(q)
    for b in range(len(q)):
        for t in range(q.shape[1] if lengths is None else lengths[b]):
            seen = [*past[b, past.shape[1] - stored[b] :], *h[b, : t + 1]][::-1][: len(weights)]
            m[b, t] = softmax_read(q[b, t], np.array(seen) * weights[: len(seen), None], heads)
    return m


def attention_case(
    B: int, T: int, N: int, M: int, R: int, heads: int, stored: Any, lengths: Any = None, size: float = 1.0
) -> Case:
    weights = np.exp(1j * np.random.default_rng(M).uniform(0, 7, M))
    how: Any = {"heads": heads, "stored": stored, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        q = size * normal(rng, (B, T, N), True)
        return {"q": q, "h": normal(rng, (B, T, N), True), "past": normal(rng, (B, R, N), True)}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = history_attention_backward(doutputs[0], args["q"], weights, args["h"], args["past"], **how)
        return {"q": grads.dq, "h": grads.dh, "past": grads.dpast}

    return Case(
        f"history_attention {M} ages{' ragged' * (lengths is not None)} {B}x{T} after {R} heads {heads} of {N}",
        make,
        lambda args: (history_attention(args["q"], weights, args["h"], args["past"], **how),),
        backward,
        lambda args: (attention_loop(args["q"], weights, args["h"], args["past"], heads, stored, lengths),),
        # as in cases/rnn.py: a score of size s moves its probability by s roundings; sums run over queries and states
        terms=int(8 * (2 * N + 8) * max(1.0, size) ** 2) + 4 * (T + R),
        ragged=padding(lengths, "q", "h", "out0"),
        lengths=lengths,
    )


READS = [
    weights_case(2, 11, 3, 5, 4),
    weights_case(1, 4, 2, 30, 3),
    weights_case(3, 9, 2, 4, 3, (9, 0, 2)),
    weights_case(2, 0, 2, 3, 2),
    attention_case(2, 9, 4, 5, 3, 2, (3, 1)),
    attention_case(3, 7, 3, 40, 5, 1, (0, 5, 2), (7, 0, 3)),
    attention_case(1, 5, 2, 1, 2, 1, (2,)),  # only the state of the step itself
    attention_case(1, 6, 2, 9, 0, 2, (0,), size=20.0),  # probabilities of almost 0 and 1
    attention_case(2, 0, 2, 3, 2, 1, (2, 0)),
    attention_case(0, 3, 2, 3, 2, 1, ()),
]

READS_LARGE = [attention_case(2, 900, 4, 700, 30, 2, (30, 7), (900, 611))]  # several tiles of queries

# --------------------------------------------------------------------------------------------------------- layers


def lru_states(layer: LRU, p: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    lam = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    v = x @ (np.exp(p["gamma_log"])[:, None] * (p["B_re"] + 1j * p["B_im"])).T
    if layer.window is None:
        return lru_loop(layer, p, x, state, lengths)[0], *_last(scan_loop(lam, v, state, False, lengths))
    y, after = windowed_loop(layer, {name: p[name] for name in layer.shapes}, x, state, lengths)
    h = np.zeros_like(v)
    for b, place in enumerate(state[2]):
        rows = layer.window + 1
        inputs = [*(state[0][b, (place + i) % rows] for i in range(rows)), *v[b]]
        for t in range(x.shape[1]):
            h[b, t] = sum(lam**k * inputs[rows + t - k] for k in range(layer.window))
    return y, h, after


def _last(scanned: tuple[Any, Any]) -> tuple[Any, tuple[Any, ...]]:
    return scanned[0], (scanned[1],)


def rnn_states(layer: RNN, p: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    h, hT = rnn_loop(p["A"], x @ p["B"].T, state, layer.activation, False, lengths)
    return rnn_reference(layer, p, x, state, lengths)[0], h, (hT,)


def lstm_states(layer: LSTM, p: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    h, hT, cT = lstm_loop(p["weight_hh"], x @ p["weight_ih"].T + p["bias"], *state, lengths)
    return lstm_reference(layer, p, x, state, lengths)[0], h, (hT, cT)


def min_gru_states(layer: MinGRU, p: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    z = sigmoid_formula(x @ p["W_z"].T + p["b_z"])
    scanned = scan_loop(1 - z, z * (x @ p["W_c"].T + p["b_c"]), state, lengths=lengths)
    return min_gru_reference(layer, p, x, state, lengths)[0], *_last(scanned)


def attention_states(layer: Attention, p: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Its outputs are what is stored."""
    y, after = attention_reference(layer, p, x, state, lengths)
    return y, y, after


def fixed_point_states(
    layer: FixedPointRNN, p: Arrays, x: Any, state: Any, lengths: Any
) -> tuple[Any, Any, tuple[Any, ...]]:
    """h is the output of the same layer, of as many channels as states, with C the identity and no skip."""
    y, after = fixed_point_loop(layer, p, x, state, lengths)
    of_h = p | {"C": np.eye(layer.d_state), "D": np.zeros(layer.d_model)}
    return y, fixed_point_loop(layer, of_h, x, state, lengths)[0], (after,)


STATES: dict[type, Any] = {
    LRU: lru_states, RNN: rnn_states, LSTM: lstm_states, MinGRU: min_gru_states, Attention: attention_states,
    FixedPointRNN: fixed_point_states,
}  # fmt: skip


def history_loop(layer: StoredHistory, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """y_t = layer(u)_t + C m_t with m_t = sum_k p_tk e^{i Delta_k} h_{t-k}, one state after the other."""
    *inner, stored, places = state
    y, h, after = STATES[type(layer.layer)](
        layer.layer, params, x, inner[0] if len(inner) == 1 else tuple(inner), lengths
    )
    h = h if np.iscomplexobj(h) else np.ascontiguousarray(h).view(complex)
    (B, T, P), R = h.shape, stored.shape[1]
    y, final = np.array(y), np.zeros((B, R + (T if layer.window is None else 0), P), complex)
    ends = np.full(B, T) if lengths is None else np.array(lengths)
    for b in range(B):
        rows = list(stored[b])
        for t in range(ends[b]):
            reverse = layer.form == "reversed"
            rows.append(h[b, t] * (np.exp(1j * wrope_angle(places[b] + t, layer.length)) if reverse else 1))
            m = read(layer, params, rows[::-1][: layer.window], int(min(places[b], R)) + t + 1, x[b, t])
            y[b, t] += params["history_C"] @ m.view(float)
        kept = rows[len(rows) - R :] if layer.window is not None else rows
        final[b, final.shape[1] - len(kept) :] = np.reshape(kept, (len(kept), P))
    return y, (*after, final, places + ends)


def read(layer: StoredHistory, params: Arrays, newest_first: Any, known: int, x: Any) -> Any:
    """What is read of states, `known` of which are states of the sequence."""
    turning = layer.form not in ("none", "reversed")
    turned = np.array(newest_first)
    for k in range(len(turned)):
        turned[k] *= np.exp(1j * wrope_angle(k, layer.length, layer.form)) if turning else 1
    if layer.read == "content":
        return softmax_read((params["history_q"] @ x).view(complex), turned[:known], layer.heads)
    if layer.read == "ages":
        for k in range(len(turned)):
            weights = params["history_w"][:, min(k, layer.ages - 1)]
            turned[k] *= np.repeat(weights, layer.planes // layer.heads)
    return turned.sum(0)


def history_row(layer: StoredHistory, B: int, T: int, lengths: Any = None) -> LayerRow:
    linear = isinstance(layer.layer, LRU) and layer.read != "content"
    return LayerRow(
        f"of {type(layer.layer).__name__}, {layer.read} {layer.form} window {layer.window}",
        layer,
        B,
        T,
        lengths,
        history_loop,
        terms=40 * (T + 6) + 60 * (layer.d_model + 8) + (TERMS if isinstance(layer.layer, FixedPointRNN) else 0),
        linear=(("history_C",), *((("x", "state"),) if linear else ())),
    )


SOLVED = FixedPointRNN(4, 4, rank=2, gradient="implicit", tol=TOL, max_iterations=2000)
HISTORIES = [
    history_row(StoredHistory(layer.d_model, layer, length, read, form, window, heads), B, T, lengths)
    for layer, length, read, form, window, heads, (B, T, lengths) in (
        (LRU(4, 3, r_min=0.5), 4, "sum", "none", None, 1, (2, 9, None)),
        (LRU(3, 2), 4, "sum", "reversed", None, 1, (3, 7, (7, 0, 2))),
        (LRU(3, 2, window=3), 4, "sum", "uniform", 5, 1, (2, 8, None)),
        (LRU(3, 4), 3, "ages", "warped", None, 2, (2, 8, None)),
        (LSTM(3, 4), 9, "ages", "blend", 3, 1, (3, 7, (7, 0, 2))),
        (RNN(3, 4, activation="tanh"), 3, "sum", "blend_printed", 1, 1, (2, 4, None)),
        (LRU(4, 4), 4, "content", "warped", None, 2, (2, 8, None)),
        (LRU(3, 2), 4, "content", "uniform", 4, 1, (3, 8, (8, 0, 3))),
        (MinGRU(3, 4), 3, "content", "blend", None, 2, (3, 7, (7, 0, 2))),
        (RNN(3, 4), 3, "content", "reversed", 6, 1, (2, 7, None)),
        (Attention(4, heads=2), 3, "content", "blend_printed", None, 1, (2, 6, None)),
        (LSTM(3, 4), 3, "content", "none", 2, 1, (2, 0, None)),
        (SOLVED, 3, "ages", "warped", None, 2, (3, 6, (6, 0, 3))),
        (SOLVED, 3, "content", "uniform", 3, 1, (2, 5, None)),
    )
]
