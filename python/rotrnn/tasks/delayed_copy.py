"""The delayed copy task: repeat a pattern of bits after a delay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.devices.device import HOST
from rotrnn.tasks.generated import GeneratedSplit, WrittenByRow, check_ranges
from rotrnn.tasks.task import Batch, Index, Shape, Task

MAX_STEPS = 2**16
MAX_BITS = 32  # bits of a random word in csrc/data/delayed_copy.c


@dataclass(frozen=True)
class DelayedCopySplit(GeneratedSplit):
    """Random patterns with their labels."""

    features: ClassVar[bool] = True

    settings: DelayedCopy

    def make(self, index: Index, streams: Index) -> Batch:
        s, n = self.settings, len(index)
        inputs, labels = np.empty((n, s.steps, s.bits + 1), np.uint8), np.empty((n, s.steps, s.bits), np.int64)
        sizes = {"n": n, "length": s.length, "delay": s.delay, "bits": s.bits}
        HOST.kernels.delayed_copy(inputs=inputs, labels=labels, stream=streams, **sizes, seed=s.seed)
        return Batch(inputs, labels, None)


@dataclass(frozen=True)
class DelayedCopy(WrittenByRow):
    """Repeat a pattern of random bits after a delay. This is minimal-LRU's copy task; the task `copy` copies strings.

    The pattern fills `bits` channels for `length` steps. `delay` empty steps follow, then one step in which an extra
    channel, the cue, is one. The labels of the last `length` steps are the bits of the pattern; no other step has
    labels that count. The task is from Graves, Wayne, Danihelka, "Neural Turing machines" (2014). Lengths and layout
    follow github.com/NicolasZucchet/minimal-LRU, which intends a delay of 5 but passes the argument under another name
    and so gets 7. The sizes of the three splits follow a public fork of it.

    Parameters
    ----------
    bits : int
        Number of channels of the pattern, at most 32.
    length : int
        Number of steps of the pattern, and of the answer.
    delay : int
        Number of empty steps between the pattern and the cue.
    train, val, test : int
        Number of patterns in each split.
    seed : int
        Seed of the patterns.
    """

    bits: int = 7
    length: int = 20
    delay: int = 7
    train: int = 20_000
    val: int = 1_000
    test: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        limits = (
            ("bits", 1, MAX_BITS),
            ("length", 1, MAX_STEPS),
            ("delay", 0, MAX_STEPS),
            ("train", 1, MOST_COUNT),
            ("val", 1, MOST_COUNT),
            ("test", 1, MOST_COUNT),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("DelayedCopy", self, limits)

    @property
    def steps(self) -> int:
        """Number of steps of a sequence."""
        return 2 * self.length + self.delay + 1

    @property
    def shape(self) -> Shape:
        """`bits` labels per step; features are the channels of the pattern and the cue."""
        return Shape(self.bits, None, self.bits + 1, "bits")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: patterns are generated when a batch is drawn."""
        return Task(
            "delayed_copy",
            DelayedCopySplit("train", self.train, self),
            DelayedCopySplit("val", self.val, self),
            DelayedCopySplit("test", self.test, self),
            **self.shape._asdict(),
            chance=0.5,
        )
