"""The base of recurrences: a public op with a state, and its adjoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from rotrnn._support.text import an
from rotrnn.nn.layer import Array
from rotrnn.nn.program import Call, Instruction, _forms, _state_forms, _taken, taken
from rotrnn.nn.returned import check_array, dtypes_of, read_only, writeable


class Recurrence(Instruction):
    """A recurrence: an op and its adjoint (`of`), whose arguments and results go by their names.

    The op takes the inputs (`takes`), settings of the same name, `lengths`, and for a state h its array before the
    first step, h0, or None for zeros. It returns a NamedTuple, or a tuple whose names are `results`: first the output,
    as y (B, T, ...), and for a state h the array after the last step, hT (B, ...). The adjoint takes dy first, dhT, or
    None if nothing depends on hT, `lengths`, and those arguments and results of the op that it needs. Inputs that are
    no parameters, and y, are None unless `reads` names them. It returns a NamedTuple of gradients by name: dx for each
    input x that is given, and dh0, in the shapes and dtypes of x and h0.

    Every call gives all these arguments, so that none needs a default. Functions outside the package get views of the
    arrays that cannot be written to.

    Raises TypeError, when a subclass is defined, if the op or the adjoint takes other arguments, or has a default other
    than None for one of these, and TypeError or ValueError at a call, if one of them returns something else, or writes
    to an argument.
    """

    of: ClassVar[tuple[Callable[..., Any], Callable[..., Any]]]
    results: ClassVar[str] = ""
    """Names of the op's results, if the op returns a plain tuple, or of its only result."""
    whole: ClassVar[str] = ""
    """The adjoint's argument for all results of the op, if the adjoint has one."""

    def __init_subclass__(cls, **more: Any) -> None:
        of = getattr(cls, "of", None)
        if not isinstance(of, tuple) or len(of) != 2 or not all(map(callable, of)):
            raise TypeError(f"{cls.__name__}: of is {of!r:.80}, expected two functions, (op, adjoint)")
        if not cls.takes:
            raise TypeError(f"{cls.__name__}: takes is {cls.takes!r}, expected the names of the op's inputs, as 'a x'")
        super().__init_subclass__(**more)
        if not isinstance(cls.results, str) or not all(map(str.isidentifier, cls.results.split())):
            raise TypeError(
                f"{cls.__name__}: results is {cls.results!r}, expected names with spaces between, as 'y hT'"
            )
        if isinstance(cls.form, str) and (count := len(_forms(cls.form)[1])) != 1:
            raise TypeError(
                f"{cls.__name__}: form {cls.form!r} has {count} outputs, expected one, the op's first result"
            )
        if isinstance(cls.states, property):
            return  # they depend on settings
        inputs, states = [*_taken(cls.takes, cls.forward)], [*_state_forms(cls.states)]
        needed = [*inputs, "lengths", *(f"{one}0" for one in states)], ["lengths", *(f"d{one}T" for one in states)]
        op, adjoint = arguments = tuple(map(_arguments, of))
        for i in range(2):
            if missing := [one for one in needed[i] if one not in arguments[i]]:
                raise TypeError(f"{cls._title(i)} takes {', '.join(arguments[i])}, expected {missing[0]} among them")
            for one, default in arguments[i].items():
                if one in {*needed[0], *needed[1]} and default is not None and default is not REQUIRED:
                    expected = "None or no default, since every call gives it"
                    raise TypeError(f"{cls._title(i)} has {one}={default!r:.80}, expected {expected}")
        settings = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})}
        if unknown := [one for one in op if op[one] is REQUIRED and one not in {*needed[0], *settings, *SWITCHES}]:
            raise TypeError(f"{cls._title(0)} takes {unknown[0]}, expected it in takes={cls.takes!r}, or as a setting")
        if unknown := [one for one in op if one[-1] == "0" and one[:-1] not in states and f"d{one[:-1]}T" in adjoint]:
            raise TypeError(f"{cls._title(0)} takes {unknown[0]}, expected {unknown[0][:-1]} in states={cls.states!r}")
        first = next(iter(adjoint))
        if first[0] != "d" or first[1:] in inputs:
            expected = "dy, the gradient of an output whose name no input has"
            raise TypeError(f"{cls._title(1)} takes {first} first, expected {expected}")

    @classmethod
    def _title(cls, i: int) -> str:
        """The beginning of messages about the op, 0, or the adjoint, 1."""
        return f"{cls.__name__}: the {('op', 'adjoint')[i]} {getattr(cls.of[i], '__name__', cls.of[i])}"

    def forward(self, call: Call, *inputs: Array | None) -> Array:
        known = self._known(call, inputs)
        found = self._call(0, known)
        results = self._results(found)
        output, after = next(iter(results)), [f"{one.name}T" for one in call.states]
        if output in after or not results.keys() >= {*after}:
            expected = f"the output first, and {', '.join(after)}, as states={self.states!r}"
            raise TypeError(f"{self._title(0)} returned {', '.join(results)}, expected {expected}")
        if self.foreign:
            steps = next(known[name] for name in taken(self) if known[name] is not None and name not in self.parameters)
            shapes = {output: (*steps.shape[:2], *call.sizes[0])}
            shapes |= {f"{one.name}T": (len(steps), *one.shape) for one in call.states}
            results |= self._fitting(0, call, results, shapes, steps)
        call.after = tuple(results[name] for name in after)
        if self.whole:
            call.kept = found._replace(**dict.fromkeys((output, *after)))
        elif kept := {name: results[name] for name in _arguments(self.of[1]) if name in results and name != output}:
            call.kept = kept
        return results[output]

    def _results(self, found: Any) -> dict[str, Array]:
        """Returns the results of the op by name."""
        names = self.results.split()
        if not names and hasattr(found, "_asdict"):
            return dict(found._asdict())
        if len(names) == 1 and not isinstance(found, tuple):
            found = (found,)
        if not names or not isinstance(found, tuple) or len(found) != len(names):
            got = f"a tuple of {len(found)}" if isinstance(found, tuple) else an(type(found).__name__)
            after = "".join(f", {name}T" for name in _state_forms(self.states))
            expected = f"results={self.results!r}" if names else f"a NamedTuple of y{after}, or their names in results"
            raise TypeError(f"{self._title(0)} returned {got}, expected {expected}")
        return dict(zip(names, found, strict=True))

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
        if unknown := [name for name, one in arguments.items() if one is REQUIRED and name not in known]:
            raise TypeError(f"{self._title(1)} takes {unknown[0]}, expected an argument or a result of the op")
        grads = self._call(1, known)
        before = [f"d{one.name}0" for one in call.states]
        names = [f"d{name}" for name in taken(self)]
        if not all(hasattr(grads, name) for name in (*names, *before)):
            got = ", ".join(getattr(grads, "_fields", ())) or an(type(grads).__name__)
            expected = f"a NamedTuple of {', '.join((*names, *before))}"
            raise TypeError(f"{self._title(1)} returned {got}, expected {expected}")
        found = {name: getattr(grads, name) for name in (*names, *before)}
        if self.foreign and (dy := known[output]) is not None:
            shapes = {
                f"d{name}": (*dy.shape[:2], *shape) if one is None else one.shape
                for name, one, shape in zip(taken(self), inputs, call.shapes, strict=True)
                if shape is not None
            }
            shapes |= {f"d{one.name}0": (len(dy), *one.shape) for one in call.states}
            found |= self._fitting(1, call, found, shapes, dy, *inputs, *(call.dafter or ()))
        call.dbefore = tuple(found[name] for name in before)
        return tuple(found[name] for name in names)

    def _call(self, i: int, known: dict[str, Any]) -> Any:
        """Calls the op, 0, or the adjoint, 1, with its arguments."""
        given = {name: known[name] for name in _arguments(self.of[i]) if name in known}
        if not self.foreign:
            return self.of[i](**given)
        try:
            return self.of[i](**{name: read_only(value) for name, value in given.items()})
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            expected = "it may not write to its arguments, expected a copy"
            raise ValueError(f"{self._title(i)}: {error}; {expected}") from error

    def _fitting(
        self, i: int, call: Call, found: dict[str, Any], shapes: dict[str, Any], *given: Array | None
    ) -> dict[str, Array]:
        """Returns the results of the op, 0, or the adjoint, 1, that have to be of these shapes, as arrays that may be
        written to. Raises TypeError or ValueError if one is no array, or has another shape, or, where it is real, a
        dtype that none of the `given` arrays and the state before has."""
        dtypes = dtypes_of((*given, *(call.state or ())))
        others = {name.format(one.name) for one in call.states if one.kind != "real" for name in ("{}T", "d{}0")}
        fitting = {}
        for name, shape in shapes.items():
            check_array(f"{self._title(i)} returned {name}", found[name], shape, () if name in others else dtypes)
            fitting[name] = writeable(found[name])
        return fitting

    def _known(self, call: Call, inputs: tuple[Array | None, ...]) -> dict[str, Any]:
        """Returns the values of the op's arguments by name."""
        known = dict(zip_longest(taken(self), inputs)) | vars(self) | _absent(self.states)
        if call.state is not None:
            known |= {f"{one.name}0": value for one, value in zip(call.states, call.state, strict=True)}
        return known | {"lengths": call.lengths, **dict.fromkeys(SWITCHES, True)}


SWITCHES = "return_state", "return_carries"
"""Arguments by which ops of the package return all results."""


REQUIRED = inspect.Parameter.empty
"""Stands for the default of an argument that has none."""


@cache
def _arguments(op: Callable[..., Any]) -> dict[str, Any]:
    """Returns the arguments that an op takes by name, and their defaults."""
    given = inspect.signature(op).parameters.values()
    return {one.name: one.default for one in given if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}


@cache
def _absent(states: str) -> dict[str, None]:
    """Returns the arguments for states, without an array before the first step, or a gradient after the last."""
    return dict.fromkeys(name for one in _state_forms(states) for name in (f"{one}0", f"d{one}T"))
