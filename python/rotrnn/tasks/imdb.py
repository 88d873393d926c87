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
from rotrnn._support.settings import MOST_COUNT
from rotrnn._support.text import an
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.hub import PLACE, read_rows, split_file
from rotrnn.tasks.released import Release, Released, Source, compare
from rotrnn.tasks.task import Shape, Task
from rotrnn.tasks.text import READINGS, Rows, TextSplit, prepare_texts, reading, text_forms

# the hash is from torchtext (pytorch/text, torchtext/datasets/imdb.py)
ARCHIVE = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
SHA256 = "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
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
    is kept. The Parquet files of the Hugging Face Hub (stanfordnlp/imdb: ``plain_text/train-00000-of-00001.parquet``
    and ``test``) are read as well; they have the same reviews, in another order. The parameters `data_dir`, `download`
    and `cache_dir` are documented in `rotrnn.tasks.released.Released`.

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
        (Source({ARCHIVE: SHA256}, "aclImdb"),),
        marks=("train/neg", split_file("train")),
        places=("aclImdb", PLACE, "."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens not in READINGS:
            raise ValueError(f"IMDB: tokens is {self.tokens!r}, expected one of {', '.join(READINGS)}")
        check_ranges("IMDB", self, (("max_length", 2, MOST_COUNT), ("min_frequency", 1, MOST_COUNT)))

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
        if (folder / split_file("train")).exists():
            self.whole(folder / split_file(split) for split in SPLITS)
            rows, files = _hub(folder)
        else:
            self.whole((folder / split / label for split in SPLITS for label in LABELS), folders=True)
            rows, files = _published(folder)
        how = reading(self.tokens, self.max_length, self.min_frequency)
        arrays = self.prepare(
            f"imdb-{self.tokens}-{self.max_length}-{self.min_frequency}",
            files,
            lambda store: prepare_texts(store, rows, how),
            text_forms(rows, how),
        )
        train, test = (TextSplit.of(arrays, name) for name in SPLITS)
        vocab = int(arrays["vocab"])
        count = {
            f"{name}/{label}": int(np.count_nonzero(split.labels == i))
            for name, split in (("train", train), ("test", test))
            for i, label in enumerate(LABELS)
        }
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


def _published(folder: Path) -> tuple[dict[str, Rows], list[Path]]:
    """Returns the rows of each split and the files, of the published form."""
    files = {split: {label: _files(folder / split / label) for label in LABELS} for split in SPLITS}
    rows: dict[str, Rows] = {split: partial(_rows, paths) for split, paths in files.items()}
    return rows, [path for split in files.values() for paths in split.values() for path in paths]


def _hub(folder: Path) -> tuple[dict[str, Rows], list[Path]]:
    """Returns the rows of each split and the files, of the form of the Hub."""
    files = {split: folder / split_file(split) for split in SPLITS}
    return {split: partial(_hub_rows, path) for split, path in files.items()}, list(files.values())


def _hub_rows(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    for row, (text, label) in enumerate(read_rows(path, ("text", "label"))):
        if not isinstance(text, str) or type(label) is not int or label not in (0, 1):
            got = f"{an(type(text).__name__)} with label {label!r:.20}"
            raise ValueError(f"{path}, row {row}: has {got}, expected a text with label 0 or 1")
        yield label, (text,)


def _files(folder: Path) -> list[Path]:
    """Returns the reviews in a folder, ordered by id. ValueError for a file name that is not a review's, two reviews of
    one id, and none."""
    found: dict[int, Path] = {}
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
        if (other := found.setdefault(int(name[1]), path)) != path:
            first, second = sorted((other, path))
            raise ValueError(f"IMDB: {first} and {second.name} are reviews of one id, expected one of each")
    if not found:
        raise ValueError(f"IMDB: {folder} has no reviews, expected at least one file <id>_<rating>.txt")
    return [path for _, path in sorted(found.items())]


def _rows(files: dict[str, list[Path]]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for label, name in enumerate(LABELS):
        for path in files[name]:
            try:
                yield label, (read_file(path).decode(),)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: is not valid UTF-8: {error}") from None
