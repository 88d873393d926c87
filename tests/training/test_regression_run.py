"""Runs of a regression, of several labels and of weighted classes by the training loop of recipes, and patience."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
from rotrnn.nn.layer import flatten
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.tasks import describe, save_arrays
from rotrnn.tasks.task import balanced_weights, shuffled
from rotrnn.training.evaluation import confusion, evaluate
from rotrnn.training.loop import train
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.results import collect
from rotrnn.training.run import Run
from rotrnn.training.step import Stepper

pytestmark = pytest.mark.slow

RECIPE = """
[task]
name = "arrays"
path = "data.npz"
{task}
[model]
layer = "lru"
d_model = 8
n_layers = 1
norm = "layer"
{model}
[layer]
d_state = 8
[optimiser]
lr = 0.02
[training]
batch = 16
steps = 120
eval_every = 20
{training}
"""


def recipe_in(folder: Path, x: Any, y: Any, task: str = "", model: str = "", training: str = "", **more: Any) -> Recipe:
    folder.mkdir(exist_ok=True)
    save_arrays(folder / "data.npz", x, y, **more)
    (folder / "own.toml").write_text(RECIPE.format(task=task, model=model, training=training), encoding="utf-8")
    return load_recipe(folder / "own.toml")


def ragged(n: int = 120) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((4 + i % 5, 2)) for i in range(n)]


@pytest.mark.parametrize("model", ["", 'objective = "mae"', 'objective = "quantile"\nquantiles = [0.25, 0.5, 0.75]'])
@pytest.mark.parametrize("per_step", [False, True])
def test_a_recipe_learns_numbers(tmp_path: Path, model: str, per_step: bool) -> None:
    """Sums of what was read: a linear recurrence does them, so that little of the loss of a constant is left."""
    x = ragged()
    y = [one.cumsum(0) if per_step else one.sum(0) for one in x]
    task = f'kind = "regression"\nper_step = {str(per_step).lower()}'
    recipe = recipe_in(tmp_path, x, y if per_step else np.array(y), task, model, per_step=per_step)
    result = train(recipe, tmp_path / "run", progress=False)
    assert result["metric"] == "skill"
    found = result["test"]["best"]
    assert found.keys() == {"loss", "skill", "n"}
    assert found["skill"] > 0.5
    records = Run(tmp_path / "run").records()
    assert all("accuracy" not in one for one in records)
    best = max(one["val_skill"] for one in records if "val_skill" in one)
    assert best == result["best_score"]
    assert collect([Run(tmp_path / "run")])[0]
    loaded = recipe.task.load()
    text = describe(loaded)
    assert "2 targets" in text
    assert "standard deviation" in text
    with pytest.raises(ValueError, match="confusion: arrays is a regression, expected a task with classes"):
        confusion(recipe.build(loaded), {}, loaded, loaded.test, batch=8, dtype=np.float32)  # type: ignore[arg-type]


def test_accumulated_parts_of_a_regression_have_the_gradient_of_the_whole(tmp_path: Path) -> None:
    """Targets that do not count make parts of different weight; the log's losses agree to rounding of float32."""
    x, y = ragged(), np.random.default_rng(1).standard_normal((120, 2))
    y[::3, 0] = np.nan
    recipe = recipe_in(tmp_path, x, y, 'kind = "regression"')
    losses = []
    for parts in (1, 3):
        training = dataclasses.replace(recipe.training, accumulate=parts, steps=5)
        train(dataclasses.replace(recipe, training=training), tmp_path / f"run{parts}", progress=False)
        losses.append([one["loss"] for one in Run(tmp_path / f"run{parts}").records() if "loss" in one])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_the_skill_of_a_loss_that_is_not_finite_is_the_lowest_number(tmp_path: Path) -> None:
    x, y = ragged(), np.random.default_rng(1).standard_normal((120, 1))
    recipe = recipe_in(tmp_path, x, y, 'kind = "regression"')
    task = recipe.task.load()
    model = recipe.build(task)
    params = model.init(np.random.default_rng(0))
    params["head"]["bias"][:] = 3e38  # its square is no float32
    with np.errstate(over="ignore"):
        found = evaluate(model, params, task, task.test, batch=16, dtype=np.float32)
    assert found["skill"] == -np.finfo(np.float64).max
    assert np.isfinite(json.loads(json.dumps(found["skill"])))


def test_the_skill_of_targets_that_are_all_zero(tmp_path: Path) -> None:
    """It is 0, or 1 of a model without a loss; the reference has no loss of which to be a share."""
    x, y = ragged(), np.full((120, 1), 3.0)
    recipe = recipe_in(tmp_path, x, y, 'kind = "regression"')
    task = recipe.task.load()
    model = recipe.build(task)
    params = model.init(np.random.default_rng(0))
    for one in params["head"].values():
        one[:] = 0
    for bias, skill in ((0, 1.0), (1, 0.0)):
        params["head"]["bias"][:] = bias
        found = evaluate(model, params, task, task.test, batch=16, dtype=np.float32)
        assert (found["loss"], found["skill"]) == (bias, skill)


def test_several_labels_and_balanced_weights(tmp_path: Path) -> None:
    x = ragged()
    y = np.array([[one[:, 0].sum() > 1, one[:, 1].sum() > 0] for one in x], np.int64)
    recipe = recipe_in(tmp_path, x, y, 'kind = "multilabel"', training='class_weights = "balanced"')
    task = recipe.task.load()
    labels = np.concatenate([task.train.batch(np.array([i])).labels for i in range(len(task.train))])
    expected = (labels == 0).sum(0) / (labels == 1).sum(0)
    model = recipe.build(task)
    np.testing.assert_allclose(model.class_weights, expected, rtol=1e-15)
    result = train(recipe, tmp_path / "run", progress=False)
    assert result["test"]["last"]["accuracy"] > 0.75
    assert result["test"]["last"]["sequence_accuracy"] <= result["test"]["last"]["accuracy"]


def test_balanced_weights_of_classes_and_weights_that_are_given(tmp_path: Path) -> None:
    """With weights n / (C n_c) each class has the same weight in all: n_c w_c = n / C."""
    x, y = ragged(), np.repeat(["a", "b", "c"], [80, 30, 10])
    recipe = recipe_in(tmp_path, x, y, training='class_weights = "balanced"')
    task = recipe.task.load()
    labels = task.train.batch(np.arange(len(task.train))).labels
    weights = np.array(balanced_weights(task))
    np.testing.assert_allclose(np.bincount(labels) * weights, len(labels) / 3, rtol=1e-14)
    more = dataclasses.replace(task, n_classes=5)  # of which two never occur: C counts those that do
    assert balanced_weights(more) == (*weights, 1.0, 1.0)
    assert recipe.build(task.load().shape if hasattr(task, "load") else recipe.task.shape).class_weights is None
    given = recipe_in(tmp_path, x, y, training="class_weights = [1, 2, 3.5]")
    assert given.build(task).class_weights == (1.0, 2.0, 3.5)
    assert given.digest() != recipe.digest()
    for text, message in (
        ('class_weights = "even"', "class_weights is 'even', expected 'balanced' or a list"),
        ("class_weights = [1, -1]", r"class_weights is \(1.0, -1.0\), expected numbers of at least 0"),
        ("class_weights = [0, 0]", r"class_weights is \(0.0, 0.0\), expected numbers of at least 0, one above 0"),
        ("patience = 0", "patience is 0, expected an integer from 1"),
        ("label_smoothing = 1", r"label_smoothing is 1.0, expected a number in \[0, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe_in(tmp_path, x, y, training=text)


def test_labels_are_smoothed_in_training_and_evaluation(tmp_path: Path) -> None:
    """The loss of a step is that of its op; a run from before the setting has the digest of one without."""
    x, y = ragged(), np.repeat(["a", "b", "c"], [80, 30, 10])
    recipe, plain = (recipe_in(tmp_path, x, y, training=text) for text in ("label_smoothing = 0.1", ""))
    task = recipe.task.load()
    labels = task.train.batch(np.arange(9)).labels
    logits = np.random.default_rng(0).standard_normal((9, 3))
    found = recipe.build(task).loss(logits, labels)
    mean, dlogits = cross_entropy(logits, labels, label_smoothing=0.1)
    assert found.mean == mean
    np.testing.assert_array_equal(found.dlogits, dlogits)
    assert plain.build(task).loss(logits, labels).mean == cross_entropy(logits, labels)[0]
    assert recipe.digest() != plain.digest() == recipe_in(tmp_path, x, y, training="label_smoothing = 0.0").digest()
    bits = recipe_in(
        tmp_path, x, np.eye(3, dtype=int)[[0] * 120], 'kind = "multilabel"', training="label_smoothing = 0.1"
    )
    with pytest.raises(
        ValueError, match=r"MultiLabelClassifier: label_smoothing is 0\.1, expected 0: labels are not classes"
    ):
        bits.build(bits.task.load())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_in_which_no_label_counts_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    """It is logged without a loss, whether `skip` is set or not, and no step that is left out."""
    x = ragged()
    y = np.array([one.sum() for one in x])
    y[np.random.default_rng(1).random(len(y)) < 0.6] = np.nan
    recipe = recipe_in(tmp_path, x, y, 'kind = "regression"', training=f"accumulate = {accumulate}")
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, batch=2))
    advance, empty = Stepper.advance, []

    def watched(self: Stepper, state: Any) -> Any:
        before = {name: array.copy() for name, array in state.arrays().items()}
        state.skipped = 5
        records = advance(self, state)
        assert state.skipped in (0, 5)
        if state.skipped:
            empty.append(state.step)
            for name, array in state.arrays().items():
                np.testing.assert_array_equal(array, before[name])
        return records

    monkeypatch.setattr(Stepper, "advance", watched)
    train(recipe, tmp_path / "run", progress=False)
    steps = [one for one in Run(tmp_path / "run").records() if "loss" in one]
    assert len(steps) == 120
    assert 0 < len(empty) < 120
    for key in ("loss", "grad_norm"):
        assert [one["step"] for one in steps if np.isnan(one[key])] == empty


@pytest.mark.parametrize(("name", "n"), [("training", 84), ("validation", 12), ("test", 24)])
@pytest.mark.parametrize(("kind", "label"), [("regression", "number"), ("multilabel", "label")])
def test_a_split_in_which_no_label_counts_is_refused(tmp_path: Path, kind: str, label: str, name: str, n: int) -> None:
    """Before the first step. `describe` tells that there are none, without a warning. Without any for training, the
    data are refused."""
    part = dict(zip(("test", "validation", "training"), np.split(shuffled(120, 0, 0), [24, 36]), strict=True))[name]
    y: Any = np.arange(120.0) % 2
    y[part] = np.nan if kind == "regression" else -1
    recipe = recipe_in(tmp_path, ragged(), y, f'kind = "{kind}"', training="")
    message = f"train: arrays: none of the {n} sequences for {name} has a label that counts, expected at least one"
    if name == "training":
        message = rf"data\.npz: target 0 has no {label} in the {n} sequences for training, expected one"
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    if name != "training":
        assert describe(recipe.task.load()).count("nan") >= 1


def test_patience_ends_a_run_and_one_that_is_resumed_at_the_same_step(tmp_path: Path) -> None:
    """Toy data are learnt in a few evaluations; the run ends once two in a row have brought nothing better."""
    (tmp_path / "toy.toml").write_text(toy.RECIPE.replace("steps = 40", "steps = 4000\npatience = 2"), encoding="utf-8")
    recipe = load_recipe(tmp_path / "toy.toml")
    result = train(recipe, tmp_path / "run", progress=False)
    assert result["steps"] < 4000
    scores = [one["val_accuracy"] for one in Run(tmp_path / "run").records() if "val_accuracy" in one]
    best = scores.index(max(scores))
    assert best == len(scores) - 3
    assert result["best_step"] == 7 * max(i for i, score in enumerate(scores, 1) if score == scores[best])
    assert result["steps"] == (best + 3) * 7
    before = toy.contents(tmp_path / "run")
    assert train(recipe, tmp_path / "run", resume=True, progress=False) == result
    assert toy.contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("task", "model", "training"),
    [
        ("", "", 'class_weights = "balanced"'),
        ('kind = "multilabel"', "", 'class_weights = "balanced"'),
        ('kind = "regression"', "", ""),
        ('kind = "regression"', 'objective = "quantile"\nquantiles = [0.25, 0.75]', ""),
    ],
)
def test_a_weight_counts_as_so_many_sequences(tmp_path: Path, task: str, model: str, training: str) -> None:
    """Weights, of which ratios matter, and repeated sequences make the same scales, weights of classes, scores and
    parameters. An update of AdamW is g / |g| at first, so where a gradient is 1e-6 of the largest, a sum of a hundred
    terms, its rounding of 1e-14 is one of 1e-8 in a parameter, for a learning rate of 0.02."""
    rng, x = np.random.default_rng(7), ragged(20)
    weights = 1 + np.arange(20) % 4
    if "regression" in task:
        y: Any = rng.standard_normal((20, 2))
    else:
        y = rng.integers(0, 2, (20, 2)) if task else np.arange(20) % 3
    rows = np.repeat(np.arange(20), weights)
    runs, found = [], []
    for name, given, labels, more in (
        ("weighted", x, y, {"weights": 0.1 * weights}),
        ("repeated", [x[i] for i in rows], y[rows], {}),
    ):
        task = f"{task}\nval_fraction = 0\ntest_fraction = 0"
        recipe = recipe_in(tmp_path / name, given, labels, task, model, f'dtype = "float64"\n{training}', **more)
        recipe = dataclasses.replace(
            recipe, training=dataclasses.replace(recipe.training, batch=len(given), steps=5, eval_every=5)
        )
        found.append(train(recipe, tmp_path / name / "run", progress=False)["test"]["last"])
        runs.append(dict(flatten(Run(tmp_path / name / "run").load_params("last"))))
        task = task.partition("\n")[0]
    for name, one in runs[0].items():
        np.testing.assert_allclose(one, runs[1][name], rtol=0, atol=1e-8, err_msg=name)
    assert [found[0].pop("n"), found[1].pop("n")] == [20, len(rows)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize(
    ("weights", "more", "message"),
    [
        ([1.0, 2.0], {}, r"weights has shape \(2,\) and dtype float64, expected numbers \(3,\), one for each sequence"),
        (["a", "b", "c"], {}, "weights has shape .* dtype <U1, expected numbers"),
        ([1.0, 0.0, 2.0], {}, "weights, sequence 1: got 0.0, expected a positive number"),
        ([1.0, 2.0, np.nan], {}, "weights, sequence 2: got nan, expected a positive number"),
        ([1.0, 2.0, 1.0], {"per_step": True}, "has weights, expected none with per_step"),
    ],
)
def test_weights_that_are_refused(tmp_path: Path, weights: Any, more: Any, message: str) -> None:
    y = np.zeros((3, 4)) if more else np.zeros(3)
    with pytest.raises(ValueError, match=f"save_arrays: {message}"):
        save_arrays(tmp_path / "data.npz", np.zeros((3, 4)), y, weights=weights, **more)
    assert not (tmp_path / "data.npz").exists()
