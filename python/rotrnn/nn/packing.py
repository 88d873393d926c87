"""Packed rows: sequences that lie one after the other in a row, without padding (`Context.cu_seqlens` and `reset`).

Functions of each step run on a packed row directly. Functions along time get the segments of the row as a padded batch
with lengths. `Segments.batch` and `Segments.packed` gather rows, and each is the adjoint of the other. Segments are
grouped by length, so that there is at most as much padding as there are steps; each group is a batch.

A recurrent layer is unpacked as a whole (`rotrnn.nn.layer.Recurrent`), a program line by line (`rotrnn.nn.program`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import an
from rotrnn.devices.device import Array, contiguous, device_of, empty
from rotrnn.devices.recording import NotRecordable, recording
from rotrnn.ops.boundary import Boundary, CheckedLengths, on_host
from rotrnn.ops.pointwise import rows_of

Index = npt.NDArray[np.int64]
RATIOS = (math.inf, 16, 8, 4, 2)
"""Limits of the ratio of a group's longest to its shortest segment. The first limit with no more padding than steps is
used; 2 ensures it."""


class Packed(NamedTuple):
    """A packed row x (1, T, ...), and where its sequences begin and end, (S + 1,) int64."""

    x: Array
    cu_seqlens: Index


def pack(sequences: Sequence[Array]) -> Packed:
    """Packs sequences into one row, one after the other: the input of forward, and `cu_seqlens` of its context.

        x, cu_seqlens = rotrnn.pack(sequences)
        y, saved = layer.forward(params, x, rotrnn.Context(cu_seqlens=cu_seqlens))
        parts = np.split(y[0], cu_seqlens[1:-1])

    Parameters
    ----------
    sequences : S arrays (T_s, ...)
        Of features (T_s, D), or of token ids (T_s,), of any lengths; S is at least 1. Labels of steps are packed alike.

    Returns
    -------
    x : (1, T, ...)
        T is the sum of the T_s.
    cu_seqlens : (S + 1,) int64
        Sequence s is ``x[0, cu_seqlens[s] : cu_seqlens[s + 1]]``.

    Raises
    ------
    TypeError, ValueError
        There is no sequence; one is no array with a time axis, is on another device, or has other sizes behind it.
    """
    args = Boundary("pack")
    if isinstance(sequences, str | bytes | dict) or not isinstance(sequences, Iterable):
        raise TypeError(f"pack: sequences is {an(type(sequences).__name__)}, expected a list of arrays")
    parts = [args.any_array(f"sequences[{i}]", one) for i, one in enumerate(sequences)]
    if not parts:
        raise ValueError("pack: sequences is empty, expected at least one sequence")
    for i, one in enumerate(parts):
        if one.ndim == 0 or one.shape[1:] != parts[0].shape[1:]:
            rest = ", ".join(["time", *map(str, parts[0].shape[1:])])
            like = " as sequences[0]" if i else ", an array with a time axis"
            raise ValueError(f"pack: sequences[{i}] has shape {one.shape}, expected ({rest}){like}")
        if one.dtype.kind not in "biufc":
            raise TypeError(f"pack: sequences[{i}] has dtype {one.dtype}, expected numbers")
    # an empty list is one of floats, which must not make floats of token ids
    dtypes = [one.dtype for one in parts if len(one)] or [parts[0].dtype]
    parts = [one.astype(np.result_type(*dtypes), copy=False) for one in parts]
    return Packed(np.concatenate(parts)[None], np.cumsum([0, *map(len, parts)], dtype=np.int64))


class Rows:
    """Indices of rows, on the CPU, and a copy on each other device that has asked for them."""

    def __init__(self, rows: Index) -> None:
        self.rows = rows
        self._copies: dict[Any, Array] = {}

    def beside(self, like: Array) -> Array:
        device = device_of(like)
        place = device.name, device.here()
        if place not in self._copies:
            self._copies[place] = device.asarray(self.rows)
        return self._copies[place]


class Group:
    """Segments that run as one batch (n, L): their `places` (n,) among all segments, their `lengths` (n,), and the
    `rows` (n, L) of their steps, if all steps of a packed batch are rows of a table; in padding, any row."""

    def __init__(self, places: Index, starts: Index, lengths: Index) -> None:
        n, L = self.shape = len(places), int(lengths.max(initial=0))
        self.places, self.lengths = Rows(places), CheckedLengths.of(lengths, n, L)
        last = np.maximum(starts + lengths - 1, 0)
        self.rows = Rows(np.minimum(starts[:, None] + np.arange(L), last[:, None]))
        self.valid = np.arange(L) < lengths[:, None]
        begin = int(starts[0]) if n else 0
        consecutive = bool(self.valid.all() and (starts == begin + L * np.arange(n)).all())
        self.slice = slice(begin, begin + n * L) if consecutive else None
        """The rows, if they are consecutive and none is padding."""

    def of(self, leaf: Array) -> Array:
        """Returns the group's part of an array (S, ...) with a row for each segment."""
        return leaf[self.places.beside(leaf)]


@dataclass(frozen=True)
class Segments:
    """The segments of a packed batch (B, T): their first steps and their lengths, (S,) each, counted through all rows.

    By `reset`, rows are cut into segments, and each row has a state: `begins` (B,) are the segments that begin with the
    given state of their row, -1 where it is reset before the first step, and `ends` (B,) the last segments of rows,
    whose final state is the row's. Otherwise both are None, and each segment has a state.

    If they run `together`, all segments are one group, however much padding there is.
    """

    B: int
    T: int
    starts: Index
    lengths: Index
    begins: Index | None = None
    ends: Index | None = None
    together: bool = False

    def as_one(self, together: bool) -> Segments:
        """Returns the segments as one group if they run `together`, else unchanged, with their groups computed."""
        return replace(self, together=True) if together and not self.together else self

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        order = np.argsort(-self.lengths, kind="stable")
        falling = self.lengths[order]
        for ratio in RATIOS:
            cuts = _cuts(falling, ratio)
            padded = sum((end - first) * int(falling[first]) for first, end in cuts if first < end)
            if self.together or padded <= 2 * self.B * self.T:
                break
        members = [np.sort(order[first:end]) for first, end in cuts]
        return tuple(Group(places, self.starts[places], self.lengths[places]) for places in members)

    @cached_property
    def _back(self) -> Rows:
        """Where each step of the batch (B, T) is in the groups, one after the other."""
        rows, first = np.zeros(self.B * self.T, np.int64), 0
        for group in self.groups:
            rows[group.rows.rows[group.valid]] = first + np.flatnonzero(group.valid)
            first += group.valid.size
        return Rows(rows.reshape(self.B, self.T))

    # ---- arrays along time ----

    def batch(self, group: Group, x: Array) -> Array:
        """Returns the steps of x (B, T, ...) that a group has, as (n, L, ...), zero in padding; a view if it can be."""
        shape = *group.shape, *x.shape[2:]
        if group.slice is not None:
            return contiguous(x).reshape(self.B * self.T, *x.shape[2:])[group.slice].reshape(shape)
        return rows_of(_table(x), group.rows.beside(x), group.lengths).view(x.dtype).reshape(shape)

    def packed(self, parts: Sequence[Array]) -> Array:
        """Returns (B, T, ...) of a batch (n, L, ...) for each group: the adjoint of `batch`."""
        first = parts[0]
        shape = self.B, self.T, *first.shape[2:]
        if len(parts) == 1 and self.groups[0].slice is not None:
            return first.reshape(shape)
        return rows_of(_joined([*map(_table, parts)]), self._back.beside(first)).view(first.dtype).reshape(shape)

    # ---- states: arrays with a row for each segment, tuples of them, or None ----

    def collected(self, parts: Sequence[Any], newest_last: Any = False) -> Any:
        """Returns (S, ...) from (n, ...) for each group, or tuples of these: the adjoint of `Group.of`. An array that
        has grown less than another group's gets rows of zeros (`StateArray.newest_last`)."""
        first = parts[0]
        if first is None or (len(parts) == 1 and not isinstance(first, tuple)):
            return first
        if isinstance(first, tuple):
            newest = newest_last if isinstance(newest_last, tuple) else (newest_last,) * len(first)
            return tuple(map(self.collected, zip(*parts, strict=True), newest))
        rest = max(one.shape[1:] for one in parts)
        whole = np.zeros((len(self.lengths), *rest), first.dtype, like=first)
        for group, one in zip(self.groups, parts, strict=True):
            whole[group.places.beside(one)] = one if one.shape[1:] == rest else _grown(one, rest[0], newest_last)
        return whole

    def before(self, state: Any) -> Any:
        """Returns the states before segments from the given states: zero for a segment that begins by a reset."""
        return state if self.begins is None else each(lambda leaf: self._spread(leaf, self.begins), state)

    def before_backward(self, dstate: Any) -> Any:
        return dstate if self.begins is None else each(lambda leaf: self._taken(leaf, self.begins), dstate)

    def after(self, state: Any) -> Any:
        """Returns the states after the batch from the states after segments."""
        return state if self.ends is None else each(lambda leaf: self._taken(leaf, self.ends), state)

    def after_backward(self, dstate: Any) -> Any:
        return dstate if self.ends is None else each(lambda leaf: self._spread(leaf, self.ends), dstate)

    def _spread(self, leaf: Array, segments: Any) -> Array:
        """Returns (S, ...): the rows of an array (B, ...) at these segments, -1 for none, and else zero."""
        there, device = segments >= 0, device_of(leaf)
        whole = np.zeros((len(self.lengths), *leaf.shape[1:]), leaf.dtype, like=leaf)
        whole[device.asarray(segments[there])] = leaf[device.asarray(np.flatnonzero(there))]
        return whole

    def _taken(self, leaf: Array, segments: Any) -> Array:
        """Adjoint of `_spread`."""
        there, device = segments >= 0, device_of(leaf)
        rows = np.zeros((self.B, *leaf.shape[1:]), leaf.dtype, like=leaf)
        rows[device.asarray(np.flatnonzero(there))] = leaf[device.asarray(segments[there])]
        return rows


class PackedSaved(NamedTuple):
    """Saved by an unpacked layer, or line of a program: the saved arrays of each group. For a layer also which arrays
    of its state have the newest steps last (`StateArray.newest_last`), for a line the shapes of its state after each
    group."""

    segments: Segments
    parts: tuple[Any, ...]
    shapes: tuple[Any, ...] = ()
    newest_last: Any = False
    lengths: None = None

    @property
    def state(self) -> Any:
        """The state after the batch."""
        return self.segments.after(self.segments.collected([one.state for one in self.parts], self.newest_last))

    @property
    def iterate(self) -> Array:
        """The fixed point (B, T, ...) of a layer that iterates."""
        return self.segments.packed([one.iterate for one in self.parts])

    @property
    def report(self) -> Any:
        """The report of a layer that iterates, for each segment."""
        reports = [one.report for one in self.parts]
        return type(reports[0])(*self.segments.collected([tuple(one) for one in reports]))


def along(saved: Any, function: Callable[[Any], Array]) -> Array:
    """Returns a function, an array along time, of what an unpacked layer, or line of a program, has saved."""
    if not isinstance(saved, PackedSaved):
        return function(saved)
    return saved.segments.packed([function(one) for one in saved.parts])


def inside(saved: Any, name: str) -> Any:
    """Returns an attribute of a layer's `saved`: the `saved` of a layer inside it."""
    if not isinstance(saved, PackedSaved):
        return getattr(saved, name)
    return PackedSaved(saved.segments, tuple(getattr(one, name) for one in saved.parts))


def each(function: Callable[[Any], Any], state: Any) -> Any:
    """Returns a state with a function of each array in it."""
    if isinstance(state, tuple):
        return tuple(each(function, one) for one in state)
    return None if state is None else function(state)


def shapes_of(state: Any) -> Any:
    """Returns the shapes of the arrays of a state."""
    return tuple(map(shapes_of, state)) if isinstance(state, tuple) else getattr(state, "shape", None)


def of_group(group: Group, dstate: Any, shapes: Any, newest_last: Any) -> Any:
    """Returns a group's part of the gradient of a state (S, ...), where the state after the group has these shapes."""
    if isinstance(dstate, tuple):
        newest = newest_last if isinstance(newest_last, tuple) else (newest_last,) * len(dstate)
        return tuple(of_group(group, *one) for one in zip(dstate, shapes, newest, strict=True))
    if dstate is None:
        return None
    part = group.of(dstate)
    if part.shape == shapes:
        return part
    return part[:, part.shape[1] - shapes[1] :] if newest_last else part[:, : shapes[1]]


def total(gradients: Sequence[Any]) -> Any:
    """Returns the sum of gradients of a parameter; None stands for zero."""
    there = [one for one in gradients if one is not None]
    return reduce(np.add, there) if there else None


def check_segments(args: Boundary, cu_seqlens: Any, reset: Any, lengths: Any) -> Segments:
    """Checks the bounds or the resets of a batch whose B and T are bound. Returns its segments."""
    name = "reset" if cu_seqlens is None else "cu_seqlens"
    if recording() is not None:
        raise NotRecordable(f"the numbers of {name} are read on the host")
    if "T" not in args.size:
        raise ValueError(f"{args.op}: {name} was given for an input without a time axis")
    for other, value in (("reset", reset), ("lengths", lengths)):
        if other != name and value is not None:
            raise ValueError(f"{args.op}: got {name} and {other}, expected one of them")
    B, T = args.size["B"], args.size["T"]
    if cu_seqlens is None:
        return _of_resets(args, on_host(args.op, name, reset), B, T)
    given = on_host(args.op, name, cu_seqlens)
    if given.dtype.kind not in "iu":
        raise TypeError(f"{args.op}: cu_seqlens has dtype {given.dtype}, expected an integer dtype")
    if given.ndim != 1 or len(given) < 2:
        raise ValueError(f"{args.op}: cu_seqlens has shape {given.shape}, expected (S + 1,) of S >= 1 sequences")
    if B != 1:
        raise ValueError(f"{args.op}: got cu_seqlens with B={B}, expected one packed row, B=1")
    bounds = given.astype(np.int64)  # a copy, which nothing else writes to
    for at, value, expected in ((0, 0, "0"), (len(bounds) - 1, T, f"T={T}")):
        if bounds[at] != value:
            raise ValueError(f"{args.op}: cu_seqlens[{at}] is {given[at]}, expected {expected}")
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if falls.size:
        at = int(falls[0])
        raise ValueError(
            f"{args.op}: cu_seqlens[{at + 1}] is {given[at + 1]}, expected at least {given[at]}, the one before"
        )
    args.bind("segments", len(bounds) - 1, "cu_seqlens")
    return Segments(1, T, bounds[:-1], np.diff(bounds))


class AsBatch(NamedTuple):
    """Segments of (B, T, ...) as one ragged batch (S, L, ...), for pairs (S / 2, 2, L, ...): the rows of its steps (any
    row in padding), the lengths, and where each step (B, T) is in the batch, whose rows are one table.

    By `reset`, `origins` (S,) are the rows of B with whose state segments begin, -1 for those that begin by a reset,
    and `ends` (B,) the last segments of rows."""

    rows: Index
    lengths: Index
    back: Index
    origins: Index | None = None
    ends: Index | None = None


def as_batch(op: str, module: Any, shape: Sequence[int], cu_seqlens: Any, reset: Any, lengths: Any) -> AsBatch:
    """Checks the bounds of a packed row, or the resets of a batch, of this shape, arguments of `op`. For adapters,
    which gather by themselves: it is one batch, whatever padding there is, because shapes within their calls may not
    depend on the bounds."""
    args = Boundary(op)
    for letter, size in zip("BT", shape, strict=False):
        args.bind(letter, size, "x")
    segments = check_segments(args, cu_seqlens, reset, lengths).as_one(True)
    (group,) = segments.groups
    rows, steps, back = group.rows.rows, np.array(group.lengths), segments._back.rows
    if segments.begins is None:
        if getattr(module, "time_axis", 1) == 1:
            return AsBatch(rows, steps, back)
        check_pairs(args)
        return AsBatch(rows.reshape(-1, 2, rows.shape[1]), steps.reshape(-1, 2), back)
    if not stepwise(module):
        raise ValueError(f"{op}: got reset, expected cu_seqlens, whose sequences have a result each")
    origins, given = np.full(len(steps), -1), segments.begins >= 0
    origins[segments.begins[given]] = np.flatnonzero(given)
    return AsBatch(rows, steps, back, origins, segments.ends)


def check_rows(op: str, shape: Sequence[int], B: int) -> None:
    """Checks the shape of an array of the state before rows with resets, for adapters."""
    if not shape or shape[0] != B:
        raise ValueError(f"{op}: state has an array of shape {tuple(shape)}, expected (B={B}, ...)")


def check_pairs(args: Boundary) -> None:
    """Checks that a packed row has pairs of sequences."""
    if (count := args.size["segments"]) % 2:
        raise ValueError(f"{args.op}: cu_seqlens has {count} sequences, expected pairs, an even number")


def stepwise(module: Any) -> bool:
    """Returns whether a module has an output for each step."""
    return any("T" in form.split() for form in module.output_forms)


def _of_resets(args: Boundary, reset: Array, B: int, T: int) -> Segments:
    if reset.dtype != np.bool_:
        raise TypeError(f"{args.op}: reset has dtype {reset.dtype}, expected bool")
    if reset.shape != (B, T):
        raise ValueError(f"{args.op}: reset has shape {reset.shape}, expected (B={B}, T={T})")
    rows, at = np.nonzero(np.concatenate([np.ones((B, 1), bool), reset[:, 1:]], 1))  # with T = 0, one a row
    starts, first = rows * T + at, np.searchsorted(rows, np.arange(B))
    begins = np.where(reset[:, :1].any(1), -1, first)
    return Segments(B, T, starts, np.diff(starts, append=B * T), begins, np.append(first[1:], len(rows)) - 1)


def _cuts(falling: Index, ratio: float) -> list[tuple[int, int]]:
    """Returns where groups begin and end, for lengths in decreasing order."""
    cuts = [(0, 0)]
    while cuts[-1][1] < len(falling):
        first = cuts[-1][1]
        cuts.append((first, int(np.searchsorted(-falling, -falling[first] / ratio, "right"))))
    return cuts[1:] or cuts


def _grown(leaf: Array, count: int, newest_last: bool) -> Array:
    """Returns an array extended with zeros to `count` rows on its second axis."""
    more = np.zeros((len(leaf), count - leaf.shape[1], *leaf.shape[2:]), leaf.dtype, like=leaf)
    return np.concatenate([more, leaf] if newest_last else [leaf, more], 1)


def _joined(tables: list[Array]) -> Array:
    """Concatenates tables, in memory of the pool: new memory would cost more than the copy."""
    if len(tables) == 1:
        return tables[0]
    joined, first = empty((sum(map(len, tables)), tables[0].shape[1]), tables[0].dtype, tables[0]), 0
    for table in tables:
        joined[first : first + len(table)] = table
        first += len(table)
    return joined


def _table(x: Array) -> Array:
    """Returns real or complex (B, T, ...) as rows of real numbers."""
    return contiguous(x).reshape(x.shape[0] * x.shape[1], math.prod(x.shape[2:])).view(x.real.dtype)
