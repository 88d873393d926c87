"""Layers: frozen dataclasses of settings by one protocol (`rotrnn.nn.layer`), parameters in plain dicts."""

from rotrnn.nn.block import ResidualBlock, ResidualStack
from rotrnn.nn.dense import Dense, Embedding
from rotrnn.nn.fixed_point import FixedPointRNN
from rotrnn.nn.gate import GELU, Dropout, Gate
from rotrnn.nn.layer import Context, astype, flatten, unflatten
from rotrnn.nn.lru import LRU
from rotrnn.nn.norm import BatchNorm, LayerNorm
from rotrnn.nn.pool import LastPool, MeanPool
from rotrnn.nn.rotrnn import RotRNN

__all__ = [
    "GELU",
    "LRU",
    "BatchNorm",
    "Context",
    "Dense",
    "Dropout",
    "Embedding",
    "FixedPointRNN",
    "Gate",
    "LastPool",
    "LayerNorm",
    "MeanPool",
    "ResidualBlock",
    "ResidualStack",
    "RotRNN",
    "astype",
    "flatten",
    "unflatten",
]
