"""Recall: labels against a search step by step, fair draws, and what age or content alone can know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rotrnn.nn import StoredHistory
from rotrnn.tasks import TASKS, Recall
from rotrnn.training.recipe import load_recipe

SETTINGS: dict[str, dict[str, Any]] = {
    "age": {"max_age": 7, "length": 20, "test_length": 30},
    "content": {"keys": 4, "max_age": 0, "length": 20, "test_length": 30},
    "content at an age": {"keys": 3, "values": 5, "max_age": 9, "length": 25, "test_length": 10},
    "least": {"values": 2, "max_age": 0, "length": 1, "test_length": 1},
}


def decoded(task: Recall, inputs: Any) -> tuple[Any, Any, Any, Any]:
    """Returns (key, value, wanted key, age) of each step; each is a one-hot code."""
    parts = np.split(inputs, np.cumsum([task.keys, task.values, task.keys]), -1)
    assert np.isin(inputs, (0, 1)).all()
    assert all((part.sum(-1) == 1).all() for part in parts)
    return tuple(part.argmax(-1) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("name", SETTINGS)
def test_labels_are_those_of_a_search(name: str) -> None:
    task = Recall(**SETTINGS[name])
    loaded = task.load()
    for split, length in ((loaded.train, task.length), (loaded.val, task.length), (loaded.test, task.test_length)):
        index = np.arange(min(30, len(split)))
        inputs, labels, lengths = split.batch(index, np.float64)
        assert lengths is None
        assert inputs.dtype == np.float64
        assert inputs.shape == (len(index), length, loaded.n_features)
        key, value, wanted, age = decoded(task, inputs)
        for b in range(len(index)):
            for t in range(length):
                s = t - age[b, t]
                while s >= 0 and key[b, s] != wanted[b, t]:
                    s -= 1
                assert labels[b, t] == (value[b, s] if s >= 0 else -1)
        if split is not loaded.train:
            assert (age == split.curve_lengths(index, split.batch(index))[:, None]).all()


def test_every_age_is_asked_for_as_often() -> None:
    loaded = Recall(max_age=5, length=9, test_length=12, val_each=2, test_each=3).load()
    for split, each in ((loaded.val, 2), (loaded.test, 3)):
        assert len(split) == 6 * each
        index = np.arange(len(split))
        assert split.curve_lengths(index, split.batch(index)).tolist() == np.repeat(np.arange(6), each).tolist()
    assert loaded.train.fresh
    assert loaded.train.curve_lengths(np.arange(2), loaded.train.batch(np.arange(2))).tolist() == [5, 5]


def test_draws_are_uniform_and_independent() -> None:
    """Of n = 40,000 steps each of c kinds is at n/c, and each pair of kinds of two draws at n/(c c'), within 5
    deviations of sqrt(n p): none of some 200 is beyond them but with probability 1e-4."""
    task = Recall(keys=3, values=4, max_age=4, length=200, test_length=200)
    draws = [one.ravel() for one in decoded(task, task.load().train.batch(np.arange(200)).inputs)]
    sizes = (3, 4, 3, 5)
    n = 40_000
    for one, size in zip(draws, sizes, strict=True):
        assert np.abs(np.bincount(one, minlength=size) - n / size).max() <= 5 * np.sqrt(n / size)
    for i in range(4):
        for j in range(i):
            pairs = np.bincount(draws[i] * sizes[j] + draws[j], minlength=sizes[i] * sizes[j])
            share = n / (sizes[i] * sizes[j])
            assert np.abs(pairs - share).max() <= 5 * np.sqrt(share)


def test_neither_age_nor_content_is_enough() -> None:
    """What came `age` steps ago, or what came last with the key, is the answer little more often than by chance."""
    task = Recall(keys=8, values=8, max_age=32, length=128, test_length=256, test_each=2)
    split = task.load().test
    index = np.arange(8 * 2, 33 * 2)  # ages of 8 and more
    inputs, labels, _ = split.batch(index)
    key, value, wanted, age = decoded(task, inputs)
    T = task.test_length
    latest = np.maximum.accumulate(np.where(key[..., None] == np.arange(8), np.arange(T)[:, None], -1), 1)
    b, t = np.nonzero(labels >= 0)
    by_content = value[b, latest[b, t, wanted[b, t]]]
    by_age = value[b, t - age[b, t]]
    # the key of `age` steps ago is the right one in 1 of 8 cases; the latest one is as old with chance (7/8)^8 = 0.34
    assert np.mean(by_age == labels[b, t]) == pytest.approx(1 / 8 + 7 / 8 / 8, abs=0.02)
    assert np.mean(by_content == labels[b, t]) < 0.34 + 0.66 / 8 + 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": 0}, "keys is 0, expected an integer from 1"),
        ({"values": 1}, "values is 1, expected an integer from 2"),
        ({"max_age": -1}, "max_age is -1, expected an integer from 0"),
        ({"max_age": 96}, "length is 96, expected an integer from 97"),
        ({"test_length": 48}, "test_length is 48, expected an integer from 49"),
        ({"test_each": 0}, "test_each is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"Recall: {message}"):
        Recall(**settings)


def test_recipes() -> None:
    assert TASKS["recall"] is Recall
    for name in ("recall-age", "recall-content"):
        for recipe in (load_recipe(name), load_recipe(f"{name}-small")):
            assert isinstance(recipe.task, Recall)
            assert isinstance(recipe.layer, StoredHistory)
            assert (recipe.task.keys == 1) == (name == "recall-age")
            assert recipe.task.max_age >= 2 * recipe.layer.length  # ages within and beyond the memory's length
