"""The engine of Bedouin and FPMamba: Fixed-Point RNNs with a matrix state, whose step in depth is a selective scan.

A layer is a table of maps (what of a token, and of the output before it, drives the step) and a folding of its
parameters into effective weights, with the adjoint of that; all else is here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.iteration import Iteration, Report, Steps, exponents, lengths_of, solve, times_power
from rotrnn.nn.fixed_points.mixer import MIXERS, Mixer, Operands, Parts
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm, trusted
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.lagged import Columns, LaggedMapsGrads, lagged_maps, lagged_maps_backward, lagged_products
from rotrnn.ops.pointwise import glu, glu_backward, layer_norm, layer_norm_backward, mask_padding
from rotrnn.ops.selective import selective_scan, selective_scan_backward

GRADIENTS = ("one_step", "implicit")
FEEDBACK = ("mixer", "B", "C", "gate")


class Map(NamedTuple):
    """A map from a token's p_t = W x_t + V y_{t-1} + b: the shape of its values, and their function (ops/lagged.py)."""

    shape: tuple[int, ...]
    function: str

    @property
    def width(self) -> int:
        return int(np.prod(self.shape))


Maps = dict[str, Map]


@dataclass(frozen=True)
class Lagged:
    """Maps ``f(base_t + V y_{t-1})``, their columns side by side in base (B, T, K) and V (K, E), y0 in y_{-1}'s place.

    Of maps that read no y, V and y0 are None.
    """

    maps: Maps
    base: Array
    V: Array | None = None
    y0: Array | None = None
    first: Array | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", None if self.V is None or self.y0 is None else dense(self.y0, self.V))

    @property
    def columns(self) -> list[Columns]:
        return [Columns(one.width, one.function) for one in self.maps.values()]

    def late(self, y: Array) -> Array | None:
        """V y, which is read a step later: not at all where there is one step."""
        return None if self.V is None or y.shape[1] < 2 else dense(y, self.V)

    def __call__(self, late: Array | None, lengths: Steps) -> Parts:
        return self._named(lagged_maps(self.base, late, self.first, self.columns, lengths=lengths))

    def of_output(self, y: Array, lengths: Steps) -> Parts:
        """The maps with V y in one pass, which leaves no `late` for an adjoint."""
        if self.V is None:
            return self(None, lengths)
        return self._named(lagged_products(self.base, y, self.V, self.first, self.columns, lengths=lengths))

    def _named(self, outs: list[Array]) -> Parts:
        named = zip(outs, self.maps.items(), strict=True)
        return {name: out.reshape(*out.shape[:2], *one.shape) for out, (name, one) in named}

    def backward(self, dvalues: Parts, late: Array | None, lengths: Steps) -> LaggedMapsGrads:
        douts = [dvalues[name].reshape(*self.base.shape[:2], one.width) for name, one in self.maps.items()]
        return lagged_maps_backward(douts, self.base, late, self.first, self.columns, lengths=lengths)

    def product_backward(self, grads: LaggedMapsGrads, y: Array) -> tuple[Array | None, Array, Array]:
        """Gradients of y (None for one step), of V and of y0."""
        assert self.V is not None
        assert self.y0 is not None
        assert grads.dfirst is not None
        start = dense_backward(grads.dfirst, self.y0, self.V)
        if grads.dlate is None:
            return None, start.dw, start.dx
        rest = dense_backward(grads.dlate, y, self.V)
        return rest.dx, start.dw + rest.dw, start.dx


class Norm(NamedTuple):
    """Layer norm within the step."""

    scale: Array
    bias: Array
    eps: float


class Applied(NamedTuple):
    """One application y = F(.) and what its adjoint needs."""

    y: Array
    hT: Array
    maps: Parts
    operands: Operands
    mixed: Array
    carries: Array
    late: Array | None
    scanned: Array
    moments: list[Array]


class DepthGrads(NamedTuple):
    """Gradients through one application: of x, of the values of the known maps, of what drives the others, of the
    operands of a constant mixer, of A, skip and norm, of h0, and of the iterate through the mixer's origin."""

    dx: Array
    dknown: Parts
    driven: LaggedMapsGrads
    dconstants: Operands
    dA: Array
    dskip: Array | None
    dnorm: tuple[Array, Array] | None
    dh0: Array
    dorigin: Array


@dataclass(frozen=True)
class MatrixDepth:
    """One step in depth, and its adjoint ("Fixed-Point RNNs", eqs. 11-12; E channels, S states a channel):

        x~_t = Q_t (x_t - y_t) + y_t
        h_t = exp(delta_t A) * h_{t-1} + (delta_t * x~_t) B_t^T
        F(y)_t = h_t C_t + skip * x~_t,     layer-normed with `norm`

    delta, B, C and the parts of Q are maps: `known` ones, and ones `driven` by y. The operands of a mixer that is the
    same for all tokens come as `constants`.
    """

    x: Array
    known: Parts
    driven: Lagged
    A: Array
    skip: Array | None
    norm: Norm | None
    mixer: Mixer
    constants: Operands | None
    h0: Array

    def __call__(self, y: Array, lengths: Steps) -> Array:
        maps = self.known | self.driven.of_output(y, lengths)
        mixed = self.mixer.mix(self._operands(maps), self.x, y, lengths)
        f = selective_scan(mixed, maps["delta"], self.A, maps["B"], maps["C"], self.skip, self.h0, lengths=lengths)
        return self._normed(f, lengths)[0]

    def apply(self, y: Array, lengths: Steps) -> Applied:
        """F(y), with what its adjoint needs."""
        late = self.driven.late(y)
        maps = self.known | self.driven(late, lengths)
        operands = self._operands(maps)
        mixed = self.mixer.mix(operands, self.x, y, lengths)
        scanned, hT, carries = selective_scan(
            mixed, maps["delta"], self.A, maps["B"], maps["C"], self.skip, self.h0,
            lengths=lengths, return_state=True, return_carries=True,
        )  # fmt: skip
        out, *moments = self._normed(scanned, lengths)
        return Applied(out, hT, maps, operands, mixed, carries, late, scanned, moments)

    def backward(self, a: Applied, y: Array, dy: Array, dhT: Array | None, lengths: Steps) -> DepthGrads:
        """From the gradients of the application's y and final state; the y that it was made of is held."""
        dnorm = None
        if self.norm is not None:
            dy, *rest = layer_norm_backward(dy, a.scanned, self.norm.scale, *a.moments, lengths=lengths)
            dnorm = rest[0], rest[1]
        scan = selective_scan_backward(
            dy, a.mixed, a.maps["delta"], self.A, a.maps["B"], a.maps["C"], self.skip, self.h0,
            dhT=dhT, lengths=lengths, carries=a.carries,
        )  # fmt: skip
        mix = self.mixer.mix_backward(a.operands, scan.dx, self.x, y, lengths)
        dmaps = {"delta": scan.ddelta, "B": scan.dB, "C": scan.dC}
        if self.constants is None:
            dmaps |= self.mixer.operands_backward(self._parts(a.maps), a.operands, mix.operands)
        return DepthGrads(
            mix.dx,
            {name: dmaps[name] for name in self.known},
            self.driven.backward(dmaps, a.late, lengths),
            mix.operands if self.constants is not None else (),
            scan.dA,
            scan.dskip,
            dnorm,
            scan.dh0,
            mix.dorigin,
        )

    def _parts(self, maps: Parts) -> Parts:
        return {name: maps[name] for name in self.mixer.parts}

    def _operands(self, maps: Parts) -> Operands:
        return self.mixer.operands(self._parts(maps)) if self.constants is None else self.constants

    def _normed(self, f: Any, lengths: Steps) -> tuple[Array, ...]:
        """f, normed if there is a norm, and the norm's moments."""
        if self.norm is None:
            return (f,)
        return layer_norm(f, self.norm.scale, self.norm.bias, eps=self.norm.eps, lengths=lengths)


class Weights(NamedTuple):
    """Effective weights, folded from the parameters once, and stacked as the products take them."""

    folded: Params
    W_known: Array
    b_known: Array
    W_driven: Array
    b_driven: Array
    V: Array
    V_transposed: Array
    constants: Operands | None


class MatrixSaved(NamedTuple):
    """What forward keeps: the weights; the layer's input and x made of it; the known maps; the step, the iterate before
    its last application and that application; the gate, V y for it, its values and what they gated; and the state."""

    weights: Weights
    inputs: Array
    x: Array
    known: Lagged
    depth: MatrixDepth
    before: Array
    applied: Applied
    gate: Lagged
    gate_late: Array | None
    gate_values: Array
    gated: Array
    lengths: Steps
    report: Report
    state: tuple[Array, Array]

    @property
    def iterations(self) -> Steps:
        return self.report.iterations

    @property
    def residual(self) -> Array:
        return self.report.residual


@dataclass(frozen=True)
class MatrixFixedPoint(Recurrent):
    """A layer that iterates `MatrixDepth` between projections, with a gate that may read the output before it.

    A subclass gives `maps`, which of them y drives (`driven`), and `fold` with its adjoint: from parameters to the
    effective weights W_in (2E, D), W_out (D, E), A (E, S), D (E,); per map n W_n (rows, E), perhaps b_n, and V_n
    (rows, E) if it is driven; V_gate (E, E) if the gate is; scale and bias (E,) of a norm; M of a constant mixer.
    """

    normed: ClassVar[bool]
    """Skip and layer norm are part of the step, residuals those of single steps, and the gate is SiLU; else SiLU is of
    what is gated, y + D * x."""
    feedbacks: ClassVar[tuple[str, ...]] = FEEDBACK
    """What may read the output before."""

    d_state: int = 16
    expand: int = 2
    mixer: str = "householder"
    rank: int = 1
    feedback: tuple[str, ...] = FEEDBACK
    normalise: bool = True
    gradient: str = "one_step"
    tol: float = 0.1
    max_iterations: int = 100
    train_iterations: int | str | None = None
    gamma_scale: float = 1.0
    damping: str = "adaptive"
    stop: str = "sequence"
    site: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "expand", "rank")
        self.check_sizes("site", least=0)
        for key, value, known in (("mixer", self.mixer, MIXERS), ("gradient", self.gradient, GRADIENTS)):
            if value not in known:
                raise ValueError(f"{type(self).__name__}: {key}={value!r}, expected one of {', '.join(known)}")
        if not set(self.feedback) <= set(self.feedbacks):
            expected = f"some of {', '.join(self.feedbacks)}"
            raise ValueError(f"{type(self).__name__}: feedback={self.feedback!r}, expected {expected}")
        _ = self._mixer, self._iteration  # they check their settings

    @property
    def width(self) -> int:
        """E, the channels between the projections."""
        return self.expand * self.d_model

    @property
    @abstractmethod
    def maps(self) -> Maps:
        """delta (E,), B and C (S,), and the mixer's parts where it varies."""

    @property
    def driven(self) -> tuple[str, ...]:
        """The maps that read the output before, and "gate" if it does."""
        names = {"lambda": ("delta",), "mixer": tuple(self.mixer_maps)}
        return tuple(name for one in self.feedback for name in names.get(one, (one,)))

    @abstractmethod
    def fold(self, params: Params) -> Params:
        """Effective weights by name."""

    @abstractmethod
    def fold_backward(self, params: Params, dfolded: Params) -> Params:
        """Gradients of the parameters from those of the effective weights."""

    @property
    def _mixer(self) -> Mixer:
        return MIXERS[self.mixer](self.width, self.rank)

    @property
    def _iteration(self) -> Iteration:
        limits = self.max_iterations, self.train_iterations
        return Iteration(self.tol, *limits, self.damping, self.stop, self.gamma_scale)

    @property
    def mixer_maps(self) -> dict[str, tuple[int, ...]]:
        """The mixer's parts, where they are maps."""
        return self._mixer.parts if self._mixer.varying else {}

    def _split(self) -> tuple[Maps, Maps]:
        """The maps that y does not drive, and those that it does."""
        known = {name: one for name, one in self.maps.items() if name not in self.driven}
        return known, {name: one for name, one in self.maps.items() if name in self.driven}

    @property
    def state_form(self) -> StateForm:
        return StateArray("h", (self.width, self.d_state)), StateArray("y", (self.width,))

    def input_shape(self, saved: MatrixSaved) -> tuple[int, ...]:
        return tuple(saved.inputs.shape)

    def prepare(self, params: Params) -> Weights:
        folded = self.fold(params)
        dtype = folded["W_in"].dtype
        known, driven = self._split()

        def rows(kind: str, maps: Maps) -> Array:
            weights = [folded[f"{kind}_{name}"].reshape(one.width, self.width) for name, one in maps.items()]
            return np.concatenate([np.zeros((0, self.width), dtype), *weights])

        def biases(maps: Maps) -> Array:
            zero = {name: np.zeros(one.width, dtype) for name, one in maps.items()}
            return np.concatenate([np.zeros(0, dtype), *(folded.get(f"b_{n}", zero[n]).ravel() for n in maps)])

        V = rows("V", driven)
        mixer = self._mixer
        constants = None if mixer.varying else mixer.operands({name: folded[name] for name in mixer.parts})
        stacked = rows("W", known), biases(known), rows("W", driven), biases(driven)
        return Weights(folded, *stacked, V, np.ascontiguousarray(V.T), constants)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None, start: Array | None = None
    ) -> tuple[Array, MatrixSaved]:
        """(y (B, T, D), saved) for x (B, T, D); `state` is (h (B, E, S), y (B, E) of the step before). `start`
        (B, T, E) is the first iterate, else 0.

        Warns `NotConverged` where the fixed point is not reached.
        """
        return self._forward(trusted(self.prepare)(params), x, ctx, state, start)

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        """A fixed point of one token: sequential inference, where `forward` is the parallel one."""
        weights = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._forward(weights, x_t[:, None], EVALUATION, state)
        return y[:, 0], saved.state

    def inference_gap(self, params: Params, x: Array) -> float:
        """How far outputs of parallel and of sequential inference are apart, of the largest output (Fig. 5)."""
        weights = self.prepare(params)
        parallel, _ = self._forward(weights, x, EVALUATION, None)
        state, sequential = None, np.zeros_like(parallel)
        for t in range(x.shape[1]):
            sequential[:, t], state = self.step(params, state, x[:, t], weights)
        size = float(np.max(np.abs(parallel), initial=0.0))
        return float(np.max(np.abs(parallel - sequential), initial=0.0)) / (size or 1.0)

    def _forward(
        self, weights: Weights, inputs: Array, ctx: Context, state: State, start: Array | None = None
    ) -> tuple[Array, MatrixSaved]:
        args = Boundary(f"{type(self).__name__}.forward")
        E, folded = self.width, weights.folded
        for letter, size, source in (
            ("D", self.d_model, "d_model"),
            ("E", E, "expand"),
            ("S", self.d_state, "d_state"),
        ):
            args.bind(letter, size, source)
        u = args.array("x", inputs, "B T D")
        h0, y0 = (None, None) if state is None else state
        h0, y0 = args.optional("state.0", h0, "B E S"), args.optional("state.1", y0, "B E")
        start = args.optional("start", start, "B T E")
        steps = args.lengths(ctx.lengths)
        B, T = u.shape[:2]
        lengths = lengths_of(ctx, u)
        u, h0, y0, start, _ = args.common(u, h0, y0, start, folded["W_in"])
        u = mask_padding(u, steps)
        h0 = np.zeros((B, E, self.d_state), u.dtype) if h0 is None else h0
        y0 = np.zeros((B, E), u.dtype) if y0 is None else y0
        x, z = dense(u, folded["W_in"][:E]), dense(u, folded["W_in"][E:])
        known_maps, driven_maps = self._split()
        known = Lagged(known_maps, dense(x, weights.W_known, weights.b_known))
        depth = MatrixDepth(
            x,
            known(None, lengths),
            Lagged(driven_maps, dense(x, weights.W_driven, weights.b_driven), weights.V, y0),
            folded["A"],
            folded["D"] if self.normed else None,
            Norm(folded["scale"], folded["bias"], self.norm_eps) if self.normed else None,
            self._mixer,
            weights.constants,
            h0,
        )
        first = np.zeros((B, T, E), u.dtype) if start is None else mask_padding(start, lengths)
        solution = solve(
            depth, first, self._iteration, ctx,
            site=self.site, name=type(self).__name__, each_step=self.normed,
        )  # fmt: skip
        applied = depth.apply(solution.y, lengths)
        gate = Lagged({"gate": Map((E,), "linear")}, z, folded.get("V_gate"), y0)
        gate_late = gate.late(applied.y)
        gate_values = gate(gate_late, lengths)["gate"]
        value, through = self._gating(applied.y, gate_values, x, folded)
        gated = glu(value * through, through)
        last = np.where(lengths[:, None] > 0, applied.y[np.arange(B), lengths - 1] if T else 0, y0).astype(u.dtype)
        saved = MatrixSaved(
            weights, u, x, known, depth, solution.y, applied, gate, gate_late, gate_values, gated, lengths,
            solution.report, (applied.hT, last),
        )  # fmt: skip
        return dense(gated, folded["W_out"]), saved

    @property
    def norm_eps(self) -> float:
        """Of the layer norm, if there is one."""
        return 1e-5

    def _gating(self, y: Array, gate: Array, x: Array, folded: Params) -> tuple[Array, Array]:
        """(v, w) of the gated output ``v * SiLU(w)``."""
        return (y, gate) if self.normed else (gate, y + folded["D"] * x)

    def backward(
        self, params: Params, saved: MatrixSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        weights, depth, applied, lengths = saved.weights, saved.depth, saved.applied, saved.lengths
        folded, x = weights.folded, saved.x
        args = Boundary(f"{type(self).__name__}.backward")
        for letter, size in zip("BTD", saved.inputs.shape, strict=True):
            args.bind(letter, size, "x")
        args.bind("E", self.width, "expand")
        args.bind("S", self.d_state, "d_state")
        dhT, dlast = (None, None) if dstate is None else dstate
        dout = args.array("dy", dy, "B T D")
        dhT, dlast = args.optional("dstate.0", dhT, "B E S"), args.optional("dstate.1", dlast, "B E")
        dout, dhT, dlast, _ = args.common(dout, dhT, dlast, x)
        out = dense_backward(mask_padding(dout, lengths), saved.gated, folded["W_out"])
        dfolded: Params = {"W_out": out.dw}
        value, through = self._gating(applied.y, saved.gate_values, x, folded)
        dproduct, dthrough = glu_backward(out.dx, value * through, through)
        dthrough += dproduct * value
        dvalue = dproduct * through
        if self.normed:
            dy, dgate, dx = dvalue, dthrough, np.zeros_like(x)
        else:
            dy, dgate, dx = dthrough, dvalue, dthrough * folded["D"]
            dfolded["D"] = (dthrough * x).sum((0, 1))
        of_gate = saved.gate.backward({"gate": dgate}, saved.gate_late, lengths)
        dy0 = np.zeros((len(x), self.width), x.dtype)
        if saved.gate.V is not None:
            dy_late, dfolded["V_gate"], dy0 = saved.gate.product_backward(of_gate, applied.y)
            dy = dy if dy_late is None else dy + dy_late
        if dlast is not None:
            some = np.flatnonzero(lengths)
            dy[some, lengths[some] - 1] += dlast[some]
            dy0 += np.where(lengths[:, None] > 0, 0, dlast)
        if self.gradient == "implicit":
            dy = self._implicit(saved, dy, dhT)
        grads = depth.backward(applied, saved.before, dy, dhT, lengths)
        dx += grads.dx
        dknown = saved.known.backward(grads.dknown, None, lengths).dbase
        _, dV, dy0_driven = depth.driven.product_backward(grads.driven, saved.before)
        for maps, dbase, W in (
            (saved.known.maps, dknown, weights.W_known),
            (depth.driven.maps, grads.driven.dbase, weights.W_driven),
        ):
            back = dense_backward(dbase, x, W)
            dx += back.dx
            dfolded |= unstacked("W", maps, back.dw) | unstacked("b", maps, back.dbias)
        dfolded |= unstacked("V", depth.driven.maps, dV)
        dfolded["A"] = grads.dA
        if grads.dnorm is not None:
            dfolded["D"], (dfolded["scale"], dfolded["bias"]) = grads.dskip, grads.dnorm
        if weights.constants is not None:
            parts = {name: folded[name] for name in depth.mixer.parts}
            dfolded |= depth.mixer.operands_backward(parts, weights.constants, grads.dconstants)
        of_x = dense_backward(dx, saved.inputs, folded["W_in"][: self.width])
        of_z = dense_backward(of_gate.dbase, saved.inputs, folded["W_in"][self.width :])
        dfolded["W_in"] = np.concatenate([of_x.dw, of_z.dw])
        dparams = self.fold_backward(params, dfolded)
        return of_x.dx + of_z.dx, {name: dparams[name] for name in self.shapes}, (grads.dh0, dy0 + dy0_driven)

    def _implicit(self, saved: MatrixSaved, dy: Array, dhT: Array | None) -> Array:
        """``v = dy + J^T v``, J of the last application, with what comes back through its final state."""

        def adjoint(v: Array, lengths: Steps) -> Array:
            grads = saved.depth.backward(saved.applied, saved.before, v, dhT, lengths)
            back = np.add(grads.dorigin, dy, out=grads.dorigin)
            if grads.driven.dlate is not None:
                back += dense(grads.driven.dlate, saved.weights.V_transposed)
            return back

        name, size = f"{type(self).__name__}.backward", exponents(dy, dhT)
        dy, dhT = times_power(dy, -size), None if dhT is None else times_power(dhT, -size)
        return times_power(solve(adjoint, dy.copy(), self._iteration, Context(saved.lengths), name=name).y, size)

    def report(self, saved: MatrixSaved) -> dict[str, float]:
        return saved.report.numbers()


def unstacked(kind: str, maps: Maps, rows: Array) -> Params:
    """Rows of stacked weights by the names of their maps, ``kind_name``."""
    ends = np.cumsum([one.width for one in maps.values()])
    return {f"{kind}_{name}": part for name, part in zip(maps, np.split(rows, ends[:-1]), strict=False)}
