"""Steps that a stand-in for a GPU records and repeats, for each kind of model: the CPU's steps to rounding."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import fake_cupy
from rotrnn import Context, ModelSettings, build_model, cuda
from rotrnn.devices.device import to_host
from rotrnn.nn.fixed_points.iteration import ConvergenceError, NotConverged
from rotrnn.nn.layer import flatten
from rotrnn.tasks import Batch
from rotrnn.training.graph import Recorder, Work
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.state import State, initial_state
from small_models import sizes_of

B, VOCAB = 3, 5
HEADS = {"classifier": 4, "tagger": 4, "bits": 2, "language": VOCAB, "retrieval": 3, "autoencoder": 4}
"""The number of classes of each head."""


def recipe_of(*more: str) -> Recipe:
    return load_recipe("listops-lru", [f"training.batch={B}", "training.dtype=float64", "optimiser.lr=0.01", *more])


def model_of(head: str, layer: str = "lru", **settings: Any) -> Any:
    one = {**sizes_of(layer), **settings}
    shape = ModelSettings(layer=layer, d_model=8, n_layers=2, dropout=0.1, norm="layer")
    return build_model(shape, one, head=head, vocab=VOCAB, n_classes=HEADS[head])


def batch_of(head: str, T: int, ragged: bool, rng: np.random.Generator) -> Batch:
    """A random batch, as tasks make them: padded to its longest sequence; steps have labels of -1, and padding has."""
    pairs = (2,) if head == "retrieval" else ()
    lengths = rng.integers(1, T + 1, (B, *pairs)) if ragged else np.full((B, *pairs), T)
    lengths.reshape(-1)[0] = T
    inputs = rng.integers(0, VOCAB, (B, *pairs, T))
    inputs[np.arange(T) >= lengths[..., None]] = 0
    if head in ("classifier", "retrieval"):
        labels = rng.integers(0, HEADS[head], B)
    else:
        bits = (HEADS[head],) if head == "bits" else ()
        labels = rng.integers(-1, 2, (B, T, *bits))
        labels[np.arange(T) >= lengths[:, None]] = -1
        labels[:, 0] = 1
    return Batch(inputs, labels, lengths if ragged else None)


def steps_on_cpu(recipe: Recipe, model: Any, batches: list[Batch]) -> tuple[State, list[float], list[Any]]:
    """The state after steps that are taken operation by operation, their losses, and what layers report of them."""
    state, group_of = initial_state(model, recipe), recipe.optimiser.grouping(model.is_recurrent)
    losses, reports = [], []
    for batch in batches:
        ctx = Context(batch.lengths, train=True, seed=recipe.training.seed, step=state.step, places=np.arange(B))
        logits, saved = model.forward(state.params, batch.inputs, ctx)
        found = model.loss(logits, batch.labels, batch.lengths)
        grads = model.backward(state.params, saved, found.dlogits)
        recipe.optimiser.update(state.params, grads, state.moments, group_of, state.step, recipe.training.steps)
        state.step += 1
        losses.append(found.mean)
        reports.append(model.report(saved))
    return state, losses, reports


def check_steps(recipe: Recipe, model: Any, batches: list[Batch]) -> None:
    """Takes steps by graphs: losses, reports and parameters are those of the CPU."""
    expected, losses, reports = steps_on_cpu(recipe, model, batches)
    group_of = recipe.optimiser.grouping(model.is_recurrent)
    with fake_cupy.gpu(), warnings.catch_warnings():
        warnings.simplefilter("error")  # there is one if steps are not recorded
        state = initial_state(model, recipe)
        state.move(cuda.device())
        recorder = Recorder(Work(recipe, model, group_of, cuda.device(), state))
        for batch, loss, report in zip(batches, losses, reports, strict=True):
            assert recorder.launch(state, batch, np.arange(B))
            one = recorder.launched.popleft()
            found = recorder.read(one)
            assert found["loss"] == pytest.approx(loss, rel=1e-9)
            assert one.layers.keys() == report.keys()
            for name, value in one.layers.items():
                assert value == pytest.approx(report[name], rel=1e-6), name
            state.step += 1
        there = {name: to_host(array) for name, array in flatten(state.params)}
    for name, array in flatten(expected.params):
        # AdamW divides by the root of v: where a gradient is rounding alone, so is its direction
        np.testing.assert_allclose(there[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_steps_of_every_kind_of_model_are_recorded(head: str, ragged: bool) -> None:
    rng = np.random.default_rng(2)
    batches = [batch_of(head, T, ragged, rng) for T in ((9, 6, 10, 9) if ragged else (7, 7))]
    check_steps(recipe_of(), model_of(head), batches)


FIXED_POINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a few iterations": ("fixed_point", {"d_state": 4, "tol": 1e-6}),
    "the gradient iterates": ("fixed_point", {"d_state": 4, "tol": 1e-6, "gradient": "implicit"}),
    "no kernel for a pass": ("fixed_point", {"d_state": 4, "accelerated": False, "max_iterations": 13}),
    "a constant mixer": ("fixed_point", {"d_state": 4, "mixer": "orthogonal", "contractive": True}),
    "a limit between two looks": ("bedouin", {"d_state": 4, "tol": 1e-9, "train_iterations": 6}),
    "a drawn limit": ("bedouin", {"d_state": 4, "tol": 1e-9, "train_iterations": "gamma"}),
    "implicit matrix states": ("bedouin", {"d_state": 4, "tol": 1e-6, "gradient": "implicit"}),
    "step sizes shrink": ("fpmamba", {"d_state": 4, "tol": 1e-4, "train_iterations": 38}),
    "heads": ("fpmamba", {"d_state": 4, "d_head": 4, "d_conv": 2, "tol": 1e-4, "train_iterations": 20}),
    "all end together": ("fpmamba", {"d_state": 4, "tol": 0.3, "stop": "quantile"}),
    "a drawn limit for all": ("fpmamba", {"d_state": 4, "tol": 1e-9, "stop": "quantile", "train_iterations": "gamma"}),
}


@pytest.mark.parametrize("layer", FIXED_POINTS)
def test_iterations_are_repeated_until_the_host_sees_their_end(layer: str) -> None:
    """As many for each sequence as operation by operation, of which the reports tell."""
    rng = np.random.default_rng(3)
    name, settings = FIXED_POINTS[layer]
    batches = [batch_of("classifier", 7, True, rng) for _ in range(3)]
    check_steps(recipe_of(), model_of("classifier", name, **settings), batches)


@pytest.mark.parametrize(("settings", "error"), [({}, NotConverged), ({"contractive": True}, ConvergenceError)])
def test_a_fixed_point_that_is_not_reached_is_told(settings: dict[str, Any], error: type[Exception]) -> None:
    """As operation by operation: a warning, or an error where a fixed point is guaranteed, with the same message."""
    model = model_of("classifier", "fixed_point", d_state=4, tol=1e-12, max_iterations=2, **settings)
    batch = batch_of("classifier", 7, True, np.random.default_rng(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error) as expected:
            steps_on_cpu(recipe_of(), model, [batch])
        with fake_cupy.gpu():
            state = initial_state(model, recipe_of())
            state.move(cuda.device())
            recorder = Recorder(Work(recipe_of(), model, lambda name: "global", cuda.device(), state))
            with pytest.raises(error) as found:
                recorder.launch(state, batch, np.arange(B))
    assert str(found.value) == str(expected.value)
