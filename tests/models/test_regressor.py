"""Models whose outputs are numbers, several labels of a sequence, and weights of classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.files import load
from rotrnn.models.model import IGNORED, SequenceModel
from rotrnn.models.regressor import LOSSES
from rotrnn.nn.layer import Context, Params, astype
from rotrnn.ops.pointwise import binary_cross_entropy, cross_entropy
from small_models import check_loss

EPS = np.finfo(np.float64).eps
B, T, F, K = 4, 9, 2, 3
LENGTHS = np.array([9, 4, 1, 6])
QUANTILES = (0.1, 0.5, 0.8)
OBJECTIVES: list[dict[str, Any]] = [
    {},
    {"objective": "mae"},
    {"objective": "quantile", "quantiles": QUANTILES},
]


def model_of(head: str, **settings: Any) -> SequenceModel:
    chosen = ModelSettings(layer="lru", d_model=5, n_layers=2, norm="layer", **settings)
    return build_model(chosen, {"d_state": 3}, head=head, n_classes=K, n_features=F)


def prepared(model: SequenceModel) -> Params:
    return astype(model.init(np.random.default_rng(0)), np.float64)


def targets_of(head: str) -> Any:
    """Targets, of which two do not count."""
    targets = np.random.default_rng(1).standard_normal((B, T, K) if head == "step_regressor" else (B, K))
    targets[0, 0] = targets[1, ..., 1] = np.nan
    return targets


def loop_loss(predictions: Any, targets: Any, objective: str, quantiles: tuple[float, ...]) -> tuple[float, float]:
    """Loss, and that of predicting zero, one target at a time."""
    Q, terms, zeros = len(quantiles) or 1, [], []
    for *at, k in np.ndindex(targets.shape):
        y = targets[(*at, k)]
        if np.isnan(y) or (len(at) == 2 and at[1] >= LENGTHS[at[0]]):
            continue
        for q in range(Q):
            for given, out in ((predictions[(*at, k * Q + q)], terms), (0.0, zeros)):
                level = quantiles[q] if quantiles else 0
                loss = {
                    "mse": (given - y) ** 2,
                    "mae": abs(given - y),
                    "quantile": level * (y - given) if y > given else (1 - level) * (given - y),
                }
                out.append(loss[objective])
    return float(np.mean(terms)), float(np.mean(zeros))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["regressor", "step_regressor"])
@pytest.mark.parametrize("settings", OBJECTIVES, ids=lambda one: one.get("objective", "mse"))
def test_losses_equal_a_loop_and_gradients_central_differences(head: str, settings: dict[str, Any]) -> None:
    model, targets = model_of(head, **settings), targets_of(head)
    params, inputs = prepared(model), np.random.default_rng(2).standard_normal((B, T, F))
    ctx = Context(lengths=LENGTHS, train=True, seed=5, step=3)
    logits, _ = model.forward(params, inputs, ctx)
    found = model.loss(logits, targets, LENGTHS)
    wanted, reference = loop_loss(logits, targets, settings.get("objective", "mse"), settings.get("quantiles", ()))
    assert abs(found.mean - wanted) <= 100 * EPS * wanted  # a sum of at most 81 numbers of one sign
    assert abs(found.reference - reference) <= 100 * EPS * reference
    assert found.right is None
    assert found.total == model.count(targets, LENGTHS) == np.count_nonzero(found.counted)
    there = np.arange(T) < LENGTHS[:, None] if head == "step_regressor" else np.full(B, True)
    assert np.array_equal(found.counted, ~np.isnan(targets) & there[..., None])
    assert not found.dlogits.reshape(*targets.shape, -1)[~found.counted].any()
    check_loss(model, params, inputs, targets, ctx)


def test_the_best_constants_are_mean_median_and_quantiles() -> None:
    """Of 1 to 11 the sum of the slopes is zero at the mean and at the median, 6, and changes sign at a quantile."""
    y = np.arange(1.0, 12)
    assert LOSSES["mse"](6 - y, np.zeros(1))[1].sum() == 0
    assert LOSSES["mae"](6 - y, np.zeros(1))[1].sum() == 0
    for level, place in ((0.1, 2), (0.5, 6), (0.8, 9)):
        below, above = (LOSSES["quantile"](place + e - y, np.array([level]))[1].sum() for e in (-0.5, 0.5))
        assert below < 0 < above, level


def test_several_labels_of_a_sequence_are_bits_one_at_a_time() -> None:
    model = model_of("multilabel")
    labels = np.random.default_rng(1).integers(0, 2, (B, K))
    labels[0, 1] = IGNORED
    logits = np.random.default_rng(3).standard_normal((B, K))
    found = model.loss(logits, labels, LENGTHS)
    mean, dlogits = binary_cross_entropy(logits[labels >= 0], labels[labels >= 0])
    assert abs(found.mean - mean) <= 20 * EPS
    np.testing.assert_array_equal(found.dlogits[labels >= 0], dlogits)
    assert not found.dlogits[0, 1]
    assert found.total == model.count(labels) == B * K - 1
    assert found.right is not None
    np.testing.assert_array_equal(found.right, (labels >= 0) & ((logits > 0) == labels))
    assert model.answers(np.array([[np.nan, 1, -1.0]])).tolist() == [[IGNORED, 1, 0]]


@pytest.mark.parametrize("ragged", [False, True])
def test_weights_of_classes_weigh_the_terms(ragged: bool) -> None:
    """Loss and gradient are those of a loop of unweighted calls, one label at a time, times its weight."""
    rng, weights = np.random.default_rng(4), (0.5, 2.0, 0.0)
    shape = (B, T) if ragged else (B,)
    logits, labels = rng.standard_normal((*shape, K)), rng.integers(0, K, shape)
    if ragged:
        labels[np.arange(T) >= LENGTHS[:, None]] = IGNORED
    counted = labels != IGNORED
    one = [cross_entropy(z[None], [y]) for z, y in zip(logits[counted], labels[counted], strict=True)]
    weight = np.array(weights)[labels[counted]]
    mean, dlogits = cross_entropy(logits, labels, ignored=IGNORED, weights=weights)
    n = len(one)
    assert abs(mean - sum(w * loss for w, (loss, _) in zip(weight, one, strict=True)) / n) <= 4 * n * EPS
    wanted = np.stack([w * grad[0] / n for w, (_, grad) in zip(weight, one, strict=True)])
    np.testing.assert_allclose(dlogits[counted], wanted, rtol=0, atol=8 * EPS)
    assert not dlogits[~counted].any()
    model = build_model(
        ModelSettings(layer="lru", d_model=5, n_layers=1), {"d_state": 3}, n_features=F, n_classes=K,
        head="tagger" if ragged else "classifier",
    )  # fmt: skip
    weighted = replace(model, class_weights=weights)
    assert weighted.loss(logits, labels, LENGTHS if ragged else None).mean == mean
    assert model.loss(logits, labels, LENGTHS if ragged else None).mean != mean
    assert repr(weighted) == repr(model)


def test_weights_of_bits_weigh_the_ones() -> None:
    rng, weights = np.random.default_rng(5), np.array([0.5, 3.0, 1.0])
    logits, labels = rng.standard_normal((B, T, K)), rng.integers(0, 2, (B, T, K))
    mean, dlogits = binary_cross_entropy(logits, labels, weights=weights)
    p = 1 / (1 + np.exp(-logits))
    terms = np.where(labels == 1, -weights * np.log(p), -np.log(1 - p))
    assert abs(mean - terms.mean()) <= 50 * EPS
    wanted = np.where(labels == 1, weights * (p - 1), p) / labels.size
    np.testing.assert_allclose(dlogits, wanted, rtol=0, atol=8 * EPS)


@pytest.mark.parametrize("head", ["regressor", "step_regressor", "multilabel"])
def test_a_saved_model_is_the_same_and_streams_in_c(head: str, tmp_path: Path) -> None:
    """Weights of classes are not saved. The C library reads the models, and its streams equal forward to rounding."""
    settings = {} if head == "multilabel" else OBJECTIVES[2]
    model = model_of(head, **settings)
    params = model.init(np.random.default_rng(0))
    model.save(tmp_path / "model", params)
    again, same = load(tmp_path / "model")
    assert again == model
    inputs = np.random.default_rng(2).standard_normal((B, T, F)).astype(np.float32)
    logits, _ = again.forward(same, inputs)
    stream = again.stream(same, B, engine="c")
    streamed = [stream.push(inputs[:, t]) for t in range(T)]
    last = logits[:, -1] if head == "step_regressor" else logits
    assert np.abs(streamed[-1] - last).max() <= 1e-5  # float32, numbers around one


def test_bad_settings_and_targets() -> None:
    with pytest.raises(ValueError, match=r"model: objective is 'l2', expected one of mse, mae, quantile"):
        model_of("regressor", objective="l2")
    with pytest.raises(ValueError, match=r"model: quantiles is \(0.5, 0.1\), expected increasing numbers between 0"):
        model_of("regressor", objective="quantile", quantiles=(0.5, 0.1))
    with pytest.raises(ValueError, match=r"model: quantiles is \(\), expected increasing"):
        model_of("regressor", objective="quantile")
    with pytest.raises(ValueError, match=r"model: quantiles is \(0.5,\) with objective 'mse', expected none"):
        model_of("regressor", quantiles=(0.5,))
    with pytest.raises(ValueError, match=r"build_model: the settings have an objective.* head 'classifier'"):
        model_of("classifier", objective="mse")
    model, predictions = model_of("step_regressor"), np.zeros((B, T, K))
    with pytest.raises(ValueError, match=r"StepRegressor.loss: labels has none that counts, expected one that is not"):
        model.loss(predictions, np.full((B, T, K), np.nan))
    with pytest.raises(ValueError, match=r"StepRegressor.loss: labels has shape \(4, 3\), expected \(B, T, K\)"):
        model.loss(predictions, np.zeros((B, K)))
    with pytest.raises(ValueError, match=r"StepRegressor.loss: logits has 3 numbers, expected 2, 1 for each of 2 tar"):
        model.loss(predictions, np.zeros((B, T, 2)))
    with pytest.raises(ValueError, match=r"StepRegressor.loss: logits has shape \(4, 8, 3\), expected \(B=4, T=9, C\)"):
        model.loss(predictions[:, 1:], np.zeros((B, T, K)))
    with pytest.raises(ValueError, match=r"cross_entropy: weights has shape \(2,\), expected \(3,\)"):
        cross_entropy(np.zeros((B, K)), np.zeros(B, int), weights=(1.0, 2.0))
    with pytest.raises(ValueError, match=r"cross_entropy: weights has -1.0, expected finite numbers of at least 0"):
        cross_entropy(np.zeros((B, K)), np.zeros(B, int), weights=(1.0, -1.0, 0.0))
    with pytest.raises(ValueError, match=r"Regressor: class_weights is \(1.0, 1.0, 1.0\), expected None"):
        type(one := model_of("regressor"))(one.encoder, one.stack, one.pool, one.head, class_weights=(1.0,) * 3)  # type: ignore[attr-defined,call-arg]
    with pytest.raises(ValueError, match=r"SequenceClassifier: class_weights has 2 numbers, expected 3, one for each"):
        type(one := model_of("classifier"))(one.encoder, one.stack, one.pool, one.head, class_weights=(1.0,) * 2)  # type: ignore[attr-defined,call-arg]


@pytest.mark.parametrize("head", ["classifier", "multilabel", "tagger", "bits", "regressor", "step_regressor"])
def test_weights_of_sequences_weigh_their_terms(head: str) -> None:
    """The sums of loss and gradient are those of the sequences one at a time, each times its weight: some hundred terms
    of order one, each rounded a few times."""
    rng, weights = np.random.default_rng(6), np.array([0.5, 3.0, 1.0, 0.25])
    model, per_step = model_of(head), head in ("tagger", "bits", "step_regressor")
    shape = (B, *[T] * per_step)
    logits = rng.standard_normal((*shape, K))
    if head in ("classifier", "tagger"):
        labels = rng.integers(0, K, shape)
    else:
        labels = targets_of(head) if "regressor" in head else rng.integers(0, 2, (*shape, K))
    lengths = LENGTHS if per_step else None
    found = model.loss(logits, labels, lengths, weights)
    loss = reference = 0.0
    for b, weight in enumerate(weights):
        one = model.loss(logits[b : b + 1], labels[b : b + 1], None if lengths is None else lengths[b : b + 1])
        part = weight * one.total / found.total
        loss, reference = loss + part * one.mean, reference + part * one.reference
        np.testing.assert_allclose(found.dlogits[b], part * one.dlogits[0], rtol=0, atol=32 * EPS)
    assert abs(found.mean - loss) <= 500 * EPS * max(loss, 1)
    if model.of_classes or head in ("multilabel", "bits"):
        assert np.isnan(found.reference)
    else:
        assert abs(found.reference - reference) <= 500 * EPS * max(reference, 1)
    assert found.total == model.count(labels, lengths)
    for wrong in (weights[:3], -weights):
        with pytest.raises(ValueError, match=r"eights has (shape \(3|-0\.5, expected finite numbers of at least 0)"):
            model.loss(logits, labels, lengths, wrong)
