"""LRU in JAX: as its paper's appendix A has it, and with real products around either scan."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import numpy as jnp

from benchmarks.peers.jax_scan import Scan, associative_scan, loop_scan
from benchmarks.peers.jax_training import Layer, Params, training
from benchmarks.peers.problem import Training, Trial


def _transition(p: Params) -> jax.Array:
    return jnp.exp(-jnp.exp(p["nu_log"]) + 1j * jnp.exp(p["theta_log"]))


def published_layer(p: Params, u: jax.Array) -> jax.Array:
    """The structure of appendix A's listing: complex products step by step, and a parallel scan."""
    w_in = jnp.exp(p["gamma_log"])[:, None] * (p["B_re"] + 1j * p["B_im"])
    w_out = p["C_re"] + 1j * p["C_im"]

    def every_step(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return jax.vmap(jax.vmap(function))

    h = associative_scan(_transition(p), every_step(lambda u_t: w_in @ u_t)(u))
    return every_step(lambda h_t, u_t: (w_out @ h_t).real + p["D"] * u_t)(h, u)


def hoisted_layer(scan: Scan) -> Layer:
    """All products real and outside of time."""

    def layer(p: Params, u: jax.Array) -> jax.Array:
        gain = jnp.exp(p["gamma_log"])[:, None]
        v = jax.lax.complex(u @ (gain * p["B_re"]).T, u @ (gain * p["B_im"]).T)
        h = scan(_transition(p), v)
        return h.real @ p["C_re"].T - h.imag @ p["C_im"].T + p["D"] * u

    return layer


def published(problem: Training) -> Trial:
    return training(problem, published_layer)


def loop(problem: Training) -> Trial:
    return training(problem, hoisted_layer(loop_scan))


def parallel(problem: Training) -> Trial:
    return training(problem, hoisted_layer(associative_scan))
