"""The base of LRU and S5: a diagonal recurrence of N complex states, with complex B and C."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rotrnn.devices.device import empty
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import Array, Params
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.listing import Listing
from rotrnn.ops.linear_layer import System


class DiagonalFolding(NamedTuple):
    """Transition and input gain, both (N,), and further arrays for `transition_backward`, such as exponentials."""

    a: Array
    gain: Array
    rates: tuple[Array, ...] = ()


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
        """Returns gradients of the parameters of a and gain. For a real gain, only the real part of `dgain` is used."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.planes
        outputs = {name + suffix: (D, N) for suffix in self.directions for name in ("C_re", "C_im")}
        return {**self.transition_shapes, **dict.fromkeys(("B_re", "B_im"), (N, D)), **outputs, "D": (D,)}

    def emit(self, to: Listing, params: Params, x: int) -> int:
        folding = self.transition(to.exact(params))
        readouts = [(params["C_re" + suffix], params["C_im" + suffix]) for suffix in self.directions]
        B = params["B_re"], params["B_im"]
        return self._emit_system(to, x, folding.a, B, readouts, params["D"], folding.gain, self.weight)

    def fold(self, params: Params) -> Folded[System]:
        return self.fold_weights(params, self.transition(params))

    def fold_weights(self, params: Params, folding: DiagonalFolding) -> Folded[System]:
        """Returns the system of this transition and gain."""
        gain, re, im = folding.gain[:, None], params["B_re"], params["B_im"]
        w_in = empty((2 * len(re), re.shape[1]), np.result_type(gain.real.dtype, re.dtype), like=re)
        w_out = empty((len(self.directions), *w_in.shape[::-1]), params["C_re"].dtype, like=re)
        if gain.dtype.kind == "c":
            B = gain * (re + 1j * im)
            w_in[0::2], w_in[1::2] = B.real, B.imag
        else:
            np.multiply(gain, re, out=w_in[0::2])
            np.multiply(gain, im, out=w_in[1::2])
        for readout, suffix in zip(w_out, self.directions, strict=True):
            np.multiply(self.weight, params["C_re" + suffix], out=readout[:, 0::2])
            np.multiply(-self.weight, params["C_im" + suffix], out=readout[:, 1::2])
        return Folded(System(w_in, folding.a, w_out, params["D"]), folding)

    def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
        folding: DiagonalFolding = folded.kept
        dgB = dsystem.w_in[0::2] + 1j * dsystem.w_in[1::2]
        dgain = ((params["B_re"] - 1j * params["B_im"]) * dgB).sum(1)
        own = self.transition_backward(params, folding, dsystem.a, dgain)
        return own | self.fold_weights_backward(folding, dsystem)

    def fold_weights_backward(self, folding: DiagonalFolding, dsystem: System) -> Params:
        """Adjoint of `fold_weights`: returns the gradients of B, C and D."""
        re, im, gain = dsystem.w_in[0::2], dsystem.w_in[1::2], folding.gain[:, None]
        dparams: Params = {}
        if gain.dtype.kind == "c":
            dB = np.conj(gain) * (re + 1j * im)
            dparams |= {"B_re": dB.real.copy(), "B_im": dB.imag.copy()}
        else:
            dparams |= {"B_re": gain * re, "B_im": gain * im}
        for k, suffix in enumerate(self.directions):
            dparams["C_re" + suffix] = self.weight * dsystem.w_out[k, :, 0::2]
            dparams["C_im" + suffix] = -self.weight * dsystem.w_out[k, :, 1::2]
        dparams["D"] = dsystem.skip
        return dparams


def interleave(even: Array, odd: Array, axis: int) -> Array:
    """Interleaves rows or columns: even_0, odd_0, even_1, odd_1, ..."""
    return np.stack([even, odd], axis + 1).reshape(*(2 * n if i == axis else n for i, n in enumerate(even.shape)))
