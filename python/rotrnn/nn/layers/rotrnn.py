"""RotRNN: linear recurrence by learned rotations ("RotRNN: Modelling Long Sequences with Rotations", 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import contiguous, einsum, full, is_writeable
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, astype, trusted
from rotrnn.nn.layers.linear import LinearRecurrence, ring
from rotrnn.nn.scaling import bounded_exp, exponents, times_power
from rotrnn.nn.spectrum import Measured, NormBound, measure, measure_backward, norm_bound
from rotrnn.ops.dense import matmul
from rotrnn.ops.linear_layer import System, complex_of
from rotrnn.ops.orthogonal import orthogonal, orthogonal_backward

NORMALISATIONS = ("input", "alpha", "spectrum", "bounded")
MOMENTUM = 0.9
"""Momentum of the running spectrum, as for the statistics of batch norm."""


class Folding(NamedTuple):
    """For each head: P (H, W, W), P^T B' (H, W, D); and (H,) each: the gain xi' of B', gamma, |a|, tr(B'^T B'), the
    energy V, and the exponent e of B = 2^e B'. With "bounded" also the bound of |B'|. If gradients pass through the
    spectrum of a batch, also the measurement."""

    P: Array
    PtB: Array
    xi: Array
    gamma: Array
    modulus: Array
    trace: Array
    energy: Array
    exponent: npt.NDArray[np.int32]
    bound: NormBound | None = None
    measured: Measured | None = None


@dataclass(frozen=True)
class RotRNN(LinearRecurrence):
    """``x_t = gamma P R(theta) P^T x_{t-1} + xi B u_t`` per head, ``y_t = C x_t + D * u_t`` (eqs. 12 and 13).

    ``P = expm(M - M^T)`` is a rotation, ``gamma = exp(-exp(gamma_log))`` is in (0, 1), and ``xi = sqrt(c (1 - gamma^2)
    / tr(B^T B))``, so that for white input (of mean zero, with unit covariance) E|x_t|^2 stays c per head. With
    `normalise` "alpha" instead of "input", ``x_t = alpha (gamma P R(theta) P^T x_{t-1} + B u_t)``, ``alpha = sqrt(c /
    (c gamma^2 + tr(B^T B)))`` (eq. 6); E|x_t|^2 also stays c, but the decay per step is alpha gamma (eq. 10). The paper
    prints alpha with numerator 1 instead of c (Lemma 3), and therefore xi^2 with numerator ``1 - c gamma^2`` (eq. 11).
    Both formulas preserve E|x_t|^2 only for c = 1, which is the default and the value used in the paper. With
    ``window=L`` the gain of B is divided by ``sqrt(1 - |a|^2L)``, |a| = gamma or alpha gamma, so that E|x_t|^2 is c for
    a full window.

    The input of a layer in a model is rarely white: then E|x_t|^2 is off by any factor up to (1 + gamma) / (1 - gamma).
    Two more choices of `normalise`, which the paper does not have, hold for real inputs:

    - "spectrum": ``xi = sqrt(c (1 - gamma^2) / V)``, where V is measured (`rotrnn.nn.spectrum`): E|x_t|^2 = c per head
      for every stationary input with the measured spectrum, after a few times 1 / (1 - gamma) steps, if training
      sequences were several times as long as that. In training the ratio of V to its value for white input, tr(B^T B),
      is measured from each batch by one more scan, of v_t = P^T B u_t. The first batch sets
      `running_spectrum`, later batches update it with a momentum of 0.9, and it is used in training and evaluation as a
      constant, without a gradient. With `through_spectrum`, training uses V of the batch itself, as batch norm does,
      with its exact gradient; a step then depends on later steps of its batch, and a distributed batch is refused.
      A bidirectional layer has one V, the mean of both directions, so c is the mean of their E|x_t|^2.
    - "bounded": ``xi = sqrt(c) (1 - gamma) / |B|``, |B| the largest singular value: from a zero state |x_t| is at most
      sqrt(c) times the largest |u_s|, whatever the input, in float32 up to a relative 1.5e-7 / (1 - gamma). |B| is the
      Schatten norm of order 2^13, above it by at most 0.1 %.

    P does not enter the recurrence: ``W_in = xi P^T B`` and ``W_out = C P`` are computed once per call, and the
    recurrence runs on ``s_t = P^T x_t``, which has the same norm as x_t.

    `d_state` is N, the total number of real lanes of all heads. The head width W = N / heads may be odd; then the last
    lane of a head is decayed but not rotated, and the state has an additional lane that is always zero.

    Parameters (dict of float32), for H heads with P = W // 2 planes: theta (H, P), gamma_log (H,), M (H, W, W),
    B (H, W, D), C (D, N), D (D,). A bidirectional layer also has C_reverse (D, N); the directions share the other
    parameters (appendix B.2). With "spectrum" there is the buffer running_spectrum (H,), 0 before anything is measured,
    when V is as for white input.

    Initial values (appendix C): theta ~ U[0, theta_max], gamma on the ring `gamma_init`, M ~ N(0, 1),
    B ~ N(0, 1/D), C ~ N(0, 1/N), D ~ N(0, 1).
    """

    about: ClassVar[str] = "linear recurrence by learned rotations, norm-preserving"
    paper: ClassVar[str] = '"RotRNN: Modelling Long Sequences with Rotations", 2024'
    recurrent: ClassVar[frozenset[str]] = frozenset({"theta", "gamma_log", "M", "B"})
    lanes: ClassVar[str] = "d_state"

    heads: int = 1
    gamma_init: tuple[float, float] = (0.5, 0.999)
    theta_max: float = 2 * np.pi
    normalise: str = "input"
    c: float = 1.0
    through_spectrum: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("heads")
        if self.d_state % self.heads:
            raise ValueError(f"RotRNN: d_state={self.d_state} and heads={self.heads}, expected a multiple of heads")
        low, high = self.gamma_init
        if not 0 < low <= high < 1:
            raise ValueError(f"RotRNN: gamma_init={self.gamma_init}, expected 0 < low <= high < 1")
        if not self.theta_max >= 0:
            raise ValueError(f"RotRNN: theta_max={self.theta_max}, expected a nonnegative angle")
        self.check_choice("normalise", NORMALISATIONS)
        if self.through_spectrum and not self.measures:
            raise ValueError(f"RotRNN: through_spectrum=True and normalise={self.normalise!r}, expected 'spectrum'")
        self.check_positive("c")

    @property
    def width(self) -> int:
        """The head width W."""
        return self.d_state // self.heads

    @property
    def planes(self) -> int:
        return self.heads * ((self.width + 1) // 2)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N, H, W = self.d_model, self.d_state, self.heads, self.width
        inside = {"theta": (H, W // 2), "gamma_log": (H,), "M": (H, W, W), "B": (H, W, D)}
        if self.measures:
            inside["running_spectrum"] = (H,)
        return {**inside, **{"C" + suffix: (D, N) for suffix in self.directions}, "D": (D,)}

    def init(self, rng: np.random.Generator) -> Params:
        D, N, H, W = self.d_model, self.d_state, self.heads, self.width
        params = {
            "theta": rng.uniform(0, self.theta_max, (H, W // 2)),
            "gamma_log": ring(rng, *self.gamma_init, H),
            "M": rng.standard_normal((H, W, W)),
            "B": rng.standard_normal((H, W, D)) / np.sqrt(D),
        }
        for suffix in self.directions:
            params["C" + suffix] = rng.standard_normal((D, N)) / np.sqrt(N)
        params["D"] = rng.standard_normal(D)
        if self.measures:
            params["running_spectrum"] = np.zeros(H)
        return astype(params, np.float32)

    conditioned: ClassVar[tuple[str, ...]] = ("B",)

    def condition(self, value: Array) -> Any:
        """B of a head must not be zero, since it is divided by its norm."""
        return np.where(np.abs(value).max((1, 2)) > 0, 0.0, np.inf).sum()

    def condition_message(self, value: Array) -> str:
        head = int(np.argmin(np.abs(value).max((1, 2))))
        return f"of head {head} is zero, expected a nonzero matrix"

    @property
    def measures(self) -> bool:
        return self.normalise == "spectrum"

    def fusible(self, ctx: Context) -> bool:
        return super().fusible(ctx) and not (ctx.train and self.through_spectrum)

    def fold(self, params: Params) -> Folded[System]:
        return self._fold(params)

    def fold_call(self, params: Params, x: Array, ctx: Context) -> Folded[System]:
        if not (self.measures and ctx.train):
            return trusted(self.fold)(params)
        folded = self._fold(params, x, ctx)
        if type(self).fold is RotRNN.fold:
            return folded
        if self.through_spectrum:
            kind = type(self).__name__
            raise ValueError(f"{kind}: through_spectrum=True, expected False: {kind} has its own fold")
        return trusted(self.fold)(params)  # by the updated spectrum

    def _fold(self, params: Params, x: Array | None = None, ctx: Context = EVALUATION) -> Folded[System]:
        """With x, the spectrum is measured from it, and the running one updated."""
        exponent = exponents(params["B"])  # the squares of B may overflow or vanish; those of B' do not
        B = contiguous(times_power(params["B"], -exponent))  # NumPy's summation order depends on the layout
        P = orthogonal(params["M"])
        decay = bounded_exp(params["gamma_log"])
        gamma = modulus = np.exp(-decay)
        units = self.units(params["theta"])
        PtB = matmul(P.swapaxes(1, 2), B)
        trace = energy = einsum("hwd,hwd->h", B, B)
        bound = measured = None
        if self.normalise == "alpha":
            root = np.sqrt(B.dtype.type(self.c))
            alpha = root / np.hypot(root * gamma, times_power(np.sqrt(trace), exponent))
            xi, modulus = times_power(alpha, exponent), alpha * gamma
            if self.window is not None:  # xi^2 = c / (trace within / leak); for a small B this quotient is L
                leak, v = self._leak(gamma, modulus, trace, exponent)
                within = -np.expm1(-self.window * v)
                small = self.window * leak < np.finfo(leak.dtype).eps
                xi = root / np.sqrt(trace * np.where(small, self.window, within / np.where(small, 1, leak)))
        elif self.normalise == "bounded":
            bound = norm_bound(B)
            xi = math.sqrt(self.c) * -np.expm1(-decay) / bound.bound
        else:
            if self.window is not None:
                energy = trace * -np.expm1(-2 * self.window * decay)
            if x is not None:
                if self.through_spectrum and ctx.gather is not None:
                    raise ValueError("RotRNN: through_spectrum=True, expected False: the batch is distributed")
                w_in = self._even(PtB).reshape(-1, self.d_model)
                a = (gamma[:, None] * units).ravel()
                leak = -np.expm1(-2 * decay)
                measured = measure(a, leak, w_in, x, ctx.lengths, 1 + self.bidirectional, ctx.gather, self.window)
                self._update(params, measured.energy / energy)
            if self.measures:
                ratio = params["running_spectrum"]
                energy = energy * np.where(ratio > 0, ratio, 1)
            if measured is not None and self.through_spectrum:
                counts = (measured.energy > 0) & np.isfinite(measured.energy)
                measured = measured._replace(energy=np.where(counts, measured.energy, 0))
                energy = np.where(counts, measured.energy, energy)
            else:
                measured = None
            xi = np.sqrt(self.c * -np.expm1(-2 * decay) / energy)
        a = modulus[:, None] * units
        w_in = self._even(xi[:, None, None] * PtB).reshape(-1, self.d_model)
        w_out = np.stack([self._fold_output(params["C" + suffix], P) for suffix in self.directions])
        kept = Folding(P, PtB, xi, gamma, modulus, trace, energy, exponent, bound, measured)
        return Folded(System(w_in, a.ravel(), w_out, params["D"]), kept)

    def _leak(self, gamma: Array, modulus: Array, trace: Array, exponent: npt.NDArray[np.int32]) -> tuple[Array, Array]:
        """Returns ``1 - |a|^2 = tr(B^T B) / (c gamma^2 + tr(B^T B))`` of "alpha", and ``-log |a|^2``. Both
        have all digits where |a| rounds to 1, too."""
        length = times_power(np.sqrt(trace), exponent)
        leak = (length / np.hypot(math.sqrt(self.c) * gamma, length)) ** 2
        below = -2 * np.log(np.maximum(modulus, np.finfo(modulus.dtype).tiny))
        return leak, np.where(leak < 0.5, -np.log1p(-np.minimum(leak, 0.5)), below)

    def _update(self, params: Params, batch: Array) -> None:
        """Updates the running spectrum by a batch's spectrum; the first batch sets it. A batch whose squares overflow
        or vanish is left out: an infinite average would never be finite again."""
        running = params["running_spectrum"]
        if not is_writeable(running):
            raise ValueError("RotRNN: parameter running_spectrum is read-only, but training updates it")
        after = np.where(running > 0, MOMENTUM * running + (1 - MOMENTUM) * batch, batch)
        running[...] = np.where((batch > 0) & np.isfinite(batch), after, running)

    def fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> Params:
        return self._fold_backward(params, folded, dsystem)[0]

    def fold_call_backward(
        self, params: Params, folded: Folded[System], dsystem: System
    ) -> tuple[Params, Array | None]:
        if self.through_spectrum:
            return self._fold_backward(params, folded, dsystem)
        return self.fold_backward(params, folded, dsystem), None

    def _fold_backward(self, params: Params, folded: Folded[System], dsystem: System) -> tuple[Params, Array | None]:
        """Returns the gradients of the parameters, and of the input whose spectrum was measured (None: zero)."""
        H, W = self.heads, self.width
        P, PtB, xi, gamma, modulus, trace, energy, exponent, bound, measured = folded.kept
        B = times_power(params["B"], -exponent)
        decay = bounded_exp(params["gamma_log"])
        unit = self.units(params["theta"])

        dW, da = dsystem.w_in.reshape(H, -1, self.d_model)[:, :W], dsystem.a.reshape(H, -1)  # of xi P^T B, and of a
        dxi, dPtB = einsum("hwd,hwd->h", dW, PtB), xi[:, None, None] * dW
        dx, constant = None, np.ones_like(xi)  # 1 where energy / (trace (1 - gamma^2L)) is a constant
        if measured is not None:
            constant = (measured.energy == 0).astype(xi.dtype)
            a = (gamma[:, None] * unit).ravel()
            denergy = (constant - 1) * dxi * xi / (2 * energy)
            da_measured, dw_in, dx = measure_backward(denergy, measured, a, self.window)
            da = da + da_measured.reshape(H, -1)
            dPtB += dw_in.reshape(H, -1, self.d_model)[:, :W]
        dmodulus = (unit.real * da.real + unit.imag * da.imag).sum(1)
        dtheta = modulus[:, None] * (unit.real * da.imag - unit.imag * da.real)
        dlog_xi = dxi * xi
        if self.normalise == "alpha":  # derivatives by log gamma, and by -log(trace) / 2; of log |a| both are the leak
            leak, v = self._leak(gamma, modulus, trace, exponent)
            by_gamma = -(modulus**2) if self.window is None else leak * _slope(v, self.window)
            by_trace = leak if self.window is None else 1 + by_gamma
            reached = leak * dmodulus * modulus
            dgamma = (by_gamma * dlog_xi + reached) / np.maximum(gamma, np.finfo(gamma.dtype).tiny)
            dB = -((by_trace * dlog_xi + reached) / trace)[:, None, None] * B
        elif bound is not None:  # xi = sqrt(c) (1 - gamma) / bound
            dgamma = dmodulus - dxi * math.sqrt(self.c) / bound.bound
            dB = -(dxi * xi / bound.bound)[:, None, None] * bound.gradient
        else:  # xi^2 = c (1 - gamma^2) / energy
            dgain = -dxi * self.c * gamma / (xi * energy)
            if self.window is not None:
                slope = _slope(2 * decay, self.window) / np.maximum(gamma, np.finfo(gamma.dtype).tiny)
                dgain = np.where(constant > 0, dlog_xi * slope, dgain)
            dgamma = dmodulus + dgain
            dB = -(constant * dlog_xi / trace)[:, None, None] * B

        dP = matmul(B, dPtB.swapaxes(1, 2))
        dparams: Params = {}
        for suffix, dw_out in zip(self.directions, dsystem.w_out, strict=True):
            dCP = dw_out.reshape(self.d_model, H, -1)[:, :, :W].swapaxes(0, 1)
            C = params["C" + suffix].reshape(self.d_model, H, W).swapaxes(0, 1)
            dP += matmul(C.swapaxes(1, 2), dCP)
            dparams["C" + suffix] = matmul(dCP, P.swapaxes(1, 2)).swapaxes(0, 1).reshape(self.d_model, -1)
        return {
            "theta": dtheta[:, : W // 2],
            "gamma_log": -dgamma * gamma * decay,
            "M": orthogonal_backward(dP, params["M"]),
            "B": times_power(matmul(P, dPtB) + dB, -exponent),
            **dparams,
            "D": dsystem.skip,
        }, dx

    def _fold_output(self, C: Array, P: Array) -> Array:
        """Returns C P of all heads as (D, lanes)."""
        CP = matmul(C.reshape(self.d_model, self.heads, self.width).swapaxes(0, 1), P)
        return self._even(CP.swapaxes(1, 2)).reshape(-1, self.d_model).T

    def units(self, theta: Array) -> Array:
        """Returns e^{i theta} per plane. The last lane of a head of odd width is in its own plane with angle 0."""
        unit = full((self.heads, (self.width + 1) // 2), 1, complex_of(theta.dtype), theta)
        unit.real[:, : self.width // 2], unit.imag[:, : self.width // 2] = np.cos(theta), np.sin(theta)
        return unit

    def _even(self, rows: Array) -> Array:
        """Returns (H, W, D) with a zero row added to each head of odd width, so that no plane spans two heads."""
        return np.pad(rows, ((0, 0), (0, self.width % 2), (0, 0)))


def _slope(v: Array, window: int) -> Array:
    """Returns ``L / (e^{L v} - 1) - 1 / (e^v - 1)``, the derivative of ``log((1 - e^{-L v}) / (1 - e^{-v}))``. It is
    -(L - 1) / 2 at 0. Near 0 the poles of both terms cancel, and are left out."""

    def term(x: Array, pole: Array) -> Array:  # 1 / (e^x - 1), less 1 / x where there is the pole
        near = x < 0.01
        away = np.where(near, 1, x)
        series = -1 / 2 + x / 12 - x**3 / 720
        return np.where(near & pole, series, 1 / np.expm1(np.minimum(away, 700)) - np.where(pole, 1 / away, 0))

    wide = v.astype(np.float64)
    pole = wide < 0.01
    slope: Array = (window * term(window * wide, pole) - term(wide, pole)).astype(v.dtype)
    return slope
