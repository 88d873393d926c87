"""Layers by the name a recipe uses."""

from __future__ import annotations

import dataclasses
from typing import Any

from rotrnn.nn.attention import Attention
from rotrnn.nn.bidirectional import Bidirectional
from rotrnn.nn.layer import Recurrent
from rotrnn.nn.lru import LRU
from rotrnn.nn.rnn import LSTM, RNN
from rotrnn.nn.rotrnn import RotRNN

LAYERS: dict[str, type[Recurrent]] = {
    "rotrnn": RotRNN,
    "lru": LRU,
    "rnn": RNN,
    "lstm": LSTM,
    "attention": Attention,
}


def make_layer(name: str, d_model: int, settings: dict[str, Any]) -> Recurrent:
    """The layer of that name; one that has no setting `bidirectional` of its own is put in `Bidirectional` by it."""
    kind = LAYERS[name]
    own = dict(settings)
    wrap = not has_directions(kind) and own.pop("bidirectional", False)
    layer = kind(d_model=d_model, **own)
    return Bidirectional(d_model, layer) if wrap else layer


def has_directions(kind: type[Recurrent]) -> bool:
    """Whether a layer has a setting `bidirectional` of its own."""
    return any(one.name == "bidirectional" for one in dataclasses.fields(kind))
