"""The exponential-trapezoidal scan of Mamba-3: two taps of the input in one pass of `rotrnn.ops.ssd_scan`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary, rename
from rotrnn.ops.pointwise import last_pool, last_pool_backward, mask_padding
from rotrnn.ops.ssd import check_groups, ssd_scan, ssd_scan_backward

__all__ = ["TrapezoidScan", "TrapezoidScanGrads", "trapezoid_scan", "trapezoid_scan_backward"]


class TrapezoidScan(NamedTuple):
    """What `trapezoid_scan` returns: y (B, T, H, P), the state (hT (B, H, P, N), BT (B, G, N), xT (B, H, P)), and
    `carries` for backward."""

    y: Array
    hT: Array
    BT: Array
    xT: Array
    carries: Array


class TrapezoidScanGrads(NamedTuple):
    """Gradients of `trapezoid_scan`, each in the shape of its argument; dskip is None without skip."""

    dx: Array
    ddelta: Array
    dlam: Array
    dlog_a: Array
    dB: Array
    dC: Array
    dskip: Array | None
    dh0: Array
    dB0: Array
    dx0: Array


def trapezoid_scan(
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    lam: npt.ArrayLike,
    log_a: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    B0: npt.ArrayLike | None = None,
    x0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> TrapezoidScan:
    """Recurrence of heads with a matrix state each, whose input enters at its step and at the next one.

    ``h_t = a_t h_{t-1} + (1 - lam_t) delta_t a_t x_{t-1} B_{t-1}^T + lam_t delta_t x_t B_t^T``,
    ``y_t = h_t C_t + skip x_t``, with ``a_t = exp(log_a_t)``, for each head, t = 0..T-1. Before the first step are h0,
    B0 and x0 (default zero). This is the exponential-trapezoidal rule of Mamba-3 (2026, arXiv 2603.15569): ``lam = 1``
    is the rule of Mamba-2, one half the trapezoid. The old tap decays as the state does, so both taps are one input of
    `rotrnn.ops.ssd_scan`, with the step size ``lam_t delta_t + (1 - lam_{t+1}) delta_{t+1}``, of which y_t has the
    first part alone.

    Parameters
    ----------
    x : (B, T, H, P)
        Input of H heads with P channels, any T >= 0. All arrays are float32 or float64, and are promoted to their
        common dtype.
    delta, lam, log_a : (B, T, H)
        Step sizes, shares of the newer tap, and logarithms of the transitions.
    B, C : (B, T, G, N)
        Input and output directions of the states, for G groups of H / G heads each.
    skip : (H,), optional
        Gain of the direct path from x to y. Default: no such path.
    h0, B0, x0 : (B, H, P, N), (B, G, N), (B, H, P), optional
        Initial state: of the heads, and B and x of the step before the first, both or neither.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.

    Returns
    -------
    TrapezoidScan
        ``(y, hT, BT, xT, carries)``: the state after the last valid step, and what backward needs.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, H is not a multiple of G, one of B0 and x0 is missing, a length is out of range, or a size
        product overflows.
    """
    args = Boundary("trapezoid_scan")
    state = {"h0": h0, "B0": B0, "x0": x0}
    own = _take(args, x=x, delta=delta, lam=lam, log_a=log_a, B=B, C=C, skip=skip, **state, lengths=lengths)
    taps = _taps(own)
    y, hT, carries = ssd_scan(
        *(own["x"], taps.step, None, own["B"], own["C"], own["skip"], taps.h0),
        log_a=own["log_a"],
        later=taps.later,
        lengths=own["lengths"],
        return_state=True,
        return_carries=True,
    )
    return TrapezoidScan(y, hT, _last(args, "B"), _last(args, "x"), carries)


def trapezoid_scan_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    lam: npt.ArrayLike,
    log_a: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    B0: npt.ArrayLike | None = None,
    x0: npt.ArrayLike | None = None,
    *,
    carries: Array,
    dhT: npt.ArrayLike | None = None,
    dBT: npt.ArrayLike | None = None,
    dxT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> TrapezoidScanGrads:
    """Adjoint of `trapezoid_scan`.

    It is that of `rotrnn.ops.ssd_scan` by the step size ``w_t = lam_t delta_t + v_{t+1}``, ``v_t = (1 - lam_t)
    delta_t``, whose part v_{t+1} also has a gradient of its own: with dw_t and dv_t the sums of both,
    ``ddelta_t = lam_t dw_t + (1 - lam_t) dv_t``, ``dlam_t = delta_t (dw_t - dv_t)``. Before the first step the tap is
    ``v_0 x0 B0^T``, a part of h0.

    Parameters
    ----------
    dy : (B, T, H, P)
        Gradient of `y`; padding beyond `lengths` is never read.
    x, delta, lam, log_a, B, C, skip, h0, B0, x0, lengths
        As given to `trapezoid_scan`.
    carries
        As `trapezoid_scan` returned it.
    dhT, dBT, dxT : (B, H, P, N), (B, G, N), (B, H, P), optional
        Gradients of the final state.

    Returns
    -------
    TrapezoidScanGrads
        ``(dx, ddelta, dlam, dlog_a, dB, dC, dskip, dh0, dB0, dx0)``, all new arrays, zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `trapezoid_scan`.
    """
    args = Boundary("trapezoid_scan_backward")
    given = {"x": x, "delta": delta, "lam": lam, "log_a": log_a, "B": B, "C": C, "skip": skip}
    state = {"h0": h0, "B0": B0, "x0": x0, "dhT": dhT, "dBT": dBT, "dxT": dxT}
    own = _take(args, dy=dy, **given, **state, lengths=lengths)
    lengths, taps = own["lengths"], _taps(own)
    try:
        found: Any = ssd_scan_backward(
            *(own["dy"], own["x"], taps.step, None, own["B"], own["C"], own["skip"], taps.h0),
            dhT=own["dhT"],
            log_a=own["log_a"],
            later=taps.later,
            lengths=lengths,
            carries=carries,
        )
    except (TypeError, ValueError) as error:  # about carries
        rename(error, "ssd_scan_backward", args.op)
        raise
    dw, dv = found.ddelta, np.zeros_like(found.ddelta)
    dx0, dB0 = _last_adjoint(args, "x", found.dx), _last_adjoint(args, "B", found.dB)
    if dv.shape[1]:
        dv[:, 1:] = (dw + found.dlater)[:, :-1]
    if own["x0"] is not None and dv.shape[1]:
        by_head, by_group = taps.x0 * found.dh0.reshape(taps.shape), taps.B0 * found.dh0.reshape(taps.shape)
        dv[:, 0] = (taps.x0 * by_group).sum((-2, -1)).reshape(dv[:, 0].shape)
        dx0 += (taps.first * by_group).sum(-1).reshape(dx0.shape)
        dB0 += (taps.first * by_head).sum((2, 3))
    dv = mask_padding(dv, lengths)
    dlam = mask_padding(own["delta"], lengths) * (dw - dv)
    ddelta = mask_padding(own["lam"], lengths) * (dw - dv) + dv
    rest = found.dskip, found.dh0, dB0, dx0
    return TrapezoidScanGrads(found.dx, ddelta, dlam, found.dlog_a, found.dB, found.dC, *rest)


class _Taps(NamedTuple):
    """The step sizes w_t of both taps, their part v_{t+1} (B, T, H), and h0 with the tap before the first step: of
    ``first x0 B0^T``, in heads by group (B, G, H / G, P, N)."""

    step: Array
    later: Array
    h0: Array | None
    first: Any
    x0: Any
    B0: Any
    shape: tuple[int, ...]


def _taps(own: dict[str, Any]) -> _Taps:
    delta, lam = (mask_padding(own[name], own["lengths"]) for name in ("delta", "lam"))
    newer = lam * delta
    v, later = delta - newer, np.zeros_like(delta)
    later[:, :-1] = v[:, 1:]
    h0, x0, B0 = own["h0"], own["x0"], own["B0"]
    if x0 is None or not delta.shape[1]:
        return _Taps(newer + later, later, h0, None, None, None, ())
    (size, H, P), (G, N) = x0.shape, B0.shape[1:]
    shape = size, G, H // G, P, N
    first, x0, B0 = v[:, 0].reshape(*shape[:3], 1, 1), x0.reshape(*shape[:4], 1), B0.reshape(size, G, 1, 1, N)
    tap = (first * x0 * B0).reshape(size, H, P, N)
    return _Taps(newer + later, later, tap if h0 is None else h0 + tap, first, x0, B0, shape)


FORMS = {
    **dict.fromkeys(("dy", "x"), "B T H P"),
    **dict.fromkeys(("delta", "lam", "log_a"), "B T H"),
    **dict.fromkeys(("B", "C"), "B T G N"),
    "skip": "H",
    **dict.fromkeys(("h0", "dhT"), "B H P N"),
    **dict.fromkeys(("B0", "dBT"), "B G N"),
    **dict.fromkeys(("x0", "dxT"), "B H P"),
}
OPTIONAL = ("skip", "h0", "B0", "x0", "dhT", "dBT", "dxT")


def _take(args: Boundary, *, lengths: npt.ArrayLike | None, **arrays: Any) -> dict[str, Any]:
    """Checks the arguments, and returns them in one dtype."""
    found = [(args.optional if name in OPTIONAL else args.array)(name, arrays[name], FORMS[name]) for name in arrays]
    check_groups(args)
    if (arrays["B0"] is None) != (arrays["x0"] is None):
        one, other = ("B0", "x0") if arrays["B0"] is None else ("x0", "B0")
        raise ValueError(f"{args.op}: {one} is None and {other} is not, expected both or neither")
    args.given = dict(zip(arrays, args.common(*found), strict=True))
    args.given["lengths"] = args.lengths(lengths)
    return args.given


def _last(args: Boundary, name: str) -> Array:
    """Returns the array at its last valid step; where there is none, before the first."""
    array, before, lengths = (args.given[one] for one in (name, f"{name}0", "lengths"))
    size, T, *shape = array.shape
    last = last_pool(array.reshape(size, T, math.prod(shape)), lengths=lengths).reshape(size, *shape)
    if before is None or (T and lengths is None):
        return last
    there = np.zeros((size, 1, 1), bool, like=last) if not T else (lengths.on(args.device) > 0)[:, None, None]
    kept: Array = np.where(there, last, before)
    return kept


def _last_adjoint(args: Boundary, name: str, d: Array) -> Array:
    """Adds the gradient of the last step to d, and returns that of the array before the first."""
    dlast, lengths = args.given[f"d{name}T"], args.given["lengths"]
    size, T, *shape = d.shape
    dbefore = args.zeros((size, *shape), d.dtype)
    if dlast is None:
        return dbefore
    d += last_pool_backward(dlast.reshape(size, math.prod(shape)), T, lengths=lengths).reshape(d.shape)
    if T and lengths is None:
        return dbefore
    there = np.zeros((size, 1, 1), bool, like=d) if not T else (lengths.on(args.device) > 0)[:, None, None]
    nothing: Array = np.where(there, dbefore, dlast)
    return nothing
