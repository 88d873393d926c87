"""CIFAR-10 as sequences of pixels: in grey it is Long Range Arena's Image task, in colour it is sCIFAR."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.extras import needed
from rotrnn._support.files import atomic_file
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.hub import PLACE, read_rows, split_file
from rotrnn.tasks.images import ImageSplit, divide, divided
from rotrnn.tasks.prepared import Forms, Store
from rotrnn.tasks.released import Release, Released, Source, compare
from rotrnn.tasks.task import Shape, Task

# the hash is published at https://www.cs.toronto.edu/~kriz/cifar.html
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
ByteArray = npt.NDArray[np.uint8]

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 32 * 32
RECORD = 1 + 3 * PIXELS
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
IMAGES = {"train": 50_000, "test": 10_000}

CONVERT = (
    "python -c \"import pickle, numpy as np; [np.column_stack([b[b'labels'], b[b'data']]).astype('u1')"
    ".tofile(n + '.bin') for n in ('data_batch_1', 'data_batch_2', 'data_batch_3', 'data_batch_4', 'data_batch_5', "
    "'test_batch') for b in [pickle.load(open(n, 'rb'), encoding='bytes')]]\""
)
"""A command that writes the binary version of the Python version, in its folder."""

# mean and standard deviation that S4 and S5 normalise with, for pixels from 0 to 1
GREY = (122.6 / 255,), (61.0 / 255,)
COLOUR = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


@dataclass(frozen=True)
class CIFAR(Released):
    """The 60,000 images of CIFAR-10 (Krizhevsky 2009), 32 x 32 pixels each, as 1,024 steps in raster order.

    In grey this is Long Range Arena's Image task, in colour it is sCIFAR. Results of the two are not comparable. Pixels
    are normalised with the constants of S4 and S5.

    The published files of the binary version (cifar-10-batches-bin, which `download` fetches) are data_batch_1.bin to
    data_batch_5.bin and test_batch.bin. The Parquet files of the Hugging Face Hub (uoft-cs/cifar10:
    ``plain_text/train-00000-of-00001.parquet`` and ``test``; needs pyarrow and Pillow) are read as well. The Python
    version (cifar-10-batches-py) consists of pickles, which could run code; the error has a command that converts it.
    The parameters `data_dir`, `download` and `cache_dir` are documented in
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
        (Source({ARCHIVE: SHA256}, "cifar-10-batches-bin"),),
        marks=(f"{TEST}.bin", split_file("test"), TEST),
        places=("cifar-10-batches-bin", PLACE, "cifar-10-batches-py", "."),
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
        binary = (folder / f"{TEST}.bin").exists()
        files = {"train": [folder / f"{name}.bin" for name in TRAIN], "test": [folder / f"{TEST}.bin"]}
        if not binary:
            files = {split: [folder / split_file(split)] for split in files}
        if not binary and not files["test"][0].exists():
            raise ValueError(
                f"CIFAR: {folder} has pickles, which may run code, expected {TEST}.bin and so on; where they are "
                f"trusted, {CONVERT} in the folder writes those"
            )

        self.whole([*files["train"], *files["test"]])

        def make(store: Store) -> None:
            for name, paths in files.items():
                read = [read_binary(path) if binary else read_hub(path) for path in paths]
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


def read_hub(path: Path) -> tuple[ByteArray, ByteArray]:
    """Reads images (n, 3, 1024) and labels (n,) from a Parquet file of the Hugging Face Hub, whose images are PNG.

    ValueError if the file is damaged, an image has another size or is not in colour, or a label is out of range.
    ImportError if pyarrow or Pillow is not installed.
    """
    with needed(f"{path}: images need Pillow", "'rotrnn[data]'"):
        from PIL import Image
    images, labels = [], []
    for row, (image, label) in enumerate(read_rows(path, ("img.bytes", "label"))):
        try:
            with Image.open(io.BytesIO(image), formats=["PNG"]) as opened:
                form = f"{opened.width} x {opened.height} pixels, {opened.mode}"
                pixels = np.asarray(opened) if form == "32 x 32 pixels, RGB" else None
        except Exception as error:  # a damaged image may raise anything
            raise ValueError(f"{path}, row {row}: is not a PNG image, or is damaged ({error})") from None
        if pixels is None:
            raise ValueError(f"{path}, row {row}: has {form}, expected 32 x 32 pixels, RGB")
        images.append(pixels.reshape(PIXELS, 3).T)
        labels.append(label)
    _check_labels(path, labels)
    return np.array(images, np.uint8).reshape(-1, 3, PIXELS), np.array(labels, np.uint8)


def _check_labels(path: str | os.PathLike[str], labels: Any) -> None:
    for record, label in enumerate(labels.tolist() if isinstance(labels, np.ndarray) else labels):
        if type(label) is not int or not 0 <= label < len(LABELS):
            got = label if type(label) is int else type(label).__name__
            raise ValueError(f"{path}, record {record}: the label is {got}, expected an integer from 0 to 9")
