"""Columns of a table as features: gaps, categories and times become numbers, by the training rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.settings import settle
from rotrnn._support.text import plural
from rotrnn._support.warn import warn

Numbers = npt.NDArray[Any]

KINDS = ("number", "category", "time")

CYCLES = {"day": 86400.0, "week": 7 * 86400.0, "year": 31556952.0}
"""Seconds of a day, a week, and a mean year of the Gregorian calendar."""

NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
"""Texts that are numbers. Those with zeros before them, such as 007, are names."""

TRUTHS = {text: truth for truth in (False, True) for text in (str(truth), str(truth).lower(), str(truth).upper())}
"""Texts that are truth values if all cells of a column are, as pandas reads them: True, true, TRUE, ..."""


@dataclass(frozen=True)
class Column:
    """A column of a table, whose cells are numbers: as they are, places in `values`, or seconds since 1970. Parameters
    after `values` are learnt from the cells for training (`learnt`).

    Parameters
    ----------
    kind : str
        "number", "category" or "time".
    values : tuple of str
        The texts of a category; learnt, the texts of the training cells.
    mean : float
        The mean of the numbers that are not missing.
    gaps : bool
        Whether a number is missing, NaN.
    first : float
        The first time.
    cycles : tuple of str
        The cycles of `CYCLES` that the times resolve: they span one, and two of them are within half of one.
    """

    name: str
    kind: str = "number"
    values: tuple[str, ...] = ()
    mean: float = 0.0
    gaps: bool = False
    first: float = 0.0
    cycles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        settle(self)
        if self.kind not in KINDS or any(one not in CYCLES for one in self.cycles):
            got = f"kind {self.kind!r} and cycles {self.cycles}"
            raise ValueError(f"Column: has {got}, expected one of {', '.join(KINDS)}, and of {', '.join(CYCLES)}")

    def learnt(self, cells: Numbers, where: str) -> Column:
        """Returns the column with what its cells (n,) for training say. ValueError, which begins with `where`, if none
        of them is a number."""
        if self.kind == "category":
            return replace(self, values=tuple(self.values[int(code)] for code in np.unique(cells)))
        if self.kind == "time":
            times = np.unique(cells)
            span, step = times[-1] - times[0], np.diff(times).min(initial=math.inf)
            cycles = tuple(name for name, cycle in CYCLES.items() if span >= cycle and step <= cycle / 2)
            return replace(self, first=float(times[0]), cycles=cycles)
        missing = np.isnan(cells)
        if missing.all():
            raise ValueError(f"{where}: column {self.name!r} has no number in the training rows, expected one")
        return replace(self, mean=float(np.nanmean(cells)), gaps=bool(missing.any()))

    def features(self, cells: Numbers, values: Sequence[str], where: str) -> dict[str, Numbers]:
        """Returns the features (n,) that cells (n,) become, by name, of a learnt column; for a category, cells are
        places in `values`.

        A number that is missing becomes the mean, and if a training cell was missing there is a feature NAME_missing, 1
        where it is. A category becomes a feature NAME_VALUE for each learnt value, 1 where a cell has it; another
        value, of which a warning tells, has none. A time becomes NAME_seconds since the first of training, and for each
        cycle the sine and cosine of its phase since 1970.
        """
        if self.kind == "category":
            at = np.array(places(self.values, values), np.int64)
            if other := [one for one, place in zip(values, at.tolist(), strict=True) if place < 0]:
                which = ", ".join(map(repr, other[:3]))
                told = (
                    f"{where}: column {self.name!r} has {plural(len(other), 'value')} that training does not: {which}"
                )
                warn(told)
            of_cell = at[cells.astype(np.int64)]
            return {f"{self.name}_{one}": (of_cell == i).astype(float) for i, one in enumerate(self.values)}
        if self.kind == "time":
            found = {f"{self.name}_seconds": cells - self.first}
            for name in self.cycles:
                angle = 2 * np.pi * (cells % CYCLES[name]) / CYCLES[name]
                found |= {f"{self.name}_{name}_sin": np.sin(angle), f"{self.name}_{name}_cos": np.cos(angle)}
            return found
        missing = np.isnan(cells)
        found = {self.name: np.where(missing, self.mean, cells)}
        return found | ({f"{self.name}_missing": missing.astype(float)} if self.gaps else {})


def keys_of(texts: Collection[str]) -> list[Any]:
    """Returns what texts are compared by: numbers if all are numbers, truth values if all are, else the texts."""
    if all(map(NUMBER.fullmatch, texts)):
        return [Decimal(one) for one in texts]  # exact: float would make one of two long numbers
    if all(one in TRUTHS for one in texts):
        return [TRUTHS[one] for one in texts]
    return [*texts]


def spellings(texts: Collection[str]) -> dict[str, str]:
    """Returns, for each of some different texts with the same key as a shorter one (`keys_of`), the shortest: 1 for
    1.0 and 1.00."""
    if len(set(keys_of(texts))) == len(texts):
        return {}
    ordered = sorted(texts, key=lambda one: (len(one), one))
    first: dict[Any, str] = {}
    names = [first.setdefault(key, one) for one, key in zip(ordered, keys_of(ordered), strict=True)]
    return {one: name for one, name in zip(ordered, names, strict=True) if one != name}


def places(known: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Returns for each text its place among known texts, of the same text or else of the same key (`keys_of`); -1 for
    none."""
    keys = keys_of((*known, *texts))
    place = {**dict(zip(keys, range(len(known)), strict=False)), **{one: i for i, one in enumerate(known)}}
    return [place.get(one, place.get(key, -1)) for one, key in zip(texts, keys[len(known) :], strict=True)]


def seconds(text: str) -> float:
    """Returns the seconds since 1970 of a time in the form of ISO 8601; without a zone, it is UTC. ValueError if it is
    none."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
