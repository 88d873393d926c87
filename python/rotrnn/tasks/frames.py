"""Series given as frames: what pandas' and polars' know besides numbers, which goes on in forecasts.

Neither package is imported: what is there is found by the methods that its objects have.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn.ops.boundary import on_host
from rotrnn.tasks.own import Numbers
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
        A column does not hold numbers, dates are missing or not sorted, or there are two columns of dates.
    """
    if _of_polars(y):
        dated = _dated(call, name, y)
        dates = y[dated].to_numpy() if dated else ()
        missing = y[dated].is_null().to_numpy() if dated else np.zeros(0, bool)
        columns = [y[one] for one in y.columns if one != dated] if hasattr(y, "columns") else [y]
    else:
        dates = y.index if hasattr(y.index, "asi8") else ()
        missing = np.asarray(y.index.isna()) if hasattr(y.index, "asi8") else np.zeros(0, bool)
        columns = [y.iloc[:, i] for i in range(y.shape[1])] if y.ndim == 2 else [y]
    if missing.any():
        raise ValueError(f"{call}: {name} has no date in row {int(missing.argmax())}, expected dates that increase")
    times = np.asarray(getattr(dates, "asi8", dates))
    if (wrong := np.flatnonzero(times[1:] <= times[:-1])).size:
        first, then = dates[wrong[0]], dates[wrong[0] + 1]
        raise ValueError(f"{call}: {name} has the date {then} after {first}, expected dates that increase")
    for one in columns:
        if not _numeric(one.dtype):
            hint = " (dates: set_index)" if _of_pandas(y) and str(one.dtype).startswith(("datetime", "period")) else ""
            raise ValueError(f"{call}: {name} has column {one.name!r} of dtype {one.dtype}, expected numbers{hint}")
    if not columns:
        raise ValueError(f"{call}: {name} has no column with numbers, expected one")
    arrays = [np.asarray(on_host(call, name, one), np.float64) for one in columns]
    return np.stack(arrays, 1) if hasattr(y, "columns") else arrays[0]


def kept(y: Any) -> Any:
    """Returns a copy of a frame, which does not follow what its owner does; anything else as it is."""
    return y.copy() if _of_pandas(y) else y.clone() if _of_polars(y) else y


def ordered(call: str, name: str, y: Any, fitted: Any) -> Any:
    """Returns a frame, the argument `name` of `call`, with its columns in the order of the fitted frame's.

    ValueError if both are frames of columns and have other names; those of a polars column of dates are not compared.
    """
    if not (hasattr(y, "columns") and hasattr(fitted, "columns")):
        return y
    here, there = _names(y), _names(fitted)
    if here == there:
        return y
    if len(set(here)) < len(here) or sorted(map(str, here)) != sorted(map(str, there)) or set(here) != set(there):
        raise ValueError(f"{call}: {name} has the columns {here!r:.80}, expected {there!r:.80} as of the fit")
    return y[[*([_dated(call, name, y)] if _of_polars(y) and _dated(call, name, y) else []), *there]]


def rows(call: str, name: str, x: Any, y: Any, past: bool, ahead: int, fitted: Any = None) -> Index | None:
    """Returns the rows of a frame x, the argument `name` of `call`, with the dates of a frame y, if `past`, and then
    those with the dates of the `ahead` steps that follow y, or the first after it if these do not go on in equal steps.
    None if one of the two has no dates, or they are of different packages.

    ValueError if x has no row of a date.
    """
    if _of_pandas(x) and _of_pandas(y) and hasattr(x.index, "asi8") and hasattr(y.index, "asi8"):
        later = _following_index(y.index, ahead, getattr(fitted, "index", None)) if ahead else y.index[:0]
        later = x.index[x.index > y.index[-1]][:ahead] if later is None else later
        wanted = y.index.append(later) if past else later
        found = x.index.get_indexer(wanted)
        there = found >= 0
    elif _of_polars(x) and _of_polars(y) and (own := _dated(call, name, x)) and (other := _dated("", "", y)):
        dates, times = y[other], x[own].to_numpy()
        later = _following_dates(_after(fitted, dates), ahead) if ahead else dates[:0]
        follow = times[times > dates.to_numpy()[-1]][:ahead] if later is None else later.to_numpy()
        wanted = np.concatenate([dates.to_numpy(), follow]) if past else follow
        found = np.minimum(np.searchsorted(times, wanted), len(times) - 1)
        there = times[found] == wanted
    else:
        return None
    if not there.all():
        expected = "a row for each step of the series" if past else "a row for each step that is forecast"
        raise ValueError(f"{call}: {name} has no row of {wanted[int(np.argmin(there))]}, expected {expected}")
    return np.asarray(found)


@dataclass(frozen=True)
class Named:
    """What is left of a frame that was saved: the names of its columns."""

    columns: list[Any]


def names(y: Any) -> list[Any] | None:
    """Returns the names of the columns of a frame but the one with dates of polars; None of anything else."""
    return _names(y) if hasattr(y, "columns") else None


def _names(y: Any) -> list[Any]:
    dated = _dated("", "", y) if _of_polars(y) else None
    return [one for one in y.columns if dated is None or one != dated]


def like(y: Any, forecasts: Numbers, fitted: Any = None) -> Any:
    """Returns forecasts (steps,) or (steps, V) of what follows a frame as such a frame, with the index or the dates
    that follow; the array itself if they do not go on in equal steps. Of one or two dates alone, the frame that was
    `fitted` says the steps."""
    steps = len(forecasts)
    if _of_polars(y):
        if not hasattr(y, "columns"):
            return type(y)(y.name, forecasts)
        dated = _dated("", "", y)
        values = iter(forecasts.T)
        if dated is None:
            return type(y)(dict(zip(y.columns, values, strict=True)))
        later = _following_dates(_after(fitted, y[dated]), steps)
        if later is None:
            return forecasts
        return type(y)({one: later if one == dated else next(values) for one in y.columns})
    index = _following_index(y.index, steps, getattr(fitted, "index", None))
    if index is None:
        return forecasts
    forecasts = forecasts[:, 0] if y.ndim < forecasts.ndim else forecasts
    return type(y)(forecasts, index=index, **({"columns": y.columns} if y.ndim == 2 else {"name": y.name}))


def _after(fitted: Any, dates: Any) -> Any:
    """Returns a column of polars with fewer than three dates after the earlier ones of a frame that has such dates;
    another column as it is."""
    name = _dated("", "", fitted) if len(dates) < 3 and _of_polars(fitted) else None
    if name is None or fitted[name].dtype != dates.dtype:
        return dates
    return fitted[name].filter(fitted[name] < dates[0]).append(dates)


def _following_dates(dates: Any, steps: int) -> Any:
    """Returns the column of polars that follows one of dates; None if it does not go on in equal steps. Days and longer
    steps go on in local time, which has days of 23 and 25 hours; a time that a day does not have is none."""
    zone = getattr(dates.dtype, "time_zone", None)
    local = dates.dt.replace_time_zone(None) if zone else dates
    times = local.to_numpy()
    if zone and len(times) > 1 and not np.isnat(times[-2:]).any() and times[-1] - times[-2] < np.timedelta64(1, "D"):
        zone, local = None, dates
    found = following(local.to_numpy(), steps)
    if found is None:
        return None
    later = type(dates)(dates.name, found).cast(local.dtype)
    if zone:
        later = later.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    return None if later.null_count() else later


def following(dates: Numbers, steps: int) -> Numbers | None:
    """Returns the dates, datetime64 (steps,), that follow dates in equal steps of calendar months, on the same day or
    on the last, or else of time: of the first of July, August and September, the first of October, not 31 days later.
    None if there are fewer than three, they do not, or a month does not have the day."""
    if len(dates) < 3 or np.isnat(dates).any():
        return None
    apart = np.diff(dates)
    ahead = np.arange(1, steps + 1)
    day = np.timedelta64(1, "D")
    for shift in (
        (day, 0 * day) if dates.dtype.kind == "M" else ()
    ):  # the last day of a month is the day before the first of the next
        moved = dates + shift
        months = moved.astype("M8[M]")
        within, between = moved - months.astype(moved.dtype), np.diff(months)
        if between[0].astype(int) > 0 and (within == within[0]).all() and (between == between[0]).all():
            later = months[-1] + between[0] * ahead
            found = later.astype(dates.dtype) + within[0] - shift
            return np.asarray(found) if ((found + shift).astype("M8[M]") == later).all() else None
    return np.asarray(dates[-1] + apart[0] * ahead) if (apart == apart[0]).all() else None


def _following_index(index: Any, steps: int, fitted: Any = None) -> Any:
    """Returns the index that follows one of pandas; None if it does not go on in equal steps. Where it has fewer than
    three dates and no frequency, it is that of the index that was `fitted`."""
    if hasattr(index, "asi8"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas says that it will be an offset instead of its name; both will do
            own = [one for one in (index, fitted) if hasattr(one, "asi8")][: 1 if len(index) > 2 else 2]
            found = (one.freq or (one.inferred_freq if len(one) > 2 else None) for one in own)
            freq = next((one for one in found if one), None)
        if freq is None:
            return None
        periods = hasattr(index, "asfreq")
        if periods and (np.diff(index.asi8) != freq.n).any():
            return None
        settings = {} if periods else {"freq": freq}
        later = [index[-1:].shift(i, **settings) for i in range(1, steps + 1)]
    else:
        apart = np.diff(index.to_numpy().astype(np.int64)) if index.dtype.kind in "iu" else np.zeros(0)
        if not len(apart) or not apart[0] or (apart != apart[0]).any():
            return None
        index = index.astype(np.int64)
        later = [index[-1:] + int(apart[0]) * i for i in range(1, steps + 1)]
    return later[0].append(later[1:])


def _of_pandas(y: Any) -> bool:
    return hasattr(y, "iloc") and hasattr(y, "index")


def _of_polars(y: Any) -> bool:
    return hasattr(y, "to_physical") or (hasattr(y, "get_columns") and hasattr(y, "with_columns"))


def _numeric(dtype: Any) -> bool:
    """Returns whether a dtype of pandas or polars is that of real numbers."""
    if hasattr(dtype, "is_numeric") and callable(dtype.is_numeric):
        return bool(dtype.is_numeric())
    return getattr(dtype, "kind", "O") in "biuf"


def _dated(call: str, name: str, y: Any) -> str | None:
    """Returns the column of dates of a frame of polars."""
    dated = [one.name for one in y.get_columns() if one.dtype.is_temporal()] if hasattr(y, "columns") else []
    if len(dated) > 1:
        raise ValueError(f"{call}: {name} has the columns of dates {', '.join(map(repr, dated))}, expected one")
    return dated[0] if dated else None
