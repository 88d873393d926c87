"""RotRNN in JAX: as its paper's appendix C has it, and with all that time does not touch hoisted out."""

from __future__ import annotations

import jax
from jax import numpy as jnp

from benchmarks.peers.jax_scan import Scan, associative_scan, chunked_scan, loop_scan
from benchmarks.peers.jax_training import Layer, Linear, Params, linear, training, tree_of_angles
from benchmarks.peers.problem import Training, Trial

Element = tuple[jax.Array, jax.Array, jax.Array]


def _gamma_xi_P(p: Params) -> tuple[jax.Array, jax.Array, jax.Array]:
    gamma = jnp.exp(-jnp.exp(p["gamma_log"]))
    trace = jnp.trace(p["B"].transpose(0, 2, 1) @ p["B"], axis1=1, axis2=2)
    P = jax.scipy.linalg.expm(p["M"] - p["M"].transpose(0, 2, 1))
    return gamma, jnp.sqrt((1 - gamma**2) / trace), P


def _compose(earlier: Element, later: Element) -> Element:
    """Two pieces of time: decays multiply, angles add, and the later piece turns what the earlier one left."""
    gamma_i, theta_i, x_i = earlier
    gamma_j, theta_j, x_j = later
    turned = jnp.stack([-x_i[..., 1::2], x_i[..., 0::2]], -1).reshape(x_i.shape)
    angle = jnp.repeat(theta_j, 2, axis=-1)
    x = gamma_j * (jnp.cos(angle) * x_i + jnp.sin(angle) * turned)
    return gamma_i * gamma_j, theta_i + theta_j, x + x_j


def published_layer(p: Params, u: jax.Array) -> jax.Array:
    """The structure of appendix C's listing: P^T and P at every step, (gamma, theta, x) scanned head by head."""

    def one_sequence(u: jax.Array) -> jax.Array:
        T = len(u)
        gamma, xi, P = _gamma_xi_P(p)
        x = jnp.einsum("hwd,td->htw", xi[:, None, None] * p["B"], u)
        x = jnp.einsum("hiw,hti->htw", P, x)
        gammas = jnp.repeat(gamma[:, None, None], T, axis=1)
        thetas = jnp.repeat(p["theta"][:, None], T, axis=1)
        x = jax.vmap(lambda *element: jax.lax.associative_scan(_compose, element))(gammas, thetas, x)[2]
        x = jnp.einsum("hwi,hti->htw", P, x)
        x = x.transpose(1, 0, 2).reshape(T, -1)
        return jax.vmap(lambda x_t: p["C"] @ x_t)(x) + p["D"] * u

    return jax.vmap(one_sequence)(u)


def hoisted_layer(scan: Scan, product: Linear) -> Layer:
    """P folded into B and C, all products outside of time, planes as complex numbers."""

    def layer(p: Params, u: jax.Array) -> jax.Array:
        gamma, xi, P = _gamma_xi_P(p)
        w_in = (xi[:, None, None] * (P.transpose(0, 2, 1) @ p["B"])).reshape(-1, u.shape[-1])
        w_out = jnp.einsum("dhw,hwi->dhi", p["C"].reshape(-1, *P.shape[:2]), P).reshape(len(p["C"]), -1)
        a = (gamma[:, None] * jnp.exp(1j * p["theta"])).reshape(-1)
        v = product(u, w_in)
        h = scan(a, jax.lax.complex(v[..., 0::2], v[..., 1::2]))
        return product(jnp.stack([h.real, h.imag], -1).reshape(v.shape), w_out) + p["D"] * u

    return layer


def published(problem: Training) -> Trial:
    return training(problem, published_layer, tree_of_angles(problem.x.shape[1]))


def loop(problem: Training) -> Trial:
    return training(problem, hoisted_layer(loop_scan, linear(problem.precision)))


def parallel(problem: Training) -> Trial:
    return training(problem, hoisted_layer(associative_scan, linear(problem.precision)))


def chunked(problem: Training) -> Trial:
    return training(problem, hoisted_layer(chunked_scan, linear(problem.precision)))
