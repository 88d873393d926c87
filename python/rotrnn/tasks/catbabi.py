"""catbAbI: the stories of bAbI, one after the other, as one long text."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from rotrnn._support.files import naming
from rotrnn._support.platform import regular
from rotrnn._support.settings import settle
from rotrnn.tasks.generated import WrittenByRow, carry_of, check_ranges
from rotrnn.tasks.language import MAX_LENGTH, LanguageSplit
from rotrnn.tasks.task import Index, Shape, Task, shuffled

PAD, EOS, ASKED = "<pad>", "<eos>", "?"
PARTS = {"train": "train", "val": "valid", "test": "test"}
"""Split -> part in the names of files."""
TASKS = range(1, 21)
MOST_LINE = 2**16
MOST_WORDS = 2**15
"""Of the vocabulary."""
FILES = "a folder with qa1_train.txt, qa1_valid.txt, qa1_test.txt and so on, as en-valid-10k of tasks_1-20_v1-2"


def read_stories(path: str | Path) -> list[list[str]]:
    """Returns the words of each story of a file of bAbI: lines ``number statement.`` and
    ``number question?<TAB>answer<TAB>support``, where the number 1 begins a story. Empty lines are
    left out.

    Words are in lower case; "." and "?" are words, and an answer is one, commas included. Supporting facts are left
    out, and so is the last story, as in the released code of catbAbI.

    Raises
    ------
    ValueError
        A line is of another form; the error names file and line.
    OSError
        The file cannot be read.
    """
    stories: list[list[str]] = []
    try:
        with open(path, encoding="utf-8-sig", opener=regular) as file, naming(path):
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE + 1), ""), 1):
                where = f"{path}, line {number}"
                if len(line) > MOST_LINE:
                    raise ValueError(f"{where}: has more than {MOST_LINE} characters, expected a line of a story")
                if not line.strip():
                    continue
                count, _, text = line.lower().strip().partition(" ")
                if not (count.isascii() and count.isdigit()) or (count != "1" and not stories):
                    raise ValueError(f"{where}: begins with {count!r:.40}, expected the number of a line of a story")
                if count == "1":
                    stories.append([])
                stories[-1] += _words(where, text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not text in UTF-8 ({error})") from error
    return stories[:-1]


def _words(where: str, text: str) -> Iterator[str]:
    """Yields the words of a statement, or of a question and its answer."""
    query, *rest = (part.strip() for part in text.split("\t"))
    end = ASKED if rest else "."
    answer = rest[:1]
    if not query.endswith(end) or len(rest) not in (0, 2) or answer == [""]:
        expected = "'statement.', or 'question?', an answer and its support between tabs"
        raise ValueError(f"{where}: is {text!r:.60}, expected {expected}")
    yield from (*query[:-1].split(), end, *answer)


@dataclass(frozen=True)
class CatBabi(WrittenByRow):
    """catbAbI (Schlag, Munkhdalai and Schmidhuber 2021, "Learning Associative Inference Using Fast Weight Memory"):
    language modelling on the stories of bAbI, whose 20 kinds of questions ask for facts in the story so far.

    Stories follow each other without end, each behind a sign. Of training all words count, or answers alone, of
    validation and test the words right behind "?", which are the answers: accuracy counts answers. As in the
    released code, supporting facts and the last story of each file are left out. The stories of a split are in an order
    drawn by `seed`, which is another for each epoch there; rows read on with `carry`, where they always do there.

    The texts of bAbI are not part of the package, and nothing is downloaded.

    Parameters
    ----------
    path : str
        The folder of the files: en-valid-10k of tasks_1-20_v1-2, or en-valid, which is smaller. In a recipe's file, it
        is relative to that file; else to the working directory.
    answers : bool
        Whether training learns answers alone.
    length, test_length, carry, carry_after, carry_rise
        As of `rotrnn.tasks.Language`, in words. (The released code reads 200 at a time.)
    seed : int
        Of the order of stories.
    """

    causal: ClassVar[bool] = True
    head: ClassVar[str] = "language"

    path: str = ""
    answers: bool = True
    length: int = 200
    test_length: int = 0
    carry: float = 0.0
    carry_after: int = 0
    carry_rise: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        carry_of(self)  # refuses what it cannot be
        ranges = (("length", 1, MAX_LENGTH), ("test_length", 0, MAX_LENGTH), ("seed", 0, 2**63 - 1))
        check_ranges("CatBabi", self, ranges)
        if self.path:
            object.__setattr__(self, "path", os.path.abspath(self.path))

    @property
    def shape(self) -> Shape:
        """A class and a token for each word, for which the files are read."""
        task = self.load()
        return Shape(task.n_classes, task.vocab, None, self.head)

    def load(self) -> Task:
        """Returns the task. ValueError, with file and line, if a file is not one of bAbI."""
        if not self.path:
            raise ValueError(f"CatBabi: path is '', expected {FILES}")
        root = Path(self.path)
        numbers = [n for n in TASKS if (root / f"qa{n}_train.txt").is_file()]
        if not numbers:
            raise FileNotFoundError(f"CatBabi: path is {root}, which has no qa1_train.txt; expected {FILES}")
        for missing in (root / f"qa{n}_{part}.txt" for n in numbers for part in PARTS.values()):
            if not missing.is_file():
                raise FileNotFoundError(f"CatBabi: {missing} is no file, expected {FILES}")
        stories = {
            name: [one for n in numbers for one in read_stories(root / f"qa{n}_{part}.txt")]
            for name, part in PARTS.items()
        }
        words = itertools.chain.from_iterable(itertools.chain.from_iterable(stories.values()))
        vocabulary = {word: i for i, word in enumerate(dict.fromkeys([PAD, EOS, ASKED, *words]))}
        if len(vocabulary) > MOST_WORDS:
            raise ValueError(f"{root}: has {len(vocabulary)} different words, expected at most {MOST_WORDS}")
        parts: dict[str, LanguageSplit] = {}
        for name, found in stories.items():
            if not found:
                file = f"qa{numbers[0]}_{PARTS[name]}.txt"
                raise ValueError(f"{root}: has no story for {name}, expected two or more in {file}")
            order = shuffled(len(found), self.seed, 0)
            text = [EOS, *itertools.chain.from_iterable((*found[i], EOS) for i in order.tolist())]
            ids: Index = np.array([vocabulary[word] for word in text], np.int64)
            if name == "train":
                asked = vocabulary[ASKED] if self.answers else None
                parts[name] = LanguageSplit(ids, self.length, carry_of(self), asked)
            else:
                parts[name] = LanguageSplit(ids, self.test_length or self.length, asked=vocabulary[ASKED])
        shape = Shape(len(vocabulary), len(vocabulary), None, self.head)
        train, val, test = parts.values()
        return Task("catbabi", train, val, test, **shape._asdict(), labels=tuple(vocabulary))
