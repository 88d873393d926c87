"""Base class of Bedouin and FPMamba: Fixed-Point RNNs with a matrix state, whose step in depth is a selective scan.

A layer defines a table of maps (the functions of a token and of the previous output that enter the step), and the
folding of its parameters into effective weights with its adjoint. Everything else is here. Forward has three parts, and
backward runs their adjoints in reverse order: `projection` (computes what depends on x only), `matrix_depth` (the step
in depth, and its iteration to the fixed point y), and `gate` (gates y).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.convolution import conv_shapes, conv_state, emit_convolved
from rotrnn.nn.fixed_points.gate import GateSaved, gate, gate_backward
from rotrnn.nn.fixed_points.iteration import (
    Iteration,
    Report,
    Steps,
    add_to_last_steps,
    at_once,
    check_output,
    check_settings,
    in_one_call,
    last_steps,
    lengths_of,
    solve,
)
from rotrnn.nn.fixed_points.maps import MACHINE, Lagged, Maps, emit_sums, flattened, lagged
from rotrnn.nn.fixed_points.matrix_depth import Applied, MatrixDepth, Norm
from rotrnn.nn.fixed_points.mixer import MIXERS, Mixer
from rotrnn.nn.fixed_points.projection import (
    Projected,
    ProjectedGrads,
    Weights,
    project,
    project_backward,
    stack,
    unstack,
)
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    mask_steps,
    spectrum,
    trusted,
)
from rotrnn.nn.listing import Listing
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import mask_padding

GRADIENTS = ("one_step", "implicit")
FEEDBACK = ("mixer", "B", "C", "gate")


class MatrixSaved(NamedTuple):
    """Saved for backward: the weights; the layer's input and its projections; the known maps; the step, the iterate
    before its last application, and this application; the gate, if it is outside of the loop; and the state.

    `iterate` (B, T, E), the fixed point y, is the output of the last application, and `report` describes the iteration,
    as for all layers that iterate (`rotrnn.nn.fixed_points.iteration.Iterated`).
    """

    weights: Weights
    inputs: Array
    projected: Projected
    known: Lagged
    depth: MatrixDepth
    before: Array
    applied: Applied
    gate: GateSaved | None
    lengths: Steps
    report: Report
    state: tuple[Array, ...]

    @property
    def iterate(self) -> Array:
        return self.applied.y

    @property
    def iterations(self) -> Steps:
        return self.report.iterations

    @property
    def residual(self) -> Array:
        return self.report.residual


@dataclass(frozen=True)
class MatrixFixedPoint(Recurrent):
    """A layer that iterates `MatrixDepth` between projections, with a gate that may depend on the previous output.

    A subclass implements `maps`, `driven` (which of them depend on y), and `fold` with its adjoint, from parameters to
    the effective weights: W_in (2E, D), W_out (D, E), A (E, S), D (E,); for each map n, W_n (rows, E), optionally b_n,
    and V_n (rows, E) if it is driven; V_gate (E, E) if the gate is driven; scale and, of a layer norm, bias (E,); M of
    a constant mixer; conv_w (E, d_conv) and conv_bias (E,) with a convolution. Maps may read more channels than the E
    of x, from rows of W_in between those of x and z: W_n then has columns for these, too, and the first `convolved` of
    all are convolved.
    """

    normed: ClassVar[bool]
    """If true, skip and layer norm are part of the step, residuals are those of single time steps, and the gate goes
    through SiLU. If false, the gated value y + D * x goes through SiLU."""
    solvers: ClassVar[tuple[str, ...]] = ("iteration", "auto")
    """Values of `solver`."""
    feedbacks: ClassVar[tuple[str, ...]] = FEEDBACK
    """Parts that may depend on the previous output."""

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
    d_conv: int = 0
    symmetric: bool = False
    negative: bool = False
    mixer_silu: bool = False
    unit_eps: float = 0.0
    spectral: bool = False
    tile: int | None = None
    solver: str = "iteration"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("solver", self.solvers)
        if self.normed and self.damping == "anderson":
            raise ValueError(
                f"{type(self).__name__}: damping='anderson', expected another one: with a norm in the loop, "
                "accelerated steps may leave the surroundings of a fixed point"
            )
        if self.solver != "iteration" and self.tile is not None:
            name = type(self).__name__
            raise ValueError(f"{name}: tile={self.tile!r}, expected None with solver={self.solver!r}")
        self.check_sizes("d_state", "expand", "rank", "tile")
        self.check_sizes("site", "d_conv", least=0)
        self.check_choice("mixer", MIXERS)
        self.check_choice("gradient", GRADIENTS)
        self.check_parts("feedback", self.feedbacks)
        check_settings(self)
        if self.symmetric and not ("mixer" in self.feedback and self._mixer.varying):
            raise ValueError(
                f"{type(self).__name__}: symmetric=True with mixer={self.mixer!r} and feedback={self.feedback!r}, "
                "expected feedback to a mixer that can vary"
            )

    @property
    def width(self) -> int:
        """E, the number of channels between the projections."""
        return self.expand * self.d_model

    @property
    @abstractmethod
    def maps(self) -> Maps:
        """Returns the maps: delta (E,), B and C (S,), and the mixer's parts if it varies."""

    @property
    def driven(self) -> tuple[str, ...]:
        """Names of the maps that depend on the previous output, and "gate" if it does."""
        names = {"lambda": ("delta",), "mixer": tuple(self.mixer_maps)}
        return tuple(name for one in self.feedback for name in names.get(one, (one,)))

    @abstractmethod
    def fold(self, params: Params) -> Folded[Params]:
        """Returns the effective weights by name."""

    @abstractmethod
    def fold_backward(self, params: Params, folded: Folded[Params], dweights: Params) -> Params:
        """Adjoint of `fold`: returns the gradients of the parameters."""

    @property
    def direct(self) -> bool:
        """Whether the fixed point is found directly, and not by iteration."""
        return False

    @property
    def _tile(self) -> int | None:
        """The number of steps that are iterated together; None for all."""
        return 1 if self.solver == "auto" else self.tile

    @property
    def _mixer(self) -> Mixer:
        return MIXERS[self.mixer](self.width, self.rank, eps=self.unit_eps, spectral=self.spectral)

    @property
    def _iteration(self) -> Iteration:
        limits = self.max_iterations, self.train_iterations
        rules = self.damping, self.stop
        if self.solver == "auto":
            rules = "adaptive" if self.normed else "anderson", "sequence"
        return Iteration(self.tol, *limits, *rules, self.gamma_scale)

    @property
    def _adjoint_iteration(self) -> Iteration:
        """The iteration of the adjoint, which is linear, with a norm in the loop or without."""
        return replace(self._iteration, damping="anderson") if self.solver == "auto" else self._iteration

    def together(self, ctx: Context) -> bool:
        return self._iteration.ends_together

    @property
    def mixer_maps(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the mixer's parts, if they are maps."""
        return self._mixer.parts if self._mixer.varying else {}

    def _split(self) -> tuple[Maps, Maps]:
        """Returns the maps that do not depend on y, and those that do; the direct solver takes all but delta for such
        that do."""
        known = {name: one for name, one in self.maps.items() if name not in self.driven}
        if self.direct:
            known = {"delta": self.maps["delta"]}
        return known, {name: one for name, one in self.maps.items() if name not in known}

    @property
    def conv_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parameters of the convolution, if there is one."""
        return conv_shapes(self.convolved, self.d_conv)

    @property
    def convolved(self) -> int:
        """The number of channels of the convolution."""
        return self.width

    @property
    def state_form(self) -> StateForm:
        own = StateArray("h", (self.width, self.d_state)), StateArray("y", (self.width,))
        return *own, *conv_state(self.convolved, self.d_conv)

    def prepare(self, params: Params) -> Weights:
        return stack(self.fold(params), *self._split(), self._mixer, composed=self.direct and not self.d_conv)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None, start: Array | None = None
    ) -> tuple[Array, MatrixSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D). `state` is (h (B, E, S), y (B, E)) of the previous step, and
        with a convolution its last inputs (B, d_conv - 1, `convolved`). `start` (B, T, E) is the first iterate
        (default 0).

        Warns `NotConverged` if the fixed point is not reached.
        """
        return self._forward(trusted(self.prepare)(params), x, ctx, state, start)

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        """Sequential inference: iterates to the fixed point of a single token. `forward` is parallel inference."""
        weights = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._forward(weights, x_t[:, None], EVALUATION, state)
        return y[:, 0], saved.state

    def emit(self, to: Listing, params: Params, x: int) -> int:
        folded, E = self.fold(to.exact(params)).weights, self.width
        source = len(folded["W_in"]) - E
        v, z = to("Split", to("Dense", x, folded["W_in"]), outputs=2, sizes=(source, E), axis=-1)
        if self.d_conv and self.convolved < source:  # the rest is not convolved
            v, rest = to("Split", v, outputs=2, sizes=(self.convolved, source - self.convolved), axis=-1)
            v = to("Concat", emit_convolved(to, folded, v), rest)
        else:
            v = emit_convolved(to, folded, v)
        W, V, b = ({name: rows for name, own in MACHINE.items()
                    if (rows := flattened(folded, [f"{kind}_{one}" for one in own], columns)) is not None}
                   for kind, columns in (("W", source), ("V", E), ("b", 0)))  # fmt: skip
        names = [*(name for name in W if name not in V), *V]
        sums = emit_sums(to, [(v, W[name], b.get(name, np.zeros(len(W[name])))) for name in names])
        matrix = None if self._mixer.varying else self._mixer.operands({"M": folded["M"]})[0]
        y = to(
            "MatrixFixedPoint",
            *(v, sums, z, folded["A"], folded["D"]),
            *(np.concatenate([*V.values()]) if V else None, folded.get("V_gate")),
            *(folded.get("scale") if self.normed else None, folded.get("bias") if self.normed else None, matrix),
            **self._mixer.settings,
            **self._iteration.settings,
            maps=names,
            silu=self.mixer_silu,
            softplus=self.maps["delta"].function == "softplus",
            unit=self.normalise,
            negative=self.negative,
            direct=self.direct,
            gated=self.gates_step,
            plain=self.gate_in_loop,
            eps=self.norm_eps,
        )
        out: int = to("Dense", y, folded["W_out"])
        return out

    def inference_gap(self, params: Params, x: Array) -> float:
        """Returns the maximum difference between the outputs of parallel and of sequential inference, relative to the
        largest output (Fig. 5)."""
        weights = self.prepare(params)
        x = self.check_input(self.boundary("inference_gap"), "x", x)
        parallel, _ = self._forward(weights, x, EVALUATION, None)
        state, sequential = None, np.zeros_like(parallel)
        for t in range(x.shape[1]):
            sequential[:, t], state = self.step(params, state, x[:, t], weights)
        if not parallel.size:
            return 0.0
        return float(np.abs(parallel - sequential).max()) / (float(np.abs(parallel).max()) or 1.0)

    def _forward(
        self, weights: Weights, inputs: Array, ctx: Context, state: State, start: Array | None = None
    ) -> tuple[Array, MatrixSaved]:
        args = Boundary(f"{type(self).__name__}.forward")
        E, folded = self.width, weights.folded.weights
        for letter, size, source in (
            ("D", self.d_model, "d_model"),
            ("E", E, "expand"),
            ("S", self.d_state, "d_state"),
        ):
            args.bind(letter, size, source)
        u = args.array("x", inputs, "B T D")
        h0, y0, tail = self._leaves(args, "state", state)
        start = args.optional("start", start, "B T E")
        steps = args.lengths(ctx.lengths)
        B, lengths = len(u), lengths_of(ctx, u)
        u, h0, y0, tail, start, _ = args.common(u, h0, y0, tail, start, folded["W_in"])
        u = mask_padding(u, steps)
        h0 = np.zeros((B, E, self.d_state), u.dtype, like=u) if h0 is None else h0
        y0 = np.zeros((B, E), u.dtype, like=u) if y0 is None else y0
        projected = project(u, weights, tail, lengths)
        x, (known_maps, driven_maps) = projected.x, self._split()
        known = Lagged(known_maps, projected.known, eps=self.unit_eps)
        depth = MatrixDepth(
            x,
            known(None, lengths),
            lagged(driven_maps, projected.driven, weights.V, y0, self.unit_eps),
            folded["A"],
            folded["D"] if self.normed else None,
            Norm(folded["scale"], folded.get("bias"), self.norm_eps) if self.normed else None,
            self._mixer,
            weights.constants,
            h0,
            self.negative,
            projected.z if self.gates_step else None,
        )
        before, applied, report = self._solved(depth, start, lengths, ctx)
        y = applied.y
        gated = None
        if not self.gate_in_loop:
            gated = gate(y, x, projected.z, y0, self._gate_skip(folded), folded.get("V_gate"), lengths)
        after: tuple[Array, ...] = applied.hT, last_steps(y, lengths, y0).astype(u.dtype)
        after = after if projected.convolved is None else (*after, projected.convolved.after)
        saved = MatrixSaved(weights, u, projected, known, depth, before, applied, gated, lengths, report, after)
        out = dense(y if gated is None else gated.out, folded["W_out"])
        check_output(out, report, type(self).__name__)
        return out, saved

    def _leaves(self, args: Boundary, name: str, state: State) -> list[Array | None]:
        """Returns h, y and the last inputs of the convolution of a state or its gradient, each None if not there."""
        if self.d_conv:
            args.bind("K-1", self.d_conv - 1, "d_conv")
            args.bind("C", self.convolved, "the convolution")
        leaves = [*(() if state is None else state), None, None, None]
        axes = "B E S", "B E", "B K-1 C"
        return [args.optional(f"{name}.{i}", leaves[i], one) for i, one in enumerate(axes)]

    def _solved(
        self, depth: MatrixDepth, start: Array | None, lengths: Steps, ctx: Context
    ) -> tuple[Array, Applied, Report]:
        """Returns the last iterate, the application to it, and the report; the direct solver's iterate is the fixed
        point."""
        name, x = type(self).__name__, depth.x
        if self.direct:
            applied = depth.solution(lengths)
            return (
                applied.y,
                applied,
                in_one_call(at_once(applied.y, lengths), lengths, x.dtype, self._iteration, ctx, name=name),
            )
        first = np.zeros_like(x) if start is None else mask_padding(start, lengths)
        asking: Any = {"site": self.site, "name": name, "each_step": self.normed}
        if self._tile is None or self._tile >= x.shape[1]:
            y, report = solve(depth, first, self._iteration, ctx, **asking)
            return y, depth.apply(y, lengths), report
        y, read, report = depth.by_tiles(first, self._tile, lengths, self._iteration, ctx, **asking)
        return y, depth.apply(y, lengths, read), report

    @property
    def gate_in_loop(self) -> bool:
        """Whether there is no gate outside of the step."""
        return False

    @property
    def gates_step(self) -> bool:
        """Whether a gate is part of the step."""
        return self.gate_in_loop

    @property
    def norm_eps(self) -> float:
        """Epsilon of the layer norm, if there is one."""
        return 1e-5

    def _gate_skip(self, folded: Params) -> Array | None:
        """Returns D if it is used in the gate and not in the step, else None."""
        return None if self.normed else folded["D"]

    def backward(
        self, params: Params, saved: MatrixSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        weights, depth, applied, lengths = saved.weights, saved.depth, saved.applied, saved.lengths
        folded, x = weights.folded.weights, saved.projected.x
        args = Boundary(f"{type(self).__name__}.backward")
        for letter, size in zip("BTD", saved.inputs.shape, strict=True):
            args.bind(letter, size, "x")
        args.bind("E", self.width, "expand")
        args.bind("S", self.d_state, "d_state")
        dout = args.array("dy", dy, "B T D")
        dhT, dlast, dafter = self._leaves(args, "dstate", dstate)
        dout, dhT, dlast, dafter, _ = args.common(dout, dhT, dlast, dafter, x)
        dout, through = mask_padding(dout, lengths), applied.y if saved.gate is None else saved.gate.out
        out = dense_backward(dout, through, folded["W_out"])
        dfolded: Params = {"W_out": out.dw}

        dy, dx, dy0, dz = out.dx, np.zeros_like(x), np.zeros_like(x, shape=(len(x), self.width)), None
        if saved.gate is not None:
            of_gate = gate_backward(dy, saved.gate, applied.y, x, self._gate_skip(folded), lengths)
            dy, dx, dy0, dz = of_gate.dy, of_gate.dx, of_gate.dy0, of_gate.dz
            if of_gate.dskip is not None:
                dfolded["D"] = of_gate.dskip
            if of_gate.dV is not None:
                dfolded["V_gate"] = of_gate.dV
        if dlast is not None:
            dy0 += add_to_last_steps(dy, lengths, dlast)

        if self.gradient == "implicit":
            how: Any = weights.V_transposed, lengths, self._adjoint_iteration, f"{type(self).__name__}.backward"
            if self._tile is None:
                dy = depth.implicit(applied, saved.before, dy, dhT, *how)
            else:
                dy = depth.implicit_by_tiles(saved.before, dy, dhT, self._tile, *how)
        grads = depth.backward(applied, saved.before, dy, dhT, lengths)
        dV, dy0_driven = depth.driven.weights_backward(grads.driven, applied.read)
        dfolded |= unstack("V", depth.driven.maps, dV)
        dfolded["A"] = grads.dA
        if grads.dnorm is not None:
            dfolded |= {"D": grads.dskip, **dict(zip(("scale", "bias"), grads.dnorm, strict=False))}
        if weights.constants is not None:
            parts = {name: folded[name] for name in depth.mixer.parts}
            dfolded |= depth.mixer.operands_backward(parts, weights.constants, grads.dconstants)

        dx += grads.dx
        dknown = saved.known.backward(grads.dknown, None, lengths).dbase
        dz = grads.dgate if dz is None else dz if grads.dgate is None else dz + grads.dgate
        assert dz is not None
        projected = ProjectedGrads(dx, dz, dknown, grads.driven.dbase, dafter)
        du, dprojection, dtail = project_backward(
            projected, saved.inputs, saved.projected, weights, saved.known.maps, depth.driven.maps, lengths
        )
        dparams = self.fold_backward(params, weights.folded, dfolded | dprojection)
        dbefore: tuple[Array, ...] = grads.dh0, dy0 + dy0_driven
        dbefore = dbefore if dtail is None else (*dbefore, dtail)
        return du, {name: dparams[name] for name in self.shapes}, dbefore

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the dense A_t (B, T, E S, E S) of ``h_t = A_t h_{t-1} + ...`` at the fixed point (section 4.3).

        h is in the order of ``h.reshape(E * S)``. A_t depends on y_{t-1}, which is held constant here, as in the
        paper's dense linear RNN. With a norm in the loop, A_t is the derivative of h_t by h_{t-1}. It is zero beyond
        the lengths. Arguments and errors are those of `forward`, whose iteration also runs.
        """
        _, saved = self.forward(params, x, ctx, state)
        try:
            matrices: Array = mask_steps(saved.depth.transitions(saved.applied), ctx.lengths)
        except np.linalg.LinAlgError as error:
            name = f"{type(self).__name__}.transitions"
            raise ValueError(f"{name}: the system of a step is singular, expected one solution") from error
        return matrices

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t (B, T, E S), complex128, along sequences. Arguments are those of
        `transitions`."""
        return spectrum(f"{type(self).__name__}.eigenvalues", self.transitions(params, x, ctx, state))

    def token_norms(self, saved: MatrixSaved) -> Array:
        return saved.depth.token_norms(saved.applied, saved.lengths)

    def report(self, saved: MatrixSaved) -> dict[str, float]:
        return saved.report.numbers()
