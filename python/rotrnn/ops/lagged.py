"""Maps of a token and of the previous step, for gates that depend on the previous output (csrc/kernels/lagged.c)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import LAGGED
from rotrnn._support.text import plural
from rotrnn.devices.device import empty_like
from rotrnn.ops.boundary import Array, Boundary

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
        Least length that "unit" divides by. With 0, the default, vectors of any length are normalised, and zero stays
        zero.
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
    inputs = _inputs(args, base, late, first, columns)
    steps = args.lengths(lengths)
    eps = args.number("eps", eps)
    abase, alate, afirst = args.common(*inputs)
    B, T, K = (args.size[letter] for letter in "BTK")
    outs, lo = [], 0
    for width, function in columns:
        outs.append(args.empty((B, T, width), abase.dtype))
        args.kernels.lagged_forward(
            out=outs[-1],
            base=abase,
            late=alate,
            first=afirst,
            lengths=steps,
            B=B,
            T=T,
            columns=K,
            lo=lo,
            n=width,
            function=LAGGED[function],
            eps=eps,
        )
        lo += width
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
    abase, _, afirst = _inputs(args, base, None, first, columns)
    ay, av = args.array("y", y, "B T E"), args.array("v", v, "K E")
    steps = args.lengths(lengths)
    eps = args.number("eps", eps)
    abase, ay, av, afirst = args.common(abase, ay, av, afirst)
    B, T, K, E = (args.size[letter] for letter in "BTKE")
    widths = np.array([width for width, _ in columns], np.int64)
    functions = np.array([LAGGED[function] for _, function in columns], np.int64)
    out = args.empty((B * T * K,), abase.dtype)  # one range after the other
    ranges: dict[str, Any] = {"widths": args.device.asarray(widths), "functions": args.device.asarray(functions)}
    args.kernels.lagged_product(
        out=out,
        base=abase,
        y=ay,
        v=av,
        first=afirst,
        lengths=steps,
        **ranges,
        ranges=len(columns),
        B=B,
        T=T,
        columns=K,
        E=E,
        eps=eps,
    )
    ends = [int(end) for end in B * T * np.cumsum(widths)]
    return [part.reshape(B, T, n) for part, n in zip(np.split(out, ends)[: len(widths)], widths, strict=True)]


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
    inputs = _inputs(args, base, late, first, columns)
    if not isinstance(douts, list | tuple):
        raise TypeError(f"{args.op}: douts is a {type(douts).__name__}, expected a list of arrays")
    if len(douts) != len(columns):
        raise ValueError(
            f"{args.op}: douts has {plural(len(douts), 'array')}, expected {len(columns)}, one for each range"
        )
    cotangents = []
    for i, (dout, (width, _)) in enumerate(zip(douts, columns, strict=True)):
        args.bind(f"N{i}", width, "columns")
        cotangents.append(args.array(f"douts[{i}]", dout, f"B T N{i}"))
    steps = args.lengths(lengths)
    eps = args.number("eps", eps)
    abase, alate, afirst, *cotangents = args.common(*inputs, *cotangents)
    grads = LaggedMapsGrads(
        empty_like(abase),
        None if alate is None else empty_like(alate),
        None if afirst is None else np.empty_like(afirst),
    )
    B, T, K = (args.size[letter] for letter in "BTK")
    lo = 0
    for dout, (width, function) in zip(cotangents, columns, strict=True):
        args.kernels.lagged_backward(
            **grads._asdict(),
            dout=dout,
            base=abase,
            late=alate,
            first=afirst,
            lengths=steps,
            B=B,
            T=T,
            columns=K,
            lo=lo,
            n=width,
            function=LAGGED[function],
            eps=eps,
        )
        lo += width
    return grads


def _inputs(
    args: Boundary,
    base: npt.ArrayLike,
    late: npt.ArrayLike | None,
    first: npt.ArrayLike | None,
    columns: Sequence[Columns],
) -> list[Array | None]:
    inputs = [
        args.array("base", base, "B T K"),
        args.optional("late", late, "B T K"),
        args.optional("first", first, "B K"),
    ]
    if not isinstance(columns, list | tuple) or not all(isinstance(one, Columns) for one in columns):
        raise TypeError(f"{args.op}: columns is {columns!r}, expected a list of Columns")
    for _, function in columns:
        if function not in FUNCTIONS:
            raise ValueError(f"{args.op}: columns has function {function!r}, expected one of {', '.join(FUNCTIONS)}")
    total = sum(width for width, _ in columns)
    if total != args.size["K"] or any(width < 0 for width, _ in columns):
        widths = ", ".join(str(width) for width, _ in columns)
        raise ValueError(f"{args.op}: columns has widths {widths}, expected a sum of K={args.size['K']} from base")
    return inputs
