"""Diagonal systems in continuous time, sampled at uneven times (csrc/kernels/sampled.c)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import SAMPLING
from rotrnn.devices.recording import recording
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import REAL, Declared
from rotrnn.ops.linear_layer import check_precision
from rotrnn.ops.pointwise import mask_padding

__all__ = [
    "SampledBankGrads",
    "SampledScanGrads",
    "sampled_bank",
    "sampled_bank_backward",
    "sampled_scan",
    "sampled_scan_backward",
]

SAMPLED = Declared("sampled_scan_forward", "sampled_scan_backward")
BANK = Declared("sampled_bank_forward", "sampled_bank_backward")
LONGEST_INTERVAL = float(np.finfo(np.float32).max)
"""Intervals may be float32."""
INTERVALS = "iuf"
"""Kinds of dtypes that intervals of layers, models and estimators may have."""


def intervals(args: Boundary, dt: npt.ArrayLike, form: str) -> Array:
    """Returns intervals as an array of this form, of float32 or float64: other floating-point numbers and integers
    become float64. TypeError if they are not such numbers, ValueError if the shape is another."""
    array = args.any_array("dt", dt)
    check_kind(f"{args.op}: dt", array.dtype)
    return args.array("dt", array if array.dtype in REAL else array.astype(np.float64), form)


def check_kind(where: str, dtype: np.dtype[Any]) -> None:
    """Raises TypeError, which begins with `where`, if intervals of a dtype are not floating-point numbers or
    integers."""
    if dtype.kind not in INTERVALS:
        way = ": dt / np.timedelta64(1, 's') are seconds" if dtype.kind == "m" else ""
        raise TypeError(f"{where} has dtype {dtype}, expected floating-point numbers or integers{way}")


def check_intervals(args: Boundary, dt: Array, lengths: npt.NDArray[np.int64] | None) -> Array:
    """Returns intervals dt (B, T), zero beyond the lengths. ValueError if one is negative, NaN or too long; two samples
    may be at one time."""
    dt = mask_padding(dt[..., None], lengths)[..., 0]
    if recording() is None and not (fits := (dt >= 0) & (dt <= LONGEST_INTERVAL)).all():
        at = tuple(int(i) for i in np.argwhere(~fits)[0])
        raise ValueError(f"{args.op}: dt is {dt[at]} at {at}, expected intervals from 0 to {LONGEST_INTERVAL:.4g}")
    return dt


class SampledScanGrads(NamedTuple):
    """Gradients of `sampled_scan`: of lam (N,), step (N,), dt (B, T), x (B, T, N) and h0 (B, N)."""

    dlam: Array
    dstep: Array
    ddt: Array
    dx: Array
    dh0: Array


@overload
def sampled_scan(
    lam: npt.ArrayLike, step: npt.ArrayLike, dt: npt.ArrayLike, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    method: str = "zoh", return_state: Literal[False] = False, lengths: npt.ArrayLike | None = None,
) -> Array: ...  # fmt: skip
@overload
def sampled_scan(
    lam: npt.ArrayLike, step: npt.ArrayLike, dt: npt.ArrayLike, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    method: str = "zoh", return_state: Literal[True], lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def sampled_scan(
    lam: npt.ArrayLike, step: npt.ArrayLike, dt: npt.ArrayLike, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    method: str = "zoh", return_state: bool, lengths: npt.ArrayLike | None = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def sampled_scan(
    lam: npt.ArrayLike,
    step: npt.ArrayLike,
    dt: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    method: str = "zoh",
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
) -> Array | tuple[Array, Array]:
    """States of ``h'(s) = lam h(s) + x(s)`` at uneven times: step t takes the time ``step dt_t``.

    ``h_t = a_t h_{t-1} + gain_t x_t`` with ``z_t = lam step dt_t`` and

    - "zoh", zero-order hold, exact for an x that is constant between the times: ``a = e^z``, ``gain = (e^z - 1) /
      lam``. Without input, two steps of dt_1 and dt_2 equal one of their sum;
    - "bilinear", the trapezoidal rule: ``a = (1 + z / 2) / (1 - z / 2)``, ``gain = step dt / (1 - z / 2)``;
    - "first_order": ``a = e^z``, ``gain = step dt``.

    This is the recurrence of S5 on irregular samples (Smith, Warrington, Linderman 2023, section 6.3).

    Parameters
    ----------
    lam : (N,) complex64 or complex128
        Eigenvalues, per unit of time.
    step : (N,) float32 or float64
        Step size of each lane, the time of a unit interval.
    dt : (B, T) float32 or float64
        Intervals: dt_t is from step t-1 to step t. At 0 the state stays as it is. They are not checked: the equations,
        and the gradient of dt, also hold for negative numbers.
    x : (B, T, N) complex
        Input, any T >= 0. All arrays are promoted to a common precision.
    h0 : (B, N) complex, optional
        State before the first step. Default: zero.
    method : "zoh", "bilinear" or "first_order"
        The discretisation.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h`.
    return_state : bool
        Also return the state after the last valid step.

    Returns
    -------
    h : (B, T, N)
    hT : (B, N)
        Only with `return_state`.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, a length is out of range, the method is unknown, or a size product overflows.
    """
    args = Boundary("sampled_scan")
    return_state, which = args.flag("return_state", return_state), SAMPLING[args.choice("method", method, SAMPLING)]
    args.take(SAMPLED, lam=lam, step=step, dt=dt, x=x, h0=h0, lengths=lengths)
    h, hT = args.run("sampled_scan_forward", method=which).values()
    return (h, hT) if return_state else h


def sampled_scan_backward(
    dh: npt.ArrayLike,
    lam: npt.ArrayLike,
    step: npt.ArrayLike,
    dt: npt.ArrayLike,
    x: npt.ArrayLike,
    h: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    method: str = "zoh",
    lengths: npt.ArrayLike | None = None,
) -> SampledScanGrads:
    """Adjoint of `sampled_scan`.

    ``g_t = dh_t + conj(a_{t+1}) g_{t+1}``, which begins with `dhT`; ``dx_t = conj(gain_t) g_t`` and ``dh0 = conj(a_0)
    g_0``. From ``da_t = g_t conj(h_{t-1})`` and ``dgain_t = g_t conj(x_t)`` follow the gradients of lam and of
    ``sigma_t = step dt_t``, with ``dstep = sum dsigma_t dt_t`` and ``ddt_t = sum dsigma_t step`` over the lanes.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    lam, step, dt, x, h0, method, lengths
        As given to `sampled_scan`.
    h : (B, T, N)
        As returned by `sampled_scan`.
    dhT : (B, N), optional
        Gradient of the final state.

    Returns
    -------
    SampledScanGrads
        ``(dlam, dstep, ddt, dx, dh0)``, all new arrays (nothing is accumulated), zero beyond `lengths`. Complex
        gradients are ``dL/dRe + i dL/dIm``. Sums over steps and lanes are taken in double precision.

    Raises
    ------
    TypeError, ValueError
        As `sampled_scan`.
    """
    args = Boundary("sampled_scan_backward")
    which = SAMPLING[args.choice("method", method, SAMPLING)]
    args.take(SAMPLED, dh=dh, lam=lam, step=step, dt=dt, x=x, h=h, h0=h0, dhT=dhT, lengths=lengths)
    return SampledScanGrads(**args.run("sampled_scan_backward", method=which))


class SampledBankSaved(NamedTuple):
    """Saved for backward by `sampled_bank`: intervals, input, lengths, and the states before each tile of 32 steps, as
    real and imaginary parts (B, tiles, N, 2, D)."""

    dt: Array
    u: Array
    lengths: npt.NDArray[np.int64] | None
    carries: Array


class SampledBankGrads(NamedTuple):
    """Gradients of `sampled_bank`: of lam, c (D, N), skip, step (D,), u (B, T, D) and h0 (B, D, N)."""

    dlam: Array
    dc: Array
    dskip: Array
    dstep: Array
    du: Array
    dh0: Array


def sampled_bank(
    lam: npt.ArrayLike,
    c: npt.ArrayLike,
    skip: npt.ArrayLike,
    step: npt.ArrayLike,
    dt: npt.ArrayLike,
    u: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    method: str = "zoh",
    lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array, SampledBankSaved]:
    """N systems of `sampled_scan` per channel with one input, and their weighted sum: one filter for each channel, at
    uneven times.

    ``h_t = a_t h_{t-1} + gain_t u_t`` for every channel's N states, with a and gain of `sampled_scan` for ``z_t = lam
    step dt_t``, and ``y_t = Re sum_n c_n h_{t,n} + skip u_t``. This is S4D's bank (`diagonal_bank`) on irregular
    samples. The states of a step, (B, D, N), are stored only once per 32 steps.

    Parameters
    ----------
    lam, c : (D, N) complex64 or complex128
        Eigenvalues, per unit of time, and readout of each channel's states.
    skip, step : (D,) float32 or float64
        Gain of the direct path from input to output, and the time of a unit interval.
    dt : (B, T) float32 or float64
        Intervals, finite and at least 0: dt_t is from step t-1 to step t. At 0 the states stay as they are.
    u : (B, T, D) float32 or float64
        Input. All arrays are promoted to a common precision.
    h0 : (B, D, N) complex, optional
        States before the first step. Default: zero.
    method : "zoh", "bilinear" or "first_order"
        The discretisation, as in `sampled_scan`.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN), and y is zero there.

    Returns
    -------
    y : (B, T, D)
    hT : (B, D, N) complex
        States after the last valid step.
    saved : SampledBankSaved
        For `sampled_bank_backward`.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, an interval or a length is out of range, the method is unknown, or a size product overflows.
    """
    args = Boundary("sampled_bank")
    which = SAMPLING[args.choice("method", method, SAMPLING)]
    given = args.take(BANK, lam=lam, c=c, skip=skip, step=step, dt=dt, u=u, h0=h0, lengths=lengths)
    check_intervals(args, given["dt"], given["lengths"])
    y, hT, carries = args.run("sampled_bank_forward", method=which).values()
    return y, hT, SampledBankSaved(given["dt"], given["u"], given["lengths"], carries)


def sampled_bank_backward(
    dy: npt.ArrayLike,
    lam: npt.ArrayLike,
    c: npt.ArrayLike,
    skip: npt.ArrayLike,
    step: npt.ArrayLike,
    saved: SampledBankSaved,
    dhT: npt.ArrayLike | None = None,
    *,
    method: str = "zoh",
) -> SampledBankGrads:
    """Adjoint of `sampled_bank`. The states within each tile are computed again from the states before it.

    ``g_t = conj(c) dy_t + conj(a_{t+1}) g_{t+1}``, with dhT for ``conj(a_{t+1}) g_{t+1}`` at the last step;
    ``du_t = Re sum_n conj(gain_t) g_t + skip dy_t``, ``dh0 = conj(a_0) g_0`` (dhT if there are no steps),
    ``dc = sum dy_t conj(h_t)``, ``dskip = sum dy_t u_t``. From ``da_t = g_t conj(h_{t-1})`` and ``dgain_t = g_t u_t``
    follow the gradients of lam and of step. The intervals have no gradient, unlike in `sampled_scan`.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of y; padding beyond `lengths` is never read.
    lam, c, skip, step, method
        As given to `sampled_bank`.
    saved : SampledBankSaved
        As returned by `sampled_bank`.
    dhT : (B, D, N) complex, optional
        Gradient of the final states.

    Returns
    -------
    SampledBankGrads
        ``(dlam, dc, dskip, dstep, du, dh0)``, all new arrays.

    Raises
    ------
    TypeError, ValueError
        As `sampled_bank`.
    """
    args = Boundary("sampled_bank_backward")
    args.one_of("saved", saved, SampledBankSaved)
    which = SAMPLING[args.choice("method", method, SAMPLING)]
    given = {"dy": dy, "lam": lam, "c": c, "skip": skip, "step": step, "dhT": dhT}
    args.take(BANK, "saved: dt u carries", **given, **saved._asdict())
    check_precision(args, "saved.u", saved.u, args.plan.dtype)
    check_precision(args, "saved.carries", saved.carries, args.plan.dtype)
    return SampledBankGrads(**args.run("sampled_bank_backward", method=which))
