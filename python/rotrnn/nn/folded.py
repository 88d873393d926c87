"""Folded parameters of a layer: the effective weights of the recurrence, computed once per call.

    folded   = layer.fold(params)                              # Folded(weights, kept)
    dparams  = layer.fold_backward(params, folded, dweights)   # the adjoint; dweights is of the type of weights

Neither method depends on B or T. Every layer that folds its parameters has these two methods. The weights are a
`System` (a `LinearRecurrence`, and RotRNN's under `SelectiveRotRNN`), a `Bank` (S4D), or a `DplrSystem` for each
direction (S4). `fold` checks its parameters (`rotrnn.nn.module`).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

W = TypeVar("W")


class Folded(NamedTuple, Generic[W]):
    """The effective weights, and further values that `fold_backward` needs besides the parameters (or None)."""

    weights: W
    kept: Any = None
