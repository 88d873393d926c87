"""Plots of training runs. Drawing functions take arrays and return matplotlib figures. `run_figures` and
`comparison_figures` draw the figures of run folders; `plot` and `compare` write them as PNG, SVG or PDF files. With
``ax=`` a drawing function draws into axes of yours: one, or as many as its figure has panels.

matplotlib is an optional extra and is imported only when something is drawn. pyplot is never used, so there is no
global state, and no display is needed.
"""

from rotrnn.plots.accuracy import accuracy_by_iterations, accuracy_by_length, accuracy_by_tolerance
from rotrnn.plots.confusion import confusion_matrix
from rotrnn.plots.fixed_points import compare_iterations, inference_gap, iterations_over_training
from rotrnn.plots.learning import compare_learning, learning_curves, scores
from rotrnn.plots.pathfinder import pathfinder_sheet
from rotrnn.plots.runs import compare, comparison_figures, plot, run_figures
from rotrnn.plots.states import compare_norms, norms_along_sequence, norms_over_training, unit_disc

__all__ = [
    "accuracy_by_iterations",
    "accuracy_by_length",
    "accuracy_by_tolerance",
    "compare",
    "compare_iterations",
    "compare_learning",
    "compare_norms",
    "comparison_figures",
    "confusion_matrix",
    "inference_gap",
    "iterations_over_training",
    "learning_curves",
    "norms_along_sequence",
    "norms_over_training",
    "pathfinder_sheet",
    "plot",
    "run_figures",
    "scores",
    "unit_disc",
]
