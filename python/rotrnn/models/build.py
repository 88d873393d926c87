"""A model from its settings: what the [model] and [layer] sections of a recipe mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rotrnn.models.classifier import SequenceClassifier
from rotrnn.nn.block import ResidualBlock, ResidualStack
from rotrnn.nn.dense import Dense, Embedding
from rotrnn.nn.gate import FORMS, Gate
from rotrnn.nn.norm import NORMS
from rotrnn.nn.pool import POOLS
from rotrnn.nn.registry import LAYERS
from rotrnn.tasks.task import Task


@dataclass(frozen=True)
class ModelSettings:
    """The [model] section: a stack of `n_layers` blocks of width `d_model` around recurrent layers `layer`."""

    layer: str
    d_model: int
    n_layers: int
    norm: str = "batch"
    glu: str = "full"
    dropout: float = 0.0
    dropout_over_time: bool = False
    pool: str = "mean"

    def __post_init__(self) -> None:
        for key, value, known in (
            ("layer", self.layer, LAYERS),
            ("norm", self.norm, NORMS),
            ("glu", self.glu, FORMS),
            ("pool", self.pool, POOLS),
        ):
            if value not in known:
                raise ValueError(f"model.{key}: got '{value}', expected one of {', '.join(known)}")
        for key, size in (("d_model", self.d_model), ("n_layers", self.n_layers)):
            if size < 1:
                raise ValueError(f"model.{key}: got {size}, expected a positive integer")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout: got {self.dropout}, expected a number in [0, 1)")


def build_classifier(settings: ModelSettings, layer: dict[str, Any], task: Task) -> SequenceClassifier:
    """The classifier for a task; `layer` holds the recurrent layer's own settings (the [layer] section)."""
    D = settings.d_model
    blocks = tuple(
        ResidualBlock(
            NORMS[settings.norm](D),
            LAYERS[settings.layer](d_model=D, **layer),
            Gate(D, settings.glu, settings.dropout, settings.dropout_over_time, site=2 * i),
        )
        for i in range(settings.n_layers)
    )
    encoder = Embedding(task.vocab, D) if task.vocab is not None else Dense(task.n_features or 1, D)
    return SequenceClassifier(encoder, ResidualStack(blocks), POOLS[settings.pool](), Dense(D, task.n_classes))
