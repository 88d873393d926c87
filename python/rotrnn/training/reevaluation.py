"""The parameters of a finished run under other settings: more iterations, longer sequences, another split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rotrnn.tasks import Task
from rotrnn.training.evaluation import Found, evaluate
from rotrnn.training.loop import initial_state
from rotrnn.training.recipe import NO_SECTIONS, change, parse_override, read_recipe, recipe_tables
from rotrnn.training.run import Run
from rotrnn.training.sweep import Sweep

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

    Returns
    -------
    list of (str, dict)
        What the point is called ("max_iterations=4"; nothing where there is no grid), and what `evaluate` found.

    Raises
    ------
    ValueError
        There is no such run or setting, it has no influence here, or it changes the shape of a parameter.
    """
    run.load_recipe()
    changes = [parse_override(override) for override in overrides]
    for place in [place for place, _ in (*changes, *grid)]:
        if place not in PLACES and place.partition(".")[0] not in PLACES:
            raise ValueError(f"{place} has no influence on an evaluation, expected a key of {', '.join(PLACES)}")
    points = Sweep(grid={place: tuple(values) for place, values in grid}).configurations()
    found = []
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
        model = recipe.build(task)
        params = run.load_params(checkpoint, initial_state(model, recipe).params)
        training = recipe.training
        one = evaluate(model, params, task, getattr(task, split), batch=training.batch, dtype=training.dtype)
        found.append((name, one))
    return found
