"""Accuracy outside the training conditions: at other lengths, and for other iterations and tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rotrnn.plots.style import GREY, Given, Groups, Series, Sheet, counted, draw_groups, height_for, styled, whole_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Mapping[str, Sequence[float]]
"""Evaluation results by length: the lists "length", "n", "accuracy" and "sequence_accuracy"."""
ACCURACIES = {"accuracy": "Accuracy of labels", "sequence_accuracy": "Accuracy of whole sequences"}
LEAST = 100
"""Minimum number of sequences for a point of a curve; neighbouring lengths with fewer are merged."""

LABELS = 8
"""As many labels as have room on an axis."""


def merged(curve: Curve, least: int = LEAST) -> dict[str, list[float]]:
    """Merges neighbouring lengths of a curve until each point has at least `least` sequences.

    Values are means weighted by the number of sequences. Remaining lengths at the end are merged into the last point.
    """
    ends, behind = [0], 0
    for i, n in enumerate(curve["n"]):
        behind += int(n)
        if behind >= least:
            ends.append(i + 1)
            behind = 0
    if ends[-1] < len(curve["n"]):
        if len(ends) > 1:
            ends.pop()
        ends.append(len(curve["n"]))
    found: dict[str, list[float]] = {name: [] for name in ("length", "n", *ACCURACIES)}
    for part in map(slice, ends[:-1], ends[1:]):
        weights = np.asarray(curve["n"][part])
        found["n"].append(float(weights.sum()))
        for name in ("length", *ACCURACIES):
            found[name].append(float(np.average(curve[name][part], weights=weights)))
    return found


@styled
def accuracy_by_length(
    curves: Mapping[str, Sequence[Curve]],
    *,
    trained: Sequence[int] = (),
    carried: Sequence[float] = (),
    chance: float | None = None,
    iterations: float | None = None,
    ax: Given = None,
) -> Figure:
    """Draws the accuracy of labels, and of whole sequences if it differs, against length (Fixed-Point RNNs, Figs. 3,
    4).

    Parameters
    ----------
    curves : dict
        For each configuration, one `Curve` per run, and a line for each.
    trained : sequence of int
        Longest lengths of the sequences of a training batch; drawn as vertical lines.
    carried : sequence of float
        Mean number of steps that a sequence has which goes on from batch to batch; drawn as vertical lines. Such runs
        are trained, and scored, on steps far beyond the length of a batch.
    chance : float, optional
        Accuracy of guessing: of the most frequent label, or of a label drawn at random.
    iterations : float, optional
        Number of iterations that a fixed point took in the test; drawn as a vertical line.
    ax : Axes, or two, optional
        Axes to draw into, in place of a new figure: two if the accuracies differ.
    """
    for label, runs in curves.items():
        for one in runs:
            sizes = {name: len(one.get(name, ())) for name in (*ACCURACIES, "length", "n")}
            if len({*sizes.values()}) > 1:
                got = ", ".join(f"{size} of {name}" for name, size in sizes.items())
                raise ValueError(f"accuracy_by_length: {label!r} has {got}, expected as many of each")
            if len(one["n"]) and not (min(one["n"]) >= 0 and sum(one["n"]) > 0):
                expected = "numbers of sequences, with one above 0"
                raise ValueError(f"accuracy_by_length: {label!r} has n={list(one['n'])!r:.80}, expected {expected}")
    every = [merged(one) for runs in curves.values() for one in runs]
    same = all(np.allclose(one["accuracy"], one["sequence_accuracy"]) for one in every)
    names = list(ACCURACIES)[: 1 if same else 2]
    sheet = Sheet(ax, 3.6 * len(names) + 1.6, height_for(len(curves) + 3, 2.9), len(names), sharey=True)
    for axes, name in zip(sheet.panels, names, strict=True):
        groups: dict[str, list[Series]] = {
            label: [(np.array(one["length"]), np.array(one[name])) for one in map(merged, runs)]
            for label, runs in curves.items()
        }
        draw_groups(axes, counted(groups), factor=100.0)
        for length in sorted(set(trained)):
            axes.axvline(length, color=GREY, linestyle="--", linewidth=1.2, label=f"longest in a batch ({length})")
        for steps in sorted(set(carried)):
            text = f"carried on, in the mean ({steps:.3g})"
            axes.axvline(steps, color=GREY, linestyle="-.", linewidth=1.2, label=text)
        if iterations is not None:
            text = f"median number of iterations at test ({iterations:.3g})"
            axes.axvline(iterations, color=GREY, linestyle=":", linewidth=1.2, label=text)
        if chance is not None and name == "accuracy":
            text = f"guessing ({100 * chance:.1f} %)"
            axes.axhline(100 * chance, color=GREY, linewidth=0.9, label=text)
        axes.set(title="Accuracy" if same else ACCURACIES[name], xlabel="length", ylim=(-2, 102))
    whole_ticks(*sheet.panels)
    sheet.panels[0].set_ylabel("%")
    sheet.side_legend()
    return sheet.figure


@styled
def accuracy_by_iterations(
    groups: Groups, *, length: int | None = None, trained: int | None = None, name: str = "accuracy", ax: Given = None
) -> Figure:
    """Draws accuracy (0 to 1) against the maximum number of iterations in the test (Fixed-Point RNNs, Fig. 7).

    `length` marks the longest sequence, `trained` the maximum number of iterations in training; `ax` is
    axes to draw into.
    """
    sheet, axes = _by_setting("accuracy_by_iterations", groups, name, ax, base=2)
    if length is not None:
        axes.axvline(length, color=GREY, linestyle="--", linewidth=1.2, label=f"longest sequence ({length})")
    if trained is not None:
        axes.axvline(trained, color=GREY, linestyle=":", linewidth=1.2, label=f"maximum in training ({trained})")
    axes.set(title="Limited iterations", xlabel="maximum iterations at test")
    sheet.side_legend()
    return sheet.figure


@styled
def accuracy_by_tolerance(groups: Groups, *, name: str = "accuracy", ax: Given = None) -> Figure:
    """Draws accuracy (0 to 1) against the tolerance of the fixed points in the test, the finest to the right.

    `ax` is axes to draw into.
    """
    sheet, axes = _by_setting("accuracy_by_tolerance", groups, name, ax, base=10)
    axes.invert_xaxis()
    axes.set(title="Tolerance", xlabel="tolerance at test")
    sheet.side_legend()
    return sheet.figure


def _by_setting(call: str, groups: Groups, name: str, ax: Given, base: int) -> tuple[Sheet, Axes]:
    """Draws accuracies against the values of a setting, with ticks at these."""
    sheet = Sheet(ax, 5.2, height_for(len(groups) + 2, 2.9))
    (axes,) = sheet.panels
    draw_groups(axes, counted(groups), factor=100.0)
    values = sorted({float(one) for runs in groups.values() for at, _ in runs for one in at})
    if values and not values[0] > 0:
        raise ValueError(f"{call}: groups has the position {values[0]:g}, expected positions above 0")
    axes.set_xscale("log", base=base)
    shown: list[float] = []
    for one in values:  # those that are not too close to the last one for a label
        if not shown or LABELS * np.log(one / shown[-1]) > 0.99 * np.log(values[-1] / values[0]):
            shown.append(one)
    axes.set_xticks(shown, [f"{one:g}" for one in shown])
    axes.minorticks_off()
    axes.set(ylabel=f"{name} (%)", ylim=(-2, 102))
    return sheet, axes
