"""Runs any recurrent layer in both directions of time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, REVERSE, Array, Context, Params, Recurrent, State, StateForm, trusted
from rotrnn.nn.layers.around import Wrapper
from rotrnn.nn.packing import inside
from rotrnn.ops.pointwise import flip


class BidirectionalSaved(NamedTuple):
    """The saved arrays of each direction, and lengths. A bidirectional layer has no state."""

    forward: Any
    reverse: Any
    lengths: npt.NDArray[np.int64] | None
    state: None = None


@dataclass(frozen=True)
class Bidirectional(Wrapper):
    """``y = layer(x) + flip(layer'(flip(x)))``: two copies of a layer with separate parameters.

    A sequence is reversed within its length, and padding stays in place. The parameter names of the second copy end in
    "_reverse". A `LinearRecurrence` does not need this wrapper: it has a setting `bidirectional`, and the directions
    then share parameters as in the papers.
    """

    about: ClassVar[str] = "two copies of a layer, one for each direction of time"
    paper: ClassVar[str] = 'Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks"'
    bidirectional: ClassVar[bool] = True

    layer: Recurrent

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.layer, "bidirectional", False):
            raise ValueError(f"Bidirectional: layer={self.layer!r}, expected a layer with a single direction")
        if self.d_model != self.layer.d_model:
            raise ValueError(f"Bidirectional: d_model={self.d_model}, expected {self.layer.d_model} as of its layer")

    @property
    def recurrent(self) -> frozenset[str]:  # type: ignore[override]
        """The recurrent parameters of the layer, for both directions."""
        return self.layer.recurrent | {name + REVERSE for name in self.layer.recurrent}

    @property
    def estimated(self) -> frozenset[str]:  # type: ignore[override]
        """The arguments of the layer whose gradients are estimates, for both directions."""
        of_layer = self.layer.estimated
        return of_layer | {name + REVERSE for name in of_layer & self.layer.shapes.keys()}

    @property
    def conditioned(self) -> tuple[str, ...]:  # type: ignore[override]
        names = self.layer.conditioned
        return names + tuple(name + REVERSE for name in names)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = self.layer.shapes
        return shapes | {name + REVERSE: shape for name, shape in shapes.items()}

    @property
    def state_form(self) -> StateForm | None:
        return self.layer.state_form

    def init(self, rng: np.random.Generator) -> Params:
        params = self.layer.init(rng)
        return params | {name + REVERSE: value for name, value in self.layer.init(rng).items()}

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, BidirectionalSaved]:
        y, forward = self.layer.forward(self._copy(params, ""), x, ctx)
        z, reverse = self.layer.forward(self._copy(params, REVERSE), flip(x, ctx.lengths), ctx)
        return y + flip(z, ctx.lengths), BidirectionalSaved(forward, reverse, ctx.lengths)

    def backward(
        self, params: Params, saved: BidirectionalSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, None]:
        backward = trusted(self.layer.backward)
        dx, dparams, _ = backward(self._copy(params, ""), saved.forward, dy)
        dz, dreverse, _ = backward(self._copy(params, REVERSE), saved.reverse, flip(dy, saved.lengths))
        dparams = dparams | {name + REVERSE: value for name, value in dreverse.items()}
        return dx + flip(dz, saved.lengths), dparams, None

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        raise ValueError("Bidirectional.step: a bidirectional layer cannot run step by step")

    def report(self, saved: BidirectionalSaved) -> dict[str, float]:
        """Returns the report of the layer for each direction."""
        reverse = {name + REVERSE: value for name, value in self.layer.report(inside(saved, "reverse")).items()}
        return super().report(saved) | reverse

    def saved_inside(self, saved: BidirectionalSaved) -> Any:
        """Returns the saved arrays of the forward direction."""
        return inside(saved, "forward")

    def _copy(self, params: Params, suffix: str) -> Params:
        return {name: params[name + suffix] for name in self.layer.shapes}


def has_directions(kind: type[Recurrent]) -> bool:
    """Returns whether a layer has its own setting `bidirectional`, and does not need `Bidirectional`."""
    return any(one.name == "bidirectional" for one in fields(kind))
