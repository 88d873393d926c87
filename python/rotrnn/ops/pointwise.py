"""Elementwise functions, norms, dropout, embedding, pooling and losses (csrc/kernels/pointwise.c).

For all functions here: arrays are float32 or float64 and are promoted to their common dtype. `lengths` (B,), integers
in [0, T], is the number of valid steps of each sequence of a (B, T, D) array; padding beyond is never read (it may be
NaN) and is zero in outputs and gradients. Gradients are new arrays; nothing is accumulated. Results have the same bits
for any number of threads. Another dtype raises TypeError; invalid shapes, lengths or settings raise ValueError.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import FUNCTION, LIST, MOST_NUMBERS
from rotrnn.devices.device import HOST, beside, device_of, empty_like, full, pooled
from rotrnn.devices.recording import RecordedLengths, recording
from rotrnn.ops.boundary import COMPLEX, REAL, Array, Boundary, CheckedLengths, ready
from rotrnn.ops.declared import Declared

if TYPE_CHECKING:
    from rotrnn._cpu import Kernels

__all__ = [
    "EmbeddingGrads",
    "GluGrads",
    "NormGrads",
    "RmsNormGrads",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
    "batch_norm_statistics",
    "binary_cross_entropy",
    "cross_entropy",
    "decay_gain",
    "decay_gain_backward",
    "dropout",
    "dropout_backward",
    "embedding",
    "embedding_backward",
    "exp",
    "exp_backward",
    "gelu",
    "gelu_backward",
    "glu",
    "glu_backward",
    "last_pool",
    "last_pool_backward",
    "layer_norm",
    "layer_norm_backward",
    "mask_padding",
    "mean_pool",
    "mean_pool_backward",
    "mean_squared_error",
    "rms_norm",
    "rms_norm_backward",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "softplus",
    "softplus_backward",
    "swiglu",
    "swiglu_backward",
    "tanh",
    "tanh_backward",
]

BATCH_NORM = Declared(
    *("channel_moments", "channel_gain", "channel_affine", "channel_sums", "channel_adjoint"),
    "channel_statistics_adjoint",
    center="mean",
    offset="bias",
)
LAYER_NORM = Declared("layer_norm_forward", "layer_norm_backward")
RMS_NORM = Declared("rms_norm_forward", "rms_norm_backward")
EMBEDDING = Declared("embedding_forward", "embedding_backward")
MEAN_POOL = Declared("mean_pool_forward", "mean_pool_backward")
RESULTS = {name: [one[1] for one in arguments if one[0] == "write"] for name, (_, arguments) in LIST.items()}


def _same(op: str, lengths: npt.ArrayLike | None, **arrays: Any) -> tuple[Kernels, dict[str, Any], dict[str, Any]]:
    """Checks arrays of one shape: (B, T, D) with `lengths`, any shape without. Returns the kernels, the arrays by name,
    and lengths and sizes by name."""
    first, *others = arrays.values()
    if lengths is None and ready(first, *others) and all(one.shape == first.shape for one in others):
        return HOST.kernels, arrays, {"lengths": None, "B": 1, "T": first.size, "D": 1}
    args = Boundary(op)
    rank = args.any_array(*next(iter(arrays.items()))).ndim
    form = "B T D" if lengths is not None else " ".join(f"d{axis}" for axis in range(rank))
    common = args.common(*[args.array(name, value, form) for name, value in arrays.items()])
    checked = dict(zip(arrays, common, strict=True))
    if lengths is None:
        return args.kernels, checked, {"lengths": None, "B": 1, "T": common[0].size, "D": 1}
    return args.kernels, checked, {"lengths": args.lengths(lengths), **args.sizes("B T D")}


def _elementwise(
    op: str, kernel: str, lengths: npt.ArrayLike | None, function: str | None = None, **arrays: npt.ArrayLike
) -> list[Any]:
    """Calls a kernel whose arrays are all of one shape. Returns its results."""
    kernels, call, sizes = _same(op, lengths, **arrays)
    like, results = next(iter(call.values())), []
    for argument in RESULTS[kernel]:
        call[argument] = result = empty_like(like)
        results.append(result)
    if function is not None:
        call["function"] = FUNCTION[function]
    getattr(kernels, kernel)(**call, **sizes)
    return results


def _unary(function: str, x: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Array:
    return _elementwise(function, "elementwise", lengths, function, x=x)[0]


def _unary_backward(function: str, dy: npt.ArrayLike, x: npt.ArrayLike, lengths: npt.ArrayLike | None) -> Array:
    return _elementwise(f"{function}_backward", "elementwise_backward", lengths, function, dy=dy, x=x)[0]


# ------------------------------------------------------------------------------------------------- elementwise


def exp(x: npt.ArrayLike) -> Array:
    """``e^x`` of an array of any shape, within 2 ulp.

    Results below 2^-125.5 (float32) or 2^-1021.5 (float64) are zero, so that no subnormal number is computed.
    """
    return _unary("exp", x)


def exp_backward(dy: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """``dx = dy y``, with y as returned by `exp`."""
    ady, ay = _same("exp_backward", None, dy=dy, y=y)[1].values()
    return pooled(np.multiply, ady, ay)


def sigmoid(x: npt.ArrayLike) -> Array:
    """``s(x) = 1 / (1 + e^-x)`` of an array of any shape, within 3 ulp; 0 where e^-x overflows, from about -88.7 (in
    float64 -709.8) down."""
    return _unary("sigmoid", x)


def sigmoid_backward(dy: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """``dx = dy y (1 - y)``, with y as returned by `sigmoid`."""
    ady, ay = _same("sigmoid_backward", None, dy=dy, y=y)[1].values()
    return pooled(np.multiply, pooled(np.multiply, ady, ay), pooled(np.subtract, 1, ay))


def tanh(x: npt.ArrayLike) -> Array:
    """Hyperbolic tangent of an array of any shape, within 4 ulp."""
    return _unary("tanh", x)


def tanh_backward(dy: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """``dx = dy (1 - y^2)``, with y as returned by `tanh`."""
    ady, ay = _same("tanh_backward", None, dy=dy, y=y)[1].values()
    return pooled(np.multiply, pooled(np.multiply, ady, pooled(np.subtract, 1, ay)), pooled(np.add, 1, ay))


def gelu(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """GELU in its tanh form, ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (Hendrycks and Gimpel 2016).

    Its value at -infinity is the limit, -0.

    Parameters
    ----------
    x : (B, T, D) with `lengths`; any shape without

    Returns
    -------
    y : shape of x
    """
    return _unary("gelu", x, lengths)


def gelu_backward(dy: npt.ArrayLike, x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """``dx = dy GELU'(x)``; arguments as in `gelu`."""
    return _unary_backward("gelu", dy, x, lengths)


def silu(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """SiLU, also called swish: ``x s(x)`` with the sigmoid s (Elfwing et al. 2018, eq. 4).

    Its value at -infinity is the limit, -0.

    Parameters
    ----------
    x : (B, T, D) with `lengths`; any shape without

    Returns
    -------
    y : shape of x
    """
    return _unary("silu", x, lengths)


def silu_backward(dy: npt.ArrayLike, x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """``dx = dy s(x) (1 + x s(-x))``; arguments as in `silu`."""
    return _unary_backward("silu", dy, x, lengths)


def softplus(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """``log(1 + e^x)``, without overflow and to full relative accuracy, within 4 ulp (Dugas et al. 2001).

    Results below 2^-125.5 (float32) or 2^-1021.5 (float64) are zero, as in `exp`.

    Parameters
    ----------
    x : (B, T, D) with `lengths`; any shape without

    Returns
    -------
    y : shape of x
    """
    return _unary("softplus", x, lengths)


def softplus_backward(dy: npt.ArrayLike, x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """``dx = dy s(x)``; arguments as in `softplus`."""
    return _unary_backward("softplus", dy, x, lengths)


def decay_gain(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """``sqrt(1 - e^{2x})`` for x <= 0, accurate near zero, within 4 ulp; NaN for x > 0.

    With the decay ``a = e^x`` it is the gain of the input in ``h_t = a h_{t-1} + sqrt(1 - a^2) x_t`` that keeps the
    variance of h (LRU, RG-LRU).

    Parameters
    ----------
    x : (B, T, D) with `lengths`; any shape without

    Returns
    -------
    y : shape of x
    """
    return _unary("decay_gain", x, lengths)


def decay_gain_backward(dy: npt.ArrayLike, x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """``dx = -2 dy e^{2x} / sqrt(max(4 (1 - e^{2x}), 1e-6))``; arguments as in `decay_gain`.

    The slope of the root is at most 1000, as in the authors' code of the RG-LRU (De et al. 2024,
    google-deepmind/recurrentgemma); from x = -1.25e-7 up this is smaller than the derivative.
    """
    return _unary_backward("decay_gain", dy, x, lengths)


class GluGrads(NamedTuple):
    """Gradients of `glu` or `swiglu`, in the shape of value and gate."""

    dvalue: Array
    dgate: Array


def glu(value: npt.ArrayLike, gate: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Gated linear unit, ``y = value * s(gate)`` with the sigmoid s (Dauphin et al. 2017, eq. 1).

    For a gate below -88.72 (float32) or -709.78 (float64), e^-gate overflows and y is zero for any value.

    Parameters
    ----------
    value, gate : (B, T, D) with `lengths`; any one shape without

    Returns
    -------
    y : shape of value
    """
    return _elementwise("glu", "glu_forward", lengths, value=value, gate=gate)[0]


def glu_backward(
    dy: npt.ArrayLike, value: npt.ArrayLike, gate: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None
) -> GluGrads:
    """``dvalue = dy s(gate)``, ``dgate = dy value s(gate) s(-gate)``; arguments as in `glu`."""
    return GluGrads(*_elementwise("glu_backward", "glu_backward", lengths, dy=dy, value=value, gate=gate))


def swiglu(value: npt.ArrayLike, gate: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Gated unit ``y = value * SiLU(gate)`` (Shazeer 2020, "GLU Variants Improve Transformer"), as in Mamba.

    Computed as `glu` of ``value * gate``, which must not overflow.

    Parameters
    ----------
    value, gate : (B, T, D) with `lengths`; any one shape without

    Returns
    -------
    y : shape of value
    """
    return _elementwise("swiglu", "swiglu_forward", lengths, value=value, gate=gate)[0]


def swiglu_backward(
    dy: npt.ArrayLike, value: npt.ArrayLike, gate: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None
) -> GluGrads:
    """``dvalue = dy SiLU(gate)``, ``dgate = dy value s(gate) (1 + gate s(-gate))``; arguments as in `swiglu`."""
    return GluGrads(*_elementwise("swiglu_backward", "swiglu_backward", lengths, dy=dy, value=value, gate=gate))


def mask_padding(x: npt.ArrayLike, lengths: npt.ArrayLike | None) -> Array:
    """Returns x (B, T, D, ...) with zeroed padding, as a new array; without `lengths`, x itself, of any shape.

    This function is its own adjoint.
    """
    if lengths is None:
        return _same("mask_padding", None, x=x)[1]["x"]
    x = Boundary("mask_padding").any_array("x", x)
    if x.ndim > 3:
        return mask_padding(x.reshape(*x.shape[:2], math.prod(x.shape[2:])), lengths).reshape(x.shape)
    return _elementwise("mask_padding", "mask_padding", lengths, x=x)[0]


def flip(x: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Array:
    """Reverses the valid steps of each sequence of x (B, T, D); padding stays in place. It is its own adjoint."""
    args = Boundary("flip")
    x = args.array("x", x, "B T D", kinds=REAL + COMPLEX)
    if lengths is None:
        return x[:, ::-1].copy()
    t = args.device.asarray(np.arange(x.shape[1]))
    steps = args.lengths(lengths).on(args.device)[:, None]  # type: ignore[union-attr]
    return np.take_along_axis(x, np.where(t < steps, steps - 1 - t, t)[..., None], 1)


# ----------------------------------------------------------------------------------------------------- dropout

LAST_PLACE = 2**32 - 1
"""The place used for numbers that are drawn for a whole batch; no sequence has it."""


def check_dropout(
    args: Boundary, rate: float, seed: int, step: int, site: int, places: npt.ArrayLike | None
) -> npt.NDArray[np.int64] | None:
    """Checks rate and key of a mask for sequences (B, T, D), whose sizes are bound in `args`. Returns their places."""
    if not args.number("rate", rate) < 1:
        raise ValueError(f"{args.op}: rate is {rate}, expected 0 <= rate < 1")
    for key, value, bits in (("seed", seed, 63), ("step", step, 32), ("site", site, 32)):
        if not args.integer(key, value) < 1 << bits:
            raise ValueError(f"{args.op}: {key} is {value}, expected 0 <= {key} < 2^{bits}")
    if rate and (numbers := args.size["T"] * args.size["D"]) > 1 << 34:
        raise ValueError(f"{args.op}: a mask of {numbers} numbers per sequence, expected at most 2^34")
    if places is None:
        return None
    return args.device.asarray(args.counts("places", places, LAST_PLACE - 1, "2^32 - 2"))


def _dropout(
    op: str, name: str, x: Any, rate: float, key: tuple[int, int, int], over_time: bool, places: Any, lengths: Any
) -> Array:
    args = Boundary(op)
    (ax,) = args.common(args.array(name, x, "B T D"))
    own, over_time = check_dropout(args, rate, *key, places), args.flag("over_time", over_time)
    y: Array = np.empty_like(ax)
    seed, step, site = key
    steps, sizes = args.lengths(lengths), args.sizes("B T D")
    args.kernels.dropout(
        y=y, x=ax, lengths=steps, places=own, **sizes, rate=rate, seed=seed, step=step, site=site, over_time=over_time
    )
    return y


def dropout(
    x: npt.ArrayLike,
    rate: float,
    *,
    seed: int,
    step: int,
    site: int,
    over_time: bool = False,
    places: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """Dropout with a recomputable mask: ``y = x m / (1 - rate)``, where m is zero with probability `rate`, else 1.

    The mask is not stored. Element i of a sequence's flattened (T, D) uses number ``i % 4`` of the Philox-4x32-10 block
    (Salmon et al. 2011) at counter ``(i // 4, place, step, site)`` with key `seed`, and is kept if this number is at
    least ``2^32 rate``. The mask is the same in either dtype, for any number of threads, with or without `lengths` or
    padding, and for any part of a batch with the same `places`. Dropout is linear and its own adjoint.

    Parameters
    ----------
    x : (B, T, D)
    rate : float
        Probability of a zero, 0 <= rate < 1.
    seed, step, site : int
        Key of the mask: the seed of the run (below 2^63), the training step, and the site in the model (below 2^32).
    over_time : bool
        Draw one number per sequence and channel, the number of step 0, and use it for all steps.
    places : (B,) integers, optional
        Index of each sequence in the whole batch, below 2^32 - 1. Default: 0..B-1.

    Returns
    -------
    y : (B, T, D)
    """
    return _dropout("dropout", "x", x, rate, (seed, step, site), over_time, places, lengths)


def dropout_backward(
    dy: npt.ArrayLike,
    rate: float,
    *,
    seed: int,
    step: int,
    site: int,
    over_time: bool = False,
    places: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """``dx = dy m / (1 - rate)`` with the mask of `dropout` for the same key; arguments as in `dropout`."""
    return _dropout("dropout_backward", "dy", dy, rate, (seed, step, site), over_time, places, lengths)


# ------------------------------------------------------------------------------------------------------- norms


class NormGrads(NamedTuple):
    """Gradients of a norm: of x (B, T, D), scale (D,) and bias (D,)."""

    dx: Array
    dscale: Array
    dbias: Array


def count_steps(shape: tuple[int, ...], steps: npt.NDArray[np.int64] | None) -> Any:
    """Returns the number of valid steps of an array (B, T, D): an integer, or an array on the device while it
    records."""
    if isinstance(steps, RecordedLengths):
        return steps.on(HOST).sum()
    return shape[0] * shape[1] if steps is None else int(np.asarray(steps).sum())


def _valid_steps(args: Boundary, steps: npt.NDArray[np.int64] | None) -> Any:
    count = count_steps((args.size["B"], args.size["T"]), steps)
    if recording() is None and not count:
        raise ValueError(f"{args.op}: x has no valid step to take statistics over, expected at least one")
    return count


def _moments(args: Boundary) -> tuple[Array, Array]:
    _valid_steps(args, args.given["lengths"])
    mean, var = args.run("channel_moments").values()
    args.given.update(mean=mean, var=var)
    return mean, var


def _affine(args: Boundary, eps: float) -> Array:
    """Returns ``scale (x - mean) / sqrt(var + eps) + bias`` for each channel."""
    args.given.update(args.run("channel_gain", eps=eps))
    return args.run("channel_affine")["y"]


def batch_norm_statistics(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> tuple[Array, Array]:
    """Mean and biased variance (D,) of each channel of x (B, T, D) over all valid (b, t), as used by `batch_norm`.

    Raises
    ------
    ValueError
        Also if no step is valid.
    """
    args = Boundary("batch_norm_statistics")
    args.take(BATCH_NORM, x=x, lengths=lengths)
    return _moments(args)


def batch_norm(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Batch normalisation with the statistics of x (Ioffe and Szegedy 2015, algorithm 1).

    ``y = scale (x - mean) / sqrt(var + eps) + bias`` with mean and biased variance of each channel over all valid
    (b, t). The variance is computed by chunks from deviations from the mean, not as a difference of squares.

    Parameters
    ----------
    x : (B, T, D)
    scale, bias : (D,)

    Returns
    -------
    y : (B, T, D)
    mean, var : (D,)
        The statistics, for `batch_norm_backward` and the running averages. No gradient passes through them.

    Raises
    ------
    ValueError
        Also if no step is valid.
    """
    args = Boundary("batch_norm")
    eps = args.number("eps", eps)
    args.take(BATCH_NORM, x=x, scale=scale, bias=bias, lengths=lengths)
    mean, var = _moments(args)
    return _affine(args, eps), mean, var


def batch_norm_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    mean: npt.ArrayLike,
    var: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    lengths: npt.ArrayLike | None = None,
) -> NormGrads:
    """Adjoint of `batch_norm`, including the gradient through its statistics.

    With ``r = 1 / sqrt(var + eps)``, ``xhat = (x - mean) r``, n valid steps and sums over them:
    ``dbias = sum dy``, ``dscale = sum dy xhat``, ``dx = scale r (dy - dbias/n - xhat dscale/n)``.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`.
    x, scale, eps, lengths
        As given to `batch_norm`.
    mean, var : (D,)
        As returned by `batch_norm`.
    """
    args = Boundary("batch_norm_backward")
    return _batch_norm_backward(args, eps, True, dy=dy, x=x, scale=scale, mean=mean, var=var, lengths=lengths)


def _batch_norm_backward(args: Boundary, eps: float, through_statistics: bool, **arrays: Any) -> NormGrads:
    eps = args.number("eps", eps)
    given = args.take(BATCH_NORM, **arrays)
    scale, var, steps = given["scale"], given["var"], given["lengths"]
    rstd = 1 / np.sqrt(var + eps)
    dbias, product = args.run("channel_sums").values()
    dscale = product * rstd
    slope = offset = np.zeros_like(var)
    if through_statistics:
        _valid_steps(args, steps)
        slope, offset = statistics_adjoint(scale, var, eps, dscale, dbias, given["x"].shape, steps)
    dx: Array = args.run("channel_adjoint", gain=scale * rstd, slope=slope, offset=offset)["dx"]
    return NormGrads(dx, dscale, dbias)


def channel_gain(scale: Array, var: Array, eps: float) -> Array:
    """Returns ``scale / sqrt(var + eps)``, all (D,)."""
    args = Boundary("channel_gain")
    args.take(BATCH_NORM, scale=scale, var=var)
    return args.run("channel_gain", eps=eps)["gain"]


def running_moments(running_mean: Array, running_var: Array, mean: Array, var: Array, momentum: float) -> None:
    """Updates running moments in place by a batch's moments: ``running = momentum running + (1 - momentum) batch``, all
    (D,) and of the dtype that the running ones have. A channel whose mean or variance is not finite is left out."""
    args = Boundary("BatchNorm")
    mean, var = (args.array(name, one, "D") for name, one in (("mean", mean), ("var", var)))
    mean, var = (args.layout(one, running_mean.dtype) for one in (mean, var))
    for name, one in (("running_mean", running_mean), ("running_var", running_var)):
        args.out(name, one, mean.shape, mean.dtype, mean, var)
    args.kernels.running_moments(
        running_mean=running_mean, running_var=running_var, mean=mean, var=var, D=mean.size, momentum=momentum
    )


def statistics_adjoint(
    scale: Array,
    var: Array,
    eps: float,
    dscale: Array,
    dbias: Array,
    shape: tuple[int, ...],
    lengths: npt.NDArray[np.int64] | None,
    steps: Array | None = None,
) -> tuple[Array, Array]:
    """Returns slope and shift of the gradient of batch norm's x through the statistics: ``slope (x - mean) + shift``.

    All (D,); ``slope = -scale rstd^2 dscale / n``, ``shift = -scale rstd dbias / n`` with ``rstd = 1 / sqrt(var +
    eps)``. n is the number of valid steps of x, of this shape (B, T, D) and with these `lengths`; or `steps` (1,),
    float64, of a batch that is distributed over processes.
    """
    args = Boundary("statistics_adjoint")
    args.take(BATCH_NORM, scale=scale, var=var, dscale=dscale, dbias=dbias)
    given: dict[str, Any] = {"lengths": None if steps is not None else lengths, "steps": steps, "eps": eps}
    slope, shift = args.run("channel_statistics_adjoint", **given, B=shape[0], T=shape[1]).values()
    return slope, shift


def batch_norm_inference(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    mean: npt.ArrayLike,
    var: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    lengths: npt.ArrayLike | None = None,
) -> Array:
    """`batch_norm` with given statistics, an affine map per channel: ``scale (x - mean) / sqrt(var + eps) + bias``.

    Parameters
    ----------
    x : (B, T, D)
    scale, bias, mean, var : (D,)

    Returns
    -------
    y : (B, T, D)
    """
    args = Boundary("batch_norm_inference")
    eps = args.number("eps", eps)
    args.take(BATCH_NORM, x=x, scale=scale, bias=bias, mean=mean, var=var, lengths=lengths)
    return _affine(args, eps)


def batch_norm_inference_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    mean: npt.ArrayLike,
    var: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    lengths: npt.ArrayLike | None = None,
) -> NormGrads:
    """Adjoint of `batch_norm_inference`: as `batch_norm_backward`, but mean and var are constants, so
    ``dx = scale r dy``."""
    args = Boundary("batch_norm_inference_backward")
    return _batch_norm_backward(args, eps, False, dy=dy, x=x, scale=scale, mean=mean, var=var, lengths=lengths)


def layer_norm(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    lengths: npt.ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Layer normalisation over the channels of each step (Ba et al. 2016).

    ``y = scale (x - mean) rstd + bias``, ``rstd = 1 / sqrt(var + eps)`` with the biased variance.

    Parameters
    ----------
    x : (B, T, D)
    scale, bias : (D,)

    Returns
    -------
    y : (B, T, D)
    mean, rstd : (B, T)
        Statistics for `layer_norm_backward`; undefined at padding.
    """
    args = Boundary("layer_norm")
    eps = args.number("eps", eps)
    args.take(LAYER_NORM, x=x, scale=scale, bias=bias, lengths=lengths)
    y, mean, rstd = args.run("layer_norm_forward", eps=eps).values()
    return y, mean, rstd


def layer_norm_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    mean: npt.ArrayLike,
    rstd: npt.ArrayLike,
    *,
    lengths: npt.ArrayLike | None = None,
) -> NormGrads:
    """Adjoint of `layer_norm`.

    With ``xhat = (x - mean) rstd``, ``g = dy scale`` and < > the mean over the channels of a step:
    ``dx = rstd (g - <g> - xhat <g xhat>)``; ``dscale = sum dy xhat`` and ``dbias = sum dy`` over all valid steps.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`.
    x, scale, lengths
        As given to `layer_norm`.
    mean, rstd : (B, T)
        As returned by `layer_norm`.
    """
    args = Boundary("layer_norm_backward")
    args.take(LAYER_NORM, dy=dy, x=x, scale=scale, mean=mean, rstd=rstd, lengths=lengths)
    return NormGrads(**args.run("layer_norm_backward"))


class RmsNormGrads(NamedTuple):
    """Gradients of `rms_norm`: of x (B, T, D) and scale (D,)."""

    dx: Array
    dscale: Array


def rms_norm(
    x: npt.ArrayLike, scale: npt.ArrayLike, *, eps: float = 1e-5, lengths: npt.ArrayLike | None = None
) -> tuple[Array, Array]:
    """Root mean square normalisation over the channels of each step (Zhang and Sennrich 2019, eq. 4).

    ``y = scale x rstd``, ``rstd = 1 / sqrt(mean(x^2) + eps)``: `layer_norm` without mean and bias.

    Parameters
    ----------
    x : (B, T, D)
    scale : (D,)
    eps : float
        Added to the mean of squares.

    Returns
    -------
    y : (B, T, D)
    rstd : (B, T)
        Statistic for `rms_norm_backward`; undefined at padding.
    """
    args = Boundary("rms_norm")
    eps = args.number("eps", eps)
    args.take(RMS_NORM, x=x, scale=scale, lengths=lengths)
    y, rstd = args.run("rms_norm_forward", eps=eps).values()
    return y, rstd


def rms_norm_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    rstd: npt.ArrayLike,
    *,
    lengths: npt.ArrayLike | None = None,
) -> RmsNormGrads:
    """Adjoint of `rms_norm`.

    With ``xhat = x rstd``, ``g = dy scale`` and < > the mean over the channels of a step:
    ``dx = rstd (g - xhat <g xhat>)``; ``dscale = sum dy xhat`` over all valid steps.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`.
    x, scale, lengths
        As given to `rms_norm`.
    rstd : (B, T)
        As returned by `rms_norm`.
    """
    args = Boundary("rms_norm_backward")
    args.take(RMS_NORM, dy=dy, x=x, scale=scale, rstd=rstd, lengths=lengths)
    return RmsNormGrads(**args.run("rms_norm_backward"))


# --------------------------------------------------------------------------------------------------- embedding


def check_indices(args: Boundary, name: str, array: Array, bound: int, padding: Any = None, or_else: str = "") -> None:
    """Checks that `Boundary.integers` are in [0, bound) except where `padding` is true. Errors end with `or_else`."""
    if recording() is not None:
        return
    bad = array.view(np.uint64) >= bound  # a negative number is 2^63 or more
    if padding is not None:
        bad &= ~padding
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        place = ", ".join(map(str, at))
        expected = f"an integer from 0 to {bound - 1}" if bound else "none, because there is no class or row"
        raise ValueError(f"{args.op}: {name}[{place}] is {array[at]}, expected {expected}{or_else}")


def _valid_ids(args: Boundary, ids: Array, vocab: int) -> Array:
    """Checks ids. Returns them with zeros in padding, because kernels refuse others there, too."""
    steps, padding = args.given["lengths"], None
    if steps is not None and recording() is None:  # recorded ids are zero in padding
        padding = args.device.asarray(np.arange(ids.shape[1]) >= steps[:, None])
    check_indices(args, "ids", ids, vocab, padding)
    return ids if padding is None else np.where(padding, 0, ids)


def embedding(
    ids: npt.ArrayLike, table: npt.ArrayLike, bias: npt.ArrayLike | None = None, *, lengths: npt.ArrayLike | None = None
) -> Array:
    """Rows of a table, ``y[b, t] = table[ids[b, t]] + bias``: a linear map of one-hot vectors, without forming them.

    Parameters
    ----------
    ids : (B, T), int64 or int32
        Token ids, in [0, V) at every valid step; padding may have any value. They are copied before they are checked.
    table : (V, D)
    bias : (D,), optional

    Returns
    -------
    y : (B, T, D)

    Raises
    ------
    ValueError
        Also if an id is out of range; the message names its position.
    """
    args = Boundary("embedding")
    aids = args.integers("ids", ids, "B T")
    args.take(EMBEDDING, table=table, bias=bias, lengths=lengths)
    return args.run("embedding_forward", ids=_valid_ids(args, aids, args.size["V"]))["y"]


def rows_of(table: Array, rows: Array, lengths: CheckedLengths | None = None) -> Array:
    """Returns ``table[rows[b, t]]`` (B, T, D), zero beyond the lengths: the `embedding` of rows (B, T) int64 that are
    known to be in the table (V, D), in padding too."""
    args = Boundary("rows_of")
    for letter, size in zip("BT", rows.shape, strict=True):
        args.bind(letter, size, "rows")
    args.take(EMBEDDING, table=table, bias=None, lengths=lengths)
    return args.run("embedding_forward", ids=rows)["y"]


class EmbeddingGrads(NamedTuple):
    """Gradients of `embedding`: of table (V, D) and bias (D,)."""

    dtable: Array
    dbias: Array


def embedding_backward(
    dy: npt.ArrayLike, ids: npt.ArrayLike, vocab: int, *, lengths: npt.ArrayLike | None = None
) -> EmbeddingGrads:
    """Adjoint of `embedding`: ``dtable[v]`` is the sum of dy over the valid steps with id v, ``dbias`` over all.

    Each sum has a fixed order for any number of threads.

    Parameters
    ----------
    dy : (B, T, D)
        Gradient of `y`.
    ids, lengths
        As given to `embedding`.
    vocab : int
        V, the number of rows of the table.
    """
    args = Boundary("embedding_backward")
    args.bind("V", args.integer("vocab", vocab), f"vocab={vocab}")
    ady = args.take(EMBEDDING, dy=dy, lengths=lengths)["dy"]
    args.check_size(f"dtable with vocab={vocab}", (vocab, ady.shape[2]), ady.dtype)
    aids = args.integers("ids", ids, "B T")
    dtable = args.run("embedding_backward", ids=_valid_ids(args, aids, vocab))["dtable"]
    return EmbeddingGrads(dtable, dtable.sum(axis=0))


# ----------------------------------------------------------------------------------------------------- pooling


def mean_pool(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Mean over the valid steps of x (B, T, D), as (B, D); zero for a sequence without steps."""
    args = Boundary("mean_pool")
    args.take(MEAN_POOL, x=x, lengths=lengths)
    return args.run("mean_pool_forward")["y"]


def mean_pool_backward(dy: npt.ArrayLike, seq_len: int, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Adjoint of `mean_pool`: (B, T = seq_len, D) with dy (B, D) over the number of valid steps, at each of them."""
    args = Boundary("mean_pool_backward")
    args.bind("T", args.integer("seq_len", seq_len, 0, MOST_NUMBERS), f"seq_len={seq_len}")
    args.take(MEAN_POOL, dy=dy, lengths=lengths)
    return args.run("mean_pool_backward")["dx"]


def last_index(y: Array, lengths: Any) -> tuple[Array, Array, Array]:
    """Returns the sequences of y (B, T, ...), the index of their last step (of the first if there is none), and
    (B, 1, ...) whether there is one. `lengths` are checked (`Boundary.lengths`)."""
    B, T = y.shape[:2]
    steps: Any = CheckedLengths.of(np.full(B, T), B, T) if lengths is None else lengths
    on = steps.on(device_of(y))
    return beside(np.arange(B), y), np.maximum(on - 1, 0), (on > 0).reshape(B, *[1] * (y.ndim - 2))


def last_step(y: Array, lengths: Any, before: Array | None = None) -> Array:
    """Returns the last valid step of each sequence of y (B, T, ...); `before` (B, ...), or zero, for a sequence without
    steps."""
    if before is None:
        before = full((len(y), *y.shape[2:]), 0, y.dtype, like=y)
    if not y.shape[1]:
        return before.copy()
    b, t, there = last_index(y, lengths)
    return np.where(there, y[b, t], before)


def last_step_backward(dlast: Array | None, dy: Array, lengths: Any) -> Array:
    """Adjoint of `last_step`: adds `dlast` to dy (B, T, ...), and returns the gradient of `before`."""
    none = full((len(dy), *dy.shape[2:]), 0, dy.dtype, like=dy)
    if dlast is None:
        return none
    b, t, there = last_index(dy, lengths)
    if dy.shape[1]:
        dy[b, t] += np.where(there, dlast, none)
    return np.where(there, none, dlast)


def last_pool(x: npt.ArrayLike, *, lengths: npt.ArrayLike | None = None) -> Array:
    """The last valid step of x (B, T, D), as (B, D); zero for a sequence without steps."""
    args = Boundary("last_pool")
    (ax,) = args.common(args.array("x", x, "B T D"))
    return last_step(ax, args.lengths(lengths))


def last_pool_backward(dy: npt.ArrayLike, seq_len: int, *, lengths: npt.ArrayLike | None = None) -> Array:
    """Adjoint of `last_pool`: dy (B, D) at the last valid step, zero elsewhere; (B, T = seq_len, D)."""
    args = Boundary("last_pool_backward")
    (ady,) = args.common(args.array("dy", dy, "B D"))
    args.bind("T", args.integer("seq_len", seq_len, 0, MOST_NUMBERS), "seq_len")
    B, D = ady.shape
    args.check_size(f"dx with seq_len={seq_len}", (B, seq_len, D), ady.dtype)
    dx = args.zeros((B, seq_len, D), ady.dtype)
    b, t, there = last_index(dx, args.lengths(lengths))
    if seq_len:
        dx[b, t] = np.where(there, ady, ady.dtype.type(0))
    return dx


# -------------------------------------------------------------------------------------------------------- loss


def _counted(args: Boundary, labels: Array, bound: int, ignored: int | None) -> tuple[Array | None, Any]:
    """Checks labels. Returns where they count (None: everywhere), and how many do, a number where the labels are."""
    if not labels.size:
        raise ValueError(f"{args.op}: labels has shape {labels.shape}, expected at least one label")
    if ignored is None:
        check_indices(args, "labels", labels, bound, or_else="; `ignored` names a label that does not count")
        return None, full((), labels.size, np.int64, labels)
    counted = labels != args.integer("ignored", ignored, -(2**63))
    check_indices(args, "labels", labels, bound, ~counted, f", or {ignored} for a label that does not count")
    count: Any = counted.sum(dtype=np.int64)
    if recording() is None and not count:
        raise ValueError(f"{args.op}: labels has none that counts, expected one that is not {ignored}")
    return counted, count


def loss_weights(
    args: Boundary, name: str, weights: npt.ArrayLike | None, shape: tuple[int, ...] | None, logits: Array
) -> Array | None:
    """Returns checked weights of that shape beside the logits, in their dtype; None for a shape that takes none."""
    if weights is None:
        return None
    own = Boundary(args.op)
    given = own.any_array(name, weights)
    given = own.array(name, _as(given, logits) if given.dtype.kind in "biu" else given, "n", "B T")
    if given.shape != shape:
        expected = "none with logits (n,)" if shape is None else f"{shape}"
        raise ValueError(f"{args.op}: {name} has shape {given.shape}, expected {expected}")
    kept = _as(given, logits)
    if recording() is None and not (fits := np.isfinite(kept) & (kept >= 0)).all():
        raise ValueError(f"{args.op}: {name} has {given[~fits][0]}, expected finite numbers of at least 0")
    return args.layout(kept if device_of(kept) is device_of(logits) else beside(kept, logits), logits.dtype)


def _as(values: Array, logits: Array) -> Array:
    """Returns values in the dtype of the logits; those that it does not have are infinite."""
    with np.errstate(over="ignore"):
        return values.astype(logits.dtype, copy=False)


def cross_entropy(
    logits: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    ignored: int | None = None,
    weights: npt.ArrayLike | None = None,
    label_smoothing: float = 0.0,
    sample_weights: npt.ArrayLike | None = None,
) -> tuple[float, Array]:
    """Mean cross-entropy loss with softmax, and its gradient.

    ``loss = mean_b (log sum_c exp(z_bc) - z_b,label)``, relative to the largest logit and so without overflow;
    ``dlogits = (softmax(z) - onehot(label)) / n``, where the mean is over the n labels that are not `ignored`. With
    weights, the term of each label is multiplied by the weight of its class, and n is still their number: so means over
    parts of a batch, weighted by their numbers of labels, are the mean over all of it.

    In general, with shares q_bc of the classes (one-hot, of labels), weights w_c of classes and s_b of samples, and a
    label smoothing e (Szegedy et al. 2016, section 7):

        ``t_bc = w_c ((1 - e) q_bc + e / C)``, ``loss = sum_b s_b sum_c t_bc (log sum_j exp(z_bj) - z_bc) / n``,
        ``dlogits = s_b (softmax(z) sum_c t_bc - t_b) / n``.

    Shares and weights are read in the dtype of the logits; weights may be integers and booleans. The terms equal
    PyTorch's `cross_entropy` with ``reduction="none"``, where ``reduction="mean"`` divides by the sum of the labels'
    weights instead of n.

    Parameters
    ----------
    logits : (B, C) or (B, T, C)
    labels : (B,) or (B, T), int8 to int64 or uint8 to uint32, in [0, C); or like `logits`
        Of floats, the share of each class, finite and at least 0: probabilities, whose sum need not be 1.
    ignored : int, optional
        A label that does not count (PyTorch's ``ignore_index``): its logits may be NaN, and its gradient is zero.
    weights : (C,), optional
        A finite weight of each class, at least 0.
    label_smoothing : float
        In [0, 1].
    sample_weights : (B,) or (B, T), optional
        A finite weight of each label, at least 0; n does not change. Where it is 0, logits may be NaN.

    Returns
    -------
    loss : float
    dlogits : like `logits`
        Gradient of `loss`.

    Raises
    ------
    ValueError
        Also if a label is out of range (the message names its position) or none counts.
    """
    args = Boundary("cross_entropy")
    (alogits,) = args.common(args.array("logits", logits, "B C", "B T C"))
    *lead, C = alogits.shape
    form = "B" if len(lead) == 1 else "B T"
    given: dict[str, Any] = {"weights": loss_weights(args, "weights", weights, (C,), alogits), "count": None}
    given |= {"row_weights": loss_weights(args, "sample_weights", sample_weights, tuple(lead), alogits)}
    given |= {"smoothing": args.number("label_smoothing", label_smoothing), "labels": None, "targets": None}
    if given["smoothing"] > 1:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}, expected a number from 0 to 1")
    of_shares = (given_labels := args.any_array("labels", labels)).dtype.kind == "f"
    is_number = given_labels.dtype.kind in "iuf"
    if not is_number or given_labels.ndim != len(lead) + of_shares:
        got = f"labels has shape {given_labels.shape} and dtype {given_labels.dtype}"
        integers, floats = ("(B,)", "(B, C)") if form == "B" else ("(B, T)", "(B, T, C)")
        error = ValueError if is_number else TypeError
        raise error(f"cross_entropy: {got}, expected integers {integers} or floats {floats}")
    if of_shares:
        if ignored is not None:
            raise ValueError(f"cross_entropy: ignored is {ignored} with labels of floats, expected sample_weights of 0")
        (shares,) = args.common(args.array("labels", labels, f"{form} C"))
        given["targets"] = targets = _as(shares, alogits)
        if not math.prod(lead):
            raise ValueError(f"cross_entropy: labels has shape {targets.shape}, expected at least one label")
        if recording() is None and not (fits := np.isfinite(targets) & (targets >= 0)).all():
            raise ValueError(f"cross_entropy: labels has {shares[~fits][0]}, expected finite shares of at least 0")
        count: Any = full((), math.prod(lead), np.int64, alogits)
    else:
        alabels = args.integers("labels", labels, form)
        counted, count = _counted(args, alabels, C, ignored)
        given["labels"] = alabels if counted is None else np.where(counted, alabels, -1)
        given["count"] = None if counted is None else count.reshape(1)
    losses, dlogits = args.empty(tuple(lead), alogits.dtype), np.empty_like(alogits)
    args.kernels.cross_entropy(loss=losses, dlogits=dlogits, logits=alogits, B=losses.size, C=C, **given)
    mean: Any = losses.sum(dtype=np.float64) / count
    return mean if recording() is not None else float(mean), dlogits


def binary_cross_entropy(
    logits: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    ignored: int | None = None,
    weights: npt.ArrayLike | None = None,
    sample_weights: npt.ArrayLike | None = None,
) -> tuple[float, Array]:
    """Mean cross-entropy loss of independent bits, which are 1 with probability ``s(z)``, and its gradient.

    With x = -z for label 1 and x = z for label 0, ``loss = mean(log(1 + e^x))``, without overflow;
    ``dlogits = (s(z) - label) / n = -+s(x) / n``. This equals `cross_entropy` with the two logits 0 and z: only the
    difference of two logits matters. n is the number of labels that are not `ignored`.

    Parameters
    ----------
    logits : (n,) or (B, T, K)
    labels : like `logits`, 0 and 1, int8 to int64 or uint8 to uint32
    ignored : int, optional
        As in `cross_entropy`.
    weights : (K,), optional
        With logits (B, T, K): factors of the terms of the labels 1 of each bit (PyTorch's ``pos_weight``), finite and
        at least 0. n does not change. Weights may be integers and booleans.
    sample_weights : (n,) or (B, T), optional
        Factors of all terms of a step, finite and at least 0; n does not change. Where it is 0, logits may be NaN.

    Returns
    -------
    loss : float
    dlogits : like `logits`
        Gradient of `loss`.

    Raises
    ------
    ValueError
        Also if a label is not 0 or 1 (the message names its position) or none counts.
    """
    args = Boundary("binary_cross_entropy")
    (z,) = args.common(args.array("logits", logits, "n", "B T K"))
    alabels = args.integers("labels", labels, "n" if z.ndim == 1 else "B T K")
    counted, count = _counted(args, alabels, 2, ignored)
    of_steps = loss_weights(args, "sample_weights", sample_weights, z.shape[:2], z)
    if of_steps is not None:
        of_steps = of_steps if z.ndim == 1 else of_steps[..., None]
        counted = of_steps > 0 if counted is None else counted & (of_steps > 0)
    one, zero = alabels == 1, z.dtype.type(0)
    x = np.where(one, -z, z)
    if counted is not None:
        x = np.where(counted, x, zero)
    on = sigmoid(x)
    losses, dlogits = softplus(x), np.where(one, -on, on)
    of_ones = loss_weights(args, "weights", weights, z.shape[-1:] if z.ndim > 1 else None, z)
    if of_ones is not None:
        weight = np.where(one, of_ones, z.dtype.type(1))
        losses, dlogits = losses * weight, dlogits * weight
    if of_steps is not None:
        losses, dlogits = losses * of_steps, dlogits * of_steps
    if counted is not None:
        losses, dlogits = np.where(counted, losses, zero), np.where(counted, dlogits, zero)
    mean: Any = losses.sum(dtype=np.float64) / count
    return mean if recording() is not None else float(mean), dlogits / count.astype(z.dtype)


def mean_squared_error(predictions: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[float, Array]:
    """Mean squared error of predictions, and its gradient.

    ``loss = mean((p - y)^2)`` and ``dpredictions = 2 (p - y) / n``, where the mean is over the n targets that are not
    NaN; the prediction of a target that is NaN may be NaN, and its gradient is zero.

    Parameters
    ----------
    predictions : any shape
    targets : like `predictions`
        In the unit of the predictions.

    Returns
    -------
    loss : float
        In that unit, squared; infinite if float64 does not have it.
    dpredictions : like `predictions`
        Gradient of `loss`.

    Raises
    ------
    ValueError
        Also if no target counts.
    """
    args = Boundary("mean_squared_error")
    predictions = args.any_array("predictions", predictions)
    letters = " ".join(f"d{i}" for i in range(predictions.ndim))
    p, y = args.common(args.array("predictions", predictions, letters), args.array("targets", targets, letters))
    counted = ~np.isnan(y)
    count: Any = counted.sum(dtype=np.int64)
    if recording() is None and not count:
        raise ValueError("mean_squared_error: targets has none that counts, expected one that is not NaN")
    error = np.where(counted, p - y, p.dtype.type(0))
    with np.errstate(over="ignore"):  # of float64; squares of float32 do not overflow in it
        mean: Any = (error.astype(np.float64) ** 2).sum() / count
    return mean if recording() is not None else float(mean), 2 * error / count.astype(p.dtype)
