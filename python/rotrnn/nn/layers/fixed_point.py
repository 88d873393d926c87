"""The vector-state Fixed-Point RNN: a dense linear RNN, computed as the fixed point in depth of a diagonal one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.devices.device import beside, contiguous
from rotrnn.devices.recording import NotRecordable, recording
from rotrnn.nn.fixed_points.convolution import (
    Convolved,
    conv_shapes,
    conv_state,
    convolve,
    convolve_backward,
    emit_convolved,
    initial_conv,
)
from rotrnn.nn.fixed_points.iteration import (
    CYCLE,
    PATIENCE,
    SHRINK,
    SOLVERS,
    Iteration,
    Report,
    Steps,
    add_to_last_steps,
    check_settings,
    has_steps,
    in_one_call,
    iterate,
    last_steps,
    lengths_of,
    solve,
)
from rotrnn.nn.fixed_points.maps import MACHINE, Lagged, Map, Maps, emit_sums, flattened, lagged, mixer_maps
from rotrnn.nn.fixed_points.mixer import GAINS, MIXERS, VECTORS, Mixer, Operands, Parts, spectral_norms, varies
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
from rotrnn.nn.listing import Listing
from rotrnn.nn.scaling import exponents, times_power
from rotrnn.ops.boundary import Boundary, CheckedLengths
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.fixed_point import DepthSolution, depth_pass, depth_solve
from rotrnn.ops.pointwise import mask_padding, sigmoid
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

SELECTIVE = ("lambda", "mixer", "B")
FEEDBACK = ("mixer", "output")
GRADIENTS = ("one_step", "implicit")
TILED = tuple(name for name in MIXERS if name not in ("orthogonal", "mixture"))
"""Mixers that a kernel applies to single tokens."""
SCALED = ("low_rank", "dense")
"""Mixers that are solved directly only in the scaled form. Without it the system is Q_t, which has no inverse, or for
"dense" at its initial values none to rounding: its condition number is the square of a triangle's."""
MOST_IN_MATRICES = 1 << 24
"""Most numbers in the matrices of tokens formed at once."""


class DepthGrads(NamedTuple):
    """Gradients through one application: of lam (in its shape), v (B, T, N), the mixer's parts (if they depend on the
    iterate, of what they are maps of, and of V), and h0 (B, N)."""

    dlam: Array
    dv: Array
    dparts: Parts
    dV: Array | None
    dh0: Array


@dataclass(frozen=True)
class Depth:
    """One step in depth, ``F(y)_t = lam_t F(y)_{t-1} + gain_t [Q_t (v_t - y_t) + y_t]``, and its adjoint.

    `lam` is (N,) or (B, T, N); gain is ``1 - |lam|`` if `scaled`, else 1; v is (B, T, N) and h0 (B, N). If not
    `accelerated`, the previous state is taken from the old iterate: ``lam_t y_{t-1}`` (eq. 4 of the paper instead of
    eq. 7). The mixer is made of `parts` and their `operands`; or, if they are None, of the maps `driven` of y_{t-1}.
    `direct`: whether the layer solves directly. `tile` is the layer's.
    """

    lam: Array
    v: Array
    mixer: Mixer
    parts: Parts | None
    operands: Operands | None
    driven: Lagged | None
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
        if self.driven is None or late is None:
            return pulled  # no step reads its predecessor
        dparts = self.mixer.operands_backward(parts, operands, grads.operands)
        dlate = self.driven.backward(dparts, late, lengths).dlate
        assert dlate is not None
        assert self.driven.V is not None
        return pulled + dense(dlate, contiguous(self.driven.V.T))

    def _mixing(self, y: Array, lengths: Steps) -> tuple[Parts, Operands, Array | None]:
        """Returns parts and operands of the mixer at y, and V y if they depend on y."""
        if self.driven is None:
            assert self.parts is not None
            assert self.operands is not None
            return self.parts, self.operands, None
        late = self.driven.late(y)
        parts = self.driven(late, lengths)
        return parts, self.mixer.operands(parts), late

    def _operands(self, y: Array, lengths: Steps) -> Operands:
        if self.driven is not None:
            return self.mixer.operands(self.driven.of_output(y, lengths))
        assert self.operands is not None
        return self.operands

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
                out[:, at], h = part.h, last_steps(part.h, steps, h)
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
            dlam = dlam - np.copysign(1, self.lam) * self._summed(w * mixed, self.lam)
        dparts = self.mixer.operands_backward(parts, operands, grads.operands)
        if self.driven is None:
            return DepthGrads(dlam, grads.dx, dparts, None, dh0)
        of_maps = self.driven.backward(dparts, late, lengths)
        dV, dfirst = self.driven.weights_backward(of_maps, y)
        return DepthGrads(dlam, grads.dx, self.driven.split(of_maps.dbase), dV, dh0 + dfirst)

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
        return (1 - np.abs(self.lam)) * x if self.scaled else x

    def _before(self, y: Array) -> Array:
        return np.concatenate([self.h0[:, None], y], 1)[:, :-1]

    @staticmethod
    def _summed(x: Array, like: Array) -> Array:
        return x.sum((0, 1)) if like.ndim == 1 else x


class OutputSaved(NamedTuple):
    """The map c_t of x_t and h_{t-1} that multiplies h_t, V h, the values of c (B, T, N), and c * h."""

    map: Lagged
    late: Array | None
    values: Array
    product: Array


class FixedPointSaved(NamedTuple):
    """Saved for backward: x with zeroed padding and the inputs of its parts (outputs of the convolutions, if any), the
    convolutions by part, intermediate values, the mixer's maps if some are not linear (with feedback, the step's maps),
    the step in depth, the iterate before its last application, the fixed point h as `iterate` (B, T, N), the map of the
    output, and the report of the iteration."""

    inputs: dict[str, Array]
    convolved: dict[str, Convolved]
    drive: Array
    gate: Array | None
    known: Lagged | None
    depth: Depth
    before: Array
    iterate: Array
    output: OutputSaved | None
    lengths: Steps
    fused: bool
    report: Report
    state: State

    @property
    def x(self) -> Array:
        """The weights of the input and of the skip."""
        return self.inputs[""]

    @property
    def iterations(self) -> Steps:
        """Number of iterations of each sequence."""
        return self.report.iterations

    @property
    def residual(self) -> Array:
        """Residual of the last iteration of each sequence."""
        return self.report.residual


class _Collected:
    """Gradients that backward adds up: of the inputs of parts, by the part's name, and of parameters."""

    def __init__(self, params: Params, saved: FixedPointSaved) -> None:
        self.params, self.saved = params, saved
        self.dinputs: dict[str, Array] = {}
        self.dparams: Params = {}

    def affine(self, dz: Array, of: str, weight: str, bias: str | None = None) -> None:
        """Adds the gradients of a linear function z of the input of the part `of`."""
        w, x = self.params[weight], self.saved.x
        rows = w.reshape(-1, x.shape[-1])
        part = of if of in self.saved.convolved else ""
        back = dense_backward(dz.reshape(*x.shape[:2], len(rows)), self.saved.inputs[part], rows)
        self.dinputs[part] = self.dinputs[part] + back.dx if part in self.dinputs else back.dx
        self.dparams[weight] = back.dw.reshape(w.shape)
        if bias is not None:
            self.dparams[bias] = back.dbias


@dataclass(frozen=True)
class FixedPointRNN(Recurrent):
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
    solver : "iteration", "direct" or "auto"
        "direct" computes the fixed point of each token exactly, from the fixed point of the token before, by a linear
        system (`rotrnn.ops.fixed_point.depth_solve`), and the exact gradient likewise: in one pass, whether or not the
        iteration would converge. "low_rank" and "dense" need `scaled`: without, the system is Q_t, which is singular,
        or so near to it that float32 gives wrong numbers. With "householder", "dplr" and "low_rank" the system has R
        equations. Systems of the other mixers are solved only on the CPU: with "monarch" R equations for each block,
        else N, which costs ``N^3 / 3`` multiplications a token, but nothing for "rotation" if not scaled, where ``Q^-1
        = Q^T``. The settings of the iteration and `start` then have no effect. The residual is still computed, but it
        is relative to F(y), and does not show that a system is singular or nearly so. Then the states are huge and
        wrong, with a small residual and no warning, or not finite, which is reported as a fixed point that was not
        reached. That happens without `scaled` where gains alpha are near 1/2, or with "monarch" in blocks of one
        channel where they round to 1; and with it for a "rotation" by half a turn where lam is 1/2. If not `scaled`,
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
        none. The state is then (h, the last d_conv - 1 inputs).
    separate_convs : bool
        A separate convolution for each part in `selective`, as in the authors' code, and for the x that B and D
        multiply. Needs d_conv. A constant mixer has no convolution.
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
        direct, tiled = self._direct, self.tile is not None
        fed, reads, varying = "mixer" in self.feedback, self._varies("mixer"), self._mixer.varying
        for key, fails, by, expected in (
            ("solver", direct and self.mixer in SCALED and not self.scaled, "scaled", f"True for {self.mixer!r}"),
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

    @property
    def _mixer(self) -> Mixer:
        return MIXERS[self.mixer](self.d_state, self.rank, self.contractive, self.unit_eps, self.spectral)

    @property
    def _iteration(self) -> Iteration:
        limits = self.max_iterations, self.train_iterations
        return Iteration(self.tol, *limits, self.damping, self.stop, self.gamma_scale)

    @property
    def _direct(self) -> bool:
        return self.solver != "iteration"

    def together(self, ctx: Context) -> bool:
        return self._iteration.ends_together

    def _varies(self, part: str) -> bool:
        return part in self.selective and (part != "mixer" or self._mixer.varying)

    @property
    def _convs(self) -> tuple[str, ...]:
        """Parts with a separate convolution, and "" for x; none without convolutions."""
        own = [part for part in SELECTIVE if self.separate_convs and self._varies(part)]
        return ("", *own) if self.d_conv else ()

    @property
    def _maps(self) -> Maps:
        """Returns the maps of the mixer's parts, if they vary."""
        return mixer_maps(self._mixer.parts, self.mixer_silu) if self._varies("mixer") else {}

    @property
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

    @property
    def hidden(self) -> StateArray:
        return StateArray("h", (self.d_state,))

    @property
    def state_form(self) -> StateForm:
        h = StateArray("h", (self.d_state,))
        return (h, *conv_state(self.d_model, self.d_conv)) if self.d_conv else h

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

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None, start: Array | None = None
    ) -> tuple[Array, FixedPointSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D) and `state` (B, N), real, or with a convolution ((B, N), (B,
        d_conv - 1, D)). `start` (B, T, N) is the first iterate (default 0).

        Warns `NotConverged`, or raises `ConvergenceError` if `contractive`, if the fixed point is not reached.
        """
        return self._forward(params, self._constants(params), x, ctx, state, start)

    def prepare(self, params: Params) -> Params:
        """Returns the params, and the operands of a constant mixer."""
        return {"params": params, **self._constants(params)}

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        prepared = trusted(self.prepare)(params) if prepared is None else prepared
        y, saved = self._forward(prepared["params"], prepared, x_t[:, None], EVALUATION, state, None)
        return y[:, 0], saved.state

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return self.emitted(to, params, x)["y"]

    def emitted(self, to: Listing, params: Params, x: int) -> dict[str, int]:
        N, D, wide, convolved = self.d_state, self.d_model, to.exact(params), {}
        for part in self._convs:
            convolved[part] = emit_convolved(to, params, x, part)
        shared = convolved.get("", x)

        def rows(part: str, weight: str, bias: str = "", width: int = N) -> tuple[int, Array, Array]:
            W, b = wide.get(weight, np.zeros((width, D))), wide.get(bias, np.zeros(width))
            return convolved.get(part, shared), W.reshape(width, D), b.ravel()

        maps = {"delta": rows("lambda", "W_lambda", "b_lambda"), "C": rows("", "B")}
        if self._varies("B"):
            maps["B"] = rows("B", "W_B", "b_B")
        V: dict[str, Array] = {}
        constants: list[Array | None] = [None, None, None]
        if self._varies("mixer"):
            for name in ("u", "alpha"):
                W = flattened(wide, [f"W_{one}" for one in MACHINE[name]], D)
                late = flattened(wide, [self._late.get(one, "") for one in MACHINE[name]], N)
                if W is not None:
                    maps[name] = convolved.get("mixer", shared), W, np.zeros(len(W))
                if late is not None:
                    V[name] = late
        elif "M" in params:
            constants[2] = self._mixer.operands({"M": wide["M"]})[0]
        else:
            constants[:2] = [flattened(wide, MACHINE[name]) for name in ("u", "alpha")]
        names = [name for name in MACHINE if name in maps and name not in V]
        sums = emit_sums(to, [maps[name] for name in (*names, *V)])
        gate, V_gate = None, None
        if "output" in self.feedback:
            gate, V_gate = to("Dense", shared, params["W_c"]), params["V_c"]
        h = to(
            "FixedPoint",
            *(sums, np.concatenate([*V.values()]) if V else None, gate, V_gate, *constants),
            **self._mixer.settings,
            **self._iteration.settings,
            width=N,
            maps=[*names, *V],
            silu=self.mixer_silu,
            scaled=self.scaled,
            negative=self.negative,
            direct=self._direct,
        )
        return {"y": to("Skip", shared, params["D"], to("Dense", h, params["C"])), "h": h}

    def _constants(self, params: Params) -> Params:
        if self._varies("mixer"):
            return {}
        parts = {name: params[name] for name in self._mixer.parts}
        return {"parts": parts, "operands": self._mixer.operands(parts)}

    def _forward(
        self, params: Params, constants: Params, x: Array, ctx: Context, state: State, start: Array | None
    ) -> tuple[Array, FixedPointSaved]:
        args = Boundary(f"{type(self).__name__}.forward")
        args.bind("D", self.d_model, "d_model")
        args.bind("N", self.d_state, "d_state")
        x = args.array("x", x, "B T D")
        h0, tail = self._leaves(args, "state", state)
        start = args.optional("start", start, "B T N")
        steps = args.lengths(ctx.lengths)
        B, T = x.shape[:2]
        lengths = lengths_of(ctx, x)
        x, h0, tail, start, *_ = args.common(x, h0, tail, start, *params.values())
        inputs, convolved = self._inputs(params, mask_padding(x, steps), tail, lengths)
        depth, drive, gate, known = self._depth(params, constants, inputs, h0, lengths)
        y = np.zeros((B, T, self.d_state), x.dtype, like=x) if start is None else mask_padding(start, lengths)
        h, report = depth.solve(y, self._iteration, ctx, **self._asking)
        output = self._output(params, inputs[""], h, depth.h0, lengths)
        product = h if output is None else output.product
        out = mask_padding(dense(product, params["C"]) + params["D"] * inputs[""], steps)
        last: State = last_steps(h, lengths, depth.h0).astype(x.dtype)
        last = (last, convolved[""].after) if convolved else last
        return out, FixedPointSaved(
            inputs, convolved, drive, gate, known, depth, y, h, output, lengths, ctx.fused, report, last
        )

    def _inputs(
        self, params: Params, x: Array, tail: Array | None, lengths: Steps
    ) -> tuple[dict[str, Array], dict[str, Convolved]]:
        """Returns the x of each selective part, and under "" the x of the rest; and their convolutions."""
        convolved = {}
        for part in self._convs:
            one = convolve(x, params, tail, lengths, part)
            assert one is not None
            convolved[part] = one
        shared = convolved[""].u if convolved else x
        return {part: convolved[part].u if part in convolved else shared for part in ("", *SELECTIVE)}, convolved

    def _output(self, params: Params, x: Array, h: Array, h0: Array, lengths: Steps) -> OutputSaved | None:
        if "output" not in self.feedback:
            return None
        maps = lagged({"c": Map((self.d_state,), "silu")}, dense(x, params["W_c"]), params["V_c"], h0)
        late = maps.late(h)
        values = maps(late, lengths)["c"]
        return OutputSaved(maps, late, values, values * h)

    def _leaves(self, args: Boundary, name: str, state: State) -> tuple[Array | None, Array | None]:
        """Returns h and the last inputs of the convolution of a state or its gradient, each None if not there."""
        if not self.d_conv:
            return args.optional(name, state, "B N"), None
        args.bind("K-1", self.d_conv - 1, "d_conv")
        h, tail = (None, None) if state is None else state
        return args.optional(f"{name}.0", h, "B N"), args.optional(f"{name}.1", tail, "B K-1 D")

    @property
    def _asking(self) -> dict[str, Any]:
        return {"site": self.site, "name": type(self).__name__, "guaranteed": self.contractive}

    def _depth(
        self, params: Params, constants: Params, inputs: dict[str, Array], h0: Array | None, lengths: Steps
    ) -> tuple[Depth, Array, Array | None, Lagged | None]:
        """Returns the step in depth, B x, the gate of B_t, and maps of the mixer without feedback that are not all
        linear."""
        x = inputs[""]
        z, mixer = params["b_lambda"].astype(x.dtype), self._mixer
        h0 = np.zeros((len(x), self.d_state), x.dtype, like=x) if h0 is None else h0
        if self._varies("lambda"):
            z = dense(inputs["lambda"], params["W_lambda"], z)
        drive = dense(x, params["B"])
        gate = sigmoid(dense(inputs["B"], params["W_B"], params["b_B"])) if self._varies("B") else None
        parts, operands, driven, known = constants.get("parts"), constants.get("operands"), None, None
        if parts is None:
            maps, late = self._maps, self._late
            sums = {name: dense(inputs["mixer"], params[f"W_{name}"].reshape(-1, self.d_model)) for name in maps}
            if late:
                V = np.concatenate([params[late[name]].reshape(-1, self.d_state) for name in maps])
                driven = lagged(maps, np.concatenate(list(sums.values()), -1), V, h0)
            elif self.mixer_silu:
                known = Lagged(maps, np.concatenate(list(sums.values()), -1))
                parts = known(None, lengths)
            else:
                parts = {name: sums[name].reshape(*x.shape[:2], *one.shape) for name, one in maps.items()}
            operands = None if parts is None else mixer.operands(parts)
        share = sigmoid(z)
        depth = Depth(
            2 * share - 1 if self.negative else share,
            drive if gate is None else gate * drive,
            mixer,
            parts,
            operands,
            driven,
            h0,
            self.scaled,
            self.accelerated,
            self._direct,
            self.tile,
        )
        return depth, drive, gate, known

    def backward(
        self, params: Params, saved: FixedPointSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None). `dh` (B, T, N), if
        given by another module, is a further gradient of `hidden_states`."""
        x, lengths = saved.x, saved.lengths
        args = Boundary(f"{type(self).__name__}.backward")
        for letter, size in zip("BTDN", (*x.shape, self.d_state), strict=True):
            args.bind(letter, size, "x")
        dy = args.array("dy", dy, "B T D")
        dhT, dafter = self._leaves(args, "dstate", dstate)
        dy, _ = args.common(dy, x)
        found = _Collected(params, saved)
        dhidden, dfirst = self._output_backward(found, mask_padding(dy, lengths))
        if dh is not None:
            dhidden = dhidden + dh
        if dhT is not None:
            add_to_last_steps(dhidden, lengths, dhT)
        if self.gradient == "implicit":
            dhidden = self._implicit(saved, dhidden)
        through = saved.depth.backward(dhidden, saved.before, saved.iterate, lengths)
        self._step_backward(found, through)
        dh0 = through.dh0 if dfirst is None else through.dh0 + dfirst
        if dhT is not None:
            dh0 = np.where(has_steps(lengths, dh0), dh0, dhT)
        dx, dtail = self._inputs_backward(found, dafter)
        dparams = {name: found.dparams[name] for name in self.shapes}
        return dx, dparams, (dh0, dtail) if saved.convolved else dh0

    def _output_backward(self, found: _Collected, dy: Array) -> tuple[Array, Array | None]:
        """Through ``y = C (c * h) + D * x``, where c is a map or 1. Returns the gradients of h, and of the state that a
        map which reads the step before reads first."""
        params, saved, output = found.params, found.saved, found.saved.output
        product = dense_backward(dy, saved.iterate if output is None else output.product, params["C"])
        found.dparams |= {"C": product.dw, "D": (dy * saved.x).sum((0, 1))}
        found.dinputs[""] = dy * params["D"]
        if output is None:
            return product.dx, None
        of_map = output.map.backward({"c": product.dx * saved.iterate}, output.late, saved.lengths)
        found.dparams["V_c"], dfirst = output.map.weights_backward(of_map, saved.iterate)
        found.affine(of_map.dbase, "", "W_c")
        dh = product.dx * output.values
        if of_map.dlate is not None:
            dh += dense(of_map.dlate, contiguous(params["V_c"].T))
        return dh, dfirst

    def _step_backward(self, found: _Collected, through: DepthGrads) -> None:
        """Through the inputs of one application of the step: lambda, the driven inputs with their gate, and the
        mixer."""
        params, saved, lam = found.params, found.saved, found.saved.depth.lam
        dz = through.dlam * (1 + lam) * (1 - lam) / 2 if self.negative else through.dlam * lam * (1 - lam)
        if self._varies("lambda"):
            found.affine(dz, "lambda", "W_lambda", "b_lambda")
        else:
            found.dparams["b_lambda"] = dz
        dv = through.dv
        if saved.gate is not None:
            found.affine(dv * saved.drive * saved.gate * (1 - saved.gate), "B", "W_B", "b_B")
            dv = dv * saved.gate
        found.affine(dv, "", "B")
        dparts, known = through.dparts, saved.known
        if known is not None:
            dparts = known.split(known.backward(dparts, None, saved.lengths).dbase)
        for name, dpart in dparts.items():
            if self._varies("mixer"):
                found.affine(dpart, "mixer", f"W_{name}")
            else:
                found.dparams[name] = dpart
        if through.dV is not None:
            ends = np.cumsum([one.width for one in self._maps.values()])[:-1].tolist()
            for late, rows in zip(self._late.values(), np.split(through.dV, ends), strict=True):
                own = rows.reshape(params[late].shape)
                found.dparams[late] = found.dparams[late] + own if self.symmetric else own

    def _inputs_backward(self, found: _Collected, dafter: Array | None) -> tuple[Array, Array | None]:
        """Through the convolutions of the parts' inputs. Returns the gradients of x, and of the inputs before it."""
        saved = found.saved
        if not saved.convolved:
            return found.dinputs[""], None
        dx, dtail = np.zeros_like(saved.x), None
        for part, convolved in saved.convolved.items():
            after = dafter if part == "" else None
            own, dconv, dbefore = convolve_backward(
                found.dinputs[part], convolved, found.params, after, saved.lengths, part
            )
            dx, dtail = dx + own, dbefore if dtail is None else dtail + dbefore
            found.dparams |= dconv
        return dx, dtail

    def _implicit(self, saved: FixedPointSaved, dh: Array) -> Array:
        """Returns ``(I - J^T)^-1 dh``, whose scan in time is the fixed point w of ``w = scan^T (dh + mixer^T w)``."""
        depth, w, size = saved.depth, np.zeros_like(dh), exponents(dh)
        dh = times_power(dh, -size)
        ctx = Context(saved.lengths, fused=saved.fused)  # evaluation mode: without the limit of training
        asking = self._asking | {"name": f"{type(self).__name__}.backward"}
        depth.solve_adjoint(w, dh, saved.before, self._iteration, ctx, **asking)
        return times_power(depth.pull(w, dh, saved.before, saved.lengths) if self.accelerated else w, size)

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
            saved = self._forward(params, {}, x, ctx, state, None)[1]
            return saved.depth.transitions(name, saved.iterate, saved.lengths)
        args = self.boundary("transitions")
        args.array("x", x, "B T D")
        args.bind("N", self.d_state, "d_state")
        h0, tail = self._leaves(args, "state", state)
        x, h0, tail, *_ = args.common(x, h0, tail, *params.values())
        lengths = lengths_of(ctx, x)
        inputs = self._inputs(params, mask_padding(x, lengths), tail, lengths)[0]
        depth = self._depth(params, self._constants(params), inputs, h0, lengths)[0]
        return depth.transitions(name, depth.v, lengths)

    def eigenvalues(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> Array:
        """Returns the eigenvalues of A_t (B, T, N), complex128, along sequences. Arguments as in `transitions`."""
        return spectrum("FixedPointRNN.eigenvalues", self.transitions(params, x, ctx, state))

    def token_norms(self, saved: FixedPointSaved) -> Array:
        return saved.depth.token_norms(saved.iterate, saved.lengths)

    def report(self, saved: FixedPointSaved) -> dict[str, float]:
        return saved.report.numbers()

    def hidden_states(self, saved: FixedPointSaved) -> Array:
        return saved.iterate
