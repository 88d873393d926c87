"""Modular arithmetic with brackets: predict the value of a nested expression."""

from __future__ import annotations

from dataclasses import dataclass

from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.devices.device import HOST
from rotrnn.tasks.generated import ENDLESS, GeneratedSplit, WrittenByRow, check_ranges, drawn
from rotrnn.tasks.task import Batch, Index, Shape, Task

OPERATORS = ("+-", "+-*")
SYMBOLS = ("+", "-", "*", "(", ")", "=", "PAD")
"""Symbols; their ids follow the digits."""

MAX_LENGTH = 4096


@dataclass(frozen=True)
class BracketsSplit(GeneratedSplit):
    """Expressions with `low` to `high` tokens in total."""

    settings: Brackets
    low: int
    high: int

    def make(self, index: Index, streams: Index) -> Batch:
        s, kernel = self.settings, HOST.kernels.brackets_sample
        limits = {"low": self.low, "high": self.high}
        return drawn(
            kernel, streams, max(self.high, 5), seed=s.seed, **limits, modulus=s.modulus, operators=len(s.operators)
        )


@dataclass(frozen=True)
class Brackets(WrittenByRow):
    """Arithmetic modulo 5 with brackets (Delétang et al., "Neural networks and the Chomsky hierarchy", 2023), with the
    training setup of Grazzi et al. ("Unlocking state-tracking in linear RNNs through negative eigenvalues", 2025).

    A sequence is an expression such as ``((-3)+(1-4))`` followed by ``=``. The label of ``=`` is the value of the
    expression; no other position has a label. The ids are the digits 0 to `modulus` - 1, then ``+ - * ( ) =`` and PAD.
    After ``=`` comes the digit 0 as a placeholder for the value. A sample has t tokens: t - 3 of the expression, ``=``,
    the 0, and one of padding, which does not count towards its length. t is uniform between the limits below, but at
    least 5. All choices are uniform: digits, operators, and the size of the left side among those that leave room for
    the right side. The scaled accuracy is measured on expressions longer than any in training, as in both publications.

    Parameters
    ----------
    operators : str
        "+-", as in the two publications, where values are uniform; or "+-*", as in the Fixed-Point RNNs' code, where 0
        is more frequent. Accuracies on the two are not comparable.
    modulus : int
        Values and digits are taken modulo this number.
    min_length, max_length : int
        Limits of t in training, both included.
    val_min_length, val_max_length, test_min_length, test_max_length : int
        Limits of t in validation and in the test.
    train, val, test : int
        Number of expressions in each split. Training uses each of its expressions once.
    seed : int
        Seed of the expressions.
    """

    operators: str = "+-"
    modulus: int = 5
    min_length: int = 3
    max_length: int = 40
    val_min_length: int = 40
    val_max_length: int = 256
    test_min_length: int = 3
    test_max_length: int = 256
    train: int = 102_400_000
    val: int = 8192
    test: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        if self.operators not in OPERATORS:
            raise ValueError(f"Brackets: operators is '{self.operators}', expected '+-' or '+-*'")
        limits = [("modulus", 2, 1000), ("train", 1, ENDLESS), ("val", 1, MOST_COUNT), ("test", 1, MOST_COUNT)]
        for prefix in ("", "val_", "test_"):
            low = getattr(self, f"{prefix}min_length")
            limits += [(f"{prefix}min_length", 1, MAX_LENGTH), (f"{prefix}max_length", low, MAX_LENGTH)]
        check_ranges("Brackets", self, (*limits, ("seed", 0, 2**63 - 1)))

    @property
    def shape(self) -> Shape:
        """Classes are the values; tokens are the digits and symbols."""
        return Shape(self.modulus, self.modulus + len(SYMBOLS), None, "tagger")

    def load(self) -> Task:
        """Returns the task. Nothing is stored: expressions are generated when a batch is drawn."""
        return Task(
            "brackets",
            BracketsSplit("train", self.train, self, self.min_length, self.max_length, fresh=True),
            BracketsSplit("val", self.val, self, self.val_min_length, self.val_max_length),
            BracketsSplit("test", self.test, self, self.test_min_length, self.test_max_length),
            **self.shape._asdict(),
            curve="length",
            chance=1 / self.modulus,
            scaled_above=max(self.max_length, 5) - 1,  # of t tokens, one is padding
        )
