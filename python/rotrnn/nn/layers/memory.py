"""Rotational memories: states that do not decay and encode their age as an angle (J. O. Smith, "Rotational memory")."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.devices.device import beside
from rotrnn.nn.folded import Folded
from rotrnn.nn.instructions import Dense, History, Skip
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Builder, Call, Instruction, Program, Programmed, Shape
from rotrnn.ops.linear_layer import System, complex_of
from rotrnn.ops.memory import FORMS, wrope_angle

NAMES = ("B_re", "B_im", "C_re", "C_im", "D")
"""The parameters of one direction."""


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
        return _shapes(self.d_model, self.d_state, self.directions)

    def init(self, rng: np.random.Generator) -> Params:
        return _init(rng, self.shapes, self.window or self.length)

    @functools.cached_property
    def exact(self) -> Array:
        return np.full(self.d_state, np.exp(1j * wrope_angle(1, self.length, "uniform")))

    def fold(self, params: Params) -> Folded[System]:
        w_in, w_out, skip = _fold(params, self.directions)
        return Folded(System(w_in, beside(self.exact.astype(complex_of(w_in.dtype)), w_in), w_out, skip))

    def emit(self, to: Listing, params: Params, x: int) -> int:
        readouts = [(params["C_re" + suffix], params["C_im" + suffix]) for suffix in self.directions]
        return self._emit_system(to, x, self.exact, (params["B_re"], params["B_im"]), readouts, params["D"])

    def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
        return _fold_backward(Projections(dsystem.w_in, dsystem.w_out, dsystem.skip), self.directions)


@dataclass(frozen=True)
class WropeMemory(Programmed):
    """``h_t = B u_t`` (stored), ``m_t = sum_{k<M} e^{i Delta_k} h_{t-k}`` (read), ``y_t = Re(C m_t) + D * u_t``.

    Each state is re-encoded by its age k when it is read, ``Delta_k = wrope_angle(k, length, form)`` (slide "WRoPE
    memory"). Except for uniform angles this is not a recurrence, so states are stored: the last M with ``window=M``,
    or all without a window. Without a window sequences may have any length; use warped angles for these, because they
    do not wrap around. This costs: what is stored after t steps is B t N complex numbers, and each step reads all of
    them, because each age changes its angle by another amount, and no sum over them can be updated. A forward of T
    steps takes O((t + T) log(t + T)) by FFT, a single step O(t). With a window, M replaces t. The sum starts with the
    current state, of age 0, so that with uniform angles the layer equals `RopeMemory` with the same window.

    Parameters and initial values are as in `RopeMemory`; `d_state` is N, the number of complex states per step (2N
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
        self.check_sizes("d_state", "length", "window")
        self.check_choice("form", FORMS)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return _shapes(self.d_model, self.d_state, ("",))

    def init(self, rng: np.random.Generator) -> Params:
        return _init(rng, self.shapes, self.window or self.length)

    def program(self) -> Program:
        p = Builder(self)
        w_in, w_out, skip = p(Projected(), *self.shapes)
        m = p(History(self.length, self.form, self.window, counted=False), p(Dense(), p.x, w_in))
        return p.returns(p(Skip(), p.x, skip, None, p(Dense(), m, w_out)))


@dataclass(frozen=True)
class Projected(Instruction):
    """`Projections` of the parameters of `WropeMemory`: w_in (2N, D), w_out (D, 2N) and skip (D,)."""

    foldable = True

    def shapes(self, *params: Any) -> tuple[Shape, ...]:
        N, D = params[0]
        return (2 * N, D), (D, 2 * N), (D,)

    def forward(self, call: Call, *params: Array) -> tuple[Array, ...]:
        w_in, w_out, skip = _fold(dict(zip(NAMES, params, strict=True)), ("",))
        return w_in, w_out[0], skip

    def backward(self, call: Call, dy: tuple[Array, ...], *params: Array) -> tuple[Array, ...]:
        dw_in, dw_out, dskip = dy
        dparams = _fold_backward(Projections(dw_in, dw_out[None], dskip), ("",))
        return tuple(dparams[name] for name in NAMES)
