"""The feed-forward network of a Transformer block."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from rotrnn.nn.blocks.dense import Dense, DenseSaved
from rotrnn.nn.blocks.gate import GELU, Dropout, GeluSaved, Mask
from rotrnn.nn.layer import EVALUATION, Array, Context, Module, Params, trusted
from rotrnn.nn.listing import Listing


class ExpansionSaved(NamedTuple):
    """The saved arrays of each part; of a gated net also of the linear branch, and the two factors of the product."""

    up: DenseSaved
    gelu: GeluSaved
    down: DenseSaved
    dropout: Mask | None
    product: tuple[DenseSaved, Array, Array] | None = None


@dataclass(frozen=True)
class FeedForward(Module):
    """``dropout(W_2 GELU(W_1 x + b_1) + b_2)`` with inner width ``expand * d_model``.

    With `gated`, ``dropout(W_2 (GELU(W_1 x + b_1) * (W_v x + b_v)) + b_2)`` (GeGLU; Shazeer 2020, "GLU Variants Improve
    Transformer", eq. 6, with biases as in Griffin). Params: "up" (1), "down" (2) and, if gated, "value" (v), each as in
    `Dense`.
    """

    d_model: int
    expand: int = 4
    dropout: float = 0.0
    over_time: bool = False
    site: int = 0
    gated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_model", "expand")
        _ = self._parts  # checks the other settings

    @property
    def modules(self) -> dict[str, Dense]:
        up, _, down, _ = self._parts
        return {"up": up, "down": down, **({"value": up} if self.gated else {})}

    @property
    def draws(self) -> bool:
        return self.dropout > 0

    @functools.cached_property
    def _parts(self) -> tuple[Dense, GELU, Dense, Dropout]:
        D, E = self.d_model, self.expand * self.d_model
        return Dense(D, E), GELU(), Dense(E, D), Dropout(self.dropout, self.over_time, self.site)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        up = self._parts[0].emit(to, params["up"], x)
        z = to("GeGLU", self._parts[0].emit(to, params["value"], x), up) if self.gated else to("GELU", up)
        return self._parts[2].emit(to, params["down"], z)

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, ExpansionSaved]:
        up, gelu, down, dropout = self._parts
        z, up_saved = up.forward(params["up"], x, ctx)
        z, gelu_saved = gelu.forward({}, z, ctx)
        product = None
        if self.gated:
            value, value_saved = up.forward(params["value"], x, ctx)
            product = value_saved, z, value
            z = z * value
        z, down_saved = down.forward(params["down"], z, ctx)
        y, dropout_saved = dropout.forward({}, z, ctx)
        return y, ExpansionSaved(up_saved, gelu_saved, down_saved, dropout_saved, product)

    def backward(self, params: Params, saved: ExpansionSaved, dy: Array) -> tuple[Array, Params]:
        up, gelu, down, dropout = self._parts
        dz, _ = trusted(dropout.backward)({}, saved.dropout, dy)
        dz, ddown = trusted(down.backward)(params["down"], saved.down, dz)
        dx, dparams = None, {}
        if saved.product is not None:
            value_saved, gate, value = saved.product
            dx, dparams["value"] = trusted(up.backward)(params["value"], value_saved, dz * gate)
            dz = dz * value
        dz, _ = trusted(gelu.backward)({}, saved.gelu, dz)
        dx_up, dup = trusted(up.backward)(params["up"], saved.up, dz)
        return dx_up if dx is None else dx_up + dx, {"up": dup, "down": ddown, **dparams}
