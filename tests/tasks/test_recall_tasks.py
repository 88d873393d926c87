"""MQAR, MAD and the flip-flop language: labels against a walk through each sequence, and fair draws."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rotrnn.tasks import MAD, MQAR, FlipFlop
from rotrnn.tasks.generated import chosen, words_of
from rotrnn.training.recipe import load_recipe

SPLITS = ("train", "val", "test")


def rows(settings: Any, split: str, count: int = 60) -> list[tuple[list[int], list[int]]]:
    """Returns the tokens and labels of the first sequences of a split."""
    inputs, labels, lengths = getattr(settings.load(), split).batch(np.arange(count))
    assert lengths is None
    assert inputs.shape == labels.shape
    return list(zip(inputs.tolist(), labels.tolist(), strict=True))


def test_choices_are_different_and_every_order_is_as_likely() -> None:
    """Of 24,000 choices of 2 or 3 among 4 each ordered one is at its share, within 5 deviations."""
    for k in (2, 3):
        found = chosen(words_of(np.arange(24_000), k, 0), 4)
        orders, counts = np.unique(found, axis=0, return_counts=True)
        expected = list(itertools.permutations(range(4), k))
        assert sorted(map(tuple, orders.tolist())) == expected
        share = 24_000 / len(expected)
        assert np.abs(counts - share).max() <= 5 * np.sqrt(share)
    all_of_them = chosen(words_of(np.arange(3), 9, 1), 9)
    assert (np.sort(all_of_them, 1) == np.arange(9)).all()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("fillers", "pairs"), [(False, 3), (True, 3), (False, 6)])
def test_mqar_asks_for_each_key_once(split: str, fillers: bool, pairs: int) -> None:
    task = MQAR(vocab=21, length=24, pairs=pairs, fillers=fillers, test_length=40, test_pairs=4)
    for inputs, labels in rows(task, split):
        k = 4 if split == "test" else pairs
        assert len(inputs) == (40 if split == "test" else 24)
        values = dict(zip(inputs[: 2 * k : 2], inputs[1 : 2 * k : 2], strict=True))
        assert len(values) == len(set(values.values())) == k
        assert all(0 < key < 10 <= value < 21 for key, value in values.items())
        asked = [t for t, label in enumerate(labels) if label >= 0]
        assert all(t >= 2 * k and t % 2 == 0 for t in asked)
        assert {inputs[t]: labels[t] for t in asked} == values
        if not fillers:
            assert all(inputs[t] == 0 for t in range(2 * k, len(inputs)) if t not in asked)


def test_mqar_queries_crowd_behind_the_pairs() -> None:
    """The first key's place i is drawn with the weight (i + 1)^(power - 1), within 5 deviations of 20,000 draws; the
    second one's from what is left."""
    power, places, n = 0.01, 6, 20_000
    task = MQAR(vocab=8, length=2 * (2 + places), pairs=2, power=power, fillers=False, train=n)
    inputs, labels, _ = task.load().train.batch(np.arange(n))
    found = [((inputs == inputs[:, i : i + 1]) & (labels >= 0)).argmax(1) // 2 - 2 for i in (0, 2)]
    weights = np.arange(1, places + 1.0) ** (power - 1)
    weights /= weights.sum()
    both = weights[:, None] * weights / (1 - weights[:, None]) * (1 - np.eye(places))
    counts = np.bincount(found[0] * places + found[1], minlength=places**2).reshape(places, places)
    assert (np.abs(counts - n * both) <= 5 * np.sqrt(n * both)).all()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["recall", "noisy_recall"])
def test_mad_asks_for_the_values_of_keys_that_came_before(kind: str, split: str) -> None:
    task = MAD(kind=kind, vocab=12, length=20, noise=0.5)
    ids = 6 if kind == "noisy_recall" else 12
    noises, probes = 0, []
    for inputs, labels in rows(task, split, 200):
        assert len(inputs) == 19
        if split == "train":
            assert labels[:-1] == inputs[1:]
        known: dict[int, int] = {}
        for t in range(0, 19, 2):
            value = inputs[t + 1] if t < 18 else labels[t]
            if inputs[t] >= ids:
                noises += 1
                assert value >= ids
                assert split == "train" or labels[t] == -1
                continue
            assert inputs[t] < ids // 2 <= value < ids
            assert known.get(inputs[t], value) == value
            if split != "train":
                assert labels[t] == (value if inputs[t] in known else -1)
                assert labels[t + 1 : t + 2] in ([], [-1])
            if t == 18:
                probes.append((sorted(known).index(inputs[t]) + 0.5) / len(known))
            known[inputs[t]] = value
    assert (400 < noises < 1000) if kind == "noisy_recall" else noises == 0  # half of 9 pairs but one, 800 of 1800
    assert abs(np.mean(probes) - 0.5) < 5 / np.sqrt(12 * 200)  # each of the keys as often


@pytest.mark.parametrize("length", [4, 6, 128])
def test_mad_has_an_answer_in_every_noisy_sequence(length: int) -> None:
    for _, labels in rows(MAD(kind="noisy_recall", length=length, noise=0.99), "test", 300):
        assert labels[-1] >= 0


@pytest.mark.parametrize("split", ["val", "test"])
def test_mad_answers_fuzzy_keys(split: str) -> None:
    """A labelled value stands behind a key of three tokens, which was before it with the same value."""
    answers = 0
    for inputs, labels in rows(MAD(kind="fuzzy_recall"), split):
        assert len(inputs) == len(labels) == 128
        start = next(t for t, token in enumerate(inputs) if token != 15)
        tokens = [*inputs[start:], labels[-1]]
        assert 15 not in tokens
        text = ",".join(map(str, tokens)) + ","
        t = start
        while t < 128:
            if labels[t] < 0:
                t += 1
                continue
            end = t
            while end < 128 and labels[end] >= 0:
                end += 1
            key, value = inputs[t - 2 : t + 1], labels[t:end]
            assert all(token < 7 for token in key)
            assert all(7 <= token < 15 for token in value)
            assert len(set(key)) == 3
            assert len(set(value)) == len(value) <= 3
            pair = ",".join(map(str, [*key, *value])) + ","
            assert text.count(pair) >= 2
            answers += 1
            t = end
        assert labels[-1] >= 0
    assert answers >= 60


def test_mad_learns_all_tokens_of_fuzzy_sequences() -> None:
    for inputs, labels in rows(MAD(kind="fuzzy_recall"), "train"):
        assert labels[:-1] == inputs[1:]


@pytest.mark.parametrize("split", SPLITS)
def test_mad_copies_what_is_between_blanks(split: str) -> None:
    task = MAD(kind="selective_copy", vocab=9, length=40, tokens=5)
    firsts = []
    for inputs, labels in rows(task, split, 400):
        assert inputs[34:] == [8, 7, 7, 7, 7, 7]
        assert [token for token in inputs[:34] if token != 7] == labels[35:]
        assert max(labels) < 7
        assert set(labels[:35]) == {-1}
        assert inputs[33] != 7  # no blank behind the last token
        firsts.append(next(t for t, token in enumerate(inputs) if token != 7))
    assert abs(np.mean(firsts) - 29 / 5) < 5 * np.sqrt(29 * 0.2 * 0.8 / 400)  # each blank is before one of 5 tokens


@pytest.mark.parametrize("split", SPLITS)
def test_mad_compresses_all_tokens(split: str) -> None:
    """Of 60 rows of 31 draws among 15, each id is at its share, within 5 deviations."""
    found = rows(MAD(kind="compression"), split)
    for inputs, labels in found:
        assert labels == inputs
        assert len(inputs) == 32
        assert inputs[-1] == 15
    counts = np.bincount([token for inputs, _ in found for token in inputs[:-1]], minlength=15)
    share = 60 * 31 / 15
    assert len(counts) == 15
    assert np.abs(counts - share).max() <= 5 * np.sqrt(share)


def test_mad_memorises_one_map() -> None:
    found: dict[int, set[int]] = {}
    for split, seed in itertools.product(SPLITS, (0, 1)):
        for inputs, labels in rows(MAD(kind="memorization", vocab=12, length=10, seed=seed), split):
            assert inputs[1::2] == [11] * 5
            assert labels[::2] == [-1] * 5
            for key, value in zip(inputs[::2], labels[1::2], strict=True):
                found.setdefault(key, set()).add(value)
    assert sorted(found) == list(range(5))
    assert all(len(values) == 1 for values in found.values())
    assert len(set.union(*found.values())) == 5
    assert min(set.union(*found.values())) >= 5


@pytest.mark.parametrize("split", SPLITS)
def test_flip_flop_reads_what_was_written_last(split: str) -> None:
    task = FlipFlop(length=200, test_length=300, ignore=0.5, test_ignore=0.9)
    counts = np.zeros(3)
    for inputs, labels in rows(task, split, 100):
        assert (inputs[0], inputs[-2]) == (2, 4)
        for t in range(0, len(inputs), 2):
            if inputs[t] == 2:
                stored = inputs[t + 1]
            assert labels[t] == (stored if inputs[t] == 4 else -1)
            assert labels[t + 1] == -1
            assert inputs[t] != 4 or inputs[t + 1] == stored
        counts += np.bincount(inputs[2:-2:2], minlength=5)[2:]
    ignore, n = (0.9 if split == "test" else 0.5), counts.sum()
    shares = np.array([(1 - ignore) / 2, ignore, (1 - ignore) / 2])
    assert (np.abs(counts - n * shares) <= 5 * np.sqrt(n * shares * (1 - shares))).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MQAR(length=30, pairs=8), "MQAR: length is 30, expected an even number from 4 pairs, 32"),
        (lambda: MQAR(test_length=63), "MQAR: test_length is 63, expected an even number"),
        (
            lambda: MQAR(length=2**20 + 2),
            "MQAR: length is 1048578, expected an even number from 4 pairs, 16, to 1048576",
        ),
        (lambda: MQAR(test_pairs=0), "MQAR: test_pairs is 0, expected an integer from 1 to 65536"),
        (lambda: MQAR(vocab=8, pairs=4), "MQAR: vocab is 8, expected more than 9 for 4 pairs"),
        (lambda: MQAR(power=0.0), "MQAR: power is 0.0, expected a number above 0"),
        (lambda: MAD(kind="zip"), "MAD: kind is 'zip', expected one of recall, noisy_recall"),
        (lambda: MAD(kind="selective_copy", length=32), "MAD: length is 32, expected an integer from 33"),
        (lambda: MAD(vocab=0), "MAD: vocab is 0, expected an integer from 2"),
        (lambda: MAD(length=0), "MAD: length is 0, expected an integer from 4"),
        (lambda: MAD(length=31), "MAD: length is 31, expected an even number"),
        (lambda: MAD(noise=1.0), "MAD: noise is 1.0, expected a share from 0, below 1"),
        (lambda: FlipFlop(length=7), "FlipFlop: length is 7, expected an even number from 4"),
        (lambda: FlipFlop(ignore=1.5), "FlipFlop: ignore is 1.5, expected a share from 0 to 1"),
    ],
)
def test_settings_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["mqar", "mad", "flip-flop"])
def test_recipes_load(name: str) -> None:
    assert load_recipe(name).task.shape.head == "tagger"
    assert load_recipe(f"{name}-small").task.shape.head == "tagger"
