"""The page that recognises digits, in headless Chromium: the C library as WebAssembly gives the numbers that it gives
otherwise, and digits that are drawn by mouse and by finger are recognised. `make examples` fails without a browser."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import librotrnn
from librotrnn import ROOT, Array
from tests.lib.chromium import Page, chromium
from tests.lib.test_examples_in_c import FOLDER, file_of, run

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        not (
            (ROOT / "csrc").exists() and chromium() and all(map(shutil.which, ("make", "clang", "wasm-ld", "llvm-ar")))
        ),
        reason="needs the sources, Chromium, and clang, lld, llvm and wasi-libc for WebAssembly",
    ),
]


def arc(x: float, y: float, width: float, height: float, first: float, last: float) -> list[tuple[float, float]]:
    """Points of an ellipse around (x, y), by parts of a turn; 0 is the top, and turns go clockwise."""
    turn = 2 * np.pi * np.linspace(first, last, 20)
    return list(zip(x + width * np.sin(turn), y - height * np.cos(turn), strict=True))


DRAWN = {
    0: [arc(0.5, 0.5, 0.2, 0.3, 0, 1)],
    1: [[(0.38, 0.32), (0.52, 0.2), (0.52, 0.8)]],
    2: [[*arc(0.5, 0.36, 0.18, 0.16, -0.22, 0.35), (0.32, 0.8), (0.7, 0.8)]],
    3: [[*arc(0.47, 0.35, 0.17, 0.15, -0.15, 0.5), *arc(0.47, 0.65, 0.19, 0.15, 0, 0.65)]],
    4: [[(0.55, 0.2), (0.3, 0.6), (0.72, 0.6)], [(0.6, 0.4), (0.56, 0.82)]],
    5: [[(0.66, 0.2), (0.38, 0.2), (0.36, 0.47), *arc(0.48, 0.62, 0.18, 0.18, -0.12, 0.62)]],
    6: [[(0.6, 0.2), (0.42, 0.42), *arc(0.5, 0.64, 0.16, 0.16, -0.2, 0.8)]],
    7: [[(0.3, 0.22), (0.7, 0.22), (0.42, 0.8)], [(0.38, 0.5), (0.64, 0.5)]],
    8: [[*arc(0.5, 0.35, 0.14, 0.14, 0.5, 1.5), *arc(0.5, 0.66, 0.17, 0.17, 0, 1)]],
    9: [[*arc(0.5, 0.37, 0.16, 0.16, 0.25, 1.25), (0.64, 0.5), (0.56, 0.82)]],
}
"""Digits as a hand draws them, in strokes of points from the top left (0, 0) to the bottom right (1, 1)."""


@pytest.fixture(scope="module")
def built() -> Path:
    librotrnn.make("page", makefile="examples/c/Makefile", EXAMPLES=str(FOLDER))
    return ROOT / FOLDER / "digits.html"


@pytest.fixture(scope="module")
def tab(built: Path) -> Iterator[Page]:
    with Page(built) as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """The page, cleared; it must have no errors in the end."""
    tab.run("element('clear').click()")
    yield tab
    assert tab.run("element('problem').textContent") == ""
    assert not tab.errors


def of_program(images: Array) -> Array:
    """The probabilities (n, 10) that the program gives for images (n, 64)."""
    done = run("digits", file_of("digits"), given="\n".join(" ".join(map(str, one)) for one in images).encode())
    return np.array([[float(word) for word in line.split()[1:]] for line in done.stdout.splitlines()])


def shown(page: Page) -> tuple[int, list[float]]:
    """The digit in bold, and the percentages as they are printed."""
    best = page.run("[...element('bars').children].findIndex(bar => bar.className == 'best')")
    return best, page.run("[...element('bars').children].map(bar => parseFloat(bar.lastChild.textContent))")


def draw(page: Page, strokes: list[list[tuple[float, float]]], touch: bool = False) -> None:
    left, top, side = page.run("(box => [box.left, box.top, box.width])(paper.getBoundingClientRect())")
    for stroke in strokes:
        first, *others = [(left + side * x, top + side * y) for x, y in stroke]
        if touch:
            page.touch("touchStart", first)
            for point in others:
                page.touch("touchMove", point)
            page.touch("touchEnd")
        else:
            page.mouse("mousePressed", *first)
            for point in others:
                page.mouse("mouseMoved", *point)
            page.mouse("mouseReleased", *(others or [first])[-1])


def test_predictions_are_those_of_the_program(page: Page, tmp_path: Path) -> None:
    """A hundred images of the test split. The instruction set is another, so that sums are, to rounding."""
    from rotrnn.tasks import Digits

    Digits().write(tmp_path)
    images = np.loadtxt(tmp_path / "digits_test.csv", delimiter=",", skiprows=1)[:100, :-1]
    got = np.array(page.run(f"{images.astype(int).tolist()}.map(image => recognise(image))")).reshape(-1, 8, 10)
    assert np.abs(got.sum(2) - 1).max() < 1e-5
    expected = of_program(images)
    assert np.abs(got[:, -1] - expected).max() < 1e-4
    assert np.array_equal(got[:, -1].argmax(1), expected.argmax(1))


@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "finger"])
def test_drawn_digits(page: Page, touch: bool) -> None:
    """Each is recognised, and what is shown is what the program says of the pixels that the page made."""
    for digit, strokes in DRAWN.items():
        page.run("element('clear').click()")
        draw(page, strokes, touch)
        best, percentages = shown(page)
        pixels = np.array(page.run("pixelsOf(strokes)"))
        assert ((pixels >= 0) & (pixels <= 16)).all()
        (expected,) = of_program(pixels[None])
        assert np.abs(100 * expected - percentages).max() < 0.06  # printed to a tenth
        assert best == digit, (pixels.reshape(8, 8), percentages)


def test_where_and_how_large_it_is_drawn_does_not_matter(page: Page) -> None:
    """The bitmap may differ by a dot where an edge is between two dots."""
    images = []
    for scale, x, y in ((1, 0, 0), (0.5, 0.02, 0.05), (0.6, 0.35, 0.3)):
        page.run("element('clear').click()")
        draw(page, [[(x + scale * a, y + scale * b) for a, b in stroke] for stroke in DRAWN[3]])
        images.append(np.array(page.run("pixelsOf(strokes)")))
        assert shown(page)[0] == 3
    assert max(np.abs(one - images[0]).max() for one in images) <= 3


def test_drawings_that_are_hardly_any(page: Page) -> None:
    """Nothing, a dot, a line across, one down: numbers from 0 to 16 and probabilities, or none."""
    assert shown(page)[0] == -1
    assert page.run("pixelsOf(strokes)") == [0] * 64
    for stroke in ([(0.5, 0.5)], [(0.1, 0.5), (0.9, 0.5)], [(0.5, 0.1), (0.5, 0.9)], [(0.3, 0.3), (0.3, 0.3)]):
        page.run("element('clear').click()")
        draw(page, [stroke])
        pixels = np.array(page.run("pixelsOf(strokes)"))
        assert 0 < pixels.max() <= 16
        assert sum(shown(page)[1]) == pytest.approx(100, abs=0.5)
    page.run("element('clear').click()")
    assert shown(page)[0] == -1


@pytest.mark.parametrize("size", [(1000, 700), (360, 800)], ids=["wide", "narrow"])
def test_widths(page: Page, size: tuple[int, int], built: Path) -> None:
    """Nothing is wider than the window, and nothing overlaps. The picture is left beside the page, to be looked at."""
    page.resize(*size)
    draw(page, DRAWN[3])
    page.picture(built.with_name(f"digits-{size[0]}.png"))
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    boxes = page.run(
        "[paper, ...['clear', 'bars', 'seen', 'rows'].map(element)]"
        ".map(one => one.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom])"
    )
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= size[0]
        for other in boxes[:i]:
            assert left >= other[2] or right <= other[0] or top >= other[3] or bottom <= other[1]


def test_the_page_is_one_file_and_uses_no_network(built: Path) -> None:
    """It is opened as a file; it names no other, and no address."""
    text = built.read_text(encoding="utf-8")
    assert not re.search(r"https?://|\bsrc=|\bhref=|@import|fetch\(|url\(", text)
    assert not re.search(r"^@\w+@$", text, re.MULTILINE)


def test_a_damaged_model_is_told(built: Path, tmp_path: Path) -> None:
    model = bytearray(file_of("digits").read_bytes())
    model[-1] ^= 1
    broken = tmp_path / "digits.html"
    text = built.read_text(encoding="utf-8")
    before, mark, rest = text.partition('id="model">')
    broken.write_text(
        before + mark + base64.b64encode(model).decode() + rest[rest.index("</script>") :], encoding="utf-8"
    )
    with Page(broken) as page:
        problem: Any = page.run("element('problem').textContent")
        assert page.run("document.body.dataset.ready") == "no"
        assert problem.startswith("The page cannot start: ")
        assert "checksum" in problem or "damaged" in problem or "changed" in problem, problem
