"""What a task is: three splits of labelled sequences, and the settings it is loaded from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rotrnn.ops.random import philox

Index = npt.NDArray[np.int64]

CHUNK = 2**14  # random numbers drawn at a time, in cache


class Batch(NamedTuple):
    """Some sequences of a split, padded with zeros to the longest of them.

    `inputs` are token ids (B, T) int64 or features (B, T, F) in the dtype asked for; `labels` (B,) int64; `lengths`
    (B,) int64, the valid steps of each sequence, or None where all T are. For a tagger, labels are (B, T), -1 where
    they do not count, padding included, and for bits (B, T, K) of 0, 1 and -1; for pairs, inputs (B, 2, T, ...) and
    lengths (B, 2).
    """

    inputs: npt.NDArray[Any]
    labels: Index
    lengths: Index | None


def shuffled(n: int, seed: int, epoch: int) -> Index:
    """0..n-1 ordered by the first 64 bits of Philox block (i, epoch) under `seed`, the same on every machine.

    NumPy promises no shuffle across its versions.
    """
    numbers = np.empty(n, np.uint64)
    for first in range(0, n, CHUNK):
        size = min(CHUNK, n - first)
        counter = np.zeros((size, 4), np.int64)
        counter[:, 0], counter[:, 1] = np.arange(first, first + size), epoch
        words = philox(counter, seed)
        numbers[first : first + size] = words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1].astype(np.uint64)
    return np.argsort(numbers, kind="stable")


class Exhausted(RuntimeError):
    """A generator's settings do not allow what was asked for."""


class Split(ABC):
    """Labelled sequences that are drawn from by index.

    Where `fresh`, example i is made from its index when it is asked for and training never comes back to it: there are
    as many as anyone wants (`len` may be 2**40), taken in the order of their index, epochs know no shuffling.
    """

    fresh: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """The sequences at `index`, features in `dtype`. Any thread may call it."""

    def labels_and_lengths(self, index: Index) -> tuple[Index, Index]:
        """As `batch` has them, lengths where all are valid too: for statistics of whole splits."""
        inputs, labels, lengths = self.batch(index)
        return labels, np.full(len(labels), inputs.shape[1]) if lengths is None else lengths

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """(B,) what "length" means in a curve of accuracy against length: valid steps, where a task says no other."""
        return np.full(len(index), batch.inputs.shape[1]) if batch.lengths is None else batch.lengths


METRICS = ("accuracy", "sequence_accuracy")
CURVES = ("length", "prefix")


@dataclass(frozen=True)
class Task:
    """Token sequences (`vocab` is the number of ids) or features (`n_features` a step), with labels.

    Parameters
    ----------
    val : Split
        Where it *is* `test`, the data set has no validation part, and everything that chooses by it says so.
    n_classes : int
        Of bits, how many there are a step.
    head : str
        The model (`rotrnn.models.build.HEADS`) that the labels are for.
    metric : str
        What parameters are chosen by and tables show: "accuracy", the share of right labels, or "sequence_accuracy",
        that of sequences of which every label that counts is right.
    curve : str, optional
        Evaluation tells accuracies by length too. "length": of sequences of each length (`Split.curve_lengths`).
        "prefix", for taggers that look at the past alone: of the first t labels of every sequence, for each t.
    bos : bool
        Sequences begin with a token that is no part of them, which prefixes do not count as length.
    chance : float, optional
        Accuracy of guessing; (accuracy - chance) / (1 - chance) is told too, as "scaled_accuracy".
    labels : tuple of str, optional
        What the classes are called; of bits, the two values.
    symbols : (vocab - 3,) integers, optional
        What the ids from 3 on stand for, where the training split decides on it (`rotrnn.tasks.vocabulary`).
    """

    name: str
    train: Split
    val: Split
    test: Split
    n_classes: int
    vocab: int | None
    n_features: int | None
    _: KW_ONLY
    head: str = "classifier"
    metric: str = "accuracy"
    curve: str | None = None
    bos: bool = False
    chance: float | None = None
    labels: tuple[str, ...] | None = None
    symbols: Index | None = None

    @property
    def n_values(self) -> int:
        """How many values a label that counts can have."""
        return 2 if self.head == "bits" else self.n_classes

    @property
    def selected_on(self) -> str:
        """The split that parameters are chosen by: "validation", or "test" where there is no validation part."""
        return "test" if self.val is self.test else "validation"


class Shape(NamedTuple):
    """What a model has to know of a task, as `Task` has it."""

    n_classes: int
    vocab: int | None
    n_features: int | None
    head: str = "classifier"


class Settings(Protocol):
    """What every task's frozen dataclass of settings offers; its fields are the keys of a recipe's ``[task]``.

    Those that decide which examples are for training and which for evaluation may be named in a class variable
    `dividing`, a tuple of str: a trained model is not evaluated with others of these. Where `write` goes on with what a
    stop left unfinished, `resumable` is True.
    """

    @property
    def shape(self) -> Shape:
        """That of the task, known without its data; where they decide on a vocabulary, that of the published ones."""
        ...

    def load(self) -> Task:
        """The task, ready to train on."""
        ...

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """As `load`, and the task's data as files in `folder`, which is created where missing."""
        ...


@dataclass(frozen=True)
class FeatureSplit(Split):
    """A split of sequences of one length: features (n, T, F), labels (n,)."""

    features: npt.NDArray[Any]
    labels: Index

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """The sequences at `index`, features in `dtype`."""
        return Batch(self.features[index].astype(dtype), self.labels[index], None)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LOOKED_AT = 2**17  # examples of a split that statistics are of, evenly spaced; of a fresh one, each of which is made
LOOKED_AT_FRESH = 2**12
MOST_LABELS = 16  # that a table shows


def describe(task: Task) -> str:
    """A summary for people: of each split its size, quantiles of length, how labels are spread, and majority baseline.

    The baseline is `majority_baseline`. Of a large split, and of a fresh one, only some examples are looked at.
    """
    width = f"{task.vocab} token ids" if task.vocab is not None else f"{task.n_features} feature(s) a step"
    classes = f"{task.n_classes} bits a step" if task.head == "bits" else f"{task.n_classes} classes"
    head = "" if task.head in ("classifier", "bits") else f", {task.head}"
    spread = {name: _labels_and_lengths(split) for name, split in _splits(task).items()}
    lines = [f"{task.name}: {classes}, {width}{head}"]
    if task.val is task.test:
        lines.append("there is no validation part: val is test")
    lines.append(
        f"{'split':<6}{'size':>8}  length at " + "".join(f"{q:>6.0%}" for q in QUANTILES) + "  majority baseline"
    )
    for name, (labels, lengths) in spread.items():
        split = _splits(task)[name]
        size = "fresh" if split.fresh else len(split)
        quantiles = "".join(f"{q:>6.0f}" for q in np.quantile(lengths, QUANTILES))
        baseline = _share_of_majority(spread["train"][0], labels)
        lines.append(f"{name:<6}{size:>8}{'':<12}{quantiles}{baseline:>19.1%}")
    if task.n_values <= MOST_LABELS:
        shown = np.arange(task.n_values)
    else:
        shown = np.sort(_by_frequency(spread["train"][0])[:MOST_LABELS])
        lines.append(f"of {task.n_values} labels the {len(shown)} most frequent in training:")
    names = [task.labels[label] if task.labels else str(label) for label in shown]
    wide = max(6, *map(len, names)) + 1
    lines.append(f"{'label':<10}" + "".join(f"{name:>{wide}}" for name in names))
    for name, (labels, _) in spread.items():
        lines.append(f"{name:<10}" + "".join(f"{np.mean(labels == label):>{wide}.1%}" for label in shown))
    lines += [
        f"{name}: counted in {len(_looked_at(split))} examples, evenly spaced"
        for name, split in _splits(task).items()
        if len(_looked_at(split)) < len(split)
    ]
    return "\n".join(lines)


def majority_baseline(task: Task, split: Split) -> float:
    """Accuracy on a split of always answering with the most frequent label of the training split."""
    return _share_of_majority(_labels_and_lengths(task.train)[0], _labels_and_lengths(split)[0])


def _share_of_majority(train: Index, labels: Index) -> float:
    return float(np.mean(labels == _by_frequency(train)[0]))


def _by_frequency(labels: Index) -> Index:
    """The labels that there are, the most frequent first; ties in their order."""
    there, counts = np.unique(labels, return_counts=True)
    return np.asarray(there[np.argsort(-counts, kind="stable")])


def _splits(task: Task) -> dict[str, Split]:
    return {"train": task.train, "val": task.val, "test": task.test}


def _looked_at(split: Split) -> Index:
    n = len(split)
    most = LOOKED_AT_FRESH if split.fresh else LOOKED_AT
    return np.arange(n) if n <= most else np.arange(most) * n // most


def _labels_and_lengths(split: Split, rows: int = 256) -> tuple[Index, Index]:
    """Labels that count (`IGNORED` is -1) and lengths of the examples looked at, read batch by batch."""
    index = _looked_at(split)
    parts = [split.labels_and_lengths(index[i : i + rows]) for i in range(0, len(index), rows)]
    return np.concatenate([labels[labels >= 0] for labels, _ in parts]), np.concatenate([one for _, one in parts])
