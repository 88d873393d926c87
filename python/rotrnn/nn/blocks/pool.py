"""Pooling over time: (B, T, D) to (B, D), or (S, D) of the sequences of a packed row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import beside
from rotrnn.nn.layer import EVALUATION, Array, Context, Gather, Module, Params, State, StateArray, split_by, trusted
from rotrnn.nn.packing import Segments
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import last_pool, last_pool_backward, last_step, mean_pool, mean_pool_backward
from rotrnn.ops.split import Ranks


class PoolSaved(NamedTuple):
    """T, lengths, the share (B, 1) of a split sequence's valid steps that are in this piece, and the segments of a
    packed row."""

    seq_len: int
    lengths: npt.NDArray[np.int64] | None
    share: Array | None = None
    segments: Segments | None = None


def _of_segments(pool: Module, pooled: Callable[..., Array], x: Array, segments: Segments) -> tuple[Array, PoolSaved]:
    """Returns (result (S, D) of each sequence of a packed row, saved)."""
    if segments.ends is not None:
        raise ValueError(f"{type(pool).__name__}.forward: got reset, expected cu_seqlens, whose sequences a pool reads")
    parts = [pooled(segments.batch(group, x), lengths=group.lengths) for group in segments.groups]
    return segments.collected(parts), PoolSaved(x.shape[1], None, None, segments)


def _of_segments_backward(adjoint: Callable[..., Array], segments: Segments, dy: Array) -> Array:
    parts = [adjoint(group.of(dy), group.shape[1], lengths=group.lengths) for group in segments.groups]
    return segments.packed(parts)


def _sum_of(split: Ranks, x: Array) -> Array:
    """Returns the sum of x over the processes that share a sequence, in their order."""
    return np.sum(np.stack(split.gather(x)), 0)


@dataclass(frozen=True)
class MeanPool(Module):
    """Mean over valid steps; zero for a sequence without steps. No params.

    If sequences are split over processes, every process returns the mean over the whole sequence. The total loss is the
    sum over processes, so each must weight its loss by 1 / (number of processes).
    """

    output_forms: ClassVar[tuple[str, ...]] = ("B D",)

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, PoolSaved]:
        if ctx.segments is not None:
            return _of_segments(self, mean_pool, x, ctx.segments)
        y = mean_pool(x, lengths=ctx.lengths)
        if ctx.split is None:
            return y, PoolSaved(x.shape[1], ctx.lengths)
        steps = np.full(len(x), x.shape[1]) if ctx.lengths is None else ctx.lengths
        (total,) = _sum_of(ctx.split, steps.astype(x.dtype)[None])
        share = (steps / np.maximum(total, 1)).astype(x.dtype)[:, None]
        return _sum_of(ctx.split, share * y), PoolSaved(x.shape[1], ctx.lengths, share)

    def backward(
        self, params: Params, saved: PoolSaved, dy: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        """Returns (dx, {}). `gather` must be the same as in forward's context."""
        if saved.segments is not None:
            return _of_segments_backward(mean_pool_backward, saved.segments, dy), {}
        if saved.share is not None:
            if (split := split_by(gather)) is None:
                raise ValueError(f"MeanPool.backward: gather is {gather!r}, expected forward's gather")
            dy = _sum_of(split, dy) * saved.share
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

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, PoolSaved]:
        if ctx.split is not None:
            raise ValueError("LastPool.forward: sequences are split over processes, expected MeanPool there")
        if ctx.segments is not None:
            return _of_segments(self, last_pool, x, ctx.segments)
        return last_pool(x, lengths=ctx.lengths), PoolSaved(x.shape[1], ctx.lengths)

    def backward(self, params: Params, saved: PoolSaved, dy: Array) -> tuple[Array, Params]:
        if saved.segments is not None:
            return _of_segments_backward(last_pool_backward, saved.segments, dy), {}
        return last_pool_backward(dy, saved.seq_len, lengths=saved.lengths), {}

    def extend(self, state: State, x: Array, lengths: Array | None = None) -> tuple[Array, State]:
        """Streaming inference: returns (last step so far (B, D), state) after the next steps x. The state is this
        step."""
        args = Boundary("LastPool.extend")
        last = last_step(args.array("x", x, "B T D"), args.lengths(lengths), state)
        return last, last

    def stream_form(self, width: int) -> StateArray:
        """Returns the form of the state of `extend`."""
        return StateArray("last", (width,))


def pool_backward(pool: MeanPool | LastPool, saved: PoolSaved, dy: Array, gather: Gather | None) -> Array:
    """Returns dx of a pool without checks, with forward's `gather` if the pool takes it."""
    more = (gather,) if isinstance(pool, MeanPool) else ()
    return trusted(pool.backward)({}, saved, dy, *more)[0]


POOLS: dict[str, type[MeanPool] | type[LastPool]] = {"mean": MeanPool, "last": LastPool}
