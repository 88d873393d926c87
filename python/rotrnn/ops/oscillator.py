"""Real 2 x 2 recurrences: oscillators (csrc/kernels/oscillator.c)."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["OscillatorScanGrads", "oscillator_scan", "oscillator_scan_backward"]

OSCILLATOR = Declared("oscillator_scan_forward", "oscillator_scan_backward")


class OscillatorScanGrads(NamedTuple):
    """Gradients of `oscillator_scan`: of m and f in their shapes, u (B, T, N), h0 (B, 2, N)."""

    dm: Array
    df: Array
    du: Array
    dh0: Array


@overload
def oscillator_scan(
    m: npt.ArrayLike, f: npt.ArrayLike, u: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, lengths: npt.ArrayLike | None = None,
) -> Array: ...  # fmt: skip
@overload
def oscillator_scan(
    m: npt.ArrayLike, f: npt.ArrayLike, u: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def oscillator_scan(
    m: npt.ArrayLike, f: npt.ArrayLike, u: npt.ArrayLike, h0: npt.ArrayLike | None = None, *,
    return_state: bool, lengths: npt.ArrayLike | None = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def oscillator_scan(
    m: npt.ArrayLike,
    f: npt.ArrayLike,
    u: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
    return_state: bool = False,
) -> Array | tuple[Array, Array]:
    """``h_t = M h_{t-1} + f u_t`` for each of N lanes, with states h of two numbers and a real 2 x 2 matrix M.

    Nothing is diagonalised, so it works for every M, also with equal or real eigenvalues. LinOSS (Rusch and
    Rus 2024) is such a recurrence, with (velocity, position) as the state. M and f are constant, or each step of each
    sequence has its own: ``h_t = M_t h_{t-1} + f_t u_t``, as for samples at uneven times.

    Parameters
    ----------
    m : (2, 2, N) or (B, T, 2, 2, N)
        The matrices: ``m[..., i, j, :]`` are the entries in row i and column j. All arrays are float32 or float64, and
        are promoted to their common dtype.
    f : (2, N), or (B, T, 2, N) if m has (B, T)
        Weights of an input in each of the two numbers.
    u : (B, T, N)
        Input, any T >= 0.
    h0 : (B, 2, N), optional
        State before the first step. Default: zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `h`.
    return_state : bool
        Also return the state after the last valid step.

    Returns
    -------
    h : (B, T, 2, N)
    hT : (B, 2, N)
        Only with `return_state`.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, a length is out of range, or a size product overflows.
    """
    args = Boundary("oscillator_scan")
    return_state = args.flag("return_state", return_state)
    _same_axes(args, args.take(OSCILLATOR, m=m, f=f, u=u, h0=h0, lengths=lengths))
    h, hT = args.run("oscillator_scan_forward").values()
    return (h, hT) if return_state else h


def oscillator_scan_backward(
    dh: npt.ArrayLike,
    m: npt.ArrayLike,
    f: npt.ArrayLike,
    u: npt.ArrayLike,
    h: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    dhT: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> OscillatorScanGrads:
    """Adjoint of `oscillator_scan`.

    With ``g_t = dh_t + M_{t+1}^T g_{t+1}``, which begins with `dhT`: ``du_t = f_t . g_t``, ``dm_t = g_t h_{t-1}^T``,
    ``df_t = g_t u_t``, and ``dh0 = M_1^T g_1``; dm and df of a constant m and f are the sums over b and t.

    Parameters
    ----------
    dh : (B, T, 2, N)
        Gradient of `h`; padding beyond `lengths` is never read.
    m, f, u, h0, lengths
        As given to `oscillator_scan`.
    h : (B, T, 2, N)
        As returned by `oscillator_scan`.
    dhT : (B, 2, N), optional
        Gradient of the final state.

    Returns
    -------
    OscillatorScanGrads
        ``(dm, df, du, dh0)``, all new arrays (nothing is accumulated), zero beyond `lengths`. Sums over steps are taken
        in double precision.

    Raises
    ------
    TypeError, ValueError
        As `oscillator_scan`.
    """
    args = Boundary("oscillator_scan_backward")
    _same_axes(args, args.take(OSCILLATOR, dh=dh, m=m, f=f, u=u, h=h, h0=h0, dhT=dhT, lengths=lengths))
    return OscillatorScanGrads(**args.run("oscillator_scan_backward"))


def _same_axes(args: Boundary, given: dict[str, Array]) -> None:
    m, f = given["m"], given["f"]
    if m.ndim != f.ndim + 1:
        raise ValueError(f"{args.op}: m has shape {m.shape} and f {f.shape}, expected both with (B, T) or neither")
