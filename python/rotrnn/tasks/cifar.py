"""CIFAR-10 as sequences of pixels: Image of Long Range Arena in grey, sCIFAR in colour."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.images import ImageSplit, divide, divided
from rotrnn.tasks.prepared import Store
from rotrnn.tasks.released import Release, Released, compare
from rotrnn.tasks.task import Shape, Task

Bytes = npt.NDArray[np.uint8]

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 32 * 32
RECORD = 1 + 3 * PIXELS
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
IMAGES = {"train": 50_000, "test": 10_000}

# normalisation of S4 and S5, of pixels from 0 to 1
GREY = (122.6 / 255,), (61.0 / 255,)
COLOUR = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


@dataclass(frozen=True)
class CIFAR(Released):
    """The 60,000 images of 32 x 32 pixels of CIFAR-10 (Krizhevsky 2009), 1,024 steps in raster order.

    Grey is Image of Long Range Arena, colour is sCIFAR: results of the one cannot be compared with the other's. Pixels
    are normalised with the constants of S4 and S5.

    The published files are data_batch_1 to 5 and test_batch, of the binary version (cifar-10-batches-bin; downloads are
    of this one) or of the Python one (cifar-10-batches-py: pickles, of which nothing but arrays is read). Parameters
    `data_dir`, `download` and `cache_dir` are those of `rotrnn.tasks.released.Released`.

    Parameters
    ----------
    colour : bool
        Three features a step, red, green and blue, instead of the grey that Pillow makes of them.
    val_fraction : float
        Share of the training images that are for validation; 0.01 in minimal-LRU.
    seed : int
        Of PyTorch's random_split, which says which they are.
    """

    colour: bool = False
    val_fraction: float = 0.1
    seed: int = 42

    dividing: ClassVar[tuple[str, ...]] = ("val_fraction", "seed")
    release: ClassVar[Release] = Release(
        # the hash is on the publisher's page, https://www.cs.toronto.edu/~kriz/cifar.html
        {"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
        marks=(f"{TEST}.bin", TEST),
        places=("cifar-10-batches-bin", "cifar-10-batches-py", "."),
        inner="cifar-10-batches-bin",
    )

    def __post_init__(self) -> None:
        check_ranges("CIFAR", self, (("seed", 0, 2**32 - 1),))

    @property
    def shape(self) -> Shape:
        """Ten classes, one or three features."""
        return Shape(len(LABELS), None, 3 if self.colour else 1)

    @property
    def sizes(self) -> dict[str, int]:
        """As published, the training part divided."""
        return divided(IMAGES, self.val_fraction)

    def load(self) -> Task:
        """The task; its arrays are prepared the first time."""
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

        arrays = self.prepare(f"cifar-{'colour' if self.colour else 'grey'}", [*files["train"], *files["test"]], make)
        count = {name: len(arrays[f"{name}_labels"]) for name in files}
        compare("CIFAR", count, IMAGES)
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
        """Writes random images in the binary version: `examples` for training and validation (rounded up to five equal
        files), and as many to test."""
        rng = np.random.default_rng(0)
        place = Path(folder, "cifar-10-batches-bin")
        place.mkdir(parents=True, exist_ok=True)
        for name in (*TRAIN, TEST):
            count = examples if name == TEST else -(-examples // len(TRAIN))
            images = rng.integers(0, 256, (count, 3, PIXELS), np.uint8)
            write_binary(place / f"{name}.bin", images, rng.integers(0, 10, count, np.uint8))


def grey(images: Bytes) -> Bytes:
    """Images (n, 3, 1024) of red, green and blue in grey (n, 1024), by the integer formula of Pillow's mode "L"."""
    red, green, blue = images.astype(np.uint32).swapaxes(0, 1)
    level: npt.NDArray[np.uint32] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return level.astype(np.uint8)


# ---- files ----


def read_binary(path: str | os.PathLike[str]) -> tuple[Bytes, Bytes]:
    """Images (n, 3, 1024) and labels (n,) of a file of the binary version: a label and 3,072 pixels a record."""
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % RECORD:
        raise ValueError(f"{path}: has {len(data)} bytes, expected whole records of {RECORD}: it is cut off")
    records = data.reshape(-1, RECORD)
    labels = records[:, 0]
    _check_labels(path, labels)
    return records[:, 1:].reshape(-1, 3, PIXELS), labels


def write_binary(path: str | os.PathLike[str], images: Bytes, labels: Bytes) -> None:
    """The inverse of `read_binary`."""
    with atomic_file(path) as file:
        file.write(np.column_stack([labels, images.reshape(len(labels), -1)]).tobytes())


def read_python(path: str | os.PathLike[str]) -> tuple[Bytes, Bytes]:
    """Images (n, 3, 1024) and labels (n,) of a file of the Python version.

    It is a pickle, which could run any code; it is read by an unpickler that knows arrays of bytes and nothing else.
    ValueError where it asks for more, or is no such file.
    """
    with open(path, "rb") as file:
        try:
            batch = _Unpickler(file, encoding="bytes").load()
        except Exception as error:  # a damaged pickle may raise anything
            raise ValueError(f"{path}: is no batch of CIFAR-10: {error}") from error
    if not (isinstance(batch, dict) and {b"data", b"labels"} <= batch.keys()):
        raise ValueError(f"{path}: is no batch of CIFAR-10, expected a dictionary of data and labels")
    data, labels = batch[b"data"], batch[b"labels"]
    data = data.array if isinstance(data, _Array) else None
    if data is None or data.ndim != 2 or data.shape[1] != RECORD - 1:
        raise ValueError(f"{path}: data are no array (n, {RECORD - 1}) of bytes")
    if not (isinstance(labels, list) and len(labels) == len(data)):
        raise ValueError(f"{path}: labels are no list of {len(data)} numbers, one for each row of data")
    _check_labels(path, labels)
    return data.reshape(-1, 3, PIXELS), np.array(labels, np.uint8)


def _check_labels(path: str | os.PathLike[str], labels: Any) -> None:
    for record, label in enumerate(labels.tolist() if isinstance(labels, np.ndarray) else labels):
        if type(label) is not int or not 0 <= label < len(LABELS):
            got = label if type(label) is int else type(label).__name__
            raise ValueError(f"{path}, record {record}: the label is {got}, expected an integer from 0 to 9")


class _Array:
    """An array of bytes that a pickle builds: its content is checked, and nothing of NumPy is handed out."""

    array: Bytes | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, shape, dtype, fortran, data = state
        if not (isinstance(dtype, _Dtype) and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array of something else than bytes")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """The dtype of bytes."""

    def __setstate__(self, state: Any) -> None:
        """What NumPy adds tells nothing of bytes."""


class _Known:
    """What a pickle may name: it can call that, and do nothing else with it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes what it was given")


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 pickles bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}, expected 'latin1'")
    return text.encode("latin1")


def _ndarray(*_: Any) -> None:
    raise pickle.UnpicklingError("an array that is not made as NumPy pickles them")


def _reconstruct(kind: Any, shape: Any, typecode: Any) -> _Array:
    """An array that is filled in later."""
    return _Array()


def _dtype(name: Any, *_: Any) -> _Dtype:
    if name not in ("u1", b"u1"):
        raise pickle.UnpicklingError("an array of something else than bytes")
    return _Dtype()


_KNOWN = {
    ("numpy", "ndarray"): _Known(_ndarray),
    ("numpy", "dtype"): _Known(_dtype),
    ("numpy.core.multiarray", "_reconstruct"): _Known(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Known(_reconstruct),
    ("_codecs", "encode"): _Known(_latin1),
}


class _Unpickler(pickle.Unpickler):
    """Makes arrays of bytes, texts, lists and dictionaries; nothing that a pickle names is called but `_KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which such a file has no need of")
        return _KNOWN[module, name]
