"""Texts as sequences of characters or bytes: vocabulary, ids and splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.tasks.prepared import Arrays, Forms, Store, check_offsets
from rotrnn.tasks.task import Batch, Index, Split
from rotrnn.tasks.vocabulary import EOS, PAD, ids_of

UNICODE = 0x110000

Rows = Callable[[], Iterator[tuple[int, tuple[str, ...]]]]
"""A function that yields the label and the texts of each row of a split; it may be called several times."""

Units = npt.NDArray[Any]


@dataclass(frozen=True)
class Characters:
    """Reads a text as characters (Unicode code points) and an ``<eos>``, at most `max_length` in total, as S4 and S5
    do.

    Ids are ``<pad>`` 0, ``<unk>`` 1, ``<eos>`` 2, then the characters that occur at least `min_frequency` times in the
    truncated training texts, by decreasing frequency; ties in the order of their code points.
    """

    max_length: int
    min_frequency: int = 1
    end: tuple[int, ...] = (EOS,)

    def units(self, text: str) -> Units:
        return np.frombuffer(text[: self.max_length - 1].encode("utf-32-le"), np.uint32)

    def symbols(self, counts: Index) -> Index:
        """Returns the characters of the vocabulary in the order of their ids, from the counts of all characters."""
        (present,) = np.nonzero(counts >= self.min_frequency)
        return np.asarray(present[np.argsort(-counts[present], kind="stable")])

    def ids(self, counts: Index) -> Index:
        """Returns the id of each character."""
        return ids_of(self.symbols(counts), UNICODE)


@dataclass(frozen=True)
class Bytes:
    """Reads a text as its first `max_length` bytes in UTF-8, with id = byte + 1, as Long Range Arena's own pipeline
    does."""

    max_length: int
    end: tuple[int, ...] = ()

    def units(self, text: str) -> Units:
        return np.frombuffer(text.encode()[: self.max_length], np.uint8)

    def symbols(self, counts: Index) -> None:
        """Returns None: the ids do not depend on the training texts."""

    def ids(self, counts: Index) -> Index:
        return np.arange(1, 257)


READINGS = ("characters", "bytes")


def reading(tokens: str, max_length: int, min_frequency: int = 1) -> Characters | Bytes:
    """Returns the tokenisation for a task's setting `tokens`, one of `READINGS`."""
    return Characters(max_length, min_frequency) if tokens == "characters" else Bytes(max_length)


def prepare_texts(store: Store, splits: dict[str, Rows], how: Characters | Bytes) -> None:
    """Writes ids (total number of characters,), offsets (texts + 1,) and labels (rows,) of each split.

    The first split is the training split. Texts are read twice, because they may not fit into memory: once for the
    vocabulary and the sizes, once for the ids.
    """
    counts = np.zeros(UNICODE, np.int64)
    shapes = {}
    for name, rows in splits.items():
        labels, lengths = [], []
        for label, texts in rows():
            labels.append(label)
            for text in texts:
                units = how.units(text)
                lengths.append(max(1, len(units) + len(how.end)))  # an empty text has one <pad>
                if name == next(iter(splits)):
                    here = np.bincount(units)
                    counts[: len(here)] += here
        shapes[name] = labels, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = how.ids(counts)
    largest = max([int(ids.max()), *how.end])
    for name, (labels, offsets) in shapes.items():
        store.array(f"{name}_labels", (len(labels),), np.uint8)[:] = labels
        store.array(f"{name}_offsets", offsets.shape, np.int64)[:] = offsets
        out = store.array(f"{name}_ids", (int(offsets[-1]),), np.min_scalar_type(largest))
        place = 0
        for _, texts in splits[name]():
            for text in texts:
                row = ids[how.units(text)]
                out[offsets[place] : offsets[place] + len(row)] = row
                place += 1
                out[offsets[place] - len(how.end) : offsets[place]] = how.end
    store.array("vocab", (), np.int64)[...] = largest + 1
    if (symbols := how.symbols(counts)) is not None:
        store.array("symbols", symbols.shape, np.int64)[:] = symbols


def text_forms(splits: Iterable[str], how: Characters | Bytes) -> Forms:
    """Returns the forms of the arrays of `prepare_texts`."""
    forms: Forms = {"vocab": ("i8",)}
    if isinstance(how, Characters):
        forms["symbols"] = ("i8", "symbols")
    for name in splits:
        forms |= {f"{name}_ids": ("u", f"{name}_ids"), f"{name}_offsets": ("i8", f"{name}_offsets")}
        forms[f"{name}_labels"] = ("u1", name)
    return forms


@dataclass(frozen=True)
class TextSplit(Split):
    """Rows of `texts` texts each; the ids of text i are ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[Any]
    offsets: Index
    labels: npt.NDArray[np.uint8]
    texts: int = 1

    @classmethod
    def of(cls, arrays: Arrays, name: str, texts: int = 1) -> TextSplit:
        """Returns the split of that name from the arrays of `prepare_texts`."""
        split = cls(arrays[f"{name}_ids"], arrays[f"{name}_offsets"], arrays[f"{name}_labels"], texts)
        check_offsets(split.offsets, texts * len(split.labels), len(split.ids))
        return split

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the texts at `index`: ids (B, T), or (B, texts, T) if there are several; int64 for every `dtype`."""
        rows = (np.asarray(index)[:, None] * self.texts + np.arange(self.texts)).ravel()
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        lengths = ends - starts
        inputs = np.full((len(rows), lengths.max(initial=0)), PAD, np.int64)
        for row, start, end in zip(inputs, starts.tolist(), ends.tolist(), strict=True):
            row[: end - start] = self.ids[start:end]
        labels = self.labels[index].astype(np.int64)
        if self.texts == 1:
            return Batch(inputs, labels, lengths)
        return Batch(inputs.reshape(len(labels), self.texts, -1), labels, lengths.reshape(len(labels), self.texts))
