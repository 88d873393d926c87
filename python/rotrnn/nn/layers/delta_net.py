"""DeltaNet, Gated DeltaNet and DeltaProduct: a matrix state that changes by Householder steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    Affine,
    Conv,
    Decay,
    DeltaRule,
    Dense,
    Rates,
    Reshape,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softplus,
    Split,
    SwiGLU,
    Turn,
)
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps, spectrum
from rotrnn.nn.layers.heads import ValueHeads, initial_steps
from rotrnn.nn.layers.selective_rope import PAIRS, UNIT_EPS, check_rope, initial_rope, rope_angles, rope_shapes
from rotrnn.nn.program import Builder, Program

GAIN = 2**-2.5
"""The gain of the released codes' initial projections."""
FASTEST_RATE = 16.0
"""The largest initial rate of forgetting, exp(A_log), in the released code."""


@dataclass(frozen=True)
class DeltaNet(ValueHeads):
    """``y = W_out (RMSNorm(o) * SiLU(W_gate x))``, o the output of `rotrnn.ops.delta_rule` of q, k, v, beta and decay.

    Each of H heads has a matrix state h (K, V), which is the transpose of the papers' S. A token makes n = `steps`
    Householder steps, ``h <- h + beta_i k_i (v_i - h^T k_i)^T``, i = 1..n, and reads ``o = h^T q``. With the short
    causal convolution of Mamba before SiLU, and | | the length of a head's vector:

    ``q = unit(SiLU(conv(W_q x)))``, ``k_i = unit(SiLU(conv(W_{k,i} x)))``, ``v_i = SiLU(conv(W_{v,i} x))``,
    ``unit(z) = z / sqrt(|z|^2 + 1e-6)``, ``beta_i = s(w_{beta,i} x)``, or twice this if `negative`;
    with `gate`, the state is first multiplied by ``alpha = exp(-exp(A_log) softplus(w_decay x + b_dt))``.

    The transition of a token, ``alpha prod_i (I - beta_i k_i k_i^T)``, is a product of n matrices with the eigenvalues
    1 and 1 - beta_i.

    - By default: DeltaNet (Yang, Wang, Zhang, Shen and Kim 2024), the delta rule with SiLU, unit queries and keys,
      short convolutions, and RMSNorm of the output.
    - ``negative=True``: eigenvalues from -1 to 1 (Grazzi, Siems, Zela, Franke, Hutter and Pontil 2024).
    - ``gate=True, output_gate=True``: Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, eq. 10), with Mamba-2's decay.
    - ``rope_base=500_000, gate=True, output_gate=True``: Gated DeltaNet with Selective RoPE (2025, arXiv 2511.17388): q
      and all k_i of a head turn by angles that depend on the input and add up over time (`rotrnn.ops.turn`, pairs i and
      i + K/2), ``theta_i = base^{-2i/K} (conv(W_up W_down u) + exp(b))_i``. The conv has 4 taps, exp(b) is added with
      `rope_bias`, and u is `unit` of the input, by each head's D / H channels. For tracking a state the paper has
      ``rope_base=1, rope_bias=True``.
    - ``steps=n, negative=True``: DeltaProduct (Siems, Carstensen, Zela, Hutter, Pontil and Grazzi 2025); with both
      gates Gated DeltaProduct, where a token decays once.

    Where papers leave it open, the layer follows the code of the first authors (flash-linear-attention): 1e-6 in
    `unit`, no biases, RMSNorm by heads with one scale (V,) for all, the initial values. That code also divides q by
    sqrt(K), unlike the papers: with ``norm_eps = 1e-5 * d_state`` the layer equals that code with 1e-5. This matters
    where o is small beside sqrt(norm_eps), as for wide layers at their initial values.

    Parameters
    ----------
    heads : int
        H, a divisor of `expand` * `d_model`.
    d_state : int
        K, the size of a key.
    expand : int
        The heads' values have together `expand` * `d_model` numbers, V = `expand` * `d_model` / H each.
    steps : int
        n, the number of Householder steps of a token.
    gate : bool
        Whether the state decays.
    negative : bool
        Whether beta lies in (0, 2), so that a step has an eigenvalue in (-1, 1), instead of (0, 1).
    output_gate : bool
        Whether there is W_gate.
    d_conv : int
        The number of taps of the convolution; 0 for no convolution.
    dt_min, dt_max : float
        Initial softplus(b_dt): log-uniform on [dt_min, dt_max].
    norm_eps : float
        Added to the mean of squares in RMSNorm.
    rope_base : float, optional
        The base of Selective RoPE, from 1; needs an even K, and that H divides D. Default: nothing turns.
    rope_rank : int
        The number of rows of W_down.
    rope_bias : bool
        Whether there is exp(b): angles that add up without an input, too.

    Parameters (dict of float32): qkv_proj (C, D) with C = H K (n + 1) + n H V rows for q, k_1..k_n, v_1..v_n, each by
    heads; conv_w (C, d_conv); beta_proj (n H, D); with `gate` decay_proj (H, D), dt_bias (H,), A_log (H,); norm (V,);
    with `rope_base` rope_down (rank, D), rope_up (H K/2, rank), rope_conv (H K/2, 4), with `rope_bias` rope_bias
    (H K/2,); with `output_gate` gate_proj (H V, D); out_proj (D, H V).

    Initial values: each projection of a rows uniform on +-2^-2.5 sqrt(6 / (D + a)) (Xavier), taps on +-1/sqrt(d_conv),
    exp(A_log) on (0, 16], norm = 1; of Selective RoPE uniform on +-1/sqrt(fan-in), b = 0.
    """

    about: ClassVar[str] = "matrix state that Householder steps correct: DeltaNet, Gated DeltaNet, DeltaProduct"
    paper: ClassVar[str] = (
        'Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length"; Yang et al. '
        '2024, "Gated Delta Networks"; Siems et al. 2025, "DeltaProduct"; 2025, "Selective RoPE" (arXiv 2511.17388)'
    )
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "dt_bias"})  # without weight decay in the released code
    lanes: ClassVar[str] = "expand d_model d_state + (d_conv - 1) (heads d_state (steps + 1) + steps expand d_model)"

    heads: int = 1
    d_state: int = 16
    expand: int = 1
    steps: int = 1
    gate: bool = False
    negative: bool = False
    output_gate: bool = False
    d_conv: int = 4
    dt_min: float = 0.001
    dt_max: float = 0.1
    norm_eps: float = 1e-5
    rope_base: float | None = None
    rope_rank: int = 16
    rope_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "d_state", "expand", "steps")
        self.check_sizes("d_conv", least=0)
        self.check_divisor("heads", self.inner, f"expand * d_model = {self.inner}")
        self.check_range("dt_min", "dt_max")
        self.check_positive("norm_eps")
        check_rope(self, "heads")

    @property
    def parts(self) -> tuple[int, int, int]:
        """The numbers of rows of the projections to q, to all k and to all v."""
        keys = self.heads * self.d_state
        return keys, self.steps * keys, self.steps * self.inner

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, H, channels = self.d_model, self.heads, sum(self.parts)
        shapes: dict[str, tuple[int, ...]] = {"qkv_proj": (channels, D)}
        if self.d_conv:
            shapes["conv_w"] = (channels, self.d_conv)
        shapes["beta_proj"] = (self.steps * H, D)
        if self.gate:
            shapes |= {"decay_proj": (H, D), "dt_bias": (H,), "A_log": (H,)}
        shapes |= rope_shapes(self, H) | {"norm": (self.width,)}
        if self.output_gate:
            shapes["gate_proj"] = (self.inner, D)
        return {**shapes, "out_proj": (D, self.inner)}

    def init(self, rng: np.random.Generator) -> Params:
        def projection(rows: int, columns: int) -> Array:
            bound = GAIN * math.sqrt(6 / (rows + columns))
            return rng.uniform(-bound, bound, (rows, columns))

        params: Params = {}
        for name, shape in self.shapes.items():
            if name == "qkv_proj":
                params[name] = np.concatenate([projection(rows, self.d_model) for rows in self.parts])
            elif name == "conv_w":
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(shape[1])
            elif name.startswith("rope_"):
                params[name] = initial_rope(rng, name, shape)
            elif name == "dt_bias":
                params[name] = initial_steps(rng, self.dt_min, self.dt_max, shape)
            elif name == "A_log":
                params[name] = np.log(FASTEST_RATE * (1 - rng.random(shape)))  # never log(0)
            elif name == "norm":
                params[name] = np.ones(shape)
            else:
                params[name] = projection(*shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is (the last d_conv-1 inputs of the convolution (B, d_conv-1, C), h (B, H, K, V)). With `rope_base`
        there are, before h, the last 3 inputs of the convolution of angles (B, 3, H K/2), and c (B, 2, H, K/2), the
        angles and their rounding errors."""
        p = Builder(self)
        H, K, V, n, shown = self.heads, self.d_state, self.width, self.steps, {}
        if self.gate:
            delta = p(Softplus(), p(Dense(), p.x, "decay_proj", "dt_bias"))
            shown["decay"] = p(Decay(), delta, p(Rates(), "A_log"))
        beta = p(Reshape((n, H)), p(Sigmoid(), p(Dense(), p.x, "beta_proj")))
        beta = p(Affine(2), beta) if self.negative else beta
        gate = p(Dense(), p.x, "gate_proj") if self.output_gate else None
        u = p(SiLU(), p(Conv(), p(Dense(), p.x, "qkv_proj"), "conv_w"))
        keys, values = p(Split((sum(self.parts[:2]), self.parts[2])), u)
        units = p(RMSNorm(UNIT_EPS / K, 1 / math.sqrt(K)), p(Reshape((n + 1, H, K)), keys))
        if self.rope_base is not None:
            units = p(Turn(PAIRS), rope_angles(p, self, H), units)
        q, k = p(Split((1, n), axis=-3), units)
        read = p(DeltaRule(), p(Reshape((H, K)), q), k, p(Reshape((n, H, V)), values), beta, shown.get("decay"))
        normed = p(Reshape((self.inner,)), p(RMSNorm(self.norm_eps), read, "norm"))
        y = normed if gate is None else p(SwiGLU(), normed, gate)
        return p.returns(p(Dense(), y, "out_proj"), q=q, k=k, beta=beta, **shown)

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the A_t (B, T, H, K, K) of ``h_t = A_t h_{t-1} + ...`` along sequences, one for each head:
        ``A_t = alpha_t (I - beta_n k_n k_n^T) ... (I - beta_1 k_1 k_1^T)``, alpha_t = 1 without `gate`.

        The papers' S is multiplied by its transpose, from the right. With `rope_base`, keys are the turned keys.
        Zero beyond the lengths. Arguments and errors as in `forward`.
        """
        found = self.registers(params, x, ctx, state)
        keys, betas = found["k"][..., None], found["beta"][..., None, None]
        A: Array = np.eye(self.d_state, dtype=keys.dtype, like=keys)
        if self.gate:
            A = found["decay"][..., None, None] * A
        for i in range(self.steps):
            k = keys[:, :, i]
            A = A - betas[:, :, i] * k * (k * A).sum(-2, keepdims=True)
        return mask_steps(A, ctx.lengths)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t (B, T, H, K), complex128, along sequences. Arguments as in `transitions`."""
        return spectrum("DeltaNet.eigenvalues", self.transitions(params, x, ctx, state))
