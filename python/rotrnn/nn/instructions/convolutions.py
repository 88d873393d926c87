"""Causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.devices.device import full
from rotrnn.nn.layer import Array, StateArray
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Call, Instruction, Line
from rotrnn.ops.conv import causal_conv, causal_conv_backward


@dataclass(frozen=True)
class Conv(Instruction):
    """The causal convolution of each channel of x (I,) with taps w (I, K); without w, x itself. Its state is the last
    K - 1 inputs."""

    reads: ClassVar[tuple[str, ...]] = ("x",)
    form = "I; I K; I -> I"
    parameters: ClassVar[tuple[str, ...]] = ("w", "b")

    def state(self, x: Any, w: Any, b: Any = None) -> tuple[StateArray, ...]:
        return (StateArray("inputs", (0 if w is None else w[1] - 1, *x)),)

    def forward(self, call: Call, x: Array, w: Array | None = None, b: Array | None = None) -> Array:
        if w is None:
            call.after = (np.zeros((len(x), 0, x.shape[-1]), x.dtype, like=x),)
            return x
        past = None if call.state is None else call.state[0]
        y, after = causal_conv(x, w, b, past, lengths=call.lengths, return_state=True)
        call.after = (after,)
        return y

    def backward(self, call: Call, dy: Array, x: Array, w: Array | None, b: Array | None = None) -> tuple[Any, ...]:
        if w is None:
            call.dbefore = (np.zeros((len(dy), 0, dy.shape[-1]), dy.dtype, like=dy),)
            return dy, None, None
        past = None if call.state is None else call.state[0]
        dafter = None if call.dafter is None else call.dafter[0]
        grads = causal_conv_backward(dy, x, w, past, dhT=dafter, lengths=call.lengths)
        call.dbefore = (grads.dstate,)
        return grads.dx, grads.dw, grads.dbias


@dataclass(frozen=True)
class Previous(Conv):
    """``y_t = x_{t-1}``, x (I,): a convolution with the taps (1, 0). Its state is the last x."""

    reads = ()
    form = "I -> I"
    parameters = ()

    def state(self, x: Any) -> tuple[StateArray, ...]:  # type: ignore[override]
        return (StateArray("x", (1, *x)),)

    def emit(self, to: Listing, line: Line, x: int) -> Any:
        return to("Conv", x, np.tile([1.0, 0.0], (line.shapes[0][0], 1)), None)  # type: ignore[index]

    def forward(self, call: Call, x: Array) -> Array:  # type: ignore[override]
        return super().forward(call, x, self._taps(x))

    def backward(self, call: Call, dy: Array, x: None) -> Any:  # type: ignore[override]
        return super().backward(call, dy, dy, self._taps(dy))[0]

    def _taps(self, x: Array) -> Array:
        taps = full((x.shape[-1], 2), 0, x.dtype, x)
        taps[:, 0] = 1
        return taps
