"""What the JAX peers of training share: the block around a layer, and a jitted step with AdamW written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from benchmarks.peers.jax_scan import compiled
from benchmarks.peers.problem import (
    BETA1,
    BETA2,
    DECAY,
    EPS,
    LR,
    MOMENTUM,
    NORM_EPS,
    ROUNDINGS,
    Training,
    Trial,
)
from rotrnn.nn.layer import is_parameter

Params = dict[str, jax.Array]
Layer = Callable[[Params, jax.Array], jax.Array]
"""From parameters and u (B, T, D) to y (B, T, D)."""
Linear = Callable[[jax.Array, jax.Array], jax.Array]
"""From x and a matrix w to x w^T."""


def linear(precision: str) -> Linear:
    """Products in a precision; in bf16, of operands that are cast, with sums of float32, and so their adjoints."""
    if precision == "float32":
        return lambda x, w: x @ w.T

    def dot(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.matmul(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32)

    @jax.custom_vjp
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return dot(x, w.T)

    def forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return dot(x, w.T), (x.astype(jnp.bfloat16), w)

    def backward(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, w = saved
        return dot(dy, w), dot(dy.reshape(-1, dy.shape[-1]).T, x.reshape(-1, x.shape[-1]))

    product.defvjp(forward, backward)
    return product


def training(problem: Training, layer: Layer, roundings: float = ROUNDINGS) -> Trial:
    """One block with `layer` in it, mean pool, head, cross entropy; the step donates its state, as training does."""
    x, labels = jnp.asarray(problem.x), jnp.asarray(problem.labels)
    product = linear(problem.precision)

    def loss(p: Params, x: jax.Array, labels: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        mean = x.mean((0, 1))
        var = jnp.square(x - mean).mean((0, 1))
        z = (x - mean) * (p["block.norm.scale"] * jax.lax.rsqrt(var + NORM_EPS)) + p["block.norm.bias"]
        recurrence = {name.rsplit(".", 1)[1]: value for name, value in p.items() if name.startswith("block.layer.")}
        z = jax.nn.gelu(layer(recurrence, z), approximate=True)
        value = product(z, p["block.gate.value.w"]) + p["block.gate.value.bias"]
        gate = product(z, p["block.gate.gate.w"]) + p["block.gate.gate.bias"]
        y = x + value * jax.nn.sigmoid(gate)
        logits = y.mean(1) @ p["head.w"].T + p["head.bias"]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean(), (mean, var)

    def step(state: dict[str, Any], x: jax.Array, labels: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        (value, statistics), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], x, labels)
        running = jax.tree.map(lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new, state["running"], statistics)
        t = state["t"] + 1
        m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state["v"], grads)

        def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            return p - LR * (m / (1 - BETA1**t) / (jnp.sqrt(v / (1 - BETA2**t)) + EPS) + DECAY * p)

        params = jax.tree.map(update, state["params"], m, v)
        return {"params": params, "m": m, "v": v, "running": running, "t": t}, value

    params = {name: jnp.asarray(value) for name, value in problem.params.items() if is_parameter(name)}
    state = {
        "params": params,
        "m": jax.tree.map(jnp.zeros_like, params),
        "v": jax.tree.map(jnp.zeros_like, params),
        "running": tuple(jnp.asarray(problem.params[f"block.norm.running_{what}"]) for what in ("mean", "var")),
        "t": jnp.zeros(()),
    }
    executable, seconds = compiled(step, state, x, labels, donate=(0,))

    def run() -> jax.Array:
        nonlocal state
        state, value = executable(state, x, labels)
        return jax.block_until_ready((state, value))[1]

    def answer(value: jax.Array) -> dict[str, Any]:
        return {"loss": np.asarray(value), **{name: np.asarray(m) / (1 - BETA1) for name, m in state["m"].items()}}

    return Trial(run, answer, seconds, roundings)


def tree_of_angles(T: int) -> float:
    """`roundings` where angles up to 2 pi are added in a tree: each of its levels rounds the whole sum."""
    return ROUNDINGS + 2 * math.pi * math.ceil(math.log2(T))
