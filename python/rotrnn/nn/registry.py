"""Layers by the name a recipe uses. A new layer is an import and an entry here: everything else finds it by them."""

from rotrnn.nn.attention import Attention as Attention
from rotrnn.nn.bedouin import Bedouin as Bedouin
from rotrnn.nn.fixed_point import FixedPointRNN as FixedPointRNN
from rotrnn.nn.fpmamba import FPMamba as FPMamba
from rotrnn.nn.layer import Recurrent as Recurrent
from rotrnn.nn.lru import LRU as LRU
from rotrnn.nn.memory import RopeMemory as RopeMemory
from rotrnn.nn.memory import WropeMemory as WropeMemory
from rotrnn.nn.rnn import LSTM as LSTM
from rotrnn.nn.rnn import RNN as RNN
from rotrnn.nn.rotrnn import RotRNN as RotRNN
from rotrnn.nn.s4d import S4D as S4D
from rotrnn.nn.s5 import S5 as S5
from rotrnn.nn.selective import Mamba as Mamba
from rotrnn.nn.selective_rotrnn import SelectiveRotRNN as SelectiveRotRNN

LAYERS: dict[str, type[Recurrent]] = {
    "rotrnn": RotRNN,
    "lru": LRU,
    "s5": S5,
    "s4d": S4D,
    "rnn": RNN,
    "lstm": LSTM,
    "attention": Attention,
    "mamba": Mamba,
    "selective_rotrnn": SelectiveRotRNN,
    "fixed_point": FixedPointRNN,
    "bedouin": Bedouin,
    "fpmamba": FPMamba,
    "rope_memory": RopeMemory,
    "wrope_memory": WropeMemory,
}
