"""Two towers: do two sequences belong together?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.models.model import SequenceModel
from rotrnn.models.stream import Stream
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import GELU
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.layer import TRUSTED, Array, Context, Params, State, trusted
from rotrnn.ops.boundary import Boundary


@dataclass(frozen=True)
class Retrieval(SequenceModel):
    """Logits (B, C) from pairs of sequences: ids (B, 2, T) or features (B, 2, T, F), lengths (B, 2).

    Both sequences pass the same encoder, stack and pool, as one batch of 2B (all first ones, then all second ones);
    of the two results u and v, ``head(GELU(hidden([u, v, u - v, u * v])))`` decides (the retrieval head of S4 and S5).
    Params of the head: "hidden" and "head", each a `Dense`.
    """

    pool: MeanPool | LastPool
    hidden: Dense
    head: Dense

    @property
    def heads(self) -> dict[str, Dense]:
        return {"hidden": self.hidden, "head": self.head}

    def check_input(self, args: Boundary, name: str, x: Any) -> Any:
        """Pairs as one batch, (2B, T) or (2B, T, F)."""
        shape, features = np.shape(x), isinstance(self.encoder, Dense)
        if len(shape) != 3 + features or shape[1] != 2:
            expected = "(B, 2, T, F)" if features else "(B, 2, T)"
            raise ValueError(f"{args.op}: {name} has shape {shape}, expected {expected}")
        return super().check_input(args, name, np.swapaxes(x, 0, 1).reshape(-1, *shape[2:]))

    def check_context(self, args: Boundary, ctx: Context) -> Context:
        """Lengths and places of that batch."""
        places = np.arange(args.size["B"] // 2) if ctx.places is None else np.asarray(ctx.places)
        lengths = None if ctx.lengths is None else self.flat_lengths(np.asarray(ctx.lengths))
        ctx = replace(ctx, lengths=lengths, places=np.concatenate([2 * places, 2 * places + 1]))
        return super().check_context(args, ctx)

    def flat_lengths(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if lengths.ndim != 2 or lengths.shape[1] != 2:
            raise ValueError(f"Retrieval.forward: lengths has shape {lengths.shape}, expected (B, 2)")
        return lengths.T.ravel()

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        pooled, pool = self.pool.forward({}, x, ctx)
        u, v = np.split(pooled, 2)
        z, hidden = self.hidden.forward(params["hidden"], np.concatenate([u, v, u - v, u * v], 1), TRUSTED)
        z, gelu = GELU().forward({}, z, TRUSTED)
        logits, head = self.head.forward(params["head"], z, TRUSTED)
        return logits, (pool, u, v, hidden, gelu, head)

    def head_backward(self, params: Params, saved: Any, dlogits: Array) -> tuple[Array, Params]:
        pool, u, v, hidden, gelu, head = saved
        dz, dhead = trusted(self.head.backward)(params["head"], head, dlogits)
        dz, _ = trusted(GELU().backward)({}, gelu, dz)
        dfeatures, dhidden = trusted(self.hidden.backward)(params["hidden"], hidden, dz)
        du, dv, ddifference, dproduct = np.split(dfeatures, 4, axis=1)
        dpooled = np.concatenate([du + ddifference + dproduct * v, dv - ddifference + dproduct * u])
        return trusted(self.pool.backward)({}, pool, dpooled)[0], {"hidden": dhidden, "head": dhead}

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        raise ValueError("Retrieval.read: a model of pairs does not stream")

    def stream(self, params: Params, batch: int = 1) -> Stream:
        raise ValueError("Retrieval.stream: a model of pairs does not stream")
