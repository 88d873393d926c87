"""Properties of the pointwise ops that the table of cases does not test: accuracy, masks, known answers, errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rotrnn import _cpu
from rotrnn.ops import pointwise
from rotrnn.ops.pointwise import (
    batch_norm,
    batch_norm_backward,
    binary_cross_entropy,
    channel_gain,
    cross_entropy,
    dropout,
    dropout_backward,
    embedding,
    embedding_backward,
    gelu,
    glu,
    glu_backward,
    last_pool,
    layer_norm,
    mask_padding,
    mean_pool,
    mean_pool_backward,
    mean_squared_error,
    running_moments,
    statistics_adjoint,
)

EPS32 = np.finfo(np.float32).eps

# ----------------------------------------------------------------------------------------------------- dropout

KEY = {"seed": 1, "step": 2, "site": 3}


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_rate_and_its_mean(rate: float) -> None:
    """Of n elements n rate are zero, with standard deviation sqrt(n rate (1 - rate)); 5 of them."""
    x = np.ones((8, 1000, 64))
    y = dropout(x, rate, **KEY)
    assert set(np.unique(y)) == {0.0, 1 / (1 - rate)}
    assert abs(np.sum(y == 0) - x.size * rate) <= 5 * np.sqrt(x.size * rate * (1 - rate))
    for axis in range(3):  # no axis is favoured: the places along it agree to 5 of their own standard deviations
        share = np.mean(y == 0, tuple({0, 1, 2} - {axis}))
        assert np.max(np.abs(share - rate)) <= 5 * np.sqrt(rate * (1 - rate) * len(share) / x.size)


def test_a_dropout_mask_is_the_same_in_either_dtype_and_with_lengths() -> None:
    x = np.ones((3, 50, 7))
    mask = dropout(x, 0.4, **KEY) != 0
    np.testing.assert_array_equal(dropout(x.astype(np.float32), 0.4, **KEY) != 0, mask)
    np.testing.assert_array_equal(dropout_backward(x, 0.4, **KEY) != 0, mask)
    ragged = dropout(x, 0.4, **KEY, lengths=[50, 0, 9])
    np.testing.assert_array_equal(ragged, mask_padding(mask / 0.6, [50, 0, 9]))


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (2, 0, 3, 4), (2, 5, 0, 4), (2, 5, 2, 1, 3)])
def test_padding_is_zeroed_along_further_axes(shape: tuple[int, ...]) -> None:
    x, lengths = np.random.default_rng(0).standard_normal(shape), np.minimum([3, 0], shape[1])
    valid = (np.arange(shape[1]) < lengths[:, None]).reshape(*shape[:2], *[1] * (len(shape) - 2))
    x = np.where(valid, x, np.nan)
    np.testing.assert_array_equal(mask_padding(x, lengths), np.where(valid, x, 0))


@pytest.mark.parametrize("over_time", [False, True])
def test_a_part_of_a_batch_has_the_same_masks_as_in_the_whole_batch(over_time: bool) -> None:
    """Padding has no influence either."""
    whole = dropout(np.ones((7, 30, 5)), 0.4, **KEY, over_time=over_time)
    places = [5, 0, 2]
    part = dropout(np.ones((3, 11, 5)), 0.4, **KEY, over_time=over_time, places=places)
    np.testing.assert_array_equal(part, whole[places, :11])


@pytest.mark.parametrize("over_time", [False, True])
def test_dropout_masks_of_other_keys_are_independent(over_time: bool) -> None:
    """Two masks of rate 1/2 agree in half of n places, with standard deviation sqrt(n) / 2; 5 of them."""
    x = np.ones((40, 10, 50))
    n = x.size // 10 if over_time else x.size
    keys = [KEY, KEY | {"seed": 2}, KEY | {"seed": 1 + 2**32}, KEY | {"step": 3}, KEY | {"site": 2}]
    masks = [dropout(x, 0.5, **key, over_time=over_time)[:, : 1 if over_time else None] for key in keys]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs(np.sum(one == other) - n / 2) <= 5 * np.sqrt(n) / 2


def test_dropout_over_time_has_one_mask_per_channel() -> None:
    y = dropout(np.ones((5, 9, 33)), 0.3, **KEY, over_time=True)
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert 0 < np.mean(y == 0) < 1


def test_dropout_of_rate_zero_is_the_identity() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    np.testing.assert_array_equal(dropout(x, 0, **KEY), x)


# ------------------------------------------------------------------------------------------------------- norms


def test_batch_norm_known_answer() -> None:
    """Valid values 1, 3, 5 and 2, 2, 2: means 3 and 2, biased variances 8/3 and 0."""
    x = np.array([[[1, 2], [3, 2], [np.nan, np.nan]], [[5, 2], [np.nan, np.nan], [np.nan, np.nan]]])
    y, mean, var = batch_norm(x, np.ones(2), np.array([0.0, 7.0]), eps=0.5, lengths=[2, 1])
    np.testing.assert_allclose(mean, [3, 2], rtol=1e-15)
    np.testing.assert_allclose(var, [8 / 3, 0], rtol=1e-15)
    unit = 2 / np.sqrt(8 / 3 + 0.5)
    np.testing.assert_allclose(y, [[[-unit, 7], [0, 7], [0, 0]], [[unit, 7], [0, 0], [0, 0]]], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_batch_norm_computes_of_each_channel(dtype: Any) -> None:
    """Bits of NumPy's, whose operations round one by one."""
    rng, D, eps = np.random.default_rng(0), 1001, 1e-5
    scale, var, dscale, dbias, mean, before = (np.abs(rng.standard_normal((6, D))) + 0.1).astype(dtype)
    rstd = 1 / np.sqrt(var + eps)
    np.testing.assert_array_equal(channel_gain(scale, var, eps), scale / np.sqrt(var + eps))
    for lengths, n in ((None, 21), (np.array([7, 0, 5]), 12)):
        slope, shift = statistics_adjoint(scale, var, eps, dscale, dbias, (3, 7, D), lengths)
        np.testing.assert_array_equal(slope, -scale * rstd**2 * dscale / n)
        np.testing.assert_array_equal(shift, -scale * rstd * dbias / n)
    slope, _ = statistics_adjoint(scale, var, eps, dscale, dbias, (3, 7, D), None, np.array([5.0]))
    np.testing.assert_array_equal(slope, -scale * rstd**2 * dscale / 5)
    running = before.copy(), before.copy()
    running_moments(*running, mean, var, 0.9)
    for one, batch in zip(running, (mean, var), strict=True):
        expected = before.copy()
        expected *= 0.9
        expected += (1 - 0.9) * batch
        np.testing.assert_array_equal(one, expected)


def test_batch_norm_keeps_its_digits_far_from_zero() -> None:
    """float32, mean 1e4 and deviation 1: a difference of squares would lose all digits of the variance. x - mean_c is
    exact, and a sum over the 700 rows of a chunk errs by sqrt(700) eps as a rule."""
    rng = np.random.default_rng(0)
    x = (1e4 + rng.standard_normal((8, 700, 20))).astype(np.float32)
    _, mean, var = batch_norm(x, np.ones(20, np.float32), np.zeros(20, np.float32))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean((0, 1)), rtol=EPS32)
    np.testing.assert_allclose(var, wide.var((0, 1)), rtol=27 * EPS32)


def test_sums_over_many_steps_keep_their_digits() -> None:
    """262,144 float32 numbers around 1: one running sum would err by 1e-3; a chunk of at most 16,384 / 4 rows errs by
    n eps / 2 at the very most, by sqrt(n) eps as a rule, and the chunks are added in double."""
    rng = np.random.default_rng(0)
    dy = rng.uniform(0.5, 1.5, (2, 1 << 17, 4)).astype(np.float32)
    exact = dy.astype(np.float64).sum((0, 1))
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    tolerance = 4 * np.sqrt(4096) * EPS32
    np.testing.assert_allclose(batch_norm_backward(dy, dy, one, zero, one).dbias, exact, rtol=tolerance)
    np.testing.assert_allclose(mean_pool(dy), dy.astype(np.float64).mean(1), rtol=tolerance)
    ids = np.zeros(dy.shape[:2], np.int64)
    for V in (2, 200):  # a table for each chunk, and rows sorted by their id
        dtable = embedding_backward(dy, ids, V).dtable
        np.testing.assert_allclose(dtable[0], exact, rtol=4 * np.sqrt(128) * EPS32)
        np.testing.assert_array_equal(dtable[1:], 0)


def test_nan_at_a_valid_step_reaches_its_channel_or_its_step_and_no_other() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 3))
    x[1, 2, 0] = np.nan
    one, zero = np.ones(3), np.zeros(3)
    assert np.array_equal(np.isnan(batch_norm(x, one, zero)[0]), np.broadcast_to([True, False, False], x.shape))
    expected = np.zeros(x.shape, bool)
    expected[1, 2] = True
    assert np.array_equal(np.isnan(layer_norm(x, one, zero)[0]), expected)
    assert np.array_equal(np.isnan(gelu(x)), np.isnan(x))
    assert np.array_equal(np.isnan(glu(x, x)), np.isnan(x))
    assert np.array_equal(np.isnan(mean_pool(x)), [[False] * 3, [True, False, False]])


def test_constant_channels_normalise_to_the_bias() -> None:
    x = np.full((2, 300, 3), 1e3, np.float32)
    one, bias = np.ones(3, np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(batch_norm(x, one, bias)[0], np.broadcast_to(bias, x.shape))
    np.testing.assert_array_equal(layer_norm(x, one, bias)[0], np.broadcast_to(bias, x.shape))


# ------------------------------------------------------------------------------------------- embedding and pools


def test_embedding_takes_int32_and_strided_ids() -> None:
    table = np.arange(12.0).reshape(4, 3)
    ids = np.array([[0, 3, 1], [2, 2, 0]], np.int32)
    np.testing.assert_array_equal(embedding(ids, table), table[ids])
    np.testing.assert_array_equal(embedding(ids.T, table), table[ids.T])


def test_a_gate_far_below_zero_gives_zero() -> None:
    """e^100 is no float32: 1e38 e^-100 = 4e-6 is given as zero, and so is its slope in the value. e^88 is one."""
    value, gate = np.full(2, 1e38, np.float32), np.array([-100, -88], np.float32)
    # e^88 to 2 ulp, a sum and a quotient of half an ulp each
    np.testing.assert_allclose(glu(value, gate), [0, 1e38 * np.exp(-88.0)], rtol=3 * EPS32, atol=0)
    assert glu_backward(np.ones(2, np.float32), value, gate).dvalue[0] == 0


def test_with_nothing_to_write_an_immense_axis_takes_no_time() -> None:
    nothing, ids = np.zeros(0, np.float32), np.zeros(1, np.int64)
    sizes = {"B": 1, "T": 1, "D": 0, "V": 2**47}
    _cpu.kernels.embedding_backward(dtable=nothing, dy=nothing, ids=ids, lengths=None, **sizes)
    _cpu.kernels.orthogonal_forward(P=nothing, M=nothing, G=2**47, n=0)
    with pytest.raises(ValueError, match=r"embedding_backward: dtable with vocab=.* has shape .* too large to address"):
        embedding_backward(nothing.reshape(1, 1, 0), [[0]], 2**60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits a process's memory as Linux does")
def test_a_kernel_without_memory_for_its_workspace() -> None:
    """In a process of its own, which may have little more memory than it has taken."""
    code = """
import resource
import numpy as np
import rotrnn
w, x = np.ones((8192, 8192), np.float32), np.ones((64, 8192), np.float32)
expected = rotrnn.ops.dense(x, w)
rotrnn.release_memory()
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**26, resource.RLIM_INFINITY))
try:
    rotrnn.ops.dense(x, w)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert (rotrnn.ops.dense(x, w) == expected).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "matmul: not enough memory for its workspace\n"), done.stderr


def test_sequences_without_steps_pool_to_zero() -> None:
    x = np.full((2, 3, 4), np.nan)
    x[1, 0] = 5
    for pool in (mean_pool, last_pool):
        np.testing.assert_array_equal(pool(x, lengths=[0, 1]), [[0] * 4, [5] * 4])
        np.testing.assert_array_equal(pool(np.ones((2, 0, 4))), np.zeros((2, 4)))
    np.testing.assert_array_equal(mean_pool_backward(np.ones((1, 2)), 3, lengths=[0]), np.zeros((1, 3, 2)))


# -------------------------------------------------------------------------------------------------------- loss


def test_cross_entropy_known_answers() -> None:
    loss, dlogits = cross_entropy(np.zeros((2, 4)), [0, 3])
    assert loss == pytest.approx(np.log(4), rel=1e-15)
    np.testing.assert_allclose(dlogits, [[-0.375, 0.125, 0.125, 0.125], [0.125, 0.125, 0.125, -0.375]], rtol=1e-15)
    assert isinstance(loss, float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy_of_huge_and_infinite_logits(dtype: Any) -> None:
    big = np.finfo(dtype).max / 4
    loss, dlogits = cross_entropy(np.array([[big, -big], [0, -np.inf]], dtype), [0, 0])
    assert loss == 0
    np.testing.assert_array_equal(dlogits, 0)
    loss, dlogits = cross_entropy(np.array([[0, 1e4]], dtype), [0])
    assert loss == 1e4
    np.testing.assert_array_equal(dlogits, [[-1, 1]])
    loss, dlogits = cross_entropy(np.array([[np.nan, 1]], dtype), [1])
    assert np.isnan(loss)
    assert np.isnan(dlogits).all()


def test_cross_entropy_of_a_confident_answer_keeps_its_digits() -> None:
    """The loss is e^-20 to the rounding of log(1 + e^-20) in double, eps e^20; the gradient to a few eps32."""
    loss, dlogits = cross_entropy(np.array([[20, 0]], np.float32), [0])
    assert loss == pytest.approx(np.exp(-20), rel=1e-6)
    np.testing.assert_allclose(dlogits, [[-np.exp(-20), np.exp(-20)]], rtol=1e-6)


LOGITS = [[0.5, -1.0, 2.0, 0.25], [3.0, 0.0, -2.0, 1.5], [-0.75, 0.125, 0.5, -4.0]]
SHARES = [[0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.5, 0.0]]
SMOOTHED: dict[str, Any] = {"label_smoothing": 0.1}
WEIGHTED: dict[str, Any] = {"weights": [1.0, 0.5, 2.0, 0.25]}
SAMPLED: dict[str, Any] = {"sample_weights": [1.0, 0.0, 3.0]}


@pytest.mark.parametrize(
    ("labels", "settings", "expected", "drow"),
    [
        ([2, 1, 0], SMOOTHED, 1.8911049095912313, [0.25215350695868827, -0.2953644572067856, -0.006578186809486451]),
        (
            [2, 1, 0],
            SMOOTHED | WEIGHTED,
            1.4788553458976257,
            [0.13330638607545336, -0.14711484027285635, -0.015712305744324924],
        ),
        (SHARES, {}, 2.0525632429245646, [0.2604868402920215, -0.3203644572067856, 0.001755146523846882]),
        (SHARES, WEIGHTED, 1.2942267620766117, [0.13024342014601076, -0.1601822286033928, 0.000877573261923441]),
        (
            SHARES,
            WEIGHTED | {"label_smoothing": 0.25},
            1.4447408837012368,
            [0.13790083496961728, -0.12751375777705162, -0.04059712425369747],
        ),
        (SHARES, SAMPLED, 1.6982464156317263, [0, 0, 0]),
        ([2, 1, 0], SMOOTHED | WEIGHTED | SAMPLED, 2.132100970901837, [0, 0, 0]),
    ],
)
def test_smoothed_and_soft_labels_are_those_of_pytorch(
    labels: Any, settings: dict[str, Any], expected: float, drow: list[float]
) -> None:
    """PyTorch 2.12's cross_entropy in float64 with reduction="none", summed with the weights of samples and divided by
    3, and its gradient in the second row. Some ten roundings of numbers up to 7, in double."""
    loss, dlogits = cross_entropy(LOGITS, labels, **settings)
    assert loss == pytest.approx(expected, abs=64 * 2**-52)
    np.testing.assert_allclose(dlogits[1, :3], drow, rtol=0, atol=16 * 2**-52)
    single, dsingle = cross_entropy(np.array(LOGITS, np.float32), labels, **settings)
    assert single == pytest.approx(expected, abs=64 * 2**-23)
    np.testing.assert_allclose(dsingle, dlogits, rtol=0, atol=16 * 2**-23)
    as_steps = {name: np.reshape(one, (3, 1)) if name == "sample_weights" else one for name, one in settings.items()}
    shape = (3, 1) if np.ndim(labels) == 1 else (3, 1, 4)
    again, dagain = cross_entropy(np.reshape(LOGITS, (3, 1, 4)), np.reshape(labels, shape), **as_steps)
    assert again == loss
    np.testing.assert_array_equal(dagain[:, 0], dlogits)


def test_soft_labels_in_general() -> None:
    """A label is a share of 1 of its class; smoothing is a change of shares; what has no weight may be NaN; an infinite
    logit without a share adds nothing."""
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((5, 7)), rng.integers(0, 7, 5)
    onehot = np.eye(7)[labels]
    loss, dlogits = cross_entropy(logits, labels, label_smoothing=0.3)
    soft, dsoft = cross_entropy(logits, 0.7 * onehot + 0.3 / 7)
    assert soft == pytest.approx(loss, rel=16 * 2**-52)
    np.testing.assert_allclose(dsoft, dlogits, rtol=0, atol=16 * 2**-52)
    hard, dhard = cross_entropy(logits, labels)
    soft, dsoft = cross_entropy(logits, onehot)
    assert soft == pytest.approx(hard, rel=16 * 2**-52)
    np.testing.assert_allclose(dsoft, dhard, rtol=0, atol=16 * 2**-52)
    weight = np.array([1.0, 2.0, 0.0, 1.0, 0.5])
    logits[2] = np.nan
    for given in (labels, onehot):
        loss, dlogits = cross_entropy(logits, given, sample_weights=weight)
        each = [weight[b] * cross_entropy(logits[b : b + 1], given[b : b + 1])[0] for b in (0, 1, 3, 4)]
        assert loss == pytest.approx(sum(each) / 5, rel=16 * 2**-52)
        np.testing.assert_array_equal(dlogits[2], 0)
    loss, dlogits = cross_entropy([[0.0, -np.inf]], [[1.0, 0.0]])
    assert loss == 0
    np.testing.assert_array_equal(dlogits, 0)
    ignored, _ = cross_entropy(logits[:3], [1, 2, -1], ignored=-1, label_smoothing=0.1)
    assert ignored == cross_entropy(logits[:2], [1, 2], label_smoothing=0.1)[0]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_weights_that_are_integers_or_booleans_are_those_of_floats(dtype: Any) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    rows, bits = [1, 0, 1], np.arange(12).reshape(1, 3, 4) % 2
    for op, given, labels, samples in (
        (cross_entropy, logits, [1, 2, 3], rows),
        (binary_cross_entropy, logits[None], bits, [rows]),
    ):
        weights = {"weights": np.array([1, 0, 1, 1], dtype), "sample_weights": np.array(samples, dtype)}
        loss, dlogits = op(given, labels, **weights)
        wanted, dwanted = op(given, labels, **{name: one.astype(np.float32) for name, one in weights.items()})
        assert (loss, dlogits.dtype) == (wanted, np.float32)
        np.testing.assert_array_equal(dlogits, dwanted)
    with pytest.raises(ValueError, match=r"cross_entropy: weights has -1.*, expected finite numbers of at least 0"):
        cross_entropy(logits, [1, 2, 3], weights=[1, -1, 1, 1])


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        ([0.5, 0.5], {}, r"labels has shape \(2,\) and dtype float64, expected integers \(B,\) or floats \(B, C\)"),
        ([[1, 0, 0], [0, 0, 1]], {}, r"labels has shape \(2, 3\) and dtype int64, expected integers \(B,\) or floats"),
        ([[True, False]], {}, r"labels has shape \(1, 2\) and dtype bool, expected integers"),
        ([[0.5, 0.5, 1e39], [0, 0, 1]], {}, r"labels has 1e\+39, expected finite shares of at least 0"),
        ([0, 1], {"weights": [1.0, 1e39, 1.0]}, r"weights has 1e\+39, expected finite numbers of at least 0"),
        ([[0.5, 0.5, -1], [0, 0, 1]], {}, "labels has -1.0, expected finite shares of at least 0"),
        ([[0.5, 0.5, np.nan], [0, 0, 1]], {}, "labels has nan, expected finite shares of at least 0"),
        ([[0.5, 0.5, 0], [0, 0, 1]], {"ignored": -1}, "ignored is -1 with labels of floats, expected sample_weights"),
        ([0, 1], {"label_smoothing": 1.5}, "label_smoothing is 1.5, expected a number from 0 to 1"),
        ([0, 1], {"label_smoothing": -0.1}, "label_smoothing is -0.1, expected a nonnegative number"),
        ([0, 1], {"sample_weights": [1.0]}, r"sample_weights has shape \(1,\), expected \(2,\)"),
        ([0, 1], {"sample_weights": [1.0, np.inf]}, "sample_weights has inf, expected finite numbers of at least 0"),
    ],
)
def test_soft_labels_that_are_refused(labels: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^cross_entropy: ({message})"):
        cross_entropy(np.zeros((2, 3), np.float32), labels, **settings)


def test_cross_entropy_of_one_class_is_zero() -> None:
    loss, dlogits = cross_entropy(np.array([[3.0], [-1.0]]), [0, 0])
    assert loss == 0
    np.testing.assert_array_equal(dlogits, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ignored", [-1, -100, 1])
def test_ignored_labels_do_not_count(ignored: int, dtype: Any) -> None:
    """The result is that of the other rows alone: the gradient to the bit, the mean to the order of its sum. What is
    ignored may be NaN."""
    rng = np.random.default_rng(0)
    off = rng.random((3, 5)) < 0.5
    for op, shape in ((cross_entropy, (3, 5, 4)), (binary_cross_entropy, (3, 5, 2))):
        logits = rng.standard_normal(shape).astype(dtype)
        labels = rng.choice([0] if ignored == 1 else [0, 1], shape[: 2 if op is cross_entropy else 3])
        labels[off], logits[off] = ignored, np.nan
        loss, dlogits = op(logits, labels, ignored=ignored)
        picked = logits[~off].reshape((-1, 4) if op is cross_entropy else -1), labels[~off].ravel()
        rest, drest = op(*picked)
        assert loss == pytest.approx(rest, rel=16 * np.finfo(np.float64).eps)
        np.testing.assert_array_equal(dlogits[~off].ravel(), drest.ravel())
        np.testing.assert_array_equal(dlogits[off], 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("logit", [np.nan, np.inf, -np.inf])
def test_logits_of_weight_zero_may_be_anything(logit: float) -> None:
    weights, logits = np.array([0.0, 2.0, 1.0]), np.array([[logit, 1.0], [0.5, -1.0], [2.0, 0.0]])
    bits = np.array([[0, 1], [1, 0], [1, 1]])
    for op, z, labels, s in (
        (cross_entropy, logits, bits[:, 0], weights),
        (binary_cross_entropy, logits[:, 0], bits[:, 0], weights),
        (binary_cross_entropy, logits[None], bits[None], weights[None]),
    ):
        expected = op(np.where(np.isfinite(z), z, 0), labels, sample_weights=s)
        loss, dlogits = op(z, labels, sample_weights=s)
        assert loss == expected[0]
        np.testing.assert_array_equal(dlogits, expected[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binary_cross_entropy_of_any_logits(dtype: Any) -> None:
    """Known answers, nothing overflows, and a confident answer keeps its digits: e^-20 to a few roundings."""
    near = 8 * float(np.finfo(dtype).eps)
    loss, dlogits = binary_cross_entropy(np.zeros(2, dtype), [0, 1])
    assert isinstance(loss, float)
    assert dlogits.dtype == dtype
    assert loss == pytest.approx(np.log(2), rel=near)
    np.testing.assert_array_equal(dlogits, [0.25, -0.25])
    big = np.finfo(dtype).max / 4
    loss, dlogits = binary_cross_entropy(np.array([big, -big, np.inf, -np.inf], dtype), [1, 0, 1, 0])
    assert loss == 0
    np.testing.assert_array_equal(dlogits, 0)
    loss, dlogits = binary_cross_entropy(np.array([1e4, -1e4], dtype), [0, 1])
    assert loss == 1e4
    np.testing.assert_array_equal(dlogits, [0.5, -0.5])
    loss, dlogits = binary_cross_entropy(np.array([20, -20], dtype), [1, 0])
    assert loss == pytest.approx(np.log1p(np.exp(-20)), rel=near)
    np.testing.assert_allclose(dlogits, [-0.5 / (1 + np.exp(20)), 0.5 / (1 + np.exp(20))], rtol=near)
    loss, dlogits = binary_cross_entropy(np.array([np.nan, 1], dtype), [1, 1])
    assert np.isnan(loss)
    assert np.isnan(dlogits[0])


# ------------------------------------------------------------------------------------------------------ errors

X = np.ones((2, 3, 4))
ONE = np.ones(4)

BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: gelu(np.arange(3)), TypeError, "gelu: x has dtype int64, expected float32 or float64"),
    (lambda: gelu(X.astype(np.float16)), TypeError, "gelu: x has dtype float16"),
    (lambda: gelu(X[0], lengths=[1, 2]), ValueError, r"gelu: x has shape \(3, 4\), expected \(B, T, D\)"),
    (lambda: gelu(X, lengths=[1]), ValueError, r"gelu: lengths has shape \(1,\), expected \(B=2,\)"),
    (lambda: gelu(X, lengths=[1, -1]), ValueError, r"gelu: lengths\[1\] is -1"),
    (lambda: glu(X, X[:, 1:]), ValueError, r"glu: gate has shape \(2, 2, 4\)"),
    (lambda: mask_padding(X, [4, 0]), ValueError, r"mask_padding: lengths\[0\] is 4, expected .* T=3"),
    (lambda: dropout(X, 1.0, **KEY), ValueError, "dropout: rate is 1.0, expected 0 <= rate < 1"),
    (lambda: dropout(X, float("nan"), **KEY), ValueError, "dropout: rate is nan"),
    (lambda: dropout(X, 0.1, seed=-1, step=0, site=0), ValueError, "dropout: seed is -1"),
    (lambda: dropout(X, 0.1, seed=0, step=1 << 32, site=0), ValueError, "dropout: step is 4294967296"),
    (
        lambda: dropout(X, 0.1, **KEY, places=[0, 2**32 - 1]),
        ValueError,
        r"places\[1\] is 4294967295, expected an integer from 0",
    ),
    (lambda: dropout(X, 0.1, **KEY, places=[0]), ValueError, r"places has shape \(1,\), expected \(B=2,\)"),
    (
        lambda: dropout(X, 0.1, **KEY, places=[0, -1]),
        ValueError,
        r"places\[1\] is -1, expected an integer from 0 to 2\^32 - 2",
    ),
    (lambda: dropout_backward(X[0], 0.1, **KEY), ValueError, r"dropout_backward: dy has shape \(3, 4\)"),
    (lambda: batch_norm(X, ONE, ONE[:3]), ValueError, r"batch_norm: bias has shape \(3,\), expected \(D=4,\)"),
    (lambda: batch_norm(X, ONE, ONE, lengths=[0, 0]), ValueError, "batch_norm: x has no valid step"),
    (lambda: batch_norm(X[:, :0], ONE, ONE), ValueError, "batch_norm: x has no valid step"),
    (lambda: batch_norm(X[:0], ONE, ONE), ValueError, "batch_norm: x has no valid step"),
    (lambda: layer_norm(X, ONE[None], ONE), ValueError, r"layer_norm: scale has shape \(1, 4\)"),
    (lambda: embedding([[0, 4]], X[0]), ValueError, r"embedding: ids\[0, 1\] is 4, expected an integer from 0 to 2"),
    (lambda: embedding([[0], [-1]], X[0]), ValueError, r"embedding: ids\[1, 0\] is -1"),
    (lambda: embedding([[0.0]], X[0]), TypeError, "embedding: ids has dtype float64, expected int64"),
    (lambda: embedding_backward(X[:, :1], [[0], [7]], 3), ValueError, r"embedding_backward: ids\[1, 0\] is 7"),
    (lambda: embedding_backward(X, [[0], [1]], 3), ValueError, r"embedding_backward: ids has shape \(2, 1\)"),
    (lambda: mean_pool(X[0]), ValueError, r"mean_pool: x has shape \(3, 4\)"),
    (lambda: last_pool(X, lengths=[4, 1]), ValueError, r"last_pool: lengths\[0\] is 4"),
    (lambda: last_pool(X[:, :0], lengths=[0, 5]), ValueError, r"last_pool: lengths\[1\] is 5, expected .* T=0"),
    (lambda: pointwise.flip(X[0]), ValueError, r"flip: x has shape \(3, 4\), expected \(B, T, D\)"),
    (lambda: pointwise.flip("x", [1]), TypeError, "flip: x has dtype"),
    (lambda: cross_entropy(X[0], [0, 1, 4]), ValueError, r"cross_entropy: labels\[2\] is 4, expected .* 0 to 3"),
    (lambda: cross_entropy(X[0], [0, 1]), ValueError, r"cross_entropy: labels has shape \(2,\), expected \(B=3,\)"),
    (lambda: cross_entropy(X[0, :0], X[0, :0, 0].astype(int)), ValueError, r"cross_entropy: labels has shape \(0,\)"),
    (lambda: cross_entropy(X, [[0, -1, 4], [0, 0, 0]], ignored=-1), ValueError, r"labels\[0, 2\] is 4, expected"),
    (lambda: cross_entropy(X[0], [-1, -1, -1], ignored=-1), ValueError, "labels has none that counts, .* not -1"),
    (lambda: cross_entropy(X[0], [0, 1, 2], ignored=0.5), ValueError, "cross_entropy: ignored is 0.5, expected"),
    (lambda: binary_cross_entropy(ONE, [0, 1, -1, 1]), ValueError, r"labels\[2\] is -1, expected .* from 0 to 1"),
    (
        lambda: cross_entropy(np.zeros((2, 3)), [1, -100]),
        ValueError,
        r"labels\[1\] is -100, expected an integer from 0 to 2; `ignored` names a label that does not count$",
    ),
    (
        lambda: cross_entropy(np.zeros((2, 3)), [1, -100], ignored=-1),
        ValueError,
        r"labels\[1\] is -100, expected an integer from 0 to 2, or -1 for a label that does not count$",
    ),
    (lambda: binary_cross_entropy(ONE, [0, 1]), ValueError, r"labels has shape \(2,\), expected \(n=4,\)"),
    (
        lambda: binary_cross_entropy(ONE[:0], np.zeros(0, int)),
        ValueError,
        r"labels has shape \(0,\), expected at least",
    ),
    (lambda: cross_entropy(np.ones((2, 0)), [0, 0]), ValueError, r"cross_entropy: labels\[0\] is 0"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_every_public_function_says_what_it_does() -> None:
    for name, value in vars(pointwise).items():
        if callable(value) and not name.startswith("_") and value.__module__ == pointwise.__name__:
            assert value.__doc__, name


@pytest.mark.filterwarnings("error")
def test_the_mean_of_squares_that_float32_does_not_have() -> None:
    loss, dpredictions = mean_squared_error(np.full(4, 1e30, np.float32), np.zeros(4, np.float32))
    assert loss == float(np.float32(1e30)) ** 2
    assert dpredictions.tolist() == [float(np.float32(5e29))] * 4
    assert mean_squared_error(np.full(4, 1e200), np.zeros(4))[0] == np.inf
