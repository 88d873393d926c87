"""What the fuzzer does to the arguments of a good call.

A mutation is a path into the arguments, a kind, and a seed. The same mutation does the same again, so a call is
reproduced by its mutations alone, and a found one is shrunk by leaving some of them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fuzz.tree import LARGE, Path, arrays, at, children, mapped, put

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

INTEGERS = (-1, 0, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**30)
FLOATS = (0.0, -0.0, -1.0, 1.0, 1e-320, 1e-40, 1e30, 1e300, -1e300, float("inf"), -float("inf"), float("nan"))
MOST_AXES = 32
"""Some of NumPy's functions take no more."""
DTYPES = (
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    "?",
    "i1",
    "u1",
    "i4",
    "i8",
    "u8",
    "O",
    "U3",
    "S2",
    "M8[s]",
    "m8[s]",
    "V8",
)


class Mutation(NamedTuple):
    path: Path
    kind: str
    seed: int


class Sub(np.ndarray):
    """A subclass of arrays."""


class Tensor:
    """A stand-in for an array of another library."""

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, *_: Any, **__: Any) -> Array:
        return self.array


def one_of(rng: Rng, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


# ---- the same numbers in another layout ----


def strided(rng: Rng, x: Array) -> Array:
    if not x.ndim:
        return x
    axis = int(rng.integers(x.ndim))
    wide = np.full([size * (3 if i == axis else 1) for i, size in enumerate(x.shape)], 7).astype(x.dtype)
    view = wide[tuple(slice(1, None, 3) if i == axis else slice(None) for i in range(x.ndim))]
    view[...] = x
    return view


def unaligned(rng: Rng, x: Array) -> Array:
    room = np.zeros(x.nbytes + 16, np.uint8)
    start = int(rng.integers(1, 8))
    view = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(rng: Rng, x: Array) -> Array:
    x = x.copy("K")
    x.flags.writeable = False
    return x


def inside(rng: Rng, x: Array) -> Array:
    """A view into the middle of a larger array: reads beyond it find other numbers, not the end of the memory."""
    wide = np.full(x.size + 8, 7).astype(x.dtype)
    view = wide[3 : 3 + x.size].reshape(x.shape)
    view[...] = x
    return view


LAYOUT: dict[str, Callable[[Rng, Array], Any]] = {
    "fortran": lambda rng, x: np.asfortranarray(x),
    "strided": strided,
    "backwards": lambda rng, x: np.flip(np.ascontiguousarray(np.flip(x))) if x.ndim else x,
    "unaligned": unaligned,
    "read-only": read_only,
    "byte-swapped": lambda rng, x: x.astype(x.dtype.newbyteorder()),
    "inside": inside,
}

# ---- other numbers, shapes and types ----


def retyped(rng: Rng, x: Array) -> Array:
    with np.errstate(all="ignore"):
        try:
            return x.astype(one_of(rng, DTYPES))
        except (TypeError, ValueError):
            return np.zeros(x.shape, "U3")


def reshaped(rng: Rng, x: Array) -> Array:
    if x.ndim > MOST_AXES - 1:
        return x
    ways: list[Callable[[], Array]] = [
        lambda: x[None],
        lambda: x[..., None],
        lambda: x.ravel(),
        lambda: x.T.copy(),
        lambda: x.reshape(-1)[:1].reshape(()) if x.size else np.zeros((), x.dtype),
        lambda: x.reshape((1,) * (MOST_AXES - x.ndim) + x.shape),
    ]
    if x.ndim:
        ways += [
            lambda: np.asarray(x.sum(0) if x.dtype.kind in "fciub" else x[:1]).astype(x.dtype),
            lambda: x[..., 0].copy() if x.shape[-1] else x[..., None],
        ]
    return np.array(one_of(rng, ways)())


def resized(rng: Rng, x: Array) -> Array:
    if not x.ndim:
        return np.resize(x, 2)
    shape = list(x.shape)
    axis = int(rng.integers(x.ndim))
    shape[axis] = one_of(rng, (0, 1, max(shape[axis] - 1, 0), shape[axis] + 1, 2 * shape[axis] + 3))
    return np.resize(x, shape) if x.size else np.zeros(shape, x.dtype)


def immense(rng: Rng, x: Array) -> Array:
    """A view of one number that pretends to be immense.

    (Not of an empty array: some ops loop over its other axes, for minutes.)
    """
    if not x.size:
        return x
    size = one_of(rng, (2**38, 2**45, 2**58))
    one = np.zeros((1,) * max(x.ndim, 1), x.dtype)
    shape = [int(size)] + [1] * (one.ndim - 1) if rng.random() < 0.5 else [*x.shape[1:], int(size)][-one.ndim :]
    try:
        return np.broadcast_to(one, shape)
    except ValueError:  # more than NumPy can address
        return np.broadcast_to(one, [2**40] + [1] * (one.ndim - 1))


def renumbered(rng: Rng, x: Array) -> Array:
    """Some numbers replaced by odd ones."""
    x = x.copy()
    if not x.size or x.dtype.kind not in "fciub":
        return x
    some = np.array(rng.random(x.shape) < one_of(rng, (0.1, 1.0)))
    flat = int(rng.integers(x.size))
    some[np.unravel_index(flat, x.shape)] = True
    with np.errstate(all="ignore"):
        if x.dtype.kind in "fc":
            x[some] = np.asarray(one_of(rng, FLOATS)).astype(x.dtype)
        else:
            if rng.random() < 0.3:
                x = x.astype(one_of(rng, ("u8", "i4", "u1")))
            limits = (0, 1) if x.dtype.kind == "b" else (int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max))
            near = [int(x.flat[flat]) + k for k in (-2, -1, 1, 2, 7)]
            numbers = [n for n in (*INTEGERS, *near, 2**63 - 3, 2**64 - 3, *limits) if limits[0] <= n <= limits[1]]
            x[some] = one_of(rng, numbers)
    return x


def another_type(rng: Rng, x: Any) -> Any:
    return one_of(rng, (None, "text", object(), [], {}, (), 3, 1.5, b"bytes", True, 2j, np.float64(2), int, [[1, [2]]]))


VALUES: dict[str, Callable[[Rng, Array], Any]] = {
    "retyped": retyped,
    "reshaped": reshaped,
    "resized": resized,
    "immense": immense,
    "renumbered": renumbered,
    "masked": lambda rng, x: np.ma.masked_array(x, rng.random(x.shape) < 0.5),
    "subclass": lambda rng, x: x.view(Sub),
    "foreign": lambda rng, x: Tensor(x),
    "list": lambda rng, x: x.tolist(),
    "one number repeated": lambda rng, x: (
        np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape) if x.size else x
    ),
    "another type": another_type,
}

NUMBERS: dict[str, Callable[[Rng, Any], Any]] = {
    "another number": lambda rng, x: one_of(rng, INTEGERS) if isinstance(x, int) else one_of(rng, FLOATS),
    "near": lambda rng, x: x + one_of(rng, (-1, 1, 2)) if not isinstance(x, bool) else not x,
    "numpy": lambda rng, x: one_of(rng, (np.int64,) * bool(abs(x) < 2**63) + (np.float32, np.float64, np.array))(x),
    "other kind": lambda rng, x: one_of(rng, (*FLOATS, *INTEGERS, True)),
    "another type": another_type,
}

OTHERS: dict[str, Callable[[Rng, Any], Any]] = {"another type": another_type}
"""For strings, functions, None and inner nodes."""

# ---- changes that look at the other arguments ----


def single(rng: Rng, tree: Any, path: Path) -> Any:
    """Every array in single precision, as a good call may have it."""
    to = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}
    return mapped(
        tree, lambda leaf: leaf.astype(to[leaf.dtype]) if type(leaf) is np.ndarray and leaf.dtype in to else leaf
    )


def alias(rng: Rng, tree: Any, path: Path) -> Any:
    """Another of the arguments' arrays, or a view of one, in place of this."""
    found = [one for one in arrays(tree) if type(one) is np.ndarray]
    if not found:
        return tree
    other, this = one_of(rng, found), at(tree, path)
    if isinstance(this, np.ndarray) and other.size > this.size and other.dtype == this.dtype and rng.random() < 0.7:
        other = other.reshape(-1)[: this.size].reshape(this.shape)
    elif rng.random() < 0.3:
        other = other[...]
    return put(tree, path, other)


def lengths(rng: Rng, tree: Any, path: Path) -> Any:
    """Lengths, positions or labels, most of them good, for the first array of rank three."""
    shapes = [one.shape for one in arrays(tree) if one.ndim == 3] or [(2, 3)]
    B, T = shapes[0][:2]
    low, high = one_of(rng, ((0, T + 1), (0, T + 1), (-1, T + 2)))
    return put(tree, path, rng.integers(low, high, B) if B < 2**20 else 3)


def without(rng: Rng, tree: Any, path: Path) -> Any:
    """A dict, list or tuple without one of its entries, or with one more."""
    node = at(tree, path)
    if type(node) not in (dict, list, tuple) or not node:
        return put(tree, path, another_type(rng, node))
    key = one_of(rng, list(children(node)))
    more = rng.random() < 0.3 or len(node) == 1  # a stack without blocks is the identity
    if isinstance(node, dict):
        other = {**node, "more": node[key]} if more else {name: one for name, one in node.items() if name != key}
    else:
        other = type(node)([*node, node[key]] if more else [one for i, one in enumerate(node) if i != key])
    return put(tree, path, other)


WHOLE: dict[str, Callable[[Rng, Any, Path], Any]] = {
    "single": single,
    "alias": alias,
    "lengths": lengths,
    "without": without,
}


def kinds_for(value: Any) -> dict[str, float]:
    """Returns the kinds of mutation that fit a value, with their weights."""
    if type(value) is np.ndarray:
        if value.dtype.kind in "iu":  # what a kernel may index by
            return {**dict.fromkeys(LAYOUT, 0.5), **dict.fromkeys(VALUES, 0.5), "renumbered": 8, "alias": 1}
        return {**dict.fromkeys(LAYOUT, 1.0), **dict.fromkeys(VALUES, 0.7), "renumbered": 2, "resized": 2, "alias": 2}
    if isinstance(value, bool | int | float | np.number):
        return dict.fromkeys(NUMBERS, 1.0)
    if value is None:
        return {"alias": 1, "lengths": 1, "another type": 1}
    if children(value):
        return {"without": 2, "another type": 1, "donated": 3}
    return {"another type": 1, "alias": 0.3}


def chosen(rng: Rng, arguments: dict[str, Any]) -> Mutation:
    """Returns a random mutation: an argument, a node on the way from it to a leaf, and a kind that fits the node."""
    if not arguments:
        return Mutation((), "single", 0)
    node: Any = arguments
    path: Path = ()
    while parts := children(node):
        if path and path != ("self",) and rng.random() < 0.15:
            break
        key = one_of(rng, list(parts))
        path, node = (*path, key), parts[key]
    if path == ("self",):  # a module without settings
        return chosen(rng, {name: one for name, one in arguments.items() if name != "self"})
    weights = kinds_for(node)
    total = sum(weights.values())
    kind = str(rng.choice(list(weights), p=[one / total for one in weights.values()]))
    return Mutation(path, kind, int(rng.integers(2**31)))


def applied(arguments: dict[str, Any], mutation: Mutation, donor: Callable[[int, Path], Any]) -> dict[str, Any]:
    """Returns the arguments with this mutation. `donor` gives what another call has at a path.

    A mutation that does not fit, since one before it changed the node, changes nothing.
    """
    path, kind, seed = mutation
    rng = np.random.default_rng(seed)
    try:
        value = at(arguments, path)
    except KeyError:
        return arguments
    if kind == "donated":
        changed: Any = put(arguments, path, donor(seed, path))
    elif kind in WHOLE:
        changed = WHOLE[kind](rng, arguments, path)
    elif type(value) is np.ndarray and kind in (table := {**LAYOUT, **VALUES}):
        small = value.nbytes <= LARGE and not value.dtype.hasobject
        changed = put(arguments, path, table[kind](rng, value)) if small else arguments
    elif isinstance(value, bool | int | float | np.number) and kind in NUMBERS:
        changed = put(arguments, path, NUMBERS[kind](rng, value))
    elif kind in OTHERS:
        changed = put(arguments, path, OTHERS[kind](rng, value))
    else:
        changed = arguments
    return changed  # type: ignore[no-any-return]
