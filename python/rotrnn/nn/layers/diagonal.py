"""The base of LRU and S5: a diagonal recurrence of N complex states, with complex B and C."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Params
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.listing import Listing
from rotrnn.ops.diagonal import diagonal_weights, diagonal_weights_backward
from rotrnn.ops.linear_layer import System


class DiagonalFolding(NamedTuple):
    """Transition and input gain, both (N,), and an array for `transition_backward` (or None)."""

    a: Array
    gain: Array
    rates: Array | None = None


@dataclass(frozen=True)
class DiagonalRecurrence(LinearRecurrence):
    """``h_t = a * h_{t-1} + gain * (B u_t)``, ``y_t = weight Re(C h_t) + D * u_t``; all but D are complex.

    A subclass implements `transition_shapes`, `init`, `transition` and `transition_backward`, which define a and gain.
    """

    @property
    def weight(self) -> int:
        """2 if each state also represents its complex conjugate, else 1."""
        return 1

    @property
    @abstractmethod
    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parameters of a and gain."""

    @abstractmethod
    def transition(self, params: Params) -> DiagonalFolding:
        """Returns a and gain, both (N,). The gain is real or complex."""

    @abstractmethod
    def transition_backward(self, params: Params, folding: DiagonalFolding, da: Array, dgain: Array) -> Params:
        """Returns gradients of the parameters of a and gain. `dgain` is real if the gain is."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.planes
        matrices = {name: (N, D) if name[0] == "B" else (D, N) for name in self.matrices}
        return {**self.transition_shapes, **matrices, "D": (D,)}

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the real and the imaginary part of B, and of C of each direction."""
        return "B_re", "B_im", *(name + suffix for suffix in self.directions for name in ("C_re", "C_im"))

    def emit(self, to: Listing, params: Params, x: int) -> int:
        folding = self.transition(to.exact(params))
        readouts = [(params["C_re" + suffix], params["C_im" + suffix]) for suffix in self.directions]
        B = params["B_re"], params["B_im"]
        return self._emit_system(to, x, folding.a, B, readouts, params["D"], folding.gain, self.weight)

    def fold(self, params: Params) -> Folded[System]:
        return self.fold_weights(params, self.transition(params))

    def fold_weights(self, params: Params, folding: DiagonalFolding) -> Folded[System]:
        """Returns the system of this transition and gain."""
        given = {name: params[name] for name in self.matrices}
        w_in, w_out = diagonal_weights(folding.gain, **given, weight=self.weight)
        return Folded(System(w_in, folding.a, w_out, params["D"]), folding)

    def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
        folding: DiagonalFolding = folded.kept
        dgain, dparams = self.fold_weights_backward(params, folding, dsystem)
        return self.transition_backward(params, folding, dsystem.a, dgain) | dparams

    def fold_weights_backward(self, params: Params, folding: DiagonalFolding, dsystem: System) -> tuple[Array, Params]:
        """Adjoint of `fold_weights`: returns the gradients of the gain, and of B, C and D."""
        B = params["B_re"], params["B_im"]
        grads = diagonal_weights_backward(dsystem.w_in, dsystem.w_out, folding.gain, *B, weight=self.weight)
        return grads.dgain, {**{name: getattr(grads, f"d{name}") for name in self.matrices}, "D": dsystem.skip}


def interleave(even: Array, odd: Array, axis: int) -> Array:
    """Interleaves rows or columns: even_0, odd_0, even_1, odd_1, ..."""
    return np.stack([even, odd], axis + 1).reshape(*(2 * n if i == axis else n for i, n in enumerate(even.shape)))
