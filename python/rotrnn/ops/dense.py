"""Products of activations and weights, with the same bits for any number of threads (csrc/kernels/gemm.c)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import empty_like
from rotrnn.ops.boundary import Array, Boundary, ready

__all__ = ["DenseGrads", "dense", "dense_backward"]


class DenseGrads(NamedTuple):
    """Gradients of `dense`: of x (..., D), of w (O, D), of bias (O,)."""

    dx: Array
    dw: Array
    dbias: Array


def _rows(args: Boundary, name: str, x: npt.ArrayLike, letter: str) -> Array:
    """Returns `x` (..., letter) as a matrix (M, letter)."""
    array = args.any_array(name, x)
    if array.ndim == 0:
        raise ValueError(f"{args.op}: {name} has shape (), expected (..., {letter})")
    return args.array(name, array.reshape(math.prod(array.shape[:-1]), array.shape[-1]), f"M {letter}")


def _taken(op: str, w: Any, bias: Any = None, **rows: Any) -> tuple[Boundary, list[Any]]:
    """Checks w (O, D), bias (O,), and rows: dy (..., O) and x (..., D). Returns the boundary of the call, and the rows,
    w and bias, in their common dtype; rows are matrices, or of one shape but for the last axis."""
    args, given = Boundary(op), [*rows.values(), w, *(() if bias is None else (bias,))]
    if ready(*given) and w.ndim == 2 and (bias is None or bias.shape == w.shape[:1]):
        ends = {"x": w.shape[1:], "dy": w.shape[:1]}
        steps = [one.shape[:-1] for name, one in rows.items() if one.shape[-1:] == ends[name]]
        if len(steps) == len(rows) and steps[0] == steps[-1]:
            return args, [*rows.values(), w, bias]
    checked = [_rows(args, name, one, {"x": "D", "dy": "O"}[name]) for name, one in rows.items()]
    return args, args.common(*checked, args.array("w", w, "O D"), args.optional("bias", bias, "O"))


def dense(x: npt.ArrayLike, w: npt.ArrayLike, bias: npt.ArrayLike | None = None) -> Array:
    """Affine map of the last axis: ``y = x w^T + bias``.

    Parameters
    ----------
    x : (..., D)
        float32 or float64; promoted with the others to their common dtype.
    w : (O, D)
        Weights, one row per output.
    bias : (O,), optional

    Returns
    -------
    y : (..., O)

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, or mismatched shapes.
    """
    args, (ax, aw, abias) = _taken("dense", w, bias, x=x)
    d_out, d_in = aw.shape
    shape = *np.shape(x)[:-1], d_out
    args.check_size("y", shape, ax.dtype)
    y = args.empty(shape, ax.dtype)
    M = math.prod(shape[:-1])
    args.kernels.matmul(y=y, x=ax, w=aw, bias=abias, M=M, d_in=d_in, d_out=d_out, transposed=True)
    return y


def dense_backward(dy: npt.ArrayLike, x: npt.ArrayLike, w: npt.ArrayLike) -> DenseGrads:
    """Adjoint of `dense`: ``dx = dy w``, ``dw = sum_m dy_m x_m^T``, ``dbias = sum_m dy_m``; all new arrays.

    Parameters
    ----------
    dy : (..., O)
        Gradient of `y`.
    x, w
        As given to `dense`.

    Raises
    ------
    TypeError, ValueError
        As `dense`.
    """
    args, (ady, ax, aw, _) = _taken("dense_backward", w, dy=dy, x=x)
    d_out, d_in = aw.shape
    M = math.prod(ax.shape[:-1])
    dx, dw, dbias = empty_like(ax), empty_like(aw), args.empty((d_out,), aw.dtype)
    args.kernels.matmul(y=dx, x=ady, w=aw, bias=None, M=M, d_in=d_out, d_out=d_in, transposed=False)
    args.kernels.matmul_weight_grad(dw=dw, dbias=dbias, x=ax, dy=ady, M=M, d_in=d_in, d_out=d_out)
    return DenseGrads(dx.reshape(np.shape(x)), dw, dbias)


def dense_weight_grad(dy: npt.ArrayLike, x: npt.ArrayLike) -> Array:
    """The dw of `dense_backward` alone: ``dw = sum_m dy_m x_m^T`` (O, D), for dy (..., O) and x (..., D).

    Raises TypeError and ValueError like `dense`.
    """
    args = Boundary("dense_weight_grad")
    ady, ax = args.common(_rows(args, "dy", dy, "O"), _rows(args, "x", x, "D"))
    (M, d_out), d_in = ady.shape, ax.shape[1]
    dw = args.empty((d_out, d_in), ax.dtype)
    args.kernels.matmul_weight_grad(dw=dw, dbias=None, x=ax, dy=ady, M=M, d_in=d_in, d_out=d_out)
    return dw


def matmul(x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """Product of two matrices, or of two stacks of H matrices: (H, M, K) @ (H, K, N) -> (H, M, N).

    Like np.matmul, but with the same bits for any number of threads. It is used for the small products that fold
    parameters once per training step. Raises TypeError and ValueError like `dense`.
    """
    args = Boundary("matmul")
    ax = args.array("x", x, "M K", "H M K")
    ay = args.array("y", y, "K N", "H K N")
    if ax.ndim != ay.ndim:
        raise ValueError(f"matmul: x has shape {ax.shape} and y {ay.shape}, expected two matrices or two stacks")
    ax, ay = args.common(ax, ay)
    (M, K), N = ax.shape[-2:], ay.shape[-1]
    args.check_size("y", (*ax.shape[:-1], N), ax.dtype)
    out = args.empty((*ax.shape[:-1], N), ax.dtype)
    args.kernels.matmul_stack(y=out, x=ax, w=ay, G=len(ax) if ax.ndim == 3 else 1, M=M, d_in=K, d_out=N)
    return out
