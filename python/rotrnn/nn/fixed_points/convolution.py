"""The short convolution in front of a recurrence, ``u = SiLU(conv(v))``, and its adjoint.

Its parameters are conv_w (channels, d_conv) and conv_bias (channels,), with `of` "conv_w_of" and "conv_bias_of". The
last d_conv - 1 inputs are part of the layer's state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.layer import Array, Params, StateArray
from rotrnn.nn.listing import Listing
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


def conv_names(of: str = "") -> tuple[str, str]:
    """Returns the names of the parameters."""
    suffix = f"_{of}" if of else ""
    return f"conv_w{suffix}", f"conv_bias{suffix}"


def conv_shapes(channels: int, d_conv: int, of: str = "") -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the parameters; none for d_conv = 0, which stands for no convolution."""
    return dict(zip(conv_names(of), ((channels, d_conv), (channels,)), strict=True)) if d_conv else {}


def conv_state(channels: int, d_conv: int) -> tuple[StateArray, ...]:
    """Returns the form of the last inputs, as the end of a layer's state."""
    return (StateArray("inputs", (d_conv - 1, channels)),) if d_conv else ()


def initial_conv(rng: np.random.Generator, channels: int, d_conv: int, of: str = "") -> Params:
    """Returns initial parameters, uniform on +-1/sqrt(d_conv) as in Mamba's released code."""
    shapes = conv_shapes(channels, d_conv, of)
    return {name: rng.uniform(-1, 1, shape) / np.sqrt(d_conv) for name, shape in shapes.items()}


def emit_convolved(to: Listing, params: Params, v: int, of: str = "") -> int:
    """Appends the convolution, if there is one, and returns the register of u."""
    weight, bias = conv_names(of)
    return to("SiLU", to("Conv", v, params[weight], params[bias])) if weight in params else v


def convolve(v: Array, params: Params, tail: Array | None, lengths: Steps, of: str = "") -> Convolved | None:
    """Returns u with what is saved for the adjoint; None if there is no convolution."""
    weight, bias = conv_names(of)
    if weight not in params:
        return None
    out, after = causal_conv(v, params[weight], params[bias], tail, lengths=lengths, return_state=True)
    return Convolved(silu(out), v, out, tail, after)


def convolve_backward(
    du: Array, saved: Convolved, params: Params, dafter: Array | None, lengths: Steps, of: str = ""
) -> tuple[Array, Params, Array]:
    """Returns the gradients of v, the parameters and `tail`, for those of u and of the last inputs after it."""
    weight, bias = conv_names(of)
    dout = silu_backward(du, saved.out)
    conv = causal_conv_backward(dout, saved.v, params[weight], saved.tail, dhT=dafter, lengths=lengths)
    return conv.dx, {weight: conv.dw, bias: conv.dbias}, conv.dstate
