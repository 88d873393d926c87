"""Cores of every kind, and what modules around them are given and return."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rotrnn.torch
from rotrnn import Context
from rotrnn.models.build import HEADS, ModelSettings, build_model
from rotrnn.models.call import filled, form_of, leaves_of
from rotrnn.models.model import SequenceModel
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense, Embedding
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.layer import flatten, unflatten
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.registry import LAYERS, LRU, Mamba

B, T, D = 2, 7, 4
IMPLICIT = {"d_state": 4, "gradient": "implicit", "tol": 1e-12, "max_iterations": 999}
SETTINGS: dict[str, dict[str, Any]] = {
    "rotrnn": {"d_state": 8, "heads": 2},
    "rg_lru": {"heads": 2},
    "rwkv7": {"heads": 2},
    "attention": {"heads": 2},
    "fixed_point": IMPLICIT,
    "bedouin": IMPLICIT,
    "fpmamba": IMPLICIT,
    "rope_memory": {"d_state": 4, "length": 8},
    "wrope_memory": {"d_state": 4, "length": 8, "window": 4},
}
"""Settings of layers that need others than d_state = 4; fixed points with the gradient that differences have."""

OF_THE_REGISTRY = {name: kind(D, **SETTINGS.get(name, {"d_state": 4})) for name, kind in LAYERS.items()}
LAYERS_HERE = {
    **OF_THE_REGISTRY,
    "lru both ways": LRU(D, 3, bidirectional=True),
    "lru in a window": LRU(D, 3, window=3),
    "bidirectional": Bidirectional(D, Mamba(D, 2)),
    "griffin": Griffin(D, LRU(D, 4)),
    "stored history": StoredHistory(D, LRU(D, 4), length=8),
}
PARTS: dict[str, Any] = {
    "dense": Dense(D, 5),
    "embedding": Embedding(6, D),
    "batch norm": BatchNorm(D),
    "layer norm": LayerNorm(D),
    "dropout": Dropout(0.3),
    "activation": Activation(Dropout(0.3)),
    "gate": Gate(D, "half1", 0.3),
    "feed-forward": FeedForward(D, dropout=0.3),
    "gated feed-forward": FeedForward(D, 2, dropout=0.3, gated=True),
    "mean pool": MeanPool(),
    "last pool": LastPool(),
}
BLOCKS: dict[str, Any] = {
    "block": ResidualBlock(BatchNorm(D), LRU(D, 3), Gate(D, "full", 0.3)),
    "plain block": ResidualBlock(LayerNorm(D), Mamba(D, 2), Dropout(0.3)),
    "postnorm block": ResidualBlock(BatchNorm(D), LRU(D, 3), Gate(D), prenorm=False),
    "transformer": ResidualStack(
        (
            FeedForwardBlock(
                ResidualBlock(LayerNorm(D), OF_THE_REGISTRY["attention"], Dropout(0.3)), BatchNorm(D), FeedForward(D)
            ),
        )
    ),
    "stack": ResidualStack(
        (
            ResidualBlock(BatchNorm(D), LRU(D, 3), Gate(D)),
            ResidualBlock(LayerNorm(D), OF_THE_REGISTRY["lstm"], Dropout(0.0)),
        )
    ),
}


def model(
    head: str, features: bool = False, layer: str = "lru", dropout: float = 0.0, tied: bool = False
) -> SequenceModel:
    """Returns a model of two blocks for 6 classes."""
    settings = ModelSettings(layer, D, 2, dropout=dropout, final_norm=True, tied=tied)
    inputs = {"n_features": 3} if features else {"vocab": 6}
    return build_model(settings, SETTINGS.get(layer, {"d_state": 4}), head=head, n_classes=6, **inputs)


MODELS = {
    **{f"{head} of tokens": model(head, dropout=0.2) for head in HEADS},
    **{f"{head} of features": model(head, features=True) for head in HEADS if head != "language"},
    "tied tagger": model("tagger", tied=True),
}
CORES: dict[str, Any] = {**LAYERS_HERE, **PARTS, **BLOCKS, **MODELS}
SMALL = {
    **LAYERS_HERE,
    **BLOCKS,
    **{f"{head} of features": model(head, features=True) for head in ("tagger", "retrieval")},
}
"""Cores with an input that has a gradient, without dropout where it is not the subject."""


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
