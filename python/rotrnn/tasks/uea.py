"""Files .ts of the UEA archive of multivariate time series, as sktime and aeon read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import naming
from rotrnn._support.platform import regular
from rotrnn._support.settings import MOST_COUNT
from rotrnn.tasks.own import FLOAT32_MOST, OwnData, Sequences, as_number
from rotrnn.tasks.task import Shape

MOST_LINE = 2**28
"""Characters of a line, which is a sequence."""
PUBLISHED = {
    "EigenWorms": (5, 6),
    "SelfRegulationSCP1": (2, 6),
    "SelfRegulationSCP2": (2, 7),
    "EthanolConcentration": (4, 3),
    "Heartbeat": (2, 61),
    "MotorImagery": (2, 64),
}
"""Classes and dimensions of the sets that LinOSS was tested on."""


@dataclass
class Header:
    """The contents of the lines before ``@data``; None for missing entries."""

    dimensions: int | None = None
    steps: int | None = None
    classes: tuple[str, ...] | None = None
    targets: bool = False


@dataclass
class Cases:
    """The sequences (T, F) of a file, and their labels as texts."""

    header: Header
    values: list[npt.NDArray[np.float32]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def read_ts(path: str | Path) -> Cases:
    """Reads a file .ts: lines ``@name value``, then after ``@data`` a line for each sequence, with its dimensions and
    at last its label between colons, and the steps of a dimension between commas. ``#`` or ``%`` begins a comment.

    Raises
    ------
    ValueError
        It has no label, times of its own, missing values, or is not as its header says; the error names file and line.
    OSError
        It cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="replace", opener=regular) as file, naming(path):
        lines = _lines(path, file)
        header = _header(path, lines)
        found = Cases(header)
        for number, line in lines:
            where = f"{path}, line {number}"
            *parts, label = line.split(":")
            values = _values(where, parts, header)
            header.dimensions = values.shape[1]
            if header.classes is not None and label.strip() not in header.classes:
                expected = f"one of {', '.join(header.classes)}"
                raise ValueError(f"{where}: the label is {label.strip()!r:.80}, expected {expected:.200}")
            found.values.append(values)
            found.labels.append(label.strip())
    if not found.values:
        raise ValueError(f"{path}: has no sequence after @data")
    return found


def _lines(path: str | Path, file: Any) -> Iterator[tuple[int, str]]:
    """Yields the lines that are neither empty nor comments, with their numbers."""
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise ValueError(f"{path}, line {number}: has more than {MOST_LINE} characters, expected a sequence")
        if (line := line.strip()) and not line.startswith(("#", "%")):
            yield number, line


def _header(path: str | Path, lines: Iterator[tuple[int, str]]) -> Header:
    header, labelled = Header(), False
    for number, line in lines:
        where = f"{path}, line {number}"
        if not line.startswith("@"):
            raise ValueError(f"{where}: is {line!r:.40}, expected @data before the sequences")
        name, *words = line[1:].split() or [""]
        key, value = name.lower(), " ".join(words).lower()
        if key == "data":
            if not labelled:
                raise ValueError(f"{where}: there is no @classLabel true and no @targetLabel true, expected labels")
            return header
        if key in ("timestamps", "missing") and value == "true":
            what = "times of their own" if key == "timestamps" else "missing values"
            raise ValueError(f"{where}: @{name} is true, expected false: values with {what} are not read")
        if key in ("dimensions", "dimension", "serieslength"):
            if not (value.isascii() and value.isdigit() and 0 < int(value[:20]) <= MOST_COUNT):
                raise ValueError(f"{where}: @{name} is {value!r:.40}, expected a positive integer")
            if key == "serieslength":
                header.steps = int(value)
            else:
                header.dimensions = int(value)
        if key in ("classlabel", "targetlabel") and value.split(" ")[0] == "true":
            labelled, header.targets = True, key == "targetlabel"
            header.classes = None if header.targets else tuple(words[1:])
            if header.classes is not None and len(set(header.classes)) < max(1, len(header.classes)):
                raise ValueError(f"{where}: @{name} is {value!r:.80}, expected true and the names of different classes")
    raise ValueError(f"{path}: has no @data, expected the sequences after it")


def _values(where: str, parts: list[str], header: Header) -> npt.NDArray[np.float32]:
    """Returns a sequence (T, F) from the texts of its dimensions."""
    if not parts or (header.dimensions is not None and len(parts) != header.dimensions):
        expected = f"{header.dimensions} and a label" if header.dimensions else "dimensions and a label"
        raise ValueError(f"{where}: has {len(parts)} dimensions before the label, expected {expected}")
    columns: list[npt.NDArray[np.float64]] = []
    for i, part in enumerate(parts):
        texts = part.split(",")
        try:
            numbers = np.array(
                texts if part.isascii() and "_" not in part else [_number(text) for text in texts], np.float64
            )
        except ValueError:
            numbers = np.array([_number(text) for text in texts])
        if (wrong := np.flatnonzero(~(np.abs(numbers) <= FLOAT32_MOST))).size:
            got = f"dimension {i}, step {wrong[0]} is {texts[wrong[0]].strip()!r:.40}"
            raise ValueError(f"{where}: {got}, expected a finite number, of at most {FLOAT32_MOST:.2g} in size")
        steps = header.steps if header.steps is not None else len(columns[0]) if columns else len(numbers)
        if len(numbers) != steps:
            by = "@seriesLength" if header.steps is not None else "dimension 0"
            raise ValueError(f"{where}: dimension {i} has {len(numbers)} steps, expected {steps} as {by}")
        columns.append(numbers)
    return np.stack(columns, 1).astype(np.float32)


def _number(text: str) -> float:
    try:
        return as_number(text)
    except ValueError:
        return np.nan


@dataclass(frozen=True)
class UEA(OwnData):
    """Labelled sequences from files .ts, the format of the UEA archive; see `rotrnn.tasks.own.OwnData`.

    `path` is one file, or a folder with NAME_TRAIN.ts and NAME_TEST.ts. As in the papers of log-NCDE and LinOSS (Rusch
    and Rus 2024), the sequences of both are joined, and 15 % of all drawn for validation and 15 % for the test by
    `seed`. The archive is at timeseriesclassification.com; the sets of those papers are EigenWorms, SelfRegulationSCP1,
    SelfRegulationSCP2, EthanolConcentration, Heartbeat and MotorImagery.

    Parameters
    ----------
    time : bool
        Adds the time of each step, from 0 to below 1, as a feature.
    """

    val_fraction: float = 0.15
    test_fraction: float = 0.15
    time: bool = False

    files: ClassVar[str] = "a file .ts, or a folder with NAME_TRAIN.ts and NAME_TEST.ts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "multilabel" or self.per_step:
            got = f"kind is {self.kind!r} and per_step {self.per_step}"
            raise ValueError(f"UEA: {got}, expected 'classification' or 'regression', and False: files have one label")

    @property
    def shape(self) -> Shape:
        """The shape of the task, of a set of the archive that is not there its published one."""
        published = PUBLISHED.get(Path(self.path).name)
        if published is None or Path(self.path).exists():
            return super().shape
        classes, dimensions = published
        return Shape(classes, None, dimensions + self.time, self.head)

    def read(self) -> Sequences:
        """Returns the sequences of the file, or of both files."""
        root = Path(self.path)
        paths = [root] if not root.is_dir() else sorted(root.glob("*_TRAIN.ts")) + sorted(root.glob("*_TEST.ts"))
        if root.is_dir() and len(paths) != 2:
            got = ", ".join(path.name for path in paths) or "neither"
            raise ValueError(f"{root}: has {got:.200}, expected NAME_TRAIN.ts and NAME_TEST.ts")
        found = [read_ts(path) for path in paths]
        for path, one in zip(paths, found, strict=True):
            kind, of = ("regression", "@targetLabel") if one.header.targets else ("classification", "@classLabel")
            if kind != self.kind:
                raise ValueError(f"{path}: has {of}, for which kind is '{kind}', not '{self.kind}'")
            for what in ("dimensions", "classes"):
                got, first = getattr(one.header, what), getattr(found[0].header, what)
                if got != first and (what != "classes" or sorted(got) != sorted(first)):  # in any order
                    raise ValueError(f"{path}: has {what} {got}, expected {first} as {paths[0]}")
        values, labels = ([one for case in found for one in getattr(case, name)] for name in ("values", "labels"))
        if self.time:
            values = [np.column_stack([one, np.arange(len(one), dtype=np.float32) / len(one)]) for one in values]
        classes = found[0].header.classes
        if classes is not None:
            numbers: npt.NDArray[Any] = np.array([classes.index(label) for label in labels], np.int64)
        else:
            numbers = np.array([[_number(label)] for label in labels])
            if (wrong := np.flatnonzero(~np.isfinite(numbers[:, 0]))).size:
                raise ValueError(f"{root}: a target is {labels[wrong[0]]!r:.40}, expected a finite number")
        return Sequences(np.concatenate(values), np.array([len(one) for one in values]), numbers, classes=classes)
