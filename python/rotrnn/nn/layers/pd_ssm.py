"""PD-SSM: each step sends every lane to one lane, times a complex number (2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Affine, Dense, PermutedScan, Polar, Reshape, Sigmoid, Skip, Softmax
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class PDSSM(Programmed):
    """``h_t = P_t D_t h_{t-1} + B u_t``, ``y_t = Re(C h_t) + D * u_t``: a one-hot matrix P times a complex diagonal.

    PD-SSM (Terzic, Menet, Hersche, Hofmann, Rahimi 2025, "Structured Sparse Transition Matrices to Enable State
    Tracking in State-Space Models"). For each token, with the sigmoid s,

    ``M_t = sum_k softmax(S u_t)_k M[k]``, ``P_t[i, j] = 1`` for ``i = argmax_i M_t[i, j]`` and else 0,
    ``D_t = diag(s(W_size u_t + b_size) exp(2 pi i s(W_phase u_t + b_phase)))``.

    Each column of P_t has a single 1: lane j goes to one lane, and several may go to the same one. Products of such
    transitions are of that form again, so any finite automaton of N states is a choice of parameters
    (`rotrnn.ops.permuted_scan`).

    The exact derivative through the choice of P_t, by M, S and a part of u, is zero almost everywhere. As in the
    authors' code, the gradient goes straight through the choice, as if P_t were the softmax of each column of M_t
    (`rotrnn.ops.permuted_scan_backward` has the formula). It is an estimate, which central differences do not confirm.

    Parameters
    ----------
    d_state : int
        N, the number of complex lanes.
    dictionary : int
        K, the number of matrices M[k]: the paper's dictionary.

    Parameters (dict of float32): S (K, D), M (K, N, N), B (2 N, D), whose rows are the real parts and then the
    imaginary parts, C (D, 2 N), whose columns are the real parts and then minus the imaginary parts, D (D,), W_size,
    W_phase (N, D), b_size, b_phase (N,). The state is h (B, 2, N), real and imaginary parts.

    Initial values, as in the code for time series: S, D ~ N(0, 1), M ~ N(0, 1/N), B ~ N(0, 1/(2 D)), C ~ N(0, 1/N),
    W_size, W_phase ~ N(0, 1/D), b_size, b_phase ~ N(0, 1/N).
    """

    about: ClassVar[str] = "complex lanes that each step sends to other lanes: one-hot times diagonal, PD-SSM"
    paper: ClassVar[str] = (
        'Terzic et al. 2025, "Structured Sparse Transition Matrices to Enable State Tracking in State-Space Models"'
    )
    recurrent: ClassVar[frozenset[str]] = frozenset({"S", "M", "W_size", "b_size", "W_phase", "b_phase"})
    estimated: ClassVar[frozenset[str]] = frozenset({"S", "M", "x"})
    lanes: ClassVar[str] = "2 d_state"

    d_state: int
    dictionary: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "dictionary")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N, K = self.d_model, self.d_state, self.dictionary
        own: dict[str, tuple[int, ...]] = {"S": (K, D), "M": (K, N, N), "B": (2 * N, D), "C": (D, 2 * N), "D": (D,)}
        for name in ("size", "phase"):
            own |= {f"W_{name}": (N, D), f"b_{name}": (N,)}
        return own

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        variances = {"S": 1, "M": 1 / N, "B": 1 / (2 * D), "C": 1 / N, "D": 1, "W": 1 / D, "b": 1 / N}
        params = {
            name: np.sqrt(variances[name.split("_")[0]]) * rng.standard_normal(shape)
            for name, shape in self.shapes.items()
        }
        return astype(params, np.float32)

    def program(self) -> Program:
        p, N = Builder(self), self.d_state
        w = p(Softmax(), p(Dense(), p.x, "S"))
        size, turns = (p(Sigmoid(), p(Dense(), p.x, f"W_{name}", f"b_{name}")) for name in ("size", "phase"))
        d = p(Polar(), size, p(Affine(2 * np.pi), turns))
        x = p(Reshape((2, N)), p(Dense(), p.x, "B"))
        h = p(PermutedScan(), w, "M", d, x)
        y = p(Dense(), p(Reshape((2 * N,)), h), "C")
        return p.returns(p(Skip(), p.x, "D", None, y), h=h)
