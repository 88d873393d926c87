"""A linear forecast in closed form: ridge regression on the last steps of a series."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rotrnn.tasks.own import Numbers, Scale
from rotrnn.tasks.task import Index

SIZES = 12, 24, 36
"""Numbers of steps that are read, one of which is chosen; beside them once, twice and three times a longer period."""
PENALTIES = 1e-3, 1e-2, 1e-1
"""Of them too, one is chosen."""
BLOCKS = 5


@dataclass(frozen=True)
class Lags:
    """Forecasts of the next `horizon` steps of a series y (n, V), linear in its last L = `size` steps.

    With z the changes ``y_t - y_(t-1)``, ..., ``y_(t-L+2) - y_(t-L+1)`` and the level ``y_t`` of all variables, L V
    numbers, each shifted and scaled to mean 0 and deviation 1 over the origins of the fit, the forecast of
    ``y_(t+h) - y_t`` is ``z W + c``: c is the mean over the origins, and W minimises the mean squared error plus
    `penalty` times the sum of squares of W (Hoerl and Kennard 1970).
    """

    size: int
    horizon: int
    penalty: float
    inputs: Scale
    weights: Numbers
    means: Numbers
    errors: Numbers = field(repr=False, default_factory=lambda: np.zeros(0))
    """(n, horizon, V): the errors that `chosen` made at each origin, by a fit to other blocks; NaN where there are
    none."""

    @classmethod
    def fit(cls, y: Numbers, size: int, horizon: int, penalty: float, origins: Index | None = None) -> Lags:
        """Returns the fit to a series, to some origins of it or to all that have `size` steps and a whole horizon."""
        if origins is None:
            origins = np.arange(size - 1, len(y) - horizon)
        read, changes = _read(y, origins, size), _changes(y, origins, horizon)
        inputs, means = Scale.of(read), Scale.of(changes).mean
        z = inputs(read)
        gram = z.T @ z / len(z) + penalty * np.eye(z.shape[1])
        return cls(size, horizon, penalty, inputs, np.linalg.solve(gram, z.T @ (changes - means) / len(z)), means)

    def __call__(self, y: Numbers, origins: Index) -> Numbers:
        """Returns the forecasts (origins, horizon, V) at origins of at least size - 1."""
        changes = self.inputs(_read(y, origins, self.size)) @ self.weights + self.means
        return np.asarray(y[origins][:, None] + changes.reshape(len(origins), self.horizon, y.shape[1]))


def chosen(y: Numbers, horizon: int, period: int) -> Lags | None:
    """Returns the fit to a series with the size and the penalty that forecast it best from other parts of it; None if
    it is too short.

    The origins are cut into five blocks. Each is forecast by the fit to origins that are further than a horizon from
    it, and the mean absolute error, in deviations of each variable's changes, decides.
    """
    n, V = y.shape
    sizes = {*SIZES, *(k * period for k in (1, 2, 3) if period > max(SIZES[0], 1))}
    sizes = {size for size in sizes if n - size - horizon + 1 >= 2 * size * V + 3 * horizon}
    if not sizes:
        return None
    origins = np.arange(max(sizes) - 1, n - horizon)
    truth = _changes(y, origins, horizon)
    divisor = Scale.of(truth).divisor

    def errors(size: int, penalty: float) -> Numbers:
        found = np.empty((len(origins), horizon, V))
        for block in np.array_split(origins, BLOCKS):
            others = origins[(origins < block[0] - horizon) | (origins > block[-1] + horizon)]
            fit = Lags.fit(y, size, horizon, penalty, others)
            found[block - origins[0]] = fit(y, block) - y[block][:, None]
        return found - truth.reshape(found.shape)

    tried = {(size, penalty): errors(size, penalty) for size in sorted(sizes) for penalty in PENALTIES}
    best = min(tried, key=lambda one: float(np.abs(tried[one].reshape(truth.shape) / divisor).mean()))
    made = np.full((n, horizon, V), np.nan)
    made[origins] = tried[best]
    fit = Lags.fit(y, best[0], horizon, best[1])
    return Lags(fit.size, horizon, fit.penalty, fit.inputs, fit.weights, fit.means, made)


def _read(y: Numbers, origins: Index, size: int) -> Numbers:
    """Returns the changes and the level that are read, (origins, size V)."""
    last = y[origins[:, None] - np.arange(size)]
    return np.concatenate([last[:, :-1] - last[:, 1:], last[:, :1]], 1).reshape(len(origins), size * y.shape[1])


def _changes(y: Numbers, origins: Index, horizon: int) -> Numbers:
    """Returns what is to be forecast, (origins, horizon V)."""
    later = y[origins[:, None] + np.arange(1, horizon + 1)] - y[origins][:, None]
    return np.asarray(later.reshape(len(origins), horizon * y.shape[1]))
