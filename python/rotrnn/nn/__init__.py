"""Layers: frozen dataclasses of settings with a common protocol (`rotrnn.nn.layer`), and parameters in plain dicts.

`rotrnn.nn.registry` lists the recurrent layers.
"""

from typing import TYPE_CHECKING

from rotrnn.nn.blocks.block import FeedForwardBlock as FeedForwardBlock
from rotrnn.nn.blocks.block import ResidualBlock as ResidualBlock
from rotrnn.nn.blocks.block import ResidualStack as ResidualStack
from rotrnn.nn.blocks.dense import Dense as Dense
from rotrnn.nn.blocks.dense import Embedding as Embedding
from rotrnn.nn.blocks.dense import TiedDense as TiedDense
from rotrnn.nn.blocks.feed_forward import FeedForward as FeedForward
from rotrnn.nn.blocks.gate import GELU as GELU
from rotrnn.nn.blocks.gate import Activation as Activation
from rotrnn.nn.blocks.gate import Dropout as Dropout
from rotrnn.nn.blocks.gate import Gate as Gate
from rotrnn.nn.blocks.norm import BatchNorm as BatchNorm
from rotrnn.nn.blocks.norm import LayerNorm as LayerNorm
from rotrnn.nn.blocks.norm import RMSNorm as RMSNorm
from rotrnn.nn.blocks.pool import LastPool as LastPool
from rotrnn.nn.blocks.pool import MeanPool as MeanPool
from rotrnn.nn.conversions import Converted as Converted
from rotrnn.nn.conversions import orthogonal_inverse as orthogonal_inverse
from rotrnn.nn.conversions import real_jordan as real_jordan
from rotrnn.nn.conversions import to_lru as to_lru
from rotrnn.nn.conversions import to_rnn as to_rnn
from rotrnn.nn.conversions import to_rotrnn as to_rotrnn
from rotrnn.nn.layer import Context as Context
from rotrnn.nn.layer import Recurrent as Recurrent
from rotrnn.nn.layer import StateArray as StateArray
from rotrnn.nn.layer import astype as astype
from rotrnn.nn.layer import flatten as flatten
from rotrnn.nn.layer import unflatten as unflatten
from rotrnn.nn.layers.bidirectional import Bidirectional as Bidirectional
from rotrnn.nn.layers.griffin import Griffin as Griffin
from rotrnn.nn.layers.stored_history import StoredHistory as StoredHistory
from rotrnn.nn.packing import pack as pack
from rotrnn.nn.registry import *  # noqa: F403  (every layer)
from rotrnn.nn.registry import LAYERS as LAYERS
from rotrnn.nn.summary import summary as summary

if not TYPE_CHECKING:  # type checkers read the imports above: they cannot follow a list that is computed
    __all__ = ["LAYERS", *(name for name, one in globals().items() if callable(one) and name[0] != "_")]

    def __dir__() -> list[str]:
        return __all__
