"""The one validator of settings: values held to the types that a dataclass annotates, for Python and for TOML alike.

`fit` checks and converts; `describe` names the expected type, in the words of the caller (`PYTHON`, `TOML`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rotrnn._support.text import an

MOST_COUNT = 2**31 - 1
"""The largest number of examples, tokens or steps in a setting or a header: a product of two fits in int64."""

_KINDS: dict[Any, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    str: (str,),
}


class Unfit(Exception):
    """A value that is not of its type: the value, the type, and where in the setting it stands ("", or "[1]")."""

    def __init__(self, value: Any, hint: Any, where: str = "") -> None:
        super().__init__(where)
        self.value, self.hint, self.where = value, hint, where


class Words(NamedTuple):
    """How a caller names types: the plain ones, a sequence, and None."""

    plain: dict[Any, str]
    sequence: str
    none: str


_SHARED = {int: "an integer", float: "a finite number", str: "a text"}
PYTHON = Words({**_SHARED, bool: "True or False"}, "a sequence", "None")
TOML = Words({**_SHARED, bool: "true or false"}, "a list", "none")


def fit(value: Any, hint: Any, table: Callable[[Any, dict[str, Any]], Any] | None = None) -> Any:
    """`value` as the plain Python value of its type: 1.0 of 1 or NumPy's 1, (1,) of [1].

    Parameters
    ----------
    hint
        bool, int, float, str, a class, a tuple or a union of these.
    table : callable, optional
        ``table(kind, value)`` makes a dataclass of a dict. Without it a dict is no dataclass.

    Raises
    ------
    Unfit
        It is of another type, or a number that is not finite.
    """
    if isinstance(hint, types.UnionType):
        for part in typing.get_args(hint):
            try:
                return fit(value, part, table)
            except Unfit:
                continue
        raise Unfit(value, hint)
    if typing.get_origin(hint) is tuple:
        return _fit_tuple(value, hint, table)
    if table is not None and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return table(hint, value)
    if hint not in _KINDS:
        if isinstance(value, typing.get_origin(hint) or hint):
            return value
        raise Unfit(value, hint)
    if not isinstance(value, _KINDS[hint]) or (isinstance(value, bool) and hint is not bool):
        raise Unfit(value, hint)
    try:
        plain = hint(value)
    except OverflowError:  # an integer that no float is near
        raise Unfit(value, hint) from None
    if hint is float and not math.isfinite(plain):
        raise Unfit(value, hint)
    return plain + 0.0 if hint is float else plain  # -0.0 becomes 0.0


def optional(hint: Any) -> bool:
    """Returns whether a type takes None."""
    return isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)


def _fit_tuple(value: Any, hint: Any, table: Callable[[Any, dict[str, Any]], Any] | None) -> tuple[Any, ...]:
    parts = typing.get_args(hint)
    if isinstance(value, str) and parts == (str, ...):  # one text stands for a list of one
        value = (value,)
    if isinstance(value, list | tuple) and parts[-1] is Ellipsis:
        parts = parts[:1] * len(value)
    if not isinstance(value, list | tuple) or len(parts) != len(value):
        raise Unfit(value, hint)
    plain = []
    for i, (one, part) in enumerate(zip(value, parts, strict=True)):
        try:
            plain.append(fit(one, part, table))
        except Unfit as error:
            raise Unfit(error.value, error.hint, f"[{i}]{error.where}") from None
    return tuple(plain)


def describe(hint: Any, words: Words) -> str:
    """The values that `hint` takes, in the caller's words."""
    if isinstance(hint, types.UnionType):
        return " or ".join(describe(part, words) for part in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        first, *rest = typing.get_args(hint)
        if rest == [...]:
            return f"{words.sequence}, each of it {describe(first, words)}"
        if all(part == first for part in rest):
            return f"{words.sequence} of {1 + len(rest)}, each of it {describe(first, words)}"
        return f"{words.sequence} of " + ", ".join(describe(part, words) for part in (first, *rest))
    if hint is types.NoneType:
        return words.none
    if words is TOML and dataclasses.is_dataclass(hint):
        return "a table of " + ", ".join(one.name for one in dataclasses.fields(hint))
    if hint in words.plain:
        return words.plain[hint]
    if words is TOML:
        known = ", ".join(words.plain.values())
        raise TypeError(f"a setting is annotated {hint}, expected what a recipe can hold: {known}")
    return an(hint.__name__)


def current(kind: type, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file without the ones that an earlier version of the class had, at the value that its
    `removed` has for them; ``...`` stands for any value."""
    removed = getattr(kind, "removed", {})
    return {key: value for key, value in settings.items() if key not in removed or removed[key] not in (..., value)}


def settle(settings: Any) -> None:
    """Converts each field of a frozen dataclass to the plain Python value of its type, by `fit`.

    So settings that mean the same are equal, and print alike.

    Raises
    ------
    ValueError
        A field is of another type, or a number that is not finite.
    """
    kind: Any = type(settings)
    for name, hint in hints_of(kind).items():
        value = getattr(settings, name)
        try:
            plain = fit(value, hint)
        except Unfit:
            raise ValueError(f"{kind.__name__}: {name}={value!r}, expected {describe(hint, PYTHON)}") from None
        object.__setattr__(settings, name, plain)


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass by name."""
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind)}
