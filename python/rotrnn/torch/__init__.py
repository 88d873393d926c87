"""Layers, blocks and models of rotrnn as modules of PyTorch.

>>> import rotrnn.torch                                             # doctest: +SKIP
>>> layer = rotrnn.torch.LRU(d_model=8, d_state=16)                 # doctest: +SKIP
>>> y = layer(torch.randn(4, 100, 8))                               # doctest: +SKIP
>>> net = rotrnn.torch.Module(rotrnn.build_model(...))              # doctest: +SKIP

Every class of settings of the package that runs by itself (`rotrnn.LRU`, `rotrnn.ResidualBlock`, ...) has a function
here of the same name and arguments, which returns the `Module` of a layer with these settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("rotrnn.torch needs PyTorch, which is not installed; pip install 'rotrnn[torch]'") from error

from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from rotrnn._support.text import an
from rotrnn.devices.precisions import PRECISIONS
from rotrnn.models import files
from rotrnn.models.call import describe, filled, leaves_of, parse
from rotrnn.models.model import NEEDS_DT, SequenceModel
from rotrnn.nn.layer import BUFFERS, Params, flatten, unflatten
from rotrnn.nn.module import Module as Core
from rotrnn.nn.packing import as_batch, check_rows, stepwise
from rotrnn.ops.boundary import rename
from rotrnn.torch import ops

__all__ = ["Module", "load", "parameter_groups"]


HALF = (torch.bfloat16, torch.float16)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of half precision in float32, in which the kernels compute, and any other unchanged."""
    return tensor.float() if tensor.dtype in HALF else tensor


def _kind(x: Any) -> str:
    return "a PackedSequence" if isinstance(x, PackedSequence) else "a nested tensor"


def _drawn(core: Any) -> Params:
    """Returns initial parameters, drawn by PyTorch's generator."""
    params: Params = core.init(np.random.default_rng(torch.randint(2**62, (), device="cpu").item()))
    return params


def _empty(core: Core) -> Params:
    """Returns arrays of the shapes of initial parameters, whose memory is never touched."""
    own = {name: np.empty(shape, np.float32) for name, shape in core.shapes.items()}
    return {**own, **{name: _empty(inner) for name, inner in core.modules.items()}}


class _Tree(torch.nn.Module):
    """Nested parameters: a module for each dict, so that names in state dicts equal the names of `rotrnn.flatten`."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        for name, value in params.items():
            if isinstance(value, dict):
                self.add_module(name, _Part(value))
            else:
                tensor = torch.tensor(value)
                if name in BUFFERS:
                    self.register_buffer(name, tensor)
                else:
                    self.register_parameter(name, torch.nn.Parameter(tensor))

    def _get_name(self) -> str:
        return type(self).__name__.strip("_")

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {tuple(one.shape)}" for name, one in self.named_parameters(recurse=False))


class _Part(_Tree):
    """The parameters of a part, which the outer module's forward computes."""

    def forward(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("rotrnn.torch: a part of a module was called, expected the outer one: only it runs")


class Module(_Tree):
    """A layer, block, stack or model as a `torch.nn.Module`, with its forward and backward in C.

    Parameters
    ----------
    core : layer, block, stack or model
        Its settings, with the classes of the package. A class of your own must be in `rotrnn.LAYERS`.
    params : dict, optional
        Its parameters, nested, as NumPy arrays, which are copied. By default they are drawn as `init` does, in float32,
        by the global generator of PyTorch (`torch.manual_seed`); on the device meta nothing is drawn.
    precision : str
        "float32", "tf32" or "bf16": rounding of products of float32 matrices, as in `rotrnn.precision`. A module
        ignores ``with rotrnn.precision(...)`` around its calls, because backward may come after it.

    Raises
    ------
    TypeError, ValueError
        `core` is not a core, or a part of it is unknown; a parameter is missing or of another shape; or for the
        precision.

    Notes
    -----
    Parameters and buffers are the module's own, are made on PyTorch's default device, and have the names of
    `rotrnn.flatten`; they may be changed by optimisers, ``load_state_dict``, ``to`` and ``double``, and must all have
    the dtype of x: float32, float64, bfloat16 or float16; buffers may be in float32 beside half precision, where they
    keep more digits. Half precision is converted: x, parameters and states are
    read in float32, and everything is computed in float32 (products as `precision` says); y and gradients are rounded
    to half precision at the end, and states are returned in float32 (of some layers in complex128 or
    integers). Within autocast, x may be of half precision beside float32 parameters, and y has the dtype of x. In
    training mode, a core with dropout, or with a random number of iterations, draws a new key in every call from
    PyTorch's global generator; others draw nothing.

    First derivatives only: a gradient of a gradient raises RuntimeError. A tensor that was given to the module must not
    be changed in place before backward, which raises RuntimeError, too. Arrays are not copied between the libraries,
    except if a tensor is not contiguous or of half precision. ``torch.compile`` and ``torch.export`` may hold the
    numbers of sequences and steps open.
    """

    def __init__(self, core: Any, params: Params | None = None, *, precision: str = "float32") -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"Module: precision is {precision!r:.80}, expected one of {', '.join(PRECISIONS)}")
        expected = "expected a layer, block, stack or model"
        kind: Any = type(core)
        if not issubclass(kind, Core):
            raise TypeError(f"Module: core is {an(type(core).__name__)}, {expected}")
        if not hasattr(core, "forward"):
            raise TypeError(f"Module: core is {an(type(core).__name__)}, which runs in a ResidualStack, {expected}")
        try:
            text = describe(core, precision)
            call = parse(text)
        except ValueError as error:
            rename(error, "save:", "Module:")
            raise
        if params is None:
            params = _empty(core) if torch.get_default_device().type == "meta" else _drawn(core)
        else:
            core.check_params(params)
        super().__init__(params)
        self._core, self._timed = core, getattr(core, "timed", False)
        self._text, self._paths = text, [name.split(".") for name in call.names]
        self._buffered = [i for i, name in enumerate(call.names) if name not in call.trained]
        self._form, self._leaves, self._draws = call.form, len(call.leaves), core.draws

    def forward(
        self,
        x: torch.Tensor,
        lengths: Any = None,
        state: Any = None,
        *,
        cu_seqlens: Any = None,
        reset: Any = None,
        dt: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Returns y, or (y, the state after x) with `return_state`.

        Parameters
        ----------
        x : (B, T, D), or another input of the core
            Or B sequences as a `PackedSequence`, or as a nested tensor of the layout `torch.jagged`: y then has the
            same type, if it has steps.
        lengths : (B,) integers, optional
            Number of valid steps of each sequence; padding is not read, and zero in y.
        state : tensor or tuple of tensors, optional
            The state before x, as returned by an earlier call; differentiable.
        cu_seqlens : (S + 1,) integers, optional
            Where the S sequences of a packed row x (1, T, ...) begin and end, as in `rotrnn.Context`: the states are
            (S, ...). The row runs as a padded batch, as long as its longest sequence. Not with `lengths`.
        reset : (B, T) bool, optional
            Where the state is replaced by zero, just before a step, as in `rotrnn.Context`. Neither with `lengths` nor
            with `cu_seqlens`.
        dt : (B, T) tensor of a floating-point or integer dtype, optional
            Samples at uneven times: the interval from the step before to each step, as in `rotrnn.Context`, for
            layers in continuous time. It has no gradient. Not with a `PackedSequence` or a nested tensor. A model that
            was trained with intervals (`timed`) needs them.
        """
        if not isinstance(return_state, bool):
            raise TypeError(f"{self._name}.forward: return_state is {return_state!r:.80}, expected True or False")
        if isinstance(x, PackedSequence) or getattr(x, "is_nested", False):
            for name, value in (("lengths", lengths), ("cu_seqlens", cu_seqlens), ("reset", reset)):
                if value is not None:
                    raise ValueError(f"{self._name}.forward: got {name} with {_kind(x)}, which has its own lengths")
            if dt is not None:
                raise NotImplementedError(f"{self._name}.forward: got dt with {_kind(x)}, expected x (B, T, D)")
            of = self._of_packed_sequence if isinstance(x, PackedSequence) else self._of_nested
            return of(x, state, return_state)
        if cu_seqlens is not None or reset is not None:
            return self._packed(x, lengths, state, cu_seqlens, reset, dt, return_state)
        params = [self._at(path) for path in self._paths]
        returned = x.dtype if isinstance(x, torch.Tensor) and x.is_floating_point() else None
        if returned in HALF and params and params[0].dtype != returned and torch.is_autocast_enabled(x.device.type):
            x = x.to(params[0].dtype)
        self._check(x, params)
        if lengths is not None:
            lengths = self._tensor("lengths", lengths)
            if lengths.is_meta and not x.is_meta:
                raise TypeError(f"{self._name}.forward: x is on {x.device} and lengths on meta, expected numbers")
            lengths = lengths.to("meta" if x.is_meta else "cpu", torch.int64)
        if dt is not None:
            dt = self._intervals(dt, x)
        elif self._timed:
            raise ValueError(f"{self._name}.forward: {NEEDS_DT}")
        before = [] if state is None else self._flat(state)
        for one in before:
            if one.device != x.device:
                raise TypeError(f"{self._name}.forward: x is on {x.device} and state on {one.device}, expected one")
        key = None
        if self.training:
            key = (
                torch.randint(2**32, (2,), device="cpu")
                if self._draws
                else torch.zeros(2, dtype=torch.int64, device="cpu")
            )
        given = list(params)
        for i in self._buffered:
            given[i] = params[i].clone()  # autograd would see their next update as a change of saved tensors
        given, before = ([_widened(one) for one in many] for many in (given, before))
        outputs = ops.forward(_widened(x), given, before, lengths, dt, key, return_state, False, self._text)
        last = len(outputs) - len(self._buffered) * self.training
        if self.training:
            for i, new in zip(self._buffered, outputs[last:], strict=True):
                try:
                    params[i].copy_(new.detach())
                except RuntimeError as error:
                    if "vmap" not in str(error):
                        raise
                    got = "batch norm in training mode within vmap, whose statistics would differ along its axis"
                    expected = "net.eval(), or buffers with that axis by functional_call"
                    raise RuntimeError(f"{self._name}.forward: got {got}, expected {expected}") from error
        y = outputs[0].to(returned or (params[0].dtype if params else outputs[0].dtype))
        if not return_state:
            return y
        if self._form is None:
            raise ValueError(f"{self._name}.forward: it has no state to return, expected return_state=False")
        return y, filled(self._form, outputs[last - self._leaves : last])

    @torch.compiler.disable(reason="cu_seqlens and reset are read on the host: pass padded batches with lengths")
    def _packed(
        self, x: Any, lengths: Any, state: Any, cu_seqlens: Any, reset: Any, dt: Any, return_state: bool
    ) -> Any:
        """Like `forward`, of a packed row, or of rows with resets."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{self._name}.forward: x is {an(type(x).__name__)}, expected a torch.Tensor")
        bounds = None if cu_seqlens is None else self._array("cu_seqlens", cu_seqlens)
        resets = None if reset is None else self._array("reset", reset)
        batch = as_batch(f"{self._name}.forward", self.core, x.shape, bounds, resets, lengths)
        rows, steps, back, origins, ends = (
            None if one is None else torch.as_tensor(one, device=x.device) for one in batch
        )
        if state is not None and origins is not None:
            leaves = self._flat(state)
            for one in leaves:
                check_rows(f"{self._name}.forward", one.shape, len(x))
            zero = [one.new_zeros(1, *one.shape[1:]) for one in leaves]
            state = filled(self._form, [torch.cat(both)[origins + 1] for both in zip(zero, leaves, strict=True)])
        given = x.flatten(0, 1)[rows]
        if dt is not None:
            dt = self._intervals(dt, x)
            if dt.shape != x.shape[:2]:
                got, expected = tuple(dt.shape), tuple(x.shape[:2])
                raise ValueError(f"{self._name}.forward: dt has shape {got}, expected {expected}")
            dt = dt.flatten(0, 1)[rows]
        try:
            found = self.forward(given, steps, state, dt=dt, return_state=return_state)
        except ValueError as error:  # in the words of the row
            words = str(error).replace(f"(B={len(given)}", f"(S={len(given)}")
            raise ValueError(words.replace(str(tuple(given.shape)), str(tuple(x.shape)))) from error
        y, *after = found if return_state else (found,)
        if stepwise(self.core):
            y = y.flatten(0, 1)[back]
        if ends is not None:
            after = [filled(self._form, [one[ends] for one in self._flat(state)]) for state in after]
        return (y, *after) if return_state else y

    def _of_packed_sequence(self, x: PackedSequence, state: Any, return_state: bool) -> Any:
        """Like `forward`. States are in the order of the sequences before they were sorted, as of `torch.nn.LSTM`."""
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        found = self.forward(padded, lengths, state, return_state=return_state)
        y, *after = found if return_state else (found,)
        if stepwise(self.core):
            if x.sorted_indices is not None:
                y, lengths = y[x.sorted_indices], lengths[x.sorted_indices.cpu()]
            y = x._replace(data=pack_padded_sequence(y, lengths, batch_first=True).data)
        return (y, *after) if return_state else y

    def _of_nested(self, x: torch.Tensor, state: Any, return_state: bool) -> Any:
        """Like `forward`, of a nested tensor."""
        if x.layout is not torch.jagged:
            got = f"layout {x.layout}"
        elif not isinstance(x.shape[1], torch.SymInt):  # values() are then as (D, steps)
            got = f"shape {tuple(x.shape)}"
        else:
            got = "" if x.lengths() is None else "gaps between its sequences"
        if got:
            expected = "one of the layout torch.jagged without gaps, whose axis 1 is ragged"
            raise ValueError(f"{self._name}.forward: x is a nested tensor with {got}, expected {expected}")
        found = self.forward(x.values()[None], state=state, cu_seqlens=x.offsets(), return_state=return_state)
        y, *after = found if return_state else (found,)
        if stepwise(self.core):
            y = torch.nested.nested_tensor_from_jagged(y[0], x.offsets())
        return (y, *after) if return_state else y

    @property
    def core(self) -> Any:
        """The layer, block, stack or model."""
        return self._core

    @core.setter
    def core(self, core: Any) -> None:
        raise AttributeError("Module.core: is read-only, expected a new module: Module(core, net.params())")

    def params(self) -> Params:
        """Returns the parameters as the core takes them: nested NumPy arrays that share the memory of the tensors. Of
        tensors of half precision they are copies in float32.

        RuntimeError or TypeError, by PyTorch, if they are on a GPU.
        """
        return unflatten({".".join(path): _widened(self._at(path).detach()).numpy() for path in self._paths})

    def reset_parameters(self) -> None:
        """Draws parameters and buffers anew, as in the beginning: after `to_empty` of a module of the device meta.

        Parameters with parametrizations (`torch.nn.utils.parametrize`) are set by their `right_inverse`.
        """
        drawn = dict(flatten(_drawn(self.core)))
        with torch.no_grad():
            for path in self._paths:
                *outer, name = path
                part, value = self.get_submodule(".".join(outer)), torch.tensor(drawn[".".join(path)], device="cpu")
                if is_parametrized(part, name):
                    setattr(part, name, value.to(self._at(path)))  # by right_inverse of the parametrizations
                else:
                    self._at(path).copy_(value)

    def _recurrent(self) -> Iterator[torch.nn.Parameter]:
        """Yields the parameters that belong to recurrences, also below parametrizations and masks of prune."""
        for name, one in self.named_parameters():
            path = name.split(".")
            if "parametrizations" in path:  # path of the part, "parametrizations", name, "original0", ...
                at = path.index("parametrizations")
                path = [*path[:at], path[at + 1]]
            path[-1] = path[-1].removesuffix("_orig")
            if self.core.is_recurrent(".".join(path)):
                yield one

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a model to one file, as `SequenceModel.save` does; `load` reads it, and so does `rotrnn.load`. The
        file does not have the module's precision.

        TypeError if the core is not a model: `torch.save` the state dict of a layer.
        """
        if not isinstance(self.core, SequenceModel):
            raise TypeError(f"Module.save: the core is {an(self._name)}, expected a model; torch.save its state_dict()")
        self.core.save(path, self.params())

    def extra_repr(self) -> str:
        return repr(self.core)

    @property
    def _name(self) -> str:
        return type(self.core).__name__

    def _at(self, path: list[str]) -> Any:
        found: Any = self
        for name in path:
            found = getattr(found, name)
        if found is None:
            raise TypeError(f"{self._name}.forward: the parameter {'.'.join(path)} is None, expected a tensor")
        return found

    def _check(self, x: Any, params: list[torch.Tensor]) -> None:
        """Checks types, dtypes and devices; the core checks shapes and values."""
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{self._name}.forward: x is {an(type(x).__name__)}, expected a torch.Tensor")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise TypeError(f"{self._name}.forward: x is on {x.device}, expected a tensor on the CPU or a CUDA GPU")
        if x.layout is not torch.strided or x.is_quantized:
            got = "is quantized" if x.is_quantized else f"has layout {x.layout}"
            raise TypeError(f"{self._name}.forward: x {got}, expected a dense tensor")
        if x.dtype not in ops.DTYPES and not x.is_floating_point():
            expected = "torch.float32, float64, bfloat16 or float16, or an integer dtype for token ids"
            raise TypeError(f"{self._name}.forward: x has dtype {x.dtype}, expected {expected}")
        device, dtype = x.device, x.dtype if x.is_floating_point() else None
        for i, (path, one) in enumerate(zip(self._paths, params, strict=True)):
            if one.device != device:
                raise TypeError(
                    f"{self._name}.forward: x is on {x.device} and {'.'.join(path)} on {one.device}, expected one"
                )
            kept = i in self._buffered and dtype in HALF and one.dtype == torch.float32  # as FSDP leaves buffers
            if dtype is not None and one.dtype != dtype and not kept:
                raise TypeError(
                    f"{self._name}.forward: x has dtype {x.dtype} and {'.'.join(path)} {one.dtype}, expected one dtype"
                )
        real = x.dtype if dtype is not None or not params else params[0].dtype
        if real not in (torch.float32, torch.float64, *HALF) and (params or real not in ops.DTYPES):
            expected = "expected torch.float32, float64, bfloat16 or float16"
            raise TypeError(f"{self._name}.forward: dtype is {real}, {expected}")

    def _tensor(self, name: str, value: Any) -> torch.Tensor:
        """Returns lengths, cu_seqlens or reset as a tensor of integers or booleans."""
        kind = "booleans" if name == "reset" else "integers"
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            hint = " (a state goes by its name, state=)" if isinstance(value, tuple) else ""
            raise TypeError(f"{self._name}.forward: {name} is {value!r:.80}, expected {kind}{hint}") from error
        if not tensor.numel() and not isinstance(value, torch.Tensor):  # an empty list is one of float32
            tensor = tensor.to(torch.bool if name == "reset" else torch.int64)
        whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
        if not (whole if name != "reset" else tensor.dtype is torch.bool):
            expected = "torch.bool" if name == "reset" else "an integer dtype"
            raise TypeError(f"{self._name}.forward: {name} has dtype {tensor.dtype}, expected {expected}")
        return tensor

    def _array(self, name: str, value: Any) -> np.ndarray:
        """Returns cu_seqlens or reset as an array: the numbers decide the shapes of what runs."""
        tensor = self._tensor(name, value)
        try:
            numbers = tensor.tolist()  # numpy() refuses tensors within torch.func.grad
        except (RuntimeError, NotImplementedError) as error:  # of the device meta, or mapped by vmap
            expected = "expected numbers that are known: pass padded batches with lengths"
            raise TypeError(f"{self._name}.forward: {name} has no numbers on the host, {expected}") from error
        return np.array(numbers, bool if name == "reset" else np.int64).reshape(tensor.shape)

    def _intervals(self, dt: Any, x: torch.Tensor) -> torch.Tensor:
        """Returns intervals as the op takes them. The core checks their values."""
        if not isinstance(dt, torch.Tensor):
            raise TypeError(f"{self._name}.forward: dt is {an(type(dt).__name__)}, expected a torch.Tensor")
        if dt.requires_grad:
            raise NotImplementedError(
                f"{self._name}.forward: dt requires a gradient, expected dt.detach(): it has none"
            )
        if dt.device != x.device:
            raise TypeError(f"{self._name}.forward: x is on {x.device} and dt on {dt.device}, expected one")
        whole = not (dt.is_floating_point() or dt.is_complex() or dt.dtype is torch.bool)
        dt = dt.double() if whole else _widened(dt)
        if dt.dtype not in ops.DTYPES:
            raise TypeError(
                f"{self._name}.forward: dt has dtype {dt.dtype}, expected a floating-point or integer dtype"
            )
        return dt

    def _flat(self, state: Any) -> list[torch.Tensor]:
        """Returns the leaves of a state."""
        try:
            leaves = leaves_of(self._form, state)
        except (TypeError, ValueError):
            leaves = []
        if not leaves or not all(isinstance(one, torch.Tensor) for one in leaves):
            expected = "no state" if self._form is None else "one as return_state=True gives it"
            raise TypeError(f"{self._name}.forward: state is {an(type(state).__name__)}, expected {expected}")
        for one in leaves:
            if one.layout is not torch.strided or one.dtype not in (*ops.DTYPES, *HALF):
                got = f"layout {one.layout}" if one.layout is not torch.strided else f"dtype {one.dtype}"
                expected = "dense tensors as return_state=True gives them"
                raise TypeError(f"{self._name}.forward: state has {got}, expected {expected}")
        return leaves


def load(path: str | os.PathLike[str], *, precision: str = "float32") -> Module:
    """Reads a model that `Module.save` or `SequenceModel.save` wrote. The file has no precision: `precision` is as
    in `Module`. Errors as in `rotrnn.load` and `Module`."""
    return Module(*files.load(path), precision=precision)


def parameter_groups(net: torch.nn.Module, **settings: Any) -> list[dict[str, Any]]:
    """Returns the parameters of a network as two groups for an optimiser of PyTorch: the parameters of recurrences with
    these settings, and all others.

    ``torch.optim.AdamW(parameter_groups(net, lr=3e-4, weight_decay=0.0), lr=3e-3)`` trains as published recipes do.
    The network is a `Module`, or has some in it, also compiled, in DistributedDataParallel, or with parametrizations.

    Raises
    ------
    TypeError
        `net` is not a `torch.nn.Module`.
    ValueError
        It has no `Module` in it, or a `Module` has a parameter that does not belong to its core.
    """
    if not isinstance(net, torch.nn.Module):
        raise TypeError(f"parameter_groups: net is {an(type(net).__name__)}, expected a torch.nn.Module")
    inner = [one for one in net.modules() if isinstance(one, Module)]
    if not inner:
        raise ValueError(f"parameter_groups: net is {an(type(net).__name__)} without modules of rotrnn, expected some")
    recurrent = {id(one) for module in inner for one in module._recurrent()}
    groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for one in net.parameters():
        groups[id(one) in recurrent].append(one)
    return [{"params": groups[True], **settings}, {"params": groups[False]}]


def _kinds() -> dict[str, Any]:
    """The classes of settings that run by themselves, by name."""
    return {name: kind for name, kind in files.kinds().items() if hasattr(kind, "forward")}


@cache
def _maker(name: str, kind: Any) -> Callable[..., Module]:
    """The function that creates the `Module` of a class of settings: one object, so that it can be pickled."""

    def make(*args: Any, params: Params | None = None, precision: str = "float32", **settings: Any) -> Module:
        return Module(kind(*args, **settings), params, precision=precision)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Returns the `Module` of a `rotrnn.{name}` with these settings."
    return make


def __getattr__(name: str) -> Callable[..., Module]:
    """Returns the function that creates the `Module` of a class of settings."""
    kind = _kinds().get(name)
    if kind is None:
        raise AttributeError(f"module 'rotrnn.torch' has no attribute {name!r}")
    return _maker(name, kind)


def __dir__() -> list[str]:
    return [*__all__, *_kinds()]
