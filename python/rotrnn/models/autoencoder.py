"""A model that compresses a sequence into its last step, and returns every token from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.devices.device import beside
from rotrnn.models.files import loadable
from rotrnn.models.stream import Stream
from rotrnn.models.tagger import Tagger
from rotrnn.nn.blocks.block import check_parts
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import GELU
from rotrnn.nn.blocks.norm import norm_backward
from rotrnn.nn.blocks.pool import LastPool, pool_backward
from rotrnn.nn.layer import Array, Context, Gather, Layer, Params, State, trusted

LONGEST_WAVE = 10_000.0
NO_STREAM = "a model that answers after the last step does not support streaming inference"


@loadable
@dataclass(frozen=True)
class AutoEncoder(Tagger):
    """Logits (B, T, C), the classes of all tokens from the last step x_T alone: the model of MAD's compression (Poli et
    al. 2024, the released code's ``AutoEncoder``).

    ``z_t = x_T + p_t``, ``z' = GELU(hidden0(norm0(z)))``, ``z'' = GELU(hidden1(norm1(z')))``, and the logits are
    ``head(norm2(z''))``. The positions p_t are sines and cosines of D/2 waves, whose angles by step fall in a geometric
    series from 1 to 1/10000 (`positions`), and GELU has the package's form (`rotrnn.ops.gelu`). Params of the head:
    "norm0", "hidden0", "norm1", "hidden1", "norm2", "head".
    """

    norm0: Layer
    hidden0: Dense
    norm1: Layer
    hidden1: Dense
    norm2: Layer

    ties: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logit_cap is not None:
            raise ValueError(f"AutoEncoder: logit_cap={self.logit_cap}, expected None")
        check_parts(self, self.stack.d_model, {"norm0": self.norm0, "norm1": self.norm1, "norm2": self.norm2})

    @property
    def heads(self) -> dict[str, Dense]:
        return {"hidden0": self.hidden0, "hidden1": self.hidden1, "head": self.head}

    @property
    def modules(self) -> dict[str, Any]:
        return {**super().modules, "norm0": self.norm0, "norm1": self.norm1, "norm2": self.norm2}

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        last, pool = LastPool().forward({}, x, ctx)
        waves = beside(positions(x.shape[1], x.shape[2]).astype(x.dtype), x)
        segments, saved = ctx.segments, []
        if segments is None:
            z = last[:, None] + waves
        else:
            z = segments.packed([group.of(last)[:, None] + waves[: group.shape[1]] for group in segments.groups])
        for name, layer in self._decoder:
            z, one = layer.forward(params.get(name, {}), z, ctx)
            saved.append(one)
        return z, (pool, segments, tuple(saved))

    def head_backward(
        self, params: Params, saved: Any, dlogits: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        pool, segments, kept = saved
        dz, grads = dlogits, {}
        for (name, layer), one in zip(reversed(self._decoder), reversed(kept), strict=True):
            if name.startswith("norm"):
                dz, grads[name] = norm_backward(layer, params[name], one, dz, gather)
            else:
                dz, own = trusted(layer.backward)(params.get(name, {}), one, dz)
                grads |= {name: own} if own else {}
        if segments is None:
            dlast = dz.sum(1)
        else:
            dlast = segments.collected([segments.batch(group, dz).sum(1) for group in segments.groups])
        return pool_backward(LastPool(), pool, dlast, gather), grads

    @property
    def _decoder(self) -> list[tuple[str, Any]]:
        """The layers of the head in their order, by the names of their parameters."""
        parts = {**self.heads, "norm0": self.norm0, "norm1": self.norm1, "norm2": self.norm2}
        order = ("norm0", "hidden0", "gelu0", "norm1", "hidden1", "gelu1", "norm2", "head")
        return [(name, parts.get(name, GELU())) for name in order]

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        raise ValueError(f"AutoEncoder.read: {NO_STREAM}")

    def stream(self, params: Params, batch: int = 1, engine: str = "auto", weights: str = "exact") -> Stream:
        raise ValueError(f"AutoEncoder.stream: {NO_STREAM}")


def positions(T: int, D: int) -> Array:
    """Returns (T, D): the sines, then the cosines, of ``t 10000^(-i / (n - 1))`` for the n waves i."""
    n = -(-D // 2)
    angles = np.arange(T)[:, None] * LONGEST_WAVE ** (-np.arange(n) / max(n - 1, 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, :D]
