"""What a fixed-point iteration in depth takes from C: the residual and the damped update, in one pass over memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu
from rotrnn.ops.boundary import Array, Boundary


def relax(y: Array, f: npt.ArrayLike, s: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """One damped step ``y <- s_b f + (1 - s_b) y``, in place, and the residual of y as it was.

    Parameters
    ----------
    y : (B, T, D), C-contiguous, float32 or float64
        The iterate; overwritten.
    f : (B, T, D)
        Its image, in y's dtype.
    s : (B,)
        The size of each sequence's step: 1 takes f itself.
    lengths : (B,) integers in [0, T], optional
        Valid steps of each sequence: what lies beyond is neither read nor written.

    Returns
    -------
    residual : (B,)
        ``max |y - f| / (max |f| + 1e-8)``, maxima over a sequence's steps and channels; NaN if anything in it is NaN,
        0 without a step ("Fixed-Point RNNs", section 5.2).

    Raises
    ------
    TypeError, ValueError
        Another dtype; shapes that disagree; a `y` that cannot be written in place.
    """
    args = Boundary("relax")
    ay = args.array("y", y, "B T D")
    af = args.array("f", f, "B T D")
    step = args.array("s", s, "B")
    steps = args.lengths(lengths)
    args.out("y", y, ay.shape, ay.dtype, f, s)
    residual = np.empty(len(ay), ay.dtype)
    _cpu.relax(residual, y, args.layout(af, ay.dtype), args.layout(step, ay.dtype), steps, *ay.shape)
    return residual
