"""CIFAR-10 as sequences of pixels: in grey it is Long Range Arena's Image task, in colour it is sCIFAR."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, read_file
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.images import ImageSplit, divide, divided
from rotrnn.tasks.pickled import PickledArray, read_pickle
from rotrnn.tasks.prepared import Forms, Store
from rotrnn.tasks.released import Release, Released, compare
from rotrnn.tasks.task import Shape, Task

ByteArray = npt.NDArray[np.uint8]

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 32 * 32
RECORD = 1 + 3 * PIXELS
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
IMAGES = {"train": 50_000, "test": 10_000}

# mean and standard deviation that S4 and S5 normalise with, for pixels from 0 to 1
GREY = (122.6 / 255,), (61.0 / 255,)
COLOUR = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


@dataclass(frozen=True)
class CIFAR(Released):
    """The 60,000 images of CIFAR-10 (Krizhevsky 2009), 32 x 32 pixels each, as 1,024 steps in raster order.

    In grey this is Long Range Arena's Image task, in colour it is sCIFAR. Results of the two are not comparable. Pixels
    are normalised with the constants of S4 and S5.

    The published files are data_batch_1 to 5 and test_batch. Both published versions are read: the binary one
    (cifar-10-batches-bin, which is what `download` fetches) and the Python one (cifar-10-batches-py: pickles, which
    are read without running them). The parameters `data_dir`, `download` and `cache_dir` are documented in
    `rotrnn.tasks.released.Released`.

    Parameters
    ----------
    colour : bool
        Use three features per step (red, green and blue) instead of one (the grey level that Pillow computes).
    val_fraction : float
        Share of the training images that are used for validation; 0.01 in minimal-LRU.
    seed : int
        Seed of PyTorch's random_split, which selects these images.
    """

    colour: bool = False
    val_fraction: float = 0.1
    seed: int = 42

    split_settings: ClassVar[tuple[str, ...]] = ("val_fraction", "seed")
    release: ClassVar[Release] = Release(
        # the hash is published at https://www.cs.toronto.edu/~kriz/cifar.html
        {
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": "sha256:"
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        },
        marks=(f"{TEST}.bin", TEST),
        places=("cifar-10-batches-bin", "cifar-10-batches-py", "."),
        inner="cifar-10-batches-bin",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("CIFAR", self, (("seed", 0, 2**32 - 1),))

    @property
    def shape(self) -> Shape:
        """Ten classes; one feature per step, or three in colour."""
        return Shape(len(LABELS), None, 3 if self.colour else 1)

    @property
    def sizes(self) -> dict[str, int]:
        """The published numbers of images, with the training images split into training and validation."""
        return divided(IMAGES, self.val_fraction)

    def load(self) -> Task:
        """Returns the task. The first call prepares its arrays."""
        folder = self.folder()
        suffix = ".bin" if (folder / f"{TEST}.bin").exists() else ""
        files = {"train": [folder / f"{name}{suffix}" for name in TRAIN], "test": [folder / f"{TEST}{suffix}"]}

        def make(store: Store) -> None:
            for name, paths in files.items():
                read = [read_binary(path) if suffix else read_python(path) for path in paths]
                images, labels = (np.concatenate(parts) for parts in zip(*read, strict=True))
                pixels = images.swapaxes(1, 2) if self.colour else grey(images)[:, :, None]
                store.array(f"{name}_pixels", pixels.shape, np.uint8)[:] = pixels
                store.array(f"{name}_labels", labels.shape, np.uint8)[:] = labels

        features = 3 if self.colour else 1
        forms: Forms = {}
        for name in files:
            forms |= {f"{name}_pixels": ("u1", name, PIXELS, features), f"{name}_labels": ("u1", name)}
        kind = "colour" if self.colour else "grey"
        arrays = self.prepare(f"cifar-{kind}", [*files["train"], *files["test"]], make, forms)
        count = {name: len(arrays[f"{name}_labels"]) for name in files}
        compare("CIFAR", folder, count, IMAGES)
        train, val = divide("CIFAR", count["train"], self.val_fraction, self.seed)
        mean, std = COLOUR if self.colour else GREY

        def split(name: str, rows: npt.NDArray[np.int64]) -> ImageSplit:
            return ImageSplit(arrays[f"{name}_pixels"], arrays[f"{name}_labels"], rows, mean, std)

        return Task(
            "cifar",
            split("train", train),
            split("train", val),
            split("test", np.arange(count["test"])),
            **self.shape._asdict(),
            labels=LABELS,
        )

    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes random images in the binary format: `examples` for training and validation together (rounded up to
        five equal files), and `examples` for the test."""
        rng = np.random.default_rng(0)
        place = Path(folder, "cifar-10-batches-bin")
        place.mkdir(parents=True, exist_ok=True)
        for name in (*TRAIN, TEST):
            count = examples if name == TEST else -(-examples // len(TRAIN))
            images = rng.integers(0, 256, (count, 3, PIXELS), np.uint8)
            write_binary(place / f"{name}.bin", images, rng.integers(0, 10, count, np.uint8))


def grey(images: ByteArray) -> ByteArray:
    """Converts images (n, 3, 1024) of red, green and blue to grey (n, 1024) with the integer formula of Pillow's mode
    "L"."""
    red, green, blue = images.astype(np.uint32).swapaxes(0, 1)
    level: npt.NDArray[np.uint32] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return level.astype(np.uint8)


# ---- files ----


def read_binary(path: str | os.PathLike[str]) -> tuple[ByteArray, ByteArray]:
    """Reads images (n, 3, 1024) and labels (n,) from a file in the binary format.

    Each record is a label byte and 3,072 pixel bytes. ValueError if the file is truncated or a label is out of range.
    """
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % RECORD:
        raise ValueError(f"{path}: has {len(data)} bytes, expected a multiple of {RECORD}: the file is truncated")
    records = data.reshape(-1, RECORD)
    labels = records[:, 0]
    _check_labels(path, labels)
    return records[:, 1:].reshape(-1, 3, PIXELS), labels


def write_binary(path: str | os.PathLike[str], images: ByteArray, labels: ByteArray) -> None:
    """The inverse of `read_binary`."""
    with atomic_file(path) as file:
        file.write(np.column_stack([labels, images.reshape(len(labels), -1)]).tobytes())


def read_python(path: str | os.PathLike[str]) -> tuple[ByteArray, ByteArray]:
    """Reads images (n, 3, 1024) and labels (n,) from a file of the Python version.

    The file is a pickle, which is read without running it (see `rotrnn.tasks.pickled`). ValueError if it holds anything
    but a batch of CIFAR-10.
    """
    try:
        batch = read_pickle(read_file(path))
    except ValueError as error:
        raise ValueError(f"{path}: is not a batch of CIFAR-10: {error}") from error
    if not isinstance(batch, dict):
        batch = {}
    # bytes as published, texts if Python 3 has written it anew
    data, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
    if data is None or labels is None:
        raise ValueError(f"{path}: is not a batch of CIFAR-10, expected a dictionary of data and labels")
    data = data.array if isinstance(data, PickledArray) else None
    if data is None or data.ndim != 2 or data.shape[1] != RECORD - 1:
        raise ValueError(f"{path}: data is not an array (n, {RECORD - 1}) of bytes")
    if not (isinstance(labels, list) and len(labels) == len(data)):
        raise ValueError(f"{path}: labels is not a list of {len(data)} numbers, one for each row of data")
    _check_labels(path, labels)
    return data.reshape(-1, 3, PIXELS), np.array(labels, np.uint8)


def _check_labels(path: str | os.PathLike[str], labels: Any) -> None:
    for record, label in enumerate(labels.tolist() if isinstance(labels, np.ndarray) else labels):
        if type(label) is not int or not 0 <= label < len(LABELS):
            got = label if type(label) is int else type(label).__name__
            raise ValueError(f"{path}, record {record}: the label is {got}, expected an integer from 0 to 9")
