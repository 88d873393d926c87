"""Channel mixers: a product of generalised Householder reflections applied to every token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu
from rotrnn.ops.boundary import Array, Boundary


class HouseholderMixGrads(NamedTuple):
    """Gradients of `householder_mix`: of u and alpha (their shapes), of x (B, T, D)."""

    du: Array
    dalpha: Array
    dx: Array


def householder_mix(
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Product of R generalised Householder reflections, applied to every token in O(D R).

    ``y_t = Q_t x_t`` with ``Q_t = prod_{i=1..R} (I - 2 alpha_i w_i w_i^T)``, ``w_i = u_i / |u_i|`` ("Fixed-Point RNNs",
    eq. 6). The product is in the written order: reflection 1 is leftmost, reflection R acts first. Gain 1 is a
    reflection (Q orthogonal), 1/2 the projection that removes w, 0 the identity; any gain is taken.

    Parameters
    ----------
    u : (R, D), or time-varying (B, T, R, D)
        Directions, of any length: they are normalised here. A zero vector reflects nothing, and its gradient is zero.
    alpha : (R,), or time-varying (B, T, R)
        Gains. `u` and `alpha` vary in time independently of each other.
    x : (B, T, D)
        Tokens. R and T may be 0. Each of float32, float64; the three are promoted to their common dtype.
    lengths : (B,) integers in [0, T], optional
        Valid tokens of each sequence. What lies beyond is never read (it may be NaN) and is zero in `y`.
    out : (B, T, D), optional
        Writeable, C-contiguous array of the common dtype to receive `y`; must not overlap an input.

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    TypeError
        An array has another dtype (integers and float16 are not taken).
    ValueError
        Shapes disagree, a length is out of range, `out` does not fit, or a size product overflows.
    """
    args = Boundary("householder_mix")
    ax = args.array("x", x, "B T D")
    au = args.array("u", u, "R D", "B T R D")
    aalpha = args.array("alpha", alpha, "R", "B T R")
    steps = args.lengths(lengths)
    au, aalpha, ax = args.common(au, aalpha, ax)
    y = args.out("out", out, ax.shape, ax.dtype, u, alpha, x)
    B, T, R, D = (args.size[letter] for letter in "BTRD")
    _cpu.householder_forward(y, au, aalpha, ax, steps, B, T, R, D, au.ndim == 4, aalpha.ndim == 3)
    return y


def householder_mix_backward(
    dy: npt.ArrayLike,
    u: npt.ArrayLike,
    alpha: npt.ArrayLike,
    x: npt.ArrayLike,
    *,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> HouseholderMixGrads:
    """Adjoint of `householder_mix`; recomputes what each reflection was given, token by token.

    For one reflection ``y = v - 2 alpha s w``, ``s = w.v``, with g the gradient of y and ``q = w.g``:
    ``dv = g - 2 alpha q w``, ``dalpha = -2 s q``, ``dw = -2 alpha (s g + q v)``, ``du = (dw - w (w.dw)) / |u|``.
    Constant `u` and `alpha` sum over all tokens, in a fixed order.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; beyond `lengths` it is never read.
    u, alpha, x, lengths
        As given to `householder_mix`.
    out : (B, T, D), optional
        Receives `dx`, as in `householder_mix`.

    Returns
    -------
    HouseholderMixGrads
        ``(du, dalpha, dx)``, all overwritten; zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `householder_mix`.
    """
    args = Boundary("householder_mix_backward")
    ady = args.array("dy", dy, "B T D")
    ax = args.array("x", x, "B T D")
    au = args.array("u", u, "R D", "B T R D")
    aalpha = args.array("alpha", alpha, "R", "B T R")
    steps = args.lengths(lengths)
    ady, au, aalpha, ax = args.common(ady, au, aalpha, ax)
    dx = args.out("out", out, ax.shape, ax.dtype, dy, u, alpha, x)
    du, dalpha = np.empty_like(au), np.empty_like(aalpha)
    B, T, R, D = (args.size[letter] for letter in "BTRD")
    varying = au.ndim == 4, aalpha.ndim == 3
    _cpu.householder_backward(dx, du, dalpha, ady, au, aalpha, ax, steps, B, T, R, D, *varying)
    return HouseholderMixGrads(du, dalpha, dx)
