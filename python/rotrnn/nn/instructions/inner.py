"""Another layer as an instruction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rotrnn._support.text import an
from rotrnn.nn.layer import BUFFERS, Array, Context, Recurrent, StateArray, form_leaves, state_leaves, trusted
from rotrnn.nn.listing import Listing, Unlisted
from rotrnn.nn.program import Call, Instruction, Line, Shape
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.declared import pairs, planes


@dataclass(frozen=True)
class Inner(Instruction):
    """Another layer, applied to x, with its parameters in the order of its `shapes`. With `hidden`, the second output
    is the layer's hidden states as real lanes (`Recurrent.hidden_states`), or y for a layer without a vector of them.
    """

    layer: Recurrent
    hidden: bool = False
    along = True

    def together(self, ctx: Context) -> bool:
        return self.layer.together(ctx)

    def shapes(self, x: Any, *params: Any) -> tuple[Shape, ...]:
        expected = [(self.layer.d_model,), *self.layer.shapes.values()]
        if [x, *params] != expected:
            raise ValueError(f"expected {expected}, x and the parameters of {type(self.layer).__name__}")
        return (x, (self.layer.hidden.lanes or 0,)) if self.hidden else (x,)

    def state(self, x: Any, *params: Any) -> tuple[StateArray, ...]:
        return form_leaves(self.layer.state_form)

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        self.layer.check_state(args, name, self._whole(state))

    def emit(self, to: Listing, line: Line, x: int, *params: Array) -> Any:
        if not self.hidden:
            return self.layer.emit(to, self._named(params), x)
        found = self.layer.emitted(to, self._named(params), x)
        states = self.layer.hidden.name
        if states not in found:
            raise Unlisted(
                f"the model has {an(to.layer)} over {an(type(self.layer).__name__)} without lines for {states}"
            )
        return found["y"], found[states]

    def prepare(self, x: None, *params: Any) -> Any:
        return None if self.hidden else trusted(self.layer.prepare)(self._named(params))

    def forward(self, call: Call, x: Array, *params: Array) -> Any:
        state = self._whole(call.state)
        if call.stepping and not self.hidden:
            y, after = trusted(self.layer.step)(self._named(params), state, x[:, 0], call.prepared)
            call.after = state_leaves(after)
            return y[:, None]
        ctx = replace(call.ctx, fused=False) if self.hidden else call.ctx  # there are states then
        y, call.kept = self.layer.forward(self._named(params), x, ctx, state)
        call.after = state_leaves(call.kept.state)
        if not self.hidden:
            return y
        h = self.layer.hidden_states(call.kept)
        return y, y if h is None else pairs(h)

    def backward(self, call: Call, dy: Any, x: Array, *params: Array) -> tuple[Array | None, ...]:
        after, more, backward = self._whole(call.dafter), {}, trusted(self.layer.backward)
        if self.hidden:
            dy, dh = dy
            if self.layer.hidden_states(call.kept) is None:
                dy = dy + dh
            else:
                more["dh"] = planes(dh) if self.layer.hidden.kind == "complex" else dh
        dx, dparams, dstate = backward(self._named(params), call.kept, dy, after, **more)
        call.dbefore = state_leaves(dstate)
        return dx, *(None if name in BUFFERS else dparams[name] for name in self.layer.shapes)

    def _named(self, params: tuple[Array, ...]) -> dict[str, Array]:
        return dict(zip(self.layer.shapes, params, strict=True))

    def _whole(self, arrays: tuple[Any, ...] | None) -> Any:
        """Returns the layer's state from its arrays; parts of a gradient may be None."""
        if arrays is None or all(one is None for one in arrays):
            return None
        return arrays[0] if isinstance(self.layer.state_form, StateArray) else tuple(arrays)
