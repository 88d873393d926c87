"""A run's log as TensorBoard reads it."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import toy
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe
from rotrnn.training.run import Run
from rotrnn.training.tensorboard import Board, scalars
from test_training import contents


def toy_recipe(tmp_path, *overrides):
    (tmp_path / "toy.toml").write_text(toy.RECIPE)
    return load_recipe(tmp_path / "toy.toml", overrides)


def shown(folder):
    """Tag -> the steps and values that TensorBoard would draw."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: [(one.step, float(np.float32(one.tensor_proto.float_val[0]))) for one in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def expected(run, tag, key):
    records = [record for record in run.records() if key in record]
    return {tag: [(record["step"], float(np.float32(record[key]))) for record in records]}


def test_it_shows_the_log_and_no_point_twice_after_resuming(tmp_path, monkeypatch):
    recipe = toy_recipe(tmp_path, "training.eval_every=4")
    pytest.importorskip("tensorboard")
    train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    for _ in range(2):
        found = shown(run.folder / "tensorboard")
        for tag, key in (
            ("training/loss", "loss"),
            ("training/grad_norm", "grad_norm"),
            ("validation/accuracy", "val_accuracy"),
        ):
            assert found[tag] == expected(run, tag, key)[tag]
        assert [step for step, _ in found["state_norms/0"]] == list(range(4, 41, 4))
        run.log.write_bytes(run.log.read_bytes() + b'{"step": 41, "loss": 1.0}\n')  # of a run that went on too far
        train(recipe, run.folder, resume=True, progress=False)


def test_the_names_of_what_is_shown():
    record = {"step": 3, "val_loss": 1.0, "elapsed": 2.0, "layers": {"0.iterations": 5.0}, "state_norms": [6.0]}
    assert dict(scalars(record)) == {"validation/loss": 1.0, "layers/0.iterations": 5.0, "state_norms/0": 6.0}
    assert dict(scalars({"step": 3, "loss": 1.0, "lr": 0.1})) == {"training/loss": 1.0, "training/lr": 0.1}


@pytest.fixture
def fake(monkeypatch):
    """A stand-in for the package, whose Writer is put in its attribute by the test."""
    module = types.ModuleType("tensorboard.summary")
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "tensorboard.summary", module)
    return module


class Recording:
    """Writes nothing, and fails at the third point if `fails`."""

    fails = False

    def __init__(self, folder):
        self.points = []

    def add_scalar(self, tag, value, step):
        if self.fails and len(self.points) == 2:
            raise OSError(28, "No space left on device")
        self.points.append((tag, value, step))

    def flush(self): ...

    def close(self): ...


def test_steps_between_evaluations_are_thinned(tmp_path, fake):
    fake.Writer = Recording
    board = Board(Run(tmp_path), [{"step": step, "loss": 1.0} for step in range(1, 101)], 100)
    assert [step for *_, step in board.writer.points] == list(range(5, 101, 5))
    board.add([{"step": 101, "loss": 1.0}, {"step": 101, "val_loss": 1.0}])
    assert board.writer.points[-1] == ("validation/loss", 1.0, 101)


def test_what_goes_wrong_in_it_warns_and_ends_no_training(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(Recording, "fails", True)
    fake.Writer = Recording
    with pytest.warns(UserWarning, match=r"tensorboard: cannot be written, and is left out from here on: .*No space"):
        train(toy_recipe(tmp_path), tmp_path / "run", progress=False)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    train(toy_recipe(tmp_path), tmp_path / "without", progress=False)
    assert contents(tmp_path / "run") == contents(tmp_path / "without")
