"""Stored histories: known answers of each read, over every layer of the package, and as part of models and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from cases.table import normal
from rotrnn import LRU, LSTM, RNN, Attention, Bidirectional, Mamba, MinGRU, ModelSettings, StoredHistory, build_model
from rotrnn.models.build import make_layer
from rotrnn.nn.layer import TRUSTED, Context, astype, zero_state
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.history_attention import history_attention
from rotrnn.ops.memory import history_weights_backward, wrope_angle
from rotrnn.ops.scan import diagonal_scan
from small_models import check_slope, exact

EPS = np.finfo(np.float64).eps
B, T, D, P = 2, 23, 6, 3


def read_of(layer: StoredHistory, seed: int = 0) -> tuple[Any, Any]:
    """Returns the hidden states (B, T, P) of random inputs, and the memory that the layer reads from them."""
    rng = np.random.default_rng(seed)
    params = astype(layer.init(rng), np.float64)
    x = normal(rng, (B, T, layer.d_model))
    params["history_C"] = np.eye(layer.d_model)  # D = 2P: what is read is what is added to the output
    inner = {name: params[name] for name in layer.layer.shapes}
    y, saved = layer.layer.forward(inner, x, Context(fused=False))
    states = layer.layer.hidden_states(saved)
    h = y if states is None else states
    m = np.ascontiguousarray(layer.forward(params, x)[0] - y)
    return (h if np.iscomplexobj(h) else h.view(complex)), m.view(complex)


def close(got: Any, expected: Any, terms: int = 100) -> None:
    """`terms` roundings of numbers no larger than the largest, and those of an FFT of T steps."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=terms * T * EPS * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("inner", [LRU(D, P), LSTM(D, D), RNN(D, D), MinGRU(D, D), Mamba(D, 2)])
def test_a_sum_without_angles_is_the_cumulative_sum_of_states(inner: Any) -> None:
    h, m = read_of(StoredHistory(D, inner, 5, "sum", "none"))
    close(m, np.cumsum(h, 1))
    h, m = read_of(StoredHistory(D, inner, 5, "sum", "none", window=1))
    close(m, h)


@pytest.mark.parametrize("window", [None, 7])
def test_ageing_by_rope_is_a_rotation_at_each_step(window: int | None) -> None:
    """m is the recurrence that turns what it holds by 2 pi / L a step, with a window TIIR's; and one state alone, which
    is read t - s steps later, has been turned t - s times."""
    h, m = read_of(StoredHistory(D, LRU(D, P), 7, "sum", "uniform", window))
    turn = np.exp(2j * np.pi / 7)
    close(m, diagonal_scan(np.full(P, turn), h, window=window))
    aged, held = h[:, 0], np.zeros_like(h[:, 0])
    for t in range(T):
        held = turn * held + h[:, t]
        if window is not None and t >= window:
            held = held - turn**window * h[:, t - window]
        close(m[:, t], held)
    for _ in range(5):
        aged = turn * aged
    close(aged, np.exp(1j * wrope_angle(5, 7, "uniform")) * h[:, 0])


@pytest.mark.parametrize("form", ["warped", "blend", "blend_printed", "uniform"])
def test_learned_weights_of_age_choose_a_state(form: str) -> None:
    """With weight one at age 3 alone, what is read is the state of three steps ago, turned by its angle. Beyond the
    last weight all older states share it."""
    layer = StoredHistory(D, LRU(D, P), 6, "ages", form)
    rng = np.random.default_rng(1)
    params = astype(layer.init(rng), np.float64) | {"history_C": np.eye(D)}
    x = normal(rng, (B, T, D))
    y, saved = layer.layer.forward({name: params[name] for name in layer.layer.shapes}, x, Context(fused=False))
    h = layer.layer.hidden_states(saved)
    turned = [np.exp(1j * wrope_angle(k, 6, form)) * h[:, T - 1 - k] for k in range(T)]
    for weights, expected in (([0, 0, 0, 1, 0, 0], turned[3]), ([0, 0, 0, 0, 0, 1], sum(turned[5:]))):
        params["history_w"] = np.array([weights], float)
        m = np.ascontiguousarray(layer.forward(params, x)[0] - y).view(complex)
        close(m[:, -1], expected)


def test_reversed_angles_are_warped_ones_of_the_sequence_in_reverse() -> None:
    """Over a layer that has no memory of its own: read at its end, a reversed sequence with angles from its beginning
    is the sequence with angles by age."""
    inner = Attention(D, window=1, rotary=False)
    rng = np.random.default_rng(2)
    params = astype(StoredHistory(D, inner, 5, "sum").init(rng), np.float64)
    x = normal(rng, (B, T, D))
    by_age = StoredHistory(D, inner, 5, "sum", "warped").forward(params, x)[0]
    placed = StoredHistory(D, inner, 5, "sum", "reversed").forward(params, np.ascontiguousarray(x[:, ::-1]))[0]
    outputs = inner.forward({name: params[name] for name in inner.shapes}, x)[0]
    close(placed[:, -1] - outputs[:, 0], by_age[:, -1] - outputs[:, -1])


@pytest.mark.parametrize("form", ["uniform", "warped", "blend", "blend_printed"])
def test_a_query_finds_the_state_of_an_age(form: str) -> None:
    """All states have 1 in one plane, and something of their own in the other. A query e^{i Delta_k} for the first
    plane finds the state of age k; with uniform angles as many as there are at a distance of L."""
    L, k = 8, 3
    rng = np.random.default_rng(3)
    own = normal(rng, (T,), True)
    h = np.stack([np.ones(T), own], 1)[None] + 0j
    weights = np.exp(1j * wrope_angle(np.arange(T), L, form))
    q = np.zeros((1, T, 2), complex)
    q[..., 0] = 2e4 * weights[k]  # the next angle's score is lower by 1e4 (1 - cos 0.38) = 700 at least
    m = history_attention(q, weights, h)[0, :, 1] / weights[k]
    expected = [np.mean(own[t - k :: -L] if form == "uniform" else own[t - k]) for t in range(k, T)]
    np.testing.assert_allclose(m[k:], expected, rtol=0, atol=1e-6)


def test_a_query_finds_content_and_content_at_an_age() -> None:
    """Three kinds of states, each several times: a query for a kind without angles reads the mean of that kind, and
    with an angle the one of that age."""
    rng = np.random.default_rng(4)
    kind = np.arange(12) % 3
    own = normal(rng, (12,), True)
    h = np.zeros((1, 12, 4), complex)
    h[0, np.arange(12), kind], h[0, :, 3] = 1, own
    q = np.zeros((1, 12, 4), complex)
    q[..., 1] = 2e4
    m = history_attention(q, np.ones(12, complex), h)[0, -1, 3]
    np.testing.assert_allclose(m, own[kind == 1].mean(), atol=1e-9)
    weights = np.exp(1j * wrope_angle(np.arange(12), 8))
    for age in (1, 4, 7, 10):
        m = history_attention(q * weights[age], weights, h)[0, -1, 3] / weights[age]
        np.testing.assert_allclose(m, own[11 - age], atol=1e-6)


@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
@pytest.mark.parametrize("read", ["sum", "ages", "content"])
@pytest.mark.parametrize("name", LAYERS)
def test_over_every_layer(name: str, read: str) -> None:
    layer = make_layer(name, 8, {**exact(name), "history": {"length": 4, "read": read, "window": 5}})
    assert isinstance(layer, StoredHistory)
    check_slope(layer, Context())


def test_it_is_part_of_models_files_and_streams(tmp_path: Path) -> None:
    history = {"length": 5, "read": "content", "heads": 2, "window": 6}
    settings = ModelSettings("lru", 8, 2, norm="layer")
    model = build_model(settings, {"d_state": 4, "history": history}, n_classes=3, vocab=5, head="tagger")
    assert model.stack.blocks[0].layer == StoredHistory(8, LRU(8, 4), 5, heads=2, window=6)
    params = model.init(np.random.default_rng(0))
    model.save(tmp_path / "model.safetensors", params)
    loaded = rotrnn.load(tmp_path / "model.safetensors")
    assert loaded.model == model
    tokens = np.random.default_rng(1).integers(0, 5, (2, 15))
    logits = model.forward(params, tokens)[0]
    stream = loaded.model.stream(loaded.params, 2)
    pushed = np.stack([stream.push(tokens[:, t]) for t in range(15)], 1)
    np.testing.assert_allclose(pushed, logits, rtol=0, atol=1e3 * np.finfo(np.float32).eps)
    both = make_layer("lstm", 8, {"d_state": 4, "history": {"length": 5}, "bidirectional": True})
    assert both == Bidirectional(8, StoredHistory(8, LSTM(8, 4), 5))


def test_a_stream_takes_its_place_among_others() -> None:
    """Sequences of a batch that have read different numbers of steps go on as they would alone."""
    layer = StoredHistory(D, LRU(D, P), 5, "content", "warped")
    rng = np.random.default_rng(6)
    params = astype(layer.init(rng), np.float64)
    x, more = normal(rng, (2, 6, D)), normal(rng, (2, 4, D))
    lengths = np.array([6, 2])
    state = layer.forward(params, x, Context(lengths))[1].state
    together = layer.forward(params, more, state=state)[0]
    for b, n in enumerate(lengths):
        alone = layer.forward(params, np.concatenate([x[b, :n], more[b]])[None])[0][0, n:]
        close(together[b], alone)
    stepped, state = layer.step(params, state, more[:, 0])
    close(stepped, together[:, 0])
    assert state[-1].tolist() == [7, 3]


def test_initial_values() -> None:
    """history_C of a sum is such that as many states as there are in a memory add up to the size of one."""
    rng = np.random.default_rng(7)
    for read, window, variance in (("sum", None, 1 / 800), ("sum", 25, 1 / 400), ("content", None, 1 / 16)):
        params = StoredHistory(64, LRU(64, 8), 50, read, window=window).init(rng)
        assert params["history_C"].dtype == np.float32
        assert np.var(params["history_C"]) == pytest.approx(variance, rel=0.2)  # of 1024 numbers: 4.5 deviations
    ages = StoredHistory(64, LRU(64, 8), 50, "ages", heads=8).init(rng)["history_w"]
    assert ages.shape == (8, 50)
    assert np.var(ages) == pytest.approx(1 / 50, rel=0.35)  # of 400: 5 deviations


def good(**settings: Any) -> StoredHistory:
    return StoredHistory(4, LRU(4, 2), **({"length": 3} | settings))


def given_state(places: Any) -> Any:
    layer = good()
    state = np.zeros((1, 2)) + 0j, np.zeros((1, 3, 2)) + 0j, np.array(places)
    return layer.forward(layer.init(np.random.default_rng(0)), np.ones((1, 2, 4)), state=state)


def given_gradient() -> Any:
    layer = good()
    params = layer.init(np.random.default_rng(0))
    y, saved = layer.forward(params, np.ones((1, 2, 4)))
    return layer.backward(params, saved, y, (None, np.zeros((1, 3, 2)) + 0j, None))


ONE = np.ones((1, 2, 3)) + 0j


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: good(length=0), "StoredHistory: length=0, expected a positive integer"),
        (lambda: good(window=0), "StoredHistory: window=0, expected a positive integer"),
        (lambda: good(read="age"), "StoredHistory: read='age', expected one of sum, ages, content"),
        (lambda: good(form="round"), "StoredHistory: form='round', expected one of uniform, warped, .*reversed, none"),
        (lambda: good(heads=3), "StoredHistory: heads=3, expected a divisor of the 2 planes"),
        (lambda: StoredHistory(3, LRU(4, 2), 3), "StoredHistory: d_model=3, expected 4 as of its layer"),
        (lambda: StoredHistory(4, RNN(4, 3), 3), "layer has states of 3 real lanes, expected an even number"),
        (lambda: StoredHistory(4, LRU(4, 2, bidirectional=True), 3), "LRU has bidirectional=True, expected False"),
        (
            lambda: StoredHistory(4, StoredHistory(4, LRU(4, 2), 3), 3),
            "StoredHistory: layer is a StoredHistory, a stored history cannot hold another",
        ),
        (lambda: StoredHistory(4, "lru", 3), "StoredHistory: layer='lru', expected a Recurrent"),  # type: ignore[arg-type]
        (lambda: given_state([4]), r"StoredHistory.forward: state.places is \[4\], expected the number .* has 3"),
        (lambda: given_state([-1]), r"state.places is \[-1\], expected the number of steps so far"),
        (given_gradient, r"StoredHistory.backward: dstate.stored has shape \(1, 3, 2\), expected \(1, 2, 2\)"),
        (lambda: make_layer("lru", 4, {"d_state": 2, "history": 3}), "LRU: history=3, expected a dict of settings"),
        (
            lambda: make_layer("lru", 4, {"d_state": 2, "history": {}}),
            r"StoredHistory: setting 'length' \(int\) is missing",
        ),
        (
            lambda: make_layer("lru", 4, {"d_state": 2, "history": {"lenght": 3}}),
            "StoredHistory: unknown setting 'lenght', expected one of length, read, form, window, heads",
        ),
        (lambda: history_attention(ONE, np.ones(0) + 0j, ONE), "history_attention: weights has dtype complex128 and"),
        (lambda: history_attention(ONE, np.ones(2), ONE), "weights has dtype float64 and shape .*, expected complex"),
        (lambda: history_attention(ONE, np.ones(2) + 0j, ONE, heads=2), "heads is 2, expected a divisor of N=3"),
        (lambda: history_attention(ONE, np.ones(2) + 0j, ONE, ONE, stored=[3]), r"stored\[0\] is 3, expected .* R=2"),
        (lambda: history_attention(ONE, np.ones(2) + 0j, ONE[:, :1]), "history_attention: h has shape"),
        (lambda: history_weights_backward(ONE, ONE, count=-1), "history_weights_backward: count is -1"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_inner_calls_are_those_of_a_checked_context() -> None:
    """The memory runs its layer unfused, whatever the context says, so that there are states to store."""
    layer = good()
    params = layer.init(np.random.default_rng(0))
    x = np.ones((1, 2, 4), np.float32)
    np.testing.assert_array_equal(layer.forward(params, x)[0], layer.forward(params, x, Context(fused=False))[0])
    assert layer.layer.hidden_states(layer.saved_inside(layer.forward(params, x, TRUSTED)[1])) is not None


@pytest.mark.parametrize("read", ["ages", "content"])
def test_zeros_are_the_state_before_the_first_step(read: str) -> None:
    """So that it can be carried from batch to batch in training; without a window it keeps every step and cannot."""
    layer = StoredHistory(D, LSTM(D, 4), 5, read, window=4)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    x = normal(np.random.default_rng(1), (2, 5, D))
    state = zero_state("block 0", layer, 2, np.float64)
    np.testing.assert_array_equal(layer.forward(params, x, state=state)[0], layer.forward(params, x)[0])
    assert layer.state_lanes == 4 + 4 + 2 * 3 * 2
    with pytest.raises(ValueError, match="block 0: StoredHistory keeps every step, expected a layer"):
        zero_state("block 0", StoredHistory(D, LSTM(D, 4), 5, read), 2, np.float64)
