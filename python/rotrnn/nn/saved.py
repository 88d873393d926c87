"""What forward saves as a tree of arrays: its leaves by name, and a structure that holds all the rest.

    y, saved           = layer.forward(params, x, ctx)
    arrays, structure  = flatten_saved(saved)            # {"layer.h": array, ...}, static
    layer.backward(params, unflatten_saved(structure, arrays), dy)   # the same bits

Of every layer, block, stack and model. A leaf is an array, on whatever device; names are those of fields, keys and
places, with dots between them. All else is structure: the types of the nodes, None, numbers, texts and settings. It
can be compared and hashed, and says nothing of the arrays' shapes.

Structure and shapes follow from the shapes and dtypes of the input, the state and the parameters, from whether the
context has lengths and places, and from its flags; values of arrays, lengths among them, change neither. So what
keeps or copies a saved (a graph that is captured once, an adapter to another framework, a choice of what to recompute)
can be built before the first forward, from `saved_shapes`. The seed and step of a context are values, too: the key of
the dropout that was applied is an array.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, astype
from rotrnn.ops.device import is_array

STATIC = (type(None), bool, int, float, complex, str, bytes, type, np.dtype)
"""Types of what is structure by itself."""


@dataclass(frozen=True)
class Leaf:
    """The place of an array."""


@dataclass(frozen=True)
class Static:
    """A value that is the same in every saved of this structure."""

    kind: type
    value: Any


@dataclass(frozen=True)
class Node:
    """A NamedTuple, tuple, dict or frozen dataclass, and the names and structures of what it holds."""

    kind: type
    names: tuple[str, ...]
    children: tuple[Structure, ...]


Structure = Leaf | Static | Node


def flatten_saved(saved: Any) -> tuple[dict[str, Array], Structure]:
    """The arrays of a saved by name, in the order of its fields, and its structure.

    The arrays are those of `saved` themselves, no copies; one that stands in several places has several names.

    Raises
    ------
    TypeError
        It holds what is neither an array nor plain data: a function, a list, a NumPy scalar, a mutable object.
    """
    arrays: dict[str, Array] = {}
    return arrays, _flatten(saved, "", arrays)


def unflatten_saved(structure: Structure, arrays: Mapping[str, Array]) -> Any:
    """The saved of this structure with these arrays: the inverse of `flatten_saved`.

    Raises
    ------
    ValueError
        The names of the arrays are not those of the structure's leaves.
    """
    names = leaf_names(structure)
    if set(names) != arrays.keys():
        missing, odd = sorted(set(names) - arrays.keys()), sorted(arrays.keys() - set(names))
        got = f"no {missing[0]!r}" if missing else repr(odd[0])
        raise ValueError(f"unflatten_saved: arrays has {got}, expected the {len(names)} names of the structure")
    return _unflatten(structure, "", arrays)


def leaf_names(structure: Structure) -> list[str]:
    """The names of the arrays, in the order in which `flatten_saved` gives them."""
    return list(_names(structure, ""))


class Shape(NamedTuple):
    """Of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def saved_shapes(
    layer: Any,
    params: Params,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    ctx: Context = EVALUATION,
    *,
    inputs: npt.DTypeLike | None = None,
) -> tuple[dict[str, Shape], Structure]:
    """What the forward of a layer, block, stack or model saves on an input of this shape: (shapes by name, structure).

    By a forward on zeros, of copies of the parameters (batch norm moves its running statistics).

    Parameters
    ----------
    layer, params
        What has ``forward(params, x, ctx)``, and its parameters, of any precision.
    shape : (B, T, D), or (B, T) of token ids, ...
        Of the input.
    dtype : float32 or float64
        Of parameters and input.
    ctx : Context, optional
        Of the forward; of its arrays only their shapes matter.
    inputs : dtype, optional
        Of the input, if not `dtype`: an integer one for token ids.

    Raises
    ------
    TypeError, ValueError
        As forward, and as `flatten_saved`.
    """
    x = np.zeros(shape, dtype if inputs is None else inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        _, saved = layer.forward(astype(params, dtype), x, ctx)
    arrays, structure = flatten_saved(saved)
    return {name: Shape(array.shape, array.dtype) for name, array in arrays.items()}, structure


def _flatten(value: Any, name: str, arrays: dict[str, Array]) -> Structure:
    if isinstance(value, STATIC) and not isinstance(value, np.generic):  # np.float64 is a float, and made of values
        return Static(type(value), value)
    if is_array(value):
        arrays[name] = value
        return Leaf()
    names, children = _children(value, name)
    before = len(arrays)
    nodes = tuple(_flatten(child, _join(name, key), arrays) for key, child in zip(names, children, strict=True))
    if is_dataclass(value) and len(arrays) == before:  # settings, which are checked when they are made, and only then
        return Static(type(value), value)
    return Node(type(value), names, nodes)


def _children(value: Any, name: str) -> tuple[tuple[str, ...], list[Any]]:
    """Names and values of what a node holds."""
    kind = type(value)
    if isinstance(value, tuple):
        return getattr(kind, "_fields", tuple(map(str, range(len(value))))), list(value)
    if kind is dict and all(isinstance(key, str) for key in value):
        return tuple(value), list(value.values())
    if is_dataclass(value) and kind.__dataclass_params__.frozen:
        names = tuple(one.name for one in fields(value))
        return names, [getattr(value, one) for one in names]
    raise TypeError(
        f"flatten_saved: {name or 'saved'} is of type {kind.__name__}, expected arrays and plain data, in NamedTuples, "
        "tuples, dicts with names and frozen dataclasses"
    )


def _unflatten(node: Structure, name: str, arrays: Mapping[str, Array]) -> Any:
    if isinstance(node, Leaf):
        return arrays[name]
    if isinstance(node, Static):
        return node.value
    children = [
        _unflatten(child, _join(name, key), arrays) for key, child in zip(node.names, node.children, strict=True)
    ]
    if node.kind is tuple:
        return tuple(children)
    if issubclass(node.kind, tuple):
        return node.kind(*children)
    return node.kind(**dict(zip(node.names, children, strict=True)))


def _names(node: Structure, name: str) -> Any:
    if isinstance(node, Leaf):
        yield name
    elif isinstance(node, Node):
        for key, child in zip(node.names, node.children, strict=True):
            yield from _names(child, _join(name, key))


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
