"""Selective scan: the recurrence of Mamba, with an input-dependent transition (csrc/kernels/selective.c)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MIXER_MOST_STEPS
from rotrnn.ops.boundary import Along, Array, Boundary, asked
from rotrnn.ops.declared import Declared
from rotrnn.ops.mixer import GRAM, KRONECKER, MATRIX, MIXTURE, columns_of

__all__ = ["SelectiveScanGrads", "selective_scan", "selective_scan_backward"]

SELECTIVE = Declared("selective_forward", "selective_backward", batch="B")
SOLVE = Declared("selective_solve", "selective_solve_adjoint", columns="K")


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
    negative: bool = False, **how: Unpack[Along],
) -> Array: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[False] = False,
    negative: bool = False, **how: Unpack[Along],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[False] = False, return_carries: Literal[True],
    negative: bool = False, **how: Unpack[Along],
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: Literal[True], return_carries: Literal[True],
    negative: bool = False, **how: Unpack[Along],
) -> tuple[Array, Array, Array]: ...  # fmt: skip
@overload
def selective_scan(
    x: npt.ArrayLike, delta: npt.ArrayLike, A: npt.ArrayLike, B: npt.ArrayLike, C: npt.ArrayLike,
    skip: npt.ArrayLike | None = None, h0: npt.ArrayLike | None = None, *,
    return_state: bool = False, return_carries: bool = False,
    negative: bool = False, **how: Unpack[Along],
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
        Initial state.
    reverse : bool
        Run backward in time, without copying the input.
    negative : bool
        Transitions ``2 exp(delta_t A) - 1``.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    return_state : bool
        Also return the final state.
    return_carries : bool
        Also return the carries, so that `selective_scan_backward` need not run forward again.

    Returns
    -------
    y : (B, T, D)
    hT : (B, D, S)
        Only with `return_state`: the state after the last valid step in scan order; `h0` (or zero) for a sequence
        without steps.
    carries : (B, tiles, S, D)
        Only with `return_carries`: the states before each tile of 32 steps.

    Raises
    ------
    TypeError
        An array has another dtype (integers, float16 and complex numbers are not supported).
    ValueError
        Shapes disagree, a length is out of range, or a size product overflows.
    """
    args = Boundary("selective_scan")
    how = {"reverse": args.flag("reverse", reverse), "negative": args.flag("negative", negative)}
    wanted = {"hT": args.flag("return_state", return_state), "carries": args.flag("return_carries", return_carries)}
    args.take(SELECTIVE, x=x, delta=delta, A=A, B=B, C=C, skip=skip, h0=h0, lengths=lengths)
    return asked(*args.run("selective_forward", y=True, **wanted, **how).values())


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
    x, delta, A, B, C, skip, h0, reverse, negative, lengths
        As given to `selective_scan`.
    dhT : (B, D, S), optional
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
    inputs: dict[str, Any] = {"dy": dy, "x": x, "delta": delta, "A": A, "B": B, "C": C, "skip": skip, "h0": h0}
    given = args.take(SELECTIVE, **inputs, dhT=dhT, carries=carries, lengths=lengths)
    if carries is None:
        given["carries"] = args.run("selective_forward", carries=True, **how)["carries"]
    return SelectiveScanGrads(**args.run("selective_backward", **how))


class SelectiveSolution(NamedTuple):
    """Result of `selective_solve`: the fixed point y and the mixed input x~ (B, T, E); the final state (B, E, S);
    the carries of `selective_scan`; ``late = V y`` (B, T, K), without its last step; the residual (B); and the values
    of the maps: delta (B, T, E), u and alpha (B, T, ...) of the mixer, alpha before its sigmoid, B and C (B, T, S)."""

    y: Array
    mixed: Array
    hT: Array
    carries: Array
    late: Array
    residual: Array
    maps: tuple[Array, ...]


def selective_solve(
    x: npt.ArrayLike,
    delta: npt.ArrayLike | None,
    base: npt.ArrayLike,
    v: npt.ArrayLike,
    first: npt.ArrayLike,
    A: npt.ArrayLike,
    h0: npt.ArrayLike,
    matrix: npt.ArrayLike | None = None,
    *,
    form: int,
    rank: int,
    largest: float = 1.0,
    steps: int = 0,
    eps: float = 0.0,
    silu: bool = False,
    unit: bool = True,
    negative: bool = False,
    feedback_norm: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> SelectiveSolution:
    """The fixed point of Bedouin's step in depth ("Fixed-Point RNNs", eqs. 11-12), exactly and in one pass over time.

    ``x~_t = Q_t (x_t - y_t) + y_t``, ``h_t = exp(delta_t A) * h_{t-1} + (delta_t * x~_t) B_t^T``, ``y_t = h_t C_t``,
    where u and alpha of Q_t, B_t and C_t, and delta_t where it is not given, are functions of ``base_t + V y_{t-1}``.
    When the past is known, a token's y_t solves a linear system. For mixers with vectors its matrix is diagonal plus
    rank R, solved exactly by R equations (Woodbury); for "monarch" it falls into blocks; else it has E equations.

    Parameters
    ----------
    x : (B, T, E)
        float32 or float64; all arrays are promoted to their common dtype.
    delta : (B, T, E), optional
        Step sizes; by default they are ``sigmoid(.)`` of the first E columns.
    base : (B, T, K)
        Columns: delta (E) if it is not given, u and alpha of the mixer as in its op (`rotrnn.ops.mixer`; none for
        MATRIX, no alpha for GRAM and ROTATION), B (S), C (S). For a mixture, u and alpha of its reflections come before
        those of its products.
    v : (K, E)
        V.
    first : (B, K)
        ``V y_{-1}``.
    A : (E, S)
    h0 : (B, E, S)
    matrix : (E, E), optional
        Q of all tokens, for the form MATRIX.
    form, rank : int
        Form of Q (`rotrnn.ops.mixer`) and its number of vectors or of factors R; for KRONECKER and MONARCH its `rows`,
        for GRAM and MATRIX E. MIXTURE is R mixers one after the other, a Householder reflection of one vector, a
        Kronecker product whose rows are the largest divisor of E up to its root, a reflection, ...
    largest : float
        Gains are ``largest * sigmoid(alpha)``, angles ``largest tanh(u / largest)``.
    steps, eps : int, float
        The gains are normalised, as by `rotrnn.ops.mixer.mixer_gains`; unit vectors are divided by ``max(length,
        eps)``.
    silu : bool
        u passes through SiLU.
    unit : bool
        Normalise B and C to unit length.
    negative : bool
        As in `selective_scan`.
    feedback_norm : bool
        V multiplies ``y_{t-1} / sqrt(mean(y_{t-1}^2) + 1e-5)``. `first` is as given.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in y, x~ and
        the maps.

    Returns
    -------
    SelectiveSolution
        The residual is the largest of a token: the distance of y from its image under the step, or eps times the factor
        by which its system lets errors grow, as of `rotrnn.ops.fixed_point.depth_solve`, whichever is larger. From a
        singular system on, numbers are not finite, and it is NaN.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, an unknown form, another rank than these, or a length out of range.
    """
    args = Boundary("selective_solve")
    args.take(SOLVE, x=x, delta=delta, A=A, h0=h0, base=base, v=v, first=first, matrix=matrix, lengths=lengths)
    numbers, widths = _solved(args, delta, matrix, form, rank, largest, steps, eps, silu, unit, negative, feedback_norm)
    B, T = args.size["B"], args.size["T"]
    results = args.run("selective_solve", **numbers)
    out = results.pop("out").reshape(B * T * sum(widths))
    parts = np.split(out, [B * T * sum(widths[:i]) for i in range(1, len(widths))])
    maps = tuple(part.reshape(B, T, width) for part, width in zip(parts, widths, strict=True))
    return SelectiveSolution(**results, maps=maps)


def selective_solve_adjoint(
    dy: npt.ArrayLike,
    dhT: npt.ArrayLike | None,
    y: npt.ArrayLike,
    mixed: npt.ArrayLike,
    carries: npt.ArrayLike,
    late: npt.ArrayLike | None,
    x: npt.ArrayLike,
    delta: npt.ArrayLike | None,
    base: npt.ArrayLike,
    v: npt.ArrayLike,
    first: npt.ArrayLike,
    A: npt.ArrayLike,
    matrix: npt.ArrayLike | None = None,
    *,
    form: int,
    rank: int,
    largest: float = 1.0,
    steps: int = 0,
    eps: float = 0.0,
    silu: bool = False,
    unit: bool = True,
    negative: bool = False,
    feedback_norm: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """Adjoint of the fixed point of `selective_solve`, exactly and in one pass back over time.

    Returns ``v = (I - J^T)^-1 dy``, where J is the derivative of ``F(y)`` by y for all steps: with v as the gradient of
    one application of F, in which y stays as it is, the gradients of all inputs are those of the fixed point. For the
    gradient dhT of the final state, v also has what reaches y through it. Given the gradient that comes from the next
    token, a token's v solves the transposed system of its y.

    Parameters
    ----------
    dy : (B, T, E)
    dhT : (B, E, S), optional
    y, mixed, carries, late
        As `selective_solve` returned them; late is not needed for T <= 1.

    x, delta, base, v, first, A, matrix, form, rank, largest, steps, eps, silu, unit, negative, feedback_norm, lengths
        As of `selective_solve`.

    Returns
    -------
    (B, T, E)
        Zero beyond the lengths; not finite from a singular system on, towards the beginning.

    Raises
    ------
    TypeError, ValueError
        As of `selective_solve`.
    """
    args = Boundary("selective_solve_adjoint")
    args.take(
        SOLVE, x=x, delta=delta, A=A, base=base, v=v, first=first, matrix=matrix, dy=dy, dhT=dhT, y=y, mixed=mixed,
        carries=carries, late=late, lengths=lengths,
    )  # fmt: skip
    numbers, _ = _solved(args, delta, matrix, form, rank, largest, steps, eps, silu, unit, negative, feedback_norm)
    if late is None and args.size["T"] > 1:
        raise ValueError(f"selective_solve_adjoint: late is None, expected an array with T={args.size['T']}")
    total: Array = args.run("selective_solve_adjoint", **numbers)["total"]
    return total


def _solved(
    args: Boundary, delta: Any, matrix: Any, form: int, rank: int, largest: float, steps: int, eps: float, silu: bool,
    unit: bool, negative: bool, feedback_norm: bool,
) -> tuple[dict[str, Any], tuple[int, ...]]:  # fmt: skip
    """Returns the numbers of a call, and the widths of the maps."""
    E, S, K = (args.size[letter] for letter in "ESK")
    u, alpha = columns_of(args, form, rank, E)
    if (matrix is None) != (form != MATRIX):
        raise ValueError(f"{args.op}: matrix is {'' if matrix is None else 'not '}None with form={form!r}")
    widths = (*([E] if delta is None else []), u, alpha, S, S)
    columns = sum(widths)
    if columns != K:
        raise ValueError(f"{args.op}: base has {K} columns, expected {columns} for R={rank}, E={E}, S={S}")
    least, most = {GRAM: (1, MIXER_MOST_STEPS), KRONECKER: (0, MIXER_MOST_STEPS), MIXTURE: (0, MIXER_MOST_STEPS)}.get(
        form, (0, 0)
    )
    numbers: dict[str, Any] = {"R": rank, "form": form, "steps": args.integer("steps", steps, least, most)}
    numbers |= {"largest": args.number("largest", largest, positive=True), "eps": args.number("eps", eps)}
    numbers |= {"u_silu": args.flag("silu", silu)}
    numbers |= {"unit": args.flag("unit", unit), "negative": args.flag("negative", negative)}
    return numbers | {"feedback_norm": args.flag("feedback_norm", feedback_norm)}, widths
