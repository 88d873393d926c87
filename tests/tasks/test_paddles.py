"""The pictures of Pathfinder's images, compared bit by bit with Pillow and SciPy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from scipy import ndimage

from rotrnn.tasks.paddles import SCALE, PaddleShape, disc, line, markers, paddle, paddles, shrink, widened
from rotrnn.tasks.pathfinder import GEOMETRIES

SHAPES = sorted(
    {
        PaddleShape(g.paddle_length, g.paddle_thickness, margin, g.continuity)
        for g in GEOMETRIES.values()
        for margin in g.margins
    }
)
RING = PaddleShape(2, 0.5, 1, 1.0)


def pillow_line(side, start, end, width):
    canvas = Image.new("F", (side, side), 0)
    ImageDraw.Draw(canvas).line([start[::-1], end[::-1]], fill=255, width=width)
    return np.array(canvas)


def pillow_shrink(picture, side):
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_lines_are_those_of_pillow(width):
    """Every end point up to 10 pixels away."""
    for y in range(2, 23):
        for x in range(2, 23):
            ours = line(25, (12, 12), (y, x), width)
            np.testing.assert_array_equal(ours, pillow_line(25, (12, 12), (y, x), width), err_msg=f"to {y}, {x}")


@given(st.integers(1, 60), st.integers(0, 59), st.integers(0, 2**32 - 1), st.booleans())
def test_shrinking_is_that_of_pillow(size, less, seed, two_levels):
    picture = np.random.default_rng(seed).integers(0, 256, (size, size), np.uint8)
    if two_levels:
        picture = np.where(picture > 127, 255, 0).astype(np.uint8)
    side = max(1, size - less)
    np.testing.assert_array_equal(shrink(picture, side), pillow_shrink(picture, side))


@pytest.mark.parametrize("radius", [0, 1, 2, 3, 1.5])
def test_discs(radius):
    whole = {(y, x) for y in range(-3, 4) for x in range(-3, 4) if y * y + x * x <= radius * radius}
    assert {tuple(offset) for offset in disc(radius).tolist()} == whole
    assert len(disc(radius)) == len(whole)


@pytest.mark.parametrize("shape", SHAPES)
def test_paddles_by_pillow_and_scipy(shape):
    """Compares all paddles of a shape with those of the original generator."""
    table = paddles(shape)
    length, thickness, margin, _ = shape
    assert len(table.lines) == len(table.masks) == 360 + len(table.ends)
    middle, side = shape.half * SCALE, 2 * shape.half + 1
    around = np.hypot(*np.mgrid[-margin * SCALE : margin * SCALE + 1, -margin * SCALE : margin * SCALE + 1])
    for i in range(0, len(table.lines), 1 if shape == RING else 7):
        if i < 360:
            angle = (i - 180) * math.pi / 180
        else:  # from the circle back to the pivot
            y, x = table.ends[i - 360]
            assert length + margin - 2 < math.hypot(y, x) < length + margin + 2
            angle = math.atan2(-y, -x)
        end = [math.ceil(middle + length * SCALE * turn) for turn in (math.sin(angle), math.cos(angle))]
        large = pillow_line(2 * middle + 1, (middle, middle), end, round(thickness * SCALE))
        np.testing.assert_array_equal(table.lines[i], pillow_shrink(large.astype(np.uint8), side))
        mask = ndimage.grey_dilation(large, footprint=around <= margin * SCALE, mode="constant")
        np.testing.assert_array_equal(table.masks[i], pillow_shrink(mask.astype(np.uint8), side))
        np.testing.assert_array_equal(widened(large.astype(np.uint8), margin * SCALE), mask)


def test_a_paddle_by_hand():
    """A paddle straight to the right: the line starts in the middle, the mask surrounds it, both after shrinking."""
    drawn, mask = paddle(RING, 0.0)
    assert drawn.shape == mask.shape == (9, 9)
    assert drawn[4].argmax() in (4, 5, 6)
    assert (drawn[4, 4:7] > 80).all()
    assert (drawn[:3] == 0).all()
    assert (mask[4, 4:7] == 255).all()
    assert (mask[3:6, 4:7] > 150).all()


def test_the_law_of_the_next_end():
    """Straight ahead is more likely than any bend, backwards is impossible, and left is as likely as right."""
    for shape in SHAPES:
        table = paddles(shape)
        angles = np.arctan2(*table.ends.T)
        for way, straight in ((180, 0.0), (270, math.pi / 2), (45, -0.75 * math.pi)):
            weights = table.weights[way]
            bend = np.abs((angles - straight + math.pi) % (2 * math.pi) - math.pi)
            assert weights[bend.argmin()] == weights.max() <= 2**24
            assert (weights[bend * shape.continuity > math.pi / 2] == 0).all()
            exact = np.cos(np.minimum(bend * shape.continuity, math.pi / 2)) ** 2 * 2**24
            assert np.abs(weights - exact).max() <= 0.5 + 2**24 * 1e-15


def test_weights_are_sums_that_fit():
    """A draw of 24 bits times the total weight, each end's with 255, is below 2**64."""
    for shape in SHAPES:
        assert paddles(shape).weights.sum(1).max() * 255 * 2**24 < 2**64


@pytest.mark.parametrize("resolution", GEOMETRIES)
def test_markers_in_a_whole_window(resolution):
    """Compares with Pillow in the full window, at its edges and at random positions."""
    radius = GEOMETRIES[resolution].marker_radius
    stamps = markers(radius, resolution)
    side = len(stamps)
    y, x = np.mgrid[: resolution * SCALE, : resolution * SCALE]
    last = resolution - 1
    for at_y, at_x in [(0, 0), (0, last), (last, 1), (2, 3), (last - 2, last // 2), (last // 2, last // 2 - 1)]:
        inner = (y - at_y * SCALE) ** 2 + (x - at_x * SCALE) ** 2 <= (radius * SCALE) ** 2
        window = pillow_shrink(np.where(inner, 255, 0).astype(np.uint8), resolution)
        cy, cx = (max(min(at, side // 2), at - (resolution - side)) for at in (at_y, at_x))
        ours = np.zeros_like(window)
        ours[at_y - cy : at_y - cy + side, at_x - cx : at_x - cx + side] = stamps[cy, cx]
        np.testing.assert_array_equal(ours, window)
