"""Channel mixers Q of Fixed-Point RNNs by name: how each is made of numbers that a layer gives it, and its adjoint.

A layer asks a mixer for its `parts`, and gives it for each of them either an array of parameters, of that very shape,
or one of every token, (B, T, *shape), a linear function of its input. `operands` turns them into what the op takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.layer import Array
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.mixer import MixGrads as MixOpGrads
from rotrnn.ops.mixer import (
    dplr_mix,
    dplr_mix_backward,
    householder_mix,
    householder_mix_backward,
    kronecker_mix,
    kronecker_mix_backward,
    low_rank_mix,
    low_rank_mix_backward,
)
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
class Driven(Mixer):
    """A mixer of the op ``form(u, alpha, x)``, its gains ``alpha = gain sigmoid(.)``."""

    form: ClassVar[Callable[..., Array]]
    form_backward: ClassVar[Callable[..., MixOpGrads]]

    @property
    def gain(self) -> float:
        """The largest gain."""
        return 1.0

    def operands(self, parts: Parts) -> Operands:
        alpha = sigmoid(parts["alpha"])
        return parts["u"], alpha * alpha.dtype.type(self.gain)

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        alpha, dalpha = operands[1], doperands[1]
        return {"u": doperands[0], "alpha": dalpha * alpha * (1 - alpha / alpha.dtype.type(self.gain))}

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        return type(self).form(*operands, x, origin=origin, lengths=lengths, **self._more)

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        grads = type(self).form_backward(dy, *operands, x, origin=origin, lengths=lengths, **self._more)
        assert grads.dorigin is not None
        return MixGrads((grads.du, grads.dalpha), grads.dx, grads.dorigin)

    @property
    def _more(self) -> dict[str, int]:
        """What else the op takes."""
        return {}


@dataclass(frozen=True)
class Vectors(Driven):
    """A mixer made of `rank` vectors u, as many as there are channels at most, and their gains."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank > self.width:
            raise ValueError(f"Mixer: '{self.name}' has rank={self.rank}, expected {self.width}, its width, at most")

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.rank, self.width), "alpha": (self.rank,)}


@dataclass(frozen=True)
class Householder(Vectors):
    """``Q = prod_i (I - 2 alpha_i w_i w_i^T)``, ``w_i = u_i / |u_i|`` ("Fixed-Point RNNs", eq. 6).

    Gains are ``alpha = sigmoid(.)`` in (0, 1), section 5.3. Contractive, they are ``0.95 sigmoid(.) / 2 R``, for
    ``|I - Q| <= 2 sum_i alpha_i``: eigenvalues of Q are then positive.
    """

    name: ClassVar[str] = "householder"
    form = staticmethod(householder_mix)
    form_backward = staticmethod(householder_mix_backward)

    @property
    def gain(self) -> float:
        return CONTRACTION / (2 * self.rank) if self.contractive else 1.0


@dataclass(frozen=True)
class DPLR(Householder):
    """``Q = I - 2 sum_i alpha_i w_i w_i^T``, its gains as Householder's (the authors' code)."""

    name: ClassVar[str] = "dplr"
    form = staticmethod(dplr_mix)
    form_backward = staticmethod(dplr_mix_backward)


@dataclass(frozen=True)
class LowRank(Vectors):
    """``Q = sum_i alpha_i w_i w_i^T``, ``alpha = sigmoid(.) / R`` for a sum below 1 (section 3.3).

    With R < N it has no inverse, and ``|I - Q| = 1``.
    """

    name: ClassVar[str] = "low_rank"
    can_contract: ClassVar[bool] = False
    form = staticmethod(low_rank_mix)
    form_backward = staticmethod(low_rank_mix_backward)

    @property
    def gain(self) -> float:
        return 1 / self.rank


@dataclass(frozen=True)
class Kronecker(Driven):
    """``Q M = M - 2 L^T M K^T`` of a token read as a matrix (a, b), a the largest divisor of N up to its root.

    ``L = diag(sigmoid(.)) rownormalise(U U^T)``, U upper triangular, and K likewise: the mixer of the authors' code. It
    has no rank.
    """

    name: ClassVar[str] = "kronecker"
    can_contract: ClassVar[bool] = False
    form = staticmethod(kronecker_mix)
    form_backward = staticmethod(kronecker_mix_backward)

    @property
    def rows(self) -> int:
        """a."""
        return max(a for a in range(1, math.isqrt(self.width) + 1) if self.width % a == 0)

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        a, b = self.rows, self.width // self.rows
        return {"u": ((a * (a + 1) + b * (b + 1)) // 2,), "alpha": (a + b,)}

    @property
    def _more(self) -> dict[str, int]:
        return {"rows": self.rows}


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


MIXERS: dict[str, type[Mixer]] = {mixer.name: mixer for mixer in (Householder, DPLR, LowRank, Kronecker, Orthogonal)}
