"""The base of tasks of your own data: sequences in memory, their split into three parts, and the scale of their
numbers.

`rotrnn.tasks.arrays`, `table` and `folder` read files; they return `Sequences`, and the rest is here.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file
from rotrnn._support.settings import settle
from rotrnn._support.text import alike, an, plural
from rotrnn._support.warn import warn
from rotrnn.ops.boundary import on_host
from rotrnn.ops.sampled import LONGEST_INTERVAL, check_kind
from rotrnn.tasks.columns import Column, Numbers, places
from rotrnn.tasks.frames import array_of, is_frame, text_names
from rotrnn.tasks.rules import Rules, Scale, read_rules
from rotrnn.tasks.task import Batch, Index, Settings, Shape, Split, Task, balanced_weights, shuffled

FLOAT32_MOST = float(np.finfo(np.float32).max)
"""Largest number of a task's data."""

LEAST_SPAN = 1e-34
"""Least difference of the largest and the smallest number of a column. A column of n numbers has a deviation of at
least this by sqrt(2 n), of which float32 holds the inverse, with weights of some tens, for up to 10^4 numbers or so."""

HEADS = {
    "classification": ("classifier", "tagger"),
    "multilabel": ("multilabel", "bits"),
    "regression": ("regressor", "step_regressor"),
}
"""Kind of labels -> head of the model with a label for each sequence, and with one for each step."""


def as_number(cell: Any) -> float:
    """Returns a cell as a number. ValueError or TypeError if it is not a number; `float` would read 1_0 as 10, and
    digits of other scripts."""
    if isinstance(cell, str) and ("_" in cell or not cell.strip().isascii()):
        raise ValueError(f"could not convert string to float: {cell!r}")
    return float(cell)


@dataclass(frozen=True)
class Sequences:
    """n labelled sequences of any lengths, one after the other.

    Parameters
    ----------
    values : (steps of all sequences, F) floats
    lengths : (n,) int64
    labels : array
        A row for each sequence, or for each step if `per_step`: class numbers (...,) int64, bits (..., K) int64, or
        targets (..., K) float64, where NaN does not count.
    classes : tuple of str, optional
        Names of the classes.
    weights : (n,) float64, optional
        Positive weights of the sequences in losses and scores.
    names : tuple of str, optional
        Names of the features.
    dt : (steps of all sequences,) float64, optional
        Intervals from the step before to each step (`rotrnn.Context`).
    step_names : tuple of str, optional
        Names of the steps, if all sequences have the same.
    target_names : tuple of str, optional
        Names of the targets or bits.
    columns : tuple of Column
        The columns of a table whose cells `values` are, before they become features (`featured`).
    rate : int
        The sampling rate of recordings in Hz; 0 if it is not known.
    """

    values: Numbers
    lengths: Index
    labels: Numbers
    per_step: bool = False
    classes: tuple[str, ...] | None = None
    weights: Numbers | None = None
    names: tuple[str, ...] | None = None
    dt: Numbers | None = None
    step_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    columns: tuple[Column, ...] = ()
    rate: int = 0
    first: Index = field(init=False)
    """Where each sequence begins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", np.cumsum(self.lengths) - self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def steps(self, rows: Index) -> tuple[Index, npt.NDArray[np.bool_]]:
        """Returns the places (B, T) of the steps of some sequences, up to the longest, and which of them exist."""
        sizes = self.lengths[rows]
        t = np.arange(int(sizes.max(initial=0)))
        there = t < sizes[:, None]
        return np.where(there, self.first[rows][:, None] + t, 0), there

    def steps_of(self, rows: Index) -> npt.NDArray[np.bool_]:
        """Returns which steps belong to some sequences."""
        of_row = np.zeros(len(self), bool)
        of_row[rows] = True
        return np.repeat(of_row, self.lengths)

    def scale_of(self, array: Numbers, rows: Index, *, marks: bool = False) -> Scale:
        """Returns the scale of an array with a row for each step, or for each sequence, over some sequences, by their
        weights."""
        if len(array) != len(self):
            there = self.steps_of(rows)
            weights = None if self.weights is None else np.repeat(self.weights, self.lengths)[there]
            return Scale.of(array[there], marks=marks, weights=weights)
        return Scale.of(array[rows], marks=marks, weights=None if self.weights is None else self.weights[rows])


@dataclass(frozen=True)
class SequenceSplit(Split):
    """Some sequences, `rows`, of all; features, and targets of a regression, are scaled when a batch is drawn."""

    data: Sequences
    rows: Index
    inputs: Scale
    targets: Scale | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def weights(self, index: Index) -> Numbers | None:
        """Returns the weights of the sequences at `index`, divided by their mean over the split."""
        every = self.data.weights
        return None if every is None else every[self.rows[index]] / every[self.rows].mean()

    def intervals(self, index: Index) -> Numbers | None:
        """Returns the intervals (B, T) of the sequences at `index`, zero in padding."""
        if self.data.dt is None:
            return None
        at, there = self.data.steps(self.rows[index])
        return np.where(there, self.data.dt[at], 0)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the sequences at `index`, with features, and targets of a regression, in `dtype`."""
        data, rows = self.data, self.rows[index]
        at, there = data.steps(rows)
        x = self.inputs(data.values[at])
        x[~there] = 0
        labels = data.labels[at if data.per_step else rows]
        if self.targets is not None:
            labels = self.targets(labels).astype(dtype)
        if data.per_step:
            labels[~there] = -1
        lengths = None if there.all() else data.lengths[rows]
        return Batch(x.astype(dtype), labels, lengths)

    def labels_and_lengths(self, index: Index) -> tuple[Numbers, Index]:
        """Returns the labels that count, flat if there is one for each step, and the lengths."""
        data, rows = self.data, self.rows[index]
        labels = data.labels[rows]
        if data.per_step:
            at, there = data.steps(rows)
            labels = data.labels[at][there]
        return labels if self.targets is None else self.targets(labels), data.lengths[rows]


@dataclass(frozen=True)
class OwnData:
    """Settings of a task of your own data.

    Parameters
    ----------
    path : str
        The file or folder. In a recipe's file, it is relative to that file; else to the working directory.
    kind : str
        The kind of labels: "classification" (a class), "multilabel" (several bits) or "regression" (numbers).
    per_step : bool
        Whether there is a label for each step, not for each sequence.
    val_fraction, test_fraction : float
        Shares of the sequences for validation and test, drawn by `seed`; the others are for training. Without a share
        for the test, it is the validation split; without both, the training split serves for all.
    scale : bool
        Shift and scale features, and targets of a regression, to mean 0 and standard deviation 1 in training. Features
        with only two of the values -1, 0 and 1 stay unchanged.
    causal : bool
        With `per_step`: the label of a step is to follow from the steps up to it alone, as in a forecast. A
        layer that sees later steps is refused.
    stratified : bool
        For a classification without `per_step`: draw the parts so that each has the same shares of classes, to a
        sequence, and each class at least one sequence for training.
    """

    path: str = ""
    kind: str = "classification"
    per_step: bool = False
    val_fraction: float = 0.1
    test_fraction: float = 0.2
    seed: int = 0
    scale: bool = True
    causal: bool = False
    stratified: bool = False

    split_settings: ClassVar[tuple[str, ...]] = ("val_fraction", "test_fraction", "seed", "stratified")
    files: ClassVar[str]
    """The kind of `path`, in words."""

    def __post_init__(self) -> None:
        settle(self)
        name = type(self).__name__
        if self.kind not in HEADS:
            expected = f"expected one of {', '.join(HEADS)}{alike(self.kind, HEADS)}"
            raise ValueError(f"{name}: kind is {self.kind!r}, {expected}")
        if self.causal and not self.per_step:
            raise ValueError(f"{name}: causal is True, expected False without per_step: there is no later step")
        if self.stratified and (self.kind != "classification" or self.per_step):
            expected = "False: there is no class of each sequence"
            what = f"{name}: stratified is True with kind {self.kind!r} and per_step {self.per_step}"
            raise ValueError(f"{what}, expected {expected}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"{name}: seed is {self.seed}, expected an integer from 0 to 2**63 - 1")
        if not (self.val_fraction >= 0 and self.test_fraction >= 0 and self.val_fraction + self.test_fraction < 1):
            shares = f"val_fraction is {self.val_fraction} and test_fraction is {self.test_fraction}"
            raise ValueError(f"{name}: {shares}, expected numbers of at least 0 whose sum is below 1")
        if self.path:
            object.__setattr__(self, "path", os.path.abspath(self.path))

    @abstractmethod
    def read(self) -> Sequences:
        """Returns the sequences of the files."""

    def read_by(self, rules: Rules) -> Sequences:
        """Returns as `read`; of a table, the columns that the rules name, if `features` is empty."""
        return self.read()

    @property
    def head(self) -> str:
        """The head of the model that the labels are for."""
        return HEADS[self.kind][self.per_step]

    @property
    def shape(self) -> Shape:
        """The shape of the task, for which its data are read."""
        task = self.load()
        return Shape(task.n_classes, None, task.n_features, self.head)

    def load(self, rules: Rules | str | os.PathLike[str] | None = None) -> Task:
        """Returns the task.

        Parameters
        ----------
        rules : path, optional
            The folder of a run, a model that `rotrnn export` wrote of it, or a file rules.json: features, scales and
            the numbers of classes are those of that run (`rotrnn.tasks.rules.Rules`), and `scale` has no effect. The
            default: they follow from this file's sequences for training.

        Raises
        ------
        ValueError
            The data do not fit the settings, or a target has no number in the part for training, or a column, a class,
            a target, the number of features or whether there are intervals is not as in the rules, or `rules` has none;
            the error names file, row and column.
        """
        rules = None if rules is None else read_rules(rules)
        data = self.checked(rules)
        n = len(data)
        test, val = round(self.test_fraction * n), round(self.val_fraction * n)
        if test + val >= n:
            parts = f"{test} for the test and {val} for validation"
            raise ValueError(f"{self.path}: has {n} sequences, expected more than {parts}")
        for name, count in (("val_fraction", val), ("test_fraction", test)):
            if (share := getattr(self, name)) and not count:
                warn(f"{self.path}: {name} is {share} of {plural(n, 'sequence')}, which is none")
        learning = rules is None
        if rules is not None:
            data = rules_applied(self.path, data, rules)
        order = shuffled(n, self.seed, 0)
        if self.stratified:
            order = order[evenly(data.labels[order], test + val)]
        train = order[test + val :]
        if rules is None:
            data, rules = self._learnt(data, train)

        def split(rows: Index) -> SequenceSplit:
            return SequenceSplit(data, rows, rules.inputs, rules.targets)

        training = split(train)
        validation = split(order[test : test + val]) if val else None
        testing = split(order[:test]) if test else validation or training
        task = Task(
            type(self).__name__.lower(),
            training,
            validation or testing,
            testing,
            n_classes=len(data.classes) if data.classes is not None else data.labels.shape[-1],
            vocab=None,
            n_features=data.values.shape[1],
            head=self.head,
            metric="skill" if rules.targets is not None else "accuracy",
            labels=data.classes,
            rules=rules,
        )
        if learning and not task.is_regression:
            return replace(task, rules=replace(rules, balanced=balanced_weights(task)))
        return task

    def _learnt(self, data: Sequences, train: Index) -> tuple[Sequences, Rules]:
        """Returns the sequences with their features, and the rules that the sequences `train` make."""
        cells = data.values[data.steps_of(train)].T if data.columns else ()
        columns = tuple(one.learnt(values, self.path) for one, values in zip(data.columns, cells, strict=True))
        data = featured(self.path, data, columns)
        inputs = Scale.none(data.values.shape[1])
        targets = Scale.none(data.labels.shape[-1]) if self.kind == "regression" else None
        if self.kind != "classification":
            known = data.labels[data.steps_of(train) if data.per_step else train]
            known = known >= 0 if self.kind == "multilabel" else ~np.isnan(known)
            for i in np.flatnonzero(~known.any(0))[:1]:
                which = i if data.target_names is None else repr(data.target_names[i])
                none = f"no {'number' if targets else 'label'} in the {plural(len(train), 'sequence')} for training"
                raise ValueError(f"{self.path}: target {which} has {none}, expected one")
        if self.scale:
            inputs = data.scale_of(data.values, train, marks=True)
            targets = targets and data.scale_of(data.labels, train)
        same = {key: getattr(data, key) for key in ("classes", "names", "step_names", "target_names")}
        return data, Rules.of(inputs, targets, **same, dt=data.dt is not None, columns=columns, rate=data.rate)

    def checked(self, rules: Rules | None = None) -> Sequences:
        """Returns what `read` does, or with rules `read_by`. ValueError without a path, and as `check_sequences`."""
        name = type(self).__name__
        if not self.path:
            raise ValueError(f"{name}: path is '', expected {self.files}")
        if not Path(self.path).exists():
            raise FileNotFoundError(f"{name}: path is {self.path}, which does not exist; expected {self.files}")
        data = self.read() if rules is None else self.read_by(rules)
        check_sequences(self.path, data)
        return data

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes all sequences as one file of arrays, which the task "arrays" reads, and returns the task."""
        task: Any = self.load()
        data: Sequences = task.train.data
        labels = data.labels if data.classes is None else np.array(data.classes)[data.labels]
        path = Path(folder, f"{type(self).__name__.lower()}.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            further = {"weights": data.weights, "dt": data.dt}
            there = {name: one for name, one in further.items() if one is not None}
            np.savez(file, x=data.values, y=labels, lengths=data.lengths, **there)  # type: ignore[arg-type]  # as there
        return task


def load_by(settings: Settings, rules: Rules | None) -> Task:
    """Returns the task with these settings; of own data, by the rules if there are any. TypeError if a task outside
    the package has no `load`, or returns something else."""
    if not hasattr(settings, "load"):
        raise TypeError(f"{type(settings).__name__}: has no method load, expected one that returns a rotrnn.tasks.Task")
    task: Any = settings.load(rules) if isinstance(settings, OwnData) else settings.load()
    if not isinstance(task, Task):
        got = "None" if task is None else an(type(task).__name__)
        raise TypeError(f"{type(settings).__name__}.load: returned {got}, expected a rotrnn.tasks.Task")
    return task


def shape_of(settings: Settings) -> Shape:
    """Returns the shape that settings of a task declare; where a task outside the package declares none, the shape of
    the loaded task. TypeError if it is something else."""
    kind = type(settings)
    if not hasattr(kind, "shape"):
        task = load_by(settings, None)
        return Shape(task.n_classes, task.vocab, task.n_features, task.head)
    shape: Any = settings.shape
    if not isinstance(shape, Shape):
        expected = "a rotrnn.tasks.Shape, by a property"
        raise TypeError(f"{kind.__name__}: shape is {an(type(shape).__name__)}, expected {expected}")
    return shape


def featured(where: str, data: Sequences, columns: Sequence[Column]) -> Sequences:
    """Returns sequences whose values are the features of the learnt columns. ValueError, which begins with `where`, if
    the data have other columns, or two features have one name."""
    if (given := _told(data.columns)) != (expected := _told(columns)):
        raise ValueError(f"{where}: has the columns {given}, expected {expected} as in training")
    if not columns:
        return data
    found: dict[str, Numbers] = {}
    for own, column, cells in zip(data.columns, columns, data.values.T, strict=True):
        for name, values in column.features(cells, own.values, where).items():
            if name in found:
                raise ValueError(f"{where}: two features are called {name!r}, expected columns of other names")
            found[name] = values
    return replace(data, values=np.stack([*found.values()], 1), names=tuple(found), columns=())


def _told(columns: Sequence[Column]) -> str:
    return ", ".join(f"{one.name} ({one.kind})" for one in columns) or "of numbers alone"


def _known(what: str, known: Any) -> str:
    """Returns what is known of features, steps, targets or intervals, in words: their names, number, or whether there
    are any."""
    if isinstance(known, tuple):
        return f"the {what} {', '.join(known)}"
    if known is None:
        return f"{what} without names"
    if isinstance(known, bool):
        return what if known else f"no {what}"
    return plural(known, what.removesuffix("s"))


def rules_applied(where: str, data: Sequences, rules: Rules) -> Sequences:
    """Returns sequences with the features and the classes of the rules. ValueError, which begins with `where`, if they
    have others, other steps or targets, another rate, or only one of both has intervals."""
    data = featured(where, data, rules.columns)
    targets = 0 if data.classes is not None or data.labels.dtype.kind != "f" else data.labels.shape[-1]
    counts: tuple[tuple[str, Any, Any], ...] = (
        ("features", data.names or data.values.shape[1], rules.names or len(rules.mean)),
        ("steps", data.step_names, rules.step_names),
        ("targets", targets, len(rules.target_mean or ())),
        ("targets", data.target_names, rules.target_names),
        ("intervals dt", data.dt is not None, rules.dt),
    )
    for what, got, expected in counts:
        if got != expected:
            raise ValueError(f"{where}: has {_known(what, got)}, expected {_known(what, expected)} as in training")
    if rules.rate and data.rate and data.rate != rules.rate:
        raise ValueError(f"{where}: has recordings of {data.rate} Hz, expected {rules.rate} as in training")
    classes = rules.classes
    if data.classes == classes:
        return data
    if data.classes is None or classes is None:
        got, expected = ("no classes" if one is None else "classes" for one in (data.classes, classes))
        raise ValueError(f"{where}: has {got}, expected {expected} as in training")
    labels = np.array(places(classes, data.classes))[data.labels]
    if (other := data.labels[labels < 0]).size:
        name = data.classes[other.min()]
        raise ValueError(f"{where}: has the class {name!r}, expected one of {', '.join(classes)} as in training")
    return replace(data, labels=labels, classes=classes)


def evenly(labels: Numbers, first: int) -> Index:
    """Returns the places of labels (n,) in an order in which every class is spread evenly, and keeps its order; but the
    `first` places do not have the last of a class, unless there are more of them than others."""
    _, of_class, counts = np.unique(labels, return_inverse=True, return_counts=True)
    together = np.argsort(of_class, kind="stable")
    rank = np.empty(len(labels))
    rank[together] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort((rank + 0.5) / counts[of_class], kind="stable")
    last = (rank == counts[of_class] - 1)[order]
    if not last[:first].any():
        return order
    others = np.flatnonzero(~last)[:first]
    return order[np.r_[others, np.setdiff1d(np.arange(len(order)), others)]]


def check_sequences(where: str, data: Sequences) -> None:
    """Raises ValueError, which begins with `where`, if there are no sequences, steps, features or labels, or float32
    cannot hold a number."""
    if not len(data):
        raise ValueError(f"{where}: has no sequence")
    if (empty := np.flatnonzero(data.lengths < 1)).size:
        raise ValueError(f"{where}: sequence {empty[0]} has no steps")
    for what, array in (("feature", data.values), ("label", data.labels)):
        if not array.size:
            raise ValueError(f"{where}: has no {what}s")
        check_range(f"{where}: {an(what)}", array)


def check_range(where: str, array: Numbers) -> None:
    """Raises ValueError, which begins with `where`, if float32 cannot hold a number; NaN may be there."""
    for end in (np.nanmin, np.nanmax) if array.size and not np.isnan(array).all() else ():
        if not abs(value := float(end(array))) <= FLOAT32_MOST:
            raise ValueError(
                f"{where} has the number {value:g}, expected at most {FLOAT32_MOST:.2g} in size, as float32 holds"
            )


def check_span(where: str, array: Numbers) -> None:
    """Raises ValueError, which begins with `where`, if the numbers of a column (n, F) are so close together that
    float32 cannot hold what they are scaled by, though they are not all the same."""
    span = array.max(0) - array.min(0)
    if (small := np.flatnonzero((span > 0) & (span < LEAST_SPAN))).size:
        expected = f"at least {LEAST_SPAN:g}, as float32 needs, or numbers that are all the same"
        raise ValueError(f"{where}: column {small[0]} spans {span[small[0]]:g}, expected {expected}")


def labels_of(kind: str, labels: Numbers, where: str) -> tuple[Numbers, tuple[str, ...] | None]:
    """Returns labels in the form that `Sequences` has them, and the names of classes.

    `labels` is (n,), or (n, K) for bits and targets. ValueError, which begins with `where`, if they are of another form
    or kind.
    """
    if kind == "classification":
        if labels.dtype.kind == "S":
            try:
                labels = np.char.decode(labels, "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where} has bytes that are not text in UTF-8 ({error})") from None
        if labels.dtype.kind not in "biufU":
            raise ValueError(f"{where} has dtype {labels.dtype}, expected numbers or texts (y.astype(str))")
        if labels.ndim != 1:
            raise ValueError(f"{where} has labels of shape {labels.shape[1:]}, expected one class for each")
        classes, numbers = np.unique(labels, return_inverse=True)
        finite = np.isfinite(_values(classes))
        if not finite.all() and (finite.any() or labels.dtype.kind == "f"):  # nan alone may be a name
            raise ValueError(f"{where} has {classes[~finite][0]}, expected a class for each label")
        if 2 * len(classes) > len(labels) and (found := _fractions(classes)).size:
            have = f"{len(classes)} different numbers in {len(labels)} labels, {found[0]} among them"
            raise ValueError(f"{where} has {have}, expected classes; for numbers, kind = 'regression'")
        return numbers.astype(np.int64), tuple(str(one) for one in classes.tolist())
    columns = labels.reshape(len(labels), math.prod(labels.shape[1:]))
    if columns.dtype.kind not in "iufb":
        raise ValueError(f"{where} has dtype {labels.dtype}, expected numbers for {an(kind)}")
    if kind == "regression":
        if np.isinf(columns).any():
            raise ValueError(f"{where} has an infinite number, expected finite ones, or NaN where there is no target")
        return columns.astype(np.float64), None
    if not np.isin(columns, (-1, 0, 1)).all():
        wrong = columns[~np.isin(columns, (-1, 0, 1))][0]
        raise ValueError(f"{where} has {wrong}, expected 0 and 1, or -1 where there is no label")
    return columns.astype(np.int64), None


def _fractions(classes: Numbers) -> Numbers:
    """Returns which classes, numbers or texts of numbers, are not integers; none if a class is not a number."""
    values = _values(classes)
    return np.asarray(classes[values != np.floor(values)])


def _values(classes: Numbers) -> Numbers:
    """Returns classes, numbers or texts of numbers, as numbers; zeros if a class is not a number."""
    try:
        return classes.astype(np.float64)
    except ValueError:
        return np.zeros(len(classes))


def intervals_of(call: str, dt: Any, lengths: Index, steps: Sequence[str] | None = None) -> Numbers | None:
    """Returns the intervals of sequences one after the other, (steps,) float64, from the argument `dt` of `call`, an
    array or frame (n, T), or a list of arrays (T_i,), Series, or frames of one column; None without any. `steps` are
    the columns of X, a frame (n, T).

    Raises
    ------
    TypeError, ValueError
        They are no numbers, negative, or have other shapes. Frames of the list have several columns, or columns of
        different names. The columns of the frame (n, T) have other names than `steps`, or another order.
    """
    if dt is None:
        return None
    given = dt
    if hasattr(dt, "__array__"):
        given = array_of(call, "dt", dt)
        if not given.ndim:
            raise ValueError(f"{call}: dt has shape (), expected a row for each sequence")
    elif isinstance(dt, str) or not isinstance(dt, Sequence):
        raise TypeError(f"{call}: dt is {an(type(dt).__name__)}, expected an array, or a list of arrays")
    for i, one in enumerate(given):
        if hasattr(one, "columns") and len(one.columns) != 1:
            raise ValueError(f"{call}: dt[{i}] has the columns {list(one.columns)!r:.80}, expected one, the intervals")
    columns = text_names(call, dt, "dt")
    if is_frame(dt) and columns and steps and columns != tuple(steps):
        raise ValueError(f"{call}: dt has the columns {list(columns)!r:.80}, expected {list(steps)!r:.80} as of X")
    rows = [array_of(call, f"dt[{i}]", one) for i, one in enumerate(given)]
    if len(rows) != len(lengths):
        raise ValueError(f"{call}: dt has intervals of {len(rows)} sequences, expected {len(lengths)}")
    for i, (one, length) in enumerate(zip(given, lengths.tolist(), strict=True)):
        row = rows[i] = rows[i][:, 0] if hasattr(one, "columns") else rows[i]
        if row.shape != (length,):
            raise ValueError(f"{call}: dt[{i}] {_form(row)}, expected ({length},), one for each step")
        if row.dtype.kind == "O":
            of = [*dt.columns] if hasattr(dt, "columns") else [*getattr(one, "columns", ())] * length
            rows[i] = _intervals(f"{call}: dt, sequence {i}", row, of)
        else:
            check_kind(f"{call}: dt[{i}]", row.dtype)
    found = np.concatenate([np.empty(0), *rows]).astype(np.float64)
    check_intervals_of(call, found, lengths)
    return found


def _intervals(where: str, cells: Numbers, columns: Sequence[Any]) -> Numbers:
    """Returns objects (T,) as intervals, NaN for None. Errors begin with `where`: TypeError if one is not a number,
    with the step, and its name if there are `columns`; ValueError if an integer is too large."""
    for t, cell in enumerate(cells):
        if cell is not None and (isinstance(cell, bool) or not isinstance(cell, Real)):
            place = f"step {t}, column {columns[t]!r}" if columns else f"step {t}"
            raise TypeError(f"{where}, {place}: got {cell!r:.80}, expected floating-point numbers or integers")
    try:
        return cells.astype(np.float64)
    except OverflowError as error:
        raise ValueError(f"{where}: {error}, expected intervals from 0 to {LONGEST_INTERVAL:.4g}") from error


def _form(array: Numbers) -> str:
    """Returns the shape of an array in words; of an array without axes, what it was made of."""
    if array.ndim:
        return f"has shape {array.shape}"
    return "is None" if (one := array.item()) is None else f"is {an(type(one).__name__)}"


def check_intervals_of(where: str, dt: Numbers, lengths: Index) -> None:
    """Raises ValueError, which begins with `where`, if one of the intervals (steps,) of sequences is negative, NaN or
    too long."""
    if not (fits := (dt >= 0) & (dt <= LONGEST_INTERVAL)).all():
        at = int(np.argmin(fits))
        row = int(np.searchsorted(np.cumsum(lengths), at, "right"))
        place = f"dt, sequence {row}, step {at - int(lengths[:row].sum())}"
        raise ValueError(f"{where}: {place}: got {dt[at]}, expected intervals from 0 to {LONGEST_INTERVAL:.4g}")


def joined(arrays: Sequence[npt.ArrayLike], call: str, name: str) -> tuple[Numbers, Index]:
    """Returns ragged sequences (T_i, F) or (T_i,), the argument `name` of `call`, one after the other, (sum of T, F),
    and their lengths.

    TypeError or ValueError if there are no sequences, a sequence is not an array, or numbers of features or dimensions
    differ.
    """
    parts = [on_host(call, f"{name}[{i}]", one) for i, one in enumerate(arrays)]
    if not parts:
        raise ValueError(f"{call}: {name} is empty, expected at least one sequence")
    for i, one in enumerate(parts):
        if one.ndim not in (1, 2):
            raise ValueError(f"{call}: {name}[{i}] {_form(one)}, expected (time,) or (time, features)")
    columns = [one[:, None] if one.ndim == 1 else one for one in parts]
    for i, one in enumerate(columns):
        if one.shape[1] != columns[0].shape[1]:
            expected = f"{columns[0].shape[1]} as {name}[0]"
            raise ValueError(f"{call}: {name}[{i}] has {one.shape[1]} features per step, expected {expected}")
    return np.concatenate(columns), np.array([len(one) for one in columns], np.int64)
