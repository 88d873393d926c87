"""Errors of the package's entry points for bad arguments: they name the function, the argument and what it expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn.training.estimate import estimate
from rotrnn.training.recipe import Training

RECIPE: Any = rotrnn.load_recipe("digits-lru")
PARAMS = {"w": np.zeros(2, np.float32)}
GRADS = {"w": np.ones(2, np.float32)}


def update(grads: Any = GRADS, step: int = 0, moments: Any = None) -> object:
    optimiser = rotrnn.AdamW()
    moments = optimiser.init(PARAMS) if moments is None else moments
    return optimiser.update(PARAMS, grads, moments, optimiser.grouping(lambda name: False), step, 10)


def build(**layer: Any) -> object:
    return rotrnn.build_model(rotrnn.ModelSettings("lru", d_model=4, n_layers=1), layer, n_classes=2, vocab=3)


def sized(layer: Any = None, d_model: int = 4, n_layers: int = 1, d_state: int = 3, **sizes: Any) -> object:
    settings = rotrnn.ModelSettings("lru", d_model, n_layers)
    return rotrnn.build_model(
        settings, {"d_state": d_state} if layer is None else layer, **{"n_classes": 2, "vocab": 3} | sizes
    )


def sample(steps: Any) -> object:
    settings = rotrnn.ModelSettings("lru", d_model=4, n_layers=1, norm="layer")
    model: Any = rotrnn.build_model(settings, {"d_state": 4}, head="language", n_classes=3, vocab=3)
    return model.sample(model.init(np.random.default_rng(0)), np.zeros((1, 2), np.int64), steps, seed=0)


def backward_of_loss() -> object:
    model: Any = build(d_state=2)
    params = model.init(np.random.default_rng(0))
    logits, saved = model.forward(params, np.zeros((1, 3), np.int64))
    return model.backward(params, saved, model.loss(logits, np.zeros(1, np.int64)))


def nothing_is_updated(array: Any) -> object:
    """The error is that of the second parameter; the first is as it was."""
    params = {"a": np.ones(2, np.float32), "w": array}
    grads = {"a": np.ones(2, np.float32), "w": np.ones(array.shape, np.float32)}
    optimiser = rotrnn.AdamW()
    moments = optimiser.init({"a": params["a"], "w": grads["w"]})
    try:
        return optimiser.update(params, grads, moments, optimiser.grouping(lambda name: False), 0, 10)
    finally:
        assert params["a"].tolist() == [1, 1]
        assert not any(moment.any() for moment in moments.values())


CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: rotrnn.Context(train="no"), TypeError, "Context: train is 'no', expected True or False"),  # type: ignore[arg-type]
    (lambda: rotrnn.Context(step=1.5), ValueError, "Context: step is 1.5, expected an integer from 0"),  # type: ignore[arg-type]
    (lambda: rotrnn.Context(seed=-1), ValueError, "Context: seed is -1, expected an integer from 0"),
    (
        lambda: rotrnn.Context(seed=2**63),
        ValueError,
        "Context: seed is 9223372036854775808, expected an integer from 0",
    ),
    (
        backward_of_loss,
        ValueError,
        "SequenceClassifier.backward: dlogits is a Loss, expected an array, one of its parts mean, dlogits, counted",
    ),
    (
        lambda: rotrnn.AdamW().grouping(rotrnn.LRU(2, 2)),  # type: ignore[arg-type]
        TypeError,
        "AdamW.grouping: is_recurrent is an LRU, expected a function of a name: model.is_recurrent",
    ),
    (
        lambda: nothing_is_updated(np.ones((2, 3), np.float32, order="F")),
        ValueError,
        "AdamW.update: params w is not C-contiguous and aligned",
    ),
    (
        lambda: nothing_is_updated(np.ones((2, 3), np.dtype(np.float32).newbyteorder())),
        TypeError,
        "AdamW.update: params w has dtype >f4, expected float32, in the byte order of this machine",
    ),
    (lambda: update(step=-1), ValueError, "AdamW.update: step is -1, expected"),
    (lambda: update(step=10), ValueError, "AdamW.update: step is 10, expected"),
    (
        lambda: update({"z": GRADS["w"]}),
        ValueError,
        "AdamW.update: grads has z, expected only names that params has too",
    ),
    (lambda: update(moments={}), ValueError, "AdamW.update: grads has w, expected only names that moments has too"),
    (
        lambda: rotrnn.AdamW(lr=0.1).rate("oops", 0, 3),  # type: ignore[arg-type]
        ValueError,
        "AdamW.rate: group is 'oops', expected one of: global; global, no decay; recurrent; recurrent, decay",
    ),
    (
        lambda: update({"w": np.ones(3)}),
        ValueError,
        "AdamW.update: w has shapes params (2,), moments (2,) and (2,), grads (3,), expected one shape",
    ),
    (
        lambda: update(moments={"m.w": [0, 0], "v.w": np.zeros(2)}),
        TypeError,
        "AdamW.update: moments has m.w of type list, expected an array",
    ),
    (lambda: rotrnn.train("digits-lru", "run"), TypeError, "train: recipe is a str, expected a Recipe"),  # type: ignore[arg-type]
    (lambda: rotrnn.load_recipe(3), TypeError, "load_recipe: name is an int, expected"),  # type: ignore[arg-type]
    (
        lambda: rotrnn.load_recipe("digits-lru", "a.b=1"),
        TypeError,
        "load_recipe: overrides is 'a.b=1', expected a list",
    ),
    (lambda: build(d_stat=4), ValueError, "LRU: unknown setting 'd_stat', expected one of d_state"),
    (lambda: build(), ValueError, "LRU: setting 'd_state' (int) is missing"),
    (lambda: Training(1, 1, dtype="f"), ValueError, "Training: dtype is 'f', expected 'float32' or 'float64'"),
    (lambda: Training(0, 1), ValueError, "Training: batch is 0, expected an integer from 1 to"),
    (lambda: rotrnn.AdamW(lr=-1), ValueError, "AdamW: lr is -1.0, expected a positive number"),
    (lambda: rotrnn.AdamW(lr="fast"), ValueError, "AdamW: lr='fast', expected a finite number"),  # type: ignore[arg-type]
    (lambda: rotrnn.AdamW(schedule="cosin"), ValueError, "AdamW: schedule is 'cosin', expected one of cosine, linear"),
    (lambda: rotrnn.learning_rate(0, 9, 1.0, schedule="cos"), ValueError, "learning_rate: schedule is 'cos', expected"),
    (lambda: rotrnn.learning_rate(0, 0, 1.0), ValueError, "learning_rate: steps is 0, expected a positive integer"),
    (lambda: rotrnn.train(RECIPE, 3), TypeError, "train: folder is an int, expected the path of a folder"),  # type: ignore[arg-type]
    (lambda: rotrnn.train(RECIPE, __file__), ValueError, f"train: folder {__file__}: is a file, expected a folder"),
    (lambda: rotrnn.train(RECIPE, f"{__file__}/run"), ValueError, f"run: is below the file {__file__}, expected"),
    (lambda: estimate(RECIPE, 0), ValueError, "estimate: steps is 0, expected a positive integer"),
    (lambda: estimate("digits-lru"), TypeError, "estimate: recipe is a str, expected a Recipe"),  # type: ignore[arg-type]
    (lambda: rotrnn.build_model({}, {}, n_classes=2), TypeError, "build_model: settings is a dict, expected a Model"),  # type: ignore[arg-type]
    (lambda: sized(layer="lru"), TypeError, "build_model: layer is a str, expected a layer, or a dict"),
    (lambda: sized(n_classes="2"), ValueError, "build_model: n_classes is '2', expected a positive integer"),
    (lambda: sized(vocab=True), ValueError, "build_model: vocab is True, expected a positive integer"),
    (lambda: sized(n_layers=10**9), ValueError, "model.n_layers: got 1000000000, expected at most 10,000"),
    (lambda: sized(d_model=10**9), ValueError, "model.d_model: got 1000000000, expected at most 4,194,304"),
    (
        lambda: sized(vocab=10**14),
        ValueError,
        "build_model: d_model=4, n_layers=1, vocab=100000000000000, n_classes=2",
    ),
    (lambda: sized(d_state=10**18), ValueError, "LRU: d_state=1000000000000000000, expected at most 2^47"),
    (lambda: sized(layer=rotrnn.RotRNN(4, 10**9)), ValueError, "have 1e+18 parameters, expected at most 3.5e+13"),
    (lambda: rotrnn.ModelSettings("lruu", 4, 1), ValueError, "model.layer: got 'lruu', expected one of rotrnn, lru"),
    (lambda: sample(-1), ValueError, "LanguageModel.sample: steps is -1, expected an integer from 0"),
    (
        lambda: rotrnn.ops.mean_pool_backward(np.zeros((1, 2)), -1),
        ValueError,
        "mean_pool_backward: seq_len is -1, expected an integer from 0",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS, ids=[message for *_, message in CALLS])
def test_bad_calls_say_what_is_wrong(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_the_same_calls_with_good_arguments_run() -> None:
    update()
    build(d_state=4)
    sample(0)
    sized(d_model=6, n_layers=2)
    assert rotrnn.AdamW(lr=1).lr == 1.0
    assert rotrnn.ops.mean_pool_backward(np.zeros((1, 2)), 0).shape == (1, 0, 2)
