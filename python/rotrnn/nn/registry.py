"""Layers by the name a recipe uses. A new layer is an import and an entry here: everything else finds it by them."""

from rotrnn.nn.layer import Recurrent as Recurrent
from rotrnn.nn.lru import LRU as LRU
from rotrnn.nn.memory import RopeMemory as RopeMemory
from rotrnn.nn.memory import WropeMemory as WropeMemory
from rotrnn.nn.rotrnn import RotRNN as RotRNN
from rotrnn.nn.selective import Mamba as Mamba
from rotrnn.nn.selective_rotrnn import SelectiveRotRNN as SelectiveRotRNN

LAYERS: dict[str, type[Recurrent]] = {
    "rotrnn": RotRNN,
    "lru": LRU,
    "mamba": Mamba,
    "selective_rotrnn": SelectiveRotRNN,
    "rope_memory": RopeMemory,
    "wrope_memory": WropeMemory,
}
