"""Pathfinder and Path-X of Long Range Arena: their generator, their released folders, and images as sequences."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.ops.device import HOST
from rotrnn.ops.random import philox
from rotrnn.tasks.order import torch_random_order
from rotrnn.tasks.paddles import DEGREES, PaddleShape, Picture, markers, paddles, step
from rotrnn.tasks.pathfinder_files import level_release, read_level, write_level
from rotrnn.tasks.released import find
from rotrnn.tasks.task import Batch, Exhausted, Index, Shape, Split, Task


class Geometry(NamedTuple):
    """What an image of one size is drawn with; lengths are in pixels."""

    padding: int  # of the frame that no contour enters
    paddle_length: int
    paddle_thickness: float
    margins: tuple[int, ...]  # around paddles; one of them an image
    marker_radius: float
    seed_distance: int  # of the two contours' first paddles
    continuity: float
    target_contrast: float
    distractor_contrast: float
    distractor_paddles: int  # of all distractors together


GEOMETRIES = {
    16: Geometry(1, 2, 0.5, (1,), 1.5, 3, 1.0, 1.5, 2.0, 8),
    32: Geometry(1, 2, 0.5, (1,), 1.5, 7, 1.0, 1.5, 2.0, 20),
    64: Geometry(1, 5, 1, (1,), 2.5, 12, 1.8, 0.8, 0.8, 22),
    128: Geometry(1, 5, 1.5, (2, 3), 3, 20, 1.8, 0.9, 0.9, 35),
    256: Geometry(22, 5, 2, (3,), 5, 27, 1.8, 1.0, 1.0, 30),
}
"""By resolution: those of Long Range Arena, and one of 16 pixels that is ours, for what must be small."""

SHADES = 20  # contrasts are multiples of 1/20
EASY = 6  # paddles of a contour of the level that the number of distractors is taken from
RULES = ("once", "recomputed")


# ---- drawing ----


class Images(NamedTuple):
    """Some images, and how they came about.

    Parameters
    ----------
    pixels : (n, resolution, resolution) uint8
    labels : (n,)
        1 where both markers are on one contour.
    margins : (n,)
    pairs : (n,)
        How many pairs of contours were tried.
    distractors : (n,)
        How many found room.
    marked : (n,)
        The contour, 0 or 1, whose start is marked.
    paddles : (n, 2 contour_length + distractors distractor_length, 3)
        Picture (`rotrnn.tasks.paddles.Paddles`) and pixel (y, x) at which it starts; -1 where there is none. First
        those of the two contours in turn, then the distractors one after the other. A contour's first paddle starts at
        its tip and leads inwards; all others start at their far end and lead back.
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
    """Pathfinder of Long Range Arena (Tay et al. 2021), Path-X at 128 x 128: do two markers lie on one contour?

    One pixel a step, row by row; label 1 if they do. Two long contours of paddles, short ones that distract, and two
    markers (Linsley et al. 2018: the script of drewlinsley/pathfinder, by the settings of google-research/
    long-range-arena). Image i depends on (`seed`, i) alone and is drawn when it is asked for. Splits are parts of
    PyTorch's random order of all images with seed 42, as S4 and S5 load them: training first, test last.

    Parameters
    ----------
    resolution : int
        32, 64, 128 or 256 pixels a side; or 16, which is not published.
    contour_length : int
        Paddles of each of the two contours: 6 at the level that is called easy, 9 intermediate, 14 hard.
    distractors : str or int
        How many are tried. The original script divides a number of paddles (35 at 128) by the length of a distractor,
        "once", before it sets the level: 10 of them at 32, 11 at 64, 17 at 128, 15 at 256. "recomputed" does it for the
        level, as Long Range Arena's notes read: 5, 5, 8, 7 at the hard one. The metadata do not tell which was done;
        what is known of Path-X speaks for "once". At 32 few find room.
    distractor_length : int, optional
        Paddles of a distractor: a third of `contour_length`.
    train, val, test : int
        How many images each split has.
    seed : int
        Of the images that are drawn.
    center : bool
        Pixels are from -1 to 1, as S5 and minimal-LRU have them; else from 0 to 1, as S4.
    data_dir : str
        Folder of a level as released, with folders imgs and metadata, or one above: of the resolution, or of all. A
        level is called curv_contour_length_14, or curv_baseline for 6. With it nothing is drawn.
    download : bool
        Fetch the archive of Long Range Arena into `data_dir`, and the level from it, where it is not there.
    cache_dir : str
        Folder for the images of `data_dir`, mapped into memory from the first time on; .rotrnn in it if none is given.
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

    dividing: ClassVar[tuple[str, ...]] = ("train", "val", "test")
    resumable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.resolution not in GEOMETRIES:
            known = ", ".join(map(str, GEOMETRIES))
            raise ValueError(f"Pathfinder: resolution is {self.resolution}, expected one of {known}")
        if isinstance(self.distractors, str) and self.distractors not in RULES:
            raise ValueError(
                f"Pathfinder: distractors is {self.distractors!r}, expected {' or '.join(RULES)}, or how many"
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
        """Two classes, one feature."""
        return Shape(2, None, 1)

    @property
    def geometry(self) -> Geometry:
        """What images of this resolution are drawn with."""
        return GEOMETRIES[self.resolution]

    def distractor_paddles(self) -> tuple[int, int]:
        """How many distractors are tried, and of how many paddles each is."""
        length = self.distractor_length or max(1, self.contour_length // 3)
        if isinstance(self.distractors, int):
            return self.distractors, length
        return self.geometry.distractor_paddles // (EASY // 3 if self.distractors == "once" else length), length

    def images(self, index: Index) -> Images:
        """Draws the images of these numbers, from 0 to 2**63 - 1, on all threads.

        Raises
        ------
        Exhausted
            A million pairs of contours did not fit: they are too long for the window.
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
        """The labels of images, which are drawn first."""
        return self._first_draws(np.asarray(index), 0, 2)

    def _first_draws(self, index: Index, place: int, n: int) -> Index:
        """Word 0 or 1 of each image's stream, as a number below `n`."""
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
                lines=table.lines,
                masks=table.masks,
                markers=stamps,
                seed_steps=table.seed_steps,
                steps=table.steps,
                ring=ring,
                ends=table.ends,
                weights=table.weights,
                probes=table.probes,
                probe_counts=table.probe_counts,
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
        """The task: drawn as it is used, or mapped from what is prepared from `data_dir`.

        Raises
        ------
        ValueError
            A file in `data_dir` is not as released; the error names file and line.
        """
        if not (self.data_dir or self.download):
            order = torch_random_order(self.train + self.val + self.test)
            return self._task(order, lambda index: self.images(index).pixels, self.labels)
        folder = find("Pathfinder", level_release(self.resolution, self.contour_length), self.data_dir, self.download)
        arrays = read_level(folder, self.resolution, self.contour_length, self.data_dir, self.cache_dir)
        pixels, labels = arrays["pixels"], np.array(arrays["labels"], np.int64)
        wanted = self.train + self.val + self.test
        if len(labels) < wanted:
            raise ValueError(f"{folder}: has {len(labels)} images, expected at least {wanted}, train + val + test")
        return self._task(torch_random_order(len(labels)), pixels.__getitem__, labels.__getitem__)

    def _task(self, order: Index, pixels: Callable[[Index], Picture], labels: Callable[[Index], Index]) -> Task:
        train, val, test = (
            ImageSplit(part, pixels, labels, self.center, self.resolution**2)
            for part in (order[: self.train], order[-self.test - self.val : -self.test], order[-self.test :])
        )
        name = "path-x" if self.resolution == 128 else "pathfinder"
        return Task(name, train, val, test, n_classes=2, vocab=None, n_features=1, labels=("apart", "joined"))

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Writes all images as files in the released layout, as `rotrnn.tasks.pathfinder_files.write_level`.

        After a kill, a second call goes on where the first one ended.
        """
        if self.data_dir or self.download:
            raise ValueError(f"Pathfinder: data_dir is {self.data_dir!r}, expected none: its images are files already")
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
class ImageSplit(Split):
    """Images of two classes, one pixel a step: those of numbers `order`."""

    order: Index
    pixels: Callable[[Index], Picture]  # (n,) -> (n, side, side)
    labels: Callable[[Index], Index]
    center: bool
    steps: int  # side * side

    def __len__(self) -> int:
        return len(self.order)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """The images at `index`, pixels in `dtype`."""
        numbers = self.order[index]
        levels = np.arange(256) / 255
        levels = ((levels - 0.5) / 0.5 if self.center else levels).astype(dtype)
        pixels = self.pixels(numbers).reshape(len(numbers), -1, 1)
        return Batch(levels[pixels], self.labels(numbers), None)

    def labels_and_lengths(self, index: Index) -> tuple[Index, Index]:
        """No image is drawn or read for them."""
        return self.labels(self.order[index]), np.full(len(index), self.steps)
