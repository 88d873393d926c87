"""Repeating a pattern of bits after a delay."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rotrnn.ops.device import HOST
from rotrnn.tasks.generated import GeneratedSplit, check_ranges, write_rows
from rotrnn.tasks.task import Batch, Index, Shape, Task

MAX_STEPS = 2**16
MAX_BITS = 32  # of a word that csrc/data/delayed_copy.c draws


@dataclass(frozen=True)
class Patterns(GeneratedSplit):
    """Random patterns, and what is to be answered."""

    settings: DelayedCopy

    def make(self, index: Index, streams: Index) -> Batch:
        s, n = self.settings, len(index)
        inputs, labels = np.empty((n, s.steps, s.bits + 1), np.uint8), np.empty((n, s.steps, s.bits), np.int64)
        sizes = {"n": n, "length": s.length, "delay": s.delay, "bits": s.bits}
        HOST.kernels.delayed_copy(inputs=inputs, labels=labels, stream=streams, **sizes, seed=s.seed)
        return Batch(inputs, labels, None)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """The examples at `index`, features in `dtype`."""
        made = super().batch(index)
        return made._replace(inputs=made.inputs.astype(dtype))


@dataclass(frozen=True)
class DelayedCopy:
    """A pattern of random bits to repeat after a delay: the copy task of minimal-LRU, not `copy`, that of strings.

    `bits` channels hold the pattern for `length` steps, then nothing for `delay` steps, then for one step another
    channel a one, the cue; the labels of the last `length` steps are the bits of the pattern, and no others count. The
    task is of Graves, Wayne, Danihelka, "Neural Turing machines" (2014), with lengths and layout of
    github.com/NicolasZucchet/minimal-LRU (which means 5 for the delay, and by another name of the argument gets 7);
    the sizes of the three splits are those in a public fork of it.

    Parameters
    ----------
    bits : int
        Channels of the pattern, at most 32.
    length : int
        Steps of the pattern, and of the answer.
    delay : int
        Empty steps between the pattern and the cue.
    train, val, test : int
        Patterns in each split.
    seed : int
    """

    bits: int = 7
    length: int = 20
    delay: int = 7
    train: int = 20_000
    val: int = 1_000
    test: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        largest = 2**31 - 1
        limits = (
            ("bits", 1, MAX_BITS),
            ("length", 1, MAX_STEPS),
            ("delay", 0, MAX_STEPS),
            ("train", 1, largest),
            ("val", 1, largest),
            ("test", 1, largest),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("DelayedCopy", self, limits)

    @property
    def steps(self) -> int:
        """Of a sequence."""
        return 2 * self.length + self.delay + 1

    @property
    def shape(self) -> Shape:
        """The bits; the pattern's channels and the cue's."""
        return Shape(self.bits, None, self.bits + 1, "bits")

    def load(self) -> Task:
        """The task. Nothing is stored: patterns are made when they are asked for."""
        return Task(
            "delayed_copy",
            Patterns("train", self.train, self),
            Patterns("val", self.val, self),
            Patterns("test", self.test, self),
            **self.shape._asdict(),
            chance=0.5,
        )

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes delayed_copy_train.tsv, delayed_copy_val.tsv and delayed_copy_test.tsv (`write_rows`)."""
        task = self.load()
        write_rows(folder, task)
        return task
