"""torch.func and forward mode: gradients of functions of a module, a mapped axis, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modules import input_of, moved
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

from cores import CORES, SMALL

pytestmark = pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")


@pytest.mark.parametrize("name", SMALL)
def test_vjp_has_the_bits_of_autograd(name: str) -> None:
    net, x = moved(SMALL[name]).eval(), input_of(SMALL[name])
    params = dict(net.named_parameters())

    def function(given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, given, (x,))

    y, back = vjp(function, params, x)
    dy = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    dparams, dx = back(dy)
    x.requires_grad_()
    expected = torch.autograd.grad(net(x), [x, *params.values()], dy)
    for got, one in zip([dx, *dparams.values()], expected, strict=True):
        assert torch.equal(got, one)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_each_sample(name: str) -> None:
    """vmap of grad: the gradients of the parameters for each of three batches, as one call for each gives them."""
    net = moved(SMALL[name]).eval()
    every = torch.stack([input_of(SMALL[name], seed=seed) for seed in range(3)], 1)
    params = dict(net.named_parameters())

    def loss(given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, given, (x,)).square().sum()

    found = vmap(grad(loss), (None, 1))(params, every)
    for i, x in enumerate(every.unbind(1)):
        expected = torch.autograd.grad(net(x).square().sum(), list(params.values()))
        for got, one in zip(found.values(), expected, strict=True):
            assert torch.equal(got[i], one)


@pytest.mark.parametrize("name", CORES)
def test_vmap_over_an_axis_of_x(name: str) -> None:
    net = moved(CORES[name], torch.float32).eval()
    every = torch.stack([input_of(CORES[name], torch.float32, seed) for seed in range(3)], 1)
    found = vmap(net, 1)(every)
    for got, x in zip(found, every.unbind(1), strict=True):
        assert torch.equal(got, net(x))


def test_vmap_over_an_empty_axis() -> None:
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])
    assert vmap(net)(x[None][:0]).shape == (0, *net(x).shape)
    assert vmap(grad(lambda x: net(x).sum()))(x[None][:0]).shape == (0, *x.shape)


def test_numbers_that_decide_what_runs_are_not_mapped() -> None:
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])
    cuts = torch.zeros(*x.shape[:2], dtype=torch.bool)
    with pytest.raises(TypeError, match=r"^LRU.forward: reset has no numbers on the host, expected .* with lengths$"):
        vmap(lambda x, reset: net(x[None], reset=reset[None]))(x, cuts)


@pytest.mark.parametrize(
    "given",
    [{"cu_seqlens": [0, 4, 7]}, {"reset": torch.tensor([[False, True, False, False, True, False, False]])}],
    ids=str,
)
def test_gradients_of_a_packed_row(given: dict[str, Any]) -> None:
    """Within `grad` a tensor has no storage that NumPy could read, and its numbers are known all the same."""
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])[:1, :7]
    params = dict(net.named_parameters())
    found = grad(lambda params: functional_call(net, params, (x,), given).square().sum())(params)
    expected = torch.autograd.grad(net(x, **given).square().sum(), list(params.values()))
    for got, one in zip(found.values(), expected, strict=True):
        assert torch.equal(got, one)


def test_vmap_in_training_mode() -> None:
    """Without dropout as in evaluation; the statistics of batch norm belong to the whole."""
    net, x = moved(CORES["lru"]).train(), input_of(CORES["lru"])
    assert torch.equal(vmap(net)(x[None])[0], net(x))
    normed, every = moved(CORES["stack"]).train(), torch.stack([x, 2 * x])
    with pytest.raises(
        RuntimeError, match=r"^ResidualStack\.forward: got batch norm in training mode within vmap, .*net"
    ):
        vmap(normed)(every)
    buffers = {name: torch.stack([one, one]) for name, one in normed.named_buffers()}
    found = vmap(lambda buffers, x: functional_call(normed, buffers, (x,)))(buffers, every)
    assert torch.equal(found[1], normed(every[1]))
    for name, one in normed.named_buffers():
        assert torch.equal(buffers[name][1], one)


def test_a_mapped_module_has_gradients() -> None:
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])
    every = torch.stack([x, 2 * x]).requires_grad_()
    found = torch.autograd.grad(vmap(net)(every).square().sum(), [every, *net.parameters()])
    expected = torch.autograd.grad(torch.stack([net(one) for one in every]).square().sum(), [every, *net.parameters()])
    for got, one in zip(found, expected, strict=True):
        assert torch.equal(got, one)


def test_the_jacobian() -> None:
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])
    assert torch.equal(jacrev(net)(x), torch.autograd.functional.jacobian(net, x))


def test_a_compiled_gradient_beside_parameters_that_require_one() -> None:
    """PyTorch then records it for a second one. The error says what to do instead."""
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, params, (x,)).square().sum()

    torch.compiler.reset()
    found = torch.compile(grad(loss, 1), backend="aot_eager")
    with pytest.raises(RuntimeError, match=r"within torch\.compile, .* pass detached ones by functional_call"):
        found(dict(net.named_parameters()), x)
    detached = {name: one.detach() for name, one in net.named_parameters()}
    assert torch.equal(found(detached, x), grad(loss, 1)(detached, x))


def test_second_derivatives_and_forward_mode_are_refused() -> None:
    """In each way they can be asked for; none returns zeros."""
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return net(x).square().sum()

    with pytest.raises(RuntimeError, match=r"a gradient of a gradient was asked for .* expected first derivatives"):
        grad(lambda x: grad(loss)(x).sum())(x)
    forward = r"forward-mode derivatives .* expected reverse mode: torch\.autograd\.grad, torch\.func\.vjp"
    with pytest.raises(RuntimeError, match=forward):
        jvp(loss, (x,), (x,))
    with pytest.raises(RuntimeError, match="derivatives"):
        jvp(lambda x: grad(lambda d: loss(x + d))(torch.zeros_like(x)), (x,), (x,))
    with pytest.raises(RuntimeError, match="a gradient of a gradient"):
        grad(loss)(x.requires_grad_()).sum().backward()
    x.requires_grad_(False)
    with forward_ad.dual_level():
        with pytest.raises(RuntimeError, match=forward):
            net(forward_ad.make_dual(x, x))
        assert torch.equal(net(x), net(x.clone()))  # what has no tangent is let through
    with pytest.raises((RuntimeError, NotImplementedError), match="jvp"):
        hessian(loss)(x)
