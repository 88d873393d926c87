"""What a layer folds its parameters into: the weights that time meets, made once for each call.

    folded   = layer.fold(params)                              # Folded(weights, kept)
    dparams  = layer.fold_backward(params, folded, dweights)   # the adjoint; dweights is of the type of weights

Neither sees B or T. Every layer that folds does it by these two, whatever its weights are: a `System` (engine 1, and
RotRNN's under `SelectiveRotRNN`), a `Bank` (S4D), `Projections` (WropeMemory), or a dict of arrays by name (Bedouin,
FPMamba).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

W = TypeVar("W")


class Folded(NamedTuple, Generic[W]):
    """The effective weights, and what `fold_backward` needs besides them and the parameters (None for nothing)."""

    weights: W
    kept: Any = None
