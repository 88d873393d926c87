"""The estimator of forecasts."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from rotrnn._support.checkpoint import check_like, read_checkpoint, write_checkpoint
from rotrnn._support.files import check_file
from rotrnn._support.text import an
from rotrnn._support.warn import warn
from rotrnn.estimators.base import (
    Estimator,
    Numbers,
    all_or_nothing,
    check_regression,
    middle,
    number,
    rearranged,
    scaled,
    targets_of,
)
from rotrnn.models.files import described, made
from rotrnn.models.regressor import StepRegressor
from rotrnn.nn.layer import Recurrent, astype, flatten, unflatten
from rotrnn.ops.boundary import Boundary
from rotrnn.tasks import frames
from rotrnn.tasks.lags import Lags, chosen, effects
from rotrnn.tasks.own import check_span
from rotrnn.tasks.rules import Scale
from rotrnn.tasks.series import Form, Parts, Series, save_series
from rotrnn.tasks.task import Index
from rotrnn.training.recipe import check_causal

OUTSIDE = 8
"""Number of errors that should lie outside an interval: more would reach far back in time, fewer would leave it to
chance."""
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


class Past(NamedTuple):
    """A series y (n, V), its covariates x (n, C), its scale, the errors (n, horizon, V) of its forecasts, and what it
    was given as. In calls, y and x may go on."""

    y: Numbers
    x: Numbers | None
    scale: Scale
    errors: Numbers
    given: Any


def _named(name: str, key: Any) -> str:
    """Returns an argument by the name of a series, None of the only one."""
    return name if key is None else f"{name}[{key!r}]"


def _ends(pasts: list[Past]) -> Index:
    """Returns where all series but the last end, of series one after the other."""
    return np.asarray(np.cumsum([len(one.y) for one in pasts])[:-1])


class Forecaster(Estimator):
    """The next numbers of a time series of one or several variables, or of several series.

    `fit` takes a series y, (n,) or (n, V), or a dict of series, and covariates that are known in advance. The model
    reads a series step by step and predicts, at every step, the next `horizon` steps at once (directly), as corrections
    of a linear forecast (`rotrnn.tasks.lags.Lags`), or of one that repeats the last `period` steps
    (`rotrnn.tasks.series.Form`). `predict` reads the series in a stream and takes the model's output at its end; for
    more steps than `horizon`, the stream reads the forecasts in turn (recursively).

    With covariates x (n, C), their effects b, a regression of changes over a `period` (`rotrnn.tasks.lags.effects`),
    are taken from the series, and ``y - x b`` is forecast as a series without covariates is; to the forecast of a step
    the effects ``x b`` of the step are added. The model reads, besides, the covariates of the next step. So no forecast
    reads covariates of later steps than its own.

    Of several series, each is shifted and scaled to mean 0 and deviation 1 over its training part, and one linear
    forecast, one model and one b serve all; a variable that is constant there is forecast by its last `period` steps,
    or with period 0 by its mean. The order of the series has no effect. A single series in a dict is not scaled: its
    forecasts equal the forecasts of the series alone, to the bit.

    Parameters
    ----------
    horizon : int
        Number of steps that are predicted at once, and trained for.
    period : int
        The model corrects a forecast that repeats the last `period` steps: 1 repeats the last number, 12 the last year
        of monthly numbers; 0: it corrects nothing, for a series that stays around its mean. With `linear`, the changes
        that the model reads are over a period, and the linear forecast may read three of a period of more than 12.
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
        A `rotrnn.StepRegressor` and its parameters, for unscaled numbers; `form_` says what they read and predict.
    series_ : (n, V), or a dict of them
        The series.
    share_ : float
        Share of the corrections; the parameters contain it.
    errors_ : (n, horizon, V), or a dict of them
        Forecast minus number for the origins at which neither the linear forecast nor, in the held-out part, the model
        were fitted to these numbers; elsewhere NaN. `interval` of `predict` rests on them. The effects of covariates
        were fitted to all of the training part, so that its errors are a little too small if there are many covariates.
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

    @all_or_nothing
    def fit(self, y: Any, covariates: Any = None) -> Self:
        """Fits to a series (n,) or (n, V), an array or a frame of pandas or polars, or to a dict of such series of any
        lengths, by name.

        `covariates` (n,) or (n, C) are known in advance, such as prices or days off: rows for the same steps. If both
        are frames with dates, rows are found by date, and there may be more of them. Of a dict of series it is such a
        dict, or a frame with dates for all.

        ValueError if a series is too short, not of finite numbers, its dates do not increase, or covariates do not fit;
        the error names the series. A warning names the first dates between which rows are missing
        (`rotrnn.tasks.frames.gap`); all calls warn so.
        """
        where = f"{type(self).__name__}.fit"
        self._check(Boundary(where))
        self._several = isinstance(y, dict)
        if self._several and not y:
            raise ValueError(f"{where}: y is an empty dict, expected series by name")
        self._check_list(where, y)
        self._order = list(y) if self._several else [None]
        self._columns: Any = None
        self._pasts: dict[Any, Past] = {}
        own: dict[Any, tuple[Numbers, Numbers | None, Any]] = {}
        flats: list[bool] = []
        for key in sorted(self._order, key=repr):  # the order in the dict does not matter
            given = y[key] if self._several else y
            others = [(one[2], _named("y", other)) for other, one in own.items()]
            like, of = next((one for one in others if frames.names(one[0])), others[0] if others else (None, ""))
            series, flat = self._series("fit", _named("y", key), given, like, of)
            self._variables = series.shape[1]
            flats.append(flat)
            known = self._covariates("fit", key, covariates, given, len(series), 0)
            own[key] = series, known, frames.kept(frames.ordered(where, _named("y", key), given, like))
        self._warn_of_gap("fit", "y", {key: one[2] for key, one in own.items()})
        self._flat = all(flats)
        arrays, knowns, _ = zip(*own.values(), strict=True)
        names = tuple(str(key) for key in own) if self._several else None
        x = None if covariates is None else np.concatenate(knowns)
        held = self._share(max(map(len, arrays)))
        shared = self.linear and not self.quantiles  # then the later half decides the share
        with self._place() as path:
            save_series(path, Parts(np.concatenate(arrays), x, np.array([len(one) for one in arrays]), names))
            task = Series(
                str(path), horizon=self.horizon, period=self.period, levels=self.levels, linear=self.linear,
                window=self.window, val_fraction=held / (1 + shared), test_fraction=held * shared / 2,
            )  # fmt: skip
            loaded = task.load()
            split: Any = loaded.train
            check_span(f"{where}: what is read of y", split.read)
            recipe = self._recipe("fit", task, loaded, objective=self.objective, quantiles=self.quantiles)
            self._train(recipe, path.parent, loaded, split.inputs, split.targets)
        self.form_ = split.form
        nothing = np.zeros(0)
        self._pasts = {
            key: Past(series, known, scale, nothing, given)
            for (key, (series, known, given)), scale in zip(own.items(), split.scales, strict=True)
        }
        self._settle(split.steps, split.targets.divisor, shared)
        return self

    def _publish(self) -> None:
        """Sets the attributes of the series."""
        self.series_ = self._returned({key: one.y for key, one in self._pasts.items()})
        self.errors_ = self._returned({key: one.errors for key, one in self._pasts.items()})

    def _returned(self, found: dict[Any, Any]) -> Any:
        """Returns results of series as a dict in the order of the fit, or of the only series itself."""
        return {key: found[key] for key in self._order if key in found} if self._several else found[None]

    def _settle(self, train: Index, divisor: Numbers, shared: bool) -> None:
        """Chooses the share of the corrections by the model's corrections of later steps, after training on the first
        `train` steps of each series, in units of `divisor` (horizon V,), keeps the errors, and fits the effects of
        covariates and the linear forecast to all steps."""
        form, line, H = self.form_, self.form_.line, self._fitted.horizon
        pasts, V = list(self._pasts.values()), len(divisor) // self._fitted.horizon
        self.share_, errors = 1.0, [np.full((len(one.y), H, V), np.nan) for one in pasts]
        later = [i for i, one in enumerate(pasts) if train[i] < len(one.y)]
        if line is not None and (later or shared):  # else the errors of the model are not known
            for each, n, part in zip(errors, train, np.split(line.errors, np.cumsum(train)[:-1]), strict=True):
                each[:n] = part
        if line is not None and not later and shared:
            self.share_ = 0.0
            self._scale_corrections()
        if later:
            said, wanted = [], []
            for i in later:
                rest, origins = self._rest(pasts[i]), np.arange(train[i] - 1, len(pasts[i].y) - 1)
                wanted.append(form.targets(rest)[origins].reshape(-1, H, V))
                said.append(self._corrections(rest, pasts[i].x, origins)[..., middle(self._fitted.quantiles)])
            if line is not None and shared:
                self.share_ = share_of(*(np.concatenate(one) / divisor.reshape(H, V) for one in (said, wanted)))
                self._scale_corrections()
            for i, correction, target in zip(later, said, wanted, strict=True):
                errors[i][train[i] - 1 : -1] = self.share_ * correction - target
        found = self._refit(line, np.concatenate(errors))
        for (key, one), each in zip(self._pasts.items(), np.split(found, _ends(pasts)), strict=True):
            naive = -replace(self.form_, line=None).targets(one.scale(one.y)).reshape(each.shape)
            each = np.where((one.scale.std > 0) | np.isnan(each), each, naive)  # as `_whole` forecasts
            self._pasts[key] = one._replace(errors=each * one.scale.divisor)
        self._publish()

    def _scale_corrections(self) -> None:
        """Makes the share part of the parameters."""
        outputs = self._fitted.horizon * self._variables
        part = Scale(np.zeros(outputs), np.full(outputs, self.share_))
        self._params = scaled(self.model_, self._params, Scale.none(self._params["encoder"]["w"].shape[1]), part)
        self.params_ = astype(self._params, np.float32)

    def _refit(self, line: Lags | None, errors: Numbers) -> Numbers:
        """Chooses and fits the effects of covariates and the linear forecast again, by all steps: what the first ones
        told may not hold of the later ones. Where forecasts of some parts by the others are worse than naive ones, the
        weights of the line say nothing: the line that there was stays if it is better than naive, else, without
        corrections, the naive forecast takes its place. Returns the errors of all series one after the other."""
        pasts, form = list(self._pasts.values()), self.form_
        lengths = np.array([len(one.y) for one in pasts])
        if form.effects is not None:
            y = np.concatenate([one.scale(one.y) for one in pasts])
            x = np.concatenate([one.x for one in pasts if one.x is not None])
            form = self.form_ = replace(form, effects=effects(y, x, self._fitted.period, lengths))
        if line is None:
            return errors
        rests = [self._rest(one) for one in pasts]

        def errors_of_naive(y: Numbers) -> Numbers:
            found = self._naive(y, np.arange(len(y)))
            return np.asarray(found - (form.targets(y).reshape(found.shape) + form.base(y, np.arange(len(y)))))

        naive = np.concatenate([errors_of_naive(one) for one in rests])

        def helps(errors: Numbers) -> bool:
            there = ~np.isnan(errors + naive)
            return bool(np.isfinite(errors[there]).all() and np.abs(errors[there]).sum() <= np.abs(naive[there]).sum())

        new = chosen(np.concatenate(rests), self._fitted.horizon, self._fitted.period, lengths)
        if new is not None and helps(new.errors):
            self.form_ = replace(form, line=new)
        elif not self.share_ and not helps(errors):
            self.form_ = replace(form, line=None)
            return naive
        return errors

    def _naive(self, y: Numbers, origins: Index) -> Numbers:
        """Returns what repeats the last period, or with period 0 the last number, (origins, horizon, V)."""
        form = self._fitted
        return Form(form.horizon, form.period or 1, form.levels).naive(y, origins, form.horizon)

    def _rest(self, one: Past) -> Numbers:
        """Returns what the model and the linear forecast read: the scaled series without the effects of covariates."""
        return np.asarray(self.form_.rest(one.scale(one.y), one.x))

    def _corrections(self, rest: Numbers, x: Numbers | None, origins: Index) -> Numbers:
        """Returns what the model says at origins of a series, (origins, horizon, V, Q)."""
        said = self.model_.stream(self._params).push(self.form_.inputs(rest, x)[None])[0, origins]
        return np.asarray(said.reshape(len(origins), self._fitted.horizon, rest.shape[1], -1))

    def _whole(self, found: Numbers, one: Past, origins: Index) -> Numbers:
        """Returns forecasts (origins, horizon, V, Q) of a series, of forecasts of its rest. A variable that was
        constant in training has no unit for corrections, effects and the line, which all series share: its forecast is
        naive."""
        scale = one.scale
        naive = self.form_.naive(one.scale(one.y), origins, self._fitted.horizon)[..., None]
        found = np.where(scale.std[:, None] > 0, self.form_.expected(found, one.x, origins), naive)
        return rearranged(found * scale.divisor[:, None] + scale.mean[:, None])

    def _at(self, one: Past, origins: Index) -> Numbers:
        """Returns the forecasts at origins of a series, (origins, horizon, V, Q)."""
        rest = self._rest(one)
        found = self.form_.base(rest, origins)[..., None] + self._corrections(rest, one.x, origins)
        return self._whole(found, one, origins)

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

    def _check_list(self, where: str, y: Any) -> None:
        """Raises ValueError if y is a list of series instead of a dict."""
        if (
            not isinstance(y, list | tuple)
            or not y
            or not all(np.iterable(one) and not isinstance(one, str) for one in y)
        ):
            return
        lengths = {len(one) for one in y if hasattr(one, "__len__")}
        few = len(y) <= self.period + self.horizon and max(lengths, default=0) > len(y)
        if few or len(lengths) > 1 or any(map(frames.is_frame, y)):
            got = f"{an(type(y).__name__)} of {len(y)} sequences"
            raise ValueError(f"{where}: y is {got}, expected a series (n,) or (n, V), or a dict of series by name")

    def _series(self, call: str, name: str, y: Any, like: Any, of: str = "the fit") -> tuple[Numbers, bool]:
        """Returns a series (n, V), checked, and whether it was (n,). `like` is another one, or None, which errors call
        `of`."""
        where = f"{type(self).__name__}.{call}"
        if frames.is_frame(y):
            y = frames.ordered(where, name, y, like, of)
        given = frames.numbers_of(where, name, y) if frames.is_frame(y) else y
        row = partial(frames.row_name, y)
        array = targets_of(where, given, numbers=True, name=name, columns=frames.names(y), row=row)
        if like is not None and array.reshape(len(array), -1).shape[1] != self._variables:
            expected = f"(n, {self._variables}) as of {of}"
            raise ValueError(f"{where}: {name} has shape {array.shape}, expected {expected}")
        return array.reshape(len(array), -1), array.ndim == 1

    def _warn_of_gap(self, call: str, name: str, series: dict[Any, Any]) -> None:
        """Warns of the first of some series, as they were given, that lacks rows between its dates."""
        for key, given in series.items():
            if (found := frames.gap(given) if frames.is_frame(given) else None) is not None:
                where, (first, then) = f"{type(self).__name__}.{call}: {_named(name, key)}", found
                what = "rows are taken as equal steps, and a season is out of phase after the gap"
                how = "asfreq" if hasattr(given, "iloc") else "upsample"
                warn(f"{where} has no row between {first} and {then}; {what}: insert rows ({how}) and fill them")
                return

    def _covariates(self, call: str, key: Any, given: Any, y: Any, steps: int, ahead: int) -> Numbers | None:
        """Returns the covariates of the series `key`, (steps + ahead, C), checked: for the steps of y, a series as it
        was given (none of them with steps = 0), and for those that follow."""
        where, name = f"{type(self).__name__}.{call}", "covariates"
        if isinstance(given, dict):
            if not self._several:
                raise TypeError(f"{where}: covariates is a dict, expected an array or a frame, as there is one series")
            if unknown := [one for one in given if one not in self._order]:
                known = ", ".join(map(repr, self._order))
                raise ValueError(f"{where}: covariates has the series {unknown[0]!r}, expected some of {known:.200}")
            if key not in given:
                raise ValueError(f"{where}: covariates has no series {key!r}, expected one for each series")
            given, name = given[key], _named(name, key)
            if given is None and call == "fit":
                raise ValueError(f"{where}: {name} is None, expected an array or a frame")
        if call != "fit" and (given is None) != (self._columns is None):
            got = "None, expected those of these steps" if given is None else "given, expected None"
            raise ValueError(
                f"{where}: {name} is {got}, as the fit was {'without' if given is not None else 'with'} them"
            )
        if given is None:
            return None
        framed, of = frames.is_frame(given), "the fit" if call != "fit" else "other series"
        if framed:
            given = frames.ordered(where, name, given, self._columns, of)
        array, names = frames.numbers_of(where, name, given) if framed else given, frames.names(given)
        fitted = self._pasts[key].given if key in self._pasts else None
        rows = frames.rows(where, name, given, y, steps > 0, ahead, fitted) if framed else None
        if rows is not None and len(rows):  # what is in other rows does not matter
            array = array[rows]
        row = partial(frames.row_name, given, rows=rows)
        array = targets_of(where, array, numbers=True, name=name, columns=names, row=row)
        array, count = array.reshape(len(array), -1), len(array if rows is None else rows)
        if self._columns is None:
            self._known = array.shape[1]
        if self._columns is None or (call == "fit" and names and not frames.names(self._columns)):
            self._columns = array[:0] if names is None else frames.Named(names)
        if array.shape[1] != self._known:
            expected = f"(n, {self._known}) as of {of}"
            raise ValueError(f"{where}: {name} has shape {array.shape}, expected {expected}")
        if count != steps + ahead:
            parts = [f"{n} {what}" for n, what in ((steps, "of the series"), (ahead, "that are forecast")) if n]
            expected = f"{steps + ahead}, one for each step: {' and '.join(parts)}"
            raise ValueError(f"{where}: {name} has {count} rows, expected {expected}")
        return array

    def _like(self) -> Any:
        """Returns the fitted series that says the names of columns, or the first one if none has names."""
        given = [one.given for one in self._pasts.values()]
        return next((one for one in given if frames.names(one)), given[0])

    def _each(self, call: str, name: str, given: Any) -> dict[Any, Any]:
        """Returns later series by the names of those that were fitted, None of the only one."""
        where = f"{type(self).__name__}.{call}"
        if not self._several:
            if isinstance(given, dict):
                raise TypeError(f"{where}: {name} is a dict, expected an array or a frame, as was fitted")
            return {None: given}
        if not isinstance(given, dict) or not given:
            raise TypeError(f"{where}: {name} is {an(type(given).__name__)}, expected a dict of series, as was fitted")
        if unknown := [key for key in given if key not in self._pasts]:
            known = ", ".join(repr(key) for key in self._order)
            raise ValueError(f"{where}: {name} has the series {unknown[0]!r}, expected some of {known:.200}")
        return given

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
        covariates: Any = None,
        after: Any = None,
        quantiles: bool = False,
        interval: float | None = None,
    ) -> Any:
        """Returns the forecast (steps,), or (steps, V), of the steps after the series: an array, or of a frame such a
        frame with the index, or the column of dates, that follows, if it has equal steps (`rotrnn.tasks.frames`).
        Quantiles and intervals are arrays. Of several series it is a dict of forecasts.

        Parameters
        ----------
        steps : int, optional
            Number of steps; `horizon` if not given. More than that are forecast from forecasts.
        covariates : (steps,) or (steps, C), optional
            Covariates of the steps that are forecast, if `fit` had covariates; with `after`, (m + steps, C): first the
            covariates of its m steps. The forecast of a step depends on the covariates up to that step alone. Frames
            and several series as of `fit`.
        after : series, optional
            Another series of the same variables to go on from, such as the fitted series with newer numbers at its end.
            For several series a dict of some; only these are forecast.
        quantiles : bool
            Return all quantiles, (..., Q), in order; ValueError with another objective. Beyond `horizon` they follow
            forecasts of the middle quantile: their spread is then too small.
        interval : float, optional
            Return the ends (..., 2) of intervals that should hold this share of later numbers, for at most `horizon`
            steps: the forecast less and plus a quantile of its errors at recent origins, as many as leave eight
            outside, 40 for 0.8 (split conformal prediction: Vovk et al. 2005, section 4.1). The errors are the series'
            own `errors_` and, where `after` begins with the fitted series, the errors since. The share holds on
            average, for steps like earlier steps.
        """
        self._check_fitted("predict")
        self._check_quantiles("predict", quantiles)
        self._check_interval("predict", interval, quantiles)
        H = self._fitted.horizon
        later = dict.fromkeys(self._pasts) if after is None else self._each("predict", "after", after)
        steps = H if steps is None else Boundary(f"{type(self).__name__}.predict").integer("steps", steps, 1)
        if interval is not None and steps > H:
            expected = f"at most the horizon, {H}, with interval"
            raise ValueError(f"{type(self).__name__}.predict: steps is {steps}, expected {expected}")
        found = {}
        for key, given in later.items():
            past = one = self._pasts[key]
            if after is None:
                x = self._covariates("predict", key, covariates, past.given, 0, steps)
                one = past._replace(x=None if x is None or past.x is None else np.concatenate([past.x, x]))
            else:
                y, _ = self._series("predict", _named("after", key), given, self._like())
                x = self._covariates("predict", key, covariates, given, len(y), steps)
                one = past._replace(y=y, x=x)
            forecasts = self._forecast(one, steps)
            if interval is not None:
                found[key] = self._with_interval(key, past, one, forecasts, interval)
                continue
            shaped, whole = self._shaped(forecasts, quantiles), past.given if after is None else given
            if frames.is_frame(whole) and not quantiles:
                ordered = frames.ordered("Forecaster.predict", "after", whole, self._like())
                shaped = frames.like(ordered, shaped, past.given)
            found[key] = shaped
        if after is not None:
            self._warn_of_gap("predict", "after", later)
        return self._returned(found)

    def _forecast(self, one: Past, steps: int) -> Numbers:
        """Returns the forecasts (steps, V, Q) of the steps after a series, whose covariates go on."""
        y, read = one.y, 0
        found: list[Numbers] = []
        stream = self.model_.stream(self._params)
        while self._fitted.horizon * len(found) < steps:
            one = one._replace(y=y)
            rest, last = self._rest(one), np.array([len(y) - 1])
            said = stream.push(self.form_.inputs(rest, one.x)[None, read:])[:, -1]
            said = said.reshape(1, self._fitted.horizon, y.shape[1], -1)
            found.append(self._whole(self.form_.base(rest, last)[..., None] + said, one, last)[0])
            read, y = len(y), np.concatenate([y, found[-1][..., middle(self._fitted.quantiles)]])
        return np.concatenate(found)[:steps]

    def _with_interval(self, key: Any, past: Past, one: Past, forecasts: Numbers, interval: float) -> Numbers:
        """Returns the ends of intervals about the forecasts of the steps after a series, which may go on after the
        fitted series."""
        n, m = len(past.y), len(one.y)
        goes_on = m > n and np.array_equal(one.y[:n], past.y)
        goes_on = goes_on and (past.x is None or one.x is None or np.array_equal(one.x[:n], past.x))
        errors = self._errors(past, one) if goes_on else past.errors
        width = self._spread("predict", errors, (m if goes_on else n) - 1, interval, key)
        return self._interval(forecasts, width[: len(forecasts)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole forecaster to one file, which `load` reads: settings, model, linear forecast, series,
        covariates and errors, in float64, so that it forecasts the same bits. It is a safetensors file with a checksum,
        and has no code. Dates are not in it: a loaded forecaster returns arrays, unless `after` is a frame.

        Raises
        ------
        ValueError
            It is not fitted, a layer is of your own and not in `rotrnn.LAYERS`, or columns or series have names that
            are neither texts nor integers.
        OSError
            The file cannot be written.
        """
        self._check_fitted("save")
        call = f"{type(self).__name__}.save"
        check_file(call, path)
        pasts, columns, known_columns = list(self._pasts.values()), frames.names(self._like()), self._columns
        of_covariates = frames.names(known_columns)
        for what, some in (("series has the column", columns), ("covariates has the column", of_covariates)):
            if wrong := [name for name in some or () if not isinstance(name, str | int)]:
                raise ValueError(f"{call}: the {what} {wrong[0]!r:.80}, expected a text or an integer")
        order, names = ([_plain(key) for key in keys] for keys in (self._order, self._pasts))
        if self._several and (wrong := [key for key in order if type(key) not in (str, int)]):
            raise ValueError(f"{call}: a series has the name {wrong[0]!r:.80}, expected a text or an integer")
        errors, line = np.concatenate([one.errors for one in pasts]), self.form_.line
        known = ~np.isnan(errors)
        arrays = {"series": np.concatenate([one.y for one in pasts])}
        arrays |= {"errors": np.where(known, errors, 0), "known": known}
        arrays |= {f"params.{name}": one for name, one in flatten(self._params)}
        if line is not None:
            arrays |= {"line.mean": line.inputs.mean, "line.std": line.inputs.std}
            arrays |= {"line.weights": line.weights, "line.means": line.means}
        if self.form_.effects is not None:
            arrays |= {"effects": self.form_.effects}
            arrays |= {"covariates": np.concatenate([one.x for one in pasts if one.x is not None])}
        if self._several:
            arrays |= {"lengths": np.array([len(one.y) for one in pasts])}
            arrays |= {"means": np.stack([one.scale.mean for one in pasts])}
            arrays |= {"stds": np.stack([one.scale.std for one in pasts])}
        fitted = {"flat": self._flat, "share": self.share_, "columns": columns, "result": self.result_}
        if self._several:
            fitted |= {"names": names, "order": order}
        if of_covariates is not None:
            fitted["covariates"] = of_covariates
        facts = {
            "settings": {name: _plain(value) for name, value in vars(self._fitted).items() if name != "folder"},
            "model": described(self.model_),
            "line": None if line is None else {"size": line.size, "penalty": line.penalty},
            "fitted": fitted,
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
            check_like(path, arrays, one._arrays_like(arrays))
            one._split(arrays)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            text = str(error)
            raise ValueError(text if text.startswith(f"{path}:") else f"{path}: {text}") from error
        return one

    @classmethod
    def _read(cls, arrays: dict[str, Numbers], facts: dict[str, Any]) -> Self:
        """Returns the forecaster of a file, without its series."""
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
        one.form_ = Form(one.horizon, one.period, one.levels, effects=arrays.get("effects"))
        if line is not None:
            inputs = Scale(arrays["line.mean"], arrays["line.std"])
            of_line = line["size"], one.horizon, line["penalty"], inputs, arrays["line.weights"], arrays["line.means"]
            one.form_ = replace(one.form_, line=Lags(*of_line))
        one.share_, one._flat = float(fitted["share"]), bool(fitted["flat"])
        one._several, names = "names" in fitted, fitted.get("names", [None])
        one._order = fitted["order"] if one._several else names
        if not names or sorted(names, key=repr) != sorted(one._order, key=repr) or len(set(names)) < len(names):
            raise ValueError(f"series have the names {names!r:.80} in the order {one._order!r:.80}")
        given = arrays["series"][:0] if fitted["columns"] is None else frames.Named(fitted["columns"])
        nothing = arrays["series"][:0]
        one._pasts = {key: Past(nothing, None, Scale.none(1), nothing, given) for key in names}
        one._columns = None
        if "covariates" in arrays:
            named = "covariates" in fitted
            one._columns = frames.Named(fitted["covariates"]) if named else arrays["covariates"][:0]
            one._known = arrays["covariates"].shape[1]
        one.result_ = fitted["result"]
        one.n_iter_ = one.result_["steps"]
        return one

    def _arrays_like(self, arrays: dict[str, Numbers]) -> dict[str, Numbers]:
        """Returns arrays of the shapes and dtypes that the arrays of a file have."""
        n, V = arrays["series"].shape
        H, S, line = self._fitted.horizon, len(self._pasts), self.form_.line
        shapes: dict[str, tuple[int, ...]] = {"series": (n, V), "errors": (n, H, V)}
        if line is not None:
            L = line.size * V
            shapes |= {"line.mean": (L,), "line.std": (L,), "line.weights": (L, H * V), "line.means": (H * V,)}
        if self.form_.effects is not None:
            C = arrays["covariates"].shape[1]
            shapes |= {"effects": (C, V), "covariates": (n, C)}
        if self._several:
            shapes |= {"means": (S, V), "stds": (S, V)}
        like = {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}
        like["known"] = np.broadcast_to(False, (n, H, V))
        if self._several:
            like["lengths"] = np.broadcast_to(0, (S,))
        return like | {f"params.{name}": one for name, one in flatten(self._params)}

    def _split(self, arrays: dict[str, Numbers]) -> None:
        """Takes the series of a file apart."""
        y, x = arrays["series"], arrays.get("covariates")
        n, self._variables = y.shape
        lengths = arrays.get("lengths", np.array([n]))
        if lengths.min() < 1 or int(lengths.astype(object).sum()) != n:
            raise ValueError(f"lengths is {lengths.tolist()!r:.80}, expected positive numbers whose sum is {n}")
        errors, ends = np.where(arrays["known"], arrays["errors"], np.nan), np.cumsum(lengths)[:-1]
        each = zip(self._pasts.items(), np.split(y, ends), np.split(errors, ends), strict=True)
        knowns = [None] * len(lengths) if x is None else np.split(x, ends)
        for i, ((key, one), own, of_own) in enumerate(each):
            scale = Scale(arrays["means"][i], arrays["stds"][i]) if self._several else Scale.none(self._variables)
            given = one.given if isinstance(one.given, frames.Named) else own
            self._pasts[key] = Past(own, knowns[i], scale, of_own, given)
        self._publish()

    def _check_interval(self, call: str, interval: float | None, quantiles: bool) -> None:
        where = f"{type(self).__name__}.{call}: interval is {interval!r}"
        if interval is not None and not 0 < number(interval) < 1:
            raise ValueError(f"{where}, expected a number between 0 and 1, or None")
        if interval is not None and quantiles:
            raise ValueError(f"{where} with quantiles, expected one of the two")

    def _errors(self, past: Past, one: Past) -> Numbers:
        """Returns the errors (m, horizon, V) in a series that begins with the fitted one: its errors, and where they
        have no number because it ended, the errors of its forecasts; NaN where the series ends."""
        n, m, H = len(past.y), len(one.y), self._fitted.horizon
        forecasts = self._at(one, np.arange(m))[..., middle(self._fitted.quantiles)]
        at = np.arange(m)[:, None] + np.arange(1, H + 1)
        made = np.where(((n <= at) & (at < m))[..., None], forecasts - one.y[np.minimum(at, m - 1)], np.nan)
        made[:n] = np.where(np.isnan(past.errors), made[:n], past.errors)
        return made

    def _spread(self, call: str, errors: Numbers, origin: int, share: float, key: Any = None) -> Numbers:
        """Returns the half widths (horizon, V) of intervals for an origin, by the errors that are known at it."""
        width = np.empty(errors.shape[1:])
        of_series = "" if key is None else f" of the series {key!r}"
        for h, v in np.ndindex(*width.shape):
            known = np.abs(errors[: max(origin - h, 0), h, v])
            known = np.sort(known[~np.isnan(known)][-math.ceil(OUTSIDE / (1 - share)) :])
            if not len(known):
                expected = f"None: no forecast {h + 1} steps ahead{of_series} was held out (validation_fraction)"
                raise ValueError(f"{type(self).__name__}.{call}: interval is {share!r}, expected {expected}")
            if (place := math.ceil((len(known) + 1) * share)) > len(known):
                k, digits = len(known), 10 ** (len(str(len(known))) + 1)  # rounded down, so that it is one that holds
                most = f"at most {digits * k // (k + 1) / digits}: {k} errors are known {h + 1} steps ahead{of_series}"
                raise ValueError(f"{type(self).__name__}.{call}: interval is {share!r}, expected {most}")
            width[h, v] = known[place - 1]
        return width

    def _interval(self, forecasts: Numbers, width: Numbers) -> Numbers:
        """Returns the ends of intervals about forecasts (..., V, Q)."""
        mid = forecasts[..., middle(self._fitted.quantiles)]
        return self._shaped(np.stack([mid - width, mid + width], -1), True)

    def backtest(
        self, y: Any, *, covariates: Any = None, quantiles: bool = False, interval: float | None = None
    ) -> tuple[Any, Any]:
        """Returns forecasts of a series y (m,) or (m, V) that follows the fitted one, from every step, and naive ones.

        `covariates` (m,) or (m, C) belong to its steps. Of several series, y is a dict of some, and the results are
        dicts.

        Returns
        -------
        forecasts, naive : (m, horizon) or (m, horizon, V)
            Row i has the forecasts of y[i], y[i + 1], ... from all numbers before y[i]; with covariates NaN for steps
            after y, whose covariates are not known. naive repeats the last `period` steps. With `quantiles`, forecasts
            have a last axis Q; with `interval`, they are the ends of intervals, as in `predict`, by the errors known
            before y[i].
        """
        self._check_fitted("backtest")
        self._check_quantiles("backtest", quantiles)
        self._check_interval("backtest", interval, quantiles)
        forecasts, naives = {}, {}
        for key, one in self._continued("backtest", y, covariates).items():
            past = self._pasts[key]
            n, m = len(past.y), len(one.y)
            found, naive = self._backtest(past, one)
            naives[key] = naive[..., 0] if self._flat else naive
            if interval is None:
                forecasts[key] = self._shaped(found, quantiles)
                continue
            errors = self._errors(past, one)
            width = [self._spread("backtest", errors, origin, interval, key) for origin in range(n - 1, m - 1)]
            forecasts[key] = self._interval(found, np.stack(width))
        return self._returned(forecasts), self._returned(naives)

    def _continued(self, call: str, y: Any, covariates: Any) -> dict[Any, Past]:
        """Returns the fitted series with what follows them."""
        found, each = {}, self._each(call, "y", y)
        for key, given in each.items():
            past = self._pasts[key]
            later, _ = self._series(call, _named("y", key), given, self._like())
            x = self._covariates(call, key, covariates, given, len(later), 0)
            known = None if x is None or past.x is None else np.concatenate([past.x, x])
            found[key] = past._replace(y=np.concatenate([past.y, later]), x=known)
        self._warn_of_gap(call, "y", each)
        return found

    def _backtest(self, past: Past, one: Past) -> tuple[Numbers, Numbers]:
        """Returns what `backtest` does of a series that begins with the fitted one, forecasts (m, horizon, V, Q) and
        naive ones (m, horizon, V)."""
        origins = np.arange(len(past.y) - 1, len(one.y) - 1)
        return self._at(one, origins), self._naive(one.y, origins)

    def score(self, y: Any, *, covariates: Any = None) -> float:
        """Returns the skill on a series that follows the fitted one: 1 - (mean absolute error) / (mean absolute error
        of the naive forecast), over all steps and the whole horizon. 0 is as good as naive, 1 is perfect. Of several
        series it is the mean of their skills."""
        self._check_fitted("score")
        skills = []
        for key, one in self._continued("score", y, covariates).items():
            found, naive = self._backtest(self._pasts[key], one)
            later = one.y[len(self._pasts[key].y) :]
            at = np.arange(len(later))[:, None] + np.arange(self._fitted.horizon)
            there, truth = at < len(later), later[np.minimum(at, len(later) - 1)]
            errors = [
                np.abs(each - truth)[there].mean() for each in (found[..., middle(self._fitted.quantiles)], naive)
            ]
            skills.append(float(1 - errors[0] / errors[1]) if errors[1] else 0.0)
        return float(np.mean(skills))
