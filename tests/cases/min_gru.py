"""Rows of the minGRU."""

from __future__ import annotations

from typing import Any

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.rnn import SHAPES
from cases.table import Arrays, scan_loop
from rotrnn.nn.layers.min_gru import MinGRU


def min_gru_reference(layer: MinGRU, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    z = sigmoid_formula(x @ params["W_z"].T + params["b_z"])
    candidate = x @ params["W_c"].T + params["b_c"]
    h, hT = scan_loop(1 - (1 + layer.negative) * z, z * candidate, state, lengths=lengths)
    return h @ params["W_out"].T, hT


LAYERS = [
    *(
        LayerRow(
            name, layer, B, T, lengths, min_gru_reference, terms=30 * (T + 6), linear=(("W_out",), ("state",)),
        )
        for name, layer in (("", MinGRU(3, 4)), ("negative", MinGRU(3, 4, negative=True)))
        for B, T, lengths in SHAPES
    ),
]  # fmt: skip
