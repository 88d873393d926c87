"""Maps of channels: matrices, gains and norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.devices.device import contiguous, einsum, full, pooled
from rotrnn.nn.layer import Array
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Call, Instruction, Line, Shape
from rotrnn.ops.dense import dense, dense_backward, matmul
from rotrnn.ops.pointwise import (
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)


@dataclass(frozen=True)
class Dense(Instruction):
    """``y = w x + b``, x (I,), w (O, I), b (O,) or None."""

    reads = ("x",)
    form = "I; O I; O -> O"
    parameters = ("w", "b")

    def forward(self, call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
        return dense(x, w, b)

    def backward(self, call: Call, dy: Array, x: Array, w: Array, b: Array | None = None) -> tuple[Any, ...]:
        grads = dense_backward(dy, x, w)
        return grads.dx, grads.dw, grads.dbias


@dataclass(frozen=True)
class BlockDense(Instruction):
    """``y = w x + b`` by H blocks: x (H I,), w (H, O, I), b (H O,) or None; block h of y comes from block h of x."""

    reads = ("x",)
    parameters = ("w", "b")

    def shapes(self, x: Any, w: Any, b: Any = None) -> tuple[Shape, ...]:
        if len(w) != 3 or x != (w[0] * w[2],) or b not in (None, (w[0] * w[1],)):
            raise ValueError("expected x (H I,), w (H, O, I) and b (H O,)")
        return ((w[0] * w[1],),)

    def forward(self, call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
        biases = [None] * len(w) if b is None else b.reshape(w.shape[:2])
        parts = [dense(part, *of) for part, *of in zip(_blocks(x, w.shape[2]), w, biases, strict=True)]
        return np.concatenate(parts, -1)

    def backward(self, call: Call, dy: Array, x: Array, w: Array, b: Array | None = None) -> tuple[Any, ...]:
        grads = [dense_backward(*of) for of in zip(_blocks(dy, w.shape[1]), _blocks(x, w.shape[2]), w, strict=True)]
        dw = np.concatenate([one.dw[None] for one in grads])
        return np.concatenate([one.dx for one in grads], -1), dw, np.concatenate([one.dbias for one in grads])


def _blocks(x: Array, width: int) -> list[Array]:
    """Returns the blocks of the last axis, each of the given number of channels."""
    return [contiguous(x[..., at : at + width]) for at in range(0, x.shape[-1], width)]


@dataclass(frozen=True)
class Skip(Instruction):
    """``y = d * x + b + z``, by channels: x (I,), d (I,), b (I,) and z (I,) or None."""

    reads = ("x",)
    form = "I; I; I; I -> I"
    parameters = ("d", "b")

    def forward(self, call: Call, x: Array, d: Array, b: Array | None = None, z: Array | None = None) -> Array:
        y = pooled(np.multiply, d, x)
        for one in (b, z):
            if one is not None:
                y = np.add(y, one, out=y if one.dtype == y.dtype else None)
        return y

    def backward(
        self, call: Call, dy: Array, x: Array, d: Array, b: Array | None = None, z: None = None
    ) -> tuple[Any, ...]:
        db = None if b is None else dy.sum((0, 1), dtype=np.float64).astype(dy.dtype)
        return pooled(np.multiply, d, dy), _over_steps(dy, x), db, dy

    def emit(self, to: Listing, line: Line, x: int, d: Array, b: Array | None = None, z: int | None = None) -> Any:
        if b is None:
            return to("Skip", x, d, *(() if z is None else (z,)))
        y = to("BatchNorm", x, d, np.zeros_like(d), b)
        return y if z is None else to("Sum", z, y)


PARTIAL = 64
"""Terms of a partial sum of `_over_steps`."""


def _over_steps(dy: Array, x: Array) -> Array:
    """Returns the sums (I,) of dy * x, both (B, T, I), over sequences and steps: partial sums in their dtype, added up
    in double precision."""
    rows, width = dy.shape[0] * dy.shape[1], dy.shape[2]
    whole, (dy, x) = rows // PARTIAL * PARTIAL, (one.reshape(rows, width) for one in (dy, x))
    total: Any = 0
    if whole:
        parts = (one[:whole].reshape(-1, PARTIAL, width) for one in (dy, x))
        total = einsum("kti,kti->ki", *parts).sum(0, dtype=np.float64)
    if whole < rows or not whole:
        total = total + einsum("ti,ti->i", dy[whole:], x[whole:])
    return total.astype(dy.dtype, copy=False)


@dataclass(frozen=True)
class MatMul(Instruction):
    """``y = w v``, matrices w (O, I) and v (I, N)."""

    form = "O I; I N -> O N"
    parameters = ("w", "v")
    foldable = True

    def forward(self, call: Call, w: Array, v: Array) -> Array:
        return matmul(w, v)

    def backward(self, call: Call, dy: Array, w: Array, v: Array) -> tuple[Array, Array]:
        return matmul(dy, contiguous(v.T)), matmul(contiguous(w.T), dy)


@dataclass(frozen=True)
class Columns(Instruction):
    """``y = w * scale``, w (O, I) with its columns multiplied by scale (I,)."""

    form = "O I; I -> O I"
    parameters = ("w", "scale")
    foldable = True

    def forward(self, call: Call, w: Array, scale: Array) -> Array:
        return w * scale

    def backward(self, call: Call, dy: Array, w: Array, scale: Array) -> tuple[Array, Array]:
        return dy * scale, (dy * w).sum(0)


@dataclass(frozen=True)
class RMSNorm(Instruction):
    """``y = scale x / sqrt(mean x^2 + eps)`` over the last axis: x (..., W), scale (W,) or None for `gain`."""

    eps: float = 1e-5
    gain: float = 1.0
    reads = ("x",)
    form = "... W; W -> ... W"
    parameters = ("scale",)

    def forward(self, call: Call, x: Array, scale: Array | None = None) -> Array:
        y, call.kept = rms_norm(_rows(x), self._scale(x, scale), eps=self.eps)
        return y.reshape(x.shape)

    def backward(self, call: Call, dy: Array, x: Array, scale: Array | None = None) -> Any:
        grads = rms_norm_backward(_rows(dy), _rows(x), self._scale(x, scale), call.kept)
        dx = grads.dx.reshape(x.shape)
        return dx, grads.dscale

    def _scale(self, x: Array, scale: Array | None) -> Array:
        return full(x.shape[-1:], self.gain, x.dtype, x) if scale is None else scale


@dataclass(frozen=True)
class LayerNorm(Instruction):
    """``y = (x - mean x) / sqrt(var x + eps)`` over the last axis: x (..., W)."""

    eps: float = 1e-5
    reads = ("x",)
    form = "... W -> ... W"

    def forward(self, call: Call, x: Array) -> Array:
        plain = (full(x.shape[-1:], value, x.dtype, x) for value in (1, 0))
        y, *statistics = layer_norm(_rows(x), *plain, eps=self.eps)
        call.kept = tuple(statistics)
        return y.reshape(x.shape)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        plain = full(x.shape[-1:], 1, x.dtype, x)
        return layer_norm_backward(_rows(dy), _rows(x), plain, *call.kept).dx.reshape(x.shape)

    def emit(self, to: Listing, line: Line, x: int) -> Any:
        return to("LayerNorm", x, eps=self.eps, shapes=line.shapes)  # a line may also have a scale and a bias


def _rows(x: Array) -> Array:
    """Returns (B, T, ..., W) as rows (B, rows, W)."""
    return x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])
