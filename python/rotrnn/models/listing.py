"""A model as lines and arrays (`rotrnn.nn.listing`), for the C library (in its file) and for ONNX graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rotrnn._support.text import an
from rotrnn.devices.device import HOST
from rotrnn.nn.blocks.dense import Dense, Embedding, TiedDense
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.layer import Array, Params, flatten, moved
from rotrnn.nn.listing import Line, Listing, Unlisted

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel

POOLS = {MeanPool: "mean", LastPool: "last"}
TIMED = "the model reads intervals dt, which the library does not have"


@dataclass(frozen=True)
class ModelListing:
    """An encoder of `tokens` or of features, the lines, the register of their output, which is pooled over time if
    `pool` is not None, and a linear head, whose logits may have a `cap`. The encoder and the head are names of a matrix
    and a bias of `arrays`."""

    tokens: bool
    encoder: tuple[str, str]
    lines: list[Line]
    y: int
    pool: str | None
    head: tuple[str, str]
    arrays: dict[str, Array]
    cap: float | None = None

    def described(self) -> dict[str, Any]:
        """Returns all but the arrays, in the form of JSON."""
        lines = [{"op": one.op, "in": list(one.inputs), **one.settings} for one in self.lines]
        ends = {"tokens": self.tokens, "encoder": list(self.encoder), "pool": self.pool, "head": list(self.head)}
        ends |= {} if self.cap is None else {"cap": self.cap}
        return {**ends, "y": self.y, "lines": lines}


def listed(model: SequenceModel, params: Params) -> ModelListing:
    """Returns a model as lines and arrays on the host.

    Raises
    ------
    Unlisted
        A part of the model has no lines, or the model reads intervals.
    """
    if model.timed:
        raise Unlisted(TIMED)
    params = moved(params, HOST)
    to = Listing(dict(flatten(params)))
    encoder, pool, own = model.encoder, getattr(model, "pool", None), params["encoder"]
    if type(encoder) not in (Dense, Embedding):
        raise Unlisted(f"the model has {an(type(encoder).__name__)} as its encoder, which has no program")
    if list(model.heads) != ["head"] or (pool is not None and type(pool) not in POOLS):
        raise Unlisted(f"the model is {an(type(model).__name__)}, which has no program")
    tokens = isinstance(encoder, Embedding)
    scale = getattr(encoder, "scale", 1.0)
    y = model.stack.emit(to, params["blocks"], 0 if scale == 1 else to("Affine", 0, scale=scale, shift=0.0))
    if model.norm is not None:
        y = model.norm.emit(to, params["norm"], y)
    tied, head = isinstance(model.head, TiedDense), params["head"]  # type: ignore[attr-defined]  # every model has one
    ends = (own["table"] if tokens else own["w"], own["bias"]), (own["table"] if tied else head["w"], head["bias"])
    first, last = ((to.array(w), to.array(bias)) for w, bias in ends)
    cap = getattr(model, "logit_cap", None)
    return ModelListing(tokens, first, to.lines, y, None if pool is None else POOLS[type(pool)], last, to.arrays, cap)
