"""Functions of each number, of each pair of numbers, and gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rotrnn.devices.device import pooled
from rotrnn.nn.layer import Array
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Call, Instruction, Line, Shape
from rotrnn.ops.pointwise import (
    exp,
    gelu,
    gelu_backward,
    glu,
    glu_backward,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    softplus,
    softplus_backward,
    swiglu,
    swiglu_backward,
    tanh,
    tanh_backward,
)


class Function(Instruction):
    """A function ``y = f(x)`` of each number: its op and the adjoint, which takes y if it `reads` y."""

    of: ClassVar[tuple[Callable[..., Array], Callable[..., Array]]]
    reads = ("x",)

    def forward(self, call: Call, x: Array) -> Array:
        return self.of[0](x)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return self.of[1](dy, call.y if self.reads == ("y",) else x)


@dataclass(frozen=True)
class SiLU(Function):
    """``y = x s(x)``, s the sigmoid."""

    of = silu, silu_backward


@dataclass(frozen=True)
class GELU(Instruction):
    """``y = gelu(x)``, in its tanh form."""

    reads = ("x",)
    light = True

    def forward(self, call: Call, x: Array) -> Array:
        return gelu(x, lengths=call.lengths)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return gelu_backward(dy, x, lengths=call.lengths)


@dataclass(frozen=True)
class Sigmoid(Function):
    """``y = 1 / (1 + e^{-x})``."""

    of = sigmoid, sigmoid_backward
    reads = ("y",)
    foldable = True


@dataclass(frozen=True)
class LogSigmoid(Instruction):
    """``y = -softplus(-x) = log s(x)``."""

    reads = ("x",)

    def forward(self, call: Call, x: Array) -> Array:
        return -softplus(-x)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return softplus_backward(dy, -x)


@dataclass(frozen=True)
class Tanh(Function):
    """``y = tanh(x)``."""

    of = tanh, tanh_backward
    reads = ("y",)
    foldable = True


@dataclass(frozen=True)
class Softplus(Function):
    """``y = log(1 + e^x)``."""

    of = softplus, softplus_backward
    foldable = True


@dataclass(frozen=True)
class Softmax(Instruction):
    """``y_k = e^{x_k} / sum_l e^{x_l}`` over the last axis: x (..., K)."""

    reads = ("y",)

    def forward(self, call: Call, x: Array) -> Array:
        e = exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return call.y * (dy - (dy * call.y).sum(-1, keepdims=True))


@dataclass(frozen=True)
class Affine(Instruction):
    """``y = scale x + shift``, two numbers."""

    scale: float
    shift: float = 0
    light = True
    foldable = True

    def forward(self, call: Call, x: Array) -> Array:
        y = pooled(np.multiply, self.scale, x)
        return np.add(y, self.shift, out=y) if self.shift else y

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        return pooled(np.multiply, self.scale, dy)


@dataclass(frozen=True)
class Product(Instruction):
    """``y = x * z``."""

    reads = ("x", "z")
    light = True
    foldable = True
    form = "...; ... -> ..."

    def forward(self, call: Call, x: Array, z: Array) -> Array:
        return pooled(np.multiply, x, z)

    def backward(self, call: Call, dy: Array, x: Array, z: Array) -> tuple[Array, Array]:
        return pooled(np.multiply, dy, z), pooled(np.multiply, dy, x)


@dataclass(frozen=True)
class Sum(Instruction):
    """``y = x + z``."""

    form = "...; ... -> ..."
    foldable = True

    def forward(self, call: Call, x: Array, z: Array) -> Array:
        return pooled(np.add, x, z)

    def backward(self, call: Call, dy: Array, x: Array, z: Array) -> tuple[Array, Array]:
        return dy, dy


@dataclass(frozen=True)
class Bonus(Instruction):
    """``y = (q . k) v``, in each head: q and k (H, K), v (H, V)."""

    reads = ("q", "k", "v")
    form = "H K; H K; H V -> H V"

    def forward(self, call: Call, q: Array, k: Array, v: Array) -> Array:
        return (q * k).sum(-1, keepdims=True) * v

    def backward(self, call: Call, dy: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        size, dsize = (q * k).sum(-1, keepdims=True), (dy * v).sum(-1, keepdims=True)
        return dsize * k, dsize * q, size * dy


@dataclass(frozen=True)
class GLU(Instruction):
    """``y = x s(gate)``, s the sigmoid."""

    of = glu, glu_backward
    reads = ("x", "gate")
    form = "...; ... -> ..."

    def forward(self, call: Call, x: Array, gate: Array) -> Array:
        return self.of[0](x, gate)

    def backward(self, call: Call, dy: Array, x: Array, gate: Array) -> tuple[Array, Array]:
        return tuple(self.of[1](dy, x, gate))  # type: ignore[return-value]


@dataclass(frozen=True)
class SwiGLU(GLU):
    """``y = x SiLU(gate)``."""

    of = swiglu, swiglu_backward


@dataclass(frozen=True)
class RankGate(Instruction):
    """``y = sum_r u_r * x_r * SiLU(g_r * z)``, x (R, H, P), z (H P,), g and u (H, R, P)."""

    reads = ("x", "z")
    parameters = ("g", "u")

    def shapes(self, x: Any, z: Any, g: Any, u: Any) -> tuple[Shape, ...]:
        R, H, P = x
        if z != (H * P,) or (g, u) != 2 * ((H, R, P),):
            raise ValueError("expected x (R, H, P), z (H P), g and u (H, R, P)")
        return (z,)

    def forward(self, call: Call, x: Array, z: Array, g: Array, u: Array) -> Array:
        y: Any = sum(gain * swiglu(part, gate) for part, gate, _, gain in _of_ranks(x, z, g, u))
        return y

    def backward(self, call: Call, dy: Array, x: Array, z: Array, g: Array, u: Array) -> tuple[Array, ...]:
        dx, dg, du = np.empty_like(x), np.empty_like(g), np.empty_like(u)
        dz: Any = 0
        for rank, (part, gate, to_gate, gain) in enumerate(_of_ranks(x, z, g, u)):
            du[:, rank] = (dy * swiglu(part, gate)).sum((0, 1), dtype=np.float64).reshape(du[:, rank].shape)
            dpart, dgate = swiglu_backward(gain * dy, part, gate)
            dg[:, rank] = (dgate * z).sum((0, 1), dtype=np.float64).reshape(dg[:, rank].shape)
            dx[:, :, rank] = dpart.reshape(dx[:, :, rank].shape)
            dz = dz + to_gate * dgate
        return dx, dz, dg, du

    def emit(self, to: Listing, line: Line, x: int, z: int, g: Array, u: Array) -> Any:
        R, H, P = line.shapes[0]  # type: ignore[misc]
        parts = to("Split", to("Reshape", x, shape=(R, H * P)), outputs=R, sizes=(1,) * R, axis=-2)
        y = None
        for rank, part in enumerate(parts):
            flat, gate = to("Reshape", part, shape=(H * P,)), to("Skip", z, g[:, rank].ravel())
            one = to("Skip", to("SwiGLU", flat, gate), u[:, rank].ravel())
            y = one if y is None else to("Sum", y, one)
        return y


def _of_ranks(x: Array, z: Array, g: Array, u: Array) -> Iterator[tuple[Array, ...]]:
    """Yields for each rank its x and gate (B, T, H P), and its g and u (H P,)."""
    for rank in range(x.shape[2]):
        to_gate, gain = g[:, rank].reshape(-1), u[:, rank].reshape(-1)
        yield x[:, :, rank].reshape(z.shape), to_gate * z, to_gate, gain
