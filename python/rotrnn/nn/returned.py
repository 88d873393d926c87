"""Checks of the results of methods and functions from outside the package: a user's own layers and instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import an
from rotrnn.devices.device import is_array

DType = np.dtype[Any]
PARTNERS = {np.dtype(one): np.dtype(other) for one, other in (("f4", "c8"), ("f8", "c16"), ("c8", "f4"), ("c16", "f8"))}
"""The dtype of complex numbers in the precision of each real dtype, and the other way round."""


def is_foreign(kind: type) -> bool:
    """Returns whether a class is from outside the package."""
    return kind.__module__.partition(".")[0] != "rotrnn"


def dtypes_of(values: Iterable[Any]) -> tuple[DType, ...]:
    """Returns the dtypes of the arrays among these values, and in their tuples, lists and dicts, each once."""
    return tuple(dict.fromkeys(one.dtype for one in _arrays_in(values)))


def _arrays_in(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if is_array(one):
            yield one
        elif isinstance(one, dict):
            yield from _arrays_in(one.values())
        elif isinstance(one, tuple | list):
            yield from _arrays_in(one)


def of_precision(dtypes: Iterable[DType]) -> tuple[DType, ...]:
    """Returns dtypes, followed by the complex dtypes of the same precision, or real ones where these are complex."""
    known = tuple(dtypes)
    return tuple(dict.fromkeys((*known, *(PARTNERS[one] for one in known if one in PARTNERS))))


def check_array(title: str, value: Any, shape: Sequence[int | None], dtypes: Sequence[DType]) -> None:
    """Raises TypeError or ValueError, which begin with `title`, if a value is not an array of this shape (None: any
    size) and of one of these dtypes (none: any)."""
    expected = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ("," * (len(shape) == 1)) + ")"
    if not is_array(value):
        got = "None" if value is None else an(type(value).__name__)
        raise TypeError(f"{title} as {got}, expected an array of shape {expected}")
    sizes = tuple(value.shape)
    if len(sizes) != len(shape) or any(want not in (None, got) for got, want in zip(sizes, shape, strict=True)):
        raise ValueError(f"{title} of shape {sizes}, expected {expected}")
    if dtypes and value.dtype not in dtypes:
        raise TypeError(f"{title} of dtype {value.dtype}, expected {' or '.join(map(str, dtypes))}")


def read_only(value: Any) -> Any:
    """Returns a view of an array, or of each array in a tuple, that cannot be written to."""
    if isinstance(value, tuple):
        parts = map(read_only, value)
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if not isinstance(value, np.ndarray):
        return value
    view: npt.NDArray[Any] = value.view()
    view.flags.writeable = False
    return view


def writeable(value: Any) -> Any:
    """Returns an array that can be written to: a copy where NumPy's array cannot. Other values stay as they are."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value
