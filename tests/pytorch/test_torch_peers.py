"""PyTorch's own layers, losses and optimiser beside the ones here that say they are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import rotrnn
import rotrnn.torch

D = 7
LENGTHS = 3, 1, 11, 1, 6
STEP = 16 * 2 * D
"""Roundings of a step: sums of 2 D numbers below one, and a factor of 16 for gates and what a step passes on."""


def pair(kind: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """A layer of PyTorch, and the layer here with its weights. Both have one order of gates."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(D, D, batch_first=True, dtype=dtype)
    ours = getattr(rotrnn.torch, kind)(D, d_state=D, projection=False).to(dtype)
    given = {name.removesuffix("_l0"): one.detach().clone() for name, one in theirs.named_parameters()}
    if kind == "LSTM":
        given["bias"] = given.pop("bias_ih") + given.pop("bias_hh")
    ours.load_state_dict(given)
    return theirs, ours


def as_tuple(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


def near(got: Any, expected: Any, terms: float) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=terms * torch.finfo(expected.dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_packed_sequence_is_read_as_by_the_layer_of_pytorch(kind: str, dtype: torch.dtype) -> None:
    """Sequences in no order of length, two of one step: outputs, states, gradients, and the next chunk from there."""
    theirs, ours = pair(kind, dtype)
    parts = [torch.randn(n, D, dtype=dtype) for n in LENGTHS]
    found = []
    for net in (ours, theirs):
        own = [one.clone().requires_grad_() for one in parts]
        row = pack_sequence(own, enforce_sorted=False)
        y, state = net(row, return_state=True) if net is ours else net(row)
        state = tuple(one if net is ours else one[0] for one in as_tuple(state))
        before = state if net is ours else tuple(one[None] for one in state)
        given = before if len(before) == 2 else before[0]
        later = net(row, state=given) if net is ours else net(row, given)[0]
        (y.data.square().sum() + later.data.sum()).backward()
        grads = [one.grad for one in own] + [net.get_parameter(f"weight_ih{'' if net is ours else '_l0'}").grad]
        found.append(([y.data, later.data, *state], grads))
    for got, expected in zip(found[0][0], found[1][0], strict=True):
        near(got, expected, 2 * max(LENGTHS) * STEP)
    for got, expected in zip(found[0][1], found[1][1], strict=True):  # sums over the steps of all sequences
        near(got, expected, 2 * max(LENGTHS) * STEP * 2 * sum(LENGTHS))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_nested_tensor_is_read_as_its_sequences_by_the_layer_of_pytorch(kind: str) -> None:
    """PyTorch's layers take none. A sequence may be empty, which a PackedSequence may not."""
    theirs, ours = pair(kind, torch.float64)
    parts = [torch.randn(n, D, dtype=torch.float64) for n in (*LENGTHS, 0)]
    y, state = ours(torch.nested.nested_tensor(parts, layout=torch.jagged), return_state=True)
    *read, empty = y.unbind()
    assert empty.shape == (0, D)
    for b, (got, one) in enumerate(zip(read, parts, strict=False)):
        expected, after = theirs(one[None])
        near(got, expected[0], max(LENGTHS) * STEP)
        for leaf, own in zip(as_tuple(state), as_tuple(after), strict=True):
            near(leaf[b], own[0, 0], max(LENGTHS) * STEP)
    assert not any(leaf[-1].any() for leaf in as_tuple(state))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (4, 3)], ids=str)
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "shares"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_pytorch(soft: bool, smoothing: float, shape: tuple[int, ...], dtype: Any) -> None:
    """With weights of classes and of samples; PyTorch has weights of samples by its terms alone. A loss of terms up to
    ten rounds some ten times, and its gradient, below one, too."""
    rng, C = np.random.default_rng(0), 6
    logits = (3 * rng.standard_normal((*shape, C))).astype(dtype)
    labels: Any = rng.integers(0, C, shape)
    if soft:
        labels = rng.dirichlet(np.ones(C), shape).astype(dtype)
    weights, samples = rng.uniform(0, 2, C).astype(dtype), rng.uniform(0, 2, shape).astype(dtype)
    samples.flat[1] = 0
    for of_classes, of_samples in ((None, None), (weights, None), (None, samples), (weights, samples)):
        loss, dlogits = rotrnn.ops.cross_entropy(
            logits, labels, weights=of_classes, sample_weights=of_samples, label_smoothing=smoothing
        )
        z = torch.tensor(logits, requires_grad=True)
        flat = torch.tensor(labels).reshape(-1, C) if soft else torch.tensor(labels).ravel()
        terms = torch.nn.functional.cross_entropy(
            z.reshape(-1, C), flat, weight=None if of_classes is None else torch.tensor(of_classes),
            label_smoothing=smoothing, reduction="none",
        )  # fmt: skip
        whole = (terms * torch.tensor(np.ones(shape, dtype) if of_samples is None else of_samples).ravel()).mean()
        whole.backward()
        eps = float(np.finfo(dtype).eps)
        assert loss == pytest.approx(whole.item(), abs=16 * 10 * eps)
        np.testing.assert_allclose(dlogits, z.grad, rtol=0, atol=16 * eps)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_are_those_of_sgd_of_pytorch(momentum: float, decay: float) -> None:
    """Ten updates, at the rates that the schedule gives, of some roundings each of numbers below 8."""
    rng, steps = np.random.default_rng(1), 10
    start = {"a": rng.standard_normal((3, 5)), "b": rng.standard_normal(4)}
    optimiser = rotrnn.SGD(lr=0.05, momentum=momentum, weight_decay=decay, schedule="cosine", warmup=0.2)
    params = {name: one.copy() for name, one in start.items()}
    moments, group_of = optimiser.init(params), optimiser.grouping(lambda name: False)
    theirs = {name: torch.tensor(one, requires_grad=True) for name, one in start.items()}
    other = torch.optim.SGD(list(theirs.values()), lr=1.0, momentum=momentum, weight_decay=decay)
    for step in range(steps):
        grads = {name: rng.standard_normal(one.shape) for name, one in start.items()}
        optimiser.update(params, {name: one.copy() for name, one in grads.items()}, moments, group_of, step, steps)
        rate = rotrnn.learning_rate(step, steps, peak=0.05, warmup=0.2, floor=optimiser.floor, schedule="cosine")
        for group in other.param_groups:
            group["lr"] = rate
        for name, one in theirs.items():
            one.grad = torch.tensor(grads[name])
        other.step()
    for name, one in theirs.items():
        np.testing.assert_allclose(params[name], one.detach(), rtol=0, atol=steps * 8 * 8 * 2**-52)
