"""Causal depthwise convolution over time (csrc/kernels/conv.c)."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import numpy.typing as npt

from rotrnn._support.warn import warn
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["CausalConvGrads", "causal_conv", "causal_conv_backward"]

CONV = Declared("conv_forward", "conv_backward", taps="K", final="hT")


class CausalConvGrads(NamedTuple):
    """Gradients of `causal_conv`: of x (B, T, D), w (D, K), bias (D,), state (B, K-1, D)."""

    dx: Array
    dw: Array
    dbias: Array
    dstate: Array


@overload
def causal_conv(
    x: npt.ArrayLike, w: npt.ArrayLike, bias: npt.ArrayLike | None = None, state: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, lengths: npt.ArrayLike | None = None,
) -> Array: ...  # fmt: skip
@overload
def causal_conv(
    x: npt.ArrayLike, w: npt.ArrayLike, bias: npt.ArrayLike | None = None, state: npt.ArrayLike | None = None, *,
    return_state: Literal[True], lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def causal_conv(
    x: npt.ArrayLike, w: npt.ArrayLike, bias: npt.ArrayLike | None = None, state: npt.ArrayLike | None = None, *,
    return_state: bool, lengths: npt.ArrayLike | None = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def causal_conv(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    state: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Causal depthwise convolution: convolves each channel with its own K taps over the current and earlier steps.

    ``y_t = bias + sum_{k=0}^{K-1} w[:, k] * x_{t-(K-1)+k}``: the last tap multiplies the current input, and `state`
    holds the inputs before the first step. This is the short convolution of Mamba (Gu and Dao 2023, section 3.4), with
    taps in the order of PyTorch's Conv1d (cross-correlation).

    Parameters
    ----------
    x : (B, T, D)
        Input, any T >= 0. All arrays are float32 or float64, and are promoted to their common dtype.
    w : (D, K)
        Taps, K >= 1.
    bias : (D,), optional
    state : (B, K-1, D), optional
        The inputs before the first step, oldest first. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    return_state : bool
        Also return the state after the last valid step.

    Returns
    -------
    y : (B, T, D)
    hT : (B, K-1, D)
        Only with `return_state`: the last K-1 valid inputs, including rows of `state` if there are fewer steps.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, K is 0, a length is out of range, or a size product overflows.
    """
    args = Boundary("causal_conv")
    return_state = args.flag("return_state", return_state)
    _take(args, lengths, x=x, w=w, bias=bias, state=state)
    y, hT = args.run("conv_forward", hT=return_state).values()
    return y if hT is None else (y, hT)


def causal_conv_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    state: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    dfinal: npt.ArrayLike | None = None,
) -> CausalConvGrads:
    """Adjoint of `causal_conv`.

    Let z be the inputs with `state` first, so that y_t uses ``z_t .. z_{t+K-1}``. Then
    ``dz_i = sum_k w[:, k] * dy_{i-k}``, plus `dhT` at the last K-1; ``dw[:, k] = sum dy_t * z_{t+k}``,
    ``dbias = sum dy_t``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; padding beyond `lengths` is never read.
    x, w, state, lengths
        As given to `causal_conv`.
    dhT : (B, K-1, D), optional
        Gradient of the final state.
    dfinal
        The old name of dhT, until the next version.

    Returns
    -------
    CausalConvGrads
        ``(dx, dw, dbias, dstate)``, all new arrays (nothing is accumulated), zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `causal_conv`.
    """
    args = Boundary("causal_conv_backward")
    if dfinal is not None:
        warn("causal_conv_backward: dfinal is now called dhT", DeprecationWarning)
        dhT = dfinal
    _take(args, lengths, dy=dy, x=x, w=w, state=state, dhT=dhT)
    return CausalConvGrads(**args.run("conv_backward"))


def _take(args: Boundary, lengths: npt.ArrayLike | None, **arrays: npt.ArrayLike | None) -> None:
    args.take(CONV, **arrays, lengths=lengths)
    if not args.size["K"]:
        raise ValueError(f"{args.op}: w has shape {args.given['w'].shape}, expected (D, K) with K of at least 1")
