"""Maps of a token and of the previous step, for gates that depend on the previous output (csrc/kernels/lagged.c)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import LAGGED
from rotrnn._support.text import an, plural
from rotrnn.devices.device import empty_like
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

DECLARED = Declared("lagged_forward", "lagged_product", "lagged_backward", columns="K")
FUNCTIONS = tuple(LAGGED)


class Columns(NamedTuple):
    """Width of a range of columns, and the function applied to it. Ranges follow each other."""

    width: int
    function: str


class LaggedMapsGrads(NamedTuple):
    """Gradients of `lagged_maps`: of base and late (B, T, K) and of first (B, K), None for an argument not given."""

    dbase: Array
    dlate: Array | None
    dfirst: Array | None


def lagged_maps(
    base: npt.ArrayLike,
    late: npt.ArrayLike | None,
    first: npt.ArrayLike | None,
    columns: Sequence[Columns],
    *,
    eps: float = 0.0,
    lengths: npt.ArrayLike | None = None,
) -> list[Array]:
    """Functions of the sum of a token's own part and a part from the previous step.

    ``p_t = base_t + late_{t-1}`` with ``late_{-1} = first`` (default zero). The columns of p are split into ranges, and
    each range goes through a function: "linear" p, "sigmoid" s(p), "silu" p s(p), "softplus" log(1 + e^p), "unit"
    p / max(|p|, eps) over the range. With base = W x and late = V y, these are the maps of Fixed-Point RNNs that depend
    on the previous output: W x_t + V y_{t-1}.

    Parameters
    ----------
    base : (B, T, K)
        float32 or float64; promoted with the others to their common dtype.
    late : (B, T, K), optional
        Its last step is not read. Default: no such term.
    first : (B, K), optional
        Replaces late at step 0.
    columns : sequence of Columns
        Ranges whose widths sum to K.
    eps : float
        Smallest length that "unit" divides by. With 0, the default, vectors of any length are normalised, and zero
        stays zero.
    lengths : (B,) integers in [0, T], optional
        Number of valid steps of each sequence. Padding beyond is never read (it may be NaN) and is zero in the results.

    Returns
    -------
    list of (B, T, width)

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes or widths, an unknown function, or a length out of range.
    """
    args = Boundary("lagged_maps")
    like = _take(args, columns, base=base, late=late, first=first, lengths=lengths)["base"]
    how: dict[str, Any] = {"eps": args.number("eps", eps), "lo": 0}
    outs = []
    for width, function in columns:
        out = args.empty((*like.shape[:2], width), like.dtype)
        outs.append(args.run("lagged_forward", out=out, n=width, function=LAGGED[function], **how)["out"])
        how["lo"] += width
    return outs


def lagged_products(
    base: npt.ArrayLike,
    y: npt.ArrayLike,
    v: npt.ArrayLike,
    first: npt.ArrayLike | None,
    columns: Sequence[Columns],
    *,
    eps: float = 0.0,
    lengths: npt.ArrayLike | None = None,
) -> list[Array]:
    """`lagged_maps` with ``late = y V^T``: ``p_t = base_t + V y_{t-1}``, with the product in the same pass.

    Parameters
    ----------
    y : (B, T, E)
        Its last step is not read.
    v : (K, E)
    base, first, columns, eps, lengths
        As in `lagged_maps`.

    Returns
    -------
    list of (B, T, width)

    Raises
    ------
    TypeError, ValueError
        As `lagged_maps`.
    """
    args = Boundary("lagged_products")
    _take(args, columns, base=base, first=first, y=y, v=v, lengths=lengths)
    widths = np.array([width for width, _ in columns], np.int64)
    functions = np.array([LAGGED[function] for _, function in columns], np.int64)
    ranges: dict[str, Any] = {"widths": args.device.asarray(widths), "functions": args.device.asarray(functions)}
    out = args.run("lagged_product", **ranges, ranges=len(columns), eps=args.number("eps", eps))["out"]
    B, T, K = out.shape
    ends = [int(end) for end in B * T * np.cumsum(widths)]  # one range after the other
    parts = np.split(out.reshape(B * T * K), ends)[: len(widths)]
    return [part.reshape(B, T, n) for part, n in zip(parts, widths, strict=True)]


def lagged_maps_backward(
    douts: Sequence[npt.ArrayLike],
    base: npt.ArrayLike,
    late: npt.ArrayLike | None,
    first: npt.ArrayLike | None,
    columns: Sequence[Columns],
    *,
    eps: float = 0.0,
    lengths: npt.ArrayLike | None = None,
) -> LaggedMapsGrads:
    """Adjoint of `lagged_maps`: ``dbase_t = f'(p_t)^T dout_t``, ``dlate_t = dbase_{t+1}``, ``dfirst = dbase_0``.

    Parameters
    ----------
    douts : list of (B, T, width)
        Gradients of the results; padding beyond `lengths` is never read.
    base, late, first, columns, eps, lengths
        As given to `lagged_maps`.

    Returns
    -------
    LaggedMapsGrads
        New arrays, zero beyond `lengths`.

    Raises
    ------
    TypeError, ValueError
        As `lagged_maps`.
    """
    args = Boundary("lagged_maps_backward")
    given = _take(args, columns, base=base, late=late, first=first, lengths=lengths)
    if not isinstance(douts, list | tuple):
        raise TypeError(f"{args.op}: douts is {an(type(douts).__name__)}, expected a list of arrays")
    if len(douts) != len(columns):
        raise ValueError(
            f"{args.op}: douts has {plural(len(douts), 'array')}, expected {len(columns)}, one for each range"
        )
    cotangents = []
    for i, (dout, (width, _)) in enumerate(zip(douts, columns, strict=True)):
        args.bind(f"N{i}", width, "columns")
        cotangents.append(args.array(f"douts[{i}]", dout, f"B T N{i}"))
    names = "base", "late", "first"
    (*arrays,) = args.common(*(given[name] for name in names), *cotangents)
    given.update(zip(names, arrays[:3], strict=True))
    grads = {f"d{name}": None if given[name] is None else empty_like(given[name]) for name in names}
    how: dict[str, Any] = {**grads, "eps": args.number("eps", eps), "lo": 0}
    for dout, (width, function) in zip(arrays[3:], columns, strict=True):
        args.run("lagged_backward", dout=dout, n=width, function=LAGGED[function], **how)
        how["lo"] += width
    return LaggedMapsGrads(**grads)  # type: ignore[arg-type]


def _take(args: Boundary, columns: Sequence[Columns], **arrays: Any) -> dict[str, Any]:
    given = args.take(DECLARED, **arrays)
    if not isinstance(columns, list | tuple) or not all(isinstance(one, Columns) for one in columns):
        raise TypeError(f"{args.op}: columns is {columns!r}, expected a list of Columns")
    for _, function in columns:
        if function not in FUNCTIONS:
            raise ValueError(f"{args.op}: columns has function {function!r}, expected one of {', '.join(FUNCTIONS)}")
    total = sum(width for width, _ in columns)
    if total != args.size["K"] or any(width < 0 for width, _ in columns):
        widths = ", ".join(str(width) for width, _ in columns)
        raise ValueError(f"{args.op}: columns has widths {widths}, expected a sum of K={args.size['K']} from base")
    return given
