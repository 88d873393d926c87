"""Linear maps of each step, for features and for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.layer import EVALUATION, Array, Context, Module, Params
from rotrnn.nn.listing import Listing
from rotrnn.ops.boundary import INTEGERS
from rotrnn.ops.dense import dense, dense_backward
from rotrnn.ops.pointwise import embedding, embedding_backward, mask_padding


class DenseSaved(NamedTuple):
    """Input (features with padding zeroed, or token ids) and lengths."""

    x: Array
    lengths: npt.NDArray[np.int64] | None


def _lecun_normal(rng: np.random.Generator, shape: tuple[int, int], fan_in: int) -> Array:
    return rng.normal(0, fan_in**-0.5, shape).astype(np.float32)


@dataclass(frozen=True)
class Dense(Module):
    """``y = x w^T + bias`` for x (B, T, D_in), or (B, D_in) without a time axis.

    Params: "w" (D_out, D_in), LeCun-normal: N(0, 1/D_in); "bias" (D_out,), zero.
    """

    input_forms: ClassVar[tuple[str, ...]] = ("B T I", "B I")
    output_forms: ClassVar[tuple[str, ...]] = ("B T O", "B O")
    letters: ClassVar[dict[str, str]] = {"I": "d_in", "O": "d_out"}

    d_in: int
    d_out: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("d_in", "d_out")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w": (self.d_out, self.d_in), "bias": (self.d_out,)}

    def init(self, rng: np.random.Generator) -> Params:
        return {"w": _lecun_normal(rng, (self.d_out, self.d_in), self.d_in), "bias": np.zeros(self.d_out, np.float32)}

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return to("Dense", x, params["w"], params["bias"])

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, DenseSaved]:
        lengths = ctx.lengths
        if lengths is None:
            return dense(x, params["w"], params["bias"]), DenseSaved(x, None)
        x = mask_padding(x, lengths)
        return mask_padding(dense(x, params["w"], params["bias"]), lengths), DenseSaved(x, lengths)

    def backward(self, params: Params, saved: DenseSaved, dy: Array) -> tuple[Array, Params]:
        dx, dw, dbias = dense_backward(mask_padding(dy, saved.lengths), saved.x, params["w"])
        return dx, {"w": dw, "bias": dbias}


@dataclass(frozen=True)
class TiedDense(Dense):
    """A `Dense` without its own matrix: the head of a `Tagger` or `LanguageModel` that uses the table of its
    `Embedding` (Press and Wolf 2017). The model passes it as "w". Params: "bias" (D_out,), zero."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"bias": (self.d_out,)}

    def init(self, rng: np.random.Generator) -> Params:
        return {"bias": np.zeros(self.d_out, np.float32)}


@dataclass(frozen=True)
class Embedding(Module):
    """``y[b, t] = scale (table[ids[b, t]] + bias)``: like `Dense` on one-hot vectors of the ids (B, T), without forming
    them.

    Params: "table" (V, D), N(0, 1/V) as for a linear encoder; "bias" (D,), zero.
    """

    input_forms: ClassVar[tuple[str, ...]] = ("B T",)
    input_kinds: ClassVar[Sequence[np.dtype[Any]]] = INTEGERS

    vocab: int
    d_model: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("vocab", "d_model")
        self.check_positive("scale")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"table": (self.vocab, self.d_model), "bias": (self.d_model,)}

    def init(self, rng: np.random.Generator) -> Params:
        return {
            "table": _lecun_normal(rng, (self.vocab, self.d_model), self.vocab),
            "bias": np.zeros(self.d_model, np.float32),
        }

    def forward(self, params: Params, ids: Array, ctx: Context = EVALUATION) -> tuple[Array, DenseSaved]:
        y = embedding(ids, params["table"], params["bias"], lengths=ctx.lengths)
        return y if self.scale == 1 else self.scale * y, DenseSaved(ids, ctx.lengths)

    def backward(self, params: Params, saved: DenseSaved, dy: Array) -> tuple[None, Params]:
        """Returns (None, dparams): token ids have no gradient."""
        dy = dy if self.scale == 1 else self.scale * dy
        dtable, dbias = embedding_backward(dy, saved.x, self.vocab, lengths=saved.lengths)
        return None, {"table": dtable, "bias": dbias}
