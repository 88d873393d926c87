"""Rows of the matrix memory of the mLSTM and of the layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.mlstm import MLSTM
from rotrnn.ops.mlstm import mlstm, mlstm_backward


def mlstm_step(C: Any, n: Any, m: Any, q: Any, k: Any, v: Any, log_i: Any, log_f: Any) -> tuple[Any, Any, Any, Any]:
    """One step of a head without any scaling: C (P, N) and n (N) are the memory itself, m only its level."""
    C = np.exp(log_f) * C + np.exp(log_i) * np.outer(v, k)
    n = np.exp(log_f) * n + np.exp(log_i) * k
    return C, n, max(log_f + m, log_i), C @ q / max(abs(n @ q), 1)


def mlstm_loop(
    q: Any, k: Any, v: Any, log_i: Any, log_f: Any, c0: Any, n0: Any, m0: Any, lengths: Any = None
) -> tuple[Any, Any, Any, Any]:
    """The memory as it is, step by step and head by head; in the end it is scaled by its level."""
    y, c, n, m = np.zeros_like(v), np.array(c0), np.array(n0), np.array(m0)
    for b in range(q.shape[0]):
        for i in range(q.shape[2]):
            C, norm, level = np.exp(m[b, i]) * c[b, i], np.exp(m[b, i]) * n[b, i], m[b, i]
            for t in range(q.shape[1] if lengths is None else lengths[b]):
                here = q[b, t, i], k[b, t, i], v[b, t, i], log_i[b, t, i], log_f[b, t, i]
                C, norm, level, y[b, t, i] = mlstm_step(C, norm, level, *here)
            c[b, i], n[b, i], m[b, i] = np.exp(-level) * C, np.exp(-level) * norm, level
    return y, c, n, m


def mlstm_case(B: int, T: int, H: int, P: int, N: int, *, lengths: Any = None) -> Case:
    """Heads take turns: one whose n . q is far below 1, one far above, one far below -1, so that no difference quotient
    meets the kinks of max(|n . q|, 1); keys are positive. Forget gates from a half to a little above one."""

    def make(rng: np.random.Generator) -> Arrays:
        kind = np.arange(H) % 3
        near = rng.uniform(0.5, 1.5, (2, B, T, H, N))
        return {
            "q": near[0] * np.where(kind == 2, -1, 1)[:, None],
            "k": near[1],
            "v": normal(rng, (B, T, H, P)),
            "log_i": rng.uniform(-1, 1, (B, T, H)) + np.where(kind == 0, -9.0, 4.0),
            "log_f": rng.uniform(-0.7, 0.05, (B, T, H)),
            "c0": normal(rng, (B, H, P, N)),
            "n0": rng.uniform(0.5, 1.5, (B, H, N)),
            "m0": rng.uniform(-1, 1, (B, H)) + np.where(kind == 0, -9.0, 4.0),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        return mlstm(**args, lengths=lengths)[:4]

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        inputs = {name: args[name] for name in ("q", "k", "v", "log_i", "log_f")}
        final = dict(zip(("dcT", "dnT", "dmT"), doutputs[1:], strict=True))
        grads = mlstm_backward(doutputs[0], **inputs, result=mlstm(**args, lengths=lengths), **final, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"mlstm{' ragged' * (lengths is not None)} {B}x{T}x{H}x{P} N{N}",
        make,
        forward,
        backward,
        lambda args: mlstm_loop(**args, lengths=lengths),
        terms=16 * T + N * P + 2 * P + 40,  # a gate's gradient sums over later steps, states and channels
        linear=(("v", "c0"),),
        ragged=padding(lengths, "q", "k", "v", "log_i", "log_f", "out0"),
        lengths=lengths,
    )


OPS = [
    mlstm_case(2, 7, 3, 2, 4),
    mlstm_case(1, 1, 1, 1, 1),
    mlstm_case(2, 0, 2, 3, 2),
    mlstm_case(0, 4, 2, 3, 2),
    mlstm_case(2, 4, 0, 3, 2),
    mlstm_case(2, 4, 2, 0, 2),
    mlstm_case(2, 4, 2, 3, 0),
    mlstm_case(1, 131, 4, 5, 3),  # two chunks and the beginning of a third
    mlstm_case(3, 70, 3, 3, 5, lengths=(70, 0, 33)),  # lengths past a chunk, none, and within one
    mlstm_case(1, 65, 3, 17, 33),  # several vectors of channels and states
]

OPS_LARGE = [mlstm_case(3, 150, 4, 16, 8, lengths=(150, 0, 97))]


def mlstm_layer_loop(layer: MLSTM, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, with the memory as it is."""
    c, n, m = (np.array(one) for one in state)
    c, n = np.exp(m)[..., None, None] * c, np.exp(m)[..., None] * n
    y = np.zeros_like(x)
    H = layer.heads

    def through(name: str, u: Any) -> Any:
        return params[f"{name}_proj"] @ u + params.get(f"{name}_bias", 0)

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            u = x[b, t]
            keys = params["k_proj"] @ u / np.sqrt(layer.d_state) + params.get("k_bias", 0)
            q, k, v = through("q", u).reshape(H, -1), keys.reshape(H, -1), through("v", u).reshape(H, -1)
            log_i, log_f = through("i", u), through("f", u)
            if layer.forget == "sigmoid":
                log_f = -np.log1p(np.exp(-log_f))
            out = np.zeros((H, layer.width))
            for i in range(H):
                here = q[i], k[i], v[i], log_i[i], log_f[i]
                c[b, i], n[b, i], m[b, i], h = mlstm_step(c[b, i], n[b, i], m[b, i], *here)
                out[i] = (h - h.mean()) / np.sqrt(h.var() + layer.norm_eps)
            gated = params["norm"] * out.ravel() / (1 + np.exp(-through("o", u)))
            y[b, t] = params["out_proj"] @ gated + params.get("out_bias", 0)
    return y, (np.exp(-m)[..., None, None] * c, np.exp(-m)[..., None] * n, m)


def mlstm_row(
    name: str, layer: MLSTM, B: int, T: int, lengths: Any = None, reference: Any = mlstm_layer_loop
) -> LayerRow:
    readouts = ("out_proj", "out_bias") if layer.bias else ("out_proj",)
    # the norm divides by what it is given, so roundings grow by its inverse size
    terms = (20 + B) * T + 6 * layer.inner + layer.width * layer.d_state + 200
    return LayerRow(name, layer, B, T, lengths, reference, terms=terms, linear=(readouts, ("norm",)))


LAYERS = [
    mlstm_row("", MLSTM(4, d_state=3), 2, 12),
    mlstm_row("heads", MLSTM(4, heads=2, d_state=3, expand=2), 3, 9, (9, 0, 2)),
    mlstm_row("biased", MLSTM(4, heads=2, d_state=2, bias=True, forget="exp", norm_eps=0.1), 2, 7),
    mlstm_row("", MLSTM(4, heads=2, d_state=3), 1, 67, (67,)),  # more than a chunk
    mlstm_row("", MLSTM(3, d_state=2), 1, 0),
]

LAYERS_LARGE = [mlstm_row("", MLSTM(24, heads=2, d_state=8), 3, 200, (200, 0, 133), None)]
