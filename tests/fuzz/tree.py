"""Arguments of a call as a tree: nodes by path, replaced, copied.

Inner nodes are tuples, NamedTuples, lists, dicts, dataclasses, and streams whose engine is Python. Everything else is a
leaf.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from rotrnn import Stream

Path = tuple[Any, ...]
LARGE = 1 << 24
"""Bytes of an array that is not copied or compared."""
STREAM = ("params", "prepared", "state", "tokens", "batch")


def children(node: Any) -> dict[Any, Any]:
    """Returns the children of a node by name or index; {} for a leaf."""
    if isinstance(node, tuple):
        return dict(zip(getattr(node, "_fields", range(len(node))), node, strict=True))
    if isinstance(node, list):
        return dict(enumerate(node))
    if type(node) is dict:
        return node
    if isinstance(node, Stream) and node.engine == "python":
        return {name: getattr(node._engine, name) for name in STREAM}
    if is_dataclass(node) and not isinstance(node, type):
        return {one.name: getattr(node, one.name) for one in fields(node) if one.init and one.name[0] != "_"}
    return {}


def rebuilt(node: Any, parts: dict[Any, Any]) -> Any:
    """Returns a node like `node` with these children. A dataclass checks its fields, and may raise."""
    if isinstance(node, tuple):
        return type(node)(*parts.values()) if hasattr(node, "_fields") else tuple(parts.values())
    if isinstance(node, list):
        return list(parts.values())
    if isinstance(node, Stream):
        stream = object.__new__(Stream)
        vars(stream).update(vars(node), _engine=copy.copy(node._engine))
        vars(stream._engine).update(parts)
        return stream
    if is_dataclass(node) and not isinstance(node, type):
        changed = {name: part for name, part in parts.items() if part is not getattr(node, name)}
        return replace(node, **changed) if changed else node
    return parts


def mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the tree with every leaf replaced by ``change(leaf)``."""
    parts = children(node)
    return rebuilt(node, {key: mapped(part, change) for key, part in parts.items()}) if parts else change(node)


def at(node: Any, path: Path) -> Any:
    """Returns the node at a path; KeyError if there is none."""
    for key in path:
        node = children(node)[key]
    return node


def put(node: Any, path: Path, value: Any) -> Any:
    """Returns the tree with `value` at the path."""
    if not path:
        return value
    parts = children(node)
    return rebuilt(node, {**parts, path[0]: put(parts[path[0]], path[1:], value)})


def leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the leaves with their paths."""
    parts = children(node)
    if not parts:
        yield path, node
    for key, part in parts.items():
        yield from leaves(part, (*path, key))


def arrays(node: Any) -> list[np.ndarray[Any, Any]]:
    return [leaf for _, leaf in leaves(node) if isinstance(leaf, np.ndarray)]


def copied(node: Any) -> Any:
    """Returns the tree with copies of its arrays and generators. (Subclasses of arrays are read-only, and stay.)"""

    def copy_of(leaf: Any) -> Any:
        if isinstance(leaf, np.random.Generator | Stream):
            return copy.deepcopy(leaf)
        return leaf.copy("K") if type(leaf) is np.ndarray else leaf

    return mapped(node, copy_of)


def plain(node: Any) -> Any:
    """Returns the tree with every array by itself, in C order, aligned, writeable and in native byte order.

    (Not those that only pretend to be large.)
    """

    def fresh(leaf: Any) -> Any:
        if type(leaf) is not np.ndarray or leaf.dtype.hasobject or leaf.nbytes > LARGE:
            return leaf
        return np.array(leaf, leaf.dtype.newbyteorder("="), order="C")

    return mapped(node, fresh)


def names(node: Any) -> set[str]:
    """Returns the keys of all inner nodes."""
    parts = children(node)
    return {key for key in parts if isinstance(key, str)}.union(*[names(part) for part in parts.values()])


def kinds(node: Any) -> set[str]:
    """Returns the names of the types of all inner nodes."""
    parts = children(node)
    return {type(node).__name__}.union(*[kinds(part) for part in parts.values()])
