"""Selective scan: the recurrence of Mamba, with an input-dependent transition (csrc/kernels/selective.c)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MIXER
from rotrnn._cpu import SELECTIVE_TILE as TILE
from rotrnn.ops.boundary import Array, Boundary, Windowed
from rotrnn.ops.device import einsum, empty_like
from rotrnn.ops.mixer import VECTORS
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

__all__ = ["SelectiveScanGrads", "selective_scan", "selective_scan_backward"]


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
    L, reverse, negative = args.window(window), args.flag("reverse", reverse), args.flag("negative", negative)
    return_state, return_carries = args.flag("return_state", return_state), args.flag("return_carries", return_carries)
    given = _arrays(args, x, delta, A, B, C, skip, h0, L)
    steps = args.lengths(lengths)
    arrays = args.common(*given)
    if L is not None:
        if return_carries:
            raise ValueError(f"selective_scan: return_carries=True with window={window}, expected one of the two")
        windowed = _window_forward(arrays, {"window": L, "reverse": reverse, "lengths": steps}, negative)
        return (windowed.y, windowed.hT) if return_state else windowed.y
    y = empty_like(arrays[0])
    hT = args.empty(_state_shape(args), y.dtype) if return_state else None
    carries = args.empty(_carries_shape(args), y.dtype) if return_carries else None
    inputs = _inputs(args, arrays, steps, reverse, negative)
    args.kernels.selective_forward(y=y, hT=hT, carries=carries, **inputs)
    more = tuple(one for one in (hT, carries) if one is not None)
    return (y, *more) if more else y


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
    ady = args.array("dy", dy, "B T D")
    L, reverse, negative = args.window(window), args.flag("reverse", reverse), args.flag("negative", negative)
    given = _arrays(args, x, delta, A, B, C, skip, h0, L)
    adhT = args.optional("dhT", dhT, "B D S" if L is None else "B L-1 D S")
    steps = args.lengths(lengths)
    *arrays, ady, adhT = args.common(*given, ady, adhT)
    if L is not None:
        return _window_backward(ady, arrays, adhT, {"window": L, "reverse": reverse, "lengths": steps}, negative)
    inputs = _inputs(args, arrays, steps, reverse, negative)
    if carries is None:
        carries = args.empty(_carries_shape(args), ady.dtype)
        args.kernels.selective_forward(y=None, hT=None, carries=carries, **inputs)
    else:
        args.bind("tiles", _carries_shape(args)[1], f"dy in tiles of {TILE} steps")
        carries = args.array("carries", carries, "B tiles S D")
        carries = args.layout(carries, ady.dtype)
    grads: list[Any] = [None if one is None else empty_like(one) for one in arrays[:-1]]
    grads.append(args.empty(_state_shape(args), ady.dtype))
    result = SelectiveScanGrads(*grads)
    del inputs["h0"]
    args.kernels.selective_backward(**result._asdict(), dy=ady, dhT=adhT, carries=carries, **inputs)
    return result


class SelectiveSolution(NamedTuple):
    """What `selective_solve` returns: the fixed point y and the mixed input x~ (B, T, E); the final state (B, E, S);
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
    is a linear system whose matrix is a diagonal one and one of rank R, solved exactly by R equations (Woodbury).

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
        As of `selective_scan`.
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
        Wrong dtype, mismatched shapes, an unknown form or one without a direct solution, or a length out of range.
    """
    args = Boundary("selective_solve")
    ax, adelta = args.array("x", x, "B T E"), args.array("delta", delta, "B T E")
    arrays = [
        *(ax, adelta, args.array("A", A, "E S"), args.array("h0", h0, "B E S")),
        *(args.array("base", base, "B T K"), args.array("v", v, "K E"), args.array("first", first, "B K")),
    ]
    if args.integer("form", form, 0, len(MIXER) - 1) not in VECTORS:
        raise ValueError(f"selective_solve: form={form!r}, expected a form with vectors")
    (B, T, E, S, K), R = (args.size[letter] for letter in "BTESK"), args.integer("rank", rank)
    if K != R * E + R + 2 * S:
        raise ValueError(f"selective_solve: base has {K} columns, expected {R * E + R + 2 * S} for R={R}, E={E}, S={S}")
    unit, negative, steps = args.flag("unit", unit), args.flag("negative", negative), args.lengths(lengths)
    ax, adelta, aA, ah0, abase, av, afirst = args.common(*arrays)

    def new(*shape: int) -> Array:
        return args.empty(shape, ax.dtype)

    y, mixed, late, out = new(B, T, E), new(B, T, E), new(B, T, K), new(B * T * K)
    hT, carries = new(B, E, S), new(B, -(-T // TILE), S, E)
    args.kernels.selective_solve(
        y=y, mixed=mixed, hT=hT, carries=carries, late=late, out=out.reshape(B, T, K),
        x=ax, delta=adelta, base=abase, v=av, first=afirst, A=aA, h0=ah0, lengths=steps,
        B=B, T=T, E=E, S=S, R=R, columns=K, form=form, largest=float(largest), unit=unit, negative=negative,
    )  # fmt: skip
    widths = R * E, R, S, S
    parts = np.split(out, [B * T * sum(widths[: i + 1]) for i in range(3)])
    u, alpha, b, c = (part.reshape(B, T, width) for part, width in zip(parts, widths, strict=True))
    return SelectiveSolution(y, mixed, hT, carries, late, (u, alpha, b, c))


def _arrays(
    args: Boundary,
    x: npt.ArrayLike,
    delta: npt.ArrayLike,
    A: npt.ArrayLike,
    B: npt.ArrayLike,
    C: npt.ArrayLike,
    skip: npt.ArrayLike | None,
    h0: npt.ArrayLike | None,
    window: int | None,
) -> list[Array | None]:
    """Returns the arguments of a selective scan, with checked shapes."""
    return [
        args.array("x", x, "B T D"),
        args.array("delta", delta, "B T D"),
        args.array("A", A, "D S"),
        args.array("B", B, "B T S"),
        args.array("C", C, "B T S"),
        args.optional("skip", skip, "D"),
        args.optional("h0", h0, "B D S" if window is None else "B L-1 D S"),
    ]


def _inputs(args: Boundary, arrays: list[Any], steps: Array | None, reverse: bool, negative: bool) -> dict[str, Any]:
    """Returns the keyword arguments that both kernels share."""
    named = dict(zip(("x", "delta", "A", "B", "C", "skip", "h0"), arrays, strict=True))
    sizes = {"batch": args.size["B"], **args.sizes("T D S")}
    return {**named, "lengths": steps, **sizes, "reverse": reverse, "negative": negative}


def _sizes(args: Boundary) -> tuple[int, ...]:
    return tuple(args.size[letter] for letter in "BTDS")


def _state_shape(args: Boundary) -> tuple[int, int, int]:
    B, _, D, S = _sizes(args)
    return B, D, S


def _carries_shape(args: Boundary) -> tuple[int, int, int, int]:
    B, T, D, S = _sizes(args)
    return B, -(-T // TILE), S, D


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


def _window_forward(arrays: list[Any], how: dict[str, Any], negative: bool) -> _Windowed:
    x, delta, A, B, C, skip, h0 = arrays
    x, delta, B, C = (mask_padding(one, how["lengths"]) for one in (x, delta, B, C))
    e, v = np.exp(delta[..., None] * A), (delta * x)[..., None] * B[:, :, None]
    a, slope = (2 * e - 1, 2 * e) if negative else (e, e)
    h, hT = diagonal_scan(_flat(a), _flat(v), _flat(h0), return_state=True, **how)
    h, hT = h.reshape(v.shape), hT.reshape(*hT.shape[:-1], *A.shape)
    y = einsum("btds,bts->btd", h, C)
    return _Windowed(y if skip is None else y + skip * x, hT, x, delta, B, C, a, slope, v, h)


def _window_backward(
    dy: Array, arrays: list[Any], dhT: Array | None, how: dict[str, Any], negative: bool
) -> SelectiveScanGrads:
    _, _, A, _, _, skip, h0 = arrays
    _, hT, x, delta, B, C, a, slope, v, h = _window_forward(arrays, how, negative)
    dy = mask_padding(dy, how["lengths"])
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
