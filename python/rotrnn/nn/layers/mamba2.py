"""Mamba-2: Mamba with one transition for each head (Dao and Gu 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    Columns,
    Conv,
    Dense,
    Rates,
    Reshape,
    RMSNorm,
    SiLU,
    Softplus,
    Split,
    SsdScan,
    Sum,
    SwiGLU,
    Turn,
)
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps
from rotrnn.nn.layers.heads import Heads, initial_steps
from rotrnn.nn.layers.selective_rope import PAIRS, check_rope, initial_rope, rope_angles, rope_shapes
from rotrnn.nn.program import Builder, Program


@dataclass(frozen=True)
class Mamba2(Heads):
    """``y = W_out RMSNorm(scan(x, Delta, A, B, C) * SiLU(z))``, where x, Delta, B and C come from one projection.

    ``[z, v, d] = W_in u``, ``[x, B, C] = SiLU(conv(v))``, ``Delta = softplus(d + b_Delta)``, ``A = -exp(A_log)``, and
    `rotrnn.ops.ssd_scan` with the skip D: the transition of a head at a step is the number exp(Delta A). There are I =
    `expand` * `d_model` channels in H heads of P = `d_head` each, and G = `groups` groups of heads that share B and C.
    The RMS norm, with a scale for each channel, is over the channels of a group. K = I + 2 G N channels are convolved.
    Settings without another source come from the released code (state-spaces/mamba, modules/mamba2.py), where
    `d_head` is headdim, `groups` ngroups, and (`A_min`, `A_max`) A_init_range.

    Parameters
    ----------
    d_state : int
        N, the number of real lanes per channel.
    d_conv : int
        The number of taps of the causal depthwise convolution; 0 for no convolution.
    expand : int
    d_head : int or "auto"
        P, a divisor of I; "auto" means the greatest common divisor of I and 64, the width in the released models.
    groups : int
        G, a divisor of H.
    dt_min, dt_max, dt_init_floor : float
        Initial Delta: log-uniform on [dt_min, dt_max], but at least dt_init_floor.
    A_min, A_max : float
        Initial -A: uniform on [A_min, A_max].
    conv_bias, bias : bool
        Whether the convolution, and the in- and out-projections, have a bias.
    norm_eps : float
        Added to the mean of squares in the norm.
    negative : bool
        Transitions ``2 exp(Delta A) - 1`` from -1 to 1, instead of ``exp(Delta A)`` (Grazzi et al. 2024, "Unlocking
        State-Tracking in Linear RNNs Through Negative Eigenvalues").
    rope_base : float, optional
        The base of Selective RoPE (2025, arXiv 2511.17388), from 1; needs an even N, and that G divides D. B and C of
        a group turn by angles that depend on the input and add up over time, as q and k of `rotrnn.DeltaNet` do by
        heads: a linear attention with a scalar gate and Selective RoPE. Default: nothing turns.
    rope_rank : int
        The number of rows of W_down of the angles.
    rope_bias : bool
        Whether there is exp(b): angles that add up without an input, too.

    Parameters (dict of float32): in_proj (I + K + H, D), conv_w (K, d_conv), conv_bias (K,), dt_bias (H,), A_log (H,),
    D (H,), norm (I,), out_proj (D, I); with `bias`, in_bias (I + K + H,) and out_bias (D,); with `rope_base` rope_down
    (rank, D), rope_up (G N/2, rank), rope_conv (G N/2, 4), with `rope_bias` rope_bias (G N/2,). Without the rope
    parameters they are the parameters of the released code (state-spaces/mamba, modules/mamba2.py), rows of in_proj in
    its order: in_proj.weight, conv1d.weight, conv1d.bias, dt_bias, A_log, D, norm.weight, out_proj.weight.

    Initial values, as in the released code: weights and biases of projections and convolution uniform on
    +-1/sqrt(fan-in), ``A_log = log U[1, 16]``, D = 1, norm = 1; of Selective RoPE uniform on +-1/sqrt(fan-in), b = 0.
    """

    about: ClassVar[str] = "selective state space with a scalar transition for each head, by products of matrices"
    paper: ClassVar[str] = (
        'Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State '
        'Space Duality"'
    )
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "D", "dt_bias"})  # without weight decay in that code
    lanes: ClassVar[str] = "expand d_model (d_state + d_conv - 1) + 2 groups d_state (d_conv - 1)"

    d_state: int = 128
    d_conv: int = 4
    expand: int = 2
    d_head: int | str = "auto"
    groups: int = 1
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init_floor: float = 1e-4
    A_min: float = 1.0
    A_max: float = 16.0
    conv_bias: bool = True
    bias: bool = False
    norm_eps: float = 1e-5
    negative: bool = False
    rope_base: float | None = None
    rope_rank: int = 16
    rope_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "groups")
        self.check_sizes("d_conv", least=0)
        self.check_heads()
        self.check_divisor("groups", self.heads, f"the number of heads, {self.heads}")
        self.check_range("dt_min", "dt_max")
        self.check_range("A_min", "A_max")
        self.check_positive("dt_init_floor", "norm_eps")
        check_rope(self, "groups")

    @property
    def convolved(self) -> int:
        """K, the number of channels of the convolution: the channels of x, B and C."""
        return self.inner + 2 * self.groups * self.d_state

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, inner, H, K = self.d_model, self.inner, self.heads, self.convolved
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (inner + K + H, D)}
        if self.bias:
            shapes["in_bias"] = (inner + K + H,)
        if self.d_conv:
            shapes["conv_w"] = (K, self.d_conv)
        if self.d_conv and self.conv_bias:
            shapes["conv_bias"] = (K,)
        shapes |= {"dt_bias": (H,), "A_log": (H,), "D": (H,), "norm": (inner,), "out_proj": (D, inner)}
        if self.bias:
            shapes["out_bias"] = (D,)
        return shapes | rope_shapes(self, self.groups)

    def init(self, rng: np.random.Generator) -> Params:
        fan_in = {"in_proj": self.d_model, "in_bias": self.d_model, "out_proj": self.inner, "out_bias": self.inner}
        fan_in |= {"conv_w": self.d_conv, "conv_bias": self.d_conv}
        params = {}
        for name, shape in self.shapes.items():
            if name in fan_in:
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(fan_in[name])
            elif name == "dt_bias":
                params[name] = initial_steps(rng, self.dt_min, self.dt_max, shape, self.dt_init_floor)
            elif name.startswith("rope_"):
                params[name] = initial_rope(rng, name, shape)
            elif name == "A_log":
                params[name] = np.log(rng.uniform(self.A_min, self.A_max, shape))
            else:
                params[name] = np.ones(shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is (the last d_conv - 1 inputs of the convolution (B, d_conv - 1, K), h (B, H, P, N)). With
        `rope_base` there are, before h, the last 3 inputs of the convolution of angles (B, 3, G N/2), and c (B, 2, G,
        N/2), the angles and their rounding errors."""
        p = Builder(self)
        inner, H, shared = self.inner, self.heads, (self.groups, self.d_state)
        parts = inner, self.convolved, H
        w_gate, w_mixed, w_step = p(Split(parts, axis=-2), "in_proj")
        b_gate, b_mixed, b_step = p(Split(parts), "in_bias") if self.bias else (None, None, None)
        step = p(Dense(), p.x, w_step, "dt_bias" if b_step is None else p(Sum(), b_step, "dt_bias"))
        mixed = p(SiLU(), p(Conv(), p(Dense(), p.x, w_mixed, b_mixed), "conv_w", "conv_bias"))
        gate = p(Dense(), p.x, w_gate, b_gate)
        x, B, C = p(Split((inner, *2 * (math.prod(shared),))), mixed)
        x, B, C = p(Reshape((H, self.width)), x), p(Reshape(shared), B), p(Reshape(shared), C)
        delta, A, shown = p(Softplus(), step), p(Rates(), "A_log"), {}
        if self.rope_base is not None:
            shown["theta"] = rope_angles(p, self, self.groups)
            B, C = p(Turn(PAIRS), shown["theta"], B, C)
        h = p(Reshape((inner,)), p(SsdScan(self.negative), x, delta, A, B, C, "D"))
        by_group = p(Reshape((self.groups, inner // self.groups)), p(SwiGLU(), h, gate))
        normed = p(Reshape((inner,)), p(RMSNorm(self.norm_eps), by_group))
        return p.returns(p(Dense(), normed, p(Columns(), "out_proj", "norm"), "out_bias"), delta=delta, A=A, **shown)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions exp(Delta_t A), or 2 exp(Delta_t A) - 1 if `negative`, (B, T, H), real, along
        sequences: one factor for all states of a head. With `rope_base` they are (B, T, H, N), complex128, and have the
        factors ``exp(+-i theta_t)``, + for the first half of the lanes. Zero beyond the lengths. Arguments as in
        `forward`."""
        found = self.registers(params, x, ctx, state)
        decay = np.exp(found["delta"] * found["A"])
        decay = 2 * decay - 1 if self.negative else decay
        if self.rope_base is not None:
            turned = np.exp(1j * found["theta"].astype(np.float64))
            both = np.concatenate([turned, np.conj(turned)], -1)
            decay = decay[..., None] * np.repeat(both, self.heads // self.groups, 2)
        return mask_steps(decay, ctx.lengths)
