"""Selective scan: the recurrence of Mamba, with an input-dependent transition (csrc/kernels/selective.c)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MIXER
from rotrnn.devices.device import einsum
from rotrnn.ops.boundary import Array, Boundary, Windowed, asked
from rotrnn.ops.declared import Declared
from rotrnn.ops.mixer import VECTORS
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

__all__ = ["SelectiveScanGrads", "selective_scan", "selective_scan_backward"]

SELECTIVE = Declared("selective_forward", "selective_backward", batch="B")
SOLVE = Declared("selective_solve", columns="K")
WINDOWED = Declared("selective_forward", "selective_backward", **{"batch, D, S": "B, L-1, D, S", "batch": "B"})


class SelectiveScanGrads(NamedTuple):
    """Gradients of `selective_scan`, each in the shape of its argument; dskip is None without skip."""

    dx: Array
    ddelta: Array
    dA: Array
    dB: Array
    dC: Array
    dskip: Array | None
    dh0: Array


@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[False] = False,
    negative: bool = False, **how: Unpack[Windowed],
) -> Array: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[False] = False,
    negative: bool = False, **how: Unpack[Windowed],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[True],
    negative: bool = False, **how: Unpack[Windowed],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[True],
    negative: bool = False, **how: Unpack[Windowed],
) -> tuple[Array, Array, Array]: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: bool = False, return_carries: bool = False,
    negative: bool = False, **how: Unpack[Windowed],
) -> Array | tuple[Array, ...]: ...  # fmt: skip
def selective_scan(
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    A: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    *,
    window: int | None = None,
    reverse: bool = False,
    negative: bool = False,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
    return_carries: bool = False,
) -> Array | tuple[Array, ...]:
    """Diagonal recurrence with a matrix state and time-varying step size, input and output directions.

    ``h_t = exp(delta_t A) * h_{t-1} + (delta_t * x_t) B_t^T``, ``y_t = h_t C_t + skip * x_t`` for t = 0..T-1 with
    ``h_{-1} = h0`` (default zero). The state is a matrix (D, S), and delta_t scales its rows. This is the selective SSM
    of Mamba (Gu and Dao 2023, algorithm 2) with its simplified discretisation: zero-order hold for A, ``delta B`` for
    B. With ``reverse``, time runs backward, and `h0` enters at the last valid step. The states of single steps are not
    stored. With ``negative``, the transition is ``2 exp(delta_t A) - 1`` instead, which for delta A < 0 lies in (-1, 1)
    (Grazzi et al. 2024, "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues").

    With ``window=L``, h_t depends only on the last L inputs. It is computed by `diagonal_scan` over D S lanes, and the
    states and transitions of all steps are stored.

    Parameters
    ----------
    x : (B, T, D)
        Input, any T >= 0. All arrays are float32 or float64, and are promoted to their common dtype.
    delta : (B, T, D)
        Step sizes, of any sign.
    A : (D, S)
        Rates; negative ones decay. Any S >= 0.
    B, C : (B, T, S)
        Input and output directions of the state.
    skip : (D,), optional
        Gain of the direct path from x to y. Default: no such path.
    h0 : (B, D, S), optional
        Initial state. With a window, (B, L-1, D, S): the last L-1 inputs before the first step, ``delta x B^T``, oldest
        first, each multiplied by the transitions up to the step before the first.
    window : int, optional
        Number of steps in the sum, at least 1; None for all.
    reverse : bool
        Run backward in time, without copying the input.
    negative : bool
        Transitions ``2 exp(delta_t A) - 1``.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    return_state : bool
        Also return the final state.
    return_carries : bool
        Also return the carries, so that `selective_scan_backward` need not run forward again. Not with a window.

    Returns
    -------
    y : (B, T, D)
    hT : (B, D, S), or (B, L-1, D, S) with a window
        Only with `return_state`: the state after the last valid step in scan order; `h0` (or zero) for a sequence
        without steps.
    carries : (B, tiles, S, D)
        Only with `return_carries`: the states before each tile of 32 steps.

    Raises
    ------
    TypeError
        An array has another dtype (integers, float16 and complex numbers are not supported).
    ValueError
        Shapes disagree, a length is out of range, `window` is not positive, or a size product overflows.
    """
    args = Boundary("selective_scan")
    how = {"reverse": args.flag("reverse", reverse), "negative": args.flag("negative", negative)}
    wanted = {"hT": args.flag("return_state", return_state), "carries": args.flag("return_carries", return_carries)}
    declared = SELECTIVE if args.window(window) is None else WINDOWED
    args.take(declared, x=x, delta=delta, A=A, B=B, C=C, skip=skip, h0=h0, lengths=lengths)
    if window is not None:
        if return_carries:
            raise ValueError(f"selective_scan: return_carries=True with window={window}, expected one of the two")
        windowed = _window_forward(args.given, window, **how)
        return (windowed.y, windowed.hT) if return_state else windowed.y
    return asked(*args.run("selective_forward", y=True, **wanted, **how).values())  # type: ignore[no-any-return]


def selective_scan_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    A: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    window: int | None = None,
    reverse: bool = False,
    negative: bool = False,
    lengths: npt.ArrayLike | None = None,
    carries: Array | None = None,
) -> SelectiveScanGrads:
    """Adjoint of `selective_scan`.

    With ``u_t = delta_t * x_t``, ``e_t = exp(delta_t A)``, the transition a_t and its derivative p_t by the exponent
    (both e_t; with ``negative``, ``2 e_t - 1`` and ``2 e_t``) and
    ``g_t = dy_t C_t^T + a_{t+1} * g_{t+1}``, ``g_{T-1} = dy_{T-1} C_{T-1}^T + dhT``:
    ``du_t = g_t B_t``, ``dx_t = delta_t * du_t + skip * dy_t``,
    ``ddelta_t = x_t * du_t + sum over S of A * p_t * g_t * h_{t-1}``, ``dA = sum of delta_t * p_t * g_t * h_{t-1}``,
    ``dB_t = g_t^T u_t``, ``dC_t = h_t^T dy_t``, ``dskip = sum of dy_t * x_t``, ``dh0 = a_0 * g_0``. If a sequence
    has no steps, ``dh0 = dhT``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; padding beyond `lengths` is never read.
    x, delta, A, B, C, skip, h0, window, reverse, negative, lengths
        As given to `selective_scan`.
    dhT : (B, D, S) or (B, L-1, D, S), optional
        Gradient of the final state.
    carries : (B, tiles, S, D), optional
        As returned by `selective_scan`; recomputed if not given.

    Returns
    -------
    SelectiveScanGrads
        ``(dx, ddelta, dA, dB, dC, dskip, dh0)``, all new arrays (nothing is accumulated), zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `selective_scan`.
    """
    args = Boundary("selective_scan_backward")
    how = {"reverse": args.flag("reverse", reverse), "negative": args.flag("negative", negative)}
    declared = SELECTIVE if args.window(window) is None else WINDOWED
    inputs: dict[str, Any] = {"dy": dy, "x": x, "delta": delta, "A": A, "B": B, "C": C, "skip": skip, "h0": h0}
    given = args.take(declared, **inputs, dhT=dhT, carries=None if window else carries, lengths=lengths)
    if window is not None:
        return _window_backward(given, window, **how)
    if carries is None:
        given["carries"] = args.run("selective_forward", carries=True, **how)["carries"]
    return SelectiveScanGrads(**args.run("selective_backward", **how))


class SelectiveSolution(NamedTuple):
    """Result of `selective_solve`: the fixed point y and the mixed input x~ (B, T, E); the final state (B, E, S);
    the carries of `selective_scan`; ``late = V y`` (B, T, K), without its last step; and the values of the maps: u (B,
    T, R E), alpha (B, T, R), B and C (B, T, S)."""

    y: Array
    mixed: Array
    hT: Array
    carries: Array
    late: Array
    maps: tuple[Array, Array, Array, Array]


def selective_solve(
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    base: npt.ArrayLike,
    v: npt.ArrayLike,
    first: npt.ArrayLike,
    A: npt.ArrayLike,
    h0: npt.ArrayLike,
    *,
    form: int,
    rank: int,
    largest: float = 1.0,
    unit: bool = True,
    negative: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> SelectiveSolution:
    """The fixed point of Bedouin's step in depth ("Fixed-Point RNNs", eqs. 11-12), exactly and in one pass over time.

    ``x~_t = Q_t (x_t - y_t) + y_t``, ``h_t = exp(delta_t A) * h_{t-1} + (delta_t * x~_t) B_t^T``, ``y_t = h_t C_t``,
    where u and alpha of Q_t, B_t and C_t are columns of ``base_t + V y_{t-1}``. When the past is known, a token's y_t
    solves a linear system whose matrix is diagonal plus rank R, solved exactly by R equations (Woodbury).

    Parameters
    ----------
    x, delta : (B, T, E)
        float32 or float64; all arrays are promoted to their common dtype.
    base : (B, T, K)
        K = R E + R + 2 S columns: u (R, E), alpha (R), B (S), C (S).
    v : (K, E)
        V.
    first : (B, K)
        ``V y_{-1}``.
    A : (E, S)
    h0 : (B, E, S)
    form, rank : int
        Form of Q (`rotrnn.ops.mixer`: HOUSEHOLDER, DPLR or LOW_RANK) and its number of vectors R. Its gains are
        ``largest * sigmoid(alpha)``.
    largest : float
    unit : bool
        Normalise B and C to unit length.
    negative : bool
        As in `selective_scan`.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in y, x~ and
        the maps.

    Returns
    -------
    SelectiveSolution
        Not finite from the first token on whose system is singular.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, a form that is unknown or has no direct solution, or a length out of range.
    """
    args = Boundary("selective_solve")
    args.take(SOLVE, x=x, delta=delta, A=A, h0=h0, base=base, v=v, first=first, lengths=lengths)
    if args.integer("form", form, 0, len(MIXER) - 1) not in VECTORS:
        raise ValueError(f"selective_solve: form={form!r}, expected a form with vectors")
    (B, T, E, S, K), R = (args.size[letter] for letter in "BTESK"), args.integer("rank", rank)
    if K != R * E + R + 2 * S:
        raise ValueError(f"selective_solve: base has {K} columns, expected {R * E + R + 2 * S} for R={R}, E={E}, S={S}")
    how: dict[str, Any] = {"unit": args.flag("unit", unit), "negative": args.flag("negative", negative)}
    results = args.run("selective_solve", R=R, form=form, largest=float(largest), **how)
    out, widths = results.pop("out").reshape(B * T * K), (R * E, R, S, S)
    parts = np.split(out, [B * T * sum(widths[: i + 1]) for i in range(3)])
    u, alpha, b, c = (part.reshape(B, T, width) for part, width in zip(parts, widths, strict=True))
    return SelectiveSolution(**results, maps=(u, alpha, b, c))


class _Windowed(NamedTuple):
    """Results and intermediate values of a windowed scan: y and hT; the arguments with zeroed padding; and transitions
    a, their derivatives by the exponent, inputs v and values h of every lane of the state, (B, T, D, S)."""

    y: Array
    hT: Array
    x: Array
    delta: Array
    B: Array
    C: Array
    a: Array
    slope: Array
    v: Array
    h: Array


def _flat(state: Any) -> Any:
    """Merges (..., D, S) into one axis of lanes."""
    return None if state is None else state.reshape(*state.shape[:-2], state.shape[-2] * state.shape[-1])


def _window_forward(given: dict[str, Any], window: int, reverse: bool, negative: bool) -> _Windowed:
    A, skip, h0, lengths = (given[name] for name in ("A", "skip", "h0", "lengths"))
    x, delta, B, C = (mask_padding(given[name], lengths) for name in ("x", "delta", "B", "C"))
    e, v = np.exp(delta[..., None] * A), (delta * x)[..., None] * B[:, :, None]
    a, slope = (2 * e - 1, 2 * e) if negative else (e, e)
    how: Windowed = {"window": window, "reverse": reverse, "lengths": lengths}
    h, hT = diagonal_scan(_flat(a), _flat(v), _flat(h0), return_state=True, **how)
    h, hT = h.reshape(v.shape), hT.reshape(*hT.shape[:-1], *A.shape)
    y = einsum("btds,bts->btd", h, C)
    return _Windowed(y if skip is None else y + skip * x, hT, x, delta, B, C, a, slope, v, h)


def _window_backward(given: dict[str, Any], window: int, reverse: bool, negative: bool) -> SelectiveScanGrads:
    A, skip, h0, dhT, lengths = (given[name] for name in ("A", "skip", "h0", "dhT", "lengths"))
    _, hT, x, delta, B, C, a, slope, v, h = _window_forward(given, window, reverse, negative)
    dy = mask_padding(given["dy"], lengths)
    how: Windowed = {"window": window, "reverse": reverse, "lengths": lengths}
    dh = _flat(dy[..., None] * C[:, :, None])
    scan = diagonal_scan_backward(dh, _flat(a), None, _flat(h0), x=_flat(v), dhT=_flat(dhT), **how)
    dv, dlog = scan.dx.reshape(v.shape), scan.da.reshape(a.shape) * slope
    du = einsum("btds,bts->btd", dv, B)
    return SelectiveScanGrads(
        dx=delta * du if skip is None else delta * du + skip * dy,
        ddelta=x * du + einsum("btds,ds->btd", dlog, A),
        dA=einsum("btds,btd->ds", dlog, delta),
        dB=einsum("btds,btd->bts", dv, delta * x),
        dC=einsum("btds,btd->bts", h, dy),
        dskip=None if skip is None else einsum("btd,btd->d", dy, x),
        dh0=scan.dh0.reshape(hT.shape),
    )
