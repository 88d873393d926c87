"""Rows of AUSSM."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.rnn import SHAPES
from cases.table import Arrays
from rotrnn.nn.layers.aussm import AUSSM


def aussm_reference(layer: AUSSM, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The equations as they are printed, with complex states h = e^{ic} conj(q) B."""
    (B, T, D), N, K = x.shape, layer.d_state, max(layer.d_conv, 1)
    past, c0, q0 = state
    inputs, angle, q = np.array(past), c0.sum(1), np.array(q0)
    to_h, out = (np.log1p(np.exp(params[f"{one}_re"])) * np.exp(1j * params[f"{one}_im"]) for one in "BC")
    X, y = params["X"].reshape(D, N, D), np.zeros(x.shape)
    taps, shift = (params["conv_w"], params["conv_bias"]) if layer.d_conv else (np.ones((D, 1)), 0)
    cT = np.zeros(c0.shape)
    for b in range(B):
        c = angle[b]
        h = np.exp(1j * c) * (q[b, ..., 0] - 1j * q[b, ..., 1]) * to_h
        for t in range(T if lengths is None else lengths[b]):
            u, z = np.split(params["in_proj"] @ x[b, t], 2)
            window = np.concatenate([inputs[b], u[None]])
            s = (taps * window.T).sum(-1) + shift
            inputs[b] = window[1:] if K > 1 else inputs[b]
            theta = np.einsum("ijr,r->ij", X, s) / np.sqrt(D) + params["X_bias"].reshape(D, N)
            delta = np.log1p(np.exp(params["dt_proj"] @ (params["x_proj"] @ s) + params["dt_bias"]))
            v = s * sigmoid_formula(s)
            h = np.exp(1j * theta) * h + (delta * v)[:, None] * to_h
            c = c + theta
            o = (h * out).sum(-1).real + params["D"] * v
            y[b, t] = params["out_proj"] @ (o * z * sigmoid_formula(z))
        turned = np.conj(np.exp(-1j * c) * h / to_h)
        q[b] = np.stack([turned.real, turned.imag], -1)
        cT[b, 0] = c - 2 * np.pi * np.rint(c / (2 * np.pi))
    return y, (inputs, cT, q)


LAYERS = [
    LayerRow(name, layer, B, T, lengths, aussm_reference, terms=100 * (T + 6) ** 2, linear=(("out_proj",), ("D",)))
    for name, layer, shapes in (("", AUSSM(3, 4), SHAPES), ("no convolution", AUSSM(2, 3, 0, 1), SHAPES[:1]))
    for B, T, lengths in shapes
]
