"""IMDB and AAN on small files in the published formats: vocabulary, ids, lengths, pairs, and malformed files."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.layer import Context, astype
from rotrnn.tasks import AAN, IMDB, aan, describe
from rotrnn.tasks.task import Task
from rotrnn.tasks.text import READINGS, TextSplit, prepare_texts, reading
from rotrnn.tasks.vocabulary import read_as

pytestmark = pytest.mark.filterwarnings("ignore:.*not the whole published data set")

rng = np.random.default_rng(0)


def words(n, alphabet="abcde é<br />€\U0001f600"):
    return "".join(rng.choice(list(alphabet), n))


def everything(split):
    return split.batch(np.arange(len(split)))


# ---- the rules of S4 and S5, and of Long Range Arena, spelled out ----


def characters(texts, train, max_length, min_frequency):
    """Returns ids by means of a dict: special ids, then characters of the truncated training texts by frequency."""
    counts = Counter(c for text in train for c in text[: max_length - 1])
    kept = [c for c in counts if counts[c] >= min_frequency]
    vocabulary = ["<pad>", "<unk>", "<eos>", *sorted(kept, key=lambda c: (-counts[c], c))]
    ids = {c: i for i, c in enumerate(vocabulary)}
    rows = [[*[ids.get(c, 1) for c in text][: max_length - 1], 2] for text in texts]
    return rows, len(vocabulary)


def in_bytes(texts, max_length):
    return [[byte + 1 for byte in text.encode()][:max_length] for text in texts], 257


class Memory(dict):
    """A store with arrays in memory."""

    def array(self, name, shape, dtype):
        self[name] = np.zeros(shape, dtype)
        return self[name]


def test_ids_of_another_vocabulary():
    """Characters have the ids of the model's training texts; characters missing on either side become `<unk>`."""
    tasks = []
    for train, cut in ((["abca", "ddaab"], 9), (["bbbc", "eedc"], 4)):
        arrays = Memory()
        rows = lambda some: lambda: ((0, (text,)) for text in some)  # noqa: E731
        prepare_texts(arrays, {"train": rows(train), "test": rows(["bdeb", "ad"])}, reading("characters", cut))
        splits = [TextSplit.of(arrays, name) for name in ("train", "test", "test")]
        tasks.append(Task("texts", *splits, 2, int(arrays["vocab"]), None, symbols=arrays["symbols"]))
    run, other = tasks  # by frequency, then code point
    assert [chr(symbol) for symbol in run.symbols] == ["a", "b", "d", "c"]
    assert [chr(symbol) for symbol in other.symbols] == ["b", "e", "d"]
    read = read_as(other, run)
    assert read.vocab == 7
    assert everything(read.test).inputs.tolist() == [[4, 5, 1, 2], [1, 5, 2, 0]]
    assert everything(read.train).inputs.tolist() == [[4, 4, 4, 2], [1, 1, 5, 2]]
    assert read_as(run, run) is run
    said = "^task is set to texts, and the run was trained on digits: only one of them has token ids"
    with pytest.raises(ValueError, match=said):
        read_as(run, replace(run, name="digits", symbols=None))


@given(st.lists(st.text(st.sampled_from("abcdé€\U0001f600\n\t\x00"), max_size=12), min_size=2, max_size=12), st.data())
def test_ids_against_a_dictionary(texts, data):
    cut, least = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 4))
    train, test = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    splits = {
        name: (lambda some=some: ((i % 2, (text,)) for i, text in enumerate(some)))
        for name, some in (("train", train), ("test", test))
    }
    for tokens in READINGS:
        arrays = Memory()
        prepare_texts(arrays, splits, reading(tokens, cut, least))
        for name, some in (("train", train), ("test", test)):
            rows, vocab = characters(some, train, cut, least) if tokens == "characters" else in_bytes(some, cut)
            rows = [row or [0] for row in rows]
            assert int(arrays["vocab"]) == vocab
            batch = everything(TextSplit.of(arrays, name))
            assert batch.lengths.tolist() == [len(row) for row in rows]
            for ids, row in zip(batch.inputs, rows, strict=True):
                assert ids[: len(row)].tolist() == row
                assert (ids[len(row) :] == 0).all()
            assert batch.labels.tolist() == [i % 2 for i in range(len(some))]


# ---- IMDB ----


def write_imdb(folder, reviews):
    """Writes the files of {split: {label: [texts]}}; the order of ids differs from that of the names (10 before 9)."""
    for split, labels in reviews.items():
        for label, texts in labels.items():
            place = folder / split / label
            place.mkdir(parents=True)
            for i, text in enumerate(texts):
                (place / f"{8 + i}_{2 if label == 'neg' else 9}.txt").write_bytes(text.encode())
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("unused", encoding="utf-8")


@pytest.fixture
def reviews(tmp_path):
    lengths = {"train": (30, 4, 0), "test": (25, 50, 3)}
    made = {split: {label: [words(n) for n in ns] for label in ("neg", "pos")} for split, ns in lengths.items()}
    write_imdb(tmp_path / "aclImdb", made)
    return made


@pytest.mark.parametrize("inside", ["", "aclImdb"])
def test_imdb(tmp_path, reviews, inside):
    with pytest.warns(UserWarning, match="IMDB: this is not the whole .*: train/neg 3 instead of 12500, train/pos 3 "):
        task = IMDB(data_dir=str(tmp_path / inside), max_length=20, min_frequency=3).load()
    flat = {split: labels["neg"] + labels["pos"] for split, labels in reviews.items()}
    for split in ("train", "test"):
        rows, vocab = characters(flat[split], flat["train"], 20, 3)
        batch = everything(getattr(task, split))
        assert task.vocab == vocab
        assert [row[:n].tolist() for row, n in zip(batch.inputs, batch.lengths, strict=True)] == rows
        assert batch.lengths.max() == batch.inputs.shape[1] == 20  # <eos> included
        assert batch.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert batch.inputs.dtype == batch.labels.dtype == batch.lengths.dtype == np.int64
    assert task.val is task.test
    assert task.selected_on == "test"
    assert "there is one split for validation and test: val is test" in describe(task)
    assert (task.n_classes, task.n_features, task.head) == (2, None, "classifier")


def test_imdb_in_bytes(tmp_path, reviews):
    task = IMDB(data_dir=str(tmp_path), tokens="bytes", max_length=20).load()
    rows, vocab = in_bytes(reviews["test"]["neg"], 20)
    batch = task.test.batch(np.arange(3))
    assert task.vocab == vocab
    assert [row[:n].tolist() for row, n in zip(batch.inputs, batch.lengths, strict=True)] == rows


def test_an_order_of_examples_and_a_repeated_one(tmp_path, reviews):
    split = IMDB(data_dir=str(tmp_path), min_frequency=1).load().train
    whole, index = everything(split), np.array([5, 0, 5])
    batch = split.batch(index)
    assert batch.inputs.shape == (3, batch.lengths.max())
    np.testing.assert_array_equal(batch.inputs, whole.inputs[index][:, : batch.lengths.max()])
    np.testing.assert_array_equal(batch.labels, whole.labels[index])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/neg/100_8.txt", b"x", r"with a rating from 1 to 4 for label 'neg'"),
        ("test/pos/100_4.txt", b"x", r"with a rating from 7 to 10 for label 'pos'"),
        ("test/pos/100.txt", b"x", r"expected a name <id>_<rating>\.txt"),
        ("test/pos/100_9.txt", b"caf\xc3", r"is not valid UTF-8: .* position 3: unexpected end of data"),
        ("train/neg/100_1.txt", b"\xff", r"is not valid UTF-8: .* position 0"),
    ],
)
def test_malformed_reviews(tmp_path, reviews, name, content, message):
    path = tmp_path / "aclImdb" / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: .*{message}"):
        IMDB(data_dir=str(tmp_path)).load()
    assert not list(tmp_path.glob(".rotrnn/*imdb*"))


def test_reviews_that_are_missing_or_twice_there(tmp_path, reviews):
    place = tmp_path / "aclImdb" / "train" / "neg"
    (place / "0008_1.txt").write_text("again", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^IMDB: .*0008_1\.txt and 8_2\.txt are reviews of one id, expected one of e"):
        IMDB(data_dir=str(tmp_path)).load()
    for path in place.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"^IMDB: .*train.neg has no reviews, expected at least one file <id>_"):
        IMDB(data_dir=str(tmp_path)).load()
    shutil.rmtree(tmp_path / "aclImdb" / "test" / "pos")
    expected = r"^IMDB: .*test.pos is no folder, expected .*train.neg, .*test.pos$"
    with pytest.raises(FileNotFoundError, match=expected):
        IMDB(data_dir=str(tmp_path)).load()
    (tmp_path / "aclImdb" / "test" / "pos").write_text("no folder", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=expected):
        IMDB(data_dir=str(tmp_path)).load()
    (tmp_path / "aclImdb" / "train-00000-of-00001.parquet").touch()
    with pytest.raises(FileNotFoundError, match=r"^IMDB: .*test-00000-of-00001.parquet is no file, expected .*train-"):
        IMDB(data_dir=str(tmp_path)).load()


# ---- AAN ----


def write_aan(folder, splits, newline="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        lines = [f"{label}\tA{i}\tB{i}\t{u}\t{v}{newline}" for i, (label, u, v) in enumerate(rows)]
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes("".join(lines).encode())


@pytest.fixture
def pairs():
    labels = ("0", "1", "0.0", "1.0")
    return {
        name: [(labels[i % 4], words(int(rng.integers(40))), words(int(rng.integers(40)))) for i in range(n)]
        for name, n in (("train", 9), ("eval", 5), ("test", 4))
    }


@pytest.mark.parametrize("inside", ["", "tsv_data", "lra_release/lra_release/tsv_data"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_aan(tmp_path, pairs, inside, newline):
    pairs["train"][3] = ("1", '"quoted', 'to the "end')  # quotation marks have no special meaning
    pairs["train"][4] = ("0", '"', '""')
    write_aan(tmp_path / inside, pairs, newline)
    with pytest.warns(UserWarning, match="train 9 instead of 147086, val 5 instead of 18090, test 4 instead of 17437"):
        task = AAN(data_dir=str(tmp_path), max_length=20).load()
    train = [text for _, u, v in pairs["train"] for text in (u, v)]
    for name, split in (("train", task.train), ("eval", task.val), ("test", task.test)):
        rows, vocab = characters([text for _, u, v in pairs[name] for text in (u, v)], train, 20, 1)
        batch = everything(split)
        n = len(pairs[name])
        assert batch.inputs.shape == (n, 2, batch.lengths.max())
        assert batch.lengths.shape == (n, 2)
        assert batch.labels.tolist() == [int(float(label)) for label, _, _ in pairs[name]]
        flat = zip(batch.inputs.reshape(2 * n, -1), batch.lengths.ravel(), strict=True)
        assert [row[:length].tolist() for row, length in flat] == rows
        assert task.vocab == vocab
    assert task.head == "retrieval"
    assert "aan: 2 classes" in describe(task)


def test_swapping_the_documents_of_pairs(tmp_path, pairs):
    """It exchanges u and v and flips the sign of u - v, nothing else: the head with its weights permuted in that way
    gives the same logits, as close as sums of 4 D + 1 terms in another order are."""
    write_aan(tmp_path / "tsv_data", pairs)
    task = AAN(data_dir=str(tmp_path), max_length=20).load()
    D = 6
    stack = ModelSettings(layer="lru", d_model=D, n_layers=2, norm="batch")
    model = build_model(
        stack, {"d_state": 8}, head=task.head, n_classes=task.n_classes, vocab=task.vocab, n_features=None
    )
    params = astype(model.init(np.random.default_rng(1)), np.float64)
    batch = everything(task.train)
    logits, _ = model.forward(params, batch.inputs, Context(batch.lengths))
    swapped, _ = model.forward(params, batch.inputs[:, ::-1], Context(batch.lengths[:, ::-1]))
    assert np.abs(logits - swapped).max() > 1e-3

    (name,) = (name for name, array in params["hidden"].items() if array.ndim == 2)
    u, v, difference, product = np.split(params["hidden"][name], 4, axis=1)
    params["hidden"][name] = np.concatenate([v, u, -difference, product], 1)
    again, _ = model.forward(params, batch.inputs[:, ::-1], Context(batch.lengths[:, ::-1]))
    np.testing.assert_allclose(again, logits, rtol=0, atol=64 * D * np.finfo(np.float64).eps * np.abs(logits).max())


GOOD = b"1\tA\tB\tone\tother\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b"2\tA\tB\tone\tother\n", r"line 2: the label is '2', expected 0 or 1"),
        (GOOD + b"\tA\tB\tone\tother\n", r"line 2: the label is '', expected 0 or 1"),
        (GOOD + b"label\tA\tB\tone\tother\n", r"line 2: the label is 'label', expected 0 or 1"),
        (GOOD + GOOD[:-3], r"line 2: the line is truncated, expected a line feed"),
        (GOOD + GOOD[:6], r"line 2: the line is truncated, expected a line feed"),
        (GOOD + b"1\tA\tB\tone\n", r"line 2: the line has 4 column\(s\), expected 5: label, two paper ids, two texts"),
        (b"1\tA\tB\tone\tother\tmore\n", r"line 1: the line has 6 column\(s\), expected 5"),
        (GOOD + b"\n" + GOOD, r"line 2: the line has 1 column\(s\), expected 5"),
        (GOOD + b"1\tA\tB\tcaf\xc3\tother\n", r"line 2: a text is not valid UTF-8: .* position 3"),
    ],
)
def test_malformed_pairs(tmp_path, pairs, content, message):
    write_aan(tmp_path / "tsv_data", pairs)
    path = tmp_path / "tsv_data" / "new_aan_pairs.eval.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}, {message}"):
        AAN(data_dir=str(tmp_path)).load()
    assert os.listdir(tmp_path / ".rotrnn") == [".lock"]


def test_the_published_last_line_may_lack_its_end(tmp_path, pairs, monkeypatch):
    write_aan(tmp_path / "tsv_data", pairs)
    path = tmp_path / "tsv_data" / "new_aan_pairs.eval.tsv"
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setitem(aan.PAIRS, "val", 5)
    assert len(AAN(data_dir=str(tmp_path)).load().val) == 5


def test_a_complete_data_set_with_another_vocabulary_is_reported(tmp_path, pairs, monkeypatch):
    """If every count is as published, the only warning is about the vocabulary."""
    write_aan(tmp_path / "tsv_data", pairs)
    monkeypatch.setattr(aan, "PAIRS", {"train": 9, "val": 5, "test": 4})
    with pytest.warns(UserWarning, match=r"AAN: .*: vocabulary \d+ instead of 98$"):
        task = AAN(data_dir=str(tmp_path)).load()
    monkeypatch.setitem(aan.VOCABULARY, "characters", task.vocab)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AAN(data_dir=str(tmp_path)).load()


# ---- settings ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IMDB(tokens="words"), "IMDB: tokens is 'words', expected one of characters, bytes"),
        (lambda: IMDB(max_length=1), "IMDB: max_length is 1, expected an integer from 2 to"),
        (lambda: IMDB(min_frequency=0), "IMDB: min_frequency is 0, expected an integer from 1"),
        (lambda: AAN(tokens=""), "AAN: tokens is ''"),
        (lambda: AAN(max_length=0), "AAN: max_length is 0, expected an integer from 2 to"),
        (lambda: IMDB().load(), "IMDB: data_dir is '', expected a folder with train/neg or train-0"),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
