"""Fused residual blocks (`rotrnn.ops.block`): which blocks can run fused, which arrays they keep for backward, and
their parts as arguments of this op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import device_of
from rotrnn.devices.recording import recording
from rotrnn.nn.blocks.gate import Gate, key_of
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm, Moments, is_spread, spread_by
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Context, Gather, Layer, Params, Recurrent, State
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.ops.block import (
    BlockSaved,
    ChannelNorm,
    Gating,
    Later,
    RowNorm,
    keepable,
    kept_dtype,
    residual_block,
    residual_block_backward,
)
from rotrnn.ops.linear_layer import System
from rotrnn.ops.pointwise import channel_gain, count_steps, layer_norm


class Parts(NamedTuple):
    """Parts of a block that can run fused."""

    norm: BatchNorm | LayerNorm
    layer: LinearRecurrence
    gate: Gate


class FusedSaved(NamedTuple):
    """Saved for backward: the parts, the op's arguments (with seed and step of the gating separately, as `key`) and its
    saved arrays; the moments of a batch norm, whether they are from the batch (`train`) and whether the batch is
    distributed over processes (`spread`); the state after x."""

    parts: Parts
    norm: ChannelNorm | RowNorm
    folded: Folded[System]
    gating: Gating
    key: npt.NDArray[np.int64]
    op: BlockSaved
    moments: Moments | None
    train: bool
    spread: bool
    state: Array | None

    @property
    def lengths(self) -> npt.NDArray[np.int64] | None:
        return self.op.lengths


def parts_of(norm: Layer, layer: Recurrent, gate: Layer, ctx: Context) -> Parts | None:
    """Returns the parts of a block if it can run fused: a `LinearRecurrence`, with a norm and a gate that the kernel
    supports. Otherwise None."""
    if (
        ctx.fused
        and ctx.segments is None
        and ctx.split is None  # backward needs the gradient of the final state before it can begin
        and isinstance(norm, BatchNorm | LayerNorm)
        and type(norm) in (BatchNorm, LayerNorm)
        and isinstance(layer, LinearRecurrence)
        and layer.fusible(ctx)
        and type(layer).forward is LinearRecurrence.forward
        and type(layer).backward is LinearRecurrence.backward
        and isinstance(gate, Gate)
        and type(gate) is Gate
    ):
        return Parts(norm, layer, gate)
    return None


TRAFFIC = 10.0
"""Multiply-adds of float32 that take as long as writing a kept byte and reading it again. An array that saves fewer is
not kept. Two cores of Zen 4 do 116 multiply-adds in a nanosecond and move 35 bytes (`python -m benchmarks.machine`),
which gives 7 for a write and a read; the rest is margin, since kept bytes also displace others from the caches."""


class Choice(NamedTuple):
    """An array that a block can keep: the block's index, the name in `rotrnn.ops.block.KEEPABLE`, its size in bytes,
    and how many multiply-adds of float32 it saves for each byte."""

    block: int
    name: str
    size: int
    worth: float


def choices(block: int, parts: Parts, x: Array) -> list[Choice]:
    """Returns the arrays that a block with input x can keep. Multiply-adds of rounded operands count half: they take at
    most half the time where a processor has instructions for them."""
    B, T, D = x.shape
    K, L = 1 + parts.layer.bidirectional, 2 * parts.layer.planes
    gates = 1 + (parts.gate.form == "full")
    half = 0.5 if kept_dtype(x, "layer") != x.dtype else 1.0
    numbers = {"layer": D, "states": K * L, "products": gates * D, "gated": (1 + gates) * D, "normed": D}
    saved = {"layer": K * L * D, "states": D * L, "products": gates * D * D, "gated": gates * D * D, "normed": 0}
    sizes = {name: B * T * numbers[name] * kept_dtype(x, name).itemsize for name in keepable(x)}
    return [Choice(block, name, size, half * B * T * saved[name] / max(size, 1)) for name, size in sizes.items()]


def kept_by(blocks: Sequence[Parts | None], x: Array, ctx: Context) -> list[tuple[str, ...]]:
    """Returns the names that each block of a stack keeps for an input like x, None for blocks that do not run fused.
    Arrays that save most per byte come first, up to `Context.memory`; among equals the last blocks, whose memory is
    free again first.

    Where a device saves every state anyway, everything is kept unless a limit is set, as the states are larger.
    """
    kept: list[tuple[str, ...]] = [() for _ in blocks]
    if ctx.memory is None and not ctx.train:
        return kept
    found = [one for i, parts in enumerate(blocks) if parts is not None for one in choices(i, parts, x)]
    saves_all = device_of(x).tile == 1
    left = ctx.memory
    if left is None:
        left = sum(one.size for one in found) if saves_all else -(-len(blocks) // 2) * x.nbytes
    for one in sorted(found, key=lambda one: (-one.worth, -one.block)):
        if one.size <= left and (saves_all or one.worth > TRAFFIC):
            kept[one.block] += (one.name,)
            left -= one.size
    return kept


def forward(
    parts: Parts,
    params: Params,
    x: Array,
    ctx: Context,
    state: State,
    moments: Moments | None,
    gather: bool,
    keep: tuple[str, ...],
) -> tuple[Array, FusedSaved, Moments | None]:
    """Like `ResidualBlock.forward_in_stack`."""
    norm, layer, gate = parts
    scale, bias = params["norm"]["scale"], params["norm"]["bias"]
    statistics = None
    part: ChannelNorm | RowNorm
    if isinstance(norm, BatchNorm):
        mean, var = statistics = norm.statistics(params["norm"], x, ctx, moments)
        part = ChannelNorm(mean, channel_gain(scale, var, norm.eps), bias)
    else:
        part = RowNorm(scale, bias, norm.eps)
    folded = layer.fold_call(params["layer"], _normed(part, x, ctx) if layer.measures and ctx.train else x, ctx)
    gating = gate.gating(params["gate"], ctx)
    start = None if state is None else state[None]
    if recording() is None:  # a process may have no valid step of a distributed batch
        gather = gather and count_steps(x.shape, ctx.lengths) > 0
    weights, exact = folded.weights, layer.exact
    result = residual_block(
        x, part, weights, gating, start, lengths=ctx.lengths, moments=gather, keep=keep, exact=exact
    )
    after = None if layer.bidirectional else result.hT[0]
    kept, key = gating._replace(seed=0, step=0), key_of(gating.seed, gating.step)
    saved = FusedSaved(parts, part, folded, kept, key, result.saved, statistics, ctx.train, is_spread(ctx), after)
    return result.y, saved, result.moments


def _normed(norm: ChannelNorm | RowNorm, x: Array, ctx: Context) -> Array:
    """Returns the input of the layer, which the fused op does not return."""
    if isinstance(norm, RowNorm):
        return layer_norm(x, norm.scale, norm.bias, eps=norm.eps, lengths=ctx.lengths)[0]
    return norm.gain * (x - norm.center) + norm.offset


def backward(
    params: Params, saved: FusedSaved, dy: Array, dstate: State, later: Later | None, gather: Gather | None
) -> tuple[Array, Params, State, Later | None]:
    """Like `ResidualBlock.backward_in_stack`."""
    norm, layer, _ = saved.parts
    dhT = None if dstate is None else dstate[None]
    seed, step = saved.key.tolist()
    gating = saved.gating._replace(seed=seed, step=step)
    grads = residual_block_backward(dy, saved.norm, saved.folded.weights, gating, saved.op, dhT, later)
    dscale, dbias, after = grads.norm_product, grads.norm_sum, None
    if isinstance(norm, BatchNorm) and saved.moments is not None:
        dscale = channel_gain(dscale, saved.moments[1], norm.eps)
        if saved.train:
            by = spread_by(gather) if saved.spread else None
            x, batch = saved.op.x, saved.moments
            after = norm.through_statistics(params["norm"], x, batch, dscale, dbias, saved.lengths, by)
    dparams = {
        "norm": {"scale": dscale, "bias": dbias},
        "layer": layer.fold_backward(params["layer"], saved.folded, grads.system),
        "gate": Gate.parameters(grads.gating),
    }
    return grads.dx, dparams, None if layer.bidirectional else grads.dh0[0], after
