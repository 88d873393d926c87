"""Layers by the name a recipe uses."""

from __future__ import annotations

from rotrnn.nn.linear import LinearRecurrence
from rotrnn.nn.lru import LRU
from rotrnn.nn.rotrnn import RotRNN

LAYERS: dict[str, type[LinearRecurrence]] = {"rotrnn": RotRNN, "lru": LRU}
