"""Pools over time: (B, T, D) to (B, D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, Array, Context, Params
from rotrnn.ops.pointwise import last_pool, last_pool_backward, mean_pool, mean_pool_backward


class PoolSaved(NamedTuple):
    """T and lengths."""

    seq_len: int
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class MeanPool:
    """Mean over valid steps; zero for a sequence without any. No params."""

    def init(self, rng: np.random.Generator) -> Params:
        return {}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, PoolSaved]:
        return mean_pool(x, lengths=ctx.lengths), PoolSaved(x.shape[1], ctx.lengths)

    def backward(self, params: Params, saved: PoolSaved, dy: Array) -> tuple[Array, Params]:
        return mean_pool_backward(dy, saved.seq_len, lengths=saved.lengths), {}


@dataclass(frozen=True)
class LastPool:
    """The last valid step; zero for a sequence without any. No params."""

    def init(self, rng: np.random.Generator) -> Params:
        return {}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, PoolSaved]:
        return last_pool(x, lengths=ctx.lengths), PoolSaved(x.shape[1], ctx.lengths)

    def backward(self, params: Params, saved: PoolSaved, dy: Array) -> tuple[Array, Params]:
        return last_pool_backward(dy, saved.seq_len, lengths=saved.lengths), {}


POOLS: dict[str, type[MeanPool] | type[LastPool]] = {"mean": MeanPool, "last": LastPool}
