"""What a training would take: some of its steps are run, and the rest is reckoned."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.provenance import versions
from rotrnn._support.text import plural
from rotrnn.nn.layer import flatten
from rotrnn.tasks import Batch, Released, Split
from rotrnn.tasks.task import Index
from rotrnn.training.log import peak_memory, timed
from rotrnn.training.loop import Trainer
from rotrnn.training.recipe import Recipe
from rotrnn.training.results import duration
from rotrnn.training.run import Run
from rotrnn.training.state import initial_state

EVALUATED = 4
"""Batches that are evaluated to see how long it takes."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, as measured: of a step and of evaluating an example; and how often there is either."""

    parameters: int
    steps_run: int
    seconds_per_step: float
    seconds_per_example: float
    steps: int
    batch: int
    evaluations: int
    val: int
    test: int
    peak_memory: int

    @property
    def seconds(self) -> float:
        """Of the whole training; at its end two sets of parameters are evaluated on the test split."""
        examples = self.evaluations * self.val + 2 * self.test
        return self.steps * self.seconds_per_step + examples * self.seconds_per_example

    def text(self) -> str:
        """All of it, for people."""
        machine = versions()
        return (
            f"{plural(self.parameters, 'parameter')}; "
            f"{plural(self.steps_run, 'step')} of {plural(self.batch, 'sequence')}: "
            f"{duration(self.seconds_per_step)} a step, peak memory {self.peak_memory / 2**20:,.0f} MiB\n"
            f"{plural(self.steps, 'step')}: {duration(self.steps * self.seconds_per_step)}\n"
            f"{plural(self.evaluations, 'evaluation')} of {plural(self.val, 'example')} and 2 of {self.test:,}: "
            f"{duration(self.seconds - self.steps * self.seconds_per_step)}\n"
            f"in all {duration(self.seconds)}, with {plural(machine['threads'], 'thread')} ({machine['simd']}) of "
            f"{machine['processor']}"
        )


def estimate(recipe: Recipe, steps: int = 100, *, stand_in: int | None = None) -> Estimate:
    """Runs the first `steps` steps of a recipe, and an evaluation of a few batches; writes nothing.

    The first step is not counted. Steps may take longer or shorter later, where a layer iterates.

    Parameters
    ----------
    stand_in : int, optional
        Take that many examples a split: of a task that is made, its own; in place of files that are read, random ones
        of full length. Evaluations are reckoned for as many as there really are.

    Raises
    ------
    ValueError
        The task has no stand-in; or as `train`.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = recipe.task
        if stand_in is not None:
            recipe = dataclasses.replace(recipe, task=_stand_in(asked, folder, stand_in))
        trainer = Trainer(recipe, Run(Path(folder)), False)
        try:
            state = initial_state(trainer.model, recipe)
            times = [timed(lambda: trainer.stepper.advance(state))[1] for _ in range(min(steps, recipe.training.steps))]
        finally:
            trainer.loader.close()
        val = First(trainer.task.val, EVALUATED * recipe.training.batch)
        _, evaluating = timed(lambda: trainer.look(state.params, val))
        return Estimate(
            parameters=sum(array.size for name, array in flatten(state.params) if f"m.{name}" in state.moments),
            steps_run=len(times),
            seconds_per_step=float(np.mean(times[1:] or times)),
            seconds_per_example=evaluating / len(val),
            steps=recipe.training.steps,
            batch=recipe.training.batch,
            evaluations=math.ceil(recipe.training.steps / recipe.training.eval_every),
            val=len(trainer.task.val) if stand_in is None else _size(asked, "val"),
            test=len(trainer.task.test) if stand_in is None else _size(asked, "test"),
            peak_memory=peak_memory(),
        )


def _size(settings: Any, split: str) -> int:
    size: int = settings.sizes[split] if isinstance(settings, Released) else getattr(settings, split)
    return size


def _stand_in(settings: Any, folder: str, examples: int) -> Any:
    if isinstance(settings, Released):
        settings.stand_in(folder, examples)
        return dataclasses.replace(settings, data_dir=folder, cache_dir="", download=False)
    if all(hasattr(settings, split) for split in ("train", "val", "test")):
        return dataclasses.replace(settings, train=examples, val=examples, test=examples)
    raise ValueError(
        f"{type(settings).__name__}: makes its data itself, and needs no stand-in for them; leave --stand-in out"
    )


@dataclass(frozen=True)
class First(Split):
    """The first examples of a split."""

    split: Split
    most: int

    def __len__(self) -> int:
        return min(self.most, len(self.split))

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """The sequences at `index`."""
        return self.split.batch(index, dtype)

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """As the split itself."""
        return self.split.curve_lengths(index, batch)
