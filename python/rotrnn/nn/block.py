"""The residual block of both papers' backbone: x + gate(layer(norm(x)))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rotrnn.nn.gate import Gate
from rotrnn.nn.layer import EVALUATION, Array, Context, Layer, Params, Recurrent, State


class BlockSaved(NamedTuple):
    """What each part saved, and the state after x."""

    norm: Any
    layer: Any
    gate: Any
    state: State


@dataclass(frozen=True)
class ResidualBlock:
    """``y = x + gate(layer(norm(x)))`` (LRU, fig. 1; RotRNN, fig. 1; pre-norm).

    The gate is GELU, dropout, GLU, dropout. Params: "norm", "layer" and "gate", each its part's own.
    """

    norm: Layer
    layer: Recurrent
    gate: Gate

    def init(self, rng: np.random.Generator) -> Params:
        return {"norm": self.norm.init(rng), "layer": self.layer.init(rng), "gate": self.gate.init(rng)}

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, BlockSaved]:
        z, norm = self.norm.forward(params["norm"], x, ctx)
        z, layer = self.layer.forward(params["layer"], z, ctx, state)
        z, gate = self.gate.forward(params["gate"], z, ctx)
        z += x
        return z, BlockSaved(norm, layer, gate, layer.state)

    def backward(
        self, params: Params, saved: BlockSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        dz, dgate = self.gate.backward(params["gate"], saved.gate, dy)
        dz, dlayer, dstate0 = self.layer.backward(params["layer"], saved.layer, dz, dstate)
        dx, dnorm = self.norm.backward(params["norm"], saved.norm, dz)
        dx += dy
        return dx, {"norm": dnorm, "layer": dlayer, "gate": dgate}, dstate0

    def step(self, params: Params, state: State, x_t: Array) -> tuple[Array, State]:
        z, _ = self.norm.forward(params["norm"], x_t[:, None])
        z_t, state = self.layer.step(params["layer"], state, z[:, 0])
        z, _ = self.gate.forward(params["gate"], z_t[:, None])
        return x_t + z[:, 0], state


class StackSaved(NamedTuple):
    """What each block saved, and their states after x."""

    blocks: tuple[BlockSaved, ...]
    state: tuple[State, ...]


@dataclass(frozen=True)
class ResidualStack:
    """Residual blocks one after the other. Its state is a tuple, one state a block. Params: "0", "1", ..."""

    blocks: tuple[ResidualBlock, ...]

    def init(self, rng: np.random.Generator) -> Params:
        return {str(i): block.init(rng) for i, block in enumerate(self.blocks)}

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, StackSaved]:
        saved = []
        for i, block in enumerate(self.blocks):
            x, one = block.forward(params[str(i)], x, ctx, None if state is None else state[i])
            saved.append(one)
        return x, StackSaved(tuple(saved), tuple(one.state for one in saved))

    def backward(
        self, params: Params, saved: StackSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        dparams: Params = {}
        dstate0: list[State] = [None] * len(self.blocks)
        for i in reversed(range(len(self.blocks))):
            given = None if dstate is None else dstate[i]
            dy, dparams[str(i)], dstate0[i] = self.blocks[i].backward(params[str(i)], saved.blocks[i], dy, given)
        return dy, dict(reversed(dparams.items())), tuple(dstate0)

    def step(self, params: Params, state: State, x_t: Array) -> tuple[Array, State]:
        after = []
        for i, block in enumerate(self.blocks):
            x_t, one = block.step(params[str(i)], None if state is None else state[i], x_t)
            after.append(one)
        return x_t, tuple(after)
