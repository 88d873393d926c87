"""The common style of all figures, and a line for each of several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from io import BytesIO
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from rotrnn._support.extras import needed
from rotrnn.ops.boundary import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")
Series = tuple[Array, Array]
"""Positions (n,) in ascending order (training steps, lengths), and the values there (n, ...)."""
Groups = Mapping[str, Sequence[Series]]
"""Configurations by label, each with one `Series` per run."""

# The colours of Okabe and Ito, which colour-blind readers can distinguish, without yellow, which is hard to see on
# white
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (4.5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.3, 1.2, 1.3)))
MOST = 8
"""Maximum number of configurations in a figure of several runs."""

STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.autolayout": False,  # would come before it, and knows nothing of legends outside of panels
    "text.usetex": False,  # in which % begins a comment, and names of settings are no text
    "axes.prop_cycle": "cycler(color=['#0072B2'])",  # dashes and markers have meanings here
    "lines.linestyle": "-",
    "lines.marker": "None",
    "scatter.marker": "o",
    "image.origin": "upper",
    "image.interpolation": "nearest",
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
    """Returns a figure of that size in inches and its rows of axes; `options` are passed to matplotlib's `subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]  # a notebook without pyplot shows it by this
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def png(figure: Figure) -> bytes:
    """Returns a figure as the bytes of a PNG file."""
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


Given = Any
"""Axes to draw into: matplotlib's `Axes`, or as many of them as there are panels, in rows; None for a new figure."""


class Sheet:
    """A figure with a panel for each part of a drawing: a new one, or axes of a figure that are given.

    In a new figure, of `width` by `height` inches with `rows` of `columns` panels, titles and legends stand around all
    panels. In one that is given there may be more than this drawing: titles and legends stay in its axes.
    """

    def __init__(
        self, ax: Given, width: float, height: float, count: int = 1, columns: int | None = None, **options: Any
    ) -> None:
        self.own = ax is None
        self.figure: Figure
        if ax is not None:
            self.panels: list[Axes] = np.ravel(np.asarray(ax, object)).tolist()
            if len(self.panels) != count or not all(hasattr(one, "get_figure") for one in self.panels):
                raise ValueError(f"ax: {ax!r:.80}, expected {count} of matplotlib's axes")
            self.figure = self.panels[0].get_figure(root=True)  # type: ignore[assignment]
            return
        columns = columns or count
        self.figure, rows = new_figure(width, height, -(-count // columns), columns, **options)
        every = [axes for row in rows for axes in row]
        self.panels = every[:count]
        for axes in every[count:]:
            axes.set_axis_off()

    def title(self, text: str, **look: Any) -> None:
        """Draws a title above all panels."""
        if self.own:
            self.figure.suptitle(text, **look)
        else:
            self.panels[0].set_title(text)

    def legend(self, handles: Sequence[Any], labels: Sequence[str], place: str = "lower center", **look: Any) -> None:
        """Draws one legend for all panels, outside of them on that side."""
        if self.own:
            options: dict[str, Any] = {"loc": f"outside {place}", **look}
            self.figure.legend(list(handles), list(labels), **options)
        else:
            self.panels[-1].legend(list(handles), list(labels))

    def entries(self) -> dict[Any, Any]:
        """Returns the handles of all panels by label. An entry that several panels share appears once."""
        found: dict[Any, Any] = {}
        for axes in self.panels:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        return found

    def side_legend(self) -> None:
        """Draws one legend for all panels to the right of them. A new figure is widened if entries are long."""
        entries = self.entries()
        longest = max(map(len, entries), default=0)
        if self.own:
            self.figure.set_figwidth(self.figure.get_figwidth() + 0.06 * max(0, longest - USUAL))
        self.legend(list(entries.values()), list(entries), "right upper")


def matplotlib() -> Any:
    """Returns the package. ImportError that says what to install if it is not there."""
    with needed("plots need matplotlib", "'rotrnn[plot]'"):
        import matplotlib as mpl
    return mpl


def ink(axes: Axes) -> Any:
    """Returns the colour of the axes' labels, black or in dark styles white: for lines without other colours."""
    return axes.xaxis.label.get_color()


def is_dark(ink: Any) -> bool:
    """Returns whether a style with labels of this colour has a dark background."""
    from matplotlib.colors import to_rgb

    return sum(to_rgb(ink)) > 1.5


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorates a drawing function to use the style of this module."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return drawn


def style() -> Any:
    """Returns a context with the style of this module: colours of text and background are the user's."""
    mpl = matplotlib()
    dark = {"grid.color": "#484848"} if is_dark(mpl.rcParams["axes.labelcolor"]) else {}
    return mpl.rc_context({**STYLE, **dark})


def smooth(x: Array, window: int | None = None) -> Array:
    """Returns the running mean over `window` values around each value, over fewer at the ends; a number that is not
    finite does not count. The default window is a fortieth of all values."""
    window = max(1, len(x) // 40) if window is None else window
    there = np.isfinite(x)
    at = np.arange(len(x))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at + window // 2 + 1, len(x))
    sums = np.cumsum(np.pad([np.where(there, x, 0), there], ((0, 0), (1, 0))), axis=1, dtype=np.float64)
    total, count = sums[:, high] - sums[:, low]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


# ---- lines ----


def by_depth(count: int, ink: Any = "black") -> list[Any]:
    """Returns colours for layers, from dark to light with depth, all far from the background of labels in `ink`."""
    import matplotlib as mpl

    return [mpl.colormaps["viridis"](x) for x in np.linspace(*((0.35, 1.0) if is_dark(ink) else (0.0, 0.88)), count)]


def looks(count: int, ink: Any = COLOURS[-1]) -> list[dict[str, Any]]:
    """Returns line styles for `count` configurations: seven colours, the last of which is `ink`, then the same ones
    dashed, dotted, dash-dotted."""
    n, colours = len(COLOURS), (*COLOURS[:-1], ink)
    return [{"color": colours[i % n], "linestyle": DASHES[i // n % len(DASHES)]} for i in range(count)]


def marker(points: Array) -> str | None:
    """Returns a marker if there are few points, otherwise None."""
    return "o" if len(points) <= 40 else None


def as_text(name: str) -> str:
    """Returns the name of a class or a configuration as matplotlib writes it letter by letter: dollars begin no
    formula, and a name that begins with an underscore is in legends too."""
    return f"{' ' * name.startswith('_')}{name}".replace("$", r"\$")


def as_title(call: str, name: str) -> str:
    """Returns a name with a capital, to begin a title with. ValueError of `call` if it is empty."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{call}: name={name!r}, expected the name of an accuracy")
    return name[0].upper() + name[1:]


def draw_runs(axes: Axes, runs: Sequence[Series], label: str, *, factor: float = 1.0, **look: Any) -> None:
    """Draws a line for each run, thinner if there are several; the first has the label.

    A mean over seeds of which some have learned and others have not would be a curve that no run has. `look` are
    options of matplotlib's `plot`.
    """
    width: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.85} if len(runs) > 1 else {}
    for i, (at, value) in enumerate(runs):
        axes.plot(
            at, factor * np.asarray(value), label=as_text(label) if i == 0 else "_", markersize=2.5, **width, **look
        )


def draw_groups(axes: Axes, groups: Groups, *, factor: float = 1.0) -> None:
    """Calls `draw_runs` for each configuration that has runs. Line styles follow the order of all configurations,
    including those without runs."""
    for (label, runs), look in zip(groups.items(), looks(len(groups), ink(axes)), strict=True):
        if runs:
            dots = marker(runs[0][0]) if len(groups) <= len(COLOURS) else None  # markers would hide dashes
            draw_runs(axes, runs, label, factor=factor, marker=dots, **look)


def in_parts(groups: Mapping[str, T]) -> list[dict[str, T]]:
    """Returns the configurations in order, in parts of at most `MOST` and of about one size. Those whose names agree
    before the first comma stay together where these are no more than `MOST`."""
    families: dict[str, list[str]] = {}
    for label in groups:
        families.setdefault(label.partition(",")[0], []).append(label)
    size = -(-len(groups) // max(1, -(-len(groups) // MOST)))
    parts: list[list[str]] = [[]]
    for family in families.values():
        for block in (family[i : i + MOST] for i in range(0, len(family), MOST)):
            if parts[-1] and (len(parts[-1]) >= size or len(parts[-1]) + len(block) > MOST):
                parts.append([])
            parts[-1] += block
    return [{label: groups[label] for label in part} for part in parts]


def counted(groups: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Adds the number of runs to the label of each group that has several."""
    return {f"{label} ({len(runs)} runs)" if len(runs) > 1 else label: runs for label, runs in groups.items()}


def whole_decades(axes: Axes) -> None:
    """Makes the y axis logarithmic, with different powers of ten as limits, if a line has a number above zero."""
    if not any(np.any(np.asarray(line.get_ydata()) > 0) for line in axes.get_lines()):
        return
    axes.set_yscale("log")
    low, high = np.log10(axes.get_ylim())
    axes.set_ylim(10 ** np.floor(low), 10 ** max(np.ceil(high), np.floor(low) + 1))


def whole_ticks(*panels: Axes) -> None:
    """Puts no ticks between whole numbers of x axes, which count steps, unless the user has set ticks."""
    from matplotlib.ticker import MaxNLocator

    for axes in panels:
        if isinstance(locator := axes.xaxis.get_major_locator(), MaxNLocator):
            locator.set_params(integer=True, min_n_ticks=1)


def same_limits(figures: Sequence[Figure]) -> None:
    """Gives the panels of several figures of one form the same limits, so that one can be compared with another."""
    for panels in zip(*(figure.axes for figure in figures), strict=True):
        for axis in "xy":
            first, last = zip(*(getattr(axes, f"get_{axis}lim")() for axes in panels), strict=True)
            limits = (max(first), min(last)) if first[0] > last[0] else (min(first), max(last))
            for axes in panels:
                getattr(axes, f"set_{axis}lim")(limits)


# ---- legends ----

USUAL = 20
"""Number of characters of a label that fit at the side of a figure without widening it."""


def height_for(entries: int, least: float) -> float:
    """Returns the height in inches that a figure needs for a legend with so many entries at its side."""
    return max(least, 0.19 * entries + 0.5)


def layer_legend(sheet: Sheet) -> None:
    """Draws the legend of a single panel, beside it in a new figure."""
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if sheet.own else {}
    sheet.panels[0].legend(**place)
