"""Maps of a token and of the output before it, ``f(W x_t + V y_{t-1} + b)``, side by side, and their adjoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rotrnn.nn.fixed_points.iteration import Steps
from rotrnn.nn.fixed_points.mixer import Parts
from rotrnn.nn.layer import Array
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.lagged import Columns, LaggedMapsGrads, lagged_maps, lagged_maps_backward, lagged_products


class Map(NamedTuple):
    """A map from a token's p_t = W x_t + V y_{t-1} + b: the shape of its values, and their function (ops/lagged.py)."""

    shape: tuple[int, ...]
    function: str

    @property
    def width(self) -> int:
        return int(np.prod(self.shape))


Maps = dict[str, Map]


@dataclass(frozen=True)
class Lagged:
    """Maps ``f(base_t + V y_{t-1})``, their columns side by side in base (B, T, K) and V (K, E), y0 in y_{-1}'s place.

    `first` is V y0. Of maps that read no y, V, y0 and it are None; `lagged` makes those that do.
    """

    maps: Maps
    base: Array
    V: Array | None = None
    y0: Array | None = None
    first: Array | None = None

    @property
    def columns(self) -> list[Columns]:
        return [Columns(one.width, one.function) for one in self.maps.values()]

    def late(self, y: Array) -> Array | None:
        """V y, which is read a step later: not at all where there is one step."""
        return None if self.V is None or y.shape[1] < 2 else dense(y, self.V)

    def __call__(self, late: Array | None, lengths: Steps) -> Parts:
        return self._named(lagged_maps(self.base, late, self.first, self.columns, lengths=lengths))

    def of_output(self, y: Array, lengths: Steps) -> Parts:
        """The maps with V y in one pass, which leaves no `late` for an adjoint."""
        if self.V is None:
            return self(None, lengths)
        return self._named(lagged_products(self.base, y, self.V, self.first, self.columns, lengths=lengths))

    def _named(self, outs: list[Array]) -> Parts:
        named = zip(outs, self.maps.items(), strict=True)
        return {name: out.reshape(*out.shape[:2], *one.shape) for out, (name, one) in named}

    def backward(self, dvalues: Parts, late: Array | None, lengths: Steps) -> LaggedMapsGrads:
        """Gradients of base, of `late` and of `first`."""
        douts = [dvalues[name].reshape(*self.base.shape[:2], one.width) for name, one in self.maps.items()]
        return lagged_maps_backward(douts, self.base, late, self.first, self.columns, lengths=lengths)

    def product_backward(self, grads: LaggedMapsGrads, y: Array) -> tuple[Array | None, Array, Array]:
        """From what `backward` gave: gradients of y (None for one step), of V and of y0."""
        assert self.V is not None
        assert self.y0 is not None
        assert grads.dfirst is not None
        start = dense_backward(grads.dfirst, self.y0, self.V)
        if grads.dlate is None:
            return None, start.dw, start.dx
        rest = dense_backward(grads.dlate, y, self.V)
        return rest.dx, start.dw + rest.dw, start.dx


def lagged(maps: Maps, base: Array, V: Array | None, y0: Array) -> Lagged:
    """The maps that read the output before, by V; those of no V read none."""
    return Lagged(maps, base) if V is None else Lagged(maps, base, V, y0, dense(y0, V))
