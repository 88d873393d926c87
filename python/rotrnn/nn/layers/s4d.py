"""S4D: a diagonal state space model for each channel (Gu, Gupta, Goel, Re 2022, "On the Parameterization and
Initialization of Diagonal State Space Models")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from rotrnn.devices.device import contiguous, einsum
from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State, StateArray, StateForm, astype, trusted
from rotrnn.nn.layers.continuous import (
    DISCRETISATIONS,
    check_dt,
    check_steps,
    complex_parameter,
    hippo_normal,
    input_gain,
    input_gain_backward,
    log_steps,
    transition,
    transition_backward,
)
from rotrnn.nn.listing import Listing
from rotrnn.nn.scaling import bounded_exp
from rotrnn.ops.bank import BankSaved, bank_response, bank_step, diagonal_bank, diagonal_bank_backward
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.sampled import SampledBankSaved, sampled_bank, sampled_bank_backward


class Bank(NamedTuple):
    """Folded parameters: transition a (D, N), readout c (K, D, N) for each direction, skip (D,)."""

    a: Array
    c: Array
    skip: Array


class S4DSaved(NamedTuple):
    """Saved for backward: the bank, the op's saved arrays for each direction, and the state after x."""

    folded: Folded[Bank]
    directions: tuple[BankSaved, ...]
    state: Array | None


class S4DSampled(NamedTuple):
    """Saved for backward at uneven times (`Context.dt`): the op's saved arrays, and the states before and after x."""

    bank: SampledBankSaved
    before: Array | None
    state: Array


def _inverse(n: Array, N: int, denominator: Array) -> Array:
    return N / np.pi * (N / denominator - 1)


FREQUENCIES: dict[str, Callable[[Array, int], Array]] = {
    # imaginary parts of HiPPO-N for the kept states: the lower half is conjugate to the upper half
    "legs": lambda n, N: -hippo_normal(N)[0].imag[: len(n)],
    "lin": lambda n, N: np.pi * n,
    "inv": lambda n, N: _inverse(n, N, 2 * n + 1),
    "inv_lru": lambda n, N: _inverse(n, N, n + 1),
}
"""Im A for states n = 0, 1, ... with d_state = N: S4D-LegS, S4D-Lin, S4D-Inv, and S4D-Inv as printed in the LRU
paper."""


@dataclass(frozen=True)
class S4D(Recurrent):
    """``x'(t) = A x + B u``, ``y = 2 Re(C x) + D u`` for each channel separately, sampled with the channel's step.

    ``h_t = a * h_{t-1} + gain * B u_t`` with ``a = exp(A Delta)``, ``gain = (a - 1) / A`` (zoh), ``a = (1 + A Delta /
    2) / (1 - A Delta / 2)``, ``gain = Delta / (1 - A Delta / 2)`` (bilinear), or zoh's a with ``gain = Delta``
    (first_order: the simplified multiplier of the LRU paper, section 4); ``A = -exp(log_A_re) + i A_im``, ``Delta =
    step_scale exp(log_step)``. With `step_scale` 2 a trained model can be applied to data sampled at half the rate.
    Without `tied`, gain has a separate step, ``step_scale exp(log_step_input)``, with the same initial value (the same
    section). With `conjugate`, `d_state` is the number of real lanes per channel: N = d_state / 2 complex states
    are kept, and each also represents its conjugate. Without, N = d_state is the number of complex states (2N real
    lanes), and ``y = Re(C h) + D u``. With `rotrnn.Context.dt`, for samples at uneven times, step t has ``Delta_t =
    Delta dt_t``.

    The state after x, (B, D, N) complex, is h without the factor ``gain * B``, which is folded into the readout. With
    ``window=L`` each filter depends only on the last L inputs, the state is the previous L-1 inputs, (B, L-1, D), and a
    step is a weighted sum of these with the filters' impulse responses.

    Parameters (dict of float32): log_A_re, A_im (D, N), log_step (D,), without `tied` log_step_input (D,); B_re, B_im,
    C_re, C_im (D, N), D (D,). A bidirectional layer also has C_re_reverse and C_im_reverse (D, N); the directions share
    the other parameters.

    Initial values: ``Re A = -1/2``; Im A depends on `frequencies`: "legs" as in HiPPO-N, "lin" ``pi n``, "inv"
    ``(d_state / pi) (d_state / (2n + 1) - 1)``, and "inv_lru" with ``n + 1`` instead of ``2n + 1``, as printed in the
    LRU paper. Here n starts at 0 as in S4D (in the LRU paper at 1, also for "lin"). log Delta is uniform from
    log dt_min to log dt_max, B = 1 (for "legs" the authors' code takes HiPPO's B instead), C ~ N(0, 1/2) per part,
    D ~ N(0, 1).
    """

    about: ClassVar[str] = "one diagonal state space model per channel"
    paper: ClassVar[str] = 'Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"log_A_re", "A_im", "log_step", "log_step_input", "B_re", "B_im"})
    lanes: ClassVar[str] = "d_model d_state"

    d_state: int
    bidirectional: bool = False
    window: int | None = None
    frequencies: str = "legs"
    discretisation: str = "zoh"
    tied: bool = True
    conjugate: bool = True
    dt_min: float = 1e-3
    dt_max: float = 0.1
    step_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_state", "window")
        self.check_choice("discretisation", DISCRETISATIONS)
        check_steps("S4D", self.dt_min, self.dt_max, self.step_scale)
        if self.d_state % self.weight:
            raise ValueError(f"S4D: d_state={self.d_state}, expected an even number of states with conjugate=True")
        self.check_choice("frequencies", FREQUENCIES)

    @property
    def states(self) -> int:
        """N, the number of complex states per channel."""
        return self.d_state // self.weight

    @property
    def weight(self) -> int:
        """2 if each state also represents its complex conjugate, else 1."""
        return 2 if self.conjugate else 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, bank = self.d_model, (self.d_model, self.states)
        outputs = [name + suffix for suffix in self.directions for name in ("C_re", "C_im")]
        return {
            **dict.fromkeys(("log_A_re", "A_im"), bank),
            **dict.fromkeys(self._steps, (D,)),
            **dict.fromkeys(("B_re", "B_im", *outputs), bank),
            "D": (D,),
        }

    @property
    def state_form(self) -> StateForm:
        if self.window is None:
            return StateArray("h", (self.d_model, self.states), "complex")
        return StateArray("inputs", (self.window - 1, self.d_model))

    @property
    def _steps(self) -> tuple[str, ...]:
        return ("log_step",) if self.tied else ("log_step", "log_step_input")

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.states
        im = FREQUENCIES[self.frequencies](np.arange(N), self.d_state)
        steps = log_steps(rng, self.dt_min, self.dt_max, D)
        params = {"log_A_re": np.full((D, N), np.log(0.5)), "A_im": np.tile(im, (D, 1))}
        params |= dict.fromkeys(self._steps, steps)
        params |= {"B_re": np.ones((D, N)), "B_im": np.zeros((D, N))}
        for suffix in self.directions:
            params["C_re" + suffix], params["C_im" + suffix] = np.sqrt(0.5) * rng.standard_normal((2, D, N))
        params["D"] = rng.standard_normal(D)
        return astype(params, np.float32)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, S4DSaved | S4DSampled]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call (one direction only)."""
        if ctx.dt is not None:
            return self._forward_at(params, x, ctx.dt, ctx.lengths, state)
        folded, L, lengths = trusted(self.fold)(params), self.window, ctx.lengths
        a, c, skip = folded.weights
        y, hT, saved = diagonal_bank(a, c[0], skip, x, state, window=L, lengths=lengths)
        if not self.bidirectional:
            return y, S4DSaved(folded, (saved,), hT)
        y_reverse, _, saved_reverse = diagonal_bank(a, c[1], 0 * skip, x, window=L, reverse=True, lengths=lengths)
        return y + y_reverse, S4DSaved(folded, (saved, saved_reverse), None)

    def backward(
        self, params: Params, saved: S4DSaved | S4DSampled, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        if isinstance(saved, S4DSampled):
            return self._backward_at(params, saved, dy, dstate)
        folded, directions, _ = saved
        (a, c, skip), u = folded.weights, directions[0].u
        dy = dy.astype(u.dtype, copy=False)
        grads = diagonal_bank_backward(dy, a, c[0], skip, directions[0], dstate)
        if not self.bidirectional:
            dbank = Bank(grads.da, grads.dc[None], grads.dskip)
            return grads.du, self.fold_backward(params, folded, dbank), grads.dh0
        other = diagonal_bank_backward(dy, a, c[1], 0 * skip, directions[1], reverse=True)
        dbank = Bank(grads.da + other.da, np.stack([grads.dc, other.dc]), grads.dskip)
        return grads.du + other.du, self.fold_backward(params, folded, dbank), None

    def check_dt(self, args: Boundary) -> None:
        check_dt(self, args, tied=True)

    def _forward_at(
        self, params: Params, x: Array, dt: Array, lengths: Array | None, state: Array | None
    ) -> tuple[Array, S4DSampled]:
        """Forward at uneven times. Here the states h include the gain, which depends on the interval; the state before
        and after x is h divided by the gain of a unit interval."""
        system, gain = self._sampled(params)
        h0, dt = None if state is None else gain * state, dt.astype(x.dtype, copy=False)
        y, hT, saved = sampled_bank(*system, dt, x, h0, method=self.discretisation, lengths=lengths)
        return y, S4DSampled(saved, state, hT / gain)

    def _backward_at(
        self, params: Params, saved: S4DSampled, dy: Array, dstate: Array | None
    ) -> tuple[Array, Params, Array]:
        """Adjoint of `_forward_at`."""
        system, gain = self._sampled(params)
        dhT = None if dstate is None else dstate / np.conj(gain)
        dy = dy.astype(saved.bank.u.dtype, copy=False)
        grads = sampled_bank_backward(dy, *system, saved.bank, dhT, method=self.discretisation)
        dgain = np.zeros_like(gain)
        if saved.before is not None:
            dgain += (np.conj(saved.before) * grads.dh0).sum(0)
        if dhT is not None:
            dgain -= (np.conj(saved.state) * dhT).sum(0)
        A, (step,) = self._continuous(params)
        of_gain = input_gain_backward(dgain, self.discretisation, A, step)
        dsteps = grads.dstep[:, None] + of_gain[1].sum(1, keepdims=True)
        B, C, dBC = complex_parameter(params, "B"), complex_parameter(params, "C"), self.weight * grads.dc
        dparams = self._gradients(
            params, grads.dlam + of_gain[0], [dsteps], np.conj(C) * dBC, [np.conj(B) * dBC], grads.dskip
        )
        return grads.du, dparams, np.conj(gain) * grads.dh0

    def _sampled(self, params: Params) -> tuple[tuple[Array, Array, Array, Array], Array]:
        """Returns the system (lam, c, skip, step) of `sampled_bank`, and the gain (D, N) of a unit interval."""
        A, (step,) = self._continuous(params)
        BC = self.weight * complex_parameter(params, "B") * complex_parameter(params, "C")
        return (A, BC, params["D"], step[:, 0]), input_gain(self.discretisation, A, step)

    def prepare(self, params: Params) -> tuple[Bank, Array | None]:
        """Returns the bank and, with a window, the impulse response for lags 0, 1, ... L-1, oldest first, (L, D)."""
        bank = trusted(self.fold)(params).weights
        if self.window is None:
            return bank, None
        return bank, contiguous(bank_response(bank.a, bank.c[0], bank.skip, self.window).T)

    def step(
        self, params: Params, state: State, x_t: Array, prepared: tuple[Bank, Array | None] | None = None
    ) -> tuple[Array, State]:
        bank, response = trusted(self.prepare)(params) if prepared is None else prepared
        if response is None:
            return bank_step(bank.a, bank.c[0], bank.skip, state, x_t)
        x = x_t[:, None]
        before = np.zeros((len(x), len(response) - 1, self.d_model), x.dtype, like=x) if state is None else state
        recent = np.concatenate([before, x], 1)
        recent = recent.astype(np.result_type(recent.dtype, response.dtype), copy=False)
        return einsum("bld,ld->bd", recent, response), recent[:, 1:]

    def emit(self, to: Listing, params: Params, x: int) -> int:
        a, c, skip = trusted(self.fold)(to.exact(params)).weights
        k = np.stack([np.stack([a.real, a.imag, one.real, one.imag]).transpose(2, 0, 1) for one in c])
        return to("Bank", x, k, skip, window=self.window)

    def fold(self, params: Params) -> Folded[Bank]:
        """Returns the folded bank."""
        A, steps = self._continuous(params)
        gain = self.weight * input_gain(self.discretisation, A, steps[-1])
        C = np.stack([complex_parameter(params, "C", suffix) for suffix in self.directions])
        a = transition(self.discretisation, A, steps[0])
        return Folded(Bank(a, C * (gain * complex_parameter(params, "B")), params["D"]))

    def fold_backward(self, params: Params, folded: Folded[Bank], dbank: Bank) -> Params:
        """Adjoint of `fold`: returns the gradients of the parameters."""
        A, steps = self._continuous(params)
        gain = self.weight * input_gain(self.discretisation, A, steps[-1])
        B, C = complex_parameter(params, "B"), [complex_parameter(params, "C", suffix) for suffix in self.directions]
        dweighted = sum(np.conj(one) * dc for one, dc in zip(C, dbank.c, strict=True))  # gradient of gain * B
        dB = np.conj(gain) * dweighted
        dA, dstep = transition_backward(dbank.a, self.discretisation, A, steps[0])
        of_gain = input_gain_backward(self.weight * np.conj(B) * dweighted, self.discretisation, A, steps[-1])
        dA += of_gain[0]
        dsteps = [dstep + of_gain[1]] if self.tied else [dstep, of_gain[1]]
        return self._gradients(params, dA, dsteps, dB, [np.conj(gain * B) * dc for dc in dbank.c], dbank.skip)

    def _gradients(
        self, params: Params, dA: Array, dsteps: list[Array], dB: Array, dC: list[Array], dskip: Array
    ) -> Params:
        """Returns the gradients of the parameters; each of `dsteps`, (D, N) or (D, 1), is not yet summed over the
        states."""
        A, steps = self._continuous(params)
        dparams = {"log_A_re": dA.real * A.real, "A_im": dA.imag.copy()}
        for name, step, one in zip(self._steps, steps, dsteps, strict=True):
            dparams[name] = (step * one).sum(1)
        dparams |= {"B_re": dB.real.copy(), "B_im": dB.imag.copy()}
        for suffix, one in zip(self.directions, dC, strict=True):
            dparams["C_re" + suffix], dparams["C_im" + suffix] = one.real.copy(), one.imag.copy()
        dparams["D"] = dskip
        return dparams

    def eigenvalues(self, params: Params) -> Array:
        """Returns the transition a (D, N), complex: the eigenvalues of each channel's states. With `conjugate` each
        also stands for its conjugate."""
        self.check_params(params)
        return trusted(self.fold)(params).weights.a

    def _continuous(self, params: Params) -> tuple[Array, list[Array]]:
        """Returns A (D, N), and the steps (D, 1): the same for A and B, or a separate step for each."""
        A = -bounded_exp(params["log_A_re"]) + 1j * params["A_im"]
        return A, [self.step_scale * np.exp(params[name])[:, None] for name in self._steps]
