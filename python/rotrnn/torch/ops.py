"""The two custom ops under every module: forward and backward of a core, described by a text.

    outputs = forward(x, params, state, lengths, dt, key, after, keep, text)
    grads = backward(dy, dstate, x, params, state, lengths, dt, key, after, kept, text)

Arguments and outputs are as in `rotrnn.models.call.Call`, as tensors that share the memory of its arrays; with `keep`,
which autograd sets, the outputs that backward needs are included. A single pair serves all cores, so torch.compile
needs to know only this pair: its shapes (the fake implementations) come from a forward on zeros, once for each shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from rotrnn.devices import cuda
from rotrnn.devices.cuda import DeviceError
from rotrnn.devices.device import Array
from rotrnn.models.call import PROBES, Inputs, Plan, parse
from rotrnn.nn.saved import Shape

DTYPES: dict[Any, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    **{
        getattr(torch, f"{sign}int{bits}"): np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    torch.bool: np.dtype(bool),
}
TORCH = {there: here for here, there in DTYPES.items()}

Given = tuple[Tensor, Sequence[Tensor], Sequence[Tensor], Tensor | None, Tensor | None, Tensor | None, bool]
"""x, params, state, lengths, dt, key, and whether to return the state after x."""

_GIVEN = "Tensor x, Tensor[] params, Tensor[] state, Tensor? lengths, Tensor? dt, Tensor? key, bool after"

_library: Any = None  # if the module is loaded again, its old ops are removed first
_library = torch.library.Library("rotrnn", "DEF")
_TAGS = tuple(one for one in (getattr(torch.Tag, "cudagraph_unsafe", None),) if one is not None)
_library.define(f"forward({_GIVEN}, bool keep, str text) -> Tensor[]", tags=_TAGS)
_library.define(f"backward(Tensor dy, Tensor?[] dstate, {_GIVEN}, Tensor[] kept, str text) -> Tensor[]", tags=_TAGS)
forward, backward = torch.ops.rotrnn.forward.default, torch.ops.rotrnn.backward.default


@torch.library.impl(_library, "forward", "CompositeExplicitAutograd")
def _(
    x: Tensor, params: list[Tensor], state: list[Tensor], lengths: Tensor | None, dt: Tensor | None,
    key: Tensor | None, after: bool, keep: bool, text: str,
) -> list[Tensor]:  # fmt: skip
    given = x, params, state, lengths, dt, key, after
    with _on_device(x):
        outputs, _ = parse(text).forward(_inputs(given).map(_array))
        return [_tensor(one) for one in (outputs if keep else _given_out(outputs, given, text))]


@torch.library.register_fake("rotrnn::forward", lib=_library)
def _(
    x: Tensor, params: list[Tensor], state: list[Tensor], lengths: Tensor | None, dt: Tensor | None,
    key: Tensor | None, after: bool, keep: bool, text: str,
) -> list[Tensor]:  # fmt: skip
    given = x, params, state, lengths, dt, key, after
    plan, forms = _plan(given, text)
    likes = [x.new_empty(0, dtype=TORCH[dtype]) for _, _, dtype in forms]
    for i in plan.host if x.is_cuda else ():
        likes[i] = likes[i].cpu()
    outputs = [
        like.new_empty(shape) if strides is None else like.new_empty_strided(shape, strides)
        for like, (shape, strides, _) in zip(likes, forms, strict=True)
    ]
    return outputs if keep else _given_out(outputs, given, text)


@torch.library.impl(_library, "backward", "CompositeExplicitAutograd")
def _(
    dy: Tensor, dstate: list[Tensor | None], x: Tensor, params: list[Tensor], state: list[Tensor],
    lengths: Tensor | None, dt: Tensor | None, key: Tensor | None, after: bool, kept: list[Tensor], text: str,
) -> list[Tensor]:  # fmt: skip
    with _on_device(x):
        later = [None if one is None else _array(one) for one in dstate]
        inputs = _inputs((x, params, state, lengths, dt, key, after)).map(_array)
        grads = parse(text).backward(inputs, [_array(one) for one in kept], _array(dy), later)
        found = [grads.dx, *grads.dparams, *grads.dstate]
        pairs = zip(found, _differentiable(x, params, state, text), strict=True)
        return [_tensor(grad) for grad, wanted in pairs if grad is not None and wanted is not None]


@torch.library.register_fake("rotrnn::backward", lib=_library)
def _(
    dy: Tensor, dstate: list[Tensor | None], x: Tensor, params: list[Tensor], state: list[Tensor],
    lengths: Tensor | None, dt: Tensor | None, key: Tensor | None, after: bool, kept: list[Tensor], text: str,
) -> list[Tensor]:  # fmt: skip
    wanted = _differentiable(x, params, state, text)
    return [one.new_empty(one.shape) for one in wanted if one is not None]


def _differentiable(x: Tensor, params: list[Tensor], state: list[Tensor], text: str) -> list[Tensor | None]:
    """Returns x, the trained parameters and the leaves of the state, with None for integers."""
    wanted = (x, *(params[i] for i in parse(text).trained_at), *state)
    return [one if one.is_floating_point() or one.is_complex() else None for one in wanted]


# ---- autograd ----


class _Forward(torch.autograd.function._SingleLevelFunction):
    """The op `forward` with its gradient, of tensors outside lists: `torch.library.register_autograd` would take each
    list apart and together again in every call, which takes longer than all that is done here. Nor is what it registers
    known to torch.func; a function of a single level is, for the dispatcher calls it once for each level."""

    @staticmethod
    def forward(
        ctx: Any, keyset: Any, counts: tuple[int, int], after: bool, text: str, x: Tensor, lengths: Tensor | None,
        dt: Tensor | None, key: Tensor | None, *rest: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Saves all inputs and the kept outputs, so that autograd finds a change in place of any of them."""
        given = x, rest[: counts[0]], rest[counts[0] :], lengths, dt, key, after
        outputs = _below_autograd(forward, keyset, *given, True, text)
        ctx.save_for_backward(x, lengths, dt, key, *rest, *(outputs[i] for i in _plan(given, text)[0].kept))
        ctx.counts, ctx.after, ctx.text = counts, after, text
        ctx.y = outputs[0].shape, outputs[0].dtype, outputs[0].device
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        call = parse(ctx.text)
        x, lengths, dt, key, *rest = ctx.saved_tensors
        n, m = ctx.counts
        params, state, kept = rest[:n], rest[n : n + m], rest[n + m :]
        shape, dtype, device = ctx.y
        dy = torch.zeros(shape, dtype=dtype, device=device) if grads[0] is None else grads[0]
        buffers = len(call.names) - len(call.trained) if key is not None else 0
        last = len(grads) - buffers
        dstate = list(grads[last - len(call.leaves) : last]) if ctx.after else []
        # no second derivatives: record nothing, except to refuse them
        with contextlib.nullcontext() if torch.is_grad_enabled() else torch._C._AutoDispatchBelowAutograd():
            found = iter(backward(dy, dstate, x, params, state, lengths, dt, key, ctx.after, kept, ctx.text))
        wanted = _differentiable(x, params, state, ctx.text)
        dx, *more = [None if one is None else next(found) for one in wanted]
        dparams: list[Tensor | None] = [None] * n
        for i, dparam in zip(call.trained_at, more, strict=False):
            dparams[i] = dparam
        return None, None, None, None, dx, None, None, None, *dparams, *more[len(call.trained) :]


def _below_autograd(op: Any, keyset: Any, *arguments: Any) -> list[Tensor]:
    """Calls an op below autograd; of torch.func's transforms, only below this level's, since the others record, too."""
    with contextlib.ExitStack() as inside:
        if not _plain():
            inside.enter_context(torch.enable_grad())
            inside.enter_context(forward_ad._set_fwd_grad_enabled(True))
        inside.enter_context(torch._C._AutoDispatchBelowAutograd())
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)


def _autograd(
    keyset: Any, x: Tensor, params: list[Tensor], state: list[Tensor], lengths: Tensor | None, dt: Tensor | None,
    key: Tensor | None, after: bool, keep: bool, text: str,
) -> list[Tensor]:  # fmt: skip
    """The op `forward` where autograd may be recording."""
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(one).tangent is not None for one in (x, *params, *state)
    ):
        raise RuntimeError(
            "rotrnn.torch: forward-mode derivatives (jvp, jacfwd, hessian) were asked for, which rotrnn does not have, "
            "expected reverse mode: torch.autograd.grad, torch.func.vjp"
        )
    if not (torch.is_grad_enabled() and any(one.requires_grad for one in (x, *params, *state))):
        return _below_autograd(forward, keyset, x, params, state, lengths, dt, key, after, keep, text)
    counts = len(params), len(state)
    outputs = _apply(_Forward, keyset, counts, after, text, x, lengths, dt, key, *params, *state)
    return list(outputs if keep else _given_out(outputs, (x, params, state, lengths, dt, key, after), text))


class _Backward(torch.autograd.function._SingleLevelFunction):
    """The op `backward` where its gradient, which is not supported, may be requested."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], list[Tensor]], *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "rotrnn.torch: a gradient of a gradient was asked for (create_graph=True), which rotrnn does not have, "
            "expected first derivatives only; within torch.compile, torch.func.grad asks for one where parameters "
            "require a gradient: pass detached ones by functional_call, or use torch.no_grad()"
        )


def _backward_autograd(keyset: Any, *arguments: Any) -> list[Tensor]:
    """The op `backward` where autograd may be recording."""
    tensors = [one for one in tree_leaves(arguments) if isinstance(one, Tensor)]
    return list(_apply(_Backward, partial(_below_autograd, backward, keyset, *arguments), *tensors))


def _apply(function: Any, *arguments: Any) -> tuple[Tensor, ...]:
    """Applies a function, within torch.func's transforms, too."""
    with contextlib.nullcontext() if _plain() else enable_single_level_autograd_function():
        return tuple(function.apply(*arguments))


def _plain() -> bool:
    """Whether no transform of torch.func is around."""
    return torch._C._functorch.peek_interpreter_stack() is None


# ---- vmap ----


def _by_loop(op: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[list[Tensor], list[int]]:
    """The rule of vmap for an op: a loop over the mapped axis. Without parts, one of zeros tells the shapes."""
    every = [op(*_part(arguments, in_dims, i)) for i in range(max(info.batch_size, 1))]
    outputs = [torch.stack(one)[: info.batch_size] for one in zip(*every, strict=True)]
    return outputs, [0] * len(outputs)


def _part(value: Any, dim: Any, i: int) -> Any:
    """Returns part i of arguments, some with a mapped axis."""
    if dim is None:
        return value
    if isinstance(value, Tensor):
        return value.select(dim, i) if value.shape[dim] else value.movedim(dim, 0).sum(0)
    return [_part(one, axis, i) for one, axis in zip(value, dim, strict=True)]


_library.impl("forward", _autograd, "Autograd", with_keyset=True)
_library.impl("backward", _backward_autograd, "Autograd", with_keyset=True)
torch.library.register_vmap("rotrnn::forward", partial(_by_loop, forward), lib=_library)
torch.library.register_vmap("rotrnn::backward", partial(_by_loop, backward), lib=_library)


# ---- tensors and arrays ----


def _given_out(outputs: Sequence[Any], given: Given, text: str) -> list[Any]:
    """Returns y, the state after x and the buffers from all outputs of a forward."""
    call = parse(text)
    *_, key, after = given
    rest = len(call.leaves) * after + (len(call.names) - len(call.trained)) * (key is not None)
    return [outputs[0], *outputs[len(outputs) - rest :]]


def _plan(given: Given, text: str) -> tuple[Plan, Sequence[tuple[Any, Any, Any]]]:
    """Returns the plan of a forward from the shapes of its arguments alone, with shape, strides (None if they are
    C-contiguous) and dtype of its outputs.

    torch.compile and torch.export may hold the numbers of sequences and steps open, and the shapes then follow from
    them. On the device meta large numbers are open, too, so that little is computed. Both are fixed where `open_plan`
    finds no rule."""
    call = parse(text)
    inputs = _inputs(given)
    batch, steps = (inputs.x.shape[i] for i in (0, call.time_axis))
    free = [not isinstance(one, int) for one in (batch, steps)]
    if inputs.x.device.type == "meta" and not any(free) and _agree(inputs, batch, steps):
        free = [size > max(probes) for size, probes in zip((batch, steps), zip(*PROBES, strict=True), strict=True)]
    if any(free):
        axes: dict[int, tuple[int, ...]] = {id(one): (0,) for one in (*inputs.state, inputs.lengths)}
        axes |= {id(inputs.x): (0, call.time_axis), id(inputs.dt): (0, 1)}
        found = call.open_plan(inputs.map(lambda one: _shape(one, axes.get(id(one), ()))), *free)
        if found is not None:
            plan, sizes = found
            pairs = zip(plan.forms, sizes, strict=True)
            return plan, [
                form if shape is None else (tuple(size.at(batch, steps) for size in shape), None, form.dtype)
                for form, shape in pairs
            ]
    plan = call.plan(inputs.map(_shape))
    return plan, plan.forms


def _agree(inputs: Inputs, batch: int, steps: int) -> bool:
    """Whether all inputs have these numbers of sequences and steps: otherwise forward has an error to raise."""
    rows = (one for one in (*inputs.state, inputs.lengths) if one is not None)
    times = inputs.dt is None or inputs.dt.shape == (batch, steps)
    return times and all(one.shape[:1] == (batch,) for one in rows)


def _inputs(given: Given) -> Inputs:
    return Inputs(*given, "cuda" if given[0].is_cuda else "cpu")


def _shape(tensor: Tensor, free: Sequence[int] = ()) -> Shape:
    """Returns shape and dtype. Open sizes are fixed, except at the axes `free`, where they are 0."""
    sizes = (0 if i in free and not isinstance(one, int) else int(one) for i, one in enumerate(tensor.shape))
    return Shape(tuple(sizes), DTYPES[tensor.dtype])


def _array(tensor: Tensor) -> Array:
    """Returns a tensor as a C-contiguous array, of the same memory if it is contiguous. It is only read, and must not
    outlive the call: the tensor may be resized later, which `Tensor.numpy` would forbid for good."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return np.from_dlpack(plain) if plain.is_cpu else cuda.device().view(plain)


def _tensor(array: Array) -> Tensor:
    """Returns an array as a tensor of the same memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def _on_device(x: Tensor) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if x.is_cpu else _on_gpu(x)


@contextlib.contextmanager
def _on_gpu(x: Tensor) -> Iterator[None]:
    """Within the block, CuPy works on the GPU of x, on PyTorch's current stream there, which orders its kernels with
    PyTorch's own, and in memory that it takes from PyTorch: two pools on one GPU would keep memory from each other."""
    cuda.device()
    import cupy

    stream = torch.cuda.current_stream(x.device)
    if torch.cuda.is_current_stream_capturing():
        raise DeviceError("PyTorch records a CUDA graph, which rotrnn's operations cannot be in: leave them out of it")
    with (
        cupy.cuda.Device(stream.device_index),
        cupy.cuda.ExternalStream(stream.cuda_stream),
        cupy.cuda.using_allocator(cupy.cuda.PythonFunctionAllocator(_take, _give).malloc),
    ):
        yield


def _take(size: int, device: int) -> int:
    """Returns the address of memory of a GPU from PyTorch's pool, in the order of the current stream."""
    return int(torch.cuda.caching_allocator_alloc(size, device, torch.cuda.current_stream(device)))


def _give(address: int, device: int) -> None:
    """Gives memory back to PyTorch's pool."""
    torch.cuda.caching_allocator_delete(address)
