"""Figures of run folders: of one run, and of several runs that differ in seeds and settings."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, check_folder
from rotrnn._support.text import plural
from rotrnn._support.warn import warn
from rotrnn.devices.precisions import precision
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Array, Context, Params
from rotrnn.plots.accuracy import accuracy_by_iterations, accuracy_by_length, accuracy_by_tolerance
from rotrnn.plots.confusion import confusion_matrix
from rotrnn.plots.fixed_points import compare_iterations, inference_gap, iterations_over_training
from rotrnn.plots.learning import compare_learning, learning_curves, scores
from rotrnn.plots.states import compare_norms, norms_along_sequence, norms_over_training, unit_disc
from rotrnn.plots.style import DPI, Groups, Series, in_parts, matplotlib, same_limits, style
from rotrnn.tasks import Task
from rotrnn.tasks.task import majority_baseline
from rotrnn.training import evaluation
from rotrnn.training.recipe import Recipe
from rotrnn.training.results import MARKS, Folders, collect, find_runs, read_runs
from rotrnn.training.run import Run, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH_EXAMPLES = 1024
"""Number of training examples, spread over the split, from which the longest length is taken."""
ITERATION_SEQUENCES = 64
"""Number of test sequences, spread over the split, from which the median number of iterations is taken."""


class Grid(NamedTuple):
    """A file in a run's folder, written by ``rotrnn eval RUN --grid layer.SETTING=A,B,... --out RUN/FILE``, the
    pattern of the setting's values, and how they are drawn."""

    file: str
    setting: str
    pattern: str
    draw: Callable[..., Figure]


GRIDS = {
    "caps": Grid("iterations.json", "max_iterations", r"\d{1,18}", accuracy_by_iterations),
    "tolerances": Grid("tolerances.json", "tol", r"\d{1,18}(\.\d{1,18})?(e[-+]?\d{1,2})?", accuracy_by_tolerance),
}
"""By the name of the figure."""
GAP_SEQUENCES, GAP_STEPS = 8, 256
"""Number of the first test sequences, and of their steps, for comparing parallel with sequential inference."""


# ---- one run ----


def plot(run_dir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> list[Path]:
    """Writes the figures of a run (`run_figures`) into its subfolder ``plots/``, or into `out`. Returns their paths.

    `out` is a folder, or ends in .png, .svg or .pdf: "pictures/lru.svg" writes pictures/lru-learning.svg and so on. A
    name that ends as another kind of file is a ValueError.
    """
    check_folder("plot: run_dir", run_dir)
    place = _place("plot", Path(run_dir, "plots") if out is None else out)
    return write_figures(run_figures(run_dir), place)


def run_figures(run_dir: str | os.PathLike[str]) -> dict[str, Figure]:
    """Returns the figures of a run by name.

    The data are read again, your own by the rules of the run (`rotrnn.tasks.rules`); a warning tells of files that have
    changed. If they are missing, a warning tells so, and there are the figures of what is in the folder: no confusion
    matrix, no states along a sequence, no difference of parallel and sequential inference, and no line of guessing.

    There are always learning curves. If the layer has eigenvalues, they are drawn at the start and at the last
    checkpoint. If it has a state vector h_t, |h_t| is drawn along the sequence for the first validation batch, and its
    mean over training. If it iterates, there are the iterations over training, and the difference between parallel and
    sequential inference. There is a confusion matrix of the best parameters on the test split. When the run has ended,
    and if the task has such a curve, there is accuracy against length. If the folder has the file `CAPS`, there is
    accuracy against the maximum number of iterations in the test.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    FileNotFoundError, ValueError
        The folder holds no run, the run has no checkpoint yet, or the run is damaged.
    """
    check_folder("run_figures: run_dir", run_dir)
    run = Run(Path(run_dir))
    recipe = run.load_recipe()
    with precision(recipe.training.precision):
        return _figures(run, recipe)


def _figures(run: Run, recipe: Recipe) -> dict[str, Figure]:
    initial, trained = run.load_params("init"), run.load_params("last")
    records, result = run.records(), run.read_json(run.result)
    if not records:
        warn(f"{run.log}: has no record that can be read, the curves of training are empty")
    task = _task(run, recipe)
    model = recipe.build(run.shape(recipe, "init", initial) if task is None else task)
    size, dtype = recipe.training.batch, recipe.training.dtype
    figures: dict[str, Figure] = {}

    counts = baseline = None
    if task is not None and run.checkpoint("best").exists() and not task.is_regression:
        counts = evaluation.confusion(model, run.load_params("best"), task, task.test, batch=size, dtype=dtype)
        baseline = counts.sum(1).max() / counts.sum()
    train, val = (
        {
            name: series
            for name in ("loss", "accuracy", "sequence_accuracy", "skill")
            if (series := series_of(records, prefix + name))
        }
        for prefix in ("", "val_")
    )
    if task is not None:
        metric, selected_on = task.metric, task.selected_on
    elif result is not None:
        metric, selected_on = result["metric"], result["selected_on"]
    else:
        metric, selected_on = "skill" if "skill" in val else "accuracy", "validation"
    sequences = metric == "sequence_accuracy"
    if not sequences:
        val.pop("sequence_accuracy", None)
    test = None if result is None else (result["best_step"], result["test"]["best"][metric])
    split = selected_on if selected_on != "training" else "training data"
    figures["learning"] = learning_curves(train, val, baseline, test, split=split, sequences=sequences)

    if eigenvalues := model.eigenvalues(initial):
        figures["eigenvalues"] = unit_disc(eigenvalues, model.eigenvalues(trained))
    if task is not None:
        index = np.arange(min(size, len(task.val)))
        batch = task.val.batch(index, dtype)
        norms = model.state_norms(trained, batch.inputs, Context(batch.lengths, dt=task.val.intervals(index)))
        if len(norms):
            figures["norms"] = norms_along_sequence(norms / _root(recipe))
    if (series := _norms(records, recipe)) is not None:
        figures["norms_over_training"] = norms_over_training(series)

    if (iterations := layer_series(records, "iterations")) is not None:
        tol = recipe.tables()["layer"]["tol"]
        largest, residual = layer_series(records, "max_iterations"), layer_series(records, "residual")
        assert largest is not None
        assert residual is not None
        figures["iterations"] = iterations_over_training(iterations, largest, residual, tol=tol)
        both = {"initial": initial, "trained": trained}
        if task is not None and (gaps := _gaps(model, both, task, dtype)) is not None:
            figures["inference"] = inference_gap(gaps, tol=tol)
    if task is not None and counts is not None:
        right = 100 * counts.trace() / max(counts.sum(), 1)  # no answer counts if all are NaN
        title = f"Best parameters on the test split: {right:.1f} % right"
        figures["confusion"] = confusion_matrix(counts, task.labels, title=title)
    if result is not None and "curve" in result["test"]["best"]:
        curves = {f"{name} parameters": [result["test"][name]["curve"]] for name in ("best", "last")}
        found = None if task is None else median_iterations(model, run.load_params("best"), task, dtype)
        figures["length"] = accuracy_by_length(curves, **lines_of([] if task is None else [task]), iterations=found)
    for name, grid in GRIDS.items():
        if (found_by := evaluated(run, metric, grid)) is not None:
            figures[name] = grid.draw({"this run": [found_by]}, name=metric.replace("_", " "))
    return figures


def _task(run: Run, recipe: Recipe) -> Task | None:
    """Returns the task of a run; None with a warning if its data, or the package that reads them, are missing."""
    try:
        return run.load_task(recipe.task)
    except (OSError, ImportError) as error:
        warn(f"{run.folder}: drawn without what needs the data: {error}")
        return None


def median_iterations(model: SequenceModel, params: Params, task: Task, dtype: str) -> float | None:
    """Returns the median number of iterations over some test sequences of all lengths, averaged over blocks; None for a
    model without iterations."""
    index = spread(len(task.test), ITERATION_SEQUENCES)
    batch = task.test.batch(index, dtype)
    _, saved = model.forward(params, batch.inputs, Context(batch.lengths, dt=task.test.intervals(index)))
    found = [value for name, value in model.report(saved).items() if name.endswith(".median_iterations")]
    return float(np.mean(found)) if found else None


def spread(n: int, most: int) -> npt.NDArray[np.int64]:
    """Returns up to `most` of n indices, evenly spaced, because many splits are ordered."""
    return np.unique(np.linspace(0, n - 1, min(most, n)).astype(np.int64))


def _gaps(model: SequenceModel, params: Mapping[str, Params], task: Task, dtype: str) -> dict[str, Array] | None:
    """Returns `evaluation.inference_gap` for each set of parameters, on the first test sequences; None for a model
    without streaming inference."""
    batch = task.test.batch(np.arange(min(GAP_SEQUENCES, len(task.test))), dtype)
    blocks = model.stack.blocks
    if task.head == "retrieval" or any(getattr(block.layer, "bidirectional", False) for block in blocks):
        return None
    steps = min(GAP_STEPS, batch.inputs.shape[1], *([] if batch.lengths is None else batch.lengths.tolist()))
    inputs = batch.inputs[:, :steps]
    return {name: evaluation.inference_gap(model, one, inputs) for name, one in params.items()} if steps else None


def series_of(records: Sequence[dict[str, Any]], key: str) -> Series | None:
    """Returns the steps at which `key` was logged and its values; None if it was never logged."""
    found = [(record["step"], record[key]) for record in records if key in record]
    if not found:
        return None
    steps, values = zip(*found, strict=True)
    return np.array(steps), np.array(values, np.float64)


def _norms(records: Sequence[dict[str, Any]], recipe: Recipe) -> Series | None:
    """Returns the steps (n,) at which norms of states were logged and, divided as in `norms_along_sequence`, the norms
    (n, layers); None if there are none."""
    found = series_of(records, "state_norms")
    return None if found is None or not found[1].size else (found[0], found[1] / _root(recipe))


def _root(recipe: Recipe) -> float:
    """Returns the root of the number of reals in a layer's state; 1 for a layer that does not declare it."""
    return math.sqrt(recipe.layer.state_size or 1)


def layer_series(records: Sequence[dict[str, Any]], name: str) -> Series | None:
    """Returns the steps (n,) at which blocks reported `name` (keys "0.name", ... of "layers" in a record), and the
    values (n, blocks); None if it was never reported."""
    end = f".{name}"
    keys = sorted({key for one in records for key in one.get("layers", ()) if key.endswith(end)}, key=_block)
    found = [one for one in records if all(key in one.get("layers", ()) for key in keys)]
    if not keys or not found:
        return None
    values = [[one["layers"][key] for key in keys] for one in found]
    return np.array([one["step"] for one in found]), np.array(values, np.float64)


def evaluated(run: Run, metric: str, grid: Grid) -> Series | None:
    """Returns the values of a setting in the test and `metric` at each, from the file of the grid; None if there is no
    such file.

    ValueError if the file holds anything else.
    """
    path = run.folder / grid.file
    found = []
    if not isinstance(every := run.read_json(path, []), list):
        raise ValueError(f"{path}: expected a list, the output of rotrnn eval")
    for one in every:
        said = one.get("point") if isinstance(one, dict) else None
        point = re.fullmatch(f"{grid.setting}=({grid.pattern})", said) if isinstance(said, str) else None
        if point is None or not float(point[1]) or metric not in one or not is_number(one[metric]):
            found_point = f"the point {said}" if isinstance(said, str) else f"{one!r:.80}"
            raise ValueError(
                f"{path}: {found_point} is not {metric} at {grid.setting}=N, expected the output of rotrnn eval with "
                f"--grid layer.{grid.setting}=... alone"
            )
        found.append((float(point[1]), one[metric]))
    if not found:
        return None
    at, values = zip(*sorted(found), strict=True)
    return np.array(at), np.array(values, np.float64)


def _block(key: str) -> int:
    return int(key.partition(".")[0])


def longest(task: Task) -> int:
    """Returns the largest length of `LENGTH_EXAMPLES` training examples that are spread over the split."""
    split = task.train
    index = spread(len(split), LENGTH_EXAMPLES)
    batch = split.batch(index)
    if task.curve == "prefix":
        return int(batch.labels.shape[1]) - task.bos
    lengths: Array = split.curve_lengths(index, batch)
    return int(lengths.max())


def lines_of(tasks: Sequence[Task]) -> dict[str, Any]:
    """Returns the arguments `trained`, `carried` and `chance` of `accuracy_by_length` for runs of these tasks: where
    tasks differ in the accuracy of guessing, there is none."""
    guesses = {max(majority_baseline(task, task.test), task.chance or 0.0) for task in tasks}
    carried = [steps for task in tasks if (steps := carried_steps(task)) is not None]
    chance = guesses.pop() if len(guesses) == 1 else None
    return {"trained": sorted({longest(task) for task in tasks}), "carried": sorted(set(carried)), "chance": chance}


def carried_steps(task: Task) -> float | None:
    """Returns the number of steps, in the mean, of a training sequence that goes on from batch to batch at the end of
    training; None for a task without `carry`."""
    split = task.train
    if not split.carry:
        return None
    _, lengths = split.labels_and_lengths(spread(len(split), LENGTH_EXAMPLES))
    return float(lengths.mean() - task.bos) / (1 - split.carry.chance)


# ---- several runs ----


def compare(folders: Folders, out: str | os.PathLike[str]) -> list[Path]:
    """Writes the figures of several runs (`comparison_figures`) into `out`, as `plot` does. Returns their paths."""
    place = _place("compare", out)
    return write_figures(comparison_figures(folders), place)


def comparison_figures(folders: Folders) -> dict[str, Figure]:
    """Returns figures that compare runs, by name. Runs that differ only in their seed form one configuration.

    There are learning curves and accuracies on the test split. If the runs have them, there are accuracy against length
    and against the maximum number of iterations in the test, norms of hidden states, and iterations of fixed points.
    Each run has a line. A figure has eight configurations at most; more are in figures "NAME-2" and so on, whose axes
    have the same limits.

    Parameters
    ----------
    folders : path or paths
        Runs, or folders of runs such as a sweep's; one or several. `rotrnn.training.results` describes how runs
        are grouped and named. Runs without an evaluation, and runs that cannot be read, are skipped with a warning.

    Raises
    ------
    ImportError, ValueError
        As in `run_figures`; there is nothing to draw; or some runs are regressions and others are not.
    """
    outcomes, unreadable = read_runs(find_runs(folders, "comparison_figures: folders"))
    for error in unreadable:
        warn(f"skipped a run that cannot be read: {error}")
    groups = {one.name: one.outcomes for one in collect(outcomes)}
    every = [one for some in groups.values() for one in some]
    records = {one.run: one.run.records() for one in every}
    young = [one.run for one in every if series_of(records[one.run], "val_loss") is None]
    if young:
        skipped = ", ".join(str(run.folder) for run in young)
        warn(f"skipped runs without an evaluation: {skipped}")
    groups = {name: [one for one in some if one.run not in young] for name, some in groups.items()}
    groups = {name: some for name, some in groups.items() if some}
    if not groups:
        raise ValueError(f"nothing to draw: none of {plural(len(every), 'run')} has an evaluation yet")
    drawn = [one.run for some in groups.values() for one in some]
    regressions = [run for run in drawn if series_of(records[run], "val_skill") is not None]
    if others := [run for run in drawn if run not in regressions] if regressions else []:
        first, other = regressions[0].folder, others[0].folder
        raise ValueError(f"{first} is a regression and {other} is not, expected runs with one kind of score")
    results = {name: [one.result for one in some if one.result] for name, some in groups.items()}
    ended = [result for some in results.values() for result in some]

    def series(read: Callable[..., Series | None], key: str) -> dict[str, list[Series]]:
        found = {name: [read(records[one.run], key) for one in some] for name, some in groups.items()}
        return {name: [one for one in some if one is not None] for name, some in found.items()}

    metrics = {one["metric"] for one in ended}
    metric = metrics.pop() if len(metrics) == 1 else "skill" if regressions else "accuracy"
    words = metric.replace("_", " ")
    selected = {one["selected_on"] for one in ended} or {"validation"}
    name = f"{next((one for one in MARKS if one in selected), 'validation')} {words}"
    loss, val_loss, accuracy = (series(series_of, key) for key in ("loss", "val_loss", f"val_{metric}"))
    figures: dict[str, Figure] = {}

    def draw_parts(figure: str, draw: Callable[..., Figure], *data: Mapping[str, Any], **options: Any) -> None:
        parts = [[{label: one[label] for label in part} for one in data] for part in in_parts(data[0])]
        drawn = [draw(*part, **options) for part in parts]
        same_limits(drawn)
        figures.update({figure if i == 1 else f"{figure}-{i}": one for i, one in enumerate(drawn, 1)})

    draw_parts("learning", compare_learning, loss, val_loss, accuracy, name=name)
    if ended:
        best, last = (
            {label: [one["test"][which][metric] for one in some] for label, some in results.items()}
            for which in ("best", "last")
        )
        figures["scores"] = scores(best, last, name=words)
    curves = {name: [c for one in some if (c := one["test"]["best"].get("curve"))] for name, some in results.items()}
    if any(curves.values()):
        of_task = {(one := groups[name][0]).recipe.task: one for name, some in curves.items() if some}
        tasks = [task for one in of_task.values() if (task := _task(one.run, one.recipe)) is not None]
        draw_parts("length", accuracy_by_length, curves, **lines_of(tasks))
    norms = {
        name: [found for one in some if (found := _norms(records[one.run], one.recipe)) is not None]
        for name, some in groups.items()
    }
    if any(norms.values()):
        figures["norms_over_training"] = compare_norms(norms)

    def readable(run: Run, grid: Grid) -> Series | None:
        try:
            return evaluated(run, metric, grid)
        except ValueError as error:
            warn(f"skipped: {error}")
            return None

    for figure, grid in GRIDS.items():
        at = {name: [s for one in some if (s := readable(one.run, grid))] for name, some in groups.items()}
        if any(at.values()):
            draw_parts(figure, grid.draw, at, name=words)
    iterations, residual = (series(layer_series, key) for key in ("iterations", "residual"))
    if any(iterations.values()):
        mean, largest = _over_blocks(iterations, np.mean), _over_blocks(residual, np.max)
        draw_parts("iterations", compare_iterations, mean, largest)
    return figures


def _over_blocks(groups: Groups, over: Any) -> dict[str, list[Series]]:
    """Reduces series (n, blocks) over the blocks with the function `over`."""
    return {name: [(at, over(values, 1)) for at, values in some] for name, some in groups.items()}


# ---- files ----


def _place(call: str, out: str | os.PathLike[str]) -> Path:
    """Returns `out`. TypeError or ValueError if it cannot be a folder, or a picture in one, or ends as another file."""
    picture = isinstance(out, str | os.PathLike) and _is_picture(Path(out))
    check_folder(f"{call}: out", Path(out).parent if picture else out)
    if not picture and names_a_file(out):
        kinds = ", ".join(f".{one}" for one in sorted(_kinds()))
        raise ValueError(f"{call}: out is {out}, expected a folder, or a name that ends as a picture does: {kinds}")
    return Path(out)


def names_a_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path of nothing that exists ends as files do: a folder may end in .5, as in lr=0.5."""
    return re.fullmatch(r"\.[A-Za-z]{2,4}[0-9]?", Path(path).suffix) is not None and not Path(path).exists()


def _kinds() -> Mapping[str, str]:
    """Returns the kinds of pictures that matplotlib writes, by the ends of their names."""
    matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    return FigureCanvasBase.filetypes


def _is_picture(path: Path) -> bool:
    return path.suffix[1:].lower() in _kinds() and not path.is_dir()


def write_figures(figures: Mapping[str, Figure], out: Path) -> list[Path]:
    """Each figure as NAME.png in the folder `out`. If `out` ends as a picture does, in .png, .svg or .pdf, the figures
    are such pictures beside each other: one as `out`, several as STEM-NAME.svg."""
    if _is_picture(out):
        kind, one = out.suffix[1:].lower(), len(figures) == 1
        paths = [out if one else out.with_name(f"{out.stem}-{name}{out.suffix}") for name in figures]
    else:
        kind, paths = "png", [out / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file, style():  # ticks are made in saving
            try:
                figure.savefig(file, dpi=DPI, format=kind)
            except RuntimeError as error:  # some kinds need LaTeX
                raise ValueError(f"{path}: cannot be drawn as {kind}: {error}") from error
    return paths
