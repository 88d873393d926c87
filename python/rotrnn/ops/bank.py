"""A bank of diagonal recurrences per channel (S4D's form), in one pass over tiles of time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import einsum
from rotrnn.ops.boundary import COMPLEX, Array, Boundary, rename
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.declared import Declared, complex_of
from rotrnn.ops.linear_layer import check_precision
from rotrnn.ops.pointwise import flip
from rotrnn.ops.window import ages

__all__ = ["BankGrads", "bank_step", "diagonal_bank", "diagonal_bank_backward"]


class BankSaved(NamedTuple):
    """Saved for backward by `diagonal_bank`: its input, lengths, and the states before each tile, as real and imaginary
    parts (B, tiles, N, 2, D).

    With a window, `carries` is None, and `before` is h0, the inputs before the first step.
    """

    u: Array
    lengths: npt.NDArray[np.int64] | None
    carries: Array | None
    window: int | None = None
    before: Array | None = None


class BankGrads(NamedTuple):
    """Gradients of `diagonal_bank`: of a and c (D, N), skip (D,), u (B, T, D), h0 (its shape)."""

    da: Array
    dc: Array
    dskip: Array
    du: Array
    dh0: Array


TILE = 64
"""Number of steps in a tile of the kernel, as in csrc/kernels/bank.c."""
BANK = Declared("bank_forward", "bank_backward", tile=TILE)
WINDOWED = Declared("bank_forward", "bank_backward", tile=TILE, **{"B, D, N, 2": "B, L-1, D"})


def diagonal_bank(
    a: npt.ArrayLike,
    c: npt.ArrayLike,
    skip: npt.ArrayLike,
    u: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    window: int | None = None,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array, BankSaved]:
    """N complex recurrences per channel, and their weighted sum: one linear filter for each channel.

    ``h_t = a * h_{t-1} + u_t`` for every channel's N states, ``y_t = Re sum_n c_n h_{t,n} + skip * u_t`` (S4D, Gu et
    al. 2022, after discretisation; a gain b of the input is the same filter with ``c b`` instead of c). The states of a
    step, (B, D, N), are stored only once per `TILE` steps.

    Parameters
    ----------
    a, c : (D, N), complex64 or complex128
        Transition and readout of each channel's states.
    skip : (D,) real
        Gain of the direct path from input to output.
    u : (B, T, D), float32 or float64
        Input.
    h0 : (B, D, N) complex, optional
        Initial states; with `reverse` they enter at the last valid step. With a window, (B, L-1, D) real: the inputs
        before the first step, most recent last (with `reverse`, the inputs after the last valid step, nearest last).
    window : int, optional
        L: y depends on exactly the last L inputs. Computed by `causal_conv` with the response of each channel
        (`bank_response`): L products per step, and no states.
    reverse : bool
        Whether time runs from the last valid step to the first.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence; beyond them u is never read (it may be NaN) and y is zero.

    Returns
    -------
    y : (B, T, D)
    hT : (B, D, N) complex, or (B, L-1, D) real with a window
        Final states; h0 if a sequence has no steps.
    saved : BankSaved
        For `diagonal_bank_backward`.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a length out of range.
    """
    args = Boundary("diagonal_bank")
    reverse = args.flag("reverse", reverse)
    L = args.window(window)
    inputs: dict[str, Any] = {"u": u, "a": a, "c": c, "skip": skip, "h0": h0}
    if L is not None:
        return _window_forward(args, L, reverse, lengths, **inputs)
    given = args.take(BANK, **inputs, lengths=lengths)
    y, hT, carries = args.run("bank_forward", reverse=reverse).values()
    return y, hT, BankSaved(given["u"], given["lengths"], carries)


def diagonal_bank_backward(
    dy: npt.ArrayLike,
    a: npt.ArrayLike,
    c: npt.ArrayLike,
    skip: npt.ArrayLike,
    saved: BankSaved,
    dhT: npt.ArrayLike | None = None,
    *,
    reverse: bool = False,
) -> BankGrads:
    """Adjoint of `diagonal_bank`. The states within each tile are recomputed from the states before it.

    ``g_t = conj(c) dy_t + conj(a) g_{t+1}``, with dhT instead of ``conj(a) g_{t+1}`` at the last step;
    ``du_t = Re sum_n g_t + skip * dy_t``, ``da = sum g_t conj(h_{t-1})``, ``dc = sum dy_t conj(h_t)``,
    ``dskip = sum dy_t u_t``, ``dh0 = conj(a) g_0`` (dhT if there are no steps); sums over b and t in a fixed order.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of y; padding beyond `lengths` is never read.
    a, c, skip, reverse
        As given to `diagonal_bank`.
    saved : BankSaved
        As returned by `diagonal_bank`.
    dhT : (B, D, N) complex, optional
        Gradient of the final states.

    Returns
    -------
    BankGrads
        ``(da, dc, dskip, du, dh0)``, all new arrays.

    Raises
    ------
    TypeError, ValueError
        As `diagonal_bank`.
    """
    args = Boundary("diagonal_bank_backward")
    args.one_of("saved", saved, BankSaved)
    reverse = args.flag("reverse", reverse)
    inputs: dict[str, Any] = {"dy": dy, "a": a, "c": c, "skip": skip, "u": saved.u, "dhT": dhT}
    if args.window(saved.window) is not None:
        return _window_backward(args, saved, reverse, **inputs)
    args.take(BANK, "saved: u carries", **inputs, carries=saved.carries, lengths=saved.lengths)
    check_precision(args, "saved.u", saved.u, args.plan.dtype)
    check_precision(args, "saved.carries", saved.carries, args.plan.dtype)  # type: ignore[arg-type]  # not None here
    return BankGrads(**args.run("bank_backward", reverse=reverse))


def bank_step(
    a: npt.ArrayLike, c: npt.ArrayLike, skip: npt.ArrayLike, state: npt.ArrayLike | None, u_t: npt.ArrayLike
) -> tuple[Array, Array]:
    """One step of `diagonal_bank` for streaming inference, without a window.

    Parameters
    ----------
    a, c, skip
        As given to `diagonal_bank`.
    state : (B, D, N) complex, or None
        States before the step; None means zero.
    u_t : (B, D)
        Input of the step.

    Returns
    -------
    y_t : (B, D)
    state : (B, D, N) complex
        States after the step.

    Raises
    ------
    TypeError, ValueError
        As `diagonal_bank`.
    """
    args = Boundary("bank_step")
    au = args.array("u_t", u_t, "B D")
    aa, ac, askip, _ = args.take(BANK, a=a, c=c, skip=skip).values()
    z = args.optional("state", state, "B D N", kinds=COMPLEX)
    dtype = np.result_type(args.plan.dtype, au.dtype, au.dtype if z is None else z.real.dtype)
    h = au[..., None].astype(dtype) + (np.zeros_like(aa) if z is None else aa * z)
    return (ac * h).real.sum(-1, dtype=dtype) + askip * au, h.astype(complex_of(dtype), copy=False)


def bank_response(a: Array, c: Array, skip: Array, L: int) -> Array:
    """Returns the impulse response (D, L): ``Re sum_n c_n a_n^k`` at lag k, plus skip at lag 0; oldest lag first.

    These are the taps with which `causal_conv` computes the bank with a window.
    """
    taps: Array = einsum("ldn,dn->dl", _powers(a, L), c).real.astype(skip.dtype)
    taps[:, -1] += skip
    return taps


def bank_response_backward(dtaps: Array, a: Array, c: Array) -> tuple[Array, Array, Array]:
    """Returns (da, dc, dskip), the adjoint of `bank_response`: ``dc = sum_k dtap_k conj(a^k)``,
    ``da = sum_k dtap_k conj(c k a^(k-1))``."""
    L = dtaps.shape[1]
    powers = _powers(a, L).conj()
    dc = einsum("dl,ldn->dn", dtaps, powers)
    slopes = dtaps[:, :-1] * np.arange(L - 1, 0, -1, dtype=dtaps.dtype, like=dtaps)
    da = c.conj() * einsum("dl,ldn->dn", slopes, powers[1:])
    return da, dc, dtaps[:, -1].copy()


def _powers(a: Array, L: int) -> Array:
    """Returns ``a^(L-1), ..., a, 1`` as (L, D, N)."""
    return ages(a.ravel(), L).reshape(L, *a.shape)


def _window_forward(
    args: Boundary, L: int, reverse: bool, lengths: npt.ArrayLike | None, **arrays: npt.ArrayLike | None
) -> tuple[Array, Array, BankSaved]:
    """Filters the last L inputs, including the inputs h0 before the first step. With `reverse`, u is flipped in
    time."""
    given = args.take(WINDOWED, **arrays, lengths=lengths)
    u, a, c, skip, h0, steps = given.values()
    args.check_size(f"the state with window={L}", (L, *a.shape), a.dtype)
    v = flip(u, steps) if reverse else u
    y, hT = causal_conv(v, bank_response(a, c, skip, L), None, h0, lengths=steps, return_state=True)
    return flip(y, steps) if reverse else y, hT, BankSaved(u, steps, None, L, h0)


def _window_backward(args: Boundary, saved: BankSaved, reverse: bool, **arrays: npt.ArrayLike | None) -> BankGrads:
    given = args.take(WINDOWED, "saved: u", **arrays, lengths=saved.lengths)
    dy, a, c, skip, u, end, lengths = given.values()
    dy, v = (flip(one, lengths) if reverse else one for one in (dy, u))
    taps = bank_response(a, c, skip, args.size["L-1"] + 1)
    try:
        conv = causal_conv_backward(dy, v, taps, saved.before, dhT=end, lengths=lengths)
    except (TypeError, ValueError) as error:
        rename(error, "causal_conv_backward: state ", f"{args.op}: saved.before ")
        raise
    da, dc, dskip = bank_response_backward(conv.dw, a, c)
    du = flip(conv.dx, lengths) if reverse else conv.dx
    return BankGrads(da, dc, dskip, du, conv.dstate)
