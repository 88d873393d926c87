"""What needs pyarrow, statsmodels and pandas, which are too large for the other tests: ``make test-data`` runs this."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from nbclient import NotebookClient

import rotrnn
from rotrnn.estimators import SequenceClassifier, SequenceRegressor
from rotrnn.tasks import Series, Table

ROWS = {"id": ["b", "b", "a", "a"], "u": [1.0, 2, 3, 5], "v": [5, 6, 7, 8], "label": ["x", "x", "y", "y"]}
ALL: dict[str, Any] = {"val_fraction": 0.0, "test_fraction": 0.0, "scale": False}


def test_a_parquet_file_is_read_as_the_same_csv_file(tmp_path: Path) -> None:
    table = pyarrow.table(ROWS)
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    lines = [",".join(ROWS), *(",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True))]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for settings in ({"sequence": "id"}, {"features": ("u", "v")}):
        one, two = (
            Table(str(tmp_path / f"own.{kind}"), **settings, **ALL).load().train.batch(np.arange(2), np.float64)
            for kind in ("parquet", "csv")
        )
        np.testing.assert_array_equal(one.inputs, two.inputs)
        np.testing.assert_array_equal(one.labels, two.labels)
    series = Series(str(tmp_path / "own.parquet"), columns=("v", "u")).read()
    np.testing.assert_array_equal(series, [[5, 1], [6, 2], [7, 3], [8, 5]])


def test_errors_of_parquet_files_name_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    pyarrow.parquet.write_table(pyarrow.table({**ROWS, "u": [1.0, None, 3, 4]}), path)
    with pytest.raises(
        ValueError, match=r"own.parquet, row 2, column 'u': got an empty cell, expected a finite number"
    ):
        Table(str(path), sequence="id").load()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"own.parquet: is not a Parquet file, or is damaged"):
        Table(str(path)).load()


STAMPS = pyarrow.array(np.array(["2026-01-01T00:00:00.5", "2026-01-02", "2026-01-03", "2026-01-04"], "M8[ns]"))


@pytest.mark.parametrize(
    ("name", "cells", "message"),
    [
        ("label", [1.0, np.nan, 2.0, 2.0], ", row 2, column 'label': got nan, expected a text"),
        ("label", [b"x", b"x", b"\xff", b"y"], r", row 3, column 'label': got b'\xff', expected a text"),
        ("id", [1.0, np.nan, 2.0, 2.0], ", row 2, column 'id': got nan, expected a text"),
        ("v", [5.0, 6.0, np.nan, 8.0], ", row 3, column 'v': got nan, expected a text"),
        ("t", pyarrow.array([-(2**56)] * 4, pyarrow.timestamp("us")), ": column 't' of timestamp[us] has a cell that"),
        ("t", pyarrow.array([0] * 4, pyarrow.timestamp("us", "No/Zone")), ": column 't' of timestamp[us, tz=No/Zone] "),
    ],
)
def test_cells_of_a_parquet_file_that_are_refused(tmp_path: Path, name: str, cells: Any, message: str) -> None:
    path = tmp_path / "own.parquet"
    pyarrow.parquet.write_table(pyarrow.table({**ROWS, "t": STAMPS, name: cells}), path)
    with pytest.raises(ValueError, match=re.escape(f"own.parquet{message}")):
        Table(str(path), sequence="id", times=("t",), categories=("v",)).load()


def test_columns_of_a_parquet_file_with_one_name(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    columns = [pyarrow.array(one) for one in ([1.0, 2], [3.0, 4], ["x", "y"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["u", "u", "label"]), path)
    with pytest.raises(ValueError, match=r"own\.parquet: has two columns 'u', expected different names"):
        Table(str(path)).load()


def test_texts_of_a_parquet_file_that_are_bytes_and_times_of_nanoseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As programs write that do not say that bytes are text. Times of nanoseconds need no pandas, as pyarrow does."""
    path = tmp_path / "own.parquet"
    nanoseconds = pyarrow.array(STAMPS.to_numpy() + 1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for texts in (["x", "x", "\u00e9", "\u00e9"], [one.encode() for one in ("x", "x", "\u00e9", "\u00e9")]):
        pyarrow.parquet.write_table(pyarrow.table({**ROWS, "label": texts, "t": nanoseconds}), path)
        task = Table(str(path), sequence="id", features=("t",), times=("t",), **ALL).load()
        assert task.labels == ("x", "\u00e9")
        inputs, _, _ = task.train.batch(np.arange(2), np.float64)
        assert sorted(inputs.ravel().tolist()) == [0, 86399.5, 2 * 86400 - 0.5, 3 * 86400 - 0.5]


def test_frames_of_pandas_are_taken_as_arrays() -> None:
    rng = np.random.default_rng(0)
    x, y = pandas.DataFrame(rng.standard_normal((30, 5))), pandas.Series(np.arange(30) % 2)
    settings: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 2}
    for one in (SequenceClassifier(**settings), SequenceRegressor(**settings)):
        found = one.fit(x, y).predict(x)
        np.testing.assert_array_equal(found, one.fit(x.to_numpy(), y.to_numpy()).predict(x.to_numpy()))


def test_the_notebook_beats_the_seasonal_naive_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    path = Path(__file__).parents[2] / "examples" / "forecasts" / "co2.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert all(cell.outputs == [] for cell in notebook.cells if cell.cell_type == "code")
    ours = f"import rotrnn\nassert rotrnn.__file__ == {rotrnn.__file__!r}, rotrnn.__file__"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ours))
    NotebookClient(
        notebook, kernel_name="python3", timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


def test_what_a_small_parquet_file_may_hold_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    rows = 2**23
    for column, message in (
        (np.zeros(rows), r"would take \d+ bytes of memory, expected at most 268435456 for \d+ bytes of file"),
        (pyarrow.array([[1.0]]), r"column 'u' holds list<element: double>, expected a number or text a cell"),
        (pyarrow.array(["a" * 2**20] * 2**9).dictionary_encode(), r"would take 1073741824 bytes of memory, expected"),
    ):
        pyarrow.parquet.write_table(pyarrow.table({"u": column, "v": column}), path)
        with pytest.raises(ValueError, match=rf"own.parquet: {message}"):
            Table(str(path), target="v").read()
