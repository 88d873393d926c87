"""Bracket arithmetic: grammar, distribution of values, position of the label, settings."""

import math

import numpy as np
import pytest

from rotrnn.tasks import Brackets

N = 20_000


def rows(split, first, n):
    batch = split.batch(np.arange(first, first + n))
    return zip(batch.inputs.tolist(), batch.labels.tolist(), batch.lengths.tolist(), strict=True)


def text(tokens, modulus=5):
    return "".join((*"0123456789"[:modulus], *"+-*()=_")[token] for token in tokens)


# ---- a parser of the text that shares nothing with the package ----


def parse(source):
    """Returns (value, operators used) of a complete expression; AssertionError if it does not follow the grammar."""

    def expression(at):
        if source[at] == "-":
            assert source[at + 1].isdigit()
            return -int(source[at + 1]), at + 2
        if source[at] != "(":
            return int(source[at]), at + 1
        left, end = expression(at + 1)
        if source[end] == ")":
            assert source[at + 1] != "("  # only a digit, perhaps with its sign, stands in brackets alone
            return left, end + 1
        right, last = expression(end + 1)
        assert source[last] == ")"
        return {"+": left + right, "-": left - right, "*": left * right}[source[end]], last + 1

    value, end = expression(0)
    assert end == len(source)
    return value


@pytest.mark.parametrize("modulus", [5, 3, 10])
@pytest.mark.parametrize("operators", ["+-", "+-*"])
def test_values_and_labels(modulus, operators):
    """Every expression follows the grammar and has T - 3 tokens; its value is the only label, at `=`."""
    task = Brackets(operators=operators, modulus=modulus, max_length=60).load()
    assert (task.vocab, task.n_classes) == (modulus + 7, modulus)
    assert task.chance == 1 / modulus
    seen = set()
    for split in (task.train, task.val, task.test):
        for tokens, labels, length in rows(split, 0, 300):
            T = length + 1
            assert T >= 5
            assert tokens[T - 3] == modulus + 5
            assert tokens[T - 2] == 0
            assert set(tokens[T - 1 :]) <= {modulus + 6}
            source = text(tokens[: T - 3], modulus)
            assert parse(source) == eval(source)
            assert [(t, label) for t, label in enumerate(labels) if label >= 0] == [(T - 3, eval(source) % modulus)]
            seen |= set(source)
    assert seen == {*"0123456789"[:modulus], *"()+-", *operators}


def test_lengths_are_uniform_but_five_at_least():
    """Token counts T - 1 in training: 4 for T = 3, 4 and 5, then one for each T; frequencies within 5 standard
    deviations."""
    lengths = np.concatenate(
        [list(zip(*rows(Brackets().load().train, i, 1000), strict=True))[2] for i in range(0, N, 1000)]
    )
    expected = np.zeros(40)
    expected[4:] = 1 / 38
    expected[4] = 3 / 38
    share = np.bincount(lengths, minlength=40) / N
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / N)).all()


@pytest.mark.parametrize(("low", "high"), [(3, 40), (40, 256)])
def test_limits_are_reached(low, high):
    task = Brackets(val_min_length=low, val_max_length=high).load()
    lengths = [length for _, _, length in rows(task.val, 0, 8192)]
    assert min(lengths) == max(5, low) - 1
    assert max(lengths) == high - 1


def law(operators, m=5, size=254):
    """The distribution of values (size, m) by the number of tokens, from the rule: a value in 1/m each below 5 tokens,
    then that of ``left op right`` over all sizes and operators."""
    values = np.arange(m)
    tables = {"+": values[:, None] + values, "-": values[:, None] - values, "*": values[:, None] * values}
    p = np.full((size, m), 1 / m)
    for n in range(5, size):
        left, right = np.arange(1, n - 3), n - 3 - np.arange(1, n - 3)
        joint = np.einsum("ka,kb->ab", p[left], p[right]) / len(left)
        p[n] = np.mean([np.bincount((tables[op] % m).ravel(), joint.ravel(), m) for op in operators], 0)
    return p


@pytest.mark.parametrize("operators", ["+-", "+-*"])
@pytest.mark.parametrize(("low", "high", "zeros"), [(3, 40, 0.26), (40, 256, 0.31)])
def test_values_follow_the_exact_law(operators, low, high, zeros):
    """With + and - values are uniform; with * zero is more frequent, by as much as is known (to 0.005 as printed, and
    half a percent for their sample). Shares of a sample are within 5 deviations of the law."""
    T = np.arange(low, high + 1)
    expected = law(operators)[np.maximum(T, 5) - 3].mean(0)
    if operators == "+-":
        np.testing.assert_allclose(expected, 0.2, rtol=1e-12)
    else:
        assert expected[0] == pytest.approx(zeros, abs=0.01)
    task = Brackets(operators=operators, val_min_length=low, val_max_length=high, val=N).load()
    batches = [task.val.batch(np.arange(i, i + 1000)) for i in range(0, N, 1000)]
    labels = np.concatenate([batch.labels[batch.labels >= 0] for batch in batches])
    share = np.bincount(labels, minlength=5) / N
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / N)).all()


def test_left_side_and_operators_are_uniform():
    """Expressions of 9 tokens: sizes 1 to 5 of the left side are equally frequent, and so are operators; 5
    deviations."""
    task = Brackets(operators="+-*", val_min_length=12, val_max_length=12, val=N).load()
    left, used = np.zeros(10), dict.fromkeys("+-*", 0)
    for i in range(0, N, 1000):
        for tokens, _, _ in rows(task.val, i, 1000):
            source = text(tokens[:9])
            depth, at = 0, 1
            while True:  # up to the operator of the root: the first after a whole left side
                depth += {"(": 1, ")": -1}.get(source[at], 0)
                at += 1
                if depth == 0 and (source[at - 1] == ")" or source[at - 1].isdigit()):
                    break
            left[at - 1] += 1
            used[source[at]] += 1
    for counts, n in ((left[1:6], 5), (np.array(list(used.values())), 3)):
        assert counts.sum() == N
        assert (np.abs(counts / N - 1 / n) <= 5 * math.sqrt(1 / n * (1 - 1 / n) / N)).all()


def test_a_constant_answer_scores_what_chance_says():
    task = Brackets().load()
    labels = np.array([max(labels) for _, labels, _ in rows(task.test, 0, 8192)])
    best = np.bincount(labels, minlength=5).max() / len(labels)
    assert best <= 0.2 + 5 * math.sqrt(0.2 * 0.8 / len(labels))


def test_defaults_are_the_published_ones():
    task = Brackets().load()
    assert (task.vocab, task.n_classes, task.curve, task.metric, task.chance) == (12, 5, "length", "accuracy", 0.2)
    lengths = task.train.batch(np.arange(4000)).lengths
    assert lengths.max() == task.scaled_above == 39
    assert (len(task.train), len(task.val), len(task.test)) == (102_400_000, 8192, 8192)
    batch = task.test.batch(np.arange(50))
    np.testing.assert_array_equal(task.test.curve_lengths(np.arange(50), batch), batch.lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operators": "*"}, "operators is '\\*', expected '\\+-' or"),
        ({"modulus": 1}, "modulus is 1, expected an integer from 2 to 1000"),
        ({"max_length": 2}, "max_length is 2, expected an integer from 3"),
        ({"val_min_length": 0}, "val_min_length is 0"),
        ({"test_max_length": 5000}, "test_max_length is 5000, expected an integer from 3 to 4096"),
        ({"train": 0}, "train is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"Brackets: {message}"):
        Brackets(**settings)
