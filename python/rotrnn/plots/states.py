"""Eigenvalues of recurrences, and norms of their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from rotrnn.ops.boundary import Array
from rotrnn.plots.style import (
    BLUE,
    GREY,
    Given,
    Series,
    Sheet,
    as_text,
    by_depth,
    counted,
    draw_groups,
    draw_runs,
    height_for,
    ink,
    layer_legend,
    marker,
    styled,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORM = r"mean $\|h_t\| / \sqrt{N}$"
PANEL = 30
"""Maximum number of characters in a line of a panel's title."""


@styled
def unit_disc(before: Sequence[Array], after: Sequence[Array], *, ax: Given = None) -> Figure:
    """Draws the eigenvalues of each layer's recurrence in the unit disc, at initialisation and after training.

    Parameters
    ----------
    before, after : list of complex arrays (N,), one per layer
        In one step, a state is scaled by the modulus of its eigenvalue and rotated by its angle. A line joins each
        initial eigenvalue to the trained one with the same index.
    ax : Axes, or several, optional
        Axes to draw into, one per layer, in place of a new figure.

    Raises
    ------
    ValueError
        There is no layer, or `after` has other shapes than `before`.
    """
    before, after = ([np.asarray(one) for one in every] for every in (before, after))
    shapes = [[one.shape for one in every] for every in (before, after)]
    if not before or shapes[0] != shapes[1]:
        raise ValueError(f"unit_disc: before and after have shapes {shapes[0]} and {shapes[1]}, expected the same (N,)")
    columns = min(len(before), 3)
    rows = -(-len(before) // columns)
    sheet = Sheet(ax, max(3.2, 2.5 * columns), 2.6 * rows + 0.4, len(before), columns)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 361))
    for layer, axes in enumerate(sheet.panels):
        axes.set_axis_off()
        old, new = before[layer], after[layer]
        axes.plot(circle.real, circle.imag, color=ink(axes), linewidth=0.8)
        axes.plot(0.5 * circle.real, 0.5 * circle.imag, color="#D0D0D0", linewidth=0.6)
        axes.plot([-1, 1], [0, 0], [0, 0], [-1, 1], color="#D0D0D0", linewidth=0.6)
        for angle, label in ((0, "0"), (0.5, "π/2"), (1, "π"), (1.5, "3π/2")):
            at = 1.13 * np.exp(1j * np.pi * angle)
            axes.text(at.real, at.imag, label, color=GREY, fontsize=7, ha="center", va="center")
        axes.text(0.37, -0.37, "½", color=GREY, fontsize=7, ha="left", va="top")
        axes.plot([old.real, new.real], [old.imag, new.imag], color=GREY, linewidth=0.5, alpha=0.6)
        size = 14 if len(old) <= 64 else 7
        initial = axes.scatter(
            old.real,
            old.imag,
            s=size,
            zorder=3,
            facecolors=sheet.figure.get_facecolor(),
            edgecolors=GREY,
            linewidths=0.7,
        )
        trained = axes.scatter(new.real, new.imag, s=size, zorder=4, color=BLUE, alpha=0.85, linewidths=0)
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal", title=f"layer {layer + 1}")
    sheet.legend([initial, trained], ["initial", "trained"], ncols=2)
    if sheet.own:
        sheet.title("Eigenvalues in the unit disc", fontsize=10)
    return sheet.figure


@styled
def norms_along_sequence(norms: Array, *, ax: Given = None) -> Figure:
    """Draws the norm of the hidden state along the sequence; `norms` (layers, T) is the mean over sequences of |h_t|,
    divided by the root of the number of reals in h_t (`Recurrent.state_size`). `ax`: axes to draw into."""
    sheet = Sheet(ax, 4.6, 2.9)
    (axes,) = sheet.panels
    norms = np.asarray(norms)
    for layer, (row, colour) in enumerate(zip(norms, by_depth(len(norms), ink(axes)), strict=True)):
        axes.plot(np.arange(len(row)), row, color=colour, label=f"layer {layer + 1}")
    axes.set(title="Hidden state along the sequence", xlabel="time step $t$", ylabel=NORM, ylim=(0, None))
    axes.set_xlim(0, max(1, norms.shape[1] - 1))
    whole_ticks(axes)
    layer_legend(sheet)
    return sheet.figure


@styled
def norms_over_training(series: Series, *, ax: Given = None) -> Figure:
    """Draws the mean norm of each layer's hidden state over training; `series` is steps (n,) and norms (n, layers),
    divided as in `norms_along_sequence`. `ax`: axes to draw into."""
    sheet = Sheet(ax, 4.6, 2.9)
    (axes,) = sheet.panels
    steps, norms = map(np.asarray, series)
    for layer, colour in enumerate(by_depth(norms.shape[1], ink(axes))):
        axes.plot(steps, norms[:, layer], color=colour, marker=marker(steps), markersize=3, label=f"layer {layer + 1}")
    axes.set(title="Hidden state over training", xlabel="training step", ylabel=NORM, ylim=(0, None))
    axes.set_xlim(left=0)
    whole_ticks(axes)
    layer_legend(sheet)
    return sheet.figure


@styled
def compare_norms(groups: Mapping[str, Sequence[Series]], *, ax: Given = None) -> Figure:
    """Draws the mean norm of hidden states over training (RotRNN, Fig. 3), one series (n,), (n, layers) per run,
    divided as in `norms_along_sequence`; the figure in the paper does not divide.

    With several layers, each configuration has a panel and each layer a line, all on one scale. With one layer, all
    configurations share a panel. Each run has lines of its own. `ax`: axes to draw into, one per panel. ValueError if
    no configuration has a run.
    """
    groups = {label: [(at, np.asarray(norms)) for at, norms in runs] for label, runs in groups.items()}
    if not any(groups.values()):
        raise ValueError(f"compare_norms: groups is {groups}, expected a configuration with a run")
    layers = max(norms.shape[1] for runs in groups.values() for _, norms in runs)
    if layers == 1:
        sheet = Sheet(ax, 5.6, height_for(len(groups), 2.9))
        (axes,) = sheet.panels
        draw_groups(axes, counted({label: [(at, norms[:, 0]) for at, norms in runs] for label, runs in groups.items()}))
        axes.set(title="Hidden state over training", xlabel="training step", ylabel=NORM)
    else:
        groups = {label: runs for label, runs in groups.items() if runs}
        columns = min(len(groups), 4)
        rows = -(-len(groups) // columns)
        size = max(4.6, 2.3 * columns + 1.3), height_for(layers, 2.3 * rows + 0.4)
        sheet = Sheet(ax, *size, len(groups), columns, sharex=True, sharey=True)
        colours = by_depth(layers, ink(sheet.panels[0]))
        for axes, (label, runs) in zip(sheet.panels, counted(groups).items(), strict=True):
            for layer in range(runs[0][1].shape[1]):
                one = [(at, norms[:, layer]) for at, norms in runs]
                draw_runs(axes, one, f"layer {layer + 1}", marker=marker(one[0][0]), color=colours[layer])
            axes.set_title(as_text(fill(label.replace(",", ", "), PANEL)), fontsize=8)
        if sheet.own:
            sheet.figure.supxlabel("training step", fontsize=9)
            sheet.figure.supylabel(NORM, fontsize=9)
    sheet.panels[0].set_xlim(left=0)
    sheet.panels[0].set_ylim(bottom=0)
    whole_ticks(*sheet.panels)
    sheet.side_legend()
    return sheet.figure
