"""The system of a diagonal layer of complex states from its parameters (csrc/kernels/diagonal.c)."""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from rotrnn.ops.boundary import COMPLEX, REAL, Array, Boundary
from rotrnn.ops.declared import Declared, pairs, planes

__all__ = [
    "DiagonalWeightsGrads",
    "diagonal_weights",
    "diagonal_weights_backward",
    "polar_transition",
    "polar_transition_backward",
]

POLAR = Declared("polar_forward", "polar_backward")
WEIGHTS = Declared("diagonal_weights_forward", "diagonal_weights_backward", directions="K")


def polar_transition(
    nu: npt.ArrayLike, theta: npt.ArrayLike, *, nu_log: bool = False, theta_log: bool = False
) -> tuple[Array, Array]:
    """``a = exp(-nu + i theta)`` (LRU, Orvieto et al. 2023, eqs. 6 and 7).

    Parameters
    ----------
    nu, theta : (N,)
        float32 or float64, promoted to their common dtype.
    nu_log, theta_log : bool
        The argument is the logarithm, which is clipped to [-80, 80]: beyond, a decay is 0 or 1 anyway. The adjoint
        multiplies by the rate, also where it is clipped.

    Returns
    -------
    a : (N,) complex
    rates : (2, N)
        nu and theta, for `polar_transition_backward`.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, or shapes that disagree.
    """
    args = Boundary("polar_transition")
    flags = {"nu_log": args.flag("nu_log", nu_log), "theta_log": args.flag("theta_log", theta_log)}
    args.take(POLAR, nu=nu, theta=theta)
    a, rates = args.run("polar_forward", **flags).values()
    return a, rates


def polar_transition_backward(
    da: npt.ArrayLike, a: npt.ArrayLike, rates: npt.ArrayLike, *, nu_log: bool = False, theta_log: bool = False
) -> tuple[Array, Array]:
    """Adjoint of `polar_transition`: returns (dnu, dtheta), ``-Re(conj(a) da)`` and ``Im(conj(a) da)``, times the rates
    if the arguments were logarithms.

    Parameters
    ----------
    da : (N,) complex
        Gradient of a.
    a, rates
        As returned by `polar_transition`.
    nu_log, theta_log
        As given to it.

    Raises
    ------
    TypeError, ValueError
        As `polar_transition`.
    """
    args = Boundary("polar_transition_backward")
    flags = {"nu_log": args.flag("nu_log", nu_log), "theta_log": args.flag("theta_log", theta_log)}
    args.take(POLAR, da=da, a=a, rates=rates)
    dnu, dtheta = args.run("polar_backward", **flags).values()
    return dnu, dtheta


class DiagonalWeightsGrads(NamedTuple):
    """Gradients of `diagonal_weights`, each in the shape of its argument; None for a direction that is not there."""

    dgain: Array
    dB_re: Array
    dB_im: Array
    dC_re: Array
    dC_im: Array
    dC_re_reverse: Array | None
    dC_im_reverse: Array | None


def _gain(args: Boundary, gain: npt.ArrayLike) -> dict[str, Array | None]:
    """Returns the kernel's arguments of a real or a complex gain."""
    array = args.array("gain", gain, "N", kinds=REAL + COMPLEX)
    return {"gain": None, "turn": array} if array.dtype.kind == "c" else {"gain": array, "turn": None}


def diagonal_weights(
    gain: npt.ArrayLike,
    B_re: npt.ArrayLike,
    B_im: npt.ArrayLike,
    C_re: npt.ArrayLike,
    C_im: npt.ArrayLike,
    C_re_reverse: npt.ArrayLike | None = None,
    C_im_reverse: npt.ArrayLike | None = None,
    *,
    weight: float = 1.0,
) -> tuple[Array, Array]:
    """``W_in = gain B`` and ``W_out = weight C`` as the real matrices of a `System`.

    Rows (2n, 2n+1) of W_in are the real and the imaginary part of ``gain_n B_n``. Columns (2n, 2n+1) of W_out are the
    real part of column n of ``weight C``, and minus its imaginary part: an output is the real part of ``weight C h``.

    Parameters
    ----------
    gain : (N,)
        Real or complex. All arrays are of single or of double precision, promoted to their common precision.
    B_re, B_im : (N, D)
    C_re, C_im : (D, N)
    C_re_reverse, C_im_reverse : (D, N), optional
        C of a second direction, both or none.
    weight : float
        At least 0; 2 if each state also represents its complex conjugate.

    Returns
    -------
    w_in : (2N, D)
    w_out : (K, D, 2N)
        For each of K directions.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, shapes that disagree, one of the reverse C alone, or a negative weight.
    """
    args = Boundary("diagonal_weights")
    weight, reverse = args.number("weight", weight), {"C_re_reverse": C_re_reverse, "C_im_reverse": C_im_reverse}
    missing = [name for name, one in reverse.items() if one is None]
    if len(missing) == 1:
        raise ValueError(f"diagonal_weights: {missing[0]} is None, expected an array, or neither of the reverse C")
    K = 1 if missing else 2
    args.bind("K", K, "C_re_reverse")
    args.take(WEIGHTS, **_gain(args, gain), B_re=B_re, B_im=B_im, C_re=C_re, C_im=C_im, **reverse)
    w_in, w_out = args.run("diagonal_weights_forward", weight=weight).values()
    N, _, D = w_in.shape
    return w_in.reshape(2 * N, D), pairs(w_out).reshape(K, D, 2 * N)


def diagonal_weights_backward(
    dw_in: npt.ArrayLike,
    dw_out: npt.ArrayLike,
    gain: npt.ArrayLike,
    B_re: npt.ArrayLike,
    B_im: npt.ArrayLike,
    *,
    weight: float = 1.0,
) -> DiagonalWeightsGrads:
    """Adjoint of `diagonal_weights`: ``dB = conj(gain) dW_in``, ``dgain = sum over D of conj(B) dW_in``, of a real gain
    its real part, and ``dC = weight dW_out``.

    Parameters
    ----------
    dw_in : (2N, D)
    dw_out : (K, D, 2N)
        Gradients of W_in and W_out.
    gain, B_re, B_im, weight
        As given to `diagonal_weights`.

    Raises
    ------
    TypeError, ValueError
        As `diagonal_weights`.
    """
    args = Boundary("diagonal_weights_backward")
    weight = args.number("weight", weight)
    w_in, w_out = args.array("dw_in", dw_in, "L D"), args.array("dw_out", dw_out, "K D L")
    L, D = w_in.shape
    if L % 2:
        raise ValueError(f"diagonal_weights_backward: dw_in has {L} rows, expected two for each state")
    if len(w_out) not in (1, 2):
        raise ValueError(f"diagonal_weights_backward: dw_out has shape {w_out.shape}, expected (K, D, 2N), K of 1 or 2")
    args.bind("N", L // 2, "dw_in")
    w_in, w_out = (args.layout(one, one.dtype) for one in (w_in, w_out))
    args.take(
        WEIGHTS, dw_in=w_in.reshape(L // 2, 2, D), dw_out=planes(w_out), **_gain(args, gain), B_re=B_re, B_im=B_im
    )
    both = len(w_out) == 2
    dgain, dturn, *grads = args.run(
        "diagonal_weights_backward", weight=weight, dC_re_reverse=both, dC_im_reverse=both
    ).values()
    return DiagonalWeightsGrads(dturn if dgain is None else dgain, *grads)
