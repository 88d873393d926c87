"""Tables of the parts of a module, and of arrays in a tree: parameters, gradients, states, `saved`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from rotrnn._support.text import an, plural
from rotrnn.devices.device import is_array

BUFFERS = frozenset(
    name + direction for name in ("running_mean", "running_var", "running_spectrum") for direction in ("", "_reverse")
)
"""Names of entries of `params` that are not trained by gradients; forward updates them in place in training mode.
`Bidirectional` adds "_reverse" to the names of its second copy."""


class Summary(str):
    """A text that Python's prompt and notebooks show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Part:
    """An array, or a node with further parts by name."""

    about: str
    shape: tuple[int, ...] | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """Number of elements, without buffers inside it."""
        own = 0 if self.shape is None else math.prod(self.shape)
        return own + sum(part.numbers for name, part in self.parts.items() if name not in BUFFERS)


class Summarised:
    """An object with a row for each of its parts: the base class of modules."""

    def _part(self) -> Part:
        raise NotImplementedError


def summary(tree: Any) -> Summary:
    """Returns a table of a module (a layer, block, stack or model), or of the arrays in a tree.

    A row is a part: the settings of a module, or dtype and shape of an array, and the number of elements. Equal blocks
    that follow each other are shown once, as "0 to 5", with "6 x" before the number of elements of one. The running
    averages of batch norm are shown, but not counted in sums, because they are not trained.

    Parameters
    ----------
    tree : Module, or arrays in dicts, tuples and dataclasses
        Such as ``params``, the gradients, a state, or the ``saved`` of forward. Other values are left out.

    Raises
    ------
    TypeError
        `tree` is neither a module nor holds an array.

    Examples
    --------
    >>> import numpy as np, rotrnn
    >>> rotrnn.summary(rotrnn.MinGRU(d_model=2, d_state=3))
    part     settings                      shape   numbers
    MinGRU   MinGRU(d_model=2, d_state=3)               24
      W_z                                  (3, 2)        6
      b_z                                  (3,)          3
      W_c                                  (3, 2)        6
      b_c                                  (3,)          3
      W_out                                (2, 3)        6
    >>> rotrnn.summary({"a": np.zeros((4, 1)), "b": {"0": np.ones(2)}})
    part  dtype    shape   numbers
    dict                         6
      a   float64  (4, 1)        4
      b                          2
        0 float64  (2,)          2
    """
    whole = _part(tree)
    if whole is None:
        raise TypeError(f"summary: tree is {an(type(tree).__name__)}, expected a module, or arrays in dicts or tuples")
    about = "settings" if isinstance(tree, Summarised) else "dtype"
    rows = [("part", about, "shape", "numbers"), *_rows(type(tree).__name__, whole, 0, 1)]
    return Summary("\n".join(_aligned(rows)))


def _part(value: Any) -> Part | None:
    """Returns the parts of a module or of a tree of arrays; None if it holds no array."""
    if isinstance(value, Summarised):
        return value._part()
    if is_array(value):
        return Part(str(value.dtype), tuple(value.shape))
    parts = {name: part for name, one in children(value) if (part := _part(one)) is not None}
    return Part("", None, parts) if parts else None


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields names and values of the children of a dict, a tuple, a list or a dataclass; none of other values."""
    if isinstance(value, dict):
        yield from ((str(name), one) for name, one in value.items())
    elif isinstance(value, tuple | list):
        yield from zip(getattr(value, "_fields", map(str, range(len(value)))), value, strict=True)
    elif is_dataclass(value) and not isinstance(value, type | Summarised):
        yield from ((one.name, getattr(value, one.name)) for one in fields(value))


def _rows(name: str, part: Part, depth: int, times: int) -> Iterator[tuple[str, str, str, str]]:
    numbers = f"{part.numbers:,}" if times == 1 else f"{times} x {part.numbers:,}"
    yield "  " * depth + name, part.about, "" if part.shape is None else str(part.shape), numbers
    for first, last, count, one in _runs(part.parts):
        yield from _rows(first if count == 1 else f"{first} to {last}", one, depth + 1, count)


def _runs(parts: Mapping[str, Part]) -> Iterator[tuple[str, str, int, Part]]:
    """Yields (first name, last name, number, one of them) of neighbours that are equal and have numbers as names."""
    names = list(parts)
    while names:
        first, part = names[0], parts[names[0]]
        count = next((i for i, name in enumerate(names) if not name.isdigit() or parts[name] != part), len(names)) or 1
        yield first, names[count - 1], count, part
        del names[:count]


def _aligned(rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    """Yields lines with columns as wide as their longest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, about, shape, numbers in rows:
        yield f"{name:<{widths[0]}}  {about:<{widths[1]}}  {shape:<{widths[2]}}  {numbers:>{widths[3]}}"


def in_brief(saved: Any) -> str:
    """Returns a line on `saved`: its type, the number of its arrays, and their bytes."""
    arrays: dict[int, Any] = {}
    nodes = [saved]
    while nodes:
        for _, one in children(nodes.pop()):
            if is_array(one):
                arrays[id(one)] = one
            else:
                nodes.append(one)
    size = sum(one.nbytes for one in arrays.values())
    return f"{plural(len(arrays), 'array')}, {plural(size, 'byte')}"
