"""Rows of the ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cases.table import Arrays, Case, beside, normal, padding, pointwise_case, scan_loop, valid_steps
from rotrnn.ops import pointwise
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.mixer import householder_mix, householder_mix_backward
from rotrnn.ops.random import philox
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward, rotation_scan, rotation_scan_backward

# ---------------------------------------------------------------------------------------------------------- scans


def diagonal_case(
    B: int, T: int, N: int, *, lanes: str = "real", varying: bool = False, reverse: bool = False,
    lengths: Any = None, modulus: float = 1.0,
) -> Case:  # fmt: skip
    is_complex = lanes == "complex"

    def make(rng: np.random.Generator) -> Arrays:
        shape = (B, T, N) if varying else (N,)
        if is_complex:
            a = modulus * np.exp(1j * rng.uniform(-np.pi, np.pi, shape))
        else:
            a = modulus * rng.choice([-1.0, 1.0], shape) * rng.uniform(0.9, 1.0, shape)
        return {"a": a, "x": normal(rng, (B, T, N), is_complex), "h0": normal(rng, (B, N), is_complex)}

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = diagonal_scan(**args, reverse=reverse, lengths=lengths, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = diagonal_scan_backward(
            doutputs[0], args["a"], outputs[0], args["h0"], dhT=doutputs[1], reverse=reverse, lengths=lengths
        )
        return {"a": grads.da, "x": grads.dx, "h0": grads.dh0}

    padded = padding(lengths, "x", "out0", *(("a",) if varying else ()))
    flags = "".join([" varying" * varying, " reverse" * reverse, " ragged" * (lengths is not None)])
    return Case(
        f"diagonal_scan {lanes}{flags} {B}x{T}x{N}",
        make,
        forward,
        backward,
        lambda args: scan_loop(**args, reverse=reverse, lengths=lengths),
        terms=4 * T + 4,
        linear=(("x", "h0"),),
        ragged=padded,
        lengths=lengths,
    )


def rotation_loop(
    theta: Any, gamma: Any, x: Any, h0: Any, reverse: bool = False, lengths: Any = None
) -> tuple[Any, Any]:
    """h_t = gamma R(theta) h_{t-1} + x_t with 2x2 rotation matrices; theta (H, P) or (B, T, H, P)."""
    B, T, N = x.shape
    H, P = theta.shape[-2:]
    width = N // H
    h = np.zeros((B, T, N), x.dtype)
    hT = np.array(h0)
    for b in range(B):
        steps = range(T if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            for head in range(H):
                angles = theta[b, t, head] if theta.ndim == 4 else theta[head]
                decay = gamma[b, t, head] if gamma.ndim == 3 else gamma[head]
                rotation = np.eye(width)
                for p in range(P):
                    c, s = np.cos(angles[p]), np.sin(angles[p])
                    rotation[2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = [[c, -s], [s, c]]
                lanes = slice(head * width, (head + 1) * width)
                hT[b, lanes] = decay * rotation @ hT[b, lanes] + x[b, t, lanes]
            h[b, t] = hT[b]
    return h, hT


def rotation_case(
    B: int, T: int, H: int, width: int, *, varying: bool = False, reverse: bool = False, lengths: Any = None
) -> Case:
    P, N = width // 2, H * width
    lead = (B, T) if varying else ()

    def make(rng: np.random.Generator) -> Arrays:
        return {
            "theta": rng.uniform(0, 2 * np.pi, (*lead, H, P)),
            "gamma": rng.uniform(0.9, 1.0, (*lead, H)),
            "x": normal(rng, (B, T, N)),
            "h0": normal(rng, (B, N)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = rotation_scan(**args, reverse=reverse, lengths=lengths, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = rotation_scan_backward(
            doutputs[0], args["theta"], args["gamma"], outputs[0], args["h0"],
            dhT=doutputs[1], reverse=reverse, lengths=lengths,
        )  # fmt: skip
        return {"theta": grads.dtheta, "gamma": grads.dgamma, "x": grads.dx, "h0": grads.dh0}

    padded = padding(lengths, "x", "out0", *(("theta", "gamma") if varying else ()))
    flags = "".join([" varying" * varying, " reverse" * reverse, " ragged" * (lengths is not None)])
    return Case(
        f"rotation_scan{flags} {B}x{T} heads {H}x{width}",
        make,
        forward,
        backward,
        lambda args: rotation_loop(**args, reverse=reverse, lengths=lengths),
        terms=6 * T + 6,
        linear=(("x", "h0"),),
        ragged=padded,
        lengths=lengths,
    )


SCANS = [
    *(diagonal_case(2, T, 3, lanes=lanes) for lanes in ("real", "complex") for T in (0, 1, 2, 13, 64, 257)),
    *(
        diagonal_case(3, 17, 5, lanes=lanes, varying=varying, reverse=reverse, lengths=lengths)
        for lanes in ("real", "complex")
        for varying in (False, True)
        for reverse in (False, True)
        for lengths in (None, (17, 0, 5))
        if varying or reverse or lengths
    ),
    diagonal_case(2, 9, 300, lanes="real"),
    diagonal_case(2, 9, 300, lanes="complex", varying=True, reverse=True),  # more than one block of lanes
    diagonal_case(8, 40, 130, lanes="complex", lengths=(40, 0, 7, 39, 40, 1, 33, 40)),  # enough lanes for threads
    diagonal_case(1, 40, 2100, lanes="complex", lengths=(35,)),  # more than one block of the widest
    diagonal_case(3, 130, 260, lanes="complex", lengths=(130, 7, 129)),  # enough for segments of time
    diagonal_case(1, 300, 130, lanes="real"),
    diagonal_case(1, 300, 130, lanes="complex", reverse=True),
    diagonal_case(2, 300, 130, lanes="real", reverse=True, lengths=(257, 0)),
    diagonal_case(2, 300, 130, lanes="complex", lengths=(128, 300)),
    diagonal_case(3, 130, 260, lanes="real", varying=True),
    diagonal_case(1, 4, 0),
    diagonal_case(0, 4, 3, lanes="complex"),
    *(
        rotation_case(3, 11, 2, width, varying=varying, reverse=reverse, lengths=lengths)
        for width in (1, 2, 4, 5)
        for varying, reverse, lengths in ((False, False, None), (True, False, (11, 0, 4)), (False, True, (3, 11, 1)))
    ),
]

# ---------------------------------------------------------------------------------------------------------- dense


def dense_case(shape: tuple[int, ...], d_out: int) -> Case:
    D = shape[-1]

    def make(rng: np.random.Generator) -> Arrays:
        return {"x": normal(rng, shape), "w": normal(rng, (d_out, D)), "bias": normal(rng, (d_out,))}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = dense_backward(doutputs[0], args["x"], args["w"])
        return {"x": grads.dx, "w": grads.dw, "bias": grads.dbias}

    return Case(
        f"dense {'x'.join(map(str, shape))} to {d_out}",
        make,
        lambda args: (dense(**args),),
        backward,
        lambda args: (np.einsum("...d,od->...o", args["x"], args["w"]) + args["bias"],),
        terms=D + int(np.prod(shape[:-1])) + 2,  # the weights' gradient sums over the rows
        linear=(("w", "bias"), ("x", "bias")),
    )


DENSE = [
    *(
        dense_case(shape, d_out)
        for shape, d_out in (
            ((7, 3), 5),
            ((2, 3, 4), 1),
            ((1, 9), 65),
            ((0, 3), 2),
            ((4, 0), 3),
            ((8, 4), 16),
            ((5, 8), 8),
        )
    ),
    dense_case((1100, 70), 33),  # more than one block of rows, groups, panels and edges
    dense_case((127, 64), 128),
]

# --------------------------------------------------------------------------------------------------------- mixers


def householder_product(u: Any, alpha: Any) -> Any:
    """(I - 2 alpha_1 w_1 w_1^T) (I - 2 alpha_2 w_2 w_2^T) ..., formed."""
    Q = np.eye(u.shape[-1])
    for u_i, alpha_i in zip(u, alpha, strict=True):
        Q = Q @ (np.eye(len(u_i)) - 2 * alpha_i * np.outer(u_i, u_i) / (u_i @ u_i))
    return Q


def householder_loop(u: Any, alpha: Any, x: Any, lengths: Any = None) -> tuple[Any]:
    """y_t = Q_t x_t, token after token."""
    y = np.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            Q = householder_product(u[b, t] if u.ndim == 4 else u, alpha[b, t] if alpha.ndim == 3 else alpha)
            y[b, t] = Q @ x[b, t]
    return (y,)


def householder_case(
    B: int, T: int, R: int, D: int, *, u_varies: bool = False, alpha_varies: bool = False, lengths: Any = None
) -> Case:
    def make(rng: np.random.Generator) -> Arrays:
        return {
            "u": normal(rng, (B, T, R, D) if u_varies else (R, D)),
            "alpha": rng.uniform(-0.2, 1.2, (B, T, R) if alpha_varies else (R,)),
            "x": normal(rng, (B, T, D)),
        }

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = householder_mix_backward(doutputs[0], **args, lengths=lengths)
        return {"u": grads.du, "alpha": grads.dalpha, "x": grads.dx}

    padded = {}
    if lengths is not None:
        padded = {"x": lengths, "out0": lengths}
        padded |= {"u": lengths} if u_varies else {}
        padded |= {"alpha": lengths} if alpha_varies else {}
    flags = "".join([" u(t)" * u_varies, " alpha(t)" * alpha_varies, " ragged" * (lengths is not None)])
    return Case(
        f"householder_mix{flags} {B}x{T}x{D} by {R}",
        make,
        lambda args: (householder_mix(**args, lengths=lengths),),
        backward,
        lambda args: householder_loop(**args, lengths=lengths),
        terms=4 * (D + 4) * (R + 1) + B * T,  # the gradients of constant u and alpha sum over the tokens
        linear=(("x",),),
        ragged=padded,
        lengths=lengths,
    )


MIXERS = [
    *(
        householder_case(2, T, R, D, u_varies=u_varies, alpha_varies=alpha_varies)
        for T, R, D in ((5, 3, 4), (1, 1, 1), (3, 2, 37), (0, 2, 3), (2, 0, 3), (2, 2, 0))
        for u_varies in (False, True)
        for alpha_varies in (False, True)
    ),
    *(
        householder_case(3, 7, 2, 5, u_varies=varies, alpha_varies=varies, lengths=(7, 0, 3))
        for varies in (False, True)
    ),
    householder_case(3, 100, 2, 33),  # more than one group of tokens
    householder_case(3, 150, 2, 40, lengths=(150, 3, 149)),  # enough of them for threads
    householder_case(0, 3, 2, 3),
]

# ------------------------------------------------------------------------------------------------------ pointwise


def sigmoid_formula(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gelu_formula(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gain_of_softplus(x: Any, *, lengths: Any) -> Any:
    """decay_gain of -softplus(x), a number below 0: the root of 1 - s(-x)^2."""
    return pointwise.decay_gain(-pointwise.softplus(x, lengths=lengths), lengths=lengths)


def gain_of_softplus_backward(dy: Any, x: Any, *, lengths: Any) -> Any:
    below = -pointwise.softplus(x, lengths=lengths)
    return pointwise.softplus_backward(-pointwise.decay_gain_backward(dy, below, lengths=lengths), x, lengths=lengths)


def unary_case(name: str, op: Any, adjoint: Any, formula: Any, shape: tuple[int, ...]) -> Case:
    """An op whose backward takes forward's result."""
    return pointwise_case(name, {"x": shape}, op, lambda dy, x: (adjoint(dy, op(x)),), formula, terms=64)


def norm_formula(axes: Any, lengths: Any = None, eps: float = 1e-5) -> Callable[[Any, Any, Any], Any]:
    def formula(x: Any, scale: Any, bias: Any) -> Any:
        n = valid_steps(x.shape, lengths) if axes == (0, 1) else np.ones_like(x)
        count = n.sum(axes, keepdims=True)
        mean = (n * x).sum(axes, keepdims=True) / count
        var = (n * (x - mean) ** 2).sum(axes, keepdims=True) / count
        return (x - mean) / np.sqrt(var + eps) * scale + bias

    return formula


def batch_norm_case(shape: tuple[int, ...], lengths: Any = None) -> Case:
    def backward(dy: Any, x: Any, scale: Any, bias: Any) -> tuple[Any, ...]:
        _, mean, var = pointwise.batch_norm(x, scale, bias, lengths=lengths)
        return pointwise.batch_norm_backward(dy, x, scale, mean, var, lengths=lengths)

    return pointwise_case(
        "batch_norm",
        {"x": shape, "scale": shape[2:], "bias": shape[2:]},
        lambda *args: pointwise.batch_norm(*args, lengths=lengths)[0],
        backward,
        norm_formula((0, 1), lengths),
        lengths=lengths,
        terms=shape[0] * shape[1] + 30,
        linear=(("scale", "bias"),),
    )


def batch_norm_inference_case(shape: tuple[int, ...], lengths: Any = None) -> Case:
    def statistics(x: Any) -> tuple[Any, Any]:
        d = beside(np.arange(shape[2], dtype=x.dtype), x)
        return d, d / 4 + 1

    def backward(dy: Any, x: Any, scale: Any, bias: Any) -> tuple[Any, ...]:
        return pointwise.batch_norm_inference_backward(dy, x, scale, *statistics(x), lengths=lengths)

    def formula(x: Any, scale: Any, bias: Any) -> Any:
        mean, var = statistics(x)
        return (x - mean) / np.sqrt(var + 1e-5) * scale + bias

    return pointwise_case(
        "batch_norm_inference",
        {"x": shape, "scale": shape[2:], "bias": shape[2:]},
        lambda x, scale, bias: pointwise.batch_norm_inference(x, scale, bias, *statistics(x), lengths=lengths),
        backward,
        formula,
        lengths=lengths,
        terms=shape[0] * shape[1] + 30,
        linear=(("scale", "bias"), ("x", "bias")),
    )


def layer_norm_case(shape: tuple[int, ...], lengths: Any = None) -> Case:
    def backward(dy: Any, x: Any, scale: Any, bias: Any) -> tuple[Any, ...]:
        _, mean, rstd = pointwise.layer_norm(x, scale, bias, lengths=lengths)
        return pointwise.layer_norm_backward(dy, x, scale, mean, rstd, lengths=lengths)

    return pointwise_case(
        "layer_norm",
        {"x": shape, "scale": shape[2:], "bias": shape[2:]},
        lambda *args: pointwise.layer_norm(*args, lengths=lengths)[0],
        backward,
        norm_formula(2),
        lengths=lengths,
        # with two channels rstd reaches 1 / sqrt(eps) = 300 and every rounding with it
        terms=sum(shape) + shape[0] * shape[1] + 30 + 5000 * (shape[2] == 2),
        linear=(("scale", "bias"),),
    )


def rms_norm_case(shape: tuple[int, ...], lengths: Any = None) -> Case:
    def backward(dy: Any, x: Any, scale: Any) -> tuple[Any, ...]:
        _, rstd = pointwise.rms_norm(x, scale, lengths=lengths)
        return pointwise.rms_norm_backward(dy, x, scale, rstd, lengths=lengths)

    return pointwise_case(
        "rms_norm",
        {"x": shape, "scale": shape[2:]},
        lambda *args: pointwise.rms_norm(*args, lengths=lengths)[0],
        backward,
        lambda x, scale: scale * x / np.sqrt((x * x).sum(2, keepdims=True) / max(shape[2], 1) + 1e-5),
        lengths=lengths,
        terms=sum(shape) + shape[0] * shape[1] + 30,
        linear=(("scale",),),
    )


def dropout_case(shape: tuple[int, int, int], over_time: bool, lengths: Any = None) -> Case:
    places = None if lengths is None else 2**32 - 2 - 3 * np.arange(shape[0])
    key = {"seed": 2**40 + 5, "step": 7, "site": 3, "over_time": over_time, "lengths": lengths, "places": places}

    def formula(x: Any) -> Any:
        return x * dropout_mask(shape, 0.3, 2**40 + 5, 7, 3, over_time, places) / 0.7

    return pointwise_case(
        f"dropout{' over time' * over_time}",
        {"x": shape},
        lambda x: pointwise.dropout(x, 0.3, **key),
        lambda dy, x: (pointwise.dropout_backward(dy, 0.3, **key),),
        formula,
        lengths=lengths,
        linear=(("x",),),
    )


def dropout_mask(
    shape: tuple[int, int, int], rate: float, seed: int, step: int, site: int, over_time: bool, places: Any = None
) -> Any:
    """Element i of the (T, D) at a place is kept if word i % 4 of Philox's block (i // 4, place, step, site) reaches
    2^32 rate."""
    B, T, D = shape
    n = D if over_time else T * D
    blocks = n // 4 + 1
    counter = np.empty((B, blocks, 4), np.int64)
    counter[..., 0] = np.arange(blocks)
    counter[..., 1] = (np.arange(B) if places is None else places)[:, None]
    counter[..., 2:] = step, site
    words = philox(counter.reshape(-1, 4), seed)
    kept = (words.reshape(B, 4 * blocks)[:, :n] >= int(rate * 2**32)).astype(float)
    return kept.reshape(B, 1 if over_time else T, D)


def embedding_case(B: int, T: int, V: int, D: int, lengths: Any = None) -> Case:
    ids = np.random.default_rng(0).integers(0, V, (B, T))
    valid = valid_steps((B, T), lengths)
    if lengths is not None:
        ids[~valid[..., 0]] = -(2**62)

    def formula(table: Any, bias: Any) -> Any:
        onehot = (ids[..., None] == np.arange(V)) & valid
        return (onehot @ table + bias) * valid

    return pointwise_case(
        f"embedding of {B}x{T}{' ragged' * (lengths is not None)}",
        {"table": (V, D), "bias": (D,)},
        lambda table, bias: pointwise.embedding(beside(ids, table), table, bias, lengths=lengths),
        lambda dy, table, bias: pointwise.embedding_backward(dy, beside(ids, dy), V, lengths=lengths),
        formula,
        terms=B * T + 2,
        linear=(("table", "bias"),),
    )


def pool_case(name: str, shape: tuple[int, ...], lengths: Any = None) -> Case:
    forward = {"mean_pool": pointwise.mean_pool, "last_pool": pointwise.last_pool}[name]
    backward = {"mean_pool": pointwise.mean_pool_backward, "last_pool": pointwise.last_pool_backward}[name]

    def formula(x: Any) -> Any:
        y = np.zeros((shape[0], shape[2]))
        for b, steps in enumerate([shape[1]] * shape[0] if lengths is None else lengths):
            if steps:
                y[b] = x[b, :steps].mean(0) if name == "mean_pool" else x[b, steps - 1]
        return y

    return pointwise_case(
        name,
        {"x": shape},
        lambda x: forward(x, lengths=lengths),
        lambda dy, x: (backward(dy, shape[1], lengths=lengths),),
        formula,
        lengths=lengths,
        terms=shape[1] + 2,
        linear=(("x",),),
    )


def cross_entropy_case(B: int, C: int, size: float, ignored: int | None = None) -> Case:
    """Every third label is `ignored`, if it is given."""
    labels = np.arange(B) * 7 % C
    counted = np.arange(B) % 3 > 0 if ignored is not None else np.full(B, True)
    given = np.where(counted, labels, ignored or 0)

    def entropy(logits: Any) -> Any:
        return pointwise.cross_entropy(size * logits, beside(given, logits), ignored=ignored)

    def loss(logits: Any) -> Any:
        return beside(np.asarray(entropy(logits)[0], logits.dtype), logits)

    def formula(logits: Any) -> Any:
        z = (size * logits).astype(np.longdouble)
        log_sum = np.log(np.exp(z).sum(1))
        return np.asarray((log_sum - z[np.arange(B), labels])[counted].mean(), logits.dtype)

    return pointwise_case(
        f"cross_entropy of {size:g}" + ("" if ignored is None else f", {ignored} ignored"),
        {"logits": (B, C)},
        loss,
        lambda dy, logits: ((dy * size * entropy(logits)[1]).astype(logits.dtype),),
        formula,
        terms=int(C + 8 + 4 * size),  # rounding of a logit is that of its size
    )


def soft_cross_entropy_case(B: int, C: int, size: float) -> Case:
    """Shares of classes, of which some are 0, smoothed, with weights of classes and rows."""
    shares = np.arange(B * C).reshape(B, C) * 7 % 5 / (2.0 * C)
    weights, rows = 0.5 + np.arange(C) % 3, 1.0 + np.arange(B) % 2
    smoothing = 0.2
    terms = rows[:, None] * weights * ((1 - smoothing) * shares + smoothing / C)

    def entropy(logits: Any) -> Any:
        given = beside(shares, logits)
        return pointwise.cross_entropy(
            size * logits, given, weights=weights, sample_weights=rows, label_smoothing=smoothing
        )

    def loss(logits: Any) -> Any:
        return beside(np.asarray(entropy(logits)[0], logits.dtype), logits)

    def formula(logits: Any) -> Any:
        z = (size * logits).astype(np.longdouble)
        log_sum = np.log(np.exp(z).sum(1, keepdims=True))
        return np.asarray((terms * (log_sum - z)).sum() / B, logits.dtype)

    return pointwise_case(
        f"cross_entropy of {size:g}, soft labels",
        {"logits": (B, C)},
        loss,
        lambda dy, logits: ((dy * size * entropy(logits)[1]).astype(logits.dtype),),
        formula,
        terms=int(3 * C + 16 + 16 * size),
    )


def binary_cross_entropy_case(n: int, size: float) -> Case:
    labels = np.arange(n) * 7 % 3 % 2

    def entropy(logits: Any) -> Any:
        return pointwise.binary_cross_entropy(size * logits, beside(labels, logits))

    def loss(logits: Any) -> Any:
        return beside(np.asarray(entropy(logits)[0], logits.dtype), logits)

    def formula(logits: Any) -> Any:
        z = (size * logits).astype(np.longdouble)
        return np.asarray((np.log(1 + np.exp(z)) - z * labels).mean(), logits.dtype)

    def backward(dy: Any, logits: Any) -> tuple[Any]:
        return ((dy * size * entropy(logits)[1]).astype(logits.dtype),)

    name = f"binary_cross_entropy of {size:g}"
    return pointwise_case(name, {"logits": (n,)}, loss, backward, formula, terms=int(10 + 4 * size))


def mean_squared_error_case(*shape: int) -> Case:
    """The last target is NaN where there are several."""
    targets = np.sin(np.arange(math.prod(shape))).reshape(shape)
    targets.flat[1:][-1:] = np.nan

    def error(predictions: Any) -> Any:
        return pointwise.mean_squared_error(predictions, beside(targets.astype(predictions.dtype), predictions))

    return pointwise_case(
        "mean_squared_error",
        {"predictions": shape},
        lambda p: beside(np.asarray(error(p)[0], p.dtype), p),
        lambda dy, p: ((dy * error(p)[1]).astype(p.dtype),),
        lambda p: np.asarray(np.nanmean((p - targets) ** 2), p.dtype),
        terms=8,
    )


PLACES: tuple[tuple[tuple[int, int, int], Any], ...] = (
    ((2, 5, 3), None),
    ((1, 1, 1), None),
    ((2, 0, 3), None),
    ((0, 4, 3), None),
    ((3, 7, 5), (7, 0, 2)),
    ((2, 150, 131), (150, 127)),  # several chunks of rows, more than the least for threads
)

POINTWISE = [
    *(
        unary_case(name, op, adjoint, formula, shape)
        for name, op, adjoint, formula in (
            ("exp", pointwise.exp, pointwise.exp_backward, np.exp),
            ("sigmoid", pointwise.sigmoid, pointwise.sigmoid_backward, sigmoid_formula),
            ("tanh", pointwise.tanh, pointwise.tanh_backward, np.tanh),
        )
        for shape in ((33,), (2, 3, 1, 4), (0, 2))
    ),
    *(
        pointwise_case(
            name,
            {"x": shape},
            functools.partial(op, lengths=lengths),
            lambda dy, x, adjoint=adjoint, lengths=lengths: (adjoint(dy, x, lengths=lengths),),
            formula,
            lengths=lengths,
            terms=32,
        )
        for name, op, adjoint, formula in (
            ("gelu", pointwise.gelu, pointwise.gelu_backward, gelu_formula),
            ("silu", pointwise.silu, pointwise.silu_backward, lambda x: x * sigmoid_formula(x)),
            ("softplus", pointwise.softplus, pointwise.softplus_backward, lambda x: np.log1p(np.exp(x))),
            (
                "decay_gain",
                gain_of_softplus,
                gain_of_softplus_backward,
                lambda x: np.sqrt(1 - sigmoid_formula(-x) ** 2),
            ),
        )
        for shape, lengths in (*PLACES, ((7,), None))
    ),
    *(
        pointwise_case(
            "glu",
            {"value": shape, "gate": shape},
            functools.partial(pointwise.glu, lengths=lengths),
            functools.partial(pointwise.glu_backward, lengths=lengths),
            lambda value, gate: value * sigmoid_formula(gate),
            lengths=lengths,
            linear=(("value",),),
        )
        for shape, lengths in (*PLACES, ((7,), None))
    ),
    *(
        pointwise_case(
            "swiglu",
            {"value": shape, "gate": shape},
            functools.partial(pointwise.swiglu, lengths=lengths),
            functools.partial(pointwise.swiglu_backward, lengths=lengths),
            lambda value, gate: value * gate * sigmoid_formula(gate),
            lengths=lengths,
            linear=(("value",),),
        )
        for shape, lengths in (*PLACES, ((7,), None))
    ),
    *(
        pointwise_case(
            "mask_padding",
            {"x": shape},
            functools.partial(pointwise.mask_padding, lengths=lengths),
            lambda dy, x, lengths=lengths: (pointwise.mask_padding(dy, lengths),),
            lambda x: x,
            lengths=lengths,
            linear=(("x",),),
        )
        for shape, lengths in PLACES
    ),
    *(dropout_case(shape, over_time, lengths) for over_time in (False, True) for shape, lengths in PLACES),
    *(batch_norm_case(shape, lengths) for shape, lengths in PLACES if shape[0] * shape[1] > 1),
    *(batch_norm_inference_case(shape, lengths) for shape, lengths in PLACES),
    *(layer_norm_case(shape, lengths) for shape, lengths in (*PLACES[:1], *PLACES[2:], ((2, 3, 2), None))),
    *(rms_norm_case(shape, lengths) for shape, lengths in PLACES),
    *(
        embedding_case(B, T, V, D, lengths)
        for B, T, V, D, lengths in (
            (2, 5, 4, 3, None),
            (1, 1, 1, 1, None),
            (3, 0, 2, 2, None),
            (0, 3, 2, 2, None),
            (3, 7, 5, 4, (7, 0, 2)),
            (4, 150, 3, 33, (150, 149, 0, 7)),  # several chunks, each with a table of its own
            (2, 300, 5, 1030, None),  # several runs of an id in rows sorted by it
            (2, 3, 40, 2, None),  # more ids than places
        )
    ),
    *(pool_case(name, shape, lengths) for name in ("mean_pool", "last_pool") for shape, lengths in PLACES),
    *(cross_entropy_case(B, C, size) for B, C, size in ((3, 4, 1), (1, 1, 1), (5, 11, 40), (2, 3, 1e-3))),
    cross_entropy_case(7, 5, 1, ignored=-1),
    *(soft_cross_entropy_case(B, C, size) for B, C, size in ((3, 4, 1), (1, 1, 1), (5, 11, 40))),
    *(binary_cross_entropy_case(n, size) for n, size in ((7, 1), (1, 1), (64, 40), (5, 1e-3))),
    *(mean_squared_error_case(*shape) for shape in ((7,), (1,), (2, 5, 3), (4, 31))),
]

OPS = [*SCANS, *DENSE, *MIXERS, *POINTWISE]

CHANNELS = (2, 1, 40_000)  # sums over rows are merged by columns in threads

OPS_LARGE = [
    diagonal_case(3, 130, 260, lanes="complex", varying=True, reverse=True, lengths=(130, 7, 129)),
    diagonal_case(8, 40, 130, lanes="real"),
    diagonal_case(1, 3000, 30, lanes="real", reverse=True),
    diagonal_case(3, 2000, 130, lanes="complex", lengths=(2000, 129, 1537)),
    rotation_case(2, 150, 2, 130),
    dense_case((8200, 190), 190),  # all 16 groups of rows, whose sums are merged in threads too
    householder_case(3, 150, 2, 40, u_varies=True, alpha_varies=True, lengths=(150, 3, 149)),
    *(
        unary_case(name, op, adjoint, None, (40_000,))
        for name, op, adjoint in (
            ("exp", pointwise.exp, pointwise.exp_backward),
            ("sigmoid", pointwise.sigmoid, pointwise.sigmoid_backward),
            ("tanh", pointwise.tanh, pointwise.tanh_backward),
        )
    ),
    batch_norm_case(CHANNELS),
    batch_norm_inference_case(CHANNELS),
    layer_norm_case(CHANNELS),
    rms_norm_case(CHANNELS),
    embedding_case(4, 300, 3, 33, (300, 299, 0, 7)),
    embedding_case(2, 1, 2, 40_000),
    embedding_case(4, 300, 5, 1030, (300, 299, 0, 7)),
    embedding_case(4, 300, 200, 33, (300, 299, 0, 7)),
    pool_case("mean_pool", CHANNELS),
    cross_entropy_case(40, 1000, 1),
    binary_cross_entropy_case(40_000, 1),
]
