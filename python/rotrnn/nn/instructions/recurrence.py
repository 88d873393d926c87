"""The base of recurrences: a public op with a state, and its adjoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from rotrnn.nn.layer import Array
from rotrnn.nn.program import Call, Instruction, taken


class Recurrence(Instruction):
    """A recurrence: an op and its adjoint (`of`), whose arguments and results go by their names.

    The op takes the inputs (`takes`), the settings, `lengths`, and for a state h its array before the first step, h0.
    It returns a NamedTuple, or a tuple whose names are `results`: first the output y, and hT, the state after the last
    step. The adjoint takes dy first, then arguments and results of the op, and dhT; it returns a NamedTuple with dx for
    an input x, and dh0.

    Raises TypeError, when a subclass is defined, if the op lacks an argument: without `lengths` or h0 it would be right
    for whole sequences alone.
    """

    of: ClassVar[tuple[Callable[..., Any], Callable[..., Any]]]
    results: ClassVar[str] = ""
    """Names of the op's results, if the op returns a plain tuple."""
    whole: ClassVar[str] = ""
    """The adjoint's argument for all results of the op, if the adjoint has one."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "of" not in vars(cls):
            return
        op, states = cls.of[0], [one.split()[0] for one in cls.states.split(";") if one.strip()]
        takes = [one.rstrip("?") for one in cls.takes.split()]
        given = inspect.signature(op).parameters.values()
        if any(one.kind is one.VAR_KEYWORD for one in given):
            return
        for name in (*takes, "lengths", *(f"{one}0" for one in states)):
            if name not in _arguments(op):
                got = ", ".join(_arguments(op))
                raise TypeError(f"{cls.__name__}: the op {op.__name__} takes {got}, expected {name} among them")

    def forward(self, call: Call, *inputs: Array | None) -> Array:
        known = self._known(call, inputs)
        found = self.of[0](**{name: known[name] for name in _arguments(self.of[0]) if name in known})
        results = dict(zip(self.results.split(), found, strict=True)) if self.results else found._asdict()
        output = next(iter(results))
        after = [f"{one.name}T" for one in call.states]
        call.after = tuple(results[name] for name in after)
        if self.whole:
            call.kept = found._replace(**dict.fromkeys((output, *after)))
        elif kept := {name: results[name] for name in _arguments(self.of[1]) if name in results and name != output}:
            call.kept = kept
        return results[output]

    def backward(self, call: Call, dy: Array | None, *inputs: Array | None) -> tuple[Array | None, ...]:
        adjoint = self.of[1]
        arguments = _arguments(adjoint)
        output = next(iter(arguments))  # dy or dh
        known = self._known(call, inputs)
        known[output] = np.zeros_like(call.y) if dy is None and call.y is not None else dy
        known[output[1:]] = call.y
        if self.whole:
            known[self.whole] = call.kept._replace(**{output[1:]: call.y})
        elif call.kept is not None:
            known |= call.kept
        if call.dafter is not None:
            known |= {f"d{one.name}T": d for one, d in zip(call.states, call.dafter, strict=True)}
        grads = adjoint(**{name: known[name] for name in arguments if name in known})
        call.dbefore = tuple(getattr(grads, f"d{one.name}0") for one in call.states)
        return tuple(getattr(grads, f"d{name}") for name in taken(self))

    def _known(self, call: Call, inputs: tuple[Array | None, ...]) -> dict[str, Any]:
        """Returns the values of the op's arguments by name."""
        known = dict(zip_longest(taken(self), inputs)) | vars(self)
        if call.state is not None:
            known |= {f"{one.name}0": value for one, value in zip(call.states, call.state, strict=True)}
        return known | {"lengths": call.lengths, "return_state": True, "return_carries": True}


@cache
def _arguments(op: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of an op's arguments."""
    return tuple(inspect.signature(op).parameters)
