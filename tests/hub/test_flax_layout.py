"""S5's and minimal-LRU's modules transcribed in Flax: the names of their arrays, and their files in msgpack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.serialization import msgpack_serialize, to_state_dict

import rotrnn

T, F, D, P, C, BATCH = 19, 3, 6, 4, 5, 2
Array = Any
normal = nn.initializers.normal


def recurrence(a: Array, inputs: Array) -> Array:
    """h_t = a h_{t-1} + u_t along (T, P)."""

    def step(h: Array, u: Array) -> tuple[Array, Array]:
        h = a * h + u
        return h, h

    return jax.lax.scan(step, jnp.zeros_like(a), inputs)[1]


class LRU(nn.Module):
    """minimal-LRU's layer."""

    @nn.compact
    def __call__(self, u: Array) -> Array:
        def own(name: str, *shape: int) -> Array:
            return self.param(name, normal(0.4), shape)

        nu, theta, gamma = own("nu_log", P), own("theta_log", P), own("gamma_log", P)
        B, C = own("B_re", P, D) + 1j * own("B_im", P, D), own("C_re", D, P) + 1j * own("C_im", D, P)
        h = recurrence(jnp.exp(-jnp.exp(nu) + 1j * jnp.exp(theta)), u @ (B * jnp.exp(gamma)[:, None]).T)
        return (h @ C.T).real + own("D", D) * u


class S5(nn.Module):
    """S5's layer, with conjugate pairs and zero-order hold."""

    bidirectional: bool

    @nn.compact
    def __call__(self, u: Array) -> Array:
        def own(name: str, *shape: int) -> Array:
            return self.param(name, normal(0.4), shape)

        def pair(name: str, *shape: int) -> Array:
            both = own(name, *shape, 2)
            return both[..., 0] + 1j * both[..., 1]

        real = self.param("Lambda_re", nn.initializers.constant(-0.9), (P,))
        lam, step = real + 1j * own("Lambda_im", P), jnp.exp(own("log_step", P, 1)[:, 0])
        a = jnp.exp(lam * step)
        inputs = u @ (((a - 1) / lam)[:, None] * pair("B", P, D)).T
        h = recurrence(a, inputs)
        if self.bidirectional:
            readout = jnp.concatenate([pair("C1", D, P), pair("C2", D, P)], 1)
            h = jnp.concatenate([h, recurrence(a, inputs[::-1])[::-1]], 1)
        else:
            readout = pair("C", D, P)
        return 2 * (h @ readout.T).real + own("D", D) * u


class Block(nn.Module):
    """A block of either, in evaluation; the norm has another name in each."""

    layer: Any
    norm_name: str
    batch: bool

    def setup(self) -> None:
        self.seq = self.layer()
        self.out1, self.out2 = nn.Dense(D), nn.Dense(D)
        norm = nn.BatchNorm(use_running_average=True) if self.batch else nn.LayerNorm()
        setattr(self, self.norm_name, norm)

    def __call__(self, x: Array) -> Array:
        y = nn.gelu(self.seq(getattr(self, self.norm_name)(x)))
        return x + self.out1(y) * jax.nn.sigmoid(self.out2(y))


class Stack(nn.Module):
    layer: Any
    norm_name: str
    batch: bool

    def setup(self) -> None:
        self.encoder = nn.Dense(D)
        self.layers = [Block(self.layer, self.norm_name, self.batch) for _ in range(2)]

    def __call__(self, x: Array) -> Array:
        x = self.encoder(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Classifier(nn.Module):
    layer: Any
    norm_name: str
    batch: bool

    def setup(self) -> None:
        self.encoder = Stack(self.layer, self.norm_name, self.batch)
        self.decoder = nn.Dense(C)

    def __call__(self, x: Array) -> Array:
        return nn.log_softmax(self.decoder(self.encoder(x).mean(0)))


Batched = nn.vmap(
    Classifier, in_axes=0, out_axes=0, variable_axes={"params": None, "batch_stats": None}, split_rngs={"params": False}
)


def moved(variables: Any) -> Any:
    """Each array moved from its initial value; variances stay positive."""
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, one: one + 0.1 * np.abs(rng.standard_normal(one.shape)).astype(np.float32), variables
    )


CASES = {
    "lru": (LRU, "normalization", rotrnn.import_lru, {}),
    "s5": (lambda: S5(False), "norm", rotrnn.import_s5, {"activation": "full_glu"}),
    "s5, both": (lambda: S5(True), "norm", rotrnn.import_s5, {"activation": "full_glu"}),
}


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_flax(name: str, batch: bool, tmp_path: Path) -> None:
    """From the tree, and from the file of a training state, to 1e-5 in float32."""
    layer, norm_name, read, settings = CASES[name]
    module = Batched(layer, norm_name, batch)
    x = np.random.default_rng(1).standard_normal((BATCH, T, F)).astype(np.float32)
    variables = moved(module.init(jax.random.PRNGKey(0), x))
    expected = np.asarray(module.apply(variables, x))
    path = tmp_path / "checkpoint"
    path.write_bytes(msgpack_serialize({"step": 7, **to_state_dict(variables), "opt_state": {"mu": {"D": np.ones(3)}}}))
    for source in (variables, path):
        model, params = read(source, prenorm=True, **settings)
        logits, _ = model.forward(params, x)
        ours = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        assert np.ptp(expected) > 0.1
        assert np.abs(ours - expected).max() <= 1e-5


def test_a_damaged_msgpack_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for data in (b"", b"\x81\xa1a", b"\x93\1\2\3"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"checkpoint: "):
            rotrnn.import_lru(path, prenorm=True)
