"""Flip-flop language: a bit that is written, kept over distractions, and read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.tasks.generated import ENDLESS, GeneratedSplit, WrittenByRow, check_ranges, words_of
from rotrnn.tasks.task import Batch, Index, Shape, Task

WRITE, IGNORE, READ = 2, 3, 4


@dataclass(frozen=True)
class FlipFlopSplit(GeneratedSplit):
    settings: FlipFlop
    length: int
    ignore: float

    def make(self, index: Index, streams: Index) -> Batch:
        steps = self.length // 2
        words = words_of(streams, 2 * steps, self.settings.seed)
        chance, bits = words[:, :steps] / 2**32, words[:, steps:] >> 31
        kinds = np.where(chance < self.ignore, IGNORE, np.where(chance < (1 + self.ignore) / 2, WRITE, READ))
        kinds[:, 0], kinds[:, -1] = WRITE, READ
        written = np.maximum.accumulate(np.where(kinds == WRITE, np.arange(steps), 0), 1)
        stored = np.take_along_axis(bits, written, 1)
        inputs = np.stack([kinds, np.where(kinds == READ, stored, bits)], 2).reshape(len(index), -1)
        labels = np.stack([np.where(kinds == READ, stored, -1), np.full_like(kinds, -1)], 2).reshape(inputs.shape)
        return Batch(inputs, labels, None)


@dataclass(frozen=True)
class FlipFlop(WrittenByRow):
    """The flip-flop language: instructions write, ignore and read, each before a bit; read is before the bit that was
    written last.

    The first instruction writes, the last one reads; of the others a share `ignore` ignores, and writing and reading
    share the rest. The bits behind write and ignore are random. The label of a read is its bit; other steps have none.
    Ids are the bits, then write, ignore and read.

    Liu, Ash, Goel, Krishnamurthy and Zhang 2023, "Exposing Attention Glitches with Flip-Flop Language Modeling", whose
    FFL(0.8) of 512 tokens is the default; its tests have 0.98 (few reads, far apart) and 0.1.

    Parameters
    ----------
    length, test_length : int
        Number of tokens, even, in training and validation, and in the test.
    ignore, test_ignore : float
        Share of ignore in training and validation, and in the test.
    train : int
        Number of training sequences, each used once.
    val, test : int
        Number of sequences.
    seed : int
        Seed of the sequences.
    """

    length: int = 512
    test_length: int = 512
    ignore: float = 0.8
    test_ignore: float = 0.98
    train: int = ENDLESS
    val: int = 1000
    test: int = 1000
    seed: int = 0

    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        check_ranges("FlipFlop", self, (("train", 1, ENDLESS), ("val", 1, MOST_COUNT), ("test", 1, MOST_COUNT)))
        check_ranges("FlipFlop", self, (("seed", 0, 2**63 - 1),))
        for name in ("length", "test_length"):
            value = getattr(self, name)
            if value % 2 or not 4 <= value <= 2**20:
                raise ValueError(f"FlipFlop: {name} is {value}, expected an even number from 4 to {2**20}")
        for name in ("ignore", "test_ignore"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"FlipFlop: {name} is {getattr(self, name)}, expected a share from 0 to 1")

    @property
    def shape(self) -> Shape:
        """Classes are the two bits."""
        return Shape(2, READ + 1, None, "tagger")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: sequences are generated when a batch is drawn."""
        return Task(
            "flip_flop",
            FlipFlopSplit("train", self.train, self, self.length, self.ignore, fresh=True),
            FlipFlopSplit("val", self.val, self, self.length, self.ignore),
            FlipFlopSplit("test", self.test, self, self.test_length, self.test_ignore),
            **self.shape._asdict(),
            chance=0.5,
        )
