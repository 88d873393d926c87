"""Layers of engine 1: what they share. A layer is a parameterisation, params -> System, and its adjoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State
from rotrnn.ops.linear_layer import (
    LinearLayerSaved,
    LinearLayerStates,
    System,
    linear_layer,
    linear_layer_backward,
    linear_step,
)


class LinearSaved(NamedTuple):
    """What forward keeps: the folded system and what its folding saved, the op's own, and the state after x."""

    system: System
    folding: Any
    layer: LinearLayerSaved | LinearLayerStates
    state: Array | None


@dataclass(frozen=True)
class LinearRecurrence(ABC):
    """A layer ``y = W_out scan(a, W_in u) + D * u`` with (W_in, a, W_out) folded from its parameters once per call.

    A subclass gives `init`, `fold` and `fold_backward`, which never see B or T, and names its `recurrent` parameters:
    those that published recipes train with a factor on the learning rate and without decay.
    """

    recurrent: ClassVar[frozenset[str]]

    d_model: int
    d_state: int
    bidirectional: bool = False

    def __post_init__(self) -> None:
        for key, size in (("d_model", self.d_model), ("d_state", self.d_state)):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{type(self).__name__}: {key}={size!r}, expected a positive integer")

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters."""

    @abstractmethod
    def init(self, rng: np.random.Generator) -> Params:
        """Random parameters, float32."""

    @abstractmethod
    def fold(self, params: Params) -> tuple[System, Any]:
        """(system, what `fold_backward` needs)."""

    @abstractmethod
    def fold_backward(self, params: Params, folding: Any, dsystem: System) -> Params:
        """Gradients of the parameters from those of the system."""

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, LinearSaved]:
        """y (B, T, D) for x (B, T, D); `state` (B, N) complex continues an earlier call (one direction only)."""
        self.check_state(state)
        system, folding = self.checked_fold(params)
        start = None if state is None else state[None]
        y, hT, layer = linear_layer(system, x, start, lengths=ctx.lengths, fused=ctx.fused)
        return y, LinearSaved(system, folding, layer, None if self.bidirectional else hT[0])

    def backward(
        self, params: Params, saved: LinearSaved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        """(dx, dparams, gradient of the state that forward was given, or of zeros in its place)."""
        dhT = None if dstate is None else dstate[None]
        grads = linear_layer_backward(dy, saved.system, saved.layer, dhT)
        dparams = self.fold_backward(params, saved.folding, grads.system)
        return grads.du, dparams, None if self.bidirectional else grads.dh0[0]

    def step(self, params: Params, state: State, x_t: Array, system: System | None = None) -> tuple[Array, State]:
        """(y_t (B, D), state) for x_t (B, D); `system`, if given, is ``fold(params)[0]`` made once before."""
        if self.bidirectional:
            raise ValueError(f"{type(self).__name__}.step: a bidirectional layer cannot run step by step")
        if system is None:
            system, _ = self.checked_fold(params)
        return linear_step(system, state, x_t)

    def eigenvalues(self, params: Params) -> Array:
        """The transition a, (N,) complex: one eigenvalue a plane (its conjugate is the plane's other one)."""
        return self.fold(params)[0].a

    def check_state(self, state: State) -> None:
        """Only one direction can be continued."""
        if self.bidirectional and state is not None:
            raise ValueError(f"{type(self).__name__}.forward: a bidirectional layer takes no state, got one")

    def checked_fold(self, params: Params) -> tuple[System, Any]:
        """`fold` of parameters that are all there, fit, and are finite: NaN in one would spread without a trace."""
        layer = type(self).__name__
        for name, shape in self.shapes.items():
            if name not in params:
                raise ValueError(f"{layer}: parameter {name} is missing, expected {', '.join(self.shapes)}")
            value = params[name]
            if np.shape(value) != shape:
                raise ValueError(f"{layer}: parameter {name} has shape {np.shape(value)}, expected {shape}")
            if not np.isfinite(value).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
                raise ValueError(f"{layer}: parameter {name} is {value[at]} at {at}, expected finite numbers")
        return self.fold(params)


def ring(rng: np.random.Generator, low: float, high: float, count: int) -> Array:
    """log(-log r) for `count` moduli r, uniform in area between radii low and high (LRU, Lemma 3.2)."""
    return np.log(-0.5 * np.log(rng.uniform(size=count) * (high**2 - low**2) + low**2))
