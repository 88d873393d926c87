"""Comba: a delta rule with a separate feedback strength and a corrected query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    GLU,
    Affine,
    Decay,
    DeltaRule,
    Dense,
    Rates,
    Repeat,
    Reshape,
    RMSNorm,
    Sigmoid,
    Skip,
    Softplus,
)
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.layers.delta_heads import DeltaHeads
from rotrnn.nn.program import Builder, Program


@dataclass(frozen=True)
class Comba(DeltaHeads):
    """``y = W_out (RMSNorm(o) * s(W_gate x))``, o the output of `rotrnn.ops.delta_rule` that reads before the decay.

    Comba (Hu et al. 2025, "Comba: Improving Bilinear RNNs with Closed-loop Control"). Each of H heads has a matrix
    state h (K, V):

    ``h <- alpha h + beta k (v - h^T p)^T``, ``p = s(d) k``, ``o = h^T q``.

    With the short causal convolution of Mamba before SiLU, | | the length of a head's vector, and numbers d and D of
    each head:

    ``k' = SiLU(conv(W_k x))``, ``k = unit(k')``, ``q = unit(SiLU(conv(W_q x)) - D s(d) k')``,
    ``v = SiLU(conv(W_v x))``, ``unit(z) = z / sqrt(|z|^2 + 1e-6)``, ``beta = s(w_beta x)`` and
    ``alpha = exp(-exp(A_log) softplus(w_decay x + b_dt))``, for each head.

    A transition, ``alpha I - beta s(d) k k^T``, has the eigenvalues alpha and ``alpha - beta s(d)``, from -1 to 1. The
    authors' code normalises p too, so d has no effect on p there; this layer follows the equation.

    Parameters
    ----------
    heads : int
        H, a divisor of `expand` * `d_model`.
    d_state : int
        K, the size of a key.
    expand : int
        The heads' values have together `expand` * `d_model` numbers, V = `expand` * `d_model` / H each.
    d_conv : int
        The number of taps of the convolution; 0 for no convolution.
    dt_min, dt_max : float
        Initial softplus(b_dt): log-uniform on [dt_min, dt_max].
    norm_eps : float
        Added to the mean of squares in RMSNorm.
    correction : float
        Initial D; the code's other advice for small models is 0.02.

    Parameters (dict of float32): qkv_proj (C, D) with C = 2 H K + H V rows for q, k, v, each by heads; conv_w (C,
    d_conv); beta_proj, decay_proj (H, D); dt_bias, A_log (H,); feedback (H,), d; correction (H,), D; norm (V,);
    gate_proj (H V, D); out_proj (D, H V).

    Initial values: weights uniform on +-1/sqrt(fan-in); exp(A_log) on (0, 16]; d = 1; norm = 1.
    """

    about: ClassVar[str] = "Comba: a delta rule that reads before the decay, with a separate feedback strength"
    paper: ClassVar[str] = 'Hu et al. 2025, "Comba: Improving Bilinear RNNs with Closed-loop Control"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "dt_bias", "correction"})  # as in the released code
    slowest: ClassVar[float] = 0.0

    correction: float = 1.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, H = self.d_model, self.heads
        shapes = self.inputs_shapes | {"beta_proj": (H, D), "decay_proj": (H, D), "dt_bias": (H,), "A_log": (H,)}
        shapes |= {"feedback": (H,), "correction": (H,), "norm": (self.width,), "gate_proj": (self.inner, D)}
        return {**shapes, "out_proj": (D, self.inner)}

    def init(self, rng: np.random.Generator) -> Params:
        own = {"feedback": np.ones(self.heads), "correction": np.full(self.heads, self.correction)}
        return super().init(rng) | astype(own, np.float32)

    def program(self) -> Program:
        """The state is (the last d_conv-1 inputs of the convolution (B, d_conv-1, C), h (B, H, K, V))."""
        p = Builder(self)
        H, K, V = self.heads, self.d_state, self.width
        flat, heads = Reshape((H * K,)), Reshape((1, H, K))
        delta = p(Softplus(), p(Dense(), p.x, "decay_proj", "dt_bias"))
        decay = p(Decay(), delta, p(Rates(), "A_log"))
        beta = p(Reshape((1, H)), p(Sigmoid(), p(Dense(), p.x, "beta_proj")))
        raw_q, raw_k, v = self.inputs(p)
        feedback, less = p(Repeat(K), p(Sigmoid(), "feedback")), p(Repeat(K), p(Affine(-1), "correction"))
        corrected = p(Skip(), p(Skip(), p(flat, raw_k), feedback), less, None, p(flat, raw_q))
        q, k = self.unit(p, p(heads, corrected)), self.unit(p, raw_k)
        read = p(heads, p(Skip(), p(flat, k), feedback))
        o = p(DeltaRule(), p(Reshape((H, K)), q), k, p(Reshape((1, H, V)), v), beta, decay, read)
        normed = p(Reshape((self.inner,)), p(RMSNorm(self.norm_eps), o, "norm"))
        y = p(Dense(), p(GLU(), normed, p(Dense(), p.x, "gate_proj")), "out_proj")
        return p.returns(y, q=q, k=k, decay=decay, beta=beta, read=read)

    def transition(self, found: dict[str, Array], identity: Array, k: Array) -> Array:
        """``A_t = alpha_t I - beta_t k_t p_t^T``"""
        erased = found["beta"][:, :, 0, :, None, None] * found["read"][:, :, 0, :, None, :]
        return found["decay"][..., None, None] * identity - k * erased
