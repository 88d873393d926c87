"""Estimates the time and memory of a training run from its first steps."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.platform import peak_memory
from rotrnn._support.provenance import versions
from rotrnn._support.text import plural
from rotrnn.devices.device import named
from rotrnn.devices.precisions import precision
from rotrnn.nn.layer import flatten
from rotrnn.ops.boundary import Boundary
from rotrnn.tasks import Batch, Released, Split
from rotrnn.tasks.task import Index
from rotrnn.training.log import timed
from rotrnn.training.loop import Trainer
from rotrnn.training.memory import budget
from rotrnn.training.recipe import Recipe, recipe_of
from rotrnn.training.results import duration
from rotrnn.training.run import Run
from rotrnn.training.state import State

EVALUATED = 4
"""Number of batches that are evaluated to measure the time of an evaluation."""


@dataclass(frozen=True)
class Estimate:
    """Measured seconds per step and per evaluated example, and the numbers of steps and evaluations of the whole
    run.

    `peak_memory` are bytes of the host's memory, and `gpu_memory` of a GPU's: the most that arrays of steps and of
    evaluations took, and the graphs of the shapes that the batches had. It is 0 on the CPU.
    """

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
    gpu_memory: int

    @property
    def seconds(self) -> float:
        """Estimated seconds of the whole run. At its end two sets of parameters are evaluated on the test split."""
        examples = self.evaluations * self.val + 2 * self.test
        return self.steps * self.seconds_per_step + examples * self.seconds_per_example

    def text(self) -> str:
        """Returns the estimate as readable text."""
        machine = versions()
        gpu = f", {self.gpu_memory / 2**20:,.1f} MiB of the GPU's" if self.gpu_memory else ""
        return (
            f"{plural(self.parameters, 'parameter')}; "
            f"{plural(self.steps_run, 'step')} of {plural(self.batch, 'sequence')}: "
            f"{duration(self.seconds_per_step)} per step, peak memory {self.peak_memory / 2**20:,.0f} MiB{gpu}\n"
            f"{plural(self.steps, 'step')}: {duration(self.steps * self.seconds_per_step)}\n"
            f"{plural(self.evaluations, 'evaluation')} of {plural(self.val, 'example')} and 2 of {self.test:,}: "
            f"{duration(self.seconds - self.steps * self.seconds_per_step)}\n"
            f"in total {duration(self.seconds)}, with {plural(machine['threads'], 'thread')} ({machine['simd']}) on "
            f"{machine['processor']}"
        )


def estimate(
    recipe: Recipe | dict[str, Any], steps: int = 100, *, stand_in: int | None = None, device: str = "cpu"
) -> Estimate:
    """Runs the first `steps` steps of a recipe and evaluates a few batches. Writes nothing.

    The time of the first step is not used. If a layer iterates, later steps may take more or less time.

    Parameters
    ----------
    recipe : Recipe, or dict
        As of `train`.
    stand_in : int, optional
        Use this many examples per split, a batch at least. A generated task generates them, or all where it has no
        setting for their number; a task that is read from files uses random data of full length instead of the files.
        The estimate still counts the real number of examples.
    device : str
        "cpu", or "cuda" for a GPU.

    Raises
    ------
    ValueError
        As in `train`.
    """
    recipe = recipe_of("estimate", recipe)
    args = Boundary("estimate")
    steps, stand_in = (
        args.integer("steps", steps, 1),
        None if stand_in is None else args.integer("stand_in", stand_in, 1),
    )
    asked = recipe.task
    with trial(recipe, stand_in, device) as (trainer, state):
        times, held = [], []
        for _ in range(min(steps, recipe.training.steps)):
            times.append(timed(lambda: trainer.stepper.advance(state))[1])
            held.append(trainer.stepper.held())  # the next graph frees memory kept for later arrays
        trainer.stepper.settle(state)
        val = First(trainer.task.val, EVALUATED * recipe.training.batch)
        _, evaluating = timed(lambda: trainer.look(state.params, val))
        held.append(trainer.stepper.held())
        return Estimate(
            parameters=sum(array.size for name, array in flatten(state.params) if f"m.{name}" in state.moments),
            steps_run=len(times),
            seconds_per_step=float(np.mean(times[1:] or times)),
            seconds_per_example=evaluating / len(val),
            steps=recipe.training.steps,
            batch=recipe.training.batch,
            evaluations=math.ceil(recipe.training.steps / recipe.training.eval_every),
            val=len(trainer.task.val) if stand_in is None else _size(asked, "val", trainer.task.val),
            test=len(trainer.task.test) if stand_in is None else _size(asked, "test", trainer.task.test),
            peak_memory=peak_memory(),
            gpu_memory=max(held),
        )


@contextmanager
def trial(recipe: Recipe, stand_in: int | None = None, device: str = "cpu") -> Iterator[tuple[Trainer, State]]:
    """Within the block, yields a trainer of the recipe, in its precision, and the state before its first step.
    Arguments as in `estimate`."""
    place = named("estimate", device)
    with tempfile.TemporaryDirectory() as folder, precision(recipe.training.precision):
        if stand_in is not None:
            own = dataclasses.replace(recipe.training, init=None)
            examples = max(stand_in, own.batch)
            recipe = dataclasses.replace(recipe, task=_stand_in(recipe.task, folder, examples), training=own)
        memory = budget(recipe.training.memory, place)
        trainer = Trainer(recipe, Run(Path(folder)), False, device=place, memory=memory)
        try:
            state = trainer.initial_state()
            state.move(trainer.device)
            trainer.record(state)
            yield trainer, state
        finally:
            trainer.close()


def _size(settings: Any, split: str, made: Split) -> int:
    """Returns the number of examples of a split, of which a stand-in has `made` fewer or all."""
    if isinstance(settings, Released):
        return int(settings.sizes[split])
    return int(getattr(settings, split)) if _sized(settings) else len(made)


def _sized(settings: Any) -> bool:
    return all(hasattr(settings, split) for split in ("train", "val", "test"))


def _stand_in(settings: Any, folder: str, examples: int) -> Any:
    if isinstance(settings, Released):
        settings.stand_in(folder, examples)
        return dataclasses.replace(settings, data_dir=folder, cache_dir="", download=False)
    if _sized(settings):
        return dataclasses.replace(settings, train=examples, val=examples, test=examples)
    return settings


@dataclass(frozen=True)
class First(Split):
    """The first examples of a split."""

    split: Split
    most: int

    def __len__(self) -> int:
        return min(self.most, len(self.split))

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the sequences at `index`."""
        return self.split.batch(index, dtype)

    def intervals(self, index: Index) -> Any:
        """Returns the intervals of the original split."""
        return self.split.intervals(index)

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """Returns the lengths of the original split."""
        return self.split.curve_lengths(index, batch)
