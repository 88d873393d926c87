"""A two-tower model: do two sequences belong together?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn.devices.recording import RecordedLengths
from rotrnn.models.files import loadable
from rotrnn.models.model import ModelSaved, SequenceModel
from rotrnn.models.stream import Stream
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import GELU
from rotrnn.nn.blocks.pool import LastPool, MeanPool, pool_backward
from rotrnn.nn.layer import TRUSTED, Array, Context, Gather, Params, State, trusted
from rotrnn.nn.module import Sizes
from rotrnn.nn.packing import check_pairs
from rotrnn.ops.boundary import Boundary, on_host


@loadable
@dataclass(frozen=True)
class Retrieval(SequenceModel):
    """Logits (B, C) from pairs of sequences: ids (B, 2, T) or features (B, 2, T, F), lengths (B, 2).

    Or from one packed row (1, T) or (1, T, F) of successive pairs, with `cu_seqlens` (2B + 1,).

    Both sequences pass through the same encoder, stack and pool, as one batch of 2B (all first sequences, then all
    second). From the two results u and v, the logits are ``head(GELU(hidden([u, v, u - v, u * v])))``, the retrieval
    head of S4 and S5. Params of the head: "hidden" and "head", each a `Dense`.
    """

    time_axis: ClassVar[int] = 2

    pool: MeanPool | LastPool
    hidden: Dense
    head: Dense

    @property
    def heads(self) -> dict[str, Dense]:
        return {"hidden": self.hidden, "head": self.head}

    def check_input(self, args: Boundary, name: str, x: Any) -> Any:
        """Pairs as one batch, (2B, T) or (2B, T, F); a packed row as it is."""
        x, features = Boundary(args.op).any_array(name, x), isinstance(self.encoder, Dense)
        if x.ndim == 2 + features and len(x) == 1:
            return super().check_input(args, name, x)
        if x.ndim != 3 + features or x.shape[1] != 2:
            raise self._no_pairs(args, name, x.shape)
        return super().check_input(args, name, x.swapaxes(0, 1).reshape(2 * x.shape[0], *x.shape[2:]))

    def _no_pairs(self, args: Boundary, name: str, shape: tuple[int, ...]) -> ValueError:
        more = ", F" if isinstance(self.encoder, Dense) else ""
        expected = f"(B, 2, T{more}), or (1, T{more}) with cu_seqlens"
        return ValueError(f"{args.op}: {name} has shape {shape}, expected {expected}")

    def check_context(self, args: Boundary, ctx: Context) -> Context:
        """Lengths and places of that batch."""
        if ctx.reset is not None:
            raise ValueError(f"{args.op}: got reset, expected lengths (B, 2), or cu_seqlens of a packed row")
        if ctx.cu_seqlens is not None:
            checked = super().check_context(args, ctx)
            check_pairs(args)
            return checked
        if args.size["B"] == 1:
            shape = tuple(args.size[letter] for letter in self.encoder.input_forms[0].split())
            raise self._no_pairs(args, "inputs", shape)
        B = args.size["B"] // 2
        places = np.arange(B) if ctx.places is None else on_host(args.op, "places", ctx.places)
        if places.shape != (B,):
            raise ValueError(f"{args.op}: places has shape {places.shape}, expected (B={B},)")
        lengths: Any = ctx.lengths
        if isinstance(lengths, RecordedLengths):
            lengths = RecordedLengths(lengths.there.T.ravel(), lengths.fits[1])
        elif lengths is not None:
            lengths = self.flat_lengths(on_host(args.op, "lengths", lengths))
        ctx = replace(ctx, lengths=lengths, places=np.concatenate([2 * places, 2 * places + 1]))
        checked = super().check_context(args, ctx)
        args.bind("B", B, "the pairs")  # there is an output for each
        return checked

    def check_dt(self, args: Boundary) -> None:
        raise NotImplementedError(f"{args.op}: got dt, which a model of pairs does not support, expected None")

    def output_sizes(self, args: Boundary) -> Sizes:
        sizes = dict(super().output_sizes(args))
        return tuple((sizes | {"B": sizes["segments"] // 2} if "segments" in sizes else sizes).items())

    def flat_lengths(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if lengths.ndim != 2 or lengths.shape[1] != 2:
            raise ValueError(f"Retrieval.forward: lengths has shape {lengths.shape}, expected (B, 2)")
        return lengths.T.ravel()

    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        pooled, pool = self.pool.forward({}, x, ctx)
        u, v = np.split(pooled, 2) if ctx.segments is None else (pooled[::2], pooled[1::2])
        z, hidden = self.hidden.forward(params["hidden"], np.concatenate([u, v, u - v, u * v], 1), TRUSTED)
        z, gelu = GELU().forward({}, z, TRUSTED)
        logits, head = self.head.forward(params["head"], z, TRUSTED)
        return logits, (pool, u, v, hidden, gelu, head)

    def head_backward(
        self, params: Params, saved: Any, dlogits: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        pool, u, v, hidden, gelu, head = saved
        dz, dhead = trusted(self.head.backward)(params["head"], head, dlogits)
        dz, _ = trusted(GELU().backward)({}, gelu, dz)
        dfeatures, dhidden = trusted(self.hidden.backward)(params["hidden"], hidden, dz)
        du, dv, ddifference, dproduct = np.split(dfeatures, 4, axis=1)
        both = [du + ddifference + dproduct * v, dv - ddifference + dproduct * u]
        dpooled = np.concatenate(both) if pool.segments is None else np.stack(both, 1).reshape(-1, du.shape[1])
        return pool_backward(self.pool, pool, dpooled, gather), {"hidden": dhidden, "head": dhead}

    def backward_all(
        self, params: Params, saved: ModelSaved, dlogits: Array, dstate: State = None, gather: Gather | None = None
    ) -> tuple[Array | None, Params, State]:
        """Like `SequenceModel.backward_all`; dinputs are for pairs, (B, 2, T, F), or for a packed row."""
        dinputs, dparams, dstate0 = trusted(super().backward_all)(params, saved, dlogits, dstate, gather)
        if dinputs is not None and len(dinputs) != 1:
            dinputs = dinputs.reshape(2, -1, *dinputs.shape[1:]).swapaxes(0, 1)
        return dinputs, dparams, dstate0

    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        raise ValueError("Retrieval.read: a model of pairs does not support streaming inference")

    def stream(self, params: Params, batch: int = 1, engine: str = "auto", weights: str = "exact") -> Stream:
        raise ValueError("Retrieval.stream: a model of pairs does not support streaming inference")
