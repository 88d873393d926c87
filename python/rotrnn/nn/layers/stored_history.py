"""A memory over any recurrent layer: its hidden states are stored, and re-encoded by their age when they are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import beside
from rotrnn.nn.layer import (
    EVALUATION,
    TRUSTED,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    form_leaves,
    split_state,
    state_leaves,
    trusted,
)
from rotrnn.nn.layers.around import Around
from rotrnn.nn.layers.memory import stored_after
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.history_attention import history_attention, history_attention_backward
from rotrnn.ops.linear_layer import complex_of
from rotrnn.ops.memory import (
    FORMS,
    history_read,
    history_read_backward,
    history_weights_backward,
    unpadded,
    wrope_angle,
)
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.window import latest_backward

Counts = npt.NDArray[np.int64]

OWN = "history_"
READS = ("sum", "ages", "content")
ENCODINGS = (*FORMS, "reversed", "none")


class HistorySaved(NamedTuple):
    """Saved for backward: what the layer saved; its states h of x as they are stored, those before x, and the numbers
    (B,) of steps before x; the memory m that was read; input and queries of a read by content; lengths; and
    whether all states are kept."""

    layer: Any
    h: Array
    before: Array
    place: Counts
    m: Array
    x: Array | None
    q: Array | None
    lengths: Counts | None
    grows: bool

    @property
    def state(self) -> State:
        """The state after x."""
        stored = stored_after(self.before, self.h, self.grows, self.lengths)
        steps = self.h.shape[1] if self.lengths is None else self.lengths
        return *state_leaves(self.layer.state), stored, self.place + steps


@dataclass(frozen=True)
class StoredHistory(Around):
    """``y_t = layer(u)_t + C m_t``: the memory m_t reads the hidden states h of `layer` up to t, each turned by age.

    The states are stored, as ``h_a(n, m) = e^{i Delta_{n-m}} h(m)`` of the slide "WRoPE memory" (J. O. Smith,
    "Rotational memory") asks for: ``m_t = sum_{k<M} p_tk e^{i Delta_k} h_{t-k}``, over the last M states with
    ``window=M``, else over all. `form` is that of the angles Delta_k, with L = `length`:

    - "uniform", "warped", "blend", "blend_printed": those of `rotrnn.ops.wrope_angle`;
    - "reversed": ``Delta = 2 pi n / (n + L)`` for the state of step n, counted from the beginning of the sequence. This
      is the form of WRoPE that a state can be given once and for all, and keeps. It tells early steps from each other
      and not late ones, so the slides process a sequence in reverse, which is what "warped" does at every step;
    - "none": no angle.

    `read` says what the weights p are:

    - "sum": 1;
    - "ages": learned, for each of `heads` groups of planes, ``p_tk = history_w[min(k, A - 1)]``, where A is `length`,
      or `window` if that is less: states of A steps and more share a weight with those of A - 1;
    - "content": ``softmax_k(Re(<q_t, e^{i Delta_k} h_{t-k}>) / sqrt(2n))`` for each of `heads` groups of n planes, with
      queries ``q_t = W_q u_t`` (`rotrnn.ops.history_attention`). A query finds a state by what it is and by its age.

    The stored vectors are the states h of the layers that have a single vector of them (`Recurrent.hidden`: RNN, LSTM,
    GRU, SLSTM, MinGRU, RGLRU, SelectiveRotRNN, FixedPointRNN, and LRU, RotRNN, S5 and RopeMemory, with windows too), of
    LSTM and SLSTM h without the cells c. Of all other layers they are the outputs y. Pairs of real lanes (2i, 2i+1) are
    planes.

    Parameters
    ----------
    d_model : int
        D, that of `layer`.
    layer : Recurrent
        The recurrence, which runs forward in time.
    length : int
        L of the angles, and with "ages" the number of weights.
    read, form : str
        See above.
    window : int, optional
        M; by default all states are kept.
    heads : int
        Groups of planes with weights of their own, a divisor of the number of planes.

    Parameters (dict of float32): those of the layer, and for P planes history_C (D, 2P), which acts on (re, im) of each
    plane; with "ages" history_w (heads, A), with "content" history_q (2P, D), W_q as real lanes. The state is that of
    the layer, and the states (B, M-1, P), or (B, t, P) after t steps without a window, oldest first, and the numbers
    (B,) of steps so far. Without a window a step reads all that came before.

    Initial values: those of the layer; history_C ~ N(0, 1/2P), for "sum" N(0, 1/(2P M)) with M the window or else the
    length; history_w ~ N(0, 1/A), history_q ~ N(0, 1/D).
    """

    about: ClassVar[str] = "the hidden states of a layer, stored, and read by age or content with angles by their age"
    paper: ClassVar[str] = 'Smith, "Rotational memory" (slides), WRoPE memory'

    layer: Recurrent
    length: int
    read: str = "content"
    form: str = "warped"
    window: int | None = None
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("length", "heads", *(() if self.window is None else ("window",)))
        self.check_choice("read", READS)
        self.check_choice("form", ENCODINGS)
        if getattr(self.layer, "bidirectional", False):
            kind = type(self.layer).__name__
            raise ValueError(
                f"StoredHistory: {kind} has bidirectional=True, expected False: a history has one direction"
            )
        if self.layer.state_form is None:
            raise ValueError(
                f"StoredHistory: layer={self.layer!r}, expected a layer that declares its state (state_form)"
            )
        if taken := [name for name in self.layer.shapes if name.startswith(OWN)]:
            kind = type(self.layer).__name__
            raise ValueError(f"StoredHistory: {kind} has a parameter {taken[0]}, expected a layer without a history")
        if self.d_model != self.layer.d_model:
            raise ValueError(f"StoredHistory: d_model={self.d_model}, expected {self.layer.d_model} as of its layer")
        if self.layer.hidden.kind == "real" and self.layer.hidden.shape[0] % 2:  # type: ignore[operator]
            width = self.layer.hidden.shape[0]
            raise ValueError(f"StoredHistory: layer has states of {width} real lanes, expected an even number")
        if self.planes % self.heads:
            raise ValueError(f"StoredHistory: heads={self.heads}, expected a divisor of the {self.planes} planes")

    @property
    def planes(self) -> int:
        """P, the number of planes of a stored state."""
        width = self.layer.hidden.shape[0] or 0
        return width if self.layer.hidden.kind == "complex" else width // 2

    @property
    def ages(self) -> int:
        """A, the number of learned weights of a head."""
        return self.length if self.window is None else min(self.length, self.window)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, lanes = self.d_model, 2 * self.planes
        own: dict[str, tuple[int, ...]] = {"history_C": (D, lanes)}
        if self.read == "ages":
            own["history_w"] = (self.heads, self.ages)
        if self.read == "content":
            own["history_q"] = (lanes, D)
        return self.layer.shapes | own

    @property
    def state_form(self) -> StateForm:
        rows = None if self.window is None else self.window - 1
        stored = StateArray("stored", (rows, self.planes), "complex", newest_last=True)
        return *form_leaves(self.layer.state_form), stored, StateArray("places", (), "integer")

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        super().check_state(args, name, state)
        if state is None or name.startswith("d"):
            return
        inner, stored, places = self._split(state)
        self.layer.check_state(args, name, inner)
        most = stored.shape[1] if self.window is None else None
        if any(one < 0 or (most is not None and one > most) for one in places.tolist()):
            raise ValueError(
                f"{args.op}: {name}.places is {places}, expected the number of steps so far, of which {name}.stored "
                f"has {stored.shape[1]}"
            )

    def init(self, rng: np.random.Generator) -> Params:
        params = self.layer.init(rng)
        terms = self.window or self.length if self.read == "sum" else 1
        inverse = {"history_C": 2 * self.planes * terms, "history_w": self.ages, "history_q": self.d_model}
        for name, shape in self.shapes.items():
            if name in inverse:
                params[name] = (rng.standard_normal(shape) / np.sqrt(inverse[name])).astype(np.float32)
        return params

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, HistorySaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call."""
        return self._run(params, x, ctx, state)

    def _run(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, HistorySaved]:
        inner, stored, place = self._split(state)
        y, saved = trusted(self.layer.forward)(self._inner(params), x, replace(ctx, fused=False), inner)
        states = self.layer.hidden_states(saved)
        h = y if states is None else states
        h = h if np.iscomplexobj(h) else h.view(complex_of(h.dtype))
        B, T, P = h.shape
        if state is None:
            rows = 0 if self.window is None else self.window - 1
            stored, place = np.zeros((B, rows, P), h.dtype, like=h), np.zeros(B, np.int64)
        if self.form == "reversed":
            h = h * self._turns(place, T, h)
        u = q = None
        if self.read == "content":
            u = mask_padding(x, ctx.lengths)
            q = dense(u, params["history_q"])
            q = q.view(complex_of(q.dtype))
            m = history_attention(q, self._units(stored.shape[1] + T), h, stored, **self._reading(stored, place, ctx))
        else:
            m = _sum(self._weights(params, stored.shape[1] + T, h), h, stored, ctx.lengths)
        y = y + dense(m.view(m.real.dtype), params["history_C"])
        return y, HistorySaved(saved, h, stored, place, m, u, q, ctx.lengths, self.window is None)

    def backward(
        self, params: Params, saved: HistorySaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of an empty state if it was None)."""
        h, m, lengths = saved.h, saved.m, saved.lengths
        dinner, dlast, _ = self._split(dstate)
        dy = mask_padding(dy.astype(m.real.dtype, copy=False), lengths)
        dm, dC, _ = dense_backward(dy, m.view(dy.dtype), params["history_C"])
        dh, dstored, dx, own = self._read_backward(params, saved, dm.view(m.dtype))
        if dlast is not None:
            rows = saved.before.shape[1]
            after = (len(h), rows + h.shape[1] if saved.grows else rows, h.shape[2])
            if dlast.shape != after:  # without a window, one row per step
                raise ValueError(f"StoredHistory.backward: dstate.stored has shape {dlast.shape}, expected {after}")
            dstored += latest_backward(dlast.astype(dh.dtype, copy=False), dh, lengths)[:, after[1] - rows :]
        if self.form == "reversed":
            dh *= self._turns(saved.place, h.shape[1], h).conj()
        of_layer = self._layer_backward(params, saved, dy, dinner, dh)
        dstate0 = *state_leaves(of_layer[2]), dstored, np.zeros(saved.place.shape)
        dx = of_layer[0] if dx is None else dx + of_layer[0]
        return dx, {**of_layer[1], **own, "history_C": dC}, dstate0

    def _read_backward(
        self, params: Params, saved: HistorySaved, dm: Array
    ) -> tuple[Array, Array, Array | None, Params]:
        """Returns the gradients of the states of x and of those before, of x by the queries (None without), and of the
        parameters of the read."""
        h, stored, lengths = saved.h, saved.before, saved.lengths
        count = stored.shape[1] + h.shape[1]
        if self.read == "content":
            assert saved.q is not None
            assert saved.x is not None
            grads = history_attention_backward(
                dm, saved.q, self._units(count), h, stored, **self._reading(stored, saved.place, saved)
            )
            dx, dw, _ = dense_backward(grads.dq.view(dm.real.dtype), saved.x, params["history_q"])
            return grads.dh, grads.dpast, dx, {"history_q": dw}
        weights = self._weights(params, count, h)
        dh, dstored = history_read_backward(dm, weights, stored.shape[1], lengths=lengths)
        if self.read == "sum":
            return dh, dstored, None, {}
        dweights = history_weights_backward(dm, h, stored, count=len(weights), lengths=lengths)
        return dh, dstored, None, {"history_w": self._weights_backward(dweights, params["history_w"])}

    def _layer_backward(self, params: Params, saved: HistorySaved, dy: Array, dstate: State, dh: Array) -> Any:
        """Returns what the layer's backward does for the gradients of its outputs and of what is stored of it."""
        backward: Any = trusted(self.layer.backward)  # `dh` is an argument of some layers
        inner = self._inner(params)
        if self.layer.hidden_states(saved.layer) is None:
            return backward(inner, saved.layer, dy + dh.view(dy.dtype), dstate)
        dh = dh if self.layer.hidden.kind == "complex" else dh.view(dy.dtype)
        return backward(inner, saved.layer, dy, dstate, dh=dh)

    def prepare(self, params: Params) -> Params:
        """Returns the checked parameters."""
        return params

    def step(self, params: Params, state: State, x_t: Array, prepared: Params | None = None) -> tuple[Array, State]:
        y, saved = self._run(params if prepared is None else prepared, x_t[:, None], TRUSTED, state)
        return y[:, 0], saved.state

    def _entering(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, Context, State]:
        return x, ctx, self._split(state)[0]

    def _split(self, state: State) -> tuple[State, Array, Counts]:
        """Returns (state of the layer, stored states, numbers of steps so far), of a state or of its gradient."""
        inner, stored, places = split_state(self.layer, state, 2)
        return inner, stored, places

    def _reading(self, stored: Array, place: Counts, given: Context | HistorySaved) -> dict[str, Any]:
        """Returns the keywords of `history_attention`."""
        return {"heads": self.heads, "stored": np.minimum(place, stored.shape[1]), "lengths": given.lengths}

    def _turns(self, place: Counts, T: int, like: Array) -> Array:
        """Returns e^{i Delta_n} (B, T, 1) of the steps n that follow `place`, for the form "reversed"."""
        angles = wrope_angle(place[:, None] + np.arange(T), self.length, "warped")
        return beside(np.exp(1j * angles)[..., None].astype(like.dtype), like)

    def _units(self, count: int) -> Array:
        """Returns e^{i Delta_k} (M,) of the first `count` ages, at least one, limited to the window; on the CPU."""
        ages = np.arange(max(1, count if self.window is None else min(count, self.window)))
        turning = self.form in FORMS
        return np.exp(1j * wrope_angle(ages, self.length, self.form)) if turning else np.ones(len(ages), complex)

    def _weights(self, params: Params, count: int, like: Array) -> Array:
        """Returns the weights of the first `count` ages for `history_read`: (M,), or (M, P) if they are learned."""
        units = self._units(count)
        there = beside(units.astype(like.dtype), like)
        if self.read == "sum":
            return there
        ages = beside(np.minimum(np.arange(len(units)), self.ages - 1), like)
        learned = np.repeat(params["history_w"].T[ages], self.planes // self.heads, axis=1)
        return (learned * there[:, None]).astype(like.dtype, copy=False)

    def _weights_backward(self, dweights: Array, w: Array) -> Array:
        """Adjoint of `_weights`: returns the gradient of w (heads, A)."""
        units = beside(self._units(len(dweights)).astype(dweights.dtype), dweights)
        M, A, heads = len(dweights), self.ages, self.heads
        of_ages = (units.conj()[:, None] * dweights).real.reshape(M, heads, self.planes // heads).sum(-1)
        dw = np.zeros((A, heads), of_ages.dtype, like=of_ages)
        known = min(M, A)
        dw[:known] = of_ages[:known]
        dw[A - 1 :] += of_ages[A:].sum(0, keepdims=True)
        return dw.T.astype(w.dtype)


def _sum(weights: Array, h: Array, stored: Array, lengths: Counts | None) -> Array:
    """Returns ``sum_k w_k h_{t-k}``: by `history_read`, or for a single step directly, without a Fourier transform."""
    if h.shape[1] != 1:
        return history_read(weights, h, stored, lengths=lengths)
    held = np.concatenate([stored, unpadded(h, lengths)], 1)[:, ::-1]
    weights = weights if weights.ndim == 2 else weights[:, None]
    read: Array = (weights * held[:, : len(weights)]).sum(1, keepdims=True)
    return unpadded(read.astype(h.dtype, copy=False), lengths)
