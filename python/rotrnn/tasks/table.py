"""Your own tables as a task: CSV and Parquet files."""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.extras import needed
from rotrnn._support.files import check_bytes, naming
from rotrnn._support.platform import regular
from rotrnn._support.text import alike
from rotrnn._support.warn import warn
from rotrnn.tasks.columns import TRUTHS, Column, seconds, spellings
from rotrnn.tasks.own import FLOAT32_MOST, OwnData, Sequences, as_number, labels_of
from rotrnn.tasks.rules import Rules
from rotrnn.tasks.task import Index

INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of a column without a name: in CSV, and the names that pandas gives in CSV and Parquet."""
CELL = 32
"""Number of bytes of a number in a list."""
SHEETS = (".xls", ".xlsx", ".ods")
"""Types of cells that are not text but would be read as text."""
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".7z")
"""Types of files that hold a file in fewer bytes."""


@dataclass(frozen=True)
class Table(OwnData):
    """Sequences from a table with a header, CSV or Parquet (needs pyarrow); see `rotrnn.tasks.own.OwnData`.

    Without `sequence`, each row is a sequence with one feature: its cells in `features` are the steps. With it, each
    row is a step: rows with the same value in that column are a sequence, in the order of the file.

    As in pandas, a column whose cells are all True or False (or true, TRUE, ...) has the numbers 1 and 0, and in a
    column whose cells are all numbers, 1 and 1.0 are the same class, sequence or category.

    Parameters
    ----------
    target : tuple of str
        Column, or columns, with the labels. All rows of a sequence have the same label, unless `per_step`. For a
        regression, an empty cell is a target that does not count.
    sequence : str
        Column that says which sequence a row belongs to.
    features : tuple of str
        Columns with the features, no targets; if empty, all other columns with a name (a warning names the rest). A
        column that numbers the rows from 0 or 1, or equals a target or `sequence`, is then an error: name the features.
    categories : tuple of str
        Features whose cells are texts, with `sequence`: each value of the training rows becomes a feature, 1 in rows
        with this value.
    times : tuple of str
        Features whose cells are times (ISO 8601), with `sequence`: seconds since the first, and the phases of day, week
        and year that the training rows resolve.
    missing : str
        "mean": an empty cell of a feature of numbers becomes the mean of the training rows. If the training rows have
        empty cells, one more feature marks them. The default: an empty cell is an error. With `sequence`.
    delimiter : str
        Separator of cells of a CSV file: a comma if empty, for a file .tsv a tab.

    `rotrnn.tasks.columns.Column` has the rules.
    """

    target: tuple[str, ...] = ("label",)
    sequence: str = ""
    features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    missing: str = ""
    delimiter: str = ""

    files: ClassVar[str] = "a file .csv, .tsv or .parquet"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_step and not self.sequence:
            raise ValueError("Table: per_step is True without sequence, expected the column that says which is which")
        if not self.target or (self.kind == "classification" and len(self.target) != 1):
            raise ValueError(f"Table: target is {self.target}, expected the name of a column")
        for key in ("target", "features", "categories", "times"):
            check_distinct("Table", key, getattr(self, key))
        if both := [name for name in self.features if name in self.target]:
            raise ValueError(f"Table: features has {both[0]!r}, which is a target, expected other columns")
        if self.missing not in ("", "mean"):
            raise ValueError(f"Table: missing is {self.missing!r}, expected 'mean', or '' for an error")
        for key in ("categories", "times", "missing"):
            if getattr(self, key) and not self.sequence:
                raise ValueError(
                    f"Table: {key} is {getattr(self, key)!r} without sequence, expected rows that are steps"
                )
        if both := [name for name in self.times if name in self.categories]:
            raise ValueError(f"Table: times has {both[0]!r}, which is among categories, expected other columns")
        check_delimiter("Table", self.delimiter)

    def read(self) -> Sequences:
        """Returns the sequences of the file."""
        return self._sequences(read_table(self.path, self.delimiter))

    def read_by(self, rules: Rules) -> Sequences:
        """Returns as `read`, of the columns that the rules name, if `features` is empty or, with `sequence`, names the
        same in any order. ValueError without one of these columns, and, without `sequence`, if there are others."""
        table = read_table(self.path, self.delimiter)
        names = tuple(one.name for one in rules.columns) or rules.names if self.sequence else rules.step_names
        if self.sequence and names and sorted(self.features) == sorted(names):
            return replace(self, features=names)._sequences(table)
        if self.features or not names:
            return self._sequences(table)
        more = [one for one in table.names if one not in (*self.target, *names) and not INDEX.fullmatch(one)]
        if more and not self.sequence:
            expected = f"expected the steps {', '.join(names)} as in training, or features to name them"
            raise ValueError(f"{self.path}: has the column {more[0]!r}, {expected}")
        return replace(self, features=names)._sequences(table)

    def _sequences(self, table: Columns) -> Sequences:
        """Returns the sequences of a table."""
        keys = (*self.target, *((self.sequence,) if self.sequence else ()))
        for name in (*keys, *self.features, *self.categories, *self.times):
            table.column(name)  # report a wrong name before a column that is taken for a feature
        features = self.features or table.others(keys, "features")
        if not features:
            raise ValueError(f"{self.path}: has no named column besides {', '.join(keys)}, expected one with features")
        for key in ("categories", "times"):
            if other := [name for name in getattr(self, key) if name not in features]:
                raise ValueError(
                    f"{self.path}: {key} has {other[0]!r}, expected one of the features {', '.join(features)}"
                )
        columns, cells = zip(*(self._cells(table, name) for name in features), strict=True)
        values = np.column_stack(cells)
        n, T = values.shape
        if self.sequence:
            _, place, of_row = np.unique(table.texts(self.sequence), return_index=True, return_inverse=True)
            order = np.argsort(place[of_row], kind="stable")
            lengths = np.bincount(np.unique(place[of_row], return_inverse=True)[1])
            values, first = values[order], order[np.cumsum(lengths) - lengths]
        else:
            values, lengths = values.reshape(n * T, 1), np.full(n, T)
            order = first = np.arange(n)
        of_sequence = np.repeat(first, lengths) if not self.per_step and self.sequence else order
        if self.kind == "classification":
            given = table.texts(self.target[0])
        else:
            given = np.column_stack([table.numbers(name, missing=self.kind == "regression") for name in self.target])
        self._check_same(table, given, order, of_sequence)
        where = f"{self.path}: column {', '.join(map(repr, self.target))}"
        labels, classes = labels_of(self.kind, given[order if self.per_step else first], where)
        names: dict[str, Any] = {"target_names": None if self.kind == "classification" else self.target}
        if self.categories or self.times or self.missing:
            names["columns"] = columns
        else:
            names["names" if self.sequence else "step_names"] = features
        return Sequences(values, lengths.astype(np.int64), labels, self.per_step, classes, **names)

    def _cells(self, table: Columns, name: str) -> tuple[Column, npt.NDArray[np.float64]]:
        """Returns a column of features, and its cells as numbers."""
        if name in self.categories:
            values, codes = np.unique(table.texts(name), return_inverse=True)
            return Column(name, "category", tuple(values.tolist())), codes.astype(np.float64)
        if name in self.times:
            return Column(name, "time"), table.times(name)
        instead = ', or missing = "mean"' if self.sequence else ""
        return Column(name), table.numbers(name, missing=self.missing == "mean", instead=instead)

    def _check_same(self, table: Columns, given: npt.NDArray[Any], rows: Index, of: Index) -> None:
        """Checks that each of the rows has the labels of the row in `of`. ValueError, with the cell, if labels
        differ."""
        columns = given[:, None] if given.ndim == 1 else given
        mine, others = columns[rows], columns[of]
        wrong = mine != others
        if columns.dtype.kind == "f":
            wrong &= ~(np.isnan(mine) & np.isnan(others))
        for row, column in np.argwhere(wrong)[:1]:
            name, i, first = self.target[column], int(rows[row]), int(of[row])
            expected = f"{others[row, column].item()!r} as in {table.row} {table.rows[first]} of the same sequence"
            raise table.wrong(name, i, f"{expected}, or per_step=true")


@dataclass(frozen=True)
class Columns:
    """A table: for each column its cells, texts of a CSV file or an array, and for each row where it is."""

    path: str
    columns: dict[str, Sequence[Any]]
    rows: Sequence[int]
    row: str = "row"
    """The name of a row: "line" for a CSV file."""

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def column(self, name: str) -> Sequence[Any]:
        """Returns the cells of a column. ValueError if there is none."""
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise ValueError(f"{self.path}: has no column {name!r}, expected one of {known}{alike(name, self.columns)}")
        return self.columns[name]

    def others(self, keys: Sequence[str], setting: str) -> tuple[str, ...]:
        """Returns the columns besides `keys` that are data without being named in `setting`. Columns without a name,
        such as an index written with the table, are left out with a warning. ValueError if a column numbers the rows or
        equals one of `keys`: it may not be data, so the columns must be named. The only column of a table is always
        data."""
        if len(self.columns) == 1 and not keys:
            return tuple(self.columns)
        left = [name for name in self.names if name not in keys and INDEX.fullmatch(name)]
        kept = [name for name in self.names if name not in keys and name not in left]
        doubtful = {}
        for name in kept:
            same = next((key for key in keys if _equal(self.columns[name], self.columns[key])), None)
            if any(_equal(self.columns[name], range(first, first + len(self.rows))) for first in (0, 1)):
                doubtful[name] = f"column {name!r} numbers the rows"
            elif same is not None:
                doubtful[name] = f"column {name!r} is equal to {same!r}"
        if doubtful:
            some = ", ".join(f'"{name}"' for name in kept if name not in doubtful) or f'"{next(iter(doubtful))}"'
            expected = f"expected {setting} to name the columns that are data, such as {setting} = [{some}]"
            raise ValueError(f"{self.path}: {', and '.join(doubtful.values())}; {expected}")
        if left:
            what = f"{self.path}: leaves out column {', '.join(map(repr, left))}, which has no name of its own"
            warn(f"{what}; to read it, name it in {setting}")
        return tuple(kept)

    def texts(self, name: str, expected: str = "a text") -> npt.NDArray[np.str_]:
        """Returns a column as texts; if all are numbers, equal numbers have one text (`spellings`). ValueError, with
        the row and what is expected, if a cell is empty or no text (`_text`)."""
        given = [_text(cell) for cell in self.column(name)]
        if other := spellings(set(given)):
            given = [other.get(one, one) for one in given]
        check_bytes(self.path, 4 * len(given) * max(map(len, given), default=0))  # all cells are as wide as the longest
        texts = np.array(given, np.str_)
        if (empty := np.flatnonzero(texts == "")).size:
            raise self.wrong(name, int(empty[0]), expected)
        return texts

    def numbers(self, name: str, *, missing: bool = False, instead: str = "") -> npt.NDArray[np.float64]:
        """Returns a column as numbers, 1 and 0 for truth values if there are no other cells (`TRUTHS`); if `missing`,
        empty cells and NaN are NaN. ValueError, with the row, if a cell is not a finite number; the error of an empty
        cell or NaN ends in `instead`."""
        cells = _truths(self.column(name))
        numbers = np.empty(len(cells))
        for i, cell in enumerate(cells):
            try:
                numbers[i] = math.nan if cell is None or cell == "" else as_number(cell)
            except (TypeError, ValueError):
                mixed = ", or truth values in all rows" if _truth(cell) is not None else ""
                raise self.wrong(name, i, f"a number{mixed}") from None
        bad = ~(np.abs(numbers) <= FLOAT32_MOST)
        if missing:
            bad &= ~np.isnan(numbers)
        if (wrong := np.flatnonzero(bad)).size:
            i = int(wrong[0])
            expected = f"a finite number, of at most {FLOAT32_MOST:.2g} in size"
            raise self.wrong(name, i, expected + (instead if np.isnan(numbers[i]) else ""))
        return numbers

    def times(self, name: str) -> npt.NDArray[np.float64]:
        """Returns a column of times as seconds since 1970. ValueError, with the row, if a cell is none."""
        expected = "a time such as 2026-01-31 12:00"
        found = np.empty(len(self.column(name)))
        for i, cell in enumerate(self.texts(name, expected)):
            try:
                found[i] = seconds(str(cell))
            except (ValueError, OverflowError):
                raise self.wrong(name, i, expected) from None
        return found

    def wrong(self, name: str, i: int, expected: str) -> ValueError:
        """Returns the error of the cell of a column in row number i."""
        cell = self.column(name)[i]
        got = "an empty cell" if cell is None or cell == "" else repr(cell)
        where = f"{self.path}, {self.row} {self.rows[i]}, column {name!r}"
        return ValueError(f"{where}: got {got:.80}, expected {expected}")


def _equal(cells: Sequence[Any], others: Sequence[Any]) -> bool:
    """Returns whether two columns have the same cells, as numbers or as texts; False for fewer than three rows, where
    this may be chance."""
    return len(cells) > 2 and all(a == b or _number(a) == _number(b) for a, b in zip(cells, others, strict=True))


def _truths(cells: Sequence[Any]) -> Sequence[Any]:
    """Returns the texts of a column that has no other cells than truth values, besides empty ones, as truth values, and
    any other column as it is."""
    found = []
    for cell in cells:
        truth = _truth(cell)
        if truth is None and cell is not None and cell != "":
            return cells
        found.append(truth)
    return found


def _truth(cell: Any) -> bool | None:
    return TRUTHS.get(cell.strip()) if isinstance(cell, str) else None


def _text(cell: Any) -> str:
    """Returns a cell as a text without blanks around it; "" if it is missing, NaN, bytes that are not UTF-8, or has the
    character NUL, of which NumPy drops the last."""
    if cell is None or cell != cell or isinstance(cell, bytes):
        return ""
    return "" if "\0" in (text := str(cell).strip()) else text


def _number(cell: Any) -> float:
    """Returns a cell as a number, 1 and 0 for a truth value, NaN if it is neither."""
    truth = _truth(cell)
    try:
        return as_number(cell if truth is None else truth)
    except (TypeError, ValueError):
        return math.nan


def check_delimiter(call: str, delimiter: str) -> None:
    """Raises ValueError, which begins with `call`, unless a CSV file can have this delimiter, or it is empty."""
    if len(delimiter) > 1 or (delimiter and delimiter in '"\r\n\0'):
        tab = '; a tab is "\\t" in double quotes' if delimiter == "\\t" else ""
        raise ValueError(
            f"{call}: delimiter is {delimiter!r}, expected one character that is no quote, line break or NUL{tab}"
        )


def check_distinct(call: str, key: str, names: Sequence[str]) -> None:
    """Raises ValueError, which begins with `call`, if the setting `key` names a column twice."""
    if twice := _twice(names):
        raise ValueError(f"{call}: {key} has {twice[0]!r} twice, expected different columns")


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def read_table(path: str | os.PathLike[str], delimiter: str = "") -> Columns:
    """Reads a table with a header: a file .parquet (by pyarrow), or else CSV in UTF-8.

    Raises
    ------
    ValueError
        The file has no header or two columns of the same name, a row has another number of cells, or it is damaged;
        the error names file and row.
    ImportError
        It is a file .parquet, and pyarrow is not installed.
    """
    path = os.fspath(path)
    if (kind := Path(path).suffix.lower()) in (*SHEETS, *PACKED) or Path(path).is_dir():
        what, do = (
            (f"is a sheet ({kind})", "save it as CSV") if kind in SHEETS else (f"is packed ({kind})", "unpack it")
        )
        if Path(path).is_dir():
            what, do = "is a folder", "name the file"
        raise ValueError(f"{path}: {what}, expected {Table.files}: {do}")
    return _read_parquet(path) if kind == ".parquet" else _read_csv(path, delimiter)


def _read_csv(path: str, delimiter: str) -> Columns:
    by = delimiter or ("\t" if Path(path).suffix.lower() == ".tsv" else ",")
    rows: list[list[str]] = []
    lines: list[int] = []
    line = 1  # where the row begins
    try:
        with open(path, newline="", encoding="utf-8-sig", opener=regular) as file, naming(path):
            reader = csv.reader(file, delimiter=by, strict=True)
            head = [name.strip() for name in next(reader, [])]
            if any("\0" in name for name in head):
                got = "is not text in UTF-8 (it has the character NUL, as UTF-16 does)"
                raise ValueError(f"{path}: {got}: save it as UTF-8")
            line = reader.line_num + 1
            for row in reader:
                if not rows and (other := _delimiter(head, by.join(row), by)):
                    got = f"is one column {head[0]!r:.80}, separated by {by!r}"
                    raise ValueError(f"{path}: {got}, expected several, as with delimiter = {other!r}")
                if row:
                    rows.append(row)
                    lines.append(line)
                if row and len(row) != len(head):
                    expected = f"{len(head)} as the header, separated by {by!r}"
                    raise ValueError(f"{path}, line {line}: has {len(row)} cells, expected {expected}")
                line = reader.line_num + 1
    except csv.Error as error:
        why = f"{error}: is a quote not closed?" if "limit" in str(error) else str(error)
        expected = f"expected cells separated by {by!r}, or the setting delimiter"
        raise ValueError(f"{path}, line {line}: is not CSV ({why}), {expected}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not text in UTF-8 ({error}): save it as UTF-8") from error
    if not any(head):
        raise ValueError(f"{path}: is empty, expected a header with the names of columns")
    if twice := _twice(head):
        raise ValueError(f"{path}, line 1: has two columns {twice[0]!r}, expected different names")
    return Columns(path, {name: [row[i] for row in rows] for i, name in enumerate(head)}, lines, "line")


def _delimiter(head: list[str], row: str, by: str) -> str:
    """Returns the likely separator of the columns if it is not `by`: the header is a single name, and the separator
    occurs in it as often as in the first row. Empty if there is none."""
    counts = {other: head[0].count(other) for other in ";\t|," if other != by} if len(head) == 1 else {}
    return next((other for other, count in counts.items() if count and count == row.count(other)), "")


def _read_parquet(path: str) -> Columns:
    with needed(f"{path}: Parquet files need pyarrow", "'rotrnn[parquet]'"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        if twice := _twice(schema.names):
            raise ValueError(f"{path}: has two columns {twice[0]!r}, expected different names")
        for field in schema:
            if pyarrow.types.is_nested(field.type):
                raise ValueError(f"{path}: column {field.name!r} holds {field.type}, expected a number or text a cell")
        check_bytes(path, CELL * rows * len(schema))
        table = pyarrow.parquet.read_table(path, read_dictionary=schema.names)  # each text is stored once
        check_bytes(path, sum(map(_widest, table.columns)) * rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: is not a Parquet file, or is damaged ({error})") from error
    columns: dict[str, Sequence[Any]] = {name: _cells_of(path, name, table.column(name)) for name in table.column_names}
    return Columns(path, columns, range(1, table.num_rows + 1))


def _cells_of(path: str, name: str, column: Any) -> list[Any]:
    """Returns the cells of a column of pyarrow. Bytes become text if they are UTF-8, as some programs write texts, and
    times lose their nanoseconds, which only pandas reads."""
    import pyarrow

    if pyarrow.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
    try:
        cells: list[Any] = column.to_pylist()
    except (OverflowError, ValueError, LookupError) as error:  # a year beyond 9999, a time zone that is not known
        raise ValueError(f"{path}: column {name!r} of {column.type} has a cell that is not read ({error})") from error
    return [_decoded(cell) if isinstance(cell, bytes) else cell for cell in cells]


def _decoded(cell: bytes) -> str | bytes:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell


def _widest(column: Any) -> int:
    """Returns the number of bytes of the longest text of a column of pyarrow, 0 if it has none."""
    texts = (chunk.dictionary for chunk in column.chunks if hasattr(chunk, "dictionary"))
    return max((len(text.as_buffer()) for one in texts for text in one if text.is_valid), default=0)
