"""Sequential digits: pixels, split and normalisation."""

import sys

import numpy as np
import pytest

from rotrnn._support.text import an
from rotrnn.tasks import TASKS, Digits, describe
from rotrnn.tasks.task import shuffled

sklearn_datasets = pytest.importorskip("sklearn.datasets")


def splits(task):
    return {"train": task.train, "val": task.val, "test": task.test}


def everything(split, dtype=np.float64):
    return split.batch(np.arange(len(split)), dtype)


def test_every_image_is_in_one_split():
    task = TASKS["digits"]().load()
    assert (task.name, task.n_classes, task.vocab, task.n_features) == ("digits", 10, None, 1)
    assert {name: len(split) for name, split in splits(task).items()} == {"train": 1258, "val": 180, "test": 359}
    batches = [everything(split) for split in splits(task).values()]
    inputs, labels = np.concatenate([b.inputs for b in batches]), np.concatenate([b.labels for b in batches])
    images, digits = sklearn_datasets.load_digits(return_X_y=True)
    # Undo the normalisation by the range of the pixels: 0 and 16 both occur.
    pixels = np.rint((inputs[:, :, 0] - inputs.min()) / np.ptp(inputs) * 16)
    ours = np.column_stack([pixels, labels])
    theirs = np.column_stack([images, digits])
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])


def test_normalised_by_the_training_split():
    """Mean 0 and variance 1 up to rounding: sums of n = 80,512 terms of size 2 or less, so 2 log2(n) eps."""
    task = Digits().load()
    x = everything(task.train).inputs
    bound = 2 * np.log2(x.size) * np.finfo(np.float64).eps
    assert abs(x.mean()) <= bound
    assert abs(x.var() - 1) <= 4 * bound
    assert abs(everything(task.test).inputs.mean()) > 1e-6


def test_batch():
    split = Digits().load().val
    index = np.array([5, 0, 5])
    batch = split.batch(index)
    assert batch.inputs.shape == (3, 64, 1)
    assert batch.inputs.dtype == np.float32
    assert batch.labels.dtype == np.int64
    assert batch.lengths is None
    np.testing.assert_array_equal(batch.inputs, everything(split).inputs[index].astype(np.float32))
    np.testing.assert_array_equal(batch.labels, everything(split).labels[index])
    assert split.batch(index, np.float64).inputs.dtype == np.float64


def test_seed_and_fractions():
    one, same, other = (everything(Digits(seed=seed).load().test) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.inputs, same.inputs)
    assert not np.array_equal(one.labels, other.labels)
    task = Digits(val_fraction=0.25, test_fraction=0.25).load()
    assert {name: len(split) for name, split in splits(task).items()} == {"train": 899, "val": 449, "test": 449}


def test_order_is_fixed():
    """The split is defined by Philox numbers, not by a library's shuffle: the first test images of seed 0 are fixed."""
    images, _ = sklearn_datasets.load_digits(return_X_y=True)
    first = everything(Digits().load().test).inputs[:5, :, 0]
    lowest = first.min()
    pixels = np.rint((first - lowest) / np.ptp(everything(Digits().load().train).inputs) * 16)
    rows = [int(np.flatnonzero((images == image).all(1))[0]) for image in pixels]
    assert rows == [1719, 1311, 1228, 1085, 1534]


def test_write(tmp_path):
    task = Digits().write(tmp_path / "data")
    images, labels = sklearn_datasets.load_digits(return_X_y=True)
    rows = {
        name: np.loadtxt(tmp_path / "data" / f"digits_{name}.csv", delimiter=",", skiprows=1) for name in splits(task)
    }
    for name, split in splits(task).items():
        np.testing.assert_array_equal(rows[name][:, 64], everything(split).labels)
    ours = np.concatenate(list(rows.values()))
    theirs = np.column_stack([images, labels])
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])


@pytest.mark.parametrize("what", [None, Digits()])
def test_what_is_not_described(what):
    with pytest.raises(TypeError) as error:
        describe(what)
    expected = f"describe: task is {an(type(what).__name__)}, expected a Task, as load() of settings returns"
    assert str(error.value) == expected


def test_describe():
    text = describe(Digits().load())
    assert text.startswith("digits: 10 classes, 1 feature(s) per step\n")


@pytest.mark.parametrize(
    "settings",
    [{"val_fraction": 0.0}, {"test_fraction": -0.1}, {"val_fraction": 0.5, "test_fraction": 0.5}, {"seed": -1}],
)
def test_settings_out_of_range(settings):
    with pytest.raises(ValueError, match=r"Digits: .* expected"):
        Digits(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val_fraction": 1e-4}, "val_fraction is 0.0001, which leaves no image of 1797; expected at least 1/1797"),
        ({"test_fraction": 1e-4}, "test_fraction is 0.0001, which leaves no image"),
        (
            {"val_fraction": 0.5001, "test_fraction": 0.4998},
            "1 - val_fraction - test_fraction is .*, which leaves no image",
        ),
    ],
)
def test_an_empty_split_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Digits(**settings)


def test_shuffled():
    orders = [shuffled(100, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (2**40, 0))]
    assert all(sorted(order.tolist()) == list(range(100)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 4
    assert shuffled(100, 0, 1).tobytes() == orders[1].tobytes()


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"rotrnn\[data\]"):
        Digits().load()
