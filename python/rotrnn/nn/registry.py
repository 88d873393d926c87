"""Layers by the name a recipe uses. A new layer is an import and an entry here: everything else finds it by them."""

from rotrnn.nn.layer import Recurrent as Recurrent
from rotrnn.nn.lru import LRU as LRU
from rotrnn.nn.rotrnn import RotRNN as RotRNN
from rotrnn.nn.s4d import S4D as S4D
from rotrnn.nn.s5 import S5 as S5

LAYERS: dict[str, type[Recurrent]] = {
    "rotrnn": RotRNN,
    "lru": LRU,
    "s5": S5,
    "s4d": S4D,
}
