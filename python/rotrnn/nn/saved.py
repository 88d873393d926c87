"""The `saved` of forward as a tree of arrays: its leaves by name, and a structure with everything else.

    y, saved           = layer.forward(params, x, ctx)
    arrays, structure  = flatten_saved(saved)            # {"layer.h": array, ...}, static
    layer.backward(params, unflatten_saved(structure, arrays), dy)   # the same bits

This works for every layer, block, stack and model. A leaf is an array on any device. Its name consists of the names of
fields, keys and indices, joined by dots. Everything else is structure: the types of the nodes, None, numbers, strings,
settings, and the module whose forward returned it (`rotrnn.nn.module.mark`). The structure can be compared and hashed,
and does not depend on the shapes of arrays.

Structure and shapes depend only on the shapes and dtypes of the input, the state and the parameters, on whether the
context has lengths and places, and on its flags. They do not depend on the values of arrays, including lengths. Only
for packed rows do they depend on where sequences begin (`rotrnn.nn.packing`). So code that keeps or copies `saved`
(captured graphs, adapters to other frameworks, recomputation) can be set up before the first forward, from
`saved_shapes`. The seed and step of a context are values, too: the key of an applied dropout mask is an array.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import is_array
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, astype
from rotrnn.nn.module import maker_of, mark, unmarked

STATIC = (type(None), bool, int, float, complex, str, bytes, type, np.dtype)
"""Types of values that belong to the structure."""


@dataclass(frozen=True)
class Leaf:
    """Placeholder of an array."""


@dataclass(frozen=True)
class Static:
    """A value that is part of the structure."""

    kind: type
    value: Any


@dataclass(frozen=True)
class Node:
    """A NamedTuple, tuple, dict or frozen dataclass, with the names and structures of its children."""

    kind: type
    names: tuple[str, ...]
    children: tuple[Structure, ...]
    maker: Any = None
    """The module whose forward returned it (`rotrnn.nn.module.mark`)."""


Structure = Leaf | Static | Node


def flatten_saved(saved: Any) -> tuple[dict[str, Array], Structure]:
    """Returns the arrays in `saved` by name, in the order of its fields, and its structure.

    The arrays are not copied. An array that occurs several times has several names.

    Raises
    ------
    TypeError
        `saved` contains something that is neither an array nor plain data: a function, a list, a NumPy scalar, or a
        mutable object.
    """
    arrays: dict[str, Array] = {}
    return arrays, _flatten(saved, "", arrays)


def unflatten_saved(structure: Structure, arrays: Mapping[str, Array]) -> Any:
    """Rebuilds `saved` from a structure and arrays: the inverse of `flatten_saved`.

    Raises
    ------
    ValueError
        The names of the arrays differ from the names of the structure's leaves.
    """
    names = leaf_names(structure)
    if set(names) != arrays.keys():
        missing, odd = sorted(set(names) - arrays.keys()), sorted(arrays.keys() - set(names))
        got = f"no {missing[0]!r}" if missing else repr(odd[0])
        raise ValueError(f"unflatten_saved: arrays has {got}, expected the {len(names)} names of the structure")
    return rebuilt(structure, [arrays[name] for name in names])


def arrays_of(structure: Structure, saved: Any) -> list[Array]:
    """Returns the arrays in `saved`, whose structure is known, in the order of `flatten_saved`."""
    arrays: list[Array] = []
    _gather(structure, saved, arrays)
    return arrays


def rebuilt(structure: Structure, arrays: Iterable[Array]) -> Any:
    """The inverse of `arrays_of`."""
    return _unflatten(structure, iter(arrays))


def leaf_names(structure: Structure) -> list[str]:
    """Returns the names of the arrays, in the order of `flatten_saved`."""
    return list(_names(structure, ""))


class Shape(NamedTuple):
    """Shape and dtype of an array."""

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
    """Returns (shapes by name, structure) of the `saved` of a layer, block, stack or model for an input shape.

    Runs forward on zeros, with a copy of the parameters (because batch norm updates its running statistics).

    Parameters
    ----------
    layer, params
        An object with ``forward(params, x, ctx)``, and its parameters, of any precision.
    shape : (B, T, D), or (B, T) of token ids, ...
        Shape of the input.
    dtype : float32 or float64
        Dtype of parameters and input.
    ctx : Context, optional
        Context of forward; of its arrays only the shapes matter.
    inputs : dtype, optional
        Dtype of the input, if not `dtype`: an integer dtype for token ids.

    Raises
    ------
    TypeError, ValueError
        As forward and `flatten_saved`.
    """
    x = np.zeros(shape, dtype if inputs is None else inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConverged)
        _, saved = layer.forward(astype(params, dtype), x, ctx)
    arrays, structure = flatten_saved(saved)
    return {name: Shape(array.shape, array.dtype) for name, array in arrays.items()}, structure


def _flatten(value: Any, name: str, arrays: dict[str, Array]) -> Structure:
    if isinstance(value, STATIC) and not isinstance(value, np.generic):  # np.float64 is a float, too, but a value
        return Static(type(value), value)
    if is_array(value):
        arrays[name] = value
        return Leaf()
    names, children = _children(value, name)
    before = len(arrays)
    nodes = tuple(_flatten(child, _join(name, key), arrays) for key, child in zip(names, children, strict=True))
    if is_dataclass(value) and len(arrays) == before:  # settings; rebuilding them would only repeat their checks
        return Static(type(value), value)
    return Node(unmarked(type(value)), names, nodes, maker_of(value))


def _children(value: Any, name: str) -> tuple[tuple[str, ...], list[Any]]:
    """Returns names and values of the children of a node."""
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


def _gather(node: Structure, value: Any, arrays: list[Array]) -> None:
    if isinstance(node, Leaf):
        arrays.append(value)
    elif isinstance(node, Node):
        parts = value if isinstance(value, tuple) else _children(value, "")[1]
        for child, part in zip(node.children, parts, strict=True):
            _gather(child, part, arrays)


def _unflatten(node: Structure, arrays: Iterator[Array]) -> Any:
    if isinstance(node, Leaf):
        return next(arrays)
    if isinstance(node, Static):
        return node.value
    children = [_unflatten(child, arrays) for child in node.children]
    if issubclass(node.kind, tuple):
        made = tuple(children) if node.kind is tuple else node.kind(*children)
        return made if node.maker is None else mark(made, node.maker)
    return node.kind(**dict(zip(node.names, children, strict=True)))


def _names(node: Structure, name: str) -> Any:
    if isinstance(node, Leaf):
        yield name
    elif isinstance(node, Node):
        for key, child in zip(node.names, node.children, strict=True):
            yield from _names(child, _join(name, key))


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
