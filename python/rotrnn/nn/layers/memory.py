"""Rotational memories: states that do not decay and encode their age as an angle (J. O. Smith, "Rotational memory")."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.devices.device import beside, einsum
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm, astype, trusted
from rotrnn.nn.layers.linear import LinearRecurrence, planes_apart
from rotrnn.nn.listing import Listing
from rotrnn.ops.dense import dense, dense_backward, matmul
from rotrnn.ops.linear_layer import System, complex_of
from rotrnn.ops.memory import FORMS, history_read, history_read_backward, wrope_angle
from rotrnn.ops.pointwise import mask_padding
from rotrnn.ops.window import latest, latest_backward


class Projections(NamedTuple):
    """Real projections to and from complex planes: w_in (2N, D), w_out (K, D, 2N), and the skip (D,)."""

    w_in: Array
    w_out: Array
    skip: Array


def _shapes(D: int, N: int, suffixes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    outputs = {name + suffix: (D, N) for suffix in suffixes for name in ("C_re", "C_im")}
    return {**dict.fromkeys(("B_re", "B_im"), (N, D)), **outputs, "D": (D,)}


def _init(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], memory: int) -> Params:
    """B ~ N(0, 1/(2 D M)) per part, so that E|h|^2 = 1 for a full memory of M white inputs. C ~ N(0, 1/N),
    D ~ N(0, 1)."""
    N, D = shapes["B_re"]
    scale = {"B": 1 / np.sqrt(2 * D * memory), "C": 1 / np.sqrt(N), "D": 1.0}
    params = {name: scale[name[0]] * rng.standard_normal(shape) for name, shape in shapes.items()}
    return astype(params, np.float32)


def _fold(params: Params, suffixes: tuple[str, ...]) -> Projections:
    w_in = np.stack([params["B_re"], params["B_im"]], 1)
    w_out = np.stack([np.stack([params["C_re" + s], -params["C_im" + s]], 2) for s in suffixes])
    (N, _, D), K = w_in.shape, len(suffixes)
    return Projections(w_in.reshape(2 * N, D), w_out.reshape(K, D, 2 * N), params["D"])


def _fold_backward(d: Projections, suffixes: tuple[str, ...]) -> Params:
    dparams = {"B_re": d.w_in[0::2].copy(), "B_im": d.w_in[1::2].copy()}
    for k, suffix in enumerate(suffixes):
        dparams["C_re" + suffix], dparams["C_im" + suffix] = d.w_out[k, :, 0::2].copy(), -d.w_out[k, :, 1::2]
    return {**dparams, "D": d.skip}


@dataclass(frozen=True)
class RopeMemory(LinearRecurrence):
    """``h_t = e^{i Delta} h_{t-1} + B u_t``, ``y_t = Re(C h_t) + D * u_t`` with ``Delta = 2 pi / length``.

    A memory whose states rotate with age and do not decay (slide "RoPE and WRoPE"). `length` is the length of the
    longest sequence before a reset (a start without state): ages that differ by a multiple of it have the same angle.
    With a `window`, older inputs are forgotten exactly (slides on TIIR); with ``window=length`` all ages in the memory
    have different angles at any time.

    Nothing decays, and rounding errors would not decay either: in float32, states are carried from tile to tile of a
    sequence, and from call to call, in double precision. The state is complex128, and its error does not grow with the
    age of its inputs: after any number of steps it is at most ``1152 u`` of the sum of ``|B u_t|``, u = 2^-24, besides
    the rounding of B u_t itself. (A tile has 96 steps. Each rounds by at most 6 u, when an input is added and when the
    state is read.) With ``Context(fused=False)``, which is for comparison, T replaces 96. With a window, resets bound
    the error.

    Parameters (dict of float32): B_re, B_im (N, D), C_re, C_im (D, N), D (D,). A bidirectional layer also has
    C_re_reverse and C_im_reverse (D, N). N is `d_state`, the number of complex states (2N real lanes).

    Initial values: B ~ N(0, 1/(2 D M)) per part, where M is the window or, without one, the length, so that a full
    memory of white inputs has E|h|^2 = 1 in each plane; C ~ N(0, 1/N), D ~ N(0, 1).
    """

    about: ClassVar[str] = "memory that ages by rotation without decay, over all inputs or an exact window"
    paper: ClassVar[str] = 'Smith, "Rotational memory" (slides), RoPE ageing and TIIR windows'
    recurrent: ClassVar[frozenset[str]] = frozenset({"B_re", "B_im"})
    lanes: ClassVar[str] = "2 d_state"

    length: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("length")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return _shapes(self.d_model, self.d_state, self._directions())

    def init(self, rng: np.random.Generator) -> Params:
        return _init(rng, self.shapes, self.window or self.length)

    @functools.cached_property
    def exact(self) -> Array:
        return np.full(self.d_state, np.exp(1j * wrope_angle(1, self.length, "uniform")))

    def fold(self, params: Params) -> Folded[System]:
        w_in, w_out, skip = _fold(params, self._directions())
        return Folded(System(w_in, beside(self.exact.astype(complex_of(w_in.dtype)), w_in), w_out, skip))

    def emit(self, to: Listing, params: Params, x: int) -> int:
        readouts = [(params["C_re" + suffix], params["C_im" + suffix]) for suffix in self._directions()]
        return self._emit_system(to, x, self.exact, (params["B_re"], params["B_im"]), readouts, params["D"])

    def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
        return _fold_backward(Projections(dsystem.w_in, dsystem.w_out, dsystem.skip), self._directions())

    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)


class MemorySaved(NamedTuple):
    """Saved for backward: input (padding zeroed), projections, weights of ages, the sums m, lengths, the states h of x
    and those before it; and whether all states are kept, or only those of a window."""

    x: Array
    folded: Folded[Projections]
    weights: Array
    m: Array
    lengths: Array | None
    h: Array
    before: Array
    grows: bool

    @property
    def state(self) -> Array:
        """The stored states after x."""
        return stored_after(self.before, self.h, self.grows, self.lengths)


def stored_after(before: Array, h: Array, grows: bool, lengths: Array | None) -> Array:
    """Returns the stored states after h (B, T, N), oldest first: as many rows as there were in `before`, or if the
    number `grows` also those of h."""
    if grows:
        before = np.concatenate([np.zeros_like(h), before], 1)
    return latest(before, h, before.shape[1], lengths)


class AgeWeights:
    """Weights of ages for steps of streaming inference: kept, and doubled in number whenever more are needed, so that
    one more age costs constant time on average."""

    def __init__(self, layer: WropeMemory) -> None:
        self.layer = layer
        self.newest_last: Array | None = None

    def first(self, count: int, like: Array) -> Array:
        """Returns (re, im) (2, count) of the first `count` ages, newest last, in the dtype and device of `like`."""
        known = self.newest_last
        if known is None or known.shape[1] < count or known.dtype != like.real.dtype:
            w = self.layer.weights(max(count, 2 * count if self.layer.window is None else 0), like.dtype, like)[::-1]
            self.newest_last = known = np.stack([w.real, w.imag])
        return known[:, known.shape[1] - count :]


def _read(weights: Array, held: Array) -> Array:
    """Returns ``sum_m w_m held_m`` (B, N) for weights (re, im) (2, M) and states (B, M, N), by a real product."""
    (B, _, N), real = held.shape, held.real.dtype
    parts = matmul(np.ascontiguousarray(np.broadcast_to(weights, (B, *weights.shape))), held.view(real))
    parts = parts.reshape(B, 2, N, 2)
    m = np.empty((B, N), held.dtype, like=held)
    m.real = parts[:, 0, :, 0] - parts[:, 1, :, 1]
    m.imag = parts[:, 0, :, 1] + parts[:, 1, :, 0]
    return m


@dataclass(frozen=True)
class WropeMemory(Recurrent):
    """``h_t = B u_t`` (stored), ``m_t = sum_{k<M} e^{i Delta_k} h_{t-k}`` (read), ``y_t = Re(C m_t) + D * u_t``.

    Each state is re-encoded by its age k when it is read, ``Delta_k = wrope_angle(k, length, form)`` (slide "WRoPE
    memory"). Except for uniform angles this is not a recurrence, so states are stored: the last M with ``window=M``,
    or all without a window. Without a window sequences may have any length; use warped angles for these, because they
    do not wrap around. This costs: what is stored after t steps is B t N complex numbers, and each step reads all of
    them, because each age changes its angle by another amount, and no sum over them can be updated. A forward of T
    steps takes O((t + T) log(t + T)) by FFT, a single step O(t). With a window, M replaces t. The sum starts with the
    current state, of age 0, so that with uniform angles the layer equals `RopeMemory` with the same window.

    Parameters and initial values are those of `RopeMemory`; `d_state` is N, the number of complex states per step (2N
    real lanes). The layer's state holds the stored states before x, (B, M-1, N), or (B, t, N) after t steps without a
    window, oldest first."""

    about: ClassVar[str] = "stored states, read with angles that are warped functions of their age"
    paper: ClassVar[str] = 'Smith, "Rotational memory" (slides), WRoPE memory'
    recurrent: ClassVar[frozenset[str]] = frozenset({"B_re", "B_im"})
    lanes: ClassVar[str] = "2 d_state t"

    d_state: int
    length: int
    window: int | None = None
    form: str = "warped"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "length", *(() if self.window is None else ("window",)))
        self.check_choice("form", FORMS)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return _shapes(self.d_model, self.d_state, ("",))

    def init(self, rng: np.random.Generator) -> Params:
        return _init(rng, self.shapes, self.window or self.length)

    @property
    def state_form(self) -> StateForm:
        rows = None if self.window is None else self.window - 1
        return StateArray("h", (rows, self.d_state), "complex", newest_last=True)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, MemorySaved]:
        folded = self.fold(params)
        projections = folded.weights
        x = mask_padding(x, ctx.lengths)
        v = dense(x, projections.w_in)
        h = v.view(complex_of(v.dtype))
        before = self._before(state, h)
        weights = self.weights(before.shape[1] + h.shape[1], h.dtype, h)
        m = history_read(weights, h, before, lengths=ctx.lengths)
        y = dense(m.view(m.real.dtype), projections.w_out[0]) + projections.skip * x
        return y, MemorySaved(x, folded, weights, m, ctx.lengths, h, before, self.window is None)

    def backward(
        self, params: Params, saved: MemorySaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, Array]:
        x, folded, weights, m, lengths, _, before, _ = saved
        rows = before.shape[1]
        w_in, w_out, skip = folded.weights
        dy = mask_padding(dy.astype(m.real.dtype, copy=False), lengths)  # m's dtype: dm is viewed as complex below
        dm, dw_out, _ = dense_backward(dy, m.view(m.real.dtype), w_out[0])
        dh, dpast = history_read_backward(dm.view(m.dtype), weights, rows, lengths=lengths)
        if dstate is not None:
            after = saved.state.shape
            if dstate.shape != after:  # without a window, one row per step
                raise ValueError(f"WropeMemory.backward: dstate has shape {dstate.shape}, expected {after}")
            dpast += latest_backward(dstate, dh, lengths)[:, dstate.shape[1] - rows :]
        dx, dw_in, _ = dense_backward(dh.view(dm.dtype), x, w_in)
        dx += skip * dy
        dskip = einsum("btd,btd->d", dy, x)
        return dx, self.fold_backward(params, folded, Projections(dw_in, dw_out[None], dskip)), dpast

    def emit(self, to: Listing, params: Params, x: int) -> int:
        w_in, w_out, skip = self.fold(params).weights
        h = to("Dense", x, planes_apart(w_in.T).T)
        m = to("Wrope", h, length=self.length, form=self.form, window=self.window)
        y: int = to("Skip", x, skip, to("Dense", m, planes_apart(w_out[0])))
        return y

    def fold(self, params: Params) -> Folded[Projections]:
        """Returns the projections to and from the memory."""
        return Folded(_fold(params, ("",)))

    def fold_backward(self, params: Params, folded: Folded[Projections], dprojections: Projections) -> Params:
        """Adjoint of `fold`: returns the gradients of the parameters."""
        return _fold_backward(dprojections, ("",))

    def prepare(self, params: Params) -> tuple[Projections, AgeWeights]:
        """Returns the projections, and the weights of ages, which are computed when they are first used."""
        return self.fold(params).weights, AgeWeights(self)

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        (w_in, w_out, skip), ages = trusted(self.prepare)(params) if prepared is None else prepared
        v = dense(x_t, w_in)
        h = v.view(complex_of(v.dtype))[:, None]
        held = np.concatenate([self._before(state, h), h], 1)
        m = _read(ages.first(held.shape[1], held), held)
        y = dense(m.view(m.real.dtype), w_out[0]) + skip * x_t
        return y, held if self.window is None else held[:, 1:]

    def weights(self, count: int, dtype: Any, like: Array) -> Array:
        """Returns e^{i Delta_k} for the first `count` ages, limited to the window."""
        ages = np.arange(count if self.window is None else min(count, self.window))
        return beside(np.exp(1j * wrope_angle(ages, self.length, self.form)).astype(dtype), like)

    def _before(self, state: State, h: Array) -> Array:
        """Returns the stored states; at the start zeros, or no rows without a window."""
        rows = 0 if self.window is None else self.window - 1
        B, _, N = h.shape
        if state is None:
            return np.zeros((B, rows, N), h.dtype, like=h)
        stored: Array = state
        return stored
