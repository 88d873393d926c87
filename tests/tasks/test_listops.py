"""ListOps: distribution of the generator, released file format, tokenisation, and errors for bad input."""

import hashlib
import math
import os
import re
import statistics
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rotrnn import _cpu
from rotrnn.tasks import TASKS, ListOps, describe
from rotrnn.tasks.listops import (
    HEADER,
    TOKENS,
    Expressions,
    generate,
    parse,
    read_expressions,
    render,
    write_expressions,
)

N = 20_000


@pytest.fixture(scope="module")
def sample():
    return generate(N, seed=1)


# ---- an evaluator of the text that shares nothing with the package ----


def evaluate(source):
    """The value of a parenthesised source by reading pairs: an operator paired with arguments, closed by `]`."""
    symbols = iter(source.split(" "))

    def item():
        symbol = next(symbols)
        if symbol != "(":
            return int(symbol) if symbol.isdigit() else symbol
        left, right = item(), item()
        assert next(symbols) == ")"
        if right == "]":
            operator, *arguments = left
            return {
                "[MIN": lambda: min(arguments),
                "[MAX": lambda: max(arguments),
                "[MED": lambda: int(statistics.median(arguments)),
                "[SM": lambda: sum(arguments) % 10,
            }[operator]()
        return [*(left if isinstance(left, list) else [left]), right]

    value = item()
    assert next(symbols, None) is None
    return value


def nesting(tokens):
    """The depth of the deepest node; the root has depth 1."""
    steps = np.where(tokens < 10, 0, np.where(tokens == 14, -1, 1))
    return int(np.cumsum(steps).max()) + 1


def by_text(text):
    """Token ids of an expression without parentheses."""
    return np.array([TOKENS.index(token) for token in text.split()], np.uint8)


# ---- single expressions ----

SMALL = [
    ("7", "7", 7),
    ("[MAX 3 4 ]", "( ( ( [MAX 3 ) 4 ) ] )", 4),
    ("[MIN 3 4 ]", "( ( ( [MIN 3 ) 4 ) ] )", 3),
    ("[MED 1 2 3 4 ]", "( ( ( ( ( [MED 1 ) 2 ) 3 ) 4 ) ] )", 2),
    ("[MED 9 1 8 ]", "( ( ( ( [MED 9 ) 1 ) 8 ) ] )", 8),
    ("[MED 0 9 ]", "( ( ( [MED 0 ) 9 ) ] )", 4),
    ("[SM 9 9 9 ]", "( ( ( ( [SM 9 ) 9 ) 9 ) ] )", 7),
    ("[SM 5 5 ]", "( ( ( [SM 5 ) 5 ) ] )", 0),
    ("[MAX 2 [MIN 7 4 ] 1 ]", "( ( ( ( [MAX 2 ) ( ( ( [MIN 7 ) 4 ) ] ) ) 1 ) ] )", 4),
    ("[MAX [MIN 7 4 ] 1 ]", "( ( ( [MAX ( ( ( [MIN 7 ) 4 ) ] ) ) 1 ) ] )", 4),
]


@pytest.mark.parametrize(("tokens", "source", "value"), SMALL)
def test_small_expressions(tokens, source, value):
    tokens = by_text(tokens)
    assert render(tokens) == source
    back, got = parse(source)
    np.testing.assert_array_equal(back, tokens)
    assert got == value == evaluate(source)


@pytest.mark.parametrize("text", ["", "1 2", "[MAX 1", "1 ]", "[MAX ]", "[MAX 1 ] 2", "] 1", "[MAX 1 2 ] ]"])
def test_render_rejects_malformed_expressions(text):
    with pytest.raises(ValueError, match="not one expression"):
        render(by_text(text))


def test_nesting_is_bounded():
    deepest = by_text("[SM " * 128 + "1" + " ]" * 128)
    tokens, value = parse(render(deepest))
    assert value == 1
    np.testing.assert_array_equal(tokens, deepest)
    with pytest.raises(ValueError, match="128 nested"):
        render(by_text("[SM " * 129 + "1" + " ]" * 129))
    with pytest.raises(ValueError, match="128 nested"):
        parse("( ( [SM " * 129 + "1 " + ") ] ) " * 128 + ") ] )")


# ---- the generator ----


def test_sources_evaluate_to_their_values(sample):
    for tokens, value in zip(sample.part(0, 300).rows(), sample.values[:300], strict=True):
        source = render(tokens)
        assert evaluate(source) == value
        flat = re.sub("[()]", " ", source).split()
        assert flat == [TOKENS[token] for token in tokens]


def test_lengths_symbols_depth_and_duplicates(sample):
    lengths = np.diff(sample.offsets)
    assert len(sample.values) == len(lengths) == N
    assert lengths.min() == 501  # both limits are strict, and reached by a sample of this size
    assert lengths.max() == 1999
    assert set(np.unique(sample.tokens)) == set(range(15))
    assert {nesting(tokens) for tokens in sample.rows()} == {10}  # less has probability 4e-11 an expression
    assert len({tokens.tobytes() for tokens in sample.rows()}) == N


def law_of_lengths(max_depth=10, max_args=10, size=2000):
    """Probability of each length below `size`, by the recursion of the rule: from digits alone at max_depth upwards,
    a node of n arguments has 2 tokens more than they have together."""
    law = np.zeros(size)
    law[1] = 1
    for _ in range(max_depth - 1):
        power, powers = law, np.zeros(size)
        for _ in range(max_args - 1):
            power = np.convolve(power, law)[:size]
            powers += power
        law = 0.25 / (max_args - 1) * np.concatenate([[0, 0], powers[:-2]])
        law[1] += 0.75
    return law


def candidate_lengths(n, seed, *, max_depth, max_length, min_length):
    tokens, lengths, values = np.empty((n, max_length), np.uint8), np.empty(n, np.int64), np.empty(n, np.uint8)
    limits = {"max_depth": max_depth, "max_args": 10, "min_length": min_length, "max_length": max_length}
    _cpu.kernels.listops_sample(tokens=tokens, lengths=lengths, values=values, n=n, seed=seed, first=0, **limits)
    return lengths


def test_acceptance_and_lengths_follow_the_exact_law(sample):
    """Candidates are accepted with the binomial's frequency, within 4 deviations (probability 6e-5); the distribution
    function of lengths is within 1.95 / sqrt(N) everywhere (Kolmogorov-Smirnov, level 1e-3)."""
    accepted = law_of_lengths()[501:]
    p = accepted.sum()
    assert p == pytest.approx(0.0828, abs=5e-5)

    candidates = 100_000
    lengths = candidate_lengths(candidates, 5, max_depth=10, max_length=2000, min_length=500)
    assert abs(np.mean(lengths > 0) - p) <= 4 * math.sqrt(p * (1 - p) / candidates)

    observed = np.cumsum(np.bincount(np.diff(sample.offsets), minlength=2000)[501:]) / N
    assert np.abs(observed - np.cumsum(accepted) / p).max() <= 1.95 / math.sqrt(N)


def test_quantiles_and_labels_are_those_of_the_benchmark(sample):
    """Against figures measured on the original generator: quantiles of length, from a sample so small that they may be
    3 % off, and shares, rounded as printed; both within 3 standard errors of this sample, for a quantile
    sqrt(q (1 - q) / N) / density."""
    lengths = np.diff(sample.offsets)
    for q, listed in ((0.05, 550), (0.25, 715), (0.5, 975), (0.75, 1310), (0.95, 1820)):
        at = np.quantile(lengths, q)
        density = np.mean(np.abs(lengths - at) <= 50) / 100
        assert abs(at - listed) <= 0.03 * listed + 3 * math.sqrt(q * (1 - q) / N) / density
    share = np.bincount(sample.values, minlength=10) / N
    error = 3 * math.sqrt(0.17 * 0.83 / N)
    assert abs(share[0] - 0.17) <= 0.005 + error
    assert abs(share[9] - 0.17) <= 0.005 + error
    assert 0.05 < share[1:9].min() <= share[1:9].max() < 0.105
    mix = np.bincount(sample.tokens, minlength=15) / len(sample.tokens)
    assert mix[:10].sum() == pytest.approx(0.716, abs=1e-3)
    assert mix[14] == pytest.approx(0.142, abs=1e-3)


def test_digits_operators_and_arguments_are_uniform(sample):
    """Digits and operators are drawn apart from the tree's shape, so they stay uniform among accepted trees: each
    share within 5 deviations. The number of arguments is seen in trees of depth 2, all of them accepted."""
    counts = np.bincount(sample.tokens, minlength=15)
    for part in (counts[:10], counts[10:14]):
        p, n = 1 / len(part), part.sum()
        assert np.abs(part / n - p).max() <= 5 * math.sqrt(p * (1 - p) / n)

    n = 200_000
    lengths = candidate_lengths(n, 3, max_depth=2, max_length=13, min_length=0)
    expected = np.zeros(13)
    expected[1], expected[4:] = 0.75, 0.25 / 9
    observed = np.bincount(lengths, minlength=13) / n
    assert (np.abs(observed - expected) <= 5 * np.sqrt(expected * (1 - expected) / n)).all()


THREADS = """
import hashlib
from rotrnn.tasks.listops import generate
e = generate(3000, seed=4)
print(hashlib.sha256(e.tokens.tobytes() + e.offsets.tobytes() + e.values.tobytes()).hexdigest())
"""


def digest(expressions):
    return hashlib.sha256(b"".join(array.tobytes() for array in expressions)).hexdigest()


@pytest.mark.slow
def test_same_expressions_for_any_number_of_threads_and_seeds_differ():
    expected = digest(generate(3000, seed=4))
    for threads in (1, 2, 7):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        run = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True)
        assert run.stdout.strip() == expected, run.stderr
    assert digest(generate(3000, seed=5)) != expected
    assert digest(generate(3000, seed=4 + 2**32)) != expected


def test_fewer_are_the_beginning_of_more(sample):
    few = generate(50, seed=1)
    np.testing.assert_array_equal(few.tokens, sample.tokens[: few.offsets[-1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "settings", "found"),
    [
        (11, {"max_depth": 1, "min_length": 0, "max_length": 3}, 10),  # the ten digits
        (1, {"max_depth": 3, "max_args": 2, "min_length": 500}, 0),
    ],
)
def test_settings_that_cannot_yield_enough(count, settings, found):
    with pytest.raises(RuntimeError, match=f"ListOps: found only {found} of {count} distinct expressions"):
        generate(count, seed=0, **settings)


# ---- files ----


def test_round_trip_and_bytes(tmp_path, sample):
    some = sample.part(100, 400)
    write_expressions(tmp_path / "a.tsv", some)
    text = (tmp_path / "a.tsv").read_bytes()
    lines = text.split(b"\r\n")
    assert lines[0] == b"Source\tTarget"
    assert lines[-1] == b""
    assert len(lines) == 302
    assert text.count(b"\n") == text.count(b"\r") == 301
    assert lines[1] == render(next(some.rows())).encode() + b"\t%d" % some.values[0]

    back = read_expressions(tmp_path / "a.tsv")
    np.testing.assert_array_equal(back.tokens, np.concatenate(list(some.rows())))
    np.testing.assert_array_equal(np.diff(back.offsets), np.diff(some.offsets))
    np.testing.assert_array_equal(back.values, some.values)
    write_expressions(tmp_path / "b.tsv", back)
    assert (tmp_path / "b.tsv").read_bytes() == text


GOOD = b"( ( ( [MAX 3 ) 4 ) ] )\t4\r\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_rows_may_end_as_on_other_systems(tmp_path, end):
    path = tmp_path / "basic_train.tsv"
    whole = (HEADER + GOOD + b"2\t2\r\n").replace(b"\r\n", end)
    for content in (whole, whole.removesuffix(end)):
        path.write_bytes(content)
        assert [render(row) for row in read_expressions(path).rows()] == ["( ( ( [MAX 3 ) 4 ) ] )", "2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: the header is '', expected"),
        (b"Source,Target\r\n" + GOOD, "line 1: the header is 'Source,Target"),
        (b"Source\tTarget \n" + GOOD, "line 1: the header"),
        (HEADER + GOOD + GOOD[:12], r"line 3: the row has 1 column\(s\), expected 2, Source and Target"),
        (HEADER + GOOD + GOOD[:-3], r"line 3: Target is '', expected 4"),
        (HEADER + GOOD[:-2] + b"\r\r\n", r"line 2: Target is '4\\r', expected 4"),
        (HEADER + b"\r\n", r"line 2: the row has 1 column\(s\), expected 2"),
        (HEADER + GOOD[:-2] + b"\t1\r\n", r"line 2: the row has 3 column\(s\), expected 2"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ] )\t3\r\n", "line 2: Target is '3', expected 4, the value of Source"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ] )\t\r\n", "line 2: Target is '', expected 4"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ] )\t4 \r\n", "line 2: Target is '4 ', expected 4"),
        (HEADER + b"\t4\r\n", "line 2: symbol 1 is '', expected a digit or '\\('"),
        (HEADER + b"( ( ( [FIRST 3 ) 4 ) ] )\t4\r\n", r"line 2: symbol 4 is '\[FIRST', expected '\(' or an operator"),
        (HEADER + b"( ( ( [MAX 13 ) 4 ) ] )\t4\r\n", r"symbol 5 is '13', expected a digit or '\('"),
        (HEADER + b"( ( ( [MAX  3 ) 4 ) ] )\t4\r\n", "symbol 5 is '', expected a digit"),
        (HEADER + b"( ( ( [MAX 3 4 ) ) ] )\t4\r\n", r"symbol 6 is '4', expected '\)' after an argument"),
        (HEADER + b"( ( ( [MAX 3 ) ] )\t4\r\n", r"symbol 7 is '\]', expected a digit or '\('"),
        (HEADER + b"( ( [MAX 3 ) 4 ) ] )\t4\r\n", r"symbol 6 is '4', expected '\]' after the last argument"),
        (HEADER + b"( [MAX ] )\t4\r\n", r"symbol 2 is '\[MAX', expected '\(', because"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ] ]\t4\r\n", r"symbol 10 is '\]', expected '\)' after '\]'"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ]\t4\r\n", r"the expression ends after symbol 9, expected '\)' after '\]'"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ] ) )\t4\r\n", r"symbol 11 is '\)', expected nothing more"),
        (HEADER + b"( ( ( [MAX 3 ) 4 ) ] ) \t4\r\n", "symbol 11 is '', expected nothing more"),
        (HEADER + b"3 4\t4\r\n", "symbol 2 is '4', expected nothing more"),
        (HEADER + b"\xff\x00\t4\r\n", r"symbol 1 is '\\\\xff\\x00', expected a digit"),
    ],
)
def test_malformed_files(tmp_path, content, message):
    path = tmp_path / "basic_train.tsv"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}, {'' if message[0] == 'l' else 'line 2: '}{message}"
    ):
        read_expressions(path)


@given(
    st.lists(st.sampled_from([*"19()]", "[MAX", "[SM", "[", ""]), max_size=9)
    | st.just(["(", "(", "(", "[SM", "1", ")", "2", ")", "]", ")"]),
    st.integers(0, 9),
    st.sampled_from([*"19()]", "[MIN", "( ( [SM 3 ) ] )"]),
)
def test_what_parses_is_what_render_writes(symbols, at, replacement):
    symbols = [*symbols[:at], replacement, *symbols[at + 1 :]]
    try:
        tokens, value = parse(" ".join(symbols))
    except ValueError:
        return
    assert render(tokens) == " ".join(symbols)
    assert value == evaluate(" ".join(symbols))


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"old")
    broken = Expressions(by_text("3 ]"), np.array([0, 1, 2]), np.array([3, 3], np.uint8))
    with pytest.raises(ValueError, match="not one expression"):
        write_expressions(path, broken)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.tsv"]


# ---- the task ----

SOME = {"train": 300, "val": 40, "test": 30}


def texts(split):
    return [[TOKENS[token] for token in row] for row in split.expressions.rows()]


def test_ids_are_ranked_by_frequency_in_training():
    task = ListOps(**SOME).load()
    counts = Counter("X" if token == "]" else token for row in texts(task.train) for token in row)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    ids = {token: 3 + rank for rank, token in enumerate(ranked)}
    assert task.vocab == 18
    assert (task.n_classes, task.n_features) == (10, None)
    assert [len(split) for split in (task.train, task.val, task.test)] == [300, 40, 30]

    index = np.array([7, 3, 3, 299])
    batch = task.train.batch(index)
    assert batch.inputs.dtype == batch.labels.dtype == batch.lengths.dtype == np.int64
    assert batch.inputs.shape == (4, batch.lengths.max())
    rows = texts(task.train)
    for i, row, length, label in zip(index, batch.inputs, batch.lengths, batch.labels, strict=True):
        expected = [ids["X" if token == "]" else token] for token in rows[i]] + [2]
        assert row[:length].tolist() == expected
        assert (row[length:] == 0).all()
        assert label == task.train.expressions.values[i]


def test_ties_unknown_tokens_and_truncation():
    """Training on `[MIN 3 0 ] [MAX 3 0 ]`: 0, 3 and ] occur twice, [MAX and [MIN once; the rest is unknown."""
    rows = [by_text("[MIN 3 0 ]"), by_text("[MAX 3 0 ]"), by_text("[SM 3 9 ]")]
    every = Expressions(np.concatenate(rows), np.array([0, 4, 8, 12]), np.array([0, 3, 2], np.uint8))
    splits = {"train": every.part(0, 2), "val": every.part(2, 3), "test": every.part(0, 1)}
    task = ListOps(**SOME)._task(splits)
    assert task.vocab == 3 + 5
    assert task.train.batch(np.array([0, 1])).inputs.tolist() == [[7, 4, 3, 5, 2], [6, 4, 3, 5, 2]]
    assert task.val.batch(np.array([0])).inputs.tolist() == [[1, 4, 1, 5, 2]]
    cut = ListOps(**SOME, max_tokens=2)._task(splits)  # counts only what is left: 3 twice, [MAX and [MIN once
    assert cut.train.batch(np.array([0, 1])).inputs.tolist() == [[5, 3, 2], [4, 3, 2]]
    assert cut.train.batch(np.array([0])).lengths.tolist() == [3]


def test_splits_share_no_expression():
    task = ListOps(**SOME).load()
    rows = [tokens.tobytes() for split in (task.train, task.val, task.test) for tokens in split.expressions.rows()]
    assert len(set(rows)) == len(rows) == 370


def test_written_files_load_as_what_was_generated(tmp_path):
    made = ListOps(**SOME, seed=9).write(tmp_path / "new" / "folder")
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["basic_test.tsv", "basic_train.tsv", "basic_val.tsv"]
    read = ListOps(**SOME, data_dir=str(tmp_path / "new" / "folder")).load()
    for name, count in SOME.items():
        ours, theirs = (getattr(task, name).batch(np.arange(count)) for task in (made, read))
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    assert isinstance(read.train.expressions.tokens, np.memmap)
    fewer = ListOps(**{**SOME, "train": 7}, data_dir=str(tmp_path / "new" / "folder")).load()
    assert texts(fewer.train) == texts(read.train)[:7]
    with pytest.raises(ValueError, match=r"basic_val.tsv: has 40 expressions, expected at least 41"):
        ListOps(**{**SOME, "val": 41}, data_dir=str(tmp_path / "new" / "folder")).load()
    with pytest.raises(FileNotFoundError, match=r"basic_train\.tsv"):
        ListOps(**SOME, data_dir=str(tmp_path)).load()


def test_files_are_not_written_from_files(tmp_path):
    ListOps(**SOME).write(tmp_path)
    before = (tmp_path / "basic_train.tsv").read_bytes()
    with pytest.raises(
        ValueError, match=r"ListOps: data_dir is '.*', expected none: its expressions are already files"
    ):
        ListOps(**{**SOME, "train": 20}, data_dir=str(tmp_path)).write(tmp_path)
    assert (tmp_path / "basic_train.tsv").read_bytes() == before


def test_a_stop_while_writing_leaves_what_was_there(tmp_path, monkeypatch):
    """Files of a smaller set with another seed exist; the disk is full when the second new file is written."""
    ListOps(**SOME, seed=8).write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    written = []

    def write_once(path, expressions):
        if written:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        write_expressions(path, expressions)

    monkeypatch.setattr("rotrnn.tasks.listops.write_expressions", write_once)
    with pytest.raises(OSError, match="No space left"):
        ListOps(**SOME, seed=9).write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_describe():
    text = describe(ListOps(**SOME).load())
    assert text.startswith("listops: 10 classes, 18 token ids\n")
    assert re.search(r"^train +300 ", text, re.M)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": 0}, "train is 0, expected an integer from 1"),
        ({"max_depth": 0}, "max_depth is 0, expected an integer from 1 to 128"),
        ({"max_depth": 129}, "max_depth is 129"),
        ({"max_args": 1}, "max_args is 1, expected an integer from 2"),
        ({"min_length": -1}, "min_length is -1"),
        ({"max_length": 501}, "max_length is 501, expected an integer from 502"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"ListOps: {message}"):
        ListOps(**settings)


def test_published_sizes_are_the_defaults():
    settings = TASKS["listops"]()
    assert (settings.train, settings.val, settings.test) == (96_000, 2_000, 2_000)
    assert (settings.max_depth, settings.max_args, settings.min_length, settings.max_length) == (10, 10, 500, 2000)
    assert settings.max_tokens == 2047
