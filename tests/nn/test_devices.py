"""One door: everything runs on a device whose arrays refuse every silent conversion (strict.py)."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rotrnn
from cases import ON_DEVICES
from cases.device import check_case
from cases.table import Case
from rotrnn import Context
from rotrnn.devices.device import KEPT_FROM, concatenate, contiguous, is_plain, pooled
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn import LAYERS
from rotrnn.nn.layer import flatten, unflatten
from small_models import training_step
from strict import STRICT, SilentConversion, StrictArray, counted, to_device, to_host

EPS = np.finfo(np.float64).eps


@pytest.mark.parametrize("case", ON_DEVICES, ids=lambda case: case.name)
def test_a_case_runs_on_the_device(case: Case) -> None:
    """Forward and backward give the CPU's results, to rounding: NumPy's loops depend on where arrays lie."""
    check_case(case, contextlib.nullcontext())


STEP = {
    "nn/module.py: Module.check_params": 1,  # whether all parameters are finite
    "ops/pointwise.py: check_indices": 3,  # whether tokens (forward and backward) and labels are in range
    "ops/pointwise.py: cross_entropy": 1,  # the loss
    "devices/device.py: to_host": 3,  # norms of all gradients, of all that was updated, and of buffers
}
"""The synchronisations of a training step, for any number of parameters and layers."""


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_training_step_runs_on_the_device(layer: str, fused: bool) -> None:
    """Of every layer, ragged, with dropout; its synchronisations are few, and none is of a parameter."""
    lengths = np.array([9, 4, 0])
    ctx = Context(lengths, train=True, seed=5, step=3, fused=fused)
    logits, params = training_step(layer, ctx, False, 2, dropout=0.1)
    with counted() as seen:
        logits_there, params_there = training_step(layer, ctx, True, 2, dropout=0.1)
    waits = dict(seen)
    steps = waits.pop("devices/device.py: to_host")
    iterates = hasattr(LAYERS[layer], "max_iterations")
    assert waits == {name: count for name, count in STEP.items() if name != "devices/device.py: to_host"}
    assert steps >= STEP["devices/device.py: to_host"] if iterates else steps == STEP["devices/device.py: to_host"]
    np.testing.assert_allclose(to_host(logits_there), logits, rtol=1e-9, atol=1e-9)
    for (name, got), (_, expected) in zip(flatten(params_there), flatten(params), strict=True):
        np.testing.assert_allclose(to_host(got), expected, rtol=1e-9, atol=1e-9, err_msg=name)


def test_synchronisations_do_not_grow_with_the_model() -> None:
    counts = []
    for n_layers in (1, 4):
        with counted() as seen:
            training_step("lru", Context(train=True), True, n_layers)
        counts.append(dict(seen))
    assert counts[0] == counts[1] == STEP


def test_arrays_of_two_devices_are_an_error_that_names_both() -> None:
    a, x = np.full(3, 0.5), np.ones((2, 4, 3))
    with pytest.raises(TypeError, match=r"diagonal_scan: a is on the CPU \(ndarray\) and x on the strict device"):
        rotrnn.ops.diagonal_scan(a, to_device(x))
    with pytest.raises(TypeError, match=r"diagonal_scan: a is on the strict device \(StrictArray\) and x on the CPU"):
        rotrnn.ops.diagonal_scan(to_device(a), x)
    with pytest.raises(TypeError, match="diagonal_scan: out is on the CPU and x on the strict device"):
        rotrnn.ops.diagonal_scan(to_device(a), to_device(x), out=x.copy())
    layer = rotrnn.LRU(3, 4)
    params = layer.init(np.random.default_rng(0))
    with pytest.raises(TypeError, match="on the strict device"):
        layer.forward(params, to_device(x))


def test_the_test_device_refuses_what_a_device_would() -> None:
    """A stand-in that let things through would prove nothing."""
    x, plain = to_device(np.ones(3)), np.ones(3)
    for attempt in (
        lambda: np.asarray(x),
        lambda: x + plain,
        lambda: plain + x,
        lambda: np.concatenate([x, plain]),
        lambda: x.__setitem__(0, plain[:1]),
        lambda: x[np.array([0, 1])],
        lambda: STRICT.kernels.copy(y=plain, x=x, n=3),
    ):
        with pytest.raises(SilentConversion):
            attempt()
    with counted() as seen:
        assert float(x.sum()) == 3
        assert bool(x[0])
        assert isinstance(x * 2, StrictArray)
    assert sum(seen.values()) == 2


def test_an_array_without_an_address_may_be_plain() -> None:
    """One of a backend of one's own has NumPy's functions, and need not have CuPy's `data.ptr`."""
    for plain in (True, False):
        array: Any = SimpleNamespace(flags=SimpleNamespace(c_contiguous=plain))
        assert is_plain(array) is plain


def test_nested_parameters_come_back() -> None:
    params = {"a": {"b": np.arange(3.0)}, "c": np.ones(2)}
    again = to_host(to_device(params))
    assert unflatten(dict(flatten(again))).keys() == params.keys()
    np.testing.assert_array_equal(again["a"]["b"], params["a"]["b"])


@pytest.mark.parametrize("head", ["classifier", "multilabel", "tagger", "bits", "regressor", "step_regressor"])
def test_weights_of_sequences_are_taken_on_the_device(head: str) -> None:
    rng, weights = np.random.default_rng(0), np.array([0.5, 3.0, 1.0, 0.25])
    model = build_model(ModelSettings("lru", 5, 1), {"d_state": 3}, head=head, n_classes=3, n_features=2)
    per_step = head in ("tagger", "bits", "step_regressor")
    lengths, shape = (np.array([9, 4, 1, 6]), (4, 9)) if per_step else (None, (4,))
    logits = rng.standard_normal((*shape, 3))
    labels = rng.integers(0, 2, shape if head in ("classifier", "tagger") else (*shape, 3))
    given: Any = labels.astype(np.float64) if "regressor" in head else labels
    here = model.loss(logits, given, lengths, weights)
    there = model.loss(to_device(logits), to_device(given), lengths, to_device(weights))
    assert abs(there.mean - here.mean) <= 100 * EPS * here.mean
    np.testing.assert_allclose(to_host(there.dlogits), here.dlogits, rtol=0, atol=16 * EPS)


@pytest.mark.parametrize("rows", [0, 1, KEPT_FROM // 32, KEPT_FROM // 32 + 1])
def test_results_in_kept_memory(rows: int) -> None:
    """The numbers, dtype and shape of NumPy's, on both sides of the size from which memory is kept."""
    rng = np.random.default_rng(rows)
    for left, right in [(np.float32, np.float32), (np.float32, np.float64), (np.complex64, np.float32)]:
        z, x = rng.standard_normal((rows, 8)).astype(left), rng.standard_normal(8).astype(right)
        ones = np.ones((rows, 8), right)
        for got, expected in [
            (pooled(np.add, x, z), x + z),
            (pooled(np.subtract, z, z), z - z),
            (pooled(np.multiply, -0.5, z), -0.5 * z),
            (pooled(np.subtract, 1, z), 1 - z),
            (concatenate([z, ones]), np.concatenate([z, ones], -1)),
            (concatenate([z, z], -2), np.concatenate([z, z])),
            (contiguous(z.T), z.T),
            (contiguous(z), z),
        ]:
            assert got.dtype == expected.dtype
            assert got.flags.c_contiguous
            np.testing.assert_array_equal(got, expected)
    masked = np.ma.masked_array(np.ones((rows, 8)), np.eye(rows, 8))  # a subclass adds by its own rules
    assert isinstance(pooled(np.add, masked, np.ones((rows, 8))), np.ma.MaskedArray)
