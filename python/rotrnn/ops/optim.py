"""The optimiser's arithmetic on one array: AdamW's update in place, and the Euclidean norm (csrc/kernels/optim.c)."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from rotrnn.ops.boundary import Array, Boundary


def adamw(
    param: Array,
    m: Array,
    v: Array,
    grad: npt.ArrayLike,
    *,
    lr: float,
    step: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    scale: float = 1.0,
) -> tuple[float, float]:
    """One AdamW update in place (Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2).

    With ``g = scale * grad`` and t = `step`::

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        param <- param - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay param)

    Parameters
    ----------
    param, m, v : arrays of one shape and dtype (float32 or float64), C-contiguous and writeable
        The parameter and its two moments, zero before the first step. Updated in place.
    grad : array of that shape and dtype
        Gradient; only read.
    lr : float
        Learning rate of this step; it multiplies the decay too.
    step : int
        Counts updates from 1.
    beta1, beta2, eps, decay, scale : float
        As in the equations.

    Returns
    -------
    param_norm, v_norm : float
        `norm` of `param` and of `v` after the update: not finite if a number in them is not.

    Raises
    ------
    TypeError, ValueError
        Another dtype; shapes that disagree; an array that cannot be written in place; two that overlap; `step` below 1.
    """
    args = Boundary("adamw")
    shape = np.shape(grad)
    g = args.array("grad", np.ravel(grad), "N")
    for name, array in (("param", param), ("m", m), ("v", v)):
        args.out(name, array, shape, g.dtype)
    arrays = {"param": param, "m": m, "v": v, "grad": g}
    for one, other in itertools.combinations(arrays, 2):
        if np.may_share_memory(arrays[one], arrays[other]):
            raise ValueError(f"adamw: {one} overlaps {other}, expected memory of its own")
    if step < 1:
        raise ValueError(f"adamw: step is {step}, expected an integer from 1")
    norms = args.empty((2,), np.float64)
    args.kernels.adamw(
        p=param,
        m=m,
        v=v,
        norms=norms,
        grad=args.layout(g, g.dtype),
        n=g.size,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        decay=decay,
        scale=scale,
        step=step,
    )
    return float(norms[0]), float(norms[1])


def norm(x: npt.ArrayLike) -> float:
    """Euclidean norm of all numbers of `x` (float32 or float64, any shape), summed in float64 in one order.

    It is finite if every number of a float32 `x` is, and every square of a float64 one. Raises TypeError for another
    dtype.
    """
    args = Boundary("norm")
    array = args.array("x", np.ravel(x), "N")
    out = args.empty((1,), np.float64)
    args.kernels.norm(norm=out, x=args.layout(array, array.dtype), n=array.size)
    return float(out[0])
