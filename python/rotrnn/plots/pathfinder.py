"""Example images of Pathfinder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rotrnn._support.text import plural
from rotrnn.ops.boundary import Array
from rotrnn.plots.style import BLUE, ORANGE, Given, Sheet, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = (("markers on two contours (label 0)", ORANGE), ("on one (label 1)", BLUE))


@styled
def pathfinder_sheet(images: Array, labels: Array, *, ax: Given = None) -> Figure:
    """Draws images of Pathfinder (n, side, side) uint8, eight per row. The colour of the frame shows whether both
    markers lie on one contour. `ax`: axes to draw into, one per image."""
    from matplotlib.patches import Patch

    if not len(images) or len(labels) != len(images) or not set(labels) <= {0, 1}:
        raise ValueError(
            f"pathfinder_sheet: {plural(len(images), 'image')} and labels {labels!r:.80}, "
            "expected a label 0 or 1 for each of one or more images"
        )
    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    sheet = Sheet(ax, 0.95 * columns + 0.1, 0.95 * rows + 0.4, len(images), columns)
    for place, axes in enumerate(sheet.panels):
        axes.imshow(images[place], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=FRAMES[int(labels[place])][1], linewidth=2.0)
    names, colours = zip(*FRAMES, strict=True)
    sheet.legend([Patch(color=colour) for colour in colours], names, ncols=len(names))
    return sheet.figure
