"""Diagonal state space models in continuous time: spectra, step sizes, discretisations with their adjoints.

``x'(t) = lambda x(t) + B u(t)`` sampled with step Delta is ``x_k = a x_{k-1} + gain (B u_k)``, where a and gain / Delta
are functions of ``z = lambda Delta``. `lam` and `step` broadcast against each other in all functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rotrnn.nn.layer import Array, Params
from rotrnn.ops.boundary import Boundary

ROUNDING = float(np.finfo(np.float64).eps)


class Discretisation(NamedTuple):
    """a(z) and gain(z) / Delta for ``z = lambda Delta``, each with its derivative, and the derivative of the gain by
    Delta, ``(gain / Delta) + z (gain / Delta)'``, whose two terms would cancel for fast decays; all are holomorphic."""

    a: Callable[[Array], Array]
    a_slope: Callable[[Array], Array]
    gain: Callable[[Array], Array]
    gain_slope: Callable[[Array], Array]
    gain_by_step: Callable[[Array], Array]


def phi(z: Array) -> Array:
    """Returns ``(e^z - 1) / z``; 1 at zero and for z so small that the quotient overflows."""
    zero = np.abs(z) < 1e-30
    return np.where(zero, 1, np.expm1(z) / np.where(zero, 1, z))


def phi_slope(z: Array) -> Array:
    """Returns the derivative of `phi`, ``(e^z - phi(z)) / z``. Near zero, where this formula suffers from cancellation,
    the series is used."""
    small = np.abs(z) < 0.5
    near, away = np.where(small, z, 0), np.where(small, 1, z)
    series = np.zeros_like(z)
    for k in range(15, -1, -1):  # sum_k (k+1)/(k+2)! z^k: at |z| = 1/2 the next term is 2^-70 of the first
        series = series * near + _SERIES[k]
    return np.where(small, series, (np.exp(away) - phi(away)) / away)


_SERIES = [(k + 1) / float(np.prod(np.arange(1.0, k + 3))) for k in range(16)]

DISCRETISATIONS = {
    # zero-order hold: u is constant over a step
    "zoh": Discretisation(np.exp, np.exp, phi, phi_slope, np.exp),
    # the trapezoidal rule (Tustin)
    "bilinear": Discretisation(
        lambda z: (1 + z / 2) / (1 - z / 2),
        lambda z: (1 / (1 - z / 2)) ** 2,
        lambda z: 1 / (1 - z / 2),
        lambda z: (1 / (1 - z / 2)) ** 2 / 2,
        lambda z: (1 / (1 - z / 2)) ** 2,
    ),
    # a of zero-order hold, and its gain to first order, Delta (LRU, section 4)
    "first_order": Discretisation(np.exp, np.exp, np.ones_like, np.zeros_like, np.ones_like),
}


def transition(method: str, lam: Array, step: Array) -> Array:
    """Returns the transition ``a = a(lambda Delta)``."""
    return DISCRETISATIONS[method].a(lam * step)


def transition_backward(da: Array, method: str, lam: Array, step: Array) -> tuple[Array, Array]:
    """Adjoint of `transition`: returns (dlambda, dstep), both of the broadcast shape."""
    dz = da * np.conj(DISCRETISATIONS[method].a_slope(lam * step))
    return dz * step, (np.conj(lam) * dz).real


def input_gain(method: str, lam: Array, step: Array) -> Array:
    """Returns the gain of ``B u``, ``Delta gain(lambda Delta)``."""
    return step * DISCRETISATIONS[method].gain(lam * step)


def input_gain_backward(dgain: Array, method: str, lam: Array, step: Array) -> tuple[Array, Array]:
    """Adjoint of `input_gain`: returns (dlambda, dstep), both of the broadcast shape."""
    found, z = DISCRETISATIONS[method], lam * step
    return dgain * step * np.conj(found.gain_slope(z)) * step, (dgain * np.conj(found.gain_by_step(z))).real


def check_dt(layer: Any, args: Boundary, **further: Any) -> None:
    """Checks the settings of a layer in continuous time that is given intervals (`Context.dt`), and `further`
    ones."""
    for name, value in {"bidirectional": False, "window": None, **further}.items():
        if (got := getattr(layer, name)) != value:
            raise NotImplementedError(
                f"{args.op}: got dt, which {type(layer).__name__} does not support with {name}={got}, "
                f"expected {name}={value}"
            )


@functools.cache
def hippo_normal(n: int) -> tuple[Array, Array]:
    """Returns eigenvalues (n,), in order of increasing imaginary part, and unitary eigenvectors (n, n) of HiPPO-N.

    HiPPO-N, the normal part of HiPPO-LegS, is ``A_ij = -1/2 (i = j), -+ p_i p_j / 2 (i > j: -)``, ``p_i = sqrt(2i+1)``,
    i from 0 (S5, Smith et al. 2023, section 2; S4D-LegS, Gu et al. 2022). Its eigenvalues are ``-1/2 + i w_k``.

    The sums ``z_i = sum_{j<=i} p_j v_j - sum_j p_j v_j / 2`` of an eigenvector v have the ratios
    ``z_i / z_{i-1} = (i w - c_i) / (i w + c_i)``, ``c_i = i + 1/2``, and ``z_{n-1} = -z_{-1}``. With
    ``t_i = atan(w / c_i)`` follow the frequencies, ``sum_i t_i = pi (2k + 1 - n) / 2`` for k < n, and the vectors,
    ``v_i ~ (-1)^i cos(t_i) e^{-i (t_i + 2 sum_{j<i} t_j)} / p_i``. So no eigenvalue routine is needed, whose last bits
    would depend on the number of threads. Computed once for each n; the arrays are read-only.
    """
    count = np.arange(n)
    c = count + 0.5
    frequencies = np.zeros(n)
    wanted = np.pi / 2 * (2 * count[n - n // 2 :] + 1 - n)  # of the positive frequencies
    w = np.zeros(n // 2)
    while True:  # Newton's method: the sum is concave, so that it comes from below and stops at the last bit
        ratio = w[:, None] / c
        step = (wanted - np.arctan(ratio).sum(1)) / (1 / (c + w[:, None] * ratio)).sum(1)
        larger = w + step > w * (1 + ROUNDING * n)
        if not larger.any():
            break
        w = np.where(larger, w + step, w)
    frequencies[n - n // 2 :], frequencies[: n // 2] = w, -w[::-1]
    angles = np.arctan(frequencies / c[:, None])
    before = np.cumsum(angles, axis=0) - angles
    vectors = np.cos(angles) * np.exp(-1j * (angles + 2 * before)) * ((-1.0) ** count / np.sqrt(2 * c))[:, None]
    vectors /= np.sqrt((vectors.real**2 + vectors.imag**2).sum(0))
    eigenvalues = -0.5 + 1j * frequencies
    eigenvalues.flags.writeable = vectors.flags.writeable = False
    return eigenvalues, vectors


def hippo_dplr(n: int) -> tuple[Array, Array, Array]:
    """Returns HiPPO-LegS of n states, an even number, in the eigenvectors V of its normal part: (Lambda, P, B), (n /
    2,) each, for one of each pair of conjugate states, in order of increasing frequency.

    HiPPO-LegS is ``A_ij = -sqrt(2i+1) sqrt(2j+1) (i > j), -(i+1) (i = j)``, ``B_i = sqrt(2i+1)``. It is HiPPO-N
    (`hippo_normal`) less the rank-one matrix of ``P_i = sqrt(i + 1/2)``: ``V^H A V = Lambda - P P^H`` with ``V^H P``
    for P (S4, Gu, Goel, Re 2022, section 3.2, where it is called NPLR).
    """
    eigenvalues, vectors = hippo_normal(n)
    kept = vectors[:, n - n // 2 :]
    root = np.sqrt(np.arange(n) + 0.5)
    P = (kept.conj() * root[:, None]).sum(0)
    return eigenvalues[n - n // 2 :], P, np.sqrt(2) * P


def complex_parameter(params: Params, name: str, suffix: str = "") -> Array:
    """Returns a complex parameter from its real and imaginary parts, which are the parameters."""
    return params[f"{name}_re{suffix}"] + 1j * params[f"{name}_im{suffix}"]


def log_steps(rng: np.random.Generator, dt_min: float, dt_max: float, count: int) -> Array:
    """Returns random log Delta, uniform from log dt_min to log dt_max."""
    return rng.uniform(np.log(dt_min), np.log(dt_max), count)


def check_steps(layer: str, dt_min: float, dt_max: float, step_scale: float) -> None:
    """Checks the range of the initial steps Delta, and their common factor."""
    if not 0 < dt_min <= dt_max < np.inf:
        raise ValueError(f"{layer}: dt_min={dt_min}, dt_max={dt_max}, expected 0 < dt_min <= dt_max")
    if not 0 < step_scale < np.inf:
        raise ValueError(f"{layer}: step_scale={step_scale}, expected a positive number")
