"""The feed-forward network of a Transformer block."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rotrnn.nn.blocks.dense import Dense, DenseSaved
from rotrnn.nn.blocks.gate import GELU, Dropout, GeluSaved, Mask
from rotrnn.nn.layer import EVALUATION, Array, Context, Module, Params, trusted


class ExpansionSaved(NamedTuple):
    """What each part saved."""

    up: DenseSaved
    gelu: GeluSaved
    down: DenseSaved
    dropout: Mask | None


@dataclass(frozen=True)
class FeedForward(Module):
    """``dropout(W_2 GELU(W_1 x + b_1) + b_2)`` with inner width ``expand * d_model``. Params: "up" and "down", those of
    `Dense`."""

    d_model: int
    expand: int = 4
    dropout: float = 0.0
    over_time: bool = False
    site: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_model", "expand")
        _ = self._parts  # checks the other settings

    @property
    def modules(self) -> dict[str, Dense]:
        up, _, down, _ = self._parts
        return {"up": up, "down": down}

    def input_shape(self, saved: ExpansionSaved) -> tuple[int, ...]:
        return tuple(saved.up.x.shape)

    @functools.cached_property
    def _parts(self) -> tuple[Dense, GELU, Dense, Dropout]:
        D, E = self.d_model, self.expand * self.d_model
        return Dense(D, E), GELU(), Dense(E, D), Dropout(self.dropout, self.over_time, self.site)

    def init(self, rng: np.random.Generator) -> Params:
        return {name: one.init(rng) for name, one in self.modules.items()}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, ExpansionSaved]:
        up, gelu, down, dropout = self._parts
        z, up_saved = up.forward(params["up"], x, ctx)
        z, gelu_saved = gelu.forward({}, z, ctx)
        z, down_saved = down.forward(params["down"], z, ctx)
        y, dropout_saved = dropout.forward({}, z, ctx)
        return y, ExpansionSaved(up_saved, gelu_saved, down_saved, dropout_saved)

    def backward(self, params: Params, saved: ExpansionSaved, dy: Array) -> tuple[Array, Params]:
        up, gelu, down, dropout = self._parts
        up_saved, gelu_saved, down_saved, dropout_saved = saved
        dz, _ = trusted(dropout.backward)({}, dropout_saved, dy)
        dz, ddown = trusted(down.backward)(params["down"], down_saved, dz)
        dz, _ = trusted(gelu.backward)({}, gelu_saved, dz)
        dx, dup = trusted(up.backward)(params["up"], up_saved, dz)
        return dx, {"up": dup, "down": ddown}
