"""Maps of a token and of the previous output, ``f(W x_t + V y_{t-1} + b)``, in adjacent columns, and their adjoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous, full
from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.fixed_points.mixer import GAINS, VECTORS, Parts
from rotrnn.nn.layer import Array
from rotrnn.ops.dense import dense, dense_backward, dense_weight_grad
from rotrnn.ops.lagged import Columns, LaggedMapsGrads, lagged_maps, lagged_maps_backward, lagged_products
from rotrnn.ops.pointwise import rms_norm, rms_norm_backward

READ_EPS = 1e-5
"""Epsilon of the root mean square by which maps with `normed` divide the previous output."""


class Map(NamedTuple):
    """A map of p_t = W x_t + V y_{t-1} + b: the shape of its values, and their function (ops/lagged.py)."""

    shape: tuple[int, ...]
    function: str

    @property
    def width(self) -> int:
        return math.prod(self.shape)


Maps = dict[str, Map]


def mixer_maps(parts: dict[str, tuple[int, ...]], silu: bool) -> Maps:
    """Returns the maps of the parts of a mixer, whose vectors pass through SiLU if `silu`."""
    return {name: Map(shape, "silu" if silu and name in VECTORS else "linear") for name, shape in parts.items()}


@dataclass(frozen=True)
class Lagged:
    """Maps ``f(base_t + V y_{t-1})`` with y_{-1} = y0, in adjacent columns of base (B, T, K) and rows of V (K, E).

    `first` is V y0. For maps that do not depend on y, V, y0 and `first` are None. `lagged` creates maps that do. `eps`
    is the least length that unit vectors are divided by. With `normed`, V multiplies ``y / rms(y)`` in place of y.
    """

    maps: Maps
    base: Array
    V: Array | None = None
    y0: Array | None = None
    first: Array | None = None
    eps: float = 0.0
    normed: bool = False

    @property
    def columns(self) -> list[Columns]:
        return [Columns(one.width, one.function) for one in self.maps.values()]

    def late(self, y: Array) -> Array | None:
        """Returns V y, which is used one step later; None if there is no V or only one step."""
        return None if self.V is None or y.shape[1] < 2 else dense(self.read(y), self.V)

    def read(self, y: Array) -> Array:
        """Returns what V multiplies, for y (B, T, E)."""
        return rms_norm(y, self._ones(y), eps=READ_EPS)[0] if self.normed else y

    def read_backward(self, dread: Array, y: Array) -> Array:
        """Returns the gradient of y (B, T, E) from that of `read`."""
        if not self.normed:
            return dread
        scale = self._ones(y)
        return rms_norm_backward(dread, y, scale, rms_norm(y, scale, eps=READ_EPS)[1]).dx

    @staticmethod
    def _ones(y: Array) -> Array:
        return full(y.shape[-1:], 1, y.dtype, y)

    @property
    def _plain(self) -> bool:
        """Whether the values are columns of base."""
        return self.V is None and all(one.function == "linear" for one in self.maps.values())

    def __call__(self, late: Array | None, lengths: Steps) -> Parts:
        if self._plain:
            ends = accumulate(one.width for one in self.maps.values())
            return self.named([contiguous(part) for part in np.split(self.base, [*ends][:-1], -1)])
        return self.named(lagged_maps(self.base, late, self.first, self.columns, eps=self.eps, lengths=lengths))

    def of_output(self, y: Array, lengths: Steps) -> Parts:
        """Returns the maps, with V y computed in the same pass, so that there is no `late` for an adjoint."""
        if self.V is None:
            return self(None, lengths)
        outs = lagged_products(self.base, self.read(y), self.V, self.first, self.columns, eps=self.eps, lengths=lengths)
        return self.named(outs)

    def named(self, outs: Sequence[Array]) -> Parts:
        """Returns the values of the maps (B, T, width) by name, each value in its shape."""
        named = zip(outs, self.maps.items(), strict=True)
        return {name: out.reshape(*out.shape[:2], *one.shape) for out, (name, one) in named}

    def backward(self, dvalues: Parts, late: Array | None, lengths: Steps) -> LaggedMapsGrads:
        """Returns the gradients of base, `late` and `first`."""
        douts = [dvalues[name].reshape(*self.base.shape[:2], one.width) for name, one in self.maps.items()]
        if self._plain:
            return LaggedMapsGrads(np.concatenate(douts, -1), None, None)
        inputs = self.base, late, self.first, self.columns
        return lagged_maps_backward(douts, *inputs, eps=self.eps, lengths=lengths)

    def weights_backward(self, grads: LaggedMapsGrads, y: Array) -> tuple[Array, Array]:
        """Returns the gradients of V and y0 from those that `backward` returned; y also from `late_backward`."""
        assert self.V is not None
        assert self.y0 is not None
        assert grads.dfirst is not None
        y0 = self.y0[:, None]
        start = dense_backward(grads.dfirst[:, None], self.read(y0), self.V)
        dy0 = self.read_backward(start.dx, y0)[:, 0]
        return start.dw if grads.dlate is None else start.dw + dense_weight_grad(grads.dlate, self.read(y)), dy0

    def late_backward(self, dlate: Array, y: Array, V_transposed: Array) -> Array:
        """Returns the gradient of y (B, T, E) from that of `late`."""
        return self.read_backward(dense(dlate, V_transposed), y)


MACHINE = {"delta": ("delta",), "u": VECTORS, "alpha": GAINS, "B": ("B",), "C": ("C",)}
"""The maps of a step as the C library has them: those of a mixer's vectors and of its gains are one each."""


def unjoined(values: Sequence[Array], maps: Maps) -> list[Array]:
    """Returns the values of each of the maps, from those of the maps as the C library has them, without maps that are
    not there."""
    parts: list[Array] = []
    present = [[name for name in own if name in maps] for own in MACHINE.values()]
    for names, joined in zip(filter(None, present), values, strict=True):
        widths = [maps[name].width for name in names]
        parts += [contiguous(part) for part in np.split(joined, [*accumulate(widths)][:-1], -1)]
    return parts


def flattened(parts: Parts, names: Iterable[str]) -> Array | None:
    """Returns the numbers of the parts of these names one after the other; None if there is none."""
    found = [parts[name].ravel() for name in names if name in parts]
    return np.concatenate(found) if found else None


def lagged(maps: Maps, base: Array, V: Array | None, y0: Array, eps: float = 0.0, normed: bool = False) -> Lagged:
    """Returns maps that depend on the previous output through V; without V they do not."""
    if V is None:
        return Lagged(maps, base, eps=eps)
    made = Lagged(maps, base, V, y0, eps=eps, normed=normed)
    return replace(made, first=dense(made.read(y0[:, None]), V)[:, 0])
