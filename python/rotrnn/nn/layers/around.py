"""Base class of layers that are made around another one: Griffin and StoredHistory."""

from __future__ import annotations

import inspect
from typing import Any

from rotrnn._support.text import an
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State
from rotrnn.nn.packing import inside


class Around(Recurrent):
    """A layer whose recurrence is that of `layer`. The parameters and the state are those of `layer` and its own."""

    layer: Recurrent

    @property
    def recurrent(self) -> frozenset[str]:  # type: ignore[override]
        return self.layer.recurrent

    @property
    def estimated(self) -> frozenset[str]:  # type: ignore[override]
        return self.layer.estimated

    @property
    def core(self) -> Recurrent:
        return self.layer.core

    def together(self, ctx: Context) -> bool:
        return self.layer.together(ctx)

    def report(self, saved: Any) -> dict[str, float]:
        """Returns the report of the layer."""
        return self.layer.report(self.saved_inside(saved))

    def token_norms(self, saved: Any) -> Array | None:
        return self.layer.token_norms(self.saved_inside(saved))

    def state_norms(self, saved: Any) -> Array | None:
        return self.layer.state_norms(self.saved_inside(saved))

    def saved_inside(self, saved: Any) -> Any:
        """Returns what the forward of the layer saved."""
        return inside(saved, "layer")

    @property
    def conditioned(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.layer.conditioned

    def condition(self, value: Array) -> Any:
        return self.layer.condition(value)

    def condition_message(self, value: Array) -> str:
        return self.layer.condition_message(value)

    def eigenvalues(
        self, params: Params, x: Array | None = None, ctx: Context = EVALUATION, state: State = None
    ) -> Array:
        """Returns those of the layer; along sequences, if its transitions depend on its input. `x`, `ctx` and `state`
        are then as in `forward`. AttributeError if the layer has no `eigenvalues`; TypeError if it takes x and none is
        given, or the other way round."""
        if x is None:
            self.check_params(params)
        inner, own = self.layer.eigenvalues, self._inner(params)  # type: ignore[attr-defined]
        takes = len(inspect.signature(self.core.eigenvalues).parameters) - 1  # type: ignore[attr-defined]
        if bool(takes) != (x is not None):
            expected = "x, on which its transitions depend" if takes else "params alone"
            name, kind = type(self).__name__, type(self.layer).__name__
            raise TypeError(f"{name}.eigenvalues: the layer is {an(kind)}, expected {expected}")
        values: Array = inner(own) if x is None else inner(own, *self._entering(params, x, ctx, state)[:takes])
        return values

    def _entering(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, Context, State]:
        """Returns the arguments of the layer's forward after its parameters."""
        raise NotImplementedError

    @property
    def state_size(self) -> int | None:
        return self.layer.state_size

    def _inner(self, params: Params) -> Params:
        return {name: params[name] for name in self.layer.shapes}
