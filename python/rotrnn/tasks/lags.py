"""A linear forecast in closed form: ridge regression on the last steps of a series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        return next(cls.fits(y, [size], horizon, [penalty], origins))

    @classmethod
    def fits(
        cls, y: Numbers, sizes: Sequence[int], horizon: int, penalties: Sequence[float], origins: Index
    ) -> Iterator[Lags]:
        """Returns the fits by each size, and by each penalty for it. A size reads some of what a larger one reads, so
        that the products of the largest serve all."""
        most, V = max(sizes), y.shape[1]
        read, changes = _read(y, origins, most), _changes(y, origins, horizon)
        inputs, means = Scale.of(read), Scale.of(changes).mean
        z = inputs(read)
        gram, wanted = z.T @ z / len(z), z.T @ (changes - means) / len(z)
        for size in sizes:
            at = _columns(size, most, V)
            own, of_size = gram[np.ix_(at, at)], Scale(inputs.mean[at], inputs.std[at])
            for penalty in penalties:
                weights = np.linalg.solve(own + penalty * np.eye(len(at)), wanted[at])
                yield cls(size, horizon, penalty, of_size, weights, means)

    def __call__(self, y: Numbers, origins: Index) -> Numbers:
        """Returns the forecasts (origins, horizon, V) at origins of at least size - 1."""
        changes = self.changes(_read(y, origins, self.size))
        return np.asarray(y[origins][:, None] + changes.reshape(len(origins), self.horizon, y.shape[1]))

    def changes(self, read: Numbers) -> Numbers:
        """Returns the changes (n, horizon V) that are forecast from what is read, (n, size V)."""
        return np.asarray(self.inputs(read) @ self.weights + self.means)


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

    tried = {(size, penalty): -truth for size in sorted(sizes) for penalty in PENALTIES}
    for block in np.array_split(origins, BLOCKS):
        others = origins[(origins < block[0] - horizon) | (origins > block[-1] + horizon)]
        read = _read(y, block, max(sizes))
        for fit in Lags.fits(y, sorted(sizes), horizon, PENALTIES, others):
            at = _columns(fit.size, max(sizes), V)
            tried[fit.size, fit.penalty][block - origins[0]] += fit.changes(read[:, at])
    best = min(tried, key=lambda one: float(np.abs(tried[one] / divisor).mean()))
    made = np.full((n, horizon, V), np.nan)
    made[origins] = tried[best].reshape(len(origins), horizon, V)
    fit = Lags.fit(y, best[0], horizon, best[1])
    return Lags(fit.size, horizon, fit.penalty, fit.inputs, fit.weights, fit.means, made)


def _read(y: Numbers, origins: Index, size: int) -> Numbers:
    """Returns the changes and the level that are read, (origins, size V)."""
    last = y[origins[:, None] - np.arange(size)]
    return np.concatenate([last[:, :-1] - last[:, 1:], last[:, :1]], 1).reshape(len(origins), size * y.shape[1])


def _columns(size: int, most: int, V: int) -> Index:
    """Returns the columns of what `most` steps are read as that `size` steps are read as."""
    return np.asarray(np.r_[: (size - 1) * V, (most - 1) * V : most * V])


def _changes(y: Numbers, origins: Index, horizon: int) -> Numbers:
    """Returns what is to be forecast, (origins, horizon V)."""
    later = y[origins[:, None] + np.arange(1, horizon + 1)] - y[origins][:, None]
    return np.asarray(later.reshape(len(origins), horizon * y.shape[1]))
