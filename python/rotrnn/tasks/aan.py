"""Long Range Arena's Retrieval task: does one paper of the ACL Anthology Network cite the other?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from rotrnn._support.files import atomic_file, open_file
from rotrnn._support.settings import MOST_COUNT
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.released import Release, Released, compare, lra
from rotrnn.tasks.task import Shape, Task
from rotrnn.tasks.text import READINGS, TextSplit, prepare_texts, reading, text_forms

FILES = {name: f"new_aan_pairs.{part}.tsv" for name, part in (("train", "train"), ("val", "eval"), ("test", "test"))}
PAIRS = {"train": 147_086, "val": 18_090, "test": 17_437}
VOCABULARY = {"characters": 98, "bytes": 257}
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
COLUMNS = "label, two paper ids, two texts"


@dataclass(frozen=True)
class AAN(Released):
    """Pairs of papers (Radev et al. 2013), read character by character by one encoder. Label 1 means that one cites the
    other.

    The published files are new_aan_pairs.{train,eval,test}.tsv. They have no header. Each line holds a label, two paper
    ids and two texts, separated by tabs. Quotation marks have no special meaning. The parameters `data_dir`, `download`
    and `cache_dir` are documented in `rotrnn.tasks.released.Released`. The download is the archive of the whole Long
    Range Arena, 8 GB.

    Parameters
    ----------
    tokens : str
        "characters", as in S4 and S5 (`rotrnn.tasks.text.Characters`; 98 ids), or "bytes", as in Long Range Arena's
        own pipeline (`rotrnn.tasks.text.Bytes`; 257 ids).
    max_length : int
        Maximum number of tokens of each text, including ``<eos>``. Longer texts are truncated.
    """

    tokens: str = "characters"
    max_length: int = 4000

    release: ClassVar[Release] = lra("tsv_data", FILES["train"])

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens not in READINGS:
            raise ValueError(f"AAN: tokens is {self.tokens!r}, expected one of {', '.join(READINGS)}")
        check_ranges("AAN", self, (("max_length", 2, MOST_COUNT),))

    @property
    def shape(self) -> Shape:
        """Two classes, and the size of the published papers' vocabulary."""
        return Shape(2, VOCABULARY[self.tokens], None, "retrieval")

    @property
    def sizes(self) -> dict[str, int]:
        """The published numbers of pairs."""
        return PAIRS

    def load(self) -> Task:
        """Returns the task. The first call prepares its arrays."""
        folder = self.folder()
        files = {name: folder / file for name, file in FILES.items()}
        how = reading(self.tokens, self.max_length)
        arrays = self.prepare(
            f"aan-{self.tokens}-{self.max_length}",
            files.values(),
            lambda store: prepare_texts(
                store, {name: partial(read_pairs, path, PAIRS[name]) for name, path in files.items()}, how
            ),
            text_forms(files, how),
        )
        train, val, test = (TextSplit.of(arrays, name, texts=2) for name in FILES)
        vocab = int(arrays["vocab"])
        if (
            compare("AAN", folder, {"train": len(train), "val": len(val), "test": len(test)}, PAIRS)
            and self.max_length == 4000
        ):
            compare("AAN", folder, {"vocabulary": vocab}, {"vocabulary": VOCABULARY[self.tokens]})
        symbols = arrays.get("symbols")
        return Task("aan", train, val, test, 2, vocab, None, head="retrieval", symbols=symbols)

    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes `examples` pairs of random texts of `max_length` characters for each split."""
        rng = np.random.default_rng(0)
        place = Path(folder, "tsv_data")
        place.mkdir(parents=True, exist_ok=True)
        for name in FILES.values():
            with atomic_file(place / name) as file:
                for i in range(examples):
                    one, other = (rng.integers(32, 127, self.max_length, np.uint8).tobytes() for _ in range(2))
                    file.write(b"%d.0\tP%d\tQ%d\t%b\t%b\n" % (i % 2, i, i, one, other))


def read_pairs(path: str | os.PathLike[str], published: int | None = None) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the label and both texts of each line of a published file.

    A malformed line raises a ValueError that names the file and the line. A last line without a line feed counts as
    truncated, unless it is line number `published`, the last line of the published file.
    """
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                if not line.endswith(b"\n") and number != published:
                    raise ValueError("the line is truncated, expected a line feed at its end")
                yield _parse(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None


def _parse(line: bytes) -> tuple[int, tuple[str, ...]]:
    columns = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
    if len(columns) != 5:
        raise ValueError(f"the line has {len(columns)} column(s), expected 5: {COLUMNS}")
    label, _, _, *texts = columns
    if label not in LABELS:
        raise ValueError(f"the label is {label[:20].decode(errors='backslashreplace')!r}, expected 0 or 1")
    try:
        return LABELS[label], tuple(text.decode() for text in texts)
    except UnicodeDecodeError as error:
        raise ValueError(f"a text is not valid UTF-8: {error}") from None
