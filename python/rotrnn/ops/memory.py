"""Memories with weights by age: angles of rotational position codes, and weighted sums over stored histories."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import empty_like
from rotrnn.devices.recording import RecordedLengths
from rotrnn.ops.boundary import COMPLEX, Array, Boundary, on_host
from rotrnn.ops.pointwise import mask_padding

__all__ = ["HistoryReadGrads", "history_read", "history_read_backward", "wrope_angle"]

FORMS = ("uniform", "warped", "blend", "blend_printed")


def wrope_angle(n: npt.ArrayLike, length: int, form: str = "warped") -> Array:
    """Angle by which a memory of age n is rotated, in radians.

    With L = `length`, the typical length of a sequence, and n = 0, 1, 2, ... (J. O. Smith, "Rotational memory", slide
    "RoPE and WRoPE"):

    - "uniform": ``2 pi n / L``, RoPE; it goes around every L steps.
    - "warped": ``2 pi n / (n + L)``, WRoPE, after the bilinear transform; it increases from 0 towards 2 pi and is pi at
      n = L. This is the default: one smooth formula, in which every age has a different angle.
    - "blend": ``pi n / L`` for n < L, then ``pi + pi (n - L) / n``: uniform up to L, then warped, with continuous value
      and slope.
    - "blend_printed": the blend as printed on the slide, with second part ``pi + pi n / (n + 1)``: at n = L it jumps
      from almost pi to almost 2 pi, so ages from L on have almost the same angle. Included for comparison.

    Parameters
    ----------
    n : array
        Ages, nonnegative.
    length : int
        L, at least 1.
    form : str
        One of the four names above.

    Returns
    -------
    angle : float64, of n's shape

    Raises
    ------
    ValueError
        An age is negative or not finite, the length is not positive, or the form is unknown.
    """
    given = on_host("wrope_angle", "n", n)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"wrope_angle: n has dtype {given.dtype}, expected integers or real numbers")
    ages = given.astype(np.float64)
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        raise ValueError(f"wrope_angle: length={length!r}, expected a positive integer")
    if not isinstance(form, str) or form not in FORMS:
        raise ValueError(f"wrope_angle: form={form!r}, expected one of {', '.join(FORMS)}")
    if not (np.isfinite(ages) & (ages >= 0)).all():
        raise ValueError("wrope_angle: n has an age that is negative or not finite, expected nonnegative ages")
    L = float(length)
    if form == "uniform":
        return 2 * np.pi * ages / L
    if form == "warped":
        return 2 * np.pi * ages / (ages + L)
    if form == "blend":
        return np.where(ages < L, np.pi * ages / L, np.pi + np.pi * (ages - L) / np.maximum(ages, L))
    return np.where(ages < L, np.pi * ages / L, np.pi + np.pi * ages / (ages + 1))  # blend_printed


LEAST_STEPS = 512
"""Minimum number of steps in a segment of the FFT."""


class HistoryReadGrads(NamedTuple):
    """Gradients of `history_read`: of h (B, T, N) and of past (B, R, N)."""

    dh: Array
    dpast: Array


def history_read(
    weights: npt.ArrayLike, h: npt.ArrayLike, past: npt.ArrayLike | None = None, *, lengths: npt.ArrayLike | None = None
) -> Array:
    """Weighted sum over a stored history at each step, with weights by the age of the states.

    ``m_t = sum_{k<M} w_k h_{t-k}``; with ``w_k = e^{i Delta_k}`` this is the history re-encoded by age (J. O. Smith,
    "Rotational memory", slide "WRoPE memory"; the sum includes the current state, of age 0). Computed by FFT, for each
    sequence separately, in segments of max(3 M, 512) steps. Therefore a number that is not finite also affects earlier
    steps of its segment, and rounding errors are relative to the largest m of a segment: in float32 up to 6e-7
    of it, in trials.

    Parameters
    ----------
    weights : (M,) or (M, N), complex
        Weight of each age, starting with age 0; for all of the N states, or for each.
    h : (B, T, N), complex
        States.
    past : (B, R, N), complex, optional
        States before the first step, oldest first. Earlier states are zero.
    lengths : (B,), optional
        Number of valid steps of each sequence; beyond them h is not read and m is zero.

    Returns
    -------
    m : (B, T, N)

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a length out of range.
    """
    args = Boundary("history_read")
    ah = args.array("h", h, "B T N", kinds=COMPLEX)
    aw = args.array("weights", weights, "M", "M N", kinds=COMPLEX)
    apast = args.optional("past", past, "B R N", kinds=COMPLEX)
    steps = args.lengths(lengths)
    ah, aw, apast = args.common(ah, aw, apast)
    if isinstance(steps, RecordedLengths):  # the filter is causal: with zeros in padding it may run over it
        return unpadded(history_read(aw, unpadded(ah, steps), apast), steps)
    m = empty_like(ah)
    for b, n in enumerate(_steps(ah, steps)):
        before = ah[b, :0] if apast is None else apast[b]
        m[b, :n] = _filter(aw, np.concatenate([before, ah[b, :n]]))[len(before) :]
        m[b, n:] = 0
    return m


def history_read_backward(
    dm: npt.ArrayLike, weights: npt.ArrayLike, rows: int = 0, *, lengths: npt.ArrayLike | None = None
) -> HistoryReadGrads:
    """Adjoint of `history_read` with respect to the states: ``dh_s = sum_{k<M} conj(w_k) dm_{s+k}``, also for the past.

    Parameters
    ----------
    dm : (B, T, N), complex
        Gradient of m; padding beyond `lengths` is never read.
    weights, lengths
        As given to `history_read`. For the gradient of the weights see `history_weights_backward`.
    rows : int
        R, the number of past states.

    Returns
    -------
    HistoryReadGrads
        ``(dh, dpast)``, dpast of shape (B, R, N).

    Raises
    ------
    TypeError, ValueError
        As `history_read`.
    """
    args = Boundary("history_read_backward")
    adm = args.array("dm", dm, "B T N", kinds=COMPLEX)
    aw = args.array("weights", weights, "M", "M N", kinds=COMPLEX)
    steps, rows = args.lengths(lengths), args.integer("rows", rows)
    args.check_size("dh of so many rows", (adm.shape[0], rows + adm.shape[1], adm.shape[2]), adm.dtype)
    adm, aw = args.common(adm, aw)
    B, _, N = adm.shape
    if isinstance(steps, RecordedLengths):
        grads = history_read_backward(unpadded(adm, steps), aw, rows)
        return HistoryReadGrads(unpadded(grads.dh, steps), grads.dpast)
    dh, dpast = empty_like(adm), args.empty((B, rows, N), adm.dtype)
    for b, n in enumerate(_steps(adm, steps)):
        later = np.concatenate([adm[b, :n][::-1], np.zeros((rows, N), adm.dtype, like=adm)])
        d = _filter(aw.conj(), later)[::-1]
        dpast[b], dh[b, :n] = d[:rows], d[rows:]
        dh[b, n:] = 0
    return HistoryReadGrads(dh, dpast)


def history_weights_backward(
    dm: npt.ArrayLike,
    h: npt.ArrayLike,
    past: npt.ArrayLike | None = None,
    *,
    count: int,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """Adjoint of `history_read` with respect to the weights: ``dw_k = sum_{b,t} dm_t * conj(h_{t-k})``, by FFT.

    Parameters
    ----------
    dm : (B, T, N), complex
        Gradient of m; padding beyond `lengths` is never used.
    h, past, lengths
        As given to `history_read`.
    count : int
        M, the number of ages.

    Returns
    -------
    dweights : (M, N)
        For weights (M,) that all states share, its sum over the last axis.

    Raises
    ------
    TypeError, ValueError
        As `history_read`.
    """
    args = Boundary("history_weights_backward")
    adm = args.array("dm", dm, "B T N", kinds=COMPLEX)
    ah = args.array("h", h, "B T N", kinds=COMPLEX)
    apast = args.optional("past", past, "B R N", kinds=COMPLEX)
    steps, count = args.lengths(lengths), args.integer("count", count)
    adm, ah, apast = args.common(adm, ah, apast)
    dweights = args.zeros((count, adm.shape[2]), adm.dtype)
    if not (adm.size and count):
        return dweights
    adm, ah = unpadded(adm, steps), unpadded(ah, steps)
    T, rows = ah.shape[1], ah.shape[1] + (0 if apast is None else apast.shape[1])
    known = min(count, rows)  # no state is older
    size = _fast_size(rows + known - 1)  # room for `known` ages, so that no older row wraps around
    for b in range(len(ah)):
        stored = ah[b] if apast is None else np.concatenate([apast[b], ah[b]])
        later = np.zeros_like(stored)
        later[rows - T :] = adm[b]
        spectrum = np.fft.fft(later, size, axis=0) * np.fft.fft(stored, size, axis=0).conj()
        dweights[:known] += np.fft.ifft(spectrum, axis=0)[:known].astype(adm.dtype)
    return dweights


def unpadded(x: Array, lengths: Any) -> Array:
    """Returns complex x (B, T, N) with zeros in padding."""
    return mask_padding(x.view(x.real.dtype), lengths).view(x.dtype)


def _steps(h: Array, lengths: Array | None) -> list[int]:
    return [h.shape[1]] * h.shape[0] if lengths is None else [int(n) for n in lengths]


def _filter(weights: Array, x: Array) -> Array:
    """Returns ``sum_k weights_k * x_{t-k}`` for x (T, N), in segments a few windows long (overlap-save method)."""
    T = len(x)
    weights = weights[:T]
    M = len(weights)
    if not (x.size and M):
        return np.zeros_like(x)
    step = min(T, max(3 * M, LEAST_STEPS))
    size = _fast_size(step + M - 1)
    response = np.fft.fft(weights, size, axis=0)
    if weights.ndim == 1:
        response = response[:, None]
    y = np.empty_like(x)
    for start in range(0, T, step):
        piece = x[max(start - M + 1, 0) : start + step]
        before = min(start, M - 1)
        # circular wrap-around only affects the first outputs, which are discarded, or the zero padding
        spectrum = np.fft.fft(piece, size, axis=0)
        spectrum *= response
        y[start : start + step] = np.fft.ifft(spectrum, axis=0)[before : len(piece)]
    return y


def _fast_size(size: int) -> int:
    """Returns the smallest number >= `size` without prime factors above 11, for which NumPy's FFT is fast."""
    while pow(2 * 3 * 5 * 7 * 11, 64, size):  # nonzero if another prime divides it
        size += 1
    return size
