"""Word problems: groups, generated sequences, labels, released files."""

import itertools
import math
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rotrnn._cpu import MOST_COUNTED
from rotrnn.tasks import WordProblem
from rotrnn.tasks.task import majority_baseline
from rotrnn.tasks.word_problem import HEADER, GeneratedSequences, group, read_csv, write_csv

# ---- groups ----


def permutations(n, even=False):
    """One-line permutations of 1 .. n in lexicographic order, the even ones by their cycles."""

    def odd(p):
        seen, cycles = set(), 0
        for start in range(n):
            cycles += start not in seen
            while start not in seen:
                seen.add(start)
                start = p[start] - 1
        return (n - cycles) % 2

    return [p for p in itertools.product(range(1, n + 1), repeat=n) if len(set(p)) == n and not (even and odd(p))]


def table(name):
    """Returns the table of products: a b at (a, b)."""
    every = np.arange(group(name).order)
    pairs = np.stack(np.meshgrid(every, every, indexing="ij"), -1).reshape(-1, 2)
    return group(name).states(pairs)[:, 1].reshape(len(every), len(every))


@pytest.mark.parametrize(("name", "elements"), [("S4", permutations(4)), ("A5", permutations(5, even=True))])
def test_products_apply_the_right_factor_first(name, elements):
    products = table(name)
    assert len(products) == len(elements)
    for a, b in itertools.product(range(len(elements)), repeat=2):
        product = tuple(elements[a][i - 1] for i in elements[b])
        assert elements[products[a, b]] == product


@pytest.mark.parametrize(("name", "even"), [("S7", False), ("A7", True), ("A8", True)])
def test_products_in_larger_groups(name, even):
    """Compares with permutations listed and sorted by Python, in sequences long enough for several threads."""
    n = int(name[1:])
    elements = [p for p in itertools.permutations(range(n)) if not even or determinant(p) == 1]
    number = {p: at for at, p in enumerate(elements)}
    assert group(name).order == len(elements)
    rows = np.random.default_rng(0).integers(0, len(elements), (60, 150))
    for row, states in zip(rows.tolist(), group(name).states(rows).tolist(), strict=True):
        product = tuple(range(n))
        for element, state in zip(row, states, strict=True):
            product = tuple(product[i] for i in elements[element])
            assert number[product] == state


def determinant(p):
    return round(np.linalg.det(np.eye(len(p))[list(p)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["S12", "A12", "Z2147483647", "A4xZ5xS9", "S1xA1xZ1"])
def test_the_largest_groups(name):
    """These groups are too large for lists: tests the identity, inverses as powers, and associativity."""
    G = group(name)
    a, b, c = np.random.default_rng(0).integers(0, G.order, (3, 200))

    def product(*factors):
        return G.states(np.stack(factors, 1))[:, -1]

    identity = np.zeros_like(a)
    np.testing.assert_array_equal(product(a, identity), a)
    np.testing.assert_array_equal(product(identity, a), a)
    np.testing.assert_array_equal(product(product(a, b), c), product(a, product(b, c)))
    if "S" in name or "A" in name:  # the order of every element divides lcm(1, ..., 12), here of Z5 too
        np.testing.assert_array_equal(product(*[a] * math.lcm(*range(1, 13))), identity)
    last = np.array([G.order - 1])
    if name == "S12":  # it reverses the order of the items
        assert product(last, last) == 0
    if name.startswith("Z"):
        assert product(last, last) == G.order - 2


def test_numbers_of_the_elements_of_a5():
    even, every = permutations(5, even=True), permutations(5)
    assert [every.index(p) for p in even[:7]] == [0, 3, 4, 7, 8, 11, 12]
    assert [even[i] for i in (0, 1, 2, 3, 59)] == [
        (1, 2, 3, 4, 5),
        (1, 2, 4, 5, 3),
        (1, 2, 5, 3, 4),
        (1, 3, 2, 5, 4),
        (5, 4, 3, 2, 1),
    ]


@pytest.mark.parametrize(
    ("name", "elements", "states"),
    [("A5", [1, 2, 3, 30, 59, 7], [1, 0, 3, 21, 42, 45]), ("S5", [1, 2, 3, 30, 119, 7], [1, 4, 0, 30, 115, 100])],
)
def test_known_products(name, elements, states):
    assert group(name).states(np.array([elements])).tolist() == [states]


@pytest.mark.parametrize(
    ("name", "order", "called"),
    [
        ("S1", 1, "S1"),
        ("A1", 1, "A1"),
        ("A2", 1, "A2"),
        ("Z60", 60, "Z60"),
        ("S6", 720, "S6"),
        ("A4xZ5", 60, "A4_x_Z5"),
        ("A4_x_Z5", 60, "A4_x_Z5"),
        ("S3xZ2xZ2", 24, "S3_x_Z2_x_Z2"),
    ],
)
def test_each_is_a_group(name, order, called):
    """Element 0 is the identity, every row and column a permutation, and products of three associate."""
    assert (group(name).name, group(name).order) == (called, order)
    products, every = table(name), np.arange(order)
    np.testing.assert_array_equal(products[0], every)
    np.testing.assert_array_equal(products[:, 0], every)
    np.testing.assert_array_equal(np.sort(products, 0), np.tile(every, (order, 1)).T)
    np.testing.assert_array_equal(np.sort(products, 1), np.tile(every, (order, 1)))
    a, b, c = np.random.default_rng(0).integers(0, order, (3, 5000))
    np.testing.assert_array_equal(products[products[a, b], c], products[a, products[b, c]])


def test_direct_product_by_its_components():
    left, right, both = table("A4"), table("Z5"), table("A4xZ5")
    for a, b in itertools.product(range(60), repeat=2):
        (a1, a2), (b1, b2) = divmod(a, 5), divmod(b, 5)
        assert divmod(int(both[a, b]), 5) == (left[a1, b1], right[a2, b2])


@pytest.mark.parametrize("name", ["", "A", "D5", "A5x", "xA5", "A05", "S0", "a5", "A5=3", "Z12345678901"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match=re.escape(f"group is '{name}', expected S, A or Z and a number")):
        group(name)


@pytest.mark.parametrize("name", ["S13", "A13", "S9999", "Z2147483648", "S12xZ5"])
def test_groups_that_are_too_large(name):
    with pytest.raises(ValueError, match=f"group is '{name}', expected one of at most 2147483647 elements"):
        group(name)


# ---- sequences ----


@settings(max_examples=40)
@given(order=st.integers(1, 60), length=st.integers(1, 9), seed=st.integers(0, 2**63 - 1))
def test_no_sequence_comes_twice(order, length, seed):
    count = min(order**length, 3000)
    rows = GeneratedSequences(order, length, count, seed).at(np.arange(count))
    assert 0 <= rows.min() <= rows.max() < order
    assert len(np.unique(rows, axis=0)) == count


def test_all_sequences_where_as_many_are_wanted():
    rows = GeneratedSequences(3, 5, 243, seed=1).at(np.arange(243))
    assert sorted(map(tuple, rows.tolist())) == list(itertools.product(range(3), repeat=5))
    assert rows.tolist() != sorted(rows.tolist())
    assert not np.array_equal(rows, GeneratedSequences(3, 5, 243, seed=2).at(np.arange(243)))


@pytest.mark.parametrize("length", [10, 11])
def test_elements_are_uniform_and_independent(length):
    """For lengths with and without numbered sequences: at every position, and for every pair of neighbours modulo 6,
    shares are within 5 deviations."""
    assert (60**length < MOST_COUNTED) == (length == 10)
    n = 40_000
    rows = GeneratedSequences(60, length, n, seed=3).at(np.arange(n))
    for t in range(length):
        share = np.bincount(rows[:, t], minlength=60) / n
        assert np.abs(share - 1 / 60).max() <= 5 * math.sqrt(1 / 60 * (59 / 60) / n)
    for t in range(length - 1):
        share = np.bincount(rows[:, t] % 6 * 6 + rows[:, t + 1] % 6, minlength=36) / n
        assert np.abs(share - 1 / 36).max() <= 5 * math.sqrt(1 / 36 * (35 / 36) / n)


def test_permuted_sequences_keep_no_order():
    """Rows i and i + 1 of numbered sequences share an element at a position as often as by chance."""
    n = 40_000
    rows = GeneratedSequences(60, 4, n, seed=0).at(np.arange(n))
    same = (rows[1:] == rows[:-1]).mean(0)
    assert np.abs(same - 1 / 60).max() <= 5 * math.sqrt(1 / 60 * (59 / 60) / n)


# ---- the task ----


def everything(split):
    return split.batch(np.arange(len(split)))


@pytest.mark.parametrize(("name", "vocab", "pad", "bos"), [("A5", 67, 60, 61), ("S5", 127, 120, 121)])
def test_ids_labels_and_sizes(name, vocab, pad, bos):
    task = WordProblem(group=name, length=6, samples=1000, test_length=20, test=50).load()
    assert (task.vocab, task.n_classes) == (vocab, vocab)
    assert (task.metric, task.curve, task.bos) == ("sequence_accuracy", "prefix", True)
    assert (len(task.train), len(task.val), len(task.test)) == (800, 200, 50)
    products = table(name)
    for split, T in ((task.train, 6), (task.val, 6), (task.test, 20)):
        batch = everything(split)
        assert batch.lengths is None
        assert batch.inputs.shape == (len(split), T + 1)
        assert (batch.inputs[:, 0] == bos).all()
        assert (batch.labels[:, 0] == bos).all()
        assert batch.inputs[:, 1:].max() == batch.labels[:, 1:].max() == pad - 1
        np.testing.assert_array_equal(batch.labels[:, 1], batch.inputs[:, 1])
        for t in range(2, T + 1):
            np.testing.assert_array_equal(batch.labels[:, t], products[batch.labels[:, t - 1], batch.inputs[:, t]])


def test_published_sizes_are_the_defaults():
    task = WordProblem().load()
    assert (len(task.train), len(task.val), len(task.test)) == (1_280_000, 320_000, 10_000)
    assert task.train.batch(np.array([0, 1_279_999])).inputs.shape == (2, 17)
    assert task.test.batch(np.array([9_999])).inputs.shape == (1, 51)


def test_training_and_validation_are_a_partition():
    task = WordProblem(group="S3", length=4, samples=10_000, test_length=5, test=5, val_fraction=0.25).load()
    assert (len(task.train), len(task.val)) == (972, 324)  # 6^4 in all
    rows = [{row.tobytes() for row in everything(split).inputs} for split in (task.train, task.val)]
    assert len(rows[0] | rows[1]) == 6**4


def test_shorter_sequences():
    """All sequences are used if there are fewer than `samples`; padding is PAD, which counts or not."""
    of = {"group": "S3", "length": 5, "samples": 300, "test_length": 7, "test": 3}
    assert len(WordProblem(**of).load().train) == 240
    assert len(WordProblem(**of, shorter="two").load().train) == 36 + 240
    for count_padding in (True, False):
        task = WordProblem(**of, shorter="all", count_padding=count_padding).load()
        assert len(task.train) == 36 + 216 + 300 + 240
        batch = everything(task.train)
        inside = batch.inputs != 6
        lengths = inside.sum(1) - 1
        assert np.bincount(lengths).tolist() == [0, 0, 36, 216, 300, 240]
        np.testing.assert_array_equal(inside, np.arange(6) <= lengths[:, None])
        if count_padding:
            assert batch.lengths is None
            np.testing.assert_array_equal(batch.labels == 6, ~inside)
        else:
            np.testing.assert_array_equal(batch.lengths, lengths + 1)
            np.testing.assert_array_equal(batch.labels == -1, ~inside)
        assert everything(task.val).inputs.shape == (60, 6)
        assert task.train.batch(np.arange(36)).inputs.shape == (36, 3)  # as long as the longest of the batch
    short = {**of, "length": 2}
    assert len(WordProblem(**short, shorter="two").load().train) == len(WordProblem(**short).load().train) == 29


def test_baselines_are_near_zero():
    """Copying the input is right where the product before was the identity: always for the first element, then in one
    of 60 cases, within 5 deviations; and so is a constant answer. Neither has a whole sequence of 12 right."""
    batch = everything(WordProblem(length=12, samples=5000, test_length=13, test=10).load().train)
    inputs, labels = batch.inputs[:, 1:], batch.labels[:, 1:]
    bound = 5 * math.sqrt(1 / 60 * (59 / 60) / labels[:, 1:].size)
    assert abs((inputs == labels)[:, 1:].mean() - 1 / 60) <= bound
    assert not (inputs == labels).all(1).any()
    share = np.bincount(labels[:, 1:].ravel(), minlength=60) / labels[:, 1:].size
    assert np.abs(share - 1 / 60).max() <= bound
    assert not (labels == labels[:, :1]).all(1).any()


# ---- files ----


def test_bytes_of_a_file(tmp_path):
    path = tmp_path / "A5=6.csv"
    words = GeneratedSequences(60, 6, 2, seed=7)
    write_csv(path, group("A5"), words, 7)
    rows = words.at(np.arange(2))
    products, expected = table("A5"), "seed,input,target\n"
    for row in rows.tolist():
        state, states = 0, []
        for element in row:
            state = products[state, element]
            states.append(state)
        expected += f"7,{' '.join(map(str, row))},{' '.join(map(str, states))}\n"
    assert path.read_bytes() == expected.encode()
    np.testing.assert_array_equal(read_csv(path, group("A5"), 6), rows)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_rows_of_any_line_end(tmp_path, end, last):
    path = tmp_path / "A5=3.csv"
    path.write_bytes(end.join([HEADER[:-1], b"3,1 2 3,1 0 3", b"3,2 1 3,2 0 3"]) + end * last)
    assert read_csv(path, group("A5"), 3).tolist() == [[1, 2, 3], [2, 1, 3]]


@pytest.mark.parametrize("name", ["S3", "A4xZ5", "A7xZ5"])
def test_written_files_load_as_what_was_generated(tmp_path, name):
    of = {"group": name, "length": 4, "samples": 5000, "shorter": "all", "test_length": 9, "test": 40, "seed": 5}
    made = WordProblem(**of).write(tmp_path / "new" / "folder")
    called = name.replace("x", "_x_")
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == [f"{called}={k}.csv" for k in (2, 3, 4, 9)]
    read = WordProblem(**of, data_dir=str(tmp_path / "new" / "folder")).load()
    for ours, theirs in ((made.train, read.train), (made.val, read.val), (made.test, read.test)):
        assert len(ours) == len(theirs)
        np.testing.assert_array_equal(everything(ours).inputs, everything(theirs).inputs)
        np.testing.assert_array_equal(everything(ours).labels, everything(theirs).labels)
    assert all(isinstance(words.elements, np.memmap) for words, _ in read.train.parts)
    again = WordProblem(**{**of, "seed": 6}).write(tmp_path / "new" / "folder")  # over the old files and their arrays
    read = WordProblem(**{**of, "seed": 6}, data_dir=str(tmp_path / "new" / "folder")).load()
    np.testing.assert_array_equal(everything(again.test).inputs, everything(read.test).inputs)


def test_one_cache_of_two_folders(tmp_path):
    """Files of the same name, size and time, in folders of the same name."""
    of = {"group": "Z7", "length": 4, "samples": 50, "test_length": 6, "test": 20}
    made = {}
    for seed in (1, 2):
        folder = tmp_path / str(seed) / "data"
        made[folder] = everything(WordProblem(**of, seed=seed).write(folder).test).inputs
        for path in folder.iterdir():
            os.utime(path, ns=(0, 0))
    for folder, inputs in (*made.items(), *made.items()):
        read = WordProblem(**of, data_dir=str(folder), cache_dir=str(tmp_path / "cache")).load()
        np.testing.assert_array_equal(everything(read.test).inputs, inputs)


def test_a_file_that_is_missing_is_named(tmp_path):
    of = {"group": "Z7", "length": 4, "samples": 50, "test_length": 6, "test": 20}
    for folder, file in ((tmp_path / "none", "Z7=4.csv"), (tmp_path, "Z7=6.csv")):
        with pytest.raises(FileNotFoundError) as error:
            WordProblem(**of, data_dir=str(folder)).load()
        assert str(error.value) == f"WordProblem: no data in {folder}; expected a file {file}"
        WordProblem(**of).write(tmp_path)
        (tmp_path / "Z7=6.csv").unlink()


def test_files_are_not_written_from_files(tmp_path):
    of = {"group": "Z7", "length": 4, "samples": 50, "test_length": 6, "test": 20}
    WordProblem(**of).write(tmp_path)
    before = (tmp_path / "Z7=4.csv").read_bytes()
    with pytest.raises(
        ValueError, match=r"WordProblem: data_dir is '.*', expected none: its sequences are already files"
    ):
        WordProblem(**{**of, "samples": 20}, data_dir=str(tmp_path)).write(tmp_path)
    assert (tmp_path / "Z7=4.csv").read_bytes() == before


def test_the_largest_seed_is_read_back(tmp_path):
    of = {"group": "Z7", "length": 4, "samples": 50, "test_length": 6, "test": 20, "seed": 2**63 - 1}
    made = WordProblem(**of).write(tmp_path)
    read = WordProblem(**of, data_dir=str(tmp_path)).load()
    np.testing.assert_array_equal(everything(read.train).inputs, everything(made.train).inputs)


@pytest.mark.parametrize("elements", [[[-1, 3]], [[0, 120]]])
def test_states_rejects_numbers_that_are_not_elements(elements):
    with pytest.raises(ValueError, match=rf"states: elements has {min(elements[0]) or 120}, expected 0 to 119 for S5"):
        group("S5").states(np.array(elements))


def test_majority_is_of_elements():
    """BOS, always right, and PAD are no elements: of 7 each has its share, within 5 deviations."""
    task = WordProblem(group="Z7", length=5, samples=4000, shorter="all", test_length=6, test=4000).load()
    for split in (task.train, task.test):
        labels, lengths = split.labels_and_lengths(np.arange(len(split)))
        assert (labels[:, 0] == -1).all()
        assert ((labels >= 0).sum(1) == lengths - 1).all()
        share = majority_baseline(task, split)
        assert abs(share - 1 / 7) <= 5 * math.sqrt(1 / 7 * (6 / 7) / (labels >= 0).sum())


def test_a_write_that_fails_leaves_the_lengths_that_were_there(tmp_path, monkeypatch):
    of = {"length": 3, "samples": 100, "test_length": 4, "test": 10}
    WordProblem(**of).write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["A5=3.csv", "A5=4.csv"]

    def full(path, *_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("rotrnn.tasks.word_problem.write_csv", full)
    with pytest.raises(OSError, match="No space left"):
        WordProblem(**of, seed=1).write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_with_too_little(tmp_path):
    of = {"length": 3, "samples": 100, "test_length": 4, "test": 10}
    WordProblem(**of).write(tmp_path)
    here = {**of, "data_dir": str(tmp_path)}
    assert len(WordProblem(**{**here, "samples": 50}).load().train) == 40  # the first rows
    for changed, told in (
        (
            {"samples": 101},
            r"3\.csv: has 100 rows, .* 101: A5=3\.csv needs 101 \(samples\), A5=4\.csv needs 10 \(test\)",
        ),
        ({"test": 11}, r"4\.csv: has 10 rows, .* 11: A5=3\.csv needs 100 \(samples\), A5=4\.csv needs 11 \(test\)"),
    ):
        with pytest.raises(ValueError, match=f"A5={told}; set these lower, or add rows$"):
            WordProblem(**{**here, **changed}).load()
    with pytest.raises(FileNotFoundError, match=r"A5=2\.csv"):
        WordProblem(**here, shorter="two").load()
    with pytest.raises(FileNotFoundError, match=r"S5=3\.csv"):
        WordProblem(**here, group="S5").load()


GOOD = b"3,1 2 3,1 0 3\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"line 1: the header is b'', expected b'seed,input,target\\n'"),
        (b"seed,input\n" + GOOD, r"line 1: the header is b'seed,input\\n'"),
        (
            HEADER + GOOD + GOOD[:-2],
            "line 3: the row is b'3,1 2 3,1 0 ', expected seed,input,target of 3 elements each",
        ),
        (HEADER + b"3,1 2 7,1 0 7\n3,1 2 30,1 0 3", "line 3: target 3 is 3, expected 30"),
        (HEADER + GOOD[:-1] + b"\r" + GOOD, "line 2: the row"),
        (HEADER + GOOD + GOOD[:9], "line 3: the row is b'3,1 2 3,1', expected"),
        (HEADER + b"\n", r"line 2: the row is b'\\n', expected"),
        (HEADER + b"3,1 2,1 0\n", "line 2: the row"),
        (HEADER + b"3,1 2 3,1 0\n", "line 2: the row"),
        (HEADER + b"3,1 2 3 4,1 0 3 5\n", "line 2: the row"),
        (HEADER + b"3,1  2 3,1 0 3\n", "line 2: the row"),
        (HEADER + b"3,01 2 3,1 0 3\n", "line 2: the row"),
        (HEADER + b"3,-1 2 3,1 0 3\n", "line 2: the row"),
        (HEADER + b"3,1 2 x,1 0 3\n", "line 2: the row"),
        (HEADER + b",1 2 3,1 0 3\n", "line 2: the row"),
        (HEADER + b"3,1 2 3,1 0 3,\n", "line 2: the row"),
        (HEADER + GOOD * 5000 + b"3,1 2 60,1 0 3\n", "line 5002: input has element 60, expected 0 to 59 for A5"),
        (
            HEADER + GOOD + b"3,1 2 3,1 0 4\n",
            r"line 3: target 3 is 4, expected 3, the product of the first 3 inputs \(P is .* for i in P\[e\]\)\)$",
        ),
        (HEADER + GOOD + b"3,1 2 3,1 60 3\n", "line 3: target 2 is 60, expected 0, the product of the first 2"),
    ],
)
def test_malformed_files(tmp_path, content, message):
    path = tmp_path / "A5=3.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, {message}"):
        read_csv(path, group("A5"), 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": "D4"}, "group is 'D4', expected S, A or Z"),
        ({"length": 0}, "length is 0, expected an integer from 1"),
        ({"samples": 1}, "samples is 1"),
        ({"test_length": 16}, "test_length is 16, expected an integer from 17"),
        ({"shorter": "some"}, "shorter is 'some', expected 'none', 'two' or 'all'"),
        ({"val_fraction": 1.0}, "val_fraction is 1.0, expected a number between 0 and 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"WordProblem: {message}"):
        WordProblem(**settings)


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match=r"val_fraction is 0\.01, 0 of 20 sequences"):
        WordProblem(samples=20, val_fraction=0.01).load()
