"""A training step of every layer on the CUDA kernels, in the harness; and which of them are recorded as one graph."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest

import fake_cupy
from cuda_harness import on_harness
from rotrnn import Bedouin, Context, FixedPointRNN
from rotrnn.devices import cuda
from rotrnn.devices.recording import NotRecordable, RecordedLengths, Recording, recorded
from rotrnn.nn import LAYERS
from rotrnn.nn.layer import astype, flatten, moved
from rotrnn.ops.random import philox
from small_models import CLASSES, B, T, classifier, training_step
from strict import to_device, to_host

pytestmark = pytest.mark.whole

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_training_step_on_the_cuda_kernels(layer: str, fused: bool, seed: int) -> None:
    ctx = Context(np.array([9, 4, 0]), train=True, seed=5, step=3, fused=fused)
    logits, params = training_step(layer, ctx, False, 2, dropout=0.1)
    with on_harness(seed):
        logits_there, params_there = training_step(layer, ctx, True, 2, dropout=0.1)
    np.testing.assert_allclose(to_host(logits_there), logits, rtol=1e-9, atol=1e-9)
    for (name, got), (_, expected) in zip(flatten(params_there), flatten(params), strict=True):
        np.testing.assert_allclose(to_host(got), expected, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("layer", ["lru", "delta_net"])
def test_packed_rows_on_the_cuda_kernels(layer: str) -> None:
    """Of a layer that is unpacked as a whole, and of a program."""
    model = classifier(layer, 2)
    rng = np.random.default_rng(0)
    params, tokens = astype(model.init(rng), np.float64), rng.integers(0, 5, (1, T))
    ctx = Context(train=True, cu_seqlens=np.array([0, 1, 1, T]))
    logits, saved = model.forward(params, tokens, ctx)
    dlogits = rng.standard_normal(logits.shape)
    grads = dict(flatten(model.backward(params, saved, dlogits)))
    with on_harness(SEEDS[0]):
        there = to_device(params)
        logits_there, saved = model.forward(there, to_device(tokens), ctx)
        grads_there = dict(flatten(model.backward(there, saved, to_device(dlogits))))
    np.testing.assert_allclose(to_host(logits_there), logits, rtol=1e-9, atol=1e-9)
    for name, expected in grads.items():
        np.testing.assert_allclose(to_host(grads_there[name]), expected, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Bedouin(4, d_state=3, solver="direct"), "selective_solve: there is no kernel for these arguments"),
        (
            FixedPointRNN(4, 4, mixer="kronecker", solver="direct"),
            "depth_solve: there is no kernel for these arguments",
        ),
        (
            FixedPointRNN(4, 4, mixer="orthogonal", solver="direct"),
            "FixedPointRNN: solver='direct' with mixer='orthogonal'",
        ),
        (
            FixedPointRNN(4, 4, mixer="mixture", rank=2, solver="direct"),
            "FixedPointRNN: solver='direct' with mixer='mix",
        ),
    ],
)
def test_an_op_without_a_kernel_says_so(layer: Any, message: str) -> None:
    params, x = to_device(layer.init(np.random.default_rng(0))), to_device(np.ones((1, 2, 4), np.float32))
    with (
        on_harness(SEEDS[0]),
        pytest.raises(NotImplementedError, match=message),
    ):
        layer.forward(params, x)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_forward_and_backward_are_recorded(layer: str, ragged: bool) -> None:
    """What is recorded gives, for other tokens and lengths, what those would give."""
    model = classifier(layer, 2, dropout=0.1)
    rng = np.random.default_rng(1)
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    batches = [(rng.integers(0, 5, (B, T)), rng.integers(0, CLASSES, B), rng.integers(1, T + 1, B)) for _ in range(3)]
    with fake_cupy.gpu():
        device = cuda.device()
        there = moved(params, device)
        tokens, labels, lengths = map(device.asarray, batches[0])
        counter = device.asarray(np.zeros(1, np.int64))

        def work() -> Any:
            ctx = Context(RecordedLengths(lengths, T) if ragged else None, train=True, seed=5)
            logits, saved = model.forward(there, tokens, ctx)
            loss = model.loss(logits, labels)
            grads = dict(flatten(model.backward(there, saved, loss.dlogits)))
            return functools.reduce(lambda *two: np.concatenate(two), [one.reshape(-1) for one in grads.values()])

        graph = cuda.Recorded(work, counter)
        for step, (own_tokens, own_labels, own_lengths) in enumerate(batches):
            if ragged:
                own_tokens = np.where(np.arange(T) < own_lengths[:, None], own_tokens, 0)
            got = graph.repeat((tokens, own_tokens), (labels, own_labels), (lengths, own_lengths), (counter, [step]))
            ctx = Context(own_lengths if ragged else None, train=True, seed=5, step=step)
            logits, saved = model.forward(params, own_tokens, ctx)
            grads = dict(flatten(model.backward(params, saved, model.loss(logits, own_labels).dlogits)))
            expected = np.concatenate([grads[name].reshape(-1) for name in grads])
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_packed_rows_are_not_recorded() -> None:
    """A graph would always have the bounds of the first batch."""
    params = LAYERS["lru"](4, 3).init(np.random.default_rng(0))
    ctx = Context(cu_seqlens=np.array([0, 1, 4]))
    with recorded(Recording()), pytest.raises(NotRecordable, match="the numbers of cu_seqlens are read on the host"):
        LAYERS["lru"](4, 3).forward(params, np.zeros((1, 4, 4), np.float32), ctx)


def test_random_numbers_of_the_host_are_not_recorded() -> None:
    """They would be the same ones each time."""
    with recorded(Recording()), pytest.raises(NotRecordable, match="random numbers are drawn on the host"):
        philox(np.zeros((1, 4), np.int64), 0)
