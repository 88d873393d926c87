"""Evaluates the parameters of a finished run with other settings: more iterations, longer sequences, another split."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from rotrnn._support.json import to_json
from rotrnn._support.warn import warn
from rotrnn.devices.device import named
from rotrnn.devices.precisions import precision
from rotrnn.nn.layer import moved
from rotrnn.ops.boundary import Boundary, rename
from rotrnn.tasks import Series, Settings, Task
from rotrnn.tasks.own import OwnData, load_by
from rotrnn.tasks.rules import find_rules
from rotrnn.tasks.task import balanced_weights
from rotrnn.tasks.vocabulary import read_as
from rotrnn.training.evaluation import Found, contraction, evaluate
from rotrnn.training.recipe import (
    NO_SECTIONS,
    Recipe,
    change,
    check_dropped,
    parse_override,
    read_recipe,
    recipe_tables,
)
from rotrnn.training.run import PARAMETERS, Run, data_of
from rotrnn.training.state import checksum, initial_state
from rotrnn.training.sweep import Sweep, as_grid

PLACES = (
    *("task", "layer", "model"),
    *(f"training.{key}" for key in ("batch", "precision", "dtype", "class_weights", "label_smoothing")),
)
"""Settings that can influence an evaluation."""
SPLITS = ("train", "val", "test")
Changes = Sequence[tuple[str, Any]]
"""Settings "section.key", each with its value."""


def reevaluate(
    run: Run,
    *,
    split: str = "test",
    checkpoint: str = "best",
    overrides: Sequence[str] = (),
    grid: Sequence[tuple[str, Sequence[Any]]] = (),
    device: str = "cpu",
    fixed_points: bool = False,
) -> list[tuple[str, Found]]:
    """Evaluates a run's parameters once for each point of a grid of settings.

    Parameters
    ----------
    split : str
        "train", "val" or "test".
    checkpoint : str
        "init", "last" or "best".
    overrides : sequence of "section.key=value"
        Settings of the task, the layer or the model (or training.batch, precision, dtype, class_weights or
        label_smoothing) that differ from training.
    grid : sequence of ("section.key", values)
        Likewise with several values; each combination is evaluated.
    device : str
        "cpu", or "cuda" for a GPU.
    fixed_points : bool
        Adds "fixed_points" to the results: what `rotrnn.training.evaluation.contraction` returns of a batch.

    If the token ids depend on the training split, the run's ids are used, whatever is set here. So are the rules of own
    data (`rotrnn.tasks.rules.Rules`), with another task.path, too, whose parts may then be divided anew
    (task.val_fraction, ...), and the weights of "balanced" classes.

    Returns
    -------
    list of (str, dict)
        The name of each point ("max_iterations=4"; empty without a grid), and the results of `evaluate`. There is a
        warning if a key of the grid only changes initial values, so that all results are equal, one if the parameters
        were trained or selected on the split that they are evaluated on, one if the data file has changed since
        training, or is another one, whose training part has to serve for the scales of a series, or of a run without
        rules.json, and one if the files of another task.data_dir are not the files of the run.

    Raises
    ------
    ValueError
        There is no such run or setting; or a setting has no influence on an evaluation, changes the shape of a
        parameter, or decides which examples are for training, so that training examples would be evaluated (this is
        allowed for a generated task if another task.seed is set as well). Or `split` or `checkpoint` is none of these
        names, or `split` is endless. Or class_weights are "balanced", and neither rules.json has them nor can the
        labels of training be read.
    """
    args = Boundary("reevaluate")
    args.choice("split", split, SPLITS)
    args.choice("checkpoint", checkpoint, PARAMETERS)
    fixed_points, home = args.flag("fixed_points", fixed_points), named(args.op, device)
    trained = run.load_recipe().task
    changes = [parse_override(override) for override in overrides]
    rules = find_rules(run.folder) if isinstance(trained, OwnData) else None
    given = dict((*changes, *grid))
    _check_influence(run, trained, rules is not None, changes, given)
    _warn_of_files(run, trained, rules is not None, given)
    points = Sweep(grid=as_grid(grid)).configurations()
    found, started = [], []
    task: Task | None = None
    loaded: Any = None
    for name, (_, chosen) in points.items():
        recipe = _changed(run, [*changes, *chosen])
        if task is None or recipe.task != loaded:
            loaded = recipe.task
            if "task.data_dir" in given and (wrong := run.changed_data(loaded)) is not None:
                warn(wrong)
            task = load_by(loaded, rules)
            if task.symbols is not None and loaded != trained:
                task = read_as(task, trained.load())
            selected_on = None if _others(run, trained, dict((*changes, *chosen))) else task.selected_on
            if getattr(task, split).fresh:
                raise ValueError(
                    f"reevaluate: split: {split} is endless, its examples are generated on demand; expected val or test"
                )
        model = recipe.build(task)
        initial = initial_state(model, recipe)
        params = moved(run.load_params(checkpoint, initial.params), home)
        training = recipe.training
        if training.class_weights == "balanced":
            model = dataclasses.replace(model, class_weights=_balanced(run, recipe, task))
        with precision(training.precision):
            how: Any = {key: getattr(training, key) for key in ("batch", "dtype", "packed")}
            one = evaluate(model, params, task, getattr(task, split), **how)
            if fixed_points:
                how.pop("packed")
                try:
                    one["fixed_points"] = contraction(model, params, getattr(task, split), **how)
                except ValueError as error:
                    what = f"reevaluate: fixed_points: {run.folder}: layer {type(recipe.layer).__name__}"
                    rename(error, f"contraction: {type(model).__name__}", what)
                    raise
        found.append((name, one))
        started.append(checksum(initial))
    if split != "train" and selected_on == "training":
        warn(f"{split} is the training data: the data set has no validation or test split")
    if (split, checkpoint, selected_on) == ("test", "best", "test"):
        warn("the best parameters were selected on the test split: there is one for validation and test")
    _warn_of_initial_values([place for place, _ in grid], [chosen for _, chosen in points.values()], found, started)
    return found


def _balanced(run: Run, recipe: Recipe, task: Task) -> tuple[float, ...]:
    """Returns the balanced weights that the classes had in the run's training; `task` is the loaded one of `recipe`."""
    if task.rules is not None and task.rules.balanced is not None:
        return task.rules.balanced
    trained = run.load_recipe()
    if trained.moved(recipe).task == recipe.task and run.changed_data(recipe.task) is None:
        return balanced_weights(task)
    try:
        if (wrong := run.changed_data(trained.task)) is not None:
            raise ValueError(wrong)
        return balanced_weights(trained.task.load())
    except (OSError, ValueError) as error:
        what = f"training.class_weights is 'balanced', and the labels of training cannot be read: {error}"
        raise ValueError(f"reevaluate: {what}; expected a list, such as training.class_weights=[1, 2]") from error


def _check_influence(run: Run, trained: Settings, has_rules: bool, changes: Changes, given: dict[str, Any]) -> None:
    """Raises ValueError if a `given` setting, one of `changes` or a key of the grid, has no influence on an evaluation,
    or decides which examples the run was trained on."""
    split_settings = () if _others(run, trained, dict(changes)) else getattr(trained, "split_settings", ())
    for place in given:
        if place not in PLACES and place.partition(".")[0] not in PLACES:
            raise ValueError(f"{place} has no influence on an evaluation, expected a key of {', '.join(PLACES)}")
        section, _, key = place.partition(".")
        if section == "task" and key in split_settings:
            expected = "its value in the run" + (", or another task.seed with it" if _seeded(trained) else "")
            raise ValueError(f"{place} decides which examples the run was trained on, expected {expected}")
        if place == "task.scale" and has_rules:
            raise ValueError(f"{place} has no influence on an evaluation, expected it unset: the scales are the run's")


def _warn_of_files(run: Run, trained: Settings, has_rules: bool, given: dict[str, Any]) -> None:
    """Warns if the run's data files have changed, or if what was learnt of them has to be learnt of another file."""
    wrong = None if "task.data_dir" in given else run.changed_data(trained)
    if "task.path" in given:
        learnt = isinstance(trained, OwnData | Series) and not has_rules
        wrong = "task.path: scales, classes and features follow from the new file's training part" if learnt else None
    if wrong is not None:
        warn(wrong)


def _changed(run: Run, changes: Changes) -> Recipe:
    """Returns the run's recipe with other settings."""
    tables = {key: table for key, table in recipe_tables(run.recipe).items() if key not in NO_SECTIONS}
    try:
        dropped = change(tables, changes)
        recipe = read_recipe(tables, trust=False)
        check_dropped(recipe, dropped)
    except ValueError as error:
        raise ValueError(f"{run.recipe}: {error}") from error
    return recipe


def _warn_of_initial_values(
    places: Sequence[str], points: Sequence[Changes], found: Sequence[tuple[str, Found]], started: Sequence[int]
) -> None:
    """Warns of each key of a grid with which the initial parameters vary and the results at its `points` do not."""
    for place in places:
        others = [repr([one for one in chosen if one[0] != place]) for chosen in points]
        outcomes = {(other, to_json(one)) for other, (_, one) in zip(others, found, strict=True)}
        starts = set(zip(others, started, strict=True))
        if len(outcomes) == len(set(others)) < len(starts):
            warn(
                f"{place} only changes initial values: the run's parameters are evaluated for every value; "
                "to compare values, train with each of them (rotrnn sweep)"
            )


def _seeded(task: Settings) -> bool:
    """Returns whether all examples are generated, and depend on a seed."""
    files = getattr(task, "data_dir", "") or getattr(task, "download", False)
    return hasattr(task, "seed") and "seed" not in getattr(task, "split_settings", ()) and not files


def _others(run: Run, task: Settings, changes: dict[str, Any]) -> bool:
    """Returns whether another seed, or a data file with other contents, makes sure that the examples are not those of
    training."""
    if "task.path" in changes and (known := run.trained_on()) is not None:
        return data_of(SimpleNamespace(path=changes["task.path"])) != known
    return _seeded(task) and changes.get("task.seed", getattr(task, "seed", None)) != getattr(task, "seed", None)
