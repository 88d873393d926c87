"""Errors of the package's entry points for bad arguments: they name the function, the argument and what it expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rotrnn

PARAMS = {"w": np.zeros(2, np.float32)}
GRADS = {"w": np.ones(2, np.float32)}


def update(grads: Any = GRADS, step: int = 0, moments: Any = None) -> object:
    optimiser = rotrnn.AdamW()
    moments = optimiser.init(PARAMS) if moments is None else moments
    return optimiser.update(PARAMS, grads, moments, optimiser.grouping(lambda name: False), step, 10)


def build(**layer: Any) -> object:
    return rotrnn.build_model(rotrnn.ModelSettings("lru", d_model=4, n_layers=1), layer, n_classes=2, vocab=3)


def sample(steps: Any) -> object:
    settings = rotrnn.ModelSettings("lru", d_model=4, n_layers=1, norm="layer")
    model: Any = rotrnn.build_model(settings, {"d_state": 4}, head="language", n_classes=3, vocab=3)
    return model.sample(model.init(np.random.default_rng(0)), np.zeros((1, 2), np.int64), steps, seed=0)


CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: rotrnn.Context(train="no"), TypeError, "Context: train is 'no', expected True or False"),  # type: ignore[arg-type]
    (lambda: rotrnn.Context(step=1.5), ValueError, "Context: step is 1.5, expected an integer from 0"),  # type: ignore[arg-type]
    (lambda: rotrnn.Context(seed=-1), ValueError, "Context: seed is -1, expected an integer from 0"),
    (lambda: update(step=-1), ValueError, "AdamW.update: step is -1, expected"),
    (lambda: update(step=10), ValueError, "AdamW.update: step is 10, expected"),
    (
        lambda: update({"z": GRADS["w"]}),
        ValueError,
        "AdamW.update: grads has z, expected only names that params has too",
    ),
    (lambda: update(moments={}), ValueError, "AdamW.update: grads has w, expected only names that moments has too"),
    (lambda: rotrnn.train("digits-lru", "run"), TypeError, "train: recipe is a str, expected a Recipe"),  # type: ignore[arg-type]
    (lambda: rotrnn.load_recipe(3), TypeError, "load_recipe: name is a int, expected"),  # type: ignore[arg-type]
    (
        lambda: rotrnn.load_recipe("digits-lru", "a.b=1"),
        TypeError,
        "load_recipe: overrides is 'a.b=1', expected a list",
    ),
    (lambda: build(d_stat=4), ValueError, "LRU: unknown setting 'd_stat', expected one of d_state"),
    (lambda: build(), ValueError, "LRU: setting 'd_state' is missing"),
    (lambda: sample(-1), ValueError, "LanguageModel.sample: steps is -1, expected an integer from 0"),
    (
        lambda: rotrnn.mean_pool_backward(np.zeros((1, 2)), -1),
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
    assert rotrnn.mean_pool_backward(np.zeros((1, 2)), 0).shape == (1, 0, 2)
