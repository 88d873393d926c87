"""RWKV-7: the time mix of RWKV, whose matrix state erases at a key and writes at a different key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    Affine,
    Bonus,
    Decay,
    DeltaRule,
    Dense,
    LayerNorm,
    Previous,
    Product,
    Reshape,
    RMSNorm,
    Sigmoid,
    Skip,
    Sum,
)
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps, spectrum
from rotrnn.nn.layers.rnn import orthogonal
from rotrnn.nn.program import Builder, Program, Programmed, Register

FASTEST = math.exp(-0.5)
"""The largest rate of forgetting: decays are above exp(-FASTEST) = 0.545."""
UNIT_EPS = 1e-12
"""Added to the squared length of the keys that are read before they are normalised."""
MIXED = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
"""The inputs that are mixed with the previous one, and the power of their initial shares."""


@dataclass(frozen=True)
class RWKV7(Programmed):
    """``y = W_o ((GroupNorm(o) + (r . (r_k * k)) v) * g)``, o the output of `rotrnn.ops.delta_rule` with `erase`.

    The time mix of RWKV-7 (Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution", section 4). Each
    of H heads has a matrix state h (K, K), K = D / H, the transpose of the paper's:

    ``h <- diag(w) h - (a * kappa) (h^T kappa)^T + k v^T``, ``o = h^T r``.

    Each of the letters c = r, w, k, v, a, g has a separate input, ``x_c = x_t + mu_c (x_{t-1} - x_t)``. With s the
    sigmoid and | | the length of a head's vector:

    ``r = W_r x_r``, ``k' = W_k x_k``, ``v = W_v x_v``, ``w = exp(-e^(-1/2) s(w_0 + W_w2 tanh(W_w1 x_w)))``,
    ``a = s(a_0 + W_a2 W_a1 x_a)``, ``g = W_g2 s(W_g1 x_g)``,
    ``kappa = k' k_k / |k' k_k|``, ``k = k' (1 + (a - 1) k_a)``.

    GroupNorm is over a head's values, with scale and offset of each channel. This is the first block of the published
    model. Its other blocks move v towards the first block's v; this layer does not.

    Parameters
    ----------
    heads : int
        H, a divisor of `d_model`; the published models have heads of width 64.
    rank, gate_rank : int
        The number of rows of W_w1 and W_a1, and of W_g1; in the released code they grow with D.
    norm_eps : float
        `norm_eps` K is added to the variance in GroupNorm, as in the released code.

    Parameters (dict of float32): mu_r, mu_w, mu_k, mu_v, mu_a, mu_g (D,); W_r, W_k, W_v (D, D); w_in, a_in (rank, D),
    w_out, a_out (D, rank), w_bias, a_bias (D,); g_in (gate_rank, D), g_out (D, gate_rank); k_k, k_a (D,), r_k (D,);
    norm, norm_bias (D,); W_o (D, D). Its state is (x_{t-1} (B, 1, D), h (B, H, K, K)).

    Initial values, as for a single block of the released code, with n / D from 0 to 1 along channels:
    mu = 1 - (n/D)^p with p = 0.2 (r, g), 0.7 (k, v), 0.9 (w, a); W_r, W_v orthogonal, W_k 0.1 times that, W_o = 0;
    w_in, a_in, g_in zero, w_out, a_out, g_out 0.1 times orthogonal columns; k_k falls from 0.76 to 0.66, k_a = 1.02,
    r_k = -0.04; w_bias rises from -5.5 to 0.5 and a_bias from -0.39 to 0.01, both with a zigzag in each head; norm = 1;
    norm_bias = 0.
    """

    about: ClassVar[str] = "RWKV-7: a matrix state with decays by keys, which erases at one key and writes at another"
    paper: ClassVar[str] = 'Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"w_bias", "a_bias", "k_k", "k_a", "r_k"})
    lanes: ClassVar[str] = "d_model d_model / heads + d_model"

    heads: int = 1
    rank: int = 32
    gate_rank: int = 32
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "rank", "gate_rank")
        self.check_divisor("heads", self.d_model, f"d_model = {self.d_model}")
        self.check_positive("norm_eps")

    @property
    def width(self) -> int:
        """K, the size of a head's keys and values."""
        return self.d_model // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, R, G = self.d_model, self.rank, self.gate_rank
        shapes: dict[str, tuple[int, ...]] = {f"mu_{name}": (D,) for name in MIXED}
        shapes |= {"W_r": (D, D), "W_k": (D, D), "W_v": (D, D)}
        for name in "wa":
            shapes |= {f"{name}_in": (R, D), f"{name}_out": (D, R), f"{name}_bias": (D,)}
        shapes |= {"g_in": (G, D), "g_out": (D, G), "k_k": (D,), "k_a": (D,), "r_k": (D,)}
        return {**shapes, "norm": (D,), "norm_bias": (D,), "W_o": (D, D)}

    def init(self, rng: np.random.Generator) -> Params:
        D, K = self.d_model, self.width
        n, last = np.arange(D), max(D - 1, 1)
        linear, middle = n / last - 0.5, max((K - 1) / 2, 0.5)
        zigzag = (n % K - (K - 1) / 2) / middle
        zigzag *= np.abs(zigzag)
        params: Params = {name: np.zeros(shape) for name, shape in self.shapes.items()}
        params |= {f"mu_{name}": 1 - (n / D) ** power for name, power in MIXED.items()}
        params |= {"W_r": orthogonal(rng, D), "W_k": 0.1 * orthogonal(rng, D), "W_v": orthogonal(rng, D)}
        for name in ("w_out", "a_out", "g_out"):
            rows, columns = self.shapes[name]
            gain = 0.1 * math.sqrt(max(columns / rows, 1))
            params[name] = gain * orthogonal(rng, max(rows, columns))[:rows, :columns]
        params |= {"w_bias": 6 * n / last - 5.5 + 2.5 * zigzag, "a_bias": -0.19 + 0.3 * zigzag + 0.4 * linear}
        params |= {"k_k": 0.71 - 0.1 * linear, "k_a": np.full(D, 1.02), "r_k": np.full(D, -0.04), "norm": np.ones(D)}
        return astype(params, np.float32)

    def program(self) -> Program:
        p = Builder(self)
        D, H, K = self.d_model, self.heads, self.width
        by_head, change = (H, K), p(Sum(), p(Previous(), p.x), p(Affine(-1), p.x))

        def mixed(name: str) -> Register:
            return p(Skip(), change, f"mu_{name}", None, p.x)

        def heads(x: Register) -> Register:
            return p(Reshape(by_head), x)

        r, key, v = (p(Dense(), mixed(name), f"W_{name}") for name in "rkv")
        tanh = p(Affine(2, -1), p(Sigmoid(), p(Affine(2), p(Dense(), mixed("w"), "w_in"))))
        w = heads(p(Decay(-FASTEST), p(Sigmoid(), p(Dense(), tanh, "w_out", "w_bias"))))
        a = p(Sigmoid(), p(Dense(), p(Dense(), mixed("a"), "a_in"), "a_out", "a_bias"))
        g = p(Dense(), p(Sigmoid(), p(Dense(), mixed("g"), "g_in")), "g_out")
        kappa = p(RMSNorm(UNIT_EPS / K, 1 / math.sqrt(K)), heads(p(Skip(), key, "k_k")))
        k = p(Skip(), p(Product(), key, p(Affine(1, -1), a)), "k_a", None, key)
        erase, step = p(Product(), kappa, heads(a)), (1, H, K)
        steps = (p(Reshape(step), one) for one in (k, v))
        read, erased = (p(Reshape(step), one) for one in (kappa, erase))
        o = p(DeltaRule(), heads(r), *steps, None, w, read, erased)
        normed = p(Skip(), p(Reshape((D,)), p(LayerNorm(self.norm_eps * K), o)), "norm", "norm_bias")
        bonus = p(Reshape((D,)), p(Bonus(), heads(r), heads(p(Skip(), k, "r_k")), heads(v)))
        y = p(Dense(), p(Product(), p(Sum(), normed, bonus), g), "W_o")
        return p.returns(y, decay=w, kappa=kappa, erase=erase)

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the A_t (B, T, H, K, K) of ``h_t = A_t h_{t-1} + ...`` along sequences, one for each head:
        ``A_t = diag(w_t) - (a_t * kappa_t) kappa_t^T``. Zero beyond the lengths. Arguments and errors as in
        `forward`."""
        found = self.registers(params, x, ctx, state)
        diagonal = np.eye(self.width, dtype=x.dtype, like=x) * found["decay"][..., None, :]
        return mask_steps(diagonal - found["erase"][..., None] * found["kappa"][..., None, :], ctx.lengths)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t (B, T, H, K), complex128, along sequences. Arguments as in `transitions`."""
        return spectrum("RWKV7.eigenvalues", self.transitions(params, x, ctx, state))
