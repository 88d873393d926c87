"""What generated tasks share. Example i of a split is drawn from its own stream of random numbers, (seed, split, i): it
is the same on every machine, for any number of threads, and whatever else is in its batch; none is stored."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, clear
from rotrnn.tasks.task import Batch, Index, Split, Task

ENDLESS = 2**40
"""As many examples as anyone wants."""

PARTS = {"train": 1, "val": 2, "test": 3}
WRITABLE = 2**24  # rows of a split


def check_ranges(kind: str, settings: object, limits: Iterable[tuple[str, int, int]]) -> None:
    """ValueError unless each named setting is an integer from its lower to its upper limit."""
    for name, low, high in limits:
        value = getattr(settings, name)
        if not low <= value <= high:
            raise ValueError(f"{kind}: {name} is {value}, expected an integer from {low} to {high}")


@dataclass(frozen=True)
class GeneratedSplit(Split):
    """`size` examples, made when they are asked for; `name` is "train", "val" or "test"."""

    name: str
    size: int

    def __len__(self) -> int:
        return self.size

    @abstractmethod
    def make(self, index: Index, streams: Index) -> Batch:
        """The examples at `index`, each drawn from the Philox stream of that number."""

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """The examples at `index`; ids are int64 whatever `dtype`."""
        index = np.ascontiguousarray(index, np.int64)
        return self.make(index, index + (PARTS[self.name] << 48))


@dataclass(frozen=True)
class ByLength:
    """A split's lengths: `each` examples of every length from `low` to `high`, one length after the other."""

    low: int
    high: int
    each: int

    def __len__(self) -> int:
        return (self.high - self.low + 1) * self.each

    def at(self, index: Index) -> Index:
        """The lengths of the examples at `index`."""
        return self.low + index // self.each


def trimmed(inputs: Index, labels: Index, sizes: Index) -> Batch:
    """A batch of rows (B, T) of these sizes (B,), cut to the longest."""
    longest = int(sizes.max(initial=0))
    return Batch(np.ascontiguousarray(inputs[:, :longest]), np.ascontiguousarray(labels[:, :longest]), sizes)


def write_rows(folder: str | os.PathLike[str], task: Task) -> None:
    """Writes a tagger's task as text: for each split a file NAME_SPLIT.tsv.

    Its header is ``inputs<TAB>labels``; each row is an example, token ids and as many labels, separated by spaces;
    labels that do not count are -1. Several features or bits of a step, integers, are joined by commas.

    Raises
    ------
    ValueError
        A split has more than 2**24 examples.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    splits = {"train": task.train, "val": task.val, "test": task.test}
    for name, split in splits.items():
        if len(split) > WRITABLE:
            raise ValueError(
                f"{task.name}: {name} has {len(split)} examples, expected at most {WRITABLE} to be written; set {name}"
            )
    files = {name: Path(folder, f"{task.name}_{name}.tsv") for name in splits}
    clear(files.values())
    for name, split in splits.items():
        with atomic_file(files[name]) as file:
            file.write(b"inputs\tlabels\n")
            for first in range(0, len(split), 1024):
                inputs, labels, lengths = split.batch(np.arange(first, min(first + 1024, len(split))), np.int64)
                sizes = np.full(len(inputs), inputs.shape[1]) if lengths is None else lengths
                for x, y, size in zip(inputs, labels, sizes.tolist(), strict=True):
                    file.write(f"{_text(x[:size])}\t{_text(y[:size])}\n".encode())


def _text(steps: Index) -> str:
    """Integers (T,) or (T, K)."""
    return " ".join(",".join(map(str, step)) for step in steps.reshape(len(steps), -1).tolist())
