"""Channel mixers Q of Fixed-Point RNNs by name: how each is computed from arrays of a layer, and its adjoint.

A mixer declares the names and shapes of its `parts`. For each part, a layer provides either a constant array of this
shape (parameters), or an array (B, T, *shape) with a value per token (a linear function of the layer's input).
`operands` converts the parts to the operands of the op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn._support.settings import settle
from rotrnn.devices.device import contiguous
from rotrnn.nn.layer import Array, mask_steps
from rotrnn.nn.scaling import exponents, times_power
from rotrnn.ops import mixer as ops
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.fixed_point import PreparedMixer, prepare_mixer
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward
from rotrnn.ops.pointwise import mask_padding, sigmoid, tanh, tanh_backward

Parts = dict[str, Array]
Operands = tuple[Array, ...]

VECTORS, GAINS = ("u", "factors"), ("alpha", "gains")
"""Names of parts: those that are normalised, and gains before their sigmoid."""
CONTRACTION = 0.95
"""Bound of the matrix norm |I - Q| for a contractive mixer."""
POWER_STEPS = 16
"""Steps of the power iteration of a `spectral` Kronecker mixer, as in the authors' code."""
DENSE_STEPS = 32
"""The same of a dense mixer."""


def varies(operands: Operands) -> bool:
    """Whether operands of `mix` are those of tokens, (B, T, ...), and not constant."""
    return operands[0].ndim > 2


def spectral_norms(factor: Array, mixer: Mixer, operands: Operands, like: Array, lengths: Any) -> Array:
    """Returns ``|factor (I - Q_t)|_2`` (B, T) with a factor (B, T, N, 1) or (B, T, N, N), zero beyond the lengths; the
    norm of the map of a token."""
    apart = np.eye(mixer.width, dtype=like.dtype) - mixer.matrices(operands, like)
    slopes = factor * apart if factor.shape[-1] == 1 else factor @ apart
    norms: Array = np.linalg.norm(mask_steps(slopes, lengths), 2, (-2, -1))
    return norms


class MixGrads(NamedTuple):
    """Gradients of `mix`: of the operands, and of x and the origin (B, T, N)."""

    operands: Operands
    dx: Array
    dorigin: Array


@dataclass(frozen=True)
class Mixer(ABC):
    """A family of matrices Q (N, N) for tokens of `width` N, built from `rank` vectors if it has a rank.

    With `contractive`, ``|I - Q| <= 0.95`` for any values of the parts. Not every family supports this. `eps` is the
    least length that vectors are divided by, and `spectral` divides the factors of a Kronecker mixer by an estimate of
    their largest eigenvalue (`rotrnn.ops.mixer.mixer_gains`).
    """

    name: ClassVar[str]
    varying: ClassVar[bool] = True
    """Whether the matrix can differ from token to token."""
    can_contract: ClassVar[bool] = True
    can_normalise: ClassVar[bool] = True
    """Whether there are vectors to normalise with `eps`."""
    has_factors: ClassVar[bool] = False
    """Whether there are factors for `spectral`."""

    width: int
    rank: int = 1
    contractive: bool = False
    eps: float = 0.0
    spectral: bool = False

    def __post_init__(self) -> None:
        settle(self)
        if not 1 <= self.rank <= self.width:
            raise ValueError(f"Mixer: rank={self.rank!r}, expected an integer from 1 to the width, {self.width}")
        if self.contractive and not self.can_contract:
            raise ValueError(
                f"Mixer: contractive=True with '{self.name}', where |I - Q| is 1 or more, expected another mixer"
            )
        if not 0 <= self.eps < np.inf or (self.eps and not self.can_normalise):
            expected = "a nonnegative number" if self.can_normalise else f"0 with '{self.name}', which has no vectors"
            raise ValueError(f"Mixer: unit_eps={self.eps!r}, expected {expected}")
        if self.spectral and (self.contractive or not self.has_factors):
            expected = "contractive=False, as the norm is estimated" if self.has_factors else "a Kronecker product"
            raise ValueError(
                f"Mixer: spectral=True with '{self.name}' and contractive={self.contractive}, expected {expected}"
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

    @property
    def settings(self) -> dict[str, Any]:
        """Returns what the C library knows of it."""
        own = {"mixer": self.name, "rank": self.rank, "largest": self.largest}
        return {**own, "unit_eps": self.eps, "spectral": self.spectral}

    @property
    def largest(self) -> float:
        """The bound of its gains."""
        return 1.0

    @property
    @abstractmethod
    def solved(self) -> dict[str, Any]:
        """Returns the settings by which `rotrnn.ops.selective.selective_solve` knows the mixer."""

    def prepared(self, operands: Operands) -> PreparedMixer | None:
        """Returns the mixer in the form for kernels that mix in the same pass; None if there is no such kernel."""
        return None

    def as_matrices(self, operands: Operands, like: Array) -> PreparedMixer:
        """Returns the same as matrices: one for each token of an array `like` (B, T, N), or a constant one."""
        if varies(operands):
            rows = self.matrices(operands, like).reshape(*like.shape[:2], self.width**2)
        else:
            units = np.eye(self.width, dtype=like.dtype)[None]
            rows = np.ravel(self.mix(operands, units, np.zeros_like(units), None)[0].T)
        return prepare_mixer(ops.MATRIX, self.width, rows, ops.no_gains(rows), self.width)


@dataclass(frozen=True)
class Gains(Mixer):
    """Base class of mixers with vectors u and gains alpha: ``alpha = largest * sigmoid(.)`` (section 5.3)."""

    form: ClassVar[int]

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.rank, self.width), "alpha": (self.rank,)}

    @property
    def largest(self) -> float:
        return CONTRACTION / (2 * self.rank) if self.contractive else 1.0

    @property
    def _vectors(self) -> int:
        """Returns the number of vectors; for a mixer without vectors, of its rows."""
        return self.rank

    @property
    def _normalising(self) -> dict[str, Any]:
        """Returns the settings of `mixer_gains`; none if it leaves the gains as they are."""
        if not (self.eps or self.spectral):
            return {}
        return {"eps": self.eps, "steps": POWER_STEPS if self.spectral else 0}

    @property
    def solved(self) -> dict[str, Any]:
        steps = self._normalising.get("steps", 0)
        return {"form": self.form, "rank": self._vectors, "largest": self.largest, "steps": steps}

    def operands(self, parts: Parts) -> Operands:
        alpha = self._gains(parts)
        if self._normalising:
            alpha = ops.mixer_gains(self.form, parts["u"], alpha, self._vectors, self.width, **self._normalising)
        return parts["u"], alpha

    def _gains(self, parts: Parts) -> Array:
        """Returns the gains before `mixer_gains`."""
        alpha = sigmoid(parts["alpha"])
        gains: Array = alpha * alpha.dtype.type(self.largest)
        return gains

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        (du, dalpha), alpha = doperands, operands[1]
        if self._normalising:
            du, dalpha, alpha = self._gains_backward(parts, doperands)
        return {"u": du, "alpha": dalpha * alpha * (1 - alpha / alpha.dtype.type(self.largest))}

    def _gains_backward(self, parts: Parts, doperands: Operands) -> tuple[Array, Array, Array]:
        """Returns the gradients of u and of the gains before `mixer_gains`, and these gains."""
        (du, dgains), u, alpha = doperands, parts["u"], self._gains(parts)
        sizes = self._vectors, self.width
        through, dalpha = ops.mixer_gains_backward(dgains, self.form, u, alpha, *sizes, **self._normalising)
        return du + through, dalpha, alpha

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        u, alpha = operands
        return ops.normalised_mix(self.form, u, alpha, x, self._vectors, origin=origin, lengths=lengths)

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        u, alpha = operands
        rows = self._vectors
        grads = ops.normalised_mix_backward(dy, self.form, u, alpha, x, rows, origin=origin, lengths=lengths)
        assert grads.dorigin is not None
        return MixGrads((grads.du, grads.dalpha), grads.dx, grads.dorigin)

    def prepared(self, operands: Operands) -> PreparedMixer:
        return prepare_mixer(self.form, self._vectors, operands[0], operands[1], self.width)


@dataclass(frozen=True)
class Householder(Gains):
    """``Q = prod_i (I - 2 alpha_i w_i w_i^T)``, ``w_i = u_i / |u_i|`` ("Fixed-Point RNNs", eq. 6), alpha in (0, 1).

    If contractive, gains are below ``0.95 / 2R``, because ``|I - Q| <= 2 sum_i alpha_i``. The eigenvalues of Q then
    have positive real parts.
    """

    name: ClassVar[str] = "householder"
    form = ops.HOUSEHOLDER


@dataclass(frozen=True)
class DPLR(Gains):
    """``Q = I - 2 sum_i alpha_i w_i w_i^T``, from the authors' code. If contractive, it has the same gains as
    `Householder`."""

    name: ClassVar[str] = "dplr"
    form = ops.DPLR


@dataclass(frozen=True)
class LowRank(Gains):
    """``Q = sum_i alpha_i w_i w_i^T``, with alpha in (0, 1/R) so that they sum to less than 1 (section 3.3).

    Q is zero for directions orthogonal to its vectors, where ``|I - Q| = 1``, so it cannot be contractive.
    """

    name: ClassVar[str] = "low_rank"
    can_contract: ClassVar[bool] = False
    form = ops.LOW_RANK

    @property
    def largest(self) -> float:
        return 1 / self.rank


@dataclass(frozen=True)
class Kronecker(Gains):
    """``Q M = M - 2 L^T M K^T`` for a token reshaped to a matrix M (a, b), where a is the largest divisor of N up to
    sqrt(N).

    L and K have normalised rows with gains, so ``|L| <= largest sqrt(a)``, and contractive gains are at most
    ``sqrt(0.95 / (2 sqrt(N)))``. If `spectral`, L and K are divided, before their gains, by an estimate of their
    largest eigenvalue from 16 steps of power iteration, as in the authors' code of the vector state. A factor is not
    symmetric, so that its norm may be larger than that.
    """

    name: ClassVar[str] = "kronecker"
    has_factors: ClassVar[bool] = True
    form = ops.KRONECKER

    @property
    def _vectors(self) -> int:
        return ops.rows_of_product(self.width)

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        a = self._vectors
        b = self.width // a
        return {"u": ((a * (a + 1) + b * (b + 1)) // 2,), "alpha": (a + b,)}

    @property
    def largest(self) -> float:
        return float((CONTRACTION / (2 * self.width**0.5)) ** 0.5) if self.contractive else 1.0


@dataclass(frozen=True)
class Monarch(Gains):
    """``Q = I - blockdiag(alpha_k G_k / (largest |column| of G_k + eps))``, with ``G_k = U_k U_k^T`` of an upper
    triangular U_k, for blocks of R adjacent channels; from the authors' code, where R and N are powers of two.

    Here R is any divisor of N. ``|G_k|`` is up to sqrt(R) times its largest column, so if contractive, gains are below
    ``0.95 / sqrt(R)``. Q is symmetric, and its eigenvalues are from ``1 - sqrt(R)`` to 1.
    """

    name: ClassVar[str] = "monarch"
    form = ops.MONARCH

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.rank:
            raise ValueError(f"Mixer: rank={self.rank!r}, expected a divisor of the width, {self.width}")

    @property
    def _normalising(self) -> dict[str, Any]:
        return {"eps": self.eps}

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.width * (self.rank + 1) // 2,), "alpha": (self.width // self.rank,)}

    @property
    def largest(self) -> float:
        return float(CONTRACTION / self.rank**0.5) if self.contractive else 1.0


@dataclass(frozen=True)
class Dense(Gains):
    """``Q = U U^T / (lambda_max + eps)`` with an upper triangular U (N, N), where lambda_max is an estimate of the
    largest eigenvalue of ``U U^T`` from 32 steps of power iteration; from the authors' code, which adds eps to the
    length in each of these steps, too. That takes back the eps above, so that eps = 0 is the nearest to it.

    It has N (N + 1) / 2 numbers a token and no gains; rank has no meaning. The eigenvalues of Q are from 0 to about 1,
    as the estimate is from below, so it cannot be contractive.
    """

    name: ClassVar[str] = "dense"
    can_contract: ClassVar[bool] = False
    form = ops.GRAM

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.width * (self.width + 1) // 2,)}

    @property
    def _vectors(self) -> int:
        return self.width

    @property
    def _normalising(self) -> dict[str, Any]:
        return {"eps": self.eps, "steps": DENSE_STEPS}

    def _gains(self, parts: Parts) -> Array:
        return np.ones_like(parts["u"][..., :1])

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        return {"u": self._gains_backward(parts, doperands)[0]}


@dataclass(frozen=True)
class Rotation(Gains):
    """``Q = R_1 .. R_R``, an orthogonal matrix for each token: each factor turns N / 2 planes of two channels by angles
    ``a tanh(u / a)`` with ``a = pi`` (`rotrnn.ops.mixer.rotation_mix`), which is nearly u near zero.

    Its factors have ``|I - R_k| = 2 sin(angle / 2)`` of their largest angle, and ``|I - Q|`` is at most the sum of
    these. That is below 1 for one angle below 60 degrees; if contractive, ``a = 0.95 / R``, so that the sum of all
    factors is at most 0.95.
    """

    name: ClassVar[str] = "rotation"
    can_normalise: ClassVar[bool] = False
    form = ops.ROTATION

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise ValueError(f"Mixer: mixer='{self.name}' with a width of {self.width}, expected an even width")

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"u": (self.rank, self.width // 2)}

    @property
    def largest(self) -> float:
        return CONTRACTION / self.rank if self.contractive else np.pi

    def operands(self, parts: Parts) -> Operands:
        largest = parts["u"].dtype.type(self.largest)
        angles = tanh(parts["u"] / largest) * largest
        return angles, ops.no_gains(angles)

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        return {"u": tanh_backward(doperands[0], operands[0] / operands[0].dtype.type(self.largest))}


PRODUCT_PARTS = {"factors": "u", "gains": "alpha"}
"""Parts of a mixture's Kronecker products, and their names in one of these."""


@dataclass(frozen=True)
class Mixture(Mixer):
    """R mixers one after the other: a Householder reflection of one vector, a Kronecker product, a reflection, ...;
    from the authors' code. The first is applied first, ``Q = Q_R .. Q_2 Q_1``, and R is at least 2.

    In that code the mixers divide by at least 1e-5, whatever the model's norm_eps, and products are never spectral;
    here they have `eps` and `spectral` as given.

    u and alpha are those of the reflections, and factors and gains the u and alpha of the products. It is composed
    of the ops of its mixers: no kernel mixes in the same pass as the iteration, nor by tiles. It cannot be contractive.
    """

    name: ClassVar[str] = "mixture"
    can_contract: ClassVar[bool] = False
    has_factors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 2:
            raise ValueError(f"Mixer: rank={self.rank!r}, expected at least 2 for '{self.name}'")

    @property
    def _kinds(self) -> tuple[Gains, Gains]:
        """Returns a mixer of each kind, which take turns."""
        return Householder(self.width, eps=self.eps), Kronecker(self.width, eps=self.eps, spectral=self.spectral)

    @property
    def mixers(self) -> list[Gains]:
        """Returns the mixers in the order in which they are applied."""
        return [self._kinds[i % 2] for i in range(self.rank)]

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        (_, product), products = self._kinds, self.rank // 2
        reflections = Householder(self.width, self.rank - products).parts
        return {**reflections, **{name: (products, *product.parts[own]) for name, own in PRODUCT_PARTS.items()}}

    def _own(self, parts: Parts, i: int) -> Parts:
        """Returns the parts of mixer i."""
        at = i // 2
        if i % 2:
            return {own: contiguous(parts[name][..., at, :]) for name, own in PRODUCT_PARTS.items()}
        return {"u": contiguous(parts["u"][..., at : at + 1, :]), "alpha": contiguous(parts["alpha"][..., at : at + 1])}

    @property
    def solved(self) -> dict[str, Any]:
        return {"form": ops.MIXTURE, "rank": self.rank, "steps": POWER_STEPS if self.spectral else 0}

    def operands(self, parts: Parts) -> Operands:
        return tuple(operand for i, one in enumerate(self.mixers) for operand in one.operands(self._own(parts, i)))

    def operands_backward(self, parts: Parts, operands: Operands, doperands: Operands) -> Parts:
        grads: list[Parts] = []
        for i, one in enumerate(self.mixers):
            here = slice(2 * i, 2 * i + 2)
            grads.append(one.operands_backward(self._own(parts, i), operands[here], doperands[here]))
        reflections, products = grads[::2], grads[1::2]
        return {
            "u": np.concatenate([own["u"] for own in reflections], -2),
            "alpha": np.concatenate([own["alpha"] for own in reflections], -1),
            **{name: np.stack([d[own] for d in products], -2) for name, own in PRODUCT_PARTS.items()},
        }

    def _through(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> list[Array]:
        """Returns x and what each mixer makes of it."""
        values = [x]
        for i, one in enumerate(self.mixers):
            values.append(one.mix(operands[2 * i : 2 * i + 2], values[-1], origin, lengths))
        return values

    def mix(self, operands: Operands, x: Array, origin: Array, lengths: Any) -> Array:
        return self._through(operands, x, origin, lengths)[-1]

    def mix_backward(self, operands: Operands, dy: Array, x: Array, origin: Array, lengths: Any) -> MixGrads:
        values, dx, dorigin, grads = self._through(operands, x, origin, lengths), dy, None, []
        for i in reversed(range(len(self.mixers))):
            own = self.mixers[i].mix_backward(operands[2 * i : 2 * i + 2], dx, values[i], origin, lengths)
            dx, dorigin = own.dx, own.dorigin if dorigin is None else dorigin + own.dorigin
            grads.append(own.operands)
        assert dorigin is not None
        return MixGrads(tuple(d for own in reversed(grads) for d in own), dx, dorigin)


@dataclass(frozen=True)
class Orthogonal(Mixer):
    """``Q = exp(M - M^T)``, an orthogonal matrix, the same for all tokens.

    Its eigenvalues e^{i angle} have ``|1 - e^{i angle}| = 2 sin(angle / 2)``, less than 1 for angles below 60 degrees.
    If contractive, M is first scaled by ``c / (1 + |M - M^T|_F / sqrt(2))``, where c is the angle with
    ``2 sin(c / 2) = 0.95``, so that no angle is larger than c.
    """

    name: ClassVar[str] = "orthogonal"
    varying: ClassVar[bool] = False
    can_normalise: ClassVar[bool] = False

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        return {"M": (self.width, self.width)}

    def _scale(self, M: Array) -> tuple[Array, Array]:
        """Returns the factor of M, and |M - M^T|_F / sqrt(2), an upper bound of its largest angle; both float64."""
        A = (M - M.T)[None]
        exponent = exponents(A)  # the squares of A may overflow or vanish
        root = np.sqrt(np.sum(times_power(A, -exponent) ** 2) / 2).astype(np.float64)
        (size,) = times_power(root[None], exponent)
        return (2 * np.arcsin(CONTRACTION / 2) / (1 + size) if self.contractive else np.ones_like(size)), size

    @property
    def solved(self) -> dict[str, Any]:
        return {"form": ops.MATRIX, "rank": self.width}

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


MIXERS: dict[str, type[Mixer]] = {
    mixer.name: mixer
    for mixer in (Householder, DPLR, LowRank, Kronecker, Monarch, Orthogonal, Dense, Mixture, Rotation)
}
