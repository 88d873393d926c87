"""The instructions of programs (`rotrnn.nn.program`): each is a public op with its adjoint, its state, and its shapes.

Shapes are given for a step: x (I,) is an array (B, T, I). Parameters have all their axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn._support.text import an
from rotrnn.devices.device import beside, contiguous, einsum, empty, full
from rotrnn.devices.recording import RecordedLengths
from rotrnn.nn.layer import BUFFERS, Array, Context, Recurrent, StateArray, form_leaves, state_leaves, trusted
from rotrnn.nn.listing import Listing, Unlisted
from rotrnn.nn.program import Call, Grown, Instruction, Line, Shape
from rotrnn.nn.scaling import bounded_exp
from rotrnn.ops.attention import attention, attention_backward, rotary, rotary_backward
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.conv import causal_conv, causal_conv_backward
from rotrnn.ops.delta import delta_rule, delta_rule_backward
from rotrnn.ops.dense import dense, dense_backward, matmul
from rotrnn.ops.history_attention import history_attention, history_attention_backward
from rotrnn.ops.hold import QUADRATURE, hold_scan, hold_scan_backward
from rotrnn.ops.linear_layer import complex_of
from rotrnn.ops.memory import FORMS, history_read, history_read_backward, history_weights_backward, wrope_angle
from rotrnn.ops.mlstm import mlstm, mlstm_backward
from rotrnn.ops.oscillator import oscillator_scan, oscillator_scan_backward
from rotrnn.ops.permuted import PermutedScan as Permuted
from rotrnn.ops.permuted import permuted_scan, permuted_scan_backward
from rotrnn.ops.pointwise import (
    decay_gain,
    decay_gain_backward,
    exp,
    exp_backward,
    gelu,
    gelu_backward,
    glu,
    glu_backward,
    layer_norm,
    layer_norm_backward,
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
    tanh,
    tanh_backward,
)
from rotrnn.ops.rnn import gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.ops.selective import selective_scan, selective_scan_backward
from rotrnn.ops.slstm import slstm, slstm_backward
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward
from rotrnn.ops.trapezoid import trapezoid_scan, trapezoid_scan_backward
from rotrnn.ops.turn import Turned, turn, turn_backward
from rotrnn.ops.window import latest, latest_backward

# ---- maps of a step ----


@dataclass(frozen=True)
class Dense(Instruction):
    """``y = w x + b``, x (I,), w (O, I), b (O,) or None."""

    reads = ("x",)
    form = "I; O I; O -> O"
    parameters = ("w", "b")

    def forward(self, call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
        return dense(x, w, b)

    def backward(self, call: Call, dy: Array, x: Array, w: Array, b: Array | None = None) -> tuple[Any, ...]:
        grads = dense_backward(dy, x, w)
        return grads.dx, grads.dw, grads.dbias


@dataclass(frozen=True)
class BlockDense(Instruction):
    """``y = w x + b`` by H blocks: x (H I,), w (H, O, I), b (H O,) or None; block h of y comes from block h of x."""

    reads = ("x",)
    parameters = ("w", "b")

    def shapes(self, x: Any, w: Any, b: Any = None) -> tuple[Shape, ...]:
        if len(w) != 3 or x != (w[0] * w[2],) or b not in (None, (w[0] * w[1],)):
            raise ValueError("expected x (H I,), w (H, O, I) and b (H O,)")
        return ((w[0] * w[1],),)

    def forward(self, call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
        biases = [None] * len(w) if b is None else b.reshape(w.shape[:2])
        parts = [dense(part, *of) for part, *of in zip(_blocks(x, w.shape[2]), w, biases, strict=True)]
        return np.concatenate(parts, -1)

    def backward(self, call: Call, dy: Array, x: Array, w: Array, b: Array | None = None) -> tuple[Any, ...]:
        grads = [dense_backward(*of) for of in zip(_blocks(dy, w.shape[1]), _blocks(x, w.shape[2]), w, strict=True)]
        dw = np.concatenate([one.dw[None] for one in grads])
        return np.concatenate([one.dx for one in grads], -1), dw, np.concatenate([one.dbias for one in grads])


def _blocks(x: Array, width: int) -> list[Array]:
    """Returns the blocks of the last axis, each of the given number of channels."""
    return [contiguous(x[..., at : at + width]) for at in range(0, x.shape[-1], width)]


@dataclass(frozen=True)
class Skip(Instruction):
    """``y = d * x + b + z``, by channels: x (I,), d (I,), b (I,) and z (I,) or None."""

    reads = ("x",)
    form = "I; I; I; I -> I"
    parameters = ("d", "b")

    def forward(self, call: Call, x: Array, d: Array, b: Array | None = None, z: Array | None = None) -> Array:
        y: Array = d * x
        for one in (b, z):
            if one is not None:
                y = np.add(y, one, out=y if one.dtype == y.dtype else None)
        return y

    def backward(
        self, call: Call, dy: Array, x: Array, d: Array, b: Array | None = None, z: None = None
    ) -> tuple[Any, ...]:
        db = None if b is None else dy.sum((0, 1), dtype=np.float64).astype(dy.dtype)
        return d * dy, _over_steps(dy, x), db, dy

    def emit(self, to: Listing, line: Line, x: int, d: Array, b: Array | None = None, z: int | None = None) -> Any:
        if b is None:
            return to("Skip", x, d, *(() if z is None else (z,)))
        y = to("BatchNorm", x, d, np.zeros_like(d), b)
        return y if z is None else to("Sum", z, y)


PARTIAL = 64
"""Terms of a partial sum of `_over_steps`."""


def _over_steps(dy: Array, x: Array) -> Array:
    """Returns the sums (I,) of dy * x, both (B, T, I), over sequences and steps: partial sums in their dtype, added up
    in double precision."""
    rows, width = dy.shape[0] * dy.shape[1], dy.shape[2]
    whole, (dy, x) = rows // PARTIAL * PARTIAL, (one.reshape(rows, width) for one in (dy, x))
    total = einsum("ti,ti->i", dy[whole:], x[whole:])
    if whole:
        parts = (one[:whole].reshape(-1, PARTIAL, width) for one in (dy, x))
        total = total + einsum("kti,kti->ki", *parts).sum(0, dtype=np.float64)
    return total.astype(dy.dtype, copy=False)


@dataclass(frozen=True)
class RMSNorm(Instruction):
    """``y = scale x / sqrt(mean x^2 + eps)`` over the last axis: x (..., W), scale (W,) or None for `gain`."""

    eps: float = 1e-5
    gain: float = 1.0
    reads = ("x",)
    form = "... W; W -> ... W"
    parameters = ("scale",)

    def forward(self, call: Call, x: Array, scale: Array | None = None) -> Array:
        y, call.kept = rms_norm(_rows(x), self._scale(x, scale), eps=self.eps)
        return y.reshape(x.shape)

    def backward(self, call: Call, dy: Array, x: Array, scale: Array | None = None) -> Any:
        grads = rms_norm_backward(_rows(dy), _rows(x), self._scale(x, scale), call.kept)
        dx = grads.dx.reshape(x.shape)
        return dx, grads.dscale

    def _scale(self, x: Array, scale: Array | None) -> Array:
        return full(x.shape[-1:], self.gain, x.dtype, x) if scale is None else scale


@dataclass(frozen=True)
class LayerNorm(Instruction):
    """``y = (x - mean x) / sqrt(var x + eps)`` over the last axis: x (..., W)."""

    eps: float = 1e-5
    reads = ("x",)
    form = "... W -> ... W"

    def forward(self, call: Call, x: Array) -> Array:
        plain = (full(x.shape[-1:], value, x.dtype, x) for value in (1, 0))
        y, *statistics = layer_norm(_rows(x), *plain, eps=self.eps)
        call.kept = tuple(statistics)
        return y.reshape(x.shape)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        plain = full(x.shape[-1:], 1, x.dtype, x)
        return layer_norm_backward(_rows(dy), _rows(x), plain, *call.kept).dx.reshape(x.shape)


def _rows(x: Array) -> Array:
    """Returns (B, T, ..., W) as rows (B, rows, W)."""
    return x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])


# ---- functions of numbers ----


class Function(Instruction):
    """A function ``y = f(x)`` of each number: its op and the adjoint, which takes y if it `reads` y."""

    of: ClassVar[tuple[Callable[..., Array], Callable[..., Array]]]
    reads = ("x",)

    def forward(self, call: Call, x: Array) -> Array:
        return self.of[0](x)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return self.of[1](dy, call.y if self.reads == ("y",) else x)


@dataclass(frozen=True)
class SiLU(Function):
    """``y = x s(x)``, s the sigmoid."""

    of = silu, silu_backward


@dataclass(frozen=True)
class GELU(Instruction):
    """``y = gelu(x)``, in its tanh form."""

    reads = ("x",)
    light = True

    def forward(self, call: Call, x: Array) -> Array:
        return gelu(x, lengths=call.lengths)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return gelu_backward(dy, x, lengths=call.lengths)


@dataclass(frozen=True)
class Sigmoid(Function):
    """``y = 1 / (1 + e^{-x})``."""

    of = sigmoid, sigmoid_backward
    reads = ("y",)
    foldable = True


@dataclass(frozen=True)
class LogSigmoid(Instruction):
    """``y = -softplus(-x) = log s(x)``."""

    reads = ("x",)

    def forward(self, call: Call, x: Array) -> Array:
        return -softplus(-x)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return softplus_backward(dy, -x)


@dataclass(frozen=True)
class Tanh(Function):
    """``y = tanh(x)``."""

    of = tanh, tanh_backward
    reads = ("y",)
    foldable = True


@dataclass(frozen=True)
class Softplus(Function):
    """``y = log(1 + e^x)``."""

    of = softplus, softplus_backward
    foldable = True


@dataclass(frozen=True)
class Softmax(Instruction):
    """``y_k = e^{x_k} / sum_l e^{x_l}`` over the last axis: x (..., K)."""

    reads = ("y",)

    def forward(self, call: Call, x: Array) -> Array:
        e = exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return call.y * (dy - (dy * call.y).sum(-1, keepdims=True))


@dataclass(frozen=True)
class Polar(Instruction):
    """``y = (r cos phi, r sin phi)``, complex numbers of sizes r and angles phi (..., N) by their parts, (..., 2, N),
    or by pairs, (..., N, 2)."""

    pairs: bool = False
    reads = ("r", "phi")
    foldable = True
    form = "... N; ... N -> ... N"

    def shapes(self, r: Any, phi: Any) -> tuple[Shape, ...]:
        ((*more, N),) = super().shapes(r, phi)
        return ((*more, N, 2) if self.pairs else (*more, 2, N),)

    def forward(self, call: Call, r: Array, phi: Array) -> Array:
        return np.stack((r * np.cos(phi), r * np.sin(phi)), self._axis)

    def backward(self, call: Call, dy: Array, r: Array, phi: Array) -> tuple[Array, Array]:
        cos, sin, (re, im) = np.cos(phi), np.sin(phi), np.moveaxis(dy, self._axis, 0)
        return re * cos + im * sin, r * (im * cos - re * sin)

    @property
    def _axis(self) -> int:
        return -1 if self.pairs else -2


@dataclass(frozen=True)
class Affine(Instruction):
    """``y = scale x + shift``, two numbers."""

    scale: float
    shift: float = 0
    light = True
    foldable = True

    def forward(self, call: Call, x: Array) -> Array:
        y: Array = self.scale * x
        return np.add(y, self.shift, out=y) if self.shift else y

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return self.scale * dy


@dataclass(frozen=True)
class Frequencies(Instruction):
    """``y_i = x_i base^{-i/P}``, i from 0 to P - 1: x (..., P), as the frequencies of rotary positions fall."""

    base: float
    light = True
    form = "... P -> ... P"

    def forward(self, call: Call, x: Array) -> Array:
        P = x.shape[-1]
        return x * beside((self.base ** (-np.arange(P) / P)).astype(x.dtype), x)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return self.forward(call, dy)


@dataclass(frozen=True)
class Decay(Instruction):
    """``y = e^{x r}``, x (H, ...), r (H,), or r = `rate`."""

    rate: float = -1
    reads = ("x", "y")
    form = "H ...; H -> H ..."
    parameters = ("r",)

    def forward(self, call: Call, x: Array, r: Array | None = None) -> Array:
        return exp(x * self._rates(x, r))

    def backward(self, call: Call, dy: Array, x: Array, r: Array | None = None) -> Any:
        dexponent = exp_backward(dy, call.y)
        inner = "k" * (x.ndim - 3)
        dr = None if r is None else einsum(f"bth{inner},bth{inner}->h", dexponent, x)
        return dexponent * self._rates(x, r), dr

    def _rates(self, x: Array, r: Array | None) -> Any:
        return self.rate if r is None else r.reshape(-1, *[1] * (x.ndim - 3))


@dataclass(frozen=True)
class LogDecay(Instruction):
    """``y = -delta max(f(x), least)``, the logarithm of a transition: delta and x (H,); f is softplus, or of the
    "rational" form ``1 + x`` for x >= 0 and ``1 / (1 - x)`` below."""

    rate: str = "softplus"
    least: float = 0.0
    reads = ("delta", "x")
    form = "H; H -> H"

    def forward(self, call: Call, delta: Array, x: Array) -> Array:
        return -delta * np.maximum(self._rate(x), self.least)

    def backward(self, call: Call, dy: Array, delta: Array, x: Array) -> tuple[Array, Array]:
        rate = self._rate(x)
        drate = np.where(rate > self.least, -delta * dy, dy.dtype.type(0))
        if self.rate == "softplus":
            return -np.maximum(rate, self.least) * dy, softplus_backward(drate, x)
        below = np.minimum(rate, 1)  # the slope is 1, or 1 / (1 - x)^2
        return -np.maximum(rate, self.least) * dy, drate * below * below

    def _rate(self, x: Array) -> Array:
        if self.rate == "softplus":
            return softplus(x)
        return np.where(x < 0, 1 / (1 + abs(x)), 1 + x)


@dataclass(frozen=True)
class StepAngles(Instruction):
    """``y = pi tanh(x) delta``, angles of each pair and head: x (A,), delta (H,)."""

    reads = ("x", "delta")
    form = "A; H -> H A"

    def forward(self, call: Call, x: Array, delta: Array) -> Array:
        return delta[..., None] * (tanh(x) * x.dtype.type(np.pi))[:, :, None]

    def backward(self, call: Call, dy: Array, x: Array, delta: Array) -> tuple[Array, Array]:
        turned, pi = tanh(x), x.dtype.type(np.pi)
        dturned = pi * (dy * delta[..., None]).sum(2)
        return tanh_backward(dturned, turned), pi * (dy * turned[:, :, None]).sum(-1)


@dataclass(frozen=True)
class LogRadius(Instruction):
    """``y = log(least + (1 - least) e^{-rate s(x)})``, s the sigmoid: the logarithm of a transition from `least` to
    1."""

    least: float
    rate: float
    reads = ("x",)

    def forward(self, call: Call, x: Array) -> Array:
        return np.log1p((1 - self.least) * np.expm1(-self.rate * sigmoid(x)))

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        s = sigmoid(x)
        share = (1 - self.least) * exp(-self.rate * s)
        return sigmoid_backward(-self.rate * share / (self.least + share) * dy, s)


@dataclass(frozen=True)
class SignedAngles(Instruction):
    """``y_h = +-(least + (most - least) s(b_h + tanh x_h))``, s the sigmoid, + for heads 0, 2, ...: x and b (H,)."""

    least: float
    most: float
    reads = ("x",)
    form = "H; H -> H"
    parameters = ("b",)

    def forward(self, call: Call, x: Array, b: Array) -> Array:
        return self._signs(x) * (self.least + (self.most - self.least) * sigmoid(b + tanh(x)))

    def backward(self, call: Call, dy: Array, x: Array, b: Array) -> tuple[Array, Array]:
        turned = tanh(x)
        dsum = sigmoid_backward((self.most - self.least) * self._signs(x) * dy, sigmoid(b + turned))
        return tanh_backward(dsum, turned), dsum.sum((0, 1), dtype=np.float64).astype(dy.dtype)

    def _signs(self, x: Array) -> Array:
        return beside((1 - 2 * (np.arange(x.shape[-1]) % 2)).astype(x.dtype), x)


@dataclass(frozen=True)
class OfHeads(Instruction):
    """``y_h = x_g + b_h``, g the group of head h: x (G, N), b (H, N), H a multiple of G."""

    parameters = ("b",)

    def shapes(self, x: Any, b: Any) -> tuple[Shape, ...]:
        if len(x) != 2 or len(b) != 2 or x[1] != b[1] or b[0] % x[0]:
            raise ValueError("expected x (G, N) and b (H, N), H a multiple of G")
        return (b,)

    def forward(self, call: Call, x: Array, b: Array) -> Array:
        size, T, G, N = x.shape
        y = empty((size, T, G, len(b) // G, N), x.dtype, x)
        return np.add(x[:, :, :, None], b.reshape(y.shape[2:]), out=y).reshape(size, T, *b.shape)

    def backward(self, call: Call, dy: Array, x: Array, b: Array) -> tuple[Array, Array]:
        G, N = call.shapes[0]
        dx: Array = dy.reshape(*dy.shape[:2], G, len(b) // G, N).sum(3)
        return dx, dy.sum((0, 1), dtype=np.float64).astype(dy.dtype)


@dataclass(frozen=True)
class Spread(Instruction):
    """``y_h = x_g``, g the group of head h: x (G, N), y (`heads`, N), their number a multiple of G."""

    heads: int
    light = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        if len(x) != 2 or self.heads % x[0]:
            raise ValueError(f"expected x (G, N), G a divisor of {self.heads}")
        return ((self.heads, x[1]),)

    def forward(self, call: Call, x: Array) -> Array:
        size, T, G, N = x.shape
        y = empty((size, T, G, self.heads // G, N), x.dtype, x)
        y[...] = x[:, :, :, None]
        return y.reshape(size, T, self.heads, N)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        G, N = call.shapes[0]
        return dy.reshape(*dy.shape[:2], G, self.heads // G, N).sum(3)

    def emit(self, to: Listing, line: Line, x: int) -> Any:
        return to("OfHeads", x, np.zeros(self.shapes(line.shapes[0])[0]), shapes=(line.shapes[0], None))


@dataclass(frozen=True)
class DecayGain(Instruction):
    """``y = sqrt(1 - e^{2x})``, and 1 at the first step of a sequence: the gain of an input beside a decay e^x, which
    keeps the variance of a state that begins with its first input (`rotrnn.ops.decay_gain`). Its state is the number of
    steps so far."""

    reads = ("x",)

    def state(self, x: Any) -> tuple[StateArray, ...]:
        return (StateArray("places", (), "integer"),)

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        places = state[0]
        if not name.startswith("d") and (places < 0).any():
            raise ValueError(f"{args.op}: {name}.places is {places}, expected the number of steps so far")

    def forward(self, call: Call, x: Array) -> Array:
        steps = np.full(len(x), x.shape[1]) if call.lengths is None else call.lengths
        call.after = (steps if call.state is None else call.state[0] + steps,)
        y = decay_gain(x, lengths=call.lengths)
        self._set_first(call, y, 1)
        return y

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        call.dbefore = (np.zeros(len(x)),)
        dx = decay_gain_backward(dy, x, lengths=call.lengths)
        self._set_first(call, dx, 0)
        return dx

    def _set_first(self, call: Call, y: Array, value: float) -> None:
        """Sets the first step of each sequence, if it is in this call."""
        if call.state is None:
            y[:, :1] = value
            return
        for b in np.flatnonzero(call.state[0] == 0):
            y[b, :1] = value


@dataclass(frozen=True)
class Product(Instruction):
    """``y = x * z``."""

    reads = ("x", "z")
    light = True
    foldable = True
    form = "...; ... -> ..."

    def forward(self, call: Call, x: Array, z: Array) -> Array:
        return x * z

    def backward(self, call: Call, dy: Array, x: Array, z: Array) -> tuple[Array, Array]:
        return dy * z, dy * x


@dataclass(frozen=True)
class Sum(Instruction):
    """``y = x + z``."""

    form = "...; ... -> ..."
    foldable = True

    def forward(self, call: Call, x: Array, z: Array) -> Array:
        return x + z

    def backward(self, call: Call, dy: Array, x: Array, z: Array) -> tuple[Array, Array]:
        return dy, dy


@dataclass(frozen=True)
class Bonus(Instruction):
    """``y = (q . k) v``, in each head: q and k (H, K), v (H, V)."""

    reads = ("q", "k", "v")
    form = "H K; H K; H V -> H V"

    def forward(self, call: Call, q: Array, k: Array, v: Array) -> Array:
        return (q * k).sum(-1, keepdims=True) * v

    def backward(self, call: Call, dy: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        size, dsize = (q * k).sum(-1, keepdims=True), (dy * v).sum(-1, keepdims=True)
        return dsize * k, dsize * q, size * dy


@dataclass(frozen=True)
class GLU(Instruction):
    """``y = x s(gate)``, s the sigmoid."""

    of = glu, glu_backward
    reads = ("x", "gate")
    form = "...; ... -> ..."

    def forward(self, call: Call, x: Array, gate: Array) -> Array:
        return self.of[0](x, gate)

    def backward(self, call: Call, dy: Array, x: Array, gate: Array) -> tuple[Array, Array]:
        return tuple(self.of[1](dy, x, gate))  # type: ignore[return-value]


@dataclass(frozen=True)
class SwiGLU(GLU):
    """``y = x SiLU(gate)``."""

    of = swiglu, swiglu_backward


@dataclass(frozen=True)
class RankGate(Instruction):
    """``y = sum_r u_r * x_r * SiLU(g_r * z)``, x (R, H, P), z (H P,), g and u (H, R, P)."""

    reads = ("x", "z")
    parameters = ("g", "u")

    def shapes(self, x: Any, z: Any, g: Any, u: Any) -> tuple[Shape, ...]:
        R, H, P = x
        if z != (H * P,) or (g, u) != 2 * ((H, R, P),):
            raise ValueError("expected x (R, H, P), z (H P), g and u (H, R, P)")
        return (z,)

    def forward(self, call: Call, x: Array, z: Array, g: Array, u: Array) -> Array:
        y: Array = np.zeros_like(z)
        for part, gate, _, gain in _of_ranks(x, z, g, u):
            y += gain * swiglu(part, gate)
        return y

    def backward(self, call: Call, dy: Array, x: Array, z: Array, g: Array, u: Array) -> tuple[Array, ...]:
        dz, dx, dg, du = np.zeros_like(z), np.empty_like(x), np.empty_like(g), np.empty_like(u)
        for rank, (part, gate, to_gate, gain) in enumerate(_of_ranks(x, z, g, u)):
            du[:, rank] = (dy * swiglu(part, gate)).sum((0, 1), dtype=np.float64).reshape(du[:, rank].shape)
            dpart, dgate = swiglu_backward(gain * dy, part, gate)
            dg[:, rank] = (dgate * z).sum((0, 1), dtype=np.float64).reshape(dg[:, rank].shape)
            dx[:, :, rank] = dpart.reshape(dx[:, :, rank].shape)
            dz += to_gate * dgate
        return dx, dz, dg, du

    def emit(self, to: Listing, line: Line, x: int, z: int, g: Array, u: Array) -> Any:
        R, H, P = line.shapes[0]  # type: ignore[misc]
        parts = to("Split", to("Reshape", x, shape=(R, H * P)), outputs=R, sizes=(1,) * R, axis=-2)
        y = None
        for rank, part in enumerate(parts):
            flat, gate = to("Reshape", part, shape=(H * P,)), to("Skip", z, g[:, rank].ravel())
            one = to("Skip", to("SwiGLU", flat, gate), u[:, rank].ravel())
            y = one if y is None else to("Sum", y, one)
        return y


def _of_ranks(x: Array, z: Array, g: Array, u: Array) -> Iterator[tuple[Array, ...]]:
    """Yields for each rank its x and gate (B, T, H P), and its g and u (H P,)."""
    for rank in range(x.shape[2]):
        to_gate, gain = g[:, rank].reshape(-1), u[:, rank].reshape(-1)
        yield x[:, :, rank].reshape(z.shape), to_gate * z, to_gate, gain


# ---- layouts ----


@dataclass(frozen=True)
class Split(Instruction):
    """Parts of x along an axis, of the given sizes."""

    sizes: tuple[int, ...]
    axis: int = -1
    light = True
    foldable = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        if not -len(x) <= self.axis < 0 or min(self.sizes, default=0) < 1 or x[self.axis] != sum(self.sizes):
            raise ValueError(f"expected sizes {self.sizes} that add up to axis {self.axis}, counted from the end")
        at = len(x) + self.axis
        return tuple((*x[:at], size, *x[at + 1 :]) for size in self.sizes)

    def forward(self, call: Call, x: Array) -> tuple[Array, ...]:
        return tuple(contiguous(x[cut]) for cut in _cuts(self.sizes, self.axis))

    def backward(self, call: Call, dy: tuple[Array | None, ...], x: Array) -> Array:
        known = next(one for one in dy if one is not None)
        shapes = [[*known.shape] for _ in self.sizes]
        for shape, size in zip(shapes, self.sizes, strict=True):
            shape[self.axis] = size
        parts = (
            np.zeros(shape, known.dtype, like=known) if one is None else one
            for one, shape in zip(dy, shapes, strict=True)
        )
        return np.concatenate([*parts], self.axis)


@cache
def _cuts(sizes: tuple[int, ...], axis: int) -> tuple[tuple[Any, ...], ...]:
    """Returns the indices of parts along an axis that is counted from the end."""
    ends, whole = [0, *accumulate(sizes)], (slice(None),) * (-axis - 1)
    return tuple((..., slice(*ends[i : i + 2]), *whole) for i in range(len(sizes)))


@dataclass(frozen=True)
class Reshape(Instruction):
    """x as an array of another `shape`."""

    shape: tuple[int, ...]
    light = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        if math.prod(x) != math.prod(self.shape):
            raise ValueError(f"expected {math.prod(self.shape)} numbers")
        return (self.shape,)

    def forward(self, call: Call, x: Array) -> Array:
        return x.reshape(*x.shape[:2], *self.shape)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return dy.reshape(*dy.shape[:2], *call.shapes[0])


@dataclass(frozen=True)
class Concat(Instruction):
    """Arrays x (I_k,) one after the other."""

    light = True

    def shapes(self, *x: Any) -> tuple[Shape, ...]:
        return ((sum(size for (size,) in x),),)

    def forward(self, call: Call, *x: Array) -> Array:
        y: Array = np.concatenate(x, -1)
        return y

    def backward(self, call: Call, dy: Array, *x: None) -> tuple[Array, ...]:
        return tuple(contiguous(dy[cut]) for cut in _cuts(tuple(size for (size,) in call.shapes), -1))


# ---- of parameters alone ----


@dataclass(frozen=True)
class Rows(Instruction):
    """Arrays x, each as `sizes` of rows (`columns`,), or of numbers for 0 columns, one after the other; zeros for an
    array that is not given."""

    sizes: tuple[int, ...]
    columns: int = 0
    foldable = True

    def shapes(self, *x: Any) -> tuple[Shape, ...]:
        wide = [None if one is None else math.prod(one) // (self.columns or 1) for one in x]
        if (
            len(x) != len(self.sizes)
            or not any(wide)
            or any(one not in (None, size) for one, size in zip(wide, self.sizes, strict=True))
        ):
            raise ValueError(f"expected arrays of {self.sizes} rows, with {self.columns} columns")
        return ((sum(self.sizes), *self._row),)

    def forward(self, call: Call, *x: Array | None) -> Array:
        like = next(one for one in x if one is not None)
        y: Array = np.concatenate(
            [
                np.zeros((size, *self._row), like.dtype, like=like) if one is None else one.reshape(size, *self._row)
                for one, size in zip(x, self.sizes, strict=True)
            ]
        )
        return y

    def backward(self, call: Call, dy: Array, *x: Array | None) -> tuple[Array | None, ...]:
        parts = np.split(dy, [*accumulate(self.sizes[:-1])])
        return tuple(None if one is None else part.reshape(one.shape) for one, part in zip(x, parts, strict=True))

    @property
    def _row(self) -> Shape:
        return (self.columns,) if self.columns else ()


@dataclass(frozen=True)
class MatMul(Instruction):
    """``y = w v``, matrices w (O, I) and v (I, N)."""

    form = "O I; I N -> O N"
    parameters = ("w", "v")
    foldable = True

    def forward(self, call: Call, w: Array, v: Array) -> Array:
        return matmul(w, v)

    def backward(self, call: Call, dy: Array, w: Array, v: Array) -> tuple[Array, Array]:
        return matmul(dy, contiguous(v.T)), matmul(contiguous(w.T), dy)


def rates(A_log: Array) -> Array:
    """Returns ``A = -exp(A_log)``."""
    return -bounded_exp(contiguous(A_log))


@dataclass(frozen=True)
class Rates(Instruction):
    """``A = -exp(A_log)``."""

    reads = ("y",)
    parameters = ("A_log",)
    foldable = True

    def forward(self, call: Call, A_log: Array) -> Array:
        return rates(A_log)

    def backward(self, call: Call, dy: Array, A_log: Array) -> Array:
        return dy * call.y


@dataclass(frozen=True)
class Repeat(Instruction):
    """Each number of x (I,) `times` times, one after the other."""

    times: int
    parameters = ("x",)
    foldable = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        return ((self.times * x[0],),)

    def forward(self, call: Call, x: Array) -> Array:
        return np.repeat(x, self.times)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return dy.reshape(-1, self.times).sum(-1)


@dataclass(frozen=True)
class ByRank(Instruction):
    """x (H, R, N) as (R H, N): its rows, one rank after the other."""

    parameters = ("x",)
    foldable = True

    def shapes(self, x: Any) -> tuple[Shape, ...]:
        H, R, N = x
        return ((R * H, N),)

    def forward(self, call: Call, x: Array) -> Array:
        return x.swapaxes(0, 1).reshape(-1, x.shape[2])

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return dy.reshape(x.shape[1], x.shape[0], x.shape[2]).swapaxes(0, 1)


@dataclass(frozen=True)
class Columns(Instruction):
    """``y = w * scale``, w (O, I) with its columns multiplied by scale (I,)."""

    form = "O I; I -> O I"
    parameters = ("w", "scale")
    foldable = True

    def forward(self, call: Call, w: Array, scale: Array) -> Array:
        return w * scale

    def backward(self, call: Call, dy: Array, w: Array, scale: Array) -> tuple[Array, Array]:
        return dy * scale, (dy * w).sum(0)


@dataclass(frozen=True)
class Oscillators(Instruction):
    """The matrices m (2, 2, N) and the input weights f (2, N) of LinOSS's oscillators, from A, dt and, with "damped", G
    (N,): `rotrnn.LinOSS` has the equations. At uneven times (`Context.dt`) they are m (B, T, 2, 2, N) and f (B, T, 2,
    N)."""

    method: str
    step_scale: float = 1.0
    parameters = ("A", "dt", "G")
    foldable = True

    def shapes(self, A: Any, dt: Any, G: Any = None) -> tuple[Shape, ...]:
        if len(A) != 1 or dt != A or (A if self.method == "damped" else None) != G:
            raise ValueError("expected A and dt (N,), and G (N,) of 'damped' alone")
        return (2, 2, *A), (2, *A)

    def forward(self, call: Call, A: Array, dt: Array, G: Array | None = None) -> tuple[Array, Array]:
        call.kept = call.ctx.dt
        return self.matrices(A, dt, G, call.kept)

    def matrices(self, A: Array, dt: Array, G: Array | None = None, at: Array | None = None) -> tuple[Array, Array]:
        """Returns m and f, with intervals `at` (B, T) or at even times."""
        s, a, _, S = self._physical(A, dt, G, at)
        one, square = np.ones_like(s), s * s * a
        last, divisor = (one, 1 + square) if self.method == "im" else (S - square, S)
        m = np.stack([np.stack([one, -s * a], -2), np.stack([s, last], -2)], -3) / divisor[..., None, None, :]
        return m, s[..., None, :] * m[..., 0, :]

    def _physical(self, A: Array, dt: Array, G: Array | None, at: Array | None) -> tuple[Array, Array, Array, Array]:
        """Returns s, a, g and S = 1 + s g, where s, a and S may be those of each step. With r = sqrt(S) + 1, the limits
        of a are (g / r)^2 and (r / s)^2."""
        s = self.step_scale * sigmoid(contiguous(dt))
        s = s if at is None else s * at.astype(s.dtype, copy=False)[..., None]
        if G is None:
            return s, np.maximum(A, 0), np.zeros_like(s), np.ones_like(s)
        g = np.maximum(G, 0)
        S = 1 + s * g
        r = np.sqrt(S) + 1
        a = np.maximum(A, (g / r) ** 2)
        high = s * np.sqrt(a) > r  # then s is not 0, which a small dt rounds to
        return s, np.minimum(a, np.where(high, (r / np.where(high, s, 1)) ** 2, a)), g, S

    def backward(self, call: Call, dy: tuple[Array, Array], A: Array, dt: Array, G: Array | None = None) -> Any:
        """First by a, s and S, of f = s M_1 and of M; then through a, which is A, 0, or a limit that depends on g and s
        alone; and at the end through s, summed over the steps."""
        at = call.kept
        s, a, g, S = self._physical(A, dt, G, at)
        dm, df = dy
        m, _ = self.matrices(A, dt, G, at)
        d00, d01, d10, d11 = (dm[..., i, j, :] for i in (0, 1) for j in (0, 1))
        d00, d10 = d00 + s * df[..., 0, :], d10 + s * df[..., 1, :]
        ds = df[..., 0, :] * m[..., 0, 0, :] + df[..., 1, :] * m[..., 1, 0, :]
        if self.method == "im":
            q = 1 / (1 + s * s * a)
            dq = d00 - s * a * d01 + s * d10 + d11
            da = -s * q * d01 - s * s * q * q * dq
            ds += q * (d10 - a * d01) - 2 * s * a * q * q * dq
        else:
            da = -(s * d01 + s * s * d11) / S
            ds += (d10 - a * d01 - 2 * s * a * d11) / S
            dS = -(d00 - s * a * d01 + s * d10 - s * s * a * d11) / S / S
        if G is None:
            return _summed(np.where(A > 0, da, 0)), self._of_step(ds, dt, at), None
        root = np.sqrt(S)
        r = root + 1
        low, high = a > A, a < A  # of the limits, a / r and a / s do not overflow, nor divide by s = 0
        dr = 2 * (a / r) * np.where(low, -da, np.where(high, da, 0))
        dS = dS + dr / (2 * root)
        ds += g * dS - 2 * np.where(high, a / np.where(high, s, 1), 0) * da
        dg = s * dS + np.where(low, 2 * (g / r) / r, 0) * da
        dA = np.where(low | high, 0, da)
        return _summed(dA), self._of_step(ds, dt, at), _summed(np.where(G > 0, dg, 0))

    def _of_step(self, ds: Array, dt: Array, at: Array | None) -> Array:
        """Returns the gradient of dt, from the gradient of s."""
        one = sigmoid(contiguous(dt))
        ds = ds if at is None else _summed(ds * at.astype(ds.dtype, copy=False)[..., None])
        return self.step_scale * ds * one * (1 - one)


def _summed(d: Array) -> Array:
    """Returns the sum over batch and time of an array (B, T, N); an array (N,) as it is."""
    return d if d.ndim == 1 else d.sum((0, 1), dtype=np.float64).astype(d.dtype)


# ---- recurrences ----


@dataclass(frozen=True)
class Conv(Instruction):
    """The causal convolution of each channel of x (I,) with taps w (I, K); without w, x itself. Its state is the last
    K - 1 inputs."""

    reads = ("x",)
    form = "I; I K; I -> I"
    parameters = ("w", "b")

    def state(self, x: Any, w: Any, b: Any = None) -> tuple[StateArray, ...]:
        return (StateArray("inputs", (0 if w is None else w[1] - 1, *x)),)

    def forward(self, call: Call, x: Array, w: Array | None = None, b: Array | None = None) -> Array:
        if w is None:
            call.after = (np.zeros((len(x), 0, x.shape[-1]), x.dtype, like=x),)
            return x
        past = None if call.state is None else call.state[0]
        y, after = causal_conv(x, w, b, past, lengths=call.lengths, return_state=True)
        call.after = (after,)
        return y

    def backward(self, call: Call, dy: Array, x: Array, w: Array | None, b: Array | None = None) -> tuple[Any, ...]:
        if w is None:
            call.dbefore = (np.zeros((len(dy), 0, dy.shape[-1]), dy.dtype, like=dy),)
            return dy, None, None
        past = None if call.state is None else call.state[0]
        dafter = None if call.dafter is None else call.dafter[0]
        grads = causal_conv_backward(dy, x, w, past, dhT=dafter, lengths=call.lengths)
        call.dbefore = (grads.dstate,)
        return grads.dx, grads.dw, grads.dbias


@dataclass(frozen=True)
class Previous(Instruction):
    """``y_t = x_{t-1}``, x (I,). Its state is the last x."""

    def state(self, x: Any) -> tuple[StateArray, ...]:
        return (StateArray("x", (1, *x)),)

    def emit(self, to: Listing, line: Line, x: int) -> Any:
        return to("Conv", x, np.tile([1.0, 0.0], (line.shapes[0][0], 1)), None)  # type: ignore[index]

    def forward(self, call: Call, x: Array) -> Array:
        past = None if call.state is None else call.state[0]
        y, after = causal_conv(x, self._taps(x), None, past, lengths=call.lengths, return_state=True)
        call.after = (after,)
        return y

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        past = None if call.state is None else call.state[0]
        dafter = None if call.dafter is None else call.dafter[0]
        grads = causal_conv_backward(dy, dy, self._taps(dy), past, dhT=dafter, lengths=call.lengths)
        call.dbefore = (grads.dstate,)
        return grads.dx

    def _taps(self, x: Array) -> Array:
        taps = full((x.shape[-1], 2), 0, x.dtype, x)
        taps[:, 0] = 1
        return taps


@dataclass(frozen=True)
class Scan(Instruction):
    """``h_t = a_t h_{t-1} + x_t``, a and x (N,) (`rotrnn.ops.diagonal_scan`)."""

    reads = ("a", "y")
    form = "N; N -> N"

    def state(self, a: Any, x: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", a),)

    def forward(self, call: Call, a: Array, x: Array) -> Array:
        h, after = diagonal_scan(a, x, *(call.state or ()), lengths=call.lengths, return_state=True)
        call.after = (after,)
        return h

    def backward(self, call: Call, dy: Array, a: Array, x: Array) -> tuple[Array, Array]:
        (dhT,) = call.dafter or (None,)
        grads = diagonal_scan_backward(dy, a, call.y, *(call.state or ()), dhT=dhT, lengths=call.lengths)
        call.dbefore = (grads.dh0,)
        return grads.da, grads.dx


SLOWEST, FASTEST = 1e-30, 1e3
"""Bounds of -log |a_t| of `TurningScan`; beyond them |a_t| is 1 or 0 to rounding and is kept constant."""


class Decays(NamedTuple):
    """Of each head: -log |a| of e = 0 (H,); and for e, -log |a_t|, |a_t|, and the ratio of the input's gain to its gain
    at e = 0 (..., H)."""

    mean: Array
    varying: Array
    modulus: Array
    gain: Array


class Turning(NamedTuple):
    """Kept by `TurningScan`: a_t divided by its constant factor, and what is added to the states, both (B, T, N); and
    the decays for e, or None."""

    turn: Array
    x: Array
    decays: Decays | None


@dataclass(frozen=True)
class TurningScan(Instruction):
    """``h_t = a e^{i phi_t} h_{t-1} + v_t`` for complex numbers: v and h (2N,) by pairs, phi (N,), a (N,), complex.

    With e (H,) decays vary: a is then ``unit exp(-exp(gamma_log + e_t))``, and v_t is multiplied by ``g(e_t) / g(0)``,
    g(e) the root of ``1 - exp(-exp(gamma_log + e))^2``, or the difference from 1 if `bounded`, by heads, with
    gamma_log (H,) and unit (N,), complex numbers of modulus 1.
    """

    bounded: bool = False
    reads = ("y",)
    parameters = ("a", "gamma_log", "unit")

    def shapes(self, v: Any, phi: Any, a: Any, gamma_log: Any, unit: Any, e: Any = None) -> tuple[Shape, ...]:
        if v != (2 * a[0],) or not phi == a == unit or e not in (None, gamma_log) or a[0] % gamma_log[0]:
            raise ValueError("expected v (2N,), phi, a and unit (N,), e and gamma_log (H,), N a multiple of H")
        return (v,)

    def state(self, v: Any, phi: Any, *more: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", phi, "complex"),)

    def emit(self, to: Listing, line: Line, v: int, phi: int, a: Any, gamma_log: Any, unit: Any, e: Any = None) -> Any:
        decays: tuple[Any, ...] = (None, None, None)
        if e is not None:
            a, decays = unit, (e, gamma_log, 1 / self._gain(self._rate(gamma_log)))
        arrays = np.stack([a.real, a.imag]), *decays
        return to("TurningScan", v, phi, *arrays, window=None, bounded=self.bounded, shapes=line.shapes)

    def forward(
        self, call: Call, v: Array, phi: Array, a: Array, gamma_log: Array, unit: Array, e: Array | None = None
    ) -> Array:
        x, decays = _planes(v), None if e is None else self._decays(e, gamma_log)
        turn = np.empty_like(x)
        turn.real, turn.imag = np.cos(phi), np.sin(phi)
        if decays is not None:
            a, x = unit, (_heads(x, decays) * decays.gain[..., None]).reshape(x.shape)
            _heads(turn, decays)[...] *= decays.modulus[..., None]
        h, after = diagonal_scan(a * turn, x, *(call.state or ()), lengths=call.lengths, return_state=True)
        call.after, call.kept = (after,), Turning(turn, x, decays)
        return _lanes(h)

    def backward(
        self, call: Call, dy: Array, v: None, phi: None, a: Array, gamma_log: Array, unit: Array, e: None = None
    ) -> tuple[Array | None, ...]:
        (turn, x, decays), (dhT,), (h0,) = call.kept, call.dafter or (None,), call.state or (None,)
        a, h = a if decays is None else unit, _planes(call.y)
        at, dh = a * turn, np.zeros_like(h) if dy is None else _planes(dy)
        da, dv, dh0 = diagonal_scan_backward(dh, at, h, h0, dhT=dhT, lengths=call.lengths)
        call.dbefore = (dh0,)
        dpolar = at.conj() * da  # d log |a_t| + i d phi_t
        if decays is None:
            return _lanes(dv), dpolar.imag, (da * turn.conj()).sum((0, 1)), None, None, None
        dgain = (_heads(dv, decays).conj() * _heads(x, decays)).real.sum(-1)  # of its logarithm
        # log |a_t| = -varying, and varying = e^{gamma_log + e}
        de = dgain * self._share(decays.varying) - _heads(dpolar, decays).real.sum(-1) * decays.varying
        dgamma_log = (de - dgain * self._share(decays.mean)).sum((0, 1))
        _heads(dv, decays)[...] *= decays.gain[..., None]
        return _lanes(dv), dpolar.imag, None, dgamma_log, a * dpolar.sum((0, 1)), de

    def _decays(self, e: Array, gamma_log: Array) -> Decays:
        mean, varying = self._rate(gamma_log), self._rate(gamma_log + e.astype(gamma_log.dtype))
        return Decays(mean, varying, exp(-varying), self._gain(varying) / self._gain(mean))

    def _rate(self, exponent: Array) -> Array:
        return np.clip(exp(exponent), SLOWEST, FASTEST)

    def _gain(self, x: Array) -> Array:
        """Returns g, of ``x = exp(gamma_log + e)``."""
        return -np.expm1(-x) if self.bounded else np.sqrt(-np.expm1(-2 * x))

    def _share(self, x: Array) -> Array:
        """Returns the derivative of log `_gain` by log x: ``x / (e^(k x) - 1)``, k = 2, or 1 if bounded."""
        k = 1 if self.bounded else 2
        return x * np.exp(-k * x) / -np.expm1(-k * x)


def _planes(x: Array) -> Array:
    """Returns real lanes (..., 2N) as complex numbers (..., N)."""
    return x.view(complex_of(x.dtype))


def _lanes(z: Array) -> Array:
    """Returns numbers (..., N), if they are complex, as real lanes (..., 2N)."""
    return z.view(z.real.dtype)


def _heads(z: Array, decays: Decays) -> Array:
    """Returns (B, T, N) as a view (B, T, H, N / H)."""
    return z.reshape(*z.shape[:2], len(decays.mean), z.shape[2] // len(decays.mean))


@dataclass(frozen=True)
class OscillatorScan(Instruction):
    """``h_t = M h_{t-1} + f u_t``, h (2, N), m (2, 2, N), f (2, N), u (N,) (`rotrnn.ops.oscillator_scan`)."""

    reads = ("u", "y")
    form = "P P N; P N; N -> P N"
    parameters = ("m", "f")

    def state(self, m: Any, f: Any, u: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", f),)

    def forward(self, call: Call, m: Array, f: Array, u: Array) -> Array:
        h, after = oscillator_scan(m, f, u, *(call.state or ()), lengths=call.lengths, return_state=True)
        call.after = (after,)
        return h

    def backward(self, call: Call, dy: Array, m: Array, f: Array, u: Array) -> tuple[Array, ...]:
        (dhT,) = call.dafter or (None,)
        dh = np.zeros_like(call.y) if dy is None else dy
        grads = oscillator_scan_backward(dh, m, f, u, call.y, *(call.state or ()), dhT=dhT, lengths=call.lengths)
        call.dbefore = (grads.dh0,)
        return grads.dm, grads.df, grads.du


@dataclass(frozen=True)
class PermutedScan(Instruction):
    """``h_t = P_t D_t h_{t-1} + x_t`` with weights w (K,) of matrices m (K, N, N), and d, x and h (2, N)
    (`rotrnn.ops.permuted_scan`)."""

    reads = ("w", "d", "y")
    form = "K; K N N; P N; P N -> P N"
    parameters = ("m",)

    def state(self, w: Any, m: Any, d: Any, x: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", x),)

    def forward(self, call: Call, w: Array, m: Array, d: Array, x: Array) -> Array:
        found = permuted_scan(w, m, d, x, *(call.state or ()), lengths=call.lengths)
        call.after, call.kept = (found.hT,), found.p
        return found.h

    def backward(self, call: Call, dy: Array, w: Array, m: Array, d: Array, x: Array) -> tuple[Array, ...]:
        (dhT,) = call.dafter or (None,)
        found = Permuted(call.y, call.y, call.kept)
        dh = np.zeros_like(call.y) if dy is None else dy
        grads = permuted_scan_backward(dh, w, m, d, found, *(call.state or ()), dhT=dhT, lengths=call.lengths)
        call.dbefore = (grads.dh0,)
        return tuple(grads[:4])


@dataclass(frozen=True)
class SelectiveScan(Instruction):
    """The scan of Mamba, x and delta (I,), A (I, S), B and C (S,), skip (I,) (`rotrnn.ops.selective_scan`)."""

    negative: bool = False
    of: ClassVar[tuple[Any, Any]] = selective_scan, selective_scan_backward
    reads = ("x", "delta", "B", "C")
    form = "I; I; I S; S; S; I -> I"
    parameters = ("A", "skip")

    def state(self, x: Any, delta: Any, A: Any, B: Any, C: Any, skip: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", A),)

    def forward(self, call: Call, x: Array, delta: Array, A: Array, B: Array, C: Array, skip: Array) -> Array:
        how: Any = {"negative": self.negative, "lengths": call.lengths, "return_state": True, "return_carries": True}
        y, h, call.kept = self.of[0](x, delta, A, B, C, skip, *(call.state or ()), **how)
        call.after = (h,)
        return y

    def backward(self, call: Call, dy: Array, *inputs: Array) -> tuple[Any, ...]:
        (dhT,) = call.dafter or (None,)
        how: Any = {"dhT": dhT, "negative": self.negative, "lengths": call.lengths, "carries": call.kept}
        grads = self.of[1](dy, *inputs, *(call.state or ()), **how)
        call.dbefore = (grads.dh0,)
        return tuple(grads[:6])


@dataclass(frozen=True)
class SsdScan(SelectiveScan):
    """The scan of Mamba-2, x (H, P), delta (H,), A (H,), B and C (G, N), skip (H,) (`rotrnn.ops.ssd_scan`)."""

    of = ssd_scan, ssd_scan_backward
    form = "H P; H; H; G N; G N; H -> H P"

    def state(self, x: Any, delta: Any, A: Any, B: Any, C: Any, skip: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", (*x, B[1])),)


@dataclass(frozen=True)
class TrapezoidScan(Instruction):
    """The scan of Mamba-3, x (H, P), delta, lam and log_a (H,), B and C (G, N), skip (H,); with gain (H, R, P), B and C
    (R, G, N), and y is (R, H, P) (`rotrnn.ops.trapezoid_scan`)."""

    reads = ("x", "delta", "lam", "log_a", "B", "C")
    form = "H P; H; H; H; ... G N; ... G N; H; H ... P -> ... H P"
    parameters = ("skip", "gain")

    def shapes(self, *inputs: Any) -> tuple[Shape, ...]:
        if (inputs[7] is None) != (len(inputs[4]) == 2):
            raise ValueError("expected B (G, N), or gain (H, R, P) and B (R, G, N)")
        return super().shapes(*inputs)

    def state(self, x: Any, delta: Any, lam: Any, log_a: Any, B: Any, *more: Any) -> tuple[StateArray, ...]:
        return StateArray("h", (*x, B[-1])), StateArray("B", B), StateArray("x", x)

    def forward(
        self, call: Call, x: Array, delta: Array, lam: Array, log_a: Array, B: Array, C: Array, skip: Array,
        gain: Array | None = None,
    ) -> Array:  # fmt: skip
        given = x, delta, lam, log_a, B, C, skip, *(call.state or 3 * (None,)), gain
        found = trapezoid_scan(*given, lengths=call.lengths)
        call.after, call.kept = (found.hT, found.BT, found.xT), found.carries
        return found.y

    def backward(self, call: Call, dy: Array, *inputs: Array) -> tuple[Any, ...]:
        after = dict(zip(("dhT", "dBT", "dxT"), call.dafter or (), strict=False))
        given = *inputs[:7], *(call.state or 3 * (None,)), inputs[7]
        grads = trapezoid_scan_backward(dy, *given, **after, carries=call.kept, lengths=call.lengths)
        call.dbefore = grads.dh0, grads.dB0, grads.dx0
        return *grads[:7], grads.dgain


@dataclass(frozen=True)
class HoldScan(Instruction):
    """The scan of SLinOSS, x (H, P), delta, log_a and theta (H,), B and C (H, N), adjacent lanes a complex number
    (`rotrnn.ops.hold_scan`). Its state is the angle c (2, H), the turned state of the heads, and the last B, turned,
    and x."""

    reads = ("x", "delta", "log_a", "theta", "B", "C")
    form = "H P; H; H; H; H N; H N -> H P"

    def state(self, x: Any, delta: Any, log_a: Any, theta: Any, B: Any, C: Any) -> tuple[StateArray, ...]:
        turned = StateArray("c", (2, *delta)), StateArray("h", (*x, B[-1]))
        return *turned, StateArray("B", B), StateArray("x", x)

    def forward(self, call: Call, x: Array, delta: Array, log_a: Array, theta: Array, B: Array, C: Array) -> Array:
        found = hold_scan(*(x, delta, log_a, theta, B, C, *(call.state or ())), lengths=call.lengths)
        call.after, call.kept = found[1:5], {"units": found.units, "carries": found.carries}
        return found.y

    def backward(self, call: Call, dy: Array, *inputs: Array) -> tuple[Any, ...]:
        saved = call.kept | dict(zip(("dcT", "dhT", "dBT", "dxT"), call.dafter or (), strict=False))
        grads = hold_scan_backward(*(dy, *inputs, *(call.state or ())), **saved, lengths=call.lengths)
        call.dbefore = tuple(grads[6:])
        return tuple(grads[:6])

    def emit(self, to: Listing, line: Line, *inputs: Any) -> Any:
        return super().emit(to, line, *inputs, QUADRATURE)


@dataclass(frozen=True)
class Turn(Instruction):
    """Vectors whose pairs of lanes turn by angles that add up: theta (H, A), x (..., H, N) and z alike or None
    (`rotrnn.ops.turn`). Its state c (2, H, A) is the angles and their rounding errors."""

    pairs: str = "adjacent"
    reads = ("theta", "y")

    def shapes(self, theta: Any, x: Any, z: Any = None) -> tuple[Shape, ...]:
        given = (x,) if z is None else (x, z)
        if len(theta) != 2 or any(len(one) < 2 or one[-2] != theta[0] or one[-1] < 2 * theta[1] for one in given):
            raise ValueError("expected theta (H, A), x and z (..., H, N) with N of at least 2 A")
        if z is not None and x[-1] != z[-1]:
            raise ValueError("expected x and z with one N")
        return given

    def state(self, theta: Any, x: Any, z: Any = None) -> tuple[StateArray, ...]:
        return (StateArray("c", (2, *theta)),)

    def forward(self, call: Call, theta: Array, x: Array, z: Array | None = None) -> Any:
        given = _vectors(x), None if z is None else _vectors(z)
        found = turn(theta, *given, *(call.state or ()), pairs=self.pairs, lengths=call.lengths)
        call.after = (found.cT,)
        y = found.y.reshape(x.shape)
        return y if found.w is None or z is None else (y, found.w.reshape(z.shape))

    def backward(self, call: Call, dy: Any, theta: Array, x: Array, z: Array | None = None) -> tuple[Any, ...]:
        turned, given = (call.y, dy) if isinstance(call.y, list) else ([call.y], [dy])
        full = [np.zeros_like(y) if d is None else d for y, d in zip(turned, given, strict=True)]
        y, *w = map(_vectors, turned)
        d, *dw = map(_vectors, full)
        (dcT,) = call.dafter or (None,)
        grads = turn_backward(
            *(d, theta, Turned(y, w[0] if w else None, y), *(call.state or ())),
            dw=dw[0] if dw else None,
            dcT=dcT,
            pairs=self.pairs,
            lengths=call.lengths,
        )
        call.dbefore = (grads.dc0,)
        dx, *more = (d.reshape(y.shape) for d, y in zip((grads.dx, grads.dz), turned, strict=False) if d is not None)
        return grads.dtheta, dx, more[0] if more else None


def _vectors(x: Array) -> Array:
    """Returns (B, T, ..., H, N) as (B, T, L, H, N)."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:-2]), *x.shape[-2:])


@dataclass(frozen=True)
class UnitScan(Instruction):
    """``h_t = e^{i theta_t} h_{t-1} + v_t``, ``y_t = sum_j Re(w_j h_tj)``: v (I,), theta (I, N), w (2, N), its parts.

    With ``c_t = c_{t-1} + theta_t``, ``h_t = e^{i c_t} conj(q_t)`` for ``q_t = q_{t-1} + e^{i c_t} v_t``: a turn, and a
    sum without a factor, so |e^{i theta}| = 1 exactly. Its state is c (2, I, N), as in `Turn`, and q (I, N, 2).
    """

    reads = ("v", "theta")
    form = "I; I N; P N -> I"
    parameters = ("w",)

    def state(self, v: Any, theta: Any, w: Any) -> tuple[StateArray, ...]:
        return StateArray("c", (2, *theta)), StateArray("q", (*theta, 2))

    def forward(self, call: Call, v: Array, theta: Array, w: Array) -> Array:
        size, T, width, N = theta.shape
        c0, q0 = call.state or (None, None)
        x = full((size, T, 1, width, 2 * N), 0, v.dtype, v)
        x[..., ::2] = 1
        found = turn(theta, x, None, c0, lengths=call.lengths)
        e = found.y.reshape(size, T, width, N, 2)
        ones = full((2 * width * N,), 1, v.dtype, v)
        q, qT = diagonal_scan(
            *(ones, (v[..., None, None] * e).reshape(size, T, 2 * width * N)),
            None if q0 is None else q0.reshape(size, 2 * width * N),
            lengths=call.lengths,
            return_state=True,
        )
        call.after, call.kept = (found.cT, qT.reshape(size, width, N, 2)), (found.y, q)
        return (_read(e, q.reshape(e.shape)) * _signed(w)).sum((-2, -1))

    def backward(self, call: Call, dy: Array, v: Array, theta: Array, w: Array) -> tuple[Array, ...]:
        size, T, width, N = theta.shape
        y, sums = call.kept
        e, q, ones = (*(one.reshape(size, T, width, N, 2) for one in (y, sums)), full((2 * width * N,), 1, v.dtype, v))
        c0, q0 = call.state or (None, None)
        dcT, dqT = call.dafter or (None, None)
        d = np.zeros_like(v) if dy is None else dy
        dw = _signed((d[..., None, None] * _read(e, q)).sum((0, 1, 2), dtype=np.float64).astype(v.dtype).T)
        dz = d[..., None, None] * _signed(w)
        re, im = dz[..., 0], dz[..., 1]
        de = np.stack((re * q[..., 0] - im * q[..., 1], re * q[..., 1] + im * q[..., 0]), -1)
        dq = np.stack((re * e[..., 0] + im * e[..., 1], re * e[..., 1] - im * e[..., 0]), -1)
        flat = size, 2 * width * N
        scan = diagonal_scan_backward(
            *(dq.reshape(sums.shape), ones, sums, None if q0 is None else q0.reshape(flat)),
            dhT=None if dqT is None else dqT.reshape(flat),
            lengths=call.lengths,
        )
        dx = scan.dx.reshape(e.shape)
        de += v[..., None, None] * dx
        turned = turn_backward(de.reshape(y.shape), theta, Turned(y, None, y), c0, dcT=dcT, lengths=call.lengths)
        call.dbefore = turned.dc0, scan.dh0.reshape(size, width, N, 2)
        return (dx * e).sum((-2, -1)), turned.dtheta, contiguous(dw.T)


def _read(e: Array, q: Array) -> Array:
    """Returns ``e conj(q)`` of numbers (..., 2)."""
    re, im = e[..., 0] * q[..., 0] + e[..., 1] * q[..., 1], e[..., 1] * q[..., 0] - e[..., 0] * q[..., 1]
    return np.stack((re, im), -1)


def _signed(w: Array) -> Array:
    """Returns (2, N) as (N, 2), with the second part negated: w in ``Re(w h)``."""
    return np.stack((w[0], -w[1]), -1)


@dataclass(frozen=True)
class DeltaRule(Instruction):
    """n Householder steps of a state for each head: q (H, K), k (n, H, K), v (n, H, V), beta (n, H), decay (H,) or
    (H, K), read and erase (n, H, K). All but q, k and v may be None (`rotrnn.ops.delta_rule`)."""

    reads = ("q", "k", "v", "beta", "decay", "read", "erase")
    form = "H K; n H K; n H V; n H; H ...; n H K; n H K -> H V"

    def shapes(self, *inputs: Any) -> tuple[Shape, ...]:
        q, *_, decay, _, _ = inputs
        if decay is not None and decay not in (q[:1], q):
            raise ValueError("expected decay (H) or (H, K)")
        return super().shapes(*inputs)

    def state(self, q: Any, k: Any, v: Any, *more: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", (*q, v[-1])),)

    def forward(
        self, call: Call, q: Array, k: Array, v: Array, beta: Array | None = None, decay: Array | None = None,
        read: Array | None = None, erase: Array | None = None,
    ) -> Array:  # fmt: skip
        (h0,) = call.state or (None,)
        how: Any = {"lengths": call.lengths, "return_state": True, "return_carries": True}
        y, h, call.kept = delta_rule(q, k, v, beta, decay, h0, read, erase, **how)
        call.after = (h,)
        return y

    def backward(self, call: Call, dy: Array, *inputs: Array) -> tuple[Any, ...]:
        (dhT,), (h0,) = call.dafter or (None,), call.state or (None,)
        grads = delta_rule_backward(
            *(dy, *inputs[:5], h0, *inputs[5:]), dhT=dhT, lengths=call.lengths, carries=call.kept
        )
        call.dbefore = (grads.dh0,)
        return grads.dq, grads.dk, grads.dv, grads.dbeta, grads.ddecay, grads.dread, grads.derase


@dataclass(frozen=True)
class MatrixMemory(Instruction):
    """The memory of mLSTM: q and k (H, N), v (H, P), logarithms i and f (H,) of gates (`rotrnn.ops.mlstm`)."""

    reads = ("q", "k", "v", "i", "f", "y")
    form = "H N; H N; H P; H; H -> H P"

    def state(self, q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[StateArray, ...]:
        return StateArray("c", (*v, q[1])), StateArray("n", q), StateArray("m", q[:1])

    def forward(self, call: Call, q: Array, k: Array, v: Array, i: Array, f: Array) -> Array:
        found: Any = mlstm(q, k, v, i, f, *(call.state or ()), lengths=call.lengths)
        call.after = found.cT, found.nT, found.mT
        call.kept = found._replace(y=None, cT=None, nT=None, mT=None)
        return found.y

    def backward(self, call: Call, dy: Array, q: Array, k: Array, v: Array, i: Array, f: Array) -> tuple[Array, ...]:
        after = dict(zip(("dcT", "dnT", "dmT"), call.dafter or (), strict=False))
        found = call.kept._replace(y=call.y)
        grads = mlstm_backward(dy, q, k, v, i, f, found, **after, lengths=call.lengths)
        call.dbefore = grads.dc0, grads.dn0, grads.dm0
        return tuple(grads[:5])


@dataclass(frozen=True)
class ScalarMemory(Instruction):
    """The memory of sLSTM: inputs x (4, H, P) of the gates, w (H, 4P, P) (`rotrnn.ops.slstm`)."""

    forget: str = "sigmoid"
    reads = ("y",)
    parameters = ("w",)

    def shapes(self, x: Any, w: Any) -> tuple[Shape, ...]:
        if len(x) != 3 or x[0] != 4 or w != (x[1], 4 * x[2], x[2]):
            raise ValueError("expected x (4, H, P) and w (H, 4P, P)")
        return (x[1:],)

    def state(self, x: Any, w: Any) -> tuple[StateArray, ...]:
        return tuple(StateArray(name, x[1:]) for name in "hcnm")

    def forward(self, call: Call, x: Array, w: Array) -> Array:
        found: Any = slstm(w, x, *(call.state or ()), forget=self.forget, lengths=call.lengths)
        call.after = found.hT, found.cT, found.nT, found.mT
        call.kept = found._replace(h=None, hT=None, cT=None, nT=None, mT=None)
        return found.h

    def backward(self, call: Call, dy: Array, x: Array, w: Array) -> tuple[Array, Array]:
        after = dict(zip(("dhT", "dcT", "dnT", "dmT"), call.dafter or (), strict=False))
        found, given = call.kept._replace(h=call.y), call.state or ()
        grads = slstm_backward(dy, w, found, *given, **after, forget=self.forget, lengths=call.lengths)
        call.dbefore = grads.dh0, grads.dc0, grads.dn0, grads.dm0
        return grads.dx, grads.dw


@dataclass(frozen=True)
class LSTMCells(Instruction):
    """The cells of an LSTM: inputs x (4 N,) of the gates, w (4 N, N) (`rotrnn.ops.lstm`)."""

    reads = ("y",)
    parameters = ("w",)

    def shapes(self, x: Any, w: Any) -> tuple[Shape, ...]:
        if len(w) != 2 or w[0] != 4 * w[1] or x != w[:1]:
            raise ValueError("expected x (4N,) and w (4N, N)")
        return (w[1:],)

    def state(self, x: Any, w: Any) -> tuple[StateArray, ...]:
        return StateArray("h", w[1:]), StateArray("c", w[1:])

    def forward(self, call: Call, x: Array, w: Array) -> Array:
        found = lstm(w, x, *(call.state or ()), lengths=call.lengths)
        call.after, call.kept = (found.hT, found.cT), (found.c, found.gates)
        return found.h

    def backward(self, call: Call, dy: Array, x: Array, w: Array) -> tuple[Array, Array]:
        after = dict(zip(("dhT", "dcT"), call.dafter or (), strict=False))
        grads = lstm_backward(dy, w, call.y, *call.kept, *(call.state or ()), **after, lengths=call.lengths)
        call.dbefore = grads.dh0, grads.dc0
        return grads.dx, grads.dw


@dataclass(frozen=True)
class GRUCells(Instruction):
    """The cells of a GRU: inputs x (3 N,) of the gates, w (3 N, N), bias (3 N,) (`rotrnn.ops.gru`)."""

    reads = ("y",)
    parameters = ("w", "bias")

    def shapes(self, x: Any, w: Any, bias: Any) -> tuple[Shape, ...]:
        if len(w) != 2 or w[0] != 3 * w[1] or x != w[:1] or bias != w[:1]:
            raise ValueError("expected x (3N,), w (3N, N) and bias (3N,)")
        return (w[1:],)

    def state(self, x: Any, w: Any, bias: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", w[1:]),)

    def forward(self, call: Call, x: Array, w: Array, bias: Array) -> Array:
        found = gru(w, x, bias, *(call.state or ()), lengths=call.lengths)
        call.after, call.kept = (found.hT,), found.gates
        return found.h

    def backward(self, call: Call, dy: Array, x: Array, w: Array, bias: Array) -> tuple[Array, Array, Array]:
        (dhT,) = call.dafter or (None,)
        grads = gru_backward(dy, w, call.y, call.kept, *(call.state or ()), dhT=dhT, lengths=call.lengths)
        call.dbefore = (grads.dh0,)
        return grads.dx, grads.dw, grads.dbias


@dataclass(frozen=True)
class Elman(Instruction):
    """``h_t = f(A h_{t-1} + x_t)``, x (N,), A (N, N); backward in time if `reverse` (`rotrnn.ops.rnn`)."""

    activation: str = "identity"
    reverse: bool = False
    reads = ("y",)
    along = True
    form = "N; N N -> N"
    parameters = ("A",)

    def state(self, x: Any, A: Any) -> tuple[StateArray, ...]:
        return () if self.reverse else (StateArray("h", x),)

    def forward(self, call: Call, x: Array, A: Array) -> Array:
        how: dict[str, Any] = {"activation": self.activation, "reverse": self.reverse, "lengths": call.lengths}
        h, after = rnn(A, x, *(call.state or ()), **how)
        call.after = () if self.reverse else (after,)
        return h

    def backward(self, call: Call, dy: Array, x: Array, A: Array) -> tuple[Array, Array]:
        how: dict[str, Any] = {"activation": self.activation, "reverse": self.reverse, "lengths": call.lengths}
        (dhT,) = call.dafter or (None,)
        grads = rnn_backward(dy, A, call.y, *(call.state or ()), dhT=dhT, **how)
        call.dbefore = () if self.reverse else (grads.dh0,)
        return grads.dx, grads.dA


# ---- stored histories ----


@dataclass(frozen=True)
class History(Instruction):
    """``m_t = sum_{k<M} p_tk e^{i Delta_k} h_{t-k}`` for complex numbers by pairs, h and m (2N,): the last M = `window`
    of them, or all, turned by their age by `angles`, a form of `rotrnn.StoredHistory`, for a `length`.

    p is 1. With w (heads, A) it is ``w[min(k, A - 1)]`` of the group of a number, with queries q (2N,) a softmax over k
    (`rotrnn.ops.history_attention`). The state is the stored h (B, M-1, N) or (B, t, N), complex, and if `counted` the
    number of steps so far.
    """

    length: int
    angles: str = "warped"
    window: int | None = None
    heads: int = 1
    counted: bool = True
    reads = ("q",)
    parameters = ("w",)

    def shapes(self, h: Any, w: Any = None, q: Any = None) -> tuple[Shape, ...]:
        if len(h) != 1 or h[0] % (2 * self.heads) or q not in (None, h) or (w is not None and w[:1] != (self.heads,)):
            raise ValueError(f"expected h and q (2N,), w (H, A), N a multiple of H={self.heads}")
        if not self.counted and (q is not None or self.angles == "reversed"):
            raise ValueError(f"expected counted=True with q, and with angles={self.angles!r}")
        return (h,)

    def state(self, h: Any, w: Any = None, q: Any = None) -> tuple[StateArray, ...]:
        rows = None if self.window is None else self.window - 1
        stored = StateArray("stored" if self.counted else "h", (rows, h[0] // 2), "complex", newest_last=True)
        return (stored, StateArray("places", (), "integer")) if self.counted else (stored,)

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        if not self.counted or name.startswith("d"):
            return
        rows, places = state[0].shape[1], state[1]
        if any(one < 0 or (self.window is None and one > rows) for one in places.tolist()):
            expected = f"expected the number of steps so far, of which {name}.stored has {rows}"
            raise ValueError(f"{args.op}: {name}.places is {places}, {expected}")

    def prepare(self, h: None, w: Array | None = None, q: None = None) -> AgeWeights | None:
        return AgeWeights(self) if w is None else None

    def forward(self, call: Call, h: Array, w: Array | None = None, q: Array | None = None) -> Array:
        z = _planes(h)
        size, T, N = z.shape
        stored, *places = call.state or (
            np.zeros((size, (self.window or 1) - 1, N), z.dtype, like=z),
            *([np.zeros(size, np.int64)] if self.counted else []),
        )
        if self.angles == "reversed":
            z = z * self._turns(places[0], z)
        held = np.concatenate([stored, z], 1) if call.stepping else None
        if q is not None:
            given = self._units(stored.shape[1] + T), z, stored
            m = history_attention(_planes(q), *given, **self._reading(call, stored, places))
        elif held is None:
            m = history_read(self._weights(stored.shape[1] + T, z, w), z, stored, lengths=call.lengths)
        elif w is None:
            m = call.prepared.read(held)  # what `prepare` returned
        else:
            weights = self._weights(held.shape[1], z, w)[::-1]
            m = (weights * held[:, -len(weights) :]).sum(1, keepdims=True).astype(z.dtype, copy=False)
        after = self._after(stored, z, call.lengths) if held is None else held[:, 0 if self.window is None else 1 :]
        steps = T if call.lengths is None else call.lengths
        call.after, call.kept = (after, *(one + steps for one in places)), (z, stored, *places)
        return _lanes(m)

    def backward(self, call: Call, dy: Array, h: None, w: Array | None = None, q: Array | None = None) -> Any:
        z, stored, *places = call.kept
        dm = np.zeros_like(z) if dy is None else _planes(dy)
        rows, T = stored.shape[1], z.shape[1]
        dw = dq = None
        if q is not None:
            given = _planes(q), self._units(rows + T), z, stored
            dq, dz, dstored = history_attention_backward(dm, *given, **self._reading(call, stored, places))
            dq = _lanes(dq)
        else:
            weights = self._weights(rows + T, z, w)
            dz, dstored = history_read_backward(dm, weights, rows, lengths=call.lengths)
            if w is not None:
                of_ages = history_weights_backward(dm, z, stored, count=len(weights), lengths=call.lengths)
                dw = self._weights_backward(of_ages, w)
        dlast = call.dafter[0] if call.dafter else None
        if dlast is not None:
            dstored += latest_backward(dlast.astype(dz.dtype, copy=False), dz, call.lengths)[:, dlast.shape[1] - rows :]
        if self.angles == "reversed":
            dz *= self._turns(places[0], dz).conj()
        call.dbefore = (dstored, *(np.zeros(one.shape) for one in places))
        return _lanes(dz), dw, dq

    def _after(self, stored: Array, z: Array, lengths: Any) -> Array:
        """Returns the stored states after z, oldest first."""
        rows, T = stored.shape[1], z.shape[1]
        if lengths is None:
            left, new = (rows, T) if self.window is None else (max(rows - T, 0), min(rows, T))
            if left or self.window is not None:  # never z itself for some T alone: outputs would be shared for these
                return np.concatenate([stored[:, rows - left :], z[:, T - new :]], 1)
            return z
        if self.window is None:
            stored = np.concatenate([np.zeros_like(z), stored], 1)
        return latest(stored, z, stored.shape[1], lengths)

    def _reading(self, call: Call, stored: Array, places: list[Array]) -> dict[str, Any]:
        """Returns the keywords of `history_attention`."""
        return {"heads": self.heads, "stored": np.minimum(places[0], stored.shape[1]), "lengths": call.lengths}

    def _turns(self, place: Array, z: Array) -> Array:
        """Returns e^{i Delta_n} (B, T, 1) of the steps n that follow `place`, for the form "reversed"."""
        angles = wrope_angle(place[:, None] + np.arange(z.shape[1]), self.length, "warped")
        return beside(np.exp(1j * angles)[..., None].astype(z.dtype), z)

    def _units(self, count: int) -> Array:
        """Returns e^{i Delta_k} (M,) of the first `count` ages, at least one, limited to the window; on the CPU."""
        ages = np.arange(max(1, count if self.window is None else min(count, self.window)))
        turning = self.angles in FORMS
        return np.exp(1j * wrope_angle(ages, self.length, self.angles)) if turning else np.ones(len(ages), complex)

    def _weights(self, count: int, z: Array, w: Array | None) -> Array:
        """Returns the weights of the first `count` ages: (M,), or (M, N) by w."""
        units = beside(self._units(count).astype(z.dtype), z)
        if w is None:
            return units
        ages = beside(np.minimum(np.arange(len(units)), w.shape[1] - 1), z)
        learned = np.repeat(w.T[ages], z.shape[2] // self.heads, axis=1)
        return (learned * units[:, None]).astype(z.dtype, copy=False)

    def _weights_backward(self, dweights: Array, w: Array) -> Array:
        """Adjoint of `_weights`: returns the gradient of w."""
        units = beside(self._units(len(dweights)).astype(dweights.dtype), dweights)
        M, (heads, A) = len(dweights), w.shape
        of_ages = (units.conj()[:, None] * dweights).real.reshape(M, heads, -1).sum(-1)
        dw = np.zeros((A, heads), of_ages.dtype, like=of_ages)
        known = min(M, A)
        dw[:known] = of_ages[:known]
        dw[A - 1 :] += of_ages[A:].sum(0, keepdims=True)
        return dw.T.astype(w.dtype)


class AgeWeights:
    """Weights of ages for steps of streaming inference: kept, and doubled in number whenever more are needed, so that
    one more age costs constant time on average. The weights (B, 2, M) of the last step are kept, too."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.newest_last: Array | None = None
        self.last: Array | None = None

    def read(self, held: Array) -> Array:
        """Returns ``sum_m w_m held_m`` (B, 1, N) of states (B, M, N), oldest first, by a real product."""
        (size, count, N), real = held.shape, held.real.dtype
        weights = self.last
        if weights is None or weights.shape != (size, 2, count) or weights.dtype != real:
            known = self._known(count, held, real)
            weights = contiguous(np.broadcast_to(known[:, known.shape[1] - count :], (size, 2, count)))
            self.last = weights
        parts = matmul(weights, held.view(real)).reshape(size, 2, N, 2)
        m = np.empty((size, 1, N), held.dtype, like=held)
        m.real[:, 0] = parts[:, 0, :, 0] - parts[:, 1, :, 1]
        m.imag[:, 0] = parts[:, 0, :, 1] + parts[:, 1, :, 0]
        return m

    def _known(self, count: int, held: Array, real: Any) -> Array:
        """Returns the weights (2, M) of at least `count` ages."""
        known, window = self.newest_last, self.history.window
        if known is None or known.shape[1] < count or known.dtype != real:
            w = self.history._weights(max(count, 2 * count if window is None else 0), held, None)[::-1]
            self.newest_last = known = np.stack([w.real, w.imag])
        return known


@dataclass(frozen=True)
class CausalAttention(Instruction):
    """Attention of queries q (D,) in `heads` heads to keys k and values v (K,), whose heads are as wide and as many or
    fewer, of the last `window` steps, or of all (`rotrnn.ops.attention`). The first `turning` channels of each head of
    q and k turn by position (`rotrnn.ops.rotary`). `rotrnn.Attention` has the state.
    """

    heads: int
    window: int | None = None
    turning: int = 0
    base: float = 10_000.0
    reads = ("y",)

    def shapes(self, q: Any, k: Any, v: Any) -> tuple[Shape, ...]:
        width = q[0] // self.heads
        if len(q) != 1 or q[0] != self.heads * width or len(k) != 1 or k != v or k[0] % width:
            raise ValueError(f"expected q (D,), k and v (K,), D and K multiples of a width, D / {self.heads}")
        if self.heads % (k[0] // width) or self.turning > width:
            raise ValueError(f"expected heads of k that divide {self.heads}, at least {self.turning} wide")
        return (q,)

    def state(self, q: Any, k: Any, v: Any) -> tuple[StateArray, ...]:
        rows = None if self.window is None else self.window - 1
        kept = StateArray("keys", (rows, *k)), StateArray("values", (rows, *v))
        return *kept, StateArray("places", (), "integer")

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        if name.startswith("d"):
            return
        keys, values, places = state
        rows = keys.shape[1]
        if values.shape[1] != rows:
            expected = "expected as many of each"
            raise ValueError(f"{args.op}: {name} has {rows} keys and {values.shape[1]} values, {expected}")
        if any(not 0 <= kept <= rows for kept in _kept(places, self.window).tolist()):
            expected = f"expected the number of steps so far, of which {name}.keys has {rows}"
            raise ValueError(f"{args.op}: {name}.places is {places}, {expected}")

    def emit(self, to: Listing, line: Line, q: int, k: int, v: int) -> Any:
        turned, width = [q, k], line.shapes[0][0] // self.heads  # type: ignore[index]
        if self.turning:
            part: dict[str, Any] = {} if self.turning == width else {"rotated": self.turning}
            turned = [
                to("Rotary", one, heads=shape[0] // width, base=self.base, **part, shapes=(shape,))  # type: ignore[index]
                for one, shape in zip(turned, line.shapes, strict=False)
            ]
        return to("Attention", *turned, v, heads=self.heads, window=self.window, shapes=line.shapes)

    def forward(self, call: Call, q: Array, k: Array, v: Array) -> Array:
        B, T, K = k.shape
        steps = np.full(B, T) if call.lengths is None else call.lengths
        kept_keys, kept_values, place = call.state or (*np.zeros((2, B, 0, K), k.dtype, like=k), np.zeros(B, np.int64))
        past = _kept(place, self.window)
        if self.turning:
            q, k = (self._turned(rotary, one, place, q.shape[2] // self.heads) for one in (q, k))
        keys, values = _append(kept_keys, k, past, call.lengths), _append(kept_values, v, past, call.lengths)
        each_k, each_v = self._spread(keys, q.shape[2]), self._spread(values, q.shape[2])
        how: Any = {"heads": self.heads, "lengths": call.lengths, "past": past, "window": self.window}
        y, norm = attention(q, each_k, each_v, **how)
        call.kept = q, keys, values, norm, place
        if isinstance(steps, RecordedLengths):  # their numbers, and so the state, are of each repetition
            call.after = None, None, None
            return y
        after: Any = Grown(keys, past + steps), Grown(values, past + steps)
        if self.window is not None:
            after = tuple(_last_rows(rows, past + steps, self.window) for rows in (keys, values))
        elif call.stepping:
            after = tuple(one.trimmed() for one in after)
        call.after = *after, place + steps
        return y

    def backward(self, call: Call, dy: Array, q: None, k: None, v: None) -> tuple[Array, ...]:
        turned, keys, values, norm, place = call.kept
        T, D, K, past = turned.shape[1], turned.shape[2], keys.shape[2], _kept(place, self.window)
        steps = np.full(len(place), T) if call.lengths is None else call.lengths
        how: Any = {"heads": self.heads, "lengths": call.lengths, "past": past, "window": self.window}
        given = np.zeros_like(turned) if dy is None else dy
        grads = attention_backward(given, turned, self._spread(keys, D), self._spread(values, D), call.y, norm, **how)
        dkeys, dvalues = (self._spread_backward(d, K) for d in (grads.dk, grads.dv))
        for drows, dlast in zip((dkeys, dvalues), call.dafter or (), strict=False):
            if dlast is not None:
                _last_rows_backward(drows, dlast, past + steps, self.window)
        S = keys.shape[1] - T
        rows = S if self.window is None else self.window - 1
        dkept_keys, dk = _append_backward(dkeys, S, rows, past, steps)
        dkept_values, dv = _append_backward(dvalues, S, rows, past, steps)
        call.dbefore = dkept_keys, dkept_values, np.zeros(place.shape)
        dq = grads.dq
        if self.turning:
            dq, dk = (self._turned(rotary_backward, d, place, D // self.heads) for d in (dq, dk))
        return dq, dk, dv

    def _turned(self, turn: Callable[..., Array], x: Array, place: Array, width: int) -> Array:
        """Returns x (B, T, heads * width) with the turning channels of each head turned by their positions."""
        heads = x.shape[2] // width
        if self.turning == width:
            return turn(x, heads=heads, past=place, base=self.base)
        y = x.reshape(*x.shape[:2], heads, width).copy()
        first = contiguous(y[..., : self.turning])
        part = first.reshape(*x.shape[:2], heads * self.turning)
        y[..., : self.turning] = turn(part, heads=heads, past=place, base=self.base).reshape(first.shape)
        return y.reshape(x.shape)

    def _spread(self, rows: Array, D: int) -> Array:
        """Returns (B, S, D) of keys or values (B, S, K): each head repeated for the heads of queries that read it."""
        B, S, K = rows.shape
        if K == D:
            return rows
        width = D // self.heads
        each = empty((B, S, K // width, D // K, width), rows.dtype, like=rows)
        each[...] = rows.reshape(B, S, K // width, 1, width)
        return each.reshape(B, S, D)

    def _spread_backward(self, deach: Array, K: int) -> Array:
        """Adjoint of `_spread`."""
        B, S, D = deach.shape
        if K == D:
            return deach
        width = D // self.heads
        drows: Array = deach.reshape(B, S, K // width, D // K, width).sum(3)
        return drows.reshape(B, S, K)


def _kept(places: Array, window: int | None) -> Array:
    """Returns the number of steps that a state keeps after `places` steps."""
    return places if window is None else np.minimum(places, window - 1)


def _last_rows(rows: Array, count: Array, window: int) -> Array:
    """Returns the last rows among the first count[b] rows of each sequence b, which a state keeps."""
    B, _, D = rows.shape
    last = np.zeros((B, window - 1, D), rows.dtype, like=rows)
    for b, (kept, end) in enumerate(zip(_kept(count, window), count, strict=True)):
        last[b, :kept] = rows[b, end - kept : end]
    return last


def _last_rows_backward(drows: Array, dlast: Array, count: Array, window: int | None) -> None:
    """Adds the adjoint of `_last_rows` to drows."""
    for b, (kept, end) in enumerate(zip(_kept(count, window), count, strict=True)):
        drows[b, end - kept : end] += dlast[b, :kept]


def _append(kept: Array, new: Array, past: Array, lengths: Array | None) -> Array:
    """Returns (B, S + T, D): for each sequence b, past[b] rows of kept (B, S, D), then the valid rows of new (B, T, D),
    then zeros."""
    (B, S, D), T = kept.shape, new.shape[1]
    if S == 0:
        return mask_padding(new, lengths)
    steps = np.full(B, T) if lengths is None else lengths
    rows = empty((B, S + T, D), np.result_type(kept, new), like=new)
    for b, (before, count) in enumerate(zip(past, steps, strict=True)):
        rows[b, :before] = kept[b, :before]
        rows[b, before : before + count] = new[b, :count]
        rows[b, before + count :] = 0
    return rows


def _append_backward(drows: Array, S: int, kept: int, past: Array, steps: Array) -> tuple[Array, Array]:
    """Adjoint of `_append`: returns the gradients of kept, with `kept` rows even if it had none, and of new."""
    B, rows, D = drows.shape
    dkept = np.zeros((B, kept, D), drows.dtype, like=drows)
    if S == 0:
        return dkept, drows  # it is zero where there is no key
    dnew = np.zeros((B, rows - S, D), drows.dtype, like=drows)
    for b, (before, count) in enumerate(zip(past, steps, strict=True)):
        dkept[b, :before] = drows[b, :before]
        dnew[b, :count] = drows[b, before : before + count]
    return dkept, dnew


@dataclass(frozen=True)
class Inner(Instruction):
    """Another layer, applied to x, with its parameters in the order of its `shapes`. With `hidden`, the second output
    is the layer's hidden states as real lanes (`Recurrent.hidden_states`), or y for a layer without a vector of them.
    """

    layer: Recurrent
    hidden: bool = False
    along = True

    def together(self, ctx: Context) -> bool:
        return self.layer.together(ctx)

    def shapes(self, x: Any, *params: Any) -> tuple[Shape, ...]:
        expected = [(self.layer.d_model,), *self.layer.shapes.values()]
        if [x, *params] != expected:
            raise ValueError(f"expected {expected}, x and the parameters of {type(self.layer).__name__}")
        return (x, (self.layer.hidden.lanes or 0,)) if self.hidden else (x,)

    def state(self, x: Any, *params: Any) -> tuple[StateArray, ...]:
        return form_leaves(self.layer.state_form)

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        self.layer.check_state(args, name, self._whole(state))

    def emit(self, to: Listing, line: Line, x: int, *params: Array) -> Any:
        if not self.hidden:
            return self.layer.emit(to, self._named(params), x)
        found = self.layer.emitted(to, self._named(params), x)
        states = self.layer.hidden.name
        if states not in found:
            raise Unlisted(
                f"the model has {an(to.layer)} over {an(type(self.layer).__name__)} without lines for {states}"
            )
        return found["y"], found[states]

    def prepare(self, x: None, *params: Any) -> Any:
        return None if self.hidden else trusted(self.layer.prepare)(self._named(params))

    def forward(self, call: Call, x: Array, *params: Array) -> Any:
        state = self._whole(call.state)
        if call.stepping and not self.hidden:
            y, after = trusted(self.layer.step)(self._named(params), state, x[:, 0], call.prepared)
            call.after = state_leaves(after)
            return y[:, None]
        ctx = replace(call.ctx, fused=False) if self.hidden else call.ctx  # there are states then
        y, call.kept = self.layer.forward(self._named(params), x, ctx, state)
        call.after = state_leaves(call.kept.state)
        if not self.hidden:
            return y
        h = self.layer.hidden_states(call.kept)
        return y, y if h is None else _lanes(h)

    def backward(self, call: Call, dy: Any, x: Array, *params: Array) -> tuple[Array | None, ...]:
        after, more, backward = self._whole(call.dafter), {}, trusted(self.layer.backward)
        if self.hidden:
            dy, dh = dy
            if self.layer.hidden_states(call.kept) is None:
                dy = dy + dh
            else:
                more["dh"] = _planes(dh) if self.layer.hidden.kind == "complex" else dh
        dx, dparams, dstate = backward(self._named(params), call.kept, dy, after, **more)
        call.dbefore = state_leaves(dstate)
        return dx, *(None if name in BUFFERS else dparams[name] for name in self.layer.shapes)

    def _named(self, params: tuple[Array, ...]) -> dict[str, Array]:
        return dict(zip(self.layer.shapes, params, strict=True))

    def _whole(self, arrays: tuple[Any, ...] | None) -> Any:
        """Returns the layer's state from its arrays; parts of a gradient may be None."""
        if arrays is None or all(one is None for one in arrays):
            return None
        return arrays[0] if isinstance(self.layer.state_form, StateArray) else tuple(arrays)
