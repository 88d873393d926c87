"""minGRU: a gated recurrent unit whose gates do not depend on the state, so it is a linear scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Affine, Dense, Product, Scan, Sigmoid
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class MinGRU(Programmed):
    """``h_t = (1 - z_t) h_{t-1} + z_t c_t``, ``z_t = s(W_z u_t + b_z)``, ``c_t = W_c u_t + b_c``, ``y_t = W_out h_t``.

    minGRU (Feng, Tung, Ahmed, Bengio, Hajimirsadeghi 2024, "Were RNNs All We Needed?", section 3.1, with the linear
    projection back to the model's width of its blocks), with the sigmoid s. The transition ``1 - z_t`` lies in (0, 1).

    Parameters
    ----------
    d_state : int
        N, the number of real lanes of h.
    negative : bool
        The transition is ``1 - 2 z_t``, from -1 to 1 (Grazzi et al. 2024, "Unlocking State-Tracking in Linear RNNs
        Through Negative Eigenvalues").

    Parameters (dict of float32): W_z, W_c (N, D), b_z, b_c (N,), W_out (D, N). Its state is h (B, N), of N = `d_state`
    real lanes.

    Initial values: W_z, W_c ~ N(0, 1/D), W_out ~ N(0, 1/N), biases zero.
    """

    about: ClassVar[str] = "gated recurrent unit with gates of the input only: a scan with input-dependent decay"
    paper: ClassVar[str] = 'Feng et al. 2024, "Were RNNs All We Needed?"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"W_z", "b_z"})
    lanes: ClassVar[str] = "d_state"

    d_state: int
    negative: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        return {"W_z": (N, D), "b_z": (N,), "W_c": (N, D), "b_c": (N,), "W_out": (D, N)}

    def init(self, rng: np.random.Generator) -> Params:
        params = {}
        for name, shape in self.shapes.items():
            params[name] = rng.standard_normal(shape) / np.sqrt(shape[1]) if len(shape) == 2 else np.zeros(shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        z = p(Sigmoid(), p(Dense(), p.x, "W_z", "b_z"))
        c = p(Dense(), p.x, "W_c", "b_c")
        a = p(Affine(-2 if self.negative else -1, 1), z)
        h = p(Scan(), a, p(Product(), z, c))
        return p.returns(p(Dense(), h, "W_out"), h=h, a=a)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions (B, T, N), real, along sequences: each state's factor per step. Zero beyond the
        lengths. Arguments as in `forward`."""
        return self.registers(params, x, ctx, state)["a"]
