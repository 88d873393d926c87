"""Base classes of layers that iterate to a fixed point in depth: programs with one instruction `FixedPoint`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.nn.fixed_points.iteration import Iteration, Report, Steps, check_output
from rotrnn.nn.fixed_points.mixer import Mixer
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, spectrum
from rotrnn.nn.listing import Listing
from rotrnn.nn.packing import PackedSaved, along
from rotrnn.nn.program import Instruction, Programmed, ProgramSaved
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import last_step_backward

GRADIENTS = ("one_step", "implicit")


class IteratedSaved(ProgramSaved):
    """Saved by a layer that iterates. `found` is what its instruction keeps, for a packed row for each group.

    `iterate` (B, T, N or E) is the fixed point, zero beyond the lengths. It is one undamped application after `before`,
    the iterate with which the loop ended. It can be given as `start` to another forward, as the first iterate. `report`
    describes the iteration for each sequence. The shapes do not depend on the number of iterations.
    """

    @property
    def found(self) -> Any:
        return self.kept["FixedPoint"]

    @property
    def iterate(self) -> Array:
        fixed_point: Array = self.found.iterate
        return fixed_point

    @property
    def before(self) -> Array:
        before: Array = self.found.before
        return before

    @property
    def depth(self) -> Any:
        """The step in depth."""
        return self.found.depth

    @property
    def report(self) -> Report:
        report: Report = self.found.report
        return report

    @property
    def iterations(self) -> Steps:
        """Number of iterations of each sequence."""
        return self.report.iterations

    @property
    def residual(self) -> Array:
        """Residual of the last iteration of each sequence."""
        return self.report.residual


@dataclass(frozen=True)
class InDepth(Instruction):
    """Base class of the instructions `FixedPoint`: the fixed point y (N,) of the step in depth of `layer`, and, if
    `late`, y_{t-1} (N,) as a second output. The last array of its state is y (N,).

    It keeps the step `depth`, the iterate `before` its last application, the fixed point `iterate`, the `lengths` and
    the `report`, with a method `token_norms`.
    """

    layer: Any
    late: bool

    def together(self, ctx: Context) -> bool:
        return bool(self.layer.together(ctx))

    def outputs(self, y: Array, y0: Array) -> Any:
        """Returns the outputs for the fixed point y (B, T, N) after y0 (B, N)."""
        if not self.late:
            return y
        late = np.empty_like(y)
        late[:, 1:], late[:, :1] = y[:, :-1], y0[:, None]
        return y, late

    def outputs_backward(self, dy: Any, y: Array, dlast: Array | None, lengths: Steps) -> tuple[Array, Array]:
        """Adjoint of `outputs`, with the gradient of the last y: returns the gradients of y and y0."""
        dy, dlate = dy if self.late else (dy, None)
        dy, dlate, dlast, _ = self.common(dy, dlate, dlast, y)
        dy, dy0 = np.zeros_like(y) if dy is None else dy, np.zeros_like(y, shape=(len(y), y.shape[2]))
        if dlate is not None or dlast is not None:
            dy = dy.copy()
        if dlate is not None:
            dy[:, :-1] += dlate[:, 1:]
            dy0 += dlate[:, :1].sum(1)
        if dlast is not None:
            dy0 += last_step_backward(dlast, dy, lengths)
        return dy, dy0

    def common(self, *arrays: Array | None) -> list[Any]:
        """Returns the arrays, of which one is not None, in their common dtype and C-contiguous."""
        args = Boundary(type(self.layer).__name__)
        args.any_array("x", next(one for one in arrays if one is not None))
        return args.common(*arrays)

    def emitted(self, to: Listing, y: int, width: int) -> Any:
        """Returns the registers of the outputs."""
        return (y, to("Conv", y, np.tile([1.0, 0.0], (width, 1)), None)) if self.late else y


@dataclass(frozen=True)
class Iterating(Programmed):
    """A layer whose program has one instruction `FixedPoint`, and a given register "start"."""

    emit, emitted = Programmed.emit, Programmed.emitted  # its forward is of the same function

    @property
    @abstractmethod
    def _mixer(self) -> Mixer:
        """The mixer of channels."""

    @property
    @abstractmethod
    def _iteration(self) -> Iteration:
        """The settings of the iteration."""

    @property
    def draws(self) -> bool:
        return isinstance(self._iteration.train_iterations, str)

    def together(self, ctx: Context) -> bool:
        return self._iteration.ends_together

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None, start: Array | None = None
    ) -> tuple[Array, IteratedSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call. `start` (B, T, N or E) is
        the first iterate (default 0).

        Warns `NotConverged` if the fixed point is not reached. Raises `ConvergenceError` instead where the layer
        guarantees convergence.
        """
        y, saved = self._forward(params, x, ctx, state, {"start": start})
        whole = IteratedSaved(*saved)
        found, name = whole.found, type(self).__name__
        if isinstance(found, PackedSaved):
            for group, part in zip(found.segments.groups, found.parts, strict=True):
                check_output(found.segments.batch(group, y), part.report, name)
        else:
            check_output(y, found.report, name)
        return y, whole

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t, complex128, along sequences. Arguments are those of `transitions`."""
        transitions: Any = self.transitions  # type: ignore[attr-defined]
        return spectrum(f"{type(self).__name__}.eigenvalues", transitions(params, x, ctx, state))

    def token_norms(self, saved: IteratedSaved) -> Array:
        return along(saved.found, lambda one: one.token_norms())

    def report(self, saved: IteratedSaved) -> dict[str, float]:
        return saved.report.numbers()
