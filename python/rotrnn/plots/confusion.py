"""Confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rotrnn._support.text import plural
from rotrnn.ops.boundary import Array
from rotrnn.plots.style import Given, Sheet, as_text, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 12
"""Up to this many classes, every cell shows its number."""
MOST = 40
"""Maximum number of classes in a figure."""
LONGEST = 48
"""Maximum number of characters of a class's name in a figure; the middle of a longer name is left out."""


def most_confused(counts: Array) -> Array:
    """Returns the classes that occur as a label or an answer: in order if they are few, otherwise the most confused
    first. All of them occur if none does."""
    counts = np.asarray(counts, np.float64)
    there = np.flatnonzero(counts.sum(0) + counts.sum(1)) if counts.any() else np.arange(len(counts))
    if len(there) <= FEW:
        return there
    n = counts.sum(1)[there]
    right = np.where(
        n > 0, counts.diagonal()[there] / np.where(n > 0, n, 1), 2
    )  # classes that occur only as answers come last
    return there[np.argsort(right, kind="stable")][:MOST]


def _shortened(name: str) -> str:
    """Returns a name without its middle if it is longer than `LONGEST`."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}...{name[-half:]}"


@styled
def confusion_matrix(
    counts: Array, labels: Sequence[str] | None = None, *, title: str = "Confusion matrix", ax: Given = None
) -> Figure:
    """Draws a confusion matrix, in per cent of each row.

    Parameters
    ----------
    counts : (C, C) int, C at least 1
        ``counts[i, j]`` is how often class i was answered by j (`rotrnn.training.evaluation.confusion`). With more than
        12 classes, the most confused come first; with more than 40, only these are shown.
    labels : sequence of str, optional
        Names of the C classes. The default is their numbers.
    ax : Axes, optional
        Axes to draw into, in place of a new figure.

    Raises
    ------
    ValueError
        `counts` is not square, is empty, or has a number below 0, or `labels` does not have C entries.
    TypeError
        `counts` has another dtype than real numbers.
    """
    from matplotlib.colors import PowerNorm

    counts = np.asarray(counts)
    C = len(counts) if counts.ndim else 0
    if counts.shape != (C, C) or not C:
        raise ValueError(f"confusion_matrix: counts has shape {counts.shape}, expected (C, C), C from 1")
    if counts.dtype.kind not in "biuf":
        raise TypeError(f"confusion_matrix: counts has dtype {counts.dtype}, expected integers")
    counts = counts.astype(np.float64)  # percentages of small integers would overflow
    wrong = ~((counts >= 0) & np.isfinite(counts))
    if wrong.any():
        raise ValueError(f"confusion_matrix: counts has {counts[wrong][0]:g}, expected numbers from 0")
    names = [str(i) for i in range(C)] if labels is None else [str(one) for one in labels]
    if len(names) != C:
        raise ValueError(f"confusion_matrix: {plural(len(names), 'label')}, expected {C}, one for each row of counts")
    order = most_confused(counts)
    n = counts[order].sum(1, keepdims=True)
    shares = 100 * counts[order] / np.where(n > 0, n, 1)
    shares = shares[:, order]
    few = len(order) <= FEW
    cell = 0.34 if few else 0.18
    size = 8 if few else 6
    chosen = [_shortened(names[i]) for i in order]
    longest = max(map(len, chosen), default=0)
    room = 0.0085 * size * longest  # inches, of which the margins below have a few letters
    width = max(cell * len(order) + 1.5 + room, 3.7)
    sheet = Sheet(ax, width, cell * len(order) + 1.0 + room)
    (axes,) = sheet.panels
    image = axes.imshow(
        shares, cmap="Blues", norm=PowerNorm(1.0 if few else 0.5, 0, 100)
    )  # makes rare confusions visible
    chosen, upright = [as_text(one) for one in chosen], longest <= 2
    axes.set_xticks(range(len(order)), chosen, rotation=0 if upright else 90, fontsize=size)
    axes.set_yticks(range(len(order)), chosen, fontsize=size)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if few:
        for (i, j), share in np.ndenumerate(shares):
            colour = "white" if share > 55 else "black"
            text = f"{share:.0f}" if share >= 0.5 else ""
            axes.text(j, i, text, fontsize=6.5, ha="center", va="center", color=colour)
    there = np.count_nonzero(counts.sum(0) + counts.sum(1))
    if not few:
        title += f"\nmost confused first{f', {len(order)} of {there}' if len(order) < there else ''}"
    sheet.title(title, fontsize=9, fontweight="bold")
    axes.set(xlabel="answer", ylabel="class")
    ticks = [0, 50, 100] if few else [0, 5, 20, 50, 100]
    bar = sheet.figure.colorbar(image, ax=axes, shrink=0.8, aspect=22, ticks=ticks)
    bar.set_label("% of the class", fontsize=8)
    bar.outline.set_visible(False)
    return sheet.figure
