"""S4: a state space model for each channel whose matrix is diagonal plus rank one (Gu, Goel, Re 2022, "Efficiently
Modeling Long Sequences with Structured State Spaces")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from rotrnn._support.text import an
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm, astype, trusted
from rotrnn.nn.layers.continuous import (
    DISCRETISATIONS,
    check_steps,
    complex_parameter,
    hippo_dplr,
    log_steps,
    transition,
)
from rotrnn.nn.listing import Listing, Unlisted
from rotrnn.nn.scaling import bounded_exp
from rotrnn.ops.dplr_bank import DplrBankSaved, DplrSystem, dplr_bank, dplr_bank_backward, dplr_bank_step

METHOD = "bilinear"
"""The discretisation that keeps a matrix diagonal plus rank one."""


class S4Saved(NamedTuple):
    """Saved for backward: the systems, the op's saved arrays for each direction, and the state after x."""

    folded: Folded[tuple[DplrSystem, ...]]
    directions: tuple[DplrBankSaved, ...]
    state: Array | None


@dataclass(frozen=True)
class S4(Recurrent):
    """``x'(t) = (Lambda - P P^H) x + B u``, ``y = 2 Re(C x) + D u`` for each channel, by the trapezoidal rule.

    Each channel has `d_state` states, of which N = `d_state` / 2 are kept: the others are their conjugates. With
    ``Lambda = -exp(log_A_re) + i A_im``, ``Delta = step_scale exp(log_step)``, ``A = Lambda - P P^H`` (of all `d_state`
    states; with `step_scale` 2 a trained model can be applied to data sampled at half the rate, as to speech at 8 kHz
    in the paper),

        h_t = (1 - Delta A / 2)^-1 ((1 + Delta A / 2) h_{t-1} + Delta B u_t),    y_t = 2 Re(C h_t) + D u_t

    By Woodbury's identity the transition is ``diag(a) + p q``, again diagonal plus rank one: with
    ``F = 1 / (1 - Lambda Delta / 2)``, ``G = Delta F``, ``w = 1 / (1 + P^H G P / 2)`` and inner products over all
    states,

        a = (1 + Lambda Delta / 2) / (1 - Lambda Delta / 2),    p = -w F P,    q = P^H G
        gain = G (B - P (P^H G B / 2) w)

    and a step takes O(N) (`rotrnn.ops.dplr_bank`). The paper's form for training computes the same filter's response by
    Cauchy products, and convolves by FFT. Eigenvectors of A are not used: their condition number grows exponentially
    with `d_state` (the paper's section 3.1).

    The state after x is h, (B, D, N) complex.

    Parameters (dict of float32): log_A_re, A_im, P_re, P_im, B_re, B_im, C_re, C_im (D, N), log_step (D,), D (D,). A
    bidirectional layer also has C_re_reverse and C_im_reverse (D, N); the directions share the other parameters. C is
    the readout itself, where the authors' code trains ``C (1 - transition^L)`` for a length L. Each channel trains its
    own A, P and B. In most configurations of that code all channels share one set (``n_ssm = 1``), but not for
    Pathfinder and Path-X.

    Initial values: A and B of HiPPO-LegS in the eigenvectors of its normal part (the paper's NPLR form), the same in
    every channel; log Delta uniform from log dt_min to log dt_max, C ~ N(0, 1/2) per part, D ~ N(0, 1).
    """

    about: ClassVar[str] = "one state space model per channel, diagonal plus rank one, from HiPPO-LegS"
    paper: ClassVar[str] = 'Gu, Goel, Re 2022, "Efficiently Modeling Long Sequences with Structured State Spaces"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"log_A_re", "A_im", "P_re", "P_im", "B_re", "B_im", "log_step"})
    lanes: ClassVar[str] = "d_model d_state"

    d_state: int
    bidirectional: bool = False
    dt_min: float = 1e-3
    dt_max: float = 0.1
    step_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state")
        check_steps(type(self).__name__, self.dt_min, self.dt_max, self.step_scale)
        if self.d_state % 2:
            raise ValueError(
                f"{type(self).__name__}: d_state={self.d_state}, expected an even number, of pairs of conjugate states"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        bank = (self.d_model, self.d_state // 2)
        outputs = [name + suffix for suffix in self.directions for name in ("C_re", "C_im")]
        return {
            **dict.fromkeys(("log_A_re", "A_im", "P_re", "P_im", "B_re", "B_im", *outputs), bank),
            **dict.fromkeys(("log_step", "D"), (self.d_model,)),
        }

    @property
    def state_form(self) -> StateForm:
        return StateArray("h", (self.d_model, self.d_state // 2), "complex")

    def init(self, rng: np.random.Generator) -> Params:
        D, shape = self.d_model, (self.d_model, self.d_state // 2)
        A, P, B = hippo_dplr(self.d_state)
        each = {"log_A_re": np.log(-A.real), "A_im": A.imag}
        each |= {"P_re": P.real, "P_im": P.imag, "B_re": B.real, "B_im": B.imag}
        params = {name: np.tile(one, (D, 1)) for name, one in each.items()}
        for suffix in self.directions:
            params["C_re" + suffix], params["C_im" + suffix] = np.sqrt(0.5) * rng.standard_normal((2, *shape))
        params |= {"log_step": log_steps(rng, self.dt_min, self.dt_max, D), "D": rng.standard_normal(D)}
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, S4Saved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call (one direction only)."""
        folded = trusted(self.fold)(params)
        y, hT, saved = dplr_bank(folded.weights[0], x, state, lengths=ctx.lengths)
        if not self.bidirectional:
            return y, S4Saved(folded, (saved,), hT)
        y_reverse, _, saved_reverse = dplr_bank(folded.weights[1], x, reverse=True, lengths=ctx.lengths)
        return y + y_reverse, S4Saved(folded, (saved, saved_reverse), None)

    def backward(self, params: Params, saved: S4Saved, dy: Array, dstate: State = None) -> tuple[Array, Params, State]:
        folded, directions, _ = saved
        dy = dy.astype(directions[0].u.dtype, copy=False)
        grads = dplr_bank_backward(dy, folded.weights[0], directions[0], dstate)
        if not self.bidirectional:
            return grads.du, self.fold_backward(params, folded, (grads.system,)), grads.dh0
        other = dplr_bank_backward(dy, folded.weights[1], directions[1], reverse=True)
        return grads.du + other.du, self.fold_backward(params, folded, (grads.system, other.system)), None

    def prepare(self, params: Params) -> DplrSystem:
        """Returns the coefficients of the recurrence."""
        return trusted(self.fold)(params).weights[0]

    def step(self, params: Params, state: State, x_t: Array, prepared: DplrSystem | None = None) -> tuple[Array, State]:
        return dplr_bank_step(trusted(self.prepare)(params) if prepared is None else prepared, state, x_t)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return self._emit_bank(to, params, x, inputs=1, drives=1)

    def _emit_bank(self, to: Listing, params: Params, x: int, inputs: int, drives: int) -> int:
        """Appends the bank of `inputs` products of the input. The first `drives` products enter the states, the others
        only the output of their step."""
        if self.bidirectional:
            raise Unlisted(f"the model has {an(type(self).__name__)} that runs in both directions")
        a, p, q, gain, c, skip = trusted(self.fold)(to.exact(params)).weights[0]
        gains = [gain ** (1 + i) for i in range(inputs)]
        direct = [(c * one).real.sum(1) for one in gains[drives:]]
        k = np.stack([np.stack([one.real, one.imag]) for one in (a, p, q, c, *gains)]).transpose(3, 0, 1, 2)
        skips = np.stack([skip, *[np.zeros_like(skip)] * (drives - 1), *direct])
        return to("DplrBank", x, k, skips, drives=drives)

    def fold(self, params: Params) -> Folded[tuple[DplrSystem, ...]]:
        """Returns the coefficients of each direction's recurrence; they share all but the readout, and the skip is the
        first one's."""
        A, step = self._continuous(params)
        P, B, skip = complex_parameter(params, "P"), complex_parameter(params, "B"), params["D"]
        a, F = transition(METHOD, A, step), DISCRETISATIONS[METHOD].gain(A * step)
        G = step * F
        w, beta = _woodbury(P, G, B)
        shared = a, -2 * w * (F * P), P.conj() * G, G * (B - P * (beta * w))
        return Folded(
            tuple(
                DplrSystem(*shared, 2 * complex_parameter(params, "C", suffix), skip * (0 if suffix else 1))
                for suffix in self.directions
            )
        )

    def fold_backward(
        self, params: Params, folded: Folded[tuple[DplrSystem, ...]], dsystems: tuple[DplrSystem, ...]
    ) -> Params:
        """Adjoint of `fold`: returns the gradients of the parameters.

        The gradient of a complex number is the gradient of its real part plus i times the gradient of its imaginary
        part, so ``z = x y`` has ``dx = dz conj(y)``.
        """
        A, step = self._continuous(params)
        P, B = complex_parameter(params, "P"), complex_parameter(params, "B")
        F = DISCRETISATIONS[METHOD].gain(A * step)
        G = step * F
        w, beta = _woodbury(P, G, B)
        da, dp, dq, dgain, *_ = dsystems[0]
        for other in dsystems[1:]:
            da, dp, dq, dgain = da + other.a, dp + other.p, dq + other.q, dgain + other.gain

        k = -2 * w  # p = k F P
        dw = -2 * _real_sum(dp * np.conj(F * P))
        dF, dP = k * dp * P.conj(), k * dp * F.conj()
        dG = dq * P  # q = conj(P) G
        dP += dq.conj() * G
        dinner = dgain * G.conj()  # gain = G (B - P beta w)
        dG += dgain * np.conj(B - P * (beta * w))
        dB = dinner.copy()
        dP -= beta * w * dinner
        dproduct = -_real_sum(dinner * P.conj())
        dbeta, dw = w * dproduct, dw + beta * dproduct
        dG += dbeta * P * B.conj()  # beta = Re sum conj(P) G B
        dP += dbeta * G * B
        dB += dbeta * P * G.conj()
        dkappa = -w * w * dw  # w = 1 / (1 + kappa), kappa = sum |P|^2 Re G
        dG += dkappa * (P * P.conj())
        dP += 2 * dkappa * G.real * P

        slope = np.conj(F**2)  # of a by z = Lambda Delta, of 2 F by z, and of G by Delta
        dz = (da + dF / 2) * slope
        dA = (dz + step / 2 * dG * slope) * step
        dstep = _real_sum(A.conj() * dz + dG * slope)
        dparams = {"log_A_re": dA.real * A.real, "A_im": dA.imag.copy()}
        complexes = [("P", "", dP), ("B", "", dB)]
        complexes += [("C", suffix, 2 * one.c) for suffix, one in zip(self.directions, dsystems, strict=True)]
        for name, suffix, value in complexes:
            dparams[f"{name}_re{suffix}"], dparams[f"{name}_im{suffix}"] = value.real.copy(), value.imag.copy()
        dparams |= {"log_step": (step * dstep)[:, 0], "D": dsystems[0].skip}
        return {name: dparams[name] for name in self.shapes}

    def eigenvalues(self, params: Params) -> Array:
        """Returns the eigenvalues of each channel's transition, (D, d_state) complex, of all states, found in float64.

        The transition is far from normal: in float32 its parameters alone determine some eigenvalues only roughly.
        """
        self.check_params(params)
        a, p, q, *_ = trusted(self.fold)(astype(params, np.float64)).weights[0]
        both = [np.concatenate([one, one.conj()], 1) for one in (a, p, q / 2)]
        diagonal = both[0][:, :, None] * np.eye(self.d_state)
        return np.linalg.eigvals(diagonal + both[1][:, :, None] * both[2][:, None, :])

    def _continuous(self, params: Params) -> tuple[Array, Array]:
        """Returns Lambda (D, N) and Delta (D, 1)."""
        step = self.step_scale * np.exp(params["log_step"])[:, None]
        return -bounded_exp(params["log_A_re"]) + 1j * params["A_im"], step


def _real_sum(terms: Array) -> Array:
    """Returns the real part of the sum over states, (D, 1)."""
    return terms.real.sum(1, keepdims=True)


def _woodbury(P: Array, G: Array, B: Array) -> tuple[Array, Array]:
    """Returns ``w = 1 / (1 + P^H G P / 2)`` and ``P^H G B / 2``, (D, 1) each, with inner products over all states: half
    of each is the real part of the inner product over the kept states."""
    return 1 / (1 + _real_sum(P.conj() * G * P)), _real_sum(P.conj() * G * B)
