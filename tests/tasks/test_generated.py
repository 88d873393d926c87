"""Properties of all generated tasks: an example depends only on seed, split and index, and labels fit the task."""

import hashlib
import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rotrnn import _cpu
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.layer import Context
from rotrnn.ops.random import philox
from rotrnn.tasks import MAD, MQAR, TASKS, Brackets, Copy, DelayedCopy, FlipFlop, Recall, Regular, WordProblem, describe
from rotrnn.tasks.generated import WRITABLE, ByLength
from rotrnn.tasks.mad import KINDS
from rotrnn.tasks.task import FeatureSplit, Task, majority_baseline, shuffled

CASES = {
    "A5": WordProblem(length=7, samples=2000, test_length=19, test=200),
    "S3, all lengths": WordProblem(group="S3", length=5, samples=300, shorter="all", test_length=40, test=100),
    "Z60, padding masked": WordProblem(
        group="Z60", length=12, samples=100, shorter="two", count_padding=False, test_length=13, test=10
    ),
    "copy": Copy(max_length=30, context=100, test_max_length=40, test_each=3),
    "prefix": Copy(variant="prefix", min_length=9, max_length=30, context=100, test_min_length=9, test_each=2),
    "suffix": Copy(variant="suffix", answer=2, min_length=9, max_length=30, context=100, test_min_length=9),
    "duplicate": Copy(letters=3, gram=2, test_variant="duplicate", test_min_length=6, test_each=2),
    "delayed copy": DelayedCopy(),
    "delayed copy of many bits": DelayedCopy(bits=32, length=17, delay=0, train=50, val=20, test=3),
    "recall by age": Recall(max_age=9, length=40, test_length=50),
    "recall by content at an age": Recall(keys=3, max_age=9, length=40, test_length=50, val_each=2),
    "mqar": MQAR(vocab=40, length=64, pairs=8, train=500, val=100, test=100, test_length=80),
    **{kind: MAD(kind=kind, train=200, val=50, test=50) for kind in KINDS},
    "flip-flop": FlipFlop(length=60, test_length=80, ignore=0.5, val=100, test=100),
    "brackets": Brackets(val=300, test=300),
    "brackets with *": Brackets(operators="+-*", modulus=3, max_length=80, val=100, test=100),
    **{name: Regular(language=name, test_each=1) for name in ("parity", "even_pairs", "cycle", "arithmetic")},
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def splits(task):
    return {"train": task.train, "val": task.val, "test": task.test}


def sizes(batch):
    return np.full(len(batch.inputs), batch.inputs.shape[1]) if batch.lengths is None else batch.lengths


def digest(split, n=1500):
    """Returns the first examples, in batches large enough for the kernels to use several threads."""
    batch = split.batch(np.arange(min(n, len(split))))
    return hashlib.sha256(b"".join(a.tobytes() for a in batch if a is not None)).hexdigest()


@EVERY
def test_labels_tokens_and_lengths_fit_the_task(case):
    task = case.load()
    assert TASKS[task.name] is type(case)
    assert case.shape == (task.n_classes, task.vocab, task.n_features, task.head)
    assert task.head in ("tagger", "autoencoder", "bits")
    assert task.head == "tagger" or (task.head == "bits") == (task.vocab is None)
    assert (task.vocab is None) != (task.n_features is None)
    for split in splits(task).values():
        batch = split.batch(np.arange(min(200, len(split))))
        assert batch.labels.dtype == np.int64
        assert batch.inputs.dtype == (np.int64 if task.vocab else np.float32)
        B, T = batch.inputs.shape[:2]
        assert batch.inputs.shape == ((B, T) if task.vocab else (B, T, task.n_features))
        assert batch.labels.shape == ((B, T, task.n_classes) if task.head == "bits" else (B, T))
        assert 0 <= batch.inputs.min() <= batch.inputs.max() < (task.vocab or 2)
        assert -1 <= batch.labels.min() <= batch.labels.max() < task.n_values
        inside = np.arange(batch.inputs.shape[1]) < sizes(batch)[:, None]
        assert (batch.labels[~inside] == -1).all()
        assert sizes(batch).max() == batch.inputs.shape[1]
        assert (batch.labels.reshape(B, -1) >= 0).any(1).all()


@EVERY
@settings(max_examples=15)
@given(data=st.data())
def test_an_example_does_not_depend_on_its_batch(case, data):
    for split in splits(case.load()).values():
        index = np.array(data.draw(st.lists(st.integers(0, len(split) - 1), min_size=1, max_size=6)))
        together = split.batch(index)
        for row, i in enumerate(index):
            alone = split.batch(np.array([i]))
            n = alone.inputs.shape[1]
            np.testing.assert_array_equal(together.inputs[row, :n], alone.inputs[0])
            np.testing.assert_array_equal(together.labels[row, :n], alone.labels[0])
            if alone.lengths is not None:
                assert alone.lengths[0] == together.lengths[row] == n
                assert split.curve_lengths(index, together)[row] == split.curve_lengths(index[row : row + 1], alone)[0]


THREADS = """
import test_generated as here
print(*(here.digest(split) for case in here.CASES.values() for split in here.splits(case.load()).values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_same_examples_for_any_number_of_threads(threads):
    expected = [digest(split) for case in CASES.values() for split in splits(case.load()).values()]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True)
    assert run.stdout.split() == expected, run.stderr


@pytest.mark.parametrize("level", _cpu.SIMD_AVAILABLE)
def test_same_examples_for_every_instruction_set(level):
    expected = [digest(case.load().train) for case in CASES.values()]
    before = _cpu.use_simd(level)
    try:
        assert [digest(case.load().train) for case in CASES.values()] == expected
    finally:
        _cpu.use_simd(before)


@EVERY
def test_seeds_differ_and_so_do_splits(case):
    def rows(task, name):
        batch = splits(task)[name].batch(np.arange(min(100, len(splits(task)[name]))))
        return {x[:n].tobytes() for x, n in zip(batch.inputs, sizes(batch), strict=True) if n > 30}

    changed = {one.name: getattr(case, one.name) for one in fields(case) if one.name != "seed"}
    seeds = [type(case)(**changed, seed=seed).load() for seed in (0, 1, 2**32, 2**63 - 1)]
    drawn = [digest(task.train) for task in seeds]
    assert len(set(drawn)) == 4
    found = [
        rows(seeds[0], name) for name in splits(seeds[0])
    ]  # rows are so long that equality by chance is negligible
    assert sum(map(len, found)) == len(set.union(*found))


@pytest.mark.parametrize("case", [Copy(), Brackets(), *(Regular(language=x) for x in ("parity", "arithmetic"))])
def test_fresh_streams_continue(case):
    task = case.load()
    assert task.train.fresh
    assert not task.val.fresh
    assert not task.test.fresh
    far = len(task.train) - 1
    assert far > 10**8
    assert task.train.batch(np.array([far, 0])).inputs.shape[0] == 2


@EVERY
def test_a_model_trains_on_it(case):
    """A training step runs: shapes, lengths and labels are as the heads expect, and the first loss is that of
    guessing."""
    task = case.load()
    model = build_model(
        ModelSettings(layer="lru", d_model=8, n_layers=1, norm="layer"),
        {"d_state": 8},
        head=task.head,
        n_classes=task.n_classes,
        vocab=task.vocab,
        n_features=task.n_features,
    )
    params = model.init(np.random.default_rng(0))
    batch = task.train.batch(np.arange(16))
    logits, saved = model.forward(params, batch.inputs, Context(batch.lengths))
    loss = model.loss(logits, batch.labels, batch.lengths)
    assert loss.total == np.count_nonzero(batch.labels >= 0)
    assert np.isfinite(loss.mean)
    assert model.backward(params, saved, loss.dlogits).keys() == params.keys()


@EVERY
def test_describe(case):
    task = case.load()
    lines = describe(task).split("\n")
    inputs = f"{task.vocab} token ids" if task.vocab else f"{task.n_features} feature(s) per step"
    labels = f"{task.n_classes} classes, {inputs}, {task.head}"
    bits = f"{task.n_classes} bits per step, {inputs}"
    assert lines[0] == f"{task.name}: {bits if task.head == 'bits' else labels}"
    assert [line.split()[:2] for line in lines[2:5]] == [
        [name, "fresh" if split.fresh else str(len(split))] for name, split in splits(task).items()
    ]
    assert ("train: statistics of 4096 examples, evenly spaced" in lines) == task.train.fresh


def test_statistics_of_a_large_split_are_of_all_its_parts():
    """200,000 examples, of which 131,072 are counted: half of them are from the second half."""
    labels = np.repeat([0, 1], 100_000)
    split = FeatureSplit(np.zeros((len(labels), 1, 1)), labels)
    task = Task("sorted", split, split, split, 2, None, 1)
    assert describe(task).count(" 50.0%") == 3 * 3  # two labels and a baseline each
    assert majority_baseline(task, split) == 0.5


@pytest.mark.parametrize(
    "case",
    [
        Copy(train=3, val_each=1, test_each=1),
        Brackets(train=30, val=20, test=1100),
        Regular(train=5, test_max_length=50),
    ],
)
def test_written_rows(case, tmp_path):
    task = case.write(tmp_path / "new" / "folder")
    names = {name: tmp_path / "new" / "folder" / f"{task.name}_{name}.tsv" for name in splits(task)}
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == sorted(path.name for path in names.values())
    for name, split in splits(task).items():
        header, *rows = names[name].read_text(encoding="utf-8").split("\n")
        assert header == "inputs\tlabels"
        assert rows.pop() == ""
        assert len(rows) == len(split)
        for i in (0, len(split) - 1):
            one = split.batch(np.array([i]))
            assert [np.array(column.split(), int).tolist() for column in rows[i].split("\t")] == [
                one.inputs[0].tolist(),
                one.labels[0].tolist(),
            ]


@pytest.mark.parametrize("case", [Copy(), Brackets(), Regular()])
def test_a_stream_is_not_written_whole(case, tmp_path):
    message = f"train has {case.train} examples, but at most {WRITABLE} can be written; set train"
    with pytest.raises(ValueError, match=message):
        case.write(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["copy", "digits", "mad"])
def test_examples_that_a_split_does_not_have(name):
    split = TASKS[name]().load().val
    kind, n = type(split).__name__, len(split)
    for wrong in ([-1], [0, n], np.array([2**48])):
        with pytest.raises(
            ValueError, match=rf"^{kind}.batch: index\[\d\] is .*, expected an integer from 0 to {n - 1}"
        ):
            split.batch(wrong)
    with pytest.raises(TypeError, match=rf"^{kind}.batch: index has dtype float64, expected"):
        split.batch([1.5])
    with pytest.raises(ValueError, match=rf"^{kind}.batch: index has shape \(1, 2\), expected \(n,\)"):
        split.batch([[0, 1]])
    assert len(split.batch([]).inputs) == 0
    assert np.array_equal(split.batch(np.arange(2, dtype=np.uint8)).inputs, split.batch([0, 1]).inputs)


def test_by_length():
    lengths = ByLength(3, 6, 5)
    assert len(lengths) == 20
    assert lengths.at(np.arange(20)).tolist() == np.repeat([3, 4, 5, 6], 5).tolist()


def test_shuffled_in_chunks():
    """More than one chunk of random numbers: the result is a permutation, ordered by them."""
    n = 40_000
    order = shuffled(n, 5, 1)
    assert sorted(order.tolist()) == list(range(n))
    counter = np.zeros((n, 4), np.int64)
    counter[:, 0], counter[:, 1] = np.arange(n), 1
    words = philox(counter, 5)
    np.testing.assert_array_equal(order, np.lexsort((words[:, 1], words[:, 0])))
