"""Layers: frozen dataclasses of settings by one protocol (`rotrnn.nn.layer`), parameters in plain dicts."""

from rotrnn.nn.attention import Attention
from rotrnn.nn.bidirectional import Bidirectional
from rotrnn.nn.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.dense import Dense, Embedding
from rotrnn.nn.feed_forward import FeedForward
from rotrnn.nn.gate import GELU, Activation, Dropout, Gate
from rotrnn.nn.layer import Context, Recurrent, astype, flatten, unflatten
from rotrnn.nn.lru import LRU
from rotrnn.nn.norm import BatchNorm, LayerNorm
from rotrnn.nn.pool import LastPool, MeanPool
from rotrnn.nn.rnn import LSTM, RNN
from rotrnn.nn.rotrnn import RotRNN

__all__ = [
    "GELU",
    "LRU",
    "LSTM",
    "RNN",
    "Activation",
    "Attention",
    "BatchNorm",
    "Bidirectional",
    "Context",
    "Dense",
    "Dropout",
    "Embedding",
    "FeedForward",
    "FeedForwardBlock",
    "Gate",
    "LastPool",
    "LayerNorm",
    "MeanPool",
    "Recurrent",
    "ResidualBlock",
    "ResidualStack",
    "RotRNN",
    "astype",
    "flatten",
    "unflatten",
]
