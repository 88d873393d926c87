"""Recall by age, and by content at an age: the angles of rotational memories and exact windows, within and beyond L.

    python -m benchmarks.recall [--seeds SEEDS] [--jobs N] [--sweeps DIR]

Runs the recipes recall-age and recall-content, half a minute a run; stopped runs continue, finished ones are kept.
Writes their accuracies at each age to benchmarks/results/recall.json, and of these the page recall.md and recall.png.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import RESULTS, origin
from benchmarks.record import picture, record
from benchmarks.training import numbers, sweep
from rotrnn.plots.style import COLOURS, DASHES, GREY, Sheet, styled
from rotrnn.tasks import Recall
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.results import Row, collect, duration, find_runs, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

TITLES = {"recall-age": "By age", "recall-content": "By content at an age"}
SOLID, LONG, SHORT = DASHES[:3]
BOUND = "RoPE at best"
LOOKS = {
    "rope": (COLOURS[1], SOLID),
    "wrope": (COLOURS[0], SOLID),
    "blend": (COLOURS[2], SOLID),
    "blend-printed": (COLOURS[4], SOLID),
    "wrope-reversed": (COLOURS[5], SOLID),
    "no-angle": (GREY, SOLID),
    "rope-window": (COLOURS[1], LONG),
    "tiir": (COLOURS[3], LONG),
    "wrope-sum": (COLOURS[0], SHORT),
    "wrope-ages": (COLOURS[5], SHORT),
    "attention": (COLOURS[6], SHORT),
    "lstm": (COLOURS[6], SOLID),
    BOUND: (COLOURS[1], SHORT),
}
"""Colour and dashes of the variants of the recipes and of the bound, in the order of the table."""


def by_age(rows: Sequence[Row]) -> dict[str, Array]:
    """Returns the accuracies (runs, ages) of each variant with a finished run."""
    done = {row["configuration"]: row["best"]["curve"]["accuracy"] for row in rows if row["done"]}
    return {name: np.array(done[name]).T for name in LOOKS if name in done}


def rope_at_best(task: Recall, L: int) -> Array:
    """Returns the accuracy (max_age + 1,) of recall by age if only the angle 2 pi k / L tells the age k.

    A step t that asks for age k finds n states with the same angle, of ages k mod L, k mod L + L, ... up to t, any
    of which may be the right one. The best answer is their most frequent value.
    """
    ages = np.arange(task.max_age + 1)
    alike = [(np.arange(k, task.test_length) - k % L) // L + 1 for k in ages]
    share = [0.0] + [most_frequent(n, task.values) for n in range(1, 1 + max(n.max() for n in alike))]
    return np.array([np.mean([share[n] for n in some]) for some in alike])


def most_frequent(n: int, values: int) -> float:
    """Returns the expected share of the most frequent one among n values, uniform and independent.

    No value is there more than m times in ``n! [x^n] (sum_{j<=m} x^j / j!)^values`` of all values^n draws.
    """
    at_most = []
    for m in range(n):
        one, whole = np.array([1 / math.factorial(j) for j in range(m + 1)]), np.ones(1)
        for _ in range(values):
            whole = np.convolve(whole, one)[: n + 1]
        at_most.append(math.factorial(n) / values**n * whole[n] if len(whole) > n else 0.0)
    return float(n - sum(at_most)) / n  # the mean of a count is the sum over m of its chance to be above m


def curves(rows: Sequence[Row], recipe: Recipe) -> dict[str, Array]:
    """Returns `by_age`, and if age alone is asked for, what RoPE can reach (1, ages)."""
    task = recipe.task
    assert isinstance(task, Recall)
    found = by_age(rows)
    return found if task.keys > 1 else found | {BOUND: rope_at_best(task, length_of(recipe))[None]}


def length_of(recipe: Recipe) -> int:
    """L of the recipe's memory."""
    return recipe.layer.length  # type: ignore[attr-defined]  # a StoredHistory


def table(rows: Sequence[Row], recipe: Recipe) -> str:
    """Mean accuracies within L and beyond of each run as Markdown."""
    L = length_of(recipe)
    seconds = {row["configuration"]: row["seconds"]["mean"] for row in rows if row["seconds"]}
    lines = []
    for name, accuracy in curves(rows, recipe).items():
        parts = (100 * part.mean(1) for part in (accuracy[:, :L], accuracy[:, L:]))
        within, beyond = (", ".join(f"{one:.1f}" for one in part) for part in parts)
        line = {"memory": name, f"ages 0 to {L - 1}, %": within, f"{L} to {accuracy.shape[1] - 1}, %": beyond}
        lines.append(line | {"time of a run": duration(seconds[name]) if name in seconds else ""})
    return markdown(lines)


@styled
def draw(found: Mapping[str, Sequence[Row]], recipes: Mapping[str, Recipe]) -> Figure:
    """Draws the accuracy against the age, a panel for each recipe and a line for each run."""
    sheet = Sheet(None, 9.5, 3.6, len(found), sharey=True)
    for axes, (name, rows) in zip(sheet.panels, found.items(), strict=True):
        L, task = length_of(recipes[name]), recipes[name].task
        assert isinstance(task, Recall)
        for label, accuracy in curves(rows, recipes[name]).items():
            colour, dashes = LOOKS[label]
            ages = np.arange(accuracy.shape[1]) / L
            lines = axes.plot(ages, 100 * accuracy.T, color=colour, linestyle=dashes, linewidth=0.9)
            lines[0].set_label(label)
        axes.axvline(1, color=GREY, linestyle=":", linewidth=1.2, label="age L")
        axes.axhline(100 / task.values, color=GREY, linewidth=0.9, label="guessing")
        axes.set(title=TITLES[name], xlabel="age / L", ylim=(0, 102))
    sheet.panels[0].set_ylabel("accuracy, %")
    sheet.side_legend()
    return sheet.figure


def write_up(recorded: dict[str, Any], folder: Path) -> None:
    """Writes recall.json, and of it recall.md and recall.png, into the folder."""
    recorded = record(folder / "recall.json", recorded)
    recipes = {name: load_recipe(name) for name in recorded["rows"]}
    came_from, every = recorded["origin"], [row for rows in recorded["rows"].values() for row in rows]
    seconds = sum(row["seconds"]["mean"] * row["done"] for row in every if row["seconds"])
    said = ["# Recall by age\n", *(f"    rotrnn sweep {one}" for one in recorded["sweeps"]), ""]
    said.append(
        f"`python -m benchmarks.recall`: {sum(row['done'] for row in every)} runs, {duration(seconds)} of training in "
        f"all, commit {came_from['commit']}, {came_from['machine']['cpu']}. Test accuracies of the parameters that "
        "were best on validation, means over ages, seed by seed.\n"
    )
    for name, rows in recorded["rows"].items():
        said.append(f"## {TITLES[name]}\n\n{table(rows, recipes[name])}")
    said.append("![Accuracy against age, for recall by age and by content at an age](recall.png)\n")
    (folder / "recall.md").write_text("\n".join(said), encoding="utf-8")
    picture(draw(recorded["rows"], recipes), folder / "recall.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..2", help="seeds, such as 0 or 0..2 (the default)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--sweeps", type=Path, default=Path("sweeps"), help="folder of the sweeps (sweeps)")
    args = parser.parse_args()
    sweeps = [f"{name} --seeds {args.seeds}" for name in TITLES]
    folders = [sweep(one, args.sweeps / name, args.jobs) for one, name in zip(sweeps, TITLES, strict=True)]
    runs = (collect(find_runs([folder])) for folder in folders)
    rows = {name: [numbers(one.row()) for one in some] for name, some in zip(TITLES, runs, strict=True)}
    run = {**origin(), "command": f"python -m benchmarks.recall --seeds {args.seeds}"}
    write_up({"sweeps": sweeps, "origin": run, "rows": rows}, RESULTS)


if __name__ == "__main__":
    main()
