"""The copy task: copy a string, or look up the text after a given part of it."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar

import numpy as np

from rotrnn._cpu import COPY
from rotrnn._cpu import COPY_MAX_LENGTH as MAX_LENGTH
from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.devices.device import HOST
from rotrnn.tasks.generated import ENDLESS, ByLength, GeneratedSplit, WrittenByRow, check_ranges, drawn
from rotrnn.tasks.task import Batch, Index, Shape, Task

VARIANTS = tuple(COPY)
EXTRA = 4  # an example has at most 2 * letters + EXTRA tokens


@dataclass(frozen=True)
class PackedCopySplit(GeneratedSplit):
    """Training rows of `settings.context` tokens, packed with examples."""

    settings: Copy

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
        """Returns the largest possible number of letters of a string in each row."""
        return np.full(len(index), self.settings.max_length)


@dataclass(frozen=True)
class CopySplit(GeneratedSplit):
    """One example per row, with the same number of examples of each length."""

    settings: Copy
    variant: str
    lengths: ByLength

    def make(self, index: Index, streams: Index) -> Batch:
        s, wanted = self.settings, self.lengths.at(index)
        how = {"seed": s.seed, "letters": s.letters, "variant": COPY[self.variant], "gram": s.gram, "answer": s.answer}
        T = 2 * int(wanted.max(initial=0)) + EXTRA
        return drawn(HOST.kernels.copy_strings, streams, T, length=wanted, **how)

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """Returns the number of letters of each string."""
        return self.lengths.at(np.asarray(index))


@dataclass(frozen=True)
class Copy(WrittenByRow):
    """The copy task (Jelassi, Brandfonbrener, Kakade, Malach: "Repeat after me", 2024): a string of random letters,
    followed by its copy. It is set up as language modelling: the label of a token is the next token.

    Ids are the letters, then ``$``, ``|`` and ``.``. Published code has another id for padding in evaluation, or pads
    with ``.``; neither ever counts. `variant` is the form of an example for a string s:

    - "copy": ``$s|s.``
    - "prefix": ``$q|s|r.``, where q are `gram` letters of s from a random place and r follows their first occurrence
    - "suffix": ``$s|qr.``, the same with the question after the string
    - "duplicate" (only in tests of models trained on "copy"): as "copy", with a part of s replaced by another part of s

    Training rows are packed with examples, one after the other. The rest of a row is filled with the beginning of one
    more example. Only answers, including their ``.``, are labelled, and only in complete examples. The recurrent
    state is carried from one example to the next. Validation and test have one example per row, and the last ``.`` is
    not labelled. So accuracy is the share of right letters given the right previous ones (which are in the input), and
    a sequence is right if every letter of its answer is. (Published character accuracies are means over strings, which
    is the same for each length.)

    Parameters
    ----------
    variant : str
        "copy", "prefix" or "suffix".
    gram : int
        Number of letters of q, and of the part that is duplicated.
    answer : int
        Number of letters of an answer; 0 for all that are available.
    letters : int
        Size of the alphabet.
    min_length, max_length : int
        Limits of the string length in training, both included; lengths are uniform. Validation has `val_each` examples
        of each length.
    context : int
        Number of tokens of a training row, at least the length of the longest example.
    test_min_length, test_max_length, test_each : int
        Limits of the string length in the test, both included (the published evaluation excludes the upper one), and
        the number of examples of each length.
    test_variant : str
        Variant to test on: "duplicate", or empty for `variant`.
    train : int
        Number of training rows, each used once.
    seed : int
        Seed of the strings.
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

    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        if self.variant not in VARIANTS[:3]:
            raise ValueError(f"Copy: variant is '{self.variant}', expected {', '.join(VARIANTS[:3])}")
        if self.test_variant not in ("", "duplicate") or (self.test_variant and self.variant != "copy"):
            raise ValueError(
                f"Copy: test_variant is '{self.test_variant}' and variant is '{self.variant}', "
                "expected an empty test_variant, or duplicate for copy"
            )

        limits = (
            ("gram", 1, MAX_LENGTH),
            ("answer", 0, MAX_LENGTH),
            ("letters", 1, 250),
            ("min_length", 1, MAX_LENGTH),
            ("max_length", self.min_length, MAX_LENGTH),
            ("context", 2 * self.max_length + EXTRA, 2**20),
            ("val_each", 1, MOST_COUNT),
            ("test_min_length", 1, MAX_LENGTH),
            ("test_max_length", self.test_min_length, MAX_LENGTH),
            ("test_each", 1, MOST_COUNT),
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
                    f"Copy: {key} is {length}, expected at least {' + '.join(needed)} = {sum(needed.values())} for "
                    f"variant {variant}"
                )

    @property
    def shape(self) -> Shape:
        """Letters and ``$ | .`` are both the tokens and the classes."""
        return Shape(self.letters + 3, self.letters + 3, None, "tagger")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: examples are generated when a batch is drawn."""
        val = ByLength(self.min_length, self.max_length, self.val_each)
        test = ByLength(self.test_min_length, self.test_max_length, self.test_each)
        return Task(
            "copy",
            PackedCopySplit("train", self.train, self, fresh=True),
            CopySplit("val", len(val), self, self.variant, val),
            CopySplit("test", len(test), self, self.test_variant or self.variant, test),
            **self.shape._asdict(),
            metric="accuracy",
            curve="length",
            labels=(*ascii_lowercase[: self.letters], "$", "|", ".") if self.letters <= 26 else None,
        )
