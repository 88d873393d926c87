"""Base classes of layers around another layer: `Wrapper`, and `Around` for programs."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from typing import Any, ClassVar

from rotrnn._support.text import an
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State
from rotrnn.nn.program import Programmed, ProgramSaved


class Wrapper(Recurrent):
    """A layer around `layer`, with the properties of `layer`, to which a subclass may add."""

    layer: Recurrent

    @property
    def recurrent(self) -> frozenset[str]:  # type: ignore[override]
        return self.layer.recurrent

    @property
    def draws(self) -> bool:
        return self.layer.draws

    @property
    def estimated(self) -> frozenset[str]:  # type: ignore[override]
        return self.layer.estimated

    @property
    def conditioned(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.layer.conditioned

    def condition(self, value: Array) -> Any:
        return self.layer.condition(value)

    def condition_message(self, value: Array) -> str:
        return self.layer.condition_message(value)

    @property
    def state_size(self) -> int | None:
        return self.layer.state_size

    def together(self, ctx: Context) -> bool:
        return self.layer.together(ctx)

    def report(self, saved: Any) -> dict[str, float]:
        """Returns the report of the layer."""
        return self.layer.report(self.saved_inside(saved))

    def token_norms(self, saved: Any) -> Array | None:
        return self.layer.token_norms(self.saved_inside(saved))

    def state_norms(self, saved: Any) -> Array | None:
        return self.layer.state_norms(self.saved_inside(saved))

    @abstractmethod
    def saved_inside(self, saved: Any) -> Any:
        """Returns the saved arrays of `layer`."""


class Around(Wrapper, Programmed):
    """A program whose recurrence is `layer`: Griffin and StoredHistory. It adds its own parameters, whose names begin
    with `prefix`, to the parameters of `layer`, and its own state to the state of `layer`."""

    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        name, kind = type(self).__name__, type(self.layer).__name__
        if getattr(self.layer, "bidirectional", False):
            raise ValueError(f"{name}: {kind} has bidirectional=True, expected False: {name} has one direction")
        if self.layer.state_form is None:
            raise ValueError(f"{name}: layer={self.layer!r}, expected a layer that declares its state (state_form)")
        if taken := [one for one in self.layer.shapes if one.startswith(self.prefix)]:
            expected = f"expected no name that begins with {self.prefix}"
            raise ValueError(f"{name}: {kind} has a parameter {taken[0]}, {expected}")

    @property
    def core(self) -> Recurrent:
        return self.layer.core

    def saved_inside(self, saved: ProgramSaved) -> Any:
        return saved.kept["Inner"]

    def eigenvalues(
        self, params: Params, x: Array | None = None, ctx: Context = EVALUATION, state: State = None
    ) -> Array:
        """Returns the eigenvalues of the layer; along sequences, if its transitions depend on its input. `x`, `ctx` and
        `state` are then as in `forward`. AttributeError if the layer has no `eigenvalues`; TypeError if it takes x and
        none is given, or vice versa."""
        if x is None:
            self.check_params(params)
        inner, own = self.layer.eigenvalues, self._inner(params)  # type: ignore[attr-defined]
        takes = len(inspect.signature(self.core.eigenvalues).parameters) - 1  # type: ignore[attr-defined]
        if bool(takes) != (x is not None):
            expected = "x, on which its transitions depend" if takes else "params alone"
            name, kind = type(self).__name__, type(self.layer).__name__
            raise TypeError(f"{name}.eigenvalues: the layer is {an(kind)}, expected {expected}")
        return inner(own) if x is None else inner(own, *self._entering(params, x, ctx, state)[:takes])

    def _entering(self, params: Params, x: Array, ctx: Context, state: State) -> tuple[Array, Context, State]:
        """Returns the arguments of the layer's forward after its parameters."""
        raise NotImplementedError

    def _inner(self, params: Params) -> Params:
        return {name: params[name] for name in self.layer.shapes}
