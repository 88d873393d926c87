"""Names of columns of frames that estimators are given. ``make test-data`` runs this."""

from __future__ import annotations

import datetime
import re
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
    with pytest.warns(UserWarning, match="X has feature names, but fit was without"):
        one.predict(x)


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


def test_dates_of_polars_are_not_numbers() -> None:
    """They would be days since 1970, in a column that has no name among the names of the fit."""
    dates = [datetime.date(2020, 1, 1 + i) for i in range(6)]
    dated = polars.DataFrame({"at": dates, "u": X[0], "v": X[1]})
    for x, name in ((dated, "X"), ([dated] * 2, r"X\[0\]"), ([dated[:, 1:], dated], r"X\[1\]")):
        with pytest.raises(ValueError, match=rf"fit: {name} has the column of dates 'at', expected numbers$"):
            SequenceClassifier(**QUICK).fit(x, [0, 1, 0, 1, 0, 1][: len(x)])
    with pytest.raises(ValueError, match=r"fit: X has the columns of dates 'at', 'to', expected one$"):
        SequenceClassifier(**QUICK).fit(dated.with_columns(polars.Series("to", dates)), [0, 1, 0, 1, 0, 1])
