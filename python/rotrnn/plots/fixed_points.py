"""Convergence of fixed-point iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rotrnn.ops.boundary import Array
from rotrnn.plots.style import (
    GREY,
    Given,
    Groups,
    Series,
    Sheet,
    as_text,
    by_depth,
    counted,
    draw_groups,
    height_for,
    ink,
    layer_legend,
    looks,
    smooth,
    styled,
    whole_decades,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def iterations_over_training(
    iterations: Series, largest: Series, residual: Series, *, tol: float | None = None, ax: Given = None
) -> Figure:
    """Draws iterations and residuals of each block over training.

    Parameters
    ----------
    iterations, largest : (n,) and (n, blocks)
        Training steps, and the mean and maximum number of iterations over the sequences of a batch. Both are smoothed.
    residual : (n,) and (n, blocks)
        Training steps, and the largest residual of the last iteration.
    tol : float, optional
        The requested residual.
    ax : two Axes, optional
        Axes to draw into, in place of a new figure.
    """
    sheet = Sheet(ax, 7.6, 2.9, 2)
    left, right = sheet.panels
    steps, means = iterations
    for block, colour in enumerate(by_depth(means.shape[1], ink(left))):
        left.plot(steps, smooth(means[:, block]), color=colour, label=f"block {block + 1}")
        left.plot(largest[0], smooth(largest[1][:, block]), color=colour, linestyle=":", linewidth=1.0)
        right.plot(residual[0], residual[1][:, block], color=colour, linewidth=0.9, label=f"block {block + 1}")
    left.plot([], [], color=GREY, linestyle=":", linewidth=1.0, label="slowest\nsequence")
    left.set(title="Iterations to the fixed point", xlabel="training step", ylabel="iterations", ylim=(0, None))
    right.set(title="Residual of the last iteration", xlabel="training step", ylabel="largest of a batch")
    if tol is not None:
        right.axhline(tol, color=GREY, linestyle="--", linewidth=1.2, label=f"tolerance ({tol:g})")
    for axes in (left, right):
        axes.set_xlim(left=0)
    whole_ticks(left, right)
    whole_decades(right)
    sheet.side_legend()
    return sheet.figure


@styled
def compare_iterations(iterations: Groups, residual: Groups, *, ax: Given = None) -> Figure:
    """Draws mean iterations (smoothed) and largest residuals of several configurations, over their runs. `ax`: two
    axes to draw into."""
    sheet = Sheet(ax, 7.8, height_for(len(iterations), 2.9), 2)
    panels = sheet.panels
    for axes, groups, title in (
        (panels[0], iterations, "Iterations to the fixed point"),
        (panels[1], residual, "Residual of the last iteration"),
    ):
        draw_groups(axes, counted({label: [(at, smooth(x)) for at, x in runs] for label, runs in groups.items()}))
        axes.set(title=title, xlabel="training step")
        axes.set_xlim(left=0)
    panels[0].set(ylabel="iterations", ylim=(0, None))
    panels[1].set_ylabel("largest of a batch")
    whole_ticks(*panels)
    whole_decades(panels[1])
    sheet.side_legend()
    return sheet.figure


@styled
def inference_gap(gaps: Mapping[str, Array], *, tol: float | None = None, ax: Given = None) -> Figure:
    """Draws the difference between parallel and sequential inference along a sequence (Fixed-Point RNNs, Fig. 5).

    Parameters
    ----------
    gaps : dict
        For each name ("initial", "trained") the differences of outputs (T,), relative to the largest output.
    tol : float, optional
        The residual at which iterations stop.
    ax : Axes, optional
        Axes to draw into, in place of a new figure.
    """
    sheet = Sheet(ax, 4.6, 2.9)
    (axes,) = sheet.panels
    for (label, gap), look in zip(gaps.items(), looks(len(gaps), ink(axes)), strict=True):
        axes.plot(np.arange(1, len(gap) + 1), gap, label=as_text(label), **look)
    if tol is not None:
        axes.axhline(tol, color=GREY, linestyle="--", linewidth=1.2, label=f"tolerance ({tol:g})")
    axes.set(title="Parallel against sequential inference", xlabel="time step $t$", ylabel="difference of outputs")
    whole_ticks(axes)
    whole_decades(axes)
    layer_legend(sheet)
    return sheet.figure
