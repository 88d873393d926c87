"""Regular languages: parity, even pairs, cycle navigation, modular arithmetic."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from rotrnn._cpu import REGULAR
from rotrnn.ops.device import HOST
from rotrnn.tasks.generated import ENDLESS, ByLength, GeneratedSplit, check_ranges, trimmed, write_rows
from rotrnn.tasks.task import Batch, Index, Shape, Task

LANGUAGES = tuple(REGULAR)

MAX_LENGTH = 2**20


@dataclass(frozen=True)
class Words(GeneratedSplit):
    """Strings of random length, from `settings.min_length` to `max_length`, or as many of each of `lengths`."""

    settings: Regular
    lengths: ByLength | None

    def make(self, index: Index, streams: Index) -> Batch:
        s = self.settings
        wanted = None if self.lengths is None else self.lengths.at(index)
        longest = s.max_length if wanted is None else int(wanted.max(initial=0))
        tokens = np.empty((len(index), longest), np.int64)
        labels, sizes = np.empty_like(tokens), np.empty(len(index), np.int64)
        HOST.kernels.regular_sample(
            tokens=tokens,
            labels=labels,
            sizes=sizes,
            stream=streams,
            length=wanted,
            n=len(tokens),
            T=longest,
            seed=s.seed,
            low=s.min_length,
            high=s.max_length,
            language=REGULAR[s.language],
            modulus=s.modulus,
        )
        return trimmed(tokens, labels, sizes)


@dataclass(frozen=True)
class FreshWords(Words):
    fresh = True


@dataclass(frozen=True)
class Regular:
    """Regular languages of "Neural networks and the Chomsky hierarchy" (Delétang et al., ICLR 2023): the class of a
    string of random tokens, as the label of its last one.

    - "parity": bits; whether the number of ones is odd
    - "even_pairs": bits; whether the number of 01 and 10 together is odd, that is, whether the ends differ
    - "cycle": steps to the left (0), none (1) and to the right (2) on a cycle of `modulus` places; where they end
    - "arithmetic": ``2 + 4 * 3 - 1``, digits below `modulus`, ``*`` first; the value modulo `modulus`. Ids are the
      digits, then ``+ - *``. Lengths are odd: of an even one asked for, the odd one below it

    Trained on short strings of uniform length, each its own (the publication draws one for a whole batch), and tested
    on longer ones; accuracy over the test split is the publication's score, a mean over all these lengths.

    Parameters
    ----------
    language : str
    modulus : int
        Of "cycle" and "arithmetic".
    min_length, max_length : int
        Lengths in training, both included; validation has `val_each` of each.
    test_min_length, test_max_length, test_each : int
        Lengths in the test, both included, and strings of each.
    train : int
        Training strings, each seen once.
    seed : int
    """

    language: str = "parity"
    modulus: int = 5
    min_length: int = 1
    max_length: int = 40
    val_each: int = 64
    test_min_length: int = 41
    test_max_length: int = 500
    test_each: int = 16
    train: int = ENDLESS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"Regular: language is '{self.language}', expected {', '.join(LANGUAGES)}")
        largest = 2**31 - 1
        limits = (
            ("modulus", 2, 1000),
            ("min_length", 1, MAX_LENGTH),
            ("max_length", self.min_length, MAX_LENGTH),
            ("val_each", 1, largest),
            ("test_min_length", 1, MAX_LENGTH),
            ("test_max_length", self.test_min_length, MAX_LENGTH),
            ("test_each", 1, largest),
            ("train", 1, ENDLESS),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("Regular", self, limits)

    @property
    def shape(self) -> Shape:
        """Classes and tokens of the language."""
        binary = Shape(2, 2, None, "tagger")
        return {
            "parity": binary,
            "even_pairs": binary,
            "cycle": Shape(self.modulus, 3, None, "tagger"),
            "arithmetic": Shape(self.modulus, self.modulus + 3, None, "tagger"),
        }[self.language]

    def load(self) -> Task:
        """The task. Nothing is stored: strings are made when they are asked for."""
        val = ByLength(self.min_length, self.max_length, self.val_each)
        test = ByLength(self.test_min_length, self.test_max_length, self.test_each)
        return Task(
            "regular",
            FreshWords("train", self.train, self, None),
            Words("val", len(val), self, val),
            Words("test", len(test), self, test),
            **self.shape._asdict(),
            curve="length",
            chance=1 / self.shape.n_classes,
        )

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes regular_train.tsv, regular_val.tsv and regular_test.tsv (`write_rows`); `train` must be set."""
        task = self.load()
        write_rows(folder, task)
        return task
