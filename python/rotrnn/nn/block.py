"""The residual block of both papers' backbone: x + gate(layer(norm(x)))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn import fused
from rotrnn.nn.fused import FusedSaved
from rotrnn.nn.gate import Gate
from rotrnn.nn.layer import EVALUATION, Array, Context, Layer, Params, Recurrent, State
from rotrnn.nn.norm import BatchNorm, Moments
from rotrnn.ops.block import Later, settle
from rotrnn.ops.pointwise import mask_padding


class PartsSaved(NamedTuple):
    """What each part saved, unfused, the state after x, and lengths."""

    norm: Any
    layer: Any
    gate: Any
    state: State
    lengths: npt.NDArray[np.int64] | None


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
    ) -> tuple[Array, PartsSaved | FusedSaved]:
        y, saved, _ = self.forward_in_stack(params, x, ctx, state, keep=ctx.train)
        return y, saved

    def backward(
        self, params: Params, saved: PartsSaved | FusedSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        dx, dparams, dstate0, later = self.backward_in_stack(params, saved, dy, dstate)
        return settle(dx, later, lengths=saved.lengths), dparams, dstate0

    def forward_in_stack(
        self,
        params: Params,
        x: Array,
        ctx: Context,
        state: State,
        moments: Moments | None = None,
        gather: bool = False,
        keep: bool = False,
    ) -> tuple[Array, PartsSaved | FusedSaved, Moments | None]:
        """(y, saved, moments of y if `gather` and they came for free); `moments`, if given, are those of x.

        `keep` saves the layer's output too, which takes memory and saves backward some work.
        """
        parts = fused.parts_of(self.norm, self.layer, self.gate, ctx)
        if parts is not None:
            return fused.forward(parts, params, x, ctx, state, moments, gather, keep)
        z, norm = self.norm.forward(params["norm"], x, ctx)
        z, layer = self.layer.forward(params["layer"], z, ctx, state)
        z, gate = self.gate.forward(params["gate"], z, ctx)
        z += mask_padding(x, ctx.lengths)
        return z, PartsSaved(norm, layer, gate, layer.state, ctx.lengths), None

    def backward_in_stack(
        self,
        params: Params,
        saved: PartsSaved | FusedSaved,
        dy: Array,
        dstate: State,
        later: Later | None = None,
    ) -> tuple[Array, Params, State, Later | None]:
        """(dx, dparams, dstate0, what is still to be added to dx); `later` is still to be added to dy."""
        if isinstance(saved, FusedSaved):
            return fused.backward(params, saved, dy, dstate, later)
        dy = settle(dy, later, lengths=saved.lengths)
        dz, dgate = self.gate.backward(params["gate"], saved.gate, dy)
        dz, dlayer, dstate0 = self.layer.backward(params["layer"], saved.layer, dz, dstate)
        dx, dnorm = self.norm.backward(params["norm"], saved.norm, dz)
        dx += mask_padding(dy, saved.lengths)
        return dx, {"norm": dnorm, "layer": dlayer, "gate": dgate}, dstate0, None

    def step(self, params: Params, state: State, x_t: Array) -> tuple[Array, State]:
        z, _ = self.norm.forward(params["norm"], x_t[:, None])
        z_t, state = self.layer.step(params["layer"], state, z[:, 0])
        z, _ = self.gate.forward(params["gate"], z_t[:, None])
        return x_t + z[:, 0], state


class StackSaved(NamedTuple):
    """What each block saved, and their states after x."""

    blocks: tuple[PartsSaved | FusedSaved, ...]
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
        self._check_state("forward", state)
        saved: list[PartsSaved | FusedSaved] = []
        moments = None
        for i, block in enumerate(self.blocks):
            before = None if state is None else state[i]
            gather = ctx.train and i + 1 < len(self.blocks) and isinstance(self.blocks[i + 1].norm, BatchNorm)
            # every second block keeps more: half as much memory again as the blocks' inputs and gradients, no more
            keep = ctx.train and (len(self.blocks) - i) % 2 == 1
            x, one, moments = block.forward_in_stack(params[str(i)], x, ctx, before, moments, gather, keep)
            saved.append(one)
        return x, StackSaved(tuple(saved), tuple(one.state for one in saved))

    def backward(
        self, params: Params, saved: StackSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        self._check_state("backward", dstate)
        dparams: Params = {}
        dstate0: list[State] = [None] * len(self.blocks)
        later = None
        for i in reversed(range(len(self.blocks))):
            given = None if dstate is None else dstate[i]
            dy, dparams[str(i)], dstate0[i], later = self.blocks[i].backward_in_stack(
                params[str(i)], saved.blocks[i], dy, given, later
            )
        lengths = saved.blocks[0].lengths if saved.blocks else None
        return settle(dy, later, lengths=lengths), dict(reversed(dparams.items())), tuple(dstate0)

    def step(self, params: Params, state: State, x_t: Array) -> tuple[Array, State]:
        self._check_state("step", state)
        after = []
        for i, block in enumerate(self.blocks):
            x_t, one = block.step(params[str(i)], None if state is None else state[i], x_t)
            after.append(one)
        return x_t, tuple(after)

    def _check_state(self, method: str, state: State) -> None:
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(
                f"ResidualStack.{method}: {len(state)} states, expected one for each of {len(self.blocks)} blocks"
            )
