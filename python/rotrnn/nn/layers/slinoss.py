"""SLinOSS: oscillators whose radius, angle and step depend on the input, by first-order hold (2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    Affine,
    Columns,
    Conv,
    Dense,
    HoldScan,
    LogRadius,
    Polar,
    Reshape,
    RMSNorm,
    Sigmoid,
    SignedAngles,
    SiLU,
    Skip,
    Softplus,
    Split,
    SwiGLU,
    Tanh,
)
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps
from rotrnn.nn.layers.heads import Heads
from rotrnn.nn.program import Builder, Program, Register

FASTEST = 20.0
"""The largest alpha of the released code."""
LOGIT_EPS = 1e-6
"""The least distance from 0 and 1 at which the released code inverts a sigmoid."""
UNIT_EPS = 1e-8
"""Added to the mean of squares of B and of C."""


@dataclass(frozen=True)
class SLinOSS(Heads):
    """``y = W_out RMSNorm((scan(v, B, C) + D v) * SiLU(gate))``, ``v = SiLU(conv(value))``: selective oscillators.

    ``[gate, value, dt, alpha, phi, B, C] = W_in u``, by the released code (b-vitamins/slinoss at a090709; there is no
    paper). Of each of H heads and each token, with the sigmoid s,

    ``delta = dt_min + (dt_max - dt_min) s(dt + dt_bias)``, ``r = r_min + (1 - r_min) exp(-20 s(alpha + alpha_bias))``,
    ``theta = +-(theta_min + (theta_max - theta_min) s(theta_bias + tanh(phi + theta_mod_bias)))``,

    the sign + for heads 0, 2, ... and - for others. A head has P = `d_head` channels of N complex states with the
    transition ``rho = r e^{i theta}``, which the step size delta does not change: it scales the input alone. Its input
    is a straight line from each token to the next (`rotrnn.ops.hold_scan`),

    ``z_t = rho_t z_{t-1} + delta_t (p_t v_{t-1} B_{t-1}^T + q_t v_t B_t^T)``, ``y_t = Re(z_t conj(C_t))``.

    B and C have sizes softplus(.) and angles pi tanh(.), and are divided by the root of the mean of their squared
    sizes. There are I = `expand` * `d_model` channels.

    Parameters
    ----------
    d_state : int
        N, the number of complex states of a channel.
    expand : int
    d_head : int or "auto"
        P, a divisor of I; "auto" means the greatest common divisor of I and 64, the width in the released code.
    d_conv : int
        Number of taps of the convolution; 0 for none.
    dt_min, dt_max : float
        Bounds of delta.
    r_min : float
        The least r, from 0.1 and below 1.
    theta_min, theta_max : float
        Bounds of the size of theta in radians, up to pi.
    norm_eps : float
        Added to the mean of squares before `out_proj`.

    Parameters (dict of float32): in_proj (2 I + 3 H + 4 H N, D), whose rows are gate, value, dt, alpha, phi, sizes and
    angles of B, then of C; conv_w (I, d_conv), conv_bias (I,), dt_bias, alpha_bias, theta_mod_bias, theta_bias (H,), D
    (I,), norm (I,), out_proj (D, I).

    Initial values, as in the released code: projections and convolution uniform on +-1/sqrt(fan-in); delta and theta of
    the heads on a grid of floor(sqrt H) and the needed number of values, both evenly spaced in their logarithms; log r
    evenly spaced over the heads; theta_mod_bias zero; D and norm one.
    """

    about: ClassVar[str] = "complex states whose radius and angle depend on the input, with two taps: SLinOSS"
    paper: ClassVar[str] = "2026, the released code of SLinOSS (b-vitamins/slinoss)"
    recurrent: ClassVar[frozenset[str]] = frozenset({"D", "dt_bias", "alpha_bias", "theta_mod_bias", "theta_bias"})
    lanes: ClassVar[str] = "expand d_model (2 d_state + d_conv) + 2 max(1, expand d_model // 64) (d_state + 1)"

    d_state: int = 128
    expand: int = 2
    d_head: int | str = "auto"
    d_conv: int = 4
    dt_min: float = 0.005
    dt_max: float = 0.1
    r_min: float = 0.8
    theta_min: float = 0.05
    theta_max: float = 2.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        self.check_sizes("d_conv", least=0)
        self.check_heads()
        for low, high, most, said in (
            ("dt_min", "dt_max", math.inf, ""),
            ("theta_min", "theta_max", math.pi, " <= pi"),
        ):
            least, largest = getattr(self, low), getattr(self, high)
            if not 0 < least < largest <= most:
                raise ValueError(f"SLinOSS: {low}={least!r}, {high}={largest!r}, expected 0 < {low} < {high}{said}")
        if not 0.1 <= self.r_min < 1:
            raise ValueError(f"SLinOSS: r_min={self.r_min!r}, expected a number from 0.1 and below 1")
        self.check_positive("norm_eps")

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of rows of in_proj: of the gate, the value, dt, alpha, phi, and of B and C."""
        return self.inner, self.inner, *3 * (self.heads,), 4 * self.heads * self.d_state

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, inner, H = self.d_model, self.inner, self.heads
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (sum(self.parts), D)}
        if self.d_conv:
            shapes |= {"conv_w": (inner, self.d_conv), "conv_bias": (inner,)}
        shapes |= dict.fromkeys(("dt_bias", "alpha_bias", "theta_mod_bias", "theta_bias"), (H,))
        return {**shapes, "D": (inner,), "norm": (inner,), "out_proj": (D, inner)}

    def init(self, rng: np.random.Generator) -> Params:
        fan_in = {"in_proj": self.d_model, "out_proj": self.inner, "conv_w": self.d_conv, "conv_bias": self.d_conv}
        dt, theta = self._grid()
        r = np.exp(np.linspace(math.log(self.r_min + (1 - self.r_min) * math.exp(-FASTEST)), 0, self.heads))
        alpha = -np.log(np.clip((r - self.r_min) / (1 - self.r_min), math.exp(-FASTEST), 1))
        params = {
            "dt_bias": _logit((dt - self.dt_min) / (self.dt_max - self.dt_min)),
            "alpha_bias": _logit(alpha / FASTEST),
            "theta_mod_bias": np.zeros(self.heads),
            "theta_bias": _logit((theta - self.theta_min) / (self.theta_max - self.theta_min)),
            **dict.fromkeys(("D", "norm"), np.ones(self.inner)),
        }
        for name, fan in fan_in.items():
            if name in self.shapes:
                params[name] = rng.uniform(-1, 1, self.shapes[name]) / np.sqrt(fan)
        return astype({name: params[name] for name in self.shapes}, np.float32)

    def _grid(self) -> tuple[Array, Array]:
        """Returns the initial delta and theta of each head: a row of the grid for each theta, every second row
        reversed."""
        steps = math.isqrt(self.heads)
        rows = -(-self.heads // steps)
        dt, theta = np.geomspace(self.dt_min, self.dt_max, steps), np.geomspace(self.theta_min, self.theta_max, rows)
        of_row = [dt[:: 1 - 2 * (row % 2)] for row in range(rows)]
        return np.concatenate(of_row)[: self.heads], np.repeat(theta, steps)[: self.heads]

    def program(self) -> Program:
        """The state is the last d_conv - 1 inputs of the convolution (B, d_conv - 1, I); c (B, 2, H), the angles and
        their rounding errors; h (B, H, P, 2 N), turned back by c; the last B, turned back too, (B, H, 2 N); and the
        last v (B, H, P)."""
        p = Builder(self)
        inner, H, N = self.inner, self.heads, self.d_state
        w_gate, w_value, w_step, w_radius, w_angle, w_states = p(Split(self.parts, axis=-2), "in_proj")
        v = p(SiLU(), p(Conv(), p(Dense(), p.x, w_value), "conv_w", "conv_bias"))
        step = p(Sigmoid(), p(Dense(), p.x, w_step, "dt_bias"))
        delta = p(Affine(self.dt_max - self.dt_min, self.dt_min), step)
        log_a = p(LogRadius(self.r_min, FASTEST), p(Dense(), p.x, w_radius, "alpha_bias"))
        angle = p(Dense(), p.x, w_angle, "theta_mod_bias")
        theta = p(SignedAngles(self.theta_min, self.theta_max), angle, "theta_bias")

        def directions(size: Register, angle: Register) -> Register:
            unit = p(RMSNorm(UNIT_EPS), p(Reshape((H, N)), p(Softplus(), size)))
            turned = p(Reshape((H, N)), p(Affine(math.pi), p(Tanh(), angle)))
            return p(Reshape((H, 2 * N)), p(Polar(pairs=True), unit, turned))

        B_size, B_angle, C_size, C_angle = p(Split((H * N,) * 4), p(Dense(), p.x, w_states))
        x, B, C = p(Reshape((H, self.width)), v), directions(B_size, B_angle), directions(C_size, C_angle)
        y = p(Reshape((inner,)), p(HoldScan(), x, delta, log_a, theta, B, C))
        y = p(SwiGLU(), p(Skip(), v, "D", None, y), p(Dense(), p.x, w_gate))
        y = p(Dense(), p(RMSNorm(self.norm_eps), y), p(Columns(), "out_proj", "norm"))
        return p.returns(y, log_a=log_a, theta=theta)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions r e^{i theta} (B, T, H), complex128, along sequences: one for all states of a head.
        Zero beyond the lengths. Arguments as in `forward`."""
        found = self.registers(params, x, ctx, state)
        log_a, theta = (found[one].astype(np.float64) for one in ("log_a", "theta"))
        return mask_steps(np.exp(log_a + 1j * theta), ctx.lengths)


def _logit(p: Array) -> Array:
    """Returns the inverse of the sigmoid."""
    p = np.clip(p, LOGIT_EPS, 1 - LOGIT_EPS)
    return np.log(p) - np.log1p(-p)
