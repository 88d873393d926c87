"""A text of your own as a task: the next byte."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.settings import settle
from rotrnn.tasks.generated import WrittenByRow, carry_of, check_ranges
from rotrnn.tasks.task import WHOLE, Batch, Carry, Index, Shape, Split, Task

BYTES = 256
MAX_LENGTH = 2**20


@dataclass(frozen=True)
class LanguageSplit(Split):
    """The consecutive chunks of a text: chunk i has the tokens from i `length` on, at most `length`, and as labels the
    tokens that follow each. The last token is a label alone. If tokens are `asked`, a label counts behind one of
    them."""

    text: npt.NDArray[np.integer[Any]]
    length: int
    carry: Carry = WHOLE
    asked: int | None = None

    def __len__(self) -> int:
        return -(-(len(self.text) - 1) // self.length)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the chunks at `index`; ids are int64 for every `dtype`."""
        return self._from(np.asarray(index) * self.length)

    def continued(self, index: Index, before: Index, dtype: npt.DTypeLike = np.float32) -> tuple[Batch, Index]:
        """As `Split.continued`: a continuation needs the place where it begins. At the end of the text it
        is the beginning of the text."""
        starts = np.where(before < 0, np.asarray(index) * self.length, before)
        after = starts + self.length
        return self._from(starts), np.where(after < len(self.text) - 1, after, 0)

    def _from(self, starts: Index) -> Batch:
        """Returns the chunks that begin at these places."""
        sizes = np.minimum(self.length, len(self.text) - 1 - starts)
        t = np.arange(int(sizes.max(initial=0)) + 1)
        read = self.text[np.minimum(starts[:, None] + t, len(self.text) - 1)].astype(np.int64)
        ended = t[:-1] >= sizes[:, None]
        left_out = ended if self.asked is None else ended | (read[:, :-1] != self.asked)
        inputs, labels = np.where(ended, 0, read[:, :-1]), np.where(left_out, -1, read[:, 1:])
        return Batch(inputs, labels, sizes if ended.any() else None)


@dataclass(frozen=True)
class Language(WrittenByRow):
    """Language modelling on a text of your own: predict each next byte of a file.

    Ids are bytes, 0 to 255. Sequences are consecutive chunks of `length` bytes; validation and test are the end of the
    file. With `carry` a row of a training batch reads on in the next batch, where its chunk ended, with the state that
    the model had there; at the end of the training text it goes on at the beginning.

    Parameters
    ----------
    path : str
        The file. In a recipe's file, it is relative to that file; else to the working directory.
    length : int
        Number of bytes of a chunk in training.
    test_length : int
        The same in validation and test, whose chunks begin without a state; 0: as in training.
    val_fraction, test_fraction : float
        Shares of the file for validation and test. Without a share for the test, it is the validation split; without
        both, the training split serves for all.
    carry : float
        Chance that a row of a training batch reads on in the next batch, where the state of the model is carried on
        (`Split.continued`); 0: every chunk begins without a state.
    carry_after : int
        Number of steps of training before that.
    carry_rise : int
        Number of steps after those in which the mean number of chunks that are read in a row rises from 1 to
        1 / (1 - carry).
    """

    causal: ClassVar[bool] = True
    split_settings: ClassVar[tuple[str, ...]] = ("val_fraction", "test_fraction")

    path: str = ""
    length: int = 256
    test_length: int = 0
    val_fraction: float = 0.05
    test_fraction: float = 0.05
    carry: float = 0.0
    carry_after: int = 0
    carry_rise: int = 0

    def __post_init__(self) -> None:
        settle(self)
        carry_of(self)  # refuses what it cannot be
        check_ranges("Language", self, (("length", 1, MAX_LENGTH), ("test_length", 0, MAX_LENGTH)))
        if not (self.val_fraction >= 0 and self.test_fraction >= 0 and self.val_fraction + self.test_fraction < 1):
            shares = f"val_fraction is {self.val_fraction} and test_fraction is {self.test_fraction}"
            raise ValueError(f"Language: {shares}, expected numbers of at least 0 whose sum is below 1")
        if self.path:
            object.__setattr__(self, "path", os.path.abspath(self.path))

    @property
    def shape(self) -> Shape:
        """A class and a token for each byte."""
        return Shape(BYTES, BYTES, None, "language")

    def load(self) -> Task:
        """Returns the task. ValueError if the file is too short to have a chunk in each part."""
        expected = "expected a file of text"
        if not self.path:
            raise ValueError(f"Language: path is '', {expected}")
        if not Path(self.path).is_file():
            raise FileNotFoundError(f"Language: path is {self.path}, which is no file; {expected}")
        text = np.fromfile(self.path, np.uint8)
        n = len(text)
        val, test = round(self.val_fraction * n), round(self.test_fraction * n)
        sizes = {"training": n - val - test, "validation": val, "test": test}
        for name, size in sizes.items():
            if size < 2 and (size or name == "training"):
                raise ValueError(f"{self.path}: has {n} bytes, {size} of them for {name}, expected at least 2")
        length = self.test_length or self.length
        first = text[: n - val - test]
        train = LanguageSplit(first, self.length, carry_of(self))
        validation = LanguageSplit(text[n - val - test : n - test], length) if val else None
        again = train if length == self.length else LanguageSplit(first, length)
        testing = LanguageSplit(text[n - test :], length) if test else validation or again
        return Task("language", train, validation or testing, testing, **self.shape._asdict())
