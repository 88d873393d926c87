"""The whole classifier: gradients, ragged batches, chunks, threads, and its reports."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rotrnn import _cpu
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.nn.layer import Context, Params, astype, flatten, is_parameter, unflatten
from rotrnn.ops.pointwise import cross_entropy

TOKENS: dict[str, int] = {"n_classes": 3, "vocab": 7}
FEATURES: dict[str, int] = {"n_classes": 3, "n_features": 2}
LENGTHS = np.array([9, 4, 1, 6])
LAYERS: dict[str, dict[str, Any]] = {
    "rotrnn": {"d_state": 6, "heads": 2},
    "lru": {"d_state": 3, "r_min": 0.5},
}


def model_of(
    layer: str, task: dict[str, int] = TOKENS, bidirectional: bool = False, **settings: Any
) -> SequenceClassifier:
    chosen = ModelSettings(layer=layer, d_model=5, n_layers=2, **settings)
    return build_model(chosen, {**LAYERS[layer], "bidirectional": bidirectional}, **task)


def data(task: dict[str, int]) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, 7, (4, 9)) if task is TOKENS else rng.standard_normal((4, 9, 2))
    return inputs, rng.integers(0, 3, 4)


def loss_and_gradient(
    model: SequenceClassifier, params: Params, inputs: Any, labels: Any, ctx: Context
) -> tuple[float, Params]:
    logits, saved = model.forward(params, inputs, ctx)
    loss, dlogits = cross_entropy(logits, labels)
    return loss, model.backward(params, saved, dlogits)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "ragged"])
@pytest.mark.parametrize(
    ("layer", "task", "settings"),
    [
        ("rotrnn", TOKENS, {}),
        ("lru", FEATURES, {"glu": "half1", "dropout": 0.3, "dropout_over_time": True}),
        ("rotrnn", FEATURES, {"norm": "layer", "glu": "half2", "pool": "last", "dropout": 0.3}),
        ("lru", TOKENS, {"bidirectional": True}),
    ],
    ids=["rotrnn", "lru-half1-dropout", "rotrnn-layernorm-half2-last", "lru-bidirectional"],
)  # fmt: skip
def test_gradient_of_the_whole_classifier(
    layer: str, task: dict[str, int], settings: dict[str, Any], lengths: Any
) -> None:
    """Central differences of the loss along random directions of each parameter, float64, training mode: 1e-6."""
    model = model_of(layer, task, **settings)
    rng = np.random.default_rng(0)
    params = astype(model.init(rng), np.float64)
    inputs, labels = data(task)
    ctx = Context(lengths=lengths, train=True, seed=5, step=3)
    _, grads = loss_and_gradient(model, params, inputs, labels, ctx)
    flat, flat_grads = dict(flatten(params)), dict(flatten(grads))
    assert flat_grads.keys() == {name for name in flat if is_parameter(name)}
    largest = max(np.abs(g).max() for g in flat_grads.values())
    for name, grad in flat_grads.items():
        assert grad.shape == flat[name].shape, name
        v = rng.standard_normal(grad.shape)
        step = 1e-4
        values = [
            loss_and_gradient(model, unflatten({**flat, name: flat[name] + k * step * v}), inputs, labels, ctx)[0]
            for k in (-2, -1, 1, 2)
        ]
        numeric = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        exact = float(np.sum(grad * v))
        # rounding of the loss alone leaves eps/step = 2e-12 of noise, far below 1e-6 of the largest gradient
        assert abs(numeric - exact) <= 1e-6 * max(abs(numeric), np.linalg.norm(grad), 1e-3 * largest), name


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("layer", LAYERS)
def test_padding_changes_nothing(layer: str, train: bool) -> None:
    """More padding, and NaN in it, leave logits, gradients and running statistics as they are, up to rounding: sums
    over rows are cut by shape, and the shapes differ."""
    model = model_of(layer, FEATURES, dropout=0.2, dropout_over_time=True)
    params = model.init(np.random.default_rng(0))
    inputs, labels = data(FEATURES)
    inputs = inputs.astype(np.float32)
    ctx = Context(lengths=LENGTHS, train=train, seed=1, step=2)
    longer = np.full((4, 12, 2), np.nan, np.float32)
    for b, length in enumerate(LENGTHS):
        longer[b, :length] = inputs[b, :length]
    results = []
    for x in (inputs, longer):
        copy = unflatten({name: value.copy() for name, value in flatten(params)})
        logits, saved = model.forward(copy, x, ctx)
        grads = model.backward(copy, saved, cross_entropy(logits, labels)[1])
        results.append((logits, dict(flatten(grads)), dict(flatten(copy))))
    (a, a_grads, a_params), (b, b_grads, b_params) = results
    # a few hundred float32 roundings (eps 1.2e-7) of numbers around 1
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    for name in a_grads:
        scale = np.abs(a_grads[name]).max() + 1e-6
        np.testing.assert_allclose(a_grads[name], b_grads[name], rtol=0, atol=1e-4 * scale, err_msg=name)
    for name in a_params:
        np.testing.assert_allclose(a_params[name], b_params[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("layer", LAYERS)
def test_stack_streams_as_it_runs(layer: str) -> None:
    """In evaluation mode the steps, chunks and whole of the stack agree."""
    model = model_of(layer, FEATURES, norm="layer")
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    stack, p = model.stack, params["blocks"]
    x = np.random.default_rng(1).standard_normal((2, 11, 5))
    full, saved = stack.forward(p, x)
    head, first = stack.forward(p, x[:, :4])
    tail, second = stack.forward(p, x[:, 4:], state=first.state)
    state, rows = None, []
    for t in range(11):
        y_t, state = stack.step(p, state, x[:, t])
        rows.append(y_t)
    tolerance = {"rtol": 0, "atol": 1e-13 * np.abs(full).max()}  # some hundred roundings
    np.testing.assert_allclose(np.concatenate([head, tail], 1), full, **tolerance)
    np.testing.assert_allclose(np.stack(rows, 1), full, **tolerance)
    for i in range(2):
        np.testing.assert_allclose(second.state[i], saved.state[i], **tolerance)
        np.testing.assert_allclose(state[i], saved.state[i], **tolerance)


@pytest.mark.parametrize("layer", LAYERS)
def test_same_bits_for_any_number_of_threads(layer: str) -> None:
    """Loss, gradients and updated running statistics, at a size that is cut into several pieces."""
    settings = ModelSettings(layer=layer, d_model=40, n_layers=2, dropout=0.1)
    sizes = {"rotrnn": {"d_state": 48, "heads": 4}, "lru": {"d_state": 24}}
    model = build_model(settings, sizes[layer], **TOKENS)
    rng = np.random.default_rng(0)
    inputs, labels = rng.integers(0, 7, (5, 333)), rng.integers(0, 3, 5)
    ctx = Context(lengths=np.array([333, 20, 0, 200, 111]), train=True, seed=1, step=1)
    results = []
    before = _cpu.threads()
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            params = model.init(np.random.default_rng(0))
            loss, grads = loss_and_gradient(model, params, inputs, labels, ctx)
            results.append((loss, [x.tobytes() for _, x in (*flatten(grads), *flatten(params))]))
    finally:
        _cpu.use_threads(before)
    assert results[0] == results[1] == results[2]


def test_what_is_recurrent_and_what_it_can_say() -> None:
    model = model_of("rotrnn")
    params = model.init(np.random.default_rng(0))
    recurrent = [name for name, _ in flatten(params) if model.is_recurrent(name)]
    assert recurrent == [f"blocks.{i}.layer.{name}" for i in (0, 1) for name in ("theta", "gamma_log", "M", "B")]
    assert {name for name, _ in flatten(params["blocks"]) if model.stack.is_recurrent(name)} == {
        name.removeprefix("blocks.") for name in recurrent
    }
    for part, name, message in (
        (model, "_orig_mod.blocks.0.layer.theta", "; did you mean blocks.0.layer.theta?"),
        (model, "blocks.2.layer.theta", "; did you mean blocks.1.layer.theta?"),
        (model, "blocks.0.layer", "; did you mean"),
        (model.stack, "0.layer.thetta", "; did you mean 0.layer.theta?"),
        (model.stack.blocks[0].layer, "thetta", "; did you mean theta?"),
        (model.stack.blocks[0].layer, 3, ""),
    ):
        kind = type(part).__name__
        expected = f"{kind}.is_recurrent: name is {name!r}, expected the name of a parameter, as of rotrnn.flatten"
        with pytest.raises(ValueError, match=f"^{re.escape(expected + message)}"):
            part.is_recurrent(name)
    assert all(value.dtype == np.float32 for _, value in flatten(params))
    inputs, _ = data(TOKENS)
    norms = model.state_norms(params, inputs, Context(lengths=LENGTHS))
    assert norms.shape == (2, 9)
    assert np.all(norms > 0)
    _, saved = model.forward(params, inputs[:1], Context(fused=False))
    alone = np.linalg.norm(saved.blocks.blocks[1].layer.layer.h[0, 0], axis=-1)
    # only the first sequence is longer than 6 steps
    np.testing.assert_allclose(norms[1, 6:], alone[6:], rtol=1e-4)
    values = model.eigenvalues(params)
    assert [len(a) for a in values] == [4, 4]  # heads of 3 lanes: one plane, and the odd lane's own
    assert all(np.all(np.abs(a) < 1) for a in values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer": "lrv"}, "model.layer: got 'lrv', expected one of rotrnn, lru"),
        ({"norm": "group"}, "model.norm: got 'group'"),
        ({"glu": "third"}, "model.glu: got 'third'"),
        ({"pool": "max"}, "model.pool: got 'max'"),
        ({"dropout": 1.0}, "model.dropout: got 1.0"),
        ({"d_model": 0}, "model.d_model: got 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSettings(**{"layer": "lru", "d_model": 4, "n_layers": 1, **settings})
