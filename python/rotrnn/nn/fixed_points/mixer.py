"""Channel mixers Q of Fixed-Point RNNs by name: how each is computed from arrays of a layer, and its adjoint.

A mixer declares the names and shapes of its `parts`. For each part, a layer provides either a constant array of this
shape (parameters), or an array (B, T, *shape) with a value per token (a linear function of the layer's input).
`operands` converts the parts to the operands of the op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn._support.settings import settle
from rotrnn.nn.layer import Array
from rotrnn.ops import mixer as ops
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.fixed_point import PreparedMixer, prepare_mixer
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward
from rotrnn.ops.pointwise import mask_padding, sigmoid

Parts = dict[str, Array]
Operands = tuple[Array, ...]

CONTRACTION = 0.95
"""Bound of the matrix norm |I - Q| for a contractive mixer."""


class MixGrads(NamedTuple):
    """Gradients of `mix`: of the operands, and of x and the origin (B, T, N)."""

    operands: Operands
    dx: Array
    dorigin: Array


@dataclass(frozen=True)
class Mixer(ABC):
    """A family of matrices Q (N, N) for tokens of `width` N, built from `rank` vectors if it has a rank.

    With `contractive`, ``|I - Q| <= 0.95`` for any values of the parts. Not every family supports this.
    """

    name: ClassVar[str]
    varying: ClassVar[bool] = True
    """Whether the matrix can differ from token to token."""
    can_contract: ClassVar[bool] = True

    width: int
    rank: int = 1
    contractive: bool = False

    def __post_init__(self) -> None:
        settle(self)
        if not 1 <= self.rank <= self.width:
            raise ValueError(f"Mixer: rank={self.rank!r}, expected an integer from 1 to the width, {self.width}")
        if self.contractive and not self.can_contract:
            raise ValueError(
                f"Mixer: contractive=True with '{self.name}', where |I - Q| is 1 or more, expected another mixer"
            )

    @property
    @abstractmethod
    def parts(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parts of one matrix Q."""

    @abstractmethod
    def operands(self, parts: Parts) -> Operands:
        """Returns the operands for `mix`."""

    @abstractmethod
    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        """Adjoint of `operands`: returns the gradients of the parts."""

    @abstractmethod
    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        """Returns ``o + Q (x - o)`` (B, T, N) with the origin o; zero beyond `lengths`."""

    @abstractmethod
    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        """Adjoint of `mix`: ``dx = Q^T dy``, ``dorigin = dy - dx``."""

    def matrices(self, operands: Operands, like: Array) -> Array:
        """Returns Q_t (B, T, N, N) for the tokens of an array `like` (B, T, N): what it does to each unit vector."""
        units, columns = np.eye(self.width, dtype=like.dtype), []
        for unit in units:
            token = np.broadcast_to(unit, like.shape).copy()
            columns.append(self.mix(operands, token, np.zeros_like(token), None))
        return np.stack(columns, -1)

    def prepared(self, operands: Operands) -> PreparedMixer | None:
        """Returns the mixer in the form for kernels that mix in the same pass; None if there is no such kernel."""
        return None


@dataclass(frozen=True)
class Gains(Mixer):
    """Base class of mixers with vectors u and gains alpha: ``alpha = largest * sigmoid(.)`` (section 5.3)."""

    op: ClassVar[tuple[Callable[..., Array], Callable[..., ops.MixGrads]]]
    form: ClassVar[int]

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.rank, self.width), "alpha": (self.rank,)}

    @property
    def largest(self) -> float:
        return CONTRACTION / (2 * self.rank) if self.contractive else 1.0

    @property
    def _rows(self) -> dict[str, int]:
        """Returns the other arguments of the op besides its arrays."""
        return {}

    def operands(self, parts: Parts) -> Operands:
        alpha = sigmoid(parts["alpha"])
        return parts["u"], alpha * alpha.dtype.type(self.largest)

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        alpha, dalpha = operands[1], doperands[1]
        return {"u": doperands[0], "alpha": dalpha * alpha * (1 - alpha / alpha.dtype.type(self.largest))}

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        return self.op[0](*operands, x, origin=origin, lengths=lengths, **self._rows)

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        grads = self.op[1](dy, *operands, x, origin=origin, lengths=lengths, **self._rows)
        assert grads.dorigin is not None
        return MixGrads((grads.du, grads.dalpha), grads.dx, grads.dorigin)

    def prepared(self, operands: Operands) -> PreparedMixer:
        return prepare_mixer(self.form, self._rows.get("rows", self.rank), operands[0], operands[1], self.width)


@dataclass(frozen=True)
class Householder(Gains):
    """``Q = prod_i (I - 2 alpha_i w_i w_i^T)``, ``w_i = u_i / |u_i|`` ("Fixed-Point RNNs", eq. 6), alpha in (0, 1).

    If contractive, gains are below ``0.95 / 2R``, because ``|I - Q| <= 2 sum_i alpha_i``. The eigenvalues of Q are then
    positive.
    """

    name: ClassVar[str] = "householder"
    op = ops.householder_mix, ops.householder_mix_backward
    form = ops.HOUSEHOLDER


@dataclass(frozen=True)
class DPLR(Gains):
    """``Q = I - 2 sum_i alpha_i w_i w_i^T``, from the authors' code. If contractive, it has the same gains as
    `Householder`."""

    name: ClassVar[str] = "dplr"
    op = ops.dplr_mix, ops.dplr_mix_backward
    form = ops.DPLR


@dataclass(frozen=True)
class LowRank(Gains):
    """``Q = sum_i alpha_i w_i w_i^T``, with alpha in (0, 1/R) so that they sum to less than 1 (section 3.3).

    Q is zero for directions orthogonal to its vectors, where ``|I - Q| = 1``, so it cannot be contractive.
    """

    name: ClassVar[str] = "low_rank"
    can_contract: ClassVar[bool] = False
    op = ops.low_rank_mix, ops.low_rank_mix_backward
    form = ops.LOW_RANK

    @property
    def largest(self) -> float:
        return 1 / self.rank


@dataclass(frozen=True)
class Kronecker(Gains):
    """``Q M = M - 2 L^T M K^T`` for a token reshaped to a matrix M (a, b), where a is the largest divisor of N up to
    sqrt(N).

    L and K have normalised rows with gains, so ``|L| <= largest sqrt(a)``, and contractive gains are at most
    ``sqrt(0.95 / (2 sqrt(N)))``.
    """

    name: ClassVar[str] = "kronecker"
    op = ops.kronecker_mix, ops.kronecker_mix_backward
    form = ops.KRONECKER

    @property
    def _rows(self) -> dict[str, int]:
        return {"rows": max(a for a in range(1, int(self.width**0.5) + 1) if self.width % a == 0)}

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        a = self._rows["rows"]
        b = self.width // a
        return {"u": ((a * (a + 1) + b * (b + 1)) // 2,), "alpha": (a + b,)}

    @property
    def largest(self) -> float:
        return float((CONTRACTION / (2 * self.width**0.5)) ** 0.5) if self.contractive else 1.0


@dataclass(frozen=True)
class Orthogonal(Mixer):
    """``Q = exp(M - M^T)``, an orthogonal matrix, the same for all tokens.

    Its eigenvalues e^{i angle} have ``|1 - e^{i angle}| = 2 sin(angle / 2)``, less than 1 for angles below 60 degrees.
    If contractive, M is first scaled by ``c / (1 + |M - M^T|_F / sqrt(2))``, where c is the angle with
    ``2 sin(c / 2) = 0.95``, so that no angle is larger than c.
    """

    name: ClassVar[str] = "orthogonal"
    varying: ClassVar[bool] = False

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"M": (self.width, self.width)}

    def _scale(self, M: Array) -> tuple[Array, Array]:
        """Returns the factor of M, and |M - M^T|_F / sqrt(2), an upper bound of its largest angle; both float64."""
        size = np.sqrt(np.sum((M - M.T) ** 2) / 2).astype(np.float64)
        return (2 * np.arcsin(CONTRACTION / 2) / (1 + size) if self.contractive else np.ones_like(size)), size

    def operands(self, parts: Parts) -> Operands:
        M = parts["M"]
        return (orthogonal(M * self._scale(M)[0].astype(M.dtype)),)

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        M = parts["M"]
        scale, size = self._scale(M)
        dM = orthogonal_backward(doperands[0], M * scale.astype(M.dtype))
        if not self.contractive:
            return {"M": dM}
        # dscale = -scale / (1 + size) dsize, dsize = <M - M^T, dM> / size
        along = -scale / (1 + size) * np.sum(dM * M).astype(np.float64)
        slope = np.where(size != 0, along / np.where(size != 0, size, 1), 0)
        return {"M": scale.astype(M.dtype) * dM + slope.astype(M.dtype) * (M - M.T)}

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        return mask_padding(origin + dense(mask_padding(x - origin, lengths), operands[0]), lengths)

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        dy = mask_padding(dy, lengths)
        grads = dense_backward(dy, mask_padding(x - origin, lengths), operands[0])
        return MixGrads((grads.dw,), grads.dx, dy - grads.dx)


MIXERS: dict[str, type[Mixer]] = {mixer.name: mixer for mixer in (Householder, DPLR, LowRank, Kronecker, Orthogonal)}
