"""Linear forecasts in closed form: ridge regression on the last steps of series, and regression on covariates.

Several series stand one after the other in an array, with their `lengths`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rotrnn.tasks.columns import Numbers
from rotrnn.tasks.rules import Scale
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


def chosen(y: Numbers, horizon: int, period: int, lengths: Index | None = None) -> Lags | None:
    """Returns the fit to series with the size and the penalty that forecast them best from other parts of them; None if
    they are too short.

    The origins of each series are cut into five blocks. The first blocks of all series, the second blocks, and so on,
    are forecast by the fit to origins that are further than a horizon from them, and the mean absolute error, in
    deviations of each variable's changes, decides. No size is longer than what the shortest series has beside a
    horizon, of the series that are long enough for the smallest size.
    """
    lengths = np.array([len(y)]) if lengths is None else lengths
    first, V = np.cumsum(lengths) - lengths, y.shape[1]
    sizes = {*SIZES, *(k * period for k in (1, 2, 3) if period > max(SIZES[0], 1))}
    least = lengths[lengths >= min(sizes) + horizon].min(initial=y.shape[0])

    def of_size(size: int) -> list[Index]:
        return [np.arange(at + size - 1, at + n - horizon) for at, n in zip(first, lengths, strict=True)]

    def serves(size: int) -> bool:
        counts = np.array([len(own) for own in of_size(size)])
        left = np.maximum(counts - -(-counts // BLOCKS) - 2 * horizon, 0)  # to fit to, for each block
        enough = counts.sum() >= 2 * size * V + 3 * horizon and left.sum() >= size * V
        return bool(size + horizon <= least and enough)

    sizes = {size for size in sizes if serves(size)}
    if not sizes:
        return None
    each = of_size(max(sizes))
    origins = np.concatenate(each)
    truth = _changes(y, origins, horizon)
    divisor = Scale.of(truth).divisor

    tried = {(size, penalty): -truth for size in sorted(sizes) for penalty in PENALTIES}
    for blocks in zip(*(np.array_split(own, BLOCKS) for own in each), strict=True):
        block = np.concatenate(blocks)
        others = np.concatenate([_apart(own, one, horizon) for own, one in zip(each, blocks, strict=True)])
        read = _read(y, block, max(sizes))
        for fit in Lags.fits(y, sorted(sizes), horizon, PENALTIES, others):
            at = _columns(fit.size, max(sizes), V)
            tried[fit.size, fit.penalty][np.searchsorted(origins, block)] += fit.changes(read[:, at])
    best = min(tried, key=lambda one: float(np.abs(tried[one] / divisor).mean()))
    made = np.full((len(y), horizon, V), np.nan)
    made[origins] = tried[best].reshape(len(origins), horizon, V)
    fit = Lags.fit(y, best[0], horizon, best[1], np.concatenate(of_size(best[0])))
    return Lags(fit.size, horizon, fit.penalty, fit.inputs, fit.weights, fit.means, made)


def effects(y: Numbers, x: Numbers, period: int, lengths: Index | None = None) -> Numbers:
    """Returns the effects (C, V) of covariates x (n, C) on series y (n, V): the coefficients b of a least squares fit

        y_t - y_(t-p) = (x_t - x_(t-p)) b + c + error

    of changes over p = `period` steps; with a period of 0 the numbers themselves stand for their changes. Of several
    solutions it is the one with the least norm, in deviations of the changes of x, so that a covariate whose change is
    the same everywhere has no effect. This is the regression of a "regression with ARIMA errors" (Hyndman and
    Athanasopoulos, Forecasting, chapter 10), by differences.

    ValueError if there are no more changes than covariates.
    """
    lengths = np.array([len(y)]) if lengths is None else lengths
    first = np.cumsum(lengths) - lengths
    rows = np.concatenate([np.arange(at + period, at + n) for at, n in zip(first, lengths, strict=True)])
    if len(rows) <= x.shape[1]:
        raise ValueError(f"covariates has {x.shape[1]} columns, expected fewer than the {len(rows)} changes to fit to")
    dy, dx = (one[rows] - one[rows - period] if period else one for one in (y, x))
    scale = Scale.of(dx)
    found = np.linalg.lstsq(scale(dx), dy - dy.mean(0), rcond=1e-10)[0]
    return np.asarray(found / scale.divisor[:, None])


def _apart(origins: Index, block: Index, horizon: int) -> Index:
    """Returns the origins of a series that are further than a horizon from a block of them, which may be empty."""
    return origins[(origins < block[0] - horizon) | (origins > block[-1] + horizon)] if len(block) else origins


def _read(y: Numbers, origins: Index, size: int) -> Numbers:
    """Returns the changes and the level that are read, (origins, size V)."""
    last = y[origins[:, None] - np.arange(size)]
    return np.concatenate([last[:, :-1] - last[:, 1:], last[:, :1]], 1).reshape(len(origins), size * y.shape[1])


def _columns(size: int, most: int, V: int) -> Index:
    """Returns the columns that `size` steps have among the columns of `most` steps."""
    return np.asarray(np.r_[: (size - 1) * V, (most - 1) * V : most * V])


def _changes(y: Numbers, origins: Index, horizon: int) -> Numbers:
    """Returns what is to be forecast, (origins, horizon V)."""
    later = y[origins[:, None] + np.arange(1, horizon + 1)] - y[origins][:, None]
    return np.asarray(later.reshape(len(origins), horizon * y.shape[1]))
