"""What a layer is: a frozen dataclass of settings, with its parameters in a plain dict beside it.

    params          = layer.init(rng)
    y, saved        = layer.forward(params, x, ctx)
    dx, dparams     = layer.backward(params, saved, dy)

A layer with memory in time (`Recurrent`) also takes and gives its state, which is differentiable:

    y, saved        = layer.forward(params, x, ctx, state)          # saved.state is the state after x
    dx, dparams, dstate = layer.backward(params, saved, dy, dstate)
    y_t, state      = layer.step(params, state, x_t)                # one step of streaming, evaluation mode

Forward over the whole, forward in chunks, and step after step agree at every split. `dparams` has the same nesting
and names as `params`, less the entries that are no parameters (`BUFFERS`); every gradient is new, none accumulates.
`saved` may hold x and params themselves, not copies: change neither in place between forward and its backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Params = dict[str, Any]  # nested: name -> Array or Params
State = Any  # an array or a tuple of states; None is the state before the first step

BUFFERS = frozenset({"running_mean", "running_var"})
"""Names of entries of `params` that no gradient reaches: forward in training mode updates them in place."""


@dataclass(frozen=True)
class Context:
    """What a forward call is told besides its input.

    Parameters
    ----------
    lengths : (B,) int64, optional
        Valid steps of each sequence; what lies beyond is never read and is zero in every output.
    train : bool
        Batch statistics and dropout on.
    seed, step : int
        Key of the random numbers of this step (with `train`); the same key gives the same masks on any device.
    fused : bool
        Run what can be fused (`rotrnn.nn.fused`) in one pass, which keeps little more than its input for backward;
        else part by part, keeping everything, the states of recurrences too. Results differ by rounding alone.
    """

    lengths: npt.NDArray[np.int64] | None = None
    train: bool = False
    seed: int = 0
    step: int = 0
    fused: bool = True


EVALUATION = Context()


class Layer(Protocol):
    """A function of each time step alone, with an explicit adjoint."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dy: Array) -> tuple[Array, Params]: ...


class Recurrent(Protocol):
    """A layer with memory in time."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dy: Array, dstate: State = None) -> tuple[Array, Params, State]: ...

    def step(self, params: Params, state: State, x_t: Array) -> tuple[Array, State]: ...


def flatten(params: Params, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """The leaves of nested params as ("block.0.norm.scale", array), in the dict's order."""
    for name, value in params.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def unflatten(flat: dict[str, Array]) -> Params:
    """The inverse of `flatten`."""
    params: Params = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        node = params
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return params


def is_parameter(name: str) -> bool:
    """Whether a flattened name is trained (and not a buffer)."""
    return name.rsplit(".", 1)[-1] not in BUFFERS


def astype(params: Params, dtype: npt.DTypeLike) -> Params:
    """The params with every array in `dtype`."""
    return {
        name: astype(value, dtype) if isinstance(value, dict) else value.astype(dtype) for name, value in params.items()
    }
