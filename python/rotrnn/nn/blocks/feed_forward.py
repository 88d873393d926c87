"""The feed-forward net of a Transformer block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import GELU, Dropout
from rotrnn.nn.layer import EVALUATION, Array, Context, Params


@dataclass(frozen=True)
class FeedForward:
    """``dropout(W_2 GELU(W_1 x + b_1) + b_2)``, `expand` times as wide inside. Params: "up" and "down", as `Dense`."""

    d_model: int
    expand: int = 4
    dropout: float = 0.0
    over_time: bool = False
    site: int = 0

    @property
    def _parts(self) -> tuple[Dense, GELU, Dense, Dropout]:
        D, E = self.d_model, self.expand * self.d_model
        return Dense(D, E), GELU(), Dense(E, D), Dropout(self.dropout, self.over_time, self.site)

    def init(self, rng: np.random.Generator) -> Params:
        up, _, down, _ = self._parts
        return {"up": up.init(rng), "down": down.init(rng)}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, Any]:
        up, gelu, down, dropout = self._parts
        z, up_saved = up.forward(params["up"], x, ctx)
        z, gelu_saved = gelu.forward({}, z, ctx)
        z, down_saved = down.forward(params["down"], z, ctx)
        y, dropout_saved = dropout.forward({}, z, ctx)
        return y, (up_saved, gelu_saved, down_saved, dropout_saved)

    def backward(self, params: Params, saved: Any, dy: Array) -> tuple[Array, Params]:
        up, gelu, down, dropout = self._parts
        up_saved, gelu_saved, down_saved, dropout_saved = saved
        dz, _ = dropout.backward({}, dropout_saved, dy)
        dz, ddown = down.backward(params["down"], down_saved, dz)
        dz, _ = gelu.backward({}, gelu_saved, dz)
        dx, dup = up.backward(params["up"], up_saved, dz)
        return dx, {"up": dup, "down": ddown}
