"""Base class of Bedouin and FPMamba: Fixed-Point RNNs with a matrix state, whose step in depth is a selective scan.

The program of a layer computes x and the gate z from its input, and the sums of its maps: the functions of a token and
of the previous output that enter the step. The instruction `FixedPoint` applies the maps, and iterates the step
(`matrix_depth`). Then y is gated.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous
from rotrnn.nn.fixed_points.convolution import conv_shapes
from rotrnn.nn.fixed_points.in_depth import GRADIENTS, InDepth, Iterating
from rotrnn.nn.fixed_points.iteration import (
    Iteration,
    Report,
    Steps,
    at_once,
    check_settings,
    in_one_call,
    lengths_of,
    solve,
)
from rotrnn.nn.fixed_points.maps import MACHINE, READ_EPS, Lagged, Maps, lagged
from rotrnn.nn.fixed_points.matrix_depth import Applied, MatrixDepth, Norm
from rotrnn.nn.fixed_points.mixer import MIXERS, Mixer, Operands
from rotrnn.nn.instructions import Concat, Conv, Dense, MatMul, RMSNorm, Rows, SiLU, Sum
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, StateArray, mask_steps
from rotrnn.nn.listing import Listing
from rotrnn.nn.packing import along
from rotrnn.nn.program import Builder, Call, Line, Register, Shape
from rotrnn.ops.pointwise import last_step

FEEDBACK = ("mixer", "B", "C", "gate")


class Found(NamedTuple):
    """Kept by `FixedPoint`: the step, the iterate before its last application, this application, and the report."""

    depth: MatrixDepth
    before: Array
    applied: Applied
    lengths: Steps
    report: Report

    @property
    def iterate(self) -> Array:
        return self.applied.y

    def token_norms(self) -> Array:
        """Returns |J_t|_2 (B, T) of the map of each token."""
        return self.depth.token_norms(self.applied, self.lengths)


@dataclass(frozen=True)
class FixedPoint(InDepth):
    """The fixed point y (E,) of `MatrixDepth`, and y_{t-1} (E,) if `late`.

    Its inputs are x (E,) and A (E, S); the sums of the known maps and of the driven maps, and V (K, E) of the latter;
    skip, scale and bias (E,) of the norm; the gate (E,) within the step, and the first iterate (E,); M (E, E) of a
    constant mixer. Its state is (h (E, S), y (E,)).
    """

    parameters = ("V", "A", "skip", "scale", "bias", "M")
    reads = ("known",)

    def shapes(self, x: Any, *more: Any) -> tuple[Shape, ...]:
        return (x, x) if self.late else (x,)

    def state(self, x: Any, A: Any, *more: Any) -> tuple[StateArray, ...]:
        return StateArray("h", A), StateArray("y", x)

    def prepare(self, *inputs: Any) -> Operands | None:
        """Returns the operands of a constant mixer."""
        mixer, M = self.layer._mixer, inputs[-1]
        return None if mixer.varying else mixer.operands({"M": M})

    def forward(
        self, call: Call, x: Array, A: Array, known: Array | None = None, driven: Array | None = None,
        V: Array | None = None, skip: Array | None = None, scale: Array | None = None, bias: Array | None = None,
        gate: Array | None = None, start: Array | None = None, M: Array | None = None,
    ) -> Any:  # fmt: skip
        layer, lengths, ctx = self.layer, lengths_of(call.ctx, x), call.ctx
        h0, y0 = (None, None) if call.state is None else call.state
        x, known, driven, gate, start, h0, y0 = self.common(x, known, driven, gate, start, h0, y0)
        B, T, E = x.shape
        h0 = np.zeros((B, *A.shape), x.dtype, like=x) if h0 is None else h0
        y0 = np.zeros((B, E), x.dtype, like=x) if y0 is None else y0
        known_maps, driven_maps = layer._split
        none = np.zeros((B, T, 0), x.dtype, like=x)
        V = np.zeros((sum(one.width for one in driven_maps.values()), E), x.dtype, like=x) if V is None else V
        depth = MatrixDepth(
            x,
            {} if known is None else Lagged(known_maps, known, eps=layer.unit_eps)(None, lengths),
            lagged(driven_maps, none if driven is None else driven, V, y0, layer.unit_eps, layer.feedback_norm),
            A,
            skip,
            None if scale is None else Norm(scale, bias, layer.norm_eps),
            layer._mixer,
            call.prepared if call.stepping else self.prepare(M),
            h0,
            layer.negative,
            gate,
        )
        before, applied, report = self._solved(depth, start, lengths, ctx)
        y = applied.y
        call.kept = Found(depth, before, applied, lengths, report)
        call.after = applied.hT, last_step(y, lengths, y0)
        return self.outputs(y, y0)

    def _solved(
        self, depth: MatrixDepth, start: Array | None, lengths: Steps, ctx: Context
    ) -> tuple[Array, Applied, Report]:
        """Returns the last iterate, the application to it, and the report; the direct solver's iterate is the fixed
        point."""
        layer, x = self.layer, depth.x
        name, settings = type(layer).__name__, layer._iteration
        if layer.direct:
            applied, residual = depth.solution(lengths)
            report = in_one_call(at_once(residual, lengths), lengths, x.dtype, settings, ctx, name=name)
            return applied.y, applied, report
        first = np.zeros_like(x) if start is None else start.copy()
        asking: Any = {"site": layer.site, "name": name, "each_step": layer.normed}
        if layer._tile is None or layer._tile >= x.shape[1]:
            y, report = solve(depth, first, settings, ctx, **asking)
            return y, depth.apply(y, lengths), report
        y, read, report = depth.by_tiles(first, layer._tile, lengths, settings, ctx, **asking)
        return y, depth.apply(y, lengths, read), report

    def backward(
        self, call: Call, dy: Any, x: None, A: Array, known: Array | None, *more: Any
    ) -> tuple[Array | None, ...]:
        layer, (depth, before, applied, lengths, _) = self.layer, call.kept
        dhT, dlast = call.dafter or (None, None)
        dy, dy0 = self.outputs_backward(dy, applied.y, dlast, lengths)
        (dhT, _) = self.common(dhT, dy)
        if layer.gradient == "implicit":
            V_transposed, name = contiguous(depth.driven.V.T), f"{type(layer).__name__}.backward"
            how: Any = V_transposed, lengths, layer._adjoint_iteration, name
            if layer.direct:
                dy = depth.solution_adjoint(applied, dy, dhT, lengths)
            elif layer._tile is None:
                dy = depth.implicit(applied, before, dy, dhT, *how)
            else:
                dy = depth.implicit_by_tiles(before, dy, dhT, layer._tile, *how)
        grads = depth.backward(applied, before, dy, dhT, lengths)
        dV, dy0_driven = depth.driven.weights_backward(grads.driven, applied.read)
        call.dbefore = grads.dh0, dy0 + dy0_driven
        dknown = None
        if known is not None:
            maps = Lagged(layer._split[0], known, eps=layer.unit_eps)
            dknown = maps.backward(grads.dknown, None, lengths).dbase
        dscale, dbias = (*(grads.dnorm or ()), None, None)[:2]
        dM = None
        if depth.constants is not None:
            parts = {"M": more[-1]}
            dM = layer._mixer.operands_backward(parts, depth.constants, grads.dconstants)["M"]
        driven = (None, None) if call.shapes[3] is None else (grads.driven.dbase, dV)
        return grads.dx, grads.dA, dknown, *driven, grads.dskip, dscale, dbias, grads.dgate, None, dM

    def emit(
        self, to: Listing, line: Line, x: int, A: Array, known: int | None = None, driven: int | None = None,
        V: Array | None = None, skip: Array | None = None, scale: Array | None = None, bias: Array | None = None,
        gate: int | None = None, start: None = None, M: Array | None = None,
    ) -> Any:  # fmt: skip
        layer = self.layer
        bases = [one for one in (known, driven) if one is not None]
        of = {name: one for one, own in MACHINE.items() for name in own}
        matrix = None if M is None else self.prepare(M)[0]  # type: ignore[index]
        y = to(
            "MatrixFixedPoint",
            *(x, to("Concat", *bases) if len(bases) > 1 else bases[0], gate, A, skip, V, scale, bias, matrix),
            **layer._mixer.settings,
            **layer._iteration.settings,
            maps=[*dict.fromkeys(of[name] for maps in layer._split for name in maps)],
            silu=layer.mixer_silu,
            softplus=layer.maps["delta"].function == "softplus",
            unit=layer.normalise,
            negative=layer.negative,
            feedback_norm=layer.feedback_norm,
            direct=layer.direct,
            eps=layer.norm_eps,
        )
        return self.emitted(to, y, layer.width)


@dataclass(frozen=True)
class MatrixFixedPoint(Iterating):
    """A layer that iterates `MatrixDepth` between projections, with a gate that may depend on the previous output.

    A subclass declares `maps`, and writes its program around `_solution`.
    """

    normed: ClassVar[bool]
    """If true, skip and layer norm are part of the step, and residuals are those of single time steps."""
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

    @property
    def direct(self) -> bool:
        """Whether the fixed point is found directly, and not by iteration."""
        return False

    @property
    def feedback_norm(self) -> bool:
        """Whether maps and gate read the previous output divided by its root mean square."""
        return False

    @property
    def norm_eps(self) -> float:
        """Epsilon of the norm, if there is one."""
        return 1e-5

    @property
    def _tile(self) -> int | None:
        """The number of steps that are iterated together; None for all."""
        return 1 if self.solver == "auto" else self.tile

    @cached_property
    def _mixer(self) -> Mixer:
        return MIXERS[self.mixer](self.width, self.rank, eps=self.unit_eps, spectral=self.spectral)

    @cached_property
    def _iteration(self) -> Iteration:
        limits = self.max_iterations, self.train_iterations
        rules = self.damping, self.stop
        if self.solver == "auto":
            rules = "adaptive" if self.normed else "anderson", "sequence"
        return Iteration(self.tol, *limits, *rules, self.gamma_scale)

    @cached_property
    def _adjoint_iteration(self) -> Iteration:
        """The iteration of the adjoint, which is linear, with a norm in the loop or without."""
        return replace(self._iteration, damping="anderson") if self.solver == "auto" else self._iteration

    @property
    def mixer_maps(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the mixer's parts, if they are maps."""
        return self._mixer.parts if self._mixer.varying else {}

    @cached_property
    def _split(self) -> tuple[Maps, Maps]:
        """Returns the maps that do not depend on y, and those that do, each in the order of `MACHINE`; for the direct
        solver all but delta do."""
        maps = {name: self.maps[name] for own in MACHINE.values() for name in own if name in self.maps}
        driven = [name for name in maps if name in self.driven or (self.direct and name != "delta")]
        return {name: maps[name] for name in maps if name not in driven}, {name: maps[name] for name in driven}

    @property
    def conv_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parameters of the convolution, if there is one."""
        return conv_shapes(self.convolved, self.d_conv)

    @property
    def convolved(self) -> int:
        """The number of channels of the convolution."""
        return self.width

    def _convolution(self, p: Builder, v: Register) -> Register:
        """Appends the convolution with its SiLU, if there is one."""
        return p(SiLU(), p(Conv(), v, "conv_w", "conv_bias")) if self.d_conv else v

    def _solution(
        self, p: Builder, x: Register, z: Register, A: Register, weights: dict[str, Any],
        sums: dict[str, Register] | None = None, w_x: Register | None = None, gated: bool = False,
        norm: tuple[Any, ...] = (None, None, None),
    ) -> tuple[Register, Register]:  # fmt: skip
        """Appends the fixed point y, and returns it and the gate, ``z + V_gate y_{t-1}`` or z.

        `weights` are W_n (..., E) of the maps n, V_n (..., E) of maps that depend on y, b_n where a map has a bias, and
        V_gate (E, E), by name. Maps in `sums` are functions of these instead of ``W_n x``. `w_x` (E, D), if x is ``w_x
        in``, stands for x in the direct solver, which computes ``W_n x`` as ``(W_n w_x) in``. `norm` is skip, scale and
        bias of the norm. Where the step is `gated`, its gate is z.
        """
        E, (known, driven) = self.width, self._split
        source, through = (p.x, w_x) if self.direct and w_x is not None else (x, None)

        def base(maps: Maps) -> Register | None:
            """The sums of maps in adjacent columns, with one product for maps in a row."""
            parts = []
            for own, group in itertools.groupby(maps, lambda name: (sums or {}).get(name)):
                names = list(group)
                if own is not None:
                    parts.append(own)
                    continue
                sizes, biases = tuple(maps[name].width for name in names), [weights.get(f"b_{name}") for name in names]
                W = p(Rows(sizes, E), *(weights[f"W_{name}"] for name in names))
                W = W if through is None else p(MatMul(), W, through)
                parts.append(p(Dense(), source, W, p(Rows(sizes), *biases) if any(biases) else None))
            return p(Concat(), *parts) if len(parts) > 1 else parts[0] if parts else None

        of_driven, of_known = base(driven), base(known)
        of_y = [weights.get(f"V_{name}") for name in driven]
        V = p(Rows(tuple(one.width for one in driven.values()), E), *of_y) if any(of_y) else None
        late = "gate" in self.feedback
        within, constant = z if gated else None, None if self._mixer.varying else "M"
        found = p(FixedPoint(self, late), x, A, of_known, of_driven, V, *norm, within, p.given("start", E), constant)
        if not late:
            return found, z
        y, before = found
        read = p(RMSNorm(READ_EPS), before) if self.feedback_norm else before
        return y, p(Sum(), z, p(Dense(), read, weights["V_gate"]))

    def inference_gap(self, params: Params, x: Array) -> float:
        """Returns the maximum difference between the outputs of parallel and of sequential inference, relative to the
        largest output (Fig. 5)."""
        x = self.check_input(self.boundary("inference_gap"), "x", x)
        parallel, _ = self.forward(params, x)
        prepared, state, sequential = self.prepare(params), None, np.zeros_like(parallel)
        for t in range(x.shape[1]):
            sequential[:, t], state = self.step(params, state, x[:, t], prepared)
        if not parallel.size:
            return 0.0
        return float(np.abs(parallel - sequential).max()) / (float(np.abs(parallel).max()) or 1.0)

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the dense A_t (B, T, E S, E S) of ``h_t = A_t h_{t-1} + ...`` at the fixed point (section 4.3).

        h is in the order of ``h.reshape(E * S)``. A_t depends on y_{t-1}, which is held constant here, as in the
        paper's dense linear RNN. With a norm in the loop, A_t is the derivative of h_t by h_{t-1}. It is zero beyond
        the lengths. Arguments and errors are those of `forward`, whose iteration also runs.
        """
        _, saved = self.forward(params, x, ctx, state)
        try:
            return along(saved.found, lambda one: mask_steps(one.depth.transitions(one.applied), one.lengths))
        except np.linalg.LinAlgError as error:
            name = f"{type(self).__name__}.transitions"
            raise ValueError(f"{name}: the system of a step is singular, expected one solution") from error
