"""Causal depthwise convolution over time (csrc/kernels/conv.c)."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import numpy.typing as npt

from rotrnn.devices.device import empty_like
from rotrnn.ops.boundary import Array, Boundary

__all__ = ["CausalConvGrads", "causal_conv", "causal_conv_backward"]


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
    final : (B, K-1, D)
        Only with `return_state`: the last K-1 valid inputs, including those of `state` if there are fewer steps.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, K is 0, a length is out of range, or a size product overflows.
    """
    args = Boundary("causal_conv")
    return_state = args.flag("return_state", return_state)
    ax, aw = args.array("x", x, "B T D"), _taps(args, w)
    abias = args.optional("bias", bias, "D")
    astate = args.optional("state", state, "B K-1 D")
    steps = args.lengths(lengths)
    ax, aw, abias, astate = args.common(ax, aw, abias, astate)
    B, T, D, K = (args.size[letter] for letter in "BTDK")
    y = empty_like(ax)
    final = args.empty((B, K - 1, D), ax.dtype) if return_state else None
    args.kernels.conv_forward(
        y=y, final=final, x=ax, w=aw, bias=abias, state=astate, lengths=steps, B=B, T=T, D=D, taps=K
    )
    return y if final is None else (y, final)


def causal_conv_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    state: npt.ArrayLike | None = None,
    *,
    dfinal: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> CausalConvGrads:
    """Adjoint of `causal_conv`.

    Let z be the inputs with `state` first, so that y_t uses ``z_t .. z_{t+K-1}``. Then
    ``dz_i = sum_k w[:, k] * dy_{i-k}``, plus `dfinal` at the last K-1; ``dw[:, k] = sum dy_t * z_{t+k}``,
    ``dbias = sum dy_t``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; padding beyond `lengths` is never read.
    x, w, state, lengths
        As given to `causal_conv`.
    dfinal : (B, K-1, D), optional
        Gradient of the final state.

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
    ady = args.array("dy", dy, "B T D")
    ax, aw = args.array("x", x, "B T D"), _taps(args, w)
    astate = args.optional("state", state, "B K-1 D")
    adfinal = args.optional("dfinal", dfinal, "B K-1 D")
    steps = args.lengths(lengths)
    ady, ax, aw, astate, adfinal = args.common(ady, ax, aw, astate, adfinal)
    B, T, D, K = (args.size[letter] for letter in "BTDK")
    dx, dw = empty_like(ax), empty_like(aw)
    dbias, dstate = args.empty((D,), ax.dtype), args.empty((B, K - 1, D), ax.dtype)
    args.kernels.conv_backward(
        dx=dx,
        dw=dw,
        dbias=dbias,
        dstate=dstate,
        dy=ady,
        dfinal=adfinal,
        x=ax,
        w=aw,
        state=astate,
        lengths=steps,
        B=B,
        T=T,
        D=D,
        taps=K,
    )
    return CausalConvGrads(dx, dw, dbias, dstate)


def _taps(args: Boundary, w: npt.ArrayLike) -> Array:
    taps = args.array("w", w, "D K")
    if not taps.shape[1]:
        raise ValueError(f"{args.op}: w has shape {taps.shape}, expected (D, K) with K of at least 1")
    args.bind("K-1", taps.shape[1] - 1, "w, without the current one")
    return taps
