"""Layers of engine 1: what they share. A layer is a parameterisation, params -> System, and its adjoint."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rotrnn.nn.layer import EVALUATION, Array, Context, Params, Recurrent, State
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
class LinearRecurrence(Recurrent):
    """A layer ``y = W_out scan(a, W_in u) + D * u`` with (W_in, a, W_out) folded from its parameters once per call.

    A subclass gives `shapes`, `init`, `fold` and `fold_backward`, which never see B or T.
    """

    d_state: int
    bidirectional: bool = False

    def __post_init__(self) -> None:
        self.check_sizes("d_model", "d_state")

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

    def prepare(self, params: Params) -> System:
        return self.checked_fold(params)[0]

    def step(self, params: Params, state: State, x_t: Array, prepared: System | None = None) -> tuple[Array, State]:
        if self.bidirectional:
            raise ValueError(f"{type(self).__name__}.step: a bidirectional layer cannot run step by step")
        return linear_step(self.prepare(params) if prepared is None else prepared, state, x_t)

    def state_norms(self, saved: LinearSaved) -> Array | None:
        if not isinstance(saved.layer, LinearLayerStates):
            return None
        norms: Array = np.linalg.norm(saved.layer.h[0], axis=-1)  # of the forward direction
        return norms

    def eigenvalues(self, params: Params) -> Array:
        """The transition a, (N,) complex: one eigenvalue a plane (its conjugate is the plane's other one)."""
        return self.fold(params)[0].a

    def check_state(self, state: State) -> None:
        """Only one direction can be continued."""
        if self.bidirectional and state is not None:
            raise ValueError(f"{type(self).__name__}.forward: a bidirectional layer takes no state, got one")

    def checked_fold(self, params: Params) -> tuple[System, Any]:
        """`fold` of parameters that are all there, fit, and are finite."""
        self.check_params(params)
        return self.fold(params)


def ring(rng: np.random.Generator, low: float, high: float, count: int) -> Array:
    """log(-log r) for `count` moduli r, uniform in area between radii low and high (LRU, Lemma 3.2)."""
    return np.log(-0.5 * np.log(rng.uniform(size=count) * (high**2 - low**2) + low**2))
