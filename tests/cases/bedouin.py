"""Rows of Bedouin: each token's fixed point by solving the linear system that it is, the past being known."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from cases.layer_row import LayerRow
from cases.mixers import mixer_matrix
from cases.table import Arrays
from rotrnn.nn.bedouin import Bedouin

TOL = 1e-13
TERMS = 2000
"""As of the vector state (fixed_point.py): an iterate of residual TOL is within 4 TERMS eps of the fixed point where a
step brings it closer by 0.9, with a little for rounding."""


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def silu(z: Any) -> Any:
    return z * sigmoid(z)


def mixer_of(layer: Any, parts: Arrays) -> Any:
    """Q of one token, as a matrix."""
    if layer.mixer == "orthogonal":
        return scipy.linalg.expm(parts["M"] - parts["M"].T)
    largest = 1 / layer.rank if layer.mixer == "low_rank" else 1
    E = layer.width
    rows = max(a for a in range(1, int(E**0.5) + 1) if E % a == 0) if layer.mixer == "kronecker" else None
    return mixer_matrix(layer.mixer, parts["u"], largest * sigmoid(parts["alpha"]), rows)


def token(layer: Bedouin, params: Arrays, x: Any, h: Any, before: Any) -> tuple[Any, Any]:
    """(h, y) of a token: y = [I - k delta (I - Q)]^-1 (C (lam h) + k delta Q x) with k = B.C."""

    def mapped(name: str) -> Any:
        p = params[f"W_{name}"] @ x
        return p + params[f"V_{name}"] @ before if f"V_{name}" in params else p

    delta = sigmoid(mapped("delta") + params["b_delta"])
    B, C = mapped("B"), mapped("C")
    if layer.normalise:
        B, C = B / np.linalg.norm(B), C / np.linalg.norm(C)
    names = ("M",) if layer.mixer == "orthogonal" else ("u", "alpha")
    Q = mixer_of(layer, {name: params[name] if name == "M" else mapped(name) for name in names})
    h = np.exp(-8 * np.log1p(np.exp(params["omega"])) * delta[:, None]) * h
    gain, identity = (B @ C) * delta[:, None], np.eye(layer.width)
    y = np.linalg.solve(identity - gain * (identity - Q), h @ C + gain[:, 0] * (Q @ x))
    mixed = Q @ (x - y) + y
    return h + np.outer(delta * mixed, B), y


def bedouin_loop(layer: Bedouin, params: Arrays, inputs: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    B, T, D = inputs.shape
    E = layer.width
    out = np.zeros((B, T, D))
    h, before = (np.zeros((B, E, layer.d_state)), np.zeros((B, E))) if state is None else map(np.array, state)
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            x, gate = np.split(params["W_in"] @ inputs[b, t], 2)
            if "V_gate" in params:
                gate = gate + params["V_gate"] @ before[b]
            h[b], before[b] = token(layer, params, x, h[b], before[b])
            out[b, t] = params["W_out"] @ (gate * silu(before[b] + params["D"] * x))
    return out, (h, before)


def row(name: str, B: int, T: int, lengths: Any = None, **settings: Any) -> LayerRow:
    exact = {"gradient": "implicit", "tol": TOL, "max_iterations": 2000}
    layer = Bedouin(2, **{"d_state": 3, **exact, **settings})
    return LayerRow(name, layer, B, T, lengths, bedouin_loop, terms=TERMS, linear=(("W_out",),), noise=0.3)


BEDOUIN = [
    row("", 2, 6),
    row("rank 2", 3, 5, (5, 0, 3), rank=2),
    row("all fed back", 2, 5, feedback=("lambda", "mixer", "B", "C", "gate")),
    row("nothing fed back", 2, 5, (2, 5), feedback=(), mixer="dplr", rank=2, d_state=8),
    row("orthogonal", 2, 5, mixer="orthogonal", damping="none"),
    row("low rank", 1, 5, mixer="low_rank", rank=2, feedback=["B", "C"]),
    row("kronecker", 2, 4, mixer="kronecker", expand=3),
    row("", 0, 3),
    row("", 2, 0),
    row("", 1, 1),
]
BEDOUIN_LARGE: list[LayerRow] = []
