"""Rows of the scan of Mamba-3 and of the layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.table import Arrays, Case, normal, padding
from cases.turn import rotate
from rotrnn.nn.layers.mamba3 import Mamba3
from rotrnn.ops.trapezoid import trapezoid_scan, trapezoid_scan_backward


def trapezoid_loop(
    x: Any, delta: Any, lam: Any, log_a: Any, B: Any, C: Any, skip: Any, h0: Any, B0: Any, x0: Any, lengths: Any = None
) -> tuple[Any, ...]:
    """The two taps of the equation, step by step and head by head; (y, hT, BT, xT)."""
    y, hT, BT, xT = np.zeros_like(x), np.array(h0), np.array(B0), np.array(x0)
    heads = x.shape[2] // B.shape[2]
    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            for i in range(x.shape[2]):
                a, share, step, g = np.exp(log_a[b, t, i]), lam[b, t, i], delta[b, t, i], i // heads
                older, newer = np.outer(xT[b, i], BT[b, g]), np.outer(x[b, t, i], B[b, t, g])
                hT[b, i] = a * hT[b, i] + (1 - share) * step * a * older + share * step * newer
                y[b, t, i] = hT[b, i] @ C[b, t, g] + skip[i] * x[b, t, i]
            BT[b], xT[b] = B[b, t], x[b, t]
    return y, hT, BT, xT


def trapezoid_case(B: int, T: int, H: int, P: int, N: int, *, groups: int = 1, lengths: Any = None) -> Case:
    """Shares of the taps from -0.2 to 1.2; the first head neither decays nor grows."""

    def make(rng: np.random.Generator) -> Arrays:
        log_a = rng.uniform(-0.8, 0.02, (B, T, H))
        log_a[..., :1] = 0
        return {
            "x": normal(rng, (B, T, H, P)),
            "delta": rng.uniform(-0.01, 0.4, (B, T, H)),
            "lam": rng.uniform(-0.2, 1.2, (B, T, H)),
            "log_a": log_a,
            "B": normal(rng, (B, T, groups, N)),
            "C": normal(rng, (B, T, groups, N)),
            "skip": normal(rng, (H,)),
            "h0": normal(rng, (B, H, P, N)),
            "B0": normal(rng, (B, groups, N)),
            "x0": normal(rng, (B, H, P)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        return trapezoid_scan(**args, lengths=lengths)[:4]

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dy, dhT, dBT, dxT = doutputs
        how = {"carries": trapezoid_scan(**args, lengths=lengths).carries, "dhT": dhT, "dBT": dBT, "dxT": dxT}
        grads = trapezoid_scan_backward(dy, **args, **how, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"trapezoid_scan{' ragged' * (lengths is not None)} {B}x{T}x{H}x{P} G{groups} N{N}",
        make,
        forward,
        backward,
        lambda args: trapezoid_loop(**args, lengths=lengths),
        terms=(10 + B) * T + N * P + 4 * H * P + 24,  # as ssd_scan; what a step reads is the difference of two sums
        linear=(("C", "skip"),),
        ragged=padding(lengths, "x", "delta", "lam", "log_a", "B", "C", "out0"),
        lengths=lengths,
    )


OPS = [
    trapezoid_case(2, 7, 3, 2, 4),
    trapezoid_case(1, 1, 1, 1, 1),
    trapezoid_case(2, 0, 2, 3, 2),
    trapezoid_case(0, 4, 2, 3, 2),
    trapezoid_case(1, 131, 4, 5, 3, groups=2),  # two chunks and the beginning of a third
    trapezoid_case(4, 70, 2, 3, 5, lengths=(70, 0, 33, 64)),
    trapezoid_case(2, 65, 2, 17, 33, groups=2),
]

OPS_LARGE = [trapezoid_case(3, 150, 8, 16, 8, groups=2, lengths=(150, 0, 97))]


def mamba3_loop(layer: Mamba3, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, by the equations of the two taps."""
    c, h, B_last, x_last = (np.array(one) for one in state)
    H, P, N, G, A = layer.heads, layer.width, layer.d_state, layer.groups, layer.angles
    y, whole = np.zeros_like(x), c.sum(1)
    sizes = [layer.inner, layer.inner, G * N, G * N, H, H, H]

    def plus(v: Any) -> Any:
        return np.log1p(np.exp(v))

    def normed(v: Any, name: str, i: int) -> Any:
        v = v.reshape(G, N)[i // (H // G)]
        unit = v / np.sqrt(np.mean(v**2) + layer.norm_eps)
        return params[f"{name}_norm"] * unit + params[f"{name}_bias"][i]

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            z, v, B, C, d, r, share, w = np.split(params["in_proj"] @ x[b, t], np.cumsum(sizes))
            v, out = v.reshape(H, P), np.zeros((H, P))
            for i in range(H):
                delta, lam = plus(d[i] + params["dt_bias"][i]), sigmoid_formula(share[i])
                rational = 1 + r[i] if r[i] >= 0 else 1 / (1 - r[i])
                rate = plus(r[i]) if layer.rate == "softplus" else rational
                a = np.exp(-delta * max(rate, layer.A_floor))
                whole[b, i] += np.pi * np.tanh(w) * delta
                B_t, C_t = (rotate(normed(*one, i), whole[b, i], "adjacent") for one in ((B, "B"), (C, "C")))
                older, newer = np.outer(x_last[b, i], B_last[b, i]), np.outer(v[i], B_t)
                h[b, i] = a * h[b, i] + (1 - lam) * delta * a * older + lam * delta * newer
                out[i] = h[b, i] @ C_t + params["D"][i] * v[i]
                B_last[b, i] = B_t
            x_last[b] = v
            if layer.norm:
                scale = params["norm"].reshape(H, P)
                out = scale * out / np.sqrt(np.mean(out**2, 1, keepdims=True) + layer.norm_eps)
            y[b, t] = params["out_proj"] @ (out.ravel() * z * sigmoid_formula(z))
    angles = whole - 2 * np.pi * np.rint(whole / (2 * np.pi))
    return y, (np.stack([angles, np.zeros((len(x), H, A))], 1), h, B_last, x_last)


def mamba3_row(name: str, layer: Mamba3, B: int, T: int, lengths: Any = None, reference: Any = mamba3_loop) -> LayerRow:
    terms = (30 + B) * T + 8 * layer.inner + layer.width * layer.d_state + 80
    return LayerRow(name, layer, B, T, lengths, reference, terms=terms, linear=(("out_proj",),))


LAYERS = [
    mamba3_row("", Mamba3(4, d_state=5, d_head=2), 2, 12),
    mamba3_row("", Mamba3(4, d_state=4, d_head=4), 3, 9, (9, 0, 2)),
    mamba3_row("", Mamba3(3, d_state=4), 1, 0),
    mamba3_row("groups", Mamba3(4, d_state=4, d_head=2, groups=2), 2, 70),  # more than a chunk
    mamba3_row("all turn", Mamba3(3, d_state=2, expand=1, d_head=1, fraction=1.0, rate="rational"), 2, 6),
    mamba3_row("norm", Mamba3(3, d_state=4, d_head=3, norm=True, dt_min=0.1, dt_max=0.9), 2, 6, (6, 3)),
]

LAYERS_LARGE = [mamba3_row("", Mamba3(24, d_state=8, d_head=12, groups=2), 3, 200, (200, 0, 133), None)]
