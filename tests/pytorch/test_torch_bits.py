"""A module computes what its core does: outputs, states, gradients and running statistics have the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modules import by_itself, differentiable, input_of, lengths_of, moved, same_bits

from cores import CORES
from rotrnn.models.call import form_of, leaves_of

pytestmark = pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")


def scaled(value: Any) -> Any:
    """A gradient of an output: a function of its values, the same for arrays and tensors."""
    return 0.5 * value + 0.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", CORES)
def test_a_module_has_the_bits_of_its_core(name: str, train: bool, ragged: bool, dtype: torch.dtype) -> None:
    core = CORES[name]
    net, x = moved(core, dtype).train(train), input_of(core, dtype)
    lengths = lengths_of(core) if ragged and x.ndim > 1 else None
    torch.manual_seed(5)
    key = torch.randint(2**32, (2,)) if train else None
    y, _, grads = by_itself(net, x, lengths, None, key, scaled)
    torch.manual_seed(5)
    x.requires_grad_(x.is_floating_point())
    got = net(x, lengths)
    got.backward(scaled(got.detach()))
    same_bits(got, y, "y")
    found = {**{name: one.grad for name, one in net.named_parameters()}, **dict(net.named_buffers())}
    assert {*found, "x"} == {*grads}
    for name, one in found.items():
        same_bits(one, grads[name], name)
    if x.requires_grad:
        same_bits(x.grad, grads["x"], "x")


@pytest.mark.parametrize("name", [name for name, core in CORES.items() if form_of(core) is not None])
def test_a_state_goes_in_and_out(name: str) -> None:
    """And its gradient, with and without that of y."""
    core = CORES[name]
    net, x = moved(core).eval(), input_of(core)
    with torch.no_grad():
        _, state = net(input_of(core, seed=9), lengths_of(core), return_state=True)
    leaves = leaves_of(form_of(core), state)
    for one in differentiable(leaves):
        one.requires_grad_()
    y, after, grads = by_itself(net, x, None, state, None, scaled, scaled)
    got, new = net(x, state=state, return_state=True)
    new = leaves_of(form_of(core), new)
    same_bits(got, y, "y")
    for i, (one, expected) in enumerate(zip(new, after, strict=True)):
        same_bits(one, expected, f"after {i}")
    torch.autograd.backward([got, *differentiable(new)], [scaled(one.detach()) for one in (got, *differentiable(new))])
    for i, one in enumerate(leaves):
        if one.requires_grad:
            same_bits(one.grad, grads[f"state.{i}"], f"state {i}")
    for name, one in net.named_parameters():
        same_bits(one.grad, grads[name], name)
