"""The exponential-trapezoidal scan of Mamba-3: two taps of the input in one pass of `rotrnn.ops.ssd_scan`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import SSD_CHUNK
from rotrnn.ops.boundary import Array, Boundary, longer
from rotrnn.ops.declared import Declared
from rotrnn.ops.pointwise import last_step, last_step_backward, mask_padding
from rotrnn.ops.ssd import check_groups

__all__ = ["TrapezoidScan", "TrapezoidScanGrads", "trapezoid_scan", "trapezoid_scan_backward"]


MOST_RANKS = SSD_CHUNK
"""A chunk of the scan has whole steps."""


class TrapezoidScan(NamedTuple):
    """Result of `trapezoid_scan`: y (B, T, H, P), the state (hT (B, H, P, N), BT (B, G, N), xT (B, H, P)), and
    `carries` for backward. With `gain` y is (B, T, R, H, P), and BT (B, R, G, N)."""

    y: Array
    hT: Array
    BT: Array
    xT: Array
    carries: Array


class TrapezoidScanGrads(NamedTuple):
    """Gradients of `trapezoid_scan`, each in the shape of its argument; dskip and dgain are None without skip and
    gain."""

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
    dgain: Array | None


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
    gain: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> TrapezoidScan:
    """Recurrence of heads with a matrix state each, whose input enters at its step and at the next one.

    ``h_t = a_t h_{t-1} + (1 - lam_t) delta_t a_t x_{t-1} B_{t-1}^T + lam_t delta_t x_t B_t^T``,
    ``y_t = h_t C_t + skip x_t``, with ``a_t = exp(log_a_t)``, for each head, t = 0..T-1. Before the first step are h0,
    B0 and x0 (default zero). This is the exponential-trapezoidal rule of Mamba-3 (2026, arXiv 2603.15569): ``lam = 1``
    is the rule of Mamba-2, ``lam = 1/2`` the trapezoidal rule. The old tap decays as the state does, so both taps are
    one input of the scan of `rotrnn.ops.ssd_scan`: with the step size ``lam_t delta_t`` for y_t, and ``lam_t delta_t +
    (1 - lam_{t+1}) delta_{t+1}`` for later steps.

    With `gain`, the form of several inputs and outputs (MIMO) of R ranks, whose state has the same size: a head's
    inputs are ``x^r = gain_r x``, each with its own B^r and C^r, and

    ``h_t = a_t h_{t-1} + (1 - lam_t) delta_t a_t sum_r x^r_{t-1} (B^r_{t-1})^T + lam_t delta_t sum_r x^r_t (B^r_t)^T``,
    ``y^r_t = h_t C^r_t + skip x^r_t``.

    Ranks are R steps of that scan; only the first decays, and each reads the inputs of all R.

    Parameters
    ----------
    x : (B, T, H, P)
        Input of H heads with P channels, any T >= 0. All arrays are float32 or float64, and are promoted to their
        common dtype.
    delta, lam, log_a : (B, T, H)
        Step sizes, shares of the newer tap, and logarithms of the transitions.
    B, C : (B, T, G, N)
        Input and output directions of the states, for G groups of H / G heads each. With `gain` (B, T, R, G, N).
    skip : (H,), optional
        Gain of the direct path from x to y. Default: no such path.
    h0, B0, x0 : (B, H, P, N), (B, G, N), (B, H, P), optional
        Initial state: of the heads, and B and x of the step before the first, both or neither. With `gain` B0 is
        (B, R, G, N).
    gain : (H, R, P), optional
        Factors of x for the input of each rank, at most 64 ranks.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.

    Returns
    -------
    TrapezoidScan
        ``(y, hT, BT, xT, carries)``: the state after the last valid step, and arrays for backward.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, H is not a multiple of G, there are more than 64 ranks, one of B0 and x0 is missing, a length
        is out of range, or a size product overflows.
    """
    args = Boundary("trapezoid_scan")
    state = {"h0": h0, "B0": B0, "x0": x0, "gain": gain}
    own = _take(args, x=x, delta=delta, lam=lam, log_a=log_a, B=B, C=C, skip=skip, **state, lengths=lengths)
    scan, how = _scan(args, _taps(own))
    y, hT, carries = scan.run("ssd_forward", y=True, hT=True, carries=True, **how).values()
    if gain is not None:
        y = y.reshape(*own["B"].shape[:3], *own["x"].shape[2:])
    BT, xT = (last_step(own[one], own["lengths"], own[f"{one}0"]) for one in "Bx")
    return TrapezoidScan(y, hT, BT, xT, carries)


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
    gain: npt.ArrayLike | None = None,
    *,
    carries: Array,
    dhT: npt.ArrayLike | None = None,
    dBT: npt.ArrayLike | None = None,
    dxT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> TrapezoidScanGrads:
    """Adjoint of `trapezoid_scan`.

    The scan has the step sizes ``w_t = lam_t delta_t``, which y_t reads, and ``v_{t+1} = (1 - lam_{t+1}) delta_{t+1}``
    besides for later steps. With their gradients dw_t and dv_{t+1}, ``ddelta_t = lam_t dw_t + (1 - lam_t) dv_t``,
    ``dlam_t = delta_t (dw_t - dv_t)``. Before the first step the tap is ``v_0 x0 B0^T``, a part of h0. With `gain`,
    gradients of step sizes are summed over ranks.

    Parameters
    ----------
    dy : (B, T, H, P)
        Gradient of `y`; padding beyond `lengths` is never read. With `gain` (B, T, R, H, P).
    x, delta, lam, log_a, B, C, skip, h0, B0, x0, gain, lengths
        As given to `trapezoid_scan`.
    carries : array
        As `trapezoid_scan` returned it.
    dhT, dBT, dxT : (B, H, P, N), (B, G, N), (B, H, P), optional
        Gradients of the final state; with `gain` dBT is (B, R, G, N).

    Returns
    -------
    TrapezoidScanGrads
        ``(dx, ddelta, dlam, dlog_a, dB, dC, dskip, dh0, dB0, dx0, dgain)``, all new arrays, zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `trapezoid_scan`.
    """
    args = Boundary("trapezoid_scan_backward")
    given = {"x": x, "delta": delta, "lam": lam, "log_a": log_a, "B": B, "C": C, "skip": skip}
    state = {"h0": h0, "B0": B0, "x0": x0, "gain": gain, "dhT": dhT, "dBT": dBT, "dxT": dxT}
    own = _take(args, dy=dy, **given, **state, lengths=lengths)
    lengths, taps = own["lengths"], _taps(own)
    carries = args.array("carries", carries, "B chunks H P N")
    scan, how = _scan(args, taps, dy=own["dy"], dhT=own["dhT"], carries=carries)
    found = scan.run("ssd_backward", **how)
    dx, ddelta, dB, dC, dlog_a, dlater = (found[name] for name in ("dx", "ddelta", "dB", "dC", "dlog_a", "dlater"))
    dgain = None
    if own["gain"] is not None:
        of_ranks = own["B"].shape[:3]
        dx, dB, dC, ddelta, dlater, dlog_a = (
            one.reshape(*of_ranks, *one.shape[2:]) for one in (dx, dB, dC, ddelta, dlater, dlog_a)
        )
        dgain = (
            (dx * mask_padding(own["x"], own["lengths"])[:, :, None])
            .sum((0, 1), dtype=np.float64)
            .astype(dx.dtype)
            .swapaxes(0, 1)
        )
        dx = (dx * own["gain"].swapaxes(0, 1)).sum(2)
        ddelta, dlater, dlog_a = ddelta.sum(2), dlater.sum(2), dlog_a[:, :, 0]
    dv = np.zeros_like(ddelta)
    dx0, dB0 = (last_step_backward(own[one], d, lengths) for one, d in (("dxT", dx), ("dBT", dB)))
    dv[:, 1:] = dlater[:, :-1]
    if own["x0"] is not None and dv.shape[1]:
        dh0 = found["dh0"].reshape(taps.shape)
        for rank, (x_before, B_before) in enumerate(zip(taps.x0, taps.B0, strict=True)):
            by_head, by_group = x_before * dh0, B_before * dh0
            dtap = (taps.first * by_group).sum(-1).reshape(dx0.shape)
            dv[:, 0] += (x_before * by_group).sum((-2, -1)).reshape(dv[:, 0].shape)
            dB_before = (taps.first * by_head).sum((2, 3))
            if dgain is None:
                dx0 += dtap
                dB0 += dB_before
            else:
                dx0 += dtap * own["gain"][:, rank]
                dB0[:, rank] += dB_before
                dgain[:, rank] += (dtap * own["x0"]).sum(0)
    dv = mask_padding(dv, lengths)
    dlam = mask_padding(own["delta"], lengths) * (ddelta - dv)
    ddelta = mask_padding(own["lam"], lengths) * (ddelta - dv) + dv
    rest = found["dskip"], found["dh0"], dB0, dx0, dgain
    return TrapezoidScanGrads(dx, ddelta, dlam, dlog_a, dB, dC, *rest)


class _Taps(NamedTuple):
    """The step sizes lam_t delta_t and v_{t+1} of the two taps of each input (B, T, H), and h0 with the tap before the
    first step: the sum of ``first x0 B0^T`` over ranks, in heads by group (B, G, H / G, P, N)."""

    newer: Array
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
    h0, x0, B0, gain = own["h0"], own["x0"], own["B0"], own["gain"]
    if x0 is None or not delta.shape[1]:
        return _Taps(newer, later, h0, None, (), (), ())
    (size, H, P), (G, N) = x0.shape, B0.shape[-2:]
    shape = size, G, H // G, P, N
    first = v[:, 0].reshape(*shape[:3], 1, 1)
    inputs = (x0,) if gain is None else [x0 * gain[:, rank] for rank in range(gain.shape[1])]
    before = (B0,) if gain is None else B0.swapaxes(0, 1)
    xs, Bs = [one.reshape(*shape[:4], 1) for one in inputs], [one.reshape(size, G, 1, 1, N) for one in before]
    tap = sum(first * x * B for x, B in zip(xs, Bs, strict=True)).reshape(size, H, P, N)
    return _Taps(newer, later, tap if h0 is None else h0 + tap, first, xs, Bs, shape)


def _scan(args: Boundary, taps: _Taps, **more: Any) -> tuple[Boundary, dict[str, Any]]:
    """Returns the scan of `rotrnn.ops.ssd_scan` for two taps, and how it runs: R steps of it for R ranks."""
    own, scan, R = args.given, Boundary(args.op), args.size.get("R", 1)
    x, B, C, delta, later, log_a = own["x"], own["B"], own["C"], taps.newer, taps.later, own["log_a"]
    if own["gain"] is not None:
        size, T, H, P = x.shape
        rows = size, T * R
        x = (mask_padding(own["x"], own["lengths"])[:, :, None] * own["gain"].swapaxes(0, 1)).reshape(*rows, H, P)
        B, C = (one.reshape(*rows, *one.shape[3:]) for one in (B, C))
        delta, later = np.repeat(delta, R, 1), np.repeat(later, R, 1)
        first = np.zeros((size, T, R, H), x.dtype, like=x)
        first[:, :, 0] = log_a
        log_a = first.reshape(*rows, H)
    if "dy" in more:
        more["dy"] = more["dy"].reshape(x.shape)
    given = {"x": x, "delta": delta, "B": B, "C": C, "skip": own["skip"], "log_a": log_a, "later": later}
    scan.take(_declared(R), **given, h0=taps.h0, **more, lengths=longer(own["lengths"], R))
    return scan, {"reverse": False, "negative": False, "ranks": R}


@functools.cache
def _declared(R: int) -> Declared:
    """A chunk has whole tokens of R steps."""
    return Declared("ssd_forward", "ssd_backward", batch="B", chunk=SSD_CHUNK // R * R)


FORMS = {
    "dy": "B T H P",
    "x": "B T H P",
    **dict.fromkeys(("delta", "lam", "log_a"), "B T H"),
    **dict.fromkeys(("B", "C"), "B T G N"),
    "skip": "H",
    **dict.fromkeys(("h0", "dhT"), "B H P N"),
    **dict.fromkeys(("B0", "dBT"), "B G N"),
    **dict.fromkeys(("x0", "dxT"), "B H P"),
    "gain": "H R P",
}
RANKED = {"dy": "B T R H P", "B": "B T R G N", "C": "B T R G N", "B0": "B R G N", "dBT": "B R G N"}
"""Forms with `gain`."""
OPTIONAL = ("skip", "h0", "B0", "x0", "gain", "dhT", "dBT", "dxT")


def _take(args: Boundary, *, lengths: npt.ArrayLike | None, **arrays: Any) -> dict[str, Any]:
    """Checks the arguments, and returns them in one dtype."""
    forms = FORMS if arrays["gain"] is None else FORMS | RANKED
    found = [(args.optional if name in OPTIONAL else args.array)(name, arrays[name], forms[name]) for name in arrays]
    check_groups(args)
    if args.size.get("R", 1) > MOST_RANKS:
        raise ValueError(f"{args.op}: gain has R={args.size['R']} ranks, expected at most {MOST_RANKS}")
    check_tap(args, arrays)
    args.given = dict(zip(arrays, args.common(*found), strict=True))
    args.given["lengths"] = args.lengths(lengths)
    return args.given


def check_tap(args: Boundary, arrays: dict[str, Any]) -> None:
    """Raises ValueError unless both of B0 and x0 are given, or neither."""
    if (arrays["B0"] is None) != (arrays["x0"] is None):
        one, other = ("B0", "x0") if arrays["B0"] is None else ("x0", "B0")
        raise ValueError(f"{args.op}: {one} is None and {other} is not, expected both or neither")
