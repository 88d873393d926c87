"""Kimi Delta Attention and Gated DeltaNet-2: delta rules whose state decays by keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    GLU,
    Affine,
    Decay,
    DeltaRule,
    Dense,
    OfHeads,
    Product,
    Rates,
    Repeat,
    Reshape,
    RMSNorm,
    Sigmoid,
    Skip,
    Softplus,
)
from rotrnn.nn.layer import Array, Params
from rotrnn.nn.layers.delta_heads import DeltaHeads
from rotrnn.nn.program import Builder, Program, Register


@dataclass(frozen=True)
class KDA(DeltaHeads):
    """``y = W_out (RMSNorm(o) * s(W_g2 W_g1 x + b_g))``, o the output of `rotrnn.ops.delta_rule` with decays by keys.

    Kimi Delta Attention (Kimi Team 2025, "Kimi Linear", eq. 1). Each of H heads has a matrix state h (K, V):

    ``h <- (I - beta k k^T) diag(d) h + beta k v^T``, ``o = h^T q``.

    With the short causal convolution of Mamba before SiLU, and | | the length of a head's vector:

    ``q = unit(SiLU(conv(W_q x)))``, ``k = unit(SiLU(conv(W_k x)))``, ``v = SiLU(conv(W_v x))``,
    ``unit(z) = z / sqrt(|z|^2 + 1e-6)``, ``beta = s(w_beta x)``, or twice this if `negative`, for each head;
    ``d = exp(-exp(A_log) softplus(W_d2 W_d1 x + b_dt))``, for each head and key, with one A_log for a head.

    With `key_heads` there are fewer heads of queries and keys, each for several successive heads of values with their
    own beta and d. With `lower_bound` the logarithm of d has this bound: ``d = exp(lower_bound s(exp(A_log) (W_d2 W_d1
    x + b_dt)))``.

    The two maps W_d1 and W_g1 have V rows. All transitions have a norm of at most 1, also with `negative`. The code of
    the authors (flash-linear-attention) divides q by sqrt(K): with ``norm_eps = 1e-5 * d_state`` the layer equals that
    code with 1e-5.

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
    negative : bool
        Whether beta lies in (0, 2), so that a transition may have an eigenvalue below 0, instead of (0, 1) (Grazzi et
        al. 2024; the released code).
    key_heads : int, optional
        G, the number of heads of queries and keys, a divisor of H (the released code). Default: H.
    lower_bound : float, optional
        The bound of log d, a negative number; in the released code -5. Default: none.

    Parameters (dict of float32): qkv_proj (C, D) with C = 2 G K + H V rows for q, k, v, each by heads; conv_w (C,
    d_conv); beta_proj (H, D); decay_in (V, D), decay_out (H K, V), dt_bias (H K,), A_log (H,); norm (V,); gate_in (V,
    D), gate_out (H V, V), gate_bias (H V,); out_proj (D, H V).

    Initial values: weights uniform on +-1/sqrt(fan-in), and gate_bias on +-1/sqrt(V); exp(A_log) uniform on [1, 16];
    norm = 1. With `lower_bound` A_log = 0, as in the released code.
    """

    about: ClassVar[str] = "Kimi Delta Attention: a delta rule whose state decays by keys"
    paper: ClassVar[str] = 'Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture"'

    negative: bool = False
    key_heads: int | None = None
    lower_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        self.check_sizes("key_heads")
        self.check_divisor("key_heads", self.heads, f"heads={self.heads}", self.groups)
        if self.lower_bound is not None and not -math.inf < self.lower_bound < 0:
            raise ValueError(f"{name}: lower_bound={self.lower_bound!r}, expected a negative number, or None")

    @property
    def groups(self) -> int:
        return self.heads if self.key_heads is None else self.key_heads

    def init(self, rng: np.random.Generator) -> Params:
        params = super().init(rng)
        return params if self.lower_bound is None else params | {"A_log": np.zeros_like(params["A_log"])}

    @property
    def decaying(self) -> int:
        """The number of heads that have decays of their own."""
        return self.heads

    @property
    def gates(self) -> dict[str, int]:
        """The projections to the gates of a step, and their numbers of rows."""
        return {"beta_proj": self.heads}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, H, V, keys, inner = self.d_model, self.decaying, self.width, self.decaying * self.d_state, self.inner
        shapes = self.inputs_shapes | {name: (rows, D) for name, rows in self.gates.items()}
        shapes |= {"decay_in": (V, D), "decay_out": (keys, V), "dt_bias": (keys,), "A_log": (H,), "norm": (V,)}
        return {**shapes, "gate_in": (V, D), "gate_out": (inner, V), "gate_bias": (inner,), "out_proj": (D, inner)}

    def program(self) -> Program:
        """The state is (the last d_conv-1 inputs of the convolution (B, d_conv-1, C), h (B, H, K, V))."""
        p = Builder(self)
        H, K, V = self.heads, self.d_state, self.width
        step, rates = p(Dense(), p(Dense(), p.x, "decay_in"), "decay_out", "dt_bias"), p(Rates(), "A_log")
        if self.lower_bound is None:
            decay = p(Decay(), p(Reshape((self.decaying, K)), p(Softplus(), step)), rates)
        else:
            share = p(Sigmoid(), p(Skip(), step, p(Repeat(K), p(Affine(-1), rates))))
            decay = p(Decay(self.lower_bound), p(Reshape((self.decaying, K)), share))
        decay = self.spread(p, decay)
        q, k, value = self.inputs(p)
        q, k = (self.spread(p, self.unit(p, one)) for one in (q, k))
        v, beta, read, shown = self.step_of(p, k, value, decay)
        o = p(DeltaRule(), p(Reshape((H, K)), q), k, p(Reshape((1, H, V)), v), beta, decay, read)
        gate = p(Dense(), p(Dense(), p.x, "gate_in"), "gate_out", "gate_bias")
        y = p(GLU(), p(Reshape((self.inner,)), p(RMSNorm(self.norm_eps), o, "norm")), gate)
        return p.returns(p(Dense(), y, "out_proj"), q=q, k=k, decay=decay, **shown)

    def spread(self, p: Builder, x: Register) -> Register:
        """Writes numbers of fewer heads, (..., G, K), as those of each head, (..., H, K)."""
        *more, G, K = x.shape
        if self.heads == G:
            return x
        each: Register = p(OfHeads(self.heads), p(Reshape((G, K)), x))
        return p(Reshape((*more, *each.shape)), each)

    def step_of(self, p: Builder, k: Register, v: Register, decay: Register) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Appends lines for the written value, its beta, and the key that is read; returns these, and the shown
        registers."""
        beta = p(Reshape((1, self.heads)), p(Sigmoid(), p(Dense(), p.x, "beta_proj")))
        beta = p(Affine(2), beta) if self.negative else beta
        return v, beta, None, {"beta": beta}

    def transition(self, found: dict[str, Array], identity: Array, k: Array) -> Array:
        """``A_t = (I - beta_t k_t k_t^T) diag(d_t)``"""
        erased = found["beta"][:, :, 0, :, None, None] * k
        return (identity - k * erased.swapaxes(-1, -2)) * found["decay"][..., None, :]


@dataclass(frozen=True)
class GatedDeltaNet2(KDA):
    """KDA with an erase gate b for each key and a write gate w for each value, in place of one beta for both.

    ``h <- (I - k (b * k)^T) diag(d) h + k (w * v)^T``, ``b = s(W_b x)``, or twice this if `negative`, and
    ``w = s(W_w x)``. At b = w = beta it is `rotrnn.KDA`; see there for equations, settings and initial values.

    The matrix ``I - k (b * k)^T`` has the eigenvalues 1 and ``1 - sum b k^2``, in (0, 1] (in (-1, 1] if `negative`).
    It is not symmetric: its norm is at most sqrt(4/3), and may be above 1.

    As in the released code (flash-linear-attention), b and d belong to the G = `key_heads` heads of queries and keys,
    in KDA to those of values; and A_log begins at random with `lower_bound`, too.

    Parameters (dict of float32): as in KDA, with decay_out (G K, V), dt_bias (G K,), A_log (G,), and erase_proj (G K,
    D) and write_proj (H V, D) in place of beta_proj.
    """

    about: ClassVar[str] = "Gated DeltaNet-2: KDA with an erase gate and a write gate"
    paper: ClassVar[str] = 'NVIDIA, "Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention"'

    def init(self, rng: np.random.Generator) -> Params:
        return DeltaHeads.init(self, rng)

    @property
    def decaying(self) -> int:
        return self.groups

    @property
    def gates(self) -> dict[str, int]:
        return {"erase_proj": self.groups * self.d_state, "write_proj": self.inner}

    def step_of(self, p: Builder, k: Register, v: Register, decay: Register) -> tuple[Any, Any, Any, dict[str, Any]]:
        b = p(Reshape((1, self.groups, self.d_state)), p(Sigmoid(), p(Dense(), p.x, "erase_proj")))
        b = self.spread(p, p(Affine(2), b) if self.negative else b)
        read = p(Product(), p(Product(), p(Reshape(k.shape), decay), b), k)
        return p(GLU(), v, p(Dense(), p.x, "write_proj")), None, read, {"b": b}

    def transition(self, found: dict[str, Array], identity: Array, k: Array) -> Array:
        """``A_t = (I - k_t (b_t * k_t)^T) diag(d_t)``"""
        erased = found["b"][:, :, 0, ..., None] * k
        return (identity - k * erased.swapaxes(-1, -2)) * found["decay"][..., None, :]
