"""How every picture looks, and lines over several runs: one for their mean, a band for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import numpy as np

from rotrnn.ops.boundary import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
Series = tuple[Array, Array]
"""Where something was seen (K,), in ascending order (training steps, lengths), and what was seen there (K, ...)."""
Groups = Mapping[str, Sequence[Series]]
"""Configurations by their label, each with one `Series` a run."""

# Okabe and Ito's colours, which colour-blind readers can tell apart, less yellow, which is hard to see on white
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (4.5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.3, 1.2, 1.3)))
FEW = 4
"""Up to so many configurations in a picture, every run has a thin line of its own."""

STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "legend.handlelength": 2.6,
}
DPI = 200


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of so many inches and its rows of axes; `options` are those of matplotlib's `subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """`draw` in the style of this module."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        try:
            import matplotlib as mpl
        except ImportError as error:
            raise ImportError("plots need matplotlib, which is not installed; pip install 'rotrnn[plot]'") from error
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def smooth(x: Array, window: int | None = None) -> Array:
    """Running mean over `window` values around each, over fewer at the ends; by default over a fortieth of them."""
    window = max(1, len(x) // 40) if window is None else window
    sums = np.cumsum(np.concatenate([[0.0], x]))
    at = np.arange(len(x))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at + window // 2 + 1, len(x))
    mean: Array = (sums[high] - sums[low]) / (high - low)
    return mean


# ---- lines ----


def by_depth(count: int) -> list[Any]:
    """Colours of layers, from dark to light with depth."""
    import matplotlib as mpl

    return [mpl.colormaps["viridis"](x) for x in np.linspace(0.0, 0.88, count)]


def looks(count: int) -> list[dict[str, Any]]:
    """How the lines of so many configurations look: seven colours, then the same ones dashed, dotted, dash-dotted."""
    n = len(COLOURS)
    return [{"color": COLOURS[i % n], "linestyle": DASHES[i // n % len(DASHES)]} for i in range(count)]


def marker(points: Array) -> str | None:
    """A marker where points are few."""
    return "o" if len(points) <= 40 else None


class Across(NamedTuple):
    """What several runs have in common: where all of them were seen (K,), and mean, least and largest there."""

    at: Array
    mean: Array
    low: Array
    high: Array


def across(runs: Sequence[Series]) -> Across:
    """Of series with values (K,); where one of them was not seen (it ended early) there is nothing."""
    at = reduce(np.intersect1d, [where for where, _ in runs])
    values = np.stack([value[np.searchsorted(where, at)] for where, value in runs])
    return Across(at, values.mean(0), values.min(0), values.max(0))


def draw_runs(
    axes: Axes, runs: Sequence[Series], label: str, *, thin: bool = False, factor: float = 1.0, **look: Any
) -> None:
    """The mean of several runs as a line, a band from the least to the largest, if `thin` a thin line for each run.

    `look` are options of matplotlib's `plot`, the colour among them.
    """
    at, mean, low, high = across(runs)
    if len(runs) > 1:
        axes.fill_between(at, factor * low, factor * high, color=look["color"], alpha=0.13, linewidth=0)
    if thin and len(runs) > 1:
        for where, value in runs:
            axes.plot(where, factor * value, color=look["color"], linewidth=0.6, alpha=0.45)
    axes.plot(at, factor * mean, label=label, markersize=2.5, **look)


def draw_groups(axes: Axes, groups: Groups, *, factor: float = 1.0) -> None:
    """`draw_runs` of each configuration that has runs, in the looks of their order, those without counted too."""
    for (label, runs), look in zip(groups.items(), looks(len(groups)), strict=True):
        if runs:
            dots = marker(across(runs).at) if len(groups) <= len(COLOURS) else None  # they would hide dashes
            draw_runs(axes, runs, label, thin=len(groups) <= FEW, factor=factor, marker=dots, **look)


def counted(groups: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The groups with the number of their runs in the label, where there are several."""
    return {f"{label} ({len(runs)} runs)" if len(runs) > 1 else label: runs for label, runs in groups.items()}


def whole_decades(axes: Axes) -> None:
    """A logarithmic y axis from a power of ten to another."""
    axes.set_yscale("log")
    low, high = np.log10(axes.get_ylim())
    axes.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))


# ---- legends ----

USUAL = 20
"""Characters of a label at the side that figures have room for."""


def height_for(entries: int, least: float) -> float:
    """Inches that a figure needs for a legend of so many entries at its side."""
    return max(least, 0.19 * entries + 0.5)


def side_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, right of them, which it makes the figure wider for where its entries are long; an
    entry that several have is there once."""
    entries: dict[Any, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    longest = max(map(len, entries), default=0)
    figure.set_figwidth(figure.get_figwidth() + 0.06 * max(0, longest - USUAL))
    figure.legend(handles=list(entries.values()), labels=list(entries), loc="outside right upper")


def layer_legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
