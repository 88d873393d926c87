"""Parts, shapes and copies of arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from rotrnn.devices.device import concatenate, contiguous, empty
from rotrnn.nn.layer import Array
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Call, Instruction, Line, Shape


@dataclass(frozen=True)
class Split(Instruction):
    """Parts of x along an axis, of the given sizes."""

    sizes: tuple[int, ...]
    axis: int = -1
    light = True
    foldable = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        if not -len(x) <= self.axis < 0 or min(self.sizes, default=0) < 1 or x[self.axis] != sum(self.sizes):
            raise ValueError(f"expected sizes {self.sizes} that add up to axis {self.axis}, counted from the end")
        at = len(x) + self.axis
        return tuple((*x[:at], size, *x[at + 1 :]) for size in self.sizes)

    def forward(self, call: Call, x: Array) -> tuple[Array, ...]:
        return tuple(contiguous(x[cut]) for cut in _cuts(self.sizes, self.axis))

    def backward(self, call: Call, dy: tuple[Array | None, ...], x: Array) -> Array:
        known = next(one for one in dy if one is not None)
        shapes = [[*known.shape] for _ in self.sizes]
        for shape, size in zip(shapes, self.sizes, strict=True):
            shape[self.axis] = size
        parts = (
            np.zeros(shape, known.dtype, like=known) if one is None else one
            for one, shape in zip(dy, shapes, strict=True)
        )
        return concatenate([*parts], self.axis)


@cache
def _cuts(sizes: tuple[int, ...], axis: int) -> tuple[tuple[Any, ...], ...]:
    """Returns the indices of parts along an axis that is counted from the end."""
    ends, whole = [0, *accumulate(sizes)], (slice(None),) * (-axis - 1)
    return tuple((..., slice(*ends[i : i + 2]), *whole) for i in range(len(sizes)))


@dataclass(frozen=True)
class Reshape(Instruction):
    """x as an array of another `shape`."""

    shape: tuple[int, ...]
    light = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        if math.prod(x) != math.prod(self.shape):
            raise ValueError(f"expected {math.prod(self.shape)} numbers")
        return (self.shape,)

    def forward(self, call: Call, x: Array) -> Array:
        return x.reshape(*x.shape[:2], *self.shape)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return dy.reshape(*dy.shape[:2], *call.shapes[0])


@dataclass(frozen=True)
class Concat(Instruction):
    """Arrays x (I_k,) one after the other."""

    light = True

    def shapes(self, *x: Any) -> tuple[Shape, ...]:
        return ((sum(size for (size,) in x),),)

    def forward(self, call: Call, *x: Array) -> Array:
        return concatenate(x)

    def backward(self, call: Call, dy: Array, *x: None) -> tuple[Array, ...]:
        return tuple(contiguous(dy[cut]) for cut in _cuts(tuple(size for (size,) in call.shapes), -1))


@dataclass(frozen=True)
class OfHeads(Instruction):
    """``y_h = x_g + b_h``, g the group of head h: x (G, N), b and y (`heads`, N), heads a multiple of G; or, without b,
    ``y_h = x_g``."""

    heads: int
    light = True
    parameters = ("b",)

    def shapes(self, x: Any, b: Any = None) -> tuple[Shape, ...]:
        if len(x) != 2 or self.heads % x[0] or b not in (None, (self.heads, x[1])):
            raise ValueError(f"expected x (G, N), G a divisor of H={self.heads}, and b (H, N)")
        return ((self.heads, x[1]),)

    def forward(self, call: Call, x: Array, b: Array | None = None) -> Array:
        size, T, G, N = x.shape
        y = empty((size, T, G, self.heads // G, N), x.dtype, x)
        if b is None:
            y[...] = x[:, :, :, None]
        else:
            np.add(x[:, :, :, None], b.reshape(y.shape[2:]), out=y)
        return y.reshape(size, T, self.heads, N)

    def backward(self, call: Call, dy: Array, x: Array, b: Array | None = None) -> tuple[Array, Array | None]:
        G, N = call.shapes[0]
        dx: Array = dy.reshape(*dy.shape[:2], G, self.heads // G, N).sum(3)
        return dx, None if b is None else dy.sum((0, 1), dtype=np.float64).astype(dy.dtype)

    def emit(self, to: Listing, line: Line, x: int, b: Array | None = None) -> Any:
        shape = self.heads, line.shapes[0][1]  # type: ignore[index]
        return to("OfHeads", x, np.zeros(shape) if b is None else b, shapes=(line.shapes[0], None))


@dataclass(frozen=True)
class Rows(Instruction):
    """Arrays x, each as `sizes` of rows (`columns`,), or of numbers for 0 columns, one after the other; zeros for an
    array that is not given."""

    sizes: tuple[int, ...]
    columns: int = 0
    foldable = True

    def shapes(self, *x: Any) -> tuple[Shape, ...]:
        wide = [None if one is None else math.prod(one) // (self.columns or 1) for one in x]
        if (
            len(x) != len(self.sizes)
            or not any(wide)
            or any(one not in (None, size) for one, size in zip(wide, self.sizes, strict=True))
        ):
            raise ValueError(f"expected arrays of {self.sizes} rows, with {self.columns} columns")
        return ((sum(self.sizes), *self._row),)

    def forward(self, call: Call, *x: Array | None) -> Array:
        like = next(one for one in x if one is not None)
        y: Array = np.concatenate(
            [
                np.zeros((size, *self._row), like.dtype, like=like) if one is None else one.reshape(size, *self._row)
                for one, size in zip(x, self.sizes, strict=True)
            ]
        )
        return y

    def backward(self, call: Call, dy: Array, *x: Array | None) -> tuple[Array | None, ...]:
        parts = np.split(dy, [*accumulate(self.sizes[:-1])])
        return tuple(None if one is None else part.reshape(one.shape) for one, part in zip(x, parts, strict=True))

    @property
    def _row(self) -> Shape:
        return (self.columns,) if self.columns else ()


@dataclass(frozen=True)
class Repeat(Instruction):
    """Each number of x (I,) `times` times, one after the other."""

    times: int
    parameters = ("x",)
    foldable = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        return ((self.times * x[0],),)

    def forward(self, call: Call, x: Array) -> Array:
        return np.repeat(x, self.times)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return dy.reshape(-1, self.times).sum(-1)


@dataclass(frozen=True)
class ByRank(Instruction):
    """x (H, R, N) as (R H, N): its rows, one rank after the other."""

    parameters = ("x",)
    foldable = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        H, R, N = x
        return ((R * H, N),)

    def forward(self, call: Call, x: Array) -> Array:
        return x.swapaxes(0, 1).reshape(-1, x.shape[2])

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return dy.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1)
