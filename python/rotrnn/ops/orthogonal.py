"""Rotations from free matrices: P = expm(M - M^T), and its exact adjoint.

Built from matrix products alone (csrc/gemm.c), so that unlike LAPACK's the result is the same bits for any number of
threads. SciPy's `expm` and `expm_frechet` compute the same functions one matrix at a time, and through solves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.dense import stack_product

# Terms of the exponential series: at norm 1 what it leaves out, and the derivative of that, is below 1e-17.
TERMS = 20
# Magnitude of M's numbers: squaring back from norm 1 loses log2(norm) bits, of which a Newton step restores half of 53.
LARGEST = 1e6


def orthogonal(M: npt.ArrayLike) -> Array:
    """Rotation matrices from free square matrices: ``P = expm(M - M^T)``, in SO(n).

    RotRNN's parameterisation of its orthogonal matrices ("RotRNN: Modelling Long Sequences with Rotations", Lemma 1):
    onto SO(n), smooth, and the identity at M = 0. Scaling and squaring of the series, then one Newton step
    ``P <- P (3 I - P^T P) / 2``, which leaves ``|P^T P - I|`` at rounding. Computed in float64 whatever the dtype.

    Parameters
    ----------
    M : (..., n, n), float32 or float64
        Any number of matrices; only the skew-symmetric part ``M - M^T`` matters.

    Returns
    -------
    P : (..., n, n)
        In the dtype of `M`.

    Raises
    ------
    TypeError
        `M` has another dtype.
    ValueError
        `M` is not a stack of square matrices, or has a number that is not finite or is beyond a million.
    """
    args = Boundary("orthogonal")
    matrices = _generators(args, M)
    P = _newton(_expm(_skew(matrices))[0])
    return P.reshape(np.shape(M)).astype(matrices.dtype, copy=False)


def orthogonal_backward(dP: npt.ArrayLike, M: npt.ArrayLike) -> Array:
    """Adjoint of `orthogonal`: ``dM = K - K^T``, ``K = L(S^T, dE)`` for ``S = M - M^T``.

    L(S^T, .) is the Frechet derivative of expm at S^T, the adjoint of that at S, and dE the gradient of ``E = expm(S)``
    through the Newton step: ``dE = 3/2 dP - (dP E^T E + E dP^T E + E E^T dP) / 2``.

    Parameters
    ----------
    dP : (..., n, n)
        Gradient of `P`.
    M : (..., n, n)
        As given to `orthogonal`.

    Returns
    -------
    dM : (..., n, n)
        New array, skew-symmetric, in the dtype of `M`.

    Raises
    ------
    TypeError, ValueError
        As `orthogonal`; `dP` may hold numbers that are not finite, and they come through.
    """
    args = Boundary("orthogonal_backward")
    matrices = _generators(args, M)
    cotangent = args.layout(_matrices(args, "dP", dP), np.dtype(np.float64))
    S = _skew(matrices)
    K = _expm(-S, _newton_adjoint(cotangent, _expm(S)[0]))[1]
    dM: Array = K - _transpose(K)
    return dM.reshape(np.shape(M)).astype(matrices.dtype, copy=False)


def _matrices(args: Boundary, name: str, value: npt.ArrayLike) -> Array:
    """`value` (..., n, n) as (G, n, n)."""
    array = np.asarray(value)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ValueError(f"{args.op}: {name} has shape {array.shape}, expected (..., n, n)")
    return args.array(name, array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:]), "G n n")


def _generators(args: Boundary, M: npt.ArrayLike) -> Array:
    """`M` as (G, n, n), every number finite and not too large."""
    matrices = _matrices(args, "M", M)
    bad = ~(np.abs(matrices) <= LARGEST)
    if bad.any():
        raise ValueError(f"{args.op}: M has the number {matrices[bad][0]}, expected magnitudes up to {LARGEST:g}")
    return matrices


def _skew(M: Array) -> Array:
    wide = M.astype(np.float64, order="C")
    return wide - _transpose(wide)


def _transpose(x: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


def _newton(E: Array) -> Array:
    """E (3 I - E^T E) / 2 = E + E (I - E^T E) / 2."""
    E_T = _transpose(E)
    return E + stack_product(E, np.eye(E.shape[-1]) - stack_product(E_T, E)) / 2


def _newton_adjoint(dP: Array, E: Array) -> Array:
    """3/2 dP - (dP E^T E + E dP^T E + E E^T dP) / 2."""
    E_T, dP_T = _transpose(E), _transpose(dP)
    return (
        1.5 * dP
        - (stack_product(dP, stack_product(E_T, E)) + stack_product(E, stack_product(dP_T, E) + stack_product(E_T, dP)))
        / 2
    )


def _expm(A: Array, dA: Array | None = None) -> tuple[Array, Any]:
    """expm(A) of skew-symmetric matrices (G, n, n), and its Frechet derivative in direction dA (or None).

    Scaling and squaring of the series ``sum_k A^k / k!``, by Horner in ``X = A^2`` with two terms as one coefficient.
    The derivative is carried along by the product rule: it is that of what is computed.
    """
    X = stack_product(A, A)
    # Eigenvalues +-iw of A add 2 w^4 to |X|_F^2, so |A|_2 <= (|X|_F^2 / 2)^(1/4); halved until that is at most 1
    norm = np.sqrt(np.linalg.norm(X, axis=(-2, -1)) / math.sqrt(2))
    squarings = np.ceil(np.log2(np.maximum(norm, 1))).astype(int)
    half = np.exp2(-squarings)[:, None, None]
    A, X = half * A, half**2 * X
    inverse = [1 / math.factorial(k) for k in range(TERMS)]
    unit = np.eye(A.shape[-1])
    E = inverse[-2] * unit + inverse[-1] * A
    if dA is not None:
        dA = half * dA
        dX = stack_product(dA, A) + stack_product(A, dA)
        dE = inverse[-1] * dA
    for k in reversed(range(0, TERMS - 2, 2)):
        if dA is not None:
            dE = stack_product(dX, E) + stack_product(X, dE) + inverse[k + 1] * dA
        E = stack_product(X, E) + inverse[k] * unit + inverse[k + 1] * A
    for k in range(squarings.max(initial=0)):
        more = squarings > k
        if dA is not None:
            dE[more] = stack_product(E[more], dE[more]) + stack_product(dE[more], E[more])
        E[more] = stack_product(E[more], E[more])
    return E, None if dA is None else dE
