"""Names of columns of frames that estimators are given. ``make test-data`` runs this."""

from __future__ import annotations

import datetime
import re
import warnings
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from sklearn.utils.estimator_checks import check_dataframe_column_names_consistency

from rotrnn.estimators import SequenceClassifier, SequenceRegressor

QUICK: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 1}
NAMES = list("abcdef")
X = np.random.default_rng(0).standard_normal((20, 6))
Y = np.arange(20) % 2
SAID = "The feature names should match those that were passed during fit.\n"


@pytest.mark.filterwarnings("ignore:.*feature names")  # it goes on from a frame to arrays, which warns
@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor])
def test_the_check_of_scikit_learn(kind: Any) -> None:
    check_dataframe_column_names_consistency(kind.__name__, kind(**QUICK))


@pytest.mark.parametrize("package", [pandas, polars])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[NAMES[::-1]], "Feature names must be in the same order as they were in fit.\n"),
        (
            lambda x: x.rename(columns={"c": "z"}) if hasattr(x, "iloc") else x.rename({"c": "z"}),
            "Feature names unseen at fit time:\n- z\nFeature names seen at fit time, yet now missing:\n- c\n",
        ),
        (lambda x: x[NAMES[:5]], "Feature names seen at fit time, yet now missing:\n- f\n"),
    ],
)
def test_other_names_are_refused(package: Any, change: Any, said: str) -> None:
    """Of steps, the columns of a frame (n, time), and of the features of each step in a list of frames."""
    steps = package.DataFrame(dict(zip(NAMES, X.T, strict=True)))
    for x, changed in ((steps, change(steps)), ([steps] * 20, [change(steps)] * 20)):
        one = SequenceClassifier(**QUICK).fit(x, Y)
        assert one.feature_names_in_.tolist() == NAMES
        kept = one.predict_proba(x)
        for call in (
            lambda one=one, x=changed: one.predict(x),
            lambda one=one, x=changed: one.predict_proba(x),
            lambda one=one, x=changed: one.score(x, Y),
            lambda one=one, x=changed: one.partial_fit(x, Y),
        ):
            with pytest.raises(ValueError, match=f"^SequenceClassifier.*: {re.escape(SAID + said)}$"):
                call()
        np.testing.assert_array_equal(one.predict_proba(x), kept)


def test_arrays_and_names_that_are_numbers_are_taken_by_place() -> None:
    """An array has any number of steps. It warns after a frame, as a frame does after an array; a new fit forgets."""
    x = pandas.DataFrame(X, columns=NAMES)
    one = SequenceRegressor(**QUICK).fit(x, X[:, 0])
    with pytest.warns(UserWarning, match=r"^SequenceRegressor\.predict: X does not have valid feature names"):
        np.testing.assert_array_equal(one.predict(X), one.predict(x))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert one.predict(X[:, :3]).shape == (20,)
    one.fit(pandas.DataFrame(X), X[:, 0])
    assert not hasattr(one, "feature_names_in_")
    assert one.predict(X[:, :3]).shape == (20,)
    with pytest.warns(UserWarning, match="X has feature names, but fit was without") as caught:
        one.predict(x)
    assert [one.filename for one in caught] == [__file__]


def test_names_of_one_call_agree() -> None:
    frame = pandas.DataFrame(X, columns=NAMES)
    with pytest.raises(ValueError, match=r"fit: X\[2\] has the columns \['f', .*, expected \['a', .* as of X\[0\]"):
        SequenceClassifier(**QUICK).fit([frame, X, frame[NAMES[::-1]]], [0, 1, 0])
    with pytest.raises(TypeError, match="fit: X has a column 3, expected texts as names of all columns, or of none"):
        SequenceClassifier(**QUICK).fit(frame.rename(columns={"d": 3}), Y)
    counted = pandas.DataFrame(X)
    pairs = frame.set_axis(pandas.MultiIndex.from_product([["a", "b"], [0, 1, 2]]), axis=1)
    for other in (counted, pairs):  # names that are not texts
        with pytest.raises(ValueError, match=r"fit: X\[1\] has the columns .*, expected .* as of X\[0\]"):
            SequenceClassifier(**QUICK).fit([other, other[other.columns[::-1]]], [0, 1])


@pytest.mark.parametrize("package", [pandas, polars])
def test_the_hint_of_one_frame_or_series_is_right(package: Any) -> None:
    """A list of one frame is one sequence, and so is a list of one series."""
    frame = package.DataFrame(dict(zip(NAMES, X.T, strict=True)))
    for x, series in (([frame] * 6, frame), ([frame["a"]] * 6, frame["a"])):
        one = SequenceRegressor(**QUICK).fit(x, X[0])
        with pytest.raises(ValueError, match=r"(: |; )\[x\] is one sequence$"):
            one.predict(series)
        assert one.predict([series]).shape == (1,)


def test_dates_of_polars_are_not_numbers() -> None:
    """They would be days since 1970, in a column that has no name among the names of the fit."""
    dates = [datetime.date(2020, 1, 1 + i) for i in range(6)]
    dated = polars.DataFrame({"at": dates, "u": X[0], "v": X[1]})
    for x, name in ((dated, "X"), ([dated] * 2, r"X\[0\]"), ([dated[:, 1:], dated], r"X\[1\]")):
        with pytest.raises(ValueError, match=rf"fit: {name} has the column of dates 'at', expected numbers$"):
            SequenceClassifier(**QUICK).fit(x, [0, 1, 0, 1, 0, 1][: len(x)])
    with pytest.raises(ValueError, match=r"fit: X has the columns of dates 'at', 'to', expected one$"):
        SequenceClassifier(**QUICK).fit(dated.with_columns(polars.Series("to", dates)), [0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("package", [pandas, polars])
def test_names_of_intervals_are_the_names_of_steps(package: Any) -> None:
    """Of a frame (n, time); a list has Series, or frames of one column, whose names agree. In fit as in later calls."""
    steps, dt = (package.DataFrame(dict(zip(NAMES, one.T, strict=True))) for one in (X, np.abs(X)))
    one = SequenceRegressor("s5", **QUICK).fit(steps, X[:, 0], dt=dt)
    expected = one.predict(steps, dt=dt)
    np.testing.assert_array_equal(one.predict(steps, dt=np.abs(X)), expected)
    told = r"dt has the columns \['f', .*, expected \['a', .* as of X$"
    with pytest.raises(ValueError, match=f"predict: {told}"):
        one.predict(steps, dt=dt[NAMES[::-1]])
    with pytest.raises(ValueError, match=f"fit: {told}"):
        SequenceRegressor("s5", **QUICK).fit(steps, X[:, 0], dt=dt[NAMES[::-1]])

    rows, times = [package.DataFrame({"u": row}) for row in X], [package.DataFrame({"dt": row}) for row in np.abs(X)]
    one.fit(rows, X[:, 0], dt=times)
    for same in ([each["dt"] for each in times], np.abs(X), dt):
        np.testing.assert_array_equal(one.predict(rows, dt=same), one.predict(rows, dt=times))
    wide = package.DataFrame({"dt": np.ones(6), "u": np.ones(6)})
    for wrong, message in (
        ([wide] * 20, r"dt\[0\] has the columns \['dt', 'u'\], expected one, the intervals"),
        ([*times[:19], wide[["u"]]], r"dt\[19\] has the columns \['u'\], expected \['dt'\] as of dt\[0\]"),
        (times[0]["dt"], r"dt has intervals of 6 sequences, expected 20"),
    ):
        with pytest.raises(ValueError, match=f"^SequenceRegressor.predict: {message}$"):
            one.predict(rows, dt=wrong)


@pytest.mark.parametrize("package", [pandas, polars])
def test_frames_of_one_row_are_not_intervals(package: Any) -> None:
    """Of different lengths they do not only differ in the names of columns."""
    rows = [X[0], X[1][:5]]
    wide = [package.DataFrame(np.ones((1, len(row)))) for row in rows]
    with pytest.raises(ValueError, match=r"fit: dt\[0\] has the columns \[.*0'?, .*\], expected one, the intervals$"):
        SequenceRegressor("s5", **QUICK).fit(rows, [0, 1], dt=wide)


def _with(values: Any) -> pandas.DataFrame:
    """Returns intervals (3, 2), those of the step "b" from `values` (3,)."""
    return pandas.DataFrame({"a": np.ones(3), "b": values})


@pytest.mark.parametrize(
    ("values", "row", "got"),
    [
        ([1, "n/a", 2], 1, "'n/a'"),
        (["x"] * 3, 0, "'x'"),
        (pandas.date_range("2020", periods=3), 0, r"Timestamp\('2020-01-01 00:00:00'\)"),
        ([True] * 3, 0, "True"),
        (pandas.array([True] * 3, "boolean"), 0, "True"),
    ],
)
def test_intervals_that_are_no_numbers_are_named(values: Any, row: int, got: str) -> None:
    """By step and column, beside numbers, where all cells become objects."""
    dt, expected = _with(values), "expected floating-point numbers or integers$"
    one = SequenceRegressor("s5", **QUICK)
    with pytest.raises(TypeError, match=rf"fit: dt, sequence {row}, step 1, column 'b': got {got}, {expected}"):
        one.fit(X[:3, :2], [0, 1, 2], dt=dt)
    if (cells := dt["b"]).dtype.kind == "O":
        for each, column in ((cells, ""), (dt[["b"]], ", column 'b'")):
            with pytest.raises(TypeError, match=rf"fit: dt, sequence 1, step {row}{column}: got {got}, {expected}"):
                one.fit(X[:2, :3], [0, 1], dt=[np.ones(3), each])


def test_intervals_among_objects() -> None:
    """Numbers are read, and what is missing is NaN."""
    one = SequenceRegressor("s5", **QUICK).fit(X[:3, :2], [0, 1, 2], dt=_with(pandas.Series([1, 2.5, 3], dtype=object)))
    expected = one.predict(X[:3, :2], dt=np.array([[1, 1], [1, 2.5], [1, 3]]))
    np.testing.assert_array_equal(one.predict(X[:3, :2], dt=_with(np.array([1, 2.5, 3], object))), expected)
    for missing in (None, pandas.NA, pandas.NaT):
        dt = _with(np.array([1, missing, 3], object))
        with pytest.raises(ValueError, match="dt, sequence 1, step 1: got nan, expected intervals from 0 to"):
            one.predict(X[:3, :2], dt=dt)
    with pytest.raises(
        ValueError, match="dt, sequence 2: int too large to convert to float, expected intervals from 0"
    ):
        one.predict(X[:3, :2], dt=_with(np.array([1, 2, 10**5000], object)))


def test_intervals_of_pandas_own_integers() -> None:
    """Whose frame would be an array of objects; one that is missing is told."""
    dt = pandas.DataFrame(np.ones((20, 6), int)).astype("Int64")
    one = SequenceRegressor("s5", **QUICK).fit(X, X[:, 0], dt=dt)
    np.testing.assert_array_equal(one.predict(X, dt=dt), one.predict(X, dt=np.ones((20, 6))))
    dt.iloc[3, 4] = pandas.NA
    with pytest.raises(ValueError, match=r"predict: dt, sequence 3, step 4: got nan, expected intervals from 0 to"):
        one.predict(X, dt=dt)


@pytest.mark.parametrize("wrong", [{"a": 1}, (one for one in X), [], "a", 5])
def test_what_is_no_x_is_an_error_without_a_warning(wrong: Any) -> None:
    one = SequenceClassifier(**QUICK).fit(pandas.DataFrame(X, columns=NAMES), Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((TypeError, ValueError), match=r"^SequenceClassifier.predict: X is .*, expected"):
            one.predict(wrong)


def test_every_sequence_without_names_gives_a_warning() -> None:
    """Wherever it stands in a list with frames; a Series has the name of no column."""
    frames = [pandas.DataFrame(row[:, None], columns=["u"]) for row in X]
    one = SequenceClassifier(**QUICK).fit(frames, Y)
    expected = one.predict_proba(frames)
    for place, other in ((0, X[0][:, None]), (7, X[7]), (19, frames[19]["u"])):
        mixed = [other if i == place else frame for i, frame in enumerate(frames)]
        with pytest.warns(UserWarning, match=rf"predict_proba: X\[{place}\] does not have valid feature names, but"):
            np.testing.assert_array_equal(one.predict_proba(mixed), expected)
        for call in ("fit", "partial_fit"):
            told = rf"{call}: X\[{place}\] does not have valid feature names, but others have them: its columns are not"
            with pytest.warns(UserWarning, match=told):
                getattr(SequenceRegressor(**QUICK), call)(mixed, Y)
    with pytest.warns(UserWarning, match="predict_proba: X does not have valid feature names, but"):
        np.testing.assert_array_equal(one.predict_proba([frame["u"] for frame in frames]), expected)


def test_a_list_of_series_after_frames_of_several_columns() -> None:
    """Each is a sequence of one feature."""
    frames = [pandas.DataFrame(X[i : i + 2].T, columns=["u", "v"]) for i in range(4)]
    one = SequenceClassifier(**QUICK).fit(frames, [0, 1, 0, 1])
    calls: list[Any] = [lambda x: one.predict(x), lambda x: one.score(x, Y[:4]), lambda x: one.partial_fit(x, Y[:4])]
    for series in ([frame["u"] for frame in frames], [polars.Series("u", row) for row in X[:4]], list(X[:4])):
        for call in calls:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(ValueError, match=r"^X has 1 features, but SequenceClassifier is expecting 2 feat"):
                    call(series)


def test_two_columns_of_one_name_are_refused() -> None:
    """Names that are not texts count columns."""
    twice = pandas.DataFrame(X, columns=[*"abcdeb"])
    for x, y, name in ((twice, Y, "X"), ([pandas.DataFrame(X, columns=NAMES), twice], [0, 1], r"X\[1\]")):
        with pytest.raises(ValueError, match=rf"fit: {name} has two columns 'b', expected columns of different names$"):
            SequenceClassifier(**QUICK).fit(x, y)
    SequenceClassifier(**QUICK).fit(pandas.DataFrame(X, columns=[0, 1, 2] * 2), Y)


@pytest.mark.parametrize(
    ("missing", "dtype"),
    [*((one, dtype) for one in (None, pandas.NA) for dtype in ("Int64", "boolean", object)), (pandas.NaT, object)],
)
def test_what_is_missing_is_named(missing: Any, dtype: Any) -> None:
    """By column and row, of a frame of numbers as of objects."""
    frame = pandas.DataFrame({"a": np.arange(3.0), "b": pandas.array([1, missing, 0], dtype=dtype)})
    renamed = frame[["b"]].rename(columns={"b": "a"})
    one, other = SequenceRegressor(**QUICK), SequenceClassifier(**QUICK)
    for call, place in (
        (lambda: one.fit(frame, [0, 1, 2]), "sequence 1, step 1, column 'b'"),
        (lambda: one.fit([frame[["a"]], renamed], [0, 1]), "sequence 1, step 1, column 'a'"),
        (lambda: one.fit([frame, frame], [0, 1]), "sequence 0, step 1, column 'b'"),
        (lambda: one.fit([frame["a"], frame["b"]], [0, 1]), "sequence 1, step 1, feature 0"),
        (lambda: one.fit(X[:3], frame), "row 1, column 'b'"),
        (lambda: one.fit(X[:3], frame["b"]), "row 1"),
        (lambda: other.fit(X[:3], frame["b"]), "row 1"),
        (lambda: one.fit(X[:3], list(frame["b"])), "row 1"),
        (lambda: one.fit([X[0], [1, missing]], [0, 1]), "sequence 1, step 1, feature 0"),
        (lambda: other.fit(X[:3], [0, 1, 0], frame["b"]), "row 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"fit: Input (X|y|sample_weight) contains NaN: {place}$"):
            call()


def test_texts_and_gaps_of_other_columns_are_named() -> None:
    with pytest.raises(ValueError, match=r"X has dtype object, .*: could not .*'n/a': sequence 1, step 1, column 'b'$"):
        SequenceRegressor(**QUICK).fit(pandas.DataFrame({"a": [1, 2], "b": [1, "n/a"]}), [0, 1])
    with pytest.raises(ValueError, match=r"Input X contains NaN: sequence 0, step 1, column 'b'$"):
        SequenceRegressor(**QUICK).fit([polars.DataFrame({"a": [1, 2], "b": [1, None]})], [0])
    with pytest.raises(ValueError, match=r"Input y contains NaN: row 1$"):
        SequenceClassifier(**QUICK).fit(X[:2], pandas.array(["a", pandas.NA], dtype="string"))
