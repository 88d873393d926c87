"""Diagonal state space models in continuous time: spectra, step sizes, discretisations with their adjoints.

``x'(t) = lambda x(t) + B u(t)`` sampled with step Delta is ``x_k = a x_{k-1} + gain (B u_k)``, where a and gain / Delta
are functions of ``z = lambda Delta``. `lam` and `step` broadcast against each other in all functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rotrnn.nn.layer import Array


class Discretisation(NamedTuple):
    """a(z) and gain(z) / Delta for ``z = lambda Delta``, each with its derivative; all are holomorphic functions."""

    a: Callable[[Array], Array]
    a_slope: Callable[[Array], Array]
    gain: Callable[[Array], Array]
    gain_slope: Callable[[Array], Array]


def phi(z: Array) -> Array:
    """Returns ``(e^z - 1) / z``; 1 at zero and for z so small that the quotient overflows."""
    zero = np.abs(z) < 1e-30
    return np.where(zero, 1, np.expm1(z) / np.where(zero, 1, z))


def phi_slope(z: Array) -> Array:
    """Returns the derivative of `phi`, ``(e^z - phi(z)) / z``. Near zero, where this formula suffers from cancellation,
    uses the series."""
    small = np.abs(z) < 0.5
    near, away = np.where(small, z, 0), np.where(small, 1, z)
    series = np.zeros_like(z)
    for k in range(15, -1, -1):  # sum_k (k+1)/(k+2)! z^k: at |z| = 1/2 the next term is 2^-70 of the first
        series = series * near + _SERIES[k]
    return np.where(small, series, (np.exp(away) - phi(away)) / away)


_SERIES = [(k + 1) / float(np.prod(np.arange(1.0, k + 3))) for k in range(16)]

DISCRETISATIONS = {
    # zero-order hold: u is constant over a step
    "zoh": Discretisation(np.exp, np.exp, phi, phi_slope),
    # the trapezoidal rule (Tustin)
    "bilinear": Discretisation(
        lambda z: (1 + z / 2) / (1 - z / 2),
        lambda z: (1 / (1 - z / 2)) ** 2,
        lambda z: 1 / (1 - z / 2),
        lambda z: (1 / (1 - z / 2)) ** 2 / 2,
    ),
    # a of zero-order hold, and its gain to first order, Delta (LRU, section 4)
    "first_order": Discretisation(np.exp, np.exp, np.ones_like, np.zeros_like),
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
    _, _, gain, gain_slope = DISCRETISATIONS[method]
    z = lam * step
    dz = dgain * step * np.conj(gain_slope(z))
    return dz * step, (np.conj(lam) * dz + np.conj(gain(z)) * dgain).real


@functools.cache
def hippo_normal(n: int) -> tuple[Array, Array]:
    """Returns eigenvalues (n,), in order of increasing imaginary part, and unitary eigenvectors (n, n) of HiPPO-N.

    HiPPO-N, the normal part of HiPPO-LegS, is ``A_ij = -1/2 (i = j), -+ sqrt((2i+1)(2j+1)) / 2 (i > j: -)``, i from 0.
    It is -1/2 times the identity plus a skew-symmetric part, so all eigenvalues have real part -1/2 (S5, Smith et al.
    2023, section 2; S4D-LegS, Gu et al. 2022). Computed once for each n; the arrays are read-only.
    """
    root = np.sqrt(2 * np.arange(n) + 1)
    skew = -0.5 * np.outer(root, root) * np.sign(np.subtract.outer(np.arange(n), np.arange(n)))
    frequencies, vectors = np.linalg.eigh(-1j * skew)
    eigenvalues = -0.5 + 1j * frequencies
    eigenvalues.flags.writeable = vectors.flags.writeable = False
    return eigenvalues, vectors


def log_steps(rng: np.random.Generator, dt_min: float, dt_max: float, count: int) -> Array:
    """Returns random log Delta, uniform from log dt_min to log dt_max."""
    return rng.uniform(np.log(dt_min), np.log(dt_max), count)


def check_steps(layer: str, discretisation: str, dt_min: float, dt_max: float) -> None:
    """Checks the settings that all layers with a discretisation share."""
    if discretisation not in DISCRETISATIONS:
        raise ValueError(f"{layer}: discretisation={discretisation!r}, expected one of {', '.join(DISCRETISATIONS)}")
    if not 0 < dt_min <= dt_max < np.inf:
        raise ValueError(f"{layer}: dt_min={dt_min}, dt_max={dt_max}, expected 0 < dt_min <= dt_max")
