"""A slow reference for one Pathfinder image, from the published description: floating point, full-size canvases,
Pillow, SciPy.

Of the package it shares the random words alone, and in which order they are drawn. What follows is what the original
script does, and OpenCV's dilation and SciPy's old imresize for it; `Settings` are its arguments.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

SCALE = 2
NOTHING = -np.finfo(float).max  # OpenCV's maximum over no pixel


class Settings(NamedTuple):
    window: int
    padding: int
    length: int
    thickness: float
    margins: tuple
    radius: float
    seed_distance: int
    continuity: float
    contour_length: int
    distractors: int
    distractor_length: int
    target_contrast: float
    distractor_contrast: float


class Failed(Exception):
    pass


# ---- random words: Philox-4x32-10 (Salmon et al. 2011) in Python's integers ----


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, image):
    for block in itertools.count():
        yield from philox(
            [block & 0xFFFFFFFF, block >> 32, image & 0xFFFFFFFF, image >> 32], [seed & 0xFFFFFFFF, seed >> 32]
        )


# ---- primitives ----


def shrink(picture, side):
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


def disc(radius):
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return y**2 + x**2 <= radius**2


def dilate(picture, kernel):
    """Dilates as OpenCV does: the maximum over the kernel around each pixel (not reflected); pixels outside are
    ignored."""
    reach = len(kernel) // 2
    framed = np.pad(picture.astype(float), reach, constant_values=NOTHING)
    return ndimage.grey_dilation(framed, footprint=kernel[::-1, ::-1], mode="constant", cval=NOTHING)[
        reach:-reach, reach:-reach
    ]


def move(at, angle, by):
    return [math.ceil(at[0] + by * math.sin(angle)), math.ceil(at[1] + by * math.cos(angle))]


def flip(angle):
    return angle + math.pi if angle < 0 else angle - math.pi


def paste(picture, at, window):
    """Returns an empty window with the picture centred at a pixel."""
    half = len(picture) // 2
    canvas = np.zeros((window + 4 * half, window + 4 * half))
    top, left = at[0] + half, at[1] + half
    if top >= 0 and left >= 0 and max(top, left) + len(picture) <= len(canvas):
        canvas[top : top + len(picture), left : left + len(picture)] = picture
    return canvas[2 * half : 2 * half + window, 2 * half : 2 * half + window]


class Generator:
    def __init__(self, settings, seed, image):
        self.s, self.words = settings, words(seed, image)
        self.label = self.below(2)
        self.margin = settings.margins[self.below(len(settings.margins))]
        self.placed = []

    def below(self, n):
        return next(self.words) * n >> 32

    def uniform(self):
        return (next(self.words) >> 8) / 2**24

    def paddle(self, start, angle, contrast, window=None):
        """Returns line and mask in the window."""
        s, m = self.s, self.margin
        half = s.length + math.ceil(s.thickness) + m
        middle = half * SCALE
        end = move([middle, middle], angle, s.length * SCALE)
        large = Image.new("F", (2 * middle + 1, 2 * middle + 1), 0)
        ImageDraw.Draw(large).line([(middle, middle), (end[1], end[0])], fill=255, width=round(s.thickness * SCALE))
        line = np.array(large)
        mask = dilate(line, disc(m * SCALE))
        small = [shrink(picture.astype(np.uint8), 2 * half + 1) / 255 for picture in (line, mask)]
        window = window or s.window
        return paste(small[0] * contrast, start, window), paste(small[1], start, window)

    # ---- contours ----

    def free_pixels(self, taken, degree):
        """Returns where the paddle's full mask, drawn one pixel off the middle of its square, touches nothing."""
        side = self.s.length + self.margin
        _, mask = self.paddle([side + 1, side + 1], math.pi * degree / 180, 1.0, window=2 * side + 1)
        dilated = np.ceil(dilate(taken, mask == 1) - 0.3)
        return np.argwhere(dilated <= 0) if dilated.min() >= 0 else []

    def ends(self, tail, angle):
        head = move(tail, angle, self.s.length)
        pivot = move(head, flip(angle), self.s.length + self.margin)
        within = all(0 <= at < self.s.window for at in (*head, *pivot))
        return pivot, within

    def seed(self, taken, contrast):
        """Line, mask, pivot, angle and tail of a first paddle."""
        for _ in range(3):
            degree = self.below(360) - 180
            free = self.free_pixels(taken, degree)
            if not len(free):
                raise Failed
            tail = free[self.below(len(free))].tolist()
            pivot, within = self.ends(tail, degree * math.pi / 180)
            if within:
                return *self.paddle(tail, degree * math.pi / 180, contrast), pivot, degree * math.pi / 180, tail
        raise Failed

    def seed_beside(self, other, contrast):
        for _ in range(3):
            angle = (self.below(360) - 180) * math.pi / 180
            towards = self.below(360) * math.pi / 180
            by = self.s.seed_distance
            tail = [
                int(np.round(other[0] + by * math.sin(towards))),
                int(np.round(other[1] + by * math.cos(towards))),
            ]
            pivot, within = self.ends(tail, angle)
            if within:
                return *self.paddle(tail, angle, contrast), pivot, angle, tail
        raise Failed

    def extend(self, taken, pivot, angle, contrast):
        """Line, mask, pivot, angle and start of a contour's next paddle."""
        s, m = self.s, self.margin
        pivot = move(pivot, angle, s.length + 2 * m)
        dilated = dilate(taken, disc(m))
        radius = s.length + m
        turns = np.arange(0, 360, 360 / (2 * radius * math.pi)) * math.pi / 180
        circle = np.stack([pivot[0] + radius * np.sin(turns), pivot[1] + radius * np.cos(turns)], 1)
        circle = circle[((circle >= 0) & (circle < s.window)).all(1)].astype(int)
        if not len(circle):
            raise Failed
        ends = np.unique(circle, axis=0)
        angles = np.arctan2(*(ends - pivot).T)
        apart = np.abs(angles - angle)
        bend = np.minimum(s.continuity * np.minimum(apart, 2 * math.pi - apart), math.pi / 2)
        weights = np.maximum(np.cos(bend), 0) ** 2 * (1 - dilated[tuple(ends.T)])
        if weights.sum() < 1e-4:
            raise Failed
        law = np.cumsum(weights / weights.sum())
        for _ in range(3):
            chosen = int(np.argmax(law > self.uniform()))
            end, angle = ends[chosen].tolist(), float(angles[chosen])
            line, mask = self.paddle(end, flip(angle), contrast)
            if np.rint(255 * (taken + mask)).max() < 459:  # 1.8, in whole 255ths
                return line, mask, pivot, angle, end
        raise Failed

    def targets(self):
        s = self.s
        taken = np.ones((s.window, s.window))
        taken[s.padding : -s.padding, s.padding : -s.padding] = 0
        band = 2 * s.seed_distance
        first = np.ones_like(taken)
        first[band:-band, band:-band] = taken[band:-band, band:-band]
        one = self.seed(first, s.target_contrast)
        contours = [[one], [self.seed_beside(one[4], s.target_contrast)]]
        for _ in range(s.contour_length - 1):
            for contour in contours:
                _, mask, pivot, angle, _ = contour[-1]
                contour.append(self.extend(taken, pivot, angle, s.target_contrast))
                taken = np.maximum(taken, mask)
        return contours, np.maximum(taken, contours[1][-1][1])

    def distractor(self, taken):
        s = self.s
        framed = taken.copy()
        framed[[0, -1]] = framed[:, [0, -1]] = 1
        if np.mean(np.ceil(taken - 0.3) <= 0) < 0.01:
            raise Failed
        contour = [self.seed(framed, s.distractor_contrast)]
        for _ in range(s.distractor_length - 1):
            _, mask, pivot, angle, _ = contour[-1]
            contour.append(self.extend(taken, pivot, angle, s.distractor_contrast))
            taken = np.maximum(taken, mask)
        return contour, np.maximum(taken, contour[-1][1])

    # ---- the image ----

    def marker(self, at):
        side = self.s.window * SCALE
        y, x = np.mgrid[:side, :side]
        inner = (y - at[0] * SCALE) ** 2 + (x - at[1] * SCALE) ** 2 <= (self.s.radius * SCALE) ** 2
        return shrink((255 * inner).astype(np.uint8), self.s.window) / 255

    def image(self):
        """Pixels, label, margin, pairs tried, distractors drawn, and every paddle's start (y, x)."""
        pairs = 0
        while True:
            pairs += 1
            try:
                contours, taken = self.targets()
                break
            except Failed:
                continue
        distractors = []
        for _ in range(self.s.distractors):
            for _ in range(5):
                try:
                    contour, taken = self.distractor(taken)
                except Failed:
                    continue
                distractors.append(contour)
                break
        marked = self.below(2)
        other = marked if self.label else 1 - marked
        tips = contours[marked][0][4], contours[other][-1][4]
        layers = [paddle[0] for contour in [*contours, *distractors] for paddle in contour]
        picture = np.max([*layers, *map(self.marker, tips)], axis=0)
        # contrasts are multiples of 1/20, so 5100ths are whole numbers: halves are rounded as such
        shades = np.rint(picture * 5100).astype(int)
        shades -= shades.min()
        pixels = (510 * shades + shades.max()) // (2 * shades.max())
        starts = [paddle[4] for pair in zip(*contours, strict=True) for paddle in pair]
        starts += [paddle[4] for contour in distractors for paddle in contour]
        return pixels.astype(np.uint8), self.label, self.margin, pairs, len(distractors), starts
