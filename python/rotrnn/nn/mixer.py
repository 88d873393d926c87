"""Channel mixers Q of Fixed-Point RNNs by name: how each is made of numbers that a layer gives it, and its adjoint.

A layer asks a mixer for its `parts`, and gives it for each of them either an array of parameters, of that very shape,
or one of every token, (B, T, *shape), a linear function of its input. `operands` turns them into what the op takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.layer import Array
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.mixer import householder_mix, householder_mix_backward
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward
from rotrnn.ops.pointwise import mask_padding, sigmoid

Parts = dict[str, Array]
Operands = tuple[Array, ...]

CONTRACTION = 0.95
"""What |I - Q| stays below, as a norm of matrices, in a mixer that is asked to contract."""


class MixGrads(NamedTuple):
    """Gradients of a mix: of the operands, of x and of the origin (B, T, N)."""

    operands: Operands
    dx: Array
    dorigin: Array


@dataclass(frozen=True)
class Mixer(ABC):
    """A family of matrices Q (N, N) over tokens of `width` N, made of `rank` vectors where it has a rank.

    With `contractive`, ``|I - Q| <= 0.95`` whatever the numbers are; not every family has such members.
    """

    name: ClassVar[str]
    varying: ClassVar[bool] = True
    """Whether it can differ from token to token."""
    can_contract: ClassVar[bool] = True

    width: int
    rank: int
    contractive: bool = False

    def __post_init__(self) -> None:
        if self.contractive and not self.can_contract:
            raise ValueError(f"Mixer: '{self.name}' has |I - Q| = 1 or more, expected one that can contract")

    @property
    @abstractmethod
    def parts(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what one Q is made of."""

    @abstractmethod
    def operands(self, parts: Parts) -> Operands:
        """What `mix` takes."""

    @abstractmethod
    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        """Gradients of the parts."""

    @abstractmethod
    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        """``o + Q (x - o)`` (B, T, N): zero beyond `lengths`."""

    @abstractmethod
    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        """Adjoint of `mix`: ``dx = Q^T dy``, ``dorigin = dy - dx``."""


@dataclass(frozen=True)
class Householder(Mixer):
    """``Q = prod_i (I - 2 alpha_i w_i w_i^T)``, ``w_i = u_i / |u_i|`` ("Fixed-Point RNNs", eq. 6).

    Gains are ``alpha = sigmoid(.)`` in (0, 1), section 5.3. Contractive, they are ``0.95 sigmoid(.) / 2 R``, for
    ``|I - Q| <= 2 sum_i alpha_i``: eigenvalues of Q are then positive.
    """

    name: ClassVar[str] = "householder"

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.rank, self.width), "alpha": (self.rank,)}

    @property
    def gain(self) -> float:
        """The largest gain."""
        return CONTRACTION / (2 * self.rank) if self.contractive else 1.0

    def operands(self, parts: Parts) -> Operands:
        alpha = sigmoid(parts["alpha"])
        return parts["u"], alpha * alpha.dtype.type(self.gain)

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        alpha, dalpha = operands[1], doperands[1]
        return {"u": doperands[0], "alpha": dalpha * alpha * (1 - alpha / alpha.dtype.type(self.gain))}

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        return mask_padding(origin, lengths) + householder_mix(operands[0], operands[1], x - origin, lengths=lengths)

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        grads = householder_mix_backward(dy, operands[0], operands[1], x - origin, lengths=lengths)
        return MixGrads((grads.du, grads.dalpha), grads.dx, mask_padding(dy, lengths) - grads.dx)


@dataclass(frozen=True)
class Orthogonal(Mixer):
    """``Q = exp(M - M^T)``, orthogonal, the same for all tokens.

    Its eigenvalues e^{i angle} have ``|1 - e^{i angle}| = 2 sin(angle / 2)``, less than 1 for angles below 60 degrees.
    Contractive, M is scaled by ``c / (1 + |M - M^T|_F / sqrt(2))`` first, c the angle of 0.95: no angle is larger.
    """

    name: ClassVar[str] = "orthogonal"
    varying: ClassVar[bool] = False

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"M": (self.width, self.width)}

    def _scale(self, M: Array) -> tuple[float, float]:
        """What M is multiplied by, and |M - M^T|_F / sqrt(2), which is no less than its largest angle."""
        size = float(np.sqrt(np.sum((M - M.T) ** 2) / 2))
        return (2 * np.arcsin(CONTRACTION / 2) / (1 + size) if self.contractive else 1.0), size

    def operands(self, parts: Parts) -> Operands:
        M = parts["M"]
        return (orthogonal(M * M.dtype.type(self._scale(M)[0])),)

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        M = parts["M"]
        scale, size = self._scale(M)
        dM = orthogonal_backward(doperands[0], M * M.dtype.type(scale))
        if not self.contractive:
            return {"M": dM}
        # dscale = -scale / (1 + size) dsize, dsize = <M - M^T, dM> / size
        slope = -scale / (1 + size) * float(np.sum(dM * M)) / size if size else 0.0
        return {"M": M.dtype.type(scale) * dM + M.dtype.type(slope) * (M - M.T)}

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        return mask_padding(origin + dense(mask_padding(x - origin, lengths), operands[0]), lengths)

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        dy = mask_padding(dy, lengths)
        grads = dense_backward(dy, mask_padding(x - origin, lengths), operands[0])
        return MixGrads((grads.dw,), grads.dx, dy - grads.dx)


MIXERS: dict[str, type[Mixer]] = {mixer.name: mixer for mixer in (Householder, Orthogonal)}
