"""Layers: frozen dataclasses of settings by one protocol (`rotrnn.nn.layer`), parameters in plain dicts."""

from rotrnn.nn.block import ResidualBlock
from rotrnn.nn.dense import Dense, Embedding
from rotrnn.nn.gate import Dropout, Gate
from rotrnn.nn.layer import Context, astype, flatten, unflatten
from rotrnn.nn.lru import LRU
from rotrnn.nn.norm import BatchNorm, LayerNorm
from rotrnn.nn.rotrnn import RotRNN

__all__ = [
    "LRU",
    "BatchNorm",
    "Context",
    "Dense",
    "Dropout",
    "Embedding",
    "Gate",
    "LayerNorm",
    "ResidualBlock",
    "RotRNN",
    "astype",
    "flatten",
    "unflatten",
]
