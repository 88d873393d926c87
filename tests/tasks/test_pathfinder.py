"""Pathfinder's images: equality with a slow reference, statistics, and the meaning of the labels."""

import hashlib
import math
import re

import numpy as np
import pytest
from pathfinder_reference import Generator
from pathfinder_reference import Settings as Reference
from scipy import ndimage

from rotrnn import _cpu
from rotrnn.tasks import TASKS, Pathfinder, describe
from rotrnn.tasks.order import torch_random_order
from rotrnn.tasks.paddles import PaddleShape, paddles
from rotrnn.tasks.task import Exhausted


def reference(task):
    g = task.geometry
    distractors, length = task.distractor_paddles()
    return Reference(
        task.resolution,
        g.padding,
        g.paddle_length,
        g.paddle_thickness,
        g.margins,
        g.marker_radius,
        g.seed_distance,
        g.continuity,
        task.contour_length,
        distractors,
        length,
        g.target_contrast,
        g.distractor_contrast,
    )


@pytest.fixture(scope="module")
def small():
    return {distractors: Pathfinder(distractors=distractors).images(np.arange(1000)) for distractors in (5, 10)}


@pytest.fixture(scope="module")
def path_x():
    tasks = {count: Pathfinder(resolution=128, distractors=count) for count in (8, 17)}
    return {distractors: task.images(np.arange(200)) for distractors, task in tasks.items()}


# ---- single images ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "images", "fewest"),
    [
        ({"resolution": 16, "contour_length": 4, "seed": 1}, 6, 1),
        ({"resolution": 32, "seed": 2**40 + 5}, 6, 20),
        ({"resolution": 32, "contour_length": 6, "distractors": "recomputed", "seed": 2}, 6, 1),
        ({"resolution": 64}, 2, 10),
        ({"resolution": 128}, 2, 2),
        ({"resolution": 128, "contour_length": 9, "distractors": 3, "distractor_length": 2, "seed": 7}, 1, 1),
        ({"resolution": 256}, 1, 1),
    ],
)
def test_images_as_the_reference_draws_them(settings, images, fewest):
    """Equal bit for bit, from the same random words. Only images with few tries are compared, because the reference is
    slow."""
    task = Pathfinder(**settings)
    drawn = task.images(np.arange(200))
    order = np.argsort(drawn.pairs, kind="stable")
    chosen = order[drawn.pairs[order] >= fewest][:images]
    assert len(chosen) == images
    for i in chosen:
        pixels, label, margin, pairs, distractors, starts = Generator(reference(task), task.seed, int(i)).image()
        facts = (drawn.labels[i], drawn.margins[i], drawn.pairs[i], drawn.distractors[i])
        assert facts == (label, margin, pairs, distractors)
        np.testing.assert_array_equal(drawn.paddles[i, : len(starts), 1:], starts)
        assert (drawn.paddles[i, len(starts) :] == -1).all()
        np.testing.assert_array_equal(drawn.pixels[i], pixels)


def test_an_image_depends_on_seed_and_number_alone():
    index = np.array([5, 2**40 + 3, 0, 5, 17])
    task = Pathfinder(resolution=128)
    ones = task.images(index)
    for row, i in enumerate(index):
        alone = task.images(np.array([i]))
        for one, other in zip(ones, alone, strict=True):
            np.testing.assert_array_equal(one[row], other[0])
    np.testing.assert_array_equal(task.labels(index), ones.labels)
    assert set(ones.margins) == {2, 3}
    others = {Pathfinder(seed=seed).images(index).pixels.tobytes() for seed in (0, 1, 2**32, 2**63 - 1)}
    assert len(others) == 4


def test_few_are_the_beginning_of_many(small):
    few = Pathfinder(distractors=10).images(np.arange(30))
    for one, other in zip(few, small[10], strict=True):
        np.testing.assert_array_equal(one, other[:30])


DIGEST = "b58db14d3021829392d0fe1f05ffeaedefb644e810b7a53bcad2f72f2da2dbef"


def digest():
    settings = ({"resolution": 16, "contour_length": 3}, {"resolution": 32}, {"resolution": 128})
    parts = [np.ascontiguousarray(part) for one in settings for part in Pathfinder(**one).images(np.arange(9))]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


@pytest.mark.slow
def test_same_bytes_for_any_number_of_threads_and_instruction_set():
    """The bytes are also compared with a recorded hash, so that image i of a seed never changes."""
    threads, simd = _cpu.threads(), _cpu.simd()
    try:
        for count in (1, 2, 7):
            _cpu.use_threads(count)
            assert digest() == DIGEST
        for name in _cpu.SIMD_AVAILABLE:
            _cpu.use_simd(name)
            assert digest() == DIGEST
    finally:
        _cpu.use_threads(threads)
        _cpu.use_simd(simd)


def test_no_images():
    assert Pathfinder().images(np.arange(0)).pixels.shape == (0, 32, 32)


def test_contours_that_do_not_fit():
    with pytest.raises(Exhausted, match=r"no two contours of 60 paddles fit into 16 x 16 pixels"):
        Pathfinder(resolution=16, contour_length=60).images(np.arange(1))


# ---- statistics ----

MEASURED = {  # of the original: pairs tried, distractors, mean pixel, deviation, share above 0, share above 127
    (32, 5): (300, 1.3, 20.4, 51.2, 0.345, 0.086),
    (32, 10): (295, 2.3, 22.4, 53.2, 0.378, 0.093),
    (128, 8): (361, 7.6, 7.9, 35.7, 0.136, 0.030),
    (128, 17): (345, 15.2, 11.6, 42.3, 0.204, 0.044),
}
ROUNDED = (0.5, 0.05, 0.05, 0.05, 0.0005, 0.0005)
IMAGES = {32: 300, 128: 24}


@pytest.mark.slow
@pytest.mark.parametrize(("resolution", "distractors"), MEASURED)
def test_statistics_of_the_original(small, path_x, resolution, distractors):
    """Each is within three standard errors of both samples combined, plus the rounding of the printed values.

    The spread between images is taken from ours. The deviation of all pixels, sqrt(<x^2> - <x>^2), varies with an
    image's means as (<x^2> - 2 <x> mean) / (2 deviation).
    """
    images = (small if resolution == 32 else path_x)[distractors]
    pixels = images.pixels.reshape(len(images.pixels), -1).astype(float)
    mean, deviation = pixels.mean(), pixels.std()
    means, squares = pixels.mean(1), (pixels**2).mean(1)
    samples = [
        (images.pairs.mean(), images.pairs),
        (images.distractors.mean(), images.distractors),
        (mean, means),
        (deviation, (squares - 2 * mean * means) / (2 * deviation)),
        (np.mean(pixels > 0), (pixels > 0).mean(1)),
        (np.mean(pixels > 127), (pixels > 127).mean(1)),
    ]
    for (ours, each), theirs, rounded in zip(samples, MEASURED[resolution, distractors], ROUNDED, strict=True):
        error = each.std(ddof=1) * math.sqrt(1 / len(each) + 1 / IMAGES[resolution])
        assert abs(ours - theirs) <= 3 * error + rounded


@pytest.mark.slow
def test_where_contours_start(small, path_x):
    """At 32 between bands of 14 pixels; at 128, of 40, anywhere between: less than the least paddle needs of them."""
    starts = small[10].paddles[:, 0, 1:]
    assert set(np.unique(starts)) == {14, 15, 16}
    starts = path_x[17].paddles[:, 0, 1:]
    assert 40 <= starts.min() <= 45  # none in these has probability (40 / 46)**400
    assert 80 <= starts.max() <= 85


@pytest.mark.parametrize("resolution", [16, 32, 64, 128, 256])
def test_second_contours_start_at_the_seed_distance(resolution):
    task = Pathfinder(resolution=resolution, contour_length=3)
    starts = task.images(np.arange(100)).paddles[:, :2, 1:]
    away = np.hypot(*(starts[:, 0] - starts[:, 1]).T)
    assert np.abs(away - task.geometry.seed_distance).max() <= math.sqrt(0.5)  # both coordinates are rounded


def test_labels_and_marked_contours_are_even():
    """Within four deviations of a fair coin, probability 6e-5; labels are the published task's 50/50."""
    images = Pathfinder(resolution=16, contour_length=3).images(np.arange(4000))
    bound = 4 * math.sqrt(0.25 / 4000)
    assert abs(images.labels.mean() - 0.5) <= bound
    assert abs(images.marked.mean() - 0.5) <= bound
    assert abs(np.mean(images.labels == images.marked) - 0.5) <= bound
    margins = Pathfinder(resolution=128, contour_length=2, distractors=0).images(np.arange(1000)).margins
    assert abs(np.mean(margins == 2) - 0.5) <= 4 * math.sqrt(0.25 / 1000)


@pytest.mark.parametrize(("resolution", "count"), [(16, 400), (32, 400), (64, 100), (128, 40)])
def test_markers_are_white_unless_a_paddle_is_brighter(resolution, count):
    """A marker is 1, a paddle its picture times its contrast, and the brightest of all is 255: a marker is dimmer in
    proportion, where a paddle outshines it. At 32 most images have such a one, by contrasts 1.5 and 2."""
    task = Pathfinder(resolution=resolution, contour_length=4 if resolution == 16 else 14)
    last, g = 2 * (task.contour_length - 1), task.geometry
    images = task.images(np.arange(count))
    contrasts = np.full(images.paddles.shape[1], g.distractor_contrast)
    contrasts[: last + 2] = g.target_contrast
    dimmer = 0
    for at, (pixels, row) in enumerate(zip(images.pixels, images.paddles, strict=True)):
        shape = PaddleShape(g.paddle_length, g.paddle_thickness, int(images.margins[at]), g.continuity)
        there = row[:, 0] >= 0
        peaks = paddles(shape).lines[row[there, 0]].max((1, 2)) / 255
        brightest = (contrasts[there] * peaks).max()
        start = images.marked[at]
        end = start if images.labels[at] else 1 - start
        for y, x in row[[start, last + end], 1:]:
            if brightest > 1:
                assert pixels[y, x] == round(255 / brightest) < 255
            else:
                assert pixels[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].max() == 255
        dimmer += brightest > 1
    assert dimmer > count / 2 if resolution == 32 else dimmer == 0


# ---- labels ----


def disc(radius):
    return np.hypot(*np.mgrid[-radius : radius + 1, -radius : radius + 1]) <= radius


@pytest.mark.slow
@pytest.mark.parametrize(("resolution", "core", "least"), [(64, 1, 20), (128, 2, 60), (256, 4, 80)])
def test_labels_by_the_image_alone(resolution, core, least):
    """Nothing is used but pixels and the published margin. Without distractors, gaps within a contour close when all
    that is bright grows by a pixel more than the margin. Where exactly two shapes are left, each is a contour; then
    the two spots that are more than paddles, the markers, must lie on one of them, or on both, as the label says.
    Of 200 images there are at least `least` such."""
    images = Pathfinder(resolution=resolution, distractors=0, seed=3).images(np.arange(200))
    told = 0
    for pixels, label, margin in zip(images.pixels, images.labels, images.margins, strict=True):
        spots, count = ndimage.label(ndimage.binary_erosion(pixels > 150, disc(core)))
        shapes, contours = ndimage.label(ndimage.binary_dilation(pixels > 40, disc(margin + 1)), np.ones((3, 3)))
        if count == contours == 2:
            on = [shapes[spots == spot][0] for spot in (1, 2)]
            assert (on[0] == on[1]) == bool(label)
            told += 1
    assert told >= least


@pytest.mark.slow
@pytest.mark.parametrize("resolution", [16, 32, 64, 128, 256])
def test_labels_by_tracing_the_contours(resolution):
    """Contours are traced along their paddles' ends, paddle by paddle: from each to the next it is no further than the
    two margins, the rounding of the moves and that of the ends. The tips that are found are looked at in the image: one
    of the two that contours start from is marked, and one of those they end at, on the same if the label is 1."""
    task = Pathfinder(resolution=resolution, contour_length=4 if resolution == 16 else 14, seed=11)
    length, g = task.contour_length, task.geometry
    images = task.images(np.arange(150))
    seen = 0
    for pixels, label, margin, row in zip(images.pixels, images.labels, images.margins, images.paddles, strict=True):
        ends = paddles(PaddleShape(g.paddle_length, g.paddle_thickness, int(margin), g.continuity)).ends
        tips = []
        for k in (0, 1):
            ways, starts = row[k : 2 * length : 2, 0], row[k : 2 * length : 2, 1:]
            assert ways[0] < 360 <= ways[1:].min()
            inner = [starts[0] + g.paddle_length * direction((ways[0] - 180) * math.pi / 180)]
            inner += [
                start - g.paddle_length * direction(math.atan2(*ends[way - 360]))
                for way, start in zip(ways[1:], starts[1:], strict=True)
            ]
            leaves = np.array([inner[0], *starts[1:-1]])  # the end of each paddle that the next one comes after
            gaps = np.hypot(*(np.array(inner[1:]) - leaves).T)
            assert gaps.max() <= 2 * margin + 2 * math.sqrt(2)
            tips.append((starts[0], starts[-1]))
        lit = [[bright(pixels, tip, g.marker_radius) for tip in pair] for pair in tips]
        if sum(map(sum, lit)) > 2:
            continue  # a tip lies in another's marker
        seen += 1
        assert lit[0][0] + lit[1][0] == lit[0][1] + lit[1][1] == 1
        assert (lit[0][0] == lit[0][1]) == bool(label)
    assert seen >= 100


def direction(angle):
    return np.array([math.sin(angle), math.cos(angle)])


def bright(pixels, tip, radius):
    """Whether the image is as bright as a marker all over the middle of one: half at least, beside the brightest
    contrast of 2. A paddle is thinner than that."""
    reach = 2 if radius >= 3 else 1
    return all(
        pixels[y, x] >= 120
        for y, x in tip + np.argwhere(disc(reach)) - reach
        if 0 <= y < len(pixels) and 0 <= x < len(pixels)
    )


# ---- the task ----


def test_splits_and_features():
    settings = {"resolution": 16, "contour_length": 3, "train": 30, "val": 6, "test": 4}
    task = Pathfinder(**settings).load()
    assert (task.n_classes, task.vocab, task.n_features, task.head) == (2, None, 1, "classifier")
    assert [len(split) for split in (task.train, task.val, task.test)] == [30, 6, 4]
    order = torch_random_order(40)
    images = Pathfinder(**settings).images(order)
    for split, first in ((task.train, 0), (task.val, 30), (task.test, 36)):
        index = np.array([1, 0, 3])
        batch = split.batch(index, np.float64)
        assert batch.inputs.shape == (3, 256, 1)
        assert batch.inputs.dtype == np.float64
        assert batch.lengths is None
        pixels = images.pixels[first + index].reshape(3, 256, 1)  # row by row
        np.testing.assert_array_equal(batch.inputs, (pixels / 255 - 0.5) / 0.5)
        np.testing.assert_array_equal(batch.labels, images.labels[first + index])
        labels, lengths = split.labels_and_lengths(index)
        np.testing.assert_array_equal(labels, batch.labels)
        assert lengths.tolist() == [256] * 3
    plain = Pathfinder(**settings, center=False).load().train.batch(np.arange(3))
    assert plain.inputs.dtype == np.float32
    np.testing.assert_array_equal(plain.inputs[..., 0], np.float32(images.pixels[:3].reshape(3, 256) / 255))


def test_published_settings_are_the_defaults():
    task = TASKS["pathfinder"]()
    assert (task.train, task.val, task.test) == (160_000, 20_000, 20_000)
    assert (task.resolution, task.contour_length, task.center) == (32, 14, True)
    once = {resolution: Pathfinder(resolution=resolution).distractor_paddles() for resolution in (32, 64, 128, 256)}
    assert once == {32: (10, 4), 64: (11, 4), 128: (17, 4), 256: (15, 4)}
    for length, counts in ((14, (5, 5, 8, 7)), (6, (10, 11, 17, 15))):
        for resolution, count in zip((32, 64, 128, 256), counts, strict=True):
            task = Pathfinder(resolution=resolution, contour_length=length, distractors="recomputed")
            assert task.distractor_paddles() == (count, length // 3)
    assert Pathfinder(distractors=3, distractor_length=2).distractor_paddles() == (3, 2)


def test_describe_draws_no_image(monkeypatch):
    monkeypatch.setattr(Pathfinder, "images", None)
    text = describe(Pathfinder(resolution=128).load())
    assert text.startswith("path-x: 2 classes, 1 feature(s) per step\n")
    assert re.search(r"^train +160000 +16384 ", text, re.M)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resolution": 48}, "resolution is 48, expected one of 16, 32, 64, 128, 256"),
        ({"distractors": "twice"}, "distractors is 'twice', expected once or recomputed, or a number"),
        ({"distractors": -1}, "distractors is -1, expected an integer from 0"),
        ({"contour_length": 1}, "contour_length is 1, expected an integer from 2"),
        ({"distractor_length": 0}, "distractor_length is 0, expected an integer from 1"),
        ({"train": 0}, "train is 0, expected an integer from 1"),
        ({"seed": -1}, "seed is -1, expected an integer from 0"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"^Pathfinder: {re.escape(message)}"):
        Pathfinder(**settings)
