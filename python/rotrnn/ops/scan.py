"""Diagonal and rotation scans: the recurrence h_t = a_t h_{t-1} + x_t and its adjoint."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu
from rotrnn.ops.boundary import COMPLEX, REAL, Array, Boundary

LANES = REAL + COMPLEX


class DiagonalScanGrads(NamedTuple):
    """Gradients of `diagonal_scan`: of a (shape of a), of x (B, T, N), of h0 (B, N)."""

    da: Array
    dx: Array
    dh0: Array


def diagonal_scan(
    a: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Diagonal linear recurrence over time.

    ``h_t = a_t * h_{t-1} + x_t`` for t = 0..T-1 with ``h_{-1} = h0`` (zero if absent); with ``reverse``, time runs
    backwards: ``h_t = a_t * h_{t+1} + x_t``, and `h0` enters at the last valid step. This is the recurrence of LRU
    (Orvieto et al. 2023, eq. 5), S4D and S5, and of RotRNN ("RotRNN: Modelling Long Sequences with Rotations", eq. 12) with each rotated plane as
    one complex number.

    Parameters
    ----------
    a : (N,) or (B, T, N), real or complex
        Transition, constant in time or not.
    x : (B, T, N), real or complex
        Input. Any T >= 0. Any of float32, float64, complex64, complex128; `a`, `x` and `h0` are promoted to their
        common dtype by NumPy's rules.
    h0 : (B, N), optional
        Initial state.
    reverse : bool
        Run time backwards, by indexing.
    lengths : (B,) integers in [0, T], optional
        Valid steps of each sequence. What lies beyond is never read (it may be NaN) and is zero in `h`.
    return_state : bool
        Also return the final state.
    out : (B, T, N), optional
        Writeable, C-contiguous array of the common dtype to receive `h`; must not overlap an input.

    Returns
    -------
    h : (B, T, N)
        All states.
    hT : (B, N)
        Only with `return_state`: the state after the last valid step in scan order; `h0` (or zero) if there is none.

    Raises
    ------
    TypeError
        An array has another dtype (integers and float16 are not taken).
    ValueError
        Shapes disagree, a length is out of range, `out` does not fit, or a size product overflows.
    """
    args = Boundary("diagonal_scan")
    ax = args.array("x", x, "B T N", kinds=LANES)
    aa = args.array("a", a, "N", "B T N", kinds=LANES)
    ah0 = args.optional("h0", h0, "B N", kinds=LANES)
    steps = args.lengths(lengths)
    ax, aa, ah0 = args.common(ax, aa, ah0)
    h = args.out("out", out, ax.shape, ax.dtype, a, x, h0)
    B, T, N = ax.shape
    hT = np.empty((B, N), ax.dtype) if return_state else None
    _cpu.scan_forward(h, hT, aa, ax, ah0, steps, B, T, N, aa.ndim == 3, reverse)
    return h if hT is None else (h, hT)


def diagonal_scan_backward(
    dh: npt.ArrayLike,
    a: npt.ArrayLike,
    h: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> DiagonalScanGrads:
    """Adjoint of `diagonal_scan`.

    ``g_t = dh_t + conj(a_{t+1}) g_{t+1}`` with boundary ``g_{T-1} = dh_{T-1} + dhT``; then ``dx_t = g_t``,
    ``da_t = g_t conj(h_{t-1})`` (summed over b and t for a constant `a`) and ``dh0 = conj(a_0) g_0``. If a sequence has
    no steps, ``dh0 = dhT``. Complex gradients are stored as ``dL/dRe + i dL/dIm``; where forward promoted a real
    argument to complex, its gradient is the real part of what is returned here.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`; beyond `lengths` it is never read.
    a, h0, reverse, lengths
        As given to `diagonal_scan`.
    h : (B, T, N)
        What `diagonal_scan` returned.
    dhT : (B, N), optional
        Gradient of the final state.
    out : (B, T, N), optional
        Receives `dx`, as in `diagonal_scan`.

    Returns
    -------
    DiagonalScanGrads
        ``(da, dx, dh0)``, all new arrays (nothing is accumulated); `dx`, and `da` if `a` varies, are zero beyond
        `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `diagonal_scan`.
    """
    args = Boundary("diagonal_scan_backward")
    adh = args.array("dh", dh, "B T N", kinds=LANES)
    aa = args.array("a", a, "N", "B T N", kinds=LANES)
    ah = args.array("h", h, "B T N", kinds=LANES)
    ah0 = args.optional("h0", h0, "B N", kinds=LANES)
    adhT = args.optional("dhT", dhT, "B N", kinds=LANES)
    steps = args.lengths(lengths)
    adh, aa, ah, ah0, adhT = args.common(adh, aa, ah, ah0, adhT)
    B, T, N = adh.shape
    dx = args.out("out", out, adh.shape, adh.dtype, dh, a, h, h0, dhT)
    da = np.empty_like(aa)
    dh0 = np.empty((B, N), adh.dtype)
    _cpu.scan_backward(dx, da, dh0, adh, adhT, aa, ah, ah0, steps, B, T, N, aa.ndim == 3, reverse)
    return DiagonalScanGrads(da, dx, dh0)
