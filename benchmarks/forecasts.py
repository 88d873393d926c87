"""Forecaster beside ridge regression and gradient boosting on lags, exponential smoothing and naive forecasts.

    PYTHONPATH=build/data python -m benchmarks.forecasts [--seeds N]

Four series of statsmodels (`make build/data/installed`), of which the last fifth is held out. Everything is fitted to
the first four fifths, with default settings, and forecasts from every later step with the data known there. Writes
benchmarks/results/forecasts.json and from it forecasts.md; takes minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.measure import RESULTS, origin
from benchmarks.record import record
from rotrnn.estimators import Forecaster
from rotrnn.training.results import markdown

Array = npt.NDArray[np.float64]

LAGS = 12, 24, 36
SHARE = 0.8
OURS, LINE = "Forecaster", "its linear part"


class Subject(NamedTuple):
    """A series, the number of steps that are forecast, and its seasons, 1 for none."""

    name: str
    y: Array
    horizon: int
    season: int


def subjects() -> Iterator[Subject]:
    from statsmodels import datasets

    def table(name: str) -> Any:
        return getattr(datasets, name).load_pandas().data

    monthly = table("co2")["co2"].resample("MS").mean().interpolate()
    yield Subject("CO2, ppm, monthly", np.asarray(monthly, float), 12, 12)
    yield Subject("sunspots, yearly", np.asarray(table("sunspots")["SUNACTIVITY"], float), 11, 1)
    degrees = table("elnino").set_index("YEAR").to_numpy(float).ravel()
    yield Subject("El Nino, degrees, monthly", degrees, 12, 12)
    yield Subject("log GDP, %, quarterly", 100 * np.log(np.asarray(table("macrodata")["realgdp"], float)), 4, 1)


def naive(one: Subject, origins: Array) -> Array:
    h = np.arange(1, one.horizon + 1)
    return np.asarray(one.y[origins[:, None] + h - one.season * -(-h // one.season)])


def by_lags(one: Subject, train: int, origins: Array, lags: int, regressor: Any, changes: bool) -> Array:
    """Forecasts of a regressor of scikit-learn that reads the last steps, or with `changes` their changes, to which
    trees, that predict nothing they have not seen, have to be fitted."""
    fitted = np.arange(lags - 1, train - one.horizon)
    later = one.y[fitted[:, None] + np.arange(1, one.horizon + 1)]
    read, last = (one.y[at[:, None] - np.arange(lags)] for at in (fitted, origins))
    if changes:
        there = regressor.fit(read[:, :-1] - read[:, 1:], later - read[:, :1])
        return np.asarray(last[:, :1] + there.predict(last[:, :-1] - last[:, 1:]))
    return np.asarray(regressor.fit(read, later).predict(last))


def smoothing(one: Subject, train: int, origins: Array) -> Array:
    """Forecasts by exponential smoothing with a damped trend and, where there are any, seasons."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    seasons: dict[str, Any] = {"seasonal": "add", "seasonal_periods": one.season} if one.season > 1 else {}

    def model(n: int) -> Any:
        return ETSModel(one.y[:n], trend="add", damped_trend=True, **seasons)

    params = model(train).fit(disp=False).params
    return np.stack([model(n + 1).smooth(params).forecast(one.horizon) for n in origins])


def measured(one: Subject, seeds: int) -> dict[str, Any]:
    """Mean absolute errors over all origins and steps that are there, and the share that intervals hold."""
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.linear_model import Ridge
    from sklearn.multioutput import MultiOutputRegressor

    n = len(one.y)
    train = n - n // 5
    origins: Any = np.arange(train - 1, n - 1)
    at = origins[:, None] + np.arange(1, one.horizon + 1)
    there, truth = at < n, one.y[np.minimum(at, n - 1)]

    def error(forecasts: Array) -> float:
        return float(np.abs(forecasts - truth)[there].mean())

    row: dict[str, Any] = {"series": one.name, "steps": n, "horizon": one.horizon, "seasons": one.season}
    errors = {"naive": error(naive(one, origins)), "exponential smoothing": error(smoothing(one, train, origins))}
    boosting = MultiOutputRegressor(GradientBoostingRegressor(random_state=0))
    for lags in LAGS:
        errors[f"boosting on {lags} lags"] = error(by_lags(one, train, origins, lags, boosting, True))
    for lags in LAGS:
        errors[f"ridge on {lags} lags"] = error(by_lags(one, train, origins, lags, Ridge(), False))
    each, held = [], []
    for seed in range(seeds):
        settings = {"horizon": one.horizon, "period": one.season, "random_state": seed}
        forecaster = Forecaster(**settings).fit(one.y[:train])  # type: ignore[arg-type]
        each.append(error(forecaster.backtest(one.y[train:])[0]))
        low, high = np.moveaxis(forecaster.backtest(one.y[train:], interval=SHARE)[0], -1, 0)
        held.append(float(((low <= truth) & (truth <= high))[there].mean()))
    errors[LINE] = error(forecaster.form_.base(one.y[:, None], origins)[..., 0])
    return row | {"errors": {**errors, OURS: float(np.mean(each))}, "each": each, "held": held}


def page(recorded: dict[str, Any]) -> str:
    """The table as Markdown."""
    came_from = recorded["origin"]
    lines = []
    names = list(recorded["rows"][0]["errors"])
    for name in names:
        line = {"mean absolute error": name}
        for row in recorded["rows"]:
            line[row["series"]] = f"{row['errors'][name]:.3g}"
        lines.append(line)
    best = {"mean absolute error": "Forecaster over the best other"}
    seeds = {"mean absolute error": "seeds of Forecaster, least and most"}
    held = {"mean absolute error": f"in its intervals of {SHARE:.0%}, least and most"}
    for row in recorded["rows"]:
        others = min(value for name, value in row["errors"].items() if name not in (OURS, LINE))
        best[row["series"]] = f"{row['errors'][OURS] / others:.2f}"
        seeds[row["series"]] = f"{min(row['each']):.3g} to {max(row['each']):.3g}"
        held[row["series"]] = f"{min(row['held']):.0%} to {max(row['held']):.0%}"
    sizes = ", ".join(f"{row['series']}: {row['steps']} steps, {row['horizon']} forecast" for row in recorded["rows"])
    return (
        "# Forecasts beside other methods\n\n"
        f"`{came_from['command']}`, commit {came_from['commit']}. The last fifth of each series is held out; forecasts "
        f"from each step of it with what is known there. {sizes}. Everything has default settings, but the number of "
        "steps, and where there are seasons their length; of lags, three numbers are shown.\n\n"
        f"{markdown([*lines, best, seeds, held])}"
    )


def write_up(recorded: dict[str, Any], folder: Path) -> None:
    """Writes forecasts.json, and from it forecasts.md, into the folder."""
    recorded = record(folder / "forecasts.json", recorded)
    (folder / "forecasts.md").write_text(page(recorded), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of Forecaster (3)")
    args = parser.parse_args()
    rows = []
    for one in subjects():
        rows.append(measured(one, args.seeds))
        print(rows[-1], flush=True)
    command = f"PYTHONPATH=build/data python -m benchmarks.forecasts --seeds {args.seeds}"
    write_up({"origin": {**origin(), "command": command}, "rows": rows}, RESULTS)


if __name__ == "__main__":
    main()
