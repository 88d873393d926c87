"""DeltaNet, Gated DeltaNet and DeltaProduct: a matrix state that changes by Householder steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    astype,
    mask_steps,
    spectrum,
    trusted,
)
from rotrnn.nn.layers.linear import bounded_exp
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.delta import DeltaRuleGrads, delta_rule, delta_rule_backward
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.device import contiguous, einsum, full
from rotrnn.ops.pointwise import (
    exp,
    exp_backward,
    mask_padding,
    rms_norm,
    rms_norm_backward,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    swiglu,
    swiglu_backward,
)

GAIN = 2**-2.5
"""The gain of the released codes' initial projections."""
FASTEST_RATE = 16.0
"""The largest initial rate of forgetting, exp(A_log), in the released code."""
UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before they are normalised, in the released code."""


class DeltaNetSaved(NamedTuple):
    """Saved for backward: input; queries, keys and values, (B, T, C) together, as projected, after the convolution and
    after SiLU; the lengths' reciprocals of queries and keys, then queries (B, T, H, K), keys (B, T, n, H, K) and values
    (B, T, n, H, V); sigmoids of beta; the decays before their softplus and after it, and the decays (B, T, H), or None;
    what is read, (B, T, H, V), its norm's statistic and the normed; the gate, or None, and its product; carries;
    lengths; the states before and after x."""

    x: Array
    projected: Array
    mixed: Array
    u: Array
    rstd: Array
    q: Array
    k: Array
    v: Array
    opened: Array
    decays: tuple[Array, Array, Array] | None
    read: Array
    read_rstd: Array
    normed: Array
    gate: Array | None
    gated: Array
    carries: Array
    lengths: npt.NDArray[np.int64] | None
    state0: State
    state: State


@dataclass(frozen=True)
class DeltaNet(Recurrent):
    """``y = W_out (RMSNorm(o) * SiLU(W_gate x))``, o the output of `rotrnn.ops.delta_rule` of q, k, v, beta and decay.

    Each of H heads has a matrix state h (K, V), which is the transpose of the papers' S. A token makes n = `steps`
    Householder steps, ``h <- h + beta_i k_i (v_i - h^T k_i)^T``, i = 1..n, and reads ``o = h^T q``. With the short
    causal convolution of Mamba before SiLU, and | | the length of a head's vector:

    ``q = unit(SiLU(conv(W_q x)))``, ``k_i = unit(SiLU(conv(W_{k,i} x)))``, ``v_i = SiLU(conv(W_{v,i} x))``,
    ``unit(z) = z / sqrt(|z|^2 + 1e-6)``, ``beta_i = s(w_{beta,i} x)``, or twice this if `negative`;
    with `gate`, the state is first multiplied by ``alpha = exp(-exp(A_log) softplus(w_decay x + b_dt))``.

    The transition of a token, ``alpha prod_i (I - beta_i k_i k_i^T)``, is a product of n matrices with the eigenvalues
    1 and 1 - beta_i.

    - As it is: DeltaNet (Yang, Wang, Zhang, Shen and Kim 2024), the delta rule with SiLU, unit queries and keys, short
      convolutions, and RMSNorm of what is read.
    - ``negative=True``: eigenvalues from -1 to 1 (Grazzi, Siems, Zela, Franke, Hutter and Pontil 2024).
    - ``gate=True, output_gate=True``: Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, eq. 10), with Mamba-2's decay.
    - ``steps=n, negative=True``: DeltaProduct (Siems, Carstensen, Zela, Hutter, Pontil and Grazzi 2025); with both
      gates Gated DeltaProduct, where a token decays once.

    Where papers leave it open, this is the code of the first authors (flash-linear-attention): 1e-6 in `unit`, no
    biases, RMSNorm by heads with one scale (V,) for all, the initial values. That code also divides q by sqrt(K), which
    the papers do not have: with ``norm_eps = 1e-5 * d_state`` the layer computes what that code does with 1e-5. It
    matters where o is small beside sqrt(norm_eps), as for wide layers at their initial values.

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

    Parameters (dict of float32): qkv_proj (C, D) with C = H K (n + 1) + n H V rows for q, k_1..k_n, v_1..v_n, each by
    heads; conv_w (C, d_conv); beta_proj (n H, D); with `gate` decay_proj (H, D), dt_bias (H,), A_log (H,); norm (V,);
    with `output_gate` gate_proj (H V, D); out_proj (D, H V).

    Initial values: each projection of a rows uniform on +-2^-2.5 sqrt(6 / (D + a)) (Xavier), taps on +-1/sqrt(d_conv),
    exp(A_log) on (0, 16], norm = 1.
    """

    about: ClassVar[str] = "matrix state that Householder steps correct: DeltaNet, Gated DeltaNet, DeltaProduct"
    paper: ClassVar[str] = (
        'Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length"; Yang et al. '
        '2024, "Gated Delta Networks"; Siems et al. 2025, "DeltaProduct"'
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads", "d_state", "expand", "steps")
        self.check_sizes("d_conv", least=0)
        if self.inner % self.heads:
            raise ValueError(f"DeltaNet: heads={self.heads}, expected a divisor of expand * d_model = {self.inner}")
        if not 0 < self.dt_min <= self.dt_max < math.inf:
            raise ValueError(
                f"DeltaNet: dt_min={self.dt_min!r}, dt_max={self.dt_max!r}, expected 0 < dt_min <= dt_max, finite"
            )
        if not 0 < self.norm_eps < math.inf:
            raise ValueError(f"DeltaNet: norm_eps={self.norm_eps!r}, expected a positive number")

    @property
    def inner(self) -> int:
        """H V, the number of value channels of a step."""
        return self.expand * self.d_model

    @property
    def width(self) -> int:
        """V, the size of a head's value."""
        return self.inner // self.heads

    @property
    def largest(self) -> int:
        """The upper end of beta."""
        return 2 if self.negative else 1

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
        shapes["norm"] = (self.width,)
        if self.output_gate:
            shapes["gate_proj"] = (self.inner, D)
        return {**shapes, "out_proj": (D, self.inner)}

    @property
    def state_form(self) -> StateForm:
        past = StateArray("inputs", (max(self.d_conv - 1, 0), sum(self.parts)))
        return past, StateArray("h", (self.heads, self.d_state, self.width))

    def init(self, rng: np.random.Generator) -> Params:
        def projection(rows: int, columns: int) -> Array:
            bound = GAIN * math.sqrt(6 / (rows + columns))
            return rng.uniform(-bound, bound, (rows, columns))

        params: Params = {}
        for name, shape in self.shapes.items():
            if name == "qkv_proj":
                params[name] = np.concatenate([projection(rows, self.d_model) for rows in self.parts])
            elif name == "conv_w":
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(self.d_conv)
            elif name == "dt_bias":
                dt = np.exp(rng.uniform(np.log(self.dt_min), np.log(self.dt_max), shape))
                params[name] = dt + np.log(-np.expm1(-dt))  # softplus(b_dt) = dt
            elif name == "A_log":
                params[name] = np.log(FASTEST_RATE * (1 - rng.random(shape)))  # never log(0)
            elif name == "norm":
                params[name] = np.ones(shape)
            else:
                params[name] = projection(*shape)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, DeltaNetSaved]:
        """Returns (y (B, T, D), saved). The state is (the last d_conv-1 inputs of the convolution (B, d_conv-1, C), h
        (B, H, K, V))."""
        return self._run(params, trusted(self.prepare)(params), x, ctx.lengths, state)

    def prepare(self, params: Params) -> Array | None:
        """Returns the rates -exp(A_log) (H,), or None without `gate`."""
        return -bounded_exp(contiguous(params["A_log"])) if self.gate else None

    def step(self, params: Params, state: State, x_t: Array, prepared: Array | None = None) -> tuple[Array, State]:
        rates = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._run(params, rates, x_t[:, None], None, state)
        return y[:, 0], saved.state

    def _run(
        self,
        params: Params,
        rates: Array | None,
        x: Array,
        lengths: npt.NDArray[np.int64] | None,
        state: State,
    ) -> tuple[Array, DeltaNetSaved]:
        tail, h0 = (None, None) if state is None else state
        x = mask_padding(x, lengths)
        projected = dense(x, params["qkv_proj"])
        mixed, tail_after = projected, np.zeros((len(x), 0, projected.shape[-1]), projected.dtype, like=projected)
        if self.d_conv:
            mixed, tail_after = causal_conv(projected, params["conv_w"], None, tail, lengths=lengths, return_state=True)
        u = silu(mixed)
        q, k, v, rstd = self._directions(u)
        opened = sigmoid(dense(x, params["beta_proj"])).reshape(k.shape[:-1])
        decays = self._decays(params, rates, x)
        read, h, carries = delta_rule(
            *(q, k, v, self.largest * opened, None if decays is None else decays[-1], h0),
            lengths=lengths,
            return_state=True,
            return_carries=True,
        )
        normed, read_rstd = rms_norm(self._rows(read), params["norm"], eps=self.norm_eps)
        normed = normed.reshape(*x.shape[:2], self.inner)
        gate = dense(x, params["gate_proj"]) if self.output_gate else None
        gated = normed if gate is None else swiglu(normed, gate)
        y = mask_padding(dense(gated, params["out_proj"]), lengths)
        arrays = x, projected, mixed, u, rstd, q, k, v, opened, decays, read, read_rstd, normed, gate, gated
        return y, DeltaNetSaved(*arrays, carries, lengths, state, (tail_after, h))

    def backward(
        self, params: Params, saved: DeltaNetSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        s, lengths = saved, saved.lengths
        tail, h0 = (None, None) if s.state0 is None else s.state0
        dtail, dh = (None, None) if dstate is None else dstate
        out = dense_backward(mask_padding(dy, lengths), s.gated, params["out_proj"])
        dnormed, dparams, dx = out.dx, {"out_proj": out.dw}, []
        if s.gate is not None:
            dnormed, dgate = swiglu_backward(dnormed, s.normed, s.gate)
            dx.append(_through("gate_proj", params, dparams, dgate, s.x))
        norm = rms_norm_backward(self._rows(dnormed), self._rows(s.read), params["norm"], s.read_rstd)
        dparams["norm"] = norm.dscale
        decay = None if s.decays is None else s.decays[-1]
        rule = delta_rule_backward(
            *(norm.dx.reshape(s.read.shape), s.q, s.k, s.v, self.largest * s.opened, decay, h0),
            dhT=dh,
            lengths=lengths,
            carries=s.carries,
        )
        dopen = sigmoid_backward(self.largest * rule.dbeta, s.opened).reshape(*dy.shape[:2], self.steps * self.heads)
        dx.append(_through("beta_proj", params, dparams, dopen, s.x))
        if s.decays is not None and rule.ddecay is not None:
            dx.append(self._decays_backward(params, dparams, rule.ddecay, s.decays, s.x))
        dprojected, dtail0 = silu_backward(self._directions_backward(rule, s), s.mixed), np.zeros_like(s.state[0])
        if self.d_conv:
            conv = causal_conv_backward(dprojected, s.projected, params["conv_w"], tail, dfinal=dtail, lengths=lengths)
            dprojected, dtail0, dparams["conv_w"] = conv.dx, conv.dstate, conv.dw
        total = _through("qkv_proj", params, dparams, dprojected, s.x)
        for one in dx:
            total += one
        return total, {name: dparams[name] for name in self.shapes}, (dtail0, rule.dh0)

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the A_t (B, T, H, K, K) of ``h_t = A_t h_{t-1} + ...`` along sequences, one for each head:
        ``A_t = alpha_t (I - beta_n k_n k_n^T) ... (I - beta_1 k_1 k_1^T)``, alpha_t = 1 without `gate`.

        The papers' S is multiplied by its transpose, from the right. Zero beyond the lengths. Arguments and errors are
        those of `forward`.
        """
        _, saved = self.forward(params, x, ctx, state)
        keys, betas = saved.k[..., None], (self.largest * saved.opened)[..., None, None]
        A: Array = np.eye(self.d_state, dtype=keys.dtype, like=keys)
        if saved.decays is not None:
            A = saved.decays[-1][..., None, None] * A
        for i in range(self.steps):
            k = keys[:, :, i]
            A = A - betas[:, :, i] * k * (k * A).sum(-2, keepdims=True)
        return mask_steps(A, ctx.lengths)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t (B, T, H, K), complex128, along sequences. Arguments are those of
        `transitions`."""
        return spectrum("DeltaNet.eigenvalues", self.transitions(params, x, ctx, state))

    def _rows(self, values: Array) -> Array:
        """Returns what all heads have of a sequence, (B, T, H V) or (B, T, H, V), as rows (B, T H, V)."""
        B, T = values.shape[:2]
        return values.reshape(B, T * self.heads, self.width)

    def _unit_scale(self, like: Array) -> Array:
        """Returns the scale (K,) with which RMS norm, whose sum is a mean, makes lengths one."""
        return full((self.d_state,), 1 / math.sqrt(self.d_state), like.dtype, like)

    def _directions(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """Returns q, k and v, and the statistic of the norm of q and k, of u (B, T, C)."""
        (B, T), H, K, n = u.shape[:2], self.heads, self.d_state, self.steps
        both = sum(self.parts[:2])
        vectors = contiguous(u[..., :both]).reshape(B, T * (n + 1) * H, K)
        units, rstd = rms_norm(vectors, self._unit_scale(u), eps=UNIT_EPS / K)
        units = units.reshape(B, T, n + 1, H, K)
        v = contiguous(u[..., both:]).reshape(B, T, n, H, self.width)
        return contiguous(units[:, :, 0]), contiguous(units[:, :, 1:]), v, rstd

    def _directions_backward(self, grads: DeltaRuleGrads, saved: DeltaNetSaved) -> Array:
        """Returns du (B, T, C) from the gradients of q, k and v."""
        (B, T), both = saved.u.shape[:2], sum(self.parts[:2])
        dunits = np.concatenate([grads.dq[:, :, None], grads.dk], 2)
        rows = B, T * (self.steps + 1) * self.heads, self.d_state
        vectors = contiguous(saved.u[..., :both]).reshape(rows)
        norm = rms_norm_backward(dunits.reshape(rows), vectors, self._unit_scale(saved.u), saved.rstd)
        du: Array = np.concatenate([norm.dx.reshape(B, T, both), grads.dv.reshape(B, T, self.parts[2])], -1)
        return du

    def _decays(self, params: Params, rates: Array | None, x: Array) -> tuple[Array, Array, Array] | None:
        """Returns the step sizes before and after their softplus, and the decays, (B, T, H); None without `gate`."""
        if rates is None:
            return None
        raw = dense(x, params["decay_proj"], params["dt_bias"])
        delta = softplus(raw)
        return raw, delta, exp(delta * rates)

    def _decays_backward(
        self, params: Params, dparams: Params, ddecay: Array, decays: tuple[Array, Array, Array], x: Array
    ) -> Array:
        """Returns dx of the decays; adds the gradients of their parameters to dparams."""
        rates = -bounded_exp(contiguous(params["A_log"]))
        raw, delta, decay = decays
        dexponent = exp_backward(ddecay, decay)
        draw = softplus_backward(dexponent * rates, raw)
        grads = dense_backward(draw, x, params["decay_proj"])
        dparams |= {"decay_proj": grads.dw, "dt_bias": grads.dbias}
        dparams["A_log"] = einsum("bth,bth->h", dexponent, delta) * rates
        return grads.dx


def _through(name: str, params: Params, dparams: Params, dy: Array, x: Array) -> Array:
    """Returns dx of the projection `name`; adds its own gradient to dparams."""
    grads = dense_backward(dy, x, params[name])
    dparams[name] = grads.dw
    return grads.dx
