"""Series of pandas and polars: their numbers, and the dates of forecasts. ``make test-data`` runs this."""

from __future__ import annotations

import warnings
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import polars
import pyarrow
import pytest

from rotrnn.estimators import Forecaster
from rotrnn.tasks.frames import following, gap, like, numbers_of

QUICK: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 1, "horizon": 3}
Y = np.sin(np.arange(60) / 3)


@pytest.mark.parametrize(
    "freq", ["MS", "ME", "D", "B", "W-WED", "QS", "YE", "h", "15min", "3MS", "MS/Europe/Paris", "h/Europe/Paris"]
)
def test_dates_of_pandas_go_on(freq: str) -> None:
    """As those of a longer range: also over a change of the clock, and where the index has lost its frequency."""
    freq, _, zone = freq.partition("/")
    whole = pandas.date_range("2023-01-02", periods=63, freq=freq, tz=zone or None)
    for index in (whole[:60], pandas.DatetimeIndex(list(whole[:60]))):
        y = pandas.Series(Y, index=index, name="sold")
        found = like(y, np.arange(3.0))
        assert found.index.equals(whole[60:])
        assert found.index.dtype == whole.dtype
        assert (found.name, found.tolist()) == ("sold", [0, 1, 2])


@pytest.mark.parametrize(
    ("index", "later"),
    [
        (pandas.RangeIndex(5, 65), [65, 66, 67]),
        (pandas.Index(range(1900, 2020, 2)), [2020, 2022, 2024]),
        (
            pandas.period_range("2020-01", periods=60, freq="M"),
            list(pandas.period_range("2025-01", periods=3, freq="M")),
        ),
        (pandas.to_timedelta(np.arange(60), unit="h"), list(pandas.to_timedelta([60, 61, 62], unit="h"))),
    ],
)
def test_other_indexes_of_pandas_go_on(index: Any, later: list[Any]) -> None:
    y = pandas.DataFrame({"a": Y, "b": -Y}, index=index)
    found = like(y, np.zeros((3, 2)))
    assert found.index.tolist() == later
    assert found.columns.tolist() == ["a", "b"]


@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
def test_dates_on_a_day_of_each_month_go_on(zone: str | None) -> None:
    """Which pandas has no frequency for; none of a day that a month does not have."""
    whole = pandas.DatetimeIndex([datetime(2020 + i // 12, 1 + i % 12, 15) for i in range(63)], tz=zone, name="due")
    found = like(pandas.Series(Y, index=whole[:60]), np.arange(3.0))
    pandas.testing.assert_index_equal(found.index, whole[60:])
    assert like(pandas.Series([0.0], index=whole[61:62]), np.zeros(1), pandas.Series(Y, index=whole[:60])).index == [
        whole[62]
    ]
    late = pandas.DatetimeIndex([datetime(2023, month, 30) for month in range(3, 13)])
    assert isinstance(like(pandas.Series(Y[:10], index=late), np.zeros(2)), np.ndarray)


def both(dates: Any) -> list[Any]:
    """Frames of pandas, without a frequency, and of polars with these dates."""
    dates, own = pandas.DatetimeIndex(list(dates)), dates.tz_convert("UTC") if dates.tz else dates
    column = polars.Series("at", own.to_pydatetime().tolist())
    column = column.dt.convert_time_zone(str(dates.tz)) if dates.tz else column
    y = np.arange(float(len(dates)))
    return [pandas.Series(y, index=dates), polars.DataFrame({"at": column, "y": y})]


@pytest.mark.parametrize("count", [12, 90])
@pytest.mark.parametrize(
    "freq",
    ["D", "B", "W-WED", "MS", "ME", "QE", "YS", "3MS", "10D", "h", "15min", "5h"]
    + [f"{freq}/Europe/Paris" for freq in ("D", "h", "MS")],
)
def test_a_row_that_is_missing_among_dates_is_found(freq: str, count: int) -> None:
    """By both packages, also on a change of the clock; nothing is where all are there. March 2024 has both."""
    freq, _, zone = freq.partition("/")
    whole = pandas.date_range("2024-03-06", periods=count, freq=freq, tz=zone or None)
    for one in both(whole):
        assert gap(one) is None
    for row in (5, count - 3):
        for one in both(whole.delete(row)):
            assert gap(one) == (whole[row - 1], whole[row + 1])


def test_pauses_that_recur_are_no_gaps() -> None:
    """A shop that is closed on Sundays, and hours of trading, in New York over a change of the clock."""
    days = pandas.date_range("2024-01-01", periods=90)
    hours = pandas.date_range("2024-02-19", periods=24 * 40, freq="h", tz="America/New_York")
    shop = days[days.day_of_week < 6]
    trade = hours[(hours.hour >= 9) & (hours.hour < 16) & (hours.day_of_week < 5)]
    for dates in (shop, trade, trade[:30]):
        assert [gap(one) for one in both(dates)] == [None, None]
        assert [gap(one) for one in both(dates.delete(17))] == [(dates[16], dates[18])] * 2


def test_dates_without_a_rule_have_no_gaps() -> None:
    rng = np.random.default_rng(0)
    uneven = pandas.DatetimeIndex(np.datetime64("2024-01-01", "s") + rng.integers(1, 10**6, 60).cumsum())
    for dates in (uneven, pandas.date_range("2024-01-01", periods=60, freq="BME"), uneven[:1]):
        assert [gap(one) for one in both(dates)] == [None, None]
    assert gap(pandas.Series(Y, index=[*range(30), *range(31, 61)])) is None
    months = pandas.period_range("2020-01", periods=61, freq="M")
    assert gap(pandas.Series(Y, index=months[:60])) is None
    assert gap(pandas.Series(Y, index=months.delete(3))) == (months[2], months[4])
    passed = pandas.to_timedelta(np.arange(61), unit="h")
    assert gap(pandas.Series(Y, index=passed.delete(3))) == (passed[2], passed[4])


def test_a_forecaster_warns_of_missing_rows_once_a_call() -> None:
    days = pandas.date_range("2024-01-01", periods=64)
    whole, holed = both(days), both(days.delete([30, 40]))
    for every, some in zip(whole, holed, strict=True):
        how = "asfreq" if every is whole[0] else "upsample"
        calls: list[Any] = [
            ("fit", "y", lambda one, some=some: Forecaster(**QUICK).fit({"a": some, "b": some})),
            ("predict", "after", lambda one, some=some: one.predict(after={"a": some, "b": some})),
            ("backtest", "y", lambda one, some=some: one.backtest({"a": some})),
            ("score", "y", lambda one, some=some: one.score({"a": some})),
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fitted = Forecaster(**QUICK).fit({"a": every, "b": every})
            fitted.predict(after={"a": every}), fitted.score({"a": every})
        for name, argument, call in calls:
            with pytest.warns(UserWarning, match="no row between") as told:
                call(fitted)
            assert [str(one.message) for one in told] == [
                f"Forecaster.{name}: {argument}['a'] has no row between 2024-01-30 00:00:00 and 2024-02-01 00:00:00; "
                "rows are taken as equal steps, and a season is out of phase after the gap: "
                f"insert rows ({how}) and fill them"
            ]
            assert told[0].filename == __file__


def test_without_equal_steps_forecasts_are_an_array() -> None:
    for index in ([*"abc", *range(57)], pandas.DatetimeIndex(["2020-01-01", "2020-01-02", "2020-01-05"])):
        y = pandas.Series(Y[: len(index)], index=index)
        assert isinstance(like(y, np.zeros(3)), np.ndarray)


def test_a_forecaster_gives_what_it_was_given() -> None:
    """The numbers of the array; the frame that a later one is, after it."""
    dates = pandas.date_range("2020-01-01", periods=66, freq="MS")
    one = pandas.Series(Y, index=dates[:60], name="sold")
    plain, framed = (Forecaster(**QUICK).fit(y) for y in (Y, one))
    expected = pandas.Series(plain.predict(6), index=dates[60:], name="sold")
    pandas.testing.assert_series_equal(framed.predict(6), expected, check_freq=False)
    after = pandas.Series([*Y, 0.1, 0.2], index=dates[:62])
    assert framed.predict(1, after=after).index.tolist() == [dates[62]]
    np.testing.assert_array_equal(framed.predict(interval=0.8), plain.predict(interval=0.8))
    assert framed.score(after.iloc[-6:]) == plain.score(after.to_numpy()[-6:])
    several = polars.DataFrame({"sold": Y, "day": list(dates[:60].date), "left": -Y})
    found = Forecaster(**QUICK).fit(several).predict(6)
    assert found.columns == ["sold", "day", "left"]
    assert found.schema == several.schema
    assert found["day"].to_list() == list(dates[60:].date)
    array = Forecaster(**QUICK).fit(np.stack([Y, -Y], 1)).predict(6)
    np.testing.assert_array_equal(found.select("sold", "left").to_numpy(), array)
    series = Forecaster(**QUICK).fit(polars.Series("sold", Y)).predict()
    assert (series.name, series.to_list()) == ("sold", plain.predict().tolist())


@pytest.mark.parametrize("unit", ["D", "ms", "us", "ns"])
@pytest.mark.parametrize("freq", ["MS", "ME", "D", "W-WED", "QE", "YS", "h"])
def test_dates_without_a_package_go_on(freq: str, unit: str) -> None:
    if (freq, unit) == ("h", "D"):
        return
    whole = pandas.date_range("2020-01-02", periods=43, freq=freq).to_numpy().astype(f"M8[{unit}]")
    np.testing.assert_array_equal(following(whole[:40], 3), whole[40:])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            pandas.DataFrame({"ds": pandas.date_range("2020", periods=4), "y": range(4)}),
            r"y has column 'ds' of dtype datetime64.*, expected numbers \(dates: set_index\)$",
        ),
        (pandas.DataFrame({"y": list("abcd")}), r"y has column 'y' of dtype (object|str), expected numbers$"),
        (
            pandas.Series([1.0, 2], index=pandas.DatetimeIndex(["2020-02-01", "2020-01-01"])),
            "y has the date 2020-01-01 00:00:00 after 2020-02-01 00:00:00, expected dates that increase",
        ),
        (polars.DataFrame({"y": ["a"]}), "y has column 'y' of dtype String, expected numbers"),
        (
            polars.DataFrame({"d": [datetime(2020, 2, 1), datetime(2020, 1, 1)], "y": [1, 2]}),
            "y has the date 2020-01-01T00:00:00.0* after 2020-02-01T00:00:00.0*, expected dates that increase",
        ),
        (polars.DataFrame({"d": [datetime(2020, 2, 1)]}), "y has no column with numbers, expected one"),
        (
            pandas.DataFrame([[1, 2, 3]], columns=["u", "v", "u"]),
            "y has two columns 'u', expected columns of different",
        ),
        (pandas.Series([1.0, None, 2]), "Input y contains NaN: row 1$"),
        (polars.Series([1, None, 2]), "Input y contains NaN: row 1$"),
        *[
            (
                pandas.DataFrame({"a": [1, 2], "b": pandas.array(b, dtype=dtype)}),
                "Input y contains NaN: row 1, column 'b'$",
            )
            for b, dtype in (([1, None], "Int64"), ([True, None], "boolean"), ([1, None], "int64[pyarrow]"))
        ],
        (pandas.DataFrame({"a": [1, 2], "b": [1, pandas.NA]}), "Input y contains NaN: row 1, column 'b'$"),
        (
            pandas.DataFrame({"b": [pandas.NaT, "x"]}, index=pandas.DatetimeIndex(["2024-05-06", "2024-05-07"])),
            r"y has column 'b' of dtype object, without a value in row 0 \(2024-05-06 00:00:00\), expected numbers$",
        ),
        (
            pandas.Series([1, 2, None], index=pandas.date_range("2024-05-06", periods=3)),
            r"Input y contains NaN: row 2 \(2024-05-08 00:00:00\)$",
        ),
        (
            polars.DataFrame({"d": [datetime(2024, 5, day) for day in (6, 7)], "y": [1, None]}),
            r"Input y contains NaN: row 1 \(2024-05-07 00:00:00\), column 'y'$",
        ),
        (
            pandas.DataFrame({"ds": ["2024-05-06", "2024-05-07"], "y": [1, 2]}),
            r"y has column 'ds' of dtype \w+, expected numbers \(dates: pandas.to_datetime, then set_index\)$",
        ),
        (pandas.DataFrame({"y": ["1.5", "2.5"]}), r"y has column 'y' of dtype \w+, expected numbers$"),
        (
            polars.DataFrame({"ds": [None, "6/5/2024"], "y": [1, 2]}),
            r"y has column 'ds' of dtype String, expected numbers \(dates: str.to_datetime\)$",
        ),
    ],
)
def test_frames_that_are_refused(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^Forecaster.fit: {message}"):
        Forecaster().fit(y)


def test_extension_columns_are_numbers() -> None:
    y = pandas.DataFrame({"a": pandas.array([1, 2, 3], dtype="Int64"), "b": pandas.array([1.5, 2, 3], dtype="Float64")})
    np.testing.assert_array_equal(numbers_of("f", "y", y), [[1, 1.5], [2, 2], [3, 3]])


def test_columns_of_objects_that_are_numbers() -> None:
    """Such as a database gives, as the array of them is read; texts of numbers are none."""
    cells = [Decimal("1.5"), 2, np.float32(3)]
    np.testing.assert_array_equal(numbers_of("f", "y", pandas.Series(cells, dtype=object)), [1.5, 2, 3])
    decimals = pandas.Series([Decimal("1.5"), None], dtype=pandas.ArrowDtype(pyarrow.decimal128(5, 2)))
    np.testing.assert_array_equal(numbers_of("f", "y", decimals), [1.5, np.nan])
    with pytest.raises(ValueError, match=r"^f: y has column 'a' of dtype object, expected numbers$"):
        numbers_of("f", "y", pandas.Series([1, "2"], dtype=object, name="a"))


def test_columns_are_those_of_the_fit_by_name() -> None:
    """In any order; other names are an error. Dates are those of the fit, whatever their owner does with the frame."""
    rng = np.random.default_rng(0)
    wide = pandas.DataFrame(rng.standard_normal((60, 2)) + np.array([0, 9]), columns=["a", "b"])
    for frame in (wide, polars.from_pandas(wide)):
        fitted = Forecaster(horizon=2, width=4, depth=1, epochs=1).fit(frame)
        found, other = (fitted.predict(after=one) for one in (frame, frame[["b", "a"]]))
        assert list(found.columns) == list(other.columns) == ["a", "b"]
        np.testing.assert_array_equal(found, other)
        expected = r"after has the columns \['a', 'c'\], expected \['a', 'b'\] as of the fit"
        with pytest.raises(ValueError, match=expected):
            fitted.predict(after=frame.rename({"b": "c"}, **({"axis": 1} if frame is wide else {})))
    dated = pandas.Series(rng.standard_normal(60), pandas.date_range("2020-01-31", periods=60, freq="ME"))
    fitted = Forecaster(horizon=2, width=4, depth=1, epochs=1).fit(dated)
    before = fitted.predict(2)
    dated.loc[pandas.Timestamp("2030-01-31")] = 0.0
    assert before.equals(fitted.predict(2))


def test_days_of_a_time_zone_and_hours_go_on_through_its_change() -> None:
    start, zone = datetime(2024, 1, 1), "Europe/Berlin"
    for step, end, expected in (
        ("1d", datetime(2024, 3, 30), [datetime(2024, 3, 31), datetime(2024, 4, 1), datetime(2024, 4, 2)]),
        ("1h", datetime(2024, 3, 31, 0), [datetime(2024, 3, 31, hour) for hour in (1, 3, 4)]),
    ):
        dates = polars.datetime_range(start, end, step, time_zone=zone, eager=True).tail(60)
        frame = polars.DataFrame({"t": dates, "x": np.random.default_rng(0).standard_normal(60)})
        later = like(frame, np.zeros((3, 1)))
        assert later["t"].dt.replace_time_zone(None).to_list() == expected


@pytest.mark.parametrize(
    ("zone", "start", "count", "freq", "there"),
    [
        ("Africa/Cairo", "2026-02-01", 80, "D", False),
        ("America/Havana", "2026-01-01", 65, "D", False),
        ("America/Havana", "2026-08-15", 75, "D", True),
        ("Europe/Berlin", "2026-01-20 02:30", 65, "D", False),
        ("Europe/Berlin", "2026-08-01 02:30", 83, "D", True),
        ("Europe/Berlin", "2026-01-04 02:30", 12, "W", False),
        ("Europe/Berlin", "2026-08-02 02:30", 12, "W", True),
    ],
)
def test_local_times_that_a_later_day_lacks_or_has_twice(
    zone: str, start: str, count: int, freq: str, there: bool
) -> None:
    """An array, or of a time that occurs twice the first: with a frequency of pandas, without one, and of polars."""
    whole, numbers = pandas.date_range(start, periods=count + 6, freq=freq), np.zeros(count)
    index = whole[:count].tz_localize(zone)
    days = list(index)
    for y in (
        pandas.Series(numbers, pandas.date_range(index[0], periods=count, freq=freq)),
        pandas.Series(numbers, pandas.DatetimeIndex(days)),
        polars.DataFrame({"t": days, "x": numbers}),
    ):
        found = like(y, np.zeros((6, 1)))
        if there:
            later = found["t"].to_list() if hasattr(found, "schema") else found.index
            assert list(later) == list(whole[count:].tz_localize(zone, ambiguous=np.ones(6, bool)))
        else:
            assert isinstance(found, np.ndarray)


def test_indices_that_would_wrap_or_do_not_go_on() -> None:
    small = pandas.Series(np.zeros(60), pandas.Index(np.arange(195, 255), dtype="uint8"))
    assert list(like(small, np.zeros(3)).index) == [255, 256, 257]
    same = pandas.Series(np.zeros(5), pandas.Index([1] * 5))
    gaps = pandas.Series(np.zeros(4), pandas.PeriodIndex(["2020-01", "2020-02", "2020-05", "2020-06"], freq="M"))
    for one in (same, gaps):
        assert isinstance(like(one, np.zeros(3)), np.ndarray)
    assert like(small, np.zeros((3, 1))).shape == (3,)


def test_the_first_of_months_of_31_days_go_on_by_months() -> None:
    """July, August and September begin 31 days apart, and three years without a leap day 365."""
    for dates, later in (
        (["2023-07-01", "2023-08-01", "2023-09-01"], ["2023-10-01", "2023-11-01"]),
        (["2021-03-01", "2022-03-01", "2023-03-01"], ["2024-03-01", "2025-03-01"]),
        (["2023-01-31", "2023-03-31", "2023-05-31"], ["2023-07-31", "2023-09-30"]),
        (["2023-01-01", "2023-01-02", "2023-01-03"], ["2023-01-04", "2023-01-05"]),
    ):
        found = following(np.array(dates, "M8[ms]"), 2)
        assert found is not None
        assert found.astype("M8[D]").astype(str).tolist() == later
    assert following(np.array(["2023-10-30", "2023-11-30", "2023-12-30"], "M8[D]"), 2) is None  # February has none


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_dates_go_on_in_the_steps_of_the_fitted_ones(count: int) -> None:
    whole = pandas.date_range("2020-01-01", periods=63 + count, freq="MS")
    dates, numbers = list(whole.date), np.r_[Y, Y[:count]]
    fitted = Forecaster(**QUICK).fit(polars.DataFrame({"day": dates[:60], "sold": Y}))
    after = polars.DataFrame({"day": dates[60 : 60 + count], "sold": Y[:count]})
    assert fitted.predict(after=after)["day"].to_list() == dates[60 + count :]
    framed = Forecaster(**QUICK).fit(pandas.Series(Y, index=whole[:60]))
    later = pandas.Series(numbers[60:], index=pandas.DatetimeIndex(list(whole[60 : 60 + count])))
    assert framed.predict(after=later).index.equals(whole[60 + count :])


def test_dates_that_are_missing_are_refused() -> None:
    days = list(pandas.date_range("2020-01-01", periods=60).date)
    for row in (0, 17, 59):
        holes = [None if i == row else day for i, day in enumerate(days)]
        for y in (polars.DataFrame({"day": holes, "sold": Y}), pandas.Series(Y, index=pandas.DatetimeIndex(holes))):
            with pytest.raises(ValueError, match=f"Forecaster.fit: y has no date in row {row}, expected dates that"):
                Forecaster(**QUICK).fit(y)


def test_a_forecaster_that_was_saved_takes_the_columns_by_name(tmp_path: Path) -> None:
    """Without dates of its own it returns arrays; a frame after which it forecasts has its dates."""
    whole = pandas.date_range("2020-01-01", periods=63, freq="MS")
    y = pandas.DataFrame({"a": Y, "b": 2 - Y}, index=whole[:60])
    one = Forecaster(**QUICK).fit(y)
    one.save(tmp_path / "sold.safetensors")
    again = Forecaster.load(tmp_path / "sold.safetensors")
    expected = one.predict()
    np.testing.assert_array_equal(again.predict(), expected.to_numpy())
    pandas.testing.assert_frame_equal(again.predict(after=y[["b", "a"]]), expected, check_freq=False)
    with pytest.raises(ValueError, match=r"after has the columns \['a', 'c'\], expected \['a', 'b'\] as of the fit"):
        again.predict(after=y.rename(columns={"b": "c"}))
    joblib.dump(one, tmp_path / "sold.joblib")
    pandas.testing.assert_frame_equal(joblib.load(tmp_path / "sold.joblib").predict(), expected)
    named = Forecaster(**QUICK).fit(y.rename(columns={"b": ("b", 1)}))
    with pytest.raises(ValueError, match=r"save: the series has the column \('b', 1\), expected a text or an integer"):
        named.save(tmp_path / "other.safetensors")


KNOWN = np.stack([np.cos(np.arange(70.0) ** 2), np.arange(70.0) % 7 == 0], 1)


def calendars(days: Any, names: list[str] | None = None) -> list[Any]:
    """The covariates as frames of pandas and polars, with these days."""
    names = names or ["price", "off"]
    columns = dict(zip(names, KNOWN[: len(days)].T, strict=True))
    return [pandas.DataFrame(columns, index=days), polars.DataFrame({"at": list(days.date), **columns})]


def test_covariates_are_found_by_name_and_date() -> None:
    """The whole calendar, with its columns in another order, serves every call: as the rows of the steps do."""
    days = pandas.date_range("2024-01-01", periods=70)
    y = Y + KNOWN[:60, 0]
    plain = Forecaster(**QUICK).fit(y, KNOWN[:60])
    expected = plain.predict(4, covariates=KNOWN[60:64])
    sold = [pandas.Series(y, index=days[:60]), polars.DataFrame({"day": list(days[:60].date), "sold": y})]
    for own, calendar, other in zip(sold, calendars(days), calendars(days), strict=True):
        one = Forecaster(**QUICK).fit(own, calendar)
        other = other[["off", "price"]] if own is sold[0] else other.select("off", "at", "price")
        for given in (calendar, other):
            found = one.predict(4, covariates=given)
            assert list(found.index if own is sold[0] else found["day"]) == list(
                days[60:64] if own is sold[0] else days[60:64].date
            )
            np.testing.assert_array_equal(np.asarray(found if own is sold[0] else found["sold"]), expected)
        after = own[:55] if own is sold[0] else own.head(55)
        found = one.predict(3, after=after, covariates=other)
        theirs = plain.predict(3, after=y[:55], covariates=KNOWN[:58])
        np.testing.assert_array_equal(np.asarray(found if own is sold[0] else found["sold"]), theirs)


def test_rows_of_a_calendar_that_are_not_read_may_have_gaps() -> None:
    """In a row that is read a gap is an error, which has its date."""
    days = pandas.date_range("2024-01-01", periods=70)
    sold = [pandas.Series(Y[:40], index=days[10:50]), polars.DataFrame({"day": list(days[10:50].date), "sold": Y[:40]})]
    plain = Forecaster(**QUICK).fit(Y[:40], KNOWN[10:50])
    for own, frame in zip(sold, calendars(days), strict=True):
        for row in (9, 55, 51):
            price = [None if i == row else one for i, one in enumerate(KNOWN[:, 0])]
            holed = frame.assign(price=price) if own is sold[0] else frame.with_columns(polars.Series("price", price))
            one = Forecaster(**QUICK).fit(own, holed)
            if row == 51:
                with pytest.raises(ValueError, match=r"predict: Input covariates contains NaN: row 51 \(2024-02-21"):
                    one.predict(covariates=holed)
                continue
            found = one.predict(covariates=holed)
            np.testing.assert_array_equal(
                np.asarray(found if own is sold[0] else found["sold"]), plain.predict(covariates=KNOWN[50:53])
            )


def test_covariates_without_a_date_or_a_column_are_refused() -> None:
    days = pandas.date_range("2024-01-01", periods=70)
    sold = [pandas.Series(Y, index=days[:60]), polars.DataFrame({"day": list(days[:60].date), "sold": Y})]
    for own, calendar, other in zip(sold, calendars(days), calendars(days, ["price", "open"]), strict=True):
        pandas_like = own is sold[0]
        gap = calendar.drop(index=days[[7]]) if pandas_like else calendar.filter(polars.col("at") != days[7].date())
        with pytest.raises(
            ValueError, match=r"^Forecaster.fit: covariates has no row of 2024-01-08.*, expected a row for"
        ):
            Forecaster(**QUICK).fit(own, gap)
        one = Forecaster(**QUICK).fit(own, calendar)
        short = calendar.iloc[:62] if pandas_like else calendar.head(62)
        with pytest.raises(
            ValueError, match=r"covariates has no row of 2024-03-03.*, expected a row for each step that"
        ):
            one.predict(covariates=short)
        with pytest.raises(
            ValueError, match=r"predict: covariates has the columns \['price', 'open'\], expected \['price'"
        ):
            one.predict(covariates=other)


def test_dates_of_two_packages_are_not_taken_by_position() -> None:
    days = pandas.date_range("2024-01-01", periods=60)
    sold = [pandas.Series(Y, index=days), polars.DataFrame({"day": list(days.date), "sold": Y})]
    for own, calendar in zip(sold, calendars(days)[::-1], strict=True):
        with pytest.raises(TypeError, match=r"fit: covariates is a frame of \w+ and the series of \w+, expected dates"):
            Forecaster(**QUICK).fit(own, calendar)
    undated = pandas.DataFrame(dict(zip(["price", "off"], KNOWN[:60].T, strict=True)))
    Forecaster(**QUICK).fit(sold[1], undated)  # by position, as arrays are


@pytest.mark.filterwarnings("ignore:.*no row between 2024-01-09")
def test_steps_that_are_not_equal_take_the_next_rows() -> None:
    """Of a series without weekends in an index without a frequency, what follows is what the calendar has."""
    days = pandas.DatetimeIndex([day for day in pandas.date_range("2024-01-01", periods=98) if day.day % 10])
    calendar = pandas.DataFrame({"price": KNOWN[:70, 0]}, index=days[:70])
    one = Forecaster(**QUICK).fit(pandas.Series(Y, index=days[:60]), calendar)
    plain = Forecaster(**QUICK).fit(Y, KNOWN[:60, 0])
    np.testing.assert_array_equal(one.predict(3, covariates=calendar), plain.predict(3, covariates=KNOWN[60:63, 0]))
    with pytest.raises(ValueError, match="predict: covariates has 1 rows, expected 3, one for each step: 3 that are"):
        one.predict(3, covariates=calendar.iloc[:61])


def test_a_long_frame_becomes_several_series() -> None:
    """Each goes on with its own dates; one calendar serves all."""
    days = pandas.date_range("2024-01-01", periods=70)
    long = pandas.DataFrame({"shop": ["a"] * 60 + ["b"] * 45, "day": [*days[:60], *days[:45]]})
    long["sold"] = [*Y, *(5 + Y[:45])]
    series = {shop: rows.set_index("day")["sold"] for shop, rows in long.groupby("shop")}
    one = Forecaster(**QUICK).fit(series, calendars(days)[0])
    found = one.predict(2, covariates=calendars(days)[0])
    assert [(key, *each.index) for key, each in found.items()] == [("a", *days[60:62]), ("b", *days[45:47])]
    frame = polars.from_pandas(long)
    parts = {shop: rows.drop("shop") for (shop,), rows in frame.partition_by("shop", as_dict=True).items()}
    later = Forecaster(**QUICK).fit(parts, calendars(days)[1]).predict(2, covariates=calendars(days)[1])
    for key, each in later.items():
        np.testing.assert_array_equal(each["sold"].to_numpy(), found[key].to_numpy())


def test_covariates_of_a_forecaster_that_was_saved(tmp_path: Path) -> None:
    """Its columns are taken by name. It has no dates: rows are of the steps alone, but after a frame with dates."""
    days = pandas.date_range("2024-01-01", periods=70)
    calendar = calendars(days)[0]
    one = Forecaster(**QUICK).fit(pandas.Series(Y, index=days[:60]), calendar)
    one.save(tmp_path / "sold.safetensors")
    again = Forecaster.load(tmp_path / "sold.safetensors")
    expected = one.predict(covariates=calendar)
    rows = calendar[["off", "price"]].iloc[60:63]
    np.testing.assert_array_equal(again.predict(covariates=rows), expected.to_numpy())
    found = again.predict(after=pandas.Series(Y, index=days[:60]), covariates=calendar)
    np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())
    with pytest.raises(ValueError, match="predict: covariates has 70 rows, expected 3, one for each step: 3 that are"):
        again.predict(covariates=calendar)


def test_series_of_one_dict_have_their_columns_by_name(tmp_path: Path) -> None:
    """In whatever order each frame has them, and whether or not an array comes first."""
    one = pandas.DataFrame({"a": Y, "b": 100 + np.cos(np.arange(60.0) ** 2)})
    past, later, swapped = one[:50], one[50:], ["b", "a"]
    same = Forecaster(**QUICK).fit({"x": past, "y": past})
    calls: list[Any] = [
        lambda fitted, order: fitted.predict(2)["y"],
        lambda fitted, order: fitted.predict(2, after={"y": one[order]})["y"],
        lambda fitted, order: pandas.Series(fitted.score({"y": later[order]})),
        lambda fitted, order: pandas.DataFrame(fitted.backtest({"y": later[order]})[0]["y"][:, 0]),
        lambda fitted, order: pandas.DataFrame(fitted.predict(interval=0.5)["y"][:, 0]),
    ]
    swap = Forecaster(**QUICK).fit({"x": past, "y": past[swapped]})
    mixed = Forecaster(**QUICK).fit({"w": past.to_numpy(), "x": past, "y": past[swapped]})
    alike = Forecaster(**QUICK).fit(dict.fromkeys("wxy", past))
    for call in calls:
        for order in (list(one), swapped):
            for other, expected in ((swap, same), (mixed, alike)):
                theirs = call(expected, list(one))
                np.testing.assert_array_equal(
                    call(other, order)[theirs.columns] if theirs.ndim > 1 else call(other, order), theirs
                )
    mixed.save(tmp_path / "m.safetensors")
    assert Forecaster.load(tmp_path / "m.safetensors").score({"w": later[swapped]}) == alike.score({"w": later})
    with pytest.raises(
        ValueError, match=r"fit: y\['y'\] has the columns \['a', 'c'\], expected \['a', 'b'\] as of y\['x'\]$"
    ):
        Forecaster(**QUICK).fit({"w": past.to_numpy(), "x": past, "y": past.rename(columns={"b": "c"})})


def test_covariates_of_one_dict_have_their_columns_by_name() -> None:
    known = pandas.DataFrame(KNOWN[:60], columns=["price", "off"])
    y = Y + KNOWN[:60] @ [5, -1]
    expected = Forecaster(**QUICK).fit(dict.fromkeys("abc", y), dict.fromkeys("abc", KNOWN[:60]))
    mixed = {"a": KNOWN[:60], "b": known, "c": known[["off", "price"]]}
    found = Forecaster(**QUICK).fit(dict.fromkeys("abc", y), mixed)
    np.testing.assert_array_equal(found.form_.effects, expected.form_.effects)
    for other, message in (
        (known.rename(columns={"off": "on"}), r"has the columns \['price', 'on'\], expected \['price', 'off'\]"),
        (KNOWN[:60, 0], r"has shape \(60, 1\), expected \(n, 2\)"),
    ):
        with pytest.raises(ValueError, match=rf"fit: covariates\['b'\] {message} as of other series$"):
            Forecaster(**QUICK).fit(dict.fromkeys("ab", y), {"a": known, "b": other})


def test_dates_with_and_without_a_time_zone_are_not_compared() -> None:
    """With the hours of two zones, those of one would be found as others of the other."""
    hours = pandas.date_range("2024-01-01", periods=70, freq="h")
    price, aware = KNOWN[:, 0], hours.tz_localize("Asia/Tokyo")
    for own, other in ((aware, hours), (hours, aware)):
        frames = [
            (pandas.Series(Y[:40], index=own[10:50]), pandas.Series(price, index=other)),
            tuple(
                polars.from_pandas(pandas.DataFrame({"at": at, "z": z}))
                for at, z in ((own[10:50], Y[:40]), (other, price))
            ),
        ]
        got = "with a" if other is aware else "without a"
        for y, x in frames:
            with pytest.raises(ValueError, match=f"fit: covariates has dates {got} time zone, expected dates"):
                Forecaster(**QUICK).fit(y, x)


def test_covariates_after_a_few_dates_are_of_the_steps_of_their_series() -> None:
    """Of a dict whose series have months and days, where the months come first."""
    days = pandas.date_range("2020-01-01", periods=1900)
    price = pandas.Series(np.cos(np.arange(1900.0) ** 2), index=days)
    months = pandas.date_range("2020-01-01", periods=60, freq="MS")
    series = {"a": 5 * price[months], "b": 5 * price[days[:60]]}
    one = Forecaster(**QUICK).fit(series, price)
    after = pandas.Series(5 * price[days[60:62]].to_numpy(), index=pandas.DatetimeIndex(list(days[60:62])))
    found = one.predict(3, after={"b": after}, covariates=price)["b"]
    rows = one.predict(3, after={"b": after.to_numpy()}, covariates={"b": price[days[60:65]].to_numpy()})["b"]
    np.testing.assert_array_equal(found, rows)
    assert found.index.equals(days[62:65])


@pytest.mark.parametrize("kind", ["objects", "date32[pyarrow]", "timestamp[us][pyarrow]"])
def test_dates_of_other_kinds_in_an_index_of_pandas(kind: str) -> None:
    """They go on, have to increase, and covariates are found by them, as with an index of pandas' own dates."""
    days = pandas.date_range("2024-01-01", periods=70)
    whole = pandas.Index(days.date, dtype=object if kind == "objects" else kind)
    y, x = pandas.Series(Y + KNOWN[:60, 0], index=whole[:60]), pandas.Series(KNOWN[:, 0], index=whole)
    found = Forecaster(**QUICK).fit(y[3:], x).predict(covariates=x)
    theirs = Forecaster(**QUICK).fit(y.to_numpy()[3:], KNOWN[3:60, 0]).predict(covariates=KNOWN[60:63, 0])
    np.testing.assert_array_equal(found, theirs)
    assert list(found.index) == list(days[60:63])
    with pytest.raises(ValueError, match=r"^Forecaster.fit: y has the date 2024-02-28 .*after 2024-02-29"):
        Forecaster(**QUICK).fit(y[::-1])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("freq", ["D", "MS", "ME", "h/Europe/Paris"])
def test_a_few_dates_after_a_gap_go_on_in_the_steps_of_the_fitted_ones(freq: str, count: int) -> None:
    """With both packages, and each fitted with the other."""
    freq, _, zone = freq.partition("/")
    whole = pandas.date_range("2020-01-01", periods=80, freq=freq, tz=zone or None)
    times = [pandas.DatetimeIndex(list(part)) for part in (whole[:60], whole[70 - count : 70])]
    frames = [[pandas.Series(Y[: len(at)], index=at) for at in times]]
    frames += [[polars.DataFrame({"at": at.to_pydatetime().tolist(), "y": Y[: len(at)]}) for at in times]]
    if zone:
        frames[1] = [one.with_columns(polars.col("at").dt.convert_time_zone(zone)) for one in frames[1]]
    for fitted, _ in frames:
        for _, after in frames:
            found = (
                like(after, np.zeros(3), fitted) if hasattr(after, "index") else like(after, np.zeros((3, 1)), fitted)
            )
            assert list(found.index if hasattr(found, "index") else found["at"]) == list(whole[70:73])
    if freq == "MS":  # not on the first of a month
        off = frames[1][1].with_columns(polars.col("at").dt.offset_by("3d"))
        assert isinstance(like(off, np.zeros((3, 1)), frames[1][0]), np.ndarray)


def test_a_time_of_the_day_is_no_date() -> None:
    hours = [datetime(2024, 1, 1, hour % 24).time() for hour in range(60)]
    with pytest.raises(ValueError, match=r"^Forecaster.fit: y has column 'at' of dtype Time, expected numbers"):
        Forecaster(**QUICK).fit(polars.DataFrame({"at": hours, "y": Y}))
