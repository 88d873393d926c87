"""Training of estimators that goes on: `partial_fit`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn.estimators import SequenceClassifier, SequenceRegressor
from rotrnn.models.model import NEEDS_DT
from rotrnn.nn.layer import Context, flatten, is_parameter
from rotrnn.training.optimiser import NonFinite

QUICK: dict[str, Any] = {"width": 4, "depth": 1, "epochs": 2, "batch_size": 16, "learning_rate": 0.02}


def data(n: int = 40, seed: int = 0) -> tuple[Any, Any]:
    """Ragged sequences of two features, and whether the first one's sum is positive."""
    rng = np.random.default_rng(seed)
    x = [10 + 3 * rng.standard_normal((rng.integers(3, 9), 2)) for _ in range(n)]
    return x, np.where([one[:, 0].sum() > 10 * len(one) for one in x], "up", "down")


def bits(estimator: Any) -> dict[str, bytes]:
    kept = estimator._trained
    arrays = {**dict(flatten(kept.params)), **kept.moments, **{f"p.{k}": v for k, v in flatten(estimator.params_)}}
    return {name: array.tobytes() for name, array in arrays.items()}


def kinds() -> list[Any]:
    x, y = data()
    length = np.array([len(one) for one in x], float)
    several = np.stack([y == "up", length > 5], 1).astype(int)
    return [
        pytest.param(SequenceClassifier(dropout=0.1, **QUICK), x, y, {"classes": ["up", "down"]}, id="classes"),
        pytest.param(SequenceClassifier(**QUICK), x, several, {}, id="several-labels"),
        pytest.param(SequenceRegressor(**QUICK), x, length, {}, id="numbers"),
        pytest.param(
            SequenceRegressor(objective="quantile", quantiles=(0.1, 0.9), **QUICK),
            x, np.stack([length, -length], 1), {}, id="quantiles",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(("estimator", "x", "y", "first"), kinds())
@pytest.mark.parametrize("fit", [False, True])
def test_passes_go_on_to_the_same_bits_after_a_file(
    estimator: Any, x: Any, y: Any, first: Any, fit: bool, tmp_path: Path
) -> None:
    """Two passes without a break, and with the estimator written and read between them."""
    ends = []
    for file in (False, True):
        one = pickle.loads(pickle.dumps(estimator))
        one = one.fit(x, y) if fit else one.partial_fit(x[:20], y[:20], **first)
        before = one.n_iter_
        if file:
            (tmp_path / "e").write_bytes(pickle.dumps(one))
            one = pickle.loads((tmp_path / "e").read_bytes())
        one.partial_fit(x[7:], y[7:])
        assert one.n_iter_ == before + 3  # 33 sequences, at most 16 at a time
        ends.append((bits(one), one.predict(x).tobytes()))
    assert ends[0] == ends[1]


def test_the_first_update_is_that_of_the_definition() -> None:
    """From zero moments, m / (1 - beta1) = g and v / (1 - beta2) = g^2: a step is lr (g / (|g| + eps) + decay p)."""
    x, y = data(12)
    settings: dict[str, Any] = {**QUICK, "learning_rate": 0.01, "weight_decay": 0.1}
    one = SequenceClassifier(**settings).partial_fit(x, y, classes=["up", "down"])
    kept, model = one._trained, one.model_
    rng = np.random.default_rng([0, 0, 1])
    start = {name: array.astype(np.float32) for name, array in flatten(model.init(rng))}
    params: Any = {}
    for name, array in start.items():
        at = params
        for part in name.split(".")[:-1]:
            at = at.setdefault(part, {})
        at[name.split(".")[-1]] = array.copy()
    steps = np.concatenate(x)
    inputs = np.zeros((12, max(map(len, x)), 2), np.float32)
    for row, sequence in zip(inputs, x, strict=True):
        row[: len(sequence)] = (sequence - steps.mean(0)) / steps.std(0)
    lengths = np.array([len(sequence) for sequence in x])
    logits, saved = model.forward(params, inputs, Context(lengths, train=True))
    found = model.loss(logits, (y == "up").astype(np.int64), lengths, None)
    grads = dict(flatten(model.backward(params, saved, found.dlogits, None)))
    clip = min(1.0, 1 / np.sqrt(sum(float((g.astype(float) ** 2).sum()) for g in grads.values())))
    after = dict(flatten(kept.params))
    for name, p in start.items():
        if not is_parameter(name):
            continue
        recurrent = model.is_recurrent(name)
        g = grads[name].astype(float) * clip
        rate, decay = (0.005, 0.0) if recurrent else (0.01, 0.1)
        step = rate * (g / (np.abs(g) + 1e-8) + decay * p)
        # gradients of two orders of the batch differ by rounding: 1e-5 of the largest, or a step of the other sign
        sure = np.abs(g) > 1e-4 * np.abs(g).max()
        np.testing.assert_allclose(after[name][sure], (p - step)[sure], rtol=0, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(kept.moments[f"m.{name}"], 0.1 * g, rtol=0, atol=1e-5 * np.abs(g).max())


def test_passes_over_parts_learn() -> None:
    x, y = data(200)
    one = SequenceClassifier(**{**QUICK, "width": 8})
    for k in range(20):
        part = slice(50 * (k % 3), 50 * (k % 3 + 1))
        one.partial_fit(x[part], y[part], classes=np.unique(y))
    assert one.score(x[:150], y[:150]) > 0.9  # chance is a half
    size = np.array([sequence[:, 0].mean() for sequence in x])
    other = SequenceRegressor(**QUICK)
    for k in range(20):
        part = slice(50 * (k % 3), 50 * (k % 3 + 1))
        other.partial_fit(x[part], size[part])
    assert other.score(x[150:], size[150:]) > 0.9


def test_moments_go_on_after_a_fit_and_a_constant_target_may_change() -> None:
    x, _ = data(20)
    y = np.stack([np.arange(20.0), np.full(20, 5.0)], 1)
    one = SequenceRegressor(**QUICK, validation_fraction=0.0).fit(x, y)
    fitted = one._trained
    assert (one.predict(x)[:, 1] == 5).all()
    assert any(fitted.moments[name].any() for name in fitted.moments)
    assert one.n_iter_ == one.result_["steps"] == 2
    for _ in range(3):
        one.partial_fit(x, y + np.array([0, 2]))
    assert (one.predict(x)[:, 1] > 5).all()


def test_a_weight_of_zero_leaves_a_sequence_out() -> None:
    x, y = data(20)
    weights = np.r_[np.ones(15), np.zeros(5)]
    ends = [
        bits(SequenceClassifier(**QUICK).partial_fit(x[:n], y[:n], classes=np.unique(y), sample_weight=weight))
        for n, weight in ((15, None), (20, weights))
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda x, y: (x, ["left"] * len(x))), r"partial_fit: y has 'left', expected one of \['down', 'up'\]"),
        ((lambda x, y: (x, y, ["up", "left"])), r"partial_fit: classes is .*, expected \['down', 'up'\] as at first"),
        ((lambda x, y: ([one[:, :1] for one in x], y)), "X has 1 features, but SequenceClassifier is expecting 2"),
        ((lambda x, y: (x, np.eye(len(x), 2))), r"y has shape \(40, 2\), expected \(n,\) as at first"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(arguments: Any, message: str) -> None:
    x, y = data()
    one = SequenceClassifier(**QUICK).partial_fit(x, y, classes=np.unique(y))
    before = bits(one)
    with pytest.raises(ValueError, match=message):
        one.partial_fit(*arguments(x, y))
    assert bits(one) == before


def test_a_first_call_says_its_classes_and_weights() -> None:
    x, y = data()
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        SequenceClassifier(**QUICK).partial_fit(x, y)
    with pytest.raises(ValueError, match="class_weight is 'balanced', expected numbers"):
        SequenceClassifier(class_weight="balanced", **QUICK).partial_fit(x, y, classes=["up", "down"])
    with pytest.raises(ValueError, match="classes has 1 class, expected at least 2"):
        SequenceClassifier(**QUICK).partial_fit(x, ["up"] * 40, classes=["up"])
    with pytest.raises(ValueError, match=r"SequenceRegressor.partial_fit: y has shape \(40, 2\), expected \(n,\)"):
        SequenceRegressor(**QUICK).partial_fit(x, np.arange(40.0)).partial_fit(x, np.ones((40, 2)))


def test_a_call_that_fails_changes_nothing() -> None:
    x, _ = data()
    y = np.arange(40.0)
    one = SequenceRegressor(**QUICK).partial_fit(x, y)
    before = bits(one)
    far = np.where(y > 20, 1e38, -1e38)
    with np.errstate(over="ignore"), pytest.raises(NonFinite, match=r"^SequenceRegressor.*: step 4: the loss is inf"):
        one.partial_fit(x, far)
    assert bits(one) == before


def test_samples_at_uneven_times_go_on() -> None:
    """Intervals reach the model, and are asked for again."""
    x, y = data()
    rng = np.random.default_rng(1)
    dt = [rng.uniform(0.5, 2, len(one)) for one in x]
    one, other, even = (SequenceClassifier("s5", **QUICK) for _ in range(3))
    first = {"classes": ["up", "down"]}
    one.partial_fit(x, y, dt=dt, **first).partial_fit(x, y, dt=dt)
    other.partial_fit(x, y, dt=dt, **first)
    other = pickle.loads(pickle.dumps(other)).partial_fit(x, y, dt=dt)
    assert bits(one) == bits(other)
    assert bits(one) != bits(even.partial_fit(x, y, **first).partial_fit(x, y))
    with pytest.raises(ValueError, match=f"^SequenceClassifier.partial_fit: {NEEDS_DT}$"):
        one.partial_fit(x, y)
    assert (one.model_.timed, even.model_.timed) == (True, False)
    for call in (lambda: even.partial_fit(x, y, dt=dt), lambda: even.predict(x, dt=dt)):
        with pytest.raises(ValueError, match=r"Classifier.\w+: got dt, expected None: fit had no intervals$"):
            call()
    assert not even.model_.timed


@pytest.mark.parametrize("number", [-7.0, np.nan, np.inf, 1e39])
def test_an_interval_that_is_none_is_named_by_its_place(number: float) -> None:
    x, y = data()
    dt = [np.ones(len(one)) for one in x]
    fitted = SequenceClassifier("s5", **QUICK).fit(x, y, dt=dt)
    dt[37][2] = number
    for call, run in (
        ("fit", lambda: SequenceClassifier("s5", **QUICK).fit(x, y, dt=dt)),
        ("partial_fit", lambda: SequenceClassifier("s5", **QUICK).partial_fit(x, y, ["up", "down"], dt=dt)),
        ("predict", lambda: fitted.predict(x, dt=dt)),
    ):
        with pytest.raises(
            ValueError, match=rf"^SequenceClassifier.{call}: (dt, sequence 37, step 2: got|Input dt contains)"
        ):
            run()
    with pytest.raises(NotImplementedError, match=r"Classifier.partial_fit: got dt, which LRU does not support"):
        SequenceClassifier("lru", **QUICK).partial_fit(x, y, ["up", "down"], dt=dt)


@pytest.mark.parametrize("epochs", [0, 10**12])
def test_an_error_about_epochs_names_the_call(epochs: int) -> None:
    x, y = data()
    for call, more in (("fit", {}), ("partial_fit", {"classes": ["up", "down"]})):
        one = SequenceClassifier(**{**QUICK, "epochs": epochs})
        with pytest.raises(ValueError, match=rf"^SequenceClassifier.{call}: epochs is {epochs}, expected"):
            getattr(one, call)(x, y, **more)


@pytest.mark.parametrize(
    ("classes", "kind", "message"),
    [
        (["down", None], ValueError, "Input classes contains NaN"),
        ([0, 1, np.nan], ValueError, "Input classes contains NaN"),
        (["down", 1], TypeError, "classes has labels of several types"),
        ([], ValueError, "classes is empty"),
        ("up", ValueError, r"classes has shape \(\), expected"),
        ([["up", "down"]], ValueError, r"classes has shape \(1, 2\), expected \(C,\)"),
    ],
)
def test_classes_of_another_form_are_refused(classes: Any, kind: Any, message: str) -> None:
    one, (x, y) = SequenceClassifier(**QUICK), data()
    with pytest.raises(kind, match=f"^SequenceClassifier.partial_fit: {message}"):
        one.partial_fit(x, y, classes)
    assert not hasattr(one, "classes_")


def test_a_first_pass_that_fails_leaves_nothing() -> None:
    one, (x, y) = SequenceClassifier(class_weight=[1, 2, 3], **QUICK), data()
    with pytest.raises(ValueError, match=r"partial_fit: class_weight has 3 numbers, expected 2"):
        one.partial_fit(x, y, ["up", "down"])
    assert not hasattr(one, "classes_")
