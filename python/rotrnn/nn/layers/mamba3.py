"""Mamba-3: a rotating state, the exponential-trapezoidal rule, and no convolution (2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.devices.device import full
from rotrnn.nn.instructions import (
    ByRank,
    Columns,
    Dense,
    LogDecay,
    OfHeads,
    RankGate,
    Reshape,
    RMSNorm,
    Sigmoid,
    Softplus,
    Split,
    StepAngles,
    SwiGLU,
    TrapezoidScan,
    Turn,
)
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps
from rotrnn.nn.layers.heads import Heads, initial_steps
from rotrnn.nn.program import Builder, Program, Register
from rotrnn.ops.trapezoid import MOST_RANKS

RATES = ("softplus", "rational")


@dataclass(frozen=True)
class Mamba3(Heads):
    """``y = W_out (scan(x, B, C) * SiLU(z))``, where all inputs of the scan and z come from one projection.

    ``[z, x, B, C, d, r, l, w] = W_in u``. Of each of H heads and each token: the step size ``Delta = softplus(d +
    b_Delta)``, the rate ``A = -max(f(r), A_floor)``, the transition ``a = exp(Delta A)`` and the share ``lambda =
    s(l)``. B and C have an RMS norm over N with a scale (N,) and then a bias for each head, and turn by angles that add
    up over time, ``theta = pi tanh(w) Delta``, where the heads share w: ``B_t = R(c_t) B'_t``, ``c_t = c_{t-1} +
    theta_t`` (`rotrnn.ops.turn`, pairs of adjacent lanes). The scan is `rotrnn.ops.trapezoid_scan` with the skip D,

    ``h_t = a_t h_{t-1} + (1 - lambda_t) Delta_t a_t x_{t-1} B_{t-1}^T + lambda_t Delta_t x_t B_t^T``,
    ``y_t = h_t C_t + D x_t``.

    So the state rotates: as if it were complex, with angles that depend on the input. There are I = `expand` *
    `d_model` channels in heads of P = `d_head` each, G = `groups` groups of heads that share B and C before the bias,
    and A = `fraction` N / 2 angles, rounded down: the first 2 A lanes turn. Settings come from the released code
    (state-spaces/mamba, modules/mamba3.py), where `fraction` is rope_fraction, and `rank` mimo_rank.

    By default a channel has one input and one output (SISO). With R = `rank` above 1 it has several (MIMO): B^r and C^r
    for each rank r = 1..R, and

    ``h_t = a_t h_{t-1} + (1 - lambda_t) Delta_t a_t sum_r x^r_{t-1} (B^r_{t-1})^T + lambda_t Delta_t sum_r x^r_t
    (B^r_t)^T``,
    ``y^r_t = h_t C^r_t + D x^r_t``, ``y = W_out sum_r U_o^r * y^r * SiLU(U_z^r * z)``, ``x^r = U_x^r * x``,

    with U_x, U_z, U_o for each channel and rank. The state h has the same size, and the pairs of lanes i and i + N/2, i
    < A, turn.

    Parameters
    ----------
    d_state : int
        N, the number of real lanes per channel.
    expand : int
    d_head : int or "auto"
        P, a divisor of I; "auto" means the greatest common divisor of I and 64, the width in the released code.
    groups : int
        G, a divisor of H.
    fraction : float
        The share of the lanes that turn: 0.5 or 1, at least two lanes.
    rate : "softplus" or "rational"
        f: softplus, as in the released code and flash-linear-attention; or 1 + r for r >= 0 and 1 / (1 - r) below, as
        in later versions of the released code.
    A_floor : float
        The smallest -A.
    dt_min, dt_max, dt_init_floor : float
        Initial Delta: log-uniform on [dt_min, dt_max], but at least dt_init_floor.
    rank : int
        R, the number of inputs and outputs of a channel, at most 64; the released models have 4.
    norm : bool
        Whether there is an RMS norm over the channels of a head, with a scale for each channel, before the gate.
    norm_eps : float
        Added to the mean of squares in norms.

    Parameters (dict of float32): in_proj (2 I + 2 G N + 3 H + A, D), dt_bias (H,), B_norm, C_norm (N,), B_bias, C_bias
    (H, N), D (H,), with `norm` norm (I,), out_proj (D, I). With R above 1 in_proj has R rows for each row of B and C,
    in the order (R, G, N), biases are (H, R, N), and U_x, U_z, U_o (H, R, P). They are the parameters of the released
    code (state-spaces/mamba, modules/mamba3.py), rows of in_proj in its order: in_proj.weight, dt_bias, B_norm.weight,
    C_norm.weight, B_bias and C_bias (for R = 1 without their axis of rank), D, norm.weight, mimo_x, mimo_z, mimo_o,
    out_proj.weight.

    Initial values, as in the released code: projections uniform on +-1/sqrt(fan-in), U_x and U_o 1/R, and all of U_z,
    D, norms and the biases of B and C one.
    """

    about: ClassVar[str] = "selective state space whose state rotates, with two taps of the input: Mamba-3"
    paper: ClassVar[str] = '2026, "Mamba-3" (arXiv 2603.15569), with the released code'
    recurrent: ClassVar[frozenset[str]] = frozenset({"D", "dt_bias"})  # without weight decay in that code
    lanes: ClassVar[str] = (
        "expand d_model (d_state + 1) + max(1, expand d_model // 64) (rank d_state + 2 (fraction d_state // 2))"
    )

    d_state: int = 128
    expand: int = 2
    d_head: int | str = "auto"
    groups: int = 1
    fraction: float = 0.5
    rate: str = "softplus"
    A_floor: float = 1e-4
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init_floor: float = 1e-4
    rank: int = 1
    norm: bool = False
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "groups", "rank")
        if self.rank > MOST_RANKS:
            raise ValueError(f"Mamba3: rank={self.rank}, expected at most {MOST_RANKS}")
        self.check_heads()
        self.check_divisor("groups", self.heads, f"the number of heads, {self.heads}")
        if self.fraction not in (0.5, 1):
            raise ValueError(f"Mamba3: fraction={self.fraction!r}, expected 0.5 or 1")
        if not self.angles:
            raise ValueError(f"Mamba3: d_state={self.d_state}, expected at least {math.ceil(2 / self.fraction)}")
        self.check_choice("rate", RATES)
        self.check_range("dt_min", "dt_max")
        self.check_positive("A_floor", "dt_init_floor", "norm_eps")

    @property
    def angles(self) -> int:
        """A, the number of angles of a head."""
        return int(self.fraction * self.d_state) // 2

    @property
    def pairs(self) -> str:
        """Which lanes turn together, as in the released kernels of each form (`rotrnn.ops.turn`)."""
        return "adjacent" if self.rank == 1 else "halves"

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of rows of in_proj: of z, x, B and C, d, and of r, l and w."""
        shared, H = self.rank * self.groups * self.d_state, self.heads
        return self.inner, self.inner, 2 * shared, H, 2 * H + self.angles

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, inner, H, N = self.d_model, self.inner, self.heads, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (sum(self.parts), D), "dt_bias": (H,)}
        ranks = () if self.rank == 1 else (self.rank,)
        shapes |= {"B_norm": (N,), "C_norm": (N,), "B_bias": (H, *ranks, N), "C_bias": (H, *ranks, N), "D": (H,)}
        if ranks:
            shapes |= dict.fromkeys(("U_x", "U_z", "U_o"), (H, *ranks, self.width))
        if self.norm:
            shapes["norm"] = (inner,)
        return {**shapes, "out_proj": (D, inner)}

    def init(self, rng: np.random.Generator) -> Params:
        params = {}
        for name, shape in self.shapes.items():
            if name in ("in_proj", "out_proj"):
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(shape[1])
            elif name == "dt_bias":
                params[name] = initial_steps(rng, self.dt_min, self.dt_max, shape, self.dt_init_floor)
            else:
                params[name] = np.full(shape, 1 / self.rank if name in ("U_x", "U_o") else 1.0)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is c (B, 2, H, A), the angles and their rounding errors; h (B, H, P, N); the last B, turned,
        (B, H, N), or (B, R, H, N) with R above 1; and the last x (B, H, P)."""
        p = Builder(self)
        R, inner, H, N, rows = self.rank, self.inner, self.heads, self.d_state, self.rank * self.groups
        w_gate, w_x, w_states, w_step, w_rest = p(Split(self.parts, axis=-2), "in_proj")
        delta = p(Softplus(), p(Dense(), p.x, w_step, "dt_bias"))
        rate, share, angle = p(Split((H, H, self.angles)), p(Dense(), p.x, w_rest))
        log_a = p(LogDecay(self.rate, self.A_floor), delta, rate)
        lam, theta = p(Sigmoid(), share), p(StepAngles(), angle, delta)

        def directions(x: Register, name: str) -> Register:
            normed = p(RMSNorm(self.norm_eps), p(Reshape((rows, N)), x), f"{name}_norm")
            if R == 1:
                return p(OfHeads(H), normed, f"{name}_bias")
            return p(Reshape((R, H, N)), p(OfHeads(R * H), normed, p(ByRank(), f"{name}_bias")))

        B, C = p(Split((rows * N,) * 2), p(Dense(), p.x, w_states))
        B, C = p(Turn(self.pairs), theta, directions(B, "B"), directions(C, "C"))
        x = p(Reshape((H, self.width)), p(Dense(), p.x, w_x))
        y, out = p(TrapezoidScan(), x, delta, lam, log_a, B, C, "D", "U_x"), "out_proj"
        if self.norm:
            y, out = p(RMSNorm(self.norm_eps), y), p(Columns(), out, "norm")
        gate = p(Dense(), p.x, w_gate)
        y = p(SwiGLU(), p(Reshape((inner,)), y), gate) if R == 1 else p(RankGate(), y, gate, "U_z", "U_o")
        return p.returns(p(Dense(), y, out), log_a=log_a, theta=theta)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions (B, T, H, N), complex128, along sequences: ``exp(Delta_t A_t)`` times ``exp(+-i
        theta_t)`` for the pairs that turn, and 1 for the others. Zero beyond the lengths. Arguments as in
        `forward`."""
        found = self.registers(params, x, ctx, state)
        A, N = self.angles, self.d_state
        units = np.exp(1j * found["theta"].astype(np.float64))
        turned = full((*units.shape[:3], N), 1, np.complex128, units)
        halves = slice(A), slice(N // 2, N // 2 + A)
        first, second = (slice(0, 2 * A, 2), slice(1, 2 * A, 2)) if self.pairs == "adjacent" else halves
        turned[..., first], turned[..., second] = units, np.conj(units)
        a = np.exp(found["log_a"].astype(np.float64))[..., None]
        return mask_steps(a * turned, ctx.lengths)
