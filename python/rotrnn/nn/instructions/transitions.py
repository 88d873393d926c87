"""Decays, angles and gains of transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.devices.device import beside, contiguous, einsum
from rotrnn.nn.layer import Array, StateArray
from rotrnn.nn.program import Call, Instruction, Shape
from rotrnn.nn.scaling import bounded_exp
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import (
    decay_gain,
    decay_gain_backward,
    exp,
    exp_backward,
    sigmoid,
    sigmoid_backward,
    softplus,
    softplus_backward,
    tanh,
    tanh_backward,
)


@dataclass(frozen=True)
class Rates(Instruction):
    """``A = -exp(A_log)``."""

    reads = ("y",)
    parameters = ("A_log",)
    foldable = True

    def forward(self, call: Call, A_log: Array) -> Array:
        return -bounded_exp(contiguous(A_log))

    def backward(self, call: Call, dy: Array, A_log: Array) -> Array:
        return dy * call.y


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
class Oscillators(Instruction):
    """The matrices m (2, 2, N) and the input weights f (2, N) of LinOSS's oscillators, from A, dt and, with "damped", G
    (N,): `rotrnn.LinOSS` has the equations. At uneven times (`Context.dt`) they are m (B, T, 2, 2, N) and f (B, T, 2,
    N)."""

    method: str
    step_scale: float = 1.0
    form = "N; N; N -> 2 2 N; 2 N"
    parameters = ("A", "dt", "G")
    foldable = True

    def shapes(self, *inputs: Any) -> tuple[Shape, ...]:
        if (self.method == "damped") != (inputs[2] is not None):
            raise ValueError("expected A and dt (N,), and G (N,) of 'damped' alone")
        return super().shapes(*inputs)

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
