"""The recurrent network with a dense transition: linear, tanh or ReLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Dense, Elman, Skip, Sum
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.program import Builder, Program, Programmed
from rotrnn.ops.rnn import ACTIVATIONS


def glorot(rng: np.random.Generator, n: int) -> Array:
    """Entries N(0, 1/n) (Glorot and Bengio 2010); the eigenvalues fill the unit disc (LRU, theorem 3.1)."""
    return np.asarray(rng.standard_normal((n, n)) / np.sqrt(n))


def orthogonal(rng: np.random.Generator, n: int) -> Array:
    """A uniformly distributed orthogonal matrix; all eigenvalues are on the unit circle.

    A product of reflections, each in one more dimension, that map the first unit vector to the direction of a Gaussian
    vector (Stewart 1980; Mezzadri 2007, section 6). Unlike a QR routine, its bits do not depend on threads.
    """
    Q = np.eye(n)
    for k in reversed(range(n)):
        v = rng.standard_normal(n - k)
        sign, norm = np.copysign(1, v[0]), np.sqrt((v * v).sum())
        v[0] += sign * norm
        inner = Q[k:, k:]
        inner -= np.outer(v / (norm * abs(v[0])), np.einsum("i,ij->j", v, inner))  # |v|^2 / 2 = norm |v[0]|
        inner *= -sign
    return Q


def identity(rng: np.random.Generator, n: int) -> Array:
    """The identity matrix."""
    return np.eye(n)


INITIALISATIONS = {"glorot": glorot, "orthogonal": orthogonal, "identity": identity}
"""Initial values of A: as for the dense models of the LRU paper; as in Helfrich et al. 2018; as in Le et al. 2015 (with
ReLU)."""


@dataclass(frozen=True)
class RNN(Programmed):
    """``h_t = f(A h_{t-1} + B u_t)``, ``y_t = C h_t + D * u_t``: the dense models of the LRU paper (table 1).

    `activation` is f: "identity" (the linear RNN), "tanh" or "relu". `initialisation` sets A: one of INITIALISATIONS.

    Parameters (dict of float32): A (N, N), B (N, D), C (D, N), D (D,). A bidirectional layer also has C_reverse (D, N);
    the directions share the other parameters. The state is h (B, N), with N = `d_state` real lanes.

    Other initial values: B ~ N(0, 1/D), C ~ N(0, 1/N), D ~ N(0, 1), as in LRU.
    """

    about: ClassVar[str] = "recurrent network with a dense transition: linear, tanh or ReLU"
    paper: ClassVar[str] = 'Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences", table 1'
    recurrent: ClassVar[frozenset[str]] = frozenset({"A", "B"})
    lanes: ClassVar[str] = "d_state"

    d_state: int
    activation: str = "identity"
    initialisation: str = "glorot"
    bidirectional: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        self.check_choice("activation", ACTIVATIONS)
        self.check_choice("initialisation", INITIALISATIONS)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        return {"A": (N, N), "B": (N, D), **{"C" + suffix: (D, N) for suffix in self.directions}, "D": (D,)}

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        params = {
            "A": INITIALISATIONS[self.initialisation](rng, N),
            "B": rng.standard_normal((N, D)) / np.sqrt(D),
            **{"C" + suffix: rng.standard_normal((D, N)) / np.sqrt(N) for suffix in self.directions},
            "D": rng.standard_normal(D),
        }
        return astype(params, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        z = p(Dense(), p.x, "B")
        h = [p(Elman(self.activation, bool(reverse)), z, "A") for reverse in range(len(self.directions))]
        read = [p(Dense(), one, "C" + suffix) for one, suffix in zip(h, self.directions, strict=True)]
        y = p(Skip(), p.x, "D", None, read[0])
        return p.returns(p(Sum(), y, read[1]) if self.bidirectional else y, h=h[0])

    def eigenvalues(self, params: Params) -> Array:
        """Returns the eigenvalues of A, (N,) complex."""
        self.check_params(params)
        return np.linalg.eigvals(params["A"].astype(np.float64)).astype(np.complex128)
