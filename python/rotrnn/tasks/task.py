"""Tasks: three splits of labelled sequences, and the protocol of the settings that load them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import an
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import check_indices
from rotrnn.ops.random import philox
from rotrnn.tasks.rules import Rules

Index = npt.NDArray[np.int64]

CHUNK = 2**14  # random numbers drawn at a time, so that they fit into the cache


class Batch(NamedTuple):
    """A batch of sequences, padded with zeros to the longest of them.

    `inputs` are token ids (B, T) int64, or features (B, T, F) in the requested dtype. `labels` are (B,) int64.
    `lengths` (B,) int64 are the valid steps of each sequence, or None if all T steps are valid. For a tagger, labels
    are (B, T), with -1 where they do not count, padding included. For bits, labels are (B, T, bits) with values 0, 1
    and -1; for several labels of a sequence, (B, bits). For pairs, inputs are (B, 2, T, ...) and lengths (B, 2). For a
    regression, labels are numbers (B, targets), or (B, T, targets) for each step; NaN does not count.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    lengths: Index | None

    def packed(self, stepwise: bool, dt: npt.NDArray[np.float64] | None = None) -> PackedBatch:
        """Returns the batch, with intervals dt (B, T) if given, as one packed row, labels too if they are `stepwise`,
        one for each step; unchanged if it is not ragged."""
        if self.lengths is None:
            return PackedBatch(*self, dt=dt)
        valid = np.arange(self.inputs.shape[self.lengths.ndim]) < self.lengths[..., None]
        labels = self.labels[valid][None] if stepwise else self.labels
        row, bounds = self.inputs[valid][None], np.append(0, np.cumsum(self.lengths))
        return PackedBatch(row, labels, None, bounds, None if dt is None else dt[valid][None])


class PackedBatch(NamedTuple):
    """A batch as one row (1, T, ...) of its sequences without padding, in successive pairs for a model of pairs.

    `cu_seqlens` (S + 1,) says where they begin and end, and `dt` has intervals, as in `rotrnn.Context`, and labels of
    steps are (1, T, ...).
    Where `cu_seqlens` is None, it is a `Batch`.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    lengths: Index | None
    cu_seqlens: Index | None = None
    dt: npt.NDArray[np.float64] | None = None


def shuffled(n: int, seed: int, epoch: int) -> Index:
    """Returns 0..n-1 ordered by the first 64 bits of Philox block (i, epoch) with the key `seed`.

    The order is the same on every machine. NumPy does not guarantee this for its own shuffle across versions.
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
    """The settings of a generator do not allow the requested examples."""


@dataclass(frozen=True)
class Carry:
    """Which rows of a training batch go on in the next batch, where their sequence is continued and the state of the
    model carried on.

    Parameters
    ----------
    chance : float
        The chance of each row; 0: every batch has whole sequences.
    after : int
        The number of steps of training after which rows begin to go on.
    rise : int
        The number of steps after that in which the mean number of batches of a sequence, 1 / (1 - chance), rises from 1
        in a straight line.
    """

    chance: float = 0.0
    after: int = 0
    rise: int = 0

    def __bool__(self) -> bool:
        return self.chance > 0

    def chance_at(self, step: int) -> float:
        """Returns the chance that a row of step `step` (from 0) goes on from the step before."""
        if step <= self.after:
            return 0.0
        if step >= self.after + self.rise:
            return self.chance
        most = 1 / (1 - self.chance)
        return 1 - 1 / (1 + (most - 1) * (step - self.after) / self.rise)


WHOLE = Carry()
"""Every batch has whole sequences."""


def _checked(batch: Callable[..., Batch]) -> Callable[..., Batch]:
    """Returns the method `batch` of a split, which is called with integers (n,) in its range alone."""

    @functools.wraps(batch)
    def checked(self: Split, index: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Batch:
        args = Boundary(f"{type(self).__name__}.batch")
        rows = args.integers("index", index if np.size(index) else np.empty(np.shape(index), np.int64), "n")
        check_indices(args, "index", rows, len(self))
        return batch(self, rows, dtype)

    return checked


class Split(ABC):
    """Labelled sequences, accessed by index.

    If `fresh` is True, example i is generated from its index, and training uses it only once. The number of examples is
    then practically unlimited (`len` may be 2**40), and they are used in the order of their index, without shuffling.
    """

    fresh: bool = False
    carry: Carry = WHOLE
    """Which rows of a training batch go on in the next batch. A split with a chance implements `continued`."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "batch" in cls.__dict__:
            cls.batch = _checked(cls.batch)  # type: ignore[method-assign]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the sequences at `index` (n,), with features in `dtype`. Thread-safe. TypeError or ValueError if
        `index` are not integers from 0 to ``len(split) - 1``."""

    def continued(self, index: Index, before: Index, dtype: npt.DTypeLike = np.float32) -> tuple[Batch, Index]:
        """Returns the sequences at `index` as continuations, and the data for their own continuations.

        `before` (n,) is the result of an earlier call for the continued sequences, at least 0; -1 where a new sequence
        begins. Labels follow the whole sequence from its beginning.
        """
        raise NotImplementedError

    def weights(self, index: Index) -> npt.NDArray[np.float64] | None:
        """Returns the weights (B,) of the sequences at `index` in losses and accuracies, whose mean over the split is
        1; None if all count the same."""
        return None

    def intervals(self, index: Index) -> npt.NDArray[np.float64] | None:
        """Returns the intervals (B, T) between the steps of the sequences at `index`, as of `rotrnn.Context`; None for
        samples at even times."""
        return None

    def labels_and_lengths(self, index: Index) -> tuple[Index, Index]:
        """Returns the labels and lengths at `index` as `batch` does, but lengths are never None.

        For statistics of whole splits; a subclass may avoid making the inputs.
        """
        inputs, labels, lengths = self.batch(index)
        return labels, np.full(len(labels), inputs.shape[1]) if lengths is None else lengths

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """Returns the lengths (B,) for the curve of accuracy against length. The default is the valid steps."""
        return np.full(len(index), batch.inputs.shape[1]) if batch.lengths is None else batch.lengths


METRICS = ("accuracy", "sequence_accuracy", "skill")
BITS = ("bits", "multilabel")
"""Heads whose labels are bits."""
REGRESSIONS = ("regressor", "step_regressor")
"""Heads whose labels are numbers."""


@dataclass(frozen=True)
class Task:
    """Three splits of token sequences (`vocab` ids) or of feature sequences (`n_features` per step), with labels.

    Parameters
    ----------
    val : Split
        If it is the same object as `test`, the data set has no validation split. Results that were selected by it are
        then marked as selected on the test split, or on the training split if it is that split, too.
    n_classes : int
        Number of classes; for bits, the number of bits per step or sequence; of a regression, the number of targets.
    head : str
        Kind of model (one of `rotrnn.models.build.HEADS`) that the labels are for.
    metric : str
        The metric that selects parameters and that tables show: "accuracy", the share of right labels, or
        "sequence_accuracy", the share of sequences whose counted labels are all right. For a regression it is "skill",
        1 - loss / (loss of predicting zero for every target): targets are to be centred by their mean.
    curve : str, optional
        If set, evaluation also reports accuracies by length. "length": of the sequences of each length
        (`Split.curve_lengths`). "prefix", for taggers that run forward in time only: of the first t labels of every
        sequence, for each t.
    bos : bool
        Sequences begin with an extra token, which the lengths of prefixes do not count.
    chance : float, optional
        Accuracy of guessing. If set, evaluation also reports (accuracy - chance) / (1 - chance) as "scaled_accuracy".
    scaled_above : int, optional
        The longest length in training, counted as in a curve over "length". If set, "scaled_accuracy" covers only
        longer sequences.
    labels : tuple of str, optional
        Names of the classes; for bits, names of the two values.
    symbols : (vocab - 3,) integers, optional
        The symbols of the ids from 3 on, if they depend on the training split (see `rotrnn.tasks.vocabulary`).
    rules : Rules, optional
        How the cells of your own data became numbers. A run keeps it as rules.json.
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
    scaled_above: int | None = None
    labels: tuple[str, ...] | None = None
    symbols: Index | None = None
    rules: Rules | None = None

    @property
    def n_values(self) -> int:
        """The number of values of a label that counts."""
        return 2 if self.head in BITS else self.n_classes

    @property
    def timed(self) -> bool:
        """Whether samples are at uneven times (`Split.intervals`)."""
        return self.train.intervals(np.arange(min(1, len(self.train)))) is not None

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.head in REGRESSIONS

    @property
    def selected_on(self) -> str:
        """The split that parameters are selected on: "validation", or "test" if there is one split for both, or
        "training" if the training split serves as both."""
        if self.val is not self.test:
            return "validation"
        return "training" if self.test is self.train else "test"


class Shape(NamedTuple):
    """The properties of a task that a model is built from; fields as in `Task`."""

    n_classes: int
    vocab: int | None
    n_features: int | None
    head: str = "classifier"


class Settings(Protocol):
    """The interface of every task's settings, a frozen dataclass whose fields are the keys of a recipe's ``[task]``.

    Five more attributes are optional. `head` is the head of `shape`, of a task that reads its data for the others:
    `rotrnn export` then needs no data. `causal` is True if the label of a step is to follow from the steps up to it
    alone: a recipe with a layer that sees later steps is refused. `split_settings`, a tuple of str, names the settings
    that decide which examples are for training and which for evaluation: a trained model is not evaluated with other
    values of these. ``data_files()`` returns the paths of the files that `load` reads: a run keeps their hash, and is
    not resumed with changed files. `resumable` is True if `write` resumes after an interruption. `rotrnn data` calls
    ``write(folder)``, which writes the data as files into a folder, created if missing, and returns the task: only the
    tasks of the package have it.
    """

    @property
    def shape(self) -> Shape:
        """The shape of the task, known without loading its data. If the vocabulary depends on the data, it is the
        published data's."""
        ...

    def load(self) -> Task:
        """Returns the task, ready for training."""
        ...


@dataclass(frozen=True)
class FeatureSplit(Split):
    """Sequences of one length: features (n, T, F), labels (n,)."""

    features: npt.NDArray[Any]
    labels: Index

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the sequences at `index`, with features in `dtype`."""
        return Batch(self.features[index].astype(dtype), self.labels[index], None)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MAX_COUNTED = 2**17  # most examples for statistics of a split, evenly spaced
MAX_COUNTED_FRESH = 2**12  # the same for a fresh split, whose examples have to be generated
MAX_LABELS_SHOWN = 16
ROWS = 256
"""Examples that statistics read at a time."""


def describe(task: Task) -> str:
    """Returns a readable summary of each split: size, quantiles of length, label frequencies and majority baseline.

    The baseline is `majority_baseline`. Where no label counts, it is NaN, and so are the frequencies. For a large or
    fresh split, the statistics use only a part of the examples. TypeError if `task` is not a `Task`.
    """
    if not isinstance(task, Task):
        raise TypeError(f"describe: task is {an(type(task).__name__)}, expected a Task, as load() of settings returns")
    width = f"{task.vocab} token ids" if task.vocab is not None else f"{task.n_features} feature(s) per step"
    kinds = {"bits": "bits per step", "multilabel": "bits"}
    kinds |= {"regressor": "targets", "step_regressor": "targets per step"}
    classes = f"{task.n_classes} {kinds.get(task.head, 'classes')}"
    head = "" if task.head == "classifier" or task.head in kinds else f", {task.head}"
    spread = {name: _labels_and_lengths(split) for name, split in _splits(task).items()}
    lines = [f"{task.name}: {classes}, {width}{head}"]
    if task.selected_on == "training":
        lines.append("there is no validation or test split: test is the training split")
    elif task.selected_on == "test":
        lines.append("there is one split for validation and test: val is test")
    dt = task.train.intervals(_counted_examples(task.train))
    if dt is not None:
        of_steps = dt[np.arange(dt.shape[1]) < spread["train"][1][:, None]]
        low, middle, high = (f"{one:.3g}" for one in np.quantile(of_steps, (0, 0.5, 1)))
        lines.append(f"samples at uneven times: intervals dt from {low} to {high} in training, median {middle}")
    last = "targets: mean, standard deviation" if task.is_regression else "majority baseline"
    lines.append(f"{'split':<6}{'size':>8}  length at " + "".join(f"{q:>6.0%}" for q in QUANTILES) + f"  {last}")
    for name, (labels, lengths) in spread.items():
        split = _splits(task)[name]
        size = "fresh" if split.fresh else len(split)
        quantiles = "".join(f"{q:>6.0f}" for q in np.quantile(lengths, QUANTILES))
        if task.is_regression:
            deviation = labels.std() if labels.size else np.nan
            lines.append(f"{name:<6}{size:>8}{'':<12}{quantiles}{_mean(labels):>14.4g}{deviation:>11.4g}")
            continue
        baseline = _share_of_majority(spread["train"][0], labels)
        lines.append(f"{name:<6}{size:>8}{'':<12}{quantiles}{baseline:>19.1%}")
    if task.is_regression:
        return "\n".join(lines)
    if task.n_values <= MAX_LABELS_SHOWN:
        shown = np.arange(task.n_values)
    else:
        shown = np.sort(_by_frequency(spread["train"][0])[:MAX_LABELS_SHOWN])
        lines.append(f"the {len(shown)} most frequent of {task.n_values} labels in training:")
    names = [task.labels[label] if task.labels else str(label) for label in shown]
    wide = max(6, *map(len, names)) + 1
    lines.append(f"{'label':<10}" + "".join(f"{name:>{wide}}" for name in names))
    for name, (labels, _) in spread.items():
        lines.append(f"{name:<10}" + "".join(f"{_mean(labels == label):>{wide}.1%}" for label in shown))
    lines += [
        f"{name}: statistics of {len(_counted_examples(split))} examples, evenly spaced"
        for name, split in _splits(task).items()
        if len(_counted_examples(split)) < len(split)
    ]
    return "\n".join(lines)


def majority_baseline(task: Task, split: Split, above: int | None = None) -> float:
    """Returns the accuracy on a split of always predicting the most frequent label of the training split; with `above`,
    only on its longer sequences."""
    return _share_of_majority(_labels_and_lengths(task.train)[0], _labels_and_lengths(split, above)[0])


def balanced_weights(task: Task) -> tuple[float, ...]:
    """Returns n / (C n_c) for each class c, where n_c of n training labels are of class c, and C classes occur; for
    each of several bits, the number of zeros divided by the number of ones. Sequences count by their weights
    (`Split.weights`). A class or bit that does not occur has the weight 1, the mean weight of a label."""
    if task.is_regression:
        raise ValueError(f"class_weights: {task.name} is a regression, expected a task with classes")
    index = _counted_examples(task.train)
    parts = [task.train.labels_and_lengths(index[i : i + ROWS])[0] for i in range(0, len(index), ROWS)]
    labels, own = np.concatenate([part.ravel() for part in parts]), task.train.weights(index)
    each = None if own is None else np.repeat(own, len(labels) // len(own))
    if task.head in BITS:
        bits = labels.reshape(-1, task.n_classes)
        share: Any = 1 if each is None else each.reshape(bits.shape)
        ones, zeros = (((bits == value) * share).sum(0) for value in (1, 0))
        weights = np.where(ones * zeros > 0, zeros / np.where(ones > 0, ones, 1), 1.0)
    else:
        there = labels >= 0
        counts = np.bincount(labels[there], None if each is None else each[there], task.n_classes)
        occurs = counts > 0
        weights = np.where(occurs, counts.sum() / (np.count_nonzero(occurs) * np.where(occurs, counts, 1)), 1.0)
    return tuple(weights.tolist())


def _share_of_majority(train: Index, labels: Index) -> float:
    return _mean(labels == _by_frequency(train)[0]) if train.size else np.nan


def _mean(numbers: npt.NDArray[Any]) -> float:
    """Returns the mean, NaN of none."""
    return float(numbers.mean()) if numbers.size else np.nan


def _by_frequency(labels: Index) -> Index:
    """Returns the labels that occur, the most frequent first; ties in increasing order."""
    there, counts = np.unique(labels, return_counts=True)
    return np.asarray(there[np.argsort(-counts, kind="stable")])


def _splits(task: Task) -> dict[str, Split]:
    return {"train": task.train, "val": task.val, "test": task.test}


def _counted_examples(split: Split) -> Index:
    n = len(split)
    most = MAX_COUNTED_FRESH if split.fresh else MAX_COUNTED
    return np.arange(n) if n <= most else np.arange(most) * n // most


def _labels_and_lengths(split: Split, above: int | None = None) -> tuple[Index, Index]:
    """Returns the labels that count and the lengths of the counted examples, or of those longer than
    `above`, read in batches."""
    index = _counted_examples(split)
    parts = [split.labels_and_lengths(index[i : i + ROWS]) for i in range(0, len(index), ROWS)]
    if above is not None:
        parts = [(labels[lengths > above], lengths[lengths > above]) for labels, lengths in parts]
    return np.concatenate([_that_count(labels) for labels, _ in parts]), np.concatenate([one for _, one in parts])


def _that_count(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the labels that are not `IGNORED`, which is -1, and the targets that are not NaN."""
    return labels[~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0]
