"""Blocks of a stack: the residual block x + gate(layer(norm(x))) of LRU and RotRNN, and related blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import an, plural
from rotrnn.nn.blocks import fused
from rotrnn.nn.blocks.fused import FusedSaved
from rotrnn.nn.blocks.norm import BatchNorm, Moments, norm_backward
from rotrnn.nn.layer import (
    EVALUATION,
    TRUSTED,
    Array,
    Context,
    Gather,
    Layer,
    Module,
    Params,
    Recurrent,
    State,
    StateForm,
    split_by,
    trusted,
)
from rotrnn.nn.listing import Listing
from rotrnn.nn.packing import Segments, each
from rotrnn.ops.block import Later, settle
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import mask_padding


class PartsSaved(NamedTuple):
    """Saved by an unfused block: the saved arrays of each part, and lengths."""

    norm: Any
    layer: Any
    gate: Any
    lengths: npt.NDArray[np.int64] | None

    @property
    def state(self) -> State:
        """The state after x."""
        return self.layer.state


@runtime_checkable
class Block(Protocol):
    """A block of a stack: a recurrent layer and the parts around it."""

    @property
    def norm(self) -> Layer: ...

    @property
    def layer(self) -> Recurrent: ...

    def init(self, rng: np.random.Generator) -> Params: ...

    def emit(self, to: Listing, params: Params, x: int) -> int: ...

    def forward_in_stack(
        self, params: Params, x: Array, ctx: Context, state: State, moments: Moments | None = None,
        gather: bool = False, keep: tuple[str, ...] = (),
    ) -> tuple[Array, Any, Moments | None]: ...  # fmt: skip

    def backward_in_stack(
        self, params: Params, saved: Any, dy: Array, dstate: State, later: Later | None = None,
        gather: Gather | None = None,
    ) -> tuple[Array, Params, State, Later | None]: ...  # fmt: skip

    def prepare(self, params: Params) -> Any: ...

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]: ...

    def report(self, saved: Any) -> dict[str, float]: ...

    def state_norms(self, saved: Any) -> Array | None: ...

    def token_norms(self, saved: Any) -> Array | None: ...


def check_parts(owner: Any, d_model: int | None, parts: dict[str, Layer]) -> None:
    """Checks that parts act on each step separately, and that parts with a width have the recurrent layer's width."""
    for name, part in parts.items():
        form = "B T D"
        if not all(form in getattr(part, forms, (form,)) for forms in ("input_forms", "output_forms")):
            got = type(part).__name__
            raise ValueError(
                f"{type(owner).__name__}: {name} is {an(got)}, expected a layer from (B, T, D) to (B, T, D)"
            )
        width = getattr(part, "d_model", d_model)
        if d_model not in (None, width):
            kind = type(owner).__name__
            raise ValueError(f"{kind}: {name} has d_model={width}, expected {d_model} as of its layer")


@dataclass(frozen=True)
class ResidualBlock(Module):
    """``y = x + gate(layer(norm(x)))`` (LRU, fig. 1; RotRNN, fig. 1), or ``norm(x + gate(layer(x)))`` if not `prenorm`.

    The gate is any layer that acts on each step separately. `Gate` is GELU, dropout, GLU, dropout; with `Dropout` the
    gating is left to the recurrent layer, as in Mamba's block. Params: the params of the parts as "norm", "layer" and,
    if the gate has params, "gate".
    """

    norm: Layer
    layer: Recurrent
    gate: Layer
    prenorm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self, self.d_model, {"norm": self.norm, "gate": self.gate})

    @property
    def d_model(self) -> int:
        return self.layer.d_model

    @property
    def modules(self) -> dict[str, Any]:
        return {"norm": self.norm, "layer": self.layer, "gate": self.gate}

    @property
    def state_form(self) -> StateForm | None:
        return self.layer.state_form

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        self.layer.check_state(args, name, state)

    def check_streams(self, args: Boundary) -> None:
        self.layer.check_streams(args)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        to.layer = type(self.layer).__name__
        z = self.norm.emit(to, params["norm"], x) if self.prenorm else x
        z = self.gate.emit(to, params.get("gate", {}), self.layer.emit(to, params["layer"], z))
        y: int = to("Sum", x, z)
        return y if self.prenorm else self.norm.emit(to, params["norm"], y)

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, PartsSaved | FusedSaved]:
        (keep,) = fused.kept_by([self.fusible(ctx)], x, ctx)
        y, saved, _ = self.forward_in_stack(params, x, ctx, state, keep=keep)
        return y, saved

    def fusible(self, ctx: Context) -> fused.Parts | None:
        """Returns the parts of the block if it runs fused, else None."""
        return fused.parts_of(self.norm, self.layer, self.gate, ctx) if self.prenorm else None

    def backward(
        self,
        params: Params,
        saved: PartsSaved | FusedSaved,
        dy: Array,
        dstate: State = None,
        gather: Gather | None = None,
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, dstate0). `gather` must be the same as in forward's context."""
        dx, dparams, dstate0, later = self.backward_in_stack(params, saved, dy, dstate, None, gather)
        return settle(dx, later, lengths=saved.lengths), dparams, dstate0

    def forward_in_stack(
        self,
        params: Params,
        x: Array,
        ctx: Context,
        state: State,
        moments: Moments | None = None,
        gather: bool = False,
        keep: tuple[str, ...] = (),
    ) -> tuple[Array, PartsSaved | FusedSaved, Moments | None]:
        """Returns (y, saved, moments). The moments of y are computed only with `gather`, and only if they come at no
        cost; `moments`, if given, are the moments of x. `keep` names the arrays that a fused block keeps so that
        backward need not recompute them (`rotrnn.ops.block.KEEPABLE`).
        """
        parts = self.fusible(ctx)
        if parts is not None:
            return fused.forward(parts, params, x, ctx, state, moments, gather, keep)
        norm = None
        z = x
        if self.prenorm:
            z, norm = self.norm.forward(params["norm"], z, ctx)
        z, layer = self.layer.forward(params["layer"], z, ctx, state)
        z, gate = self.gate.forward(params.get("gate", {}), z, ctx)
        z = z + mask_padding(x, ctx.lengths)
        if not self.prenorm:
            z, norm = self.norm.forward(params["norm"], z, ctx)
        return z, PartsSaved(norm, layer, gate, ctx.lengths), None

    def backward_in_stack(
        self,
        params: Params,
        saved: PartsSaved | FusedSaved,
        dy: Array,
        dstate: State,
        later: Later | None = None,
        gather: Gather | None = None,
    ) -> tuple[Array, Params, State, Later | None]:
        """Returns (dx, dparams, dstate0, later), where the last is a term that has yet to be added to dx. The argument
        `later` has yet to be added to dy; `gather` is the same as in forward's context."""
        if isinstance(saved, FusedSaved):
            return fused.backward(params, saved, dy, dstate, later, gather)
        dy = settle(dy, later, lengths=saved.lengths)
        if not self.prenorm:
            dy, dnorm = norm_backward(self.norm, params["norm"], saved.norm, dy, gather)
        dz, dgate = trusted(self.gate.backward)(params.get("gate", {}), saved.gate, dy)
        # only layers of split sequences take `gather`, and others refuse these
        more = () if split_by(gather) is None else (gather,)
        dz, dlayer, dstate0 = trusted(self.layer.backward)(params["layer"], saved.layer, dz, dstate, *more)
        if self.prenorm:
            dz, dnorm = norm_backward(self.norm, params["norm"], saved.norm, dz, gather)
        dx = dz + mask_padding(dy, saved.lengths)
        return dx, {"norm": dnorm, "layer": dlayer, "gate": dgate}, dstate0, None

    def prepare(self, params: Params) -> Any:
        return trusted(self.layer.prepare)(params["layer"])

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        z_t = self._norm_step(params, x_t) if self.prenorm else x_t
        z_t, state = trusted(self.layer.step)(params["layer"], state, z_t, prepared)
        z, _ = self.gate.forward(params.get("gate", {}), z_t[:, None], TRUSTED)
        y_t = x_t + z[:, 0]
        return (y_t if self.prenorm else self._norm_step(params, y_t)), state

    def _norm_step(self, params: Params, x_t: Array) -> Array:
        return self.norm.forward(params["norm"], x_t[:, None], TRUSTED)[0][:, 0]

    def report(self, saved: PartsSaved | FusedSaved) -> dict[str, float]:
        """Returns the report of the layer; empty for a fused block."""
        return self.layer.report(saved.layer) if isinstance(saved, PartsSaved) else {}

    def state_norms(self, saved: PartsSaved | FusedSaved) -> Array | None:
        """Returns |h_t| (B, T) of an unfused forward."""
        return self.layer.state_norms(saved.layer) if isinstance(saved, PartsSaved) else None

    def token_norms(self, saved: PartsSaved | FusedSaved) -> Array | None:
        """Returns the norms of `Recurrent.token_norms`; None for a fused block, whose layer does not iterate."""
        return self.layer.token_norms(saved.layer) if isinstance(saved, PartsSaved) else None


class FeedForwardSaved(NamedTuple):
    """The saved arrays of the recurrent half and of the parts of the feed-forward half."""

    mixing: PartsSaved | FusedSaved
    norm: Any
    feed_forward: Any

    @property
    def state(self) -> State:
        return self.mixing.state

    @property
    def lengths(self) -> npt.NDArray[np.int64] | None:
        return self.mixing.lengths


@dataclass(frozen=True)
class FeedForwardBlock(Module):
    """``z = x + dropout(layer(norm(x)))``, then ``y = z + feed_forward(norm2(z))``: the block of a Transformer.

    Its first half is a `ResidualBlock`. Params: as in `ResidualBlock`, and "norm2" and "feed_forward".
    """

    mixing: ResidualBlock
    norm2: Layer
    feed_forward: Layer

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self, self.d_model, {"norm2": self.norm2, "feed_forward": self.feed_forward})

    @property
    def d_model(self) -> int:
        return self.layer.d_model

    @property
    def modules(self) -> dict[str, Any]:
        return {**self.mixing.modules, "norm2": self.norm2, "feed_forward": self.feed_forward}

    @property
    def state_form(self) -> StateForm | None:
        return self.layer.state_form

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        self.layer.check_state(args, name, state)

    def check_streams(self, args: Boundary) -> None:
        self.layer.check_streams(args)

    @property
    def norm(self) -> Layer:
        return self.mixing.norm

    @property
    def layer(self) -> Recurrent:
        return self.mixing.layer

    def init(self, rng: np.random.Generator) -> Params:
        rest = {"norm2": self.norm2.init(rng), "feed_forward": self.feed_forward.init(rng)}
        return self.mixing.init(rng) | rest

    def emit(self, to: Listing, params: Params, x: int) -> int:
        x = self.mixing.emit(to, params, x)
        z = self.norm2.emit(to, params["norm2"], x)
        return to("Sum", x, self.feed_forward.emit(to, params["feed_forward"], z))

    def forward_in_stack(
        self,
        params: Params,
        x: Array,
        ctx: Context,
        state: State,
        moments: Moments | None = None,
        gather: bool = False,
        keep: tuple[str, ...] = (),
    ) -> tuple[Array, FeedForwardSaved, Moments | None]:
        """Like `ResidualBlock.forward_in_stack`, but without moments."""
        x, mixing, _ = self.mixing.forward_in_stack(params, x, ctx, state, moments, False, keep)
        z, norm = self.norm2.forward(params["norm2"], x, ctx)
        z, feed_forward = self.feed_forward.forward(params["feed_forward"], z, ctx)
        return x + z, FeedForwardSaved(mixing, norm, feed_forward), None

    def backward_in_stack(
        self,
        params: Params,
        saved: FeedForwardSaved,
        dy: Array,
        dstate: State,
        later: Later | None = None,
        gather: Gather | None = None,
    ) -> tuple[Array, Params, State, Later | None]:
        """Like `ResidualBlock.backward_in_stack`."""
        dy = settle(dy, later, lengths=saved.lengths)
        dz, dfeed = trusted(self.feed_forward.backward)(params["feed_forward"], saved.feed_forward, dy)
        dz, dnorm2 = norm_backward(self.norm2, params["norm2"], saved.norm, dz, gather)
        dx, dparams, dstate0, later = self.mixing.backward_in_stack(params, saved.mixing, dy + dz, dstate, None, gather)
        return dx, {**dparams, "norm2": dnorm2, "feed_forward": dfeed}, dstate0, later

    def prepare(self, params: Params) -> Any:
        return trusted(self.mixing.prepare)(params)

    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        x_t, state = trusted(self.mixing.step)(params, state, x_t, prepared)
        z, _ = self.norm2.forward(params["norm2"], x_t[:, None], TRUSTED)
        z, _ = self.feed_forward.forward(params["feed_forward"], z, TRUSTED)
        return x_t + z[:, 0], state

    def report(self, saved: FeedForwardSaved) -> dict[str, float]:
        return self.mixing.report(saved.mixing)

    def state_norms(self, saved: FeedForwardSaved) -> Array | None:
        return self.mixing.state_norms(saved.mixing)

    def token_norms(self, saved: FeedForwardSaved) -> Array | None:
        return self.mixing.token_norms(saved.mixing)


class StackSaved(NamedTuple):
    """The saved arrays of each block, and the segments of a packed row that ran as a batch."""

    blocks: tuple[Any, ...]
    segments: Segments | None = None

    @property
    def state(self) -> tuple[State, ...]:
        """The blocks' states after x."""
        state = tuple(one.state for one in self.blocks)
        return state if self.segments is None else self.segments.after(state)


@dataclass(frozen=True)
class ResidualStack(Module):
    """A sequence of blocks. Its state is a tuple with one state per block. Params: "0", "1", ..."""

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, block in enumerate(self.blocks[1:], 1):
            if block.layer.d_model != self.d_model:
                got, first = block.layer.d_model, self.d_model
                raise ValueError(f"ResidualStack: blocks[{i}] has d_model={got}, expected {first} as the first one")

    @property
    def d_model(self) -> int | None:
        """Width of the blocks; None if there are no blocks."""
        return self.blocks[0].layer.d_model if self.blocks else None

    @property
    def modules(self) -> dict[str, Block]:
        return {str(i): block for i, block in enumerate(self.blocks)}

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        if state is None:
            return
        if not isinstance(state, tuple):
            raise TypeError(f"{args.op}: {name} is {an(type(state).__name__)}, expected a tuple, one state per block")
        if len(state) != len(self.blocks):
            raise ValueError(
                f"{args.op}: {name} has {plural(len(state), 'state')}, expected one for each of "
                f"{plural(len(self.blocks), 'block')}"
            )
        for i, (block, one) in enumerate(zip(self.blocks, state, strict=True)):
            block.layer.check_state(args, f"{name}.{i}", one)

    def check_streams(self, args: Boundary) -> None:
        for block in self.blocks:
            block.layer.check_streams(args)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        for place, block in enumerate(self.blocks):
            x = block.emit(to, params[str(place)], x)
        return x

    def _fusible(self, ctx: Context) -> list[fused.Parts | None]:
        """Returns the parts of each block that runs fused, else None."""
        return [one.fusible(ctx) if isinstance(one, ResidualBlock) else None for one in self.blocks]

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, StackSaved]:
        if ctx.segments is not None and len(ctx.segments.groups) == 1:
            (group,) = ctx.segments.groups
            within = ctx.unpacked(group)
            if all(self._fusible(within)):  # whose kernels leave padding out
                before, segments = each(group.of, ctx.segments.before(state)), ctx.segments
                y, inner = trusted(self.forward)(params, segments.batch(group, x), within, before)
                return segments.packed([y]), inner._replace(segments=segments)
        saved: list[Any] = []
        moments, fusible = None, self._fusible(ctx)
        for i, (block, keep) in enumerate(zip(self.blocks, fused.kept_by(fusible, x, ctx), strict=True)):
            before = None if state is None else state[i]
            gather = ctx.train and i + 1 < len(self.blocks) and isinstance(self.blocks[i + 1].norm, BatchNorm)
            x, one, moments = block.forward_in_stack(params[str(i)], x, ctx, before, moments, gather, keep)
            saved.append(one)
        return x, StackSaved(tuple(saved))

    def backward(
        self, params: Params, saved: StackSaved, dy: Array, dstate: State = None, gather: Gather | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, dstate0). `gather` must be the same as in forward's context."""
        if (segments := saved.segments) is not None:
            (group,), inner = segments.groups, saved._replace(segments=None)
            back = segments.batch(group, dy), segments.after_backward(dstate)
            dy, found, before = trusted(self.backward)(params, inner, *back, gather)
            return segments.packed([dy]), found, segments.before_backward(before)
        dparams: Params = {}
        dstate0: list[State] = [None] * len(self.blocks)
        later = None
        for i in reversed(range(len(self.blocks))):
            given = None if dstate is None else dstate[i]
            dy, dparams[str(i)], dstate0[i], later = self.blocks[i].backward_in_stack(
                params[str(i)], saved.blocks[i], dy, given, later, gather
            )
        lengths = saved.blocks[0].lengths if saved.blocks else None
        return settle(dy, later, lengths=lengths), dict(reversed(dparams.items())), tuple(dstate0)

    def prepare(self, params: Params) -> tuple[Any, ...]:
        return tuple(trusted(block.prepare)(params[str(i)]) for i, block in enumerate(self.blocks))

    def step(
        self, params: Params, state: State, x_t: Array, prepared: tuple[Any, ...] | None = None
    ) -> tuple[Array, State]:
        after = []
        for i, block in enumerate(self.blocks):
            given = None if state is None else state[i]
            x_t, one = trusted(block.step)(params[str(i)], given, x_t, None if prepared is None else prepared[i])
            after.append(one)
        return x_t, tuple(after)
