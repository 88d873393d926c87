"""Every recurrent layer of the table: full = chunked = streamed, gradients through the state, descriptions, errors."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from cases import LAYER_ROWS, LayerRow
from cases.table import normal
from rotrnn.models.build import ModelSettings, build_model, make_layer
from rotrnn.nn.layer import Context, Recurrent, astype, flatten, flatten_state, unflatten
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.module import spelled_out
from rotrnn.nn.registry import LAYERS, RotRNN
from rotrnn.tasks.digits import Digits
from rotrnn.training.optimiser import AdamW
from rotrnn.training.recipe import Recipe, Training, read_recipe

EPS = np.finfo(np.float64).eps

streaming_rows = pytest.mark.parametrize(
    "row",
    [row for row in LAYER_ROWS if row.streams and row.lengths is None and row.B * row.T > 0 and not row.bidirectional],
    ids=lambda row: row.title,
)


def inputs_of(row: LayerRow) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    return rng, row.params(rng), normal(rng, (row.B, row.T, row.layer.d_model))


def assert_close(row: LayerRow, got: Any, expected: Any, what: str, factor: float = 1.0) -> None:
    """Two orders of the same `terms` rounded operations, or within the row's own gap."""
    gap = 4 * row.terms * EPS if row.gap is None else row.gap
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=factor * gap * scale, err_msg=what)


def assert_states_close(row: LayerRow, got: Any, expected: Any) -> None:
    got, expected = dict(flatten_state(got)), dict(flatten_state(expected))
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].dtype == expected[name].dtype
        assert_close(row, got[name], expected[name], name)


@streaming_rows
def test_chunks_are_the_whole(row: LayerRow) -> None:
    _, params, x = inputs_of(row)
    full, saved = row.layer.forward(params, x)
    for split in range(row.T + 1):
        head, first = row.layer.forward(params, x[:, :split])
        tail, second = row.layer.forward(params, x[:, split:], state=first.state)
        assert_close(row, np.concatenate([head, tail], 1), full, f"split at {split}")
        assert_states_close(row, second.state, saved.state)


@streaming_rows
def test_streaming_is_the_whole(row: LayerRow) -> None:
    """Single steps from the start, from the state of a chunk, and with `prepare` called once."""
    _, params, x = inputs_of(row)
    full, saved = row.layer.forward(params, x)
    prepared = row.layer.prepare(params)
    for first in (0, row.T // 2):
        state, start = None, []
        if first:
            y, chunk = row.layer.forward(params, x[:, :first])
            state, start = chunk.state, [y]
        for t in range(first, row.T):
            y_t, state = row.layer.step(params, state, x[:, t], prepared)
            start.append(y_t[:, None])
        assert_close(row, np.concatenate(start, 1), full, f"streamed from {first}")
        assert_states_close(row, state, saved.state)
    y_t, _ = row.layer.step(params, None, x[:, 0])
    assert_close(row, y_t, full[:, 0], "first step")


@streaming_rows
def test_a_step_does_not_change_the_given_state(row: LayerRow) -> None:
    """Without `prepared`, two continuations of one state are independent."""
    _, params, x = inputs_of(row)
    _, saved = row.layer.forward(params, x[:, :1])
    before = [leaf.tobytes() for _, leaf in flatten_state(saved.state)]
    first, _ = row.layer.step(params, saved.state, x[:, 0])
    row.layer.step(params, saved.state, x[:, -1])
    again, _ = row.layer.step(params, saved.state, x[:, 0])
    assert [leaf.tobytes() for _, leaf in flatten_state(saved.state)] == before
    np.testing.assert_array_equal(first, again)


@streaming_rows
def test_gradients_chain_through_the_state(row: LayerRow) -> None:
    """The gradient of a whole sequence is that of its two halves, the second's dstate handed to the first."""
    rng, params, x = inputs_of(row)
    y, saved = row.layer.forward(params, x)
    dy = normal(rng, y.shape)
    dx, dparams, _ = row.layer.backward(params, saved, dy)
    half = row.T // 2
    _, first = row.layer.forward(params, x[:, :half])
    _, second = row.layer.forward(params, x[:, half:], state=first.state)
    dx_second, d_second, dstate = row.layer.backward(params, second, dy[:, half:])
    dx_first, d_first, _ = row.layer.backward(params, first, dy[:, :half], dstate)
    # gradients pass the same operations once more
    assert_close(row, np.concatenate([dx_first, dx_second], 1), dx, "dx", 4)
    assert dparams.keys() == params.keys()
    for name in params:
        assert_close(row, d_first[name] + d_second[name], dparams[name], name, 4 * row.T)


def test_every_layer_of_the_registry_is_in_the_table() -> None:
    assert {type(row.layer) for row in LAYER_ROWS} == {*LAYERS.values(), Bidirectional, Griffin, StoredHistory}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_says_what_it_is(name: str) -> None:
    layer = LAYERS[name]
    for line in (layer.about, layer.paper):
        assert line
        assert "\n" not in line
    rows = [row for row in LAYER_ROWS if type(row.layer) is layer]
    assert layer.recurrent <= {key for row in rows for key in row.layer.shapes}
    row = rows[0]
    params = row.layer.init(np.random.default_rng(0))
    assert {key: value.shape for key, value in params.items()} == row.layer.shapes
    assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}
    with pytest.raises(ValueError, match=f"{layer.__name__}: parameter {next(iter(params))} is missing"):
        row.layer.forward({}, np.zeros((1, 2, row.layer.d_model)))
    with pytest.raises(ValueError, match=f"{layer.__name__}: d_model=0, expected a positive integer"):
        replace(row.layer, d_model=0)


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_are_real_arrays(name: str) -> None:
    """Of a complex one, the imaginary part was lost without an error."""
    row = next(row for row in LAYER_ROWS if type(row.layer) is LAYERS[name])
    params = row.layer.init(np.random.default_rng(0))
    key = next(iter(params))
    for value, got in ((1j * params[key], "dtype complex64"), (params[key].tolist(), "type list"), (None, "type None")):
        with pytest.raises(TypeError, match=f"{LAYERS[name].__name__}: parameter {key} has {got}.*, expected an array"):
            row.layer.forward(params | {key: value}, np.zeros((1, 2, row.layer.d_model)))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_another_shape_or_precision(name: str) -> None:
    layer = next(row.layer for row in LAYER_ROWS if type(row.layer) is LAYERS[name])
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, layer.d_model), dtype=np.float32)
    params = layer.init(rng)
    y, saved = layer.forward(params, x)
    dx, dparams, _ = layer.backward(params, saved, y)
    wide, dwide, _ = layer.backward(params, saved, y.astype(np.float64))  # as NumPy makes of many a loss
    for got, expected in ((wide, dx), *((dwide[key], dparams[key]) for key in params)):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    for dy in (y[:1], y[0], y[None], y[:, :1], y[..., :1], np.float32(1)):
        with pytest.raises(ValueError, match=r"has shape .*, expected \(.*"):
            layer.backward(params, saved, dy)


@pytest.mark.parametrize("name", LAYERS)
def test_settings_of_another_type_are_refused(name: str) -> None:
    kind = LAYERS[name]
    good = next(row.layer for row in LAYER_ROWS if type(row.layer) is kind)
    odd = [np.nan, np.inf, 1j, b"x", {}, object(), np.array([1, 2]), ["no", 1], (1, "no")]
    for field in fields(kind):
        is_flag, is_text = isinstance(field.default, bool), isinstance(field.default, str)
        texts = [] if is_text or field.name == "train_iterations" else ["", "x", "8"]
        for value in [*odd, *texts, *((0, 1, None, "false") if is_flag else (True, False))]:
            with pytest.raises(ValueError, match=f"^{kind.__name__}: {field.name}=.*, expected "):
                replace(good, **{field.name: value})


def test_settings_that_mean_the_same_are_equal() -> None:
    plain = RotRNN(8, 16, heads=4, gamma_init=(0.5, 0.9), theta_max=1.0)
    given: Any = {"heads": np.int64(4), "gamma_init": [np.float64(0.5), 0.9], "theta_max": 1}
    assert spelled_out(RotRNN(np.int32(8), 16, **given)) == spelled_out(plain)  # what a stream's state is known by
    for value in (1, 0, "false"):
        with pytest.raises(ValueError, match=f"LSTM: bidirectional={value!r}, expected True or False"):
            make_layer("lstm", 8, {"d_state": 4, "bidirectional": value})
    with pytest.raises(ValueError, match="Bidirectional: layer='lru', expected a Recurrent"):
        Bidirectional(8, "lru")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ModelSettings: prenorm='no', expected True or False"):
        ModelSettings("lru", 8, 1, prenorm="no")  # type: ignore[arg-type]


def different(rows: list[LayerRow]) -> pytest.MarkDecorator:
    """One row of each layer with other settings."""
    return pytest.mark.parametrize("row", list({row.layer: row for row in rows}.values()), ids=lambda row: row.title)


def name_of(layer: Recurrent) -> str:
    kind = type(layer.layer if isinstance(layer, Bidirectional) else layer.core)
    return next(name for name, one in LAYERS.items() if one is kind)


@different([row for row in LAYER_ROWS if not isinstance(row.layer, Bidirectional | Griffin)])
def test_a_recipe_holds_every_setting(row: LayerRow) -> None:
    """Settings -> TOML -> the same layer."""
    model = ModelSettings(name_of(row.layer), row.layer.d_model, 1)
    recipe = Recipe(Digits(), model, row.layer, AdamW(), Training(batch=1, steps=1))
    assert read_recipe(tomllib.loads(recipe.text())) == recipe


@different(LAYER_ROWS)
def test_a_model_of_the_layer_trains_and_streams(row: LayerRow) -> None:
    """Two blocks in a classifier: a step down the gradient lowers the loss, and a stream says what forward says."""
    settings = ModelSettings(name_of(row.layer), row.layer.d_model, 2, norm="layer")
    model = build_model(settings, row.layer, n_classes=3, vocab=5)
    rng = np.random.default_rng(0)
    params = astype(model.init(rng), np.float64)
    inputs, labels = rng.integers(0, 5, (4, 6)), np.array([0, 1, 2, 0])
    ctx = Context(np.array([6, 1, 4, 0]), train=True)
    logits, saved = model.forward(params, inputs, ctx)
    loss = model.loss(logits, labels)
    grads = dict(flatten(model.backward(params, saved, loss.dlogits)))
    size = np.sqrt(sum(float(np.sum(grad**2)) for grad in grads.values()))
    assert 0 < size < np.inf
    model.report(saved)
    moved = unflatten({key: value - 1e-3 / size * grads[key] for key, value in flatten(params)})
    assert model.loss(model.forward(moved, inputs, ctx)[0], labels).mean < loss.mean
    if row.bidirectional or not row.streams:
        return
    stream = model.stream(params, 4)
    for t in range(6):
        logits = stream.push(inputs[:, t])
    gap = 1e4 * EPS if row.gap is None else 1e3 * row.gap  # two blocks pass on what each errs
    np.testing.assert_allclose(logits, model.forward(params, inputs)[0], rtol=0, atol=gap)
