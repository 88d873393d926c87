"""Small layers of every kind, parts, blocks and models, for the modules of PyTorch and the functions for JAX."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rotrnn.models.build import HEADS, ModelSettings, build_model
from rotrnn.models.model import SequenceModel
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense, Embedding
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.registry import LAYERS, LRU, Mamba

D = 4
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

OF_THE_REGISTRY = {
    name: kind(D, **SETTINGS.get(name, {"d_state": 4} if "d_state" in {one.name for one in fields(kind)} else {}))
    for name, kind in LAYERS.items()
}
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
