"""Layers by the name a recipe uses. A new layer is an import and an entry here: everything else finds it by them."""

from rotrnn.nn.bedouin import Bedouin as Bedouin
from rotrnn.nn.fixed_point import FixedPointRNN as FixedPointRNN
from rotrnn.nn.fpmamba import FPMamba as FPMamba
from rotrnn.nn.layer import Recurrent as Recurrent
from rotrnn.nn.lru import LRU as LRU
from rotrnn.nn.rotrnn import RotRNN as RotRNN
from rotrnn.nn.selective import Mamba as Mamba
from rotrnn.nn.selective_rotrnn import SelectiveRotRNN as SelectiveRotRNN

LAYERS: dict[str, type[Recurrent]] = {
    "rotrnn": RotRNN,
    "lru": LRU,
    "mamba": Mamba,
    "selective_rotrnn": SelectiveRotRNN,
    "bedouin": Bedouin,
    "fpmamba": FPMamba,
    "fixed_point": FixedPointRNN,
}
