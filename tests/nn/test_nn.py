"""Non-recurrent layers: against NumPy, central differences, NaN padding; running statistics, masks, streaming."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.blocks.dense import Dense, Embedding
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import FORMS, GELU, Dropout, Gate
from rotrnn.nn.blocks.norm import NORMS, BatchNorm, LayerNorm, RMSNorm
from rotrnn.nn.blocks.pool import POOLS, LastPool, MeanPool
from rotrnn.nn.layer import Context, astype, flatten, unflatten
from rotrnn.ops.pointwise import dropout
from rotrnn.testing import gradcheck

B, T, D = 3, 7, 4
RAGGED = np.array([7, 0, 3])
VALID = (np.arange(T) < RAGGED[:, None])[..., None]

LAYERS: dict[str, Any] = {
    "batch norm": BatchNorm(D),
    "layer norm": LayerNorm(D),
    "rms norm": RMSNorm(D),
    "dense": Dense(D, 5),
    "gelu": GELU(),
    "dropout": Dropout(0.4, site=1),
    "dropout over time": Dropout(0.4, over_time=True),
    **{f"gate {form}": Gate(D, form, dropout=0.3, site=2) for form in FORMS},
    "gate without dropout": Gate(D),
    "feed-forward": FeedForward(D, 2, dropout=0.3, site=4),
    "gated feed-forward": FeedForward(D, 2, dropout=0.3, site=4, gated=True),
    "mean pool": MeanPool(),
    "last pool": LastPool(),
}
CONTEXTS = {
    f"{mode}{' ragged' * ragged}": Context(RAGGED if ragged else None, train=mode == "train", seed=5, step=6)
    for mode in ("train", "evaluation")
    for ragged in (False, True)
}

over_layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
over_contexts = pytest.mark.parametrize("ctx", CONTEXTS.values(), ids=CONTEXTS)


def prepared(layer: Any) -> tuple[np.random.Generator, Any, Any]:
    """(rng, float64 params away from their initial values, x)."""
    rng = np.random.default_rng(0)
    flat = dict(flatten(astype(layer.init(rng), np.float64)))
    for name, value in flat.items():
        noise = rng.uniform(0.1, 0.5, value.shape)
        flat[name] = value + noise
    return rng, unflatten(flat), rng.standard_normal((B, T, D))


def copied(params: Any) -> Any:
    return astype(params, np.float64)


@over_layers
@over_contexts
def test_backward_equals_central_differences(layer: Any, ctx: Context) -> None:
    _, params, x = prepared(layer)
    gradcheck(layer, params, x, ctx)


@over_layers
@pytest.mark.parametrize("train", [False, True])
def test_padding_is_inert(layer: Any, train: bool) -> None:
    """NaN in the padding of x and dy changes no bit; padding of y and dx is zero."""
    ctx = Context(RAGGED, train=train)
    rng, params, x = prepared(layer)
    y, saved = layer.forward(copied(params), x, ctx)
    dy = rng.standard_normal(y.shape)
    dx, dparams = layer.backward(params, saved, dy)
    pools = y.ndim == 2
    y2, saved2 = layer.forward(copied(params), np.where(VALID, x, np.nan), ctx)
    dx2, dparams2 = layer.backward(params, saved2, dy if pools else np.where(VALID, dy, np.nan))
    if isinstance(layer, Dropout) and not train:  # the identity passes padding on as it came
        y, y2, dx, dx2 = (np.where(VALID, array, 0) for array in (y, y2, dx, dx2))
    assert y2.tobytes() == y.tobytes()
    assert dx2.tobytes() == dx.tobytes()
    assert not dx[~VALID[..., 0]].any()
    assert pools or not y[~VALID[..., 0]].any()
    for (name, got), (_, expected) in zip(flatten(dparams2), flatten(dparams), strict=True):
        assert got.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("layer", [layer for layer in LAYERS.values() if not isinstance(layer, (MeanPool, LastPool))])
def test_step_by_step_equals_the_whole_in_evaluation(layer: Any) -> None:
    _, params, x = prepared(layer)
    whole, _ = layer.forward(params, x)
    steps = [layer.forward(params, x[:, t : t + 1])[0] for t in range(T)]
    # the same formulas; products and norms may take another path through the vector lanes
    np.testing.assert_allclose(np.concatenate(steps, 1), whole, rtol=0, atol=1e-14)


@over_layers
def test_float32_stays_float32(layer: Any) -> None:
    rng = np.random.default_rng(0)
    params = layer.init(rng)
    x = rng.standard_normal((B, T, D)).astype(np.float32)
    y, saved = layer.forward(params, x, Context(train=True))
    dx, dparams = layer.backward(params, saved, y)
    assert {array.dtype for array in (y, dx, *dict(flatten(params | dparams)).values())} == {np.dtype(np.float32)}


# ------------------------------------------------------------------------------------------------------- norms


def test_batch_norm_running_statistics() -> None:
    """running = momentum running + (1 - momentum) batch, in place, with the biased variance of valid steps."""
    norm = BatchNorm(1, momentum=0.75, eps=0.0)
    params = astype(norm.init(np.random.default_rng(0)), np.float64)
    mean, var = params["running_mean"], params["running_var"]
    assert (mean[0], var[0]) == (0, 1)
    x = np.array([[[2.0], [4.0], [100.0]], [[6.0], [100.0], [100.0]]])
    ctx = Context(np.array([2, 1]), train=True)
    norm.forward(params, x, ctx)
    np.testing.assert_allclose([mean[0], var[0]], [1, 0.75 + 8 / 12], rtol=1e-15)
    norm.forward(params, x, ctx)
    np.testing.assert_allclose([mean[0], var[0]], [1.75, (0.75 + 8 / 12) * 0.75 + 8 / 12], rtol=1e-15)
    before = (mean[0], var[0])
    y, _ = norm.forward(params, x)
    assert (mean[0], var[0]) == before
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var), rtol=1e-15)


@pytest.mark.parametrize("wrong", [1e20, np.inf, np.nan])
def test_running_statistics_leave_out_moments_that_are_not_finite(wrong: float) -> None:
    """The variance of numbers around 1e20 overflows float32: only the other channels are updated."""
    norm, rng = BatchNorm(3), np.random.default_rng(0)
    params, expected = norm.init(rng), norm.init(rng)
    x = rng.standard_normal((2, 8, 3)).astype(np.float32)
    norm.forward(expected, x, Context(train=True))
    x[..., 1] *= wrong
    norm.forward(params, x, Context(train=True))
    for name, start in (("running_mean", 0), ("running_var", 1)):
        np.testing.assert_array_equal(params[name], [expected[name][0], start, expected[name][2]])


def test_norms_normalise() -> None:
    rng = np.random.default_rng(0)
    x = 3 * rng.standard_normal((4, 50, 8)) + 2
    for norm, axes in ((BatchNorm(8), (0, 1)), (LayerNorm(8), 2)):
        y, _ = norm.forward(astype(norm.init(rng), np.float64), x, Context(train=True))
        # eps = 1e-5 beside a variance that is at least one lowers the deviation by less than its half
        np.testing.assert_allclose(y.mean(axes), 0, atol=1e-13)
        np.testing.assert_allclose(y.std(axes), 1, atol=1e-5)
    y, _ = RMSNorm(8, eps=0.5).forward({"scale": np.full(8, 3.0)}, x)
    np.testing.assert_allclose(y, 3 * x / np.sqrt((x * x).mean(2, keepdims=True) + 0.5), rtol=1e-14)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize(
    ("dtype", "power"), [*product([np.float32], [-110, -63, 63, 110]), *product([float], [-900, 900])]
)
def test_norms_without_eps_do_not_depend_on_the_size_of_a_row(kind: Any, dtype: type, power: int) -> None:
    """Powers of two scale the gradient the other way. Means of D numbers err by D eps of the largest, below 4."""
    rng, D = np.random.default_rng(0), 19
    x, dy = rng.standard_normal((2, 3, 4, D)).astype(dtype)
    norm = kind(D, eps=0)
    params = astype(norm.init(rng), dtype)
    (expected, saved), (y, kept) = norm.forward(params, x), norm.forward(params, np.ldexp(x, power))
    wanted, dx = (norm.backward(params, one, dy)[0] for one in (saved, kept))
    atol = 16 * D * np.finfo(dtype).eps
    np.testing.assert_allclose(y, expected, rtol=0, atol=atol)
    np.testing.assert_allclose(np.ldexp(dx, power), wanted, rtol=0, atol=atol * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("D", [8, 67])
def test_norms_of_rows_whose_squares_overflow_float32(D: int, dtype: type) -> None:
    """Sums of D numbers err by D eps of the largest at most, here below 4; and eps is nothing beside 1e50."""
    rng = np.random.default_rng(0)
    x = 1e25 * rng.standard_normal((3, 4, D))
    dy = rng.standard_normal(x.shape)
    for kind in (LayerNorm, RMSNorm):
        norm, plain = kind(D), kind(D, eps=1e-50)
        params = astype(norm.init(rng), np.float64)
        expected, saved = plain.forward(params, 1e-25 * x)
        y, kept = norm.forward(astype(params, dtype), x.astype(dtype))
        atol = 16 * D * np.finfo(dtype).eps
        np.testing.assert_allclose(y, expected, rtol=0, atol=atol)
        dx = norm.backward(astype(params, dtype), kept, dy.astype(dtype))[0]
        wanted = plain.backward(params, saved, dy)[0]
        np.testing.assert_allclose(1e25 * dx.astype(np.float64), wanted, rtol=0, atol=atol * np.abs(wanted).max())


def test_layer_norm_of_rows_whose_sums_overflow_float32() -> None:
    x = (1e37 * (1 + 0.1 * np.random.default_rng(0).standard_normal((2, 3, 67)))).astype(np.float32)
    norm = LayerNorm(67)
    params = norm.init(np.random.default_rng(0))
    expected, _ = norm.forward(astype(params, np.float64), x.astype(np.float64))
    # the mean is rounded to an eps of itself, of which the deviation is a tenth
    np.testing.assert_allclose(norm.forward(params, x)[0], expected, rtol=0, atol=64 * np.finfo(np.float32).eps)


def test_tables_of_names() -> None:
    assert {name: norm(3) for name, norm in NORMS.items()} == {
        "batch": BatchNorm(3),
        "layer": LayerNorm(3),
        "rms": RMSNorm(3),
    }
    assert {name: pool() for name, pool in POOLS.items()} == {"mean": MeanPool(), "last": LastPool()}


# ------------------------------------------------------------------------------------------- dense and embedding


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: astype({"a": np.ones(2)}, "int32"),
            ValueError,
            "astype: dtype is 'int32', expected float32 or float64",
        ),
        (lambda: astype({"a": np.ones(2)}, "nosuch"), ValueError, "astype: dtype is 'nosuch', expected float32"),
        (lambda: astype(None, "float32"), TypeError, "astype: params is a NoneType, expected a dict of arrays"),
        (lambda: list(flatten(None)), TypeError, "flatten: params is a NoneType, expected a dict of arrays"),
        (lambda: unflatten({"a": np.ones(2), "a.b": np.ones(2)}), ValueError, "a.b: is inside another array"),
        (lambda: unflatten({"a.b": np.ones(2), "a": np.ones(2)}), ValueError, "a: has other arrays inside"),
    ],
)
def test_trees_of_wrong_kinds(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("lengths", [None, RAGGED])
def test_embedding_is_the_linear_encoder_of_one_hot_vectors(lengths: Any) -> None:
    V = 6
    rng = np.random.default_rng(0)
    embedding, dense = Embedding(V, D), Dense(V, D)
    params = {"table": rng.standard_normal((V, D)), "bias": rng.standard_normal(D)}
    ids = rng.integers(0, V, (B, T))
    ctx = Context(lengths)
    dense_params = {"w": params["table"].T.copy(), "bias": params["bias"]}
    expected, dense_saved = dense.forward(dense_params, np.eye(V)[ids], ctx)
    if lengths is not None:
        ids = np.where(VALID[..., 0], ids, 10**9)
    y, saved = embedding.forward(params, ids, ctx)
    np.testing.assert_allclose(y, expected, rtol=1e-15, atol=1e-15)
    dy = rng.standard_normal(y.shape)
    dx, grads = embedding.backward(params, saved, dy)
    _, dense_grads = dense.backward(dense_params, dense_saved, dy)
    assert dx is None
    np.testing.assert_allclose(grads["table"], dense_grads["w"].T, atol=1e-14)
    np.testing.assert_allclose(grads["bias"], dense_grads["bias"], atol=1e-14)


def test_initial_values_have_the_variance_of_one_over_fan_in() -> None:
    """The sample variance of n normal numbers has relative deviation sqrt(2 / n); 5 of them."""
    rng = np.random.default_rng(0)
    for weights, fan_in in (
        (Dense(50, 300).init(rng)["w"], 50),
        (Embedding(60, 300).init(rng)["table"], 60),
        (Gate(128).init(rng)["value"]["w"], 128),
    ):
        assert abs(weights.var() * fan_in - 1) <= 5 * np.sqrt(2 / weights.size)
        assert weights.dtype == np.float32


def test_dense_works_without_time() -> None:
    rng = np.random.default_rng(0)
    dense = Dense(D, 2)
    params = astype(dense.init(rng), np.float64)
    x = rng.standard_normal((B, D))
    y, saved = dense.forward(params, x)
    np.testing.assert_allclose(y, x @ params["w"].T + params["bias"], atol=1e-14)
    assert dense.backward(params, saved, y)[0].shape == x.shape


# -------------------------------------------------------------------------------------------------------- gate


@pytest.mark.parametrize("form", FORMS)
def test_gate_equals_its_formula(form: str) -> None:
    """Both dropouts in place, at sites 2 and 3."""
    layer = Gate(D, form, dropout=0.5, site=2)
    _, params, x = prepared(layer)
    y, _ = layer.forward(params, x, Context(train=True, seed=5, step=6))

    def drop(array: Any, site: int) -> Any:
        return dropout(array, 0.5, seed=5, step=6, site=site)

    def affine(name: str, array: Any) -> Any:
        return array @ params[name]["w"].T + params[name]["bias"]

    z = drop(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), 2)
    value = {"full": lambda: affine("value", z), "half1": lambda: z, "half2": lambda: x}[form]()
    expected = drop(value / (1 + np.exp(-affine("gate", z))), 3)
    np.testing.assert_allclose(y, expected, atol=1e-14)
    assert set(params) == ({"value", "gate"} if form == "full" else {"gate"})


def test_gate_of_an_unknown_form() -> None:
    with pytest.raises(ValueError, match="Gate: form='quarter', expected one of full, half1, half2"):
        Gate(D, "quarter")


def test_dropout_is_off_in_evaluation_and_new_at_each_step() -> None:
    layer = Dropout(0.5, site=4)
    x = np.ones((B, T, D))
    np.testing.assert_array_equal(layer.forward({}, x)[0], x)
    one, again, other = (layer.forward({}, x, Context(train=True, step=step))[0] for step in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_an_evaluations_backward_keeps_the_statistics_of_its_forward() -> None:
    rng = np.random.default_rng(0)
    layer = BatchNorm(D)
    params = layer.init(rng)
    x, dy = rng.standard_normal((2, B, T, D), dtype=np.float32)
    _, saved = layer.forward(params, x)
    before, _ = layer.backward(params, saved, dy)
    layer.forward(params, 9 * x, Context(train=True))
    after, _ = layer.backward(params, saved, dy)
    np.testing.assert_array_equal(after, before)
