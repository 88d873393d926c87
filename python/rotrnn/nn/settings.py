"""Types of settings given in Python, held to what the fields say, as `rotrnn.training.recipe` holds those of a TOML."""

from __future__ import annotations

import functools
import math
import types
import typing
from dataclasses import fields
from typing import Any

import numpy as np

_UNFIT = object()
_WORDS = {int: "an integer", float: "a finite number", bool: "True or False", str: "a text", types.NoneType: "None"}
_KINDS: dict[Any, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    str: (str,),
}


def settle(settings: Any) -> None:
    """Makes each field of a frozen dataclass the plain Python value of its type: 1.0 of 1 or NumPy's 1, (1,) of [1].

    So settings that mean the same are equal, and print alike.

    Raises
    ------
    ValueError
        A field is of another type, or a number that is not finite.
    """
    kind: Any = type(settings)
    for name, hint in _hints(kind).items():
        value = getattr(settings, name)
        plain = _plain(value, hint)
        if plain is _UNFIT:
            raise ValueError(f"{kind.__name__}: {name}={value!r}, expected {_words(hint)}")
        object.__setattr__(settings, name, plain)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _plain(value: Any, hint: Any) -> Any:
    """`value` as `hint` says it, or _UNFIT."""
    if isinstance(hint, types.UnionType):
        return next((plain for part in typing.get_args(hint) if (plain := _plain(value, part)) is not _UNFIT), _UNFIT)
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        if not isinstance(value, list | tuple):
            return _UNFIT
        if parts[-1] is Ellipsis:
            parts = parts[:1] * len(value)
        if len(parts) != len(value):
            return _UNFIT
        plain = tuple(map(_plain, value, parts))
        return _UNFIT if any(one is _UNFIT for one in plain) else plain
    if hint not in _KINDS:
        return value if isinstance(value, hint) else _UNFIT
    if not isinstance(value, _KINDS[hint]) or (isinstance(value, bool) and hint is not bool):
        return _UNFIT
    try:
        plain = hint(value)
    except OverflowError:  # an integer that no float is near
        return _UNFIT
    return _UNFIT if hint is float and not math.isfinite(plain) else plain


def _words(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_words, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        first, *rest = typing.get_args(hint)
        if rest == [...]:
            return f"a sequence, each of it {_words(first)}"
        return "a sequence of " + ", ".join(map(_words, (first, *rest)))
    return _WORDS.get(hint) or f"a {hint.__name__}"
