"""Mamba: a recurrence with input-dependent step size and directions (Gu and Dao 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.nn.instructions import Conv, Dense, Rates, RMSNorm, SelectiveScan, SiLU, Softplus, Split, SwiGLU
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps
from rotrnn.nn.layers.heads import initial_steps
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class Mamba(Programmed):
    """``y = W_out (scan(u, Delta, A, B, C) * SiLU(z))``, where Delta, B and C depend on the input u of the scan.

    ``[v, z] = W_in x``, ``u = SiLU(conv(v))``, ``[d, B, C] = W_x u``, ``Delta = softplus(W_Delta d + b_Delta)``, ``A =
    -exp(A_log)``, and `rotrnn.ops.selective_scan` with the skip D. There are I = `expand` * `d_model` channels, whose
    step sizes are computed from R = `dt_rank` numbers. Settings without another source come from the released code
    (state-spaces/mamba, modules/mamba_simple.py).

    Parameters
    ----------
    d_state : int
        S, the number of real lanes per channel.
    d_conv : int
        K, the number of taps of the causal depthwise convolution; 0 for no convolution.
    expand : int
    dt_rank : int or "auto"
        R; "auto" means ceil(d_model / 16).
    dt_min, dt_max, dt_init_floor : float
        Initial Delta: log-uniform on [dt_min, dt_max], but at least dt_init_floor.
    dt_init : "random" or "constant"
        Initial W_Delta: uniform on +-dt_scale / sqrt(R), or the constant dt_scale / sqrt(R).
    dt_scale : float
    conv_bias, bias : bool
        Whether the convolution, and the in- and out-projections, have a bias.
    negative : bool
        Transitions ``2 exp(Delta A) - 1`` from -1 to 1, instead of ``exp(Delta A)`` (Grazzi et al. 2024, "Unlocking
        State-Tracking in Linear RNNs Through Negative Eigenvalues").
    norm_eps : float, optional
        d, B and C are divided by the roots of their mean squares plus this (FalconMamba, Zuo et al. 2024).

    Parameters (dict of float32): in_proj (2I, D), conv_w (I, K), conv_bias (I,), x_proj (R + 2S, I), dt_proj (I, R),
    dt_bias (I,), A_log (I, S), D (I,), out_proj (D, I); with `bias`, in_bias (2I,) and out_bias (D,).

    Initial values, as in the released code: weights and biases of projections and convolution uniform on
    +-1/sqrt(fan-in), ``A = -(1, ..., S)`` in each channel (S4D-real), D = 1.
    """

    about: ClassVar[str] = "selective state space: step size, input and output directions depend on the input"
    paper: ClassVar[str] = 'Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "D"})  # without weight decay in the released code
    lanes: ClassVar[str] = "expand d_model (d_state + d_conv - 1)"

    removed: ClassVar[dict[str, Any]] = {"window": None}

    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int | str = "auto"
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init: str = "random"
    dt_scale: float = 1.0
    dt_init_floor: float = 1e-4
    conv_bias: bool = True
    bias: bool = False
    negative: bool = False
    norm_eps: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "expand", "dt_rank")
        self.check_sizes("d_conv", least=0)
        self.check_range("dt_min", "dt_max")
        self.check_positive("dt_scale", "dt_init_floor", "norm_eps")
        self.check_choice("dt_init", ("random", "constant"))

    @property
    def inner(self) -> int:
        """I, the number of channels of the scan."""
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        """R, the number of values from which the step sizes are computed."""
        return -(-self.d_model // 16) if isinstance(self.dt_rank, str) else self.dt_rank

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, inner, R, S = self.d_model, self.inner, self.rank, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (2 * inner, D)}
        if self.bias:
            shapes["in_bias"] = (2 * inner,)
        if self.d_conv:
            shapes["conv_w"] = (inner, self.d_conv)
        if self.d_conv and self.conv_bias:
            shapes["conv_bias"] = (inner,)
        shapes |= {"x_proj": (R + 2 * S, inner), "dt_proj": (inner, R), "dt_bias": (inner,)}
        shapes |= {"A_log": (inner, S), "D": (inner,), "out_proj": (D, inner)}
        if self.bias:
            shapes["out_bias"] = (D,)
        return shapes

    def init(self, rng: np.random.Generator) -> Params:
        D, inner, R, S = self.d_model, self.inner, self.rank, self.d_state
        fan_in = {"in_proj": D, "in_bias": D, "x_proj": inner, "out_proj": inner, "out_bias": inner}
        fan_in |= {"conv_w": self.d_conv, "conv_bias": self.d_conv}
        params = {}
        for name, shape in self.shapes.items():
            if name in fan_in:
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(fan_in[name])
            elif name == "dt_proj":
                signs = rng.uniform(-1, 1, shape) if self.dt_init == "random" else np.ones(shape)
                params[name] = self.dt_scale / np.sqrt(R) * signs
            elif name == "dt_bias":
                params[name] = initial_steps(rng, self.dt_min, self.dt_max, shape, self.dt_init_floor)
            elif name == "A_log":
                params[name] = np.tile(np.log(np.arange(1, S + 1)), (inner, 1))
            else:
                params[name] = np.ones(shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is (the last K-1 inputs of the convolution (B, K-1, I), h (B, I, S))."""
        p = Builder(self)
        inner, R, S = self.inner, self.rank, self.d_state
        w_value, w_gate = p(Split((inner, inner), axis=-2), "in_proj")
        b_value, b_gate = p(Split((inner, inner)), "in_bias") if self.bias else (None, None)
        value, gate = p(Dense(), p.x, w_value, b_value), p(Dense(), p.x, w_gate, b_gate)
        u = p(SiLU(), p(Conv(), value, "conv_w", "conv_bias"))
        d, B, C = p(Split((R, S, S)), p(Dense(), u, "x_proj"))
        if self.norm_eps is not None:
            d, B, C = (p(RMSNorm(self.norm_eps), one) for one in (d, B, C))
        delta = p(Softplus(), p(Dense(), d, "dt_proj", "dt_bias"))
        A = p(Rates(), "A_log")
        h = p(SelectiveScan(self.negative), u, delta, A, B, C, "D")
        return p.returns(p(Dense(), p(SwiGLU(), h, gate), "out_proj", "out_bias"), delta=delta, A=A)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions exp(Delta_t A), or 2 exp(Delta_t A) - 1 if `negative`, (B, T, I, S), real, along
        sequences: each state's factor per step. Zero beyond the lengths. Arguments as in `forward`."""
        found = self.registers(params, x, ctx, state)
        decay = np.exp(found["delta"][..., None] * found["A"])
        return mask_steps(2 * decay - 1 if self.negative else decay, ctx.lengths)
