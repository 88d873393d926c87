"""Rows of the RG-LRU."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.rnn import SHAPES
from cases.table import Arrays
from rotrnn.nn.layers.rg_lru import RGLRU


def rg_lru_reference(layer: RGLRU, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The equations of Griffin's section 2.4, one head of one step after the other; h begins with i * x."""
    B, T, D = x.shape
    places, h = (np.zeros(B, np.int64), np.zeros((B, D))) if state is None else (np.array(one) for one in state)
    y, width, rate = np.zeros(x.shape), D // layer.heads, -8 * np.log1p(np.exp(params["a_param"]))
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            r, i = (
                sigmoid_formula(
                    np.concatenate([w @ x[b, t, k * width : (k + 1) * width] for k, w in enumerate(params[f"{one}_w"])])
                    + params[f"{one}_bias"]
                )
                for one in ("a_gate", "input_gate")
            )
            log_a, first = rate * r, places[b] == 0
            h[b] = np.exp(log_a) * h[b] + (1 if first else np.sqrt(-np.expm1(2 * log_a))) * i * x[b, t]
            y[b, t] = h[b]
            places[b] += 1
    return y, h


LAYERS = [
    *(
        LayerRow(f"{layer.heads} heads", layer, B, T, lengths, rg_lru_reference, terms=40 * (T + 6))
        for layer in (RGLRU(3), RGLRU(4, heads=2))
        for B, T, lengths in SHAPES
    ),
]  # fmt: skip
