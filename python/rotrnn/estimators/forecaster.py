"""The estimator of forecasts."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rotrnn._support.checkpoint import check_like, read_checkpoint, write_checkpoint
from rotrnn._support.files import atomic_file, check_file
from rotrnn._support.text import an
from rotrnn.estimators.base import (
    Estimator,
    Numbers,
    check_regression,
    middle,
    number,
    scaled,
    targets_of,
)
from rotrnn.models.files import described, made
from rotrnn.models.regressor import StepRegressor
from rotrnn.nn.layer import Recurrent, astype, flatten, unflatten
from rotrnn.ops.boundary import Boundary
from rotrnn.tasks import frames
from rotrnn.tasks.lags import Lags, chosen
from rotrnn.tasks.own import Scale, check_span
from rotrnn.tasks.series import Form, Series
from rotrnn.tasks.task import Index
from rotrnn.training.recipe import check_causal

OUTSIDE = 8
"""Number of the errors that are to lie outside an interval: more are of another time, with fewer it is by chance."""
FORMAT = 1
"""Version of the files of `Forecaster.save`."""


def _plain(value: Any) -> Any:
    """Returns a setting in the form of JSON."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value.item() if isinstance(value, np.generic) else described(value)


def share_of(said: Numbers, wanted: Numbers) -> float:
    """Returns which share of corrections (origins, horizon, V), from 0 to 1, to add to forecasts whose targets less
    forecasts are `wanted`, NaN where there is none.

    It is ``b - 3 s``, of the least squares b of wanted on said, both less their means over origins: what is wrong by
    the same number all the time follows from the choice of the time, not from what the model read. s is the standard
    error of b, from sums over blocks of as many origins as the horizon, in which errors overlap. Corrections that help
    by chance where origins are few spoil what comes later, so three of them are taken off.
    """
    there = ~np.isnan(wanted)
    counts = np.maximum(there.sum(0), 1)
    x, y = (np.where(there, one - np.where(there, one, 0).sum(0) / counts, 0) for one in (said, wanted))
    square = float((x * x).sum())
    if not square:
        return 0.0
    b = float((x * y).sum()) / square
    scores = (x * (y - b * x)).sum((1, 2))
    blocks = np.array_split(scores, max(len(scores) // said.shape[1], 2))
    error = math.sqrt(sum(float(block.sum()) ** 2 for block in blocks)) / square
    return float(np.clip(b - 3 * error, 0, 1))


class Forecaster(Estimator):
    """The next numbers of a time series of one or several variables.

    `fit` takes a series y, (n,) or (n, V). The model reads it step by step and predicts, at every step, the next
    `horizon` steps at once (directly), as corrections of a linear forecast (`rotrnn.tasks.lags.Lags`), or of one that
    repeats the last `period` steps (`rotrnn.tasks.series.Form`). `predict` reads the series in a stream and takes what
    the model says at its end; for more steps than `horizon`, the stream reads the forecasts in turn (recursively).

    Parameters
    ----------
    horizon : int
        Number of steps that are predicted at once, and trained for.
    period : int
        What is corrected: 1 the forecast of the last number, 12 of monthly numbers that of the last year; 0: none, for
        a series that stays around its mean. With `linear`, the changes that the model reads are over a period, and the
        linear forecast may read three of a period of more than 12.
    levels : bool
        Read the numbers beside their changes over a period. Without them a trend may go on beyond what was seen.
    linear : bool
        Correct the ridge regression on the last 12, 24 or 36 steps, in closed form. Parts of the series that it was not
        fitted to choose its settings; then it is fitted to the whole. The first half of the held-out part decides
        which of the model's parameters are kept, and the whole of it which share of the corrections is added
        (`share_of`): 0 where the series is linear, or too short to tell, or nothing is held out. Quantiles need all of
        them, and the first half is then the whole. A series of fewer than some 40 steps is forecast as without a linear
        forecast.
    window : int
        Steps of the pieces of the series that training reads; 0: half of it, at most 256.
    objective, quantiles
        As of `SequenceRegressor`.
    layer, ...
        As of `Estimator`; `validation_fraction` is the last part of the series, a fifth if it is not given. `save` and
        `load` keep the whole; ``model_.save`` writes the corrections alone.

    Attributes
    ----------
    model_, params_
        A `rotrnn.StepRegressor` and its parameters, which read and predict what `form_` says, as it is.
    series_ : (n, V)
        The series.
    share_ : float
        Share of the corrections; the parameters contain it.
    errors_ : (n, horizon, V)
        Forecast minus number for the origins at which neither the linear forecast nor, in the held-out part, the model
        were fitted to these numbers; elsewhere NaN. `interval` of `predict` rests on them.
    """

    def __init__(
        self,
        layer: str | Recurrent = "lru",
        *,
        horizon: int = 1,
        period: int = 1,
        levels: bool = True,
        linear: bool = True,
        window: int = 0,
        objective: str = "mse",
        quantiles: tuple[float, ...] | None = None,
        validation_fraction: float = 0.2,
        **settings: Any,
    ) -> None:
        super().__init__(layer, validation_fraction=validation_fraction, **settings)
        self.horizon = horizon
        self.period = period
        self.levels = levels
        self.linear = linear
        self.window = window
        self.objective = objective
        self.quantiles = quantiles

    def fit(self, y: Any) -> Self:
        """Fits to a series (n,) or (n, V), an array or a frame of pandas or polars. ValueError if it is too short, not
        of finite numbers, or its dates do not increase."""
        self._check(Boundary(f"{type(self).__name__}.fit"))
        series, self._flat = self._series("fit", y)
        self._given = frames.kept(y)
        held = self._share(len(series))
        shared = self.linear and not self.quantiles  # then the later half decides the share
        with self._place() as path:
            with atomic_file(path) as file:
                np.savez(file, y=series)
            task = Series(
                str(path), horizon=self.horizon, period=self.period, levels=self.levels, linear=self.linear,
                window=self.window, val_fraction=held / (1 + shared), test_fraction=held * shared / 2,
            )  # fmt: skip
            loaded = task.load()
            own: Any = loaded.train
            check_span(f"{type(self).__name__}.fit: what is read of y", own.read)
            recipe = self._recipe(task, loaded, objective=self.objective, quantiles=self.quantiles)
            self._train(recipe, path.parent, loaded, own.inputs, own.targets)
        self.form_, self.series_ = own.form, series
        self._settle(own.steps, own.targets.divisor, shared)
        return self

    def _settle(self, train: int, divisor: Numbers, shared: bool) -> None:
        """Chooses the share of the corrections by what the model, trained on the first `train` steps, says of later
        ones, in units of `divisor` (horizon V,), keeps the errors, and fits the linear forecast to all steps."""
        y, form, line = self.series_, self.form_, self.form_.line
        n, V = y.shape
        self.share_, self.errors_ = 1.0, np.full((n, self._fitted.horizon, V), np.nan)
        if line is not None and (train < n or shared):  # else the errors of the model are not known
            self.errors_[:train] = line.errors
        if line is not None and train == n and shared:
            self.share_ = 0.0
            self._scale_corrections()
        if train < n:
            origins = np.arange(train - 1, n - 1)
            wanted = form.targets(y)[origins].reshape(-1, self._fitted.horizon, V)
            said = self._corrections(y, origins)[..., middle(self._fitted.quantiles)]
            if line is not None and shared:
                self.share_ = share_of(*(one / divisor.reshape(self._fitted.horizon, V) for one in (said, wanted)))
                self._scale_corrections()
            self.errors_[origins] = self.share_ * said - wanted
        if line is not None:
            self._refit(line)

    def _scale_corrections(self) -> None:
        """Makes the share part of the parameters."""
        outputs = self._fitted.horizon * self.series_.shape[1]
        part = Scale(np.zeros(outputs), np.full(outputs, self.share_))
        self._params = scaled(self.model_, self._params, Scale.none(self._params["encoder"]["w"].shape[1]), part)
        self.params_ = astype(self._params, np.float32)

    def _refit(self, line: Lags) -> None:
        """Chooses and fits the linear forecast again, by all steps: what the first ones told may not hold of the later
        ones. Where forecasts of some parts by the others are worse than naive ones, its weights say nothing: the line
        that there was stays if it is better than naive, else, without corrections, the naive forecast takes its
        place."""
        y, form = self.series_, self.form_
        naive = self._naive(y, np.arange(len(y)))
        naive -= form.targets(y).reshape(naive.shape) + form.base(y, np.arange(len(y)))

        def helps(errors: Numbers) -> bool:
            there = ~np.isnan(errors + naive)
            return bool(np.isfinite(errors[there]).all() and np.abs(errors[there]).sum() <= np.abs(naive[there]).sum())

        new = chosen(y, self._fitted.horizon, self._fitted.period)
        if new is not None and helps(new.errors):
            self.form_ = replace(form, line=new)
        elif not self.share_ and not helps(self.errors_):
            self.form_ = replace(form, line=None)
            self.errors_ = naive

    def _naive(self, y: Numbers, origins: Index) -> Numbers:
        """Returns what repeats the last period, or with period 0 the last number, (origins, horizon, V)."""
        form = self._fitted
        return Form(form.horizon, form.period or 1, form.levels).naive(y, origins, form.horizon)

    def _corrections(self, y: Numbers, origins: Index) -> Numbers:
        """Returns what the model says at origins of a series, (origins, horizon, V, Q)."""
        said = self.model_.stream(self._params).push(self.form_.inputs(y)[None])[0, origins]
        return np.asarray(said.reshape(len(origins), self._fitted.horizon, y.shape[1], -1))

    def _check(self, args: Boundary) -> None:
        super()._check(args)
        args.integer("horizon", self.horizon, 1)
        args.integer("period", self.period)
        args.integer("window", self.window)
        args.flag("linear", self.linear)
        if not (args.flag("levels", self.levels) or self.period):
            raise ValueError(f"{args.op}: levels is False with period 0, expected one of the two to read")
        check_regression(args, self.objective, self.quantiles)
        check_causal(f"{args.op}: ", Series(), self._layer(args))

    def _series(self, call: str, y: Any) -> tuple[Numbers, bool]:
        """Returns a series (n, V), checked, and whether it was (n,)."""
        where, name = f"{type(self).__name__}.{call}", "after" if call == "predict" else "y"
        if call != "fit" and frames.is_frame(y):
            y = frames.ordered(where, name, y, self._given)
        given = frames.numbers_of(where, name, y) if frames.is_frame(y) else y
        array = targets_of(where, given, numbers=True, name=name)
        if call != "fit" and array.reshape(len(array), -1).shape[1] != self.series_.shape[1]:
            expected = f"(n, {self.series_.shape[1]}) as of the series that was fitted"
            raise ValueError(f"{where}: {name} has shape {array.shape}, expected {expected}")
        return array.reshape(len(array), -1), array.ndim == 1

    def _check_quantiles(self, call: str, quantiles: bool) -> None:
        """Raises ValueError if quantiles are asked for, and there are none."""
        if quantiles and not self._fitted.quantiles:
            expected = "False, or a fit with objective 'quantile'"
            where = f"{type(self).__name__}.{call}: quantiles is {quantiles!r}"
            raise ValueError(f"{where} with objective {self._fitted.objective!r}, expected {expected}")

    def _shaped(self, forecasts: Numbers, quantiles: bool) -> Numbers:
        """Returns forecasts (..., V, Q) as they were asked for, without V if the series was (n,)."""
        found = forecasts if quantiles else forecasts[..., middle(self._fitted.quantiles)]
        at = -2 if quantiles else -1
        return np.asarray(found.take(0, at) if self._flat else found)

    def predict(
        self,
        steps: int | None = None,
        *,
        after: npt.ArrayLike | None = None,
        quantiles: bool = False,
        interval: float | None = None,
    ) -> Any:
        """Returns the forecast (steps,), or (steps, V), of what follows the series: an array, or of a frame such a
        frame with the index, or the column of dates, that follows, if it has equal steps (`rotrnn.tasks.frames`).
        Quantiles and intervals are arrays.

        Parameters
        ----------
        steps : int, optional
            Number of steps; `horizon` if not given. More than that are forecast from forecasts.
        after : series, optional
            Another series of the same variables to go on from, such as the fitted one with newer numbers at its end.
        quantiles : bool
            Return all quantiles, (..., Q); ValueError with another objective. Those beyond `horizon` are after
            forecasts of the middle one: their spread is then too small.
        interval : float, optional
            Return the ends (..., 2) of intervals that are to hold so large a share of what follows, for at most
            `horizon` steps: the forecast less and plus a quantile of its errors at recent origins, of which as many are
            taken as leave eight outside, 40 for 0.8 (split conformal prediction: Vovk et al. 2005, section 4.1). These
            are `errors_` and, where `after` begins with the fitted series, the errors since. The share holds on the
            average of steps that are like those before.
        """
        self._check_fitted("predict")
        self._check_quantiles("predict", quantiles)
        self._check_interval("predict", interval, quantiles)
        y = self.series_ if after is None else self._series("predict", after)[0]
        H, V = self._fitted.horizon, y.shape[1]
        steps = H if steps is None else Boundary(f"{type(self).__name__}.predict").integer("steps", steps, 1)
        if interval is not None and steps > H:
            expected = f"at most the horizon, {H}, with interval"
            raise ValueError(f"{type(self).__name__}.predict: steps is {steps}, expected {expected}")
        given = y
        stream, read = self.model_.stream(self._params), 0
        found: list[Numbers] = []
        while H * len(found) < steps:
            said = stream.push(self.form_.inputs(y)[None, read:])[0, -1].reshape(H, V, -1)
            found.append(self.form_.base(y, np.array([len(y) - 1]))[0, ..., None] + said)
            read, y = len(y), np.concatenate([y, found[-1][..., middle(self._fitted.quantiles)]])
        forecasts = np.concatenate(found)[:steps]
        if interval is not None:
            n = len(self.series_)
            goes_on = after is not None and np.array_equal(given[:n], self.series_)
            errors = self._errors(given, self._forecasts(given)) if goes_on else self.errors_
            width = self._spread("predict", errors, len(given) - 1 if goes_on else n - 1, interval)[:steps]
            return self._interval(forecasts, width)
        shaped, whole = self._shaped(forecasts, quantiles), self._given if after is None else after
        if not frames.is_frame(whole) or quantiles:
            return shaped
        return frames.like(frames.ordered("Forecaster.predict", "after", whole, self._given), shaped, self._given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole forecaster to one file, which `load` reads: settings, model, linear forecast, series and
        errors, in float64, so that it forecasts the same bits. It is a safetensors file with a checksum, and has no
        code. Dates are not in it: a loaded forecaster returns arrays, unless `after` is a frame.

        Raises
        ------
        ValueError
            It is not fitted, a layer is of your own and not in `rotrnn.LAYERS`, or columns have names that are neither
            texts nor integers.
        OSError
            The file cannot be written.
        """
        self._check_fitted("save")
        call = f"{type(self).__name__}.save"
        check_file(call, path)
        columns = frames.names(self._given)
        if wrong := [name for name in columns or () if not isinstance(name, str | int)]:
            raise ValueError(f"{call}: the series has the column {wrong[0]!r:.80}, expected a text or an integer")
        known, line = ~np.isnan(self.errors_), self.form_.line
        arrays = {"series": self.series_, "errors": np.where(known, self.errors_, 0), "known": known}
        arrays |= {f"params.{name}": one for name, one in flatten(self._params)}
        if line is not None:
            arrays |= {"line.mean": line.inputs.mean, "line.std": line.inputs.std}
            arrays |= {"line.weights": line.weights, "line.means": line.means}
        facts = {
            "settings": {name: _plain(value) for name, value in vars(self._fitted).items() if name != "folder"},
            "model": described(self.model_),
            "line": None if line is None else {"size": line.size, "penalty": line.penalty},
            "fitted": {"flat": self._flat, "share": self.share_, "columns": columns, "result": self.result_},
        }
        write_checkpoint(path, arrays, {"forecaster_format": FORMAT, "forecaster": facts})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a forecaster that `save` wrote. FileNotFoundError if there is no such file, ValueError if it is damaged
        or of another kind; the error names it."""
        check_file(f"{cls.__name__}.load", path)
        arrays, facts = read_checkpoint(path)
        if facts.get("forecaster_format") != FORMAT:
            raise ValueError(f"{path}: is not a forecaster, expected a file that Forecaster.save wrote")
        try:
            one = cls._read(arrays, facts["forecaster"])
            like = one._like()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        check_like(path, arrays, like)
        return one

    @classmethod
    def _read(cls, arrays: dict[str, Numbers], facts: dict[str, Any]) -> Self:
        """Returns the forecaster of a file."""
        settings, fitted, line = facts["settings"], facts["fitted"], facts["line"]
        quantiles, layer = settings["quantiles"], settings["layer"]
        settings["quantiles"] = None if quantiles is None else tuple(quantiles)
        settings["layer"] = layer if isinstance(layer, str) else made(layer, "layer")
        one = cls(**settings)
        one._check(Boundary(f"{cls.__name__}.load"))
        one._keep_settings()
        one.model_ = made(facts["model"], "model")
        if type(one.model_) is not StepRegressor:
            raise ValueError(f"model is {an(type(one.model_).__name__)}, expected a StepRegressor")
        prefix = "params."
        one._params = unflatten({name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)})
        one.model_.check_params(one._params)
        one.params_ = astype(one._params, np.float32)
        one.form_ = Form(one.horizon, one.period, one.levels)
        if line is not None:
            inputs = Scale(arrays["line.mean"], arrays["line.std"])
            of_line = line["size"], one.horizon, line["penalty"], inputs, arrays["line.weights"], arrays["line.means"]
            one.form_ = replace(one.form_, line=Lags(*of_line))
        one.series_, one.share_, one._flat = arrays["series"], float(fitted["share"]), bool(fitted["flat"])
        one.errors_ = np.where(arrays["known"], arrays["errors"], np.nan)
        one._given = one.series_ if fitted["columns"] is None else frames.Named(fitted["columns"])
        one.result_ = fitted["result"]
        one.n_iter_ = one.result_["steps"]
        return one

    def _like(self) -> dict[str, Numbers]:
        """Returns arrays of the shapes and dtypes that those of a file have."""
        n, V = self.series_.shape
        H, line = self._fitted.horizon, self.form_.line
        shapes: dict[str, tuple[int, ...]] = {"series": (n, V), "errors": (n, H, V)}
        if line is not None:
            L = line.size * V
            shapes |= {"line.mean": (L,), "line.std": (L,), "line.weights": (L, H * V), "line.means": (H * V,)}
        like = {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}
        like["known"] = np.broadcast_to(False, (n, H, V))
        return like | {f"params.{name}": one for name, one in flatten(self._params)}

    def _check_interval(self, call: str, interval: float | None, quantiles: bool) -> None:
        where = f"{type(self).__name__}.{call}: interval is {interval!r}"
        if interval is not None and not 0 < number(interval) < 1:
            raise ValueError(f"{where}, expected a number between 0 and 1, or None")
        if interval is not None and quantiles:
            raise ValueError(f"{where} with quantiles, expected one of the two")

    def _forecasts(self, y: Numbers) -> Numbers:
        """Returns the forecasts of the middle quantile at every step of a series, (n, horizon, V)."""
        origins = np.arange(len(y))
        corrections = self._corrections(y, origins)[..., middle(self._fitted.quantiles)]
        return np.asarray(self.form_.base(y, origins) + corrections)

    def _errors(self, y: Numbers, forecasts: Numbers) -> Numbers:
        """Returns the errors (m, horizon, V) in a series that begins with the fitted one: `errors_`, and where they
        have no number because it ended, those of its forecasts; NaN where y ends."""
        n, m, H = len(self.series_), len(y), self._fitted.horizon
        at = np.arange(m)[:, None] + np.arange(1, H + 1)
        made = np.where(((n <= at) & (at < m))[..., None], forecasts - y[np.minimum(at, m - 1)], np.nan)
        made[:n] = np.where(np.isnan(self.errors_), made[:n], self.errors_)
        return made

    def _spread(self, call: str, errors: Numbers, origin: int, share: float) -> Numbers:
        """Returns the half widths (horizon, V) of intervals for an origin, by the errors that are known at it."""
        width = np.empty(errors.shape[1:])
        for h, v in np.ndindex(*width.shape):
            known = np.abs(errors[: max(origin - h, 0), h, v])
            known = np.sort(known[~np.isnan(known)][-math.ceil(OUTSIDE / (1 - share)) :])
            if not len(known):
                expected = f"None: no forecast {h + 1} steps ahead was held out (validation_fraction)"
                raise ValueError(f"{type(self).__name__}.{call}: interval is {share!r}, expected {expected}")
            if (place := math.ceil((len(known) + 1) * share)) > len(known):
                k, digits = len(known), 10 ** (len(str(len(known))) + 1)  # rounded down, so that it is one that holds
                most = f"at most {digits * k // (k + 1) / digits}: {k} errors are known {h + 1} steps ahead"
                raise ValueError(f"{type(self).__name__}.{call}: interval is {share!r}, expected {most}")
            width[h, v] = known[place - 1]
        return width

    def _interval(self, forecasts: Numbers, width: Numbers) -> Numbers:
        """Returns the ends of intervals about forecasts (..., V, Q)."""
        mid = forecasts[..., middle(self._fitted.quantiles)]
        return self._shaped(np.stack([mid - width, mid + width], -1), True)

    def backtest(
        self, y: npt.ArrayLike, *, quantiles: bool = False, interval: float | None = None
    ) -> tuple[Numbers, Numbers]:
        """Returns forecasts of a series y (m,) or (m, V) that follows the fitted one, from every step, and naive ones.

        Returns
        -------
        forecasts, naive : (m, horizon) or (m, horizon, V)
            In row i what is forecast of y[i], y[i + 1], ... when all before y[i] is known; naive is what `period`
            repeats. With `quantiles`, forecasts have a last axis Q; with `interval`, they are the ends of intervals, as
            of `predict`, by the errors that are known when y[i] is not.
        """
        self._check_fitted("backtest")
        self._check_quantiles("backtest", quantiles)
        self._check_interval("backtest", interval, quantiles)
        later, _ = self._series("backtest", y)
        found, naive = self._backtest(later)
        naive = naive[..., 0] if self._flat else naive
        if interval is None:
            return self._shaped(found, quantiles), naive
        n = len(self.series_)
        whole = np.concatenate([self.series_, later])
        errors = self._errors(whole, self._forecasts(whole))
        width = np.stack([self._spread("backtest", errors, n - 1 + i, interval) for i in range(len(later))])
        return self._interval(found, width), naive

    def _backtest(self, later: Numbers) -> tuple[Numbers, Numbers]:
        """Returns what `backtest` does, forecasts (m, horizon, V, Q) and naive ones (m, horizon, V), of (m, V)."""
        whole = np.concatenate([self.series_, later])
        origins = np.arange(len(self.series_) - 1, len(whole) - 1)
        found = self.form_.base(whole, origins)[..., None] + self._corrections(whole, origins)
        return found, self._naive(whole, origins)

    def score(self, y: npt.ArrayLike) -> float:
        """Returns the skill on a series that follows the fitted one: 1 - (mean absolute error) / (that of the naive
        forecast), over all steps and all of the horizon. 0 is as good as naive, 1 is perfect."""
        self._check_fitted("score")
        later, _ = self._series("score", y)
        found, naive = self._backtest(later)
        at = np.arange(len(later))[:, None] + np.arange(self._fitted.horizon)
        there, truth = at < len(later), later[np.minimum(at, len(later) - 1)]
        errors = [np.abs(one - truth)[there].mean() for one in (found[..., middle(self._fitted.quantiles)], naive)]
        return float(1 - errors[0] / errors[1]) if errors[1] else 0.0
