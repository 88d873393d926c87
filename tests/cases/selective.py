"""Rows of the selective scan, and of the layers that use it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.linear import schatten_norm
from cases.table import Arrays, Case, normal, padding, rotation_of
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.selective_rotrnn import SelectiveRotRNN
from rotrnn.ops.selective import selective_scan, selective_scan_backward


def transition(delta: Any, A: Any, negative: bool) -> Any:
    """a_t (D, S) of a token with step sizes delta (D,)."""
    e = np.exp(delta[:, None] * A)
    return 2 * e - 1 if negative else e


def selective_loop(
    x: Any, delta: Any, A: Any, B: Any, C: Any, skip: Any, h0: Any, reverse: bool = False, negative: bool = False,
    lengths: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """h_t = a_t h_{t-1} + (delta_t x_t) B_t^T, y_t = h_t C_t + skip x_t, one step after the other."""
    y, hT = np.zeros_like(x), np.array(h0)
    for b in range(x.shape[0]):
        steps = range(x.shape[1] if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            hT[b] = transition(delta[b, t], A, negative) * hT[b]
            hT[b] += np.outer(delta[b, t] * x[b, t], B[b, t])
            y[b, t] = hT[b] @ C[b, t] + skip * x[b, t]
    return y, hT


def selective_case(
    B: int, T: int, D: int, S: int, *, reverse: bool = False, negative: bool = False, lengths: Any = None,
    keep: bool = False,
) -> Case:  # fmt: skip
    """Transitions from a half to a little above one, or, if they may be negative, from -2/3 on; the first direction of
    the state neither decays nor grows."""

    how: dict[str, Any] = {"reverse": reverse, "negative": negative, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        A = rng.uniform(-4.5 if negative else -2, 0.05, (D, S))
        A[:, :1] = 0
        return {
            "x": normal(rng, (B, T, D)),
            "delta": rng.uniform(-0.01, 0.4, (B, T, D)),
            "A": A,
            "B": normal(rng, (B, T, S)),
            "C": normal(rng, (B, T, S)),
            "skip": normal(rng, (D,)),
            "h0": normal(rng, (B, D, S)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = selective_scan(**args, **how, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        carries = None
        if keep:
            _, carries = selective_scan(**args, **how, return_carries=True)
        grads = selective_scan_backward(doutputs[0], **args, **how, dhT=doutputs[1], carries=carries)
        return {name: getattr(grads, f"d{name}") for name in args}

    flags = "".join(
        [
            " reverse" * reverse,
            " negative" * negative,
            " ragged" * (lengths is not None),
            " kept" * keep,
        ]
    )
    return Case(
        f"selective_scan{flags} {B}x{T}x{D} S{S}",
        make,
        forward,
        backward,
        lambda args: selective_loop(**args, **how),
        terms=(8 + B) * T + S + 2 * D + 20,  # the gradient of A sums over steps, those of B and C over channels
        linear=(("x", "h0"), ("B", "h0"), ("C", "skip")),
        ragged=padding(lengths, "x", "delta", "B", "C", "out0"),
        lengths=lengths,
    )


OPS = [
    selective_case(2, 7, 3, 2),
    selective_case(1, 1, 1, 1, keep=True),
    selective_case(2, 0, 3, 2),
    selective_case(0, 4, 3, 2),
    selective_case(2, 4, 0, 2),
    selective_case(2, 4, 3, 0, keep=True),
    selective_case(1, 257, 5, 3, keep=True),
    selective_case(3, 70, 5, 3, lengths=(70, 0, 33)),  # lengths within the first tile, at none, and past two
    selective_case(3, 70, 37, 3, reverse=True, lengths=(33, 70, 0), keep=True),  # several blocks of channels
    selective_case(2, 33, 130, 4, reverse=True),
    selective_case(2, 7, 3, 2, negative=True),
    selective_case(2, 70, 5, 7, lengths=(70, 33), negative=True, keep=True),  # states together, and one alone
    selective_case(2, 40, 37, 1, reverse=True, negative=True),
]

OPS_LARGE = [
    selective_case(3, 130, 70, 4, lengths=(130, 0, 97)),
    selective_case(20, 40, 40, 4, reverse=True),  # as many sequences as tasks
]


def mamba_loop(layer: Mamba, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, with a buffer for the window of the convolution."""
    tail, h = (np.array(one) for one in state)
    inner, R, S = layer.inner, layer.rank, layer.d_state
    y = np.zeros_like(x)

    def swish(v: Any) -> Any:
        return v / (1 + np.exp(-v))

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            both = params["in_proj"] @ x[b, t] + params.get("in_bias", 0)
            v, z = both[:inner], both[inner:]
            if layer.d_conv:
                window = np.concatenate([tail[b], v[None]])
                tail[b] = window[1:]
                v = np.einsum("kd,dk->d", window, params["conv_w"]) + params.get("conv_bias", 0)
            u = swish(v)
            d, B, C = np.split(params["x_proj"] @ u, [R, R + S])
            if layer.norm_eps is not None:
                d, B, C = (one / np.sqrt(np.mean(one**2) + layer.norm_eps) for one in (d, B, C))
            delta = np.log1p(np.exp(params["dt_proj"] @ d + params["dt_bias"]))
            h[b] = transition(delta, -np.exp(params["A_log"]), layer.negative) * h[b] + np.outer(delta * u, B)
            y[b, t] = params["out_proj"] @ ((h[b] @ C + params["D"] * u) * swish(z)) + params.get("out_bias", 0)
    return y, (tail, h)


def mamba_row(name: str, layer: Mamba, B: int, T: int, lengths: Any = None, reference: Any = mamba_loop) -> LayerRow:
    readout = ("out_proj", "out_bias") if layer.bias else ("out_proj",)
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        reference,
        terms=(20 + B) * T + 4 * layer.inner + 2 * layer.d_state + 40,
        linear=(readout,),
    )


def selective_rotrnn_loop(layer: SelectiveRotRNN, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """x_t = gamma_t P R(theta_t) P^T x_{t-1} + xi_t B u_t, y_t = C x_t + D u_t, head by head, with dense matrices.

    The state in and out is P^T x as complex planes (an odd head's last lane has a zero beside it).
    """
    H, W = layer.heads, layer.base.width
    B, T, _ = x.shape
    even = W + W % 2
    lanes = np.ascontiguousarray(state).view(np.float64).reshape(B, H, even).copy()
    y = np.zeros_like(x)
    for i in range(H):
        P = rotation_of(params["M"][i] - params["M"][i].T)
        C = params["C"][:, i * W : (i + 1) * W]
        for b in range(B):
            h = P @ lanes[b, i, :W]
            for t in range(T if lengths is None else lengths[b]):
                R = np.eye(W)
                for p, angle in enumerate(params["theta"][i] + params["W_theta"][i] @ x[b, t]):
                    c, s = np.cos(angle), np.sin(angle)
                    R[2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = [[c, -s], [s, c]]
                e = params["W_gamma"][i] @ x[b, t] if layer.gamma == "input" else 0
                gamma = np.exp(-np.exp(params["gamma_log"][i] + e))
                xi = np.sqrt((1 - gamma**2) / np.trace(params["B"][i].T @ params["B"][i]))
                if layer.normalise == "bounded":
                    xi = -np.expm1(-np.exp(params["gamma_log"][i] + e)) / schatten_norm(params["B"][i])
                h = gamma * P @ R @ P.T @ h + xi * params["B"][i] @ x[b, t]
                y[b, t] += C @ h
                lanes[b, i, W:] *= gamma
            lanes[b, i, :W] = P.T @ h
    for b in range(B):
        steps = T if lengths is None else lengths[b]
        y[b, :steps] += params["D"] * x[b, :steps]
    return y, lanes.reshape(B, H * even).view(np.complex128)


def rotation_row(
    name: str, layer: SelectiveRotRNN, B: int, T: int, lengths: Any = None, reference: Any = selective_rotrnn_loop
) -> LayerRow:
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        reference,
        terms=(12 + B) * T + 4 * layer.d_state + 4 * layer.d_model + 40,
        linear=(("state",), ("C", "D")),
    )


LAYERS = [
    mamba_row("", Mamba(4, d_state=3), 2, 12),
    mamba_row("", Mamba(4, d_state=3), 3, 9, (9, 0, 2)),
    mamba_row("", Mamba(3, d_state=2), 1, 0),
    mamba_row("biased, rank 2", Mamba(3, d_state=2, dt_rank=2, d_conv=2, bias=True, expand=1), 2, 6),
    mamba_row("no convolution", Mamba(3, d_state=2, d_conv=0, dt_init="constant"), 2, 6),
    mamba_row("no bias", Mamba(3, d_state=2, d_conv=1, conv_bias=False), 2, 6, (6, 3)),
    mamba_row("norms", Mamba(3, d_state=2, dt_rank=2, norm_eps=0.1), 2, 6, (6, 3)),
    mamba_row("negative", Mamba(4, d_state=3, dt_min=0.1, dt_max=1.0, negative=True), 3, 9, (9, 0, 2)),
    rotation_row("", SelectiveRotRNN(4, 8, heads=2, selectivity=1.0), 2, 12),
    rotation_row("", SelectiveRotRNN(3, 4, selectivity=1.0), 1, 0),
    rotation_row("gamma(u)", SelectiveRotRNN(3, 10, heads=2, gamma="input", selectivity=1.0), 2, 9),
    rotation_row("gamma(u)", SelectiveRotRNN(3, 6, heads=2, gamma="input", selectivity=0.5), 3, 9, (9, 0, 2)),
    rotation_row("bounded", SelectiveRotRNN(3, 6, heads=2, gamma="input", normalise="bounded"), 2, 9),
]

LAYERS_LARGE = [
    mamba_row("", Mamba(24, d_state=4), 3, 200, (200, 0, 133), None),
    rotation_row("", SelectiveRotRNN(24, 64, heads=2, gamma="input"), 3, 300, (300, 0, 133), None),
]
