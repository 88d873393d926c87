"""The pictures that Pathfinder's images are composed of: paddles, their masks with margins, and markers, all in 8 bits.

The original generator (Linsley, Kim, Veerabadran, Windolf, Serre, "Learning long-range spatial dependencies with
horizontal gated recurrent units", NeurIPS 2018; drewlinsley/pathfinder) draws every paddle separately, enlarged by
`SCALE`, and shrinks it with SciPy's old imresize, which is Pillow in 8 bits. Only few pictures differ: a paddle starts
at a pixel with an angle of whole degrees, or at one of the pixels of a circle. So all of them are drawn here once, and
csrc/data/pathfinder.c copies them into the images. The result does not depend on the installed version of Pillow; the
tests compare with Pillow.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.tasks.task import Index

Picture = npt.NDArray[np.uint8]

SCALE = 2  # enlargement of the canvas that pictures are drawn on before they are shrunk
WHITE = 255
DEGREES = 360
CERTAIN = 2**24  # integer weight that stands for 1
LOBES = 3  # number of lobes of the Lanczos kernel


# ---- drawing ----


def line(side: int, start: tuple[int, int], end: tuple[int, int], width: int) -> Picture:
    """Draws a straight line between two pixels (y, x) of a black square, with the result of Pillow's ImageDraw.line."""
    canvas = np.zeros((side, side), np.uint8)
    (y0, x0), (y1, x1) = start, end
    dy, dx = y1 - y0, x1 - x0
    if width == 1 or not (dy or dx):  # Bresenham's algorithm
        long, short = max(abs(dy), abs(dx)), min(abs(dy), abs(dx))
        error, minor = 2 * short - long, 0
        for major in range(long + 1):
            down, right = (major, minor) if abs(dy) >= abs(dx) else (minor, major)
            canvas[y0 + int(math.copysign(down, dy)), x0 + int(math.copysign(right, dx))] = WHITE
            if error >= 0 and short:
                minor, error = minor + 1, error - 2 * long
            error += 2 * short
        return canvas
    # fill, row by row, a quadrilateral whose corners are rounded to pixels
    most, least = (round_half((width - 1) / 2) / math.hypot(dy, dx) for round_half in (_half_up, _half_down))
    left, right = _half_down(least * dy), _half_down(most * dy)
    above, below = _half_up(least * dx), _half_up(most * dx)
    corners = [(y0 + below, x0 - left), (y1 + below, x1 - left), (y1 - above, x1 + right), (y0 - above, x0 + right)]
    for y in range(min(corners)[0], max(corners)[0] + 1):
        crossed: list[float] = []
        for (a, b), (c, d) in zip(corners, corners[1:] + corners[:1], strict=True):
            if a == c == y:
                crossed += [b, d]
            elif a != c and min(a, c) <= y <= max(a, c):
                crossed.append(b + (y - a) * (d - b) / (c - a))
        canvas[y, _half_up(min(crossed)) : _half_down(max(crossed)) + 1] = WHITE
    return canvas


def _half_up(x: float) -> int:
    """Rounds `x`, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def _half_down(x: float) -> int:
    """Rounds `x`, halves towards zero."""
    return int(math.copysign(math.ceil(abs(x) - 0.5), x))


@lru_cache(maxsize=64)
def _taps(size: int, to: int) -> npt.NDArray[np.float64]:
    """Returns the weights (to, size) of Lanczos resampling in units of 2**-22, rounded to integers as in Pillow."""
    scale = size / to
    taps = np.zeros((to, size))
    for i in range(to):
        center = (i + 0.5) * scale
        first = max(0, int(center - LOBES * scale + 0.5))
        last = min(size, int(center + LOBES * scale + 0.5))
        kernel = [_lanczos((j - center + 0.5) / scale) for j in range(first, last)]
        total = sum(kernel)
        taps[i, first:last] = [_half_up(one / total * 2**22) for one in kernel]
    return taps


def _lanczos(x: float) -> float:
    if not -LOBES <= x < LOBES:
        return 0.0
    return 1.0 if x == 0 else LOBES * math.sin(math.pi * x) * math.sin(math.pi * x / LOBES) / (math.pi * x) ** 2


def shrink(picture: Picture, side: int) -> Picture:
    """Resamples a square picture to `side` pixels with the Lanczos kernel, as Pillow does in 8 bits: rows, then
    columns."""
    taps = _taps(len(picture), side)
    for _ in range(2):  # float64 holds these integers exactly
        picture = np.clip(np.floor((picture @ taps.T + 2**21) / 2**22), 0, WHITE).astype(np.uint8).T
    return np.ascontiguousarray(picture)


def disc(radius: float) -> Index:
    """Returns all integer offsets (n, 2) with a length of at most `radius`."""
    reach = np.arange(-math.floor(radius), math.floor(radius) + 1)
    offsets = np.stack(np.meshgrid(reach, reach, indexing="ij"), axis=-1).reshape(-1, 2)
    return offsets[(offsets**2).sum(1) <= radius**2].astype(np.int64)


def widened(picture: Picture, radius: int) -> Picture:
    """Sets each pixel to the brightest pixel of the disc around it (a dilation)."""
    side = len(picture)
    framed = np.pad(picture, radius)
    moved = [framed[radius + y :, radius + x :][:side, :side] for y, x in disc(radius).tolist()]
    return np.max(moved, axis=0)


# ---- angles ----


def turned(angle: float) -> float:
    """Returns the opposite direction."""
    return angle + math.pi if angle < 0 else angle - math.pi


def step(angle: float, length: float) -> tuple[float, float]:
    """Returns the displacement (y, x) of `length` pixels in the direction `angle`."""
    return length * math.sin(angle), length * math.cos(angle)


# ---- paddles ----


class PaddleShape(NamedTuple):
    """Parameters of how a paddle looks and of where the next paddle of a contour may lie; lengths are in pixels."""

    length: int
    thickness: float
    margin: int
    continuity: float

    @property
    def half(self) -> int:
        """Half the side of the paddle's picture. The paddle starts in the middle of the picture."""
        return self.length + math.ceil(self.thickness) + self.margin


def paddle(shape: PaddleShape, angle: float) -> tuple[Picture, Picture]:
    """Draws a paddle, and the same paddle widened by its margin: (2 h + 1, 2 h + 1) each, h = `PaddleShape.half`."""
    center = shape.half * SCALE
    dy, dx = step(angle, shape.length * SCALE)
    end = math.ceil(center + dy), math.ceil(center + dx)
    drawn = line(2 * center + 1, (center, center), end, round(shape.thickness * SCALE))
    side = 2 * shape.half + 1
    return shrink(drawn, side), shrink(widened(drawn, shape.margin * SCALE), side)


class Paddles(NamedTuple):
    """All paddles of a shape for csrc/data/pathfinder.c: n = 360 + n_ends pictures of side x side pixels.

    The first 360 are the paddles that a contour may start with, one per degree from -180 on. Paddle 360 + c leads back
    from the c-th pixel of the circle around a pivot to the pivot. After it, the contour continues in the opposite
    direction.
    """

    lines: Picture  # (n, side, side): the paddles
    masks: Picture  # (n, side, side): the paddles with their margins
    seed_steps: npt.NDArray[np.float64]  # (360, 2, 2): from the tail to the head, and from the head back to the pivot
    steps: npt.NDArray[np.float64]  # (n, 2): from a pivot to the next pivot
    ends: Index  # (n_ends, 2): pixels of the circle around a pivot, sorted by row
    weights: Index  # (n, n_ends): weight of each end after each paddle, if it is free, in units of 2**-24
    probes: Index  # (360, n_probes, 2): offsets from a tail that must be free; row i has ``probe_counts[i]`` of them
    probe_counts: Index  # (360,)


@lru_cache(maxsize=8)
def paddles(shape: PaddleShape) -> Paddles:
    """Draws all paddles of a shape."""
    length, _, margin, continuity = shape
    degrees = [degree * math.pi / 180 for degree in range(-DEGREES // 2, DEGREES // 2)]
    radius = length + margin
    arc = 1 / radius  # of one pixel
    circle = [step(i * arc, radius) for i in range(math.ceil(2 * math.pi * radius))]
    ends = sorted({(math.floor(y), math.floor(x)) for y, x in circle})
    onward = [math.atan2(y, x) for y, x in ends]
    pictures = [paddle(shape, angle) for angle in [*degrees, *map(turned, onward)]]
    masks = np.stack([mask for _, mask in pictures])

    ways = np.array([*degrees, *onward])
    apart = np.abs(np.array(onward) - ways[:, None])
    bend = np.minimum(continuity * np.minimum(apart, 2 * math.pi - apart), math.pi / 2)
    probes = [_probes(mask, shape) for mask in masks[:DEGREES]]
    counts = np.array([len(some) for some in probes])
    padded = np.zeros((DEGREES, counts.max(), 2), np.int64)
    for row, some in zip(padded, probes, strict=True):
        row[: len(some)] = some
    return Paddles(
        np.stack([drawn for drawn, _ in pictures]),
        masks,
        np.array([[step(angle, length), step(turned(angle), length + margin)] for angle in degrees]),
        np.array([step(angle, length + 2 * margin) for angle in ways]),
        np.array(ends),
        np.rint(np.cos(bend) ** 2 * CERTAIN).astype(np.int64),
        padded,
        counts,
    )


def _probes(mask: Picture, shape: PaddleShape) -> Index:
    """Returns the offsets (n, 2), from the pixel before the tail, at which a paddle's mask is white.

    A contour may start where none of these pixels is occupied. Only offsets within the square of the original's kernel
    count. The result is empty if the offsets miss the whole window for a tail in one of the window's corners: there
    OpenCV's maximum runs over no pixel and is smaller than any value, and the original treats all pixels as occupied.
    """
    square = shape.length + shape.margin
    offsets = np.argwhere(mask == WHITE) - shape.half + 1
    offsets = offsets[(np.abs(offsets) <= square).all(1)]
    corners = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    outside = any((offsets * corner > 0).any(1).all() for corner in corners)
    return offsets[:0] if outside else offsets


# ---- markers ----


@lru_cache(maxsize=8)
def markers(radius: float, window: int) -> Picture:
    """Draws a disc around each pixel of a window of n x n pixels: (n, n, n, n).

    Near the edges of the window a disc is clipped before it is shrunk. n is `window`, or the smallest size that has a
    pixel whose disc no edge affects if that is less: 2 reach + 1, where the kernel reaches `LOBES` pixels beyond the
    disc.
    """
    side = min(window, 2 * (math.ceil(radius) + LOBES + 1) + 1)
    at = np.arange(side * SCALE)
    stamps = np.empty((side, side, side, side), np.uint8)
    for y in range(side):
        for x in range(side):
            squared = (at[:, None] - y * SCALE) ** 2 + (at - x * SCALE) ** 2
            stamps[y, x] = shrink(np.where(squared <= (radius * SCALE) ** 2, WHITE, 0).astype(np.uint8), side)
    return stamps
