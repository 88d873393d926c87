"""A time series of your own as a task: forecasts of the next steps at every step."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, read_npz
from rotrnn._support.settings import settle
from rotrnn.tasks.lags import Lags, chosen
from rotrnn.tasks.own import Numbers, Scale, check_range
from rotrnn.tasks.table import check_delimiter, read_table
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
    """

    horizon: int
    period: int
    levels: bool
    line: Lags | None = None

    @property
    def first(self) -> int:
        """The first step with all inputs of the forecasts."""
        return max(self.period, self.line.size - 1 if self.line is not None else 0)

    def inputs(self, y: Numbers) -> Numbers:
        """Returns the model's inputs."""
        if not self.period:
            return y
        change = np.zeros_like(y)
        change[self.period :] = y[self.period :] - y[: -self.period]
        return np.concatenate([change, y], 1) if self.levels else change

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
    """Windows of a series. Window i has `length` steps from ``start[i]``; of its steps from ``first[i]`` on, before
    ``end[i]``, the targets count that are not NaN. Both are scaled when a batch is drawn. `form` is how they follow
    from the series, whose first `steps` are for training."""

    form: Form
    steps: int
    inputs: Scale
    targets: Scale
    read: Numbers
    wanted: Numbers
    length: int
    start: Index
    first: Index
    end: Index

    def __len__(self) -> int:
        return len(self.start)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the windows at `index`, with numbers in `dtype`."""
        at = self.start[index][:, None] + np.arange(self.length)
        labels = self.targets(self.wanted[at]).astype(dtype)
        labels[(at < self.first[index][:, None]) | (at >= self.end[index][:, None])] = np.nan
        return Batch(self.inputs(self.read[at]).astype(dtype), labels, None)


@dataclass(frozen=True)
class Series:
    """Forecasts of the next `horizon` steps of a series, at every step, from windows of it; see `Form`.

    The first part of the series is for training, the next one for validation and the last one for the test: where a
    target stands in time decides. Inputs before it may belong to an earlier part.

    Parameters
    ----------
    path : str
        A table (.csv, .tsv, .parquet) with a row for each step, or a file .npz with an array "y" (n,) or (n, V). In a
        recipe's file, it is relative to that file; else to the working directory.
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

    causal: ClassVar[bool] = True
    split_settings: ClassVar[tuple[str, ...]] = ("val_fraction", "test_fraction")
    files: ClassVar[str] = "a file .csv, .tsv, .parquet or .npz"

    def __post_init__(self) -> None:
        settle(self)
        for key, least in (("horizon", 1), ("period", 0), ("window", 0)):
            if not least <= getattr(self, key) < 2**31:
                raise ValueError(f"Series: {key} is {getattr(self, key)}, expected an integer of at least {least}")
        if not (self.val_fraction >= 0 and self.test_fraction >= 0 and self.val_fraction + self.test_fraction < 1):
            shares = f"val_fraction is {self.val_fraction} and test_fraction is {self.test_fraction}"
            raise ValueError(f"Series: {shares}, expected numbers of at least 0 whose sum is below 1")
        if not (self.period or self.levels):
            raise ValueError("Series: levels is False with period 0, expected one of the two: there is nothing to read")
        check_delimiter("Series", self.delimiter)
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
        return Shape(task.n_classes, None, task.n_features, task.head)

    def read(self) -> npt.NDArray[np.float64]:
        """Returns the series (n, V). ValueError, with file, row and column, if a cell is not a finite number."""
        if not self.path:
            raise ValueError(f"Series: path is '', expected {self.files}")
        if not Path(self.path).exists():
            raise FileNotFoundError(f"Series: path is {self.path}, which does not exist; expected {self.files}")
        if Path(self.path).suffix != ".npz":
            table = read_table(self.path, self.delimiter)
            columns = self.columns or table.others((), "columns")
            if not columns:
                raise ValueError(f"{self.path}: has no variable among its columns, expected `columns` to name one")
            return np.column_stack([table.numbers(name) for name in columns])
        y: Any = read_npz(self.path).get("y")
        if y is None or y.ndim not in (1, 2) or y.dtype.kind not in "iuf" or not np.isfinite(y).all():
            got = "no array y" if y is None else f"y of shape {y.shape} and dtype {y.dtype}"
            raise ValueError(f"{self.path}: has {got}, expected finite numbers (n,) or (n, V)")
        return np.asarray(y.reshape(len(y), -1), np.float64)

    def load(self) -> Task:
        """Returns the task."""
        y = self.read()
        check_range(f"{self.path}:", y)
        n, V = y.shape
        test, val = round(self.test_fraction * n), round(self.val_fraction * n)
        train = n - test - val
        least = self.period + self.horizon + 1
        if train < least:
            parts = f"{train} of {n} steps are for training"
            raise ValueError(f"{self.path}: {parts}, expected at least {least}: a period, the horizon and a step")
        window = self.window or max(min(MOST_WINDOW, train // 2), 2)
        if window > train:
            raise ValueError(f"Series: window is {window}, expected at most the {train} steps for training")
        form = replace(self.form, line=chosen(y[:train], self.horizon, self.period) if self.linear else None)
        inputs, targets = form.inputs(y), form.targets(y)
        when = np.arange(n)[:, None] + np.repeat(np.arange(1, self.horizon + 1), V)  # the time of each target
        whole = np.arange(n) >= form.first
        read = Scale.of(inputs[self.period : train], marks=True)
        asked = Scale.of(np.where(when < train, targets, np.nan)[whole])

        def split(low: int, high: int, start: Index, first: Index, end: Index) -> WindowSplit:
            counted = (low <= when) & (when < high) & whole[:, None]
            return WindowSplit(
                form, train, read, asked, inputs, np.where(counted, targets, np.nan), window, start, first, end
            )

        start = np.arange(max(form.first - window + 1, 0), min(train - window, train - 2) + 1)  # each has a target
        training = split(0, train, start, start, start + window)

        def part(low: int, high: int) -> WindowSplit:
            """The part from time `low` on; each origin is in one window, after as much as half a window before it."""
            ahead = window // 2
            first = np.arange(max(low - 1, 0), max(high - 1, low), window - ahead)
            start = np.clip(first - ahead, 0, n - window)
            return split(low, high, start, first, np.minimum(first + window - ahead, high - 1))

        validation = part(train, train + val) if val else None
        testing = part(train + val, n) if test else validation or training
        return Task(
            "series",
            training,
            validation or testing,
            testing,
            n_classes=self.horizon * V,
            vocab=None,
            n_features=inputs.shape[1],
            head="step_regressor",
            metric="skill",
        )

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes the series as a file series.npz, which this task reads, and returns the task."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        with atomic_file(Path(folder, "series.npz")) as file:
            np.savez(file, y=self.read())
        return self.load()
