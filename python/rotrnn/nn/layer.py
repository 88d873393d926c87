"""What a layer is: a frozen dataclass of settings, with its parameters in a plain dict beside it.

    params          = layer.init(rng)
    y, saved        = layer.forward(params, x, ctx)
    dx, dparams     = layer.backward(params, saved, dy)

A layer with memory in time (`Recurrent`) also takes and gives its state, which is differentiable:

    y, saved        = layer.forward(params, x, ctx, state)          # saved.state is the state after x
    dx, dparams, dstate = layer.backward(params, saved, dy, dstate)
    y_t, state      = layer.step(params, state, x_t)                # one step of streaming, evaluation mode
    prepared        = layer.prepare(params)                         # once, for many steps:
    y_t, state      = layer.step(params, state, x_t, prepared)

Forward over the whole, forward in chunks, and step after step agree at every split, to rounding; layers that iterate to
a fixed point (FixedPointRNN, Bedouin) to their `tol`, and FPMamba, whose fixed point is not unique, not at all.

`dparams` has the same nesting and names as `params`, less the entries that are no parameters (`BUFFERS`); every
gradient is new, none accumulates.
Whoever is called first checks what it is given, and says what does not fit in its own name; what it calls in turn does
not check again (`rotrnn.nn.module`). A layer says what to check by: `shapes`, `state_form` and its settings' types.
`saved` may hold x and params themselves, not copies: change neither in place between forward and its backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rotrnn.nn.module import BUFFERS as BUFFERS
from rotrnn.nn.module import EVALUATION as EVALUATION
from rotrnn.nn.module import TRUSTED as TRUSTED
from rotrnn.nn.module import Array as Array
from rotrnn.nn.module import Context as Context
from rotrnn.nn.module import Gather as Gather
from rotrnn.nn.module import Module as Module
from rotrnn.nn.module import Params as Params
from rotrnn.nn.module import State as State
from rotrnn.nn.module import StateArray as StateArray
from rotrnn.nn.module import StateForm as StateForm
from rotrnn.nn.module import trusted as trusted
from rotrnn.ops.boundary import Boundary


@runtime_checkable
class Layer(Protocol):
    """A function of each time step alone, with an explicit adjoint."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dy: Array) -> tuple[Array, Params]: ...


@dataclass(frozen=True)
class Recurrent(Module, ABC):
    """A layer with memory in time: `d_model` channels in and out. Parameters are a flat dict of arrays.

    Every layer says what it is (`about`) and where it comes from (`paper`), a line each, and which parameters are
    `recurrent`: those that published recipes train with a factor on the learning rate and without decay.
    """

    about: ClassVar[str]
    paper: ClassVar[str]
    recurrent: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[str] = ""
    """`state_lanes` as a formula of the settings, where there is no window and the others are the default ones; t are
    the steps so far."""

    d_model: int

    def __post_init__(self) -> None:
        """Types, and d_model; a subclass begins its own checks with this one."""
        super().__post_init__()
        self.check_sizes("d_model")

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters."""

    @abstractmethod
    def init(self, rng: np.random.Generator) -> Params:
        """Random parameters, float32."""

    @abstractmethod
    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> tuple[Array, Any]:
        """(y (B, T, D), saved) for x (B, T, D); `saved.state` is the state after x, `state` the one before."""

    @abstractmethod
    def backward(self, params: Params, saved: Any, dy: Array, dstate: State = None) -> tuple[Array, Params, State]:
        """(dx, dparams, gradient of the state that forward was given, or of the one it stands for)."""

    @abstractmethod
    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        """(y_t (B, D), state) for x_t (B, D), in evaluation mode; `prepared`, if given, is ``prepare(params)``.

        With `prepared`, the state that was given may be written over: what goes on is the new one alone.
        """

    def prepare(self, params: Params) -> Any:
        """What `step` needs that time does not touch, made once before many steps."""
        return None

    def report(self, saved: Any) -> dict[str, float]:
        """Numbers of a forward that are worth a line in the log of a training."""
        return {}

    def state_norms(self, saved: Any) -> Array | None:
        """|h_t| (B, T) of an unfused forward (`Context.fused`), where the layer has one vector h_t."""
        return None

    @property
    def state_lanes(self) -> int | None:
        """Real numbers that a state holds of each sequence, two of each complex one; None where that grows in time, or
        the layer does not say. Of a bidirectional layer those of one direction.

        `d_state` is what the layer's paper counts, complex states in one and real ones in another; this counts the same
        for all.
        """
        form = self.state_form
        leaves = (form,) if isinstance(form, StateArray) else form or ()
        lanes = [one.lanes for one in leaves if one.kind != "integer"]
        return sum(one for one in lanes if one is not None) if lanes and None not in lanes else None

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        if state is not None and getattr(self, "bidirectional", False):
            raise ValueError(f"{args.op}: a bidirectional layer takes no state, got one")
        super().check_state(args, name, state)


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


def flatten_state(state: State, name: str = "state") -> Iterator[tuple[str, Array]]:
    """The leaves of a state as ("state.0.1", array); of one array, ("state", array); of None, none."""
    if isinstance(state, tuple):
        for i, one in enumerate(state):
            yield from flatten_state(one, f"{name}.{i}")
    elif state is not None:
        yield name, state


def unflatten_state(flat: dict[str, Array]) -> State:
    """The inverse of `flatten_state`."""
    if not flat:
        return None
    nested = next(iter(unflatten(flat).values()))

    def tuples(node: Any) -> State:
        if not isinstance(node, dict):
            return node
        return tuple(tuples(node[str(i)]) for i in range(len(node)))

    return tuples(nested)
