"""mLSTM: the LSTM with a matrix memory and exponential gates (Beck et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import GLU, Affine, Columns, Dense, LayerNorm, LogSigmoid, MatrixMemory, Reshape
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps
from rotrnn.nn.layers.heads import ValueHeads
from rotrnn.nn.program import Builder, Program
from rotrnn.ops.slstm import FORGET_GATES


@dataclass(frozen=True)
class MLSTM(ValueHeads):
    """``y = W_out (s(o) * norm(h))``, h the output of the matrix memory `rotrnn.ops.mlstm`, s the sigmoid.

    ``q = W_q u``, ``k = W_k u / sqrt(N)``, ``v = W_v u``, ``o = W_o u`` (equations 22 to 24 and 27; with `bias` also
    + b, to k after the division: ``W_k u / sqrt(N) + b_k``), and for each of H = `heads` heads the gates
    ``i = exp(w_i u + b_i)`` and ``f = s(w_f u + b_f)``, or ``f = exp(w_f u + b_f)`` with ``forget="exp"`` (25, 26):
    ``C_t = f C_{t-1} + i v k^T``, ``n_t = f n_{t-1} + i k``, ``h = C q / max(|n . q|, 1)`` (19 to 21), kept scaled so
    that no gate overflows (15).

    The norm is a layer norm of each head with a scale for each channel, as in the paper's blocks; the cell's equations
    have none. Norm, output gate and projection are in the order of the authors' later model (xLSTM 7B). The paper's
    block around the cell, with a convolution before q and k, is not implemented here.

    The released code adds 1e-6 to the scaled denominator, ``max(|n . q|, e^{-m}) + 1e-6``; the paper and this layer do
    not. In the released code of the paper's blocks, the gates read q, k and v in place of u.

    Parameters
    ----------
    heads : int
        H, a divisor of `expand` * `d_model`.
    d_state : int
        N, the size of a key.
    expand : int
        The heads' values have together `expand` * `d_model` numbers, P = `expand` * `d_model` / H >= 2 each. The
        paper's blocks have 2.
    forget : "sigmoid" or "exp"
        The function of the forget gate; the paper allows both, its released code has the sigmoid.
    bias : bool
        Whether q, k, v, o and the output have biases, as in the paper; its released code has none. Gates always do.
    norm_eps : float
        Added to the variance in the norm.

    Parameters (dict of float32): q_proj, k_proj (H N, D), v_proj, o_proj (H P, D), i_proj, f_proj (H, D), i_bias,
    f_bias (H,), norm (H P,), out_proj (D, H P); with `bias`, q_bias, k_bias (H N,), v_bias, o_bias (H P,), out_bias
    (D,). The state is the scaled memory c (B, H, P, N), n (B, H, N), and its level m (B, H).

    Initial values, as in the released code: projections N(0, 2 / (5 D)), biases zero; w_i = w_f = 0, b_i ~ N(0, 0.01),
    b_f evenly from 3 to 6 over the heads (with ``forget="exp"`` their log-sigmoid), norm = 1. But
    out_proj ~ N(0, 1 / (H P)), because that code's scale depends on the number of blocks.
    """

    about: ClassVar[str] = "matrix memory with exponential gates and a normaliser, by products of matrices"
    paper: ClassVar[str] = 'Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"i_proj", "i_bias", "f_proj", "f_bias"})
    lanes: ClassVar[str] = "expand d_model d_state + heads (d_state + 1)"

    heads: int = 1
    d_state: int = 16
    expand: int = 1
    forget: str = "sigmoid"
    bias: bool = False
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "d_state", "expand")
        if self.inner % self.heads or self.width < 2:
            raise ValueError(
                f"MLSTM: heads={self.heads}, expected a divisor of expand * d_model = {self.inner} that leaves each "
                "head 2 channels or more"
            )
        self.check_choice("forget", FORGET_GATES)
        self.check_positive("norm_eps")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, H, inner, keys = self.d_model, self.heads, self.inner, self.heads * self.d_state
        rows = {"q": keys, "k": keys, "v": inner, "o": inner, "i": H, "f": H}
        shapes: dict[str, tuple[int, ...]] = {f"{name}_proj": (count, D) for name, count in rows.items()}
        shapes |= {f"{name}_bias": (count,) for name, count in rows.items() if self.bias or name in "if"}
        shapes |= {"norm": (inner,), "out_proj": (D, inner)}
        return {**shapes, "out_bias": (D,)} if self.bias else shapes

    def init(self, rng: np.random.Generator) -> Params:
        params: Params = {}
        for name, shape in self.shapes.items():
            if name in ("i_proj", "f_proj"):
                params[name] = np.zeros(shape)
            elif name == "out_proj":
                params[name] = rng.standard_normal(shape) / np.sqrt(self.inner)
            elif name.endswith("_proj"):
                params[name] = rng.standard_normal(shape) * np.sqrt(2 / (5 * self.d_model))
            elif name == "i_bias":
                params[name] = 0.1 * rng.standard_normal(shape)
            elif name == "f_bias":
                bias = np.linspace(3, 6, self.heads)
                params[name] = bias if self.forget == "sigmoid" else -np.log1p(np.exp(-bias))
            else:
                params[name] = np.ones(shape) if name == "norm" else np.zeros(shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is (c (B, H, P, N), n (B, H, N), m (B, H))."""
        p = Builder(self)
        k_proj = p(Affine(1 / math.sqrt(self.d_state)), "k_proj")
        w = {name: f"{name}_proj" for name in "fiovq"} | {"k": k_proj}
        f, i, o, v, k, q = (p(Dense(), p.x, w[name], f"{name}_bias") for name in "fiovkq")
        q, k = (p(Reshape((self.heads, self.d_state)), one) for one in (q, k))
        log_f = p(LogSigmoid(), f) if self.forget == "sigmoid" else f
        read = p(MatrixMemory(), q, k, p(Reshape((self.heads, self.width)), v), i, log_f)
        gated = p(GLU(), p(Reshape((self.inner,)), p(LayerNorm(self.norm_eps), read)), o)
        return p.returns(p(Dense(), gated, p(Columns(), "out_proj", "norm"), "out_bias"), log_f=log_f)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions f_t (B, T, H), real, along sequences: each head's factor per step. Zero beyond the
        lengths. Arguments as in `forward`."""
        return mask_steps(np.exp(self.registers(params, x, ctx, state)["log_f"]), ctx.lengths)
