"""Training on a GPU, on a stand-in: the CPU's results to rounding, one graph a step, and failures with a cause.

The stand-in captures a step as CUDA does: with the host's arrays and numbers as they were, and no wait allowed.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_cupy
from fake_cupy import Failures, MemoryPool
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.cli import main
from rotrnn.devices import cuda
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.models.model import IGNORED
from rotrnn.training.estimate import estimate, trial
from rotrnn.training.loader import Loader, Part
from rotrnn.training.loop import train
from rotrnn.training.optimiser import NonFinite
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.run import Run
from rotrnn.training.step import Stepper

SMALL = [
    *("task.train=64", "task.val=6", "task.test=6", "model.d_model=8", "model.n_layers=2", "model.dropout=0.1"),
    *("training.batch=4", "training.steps=6", "training.eval_every=3", "training.dtype=float64", "layer.d_state=4"),
]
LISTOPS = ("task.name=listops", "task.max_length=24", "task.min_length=5", "task.max_depth=3")
FIXED_POINT = (
    *("model.layer=fixed_point", "layer.d_state=4", "layer.tol=1e-4", "model.norm=layer", "model.n_layers=1"),
    *("task.max_length=8", "training.steps=4", "training.eval_every=2"),
)
OWN: dict[str, tuple[str, ...]] = {
    "listops-lru": LISTOPS,
    "listops-rotrnn": (*LISTOPS, "layer.heads=2"),
    "brackets": (
        *("task.max_length=7", *(f"task.{one}_length=7" for one in ("val_min", "val_max", "test_min", "test_max"))),
        *("model.n_layers=1", "training.steps=3"),
    ),
    "delayed-copy-minimal-lru": (),
}
"""Small settings of recipes beside these: classifiers, one of which iterates, and bits."""


pytestmark = pytest.mark.filterwarnings("ignore:listops-lru. another model.layer drops settings")


def recipe_of(name: str, *more: str) -> Recipe:
    return load_recipe(name, [*SMALL, *OWN[name], *more])


def parameters(folder: Path) -> dict[str, Any]:
    return read_checkpoint(Run(folder).checkpoint("last"))[0]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in Run(folder).records() if "loss" in record]


RUNS = [(name, ()) for name in OWN] + [("listops-lru", FIXED_POINT)]


@pytest.mark.parametrize(("name", "more"), RUNS)
def test_a_run_on_a_gpu_is_that_of_the_cpu_to_rounding(name: str, more: tuple[str, ...], tmp_path: Path) -> None:
    recipe = recipe_of(name, *more)
    train(recipe, tmp_path / "cpu", progress=False)
    with fake_cupy.gpu(), warnings.catch_warnings():
        warnings.simplefilter("error")  # there is one if steps are not recorded
        train(recipe, tmp_path / "gpu", progress=False, device="cuda")
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)
    for got, expected in zip(Run(tmp_path / "gpu").records(), Run(tmp_path / "cpu").records(), strict=True):
        assert got.get("layers", {}) == pytest.approx(expected.get("layers", {}), rel=1e-6)
    there = parameters(tmp_path / "cpu")
    for key, value in parameters(tmp_path / "gpu").items():
        # AdamW divides by the root of v: where a gradient is rounding alone, so is its direction
        np.testing.assert_allclose(value, there[key], rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["brackets", "delayed-copy-minimal-lru"])
def test_a_batch_in_which_no_label_counts_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between launched steps, as on the CPU."""
    make = Loader._make

    def made(self: Loader, step: int) -> list[Part]:
        parts = make(self, step)
        bare = [one.batch._replace(labels=np.full_like(one.batch.labels, IGNORED)) for one in parts]
        return [one._replace(batch=batch) for one, batch in zip(parts, bare, strict=True)] if step == 1 else parts

    monkeypatch.setattr(Loader, "_make", made)
    train(recipe_of(name), tmp_path / "cpu", progress=False)
    with fake_cupy.gpu():
        train(recipe_of(name), tmp_path / "gpu", progress=False, device="cuda")
    assert np.isnan(losses(tmp_path / "cpu")).nonzero()[0].tolist() == [1]
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)


@pytest.mark.parametrize("more", [(), FIXED_POINT])
def test_a_run_moves_between_devices_with_a_warning(more: tuple[str, ...], tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru", "training.checkpoint_every=2", *more)
    train(recipe, tmp_path / "straight", progress=False)
    with pytest.MonkeyPatch.context() as patch:
        fail_after(patch, 2)
        with pytest.raises(Stop):
            train(recipe, tmp_path / "run", progress=False)
    with fake_cupy.gpu(), pytest.warns(UserWarning, match="was trained with .*NumPy.*, and this is harness, CUDA 13.0"):
        train(recipe, tmp_path / "run", resume=True, progress=False, device="cuda")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "straight"), rtol=1e-9)
    facts = read_checkpoint(Run(tmp_path / "run").checkpoint("last"))[1]
    assert facts["arithmetic"][-1] == "harness, CUDA 13.0 and CuPy 14.2.0"
    assert len(facts["arithmetic"]) == 2


class Stop(Exception):
    pass


def fail_after(patch: pytest.MonkeyPatch, steps: int, error: Exception | None = None) -> None:
    """Lets training fail after so many steps, the last of which is saved."""
    advance = Stepper.advance

    def failing(self: Stepper, state: Any) -> Any:
        if state.step == steps:
            raise error or Stop
        return advance(self, state)

    patch.setattr(Stepper, "advance", failing)


def test_a_failure_of_the_gpu_keeps_the_checkpoint(tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru", "training.checkpoint_every=2")
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        fail_after(patch, 2, RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"))
        message = (
            "the GPU failed after step 2: cudaErrorIllegalAddress.*; the last good checkpoint is .*last.safetensors"
        )
        with pytest.raises(cuda.DeviceError, match=message):
            train(recipe, tmp_path / "run", progress=False, device="cuda")
    assert read_checkpoint(Run(tmp_path / "run").checkpoint("last"))[1]["step"] == 2


def test_without_memory_the_run_ends_with_a_memory_error(tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru")
    with fake_cupy.gpu(bytes=64), pytest.raises(MemoryError, match="Out of memory allocating"):
        train(recipe, tmp_path / "run", progress=False, device="cuda")


def test_what_looks_at_numbers_runs_operation_by_operation(tmp_path: Path) -> None:
    """A head that waits for the GPU: the run is that of the CPU all the same."""
    recipe = recipe_of("listops-lru", "training.steps=2")
    train(recipe, tmp_path / "cpu", progress=False)
    forward = SequenceClassifier.head_forward

    def waiting(self: Any, params: Any, x: Any, ctx: Any) -> Any:
        assert float(x.sum()) < np.inf
        return forward(self, params, x, ctx)

    message = "steps run operation by operation, not as one CUDA graph"
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequenceClassifier, "head_forward", waiting)
        with pytest.warns(UserWarning, match=message):
            train(recipe, tmp_path / "gpu", progress=False, device="cuda")
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")
@pytest.mark.parametrize("more", [(), FIXED_POINT])
def test_a_loss_that_is_not_finite_names_what_is_to_blame(more: tuple[str, ...], tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru", "optimiser.lr=1e300", "optimiser.clip=0.0", *more)
    with fake_cupy.gpu(), pytest.raises(NonFinite, match=r"step \d: .*(parameter|gradient|moment)"):
        train(recipe, tmp_path / "run", progress=False, device="cuda")


def test_evaluation_and_estimate_on_a_gpu(tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru", "training.steps=2")
    train(recipe, tmp_path / "run", progress=False)
    run = Run(tmp_path / "run")
    here = reevaluate(run)
    with fake_cupy.gpu():
        there = reevaluate(run, device="cuda")
        assert estimate(recipe, 2, stand_in=8, device="cuda").steps_run == 2
    assert here[0][1]["accuracy"] == there[0][1]["accuracy"]
    assert here[0][1]["loss"] == pytest.approx(there[0][1]["loss"], rel=1e-9)


def test_the_memory_of_a_gpu_is_estimated() -> None:
    """The two pools, of arrays and of the only graph, hold together no less than the most that all arrays had at a
    time, but for those that were there before, and each of them no more."""
    recipe = recipe_of("listops-lru", "training.steps=1")
    before = MemoryPool.most = sum(pool.used for pool in MemoryPool.every)
    with fake_cupy.gpu():
        found = estimate(recipe, 1, stand_in=8, device="cuda")
    assert 0 < MemoryPool.most - before <= found.gpu_memory <= 2 * MemoryPool.most
    assert f" MiB, {found.gpu_memory / 2**20:,.1f} MiB of the GPU's\n" in found.text()
    here = estimate(recipe, 1, stand_in=8)
    assert here.gpu_memory == 0
    assert "GPU" not in here.text()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precision_is_of_the_recipe(precision: str, tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru", f"training.precision={precision}", "training.dtype=float32", "training.steps=2")
    train(recipe, tmp_path / "cpu", progress=False)
    with fake_cupy.gpu():
        train(recipe, tmp_path / "gpu", progress=False, device="cuda")
        with trial(recipe, 8, "cuda"):
            assert sys.modules["rotrnn._cuda"].precision() == precision
    sessions = Run(tmp_path / "gpu").read_json(Run(tmp_path / "gpu").sessions)
    assert sessions[0]["precision"] == precision
    # a few of the roundings go to the other neighbour, an error of 2^-7 of one of many terms; in bf16 the GPU also
    # rounds results of products, an error of at most 2^-8 of each of many terms
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=2.0**-7)
    whole, *others = (
        recipe_of("listops-lru", "training.dtype=float32", *more).digest()
        for more in ((), ("training.precision=float32",), (f"training.precision={precision}",))
    )
    assert others[0] == whole != others[1]


def test_without_a_gpu_the_command_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cupy.gpu(gpus=0):
        assert main(["train", "digits-lru", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "rotrnn: error: there is no CUDA GPU\n"


@pytest.mark.parametrize("step", [0, 3])
def test_without_memory_for_a_graph_steps_run_operation_by_operation(step: int, tmp_path: Path) -> None:
    """For the first shape of a batch or another one: graphs are dropped, one warning says why, and the run goes on."""
    recipe = recipe_of("listops-lru")
    advance = Stepper.advance

    def advancing(self: Stepper, state: Any) -> Any:
        Failures.tried_bytes = 64 if state.step >= step else None
        if state.step == step and self.recorder is not None:
            self.recorder.steps = {("another", *key): one for key, one in self.recorder.steps.items()}
        return advance(self, state)

    train(recipe, tmp_path / "cpu", progress=False)
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "advance", advancing)
        with pytest.warns(UserWarning, match="not as one CUDA graph: Out of memory allocating") as said:
            train(recipe, tmp_path / "gpu", progress=False, device="cuda")
    assert len([one for one in said if "operation by operation" in str(one.message)]) == 1
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)


def test_no_memory_of_a_graph_is_freed_while_it_is_recorded(tmp_path: Path) -> None:
    """A pool without memory frees what nobody uses (the stand-in's asserts that nothing is recorded then): so steps are
    not recorded."""
    recipe = recipe_of("listops-lru", "training.steps=2")
    train(recipe, tmp_path / "cpu", progress=False)
    with fake_cupy.gpu(captured_bytes=0), pytest.warns(UserWarning, match="gave no memory while work was recorded"):
        train(recipe, tmp_path / "gpu", progress=False, device="cuda")
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)
