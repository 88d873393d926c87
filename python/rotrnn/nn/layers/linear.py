"""Base class of the linear recurrences: layers that are a parameterisation, params -> System, and its adjoint. The
recurrence itself is `rotrnn.ops.linear_layer`, which LRU, RotRNN, S5 and RopeMemory share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rotrnn.devices.device import beside
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Gather,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    split_by,
    trusted,
)
from rotrnn.nn.listing import Listing
from rotrnn.nn.module import Module, nearer
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.linear_layer import (
    LinearLayerSaved,
    LinearLayerStates,
    System,
    linear_layer,
    linear_layer_backward,
    linear_step,
)
from rotrnn.ops.window import (
    WindowState,
    checked_gradient,
    checked_state,
    power_of,
    ring_rows,
    window_state,
    window_state_backward,
)


class LinearSaved(NamedTuple):
    """Saved for backward: the folded system, the op's saved arrays, and the state after x.

    With a window also the inputs of the scan in the state, (B, L+1, N), and the number of inputs before x. At uneven
    times also the intervals (B, T).
    """

    folded: Folded[System]
    layer: LinearLayerSaved | LinearLayerStates
    state: State
    recent: Array | None = None
    before: Array | None = None
    dt: Array | None = None


@dataclass(frozen=True)
class LinearRecurrence(Recurrent):
    """A layer ``y = W_out scan(a, W_in u) + D * u``. (W_in, a, W_out) are folded from its parameters once per call.

    A subclass implements `shapes`, `init`, `fold` and `fold_backward`, which do not depend on B or T.

    The state is h (B, N), complex. With ``window=L`` the scan sums only the last L inputs (`diagonal_scan`; TIIR,
    Smith's slides "Rotational memory"), and a step of streaming inference uses `tiir_scan` with resets. The state is
    then the state of `tiir_scan`, a tuple (delay, sums, position). `step` writes the next input into the given delay
    line if called with `prepared`, and into a copy if not. `forward` only uses the delay line, from which the sums can
    be computed.
    """

    d_state: int
    bidirectional: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "window")

    @property
    def planes(self) -> int:
        """N, the number of complex states."""
        return self.d_state

    @property
    def exact(self) -> Array | None:
        """The transition (N,) in complex128, where states do not decay and its rounding would add up; else None."""
        return None

    def check_split(self, args: Boundary) -> None:
        if type(self).forward is not LinearRecurrence.forward or type(self).backward is not LinearRecurrence.backward:
            super().check_split(args)  # which refuses
        where = "sequences are split over processes, where this is not supported"
        if self.window is not None:
            raise ValueError(f"{args.op}: {type(self).__name__} has window={self.window}, expected None: {where}")
        if self.measures:
            raise ValueError(f"{args.op}: {self!r} measures its input, expected a layer that does not: {where}")

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if nearer(cls, "fold", "emit") and cls.emit is not Module.emit:
            cls.emit = LinearRecurrence.emit  # type: ignore[method-assign]  # the base's method may not read its fold

    @property
    def state_form(self) -> StateForm:
        N, L = self.planes, self.window
        if L is None:
            return StateArray("h", (N,), "complex")
        lines = StateArray("delay", (L + 1, N), "complex"), StateArray("sums", (2, N), "complex")
        return *lines, StateArray("position", (), "integer")

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.planes,), "complex")

    @abstractmethod
    def fold(self, params: Params) -> Folded[System]:
        """Returns the folded system."""

    @abstractmethod
    def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
        """Adjoint of `fold`: returns the gradients of the parameters."""

    @property
    def measures(self) -> bool:
        """Whether `fold_call` reads the input in training."""
        return False

    def fusible(self, ctx: Context) -> bool:
        """Whether the fused block (`rotrnn.ops.residual_block`) computes this call."""
        return self.window is None and ctx.dt is None

    def together(self, ctx: Context) -> bool:
        return self.measures and ctx.train

    def fold_call(self, params: Params, x: Array, ctx: Context) -> Folded[System]:
        """Returns the folded system of a call with the input x (B, T, D). It may depend on x in training, and update
        buffers."""
        return trusted(self.fold)(params)

    def fold_call_backward(
        self, params: Params, folded: Folded[System], dsystem: System
    ) -> tuple[Params, Array | None]:
        """Adjoint of `fold_call`: returns the gradients of the parameters, and of x (None: zero)."""
        return self.fold_backward(params, folded, dsystem), None

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, LinearSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call (one direction only)."""
        if ctx.dt is not None:
            return self.forward_at(params, x, ctx.dt, ctx, state)
        folded = self.fold_call(params, x, ctx)
        if self.window is not None:
            return self._forward_window(self.window, folded, x, ctx, state)
        start = None if state is None else state[None]
        y, hT, layer = linear_layer(
            folded.weights, x, start, lengths=ctx.lengths, exact=self.exact, fused=ctx.fused, split=ctx.split
        )
        return y, LinearSaved(folded, layer, None if self.bidirectional else hT[0])

    def backward(
        self,
        params: Params,
        saved: LinearSaved,
        dy: Array,
        dstate: State = None,
        gather: Gather | None = None,
        dh: Array | None = None,
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None).

        `gather` must be the same as in forward's context. `dh` (B, T, N), if given by another module, is a further
        gradient of `hidden_states`.
        """
        if saved.dt is not None:
            return self.backward_at(params, saved, dy, dstate, dh)
        if self.window is not None:
            return self._backward_window(params, saved, dy, dstate, dh)
        dhT = None if dstate is None else dstate[None]
        grads = linear_layer_backward(dy, saved.folded.weights, saved.layer, dhT, dh=dh, split=split_by(gather))
        dparams, du = self.fold_call_backward(params, saved.folded, grads.system)
        return _plus(grads.du, du), dparams, None if self.bidirectional else grads.dh0[0]

    def forward_at(self, params: Params, x: Array, dt: Array, ctx: Context, state: State) -> tuple[Array, LinearSaved]:
        """Like `forward`, at uneven times (`Context.dt`): of layers whose `check_dt` accepts them."""
        raise NotImplementedError

    def backward_at(
        self, params: Params, saved: LinearSaved, dy: Array, dstate: State, dh: Array | None
    ) -> tuple[Array, Params, State]:
        """Adjoint of `forward_at`."""
        raise ValueError("saved has intervals dt, expected None")

    def _forward_window(
        self, window: int, folded: Folded[System], x: Array, ctx: Context, state: State
    ) -> tuple[Array, LinearSaved]:
        system, args = folded.weights, Boundary(f"{type(self).__name__}.forward")
        args.bind("N", len(system.a), "the layer")
        x = args.array("x", x, "B T D")
        before, start = np.zeros(x.shape[0], np.int64), None
        if state is not None:
            delay, _, before = checked_state(args, state, window)
            start = np.take_along_axis(delay, beside(ring_rows(before, delay.shape[1]), delay), 1)[None]
        y, hT, layer = linear_layer(system, x, start, lengths=ctx.lengths, window=window)
        if self.bidirectional:
            return y, LinearSaved(folded, layer, None)
        recent, position = hT[0], before + (x.shape[1] if layer.lengths is None else layer.lengths)
        after = window_state(system.a.astype(recent.dtype, copy=False), recent, position)
        return y, LinearSaved(folded, layer, after, recent, before)

    def _backward_window(
        self, params: Params, saved: LinearSaved, dy: Array, dstate: State, dh: Array | None
    ) -> tuple[Array, Params, State]:
        da, dend = None, None
        if dstate is not None:
            assert saved.recent is not None
            args = Boundary(f"{type(self).__name__}.backward")
            B, rows, N = saved.recent.shape
            args.bind("B", B, "the forward call")
            args.bind("N", N, "the layer")
            ddelay, dsums = checked_gradient(args, dstate, rows - 1, saved.recent)
            dtype = np.result_type(saved.recent, ddelay, dsums)
            ddelay, dsums = ddelay.astype(dtype), dsums.astype(dtype)
            a = saved.folded.weights.a.astype(saved.recent.dtype, copy=False)
            da, drecent = window_state_backward(ddelay, dsums, a, saved.recent, saved.state.position)
            dend = drecent[None]
        grads = linear_layer_backward(dy, saved.folded.weights, saved.layer, dend, dh=dh)
        dsystem = grads.system if da is None else grads.system._replace(a=grads.system.a + da)
        dparams, du = self.fold_call_backward(params, saved.folded, dsystem)
        du = _plus(grads.du, du)
        if saved.before is None:
            return du, dparams, None
        ddelay = np.empty_like(grads.dh0[0])
        np.put_along_axis(ddelay, beside(ring_rows(saved.before, ddelay.shape[1]), ddelay), grads.dh0[0], 1)
        dsums = np.zeros((ddelay.shape[0], 2, ddelay.shape[2]), ddelay.dtype, like=ddelay)
        return du, dparams, WindowState(ddelay, dsums, np.zeros(saved.before.shape))

    def prepare(self, params: Params) -> tuple[System, Array | None]:
        """Returns the system and, with a window, a^L."""
        system = trusted(self.fold)(params).weights
        return system, None if self.window is None else power_of(system.a, self.window)

    def step(
        self, params: Params, state: State, x_t: Array, prepared: tuple[System, Array | None] | None = None
    ) -> tuple[Array, State]:
        if prepared is None and self.window is not None and isinstance(state, tuple):
            state = tuple(leaf.copy() for leaf in state)  # because the step overwrites the delay line
        system, power = trusted(self.prepare)(params) if prepared is None else prepared
        return linear_step(system, state, x_t, window=self.window, power=power, exact=self.exact)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return self._emit_folded(to, params, x)

    def emitted(self, to: Listing, params: Params, x: int) -> dict[str, int]:
        y, h = self._emit_folded(to, params, x, hidden=True)
        return {"y": y, "h": h}

    def _emit_folded(self, to: Listing, params: Params, x: int, hidden: bool = False) -> Any:
        w_in, a, w_out, skip = trusted(self.fold)(to.exact(params)).weights
        readouts = [(w[:, 0::2], -w[:, 1::2]) for w in w_out]
        return self._emit_system(to, x, a, (w_in[0::2], w_in[1::2]), readouts, skip, hidden=hidden)

    def _emit_system(
        self,
        to: Listing,
        x: int,
        a: Array,
        B: tuple[Array, Array],
        C: list[tuple[Array, Array]],
        skip: Array,
        gain: Array | None = None,
        weight: int = 1,
        hidden: bool = False,
    ) -> Any:
        """Appends ``h_t = a * h_{t-1} + gain * (B x_t)``, ``y_t = weight Re(C h_t) + skip * x_t``, with a pair C for
        each direction. Returns y, or y and h as real lanes if `hidden`."""
        exact = None if self.exact is None else [*self.exact.real.tolist(), *self.exact.imag.tolist()]
        gains = None if gain is None else np.stack([gain.real, gain.imag])
        readouts = [part for pair in C for part in pair]
        inputs = np.stack([a.real, a.imag]), *B, gains, skip, *readouts
        more: dict[str, Any] = {"outputs": 2, "hidden": True} if hidden else {}
        return to("System", x, *inputs, window=self.window, exact=exact, weight=weight, **more)

    def hidden_states(self, saved: LinearSaved) -> Array | None:
        return saved.layer.h[0] if isinstance(saved.layer, LinearLayerStates) else None

    @property
    def state_size(self) -> int:
        return 2 * self.planes  # with a window, the state is more than h_t

    def eigenvalues(self, params: Params) -> Array:
        """Returns the transition a (N,), complex: one eigenvalue per plane (the other one is its conjugate)."""
        self.check_params(params)
        return trusted(self.fold)(params).weights.a


def _plus(x: Array, y: Array | None) -> Array:
    return x if y is None else x + y


def ring(rng: np.random.Generator, low: float, high: float, count: int) -> Array:
    """Returns log(-log r) for `count` random moduli r, uniform in area between radii low and high (LRU, Lemma 3.2)."""
    return np.log(-0.5 * np.log(rng.uniform(size=count) * (high**2 - low**2) + low**2))
