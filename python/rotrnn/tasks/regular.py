"""Regular languages: parity, even pairs, cycle navigation, modular arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import REGULAR
from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.devices.device import HOST
from rotrnn.tasks.generated import ENDLESS, ByLength, GeneratedSplit, WrittenByRow, carry_of, check_ranges, drawn
from rotrnn.tasks.task import WHOLE, Batch, Carry, Index, Shape, Task

LANGUAGES = tuple(REGULAR)

MAX_LENGTH = 2**20


@dataclass(frozen=True)
class RegularSplit(GeneratedSplit):
    """Strings with the lengths `lengths`, or of random length between the settings' `min_length` and `max_length`."""

    settings: Regular
    lengths: ByLength | None
    carry: Carry = WHOLE

    def make(self, index: Index, streams: Index) -> Batch:
        s = self.settings
        wanted = None if self.lengths is None else self.lengths.at(index)
        longest = s.max_length if wanted is None else int(wanted.max(initial=0))
        how = {"low": s.min_length, "high": s.max_length, "language": REGULAR[s.language], "modulus": s.modulus}
        return drawn(HOST.kernels.regular_sample, streams, longest, length=wanted, seed=s.seed, **how)

    def continued(self, index: Index, before: Index, dtype: npt.DTypeLike = np.float32) -> tuple[Batch, Index]:
        """As `Split.continued`: a continuation needs the class so far, or for "even_pairs" the first
        bit."""
        batch = self.batch(index, dtype)
        assert batch.lengths is not None
        last = np.arange(len(batch.labels)), batch.lengths - 1
        new, own = before < 0, batch.labels[last]
        if self.settings.language == "even_pairs":
            after = np.where(new, batch.inputs[:, 0], before)
            batch.labels[last] = after != batch.inputs[last]
        else:
            after = (own + np.where(new, 0, before)) % self.settings.shape.n_classes
            batch.labels[last] = after
        return batch, after


@dataclass(frozen=True)
class Regular(WrittenByRow):
    """Regular languages of "Neural networks and the Chomsky hierarchy" (Delétang et al., ICLR 2023): predict the class
    of a string of random tokens. The label belongs to the last token.

    - "parity": tokens are bits; the class says whether the number of ones is odd
    - "even_pairs": tokens are bits; the class says whether the total number of 01 and 10 is odd, that is, whether the
      first and the last bit differ
    - "cycle": tokens are moves on a cycle of `modulus` places: to the left (0), none (1) or to the right (2); the class
      is the final place
    - "arithmetic": expressions such as ``2 + 4 * 3 - 1`` with digits below `modulus`, in which ``*`` binds first; the
      class is the value modulo `modulus`. Ids are the digits, then ``+ - *``. Lengths are odd: an even length is
      replaced by the odd length below it

    Training uses short strings whose lengths are uniform and independent (the publication draws one length for a whole
    batch). The test uses longer strings. Accuracy on the test split is the publication's score, a mean over all these
    lengths.

    Parameters
    ----------
    language : str
        One of the names above.
    modulus : int
        Modulus of "cycle" and "arithmetic".
    min_length, max_length : int
        Limits of the length in training, both included. Validation has `val_each` strings of each length.
    test_min_length, test_max_length, test_each : int
        Limits of the length in the test, both included, and the number of strings of each length.
    train : int
        Number of training strings, each used once.
    carry : float
        Chance that a row of a training batch continues its string in the next batch, where the state of the model is
        carried on (`Split.continued`); 0: every batch has whole strings. Not for "arithmetic".
    carry_after : int
        Number of steps of training with whole strings before that.
    carry_rise : int
        Number of steps after those in which the mean number of batches of a string rises from 1 to 1 / (1 - carry).
    seed : int
        Seed of the strings.
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
    carry: float = 0.0
    carry_after: int = 0
    carry_rise: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        if self.language not in LANGUAGES:
            raise ValueError(f"Regular: language is '{self.language}', expected {', '.join(LANGUAGES)}")
        carry_of(self)  # refuses what it cannot be
        if self.carry and self.language == "arithmetic":
            raise ValueError(
                f"Regular: carry is {self.carry}, expected 0 with 'arithmetic': its expressions do not add up"
            )
        limits = (
            ("modulus", 2, 1000),
            ("min_length", 1, MAX_LENGTH),
            ("max_length", self.min_length, MAX_LENGTH),
            ("val_each", 1, MOST_COUNT),
            ("test_min_length", 1, MAX_LENGTH),
            ("test_max_length", self.test_min_length, MAX_LENGTH),
            ("test_each", 1, MOST_COUNT),
            ("train", 1, ENDLESS),
            ("seed", 0, 2**63 - 1),
        )
        check_ranges("Regular", self, limits)

    @property
    def shape(self) -> Shape:
        """The numbers of classes and tokens of the language."""
        binary = Shape(2, 2, None, "tagger")
        return {
            "parity": binary,
            "even_pairs": binary,
            "cycle": Shape(self.modulus, 3, None, "tagger"),
            "arithmetic": Shape(self.modulus, self.modulus + 3, None, "tagger"),
        }[self.language]

    def load(self) -> Task:
        """Returns the task. Nothing is stored: strings are generated when a batch is drawn."""
        val = ByLength(self.min_length, self.max_length, self.val_each)
        test = ByLength(self.test_min_length, self.test_max_length, self.test_each)
        return Task(
            "regular",
            RegularSplit("train", self.train, self, None, carry_of(self), fresh=True),
            RegularSplit("val", len(val), self, val),
            RegularSplit("test", len(test), self, test),
            **self.shape._asdict(),
            curve="length",
            chance=1 / self.shape.n_classes,
        )
