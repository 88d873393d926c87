"""FPMamba: Bedouin as in its authors' code, which was published after the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.devices.device import contiguous
from rotrnn.nn.fixed_points.convolution import initial_conv
from rotrnn.nn.fixed_points.maps import Map, Maps, mixer_maps
from rotrnn.nn.fixed_points.matrix_fixed_point import MatrixFixedPoint
from rotrnn.nn.fixed_points.mixer import GAINS
from rotrnn.nn.instructions import Dense, MatMul, OfHeads, Rates, Repeat, Reshape, Rows, Split, SwiGLU
from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.layers.heads import initial_steps
from rotrnn.nn.program import Builder, Call, Instruction, Program
from rotrnn.nn.scaling import exponents, times_power

A_RANGE, DT_FLOOR = (1.0, 16.0), 1e-4
"""Initial values in the form of Mamba-2: range of -A, and the smallest delta."""


@dataclass(frozen=True)
class FPMamba(MatrixFixedPoint):
    """Bedouin with Mamba's step sizes, a layer norm in the loop and weight-normalised maps; with p_t = (x_t, y_{t-1}):

        delta_t = softplus(W_dt W_d x_t + b_dt),     lam_t = exp(-exp(A_log) delta_t), per channel and state
        x~_t = Q_t (x_t - y_t) + y_t,     h_t = lam_t * h_{t-1} + (delta_t * x~_t) B_t^T
        F(y)_t = LayerNorm(h_t C_t + D * x~_t)
        B_t = W_B x_t + V_B y_{t-1}, C likewise, L2-normalised
        u of Q_t = SiLU(P_u p_t), normalised,     alpha = sigmoid(P_alpha p_t + b_alpha)
        out = W_out (SiLU(z_t + V_gate y_{t-1}) * y_t),     [x, z] = W_in in

    In the authors' code reflection 1 is applied first; here, as in eq. 6, the last one is applied first. To convert
    their parameters, reverse the order of the vectors in P_u and P_alpha, of their gains, and of b_alpha.

    With `d_head`, the form of Mamba-2 in the authors' code: delta, lam, D and A_log are one number for each head of
    `d_head` channels, delta, B and C are functions of the layer's input, and the norm is an RMS norm behind a gate:

        delta_t = softplus(W_dt in_t + b_dt),     lam_t = exp(-exp(A_log) delta_t), per head
        F(y)_t = RMSNorm((h_t C_t + D * x~_t) * SiLU(z_t))
        B_t = W_B in_t + V_B y_{t-1}, C likewise, L2-normalised

    and the rest as above: `out` is gated once more. A convolution then covers x, W_B in and W_C in, with SiLU. In the
    authors' code groups of heads may have separate B and C; here all heads share them, as in its default.

    The loop follows the authors' code. It starts from y = 0. The residual of a sequence is the largest residual of
    its time steps. The step size is 0.99, multiplied by 0.9 whenever the lowest residual of a sequence is 15 iterations
    old. In training the loop ends when the 75 % quantile of the lowest residuals over the batch is below 0.1, in
    evaluation when all are, or after 1000 iterations. Then follows one undamped application, through which the gradient
    flows.

    With a norm in the loop the fixed point is not unique. `forward` returns the one reached from y = 0 by this
    iteration; `step`, with a fixed point per token, finds others (`inference_gap`). A sequence that is not finite ends
    on its own; in the authors' code it would stop its batch. The authors' code also divides u, B and C by
    ``max(length, norm_eps)``, which is `unit_eps` here.

    Parameters
    ----------
    d_state, expand, mixer, rank, feedback, normalise, gradient, site, d_conv, symmetric, negative, unit_eps, spectral
        As in Bedouin, but without feedback to lambda. The "kronecker" mixer is as in the authors' code, where d_conv is
        4. The negative transition is ``lam_t = 2 exp(-exp(A_log) delta_t) - 1``.
    mixer_silu : bool
        Whether u passes through SiLU before it is normalised.
    gate_in_loop : bool
        ``F(y)_t = LayerNorm((h_t C_t + D * x~_t) * SiLU(z_t))`` and ``out = W_out y_t``. Needs a `feedback` without
        "gate". With `d_head`, where F is gated already, only the gate of `out` is left out; the authors' code then
        multiplies by SiLU(z_t) twice in F.
    d_head : int
        Channels of a head in the form of Mamba-2, a divisor of E; 64 in the authors' code. 0, the default, for the
        form of Mamba.
    norm_eps : float
        Epsilon of the norm.
    dt_min, dt_max : float
        Range of the initial delta, which is log-uniform.
    tile
        As in Bedouin, for solver "iteration". A fixed point by tiles is also a fixed point of the whole sequence, but
        not always the same.
    solver : "iteration" or "auto"
        "auto" iterates token by token, each from y = 0 to its own tolerance, as `step` does: so whole sequences, chunks
        and streams take the same path and have the same outputs up to rounding, at any `tol`. Tokens that do not
        converge multiply roundings; where a rounding changes the number of iterations, outputs differ by `tol`. The
        authors' loop may find other fixed points. The adjoint of the gradient "implicit" is linear, and has Anderson
        acceleration. `damping` (never "anderson" in this layer) and `stop` then have no effect, and `tile` must be
        None.
    tol, max_iterations, train_iterations, gamma_scale, damping, stop
        As in `rotrnn.nn.fixed_points.iteration.Iteration`.

    Parameters (dict of float32): W_in (2E, D), W_out (D, E), W_d (R, E) and W_dt (E, R) with R = ceil(D / 16), b_dt,
    D (E,), A_log (E, S), scale, bias (E,) of the norm, W_B, W_C (S, E). With rows that are normalised and scaled by
    gains g: P_n for each part n of the mixer, in the part's shape with an additional last axis 2E (E without feedback
    or if it is symmetric), V_B, V_C (S, E), V_gate (E, E), and their gains g_P_n, g_V_B, g_V_C, g_V_gate. b_p for
    its gains (b_alpha); M (E, E) for the orthogonal mixer; conv_w (E, d_conv) and conv_bias (E,) of the convolution.
    With `d_head`, for H heads: no W_d, W_dt (H, D), b_dt, D, A_log (H,), no bias of the norm, W_B, W_C (S, D), conv_w
    (E + 2S, d_conv) and conv_bias (E + 2S,).

    Initial values: A = -(1..S), or with `d_head` -A uniform on [1, 16] and delta at least 1e-4; D = 1, norm the
    identity, weights uniform on +-1/sqrt(columns), gains the length of their rows, b_alpha = 0, M ~ N(0, 1/32E).
    """

    about: ClassVar[str] = "Bedouin as in its authors' code: Mamba's step sizes, layer norm in the loop, weight norm"
    paper: ClassVar[str] = "Movahedi, Sarnthein, Cirone, Orvieto: Fixed-Point RNNs (2025), the code released with it"
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "D"})  # without weight decay in the released code
    normed: ClassVar[bool] = True
    lanes: ClassVar[str] = "expand d_model (d_state + 1)"

    max_iterations: int = 1000
    train_iterations: int | str | None = 100
    stop: str = "quantile"
    norm_eps: float = 1e-5
    dt_min: float = 0.001
    dt_max: float = 0.1
    mixer_silu: bool = True
    gate_in_loop: bool = False
    d_head: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("norm_eps")
        self.check_sizes("d_head", least=0)
        self.check_divisor("d_head", self.width, f"expand * d_model={self.width}", self.d_head or 1)
        if self.gate_in_loop and "gate" in self.feedback:
            raise ValueError(f"FPMamba: feedback={self.feedback!r}, expected none to the gate with gate_in_loop=True")
        self.check_range("dt_min", "dt_max")

    @property
    def convolved(self) -> int:
        return self.width + 2 * self.d_state if self.d_head else self.width

    @property
    def maps(self) -> Maps:
        direction = Map((self.d_state,), "unit" if self.normalise else "linear")
        parts = mixer_maps(self.mixer_maps, self.mixer_silu)
        return {"delta": Map((self.width,), "softplus"), **parts, "B": direction, "C": direction}

    @property
    def normed_rows(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights whose rows are normalised."""
        E, S = self.width, self.d_state
        columns = 2 * E if "mixer" in self.feedback and not self.symmetric else E
        shapes = {f"P_{name}": (*shape, columns) for name, shape in self.mixer_maps.items()}
        late = {"V_B": (S, E), "V_C": (S, E), "V_gate": (E, E)}
        return shapes | {name: shape for name, shape in late.items() if name[2:] in self.feedback}

    @property
    def biases(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the biases of the mixer's gains."""
        return {f"b_{name}": shape for name, shape in self.mixer_maps.items() if name in GAINS}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, E, S, R = self.d_model, self.width, self.d_state, -(-self.d_model // 16)
        shapes: dict[str, tuple[int, ...]] = {"W_in": (2 * E, D), "W_out": (D, E)}
        if self.d_head:
            H = E // self.d_head
            shapes |= {"W_dt": (H, D), "b_dt": (H,), "A_log": (H,), "D": (H,), "scale": (E,)}
            shapes |= {"W_B": (S, D), "W_C": (S, D)}
        else:
            shapes |= {"W_d": (R, E), "W_dt": (E, R), "b_dt": (E,), "A_log": (E, S), "D": (E,)}
            shapes |= {"scale": (E,), "bias": (E,), "W_B": (S, E), "W_C": (S, E)}
        for name, shape in self.normed_rows.items():
            shapes |= {name: shape, f"g_{name}": shape[:-1]}
        shapes |= self.conv_shapes
        return shapes | (self.biases if self.mixer_maps else self._mixer.parts)

    def init(self, rng: np.random.Generator) -> Params:
        size = self.shapes["b_dt"]
        steps = initial_steps(rng, self.dt_min, self.dt_max, size, DT_FLOOR if self.d_head else 0)
        A = rng.uniform(*A_RANGE, size) if self.d_head else np.tile(np.arange(1, self.d_state + 1), (self.width, 1))
        params: Params = {
            "b_dt": steps,
            "A_log": np.log(A),
            **initial_conv(rng, self.convolved, self.d_conv),
        }
        for name, shape in self.shapes.items():
            if name in ("D", "scale"):
                params[name] = np.ones(shape)
            elif name in ("bias", *self.biases):
                params[name] = np.zeros(shape)
            elif name == "M":
                params[name] = (32 * self.width) ** -0.5 * rng.standard_normal(shape)
            elif name.startswith("g_"):
                params[name] = np.linalg.norm(params[name[2:]], axis=-1)
            elif name not in params:
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(shape[-1])
        return astype({name: params[name] for name in self.shapes}, np.float32)

    def program(self) -> Program:
        """The state is as in Bedouin; a convolution has E, or with `d_head` E + 2S channels."""
        p = Builder(self)
        D, E, S, sums = self.d_model, self.width, self.d_state, {}
        w_x, w_z = p(Split((E, E), axis=-2), "W_in")
        z, weights = p(Dense(), p.x, w_z), {name: name for name in ("W_B", "W_C", *self.biases)}
        for name in self.normed_rows:
            weights |= self._weights(p, name)
        if self.d_head:
            H, v = E // self.d_head, p(Dense(), p.x, p(Rows((E, S, S), D), w_x, "W_B", "W_C"))
            x, sums["B"], sums["C"] = p(Split((E, S, S)), self._convolution(p, v))
            by_head = p(Reshape((H, 1)), p(Dense(), p.x, "W_dt", "b_dt"))
            sums["delta"] = p(Reshape((E,)), p(OfHeads(E), by_head))
            A = p(Rows((E,), S), p(Repeat(self.d_head * S), p(Rates(), "A_log")))
            norm: tuple[Any, ...] = p(Repeat(self.d_head), "D"), "scale", None
        else:
            x = self._convolution(p, p(Dense(), p.x, w_x))
            weights |= {"W_delta": p(MatMul(), "W_dt", "W_d"), "b_delta": "b_dt"}
            A, norm = p(Rates(), "A_log"), ("D", "scale", "bias")
        gated = self.gate_in_loop or self.d_head > 0
        y, gate = self._solution(p, x, z, A, weights, sums, norm=norm, gated=gated)
        return p.returns(p(Dense(), y if self.gate_in_loop else p(SwiGLU(), y, gate), "W_out"))

    def _weights(self, p: Builder, name: str) -> dict[str, Any]:
        """Appends a weight whose rows are normalised. Returns W_n, and with feedback V_n, of P_n."""
        rows = p(UnitRows(), name, f"g_{name}")
        if not name.startswith("P_"):
            return {name: rows}
        W, V = (rows, rows) if self.symmetric else (rows, None)
        if self.normed_rows[name][-1] > self.width:
            W, V = p(Split((self.width, self.width)), rows)
        return {f"W_{name[2:]}": W, f"V_{name[2:]}": V}


@dataclass(frozen=True)
class UnitRows(Instruction):
    """``y = g v / |v|``, v (..., I) with normalised rows, and gains g (...)."""

    form = "... I; ... -> ... I"
    parameters = ("v", "g")
    foldable = True

    def forward(self, call: Call, v: Array, g: Array) -> Array:
        y: Array = unit_rows(v)[0] * g[..., None]
        return y

    def backward(self, call: Call, dy: Array, v: Array, g: Array) -> tuple[Array, Array]:
        unit, size = unit_rows(v)
        dg = (dy * unit).sum(-1)
        return g[..., None] / size * (dy - dg[..., None] * unit), dg


def unit_rows(v: Array) -> tuple[Array, Array]:
    """Returns the normalised rows, and their lengths."""
    v = contiguous(v)  # NumPy's summation order depends on the layout
    rows = v.reshape(-1, v.shape[-1])
    exponent = exponents(rows)  # the squares may overflow or vanish
    norms = times_power(np.linalg.norm(times_power(rows, -exponent), axis=-1, keepdims=True), exponent)
    size = norms.reshape(*v.shape[:-1], 1)
    return v / size, size
