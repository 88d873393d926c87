"""Shared code of the generated tasks.

Example i of a split is drawn from its own random stream, (seed, split, i). It is the same on every machine, for any
number of threads, and for any other examples in its batch. No example is stored.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, whole_set
from rotrnn.ops.random import philox
from rotrnn.tasks.task import Batch, Carry, Index, Split, Task

ENDLESS = 2**40
"""Size of a split that is practically unlimited."""

PARTS = {"train": 1, "val": 2, "test": 3}
WRITABLE = 2**24  # most rows of a split that are written


def check_ranges(kind: str, settings: object, limits: Iterable[tuple[str, int, int]]) -> None:
    """Raises ValueError if a named setting is not between its lower and upper limit, both included."""
    for name, low, high in limits:
        value = getattr(settings, name)
        if not low <= value <= high:
            raise ValueError(f"{kind}: {name} is {value}, expected an integer from {low} to {high}")


def carry_of(settings: Any) -> Carry:
    """Returns which rows go on by the settings of a task. ValueError if `carry` is not a chance below one, or
    `carry_after` or `carry_rise` is no number of steps, or is not 0 while `carry` is."""
    kind, carry = type(settings).__name__, settings.carry
    after, rise = settings.carry_after, settings.carry_rise
    if not 0 <= carry < 1:
        raise ValueError(f"{kind}: carry is {carry}, expected a chance, at least 0 and below 1")
    for name, steps in (("carry_after", after), ("carry_rise", rise)):
        if steps < 0:
            raise ValueError(f"{kind}: {name} is {steps}, expected a number of steps")
        if steps and not carry:
            raise ValueError(f"{kind}: {name} is {steps} with carry 0, expected a carry above 0, or {name} 0")
    return Carry(carry, after, rise)


@dataclass(frozen=True)
class GeneratedSplit(Split):
    """A split of `size` examples that are generated when a batch is drawn; `name` is "train", "val" or "test"."""

    features: ClassVar[bool] = False
    """Whether inputs are features, and not ids."""

    name: str
    size: int
    fresh: bool = field(default=False, kw_only=True, compare=False)

    def __len__(self) -> int:
        return self.size

    @abstractmethod
    def make(self, index: Index, streams: Index) -> Batch:
        """Generates the examples at `index`; example i uses the Philox stream number ``streams[i]``."""

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the examples at `index`, features in `dtype`; ids are int64 for every `dtype`."""
        made = self.make(index, index + (PARTS[self.name] << 48))
        return made._replace(inputs=made.inputs.astype(dtype)) if self.features else made


def words_of(streams: Index, count: int, seed: int) -> Index:
    """Returns `count` random words of 32 bits of each Philox stream, (n, count) int64."""
    blocks = -(-count // 4)
    counter = np.zeros((len(streams), blocks, 4), np.int64)
    counter[..., 0] = np.arange(blocks)
    counter[..., 1], counter[..., 2] = (streams & 0xFFFFFFFF)[:, None], (streams >> 32)[:, None]
    return philox(counter.reshape(-1, 4), seed).astype(np.int64).reshape(len(streams), 4 * blocks)[:, :count]


def below(words: Index, size: int | Index) -> Index:
    """Returns integers below `size` for words of 32 bits: of 2^32 words a number has at most one more than another."""
    return words * size >> 32


def chosen(words: Index, size: int) -> Index:
    """Returns different integers below `size`, as many as words (n, k), in random order: all choices are alike."""
    taken = np.empty((len(words), 0), np.int64)
    k = words.shape[1]
    found = np.empty((len(words), k), np.int64)
    for i, rank in enumerate(below(words, size - np.arange(k)).T):
        # of those that are left, the one of this rank: as many are taken below it as have no more left below them
        found[:, i] = rank + (taken - np.arange(i) <= rank[:, None]).sum(1)
        taken = np.sort(found[:, : i + 1], 1)
    return found


@dataclass(frozen=True)
class ByLength:
    """The lengths in a split: `each` examples of every length from `low` to `high`, in increasing order of length."""

    low: int
    high: int
    each: int

    def __len__(self) -> int:
        return (self.high - self.low + 1) * self.each

    def at(self, index: Index) -> Index:
        """Returns the lengths of the examples at `index`."""
        return self.low + index // self.each


def drawn(kernel: Any, streams: Index, T: int, **settings: Any) -> Batch:
    """Returns the batch (B, T) that a kernel of csrc/data draws from these Philox streams, `trimmed`."""
    tokens = np.empty((len(streams), T), np.int64)
    labels, sizes = np.empty_like(tokens), np.empty(len(streams), np.int64)
    kernel(tokens=tokens, labels=labels, sizes=sizes, stream=streams, n=len(streams), T=T, **settings)
    return trimmed(tokens, labels, sizes)


def trimmed(inputs: Index, labels: Index, sizes: Index) -> Batch:
    """Returns a batch of rows (B, T) with valid sizes (B,), with the columns beyond the longest row removed."""
    longest = int(sizes.max(initial=0))
    return Batch(np.ascontiguousarray(inputs[:, :longest]), np.ascontiguousarray(labels[:, :longest]), sizes)


class WrittenByRow(ABC):
    """A task with a label per step, which is written as text."""

    @abstractmethod
    def load(self) -> Task:
        """Returns the task, ready for training."""

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes the task as text, one file NAME_SPLIT.tsv for each split. Returns the task.

        The header is ``inputs<TAB>labels``. Each row is an example: token ids and as many labels, separated by spaces.
        Labels that do not count are -1. If a step has several integer features or bits, they are joined by commas.

        Raises
        ------
        ValueError
            A split has more than 2**24 examples, as `train` may have by default.
        """
        task = self.load()
        splits = {"train": task.train, "val": task.val, "test": task.test}
        for name, split in splits.items():
            if len(split) > WRITABLE:
                raise ValueError(
                    f"{task.name}: {name} has {len(split)} examples, but at most {WRITABLE} can be written; set {name}"
                )
        with whole_set(folder) as place:
            for name, split in splits.items():
                _write(place / f"{task.name}_{name}.tsv", split)
        return task


def _write(path: Path, split: Split) -> None:
    with atomic_file(path) as file:
        file.write(b"inputs\tlabels\n")
        for first in range(0, len(split), 1024):
            inputs, labels, lengths = split.batch(np.arange(first, min(first + 1024, len(split))), np.int64)
            sizes = np.full(len(inputs), inputs.shape[1]) if lengths is None else lengths
            for x, y, size in zip(inputs, labels, sizes.tolist(), strict=True):
                file.write(f"{_text(x[:size])}\t{_text(y[:size])}\n".encode())


def _text(steps: Index) -> str:
    """Formats integers (T,) or (T, bits)."""
    return " ".join(",".join(map(str, step)) for step in steps.reshape(len(steps), -1).tolist())
