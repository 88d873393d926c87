"""Rows of pairs of lanes that turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.table import Arrays, Case, normal, padding
from rotrnn.ops.turn import turn, turn_backward


def selective_angles(layer: Any, params: Arrays, x: Any, past: Any, c: Any) -> None:
    """Adds the angles of Selective RoPE of a step x (D,) to c (2, H, K / 2); `past` are the inputs of its taps."""
    u = np.concatenate([own / np.sqrt(own @ own + 1e-6) for own in x.reshape(c.shape[1], -1)])
    window = np.concatenate([past, [params["rope_up"] @ (params["rope_down"] @ u)]])
    phi = np.einsum("kd,dk->d", window, params["rope_conv"])
    phi = phi + np.exp(params["rope_bias"]) if layer.rope_bias else phi
    past[:], pairs = window[1:], c.shape[2]
    c[0] += phi.reshape(c.shape[1:]) / layer.rope_base ** (np.arange(pairs) / pairs)


def rotate(x: Any, c: Any, pairs: str) -> Any:
    """Vectors (..., N) whose pairs i are turned by c_i, as complex numbers."""
    y, N = np.array(x), x.shape[-1]
    for i in range(c.shape[-1]):
        first, second = (2 * i, 2 * i + 1) if pairs == "adjacent" else (i, i + N // 2)
        turned = np.exp(1j * c[..., i]) * (x[..., first] + 1j * x[..., second])
        y[..., first], y[..., second] = turned.real, turned.imag
    return y


def turn_loop(
    theta: Any, x: Any, c0: Any, z: Any = None, pairs: str = "adjacent", reverse: bool = False, lengths: Any = None
) -> tuple[Any, ...]:
    """y_t = R(c_t) x_t with c_t = c_{t-1} + theta_t, step by step; (x, z if there is one, cT)."""
    turned = [np.zeros_like(one) for one in (x, z) if one is not None]
    cT = np.zeros_like(c0)
    for b in range(x.shape[0]):
        c = c0[b].sum(0)
        steps = range(x.shape[1] if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            c = c + theta[b, t]
            for y, one in zip(turned, (x, z), strict=False):
                y[b, t] = rotate(one[b, t], c, pairs)
        cT[b, 0] = c - 2 * np.pi * np.rint(c / (2 * np.pi))
    return *turned, cT


def turn_case(
    B: int, T: int, H: int, A: int, N: int, *, vectors: int = 1, others: int | None = None, pairs: str = "adjacent",
    reverse: bool = False, lengths: Any = None,
) -> Case:  # fmt: skip
    """Angles of up to half a turn, so that sums go round many times."""

    how: dict[str, Any] = {"pairs": pairs, "reverse": reverse, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        args = {
            "theta": rng.uniform(-np.pi, np.pi, (B, T, H, A)),
            "x": normal(rng, (B, T, vectors, H, N)),
            "c0": rng.uniform(-np.pi / 2, np.pi / 2, (B, 2, H, A)),
        }
        return args if others is None else {**args, "z": normal(rng, (B, T, others, H, N))}

    def forward(args: Arrays) -> tuple[Any, ...]:
        return tuple(one for one in turn(**args, **how) if one is not None)

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dy, *dw, dcT = doutputs
        found = turn(**args, **how)
        grads = turn_backward(dy, args["theta"], found, args["c0"], dw=dw[0] if dw else None, dcT=dcT, **how)
        return {name: getattr(grads, f"d{name}") for name in args}

    flags = f" {pairs}" + " reverse" * reverse + " ragged" * (lengths is not None)
    outputs = ("out0",) if others is None else ("out0", "z", "out1")
    return Case(
        f"turn{flags} {B}x{T}x{H} A{A} N{N} L{vectors} M{others}",
        make,
        forward,
        backward,
        lambda args: turn_loop(**args, **how),
        # an angle of up to pi is rounded, its gradient sums over steps, vectors and their two lanes
        terms=8 + 2 * T * (vectors + (others or 0)),
        linear=(("x",),) if others is None else (("x", "z"),),
        ragged=padding(lengths, "theta", "x", *outputs),
        lengths=lengths,
    )


OPS = [
    turn_case(2, 7, 3, 2, 5),
    turn_case(1, 1, 1, 1, 2, pairs="halves"),
    turn_case(2, 0, 2, 1, 3, others=1),
    turn_case(0, 4, 2, 1, 3),
    turn_case(2, 4, 0, 1, 3),
    turn_case(2, 130, 2, 0, 3, others=2),  # on a GPU, segments of time without an angle
    turn_case(2, 4, 2, 0, 0),
    turn_case(2, 5, 2, 1, 2, vectors=0, others=1),
    turn_case(1, 263, 2, 3, 7, vectors=2, others=1, pairs="halves"),  # runs of steps, and segments of time on a GPU
    turn_case(3, 131, 2, 2, 4, others=3, lengths=(131, 0, 128)),
    turn_case(3, 131, 2, 2, 6, pairs="halves", reverse=True, lengths=(57, 131, 0)),
    turn_case(2, 130, 1, 17, 35, reverse=True),  # several vectors of angles
]

OPS_LARGE = [
    turn_case(3, 300, 4, 8, 16, others=2, lengths=(300, 0, 129)),
]
