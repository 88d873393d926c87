"""Multi-query associative recall (MQAR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.tasks.generated import GeneratedSplit, WrittenByRow, below, check_ranges, chosen, words_of
from rotrnn.tasks.task import Batch, Index, Shape, Task


@dataclass(frozen=True)
class MQARSplit(GeneratedSplit):
    settings: MQAR
    length: int
    pairs: int

    def make(self, index: Index, streams: Index) -> Batch:
        s, L, k = self.settings, self.length, self.pairs
        n, half, places = len(index), s.vocab // 2, (L - 2 * k) // 2
        words = words_of(streams, 2 * k + places + L, s.seed)
        for_keys, for_values, for_places, fillers = np.split(words, np.cumsum([k, k, places]), 1)
        keys, values = 1 + chosen(for_keys, half - 1), half + chosen(for_values, s.vocab - half)
        # the smallest of exponential times with these rates, in order: draws without replacement by these weights
        rates = np.arange(1, places + 1.0) ** (s.power - 1)
        times = -np.log((for_places + 0.5) / 2**32) / rates
        queries = 2 * (k + np.argsort(times, axis=1, kind="stable")[:, :k])
        inputs = np.zeros((n, L), np.int64)
        inputs[:, : 2 * k : 2], inputs[:, 1 : 2 * k : 2] = keys, values
        labels = np.full((n, L), -1)
        row = np.arange(n)[:, None]
        inputs[row, queries], labels[row, queries] = keys, values
        if s.fillers:
            inputs = np.where(inputs == 0, below(fillers, s.vocab), inputs)
        return Batch(inputs, labels, None)


@dataclass(frozen=True)
class MQAR(WrittenByRow):
    """Multi-query associative recall: keys with their values, then each key once more, where its value is the answer.

    A sequence begins with `pairs` different keys, each before its value. Then each key comes once more, at places in
    twos of which place i (from 0) is drawn with a weight ``(i + 1)^(power - 1)``, without replacement: queries crowd
    behind the pairs. The label of a key that is asked for is its value; other steps have none. The lower half of the
    ids without 0 are keys, the upper half are values.

    The test may have another length and number of pairs. The publications train on (length, pairs) of (64, 4),
    (128, 8), (256, 16) with 8,192 ids and 100,000 sequences.

    Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models", and its released code
    (HazyResearch/zoology, multiquery_ar.py), whose sequences have this distribution.

    Parameters
    ----------
    vocab : int
        Number of ids.
    length, pairs : int
        Number of tokens, even, at least 4 `pairs`; and number of pairs.
    test_length, test_pairs : int, optional
        The same of the test; by default as in training.
    power : float
        Exponent of the weights; 1: every place alike.
    fillers : bool
        Whether other tokens are random ids, which may be keys and values, as by default in that code; else 0.
    train, val, test : int
        Number of sequences.
    seed : int
        Seed of the sequences.
    """

    vocab: int = 8192
    length: int = 64
    pairs: int = 4
    test_length: int | None = None
    test_pairs: int | None = None
    power: float = 0.01
    fillers: bool = True
    train: int = 100_000
    val: int = 1000
    test: int = 3000
    seed: int = 0

    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        check_ranges("MQAR", self, (("vocab", 4, 2**20), ("pairs", 1, 2**16), ("seed", 0, 2**63 - 1)))
        check_ranges("MQAR", self, ((name, 1, MOST_COUNT) for name in ("train", "val", "test")))
        if self.test_pairs is not None:
            check_ranges("MQAR", self, [("test_pairs", 1, 2**16)])
        if not 0 < self.power <= 1:
            raise ValueError(f"MQAR: power is {self.power}, expected a number above 0, at most 1")
        for name, (length, pairs) in {"length": (self.length, self.pairs), "test_length": self._test}.items():
            if length % 2 or not 4 * pairs <= length <= 2**20:
                expected = f"an even number from 4 pairs, {4 * pairs}, to {2**20}"
                raise ValueError(f"MQAR: {name} is {length}, expected {expected}")
            if pairs >= self.vocab // 2:
                raise ValueError(f"MQAR: vocab is {self.vocab}, expected more than {2 * pairs + 1} for {pairs} pairs")

    @property
    def _test(self) -> tuple[int, int]:
        length = self.length if self.test_length is None else self.test_length
        return length, self.pairs if self.test_pairs is None else self.test_pairs

    @property
    def shape(self) -> Shape:
        """Classes are all ids, as in the released code."""
        return Shape(self.vocab, self.vocab, None, "tagger")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: sequences are generated when a batch is drawn."""
        return Task(
            "mqar",
            MQARSplit("train", self.train, self, self.length, self.pairs),
            MQARSplit("val", self.val, self, self.length, self.pairs),
            MQARSplit("test", self.test, self, *self._test),
            **self.shape._asdict(),
        )
