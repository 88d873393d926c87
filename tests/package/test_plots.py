"""Plots: lines show the given numbers, and figures are drawn from run folders only."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.text import Text

import toy
from rotrnn import plots
from rotrnn.cli import main
from rotrnn.nn.layer import Context
from rotrnn.plots.accuracy import merged
from rotrnn.plots.confusion import FEW, LONGEST, MOST, most_confused
from rotrnn.plots.runs import (
    GRIDS,
    evaluated,
    layer_series,
    lines_of,
    longest,
    median_iterations,
    series_of,
    spread,
    write_figures,
)
from rotrnn.plots.style import BLUE, ORANGE, USUAL, in_parts, looks, same_limits, smooth
from rotrnn.tasks import Copy, save_arrays
from rotrnn.tasks.task import FeatureSplit, Task
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe
from rotrnn.training.results import distinguishing
from rotrnn.training.run import Run

pytestmark = pytest.mark.whole


def lines(axes: Any) -> dict[str, np.ndarray]:
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def legend(figure: Any) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def test_smooth_is_the_mean_of_what_there_is() -> None:
    x = np.arange(7.0)
    np.testing.assert_allclose(smooth(x, 1), x)
    np.testing.assert_allclose(smooth(x, 3), [0.5, 1, 2, 3, 4, 5, 5.5])
    np.testing.assert_allclose(smooth(np.ones(2), 101), 1)
    x[2] = np.nan  # of a step that was left out
    np.testing.assert_allclose(smooth(x, 3), [0.5, 0.5, 2, 3.5, 4, 5, 5.5])
    np.testing.assert_array_equal(smooth(x, 1), x)
    x[2] = np.inf
    np.testing.assert_allclose(smooth(x, 3), [0.5, 0.5, 2, 3.5, 4, 5, 5.5])


def test_learning_curves_show_percent_baseline_and_test() -> None:
    steps = np.arange(1, 101)
    train_series = {"loss": (steps, 1 / steps), "accuracy": (steps, steps / 100)}
    validation = {"loss": (steps[9::10], 2 / steps[9::10]), "accuracy": (steps[9::10], steps[9::10] / 200)}
    figure = plots.learning_curves(train_series, validation, baseline=0.1, test=(90, 0.45))
    loss, accuracy = figure.axes
    np.testing.assert_allclose(lines(loss)["validation"], np.stack([steps[9::10], 2 / steps[9::10]], 1))
    np.testing.assert_allclose(lines(accuracy)["validation"][-1], [100, 50])
    np.testing.assert_allclose(lines(accuracy)["test (45.0 %)"], [[90, 45]])
    np.testing.assert_allclose(lines(accuracy)["most frequent class (10.0 %)"][:, 1], 10)
    assert plots.learning_curves({}, {}).axes  # a run that has logged nothing yet


def test_learning_curves_of_a_regression_show_all_skills() -> None:
    """Also those below zero, beside the mark of the test, at every step."""
    steps = np.array([25.0, 100.0])
    skill = (steps, np.array([-0.5, 0.8]))
    figure = plots.learning_curves({"loss": (steps, steps)}, {"loss": (steps, steps), "skill": skill}, test=(100, 0.7))
    axes = figure.axes[1]
    for limits, values in ((axes.get_xlim(), steps), (axes.get_ylim(), 100 * skill[1])):
        assert limits[0] <= values.min() < values.max() <= limits[1]
    assert legend(figure) == ["training", "validation", "test (70.0 %)"]
    with warnings.catch_warnings(action="error"):
        figure.canvas.draw()  # the layout has room for its panels


def test_learning_curves_of_whole_sequences_and_without_a_validation_part() -> None:
    one = (np.array([5, 10]), np.array([0.25, 0.5]))
    figure = plots.learning_curves({}, {"accuracy": one, "sequence_accuracy": one}, split="test")
    assert sorted(lines(figure.axes[1])) == ["test", "test, whole sequences"]
    np.testing.assert_allclose(lines(figure.axes[1])["test, whole sequences"], [[5, 25], [10, 50]])


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_unit_disc_has_a_panel_for_each_layer(layers: int) -> None:
    rng = np.random.default_rng(0)
    before, after = np.exp(1j * rng.uniform(0, 6, (2, layers, 100))) * 0.9
    figure = plots.unit_disc(list(before), list(after))
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"layer {i + 1}" for i in range(layers)]
    for layer, axes in enumerate(panels):
        points = [collection.get_offsets() for collection in axes.collections]
        np.testing.assert_allclose(points[0], np.stack([before[layer].real, before[layer].imag], 1))
        np.testing.assert_allclose(points[1], np.stack([after[layer].real, after[layer].imag], 1))


def test_norms() -> None:
    norms = np.random.default_rng(1).uniform(1, 2, (3, 50))
    (axes,) = plots.norms_along_sequence(norms).axes
    np.testing.assert_allclose(lines(axes)["layer 2"][:, 1], norms[1])
    (axes,) = plots.norms_over_training((np.arange(50), norms.T)).axes
    np.testing.assert_allclose(lines(axes)["layer 3"], np.stack([np.arange(50), norms[2]], 1))
    assert plots.norms_along_sequence(np.ones((1, 1))).axes


def test_series_of_a_log() -> None:
    records = [{"step": 1, "loss": 2.0}, {"step": 2, "val_loss": 3.0, "state_norms": [1.0, 2.0]}]
    steps, values = series_of(records, "state_norms")
    assert steps.tolist() == [2]
    assert values.tolist() == [[1.0, 2.0]]
    assert series_of(records, "accuracy") is None


# ---- several runs in one picture ----


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        ([], []),
        (["a"], [1]),
        ([f"{i}" for i in range(8)], [8]),
        ([f"{i}" for i in range(9)], [5, 4]),
        ([f"{i}" for i in range(17)], [6, 6, 5]),
        ([f"{layer},n={n}" for layer in "abc" for n in range(5)], [5, 5, 5]),
        ([f"a,n={n}" for n in range(11)], [8, 3]),
        (["a,1", "a,2", *"bcdefgh"], [5, 4]),
    ],
)
def test_many_configurations_are_drawn_in_parts(names: list[str], sizes: list[int]) -> None:
    parts = in_parts(dict.fromkeys(names, 0))
    assert [len(part) for part in parts] == (sizes or [0])
    assert [name for part in parts for name in part] == names


def test_parts_of_a_drawing_have_the_same_limits() -> None:
    axes = []
    for least, most in ((0, 3), (2, 5)):
        figure = plots.accuracy_by_tolerance({"a": [(np.array([0.1, 1.0]) * 10**most, np.array([least, most]) / 10)]})
        axes += figure.axes
    before = [(one.get_xlim(), one.get_ylim()) for one in axes]
    assert before[0] != before[1]
    same_limits([one.figure for one in axes])
    assert axes[0].get_xlim() == axes[1].get_xlim() == (before[1][0][0], before[0][0][1])  # falls to the right
    assert axes[0].get_ylim() == axes[1].get_ylim()


def test_every_configuration_looks_different() -> None:
    assert len({str(look) for look in looks(28)}) == 28


def test_learning_of_configurations() -> None:
    steps = np.arange(1, 11)
    group = [(steps, np.linspace(0, 0.5, 10)), (steps, np.linspace(0, 0.9, 10))]
    one = [(steps, np.full(10, 0.25))]
    figure = plots.compare_learning({"a": group, "b": one}, {"a": group, "b": one}, {"a": group, "b": one})
    for axes, factor in zip(figure.axes, (1, 1, 100), strict=True):
        first, second, other = (line.get_ydata() for line in axes.get_lines())
        np.testing.assert_allclose(first, factor * np.linspace(0, 0.5, 10))
        np.testing.assert_allclose(second, factor * np.linspace(0, 0.9, 10))
        np.testing.assert_allclose(other, factor * 0.25)
        assert not axes.collections  # no band around a mean that no run has
        assert len({line.get_color() for line in axes.get_lines()}) == 2
    assert legend(figure) == ["a (2 runs)", "b"]


@pytest.mark.filterwarnings("error")
def test_scores_of_no_configuration_have_limits() -> None:
    assert plots.scores({}, {}, name="accuracy").axes[0].get_ylim() == (0.5, -0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("residual", [0.0, 1.0, 1e-7])
def test_runs_that_are_all_alike(residual: float) -> None:
    """As those of a direct solver: axes have an extent, and nothing is warned of."""
    groups = {"a": [(np.arange(3), np.full(3, residual))]}
    low, high = plots.compare_iterations(groups, groups).axes[1].get_ylim()
    assert low <= residual < high
    low, high = plots.scores({"a": [0.0, 0.0]}, {"a": [0.0, 0.0]}, name="accuracy").axes[0].get_xlim()
    assert (low, high) == (-0.5, 0.5)


def test_a_configuration_keeps_its_look_where_others_are_missing() -> None:
    runs = [(np.arange(3), np.ones((3, 1)))]
    for figure in (
        plots.compare_norms({"a": [], "b": runs}),
        plots.compare_iterations({"a": [], "b": [(np.arange(3), np.ones(3))]}, {"a": [], "b": []}),
    ):
        assert legend(figure) == ["b"]
        assert figure.axes[0].get_lines()[0].get_color() == looks(2)[1]["color"]
    deep = [(np.arange(3), np.ones((3, 2)))]
    assert [axes.get_title() for axes in plots.compare_norms({"a": [], "b": deep}).axes] == ["b"]


def test_scores_are_dots_a_run_and_a_bar_for_the_mean() -> None:
    (axes,) = plots.scores({"a": [0.5, 0.7], "b": [0.9]}, {"a": [0.4, 0.4], "b": [0.8]}, name="accuracy").axes
    dots = [collection.get_offsets()[:, 0] for collection in axes.collections[:4]]
    for found, expected in zip(dots, ([50, 70], [40, 40], [90], [80]), strict=True):
        np.testing.assert_allclose(found, expected)
    bars = [line.get_xdata() for line in axes.get_lines() if len(line.get_xdata())]
    np.testing.assert_allclose(bars, [[60, 60], [90, 90]])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]


def test_norms_of_configurations() -> None:
    steps = np.array([0, 10])
    deep = [(steps, np.array([[1.0, 2], [3, 4]])), (steps, np.array([[3.0, 4], [5, 6]]))]
    figure = plots.compare_norms({"lru": deep, "rotrnn": deep[:1]})
    lru, rotrnn = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["lru (2 runs)", "rotrnn"]
    drawn = [
        line.get_xydata().tolist() for line in lru.get_lines() if line.get_color() == lru.get_lines()[2].get_color()
    ]
    assert drawn == [[[0, 2], [10, 4]], [[0, 4], [10, 6]]]
    np.testing.assert_allclose(lines(rotrnn)["layer 2"], [[0, 2], [10, 4]])
    assert lru.get_ylim() == rotrnn.get_ylim()
    (axes,) = plots.compare_norms({"lru": [(at, norms[:, :1]) for at, norms in deep]}).axes
    np.testing.assert_allclose(lines(axes)["lru (2 runs)"], [[0, 1], [10, 3]])


def test_titles_of_panels_do_not_run_into_each_other() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    deep = [(np.array([0, 10]), np.array([[1.0, 2], [3, 4]]))]
    labels = [f"layer.d_state={n},layer.r_max=0.999,training.steps=400" for n in (8, 16, 32, 64)]
    figure = plots.compare_norms(dict.fromkeys(labels, deep))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [axes.title.get_window_extent(canvas.get_renderer()) for axes in figure.axes]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_long_labels_leave_the_panels_their_width() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    def width(label: str) -> float:
        figure = plots.compare_learning(*[{label: [(np.arange(5), np.arange(5.0))]}] * 3)
        FigureCanvasAgg(figure).draw()
        return float(figure.axes[0].get_window_extent().width)

    long = "layer.d_state=8," * 6
    assert width(long) > 0.95 * width(long[:USUAL])


# ---- accuracy against length and iterations ----


POINTS = st.lists(st.tuples(st.integers(0, 250), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30)


@given(POINTS.filter(lambda rows: any(n for n, _, _ in rows)))
@example([(100, 0.5, 0.5), (0, 0.5, 0.5)])
def test_merged_lengths_keep_the_mean(rows: list[tuple[int, float, float]]) -> None:
    n, accuracy, whole = (np.array(column, float) for column in zip(*rows, strict=True))
    length = np.arange(3, 3 + len(n))
    found = merged({"length": length, "n": n, "accuracy": accuracy, "sequence_accuracy": whole})
    assert sum(found["n"]) == n.sum()
    assert min(found["n"]) >= min(100, n.sum())
    for name, values in (("length", length), ("accuracy", accuracy), ("sequence_accuracy", whole)):
        mean = np.average(found[name], weights=found["n"])
        np.testing.assert_allclose(mean, np.average(values, weights=n), rtol=1e-12, atol=1e-15)
    if n.min() >= 100:
        assert found["length"] == length.tolist()


def test_accuracy_by_length() -> None:
    curve = {"length": [1, 2, 3], "n": [200] * 3, "accuracy": [1.0, 0.8, 0.6], "sequence_accuracy": [1.0, 0.7, 0.4]}
    other = {**curve, "sequence_accuracy": [0.8, 0.5, 0.2]}
    figure = plots.accuracy_by_length({"a": [curve, other]}, trained=[2, 2], carried=[10], chance=0.2, iterations=1.5)
    labels, whole = figure.axes
    np.testing.assert_allclose(lines(labels)["a (2 runs)"], [[1, 100], [2, 80], [3, 60]])
    first, second = (line.get_ydata() for line in whole.get_lines()[:2])
    np.testing.assert_allclose(first, [100, 70, 40])
    np.testing.assert_allclose(second, [80, 50, 20])
    assert lines(whole)["a (2 runs)"][:, 1].tolist() == first.tolist()
    np.testing.assert_allclose(lines(whole)["longest in a batch (2)"][:, 0], 2)
    np.testing.assert_allclose(lines(whole)["carried on, in the mean (10)"][:, 0], 10)
    np.testing.assert_allclose(lines(whole)["median number of iterations at test (1.5)"][:, 0], 1.5)
    np.testing.assert_allclose(lines(labels)["guessing (20.0 %)"][:, 1], 20)
    assert "guessing (20.0 %)" not in lines(whole)
    assert len(legend(figure)) == 5


def test_one_panel_where_sequences_have_one_label() -> None:
    curve = {"length": [1, 2], "n": [200] * 2, "accuracy": [1.0, 0.8], "sequence_accuracy": [1.0, 0.8]}
    (axes,) = plots.accuracy_by_length({"a": [curve]}).axes
    np.testing.assert_allclose(lines(axes)["a"], [[1, 100], [2, 80]])


def test_accuracy_by_iterations() -> None:
    caps = np.array([2, 8, 32])
    figure = plots.accuracy_by_iterations({"a": [(caps, caps / 64)]}, length=40, trained=20)
    (axes,) = figure.axes
    np.testing.assert_allclose(lines(axes)["a"], np.stack([caps, 100 * caps / 64], 1))
    np.testing.assert_allclose(lines(axes)["longest sequence (40)"][:, 0], 40)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2", "8", "32"]


# ---- fixed points ----


def test_iterations_of_a_log() -> None:
    records = [
        {"step": 1, "loss": 1.0, "layers": {"0.iterations": 2.0, "10.iterations": 3.0, "2.iterations": 4.0}},
        {"step": 1, "val_loss": 1.0},
        {"step": 2, "loss": 1.0, "layers": {"0.iterations": 5.0, "10.iterations": 6.0, "2.iterations": 7.0}},
    ]
    steps, values = layer_series(records, "iterations")
    assert steps.tolist() == [1, 2]
    assert values.tolist() == [[2, 4, 3], [5, 7, 6]]  # blocks in their order
    assert layer_series(records, "residual") is None


def test_iterations_over_training() -> None:
    steps = np.arange(5)
    means = np.stack([steps + 1.0, steps + 2.0], 1)
    figure = plots.iterations_over_training((steps, means), (steps, 2 * means), (steps, means / 100), tol=0.1)
    left, right = figure.axes
    np.testing.assert_allclose(lines(left)["block 2"][:, 1], steps + 2)
    np.testing.assert_allclose(lines(right)["block 1"][:, 1], (steps + 1) / 100)
    np.testing.assert_allclose(lines(right)["tolerance (0.1)"][:, 1], 0.1)
    np.testing.assert_allclose(right.get_ylim(), [1e-3, 1])  # whole decades around 0.01 and 0.1, with a margin


def test_inference_gap() -> None:
    gap = np.array([1e-7, 1e-5, 1e-3])
    (axes,) = plots.inference_gap({"initial": gap, "trained": 2 * gap}, tol=0.1).axes
    np.testing.assert_allclose(lines(axes)["trained"], np.stack([[1, 2, 3], 2 * gap], 1))
    assert plots.inference_gap({"initial": np.zeros(2)}).axes[0].get_yscale() == "linear"


# ---- confusion ----


def test_confusion_matrix_has_shares_of_rows() -> None:
    counts = np.array([[3, 1, 0], [0, 0, 0], [2, 0, 2]])
    axes, _ = plots.confusion_matrix(counts, ["a", "b", "c"]).axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[75, 25, 0], [0, 0, 0], [50, 0, 50]])
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["75", "25", "50", "50"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize("counts", [np.full((3, 3), 200, np.uint8), np.full((3, 3), 2**61), np.full((3, 3), 0.1)])
def test_confusion_matrix_of_any_numbers(counts: np.ndarray) -> None:
    """A hundred times a number overflowed its dtype, and shares of the whole were drawn as shares of the row."""
    axes, _ = plots.confusion_matrix(counts).axes
    np.testing.assert_allclose(axes.images[0].get_array(), np.full((3, 3), 100 / 3))


def test_confusion_matrix_without_answers() -> None:
    """As of parameters whose outputs are NaN: it warned of limits that are equal, and showed no class."""
    axes, _ = plots.confusion_matrix(np.zeros((2, 2), int), ["a", "b"]).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert not np.any(axes.images[0].get_array())


def test_of_many_classes_the_most_confused_come_first() -> None:
    right = np.array([*range(1, FEW + 2), 0])  # the last class is never there, nor answered
    counts = np.diag(right)
    counts[:-1, 0] += FEW + 1 - right[:-1]
    assert most_confused(counts)[:2].tolist() == [1, 2]  # the first class is always right
    assert len(most_confused(counts)) == FEW + 1
    answered = counts.copy()
    answered[1, FEW + 1] = 1  # and now answered once
    assert most_confused(answered)[-1] == FEW + 1
    figure = plots.confusion_matrix(counts)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array()[0, 0], 100 * 2 / (FEW + 1))
    assert figure.get_suptitle() == "Confusion matrix\nmost confused first"
    figure = plots.confusion_matrix(np.eye(MOST + 5, dtype=int))
    assert figure.get_suptitle().endswith(f"most confused first, {MOST} of {MOST + 5}")


@pytest.mark.parametrize(
    ("counts", "labels", "message"),
    [
        (np.ones((2, 3)), None, r"counts has shape \(2, 3\), expected \(C, C\)"),
        (np.ones((0, 0)), None, r"counts has shape \(0, 0\), expected \(C, C\), C from 1"),
        (np.array([[1, -1], [0, 2]]), None, "counts has -1, expected numbers from 0"),
        (np.array([[1, np.nan], [0, 2]]), None, "counts has nan, expected numbers from 0"),
        (np.array([["a"]]), None, "counts has dtype <U1, expected integers"),
        (np.ones((2, 2)), ["a"], "1 label, expected 2"),
    ],
)
def test_a_confusion_matrix_that_is_none(counts: np.ndarray, labels: list[str] | None, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^confusion_matrix: {message}"):
        plots.confusion_matrix(counts, labels)


# ---- names from elsewhere ----


@pytest.mark.parametrize("name", ["a $^$ b", "$x$", r"\$", "_under", "__MACOSX", "_nolegend_", "$"])
def test_a_name_is_written_letter_by_letter(name: str) -> None:
    """Dollars would be a formula, here one that is none, and a legend leaves out what begins with an underscore."""
    groups = {name: [ONE, ONE], "b": [ONE]}
    figures = (
        plots.compare_learning(groups, groups, groups),
        plots.scores({name: [0.5]}, {name: [0.4]}, name="accuracy"),
        plots.confusion_matrix(np.eye(2), [name, "b"]),
        plots.compare_norms({name: [(ONE[0], np.ones((len(ONE[0]), 3)))] * 2}),
        plots.inference_gap({name: np.ones(3)}),
    )
    for figure in figures:
        figure.draw_without_rendering()
        seen = [text for text in figure.findobj(Text) if text.get_visible()]
        written = [text._preprocess_math(text.get_text()) for text in seen if text.get_text()]
        assert name in [one.strip().removesuffix(" (2 runs)") for one, is_math in written if not is_math]


def test_long_names_of_classes_keep_their_room() -> None:
    names = [f"a name that is the longer the later it comes {'.' * 5 * i}{i}" for i in range(20)]
    axes, _ = (figure := plots.confusion_matrix(np.eye(20, dtype=int), names)).axes
    figure.draw_without_rendering()
    assert axes.get_position().width * figure.get_figwidth() > 0.17 * 20  # as with numbers
    assert max(len(text.get_text()) for text in axes.get_yticklabels()) == LONGEST + 3
    assert len({text.get_text() for text in axes.get_yticklabels()}) == 20


def test_the_legend_of_scores_is_in_the_picture() -> None:
    figure = plots.scores({"a": [0.5]}, {"a": [0.4]}, name="accuracy")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


# ---- Pathfinder ----


def test_pathfinder_sheet_shows_every_image_framed_by_its_label() -> None:
    images = np.arange(10 * 4 * 4, dtype=np.uint8).reshape(10, 4, 4)
    labels = np.arange(10) % 2
    figure = plots.pathfinder_sheet(images, labels)
    shown = [axes for axes in figure.axes if axes.get_images()]
    assert len(shown) == 10
    for axes, image, label in zip(shown, images, labels, strict=True):
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), image)
        assert axes.get_images()[0].get_clim() == (0, 255)
        assert axes.spines["left"].get_edgecolor() == to_rgba((ORANGE, BLUE)[label])
    assert legend(figure) == ["markers on two contours (label 0)", "on one (label 1)"]


# ---- run folders ----


def test_a_run_is_drawn_from_its_folder(tmp_path: Path) -> None:
    recipe = load_recipe("digits-rotrnn", ["training.steps=4", "training.eval_every=2", "model.d_model=8"])
    result = train(recipe, tmp_path / "run", progress=False)
    paths = plots.plot(tmp_path / "run")
    names = ["learning", "eigenvalues", "norms", "norms_over_training", "confusion"]
    assert paths == [tmp_path / "run" / "plots" / f"{name}.png" for name in names]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    there = plots.plot(tmp_path / "run", tmp_path / "run" / "plots")  # elsewhere, or over what is there
    assert there == paths
    for kind, first in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        several = plots.plot(tmp_path / "run", tmp_path / "new" / f"digits.{kind}")
        assert several == [tmp_path / "new" / f"digits-{name}.{kind}" for name in names]
        assert all(path.read_bytes().startswith(first) for path in several)
    figure = plots.run_figures(tmp_path / "run")["learning"]
    assert write_figures({"learning": figure}, tmp_path / "one.pdf") == [tmp_path / "one.pdf"]
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")

    figures = plots.run_figures(tmp_path / "run")
    # from the first step on, divided by the root of the reals in a state
    drawn = lines(figures["norms_over_training"].axes[0])["layer 1"]
    logged = [one["state_norms"][0] for one in Run(tmp_path / "run").records() if "state_norms" in one]
    np.testing.assert_allclose(drawn, np.stack([[0, 2, 4], np.array(logged) / recipe.layer.d_state**0.5], 1))
    model, initial = recipe.build(recipe.task.load()), Run(tmp_path / "run").load_params("init")
    batch = recipe.task.load().val.batch(np.arange(recipe.training.batch))
    expected = model.state_norms(initial, batch.inputs, Context(batch.lengths)).mean(1)
    np.testing.assert_allclose(logged[0], expected[0], rtol=1e-6)
    best = 100 * result["test"]["best"]["accuracy"]
    assert figures["confusion"].get_suptitle() == f"Best parameters on the test split: {best:.1f} % right"
    test = recipe.task.load().test
    baseline = 100 * np.bincount(test.labels).max() / len(test)
    np.testing.assert_allclose(
        lines(figures["learning"].axes[1])[f"most frequent class ({baseline:.1f} %)"][:, 1], baseline
    )


def own_run(folder: Path, y: Any, *, layer: str = "min_gru", **settings: Any) -> Path:
    """A run of one step on arrays that are beside it."""
    save_arrays(folder / "own.npz", np.random.default_rng(0).standard_normal((len(y), 4, 2)), y)
    recipe = {
        "task": {"name": "arrays", "path": str(folder / "own.npz"), **settings},
        "model": {"layer": layer, "d_model": 4, "n_layers": 1, "norm": "layer"},
        "layer": {"d_state": 4},
        "optimiser": {"lr": 0.004},
        "training": {"batch": 4, "steps": 1, "eval_every": 1},
    }
    train(recipe, folder / f"run{len(settings)}", progress=False)
    return folder / f"run{len(settings)}"


def test_another_file_of_data_is_read_by_the_rules_of_the_run(tmp_path: Path) -> None:
    """Its scale and its numbers of classes are those of training. It was drawn as the run's, without a warning."""
    y = np.arange(20) % 3
    run = own_run(tmp_path, y)
    x = 100 + 10 * np.random.default_rng(1).standard_normal((20, 4, 2))
    save_arrays(tmp_path / "own.npz", x, np.maximum(y, 1))
    with pytest.warns(UserWarning, match=r"own\.npz: is not the file that the run was trained on"):
        (axes, *_) = plots.run_figures(run)["confusion"].axes
    assert [one.get_text() for one in axes.get_xticklabels()] == ["0", "1", "2"]
    save_arrays(tmp_path / "own.npz", x, y + 1)
    with (
        pytest.warns(UserWarning, match="is not the file"),
        pytest.raises(ValueError, match="has the class '3', expected one of 0, 1, 2 as in training"),
    ):
        plots.run_figures(run)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_run_without_its_data_is_drawn_as_far_as_its_folder_goes(
    tmp_path: Path, kind: str, ended: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = own_run(tmp_path, np.arange(20) % 3, layer="lru", kind=kind)
    if not ended:
        (run / "result.json").unlink()
    whole = plots.run_figures(run)
    (tmp_path / "own.npz").unlink()
    with pytest.warns(UserWarning, match=r"drawn without what needs the data: .*own\.npz, which does not exist"):
        found = plots.run_figures(run)
    assert set(whole) - set(found) == {"norms", *(["confusion"] if kind == "classification" else [])}
    assert list(found) == ["learning", "eigenvalues", "norms_over_training"]
    for name, figure in found.items():
        for axes, others in zip(figure.axes, whole[name].axes, strict=True):
            drawn, known = lines(axes), lines(others)
            assert [one for one in known if one not in drawn and not one.startswith("most frequent class")] == []
            for label, line in drawn.items():
                np.testing.assert_array_equal(line, known[label])
    with pytest.warns(UserWarning, match="drawn without what needs the data"):
        assert len(plots.plot(run)) == 3
    assert main(["groups", str(run)]) == 0
    text = capsys.readouterr().out
    assert "recurrent              5         44" in text
    assert main(["groups", str(run / "recipe.toml")]) == 0
    assert capsys.readouterr().out == text
    (run / "init.safetensors").unlink()
    assert main(["groups", str(run)]) == 2
    assert "own.npz, which does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layer", "settings", "names"),
    [
        ("mamba", {}, ["learning", "confusion"]),
        ("lstm", {}, ["learning", "norms", "norms_over_training", "confusion"]),
        (
            "fixed_point",
            {"max_iterations": 5},
            ["learning", "norms", "norms_over_training", "iterations", "inference", "confusion"],
        ),
        (
            "fixed_point",
            {"max_iterations": 5, "bidirectional": True},
            ["learning", "norms", "norms_over_training", "iterations", "confusion"],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
def test_a_run_of_a_layer_without_eigenvalues(
    layer: str, settings: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    overrides = [f"layer.{key}={json.dumps(value)}" for key, value in {"d_state": 4, **settings}.items()]
    recipe = load_recipe("digits-lru", [f"model.layer={layer}", "training.steps=2", "model.d_model=8", *overrides])
    train(recipe, tmp_path / "run", progress=False)
    assert list(plots.run_figures(tmp_path / "run")) == names


def toy_run(folder: Path, *overrides: str) -> None:
    path = folder.parent / "toy.toml"
    path.write_text(toy.RECIPE, encoding="utf-8")
    train(load_recipe(path, ["training.steps=10", *overrides]), folder, progress=False)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rates with two seeds each, a third run without an evaluation, and a file that is not a run."""
    folder = tmp_path_factory.mktemp("sweep")
    for rate in (0.05, 0.2):
        for seed in (0, 1):
            toy_run(folder / f"lr={rate},seed={seed}", f"optimiser.lr={rate}", f"training.seed={seed}")
    (folder / "begun").mkdir()
    text = (folder / "lr=0.2,seed=1" / "recipe.toml").read_text(encoding="utf-8")
    (folder / "begun" / "recipe.toml").write_text(text.replace("\nseed = 1\n", "\nseed = 2\n"), encoding="utf-8")
    (folder / "results.md").touch()
    return folder


def test_a_sweep_is_drawn(sweep: Path) -> None:
    with pytest.warns(UserWarning, match="skipped runs without an evaluation: .*begun"):
        figures = plots.comparison_figures([sweep])
    assert list(figures) == ["learning", "scores", "norms_over_training"]
    logs = [(sweep / f"lr=0.2,seed={seed}" / "log.jsonl").read_text(encoding="utf-8").splitlines() for seed in (0, 1)]
    found = [[one["val_accuracy"] for line in log if "val_accuracy" in (one := json.loads(line))] for log in logs]
    drawn = [line for line in figures["learning"].axes[2].get_lines() if line.get_color() == looks(2)[1]["color"]]
    assert drawn[0].get_label() == "optimiser.lr=0.2 (2 runs)"
    for line, values in zip(drawn, found, strict=True):
        np.testing.assert_allclose(line.get_xdata(), [7, 10])
        np.testing.assert_allclose(line.get_ydata(), 100 * np.array(values))
    norms = [[one["state_norms"][0] for line in log if "state_norms" in (one := json.loads(line))] for log in logs]
    drawn = lines(figures["norms_over_training"].axes[0])["optimiser.lr=0.2 (2 runs)"]
    np.testing.assert_allclose(drawn, np.stack([[0, 7, 10], np.mean(norms, 0) / 8**0.5], 1))  # LRU with 4 states


REGRESSION = """
[task]
name = "series"
path = "sales.csv"
window = 8
[model]
layer = "lru"
d_model = 4
n_layers = 1
[layer]
d_state = 4
[training]
batch = 4
steps = 2
eval_every = 1
"""


@pytest.mark.parametrize("ended", [True, False])
def test_regressions_are_drawn_by_skill_and_not_beside_others(tmp_path: Path, ended: bool) -> None:
    (tmp_path / "sales.csv").write_text("a\n" + "".join(f"{i % 7}\n" for i in range(80)), encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(REGRESSION, encoding="utf-8")
    train(load_recipe(tmp_path / "recipe.toml"), tmp_path / "a", progress=False)
    if not ended:
        (tmp_path / "a" / "result.json").unlink()
    axes = plots.comparison_figures([tmp_path / "a"])["learning"].axes
    assert [one.get_ylabel() for one in axes] == ["loss", "loss", "%"]
    assert axes[2].get_title() == "Validation skill"
    assert len(axes[2].get_lines()[0].get_xdata()) == 2
    toy_run(tmp_path / "b")
    with pytest.raises(ValueError, match=r"a is a regression and .*b is not, expected runs with one kind of score"):
        plots.comparison_figures([tmp_path / "a", tmp_path / "b"])


def test_lengths_of_a_sweep_are_drawn_from_its_results(tmp_path: Path) -> None:
    for seed, accuracy in ((0, 0.5), (1, 0.9)):
        folder = tmp_path / f"seed={seed}"
        toy_run(folder, f"training.seed={seed}")
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        curve = {"length": [5], "n": [300], "accuracy": [accuracy], "sequence_accuracy": [accuracy]}
        result["test"]["best"]["curve"] = result["test"]["last"]["curve"] = curve
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (axes,) = plots.comparison_figures([tmp_path])["length"].axes
    np.testing.assert_allclose([line.get_xydata()[0] for line in axes.get_lines()[:2]], [[5, 50], [5, 90]])
    assert axes.get_lines()[0].get_label() == "task=toy,layer=lru (2 runs)"
    np.testing.assert_allclose(lines(axes)[f"longest in a batch ({toy.T})"][:, 0], toy.T)


def test_a_line_of_guessing_is_that_of_the_most_frequent_label(tmp_path: Path) -> None:
    """Of brackets without multiplication it is right more often than one label of five."""
    settings = ["task.test=300", "task.val=50", "task.test_max_length=60", "training.steps=2", "training.eval_every=1"]
    recipe = load_recipe("brackets-small", [*settings, "task.operators=+-", "model.d_model=8", "layer.d_state=4"])
    train(recipe, tmp_path / "seed=0", progress=False)
    (axes,) = plots.comparison_figures([tmp_path])["length"].axes
    task = recipe.task.load()
    values = np.array([labels.max() for labels in task.test.batch(np.arange(300)).labels])
    frequent = max(range(5), key=lambda one: np.mean(values == one))
    expected = 100 * max(np.mean(values == frequent), 0.2)
    found = [line for label, line in lines(axes).items() if label.startswith("guessing")]
    assert len(found) == 1
    assert found[0][0, 1] >= 20
    assert found[0][0, 1] <= expected + 1e-9  # the label that is most frequent in training


def test_sequences_that_go_on_are_drawn_at_the_steps_that_they_read() -> None:
    """1 / (1 - carry) batches of nine products in the mean, of lengths 2 to 16."""
    few = ["task.samples=2_000", "task.val_fraction=0.1", "task.test=4"]
    names = ("word-problem-carry-delta", "word-problem-carry-s5")
    whole, several = (lines_of([load_recipe(f"{name}-small", few).task.load()]) for name in names)
    assert whole["trained"] == several["trained"] == [16]
    assert whole["carried"] == pytest.approx([16 / 0.2])
    assert several["carried"] == pytest.approx([9 / 0.2], rel=0.05)  # 1,024 lengths: a deviation of 4.3 / 32 is 1.5 %
    assert lines_of([load_recipe("word-problem-small", few).task.load()])["carried"] == []


def test_tolerances_are_drawn_from_their_file(tmp_path: Path) -> None:
    toy_run(tmp_path, "training.seed=0")
    found = [{"point": f"tol={tol}", "accuracy": a} for tol, a in (("0.1", 0.2), ("1e-05", 0.9), ("0.01", 0.5))]
    (tmp_path / "tolerances.json").write_text(json.dumps(found), encoding="utf-8")
    (axes,) = plots.run_figures(tmp_path)["tolerances"].axes
    np.testing.assert_allclose(lines(axes)["this run"], [[1e-5, 90], [0.01, 50], [0.1, 20]])
    assert axes.get_xlim()[0] > axes.get_xlim()[1]
    (tmp_path / "tolerances.json").write_text('[{"point": "tol=0.0", "accuracy": 1}]', encoding="utf-8")
    with pytest.raises(ValueError, match=r"tolerances.json: .* is not accuracy at tol=N, expected the output"):
        plots.run_figures(tmp_path)


def test_caps_on_iterations_are_drawn_from_their_file(tmp_path: Path) -> None:
    for seed, accuracies in ((0, [0.5, 0.9]), (1, [0.7, 0.7])):
        toy_run(tmp_path / f"seed={seed}", f"training.seed={seed}")
        found = [{"point": f"max_iterations={n}", "accuracy": a} for n, a in zip((8, 2), accuracies, strict=True)]
        (tmp_path / f"seed={seed}" / "iterations.json").write_text(json.dumps(found), encoding="utf-8")
    (axes,) = plots.comparison_figures([tmp_path])["caps"].axes
    drawn = [line.get_ydata().tolist() for line in axes.get_lines()]
    assert drawn == [pytest.approx([90, 50]), pytest.approx([70, 70])]
    for text, message in (
        ("{", "iterations.json: is damaged"),
        ('[{"point": "rank=1", "accuracy": 1}]', "is not accuracy at max_iterations=N"),
        ('[{"point": "max_iterations=1", "loss": 1}]', "is not accuracy at max_iterations=N"),
        ("[3]", "3 is not accuracy at max_iterations=N"),
    ):
        (tmp_path / "seed=0" / "iterations.json").write_text(text, encoding="utf-8")
        with pytest.warns(UserWarning, match=f"skipped.*: .*{message}"):
            (axes,) = plots.comparison_figures([tmp_path])["caps"].axes
        np.testing.assert_allclose(lines(axes)["task=toy,layer=lru"], [[2, 70], [8, 70]])  # the other run's
        with pytest.raises(ValueError, match=message):
            evaluated(Run(tmp_path / "seed=0"), "accuracy", GRIDS["caps"])


def test_what_cannot_be_read_stops_no_other(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rate in (0.05, 0.2):
        shutil.copytree(sweep / f"lr={rate},seed=0", tmp_path / f"lr={rate}")
    with open(tmp_path / "lr=0.2" / "log.jsonl", "r+b") as log:
        log.write(b"?")
    assert main(["plot", str(tmp_path), str(tmp_path / "none"), "--out", str(tmp_path / "plots")]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert f"warning: skipped a run that cannot be read: {tmp_path}/lr=0.2/log.jsonl, line 1: is damaged" in err
    assert f"warning: skipped a run that cannot be read: {tmp_path}/none: is not the folder of a run" in err
    shutil.rmtree(tmp_path / "lr=0.05")
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "plots")]) == 2


def test_the_command_draws_runs_and_sweeps(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plot", str(sweep)]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [
        str(sweep / "plots" / f"{name}.png") for name in ("learning", "scores", "norms_over_training")
    ]
    assert "rotrnn: warning: skipped" in err
    monkeypatch.chdir(sweep)
    runs = ["lr=0.05,seed=0", "lr=0.2,seed=0"]
    assert main(["plot", *runs]) == 0
    assert capsys.readouterr().out.split()[0] == str(sweep / "plots" / "learning.png")
    assert main(["plot", *runs, "--out", str(tmp_path / "pictures")]) == 0
    assert capsys.readouterr().out.split()[0] == str(tmp_path / "pictures" / "learning.png")


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ([{"model.layer": "lru", "layer.r_max": 0.9}], []),
        (
            [{"model.layer": "lru", "layer.r_max": 0.9}, {"model.layer": "rotrnn", "layer.heads": 4}],
            ["model.layer"],
        ),
        (  # what sets only some of them apart is not enough
            [{"model.layer": "lru"}, *({"model.layer": "fixed_point", "layer.rank": rank} for rank in (1, 2))],
            ["model.layer", "layer.rank"],
        ),
        (  # what changes together is told once, by the layer's setting
            [{"model.layer": "a", "model.d_model": d, "layer.d_state": d} for d in (8, 16)],
            ["layer.d_state"],
        ),
        (
            [
                {"model.layer": "a", "task.name": "words", "optimiser.lr": lr, "task.group": group}
                for group in ("A5", "S5")
                for lr in (1e-3, 2e-5)
            ],
            ["task.group", "optimiser.lr"],
        ),
        ([{"model.layer": "a", "layer.window": 4}, {"model.layer": "a"}], ["layer.window"]),
    ],
)
def test_configurations_are_named_by_few_settings(settings: list[dict[str, Any]], places: list[str]) -> None:
    assert distinguishing(settings) == places


def test_the_longest_training_example() -> None:
    split = FeatureSplit(np.zeros((5000, 7, 1)), np.zeros(5000, np.int64))
    assert longest(Task("flat", split, split, split, 2, None, 1, curve="length")) == 7
    tagged = FeatureSplit(np.zeros((4, 9, 1)), np.zeros((4, 9), np.int64))
    assert longest(Task("tagged", tagged, tagged, tagged, 2, None, 1, curve="prefix", bos=True)) == 8
    assert longest(Copy(max_length=30, context=100).load()) == 30  # letters, not the tokens of rows full of strings


def test_the_median_of_iterations_is_of_sequences_of_all_lengths() -> None:
    """The test split of copying is ordered by length, and longer strings take more iterations."""
    recipe = load_recipe("copy-small", ["model.d_model=16", "layer.tol=1e-4"])
    task = recipe.task.load()
    model = recipe.build(task)
    params = model.init(np.random.default_rng(0))

    def iterations(index: np.ndarray) -> np.ndarray:
        batch = task.test.batch(index)
        _, saved = model.forward(params, batch.inputs, Context(batch.lengths))
        return saved.blocks.blocks[0].layer.report.iterations

    index = spread(len(task.test), 64)
    assert (index[0], index[-1], len(index)) == (0, len(task.test) - 1, 64)
    found = iterations(index)
    assert median_iterations(model, params, task, "float32") == np.median(found) != np.mean(found)
    assert np.median(found) > iterations(np.arange(64)).max()


def test_folders_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the folder of a run"):
        plots.plot(tmp_path)
    with pytest.raises(ValueError, match="is not the folder of a run"):
        plots.compare([tmp_path], tmp_path / "plots")
    (tmp_path / "begun").mkdir()
    recipe = load_recipe("digits-lru")
    (tmp_path / "begun" / "recipe.toml").write_text(recipe.text(), encoding="utf-8")
    with pytest.warns(UserWarning, match="begun"), pytest.raises(ValueError, match="none of 1 run has an evaluation"):
        plots.compare([tmp_path], tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_a_kind_of_picture_that_needs_latex_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"a\.pgf: cannot be drawn as pgf: 'xelatex' not found"):
        write_figures({"a": plots.norms_along_sequence(np.ones((1, 2)))}, tmp_path / "a.pgf")
    assert not [*tmp_path.iterdir()]


def test_what_is_no_folder(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: Any = sweep / "lr=0.2,seed=0"
    odd: Any = None
    number: Any = 3
    for call, message in (
        (lambda: plots.plot(odd), "plot: run_dir is a NoneType, expected the path of a folder"),
        (lambda: plots.plot(run, number), "plot: out is an int, expected the path of a folder"),
        (lambda: plots.run_figures(odd), "run_figures: run_dir is a NoneType, expected the path of a folder"),
        (lambda: plots.compare([run], odd), "compare: out is a NoneType, expected the path of a folder"),
        (lambda: plots.comparison_figures(odd), "comparison_figures: folders has a NoneType, expected the path of a"),
        (lambda: plots.compare([run, odd], tmp_path), "comparison_figures: folders has a NoneType, expected the path"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    shutil.copytree(run, tmp_path / "run")
    for file in (tmp_path / "file", tmp_path / "run" / "plots"):
        file.touch()
    for place in (tmp_path / "file", tmp_path / "file" / "lru.svg"):
        with pytest.raises(ValueError, match=r"compare: out .*file: is a file, expected a folder"):
            plots.compare([run], place)
    assert main(["plot", str(tmp_path / "file")]) == 2
    assert f"error: plot: run_dir {tmp_path}/file: is a file, expected a folder" in capsys.readouterr().err
    assert main(["plot", str(tmp_path / "run")]) == 2
    assert f"error: plot: out {tmp_path}/run/plots: is a file, expected a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pictures.txt", "a.csv", "lru.jpgg", "lru.mp4"])
def test_a_name_that_ends_as_no_picture_does_is_refused(
    sweep: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It became a folder of this name."""
    for runs in ([sweep / "lr=0.2,seed=0"], [sweep]):
        assert main(["plot", *map(str, runs), "--out", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert f": out is {tmp_path / name}, expected a folder, or a name that ends as a picture does: ." in said
        assert {".pdf,", ".png,", ".svg,"} < set(said.split())
    assert not any(tmp_path.iterdir())
    (tmp_path / name).mkdir()
    for place in (tmp_path / name, tmp_path / "lr=0.5", tmp_path / "v1.2,seed=0"):
        assert plots.plot(sweep / "lr=0.2,seed=0", place)[0] == place / "learning.png"


def test_one_folder_is_as_good_as_several(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweep)
    assert plots.compare("lr=0.2,seed=0", tmp_path / "a.svg") == plots.compare(["lr=0.2,seed=0"], tmp_path / "a.svg")


def test_a_log_without_records_is_told(sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(sweep / "lr=0.2,seed=0", tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").write_bytes(b"\0\1")
    with pytest.warns(UserWarning, match=r"log\.jsonl: has no record that can be read, the curves of training are em"):
        plots.run_figures(tmp_path / "run")


def test_matplotlib_is_optional() -> None:
    code = (
        "import sys, numpy as np\n"
        "sys.modules['matplotlib'] = None\n"
        "from rotrnn import plots\n"
        "try:\n    plots.norms_along_sequence(np.ones((1, 2)))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "plots need matplotlib, which is not installed; pip install 'rotrnn[plot]'"


# ---- into axes that are given ----

ONE = (np.array([5, 10]), np.array([0.25, 0.5]))
TWO = (np.array([5, 10]), np.array([[0.25, 0.5], [0.5, 1.0]]))
DISC = [np.exp(1j * np.arange(4.0)) * 0.9] * 2
CURVE = {"length": [4, 8], "n": [200, 200], "accuracy": [0.9, 0.8], "sequence_accuracy": [0.9, 0.6]}
DRAWN: dict[str, tuple[int, Any]] = {
    "accuracy_by_iterations": (1, lambda **to: plots.accuracy_by_iterations({"a": [ONE]}, **to)),
    "accuracy_by_tolerance": (1, lambda **to: plots.accuracy_by_tolerance({"a": [ONE]}, **to)),
    "accuracy_by_length": (2, lambda **to: plots.accuracy_by_length({"a": [CURVE]}, chance=0.1, **to)),
    "compare_iterations": (2, lambda **to: plots.compare_iterations({"a": [ONE]}, {"a": [ONE]}, **to)),
    "compare_learning": (3, lambda **to: plots.compare_learning(*[{"a": [ONE]}] * 3, **to)),
    "compare_norms": (2, lambda **to: plots.compare_norms({"a": [TWO], "b": [TWO]}, **to)),
    "confusion_matrix": (1, lambda **to: plots.confusion_matrix(np.eye(3), title="Digits", **to)),
    "inference_gap": (1, lambda **to: plots.inference_gap({"trained": np.ones(3)}, tol=0.1, **to)),
    "iterations_over_training": (2, lambda **to: plots.iterations_over_training(TWO, TWO, TWO, **to)),
    "learning_curves": (2, lambda **to: plots.learning_curves({"loss": ONE}, {"accuracy": ONE}, 0.1, **to)),
    "norms_along_sequence": (1, lambda **to: plots.norms_along_sequence(np.ones((2, 5)), **to)),
    "norms_over_training": (1, lambda **to: plots.norms_over_training(TWO, **to)),
    "pathfinder_sheet": (3, lambda **to: plots.pathfinder_sheet(np.zeros((3, 4, 4), np.uint8), np.arange(3) % 2, **to)),
    "scores": (1, lambda **to: plots.scores({"a": [0.5]}, {"a": [0.4]}, name="accuracy", **to)),
    "unit_disc": (2, lambda **to: plots.unit_disc(DISC, DISC, **to)),
}


def test_every_function_that_draws_arrays_takes_axes() -> None:
    assert {*DRAWN, "plot", "compare", "run_figures", "comparison_figures"} == set(plots.__all__)


@pytest.mark.parametrize("name", DRAWN)
def test_axes_that_are_given_get_the_same_lines_and_other_axes_nothing(name: str) -> None:
    from matplotlib.figure import Figure

    count, draw = DRAWN[name]
    alone = draw()
    figure = Figure(figsize=(12, 5))
    grid = figure.subplots(2, count, squeeze=False)
    given = grid[0, 0] if count == 1 else grid[0]
    assert draw(ax=given) is figure
    for axes, mine in zip(alone.axes[:count], grid[0], strict=True):
        assert [line.get_xydata().tolist() for line in mine.get_lines()] == [
            line.get_xydata().tolist() for line in axes.get_lines()
        ]
        assert len(mine.collections) == len(axes.collections)
        assert (mine.get_xlabel(), mine.get_ylabel()) == (axes.get_xlabel(), axes.get_ylabel())
    assert not any(axes.has_data() or axes.get_legend() for axes in grid[1])
    assert not figure.legends
    assert not figure.get_suptitle()
    in_figure = [text.get_text() for one in alone.legends for text in one.get_texts()]
    legends = [axes.get_legend() for axes in grid[0] if axes.get_legend()]
    assert [text.get_text() for one in legends for text in one.get_texts()][-len(in_figure) or None :] == in_figure or (
        not in_figure
    )


@pytest.mark.parametrize("most", [1, 2, 4, 5000])
@pytest.mark.parametrize("given", [False, True])
def test_axes_that_count_have_whole_ticks(most: int, given: bool) -> None:
    """Of four steps ticks were at 0.5 and 1.5."""
    from matplotlib.figure import Figure

    at = np.array([0, most])
    one, two = (at, np.array([0.25, 0.5])), (at, np.array([[0.25, 0.5], [0.5, 1.0]]))
    curve = {**CURVE, "length": [most, most + 2]}
    draws: list[tuple[int, Any]] = [
        (2, lambda **to: plots.learning_curves({"loss": one}, {"accuracy": one}, **to)),
        (3, lambda **to: plots.compare_learning(*[{"a": [one]}] * 3, **to)),
        (1, lambda **to: plots.norms_along_sequence(np.ones((2, most + 1)), **to)),
        (1, lambda **to: plots.norms_over_training(two, **to)),
        (2, lambda **to: plots.compare_norms({"a": [two], "b": [two]}, **to)),
        (2, lambda **to: plots.iterations_over_training(two, two, two, **to)),
        (2, lambda **to: plots.compare_iterations({"a": [one]}, {"a": [one]}, **to)),
        (1, lambda **to: plots.inference_gap({"trained": np.ones(most + 1)}, **to)),
        (2, lambda **to: plots.accuracy_by_length({"a": [curve]}, **to)),
    ]
    for count, draw in draws:
        figure = draw(ax=Figure().subplots(1, count)) if given else draw()
        for axes in figure.axes[:count]:
            ticks = axes.get_xticks()
            assert (ticks == np.round(ticks)).all()
            low, high = axes.get_xlim()
            assert ((low <= ticks) & (ticks <= high)).any()


def test_ticks_of_the_user_stay() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.set_xticks([0.5, 1.5])
    plots.norms_over_training(TWO, ax=axes)
    assert axes.get_xticks().tolist() == [0.5, 1.5]


OWN_STYLE = {
    "figure.autolayout": True,
    "axes.prop_cycle": "cycler(linestyle=['--', ':'])",
    "lines.marker": "x",
    "scatter.marker": "x",
    "image.origin": "lower",
    "image.interpolation": "bilinear",
    "text.usetex": True,
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_style_of_the_user_changes_no_meaning(name: str, tmp_path: Path) -> None:
    """Legends over panels, dashes of another line, images upside down, and texts that are no TeX."""
    import matplotlib as mpl

    _, draw = DRAWN[name]
    write_figures({"a": draw()}, tmp_path)
    with mpl.rc_context(OWN_STYLE):
        write_figures({"b": draw()}, tmp_path)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", [one for one in DRAWN if one not in ("confusion_matrix", "pathfinder_sheet")])
def test_lines_and_dots_are_seen_on_dark_backgrounds(name: str, given: bool) -> None:
    """Their contrast with the background is at least 3, which WCAG 2.1 asks of graphics."""
    from matplotlib import style
    from matplotlib.figure import Figure

    count, draw = DRAWN[name]
    with style.context("dark_background"):
        panels = np.ravel(Figure().subplots(1, count)).tolist()
        figure = None if given else draw()
    figure = figure or draw(ax=panels)
    seen = [line.get_color() for axes in figure.axes for line in axes.get_lines()]
    seen += [colour for axes in figure.axes for dots in axes.collections for colour in dots.get_edgecolor()]
    assert min(contrast(to_rgba(one)) for one in seen) >= 3


def contrast(colour: tuple[float, ...]) -> float:
    """The contrast of a colour with black."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour[:3]]
    return (np.dot([0.2126, 0.7152, 0.0722], linear) + 0.05) / 0.05


@pytest.mark.parametrize("name", DRAWN)
def test_a_notebook_shows_what_is_drawn(name: str) -> None:
    """Also a notebook without pyplot, whose import tells IPython how to show figures, and also a copy."""
    from IPython.core.formatters import DisplayFormatter

    figure = copy.deepcopy(DRAWN[name][1]())
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")


ONE_ACCURACY = {"accuracy": [0.5], "sequence_accuracy": [0.5]}
LISTS = ([5, 10], [0.25, 0.5])
BAD: dict[str, tuple[Any, str]] = {
    "disc of no layer": (lambda: plots.unit_disc([], []), "unit_disc: before and after have shapes"),
    "other layers": (
        lambda: plots.unit_disc([np.ones(2)], [np.ones(3)]),
        r"shapes \[\(2,\)\] and \[\(3,\)\], expected",
    ),
    "no norms": (lambda: plots.compare_norms({"a": []}), "compare_norms: groups is {'a': .*}, expected a conf"),
    "no images": (lambda: plots.pathfinder_sheet(np.ones((0, 4, 4)), np.ones(0)), "pathfinder_sheet: 0 images and"),
    "label 7": (lambda: plots.pathfinder_sheet(np.ones((1, 4, 4)), [7]), r"1 image and labels \[7\], expected"),
    "no last": (
        lambda: plots.scores({"a": [1.0]}, {}, name="skill"),
        "scores: last has no configuration 'a', expected",
    ),
    "no name": (lambda: plots.scores({}, {}, name=""), "scores: name='', expected the name of an accuracy"),
    "no name of curves": (lambda: plots.compare_learning({}, {}, {}, name=" "), "compare_learning: name=' ', expected"),
    "no sequences": (
        lambda: plots.accuracy_by_length({"a": [{"length": [5], "n": [0], **ONE_ACCURACY}]}),
        r"accuracy_by_length: 'a' has n=\[0\], expected numbers of sequences, with one above 0",
    ),
    "fewer sequences": (
        lambda: plots.accuracy_by_length({"a": [{"length": [5, 6], "n": [9], **ONE_ACCURACY}]}),
        "accuracy_by_length: 'a' has 1 of accuracy, .*, 2 of length, 1 of n, expected as many of each",
    ),
    "no accuracy": (
        lambda: plots.accuracy_by_length({"a": [{"length": [5], "n": [9], "accuracy": [0.5]}]}),
        "accuracy_by_length: 'a' has 1 of accuracy, 0 of sequence_accuracy, 1 of length, 1 of n, expected",
    ),
    "0 iterations": (
        lambda: plots.accuracy_by_iterations({"a": [([0, 1], [0.1, 0.2])]}),
        "accuracy_by_iterations: groups has the position 0, expected positions above 0",
    ),
    "tolerance 0": (
        lambda: plots.accuracy_by_tolerance({"a": [([0, 1], [0.1, 0.2])]}),
        "accuracy_by_tolerance: groups has the position 0, expected positions above 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_drawn_is_named(case: str) -> None:
    draw, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        draw()


def test_lists_are_drawn_as_arrays() -> None:
    figure = plots.learning_curves({"loss": LISTS}, {"accuracy": LISTS})
    np.testing.assert_array_equal(figure.axes[1].get_lines()[0].get_ydata(), [25, 50])
    figure = plots.compare_learning(*[{"a": [LISTS]}] * 3)
    np.testing.assert_array_equal(figure.axes[2].get_lines()[0].get_ydata(), [25, 50])
    assert len(plots.unit_disc([[0.5, 0.25]], [[0.5, 0.5]]).axes) == 1
    assert len(plots.norms_along_sequence([[1, 2, 3]]).axes) == 1
    assert len(plots.norms_over_training(([0, 1], [[1, 2], [3, 4]])).axes) == 1
    assert len(plots.compare_norms({"a": [([0, 1], [[1, 2], [3, 4]])]}).axes) == 1
    axes = plots.confusion_matrix([[3, 1], [0, 2]], [7, 8]).axes[0]
    assert [one.get_text() for one in axes.get_yticklabels()] == ["7", "8"]


@pytest.mark.parametrize("name", DRAWN)
def test_axes_of_another_number_are_refused(name: str) -> None:
    from matplotlib.figure import Figure

    count, draw = DRAWN[name]
    axes = Figure().subplots(1, count + 1)
    for wrong in (axes, [1] * count, "left"):
        with pytest.raises(ValueError, match=f"ax: .*, expected {count} of matplotlib's axes"):
            draw(ax=wrong)


# ---- progress ----


def test_a_bar_is_shown_in_terminals_and_notebooks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from rotrnn._support import progress

    assert progress.bar(range(3)).disable  # standard error is a file here
    assert list(progress.bar(range(3))) == [0, 1, 2]

    class Kernel:
        kernel = object()

    class Python:
        get_ipython = staticmethod(Kernel)

    monkeypatch.setitem(sys.modules, "IPython", Python)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)  # ipywidgets is not installed
    assert progress.in_notebook()
    assert not progress.bar(range(3)).disable
    assert progress.bar(range(3), show=False).disable
    monkeypatch.setattr(Python, "get_ipython", staticmethod(lambda: None))  # imported, and not running
    assert not progress.in_notebook()
