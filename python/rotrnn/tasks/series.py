"""A time series of your own as a task: forecasts of the next steps at every step."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, read_npz
from rotrnn._support.settings import MOST_COUNT, settle
from rotrnn.tasks.columns import Numbers
from rotrnn.tasks.lags import Lags, chosen, effects
from rotrnn.tasks.own import check_range, check_span
from rotrnn.tasks.rules import Scale
from rotrnn.tasks.table import check_delimiter, check_distinct, read_table
from rotrnn.tasks.task import Batch, Index, Shape, Split, Task

MOST_WINDOW = 256
"""Largest default number of steps of a window."""


@dataclass(frozen=True)
class Form:
    """The inputs and targets of a forecasting model at each step t of a series y (n, V).

    It reads ``y_t - y_(t - period)`` (zero in the first `period` steps) and, with `levels`, ``y_t``, as (n, V) or
    (n, 2 V). It predicts what is to be added to `base` for h = 1..horizon, as (n, horizon V): to the forecast of `line`
    or, without it, to `naive`, the forecast that repeats the last `period` steps, so that it predicts
    ``y_(t + h) - y_(t + h - period ceil(h / period))``. A period of 1 repeats the last number; a period of 0 stands for
    no differences: levels alone are read and, without `line`, predicted.

    With covariates x (n or more, C), which are known in advance, y stands for the `rest` of the series, from which
    their effects are taken. It also reads ``x_(t + 1)``, at the end of x the last row again. `expected` adds the
    effects, so that the forecast of a step h ahead depends on the covariates of steps up to t + h alone.
    """

    horizon: int
    period: int
    levels: bool
    line: Lags | None = None
    effects: Numbers | None = None
    """(C, V): the effects of covariates (`rotrnn.tasks.lags.effects`)."""

    @property
    def first(self) -> int:
        """The first step with all inputs of the forecasts."""
        return max(self.period, self.line.size - 1 if self.line is not None else 0)

    def rest(self, y: Numbers, x: Numbers | None) -> Numbers:
        """Returns a series without the effects of its covariates."""
        return y if x is None or self.effects is None else y - x[: len(y)] @ self.effects

    def expected(self, found: Numbers, x: Numbers | None, origins: Index) -> Numbers:
        """Returns forecasts (origins, horizon, ...) of the rest of a series, to whose variables the effects of
        covariates are added; NaN where x has ended. `found` is (origins, horizon, V) or (origins, horizon, V, Q)."""
        if x is None or self.effects is None:
            return found
        at = origins[:, None] + np.arange(1, self.horizon + 1)
        added = np.where((at < len(x))[..., None], (x @ self.effects)[np.minimum(at, len(x) - 1)], np.nan)
        return np.asarray(found + (added[..., None] if found.ndim > 3 else added))

    def inputs(self, y: Numbers, x: Numbers | None = None) -> Numbers:
        """Returns the model's inputs."""
        parts = [y] if self.levels or not self.period else []
        if self.period:
            change = np.zeros_like(y)
            change[self.period :] = y[self.period :] - y[: -self.period]
            parts = [change, *parts]
        if x is not None:
            parts.append(x[np.minimum(np.arange(1, len(y) + 1), len(x) - 1)])
        return np.concatenate(parts, 1)

    def naive(self, y: Numbers, origins: Index, steps: int) -> Numbers:
        """Returns the forecasts (origins, steps, V) that repeat the last `period` steps; zeros for a period of 0. If
        there are fewer steps, the last number is repeated."""
        h = np.arange(1, steps + 1)
        if not self.period:
            return np.zeros((len(origins), steps, y.shape[1]))
        at = origins[:, None] + h - self.period * -(-h // self.period)
        return np.asarray(y[np.where(at < 0, origins[:, None], at)])

    def base(self, y: Numbers, origins: Index) -> Numbers:
        """Returns the forecasts (origins, horizon, V) that the model corrects: forecasts of `line`, and naive forecasts
        where there are fewer steps than it reads, or no line."""
        found = self.naive(y, origins, self.horizon)
        if self.line is not None:
            there = origins >= self.line.size - 1
            found[there] = self.line(y, origins[there])
        return found

    def targets(self, y: Numbers) -> Numbers:
        """Returns the model's targets, (n, horizon V); NaN where the series has ended."""
        n, V = y.shape
        t = np.arange(n)
        at = t[:, None] + np.arange(1, self.horizon + 1)
        later = np.where((at < n)[..., None], y[np.minimum(at, n - 1)], np.nan)
        return np.asarray((later - self.base(y, t)).reshape(n, self.horizon * V))


@dataclass(frozen=True)
class WindowSplit(Split):
    """Windows of series. Window i has `length` steps from ``start[i]``, of which those after ``last[i]``, where its
    series ends, are that step again; of its steps from ``first[i]`` on, before ``end[i]``, the targets count that are
    not NaN. Both are scaled when a batch is drawn. `form` is how they follow from the series, of which the first
    ``steps[s]`` of series s are for training, and `scales` has the scale of each."""

    form: Form
    scales: tuple[Scale, ...]
    steps: Index
    inputs: Scale
    targets: Scale
    read: Numbers
    wanted: Numbers
    length: int
    start: Index
    first: Index
    end: Index
    last: Index

    def __len__(self) -> int:
        return len(self.start)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the windows at `index`, with numbers in `dtype`."""
        at = self.start[index][:, None] + np.arange(self.length)
        there = np.minimum(at, self.last[index][:, None])
        labels = self.targets(self.wanted[there]).astype(dtype)
        labels[(at < self.first[index][:, None]) | (at >= self.end[index][:, None])] = np.nan
        return Batch(self.inputs(self.read[there]).astype(dtype), labels, None)


class Parts(NamedTuple):
    """Series one after the other, (steps, V), their covariates (steps, C), their lengths and names."""

    y: Numbers
    x: Numbers | None
    lengths: Index
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Series:
    """Forecasts of the next `horizon` steps of a series, at every step, from windows of it; see `Form`.

    The first part of the series is for training, the next one for validation and the last one for the test: where a
    target stands in time decides. Inputs before it may belong to an earlier part.

    Of several series, one model is trained. Each is cut into these parts and, if there is more than one, shifted and
    scaled to mean 0 and deviation 1 over its own training part; the linear forecast and the effects of covariates are
    fitted to all.

    Parameters
    ----------
    path : str
        A table (.csv, .tsv, .parquet) with a row for each step, or a file .npz with an array "y" (n,) or (n, V). In a
        recipe's file, it is relative to that file; else to the working directory. The file .npz may have "covariates"
        (n, C), and of several series, one after the other, their "lengths" (S,) and "names" (S,).
    columns : tuple of str
        The variables, columns of the table; if empty, all but those without a name, as in the task "table".
    horizon : int
        Number of steps that are forecast.
    period : int
        Differences to so many steps ago are read, and the forecast that repeats these steps is corrected. 1: to the
        last step; 12: of monthly numbers with seasons; 0: none, for a series that stays around its mean.
    levels : bool
        Read the numbers beside their differences. Without levels, a continuing trend does not lead to unseen inputs.
    linear : bool
        Correct a linear forecast, ridge regression on the last steps that is fitted to the training part
        (`rotrnn.tasks.lags`), instead of the naive forecast; if the series is too short for it, still the naive
        forecast.
    window : int
        Number of steps of a window; 0: half of the training part, at most 256.
    val_fraction, test_fraction : float
        Shares of the steps.
    delimiter : str
        As of the task "table".
    covariates : tuple of str
        Columns that are known in advance, such as prices or days off. A forecast of a step reads them up to that step:
        their effects are least squares (`rotrnn.tasks.lags.effects`), and the model reads the covariates of the next
        step.
    sequence : str
        Column that says which series a row belongs to, whose rows are in the order of time; without it, all rows are
        one series.
    """

    path: str = ""
    columns: tuple[str, ...] = ()
    horizon: int = 1
    period: int = 1
    levels: bool = True
    linear: bool = False
    window: int = 0
    val_fraction: float = 0.1
    test_fraction: float = 0.2
    delimiter: str = ""
    covariates: tuple[str, ...] = ()
    sequence: str = ""

    causal: ClassVar[bool] = True
    head: ClassVar[str] = "step_regressor"
    split_settings: ClassVar[tuple[str, ...]] = ("val_fraction", "test_fraction")
    files: ClassVar[str] = "a file .csv, .tsv, .parquet or .npz"

    def __post_init__(self) -> None:
        settle(self)
        for key, least in (("horizon", 1), ("period", 0), ("window", 0)):
            if not least <= getattr(self, key) <= MOST_COUNT:
                raise ValueError(
                    f"Series: {key} is {getattr(self, key)}, expected an integer from {least} to {MOST_COUNT}"
                )
        if not (self.val_fraction >= 0 and self.test_fraction >= 0 and self.val_fraction + self.test_fraction < 1):
            shares = f"val_fraction is {self.val_fraction} and test_fraction is {self.test_fraction}"
            raise ValueError(f"Series: {shares}, expected numbers of at least 0 whose sum is below 1")
        if not (self.period or self.levels):
            raise ValueError("Series: levels is False with period 0, expected one of the two: there is nothing to read")
        check_delimiter("Series", self.delimiter)
        for key in ("columns", "covariates"):
            check_distinct("Series", key, getattr(self, key))
        if both := [name for name in self.covariates if name in self.columns]:
            what = f"Series: covariates has {both[0]!r}, which is among columns"
            raise ValueError(f"{what}, expected other columns: covariates are known in advance")
        if self.path:
            object.__setattr__(self, "path", os.path.abspath(self.path))

    @property
    def form(self) -> Form:
        """The model's inputs and targets, before a linear forecast is fitted."""
        return Form(self.horizon, self.period, self.levels)

    @property
    def shape(self) -> Shape:
        """The shape of the task, for which its data are read."""
        task = self.load()
        return Shape(task.n_classes, None, task.n_features, self.head)

    def read(self) -> npt.NDArray[np.float64]:
        """Returns the series (n, V), several one after the other. ValueError, with file, row and column, if a cell is
        not a finite number."""
        return np.asarray(self._parts().y)

    def _parts(self) -> Parts:
        if not self.path:
            raise ValueError(f"Series: path is '', expected {self.files}")
        if not Path(self.path).exists():
            raise FileNotFoundError(f"Series: path is {self.path}, which does not exist; expected {self.files}")
        if Path(self.path).suffix != ".npz":
            return self._of_table()
        if named := [key for key in ("covariates", "sequence") if getattr(self, key)]:
            expected = f"expected {getattr(type(self)(), named[0])!r} with a file .npz, whose arrays say so"
            raise ValueError(f"Series: {named[0]} is {getattr(self, named[0])!r}, {expected}")
        arrays: Any = read_npz(self.path)
        y, x = (self._numbers_of(arrays, name, "(n, K)") for name in ("y", "covariates"))
        if y is None:
            raise ValueError(f"{self.path}: has no array y, expected finite numbers (n,) or (n, V)")
        if x is not None and len(x) != len(y):
            raise ValueError(f"{self.path}: has covariates of {len(x)} rows, expected {len(y)} as of y")
        lengths, names = arrays.get("lengths", np.array([len(y)])), arrays.get("names")
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not lengths.size or lengths.min() < 1:
            raise ValueError(f"{self.path}: has lengths of shape {lengths.shape}, expected positive integers (S,)")
        if int(lengths.astype(object).sum()) != len(y):
            raise ValueError(f"{self.path}: has lengths of sum {lengths.sum()}, expected the {len(y)} steps of y")
        if names is not None and (names.dtype.kind != "U" or names.shape != lengths.shape):
            raise ValueError(f"{self.path}: has names of shape {names.shape}, expected a text for each series")
        try:
            texts = None if names is None else tuple(names.tolist())
        except (SystemError, ValueError) as error:  # numbers that are no characters
            raise ValueError(f"{self.path}: has names that are no texts ({error})") from error
        return Parts(y, x, lengths.astype(np.int64), texts)

    def _numbers_of(self, arrays: Any, name: str, form: str) -> Numbers | None:
        """Returns an array of a file as (n, K), checked."""
        one = arrays.get(name)
        if one is None:
            return None
        if one.ndim not in (1, 2) or not one.size or one.dtype.kind not in "biuf" or not np.isfinite(one).all():
            got = f"{name} of shape {one.shape} and dtype {one.dtype}"
            raise ValueError(f"{self.path}: has {got}, expected finite numbers (n,) or {form}")
        return np.asarray(one.reshape(len(one), -1), np.float64)

    def _of_table(self) -> Parts:
        table = read_table(self.path, self.delimiter)
        for name in (*self.covariates, *((self.sequence,) if self.sequence else ())):
            table.column(name)  # report a wrong name before a column that is taken for a variable
        keys = (*((self.sequence,) if self.sequence else ()), *self.covariates)
        columns = self.columns or table.others(keys, "columns")
        if not columns:
            raise ValueError(f"{self.path}: has no variable among its columns, expected `columns` to name one")
        y, x = (np.column_stack([table.numbers(name) for name in some]) if some else None
                for some in (columns, self.covariates))  # fmt: skip
        assert y is not None
        if not self.sequence:
            return Parts(y, x, np.array([len(y)]), None)
        names, of_row = np.unique(table.texts(self.sequence), return_inverse=True)
        order = np.argsort(of_row, kind="stable")
        return Parts(y[order], None if x is None else x[order], np.bincount(of_row), tuple(names.tolist()))

    def load(self) -> Task:
        """Returns the task."""
        y, x, lengths, names = self._parts()
        for array in (y, x):
            if array is not None:
                check_range(f"{self.path}:", array)
        V, least = y.shape[1], self.period + self.horizon + 1
        test, val = (np.array([round(share * n) for n in lengths]) for share in (self.test_fraction, self.val_fraction))
        train = lengths - test - val
        for i in np.flatnonzero(train < least)[:1]:
            where = self.path if names is None else f"{self.path}: series {names[i]!r}"
            few = f"{train[i]} of {lengths[i]} steps are for training"
            raise ValueError(f"{where}: {few}, expected at least {least}: a period, the horizon and a step")
        window = self.window or max(min(MOST_WINDOW, int(train.max()) // 2), 2)
        if window > train.max():
            raise ValueError(f"Series: window is {window}, expected at most the {train.max()} steps for training")

        begin = np.cumsum(lengths) - lengths
        t = np.concatenate([np.arange(n) for n in lengths])
        of = np.repeat(np.arange(len(lengths)), lengths)
        early = t < train[of]  # in training
        cuts = begin[1:]
        scales = tuple(
            Scale.none(V) if len(lengths) == 1 else Scale.of(one[:n])
            for one, n in zip(np.split(y, cuts), train, strict=True)
        )
        y = np.concatenate([scale(one) for scale, one in zip(scales, np.split(y, cuts), strict=True)])
        form = self.form
        if x is not None:
            check_span(f"{self.path}: covariates", x)
            try:
                form = replace(form, effects=effects(y[early], x[early], self.period, train))
            except ValueError as error:
                raise ValueError(f"{self.path}: {error}") from error
            y = form.rest(y, x)
        line = chosen(y[early], self.horizon, self.period, train) if self.linear else None
        form = replace(form, line=line)
        each = np.split(y, cuts)
        of_each = [None] * len(each) if x is None else np.split(x, cuts)
        inputs = np.concatenate([form.inputs(one, known) for one, known in zip(each, of_each, strict=True)])
        targets = np.concatenate([form.targets(one) for one in each])
        when = t[:, None] + np.repeat(np.arange(1, self.horizon + 1), V)  # the time of each target
        whole = t >= form.first
        read = Scale.of(inputs[early & (t >= self.period)], marks=True)
        asked = Scale.of(np.where(when < train[of][:, None], targets, np.nan)[whole])

        def split(low: Index, high: Index, windows: list[tuple[Index, Index, Index]]) -> WindowSplit:
            """The windows (start, first, end) of each series, whose targets from time `low` to `high` count."""
            counted = (low[of][:, None] <= when) & (when < high[of][:, None]) & whole[:, None]
            start, first, end = (
                np.concatenate([at + one[i] for at, one in zip(begin, windows, strict=True)]) for i in range(3)
            )
            last = np.repeat(begin + lengths - 1, [len(one[0]) for one in windows])
            found = np.where(counted, targets, np.nan)
            return WindowSplit(form, scales, train, read, asked, inputs, found, window, start, first, end, last)

        def training(n: int) -> tuple[Index, Index, Index]:
            """Each window has a target, if there are as many steps; of fewer than a window, there is one."""
            start = np.arange(max(form.first - window + 1, 0), min(max(n - window, 0), n - 2) + 1)
            start = start[: len(start) * (form.first <= n - 2)]
            return start, start, start + window

        def part(low: int, high: int, n: int) -> tuple[Index, Index, Index]:
            """The part from time `low` on; each origin is in one window, after as much as half a window before it."""
            ahead = window // 2
            first = np.arange(max(low - 1, form.first), high - 1, window - ahead)
            start = np.clip(first - ahead, 0, max(n - window, 0))
            return start, first, np.minimum(first + window - ahead, high - 1)

        def parts(low: Index, high: Index) -> WindowSplit:
            return split(low, high, [part(*one) for one in zip(low, high, lengths, strict=True)])

        trained = split(np.zeros_like(train), train, [training(int(n)) for n in train])
        validation = parts(train, train + val) if val.any() else None
        testing = parts(train + val, lengths) if test.any() else validation or trained
        return Task(
            "series",
            trained,
            validation or testing,
            testing,
            n_classes=self.horizon * V,
            vocab=None,
            n_features=inputs.shape[1],
            head=self.head,
            metric="skill",
        )

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes the series as a file series.npz, which this task reads, and returns the task."""
        task = self.load()
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_series(Path(folder, "series.npz"), self._parts())
        return task


def save_series(path: str | os.PathLike[str], parts: Parts) -> None:
    """Writes series as a file .npz that the task "series" reads."""
    arrays = {"y": parts.y} if parts.x is None else {"y": parts.y, "covariates": parts.x}
    if parts.names is not None:
        arrays |= {"lengths": parts.lengths, "names": np.array(parts.names)}
    with atomic_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
