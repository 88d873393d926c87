"""The iteration of a matrix-state layer: its step in depth with the adjoint, and the solver for the fixed point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous
from rotrnn.devices.recording import NotRecordable, recording
from rotrnn.nn.fixed_points.iteration import Iteration, Report, Steps, complain, solve
from rotrnn.nn.fixed_points.maps import Lagged, lagged, unjoined
from rotrnn.nn.fixed_points.mixer import Mixer, Operands, Parts, spectral_norms
from rotrnn.nn.layer import Array, Context
from rotrnn.nn.scaling import exponents, times_power
from rotrnn.ops.boundary import CheckedLengths
from rotrnn.ops.lagged import LaggedMapsGrads
from rotrnn.ops.pointwise import (
    last_step,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
    silu,
    swiglu,
    swiglu_backward,
)
from rotrnn.ops.selective import (
    selective_scan,
    selective_scan_backward,
    selective_solve,
    selective_solve_adjoint,
)


class Norm(NamedTuple):
    """Layer norm inside the step, or RMS norm if it has no bias."""

    scale: Array
    bias: Array | None
    eps: float


class Applied(NamedTuple):
    """One application y = F(.), and what is saved for its adjoint; `gated` is what the norm is applied to. `read`
    (B, T, E) is what the driven maps read of the step before."""

    y: Array
    hT: Array
    maps: Parts
    operands: Operands
    mixed: Array
    carries: Array
    late: Array | None
    read: Array
    scanned: Array
    gated: Array
    moments: tuple[Array, ...]


class DepthGrads(NamedTuple):
    """Gradients through one application: of x, the values of the known maps, the inputs of the driven maps, the
    operands of a constant mixer, A, skip, norm, gate and h0, and of the iterate through the mixer's origin."""

    dx: Array
    dknown: Parts
    driven: LaggedMapsGrads
    dconstants: Operands
    dA: Array
    dskip: Array | None
    dnorm: tuple[Array, ...] | None
    dgate: Array | None
    dh0: Array
    dorigin: Array


def _tiles(y: Array, tile: int, lengths: Steps) -> Iterator[tuple[slice, Any]]:
    """Yields tiles of the time steps of y (B, T, E), each with the number of valid steps of every sequence in it."""
    B, T = y.shape[:2]
    for low in range(0, T, tile):
        size = min(tile, T - low)
        yield slice(low, low + size), CheckedLengths.of(np.clip(np.asarray(lengths) - low, 0, size), B, size)


@dataclass(frozen=True)
class MatrixDepth:
    """One step in depth, and its adjoint ("Fixed-Point RNNs", eqs. 11-12; E channels, S states a channel):

        x~_t = Q_t (x_t - y_t) + y_t
        h_t = lam_t * h_{t-1} + (delta_t * x~_t) B_t^T
        lam_t = exp(delta_t A), or 2 exp(delta_t A) - 1 if `negative`
        F(y)_t = h_t C_t + skip * x~_t,     times SiLU(gate_t) if there is a `gate`, and normalised with `norm`

    delta, B, C and the parts of Q are maps. Those that depend only on x are `known`, and those that depend on y are
    `driven`. For a mixer that is the same for all tokens, `constants` are its operands.
    """

    x: Array
    known: Parts
    driven: Lagged
    A: Array
    skip: Array | None
    norm: Norm | None
    mixer: Mixer
    constants: Operands | None
    h0: Array
    negative: bool
    gate: Array | None

    def __call__(self, y: Array, lengths: Steps) -> Array:
        maps = self.known | self.driven.of_output(y, lengths)
        mixed = self.mixer.mix(self._operands(maps), self.x, y, lengths)
        f = selective_scan(*self._scanned(mixed, maps), negative=self.negative, lengths=lengths)
        return self._normed(self._gated(f), lengths)[0]

    def apply(self, y: Array, lengths: Steps, read: Array | None = None) -> Applied:
        """Returns F(y), with what is saved for its adjoint. The driven maps read the step before in `read` (default
        y)."""
        read = y if read is None else read
        late = self.driven.late(read)
        maps = self.known | self.driven(late, lengths)
        operands = self._operands(maps)
        mixed = self.mixer.mix(operands, self.x, y, lengths)
        scanned, hT, carries = selective_scan(
            *self._scanned(mixed, maps),
            negative=self.negative,
            lengths=lengths,
            return_state=True,
            return_carries=True,
        )
        gated = self._gated(scanned)
        out, *moments = self._normed(gated, lengths)
        return Applied(out, hT, maps, operands, mixed, carries, late, read, scanned, gated, tuple(moments))

    def by_tiles(
        self, y: Array, tile: int, lengths: Steps, settings: Iteration, ctx: Context, name: str, **asking: Any
    ) -> tuple[Array, Array, Report]:
        """Like `solve`, for `tile` steps at a time, after the fixed point of those before. As the step is causal, y is
        the fixed point of the whole when each tile is that of its own steps.

        A tile begins with the state that a call hands over: h and F(y) of the application to the last iterate. So
        chunks of whole tiles take the same path. Returns the last iterates, what `apply` reads, and the report."""
        if recording() is not None:
            raise NotRecordable("a fixed point by tiles needs the host")
        h, last, read, parts = self.h0, self._y0, y.copy(), []
        for at, steps in _tiles(y, tile, lengths):
            first = contiguous(y[:, at])
            part = self._part(at, last, h)
            found, report = solve(part, first, settings, replace(ctx, lengths=steps), name=name, warn=False, **asking)
            y[:, at] = read[:, at] = found
            parts.append((report, steps))
            applied = part.apply(found, steps)
            h, last = applied.hT, last_step(applied.y, steps, last)
            read[:, at.stop - 1] = applied.y[:, -1]
        report = Report.of_tiles(parts, lengths)
        settled = report.converged | np.isnan(report.residual) | (ctx.train and settings.ends_together)
        complain(report, ~settled, settings, ctx, name)
        return y, read, report

    def implicit_by_tiles(
        self, y: Array, dy: Array, dhT: Array | None, tile: int, V_transposed: Array, lengths: Steps,
        settings: Iteration, name: str,
    ) -> Array:  # fmt: skip
        """Like `implicit`, for `tile` steps at a time, after those behind them: no step depends on later ones."""
        if recording() is not None:
            raise NotRecordable("a fixed point by tiles needs the host")
        h, last, parts = self.h0, self._y0, []
        for at, steps in _tiles(y, tile, lengths):
            part, own = self._part(at, last, h), contiguous(y[:, at])
            applied = part.apply(own, steps)
            parts.append((at, steps, part, own, applied))
            h, last = applied.hT, last_step(applied.y, steps, last)
        dy, v = dy.copy(), np.zeros_like(dy)
        for at, steps, part, own, applied in reversed(parts):
            low = at.start
            found = part.implicit(applied, own, contiguous(dy[:, at]), dhT, V_transposed, steps, settings, name)
            v[:, at] = found
            grads = part.backward(applied, own, found, dhT, steps)
            dhT = grads.dh0
            if low:
                dy[:, low - 1] += part.driven.weights_backward(grads.driven, own)[1]
        return v

    @property
    def _y0(self) -> Array:
        """The output before the first step."""
        assert self.driven.y0 is not None
        return self.driven.y0

    def _part(self, at: slice, y0: Array, h0: Array) -> MatrixDepth:
        """Returns the step of some of the time steps, with the output and the state before them."""
        own = self.driven
        driven = lagged(own.maps, contiguous(own.base[:, at]), own.V, y0, own.eps, own.normed)
        gate = None if self.gate is None else contiguous(self.gate[:, at])
        known = {name: contiguous(one[:, at]) for name, one in self.known.items()}
        return replace(self, x=contiguous(self.x[:, at]), known=known, driven=driven, h0=h0, gate=gate)

    def solution(self, lengths: Steps) -> tuple[Applied, Array]:
        """Returns the fixed point y = F(y) by `selective_solve`, as an application to itself, and its residual (B). All
        maps but delta are driven; there is no skip, no norm and no gate."""
        driven = self.driven
        delta, base, V, first, A, matrix, how = self._solving
        solved = selective_solve(self.x, delta, base, V, first, A, self.h0, matrix, lengths=lengths, **how)
        values = [one for one in solved.maps if one.shape[-1]]
        maps = self.known | driven.named(unjoined(values, driven.maps))
        late = solved.late if self.x.shape[1] > 1 else None
        applied = Applied(
            solved.y, solved.hT, maps, self._operands(maps), solved.mixed, solved.carries, late,
            solved.y, solved.y, solved.y, (),
        )  # fmt: skip
        return applied, solved.residual

    def solution_adjoint(self, a: Applied, dy: Array, dhT: Array | None, lengths: Steps) -> Array:
        """Like `implicit`, for the application that `solution` returns."""
        *inputs, how = self._solving
        saved = a.y, a.mixed, a.carries, a.late
        return selective_solve_adjoint(dy, dhT, *saved, self.x, *inputs, lengths=lengths, **how)

    @property
    def _solving(self) -> tuple[Any, ...]:
        """Returns delta, base, V, first, A, the matrix and the settings of `selective_solve`."""
        driven, mixer = self.driven, self.mixer
        how = {
            **mixer.solved,
            "eps": mixer.eps,
            "silu": any(one.function == "silu" for one in driven.maps.values()),
            "unit": driven.maps["B"].function == "unit",
            "negative": self.negative,
            "feedback_norm": driven.normed,
        }
        matrix = None if self.constants is None else self.constants[0]
        return self.known.get("delta"), driven.base, driven.V, driven.first, self.A, matrix, how

    def backward(self, a: Applied, y: Array, dy: Array, dhT: Array | None, lengths: Steps) -> DepthGrads:
        """Returns the gradients for those of the application's output and final state, with its input y held
        constant."""
        dnorm, dgate = None, None
        if self.norm is not None:
            backward = rms_norm_backward if self.norm.bias is None else layer_norm_backward
            dy, *rest = backward(dy, a.gated, self.norm.scale, *a.moments, lengths=lengths)
            dnorm = tuple(rest)
        if self.gate is not None:
            dy, dgate = swiglu_backward(dy, a.scanned, self.gate)
        scan = selective_scan_backward(
            dy, *self._scanned(a.mixed, a.maps), negative=self.negative, dhT=dhT, lengths=lengths, carries=a.carries
        )
        mix = self.mixer.mix_backward(a.operands, scan.dx, self.x, y, lengths)
        dmaps = {"delta": scan.ddelta, "B": scan.dB, "C": scan.dC}
        if self.constants is None:
            dmaps |= self.mixer.operands_backward(self._parts(a.maps), a.operands, mix.operands)
        return DepthGrads(
            mix.dx,
            {name: dmaps[name] for name in self.known},
            self.driven.backward(dmaps, a.late, lengths),
            mix.operands if self.constants is not None else (),
            scan.dA,
            scan.dskip,
            dnorm,
            dgate,
            scan.dh0,
            mix.dorigin,
        )

    def implicit(
        self, a: Applied, y: Array, dy: Array, dhT: Array | None, V_transposed: Array, lengths: Steps,
        settings: Iteration, name: str,
    ) -> Array:  # fmt: skip
        """Solves ``v = dy + J^T v`` with the Jacobian J of the last application, including the gradient through its
        final state."""

        def adjoint(v: Array, running: Steps) -> Array:
            grads = self.backward(a, y, v, dhT, running)
            back = np.add(grads.dorigin, dy, out=grads.dorigin)
            if grads.driven.dlate is not None:
                back += self.driven.late_backward(grads.driven.dlate, a.read, V_transposed)
            return back

        size = exponents(dy, dhT)
        dy, dhT = times_power(dy, -size), None if dhT is None else times_power(dhT, -size)
        return times_power(solve(adjoint, dy.copy(), settings, Context(lengths), name=name).y, size)

    def transitions(self, a: Applied) -> Array:
        """Returns A_t (B, T, E S, E S), the derivative of h_t by h_{t-1} at the fixed point with y_{t-1} held constant.

        With P = I - Q_t, D the skip and J the derivative of norm and gate (without them 0 and I), ``dy = G (dh C)``
        where ``G = (I - J D P)^-1 J``, and ``dh = lam * dh_{t-1} + (W dh C) B^T`` where ``W = delta P G``. With
        ``k = B.C`` this is ``dh = lam * dh_{t-1} + [W (I - k W)^-1 (lam * dh_{t-1}) C] B^T``.
        """
        delta, B, C = a.maps["delta"], a.maps["B"], a.maps["C"]
        identity = np.eye(self.x.shape[-1], dtype=self.x.dtype)
        P = identity - self.mixer.matrices(a.operands, self.x)
        W = delta[..., None] * P
        if self.norm is not None:
            J = self._norm_slope(a.gated)
            J = J if self.gate is None else J * silu(self.gate)[..., None, :]
            W = W @ np.linalg.solve(identity - (J * self.skip) @ P, J)
        k = (B * C).sum(-1)[..., None, None]
        across = W @ np.linalg.inv(identity - k * W)
        lam = np.exp(delta[..., None] * self.A)
        lam = 2 * lam - 1 if self.negative else lam
        dense = np.einsum("btef,bts,btu,btfu->btesfu", across, B, C, lam)
        size = lam.shape[2] * lam.shape[3]
        own = lam.reshape(*lam.shape[:2], size, 1) * np.eye(size, dtype=lam.dtype)
        matrices: Array = own + dense.reshape(own.shape)
        return matrices

    def token_norms(self, a: Applied, lengths: Steps) -> Array:
        """Returns |J_t|_2 (B, T) of a token's map, zero beyond the lengths: ``J_t = G_t (k delta + D)(I - Q_t)`` with
        the derivative G_t of gate and norm, and ``k = B.C``."""
        gain = (a.maps["B"] * a.maps["C"]).sum(-1, keepdims=True) * a.maps["delta"]
        gain = gain if self.skip is None else gain + self.skip
        gain = gain if self.gate is None else silu(self.gate) * gain
        factor = gain[..., None] if self.norm is None else self._norm_slope(a.gated) * gain[..., None, :]
        return spectral_norms(factor, self.mixer, a.operands, self.x, lengths)

    def _norm_slope(self, f: Array) -> Array:
        """Returns the derivative (B, T, E, E) of the norm at f."""
        assert self.norm is not None
        width = f.shape[-1]
        centring = np.eye(width, dtype=f.dtype) - (0 if self.norm.bias is None else 1 / width)
        centred = f @ centring
        size = np.sqrt((centred**2).mean(-1, keepdims=True) + self.norm.eps)
        unit = (centred / size)[..., None]
        inner = centring - unit * unit.swapaxes(-1, -2) / width
        slope: Array = self.norm.scale[:, None] * inner / size[..., None]
        return slope

    def _scanned(self, mixed: Array, maps: Parts) -> tuple[Any, ...]:
        """Returns the arrays of the selective scan."""
        return mixed, maps["delta"], self.A, maps["B"], maps["C"], self.skip, self.h0

    def _parts(self, maps: Parts) -> Parts:
        return {name: maps[name] for name in self.mixer.parts}

    def _operands(self, maps: Parts) -> Operands:
        return self.mixer.operands(self._parts(maps)) if self.constants is None else self.constants

    def _gated(self, f: Any) -> Array:
        return f if self.gate is None else swiglu(f, self.gate)

    def _normed(self, f: Any, lengths: Steps) -> tuple[Array, ...]:
        """Returns f, normalised if there is a norm, and the moments of the norm."""
        if self.norm is None:
            return (f,)
        how: Any = {"eps": self.norm.eps, "lengths": lengths}
        if self.norm.bias is None:
            return rms_norm(f, self.norm.scale, **how)
        return layer_norm(f, self.norm.scale, self.norm.bias, **how)
