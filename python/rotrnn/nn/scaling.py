"""Numbers kept in range: powers of two that bring them near 1, and an exponential that stays finite.

With the powers, sums of squares neither overflow nor vanish. The floor of a residual would treat the small gradients of
a mean over a long batch as zero, so the adjoint, which is linear, is solved for 2^-e times the gradients.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import Array


def exponents(*arrays: Array | None) -> npt.NDArray[np.int32]:
    """Returns for each b the e with the largest |number| of `arrays` (B, ...) in [2^(e-1), 2^e). It is 0 if the largest
    number is zero or not finite."""
    given = [
        np.abs(one).max(tuple(range(1, one.ndim))) if one.size else np.zeros_like(one, shape=one.shape[:1])
        for one in arrays
        if one is not None
    ]
    largest = functools.reduce(np.maximum, given)
    return np.where(np.isfinite(largest), np.frexp(np.where(np.isfinite(largest), largest, 0))[1], 0).astype(np.int32)


def times_power(x: Array, exponents: npt.NDArray[np.int32]) -> Array:
    """Returns x (B, ...) times 2^e, with an exponent for each b. It is exact unless numbers underflow."""
    each = exponents.reshape(-1, *[1] * (x.ndim - 1))
    if isinstance(x, np.ndarray):  # whose `ldexp` takes ten times as long as a product, which has the same bits
        range_of = np.finfo(x.dtype)
        if range_of.minexp <= each.min(initial=0) and each.max(initial=0) < range_of.maxexp:
            return x * np.ldexp(x.dtype.type(1), each)
    return np.ldexp(x, each)


def bounded_exp(x: Array) -> Array:
    """Returns ``e^x`` with x clipped to [-80, 80]. Beyond, a decay ``e^{-e^x}`` is 0 or 1 in any precision anyway, and
    clipping avoids gradients of zero times infinity."""
    return np.exp(np.clip(x, -80, 80))
