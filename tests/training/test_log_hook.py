"""`rotrnn.train(..., log=function)`: every record once, whatever happens between two starts."""

from __future__ import annotations

import math
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_tensorboard import toy_recipe
from test_training import contents

import rotrnn
from rotrnn.training.loop import train
from rotrnn.training.run import Run
from rotrnn.training.tensorboard import Board

Record = dict[str, Any]


class Killed(BaseException):
    """What no one catches."""


def keys(records: list[Record]) -> list[Any]:
    """What tells records apart: those of a step and of its evaluation have other keys."""
    return [(one["step"], *one) for one in records]


def test_every_record_as_it_is_written(tmp_path: Path) -> None:
    seen: list[Record] = []
    run = Run(tmp_path / "run")

    def log(record: Record) -> None:
        seen.append(record)
        assert keys(run.records())[len(seen) - 1] == keys([record])[0]

    train(toy_recipe(tmp_path), run.folder, progress=False, log=log)
    assert keys(seen) == keys(run.records())
    assert [one["loss"] for one in seen if "loss" in one] == [one["loss"] for one in run.records() if "loss" in one]


def test_a_run_that_is_killed_twice_hands_nothing_over_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second kill is before the steps of the first start are repeated, so that the log ends before what was handed
    over."""
    recipe, run, seen = toy_recipe(tmp_path, "training.eval_every=4"), Run(tmp_path / "run"), []
    add = Board.add

    def killing(at: int) -> Any:
        def then(self: Board, records: Any) -> None:
            add(self, records)
            if any(one["step"] == at for one in records):
                raise Killed

        return then

    monkeypatch.setattr(Board, "add", killing(15))
    with pytest.raises(Killed):
        train(recipe, run.folder, progress=False, log=seen.append)
    assert seen[-1]["step"] == 14  # killed between the log and the function: the record of step 15 is lost
    monkeypatch.setattr(Board, "add", killing(13))
    with pytest.raises(Killed):
        train(recipe, run.folder, progress=False, resume=True, log=seen.append)
    assert run.records()[-1]["step"] == 13
    monkeypatch.setattr(Board, "add", add)
    train(recipe, run.folder, progress=False, resume=True, log=seen.append)
    assert keys(seen) == [one for one in keys(run.records()) if one[0] != 15]
    train(recipe, run.folder, progress=False, resume=True, log=seen.append)  # has ended
    assert keys(seen) == [one for one in keys(run.records()) if one[0] != 15]


def test_an_error_warns_once_and_ends_no_training(tmp_path: Path) -> None:
    train(toy_recipe(tmp_path), tmp_path / "straight", progress=False)
    calls = []

    def log(record: Record) -> None:
        calls.append(record)
        raise ConnectionError("no route")

    with pytest.warns(
        UserWarning,
        match="(?s)train: log raised an error; it is not called from now on\n.*test_log_hook.py.*Error: no route",
    ):
        train(toy_recipe(tmp_path), tmp_path / "run", progress=False, log=log)
    assert len(calls) == 1
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


def test_a_function_may_change_its_records(tmp_path: Path) -> None:
    train(toy_recipe(tmp_path), tmp_path / "straight", progress=False)

    def log(record: Record) -> None:
        for one in record.values():
            if isinstance(one, dict | list):
                one.clear()
        record.clear()

    train(toy_recipe(tmp_path), tmp_path / "run", progress=False, log=log)
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"log": "wandb"}, TypeError, "train: log is a str, expected a function of a record"),
        ({"among": 2}, TypeError, "train: among is an int, expected a World"),
        ({"resume": "no"}, ValueError, "train: resume is 'no', expected True or False"),
    ],
)
def test_wrong_arguments_are_refused(given: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        train(toy_recipe(tmp_path), tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "place"), [("wandb", 0), ("mlflow", 1)])
def test_the_documented_lines(name: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in that has the signatures of the package."""
    points: list[tuple[int, Record]] = []

    def log_metrics(metrics: dict[str, float], step: int | None = None) -> None:
        assert all(type(one) is float for one in metrics.values())
        points.append((step or 0, metrics))

    def log(data: Record, step: int | None = None) -> None:
        points.append((step or 0, data))

    def init(project: str, id: str, resume: str) -> Any:
        return nullcontext(SimpleNamespace(log=log, resumed=False))

    def start_run(run_id: str | None = None, run_name: str | None = None) -> Any:
        return nullcontext()

    packages = {
        "wandb": SimpleNamespace(init=init),
        "mlflow": SimpleNamespace(start_run=start_run, log_metrics=log_metrics),
    }
    monkeypatch.setitem(sys.modules, name, packages[name])
    monkeypatch.chdir(tmp_path)
    load = rotrnn.load_recipe
    monkeypatch.setattr(rotrnn, "load_recipe", lambda name: load(name, ["training.steps=2"]))
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    exec(re.findall(r"```py\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[place], {})
    assert [step for step, _ in points] == [0, 1, 2, 2]
    assert math.isfinite(points[1][1]["loss"])
    assert "val_accuracy" in points[-1][1]
