"""Sequence classifier: a pool over time and a linear head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rotrnn.models.model import SequenceModel
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.pool import LastPool, MeanPool, pool_backward
from rotrnn.nn.layer import TRUSTED, Array, Context, Gather, Params, State, StateForm, trusted


@dataclass(frozen=True)
class SequenceClassifier(SequenceModel):
    """Logits (B, C), one class per sequence. Params of the head: "head", a `Dense`."""

    pool: MeanPool | LastPool
    head: Dense

    @property
    def heads(self) -> dict[str, Dense]:
        return {"head": self.head}

    @property
    def head_state_form(self) -> StateForm:
        return self.pool.stream_form(self.head.d_in)

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        x, pool = self.pool.forward({}, x, ctx)
        logits, head = self.head.forward(params["head"], x, TRUSTED)
        return logits, (pool, head)

    def head_backward(
        self, params: Params, saved: Any, dlogits: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        pool, head = saved
        dpooled, dhead = trusted(self.head.backward)(params["head"], head, dlogits)
        return pool_backward(self.pool, pool, dpooled, gather), {"head": dhead}

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        """Returns logits (B, C) of the sequences read so far."""
        pooled, state = self.pool.extend(state, x, lengths)
        return self.head.forward(params["head"], pooled, TRUSTED)[0], state
