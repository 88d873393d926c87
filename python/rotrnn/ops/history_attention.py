"""Reading a stored history by content: causal attention of queries to states that are re-encoded by their age."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import Device, contiguous, empty_like
from rotrnn.ops.boundary import COMPLEX, Array, Boundary, on_host
from rotrnn.ops.dense import matmul
from rotrnn.ops.memory import unpadded
from rotrnn.ops.pointwise import exp

SCORES = 2**20
"""Largest number of scores in a tile of queries, if a tile is more than one query."""


class HistoryAttentionGrads(NamedTuple):
    """Gradients of `history_attention`: of q and h (B, T, N), and of past (B, R, N)."""

    dq: Array
    dh: Array
    dpast: Array


class _Call(NamedTuple):
    """The checked arguments of a call. G = B H are the heads of all sequences. Lanes are pairs (re, im) of n planes."""

    device: Device
    heads: int
    q: Array  # (G, T, 2n), zero in padding
    rows: Array  # (G, R + T, 2n), stored and new states, zero in padding
    weights: Array  # (M,) complex, on the CPU
    first: Array | None  # (B,) the first row that is stored; None if all are
    past: int  # R
    lengths: Any
    scale: float


def history_attention(
    q: npt.ArrayLike,
    weights: npt.ArrayLike,
    h: npt.ArrayLike,
    past: npt.ArrayLike | None = None,
    *,
    heads: int = 1,
    stored: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """Softmax attention to a stored history whose states are turned by their age, as keys and as values.

    For each head of n of the N states: ``m_t = sum_{k<M} p_tk w_k h_{t-k}`` with
    ``p_t = softmax_k(Re(<q_t, w_k h_{t-k}>) / sqrt(2n))`` over the ages k of existing states, where
    ``<q, h> = sum conj(q) h``. With ``w_k = e^{i Delta_k}`` a query asks for content, for an age, or for both (J. O.
    Smith, "Rotational memory", slide "WRoPE memory"; Vaswani et al. 2017, eq. 1). All planes of a state turn by the
    same angle, so the scores are products of queries and stored states, turned afterwards. They are
    computed for a tile of queries at a time, and not stored.

    Parameters
    ----------
    q : (B, T, N), complex
        Queries.
    weights : (M,), complex, on the CPU
        Factor of the states of each age, starting with age 0; M is at least 1, and older states are not read.
    h : (B, T, N), complex
        States.
    past : (B, R, N), complex, optional
        States before the first step, oldest first.
    heads : int
        Number of heads, a divisor of N. The states of a head are contiguous.
    stored : (B,) integers in [0, R], optional
        How many of the last rows of `past` are states of the sequence; the others, which must be finite, have no
        weight. Default: all.
    lengths : (B,), optional
        Number of valid steps of each sequence; beyond them q and h are not used and m is zero.

    Returns
    -------
    m : (B, T, N)

    Raises
    ------
    TypeError, ValueError
        Wrong dtype, mismatched shapes, or a number out of range.
    """
    args = Boundary("history_attention")
    aq = args.array("q", q, "B T N", kinds=COMPLEX)
    call = _checked(args, aq, weights, h, past, heads, stored, lengths)
    m = empty_like(call.q)
    for steps, span, turn, seen in _tiles(call):
        keys = call.rows[:, span]
        m[:, steps] = _weighted(_probabilities(call, call.q[:, steps], keys, turn, seen), keys, turn)
    return unpadded(_planes(m, heads), call.lengths)


def history_attention_backward(
    dm: npt.ArrayLike,
    q: npt.ArrayLike,
    weights: npt.ArrayLike,
    h: npt.ArrayLike,
    past: npt.ArrayLike | None = None,
    *,
    heads: int = 1,
    stored: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> HistoryAttentionGrads:
    """Adjoint of `history_attention`, which computes the probabilities again.

    With ``dp_tk = Re(<dm_t, w_k h_{t-k}>)``, ``ds_tk = p_tk (dp_tk - sum_j p_tj dp_tj) / sqrt(2n)``:
    ``dq_t = sum_k ds_tk w_k h_{t-k}`` and ``dh_s = sum_k conj(w_k) (ds_tk q_t + p_tk dm_t)`` with t = s + k. The
    weights have no gradient: they are fixed functions of the age.

    Parameters
    ----------
    dm : (B, T, N), complex
        Gradient of m; padding beyond `lengths` is never used.
    q, weights, h, past, heads, stored, lengths
        As given to `history_attention`.

    Returns
    -------
    HistoryAttentionGrads
        New arrays.

    Raises
    ------
    TypeError, ValueError
        As `history_attention`.
    """
    args = Boundary("history_attention_backward")
    aq = args.array("q", q, "B T N", kinds=COMPLEX)
    adm = args.array("dm", dm, "B T N", kinds=COMPLEX)
    call = _checked(args, aq, weights, h, past, heads, stored, lengths)
    adm = args.layout(adm, np.result_type(call.q.dtype, np.complex64))
    dlanes = _lanes(unpadded(adm, call.lengths), call.heads)
    dq, drows = empty_like(call.q), args.zeros(call.rows.shape, call.rows.dtype)
    for steps, span, turn, seen in _tiles(call):
        keys, queries, d = call.rows[:, span], call.q[:, steps], dlanes[:, steps]
        p = _probabilities(call, queries, keys, turn, seen)
        dp = _products(d, keys, turn)
        ds = call.scale * p * (dp - (p * dp).sum(-1, keepdims=True))
        dq[:, steps] = _weighted(ds, keys, turn)
        drows[:, span] += _weighted_adjoint(ds, queries, turn) + _weighted_adjoint(p, d, turn)
    states = _planes(drows, heads)
    dh = unpadded(contiguous(states[:, call.past :]), call.lengths)
    return HistoryAttentionGrads(unpadded(_planes(dq, heads), call.lengths), dh, contiguous(states[:, : call.past]))


def _checked(
    args: Boundary,
    q: Array,
    weights: npt.ArrayLike,
    h: npt.ArrayLike,
    past: npt.ArrayLike | None,
    heads: int,
    stored: npt.ArrayLike | None,
    lengths: npt.ArrayLike | None,
) -> _Call:
    ah = args.array("h", h, "B T N", kinds=COMPLEX)
    apast = args.optional("past", past, "B R N", kinds=COMPLEX)
    aw = on_host(args.op, "weights", weights)
    if aw.dtype not in COMPLEX or aw.ndim != 1 or not len(aw):
        raise ValueError(
            f"{args.op}: weights has dtype {aw.dtype} and shape {aw.shape}, expected complex numbers (M,), M at least 1"
        )
    N, R = args.size["N"], args.size.get("R", 0)
    if args.integer("heads", heads, 1) and N % heads:
        raise ValueError(f"{args.op}: heads is {heads!r}, expected a divisor of N={N}")
    first = None if stored is None else R - args.counts("stored", stored, R, f"R={R}")
    steps = args.lengths(lengths)
    q, ah, apast = args.common(q, ah, apast)
    rows = unpadded(ah, steps)
    rows = rows if apast is None else np.concatenate([apast, rows], 1)
    scale = 1 / np.sqrt(2 * max(N // heads, 1))
    return _Call(
        args.device, heads, _lanes(unpadded(q, steps), heads), _lanes(rows, heads), aw, first, R, steps, float(scale)
    )


def _lanes(z: Array, heads: int) -> Array:
    """Returns complex z (B, T, N) as real lanes (G, T, 2n), head by head."""
    B, T, N = z.shape
    lanes: Array = z.view(z.real.dtype).reshape(B, T, heads, 2 * N // heads).swapaxes(1, 2)
    return lanes.reshape(B * heads, T, 2 * N // heads)


def _planes(lanes: Array, heads: int) -> Array:
    """The inverse of `_lanes`."""
    G, T, width = lanes.shape
    z: Array = lanes.reshape(G // heads, heads, T, width).swapaxes(1, 2).reshape(G // heads, T, heads * width)
    return z.view(np.result_type(lanes.dtype, np.complex64))


class _Turn(NamedTuple):
    """The factors (r, C) of the states of a tile, real and imaginary parts."""

    re: Array
    im: Array


def _tiles(call: _Call) -> Iterator[tuple[slice, slice, _Turn, Array]]:
    """Yields for tiles of queries: their steps, the rows that they can see, the factor of each row for each query, and
    whether the query reads the row, (1 or B, 1, r, C). The cuts depend only on shapes."""
    G, T, _ = call.q.shape
    rows, M, dtype = call.rows.shape[1], len(call.weights), call.q.dtype
    if not call.q.size:
        return
    many = max(1, SCORES // (G * rows))
    for start in range(0, T, many):
        end = min(start + many, T)
        span = np.arange(max(0, call.past + start - M + 1), call.past + end)
        ages = call.past + np.arange(start, end)[:, None] - span
        seen = ((ages >= 0) & (ages < M))[None, None]
        if call.first is not None:
            seen = seen & (span >= call.first[:, None])[:, None, None]
        factors = call.weights[np.clip(ages, 0, M - 1)]
        turn = _Turn(*(call.device.asarray(part.astype(dtype)) for part in (factors.real, factors.imag)))
        yield slice(start, end), slice(int(span[0]), call.past + end), turn, call.device.asarray(seen)


def _times_i(x: Array) -> Array:
    """Returns lanes multiplied by i."""
    y = empty_like(x)
    y[..., 0::2], y[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return y


def _products(x: Array, keys: Array, turn: _Turn) -> Array:
    """Returns ``Re(w_ts <x_t, h_s>)`` (G, r, C): the imaginary part of <x, h> is the real one of <i x, h>."""
    both = matmul(np.concatenate([x, _times_i(x)], 1), keys.swapaxes(1, 2))
    return turn.re * both[:, : x.shape[1]] - turn.im * both[:, x.shape[1] :]


def _weighted(c: Array, keys: Array, turn: _Turn) -> Array:
    """Returns lanes of ``sum_s c_ts w_ts h_s`` (G, r, 2n) for real c (G, r, C)."""
    both = matmul(np.concatenate([c * turn.re, c * turn.im], 1), keys)
    return both[:, : c.shape[1]] + _times_i(both[:, c.shape[1] :])


def _weighted_adjoint(c: Array, x: Array, turn: _Turn) -> Array:
    """Returns lanes of ``sum_t c_ts conj(w_ts) x_t`` (G, C, 2n), the adjoint of `_weighted` in h."""
    both = np.concatenate([c * turn.re, c * turn.im], 1).swapaxes(1, 2)
    return matmul(both, np.concatenate([x, -_times_i(x)], 1))


def _probabilities(call: _Call, q: Array, keys: Array, turn: _Turn, seen: Array) -> Array:
    """Returns the softmax (G, r, C) of the scores of queries q (G, r, 2n) over the rows that they read. Every query
    reads its own state at least."""
    scores = call.scale * _products(q, keys, turn)
    G, r, C = scores.shape
    apart = np.where(seen, scores.reshape(G // call.heads, call.heads, r, C), -np.inf)
    largest = apart.max(-1, keepdims=True)
    p = exp(apart - largest)
    return (p / p.sum(-1, keepdims=True)).reshape(G, r, C)
