"""Rows of layers: a layer, its shapes and its reference, from which the tests of all recurrent layers follow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cases.table import Arrays, Case, normal
from rotrnn.nn.layer import Context, Recurrent, astype, flatten_state, unflatten_state
from rotrnn.testing import layer_functions

PREFIX = 3
"""Number of steps that are run to create the initial state of a row."""


@dataclass(frozen=True)
class LayerRow:
    """A recurrent layer at one set of shapes.

    `reference(layer, params, x, state, lengths)` gives (y, final state) by loops over time. It becomes a case whose
    arguments are the parameters, x, and each real or complex leaf of the initial state ("state", or "state.0", ...),
    its outputs y and the leaves of the final state. `linear` names groups of arguments as in Case, "state" standing
    for all leaves. The initial state is that after a few steps, with noise on its leaves (`noise`). With `streams`,
    full = chunked = streamed is held too, to `gap` of the size of y or, if None, to rounding of `terms`.
    """

    name: str
    layer: Recurrent
    B: int
    T: int
    lengths: Any = None
    reference: Callable[..., tuple[Any, Any]] | None = None
    terms: int = 0
    linear: tuple[tuple[str, ...], ...] = ()
    noise: float = 1.0
    streams: bool = True
    gap: float | None = None

    @property
    def title(self) -> str:
        return f"{type(self.layer).__name__} {self.name} {self.B}x{self.T}{' ragged' * (self.lengths is not None)}"

    @property
    def ctx(self) -> Context:
        return Context(lengths=None if self.lengths is None else np.array(self.lengths, np.int64))

    @property
    def bidirectional(self) -> bool:
        return bool(getattr(self.layer, "bidirectional", False))

    def params(self, rng: np.random.Generator) -> Arrays:
        """Returns float64 parameters, each slightly changed from its initial value, so that a zero does not hide a
        gradient."""
        params = astype(self.layer.init(rng), np.float64)
        return {name: value + 0.05 * normal(rng, value.shape) for name, value in params.items()}

    @functools.cached_property
    def template(self) -> Any:
        """Returns a state of the right structure, with its integer leaves."""
        rng = np.random.default_rng(0)
        x = normal(rng, (self.B, PREFIX, self.layer.d_model))
        return self.layer.forward(self.params(rng), x)[1].state

    def leaves(self, state: Any) -> Arrays:
        """Returns the differentiable leaves of a state."""
        return {name: leaf for name, leaf in flatten_state(state) if leaf.dtype.kind in "fc"}

    def state_of(self, args: Arrays) -> Any:
        """Returns the state whose leaves are among the arguments; None if the layer takes no state."""
        if self.bidirectional:
            return None
        return unflatten_state({name: args.get(name, leaf) for name, leaf in flatten_state(self.template)})

    def case(self) -> Case:
        layer = self.layer

        def make(rng: np.random.Generator) -> Arrays:
            params = self.params(rng)
            args = {**params, "x": normal(rng, (self.B, self.T, layer.d_model))}
            if not self.bidirectional:
                x = normal(rng, (self.B, PREFIX, layer.d_model))
                for name, leaf in self.leaves(layer.forward(params, x)[1].state).items():
                    args[name] = leaf + self.noise * normal(rng, leaf.shape, leaf.dtype.kind == "c")
            return args

        template = None if self.bidirectional else self.template
        drawn = np.random.default_rng(0)
        x = normal(drawn, (self.B, self.T, layer.d_model))
        forward, backward = layer_functions(layer, self.params(drawn), x, self.ctx, template)

        def reference(args: Arrays) -> tuple[Any, ...]:
            assert self.reference is not None
            params = {name: args[name] for name in layer.shapes}
            y, state = self.reference(layer, params, args["x"], self.state_of(args), self.lengths)
            return y, *self.leaves(state).values()

        states = () if self.bidirectional else tuple(self.leaves(self.template))
        return Case(
            self.title,
            make,
            forward,
            backward,
            reference,
            terms=self.terms,
            linear=tuple(
                tuple(one for name in group for one in (states if name == "state" else (name,)))
                for group in self.linear
            ),
            ragged={} if self.lengths is None else {"x": self.lengths, "out0": self.lengths},
            lengths=self.lengths,
            estimated=tuple(layer.estimated),
            double=tuple(range(1, 1 + len(states)))
            if getattr(layer, "exact", None) is not None and layer.window is None
            else (),
        )
