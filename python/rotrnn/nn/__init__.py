"""Layers: frozen dataclasses of settings with a common protocol (`rotrnn.nn.layer`), and parameters in plain dicts.

`rotrnn.nn.registry` lists the recurrent layers.
"""

from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense, Embedding, TiedDense
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import GELU, Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm, RMSNorm
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.conversions import Converted, orthogonal_inverse, real_jordan, to_lru, to_rnn, to_rotrnn
from rotrnn.nn.layer import Context, Recurrent, StateArray, astype, flatten, unflatten
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.registry import *  # noqa: F403  (every layer)
from rotrnn.nn.registry import LAYERS
from rotrnn.nn.summary import summary

__all__ = [
    "GELU",
    "LAYERS",
    "Activation",
    "BatchNorm",
    "Bidirectional",
    "Context",
    "Converted",
    "Dense",
    "Dropout",
    "Embedding",
    "FeedForward",
    "FeedForwardBlock",
    "Gate",
    "Griffin",
    "LastPool",
    "LayerNorm",
    "MeanPool",
    "RMSNorm",
    "Recurrent",
    "ResidualBlock",
    "ResidualStack",
    "StateArray",
    "StoredHistory",
    "TiedDense",
    "astype",
    "flatten",
    "orthogonal_inverse",
    "real_jordan",
    "summary",
    "to_lru",
    "to_rnn",
    "to_rotrnn",
    "unflatten",
    *(layer.__name__ for layer in LAYERS.values()),
]


def __dir__() -> list[str]:
    return __all__
