"""A bank of recurrences per channel whose transition is diagonal plus rank one (S4's form)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import COMPLEX, Array, Boundary
from rotrnn.ops.declared import Declared, complex_of
from rotrnn.ops.linear_layer import check_precision

__all__ = ["DplrBankGrads", "DplrSystem", "dplr_bank", "dplr_bank_backward", "dplr_bank_step"]

DPLR = Declared("dplr_bank_forward", "dplr_bank_backward")
SYSTEM = "system: a p q gain c skip"


class DplrSystem(NamedTuple):
    """Coefficients of `dplr_bank`, or their gradients.

    The transition's diagonal a, its factors p and q, the input's gain and the readout c, (D, N) complex; skip (D,)
    real.
    """

    a: Array
    p: Array
    q: Array
    gain: Array
    c: Array
    skip: Array


class DplrBankSaved(NamedTuple):
    """Saved for backward by `dplr_bank`: its input, lengths, and the states before each tile of 32 steps, as real and
    imaginary parts (B, tiles, N, 2, D)."""

    u: Array
    lengths: npt.NDArray[np.int64] | None
    carries: Array


class DplrBankGrads(NamedTuple):
    """Gradients of `dplr_bank`: of the system, u (B, T, D) and h0 (B, D, N)."""

    system: DplrSystem
    du: Array
    dh0: Array


def dplr_bank(
    system: DplrSystem,
    u: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array, DplrBankSaved]:
    """N complex states per channel, coupled by one real number: one linear filter for each channel.

    ``s_t = Re sum_n q_n h_{t-1,n}``, ``h_t = a h_{t-1} + p s_t + gain u_t``, ``y_t = Re sum_n c_n h_{t,n} + skip u_t``
    for every channel. With the states' conjugates this is a recurrence of 2N states whose transition is diagonal plus
    rank one, as in S4 after discretisation (Gu, Goel, Re 2022). A step takes O(N), one after the other; the states of a
    step are stored only once per 32 steps.

    Parameters
    ----------
    system : DplrSystem
        (a, p, q, gain, c, skip), promoted with u to their common precision.
    u : (B, T, D), float32 or float64
        Input.
    h0 : (B, D, N) complex, optional
        Initial states; with `reverse` they enter at the last valid step.
    reverse : bool
        Whether time runs from the last valid step to the first.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence; beyond them u is never read (it may be NaN) and y is zero.

    Returns
    -------
    y : (B, T, D)
    hT : (B, D, N) complex
        Final states; h0 if a sequence has no steps.
    saved : DplrBankSaved
        For `dplr_bank_backward`.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a length out of range.
    """
    args = Boundary("dplr_bank")
    reverse = args.flag("reverse", reverse)
    args.one_of("system", system, DplrSystem)
    given = args.take(DPLR, SYSTEM, u=u, **system._asdict(), h0=h0, lengths=lengths)
    y, hT, carries = args.run("dplr_bank_forward", reverse=reverse).values()
    return y, hT, DplrBankSaved(given["u"], given["lengths"], carries)


def dplr_bank_backward(
    dy: npt.ArrayLike,
    system: DplrSystem,
    saved: DplrBankSaved,
    dhT: npt.ArrayLike | None = None,
    *,
    reverse: bool = False,
) -> DplrBankGrads:
    """Adjoint of `dplr_bank`. The states within each tile are recomputed from the states before it.

    ``g_t = conj(c) dy_t + r_{t+1}``, ``ds_t = Re sum_n conj(p_n) g_{t,n}``, ``r_t = conj(a) g_t + conj(q) ds_t``, with
    dhT for ``r_{t+1}`` at the last step; ``du_t = Re sum_n conj(gain_n) g_{t,n} + skip dy_t``,
    ``da = sum g_t conj(h_{t-1})``, ``dp = sum g_t s_t``, ``dq = sum ds_t conj(h_{t-1})``, ``dgain = sum g_t u_t``,
    ``dc = sum dy_t conj(h_t)``, ``dskip = sum dy_t u_t``, ``dh0 = r_0`` (dhT if there are no steps); sums over b and t
    in a fixed order.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of y; padding beyond `lengths` is never read.
    system, reverse
        As given to `dplr_bank`.
    saved : DplrBankSaved
        As returned by `dplr_bank`.
    dhT : (B, D, N) complex, optional
        Gradient of the final states.

    Returns
    -------
    DplrBankGrads
        ``(system, du, dh0)``, all new arrays.

    Raises
    ------
    TypeError, ValueError
        As `dplr_bank`.
    """
    args = Boundary("dplr_bank_backward")
    reverse = args.flag("reverse", reverse)
    args.one_of("saved", saved, DplrBankSaved)
    args.one_of("system", system, DplrSystem)
    inputs: dict[str, Any] = {"dy": dy, **system._asdict(), **saved._asdict(), "dhT": dhT}
    args.take(DPLR, f"{SYSTEM}; saved: u carries", **inputs)
    check_precision(args, "saved.u", saved.u, args.plan.dtype)
    check_precision(args, "saved.carries", saved.carries, args.plan.dtype)
    grads = args.run("dplr_bank_backward", reverse=reverse)
    return DplrBankGrads(DplrSystem(*[grads[f"d{name}"] for name in DplrSystem._fields]), grads["du"], grads["dh0"])


def dplr_bank_step(system: DplrSystem, state: npt.ArrayLike | None, u_t: npt.ArrayLike) -> tuple[Array, Array]:
    """One step of `dplr_bank` for streaming inference.

    Parameters
    ----------
    system
        As given to `dplr_bank`.
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
        As `dplr_bank`.
    """
    args = Boundary("dplr_bank_step")
    au = args.array("u_t", u_t, "B D")
    args.one_of("system", system, DplrSystem)
    a, p, q, gain, c, skip, _ = args.take(DPLR, SYSTEM, **system._asdict()).values()
    before = args.optional("state", state, "B D N", kinds=COMPLEX)
    dtype = np.result_type(args.plan.dtype, au.dtype, au.dtype if before is None else before.real.dtype)
    h = gain * au[..., None].astype(dtype)
    if before is not None:
        h = h + a * before + p * (q * before).real.sum(-1, dtype=dtype, keepdims=True)
    return (c * h).real.sum(-1, dtype=dtype) + skip * au, h.astype(complex_of(dtype), copy=False)
