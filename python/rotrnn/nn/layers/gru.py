"""The GRU: the gated recurrent unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Affine, Dense, GRUCells
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class GRU(Programmed):
    """Gated recurrent unit with `d_state` states, ``y_t = C h_t`` (for the equations see `rotrnn.ops.gru`).

    The reset gate multiplies after the product with U_n, as in PyTorch and cuDNN; in the paper before it.
    Without `projection`, y is h, as in PyTorch, and `d_state` must equal `d_model`.

    Parameters (dict of float32), in PyTorch's names and order of gates, r, z, n: weight_ih (3N, D), weight_hh (3N, N),
    bias_ih, bias_hh (3N,); and C (D, N) with `projection`. Its state is h (B, N).

    Initial values: weights and biases uniform on +-1/sqrt(N), as in PyTorch; C ~ N(0, 1/N).
    """

    about: ClassVar[str] = "gated recurrent unit"
    paper: ClassVar[str] = 'Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder"'
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = "d_state"

    d_state: int
    projection: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        if not self.projection and self.d_state != self.d_model:
            raise ValueError(
                f"GRU: d_state={self.d_state}, expected d_model={self.d_model}, or projection=True between the two"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (3 * N, D), "weight_hh": (3 * N, N)}
        shapes |= {"bias_ih": (3 * N,), "bias_hh": (3 * N,)}
        return {**shapes, "C": (D, N)} if self.projection else shapes

    def init(self, rng: np.random.Generator) -> Params:
        most = self.d_state**-0.5
        params = {name: rng.uniform(-most, most, shape) for name, shape in self.shapes.items() if name != "C"}
        if self.projection:
            params["C"] = most * rng.standard_normal(self.shapes["C"])
        return astype(params, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        h = p(GRUCells(), p(Dense(), p.x, "weight_ih", "bias_ih"), "weight_hh", "bias_hh")
        return p.returns(p(Dense(), h, "C") if self.projection else p(Affine(1), h), h=h)
