"""Images as sequences of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.tasks.order import torch_random_order
from rotrnn.tasks.task import Batch, Index, Split


@dataclass(frozen=True)
class ImageSplit(Split):
    """Images as sequences with one pixel per step, in raster order or in the order `steps`.

    Pixels are normalised when a batch is drawn. `pixels` (n, T, F) uint8 and `labels` (n,) uint8 hold all images,
    `rows` are the indices of this split's images, `mean` and `std` (F,) refer to a pixel / 255.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]
    rows: Index
    mean: tuple[float, ...]
    std: tuple[float, ...]
    steps: Index | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the images at `index`: (B, T, F) in `dtype`, all of the same length."""
        rows = self.rows[index]
        pixels = self.pixels[rows] if self.steps is None else self.pixels[rows][:, self.steps]
        x: npt.NDArray[Any] = pixels / np.asarray(255, dtype)
        x -= np.asarray(self.mean, dtype)
        x /= np.asarray(self.std, dtype)
        return Batch(x, self.labels[rows].astype(np.int64), None)


def divided(images: dict[str, int], val_fraction: float) -> dict[str, int]:
    """Returns the number of images of each split, from the published numbers for "train" and "test"."""
    train = int(images["train"] * (1 - val_fraction))
    return {"train": train, "val": images["train"] - train, "test": images["test"]}


def divide(name: str, n: int, val_fraction: float, seed: int) -> tuple[Index, Index]:
    """Splits n rows into training and validation rows, as PyTorch's random_split does with a generator of that seed.

    ValueError, with the task's `name`, if one of the two is empty.
    """
    train = divided({"train": n, "test": 0}, val_fraction)["train"]
    if not 0 < train < n:
        raise ValueError(
            f"{name}: val_fraction is {val_fraction} of {n} images, expected at least one for training and one for "
            "validation"
        )
    order = torch_random_order(n, seed)
    return order[:train], order[train:]
