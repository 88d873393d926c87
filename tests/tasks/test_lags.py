"""The linear forecast: beside scikit-learn's ridge regression, and what chooses its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from rotrnn.tasks.lags import PENALTIES, Lags, chosen


def series(n: int = 90, variables: int = 2) -> Any:
    """An autoregression of order 2, and its sum with noise."""
    rng = np.random.default_rng(0)
    y, e = np.zeros(n), rng.standard_normal((n, variables))
    for t in range(2, n):
        y[t] = 1.6 * y[t - 1] - 0.8 * y[t - 2] + e[t, 0]
    return 20 + np.stack([y] + [y + e[:, v] for v in range(1, variables)], 1)


def read(y: Any, t: int, size: int) -> list[float]:
    """What the forecast at step t reads, by a loop."""
    changes = [y[t - i] - y[t - i - 1] for i in range(size - 1)]
    return [float(number) for row in (*changes, y[t]) for number in row]


def test_a_fit_is_scikit_learns_ridge_of_scaled_lags() -> None:
    """Its penalty is that of a sum over origins, ours of a mean. Both solve the same system, of a condition of some
    hundreds; results of order 20 agree to a million roundings."""
    y, size, horizon, penalty = series(), 5, 3, 0.1
    rows = range(size - 1, len(y) - horizon)
    x = np.array([read(y, t, size) for t in rows])
    z = (x - x.mean(0)) / x.std(0)
    later = np.array([[y[t + h] - y[t] for h in range(1, horizon + 1)] for t in rows]).reshape(len(z), -1)
    theirs = Ridge(penalty * len(z)).fit(z, later).predict(z).reshape(-1, horizon, 2) + y[list(rows), None]
    ours = Lags.fit(y, size, horizon, penalty)(y, np.array(rows))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e6 * 20 * 2**-53)


def test_the_errors_are_those_of_fits_to_other_blocks() -> None:
    """The first block again, by a loop over its origins and over those that are further than a horizon from it; to
    rounding, as in the test before, for its products are some of those of more steps."""
    y, horizon = series(120, 1), 4
    one = chosen(y, horizon, 1)
    assert one is not None
    made = np.flatnonzero(~np.isnan(one.errors[:, 0, 0]))
    block = made[: -(-len(made) // 5)]
    others = np.array([t for t in made if t > block[-1] + horizon])
    fit = Lags.fit(y, one.size, horizon, one.penalty, others)
    for t in block:
        wanted = fit(y, block)[t - block[0]] - y[t + 1 : t + 1 + horizon]
        np.testing.assert_allclose(one.errors[t], wanted, rtol=0, atol=1e6 * 20 * 2**-53)


def test_what_forecasts_other_parts_best_is_chosen() -> None:
    y = series(200, 1)
    found = {}
    for size in (12, 24, 36):
        for penalty in PENALTIES:
            total: list[float] = []
            origins = np.arange(35, len(y) - 2)
            for block in np.array_split(origins, 5):
                others = origins[(origins < block[0] - 2) | (origins > block[-1] + 2)]
                forecasts = Lags.fit(y, size, 2, penalty, others)(y, block)
                total += [np.abs(forecasts[i, h] - y[t + 1 + h])[0] for i, t in enumerate(block) for h in range(2)]
            found[size, penalty] = np.mean(total)
    one = chosen(y, 2, 1)
    assert one is not None
    assert (one.size, one.penalty) == min(found, key=lambda key: found[key])


@pytest.mark.parametrize(("n", "horizon", "size"), [(39, 2, None), (50, 2, 12), (40, 9, None)])
def test_a_series_that_is_too_short_has_none(n: int, horizon: int, size: int | None) -> None:
    one = chosen(series(n, 1), horizon, 1)
    assert (one and one.size) == size


def test_a_period_is_among_the_sizes() -> None:
    """A period of 50 of random numbers: no fewer steps say anything."""
    y = np.tile(np.random.default_rng(1).standard_normal(50), 8)[:, None]
    one = chosen(y, 1, 50)
    assert one is not None
    assert one.size in (50, 100)
