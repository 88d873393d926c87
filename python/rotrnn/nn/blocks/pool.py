"""Pooling over time: (B, T, D) to (B, D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, Array, Context, Module, Params, State, StateArray
from rotrnn.ops.device import beside
from rotrnn.ops.pointwise import last_pool, last_pool_backward, mean_pool, mean_pool_backward


class PoolSaved(NamedTuple):
    """T and lengths."""

    seq_len: int
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class MeanPool(Module):
    """Mean over valid steps; zero for a sequence without steps. No params."""

    output_forms: ClassVar[tuple[str, ...]] = ("B D",)

    def init(self, rng: np.random.Generator) -> Params:
        return {}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, PoolSaved]:
        return mean_pool(x, lengths=ctx.lengths), PoolSaved(x.shape[1], ctx.lengths)

    def backward(self, params: Params, saved: PoolSaved, dy: Array) -> tuple[Array, Params]:
        return mean_pool_backward(dy, saved.seq_len, lengths=saved.lengths), {}

    def extend(self, state: State, x: Array, lengths: Array | None = None) -> tuple[Array, State]:
        """Streaming inference: returns (mean of all steps so far (B, D), state) after the next steps x. The state is
        (mean, number of steps)."""
        new = np.full(len(x), x.shape[1], np.int64) if lengths is None else np.asarray(lengths, np.int64)
        mean = mean_pool(x, lengths=lengths)
        if state is None:
            return mean, (mean, new)
        before, count = state
        after = count + new
        mean = before + (mean - before) * beside((new / np.maximum(after, 1)).astype(mean.dtype)[:, None], mean)
        return mean, (mean, after)

    def stream_form(self, width: int) -> tuple[StateArray, ...]:
        """Returns the form of the state of `extend`."""
        return StateArray("mean", (width,)), StateArray("count", (), "integer")


@dataclass(frozen=True)
class LastPool(Module):
    """The last valid step; zero for a sequence without steps. No params."""

    output_forms: ClassVar[tuple[str, ...]] = ("B D",)

    def init(self, rng: np.random.Generator) -> Params:
        return {}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, PoolSaved]:
        return last_pool(x, lengths=ctx.lengths), PoolSaved(x.shape[1], ctx.lengths)

    def backward(self, params: Params, saved: PoolSaved, dy: Array) -> tuple[Array, Params]:
        return last_pool_backward(dy, saved.seq_len, lengths=saved.lengths), {}

    def extend(self, state: State, x: Array, lengths: Array | None = None) -> tuple[Array, State]:
        """Streaming inference: returns (last step so far (B, D), state) after the next steps x. The state is this
        step."""
        last = last_pool(x, lengths=lengths)
        if state is not None:
            went_on = np.full(len(x), x.shape[1]) if lengths is None else np.asarray(lengths)
            last = np.where(beside(went_on[:, None] > 0, last), last, state)
        return last, last

    def stream_form(self, width: int) -> StateArray:
        """Returns the form of the state of `extend`."""
        return StateArray("last", (width,))


POOLS: dict[str, type[MeanPool] | type[LastPool]] = {"mean": MeanPool, "last": LastPool}
