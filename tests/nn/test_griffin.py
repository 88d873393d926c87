"""Griffin's blocks: what they compute, over every layer, with local attention, as models, files and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from cases.ops import gelu_formula
from cases.table import normal
from rotrnn import (
    LRU,
    RNN,
    Attention,
    Bidirectional,
    DeltaNet,
    Griffin,
    Mamba,
    Mamba2,
    MinGRU,
    ModelSettings,
    Recurrent,
    RotRNN,
    SelectiveRotRNN,
    StoredHistory,
    build_model,
)
from rotrnn._support.text import an
from rotrnn.models.build import bfloat16, make_layer
from rotrnn.nn import FeedForward
from rotrnn.nn.blocks.block import FeedForwardBlock
from rotrnn.nn.layer import Array, Context, Params, astype, flatten, unflatten
from rotrnn.nn.registry import LAYERS
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe
from small_models import check_slope, exact

EPS = np.finfo(np.float64).eps
B, T, D = 2, 9, 8
GRIFFIN: dict[str, Any] = {
    **{"layer": "rotrnn", "d_model": D, "n_layers": 6, "norm": "rms", "final_norm": True},
    **{"block": "griffin", "attention_every": 3, "attention_window": 4, "attention_heads": 2, "attention_kv_heads": 1},
}
ROTRNN = {"d_state": 8, "heads": 2}


def model_of(head: str = "tagger", **settings: Any) -> Any:
    return build_model(ModelSettings(**(GRIFFIN | settings)), ROTRNN, head=head, vocab=5, n_classes=5)


def test_every_third_block_attends_and_the_others_recur() -> None:
    blocks = model_of().stack.blocks
    layers = [block.layer for block in blocks]
    assert layers == 2 * [
        *2 * [Griffin(D, RotRNN(D, **ROTRNN))],
        Attention(D, heads=2, window=4, kv_heads=1, rotary="half", bias="out"),
    ]
    assert all(isinstance(block, FeedForwardBlock) for block in blocks)
    assert {block.feed_forward for block in blocks} == {
        FeedForward(D, 3, site=2 * place + 1, gated=True) for place in range(6)
    }
    plain = build_model(ModelSettings("lru", D, 4, attention_every=2), {"d_state": 4}, vocab=5, n_classes=5)
    assert [type(block.layer) for block in plain.stack.blocks] == [LRU, Attention, LRU, Attention]


def test_the_block_is_what_the_paper_says() -> None:
    """x + W_out (GELU(W_gate n) * recurrence(conv(W_value n))), then a gated net, with RMS norms before both."""
    block = model_of().stack.blocks[0]
    rng = np.random.default_rng(0)
    p = astype(block.init(rng), np.float64)
    own = {name.removeprefix("griffin_"): value for name, value in p["layer"].items()}
    own |= {name: own[name] + 0.1 * normal(rng, own[name].shape) for name in ("gate_bias", "value_bias", "out_bias")}
    p["layer"] |= {f"griffin_{name}": own[name] for name in ("gate_bias", "value_bias", "out_bias")}
    x = normal(rng, (B, T, D))

    def normed(x: Any, scale: Any) -> Any:
        return scale * x / np.sqrt(np.mean(x**2, -1, keepdims=True) + block.norm.eps)

    n = normed(x, p["norm"]["scale"])
    v = n @ own["value_w"].T + own["value_bias"]
    padded = np.concatenate([np.zeros((B, 3, D)), v], 1)
    u = own["conv_bias"] + sum(own["conv_w"][:, k] * padded[:, k : k + T] for k in range(4))
    inner = block.layer.layer
    r, _ = inner.forward({name: p["layer"][name] for name in inner.shapes}, u)
    z = x + (gelu_formula(n @ own["gate_w"].T + own["gate_bias"]) * r) @ own["out_w"].T + own["out_bias"]
    n = normed(z, p["norm2"]["scale"])
    up, value, down = (p["feed_forward"][name] for name in ("up", "value", "down"))
    hidden = gelu_formula(n @ up["w"].T + up["bias"]) * (n @ value["w"].T + value["bias"])
    y = z + hidden @ down["w"].T + down["bias"]
    stack = rotrnn.ResidualStack((block,))
    got, _ = stack.forward({"0": p}, x)
    np.testing.assert_allclose(got, y, rtol=0, atol=1e3 * EPS * np.abs(y).max())


def test_recurrent_gemmas_embedding_and_logits() -> None:
    """Vectors times sqrt(D), rounded to bfloat16, 2.828125 for 8 and 50.5 for 2560; logits 30 tanh(l / 30), and their
    gradient along a random direction, by differences whose error is some eps / 1e-6 and 1e-12."""
    ends: dict[str, Any] = {"layer": "rg_lru", "tied": True, "scale_embedding": True}
    plain, capped = (
        build_model(ModelSettings(**(GRIFFIN | ends | more)), {"heads": 2}, head="language", vocab=5, n_classes=5)
        for more in ({}, {"logit_cap": 0.5})
    )
    rng = np.random.default_rng(0)
    params = astype(plain.init(rng), np.float64)
    params["encoder"]["bias"] += 0.1
    ids = rng.integers(0, 5, (B, T))
    assert plain.encoder.scale == 2.828125
    assert bfloat16(2560**0.5) == 50.5
    y, _ = plain.encoder.forward(params["encoder"], ids)
    np.testing.assert_array_equal(y, 2.828125 * (params["encoder"]["table"][ids] + params["encoder"]["bias"]))
    logits, saved = capped.forward(params, ids)
    np.testing.assert_allclose(logits, 0.5 * np.tanh(plain.forward(params, ids)[0] / 0.5), rtol=0, atol=1e3 * EPS)
    dlogits = rng.standard_normal(logits.shape)
    grads = dict(flatten(capped.backward(params, saved, dlogits)))
    v = {name: rng.standard_normal(one.shape) for name, one in grads.items()}

    def f(s: float) -> float:
        moved = unflatten({name: one + s * v[name] if name in v else one for name, one in flatten(params)})
        return float(np.sum(dlogits * capped.forward(moved, ids)[0]))

    terms = [np.sum(grads[name] * v[name]) for name in grads]
    assert abs((f(1e-6) - f(-1e-6)) / 2e-6 - sum(terms)) <= 1e-6 * sum(map(abs, terms))


def test_initial_values_are_those_of_the_authors_code() -> None:
    """Standard deviations of some thousand numbers, to five times their own of 1 / sqrt(2 n)."""
    params = Griffin(96, rotrnn.RGLRU(128)).init(np.random.default_rng(0))
    for name, expected in (("gate_w", 96**-0.5), ("value_w", 96**-0.5), ("out_w", 128**-0.5), ("conv_w", 0.05)):
        found = params[f"griffin_{name}"]
        assert abs(found.std() / expected - 1) < 5 / np.sqrt(2 * found.size), name
    assert not any(params[f"griffin_{name}"].any() for name in ("gate_bias", "value_bias", "conv_bias", "out_bias"))


def test_it_has_as_many_parameters_as_its_docstring_says() -> None:
    E, taps, inner = 12, 4, RotRNN(12, 8, heads=2)
    own = sum(value.size for value in Griffin(D, inner).init(np.random.default_rng(0)).values())
    assert own == 3 * D * E + (taps + 3) * E + D + sum(int(np.prod(shape)) for shape in inner.shapes.values())
    gated = FeedForward(D, 3, gated=True).init(np.random.default_rng(0))
    assert sum(value.size for _, value in flatten(gated)) == 9 * D * D + 7 * D


@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
@pytest.mark.parametrize("name", LAYERS)
def test_over_every_layer(name: str) -> None:
    layer = Griffin(6, make_layer(name, 8, exact(name)), 3)
    check_slope(layer, Context(np.array([7, 4])))


@pytest.mark.parametrize("engine", ["c", "python"])
def test_streams_say_what_forward_says_with_a_window_of_keys(engine: str, tmp_path: Path) -> None:
    """The attention of a stream keeps the keys of the last window - 1 steps: with its own, `window`."""
    model = model_of("language")
    params = model.init(np.random.default_rng(0))
    model.save(tmp_path / "model.safetensors", params)
    loaded = rotrnn.load(tmp_path / "model.safetensors")
    assert loaded.model == model
    tokens = np.random.default_rng(1).integers(0, 5, (B, 25))
    logits = model.forward(params, tokens)[0]
    stream = loaded.model.stream(loaded.params, B, engine)
    pushed = [stream.push(tokens[:, t])[:, None] for t in range(12)]
    pushed.append(stream.push(tokens[:, 12:]))
    np.testing.assert_allclose(np.concatenate(pushed, 1), logits, rtol=0, atol=1e3 * np.finfo(np.float32).eps)
    if engine == "python":
        inputs, recurrence = stream.state[0][0]
        keys, values, places = stream.state[0][2]
        assert recurrence.shape == (B, 4)
        assert inputs.shape == (B, 3, D)
        assert keys.shape == values.shape == (B, 3, D // 2)
        assert places.tolist() == [25, 25]


def test_its_state_goes_on_and_padding_is_not_read() -> None:
    model = model_of("language")
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    tokens, lengths = np.random.default_rng(1).integers(0, 5, (B, 14)), np.array([14, 9])
    whole = model.forward(params, tokens, Context(lengths))[0]
    first = np.minimum(lengths, 11)
    head, saved = model.forward(params, tokens[:, :11], Context(first))
    tail, _ = model.forward(params, tokens[:, 11:], Context(lengths - first), saved.blocks.state)
    np.testing.assert_allclose(np.concatenate([head, tail], 1)[0], whole[0], rtol=0, atol=1e3 * EPS)
    np.testing.assert_allclose(head[1, :9], whole[1, :9], rtol=0, atol=1e3 * EPS)
    state = model.zero_state(B, np.float64)
    np.testing.assert_array_equal(model.forward(params, tokens, Context(lengths), state)[0], whole)
    x = normal(np.random.default_rng(2), (B, 14, D))
    x[1, 9:] = np.nan
    layer, own = model.stack.blocks[0].layer, params["blocks"]["0"]["layer"]
    y, saved_layer = layer.forward(own, x, Context(lengths))
    dx, dparams, _ = layer.backward(own, saved_layer, np.where(np.isnan(x), np.nan, 1.0))
    for name, array in (("y", y), ("dx", dx), *dparams.items()):
        assert np.isfinite(array).all(), name
    assert not y[1, 9:].any()
    assert not dx[1, 9:].any()


def test_what_is_said_of_the_recurrence_is_that_of_the_layer() -> None:
    model = model_of()
    params = model.init(np.random.default_rng(0))
    layer = model.stack.blocks[0].layer
    own = params["blocks"]["0"]["layer"]
    inner = {name: own[name] for name in layer.layer.shapes}
    eigenvalues = model.eigenvalues(params)
    assert len(eigenvalues) == 4  # of six blocks, two attend
    np.testing.assert_array_equal(eigenvalues[0], layer.layer.eigenvalues(inner))
    assert layer.recurrent == layer.layer.recurrent
    names = [name for name, _ in flatten(params) if model.is_recurrent(name)]
    assert {name for name in layer.shapes if layer.is_recurrent(name)} == {name.split(".")[-1] for name in names}
    assert {name.split(".")[1] for name in names} == {"0", "1", "3", "4"}
    tokens = np.zeros((B, T), np.int64)
    assert model.state_norms(params, tokens).shape == (4, T)
    history = StoredHistory(D, LRU(D, 4), 5, window=3)
    assert Griffin(D, history).core is history.layer
    both = Bidirectional(D, Griffin(D, LRU(D, 4)))
    assert both.forward(both.init(np.random.default_rng(0)), np.ones((1, 3, D), np.float32))[0].shape == (1, 3, D)


@pytest.mark.slow
@pytest.mark.whole
def test_its_recipe_learns_digits(tmp_path: Path) -> None:
    """A fifth of its steps; guessing is 10 %."""
    recipe = load_recipe("digits-griffin", ["training.steps=120", "training.eval_every=60"])
    assert recipe.model.attends(2)
    assert train(recipe, tmp_path / "run", progress=False)["test"]["last"]["accuracy"] > 0.5


def given(state: Any) -> Any:
    layer = Griffin(D, LRU(D, 3))
    return layer.forward(layer.init(np.random.default_rng(0)), np.ones((1, 2, D)), state=state)


def settings(**own: Any) -> Any:
    return ModelSettings(**({"layer": "lru", "d_model": D, "n_layers": 2} | own))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Griffin(D, LRU(D, 3), 0), "Griffin: d_conv=0, expected a positive integer"),
        (lambda: Griffin(D, "lru"), "Griffin: layer='lru', expected a Recurrent"),  # type: ignore[arg-type]
        (lambda: Griffin(D, LRU(D, 3, bidirectional=True)), "Griffin: LRU has bidirectional=True, expected False: Gri"),
        (lambda: Griffin(D, Bidirectional(D, Mamba(D, 2))), "Griffin: Bidirectional has bidirectional=True"),
        (lambda: Griffin(D, Griffin(D, LRU(D, 3))), "Griffin: Griffin has a parameter griffin_gate_w"),
        (lambda: given((np.zeros((1, 2, D)), np.zeros((1, 3)) + 0j)), r"inputs has shape .*, expected \(B=1, 3, 8\)"),
        (lambda: settings(block="griffin", prenorm=False), "model.prenorm: got false, .* with block 'griffin'"),
        (lambda: settings(attention_every=1), "model.attention_every: got 1, expected an integer from 2"),
        (lambda: settings(attention_every=2, attention_window=0), "model.attention_window: got 0, expected an integer"),
        (lambda: settings(attention_window=3), "model.attention_window: got 3, expected none without attention_every"),
        (lambda: settings(attention_heads=3), "model.attention_heads: got 3, expected none without attention_every"),
        (
            lambda: build_model(settings(scale_embedding=True), {"d_state": 2}, n_features=5, n_classes=5),
            "build_model: the settings have scale_embedding, expected a model that reads token ids",
        ),
        (
            lambda: build_model(settings(logit_cap=30.0), {"d_state": 2}, vocab=5, n_classes=5),
            "build_model: the settings have logit_cap=30.0, expected none with head 'classifier'",
        ),
        (
            lambda: build_model(settings(logit_cap=0.0), {"d_state": 2}, head="tagger", vocab=5, n_classes=5),
            "Tagger: logit_cap=0.0, expected a positive number or None",
        ),
        (lambda: settings(block="grifin"), "model.block: got 'grifin', expected one of .*; did you mean griffin"),
        (
            lambda: build_model(settings(attention_every=2, attention_heads=3), {"d_state": 2}, vocab=5, n_classes=5),
            "Attention: heads=3, expected a divisor of d_model=8",
        ),
        (
            lambda: build_model(settings(block="griffin"), RNN(D, 3, bidirectional=True), vocab=5, n_classes=5),
            "Griffin: RNN has bidirectional=True",
        ),
        (
            lambda: build_model(
                settings(block="griffin", n_layers=10_000, attention_every=3), RNN(D, 2**20), vocab=5, n_classes=5
            ),
            "build_model: d_model=8, n_layers=10000, .* parameters, expected at most",
        ),
    ],
)
def test_bad_settings(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("inner", [MinGRU(6, 5), Mamba2(6, d_state=3), DeltaNet(6)], ids=lambda one: type(one).__name__)
def test_eigenvalues_are_those_for_what_enters_the_layer(inner: Recurrent) -> None:
    """Of a stream, token by token, by the branches' own convolution. A matrix has its eigenvalues in no order: that in
    which LAPACK finds equal ones goes by roundings."""
    layer = Griffin(4, inner)
    rng = np.random.default_rng(0)
    params = astype(layer.init(rng), np.float64)
    x = rng.standard_normal((2, 7, 4))
    v = x @ params["griffin_value_w"].T + params["griffin_value_bias"]
    past = np.concatenate([np.zeros((2, 3, 6)), v], 1)
    u = sum(past[:, k : k + 7] * params["griffin_conv_w"][:, k] for k in range(4)) + params["griffin_conv_bias"]
    own = {name: params[name] for name in inner.shapes}
    wanted = np.sort(inner.eigenvalues(own, u))
    np.testing.assert_allclose(np.sort(layer.eigenvalues(params, x)), wanted, rtol=0, atol=1e-12)
    _, saved = layer.forward(params, x[:, :3])
    found = np.sort(layer.eigenvalues(params, x[:, 3:], state=saved.state))
    np.testing.assert_allclose(found, wanted[:, 3:], rtol=0, atol=1e-12)
    name = type(inner).__name__
    with pytest.raises(TypeError, match=rf"^Griffin\.eigenvalues: the layer is {an(name)}, expected x, on which"):
        layer.eigenvalues(params)
    with pytest.raises(ValueError, match=r"^Griffin\.eigenvalues: x has shape \(7, 4\)"):
        layer.eigenvalues(params, x[0])


def test_constant_eigenvalues_take_no_input() -> None:
    layer = Griffin(4, LRU(4, 6))
    params = layer.init(np.random.default_rng(0))
    with pytest.raises(TypeError, match=r"^Griffin\.eigenvalues: the layer is an LRU, expected params alone"):
        layer.eigenvalues(params, np.zeros((1, 2, 4), np.float32))
    with pytest.raises(TypeError, match=r"^Griffin\.eigenvalues: ctx is an int, expected a Context"):
        layer.eigenvalues(params, None, 3)  # type: ignore[arg-type]


class Own(MinGRU):
    """A user's layer, with other arguments than those of the package."""

    def eigenvalues(self, params: Params, x: Array, power: int = 1) -> Array:  # type: ignore[override]
        return super().eigenvalues(params, x) ** power


def test_a_layer_of_ones_own_may_take_other_arguments() -> None:
    layer, rng = Own(4, 6), np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((1, 3, 4)).astype(np.float32)
    once = MinGRU(4, 6).eigenvalues(params, x)
    np.testing.assert_array_equal(layer.eigenvalues(params, x), once)
    np.testing.assert_array_equal(layer.eigenvalues(params, x, power=2), once**2)


@pytest.mark.parametrize(
    "layer",
    [SelectiveRotRNN(4, 6), Griffin(4, RotRNN(4, 6)), StoredHistory(4, RotRNN(4, 6), length=3)],
    ids=lambda one: type(one).__name__,
)
def test_a_zero_input_matrix_of_rotrnn_is_refused_around_it_too(layer: Recurrent) -> None:
    params = layer.init(np.random.default_rng(0))
    params["B"][:] = 0
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: parameter B of head 0 is zero"):
        layer.forward(params, np.ones((1, 3, 4), np.float32))
