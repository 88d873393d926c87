"""Causal attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.devices.device import contiguous, empty
from rotrnn.devices.recording import RecordedLengths
from rotrnn.nn.layer import Array, StateArray
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Call, Grown, Instruction, Line, Shape
from rotrnn.ops.attention import attention, attention_backward, rotary, rotary_backward
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import (
    mask_padding,
)


@dataclass(frozen=True)
class CausalAttention(Instruction):
    """Attention of queries q (D,) in `heads` heads to keys k and values v (K,), whose heads are as wide and as many or
    fewer, of the last `window` steps, or of all (`rotrnn.ops.attention`). The first `turning` channels of each head of
    q and k turn by position (`rotrnn.ops.rotary`). `rotrnn.Attention` has the state.
    """

    heads: int
    window: int | None = None
    turning: int = 0
    base: float = 10_000.0
    reads = ("y",)

    def shapes(self, q: Any, k: Any, v: Any) -> tuple[Shape, ...]:
        width = q[0] // self.heads
        if len(q) != 1 or q[0] != self.heads * width or len(k) != 1 or k != v or k[0] % width:
            raise ValueError(f"expected q (D,), k and v (K,), D and K multiples of a width, D / {self.heads}")
        if self.heads % (k[0] // width) or self.turning > width:
            raise ValueError(f"expected heads of k that divide {self.heads}, at least {self.turning} wide")
        return (q,)

    def state(self, q: Any, k: Any, v: Any) -> tuple[StateArray, ...]:
        rows = None if self.window is None else self.window - 1
        kept = StateArray("keys", (rows, *k)), StateArray("values", (rows, *v))
        return *kept, StateArray("places", (), "integer")

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        if name.startswith("d"):
            return
        keys, values, places = state
        rows = keys.shape[1]
        if values.shape[1] != rows:
            expected = "expected as many of each"
            raise ValueError(f"{args.op}: {name} has {rows} keys and {values.shape[1]} values, {expected}")
        if any(not 0 <= kept <= rows for kept in _kept(places, self.window).tolist()):
            expected = f"expected the number of steps so far, of which {name}.keys has {rows}"
            raise ValueError(f"{args.op}: {name}.places is {places}, {expected}")

    def emit(self, to: Listing, line: Line, q: int, k: int, v: int) -> Any:
        turned, width = [q, k], line.shapes[0][0] // self.heads  # type: ignore[index]
        if self.turning:
            part: dict[str, Any] = {} if self.turning == width else {"rotated": self.turning}
            turned = [
                to("Rotary", one, heads=shape[0] // width, base=self.base, **part, shapes=(shape,))  # type: ignore[index]
                for one, shape in zip(turned, line.shapes, strict=False)
            ]
        return to("Attention", *turned, v, heads=self.heads, window=self.window, shapes=line.shapes)

    def forward(self, call: Call, q: Array, k: Array, v: Array) -> Array:
        B, T, K = k.shape
        steps = np.full(B, T) if call.lengths is None else call.lengths
        kept_keys, kept_values, place = call.state or (*np.zeros((2, B, 0, K), k.dtype, like=k), np.zeros(B, np.int64))
        past = _kept(place, self.window)
        if self.turning:
            q, k = (self._turned(rotary, one, place, q.shape[2] // self.heads) for one in (q, k))
        keys, values = _append(kept_keys, k, past, call.lengths), _append(kept_values, v, past, call.lengths)
        each_k, each_v = self._spread(keys, q.shape[2]), self._spread(values, q.shape[2])
        how: Any = {"heads": self.heads, "lengths": call.lengths, "past": past, "window": self.window}
        y, norm = attention(q, each_k, each_v, **how)
        call.kept = q, keys, values, norm, place
        if isinstance(steps, RecordedLengths):  # their numbers, and so the state, are of each repetition
            call.after = None, None, None
            return y
        after: Any = Grown(keys, past + steps), Grown(values, past + steps)
        if self.window is not None:
            after = tuple(_last_rows(rows, past + steps, self.window) for rows in (keys, values))
        elif call.stepping:
            after = tuple(one.trimmed() for one in after)
        call.after = *after, place + steps
        return y

    def backward(self, call: Call, dy: Array, q: None, k: None, v: None) -> tuple[Array, ...]:
        turned, keys, values, norm, place = call.kept
        T, D, K, past = turned.shape[1], turned.shape[2], keys.shape[2], _kept(place, self.window)
        steps = np.full(len(place), T) if call.lengths is None else call.lengths
        how: Any = {"heads": self.heads, "lengths": call.lengths, "past": past, "window": self.window}
        given = np.zeros_like(turned) if dy is None else dy
        grads = attention_backward(given, turned, self._spread(keys, D), self._spread(values, D), call.y, norm, **how)
        dkeys, dvalues = (self._spread_backward(d, K) for d in (grads.dk, grads.dv))
        for drows, dlast in zip((dkeys, dvalues), call.dafter or (), strict=False):
            if dlast is not None:
                _last_rows_backward(drows, dlast, past + steps, self.window)
        S = keys.shape[1] - T
        rows = S if self.window is None else self.window - 1
        dkept_keys, dk = _append_backward(dkeys, S, rows, past, steps)
        dkept_values, dv = _append_backward(dvalues, S, rows, past, steps)
        call.dbefore = dkept_keys, dkept_values, np.zeros(place.shape)
        dq = grads.dq
        if self.turning:
            dq, dk = (self._turned(rotary_backward, d, place, D // self.heads) for d in (dq, dk))
        return dq, dk, dv

    def _turned(self, turn: Callable[..., Array], x: Array, place: Array, width: int) -> Array:
        """Returns x (B, T, heads * width) with the turning channels of each head turned by their positions."""
        heads = x.shape[2] // width
        if self.turning == width:
            return turn(x, heads=heads, past=place, base=self.base)
        y = x.reshape(*x.shape[:2], heads, width).copy()
        first = contiguous(y[..., : self.turning])
        part = first.reshape(*x.shape[:2], heads * self.turning)
        y[..., : self.turning] = turn(part, heads=heads, past=place, base=self.base).reshape(first.shape)
        return y.reshape(x.shape)

    def _spread(self, rows: Array, D: int) -> Array:
        """Returns (B, S, D) of keys or values (B, S, K): each head repeated for the heads of queries that read it."""
        B, S, K = rows.shape
        if K == D:
            return rows
        width = D // self.heads
        each = empty((B, S, K // width, D // K, width), rows.dtype, like=rows)
        each[...] = rows.reshape(B, S, K // width, 1, width)
        return each.reshape(B, S, D)

    def _spread_backward(self, deach: Array, K: int) -> Array:
        """Adjoint of `_spread`."""
        B, S, D = deach.shape
        if K == D:
            return deach
        width = D // self.heads
        drows: Array = deach.reshape(B, S, K // width, D // K, width).sum(3)
        return drows.reshape(B, S, K)


def _kept(places: Array, window: int | None) -> Array:
    """Returns the number of steps that a state keeps after `places` steps."""
    return places if window is None else np.minimum(places, window - 1)


def _last_rows(rows: Array, count: Array, window: int) -> Array:
    """Returns the last rows among the first count[b] rows of each sequence b, which a state keeps."""
    B, _, D = rows.shape
    last = np.zeros((B, window - 1, D), rows.dtype, like=rows)
    for b, (kept, end) in enumerate(zip(_kept(count, window), count, strict=True)):
        last[b, :kept] = rows[b, end - kept : end]
    return last


def _last_rows_backward(drows: Array, dlast: Array, count: Array, window: int | None) -> None:
    """Adds the adjoint of `_last_rows` to drows."""
    for b, (kept, end) in enumerate(zip(_kept(count, window), count, strict=True)):
        drows[b, end - kept : end] += dlast[b, :kept]


def _append(kept: Array, new: Array, past: Array, lengths: Array | None) -> Array:
    """Returns (B, S + T, D): for each sequence b, past[b] rows of kept (B, S, D), then the valid rows of new (B, T, D),
    then zeros."""
    (B, S, D), T = kept.shape, new.shape[1]
    if S == 0:
        return mask_padding(new, lengths)
    steps = np.full(B, T) if lengths is None else lengths
    rows = empty((B, S + T, D), np.result_type(kept, new), like=new)
    for b, (before, count) in enumerate(zip(past, steps, strict=True)):
        rows[b, :before] = kept[b, :before]
        rows[b, before : before + count] = new[b, :count]
        rows[b, before + count :] = 0
    return rows


def _append_backward(drows: Array, S: int, kept: int, past: Array, steps: Array) -> tuple[Array, Array]:
    """Adjoint of `_append`: returns the gradients of kept, with `kept` rows even if it had none, and of new."""
    B, rows, D = drows.shape
    dkept = np.zeros((B, kept, D), drows.dtype, like=drows)
    if S == 0:
        return dkept, drows  # it is zero where there is no key
    dnew = np.zeros((B, rows - S, D), drows.dtype, like=drows)
    for b, (before, count) in enumerate(zip(past, steps, strict=True)):
        dkept[b, :before] = drows[b, :before]
        dnew[b, :count] = drows[b, before : before + count]
    return dkept, dnew
