"""Columns of a table as features: gaps, categories and times become numbers, by what the training rows have."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from rotrnn._support.text import plural
from rotrnn.tasks.own import Numbers, Sequences
from rotrnn.tasks.task import Index

CYCLES = {"day": 86400.0, "week": 7 * 86400.0, "year": 31556952.0}
"""Seconds of a day, a week, and a mean year of the Gregorian calendar."""


@dataclass(frozen=True)
class Column:
    """A column of a table, whose cells are numbers: as they are, places in `values`, or seconds since 1970.

    Parameters
    ----------
    kind : str
        "number", "category" or "time".
    values : tuple of str
        The texts of a category.
    """

    name: str
    kind: str = "number"
    values: tuple[str, ...] = ()

    def features(self, cells: Numbers, train: Numbers, where: str) -> dict[str, Numbers]:
        """Returns the features (n,) that cells (n,) become, by name; `train` marks those for training.

        A number that is missing, NaN, becomes the mean of the training cells, and if one of these is missing there is a
        feature NAME_missing, 1 where it is. A category becomes a feature NAME_VALUE for each value of the training
        cells, 1 where a cell has it; another value, of which a warning tells, has none. A time becomes NAME_seconds
        since the first training cell, and for each cycle of `CYCLES` that the training cells resolve (they span one,
        and two of them are within half of one) the sine and cosine of its phase since 1970.
        """
        known = cells[train]
        if self.kind == "category":
            there = np.unique(known).astype(int)
            if (other := np.setdiff1d(cells, there)).size:
                which = ", ".join(repr(self.values[int(code)]) for code in other[:3])
                told = (
                    f"{where}: column {self.name!r} has {plural(len(other), 'value')} that training does not: {which}"
                )
                warnings.warn(told, stacklevel=4)
            return {f"{self.name}_{self.values[code]}": (cells == code).astype(float) for code in there}
        if self.kind == "time":
            times = np.unique(known)
            span, step = times[-1] - times[0], np.diff(times).min(initial=math.inf)
            found = {f"{self.name}_seconds": cells - times[0]}
            for name, cycle in CYCLES.items():
                if span >= cycle and step <= cycle / 2:
                    angle = 2 * np.pi * (cells % cycle) / cycle
                    found |= {f"{self.name}_{name}_sin": np.sin(angle), f"{self.name}_{name}_cos": np.cos(angle)}
            return found
        missing = np.isnan(cells)
        if not missing.any():
            return {self.name: cells}
        if np.isnan(known).all():
            raise ValueError(f"{where}: column {self.name!r} has no number in the training rows, expected one")
        found = {self.name: np.where(missing, np.nanmean(known), cells)}
        return found | ({f"{self.name}_missing": missing.astype(float)} if np.isnan(known).any() else {})


def seconds(text: str) -> float:
    """Returns the seconds since 1970 of a time in the form of ISO 8601; without a zone, it is UTC. ValueError if it is
    none."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def featured(data: Sequences, columns: Sequence[Column], rows: Index, where: str) -> Sequences:
    """Returns sequences whose values are the features of the columns, by what the sequences `rows` have."""
    train = np.zeros(len(data), bool)
    train[rows] = True
    train = np.repeat(train, data.lengths)
    found: dict[str, Numbers] = {}
    for column, cells in zip(columns, data.values.T, strict=True):
        for name, values in column.features(cells, train, where).items():
            if name in found:
                raise ValueError(f"{where}: two features are called {name!r}, expected columns of other names")
            found[name] = values
    return Sequences(
        np.stack([*found.values()], 1),
        data.lengths,
        data.labels,
        data.per_step,
        data.classes,
        data.weights,
        tuple(found),
    )
