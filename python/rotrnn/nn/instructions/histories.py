"""Stored states, read by their age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.devices.device import beside, contiguous
from rotrnn.nn.layer import Array, StateArray
from rotrnn.nn.program import Call, Instruction, Shape
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.declared import pairs, planes
from rotrnn.ops.dense import matmul
from rotrnn.ops.history_attention import history_attention, history_attention_backward
from rotrnn.ops.memory import FORMS, history_read, history_read_backward, history_weights_backward, wrope_angle
from rotrnn.ops.window import latest, latest_backward


@dataclass(frozen=True)
class History(Instruction):
    """``m_t = sum_{k<M} p_tk e^{i Delta_k} h_{t-k}`` for complex numbers by pairs, h and m (2N,): the last M = `window`
    of them, or all, turned by their age by `angles`, a form of `rotrnn.StoredHistory`, for a `length`.

    p is 1. With w (heads, A) it is ``w[min(k, A - 1)]`` of the group of a number, with queries q (2N,) a softmax over k
    (`rotrnn.ops.history_attention`). The state is the stored h (B, M-1, N) or (B, t, N), complex, and if `counted` the
    number of steps so far.
    """

    length: int
    angles: str = "warped"
    window: int | None = None
    heads: int = 1
    counted: bool = True
    reads = ("q",)
    parameters = ("w",)

    def shapes(self, h: Any, w: Any = None, q: Any = None) -> tuple[Shape, ...]:
        if len(h) != 1 or h[0] % (2 * self.heads) or q not in (None, h) or (w is not None and w[:1] != (self.heads,)):
            raise ValueError(f"expected h and q (2N,), w (H, A), N a multiple of H={self.heads}")
        if not self.counted and (q is not None or self.angles == "reversed"):
            raise ValueError(f"expected counted=True with q, and with angles={self.angles!r}")
        return (h,)

    def state(self, h: Any, w: Any = None, q: Any = None) -> tuple[StateArray, ...]:
        rows = None if self.window is None else self.window - 1
        stored = StateArray("stored" if self.counted else "h", (rows, h[0] // 2), "complex", newest_last=True)
        return (stored, StateArray("places", (), "integer")) if self.counted else (stored,)

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        if not self.counted or name.startswith("d"):
            return
        rows, places = state[0].shape[1], state[1]
        if any(one < 0 or (self.window is None and one > rows) for one in places.tolist()):
            expected = f"expected the number of steps so far, of which {name}.stored has {rows}"
            raise ValueError(f"{args.op}: {name}.places is {places}, {expected}")

    def prepare(self, h: None, w: Array | None = None, q: None = None) -> AgeWeights | None:
        return AgeWeights(self) if w is None else None

    def forward(self, call: Call, h: Array, w: Array | None = None, q: Array | None = None) -> Array:
        z = planes(h)
        size, T, N = z.shape
        stored, *places = call.state or (
            np.zeros((size, (self.window or 1) - 1, N), z.dtype, like=z),
            *([np.zeros(size, np.int64)] if self.counted else []),
        )
        if self.angles == "reversed":
            z = z * self._turns(places[0], z)
        held = np.concatenate([stored, z], 1) if call.stepping else None
        weights = None
        if q is not None:
            given = self._units(stored.shape[1] + T), z, stored
            m = history_attention(planes(q), *given, **self._reading(call, stored, places))
        elif held is None:
            weights = self._weights(stored.shape[1] + T, z, w)
            m = history_read(weights, z, stored, lengths=call.lengths)
        elif w is None:
            m = call.prepared.read(held)  # what `prepare` returned
        else:
            weights = self._weights(held.shape[1], z, w)[::-1]
            m = (weights * held[:, -len(weights) :]).sum(1, keepdims=True).astype(z.dtype, copy=False)
        after = self._after(stored, z, call.lengths) if held is None else held[:, 0 if self.window is None else 1 :]
        steps = T if call.lengths is None else call.lengths
        call.after, call.kept = (after, *(one + steps for one in places)), (weights, z, stored, *places)
        return pairs(m)

    def backward(self, call: Call, dy: Array, h: None, w: Array | None = None, q: Array | None = None) -> Any:
        weights, z, stored, *places = call.kept
        dm = np.zeros_like(z) if dy is None else planes(dy)
        rows, T = stored.shape[1], z.shape[1]
        dw = dq = None
        if q is not None:
            given = planes(q), self._units(rows + T), z, stored
            dq, dz, dstored = history_attention_backward(dm, *given, **self._reading(call, stored, places))
            dq = pairs(dq)
        else:
            dz, dstored = history_read_backward(dm, weights, rows, lengths=call.lengths)
            if w is not None:
                of_ages = history_weights_backward(dm, z, stored, count=len(weights), lengths=call.lengths)
                dw = self._weights_backward(of_ages, w)
        dlast = call.dafter[0] if call.dafter else None
        if dlast is not None:
            dstored += latest_backward(dlast.astype(dz.dtype, copy=False), dz, call.lengths)[:, dlast.shape[1] - rows :]
        if self.angles == "reversed":
            dz *= self._turns(places[0], dz).conj()
        call.dbefore = (dstored, *(np.zeros(one.shape) for one in places))
        return pairs(dz), dw, dq

    def _after(self, stored: Array, z: Array, lengths: Any) -> Array:
        """Returns the stored states after z, oldest first."""
        rows, T = stored.shape[1], z.shape[1]
        if lengths is None:
            left, new = (rows, T) if self.window is None else (max(rows - T, 0), min(rows, T))
            if left or self.window is not None:  # never z itself for some T alone: outputs would be shared for these
                return np.concatenate([stored[:, rows - left :], z[:, T - new :]], 1)
            return z
        if self.window is None:
            stored = np.concatenate([np.zeros_like(z), stored], 1)
        return latest(stored, z, stored.shape[1], lengths)

    def _reading(self, call: Call, stored: Array, places: list[Array]) -> dict[str, Any]:
        """Returns the keywords of `history_attention`."""
        return {"heads": self.heads, "stored": np.minimum(places[0], stored.shape[1]), "lengths": call.lengths}

    def _turns(self, place: Array, z: Array) -> Array:
        """Returns e^{i Delta_n} (B, T, 1) of the steps n that follow `place`, for the form "reversed"."""
        angles = wrope_angle(place[:, None] + np.arange(z.shape[1]), self.length, "warped")
        return beside(np.exp(1j * angles)[..., None].astype(z.dtype), z)

    def _units(self, count: int) -> Array:
        """Returns e^{i Delta_k} (M,) of the first `count` ages, at least one, limited to the window; on the CPU."""
        ages = np.arange(max(1, count if self.window is None else min(count, self.window)))
        turning = self.angles in FORMS
        return np.exp(1j * wrope_angle(ages, self.length, self.angles)) if turning else np.ones(len(ages), complex)

    def _weights(self, count: int, z: Array, w: Array | None) -> Array:
        """Returns the weights of the first `count` ages: (M,), or (M, N) by w."""
        units = beside(self._units(count).astype(z.dtype), z)
        if w is None:
            return units
        ages = beside(np.minimum(np.arange(len(units)), w.shape[1] - 1), z)
        learned = np.repeat(w.T[ages], z.shape[2] // self.heads, axis=1)
        return (learned * units[:, None]).astype(z.dtype, copy=False)

    def _weights_backward(self, dweights: Array, w: Array) -> Array:
        """Adjoint of `_weights`: returns the gradient of w."""
        units = beside(self._units(len(dweights)).astype(dweights.dtype), dweights)
        M, (heads, A) = len(dweights), w.shape
        of_ages = (units.conj()[:, None] * dweights).real.reshape(M, heads, -1).sum(-1)
        dw = np.zeros((A, heads), of_ages.dtype, like=of_ages)
        known = min(M, A)
        dw[:known] = of_ages[:known]
        dw[A - 1 :] += of_ages[A:].sum(0, keepdims=True)
        return dw.T.astype(w.dtype)


class AgeWeights:
    """Weights of ages for steps of streaming inference: kept, and doubled in number whenever more are needed, so that
    one more age costs constant time on average. The weights (B, 2, M) of the last step are kept, too."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.newest_last: Array | None = None
        self.last: Array | None = None

    def read(self, held: Array) -> Array:
        """Returns ``sum_m w_m held_m`` (B, 1, N) of states (B, M, N), oldest first, by a real product."""
        (size, count, N), real = held.shape, held.real.dtype
        weights = self.last
        if weights is None or weights.shape != (size, 2, count) or weights.dtype != real:
            known = self._known(count, held, real)
            weights = contiguous(np.broadcast_to(known[:, known.shape[1] - count :], (size, 2, count)))
            self.last = weights
        parts = matmul(weights, held.view(real)).reshape(size, 2, N, 2)
        m = np.empty((size, 1, N), held.dtype, like=held)
        m.real[:, 0] = parts[:, 0, :, 0] - parts[:, 1, :, 1]
        m.imag[:, 0] = parts[:, 0, :, 1] + parts[:, 1, :, 0]
        return m

    def _known(self, count: int, held: Array, real: Any) -> Array:
        """Returns the weights (2, M) of at least `count` ages."""
        known, window = self.newest_last, self.history.window
        if known is None or known.shape[1] < count or known.dtype != real:
            w = self.history._weights(max(count, 2 * count if window is None else 0), held, None)[::-1]
            self.newest_last = known = np.stack([w.real, w.imag])
        return known
