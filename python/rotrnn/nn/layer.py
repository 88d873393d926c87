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
`saved` may hold x and params themselves, not copies: change neither in place between forward and its backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from rotrnn._support.settings import settle
from rotrnn.ops.boundary import REAL, Boundary
from rotrnn.ops.pointwise import mask_padding

Array = npt.NDArray[Any]
Params = dict[str, Any]  # nested: name -> Array or Params
Gather = Callable[[Array], list[Array]]
State = Any
"""An array or a tuple of states, each array with the batch axis first; None is the state before the first step.
Real and complex leaves are differentiable; integer ones (positions) are not, their gradient is zero."""

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
    places : (B,) int64, optional
        Where each sequence stands in the batch that it is a part of, so that it has its own masks; 0..B-1 without.
    gather : callable, optional
        Where the batch is spread over several processes, ``gather(x)`` is the x (n, ...) of each of them, in their
        order, n its own; each calls it as often as the others, with the same dtype and sizes but n. What needs a whole
        batch (batch norm, quantiles of residuals) asks it. None where the batch is all here.
    fused : bool
        Run what can be fused (`rotrnn.nn.blocks.fused`) in one pass, which keeps little more than its input for
        backward; else part by part, keeping everything, the states of recurrences too. Results differ by rounding.
    """

    lengths: npt.NDArray[np.int64] | None = None
    train: bool = False
    seed: int = 0
    step: int = 0
    places: npt.NDArray[np.int64] | None = None
    gather: Gather | None = None
    fused: bool = True


EVALUATION = Context()


class Layer(Protocol):
    """A function of each time step alone, with an explicit adjoint."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dy: Array) -> tuple[Array, Params]: ...


@dataclass(frozen=True)
class Recurrent(ABC):
    """A layer with memory in time: `d_model` channels in and out. Parameters are a flat dict of arrays.

    Every layer says what it is (`about`) and where it comes from (`paper`), a line each, and which parameters are
    `recurrent`: those that published recipes train with a factor on the learning rate and without decay.
    """

    about: ClassVar[str]
    paper: ClassVar[str]
    recurrent: ClassVar[frozenset[str]] = frozenset()

    d_model: int

    def __post_init__(self) -> None:
        """Types, and d_model; a subclass begins its own checks with this one."""
        settle(self)
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

    def check_sizes(self, *names: str, least: int = 1) -> None:
        """Settings that must be whole numbers, at least `least`."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                expected = "a positive integer" if least == 1 else f"an integer from {least}"
                raise ValueError(f"{type(self).__name__}: {name}={value!r}, expected {expected}")

    def valid_input(self, x: Array, ctx: Context) -> Array:
        """x, which must be (B, T, d_model), with its padding zeroed."""
        args = Boundary(f"{type(self).__name__}.forward")
        args.bind("D", self.d_model, "d_model")
        x = args.array("x", x, "B T D")
        return mask_padding(x, args.lengths(ctx.lengths))

    def valid_gradient(self, dy: Array, x: Array, lengths: Any = None, dtype: npt.DTypeLike | None = None) -> Array:
        """dy, which must be of the shape of x, with its padding zeroed; in `dtype`, if one is given."""
        args = Boundary(f"{type(self).__name__}.backward")
        for letter, size in zip("BTD", x.shape, strict=True):
            args.bind(letter, size, "the forward call")
        dy = args.array("dy", dy, "B T D")
        return mask_padding(dy if dtype is None else dy.astype(dtype, copy=False), lengths)

    def check_params(self, params: Params) -> None:
        """Parameters are all there, real, fit, and are finite: NaN in one would spread without a trace."""
        layer = type(self).__name__
        for name, shape in self.shapes.items():
            if name not in params:
                raise ValueError(f"{layer}: parameter {name} is missing, expected {', '.join(self.shapes)}")
            value = params[name]
            if not isinstance(value, np.ndarray) or value.dtype.newbyteorder("=") not in REAL:
                got = f"dtype {value.dtype}" if isinstance(value, np.ndarray) else f"type {type(value).__name__}"
                raise TypeError(f"{layer}: parameter {name} has {got}, expected an array of float32 or float64")
            if value.shape != shape:
                raise ValueError(f"{layer}: parameter {name} has shape {value.shape}, expected {shape}")
            if not np.isfinite(value).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
                raise ValueError(f"{layer}: parameter {name} is {value[at]} at {at}, expected finite numbers")


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
