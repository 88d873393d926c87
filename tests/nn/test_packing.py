"""Packed rows and resets: results are those of the sequences run apart."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

from cases import LAYER_ROWS
from cases.layer_row import LayerRow
from rotrnn import Bidirectional, Context, Dropout, Griffin, ModelSettings, StoredHistory, build_model, pack
from rotrnn.nn.blocks.fused import FusedSaved
from rotrnn.nn.blocks.pool import MeanPool
from rotrnn.nn.layer import Recurrent, astype, flatten, flatten_state, form_leaves, state_leaves
from rotrnn.nn.packing import Segments, each
from rotrnn.nn.registry import LAYERS
from rotrnn.nn.saved import flatten_saved, unflatten_saved
from rotrnn.testing import gradcheck
from small_models import exact, sizes_of
from strict import counted, to_device, to_host

LENGTHS = 2, 0, 1, 21, 4, 0
"""Empty segments, also the last one; two groups, of which one has padding."""
BOUNDS = np.cumsum([0, *LENGTHS])
S, T = len(LENGTHS), sum(LENGTHS)
MOST = 10
"""Rows of one kind of layer."""


def rows() -> list[LayerRow]:
    """Rows of different layers: all variants of a kind, or so many of them."""
    found: dict[type, list[LayerRow]] = {}
    for row in LAYER_ROWS:
        of_kind = found.setdefault(type(row.layer), [])
        if all(row.layer != one.layer for one in of_kind):
            of_kind.append(row)
    return [one for of_kind in found.values() for one in of_kind[:: -(-len(of_kind) // MOST)]]


def drawn(rng: np.random.Generator, state: Any, size: float = 1) -> Any:
    """A state like this one with noise of this size, but for integers."""

    def like(leaf: Any) -> Any:
        noise = rng.standard_normal(leaf.shape) + (
            1j * rng.standard_normal(leaf.shape) if leaf.dtype.kind == "c" else 0
        )
        return leaf if leaf.dtype.kind in "iu" else (leaf + size * noise).astype(leaf.dtype)

    return each(like, state)


def of_segment(layer: Recurrent, s: int, state: Any, like: Any) -> Any:
    """The part of a state (S, ...), or of its gradient, that is one segment's, whose own state has these shapes."""

    def part(leaf: Any, one: Any, newest_last: bool) -> Any:
        grown = leaf[s : s + 1]
        if grown.shape == one.shape:
            return grown
        return grown[:, grown.shape[1] - one.shape[1] :] if newest_last else grown[:, : one.shape[1]]

    forms = form_leaves(layer.state_form)
    parts = tuple(
        part(leaf, one, form.newest_last)
        for leaf, one, form in zip(state_leaves(state), state_leaves(like), forms, strict=True)
    )
    return parts if isinstance(state, tuple) else parts[0]


class Apart:
    """Forward and backward of sequences x[b, begin:end], one after the other, each with its state and its dstate."""

    def __init__(self, layer: Recurrent, params: Any, x: Any, pieces: Any, states: Any, dy: Any, dstates: Any) -> None:
        self.y, self.dx = np.zeros_like(dy), np.zeros_like(x)
        self.after: list[Any] = []
        self.before: list[Any] = []
        self.dparams: Any = None
        for i, (b, begin, end) in enumerate(pieces):
            cut = slice(b, b + 1), slice(begin, end)
            y, saved = layer.forward(params, x[cut], state=None if states is None else states(i, self.after))
            dstate = None if dstates is None else dstates(i, saved.state)
            dx, dparams, before = layer.backward(params, saved, dy[cut], dstate)
            self.y[cut], self.dx[cut] = y, dx
            self.after.append(saved.state)
            self.before.append(before)
            so_far = self.dparams or dict.fromkeys(dparams, 0)
            self.dparams = {name: so_far[name] + value for name, value in dparams.items()}


def assert_close(got: Any, expected: Any, terms: int, what: str) -> None:
    """The same sums in another order, of `terms` rounded operations."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    eps = np.finfo(got.dtype).eps if got.dtype.kind in "fc" else 0
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=4 * terms * eps * scale, err_msg=what)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.title)
def test_packed_sequences_equal_the_same_apart(row: LayerRow) -> None:
    rng, layer = np.random.default_rng(1), row.layer
    params, x = row.params(rng), rng.standard_normal((1, T, layer.d_model))
    dy = rng.standard_normal(x.shape)
    state = None
    if not row.bidirectional:
        state = drawn(rng, layer.forward(params, rng.standard_normal((S, 3, layer.d_model)))[1].state, row.noise)
    y, saved = layer.forward(params, x, Context(cu_seqlens=BOUNDS), state)
    dstate = None if row.bidirectional else drawn(rng, each(lambda leaf: 0.0 * leaf, saved.state))
    dx, dparams, dbefore = layer.backward(params, saved, dy, dstate)
    apart = Apart(
        layer,
        params,
        x,
        [(0, *one) for one in itertools.pairwise(BOUNDS)],
        None if state is None else lambda s, _: each(lambda leaf: leaf[s : s + 1], state),
        dy,
        None if state is None else lambda s, after: of_segment(layer, s, dstate, after),
    )
    terms = row.terms * T  # of parameters, the sum over steps
    assert_close(y, apart.y, terms, "y")
    assert_close(dx, apart.dx, terms, "dx")
    assert dparams.keys() == apart.dparams.keys()
    for name, value in apart.dparams.items():
        assert_close(dparams[name], value, terms, name)
    for s in range(0 if state is None else S):
        for got, expected in ((saved.state, apart.after[s]), (dbefore, apart.before[s])):
            own = of_segment(layer, s, got, expected)
            for (name, leaf), (_, wanted) in zip(flatten_state(own), flatten_state(expected), strict=True):
                assert_close(leaf, wanted, terms, f"{name} of {s}")


def of_registry(name: str) -> LayerRow:
    return next(row for row in LAYER_ROWS if type(row.layer) is LAYERS[name] and not row.bidirectional)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_a_reset_begins_a_sequence(name: str, dtype: type) -> None:
    """In the middle, at the first step, where a given state is replaced, and several in a row; state and dstate are
    those of rows."""
    row = of_registry(name)
    rng, layer = np.random.default_rng(2), row.layer
    params, x = astype(row.params(rng), dtype), rng.standard_normal((3, 7, layer.d_model)).astype(dtype)
    dy = rng.standard_normal(x.shape).astype(dtype)
    state = layer.forward(params, rng.standard_normal(x.shape).astype(dtype))[1].state
    reset = np.zeros((3, 7), bool)
    reset[0, [0, 4]] = reset[2, [3, 4]] = True
    y, saved = layer.forward(params, x, Context(reset=reset), state)
    dstate = drawn(rng, each(lambda leaf: 0.0 * leaf, saved.state))
    dx, dparams, dbefore = layer.backward(params, saved, dy, dstate)
    pieces = [(0, 0, 4), (0, 4, 7), (1, 0, 7), (2, 0, 3), (2, 3, 4), (2, 4, 7)]
    given, last = {2: 1, 3: 2}, {1: 0, 2: 1, 5: 2}  # segments with a row's state, and those that a row ends with
    apart = Apart(
        layer,
        params,
        x,
        pieces,
        lambda i, _: each(lambda leaf: leaf[given[i] : given[i] + 1], state) if i in given else None,
        dy,
        lambda i, after: of_segment(layer, last[i], dstate, after) if i in last else None,
    )
    terms = row.terms * 21 * (1 if dtype is np.float64 else 4)  # functions of single precision err by a few units
    assert_close(y, apart.y, terms, "y")
    assert_close(dx, apart.dx, terms, "dx")
    for key, value in apart.dparams.items():
        assert_close(dparams[key], value, terms, key)
    for i, b in last.items():
        own = of_segment(layer, b, saved.state, apart.after[i])
        for (key, leaf), (_, wanted) in zip(flatten_state(own), flatten_state(apart.after[i]), strict=True):
            assert_close(leaf, wanted, terms, f"{key} of {b}")
    for i, b in given.items():
        own = of_segment(layer, b, dbefore, apart.before[i])
        for (key, leaf), (_, wanted) in zip(flatten_state(own), flatten_state(apart.before[i]), strict=True):
            assert_close(leaf, wanted, terms, f"d{key} of {b}")
    assert not any(np.any(leaf[0]) for _, leaf in flatten_state(dbefore))  # it was replaced


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:.*fixed point")
def test_nan_stays_in_its_sequence(name: str) -> None:
    row = of_registry(name)
    rng, layer = np.random.default_rng(3), row.layer
    params, x = row.params(rng), rng.standard_normal((1, 11, layer.d_model))
    bounds, bad = np.array([0, 4, 8, 11]), slice(4, 8)
    good = np.r_[0:4, 8:11]
    found = []
    for value in (1.0, np.nan):
        x[:, bad] = value
        y, saved = layer.forward(params, x, Context(cu_seqlens=bounds))
        found.append((y[:, good], layer.backward(params, saved, np.cos(x))[0][:, good]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["linear", "program", "fixed", "around", "griffin", "both ways", "selective"])
def test_what_reads_saved_values_reads_packed_ones(kind: str) -> None:
    """Hidden states, reports, eigenvalues and transitions along sequences, and registers."""
    layer: Any = {
        "linear": LAYERS["lru"](4, 3),
        "program": LAYERS["min_gru"](4, d_state=3),
        "fixed": LAYERS["fixed_point"](4, 4, tol=1e-10),
        "around": StoredHistory(4, LAYERS["fixed_point"](4, 4, tol=1e-10), 5),
        "griffin": Griffin(4, LAYERS["fixed_point"](4, 4, tol=1e-10)),
        "both ways": Bidirectional(4, LAYERS["fixed_point"](4, 4, tol=1e-10)),
        "selective": LAYERS["selective_rotrnn"](4, d_state=4, heads=2),
    }[kind]
    rng = np.random.default_rng(4)
    params, x = astype(layer.init(rng), np.float64), rng.standard_normal((1, T, 4))
    packed = Context(cu_seqlens=BOUNDS, fused=False)
    ragged, padded = Context(lengths=np.array(LENGTHS), fused=False), np.zeros((S, max(LENGTHS), 4))
    inside = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    padded[inside] = x[0]
    saved, expected = layer.forward(params, x, packed)[1], layer.forward(params, padded, ragged)[1]
    assert layer.report(saved) == pytest.approx(layer.report(expected), rel=1e-9)
    for read in ("hidden_states", "state_norms"):
        one, other = getattr(layer, read)(saved), getattr(layer, read)(expected)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one[0], other[inside], rtol=1e-12, atol=1e-12)
    for along in ("eigenvalues", "transitions", "registers"):
        if kind in ("linear", "both ways") or not hasattr(layer, along):
            continue
        one, other = (getattr(layer, along)(params, *given) for given in ((x, packed), (padded, ragged)))
        pairs = [(one[name], other[name]) for name in one] if along == "registers" else [(one, other)]
        for got, wanted in pairs:
            np.testing.assert_allclose(got[0], wanted[inside], rtol=1e-9, atol=1e-9)
    arrays, structure = flatten_saved(saved)
    again = layer.backward(params, unflatten_saved(structure, arrays), np.cos(x))
    np.testing.assert_array_equal(again[0], layer.backward(params, saved, np.cos(x))[0])


@pytest.mark.parametrize("name", ["fixed_point", "bedouin", "fpmamba"])
def test_an_iterate_of_a_packed_row_starts_another(name: str) -> None:
    layer = LAYERS[name](4, d_state=4)
    rng = np.random.default_rng(4)
    params, x = astype(layer.init(rng), np.float64), rng.standard_normal((1, T, 4))
    _, saved = layer.forward(params, x, Context(cu_seqlens=BOUNDS))
    assert saved.iterate.shape[:2] == (1, T)
    assert saved.report.iterations.shape == (S,)
    again: Any = layer.forward
    _, warm = again(params, x, Context(cu_seqlens=BOUNDS), start=saved.iterate)
    assert warm.report.iterations.max() < saved.report.iterations.max()


BLOCKS: dict[str, Any] = {
    "gated": {"layer": "lru", "norm": "batch"},
    "gated, layer norm": {"layer": "rotrnn", "norm": "layer", "prenorm": False},
    "plain": {"layer": "mamba2", "block": "plain", "norm": "rms", "final_norm": True},
    "transformer": {"layer": "attention", "block": "transformer", "norm": "batch"},
    "griffin": {"layer": "rg_lru", "block": "griffin", "norm": "rms", "attention_every": 2},
    "both ways": {"layer": "min_gru", "norm": "batch"},
    "spectrum": {"layer": "rotrnn", "norm": "batch"},
}
OWN: dict[str, Any] = {"both ways": {"bidirectional": True}, "spectrum": {"normalise": "spectrum"}}


@pytest.mark.parametrize("head", ["classifier", "tagger", "regressor"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_packed_batch_trains_as_a_ragged_one(block: str, head: str) -> None:
    """In training mode, so that norms take their statistics over all steps; running statistics too."""
    settings = ModelSettings(d_model=8, n_layers=2, **BLOCKS[block], pool="last" if block == "plain" else "mean")
    own = sizes_of(settings.layer) | OWN.get(block, {})
    model = build_model(settings, own, head=head, vocab=5, n_classes=3)
    rng = np.random.default_rng(5)
    params, tokens = astype(model.init(rng), np.float64), rng.integers(0, 5, (1, T))
    inside = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    padded = np.zeros(inside.shape, np.int64)
    padded[inside] = tokens[0]
    found = []
    for x, ctx in ((tokens, {"cu_seqlens": BOUNDS}), (padded, {"lengths": np.array(LENGTHS)})):
        copy: Any = astype(params, np.float64)
        logits, saved = model.forward(copy, x, Context(train=True, **ctx))
        weights = np.random.default_rng(6).standard_normal((T if head == "tagger" else S, logits.shape[-1]))
        dlogits = np.zeros_like(logits)
        if head != "tagger":
            steps, dlogits = logits, weights
        elif "lengths" in ctx:
            steps = logits[inside]
            dlogits[inside] = weights
        else:
            steps, dlogits[0] = logits[0], weights
        grads = model.backward(copy, saved, dlogits)
        found.append([("logits", steps), *flatten(grads), *flatten(copy)])
    for (name, one), (_, other) in zip(*found, strict=True):
        # some hundred operations for each of T steps, through four norms that may divide by a tenth
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10, err_msg=name)


def test_gradients_of_a_packed_model() -> None:
    settings = ModelSettings(layer="mamba2", d_model=4, n_layers=2, block="plain", norm="batch")
    model = build_model(settings, sizes_of("mamba2"), head="classifier", n_features=3, n_classes=3)
    rng = np.random.default_rng(7)
    params, x = astype(model.init(rng), np.float64), rng.standard_normal((1, 9, 3))
    gradcheck(model, params, x, Context(cu_seqlens=np.array([0, 4, 4, 6, 9])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_row_whose_blocks_run_fused_is_a_ragged_batch(norm: str, dtype: type) -> None:
    """To the bit, and in the memory that fused blocks need; with a state and resets, too."""
    rng, lengths = np.random.default_rng(norm == "batch"), np.array([5, 3, 4])
    settings = ModelSettings(layer="lru", d_model=4, n_layers=2, norm=norm, dropout=0.3)
    model = build_model(settings, {"d_state": 6}, n_features=3, n_classes=3)
    stack, bounds = model.stack, np.cumsum([0, *lengths])
    params = astype(stack.init(rng), dtype)
    x, dy = rng.standard_normal((2, 1, 12, 4)).astype(dtype)
    inside = np.arange(5) < lengths[:, None]
    batch, dbatch = np.zeros((2, 3, 5, 4), dtype)
    batch[inside], dbatch[inside] = x[0], dy[0]
    _, before = stack.forward(astype(params, dtype), batch)
    state, dstate = drawn(rng, before.state), drawn(rng, before.state)
    found = []
    for given, back, ctx in ((x, dy, {"cu_seqlens": bounds}), (batch, dbatch, {"lengths": lengths})):
        own = astype(params, dtype)
        y, saved = stack.forward(own, given, Context(train=True, seed=3, step=4, **ctx), state)
        dx, dparams, dbefore = stack.backward(own, saved, back, dstate)
        steps = (y[inside], dx[inside]) if "lengths" in ctx else (y[0], dx[0])
        leaves = [*flatten(dparams), *flatten_state(saved.state), *flatten_state(dbefore), *flatten(own)]
        found.append([*steps, *(one for _, one in leaves)])
        assert all(isinstance(one, FusedSaved) for one in saved.blocks)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)

    reset = np.zeros((1, 12), bool)
    reset[0, bounds[1:-1]] = True  # the first sequence goes on from the given state
    only = each(lambda leaf: leaf[:1], state), each(lambda leaf: leaf[:1], dstate)
    y, saved = stack.forward(astype(params, dtype), x, Context(train=norm == "layer", reset=reset), only[0])
    dx, _, dbefore = stack.backward(params, saved, dy, only[1])
    start = each(lambda leaf: np.concatenate([leaf[:1], np.zeros_like(leaf[1:])]), state)
    end = each(lambda leaf: np.concatenate([np.zeros_like(leaf[:2]), leaf[:1]]), dstate)
    ctx = Context(lengths, train=norm == "layer")
    expected, apart = stack.forward(astype(params, dtype), batch, ctx, start)
    dexpected, _, dstart = stack.backward(params, apart, dbatch, end)
    np.testing.assert_array_equal(y[0], expected[inside])
    np.testing.assert_array_equal(dx[0], dexpected[inside])
    for (_, one), (_, other) in zip(flatten_state(saved.state), flatten_state(apart.state), strict=True):
        np.testing.assert_array_equal(one, other[2:])
    for (_, one), (_, other) in zip(flatten_state(dbefore), flatten_state(dstart), strict=True):
        np.testing.assert_array_equal(one, other[:1])


@pytest.mark.parametrize("name", ["lru", "delta_net", "slstm"])
def test_dropout_of_packed_rows_is_repeated_in_backward(name: str) -> None:
    settings = ModelSettings(layer=name, d_model=4, n_layers=1, dropout=0.3, norm="layer")
    model = build_model(settings, exact(name), head="tagger", n_features=3, n_classes=3)
    rng = np.random.default_rng(8)
    params, x = astype(model.init(rng), np.float64), rng.standard_normal((1, 9, 3))
    gradcheck(model, params, x, Context(train=True, seed=3, step=4, cu_seqlens=np.array([0, 4, 9])))


def test_sequences_of_a_packed_row_have_masks_of_their_own() -> None:
    """Over time, they are the masks of the same sequences as a batch."""
    dropout, rng = Dropout(0.5, over_time=True), np.random.default_rng(10)
    lengths, bounds = np.array([3, 0, 7, 1]), np.array([0, 3, 3, 10, 11])
    batch = rng.standard_normal((4, 7, 5))
    row = np.concatenate([one[:n] for one, n in zip(batch, lengths, strict=True)])[None]
    dy = rng.standard_normal(row.shape)
    y, saved = dropout.forward({}, row, Context(train=True, cu_seqlens=bounds, seed=2, step=3))
    apart, _ = dropout.forward({}, batch, Context(lengths, train=True, seed=2, step=3))
    np.testing.assert_array_equal(y[0], np.concatenate([one[:n] for one, n in zip(apart, lengths, strict=True)]))
    dx, _ = dropout.backward({}, saved, dy)
    np.testing.assert_array_equal(dx == 0, y == 0)
    np.testing.assert_array_equal(dx[y != 0], 2 * dy[y != 0])


def test_a_long_sequence_beside_many_short_ones_makes_little_padding() -> None:
    lengths = np.array([10_000] + [10] * 1_000 + [0] * 3)
    starts = np.cumsum(lengths) - lengths
    segments = Segments(1, int(lengths.sum()), starts, lengths)
    assert sum(n * L for n, L in (group.shape for group in segments.groups)) <= 2 * lengths.sum()
    assert len(segments.groups) == 3  # by their lengths
    rng = np.random.default_rng(9)
    lengths = rng.integers(1, 4_000, 300)
    segments = Segments(1, int(lengths.sum()), np.cumsum(lengths) - lengths, lengths)
    assert len(segments.groups) == 1  # few groups where this is enough
    x = rng.standard_normal((1, segments.T, 2))
    parts = [segments.batch(group, x) for group in segments.groups]
    np.testing.assert_array_equal(segments.packed(parts), x)


@pytest.mark.parametrize("layer", ["lru", "mamba2", "fixed_point", "attention"])
def test_packed_rows_run_on_the_device(layer: str) -> None:
    """On a device whose arrays refuse every silent conversion, without a further synchronisation."""
    settings = ModelSettings(layer=layer, d_model=8, n_layers=2)
    model = build_model(settings, sizes_of(layer), head="classifier", vocab=5, n_classes=3)
    rng = np.random.default_rng(10)
    params, tokens = astype(model.init(rng), np.float64), rng.integers(0, 5, (1, T))
    dlogits, found, waits = rng.standard_normal((S, 3)), [], []
    for there in (False, True):
        move = to_device if there else lambda value: value
        with counted() as seen:
            given = move(astype(params, np.float64))
            logits, saved = model.forward(given, move(tokens), Context(train=True, cu_seqlens=BOUNDS))
            grads = model.backward(given, saved, move(dlogits))
            waits.append(dict(seen))
        found.append([("logits", to_host(logits)), *flatten(to_host(grads))])
    for (name, one), (_, other) in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=name)
    assert {where for where in waits[1] if "packing" in where} == set()


LRU = LAYERS["lru"](3, 4)


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        ({"cu_seqlens": [0, 3.5, 7]}, "LRU.forward: cu_seqlens has dtype float64, expected an integer dtype"),
        ({"cu_seqlens": [[0, 7]]}, r"LRU.forward: cu_seqlens has shape (1, 2), expected (S + 1,) of S >= 1 sequences"),
        ({"cu_seqlens": [0]}, r"LRU.forward: cu_seqlens has shape (1,), expected (S + 1,) of S >= 1 sequences"),
        ({"cu_seqlens": [1, 7]}, "LRU.forward: cu_seqlens[0] is 1, expected 0"),
        ({"cu_seqlens": [0, 3, 8]}, "LRU.forward: cu_seqlens[2] is 8, expected T=7"),
        ({"cu_seqlens": [0, 5, 3, 7]}, "LRU.forward: cu_seqlens[2] is 3, expected at least 5, the one before"),
        ({"cu_seqlens": [0, 7], "lengths": [7]}, "LRU.forward: got cu_seqlens and lengths, expected one of them"),
        ({"cu_seqlens": [0, 7], "reset": [[False] * 7]}, "LRU.forward: got cu_seqlens and reset, expected one of them"),
        ({"reset": [[False] * 7], "lengths": [7]}, "LRU.forward: got reset and lengths, expected one of them"),
        ({"reset": np.zeros((1, 7))}, "LRU.forward: reset has dtype float64, expected bool"),
        ({"reset": [True] * 7}, r"LRU.forward: reset has shape (7,), expected (B=1, T=7)"),
    ],
)
def test_bounds_that_do_not_fit_are_named(ctx: dict[str, Any], message: str) -> None:
    params = LRU.init(np.random.default_rng(0))
    with pytest.raises((TypeError, ValueError)) as raised:
        LRU.forward(params, np.zeros((1, 7, 3), np.float32), Context(**ctx))
    assert str(raised.value) == message


def test_what_packed_rows_do_not_fit_is_refused() -> None:
    rng = np.random.default_rng(0)
    params = LRU.init(rng)
    x, bounds = np.zeros((2, 7, 3), np.float32), np.array([0, 2, 7])
    with pytest.raises(ValueError, match=r"LRU.forward: got cu_seqlens with B=2, expected one packed row, B=1"):
        LRU.forward(params, x, Context(cu_seqlens=bounds))
    with pytest.raises(ValueError, match=r"LRU.forward: state has shape \(1, 4\), expected \(S=2, 4\)"):
        LRU.forward(params, x[:1], Context(cu_seqlens=bounds), np.zeros((1, 4), np.complex64))
    y, saved = LRU.forward(params, x[:1], Context(cu_seqlens=bounds))
    with pytest.raises(ValueError, match=r"LRU.backward: dstate has shape \(1, 4\), expected \(S=2, 4\)"):
        LRU.backward(params, saved, y, np.zeros((1, 4), np.complex64))
    with pytest.raises(ValueError, match=r"LRU.backward: dy has shape \(1, 6, 3\)"):
        LRU.backward(params, saved, y[:, 1:])
    with pytest.raises(ValueError, match=r"MeanPool.forward: got reset, expected cu_seqlens"):
        MeanPool().forward({}, x, Context(reset=np.zeros((2, 7), bool)))
    gather: Any = partial(list)
    gather.time = "processes"
    with pytest.raises(ValueError, match=r"LRU.forward: sequences are split over processes, expected no cu_seqlens"):
        LRU.forward(params, x[:1], Context(cu_seqlens=bounds, gather=gather))
    settings = ModelSettings(layer="lru", d_model=4, n_layers=1)
    model: Any = build_model(settings, sizes_of("lru"), head="tagger", vocab=5, n_classes=2)
    with pytest.raises(ValueError, match=r"Tagger.state_norms: got a packed row, expected lengths"):
        model.state_norms(model.init(rng), np.zeros((1, 7), np.int64), Context(cu_seqlens=bounds))


def test_rows_without_steps() -> None:
    params = LRU.init(np.random.default_rng(0))
    for B, steps in ((0, 4), (2, 0), (0, 0)):
        x = np.zeros((B, steps, 3), np.float32)
        y, saved = LRU.forward(params, x, Context(reset=np.ones((B, steps), bool)))
        assert y.shape == x.shape
        assert saved.state.shape == (B, 4)
        assert LRU.backward(params, saved, y)[0].shape == x.shape


def test_pack_puts_sequences_into_a_row() -> None:
    parts = [np.full((steps, 2), steps, np.float32) for steps in (3, 0, 2)]
    x, bounds = pack(parts)
    assert x.shape == (1, 5, 2)
    assert x.dtype == np.float32
    assert bounds.tolist() == [0, 3, 3, 5]
    for one, part in zip(parts, np.split(x[0], bounds[1:-1]), strict=True):
        np.testing.assert_array_equal(one, part)
    assert pack([np.arange(3), np.arange(2)]).x.tolist() == [[0, 1, 2, 0, 1]]
    assert pack([[], [1, 2], []]).x.dtype.kind == "i"  # an empty list is one of floats
    with pytest.raises(TypeError, match=r"pack: sequences is a NoneType, expected a list of arrays"):
        pack(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"pack: sequences\[1\] has dtype <U1, expected numbers"):
        pack([np.ones(2), np.array(["a"])])
    with pytest.raises(
        ValueError, match=r"pack: sequences\[0\] has shape \(\), expected \(time\), an array with a time"
    ):
        pack([np.float32(3)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"pack: sequences is empty, expected at least one sequence"):
        pack([])
    with pytest.raises(ValueError, match=r"pack: sequences\[1\] has shape \(3, 3\), expected \(time, 2\) as seq"):
        pack([np.zeros((3, 2)), np.zeros((3, 3))])


def test_targets_of_packed_tokens_end_with_each_sequence() -> None:
    model: Any = build_model(ModelSettings(layer="lru", d_model=4, n_layers=1), sizes_of("lru"), head="language",
                             vocab=9, n_classes=9)  # fmt: skip
    tokens = np.arange(1, 8)[None]
    assert model.targets(tokens, cu_seqlens=[0, 3, 3, 4, 7]).tolist() == [[2, 3, -1, -1, 6, 7, -1]]
    reset = np.zeros((2, 7), bool)
    reset[0, 3] = reset[0, 4] = reset[1, 0] = True
    expected = [[2, 3, -1, -1, 6, 7, -1], [2, 3, 4, 5, 6, 7, -1]]
    assert model.targets(np.repeat(tokens, 2, 0), reset=reset).tolist() == expected
