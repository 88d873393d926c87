"""Gaps, categories and dates before an estimator: the example of docs/data.md, beside NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from rotrnn.estimators import SequenceClassifier
from rotrnn.tasks import Table

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
N, T = 60, 12


def log() -> pandas.DataFrame:
    """Machines that are in another mode if they are to fail; a third of the temperatures is missing, and one mode is
    only in the last machines, which are not for training."""
    rng = np.random.default_rng(0)
    machine = np.repeat(np.arange(N), T)
    temperature = np.where(rng.random(N * T) < 1 / 3, np.nan, 20 + rng.standard_normal(N * T))
    mode = np.where(machine % 2, "fast", "slow").astype(object)
    mode[machine > 57] = "new"
    at = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(7 * np.arange(N * T), unit="h")
    rows = {"machine": machine, "at": at, "temperature": temperature, "mode": mode, "fault": machine % 2 > 0}
    return pandas.DataFrame(rows)


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column that is made equals a formula in NumPy over the training rows."""
    monkeypatch.chdir(tmp_path)
    rows = log()
    rows.to_csv("log.csv", index=False)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    (example,) = [one for one in examples if "pandas" in one]
    exec(example, names)
    train = rows.machine < 40
    hours = rows["at"].dt.hour.to_numpy()
    made = {
        "simpleimputer__temperature": rows.temperature.fillna(rows.temperature[train].mean()),
        "simpleimputer__missingindicator_temperature": rows.temperature.isna(),
        "onehotencoder__mode_fast": rows["mode"] == "fast",
        "onehotencoder__mode_slow": rows["mode"] == "slow",
        "functiontransformer__at_sin": np.sin(2 * np.pi * hours / 24),
        "functiontransformer__at_cos": np.cos(2 * np.pi * hours / 24),
    }
    assert names["columns"].get_feature_names_out().tolist() == list(made)
    found = np.concatenate([names["x"][one] for one in range(N)])
    np.testing.assert_allclose(found, np.stack([*made.values()], 1).astype(float), rtol=1e-12, atol=1e-12)
    assert not found[-T:, 2:4].any()  # a mode that was not there in training
    later = [names["x"][one] for one in range(40, 58)]
    assert names["classifier"].score(later, names["y"][40:58]) == 1


def test_a_pipeline_of_rows_that_are_sequences() -> None:
    """Gaps are filled in every fold by its own rows."""
    rng = np.random.default_rng(1)
    x = pandas.DataFrame(rng.standard_normal((90, 5)), columns=[*"abcde"])
    y = np.where(x.sum(axis=1) > 0, "up", "down")
    x = x.mask(rng.random(x.shape) < 0.1).assign(kind=np.array(["left", "right"])[np.arange(90) % 2])
    columns = make_column_transformer(
        (SimpleImputer(add_indicator=True), [*"abcde"]),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind"]),
    )
    whole = make_pipeline(columns, SequenceClassifier(width=8, depth=1, epochs=40, learning_rate=0.02))
    assert cross_val_score(whole, x, y, cv=3).mean() > 0.6  # chance is a half
    with pytest.raises(ValueError, match=r"X has dtype object, expected numbers: could not convert string to float"):
        SequenceClassifier().fit(x, y)


def test_the_features_of_a_table_are_those_of_scikit_learn(tmp_path: Path) -> None:
    """Its imputer and encoder, fitted to the training rows, on all rows in one order. A mode that training does not
    have is in the file."""
    rows = log().sample(frac=1, random_state=3)  # sequences lie among each other
    rows.to_csv(tmp_path / "log.csv", index=False)
    settings: dict[str, Any] = {"categories": ("mode",), "missing": "mean", "features": ("temperature", "mode")}
    made = Table(str(tmp_path / "log.csv"), sequence="machine", target=("fault",), seed=5, **settings)
    with pytest.warns(UserWarning, match="new"):
        task: Any = made.load()
    data = task.train.data
    names = [str(one) for one in rows.machine.drop_duplicates()]
    rows = rows.sort_values("machine", key=lambda column: column.astype(str).map(names.index), kind="stable")
    train = rows[data.steps_of(task.train.rows)]
    assert train["mode"].nunique() == 2
    columns = make_column_transformer(
        (SimpleImputer(add_indicator=True), ["temperature"]),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["mode"]),
    )
    expected = columns.fit(train).transform(rows)
    assert data.names == ("temperature", "temperature_missing", "mode_fast", "mode_slow")
    np.testing.assert_allclose(data.values, expected, rtol=1e-14)


def test_a_table_of_parquet_has_the_features_of_csv(tmp_path: Path) -> None:
    """Dates, missing numbers and texts come as other types from there."""
    rows, found = log().iloc[: 40 * T], []
    rows.to_csv(tmp_path / "log.csv", index=False)
    rows.to_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        settings: dict[str, Any] = {"categories": ("mode",), "times": ("at",), "missing": "mean"}
        task: Any = Table(str(tmp_path / name), sequence="machine", target=("fault",), **settings).load()
        found.append(task.train.data)
    assert found[0].names == found[1].names
    assert {"at_week_sin", "temperature_missing", "mode_fast"} < set(found[0].names)
    np.testing.assert_array_equal(found[0].values, found[1].values)
