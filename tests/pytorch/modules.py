"""Modules of the cores, their inputs, and what the cores return by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rotrnn.torch
from cores import D
from rotrnn import Context
from rotrnn.models.call import filled, form_of, leaves_of
from rotrnn.models.model import SequenceModel
from rotrnn.nn.blocks.dense import Dense, Embedding
from rotrnn.nn.layer import flatten, unflatten

B, T = 2, 7


def moved(core: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> rotrnn.torch.Module:
    """Returns the module of a core in a dtype, with parameters away from their initial values, so that no zero hides a
    gradient."""
    torch.manual_seed(seed)
    net = rotrnn.torch.Module(core).to(dtype)
    with torch.no_grad():
        for one in net.parameters():
            one += 0.05 * torch.randn(one.shape, dtype=dtype)
    return net


def input_of(core: Any, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    """Returns an input: token ids for an embedding, else numbers."""
    generator = torch.Generator().manual_seed(seed)
    inner = core.encoder if isinstance(core, SequenceModel) else core
    pairs = (2,) * (getattr(core, "time_axis", 1) == 2)
    if isinstance(inner, Embedding):
        return torch.randint(inner.vocab, (B, *pairs, T), generator=generator)
    width = inner.d_in if isinstance(inner, Dense) else D
    return torch.randn(B, *pairs, T, width, dtype=dtype, generator=generator)


def lengths_of(core: Any) -> torch.Tensor:
    lengths = torch.tensor([T, 4])
    return lengths if getattr(core, "time_axis", 1) == 1 else torch.stack([lengths, lengths.flip(0)], 1)


def differentiable(tensors: Any) -> list[torch.Tensor]:
    return [one for one in tensors if one.is_floating_point() or one.is_complex()]


def by_itself(
    net: rotrnn.torch.Module, x: torch.Tensor, lengths: Any, state: Any, key: Any, dy: Any = None, dstate: Any = None
) -> tuple[Any, Any, Any]:
    """Returns (y, leaves of the state after x, gradients by name) of the core, called with arrays; those of the
    running statistics are their new values. dy and dstate are functions of y and of each leaf."""
    core, form = net.core, form_of(net.core)
    params = unflatten({name: one.copy() for name, one in flatten(net.params())})
    seed, step = (0, 0) if key is None else key.tolist()
    ctx = Context(None if lengths is None else lengths.numpy(), key is not None, seed, step)
    before = () if state is None else (filled(form, [one.detach().numpy() for one in leaves_of(form, state)]),)
    y, saved = core.forward(params, x.detach().numpy(), ctx, *before)
    inner = saved.blocks if isinstance(core, SequenceModel) else saved
    after = [] if form is None else leaves_of(form, inner.state)
    later = () if dstate is None else (filled(form, [dstate(one) for one in after]),)
    backward = core.backward_all if isinstance(core, SequenceModel) else core.backward
    dx, dparams, *rest = backward(params, saved, dy(y), *later)
    buffers = {name: one for name, one in flatten(params) if name in dict(net.named_buffers())}
    dbefore = leaves_of(form, rest[0]) if state is not None else []
    return (
        y,
        after,
        {"x": dx, **dict(flatten(dparams)), **buffers, **{f"state.{i}": one for i, one in enumerate(dbefore)}},
    )


def same_bits(got: torch.Tensor, expected: np.ndarray, name: str) -> None:
    np.testing.assert_array_equal(got.detach().numpy(), expected, strict=True, err_msg=name)
