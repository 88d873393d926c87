"""Recall from a history: by age, by content, and by content at an age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.tasks.generated import ENDLESS, ByLength, GeneratedSplit, WrittenByRow, below, check_ranges, words_of
from rotrnn.tasks.task import Batch, Index, Shape, Task

MAX_STEPS = 2**16
MAX_KINDS = 2**10


@dataclass(frozen=True)
class RecallSplit(GeneratedSplit):
    """Sequences of `length` steps. Each step of sequence i asks for the age ``ages.at(i)``, or a random one."""

    features: ClassVar[bool] = True

    settings: Recall
    length: int
    ages: ByLength | None

    def make(self, index: Index, streams: Index) -> Batch:
        s, T, n = self.settings, self.length, len(index)
        key, value, wanted, age = _draws(streams, T, s.seed, (s.keys, s.values, s.keys, s.max_age + 1))
        if self.ages is not None:
            age[...] = self.ages.at(index)[:, None]
        inputs = np.concatenate([_one_hot(key, s.keys), _one_hot(value, s.values), _one_hot(wanted, s.keys),
                                 _one_hot(age, s.max_age + 1)], 2)  # fmt: skip
        # the last step so far that has each key, or -1; of step 0 a row of -1 stands before it
        steps = np.where(key[..., None] == np.arange(s.keys), np.arange(T)[:, None], -1)
        latest = np.concatenate([np.full((n, 1, s.keys), -1), np.maximum.accumulate(steps, 1)], 1)
        until = np.maximum(np.arange(T) + 1 - age, 0)
        row = np.arange(n)[:, None]
        found = latest[row, until, wanted]
        return Batch(inputs, np.where(found >= 0, value[row, found], -1), None)

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """Returns the ages that are asked for; in training the largest possible age."""
        if self.ages is None:
            return np.full(len(index), self.settings.max_age)
        return self.ages.at(np.asarray(index))


@dataclass(frozen=True)
class Recall(WrittenByRow):
    """Recall of earlier values of a sequence: by age, by content, or by content at an age.

    Each step brings a key and a value, and asks for a key and an age: which value came with that key, when it last came
    at least `age` steps ago? The label is that value; steps that ask for a pair that never came are not labelled. Keys,
    values and questions are random, uniform and independent. The features of a step are one-hot codes of its key, its
    value, the key and the age (0 to `max_age`) that it asks for.

    - ``keys=1``: recall by age: the value exactly `age` steps ago;
    - ``max_age=0``: recall by content, the latest value of a key;
    - else: recall by content at an age, for which neither is enough.

    In validation and test all steps of a sequence ask for the same age, so the curve shows accuracy against age.
    Test sequences have `test_length` steps.

    Parameters
    ----------
    keys, values : int
        Number of keys and of values.
    max_age : int
        Largest age that is asked for, below `length` and `test_length`.
    length, test_length : int
        Number of steps in training and validation, and in the test.
    train : int
        Number of training sequences, each used once.
    val_each, test_each : int
        Number of sequences for each age in validation and test.
    seed : int
        Seed of the sequences.
    """

    keys: int = 1
    values: int = 8
    max_age: int = 48
    length: int = 96
    test_length: int = 192
    train: int = ENDLESS
    val_each: int = 4
    test_each: int = 16
    seed: int = 0

    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        limits = (
            ("keys", 1, MAX_KINDS),
            ("values", 2, MAX_KINDS),
            ("max_age", 0, MAX_STEPS - 1),
            ("length", self.max_age + 1, MAX_STEPS),
            ("test_length", self.max_age + 1, MAX_STEPS),
            ("train", 1, ENDLESS),
            ("val_each", 1, MOST_COUNT),
            ("test_each", 1, MOST_COUNT),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("Recall", self, limits)

    @property
    def shape(self) -> Shape:
        """Classes are the values; features are the four one-hot codes."""
        return Shape(self.values, None, 2 * self.keys + self.values + self.max_age + 1, "tagger")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: sequences are generated when a batch is drawn."""
        val = ByLength(0, self.max_age, self.val_each)
        test = ByLength(0, self.max_age, self.test_each)
        return Task(
            "recall",
            RecallSplit("train", self.train, self, self.length, None, fresh=True),
            RecallSplit("val", len(val), self, self.length, val),
            RecallSplit("test", len(test), self, self.test_length, test),
            **self.shape._asdict(),
            curve="length",
            chance=1 / self.values,
        )


def _draws(streams: Index, T: int, seed: int, sizes: tuple[int, int, int, int]) -> list[Index]:
    """Returns four arrays (n, T) of integers, uniform below the sizes: step t of a stream uses Philox block t."""
    words = words_of(streams, 4 * T, seed).reshape(len(streams), T, 4)
    return [below(words[..., i], size) for i, size in enumerate(sizes)]


def _one_hot(index: Index, size: int) -> npt.NDArray[np.uint8]:
    return (index[..., None] == np.arange(size)).astype(np.uint8)
