"""AUSSM: a diagonal state whose transitions have modulus 1 and turn by angles of the input (2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.instructions import (
    Affine,
    Conv,
    Dense,
    Polar,
    Product,
    Reshape,
    SiLU,
    Skip,
    Softplus,
    Split,
    Sum,
    SwiGLU,
    UnitScan,
)
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, astype, mask_steps
from rotrnn.nn.program import Builder, Program, Programmed


@dataclass(frozen=True)
class AUSSM(Programmed):
    """``h_t = exp(i theta_t) h_{t-1} + Delta_t v_t B``, ``y_t = Re(C . h_t) + D v_t``, N states for each channel.

    Adaptive unitary SSM (Karuvally, Nowak, Keller, Alonso, Sejnowski, Siegelmann 2025, "Bridging Expressivity and
    Scalability with Adaptive Unitary SSMs"). With ``[x, z] = W_in u_t`` and ``s = conv(x)``, a causal convolution of
    each channel, ``v = SiLU(s)`` and the output is ``W_out (y * SiLU(z))``;

    ``theta_t[i, j] = sum_r X[i, j, r] s_t[r] / sqrt(D) + X_bias[i, j]``, ``Delta_t = softplus(dt_proj x_proj s_t +
    dt_bias)``, ``B_j = softplus(B_re_j) exp(i B_im_j)`` and C alike.

    Every transition has modulus 1, so nothing is forgotten: the authors interleave such layers with Mamba's. Delta
    scales the input alone. Angles add up in double and modulo 2 pi, and turned inputs are added without a factor
    (`rotrnn.ops.turn`), so |exp(i theta)| = 1 is exact in float32 too.

    Parameters
    ----------
    d_state : int
        N, the number of complex states of a channel.
    d_conv : int
        Number of taps of the convolution; 0 for none.
    dt_rank : int or "auto"
        R, the rank of the map to Delta; "auto" means N.

    Parameters (dict of float32): in_proj (2 D, D), conv_w (D, d_conv), conv_bias (D,), x_proj (R, D), dt_proj (D, R),
    dt_bias (D,), X (D N, D) and X_bias (D N,), with the rows of channel 0, then of channel 1, and so on, B_re, B_im,
    C_re, C_im (N,), D (D,), out_proj (D, D). There are D^2 N weights of angles. The state is the last d_conv - 1 inputs
    of the convolution, c (B, 2, D, N), the angles and their rounding errors, and q (B, D, N, 2), sums of turned inputs.

    Initial values, as in the authors' code: maps and convolution uniform on +-1/sqrt(fan-in), dt_bias on twice that
    (the code adds it twice), X_bias on +-pi, parts of B and C ~ N(0, 1/2), D one.
    """

    about: ClassVar[str] = "complex states of modulus 1 that turn by angles of the input: AUSSM"
    paper: ClassVar[str] = (
        'Karuvally et al. 2025, "Bridging Expressivity and Scalability with Adaptive Unitary SSMs" (arXiv 2507.05238)'
    )
    recurrent: ClassVar[frozenset[str]] = frozenset({"X", "X_bias", "B_re", "B_im", "C_re", "C_im", "dt_bias"})
    lanes: ClassVar[str] = "d_model (4 d_state + d_conv - 1)"

    d_state: int = 16
    d_conv: int = 4
    dt_rank: int | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "dt_rank")
        self.check_sizes("d_conv", least=0)

    @property
    def rank(self) -> int:
        """R, the number of values from which the step sizes are computed."""
        return self.d_state if isinstance(self.dt_rank, str) else self.dt_rank

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N, R = self.d_model, self.d_state, self.rank
        shapes: dict[str, tuple[int, ...]] = {"in_proj": (2 * D, D)}
        if self.d_conv:
            shapes |= {"conv_w": (D, self.d_conv), "conv_bias": (D,)}
        shapes |= {"x_proj": (R, D), "dt_proj": (D, R), "dt_bias": (D,), "X": (D * N, D), "X_bias": (D * N,)}
        return shapes | dict.fromkeys(("B_re", "B_im", "C_re", "C_im"), (N,)) | {"D": (D,), "out_proj": (D, D)}

    def init(self, rng: np.random.Generator) -> Params:
        largest = {"conv_bias": max(self.d_conv, 1) ** -0.5, "dt_bias": 2 * self.rank**-0.5, "X_bias": np.pi}
        params = {}
        for name, shape in self.shapes.items():
            if name[:2] in ("B_", "C_"):
                params[name] = rng.standard_normal(shape) * np.sqrt(0.5)
            elif name == "D":
                params[name] = np.ones(shape)
            else:
                params[name] = rng.uniform(-1, 1, shape) * largest.get(name, shape[-1] ** -0.5)
        return astype(params, np.float32)

    def program(self) -> Program:
        p, D, N = Builder(self), self.d_model, self.d_state
        w_value, w_gate = p(Split((D, D), axis=-2), "in_proj")
        s = p(Dense(), p.x, w_value)
        s = p(Conv(), s, "conv_w", "conv_bias")
        angles = p(Dense(), s, p(Affine(D**-0.5), "X"), "X_bias")
        theta = p(Reshape((D, N)), angles)
        delta = p(Softplus(), p(Dense(), p(Dense(), s, "x_proj"), "dt_proj", "dt_bias"))
        size = p(Product(), p(Softplus(), "B_re"), p(Softplus(), "C_re"))
        w = p(Polar(), size, p(Sum(), "B_im", "C_im"))  # B_j does not turn: C_j B_j is enough
        v = p(SiLU(), s)
        y = p(Skip(), v, "D", None, p(UnitScan(), p(Product(), delta, v), theta, w))
        y = p(SwiGLU(), y, p(Dense(), p.x, w_gate))
        return p.returns(p(Dense(), y, "out_proj"), theta=theta)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions exp(i theta) (B, T, D, N), complex128, along sequences. Zero beyond the lengths.
        Arguments as in `forward`."""
        theta = self.registers(params, x, ctx, state)["theta"].astype(np.float64)
        return mask_steps(np.exp(1j * theta), ctx.lengths)
