"""MNIST and Fashion-MNIST as sequences of pixels, in raster order or permuted, or of rows."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import Readable, atomic_file, open_file, read_most
from rotrnn._support.warn import warn
from rotrnn.tasks.generated import check_ranges
from rotrnn.tasks.images import ImageSplit, divide, divided
from rotrnn.tasks.prepared import Forms, Store
from rotrnn.tasks.released import Release, Released, Source, compare
from rotrnn.tasks.task import Index, Shape, Task, shuffled

ByteArray = npt.NDArray[np.uint8]

SIDE = 28
PIXELS = SIDE * SIDE
FILES = {
    name: (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    for name, part in (("train", "train"), ("test", "t10k"))
}
IMAGES = {"train": 60_000, "test": 10_000}
MOST = 2**20
"""Number of records of an idx file that `read_idx` reads at most; the largest published one, EMNIST's, has 814,255."""
PERMUTATIONS = "random", "bit_reversal", "numpy"
MIRRORS = "https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"
SHA256 = {  # from torchvision (pytorch/vision, torchvision/datasets/mnist.py)
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
}


def sources_of(mirrors: tuple[str, ...], hashes: dict[str, str]) -> tuple[Source, ...]:
    """Returns servers that have the same four files."""
    return tuple(Source({f"{at}/{name}.gz": f"sha256:{known}" for name, known in hashes.items()}) for at in mirrors)


@dataclass(frozen=True)
class MNIST(Released):
    """The 70,000 handwritten digits of MNIST (LeCun et al. 1998), 28 x 28 pixels each, as 784 steps or 28 rows.

    The published files are {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, with or without .gz. The
    parameters `data_dir`, `download` and `cache_dir` are documented in `rotrnn.tasks.released.Released`.

    Parameters
    ----------
    rows : bool
        A step is a row of 28 pixels, from top to bottom, instead of a pixel.
    permuted : bool
        Use another order of the pixels than raster order. Papers use different orders; with another order, accuracies
        are similar but not equal.
    permutation : str
        "random", the order of the pixels' Philox numbers, or "bit_reversal", as in S4 and S5: the numbers below 784
        among those from 0 to 1023 with their ten bits reversed; or "numpy",
        ``numpy.random.RandomState(permutation_seed).permutation(784)``, with the seed 92916 the permutation of scoRNN
        (Helfrich, Willmott and Ye 2018), projUNN (Kiani et al. 2022) and much code for recurrent networks.
    permutation_seed : int
        Seed of the random order; of "numpy", below 2**32.
    val_fraction : float
        Share of the training images that are used for validation.
    seed : int
        Seed of PyTorch's random_split, which selects these images.
    """

    rows: bool = False
    permuted: bool = False
    permutation: str = "random"
    permutation_seed: int = 0
    val_fraction: float = 0.1
    seed: int = 42

    split_settings: ClassVar[tuple[str, ...]] = ("val_fraction", "seed")
    name: ClassVar[str] = "mnist"
    scale: ClassVar[tuple[float, float]] = 0.1307, 0.3081
    """Mean and deviation of the training pixels (from 0 to 1), to four digits, as in PyTorch's examples."""
    release: ClassVar[Release] = Release(
        sources_of(MIRRORS, SHA256), marks=(FILES["train"][0], f"{FILES['train'][0]}.gz"), places=(".", "MNIST/raw")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.permutation not in PERMUTATIONS:
            known = ", ".join(map(repr, PERMUTATIONS))
            raise ValueError(f"{type(self).__name__}: permutation is {self.permutation!r}, expected one of {known}")
        if self.rows and self.permuted:
            raise ValueError(f"{type(self).__name__}: permuted is True, expected False with rows: it orders pixels")
        most = 2**32 - 1 if self.permutation == "numpy" else 2**63 - 1
        check_ranges(type(self).__name__, self, (("permutation_seed", 0, most), ("seed", 0, 2**32 - 1)))

    @property
    def shape(self) -> Shape:
        """Ten classes, one feature per step, or as many as a row has."""
        return Shape(10, None, SIDE if self.rows else 1)

    @property
    def sizes(self) -> dict[str, int]:
        """The published numbers of images, with the training images split into training and validation."""
        return divided(IMAGES, self.val_fraction)

    def load(self) -> Task:
        """Returns the task. The first call prepares its arrays."""
        folder = self.folder()
        kind = type(self).__name__
        files = {name: [_plain_or_gz(kind, folder / file) for file in pair] for name, pair in FILES.items()}

        def make(store: Store) -> None:
            for name, (images, labels) in files.items():
                pixels, classes = read_idx(images, (SIDE, SIDE)), read_idx(labels, ())
                if len(pixels) != len(classes):
                    raise ValueError(f"{labels}: has {len(classes)} labels, expected {len(pixels)}, one for each image")
                if (wrong := np.flatnonzero(classes > 9)).size:
                    raise ValueError(f"{labels}, record {wrong[0]}: the label is {classes[wrong[0]]}, expected 0 to 9")
                store.array(f"{name}_pixels", (len(pixels), PIXELS, 1), np.uint8)[:] = pixels.reshape(-1, PIXELS, 1)
                store.array(f"{name}_labels", classes.shape, np.uint8)[:] = classes

        forms: Forms = {}
        for name in files:
            forms |= {f"{name}_pixels": ("u1", name, PIXELS, 1), f"{name}_labels": ("u1", name)}
        arrays = self.prepare(self.name, (path for pair in files.values() for path in pair), make, forms)
        count = {name: len(arrays[f"{name}_labels"]) for name in files}
        compare(kind, folder, count, IMAGES)
        mean = arrays["train_pixels"].mean() / 255
        if count["train"] == IMAGES["train"] and abs(mean - self.scale[0]) > 5e-4:
            what = f"the mean of the training pixels is {mean:.4f}, of the published ones {self.scale[0]:.4f}"
            warn(f"{kind}: {folder}: {what}; other data sets have files of the same names")
        train, val = divide(kind, count["train"], self.val_fraction, self.seed)
        steps = self.order() if self.permuted else None

        def split(name: str, rows: Index) -> ImageSplit:
            mean, std = self.scale
            pixels = arrays[f"{name}_pixels"]
            pixels = pixels.reshape(-1, SIDE, SIDE) if self.rows else pixels
            return ImageSplit(pixels, arrays[f"{name}_labels"], rows, (mean,), (std,), steps)

        return Task(
            self.name,
            split("train", train),
            split("train", val),
            split("test", np.arange(count["test"])),
            **self.shape._asdict(),
        )

    def order(self) -> Index:
        """Returns the pixels (784,) in the permuted order."""
        if self.permutation == "bit_reversal":
            return bit_reversal(PIXELS)
        if self.permutation == "numpy":
            return np.random.RandomState(self.permutation_seed).permutation(PIXELS).astype(np.int64)
        return shuffled(PIXELS, self.permutation_seed, 0)

    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes random images: `examples` for training and validation together, and `examples` for the test."""
        rng = np.random.default_rng(0)
        Path(folder).mkdir(parents=True, exist_ok=True)
        for images, labels in FILES.values():
            write_idx(Path(folder, f"{images}.gz"), rng.integers(0, 256, (examples, SIDE, SIDE), np.uint8))
            write_idx(Path(folder, f"{labels}.gz"), rng.integers(0, 10, examples, np.uint8))


FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
)
FASHION_SHA256 = {  # of the files whose MD5 hashes its authors publish
    "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
}


@dataclass(frozen=True)
class FashionMNIST(MNIST):
    """The 70,000 pictures of clothes of Fashion-MNIST, in the form and with the settings of MNIST.

    Its files have the names and the format of MNIST's. Debian has them as the package dataset-fashion-mnist, in
    /usr/share/datasets/fashion-mnist.

    Xiao, Rasul and Vollgraf 2017, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms".
    """

    name: ClassVar[str] = "fashion_mnist"
    scale: ClassVar[tuple[float, float]] = 0.2860, 0.3530
    release: ClassVar[Release] = MNIST.release._replace(
        sources=sources_of(FASHION, FASHION_SHA256), places=("FashionMNIST/raw", "fashion-mnist", ".")
    )


def bit_reversal(n: int) -> Index:
    """Returns the numbers 0..n-1 in the order in which they appear among all numbers of as many bits, reversed."""
    bits = (n - 1).bit_length()
    numbers = np.arange(2**bits)
    order = sum((numbers >> i & 1) << bits - 1 - i for i in range(bits))
    return np.asarray(order, np.int64)[order < n]


def _plain_or_gz(kind: str, path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    if not (path.exists() or packed.exists()):
        raise FileNotFoundError(f"{kind}: {path} is no file, and neither is {packed.name}, expected one of them")
    return path if path.exists() else packed


def read_idx(path: str | os.PathLike[str], shape: tuple[int, ...]) -> ByteArray:
    """Reads the array (n, *shape) of bytes in an idx file, which is decompressed if its name ends in .gz.

    An idx file holds two zero bytes, an 8 for the dtype, the number of dimensions, the size of each dimension as a
    big-endian integer of four bytes, then the array. ValueError if the file is no idx file, has another shape or more
    than `MOST` records, or is truncated. Not more is decompressed than the dimensions announce.
    """
    path, ndim = Path(path), 1 + len(shape)
    head = 4 + 4 * ndim
    try:
        with open_file(path) as packed:
            file: Readable = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
            begin = file.read(head)
            if begin[:4] != bytes([0, 0, 8, ndim]) or len(begin) < head:
                got, magic = begin[:4].hex(" "), bytes([0, 0, 8, ndim]).hex(" ")
                raise ValueError(
                    f"{path}: begins with '{got}', expected '{magic}' (bytes in {ndim} dimension(s)) and the dimensions"
                )
            n, *rest = np.frombuffer(begin, ">u4", ndim, 4).tolist()
            if tuple(rest) != shape:
                raise ValueError(f"{path}: has images of shape {rest}, expected {list(shape)}")
            if n > MOST:
                raise ValueError(f"{path}: has {n} records, expected at most {MOST}")
            size = n * math.prod(shape)
            content = read_most(file, size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: is truncated or damaged: {error}") from error
    if len(content) != size:
        got = f"more than {size}" if len(content) > size else str(len(content))
        raise ValueError(f"{path}: has {got} bytes of data, expected {size} for {n} records")
    return np.frombuffer(content, np.uint8).reshape(n, *shape)


def write_idx(path: str | os.PathLike[str], array: ByteArray) -> None:
    """The inverse of `read_idx`."""
    content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
    with atomic_file(path) as file:
        file.write(gzip.compress(content, 1, mtime=0) if Path(path).suffix == ".gz" else content)
