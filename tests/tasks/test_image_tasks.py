"""CIFAR-10 and MNIST on small files in the published formats: pixels, orders, splits, and malformed files."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import shlex
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest

from rotrnn.tasks import CIFAR, MNIST, FashionMNIST, describe, mnist
from rotrnn.tasks.cifar import LABELS, grey, write_binary
from rotrnn.tasks.images import divide
from rotrnn.tasks.mnist import read_idx
from rotrnn.tasks.order import torch_random_order
from rotrnn.tasks.task import shuffled

pytestmark = pytest.mark.filterwarnings("ignore:.*not the whole published data set")

rng = np.random.default_rng(0)


def everything(split, dtype=np.float64):
    return split.batch(np.arange(len(split)), dtype)


# ---- CIFAR-10 ----


@pytest.fixture(scope="module")
def images():
    """Images (n, 32, 32, 3) and labels of training and test."""
    return {
        "train": (rng.integers(0, 256, (40, 32, 32, 3), np.uint8), rng.integers(0, 10, 40)),
        "test": (rng.integers(0, 256, (7, 32, 32, 3), np.uint8), rng.integers(0, 10, 7)),
    }


def planes(images):
    """(n, 3072): red, green and blue, each row by row."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def batches(images):
    parts = zip(*(np.array_split(array, 5) for array in images["train"]), strict=True)
    yield from ((f"data_batch_{i}", *part) for i, part in enumerate(parts, 1))
    yield ("test_batch", *images["test"])


def write_bin(folder, images):
    folder.mkdir(parents=True)
    for name, some, labels in batches(images):
        records = (bytes([label]) + row.tobytes() for label, row in zip(labels, planes(some), strict=True))
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def write_py(folder, images):
    folder.mkdir(parents=True)
    for name, some, labels in batches(images):
        batch = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": planes(some),
            b"filenames": [b"%d.png" % i for i in range(len(some))],
        }
        (folder / name).write_bytes(pickle.dumps(batch, 2))


def test_grey_is_pillows_to_the_bit(images):
    """A random million of the 2**24 colours, and all greys."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.concatenate(
        [rng.integers(0, 256, (2**20, 3), np.uint8), np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(-1, 3)]
    )
    theirs = np.array(image.fromarray(pixels[None]).convert("L"))[0]
    np.testing.assert_array_equal(grey(pixels.T[None])[0], theirs)


@pytest.mark.parametrize("inside", [True, False])
def test_cifar_in_grey(tmp_path, images, inside):
    write_bin(tmp_path / "cifar-10-batches-bin", images)
    data_dir = tmp_path / "cifar-10-batches-bin" if inside else tmp_path
    with pytest.warns(UserWarning, match="CIFAR: .*: train 40 instead of 50000, test 7 instead of 10000"):
        task = CIFAR(data_dir=str(data_dir)).load()
    order = torch_random_order(40, 42)
    for split, name, rows in (
        (task.train, "train", order[:36]),
        (task.val, "train", order[36:]),
        (task.test, "test", np.arange(7)),
    ):
        pixels, labels = images[name]
        red, green, blue = pixels[rows].astype(int).transpose(3, 0, 1, 2)
        level = (19595 * red + 38470 * green + 7471 * blue + 32768) // 2**16
        batch = everything(split)
        assert batch.inputs.shape == (len(rows), 1024, 1)
        for row, column in ((0, 0), (0, 31), (17, 5), (31, 31)):
            normalised = (level[:, row, column] / 255 - 122.6 / 255) / (61.0 / 255)
            np.testing.assert_allclose(batch.inputs[:, 32 * row + column, 0], normalised, rtol=1e-14, atol=1e-14)
        np.testing.assert_array_equal(batch.labels, labels[rows])
        assert batch.lengths is None
    assert (task.n_classes, task.n_features, task.vocab, task.labels) == (10, 1, None, LABELS)
    assert "cifar: 10 classes, 1 feature(s) per step" in describe(task)


def test_cifar_in_colour(tmp_path, images):
    write_bin(tmp_path / "cifar-10-batches-bin", images)
    task = CIFAR(data_dir=str(tmp_path), colour=True).load()
    batch = everything(task.test)
    assert batch.inputs.shape == (7, 1024, 3)
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
    for row, column in ((0, 0), (0, 31), (17, 5), (31, 31)):
        normalised = (images["test"][0][:, row, column] / 255 - mean) / std
        np.testing.assert_allclose(batch.inputs[:, 32 * row + column], normalised, rtol=1e-14, atol=1e-14)
    assert task.n_features == 3
    grey_task = CIFAR(data_dir=str(tmp_path)).load()
    assert grey_task.n_features == 1
    np.testing.assert_array_equal(everything(grey_task.train).labels, everything(task.train).labels)


def test_pixels_of_the_published_mean_and_deviation_become_0_and_1(tmp_path):
    """Levels one deviation, 61, on either side of 123 become -1 and 1 but for their shift from the mean, 122.6."""
    level = np.where(np.arange(32 * 32 * 10) % 2, 184, 62).reshape(10, 32, 32, 1).astype(np.uint8)
    pixels = np.repeat(level, 3, 3)
    write_bin(
        tmp_path / "cifar-10-batches-bin", {"train": (pixels, np.zeros(10, int)), "test": (pixels, np.ones(10, int))}
    )
    x = everything(CIFAR(data_dir=str(tmp_path)).load().test).inputs
    assert x.mean() == pytest.approx(0.4 / 61, abs=1e-12)
    assert x.std() == pytest.approx(1, abs=1e-12)


def test_batch_of_images(tmp_path, images):
    write_bin(tmp_path / "cifar-10-batches-bin", images)
    split = CIFAR(data_dir=str(tmp_path), colour=True).load().train
    index = np.array([5, 0, 5])
    batch = split.batch(index)
    assert batch.inputs.dtype == np.float32
    assert batch.labels.dtype == np.int64
    np.testing.assert_array_equal(batch.inputs, split.batch(np.arange(6)).inputs[index])


@pytest.mark.parametrize(
    ("n", "fraction", "train"), [(50_000, 0.1, 45_000), (50_000, 0.01, 49_500), (60_000, 0.1, 54_000)]
)
def test_published_sizes_of_splits(n, fraction, train):
    one, other = divide("T", n, fraction, 42)
    assert (len(one), len(other)) == (train, n - train)
    assert sorted([*one.tolist(), *other.tolist()]) == list(range(n))


def test_other_fraction_and_seed(tmp_path, images):
    write_bin(tmp_path / "cifar-10-batches-bin", images)
    task = CIFAR(data_dir=str(tmp_path), val_fraction=0.5, seed=7).load()
    order = torch_random_order(40, 7)
    np.testing.assert_array_equal(everything(task.val).labels, images["train"][1][order[20:]])
    for fraction in (0.0, 1.0, 0.99, 1.5, -0.5):
        with pytest.raises(
            ValueError,
            match=f"CIFAR: val_fraction is {fraction} of 40 images, expected at least one for training and one for val",
        ):
            CIFAR(data_dir=str(tmp_path), val_fraction=fraction).load()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[:-1], r": has 24583 bytes, expected a multiple of 3073: the file is truncated"),
        (lambda data: b"", r": has 0 bytes, expected a multiple of 3073"),
        (
            lambda data: data[: 2 * 3073] + b"\x0a" + data[2 * 3073 + 1 :],
            r", record 2: the label is 10, expected an integer",
        ),
    ],
)
def test_malformed_binary_batches(tmp_path, images, spoil, message):
    write_bin(tmp_path / "cifar-10-batches-bin", images)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}{message}"):
        CIFAR(data_dir=str(tmp_path)).load()
    assert os.listdir(tmp_path / ".rotrnn") == [".lock"]


def test_a_missing_batch(tmp_path, images):
    write_bin(tmp_path / "cifar-10-batches-bin", images)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    expected = r"^CIFAR: .*data_batch_3\.bin is no file, expected .*data_batch_1\.bin, .*test_batch\.bin$"
    with pytest.raises(FileNotFoundError, match=expected):
        CIFAR(data_dir=str(tmp_path)).load()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").mkdir()
    with pytest.raises(FileNotFoundError, match=expected):
        CIFAR(data_dir=str(tmp_path)).load()
    (tmp_path / "hub" / "plain_text").mkdir(parents=True)
    (tmp_path / "hub" / "plain_text" / "test-00000-of-00001.parquet").touch()
    with pytest.raises(FileNotFoundError, match=r"^CIFAR: .*train-00000-of-00001.parquet is no file, expected .*test-"):
        CIFAR(data_dir=str(tmp_path / "hub")).load()


def test_the_python_version_is_refused_with_the_command_that_converts_it(tmp_path, images):
    """The command of the error, run in the folder, writes what the binary version has."""
    write_py(tmp_path / "py" / "cifar-10-batches-py", images)
    write_bin(tmp_path / "bin" / "cifar-10-batches-bin", images)
    with pytest.raises(ValueError, match=r"^CIFAR: .*cifar-10-batches-py has pickles, .*expected test_batch\.bin") as e:
        CIFAR(data_dir=str(tmp_path / "py")).load()
    python, option, code = shlex.split(re.search(r"trusted, (.*) in the folder writes those$", str(e.value))[1])
    assert (python, option) == ("python", "-c")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "py" / "cifar-10-batches-py", check=True)
    one, other = (CIFAR(data_dir=str(tmp_path / name)).load() for name in ("py", "bin"))
    for split in ("train", "val", "test"):
        for ours, theirs in zip(
            everything(getattr(one, split))[:2], everything(getattr(other, split))[:2], strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


# ---- MNIST ----


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def digits():
    return {
        "train": (rng.integers(0, 256, (30, 28, 28), np.uint8), rng.integers(0, 10, 30).astype(np.uint8)),
        "t10k": (rng.integers(0, 256, (6, 28, 28), np.uint8), rng.integers(0, 10, 6).astype(np.uint8)),
    }


def write_mnist(folder, digits, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in digits.items():
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            path = folder / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("kind", "inside", "scale"),
    [
        (MNIST, "", (0.1307, 0.3081)),
        (MNIST, "MNIST/raw", (0.1307, 0.3081)),
        (FashionMNIST, "", (0.2860, 0.3530)),
        (FashionMNIST, "FashionMNIST/raw", (0.2860, 0.3530)),
    ],
)
def test_mnist(tmp_path, digits, packed, kind, inside, scale):
    write_mnist(tmp_path / inside, digits, packed)
    warning = f"^{kind.__name__}: .*: train 30 instead of 60000, test 6 instead of 10000"
    with pytest.warns(UserWarning, match=warning):
        task = kind(data_dir=str(tmp_path)).load()
    order = torch_random_order(30, 42)
    for split, name, rows in (
        (task.train, "train", order[:27]),
        (task.val, "train", order[27:]),
        (task.test, "t10k", np.arange(6)),
    ):
        images, labels = digits[name]
        batch = everything(split)
        normalised = (images[rows].reshape(len(rows), 784, 1) / 255 - scale[0]) / scale[1]
        np.testing.assert_allclose(batch.inputs, normalised, rtol=1e-14, atol=1e-14)
        np.testing.assert_array_equal(batch.labels, labels[rows])
    assert f"{kind.name}: 10 classes" in describe(task)


def test_a_missing_file_of_mnist(tmp_path, digits):
    write_mnist(tmp_path, digits, packed=False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    expected = r"^MNIST: .*t10k-labels-idx1-ubyte is no file, and neither is t10k-labels-idx1-ubyte.gz, expected one"
    with pytest.raises(FileNotFoundError, match=expected):
        MNIST(data_dir=str(tmp_path)).load()


def test_data_of_another_name_are_told_apart(tmp_path, digits, monkeypatch):
    """MNIST and Fashion-MNIST have files of the same names. Random pixels have the mean 1/2."""
    write_mnist(tmp_path, digits, True)
    monkeypatch.setattr(mnist, "IMAGES", {"train": 30, "test": 6})
    for kind, mean in ((MNIST, "0.1307"), (FashionMNIST, "0.2860")):
        with pytest.warns(
            UserWarning, match=rf"{kind.__name__}: .* is 0\.[45]\d+, of the published ones {mean}; other"
        ):
            kind(data_dir=str(tmp_path)).load()
    monkeypatch.setattr(MNIST, "scale", (digits["train"][0].mean() / 255, 0.3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MNIST(data_dir=str(tmp_path)).load()


def swapped(n, seed):
    """NumPy's legacy permutation by a loop: from the last place on, swap with one up to it, whose number is the lowest
    bits of a word of the Mersenne Twister, drawn again while it is too large."""
    twister = np.random.MT19937()
    twister._legacy_seeding(seed)
    order = np.arange(n)
    for i in range(n - 1, 0, -1):
        while (k := int(twister.random_raw()) & (2 ** i.bit_length() - 1)) > i:
            pass
        order[[i, k]] = order[[k, i]]
    return order


def test_permuted_mnist(tmp_path, digits):
    write_mnist(tmp_path, digits, True)
    plain = MNIST(data_dir=str(tmp_path)).load()
    interleaved = np.arange(1024)[:, None]  # bits reversed: halves interleaved again and again
    while len(interleaved) > 1:
        interleaved = np.hstack(np.split(interleaved, 2))
    for settings, order in (
        ({"permutation_seed": 0}, shuffled(784, 0, 0)),
        ({"permutation_seed": 5}, shuffled(784, 5, 0)),
        ({"permutation": "bit_reversal"}, interleaved[interleaved < 784]),
        ({"permutation": "numpy", "permutation_seed": 92916}, swapped(784, 92916)),
    ):
        task = MNIST(data_dir=str(tmp_path), permuted=True, **settings).load()
        for ours, theirs in ((task.train, plain.train), (task.test, plain.test)):
            np.testing.assert_array_equal(everything(ours).inputs, everything(theirs).inputs[:, order])
            np.testing.assert_array_equal(everything(ours).labels, everything(theirs).labels)


def test_rows_of_mnist(tmp_path, digits):
    write_mnist(tmp_path, digits, True)
    plain = MNIST(data_dir=str(tmp_path)).load()
    task = MNIST(data_dir=str(tmp_path), rows=True).load()
    assert (plain.n_features, task.n_features) == (1, 28)
    for ours, theirs in ((task.train, plain.train), (task.val, plain.val), (task.test, plain.test)):
        pixels = everything(theirs).inputs
        np.testing.assert_array_equal(everything(ours).inputs, pixels.reshape(len(pixels), 28, 28))
        np.testing.assert_array_equal(everything(ours).labels, everything(theirs).labels)


def packed(content):
    return gzip.compress(content, mtime=0)  # names of tests have it in them


IMAGES, CLASSES = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, packed(idx(np.zeros((6, 28, 28), np.uint8)))[:-9], ": is truncated or damaged: "),
        (IMAGES, b"", ": (is truncated or damaged|begins with '')"),
        (IMAGES, b"no gzip at all", ": is truncated or damaged: Not a gzipped file"),
        (
            IMAGES,
            packed(idx(np.zeros((6, 28, 28), np.uint8))[:-1]),
            ": has 4703 bytes of data, expected 4704 for 6",
        ),
        (
            IMAGES,
            packed(idx(np.zeros((6, 28, 28), np.uint8)) + b"x"),
            ": has more than 4704 bytes of data, expected 4704",
        ),
        (IMAGES, packed(idx(np.zeros((6, 28, 28), np.uint8))[:10]), ": begins with '00 00 08 03', expected"),
        (IMAGES, packed(idx(np.zeros(6, np.uint8))), ": begins with '00 00 08 01', expected '00 00 08 03'"),
        (IMAGES, packed(b"\0\0\x0d" + idx(np.zeros((6, 28, 28), np.uint8))[3:]), ": begins with '00 00 0d 03'"),
        (
            IMAGES,
            packed(idx(np.zeros((6, 28, 27), np.uint8))),
            r": has images of shape \[28, 27\], expected \[28, 28\]",
        ),
        (CLASSES, packed(idx(np.zeros(5, np.uint8))), ": has 5 labels, expected 6, one for each image"),
        (
            CLASSES,
            packed(idx(np.array([0, 9, 1, 10, 11, 0], np.uint8))),
            ", record 3: the label is 10, expected 0",
        ),
    ],
)
def test_malformed_idx_files(tmp_path, digits, name, content, message):
    write_mnist(tmp_path, digits, True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))}{message}"):
        MNIST(data_dir=str(tmp_path)).load()
    assert os.listdir(tmp_path / ".rotrnn") == [".lock"]


def test_a_size_that_no_memory_holds(tmp_path):
    (tmp_path / "huge").write_bytes(struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 28, 28))
    with pytest.raises(ValueError, match="huge: has 4294967295 records, expected at most 1048576"):
        read_idx(tmp_path / "huge", (28, 28))
    (tmp_path / "large").write_bytes(struct.pack(">HBBIII", 0, 8, 3, 2**20, 28, 28))
    with pytest.raises(ValueError, match="large: has 0 bytes of data, expected 822083584 for 1048576 records"):
        read_idx(tmp_path / "large", (28, 28))


# ---- settings, and the formats that the package writes ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CIFAR(seed=-1), "CIFAR: seed is -1, expected an integer from 0 to 4294967295"),
        (lambda: MNIST(seed=2**32), "MNIST: seed is 4294967296"),
        (lambda: MNIST(permutation_seed=-1), "MNIST: permutation_seed is -1"),
        (lambda: MNIST(rows=True, permuted=True), "MNIST: permuted is True, expected False with rows"),
        (lambda: MNIST(permutation="bits"), "MNIST: permutation is 'bits', expected one of 'random', 'bit_reversal'"),
        (lambda: MNIST(permutation="numpy", permutation_seed=2**32), "MNIST: permutation_seed is 4294967296"),
        (lambda: CIFAR().load(), r"CIFAR: data_dir is '', expected a folder with test_batch\.bin or test-0"),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_written_binary_batches_are_those_of_the_format(tmp_path, images):
    write_bin(tmp_path / "bin", images)
    pixels, labels = images["test"]
    write_binary(tmp_path / "test_batch.bin", planes(pixels).reshape(7, 3, 1024), labels.astype(np.uint8))
    assert (tmp_path / "test_batch.bin").read_bytes() == (tmp_path / "bin" / "test_batch.bin").read_bytes()
