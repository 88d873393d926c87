"""Evaluating a run with other settings, and estimating the cost of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import ClassVar

import numpy as np
import pytest

import toy
from rotrnn.cli import main
from rotrnn.tasks import TASKS, Released
from rotrnn.tasks.digits import Digits
from rotrnn.tasks.listops import TOKENS
from rotrnn.tasks.released import Release
from rotrnn.tasks.vocabulary import ids_of
from rotrnn.training.estimate import estimate
from rotrnn.training.evaluation import evaluate
from rotrnn.training.loop import train
from rotrnn.training.optimiser import NonFinite
from rotrnn.training.recipe import load_recipe
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.results import duration
from rotrnn.training.run import Run

WORDS = """
[task]
name = "word_problem"
group = "Z2"
length = 4
test_length = 6
test = 20
samples = 50
[model]
layer = "fixed_point"
d_model = 8
n_layers = 1
norm = "layer"
[layer]
d_state = 4
tol = 1e-5
[training]
batch = 5
steps = 3
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "words.toml").write_text(WORDS, encoding="utf-8")
    train(load_recipe(folder / "words.toml"), folder / "run", progress=False)
    return Run(folder / "run")


def test_parameters_selected_on_the_test_split_are_reported(tmp_path, recwarn):
    """IMDB has no validation split."""
    kind = TASKS["imdb"]
    kind(max_length=20).stand_in(tmp_path / "data", 4)
    settings = [f"task.data_dir={tmp_path / 'data'}", "task.max_length=20", "training.steps=2", "training.batch=2"]
    train(load_recipe("text-lru-small", settings), tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    with pytest.warns(UserWarning, match="the best parameters were selected on the test split"):
        reevaluate(run)
    recwarn.clear()
    reevaluate(run, checkpoint="last")
    reevaluate(run, split="train")
    assert not [one for one in recwarn if "selected on" in str(one.message)]


def test_without_changes_it_is_what_training_found(run):
    result = run.read_json(run.result)
    for name in ("best", "last"):
        assert reevaluate(run, checkpoint=name) == [("", result["test"][name])]


@pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")
def test_each_point_is_evaluated_with_the_same_parameters(run):
    grid = [("layer.max_iterations", [1, 3]), ("task.test_length", [5, 9])]
    found = dict(reevaluate(run, overrides=["layer.tol=1e-6"], grid=grid))
    assert list(found) == [f"max_iterations={k},test_length={n}" for k in (1, 3) for n in (5, 9)]
    params = run.load_params("best")
    for k, n in ((1, 5), (3, 9)):
        recipe = run.load_recipe([f"layer.max_iterations={k}", f"task.test_length={n}", "layer.tol=1e-6"])
        task = recipe.task.load()
        expected = evaluate(recipe.build(task), params, task, task.test, batch=5, dtype="float32")
        assert found[f"max_iterations={k},test_length={n}"] == expected
    assert found["max_iterations=1,test_length=9"]["loss"] != found["max_iterations=3,test_length=9"]["loss"]
    assert max(found["max_iterations=1,test_length=9"]["curve"]["length"]) == 9


def test_weights_and_smoothing_of_the_loss(tmp_path):
    """Both change the loss of an evaluation, in training and later, and nothing else."""
    how = ["training.steps=2", "training.label_smoothing=0.5", "training.class_weights=[1,2,1,1,1,1,1,1,1,3]"]
    train(load_recipe("digits-lru", [*how, "model.d_model=4", "model.n_layers=1"]), tmp_path / "run", progress=False)
    run, plain, ones = Run(tmp_path / "run"), {"label_smoothing": 0.0, "class_weights": None}, [1] * 10
    trained = run.read_json(run.result)["test"]["best"]
    assert reevaluate(run) == [("", trained)]
    task, params, changes = run.load_recipe().task.load(), run.load_params("best"), [f"training.class_weights={ones}"]
    for smoothing in (0.5, 0.0):
        model = dataclasses.replace(run.load_recipe().build(task), **plain | {"label_smoothing": smoothing})
        found = evaluate(model, params, task, task.test, batch=run.load_recipe().training.batch, dtype="float32")
        ((_, one),) = reevaluate(run, overrides=[*changes, f"training.label_smoothing={smoothing}"])
        assert one == {**found, "loss": pytest.approx(found["loss"], rel=1e-6)}
        assert one["loss"] != pytest.approx(trained["loss"], rel=1e-3)
    (_, balanced), _ = reevaluate(run, grid=[("training.class_weights", ["balanced", ones])])
    assert balanced["loss"] != trained["loss"]


def test_what_has_no_influence_or_changes_a_parameter_is_refused(run):
    for place in ("optimiser.lr", "training.steps", "source.note"):
        with pytest.raises(ValueError, match=f"{place} has no influence on an evaluation, expected a key of task"):
            reevaluate(run, overrides=[f"{place}=1"])
    with pytest.raises(ValueError, match=r"best\.safetensors: .* has shape .*, expected"):
        reevaluate(run, overrides=["layer.d_state=8"])
    with pytest.raises(ValueError, match=r"recipe\.toml: unknown key layer\.iterations"):
        reevaluate(run, grid=[("layer.iterations", [1, 2])])


@pytest.mark.parametrize(
    ("recipe", "place"),
    [
        ("digits-lru", "task.seed=1"),
        ("digits-lru", "task.val_fraction=0.2"),
        ("listops-lru-small", "task.train=50"),
        ("listops-lru-small", "task.min_length=2"),
        ("listops-lru-small", "task.max_length=2000"),
        ("listops-lru-small", "task.max_depth=3"),
        ("listops-lru-small", "task.max_args=4"),
        ("word-problem-small", "task.length=2"),
        ("pathfinder-lru-small", "task.test=30"),
        ("word-problem-small", "task.samples=30"),
    ],
)
def test_what_was_trained_on_is_not_evaluated(tmp_path, recipe, place):
    """These settings would give other splits of the same examples."""
    Run(tmp_path).write(Run(tmp_path).recipe, load_recipe(recipe).text())
    with pytest.raises(ValueError, match=f"{place.split('=')[0]} decides which examples the run was trained on"):
        reevaluate(Run(tmp_path), overrides=[place])


def test_another_seed_makes_other_examples(tmp_path):
    """Only if all examples are generated: for files the seed has no such meaning."""
    run = Run(tmp_path)
    recipe = load_recipe("listops-lru-small", ["task.train=50", "task.val=4", "task.test=4", "training.steps=1"])
    train(recipe, tmp_path / "run", progress=False)
    reevaluate(Run(tmp_path / "run"), overrides=["task.max_length=200", "task.seed=1"])
    for other in ("task.seed=0", "task.data_dir=x"):
        run.write(run.recipe, load_recipe("listops-lru-small", ["task.seed=0", other]).text())
        changes = ["task.max_length=200", f"task.seed={'1' if 'data' in other else '0'}"]
        with pytest.raises(ValueError, match="max_length decides which examples the run was trained on"):
            reevaluate(run, overrides=changes)


def test_a_split_without_an_end_is_not_evaluated(tmp_path):
    Run(tmp_path).write(Run(tmp_path).recipe, load_recipe("copy-small").text())
    with pytest.raises(ValueError, match=r"reevaluate: split: train is endless, .* expected val or test"):
        reevaluate(Run(tmp_path), split="train")


def test_names_of_splits_and_checkpoints(run, tmp_path, capsys):
    with pytest.raises(ValueError, match="reevaluate: split is 'tset', expected one of train, val, test"):
        reevaluate(run, split="tset")
    with pytest.raises(ValueError, match="reevaluate: checkpoint is 'bst', expected one of init, last, best"):
        reevaluate(run, checkpoint="bst")
    Run(tmp_path).write(Run(tmp_path).recipe, load_recipe("copy-small").text())
    assert main(["eval", str(tmp_path), "--split", "train"]) == 2
    assert "error: --split: train is endless" in capsys.readouterr().err


def test_ids_are_those_of_training(tmp_path):
    """Longer expressions, whose own vocabulary has another order, are read with the token ids of the run."""
    run = Run(tmp_path)
    settings = ["train=200", "val=40", "test=50", "min_length=5", "max_length=20"]
    recipe = load_recipe("listops-lru-small", [*(f"task.{one}" for one in settings), "training.steps=2"])
    train(recipe, run.folder, progress=False)
    known, task = recipe.task.load(), dataclasses.replace(recipe.task, max_length=60, seed=1).load()
    assert known.symbols.tolist() != task.symbols.tolist()
    own = dataclasses.replace(task, test=dataclasses.replace(task.test, ids=ids_of(known.symbols, len(TOKENS))))
    model, params = recipe.build(known), run.load_params("best")
    batch, dtype = recipe.training.batch, recipe.training.dtype
    expected = evaluate(model, params, own, own.test, batch=batch, dtype=dtype)
    assert reevaluate(run, overrides=["task.max_length=60", "task.seed=1"]) == [("", expected)]
    assert evaluate(model, params, task, task.test, batch=batch, dtype=dtype) != expected


def test_a_setting_that_only_changes_initial_values_is_reported(run, recwarn):
    """Only for such a key: not for one that changes the results, and not for one that changes nothing at all."""
    init = ("layer.lambda_init", [[0.9, 0.999], [0.1, 0.5]])
    with pytest.warns(UserWarning, match=r"^layer\.lambda_init only changes initial values"):
        found = reevaluate(run, grid=[init])
    assert found[0][1] == found[1][1]
    recwarn.clear()
    reevaluate(run, grid=[("task.test_length", [5, 9]), init, ("layer.max_iterations", [200, 300])])
    assert [str(one.message).partition(" ")[0] for one in recwarn] == ["layer.lambda_init"]
    recwarn.clear()
    reevaluate(run, grid=[("task.test_length", [5, 9]), ("training.batch", [5])])
    assert not recwarn


@pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")
def test_the_command(run, tmp_path, capsys):
    path = tmp_path / "curve.json"
    assert main(["eval", str(run.folder), "--grid", "layer.max_iterations=2,4", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("test, best parameters\n|")
    assert "| max_iterations=4 |" in out
    written = json.loads(path.read_text(encoding="utf-8"))
    expected = reevaluate(run, grid=[("layer.max_iterations", [2, 4])])
    assert [one["point"] for one in written] == ["max_iterations=2", "max_iterations=4"]
    assert [one["curve"] for one in written] == [found["curve"] for _, found in expected]
    assert main(["eval", str(run.folder), "--set", "task.test_length=5", "--checkpoint", "last"]) == 0
    assert "test, last parameters: loss" in capsys.readouterr().out
    assert main(["eval", str(run.folder), "--fixed-points", "--out", str(path)]) == 0
    assert "block 1: |J| of the maps of 35 tokens: median" in capsys.readouterr().out
    (one,) = json.loads(path.read_text(encoding="utf-8"))[0]["fixed_points"]
    assert one["tokens"] == 5 * (6 + 1)  # with BOS
    assert sum(one["shares"]) == pytest.approx(1)


@pytest.mark.filterwarnings("ignore:.*drops settings of the old one")
def test_a_layer_without_fixed_points_is_named(tmp_path, capsys):
    (tmp_path / "words.toml").write_text(WORDS, encoding="utf-8")
    settings = ["model.layer=lru", "layer.d_state=4", "training.steps=1"]
    train(load_recipe(tmp_path / "words.toml", settings), tmp_path / "run", progress=False)
    assert main(["eval", str(tmp_path / "run"), "--fixed-points"]) != 0
    expected = f"--fixed-points: {tmp_path / 'run'}: layer LRU has no fixed points, expected a layer that iterates"
    assert expected in capsys.readouterr().err


# ---- estimates ----


def toy_recipe(tmp_path, *overrides):
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    return load_recipe(tmp_path / "toy.toml", overrides)


def test_an_estimate_counts_what_training_does(tmp_path):
    """Sleeping makes a step take at least 10 ms. There are 40 steps, an evaluation of 30 examples every 7 steps, and
    two of 30 at the end."""
    recipe = toy_recipe(tmp_path, "task.delay=0.01", "training.seed=1")
    found = estimate(recipe, 5)
    assert found.seconds_per_step >= 0.01
    assert (found.steps_run, found.steps, found.evaluations, found.val, found.test) == (5, 40, 6, 30, 30)
    assert found.seconds == 40 * found.seconds_per_step + (6 * 30 + 2 * 30) * found.seconds_per_example
    assert found.parameters == train(recipe, tmp_path / "run", progress=False)["parameters"]
    assert found.peak_memory > 2**20
    text = found.text()
    assert text.startswith(
        f"19 parameters; 5 steps of 16 sequences: {duration(found.seconds_per_step)} per step, peak "
    )
    assert "6 evaluations of 30 examples and 2 of 30: " in text
    short = toy_recipe(tmp_path, "training.steps=2")
    assert estimate(short, 5).steps_run == estimate(short.tables(), 5).steps_run == 2
    with pytest.raises(TypeError, match="estimate: recipe is a str, expected a Recipe, such as load_recipe"):
        estimate("digits-lru")


@dataclasses.dataclass(frozen=True)
class Kept(Released):
    """Digits, which for an estimate look like data read from files."""

    release: ClassVar[Release] = Release((), ("count.npy",), (".",))

    cache_dir: str = "elsewhere"
    download: bool = True

    @property
    def shape(self):
        return Digits().shape

    @property
    def sizes(self):
        return {"train": 900, "val": 123, "test": 456}

    def load(self):
        assert not self.cache_dir
        assert not self.download
        assert np.load(f"{self.data_dir}/count.npy", allow_pickle=False) == 40
        return Digits(val_fraction=0.01, test_fraction=0.01).load()

    def write_random(self, folder, examples):
        np.save(f"{folder}/count.npy", examples)


def test_an_estimate_from_stand_in_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TASKS, "kept", Kept)
    path = tmp_path / "kept.toml"
    path.write_text(toy.RECIPE.replace('"toy"', '"kept"'), encoding="utf-8")
    assert main(["estimate", str(path), "--stand-in", "40", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 steps of 16 sequences" in out
    assert "6 evaluations of 123 examples and 2 of 456: " in out


def test_an_estimate_from_fewer_examples_than_the_task_makes():
    """ListOps of full length with a minimal model: 20 of its 100,000 expressions are generated, and the estimate is for
    all."""
    small = ["model.d_model=8", "model.n_layers=1", "layer.d_state=4", "training.batch=4"]
    found = estimate(load_recipe("listops-lru", small), 2, stand_in=20)
    assert (found.val, found.test, found.evaluations) == (2000, 2000, 80)
    assert found.seconds == pytest.approx(80_000 * found.seconds_per_step + (80 + 2) * 2000 * found.seconds_per_example)


def test_a_stand_in_of_a_task_without_files_is_the_task(tmp_path):
    found = estimate(toy_recipe(tmp_path), 3, stand_in=10)
    assert (found.val, found.test) == (30, 30)


@pytest.mark.parametrize(
    ("name", "val", "test"), [("word-problem", 3_200, 2_000), ("copy", 184, 768), ("brackets", 500, 2_000)]
)
def test_an_estimate_of_a_generated_task_of_any_kind(name, val, test):
    """A stand-in has a batch at least, whatever is asked for, and the estimate is for all examples."""
    small = ["model.d_model=8", "model.n_layers=1", "model.layer=lru", "layer.d_state=4", "training.batch=16"]
    with pytest.warns(UserWarning, match="another model.layer drops"):
        recipe = load_recipe(f"{name}-small", [*small, "optimiser.no_decay=[]"])
    found = estimate(recipe, 2, stand_in=3)
    assert (found.val, found.test, found.batch) == (val, test, 16)
    assert found.seconds > 0


def test_an_estimate_of_a_training_that_fails_tells_where(tmp_path):
    with pytest.raises(NonFinite, match="step 3: the loss is nan"):
        estimate(toy_recipe(tmp_path, "task.nan_at=2"), 5)
    assert math.isfinite(estimate(toy_recipe(tmp_path, "task.nan_at=2"), 2).seconds)
