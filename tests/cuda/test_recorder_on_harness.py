"""Steps that a stand-in for a GPU records and repeats, for each kind of model: the CPU's steps to rounding."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest

import fake_cupy
from rotrnn import Context, ModelSettings, build_model, cuda
from rotrnn.nn.layer import flatten
from rotrnn.ops.device import to_host
from rotrnn.tasks import Batch
from rotrnn.training.graph import Recorder
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.state import State, initial_state
from small_models import SETTINGS

B, VOCAB = 3, 5
HEADS = {"classifier": 4, "tagger": 4, "bits": 2, "language": VOCAB, "retrieval": 3}
"""The number of classes of each head."""


def recipe_of(*more: str) -> Recipe:
    return load_recipe("listops-lru", [f"training.batch={B}", "training.dtype=float64", "optimiser.lr=0.01", *more])


def model_of(head: str, layer: str = "lru", **settings: Any) -> Any:
    one = {**SETTINGS.get(layer, {"d_state": 4}), **settings}
    shape = ModelSettings(layer=layer, d_model=8, n_layers=2, dropout=0.1, norm="layer")
    return build_model(shape, one, head=head, vocab=VOCAB, n_classes=HEADS[head])


def batch_of(head: str, T: int, ragged: bool, rng: np.random.Generator) -> Batch:
    """A random batch, as tasks make them: padded to its longest sequence, with labels of -1 in padding and elsewhere."""
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
        recorder = Recorder(recipe, model, group_of, cuda.device(), state)
        for batch, loss in zip(batches, losses, strict=True):
            found = recorder.advance(state, batch, np.arange(B))
            assert found is not None
            assert found["loss"] == pytest.approx(loss, rel=1e-9)
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
