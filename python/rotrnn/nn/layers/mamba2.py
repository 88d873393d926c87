"""Mamba-2: Mamba with one transition for each head (Dao and Gu 2024)."""

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
    trusted,
)
from rotrnn.nn.layers.linear import bounded_exp
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.device import contiguous, full
from rotrnn.ops.pointwise import (
    mask_padding,
    rms_norm,
    rms_norm_backward,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    swiglu,
    swiglu_backward,
)
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward

WIDTH = 64
"""Channels of a head in the released models."""


class Prepared(NamedTuple):
    """A (H,), and W_out (D, I) with its columns multiplied by the norm's scale."""

    A: Array
    w_out: Array


class Mamba2Saved(NamedTuple):
    """Saved for backward: input and z; the convolution's input and output; what its SiLU splits into, x (B, T, H, P), B
    and C (B, T, G, N); Delta (B, T, H) before and after its softplus; the scan's output, its gated form, the norm of
    that and 1 / its length; the scan's carries; lengths; the states before and after x."""

    x: Array
    gate: Array
    raw: Array
    mixed: Array
    parts: tuple[Array, Array, Array]
    step: Array
    delta: Array
    scanned: Array
    gated: Array
    normed: Array
    rstd: Array
    carries: Array
    lengths: npt.NDArray[np.int64] | None
    state0: State
    state: State


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """``y = W_out RMSNorm(scan(x, Delta, A, B, C) * SiLU(z))``, where x, Delta, B and C come from one projection.

    ``[z, v, d] = W_in u``, ``[x, B, C] = SiLU(conv(v))``, ``Delta = softplus(d + b_Delta)``, ``A = -exp(A_log)``, and
    `rotrnn.ops.ssd_scan` with the skip D: the transition of a head at a step is the number exp(Delta A). There are
    I = `expand` * `d_model` channels in H heads of P = `d_head` each, and G = `groups` groups of heads that share B and
    C. The RMS norm, with a scale for each channel, is over the channels of a group. K = I + 2 G N channels are
    convolved.

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

    Parameters (dict of float32): in_proj (I + K + H, D), conv_w (K, d_conv), conv_bias (K,), dt_bias (H,), A_log (H,),
    D (H,), norm (I,), out_proj (D, I); with `bias`, in_bias (I + K + H,) and out_bias (D,). They are those of the
    released code (state-spaces/mamba, modules/mamba2.py), rows of in_proj in its order: in_proj.weight, conv1d.weight,
    conv1d.bias, dt_bias, A_log, D, norm.weight, out_proj.weight.

    Initial values, as in the released code: weights and biases of projections and convolution uniform on
    +-1/sqrt(fan-in), ``A_log = log U[1, 16]``, D = 1, norm = 1.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "expand", "groups")
        self.check_sizes("d_conv", least=0)
        if isinstance(self.d_head, str) and self.d_head != "auto":
            raise ValueError(f"Mamba2: d_head={self.d_head!r}, expected a positive integer or 'auto'")
        if self.d_head != "auto":
            self.check_sizes("d_head")
        if self.inner % self.width:
            raise ValueError(f"Mamba2: d_head={self.d_head}, expected a divisor of expand * d_model={self.inner}")
        if self.heads % self.groups:
            raise ValueError(f"Mamba2: groups={self.groups}, expected a divisor of the number of heads, {self.heads}")
        for low, high in (("dt_min", "dt_max"), ("A_min", "A_max")):
            least, most = getattr(self, low), getattr(self, high)
            if not 0 < least <= most < math.inf:
                raise ValueError(f"Mamba2: {low}={least!r}, {high}={most!r}, expected 0 < {low} <= {high}, finite")
        for name in ("dt_init_floor", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Mamba2: {name}={getattr(self, name)!r}, expected a positive number")

    @property
    def inner(self) -> int:
        """I, the number of channels of the scan."""
        return self.expand * self.d_model

    @property
    def width(self) -> int:
        """P, the number of channels of a head."""
        return math.gcd(self.inner, WIDTH) if isinstance(self.d_head, str) else self.d_head

    @property
    def heads(self) -> int:
        """H, the number of heads."""
        return self.inner // self.width

    @property
    def convolved(self) -> int:
        """K, the number of channels of the convolution: those of x, B and C."""
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
        return shapes

    @property
    def state_form(self) -> StateForm:
        inputs = StateArray("inputs", (max(self.d_conv - 1, 0), self.convolved))
        return inputs, StateArray("h", (self.heads, self.width, self.d_state))

    def init(self, rng: np.random.Generator) -> Params:
        fan_in = {"in_proj": self.d_model, "in_bias": self.d_model, "out_proj": self.inner, "out_bias": self.inner}
        fan_in |= {"conv_w": self.d_conv, "conv_bias": self.d_conv}
        params = {}
        for name, shape in self.shapes.items():
            if name in fan_in:
                params[name] = rng.uniform(-1, 1, shape) / np.sqrt(fan_in[name])
            elif name == "dt_bias":
                dt = np.exp(rng.uniform(np.log(self.dt_min), np.log(self.dt_max), shape))
                dt = np.maximum(dt, self.dt_init_floor)
                params[name] = dt + np.log(-np.expm1(-dt))  # softplus(b_Delta) = dt
            elif name == "A_log":
                params[name] = np.log(rng.uniform(self.A_min, self.A_max, shape))
            else:
                params[name] = np.ones(shape)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, Mamba2Saved]:
        """Returns (y (B, T, D), saved). The state is (the last d_conv - 1 inputs of the convolution (B, d_conv - 1, K),
        h (B, H, P, N))."""
        return self._run(params, trusted(self.prepare)(params), x, ctx.lengths, state)

    def prepare(self, params: Params) -> Prepared:
        """Returns A, and W_out with the norm's scale."""
        return Prepared(-bounded_exp(contiguous(params["A_log"])), params["out_proj"] * params["norm"])

    def step(self, params: Params, state: State, x_t: Array, prepared: Prepared | None = None) -> tuple[Array, State]:
        ready = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._run(params, ready, x_t[:, None], None, state)
        return y[:, 0], saved.state

    def _run(
        self, params: Params, ready: Prepared, x: Array, lengths: npt.NDArray[np.int64] | None, state: State
    ) -> tuple[Array, Mamba2Saved]:
        tail, h0 = (None, None) if state is None else state
        x = mask_padding(x, lengths)
        gate, raw, step = (dense(x, w, bias) for w, bias in self._projections(params))
        mixed, tail_after = raw, np.zeros((len(x), 0, self.convolved), raw.dtype, like=raw)
        if self.d_conv:
            taps, bias = params["conv_w"], params.get("conv_bias")
            mixed, tail_after = causal_conv(raw, taps, bias, tail, lengths=lengths, return_state=True)
        parts, delta = self._split(silu(mixed)), softplus(step)
        u, B, C = parts
        scanned, h, carries = ssd_scan(
            *(u, delta, ready.A, B, C, params["D"], h0),
            negative=self.negative,
            lengths=lengths,
            return_state=True,
            return_carries=True,
        )
        scanned = scanned.reshape(gate.shape)
        gated = swiglu(scanned, gate)
        normed, rstd = rms_norm(self._by_group(gated), self._ones(gated), eps=self.norm_eps)
        y = mask_padding(dense(normed.reshape(gate.shape), ready.w_out, params.get("out_bias")), lengths)
        saved = x, gate, raw, mixed, parts, step, delta, scanned, gated, normed, rstd
        return y, Mamba2Saved(*saved, carries, lengths, state, (tail_after, h))

    def backward(
        self, params: Params, saved: Mamba2Saved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        lengths, gate, (u, B, C) = saved.lengths, saved.gate, saved.parts
        tail, h0 = (None, None) if saved.state0 is None else saved.state0
        dtail, dh = (None, None) if dstate is None else dstate
        ready = trusted(self.prepare)(params)
        out = dense_backward(mask_padding(dy, lengths), saved.normed.reshape(gate.shape), ready.w_out)
        norm = rms_norm_backward(*(self._by_group(out.dx), self._by_group(saved.gated), self._ones(gate), saved.rstd))
        dscanned, dgate = swiglu_backward(norm.dx.reshape(gate.shape), saved.scanned, gate)
        scan = ssd_scan_backward(
            *(dscanned.reshape(u.shape), u, saved.delta, ready.A, B, C, params["D"], h0),
            dhT=dh,
            negative=self.negative,
            lengths=lengths,
            carries=saved.carries,
        )
        dmixed = self._join(scan.dx, scan.dB, scan.dC)
        draw, dtail0 = silu_backward(dmixed, saved.mixed), np.zeros_like(saved.state[0])
        dparams: Params = {"A_log": scan.dA * ready.A, "D": scan.dskip, "out_bias": out.dbias}
        dparams |= {"out_proj": out.dw * params["norm"], "norm": (out.dw * params["out_proj"]).sum(0)}
        if self.d_conv:
            conv = causal_conv_backward(draw, saved.raw, params["conv_w"], tail, dfinal=dtail, lengths=lengths)
            draw, dtail0 = conv.dx, conv.dstate
            dparams |= {"conv_w": conv.dw, "conv_bias": conv.dbias}
        dstep = softplus_backward(scan.ddelta, saved.step)
        of = [
            dense_backward(done, saved.x, w)
            for done, (w, _) in zip((dgate, draw, dstep), self._projections(params), strict=True)
        ]
        dparams["in_proj"] = np.concatenate([one.dw for one in of])
        dparams["in_bias"] = np.concatenate([one.dbias for one in of])
        dparams["dt_bias"] = of[2].dbias
        return of[0].dx + of[1].dx + of[2].dx, {name: dparams[name] for name in self.shapes}, (dtail0, scan.dh0)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions exp(Delta_t A), or 2 exp(Delta_t A) - 1 if `negative`, (B, T, H), real, along
        sequences: one factor for all states of a head. Zero beyond the lengths. Arguments are those of `forward`."""
        _, saved = self.forward(params, x, ctx, state)
        decay = np.exp(saved.delta * self.prepare(params).A)
        return mask_steps(2 * decay - 1 if self.negative else decay, ctx.lengths)

    def _projections(self, params: Params) -> list[tuple[Array, Array | None]]:
        """Returns weight and bias of the in-projection's parts: to z, to the convolution, and to Delta."""
        ends = (0, self.inner, self.inner + self.convolved, self.inner + self.convolved + self.heads)
        cuts = [slice(*ends[i : i + 2]) for i in range(3)]
        w, bias, shift = params["in_proj"], params.get("in_bias"), params["dt_bias"]
        biases = [None, None, shift] if bias is None else [bias[cuts[0]], bias[cuts[1]], bias[cuts[2]] + shift]
        return [(w[cut], one) for cut, one in zip(cuts, biases, strict=True)]

    def _split(self, convolved: Array) -> tuple[Array, Array, Array]:
        """Splits (B, T, K) into x (B, T, H, P), and B and C (B, T, G, N)."""
        shared = self.groups, self.d_state
        shapes = (self.heads, self.width), shared, shared
        parts = np.split(convolved, (self.inner, self.inner + self.groups * self.d_state), -1)
        x, B, C = (contiguous(part).reshape(*part.shape[:2], *shape) for part, shape in zip(parts, shapes, strict=True))
        return x, B, C

    def _join(self, *parts: Array) -> Array:
        """The inverse of `_split`."""
        return np.concatenate([part.reshape(*part.shape[:2], math.prod(part.shape[2:])) for part in parts], -1)

    def _by_group(self, x: Array) -> Array:
        """Returns (B, T, I) as (B, T G, I / G): the rows that are normalised."""
        return x.reshape(len(x), x.shape[1] * self.groups, self.inner // self.groups)

    def _ones(self, like: Array) -> Array:
        """The norm's own scale: that of the parameters is in W_out (`prepare`)."""
        return full((self.inner // self.groups,), 1, like.dtype, like)
