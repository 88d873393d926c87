"""Training on the CPU in a precision: of the recipe, recorded, and next to float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rotrnn import _cpu
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.training.estimate import estimate
from rotrnn.training.loop import train
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.run import Run

SMALL = (
    "model.d_model=16",
    "model.n_layers=1",
    "layer.d_state=8",
    "optimiser.lr=0.03",
    "training.batch=16",
    "training.eval_every=80",
)


def recipe_of(precision: str, steps: int) -> Recipe:
    return load_recipe("digits-lru", [*SMALL, f"training.steps={steps}", f"training.precision={precision}"])


def losses(run: Run) -> list[float]:
    return [one["loss"] for one in run.records() if "loss" in one]


def test_bfloat16_learns_as_float32_does(tmp_path: Path) -> None:
    """The loss falls by a fifth; bf16's stays within a twentieth of this way beside float32's, and is not the same."""
    found = {}
    for precision in ("float32", "bf16"):
        train(recipe_of(precision, 80), tmp_path / precision, progress=False)
        found[precision] = np.array(losses(Run(tmp_path / precision)))
    whole, rounded = found["float32"], found["bf16"]
    way = whole[:5].mean() - whole[-5:].mean()
    assert way > whole[:5].mean() / 5
    assert 0 < np.abs(rounded - whole).max() < way / 20


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_precision_is_recorded_and_evaluations_are_in_it(precision: str, tmp_path: Path) -> None:
    recipe = recipe_of(precision, 2)
    results = train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    assert run.read_json(run.sessions)[0]["precision"] == precision
    by = _cpu.bf16_by()
    simd = _cpu.simd() if precision != "bf16" or by == "float32" else by
    assert read_checkpoint(run.checkpoint("last"))[1]["arithmetic"] == [f"{simd} and NumPy {np.__version__}"]
    assert reevaluate(run)[0][1]["loss"] == results["test"]["best"]["loss"]
    assert estimate(recipe, 1).steps_run == 1
    assert _cpu.use_precision("float32") == "float32"


def test_the_digest_of_float32_is_that_of_no_precision() -> None:
    plain = load_recipe("digits-lru").digest()
    assert load_recipe("digits-lru", ["training.precision=float32"]).digest() == plain
    assert load_recipe("digits-lru", ["training.precision=bf16"]).digest() != plain


def test_an_evaluation_may_be_in_another_precision(tmp_path: Path) -> None:
    train(recipe_of("bf16", 2), tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    own, other = (reevaluate(run, overrides=one)[0][1]["loss"] for one in ((), ("training.precision=float32",)))
    assert 0 < abs(own - other) < 1e-2 * own


def test_float64_is_not_rounded() -> None:
    with pytest.raises(ValueError, match="precision is 'bf16' with dtype 'float64', expected 'float32'"):
        load_recipe("digits-lru", ["training.precision=bf16", "training.dtype=float64"])
