"""Rows of the scalar memory of the sLSTM and of the layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.slstm import SLSTM
from rotrnn.ops.slstm import slstm, slstm_backward


def slstm_loop(
    w: Any, x: Any, h0: Any, c0: Any, n0: Any, m0: Any, forget: str = "sigmoid", lengths: Any = None
) -> tuple[Any, Any, Any, Any, Any]:
    """The memory as it is, step by step and head by head; in the end it is scaled by its level."""
    y = np.zeros((*x.shape[:2], *x.shape[3:]), x.dtype)
    h, c, n, m = (np.array(one) for one in (h0, c0, n0, m0))
    for b in range(x.shape[0]):
        for i in range(x.shape[3]):
            C, norm, level, out = np.exp(m[b, i]) * c[b, i], np.exp(m[b, i]) * n[b, i], m[b, i], h[b, i]
            for t in range(x.shape[1] if lengths is None else lengths[b]):
                raw = x[b, t, :, i] + (w[i] @ out).reshape(4, -1)
                f = np.exp(raw[1]) if forget == "exp" else 1 / (1 + np.exp(-raw[1]))
                C = f * C + np.exp(raw[0]) * np.tanh(raw[2])
                norm = f * norm + np.exp(raw[0])
                level = np.maximum(np.log(f) + level, raw[0])
                out = y[b, t, i] = C / norm / (1 + np.exp(-raw[3]))
            h[b, i], c[b, i], n[b, i], m[b, i] = out, np.exp(-level) * C, np.exp(-level) * norm, level
    return y, h, c, n, m


def slstm_case(B: int, T: int, H: int, P: int, *, forget: str = "sigmoid", lengths: Any = None) -> Case:
    how: dict[str, Any] = {"forget": forget, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        x = normal(rng, (B, T, 4, H, P))
        x[:, :, 1] = x[:, :, 1] / 4 if forget == "exp" else x[:, :, 1] + 2
        return {
            "w": normal(rng, (H, 4 * P, P)) / (2 * max(P, 1)) ** 0.5,
            "x": x,
            "h0": normal(rng, (B, H, P)),
            "c0": normal(rng, (B, H, P)),
            "n0": rng.uniform(0.5, 2, (B, H, P)),
            "m0": normal(rng, (B, H, P)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = slstm(**args, **how)
        return result.h, result.hT, result.cT, result.nT, result.mT

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        rest = {name: args[name] for name in ("w", "h0", "c0", "n0", "m0")}
        final = dict(zip(("dhT", "dcT", "dnT", "dmT"), doutputs[1:], strict=True))
        grads = slstm_backward(doutputs[0], result=slstm(**args, **how), **rest, **final, **how)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"slstm {forget}{' ragged' * (lengths is not None)} {B}x{T}x{H}x{P}",
        make,
        forward,
        backward,
        lambda args: slstm_loop(**args, **how),
        terms=(4 * P + 24 + B) * T + 40,  # of each step a product of 4 P gates; the gradient of w sums over all
        ragged=padding(lengths, "x", "out0"),
        lengths=lengths,
    )


OPS = [
    slstm_case(2, 7, 2, 3),
    slstm_case(1, 1, 1, 1),
    slstm_case(2, 0, 2, 3),
    slstm_case(0, 4, 2, 3),
    slstm_case(2, 4, 0, 3),
    slstm_case(2, 4, 2, 0),
    slstm_case(1, 33, 1, 5, forget="exp"),
    slstm_case(3, 11, 2, 2, lengths=(11, 0, 5)),
    slstm_case(9, 5, 1, 17, forget="exp", lengths=(3, 5, 0, 1, 5, 2, 4, 4, 1)),  # blocks of sequences
]

OPS_LARGE = [slstm_case(5, 60, 3, 32, lengths=(60, 0, 41, 7, 59))]


def slstm_layer_loop(layer: SLSTM, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """All steps of the memory by its loop; the layer's other parts are of each step alone."""
    z = (x @ params["in_proj"].T + params["bias"]).reshape(*x.shape[:2], 4, layer.heads, layer.width)
    h, *after = slstm_loop(params["recurrent"], z, *state, layer.forget, lengths)
    centred = h - h.mean(-1, keepdims=True)
    normed = centred / np.sqrt(h.var(-1, keepdims=True) + layer.norm_eps)
    y = (params["norm"] * normed.reshape(*x.shape[:2], layer.d_state)) @ params["out_proj"].T
    return y, tuple(after)


def slstm_row(
    name: str, layer: SLSTM, B: int, T: int, lengths: Any = None, reference: Any = slstm_layer_loop
) -> LayerRow:
    # the norm divides by what it is given, so roundings grow by its inverse size; n must stay positive (`noise`)
    terms = (4 * layer.width + 24 + B) * T + 6 * layer.d_state + 200
    return LayerRow(name, layer, B, T, lengths, reference, terms=terms, linear=(("out_proj",), ("norm",)), noise=0.1)


LAYERS = [
    slstm_row("", SLSTM(3, 4), 2, 12),
    slstm_row("heads", SLSTM(4, 6, heads=2), 3, 9, (9, 0, 2)),
    slstm_row("exponential", SLSTM(2, 6, heads=3, forget="exp", norm_eps=0.1), 2, 7),
    slstm_row("", SLSTM(3, 2), 1, 0),
]

LAYERS_LARGE = [slstm_row("", SLSTM(16, 48, heads=2), 5, 60, (60, 0, 41, 7, 59), None)]
