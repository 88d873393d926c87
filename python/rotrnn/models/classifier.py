"""Sequence classifier: encoder, a stack of residual blocks, a pool over time, a linear head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rotrnn.nn.block import PartsSaved, ResidualStack, StackSaved
from rotrnn.nn.dense import Dense, Embedding
from rotrnn.nn.layer import EVALUATION, Array, Context, Layer, Params
from rotrnn.nn.linear import LinearRecurrence


class ClassifierSaved(NamedTuple):
    """What each part saved."""

    encoder: Any
    blocks: StackSaved
    pool: Any
    head: Any


@dataclass(frozen=True)
class SequenceClassifier:
    """Logits (B, C) from token ids (B, T) or features (B, T, F): the backbone of LRU (fig. 1) and RotRNN (fig. 1).

    Params: "encoder", "blocks" -> "0", "1", ..., and "head".
    """

    encoder: Dense | Embedding
    stack: ResidualStack
    pool: Layer
    head: Dense

    def init(self, rng: np.random.Generator) -> Params:
        """Random parameters, float32; `rotrnn.nn.astype` makes float64 ones."""
        return {
            "encoder": self.encoder.init(rng),
            "blocks": self.stack.init(rng),
            "head": self.head.init(rng),
        }

    def forward(self, params: Params, inputs: Array, ctx: Context = EVALUATION) -> tuple[Array, ClassifierSaved]:
        """(logits (B, C), saved)."""
        x, encoder = self.encoder.forward(params["encoder"], inputs, ctx)
        x, blocks = self.stack.forward(params["blocks"], x, ctx)
        x, pool = self.pool.forward({}, x, ctx)
        logits, head = self.head.forward(params["head"], x)
        return logits, ClassifierSaved(encoder, blocks, pool, head)

    def backward(self, params: Params, saved: ClassifierSaved, dlogits: Array) -> Params:
        """Gradients of all parameters, nested as `params`."""
        dpooled, dhead = self.head.backward(params["head"], saved.head, dlogits)
        # passed on without a name here, so that each gradient is gone as soon as the next one is there
        dx, dblocks, _ = self.stack.backward(
            params["blocks"], saved.blocks, self.pool.backward({}, saved.pool, dpooled)[0]
        )
        _, dencoder = self.encoder.backward(params["encoder"], saved.encoder, dx)
        return {"encoder": dencoder, "blocks": dblocks, "head": dhead}

    def is_recurrent(self, name: str) -> bool:
        """Whether a flattened parameter name belongs to a recurrence: learning rate times a factor, no decay."""
        path = name.split(".")
        if path[0] != "blocks" or path[2] != "layer":
            return False
        return path[3] in self.stack.blocks[int(path[1])].layer.recurrent

    def state_norms(self, params: Params, inputs: Array, ctx: Context = EVALUATION) -> Array:
        """(L, T): |h_t| of each block's recurrence (forward direction), mean over the sequences that reach t.

        L counts the blocks whose layer has one vector h_t (`Recurrent.state_norms`).
        """
        _, saved = self.forward(params, inputs, replace(ctx, fused=False))  # fused, no states are kept
        found = [
            block.layer.state_norms(one.layer)
            for block, one in zip(self.stack.blocks, saved.blocks.blocks, strict=True)
            if isinstance(one, PartsSaved)
        ]
        B, T = inputs.shape[:2]
        norms = np.stack([np.zeros((B, T)), *(one for one in found if one is not None)])[1:]
        lengths = np.full(B, T) if ctx.lengths is None else np.asarray(ctx.lengths)
        reached = (lengths[:, None] > np.arange(T)).sum(0)
        mean: Array = norms.sum(1) / np.maximum(reached, 1)
        return mean

    def eigenvalues(self, params: Params) -> list[Array]:
        """The transition of each block's recurrence, (N,) complex."""
        return [
            block.layer.eigenvalues(params["blocks"][str(i)]["layer"])
            for i, block in enumerate(self.stack.blocks)
            if isinstance(block.layer, LinearRecurrence)
        ]
