"""How fixed points were reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rotrnn.ops.boundary import Array
from rotrnn.plots.style import (
    GREY,
    Groups,
    Series,
    by_depth,
    counted,
    draw_groups,
    height_for,
    layer_legend,
    looks,
    new_figure,
    side_legend,
    smooth,
    styled,
    whole_decades,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def iterations_over_training(
    iterations: Series, largest: Series, residual: Series, *, tol: float | None = None
) -> Figure:
    """Iterations and residuals of each block at each training step.

    Parameters
    ----------
    iterations, largest : (K,) and (K, L)
        Mean and largest number of iterations over the sequences of a batch, of L blocks; means are smoothed.
    residual : (K,) and (K, L)
        Largest residual of the last iteration.
    tol : float, optional
        The residual that was asked for.
    """
    figure, ((left, right),) = new_figure(7.6, 2.9, 1, 2)
    steps, means = iterations
    for block, colour in enumerate(by_depth(means.shape[1])):
        left.plot(steps, smooth(means[:, block]), color=colour, label=f"block {block + 1}")
        left.plot(largest[0], smooth(largest[1][:, block]), color=colour, linestyle=":", linewidth=1.0)
        right.plot(residual[0], residual[1][:, block], color=colour, linewidth=0.9, label=f"block {block + 1}")
    left.plot([], [], color=GREY, linestyle=":", linewidth=1.0, label="slowest\nsequence")
    left.set(title="Iterations to the fixed point", xlabel="training step", ylabel="iterations", ylim=(0, None))
    right.set(title="Residual of the last iteration", xlabel="training step", ylabel="largest of a batch")
    if tol is not None:
        right.axhline(tol, color=GREY, linestyle="--", linewidth=1.2, label=f"asked for ({tol:g})")
    for axes in (left, right):
        axes.set_xlim(left=0)
    whole_decades(right)
    side_legend(figure, [left, right])
    return figure


@styled
def compare_iterations(iterations: Groups, residual: Groups) -> Figure:
    """Mean iterations (smoothed) and largest residuals of configurations, over their runs."""
    figure, (panels,) = new_figure(7.8, height_for(len(iterations), 2.9), 1, 2)
    for axes, groups, title in (
        (panels[0], iterations, "Iterations to the fixed point"),
        (panels[1], residual, "Residual of the last iteration"),
    ):
        draw_groups(axes, counted({label: [(at, smooth(x)) for at, x in runs] for label, runs in groups.items()}))
        axes.set(title=title, xlabel="training step")
        axes.set_xlim(left=0)
    panels[0].set(ylabel="iterations", ylim=(0, None))
    panels[1].set_ylabel("largest of a batch")
    whole_decades(panels[1])
    side_legend(figure, panels)
    return figure


@styled
def inference_gap(gaps: Mapping[str, Array], *, tol: float | None = None) -> Figure:
    """How far parallel and sequential inference are apart along a sequence (Fixed-Point RNNs, Fig. 5).

    Parameters
    ----------
    gaps : dict
        By what it is of ("initial", "trained"), (T,) differences of outputs, of the largest output.
    tol : float, optional
        The residual at which iterations stop.
    """
    figure, ((axes,),) = new_figure(4.6, 2.9)
    for (label, gap), look in zip(gaps.items(), looks(len(gaps)), strict=True):
        axes.plot(np.arange(1, len(gap) + 1), gap, label=label, **look)
    if tol is not None:
        axes.axhline(tol, color=GREY, linestyle="--", linewidth=1.2, label=f"tolerance ({tol:g})")
    axes.set(title="Parallel against sequential inference", xlabel="time step $t$", ylabel="difference of outputs")
    if any(np.any(gap > 0) for gap in gaps.values()):
        whole_decades(axes)
    layer_legend(axes)
    return figure
