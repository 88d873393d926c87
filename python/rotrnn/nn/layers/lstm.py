"""The LSTM: long short-term memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Affine, Dense, LSTMCells
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class LSTM(Programmed):
    """Long short-term memory with `d_state` cells, ``y_t = C h_t`` (for the equations see `rotrnn.ops.lstm`).

    Without `projection`, y is h, as in PyTorch, and `d_state` must equal `d_model`.

    Parameters (dict of float32), in PyTorch's names and order of gates, i, f, g, o: weight_ih (4N, D), weight_hh
    (4N, N), bias (4N,), which is PyTorch's bias_ih + bias_hh; and C (D, N) with `projection`. Its state is (h, c), both
    (B, N): 2N real lanes.

    Initial values: weights uniform on +-1/sqrt(N), as in PyTorch; the bias of the forget gate is `forget_bias`
    (Jozefowicz et al. 2015 recommend 1), other biases are zero; C ~ N(0, 1/N).
    """

    about: ClassVar[str] = "long short-term memory"
    paper: ClassVar[str] = 'Hochreiter and Schmidhuber 1997, "Long Short-Term Memory"; Gers et al. 2000'
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = "2 d_state"

    d_state: int
    projection: bool = True
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        if not self.projection and self.d_state != self.d_model:
            raise ValueError(
                f"LSTM: d_state={self.d_state}, expected d_model={self.d_model}, or projection=True between the two"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * N, D), "weight_hh": (4 * N, N), "bias": (4 * N,)}
        return {**shapes, "C": (D, N)} if self.projection else shapes

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        bias = np.zeros((4, N))
        bias[1] = self.forget_bias
        params = {
            "weight_ih": rng.uniform(-(N**-0.5), N**-0.5, (4 * N, D)),
            "weight_hh": rng.uniform(-(N**-0.5), N**-0.5, (4 * N, N)),
            "bias": bias.ravel(),
        }
        if self.projection:
            params["C"] = rng.standard_normal((D, N)) / np.sqrt(N)
        return astype(params, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        h = p(LSTMCells(), p(Dense(), p.x, "weight_ih", "bias"), "weight_hh")
        return p.returns(p(Dense(), h, "C") if self.projection else p(Affine(1), h), h=h)
