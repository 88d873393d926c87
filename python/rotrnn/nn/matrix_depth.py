"""The engine of Bedouin and FPMamba: Fixed-Point RNNs with a matrix state, whose step in depth is a selective scan.

A layer is a table of maps (what of a token, and of the output before it, drives the step) and a folding of its
parameters into effective weights, with the adjoint of that; all else is here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.iteration import Iteration, Report, Steps, solve
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State
from rotrnn.nn.mixer import MIXERS, Mixer, Operands, Parts
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.lagged import Columns, lagged_maps, lagged_maps_backward
from rotrnn.ops.pointwise import glu, glu_backward, layer_norm, layer_norm_backward, mask_padding
from rotrnn.ops.selective import selective_scan, selective_scan_backward

GRADIENTS = ("one_step", "implicit")
FEEDBACK = ("mixer", "B", "C", "gate")


class Map(NamedTuple):
    """A map from a token's p_t = W x_t + V y_{t-1} + b: the shape of its values, and their function (ops/lagged.py)."""

    shape: tuple[int, ...]
    function: str

    @property
    def columns(self) -> Columns:
        return Columns(int(np.prod(self.shape)), self.function)


class Norm(NamedTuple):
    """Layer norm within the step."""

    scale: Array
    bias: Array
    eps: float


class Applied(NamedTuple):
    """One application y = F(.) and what its adjoint needs."""

    y: Array
    hT: Array
    parts: Parts
    operands: Operands
    mixed: Array
    carries: Array
    late: Array | None
    scanned: Array
    moments: tuple[Array, Array] | None


class DepthGrads(NamedTuple):
    """Gradients through one application: of what `MatrixDepth` is made of, and of y through the mixer's origin."""

    dx: Array
    dmaps: Parts
    dbase: Array | None
    dlate: Array | None
    dfirst: Array | None
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

    delta, B, C and the parts of Q are `known`, or `driven` by y: functions of ``base_t + V y_{t-1}`` (first in place of
    V y_{-1}). A mixer that is the same for all tokens comes as `constants`.
    """

    x: Array
    known: Parts
    driven: dict[str, Map]
    base: Array | None
    V: Array | None
    V_transposed: Array | None
    first: Array | None
    A: Array
    skip: Array | None
    norm: Norm | None
    mixer: Mixer
    constants: Operands | None
    h0: Array

    def __call__(self, y: Array, lengths: Steps) -> Array:
        maps, _ = self._maps(y, lengths)
        mixed = self.mixer.mix(self._operands(maps)[1], self.x, y, lengths)
        f = selective_scan(mixed, maps["delta"], self.A, maps["B"], maps["C"], self.skip, self.h0, lengths=lengths)
        assert isinstance(f, np.ndarray)
        return f if self.norm is None else self._normed(f, lengths)[0]

    def apply(self, y: Array, lengths: Steps) -> Applied:
        """F(y), with what its adjoint needs."""
        maps, late = self._maps(y, lengths)
        parts, operands = self._operands(maps)
        mixed = self.mixer.mix(operands, self.x, y, lengths)
        scanned, hT, carries = selective_scan(
            mixed, maps["delta"], self.A, maps["B"], maps["C"], self.skip, self.h0,
            lengths=lengths, return_state=True, return_carries=True,
        )  # fmt: skip
        out, *moments = (scanned,) if self.norm is None else self._normed(scanned, lengths)
        parts = {**parts, **{name: maps[name] for name in ("delta", "B", "C")}}
        kept = (moments[0], moments[1]) if moments else None
        return Applied(out, hT, parts, operands, mixed, carries, late, scanned, kept)

    def backward(self, a: Applied, y: Array, dy: Array, dhT: Array | None, lengths: Steps) -> DepthGrads:
        """From the gradients of the application's y and final state, the y that it was made of held."""
        dnorm = None
        if self.norm is not None:
            assert a.moments is not None
            grads_norm = layer_norm_backward(dy, a.scanned, self.norm.scale, *a.moments, lengths=lengths)
            dy, *rest = grads_norm
            dnorm = rest[0], rest[1]
        scan = selective_scan_backward(
            dy, a.mixed, a.parts["delta"], self.A, a.parts["B"], a.parts["C"], self.skip, self.h0,
            dhT=dhT, lengths=lengths, carries=a.carries,
        )  # fmt: skip
        mix = self.mixer.mix_backward(a.operands, scan.dx, self.x, y, lengths)
        dmaps = {"delta": scan.ddelta, "B": scan.dB, "C": scan.dC}
        dconstants: Operands = ()
        if self.constants is not None:
            dconstants = mix.operands
        else:
            parts = {name: a.parts[name] for name in self.mixer.parts}
            dmaps |= self.mixer.operands_backward(parts, a.operands, mix.operands)
        dmaps = {name: d.reshape(*d.shape[:2], int(np.prod(d.shape[2:]))) for name, d in dmaps.items()}
        dbase = dlate = dfirst = None
        if self.driven:
            assert self.base is not None
            douts = [dmaps.pop(name) for name in self.driven]
            dbase, dlate, dfirst = lagged_maps_backward(
                douts, self.base, a.late, self.first, self._columns, lengths=lengths
            )
        return DepthGrads(
            mix.dx, dmaps, dbase, dlate, dfirst, dconstants, scan.dA, scan.dskip, dnorm, scan.dh0, mix.dorigin
        )

    def pull(self, a: Applied, y: Array, dy: Array, dhT: Array | None, lengths: Steps) -> Array:
        """The gradient of the y that an application was made of."""
        grads = self.backward(a, y, dy, dhT, lengths)
        if grads.dlate is None:
            return grads.dorigin
        assert self.V_transposed is not None
        return np.add(grads.dorigin, dense(grads.dlate, self.V_transposed), out=grads.dorigin)

    @property
    def _columns(self) -> list[Columns]:
        return [one.columns for one in self.driven.values()]

    def _maps(self, y: Array, lengths: Steps) -> tuple[Parts, Array | None]:
        """Every map of the tokens, and V y, which is read a step later: not at all where there is one step."""
        if not self.driven:
            return self.known, None
        assert self.base is not None
        assert self.V is not None
        late = dense(y, self.V) if y.shape[1] > 1 else None
        outs = lagged_maps(self.base, late, self.first, self._columns, lengths=lengths)
        return {**self.known, **shaped(outs, self.driven)}, late

    def _operands(self, maps: Parts) -> tuple[Parts, Operands]:
        if self.constants is not None:
            return {}, self.constants
        parts = {name: maps[name] for name in self.mixer.parts}
        return parts, self.mixer.operands(parts)

    def _normed(self, f: Array, lengths: Steps) -> tuple[Array, Array, Array]:
        assert self.norm is not None
        return layer_norm(f, self.norm.scale, self.norm.bias, eps=self.norm.eps, lengths=lengths)


def shaped(outs: list[Array], maps: dict[str, Map]) -> Parts:
    """The columns of maps as arrays of their shapes."""
    return {name: out.reshape(*out.shape[:2], *one.shape) for out, (name, one) in zip(outs, maps.items(), strict=True)}


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
    """What forward keeps: the weights; the layer's input, x and z made of it; the known maps before their functions;
    the step, the iterate before its last application and that application; what the gate was made of; and the state."""

    weights: Weights
    inputs: Array
    x: Array
    z: Array
    known_base: Array
    depth: MatrixDepth
    before: Array
    applied: Applied
    y0: Array
    gate_late: Array | None
    gate: Array
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
        if isinstance(self.feedback, str) or not set(self.feedback) <= set(self.feedbacks):
            expected = f"some of {', '.join(self.feedbacks)}"
            raise ValueError(f"{type(self).__name__}: feedback={self.feedback!r}, expected {expected}")
        object.__setattr__(self, "feedback", tuple(self.feedback))  # a recipe gives a list
        if not isinstance(self.normalise, bool):
            raise ValueError(f"{type(self).__name__}: normalise={self.normalise!r}, expected True or False")
        _ = self._mixer, self._iteration  # they check their settings

    @property
    def width(self) -> int:
        """E, the channels between the projections."""
        return self.expand * self.d_model

    @property
    @abstractmethod
    def maps(self) -> dict[str, Map]:
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

    def _split(self) -> tuple[dict[str, Map], dict[str, Map]]:
        """The maps that y does not drive, and those that it does."""
        known = {name: one for name, one in self.maps.items() if name not in self.driven}
        return known, {name: one for name, one in self.maps.items() if name in self.driven}

    def prepare(self, params: Params) -> Weights:
        self.check_params(params)
        folded = self.fold(params)
        known, driven = self._split()

        def rows(kind: str, maps: dict[str, Map]) -> Array:
            shaped_rows = [folded[f"{kind}_{name}"].reshape(-1, self.width) for name in maps]
            return np.concatenate([np.zeros((0, self.width), folded["W_in"].dtype), *shaped_rows])

        def biases(maps: dict[str, Map]) -> Array:
            zero = np.zeros(0, folded["W_in"].dtype)
            widths = {name: one.columns.width for name, one in maps.items()}
            given = {name: folded.get(f"b_{name}", np.zeros(width, zero.dtype)) for name, width in widths.items()}
            return np.concatenate([zero, *(bias.ravel() for bias in given.values())])

        V = rows("V", driven)
        mixer = self._mixer
        constants = None if mixer.varying else mixer.operands({name: folded[name] for name in mixer.parts})
        stacked = rows("W", known), biases(known), rows("W", driven), biases(driven)
        return Weights(folded, *stacked, V, np.ascontiguousarray(V.T), constants)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, MatrixSaved]:
        """(y (B, T, D), saved) for x (B, T, D); `state` is (h (B, E, S), y (B, E) of the step before).

        Warns `NotConverged` where the fixed point is not reached.
        """
        return self._forward(self.prepare(params), x, ctx, state)

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        """A fixed point of one token: sequential inference, where `forward` is the parallel one."""
        args = Boundary(f"{type(self).__name__}.step")
        args.bind("D", self.d_model, "d_model")
        x = args.array("x_t", x_t, "B D")[:, None]
        y, saved = self._forward(self.prepare(params) if prepared is None else prepared, x, EVALUATION, state)
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

    def _forward(self, weights: Weights, inputs: Array, ctx: Context, state: State) -> tuple[Array, MatrixSaved]:
        args = Boundary(f"{type(self).__name__}.forward")
        E, folded = self.width, weights.folded
        for letter, size, source in (
            ("D", self.d_model, "d_model"),
            ("E", E, "expand"),
            ("S", self.d_state, "d_state"),
        ):
            args.bind(letter, size, source)
        u = args.array("x", inputs, "B T D")
        if state is not None and not (isinstance(state, tuple) and len(state) == 2):
            raise ValueError(f"{args.op}: state is {type(state).__name__}, expected a pair (h, y)")
        h0, y0 = (None, None) if state is None else state
        h0, y0 = args.optional("state.0", h0, "B E S"), args.optional("state.1", y0, "B E")
        steps = args.lengths(ctx.lengths)
        B, T = u.shape[:2]
        lengths = np.full(B, T, np.int64) if steps is None else steps
        u, h0, y0, _ = args.common(u, h0, y0, folded["W_in"])
        u = mask_padding(u, steps)
        h0 = np.zeros((B, E, self.d_state), u.dtype) if h0 is None else h0
        y0 = np.zeros((B, E), u.dtype) if y0 is None else y0
        x, z = dense(u, folded["W_in"][:E]), dense(u, folded["W_in"][E:])
        depth, known_base = self._depth(weights, x, h0, y0, lengths)
        solution = solve(
            depth, np.zeros((B, T, E), u.dtype), self._iteration, ctx,
            site=self.site, name=type(self).__name__, each_step=self.normed,
        )  # fmt: skip
        applied = depth.apply(solution.y, lengths)
        y, gate, gate_late = applied.y, z, None
        if "gate" in self.driven:
            gate_late = dense(y, folded["V_gate"]) if T > 1 else None
            first = dense(y0, folded["V_gate"])
            (gate,) = lagged_maps(z, gate_late, first, [Columns(E, "linear")], lengths=lengths)
        value, through = self._gating(y, gate, x, folded)
        gated = glu(value * through, through)
        last = np.where(lengths[:, None] > 0, y[np.arange(B), lengths - 1] if T else 0, y0).astype(u.dtype)
        saved = MatrixSaved(
            weights, u, x, z, known_base, depth, solution.y, applied, y0, gate_late, gate, gated, lengths,
            solution.report, (applied.hT, last),
        )  # fmt: skip
        return dense(gated, folded["W_out"]), saved

    def _depth(self, weights: Weights, x: Array, h0: Array, y0: Array, lengths: Steps) -> tuple[MatrixDepth, Array]:
        folded = weights.folded
        known, driven = self._split()
        known_base = dense(x, weights.W_known, weights.b_known)
        columns = [one.columns for one in known.values()]
        depth = MatrixDepth(
            x,
            shaped(lagged_maps(known_base, None, None, columns, lengths=lengths), known),
            driven,
            dense(x, weights.W_driven, weights.b_driven) if driven else None,
            weights.V if driven else None,
            weights.V_transposed if driven else None,
            dense(y0, weights.V) if driven else None,
            folded["A"],
            folded["D"] if self.normed else None,
            Norm(folded["scale"], folded["bias"], self.norm_eps) if self.normed else None,
            self._mixer,
            weights.constants,
            h0,
        )
        return depth, known_base

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
        folded, x, y = weights.folded, saved.x, applied.y
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
        value, through = self._gating(y, saved.gate, x, folded)
        dproduct, dthrough = glu_backward(out.dx, value * through, through)
        dthrough += dproduct * value
        dvalue = dproduct * through
        if self.normed:
            dy, dz, dx = dvalue, dthrough, np.zeros_like(x)
        else:
            dy, dz, dx = dthrough, dvalue, dthrough * folded["D"]
            dfolded["D"] = (dthrough * x).sum((0, 1))
        dy0 = np.zeros_like(saved.y0)
        if "gate" in self.driven:
            first = dense(saved.y0, folded["V_gate"])
            columns = [Columns(self.width, "linear")]
            gate = lagged_maps_backward([dz], saved.z, saved.gate_late, first, columns, lengths=lengths)
            dz = gate.dbase
            dy_late, dfolded["V_gate"], dy0 = self._lagged_product(
                gate.dlate, gate.dfirst, y, saved.y0, folded["V_gate"]
            )
            dy = dy if dy_late is None else dy + dy_late
        some = np.flatnonzero(lengths)
        if dlast is not None:
            dy[some, lengths[some] - 1] += dlast[some]
            dy0 += np.where(lengths[:, None] > 0, 0, dlast)
        if self.gradient == "implicit":
            dy = self._implicit(saved, dy, dhT)
        grads = depth.backward(applied, saved.before, dy, dhT, lengths)
        dx += grads.dx
        known, driven = self._split()
        if known:
            douts = [grads.dmaps[name] for name in known]
            columns = [one.columns for one in known.values()]
            base = lagged_maps_backward(douts, saved.known_base, None, None, columns, lengths=lengths).dbase
            self._unstack(dfolded, known, "W", "b", dense_backward(base, x, weights.W_known), dx)
        if driven:
            assert grads.dbase is not None
            self._unstack(dfolded, driven, "W", "b", dense_backward(grads.dbase, x, weights.W_driven), dx)
            _, dV, dfirst = self._lagged_product(grads.dlate, grads.dfirst, saved.before, saved.y0, weights.V)
            dy0 = dy0 + dfirst
            self._unstack(dfolded, driven, "V", None, (None, dV, None), None)
        dfolded["A"] = grads.dA
        if self.normed:
            assert grads.dnorm is not None
            dfolded["D"], (dfolded["scale"], dfolded["bias"]) = grads.dskip, grads.dnorm
        if weights.constants is not None:
            parts = {name: folded[name] for name in self._mixer.parts}
            dfolded |= self._mixer.operands_backward(parts, weights.constants, grads.dconstants)
        E = self.width
        of_x = dense_backward(dx, saved.inputs, folded["W_in"][:E])
        of_z = dense_backward(dz, saved.inputs, folded["W_in"][E:])
        dfolded["W_in"] = np.concatenate([of_x.dw, of_z.dw])
        dparams = self.fold_backward(params, dfolded)
        return of_x.dx + of_z.dx, {name: dparams[name] for name in self.shapes}, (grads.dh0, dy0)

    @staticmethod
    def _lagged_product(
        dlate: Array | None, dfirst: Array | None, y: Array, y0: Array, V: Array
    ) -> tuple[Array | None, Array, Array]:
        """Gradients of y, V and y0 from those of V y, read a step later, and of V y0, read first."""
        start = dense_backward(np.zeros((len(y0), len(V)), y0.dtype) if dfirst is None else dfirst, y0, V)
        if dlate is None:
            return None, start.dw, start.dx
        rest = dense_backward(dlate, y, V)
        return rest.dx, start.dw + rest.dw, start.dx

    @staticmethod
    def _unstack(
        dfolded: Params, maps: dict[str, Map], weight: str, bias: str | None, grads: Any, dx: Array | None
    ) -> None:
        """Gradients of stacked weights by name; dx is added to."""
        back, dw, dbias = grads
        if dx is not None:
            dx += back
        lo = 0
        for name, one in maps.items():
            rows = slice(lo, lo + one.columns.width)
            dfolded[f"{weight}_{name}"] = dw[rows]
            if bias is not None:
                dfolded[f"{bias}_{name}"] = dbias[rows]
            lo = rows.stop

    def _implicit(self, saved: MatrixSaved, dy: Array, dhT: Array | None) -> Array:
        """``v = dy + J^T v``, J of the last application, with what comes back through its final state."""

        def adjoint(v: Array, lengths: Steps) -> Array:
            back = saved.depth.pull(saved.applied, saved.before, v, dhT, lengths)
            return np.add(back, dy, out=back)

        name = f"{type(self).__name__}.backward"
        return solve(adjoint, dy.copy(), self._iteration, Context(saved.lengths), name=name).y

    def report(self, saved: MatrixSaved) -> dict[str, float]:
        return saved.report.numbers()
