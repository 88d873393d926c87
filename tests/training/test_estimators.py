"""Estimators: what they learn, their form, and scikit-learn's own checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import rotrnn
from rotrnn import LRU
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.estimators import Estimator, Forecaster, SequenceClassifier, SequenceRegressor
from rotrnn.estimators.base import middle
from rotrnn.estimators.forecaster import share_of
from rotrnn.nn.layer import astype, flatten
from rotrnn.tasks.lags import chosen
from rotrnn.training.loop import Interrupted
from rotrnn.training.run import Run

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"width": 8, "depth": 1, "epochs": 30, "learning_rate": 0.02}
QUICK: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 1}
CHECKED: dict[str, Any] = {**SMALL, "batch_size": 16, "patience": None, "validation_fraction": 0.0, "width": 16}

COLUMNS = "the columns of x (n, time) are steps, of which there may be any number: features are those of a step"
EXCLUDED = {
    "check_n_features_in": COLUMNS,
    "check_n_features_in_after_fitting": COLUMNS,
    "check_estimators_partial_fit_n_features": COLUMNS,
    "check_classifiers_train": COLUMNS + " (the rest of it is test_classes_that_are_far_apart)",
    "check_regressors_train": COLUMNS + " (the rest of it is test_sums_are_learnt)",
    "check_sample_weight_equivalence_on_dense_data": "batches are of sequences, weighted or not, and training is in "
    "float32: test_a_weight_counts_as_so_many_sequences has whole batches in float64",
    "check_do_not_raise_errors_in_init_or_set_params": "it takes **settings, which all estimators share, for a setting",
}
"""Checks of scikit-learn that are left out, with the reason. They are expected to fail: one that no longer does is
reported."""


OTHER = {SequenceClassifier: "regressor", SequenceRegressor: "classifier"}


@pytest.mark.whole
@parametrize_with_checks(
    [SequenceClassifier("min_gru", **CHECKED), SequenceRegressor("min_gru", **CHECKED)],
    expected_failed_checks=lambda estimator: {
        name: why for name, why in EXCLUDED.items() if name != f"check_{OTHER[type(estimator)]}s_train"
    },
)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def noise(n: int = 150, features: int = 2) -> Any:
    return np.random.default_rng(0).standard_normal((n, 9, features))


def test_classes_that_are_far_apart() -> None:
    """Three classes of any names, by the mean of their steps, many deviations apart; every form of x gives the same."""
    y = np.array(["north", "south", "west"])[np.arange(90) % 3]
    x = noise(90) + 3 * (np.arange(90) % 3)[:, None, None]
    one = SequenceClassifier(**SMALL).fit(x, y)
    assert one.score(x, y) > 0.95
    assert one.classes_.tolist() == ["north", "south", "west"]
    probable = one.predict_proba(x)
    np.testing.assert_allclose(probable.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(one.classes_[probable.argmax(1)], one.predict(x))
    np.testing.assert_array_equal(SequenceClassifier(**SMALL).fit(list(x), y).predict_proba(list(x)), probable)
    again = clone(one).fit(x, y)
    np.testing.assert_array_equal(again.predict_proba(x), probable)
    flat = SequenceClassifier(**SMALL).fit(x[..., 0], y)
    np.testing.assert_array_equal(flat.predict(x[..., :1]), flat.predict(x[..., 0].tolist()))


def test_ragged_sequences_do_not_see_padding() -> None:
    rng = np.random.default_rng(1)
    x = [rng.standard_normal((3 + i % 7, 2)) + i % 2 for i in range(60)]
    one = SequenceClassifier(**SMALL).fit(x, np.arange(60) % 2)
    together = one.predict_proba(x)
    alone = np.concatenate([one.predict_proba([sequence]) for sequence in x])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-13)  # float64, some hundred roundings of order one


def test_sums_are_learnt_and_scales_do_not_matter() -> None:
    """Targets a thousand times as large and shifted give as large predictions, to rounding of float32."""
    x = noise()
    y = x[:, :, 0].sum(1)
    plain = SequenceRegressor(**SMALL).fit(x[:100], y[:100])
    assert plain.score(x[100:], y[100:]) > 0.7
    large = SequenceRegressor(**SMALL).fit(50 + 1000 * x[:100], 1000 * y[:100] - 300)
    found = (large.predict(50 + 1000 * x[100:]) + 300) / 1000
    np.testing.assert_allclose(found, plain.predict(x[100:]), rtol=0, atol=5e-2)
    several = SequenceRegressor(**SMALL).fit(x, np.stack([y, -y], 1))
    assert several.predict(x).shape == (150, 2)


def test_scales_are_left_out_where_asked_for(tmp_path: Path) -> None:
    x = 5 + 3 * noise()[:20]
    for kind, y in ((SequenceRegressor, x[:, :, 0].sum(1)), (SequenceClassifier, np.arange(20) % 2)):
        for scale in (True, False):
            folder = tmp_path / f"{kind.__name__}-{scale}"
            kind(**{**SMALL, "epochs": 1}, scale=scale, folder=folder).fit(x, y)
            assert rotrnn.load_recipe(folder / "recipe.toml").task.scale is scale  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=f"{kind.__name__}.fit: scale is 2, expected True or False"):
            kind(scale=2).fit(x, y)


def test_offsets_of_many_deviations_do_not_matter() -> None:
    """In float32, numbers of order one have no digits left beside 1e8. Training sees the same to rounding, with or
    without offsets, and so scores agree to what its 90 updates make of that."""
    x = noise()
    y = x[:, :, 0].sum(1)

    def score(dx: float, dy: float) -> float:
        return SequenceRegressor(**SMALL).fit(x[:100] + dx, y[:100] + dy).score(x[100:] + dx, y[100:] + dy)

    plain = score(0, 0)
    assert plain > 0.7
    np.testing.assert_allclose([score(1e8, 0), score(0, 1e12), score(1e8, 1e12)], plain, rtol=0, atol=1e-3)
    classes = (y > 0) + 0
    one, far = (SequenceClassifier(**SMALL).fit(x + offset, classes) for offset in (0, 1e8))
    np.testing.assert_allclose(far.predict_proba(x + 1e8), one.predict_proba(x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("period", [0, 1])
def test_forecasts_far_from_zero_are_as_good(period: int) -> None:
    y = 10 * np.sin(np.arange(200) / 3)
    one, far = (Forecaster(horizon=4, period=period, window=40, **SMALL).fit(y[:150] + offset) for offset in (0, 1e8))
    assert one.score(y[150:]) > 0.8
    assert abs(far.score(y[150:] + 1e8) - one.score(y[150:])) < 1e-3
    np.testing.assert_allclose(far.predict(10) - 1e8, one.predict(10), rtol=0, atol=1e-2)


def test_quantiles_bracket_as_many_targets_as_they_say() -> None:
    rng = np.random.default_rng(0)
    x, y = noise(600), rng.standard_normal(600)  # nothing to learn but the quantiles of y
    one = SequenceRegressor(objective="quantile", quantiles=(0.1, 0.5, 0.9), **SMALL).fit(x[:400], y[:400])
    found = one.predict_quantiles(x[400:])
    assert found.shape == (200, 3)
    np.testing.assert_array_equal(one.predict(x[400:]), found[:, 1])
    inside = np.mean((found[:, 0] < y[400:]) & (y[400:] < found[:, 2]))
    assert 0.65 < inside < 0.95  # 0.8, with a deviation of 0.03 by the 200 targets and as much by what was fitted


def test_quantiles_do_not_cross() -> None:
    """After a single epoch the model's own do. In order, their loss is smaller."""
    levels = tuple(np.linspace(0.3, 0.7, 9).tolist())
    x, y = noise(200), np.random.default_rng(1).standard_normal(200)
    one = SequenceRegressor(objective="quantile", quantiles=levels, **SMALL | {"epochs": 1}).fit(x, y)
    own, found = one._outputs("predict", x, None), one.predict_quantiles(x)
    assert (np.diff(own) < 0).any()
    assert (np.diff(found) >= 0).all()
    np.testing.assert_array_equal(np.sort(own), found)
    losses = [
        np.maximum(np.array(levels) * (y[:, None] - q), (np.array(levels) - 1) * (y[:, None] - q)) for q in (found, own)
    ]
    assert (losses[0].sum(1) <= losses[1].sum(1) * (1 + 1e-12)).all()
    series = Forecaster(horizon=3, objective="quantile", quantiles=levels, **SMALL | {"epochs": 1}).fit(y)
    assert (np.diff(series.predict(3, quantiles=True)) >= 0).all()


@pytest.mark.parametrize("low", [0.1, 0.2, 0.3, 0.4])
def test_of_two_quantiles_as_near_to_the_median_the_first_is_predicted(low: float) -> None:
    assert middle((low / 2, low, 1 - low)) == 1


def test_several_labels_and_weights() -> None:
    x = noise(200)
    y = (x.sum(1) > np.array([0, 6.0])).astype(int)  # ones of the second label are rare
    plain, balanced = (SequenceClassifier(class_weight=one, **SMALL).fit(x, y) for one in (None, "balanced"))
    assert plain.predict(x).shape == plain.predict_proba(x).shape == (200, 2)
    assert balanced.predict_proba(x)[:, 1].mean() > plain.predict_proba(x)[:, 1].mean()
    assert plain.score(x, y) == np.mean((plain.predict(x) == y).all(1))
    weighted = SequenceClassifier(class_weight={1: 50.0}, **SMALL).fit(x, y[:, 1])
    assert weighted.predict_proba(x)[:, 1].mean() > plain.predict_proba(x)[:, 1].mean()
    with pytest.raises(ValueError, match=r"SequenceClassifier.fit: class_weight has 2, expected one of \[0, 1\]"):
        SequenceClassifier(class_weight={2: 1.0}).fit(x, y[:, 0])


def test_scores_by_weights_are_scikit_learns(fitted: Any) -> None:
    """And those of repeated sequences."""
    x, weights = noise(40)[..., 0], np.arange(40) % 4
    for one, y in ((fitted["c"], np.arange(40) % 2), (fitted["r"], STEPS)):
        theirs = accuracy_score if one is fitted["c"] else r2_score
        found = one.score(x, y, sample_weight=weights)
        assert abs(found - theirs(y, one.predict(x), sample_weight=weights)) < 1e-12
        rows = np.repeat(np.arange(40), weights)
        assert abs(found - one.score(x[rows], y[rows])) < 1e-12
        assert one.score(x, y, sample_weight=np.full(40, 3)) == pytest.approx(one.score(x, y), rel=1e-12)


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor])
def test_weights_that_are_equal_or_zero_in_a_fit(kind: Any) -> None:
    """Equal weights change no bit, nor do sequences of weight 0, whatever is in them; other weights do."""
    x, y = noise(40), np.arange(40) % 3
    plain = kind(**SMALL).fit(x[:30], y[:30]).predict(x)
    weights = np.r_[np.full(30, 0.3), np.zeros(10)]
    spoilt = np.where(weights[:, None, None] > 0, x, 1e6)
    more = np.where(weights > 0, y, 7)  # a class, or target, of the sequences that are left out alone
    one = kind(**SMALL).fit(spoilt, more, sample_weight=weights)
    np.testing.assert_array_equal(one.predict(x), plain)
    other = kind(**SMALL).fit(x[:30], y[:30], sample_weight=1 + np.arange(30) % 2)
    outputs = [one._outputs("predict", x) for one in (one, other)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    with pytest.raises(ValueError, match=r"fit: sample_weight is zero for every sequence, expected a positive number"):
        kind().fit(x, y, sample_weight=np.zeros(40))
    with pytest.raises(ValueError, match=r"fit: y has 1 class where sample_weight is positive, expected at least 2"):
        SequenceClassifier().fit(x, y, sample_weight=y == 1)
    for wrong, shape in (([1, 2, 3], r"\(3,\)"), (2.0, r"\(\)")):
        with pytest.raises(ValueError, match=rf"fit: sample_weight has shape {shape}, expected \(40,\)$"):
            kind().fit(x, y, sample_weight=wrong)


def test_what_is_held_out_is_scored_by_weights(tmp_path: Path) -> None:
    """The best score is the weighted one of the predictions on the sequences that were held out."""
    x, y, weights = noise(60), np.arange(60) % 2, 1.0 + np.arange(60) % 5
    one = SequenceClassifier(**QUICK, validation_fraction=0.3, folder=tmp_path / "run").fit(x, y, weights)
    recipe = rotrnn.load_recipe(tmp_path / "run" / "recipe.toml")
    rows = recipe.task.load().val.rows  # type: ignore[attr-defined]
    assert len(rows) == 18
    assert one.result_["best_score"] == pytest.approx(one.score(x[rows], y[rows], weights[rows]), rel=1e-12)
    assert one.result_["best_score"] != one.score(x[rows], y[rows])


def test_the_held_out_part_has_every_class(tmp_path: Path) -> None:
    """Of 60 sequences 6 are of a rare class: of the tenth that is held out, one in ten."""
    y = (np.arange(60) < 6) + 0
    for seed in range(4):
        folder = tmp_path / str(seed)
        SequenceClassifier(**QUICK, validation_fraction=1 / 6, random_state=seed, folder=folder).fit(noise(60), y)
        recipe = rotrnn.load_recipe(folder / "recipe.toml")
        parts: Any = recipe.task.load()
        held, train = (np.bincount(y[part.rows]).tolist() for part in (parts.val, parts.train))
        assert (held, train) == ([9, 1], [45, 5])


def test_the_held_out_part_is_said_to_be_for_validation_and_test(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.random.default_rng(0).standard_normal((20, 4)), np.arange(20) % 2
    SequenceClassifier(width=4, depth=1, epochs=1, verbose=True).fit(x, y)
    said = "arrays has one part for validation and test: the best parameters are chosen on the test split"
    assert said in capsys.readouterr().out


def test_scikit_learns_tools_take_them() -> None:
    x, y = noise(60) + (np.arange(60) % 2)[:, None, None], np.arange(60) % 2
    one = SequenceClassifier("lru", **{**SMALL, "epochs": 3})
    assert is_classifier(one)
    assert is_regressor(SequenceRegressor())
    assert cross_val_score(one, x, y, cv=3).shape == (3,)
    search = GridSearchCV(one, {"width": [4, 8], "layer_settings__d_state": [4]}, cv=2).fit(x, y)
    assert search.best_estimator_.layer_settings == {"d_state": 4}
    assert search.best_params_["width"] in (4, 8)


def test_intervals_and_weights_are_routed() -> None:
    """As scikit-learn's user guide says. There was no `set_fit_request`: no search could pass `dt` to `score`, and with
    routing enabled a pipeline of an estimator could not be scored."""
    rng, y = np.random.default_rng(0), np.arange(24) % 2
    x, weights, dt = noise(24), rng.uniform(0.5, 2, 24), rng.uniform(0.5, 2, (24, 9))
    one = SequenceClassifier("s5", **{**SMALL, "epochs": 1})
    with config_context(enable_metadata_routing=True):
        asked = clone(one.set_fit_request(sample_weight="w", dt=True).set_score_request(sample_weight="w", dt=True))
        found = cross_val_score(asked, x, y, cv=KFold(3), params={"w": weights, "dt": dt})
        piped = make_pipeline(FunctionTransformer(), SequenceClassifier(**{**SMALL, "epochs": 1})).fit(x, y)
        assert piped.score(x, y) == piped[-1].score(x, y)
        with pytest.raises(ValueError, match=r"sample_weight.* not explicitly set"):
            cross_val_score(SequenceClassifier(), x, y, params={"sample_weight": weights})
    scores = []
    for train, test in KFold(3).split(x):
        fitted = clone(one).fit(x[train], y[train], weights[train], dt[train])
        scores.append(fitted.score(x[test], y[test], weights[test], dt[test]))
    np.testing.assert_array_equal(found, scores)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: SequenceClassifier().set_fit_request(weights=True),
            TypeError,
            "set_fit_request: got 'weights'; did you",
        ),
        (lambda: SequenceRegressor().set_predict_request(sample_weight=True), TypeError, ".*; expected one of dt"),
        (
            lambda: Forecaster().set_fit_request(covariates=1.5),
            ValueError,
            ".*: covariates is a float, expected True, F",
        ),
        (lambda: SequenceRegressor().set_score_request(dt="a b"), ValueError, ".*: dt is 'a b', expected True, False"),
    ],
)
def test_requests_that_are_refused(call: Any, error: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=r"needs sklearn.set_config\(enable_metadata_routing=True\)"):
        call()
    with config_context(enable_metadata_routing=True), pytest.raises(error, match=rf"^\w+\.{message}"):
        call()


def test_settings() -> None:
    layer = LRU(8, 8)
    one = SequenceRegressor(layer, epochs=2, objective="mae")
    assert repr(one) == f"SequenceRegressor(layer={layer!r}, objective='mae', epochs=2)"
    assert repr(SequenceRegressor(quantiles=np.array([0.1, 0.9]))) == "SequenceRegressor(quantiles=array([0.1, 0.9]))"
    assert clone(one).get_params() == one.get_params()
    assert one.set_params(epochs=3).epochs == 3
    nested = SequenceRegressor(layer_settings={"r_min": 0.5}).set_params(layer_settings__d_state=6)
    assert nested.layer_settings == {"r_min": 0.5, "d_state": 6}
    assert one.fit(noise(20), np.arange(20)).model_.stack.blocks[0].layer == layer
    with pytest.raises(TypeError, match=r"^Forecaster: unknown setting 'horizn', expected .*; did you mean horizon\?$"):
        Forecaster(horizn=3)
    with pytest.raises(ValueError, match=r"SequenceRegressor.set_params: unknown setting 'epoch', expected one of"):
        one.set_params(epoch=3)
    with pytest.raises(ValueError, match=r"layer is 'lrv', expected one of .*did you mean lru"):
        SequenceRegressor("lrv").fit(noise(20), np.arange(20))
    with pytest.raises(
        TypeError, match=r"layer is the class LRU, expected a name, or a layer such as LRU\(64, \.\.\.\)"
    ):
        SequenceRegressor(LRU).fit(noise(20), np.arange(20))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"predict_quantiles: objective is 'mae', expected a fit with objective"):
        one.predict_quantiles(noise(20))
    two = SequenceRegressor(layer, epochs=1).fit(np.repeat(noise(20), 2, 2), np.arange(20))
    with pytest.raises(ValueError, match=r"X has 1 features, .* 4 features as input \(per step\); \[x\] is one"):
        two.predict(np.repeat(noise(20), 2, 2)[0])
    with pytest.raises(NotFittedError, match=r"Forecaster.predict: is not fitted yet, call fit first"):
        Forecaster().predict()


def test_the_score_of_targets_that_are_constant() -> None:
    """0, or 1 if each prediction is right, as scikit-learn has it; and the mean over targets."""
    one = SequenceRegressor(width=8, depth=1, epochs=1).fit(noise(20), np.arange(20))
    assert one.score(noise(20), np.full(20, 5.0)) == 0
    found = one.predict(noise(20)[:1])
    assert one.score(noise(20)[:1], found) == 1


def test_targets_that_are_constant_in_training_are_predicted_exactly() -> None:
    """A sum of the same number would be rounded, and a head that was trained near it would miss it by far more."""
    x = np.random.default_rng(0).standard_normal((20, 5))
    settings: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 2}
    one = SequenceRegressor(**settings).fit(x, np.full(20, 3.7))
    assert (one.predict(x) == 3.7).all()
    assert one.score(x, np.full(20, 3.7)) == 1
    y = np.stack([x[:, 0], np.full(20, 1234.5)], 1)
    both = SequenceRegressor(objective="quantile", quantiles=(0.1, 0.9), **settings).fit(x, y)
    found = both.predict_quantiles(x)
    assert (found[:, 1] == 1234.5).all()
    assert np.ptp(found[:, 0]) > 0
    series = np.stack([x.ravel(), np.full(100, 5.3), 2.0 * np.arange(100)], 1)  # the last has constant differences
    forecaster = Forecaster(horizon=2, **settings).fit(series)
    assert forecaster.predict(3)[:, 1:].tolist() == [[5.3, 200], [5.3, 202], [5.3, 204]]
    level = Forecaster(period=0, **settings).fit(series[:, 1])
    assert (level.predict(3) == 5.3).all()


@pytest.mark.parametrize("layer", rotrnn.LAYERS)
def test_every_layer_by_its_name(layer: str) -> None:
    one = SequenceRegressor(layer, width=8, depth=1, epochs=1).fit(noise(20), np.arange(20))
    assert np.isfinite(one.predict(noise(20))).all()


def test_a_fitted_model_is_saved_for_numbers_as_they_are(tmp_path: Path) -> None:
    x = 20 + 5 * noise(60)
    one = SequenceRegressor(folder=tmp_path / "run", **SMALL).fit(x, 7 * x[:, 0, 0])
    one.model_.save(tmp_path / "model.safetensors", one.params_)
    model, params = rotrnn.load(tmp_path / "model.safetensors")
    logits, _ = model.forward(astype(params, np.float64), x)
    found = one.predict(x)
    np.testing.assert_allclose(logits[:, 0], found, rtol=0, atol=1e-5 * np.abs(found).max())  # float32's, some dozens
    run = Run(tmp_path / "run")
    assert run.status() == "done"
    assert one.n_iter_ == run.read_json(run.result)["steps"]


def test_no_validation_keeps_the_last_parameters_and_patience_ends_early() -> None:
    x, y = noise(60), np.random.default_rng(1).standard_normal(60)  # nothing to learn
    whole = SequenceRegressor(validation_fraction=0.0, **SMALL).fit(x, y)
    assert whole.n_iter_ == 30 * (60 // 32)
    short = SequenceRegressor(validation_fraction=0.2, patience=2, **{**SMALL, "epochs": 200}).fit(x, y)
    assert short.n_iter_ < 200 * (48 // 32)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[1.0, 2.0], [3.0, float("nan")]], [0, 1], "Input X contains NaN: sequence 1, step 1, feature 0"),
        ([np.zeros((3, 2)), np.zeros((4, 1))], [0, 1], r"X\[1\] has 1 features per step, expected 2 as"),
        ([np.zeros((3, 2)), np.zeros((0, 2))], [0, 1], r"X\[1\] has no steps"),
        (np.zeros((2, 3, 4, 5)), [0, 1], r"Expected 2D array, \(n, time\), or 3D array"),
        (np.zeros((3, 4)), [0, 1], "y has 2 labels, expected 3, one for each sequence"),
        (np.zeros((2, 4)), [0.5, 1], "Unknown label type: continuous"),
        (np.zeros((2, 4)), [1, 1], "y has 1 class, expected at least 2 classes"),
        (np.zeros((2, 4)), None, "requires y to be passed, but the target y is None"),
        (np.zeros((2, 4)), [[0, 2], [1, 1]], r"y \(n, K\) has 2, expected 0 and 1"),
    ],
)
def test_bad_input(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceClassifier().fit(x, y)


def test_another_number_of_features() -> None:
    one = SequenceRegressor(**{**SMALL, "epochs": 1}).fit(noise(20), np.arange(20))
    with pytest.raises(ValueError, match="X has 3 features, but SequenceRegressor is expecting 2 features as input"):
        one.predict(noise(20, 3))


# ---- forecasts ----


def wave(n: int) -> Any:
    """Two variables: a rising wave with a period of 6, and its half."""
    t = np.arange(n)
    one = 100 + 0.5 * t + 3 * np.sin(2 * np.pi * t / 6)
    return np.stack([one, one / 2], 1)


def test_a_wave_is_continued_directly_and_recursively() -> None:
    y = wave(150)
    one = Forecaster("min_gru", horizon=4, period=1, window=20, **SMALL).fit(y[:120])
    assert one.score(y[120:]) > 0.7
    forecast = one.predict(10)
    assert forecast.shape == (10, 2)
    assert np.abs(forecast - y[120:130]).mean() < 0.3 * np.abs(y[119] - y[120:130]).mean()
    np.testing.assert_array_equal(one.predict(), forecast[:4])
    # what lies beyond the horizon is forecast after the forecasts
    again = one.predict(6, after=np.concatenate([y[:120], forecast[:4]]))
    np.testing.assert_allclose(again[:4], forecast[4:8], rtol=1e-6)


def test_backtests_equal_forecasts_from_each_step() -> None:
    y = wave(100)[:, 0]
    one = Forecaster("lru", horizon=3, period=6, window=20, objective="quantile", quantiles=(0.2, 0.5), **SMALL)
    one.fit(y[:80])
    forecasts, naive = one.backtest(y[80:], quantiles=True)
    assert forecasts.shape == (20, 3, 2)
    for i in (0, 7, 19):
        np.testing.assert_allclose(forecasts[i], one.predict(3, after=y[: 80 + i], quantiles=True), rtol=1e-5)
        np.testing.assert_array_equal(naive[i], y[80 + i - 6 : 80 + i - 3])
    middle, _ = one.backtest(y[80:])
    np.testing.assert_array_equal(middle, forecasts[..., 1])


def test_the_score_is_the_skill_of_a_loop() -> None:
    y = wave(100)[:, 0] + np.random.default_rng(0).standard_normal(100)
    one = Forecaster("lru", horizon=3, period=0, window=20, **{**SMALL, "epochs": 2}).fit(y[:90])
    forecasts, naive = one.backtest(y[90:])
    errors: list[list[float]] = [[], []]
    for i in range(10):
        for h in range(min(3, 10 - i)):
            errors[0].append(abs(forecasts[i, h] - y[90 + i + h]))
            errors[1].append(abs(y[89 + i] - y[90 + i + h]))
            assert naive[i, h] == y[89 + i]
    assert abs(one.score(y[90:]) - (1 - np.mean(errors[0]) / np.mean(errors[1]))) <= 1e-12


def noisy_wave(n: int) -> Any:
    """A wave with a period of 12 and noise: the linear forecast is right."""
    return 5 * np.sin(np.arange(n) * np.pi / 6) + np.random.default_rng(3).standard_normal(n)


def chaos(n: int) -> Any:
    """The logistic map, of which no linear forecast is better than the mean."""
    y = np.full(n, 0.3)
    for t in range(1, n):
        y[t] = 3.8 * y[t - 1] * (1 - y[t - 1])
    return y


def test_the_recurrence_adds_what_the_linear_forecast_does_not_see() -> None:
    y, origins = chaos(400), np.arange(319, 399)
    one = Forecaster(**{**SMALL, "epochs": 15}).fit(y[:320])
    found, _ = one.backtest(y[320:])
    errors = np.abs(np.stack([found[:, 0], one.form_.base(y[:, None], origins)[:, 0, 0]]) - y[320:]).mean(1)
    assert one.share_ > 0.5
    assert errors[0] < 0.5 * errors[1]


def test_a_linear_series_is_forecast_by_the_linear_part() -> None:
    y = noisy_wave(200)
    one = Forecaster(horizon=6, **{**SMALL, "epochs": 10}).fit(y[:160])
    assert one.share_ < 0.2
    found, _ = one.backtest(y[160:])
    line = one.form_.base(y[:, None], np.arange(159, 199))[..., 0]
    correction = found - line
    assert np.abs(correction).mean() < 0.1 * np.abs(y).mean()
    model, _ = one.model_.forward(astype(one.params_, np.float64), one.form_.inputs(y[:, None])[None])
    np.testing.assert_allclose(model[0, 159:199], correction, rtol=0, atol=1e-4)  # parameters in float32 have the share


def test_the_share_is_the_lower_end_of_a_least_squares() -> None:
    """By a loop over blocks of two origins, as the horizon is; a constant in what is wanted does not matter."""
    rng = np.random.default_rng(0)
    said = rng.standard_normal((41, 2, 1))
    wanted = 0.8 * said + 0.3 * rng.standard_normal(said.shape)
    wanted[-1, 1] = np.nan
    x, y = (np.where(np.isnan(wanted), 0, one - np.nanmean(one + 0 * wanted, 0)) for one in (said, wanted))
    b = (x * y).sum() / (x * x).sum()
    squares = sum((x[rows] * (y - b * x)[rows]).sum() ** 2 for rows in np.array_split(np.arange(41), 20))
    expected = b - 3 * np.sqrt(squares) / (x * x).sum()
    assert 0.5 < expected < 0.8
    assert abs(share_of(said, wanted) - expected) < 1e-12
    assert abs(share_of(said + 7, wanted - 100) - expected) < 1e-12
    assert share_of(said, 2 * said) == 1
    assert share_of(said, rng.standard_normal(said.shape)) == 0
    assert share_of(np.ones_like(said), wanted) == 0


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_quiet_series_that_starts_to_move_is_forecast_within_what_was_there(share: float) -> None:
    """Of the forecasts of some parts by the others, those by zeros alone are naive, and those of zeros are worse."""
    y = np.r_[np.zeros(190), np.random.default_rng(2).standard_normal(10)]
    one = Forecaster(horizon=3, validation_fraction=share, **QUICK).fit(y)
    assert np.abs(one.predict()).max() <= np.abs(y).max()
    assert one.backtest(y[-20:])[0].shape == (20, 3)
    low, high = one.predict(interval=0.5).T
    assert (low <= high).all()


def test_without_a_held_out_part_the_linear_forecast_is_not_corrected() -> None:
    """Its errors are then those of intervals; of quantiles, which no line has, none are known."""
    y = noisy_wave(120)
    one = Forecaster(horizon=3, validation_fraction=0.0, **QUICK).fit(y)
    assert one.share_ == 0
    np.testing.assert_array_equal(one.predict(), one.form_.base(y[:, None], np.array([119]))[0, :, 0])
    assert one.predict(interval=0.8).shape == (3, 2)
    quantiles: dict[str, Any] = {"objective": "quantile", "quantiles": (0.1, 0.5)}
    one = Forecaster(horizon=3, validation_fraction=0.0, **quantiles, **QUICK).fit(y)
    assert one.share_ == 1
    assert np.isnan(one.errors_).all()


def test_the_linear_forecast_is_chosen_by_all_steps() -> None:
    y = noisy_wave(120)
    one = Forecaster(horizon=6, **QUICK).fit(y)
    line = chosen(y[:, None], 6, 1)
    assert one.form_.line is not None
    assert line is not None
    assert (one.form_.line.size, one.form_.line.penalty) == (line.size, line.penalty) == (12, 0.001)
    first = chosen(y[:96, None], 6, 1)
    assert first is not None
    assert first.penalty == 0.01


def test_intervals_are_quantiles_of_recent_errors() -> None:
    y = np.stack([noisy_wave(160), np.random.default_rng(5).standard_normal(160)], 1)
    one = Forecaster(horizon=3, **QUICK).fit(y[:120])
    bounds = one.predict(interval=0.8)
    assert bounds.shape == (3, 2, 2)
    np.testing.assert_allclose(bounds.mean(-1), one.predict(), rtol=1e-12)
    for h in range(3):
        for v in range(2):
            known = [abs(error) for error in one.errors_[:, h, v] if not np.isnan(error)][-40:]
            half = (bounds[h, v, 1] - bounds[h, v, 0]) / 2
            np.testing.assert_allclose(half, sorted(known)[33 - 1], rtol=1e-9)  # 33 = ceil(41 * 0.8)
    assert np.isnan(one.errors_[-1]).all()
    assert not np.isnan(one.errors_[118, 0]).any()


def test_intervals_of_a_backtest_are_those_of_forecasts_with_what_is_known() -> None:
    y = noisy_wave(160)
    one = Forecaster(horizon=3, **QUICK).fit(y[:120])
    bounds, naive = one.backtest(y[120:], interval=0.5)
    assert bounds.shape == (*naive.shape, 2) == (40, 3, 2)
    for i in (0, 1, 7, 39):
        np.testing.assert_allclose(bounds[i], one.predict(after=y[: 120 + i], interval=0.5), rtol=1e-9)
    other = one.predict(after=y[::-1], interval=0.5)  # another series: errors as of the fit
    np.testing.assert_allclose(np.ptp(other, -1), np.ptp(one.predict(interval=0.5), -1), rtol=1e-9)


def test_intervals_hold_their_share() -> None:
    """Of 300 forecasts one step ahead, 0.8 with a deviation of 0.023, and one of 0.06 by the 40 errors of a quantile,
    which 300 / 40 of them share."""
    y = noisy_wave(600)
    one = Forecaster(**QUICK).fit(y[:300])
    low, high = np.moveaxis(one.backtest(y[300:], interval=0.8)[0], -1, 0)[:, :, 0]
    held = np.mean((low <= y[300:]) & (y[300:] <= high))
    assert abs(held - 0.8) < 3 * np.hypot(0.023, 0.06 / np.sqrt(300 / 40))


def test_series_that_cannot_be_forecast() -> None:
    with pytest.raises(ValueError, match="6 of 6 steps are for training, expected at least 14"):
        Forecaster(period=12, validation_fraction=0.0).fit(np.arange(6.0))
    for wrong in (2.0, -0.1, True, "a tenth", float("nan")):
        with pytest.raises(
            ValueError, match=r"Forecaster.fit: validation_fraction is .*, expected a number of at least"
        ):
            Forecaster(validation_fraction=wrong, **SMALL).fit(np.arange(60.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Forecaster.fit: Input y contains NaN"):
        Forecaster().fit([1.0, np.nan])
    one = Forecaster(**{**SMALL, "epochs": 1}).fit(wave(40))
    with pytest.raises(ValueError, match=r"predict: after has shape \(5,\), expected \(n, 2\) as of the fit"):
        one.predict(after=np.zeros(5))
    with pytest.raises(ValueError, match=r"Forecaster.predict: steps is 0, expected a positive integer"):
        one.predict(0)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (SequenceClassifier, {"width": -1}, "width is -1, expected an integer from 1 to"),
        (SequenceClassifier, {"depth": 0}, "depth is 0, expected an integer from 1 to"),
        (SequenceClassifier, {"epochs": 10**12}, "epochs is 1000000000000, expected an integer from 1 to 2147483648"),
        (SequenceClassifier, {"learning_rate": "x"}, "learning_rate is 'x', expected a positive number"),
        (SequenceClassifier, {"weight_decay": -1}, "weight_decay is -1, expected a nonnegative number"),
        (SequenceClassifier, {"dropout": 1}, "dropout is 1, expected a number of at least 0, below 1"),
        (SequenceClassifier, {"patience": 0}, "patience is 0, expected an integer from 1 to"),
        (SequenceClassifier, {"random_state": None}, "random_state is None, expected an integer from 0 to"),
        (SequenceClassifier, {"device": "gpu"}, "device is 'gpu', expected cpu or cuda"),
        (SequenceClassifier, {"folder": 3}, "folder is an int, expected the path of a folder"),
        (SequenceClassifier, {"folder": __file__}, f"folder {__file__}: is a file, expected a folder"),
        (SequenceClassifier, {"layer": "lur"}, "layer is 'lur', expected one of rotrnn, lru"),
        (SequenceClassifier, {"layer_settings": 3}, "layer_settings is an int, expected a dict"),
        (SequenceClassifier, {"layer_settings": {"a": 1}}, "layer is 'lru', of width 64: LRU: unknown setting 'a'"),
        (
            SequenceClassifier,
            {"layer": LRU(8, 8), "layer_settings": {"d_state": 1}},
            "layer_settings is {'d_state': 1}, expected None with a layer that is given as an object",
        ),
        (SequenceClassifier, {"class_weight": "b"}, "class_weight is 'b', expected 'balanced', a dict, or a list"),
        (SequenceClassifier, {"class_weight": 3}, "class_weight is 3, expected 'balanced', a dict, or a list"),
        (SequenceClassifier, {"class_weight": [1, 2, 3]}, "class_weight has 3 numbers, expected 2, one for each"),
        (SequenceClassifier, {"class_weight": [0, 0]}, "class_weight is zero for all, expected a positive number"),
        (SequenceClassifier, {"class_weight": {0: -1}}, "class_weight[0] is -1, expected a nonnegative number"),
        (SequenceRegressor, {"objective": "x"}, "objective is 'x', expected one of mse, mae, quantile"),
        (SequenceRegressor, {"quantiles": (0.1,)}, "quantiles is (0.1,) with objective 'mse', expected none"),
        (
            SequenceRegressor,
            {"objective": "quantile"},
            "quantiles is None with objective 'quantile', expected increasing numbers between 0 and 1, such as (0.1,",
        ),
        (SequenceRegressor, {"quantiles": 0.5}, "quantiles is 0.5, expected increasing numbers between 0 and 1, or"),
        (
            Forecaster,
            {"objective": "quantile", "quantiles": (0.5, 0.5)},
            "quantiles is (0.5, 0.5), expected increasing",
        ),
        (Forecaster, {"horizon": 0}, "horizon is 0, expected a positive integer"),
        (Forecaster, {"horizon": 2**31}, "horizon is 2147483648, expected an integer from 1 to 2147483647"),
        (Forecaster, {"period": -1}, "period is -1, expected an integer from 0"),
        (Forecaster, {"window": "a"}, "window is 'a', expected an integer from 0"),
        (Forecaster, {"window": 99}, "window is 99, expected at most the 32 steps for training"),
        (Forecaster, {"linear": 1}, "linear is 1, expected True or False"),
        (Forecaster, {"levels": 1}, "levels is 1, expected True or False"),
        (Forecaster, {"levels": False, "period": 0}, "levels is False with period 0, expected one of the two"),
    ],
)
def test_settings_are_refused_by_their_names(kind: Any, settings: dict[str, Any], message: str) -> None:
    data = (STEPS,) if kind is Forecaster else (noise(40), np.arange(40) % 2)
    with pytest.raises((TypeError, ValueError)) as caught:
        kind(**settings).fit(*data)
    assert str(caught.value).startswith(f"{kind.__name__}.fit: {message}")


def test_settings_may_be_numpys() -> None:
    """As those of a search over np.arange are."""
    numbers = {"width": 4, "depth": 1, "epochs": 2, "batch_size": 8, "patience": 1, "random_state": 3}
    own, numpys = (SequenceRegressor(**{key: kind(n) for key, n in numbers.items()}) for kind in (int, np.int64))
    x = noise(40)
    np.testing.assert_array_equal(own.fit(x, STEPS).predict(x), numpys.fit(x, STEPS).predict(x))


def test_weights_of_several_labels_are_a_list() -> None:
    y = np.arange(80).reshape(40, 2) % 2
    with pytest.raises(ValueError, match=r"Classifier.fit: class_weight is a dict, expected a list with the weight of"):
        SequenceClassifier(class_weight={1: 2.0}).fit(noise(40), y)


def test_a_folder_is_one_fit(tmp_path: Path) -> None:
    """A second one is refused before it writes anything."""
    one = SequenceRegressor(folder=tmp_path / "run", **QUICK).fit(noise(40), STEPS)
    data = (tmp_path / "run" / "data.npz").read_bytes()
    with pytest.raises(ValueError, match="already holds a run") as caught:
        one.fit(noise(40), 2 * STEPS)
    expected = "expected a new folder for each fit; leave it out in cross-validation"
    assert str(caught.value) == f"SequenceRegressor.fit: folder '{tmp_path / 'run'}' already holds a run, {expected}"
    assert (tmp_path / "run" / "data.npz").read_bytes() == data


STEPS = np.arange(40.0)
LATER = STEPS[:5]


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    """A fitted estimator of each kind."""
    x = noise(40)[..., 0]
    return {
        "c": SequenceClassifier(**QUICK).fit(x, np.arange(40) % 2),
        "r": SequenceRegressor(**QUICK).fit(x, STEPS),
        "f": Forecaster(**QUICK).fit(STEPS),
        "n": Forecaster(validation_fraction=0.0, linear=False, **QUICK).fit(STEPS),
    }


@pytest.mark.parametrize(
    ("kind", "method", "arguments", "message"),
    [
        # what is no number
        ("f", "predict", {"steps": 3, "after": [1.0, None, 2.0]}, "Input after contains NaN"),
        ("f", "fit", {"y": [1.0, None] * 20}, "Input y contains NaN"),
        ("r", "fit", {"x": noise(4), "y": [1, None, 2, 3]}, "Input y contains NaN"),
        ("r", "score", {"y": [None] * 40}, "Input y contains NaN"),
        ("c", "score", {"y": [None] * 40}, "Input y contains NaN"),
        ("c", "fit", {"x": noise(40), "y": [None, "a"] * 20}, "Input y contains NaN"),
        ("c", "fit", {"x": noise(4), "y": np.array([1, "a"] * 2, object)}, "y has labels of several types"),
        ("f", "fit", {"y": ["a", "b"]}, "y has dtype <U1, expected numbers"),
        ("f", "fit", {"y": np.array([1, "b"], object)}, "y has dtype object, expected numbers: could not convert"),
        ("r", "fit", {"x": [["a", "b"]] * 4, "y": [0, 1, 2, 3]}, "X has dtype <U1, expected numbers"),
        ("r", "fit", {"x": noise(4), "y": ["a", "b", "c", "d"]}, "y has dtype <U1, expected numbers"),
        ("f", "fit", {"y": [1e300] * 20}, "y has the number 1e+300, expected at most 3.4e+38 in size"),
        ("r", "predict", {"x": np.full((2, 3), 1e300)}, "X has the number 1e+300, expected at most 3.4e+38 in size"),
        # what has another form
        ("f", "fit", {"y": []}, "y is empty, of shape (0,), expected at least one row and column"),
        ("f", "score", {"y": []}, "y is empty"),
        ("f", "backtest", {"y": []}, "y is empty"),
        ("f", "predict", {"after": []}, "after is empty, of shape (0,), expected at least one row and column"),
        ("f", "backtest", {"y": np.zeros((5, 2))}, "y has shape (5, 2), expected (n, 1) as of the fit"),
        ("f", "fit", {"y": LATER}, "5 of 5 steps are for training, expected at least 14"),
        ("f", "fit", {"y": [[1, 2], [3]]}, "y is a list of 2 sequences, expected a series"),
        ("r", "fit", {"x": None, "y": LATER}, "X is a NoneType, expected an array, or a list of arrays"),
        ("r", "fit", {"x": 5, "y": LATER}, "X is an int, expected an array, or a list of arrays"),
        ("r", "fit", {"x": [[[1], [2, 3]]], "y": [1]}, "X[0] is a list that is no array"),
        (
            "c",
            "fit",
            {"x": [np.zeros((4, 2)), np.zeros((4, 1))], "y": [0, 1]},
            "X[1] has 1 features per step, expected 2 as X[0]",
        ),
        *[
            ("r", "fit", {"x": [[1, 2], other], "y": [0, 1]}, f"X[1] {got}, expected (time,) or (time, features)")
            for other, got in (
                (None, "is None"),
                ("abc", "is a str"),
                (3, "is an int"),
                ([[[1]]], "has shape (1, 1, 1)"),
            )
        ],
        *[
            (
                "c",
                "fit",
                {"x": np.ones((2, 3)) * [[0], [1]], "y": [0, 1], "layer": "s5", "dt": [[1, 1, 1], other]},
                f"dt[1] {got}, expected (3,), one for each step",
            )
            for other, got in ((None, "is None"), ("abc", "is a str"), ([1], "has shape (1,)"))
        ],
        ("r", "score", {"y": np.stack([STEPS, STEPS], 1)}, "y has shape (40, 2), expected (40,) as of the predictions"),
        ("r", "score", {"y": STEPS, "sample_weight": LATER}, "sample_weight has shape (5,), expected (40,)"),
        (
            "c",
            "score",
            {"y": STEPS % 2, "sample_weight": STEPS - 1},
            "sample_weight has -1 as its least number",
        ),
        (
            "c",
            "score",
            {"y": STEPS % 2, "sample_weight": 0 * STEPS},
            "sample_weight is zero for every sequence, expected a positive number for one",
        ),
        ("r", "score", {"y": LATER}, "y has shape (5,), expected (40,) as of the predictions"),
        ("r", "predict", {"x": np.zeros((0, 9))}, "Found array with 0 sample(s)"),
        ("c", "predict_proba", {"x": np.zeros((0, 9))}, "Found array with 0 sample(s)"),
        *[
            ("r", "predict", {"x": x}, "X[0] has no steps, expected at least one")
            for x in ([np.zeros((0, 2))], np.zeros((1, 0, 2)), [np.zeros(0)])
        ],
        ("r", "predict", {"x": np.zeros((2, 3, 0))}, "Found array with 0 feature(s) (shape=(2, 3, 0))"),
        ("c", "fit", {"x": {"a": 1}, "y": [1]}, "X is a dict, expected an array, or a list of arrays"),
        ("f", "predict", {"steps": 3, "quantiles": True}, "quantiles is True with objective 'mse', expected False, or"),
        ("f", "backtest", {"y": LATER, "quantiles": True}, "quantiles is True with objective 'mse', expected False"),
        *[
            ("f", "predict", {"interval": share}, f"interval is {share!r}, expected a number between 0 and 1, or None")
            for share in (0, 1, 80, "a", float("nan"), True)
        ],
        ("f", "backtest", {"y": LATER, "interval": 2}, "interval is 2, expected a number between 0 and 1, or None"),
        ("f", "predict", {"steps": 3, "interval": 0.8}, "steps is 3, expected at most the horizon, 1, with interval"),
        ("n", "predict", {"interval": 0.8}, "interval is 0.8, expected None: no forecast 1 steps ahead was held out"),
        # settings
        *[
            ("f", "predict", {"steps": steps}, f"steps is {steps!r}, expected a positive integer")
            for steps in (0, 2.7, float("nan"), "3", True)
        ],
        ("f", "fit", {"y": STEPS, "epochs": 0}, "epochs is 0, expected a positive integer"),
        ("f", "fit", {"y": STEPS, "batch_size": 0}, "batch_size is 0, expected a positive integer"),
        ("r", "fit", {"x": noise(4), "y": LATER[:4], "epochs": 0}, "epochs is 0, expected a positive integer"),
    ],
)
def test_what_is_refused(fitted: Any, kind: str, method: str, arguments: dict[str, Any], message: str) -> None:
    """Each message begins with the method that was called."""
    given, one = dict(arguments), fitted[kind]
    if method == "fit":
        own = {"horizon": 12} if kind == "f" else {}
        own |= {name: given.pop(name) for name in ("epochs", "batch_size", "layer") if name in given}
        one = clone(one).set_params(**own)
    elif method == "score" and kind != "f":
        given["x"] = noise(40)[..., 0]
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(one, method)(**given)
    assert str(caught.value).startswith(f"{type(one).__name__}.{method}: {message}")


def test_columns_of_one_variable_are_scored_as_it(fitted: Any) -> None:
    x = noise(40)[..., 0]
    assert fitted["f"].score(LATER[:, None]) == fitted["f"].score(LATER)
    assert fitted["r"].score(x, STEPS[:, None]) == fitted["r"].score(x, STEPS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_fails_names_the_folder_that_was_asked_for_alone(tmp_path: Path) -> None:
    """A learning rate of 1e30 makes parameters whose outputs float32 cannot hold."""
    one = SequenceRegressor(**{**QUICK, "epochs": 50, "learning_rate": 1e30})
    with pytest.raises(FloatingPointError, match=r"^SequenceRegressor.fit: ") as caught:
        one.fit(noise(40), STEPS)
    assert "checkpoint" not in str(caught.value)
    with pytest.raises(FloatingPointError, match="checkpoint"):
        one.set_params(folder=tmp_path / "run").fit(noise(40), STEPS)


def test_a_run_that_is_stopped_is_kept_in_a_folder_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(recipe: Any, folder: Path, **_: Any) -> None:
        raise Interrupted(f"stopped after step 1 of 9, all is saved; to go on: rotrnn train --resume {folder}")

    monkeypatch.setattr("rotrnn.estimators.base.train", stopped)
    one = Forecaster(**QUICK)
    with pytest.raises(Interrupted, match=r"^Forecaster.fit: stopped, and nothing is kept without a folder$"):
        one.fit(STEPS)
    with pytest.raises(Interrupted, match="resume"):
        one.set_params(folder=tmp_path / "run").fit(STEPS)


NAMES, OTHERS = (np.array(names)[np.arange(40) % len(names)] for names in (["low", "high"], ["blue", "green", "red"]))
AGAIN = [
    (SequenceClassifier, (noise(40), NAMES), (noise(40), OTHERS), {"class_weight": {"black": 2}}),
    (SequenceClassifier, (noise(40), NAMES), (noise(40, 3), np.eye(40, 3)), {"class_weight": [1, 2]}),
    (SequenceClassifier, (noise(40), NAMES), (noise(40, 3), OTHERS), {"epochs": 50, "learning_rate": 1e30}),
    (SequenceRegressor, (noise(40), STEPS), (noise(40, 3), np.eye(40, 2)), {"epochs": 50, "learning_rate": 1e30}),
    (Forecaster, (STEPS,), (np.stack([STEPS, -STEPS], 1),), {"epochs": 50, "learning_rate": 1e30}),
    (Forecaster, (STEPS,), ({"a": STEPS, "b": STEPS[:1]},), {}),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("kind", "first", "second", "settings", "stop"), [
    (*row, stop)
    for row in AGAIN
    for stop in ("", "base.train", "base.scaled", "forecaster.Past" if row[0] is Forecaster else "base.replace")
])  # fmt: skip
def test_a_second_fit_that_fails_or_is_stopped_changes_nothing(
    kind: Any, first: Any, second: Any, settings: Any, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C before training, in it or after it, or by the error that the settings or the data lead to."""
    one = kind(**QUICK).fit(*first)
    predicted = one.predict(*first[:-1])
    if not stop:
        one.set_params(**settings)
    else:
        monkeypatch.setattr(f"rotrnn.estimators.{stop}", interrupt)
    before = dict(vars(one))
    with pytest.raises((ValueError, FloatingPointError, KeyboardInterrupt)):
        one.fit(*second)
    assert vars(one).keys() == before.keys()
    assert all(value is before[name] for name, value in vars(one).items())
    np.testing.assert_array_equal(one.predict(*first[:-1]), predicted)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_scikit_learn_need_not_be_there(tmp_path: Path) -> None:
    """Without it, fit and predict work, and what is not fitted raises a ValueError."""
    (tmp_path / "sklearn.py").write_text("raise ImportError('hidden')", encoding="utf-8")
    code = (
        "import sys, rotrnn; assert 'rotrnn.estimators' not in sys.modules\n"
        "import numpy as np; one = rotrnn.estimators.SequenceRegressor(epochs=1, width=4)\n"
        "try: one.predict(np.zeros((2, 3)))\n"
        "except ValueError as error: assert 'call fit first' in str(error)\n"
        "one.fit(np.random.default_rng(0).standard_normal((9, 5)), np.arange(9)).predict(np.zeros((2, 3)))\n"
    )
    paths = [str(tmp_path), *sys.path]
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})


def test_the_base_has_no_parameter_without_a_name() -> None:
    names = Estimator._names()
    assert "layer" in names
    assert len(names) == len(set(names)) == 15


def test_too_few_errors_have_no_interval() -> None:
    """Of k errors the largest is the end of an interval that holds k / (k + 1) of what follows, and no more."""
    fitted = Forecaster(horizon=1, **QUICK).fit(np.random.default_rng(0).standard_normal(24))
    with pytest.raises(
        ValueError, match=r"predict: interval is 0\.99, expected at most 0\.\d+: \d+ errors are known 1"
    ):
        fitted.predict(interval=0.99)


def test_the_most_that_an_interval_can_hold_is_one_that_it_holds() -> None:
    """Of 97 errors 97 / 98 is said as 0.989, not as 0.99, which needs more errors."""
    for k in [*range(1, 120), 999, 1000, 4321]:
        errors = np.arange(1.0, k + 1)[:, None, None]
        with pytest.raises(ValueError, match=r"expected at most 0\.\d+: ") as error:
            Forecaster()._spread("predict", errors, k, 1 - 1e-9)
        most = float(str(error.value).split("at most ")[1].split(":")[0])
        assert k / (k + 1) - 0.1 / k < most <= k / (k + 1)
        assert Forecaster()._spread("predict", errors, k, most) == k


# ---- what was wrong ----


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("period", "window"), [(12, 4), (12, 12), (5, 1), (30, 2)])
def test_periods_longer_than_the_window(period: int, window: int, linear: bool) -> None:
    """Windows without a target, in the first period, are left out; each of the others has one."""
    one = Forecaster(period=period, window=window, linear=linear, batch_size=1, **QUICK).fit(noisy_wave(100))
    assert np.isfinite(one.predict()).all()


@pytest.mark.parametrize("fraction", [0.1, 0.6, 0.7])
def test_no_class_is_held_out_whole(tmp_path: Path, fraction: float) -> None:
    """A class of one sequence, and one of two, have one in training; the number that is held out stays."""
    y = np.array([*[0] * 14, 1, 2, 2, *[0] * 13])
    for seed in range(3):
        one = SequenceClassifier(**QUICK, validation_fraction=fraction, random_state=seed, folder=tmp_path / str(seed))
        one.fit(noise(30), y)
        parts: Any = rotrnn.load_recipe(tmp_path / str(seed) / "recipe.toml").task.load()
        assert set(y[parts.train.rows]) == {0, 1, 2}
        assert len(parts.val.rows) == round(fraction * 30)
        assert sorted([*parts.train.rows, *parts.val.rows]) == list(range(30))


@pytest.mark.parametrize("size", [1e-41, 1e-200])
def test_numbers_that_are_too_close_together_are_refused(size: float) -> None:
    x, y = noise(20), np.arange(20.0)
    for kind, data, name in (
        (SequenceClassifier, (size * x, np.arange(20) % 2), "X"),
        (SequenceRegressor, (size * x, y), "X"),
        (SequenceRegressor, (x, size * y), "y"),
        (Forecaster, (size * STEPS,), "what is read of y"),
    ):
        with pytest.raises(ValueError, match=f"fit: {name}: column 0 spans .*e-.*, expected at least 1e-34"):
            kind(**QUICK).fit(*data)
    same = np.concatenate([x, np.full_like(x, size)], 2)  # columns without a span
    least = SequenceRegressor(**QUICK).fit(same * [1e-34, 1e-30, 1, 1], y)
    assert all(np.isfinite(one).all() for _, one in flatten(least.params_))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"linear": False, "period": 6},
        {"objective": "quantile", "quantiles": (0.1, 0.5), "layer_settings": {"d_state": np.int64(3)}},
        {"layer": LRU(4, 6), "validation_fraction": 0.0},
    ],
)
def test_a_saved_forecaster_forecasts_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    y = np.stack([noisy_wave(130), chaos(130)], 1)
    one = Forecaster(**{**QUICK, "horizon": 3, **settings}, folder=tmp_path / "run").fit(y[:120])
    one.save(tmp_path / "one.safetensors")
    joblib.dump(one, tmp_path / "one.joblib")
    kept = {name: value for name, value in one.get_params().items() if name != "folder"}
    for again in (Forecaster.load(tmp_path / "one.safetensors"), joblib.load(tmp_path / "one.joblib")):
        assert {name: again.get_params()[name] for name in kept} == kept
        np.testing.assert_array_equal(again.predict(8), one.predict(8))
        np.testing.assert_array_equal(again.predict(after=y[:123]), one.predict(after=y[:123]))
        for ours, theirs in zip(again.backtest(y[120:]), one.backtest(y[120:]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if not np.isnan(one.errors_).all():
            np.testing.assert_array_equal(again.predict(interval=0.5), one.predict(interval=0.5))
        assert (again.score(y[120:]), again.share_, again.n_iter_) == (one.score(y[120:]), one.share_, one.n_iter_)
        for name, array in flatten(one.params_):
            np.testing.assert_array_equal(dict(flatten(again.params_))[name], array)
    Forecaster.load(tmp_path / "one.safetensors").fit(y[:120])


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"horizon": 3}, {"horizon": 5, "period": 4, "levels": False, "layer_settings__d_state": 3}),
        ({"horizon": 3, "linear": False, "period": 6}, {"horizon": 2, "period": 0, "linear": True}),
        (
            {"objective": "quantile", "quantiles": (0.1, 0.5)},
            {"objective": "mse", "quantiles": None, "width": 5, "epochs": 2},
        ),
        ({}, {"objective": "quantile", "quantiles": (0.1, 0.5, 0.9)}),
    ],
)
def test_a_fitted_forecaster_keeps_the_settings_of_its_fit(
    tmp_path: Path, settings: dict[str, Any], changed: dict[str, Any]
) -> None:
    y = noisy_wave(100)
    one = Forecaster(**{**QUICK, **settings}).fit(y[:90])
    quantiles = "quantiles" in settings

    def said(fitted: Forecaster) -> list[Any]:
        bounds = fitted.predict(interval=0.5)
        return [fitted.predict(7), *fitted.backtest(y[90:], quantiles=quantiles), bounds, fitted.score(y[90:])]

    one.save(tmp_path / "before.safetensors")
    before, kept = said(one), one.get_params()
    one.set_params(**changed)
    one.save(tmp_path / "after.safetensors")
    assert (tmp_path / "after.safetensors").read_bytes() == (tmp_path / "before.safetensors").read_bytes()
    again = Forecaster.load(tmp_path / "after.safetensors")
    assert again.get_params() == kept
    for fitted in (one, again):
        for mine, theirs in zip(said(fitted), before, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    one.fit(y[:90])  # which takes the new ones
    assert len(one.predict()) == changed.get("horizon", 1)


def test_a_fitted_regressor_keeps_the_quantiles_of_its_fit() -> None:
    x = noise(20)
    plain = SequenceRegressor(**QUICK).fit(x, np.stack([STEPS[:20]] * 6, 1))
    several = SequenceRegressor(objective="quantile", quantiles=(0.1, 0.5, 0.9), **QUICK).fit(x, STEPS[:20])
    before = plain.predict(x), several.predict(x), several.predict_quantiles(x)
    plain.set_params(objective="quantile", quantiles=(0.1, 0.5, 0.9))
    several.set_params(objective="mse", quantiles=None)
    for mine, theirs in zip((plain.predict(x), several.predict(x), several.predict_quantiles(x)), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(ValueError, match=r"predict_quantiles: objective is 'mse', expected a fit with objective 'quan"):
        plain.predict_quantiles(x)
    with pytest.raises(NotFittedError, match=r"SequenceRegressor.predict_quantiles: is not fitted yet"):
        SequenceRegressor().predict_quantiles(x)


def test_files_of_forecasters_that_are_refused(tmp_path: Path) -> None:
    one, path = Forecaster(**QUICK).fit(noisy_wave(60)), tmp_path / "one.safetensors"
    with pytest.raises(NotFittedError, match=r"Forecaster.save: is not fitted yet"):
        Forecaster().save(path)
    one.model_.save(path, one.params_)
    with pytest.raises(ValueError, match=r"is not a forecaster, expected a file that Forecaster.save wrote"):
        Forecaster.load(path)
    one.save(path)
    with pytest.raises(ValueError, match=r"is a forecaster, not a model; rotrnn.estimators.Forecaster.load reads it"):
        rotrnn.load(path)
    arrays, facts = read_checkpoint(path)
    for change, message in (
        ({"series": arrays["series"][1:]}, r"errors has shape \(60, 1, 1\).*, expected \(59, 1, 1\)"),
        ({"more": arrays["series"]}, "has more, which is not expected"),
        ({"line.mean": None}, "line.mean"),
    ):
        changed = {name: array for name, array in {**arrays, **change}.items() if array is not None}
        write_checkpoint(path, changed, {name: value for name, value in facts.items() if name != "format"})
        with pytest.raises(ValueError, match=f"one.safetensors: .*{message}"):
            Forecaster.load(path)
    settings = {**facts["forecaster"]["settings"], "horizon": 0}
    write_checkpoint(path, arrays, {**facts, "forecaster": {**facts["forecaster"], "settings": settings}})
    with pytest.raises(ValueError, match=r"Forecaster.load: horizon is 0, expected a positive integer"):
        Forecaster.load(path)
