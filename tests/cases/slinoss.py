"""Rows of the scan by first-order hold and of SLinOSS."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.ops import sigmoid_formula
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.slinoss import SLinOSS
from rotrnn.ops.hold import hold_scan, hold_scan_backward


def taps_formula(w: complex) -> tuple[complex, complex]:
    """p and q in closed form, or by their series where that would cancel."""
    if abs(w) > 0.5:
        return ((w - 1) * np.exp(w) + 1) / w**2, (np.exp(w) - 1 - w) / w**2
    factorials = np.cumprod([1.0, *range(1, 20)])
    powers = w ** np.arange(18)
    q = (powers / factorials[2:]).sum()
    return (powers / factorials[1:-1]).sum() - q, q


def hold_loop(
    x: Any, delta: Any, log_a: Any, theta: Any, B: Any, C: Any, c0: Any, h0: Any, B0: Any, x0: Any, lengths: Any = None
) -> tuple[Any, ...]:
    """The published formula, complex and not turned, step by step and head by head; (y, cT, hT, BT, xT)."""
    y, (cT, hT, BT, xT) = np.zeros(x.shape), map(np.zeros_like, (c0, h0, B0, x0))
    for b in range(x.shape[0]):
        for i in range(x.shape[2]):
            c = c0[b, :, i].sum()
            unit = np.exp(1j * c)
            z, B_last, x_last = unit * h0[b, i].view(complex), unit * B0[b, i].view(complex), x0[b, i]
            for t in range(x.shape[1] if lengths is None else lengths[b]):
                w, B_t, C_t = log_a[b, t, i] + 1j * theta[b, t, i], B[b, t, i].view(complex), C[b, t, i].view(complex)
                p, q = taps_formula(w)
                z = np.exp(w) * z + delta[b, t, i] * (p * np.outer(x_last, B_last) + q * np.outer(x[b, t, i], B_t))
                y[b, t, i] = (z @ C_t.conj()).real
                B_last, x_last, c = B_t, x[b, t, i], c + theta[b, t, i]
            cT[b, :, i] = c - 2 * np.pi * np.rint(c / (2 * np.pi)), 0
            back = np.exp(-1j * c)
            hT[b, i], BT[b, i], xT[b, i] = (back * z).view(float), (back * B_last).view(float), x_last
    return y, cT, hT, BT, xT


def hold_case(B: int, T: int, H: int, P: int, N: int, *, lengths: Any = None) -> Case:
    """Angles to +-3; the first head neither decays nor grows, and turns by less and less: its w passes by 0."""

    def make(rng: np.random.Generator) -> Arrays:
        log_a, theta = rng.uniform(-0.3, 0.02, (B, T, H)), rng.uniform(-3, 3, (B, T, H))
        log_a[..., :1] = 0
        theta[..., :1] *= (0.1 ** np.arange(T))[:, None]
        return {
            "x": normal(rng, (B, T, H, P)),
            "delta": rng.uniform(-0.01, 0.4, (B, T, H)),
            "log_a": log_a,
            "theta": theta,
            "B": normal(rng, (B, T, H, N)),
            "C": normal(rng, (B, T, H, N)),
            "c0": rng.uniform(-3, 3, (B, 2, H)),
            "h0": normal(rng, (B, H, P, N)),
            "B0": normal(rng, (B, H, N)),
            "x0": normal(rng, (B, H, P)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        return hold_scan(**args, lengths=lengths)[:5]

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dy, dcT, dhT, dBT, dxT = doutputs
        found = hold_scan(**args, lengths=lengths)
        how = {"units": found.units, "carries": found.carries, "dcT": dcT, "dhT": dhT, "dBT": dBT, "dxT": dxT}
        grads = hold_scan_backward(dy, **args, **how, lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"hold_scan{' ragged' * (lengths is not None)} {B}x{T}x{H}x{P} N{N}",
        make,
        forward,
        backward,
        lambda args: hold_loop(**args, lengths=lengths),
        # as trapezoid_scan, and the roundings of e and of the taps, of each of the products
        terms=(10 + B) * T + N * P + 4 * H * P + 60,
        linear=(("C",),),
        ragged=padding(lengths, "x", "delta", "log_a", "theta", "B", "C", "out0"),
        lengths=lengths,
    )


OPS = [
    hold_case(2, 7, 3, 2, 4),
    hold_case(1, 1, 1, 1, 2),
    hold_case(2, 0, 2, 3, 2),
    hold_case(0, 4, 2, 3, 2),
    hold_case(1, 131, 2, 3, 4),  # two chunks and the beginning of a third
    hold_case(4, 70, 2, 3, 6, lengths=(70, 0, 33, 64)),
]

OPS_LARGE = [hold_case(3, 150, 4, 16, 8, lengths=(150, 0, 97))]


def slinoss_loop(layer: SLinOSS, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """The released formulas, one token after the other; the recurrence is that of `hold_loop`, over the whole row."""
    past, *before = state
    (B, T, _), H, P, N, K = x.shape, layer.heads, layer.width, layer.d_state, max(layer.d_conv, 1)
    taps, shift = (params["conv_w"], params["conv_bias"]) if layer.d_conv else (np.ones((layer.inner, 1)), 0)
    inputs = np.array(past)
    v, gates = np.zeros((2, B, T, layer.inner))
    delta, log_a, theta = np.zeros((3, B, T, H))
    into, out = np.zeros((2, B, T, H, 2 * N))
    sizes = [layer.inner, layer.inner, H, H, H, *4 * (H * N,)]

    def spread(low: float, high: float, at: Any) -> Any:
        return low + (high - low) * sigmoid_formula(at)

    def directions(size: Any, angle: Any) -> Any:
        size = np.log1p(np.exp(size)).reshape(H, N)
        z = size * np.exp(1j * np.pi * np.tanh(angle.reshape(H, N)))
        return (z / np.sqrt(np.mean(size**2, -1, keepdims=True) + 1e-8)).view(float)

    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            row = params["in_proj"] @ x[b, t]
            gate, value, dt, alpha, phi, *rest = np.split(row, np.cumsum(sizes)[:-1])
            window = np.concatenate([inputs[b], value[None]])
            s = (taps * window.T).sum(-1) + shift
            inputs[b] = window[1:] if K > 1 else inputs[b]
            v[b, t], gates[b, t] = s * sigmoid_formula(s), gate * sigmoid_formula(gate)
            delta[b, t] = spread(layer.dt_min, layer.dt_max, dt + params["dt_bias"])
            radius = np.exp(-20 * sigmoid_formula(alpha + params["alpha_bias"]))
            log_a[b, t] = np.log(layer.r_min + (1 - layer.r_min) * radius)
            turned = params["theta_bias"] + np.tanh(phi + params["theta_mod_bias"])
            theta[b, t] = (-1.0) ** np.arange(H) * spread(layer.theta_min, layer.theta_max, turned)
            into[b, t], out[b, t] = directions(*rest[:2]), directions(*rest[2:])
    y, *after = hold_loop(v.reshape(B, T, H, P), delta, log_a, theta, into, out, *before, lengths)
    o = (y.reshape(v.shape) + params["D"] * v) * gates
    o *= params["norm"] / np.sqrt(np.mean(o**2, -1, keepdims=True) + layer.norm_eps)
    return o @ params["out_proj"].T, (inputs, *after)


def slinoss_row(name: str, layer: SLinOSS, B: int, T: int, lengths: Any = None, loop: Any = slinoss_loop) -> LayerRow:
    """The norm before out_proj divides small sums by their size, so that it enlarges their roundings."""
    terms = 8 * ((30 + B) * T + 8 * layer.inner + layer.width * layer.d_state + 120)
    return LayerRow(name, layer, B, T, lengths, loop, terms=terms, linear=(("out_proj",),))


LAYERS = [
    slinoss_row("", SLinOSS(4, 3, d_head=2), 2, 12),
    slinoss_row("", SLinOSS(4, 2, d_head=4), 3, 9, (9, 0, 2)),
    slinoss_row("", SLinOSS(3, 2), 1, 0),
    slinoss_row("chunks", SLinOSS(2, 2, d_head=2), 2, 70),
    slinoss_row("no convolution", SLinOSS(3, 2, 1, 1, 0, 0.1, 0.9, 0.1, 1e-3, 3.0), 2, 6, (6, 3)),
]

LAYERS_LARGE = [slinoss_row("", SLinOSS(24, 8, d_head=12), 3, 200, (200, 0, 133), None)]
