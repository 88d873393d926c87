"""Pairs of lanes that turn by angles which add up over time (csrc/kernels/turn.c)."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from rotrnn._cpu import PAIRS
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["TurnGrads", "Turned", "turn", "turn_backward"]

TURN = Declared("turn_forward", "turn_backward", vectors="L", others="M", angles="A")


class Turned(NamedTuple):
    """Result of `turn`: y (B, T, L, H, N), x turned; w (B, T, M, H, N), z turned, or None; and the state cT
    (B, 2, H, A)."""

    y: Array
    w: Array | None
    cT: Array


class TurnGrads(NamedTuple):
    """Gradients of `turn`, each in the shape of its argument; dz is None without z."""

    dtheta: Array
    dx: Array
    dz: Array | None
    dc0: Array


def turn(
    theta: npt.ArrayLike,
    x: npt.ArrayLike,
    z: npt.ArrayLike | None = None,
    c0: npt.ArrayLike | None = None,
    *,
    pairs: str = "adjacent",
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> Turned:
    """Turns pairs of lanes by angles that add up over time.

    ``c_t = c_{t-1} + theta_t``, ``y_t = R(c_t) x_t`` for each of the L vectors x of a head, and of the M vectors z,
    t = 0..T-1, with ``c_{-1} = c0`` (default zero). R(c) turns pair i < A counter-clockwise by c_i radians, and leaves
    other lanes unchanged. The product of two turned vectors depends only on the angles between their steps. So turned
    keys and queries, or B and C of a state space model, give the state a rotation in each step, ``h_t = a_t h_{t-1}
    R(theta_t) + x_t B_t^T``, wherever a pair has one decay (Mamba-3; Selective RoPE).

    Angles add up in double and modulo 2 pi, float32 included: after T steps of at most a >= 1 radians, c is off by less
    than T a 2^-46 from the sum of the angles given, so float32 adds no drift of its own. (Angles that a layer computes
    in float32 are rounded, and over equal tokens these roundings add up.) Angles theta beyond 2^50 radians are not
    resolved.

    Parameters
    ----------
    theta : (B, T, H, A)
        Angles of a step in radians, any T >= 0. All arrays are float32 or float64, and are promoted to their common
        dtype.
    x : (B, T, L, H, N)
        N >= 2 A.
    z : (B, T, M, H, N), optional
        More vectors, in a separate array.
    c0 : (B, 2, H, A), optional
        Initial state: the sum of both numbers is the angle.
    pairs : "adjacent" or "halves"
        Pair i is lanes 2i and 2i + 1, or i and i + N // 2.
    reverse : bool
        Run backward in time; `c0` enters at the last valid step.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in the output.

    Returns
    -------
    Turned
        ``(y, w, cT)``: x and z turned, and the state after the last valid step in scan order. The state is the angle
        from -pi to pi and its rounding error, so float32 loses nothing from call to call.

    Raises
    ------
    TypeError
        An array has another dtype.
    ValueError
        Shapes disagree, N is less than 2 A, `pairs` is unknown, a length is out of range, or a size product overflows.
    """
    args = Boundary("turn")
    how = _how(args, pairs, reverse)
    _take(args, z is None, theta=theta, x=x, z=z, c0=c0, lengths=lengths)
    return Turned(*args.run("turn_forward", w=z is not None, cT=True, **how).values())


def turn_backward(
    dy: npt.ArrayLike,
    theta: npt.ArrayLike,
    turned: Turned,
    c0: npt.ArrayLike | None = None,
    *,
    dw: npt.ArrayLike | None = None,
    dcT: npt.ArrayLike | None = None,
    pairs: str = "adjacent",
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> TurnGrads:
    """Adjoint of `turn`.

    For a turned pair y, ``R(-c_t) dy_t`` is the gradient of the pair before the turn, and ``gc_t = y_0 dy_1 - y_1
    dy_0``, summed over a head's vectors, the gradient of the angle from this step; ``dtheta_t = gc_t + dtheta_{t+1}``,
    with `dcT` after the last step; ``dc0 = dtheta_0`` for both of its numbers. If a sequence has no steps, ``dc0 =
    dcT``.

    The sum is in double, but its terms gc come from y and dy, which are rounded, and terms far from a step cancel. In
    float32 the gradient of a bias of angles, a sum of T dtheta, is therefore off by more than other gradients: by 1e-5
    to 4e-3 of itself after 20,000 steps of SLinOSS, DeltaNet, Mamba2 and Mamba3.

    Parameters
    ----------
    dy : (B, T, L, H, N)
        Gradient of the turned x; padding beyond `lengths` is never read.
    theta, c0, pairs, reverse, lengths
        As given to `turn`.
    turned : Turned
        As `turn` returned it; its state is not read.
    dw : (B, T, M, H, N), optional
        Gradient of the turned z; required with z.
    dcT : (B, 2, H, A), optional
        Gradient of the final state; its second number, a rounding error, counts as a constant.

    Returns
    -------
    TurnGrads
        ``(dtheta, dx, dz, dc0)``, all new arrays (nothing is accumulated), zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `turn`, or `turned` is not a Turned, or dw is not given although z was.
    """
    args = Boundary("turn_backward")
    args.one_of("turned", turned, Turned)
    how = _how(args, pairs, reverse)
    if (dw is None) != (turned.w is None):
        got, expected = ("None", "the gradient of w") if dw is None else ("an array", "None, since turned.w is None")
        raise ValueError(f"turn_backward: dw is {got}, expected {expected}")
    saved = {"y": turned.y, "w": turned.w, "c0": c0, "dcT": dcT, "lengths": lengths}
    _take(args, dw is None, "turned: y w", dy=dy, dw=dw, theta=theta, **saved)
    found = args.run("turn_backward", dz=dw is not None, **how)
    return TurnGrads(found["dtheta"], found["dx"], found["dz"], found["dc0"])


def _how(args: Boundary, pairs: str, reverse: bool) -> dict[str, int]:
    return {"pairs": PAIRS[args.choice("pairs", pairs, PAIRS)], "reverse": args.flag("reverse", reverse)}


def _take(args: Boundary, alone: bool, part_of: str = "", /, **arrays: npt.ArrayLike | None) -> None:
    """Takes the arguments; without z, M is 0."""
    if alone:
        args.bind("M", 0, "")
    args.take(TURN, part_of, **arrays)
    size = args.size
    if size["A"] > size["N"] // 2:
        vectors = next(one for one in ("x", "y") if one in args.given)
        raise ValueError(
            f"{args.op}: theta has A={size['A']} angles, expected at most N // 2 = {size['N'] // 2} pairs of {vectors}"
        )
