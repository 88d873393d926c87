"""Example images of Pathfinder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rotrnn.ops.boundary import Array
from rotrnn.plots.style import BLUE, ORANGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = (("markers on two contours (label 0)", ORANGE), ("on one (label 1)", BLUE))


@styled
def pathfinder_sheet(images: Array, labels: Array) -> Figure:
    """Draws images of Pathfinder (n, side, side) uint8, eight per row. The colour of the frame shows whether both
    markers lie on one contour."""
    from matplotlib.patches import Patch

    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    figure, grid = new_figure(0.95 * columns + 0.1, 0.95 * rows + 0.4, rows, columns)
    for place, axes in enumerate(axes for row in grid for axes in row):
        if place >= len(images):
            axes.set_axis_off()
            continue
        axes.imshow(images[place], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=FRAMES[int(labels[place])][1], linewidth=2.0)
    legend = [Patch(color=colour, label=name) for name, colour in FRAMES]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend))
    return figure
