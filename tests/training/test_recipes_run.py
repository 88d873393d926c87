"""Recipes whose parts no other test trains take two steps, each variant of their small forms, at a small width."""

from __future__ import annotations

import math

import pytest

from rotrnn.training.estimate import estimate
from rotrnn.training.sweep import plan

SMALLER = ("training.batch=2", "training.steps=2", "training.eval_every=1", "optimiser.warmup=0", "model.d_model=8")
FEW = ("task.samples=1_000", "task.val_fraction=0.1")
SHORT = ("task.max_length=8", "task.test_max_length=10", "task.context=24")
RECIPES = {  # name -> settings that make it quicker
    "scifar-s5": (),
    "listops-s4d-ablations": ("task.max_length=20",),
    "scifar-s4d-ablations": (),
    "scifar-rnn": (),
    "listops-rnn": ("task.max_length=20",),
    "text-rnn": ("task.max_length=200",),
    "retrieval-rnn": ("task.max_length=100",),
    "pathfinder-rnn": (),
    "pathx-rnn": ("task.resolution=32",),
    "pathx-ladder": ("task.resolution=32",),
    "listops-norms": ("task.max_length=20",),
    "listops-ladder": ("task.max_length=20",),
    "pathfinder-ladder": (),
    "word-problem-depth": FEW,
    "word-problem-bedouin": FEW,
    "word-problem-iterations": FEW,
    "word-problem-fixed_point": FEW,
    "word-problem-fpmamba": (*FEW, "layer.max_iterations=4"),
    "word-problem-carry": (
        *FEW,
        "task.carry_after=0",
        "task.carry_rise=0",
        "layer.max_iterations=4",
        "layer.train_iterations=4",
    ),
    "word-problem-carry-bedouin": (*FEW, "task.carry_after=0", "task.carry_rise=0"),
    "word-problem-carry-delta": (*FEW, "task.carry_after=0", "task.carry_rise=0"),
    "word-problem-carry-s5": (*FEW, "task.carry_after=0", "task.carry_rise=0"),
    "copy-conv": SHORT,
    "copy-depth": SHORT,
    "copy-fixed_point": SHORT,
}


@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
@pytest.mark.parametrize("name", RECIPES)
def test_every_variant_takes_steps(name: str) -> None:
    overrides = [*SMALLER, *RECIPES[name]]
    for label, recipe in plan(f"{name}-small", seeds=[0], overrides=overrides).items():
        found = estimate(recipe, 2, stand_in=None if name.startswith(("word", "copy")) else 4)
        assert found.steps_run == 2, label
        assert math.isfinite(found.seconds), label
