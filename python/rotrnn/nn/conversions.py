"""One linear recurrence written as another layer: dense as diagonal, diagonal as dense, LRU as RotRNN and back.

All of these layers compute ``h_t = A h_{t-1} + B u_t``, ``y_t = C h_t + D * u_t`` with a real matrix A, of which only
the eigenvalues matter: the states ``V^-1 h`` give the same outputs with ``V^-1 A V``, ``V^-1 B`` and ``C V``. A dense
`RNN` stores A itself. Every `LinearRecurrence` stores one complex number a for each plane (two real lanes), the block
``[[Re a, -Im a], [Im a, Re a]]`` of A.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.extras import needed
from rotrnn.nn.layer import Array, Params, Recurrent, astype
from rotrnn.nn.layers.diagonal import interleave
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.layers.lru import FORMS, LRU, TINY
from rotrnn.nn.layers.rnn import RNN
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.ops.boundary import Boundary, rename
from rotrnn.ops.linear_layer import System
from rotrnn.ops.orthogonal import stack_of_matrices

__all__ = ["Converted", "orthogonal_inverse", "real_jordan", "to_lru", "to_rnn", "to_rotrnn"]

LEAST_DECAY = 1e-12
"""The least -log |a| of a converted layer whose parameter is its logarithm; the most is `MOST_DECAY`."""
MOST_DECAY = 500.0
FARTHEST = 1e-3
"""The largest element of ``P^T P - I`` for which `orthogonal_inverse` takes P for a rotation with rounding errors."""
WORST_CONDITION = 1e8
"""The condition number of eigenvectors beyond which half of the digits of a converted float64 matrix are lost."""


class Converted(NamedTuple):
    """A layer, its parameters, and `error`: the largest distance of an eigenvalue from the original's, not of outputs.

    The error includes the rounding of the returned parameters: about 1e-7 in float32. With error 0, both layers compute
    the same function, up to rounding. Otherwise it is not a bound for the difference of their outputs, which also
    depends on the weights, the inputs, and how long the states last.
    """

    layer: Recurrent
    params: Params
    error: float


def real_jordan(A: npt.ArrayLike) -> tuple[Array, Array]:
    """A real matrix as ``A = V J V^-1``, with J real and block diagonal.

    A real eigenvalue gives a block of one number. A pair a, conj(a) gives ``[[Re a, -Im a], [Im a, Re a]]``, a rotation
    times a decay (RotRNN, section 3.1; LRU, section 3.2). Real eigenvalues come first.

    Parameters
    ----------
    A : (N, N), float32 or float64

    Returns
    -------
    V, J : (N, N), float64
        The columns of V have length 1, or come in pairs whose squared lengths add up to 1.

    Raises
    ------
    TypeError
        `A` has another dtype.
    ValueError
        `A` is not a square matrix, is not finite, or is too close to a matrix that cannot be diagonalised.
    """
    args = Boundary("real_jordan")
    real, planes = _eigen(args, "A", args.array("A", A, "N M"))
    V = np.concatenate([real.vectors.real, interleave(planes.vectors.real, -planes.vectors.imag, axis=1)], 1)
    J = np.diag(np.concatenate([real.values.real, np.repeat(planes.values.real, 2)]))
    at = len(real.values) + 2 * np.arange(len(planes.values))
    J[at, at + 1], J[at + 1, at] = -planes.values.imag, planes.values.imag
    return V, J


def orthogonal_inverse(P: npt.ArrayLike) -> Array:
    """A matrix M for which ``orthogonal(M)`` is the rotation P: half of the logarithm of P.

    For a matrix that was trained elsewhere. P is replaced by the nearest orthogonal matrix, which has its
    singular vectors. Its real Schur form consists of rotations of planes; each gives its angle, in (-pi, pi], and two
    eigenvalues -1 give a plane with angle pi. Many M have the same P; this one is skew-symmetric, with the least norm.
    Computed in float64 for either dtype, without gradient. Needs SciPy.

    Parameters
    ----------
    P : (..., n, n), float32 or float64
        Rotation matrices, up to rounding.

    Returns
    -------
    M : (..., n, n)
        New array, skew-symmetric, in the dtype of `P`.

    Raises
    ------
    ImportError
        SciPy is not installed.
    TypeError
        `P` has another dtype.
    ValueError
        `P` is not a stack of square matrices, a matrix in it is farther from orthogonal than 1e-3, or is a reflection,
        with determinant -1, which no M gives.
    """
    args = Boundary("orthogonal_inverse")
    (matrices,) = args.common(stack_of_matrices(args, "P", P))
    with needed(f"{args.op}: needs SciPy", "scipy"):
        from scipy.linalg import schur
    M: Array = np.empty_like(matrices)
    for i, one in enumerate(matrices.astype(np.float64)):
        far = float(np.max(np.abs(one.T @ one - np.eye(len(one))), initial=0))
        if not far <= FARTHEST:
            raise ValueError(f"{args.op}: P^T P of matrix {i} of P is {far:.3g} from I, expected {FARTHEST:g} at most")
        left, _, right = np.linalg.svd(one)
        rotation = left @ right
        if np.linalg.det(rotation) < 0:
            raise ValueError(f"{args.op}: matrix {i} of P is a reflection (determinant -1), expected a rotation")
        M[i] = _half_logarithm(*schur(rotation, output="real"))
    return M.reshape(np.shape(P))


def to_rnn(layer: Recurrent, params: Params) -> Converted:
    """The dense linear `RNN` equal to a linear recurrence: A is block diagonal, with a 2x2 block for each plane. Exact,
    so in float64 the error is 0. A linear RNN becomes an RNN whose A has this form.

    Parameters
    ----------
    layer : LRU, RotRNN, S5, RopeMemory or another LinearRecurrence, without a window; or a linear RNN
    params : dict of arrays

    Raises
    ------
    TypeError, ValueError
        Another layer, a layer with a window, wrong parameters, or a matrix A that is too close to one that cannot be
        diagonalised.
    """
    args = Boundary("to_rnn")
    system, bidirectional, window = _system(args, layer, params)
    if window is not None:
        raise ValueError(f"to_rnn: layer has window={window}, expected None: a dense RNN has no window")
    lanes = 2 * len(system.a)
    A, at = np.zeros((lanes, lanes)), np.arange(0, lanes, 2)
    A[at, at], A[at + 1, at + 1] = system.a.real, system.a.real
    A[at, at + 1], A[at + 1, at] = -system.a.imag, system.a.imag
    rnn = RNN(layer.d_model, lanes, bidirectional=bidirectional)
    outputs = {"C" + suffix: C for suffix, C in zip(("", "_reverse"), system.w_out, strict=False)}
    values = {"A": A, "B": system.w_in, **outputs, "D": system.skip}
    return _converted(params, rnn, values, system.a)


def to_lru(layer: Recurrent, params: Params, form: str = "log_phase") -> Converted:
    """The `LRU` equal to a linear recurrence or a linear RNN, with a state for each plane.

    A dense A is diagonalised; one eigenvalue of each complex pair is kept, and every real one. The magnitude of an
    eigenvalue is kept where the form allows it: the logarithmic forms stay inside the unit circle, and the error is the
    distance of the farthest eigenvalue from there.

    Parameters
    ----------
    layer : LRU, RotRNN, S5, RopeMemory or another LinearRecurrence; or a linear RNN
    params : dict of arrays
    form : str
        As in `LRU`; "real_imag" can represent any eigenvalue.

    Raises
    ------
    TypeError, ValueError
        Another layer, an unknown form, wrong parameters, or a matrix A that is too close to one that cannot be
        diagonalised.
    """
    args = Boundary("to_lru")
    args.choice("form", form, FORMS)
    system, bidirectional, window = _system(args, layer, params)
    a, N = system.a, len(system.a)
    decay, angle = _decay(a, LEAST_DECAY if form != "exp" else -np.inf), np.angle(a)
    least = np.finfo(np.result_type(*params.values())).eps  # below 2 pi by less, an angle would be rounded by more
    phase = np.where((angle < 0) & (angle > -least), 0, angle % (2 * np.pi))
    gain = np.sqrt(-np.expm1(-2 * np.maximum(decay, LEAST_DECAY)))  # LRU, eq. 7
    lru = LRU(layer.d_model, N, bidirectional=bidirectional, window=window, form=form)
    values = {
        "lambda_re": a.real,
        "lambda_im": a.imag,
        "nu": decay,
        "nu_log": np.log(np.maximum(decay, LEAST_DECAY)),
        "theta": angle,
        "theta_log": np.log(np.maximum(phase, TINY)),  # a real eigenvalue has angle 0
        "gamma_log": np.log(gain),
        "B_re": system.w_in[0::2] / gain[:, None],
        "B_im": system.w_in[1::2] / gain[:, None],
        "D": system.skip,
    }
    for suffix, C in zip(lru.directions, system.w_out, strict=True):
        values |= {"C_re" + suffix: C[:, 0::2], "C_im" + suffix: -C[:, 1::2]}
    return _converted(params, lru, values, a)


def to_rotrnn(layer: Recurrent, params: Params, heads: int | None = None) -> Converted:
    """The `RotRNN` whose eigenvalues are nearest to the eigenvalues of a linear recurrence or a linear RNN.

    All planes of a head share one decay gamma. With a head for each plane, the default, any eigenvalue inside the unit
    circle is met exactly. With fewer heads, planes are sorted by magnitude, consecutive planes share a head, and its
    gamma lies halfway between their smallest and largest magnitude. That makes the error, the distance of the farthest
    eigenvalue, as small as it can be for this order. P is the identity (M = 0): the recurrence runs on its planes.

    Parameters
    ----------
    layer : LRU, RotRNN, S5, RopeMemory or another LinearRecurrence; or a linear RNN
    params : dict of arrays
    heads : int, optional
        A divisor of the number of planes.

    Raises
    ------
    TypeError, ValueError
        Another layer, heads that do not divide the planes, wrong parameters, or a matrix A that is too close to one
        that cannot be diagonalised.
    """
    args = Boundary("to_rotrnn")
    system, bidirectional, window = _system(args, layer, params)
    planes = len(system.a)
    heads = planes if heads is None else args.integer("heads", heads, 1)
    if planes % heads:
        raise ValueError(f"to_rotrnn: heads={heads}, expected a divisor of the {planes} planes")
    order = np.argsort(np.abs(system.a), kind="stable")
    a = system.a[order].reshape(heads, -1)
    modulus = np.abs(a)
    decay = _decay((modulus[:, 0] + modulus[:, -1]) / 2, LEAST_DECAY)
    phase = np.angle(a)
    lanes = (2 * order[:, None] + np.arange(2)).ravel()
    B = system.w_in[lanes].reshape(heads, -1, layer.d_model)
    trace = np.einsum("hwd,hwd->h", B, B)
    unused = trace == 0  # B must not be zero: a head without input gets B = 1 and C = 0
    B, trace = np.where(unused[:, None, None], 1.0, B), np.where(unused, B[0].size, trace)
    energy = trace if window is None else -trace * np.expm1(-2 * window * decay)
    xi = np.sqrt(-np.expm1(-2 * decay) / energy)
    scale = np.repeat(np.where(unused, 0, 1 / xi), 2 * planes // heads)
    rotrnn = RotRNN(layer.d_model, 2 * planes, bidirectional=bidirectional, window=window, heads=heads)
    width = rotrnn.width
    outputs = {"C" + suffix: C[:, lanes] * scale for suffix, C in zip(("", "_reverse"), system.w_out, strict=False)}
    values = {
        "theta": phase,
        "gamma_log": np.log(decay),
        "M": np.zeros((heads, width, width)),
        "B": B,
        **outputs,
        "D": system.skip,
    }
    return _converted(params, rotrnn, values, a.ravel())


class _Eigen(NamedTuple):
    """Eigenvalues (n,), and right eigenvectors (N, n) as columns."""

    values: Array
    vectors: Array


def _eigen(args: Boundary, name: str, A: Array) -> tuple[_Eigen, _Eigen]:
    """Returns the real eigenvalues of A, and the eigenvalues above the real axis, one for each conjugate pair."""
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"{args.op}: {name} has shape {A.shape}, expected a square matrix")
    A = A.astype(np.float64)
    if not np.isfinite(A).all():
        raise ValueError(f"{args.op}: {name} has the number {A[~np.isfinite(A)][0]}, expected finite numbers")
    values, vectors = np.linalg.eig(A)
    condition = np.linalg.cond(vectors) if A.size else 1.0
    if not condition < WORST_CONDITION:
        raise ValueError(
            f"{args.op}: the eigenvectors of {name} have condition number {condition:.3g}, "
            f"expected less than {WORST_CONDITION:g}: the matrix is too close to one that cannot be diagonalised"
        )
    parts = [np.flatnonzero(values.imag == 0), np.flatnonzero(values.imag > 0)]
    return tuple(_Eigen(values[part], vectors[:, part]) for part in parts)  # type: ignore[return-value]


def _system(args: Boundary, layer: Recurrent, params: Params) -> tuple[System, bool, int | None]:
    """Returns the folded system of the layer in float64, whether it is bidirectional, and its window."""
    if not isinstance(layer, LinearRecurrence | RNN) or getattr(layer, "activation", "identity") != "identity":
        found = f"an RNN with activation {layer.activation!r}" if isinstance(layer, RNN) else type(layer).__name__
        found = f"the class {layer.__name__}" if isinstance(layer, type) else found
        raise TypeError(
            f"{args.op}: layer is {found}, expected LRU, RotRNN, S5, RopeMemory or an RNN with activation 'identity'"
        )
    try:
        layer.check_params(params)
    except (TypeError, ValueError) as error:
        rename(error, f"{type(layer).__name__}:", f"{args.op}:")
        raise
    if isinstance(layer, LinearRecurrence):
        return layer.fold(astype(params, np.float64)).weights, layer.bidirectional, layer.window
    wide = astype(params, np.float64)
    real, planes = _eigen(args, "A", wide["A"])
    values = np.concatenate([real.values, planes.values]).astype(np.complex128)
    vectors = np.concatenate([real.vectors, planes.vectors], 1).astype(np.complex128)
    # rows of V^-1 for the kept eigenvalues, by the whole of V: the rest are conjugates
    whole = np.concatenate([vectors, planes.vectors.conj()], 1)
    B = np.linalg.solve(whole, wide["B"].astype(np.complex128))[: len(values)]
    twice = np.repeat([1.0, 2.0], [len(real.values), len(planes.values)])  # both of a pair add the same to y
    outputs = [wide[name] @ (vectors * twice) for name in ("C", "C_reverse") if name in wide]
    w_in = interleave(B.real, B.imag, axis=0)
    w_out = np.stack([interleave(C.real, -C.imag, axis=1) for C in outputs])
    return System(w_in, values, w_out, wide["D"]), layer.bidirectional, None


def _half_logarithm(T: Array, Z: Array) -> Array:
    """Returns the skew-symmetric M with ``expm(2 M) = P``, for a rotation P with the real Schur form ``Z T Z^T``."""
    half, k = np.zeros_like(T), 0
    turned: list[int] = []
    while k < len(T):
        if k + 1 < len(T) and T[k + 1, k] != 0:
            half[k + 1, k] = math.atan2(T[k + 1, k] - T[k, k + 1], T[k, k] + T[k + 1, k + 1]) / 2
            k += 2
            continue
        if T[k, k] < 0:
            turned.append(k)
        k += 1
    for first, second in zip(turned[::2], turned[1::2], strict=True):
        half[second, first] = math.pi / 2
    logarithm: Array = Z @ (half - half.T) @ Z.T
    return (logarithm - logarithm.T) / 2  # rounding aside, it is skew-symmetric


def _decay(a: Array, least: float) -> Array:
    """Returns -log |a|, at least `least` and at most `MOST_DECAY`."""
    with np.errstate(divide="ignore"):
        return np.clip(-np.log(np.abs(a)), least, MOST_DECAY)


def _converted(original: Params, layer: LinearRecurrence | RNN, values: dict[str, Any], wanted: Array) -> Converted:
    """Returns the layer with its parameters from `values`, in the original's precision. `wanted` are the original's
    eigenvalues, in the order of the layer's planes. A distance within float64 rounding is 0."""
    dtype = np.result_type(*original.values())
    params = astype({name: np.ascontiguousarray(values[name]) for name in layer.shapes}, dtype)
    wide = astype(params, np.float64)
    if isinstance(layer, RNN):
        reached = np.diagonal(wide["A"])[0::2] + 1j * np.diagonal(wide["A"], -1)[0::2]
    else:
        reached = layer.fold(wide).weights.a
    apart = float(np.max(np.abs(wanted - reached), initial=0))
    return Converted(layer, params, 0.0 if apart <= 16 * np.finfo(np.float64).eps else apart)
