"""Tasks of your own data: arrays, tables, folders of recordings and images, and series, in small real files."""

from __future__ import annotations

import json
import re
import struct
import tracemalloc
import wave
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rotrnn import cli
from rotrnn.tasks import Arrays, Folder, Series, Table, Task, describe, save_arrays
from rotrnn.tasks.audio import read_recording
from rotrnn.tasks.lags import chosen
from rotrnn.tasks.rules import Scale
from rotrnn.tasks.series import Form
from rotrnn.training.recipe import load_recipe

ALL: dict[str, Any] = {"val_fraction": 0.0, "test_fraction": 0.0, "scale": False}
"""Everything in one split, as it is in the file."""


def examples(task: Task) -> list[tuple[Any, Any]]:
    """Returns the valid steps and the label of each training example, in the order of the file."""
    split: Any = task.train
    found = []
    for i in np.argsort(split.rows):
        inputs, labels, lengths = split.batch(np.array([i]), np.float64)
        assert lengths is None
        found.append((inputs[0], labels[0]))
    return found


def test_ragged_arrays_are_padded_scaled_and_divided(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = [5 + 3 * rng.standard_normal((3 + i % 4, 2)) for i in range(40)]
    y = [one.sum(1, keepdims=True) for one in x]
    save_arrays(tmp_path / "own.npz", x, y, per_step=True)
    task = Arrays(str(tmp_path / "own.npz"), kind="regression", per_step=True).load()
    splits: list[Any] = [task.train, task.val, task.test]
    assert [len(one) for one in splits] == [28, 4, 8]
    assert sorted(np.concatenate([one.rows for one in splits])) == list(range(40))
    steps = np.concatenate([x[i] for i in task.train.rows])  # type: ignore[attr-defined]
    targets = steps.sum(1)
    for split in splits:
        inputs, labels, lengths = split.batch(np.arange(len(split)), np.float64)
        assert lengths is not None
        for row, one, label, length in zip(split.rows, inputs, labels, lengths, strict=True):
            assert length == len(x[row])
            np.testing.assert_allclose(one[:length], (x[row] - steps.mean(0)) / steps.std(0), atol=1e-12)
            np.testing.assert_allclose(label[:length], (y[row] - targets.mean()) / targets.std(), atol=1e-12)
            assert not one[length:].any()
    assert task.head == "step_regressor"
    assert "1 targets per step" in describe(task)


def test_marks_are_left_as_they_are(tmp_path: Path) -> None:
    """Two of the values -1, 0 and 1, as the column of the adding problem. Targets are no marks."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 50, 7))
    x[..., 1] = rng.integers(0, 50, (20, 1)) == np.arange(50)
    x[..., 2] = np.sign(x[..., 2])
    x[..., 3] = rng.integers(-1, 2, (20, 50))  # three values
    x[..., 4] = 255 * (x[..., 4] > 0)
    x[..., 5] = 1  # one value
    x[..., 6] = -1 * (x[..., 6] > 0)
    y = (x[:, :, 0].sum(1) > 0) + 0.0
    save_arrays(tmp_path / "own.npz", x, y)
    split: Any = Arrays(str(tmp_path / "own.npz"), kind="regression", val_fraction=0.0, test_fraction=0.0).load().train
    left = (split.inputs.mean == 0) & (split.inputs.std == 1)
    assert left.tolist() == [False, True, True, False, False, False, True]
    assert split.targets.mean != 0
    inputs, _, _ = split.batch(np.arange(20), np.float64)
    np.testing.assert_array_equal(inputs[..., 1], x[split.rows][..., 1])
    missing = Scale.of(np.array([[0.0], [np.nan], [1.0]]), marks=True)
    assert missing == Scale.none(1)


def test_labels_of_every_kind(tmp_path: Path) -> None:
    path, x = str(tmp_path / "own.npz"), np.arange(24.0).reshape(4, 3, 2)
    bits = [[0, 1], [1, 1], [0, -1], [1, 0]]
    for kind, y, shape, labels in (
        ("classification", np.array(["b", "a", "b", "c"]), (3, "classifier"), [1, 0, 1, 2]),
        ("classification", np.char.encode(["b", "\u00e9", "b", "c"], "utf-8"), (3, "classifier"), [0, 2, 0, 1]),
        ("classification", np.array([7, -1, 7, 9]), (3, "classifier"), [1, 0, 1, 2]),
        ("multilabel", np.array(bits), (2, "multilabel"), bits),
        ("regression", np.array([0.5, np.nan, 2, 1]), (1, "regressor"), [[0.5], [np.nan], [2], [1]]),
    ):  # fmt: skip
        save_arrays(path, x, y)
        settings = Arrays(path, kind=kind, **ALL)
        task = settings.load()
        assert (task.n_classes, task.head) == shape
        assert settings.shape == (shape[0], None, 2, shape[1])
        assert task.val is task.test is task.train
        for (inputs, label), one, wanted in zip(examples(task), x, labels, strict=True):
            np.testing.assert_array_equal(inputs, one)
            np.testing.assert_array_equal(label, wanted)
        assert describe(task)


def test_numbers_are_not_taken_for_classes(tmp_path: Path) -> None:
    """Fractions of which most differ; a few doses, or texts, are classes."""
    path, y = str(tmp_path / "own.npz"), np.array([0.5, 1.25, 2.0, 3.5])
    save_arrays(path, np.zeros((4, 3)), y)
    said = r"has 4 different numbers in 4 labels, 0\.5 among them, expected classes; for numbers, kind = 'regression'"
    with pytest.raises(ValueError, match=r"own\.npz: y " + said):
        Arrays(path, **ALL).load()
    rows = tmp_path / "rows.csv"
    rows.write_text("a,label\n" + "".join(f"1,{one}\n" for one in y), encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.csv: column 'label' " + said):
        Table(str(rows), **ALL).load()
    save_arrays(path, np.zeros((4, 3)), np.array([0.5, 1.5, 0.5, 1.5]))
    assert Arrays(path, **ALL).load().labels == ("0.5", "1.5")
    for texts in (("0.5", "1.5", "none"), ("eng", "nan")):  # among others nan may be a name, of a language
        rows.write_text("a,label\n" + "".join(f"1,{one}\n" for one in texts), encoding="utf-8")
        assert Table(str(rows), **ALL).load().labels == texts
    for missing in ("nan", "-inf"):
        labels = ["0", "1", missing, "1", "0", "0"]
        rows.write_text("a,label\n" + "".join(f"1,{one}\n" for one in labels), encoding="utf-8")
        np.savez(path, x=np.zeros((6, 3)), y=np.array(labels))
        for task in (Table(str(rows), **ALL), Arrays(path, **ALL)):
            with pytest.raises(ValueError, match=f" has {missing}, expected a class for each label$"):
                task.load()


LONG = """id,time,price,volume,label
b,1,10,100,up
b,2,11,90,up
a,1,5,20,down
c,1,1,1,up
a,2,4,30,down
c,2,2,1.5,up
c,3,3,2,up
"""


def test_a_table_with_a_row_for_each_step(tmp_path: Path) -> None:
    """Sequences in the order of their first rows, rows of one that are not together included."""
    path = tmp_path / "long.csv"
    path.write_text("\ufeff" + LONG, "utf-8")
    task = Table(str(path), sequence="id", features=("price", "volume"), **ALL).load()
    assert task.labels == ("down", "up")
    found = examples(task)
    assert [x.tolist() for x, _ in found] == [[[10, 100], [11, 90]], [[5, 20], [4, 30]], [[1, 1], [2, 1.5], [3, 2]]]
    assert [int(y) for _, y in found] == [1, 0, 1]
    per_step = Table(
        str(path), sequence="id", features=("price",), target=("volume",), kind="regression", per_step=True, **ALL
    ).load()
    assert [y.ravel().tolist() for _, y in examples(per_step)] == [[100, 90], [20, 30], [1, 1.5, 2]]
    semicolons = tmp_path / "long.tsv"
    semicolons.write_text(LONG.replace(",", "\t"), encoding="utf-8")
    again = Table(str(semicolons), sequence="id", features=("price", "volume"), **ALL).load()
    for (x, y), (u, v) in zip(found, examples(again), strict=True):
        np.testing.assert_array_equal(x, u)
        assert y == v


def test_a_table_with_a_row_for_each_sequence(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("t0;t1;t2;label\n1;2;3;x\n4;5;6;y\n", encoding="utf-8")
    found = examples(Table(str(path), delimiter=";", **ALL).load())
    assert [(x.ravel().tolist(), int(y)) for x, y in found] == [([1, 2, 3], 0), ([4, 5, 6], 1)]
    numbers = tmp_path / "targets.csv"
    numbers.write_text("t0,t1,u,v\n1,2,3,\n4,5,6,7\n", encoding="utf-8")
    task = Table(str(numbers), target=("u", "v"), kind="regression", **ALL).load()
    np.testing.assert_array_equal([y for _, y in examples(task)], [[3, np.nan], [6, 7]])


@pytest.mark.parametrize(
    ("cells", "missing", "values"),
    [
        (["True", "False", "True"], "", [1, 0, 1]),
        (["false", "true", " true"], "", [0, 1, 1]),
        (["TRUE", "false", "True"], "", [1, 0, 1]),
        (["True", "", "True"], "mean", [1, 1, 1]),
    ],
)
def test_truth_values_are_the_numbers_1_and_0(tmp_path: Path, cells: list[str], missing: str, values: Any) -> None:
    """As pandas reads them, for a column that has no other cells; as features, targets, bits and series."""
    path = tmp_path / "own.csv"
    rows = [f"k,{cell},{3 * i},u\n" for i, cell in enumerate(cells)]
    path.write_text("k,a,b,label\n" + "".join(rows), encoding="utf-8")
    data = Table(str(path), sequence="k", features=("a", "b"), missing=missing, **ALL).load().train.data  # type: ignore[attr-defined]
    assert data.values[:, 0].tolist() == values
    if not missing:
        for kind in ("regression", "multilabel"):
            table = Table(str(path), sequence="k", features=("b",), target=("a",), kind=kind, per_step=True)
            assert table.read().labels.ravel().tolist() == values
        assert Series(str(path), columns=("b", "a")).read()[:, 1].tolist() == values


def test_truth_values_of_arrays_are_numbers_of_a_series(tmp_path: Path) -> None:
    off = np.arange(60)[:, None] % 7 == 0
    for name, covariates in (("bool", off), ("float", off.astype(float))):
        np.savez(tmp_path / f"{name}.npz", y=np.sin(np.arange(60)), covariates=covariates)
    splits: list[Any] = [Series(str(tmp_path / f"{name}.npz")).load().train for name in ("bool", "float")]
    np.testing.assert_array_equal(splits[0].read, splits[1].read)


@pytest.mark.parametrize(
    ("cells", "classes", "labels"),
    [
        (["1", "1.0", "2", "1.00"], ("1", "2"), [0, 0, 1, 0]),
        (["1.0", "2.0", "+2", "-1"], ("+2", "-1", "1.0"), [2, 0, 0, 1]),
        (["0.5", ".5", "5e-1", "1"], (".5", "1"), [0, 0, 0, 1]),
        (["True", "true", "FALSE", "False"], ("FALSE", "True"), [1, 1, 0, 0]),
        (["1", "1.0", "2", "1.0a"], ("1", "1.0", "1.0a", "2"), [0, 1, 3, 2]),  # versions, say
        (["007", "7", "7.0", "1"], ("007", "1", "7", "7.0"), [0, 2, 3, 1]),
        (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993"), [1, 0]),
    ],
)  # fmt: skip
def test_equal_numbers_are_one_class_and_one_sequence(
    tmp_path: Path, cells: list[str], classes: tuple[str, ...], labels: list[int]
) -> None:
    """If all cells of the column are numbers; with the shortest of their texts."""
    path = tmp_path / "own.csv"
    path.write_text("a,b,label\n" + "".join(f"{3 * i},{i},{one}\n" for i, one in enumerate(cells)), encoding="utf-8")
    task = Table(str(path), features=("a",), **ALL).load()
    assert task.labels == classes
    assert [int(y) for _, y in examples(task)] == labels
    data = Table(str(path), sequence="label", features=("a",), target=("b",), per_step=True).read()
    assert data.lengths.tolist() == [labels.count(one) for one in dict.fromkeys(labels)]


@pytest.mark.parametrize(
    ("kind", "per_step", "y", "message"),
    [
        ("regression", False, [[1, np.nan]] * 10, "target 1 has no number in the 7 sequences for training"),
        ("regression", True, np.full((10, 3), np.nan), "target 0 has no number in the 7 sequences"),
        ("multilabel", False, [[-1, 0, 1]] * 10, "target 0 has no label in the 7 sequences for training, expected one"),
    ],
)  # fmt: skip
def test_a_target_without_a_number_for_training_is_refused(
    tmp_path: Path, kind: str, per_step: bool, y: Any, message: str
) -> None:
    save_arrays(tmp_path / "own.npz", np.zeros((10, 3)), np.array(y), per_step=per_step)
    with pytest.raises(ValueError, match=rf"own.npz: {message}"):
        Arrays(str(tmp_path / "own.npz"), kind=kind, per_step=per_step).load()
    (tmp_path / "own.csv").write_text("a,u,v\n" + "".join(f"{3 * i},{i},\n" for i in range(10)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"own.csv: target 'v' has no number in the 7 sequences for training"):
        Table(str(tmp_path / "own.csv"), target=("u", "v"), kind="regression").load()


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])  # of CSV, and what pandas calls it
def test_a_column_that_nobody_named_is_no_data(tmp_path: Path, name: str) -> None:
    """An index that was written with the table would be learnt by heart. Other tables have it, too, or not."""
    path, cells = tmp_path / "own.csv", ["5", "1", "2", "3"]
    rows = zip(cells, ["2", "4", "3", "1"], ["5", "5", "7", "7"], strict=True)
    path.write_text("\n".join(",".join(row) for row in [(name, "a", "label"), *rows]), encoding="utf-8")
    message = f"own.csv: leaves out column '{name}', which has no name of its own; to read it, name it in "
    with pytest.warns(UserWarning, match=f"{message}features"):
        assert Table(str(path)).read().values.ravel().tolist() == [2, 4, 3, 1]
    assert Table(str(path), features=(name, "a")).read().values.reshape(4, 2)[:, 0].tolist() == [5, 1, 2, 3]
    with pytest.warns(UserWarning, match=f"{message}columns"):
        assert Series(str(path)).read().T.tolist() == [[2, 4, 3, 1], [5, 5, 7, 7]]
    assert Series(str(path), columns=("a", name)).read()[:, 1].tolist() == [5, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "cells", "why"),
    [
        ("id", ["1", "2", "3", "4"], "numbers the rows"),
        ("row", ["0", "1.0", "2", "3"], "numbers the rows"),
        ("copy", ["5", "5.0", "7", "7"], "is equal to 'label'"),
    ],
)
def test_a_column_that_may_not_be_data_has_to_be_named(tmp_path: Path, name: str, cells: list[str], why: str) -> None:
    """Left out by its numbers, it would be read from the next file, whose rows have others."""
    path = tmp_path / "own.csv"
    rows = zip(cells, ["2", "4", "3", "1"], ["5", "5", "7", "7"], strict=True)
    path.write_text("\n".join(",".join(row) for row in [(name, "a", "label"), *rows]), encoding="utf-8")
    message = f"own.csv: column '{name}' {why}; expected features to name the columns that are data, such as "
    with pytest.raises(ValueError, match=rf'{message}features = \["a"\]'):
        Table(str(path), kind="regression").read()
    for features in (("a",), (name, "a")):
        assert Table(str(path), features=features).read().values.size == 4 * len(features)
    if name != "copy":
        with pytest.raises(ValueError, match=rf'column \'{name}\' {why}; .* columns = \["a", "label"\]'):
            Series(str(path)).read()


def test_a_table_of_such_columns_alone(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(",label\n0,x\n1,y\n2,y\n", encoding="utf-8")
    with (
        pytest.warns(UserWarning, match="leaves out"),
        pytest.raises(ValueError, match="has no named column besides label, expected one with"),
    ):
        Table(str(path)).read()
    path.write_text(",t\n0,1\n1,2\n2,3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r'column \'t\' numbers the rows; .* such as columns = \["t"\]'):
        Series(str(path)).read()
    path.write_text("t\n1\n2\n3\n", encoding="utf-8")
    assert Series(str(path)).read().ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a,label\n1,x\n1e,y\n", {}, "bad.csv, line 3, column 'a': got '1e', expected a number"),
        (
            "a,label\n3,x\nTrue,y\n",
            {},
            "line 3, column 'a': got 'True', expected a number, or truth values in all rows",
        ),
        ("a,label\n1,x\n1_0,y\n", {}, "bad.csv, line 3, column 'a': got '1_0', expected a number"),
        ("a,label\n1,x\n,y\n", {}, "bad.csv, line 3, column 'a': got an empty cell, expected a finite number"),
        (
            "a,label\n1e39,x\n",
            {},
            "bad.csv, line 2, column 'a': got '1e39', expected a finite number, of at most 3.4e+38",
        ),
        (
            "k,a,label\nu,1,x\nv,2,y\nu,5,y\n",
            {"sequence": "k"},
            "line 4, column 'label': got 'y', expected 'x' as in line 2 of the same sequence, or per_step=true",
        ),
        (
            "k,a,label\nu,1,1\nu,2,\n",
            {"sequence": "k", "kind": "regression"},
            "bad.csv, line 3, column 'label': got an empty cell, expected 1.0 as in line 2 of the same sequence",
        ),
        ("a,label\n\n1,x\ninf,y\n", {}, "bad.csv, line 4, column 'a': got 'inf', expected a finite number"),
        ("a,label\n1,x\n2,\n", {}, "bad.csv, line 3, column 'label': got an empty cell, expected a text"),
        (
            "a;label\n1,5;x\n2,5;y\n",
            {},
            "bad.csv: is one column 'a;label', separated by ',', expected several, as with delimiter = ';'",
        ),
        ("a,label\n1,x\n2\n", {}, "bad.csv, line 3: has 1 cells, expected 2 as the header, separated by ','"),
        ("a,lable\n1,x\n", {}, "bad.csv: has no column 'label', expected one of a, lable; did you mean lable?"),
        ("a,a,label\n1,1,x\n", {}, "bad.csv, line 1: has two columns 'a', expected different names"),
        ("a,label\n1,x\n2,x\0\n", {}, r"bad.csv, line 3, column 'label': got 'x\x00', expected a text"),
        (
            "a\0,\0label\0\n\0",
            {},
            "bad.csv: is not text in UTF-8 (it has the character NUL, as UTF-16 does): save it as",
        ),
        ("", {}, "bad.csv: is empty, expected a header with the names of columns"),
        ("label\nx\n", {}, "bad.csv: has no named column besides label, expected one"),
        ("a,label\n", {}, "bad.csv: has no sequence"),
        ('a,label\n"1"2,x\n', {}, "bad.csv, line 2: is not CSV"),
        ('"a";"label"\n1;x\n', {}, "line 1: is not CSV (',' expected after '\"'), expected cells separated by ',', or"),
        ('a,label\n1,x\n\n"2,x\n3,y\n', {}, "bad.csv, line 4: is not CSV (unexpected end of data)"),
        (
            'a,label\n1,x\n"2' + 9 * 2**14 * "\n",
            {},
            "line 3: is not CSV (field larger than field limit (131072): is a quote",
        ),
        ('a,label\n1,"x\ny"\ninf,z\n', {}, "bad.csv, line 4, column 'a': got 'inf'"),
        ('a,label\nz,"x\ny"\n1,z\n', {}, "bad.csv, line 2, column 'a': got 'z'"),
        ("a,label\n1,2\n", {"kind": "multilabel"}, "bad.csv: column 'label' has 2.0, expected 0 and 1"),
        ("a,label\n1,x\n2,y\n", {"test_fraction": 0.6, "val_fraction": 0.3}, "has 2 sequences, expected more than 1"),
    ],
)
def test_errors_name_file_row_and_column(tmp_path: Path, text: str, settings: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        Table(str(path), **{**ALL, **settings}).load()
    assert str(path) in str(error.value)


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    kinds: tuple[Any, ...] = (Arrays, Table, Folder, Series)
    for kind in kinds:
        with pytest.raises(ValueError, match=f"{kind.__name__}: path is '', expected a f"):
            kind().load()
        with pytest.raises(FileNotFoundError, match=f"{kind.__name__}: path is .*none, which does not exist"):
            kind(str(tmp_path / "none")).load()
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 no")
    for kind in (Arrays, Series):
        with pytest.raises(ValueError, match=r"bad.npz: is not a file .npz, or is damaged"):
            kind(str(tmp_path / "bad.npz")).load()
    np.savez(tmp_path / "objects.npz", x=np.array([[{}]]), y=np.zeros(1))
    with pytest.raises(ValueError, match=r"objects.npz: is not a file .npz, or is damaged"):
        Arrays(str(tmp_path / "objects.npz")).load()
    x = np.zeros((3, 4, 2))
    x[1, 2, 1] = np.nan
    np.savez(tmp_path / "nan.npz", x=x, y=np.arange(3))
    with pytest.raises(ValueError, match=r"nan.npz: x, sequence 1, step 2, feature 1: got nan, expected a finite num"):
        Arrays(str(tmp_path / "nan.npz")).load()
    (tmp_path / "latin.csv").write_bytes(b"a,label\n1,\xe9\n")
    with pytest.raises(ValueError, match=r"latin.csv: is not text in UTF-8 .*: save it as UTF-8"):
        Table(str(tmp_path / "latin.csv")).load()
    for name, what, do in (
        (".", "is a folder", "name the file"),
        ("sheet.xlsx", "is a sheet (.xlsx)", "save it as CSV"),
        ("a.csv.GZ", "is packed (.gz)", "unpack it"),
    ):
        if name != ".":
            (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(ValueError, match=re.escape(f"{what}, expected a file .csv, .tsv or .parquet: {do}")):
            Table(str(tmp_path / name)).load()
    for arrays, message in (
        ({"y": np.array(3)}, "y has shape (), expected 3, one for each sequence"),
        ({"y": np.arange(3), "lengths": np.array(["a"])}, "lengths of shape (1,) with dtype <U1, expected (steps, F)"),
        ({"y": np.array([0, np.nan, 0])}, "y has nan, expected a class for each label"),
    ):
        np.savez(tmp_path / "bad.npz", x=np.zeros((3, 4)), **arrays)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"bad.npz: .*{re.escape(message)}"):
            Arrays(str(tmp_path / "bad.npz")).load()


X = np.zeros((3, 4))
RAGGED = [X[0], X[1, :2]]


@pytest.mark.parametrize(
    ("x", "y", "per_step", "message"),
    [
        # what only a pickle holds
        (np.array([1, "a", None], object), [0, 1, 2], False, "x[0] is an int, expected (time,) or (time, features)"),
        (X.astype(object), [0, 1, 2], False, "x has dtype object, expected numbers"),
        (X, np.array(["a", None, 1], object), False, "y has dtype object, expected numbers or texts (y.astype(str))"),
        (RAGGED, [np.array([None] * 4), [0, 1]], True, "y has dtype object, expected numbers or texts"),
        (X, np.zeros(3, [("a", object)]), False, "y has dtype [('a', 'O')], expected numbers or texts"),
        # what the task refuses
        (np.where(np.arange(4) == 2, np.nan, X), [0, 1, 2], False, "x, sequence 0, step 2, feature 0: got nan"),
        (X * 1j, [0, 1, 2], False, "x has dtype complex128, expected numbers"),
        (X, [0, 1j, 2], False, "y has dtype complex128, expected numbers or texts"),
        (np.zeros((3, 4, 2, 2)), [0, 1, 2], False, "x has shape (3, 4, 2, 2), expected (n, T) or (n, T, F)"),
        (X[:, :0], [0, 1, 2], False, "sequence 0 has no steps"),
        ([X[0], []], [0, 1], False, "sequence 1 has no steps"),
        (np.zeros((3, 4, 0)), [0, 1, 2], False, "has no features"),
        (X, np.zeros((3, 0)), False, "has no labels"),
        (X[:0], [], False, "has no sequence"),
        ([], [], False, "x is empty, expected at least one sequence"),
        (X + 1e300, [0, 1, 2], False, "a feature has the number 1e+300, expected at most 3.4e+38 in size"),
        (X, [0, np.inf, 2], False, "y has an infinite number, expected finite ones, or NaN where there is no target"),
        (X, [["a", "b"]] * 3, False, "y has labels of shape (2,), expected one class for each"),
        (X, np.zeros(2), False, "y has 2 rows, expected 3, one for each sequence"),
        (X, np.zeros((3, 9)), True, "y has shape (3, 9), expected (n=3, T=4, ...), a label for each step"),
        # what is no array
        (X, None, False, "y is a NoneType, expected an array or a list"),
        (3, [1], False, "x is an int, expected an array or a list"),
        ("ab", [0, 1], False, "x is a str, expected an array or a list"),
        (np.array(3), [1], False, "x has shape (), expected a row for each sequence"),
        (X[:2], [[1], [1, 2]], True, "y is a list that is no array: "),
        ([[1, [2]], [1]], [0, 1], False, "x[0] is a list that is no array: "),
        ([X, X[:, :1]], [0, 1], False, "x[1] has 1 features per step, expected 4 as x[0]"),
        (RAGGED, [0, 1], True, "y[0] has shape (), expected 4, one for each step"),
        (RAGGED, [np.zeros(4)], True, "y has 1 rows, expected 2, one for each sequence"),
        (RAGGED, [np.zeros(4), np.zeros(3)], True, "y[1] has 3 labels, expected 2, one for each step"),
        (RAGGED, [np.zeros(4), np.zeros((2, 1))], True, "y[1] has shape (2, 1), expected (2,) as y[0]"),
    ],
)
def test_arrays_that_are_not_saved(tmp_path: Path, x: Any, y: Any, per_step: bool, message: str) -> None:
    """Nothing is written, and nothing that was there is lost."""
    path = tmp_path / "own.npz"
    path.write_text("before", encoding="utf-8")
    with pytest.raises((TypeError, ValueError)) as error:
        save_arrays(path, x, y, per_step=per_step)
    assert str(error.value).startswith(f"save_arrays: {message}")
    assert path.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_array_of_arrays_is_a_list_of_them(tmp_path: Path) -> None:
    x = np.empty(2, object)
    x[:] = RAGGED
    save_arrays(tmp_path / "own.npz", x, ["a", "b"])
    assert [len(one) for one, _ in examples(Arrays(str(tmp_path / "own.npz"), **ALL).load())] == [4, 2]


@pytest.mark.parametrize("kind", [Table, Series])
@pytest.mark.parametrize("delimiter", [";;", '"', "\r", "\n", "\0", r"\t"])
def test_delimiters_that_no_file_has(kind: Any, delimiter: str) -> None:
    tab = '; a tab is "\\t" in double quotes' if delimiter == r"\t" else ""
    expected = f"expected one character that is no quote, line break or NUL{tab}"
    with pytest.raises(ValueError, match=re.escape(f"delimiter is {delimiter!r}, {expected}") + "$") as error:
        kind(delimiter=delimiter)
    assert str(error.value).startswith(kind.__name__)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Table, {"features": ("a", "v"), "target": ("u", "v")}, "features has 'v', which is a target, expected other"),
        (Table, {"features": ("a", "b", "a")}, "features has 'a' twice, expected different columns"),
        (Table, {"target": ("u", "u")}, "target has 'u' twice, expected different columns"),
        (Table, {"sequence": "k", "times": ("t", "t")}, "times has 't' twice, expected different columns"),
        (Series, {"columns": ("a", "a")}, "columns has 'a' twice, expected different columns"),
        (Series, {"covariates": ("a", "a")}, "covariates has 'a' twice, expected different columns"),
        (Series, {"columns": ("a", "b"), "covariates": ("b",)}, "covariates has 'b', which is among columns, expected"),
    ],
)
def test_a_column_has_one_part(kind: Any, settings: dict[str, Any], message: str) -> None:
    """A variable that was a covariate, too, had the effect 1 on itself: rounding errors were left to forecast."""
    more = {"kind": "regression"} if kind is Table else {}
    with pytest.raises(ValueError, match=f"^{kind.__name__}: {re.escape(message)}"):
        kind(**settings, **more)


def write_wav(path: Path, samples: Any, width: int, rate: int = 8000) -> None:
    """Writes samples (n, channels) from -1 to 1 as PCM of so many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.round(samples * 2 ** (8 * width - 1)).astype(np.int64) + (128 if width == 1 else 0)
    content = whole.astype("<i8").view(np.uint8).reshape(*whole.shape, 8)[..., :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)


def test_a_folder_of_recordings(tmp_path: Path) -> None:
    """Samples that 8 bits can hold come back as they were, whatever the width."""
    rng = np.random.default_rng(0)
    sounds = [rng.integers(-128, 128, (5 + i, 2)) / 128 for i in range(4)]
    for i, (name, width) in enumerate((("low/a.wav", 1), ("low/b.WAV", 2), ("high/c.wav", 3), ("high/d.wav", 4))):
        write_wav(tmp_path / "sounds" / name, sounds[i], width)
    (tmp_path / "sounds" / "low" / "notes.txt").write_text("not a recording", encoding="utf-8")
    (tmp_path / "sounds" / "low" / "._a.wav").write_bytes(b"as macOS leaves it")
    with pytest.warns(UserWarning, match=r"leaves out low/notes.txt, expected .wav files or images"):
        task = Folder(str(tmp_path / "sounds"), **ALL).load()
    (tmp_path / "sounds" / "low" / "notes.txt").unlink()
    assert task.labels == ("high", "low")
    for (x, y), sound, label in zip(examples(task), [*sounds[2:], *sounds[:2]], [0, 0, 1, 1], strict=True):
        np.testing.assert_array_equal(x, sound)
        assert y == label
    write_wav(tmp_path / "sounds" / "low" / "e.wav", sounds[0], 2, 16000)
    with pytest.raises(ValueError, match=r"low/e.wav: has 16000 Hz, expected 8000 as the first file"):
        Folder(str(tmp_path / "sounds")).load()
    write_wav(tmp_path / "sounds" / "low" / "e.wav", sounds[0][:, :1], 2)
    with pytest.raises(ValueError, match=r"low/e.wav: has 1 channel\(s\), expected 2 as .*high/c.wav"):
        Folder(str(tmp_path / "sounds")).load()
    whole = (tmp_path / "sounds" / "high" / "d.wav").read_bytes()
    (tmp_path / "sounds" / "low" / "e.wav").write_bytes(whole[:-3])
    with pytest.raises(ValueError, match=r"low/e.wav: is truncated"):
        Folder(str(tmp_path / "sounds")).load()
    assert read_recording(tmp_path / "sounds" / "high" / "d.wav", 2).samples.shape == (2, 2)


def test_recordings_of_another_rate_are_not_read_by_rules(tmp_path: Path) -> None:
    """They were read as if they had the rate of training. Arrays have no rate, and nor have rules from before."""
    for rate in (8000, 16000):
        for name in ("low/a.wav", "high/b.wav"):
            write_wav(tmp_path / str(rate) / name, np.full((5, 1), 0.5), 2, rate)
    low, high = (Folder(str(tmp_path / rate), **ALL) for rate in ("8000", "16000"))
    rules = low.load().rules
    assert rules is not None
    assert low.load(rules).rules is rules
    with pytest.raises(ValueError, match="16000: has recordings of 16000 Hz, expected 8000 as in training"):
        high.load(rules)
    high.write(tmp_path)
    assert Arrays(str(tmp_path / "folder.npz"), **ALL).load(rules).rules is rules
    assert high.load(replace(rules, rate=0)).labels == ("high", "low")


@pytest.mark.parametrize("width", [2, 3])
def test_an_extensible_recording_is_read_by_its_own_format(tmp_path: Path, width: int) -> None:
    """As ffmpeg and Audacity write 24 bits, and more than two channels."""
    samples = np.random.default_rng(0).integers(-128, 128, (5, 3)) / 128
    write_wav(tmp_path / "plain.wav", samples, width)
    whole = (tmp_path / "plain.wav").read_bytes()
    more = struct.pack("<HHIH", 22, 8 * width, 7, 1) + bytes.fromhex("000000001000800000aa00389b71")
    chunk = b"fmt " + struct.pack("<IH", 40, 65534) + whole[22:36] + more
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # chunks of odd sizes are padded
    content = b"WAVE" + odd + chunk + whole[36:]
    wide = tmp_path / "wide.wav"
    wide.write_bytes(b"RIFF" + struct.pack("<I", len(content)) + content)
    assert read_recording(wide) == read_recording(tmp_path / "plain.wav")
    np.testing.assert_array_equal(read_recording(wide).samples, samples)
    wide.write_bytes(wide.read_bytes().replace(more, more[:8] + b"\3" + more[9:]))
    with pytest.raises(ValueError, match=r"wide.wav: has samples in the format 3 \(floating-point numbers\)"):
        read_recording(wide)
    wide.write_bytes(wide.read_bytes().replace(more[10:], more[10:][::-1]))
    with pytest.raises(ValueError, match=r"wide.wav: has samples in the format 65534 \(extensible\)"):
        read_recording(wide)


@pytest.mark.parametrize(("number", "name"), [(3, "floating-point numbers"), (7, "mu-law"), (6, "A-law"), (49, "")])
def test_a_recording_in_another_format_is_named(tmp_path: Path, number: int, name: str) -> None:
    write_wav(tmp_path / "sound.wav", np.zeros((4, 1)), 4)
    whole = bytearray((tmp_path / "sound.wav").read_bytes())
    whole[20:22] = struct.pack("<H", number)
    (tmp_path / "sound.wav").write_bytes(whole)
    got = f"samples in the format {number}" + (f" ({name})" if name else "")
    message = f"sound.wav: has {got}, expected integers (PCM) of 8, 16, 24 or 32 bits"
    with pytest.raises(ValueError, match=re.escape(message)):
        read_recording(tmp_path / "sound.wav")


def test_a_recording_takes_no_memory_that_its_header_alone_asks_for(tmp_path: Path) -> None:
    write_wav(tmp_path / "sound.wav", np.zeros((4, 1)), 2)
    whole = bytearray((tmp_path / "sound.wav").read_bytes())
    at = whole.index(b"data") + 4
    whole[4:8] = whole[at : at + 4] = struct.pack("<I", 0xE1E0E5E0)  # 3.8 GB
    (tmp_path / "sound.wav").write_bytes(whole)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"sound.wav: is truncated, with 8 bytes of audio, expected \d+"):
            read_recording(tmp_path / "sound.wav")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_folder_that_is_no_class(tmp_path: Path) -> None:
    """It would be a class without an example."""
    with pytest.raises(ValueError, match=r"has no folder, expected a folder with a folder of .wav files or images"):
        Folder(str(tmp_path)).load()
    write_wav(tmp_path / "low" / "a.wav", np.zeros((4, 1)), 2)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"none: has nothing, expected files of one class; move what is no class else"):
        Folder(str(tmp_path)).load()
    (tmp_path / "none" / "deeper").mkdir()
    for i in range(4):
        (tmp_path / "none" / f"{i}.mp3").touch()
    with pytest.raises(
        ValueError, match=r"none: has 0.mp3, 1.mp3, 2.mp3 and 2 more but no .wav file or image, expected"
    ):
        Folder(str(tmp_path)).load()


def test_a_folder_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (3, 4 + i, 3), np.uint8) for i in range(3)]
    for name, picture in zip(("cat/1.png", "cat/2.webp", "dog/1.png"), pictures, strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / name, lossless=True)
    task = Folder(str(tmp_path), **ALL).load()
    for (x, y), picture, label in zip(examples(task), pictures, [0, 0, 1], strict=True):
        np.testing.assert_allclose(x, picture.reshape(-1, 3) / 255, rtol=1e-7)  # float32
        assert y == label
    grey = examples(Folder(str(tmp_path), grey=True, **ALL).load())
    assert [x.shape for x, _ in grey] == [(12, 1), (15, 1), (18, 1)]
    (tmp_path / "dog" / "2.png").write_bytes((tmp_path / "dog" / "1.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"dog/2.png: is not an image, or is damaged"):
        Folder(str(tmp_path)).load()
    with pytest.raises(ValueError, match="Folder: kind is 'regression' and per_step False, expected 'classification'"):
        Folder(str(tmp_path), kind="regression")


@pytest.mark.parametrize("lengths", [[2**63 - 1, 2**63 - 1, 10], [2**62, 2**62, 2**63 + 8], [-(2**62), 2**62, 8]])
def test_lengths_whose_sum_wraps(tmp_path: Path, lengths: list[int]) -> None:
    path = tmp_path / "wraps.npz"
    dtype = np.uint64 if max(lengths) >= 2**63 else np.int64
    np.savez(path, x=np.ones((8, 1)), y=np.array([0, 1, 0]), lengths=np.array(lengths, dtype))
    with pytest.raises(ValueError, match=r"wraps.npz: (has x of shape|sequence 0 has no steps)"):
        Arrays(str(path), val_fraction=0, test_fraction=0).load()


def test_postscript_that_is_named_as_an_image_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: ran.append("gs"))
    (tmp_path / "cat").mkdir()
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n"
    (tmp_path / "cat" / "1.png").write_bytes(text)
    with pytest.raises(ValueError, match=r"1.png: is not an image, or is damaged \(cannot identify"):
        Folder(str(tmp_path)).load()
    assert not ran


def _colour_of_16_bits(path: Path) -> None:
    """Writes a PNG of one pixel with three channels of 16 bits, which Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))
    pixel = chunk(b"IDAT", zlib.compress(b"\0" + struct.pack(">HHH", 1000, 20000, 30000)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + pixel + chunk(b"IEND", b""))


@pytest.mark.parametrize(
    ("name", "order", "more"),
    [
        ("1.tif", "<", {}),
        ("1.tif", ">", {}),
        ("1.png", "<", {}),
        ("1.tif", "<", {"compression": "tiff_adobe_deflate"}),
    ],
)
def test_grey_images_keep_their_16_bits(tmp_path: Path, name: str, order: str, more: dict[str, str]) -> None:
    levels = np.arange(12, dtype=f"{order}u2").reshape(3, 4) * 5000
    for label in "ab":
        (tmp_path / label).mkdir()
    Image.fromarray(levels).save(tmp_path / "a" / name, **more)
    Image.fromarray((levels >> 8).astype(np.uint8)).save(tmp_path / "b" / "1.png")  # and stands beside one of 8
    for grey in (False, True):
        values = Folder(str(tmp_path), grey=grey).read().values
        np.testing.assert_allclose(values[:12, 0], levels.ravel() / 65535, rtol=1e-7)  # float32
        np.testing.assert_allclose(values[12:, 0], (levels >> 8).ravel() / 255, rtol=1e-7)
    Image.fromarray(np.zeros((1, 2, 3), np.uint8)).save(tmp_path / "a" / "0.png")  # in colour, which then all are
    values = Folder(str(tmp_path)).read().values
    np.testing.assert_allclose(values[2:14], np.repeat(levels.ravel()[:, None] / 65535, 3, 1), rtol=1e-7)


@pytest.mark.parametrize("grey", [False, True])
def test_images_that_pillow_would_clip_or_round_are_refused(tmp_path: Path, grey: bool) -> None:
    (tmp_path / "a").mkdir()
    _colour_of_16_bits(tmp_path / "a" / "1.png")
    with pytest.raises(ValueError, match=r"a/1.png: has pixels of the form 'RGB;16B', expected 8 bits a channel, or"):
        Folder(str(tmp_path), grey=grey).read()
    (tmp_path / "a" / "1.png").unlink()
    for dtype, form in ((np.int32, "I;32S"), (np.float32, "F;32F")):
        Image.fromarray(np.ones((2, 2), dtype)).save(tmp_path / "a" / "1.tif")
        with pytest.raises(ValueError, match=f"a/1.tif: has pixels of the form '{form}', expected 8 bits a channel"):
            Folder(str(tmp_path), grey=grey).read()


@pytest.mark.parametrize("kind", ["gif", "png", "tif", "webp"])
def test_images_of_several_frames_are_refused(tmp_path: Path, kind: str) -> None:
    """The first one was read. A photograph with a small copy behind it is one image."""
    frames = [Image.fromarray(np.full((2, 3, 3), 100 * i, np.uint8)) for i in range(3)]
    path = tmp_path / "a" / f"1.{kind}"
    path.parent.mkdir()
    frames[0].save(path, save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=f"1.{kind}: has several frames or pages, expected one image: save each as a"):
        Folder(str(tmp_path)).read()
    frames[0].save(path, save_all=True)
    assert len(Folder(str(tmp_path)).read().values) == 6
    path.unlink()
    frames[0].save(tmp_path / "a" / "1.jpg", "MPO", save_all=True, append_images=frames[1:])
    assert len(Folder(str(tmp_path)).read().values) == 6


def test_stratified_parts_have_each_class_by_its_share(tmp_path: Path) -> None:
    """To one sequence, whatever the classes are, and the same sequences whatever the order of the classes' names."""
    y = np.repeat(["c", "a", "b"], [5, 60, 35])
    for labels in (y, np.vectorize({"a": "z", "b": "y", "c": "x"}.get)(y)):
        save_arrays(tmp_path / "own.npz", np.zeros((100, 3)), labels)
        for seed in range(3):
            task = Arrays(str(tmp_path / "own.npz"), stratified=True, seed=seed).load()
            parts: list[Any] = [task.train, task.val, task.test]
            for part, share in zip(parts, (0.7, 0.1, 0.2), strict=True):
                counts = [np.sum(labels[part.rows] == name) for name in labels[[0, 5, 65]]]
                assert np.abs(np.array(counts) - share * np.array([5, 60, 35])).max() <= 1
            assert sorted(np.concatenate([part.rows for part in parts])) == list(range(100))


def test_stratified_parts_are_of_classes() -> None:
    for settings in ({"kind": "regression"}, {"kind": "multilabel"}, {"per_step": True}):
        with pytest.raises(ValueError, match=r"Arrays: stratified is True with kind '\w+' and per_step"):
            Arrays(stratified=True, **settings)


@pytest.mark.parametrize("period", [0, 1, 3])
@pytest.mark.parametrize("levels", [False, True])
def test_what_is_read_and_predicted_of_a_series(period: int, levels: bool) -> None:
    """Against a loop over steps, variables and how far ahead."""
    y, H = np.random.default_rng(0).standard_normal((11, 2)), 5
    if not (period or levels):
        return
    form = Form(H, period, levels)
    inputs, targets = form.inputs(y), form.targets(y)
    naive = form.naive(y, np.arange(11), H)
    for t in range(11):
        change = y[t] - y[t - period] if t >= period else 0 * y[t]
        wanted = np.concatenate([change] * (period > 0) + [y[t]] * (levels or not period))
        np.testing.assert_array_equal(inputs[t], wanted)
        for h in range(1, H + 1):
            at = t + h
            while period and at > t:
                at -= period
            base = y[at if at >= 0 else t] if period else np.zeros(2)
            np.testing.assert_array_equal(naive[t, h - 1], base)
            later = y[t + h] - base if t + h < 11 else np.full(2, np.nan)
            np.testing.assert_array_equal(targets[t].reshape(H, 2)[h - 1], later)


def test_every_target_of_a_series_is_in_one_part(tmp_path: Path) -> None:
    """In validation and test each next step is forecast once; in training nothing of a later time is."""
    path = tmp_path / "series.csv"
    path.write_text("time,y\n" + "".join(f"{t},{t * t}\n" for t in range(100)), encoding="utf-8")
    task = Series(str(path), columns=("y",), horizon=3, window=20, period=1, val_fraction=0.1, test_fraction=0.2).load()
    parts: list[Any] = [task.train, task.val, task.test]
    low, high = [0, 70, 80], [70, 80, 100]
    for part, first, end in zip(parts, low, high, strict=True):
        counted = np.zeros((100, 3), int)
        for i in range(len(part)):
            inputs, labels, _ = part.batch(np.array([i]), np.float64)
            at = part.start[i] + np.arange(20)
            raw = inputs[0] * part.inputs.std + part.inputs.mean
            np.testing.assert_allclose(raw[:, 1], at**2, rtol=1e-9, atol=1e-9)
            there = ~np.isnan(labels[0])
            counted[at] += there
            for t, h in zip(*np.nonzero(there), strict=True):
                when = at[t] + h + 1
                assert first <= when < end
                target = labels[0, t, h] * part.targets.std[h] + part.targets.mean[h]
                assert abs(target - (when**2 - at[t] ** 2)) <= 1e-6
        if part is not parts[0]:
            assert (counted[first - 1 : end - 1, 0] == 1).all()
    assert task.metric == "skill"
    assert (task.n_classes, task.n_features) == (3, 2)


def test_a_linear_forecast_of_the_training_part_is_what_is_corrected(tmp_path: Path) -> None:
    """Of a file with other numbers after the training part it is the same; targets count where it has its steps."""
    y = np.random.default_rng(0).standard_normal((100, 2)).cumsum(0)
    line = chosen(y[:70], 2, 1)
    assert line is not None
    for end in (y[70:], 5 + y[70:]):
        np.savez(tmp_path / "y.npz", y=np.concatenate([y[:70], end]))
        task = Series(str(tmp_path / "y.npz"), horizon=2, window=30, val_fraction=0.1, linear=True).load()
        train: Any = task.train
        _, labels, _ = train.batch(np.array([0, len(train) - 1]), np.float64)
        assert np.isnan(labels[0, : line.size - 1]).all()
        found = labels * train.targets.std + train.targets.mean
        for row, first in ((0, 0), (1, 40)):
            for t in range(line.size - 1 if row == 0 else 0, 28):
                at = first + t
                wanted = y[at + 1 : at + 3] - line(y, np.array([at]))[0]
                np.testing.assert_allclose(found[row, t].reshape(2, 2), wanted, rtol=0, atol=1e-12)


def test_series_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("y\n1\n2\n3\nx\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"series.csv, line 5, column 'y': got 'x', expected a number"):
        Series(str(path)).load()
    path.write_text("y\n1\n2\n3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"series.csv: 2 of 3 steps are for training, expected at least 3"):
        Series(str(path)).load()
    with pytest.raises(ValueError, match="Series: levels is False with period 0, expected one of the two"):
        Series(str(path), period=0, levels=False)
    with pytest.raises(ValueError, match="Series: horizon is 0, expected an integer from 1 to 2147483647"):
        Series(str(path), horizon=0)


def test_paths_are_relative_to_the_recipe_and_the_command_line_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "long.csv").write_text(LONG, encoding="utf-8")
    text = '[task]\nname = "table"\npath = "long.csv"\nsequence = "id"\nfeatures = ["price"]\nval_fraction = 0.4\n'
    text += (
        '[model]\nlayer = "min_gru"\nd_model = 4\nn_layers = 1\n[layer]\nd_state = 4\n[training]\nbatch = 1\nsteps = 1'
    )
    (tmp_path / "here" / "own.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("here/own.toml")
    assert recipe.task.path == str(tmp_path / "here" / "long.csv")  # type: ignore[attr-defined]
    (tmp_path / "own2.toml").write_text('base = "here/own.toml"\n[training]\nsteps = 2\n', encoding="utf-8")
    assert load_recipe("own2.toml").task == recipe.task
    assert cli.main(["train", "here/own.toml", "--out", "run"]) == 0
    assert load_recipe("run/recipe.toml").digest() == recipe.digest()
    capsys.readouterr()
    settings = ["--set", "path=here/long.csv", "--set", "sequence=id", "--set", 'features=["price"]']
    assert cli.main(["data", "table", *settings, "--out", "copy"]) == 0
    assert "table: 2 classes, 1 feature(s) per step" in capsys.readouterr().out
    copy = Arrays("copy/table.npz", **ALL).load()
    assert [x.ravel().tolist() for x, _ in examples(copy)] == [[10, 11], [5, 4], [1, 2, 3]]
    assert copy.labels == ("down", "up")


def test_without_parts_the_command_line_says_that_test_is_the_training_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.csv").write_text(LONG, encoding="utf-8")
    task = {"path": "long.csv", "sequence": "id", "features": ["price"], "val_fraction": 0, "test_fraction": 0}
    sets = [word for name, value in task.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    text = "[task]\nname = 'table'\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in task.items())
    text += "[model]\nlayer = 'min_gru'\nd_model = 4\nn_layers = 1\n[layer]\nd_state = 4\n"
    Path("own.toml").write_text(text + "[training]\nbatch = 1\nsteps = 1\n", encoding="utf-8")
    train, *after = ["train", "own.toml", "--out", "runs/a"], ["eval", "runs/a"], ["results", "runs"]
    for words in (["data", "table", *sets], train, *after):
        assert cli.main(words) == 0
        told = f"test is the training {'split' if words[0] == 'data' else 'data'}"
        assert told in "".join(capsys.readouterr()), words[0]


def test_a_table_of_numbers_has_the_names_of_its_features(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text(LONG, encoding="utf-8")
    loaded: Any = Table(str(tmp_path / "long.csv"), sequence="id", features=("price",), **ALL).load()
    assert loaded.train.data.names == ("price",)


# ---- gaps, categories and times ----


def log_of(folder: Path, n: int = 20, T: int = 6) -> tuple[Path, dict[str, list[str]]]:
    """A log of n machines, T hours apart; the last one is in a mode that no other is in."""
    rng = np.random.default_rng(0)
    start = np.datetime64("2026-01-05T00:00")
    rows: dict[str, list[str]] = {"machine": [], "at": [], "heat": [], "load": [], "mode": [], "label": []}
    for i in range(n * T):
        rows["machine"].append(str(i // T))
        rows["at"].append(str(start + np.timedelta64(i * 60, "m")))
        rows["heat"].append("" if i % 7 == 3 else f"{rng.standard_normal():.6f}")
        rows["load"].append(f"{rng.standard_normal():.6f}")
        rows["mode"].append("new" if i // T == n - 1 else ("slow", "fast")[i // T % 2])
        rows["label"].append("ab"[i // T % 2])
    lines = [",".join(rows), *(",".join(cells) for cells in zip(*rows.values(), strict=True))]
    (folder / "log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "log.csv", rows


MIXED: dict[str, Any] = {"sequence": "machine", "categories": ("mode",), "times": ("at",), "missing": "mean"}


def test_gaps_categories_and_times_become_features_of_the_training_rows(tmp_path: Path) -> None:
    """By a loop over cells. The values that count are those of the sequences for training."""
    path, rows = log_of(tmp_path)
    task = Table(str(path), **{**MIXED, "seed": 3, "scale": False})
    with pytest.warns(UserWarning, match=r"log.csv: column 'mode' has 1 value that training does not: 'new'"):
        loaded: Any = task.load()
    train = set(loaded.train.rows.tolist())
    assert 19 not in train
    data = loaded.train.data
    cyclic = ["at_day_sin", "at_day_cos"]  # five days have no whole week
    assert data.names == ("at_seconds", *cyclic, "heat", "heat_missing", "load", "mode_fast", "mode_slow")
    own = [i for i in range(120) if i // 6 in train]
    mean = np.mean([float(rows["heat"][i]) for i in own if rows["heat"][i]])
    for i in range(120):
        angle = 2 * np.pi * (i % 24) / 24
        heat = rows["heat"][i]
        wanted = [
            3600.0 * (i - min(own)), np.sin(angle), np.cos(angle), float(heat) if heat else mean, not heat,
            float(rows["load"][i]), rows["mode"][i] == "fast", rows["mode"][i] == "slow",
        ]  # fmt: skip
        np.testing.assert_allclose(data.values[i], wanted, rtol=0, atol=1e-11)  # angles of up to 1e9 seconds, modulo
    assert loaded.n_features == 8


def test_what_a_log_of_features_writes_is_read_again(tmp_path: Path) -> None:
    path, _ = log_of(tmp_path)
    with pytest.warns(UserWarning, match="that training does not"):
        written: Any = Table(str(path), **{**MIXED, "seed": 3}).write(tmp_path / "out")
    again: Any = Arrays(str(tmp_path / "out" / "table.npz"), seed=3).load()
    np.testing.assert_array_equal(again.train.data.values, written.train.data.values)
    np.testing.assert_array_equal(again.train.rows, written.train.rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"missing": ""},
            r"log.csv, line 5, column 'heat': got an empty cell, expected a finite number.*, or missing = \"mean\"$",
        ),
        ({"missing": "median"}, "Table: missing is 'median', expected 'mean', or '' for an error"),
        ({"categories": ()}, r"log.csv, line 2, column 'mode': got 'slow', expected a number"),
        ({"times": ()}, r"log.csv, line 2, column 'at': got '2026-01-05T00:00', expected a number"),
        (
            {"times": ("at", "load")},
            r"log.csv, line 2, column 'load': got .*, expected a time such as 2026-01-31 12:00",
        ),
        ({"categories": ("mode", "heat")}, r"log.csv, line 5, column 'heat': got an empty cell, expected a text"),
        ({"times": ("at", "mode")}, "Table: times has 'mode', which is among categories, expected other columns"),
        ({"features": ("load",)}, "log.csv: categories has 'mode', expected one of the features load"),
        ({"categories": ("mood",)}, "log.csv: has no column 'mood', expected one of .*did you mean mode"),
        ({"sequence": ""}, r"Table: categories is \('mode',\) without sequence, expected rows that are steps"),
    ],
)
def test_cells_of_columns_that_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    path, _ = log_of(tmp_path)
    with pytest.raises(ValueError, match=message):
        Table(str(path), **{**MIXED, **settings}).load()


def test_a_column_without_a_number_for_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("id,a,b,label\n" + "".join(f"{i},,{i},{i % 2}\n" for i in range(10)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"log.csv: column 'a' has no number in the training rows, expected one"):
        Table(str(path), sequence="id", features=("a", "b"), missing="mean").load()
