"""Long Range Arena's Text task: is an IMDB film review positive or negative?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from rotrnn._support.files import atomic_file, read_file
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.released import Release, Released, compare
from rotrnn.tasks.task import Shape, Task
from rotrnn.tasks.text import READINGS, TextSplit, prepare_texts, reading, text_forms

LABELS = ("neg", "pos")
SPLITS = ("train", "test")
RATINGS = {"neg": range(1, 5), "pos": range(7, 11)}
FILE = re.compile(r"(\d+)_(\d+)\.txt")
REVIEWS = 12_500  # per split and label
VOCABULARY = {"characters": 135, "bytes": 257}


@dataclass(frozen=True)
class IMDB(Released):
    """Film reviews (Maas et al. 2011), read character by character. Label 0 is negative, 1 is positive.

    There is no validation split. The test split is evaluated during training, and the benchmark's tables show the best
    of these evaluations. The task's `val` is `test` itself.

    The published files are ``{train,test}/{neg,pos}/<id>_<rating>.txt``, 12,500 in each folder, in UTF-8. Their markup
    is kept. The parameters `data_dir`, `download` and `cache_dir` are documented in `rotrnn.tasks.released.Released`.

    Parameters
    ----------
    tokens : str
        "characters", as in S4 and S5 (`rotrnn.tasks.text.Characters`; 135 ids), or "bytes", as in Long Range Arena's
        own pipeline (`rotrnn.tasks.text.Bytes`; 257 ids).
    max_length : int
        Maximum number of tokens, including ``<eos>``. Longer texts are truncated.
    min_frequency : int
        Characters that occur less often than this in the training texts are read as ``<unk>``.
    """

    tokens: str = "characters"
    max_length: int = 4096
    min_frequency: int = 15

    release: ClassVar[Release] = Release(
        # the hash is from torchtext (pytorch/text, torchtext/datasets/imdb.py)
        {
            "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz": "sha256:"
            "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
        },
        marks=("train/neg",),
        places=("aclImdb", "."),
        inner="aclImdb",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens not in READINGS:
            raise ValueError(f"IMDB: tokens is {self.tokens!r}, expected one of {', '.join(READINGS)}")
        check_ranges("IMDB", self, (("max_length", 2, 2**31 - 1), ("min_frequency", 1, 2**31 - 1)))

    @property
    def shape(self) -> Shape:
        """Two classes, and the size of the published reviews' vocabulary."""
        return Shape(2, VOCABULARY[self.tokens], None)

    @property
    def sizes(self) -> dict[str, int]:
        """The published numbers of reviews. The test split is also the validation split."""
        return dict.fromkeys(("train", "val", "test"), 2 * REVIEWS)

    def load(self) -> Task:
        """Returns the task. The first call prepares its arrays."""
        folder = self.folder()
        files = {split: {label: _files(folder / split / label) for label in LABELS} for split in SPLITS}
        how = reading(self.tokens, self.max_length, self.min_frequency)
        arrays = self.prepare(
            f"imdb-{self.tokens}-{self.max_length}-{self.min_frequency}",
            (path for split in files.values() for paths in split.values() for path in paths),
            lambda store: prepare_texts(store, {name: partial(_rows, split) for name, split in files.items()}, how),
            text_forms(files, how),
        )
        train, test = (TextSplit.of(arrays, name) for name in SPLITS)
        vocab = int(arrays["vocab"])
        count = {f"{split}/{label}": len(paths) for split, labels in files.items() for label, paths in labels.items()}
        if compare("IMDB", folder, count, dict.fromkeys(count, REVIEWS)) and (self.max_length, self.min_frequency) == (
            4096,
            15,
        ):
            compare("IMDB", folder, {"vocabulary": vocab}, {"vocabulary": VOCABULARY[self.tokens]})
        symbols = arrays.get("symbols")
        return Task("imdb", train, test, test, 2, vocab, None, labels=LABELS, symbols=symbols)

    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes `examples` random reviews of `max_length` characters for each split."""
        rng = np.random.default_rng(0)
        for split in SPLITS:
            for i in range(examples):
                label = LABELS[i % 2]
                place = Path(folder, "aclImdb", split, label)
                place.mkdir(parents=True, exist_ok=True)
                with atomic_file(place / f"{i}_{RATINGS[label][0]}.txt") as file:
                    file.write(rng.integers(32, 127, self.max_length, np.uint8).tobytes())


def _files(folder: Path) -> list[Path]:
    """Returns the reviews in a folder, ordered by id. ValueError for a file name that is not a review's."""
    found = []
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        name = FILE.fullmatch(path.name)
        ratings = RATINGS[folder.name]
        if name is None or int(name[2]) not in ratings:
            raise ValueError(
                f"{path}: expected a name <id>_<rating>.txt with a rating from {ratings[0]} to {ratings[-1]} for label "
                f"'{folder.name}'"
            )
        found.append((int(name[1]), path))
    return [path for _, path in sorted(found)]


def _rows(files: dict[str, list[Path]]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for label, name in enumerate(LABELS):
        for path in files[name]:
            try:
                yield label, (read_file(path).decode(),)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: is not valid UTF-8: {error}") from None
