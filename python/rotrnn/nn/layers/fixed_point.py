"""The vector-state Fixed-Point RNN: a dense linear RNN, computed as the fixed point in depth of a diagonal one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.devices.device import beside, contiguous
from rotrnn.devices.recording import NotRecordable, recording
from rotrnn.nn.fixed_points.convolution import conv_names, conv_shapes, initial_conv
from rotrnn.nn.fixed_points.in_depth import GRADIENTS, InDepth, Iterating
from rotrnn.nn.fixed_points.iteration import (
    CYCLE,
    PATIENCE,
    SHRINK,
    SOLVERS,
    Iteration,
    Report,
    Steps,
    check_settings,
    in_one_call,
    iterate,
    lengths_of,
    solve,
)
from rotrnn.nn.fixed_points.maps import MACHINE, Lagged, Maps, flattened, lagged, mixer_maps
from rotrnn.nn.fixed_points.mixer import GAINS, MIXERS, VECTORS, Mixer, Operands, Parts, spectral_norms, varies
from rotrnn.nn.instructions import Affine, Conv, Dense, Product, Rows, Sigmoid, SiLU, Skip, Sum
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, StateArray, astype, mask_steps
from rotrnn.nn.listing import Listing
from rotrnn.nn.packing import along
from rotrnn.nn.program import Builder, Call, Line, Program, Shape
from rotrnn.nn.scaling import exponents, times_power
from rotrnn.ops.boundary import CheckedLengths
from rotrnn.ops.dense import dense
from rotrnn.ops.fixed_point import DepthSolution, depth_pass, depth_solve
from rotrnn.ops.pointwise import last_step, mask_padding
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

SELECTIVE = ("lambda", "mixer", "B")
FEEDBACK = ("mixer", "output")
TILED = tuple(name for name in MIXERS if name not in ("orthogonal", "mixture"))
"""Mixers that a kernel applies to single tokens."""
SCALED = ("low_rank", "dense")
"""Mixers that are solved directly, or with Anderson acceleration, only in the scaled form. Without it the system is
Q_t, which has no inverse, or for "dense" at its initial values none to rounding: its condition number is the square of
a triangle's. The states then run off along directions that Q_t does not see, with a small relative residual."""
MOST_IN_MATRICES = 1 << 24
"""Most numbers in the matrices of tokens formed at once."""


class DepthGrads(NamedTuple):
    """Gradients through one application: of lam (in its shape), v (B, T, N), the mixer's parts, and h0 (B, N); if the
    parts are maps, of the sums of the maps, and of V if they depend on the iterate."""

    dlam: Array
    dv: Array
    dparts: Parts
    dbase: Array | None
    dV: Array | None
    dh0: Array


@dataclass(frozen=True)
class Depth:
    """One step in depth, ``F(y)_t = lam_t F(y)_{t-1} + gain_t [Q_t (v_t - y_t) + y_t]``, and its adjoint.

    `lam` is (N,) or (B, T, N); gain is ``1 - |lam|`` if `scaled`, else 1; v is (B, T, N) and h0 (B, N). If not
    `accelerated`, the previous state is taken from the old iterate: ``lam_t y_{t-1}`` (eq. 4 of the paper instead of
    eq. 7). The mixer is made of `parts` and their `operands`, which may be `maps`; or, if they are None, of maps of
    y_{t-1}.
    `direct`: whether the layer solves directly. `tile` is the layer's.
    """

    lam: Array
    v: Array
    mixer: Mixer
    parts: Parts | None
    operands: Operands | None
    maps: Lagged | None
    h0: Array
    scaled: bool
    accelerated: bool
    direct: bool
    tile: int | None

    def __call__(self, y: Array, lengths: Steps) -> Array:
        drive = self._scaled(self.mixer.mix(self._operands(y, lengths), self.v, y, lengths))
        if self.accelerated:
            return diagonal_scan(self.lam, drive, self.h0, lengths=lengths)
        return mask_padding(self.lam * self._before(y) + drive, lengths)

    def pull(self, w: Array, dh: Array, y: Array, lengths: Steps) -> Array:
        """Returns dh plus the gradient that w, the gradient of the scan's input, sends back to y through the mixer."""
        parts, operands, late = self._mixing(y, lengths)
        grads = self.mixer.mix_backward(operands, self._scaled(w), self.v, y, lengths)
        pulled: Array = dh + grads.dorigin
        if self.maps is None or late is None:
            return pulled  # no step reads its predecessor
        dparts = self.mixer.operands_backward(parts, operands, grads.operands)
        dlate = self.maps.backward(dparts, late, lengths).dlate
        assert dlate is not None
        assert self.maps.V is not None
        return pulled + dense(dlate, contiguous(self.maps.V.T))

    def _mixing(self, y: Array, lengths: Steps) -> tuple[Parts, Operands, Array | None]:
        """Returns parts and operands of the mixer at y, and V y if they depend on y."""
        if self.parts is not None and self.operands is not None:
            return self.parts, self.operands, None
        assert self.maps is not None
        late = self.maps.late(y)
        parts = self.maps(late, lengths)
        return parts, self.mixer.operands(parts), late

    def _operands(self, y: Array, lengths: Steps) -> Operands:
        if self.operands is not None:
            return self.operands
        assert self.maps is not None
        return self.mixer.operands(self.maps.of_output(y, lengths))

    def adjoint(self, w: Array, dh: Array, y: Array, lengths: Steps) -> Array:
        """The map whose fixed point is the w of the implicit gradient: ``w_t = lam_{t+1} w_{t+1} + pull(w)_t``."""
        total = self.pull(w, dh, y, lengths)
        if self.accelerated:
            return diagonal_scan_backward(total, self.lam, y, lengths=lengths).dx
        later = np.zeros_like(w)
        np.multiply(self.lam if self.lam.ndim == 1 else self.lam[:, 1:], w[:, 1:], out=later[:, :-1])
        return mask_padding(total + later, lengths)

    def solve(self, y: Array, settings: Iteration, ctx: Context, **asking: Any) -> tuple[Array, Report]:
        """Solves for the fixed point y, in place. Returns one more application of the step, and the report."""
        h, report = self._solve(self, y, self.v, False, settings, ctx, **asking)
        return self(y, lengths_of(ctx, y)) if h is None else h, report

    def solve_adjoint(self, w: Array, dh: Array, y: Array, settings: Iteration, ctx: Context, **asking: Any) -> Report:
        """Solves for the fixed point w of `adjoint`, in place."""
        return self._solve(lambda w, left: self.adjoint(w, dh, y, left), w, dh, True, settings, ctx, **asking)[1]

    def _solve(
        self, function: Any, y: Array, x: Array, adjoint: bool, settings: Iteration, ctx: Context, **asking: Any
    ) -> tuple[Array | None, Report]:
        """Solves in one call of a kernel (csrc/kernels/fixed_point.c) directly or by tiles, which may return the last
        application; else iterates with the fused kernel if there is one for this step, else unfused."""
        lengths = lengths_of(ctx, y)
        how: dict[str, Any] = {"scaled": self.scaled, "adjoint": adjoint}
        if self.direct or self.tile is not None:
            return self._solve_in_one_call(y, x, how, lengths, settings, ctx, **asking)
        mixer = None
        fused = ctx.fused and self.accelerated and not settings.each_step and not settings.accelerates
        if fused and self.operands is not None:
            mixer = self.mixer.prepared(self.operands)
        if mixer is None:
            return None, solve(function, y, settings, ctx, **asking).report

        def step(s: Array, left: Steps) -> Array:
            return depth_pass(y, x, self.lam, mixer, self.h0, beside(s, y), lengths=left, **how)

        return None, iterate(step, lengths, y.dtype, settings, ctx, **asking)

    def _solve_in_one_call(
        self,
        y: Array,
        x: Array,
        how: dict[str, Any],
        lengths: Steps,
        settings: Iteration,
        ctx: Context,
        site: int,
        **asking: Any,
    ) -> tuple[Array | None, Report]:
        if recording() is not None:
            raise NotRecordable("a fixed point by tiles, or a direct one, needs the host")
        assert self.operands is not None
        rules: dict[str, Any] = {
            "tile": self.tile,
            "tol": settings.least_tol(y.dtype),
            "limit": settings.limit(ctx, site),
            "first": settings.first_step,
            "shrink": SHRINK if settings.damping == "adaptive" else 1.0,
            "cycle": CYCLE,
            "patience": PATIENCE,
            "accelerate": settings.accelerates,
        }
        mixer = self.mixer.prepared(self.operands)
        if mixer is None:
            solved = self._solve_by_matrices(y, x, lengths, self.operands, **rules, **how)
        else:
            solved = depth_solve(y, x, self.lam, mixer, self.h0, lengths=lengths, **rules, **how)
        return solved.h, in_one_call(solved, lengths, y.dtype, settings, ctx, **asking)

    def _solve_by_matrices(
        self, y: Array, x: Array, lengths: Steps, operands: Operands, *, adjoint: bool, **how: Any
    ) -> DepthSolution:
        """`depth_solve` with the mixer's matrices, of MOST_IN_MATRICES numbers at most: in pieces of time, each with
        the state of the piece before, or for the adjoint of the piece after it."""
        if not isinstance(y, np.ndarray):
            settings = f"solver='direct' with mixer='{self.mixer.name}'"
            raise NotImplementedError(f"FixedPointRNN: {settings}, expected another solver on a GPU")
        B, T, N = y.shape
        size = max(MOST_IN_MATRICES // (max(B, 1) * N * N), 1) if varies(operands) else max(T, 1)
        h, out, parts = self.h0, np.zeros_like(y), []
        for low in range(0, max(T, 1), size)[:: -1 if adjoint else 1]:
            at = slice(low, low + size)
            own, given = y[:, at].copy(), x[:, at].copy()
            if adjoint and low + size < T:
                given[:, -1] += (self.lam if self.lam.ndim == 1 else self.lam[:, low + size]) * y[:, low + size]
            steps = CheckedLengths.of(np.clip(np.asarray(lengths) - low, 0, own.shape[1]), B, own.shape[1])
            lam = self.lam if self.lam.ndim == 1 else contiguous(self.lam[:, at])
            mixer = self.mixer.as_matrices(
                tuple(contiguous(one[:, at]) for one in operands) if varies(operands) else operands, given
            )
            part = depth_solve(own, given, lam, mixer, h, lengths=steps, adjoint=adjoint, **how)
            y[:, at] = own
            if part.h is not None:
                out[:, at], h = part.h, last_step(part.h, steps, h)
            parts.append(part)
        return DepthSolution(
            None if adjoint else out,
            np.max([one.iterations for one in parts], 0),
            np.sum([one.applied for one in parts], 0),
            np.max([one.residual for one in parts], 0),  # NaN if one is
        )

    def backward(self, dh: Array, y: Array, h: Array, lengths: Steps) -> DepthGrads:
        """Returns the gradients for dh, the gradient of h = F(y), with y held constant."""
        if self.accelerated:
            dlam, w, dh0 = diagonal_scan_backward(dh, self.lam, h, self.h0, lengths=lengths)
        else:
            w, dlam = dh, self._summed(dh * self._before(y), self.lam)
            first = self.lam if self.lam.ndim == 1 else self.lam[:, 0] if self.lam.shape[1] else 0
            dh0 = first * w[:, 0] if w.shape[1] else np.zeros_like(self.h0)
        parts, operands, late = self._mixing(y, lengths)
        grads = self.mixer.mix_backward(operands, self._scaled(w), self.v, y, lengths)
        if self.scaled:
            mixed = self.mixer.mix(operands, self.v, y, lengths)
            dlam -= np.copysign(1, self.lam) * self._summed(w * mixed, self.lam)
        dparts = self.mixer.operands_backward(parts, operands, grads.operands)
        if self.maps is None:
            return DepthGrads(dlam, grads.dx, dparts, None, None, dh0)
        of_maps = self.maps.backward(dparts, late, lengths)
        dV, dfirst = (None, 0) if self.maps.V is None else self.maps.weights_backward(of_maps, y)
        return DepthGrads(dlam, grads.dx, dparts, of_maps.dbase, dV, dh0 + dfirst)

    def transitions(self, name: str, y: Array, lengths: Steps) -> Array:
        """Returns the A_t (B, T, N, N) of the dense recurrence, ``[I - gain_t (I - Q_t)]^-1 lam_t``, zero beyond the
        lengths; y is the fixed point, if the mixer depends on it. ValueError by the layer `name`."""
        identity = np.eye(self.v.shape[-1], dtype=self.v.dtype)
        apart = mask_steps(identity - self.mixer.matrices(self._operands(y, lengths), self.v), lengths)
        if not self.scaled and (np.linalg.matrix_rank(identity - apart) < len(identity)).any():
            raise ValueError(f"{name}: a Q_t has no inverse, expected one in a layer with scaled=False")
        lam = mask_steps(np.broadcast_to(self.lam, self.v.shape), lengths)[..., None]
        gain = 1 - np.abs(lam) if self.scaled else np.ones_like(lam)
        return np.linalg.solve(identity - gain * apart, lam * identity)

    def token_norms(self, y: Array, lengths: Steps) -> Array:
        """Returns |gain_t (I - Q_t)|_2 (B, T), zero beyond the lengths; y is the fixed point."""
        gain = np.broadcast_to(self._scaled(np.ones_like(self.v)), self.v.shape)[..., None]
        return spectral_norms(gain, self.mixer, self._operands(y, lengths), self.v, lengths)

    def _scaled(self, x: Array) -> Array:
        if not self.scaled:
            return x
        gain = np.abs(self.lam)
        np.subtract(1, gain, out=gain)
        return np.multiply(gain, x, out=gain if gain.shape == x.shape else None)

    def _before(self, y: Array) -> Array:
        return np.concatenate([self.h0[:, None], y], 1)[:, :-1]

    @staticmethod
    def _summed(x: Array, like: Array) -> Array:
        return x.sum((0, 1)) if like.ndim == 1 else x


class Found(NamedTuple):
    """Kept by `FixedPoint`: the step, the iterate before its last application, the fixed point, and the report; whether
    the iteration may be fused."""

    depth: Depth
    before: Array
    iterate: Array
    lengths: Steps
    report: Report
    fused: bool

    def token_norms(self) -> Array:
        """Returns |J_t|_2 (B, T) of the map of each token."""
        return self.depth.token_norms(self.iterate, self.lengths)


@dataclass(frozen=True)
class FixedPoint(InDepth):
    """The fixed point h (N,) of `Depth`, and h_{t-1} if `late`.

    Its inputs are v (N,); lam (N,), a parameter or of each step; the sums of the mixer's maps, and V (K, N) with
    feedback to the mixer; the first iterate (N,); and the parts of a constant mixer. Its state is h (N,).
    """

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs that are parameters."""
        return ("V",) if "lambda" in self.layer.selective else ("lam", "V")

    def shapes(self, v: Any, lam: Any, *more: Any) -> tuple[Shape, ...]:
        if v != lam:
            raise ValueError("expected v and lam (N,)")
        return (v, v) if self.late else (v,)

    def state(self, v: Any, *more: Any) -> tuple[StateArray, ...]:
        return (StateArray("h", v),)

    def prepare(self, v: None, lam: Any, base: None, V: Any, start: None, *parts: Any) -> Operands | None:
        """Returns the operands of a constant mixer."""
        return self.layer._mixer.operands(self._named(parts)) if parts else None

    def _named(self, parts: tuple[Any, ...]) -> Parts:
        return dict(zip(self.layer._mixer.parts, parts, strict=True))

    def depth(
        self, v: Array, lam: Array, base: Array | None, V: Array | None, h0: Array | None, parts: tuple[Array, ...],
        lengths: Any, prepared: Operands | None = None,
    ) -> Depth:  # fmt: skip
        """Returns the step in depth; `prepared` are the operands of a constant mixer, if they are known."""
        layer, mixer = self.layer, self.layer._mixer
        h0 = np.zeros((len(v), v.shape[2]), v.dtype, like=v) if h0 is None else h0
        maps, named = None, self._named(parts) if parts else None
        if base is not None:
            maps = lagged(layer._maps, base, V, h0)
            named = maps(None, lengths) if V is None else None
        operands = prepared if named is None or prepared is not None else mixer.operands(named)
        rules = layer.scaled, layer.accelerated, layer.direct, layer.tile
        return Depth(lam, v, mixer, named, operands, maps, h0, *rules)

    def forward(
        self, call: Call, v: Array, lam: Array, base: Array | None = None, V: Array | None = None,
        start: Array | None = None, *parts: Array,
    ) -> Any:  # fmt: skip
        lengths, (h0,) = lengths_of(call.ctx, v), call.state or (None,)
        v, lam, base, V, start, h0 = self.common(v, lam, base, V, start, h0)
        depth = self.depth(v, lam, base, V, h0, parts, lengths, call.prepared)
        y = np.zeros_like(v) if start is None else start.copy()
        h, report = depth.solve(y, self.layer._iteration, call.ctx, **self.layer._asking)
        call.kept = Found(depth, y, h, lengths, report, call.ctx.fused)
        call.after = (last_step(h, lengths, depth.h0),)
        return self.outputs(h, depth.h0)

    def backward(
        self, call: Call, dy: Any, v: None, lam: Any, base: None, V: Any, start: None, *parts: Any
    ) -> tuple[Array | None, ...]:
        depth, before, h, lengths = call.kept[:4]
        (dlast,) = call.dafter or (None,)
        dh, dfirst = self.outputs_backward(dy, h, dlast, lengths)
        if self.layer.gradient == "implicit":
            dh = self._implicit(call.kept, dh)
        grads = depth.backward(dh, before, h, lengths)
        call.dbefore = (grads.dh0 + dfirst,)
        dparts = tuple(grads.dparts[name] for name in depth.mixer.parts) if parts else ()
        return grads.dv, grads.dlam, grads.dbase, grads.dV, None, *dparts

    def _implicit(self, found: Found, dh: Array) -> Array:
        """Returns ``(I - J^T)^-1 dh``, whose scan in time is the fixed point w of ``w = scan^T (dh + mixer^T w)``."""
        depth, before, lengths, w, size = found.depth, found.before, found.lengths, np.zeros_like(dh), exponents(dh)
        dh = times_power(dh, -size)
        ctx = Context(lengths, fused=found.fused)  # evaluation mode: without the limit of training
        asking = self.layer._asking | {"name": f"{type(self.layer).__name__}.backward"}
        depth.solve_adjoint(w, dh, before, self.layer._iteration, ctx, **asking)
        return times_power(depth.pull(w, dh, before, lengths) if depth.accelerated else w, size)

    def emit(
        self, to: Listing, line: Line, v: int, lam: int | Array, base: int | None = None, V: Array | None = None,
        start: None = None, *parts: Array,
    ) -> Any:  # fmt: skip
        layer, constants = self.layer, self._named(parts) if parts else {}
        maps = [name for name in ("u", "alpha") if not set(MACHINE[name]).isdisjoint(layer._maps)]
        settings = layer._mixer.settings | layer._iteration.settings | ({"maps": maps} if maps else {})
        matrix = layer._mixer.operands(constants)[0] if "M" in constants else None
        if not isinstance(lam, int):
            zeros = np.zeros(layer.d_state)
            lam = to("BatchNorm", v, zeros, zeros, lam)
        h = to(
            "FixedPoint",
            *(v, lam, base, V, *(flattened(constants, MACHINE[name]) for name in ("u", "alpha")), matrix),
            **settings,
            silu=layer.mixer_silu,
            scaled=layer.scaled,
            direct=layer.direct,
        )
        return self.emitted(to, h, layer.d_state)


@dataclass(frozen=True)
class FixedPointRNN(Iterating):
    """A dense linear RNN ``h_t = A_t h_{t-1} + ...``: the fixed point over depth l of ("Fixed-Point RNNs", eq. 7)

        h^l_t = lam_t * h^l_{t-1} + Q_t v_t + (I - Q_t) h^{l-1}_t,     v_t = B_t x_t,     y_t = C h_t + D * x_t

    which is ``h_t = Q_t^-1 (lam_t * h_{t-1}) + v_t``; or, if `scaled`, in the form of Theorem 3.2

        h^l_t = lam_t * h^l_{t-1} + (1 - lam_t) * [Q_t v_t + (I - Q_t) h^{l-1}_t]

    which is ``h_t = K_t [lam_t * h_{t-1} + (1 - lam_t) * Q_t v_t]``, with
    ``K_t = [I - (1 - lam_t)(I - Q_t)]^-1``. In both ``lam_t = sigmoid(W_lambda x_t + b_lambda)`` in (0, 1),
    ``B_t = diag(sigmoid(W_B x_t + b_B)) B``, and Q_t is made of linear functions of x_t, for the parts in `selective`;
    other parts are constant in time. With `negative`, ``lam_t = 2 sigmoid(W_lambda x_t + b_lambda) - 1`` is in (-1, 1),
    and the scaled form has ``1 - |lam_t|`` in place of ``1 - lam_t``: a scan with lam multiplies its input by up to
    ``1 / (1 - |lam|)``, and with this factor Theorem 3.2 holds for lam of any sign.

    The iteration runs up to a tolerance, and h is one more application F(y) of the step to the last iterate y. The
    gradient "one_step" (Theorem 3.3) is the gradient of this application with y held constant. "implicit" is the exact
    gradient, ``(I - J)^-T`` of the former, found by iterating the adjoint. There is no backpropagation through the
    iteration itself.

    Parameters
    ----------
    d_state : int
        N, the number of real lanes of h.
    mixer, rank : str, int
        Name of Q_t in `rotrnn.nn.fixed_points.mixer.MIXERS`, and its number of vectors: of reflections for
        "householder", of factors for "rotation", of mixers one after the other for "mixture" (at least 2). For
        "monarch" it is the number of channels of a block, a divisor of N; others have no rank.
    selective : sequence of str
        Parts that depend on the input: any of "lambda", "mixer", "B". A mixer that cannot vary stays constant.
    scaled : bool
        Use the form of Theorem 3.2.
    contractive : bool
        Restrict the mixer to ``|I - Q_t| <= 0.95``, so that with `scaled` there is a unique fixed point, reached from
        any start. With a constant lam, each iteration is a contraction (its operator norm is below 1). With lam_t the
        iteration still converges, because no step depends on later steps. A fixed point that is not reached is an error
        instead of a warning.
    accelerated : bool
        Run each iteration through time (eq. 7). If false, use h^{l-1}_{t-1} (eq. 4), which may need T iterations.
    gradient : "one_step" or "implicit"
    tol, max_iterations, train_iterations, gamma_scale, damping, stop
        As in `rotrnn.nn.fixed_points.iteration.Iteration`. The iteration of the adjoint always uses `max_iterations`.
        With damping "anderson", "low_rank" and "dense" need `scaled`, as with "direct".
    solver : "iteration", "direct" or "auto"
        "direct" computes the fixed point of each token exactly, from the fixed point of the token before, by a linear
        system (`rotrnn.ops.fixed_point.depth_solve`), and the exact gradient likewise: in one pass, whether or not the
        iteration would converge. "low_rank" and "dense" need `scaled`: without, the system is Q_t, which is singular,
        or so near to it that float32 gives wrong numbers. With "householder", "dplr" and "low_rank" the system has R
        equations. Systems of the other mixers are solved only on the CPU: with "monarch" R equations for each block,
        else N, which costs ``N^3 / 3`` multiplications a token, but nothing for "rotation" if not scaled, where ``Q^-1
        = Q^T``. Of the settings of the iteration only `tol` then has an effect. Where a system is nearly singular, the
        states are huge and wrong; the residual then shows about how wrong (`rotrnn.ops.fixed_point.depth_solve`), and a
        residual from `tol` on is reported as a fixed point that was not reached. That happens without `scaled` where
        gains alpha are near 1/2, or with "monarch" in blocks of one channel where they round to 1; and with it for a
        "rotation" by half a turn where lam is 1/2. If not `scaled`,
        `transitions` raises for most of these systems. "auto" is "direct", as in the other layers.
    tile : int, optional
        Number of time steps that are iterated together, each tile to its own tolerance from the converged state of the
        tile before. 1 is the sequential form; a small tile stays in the cache and takes fewer iterations per step than
        the whole sequence, which is None, the default. The fixed point is the same. Needs `accelerated`, "sequence" as
        `stop`, and a mixer other than "orthogonal" and "mixture".
    site : int
        Makes the random draws of `train_iterations` different between a model's layers.
    negative : bool
        Transitions from -1 to 1 (Grazzi et al. 2024, "Unlocking State-Tracking in Linear RNNs Through Negative
        Eigenvalues"). `lambda_init` may then be negative, too.
    d_conv : int
        Taps of a short causal convolution, with which ``SiLU(conv(x))`` takes the place of x in all of the above; 0 for
        none. The state is then (the last d_conv - 1 inputs, h).
    separate_convs : bool
        A separate convolution for each part in `selective`, as in the authors' code, and for the x that B and D
        multiply. Needs d_conv. A constant mixer has no convolution. The state then begins with the last inputs of each
        convolution.
    feedback : sequence of str
        Parts that read h_{t-1} beside x_t; none by default. "mixer": the parts of Q_t are ``W_p x_t + V_p h_{t-1}``,
        in each iteration from the last iterate; the mixer must be in `selective`. "output": ``y_t = C (c_t * h_t) + D *
        x_t`` with ``c_t = SiLU(W_c x_t + V_c h_{t-1})``. Given the past, the system of a token is as before, so the
        guarantee of `contractive` holds. Feedback to the mixer needs "iteration" as solver and no `tile`.
    unit_eps : float
        The mixer's vectors u are divided by ``max(|u|, unit_eps)``, as in the authors' code, where it is 1e-5 (with
        the mixer "dense", 0 is nearer to that code). With 0, vectors of any length have length 1, and a zero vector
        stays zero.
    spectral : bool
        Spectral normalisation of a "kronecker" mixer, or of the "kronecker" mixers of a "mixture", as in the authors'
        code of this layer (`rotrnn.nn.fixed_points.mixer.Kronecker`).
    mixer_silu : bool
        The mixer's vectors pass through SiLU before they are normalised: ``u_t = SiLU(W_u x_t)``, or with feedback
        ``SiLU(W_u x_t + V_u h_{t-1})``. The mixer must be in `selective`.
    symmetric : bool
        The parts of the mixer are functions of ``x_t + h_{t-1}``: V_p = W_p. Needs "mixer" in `feedback`, and
        d_state = d_model, since here x_t has d_model channels.

    The authors' code differs from this layer. x_t and h_t there have the same inner width. SiLU on u is the default,
    alpha has a bias, and the mixer's maps are weight-normed. The input is ``SiLU(W_b x_t) * x_t``, with no matrix B.
    The output is ``W_out RMSNorm(SiLU(z_t) * c_t * h_t)``, with a second map z_t of the layer's input, and no C and D.
    With convolutions, c_t reads a convolution of x and h, up to h_t itself.

    Parameters (dict of float32): b_lambda (N,), B (N, D), C (D, N), D (D,); W_lambda (N, D); W_B (N, D), b_B (N,); for
    each part p of the mixer, "p" if it is constant, e.g. u (R, N) and alpha (R,), or M (N, N); else "W_p", with an
    additional last axis D, and with feedback "V_p", with an additional last axis N, unless it is symmetric; W_c (N, D),
    V_c (N, N); conv_w (D, d_conv) and conv_bias (D,) of the convolution, for part p with the suffix "_p", initially
    uniform on +-1/sqrt(d_conv).

    Initial values: lam uniform on `lambda_init` and W_lambda = 0 (section 4.5); B, W_B and the mixer's W ~ N(0, 1/D),
    b_B = 0, constant parts ~ N(0, 1), M ~ N(0, 1/32N) for angles up to about 1/2, C ~ N(0, 1/N), D ~ N(0, 1), W_c ~
    N(0, 1/D), V_p and V_c ~ N(0, 1/N).
    """

    about: ClassVar[str] = "dense linear RNN with a vector state, the fixed point in depth of a diagonal one"
    paper: ClassVar[str] = "Movahedi, Sarnthein, Cirone, Orvieto: Fixed-Point RNNs (2025), sections 3 and 4.1"
    recurrent: ClassVar[frozenset[str]] = frozenset(
        {"W_lambda", "b_lambda", "B", "W_B", "b_B", "M"}
        | {name for part in (*VECTORS, *GAINS) for name in (part, f"W_{part}", f"V_{part}")}
    )
    lanes: ClassVar[str] = "d_state"

    d_state: int
    mixer: str = "householder"
    rank: int = 1
    selective: tuple[str, ...] = SELECTIVE
    lambda_init: tuple[float, float] = (0.9, 0.999)
    scaled: bool = True
    contractive: bool = False
    accelerated: bool = True
    gradient: str = "one_step"
    tol: float = 0.1
    max_iterations: int = 100
    train_iterations: int | str | None = None
    gamma_scale: float = 1.0
    damping: str = "adaptive"
    stop: str = "sequence"
    solver: str = "iteration"
    tile: int | None = None
    site: int = 0
    negative: bool = False
    d_conv: int = 0
    separate_convs: bool = False
    feedback: tuple[str, ...] = ()
    unit_eps: float = 0.0
    spectral: bool = False
    mixer_silu: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "rank", "tile")
        self.check_sizes("site", "d_conv", least=0)
        self.check_parts("selective", SELECTIVE)
        self.check_parts("feedback", FEEDBACK)
        self.check_choice("mixer", MIXERS)
        self.check_choice("gradient", GRADIENTS)
        self.check_choice("solver", SOLVERS)
        low, high = self.lambda_init
        least = -1 if self.negative else 0
        if not least < low <= high < 1:
            raise ValueError(f"FixedPointRNN: lambda_init={self.lambda_init}, expected {least} < low <= high < 1")
        if self.contractive and not self.scaled:
            raise ValueError(
                "FixedPointRNN: contractive=True with scaled=False, expected the scaled form (Theorem 3.2)"
            )
        check_settings(self)
        direct, tiled = self.direct, self.tile is not None
        singular, scaled = self.mixer in SCALED and not self.scaled, f"True for {self.mixer!r}"
        fed, reads, varying = "mixer" in self.feedback, self._varies("mixer"), self._mixer.varying
        for key, fails, by, expected in (
            ("solver", direct and singular, "scaled", scaled),
            ("damping", self.damping == "anderson" and singular, "scaled", scaled),
            ("feedback", fed and direct, "solver", "'iteration'"),
            ("feedback", fed and tiled, "tile", "None"),
            ("feedback", fed and not varying, "mixer", "one that can vary"),
            ("feedback", fed and not reads, "selective", "with 'mixer'"),
            ("mixer_silu", self.mixer_silu and not varying, "mixer", "one that can vary"),
            ("mixer_silu", self.mixer_silu and not reads, "selective", "with 'mixer'"),
            ("symmetric", self.symmetric and not fed, "feedback", "with 'mixer'"),
            ("symmetric", self.symmetric and self.d_state != self.d_model, "d_state", f"d_model, {self.d_model}"),
            ("separate_convs", self.separate_convs and not self.d_conv, "d_conv", "1 or more"),
            ("tile", tiled and direct, "solver", "'iteration'"),
            ("tile", tiled and self.mixer not in TILED, "mixer", f"one of {', '.join(TILED)}"),
            ("tile", tiled and not self.accelerated, "accelerated", "True"),
            ("tile", tiled and self.stop != "sequence", "stop", "'sequence', as each tile ends by its own residual"),
        ):
            if fails:
                values = f"{key}={getattr(self, key)!r} with {by}={getattr(self, by)!r}"
                raise ValueError(f"FixedPointRNN: {values}, expected {by} to be {expected}")

    @cached_property
    def _mixer(self) -> Mixer:
        return MIXERS[self.mixer](self.d_state, self.rank, self.contractive, self.unit_eps, self.spectral)

    @cached_property
    def _iteration(self) -> Iteration:
        limits = self.max_iterations, self.train_iterations
        return Iteration(self.tol, *limits, self.damping, self.stop, self.gamma_scale)

    @property
    def direct(self) -> bool:
        """Whether the fixed point is found directly, and not by iteration."""
        return self.solver != "iteration"

    @property
    def _asking(self) -> dict[str, Any]:
        return {"site": self.site, "name": type(self).__name__, "guaranteed": self.contractive}

    def _varies(self, part: str) -> bool:
        return part in self.selective and (part != "mixer" or self._mixer.varying)

    @property
    def _convs(self) -> tuple[str, ...]:
        """Parts with a separate convolution, and "" for x; none without convolutions."""
        own = [part for part in SELECTIVE if self.separate_convs and self._varies(part)]
        return ("", *own) if self.d_conv else ()

    @cached_property
    def _maps(self) -> Maps:
        """Returns the maps of the mixer's parts, if they vary, in the order of `MACHINE`."""
        parts = self._mixer.parts if self._varies("mixer") else {}
        return mixer_maps({name: parts[name] for name in (*VECTORS, *GAINS) if name in parts}, self.mixer_silu)

    @cached_property
    def _late(self) -> dict[str, str]:
        """Returns the names of the weights of h_{t-1} by part of the mixer, if it reads it."""
        weights = "W" if self.symmetric else "V"
        return {name: f"{weights}_{name}" for name in self._maps} if "mixer" in self.feedback else {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        shapes: dict[str, tuple[int, ...]] = {"b_lambda": (N,), "B": (N, D), "C": (D, N), "D": (D,)}
        if self._varies("lambda"):
            shapes["W_lambda"] = (N, D)
        if self._varies("B"):
            shapes |= {"W_B": (N, D), "b_B": (N,)}
        for name, shape in self._mixer.parts.items():
            shapes |= {f"W_{name}": (*shape, D)} if self._varies("mixer") else {name: shape}
        shapes |= {late: (*self._maps[name].shape, N) for name, late in self._late.items()}
        if "output" in self.feedback:
            shapes |= {"W_c": (N, D), "V_c": (N, N)}
        for part in self._convs:
            shapes |= conv_shapes(D, self.d_conv, part)
        return shapes

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        lam = rng.uniform(*self.lambda_init, N)
        scale = {"C": N**-0.5, "D": 1.0, "W_lambda": 0.0, "b_B": 0.0, "B": D**-0.5, "M": (32 * N) ** -0.5}
        share = (1 + lam) / 2 if self.negative else lam
        fixed = {"b_lambda": np.log(share / (1 - share))}
        for part in self._convs:
            fixed |= initial_conv(rng, D, self.d_conv, part)
        params = {}
        for name, shape in self.shapes.items():
            ends = {"W_": D, "V_": N}.get(name[:2], 1)
            size = scale.get(name, ends**-0.5)
            params[name] = fixed[name] if name in fixed else size * rng.standard_normal(shape)
        return astype(params, np.float32)

    def program(self) -> Program:
        """The state is h (B, N), behind the last d_conv - 1 inputs (B, d_conv - 1, D) of each convolution."""
        p = Builder(self)
        N, inputs = self.d_state, {}
        for part in self._convs:
            inputs[part] = p(SiLU(), p(Conv(), p.x, *conv_names(part)))
        x = inputs.get("", p.x)
        v = p(Dense(), x, "B")
        if self._varies("B"):
            v = p(Product(), p(Sigmoid(), p(Dense(), inputs.get("B", x), "W_B", "b_B")), v)
        z: Any = "b_lambda"
        if self._varies("lambda"):
            z = p(Dense(), inputs.get("lambda", x), "W_lambda", "b_lambda")
        lam = p(Sigmoid(), z)
        shown = {"v": v, "lam": p(Affine(2, -1), lam) if self.negative else lam}
        V, parts = None, () if self._varies("mixer") else tuple(self._mixer.parts)
        if maps := self._maps:
            sizes, late = tuple(one.width for one in maps.values()), [self._late.get(name) for name in maps]
            W = p(Rows(sizes, self.d_model), *(f"W_{name}" for name in maps))
            shown["base"], V = p(Dense(), inputs.get("mixer", x), W), p(Rows(sizes, N), *late) if any(late) else None
        fed = "output" in self.feedback
        given = shown["v"], shown["lam"], shown.get("base"), V, p.given("start", N)
        found = p(FixedPoint(self, fed), *given, *parts)
        h, product = found, found
        if fed:
            h, before = found
            gate = p(SiLU(), p(Sum(), p(Dense(), x, "W_c"), p(Dense(), before, "V_c")))
            product = p(Product(), gate, h)
        return p.returns(p(Skip(), x, "D", None, p(Dense(), product, "C")), h=h, **shown)

    def transitions(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the dense A_t (B, T, N, N) of ``h_t = A_t h_{t-1} + ...``, the recurrence of the fixed point.

        That is ``K_t diag(lam_t)`` if `scaled`, else ``Q_t^-1 diag(lam_t)``. Nothing is iterated: A_t depends on x_t
        alone, and exists where the iteration does not converge, too. With feedback to the mixer, A_t also depends on
        h_{t-1}, taken from `forward` and held constant. Zero beyond the lengths. `state` is the state before x, which
        feedback and a convolution read.

        Raises
        ------
        TypeError, ValueError
            As `forward`; and if a Q_t has no inverse to rounding though the layer is not `scaled`, as with the mixer
            "low_rank", and often with "dense".
        """
        name = f"{type(self).__name__}.transitions"
        if self._late:
            _, saved = self.forward(params, x, ctx, state)
            return along(saved.found, lambda one: one.depth.transitions(name, one.iterate, one.lengths))
        names = [name for name in ("v", "lam", "base") if name in self.shown]
        found = self.registers(params, x, ctx, state, names=names)
        parts = () if self._varies("mixer") else tuple(params[one] for one in self._mixer.parts)
        v, lam, base = found["v"], found["lam"], found.get("base")
        lengths = lengths_of(ctx, v)
        depth = FixedPoint(self, False).depth(v, lam, base, None, None, parts, lengths)
        return depth.transitions(name, v, lengths)
