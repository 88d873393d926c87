"""Diagonal and rotation scans: the recurrence h_t = a_t h_{t-1} + x_t and its adjoint."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_NUMBERS
from rotrnn.devices.device import device_of, empty
from rotrnn.ops.boundary import COMPLEX, REAL, Array, Boundary, Windowed
from rotrnn.ops.declared import Declared

__all__ = [
    "DiagonalScanGrads",
    "RotationScanGrads",
    "diagonal_scan",
    "diagonal_scan_backward",
    "rotation_scan",
    "rotation_scan_backward",
]

SCAN = Declared("scan_forward", "scan_backward")
WINDOW = Declared("window_forward", "window_backward", past="h0", last="hT")
LANES = REAL + COMPLEX


class DiagonalScanGrads(NamedTuple):
    """Gradients of `diagonal_scan`: of a (in its shape), x (B, T, N) and h0 (B, N)."""

    da: Array
    dx: Array
    dh0: Array


@overload
def diagonal_scan(
    a: npt.ArrayLike, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, out: Array | None = None, **how: Unpack[Windowed],
) -> Array: ...  # fmt: skip
@overload
def diagonal_scan(
    a: npt.ArrayLike, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], out: Array | None = None, **how: Unpack[Windowed],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def diagonal_scan(
    a: npt.ArrayLike, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: bool, out: Array | None = None, **how: Unpack[Windowed],
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def diagonal_scan(
    a: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    window: int | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Diagonal linear recurrence over time.

    ``h_t = a_t * h_{t-1} + x_t`` for t = 0..T-1 with ``h_{-1} = h0`` (default zero). With ``reverse``, time runs
    backward: ``h_t = a_t * h_{t+1} + x_t``, and `h0` enters at the last valid step. This is the recurrence of LRU
    (Orvieto et al. 2023, eq. 5), S4D and S5, and of RotRNN ("RotRNN: Modelling Long Sequences with Rotations",
    eq. 12) with each rotated plane as one complex number.

    With ``window=L``, only the last L inputs are summed, at a cost that does not grow with L:
    ``h_t = sum_{k<L} a_t ... a_{t-k+1} x_{t-k}`` (for the algorithm see csrc/kernels/window.c). Nothing is subtracted,
    so rounding errors leave with their window, even at |a| = 1: with |a| <= 1 and u the unit roundoff,
    ``|error| <= 5 (L + 2) u sum_{k<L} |x_{t-k}|`` at any t. (`tiir_scan` computes the same step by step, with
    subtraction.)

    Parameters
    ----------
    a : (N,) or (B, T, N), real or complex
        Transition, constant or time-varying.
    x : (B, T, N), real or complex
        Input, any T >= 0. Arrays are float32, float64, complex64 or complex128; `a`, `x` and `h0` are promoted to their
        common dtype by NumPy's rules.
    h0 : (B, N), optional
        Initial state. With a window, (B, L-1, N): the last L-1 inputs before the first step, oldest first, each
        multiplied by the transitions up to the step before the first. With ``reverse``, before, first and oldest are
        meant in scan order: the inputs after the last step, the latest in time first.
    window : int, optional
        Number of steps in the sum, at least 1; None for all.
    reverse : bool
        Run backward in time, without copying the input.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h`.
    return_state : bool
        Also return the final state.
    out : (B, T, N), optional
        Array for the result `h`: writeable, C-contiguous, of the common dtype, and not overlapping an input.

    Returns
    -------
    h : (B, T, N)
        All states.
    hT : (B, N), or (B, L-1, N) with a window
        Only with `return_state`: the state after the last valid step in scan order; `h0` (or zero) for a sequence
        without steps.

    Raises
    ------
    TypeError
        An array has another dtype (integers and float16 are not supported).
    ValueError
        Shapes disagree, a length is out of range, `window` is not positive, `out` does not fit, or a size product
        overflows.
    """
    args = Boundary("diagonal_scan")
    kernels, which = _kernels(args, window)
    reverse = args.flag("reverse", reverse)
    return_state = args.flag("return_state", return_state)
    args.take(kernels, x=x, a=a, h0=h0, lengths=lengths)
    where = out is None or args.into(out, "x", a, x, h0)
    h, hT = args.run(f"{which}_forward", h=where, hT=return_state, reverse=reverse).values()
    return h if hT is None else (h, hT)


def diagonal_scan_backward(
    dh: npt.ArrayLike,
    a: npt.ArrayLike,
    h: npt.ArrayLike | None,
    h0: npt.ArrayLike | None = None,
    *,
    x: npt.ArrayLike | None = None,
    dhT: npt.ArrayLike | None = None,
    window: int | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> DiagonalScanGrads:
    """Adjoint of `diagonal_scan`.

    ``g_t = dh_t + conj(a_{t+1}) g_{t+1}`` with boundary ``g_{T-1} = dh_{T-1} + dhT``; then ``dx_t = g_t``,
    ``da_t = g_t conj(h_{t-1})`` (summed over b and t for a constant `a`) and ``dh0 = conj(a_0) g_0``. If a sequence has
    no steps, ``dh0 = dhT``. Complex gradients are stored as ``dL/dRe + i dL/dIm``. If forward promoted a real argument
    to complex, its gradient is the real part of the one returned here.

    With ``window=L``, ``dx_s = sum_{k<L} conj(a_{s+1} ... a_{s+k}) dh_{s+k}``, and `da_t` sums
    ``conj(a_{t+1} ... a_j) dh_j conj(a_{s+1} ... a_{t-1} x_s)`` over s < t <= j with j - s < L, using `x` instead of
    `h`.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    a, h0, window, reverse, lengths
        As given to `diagonal_scan`.
    h : (B, T, N)
        As returned by `diagonal_scan`. Not used with a window, and may be None.
    x : (B, T, N)
        As given to `diagonal_scan`. Only used with a window.
    dhT : (B, N) or (B, L-1, N), optional
        Gradient of the final state.
    out : (B, T, N), optional
        Array for the result `dx`, as in `diagonal_scan`.

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
    kernels, which = _kernels(args, window)
    reverse = args.flag("reverse", reverse)
    name, kept = ("h", h) if window is None else ("x", x)
    if kept is None:
        raise ValueError(f"{args.op}: {name} is None, expected (B, T, N) with window={window}")
    given = args.take(kernels, dh=dh, a=a, **{name: kept}, h0=h0, dhT=dhT, lengths=lengths)
    where = out is None or args.out(
        "out", out, given["dh"].shape, args.plan.dtype, dh, a, kept, h0, dhT, *given.values()
    )
    return DiagonalScanGrads(**args.run(f"{which}_backward", dx=where, dh0=True, reverse=reverse))


def _kernels(args: Boundary, window: int | None) -> tuple[Declared, str]:
    """Returns the kernels of scans, or with a window of windowed scans, and the prefix of their names. Binds the
    window's size."""
    if window is None:
        return SCAN, "scan"
    args.window(window)
    args.bind("L", min(window, MOST_NUMBERS), f"window={window}")
    return WINDOW, "window"


class RotationScanGrads(NamedTuple):
    """Gradients of `rotation_scan`: of theta and gamma (in their shapes; dgamma is None without gamma), x and h0."""

    dtheta: Array
    dgamma: Array | None
    dx: Array
    dh0: Array


class Planes:
    """Real heads as complex planes: lanes (2i, 2i+1) of a head are one complex number.

    If the head width is odd, the last lane is not rotated (angle 0) and is padded with a zero lane.
    """

    def __init__(
        self, args: Boundary, theta: npt.ArrayLike, gamma: npt.ArrayLike | None, N: int, lengths: npt.ArrayLike | None
    ) -> None:
        angles = args.array("theta", theta, "P", "H P", "B T P", "B T H P")
        heads = angles.ndim in (2, 4)
        decay = args.optional("gamma", gamma, *(("H", "B T H") if heads else ("", "B T")))
        self.theta = angles if heads else angles[..., None, :]
        self.gamma = decay if heads or decay is None else decay[..., None]
        self.theta_shape, self.gamma_shape = angles.shape, () if decay is None else decay.shape
        self.heads = args.size.get("H", 1)
        self.width = 2 * args.size["P"]
        self.lengths = args.lengths(lengths)
        lanes = self.heads * self.width
        if N not in (lanes, lanes + self.heads):
            raise ValueError(
                f"{args.op}: the last axis has N={N} lanes, expected {lanes} or {lanes + self.heads} "
                f"(head width 2P or 2P+1) from theta of shape {self.theta_shape}"
            )
        self.odd = lanes != N

    def transition(self, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Returns (e^{i theta}, a = gamma e^{i theta}), both (..., H, planes); zero at padding."""
        theta = self.theta.astype(dtype, copy=False)
        if self.odd:
            theta = np.concatenate([theta, np.zeros((*theta.shape[:-1], 1), dtype, like=theta)], -1)
        unit = empty(theta.shape, np.result_type(dtype, np.complex64), like=theta)
        unit.real, unit.imag = np.cos(theta), np.sin(theta)
        a = unit if self.gamma is None else self.gamma.astype(dtype, copy=False)[..., None] * unit
        if a.ndim == 4 and self.lengths is not None:
            ended = device_of(a).asarray(np.arange(a.shape[1]) >= self.lengths[:, None])
            unit, a = (np.where(ended[..., None, None], 0, z) for z in np.broadcast_arrays(unit, a))
        return unit, a

    def to_complex(self, x: Array) -> Array:
        """Converts (..., N) real to (..., planes of all heads) complex."""
        if self.odd:
            padded = np.zeros((*x.shape[:-1], self.heads, self.width + 2), x.dtype, like=x)
            padded[..., : self.width + 1] = x.reshape(*x.shape[:-1], self.heads, self.width + 1)
            x = padded.reshape(*x.shape[:-1], self.heads * (self.width + 2))
        return x.view(np.result_type(x.dtype, np.complex64))

    def to_real(self, z: Array) -> Array:
        """The inverse of `to_complex`."""
        x: Array = z.view(z.real.dtype)
        if self.odd:
            x = x.reshape(*x.shape[:-1], self.heads, self.width + 2)[..., : self.width + 1]
            x = x.reshape(*z.shape[:-1], self.heads * (self.width + 1))
        return x


def flat(a: Array) -> Array:
    """Merges the head and plane axes of a transition."""
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Sums x over leading axes to `shape`: the adjoint of broadcasting."""
    return x.sum(axis=tuple(range(x.ndim - len(shape)))).reshape(shape)


@overload
def rotation_scan(
    theta: npt.ArrayLike, gamma: npt.ArrayLike | None, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, **how: Unpack[Windowed],
) -> Array: ...  # fmt: skip
@overload
def rotation_scan(
    theta: npt.ArrayLike, gamma: npt.ArrayLike | None, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], **how: Unpack[Windowed],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def rotation_scan(
    theta: npt.ArrayLike, gamma: npt.ArrayLike | None, x: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: bool, **how: Unpack[Windowed],
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def rotation_scan(
    theta: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    window: int | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Recurrence by rotations: ``h_t = gamma R(theta) h_{t-1} + x_t``.

    R is block-diagonal: it rotates lanes (2i, 2i+1) of each head by angle theta_i, counter-clockwise (RotRNN, "RotRNN:
    Modelling Long Sequences with Rotations", eqs. 6 and 19, after folding P into the projections). With an odd head
    width the last lane of each head is decayed but not rotated.

    Parameters
    ----------
    theta : (P,) or (H, P), or time-varying (B, T, P) or (B, T, H, P); real
        Angles in radians, for one head or for H heads.
    gamma : () or (H,), or time-varying (B, T) or (B, T, H); real; or None
        Decay of each head; None means 1.
    x : (B, T, N), real
        Input, with N = 2PH, or (2P + 1)H for odd head widths.
    h0 : (B, N), or (B, L-1, N) with a window, optional
        Initial state.
    window, reverse, lengths, return_state
        As in `diagonal_scan`.

    Returns
    -------
    h : (B, T, N)
        All states.
    hT : (B, N), or (B, L-1, N) with a window
        Only with `return_state`: the final state.

    Raises
    ------
    TypeError, ValueError
        As `diagonal_scan`.
    """
    args = Boundary("rotation_scan")
    reverse, return_state = args.flag("reverse", reverse), args.flag("return_state", return_state)
    ax = args.array("x", x, "B T N")
    ah0 = args.optional("h0", h0, "B N" if args.window(window) is None else "B L-1 N")
    planes = Planes(args, theta, gamma, ax.shape[-1], lengths)
    dtype = np.result_type(*(one for one in (ax, ah0, planes.theta, planes.gamma) if one is not None))
    _, a = planes.transition(dtype)
    zx = planes.to_complex(args.layout(ax, dtype))
    z0 = None if ah0 is None else planes.to_complex(args.layout(ah0, dtype))
    result = diagonal_scan(flat(a), zx, z0, window=window, reverse=reverse, lengths=lengths, return_state=return_state)
    if isinstance(result, tuple):
        return planes.to_real(result[0]), planes.to_real(result[1])
    return planes.to_real(result)


def rotation_scan_backward(
    dh: npt.ArrayLike,
    theta: npt.ArrayLike,
    gamma: npt.ArrayLike | None,
    h: npt.ArrayLike | None,
    h0: npt.ArrayLike | None = None,
    *,
    x: npt.ArrayLike | None = None,
    dhT: npt.ArrayLike | None = None,
    window: int | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> RotationScanGrads:
    """Adjoint of `rotation_scan`.

    With ``a = gamma e^{i theta}`` and `da` as in `diagonal_scan_backward`: ``dgamma = Re(conj(e^{i theta}) da)`` summed
    over the planes of a head, ``dtheta = Re(conj(i a) da)``; each is summed over b and t if its argument is constant.

    Parameters
    ----------
    dh : (B, T, N)
        Gradient of `h`.
    theta, gamma, h0, window, reverse, lengths
        As given to `rotation_scan`.
    h : (B, T, N)
        As returned by `rotation_scan`. Not used with a window, and may be None.
    x : (B, T, N)
        As given to `rotation_scan`. Only used with a window.
    dhT : (B, N) or (B, L-1, N), optional
        Gradient of the final state.

    Returns
    -------
    RotationScanGrads
        ``(dtheta, dgamma, dx, dh0)``, all new arrays.

    Raises
    ------
    TypeError, ValueError
        As `rotation_scan`.
    """
    args = Boundary("rotation_scan_backward")
    adh = args.array("dh", dh, "B T N")
    L, reverse = args.window(window), args.flag("reverse", reverse)
    needed, kept = ("h", h) if L is None else ("x", x)
    if kept is None:
        raise ValueError(f"{args.op}: {needed} is None, expected (B, T, N) with window={window}")
    ah, ax = args.optional("h", h, "B T N"), args.optional("x", x, "B T N")
    ah0 = args.optional("h0", h0, "B N" if L is None else "B L-1 N")
    adhT = args.optional("dhT", dhT, "B N" if L is None else "B L-1 N")
    planes = Planes(args, theta, gamma, adh.shape[-1], lengths)
    given = [adh, ah, ax, ah0, adhT]
    dtype = np.result_type(*(one for one in (*given, planes.theta, planes.gamma) if one is not None))
    unit, a = planes.transition(dtype)
    zdh, zh, zx, z0, zdhT = (None if one is None else planes.to_complex(args.layout(one, dtype)) for one in given)
    assert zdh is not None
    grads = diagonal_scan_backward(
        zdh, flat(a), zh, z0, x=zx, dhT=zdhT, window=window, reverse=reverse, lengths=lengths
    )
    da = grads.da.reshape(a.shape)
    dgamma = None
    if planes.gamma is not None:
        dgamma = _sum_to((unit.real * da.real + unit.imag * da.imag).sum(-1), planes.gamma.shape)
        dgamma = dgamma.reshape(planes.gamma_shape)
    dtheta = (a.real * da.imag - a.imag * da.real)[..., : args.size["P"]]
    dtheta = _sum_to(dtheta, planes.theta.shape).reshape(planes.theta_shape)
    return RotationScanGrads(dtheta, dgamma, planes.to_real(grads.dx), planes.to_real(grads.dh0))
