"""A run's log, read by TensorBoard."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_training import contents

import toy
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe
from rotrnn.training.run import Run
from rotrnn.training.tensorboard import Board, scalars


def toy_recipe(tmp_path, *overrides):
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    return load_recipe(tmp_path / "toy.toml", overrides)


def shown(folder):
    """Returns tag -> the steps and values that TensorBoard would draw."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def logged(run, key):
    """Returns the float32 value that `shown` must have for a number in the log."""
    return [(record["step"], float(np.float32(record[key]))) for record in run.records() if key in record]


def test_it_shows_the_log_and_no_point_twice_after_resuming(tmp_path):
    recipe = toy_recipe(tmp_path, "training.eval_every=4")
    train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    for _ in range(2):
        found = shown(run.folder / "tensorboard")
        assert len(logged(run, "loss")) == 40
        assert found["training/loss"] == logged(run, "loss")
        assert found["training/grad_norm"] == logged(run, "grad_norm")
        assert found["validation/accuracy"] == logged(run, "val_accuracy")
        assert [step for step, _ in found["state_norms/0"]] == list(range(0, 41, 4))
        run.log.write_bytes(run.log.read_bytes() + b'{"step": 41, "loss": 1.0}\n')  # of a run that went on too far
        train(recipe, run.folder, resume=True, progress=False)


def test_the_names_of_what_is_shown():
    record = {"step": 3, "val_loss": 1.0, "elapsed": 2.0, "layers": {"0.iterations": 5.0}, "state_norms": [6.0]}
    assert dict(scalars(record)) == {"validation/loss": 1.0, "layers/0.iterations": 5.0, "state_norms/0": 6.0}
    both = [dict(scalars({"step": 3, loss: 1.0, "seconds": 0.1})).keys() for loss in ("loss", "val_loss")]
    assert both == [{"training/loss", "training/seconds"}, {"validation/loss", "validation/seconds"}]
    assert dict(scalars({"step": 3, "loss": 1.0, "lr": 0.1})) == {"training/loss": 1.0, "training/lr": 0.1}


def test_steps_between_evaluations_are_thinned(tmp_path):
    board = Board(Run(tmp_path), [{"step": step, "loss": 1.0} for step in range(1, 101)], 100)
    board.add([{"step": 101, "loss": 1.0}, {"step": 101, "val_loss": 1.0}])
    found = shown(board.folder)  # an evaluation is on disk at once
    board.close()
    assert [step for step, _ in found["training/loss"]] == list(range(5, 101, 5))
    assert found["validation/loss"] == [(101, 1.0)]


def test_points_from_before_a_pause_have_the_times_of_the_log(tmp_path):
    step, found = {"loss": 1.0, "seconds": 10.0}, {"val_loss": 1.0, "seconds": 1.0, "elapsed": 25.0}
    Board(Run(tmp_path), [{"step": 1, **step}, {"step": 2, **step}, {"step": 2, **found}], 1).close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    first, second = (one.wall_time for one in events.Scalars("training/loss"))
    (evaluated,) = (one.wall_time for one in events.Scalars("validation/loss"))
    expected = pytest.approx((10.0, 5.0), abs=1e-5)  # doubles have 2e-7 for the seconds since 1970
    assert (second - first, evaluated - second) == expected


def test_what_cannot_be_written_warns_and_ends_no_training(tmp_path):
    train(toy_recipe(tmp_path), tmp_path / "straight", progress=False)
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / "tensorboard").write_text("in the way", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"tensorboard: cannot be written, and is not updated from now on: .*exists"):
        train(toy_recipe(tmp_path), run.folder, progress=False)
    assert contents(run.folder) == contents(tmp_path / "straight")


@pytest.mark.slow
def test_a_disk_that_fills_up_warns(tmp_path):
    code = f"""
from pathlib import Path
from rotrnn.training.run import Run
from rotrnn.training.tensorboard import Board
board = Board(Run(Path({str(tmp_path)!r})), [], 1)
board.add([{{"step": step, "val_loss": 1.0}} for step in range(1, 100)])
board.add([{{"step": 100, "val_loss": 1.0}}])
board.close()
"""
    command = ["bash", "-c", 'ulimit -f 1; exec "$0" -c "$1"', sys.executable, code]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0
    assert run.stderr.count("cannot be written, and is not updated from now on: [Errno 27] File too large") == 1
    assert "Traceback" not in run.stderr


class Broken(ModuleType):
    def __getattr__(self, name):
        raise TypeError("Descriptors cannot be created directly")


def test_a_package_that_does_not_fit_warns_and_ends_no_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", Broken("event_pb2"))
    with pytest.warns(UserWarning, match="tensorboard cannot be imported, so .* is not written: Descriptors"):
        train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_without_the_package_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "tensorboard").exists()
