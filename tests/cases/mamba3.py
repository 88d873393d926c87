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
    x: Any, delta: Any, lam: Any, log_a: Any, B: Any, C: Any, skip: Any, h0: Any, B0: Any, x0: Any, gain: Any = None,
    lengths: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The two taps of the equation, step by step, head by head and rank by rank; (y, hT, BT, xT)."""
    if gain is None:
        gain = np.ones((x.shape[2], 1, x.shape[3]))
        B, C, B0 = B[:, :, None], C[:, :, None], B0[:, None]
        y, *state = trapezoid_loop(x, delta, lam, log_a, B, C, skip, h0, B0, x0, gain, lengths)
        return y[:, :, 0], state[0], state[1][:, 0], state[2]
    R, heads = gain.shape[1], x.shape[2] // B.shape[3]
    y, hT, BT, xT = np.zeros((*x.shape[:2], R, *x.shape[2:])), np.array(h0), np.array(B0), np.array(x0)
    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            for i in range(x.shape[2]):
                a, share, step, g = np.exp(log_a[b, t, i]), lam[b, t, i], delta[b, t, i], i // heads
                older = sum(np.outer(gain[i, r] * xT[b, i], BT[b, r, g]) for r in range(R))
                newer = sum(np.outer(gain[i, r] * x[b, t, i], B[b, t, r, g]) for r in range(R))
                hT[b, i] = a * hT[b, i] + (1 - share) * step * a * older + share * step * newer
                for r in range(R):
                    y[b, t, r, i] = hT[b, i] @ C[b, t, r, g] + skip[i] * gain[i, r] * x[b, t, i]
            BT[b], xT[b] = B[b, t], x[b, t]
    return y, hT, BT, xT


def trapezoid_case(
    B: int, T: int, H: int, P: int, N: int, *, groups: int = 1, lengths: Any = None, ranks: int = 0
) -> Case:
    """Shares of the taps from -0.2 to 1.2; the first head neither decays nor grows."""
    by_rank = (ranks, groups, N) if ranks else (groups, N)

    def make(rng: np.random.Generator) -> Arrays:
        log_a = rng.uniform(-0.8, 0.02, (B, T, H))
        log_a[..., :1] = 0
        args = {
            "x": normal(rng, (B, T, H, P)),
            "delta": rng.uniform(-0.01, 0.4, (B, T, H)),
            "lam": rng.uniform(-0.2, 1.2, (B, T, H)),
            "log_a": log_a,
            "B": normal(rng, (B, T, *by_rank)),
            "C": normal(rng, (B, T, *by_rank)),
            "skip": normal(rng, (H,)),
            "h0": normal(rng, (B, H, P, N)),
            "B0": normal(rng, (B, *by_rank)),
            "x0": normal(rng, (B, H, P)),
        }
        return args | ({"gain": normal(rng, (H, ranks, P))} if ranks else {})

    def forward(args: Arrays) -> tuple[Any, ...]:
        return trapezoid_scan(**args, lengths=lengths)[:4]

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dy, dhT, dBT, dxT = doutputs
        how = {"carries": trapezoid_scan(**args, lengths=lengths).carries, "dhT": dhT, "dBT": dBT, "dxT": dxT}
        grads = trapezoid_scan_backward(dy, **args, **how, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"trapezoid_scan{' ragged' * (lengths is not None)} {B}x{T}x{H}x{P} G{groups} N{N}{f' R{ranks}' * (ranks > 0)}",
        make,
        forward,
        backward,
        lambda args: trapezoid_loop(**args, lengths=lengths),
        # as ssd_scan, whose steps are those of all ranks
        terms=(10 + B) * T * max(ranks, 1) + N * P + 4 * H * P + 24,
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
    trapezoid_case(2, 7, 3, 2, 4, ranks=2),
    trapezoid_case(1, 45, 4, 5, 3, groups=2, ranks=3),  # two chunks of the ranks' steps and the beginning of a third
    trapezoid_case(2, 0, 2, 3, 2, ranks=2),
    trapezoid_case(4, 20, 2, 3, 5, lengths=(20, 0, 3, 16), ranks=4),
    trapezoid_case(1, 3, 1, 2, 2, ranks=1),
    trapezoid_case(1, 4, 1, 2, 2, ranks=24),  # pairs of a step's ranks beyond a band of the products
]

OPS_LARGE = [
    trapezoid_case(3, 150, 8, 16, 8, groups=2, lengths=(150, 0, 97)),
    trapezoid_case(3, 50, 8, 16, 8, groups=8, lengths=(50, 0, 37), ranks=4),
]


def mamba3_loop(layer: Mamba3, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, by the equations of the two taps, rank by rank."""
    c, h, B_last, x_last = (np.array(one) for one in state)
    H, P, N, G, A, R = layer.heads, layer.width, layer.d_state, layer.groups, layer.angles, layer.rank
    B_last = B_last.reshape(-1, R, H, N)
    y, whole = np.zeros_like(x), c.sum(1)
    sizes = [layer.inner, layer.inner, R * G * N, R * G * N, H, H, H]
    one = np.ones((H, R, P))
    U_x, U_z, U_o = (params.get(name, one) for name in ("U_x", "U_z", "U_o"))

    def plus(v: Any) -> Any:
        return np.log1p(np.exp(v))

    def normed(v: Any, name: str, i: int, q: int) -> Any:
        v = v.reshape(R, G, N)[q, i // (H // G)]
        unit = v / np.sqrt(np.mean(v**2) + layer.norm_eps)
        return params[f"{name}_norm"] * unit + params[f"{name}_bias"].reshape(H, R, N)[i, q]

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            z, v, B, C, d, r, share, w = np.split(params["in_proj"] @ x[b, t], np.cumsum(sizes))
            v, z, out = v.reshape(H, P), z.reshape(H, P), np.zeros((H, P))
            for i in range(H):
                delta, lam = plus(d[i] + params["dt_bias"][i]), sigmoid_formula(share[i])
                rational = 1 + r[i] if r[i] >= 0 else 1 / (1 - r[i])
                rate = plus(r[i]) if layer.rate == "softplus" else rational
                a = np.exp(-delta * max(rate, layer.A_floor))
                whole[b, i] += np.pi * np.tanh(w) * delta
                h[b, i] = a * h[b, i]
                for q in range(R):
                    B_t = rotate(normed(B, "B", i, q), whole[b, i], layer.pairs)
                    older, newer = np.outer(U_x[i, q] * x_last[b, i], B_last[b, q, i]), np.outer(U_x[i, q] * v[i], B_t)
                    h[b, i] += (1 - lam) * delta * a * older + lam * delta * newer
                    B_last[b, q, i] = B_t
                for q in range(R):
                    C_t = rotate(normed(C, "C", i, q), whole[b, i], layer.pairs)
                    read = h[b, i] @ C_t + params["D"][i] * U_x[i, q] * v[i]
                    if layer.norm:
                        scale = params["norm"].reshape(H, P)[i]
                        read = scale * read / np.sqrt(np.mean(read**2) + layer.norm_eps)
                    gate = U_z[i, q] * z[i]
                    out[i] += U_o[i, q] * read * gate * sigmoid_formula(gate)
            x_last[b] = v
            y[b, t] = params["out_proj"] @ out.ravel()
    angles = whole - 2 * np.pi * np.rint(whole / (2 * np.pi))
    return y, (np.stack([angles, np.zeros((len(x), H, A))], 1), h, B_last.reshape(state[2].shape), x_last)


def mamba3_row(name: str, layer: Mamba3, B: int, T: int, lengths: Any = None, reference: Any = mamba3_loop) -> LayerRow:
    terms = (30 + B) * T * layer.rank + 8 * layer.inner + layer.width * layer.d_state + 80
    return LayerRow(name, layer, B, T, lengths, reference, terms=terms, linear=(("out_proj",),))


LAYERS = [
    mamba3_row("", Mamba3(4, d_state=5, d_head=2), 2, 12),
    mamba3_row("", Mamba3(4, d_state=4, d_head=4), 3, 9, (9, 0, 2)),
    mamba3_row("", Mamba3(3, d_state=4), 1, 0),
    mamba3_row("groups", Mamba3(4, d_state=4, d_head=2, groups=2), 2, 70),  # more than a chunk
    mamba3_row("all turn", Mamba3(3, d_state=2, expand=1, d_head=1, fraction=1.0, rate="rational"), 2, 6),
    mamba3_row("norm", Mamba3(3, d_state=4, d_head=3, norm=True, dt_min=0.1, dt_max=0.9), 2, 6, (6, 3)),
    mamba3_row("ranks", Mamba3(4, d_state=6, d_head=4, rank=3), 2, 24, (24, 5)),
    mamba3_row("ranks by groups", Mamba3(2, d_state=5, d_head=2, rank=2, groups=2, norm=True, fraction=1.0), 2, 5),
]

LAYERS_LARGE = [
    mamba3_row("", Mamba3(24, d_state=8, d_head=12, groups=2), 3, 200, (200, 0, 133), None),
    mamba3_row("ranks", Mamba3(24, d_state=8, d_head=12, groups=2, rank=4), 3, 70, (70, 0, 43), None),
]
