"""Forecasts with covariates that are known in advance, and of several series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LinearRegression

from rotrnn.estimators import Forecaster
from rotrnn.nn.layer import astype
from rotrnn.tasks import Series
from rotrnn.tasks.lags import Lags, chosen, effects
from rotrnn.tasks.series import save_series

QUICK: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 2}
NOISE = 0.5
B = np.array([[3.0], [-2.0], [5.0]])


def known(n: int, seed: int = 0) -> Any:
    """Prices that wander, the temperature, and days off, (n, 3)."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.standard_normal(n).cumsum() / 5, rng.standard_normal(n), rng.random(n) < 0.1], 1).astype(float)


def sold(n: int, noise: float = NOISE, seed: int = 0) -> tuple[Any, Any]:
    x = known(n, seed)
    return 10 + (x @ B)[:, 0] + noise * np.random.default_rng(seed + 1).standard_normal(n), x


# ---- covariates ----


@pytest.mark.parametrize("period", [0, 1, 7])
def test_effects_are_a_regression_of_changes(period: int) -> None:
    """Of scikit-learn; the changes of two series are within each. Both solve a system of a condition below 100."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)).cumsum(0), rng.standard_normal((60, 2))
    y += x @ rng.standard_normal((3, 2))
    lengths = np.array([25, 35])
    changes = [
        [one[t] - one[t - period] if period else one[t] for a, b in ((0, 25), (25, 60)) for t in range(a + period, b)]
        for one in (x, y)
    ]
    theirs = LinearRegression().fit(*map(np.array, changes)).coef_.T
    np.testing.assert_allclose(effects(y, x, period, lengths), theirs, rtol=0, atol=1e-12)


def test_covariates_that_say_nothing_or_the_same_have_the_least_effects() -> None:
    """A line, whose changes are the same, has none, and each of two equal ones half."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50)
    found = effects(4 * x[:, None], np.stack([np.arange(50.0), x, x, np.ones(50)], 1), 1)
    np.testing.assert_allclose(found[:, 0], [0, 2, 2, 0], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="covariates has 5 columns, expected fewer than the 5 changes to fit to"):
        effects(np.zeros((6, 1)), np.zeros((6, 5)), 1)


@pytest.mark.parametrize("settings", [{}, {"linear": False}, {"period": 0}])
def test_a_function_of_covariates_and_noise_is_forecast_to_the_noise(settings: dict[str, Any]) -> None:
    """The mean absolute error of 150 forecasts is that of the noise, 0.8 deviations of it with a standard error of
    0.6 / sqrt(150) of a deviation; the fit to 350 steps, of 12 lags, adds less than a tenth, and a naive forecast of
    the last number, which has noise of its own, a factor of sqrt(2). Without covariates, it is far more."""
    y, x = sold(500)
    one = Forecaster(horizon=3, validation_fraction=0.0, **settings, **{**QUICK, "epochs": 10}).fit(y[:350], x[:350])
    found, _ = one.backtest(y[350:], covariates=x[350:])
    most = NOISE * (np.sqrt(2 / np.pi) + 3 * 0.6 / np.sqrt(150)) * 1.1
    if settings == {"linear": False}:
        most *= np.sqrt(2)
    assert np.abs(found[:, 0] - y[350:]).mean() < most
    without, _ = Forecaster(horizon=3, **settings, **QUICK).fit(y[:350]).backtest(y[350:])
    assert np.abs(without[:, 0] - y[350:]).mean() > 3 * most
    if "linear" not in settings:  # by least squares that know that there is nothing else
        theirs = LinearRegression().fit(x[:350], y[:350]).predict(x[350:])
        assert np.abs(found[:, 0] - y[350:]).mean() < 1.1 * np.abs(theirs - y[350:]).mean()


def test_a_function_of_covariates_alone_is_forecast_exactly() -> None:
    y, x = sold(120, noise=0)
    one = Forecaster(horizon=4, **QUICK).fit(y[:100], x[:100])
    np.testing.assert_allclose(one.predict(20, covariates=x[100:]), y[100:], rtol=0, atol=1e-9)


def test_forecasts_with_covariates_are_those_of_a_loop() -> None:
    """What the linear forecast and the model say of the series without the effects, and then the effects."""
    y, x = sold(160)
    y = np.stack([y, np.random.default_rng(5).standard_normal(160).cumsum() - x[:, 1]], 1)
    one = Forecaster(horizon=3, linear=True, objective="quantile", quantiles=(0.5,), **QUICK).fit(y[:140], x[:140])
    b = one.form_.effects
    assert b is not None
    assert one.form_.line is not None
    rest = y - x @ b
    read = np.concatenate([np.diff(rest, axis=0, prepend=rest[:1]), rest, x[np.minimum(np.arange(1, 161), 159)]], 1)
    said, _ = one.model_.forward(astype(one._params, np.float64), read[None])
    found, _ = one.backtest(y[140:], covariates=x[140:])
    for i, t in enumerate(range(139, 159)):
        for h in range(3):
            if t + 1 + h >= 160:
                assert np.isnan(found[i, h]).all()
                continue
            line = one.form_.line(rest, np.array([t]))[0, h]
            expected = line + said[0, t].reshape(3, 2)[h] + x[t + 1 + h] @ b
            np.testing.assert_allclose(found[i, h], expected, rtol=0, atol=1e-9)


def test_forecasts_from_each_step_are_those_of_a_backtest() -> None:
    y, x = sold(120)
    one = Forecaster(horizon=3, **QUICK).fit(y[:100], x[:100])
    found, naive = one.backtest(y[100:], covariates=x[100:])
    bounds, _ = one.backtest(y[100:], covariates=x[100:], interval=0.5)
    for i in (0, 5, 17):
        settings = {"after": y[: 100 + i], "covariates": x[: 103 + i]}
        np.testing.assert_allclose(found[i], one.predict(**settings), rtol=1e-9)
        np.testing.assert_allclose(bounds[i], one.predict(interval=0.5, **settings), rtol=1e-9)
        np.testing.assert_array_equal(naive[i], y[[99 + i] * 3])
    errors = [abs(found[i, h] - y[100 + i + h]) for i in range(20) for h in range(min(3, 20 - i))]
    theirs = [abs(naive[i, h] - y[100 + i + h]) for i in range(20) for h in range(min(3, 20 - i))]
    assert abs(one.score(y[100:], covariates=x[100:]) - (1 - np.mean(errors) / np.mean(theirs))) < 1e-12
    # recursively: what is forecast stands for what was
    long = one.predict(7, covariates=x[100:107])
    after = np.concatenate([y[:100], long[:3]])
    np.testing.assert_allclose(one.predict(4, after=after, covariates=x[:107]), long[3:], rtol=1e-9)


def test_no_forecast_reads_covariates_of_later_steps() -> None:
    """Other covariates at one step change the forecasts of this step, and none of steps before."""
    y, x = sold(120)
    one = Forecaster(horizon=4, **{**QUICK, "epochs": 5}, linear=False).fit(y[:100], x[:100])
    before, _ = one.backtest(y[100:], covariates=x[100:])
    for j in (0, 7, 19):
        other = x[100:].copy()
        other[j] += 3.0
        after, _ = one.backtest(y[100:], covariates=other)
        when = np.arange(20)[:, None] + np.arange(4)
        np.testing.assert_array_equal(after[when < j], before[when < j])
        assert (after[when == j] != before[when == j]).all()
    four = one.predict(4, covariates=x[100:104])
    for k in (1, 2, 3):
        np.testing.assert_array_equal(one.predict(k, covariates=x[100 : 100 + k]), four[:k])


def test_the_recurrence_reads_the_covariates_of_the_next_step() -> None:
    """The size of a number around 0 is no linear function of it: its effect is next to nothing."""
    x = np.random.default_rng(0).standard_normal((500, 1))
    y = np.abs(x[:, 0])
    one = Forecaster(**{**QUICK, "width": 8, "epochs": 30, "learning_rate": 0.02}).fit(y[:400], x[:400])
    found, _ = one.backtest(y[400:], covariates=x[400:])
    assert one.share_ > 0.5
    assert np.abs(found[:, 0] - y[400:]).mean() < 0.5 * np.abs(y[400:] - y[:400].mean()).mean()


def test_intervals_with_covariates_hold_their_share() -> None:
    """Of 250 forecasts, 0.8 with a deviation of 0.025, and one of 0.06 by the 40 errors of a quantile."""
    y, x = sold(500)
    one = Forecaster(**QUICK).fit(y[:250], x[:250])
    low, high = np.moveaxis(one.backtest(y[250:], covariates=x[250:], interval=0.8)[0][:, 0], -1, 0)
    assert abs(np.mean((low <= y[250:]) & (y[250:] <= high)) - 0.8) < 3 * np.hypot(0.025, 0.06 / np.sqrt(250 / 40))
    widths = (high - low).mean()
    low, high = np.moveaxis(Forecaster(**QUICK).fit(y[:250]).backtest(y[250:], interval=0.8)[0][:, 0], -1, 0)
    assert widths < 0.4 * (high - low).mean()


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        (
            "fit",
            {"covariates": np.zeros((59, 2))},
            "fit: covariates has 59 rows, expected 60, one for each step: 60 of",
        ),
        ("fit", {"covariates": [np.nan] * 60}, "fit: Input covariates contains NaN"),
        ("fit", {"covariates": np.zeros((60, 59))}, "fit: covariates has 59 columns, expected fewer than the 47"),
        ("fit", {"covariates": {"a": 1}}, "fit: covariates is a dict, expected an array or a frame"),
        ("predict", {}, "predict: covariates is None, expected those of these steps, as the fit was with"),
        (
            "predict",
            {"covariates": np.zeros((2, 2))},
            "predict: covariates has 2 rows, expected 3, one for each step: 3",
        ),
        ("predict", {"covariates": np.zeros((63, 2))}, "predict: covariates has 63 rows, expected 3, one for each"),
        ("predict", {"covariates": np.zeros(3)}, r"predict: covariates has shape \(3, 1\), expected \(n, 2\) as of"),
        (
            "predict",
            {"after": np.zeros(5), "covariates": np.zeros((3, 2))},
            "predict: covariates has 3 rows, expected 8, one for each step: 5 of the series and 3 that are forecast",
        ),
        (
            "backtest",
            {"y": np.zeros(5), "covariates": np.zeros((8, 2))},
            "backtest: covariates has 8 rows, expected 5,",
        ),
        ("score", {"y": np.zeros(5)}, "score: covariates is None, expected those of these steps, as the fit was with"),
    ],
)
def test_covariates_that_do_not_fit(method: str, arguments: dict[str, Any], message: str) -> None:
    one, rng = Forecaster(horizon=3, **QUICK), np.random.default_rng(0)
    data = {"y": rng.standard_normal(60), "covariates": rng.standard_normal((60, 2))}
    if method != "fit":
        one.fit(**data)
    with pytest.raises((TypeError, ValueError), match=f"^Forecaster.{message}"):
        getattr(one, method)(**({**data, **arguments} if method == "fit" else arguments))


def test_without_covariates_none_are_taken() -> None:
    one = Forecaster(**QUICK).fit(np.arange(40.0))
    with pytest.raises(ValueError, match="predict: covariates is given, expected None, as the fit was without them"):
        one.predict(covariates=[1.0])


# ---- several series ----


def waves(lengths: Any = (90, 60, 75), seed: int = 0) -> dict[str, Any]:
    """Waves of very different sizes, by name."""
    rng = np.random.default_rng(seed)
    return {
        f"s{i}": 10.0**i * (i + np.sin(np.arange(n) * np.pi / 6 + i) + 0.2 * rng.standard_normal(n))
        for i, n in enumerate(lengths)
    }


def said(one: Forecaster, key: str, later: Any) -> list[Any]:
    found = [one.predict(5), one.predict(interval=0.5), *one.backtest({key: later}), one.errors_, one.series_]
    return [np.asarray(each[key]) for each in found]


def test_one_series_among_several_is_the_series_alone() -> None:
    y = waves()["s1"]
    alone, one = Forecaster(horizon=3, **QUICK).fit(y[:50]), Forecaster(horizon=3, **QUICK).fit({"a": y[:50]})
    expected = [alone.predict(5), alone.predict(interval=0.5), *alone.backtest(y[50:]), alone.errors_, alone.series_]
    for mine, theirs in zip(said(one, "a", y[50:]), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one.score({"a": y[50:]}) == alone.score(y[50:])


def test_the_order_of_series_changes_nothing_else() -> None:
    y = waves()
    one, other = (Forecaster(horizon=2, **QUICK).fit(each) for each in (y, dict(reversed(y.items()))))
    assert list(one.predict()) == list(y)
    assert list(other.predict()) == list(reversed(y))
    for key in y:
        for mine, theirs in zip(said(one, key, y[key][:9]), said(other, key, y[key][:9]), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_each_series_is_forecast_in_its_own_scale() -> None:
    """A power of two times one series, which is exact, is that times its forecasts and intervals, and nothing else."""
    y = waves()
    one, other = (Forecaster(horizon=2, **QUICK).fit(each) for each in (y, {**y, "s1": 64 * y["s1"]}))
    for key in y:
        for mine, theirs in zip(said(other, key, 0 * y[key][:9]), said(one, key, 0 * y[key][:9]), strict=True):
            np.testing.assert_array_equal(mine, (64 if key == "s1" else 1) * theirs)


@pytest.mark.parametrize(
    "settings",
    [{}, {"linear": False}, {"period": 7}, {"period": 0}, {"objective": "quantile", "quantiles": (0.1, 0.5)}],
)
def test_a_constant_series_among_others_stays_constant(settings: dict[str, Any]) -> None:
    """To the bit, in every call; after another level it stays there, but with period 0 about its mean. The effects of
    covariates, which are of other units, do not move it either."""
    rng, x = np.random.default_rng(0), known(120)
    wave = 50 + rng.standard_normal(120).cumsum()
    y = {"a": np.stack([wave, wave[::-1]], 1), "c": np.stack([np.full(120, 1e-6), wave], 1)}
    one = Forecaster(horizon=3, **settings, **QUICK).fit(y, {"a": x, "c": x})
    later = {"c": np.array([[1e-6, 50.0]] * 4)}
    np.testing.assert_array_equal(one.predict(5, covariates={"a": x[:5], "c": x[:5]})["c"][:, 0], 1e-6)
    np.testing.assert_array_equal(one.backtest(later, covariates={"c": x[:4]})[0]["c"][..., 0], 1e-6)
    ends = one.predict(covariates={"a": x[:3], "c": x[:3]}, interval=0.5)
    np.testing.assert_array_equal(ends["c"][:, 0], 1e-6)
    assert (ends["c"][:, 1, 0] < ends["c"][:, 1, 1]).all()
    moved = one.predict(5, after={"c": np.full((20, 2), 5.0)}, covariates={"c": x[:25]})["c"][:, 0]
    np.testing.assert_array_equal(moved, 1e-6 if one.period == 0 else (5 - 1e-6) + 1e-6)


def test_a_linear_forecast_of_many_short_series() -> None:
    """None of them is long enough alone; the fit is that of all of them, without a step from one to the next."""
    rng, n = np.random.default_rng(0), 30
    rows = [rng.standard_normal(n) for _ in range(12)]
    assert chosen(rows[0][:, None], 2, 1) is None
    line = chosen(np.concatenate(rows)[:, None], 2, 1, np.full(12, n))
    assert line is not None
    assert line.size == 12  # of 24 steps, no more origins are left beside a block than a horizon
    origins = np.concatenate([i * n + np.arange(line.size - 1, n - 2) for i in range(12)])
    again = Lags.fit(np.concatenate(rows)[:, None], line.size, 2, line.penalty, origins)
    np.testing.assert_array_equal(line.weights, again.weights)
    there = ~np.isnan(line.errors[:, 0, 0]).reshape(12, n)
    assert (there == ((np.arange(n) >= 11) & (np.arange(n) < n - 2))).all()
    block = np.concatenate([i * n + 11 + np.arange(4) for i in range(12)])  # the first of five, of 17 origins
    others = np.concatenate([i * n + np.arange(15 + 2, n - 2) for i in range(12)])
    again = Lags.fit(np.concatenate(rows)[:, None], 12, 2, line.penalty, others)
    made = again(np.concatenate(rows)[:, None], block)[..., 0]
    wanted = np.stack([np.concatenate(rows)[block + h] for h in (1, 2)], 1)
    np.testing.assert_allclose(line.errors[block, :, 0], made - wanted, rtol=0, atol=1e-9)
    one = Forecaster(horizon=2, **QUICK).fit({str(i): row for i, row in enumerate(rows)})
    assert one.form_.line is not None


def test_many_short_series_tell_together_what_none_does_alone() -> None:
    """An autoregression, whose best forecast is known; each series has a mean and a size of its own, and is too short
    for a linear forecast alone. A mean of 24 steps and 12 weights of 20 x 18 origins add about a twentieth each to the
    square of the error, so that it is some 5 % larger than the best one on the same steps; three times that is
    allowed. The naive forecast errs twice as much as the best."""
    rng, phi, n = np.random.default_rng(0), -0.5, 30
    u = np.zeros((20, n + 10))
    for t in range(1, n + 10):
        u[:, t] = phi * u[:, t - 1] + rng.standard_normal(20)
    sizes, means = 10.0 ** rng.uniform(-2, 3, (20, 1)), rng.uniform(-50, 50, (20, 1))
    y = {str(i): row for i, row in enumerate(means + sizes * u)}
    one = Forecaster(**QUICK).fit({name: row[:n] for name, row in y.items()})
    assert one.form_.line is not None
    found, naive = one.backtest({name: row[n:] for name, row in y.items()})
    errors = [np.stack([each[name][:, 0] - y[name][n:] for name in y]) / sizes for each in (found, naive)]
    best = np.abs(phi * u[:, n - 1 : -1] - u[:, n:]).mean()
    assert np.abs(errors[0]).mean() < 1.15 * best
    assert np.abs(errors[1]).mean() > 1.5 * best
    skills = [1 - np.abs(a).mean() / np.abs(b).mean() for a, b in zip(*errors, strict=True)]
    assert abs(one.score({name: row[n:] for name, row in y.items()}) - np.mean(skills)) < 1e-9


def test_windows_do_not_go_from_one_series_to_the_next(tmp_path: Path) -> None:
    """Each target is of its own series and in one part; of a series shorter than a window the rest is left out."""
    y, H = waves((50, 12, 30)), 2
    lengths = np.array([50, 12, 30])
    whole = np.concatenate(list(y.values()))
    np.savez(tmp_path / "y.npz", y=whole, lengths=lengths, names=np.array(list(y)))
    task = Series(str(tmp_path / "y.npz"), horizon=H, window=20, val_fraction=0.1, test_fraction=0.2).load()
    begin, train = np.cumsum(lengths) - lengths, [35, 9, 21]
    bounds: Any = ([0, 0, 0], train, [40, 10, 24], lengths)
    counted = np.zeros((3, len(whole)), int)
    for part, split in enumerate((task.train, task.val, task.test)):
        assert isinstance(split, type(task.train))
        one: Any = split
        for i in range(len(one)):
            inputs, labels, _ = one.batch(np.array([i]), np.float64)
            s = int(np.searchsorted(begin, one.start[i], side="right")) - 1
            for step, h in zip(*np.nonzero(~np.isnan(labels[0])), strict=True):
                t = one.start[i] - begin[s] + step
                own = y[f"s{s}"]
                assert bounds[part][s] <= t + 1 + h < bounds[part + 1][s]
                scaled = (own - own[: train[s]].mean()) / own[: train[s]].std()
                level = inputs[0, step, 1] * one.inputs.std[1] + one.inputs.mean[1]
                assert abs(level - scaled[t]) < 1e-9
                target = labels[0, step, h] * one.targets.std[h] + one.targets.mean[h]
                assert abs(target - (scaled[t + 1 + h] - scaled[t])) < 1e-9
                counted[part, begin[s] + t] += h == 0
    for s in range(3):
        for part in (1, 2):
            low, high = bounds[part][s], bounds[part + 1][s]
            assert (counted[part, begin[s] + low - 1 : begin[s] + high - 1] == 1).all()
    assert counted[0, begin[1] + 1 : begin[1] + 8].all()  # from the first change on


def test_covariates_of_several_series() -> None:
    """Of each its own; effects are those on scaled series. One that is a function of them is forecast to rounding."""
    a, x_a = sold(90, noise=0)
    y, x = {"a": a, "b": 8 * a - 5}, {"a": x_a, "b": x_a}
    one = Forecaster(horizon=3, **QUICK)
    one.fit({name: each[:-10] for name, each in y.items()}, {name: each[:-10] for name, each in x.items()})
    last = {name: each[-10:] for name, each in x.items()}
    found = one.predict(10, covariates=last)
    for name, each in found.items():
        np.testing.assert_allclose(each, y[name][-10:], rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match=r"predict: covariates\['b'\] has 9 rows, expected 10, one for each step"):
        one.predict(10, covariates={**last, "b": last["b"][1:]})
    with pytest.raises(ValueError, match="predict: covariates has no series 'b', expected one for each series"):
        one.predict(10, covariates={"a": last["a"]})


@pytest.mark.parametrize(
    ("method", "y", "message"),
    [
        ("fit", {}, "y is an empty dict, expected series by name"),
        ("fit", {"a": np.arange(40.0), "b": [1.0, np.nan]}, r"Input y\['b'\] contains NaN"),
        ("fit", {"a": np.arange(40.0), "b": np.arange(2.0)}, "series 'b': 2 of 2 steps are for training, expected at"),
        (
            "fit",
            {"a": np.ones(40), "b": np.ones((40, 2))},
            r"y\['b'\] has shape \(40, 2\), expected \(n, 1\) as of y\['a'",
        ),
        ("backtest", {"s7": np.ones(5)}, "y has the series 's7', expected some of 's0', 's1', 's2'"),
        ("backtest", np.ones(5), "y is an ndarray, expected a dict of series, as was fitted"),
        (
            "score",
            {"s1": np.ones((5, 2))},
            r"y\['s1'\] has shape \(5, 2\), expected \(n, 1\) as of the fit",
        ),
    ],
)
def test_series_that_do_not_go_together(method: str, y: Any, message: str) -> None:
    one = Forecaster(**QUICK)
    if method != "fit":
        one.fit(waves())
    with pytest.raises((TypeError, ValueError), match=f"^Forecaster.{method}: {message}"):
        getattr(one, method)(y)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("lengths", [(40, 40), (40, 30), (40, 40, 40)])
def test_a_list_of_series_is_refused(kind: Any, lengths: tuple[int, ...]) -> None:
    """A list of rows is one series, as any list of numbers is."""
    y = kind(np.arange(float(n)) for n in lengths)
    with pytest.raises(
        ValueError, match=rf"^Forecaster.fit: y is a {kind.__name__} of {len(y)} sequences, expected a s"
    ):
        Forecaster(**QUICK, horizon=3).fit(y)
    rows = np.random.default_rng(0).standard_normal((40, 2))
    found = Forecaster(**QUICK).fit(kind(rows)).predict()
    np.testing.assert_array_equal(found, Forecaster(**QUICK).fit(rows).predict())


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        ({"a": None, "b": np.ones(40)}, r"covariates\['a'\] is None, expected an array or a frame"),
        ({"a": np.ones(40), "b": None}, r"covariates\['b'\] is None, expected an array or a frame"),
        (
            {"a": np.ones(40), "b": np.ones(40), "bb": np.ones(40)},
            "covariates has the series 'bb', expected some of 'a'",
        ),
    ],
)
def test_a_dict_of_covariates_has_one_for_each_series(covariates: Any, message: str) -> None:
    y = np.random.default_rng(0).standard_normal(40)
    with pytest.raises(ValueError, match=f"^Forecaster.fit: {message}"):
        Forecaster(**QUICK).fit({"a": y, "b": y}, covariates)
    one = Forecaster(**QUICK).fit({"a": y})
    with pytest.raises(ValueError, match=r"^Forecaster.predict: after\['a'\] is None, expected numbers \(n,\) or"):
        one.predict(after={"a": None})


def test_objects_that_hold_arrays_are_named() -> None:
    """SciPy's sparse arrays, and what has methods of polars' LazyFrame."""

    class LazyFrame:
        def collect_schema(self) -> None: ...

    for y, name, way in (
        (csr_array(np.ones((40, 1))), "csr_array", "an array, by .toarray"),
        (LazyFrame(), "LazyFrame", "a DataFrame, by .collect"),
    ):
        message = rf"^Forecaster.fit: {{}} is a {name}, expected {way}\(\)$"
        with pytest.raises(TypeError, match=message.format("y")):
            Forecaster(**QUICK).fit(y)
        with pytest.raises(TypeError, match=message.format("covariates")):
            Forecaster(**QUICK).fit(np.arange(40.0), y)


def test_a_dict_after_one_series_is_refused() -> None:
    with pytest.raises(TypeError, match="predict: after is a dict, expected an array or a frame, as was fitted"):
        Forecaster(**QUICK).fit(np.arange(40.0)).predict(after={"a": np.arange(4.0)})


def test_an_interval_of_a_series_with_few_errors_names_it() -> None:
    one = Forecaster(**QUICK).fit(waves((90, 20, 90)))
    with pytest.raises(ValueError, match=r"interval is 0.9, expected at most 0\.\d+: \d+ errors are .* series 's1'"):
        one.predict(interval=0.9)
    assert list(one.predict(interval=0.5)) == ["s0", "s1", "s2"]


# ---- files ----


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("settings", [{}, {"linear": False, "period": 3}])
def test_forecasts_of_what_was_saved_are_the_same_bits(tmp_path: Path, several: bool, settings: dict[str, Any]) -> None:
    data = {key: sold(n, seed=key) for key, n in ((2, 90), (1, 60))}
    y, x = ({key: one[i][:-9] for key, one in data.items()} for i in (0, 1))
    later, more = ({key: one[i][-9:] for key, one in data.items()} for i in (0, 1))
    if not several:
        y, x, later, more = y[2], x[2], later[2], more[2]
    one = Forecaster(**QUICK, horizon=3, **settings).fit(y, x)
    one.save(tmp_path / "one.safetensors")
    joblib.dump(one, tmp_path / "one.joblib")

    def results(fitted: Forecaster) -> list[Any]:
        bounds = fitted.backtest(later, covariates=more, interval=0.5)[0]
        found = [fitted.predict(9, covariates=more), *fitted.backtest(later, covariates=more), bounds]
        return [*found, fitted.errors_, fitted.series_]

    for again in (Forecaster.load(tmp_path / "one.safetensors"), joblib.load(tmp_path / "one.joblib")):
        for mine, theirs in zip(results(again), results(one), strict=True):
            if several:
                assert list(mine) == list(theirs) == [2, 1]
            for key in y if several else [...]:
                np.testing.assert_array_equal(mine[key], theirs[key])
        again.save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()
        assert again.score(later, covariates=more) == one.score(later, covariates=more)


def test_a_file_does_not_depend_on_the_byte_order(tmp_path: Path) -> None:
    y, x = sold(60, seed=1)
    for name, order in (("native", "="), ("big", ">")):
        given = (one.astype(one.dtype.newbyteorder(order)) for one in (y, x))
        Forecaster(**QUICK, horizon=3).fit(*given).save(tmp_path / name)
    assert (tmp_path / "big").read_bytes() == (tmp_path / "native").read_bytes()
    Forecaster.load(tmp_path / "big")


def test_a_table_with_covariates_of_several_series(tmp_path: Path) -> None:
    """Rows of a series in their order, whatever lies between them; as the file of arrays that it writes."""
    rng = np.random.default_rng(0)
    shops = np.repeat(["b", "a"], [30, 25])
    rows = rng.permutation(55)
    place = {name: iter(np.sort(np.flatnonzero(shops[rows] == name))) for name in "ab"}
    y, x = rng.standard_normal(55), rng.standard_normal((55, 2))
    lines = [""] * 55
    for name, one, (price, off) in zip(shops, y, x, strict=True):
        lines[next(place[name])] = f"{name},{one!r},{price!r},{off!r}\n"
    path = tmp_path / "shops.csv"
    path.write_text("shop,sold,price,off\n" + "".join(lines).replace("np.float64(", "").replace(")", ""), "utf-8")
    task = Series(str(path), columns=("sold",), covariates=("price", "off"), sequence="shop", horizon=2, window=10)
    parts = task._parts()
    assert parts.names == ("a", "b")
    assert parts.lengths.tolist() == [25, 30]
    np.testing.assert_array_equal(parts.y[:, 0], [*y[30:], *y[:30]])
    np.testing.assert_array_equal(parts.x, [*x[30:], *x[:30]])
    save_series(tmp_path / "y.npz", parts)
    again = Series(str(tmp_path / "y.npz"), horizon=2, window=10).load()
    for mine, theirs in zip(again.train.batch(np.arange(3)), task.load().train.batch(np.arange(3)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(
        ValueError, match=r"Series: sequence is 'shop', expected '' with a file \.npz, whose arrays say so"
    ):
        Series(str(tmp_path / "y.npz"), sequence="shop").load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariates": np.zeros((9, 1))}, "has covariates of 9 rows, expected 20 as of y"),
        ({"covariates": np.full((20, 1), np.nan)}, "has covariates of shape .* and dtype float64, expected finite"),
        ({"lengths": np.array([9, 9])}, "has lengths of sum 18, expected the 20 steps of y"),
        ({"lengths": np.array([20, 0])}, "has lengths of shape .*, expected positive integers"),
        ({"lengths": np.array([2**63 - 1, 2**63 - 1, 22])}, "has lengths of sum"),
        ({"lengths": np.array([12, 8]), "names": np.array(["a"])}, "has names of shape .*, expected a text for each"),
        ({"y": np.zeros(0)}, "has y of shape"),
        ({"lengths": np.array([20]), "names": np.full(1, 2**31, np.uint32).view("<U1")}, "has names that are no texts"),
        ({"covariates": np.arange(20) * 1e-300}, "covariates: column 0 spans 1.9e-299, expected at least 1e-34"),
    ],
)
def test_files_of_series_that_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "y.npz", **{"y": np.arange(20.0), **change})
    with pytest.raises(ValueError, match=f"y.npz: {message}"):
        Series(str(tmp_path / "y.npz")).load()


def test_names_of_series_that_are_integers_of_numpy(tmp_path: Path) -> None:
    """As pandas' groupby has them; other names are refused."""
    y = dict(zip(np.array([10, 9]), waves().values(), strict=False))
    one = Forecaster(**QUICK).fit(y)
    one.save(tmp_path / "one.safetensors")
    again = Forecaster.load(tmp_path / "one.safetensors")
    assert list(again.predict()) == [10, 9]
    np.testing.assert_array_equal(again.predict()[10], one.predict()[10])
    np.testing.assert_array_equal(
        again.predict(after={np.int64(9): y[9][:40]})[9], one.predict(after={9: y[9][:40]})[9]
    )
    named = Forecaster(**QUICK).fit({("a", 1): y[9]})
    with pytest.raises(ValueError, match=r"save: a series has the name .*'a', 1.*, expected a text or an integer"):
        named.save(tmp_path / "other.safetensors")
