"""LRU: the linear recurrent unit (Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.layers.diagonal import DiagonalFolding, DiagonalRecurrence
from rotrnn.nn.layers.linear import ring
from rotrnn.ops.diagonal import polar_transition, polar_transition_backward

FORMS = {
    "real_imag": ("lambda_re", "lambda_im"),
    "exp": ("nu", "theta"),
    "stable_exp": ("nu_log", "theta"),
    "log_phase": ("nu_log", "theta_log"),
}
"""Form -> names of the parameters of lambda."""
TINY = float(np.finfo(np.float32).tiny)
"""The least angle whose logarithm theta_log is exact to rounding."""


@dataclass(frozen=True)
class LRU(DiagonalRecurrence):
    """``h_t = lambda * h_{t-1} + exp(gamma_log) * (B u_t)``, ``y_t = Re(C h_t) + D * u_t``.

    ``lambda = exp(-exp(nu_log) + i exp(theta_log))`` lies inside the unit disc for any parameters (eqs. 7-8 and
    section 3.4), up to rounding: where it is nearer to the circle than 6e-8, its modulus in float32 may be 1 + 6e-8.
    `d_state` is N, the number of complex states (2N real lanes).

    The steps from a complex diagonal RNN to LRU in the paper, as settings of this layer (for the dense models before
    them see `rotrnn.nn.layers.rnn`):

    ===============================  ================  =======  ==========================================
    row of the paper                 form              gamma    r_min, r_max
    ===============================  ================  =======  ==========================================
    Tables 2 and 7, real + imag      real_imag         off      0, 1: uniform on the disc, the spectrum of
                                                                a Glorot matrix (Theorem 3.1)
    Tables 2 and 7, exp              exp               off      0, 1
    Tables 2 and 7, stable exp       stable_exp        off      0, 1
    ... + ring init, Table 8 above   stable_exp        off      tuned, Table 8: (0.9, 0.99) sCIFAR, (0, 1)
                                                                ListOps, (0, 0.9) Text, (0.5, 0.9)
                                                                Retrieval, (0.9, 0.999) Pathfinder
    Tables 3 and 8, + gamma (LRU)    log_phase         on       tuned, Table 8: (0.9, 0.999) sCIFAR,
                                                                (0, 0.99) ListOps, (0.5, 0.9) Text,
                                                                (0.5, 0.9) Retrieval, (0.9, 0.999)
                                                                Pathfinder, (0.999, 0.9999) and
                                                                max_phase pi/10 Path-X
    Table 5 a, b, c                  exp, stable_exp,  off,     each of 0, 0.5, 0.9 with each of 0.9,
                                     stable_exp        off, on  0.99, 0.999
    ===============================  ================  =======  ==========================================

    with ``lambda = lambda_re + i lambda_im`` (real_imag), ``exp(-nu + i theta)`` (exp) and
    ``exp(-exp(nu_log) + i theta)`` (stable_exp). The first two are allowed to leave the unit disc in training.
    (Appendix C.2 of the paper states that "no stability" in Table 5 a is exp.)

    Parameters (dict of float32): the two parameters of the form, (N,), by default nu_log and theta_log; with `gamma`,
    gamma_log (N,); B_re, B_im (N, D), C_re, C_im (D, N), D (D,). A bidirectional layer also has C_re_reverse and
    C_im_reverse (D, N); the directions share the other parameters.

    Initial values: |lambda| uniform in area on the ring [r_min, r_max] (Lemma 3.2), phase uniform on [0, max_phase],
    B ~ N(0, 1/2D) and C ~ N(0, 1/N) per part, D ~ N(0, 1), ``gamma_log = log sqrt(1 - |lambda|^2)`` (eq. 7).
    """

    about: ClassVar[str] = "linear recurrent unit: a stable complex diagonal recurrence"
    paper: ClassVar[str] = 'Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences"'
    recurrent: ClassVar[frozenset[str]] = frozenset(
        {"lambda_re", "lambda_im", "nu", "theta", "nu_log", "theta_log", "gamma_log", "B_re", "B_im"}
    )
    lanes: ClassVar[str] = "2 d_state"

    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * np.pi
    form: str = "log_phase"
    gamma: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.r_min <= self.r_max <= 1 and self.r_min < 1 and self.r_max > 0):
            raise ValueError(
                f"LRU: r_min={self.r_min}, r_max={self.r_max}, expected 0 <= r_min <= r_max <= 1, r_min < 1, r_max > 0"
            )
        if self.max_phase < TINY:
            raise ValueError(f"LRU: max_phase={self.max_phase}, expected an angle of at least {TINY:.3g}")
        self.check_choice("form", FORMS)

    @property
    def transition_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(FORMS[self.form] + ("gamma_log",) * self.gamma, (self.d_state,))

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        nu_log = ring(rng, self.r_min, self.r_max, N)
        theta = rng.uniform(TINY, self.max_phase, N)
        nu = np.exp(nu_log)
        values = {
            "lambda_re": np.exp(-nu) * np.cos(theta),
            "lambda_im": np.exp(-nu) * np.sin(theta),
            "nu": nu,
            "nu_log": nu_log,
            "theta": theta,
            "theta_log": np.log(theta),
            "gamma_log": 0.5 * np.log(-np.expm1(-2 * nu)),
        }
        params = {name: values[name] for name in self.transition_shapes}
        params["B_re"] = rng.standard_normal((N, D)) / np.sqrt(2 * D)
        params["B_im"] = rng.standard_normal((N, D)) / np.sqrt(2 * D)
        for suffix in self.directions:
            params["C_re" + suffix] = rng.standard_normal((D, N)) / np.sqrt(N)
            params["C_im" + suffix] = rng.standard_normal((D, N)) / np.sqrt(N)
        params["D"] = rng.standard_normal(D)
        return astype(params, np.float32)

    def transition(self, params: Params) -> DiagonalFolding:
        first, second = (params[name] for name in FORMS[self.form])
        gain = np.exp(params["gamma_log"]) if self.gamma else np.ones_like(first)
        if self.form == "real_imag":
            return DiagonalFolding(first + 1j * second, gain)
        a, rates = polar_transition(first, second, **self._logs)
        return DiagonalFolding(a, gain, rates)

    def transition_backward(self, params: Params, folding: DiagonalFolding, da: Array, dgain: Array) -> Params:
        gradients = (
            (da.real.copy(), da.imag.copy())
            if folding.rates is None
            else polar_transition_backward(da, folding.a, folding.rates, **self._logs)
        )
        dparams = dict(zip(FORMS[self.form], gradients, strict=True))
        if self.gamma:
            dparams["gamma_log"] = folding.gain * dgain
        return dparams

    @property
    def _logs(self) -> dict[str, bool]:
        nu, theta = FORMS[self.form]
        return {"nu_log": nu.endswith("_log"), "theta_log": theta.endswith("_log")}
