"""The scan in JAX, by associative_scan, by lax.scan, and by lax.scan in all chunks of time at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from benchmarks.peers import problem as problems
from benchmarks.peers.problem import Trial, chunk_length

Scan = Callable[[jax.Array, jax.Array], jax.Array]
"""From a (N,) and x (B, T, N), real or complex, to the states."""


def compose(earlier: tuple[jax.Array, jax.Array], later: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The map ``h -> a h + x`` of two pieces of time, one after the other (LRU, appendix A)."""
    (a, x), (b, y) = earlier, later
    return b * a, b * x + y


def associative_scan(a: jax.Array, x: jax.Array) -> jax.Array:
    """States of ``h_t = a h_{t-1} + x_t``, (B, T, N), by a parallel scan over the pairs (a, x_t)."""
    powers = jnp.broadcast_to(a, x.shape[1:])
    return jax.vmap(lambda one: jax.lax.associative_scan(compose, (powers, one))[1])(x)


def loop_scan(a: jax.Array, x: jax.Array) -> jax.Array:
    """The same by lax.scan over time, time first while it runs."""

    def step(h: jax.Array, x_t: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = a * h + x_t
        return h, h

    _, h = jax.lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))
    return h.swapaxes(0, 1)


def chunked_scan(a: jax.Array, x: jax.Array) -> jax.Array:
    """The same in three steps: a loop within all chunks at once, one over the chunks' ends, and what they carry on."""
    B, T, N = x.shape
    length = chunk_length(T)
    pieces = x.reshape(B * T // length, length, N)
    within = loop_scan(a, pieces).reshape(B, T // length, length, N)
    powers = jnp.cumprod(jnp.broadcast_to(a, (length, N)), axis=0)
    ends = loop_scan(powers[-1], within[:, :, -1])
    carried = jnp.pad(ends[:, :-1], ((0, 0), (1, 0), (0, 0)))
    return (within + powers * carried[:, :, None]).reshape(x.shape)


def compiled(function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> tuple[Any, float]:
    """The function compiled for its arguments, and the seconds that took."""
    before = time.perf_counter()
    executable = jax.jit(function, donate_argnums=donate).lower(*args).compile()
    return executable, time.perf_counter() - before


def _scan(problem: problems.Scan, run: Scan) -> Trial:
    a, x = jnp.asarray(problem.a), jnp.asarray(problem.x)
    forward, seconds = compiled(run, a, x)
    return Trial(lambda: forward(a, x).block_until_ready(), lambda h: {"h": np.asarray(h)}, seconds)


def _scan_gradient(problem: problems.Scan, run: Scan) -> Trial:
    arrays = [jnp.asarray(array) for array in problem]

    def both(a: jax.Array, x: jax.Array, dh: jax.Array) -> tuple[jax.Array, ...]:
        h, adjoint = jax.vjp(run, a, x)
        return (h, *adjoint(dh))

    executable, seconds = compiled(both, *arrays)

    def answer(found: tuple[jax.Array, ...]) -> dict[str, Any]:
        return {name: np.asarray(array) for name, array in zip(("h", "da", "dx"), found, strict=True)}

    return Trial(lambda: jax.block_until_ready(executable(*arrays)), answer, seconds)


def associative(problem: problems.Scan) -> Trial:
    return _scan(problem, associative_scan)


def associative_gradient(problem: problems.Scan) -> Trial:
    return _scan_gradient(problem, associative_scan)


def loop(problem: problems.Scan) -> Trial:
    return _scan(problem, loop_scan)


def loop_gradient(problem: problems.Scan) -> Trial:
    return _scan_gradient(problem, loop_scan)
