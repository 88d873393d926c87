"""Figures of a training run. The drawing functions take arrays and return matplotlib figures; `plot` feeds them.

matplotlib is an optional extra: it is imported when something is drawn, and never through pyplot, so figures are no
global state and no display is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from rotrnn.nn.layer import Context
from rotrnn.ops.boundary import Array
from rotrnn.tasks.task import majority_baseline
from rotrnn.training.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
Series = tuple[Array, Array]
"""Training steps (K,) and what was seen there (K, ...)."""

# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8C8C8C"
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
}
DPI = 200


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """A figure of so many inches and its (rows, columns) array of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False)


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """`draw` in the style of this module."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        try:
            import matplotlib as mpl
        except ImportError as error:
            raise ImportError("plots need matplotlib, an optional extra: pip install rotrnn[plot]") from error
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


def smooth(x: Array, window: int) -> Array:
    """Running mean over `window` values around each, over fewer at the ends."""
    sums = np.cumsum(np.concatenate([[0.0], x]))
    at = np.arange(len(x))
    low, high = np.maximum(at - window // 2, 0), np.minimum(at + window // 2 + 1, len(x))
    mean: Array = (sums[high] - sums[low]) / (high - low)
    return mean


def _layer_colours(count: int) -> list[Any]:
    """From dark to light with depth."""
    import matplotlib as mpl

    return [mpl.colormaps["viridis"](x) for x in np.linspace(0.0, 0.88, count)]


@_styled
def learning_curves(
    train: dict[str, Series],
    validation: dict[str, Series],
    baseline: float | None = None,
    test: tuple[int, float] | None = None,
) -> Figure:
    """Loss and accuracy over training.

    Parameters
    ----------
    train, validation : dict
        "loss" (nats) and "accuracy" (0 to 1), each a `Series`.
    baseline : float, optional
        Accuracy of always answering the most frequent class.
    test : (step, accuracy), optional
        Accuracy on the test set, of the parameters at a step.
    """
    figure, ((left, right),) = _figure(7.2, 2.9, 1, 2)
    for axes, quantity, factor in ((left, "loss", 1.0), (right, "accuracy", 100.0)):
        if quantity in train:
            steps, values = train[quantity]
            axes.plot(steps, factor * values, color=BLUE, alpha=0.22, linewidth=0.8)
            axes.plot(steps, factor * smooth(values, max(1, len(values) // 40)), color=BLUE, label="training")
        if quantity in validation:
            steps, values = validation[quantity]
            marker = "o" if len(steps) <= 40 else None
            axes.plot(steps, factor * values, color=ORANGE, marker=marker, markersize=3.5, label="validation")
        axes.set_xlabel("training step")
        axes.set_xlim(left=0)
    left.set(title="Loss", ylabel="cross-entropy (nats)")
    right.set(title="Accuracy", ylabel="accuracy (%)")
    if baseline is not None:
        label = f"most frequent class ({100 * baseline:.1f} %)"
        right.axhline(100 * baseline, color=GREY, linestyle="--", linewidth=1.2, label=label)
    if test is not None:
        label = f"test ({100 * test[1]:.1f} %)"
        right.plot(test[0], 100 * test[1], "*", color="black", markersize=9, zorder=5, label=label)
    right.set_ylim(bottom=0)
    lines, labels = right.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=max(1, len(lines)))
    return figure


@_styled
def unit_disc(before: Sequence[Array], after: Sequence[Array]) -> Figure:
    """Eigenvalues of each layer's recurrence in the unit disc, at initialisation and after training.

    Parameters
    ----------
    before, after : one complex array (N,) a layer
        Their moduli are what a step keeps, their angles by how much it turns. A line joins the two of an index.
    """
    columns = min(len(before), 3)
    rows = -(-len(before) // columns)
    figure, grid = _figure(max(3.2, 2.5 * columns), 2.6 * rows + 0.4, rows, columns)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 361))
    for layer, axes in enumerate(grid.flat):
        axes.set_axis_off()
        if layer >= len(before):
            continue
        old, new = before[layer], after[layer]
        axes.plot(circle.real, circle.imag, color="black", linewidth=0.8)
        axes.plot(0.5 * circle.real, 0.5 * circle.imag, color="#D0D0D0", linewidth=0.6)
        axes.plot([-1, 1], [0, 0], [0, 0], [-1, 1], color="#D0D0D0", linewidth=0.6)
        for angle, label in ((0, "0"), (0.5, "π/2"), (1, "π"), (1.5, "3π/2")):
            at = 1.13 * np.exp(1j * np.pi * angle)
            axes.text(at.real, at.imag, label, color=GREY, fontsize=7, ha="center", va="center")
        axes.text(0.37, -0.37, "½", color=GREY, fontsize=7, ha="left", va="top")
        axes.plot([old.real, new.real], [old.imag, new.imag], color=GREY, linewidth=0.5, alpha=0.6)
        size = 14 if len(old) <= 64 else 7
        hollow = {"facecolors": "white", "edgecolors": GREY, "linewidths": 0.7}
        initial = axes.scatter(old.real, old.imag, s=size, zorder=3, **hollow)
        trained = axes.scatter(new.real, new.imag, s=size, zorder=4, color=BLUE, alpha=0.85, linewidths=0)
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal", title=f"layer {layer + 1}")
    figure.legend([initial, trained], ["initial", "trained"], loc="outside lower center", ncols=2)
    figure.suptitle("Eigenvalues in the unit disc", fontsize=10)
    return figure


@_styled
def norms_along_sequence(norms: Array) -> Figure:
    """Size of the hidden state along the sequence: `norms` (L, T) is the mean |h_t| of each layer over sequences."""
    figure, ((axes,),) = _figure(4.6, 2.9)
    for layer, (row, colour) in enumerate(zip(norms, _layer_colours(len(norms)), strict=True)):
        axes.plot(np.arange(len(row)), row, color=colour, label=f"layer {layer + 1}")
    axes.set(title="Hidden state along the sequence", xlabel="time step $t$", ylabel=r"mean $\|h_t\|$", ylim=(0, None))
    axes.set_xlim(0, max(1, norms.shape[1] - 1))
    _layer_legend(axes)
    return figure


@_styled
def norms_over_training(series: Series) -> Figure:
    """Mean size of the hidden state of each layer at each evaluation: `series` is steps (K,) and norms (K, L)."""
    figure, ((axes,),) = _figure(4.6, 2.9)
    steps, norms = series
    for layer, colour in enumerate(_layer_colours(norms.shape[1])):
        marker = "o" if len(steps) <= 40 else None
        axes.plot(steps, norms[:, layer], color=colour, marker=marker, markersize=3, label=f"layer {layer + 1}")
    axes.set(title="Hidden state over training", xlabel="training step", ylabel=r"mean $\|h_t\|$", ylim=(0, None))
    axes.set_xlim(left=0)
    _layer_legend(axes)
    return figure


def _layer_legend(axes: Axes) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def series_of(records: Sequence[dict[str, Any]], key: str) -> Series | None:
    """The steps at which `key` was logged and its values; None if it never was."""
    found = [(record["step"], record[key]) for record in records if key in record]
    if not found:
        return None
    steps, values = zip(*found, strict=True)
    return np.array(steps), np.array(values, np.float64)


def plot(run_dir: str | os.PathLike[str]) -> list[Path]:
    """Draws a run into its folder's ``plots/``; the paths of the pictures.

    Learning curves; the eigenvalues of each layer at the start and at the last checkpoint; |h_t| along the sequence for
    the first validation batch; the mean of it over training. What a layer does not have (`SequenceModel.eigenvalues`,
    `Recurrent.state_norms`) is left out.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    FileNotFoundError, ValueError
        There is no run in the folder, none that has come to its first checkpoint, or one that is damaged.
    """
    run = Run(Path(run_dir))
    recipe = run.load_recipe()
    initial, trained = run.load_params("init"), run.load_params("last")
    records = run.records()
    task = recipe.task.load()
    model = recipe.build(task)
    batch = task.val.batch(np.arange(min(recipe.training.batch, len(task.val))), recipe.training.dtype)

    train, validation = (
        {quantity: series for quantity in ("loss", "accuracy") if (series := series_of(records, prefix + quantity))}
        for prefix in ("", "val_")
    )
    test = None
    if run.result.exists():
        result = json.loads(run.result.read_text())
        test = result["best_step"], result["test"]["best"]["accuracy"]
    figures = {"learning": learning_curves(train, validation, majority_baseline(task, task.test), test)}
    if eigenvalues := model.eigenvalues(initial):
        figures["eigenvalues"] = unit_disc(eigenvalues, model.eigenvalues(trained))
    norms = model.state_norms(trained, batch.inputs, Context(batch.lengths))
    if len(norms):
        figures["norms"] = norms_along_sequence(norms)
    if (series := series_of(records, "state_norms")) and series[1].size:
        figures["norms_over_training"] = norms_over_training(series)
    folder = run.folder / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=DPI)
    return paths
