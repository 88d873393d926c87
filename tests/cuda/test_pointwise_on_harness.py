"""Pointwise, convolution, optimiser and Philox kernels on the harness: what the table of cases does not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuda_harness import on_harness
from rotrnn import _cpu
from rotrnn.ops import optim, pointwise
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from strict import poisoned, to_device, to_host

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]
DTYPES = [np.float32, np.float64]
KEY = {"seed": 2**40 + 5, "step": 7, "site": 3}


def eps(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def results_of(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def assert_equals_the_cpu(op: Callable[..., Any], *arrays: Any, terms: int, **settings: Any) -> None:
    """Every result within `terms` roundings of its largest number."""
    expected = results_of(op(*arrays, **settings))
    with on_harness():
        got = results_of(op(*map(to_device, arrays), **settings))
    for one, other in zip(got, expected, strict=True):
        mine = to_host(one)
        assert mine.dtype == other.dtype
        atol = terms * eps(other.dtype) * max(1.0, float(np.max(np.abs(other), initial=0.0)))
        np.testing.assert_allclose(mine, other, rtol=0, atol=atol)


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0, lengths: Any = None) -> Any:
    """Normal numbers; NaN in padding."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    for b, steps in enumerate(() if lengths is None else lengths):
        x[b, steps:] = np.nan
    return x


# shapes of more than one block of a map, of rows and of columns; one channel, few, and no multiple of a warp
RAGGED = [((3, 1400, 1), (1400, 0, 1025)), ((2, 700, 6), (699, 513)), ((3, 70, 130), (0, 70, 33))]

# ------------------------------------------------------------------------------------------------------------ maps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "lengths"), [*RAGGED, ((2, 700, 6), None), ((1, 5000, 1), None)])
def test_maps(shape: tuple[int, ...], lengths: Any, dtype: Any) -> None:
    x, dy = normal(shape, dtype, 1, lengths), normal(shape, dtype, 2, lengths)
    for op in (pointwise.gelu, pointwise.silu, pointwise.softplus):
        assert_equals_the_cpu(op, x, lengths=lengths, terms=8)
    for adjoint in (pointwise.gelu_backward, pointwise.silu_backward, pointwise.softplus_backward, pointwise.glu):
        assert_equals_the_cpu(adjoint, dy, x, lengths=lengths, terms=16)
    assert_equals_the_cpu(pointwise.glu_backward, dy, x, x, lengths=lengths, terms=16)
    below = -np.abs(x)
    assert_equals_the_cpu(pointwise.decay_gain, below, lengths=lengths, terms=8)
    assert_equals_the_cpu(pointwise.decay_gain_backward, dy, below, lengths=lengths, terms=16)
    for plain in (pointwise.exp, pointwise.sigmoid, pointwise.tanh):
        assert_equals_the_cpu(plain, np.nan_to_num(x), terms=8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over_time", [False, True])
@pytest.mark.parametrize(
    ("shape", "lengths"), [((3, 50, 7), (50, 0, 9)), ((3, 400, 8), (400, 0, 399)), ((2, 64, 8), None)]
)
def test_dropout_has_the_masks_of_the_cpu_bit_for_bit(
    shape: tuple[int, int, int], lengths: Any, over_time: bool, dtype: Any
) -> None:
    x = normal(shape, dtype, 1, lengths)
    settings: dict[str, Any] = KEY | {"over_time": over_time, "lengths": lengths, "places": 7 * np.arange(shape[0])}
    assert_equals_the_cpu(pointwise.dropout, x, 0.4, terms=0, **settings)


def test_dropout_of_arrays_that_begin_anywhere() -> None:
    """Four float32 numbers are moved as one only where they begin at a multiple of 16 bytes."""
    x = normal((4100,), np.float32)
    sizes = {"B": 2, "T": 64, "D": 32, "lengths": None, "places": None, "rate": 0.3, "over_time": 0, **KEY}
    expected = np.empty(4096, np.float32)
    for skip_x, skip_y in ((0, 0), (1, 0), (0, 3), (4, 4)):
        _cpu.kernels.dropout(y=expected, x=x[skip_x : skip_x + 4096], **sizes)
        room = poisoned((4100,), np.float32)
        with on_harness() as module:
            module.kernels.dropout(y=room[skip_y : skip_y + 4096], x=to_device(x)[skip_x : skip_x + 4096], **sizes)
        np.testing.assert_array_equal(to_host(room)[skip_y : skip_y + 4096], expected)
        assert np.isnan(to_host(room)[:skip_y]).all()
        assert np.isnan(to_host(room)[skip_y + 4096 :]).all()


def test_a_counter_on_the_device_is_added_to_the_step_of_a_mask() -> None:
    x = np.ones((2, 9, 8), np.float32)
    for over_time in (False, True):
        expected = pointwise.dropout(x, 0.4, **KEY | {"step": 7 + 5}, over_time=over_time)
        with on_harness() as module:
            module.use_counter(to_device(np.array([5])))
            try:
                y = pointwise.dropout(to_device(x), 0.4, **KEY, over_time=over_time)
            finally:
                module.use_counter(None)
        np.testing.assert_array_equal(to_host(y), expected)


# ----------------------------------------------------------------------------------------------------------- norms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "lengths"), [*RAGGED, ((2, 40, 300), (40, 7))])
def test_norms(shape: tuple[int, ...], lengths: Any, dtype: Any) -> None:
    x, dy = normal(shape, dtype, 1, lengths), normal(shape, dtype, 2, lengths)
    scale, bias = normal(shape[2:], dtype, 3), normal(shape[2:], dtype, 4)
    rows = shape[0] * shape[1]

    def valid(results: Any) -> Any:
        """The rows' statistics are not written in padding."""
        steps = [shape[1]] * shape[0] if lengths is None else lengths
        return results[0], *(one[b, :n] for one in results[1:] for b, n in enumerate(steps))

    assert_equals_the_cpu(pointwise.batch_norm, x, scale, bias, lengths=lengths, terms=64)
    _, mean, var = pointwise.batch_norm(x, scale, bias, lengths=lengths)
    assert_equals_the_cpu(pointwise.batch_norm_backward, dy, x, scale, mean, var, lengths=lengths, terms=rows)
    if shape[2] > 1:  # of a single channel, layer norm is its bias
        assert_equals_the_cpu(
            lambda *args: valid(pointwise.layer_norm(*args, lengths=lengths)), x, scale, bias, terms=256
        )
        _, mean, rstd = pointwise.layer_norm(x, scale, bias, lengths=lengths)
        assert_equals_the_cpu(pointwise.layer_norm_backward, dy, x, scale, mean, rstd, lengths=lengths, terms=rows)
    assert_equals_the_cpu(lambda *args: pointwise.rms_norm(*args, lengths=lengths)[0], x, scale, terms=64)
    _, rstd = pointwise.rms_norm(x, scale, lengths=lengths)
    assert_equals_the_cpu(pointwise.rms_norm_backward, dy, x, scale, rstd, lengths=lengths, terms=rows)


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e25), (np.float32, 1e-25), (np.float64, 1e180)])
def test_norms_of_rows_whose_squares_are_out_of_range(dtype: Any, size: float) -> None:
    """As on the CPU (tests/nn/test_nn.py)."""
    x, scale = dtype(size) * normal((2, 3, 40), dtype), normal((40,), dtype, 1)
    assert_equals_the_cpu(lambda *args: pointwise.rms_norm(*args, eps=0)[0], x, scale, terms=64)
    assert_equals_the_cpu(lambda *args: pointwise.layer_norm(*args, eps=0)[0], x, scale, scale, terms=256)
    assert np.abs(pointwise.rms_norm(x, scale, eps=0)[0]).max() > 1


def test_batch_norm_keeps_its_digits_far_from_zero() -> None:
    """As on the CPU (tests/ops/test_pointwise.py)."""
    x = (1e4 + normal((4, 700, 5), np.float32)).astype(np.float32)
    with on_harness():
        mean, var = pointwise.batch_norm_statistics(to_device(x))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(to_host(mean), wide.mean((0, 1)), rtol=eps(np.float32))
    np.testing.assert_allclose(to_host(var), wide.var((0, 1)), rtol=27 * eps(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_moments_leave_out_what_is_not_finite(dtype: Any) -> None:
    one = np.ones(4, dtype)
    running, batch = (one.copy(), one.copy()), (np.array([2, np.nan, 2, 2], dtype), np.array([2, 2, np.inf, 2], dtype))
    with on_harness():
        on_device = [to_device(array) for array in (*running, *batch)]
        pointwise.running_moments(*on_device, 0.75)
    pointwise.running_moments(*running, *batch, 0.75)
    for got, expected in zip(on_device[:2], running, strict=True):
        np.testing.assert_array_equal(to_host(got), expected)
        np.testing.assert_array_equal(expected, [1.25, 1, 1, 1.25])


def test_sums_over_many_steps_keep_their_digits() -> None:
    """65,536 float32 numbers around 1. A thread sums 16 rows, a tree 64 or more of these, and the rest is double."""
    dy = np.random.default_rng(0).uniform(0.5, 1.5, (2, 1 << 15, 1)).astype(np.float32)
    exact, tolerance = dy.astype(np.float64).sum((0, 1)), 16 * eps(np.float32)
    one, zero, ids = to_device(np.ones(1, np.float32)), to_device(np.zeros(1, np.float32)), np.zeros((2, 1 << 15), int)
    there = to_device(dy)
    with on_harness():
        dbias = pointwise.batch_norm_backward(there, there, one, zero, one).dbias
        pooled = pointwise.mean_pool(there)
        dtable = pointwise.embedding_backward(there, to_device(ids), 2).dtable
    np.testing.assert_allclose(to_host(dbias), exact, rtol=tolerance)
    np.testing.assert_allclose(to_host(pooled), dy.astype(np.float64).mean(1), rtol=tolerance)
    np.testing.assert_allclose(to_host(dtable), [exact, [0]], rtol=64 * eps(np.float32))  # runs of 64 rows


# ------------------------------------------------------------------------------------------------------- embedding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("V", "D"), [(300, 3), (3, 40), (5000, 2), (1, 1)])
def test_the_embedding_of_skewed_ids(V: int, D: int, dtype: Any) -> None:
    """Several passes and blocks of the sort; ids with many runs, and ids with none. Padding has ids of no row."""
    rng = np.random.default_rng(0)
    lengths = (2600, 0, 999)
    ids = np.minimum(rng.geometric(0.02, (3, 2600)) - 1, V - 1)
    for b, steps in enumerate(lengths):
        ids[b, steps:] = 2**62
    dy, table = normal((3, 2600, D), dtype, 1, lengths), normal((V, D), dtype, 2)
    assert_equals_the_cpu(lambda *args: pointwise.embedding(*args, lengths=lengths), ids, table, terms=0)
    assert_equals_the_cpu(
        lambda one, other: pointwise.embedding_backward(one, other, V, lengths=lengths).dtable, dy, ids, terms=300
    )


HARD: dict[str, Any] = {"targets": None, "weights": None, "row_weights": None, "smoothing": 0.0}


def test_ids_and_labels_out_of_range_touch_no_memory() -> None:
    """Nobody looks at an array on a device before a kernel runs."""
    ids = np.array([[0, -1, 2, 3, 2**62, 1, -(2**63)]])
    table, dy = normal((3, 5), np.float64, 1), normal((1, 7, 5), np.float64, 2)
    good = (ids[0] >= 0) & (ids[0] < 3)
    y, dtable = poisoned((1, 7, 5), float), poisoned((3, 5), float)
    loss, dlogits = poisoned((3,), float), poisoned((3, 5), float)
    sizes: dict[str, Any] = {"B": 1, "T": 7, "D": 5, "V": 3, "lengths": None}
    with on_harness() as module:
        kernels = module.kernels
        kernels.embedding_forward(y=y, ids=to_device(ids), table=to_device(table), bias=None, **sizes)
        kernels.embedding_backward(dtable=dtable, dy=to_device(dy), ids=to_device(ids), **sizes)
        given: dict[str, Any] = {"labels": to_device(np.array([5, 4, -(2**63)])), "count": None, "B": 3, "C": 5, **HARD}
        kernels.cross_entropy(loss=loss, dlogits=dlogits, logits=to_device(table), **given)
    np.testing.assert_array_equal(to_host(y)[0, good], table[ids[0, good]])
    assert np.isnan(to_host(y)[0, ~good]).all()
    expected = np.zeros((3, 5))
    np.add.at(expected, ids[0, good], dy[0, good])
    np.testing.assert_allclose(to_host(dtable), expected, rtol=4 * eps(float))
    assert np.isnan(to_host(loss)).tolist() == [True, False, True]
    assert np.isnan(to_host(dlogits)).all(1).tolist() == [True, False, True]


def test_with_nothing_to_write_an_immense_table_takes_no_time() -> None:
    nothing, ids = to_device(np.zeros(0, np.float32)), to_device(np.zeros(1, np.int64))
    with on_harness() as module:
        module.kernels.embedding_backward(dtable=nothing, dy=nothing, ids=ids, lengths=None, B=1, T=1, D=0, V=2**47)


# ----------------------------------------------------------------------------------------------- pooling and loss


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "lengths"), [*RAGGED, ((2, 700, 6), None)])
def test_mean_pool(shape: tuple[int, ...], lengths: Any, dtype: Any) -> None:
    x, dy = normal(shape, dtype, 1, lengths), normal((shape[0], shape[2]), dtype, 2)
    assert_equals_the_cpu(pointwise.mean_pool, x, lengths=lengths, terms=64)
    assert_equals_the_cpu(pointwise.mean_pool_backward, dy, shape[1], lengths=lengths, terms=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype: Any) -> None:
    """More rows than a block has warps, more classes than a warp has lanes; losses far from and near zero."""
    for B, C, size in ((20, 5, 1), (3, 300, 30), (9, 33, 0)):
        logits, labels = (size * normal((B, C), dtype)).astype(dtype), np.arange(B) * 7 % C
        expected, dexpected = pointwise.cross_entropy(logits, labels)
        with on_harness():
            loss, dlogits = pointwise.cross_entropy(to_device(logits), to_device(labels))
        assert float(loss) == pytest.approx(expected, rel=8 * eps(dtype))
        np.testing.assert_allclose(to_host(dlogits), dexpected, rtol=0, atol=64 * eps(dtype) / B)
    logits, labels = np.full((3, 6, 40), np.nan, dtype), np.full((3, 6), -1)
    logits[:, :4], labels[:, :4] = normal((3, 4, 40), dtype), np.arange(12).reshape(3, 4)
    expected, dexpected = pointwise.cross_entropy(logits, labels, ignored=-1)
    with on_harness():
        loss, dlogits = pointwise.cross_entropy(to_device(logits), to_device(labels), ignored=-1)
    assert float(loss) == pytest.approx(expected, rel=8 * eps(dtype))
    np.testing.assert_allclose(to_host(dlogits), dexpected, rtol=0, atol=64 * eps(dtype) / 12)
    logits = normal((20, 33), dtype)
    weights, rows = np.arange(33) / 16, np.arange(20) % 3
    for given in (np.arange(20) * 7 % 33, np.abs(normal((20, 33), dtype))):
        for smoothing in (0.0, 0.1):
            how = {"weights": weights, "label_smoothing": smoothing, "sample_weights": rows.astype(dtype)}
            expected, dexpected = pointwise.cross_entropy(logits, given, **how)
            with on_harness():
                loss, dlogits = pointwise.cross_entropy(to_device(logits), to_device(given), **how)
            assert float(loss) == pytest.approx(expected, rel=64 * eps(dtype))
            np.testing.assert_allclose(to_host(dlogits), dexpected, rtol=0, atol=64 * eps(dtype) * 60 / 20)
    big = np.finfo(dtype).max / 4
    logits = np.array([[big, -big], [0, -np.inf], [np.nan, 1], [20, 0]], dtype)
    loss, dlogits = poisoned((4,), dtype), poisoned((4, 2), dtype)
    given: dict[str, Any] = {"labels": to_device(np.zeros(4, int)), "count": None, "B": 4, "C": 2, **HARD}
    with on_harness() as module:
        module.kernels.cross_entropy(loss=loss, dlogits=dlogits, logits=to_device(logits), **given)
    np.testing.assert_array_equal(to_host(loss)[:3], [0, 0, np.nan])
    np.testing.assert_array_equal(to_host(dlogits)[:3], [[0, 0], [0, 0], [np.nan, np.nan]])
    confident = np.exp(-20) / (1 + np.exp(-20)) / 4  # the gradient does not cancel
    np.testing.assert_allclose(to_host(dlogits)[3], [-confident, confident], rtol=8 * eps(dtype))


# ----------------------------------------------------------------------------------------------------- convolution


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("taps", [1, 3, 4, 5, 9])
@pytest.mark.parametrize(("T", "D", "lengths"), [(300, 40, (300, 0, 129)), (1100, 3, None), (3, 5, (3, 1, 2))])
def test_convolution(T: int, D: int, lengths: Any, taps: int, dtype: Any) -> None:
    """Several passes over the taps, runs of steps and chunks of rows; with a state and without."""
    B = 3
    x, dy = normal((B, T, D), dtype, 1, lengths), normal((B, T, D), dtype, 2, lengths)
    w, bias, state = normal((D, taps), dtype, 3), normal((D,), dtype, 4), normal((B, taps - 1, D), dtype, 5)
    dfinal = normal((B, taps - 1, D), dtype, 6)
    forward = {"lengths": lengths, "return_state": True, "terms": 4 * taps}
    assert_equals_the_cpu(causal_conv, x, w, bias, state, **forward)
    assert_equals_the_cpu(causal_conv, x, w, **forward)

    def adjoint(dy: Any, x: Any, w: Any, *more: Any) -> Any:
        state, dfinal = more or (None, None)
        return causal_conv_backward(dy, x, w, state, dhT=dfinal, lengths=lengths)

    assert_equals_the_cpu(adjoint, dy, x, w, state, dfinal, terms=B * T // 4 + 4 * taps)
    assert_equals_the_cpu(adjoint, dy, x, w, terms=B * T // 4 + 4 * taps)


# ------------------------------------------------------------------------------------------- optimiser and Philox


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 257, 9000])
def test_adamw_and_its_norms(n: int, dtype: Any) -> None:
    p, m, grad = (normal((n,), dtype, seed) for seed in range(3))
    v = np.abs(normal((n,), dtype, 3))
    settings = {"lr": 1e-2, "step": 3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, "scale": 0.5}
    there = [to_device(one) for one in (p, m, v, grad)]
    expected = optim.adamw(p, m, v, grad, **settings)
    with on_harness():
        norms = optim.adamw(*there, **settings)
        alone = optim.norm(there[0])
    assert norms == pytest.approx(expected, rel=4 * eps(dtype))
    assert alone == norms[0]
    for got, mine in zip(there, (p, m, v, grad), strict=True):
        np.testing.assert_allclose(to_host(got), mine, rtol=0, atol=8 * eps(dtype) * np.max(np.abs(mine), initial=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 257, 9000])
def test_sgd_and_its_norms(n: int, dtype: Any) -> None:
    here = [normal((n,), dtype, seed) for seed in range(3)]
    settings = {"lr": 1e-2, "momentum": 0.9, "decay": 0.1, "scale": 0.5}
    there = [to_device(one) for one in here]
    expected = optim.sgd(*here, **settings)
    with on_harness():
        norms = optim.sgd(*there, **settings)
    assert norms == pytest.approx(expected, rel=4 * eps(dtype))
    for got, mine in zip(there, here, strict=True):
        np.testing.assert_allclose(to_host(got), mine, rtol=0, atol=4 * eps(dtype) * np.max(np.abs(mine), initial=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_of_a_vector_are_placed(seed: int) -> None:
    """More than one launch places, some without numbers; what is between them stays."""
    parts = [normal((size,), np.float32, size) for size in (3, 64, 0, 65, 5000, *range(1, 30))]
    at, expected = 0, np.full(9000, 7, np.float32)
    for part in parts:
        expected[at : at + part.size] = part
        at += -(-part.size // 64) * 64
    flat, there = np.full(9000, 7, np.float32), to_device(np.full(9000, 7, np.float32))
    optim.place_parts(flat, parts)
    with on_harness(seed):
        optim.place_parts(there, [to_device(part) for part in parts])
    np.testing.assert_array_equal(flat, expected)
    np.testing.assert_array_equal(to_host(there), expected)
    with pytest.raises(ValueError, match=r"place_parts: .*at"):
        optim.place_parts(flat[: at - 64], parts)


GROUPS = [(0, 300), (300, 300), (300, 5000), (5000, 14000)]
"""Groups of one vector: within a block, empty, and over several blocks of 4096 numbers."""


def groups_of(dtype: Any, device: Any = np.asarray) -> dict[str, Any]:
    """Arguments of `adamw_groups`, with a gradient that is clipped."""
    n = GROUPS[-1][1]
    p, m, grad = (normal((n,), dtype, seed) for seed in range(3))
    rules = [[1e-2 * (1 + g), 1 - 0.9**3, 1 - 0.99**3, 0.1 * g] for g in range(len(GROUPS))]
    arrays = {
        "norms": np.zeros(1 + 2 * len(GROUPS)),
        "param": p,
        "m": m,
        "v": np.abs(normal((n,), dtype, 3)),
        "grad": grad,
        "ends": np.array([end for _, end in GROUPS]),
        "rules": np.array(rules),
        "loss": np.ones(1),
    }
    return {name: device(array) for name, array in arrays.items()}


SETTINGS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "clip": 20.0}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_adamw_of_groups_is_that_of_each(dtype: Any, seed: int) -> None:
    """Sums of n squares in double: their relative error is at most n EPS / 2, and its root half of that."""
    here, there = groups_of(dtype), groups_of(dtype, to_device)
    alone = groups_of(dtype)
    optim.adamw_groups(**here, **SETTINGS)
    with on_harness(seed):
        optim.adamw_groups(**there, **SETTINGS)
    size = optim.norm(alone["grad"])
    assert size > SETTINGS["clip"]
    for g, (first, end) in enumerate(GROUPS):
        lr, _, _, decay = alone["rules"][g]
        part = [alone[name][first:end] for name in ("param", "m", "v", "grad")]
        settings = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": decay, "scale": SETTINGS["clip"] / size}
        assert optim.adamw(*part, lr=lr, step=3, **settings) == tuple(here["norms"][1 + 2 * g : 3 + 2 * g])
    assert here["norms"][0] == size
    for name in ("param", "m", "v"):
        np.testing.assert_array_equal(here[name], alone[name])
        np.testing.assert_allclose(to_host(there[name]), here[name], rtol=0, atol=8 * eps(dtype) * np.max(here[name]))
    np.testing.assert_allclose(to_host(there["norms"]), here["norms"], rtol=GROUPS[-1][1] * eps(float) + 8 * eps(dtype))


def test_adamw_of_groups_whose_ends_go_backwards() -> None:
    """Such groups are empty: those of one block each would need more sums than there are."""
    n = GROUPS[-1][1]
    wrong, right = groups_of(np.float64, to_device), groups_of(np.float64, to_device)
    wrong["ends"], right["ends"] = to_device(np.array([n, 0, n, 5])), to_device(np.full(4, n))
    with on_harness():
        for given in (wrong, right):
            optim.adamw_groups(**given, **SETTINGS)
    for name in ("param", "m", "v", "norms"):
        np.testing.assert_array_equal(to_host(wrong[name]), to_host(right[name]))
    assert not to_host(wrong["norms"])[3:].any()


@pytest.mark.parametrize("name", ["grad", "loss", "norms"])
def test_adamw_of_groups_stops_at_the_first_failure(name: str) -> None:
    """Where a gradient, the loss, or a norm of the last update is not finite, nothing changes; nor in later calls."""
    with on_harness():
        for device in (np.array, to_device):
            arrays = groups_of(np.float64)
            good, arrays[name][-1] = arrays[name].copy(), np.inf
            given = {key: device(value) for key, value in arrays.items()}
            for _ in range(2):
                optim.adamw_groups(**given, **SETTINGS)
                if name != "norms":  # the next batch is a good one
                    given[name] = device(good)
            for key in ("param", "m", "v"):
                np.testing.assert_array_equal(to_host(given[key]), arrays[key])
            assert not np.isfinite(to_host(given["norms"])[0])


def test_adamw_of_groups_refuses() -> None:
    for name, wrong, message in (
        ("param", np.zeros(3), "param has shape"),
        ("ends", np.array([0, 1, 2, 14001]), "ends"),
        ("rules", np.zeros((3, 4)), "rules"),
        ("m", np.zeros(14000, np.float32), "m has dtype float32"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"adamw_groups: .*{message}"):
            optim.adamw_groups(**{**groups_of(np.float64), name: wrong}, **SETTINGS)


def test_a_norm_that_is_not_finite() -> None:
    x = np.full(5000, 1e38, np.float32)
    with on_harness():
        assert optim.norm(to_device(x)) == pytest.approx(np.sqrt(5000) * 1e38, rel=1e-6)
        x[4999] = np.nan
        assert np.isnan(optim.norm(to_device(x)))


def test_philox() -> None:
    rng = np.random.default_rng(0)
    counter, key = rng.integers(0, 2**32, (300, 4)), rng.integers(0, 2**32, (300, 2))
    expected, words = np.empty((300, 4), np.int64), poisoned((300, 4), np.int64)
    _cpu.kernels.philox(out=expected, counter=counter, key=key, n=300)
    with on_harness() as module:
        module.kernels.philox(out=words, counter=to_device(counter), key=to_device(key), n=300)
    np.testing.assert_array_equal(to_host(words), expected)


# ------------------------------------------------------------------------------------------------------ the order


def test_sums_have_the_same_bits_whatever_runs_first() -> None:
    lengths, ids = (700, 513), np.random.default_rng(0).integers(0, 9, (2, 700))
    x, dy = normal((2, 700, 6), np.float32, 1, lengths), normal((2, 700, 6), np.float32, 2, lengths)
    one = np.ones(6, np.float32)
    args = [to_device(array) for array in (dy, x, one, ids)]

    def everything(dy: Any, x: Any, one: Any, ids: Any) -> tuple[Any, ...]:
        _, mean, var = pointwise.batch_norm(x, one, one, lengths=lengths)
        _, row_mean, rstd = pointwise.layer_norm(x, one, one, lengths=lengths)
        return (
            *(mean, var, *pointwise.batch_norm_backward(dy, x, one, mean, var, lengths=lengths)),
            *pointwise.layer_norm_backward(dy, x, one, row_mean, rstd, lengths=lengths),
            *causal_conv_backward(dy, x, one[:, None] + x[0, :6, :4], lengths=lengths)[:3],
            *(pointwise.mean_pool(x, lengths=lengths), *pointwise.embedding_backward(dy, ids, 9, lengths=lengths)),
        )

    results = []
    for seed in (0, 1, 2):
        with on_harness(seed):
            results.append([to_host(result) for result in everything(*args)])
    for others in results[1:]:
        for mine, other in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(mine, other)
