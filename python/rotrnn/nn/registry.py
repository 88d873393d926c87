"""Layers by the name used in recipes. A new layer needs an import and an entry here, and is then found everywhere."""

from rotrnn.nn.layer import Recurrent as Recurrent
from rotrnn.nn.layers.attention import Attention as Attention
from rotrnn.nn.layers.aussm import AUSSM as AUSSM
from rotrnn.nn.layers.bedouin import Bedouin as Bedouin
from rotrnn.nn.layers.comba import Comba as Comba
from rotrnn.nn.layers.delta_net import DeltaNet as DeltaNet
from rotrnn.nn.layers.fixed_point import FixedPointRNN as FixedPointRNN
from rotrnn.nn.layers.fpmamba import FPMamba as FPMamba
from rotrnn.nn.layers.gru import GRU as GRU
from rotrnn.nn.layers.kda import KDA as KDA
from rotrnn.nn.layers.kda import GatedDeltaNet2 as GatedDeltaNet2
from rotrnn.nn.layers.linoss import LinOSS as LinOSS
from rotrnn.nn.layers.liquid_s4 import LiquidS4 as LiquidS4
from rotrnn.nn.layers.lru import LRU as LRU
from rotrnn.nn.layers.lstm import LSTM as LSTM
from rotrnn.nn.layers.mamba import Mamba as Mamba
from rotrnn.nn.layers.mamba2 import Mamba2 as Mamba2
from rotrnn.nn.layers.mamba3 import Mamba3 as Mamba3
from rotrnn.nn.layers.memory import RopeMemory as RopeMemory
from rotrnn.nn.layers.memory import WropeMemory as WropeMemory
from rotrnn.nn.layers.min_gru import MinGRU as MinGRU
from rotrnn.nn.layers.mlstm import MLSTM as MLSTM
from rotrnn.nn.layers.pd_ssm import PDSSM as PDSSM
from rotrnn.nn.layers.rg_lru import RGLRU as RGLRU
from rotrnn.nn.layers.rnn import RNN as RNN
from rotrnn.nn.layers.rotrnn import RotRNN as RotRNN
from rotrnn.nn.layers.rwkv7 import RWKV7 as RWKV7
from rotrnn.nn.layers.s4 import S4 as S4
from rotrnn.nn.layers.s4d import S4D as S4D
from rotrnn.nn.layers.s5 import S5 as S5
from rotrnn.nn.layers.selective_rotrnn import SelectiveRotRNN as SelectiveRotRNN
from rotrnn.nn.layers.slinoss import SLinOSS as SLinOSS
from rotrnn.nn.layers.slstm import SLSTM as SLSTM

GROUPS: dict[str, dict[str, type[Recurrent]]] = {
    "one transition for all steps": {
        "rotrnn": RotRNN,
        "lru": LRU,
        "s5": S5,
        "s4d": S4D,
        "linoss": LinOSS,
        "s4": S4,
        "liquid_s4": LiquidS4,
    },
    "transitions that depend on the input": {
        "mamba": Mamba,
        "mamba2": Mamba2,
        "mamba3": Mamba3,
        "slinoss": SLinOSS,
        "selective_rotrnn": SelectiveRotRNN,
        "aussm": AUSSM,
        "min_gru": MinGRU,
        "rg_lru": RGLRU,
        "delta_net": DeltaNet,
        "kda": KDA,
        "gated_delta_net_2": GatedDeltaNet2,
        "comba": Comba,
        "rwkv7": RWKV7,
        "pd_ssm": PDSSM,
        "mlstm": MLSTM,
    },
    "fixed points": {
        "fixed_point": FixedPointRNN,
        "bedouin": Bedouin,
        "fpmamba": FPMamba,
    },
    "memories that age by rotation": {
        "rope_memory": RopeMemory,
        "wrope_memory": WropeMemory,
    },
    "baselines": {
        "rnn": RNN,
        "lstm": LSTM,
        "gru": GRU,
        "slstm": SLSTM,
        "attention": Attention,
    },
}
"""The layers of the package as docs/layers.md groups them."""

LAYERS: dict[str, type[Recurrent]] = {name: layer for group in GROUPS.values() for name, layer in group.items()}
"""All of them. Layers of your own are added here."""
