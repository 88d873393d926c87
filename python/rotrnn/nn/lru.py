"""LRU: the linear recurrent unit (Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rotrnn.nn.layer import Array, Params, astype
from rotrnn.nn.linear import LinearRecurrence, ring
from rotrnn.ops.linear_layer import System


@dataclass(frozen=True)
class LRU(LinearRecurrence):
    """``h_t = lambda * h_{t-1} + exp(gamma_log) * (B u_t)``, ``y_t = Re(C h_t) + D * u_t``.

    ``lambda = exp(-exp(nu_log) + i exp(theta_log))`` lies inside the unit disc for any parameters (eqs. 7-8 and
    section 3.4). `d_state` is N, the number of complex states.

    Parameters (dict of float32): nu_log, theta_log, gamma_log (N,), B_re, B_im (N, D), C_re, C_im (D, N), D (D,);
    a bidirectional layer has C_re_reverse, C_im_reverse (D, N) too, and shares the rest between its directions.

    Initial values: |lambda| uniform in area on the ring [r_min, r_max] (Lemma 3.2), phase uniform on [0, max_phase],
    B ~ N(0, 1/2D) and C ~ N(0, 1/N) per part, D ~ N(0, 1), ``gamma_log = log sqrt(1 - |lambda|^2)`` (eq. 7).
    """

    about: ClassVar[str] = "linear recurrent unit: a stable complex diagonal recurrence"
    paper: ClassVar[str] = 'Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences"'
    recurrent: ClassVar[frozenset[str]] = frozenset({"nu_log", "theta_log", "gamma_log", "B_re", "B_im"})

    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * np.pi

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.r_min <= self.r_max <= 1 and self.r_min < 1 and self.r_max > 0):
            raise ValueError(
                f"LRU: r_min={self.r_min}, r_max={self.r_max}, expected 0 <= r_min <= r_max <= 1, r_min < 1, r_max > 0"
            )
        if not self.max_phase > 0:
            raise ValueError(f"LRU: max_phase={self.max_phase}, expected a positive angle")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        D, N = self.d_model, self.d_state
        outputs = {name + suffix: (D, N) for suffix in self._directions() for name in ("C_re", "C_im")}
        return {
            **dict.fromkeys(("nu_log", "theta_log", "gamma_log"), (N,)),
            **dict.fromkeys(("B_re", "B_im"), (N, D)),
            **outputs,
            "D": (D,),
        }

    def init(self, rng: np.random.Generator) -> Params:
        D, N = self.d_model, self.d_state
        nu_log = ring(rng, self.r_min, self.r_max, N)
        params = {
            "nu_log": nu_log,
            "theta_log": np.log(rng.uniform(np.finfo(np.float32).tiny, self.max_phase, N)),
            "gamma_log": 0.5 * np.log(-np.expm1(-2 * np.exp(nu_log))),
            "B_re": rng.standard_normal((N, D)) / np.sqrt(2 * D),
            "B_im": rng.standard_normal((N, D)) / np.sqrt(2 * D),
        }
        for suffix in self._directions():
            params["C_re" + suffix] = rng.standard_normal((D, N)) / np.sqrt(N)
            params["C_im" + suffix] = rng.standard_normal((D, N)) / np.sqrt(N)
        params["D"] = rng.standard_normal(D)
        return astype(params, np.float32)

    def fold(self, params: Params) -> tuple[System, Array]:
        modulus = np.exp(-np.exp(params["nu_log"]))
        angle = np.exp(params["theta_log"])
        a = np.empty(self.d_state, np.result_type(modulus, np.complex64))
        a.real, a.imag = modulus * np.cos(angle), modulus * np.sin(angle)
        gain = np.exp(params["gamma_log"])[:, None]
        w_in = interleave(gain * params["B_re"], gain * params["B_im"], axis=0)
        w_out = np.stack([interleave(params["C_re" + s], -params["C_im" + s], axis=1) for s in self._directions()])
        return System(w_in, a, w_out, params["D"]), a

    def fold_backward(self, params: Params, folding: Array, dsystem: System) -> Params:
        a, da = folding, dsystem.a
        gain = np.exp(params["gamma_log"])[:, None]
        dgB_re, dgB_im = dsystem.w_in[0::2], dsystem.w_in[1::2]
        dparams = {
            "nu_log": -np.exp(params["nu_log"]) * (a.real * da.real + a.imag * da.imag),
            "theta_log": np.exp(params["theta_log"]) * (a.real * da.imag - a.imag * da.real),
            "gamma_log": (gain * (dgB_re * params["B_re"] + dgB_im * params["B_im"])).sum(1),
            "B_re": gain * dgB_re,
            "B_im": gain * dgB_im,
        }
        for k, suffix in enumerate(self._directions()):
            dparams["C_re" + suffix] = dsystem.w_out[k, :, 0::2].copy()
            dparams["C_im" + suffix] = -dsystem.w_out[k, :, 1::2]
        dparams["D"] = dsystem.skip
        return dparams

    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)


def interleave(even: Array, odd: Array, axis: int) -> Array:
    """Rows or columns even_0, odd_0, even_1, odd_1, ..."""
    return np.stack([even, odd], axis + 1).reshape(*(2 * n if i == axis else n for i, n in enumerate(even.shape)))
