"""Sequence classifier: a pool over time and a linear head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.models.files import loadable
from rotrnn.models.model import IGNORED, Loss, SequenceModel
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.pool import LastPool, MeanPool, pool_backward
from rotrnn.nn.layer import TRUSTED, Array, Context, Gather, Params, State, StateForm, trusted
from rotrnn.ops.boundary import Boundary, rename
from rotrnn.ops.pointwise import binary_cross_entropy, loss_weights


@loadable
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


@loadable
@dataclass(frozen=True)
class MultiLabelClassifier(SequenceClassifier):
    """A `SequenceClassifier` with K independent bits per sequence: logits (B, K), labels (B, K) with values 0, 1 and
    `IGNORED`.

    A logit is the log-odds of a one. The loss is `binary_cross_entropy`, the mean over the bits that count;
    `class_weights` (K,) weigh the ones of each bit.
    """

    of_classes: ClassVar[bool] = False

    def loss(self, logits: Array, labels: Array, lengths: Array | None = None, weights: Array | None = None) -> Loss:
        """Returns the `Loss` of logits (B, K) for labels (B, K), by `weights` (B,) of sequences if given."""
        args = Boundary(f"{type(self).__name__}.loss")
        labels = args.integers("labels", labels, "B K")
        logits = args.array("logits", logits, "B K")
        of_sequences = loss_weights(args, "weights", weights, labels.shape[:1], logits)
        try:
            mean, dlogits = binary_cross_entropy(
                logits[:, None], labels[:, None], ignored=IGNORED, weights=self.class_weights,
                sample_weights=None if of_sequences is None else of_sequences[:, None],
            )  # fmt: skip
        except ValueError as error:
            rename(error, "binary_cross_entropy:", f"{args.op}:")
            raise
        counted = labels != IGNORED
        return Loss(mean, dlogits[:, 0], counted, counted & (self.answers(logits) == labels))

    def count(self, labels: Array, lengths: Array | None = None) -> int:
        labels = Boundary(f"{type(self).__name__}.count").integers("labels", labels, "B K")
        return int(np.count_nonzero(labels != IGNORED))
