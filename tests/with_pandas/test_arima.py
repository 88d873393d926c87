"""Forecasts with known covariates beside statsmodels' regression with ARMA errors. ``make test-data`` runs this."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.tsa.statespace.sarimax import SARIMAX

from rotrnn.estimators import Forecaster


@pytest.mark.filterwarnings("ignore::Warning")
def test_forecasts_are_those_of_a_regression_with_autoregressive_errors() -> None:
    """Statsmodels knows the order, 1, and fits all by maximum likelihood. In 300 steps with a noise of deviation 1,
    each of our 12 weights, the constant and the two effects errs by some 1 / sqrt(300), so that forecasts differ by
    about sqrt(15 / 300) = 0.22; twice that is allowed. Without covariates the difference is of order 3."""
    rng, n, H = np.random.default_rng(1), 330, 4
    x = np.stack([rng.standard_normal(n).cumsum() / 5, rng.random(n) < 0.1], 1).astype(float)
    u = np.zeros(n)
    for t in range(1, n):
        u[t] = 0.8 * u[t - 1] + rng.standard_normal()
    y = 10 + x @ [3.0, 6.0] + u
    theirs = SARIMAX(y[:300], exog=x[:300], order=(1, 0, 0), trend="c").fit(disp=False)
    ours, without = (Forecaster(horizon=H, width=4, depth=1, epochs=2).fit(y[:300], one) for one in (x[:300], None))
    found, _ = ours.backtest(y[300:], covariates=x[300:])
    wanted = []
    for t in range(300, n - H, 3):
        after = theirs.apply(y[:t], exog=x[:t])
        wanted.append(after.forecast(H, exog=x[t : t + H]))
    different = [
        np.sqrt(np.mean((one[: n - H - 300 : 3] - wanted) ** 2)) for one in (found, without.backtest(y[300:])[0])
    ]
    assert different[0] < 2 * np.sqrt(15 / 300)
    assert different[1] > 1
    assert ours.form_.effects is not None
    np.testing.assert_allclose(ours.form_.effects[:, 0], theirs.params[1:3], rtol=0, atol=0.5)
