"""Copying strings, and looking up what follows a stretch of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from rotrnn._cpu import COPY
from rotrnn._cpu import COPY_MAX_LENGTH as MAX_LENGTH
from rotrnn.ops.device import HOST
from rotrnn.tasks.generated import ENDLESS, ByLength, GeneratedSplit, check_ranges, trimmed, write_rows
from rotrnn.tasks.task import Batch, Index, Shape, Task

VARIANTS = tuple(COPY)
EXTRA = 4  # tokens that an example has at most besides its string, twice


@dataclass(frozen=True)
class PackedRows(GeneratedSplit):
    """Rows of `settings.context` tokens, full of examples."""

    settings: Copy
    fresh = True

    def make(self, index: Index, streams: Index) -> Batch:
        s = self.settings
        tokens = np.empty((len(index), s.context), np.int64)
        labels = np.empty_like(tokens)
        HOST.kernels.copy_rows(
            tokens=tokens,
            labels=labels,
            stream=streams,
            n=len(tokens),
            T=tokens.shape[1],
            seed=s.seed,
            letters=s.letters,
            variant=COPY[s.variant],
            gram=s.gram,
            answer=s.answer,
            low=s.min_length,
            high=s.max_length,
        )
        return Batch(tokens, labels, None)

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """The most letters of a string of the row."""
        return np.full(len(index), self.settings.max_length)


@dataclass(frozen=True)
class Strings(GeneratedSplit):
    """One example a row, of each length as many."""

    settings: Copy
    variant: str
    lengths: ByLength

    def make(self, index: Index, streams: Index) -> Batch:
        s = self.settings
        wanted = self.lengths.at(index)
        tokens = np.empty((len(index), 2 * int(wanted.max(initial=0)) + EXTRA), np.int64)
        labels, sizes = np.empty_like(tokens), np.empty(len(index), np.int64)
        HOST.kernels.copy_strings(
            tokens=tokens,
            labels=labels,
            sizes=sizes,
            stream=streams,
            length=wanted,
            n=len(tokens),
            T=tokens.shape[1],
            seed=s.seed,
            letters=s.letters,
            variant=COPY[self.variant],
            gram=s.gram,
            answer=s.answer,
        )
        return trimmed(tokens, labels, sizes)

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """The letters of each string."""
        return self.lengths.at(np.asarray(index))


@dataclass(frozen=True)
class Copy:
    """The copy task (Jelassi, Brandfonbrener, Kakade, Malach: "Repeat after me", 2024): a string of random letters, and
    the same again, as a language model reads it: the label of a token is the next one.

    Ids are the letters, then ``$``, ``|`` and ``.``; published code has one more to pad evaluation with, or pads with
    ``.``: neither ever counts. `variant` says what an example is, for a string s:

    - "copy": ``$s|s.``
    - "prefix": ``$q|s|r.``, q `gram` letters of s at a random place, r what follows them where they first occur
    - "suffix": ``$s|qr.``, the same with the question after the string
    - "duplicate" (in tests alone, of models that copy): as "copy", a stretch of s replaced by another of its own

    Training rows are full of examples, one after the other; what remains at the end of a row is filled with the
    beginning of one more. Only answers, with their ``.``, are labelled, and of whole examples alone. The state of a
    recurrence goes on from one example to the next. Validation and test have one example a row, where the last ``.`` is
    not labelled: the share of right labels is that of right letters, given the right ones before (which the input
    holds), and a sequence is right if every letter of its answer is. (Published character accuracies are means over
    strings: the same for each length.)

    Parameters
    ----------
    variant : str
    gram : int
        Letters of q, and of what is duplicated.
    answer : int
        Letters of an answer; 0 for all there are.
    letters : int
        Size of the alphabet.
    min_length, max_length : int
        Lengths of strings in training, both included, uniformly drawn; validation has `val_each` of each.
    context : int
        Tokens of a training row, with room for the longest example.
    test_min_length, test_max_length, test_each : int
        Test lengths, both included (the published evaluation leaves the upper one out), and examples of each.
    test_variant : str
        Another variant to test on: "duplicate", or empty for `variant`.
    train : int
        Training rows, each seen once.
    seed : int
    """

    variant: str = "copy"
    gram: int = 3
    answer: int = 0
    letters: int = 26
    min_length: int = 5
    max_length: int = 50
    context: int = 256
    val_each: int = 16
    test_min_length: int = 5
    test_max_length: int = 100
    test_each: int = 64
    test_variant: str = ""
    train: int = ENDLESS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS[:3]:
            raise ValueError(f"Copy: variant is '{self.variant}', expected {', '.join(VARIANTS[:3])}")
        if self.test_variant not in ("", "duplicate") or (self.test_variant and self.variant != "copy"):
            raise ValueError(
                f"Copy: test_variant is '{self.test_variant}' and variant is '{self.variant}', "
                "expected an empty test_variant, or duplicate for copy"
            )

        largest = 2**31 - 1
        limits = (
            ("gram", 1, MAX_LENGTH),
            ("answer", 0, MAX_LENGTH),
            ("letters", 1, 250),
            ("min_length", 1, MAX_LENGTH),
            ("max_length", self.min_length, MAX_LENGTH),
            ("context", 2 * self.max_length + EXTRA, 2**20),
            ("val_each", 1, largest),
            ("test_min_length", 1, MAX_LENGTH),
            ("test_max_length", self.test_min_length, MAX_LENGTH),
            ("test_each", 1, largest),
            ("train", 1, ENDLESS),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("Copy", self, limits)
        for key, variant in (("min_length", self.variant), ("test_min_length", self.test_variant or self.variant)):
            needed = (
                {"answer": self.answer} if variant == "copy" else {"gram": self.gram, "answer": self.answer, "3": 3}
            )
            if (length := getattr(self, key)) < sum(needed.values()):
                raise ValueError(
                    f"Copy: {key} is {length}, expected {' + '.join(needed)} = {sum(needed.values())} at least for "
                    f"variant {variant}"
                )

    @property
    def shape(self) -> Shape:
        """Letters and ``$ | .``, as inputs and as labels."""
        return Shape(self.letters + 3, self.letters + 3, None, "tagger")

    def load(self) -> Task:
        """The task. Nothing is stored: examples are made when they are asked for."""
        val = ByLength(self.min_length, self.max_length, self.val_each)
        test = ByLength(self.test_min_length, self.test_max_length, self.test_each)
        return Task(
            "copy",
            PackedRows("train", self.train, self),
            Strings("val", len(val), self, self.variant, val),
            Strings("test", len(test), self, self.test_variant or self.variant, test),
            **self.shape._asdict(),
            metric="accuracy",
            curve="length",
            labels=(*ascii_lowercase[: self.letters], "$", "|", ".") if self.letters <= 26 else None,
        )

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes copy_train.tsv, copy_val.tsv and copy_test.tsv (`write_rows`); `train` must be set."""
        task = self.load()
        write_rows(folder, task)
        return task
