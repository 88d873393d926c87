"""The short convolution in front of a recurrence, ``u = SiLU(conv(v))``, and its adjoint.

Its parameters are conv_w (channels, d_conv) and conv_bias (channels,). The last d_conv - 1 inputs are part of the
layer's state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.layer import Array, Params, StateArray
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.pointwise import silu, silu_backward


class Convolved(NamedTuple):
    """u; and, saved for the adjoint, v and the convolution's output, (B, T, channels) each, and the last inputs before
    and after the sequence, (B, d_conv - 1, channels)."""

    u: Array
    v: Array
    out: Array
    tail: Array | None
    after: Array


def conv_shapes(channels: int, d_conv: int) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the parameters; none for d_conv = 0, which stands for no convolution."""
    return {"conv_w": (channels, d_conv), "conv_bias": (channels,)} if d_conv else {}


def conv_state(channels: int, d_conv: int) -> tuple[StateArray, ...]:
    """Returns the form of the last inputs, as the end of a layer's state."""
    return (StateArray("inputs", (d_conv - 1, channels)),) if d_conv else ()


def initial_conv(rng: np.random.Generator, channels: int, d_conv: int) -> Params:
    """Returns initial parameters, uniform on +-1/sqrt(d_conv) as in Mamba's released code."""
    return {name: rng.uniform(-1, 1, shape) / np.sqrt(d_conv) for name, shape in conv_shapes(channels, d_conv).items()}


def convolve(v: Array, params: Params, tail: Array | None, lengths: Steps) -> Convolved | None:
    """Returns u with what is saved for the adjoint; None if there is no convolution."""
    if "conv_w" not in params:
        return None
    out, after = causal_conv(v, params["conv_w"], params["conv_bias"], tail, lengths=lengths, return_state=True)
    return Convolved(silu(out), v, out, tail, after)


def convolve_backward(
    du: Array, saved: Convolved, params: Params, dafter: Array | None, lengths: Steps
) -> tuple[Array, Params, Array]:
    """Returns the gradients of v, the parameters and `tail`, for those of u and of the last inputs after it."""
    dout = silu_backward(du, saved.out)
    conv = causal_conv_backward(dout, saved.v, params["conv_w"], saved.tail, dfinal=dafter, lengths=lengths)
    return conv.dx, {"conv_w": conv.dw, "conv_bias": conv.dbias}, conv.dstate
