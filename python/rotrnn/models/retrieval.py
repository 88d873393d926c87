"""A two-tower model: do two sequences belong together?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.models.model import ModelSaved, SequenceModel
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import GELU
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State


@dataclass(frozen=True)
class Retrieval(SequenceModel):
    """Logits (B, C) from pairs of sequences: ids (B, 2, T) or features (B, 2, T, F), lengths (B, 2).

    Both sequences pass through the same encoder, stack and pool, as one batch of 2B (all first ones, then all second
    ones). From the two results u and v, the logits are ``head(GELU(hidden([u, v, u - v, u * v])))``, the retrieval head
    of S4 and S5. Params of the head: "hidden" and "head", each a `Dense`.
    """

    pool: MeanPool | LastPool
    hidden: Dense
    head: Dense

    def init_head(self, rng: np.random.Generator) -> Params:
        return {"hidden": self.hidden.init(rng), "head": self.head.init(rng)}

    def forward(self, params: Params, inputs: Array, ctx: Context = EVALUATION) -> tuple[Array, ModelSaved]:
        if inputs.ndim < 3 or inputs.shape[1] != 2:
            raise ValueError(f"Retrieval.forward: inputs has shape {inputs.shape}, expected (B, 2, T) or (B, 2, T, F)")
        lengths = None if ctx.lengths is None else self.flat_lengths(np.asarray(ctx.lengths))
        both = inputs.swapaxes(0, 1).reshape(-1, *inputs.shape[2:])
        places = np.arange(len(inputs)) if ctx.places is None else np.asarray(ctx.places)
        ctx = replace(ctx, lengths=lengths, places=np.concatenate([2 * places, 2 * places + 1]))
        return super().forward(params, both, ctx)

    def flat_lengths(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if lengths.ndim != 2 or lengths.shape[1] != 2:
            raise ValueError(f"Retrieval: lengths has shape {lengths.shape}, expected (B, 2)")
        return lengths.T.ravel()

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        pooled, pool = self.pool.forward({}, x, ctx)
        u, v = np.split(pooled, 2)
        z, hidden = self.hidden.forward(params["hidden"], np.concatenate([u, v, u - v, u * v], 1))
        z, gelu = GELU().forward({}, z)
        logits, head = self.head.forward(params["head"], z)
        return logits, (pool, u, v, hidden, gelu, head)

    def head_backward(self, params: Params, saved: Any, dlogits: Array) -> tuple[Array, Params]:
        pool, u, v, hidden, gelu, head = saved
        dz, dhead = self.head.backward(params["head"], head, dlogits)
        dz, _ = GELU().backward({}, gelu, dz)
        dfeatures, dhidden = self.hidden.backward(params["hidden"], hidden, dz)
        du, dv, ddifference, dproduct = np.split(dfeatures, 4, axis=1)
        dpooled = np.concatenate([du + ddifference + dproduct * v, dv - ddifference + dproduct * u])
        return self.pool.backward({}, pool, dpooled)[0], {"hidden": dhidden, "head": dhead}

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        raise ValueError("Retrieval.stream: a model of pairs does not support streaming inference")
