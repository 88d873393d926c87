"""Rows of Griffin's recurrent block over several recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.linear import lru_loop, rotrnn_loop
from cases.ops import gelu_formula
from cases.rnn import attention_reference, lstm_reference
from cases.table import Arrays
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.lstm import LSTM
from rotrnn.nn.layers.rotrnn import RotRNN

LOOPS: dict[type, Any] = {RotRNN: rotrnn_loop, LRU: lru_loop, LSTM: lstm_reference, Attention: attention_reference}


def griffin_loop(layer: Griffin, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One step of one sequence after the other: what is convolved, then the layer's own loop, then the product."""
    p = {name.removeprefix("griffin_"): value for name, value in params.items() if name.startswith("griffin_")}
    inputs, *inner = state
    B, T, _ = x.shape
    E, K = p["conv_w"].shape
    u, after, y = np.zeros((B, T, E)), np.array(inputs), np.zeros(x.shape)
    ends = [T] * B if lengths is None else lengths
    for b in range(B):
        for t in range(ends[b]):
            held = [*after[b], p["value_w"] @ x[b, t] + p["value_bias"]]
            u[b, t] = p["conv_bias"]
            for k in range(K):
                u[b, t] += p["conv_w"][:, k] * held[k]
            after[b] = np.reshape(held[1:], (K - 1, E))
    given = inner[0] if len(inner) == 1 else tuple(inner)
    read, final = LOOPS[type(layer.layer)](layer.layer, params, u, given, lengths)
    for b in range(B):
        for t in range(ends[b]):
            gate = gelu_formula(p["gate_w"] @ x[b, t] + p["gate_bias"])
            y[b, t] = p["out_w"] @ (gate * read[b, t]) + p["out_bias"]
    return y, (after, *(final if isinstance(final, tuple) else (final,)))


LAYERS = [
    LayerRow(
        f"of {type(inner).__name__}, {taps} taps",
        Griffin(D, inner, taps),
        B,
        T,
        lengths,
        griffin_loop,
        # products of D + taps + E + 40 roundings, the layer's own, and the product with the gate
        terms=2 * (12 * (T + 6) + 80 * (inner.d_model + 8)) + D + taps,
        linear=(("griffin_out_w", "griffin_out_bias"),),
    )
    for D, inner, taps, (B, T, lengths) in (
        (4, RotRNN(4, 8, heads=2), 4, (2, 8, None)),
        (3, RotRNN(5, 6, heads=2), 4, (3, 7, (7, 0, 3))),
        (4, RotRNN(4, 4, heads=1), 4, (1, 0, None)),
        (5, LRU(3, 2, r_min=0.5), 3, (2, 9, None)),
        (3, LRU(3, 2), 1, (2, 6, None)),
        (3, LSTM(4, 3), 6, (3, 7, (7, 2, 0))),
        (4, Attention(4, heads=2, window=3), 2, (2, 8, None)),
    )
]
