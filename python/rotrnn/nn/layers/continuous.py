"""Diagonal state space models in continuous time: spectra, step sizes, discretisations with their adjoints.

``x'(t) = lambda x(t) + B u(t)`` sampled with step Delta is ``x_k = a x_{k-1} + gain (B u_k)``, where a and gain / Delta
are functions of ``z = lambda Delta`` alone. `lam` and `step` broadcast against each other throughout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rotrnn.nn.layer import Array


class Discretisation(NamedTuple):
    """a(z) and gain(z) / Delta for ``z = lambda Delta``, each with its derivative; all holomorphic."""

    a: Callable[[Array], Array]
    a_slope: Callable[[Array], Array]
    gain: Callable[[Array], Array]
    gain_slope: Callable[[Array], Array]


def phi(z: Array) -> Array:
    """``(e^z - 1) / z``, 1 at zero and so close to it that quotients overflow."""
    zero = np.abs(z) < 1e-30
    return np.where(zero, 1, np.expm1(z) / np.where(zero, 1, z))


def phi_slope(z: Array) -> Array:
    """The derivative of `phi`, ``(e^z - phi(z)) / z``; near zero, where that cancels, its series."""
    small = np.abs(z) < 0.5
    near, away = np.where(small, z, 0), np.where(small, 1, z)
    series = np.zeros_like(z)
    for k in range(15, -1, -1):  # sum_k (k+1)/(k+2)! z^k: at |z| = 1/2 the next term is 2^-70 of the first
        series = series * near + _SERIES[k]
    return np.where(small, series, (np.exp(away) - phi(away)) / away)


_SERIES = [(k + 1) / float(np.prod(np.arange(1.0, k + 3))) for k in range(16)]

DISCRETISATIONS = {
    # zero-order hold: u constant over a step
    "zoh": Discretisation(np.exp, np.exp, phi, phi_slope),
    # the trapezoidal rule (Tustin)
    "bilinear": Discretisation(
        lambda z: (1 + z / 2) / (1 - z / 2),
        lambda z: (1 / (1 - z / 2)) ** 2,
        lambda z: 1 / (1 - z / 2),
        lambda z: (1 / (1 - z / 2)) ** 2 / 2,
    ),
    # zero-order hold's a, and its gain to first order, Delta (LRU, section 4)
    "first_order": Discretisation(np.exp, np.exp, np.ones_like, np.zeros_like),
}


def transition(method: str, lam: Array, step: Array) -> Array:
    """The transition ``a = a(lambda Delta)``."""
    return DISCRETISATIONS[method].a(lam * step)


def transition_backward(da: Array, method: str, lam: Array, step: Array) -> tuple[Array, Array]:
    """(dlambda, dstep) from the gradient of `transition`, both of the broadcast shape."""
    dz = da * np.conj(DISCRETISATIONS[method].a_slope(lam * step))
    return dz * step, (np.conj(lam) * dz).real


def input_gain(method: str, lam: Array, step: Array) -> Array:
    """What multiplies ``B u``: ``Delta gain(lambda Delta)``."""
    return step * DISCRETISATIONS[method].gain(lam * step)


def input_gain_backward(dgain: Array, method: str, lam: Array, step: Array) -> tuple[Array, Array]:
    """(dlambda, dstep) from the gradient of `input_gain`, both of the broadcast shape."""
    _, _, gain, gain_slope = DISCRETISATIONS[method]
    z = lam * step
    dz = dgain * step * np.conj(gain_slope(z))
    return dz * step, (np.conj(lam) * dz + np.conj(gain(z)) * dgain).real


@functools.cache
def hippo_normal(n: int) -> tuple[Array, Array]:
    """Eigenvalues (n,), by their imaginary parts upwards, and unitary eigenvectors (n, n) of HiPPO-N.

    The normal part of HiPPO-LegS is ``A_ij = -1/2 (i = j), -+ sqrt((2i+1)(2j+1)) / 2 (i > j: -)``, i from 0: half the
    negative identity and a skew part, so that all eigenvalues have real part -1/2 (S5, Smith et al. 2023, section 2;
    S4D-LegS, Gu et al. 2022). Computed once for each n: the arrays are read-only.
    """
    root = np.sqrt(2 * np.arange(n) + 1)
    skew = -0.5 * np.outer(root, root) * np.sign(np.subtract.outer(np.arange(n), np.arange(n)))
    frequencies, vectors = np.linalg.eigh(-1j * skew)
    eigenvalues = -0.5 + 1j * frequencies
    eigenvalues.flags.writeable = vectors.flags.writeable = False
    return eigenvalues, vectors


def log_steps(rng: np.random.Generator, dt_min: float, dt_max: float, count: int) -> Array:
    """log Delta, uniform from log dt_min to log dt_max."""
    return rng.uniform(np.log(dt_min), np.log(dt_max), count)


def check_steps(layer: str, discretisation: str, dt_min: float, dt_max: float) -> None:
    """The settings that every layer with a discretisation has."""
    if discretisation not in DISCRETISATIONS:
        raise ValueError(f"{layer}: discretisation={discretisation!r}, expected one of {', '.join(DISCRETISATIONS)}")
    if not 0 < dt_min <= dt_max < np.inf:
        raise ValueError(f"{layer}: dt_min={dt_min}, dt_max={dt_max}, expected 0 < dt_min <= dt_max")
