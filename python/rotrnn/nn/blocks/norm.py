"""Batch norm, layer norm and RMS norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import empty, is_writeable
from rotrnn.devices.recording import recording
from rotrnn.nn.layer import EVALUATION, Array, Context, Gather, Layer, Module, Params, trusted
from rotrnn.nn.listing import Listing
from rotrnn.ops.block import Later, settle
from rotrnn.ops.pointwise import (
    batch_norm_backward,
    batch_norm_inference,
    batch_norm_inference_backward,
    batch_norm_statistics,
    count_steps,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
    running_moments,
    statistics_adjoint,
)

Moments = tuple[Array, Array]
"""Mean and biased variance of each channel, (D,)."""


def _check_eps(norm: BatchNorm | LayerNorm | RMSNorm) -> None:
    if not norm.eps >= 0:
        raise ValueError(f"{type(norm).__name__}: eps={norm.eps!r}, expected a nonnegative number")


class BatchNormSaved(NamedTuple):
    """Saved for backward: input, the statistics used, whether they are from the batch (`train`) and whether the batch
    is distributed over processes, and lengths."""

    x: Array
    mean: Array
    var: Array
    train: bool
    spread: bool
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class BatchNorm(Module):
    """``y = scale (x - mean) / sqrt(var + eps) + bias`` for each channel, with statistics over valid steps only.

    In training, mean and biased variance are taken over the whole batch, also if it is distributed over processes
    (`Context.gather`), and the running statistics are updated in place: ``running = momentum running + (1 - momentum)
    batch``. The running variance is biased, too, as in Flax, which the published models use. (PyTorch's running
    variance is unbiased, and its momentum is one minus ours.) In evaluation the running statistics are used.

    The squares of a channel must not overflow: in float32, ``|x|`` below about 1e19. Where a batch's mean or variance
    is not finite, it does not change the running statistics.

    Params: "scale", "bias", and the buffers "running_mean", "running_var"; all (D,).
    """

    d_model: int
    momentum: float = 0.9
    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_model")
        _check_eps(self)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"BatchNorm: momentum={self.momentum!r}, expected a number in [0, 1)")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("scale", "bias", "running_mean", "running_var"), (self.d_model,))

    def init(self, rng: np.random.Generator) -> Params:
        ones, zeros = np.ones(self.d_model, np.float32), np.zeros(self.d_model, np.float32)
        return {"scale": ones, "bias": zeros, "running_mean": zeros.copy(), "running_var": ones.copy()}

    def statistics(self, params: Params, x: Array, ctx: Context, batch: Moments | None = None) -> Moments:
        """Returns the mean and variance to normalise with. In training they are the batch's, and the running statistics
        are updated. `batch` are the statistics of x, if already known."""
        running = params["running_mean"], params["running_var"]
        if not ctx.train:
            # copies, because training updates the running statistics in place before this call's backward
            return running[0].copy(), running[1].copy()
        if ctx.gather is not None:
            batch = _merged(x, ctx, ctx.gather, batch)
        elif batch is None:
            batch = batch_norm_statistics(x, lengths=ctx.lengths)
        for name, average in zip(("mean", "var"), running, strict=True):
            if not is_writeable(average):
                raise ValueError(f"BatchNorm: parameter running_{name} is read-only, but training updates it")
        running_moments(*running, *batch, self.momentum)
        return batch

    def emit(self, to: Listing, params: Params, x: int) -> int:
        """By the running statistics."""
        wide = to.exact(params)
        gain = wide["scale"] / np.sqrt(wide["running_var"] + self.eps)
        return to("BatchNorm", x, gain, params["running_mean"], params["bias"])

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, BatchNormSaved]:
        mean, var = self.statistics(params, x, ctx)
        y = batch_norm_inference(x, params["scale"], params["bias"], mean, var, eps=self.eps, lengths=ctx.lengths)
        return y, BatchNormSaved(x, mean, var, ctx.train, is_spread(ctx), ctx.lengths)

    def backward(
        self, params: Params, saved: BatchNormSaved, dy: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        """Returns (dx, dparams). `gather` must be the same as in forward's context."""
        x, mean, var, train, spread, lengths = saved
        adjoint = batch_norm_backward if train and not spread else batch_norm_inference_backward
        dx, dscale, dbias = adjoint(dy, x, params["scale"], mean, var, eps=self.eps, lengths=lengths)
        if spread:  # then dx depends on sums over all processes
            later = self.through_statistics(params, x, (mean, var), dscale, dbias, lengths, spread_by(gather))
            dx = settle(dx, later, lengths=lengths)
        return dx, {"scale": dscale, "bias": dbias}

    def through_statistics(
        self, params: Params, x: Array, batch: Moments, dscale: Array, dbias: Array,
        lengths: npt.NDArray[np.int64] | None, gather: Gather | None,
    ) -> Later:  # fmt: skip
        """Returns the part of dx, in training, that goes through the `batch` statistics. Needs `gather` if the batch is
        distributed."""
        steps = None
        if gather is not None:
            sums = np.concatenate(gather(_row(dscale, dbias, count_steps(x.shape, lengths), like=dscale))).sum(0)
            dscale, dbias = (one.astype(dscale.dtype) for one in np.split(sums[1:], 2))
            steps = sums[:1]
        mean, var = batch
        scale = params["scale"]
        terms = statistics_adjoint(scale, var, self.eps, dscale, dbias, x.shape, lengths, steps)
        return Later(x, mean, *terms)


def norm_backward(norm: Layer, params: Params, saved: Any, dy: Array, gather: Gather | None) -> tuple[Array, Params]:
    """``norm.backward`` without checks, with forward's `gather` if the norm takes it."""
    if isinstance(norm, BatchNorm):
        return trusted(norm.backward)(params, saved, dy, gather)
    return trusted(norm.backward)(params, saved, dy)


def is_spread(ctx: Context) -> bool:
    """Returns whether a forward uses the statistics of a batch that is distributed over processes."""
    return ctx.train and ctx.gather is not None


def spread_by(gather: Gather | None) -> Gather:
    """Returns the `gather` given to the backward of a distributed batch; raises ValueError if it is None."""
    if gather is None:
        raise ValueError(
            "BatchNorm.backward: gather is None, expected forward's gather: the batch is distributed over processes"
        )
    return gather


def _merged(x: Array, ctx: Context, gather: Gather, own: Moments | None) -> Moments:
    """Returns mean and variance of a batch that is distributed over processes. x is the part of this process, and `own`
    are its moments, if known.

    The moments of the parts are merged in float64, in the order of the processes (Chan, Golub and LeVeque 1983,
    eqs. 1.5).
    """
    D = x.shape[2]
    n = count_steps(x.shape, ctx.lengths)
    recorded = recording() is not None  # then every process has a valid step
    if own is None and (recorded or n):
        own = batch_norm_statistics(x, lengths=ctx.lengths)
    first, second = (0.0, 0.0) if own is None else own
    parts = np.concatenate(gather(_row(first, second, n, like=x)))
    counts, means, variances = parts[:, :1], parts[:, 1 : 1 + D], parts[:, 1 + D :]
    total = counts.sum()
    if not recorded and not total:
        raise ValueError("BatchNorm: no process has a valid step to take statistics over, expected at least one")
    mean = (counts * means).sum(0) / total
    var = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    return mean.astype(x.dtype), var.astype(x.dtype)


def _row(first: Any, second: Any, n: Any, like: Array) -> Array:
    """Returns a row of float64: n, and two vectors (D,) or zeros, on the device of `like` (..., D)."""
    D = like.shape[-1]
    row = empty((1, 1 + 2 * D), np.float64, like=like)
    row[0, 0], row[0, 1 : 1 + D], row[0, 1 + D :] = n, first, second
    return row


class LayerNormSaved(NamedTuple):
    """Input, mean and reciprocal standard deviation of each step, lengths."""

    x: Array
    mean: Array
    rstd: Array
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class LayerNorm(Module):
    """``y = scale (x - mean) / sqrt(var + eps) + bias``, with statistics over the channels of each step. Params:
    "scale", "bias" (D,)."""

    d_model: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_model")
        _check_eps(self)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("scale", "bias"), (self.d_model,))

    def init(self, rng: np.random.Generator) -> Params:
        return {"scale": np.ones(self.d_model, np.float32), "bias": np.zeros(self.d_model, np.float32)}

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return to("LayerNorm", x, params["scale"], params["bias"], eps=self.eps)

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, LayerNormSaved]:
        y, mean, rstd = layer_norm(x, params["scale"], params["bias"], eps=self.eps, lengths=ctx.lengths)
        return y, LayerNormSaved(x, mean, rstd, ctx.lengths)

    def backward(self, params: Params, saved: LayerNormSaved, dy: Array) -> tuple[Array, Params]:
        x, mean, rstd, lengths = saved
        dx, dscale, dbias = layer_norm_backward(dy, x, params["scale"], mean, rstd, lengths=lengths)
        return dx, {"scale": dscale, "bias": dbias}


class RMSNormSaved(NamedTuple):
    """Input, reciprocal root mean square of each step, lengths."""

    x: Array
    rstd: Array
    lengths: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class RMSNorm(Module):
    """``y = scale x / sqrt(mean(x^2) + eps)``, with the mean over the channels of each step (Zhang and Sennrich 2019,
    eq. 4): the norm of the released Mamba. Params: "scale" (D,)."""

    d_model: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_model")
        _check_eps(self)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"scale": (self.d_model,)}

    def init(self, rng: np.random.Generator) -> Params:
        return {"scale": np.ones(self.d_model, np.float32)}

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return to("RMSNorm", x, params["scale"], eps=self.eps, gain=1.0)

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, RMSNormSaved]:
        y, rstd = rms_norm(x, params["scale"], eps=self.eps, lengths=ctx.lengths)
        return y, RMSNormSaved(x, rstd, ctx.lengths)

    def backward(self, params: Params, saved: RMSNormSaved, dy: Array) -> tuple[Array, Params]:
        x, rstd, lengths = saved
        dx, dscale = rms_norm_backward(dy, x, params["scale"], rstd, lengths=lengths)
        return dx, {"scale": dscale}


NORMS: dict[str, type[BatchNorm] | type[LayerNorm] | type[RMSNorm]] = {
    "batch": BatchNorm,
    "layer": LayerNorm,
    "rms": RMSNorm,
}
