"""What forward saves is a tree of arrays. Backward needs nothing else, and the shapes are known before the values."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from cases import LAYER_ROWS, LayerRow
from cases.table import normal
from rotrnn.models.build import HEADS, ModelSettings, build_model
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.fused import FusedSaved
from rotrnn.nn.blocks.gate import Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm
from rotrnn.nn.fixed_points.in_depth import IteratedSaved
from rotrnn.nn.fixed_points.iteration import NotConverged, Report
from rotrnn.nn.layer import Context, astype, flatten, flatten_state, unflatten_state
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from rotrnn.nn.layers.fpmamba import FPMamba
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.mamba2 import Mamba2
from rotrnn.nn.saved import Leaf, Node, Static, arrays_of, flatten_saved, leaf_names, saved_shapes, unflatten_saved

pytestmark = pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")


def copied(saved: Any) -> Any:
    """Rebuilds what forward saved from copies of its arrays in NumPy's default layout."""
    arrays, structure = flatten_saved(saved)
    assert isinstance(hash(structure), int)
    assert list(arrays) == leaf_names(structure)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    again = unflatten_saved(structure, {name: array.copy("C") for name, array in arrays.items()})
    assert flatten_saved(again)[1] == structure
    assert [id(one) for one in arrays_of(structure, saved)] == [id(one) for one in arrays.values()]
    return again


def forms(saved: Any) -> Any:
    """Returns everything that must not depend on values."""
    arrays, structure = flatten_saved(saved)
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}, structure


def assert_same_bits(got: Any, expected: Any) -> None:
    got, expected = dict(flatten({"": got})), dict(flatten({"": expected}))
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, strict=True, err_msg=name)


def some_lengths(rng: np.random.Generator, B: int, T: int, zero: bool = False) -> Any:
    return rng.integers(1 - zero, T + 1, B) if T else np.zeros(B, np.int64)


EPS = np.finfo(np.float64).eps

# ---- layers ----


def contexts(row: LayerRow) -> list[Context]:
    """Fused and unfused, in evaluation and in training; with lengths if the row has some."""
    return [replace(row.ctx, fused=fused, train=train, seed=3) for fused in (True, False) for train in (True, False)]


@pytest.mark.parametrize("row", LAYER_ROWS, ids=lambda row: row.title)
def test_backward_of_every_layer_needs_the_tree_alone(row: LayerRow) -> None:
    rng = np.random.default_rng(0)
    params, x = row.params(rng), normal(rng, (row.B, row.T, row.layer.d_model))
    for ctx in contexts(row):
        y, saved = row.layer.forward(params, x, ctx, row.state_of({}))
        dy = normal(rng, y.shape)
        dstate = None
        if not row.bidirectional:
            leaves = dict(flatten_state(saved.state))
            dstate = unflatten_state(
                {name: 0.5 * leaf if leaf.dtype.kind in "fc" else leaf for name, leaf in leaves.items()}
            )
        again = copied(saved)
        dx, dparams, dstate0 = row.layer.backward(params, saved, dy, dstate)
        dx_again, dparams_again, dstate0_again = row.layer.backward(params, again, dy, dstate)
        assert_same_bits(
            {"dx": dx_again, **dparams_again, **dict(flatten_state(dstate0_again))},
            {"dx": dx, **dparams, **dict(flatten_state(dstate0))},
        )
        assert row.layer.report(again) == pytest.approx(row.layer.report(saved), rel=0, abs=0, nan_ok=True)
        assert_same_bits(dict(flatten_state(again.state)), dict(flatten_state(saved.state)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("row", LAYER_ROWS, ids=lambda row: row.title)
def test_shapes_of_every_layer_do_not_depend_on_values(row: LayerRow, dtype: Any) -> None:
    """On zeros, and on other inputs, of other lengths: a fixed point takes another number of iterations then."""
    rng = np.random.default_rng(1)
    params = row.params(rng)
    for ctx in contexts(row):
        shape = row.B, row.T, row.layer.d_model
        expected = saved_shapes(row.layer, params, shape, dtype, ctx)
        for size in (1, 3):
            if ctx.lengths is not None:
                ctx = replace(ctx, lengths=some_lengths(rng, row.B, row.T, zero=True))
            x = (size * normal(rng, shape)).astype(dtype)
            _, saved = row.layer.forward(astype(params, dtype), x, ctx)
            assert forms(saved) == expected
        state = saved.state
        if not row.bidirectional and not isinstance(row.layer, Attention):
            going_on = [row.layer.forward(astype(params, dtype), f * x, ctx, state)[1] for f in (1, 2)]
            assert forms(going_on[0]) == forms(going_on[1])


@pytest.mark.parametrize("window", [None, 3])
def test_shapes_of_attention_going_on(window: int | None) -> None:
    """Of the keys so far, as many rows as the state that it was given has."""
    rng = np.random.default_rng(2)
    layer = Attention(4, heads=2, window=window)
    params = layer.init(rng)
    x = normal(rng, (3, 5, 4)).astype(np.float32)
    _, first = layer.forward(params, x, Context(np.array([5, 0, 2])))
    found = [layer.forward(params, x, Context(np.array(lengths)), first.state)[1] for lengths in ([5, 1, 2], [0, 0, 4])]
    assert forms(found[0]) == forms(found[1])


@pytest.mark.parametrize("layer", [FixedPointRNN(3, 4), Bedouin(3, d_state=2), FPMamba(3, d_state=2)], ids=repr)
@pytest.mark.parametrize("fused", [True, False])
def test_the_iterate_of_a_fixed_point_has_one_place(layer: Any, fused: bool) -> None:
    rng = np.random.default_rng(3)
    params = astype(layer.init(rng), np.float64)
    x, lengths = normal(rng, (3, 6, 3)), np.array([6, 0, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotConverged)
        _, saved = layer.forward(params, x, Context(lengths, fused=fused))
    found: IteratedSaved = saved
    assert isinstance(found.report, Report)
    np.testing.assert_array_equal(found.lengths, lengths)
    assert found.iterate.shape == found.before.shape
    assert found.iterate.shape[:2] == x.shape[:2]
    assert not found.iterate[np.arange(6) >= lengths[:, None]].any()
    # one more application; as its adjoint needs it, products are taken apart: a few roundings of numbers below one
    np.testing.assert_allclose(found.iterate, saved.depth(found.before, lengths), rtol=0, atol=16 * EPS)
    _, warm = layer.forward(params, x, Context(lengths, fused=fused), start=found.iterate)
    assert (warm.report.iterations <= found.report.iterations).all()


# ---- blocks and stacks ----

D = 4


def blocks_of(layer: Any, dropout: float) -> dict[str, Any]:
    """Returns a block of each kind around a layer."""
    batch, row, drop = BatchNorm(D), LayerNorm(D), Dropout(dropout)
    full, half1, half2 = (Gate(D, form, dropout) for form in ("full", "half1", "half2"))
    return {
        "batch norm, full gate": ResidualBlock(batch, layer, full),
        "layer norm, half gate": ResidualBlock(row, layer, half1),
        "batch norm, other half gate": ResidualBlock(batch, layer, half2),
        "postnorm": ResidualBlock(batch, layer, full, prenorm=False),
        "GELU": ResidualBlock(row, layer, Activation(drop)),
        "plain": ResidualBlock(row, layer, drop),
        "transformer": FeedForwardBlock(ResidualBlock(row, layer, drop), batch, FeedForward(D, dropout=dropout)),
    }


BLOCK_LAYERS = {
    "lru": LRU(D, 3),
    "both ways": LRU(D, 3, bidirectional=True),
    "mamba": Mamba(D, 2),
    "mamba2": Mamba2(D, 2),
    "bedouin": Bedouin(D, d_state=2),
}
CONTEXTS = {
    "training": Context(None, True, 5, 7),
    "training ragged unfused": Context(np.array([5, 1, 3]), True, 5, 7, np.array([4, 0, 9]), fused=False),
    "evaluation ragged": Context(np.array([5, 1, 3])),
    "evaluation unfused": Context(fused=False),
}
BLOCK_ROWS = [
    pytest.param(ResidualStack((block, block)), ctx, id=f"{name}, {kind}, {how}")
    for kind, layer in BLOCK_LAYERS.items()
    for name, block in blocks_of(layer, 0.25).items()
    for how, ctx in CONTEXTS.items()
]


@pytest.mark.parametrize(("stack", "ctx"), BLOCK_ROWS)
def test_stacks_of_every_block(stack: ResidualStack, ctx: Context) -> None:
    rng = np.random.default_rng(4)
    params = astype(stack.init(rng), np.float64)
    expected = saved_shapes(stack, params, (3, 5, D), np.float64, ctx)
    for _ in range(2):
        if ctx.lengths is not None:
            ctx = replace(ctx, lengths=some_lengths(rng, 3, 5))
        ctx = replace(ctx, seed=ctx.seed + 1, step=ctx.step + 2)
        x, dy = normal(rng, (2, 3, 5, D))
        _, saved = stack.forward(params, x, ctx)
        first = stack.blocks[0]
        if isinstance(first, ResidualBlock) and first.prenorm and isinstance(first.gate, Gate) and ctx.fused:
            assert isinstance(saved.blocks[0], FusedSaved) == isinstance(first.layer, LinearRecurrence)
        assert forms(saved) == expected
        dx, dparams, _ = stack.backward(params, saved, dy)
        dx_again, dparams_again, _ = stack.backward(params, copied(saved), dy)
        assert_same_bits({"dx": dx_again, **dparams_again}, {"dx": dx, **dparams})


def test_a_batch_that_is_spread_leaves_no_function_behind() -> None:
    """`gather` is a function of the call; backward is given it again."""
    stack = ResidualStack((ResidualBlock(BatchNorm(D), LRU(D, 3), Gate(D)),) * 2)
    rng = np.random.default_rng(5)
    params, x = astype(stack.init(rng), np.float64), normal(rng, (3, 5, D))
    for fused in (True, False):
        ctx = Context(train=True, gather=lambda one: [one], fused=fused)
        y, saved = stack.forward(params, x, ctx)
        dx = stack.backward(params, saved, y, gather=ctx.gather)[0]
        np.testing.assert_array_equal(stack.backward(params, copied(saved), y, gather=ctx.gather)[0], dx)


# ---- models ----


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("pool", ["mean", "last"])
@pytest.mark.parametrize(
    ("head", "features"),  # a language model reads the tokens that it predicts
    [(head, features) for head in HEADS for features in (True, False) if not (head == "language" and features)],
)
def test_models_with_every_head(head: str, features: bool, pool: str, ragged: bool, train: bool) -> None:
    settings = ModelSettings("lru", D, 2, pool=pool, dropout=0.1, final_norm=True)
    inputs = {"n_features": 3} if features else {"vocab": 6}
    model = build_model(settings, {"d_state": 3}, head=head, n_classes=6, **inputs)
    rng = np.random.default_rng(6)
    params = astype(model.init(rng), np.float64)
    pairs = (2,) if head == "retrieval" else ()
    shape = (3, *pairs, 5, *((3,) if features else ()))
    lengths = np.full((3, *pairs), 5) if ragged else None
    for fused in (True, False):
        ctx = Context(lengths, train=train, seed=1, step=2, fused=fused)
        expected = saved_shapes(model, params, shape, np.float64, ctx, inputs=None if features else np.int64)
        for _ in range(2):
            if ragged:
                ctx = replace(ctx, lengths=rng.integers(1, 6, (3, *pairs)))
            x = normal(rng, shape) if features else rng.integers(0, 6, shape)
            logits, saved = model.forward(params, x, ctx)
            assert forms(saved) == expected
            dlogits = normal(rng, logits.shape)
            assert_same_bits(model.backward(params, copied(saved), dlogits), model.backward(params, saved, dlogits))


# ---- the tree itself ----


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Held:
    x: Any
    name: str = "held"


@dataclass
class Loose:
    x: Any


def test_a_tree_there_and_back() -> None:
    x, n = np.arange(3.0), np.array(7)
    saved = Pair((x, None, 2), {"a": Held(n), "b": Held(1), "c": {}, "d": ()})
    arrays, structure = flatten_saved(saved)
    assert list(arrays) == leaf_names(structure) == ["first.0", "second.a.x"]
    assert arrays["first.0"] is x
    again = unflatten_saved(structure, arrays)
    assert again == saved
    assert type(again.second["a"]) is Held
    assert flatten_saved(Pair((x, None, 3), saved.second))[1] != structure
    assert flatten_saved(Pair((x, None, 2.0), saved.second))[1] != structure
    assert flatten_saved(Pair((x, x, 2), saved.second))[1] != structure
    assert flatten_saved(x) == ({"": x}, Leaf())
    assert flatten_saved(Held(3))[1] == Static(Held, Held(3))
    assert isinstance(flatten_saved(Held(x))[1], Node)


@pytest.mark.parametrize(
    "odd", [lambda: 0, [1], {1: 2}, Loose(1), np.float64(1), {1}, object()], ids=lambda odd: type(odd).__name__
)
def test_values_that_are_not_plain_data_are_refused_by_name(odd: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"flatten_saved: second\.0\.x is of type {type(odd).__name__}, expected arrays"
    ):
        flatten_saved(Pair(np.zeros(1), (Held(odd),)))


def test_arrays_of_other_names_are_refused() -> None:
    arrays, structure = flatten_saved(Pair(np.zeros(1), np.ones(1)))
    with pytest.raises(ValueError, match=r"unflatten_saved: arrays has no 'second', expected the 2 names"):
        unflatten_saved(structure, {"first": arrays["first"]})
    with pytest.raises(ValueError, match=r"unflatten_saved: arrays has 'third', expected the 2 names"):
        unflatten_saved(structure, {**arrays, "third": np.zeros(1)})


@pytest.mark.parametrize("again", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_what_is_saved_and_prepared_can_be_copied_to_another_process(again: Any) -> None:
    """As by joblib; the copy knows its module and its precision as what it is a copy of."""
    layer, rng = Mamba(D, 2), np.random.default_rng(0)
    params, x = layer.init(rng), rng.standard_normal((2, 5, D), dtype=np.float32)
    y, saved = layer.forward(params, x, Context(np.array([5, 2])))
    found, expected = (layer.backward(params, one, y) for one in (again(saved), saved))
    assert found[0].tobytes() == expected[0].tobytes()
    assert all(found[1][name].tobytes() == expected[1][name].tobytes() for name in params)
    with pytest.raises(ValueError, match="saved is from a Mamba"):
        Mamba(D, 3).backward(Mamba(D, 3).init(rng), again(saved), y)
    prepared = layer.prepare(params)
    steps = [layer.step(params, None, x[:, 0], one)[0] for one in (again(prepared), prepared)]
    assert steps[0].tobytes() == steps[1].tobytes()
