"""Rows of dense recurrences, the LSTM and attention: ops and layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.table import Arrays, Case, normal, padding, pointwise_case, valid_steps
from cases.turn import rotate, selective_angles
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.gru import GRU
from rotrnn.nn.layers.lstm import LSTM
from rotrnn.nn.layers.rnn import RNN
from rotrnn.ops.attention import attention, attention_backward, rotary, rotary_backward
from rotrnn.ops.rnn import gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward

ACTIVATIONS = {"identity": lambda z: z, "tanh": np.tanh, "relu": lambda z: np.maximum(z, 0)}


def steps_of(x: Any, b: int, lengths: Any, reverse: bool = False) -> Any:
    steps = range(x.shape[1] if lengths is None else lengths[b])
    return reversed(steps) if reverse else steps


def rnn_loop(
    A: Any, x: Any, h0: Any = None, activation: str = "identity", reverse: bool = False, lengths: Any = None
) -> tuple[Any, Any]:
    """h_t = f(A h_{t-1} + x_t), one step after the other; (h, hT)."""
    h = np.zeros_like(x)
    hT = np.zeros((x.shape[0], x.shape[2])) if h0 is None else np.array(h0)
    for b in range(len(x)):
        for t in steps_of(x, b, lengths, reverse):
            hT[b] = h[b, t] = ACTIVATIONS[activation](A @ hT[b] + x[b, t])
    return h, hT


def rnn_case(
    B: int, T: int, N: int, activation: str, *, reverse: bool = False, lengths: Any = None, radius: float = 0.9
) -> Case:
    how: Any = {"activation": activation, "reverse": reverse, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        A = radius * np.linalg.qr(normal(rng, (N, N)))[0]  # radius 1: nothing decays
        return {"A": A, "x": normal(rng, (B, T, N)), "h0": normal(rng, (B, N))}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = rnn_backward(doutputs[0], args["A"], outputs[0], args["h0"], dhT=doutputs[1], **how)
        return {"A": grads.dA, "x": grads.dx, "h0": grads.dh0}

    return Case(
        f"rnn {activation}{' reverse' * reverse}{' ragged' * (lengths is not None)} {B}x{T}x{N}",
        make,
        lambda args: rnn(**args, **how),
        backward,
        lambda args: rnn_loop(**args, **how),
        terms=(N + 4) * (T + 1) + B * T,  # the gradient of A sums over the steps
        linear=(("x", "h0"),) if activation == "identity" else (),
        ragged=padding(lengths, "x", "out0"),
        lengths=lengths,
    )


def lstm_loop(w: Any, x: Any, h0: Any, c0: Any, lengths: Any = None) -> tuple[Any, Any, Any]:
    """The six equations, one step after the other; (h, hT, cT)."""
    B, T, _ = x.shape
    h = np.zeros((B, T, w.shape[1]))
    hT, cT = np.array(h0), np.array(c0)
    for b in range(B):
        for t in steps_of(x, b, lengths):
            i, f, g, o = np.split(x[b, t] + w @ hT[b], 4)
            cT[b] = sigmoid_formula(f) * cT[b] + sigmoid_formula(i) * np.tanh(g)
            hT[b] = h[b, t] = sigmoid_formula(o) * np.tanh(cT[b])
    return h, hT, cT


def lstm_case(B: int, T: int, N: int, lengths: Any = None) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        w = normal(rng, (4 * N, N)) / max(N, 1) ** 0.5
        return {"w": w, "x": normal(rng, (B, T, 4 * N)), "h0": normal(rng, (B, N)), "c0": normal(rng, (B, N))}

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = lstm(**args, lengths=lengths)
        return result.h, result.hT, result.cT

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        h, c, gates, _, _ = lstm(**args, lengths=lengths)
        grads = lstm_backward(
            *(doutputs[0], args["w"], h, c, gates, args["h0"], args["c0"]),
            dhT=doutputs[1], dcT=doutputs[2], lengths=lengths,
        )  # fmt: skip
        return {"w": grads.dw, "x": grads.dx, "h0": grads.dh0, "c0": grads.dc0}

    return Case(
        f"lstm{' ragged' * (lengths is not None)} {B}x{T}x{N}",
        make,
        forward,
        backward,
        lambda args: lstm_loop(**args, lengths=lengths),
        terms=(4 * N + 20) * (T + 1) + B * T,
        ragged=padding(lengths, "x", "out0"),
        lengths=lengths,
    )


def gru_loop(w: Any, x: Any, bias: Any, h0: Any, lengths: Any = None) -> tuple[Any, Any]:
    """The four equations, one step after the other; (h, hT)."""
    h, hT = np.zeros((*x.shape[:2], w.shape[1])), np.array(h0)
    for b in range(len(x)):
        for t in steps_of(x, b, lengths):
            (x_r, x_z, x_n), (u_r, u_z, u_n) = np.split(x[b, t], 3), np.split(w @ hT[b] + bias, 3)
            z = sigmoid_formula(x_z + u_z)
            n = np.tanh(x_n + sigmoid_formula(x_r + u_r) * u_n)
            hT[b] = h[b, t] = (1 - z) * n + z * hT[b]
    return h, hT


def gru_case(B: int, T: int, N: int, lengths: Any = None) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        w = normal(rng, (3 * N, N)) / max(N, 1) ** 0.5
        return {"w": w, "x": normal(rng, (B, T, 3 * N)), "bias": normal(rng, (3 * N,)), "h0": normal(rng, (B, N))}

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = gru(**args, lengths=lengths)
        return result.h, result.hT

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        h, gates, _ = gru(**args, lengths=lengths)
        grads = gru_backward(doutputs[0], args["w"], h, gates, args["h0"], dhT=doutputs[1], lengths=lengths)
        return {"w": grads.dw, "x": grads.dx, "bias": grads.dbias, "h0": grads.dh0}

    return Case(
        f"gru{' ragged' * (lengths is not None)} {B}x{T}x{N}",
        make,
        forward,
        backward,
        lambda args: gru_loop(**args, lengths=lengths),
        terms=(3 * N + 20) * (T + 1) + B * T,
        ragged=padding(lengths, "x", "out0"),
        lengths=lengths,
    )


def attention_loop(q: Any, k: Any, v: Any, heads: int, lengths: Any, past: Any, window: Any) -> Any:
    """Softmax over the keys that each query attends to, one query after the other."""
    y = np.zeros_like(q)
    for b in range(len(q)):
        for t in steps_of(q, b, lengths):
            place = t + (0 if past is None else past[b])
            seen = slice(max(0, place - window + 1) if window else 0, place + 1)
            for lanes in np.split(np.arange(q.shape[2]), heads):
                scores = k[b, seen][:, lanes] @ q[b, t, lanes] / np.sqrt(len(lanes))
                p = np.exp(scores - scores.max())
                y[b, t, lanes] = p @ v[b, seen][:, lanes] / p.sum()
    return y


def attention_case(
    B: int, T: int, D: int, heads: int, *, S: int | None = None, lengths: Any = None, past: Any = None,
    window: int | None = None, size: float = 1.0,
) -> Case:  # fmt: skip
    S = T if S is None else S
    ends = np.full(B, T) if lengths is None else np.array(lengths)
    how: Any = {"heads": heads, "lengths": lengths, "past": past, "window": window}

    def make(rng: np.random.Generator) -> Arrays:
        return {"q": size * normal(rng, (B, T, D)), "k": normal(rng, (B, S, D)), "v": normal(rng, (B, S, D))}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        y, norm = attention(**args, **how)
        grads = attention_backward(doutputs[0], **args, y=y, norm=norm, **how)
        return {"q": grads.dq, "k": grads.dk, "v": grads.dv}

    padded = {}
    if lengths is not None or past is not None:
        keys = tuple(ends + (0 if past is None else np.array(past)))
        padded = {"q": tuple(ends), "k": keys, "v": keys, "out0": tuple(ends)}
    flags = "".join([" past" * (past is not None), f" window {window}" * (window is not None)])
    return Case(
        f"attention{flags}{' ragged' * (lengths is not None)} {B}x{T} of {S} heads {heads} of {D}",
        make,
        lambda args: attention(**args, **how)[:1],
        backward,
        lambda args: (attention_loop(*args.values(), heads, lengths, past, window),),
        # a score of size s moves its probability by s roundings; sums run over keys and queries
        terms=int(4 * (D + 8) * max(1.0, size) ** 2) + 2 * S + 2 * T,
        linear=(("v",),),
        ragged=padded,
        lengths=lengths,
    )


def rotary_loop(x: Any, heads: int, past: Any, base: float = 10_000.0) -> Any:
    """Rotates each plane by a rotation matrix."""
    B, T, D = x.shape
    y = np.array(x)
    planes = D // heads // 2
    for b, t, head, i in np.ndindex(B, T, heads, planes):
        angle = (t + (0 if past is None else past[b])) * base ** (-i / planes)
        c, s = np.cos(angle), np.sin(angle)
        lanes = [head * D // heads + 2 * i, head * D // heads + 2 * i + 1]
        y[b, t, lanes] = np.array([[c, -s], [s, c]]) @ x[b, t, lanes]
    return y


def rotary_case(B: int, T: int, D: int, heads: int, past: Any = None, base: float = 100.0) -> Case:
    how: Any = {"heads": heads, "past": past, "base": base}
    return pointwise_case(
        f"rotary{' past' * (past is not None)} heads {heads}",
        {"x": (B, T, D)},
        lambda x: rotary(x, **how),
        lambda dy, x: (rotary_backward(dy, **how),),
        lambda x: rotary_loop(x, **how),
        terms=16 * (1 + T + max(past or (0,))),  # angles are rounded to places' eps
        linear=(("x",),),
    )


OPS = [
    *(
        rnn_case(B, T, N, activation, reverse=reverse, lengths=lengths, radius=radius)
        for activation, reverse, (B, T, N), lengths, radius in (
            ("identity", False, (2, 40, 3), None, 1.0),
            ("identity", True, (3, 7, 5), (7, 0, 4), 1.0),
            ("tanh", False, (9, 12, 4), (12, 0, 7, 1, 12, 11, 3, 5, 2), 1.0),  # blocks of several, and a last one
            ("tanh", True, (2, 6, 70), None, 0.9),  # edges of the matrix kernel
            ("relu", False, (3, 9, 5), None, 1.0),
            ("relu", True, (3, 8, 5), (8, 1, 0), 0.9),
            ("tanh", False, (1, 1, 3), None, 1.0),
            ("identity", False, (2, 0, 3), None, 1.0),
            ("identity", True, (0, 4, 3), None, 1.0),
            ("identity", False, (2, 4, 0), None, 1.0),
        )
    ),
    lstm_case(2, 13, 3),
    lstm_case(5, 9, 4, (9, 0, 4, 1, 8)),
    lstm_case(1, 1, 18),  # edges of the matrix kernel
    lstm_case(2, 0, 3),
    lstm_case(0, 4, 3),
    gru_case(2, 13, 3),
    gru_case(5, 9, 4, (9, 0, 4, 1, 8)),
    gru_case(1, 1, 18),  # edges of the matrix kernel
    gru_case(2, 0, 3),
    gru_case(0, 4, 3),
    attention_case(2, 9, 4, 2),
    attention_case(3, 70, 6, 2, lengths=(70, 0, 65)),  # more than one tile
    attention_case(2, 5, 4, 1, S=80, lengths=(5, 3), past=(75, 66)),
    attention_case(2, 66, 6, 3, S=140, past=(74, 3), window=67),
    attention_case(2, 130, 4, 2, lengths=(130, 100), window=3),
    attention_case(1, 20, 2, 1, window=1),
    attention_case(1, 6, 3, 1, size=30.0),  # probabilities of almost 0 and 1
    attention_case(1, 3, 70, 1),  # edges of the matrix kernel
    attention_case(2, 0, 4, 2, S=3, past=(3, 0)),
    attention_case(0, 4, 4, 2),
    rotary_case(2, 5, 12, 2),
    rotary_case(2, 4, 6, 3, past=(0, 9)),
    rotary_case(2, 0, 4, 1),
]

OPS_LARGE = [
    rnn_case(9, 60, 50, "tanh", lengths=(60, 0, 59, 3, 60, 7, 60, 60, 1)),
    lstm_case(3, 40, 40),
    gru_case(3, 40, 40),
    attention_case(2, 300, 40, 2, lengths=(300, 299)),
    attention_case(5, 130, 80, 40, S=200, past=(70, 0, 3, 69, 1)),  # more heads than rooms
]

# --------------------------------------------------------------------------------------------------------- layers


def zero_padding(y: Any, lengths: Any) -> Any:
    return np.where(valid_steps(y.shape, lengths), y, 0)


def rnn_reference(layer: RNN, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    h, hT = rnn_loop(params["A"], x @ params["B"].T, state, layer.activation, False, lengths)
    y = h @ params["C"].T + params["D"] * x
    if layer.bidirectional:
        h, _ = rnn_loop(params["A"], x @ params["B"].T, None, layer.activation, True, lengths)
        y, hT = y + h @ params["C_reverse"].T, None
    return zero_padding(y, lengths), hT


def lstm_reference(layer: LSTM, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    h0, c0 = np.zeros((2, len(x), layer.d_state)) if state is None else state
    z = x @ params["weight_ih"].T + params["bias"]
    h, hT, cT = lstm_loop(params["weight_hh"], z, h0, c0, lengths)
    return zero_padding(h @ params["C"].T if layer.projection else h, lengths), (hT, cT)


def gru_reference(layer: GRU, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    h0 = np.zeros((len(x), layer.d_state)) if state is None else state
    z = x @ params["weight_ih"].T + params["bias_ih"]
    h, hT = gru_loop(params["weight_hh"], z, params["bias_hh"], h0, lengths)
    return zero_padding(h @ params["C"].T if layer.projection else h, lengths), hT


def turned_heads(layer: Attention, x: Any, heads: int, past: Any) -> Any:
    """Each head by itself: all of its channels turn, or those of its first half."""
    parts = np.split(x, heads, -1)
    turning = parts[0].shape[-1] // (2 if layer.rotary == "half" else 1)
    turned = [
        np.concatenate([rotary_loop(one[..., :turning], 1, past, layer.base), one[..., turning:]], -1) for one in parts
    ]
    return np.concatenate(turned, -1)


def attention_reference(layer: Attention, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One sequence after the other, with its cached rows before its new ones."""
    B, T, D = x.shape
    cap = np.inf if layer.window is None else layer.window - 1
    *angles, keys, values, places = map(np.array, state)
    y = np.zeros((B, T, D))
    S = keys.shape[1] + T if layer.window is None else layer.window - 1
    after = np.zeros((2, B, S, keys.shape[2]))
    groups = layer.kv_heads or layer.heads
    for b in range(B):
        steps = T if lengths is None else lengths[b]
        kept = int(min(places[b], cap))
        u = x[b : b + 1, :steps]
        q, k, v = (u @ params[f"w_{m}"].T + params.get(f"b_{m}", 0) for m in "qkv")
        if layer.rotary:
            q, k = (turned_heads(layer, one, n, places[b : b + 1]) for one, n in ((q, layer.heads), (k, groups)))
        for t in range(steps if layer.rope_base is not None else 0):
            selective_angles(layer, params, u[0, t], angles[0][b], angles[1][b])
            for one in (q, k):
                heads = one[0, t].reshape(layer.heads, -1)
                one[0, t] = rotate(heads, angles[1][b].sum(0), "halves").ravel()
        if angles:
            c = angles[1][b].sum(0)
            angles[1][b] = c - 2 * np.pi * np.rint(c / (2 * np.pi)), 0 * c
        k, v = (np.concatenate([one[b : b + 1, :kept], new], 1) for one, new in ((keys, k), (values, v)))
        each = [np.repeat(one.reshape(*one.shape[:2], groups, -1), layer.heads // groups, 2) for one in (k, v)]
        mixed = attention_loop(q, *(one.reshape(1, -1, D) for one in each), layer.heads, None, (kept,), layer.window)
        y[b, :steps] = (mixed @ params["w_out"].T + params.get("b_out", 0))[0]
        last = int(min(places[b] + steps, cap))
        for i, rows in enumerate((k, v)):
            after[i, b, :last] = rows[0, rows.shape[1] - last :]
    return y, (*angles, after[0], after[1], places + (T if lengths is None else np.array(lengths)))


SHAPES = ((2, 8, None), (3, 7, (7, 0, 4)), (1, 0, None))

LAYERS = [
    *(
        LayerRow(
            name, layer, B, T, lengths, rnn_reference, terms=(layer.d_state + 8) * (T + 6) + layer.d_model,
            linear=(
                *((("x",) if layer.bidirectional else ("x", "state"),) if layer.activation == "identity" else ()),
                tuple(key for key in layer.shapes if key.startswith(("C", "D"))),
            ),
        )
        for name, layer in (
            ("linear", RNN(4, 5)),
            ("tanh bidirectional", RNN(3, 4, activation="tanh", bidirectional=True)),
            ("relu", RNN(3, 4, activation="relu", initialisation="identity")),
        )
        for B, T, lengths in SHAPES
    ),
    *(
        LayerRow(
            name, layer, B, T, lengths, lstm_reference, terms=(4 * layer.d_state + 20) * (T + 6),
            linear=(("C",),) if layer.projection else (),
        )
        for name, layer in (("projection", LSTM(3, 5)), ("", LSTM(4, 4, projection=False, forget_bias=0.5)))
        for B, T, lengths in SHAPES
    ),
    *(
        LayerRow(
            name, layer, B, T, lengths, gru_reference, terms=(3 * layer.d_state + 20) * (T + 6),
            linear=(("C",),) if layer.projection else (),
        )
        for name, layer in (("projection", GRU(3, 5)), ("", GRU(4, 4, projection=False)))
        for B, T, lengths in SHAPES
    ),
    *(
        LayerRow(name, layer, B, T, lengths, attention_reference, terms=80 * (layer.d_model + 8) + 8 * T)
        for name, layer in (
            ("rotary, 2 heads", Attention(8, heads=2)),
            ("bias", Attention(6, heads=2, rotary=False, bias=True)),
            ("as Griffin's", Attention(8, heads=2, kv_heads=1, window=3, rotary="half", bias="out")),
            ("window 3", Attention(4, heads=1, window=3)),
            ("shared keys", Attention(8, heads=4, kv_heads=2, bias=True)),
            ("one head of keys, window 4", Attention(6, heads=3, kv_heads=1, window=4)),
            ("selective rope", Attention(8, heads=2, rotary=False, rope_base=5.0, rope_rank=3, rope_bias=True)),
            ("selective rope, window 3", Attention(4, rotary=False, bias=True, window=3, rope_base=1)),
        )
        for B, T, lengths in SHAPES
    ),
]  # fmt: skip
