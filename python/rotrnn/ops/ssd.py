"""The scan of Mamba-2: a matrix state for each head, whose transition is one number (csrc/kernels/ssd.c)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import Along, Array, Boundary, asked
from rotrnn.ops.declared import Declared
from rotrnn.ops.pointwise import mask_padding

__all__ = ["SsdScanGrads", "ssd_scan", "ssd_scan_backward"]

SSD = Declared("ssd_forward", "ssd_backward", batch="B", chunk="SSD_CHUNK")


class SsdScanGrads(NamedTuple):
    """Gradients of `ssd_scan`, each in the shape of its argument; None for optional arguments that were not given."""

    dx: Array
    ddelta: Array
    dA: Array
    dB: Array
    dC: Array
    dskip: Array | None
    dh0: Array
    dlog_a: Array | None


@overload
def ssd_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike | None, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[False] = False,
    log_a: npt.ArrayLike | None = None, negative: bool = False,
    **how: Unpack[Along],
) -> Array: ...  # fmt: skip
@overload
def ssd_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike | None, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[False] = False,
    log_a: npt.ArrayLike | None = None, negative: bool = False,
    **how: Unpack[Along],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def ssd_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike | None, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[True],
    log_a: npt.ArrayLike | None = None, negative: bool = False,
    **how: Unpack[Along],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def ssd_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike | None, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[True],
    log_a: npt.ArrayLike | None = None, negative: bool = False,
    **how: Unpack[Along],
) -> tuple[Array, Array, Array]: ...  # fmt: skip
@overload
def ssd_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike | None, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: bool = False, return_carries: bool = False,
    log_a: npt.ArrayLike | None = None, negative: bool = False,
    **how: Unpack[Along],
) -> Array | tuple[Array, ...]: ...  # fmt: skip
def ssd_scan(
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    A: npt.ArrayLike | None,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    *,
    log_a: npt.ArrayLike | None = None,
    reverse: bool = False,
    negative: bool = False,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
    return_carries: bool = False,
) -> Array | tuple[Array, ...]:
    """Recurrence of heads with a matrix state each, a time-varying scalar transition, and shared directions.

    ``h_t = exp(delta_t A) h_{t-1} + (delta_t x_t) B_t^T``, ``y_t = h_t C_t + skip x_t`` for each head, t = 0..T-1, with
    ``h_{-1} = h0`` (default zero). The state of a head is a matrix (P, N); head i reads B and C of group
    ``i // (H / G)``. This is the SSM of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", section 7), computed in the
    chunked form of its section 6: in chunks of 64 steps ``y = (C B^T * decays) (delta x)`` as products of matrices, and
    from chunk to chunk by the states. The states of single steps are not stored. A value that is not finite may reach
    earlier steps of its chunk, too: entries above the diagonal are multiplied by zero. With ``reverse``, time runs
    backward, and `h0` enters at the last valid step. With ``negative``, the transition is ``2 exp(delta_t A) - 1``
    instead, which for delta A < 0 lies in (-1, 1) (Grazzi et al. 2024, "Unlocking State-Tracking in Linear RNNs Through
    Negative Eigenvalues").

    Parameters
    ----------
    x : (B, T, H, P)
        Input of H heads with P channels, any T >= 0. All arrays are float32 or float64, and are promoted to their
        common dtype.
    delta : (B, T, H)
        Step sizes, of any sign.
    A : (H,) or None
        Rates; negative ones decay. None with `log_a`.
    B, C : (B, T, G, N)
        Input and output directions of the states, for G groups of H / G heads each. Any N >= 0.
    skip : (H,), optional
        Gain of the direct path from x to y. Default: no such path.
    h0 : (B, H, P, N), optional
        Initial state.
    log_a : (B, T, H), optional
        Logarithms of the transitions, in place of ``delta_t A``.
    reverse : bool
        Run backward in time, without copying the input.
    negative : bool
        Transitions ``2 exp(delta_t A) - 1``.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    return_state : bool
        Also return the final state.
    return_carries : bool
        Also return the carries, so that `ssd_scan_backward` need not run forward again.

    Returns
    -------
    y : (B, T, H, P)
    hT : (B, H, P, N)
        Only with `return_state`: the state after the last valid step in scan order; `h0` (or zero) for a sequence
        without steps.
    carries : (B, chunks, H, P, N)
        Only with `return_carries`: the states before each chunk of 64 steps; with `negative`, times the product of the
        signs of all transitions before.

    Raises
    ------
    TypeError
        An array has another dtype (integers, float16 and complex numbers are not supported).
    ValueError
        Shapes disagree, H is not a multiple of G, both or none of A and `log_a` are given, `log_a` with `negative`, a
        length is out of range, or a size product overflows.
    """
    args = Boundary("ssd_scan")
    reverse, negative = args.flag("reverse", reverse), args.flag("negative", negative)
    wanted = {"hT": args.flag("return_state", return_state), "carries": args.flag("return_carries", return_carries)}
    given = {"x": x, "delta": delta, "A": A, "B": B, "C": C, "skip": skip, "h0": h0, "log_a": log_a}
    signs = _take(args, reverse, negative, **given, lengths=lengths)
    how = {"reverse": reverse, "negative": negative, "ranks": 1}
    y, hT, carries = args.run("ssd_forward", y=True, **wanted, **how).values()
    if signs is not None:
        y *= signs.steps
        hT = hT if hT is None else hT * signs.whole
    return asked(y, hT, carries)


def ssd_scan_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    A: npt.ArrayLike | None,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    *,
    log_a: npt.ArrayLike | None = None,
    dhT: npt.ArrayLike | None = None,
    reverse: bool = False,
    negative: bool = False,
    lengths: npt.ArrayLike | None = None,
    carries: Array | None = None,
) -> SsdScanGrads:
    """Adjoint of `ssd_scan`.

    With ``u_t = delta_t x_t``, the transition a_t and its derivative p_t by the exponent delta_t A (both
    ``exp(delta_t A)``; with ``negative``, ``2 exp(delta_t A) - 1`` and ``2 exp(delta_t A)``), and
    ``g_t = dy_t C_t^T + a_{t+1} g_{t+1}``, ``g_{T-1} = dy_{T-1} C_{T-1}^T + dhT``, for each head:
    ``du_t = g_t B_t``, ``dx_t = delta_t du_t + skip dy_t``,
    ``ddelta_t = x_t . du_t + A p_t g_t . h_{t-1}``, ``dA = sum of delta_t p_t g_t . h_{t-1}``,
    ``dskip = sum of dy_t . x_t``, ``dlog_a_t = a_t g_t . h_{t-1}``, ``dh0 = a_0 g_0``; ``dB_t = g_t^T u_t`` and
    ``dC_t = h_t^T dy_t``, summed over the heads of a group. If a sequence has no steps, ``dh0 = dhT``.

    Parameters
    ----------
    dy : (B, T, H, P)
        Gradient of `y`; padding beyond `lengths` is never read.
    x, delta, A, B, C, skip, h0, log_a, reverse, negative, lengths
        As given to `ssd_scan`.
    dhT : (B, H, P, N), optional
        Gradient of the final state.
    carries : (B, chunks, H, P, N), optional
        As returned by `ssd_scan`; recomputed if not given.

    Returns
    -------
    SsdScanGrads
        ``(dx, ddelta, dA, dB, dC, dskip, dh0, dlog_a)``, all new arrays (nothing is accumulated), zero beyond
        `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `ssd_scan`.
    """
    args = Boundary("ssd_scan_backward")
    reverse, negative = args.flag("reverse", reverse), args.flag("negative", negative)
    arrays = {"x": x, "delta": delta, "A": A, "B": B, "C": C, "skip": skip, "h0": h0, "log_a": log_a}
    signs = _take(args, reverse, negative, dy=dy, **arrays, dhT=dhT, carries=carries, lengths=lengths)
    given, how = args.given, {"reverse": reverse, "negative": negative, "ranks": 1}
    if signs is not None:
        given["dy"] = given["dy"] * signs.steps
        given["dhT"] = None if dhT is None else given["dhT"] * signs.whole
    if carries is None:
        given["carries"] = args.run("ssd_forward", carries=True, **how)["carries"]
    found = args.run("ssd_backward", **how)
    del found["dlater"]  # of `rotrnn.ops.trapezoid_scan`
    result = SsdScanGrads(**found)
    if signs is not None:
        result.dx[...] *= signs.steps
    return result


def check_groups(args: Boundary) -> None:
    """Raises ValueError unless the number of heads, H, is a multiple of the number of groups, G."""
    H, G = args.size["H"], args.size["G"]
    if not G or H % G:
        raise ValueError(f"{args.op}: B has {G} groups, expected a divisor of the {H} heads of x")


class _Signs(NamedTuple):
    """The product of the signs of the transitions up to each step (B, T, H, 1), in the order of the scan, and up to the
    last (B, H, 1, 1). With x, y, and the state multiplied by it, all transitions are positive: the kernels' form.
    """

    steps: Array
    whole: Array


def _signs(delta: Array, A: Array, lengths: Array | None, reverse: bool) -> _Signs:
    """Returns the signs of transitions ``2 exp(delta_t A) - 1``; 1 beyond the lengths."""
    exponent = mask_padding(delta, lengths).astype(np.float64) * A.astype(np.float64)  # double as in the kernels
    signs = np.where(exponent < -np.log(2), -1, 1).astype(delta.dtype)
    steps = np.cumprod(signs[:, ::-1], 1)[:, ::-1] if reverse else np.cumprod(signs, 1)
    return _Signs(steps[..., None], signs.prod(1)[..., None, None])


def _take(args: Boundary, reverse: bool, negative: bool, **arrays: Any) -> _Signs | None:
    """Takes the arguments. With `negative`, returns the signs, with which x is multiplied."""
    given = args.take(SSD, **arrays)
    check_groups(args)
    if (given["A"] is None) == (given["log_a"] is None):
        got = "both are None" if given["A"] is None else "both are arrays"
        raise ValueError(f"{args.op}: of A and log_a {got}, expected one of them")
    if negative and given["A"] is None:
        raise ValueError(f"{args.op}: negative is True with log_a, expected A")
    if not negative:
        return None
    signs = _signs(given["delta"], given["A"], given["lengths"], reverse)
    given["x"] = given["x"] * signs.steps
    return signs
