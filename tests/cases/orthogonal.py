"""Rows of `orthogonal`."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.table import Arrays, Case, normal
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward


def expm_series(A: Any) -> Any:
    """expm of (..., n, n) in extended precision: the series at norm / 2^8, squared back."""
    term = E = np.broadcast_to(np.eye(A.shape[-1], dtype=np.longdouble), A.shape)
    for k in range(1, 30):
        term = term @ A.astype(np.longdouble) / k / 256
        E = E + term
    for _ in range(8):
        E = E @ E
    return E


def orthogonal_case(shape: tuple[int, ...], size: float = 1.0) -> Case:
    n = shape[-1]

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        return {"M": orthogonal_backward(doutputs[0], args["M"])}

    return Case(
        f"orthogonal {'x'.join(map(str, shape))} size {size:g}",
        lambda rng: {"M": size * normal(rng, shape)},
        lambda args: (orthogonal(args["M"]),),
        backward,
        lambda args: (expm_series(args["M"] - np.swapaxes(args["M"], -1, -2)).astype(np.float64),),
        terms=int(n * (20 + 2 * size * np.sqrt(8 * n))),  # 20 products, and squaring doubles |S|_2 times
    )


OPS = [
    *(orthogonal_case(shape) for shape in ((1, 1), (2, 2), (3, 3), (5, 8, 8), (2, 3, 5, 5), (0, 4, 4))),
    orthogonal_case((4, 4), 10.0),
    orthogonal_case((4, 4), 1e-8),
    orthogonal_case((1, 130, 130)),  # more than one block of rows
]

OPS_LARGE = [orthogonal_case((3, 90, 90))]
