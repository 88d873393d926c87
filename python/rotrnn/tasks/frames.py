"""Series given as frames: what pandas' and polars' know besides numbers, which goes on in forecasts.

Neither package is imported: what is there is found by the methods that its objects have.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from rotrnn.ops.boundary import on_host
from rotrnn.tasks.columns import Numbers
from rotrnn.tasks.task import Index


def is_frame(y: Any) -> bool:
    """Returns whether it is a Series or a DataFrame of pandas or polars."""
    return _of_pandas(y) or _of_polars(y)


def numbers_of(call: str, name: str, y: Any) -> Numbers:
    """Returns the numbers of a frame, the argument `name` of `call`: of the column, or all columns, of pandas; of
    polars, of all columns but the one with dates.

    Raises
    ------
    ValueError
        A column does not hold numbers, two have one name, dates are missing or not sorted, or there are two columns of
        dates.
    """
    _check_distinct(call, name, names(y) or [])
    if _of_polars(y):
        dated = _dated(call, name, y)
        dates = y[dated].to_numpy() if dated else ()
        missing = y[dated].is_null().to_numpy() if dated else np.zeros(0, bool)
        columns = [y[one] for one in y.columns if one != dated] if hasattr(y, "columns") else [y]
    else:
        index = _index(y, f"{call}: {name}")
        dates = index if hasattr(index, "asi8") else ()
        missing = np.asarray(index.isna()) if hasattr(index, "asi8") else np.zeros(0, bool)
        columns = [y.iloc[:, i] for i in range(y.shape[1])] if y.ndim == 2 else [y]
    if missing.any():
        raise ValueError(f"{call}: {name} has no date in row {int(missing.argmax())}, expected dates that increase")
    times = np.asarray(getattr(dates, "asi8", dates))
    if (wrong := np.flatnonzero(times[1:] <= times[:-1])).size:
        first, then = dates[wrong[0]], dates[wrong[0] + 1]
        raise ValueError(f"{call}: {name} has the date {then} after {first}, expected dates that increase")
    for one in columns:
        if not (_numeric(one.dtype) or (_of_pandas(y) and _holds_numbers(one))):
            gaps = one.isna().to_numpy() if _of_pandas(y) else np.zeros(0, bool)
            gap = f", without a value in row {row_name(y, int(gaps.argmax()))}" if gaps.any() else ""
            got = f"column {one.name!r} of dtype {one.dtype}{gap}"
            raise ValueError(f"{call}: {name} has {got}, expected numbers{_hint(one)}")
    if not columns:
        raise ValueError(f"{call}: {name} has no column with numbers, expected one")
    if _of_pandas(y):
        arrays = [one.to_numpy(np.float64, na_value=np.nan) for one in columns]
    else:
        arrays = [np.asarray(on_host(call, name, one), np.float64) for one in columns]
    return np.stack(arrays, 1) if hasattr(y, "columns") else arrays[0]


def _holds_numbers(column: Any) -> bool:
    """Returns whether a column of pandas, of objects or decimals, holds real numbers, and nothing else but gaps."""
    if not str(column.dtype).startswith(("object", "decimal")):
        return False
    return all(isinstance(cell, Real | Decimal) or cell is None or is_missing(cell) for cell in column)


def _hint(column: Any) -> str:
    """Returns what to do with a column of dates, or of texts that look like dates; empty for other columns."""
    if not _of_pandas(column):
        known = column.drop_nulls().head(1).to_list()
        return " (dates: str.to_datetime)" if known and _like_a_date(known[0]) else ""
    if str(column.dtype).startswith(("datetime", "period")):
        return " (dates: set_index)"
    return " (dates: pandas.to_datetime, then set_index)" if _like_a_date(*column.dropna().head(1)) else ""


def _like_a_date(text: Any = None) -> bool:
    return isinstance(text, str) and bool(re.match(r"\d{4}[-/]\d{1,2}\b|\d{1,2}([-/.])\d{1,2}\1\d{2,4}\b", text))


def row_name(y: Any, row: int, rows: Index | None = None) -> str:
    """Returns a row, or the row that is in this place of some `rows`, as errors name it: its number, and of a frame
    with dates its date."""
    row = row if rows is None else int(rows[row])
    if not (is_frame(y) and _has_dates(y)):
        return str(row)
    dates = _index(y) if _of_pandas(y) else y[_dated("", "", y)]
    return f"{row} ({dates[row]})"


def array_of(call: str, name: str, y: Any) -> Numbers:
    """Returns the argument `name` of `call` as an array. Integers and floating-point numbers of pandas' own dtypes, of
    which pandas makes objects, become float64, with NaN where one is missing; among other objects, NaN takes the place
    of pandas' NA and NaT."""
    found = on_host(call, name, y)
    if found.dtype.kind == "O" and _of_pandas(y):
        dtypes = list(y.dtypes) if y.ndim == 2 else [y.dtype]
        if all(dtype.kind in "iuf" for dtype in dtypes):
            return np.asarray(y.to_numpy(np.float64, na_value=np.nan))
    if found.dtype.kind == "O" and found.ndim:
        gone = np.fromiter(map(is_missing, found.flat), bool, found.size).reshape(found.shape)
        found = np.where(gone, np.nan, found) if gone.any() else found
    return found


def is_missing(cell: Any) -> bool:
    """Returns whether an object is pandas' NA or NaT."""
    return type(cell).__name__ in ("NAType", "NaTType")


def kept(y: Any) -> Any:
    """Returns a copy of a frame, which does not follow what its owner does; anything else as it is."""
    return y.copy() if _of_pandas(y) else y.clone() if _of_polars(y) else y


def ordered(call: str, name: str, y: Any, fitted: Any, of: str = "the fit") -> Any:
    """Returns a frame, the argument `name` of `call`, with its columns in the order of the fitted frame's.

    ValueError, which says what the fitted frame is `of`, if both are frames of columns and have other names; names of a
    polars column of dates are not compared.
    """
    if not (hasattr(y, "columns") and hasattr(fitted, "columns")):
        return y
    here, there = _names(y), _names(fitted)
    if here == there:
        return y
    if sorted(map(str, here)) != sorted(map(str, there)) or set(here) != set(there):
        raise ValueError(f"{call}: {name} has the columns {here!r:.80}, expected {there!r:.80} as of {of}")
    return y[[*([_dated(call, name, y)] if _of_polars(y) and _dated(call, name, y) else []), *there]]


def rows(call: str, name: str, x: Any, y: Any, past: bool, ahead: int, fitted: Any = None) -> Index | None:
    """Returns the rows of a frame x, the argument `name` of `call`, with the dates of a frame y, if `past`, and then
    those with the dates of the `ahead` steps that follow y, or the first after it if these do not go on in equal steps.
    None if one of the two has no dates.

    ValueError if x has no row of a date, or one of the two has dates with a time zone and the other has not. TypeError
    if both have dates and are of different packages.
    """
    if _of_pandas(x) and _of_pandas(y):
        known, index = _index(x), _index(y)
        if not (hasattr(known, "asi8") and hasattr(index, "asi8")):
            return None
        _check_kinds(call, name, known, index)
        later = _following_index(index, ahead, fitted) if ahead else index[:0]
        later = known[known > index[-1]][:ahead] if later is None else later
        wanted = index.append(later) if past else later
        found = known.get_indexer(wanted)
        there = found >= 0
    elif _of_polars(x) and _of_polars(y) and (own := _dated(call, name, x)) and (other := _dated("", "", y)):
        _check_kinds(call, name, x[own], y[other])
        dates, times = y[other], x[own].to_numpy()
        later = _following_dates(dates, ahead, fitted) if ahead else dates[:0]
        follow = times[times > dates.to_numpy()[-1]][:ahead] if later is None else later.to_numpy()
        wanted = np.concatenate([dates.to_numpy(), follow]) if past else follow
        found = np.minimum(np.searchsorted(times, wanted), len(times) - 1)
        there = times[found] == wanted
    elif all(_of_pandas(one) or _of_polars(one) for one in (x, y)) and _has_dates(x) and _has_dates(y):
        got, of = (type(one).__module__.partition(".")[0] for one in (x, y))
        raise TypeError(f"{call}: {name} is a frame of {got} and the series of {of}, expected dates of one package")
    else:
        return None
    if not there.all():
        expected = "a row for each step of the series" if past else "a row for each step that is forecast"
        raise ValueError(f"{call}: {name} has no row of {wanted[int(np.argmin(there))]}, expected {expected}")
    return np.asarray(found)


def _has_dates(y: Any) -> bool:
    return hasattr(_index(y), "asi8") if _of_pandas(y) else _dated("", "", y) is not None


def _check_kinds(call: str, name: str, dates: Any, others: Any) -> None:
    """Raises ValueError if the dates of the argument `name` of `call` are not comparable with the dates of the
    series."""

    def kind(of: Any) -> str:
        if hasattr(of, "asfreq"):
            return "periods"
        if str(of.dtype).lower().startswith(("timedelta", "duration")):
            return "durations"
        zone = getattr(of, "tz", None) or getattr(of.dtype, "time_zone", None)
        return "dates with a time zone" if zone else "dates without a time zone"

    if (got := kind(dates)) != (expected := kind(others)):
        raise ValueError(f"{call}: {name} has {got}, expected {expected} as of the series")


@dataclass(frozen=True)
class Named:
    """A frame that was saved: only the names of its columns are left."""

    columns: list[Any]


def names(y: Any) -> list[Any] | None:
    """Returns the names of the columns of a frame but the one with dates of polars; None of anything else."""
    return _names(y) if hasattr(y, "columns") else None


def text_names(call: str, x: Any, argument: str = "X") -> tuple[str, ...] | None:
    """Returns the names of the columns of x, the `argument` of `call`, a frame or a list with frames; None if there is
    no frame, or if no name is a text: numbers count columns.

    Raises
    ------
    TypeError
        Some names of a frame are texts and others are not.
    ValueError
        A frame of the list has other names than the first, texts or not, or has them in another order. A text is the
        name of two columns. A column of polars has dates.
    """
    frames = {i: one for i, one in enumerate(x) if is_frame(one)} if isinstance(x, list | tuple) else {0: x}
    found = {i: list(one.columns) for i, one in frames.items() if is_frame(one) and hasattr(one, "columns")}
    for i, here in found.items():
        name = f"{argument}[{i}]" if frames[i] is not x else argument
        if _of_polars(frames[i]) and (dated := _dated(call, name, frames[i])):
            raise ValueError(f"{call}: {name} has the column of dates {dated!r}, expected numbers")
        _check_distinct(call, name, [one for one in here if isinstance(one, str)])
        if here != found[first := min(found)]:
            expected = f"{found[first]!r:.80} as of {argument}[{first}]"
            raise ValueError(f"{call}: {name} has the columns {here!r:.80}, expected {expected}")
    known = found[min(found)] if found else []
    texts = [isinstance(one, str) for one in known]
    if any(texts) and not all(texts):
        other = known[texts.index(False)]
        raise TypeError(
            f"{call}: {argument} has a column {other!r}, expected texts as names of all columns, or of none"
        )
    return tuple(known) if any(texts) else None


def _check_distinct(call: str, name: str, columns: Sequence[Any]) -> None:
    """Raises ValueError if two columns of the argument `name` of `call` have one name."""
    if len(set(columns)) < len(columns):
        twice = next(one for i, one in enumerate(columns) if one in columns[:i])
        raise ValueError(f"{call}: {name} has two columns {twice!r}, expected columns of different names")


def check_names(call: str, here: Sequence[str], fitted: Sequence[str]) -> None:
    """Raises ValueError, in scikit-learn's words, if columns of X have other names than the fitted columns, or the
    same names in another order."""
    if list(here) == list(fitted):
        return
    message = f"{call}: The feature names should match those that were passed during fit.\n"
    unseen, missing = sorted(set(here) - set(fitted)), sorted(set(fitted) - set(here))
    for title, different in (("unseen at fit time", unseen), ("seen at fit time, yet now missing", missing)):
        if different:
            shown = [*different[:5], *(["..."] if len(different) > 5 else [])]
            message += "".join([f"Feature names {title}:\n", *(f"- {one}\n" for one in shown)])
    if not unseen and not missing:
        message += "Feature names must be in the same order as they were in fit.\n"
    raise ValueError(message)


def _names(y: Any) -> list[Any]:
    dated = _dated("", "", y) if _of_polars(y) else None
    return [one for one in y.columns if dated is None or one != dated]


def like(y: Any, forecasts: Numbers, fitted: Any = None) -> Any:
    """Returns forecasts (steps,) or (steps, V) of what follows a frame as such a frame, with the index or the dates
    that follow; the array itself if they do not go on in equal steps. After one or two dates the steps are those of the
    frame that was `fitted`."""
    steps = len(forecasts)
    if _of_polars(y):
        if not hasattr(y, "columns"):
            return type(y)(y.name, forecasts)
        dated = _dated("", "", y)
        values = iter(forecasts.T)
        if dated is None:
            return type(y)(dict(zip(y.columns, values, strict=True)))
        later = _following_dates(y[dated], steps, fitted)
        if later is None:
            return forecasts
        return type(y)({one: later if one == dated else next(values) for one in y.columns})
    index = _following_index(_index(y), steps, fitted)
    if index is None:
        return forecasts
    forecasts = forecasts[:, 0] if y.ndim < forecasts.ndim else forecasts
    return type(y)(forecasts, index=index, **({"columns": y.columns} if y.ndim == 2 else {"name": y.name}))


def _fitted_dates(fitted: Any, dates: Any) -> Any:
    """Returns the dates of a frame that was fitted as a column of polars like `dates`, whose zone they have; None if
    it has no such dates."""
    if _of_polars(fitted):
        name = _dated("", "", fitted)
        found = fitted[name] if name else None
    elif _of_pandas(fitted) and hasattr(index := _index(fitted), "tz"):
        times = index.tz_convert(None) if index.tz else index
        found = type(dates)(dates.name, times.to_numpy().astype("M8[us]"))
        if index.tz:
            found = found.dt.replace_time_zone("UTC").dt.convert_time_zone(str(index.tz))
    else:
        return None
    if found is None or found.to_numpy().dtype.kind != dates.to_numpy().dtype.kind:
        return None
    if getattr(found.dtype, "time_zone", None) != getattr(dates.dtype, "time_zone", None):
        return None
    cast = found.cast(dates.dtype)
    return cast if (cast.cast(found.dtype) == found).all() else None


def _following_dates(dates: Any, steps: int, fitted: Any = None) -> Any:
    """Returns the column of polars that follows one of dates; None if it does not go on in equal steps. Days and longer
    steps go on in local time, which has days of 23 and 25 hours; a time that a day does not have is none. Of fewer than
    three dates, the steps are those of the frame that was `fitted`."""
    known = _fitted_dates(fitted, dates) if len(dates) < 3 else dates
    if known is None:
        return None
    zone = getattr(dates.dtype, "time_zone", None)
    local = [one.dt.replace_time_zone(None) if zone else one for one in (known, dates)]
    times = local[0].to_numpy()
    if zone and len(times) > 1 and not np.isnat(times[-2:]).any() and times[-1] - times[-2] < np.timedelta64(1, "D"):
        zone, local = None, [known, dates]
    found = following(local[0].to_numpy(), steps, local[1].to_numpy()[-1])
    if found is None:
        return None
    later = type(dates)(dates.name, found).cast(local[1].dtype)
    if zone:
        later = later.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    return None if later.null_count() else later


def following(dates: Numbers, steps: int, last: Any = None) -> Numbers | None:
    """Returns the dates, datetime64 (steps,), that follow the date `last`, by default that of dates, in their equal
    steps of calendar months, on the same day or on the last, or else of time: of the first of July, August and
    September, the first of October, not 31 days later. None if there are fewer than three, they do not, or `last` or a
    month does not have the day."""
    if len(dates) < 3 or np.isnat(dates).any():
        return None
    last = dates[-1] if last is None else last
    apart = np.diff(dates)
    ahead = np.arange(1, steps + 1)
    if (found := _months(dates)) is not None and (found[0] == found[0][0]).all():
        months, within, shift = found
        month = (last + shift).astype("M8[M]")
        if last + shift - month.astype(dates.dtype) != within:
            return None
        later = month + months[0] * ahead
        times = later.astype(dates.dtype) + within - shift
        return np.asarray(times) if ((times + shift).astype("M8[M]") == later).all() else None
    return np.asarray(last + apart[0] * ahead) if (apart == apart[0]).all() else None


def _months(dates: Numbers) -> tuple[Numbers, Any, Any] | None:
    """Returns the steps of dates in calendar months, and the time within its month that each has after a shift, which
    is returned, too; None unless the dates are of different months, all on the same day or all on the last."""
    day = np.timedelta64(1, "D")
    for shift in (day, 0 * day) if dates.dtype.kind == "M" else ():  # after the last day of a month comes a first
        moved = dates + shift
        months = moved.astype("M8[M]")
        within, steps = moved - months.astype(moved.dtype), np.diff(months)
        if (within == within[0]).all() and (steps.astype(int) > 0).all():
            return steps, within[0], shift
    return None


def gap(y: Any) -> tuple[Any, Any] | None:
    """Returns the first two dates of a frame between which rows are missing; None if there are none, or no rule is
    known.

    Rows are missing where most steps from date to date are equal, of calendar months, of days without Saturdays and
    Sundays if no date is on these, or of time, and the others are whole multiples. No row is missing where the next
    date is at the next time of the day or of the week that any date has: after a night, or a closed Monday.
    """
    if _of_polars(y) and (dated := _dated("", "", y)):
        dates = y[dated]
        zone = getattr(dates.dtype, "time_zone", None)
        views = [one.to_numpy() for one in ([dates, dates.dt.replace_time_zone(None)] if zone else [dates])]
    elif _of_pandas(y) and hasattr(dates := _index(y), "asi8"):
        times = dates.to_timestamp() if hasattr(dates, "asfreq") else dates
        if _frequency(times):
            return None
        zone = getattr(times, "tz", None)
        views = [one.to_numpy() for one in ([times.tz_convert(None), times.tz_localize(None)] if zone else [times])]
    else:
        return None
    found = [one for one in map(_gaps, views) if one is not None]  # hours and days of a zone each have a rule
    at = np.flatnonzero(np.all(found, 0)).tolist() if found else []
    return (dates[at[0]], dates[at[0] + 1]) if at else None


def _gaps(dates: Numbers) -> Numbers | None:
    """Returns after which dates (n,) rows are missing, booleans (n - 1,), as `gap` says; None without a rule."""
    if len(dates) < 4:
        return None
    if (months := _months(dates)) is not None:
        return _multiples(months[0].astype(np.int64))
    calendar = dates.dtype.kind == "M"
    since = dates - np.datetime64("1970-01-05").astype(dates.dtype) if calendar else dates  # a Monday
    times, day = since.astype(np.int64), int(np.timedelta64(1, "D").astype(since.dtype).astype(np.int64))
    week = 7 * day
    if calendar and (times % week < 5 * day).all():
        times, week = times - 2 * day * (times // week), 5 * day
    steps = np.diff(times)
    if (missing := _multiples(steps)) is None:
        return None
    for cycle in (day, week) if calendar else ():
        if times[-1] - times[0] >= 2 * cycle:  # else a time without a date says nothing
            phases = times[:-1] % cycle
            known = np.unique(times % cycle)
            later = known[(np.searchsorted(known, phases) + 1) % len(known)]
            missing &= steps != (later - phases - 1) % cycle + 1
    return missing


def _multiples(steps: Numbers) -> Numbers | None:
    """Returns which steps are multiples, larger than 1, of the step that most are; None if there is no such step."""
    values, counts = np.unique(steps, return_counts=True)
    step = values[counts.argmax()]
    if 2 * counts.max() <= len(steps) or step <= 0 or (steps % step).any():
        return None
    return np.asarray(steps != step)


def _frequency(index: Any) -> Any:
    """Returns the frequency of dates of pandas, as they have it or as pandas infers it; None if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas says that it will be an offset instead of its name; both will do
        return index.freq or (index.inferred_freq if len(index) > 2 else None)


def _following_index(index: Any, steps: int, fitted: Any = None) -> Any:
    """Returns the index that follows one of pandas; None if it does not go on in equal steps. Where it has fewer than
    three dates and no frequency, it is that of the frame that was `fitted`."""
    if hasattr(index, "asi8"):
        before: Any = _index(fitted) if _of_pandas(fitted) else None
        if _of_polars(fitted) and hasattr(index, "tz") and (name := _dated("", "", fitted)):
            zone = getattr(fitted[name].dtype, "time_zone", None)
            before = type(index)((fitted[name].dt.replace_time_zone(None) if zone else fitted[name]).to_numpy())
        own = [one for one in (index, before) if hasattr(one, "asi8")][: 1 if len(index) > 2 else 2]
        freq = next((one for one in map(_frequency, own) if one), None)
        if freq is None:
            return _following_times(index, own[-1], steps)
        periods = hasattr(index, "asfreq")
        if periods and (np.diff(index.asi8) != freq.n).any():
            return None
        settings = {} if periods else {"freq": freq}
        zone = getattr(index, "tz", None)
        if zone and _of_calendar(freq):
            index = index.tz_localize(None)
        later = [index[-1:].shift(i, **settings) for i in range(1, steps + 1)]
        found = later[0].append(later[1:])
        return found if getattr(index, "tz", None) == zone else _in_zone(found, zone)
    else:
        apart = np.diff(index.to_numpy().astype(np.int64)) if index.dtype.kind in "iu" else np.zeros(0)
        if not len(apart) or not apart[0] or (apart != apart[0]).any():
            return None
        index = index.astype(np.int64)
        later = [index[-1:] + int(apart[0]) * i for i in range(1, steps + 1)]
    return later[0].append(later[1:])


def _following_times(index: Any, known: Any, steps: int) -> Any:
    """Returns the index of pandas that follows one of dates, in the steps that `known` dates have in local time; None
    if these are not equal, or a day does not have the time."""
    if not (hasattr(index, "tz") and hasattr(known, "tz") and str(index.tz) == str(known.tz)):
        return None
    dates, last = known.tz_localize(None).to_numpy(), index.tz_localize(None).to_numpy()[-1:]
    found = following(dates, steps, last[0])
    if found is None:
        return None
    later = type(index)(found.astype(last.dtype), name=index.name)
    return _in_zone(later, index.tz) if index.tz else later


def _in_zone(local: Any, zone: Any) -> Any:
    """Returns local times of pandas in a zone, of a time that occurs twice the first; None if a day does not have a
    time."""
    found = local.tz_localize(zone, ambiguous=np.ones(len(local), bool), nonexistent="NaT")
    return None if found.isna().any() else found


def _of_calendar(freq: Any) -> bool:
    """Returns whether a frequency of pandas goes by the calendar, in local time: days and longer, not hours."""
    pandas = sys.modules["pandas"]
    offset = pandas.tseries.frequencies.to_offset(freq)
    return not isinstance(offset, pandas.offsets.Tick) or isinstance(offset, pandas.offsets.Day)  # a Tick in pandas 2


OF_OBJECTS = {
    "date": "DatetimeIndex",
    "datetime": "DatetimeIndex",
    "datetime64": "DatetimeIndex",
    "period": "PeriodIndex",
    "timedelta": "TimedeltaIndex",
    "timedelta64": "TimedeltaIndex",
}
"""The index of pandas for what an index of objects or of Arrow holds."""


def _index(y: Any, what: str = "a frame") -> Any:
    """Returns the index of a frame of pandas; of dates that are objects or of Arrow, one of pandas' own. ValueError
    names `what`."""
    index = y.index
    if hasattr(index, "asi8") or index.inferred_type not in OF_OBJECTS:
        return index
    try:
        return getattr(sys.modules["pandas"], OF_OBJECTS[index.inferred_type])(index)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} has an index of dtype {index.dtype}, expected dates of one kind ({error})") from error


def _of_pandas(y: Any) -> bool:
    return hasattr(y, "iloc") and hasattr(y, "index")


def _of_polars(y: Any) -> bool:
    return hasattr(y, "to_physical") or (hasattr(y, "get_columns") and hasattr(y, "with_columns"))


def _numeric(dtype: Any) -> bool:
    """Returns whether a dtype of pandas or polars holds real numbers."""
    if hasattr(dtype, "is_numeric") and callable(dtype.is_numeric):
        return bool(dtype.is_numeric())
    return getattr(dtype, "kind", "O") in "biuf"


def _dated(call: str, name: str, y: Any) -> str | None:
    """Returns the column of dates of a frame of polars."""
    dated = [one.name for one in y.get_columns() if _is_date(one.dtype)] if hasattr(y, "columns") else []
    if len(dated) > 1:
        raise ValueError(f"{call}: {name} has the columns of dates {', '.join(map(repr, dated))}, expected one")
    return dated[0] if dated else None


def _is_date(dtype: Any) -> bool:
    """Returns whether a dtype of polars holds dates or durations; a time of the day is neither."""
    return bool(dtype.is_temporal()) and str(dtype) != "Time"
