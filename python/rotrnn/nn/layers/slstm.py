"""sLSTM: the LSTM with exponential gates, a normaliser and recurrent weights in heads (Beck et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import Columns, Dense, LayerNorm, Reshape, ScalarMemory
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.program import Builder, Program, Programmed
from rotrnn.ops.slstm import FORGET_GATES


@dataclass(frozen=True)
class SLSTM(Programmed):
    """``y = W_out norm(h)``, h the output of the scalar memory `rotrnn.ops.slstm`, in H = `heads` heads of P channels.

    ``z_t = W u_t + b + R h_{t-1}``, R block diagonal, one block for each head; of its four parts the gates
    ``i = exp(z_i)`` and ``f = s(z_f)`` with the sigmoid s, or ``f = exp(z_f)`` with ``forget="exp"``, the input
    ``z = tanh(z_z)``, and ``o = s(z_o)``: ``c_t = f c_{t-1} + i z``, ``n_t = f n_{t-1} + i``, ``h_t = o c_t / n_t``
    (equations 8 to 14), kept scaled so that no gate overflows (15 to 17).

    The norm is a layer norm of each head with a scale for each channel, as in the paper's blocks; the cell's equations
    have none. The convolution that the paper's block may have before i and f is not implemented here.

    Parameters
    ----------
    d_state : int
        N = H P, the number of channels of the memory.
    heads : int
        H, a divisor of N that leaves P >= 2.
    forget : "sigmoid" or "exp"
        The function of the forget gate; the paper allows both, its released code has the sigmoid.
    norm_eps : float
        Added to the variance in the norm.

    Parameters (dict of float32): in_proj (4N, D) and bias (4N,), with rows for i, f, z, o, each by heads; recurrent
    (H, 4P, P), the blocks of R, with rows in the same order; norm (N,); out_proj (D, N). The state is (h, c, n, m),
    each (B, H, P), where c and n are scaled by e^{-m}, and n >= 0 is 0 before the first step.

    Initial values, as in the released code: in_proj N(0, 2 / (5 D)), recurrent zero, and biases zero, except of the
    forget gate: 5 - 12 x^0.3 with x evenly from 0 to 1 over the channels of a head (their log-sigmoid with
    ``forget="exp"``); norm = 1. out_proj ~ N(0, 1/N).
    """

    about: ClassVar[str] = "long short-term memory with exponential gates, a normaliser and heads"
    paper: ClassVar[str] = 'Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory"'
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = "4 d_state"

    d_state: int
    heads: int = 1
    forget: str = "sigmoid"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "heads")
        if self.d_state % self.heads or self.width < 2:
            raise ValueError(
                f"SLSTM: heads={self.heads}, expected a divisor of d_state={self.d_state} that leaves each head 2 "
                "channels or more"
            )
        self.check_choice("forget", FORGET_GATES)
        self.check_positive("norm_eps")

    @property
    def width(self) -> int:
        """P, the number of channels of a head."""
        return self.d_state // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N, H, P = self.d_model, self.d_state, self.heads, self.width
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (4 * N, D), "bias": (4 * N,), "recurrent": (H, 4 * P, P)}
        return {**shapes, "norm": (N,), "out_proj": (D, N)}

    def init(self, rng: np.random.Generator) -> Params:
        D, N, H, P = self.d_model, self.d_state, self.heads, self.width
        bias = np.zeros((4, H, P))
        bias[1] = 5 - 12 * np.linspace(0, 1, P) ** 0.3
        if self.forget == "exp":
            bias[1] = -np.log1p(np.exp(-bias[1]))
        params = {
            "in_proj": rng.standard_normal((4 * N, D)) * np.sqrt(2 / (5 * D)),
            "bias": bias.ravel(),
            "recurrent": np.zeros((H, 4 * P, P)),
            "norm": np.ones(N),
            "out_proj": rng.standard_normal((D, N)) / np.sqrt(N),
        }
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is (h, c, n, m), each (B, H, P)."""
        p = Builder(self)
        z = p(Reshape((4, self.heads, self.width)), p(Dense(), p.x, "in_proj", "bias"))
        h = p(ScalarMemory(self.forget), z, "recurrent")
        normed = p(Reshape((self.d_state,)), p(LayerNorm(self.norm_eps), h))
        return p.returns(p(Dense(), normed, p(Columns(), "out_proj", "norm")), h=h)
