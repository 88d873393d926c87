"""States and vectors that turn by angles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous, full
from rotrnn.nn.layer import Array, StateArray
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Call, Instruction, Line, Shape
from rotrnn.ops.declared import pairs, planes
from rotrnn.ops.pointwise import (
    exp,
)
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.ops.turn import Turned, turn, turn_backward

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
    form = "2N; N; N; H; N; H -> 2N"
    parameters = ("a", "gamma_log", "unit")

    def shapes(self, *inputs: Any) -> tuple[Shape, ...]:
        (N, *_), (H, *_) = inputs[1], inputs[3]
        if N % H:
            raise ValueError(f"expected phi (N,) and gamma_log (H,), N a multiple of H={H}")
        return super().shapes(*inputs)

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
        x, decays = planes(v), None if e is None else self._decays(e, gamma_log)
        turn = np.empty_like(x)
        turn.real, turn.imag = np.cos(phi), np.sin(phi)
        if decays is not None:
            a, x = unit, (_heads(x, decays) * decays.gain[..., None]).reshape(x.shape)
            _heads(turn, decays)[...] *= decays.modulus[..., None]
        h, after = diagonal_scan(a * turn, x, *(call.state or ()), lengths=call.lengths, return_state=True)
        call.after, call.kept = (after,), Turning(turn, x, decays)
        return pairs(h)

    def backward(
        self, call: Call, dy: Array, v: None, phi: None, a: Array, gamma_log: Array, unit: Array, e: None = None
    ) -> tuple[Array | None, ...]:
        (turn, x, decays), (dhT,), (h0,) = call.kept, call.dafter or (None,), call.state or (None,)
        a, h = a if decays is None else unit, planes(call.y)
        at, dh = a * turn, np.zeros_like(h) if dy is None else planes(dy)
        da, dv, dh0 = diagonal_scan_backward(dh, at, h, h0, dhT=dhT, lengths=call.lengths)
        call.dbefore = (dh0,)
        dpolar = at.conj() * da  # d log |a_t| + i d phi_t
        if decays is None:
            return pairs(dv), dpolar.imag, (da * turn.conj()).sum((0, 1)), None, None, None
        dgain = (_heads(dv, decays).conj() * _heads(x, decays)).real.sum(-1)  # of its logarithm
        # log |a_t| = -varying, and varying = e^{gamma_log + e}
        de = dgain * self._share(decays.varying) - _heads(dpolar, decays).real.sum(-1) * decays.varying
        dgamma_log = (de - dgain * self._share(decays.mean)).sum((0, 1))
        _heads(dv, decays)[...] *= decays.gain[..., None]
        return pairs(dv), dpolar.imag, None, dgamma_log, a * dpolar.sum((0, 1)), de

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


def _heads(z: Array, decays: Decays) -> Array:
    """Returns (B, T, N) as a view (B, T, H, N / H)."""
    return z.reshape(*z.shape[:2], len(decays.mean), z.shape[2] // len(decays.mean))


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
    form = "I; I N; 2 N -> I"
    states = "c 2 I N; q I N 2"
    parameters = ("w",)

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
