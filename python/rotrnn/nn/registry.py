"""Layers by the name a recipe uses."""

from __future__ import annotations

from rotrnn.nn.bedouin import Bedouin
from rotrnn.nn.fixed_point import FixedPointRNN
from rotrnn.nn.layer import Recurrent
from rotrnn.nn.lru import LRU
from rotrnn.nn.rotrnn import RotRNN

LAYERS: dict[str, type[Recurrent]] = {
    "rotrnn": RotRNN,
    "lru": LRU,
    "bedouin": Bedouin,
    "fixed_point": FixedPointRNN,
}
