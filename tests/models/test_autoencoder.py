"""The model that returns all tokens from its last step: its equations, gradients, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rotrnn import AutoEncoder, Context, ModelSettings, build_model
from rotrnn.models.autoencoder import positions
from rotrnn.nn.layer import astype, flatten, unflatten
from rotrnn.training.estimate import estimate
from rotrnn.training.recipe import load_recipe

EPS = np.finfo(np.float64).eps
V, D, B, T = 5, 6, 3, 7
LENGTHS = np.array([7, 2, 0])


def made() -> tuple[AutoEncoder, Any, Any]:
    settings = ModelSettings("lru", D, 1, norm="rms")
    model: Any = build_model(settings, {"d_state": 3}, head="autoencoder", vocab=V, n_classes=V)
    rng = np.random.default_rng(0)
    params = astype(model.init(rng), np.float64)
    params = unflatten({name: one + 0.1 * rng.standard_normal(one.shape) for name, one in flatten(params)})
    return model, params, rng.integers(0, V, (B, T))


def test_positions_are_waves() -> None:
    for t, row in enumerate(positions(4, 6)):
        angles = [t, t / 100, t / 10_000]
        np.testing.assert_allclose(row, [*map(math.sin, angles), *map(math.cos, angles)], rtol=0, atol=4 * EPS)
    assert positions(3, 5).shape == (3, 5)
    assert positions(2, 1).tolist() == [[0.0], [math.sin(1)]]


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_logits_come_from_the_last_step_alone(lengths: Any) -> None:
    model, params, tokens = made()
    logits, _ = model.forward(params, tokens, Context(lengths))
    x, _ = model.encoder.forward(params["encoder"], tokens)
    x, _ = model.stack.forward(params["blocks"], x, Context(lengths))

    def norm(name: str, z: Any) -> Any:
        return params[name]["scale"] * z / np.sqrt((z**2).mean() + 1e-5)

    def hidden(name: str, z: Any) -> Any:
        z = params[name]["w"] @ z + params[name]["bias"]
        return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))

    expected = np.zeros((B, T, V))
    for b in range(B):
        for t in range(T if lengths is None else lengths[b]):
            z = x[b, (T if lengths is None else lengths[b]) - 1] + positions(T, D)[t]
            z = hidden("hidden0", norm("norm0", z))
            z = norm("norm2", hidden("hidden1", norm("norm1", z)))
            expected[b, t] = params["head"]["w"] @ z + params["head"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1000 * EPS * np.abs(expected).max())


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_gradients_are_slopes(lengths: Any) -> None:
    """Central differences of fourth order, h = 1e-3, are off by about h^4 = 1e-12 and EPS / h = 2e-13 of the loss."""
    model, params, tokens = made()
    labels, ctx, rng = tokens - (tokens == 2) * 3, Context(lengths), np.random.default_rng(1)

    def loss(moved: Any) -> Any:
        logits, saved = model.forward(moved, tokens, ctx)
        return model.loss(logits, labels, lengths), saved

    found, saved = loss(params)
    grads = dict(flatten(model.backward(params, saved, found.dlogits)))
    for name, one in flatten(params):
        v, h = rng.standard_normal(one.shape), 1e-3
        f = [loss(unflatten({**dict(flatten(params)), name: one + k * h * v}))[0].mean for k in (-2, -1, 1, 2)]
        slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
        assert abs(slope - (v * grads[name]).sum()) <= 1e-8 * max(1.0, abs(slope)), name


def test_what_is_refused() -> None:
    model, params, _ = made()
    with pytest.raises(ValueError, match=r"^AutoEncoder.stream: a model that answers after the last step does not"):
        model.stream(params)
    with pytest.raises(ValueError, match=r"AutoEncoder: logit_cap=3.0, expected None"):
        AutoEncoder(**{**vars(model), "logit_cap": 3.0})
    with pytest.raises(ValueError, match=r"AutoEncoder: norm1 has d_model=4, expected 6 as of its layer"):
        AutoEncoder(**{**vars(model), "norm1": type(model.norm1)(4)})


def test_the_recipe_trains_on_compression() -> None:
    few = ("training.steps=2", "training.eval_every=1", "training.batch=2", "task.val=4", "task.test=4")
    assert estimate(load_recipe("mad-small", [*few, "task.kind=compression"]), 2).steps_run == 2
