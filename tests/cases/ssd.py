"""Rows of the scan of Mamba-2 and of the layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal, padding
from cases.turn import rotate, selective_angles
from rotrnn.nn.layers.mamba2 import Mamba2
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward


def transition(exponent: Any, negative: bool) -> Any:
    e = np.exp(exponent)
    return 2 * e - 1 if negative else e


def ssd_loop(
    x: Any, delta: Any, A: Any, B: Any, C: Any, skip: Any, h0: Any, reverse: bool = False, negative: bool = False,
    lengths: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """h_t = a_t h_{t-1} + (delta_t x_t) B_t^T, y_t = h_t C_t + skip x_t, step by step and head by head."""
    y, hT = np.zeros_like(x), np.array(h0)
    heads = x.shape[2] // B.shape[2] if B.shape[2] else 1
    for b in range(x.shape[0]):
        steps = range(x.shape[1] if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            for i in range(x.shape[2]):
                hT[b, i] *= transition(delta[b, t, i] * A[i], negative)
                hT[b, i] += np.outer(delta[b, t, i] * x[b, t, i], B[b, t, i // heads])
                y[b, t, i] = hT[b, i] @ C[b, t, i // heads] + skip[i] * x[b, t, i]
    return y, hT


def ssd_case(
    B: int, T: int, H: int, P: int, N: int, *, groups: int = 1, reverse: bool = False, negative: bool = False,
    lengths: Any = None, keep: bool = False,
) -> Case:  # fmt: skip
    """Transitions from a half to a little above one, or, if they may be negative, from -2/3 on; the first head neither
    decays nor grows."""

    how: dict[str, Any] = {"reverse": reverse, "negative": negative, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        A = rng.uniform(-4.5 if negative else -2, 0.05, H)
        A[:1] = 0
        return {
            "x": normal(rng, (B, T, H, P)),
            "delta": rng.uniform(-0.01, 0.4, (B, T, H)),
            "A": A,
            "B": normal(rng, (B, T, groups, N)),
            "C": normal(rng, (B, T, groups, N)),
            "skip": normal(rng, (H,)),
            "h0": normal(rng, (B, H, P, N)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = ssd_scan(**args, **how, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        carries = None
        if keep:
            _, carries = ssd_scan(**args, **how, return_carries=True)
        grads = ssd_scan_backward(doutputs[0], **args, **how, dhT=doutputs[1], carries=carries)
        return {name: getattr(grads, f"d{name}") for name in args}

    flags = " reverse" * reverse + " negative" * negative + " ragged" * (lengths is not None) + " kept" * keep
    return Case(
        f"ssd_scan{flags} {B}x{T}x{H}x{P} G{groups} N{N}",
        make,
        forward,
        backward,
        lambda args: ssd_loop(**args, **how),
        # the gradient of A sums over steps, those of B and C over heads, and a decay's over the state
        terms=(8 + B) * T + N * P + 2 * H * P + 20,
        linear=(("x", "h0"), ("B", "h0"), ("C", "skip")),
        ragged=padding(lengths, "x", "delta", "B", "C", "out0"),
        lengths=lengths,
    )


OPS = [
    ssd_case(2, 7, 3, 2, 4),
    ssd_case(1, 1, 1, 1, 1, keep=True),
    ssd_case(2, 0, 2, 3, 2),
    ssd_case(0, 4, 2, 3, 2),
    ssd_case(2, 4, 0, 3, 2),
    ssd_case(2, 4, 2, 0, 2),
    ssd_case(2, 4, 2, 3, 0, keep=True),
    ssd_case(1, 131, 4, 5, 3, groups=2, keep=True),  # two chunks and the beginning of a third, several tasks
    ssd_case(3, 70, 2, 3, 5, lengths=(70, 0, 33)),  # lengths past a chunk, none, and within one
    ssd_case(3, 70, 6, 2, 3, groups=3, reverse=True, lengths=(33, 70, 0), keep=True),
    ssd_case(1, 65, 2, 17, 33, reverse=True),  # several vectors of channels and states
    ssd_case(2, 7, 3, 2, 4, negative=True),
    ssd_case(3, 70, 4, 3, 5, groups=2, lengths=(70, 0, 33), negative=True, keep=True),
    ssd_case(2, 70, 3, 2, 3, reverse=True, lengths=(33, 70), negative=True),
]

OPS_LARGE = [
    ssd_case(3, 150, 8, 16, 8, groups=2, lengths=(150, 0, 97)),
    ssd_case(1, 200, 12, 8, 16, reverse=True),  # one sequence, whose heads are divided into tasks
]


def mamba2_loop(layer: Mamba2, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, with a buffer for the window of the convolution."""
    tail, *turning, h = (np.array(one) for one in state)
    inner, H, P, N, G, K = layer.inner, layer.heads, layer.width, layer.d_state, layer.groups, layer.convolved
    y = np.zeros_like(x)

    def swish(v: Any) -> Any:
        return v / (1 + np.exp(-v))

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            z, v, d = np.split(params["in_proj"] @ x[b, t] + params.get("in_bias", 0), [inner, inner + K])
            if layer.d_conv:
                window = np.concatenate([tail[b], v[None]])
                tail[b] = window[1:]
                v = np.einsum("kd,dk->d", window, params["conv_w"]) + params.get("conv_bias", 0)
            u, B, C = np.split(swish(v), [inner, inner + G * N])
            u, B, C = u.reshape(H, P), B.reshape(G, N), C.reshape(G, N)
            if turning:
                past, c = (one[b] for one in turning)
                selective_angles(layer, params, x[b, t], past, c)
                B, C = (rotate(one, c.sum(0), "halves") for one in (B, C))
            delta = np.log1p(np.exp(d + params["dt_bias"]))
            out = np.zeros((H, P))
            for i in range(H):
                group = i // (H // G)
                h[b, i] = transition(-delta[i] * np.exp(params["A_log"][i]), layer.negative) * h[b, i]
                h[b, i] += np.outer(delta[i] * u[i], B[group])
                out[i] = h[b, i] @ C[group] + params["D"][i] * u[i]
            gated = (out.ravel() * swish(z)).reshape(G, inner // G)
            normed = gated / np.sqrt(np.mean(gated**2, 1, keepdims=True) + layer.norm_eps)
            y[b, t] = params["out_proj"] @ (params["norm"] * normed.ravel()) + params.get("out_bias", 0)
    if turning:
        whole = turning[1].sum(1)
        turning[1] = np.stack([whole - 2 * np.pi * np.rint(whole / (2 * np.pi)), np.zeros_like(whole)], 1)
    return y, (tail, *turning, h)


def mamba2_row(name: str, layer: Mamba2, B: int, T: int, lengths: Any = None, reference: Any = mamba2_loop) -> LayerRow:
    readouts = (("out_proj", "out_bias") if layer.bias else ("out_proj",)), ("norm",)
    terms = (20 + B) * T + 6 * layer.inner + layer.width * layer.d_state + 60
    return LayerRow(name, layer, B, T, lengths, reference, terms=terms, linear=readouts)


LAYERS = [
    mamba2_row("", Mamba2(4, d_state=3, d_head=2), 2, 12),
    mamba2_row("", Mamba2(4, d_state=3, d_head=4), 3, 9, (9, 0, 2)),
    mamba2_row("", Mamba2(3, d_state=2), 1, 0),
    mamba2_row("groups", Mamba2(4, d_state=3, d_head=2, groups=2), 2, 70),  # more than a chunk
    mamba2_row("biased", Mamba2(3, d_state=2, d_conv=2, bias=True, expand=1, d_head=1), 2, 6),
    mamba2_row("no convolution", Mamba2(3, d_state=2, d_conv=0), 2, 6),
    mamba2_row("no bias", Mamba2(3, d_state=2, d_conv=1, conv_bias=False), 2, 6, (6, 3)),
    mamba2_row("negative", Mamba2(4, d_state=3, d_head=2, dt_min=0.02, negative=True), 3, 9, (9, 0, 2)),
    mamba2_row("rope", Mamba2(4, d_state=4, d_head=2, groups=2, rope_base=50.0, rope_rank=3), 2, 70, (70, 9)),
    mamba2_row("rope bias", Mamba2(4, d_state=2, rope_base=1.0, rope_bias=True, negative=True), 2, 5),
]

LAYERS_LARGE = [mamba2_row("", Mamba2(24, d_state=8, d_head=12, groups=2), 3, 200, (200, 0, 133), None)]
