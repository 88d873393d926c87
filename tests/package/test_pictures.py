"""Every picture that README and docs show is drawn by a command: benchmarks.pictures, or that of its training."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pictures, training

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
SHOWN = {
    name
    for page in PAGES
    for name in re.findall(r"benchmarks/results/([^)]+\.png)\)", page.read_text(encoding="utf-8"))
}
ON_A_GPU = "listops-2048-gpu"
"""Trained by the command that its page has, on another machine."""


def facts(path: Path) -> tuple[int, ...]:
    """Width, height, depth and kind of colour, from the head of a PNG."""
    head = path.read_bytes()[:26]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">IIBB", head[16:26])


def test_pictures_are_shown_and_have_a_command() -> None:
    """There are no others in the tree."""
    kept = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.png")}
    assert kept == SHOWN
    trained = {name.removeprefix("training/") for name in SHOWN if name.startswith("training/")}
    assert set(pictures.PICTURES) <= SHOWN
    assert all(name in pictures.PICTURES or name.startswith("training/") for name in SHOWN)
    for name in trained:
        (of,) = (one for one in (*training.TRAININGS, ON_A_GPU) if re.fullmatch(rf"{one}-[a-z_]+\.png", name))
        assert f"]({name})" in (training.FOLDER / f"{of}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_drawn_in_a_short_form(name: str, tmp_path: Path) -> None:
    assert facts(pictures.draw(name, tmp_path, short=True)) == facts(RESULTS / name)


def test_no_panel_is_filled() -> None:
    """Of three states that turn up to 2 pi a step, the lines of all 16,000 steps cover their panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = pictures.PICTURES["lru-figures.png"](True)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3]
    for axes in figure.axes:
        x0, y0, x1, y1 = (round(one) for one in axes.get_window_extent().extents)
        panel = drawn[len(drawn) - y1 : len(drawn) - y0, x0:x1]
        assert (panel.min(2) > 200).mean() > 0.5  # white, or a line of the grid
