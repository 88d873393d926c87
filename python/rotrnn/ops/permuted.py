"""Scans whose transition is a one-hot matrix times a diagonal: PD-SSM (csrc/kernels/permuted.c)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["PermutedScan", "PermutedScanGrads", "permuted_scan", "permuted_scan_backward"]

PERMUTED = Declared("permuted_scan_forward", "permuted_scan_backward", choices="K")
ESTIMATED = ("w", "m")
"""Arguments whose gradients are estimates (`rotrnn.testing.gradcheck`)."""


class PermutedScan(NamedTuple):
    """States h (B, T, 2, N) of `permuted_scan`, the state after the last valid step hT (B, 2, N), and the rows p (B, T,
    N), int64."""

    h: Array
    hT: Array
    p: Array


class PermutedScanGrads(NamedTuple):
    """Gradients of `permuted_scan`: of w (B, T, K), m (K, N, N), d, x (B, T, 2, N), h0 (B, 2, N)."""

    dw: Array
    dm: Array
    dd: Array
    dx: Array
    dh0: Array


def permuted_scan(
    w: npt.ArrayLike,
    m: npt.ArrayLike,
    d: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> PermutedScan:
    """``h_t = P_t D_t h_{t-1} + x_t``: D_t = diag(d_t), complex, and P_t with a single 1 in each column.

    Column j of P_t has its 1 in row ``p_t[j] = argmax_i M_t[i, j]``, the first of equal maxima, of ``M_t = sum_k w_t[k]
    M[k]``. So a step sends lane j, times d_t[j], to lane p_t[j], and products of transitions have the same form (Terzic
    et al. 2025, PD-SSM). M_t is never stored: it takes K N^2 products a step, the scan N. Where an entry of M_t is NaN,
    so is h_t.

    Parameters
    ----------
    w : (B, T, K)
        Weights of the dictionary. All arrays are float32 or float64, and are promoted to their common dtype.
    m : (K, N, N)
        The dictionary: ``m[k, i, j]`` is in row i and column j. An entry of -inf is never chosen, but gradients of its
        column are NaN: use a large negative number instead.
    d : (B, T, 2, N)
        The diagonals: real parts, and imaginary parts.
    x : (B, T, 2, N)
        Input, any T >= 0.
    h0 : (B, 2, N), optional
        State before the first step. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h` and `p`.

    Returns
    -------
    PermutedScan
        ``(h, hT, p)``.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, a length is out of range, or a size product overflows.
    """
    args = Boundary("permuted_scan")
    args.take(PERMUTED, w=w, m=m, d=d, x=x, h0=h0, lengths=lengths)
    p = args.empty(tuple(args.size[one] for one in "BTN"), np.int64)
    h, hT = args.run("permuted_scan_forward", p=p).values()
    return PermutedScan(h, hT, p)


def permuted_scan_backward(
    dh: npt.ArrayLike,
    w: npt.ArrayLike,
    m: npt.ArrayLike,
    d: npt.ArrayLike,
    found: PermutedScan,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> PermutedScanGrads:
    """Adjoint of `permuted_scan`, straight through the choice of rows.

    With ``g_t = dh_t + D_{t+1}^* P_{t+1}^T g_{t+1}``, which begins with `dhT`: ``dx_t = g_t``, ``dd_t[j] = g_t[p_t[j]]
    conj(h_{t-1}[j])``, and ``dh0 = D_1^* P_1^T g_1``. These are exact.

    P_t is constant almost everywhere, so the derivatives by w and m are zero. Their gradients are straight-through
    estimates: ``dP_t = Re(g_t (D_t h_{t-1})^*)`` counts as the gradient of the softmax S_t of each column of M_t, so
    ``dM_t = S_t * (dP_t - sum_i S_t[i] dP_t[i])``, ``dw_t[k] = <M[k], dM_t>`` and ``dm[k] = sum_t w_t[k] dM_t``. S_t is
    computed again, for a few columns of one step at a time: some 3 K N^2 products and N^2 exponentials a step, and no
    memory for it.

    Parameters
    ----------
    dh : (B, T, 2, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    w, m, d, h0, lengths
        As given to `permuted_scan`.
    found : PermutedScan
        As `permuted_scan` returned it; its hT is not read.
    dhT : (B, 2, N), optional
        Gradient of the final state.

    Returns
    -------
    PermutedScanGrads
        ``(dw, dm, dd, dx, dh0)``, all new arrays (nothing is accumulated), zero beyond `lengths`. Sums over steps are
        taken in double precision.

    Raises
    ------
    TypeError, ValueError
        As `permuted_scan`, or `found` is not a PermutedScan, or a number of its p is not from 0 to N - 1 (on a GPU,
        whose numbers the host does not see, such a column has no gradient).
    """
    args = Boundary("permuted_scan_backward")
    args.one_of("found", found, PermutedScan)
    args.take(PERMUTED, "found: h", dh=dh, w=w, m=m, d=d, h=found.h, h0=h0, dhT=dhT, lengths=lengths)
    p = args.integers("found.p", found.p, "B T N")
    return PermutedScanGrads(**args.run("permuted_scan_backward", p=p))
