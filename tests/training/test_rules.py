"""The rules by which own data become numbers: kept with a run and its model, applied to other files."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn.cli import main
from rotrnn.models.files import load
from rotrnn.tasks import Arrays, Table, describe, save_arrays
from rotrnn.tasks.rules import Rules, read_rules
from rotrnn.tasks.task import balanced_weights
from rotrnn.training.evaluation import evaluate
from rotrnn.training.loop import train
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.run import Run
from worlds import among

HEAD = ["machine", "at", "heat", "mode", "fault"]
MODES, FAULTS, HOURS = ("fast", "off", "slow"), ("leak", "none", "worn"), 30
SETTINGS: dict[str, Any] = {
    "sequence": "machine", "target": ("fault",), "categories": ("mode",), "times": ("at",), "missing": "mean",
}  # fmt: skip


def rows_of(machines: Any) -> list[list[str]]:
    """A row an hour of each machine, whose mode and fault go by its number; some heats are missing."""
    rng = np.random.default_rng(0)
    heat = rng.standard_normal((40, HOURS)).round(4)
    start = np.datetime64("2026-01-05T00:00")
    return [
        [
            str(m),
            str(start + np.timedelta64(t, "h")),
            "" if t == m % 9 else str(heat[m, t]),
            MODES[m // 2 % 3],
            FAULTS[m % 3],
        ]
        for m in machines
        for t in range(HOURS)
    ]


def write(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("\n".join(map(",".join, [HEAD, *rows])) + "\n", encoding="utf-8")
    return path


def encoded(rows: list[list[str]], known: list[list[str]]) -> np.ndarray[Any, Any]:
    """The scaled features of rows, by a loop over cells, as the rows `known` say: hours, day, heat, gaps, modes."""

    def plain(row: list[str]) -> list[float]:
        at = np.datetime64(row[1]).astype("M8[s]").astype(int)
        first = min(np.datetime64(one[1]).astype("M8[s]").astype(int) for one in known)
        angle = 2 * np.pi * (at % 86400) / 86400
        mean = np.mean([float(one[2]) for one in known if one[2]])
        heat = float(row[2]) if row[2] else mean
        return [at - first, np.sin(angle), np.cos(angle), heat, not row[2], *(row[3] == mode for mode in MODES)]

    of_known = np.array([plain(row) for row in known], float)
    mean, std = of_known.mean(0), of_known.std(0)
    mean[4:], std[4:] = 0, 1  # marks
    return (np.array([plain(row) for row in rows], float) - mean) / std


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("rules")
    path = write(folder / "log.csv", rows_of(range(40)))
    task = {"name": "table", "path": str(path), **{key: list(one) if isinstance(one, tuple) else one
                                                  for key, one in SETTINGS.items()}}  # fmt: skip
    recipe = {
        "task": task,
        "model": {"layer": "lru", "d_model": 4, "n_layers": 1, "norm": "layer"},
        "layer": {"d_state": 4},
        "training": {"batch": 8, "steps": 2},
    }
    train(recipe, folder / "run", progress=False)
    return Run(folder / "run")


def batch_of(split: Any) -> Any:
    return split.batch(np.arange(len(split)), np.float64)


def table(path: Path, **settings: Any) -> Table:
    return Table(str(path), **{**SETTINGS, "val_fraction": 0.0, "test_fraction": 0.0, **settings})


@pytest.mark.parametrize(
    ("trained", "new", "other"), [(("1", "2"), ("2.0", "1.0"), "3.0"), (("True", "False"), ("false", "true"), "1")]
)
def test_classes_and_categories_that_are_numbers_are_matched_as_numbers(
    tmp_path: Path, trained: tuple[str, str], new: tuple[str, str], other: str
) -> None:
    """A program may have written 1 in one file and 1.0 in the other."""

    def table_of(name: str, values: tuple[str, str]) -> Table:
        path, cells = tmp_path / name, [values[i // 2 % 2] for i in range(20)]
        rows = "".join(f"{i // 2 + 5},{one},{one}\n" for i, one in enumerate(cells))
        path.write_text("id,mode,label\n" + rows, encoding="utf-8")
        return Table(str(path), sequence="id", features=("mode",), categories=("mode",), test_fraction=0.0)

    known: Any = table_of("trained.csv", trained).load()
    (tmp_path / "rules.json").write_text(known.rules.text(), encoding="utf-8")
    task: Any = table_of("new.csv", new).load(tmp_path / "rules.json")
    assert task.labels == known.labels
    np.testing.assert_array_equal(task.train.data.labels, 1 - known.train.data.labels)
    np.testing.assert_array_equal(task.train.data.values, known.train.data.values[:, ::-1])
    message = f"has the class '{other}', expected one of {', '.join(known.labels)} as in training"
    with pytest.warns(UserWarning, match="that training does not: "), pytest.raises(ValueError, match=message):
        table_of("other.csv", (new[0], other)).load(tmp_path / "rules.json")


def test_a_file_with_fewer_categories_has_the_features_of_training(run: Run, tmp_path: Path) -> None:
    """The same rows alone, without a mode, a fault, the earliest hours and gaps, are the same numbers, to the bit; and
    those of a loop over cells. Of themselves they have other features."""
    trained: Any = run.load_recipe().task.load()
    known = [row for row in rows_of(range(40)) if int(row[0]) in set(trained.train.rows)]
    some = [row for row in rows_of((0, 1, 6, 7, 13)) if row[1] >= "2026-01-05T20" and row[2]]
    assert ({row[3] for row in some}, {row[4] for row in some}) == ({"fast"}, {"leak", "none"})
    task: Any = table(write(tmp_path / "new.csv", some)).load(run.folder)
    at = np.lexsort([[row[1] for row in some], [int(row[0]) for row in some]])
    order = np.argsort([m for m, one in enumerate((0, 1, 6, 7, 13))])[task.train.rows]
    found = batch_of(task.train).inputs
    wanted = encoded([some[i] for i in at], known).reshape(5, 10, 8)[order]
    assert task.train.data.names == trained.train.data.names
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11)  # hours scaled by their deviation, sums of 840 rows
    of_training = trained.train.inputs(trained.train.data.values).reshape(40, HOURS, 8)[[0, 1, 6, 7, 13], 20:]
    np.testing.assert_array_equal(found, of_training[order])
    assert task.labels == FAULTS
    np.testing.assert_array_equal(batch_of(task.train).labels, np.array([0, 1, 0, 1, 1])[order])
    alone: Any = table(tmp_path / "new.csv").load()
    assert (alone.n_features, alone.n_classes) == (3, 2)


def test_an_evaluation_of_another_file_goes_by_the_rules_of_training(run: Run, tmp_path: Path) -> None:
    """Without a warning, and on all of its sequences if it is not divided."""
    path = write(tmp_path / "new.csv", rows_of((0, 1, 6, 7, 13)))
    whole = [f"task.{key}=0" for key in ("val_fraction", "test_fraction")]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"task\.path")
        ((_, found),) = reevaluate(run, split="train", overrides=[f"task.path={path}", *whole])
    task = table(path).load(run.folder)
    model = run.load_recipe().build(task)
    expected = evaluate(model, run.load_params("best"), task, task.train, batch=8, dtype="float32")
    assert (found, found["n"]) == (expected, 5)
    with warnings.catch_warnings():  # no sequence of the other file was for training, or for a selection
        warnings.filterwarnings("error", message="test is the training data|the best parameters were selected on")
        ((_, tested),) = reevaluate(run, overrides=[f"task.path={path}", *whole])
        reevaluate(run, overrides=[f"task.path={path}"], grid=[("task.val_fraction", (0,))])
    assert tested == found
    assert "test is the training split" in describe(task)
    assert reevaluate(run) == [("", run.read_json(run.result)["test"]["best"])]
    with pytest.raises(ValueError, match=r"task\.scale has no influence on an evaluation, .* the scales are the run's"):
        reevaluate(run, overrides=["task.scale=false"])
    with pytest.raises(ValueError, match=r"task\.test_fraction decides which examples the run was trained on"):
        reevaluate(run, overrides=["task.test_fraction=0.5"])
    same = write(tmp_path / "same.csv", rows_of(range(40)))
    with pytest.raises(ValueError, match=r"task\.seed decides which examples"):  # the same contents elsewhere
        reevaluate(run, overrides=[f"task.path={same}", "task.seed=3"])


def test_a_model_has_the_rules_of_its_run(run: Run, tmp_path: Path) -> None:
    """As a file, as a folder, and as a file that is exported once more; `load` reads it as any other."""
    rules = read_rules(run.folder)
    for place, of in (("a.safetensors", run.folder), ("folder", run.folder), ("b.safetensors", tmp_path / "folder"),
                      ("c.safetensors", tmp_path / "a.safetensors")):  # fmt: skip
        assert main(["export", str(of), "--out", str(tmp_path / place)]) == 0
        assert read_rules(tmp_path / place) == rules
    model, params = load(tmp_path / "a.safetensors")
    task = table(write(tmp_path / "new.csv", rows_of((0, 1, 6)))).load(tmp_path / "a.safetensors")
    batch = task.train.batch(np.arange(3))
    assert model.forward(params, batch.inputs)[0].shape == (3, 3)
    model.save(tmp_path / "bare.safetensors", params)
    with pytest.raises(ValueError, match=r"bare\.safetensors: has no rules of training, expected the folder of a run"):
        table(tmp_path / "new.csv").load(tmp_path / "bare.safetensors")


def test_a_category_that_training_does_not_have_is_none(run: Run, tmp_path: Path) -> None:
    rows = [[*row[:3], "stuck", row[4]] for row in rows_of((0, 1))]
    with pytest.warns(UserWarning, match=r"new.csv: column 'mode' has 1 value that training does not: 'stuck'"):
        task = table(write(tmp_path / "new.csv", rows)).load(run.folder)
    assert not batch_of(task.train).inputs[..., 5:].any()


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda row: [*row[:4], "broken"], {}, "new.csv: has the class 'broken', expected one of leak, none, worn"),
        (
            lambda row: row,
            {"features": ("at", "heat"), "categories": ()},
            r"has the columns at \(time\), heat \(number\), expected at",
        ),
        (lambda row: row, {"features": ("heat",), "times": (), "categories": (), "missing": ""}, "of numbers alone"),
        (
            lambda row: [*row[:4], "1"],
            {"kind": "regression"},
            r"new.csv: has 1 target, expected 0 targets as in training",
        ),
    ],
)
def test_what_the_rules_do_not_know_is_refused(
    run: Run, tmp_path: Path, change: Any, settings: dict[str, Any], message: str
) -> None:
    rows = [change([*row[:2], row[2] or "0", *row[3:]]) for row in rows_of((0, 1))]
    with pytest.raises(ValueError, match=message):
        table(write(tmp_path / "new.csv", rows), **settings).load(run.folder)


def test_other_features_and_scales_of_targets(tmp_path: Path) -> None:
    """Arrays, of a regression with a constant target: the scales of the first file serve for the second."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((12, 5, 2)), np.stack([rng.standard_normal(12), np.full(12, 3.0)], 1)
    save_arrays(tmp_path / "a.npz", x, y)
    save_arrays(tmp_path / "b.npz", 100 + x, 7 * y)
    save_arrays(tmp_path / "c.npz", x[..., :1], y)
    first: Any = Arrays(str(tmp_path / "a.npz"), "regression").load()
    (tmp_path / "rules.json").write_text(first.rules.text(), encoding="utf-8")
    for place in (tmp_path, tmp_path / "rules.json", first.rules):
        again: Any = Arrays(str(tmp_path / "b.npz"), "regression").load(place)
        scale, targets = first.train.inputs, first.train.targets
        got = again.train.batch(np.arange(3), np.float64)
        np.testing.assert_array_equal(got.inputs, scale(100 + x[again.train.rows[:3]]))
        np.testing.assert_array_equal(got.labels, targets(7 * y[again.train.rows[:3]]))
    with pytest.raises(ValueError, match=r"c\.npz: has 1 feature, expected 2 features as in training"):
        Arrays(str(tmp_path / "c.npz"), "regression").load(tmp_path)


def cells_of(path: Path, names: str, columns: dict[str, list[Any]]) -> str:
    """Writes the columns with these names, separated by blanks, and returns the path."""
    rows = zip(*(map(str, columns[name]) for name in names.split()), strict=True)
    path.write_text("\n".join(map(",".join, [names.split(), *rows])) + "\n", encoding="utf-8")
    return str(path)


NUMBERS: dict[str, list[Any]] = {
    "id": [1, 1, 2, 2, 3, 3], "a": [3, 1, 4, 1, 5, 9], "b": [20, 70, 10, 80, 20, 80],
    "c": [0.1, 0.4, 0.1, 0.4, 0.2, 0.1],
    "y": [*"uvuvuv"], "p": [5, 5, 7, 7, 6, 6], "q": [60, 60, 80, 80, 50, 50], "r": [1, 1, 0, 0, 0, 0],
    "note": [*"mnomno"],
}  # fmt: skip
WHOLE: dict[str, Any] = {"val_fraction": 0.0, "test_fraction": 0.0}


def test_steps_in_columns_are_read_by_their_names(tmp_path: Path) -> None:
    """Each row a sequence: in another order they are the same numbers; other columns, or one less, are errors."""
    settings: dict[str, Any] = {"target": ("y",), **WHOLE}
    trained: Any = Table(cells_of(tmp_path / "a.csv", "a b c y", NUMBERS), **settings).load()
    assert trained.rules.step_names == ("a", "b", "c")
    new: Any = Table(cells_of(tmp_path / "new.csv", "c y a b", NUMBERS), **settings)
    np.testing.assert_array_equal(batch_of(new.load(trained.rules).train).inputs, batch_of(trained.train).inputs)
    for names, features, message in (
        ("a c y", (), r"new.csv: has no column 'b', expected one of a, c, y"),
        ("a p b c y", (), r"new.csv: has the column 'p', expected the steps a, b, c as in training, or features"),
        ("c a b y", ("c", "a", "b"), r"new.csv: has the steps c, a, b, expected the steps a, b, c as in training"),
    ):
        new = Table(cells_of(tmp_path / "new.csv", names, NUMBERS), features=features, **settings)
        with pytest.raises(ValueError, match=message):
            new.load(trained.rules)
    save_arrays(tmp_path / "new.npz", np.ones((2, 3)), np.array(["u", "v"]))
    with pytest.raises(ValueError, match=r"new.npz: has steps without names, expected the steps a, b, c as in"):
        Arrays(str(tmp_path / "new.npz"), **WHOLE).load(trained.rules)


def test_features_in_another_order_or_among_others_are_read_by_their_names(run: Run, tmp_path: Path) -> None:
    """A table of numbers, and one with categories and times; also where `features` are set in another order."""
    settings: dict[str, Any] = {"sequence": "id", "target": ("y",), "per_step": True, **WHOLE}
    trained: Any = Table(cells_of(tmp_path / "a.csv", "id a b c y", NUMBERS), **settings).load()
    for names in ("c b y a id", "note c id b p y a"):
        new: Any = Table(cells_of(tmp_path / "new.csv", names, NUMBERS), **settings).load(trained.rules)
        np.testing.assert_array_equal(batch_of(new.train).inputs, batch_of(trained.train).inputs)
    new = Table(str(tmp_path / "a.csv"), features=("c", "b", "a"), **settings).load(trained.rules)
    np.testing.assert_array_equal(batch_of(new.train).inputs, batch_of(trained.train).inputs)
    with pytest.raises(ValueError, match=r"a.csv: has the features c, a, expected the features a, b, c as in"):
        Table(str(tmp_path / "a.csv"), features=("c", "a"), **settings).load(trained.rules)
    with pytest.raises(ValueError, match=r"new.csv: has no column 'c', expected one of id, a, b, y"):
        Table(cells_of(tmp_path / "new.csv", "id a b y", NUMBERS), **settings).load(trained.rules)

    rows = rows_of((0, 1, 6, 7))
    same: Any = table(write(tmp_path / "log.csv", rows)).load(run.folder)
    text = "\n".join(f"{mode},{machine},note,{at},{heat},{fault}" for machine, at, heat, mode, fault in rows)
    (tmp_path / "new.csv").write_text("mode,machine,note,at,heat,fault\n" + text + "\n", encoding="utf-8")
    named = ("mode", "at", "heat")
    for one in (table(tmp_path / "new.csv"), replace(table(tmp_path / "new.csv"), features=named)):
        again: Any = one.load(run.folder)
        np.testing.assert_array_equal(batch_of(again.train).inputs, batch_of(same.train).inputs)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_targets_have_the_names_and_the_order_of_training(tmp_path: Path, kind: str) -> None:
    columns = NUMBERS if kind == "regression" else {**NUMBERS, "p": [1, 1, 0, 0, 1, 1], "q": [0, 0, 1, 1, 1, 1]}
    path = cells_of(tmp_path / "a.csv", "id a p q r", columns)
    settings: dict[str, Any] = {"kind": kind, "sequence": "id", "features": ("a",), **WHOLE}
    rules = Table(path, target=("p", "q"), **settings).load().rules
    Table(path, target=("p", "q"), **settings).load(rules)
    for target in (("q", "p"), ("p", "r")):
        expected = f"a.csv: has the targets {', '.join(target)}, expected the targets p, q as in training"
        with pytest.raises(ValueError, match=expected):
            Table(path, target=target, **settings).load(rules)


def test_intervals_are_there_if_and_only_if_they_were_in_training(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([*"uvuv"])
    save_arrays(tmp_path / "even.npz", x, y)
    save_arrays(tmp_path / "uneven.npz", x, y, dt=np.ones((4, 3)))
    even, uneven = (Arrays(str(tmp_path / name), **WHOLE) for name in ("even.npz", "uneven.npz"))
    even.load(even.load().rules)
    uneven.load(uneven.load().rules)
    with pytest.raises(ValueError, match=r"even.npz: has no intervals dt, expected intervals dt as in training"):
        even.load(uneven.load().rules)
    with pytest.raises(ValueError, match=r"uneven.npz: has intervals dt, expected no intervals dt as in training"):
        uneven.load(even.load().rules)


def test_a_place_without_rules_says_what_has_some(run: Run, tmp_path: Path) -> None:
    new: Any = table(write(tmp_path / "new.csv", rows_of((0, 1))))
    places: tuple[Any, ...] = (3, tmp_path, tmp_path / "nope", tmp_path / "nope.json", run.recipe, tmp_path / "new.csv")
    for place in places:
        with pytest.raises(ValueError, match="has no rules of training, expected the folder of a run") as caught:
            new.load(place)
        assert str(caught.value).startswith(f"{place}: ")


def test_an_empty_cell_among_times_expects_a_time(tmp_path: Path) -> None:
    rows = rows_of((0, 1))
    rows[3][1] = ""
    with pytest.raises(ValueError, match=r"line 5, column 'at': got an empty cell, expected a time such as 2026-01-31"):
        table(write(tmp_path / "new.csv", rows)).load()


GOOD = {"mean": [0.0], "std": [1.0], "columns": [{"name": "a", "kind": "number"}]}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("[]", "has rules that are a list, expected an object"),
        ("{", "rules.json: Expecting"),
        ({**GOOD, "code": 1}, "Rules has 'code', expected mean, std"),
        ({**GOOD, "std": [-1.0]}, "std has a negative number"),
        ({**GOOD, "std": [1.0, 1.0]}, "a mean and its std have different lengths"),
        ({**GOOD, "names": ["a", "b"]}, "mean has 1 number, expected 2: a, b"),
        (
            {**GOOD, "target_mean": [0], "target_std": [1], "target_names": ["p", "q"]},
            "target_mean has 1 number, expected 2: p, q",
        ),
        ({**GOOD, "classes": ["a"], "balanced": [1, 1]}, "balanced has 2 numbers, expected 1: a"),
        ({**GOOD, "balanced": [-1]}, "balanced has a negative number"),
        ({**GOOD, "mean": ["x"]}, r"Rules: mean=\['x'\], expected a sequence, each of it a finite number"),
        ({"mean": [0.0]}, "std"),
        ({**GOOD, "columns": 3}, "expected an object"),
        ({**GOOD, "columns": [3]}, "Column has an int, expected name, kind"),
        ({**GOOD, "columns": [{"name": "a", "kind": "text"}]}, "Column: has kind 'text'"),
        ({**GOOD, "columns": [{"name": "a", "kind": "time", "cycles": ["month"]}]}, "expected .* day, week, year"),
    ],
)
def test_damaged_rules_are_refused(tmp_path: Path, found: Any, message: str) -> None:
    path = tmp_path / "rules.json"
    path.write_text(found if isinstance(found, str) else json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read_rules(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_rules_are_the_same_after_they_were_written(run: Run) -> None:
    trained: Any = run.load_recipe().task.load()
    assert isinstance(trained.rules, Rules)
    assert read_rules(run.rules) == trained.rules


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_balanced_weights_are_those_of_training(tmp_path: Path, kind: str) -> None:
    """In another file classes have other shares; a run from before the rules had weights needs its own file."""
    x, first = np.random.default_rng(0).standard_normal((60, 4, 1)), np.repeat([0, 1], [15, 45])
    for name, y in (("own", first), ("other", 1 - first)):
        save_arrays(tmp_path / f"{name}.npz", x, y[:, None] if kind == "multilabel" else y)
    recipe = {
        "task": {"name": "arrays", "path": str(tmp_path / "own.npz"), "kind": kind},
        "model": {"layer": "lru", "d_model": 4, "n_layers": 1, "norm": "layer"},
        "layer": {"d_state": 4},
        "training": {"batch": 8, "steps": 2, "class_weights": "balanced"},
    }
    train(recipe, tmp_path / "run", progress=False)
    run, other = Run(tmp_path / "run"), [f"task.path={tmp_path / 'other.npz'}"]
    weights = balanced_weights(run.load_recipe().task.load())
    assert read_rules(run.folder).balanced == weights
    task: Any = run.load_recipe(other).task
    task = task.load(run.folder)
    assert balanced_weights(task) != weights
    model = replace(run.load_recipe(other).build(task), class_weights=weights)
    expected = evaluate(model, run.load_params("best"), task, task.test, batch=8, dtype="float32")
    assert reevaluate(run, overrides=other) == [("", expected)]

    run.rules.write_text(replace(read_rules(run.folder), balanced=None).text(), encoding="utf-8")
    assert reevaluate(run, overrides=other) == [("", expected)]
    assert reevaluate(run) == [("", run.read_json(run.result)["test"]["best"])]
    (tmp_path / "own.npz").write_bytes((tmp_path / "other.npz").read_bytes())
    with pytest.raises(ValueError, match=r"class_weights is 'balanced', and the labels of training .*own\.npz: is not"):
        reevaluate(run, overrides=other)
    (tmp_path / "own.npz").unlink()
    with pytest.raises(ValueError, match=r"labels of training cannot be read: .* does not exist; .*; expected a list"):
        reevaluate(run, overrides=other)


@pytest.mark.parametrize(("stratified", "processes"), [(False, 1), (True, 1), (True, 2)])
def test_a_run_goes_on_by_its_rules(tmp_path: Path, stratified: bool, processes: int) -> None:
    """Rules may be learnt in another way by another version: a run that goes on keeps the numbers of its classes, its
    parts and its scales. A new run learns its own, whatever file is in the folder."""
    x, y = np.random.default_rng(0).standard_normal((40, 4, 1)), np.repeat(["a", "b"], 20)
    save_arrays(tmp_path / "own.npz", x, y)
    save_arrays(tmp_path / "swapped.npz", x, np.where(y == "b", "0", "1"))
    settings = Arrays(str(tmp_path / "own.npz"), scale=True, stratified=stratified)
    other = replace(settings.load().rules, classes=("b", "a"), mean=(1.0,), std=(2.0,), balanced=(0.5, 2.0))
    recipe: dict[str, Any] = {
        "task": {"name": "arrays", "path": settings.path, "scale": True, "stratified": stratified},
        "model": {"layer": "lru", "d_model": 4, "n_layers": 1, "norm": "layer"},
        "layer": {"d_state": 4},
        "training": {"batch": 8, "steps": 2, "class_weights": "balanced"},
    }
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    run.rules.write_text(other.text(), encoding="utf-8")
    train(recipe, run.folder, progress=False)
    assert read_rules(run.folder) == settings.load().rules

    recipe["training"]["steps"] = 1
    train(recipe, tmp_path / "first", progress=False)
    first = Run(tmp_path / "first")
    first.rules.write_text(other.text(), encoding="utf-8")
    recipe["training"]["steps"] = 2
    result, *_ = among(processes, lambda world: train(recipe, first.folder, progress=False, among=world))
    assert read_rules(first.folder) == other
    task, now = settings.load(other), first.load_recipe()
    swapped = replace(settings, path=str(tmp_path / "swapped.npz")).load()
    np.testing.assert_array_equal(batch_of(task.test).labels, batch_of(swapped.test).labels)
    assert task.labels == ("b", "a")
    expected = evaluate(now.build(task), first.load_params("last"), task, task.test, batch=8, dtype="float32")
    assert result["test"]["last"] == pytest.approx(expected, rel=0 if processes == 1 else 1e-6)  # sums of float32
