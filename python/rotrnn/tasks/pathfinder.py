"""Long Range Arena's Pathfinder and Path-X tasks: generator, released folders, and images as sequences."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.settings import settle
from rotrnn.devices.device import HOST
from rotrnn.ops.random import philox
from rotrnn.tasks.order import torch_random_order
from rotrnn.tasks.paddles import DEGREES, PaddleShape, Picture, markers, paddles, step
from rotrnn.tasks.pathfinder_files import level_release, read_level, write_level
from rotrnn.tasks.released import find
from rotrnn.tasks.task import Batch, Exhausted, Index, Shape, Split, Task


class Geometry(NamedTuple):
    """Drawing parameters of the images of one size; lengths are in pixels."""

    padding: int  # width of the frame that no contour enters
    paddle_length: int
    paddle_thickness: float
    margins: tuple[int, ...]  # possible margins around paddles; each image uses one
    marker_radius: float
    seed_distance: int  # between the first paddles of the two contours
    continuity: float
    target_contrast: float
    distractor_contrast: float
    distractor_paddles: int  # total number of paddles of all distractors


GEOMETRIES = {
    16: Geometry(1, 2, 0.5, (1,), 1.5, 3, 1.0, 1.5, 2.0, 8),
    32: Geometry(1, 2, 0.5, (1,), 1.5, 7, 1.0, 1.5, 2.0, 20),
    64: Geometry(1, 5, 1, (1,), 2.5, 12, 1.8, 0.8, 0.8, 22),
    128: Geometry(1, 5, 1.5, (2, 3), 3, 20, 1.8, 0.9, 0.9, 35),
    256: Geometry(22, 5, 2, (3,), 5, 27, 1.8, 1.0, 1.0, 30),
}
"""Geometries by resolution: Long Range Arena's, and an unpublished geometry of 16 pixels for small experiments."""

SHADES = 20  # contrasts are multiples of 1/20
EASY = 6  # paddles per contour of the level that the number of distractors is computed from
RULES = ("once", "recomputed")


# ---- drawing ----


class Images(NamedTuple):
    """Images, and how they were drawn.

    Parameters
    ----------
    pixels : (n, resolution, resolution) uint8
    labels : (n,)
        1 if both markers are on one contour.
    margins : (n,)
        Margin around the paddles.
    pairs : (n,)
        Number of pairs of contours that were tried.
    distractors : (n,)
        Number of distractors that fitted.
    marked : (n,)
        The contour, 0 or 1, whose start is marked.
    paddles : (n, 2 contour_length + distractors distractor_length, 3)
        For each paddle the number of its picture (`rotrnn.tasks.paddles.Paddles`) and the pixel (y, x) at which it
        starts; -1 where there is none. The paddles of the two contours come first, alternating, then the distractors
        one after the other. A contour's first paddle starts at its tip and leads inwards; all others start at their far
        end and lead back.
    """

    pixels: Picture
    labels: Index
    margins: Index
    pairs: Index
    distractors: Index
    marked: Index
    paddles: Index


@dataclass(frozen=True)
class Pathfinder:
    """Long Range Arena's Pathfinder (Tay et al. 2021), called Path-X at 128 x 128: do two markers lie on one contour?

    A sequence has one pixel per step, row by row. Label 1 means that they do. An image has two long contours of
    paddles, shorter distractors and two markers (Linsley et al. 2018: the script of drewlinsley/pathfinder with the
    settings of google-research/long-range-arena). Image i depends on (`seed`, i) alone and is drawn when a batch needs
    it. Splits are parts of PyTorch's random order of all images with seed 42, as in S4 and S5: training first, test
    last.

    Parameters
    ----------
    resolution : int
        Side of the images in pixels: 32, 64, 128 or 256; or 16, which is not published.
    contour_length : int
        Number of paddles of each of the two contours: 6 at the published level "easy", 9 at "intermediate", 14 at
        "hard".
    distractors : str or int
        How many distractors are tried. The original script divides a number of paddles (35 at 128) by the length of a
        distractor. "once" does so before the level is set: 10 distractors at 32, 11 at 64, 17 at 128, 15 at 256.
        "recomputed" does so for the level, as Long Range Arena's notes suggest: 5, 5, 8, 7 at the hard level. The
        published metadata do not say which was done; what is known of Path-X suggests "once". At 32 only few
        distractors fit.
    distractor_length : int, optional
        Number of paddles of a distractor. The default is a third of `contour_length`.
    train, val, test : int
        Number of images in each split.
    seed : int
        Seed of the generated images.
    center : bool
        Scale pixels to [-1, 1], as in S5 and minimal-LRU; otherwise to [0, 1], as in S4.
    data_dir : str
        Folder of a released level, with the folders imgs and metadata, or a folder above: of the resolution, or of
        the whole release. A level is called curv_contour_length_14, or curv_baseline for 6. If it is set, no image is
        generated.
    download : bool
        Download the archive of Long Range Arena into `data_dir` and unpack the level, if the level is missing.
    cache_dir : str
        Folder for the arrays prepared from `data_dir`, which later calls map into memory. The default is the folder
        .rotrnn in `data_dir`.
    """

    resolution: int = 32
    contour_length: int = 14
    distractors: str | int = "once"
    distractor_length: int | None = None
    train: int = 160_000
    val: int = 20_000
    test: int = 20_000
    seed: int = 0
    center: bool = True
    data_dir: str = ""
    download: bool = False
    cache_dir: str = ""

    split_settings: ClassVar[tuple[str, ...]] = ("train", "val", "test")
    resumable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        if self.resolution not in GEOMETRIES:
            known = ", ".join(map(str, GEOMETRIES))
            raise ValueError(f"Pathfinder: resolution is {self.resolution}, expected one of {known}")
        if isinstance(self.distractors, str) and self.distractors not in RULES:
            raise ValueError(
                f"Pathfinder: distractors is {self.distractors!r}, expected {' or '.join(RULES)}, or a number"
            )
        for name, value, low, high in (
            ("contour_length", self.contour_length, 2, 1000),
            ("distractors", self.distractors, 0, 1000),
            ("distractor_length", self.distractor_length, 1, 1000),
            ("train", self.train, 1, 10**8),
            ("val", self.val, 1, 10**8),
            ("test", self.test, 1, 10**8),
            ("seed", self.seed, 0, 2**63 - 1),
        ):
            if isinstance(value, int) and not low <= value <= high:
                raise ValueError(f"Pathfinder: {name} is {value}, expected an integer from {low} to {high}")

    @property
    def shape(self) -> Shape:
        """Two classes, one feature per step."""
        return Shape(2, None, 1)

    @property
    def geometry(self) -> Geometry:
        """Drawing parameters of images of this resolution."""
        return GEOMETRIES[self.resolution]

    def distractor_paddles(self) -> tuple[int, int]:
        """Returns how many distractors are tried, and how many paddles each has."""
        length = self.distractor_length or max(1, self.contour_length // 3)
        if isinstance(self.distractors, int):
            return self.distractors, length
        return self.geometry.distractor_paddles // (EASY // 3 if self.distractors == "once" else length), length

    def images(self, index: Index) -> Images:
        """Draws the images with the numbers `index`, from 0 to 2**63 - 1, on all threads.

        Raises
        ------
        Exhausted
            A million pairs of contours did not fit: the contours are too long for the window.
        """
        index = np.ascontiguousarray(index, np.int64)
        n, side, geometry = len(index), self.resolution, self.geometry
        margins = np.array(geometry.margins)[self._first_draws(index, 1, len(geometry.margins))]
        distractors, length = self.distractor_paddles()
        pixels = np.empty((n, side, side), np.uint8)
        facts = np.empty((n, 4), np.int64)
        placed = np.empty((n, 2 * self.contour_length + distractors * length, 3), np.int64)
        for margin in geometry.margins:
            rows = np.flatnonzero(margins == margin)
            part = pixels[rows], facts[rows], placed[rows]
            self._draw(index[rows], margin, *part)
            pixels[rows], facts[rows], placed[rows] = part
        labels, pairs, found, marked = facts.T
        return Images(pixels, labels, margins, pairs, found, marked, placed)

    def labels(self, index: Index) -> Index:
        """Returns the labels of images without drawing them: the label is the first draw of an image."""
        return self._first_draws(np.asarray(index), 0, 2)

    def _first_draws(self, index: Index, place: int, n: int) -> Index:
        """Returns word number `place` (0 or 1) of each image's stream, scaled to a number below `n`."""
        counter = np.zeros((len(index), 4), np.int64)
        counter[:, 2], counter[:, 3] = index & 0xFFFFFFFF, index >> 32
        return (philox(counter, self.seed)[:, place] * n) >> 32

    def _draw(self, index: Index, margin: int, pixels: Picture, facts: Index, placed: Index) -> None:
        g = self.geometry
        table = paddles(PaddleShape(g.paddle_length, g.paddle_thickness, margin, g.continuity))
        stamps = markers(g.marker_radius, self.resolution)
        distractors, distractor_length = self.distractor_paddles()
        ring = np.array([step(degree * math.pi / 180, g.seed_distance) for degree in range(DEGREES)])
        try:
            HOST.kernels.pathfinder(
                images=pixels,
                facts=facts,
                paddles=placed,
                index=index,
                **table._asdict(),
                markers=stamps,
                ring=ring,
                n=len(index),
                seed=self.seed,
                window=self.resolution,
                padding=g.padding,
                seed_distance=g.seed_distance,
                margin=margin,
                S=table.lines.shape[1],
                C=len(table.ends),
                probes_most=table.probes.shape[1],
                E=len(stamps),
                contour_length=self.contour_length,
                distractors=distractors,
                distractor_length=distractor_length,
                target_shade=round(g.target_contrast * SHADES),
                distractor_shade=round(g.distractor_contrast * SHADES),
            )
        except RuntimeError:
            raise Exhausted(
                f"Pathfinder: no two contours of {self.contour_length} paddles fit into {self.resolution} x "
                f"{self.resolution} pixels: a million pairs were tried for one image"
            ) from None

    # ---- the task ----

    def load(self) -> Task:
        """Returns the task. Its images are drawn when a batch needs them, or mapped from arrays prepared from
        `data_dir`.

        Raises
        ------
        ValueError
            A file in `data_dir` is not in the released format; the error names the file and the line.
        """
        if not (self.data_dir or self.download):
            sizes = self.train, self.val, self.test
            return self._task(torch_random_order(sum(sizes)), sizes, lambda i: self.images(i).pixels, self.labels)
        folder = find("Pathfinder", level_release(self.resolution, self.contour_length), self.data_dir, self.download)
        arrays = read_level(folder, self.resolution, self.contour_length, self.data_dir, self.cache_dir)
        pixels, labels = arrays["pixels"], np.array(arrays["labels"], np.int64)
        sizes = self.train, self.val, self.test
        if sizes == (160_000, 20_000, 20_000) and len(labels) == sum(sizes) - 1:
            sizes = 160_001, 19_999, 19_999  # without `EMPTY`: S4 and S5 take tenths, rounded down
        if len(labels) < sum(sizes):
            raise ValueError(f"{folder}: has {len(labels)} images, expected at least {sum(sizes)}, train + val + test")
        return self._task(torch_random_order(len(labels)), sizes, pixels.__getitem__, labels.__getitem__)

    def _task(
        self,
        order: Index,
        sizes: tuple[int, int, int],
        pixels: Callable[[Index], Picture],
        labels: Callable[[Index], Index],
    ) -> Task:
        first, middle, last = sizes
        tail = order[len(order) - middle - last :]
        train, val, test = (
            PathfinderSplit(part, pixels, labels, self.center, self.resolution**2)
            for part in (order[:first], tail[:middle], tail[middle:])
        )
        name = "path-x" if self.resolution == 128 else "pathfinder"
        return Task(name, train, val, test, n_classes=2, vocab=None, n_features=1, labels=("apart", "joined"))

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes all images as files in the released layout (see `rotrnn.tasks.pathfinder_files.write_level`).

        If a call was interrupted, the next call resumes where it stopped.
        """
        if self.data_dir or self.download:
            raise ValueError(f"Pathfinder: data_dir is {self.data_dir!r}, expected none: its images are already files")
        g = self.geometry
        distractors, length = self.distractor_paddles()
        settings = {
            "images": self.train + self.val + self.test,
            "resolution": self.resolution,
            "contour_length": self.contour_length,
            "distractors": distractors,
            "distractor_length": length,
            "seed": self.seed,
        }

        def draw(index: Index) -> Iterator[tuple[Picture, str]]:
            drawn = self.images(index)
            for pixels, label, margin in zip(drawn.pixels, drawn.labels, drawn.margins, strict=True):
                contours = f"{g.continuity} {self.contour_length} {length}"
                yield pixels, f"{label} {contours} {g.paddle_length} {g.paddle_thickness} {margin} 1"

        write_level(folder, settings, draw)
        return self.load()


@dataclass(frozen=True)
class PathfinderSplit(Split):
    """The images with the numbers `order`, in two classes, with one pixel per step."""

    order: Index
    pixels: Callable[[Index], Picture]  # (n,) -> (n, side, side)
    labels: Callable[[Index], Index]
    center: bool
    steps: int  # side * side

    def __len__(self) -> int:
        return len(self.order)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the images at `index`, with pixels in `dtype`."""
        numbers = self.order[index]
        levels = np.arange(256) / 255
        levels = ((levels - 0.5) / 0.5 if self.center else levels).astype(dtype)
        pixels = self.pixels(numbers).reshape(len(numbers), -1, 1)
        return Batch(levels[pixels], self.labels(numbers), None)

    def labels_and_lengths(self, index: Index) -> tuple[Index, Index]:
        """Returns labels and lengths without drawing or reading any image."""
        return self.labels(self.order[index]), np.full(len(index), self.steps)
