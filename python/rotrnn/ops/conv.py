"""Causal depthwise convolution over time (csrc/kernels/conv.c)."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.device import empty_like

__all__ = ["CausalConvGrads", "causal_conv", "causal_conv_backward"]


class CausalConvGrads(NamedTuple):
    """Gradients of `causal_conv`: of x (B, T, D), w (D, K), bias (D,), state (B, K-1, D)."""

    dx: Array
    dw: Array
    dbias: Array
    dstate: Array


def causal_conv(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    state: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Each channel convolved with its own few taps, over this and earlier steps.

    ``y_t = bias + sum_{k=0}^{K-1} w[:, k] * x_{t-(K-1)+k}``: the last tap meets the present, and inputs before the
    first step are those of `state`. The short convolution of Mamba (Gu and Dao 2023, section 3.4), taps in the order of
    a framework's cross-correlation.

    Parameters
    ----------
    x : (B, T, D)
        Input. Any T >= 0. Each array is float32 or float64; they are promoted to their common dtype.
    w : (D, K)
        Taps, K >= 1.
    bias : (D,), optional
    state : (B, K-1, D), optional
        The inputs before the first, the oldest first; zero if absent.
    lengths : (B,) integers in [0, T], optional
        Valid steps of each sequence. What lies beyond is never read (it may be NaN) and is zero in `y`.
    return_state : bool
        Also return the state after the last valid step.

    Returns
    -------
    y : (B, T, D)
    final : (B, K-1, D)
        Only with `return_state`: the last K-1 valid inputs, those of `state` among them where there are fewer.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, there is no tap, a length is out of range, or a size product overflows.
    """
    args = Boundary("causal_conv")
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

    With z the inputs, `state` first, of which y_t takes ``z_t .. z_{t+K-1}``: ``dz_i = sum_k w[:, k] * dy_{i-k}``, and
    `dfinal` at the last K-1; ``dw[:, k] = sum dy_t * z_{t+k}``, ``dbias = sum dy_t``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; beyond `lengths` it is never read.
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
    args.bind("K-1", taps.shape[1] - 1, "w, less the present one")
    return taps
