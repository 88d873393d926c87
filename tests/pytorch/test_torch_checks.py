"""PyTorch's own checks of every core: gradcheck, opcheck, and torch.compile without a graph break."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from modules import B, T, differentiable, input_of, lengths_of, moved
from torch.func import functional_call

import rotrnn
from cores import CORES, SMALL, D
from rotrnn.devices.cuda import DeviceError
from rotrnn.models.call import Call, Inputs, describe, filled, form_of, leaves_of, parse
from rotrnn.nn.layer import flatten
from rotrnn.nn.saved import Shape
from rotrnn.ops.boundary import CheckedLengths
from rotrnn.torch import ops
from rotrnn.torch.ops import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore::rotrnn.nn.fixed_points.iteration.NotConverged")


@pytest.mark.parametrize("name", SMALL)
def test_gradcheck(name: str) -> None:
    """By x, the parameters and the state, of a ragged batch.

    Along random directions. Central differences of step 1e-6 err by its square and by rounding, 1e-16 / 1e-6; fixed
    points, which stop at a residual of 1e-12, by 1e-12 / 1e-6. gradcheck allows 1e-5.
    """
    core = SMALL[name]
    net, x, form = moved(core).train(), input_of(core).requires_grad_(), form_of(core)
    leaves: list[Any] = []
    if form is not None:
        with torch.no_grad():
            leaves = leaves_of(form, net(input_of(core, seed=9), return_state=True)[1])
    params = dict(net.named_parameters())
    for one in getattr(core, "estimated", ()):  # a gradient straight through a choice is no derivative
        {**params, "x": x}[one].requires_grad_(False)

    def forward(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)  # the same dropout
        state = filled(form, rest[: len(leaves)]) if leaves else None
        given = dict(zip(params, rest[len(leaves) :], strict=True))
        found = functional_call(net, given, (x, lengths_of(core), state), {"return_state": bool(leaves)})
        return (found[0], *differentiable(leaves_of(form, found[1]))) if leaves else found

    for one in differentiable(leaves):
        one.requires_grad_()
    assert torch.autograd.gradcheck(forward, (x, *leaves, *params.values()), fast_mode=True)


def given(name: str, train: bool) -> tuple[Any, ...]:
    """The arguments of the op for a core. Nothing is padding: opcheck compares all outputs, and where something is
    padding, what was saved is never written, nor read."""
    core = CORES[name]
    net, x = moved(core, torch.float32).train(train), input_of(core, torch.float32)
    tensors = dict(net.state_dict(keep_vars=True))
    call = parse(net._text)
    key = torch.tensor([3, 4]) if train else None
    params = [tensors[name] for name in call.names]
    lengths = torch.full_like(lengths_of(core), T)
    return (
        x.requires_grad_(x.is_floating_point()),
        params,
        [],
        lengths,
        None,
        key,
        call.form is not None,
        True,
        net._text,
    )


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", [name for name in CORES if name not in ("embedding",)])
def test_opcheck(name: str, train: bool) -> None:
    """Schema, autograd's registration, fake tensors, and tracing with sizes held open."""
    torch.library.opcheck(ops.forward, given(name, train))


@pytest.mark.parametrize("name", ["s4d", "s5"])
def test_opcheck_with_intervals(name: str) -> None:
    x, params, state, lengths, _, *rest = given(name, False)
    torch.library.opcheck(ops.forward, (x, params, state, lengths, torch.rand(B, T), *rest))


@pytest.mark.parametrize("name", CORES)
def test_opcheck_of_backward(name: str) -> None:
    args = given(name, True)
    with torch.no_grad():
        outputs = ops.forward(*args)
    x, params, *rest, _, text = args
    call = parse(text)
    kept = [outputs[i] for i in ops._plan((x, params, *rest), text)[0].kept]
    plain = x.detach(), [one.detach() for one in params], *rest
    torch.library.opcheck(ops.backward, (torch.ones_like(outputs[0]), [None] * len(call.leaves), *plain, kept, text))


@pytest.mark.parametrize("name", CORES)
def test_compile_in_one_graph(name: str) -> None:
    """The bits of the eager module, of outputs, states and gradients, in training."""
    core = CORES[name]
    net, x = moved(core, torch.float32).train(), input_of(core, torch.float32)
    lengths, after = lengths_of(core) if x.ndim > 1 else None, form_of(core) is not None
    torch.compiler.reset()
    found = []
    for one in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        net.zero_grad()
        here = x.clone().requires_grad_(x.is_floating_point())
        torch.manual_seed(4)
        y = one(here, lengths, return_state=after)
        outputs = [y[0], *differentiable(leaves_of(form_of(core), y[1]))] if after else [y]
        torch.autograd.backward(outputs, [torch.ones_like(out) for out in outputs])
        found.append([*outputs, here.grad, *(param.grad for param in net.parameters())])
    for got, expected in zip(*found, strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            np.testing.assert_array_equal(got.detach().numpy(), expected.detach().numpy(), strict=True)


def test_a_packed_row_breaks_the_graph() -> None:
    net, x = moved(CORES["lru"]).eval(), input_of(CORES["lru"])[:1]
    row = {"cu_seqlens": torch.tensor([0, 2, x.shape[1]])}
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="pass padded batches with lengths"):
        torch.compile(net, fullgraph=True, backend="aot_eager")(x, **row)
    torch.compiler.reset()
    assert torch.equal(torch.compile(net, backend="aot_eager")(x, **row), net(x, **row))


def test_compile_by_inductor_of_a_network_around_a_layer() -> None:
    """The default backend, with PyTorch's own layers before and after, at two lengths; close, because inductor fuses
    these: sums of up to 64 products in float32, whose sizes are near one."""
    torch.manual_seed(0)
    torch.compiler.reset()
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 8), moved(CORES["rnn"].__class__(8, 4), torch.float32), torch.nn.GELU()
    )
    fast = torch.compile(net, fullgraph=True)
    for steps in (5, 9):
        x = torch.randn(2, steps, 3)
        grads = []
        for one in (net, fast):
            net.zero_grad()
            y = one(x)
            y.square().sum().backward()
            grads.append([y.detach(), *(param.grad for param in net.parameters())])
        for got, expected in zip(*grads, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("free", [(True, True), (False, True)], ids=["both", "steps"])
@pytest.mark.parametrize("name", CORES)
def test_the_sizes_of_outputs_follow_from_open_numbers(name: str, free: tuple[bool, bool]) -> None:
    """As those of a forward at other numbers of sequences and steps than the rules are from."""
    call = parse(describe(CORES[name], "float32"))
    x, *_ = given(name, True)
    leaves = dict(flatten(CORES[name].init(np.random.default_rng(0))))
    params = tuple(Shape(leaves[one].shape, leaves[one].dtype) for one in call.names)

    def forms(batch: int, steps: int) -> Inputs:
        sizes = list(x.shape)
        sizes[0], sizes[call.time_axis] = batch, steps
        after = call.form is not None
        return Inputs(Shape(tuple(sizes), DTYPES[x.dtype]), params, (), None, None, None, after, "cpu")

    found = call.open_plan(forms(4, 0), *free)
    assert found is not None
    for batch, steps in ((4, 2), (4, 33), (4, 97), (4, 200), *(((7, 50),) if free[0] else ())):
        plan = call.plan(forms(batch, steps))
        assert plan.kept == found[0].kept
        for form, fixed, sizes in zip(plan.forms, found[0].forms, found[1], strict=True):
            assert form.dtype == fixed.dtype
            shape = fixed.shape if sizes is None else tuple(size.at(batch, steps) for size in sizes)
            assert form.shape == shape


@pytest.mark.parametrize("name", CORES)
def test_a_plan_says_which_outputs_stay_on_the_host(name: str) -> None:
    """On a GPU, where the shapes alone (FakeTensor) are to have the devices of the outputs."""
    core = CORES[name]
    net, x = moved(core, torch.float32), input_of(core, torch.float32)
    call, (lengths,) = parse(net._text), (lengths_of(core),)
    params = tuple(one.detach().numpy() for one in net.state_dict(keep_vars=True).values())
    outputs, plan = call.forward(Inputs(x.numpy(), params, (), np.asarray(lengths), None, None, False, "cpu"))
    assert list(plan.host) == [i for i, one in enumerate(outputs) if isinstance(one, CheckedLengths)]
    assert set(plan.host) <= set(plan.kept)


def test_on_a_gpu_memory_is_of_the_pool_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for CuPy and for torch.cuda: the calls that both are to see. No GPU is here."""
    calls: list[Any] = []

    @contextlib.contextmanager
    def within(*what: Any) -> Iterator[None]:
        calls.append(what)
        yield

    class PythonFunctionAllocator:
        def __init__(self, take: Any, give: Any) -> None:
            self.malloc = take, give

    stream = SimpleNamespace(device_index=1, cuda_stream=77)
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        Device=functools.partial(within, "device"),
        ExternalStream=functools.partial(within, "stream"),
        using_allocator=functools.partial(within, "allocator"),
        PythonFunctionAllocator=PythonFunctionAllocator,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(ops.cuda, "device", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", lambda *what: calls.append(what) or 4096)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", lambda *what: calls.append(what))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with ops._on_gpu(torch.zeros(1)):
        (device, order, (name, (take, give))) = calls
        assert (device, order, name) == (("device", 1), ("stream", 77), "allocator")
        assert take(512, 1) == 4096
        give(4096, 1)
        assert calls[3:] == [(512, 1, stream), (4096,)]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(DeviceError, match="PyTorch records a CUDA graph"), ops._on_gpu(torch.zeros(1)):
        pass


def test_no_graph_of_the_compiler_holds_the_ops() -> None:
    """Inductor's CUDA graphs leave out what has the tag."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    assert all(tag is None or tag in one.tags for one in (ops.forward, ops.backward))


@pytest.mark.parametrize("name", ["lru", "delta_net", "attention", "bedouin", "block", "classifier of tokens"])
def test_compile_with_free_lengths(name: str) -> None:
    """One module takes more lengths than PyTorch compiles (8), with the bits of the eager module."""
    core = CORES[name]
    net = moved(core, torch.float32).eval()
    torch.compiler.reset()
    fast = torch.compile(net, fullgraph=True, backend="aot_eager")
    for batch, steps in [(2, 7), (3, 8), (2, 131), *((2, n) for n in range(9, 18))]:
        once = input_of(core, torch.float32)[:1]
        x = once.repeat(batch, 19, *(1,) * (once.ndim - 2))[:, :steps]
        results = []
        for one in (net, fast):
            net.zero_grad()
            y = one(x)
            y.square().sum().backward()
            results.append([y.detach(), *(param.grad for param in net.parameters())])
        for got, expected in zip(*results, strict=True):
            assert torch.equal(got, expected)


def test_export_with_a_free_batch_and_length() -> None:
    """The program has the bits of the module at other numbers, is saved and loaded, and has gradients."""
    net = moved(CORES["classifier of tokens"], torch.float32).eval()
    free = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}}
    program = torch.export.export(net, (torch.randint(6, (2, 9)),), dynamic_shapes=free)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    x = torch.randint(6, (5, 200))
    loaded = torch.export.load(file).module()
    y = loaded(x)
    assert torch.equal(y, net(x))
    y.sum().backward()
    net(x).sum().backward()
    grads = {name: one.grad for name, one in net.named_parameters()}
    assert all(torch.equal(one.grad, grads[name]) for name, one in loaded.named_parameters())


def test_meta_tensors_give_the_form_of_the_outputs() -> None:
    net = moved(CORES["tagger of features"], torch.float32).to("meta")
    x = input_of(net.core, torch.float32).to("meta")
    y, state = net(x, return_state=True)
    assert y.shape == (B, T, 6)
    assert all(one.is_meta for one in leaves_of(form_of(net.core), state))
    assert net(x, torch.full((B,), T)).shape == (B, T, 6)


def test_large_meta_tensors_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    net, most = moved(rotrnn.LRU(D, d_state=3), torch.float32).to("meta"), 0
    forward = Call.forward

    def spied(self: Call, inputs: Inputs) -> Any:
        nonlocal most
        most = max(most, inputs.x.size)
        return forward(self, inputs)

    monkeypatch.setattr(Call, "forward", spied)
    x = torch.empty(64, 4096, D, device="meta", requires_grad=True)
    y, state = net(x, torch.full((64,), 7), return_state=True)
    assert (y.shape, state.shape, state.dtype) == (x.shape, (64, 3), torch.complex64)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert net(x[:1]).shape == (1, 4096, D)
    assert 0 < most <= 5 * 300 * D
    with pytest.raises(ValueError, match=r"lengths has shape \(63,\), expected \(B=64,\)"):
        net(x, torch.full((63,), 7))
