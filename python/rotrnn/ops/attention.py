"""Causal attention of queries to keys and values, and rotary positions (csrc/kernels/attention.c)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_NUMBERS, MOST_STEPS
from rotrnn._support.text import plural
from rotrnn.devices.recording import recording
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.declared import Declared

__all__ = ["AttentionGrads", "attention", "attention_backward", "rotary", "rotary_backward"]

ATTENTION = Declared("attention_forward", "attention_backward")


class AttentionGrads(NamedTuple):
    """Gradients of `attention`: of q (B, T, D), of k and v (B, S, D)."""

    dq: Array
    dk: Array
    dv: Array


def _check_heads(args: Boundary, heads: int, even: bool = False) -> None:
    D = args.size["D"]
    if heads > MOST_NUMBERS or D % (heads * (1 + even)):
        width = "even width" if even else "one width"
        raise ValueError(f"{args.op}: heads is {heads!r}, expected a positive number of heads of {width} of D={D}")


def _take(
    args: Boundary,
    heads: int,
    lengths: npt.ArrayLike | None,
    past: npt.ArrayLike | None,
    window: int | None,
    **arrays: npt.ArrayLike,
) -> dict[str, Any]:
    """Takes the arguments of `attention` or its adjoint. Returns the kernel's arguments that say which keys queries
    attend to."""
    heads = args.integer("heads", heads, 1)
    args.bind("H", heads, "heads")
    seen = args.window(window)
    lengths = args.take(ATTENTION, **arrays, lengths=lengths)["lengths"]
    _check_heads(args, heads)
    size, own = args.size, None if past is None else args.positions("past", past)
    steps: Any = size["T"] if lengths is None or recording() is not None else lengths
    needed = np.broadcast_to(steps + (0 if own is None else own), size["B"])
    if (needed > size["S"]).any():
        at = int(np.argmax(needed > size["S"]))
        raise ValueError(
            f"{args.op}: sequence {at} needs {plural(needed[at], 'key')}, past and present, got S={size['S']}"
        )
    there = None if own is None else args.device.asarray(own)
    return {"past": there, "window": 0 if seen is None else min(seen, MOST_STEPS)}


def attention(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    *,
    heads: int,
    lengths: npt.ArrayLike | None = None,
    past: npt.ArrayLike | None = None,
    window: int | None = None,
) -> tuple[Array, Array]:
    """Causal multi-head scaled dot-product attention (Vaswani et al. 2017, eq. 1), in memory linear in T.

    For each head of width ``Dh = D / heads``: ``y_t = sum_s p_ts v_s`` with ``p_t = softmax_s(q_t . k_s / sqrt(Dh))``
    over the keys s that query t attends to: the last `window` of those at positions up to its own, ``past[b] + t``.
    Scores are computed tile by tile and not stored (Dao et al. 2022).

    Parameters
    ----------
    q : (B, T, D)
        Queries. float32 or float64; `q`, `k` and `v` are promoted to their common dtype.
    k, v : (B, S, D)
        Keys and values. For each sequence, the `past` rows come first, then the rows of its queries; later rows are
        never read.
    heads : int
        Number of heads, a divisor of D. The channels of a head are contiguous.
    lengths : (B,) integers in [0, T], optional
        Number of valid queries of each sequence. Padding beyond is never read (it may be NaN) and is zero in `y`.
    past : (B,) integers, optional
        Number of keys of each sequence before its first query. Default: none.
    window : int, optional
        Number of keys that a query attends to, including its own. Default: all.

    Returns
    -------
    y : (B, T, D)
    norm : (B, heads, T)
        Logarithms of the softmax denominators, for `attention_backward`. No gradient passes through them.

    Raises
    ------
    TypeError
        An array has another dtype (integers and float16 are not supported).
    ValueError
        Shapes disagree, a number is out of range, a sequence has too few keys, or a size product overflows.
    """
    args = Boundary("attention")
    how = _take(args, heads, lengths, past, window, q=q, k=k, v=v)
    y, norm = args.run("attention_forward", **how).values()
    return y, norm


def attention_backward(
    dy: npt.ArrayLike,
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    y: npt.ArrayLike,
    norm: npt.ArrayLike,
    *,
    heads: int,
    lengths: npt.ArrayLike | None = None,
    past: npt.ArrayLike | None = None,
    window: int | None = None,
) -> AttentionGrads:
    """Adjoint of `attention`. The probabilities p are recomputed tile by tile from `norm`.

    With ``c = 1 / sqrt(Dh)`` and ``e_ts = p_ts (dy_t . v_s - dy_t . y_t)``: ``dq_t = c sum_s e_ts k_s``,
    ``dk_s = c sum_t e_ts q_t``, ``dv_s = sum_t p_ts dy_t``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`; padding beyond `lengths` is never read.
    q, k, v, heads, lengths, past, window
        As given to `attention`.
    y, norm
        As returned by `attention`.

    Returns
    -------
    AttentionGrads
        ``(dq, dk, dv)``, all new arrays; zero beyond the valid queries and keys.

    Raises
    ------
    TypeError, ValueError
        As `attention`.
    """
    args = Boundary("attention_backward")
    how = _take(args, heads, lengths, past, window, dy=dy, q=q, k=k, v=v, y=y, norm=norm)
    return AttentionGrads(**args.run("attention_backward", **how))


def _turn(
    op: str, name: str, x: npt.ArrayLike, heads: int, past: npt.ArrayLike | None, base: float, sign: int
) -> Array:
    args = Boundary(op)
    (ax,) = args.common(args.array(name, x, "B T D"))
    B, T, D = ax.shape
    heads = args.integer("heads", heads, 1)
    _check_heads(args, heads, even=True)
    base = args.number("base", base, positive=True)
    start = None if past is None else args.positions("past", past)
    if start is None or (B and (start == start[0]).all()):
        start = np.zeros(1, np.int64) if start is None else start[:1]  # the same angles for all sequences
    frequency = base ** (-np.arange(D // heads // 2) / max(D // heads // 2, 1))
    places = start[:, None] + np.arange(T)
    angles = np.exp(1j * sign * places[..., None, None] * frequency)
    unit = args.device.asarray(angles.astype(np.result_type(ax, np.complex64)))
    planes = ax.reshape(B, T, heads, D // heads).view(unit.dtype)
    return (planes * unit).view(ax.dtype).reshape(B, T, D)


def rotary(x: npt.ArrayLike, *, heads: int, past: npt.ArrayLike | None = None, base: float = 10_000.0) -> Array:
    """Rotary position embedding (Su et al. 2021, "RoFormer", eq. 34): rotates pairs of channels by angles that grow in
    time.

    Channels (2i, 2i+1) of a head, i from 0 to P - 1, are rotated at step t of sequence b by
    ``(past[b] + t) base^(-i/P)``, counter-clockwise. So the product of a query and a key depends only on the difference
    of their positions.

    Parameters
    ----------
    x : (B, T, D)
        float32 or float64. Each step is rotated separately, so padding stays padding.
    heads : int
        Number of heads, of even width D / heads = 2P. The channels of a head are contiguous.
    past : (B,) integers, optional
        Number of earlier steps of each sequence. Default: none.
    base : float
        Approximate ratio of the fastest to the slowest rotation.

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    TypeError, ValueError
        As `attention`.
    """
    return _turn("rotary", "x", x, heads, past, base, 1)


def rotary_backward(
    dy: npt.ArrayLike, *, heads: int, past: npt.ArrayLike | None = None, base: float = 10_000.0
) -> Array:
    """Adjoint of `rotary`: rotates dy (B, T, D), the gradient of y, back. Other arguments as given to `rotary`; errors
    alike."""
    return _turn("rotary_backward", "dy", dy, heads, past, base, -1)
