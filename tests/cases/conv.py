"""Rows of the short convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.table import Arrays, Case, normal, padding
from rotrnn.ops.conv import causal_conv, causal_conv_backward


def conv_loop(x: Any, w: Any, bias: Any, state: Any, lengths: Any = None) -> tuple[Any, Any]:
    """y_t = bias + sum_k w_k z_{t+k}, z the inputs with those of the state before."""
    K = w.shape[1]
    y, final = np.zeros_like(x), np.zeros_like(state)
    for b in range(x.shape[0]):
        steps = x.shape[1] if lengths is None else lengths[b]
        z = np.concatenate([state[b], x[b, :steps]])
        for t in range(steps):
            y[b, t] = bias + sum(w[:, k] * z[t + k] for k in range(K))
        final[b] = z[steps:]
    return y, final


def conv_case(B: int, T: int, D: int, K: int, *, lengths: Any = None) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        return {
            "x": normal(rng, (B, T, D)),
            "w": normal(rng, (D, K)),
            "bias": normal(rng, (D,)),
            "state": normal(rng, (B, K - 1, D)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = causal_conv(**args, lengths=lengths, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = causal_conv_backward(doutputs[0], args["x"], args["w"], args["state"], dhT=doutputs[1], lengths=lengths)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"causal_conv{' ragged' * (lengths is not None)} {B}x{T}x{D} K{K}",
        make,
        forward,
        backward,
        lambda args: conv_loop(**args, lengths=lengths),
        terms=B * T + 2 * K + 4,
        linear=(("x", "bias", "state"), ("w", "bias")),
        ragged=padding(lengths, "x", "out0"),
        lengths=lengths,
    )


OPS = [
    conv_case(2, 7, 3, 4),
    conv_case(2, 2, 3, 4),  # fewer steps than taps
    conv_case(1, 5, 2, 1),
    conv_case(2, 0, 3, 3),
    conv_case(0, 3, 2, 2),
    conv_case(3, 9, 2, 4, lengths=(9, 0, 2)),
    conv_case(2, 150, 131, 4, lengths=(150, 127)),  # more than one run of steps, enough for threads
]

OPS_LARGE = [
    conv_case(3, 300, 70, 4, lengths=(300, 0, 130)),
]
