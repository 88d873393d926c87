"""What all models share: an encoder, a stack of blocks, perhaps a norm after it, and a head that a subclass gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.models.stream import Stream
from rotrnn.nn.blocks.block import Block, ResidualStack, StackSaved
from rotrnn.nn.blocks.dense import Dense, Embedding
from rotrnn.nn.blocks.norm import norm_backward
from rotrnn.nn.layer import EVALUATION, Array, Context, Gather, Layer, Module, Params, State, trusted
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import cross_entropy

IGNORED = -1
"""A label that counts for nothing."""


class Loss(NamedTuple):
    """Mean cross-entropy over the labels that count, its gradient, and which of the answers count and are right.

    These are (B, 1), or of a tagger's labels' shape: (B, T), of bits (B, T, K).
    """

    mean: float
    dlogits: Array
    counted: Array
    right: Array

    @property
    def total(self) -> int:
        """How many labels `mean` is of."""
        return int(np.count_nonzero(self.counted))


class ModelSaved(NamedTuple):
    """What each part saved."""

    encoder: Any
    blocks: StackSaved
    norm: Any
    head: Any


@dataclass(frozen=True)
class SequenceModel(Module, ABC):
    """From token ids (B, T) or features (B, T, F) to logits: the backbone of LRU (fig. 1) and RotRNN (fig. 1).

    Params: "encoder", "blocks" -> "0", "1", ..., "norm" if there is one after the blocks, and the head's own.
    """

    output_forms: ClassVar[tuple[str, ...]] = ("B C", "B T C")

    encoder: Dense | Embedding
    stack: ResidualStack
    norm: Layer | None = field(default=None, kw_only=True)

    # ---- what a head is ----

    @property
    @abstractmethod
    def heads(self) -> dict[str, Dense]:
        """The maps of the head, by the names of their parameters beside "encoder" and "blocks"; the logits' last."""

    @abstractmethod
    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        """(logits, saved) from the last block's output (B, T, D)."""

    @abstractmethod
    def head_backward(self, params: Params, saved: Any, dlogits: Array) -> tuple[Array, Params]:
        """(dx, gradients of the head's parameters)."""

    @abstractmethod
    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        """(logits, the head's state) of a stream that goes on with x (B, T, D)."""

    def answers(self, logits: Array) -> Array:
        """The most probable labels; `IGNORED`, which none is, where a logit is NaN."""
        return np.where(np.isnan(logits).any(-1), IGNORED, logits.argmax(-1))

    def loss(self, logits: Array, labels: Array, lengths: Array | None = None) -> Loss:
        """Of logits (B, C) and labels (B,)."""
        mean, dlogits = cross_entropy(logits, labels)
        right = (self.answers(logits) == labels)[:, None]
        return Loss(mean, dlogits, np.ones_like(right), right)

    def count(self, labels: Array, lengths: Array | None = None) -> int:
        """How many labels `loss` is the mean of."""
        return len(labels)

    # ---- what follows ----

    @property
    def modules(self) -> dict[str, Any]:
        norm = {} if self.norm is None else {"norm": self.norm}
        return {"encoder": self.encoder, "blocks": self.stack, **norm, **self.heads}

    def bind_sizes(self, args: Boundary) -> None:
        if isinstance(self.encoder, Dense):
            args.bind("I", self.encoder.d_in, "the encoder")
        *_, last = self.heads.values()
        args.bind("C", last.d_out, "the head")

    def check_input(self, args: Boundary, name: str, x: Any) -> Any:
        return args.array(name, x, self.encoder.input_forms[0], kinds=self.encoder.input_kinds)

    def init(self, rng: np.random.Generator) -> Params:
        """Random parameters, float32; `rotrnn.nn.astype` makes float64 ones."""
        return {name: one.init(rng) for name, one in self.modules.items()}

    def encode(
        self, params: Params, inputs: Array, ctx: Context, state: State = None
    ) -> tuple[Array, tuple[Any, StackSaved, Any]]:
        """(x (B, T, D) that the head reads, what encoder, blocks and norm saved)."""
        x, encoder = self.encoder.forward(params["encoder"], inputs, ctx)
        x, blocks = self.stack.forward(params["blocks"], x, ctx, state)
        if self.norm is None:
            return x, (encoder, blocks, None)
        x, norm = self.norm.forward(params["norm"], x, ctx)
        return x, (encoder, blocks, norm)

    def forward(self, params: Params, inputs: Array, ctx: Context = EVALUATION) -> tuple[Array, ModelSaved]:
        """(logits, saved)."""
        x, saved = self.encode(params, inputs, ctx)
        logits, head = self.head_forward(params, x, ctx)
        return logits, ModelSaved(*saved, head)

    def backward(self, params: Params, saved: ModelSaved, dlogits: Array, gather: Gather | None = None) -> Params:
        """Gradients of all parameters, nested as `params`; `gather` is that of forward's context, needed where it had
        one."""
        grads: Params = {}

        def below_head() -> Array:
            dx, dhead = self.head_backward(params, saved.head, dlogits)
            grads.update(dhead)
            if self.norm is not None:
                dx, grads["norm"] = norm_backward(self.norm, params["norm"], saved.norm, dx, gather)
            return dx

        # passed on without a name here, so that each gradient is gone as soon as the next one is there
        dx, dblocks, _ = trusted(self.stack.backward)(params["blocks"], saved.blocks, below_head(), None, gather)
        _, dencoder = trusted(self.encoder.backward)(params["encoder"], saved.encoder, dx)
        return {"encoder": dencoder, "blocks": dblocks, **grads}

    def stream(self, params: Params, batch: int = 1) -> Stream:
        """Inference that goes on: an object that takes a token or a chunk at a time and keeps its state."""
        return Stream(self, params, batch)

    def is_recurrent(self, name: str) -> bool:
        """Whether a flattened parameter name belongs to a recurrence: learning rate times a factor, no decay."""
        path = name.split(".")
        if path[0] != "blocks" or path[2] != "layer":
            return False
        return path[3] in self.stack.blocks[int(path[1])].layer.recurrent

    def report(self, saved: ModelSaved) -> dict[str, float]:
        """What the layers report of a forward (`Recurrent.report`), as "block.name"."""
        return {
            f"{i}.{name}": value
            for i, (block, one) in enumerate(self._blocks(saved))
            for name, value in block.report(one).items()
        }

    def state_norms(self, params: Params, inputs: Array, ctx: Context = EVALUATION) -> Array:
        """(L, T): |h_t| of each block's recurrence (forward direction), mean over the sequences that reach t.

        L counts the blocks whose layer has one vector h_t (`Recurrent.state_norms`).
        """
        _, saved = self.forward(params, inputs, replace(ctx, fused=False))  # fused, no states are kept
        found = [block.state_norms(one) for block, one in self._blocks(saved)]
        norms = [one for one in found if one is not None]
        if not norms:
            return np.zeros((0, inputs.shape[-1 - isinstance(self.encoder, Dense)]))
        B, T = norms[0].shape
        lengths = np.full(B, T) if ctx.lengths is None else np.asarray(self.flat_lengths(ctx.lengths))
        reached = (lengths[:, None] > np.arange(T)).sum(0)
        mean: Array = np.stack(norms).sum(1) / np.maximum(reached, 1)
        return mean

    def flat_lengths(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Lengths of the sequences that the stack sees."""
        return lengths

    def eigenvalues(self, params: Params) -> list[Array]:
        """The transition of each block's recurrence, (N,) complex."""
        return [
            block.layer.eigenvalues(params["blocks"][str(i)]["layer"])
            for i, block in enumerate(self.stack.blocks)
            if isinstance(block.layer, LinearRecurrence)
        ]

    def _blocks(self, saved: ModelSaved) -> Iterator[tuple[Block, Any]]:
        return zip(self.stack.blocks, saved.blocks.blocks, strict=True)
