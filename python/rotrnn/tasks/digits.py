"""Handwritten digits as sequences of pixels: the 1,797 images of 8 x 8 pixels that scikit-learn includes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.extras import needed
from rotrnn._support.files import atomic_file, whole_set
from rotrnn._support.settings import settle
from rotrnn.tasks.task import FeatureSplit, Index, Shape, Task, shuffled

IMAGES = 1797
PIXELS = 64
LEVELS = 16  # pixels are integers from 0 to 16


@dataclass(frozen=True)
class Digits:
    """Sequential digits: 64 pixels in raster order, one per step, to be classified as a digit from 0 to 9.

    These are real data that need no download: scikit-learn's copy of the test set of Alpaydin and Kaynak's "Optical
    Recognition of Handwritten Digits" (UCI 1998). Pixels are divided by 16, then shifted and scaled to zero mean and
    unit variance over all pixels of the training split.

    Parameters
    ----------
    seed : int
        Seed of the split. Images are ordered by their Philox numbers, so the split is the same on every machine.
    val_fraction, test_fraction : float
        Shares of the images for validation and test, rounded to whole images. The remaining ones are for training.
    """

    seed: int = 0
    val_fraction: float = 0.1
    test_fraction: float = 0.2

    split_settings: ClassVar[tuple[str, ...]] = ("seed", "val_fraction", "test_fraction")

    def __post_init__(self) -> None:
        settle(self)
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"Digits: seed is {self.seed}, expected an integer from 0 to 2**63 - 1")
        if not (self.val_fraction > 0 and self.test_fraction > 0 and self.val_fraction + self.test_fraction < 1):
            raise ValueError(
                f"Digits: val_fraction is {self.val_fraction} and test_fraction is {self.test_fraction}, "
                "expected positive numbers whose sum is below 1"
            )
        test, val = round(self.test_fraction * IMAGES), round(self.val_fraction * IMAGES)
        for key, fraction, images in (
            ("val_fraction", self.val_fraction, val),
            ("test_fraction", self.test_fraction, test),
            ("1 - val_fraction - test_fraction", 1 - self.val_fraction - self.test_fraction, IMAGES - val - test),
        ):
            if not images:
                raise ValueError(
                    f"Digits: {key} is {fraction}, which leaves no image of {IMAGES}; expected at least 1/{IMAGES}"
                )

    @property
    def shape(self) -> Shape:
        """Ten classes, one feature per step."""
        return Shape(10, None, 1)

    def load(self) -> Task:
        """Returns the task. ImportError if scikit-learn is not installed."""
        splits = self._images()
        train = splits["train"][0] / LEVELS
        mean, std = train.mean(), train.std()

        def split(name: str) -> FeatureSplit:
            images, labels = splits[name]
            return FeatureSplit(((images / LEVELS - mean) / std)[:, :, None], labels)

        return Task("digits", split("train"), split("val"), split("test"), n_classes=10, vocab=None, n_features=1)

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes digits_train.csv, digits_val.csv and digits_test.csv.

        Each row holds 64 pixels from 0 to 16 and the label.
        """
        header = ",".join([f"pixel{i}" for i in range(PIXELS)] + ["label"])
        with whole_set(folder) as place:
            for name, (images, labels) in self._images().items():
                with atomic_file(place / f"digits_{name}.csv") as file:
                    rows = np.column_stack([images, labels])
                    np.savetxt(file, rows, fmt="%d", delimiter=",", header=header, comments="")
        return self.load()

    def _images(self) -> dict[str, tuple[npt.NDArray[Any], Index]]:
        """Returns images (n, 64) and labels (n,) of each split."""
        with needed("Digits: the images are part of scikit-learn", "'rotrnn[data]'"):
            from sklearn.datasets import load_digits
        images, labels = load_digits(return_X_y=True)
        order = shuffled(IMAGES, self.seed, 0)
        test, val = round(self.test_fraction * IMAGES), round(self.val_fraction * IMAGES)
        index = {"train": order[test + val :], "val": order[test : test + val], "test": order[:test]}
        return {name: (images[rows], labels[rows].astype(np.int64)) for name, rows in index.items()}
