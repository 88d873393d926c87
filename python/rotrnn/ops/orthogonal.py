"""Rotations from unconstrained matrices: P = expm(M - M^T), and its exact adjoint.

They use only matrix products (csrc/kernels/orthogonal.c), so that, unlike with LAPACK, the result has the same bits for
any number of threads. SciPy's `expm` and `expm_frechet` compute the same functions for one matrix at a time, with
linear solves.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import ORTHOGONAL_LARGEST as LARGEST
from rotrnn.ops.boundary import Array, Boundary

__all__ = ["orthogonal", "orthogonal_backward"]


def orthogonal(M: npt.ArrayLike) -> Array:
    """Rotation matrices from unconstrained square matrices: ``P = expm(M - M^T)``, in SO(n).

    RotRNN's parameterisation of its orthogonal matrices ("RotRNN: Modelling Long Sequences with Rotations", Lemma 1):
    surjective onto SO(n), smooth, and the identity at M = 0. Uses scaling and squaring of the series, then one Newton
    step ``P <- P (3 I - P^T P) / 2``, after which ``|P^T P - I|`` is at rounding level. Computed in float64 for either
    dtype.

    Parameters
    ----------
    M : (..., n, n), float32 or float64
        Any number of matrices; only the skew-symmetric ``M - M^T`` matters.

    Returns
    -------
    P : (..., n, n)
        In the dtype of `M`.

    Raises
    ------
    TypeError
        `M` has another dtype.
    ValueError
        `M` is not a stack of square matrices, or has an element that is not finite or has a magnitude above a million.
    """
    args = Boundary("orthogonal")
    (matrices,) = args.common(stack_of_matrices(args, "M", M))
    P: Array = np.empty_like(matrices)
    with _named(args, matrices):
        args.kernels.orthogonal_forward(P=P, M=matrices, **args.sizes("G n"))
    return P.reshape(np.shape(M))


def orthogonal_backward(dP: npt.ArrayLike, M: npt.ArrayLike) -> Array:
    """Adjoint of `orthogonal`: ``dM = L - L^T``, ``L = L(S^T, dP)`` for ``S = M - M^T``.

    L(S^T, .) is the Frechet derivative of expm at S^T, which is the adjoint of the derivative at S. Computed in
    float64.

    Parameters
    ----------
    dP : (..., n, n)
        Gradient of `P`.
    M : (..., n, n)
        As given to `orthogonal`.

    Returns
    -------
    dM : (..., n, n)
        New array, skew-symmetric.

    Raises
    ------
    TypeError, ValueError
        As `orthogonal`. Numbers in `dP` that are not finite are allowed and propagate to `dM`.
    """
    args = Boundary("orthogonal_backward")
    matrices, cotangent = args.common(stack_of_matrices(args, "M", M), stack_of_matrices(args, "dP", dP))
    dM: Array = np.empty_like(matrices)
    with _named(args, matrices):
        args.kernels.orthogonal_backward(dM=dM, dP=cotangent, M=matrices, **args.sizes("G n"))
    return dM.reshape(np.shape(M))


def stack_of_matrices(args: Boundary, name: str, value: npt.ArrayLike) -> Array:
    """Returns `value` (..., n, n) as (G, n, n)."""
    array = args.any_array(name, value)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ValueError(f"{args.op}: {name} has shape {array.shape}, expected (..., n, n)")
    return args.array(name, array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:]), "G n n")


@contextlib.contextmanager
def _named(args: Boundary, matrices: Array) -> Iterator[None]:
    """Raises ValueError with the element of M that the kernel rejects."""
    try:
        yield
    except IndexError:
        bad = matrices[~(np.abs(matrices) <= LARGEST)]
        raise ValueError(f"{args.op}: M has the number {bad[0]}, expected magnitudes up to {LARGEST:g}") from None
