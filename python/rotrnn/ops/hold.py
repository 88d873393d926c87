"""A scan of complex states by first-order hold: its input is a straight line from each step to the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import contiguous, full
from rotrnn.ops.boundary import Array, Boundary, rename
from rotrnn.ops.declared import complex_of, pairs, planes
from rotrnn.ops.pointwise import last_index, last_step, last_step_backward, mask_padding
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward
from rotrnn.ops.trapezoid import check_tap
from rotrnn.ops.turn import Turned, turn, turn_backward

__all__ = ["HoldScan", "HoldScanGrads", "hold_scan", "hold_scan_backward"]

_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
QUADRATURE = np.stack([(1 + _PLACES) / 2, _WEIGHTS / 2])
"""Places and weights (2, 10) of Gauss and Legendre's rule on [0, 1]. Its error of an integral of e^{ws} times a
polynomial of degree 2 is less than 2^-53 of the largest of e^{ws} for |w| up to 4."""
MOST = 4


class HoldScan(NamedTuple):
    """Result of `hold_scan`: y (B, T, H, P), the state (cT (B, 2, H), hT (B, H, P, N), BT (B, H, N), xT (B, H, P)),
    and for backward `units` (B, T, H, 2) and `carries`."""

    y: Array
    cT: Array
    hT: Array
    BT: Array
    xT: Array
    units: Array
    carries: Array


class HoldScanGrads(NamedTuple):
    """Gradients of `hold_scan`, each in the shape of its argument."""

    dx: Array
    ddelta: Array
    dlog_a: Array
    dtheta: Array
    dB: Array
    dC: Array
    dc0: Array
    dh0: Array
    dB0: Array
    dx0: Array


def hold_scan(
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    log_a: npt.ArrayLike,
    theta: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    c0: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    B0: npt.ArrayLike | None = None,
    x0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
) -> HoldScan:
    """Recurrence of heads whose states are complex, with one complex transition each, by first-order hold.

    ``z_t = rho_t z_{t-1} + delta_t (p_t x_{t-1} B_{t-1}^T + q_t x_t B_t^T)``, ``y_t = Re(z_t conj(C_t))`` for each
    head, t = 0..T-1, with ``rho_t = e^{w_t}``, ``w_t = log_a_t + i theta_t``,
    ``p = int_0^1 s e^{ws} ds``, ``q = int_0^1 (1 - s) e^{ws} ds``: the contribution to ``z' = w z + delta u`` in the
    time 1 of an input u that is a straight line from ``x_{t-1} B_{t-1}^T`` to ``x_t B_t^T``. Before the first step are
    c0, h0, B0 and x0 (default zero). These are the taps of SLinOSS, ``p = ((w - 1) e^w + 1) / w^2`` and ``q = (e^w - 1
    - w) / w^2``, but as integrals: these have no singularity, and are exact to rounding for |w| up to 4.

    With ``c_t = c_{t-1} + theta_t``, the state that turns with the sum of angles, ``h_t = e^{-i c_t} z_t``, has the
    real transition a_t. The part of x_t that the next step adds is added at once, so both taps are one input of
    `rotrnn.ops.ssd_scan`, ``e^{-i c_t} (delta_t q_t + delta_{t+1} p_{t+1} / rho_{t+1}) B_t``, and this part is
    subtracted from y_t. So y_t is rounded relative to both parts: the second is below 1.2 ``delta_{t+1} / delta_t`` of
    the first for a from 0.8 to 1 and theta from -2 to 2.

    Parameters
    ----------
    x : (B, T, H, P)
        Input of H heads with P channels, any T >= 0. All arrays are float32 or float64, and are promoted to their
        common dtype.
    delta, log_a, theta : (B, T, H)
        Step sizes, logarithms of the sizes of the transitions, from -4 to 4, and their angles in radians, of the same
        range. (Arrays of a GPU are not checked for the range.)
    B, C : (B, T, H, N)
        Input and output directions of N / 2 complex states: lanes 2i and 2i + 1 are the parts of number i.
    c0 : (B, 2, H), optional
        Initial angle of the turned state: the sum of both numbers (`rotrnn.ops.turn`).
    h0, B0, x0 : (B, H, P, N), (B, H, N), (B, H, P), optional
        Initial state: h, turned, with the share of x_{-1} that belongs to it, and B, turned, and x of the step before
        the first, both or neither.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.

    Returns
    -------
    HoldScan
        ``(y, cT, hT, BT, xT, units, carries)``: the state after the last valid step, and arrays for backward.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, N is odd, log_a, theta or a length is out of range, one of B0 and x0 is missing, or a size
        product overflows.
    """
    args = Boundary("hold_scan")
    state = {"c0": c0, "h0": h0, "B0": B0, "x0": x0}
    own = _take(args, x=x, delta=delta, log_a=log_a, theta=theta, B=B, C=C, **state, lengths=lengths)
    size, T, H, _ = own["x"].shape
    vectors = full((size, T, 1, H, 2), 0, own["x"].dtype, own["x"])
    vectors[..., 0] = 1
    turned = turn(own["theta"][..., None], vectors, None, _angles(own["c0"]), lengths=own["lengths"])
    units = turned.y.reshape(size, T, H, 2)
    parts = _parts(args.op, own, units)
    inputs, how = _pass(own, parts)
    y, hT, carries = ssd_scan(*inputs, **how, return_state=True, return_carries=True)
    y -= _early(parts)[..., None] * parts.x
    lengths, B0 = own["lengths"], own["B0"]
    BT = pairs(_conjugate(last_step(units, lengths))[..., None] * _complex(last_step(own["B"], lengths)))
    BT = BT if B0 is None else np.where(last_index(own["B"], lengths)[2], BT, B0)
    xT = last_step(own["x"], lengths, own["x0"])
    return HoldScan(y, turned.cT.reshape(size, 2, H), hT, BT, xT, units, carries)


def hold_scan_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    log_a: npt.ArrayLike,
    theta: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    c0: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    B0: npt.ArrayLike | None = None,
    x0: npt.ArrayLike | None = None,
    *,
    units: Array,
    carries: Array,
    dcT: npt.ArrayLike | None = None,
    dhT: npt.ArrayLike | None = None,
    dBT: npt.ArrayLike | None = None,
    dxT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> HoldScanGrads:
    """Adjoint of `hold_scan`.

    It is the adjoint of `rotrnn.ops.ssd_scan` with the input directions ``W_t = e_t n_t B_t``, ``e_t = e^{-i c_t}``,
    ``n_t = k_t + m_{t+1}``, ``k = delta q``, ``m = delta p / rho``, and of the part that is subtracted from y_t,
    ``Re(m_{t+1} S_t) x_t``, ``S_t = conj(C_t) . B_t``. For a product of complex numbers, ``z = a b``, ``da = conj(b)
    dz``. So ``dn_t = conj(e_t) conj(B_t) . dW_t``; k_t and m_{t+1} both have it, and m_{t+1} also ``-conj(S_t) (x_t .
    dy_t)``. With ``q' = int_0^1 s (1 - s) e^{ws} ds`` and ``(p / rho)' = -q' / rho``, ``dw = delta conj(q') (dk -
    conj(1 / rho) dm)``. Angles have the adjoint of `rotrnn.ops.turn`. Before the first step is the tap ``m_0 x0 B0^T``,
    a part of h0. If a sequence has no steps, gradients of the state pass through.

    Parameters
    ----------
    dy : (B, T, H, P)
        Gradient of `y`; padding beyond `lengths` is never read.
    x, delta, log_a, theta, B, C, c0, h0, B0, x0, lengths
        As given to `hold_scan`.
    units, carries
        As `hold_scan` returned them.
    dcT, dhT, dBT, dxT : (B, 2, H), (B, H, P, N), (B, H, N), (B, H, P), optional
        Gradients of the final state; of dcT the second number, a rounding, counts as a constant.

    Returns
    -------
    HoldScanGrads
        ``(dx, ddelta, dlog_a, dtheta, dB, dC, dc0, dh0, dB0, dx0)``, all new arrays, zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `hold_scan`.
    """
    args = Boundary("hold_scan_backward")
    given = {"x": x, "delta": delta, "log_a": log_a, "theta": theta, "B": B, "C": C}
    state = {"c0": c0, "h0": h0, "B0": B0, "x0": x0, "dcT": dcT, "dhT": dhT, "dBT": dBT, "dxT": dxT}
    own = _take(args, dy=dy, **given, **state, units=units, lengths=lengths)
    lengths, parts, dy = own["lengths"], _parts(args.op, own, own["units"]), mask_padding(own["dy"], own["lengths"])
    inputs, how = _pass(own, parts)
    try:
        found: Any = ssd_scan_backward(dy, *inputs, dhT=own["dhT"], **how, carries=carries)
    except (TypeError, ValueError) as error:  # about carries
        rename(error, "ssd_scan_backward", args.op)
        raise
    e, n, B_in, C_in = parts.e, parts.n, parts.B, parts.C
    dx, dearly = found.dx - _early(parts)[..., None] * dy, -(dy * parts.x).sum(-1)
    dS = np.conj(parts.later) * dearly
    dW, dC_turned = _complex(found.dB), _complex(found.dC)
    dz = (np.conj(B_in) * dW).sum(-1)
    dB = np.conj(e * n)[..., None] * dW + dS[..., None] * C_in
    dC = np.conj(e)[..., None] * dC_turned + np.conj(dS)[..., None] * B_in
    dn, de = np.conj(e) * dz, np.conj(n) * dz + (np.conj(C_in) * dC_turned).sum(-1)
    dlast = args.zeros(own["B"].shape, own["B"].dtype)
    dB0, dx0 = last_step_backward(own["dBT"], dlast, lengths), last_step_backward(own["dxT"], dx, lengths)
    if own["dBT"] is not None:
        dB += np.conj(e)[..., None] * _complex(dlast)
        de += (np.conj(B_in) * _complex(dlast)).sum(-1)
    dolder = np.zeros_like(dn)
    dolder[:, 1:] = (dn + np.conj(parts.S) * dearly)[:, :-1]
    if parts.first is not None:
        dh0, tap = _complex(found.dh0), parts.first * _complex(own["B0"])
        dtap = (own["x0"][..., None] * dh0).sum(-2)
        dolder[:, 0] += (np.conj(_complex(own["B0"])) * dtap).sum(-1)
        dB0 += pairs(np.conj(parts.first) * dtap)
        dx0 += (np.conj(tap)[..., None, :] * dh0).sum(-1).real
    delta, hold = parts.delta, parts.hold
    ddelta = (np.conj(hold.q) * dn + np.conj(hold.m) * dolder).real
    dw = delta * np.conj(hold.slope) * (dn - np.conj(hold.back) * dolder)
    dlog_a, dtheta = (mask_padding(one.astype(dx.dtype), lengths) for one in (dw.real, dw.imag))
    size, T, H, _ = dx.shape
    units = own["units"].reshape(size, T, 1, H, 2)
    turned = turn_backward(
        *(pairs(np.conj(de)).reshape(units.shape), own["theta"][..., None], Turned(units, None, units)),
        _angles(own["c0"]),
        dcT=_angles(own["dcT"]),
        lengths=lengths,
    )
    dB, dC = (mask_padding(pairs(one), lengths) for one in (dB, dC))
    ddelta = mask_padding(ddelta.astype(dx.dtype), lengths)
    dlog_a, dtheta = found.dlog_a + dlog_a, turned.dtheta[..., 0] + dtheta
    before = turned.dc0[..., 0], found.dh0, dB0, dx0
    return HoldScanGrads(mask_padding(dx, lengths), ddelta, dlog_a, dtheta, dB, dC, *before)


class _Hold(NamedTuple):
    """For each step, complex128 (B, T, H): q and m = p / rho, the taps over delta; dq/dw; and back = 1 / rho, with
    dm/dw = -back dq/dw."""

    q: Array
    m: Array
    slope: Array
    back: Array


def _hold(log_a: Array, theta: Array) -> _Hold:
    w = log_a.astype(np.float64) + 1j * theta.astype(np.float64)
    moments = [np.zeros_like(w) for _ in range(3)]
    for s, weight in QUADRATURE.T.tolist():
        e = weight * np.exp(s * w)
        for power, moment in enumerate(moments):
            moment += s**power * e
    one, first, second = moments
    back = np.exp(-w)
    return _Hold(one - first, back * first, first - second, back)


class _Parts(NamedTuple):
    """x, B and C without padding, the latter complex (B, T, H, N / 2); and for each step, complex (B, T, H): e and n
    (`hold_scan_backward`), the share `later` of n that is subtracted from y_t, and S. `first` is the tap before the
    first step, (B, H, 1), None without one."""

    x: Array
    B: Array
    C: Array
    delta: Array
    hold: _Hold
    e: Array
    n: Array
    later: Array
    S: Array
    first: Array | None


def _parts(op: str, own: dict[str, Any], units: Array) -> _Parts:
    lengths = own["lengths"]
    x, B, C = (mask_padding(own[one], lengths) for one in "xBC")
    delta, log_a, theta = (mask_padding(own[one], lengths) for one in ("delta", "log_a", "theta"))
    for name, array in (("log_a", log_a), ("theta", theta)):
        if isinstance(array, np.ndarray) and (wrong := array[abs(array) > MOST]).size:
            raise ValueError(f"{op}: {name} has {wrong[0]}, expected numbers from {-MOST} to {MOST}")
    hold, dtype = _hold(log_a, theta), complex_of(x.dtype)
    newer, older = ((delta * one).astype(dtype) for one in (hold.q, hold.m))
    later = np.zeros_like(older)
    later[:, :-1] = older[:, 1:]
    B, C, e = _complex(B), _complex(C), _conjugate(units)
    first = older[:, 0, :, None] if own["x0"] is not None and x.shape[1] else None
    return _Parts(x, B, C, delta, hold, e, newer + later, later, (np.conj(C) * B).sum(-1), first)


def _early(parts: _Parts) -> Array:
    """Returns the factor of x_t in the part that is subtracted from y_t, (B, T, H)."""
    return (parts.later * parts.S).real


def _pass(own: dict[str, Any], parts: _Parts) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of `ssd_scan`, whose step sizes are 1."""
    h0, dtype = own["h0"], own["x"].dtype
    if parts.first is not None:
        tap = pairs(parts.first * _complex(own["B0"]))
        tap = own["x0"][..., None] * tap[..., None, :]
        h0 = tap if h0 is None else h0 + tap
    W, C = (pairs(z[..., None] * one) for z, one in ((parts.e * parts.n, parts.B), (parts.e, parts.C)))
    ones = full(own["delta"].shape, 1, dtype, own["x"])
    return (parts.x, ones, None, W, C, None, h0), {"log_a": own["log_a"], "lengths": own["lengths"]}


def _complex(array: Array) -> Array:
    """Returns (..., N) as complex numbers (..., N / 2): pairs of adjacent lanes."""
    return planes(contiguous(array))


def _conjugate(units: Array) -> Array:
    """Returns pairs (..., 2) as complex numbers (...), conjugated."""
    return np.conj(_complex(units)[..., 0])


def _angles(c: Array | None) -> Array | None:
    """Returns (B, 2, H) as the angles of `rotrnn.ops.turn`."""
    return None if c is None else c[..., None]


FORMS = {
    **dict.fromkeys(("dy", "x"), "B T H P"),
    **dict.fromkeys(("delta", "log_a", "theta"), "B T H"),
    **dict.fromkeys(("B", "C"), "B T H N"),
    **dict.fromkeys(("c0", "dcT"), "B 2 H"),
    **dict.fromkeys(("h0", "dhT"), "B H P N"),
    **dict.fromkeys(("B0", "dBT"), "B H N"),
    **dict.fromkeys(("x0", "dxT"), "B H P"),
    "units": "B T H 2",
}
OPTIONAL = ("c0", "h0", "B0", "x0", "dcT", "dhT", "dBT", "dxT")


def _take(args: Boundary, *, lengths: npt.ArrayLike | None, **arrays: Any) -> dict[str, Any]:
    """Checks the arguments, and returns them in one dtype."""
    args.bind("2", 2, "")
    found = [(args.optional if one in OPTIONAL else args.array)(one, arrays[one], FORMS[one]) for one in arrays]
    if args.size["N"] % 2:
        raise ValueError(f"{args.op}: B has N={args.size['N']} lanes, expected an even number")
    check_tap(args, arrays)
    args.given = dict(zip(arrays, args.common(*found), strict=True))
    args.given["lengths"] = args.lengths(lengths)
    return args.given
