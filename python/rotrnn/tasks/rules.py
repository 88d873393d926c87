"""The rules by which own data become numbers: learnt from the sequences for training, kept with a run and its model."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from rotrnn._support.checkpoint import read_checkpoint
from rotrnn._support.files import read_file
from rotrnn._support.json import from_json, to_json
from rotrnn._support.settings import settle
from rotrnn._support.text import an, plural
from rotrnn.tasks.columns import Column, Numbers

RULES = "rules"
"""Name of the file in the folder of a run or a model, and of the fact in a model's file."""


class Scale(NamedTuple):
    """Mean and standard deviation (F,) of each feature; the deviation is 0 for a constant feature, which is divided by
    1 (`divisor`)."""

    mean: Numbers
    std: Numbers

    @classmethod
    def of(cls, array: Numbers, *, marks: bool = False, weights: Numbers | None = None) -> Scale:
        """Returns the scale of the rows of an array (n, F), by positive weights (n,) of the rows if given; NaN does not
        count. With `marks`, features with two of the values -1, 0 and 1 stay as they are: scaled, a mark at few of many
        steps would be far from 0, and the steps without one no longer 0."""

        def total(rows: Numbers) -> Numbers:
            return np.asarray((rows if weights is None else rows * weights[:, None]).sum(0, dtype=np.float64))

        counted = ~np.isnan(array)
        n = np.where(counted.any(0), total(counted), 1)
        mean = total(np.where(counted, array, 0)) / n
        first = np.take_along_axis(array, counted.argmax(0)[None], 0)[0]
        mean = np.where(counted.any(0) & ~(counted & (array != first)).any(0), first, mean)  # of equal numbers, exactly
        std = np.sqrt(total(np.where(counted, array - mean, 0) ** 2) / n)
        std = np.where(std > 1e-12 * np.abs(mean), std, 0.0)
        if marks:
            found = np.stack([array == mark for mark in (-1, 0, 1)])
            left = (found.any(1).sum(0) == 2) & (found.any(0) | ~counted).all(0)
            mean, std = np.where(left, 0.0, mean), np.where(left, 1.0, std)
        return cls(mean, std)

    @classmethod
    def none(cls, features: int) -> Scale:
        """Returns the identity scale."""
        return cls(np.zeros(features), np.ones(features))

    @property
    def divisor(self) -> Numbers:
        """The divisors of numbers."""
        return np.where(self.std > 0, self.std, 1.0)

    def __call__(self, array: Numbers) -> Numbers:
        return np.asarray((array - self.mean) / self.divisor)


@dataclass(frozen=True)
class Rules:
    """How own data become numbers, as the sequences for training decide: plain values, which are written as JSON.

    Parameters
    ----------
    mean, std : (F,) floats
        The scale of each feature (`Scale`).
    target_mean, target_std : (K,) floats, optional
        The scale of each target of a regression.
    classes : tuple of str, optional
        The names of the classes, in the order of the model's outputs.
    names : tuple of str, optional
        The names of the features.
    step_names : tuple of str, optional
        The names of the columns that are the steps, of a table whose rows are sequences.
    target_names : tuple of str, optional
        The names of the columns of targets or bits of a table.
    dt : bool
        Whether there are intervals between steps.
    columns : tuple of Column
        The learnt columns of a table with gaps, categories or times, from which the features are made.
    balanced : tuple of float, optional
        The balanced weights of the classes, or of the ones of each bit (`rotrnn.tasks.task.balanced_weights`).
    rate : int
        The sampling rate of recordings in Hz; 0 if it is not known.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    target_mean: tuple[float, ...] | None = None
    target_std: tuple[float, ...] | None = None
    classes: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    step_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    dt: bool = False
    columns: tuple[Column, ...] = ()
    balanced: tuple[float, ...] | None = None
    rate: int = 0

    def __post_init__(self) -> None:
        settle(self)
        if len(self.mean) != len(self.std) or len(self.target_mean or ()) != len(self.target_std or ()):
            raise ValueError("Rules: a mean and its std have different lengths, expected a number of each")
        for key, names in (("mean", self.names), ("target_mean", self.target_names), ("balanced", self.classes)):
            numbers = getattr(self, key)
            if names is not None and numbers is not None and len(numbers) != len(names):
                got, expected = plural(len(numbers), "number"), f"{len(names)}: {', '.join(names)}"
                raise ValueError(f"Rules: {key} has {got}, expected {expected}")
        if min((*self.std, *(self.target_std or ())), default=0.0) < 0:
            raise ValueError("Rules: std has a negative number, expected at least 0")
        if min(self.balanced or (), default=0.0) < 0:
            raise ValueError("Rules: balanced has a negative number, expected at least 0")

    @classmethod
    def of(cls, inputs: Scale, targets: Scale | None, **others: Any) -> Self:
        """Returns the rules with these scales, and the other parameters."""
        mean, std = (None, None) if targets is None else (targets.mean.tolist(), targets.std.tolist())
        return cls(inputs.mean.tolist(), inputs.std.tolist(), mean, std, **others)

    @property
    def inputs(self) -> Scale:
        """The scale of the features."""
        return Scale(np.array(self.mean), np.array(self.std))

    @property
    def targets(self) -> Scale | None:
        """The scale of the targets of a regression."""
        return None if self.target_mean is None else Scale(np.array(self.target_mean), np.array(self.target_std))

    def text(self) -> str:
        """Returns the rules as JSON, which `read_rules` reads."""
        return to_json(asdict(self), indent=2) + "\n"


def read_rules(place: Rules | str | os.PathLike[str]) -> Rules:
    """Returns the rules in the folder of a run or a model, in a model's file, or in a file of JSON. ValueError if
    there are none, or they are damaged."""
    if isinstance(place, Rules):
        return place
    if not isinstance(place, str | os.PathLike) or (found := find_rules(place)) is None:
        expected = "the folder of a run of the task 'table', 'arrays', 'folder' or 'uea', or the model exported from it"
        raise ValueError(f"{place}: has no rules of training, expected {expected}")
    return found


def find_rules(place: str | os.PathLike[str]) -> Rules | None:
    """Returns as `read_rules`, and None if there are none."""
    path = Path(place)
    if path.is_dir():
        return find_rules(path / f"{RULES}.json")
    if path.suffix not in (".safetensors", ".json") or not path.is_file():
        return None
    try:
        if path.suffix == ".safetensors":
            found = read_checkpoint(path)[1].get(RULES)
            return None if found is None else made(found)
        return made(from_json(read_file(path)))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def made(found: Any) -> Rules:
    """The inverse of `dataclasses.asdict`. ValueError if it is not the JSON of rules."""
    if not isinstance(found, dict) or not isinstance(columns := found.get("columns", []), list):
        raise ValueError(f"has rules that are {an(type(found).__name__)}, expected an object")
    return _of(Rules, {**found, "columns": tuple(_of(Column, one) for one in columns)})


def _of(kind: Any, found: Any) -> Any:
    known = [one.name for one in fields(kind)]
    if not isinstance(found, dict) or (other := [name for name in found if name not in known]):
        got = f"{other[0]!r:.80}" if isinstance(found, dict) else an(type(found).__name__)
        raise ValueError(f"{kind.__name__} has {got}, expected {', '.join(known)}")
    try:
        return kind(**found)
    except TypeError as error:
        raise ValueError(str(error)) from None
