"""Base class of layers that are made around another one: Griffin and StoredHistory."""

from __future__ import annotations

from typing import Any

from rotrnn.nn.layer import Array, Params, Recurrent


class Around(Recurrent):
    """A layer whose recurrence is that of `layer`. The parameters and the state are those of `layer` and its own."""

    layer: Recurrent

    @property
    def recurrent(self) -> frozenset[str]:  # type: ignore[override]
        return self.layer.recurrent

    @property
    def core(self) -> Recurrent:
        return self.layer.core

    def report(self, saved: Any) -> dict[str, float]:
        """Returns the report of the layer."""
        return self.layer.report(saved.layer)

    def state_norms(self, saved: Any) -> Array | None:
        return self.layer.state_norms(saved.layer)

    def eigenvalues(self, params: Params, *args: Any, **kwargs: Any) -> Array:
        """Returns those of the layer, whose `eigenvalues` has the same arguments. AttributeError if it has none."""
        self.check_params(params)
        values: Array = self.layer.eigenvalues(self._inner(params), *args, **kwargs)  # type: ignore[attr-defined]
        return values

    @property
    def state_size(self) -> int | None:
        return self.layer.state_size

    def _inner(self, params: Params) -> Params:
        return {name: params[name] for name in self.layer.shapes}
