"""Mamba: a recurrence with input-dependent step size and directions (Gu and Dao 2023)."""

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
from rotrnn.ops.device import contiguous
from rotrnn.ops.pointwise import (
    mask_padding,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    swiglu,
    swiglu_backward,
)
from rotrnn.ops.selective import selective_scan, selective_scan_backward


class MambaSaved(NamedTuple):
    """Saved for backward: input, both halves of the in-projection, the convolution's output and its SiLU, the
    x-projection, Delta before and after its softplus, the scan's output and its gated form, all (B, T, ...); the scan's
    carries; lengths; the states before and after x."""

    x: Array
    value: Array
    gate: Array
    mixed: Array
    u: Array
    selected: Array
    raw: Array
    delta: Array
    scanned: Array
    gated: Array
    carries: Array | None
    lengths: npt.NDArray[np.int64] | None
    state0: State
    state: State


@dataclass(frozen=True)
class Mamba(Recurrent):
    """``y = W_out (scan(u, Delta, A, B, C) * SiLU(z))``, where Delta, B and C depend on the input u of the scan.

    ``[v, z] = W_in x``, ``u = SiLU(conv(v))``, ``[d, B, C] = W_x u``, ``Delta = softplus(W_Delta d + b_Delta)``,
    ``A = -exp(A_log)``, and `rotrnn.ops.selective_scan` with the skip D. There are I = `expand` * `d_model` channels,
    whose step sizes are computed from R = `dt_rank` numbers.

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
    window : int, optional
        L, to sum only the last L inputs in the scan (`selective_scan`).
    negative : bool
        Transitions ``2 exp(Delta A) - 1`` from -1 to 1, instead of ``exp(Delta A)`` (Grazzi et al. 2024, "Unlocking
        State-Tracking in Linear RNNs Through Negative Eigenvalues").

    Parameters (dict of float32): in_proj (2I, D), conv_w (I, K), conv_bias (I,), x_proj (R + 2S, I), dt_proj (I, R),
    dt_bias (I,), A_log (I, S), D (I,), out_proj (D, I); with `bias`, in_bias (2I,) and out_bias (D,).

    Initial values, as in the released code: weights and biases of projections and convolution uniform on
    +-1/sqrt(fan-in), ``A = -(1, ..., S)`` in each channel (S4D-real), D = 1.
    """

    about: ClassVar[str] = "selective state space: step size, input and output directions depend on the input"
    paper: ClassVar[str] = 'Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"A_log", "D"})  # without weight decay in the released code
    lanes: ClassVar[str] = "expand d_model (d_state + d_conv - 1)"

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
    window: int | None = None
    negative: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "expand", *(() if self.window is None else ("window",)))
        self.check_sizes("d_conv", least=0)
        if isinstance(self.dt_rank, str) and self.dt_rank != "auto":
            raise ValueError(f"Mamba: dt_rank={self.dt_rank!r}, expected a positive integer or 'auto'")
        if self.dt_rank != "auto":
            self.check_sizes("dt_rank")
        if not 0 < self.dt_min <= self.dt_max < math.inf:
            raise ValueError(
                f"Mamba: dt_min={self.dt_min!r}, dt_max={self.dt_max!r}, expected 0 < dt_min <= dt_max, finite"
            )
        for name in ("dt_scale", "dt_init_floor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Mamba: {name}={getattr(self, name)!r}, expected a positive number")
        if self.dt_init not in ("random", "constant"):
            raise ValueError(f"Mamba: dt_init={self.dt_init!r}, expected 'random' or 'constant'")

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

    @property
    def state_form(self) -> StateForm:
        inner, S = self.inner, self.d_state
        past = () if self.window is None else (self.window - 1,)
        return StateArray("inputs", (max(self.d_conv - 1, 0), inner)), StateArray("h", (*past, inner, S))

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
                dt = np.exp(rng.uniform(np.log(self.dt_min), np.log(self.dt_max), inner))
                dt = np.maximum(dt, self.dt_init_floor)
                params[name] = dt + np.log(-np.expm1(-dt))  # softplus(b_Delta) = dt
            elif name == "A_log":
                params[name] = np.tile(np.log(np.arange(1, S + 1)), (inner, 1))
            else:
                params[name] = np.ones(shape)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, MambaSaved]:
        """Returns (y (B, T, D), saved). The state is (the last K-1 inputs of the convolution (B, K-1, I), h (B, I, S));
        with a window, (B, L-1, I, S) instead of h, as in `selective_scan`."""
        return self._run(params, trusted(self.prepare)(params), x, ctx.lengths, state)

    def prepare(self, params: Params) -> Array:
        """Returns A (I, S)."""
        A: Array = -bounded_exp(contiguous(params["A_log"]))
        return A

    def step(self, params: Params, state: State, x_t: Array, prepared: Array | None = None) -> tuple[Array, State]:
        A = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._run(params, A, x_t[:, None], None, state)
        return y[:, 0], saved.state

    def _run(
        self, params: Params, A: Array, x: Array, lengths: npt.NDArray[np.int64] | None, state: State
    ) -> tuple[Array, MambaSaved]:
        tail, h0 = (None, None) if state is None else state
        x = mask_padding(x, lengths)
        (w_value, w_gate), (b_value, b_gate) = self._halves(params)
        value, gate = dense(x, w_value, b_value), dense(x, w_gate, b_gate)
        mixed, tail_after = value, np.zeros((len(x), 0, self.inner), value.dtype, like=value)
        if self.d_conv:
            taps, bias = params["conv_w"], params.get("conv_bias")
            mixed, tail_after = causal_conv(value, taps, bias, tail, lengths=lengths, return_state=True)
        u = silu(mixed)
        selected = dense(u, params["x_proj"])
        d, B, C = self._parts(selected)
        raw = dense(d, params["dt_proj"], params["dt_bias"])
        delta = softplus(raw)
        scanned, h, *kept = selective_scan(
            *(u, delta, A, B, C, params["D"], h0),
            window=self.window,
            negative=self.negative,
            lengths=lengths,
            return_state=True,
            return_carries=self.window is None,
        )
        gated = swiglu(scanned, gate)
        y = mask_padding(dense(gated, params["out_proj"], params.get("out_bias")), lengths)
        carries, after = kept[0] if kept else None, (tail_after, h)
        arrays = x, value, gate, mixed, u, selected, raw, delta, scanned, gated
        return y, MambaSaved(*arrays, carries, lengths, state, after)

    def backward(
        self, params: Params, saved: MambaSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        x, value, gate, mixed, u, selected, raw, delta, scanned, gated, carries, lengths, state0, _ = saved
        tail, h0 = (None, None) if state0 is None else state0
        dtail, dh = (None, None) if dstate is None else dstate
        A, (d, B, C) = -bounded_exp(contiguous(params["A_log"])), self._parts(selected)
        out = dense_backward(mask_padding(dy, lengths), gated, params["out_proj"])
        dscanned, dgate = swiglu_backward(out.dx, scanned, gate)
        scan = selective_scan_backward(
            *(dscanned, u, delta, A, B, C, params["D"], h0),
            dhT=dh,
            window=self.window,
            negative=self.negative,
            lengths=lengths,
            carries=carries,
        )
        step = dense_backward(softplus_backward(scan.ddelta, raw), d, params["dt_proj"])
        selection = dense_backward(np.concatenate([step.dx, scan.dB, scan.dC], -1), u, params["x_proj"])
        du = np.add(scan.dx, selection.dx, out=selection.dx)
        dvalue, dtail0 = silu_backward(du, mixed), np.zeros_like(saved.state[0])
        dparams: Params = {"x_proj": selection.dw, "dt_proj": step.dw, "dt_bias": step.dbias}
        dparams |= {"A_log": scan.dA * A, "D": scan.dskip, "out_proj": out.dw, "out_bias": out.dbias}
        if self.d_conv:
            conv = causal_conv_backward(dvalue, value, params["conv_w"], tail, dfinal=dtail, lengths=lengths)
            dvalue, dtail0 = conv.dx, conv.dstate
            dparams |= {"conv_w": conv.dw, "conv_bias": conv.dbias}
        (w_value, w_gate), _ = self._halves(params)
        of_value = dense_backward(dvalue, x, w_value)
        of_gate = dense_backward(dgate, x, w_gate)
        dparams["in_proj"] = np.concatenate([of_value.dw, of_gate.dw])
        dparams["in_bias"] = np.concatenate([of_value.dbias, of_gate.dbias])
        dx = np.add(of_value.dx, of_gate.dx, out=of_value.dx)
        return dx, {name: dparams[name] for name in self.shapes}, (dtail0, scan.dh0)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the transitions exp(Delta_t A), or 2 exp(Delta_t A) - 1 if `negative`, (B, T, I, S), real, along
        sequences: each state's factor per step. Zero beyond the lengths. Arguments are those of `forward`."""
        _, saved = self.forward(params, x, ctx, state)
        decay = np.exp(saved.delta[..., None] * self.prepare(params))
        return mask_steps(2 * decay - 1 if self.negative else decay, ctx.lengths)

    def _halves(self, params: Params) -> tuple[Array, tuple[Array | None, Array | None]]:
        """Returns the in-projections to v and to z: weights (2, I, D), and biases (I,)."""
        bias = params.get("in_bias")
        w = params["in_proj"].reshape(2, self.inner, self.d_model)
        return w, (None, None) if bias is None else (bias[: self.inner], bias[self.inner :])

    def _parts(self, selected: Array) -> list[Array]:
        """Splits the x-projection into d (B, T, R), and B and C (B, T, S)."""
        R, S = self.rank, self.d_state
        return [contiguous(part) for part in np.split(selected, (R, R + S), -1)]
