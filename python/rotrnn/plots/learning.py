"""Losses and accuracies over training, of one run and of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rotrnn.plots.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Given,
    Groups,
    Series,
    Sheet,
    as_text,
    as_title,
    counted,
    draw_groups,
    height_for,
    ink,
    looks,
    marker,
    smooth,
    styled,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def learning_curves(
    train: Mapping[str, Series],
    validation: Mapping[str, Series],
    baseline: float | None = None,
    test: tuple[int, float] | None = None,
    *,
    split: str = "validation",
    sequences: bool = False,
    ax: Given = None,
) -> Figure:
    """Draws loss and accuracy over training.

    Parameters
    ----------
    train, validation : dict
        "loss" (nats), "accuracy" and "sequence_accuracy" (0 to 1), each a `Series`; of a regression "loss" and "skill".
    baseline : float, optional
        Accuracy of always predicting the most frequent class.
    test : (step, accuracy), optional
        Accuracy on the test split of the parameters at that step.
    split : str
        Name of the split of `validation`: "test" if the data set has no validation split.
    sequences : bool
        Whether the accuracy in `test` counts whole sequences.
    ax : two Axes, optional
        Axes to draw into, in place of a new figure.
    """
    sheet = Sheet(ax, 7.2, 2.9, 2)
    left, right = sheet.panels
    for axes, quantity, factor, colour, label in (
        (left, "loss", 1.0, ORANGE, split),
        (right, "accuracy", 100.0, ORANGE, split),
        (right, "sequence_accuracy", 100.0, GREEN, f"{split}, whole sequences"),
        (right, "skill", 100.0, ORANGE, split),
    ):
        if quantity in train:
            steps, values = map(np.asarray, train[quantity])
            axes.plot(steps, factor * values, color=BLUE, alpha=0.22, linewidth=0.8)
            axes.plot(steps, factor * smooth(values), color=BLUE, label="training")
        if quantity in validation:
            steps, values = map(np.asarray, validation[quantity])
            axes.plot(steps, factor * values, color=colour, marker=marker(steps), markersize=3.5, label=label)
        axes.set_xlabel("training step")
    regression = "skill" in validation
    left.set(title="Loss", ylabel="loss" if regression else "cross-entropy (nats)")
    name = "skill" if regression else "accuracy"
    right.set(title=name.capitalize(), ylabel=f"{name} (%)")
    if baseline is not None:
        label = f"most frequent class ({100 * baseline:.1f} %)"
        right.axhline(100 * baseline, color=GREY, linestyle="--", linewidth=1.2, label=label)
    if test is not None:
        label = f"test{', whole sequences' if sequences else ''} ({100 * test[1]:.1f} %)"
        right.plot(test[0], 100 * test[1], "*", color=ink(right), markersize=9, zorder=5, clip_on=False, label=label)
    for axes in sheet.panels:
        axes.set_xlim(left=0)
    whole_ticks(*sheet.panels)
    right.set_ylim(bottom=min(0, right.get_ylim()[0]))  # a skill may be negative
    entries = sheet.entries()
    sheet.legend(list(entries.values()), list(entries), ncols=max(1, len(entries) if len(entries) <= 4 else 3))
    return sheet.figure


@styled
def compare_learning(
    train_loss: Groups, loss: Groups, accuracy: Groups, *, name: str = "validation accuracy", ax: Given = None
) -> Figure:
    """Draws training loss (smoothed), validation loss and validation accuracy of several configurations.

    Each run has a line. `name` is the split and the name of the accuracy; `ax` three axes to draw into.
    """
    title_of_name = as_title("compare_learning", name)
    sheet = Sheet(ax, 10.2, height_for(len(train_loss), 2.9), 3)
    smoothed = {label: [(at, smooth(values)) for at, values in runs] for label, runs in train_loss.items()}
    nats = "loss" if name.endswith("skill") else "cross-entropy (nats)"
    for axes, groups, factor, title, unit in (
        (sheet.panels[0], smoothed, 1.0, "Training loss", nats),
        (sheet.panels[1], loss, 1.0, f"{name.split()[0].capitalize()} loss", nats),
        (sheet.panels[2], accuracy, 100.0, title_of_name, "%"),
    ):
        draw_groups(axes, counted(groups), factor=factor)
        axes.set(title=title, xlabel="training step", ylabel=unit)
        axes.set_xlim(left=0)
    whole_ticks(*sheet.panels)
    sheet.side_legend()
    return sheet.figure


@styled
def scores(
    best: Mapping[str, Sequence[float]], last: Mapping[str, Sequence[float]], *, name: str, ax: Given = None
) -> Figure:
    """Draws the test accuracy of each configuration: a dot for each run, a bar for their mean.

    Parameters
    ----------
    best, last : dict
        For each configuration one accuracy (0 to 1) per run, of the best and of the last parameters.
    name : str
        Name of the accuracy.
    ax : Axes, optional
        Axes to draw into, in place of a new figure.
    """
    labels, title = list(best), f"{as_title('scores', name)} on the test split"
    if missing := [label for label in labels if label not in last]:
        raise ValueError(f"scores: last has no configuration {missing[0]!r}, expected those of best")
    longest = max(map(len, labels), default=0)
    sheet = Sheet(ax, max(5.4, 4.6 + 0.06 * longest), 1.0 + 0.27 * len(labels))  # the legend takes five inches
    (axes,) = sheet.panels
    rows = np.arange(len(labels))
    for row, (label, look) in enumerate(zip(labels, looks(len(labels), ink(axes)), strict=True)):
        for found, shift, options in (
            (best[label], -0.13, {"color": look["color"], "alpha": 0.75, "linewidths": 0}),
            (last[label], 0.2, {"facecolors": axes.get_facecolor(), "edgecolors": look["color"], "linewidths": 0.7}),
        ):
            axes.scatter(100 * np.asarray(found), np.full(len(found), row + shift), s=16, **options)
        if best[label]:
            axes.plot(100 * np.full(2, np.mean(best[label])), [row - 0.38, row + 0.12], color=ink(axes), linewidth=1.4)
    axes.set(title=title, xlabel="%", ylim=(max(len(labels), 1) - 0.5, -0.5))
    axes.set_yticks(rows, map(as_text, labels))
    axes.grid(axis="y", visible=False)
    low, high = axes.get_xlim()
    if high - low < 1:  # a point of accuracy at least, so that runs that are all alike do not look apart
        axes.set_xlim((low + high - 1) / 2, (low + high + 1) / 2)
    filled = axes.scatter([], [], s=16, color=GREY, linewidths=0, label="best parameters, one dot per run")
    hollow = axes.scatter(
        [], [], s=16, facecolors=axes.get_facecolor(), edgecolors=GREY, linewidths=0.7, label="last parameters"
    )
    (bar,) = axes.plot([], [], color=ink(axes), linewidth=1.4, label="mean of the best")
    entries = [filled, bar, hollow]
    sheet.legend(entries, [str(one.get_label()) for one in entries], ncols=3, columnspacing=1.2)
    return sheet.figure
