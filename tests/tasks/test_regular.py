"""Regular languages, compared with independent evaluators."""

import itertools

import numpy as np
import pytest

from rotrnn.tasks import Regular

N = 20_000


# ---- what the classes mean, from the strings alone ----


def parity(tokens, m):
    return tokens.count(1) % 2


def even_pairs(tokens, m):
    pairs = list(itertools.pairwise(tokens))
    return (pairs.count((0, 1)) + pairs.count((1, 0))) % 2


def cycle(tokens, m):
    place = 0
    for token in tokens:
        place = (place + token - 1) % m
    return place


def arithmetic(tokens, m):
    assert len(tokens) % 2 == 1
    assert all((token >= m) == (t % 2 == 1) for t, token in enumerate(tokens))
    return eval("".join((*map(str, range(m)), *"+-*")[token] for token in tokens)) % m


EVALUATE = {one.__name__: one for one in (parity, even_pairs, cycle, arithmetic)}


def test_the_evaluators_know_the_published_examples():
    assert parity([1, 0, 1, 0, 1, 0, 0], 5) == 1
    assert parity([0, 1, 1, 1, 1], 5) == 0
    assert even_pairs([0, 0, 1, 1, 1, 0], 5) == 0
    assert even_pairs([0, 1, 0, 1, 0, 0, 1], 5) == 1
    assert cycle([2, 0, 1, 0, 0], 5) == 3  # right, left, stay, left, left
    assert cycle([2, 2, 2, 0], 5) == 2
    plus, minus, times = 5, 6, 7
    assert arithmetic([1, plus, 2, times, 3], 5) == 2
    assert arithmetic([1, minus, 1, minus, 1], 5) == 4
    assert arithmetic([0, times, 1, plus, 4, times, 3, minus, 2], 5) == 0


# ---- the generator ----


@pytest.mark.parametrize("language", EVALUATE)
@pytest.mark.parametrize("modulus", [5, 2, 7])
def test_classes(language, modulus):
    task = Regular(language=language, modulus=modulus, test_each=1).load()
    for split in (task.train, task.val, task.test):
        batch = split.batch(np.arange(0, min(len(split), 3000), 7))
        for tokens, labels, length in zip(batch.inputs.tolist(), batch.labels.tolist(), batch.lengths, strict=True):
            expected = EVALUATE[language](tokens[:length], modulus)
            assert [(t, label) for t, label in enumerate(labels) if label >= 0] == [(length - 1, expected)]
            assert not any(tokens[length:])


@pytest.mark.parametrize(
    ("language", "vocab", "classes"), [("parity", 2, 2), ("even_pairs", 2, 2), ("cycle", 3, 5), ("arithmetic", 8, 5)]
)
def test_tokens_and_lengths_are_uniform(language, vocab, classes):
    """Of training strings: the share of each length, and of each token among those of its kind, is within 5 deviations;
    even lengths of arithmetic are those one below."""
    task = Regular(language=language, max_length=10).load()
    assert (task.vocab, task.n_classes, task.chance, task.curve) == (vocab, classes, 1 / classes, "length")
    batch = task.train.batch(np.arange(N))
    share = np.bincount(batch.lengths, minlength=11) / N
    odd = np.array([0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0])
    expected = (odd if language == "arithmetic" else np.array([0] + [1] * 10)) / 10
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / N)).all()

    inside = np.arange(batch.inputs.shape[1]) < batch.lengths[:, None]
    counts = np.bincount(batch.inputs[inside], minlength=vocab)
    for part in (counts[:5], counts[5:]) if language == "arithmetic" else (counts,):
        p, n = 1 / len(part), part.sum()
        assert (np.abs(part / n - p) <= 5 * np.sqrt(p * (1 - p) / n)).all()


def test_test_lengths_are_the_unseen_ones():
    task = Regular(language="cycle").load()
    assert len(task.test) == 460 * 16
    index = np.array([0, 15, 16, len(task.test) - 1])
    batch = task.test.batch(index)
    assert batch.lengths.tolist() == [41, 41, 42, 500]
    assert task.test.curve_lengths(index, batch).tolist() == [41, 41, 42, 500]
    assert Regular(language="arithmetic").load().test.batch(index).lengths.tolist() == [41, 41, 41, 499]
    assert (len(task.val), task.val.batch(np.arange(64 * 40)).lengths.max()) == (64 * 40, 40)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"language": "equal"}, "language is 'equal', expected parity, even_pairs, cycle, arithmetic"),
        ({"modulus": 1}, "modulus is 1"),
        ({"min_length": 0}, "min_length is 0, expected an integer from 1"),
        ({"max_length": 0}, "max_length is 0"),
        ({"test_max_length": 40}, "test_max_length is 40, expected an integer from 41"),
        ({"test_each": 0}, "test_each is 0"),
        ({"train": 2**41}, "train is"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"Regular: {message}"):
        Regular(**settings)
