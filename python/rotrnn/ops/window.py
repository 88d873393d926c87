"""A sliding window as a recurrence: truncated infinite impulse response (TIIR), step by step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import beside, einsum, full, is_writeable, to_host
from rotrnn.ops.boundary import COMPLEX, REAL, Array, Boundary

__all__ = ["WindowState", "tiir_scan"]

LANES = REAL + COMPLEX


class WindowState(NamedTuple):
    """State of `tiir_scan`.

    delay (B, L+1, N): the last L+1 inputs in a ring buffer; input k (from 0) is in row ``k % (L + 1)``.
    sums (B, 2, N): the sum of the window, and the sum of the inputs since the last multiple of L, both weighted by
    powers of a up to the current step.
    position (B,) int64: number of inputs so far.
    """

    delay: Array
    sums: Array
    position: Array


def tiir_scan(
    a: npt.ArrayLike,
    x: npt.ArrayLike,
    state: WindowState | None = None,
    *,
    window: int,
    power: npt.ArrayLike | None = None,
    resets: bool = True,
) -> tuple[Array, WindowState]:
    """Windowed scan with a constant transition, in a few operations per step for any window.

    ``h_t = a h_{t-1} + x_t - a^L x_{t-L}``, which equals ``sum_{k<L} a^k x_{t-k}``: an integrator minus a delayed
    integrator (J. O. Smith, "Rotational memory", slides "TIIR sliding window" and "TIIR resets"). For gradients use
    `diagonal_scan` with the same window, which does not subtract and is preferable for many steps at once.

    With |a| = 1 the rounding errors of this recurrence do not decay. With `resets`, two copies alternate every L steps:
    one is cleared and only accumulates, while the other, which accumulated during the previous L steps, gives the
    output and subtracts. So no error is older than 2L steps; with |a| <= 1 and u the unit roundoff,
    ``|error_t| <= 10 u sum_{k<2L} S_{t-k}``, ``S_t = sum_{k<=L} |x_{t-k}|``, at any t. Without resets the error grows
    without bound, and a number that is not finite stays forever.

    Parameters
    ----------
    a : (N,), real or complex
        Transition.
    x : (B, T, N), real or complex
        The next T inputs of the stream.
    state : WindowState, or a tuple of the same three arrays, optional
        As returned by the previous call. Its delay line is reused: the new state has the same array, updated in place
        (if dtype and layout allow). The old state can be used for one more step, but not for several.
    window : int
        L, at least 1. The state holds the last L + 1 inputs, whatever T is: a window that is longer than any sequence
        only takes memory.
    power : (N,), optional
        ``power_of(a, window)``, if already computed.
    resets : bool
        Whether two copies alternate, as described above.

    Returns
    -------
    h : (B, T, N)
    state : WindowState

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, `window` is not positive, or a position is negative.
    """
    args = Boundary("tiir_scan")
    ax = args.array("x", x, "B T N", kinds=LANES)
    aa = args.array("a", a, "N", kinds=LANES)
    L = args.window(window)
    if L is None:
        raise ValueError("tiir_scan: window=None, expected a positive integer")
    (B, T, N), dtype = ax.shape, np.result_type(ax, aa)
    resets = args.flag("resets", resets)
    args.check_size("the window's state", (B, L + 1, N), dtype)
    if state is None:
        delay, sums = args.zeros((B, L + 1, N), dtype), args.zeros((B, 2, N), dtype)
        position = np.zeros(B, np.int64)
    else:
        delay, sums, position = checked_state(args, state, L)
    apower = args.array("power", power_of(aa, L) if power is None else power, "N", kinds=LANES)
    ax, aa, delay, sums, apower = args.common(ax, aa, delay, sums, apower)
    if not is_writeable(delay):
        delay = delay.copy()
    sums = sums.copy()
    h = np.empty_like(ax)
    for name, array in (("x", ax), ("a", aa), ("power", apower)):
        if np.may_share_memory(delay, array):
            raise ValueError(f"tiir_scan: state.delay, which is updated in place, overlaps {name}")
    there = args.device.asarray(position)
    args.kernels.tiir(
        h=h, delay=delay, sums=sums, position=there, a=aa, power=apower, x=ax, B=B, T=T, N=N, L=L, resets=resets
    )
    return h, WindowState(delay, sums, position + T)


def checked_state(args: Boundary, state: Any, window: int) -> WindowState:
    """Checks `state`, a `WindowState` or a tuple of its parts, against the window and the sizes B and N bound in
    `args`."""
    parts = _parts(args, "state", state)
    delay, sums = _sums_of(args, "state", parts, window)
    return WindowState(delay, sums, args.positions("state.position", parts[2]))


def checked_gradient(args: Boundary, dstate: Any, window: int, like: Array) -> tuple[Array, Array]:
    """Like `checked_state`, for the gradient of a state, whose parts may be None. The gradient of its positions is
    ignored."""
    parts = _parts(args, "dstate", dstate)
    B, N = args.size["B"], args.size["N"]
    given = [
        full((B, rows, N), 0, like.dtype, like) if one is None else one
        for one, rows in zip(parts, (window + 1, 2), strict=False)
    ]
    return _sums_of(args, "dstate", tuple(given), window)


def _parts(args: Boundary, name: str, state: Any) -> tuple[Any, ...]:
    if not isinstance(state, tuple) or len(state) != 3:
        got = f"a tuple of {len(state)}" if isinstance(state, tuple) else f"of type {type(state).__name__}"
        raise TypeError(f"{args.op}: {name} is {got}, expected a WindowState: (delay, sums, position)")
    return state


def _sums_of(args: Boundary, name: str, parts: tuple[Any, ...], window: int) -> tuple[Array, Array]:
    args.bind("rows", window + 1, f"window={window}")
    args.bind("copies", 2, "two sums")
    delay = args.array(f"{name}.delay", parts[0], "B rows N", kinds=LANES)
    return delay, args.array(f"{name}.sums", parts[1], "B copies N", kinds=LANES)


def power_of(a: Array, L: int) -> Array:
    """Returns ``a**L`` in a's dtype, by squaring in extended precision, so that only the final rounding loses accuracy.

    It is a power of the rounded a. For example, if a is ``e^{2 pi i / L}`` rounded, the scan multiplies by the rounded
    number, so an input that leaves the window has been multiplied by this power and not by 1.
    """
    L = Boundary("power_of").integer("L", L)
    there, a = a, to_host(a)  # only the CPU has extended precision
    base = a.astype(np.result_type(a, np.longdouble))
    power = np.ones_like(base)
    while L:
        if L & 1:
            power *= base
        base *= base
        L >>= 1
    return beside(power.astype(a.dtype), there)


def ages(a: Array, count: int) -> Array:
    """Returns ``a^(count-1), ..., a, 1`` as (count, N) in a's dtype. They are computed in double precision at least, so
    that in single precision the error is little more than one rounding."""
    powers = full((count, len(a)), 1, np.result_type(a, np.float64), a)
    powers[1:] = a
    return np.cumprod(powers, axis=0)[::-1].astype(a.dtype)


def aged(a: Array, recent: Array) -> Array:
    """Multiplies recent inputs (B, M, N), oldest first, by powers of `a` up to the time of the last one."""
    return ages(a, recent.shape[1]) * recent


def aged_backward(d: Array, a: Array, recent: Array) -> tuple[Array, Array]:
    """Returns (da, drecent), the adjoint of `aged`."""
    table, M = ages(a, recent.shape[1]), recent.shape[1]
    slopes = np.arange(M - 1, 0, -1, dtype=a.real.dtype, like=a)[:, None] * table[1:]  # of a^k with k > 0
    return einsum("bmn,bmn->n", (slopes * recent[:, :-1]).conj(), d[:, :-1]), table.conj() * d


def latest(before: Array | None, x: Array, rows: int, lengths: Array | None, reverse: bool = False) -> Array:
    """Returns the last `rows` inputs (B, rows, N) in scan order, oldest first. The inputs are `before` (B, rows, N;
    default zero), then x (B, T, N)."""
    B, T, N = x.shape
    if before is None:
        before = np.zeros((B, rows, N), x.dtype, like=x)
    if not T:
        return before.copy()
    args = Boundary("latest")
    args.array("x", x, "B T N", kinds=REAL + COMPLEX)
    steps = T if lengths is None else args.lengths(lengths).on(args.device)[:, None]  # type: ignore[union-attr]
    place = steps - rows + args.device.asarray(np.arange(rows)[None])  # in scan order, negative in `before`
    in_x = steps - 1 - place if reverse else place
    at = [np.clip(one, 0, most - 1)[..., None] for one, most in ((in_x, T), (rows + place, rows))]
    return np.where(place[..., None] >= 0, np.take_along_axis(x, at[0], 1), np.take_along_axis(before, at[1], 1))


def latest_backward(drecent: Array, dx: Array, lengths: Array | None, reverse: bool = False) -> Array:
    """Adjoint of `latest`: returns dbefore, and adds the gradient of x to dx."""
    rows = drecent.shape[1]
    dbefore = np.zeros_like(drecent)
    for b, (steps, new) in enumerate(_new_rows(dx, rows, lengths)):
        dbefore[b, new:] = drecent[b, : rows - new]
        place = dx[b, :new][::-1] if reverse else dx[b, steps - new : steps]
        place += drecent[b, rows - new :]
    return dbefore


def _new_rows(x: Array, rows: int, lengths: Array | None) -> list[tuple[int, int]]:
    """Returns for each sequence its number of steps, and how many of them are among the last `rows` inputs."""
    steps = [x.shape[1]] * x.shape[0] if lengths is None else [int(n) for n in lengths]
    return [(n, min(n, rows)) for n in steps]


def ring_rows(position: Array, rows: int) -> Array:
    """Returns the rows (B, rows, 1) of the last inputs in the ring buffer after `position` inputs, oldest first."""
    return ((position[:, None] + np.arange(rows)) % rows)[..., None]


def window_state(a: Array, recent: Array, position: Array) -> WindowState:
    """Returns the state of `tiir_scan` after `position` inputs (B,), of which recent (B, L+1, N) are the last."""
    L = recent.shape[1] - 1
    delay = np.empty_like(recent)
    np.put_along_axis(delay, beside(ring_rows(position, L + 1), delay), recent, 1)
    seen = aged(a, recent[:, 1:])
    new = beside(since_reset(position, L), seen) * seen
    return WindowState(delay, np.stack([seen.sum(1), new.sum(1)], 1), position)


def window_state_backward(ddelay: Array, dsums: Array, a: Array, recent: Array, position: Array) -> tuple[Array, Array]:
    """Returns (da, drecent), the adjoint of `window_state`."""
    L = recent.shape[1] - 1
    drecent = np.take_along_axis(ddelay, beside(ring_rows(position, L + 1), ddelay), 1)
    dseen = dsums[:, :1] + beside(since_reset(position, L), dsums) * dsums[:, 1:]
    da, dlater = aged_backward(dseen, a, recent[:, 1:])
    drecent[:, 1:] += dlater
    return da, drecent


def since_reset(position: Array, L: int) -> Array:
    """Returns a mask (B, L, 1) over the last L inputs: those after the last multiple of L."""
    return (np.arange(L) >= L - position[:, None] % L)[..., None]
