"""Batch norm and layer norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, Array, Context, Params
from rotrnn.ops.pointwise import (
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_inference_backward,
    batch_norm_statistics,
    layer_norm,
    layer_norm_backward,
)

Moments = tuple[Array, Array]
"""Mean and biased variance of each channel, (D,)."""


class BatchNormSaved(NamedTuple):
    """Input, the statistics it was normalised by, and whether they were its own."""

    x: Array
    mean: Array
    var: Array
    ctx: Context


@dataclass(frozen=True)
class BatchNorm:
    """``y = scale (x - mean) / sqrt(var + eps) + bias`` for each channel, over valid steps alone.

    In training, mean and biased variance are the batch's own, and the running ones move in place:
    ``running = momentum running + (1 - momentum) batch``, the variance biased there too (as in Flax, on which the
    published models run; PyTorch's is unbiased and its momentum one less ours). In evaluation the running ones are
    used.

    Params: "scale", "bias", and the buffers "running_mean", "running_var"; all (D,).
    """

    d_model: int
    momentum: float = 0.9
    eps: float = 1e-5

    def init(self, rng: np.random.Generator) -> Params:
        ones, zeros = np.ones(self.d_model, np.float32), np.zeros(self.d_model, np.float32)
        return {"scale": ones, "bias": zeros, "running_mean": zeros.copy(), "running_var": ones.copy()}

    def statistics(self, params: Params, x: Array, ctx: Context, batch: Moments | None = None) -> Moments:
        """The mean and variance to normalise by. In training the batch's own, taken from x unless already known, and
        the running ones move."""
        running = params["running_mean"], params["running_var"]
        if not ctx.train:
            # copies: training updates the running ones in place, and this call's backward needs today's
            return running[0].copy(), running[1].copy()
        batch = batch_norm_statistics(x, lengths=ctx.lengths) if batch is None else batch
        for average, one in zip(running, batch, strict=True):
            average *= self.momentum
            average += (1 - self.momentum) * one
        return batch

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, BatchNormSaved]:
        mean, var = self.statistics(params, x, ctx)
        y = batch_norm_inference(x, params["scale"], params["bias"], mean, var, eps=self.eps, lengths=ctx.lengths)
        return y, BatchNormSaved(x, mean, var, ctx)

    def backward(self, params: Params, saved: BatchNormSaved, dy: Array) -> tuple[Array, Params]:
        adjoint = batch_norm_backward if saved.ctx.train else batch_norm_inference_backward
        x, mean, var, ctx = saved
        dx, dscale, dbias = adjoint(dy, x, params["scale"], mean, var, eps=self.eps, lengths=ctx.lengths)
        return dx, {"scale": dscale, "bias": dbias}


class LayerNormSaved(NamedTuple):
    """Input, each step's mean and reciprocal standard deviation, lengths."""

    x: Array
    mean: Array
    rstd: Array
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class LayerNorm:
    """``y = scale (x - mean) / sqrt(var + eps) + bias`` over each step's channels. Params: "scale", "bias" (D,)."""

    d_model: int
    eps: float = 1e-5

    def init(self, rng: np.random.Generator) -> Params:
        return {"scale": np.ones(self.d_model, np.float32), "bias": np.zeros(self.d_model, np.float32)}

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, LayerNormSaved]:
        y, mean, rstd = layer_norm(x, params["scale"], params["bias"], eps=self.eps, lengths=ctx.lengths)
        return y, LayerNormSaved(x, mean, rstd, ctx.lengths)

    def backward(self, params: Params, saved: LayerNormSaved, dy: Array) -> tuple[Array, Params]:
        x, mean, rstd, lengths = saved
        dx, dscale, dbias = layer_norm_backward(dy, x, params["scale"], mean, rstd, lengths=lengths)
        return dx, {"scale": dscale, "bias": dbias}


NORMS: dict[str, type[BatchNorm] | type[LayerNorm]] = {"batch": BatchNorm, "layer": LayerNorm}
