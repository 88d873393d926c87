"""The parameters of a finished run under other settings: more iterations, longer sequences, another split."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

from rotrnn.tasks import Settings, Task
from rotrnn.tasks.vocabulary import read_as
from rotrnn.training.evaluation import Found, evaluate
from rotrnn.training.recipe import NO_SECTIONS, change, parse_override, read_recipe, recipe_tables
from rotrnn.training.run import Run
from rotrnn.training.state import checksum, initial_state
from rotrnn.training.sweep import Sweep, as_grid

PLACES = ("task", "layer", "model", "training.batch")
"""Settings that have a say in an evaluation."""


def reevaluate(
    run: Run,
    *,
    split: str = "test",
    checkpoint: str = "best",
    overrides: Sequence[str] = (),
    grid: Sequence[tuple[str, Sequence[Any]]] = (),
) -> list[tuple[str, Found]]:
    """Evaluates a run's parameters once for each point of a grid of settings.

    Parameters
    ----------
    split : str
        "train", "val" or "test".
    checkpoint : str
        "init", "last" or "best".
    overrides : sequence of "section.key=value"
        Settings of the task, the layer or the model (or training.batch) that are other than in training.
    grid : sequence of ("section.key", values)
        Likewise, of which each combination is evaluated.

    Where the training split decides on the token ids, they are those of the run, whatever is set here.

    Returns
    -------
    list of (str, dict)
        What the point is called ("max_iterations=4"; nothing where there is no grid), and what `evaluate` found. A
        warning names a key of the grid that sets nothing but initial values, for which all is the same; another tells
        of parameters that were chosen by the split that they are evaluated on.

    Raises
    ------
    ValueError
        There is no such run or setting, it has no influence here, it changes the shape of a parameter, or it decides
        which examples are for training: some of those would be evaluated (but where all are generated, by another seed
        that is set here too). Or `split` has no end.
    """
    trained = run.load_recipe().task
    changes = [parse_override(override) for override in overrides]
    dividing = () if _others(trained, dict(changes)) else getattr(trained, "dividing", ())
    for place in [place for place, _ in (*changes, *grid)]:
        if place not in PLACES and place.partition(".")[0] not in PLACES:
            raise ValueError(f"{place} has no influence on an evaluation, expected a key of {', '.join(PLACES)}")
        section, _, key = place.partition(".")
        if section == "task" and key in dividing:
            expected = "as it was there" + (", or another task.seed with it" if _seeded(trained) else "")
            raise ValueError(f"{place} decides which examples the run was trained on, expected {expected}")
    points = Sweep(grid=as_grid(grid)).configurations()
    found, started = [], []
    task: Task | None = None
    loaded = None
    for name, (_, chosen) in points.items():
        tables = {key: table for key, table in recipe_tables(run.recipe).items() if key not in NO_SECTIONS}
        try:
            change(tables, [*changes, *chosen])
            recipe = read_recipe(tables)
        except ValueError as error:
            raise ValueError(f"{run.recipe}: {error}") from error
        if task is None or recipe.task != loaded:
            task, loaded = recipe.task.load(), recipe.task
            if task.symbols is not None and loaded != trained:
                task = read_as(task, trained.load())
            if getattr(task, split).fresh:
                raise ValueError(
                    f"--split {split}: has no end, each example is made when it is drawn; expected val or test"
                )
        model = recipe.build(task)
        initial = initial_state(model, recipe)
        params = run.load_params(checkpoint, initial.params)
        training = recipe.training
        one = evaluate(model, params, task, getattr(task, split), batch=training.batch, dtype=training.dtype)
        found.append((name, one))
        started.append(checksum(initial))
    if task is not None and (split, checkpoint, task.selected_on) == ("test", "best", "test"):
        warnings.warn("the test split chose the best parameters: the data set has no validation part", stacklevel=2)
    for place, _ in grid:
        others = [repr([one for one in chosen if one[0] != place]) for _, chosen in points.values()]
        outcomes = {(other, json.dumps(one)) for other, (_, one) in zip(others, found, strict=True)}
        starts = set(zip(others, started, strict=True))
        if len(outcomes) == len(set(others)) < len(starts):
            warnings.warn(
                f"{place} changes initial values and nothing else: the parameters that are evaluated here are the "
                "run's own, whatever it is set to; to compare its values, train with each (rotrnn sweep)",
                stacklevel=2,
            )
    return found


def _seeded(task: Settings) -> bool:
    """Whether all examples are generated, and others with another seed."""
    files = getattr(task, "data_dir", "") or getattr(task, "download", False)
    return hasattr(task, "seed") and "seed" not in getattr(task, "dividing", ()) and not files


def _others(task: Settings, changes: dict[str, Any]) -> bool:
    """Whether no example is one of the training's, by its seed."""
    return _seeded(task) and changes.get("task.seed", getattr(task, "seed", None)) != getattr(task, "seed", None)
