"""Fixed points in parallel and in sequence over training: section 4.3 and Fig. 5 of the Fixed-Point RNN paper.

    python -m benchmarks.gaps [--layers bedouin fpmamba] [--tolerances 0.1 0.01] [--seeds 0 1 2] [--rows 16]
        [--runs DIR] [--measure]

Trains each layer on A5 by iteration to each tolerance, and keeps its parameters each 1,000 steps; stopped runs go on.
Then test sequences go through the model in one pass and token by token, as in `benchmarks.sequential`, with the
parameters of each kept step. `--measure` trains nothing, and measures the steps that unfinished runs have reached.

Writes gaps.json, where other runs of earlier calls stay, and gaps.png to benchmarks/results; DIR (sweeps/gaps) has the
runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS, origin
from benchmarks.record import picture, record
from benchmarks.sequential import TOLERANCES, difference
from rotrnn.plots.style import COLOURS, Sheet, styled
from rotrnn.training.loop import train
from rotrnn.training.run import Run
from rotrnn.training.sweep import plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPES = {
    "bedouin": ("word-problem-carry-bedouin-small", "training.steps=6000", "layer.train_iterations=16"),
    "fpmamba": ("word-problem-carry-small", "training.steps=5000", "task.test=500"),
}
"""The recipe of a layer, and its settings."""
EVERY = 1000
SETTINGS = ("layer.solver=iteration", "layer.max_iterations=100", "training.skip=10")
POSITIONS = (4, 8, 16, 32, 50, 100, 200)


def kept(run: Run) -> list[int]:
    """The steps whose parameters are kept."""
    return sorted(int(path.stem.removeprefix("step-")) for path in run.folder.glob("step-*.safetensors"))


def key_of(run: dict[str, Any]) -> tuple[int, float, int]:
    """What names a run, in the order of the results."""
    return list(RECIPES).index(run["layer"]), -run["tolerance"], run["seed"]


def with_earlier(runs: Sequence[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Returns the runs and those of the results at `path` that they do not replace."""
    earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return sorted({key_of(run): run for run in [*earlier, *runs]}.values(), key=key_of)


def trained(layer: str, tol: float, seed: int, folder: Path) -> None:
    """Trains a run, or what is missing of it."""
    name, *settings = RECIPES[layer]
    overrides = [*settings, *SETTINGS, f"layer.tol={tol}"]
    (recipe,) = plan(name, seeds=[seed], variants=["plain"], overrides=overrides).values()
    run = Run(folder)

    def keep(name: int) -> None:
        shutil.copyfile(run.checkpoint("last"), run.checkpoint(f"step-{name}"))

    def log(one: dict[str, Any]) -> None:
        if one["step"] % EVERY == 1 and one["step"] > 1:  # the checkpoint before it is that of an evaluation
            keep(one["step"] - 1)

    if run.status() != "done":
        train(recipe, folder, resume=run.recipe.exists(), progress=False, log=log)
        keep(recipe.training.steps)


def measured(run: Run, rows: int) -> dict[str, Any]:
    """Differences at each kept step, tolerance and position; accuracies on validation, and on the test at the end."""
    steps = {0: "init"} | {step: f"step-{step}" for step in kept(run)}
    found: dict[str, list[list[float]]] = {str(tol): [] for tol in TOLERANCES}
    for name in steps.values():
        for tol in TOLERANCES:
            at = difference(run, name, tol, rows)
            found[str(tol)].append([float(at[position]) for position in POSITIONS])  # BOS is at 0
    validation = {one["step"]: one["val_sequence_accuracy"] for one in run.records() if "val_loss" in one}
    recipe, layer = run.load_recipe(), run.load_recipe().layer
    return {
        "trained with": {
            "steps": recipe.training.steps,
            "lr": recipe.optimiser.lr,
            "skip": recipe.training.skip,
            **{name: getattr(layer, name) for name in ("solver", "damping", "train_iterations", "max_iterations")},
        },
        "status": run.status(),
        "steps": list(steps),
        "differences": found,
        "validation": [validation.get(step) for step in steps],
        "trained by": sorted({one["commit"] for one in run.read_json(run.sessions)}),
        "test": run.read_json(run.result)["test"]["last"]["sequence_accuracy"] if run.result.exists() else None,
    }


@styled
def draw(runs: Sequence[dict[str, Any]]) -> Figure:
    """Draws the differences at the tolerance of the training against its step: a row of panels for each layer, a panel
    for each of three positions, a line for each run."""
    shown, layers = (16, 50, 200), list(dict.fromkeys(one["layer"] for one in runs))
    sheet = Sheet(None, 2.5 * len(shown) + 1.6, 2.5 * len(layers) + 0.4, 3 * len(layers), 3, sharex=True, sharey=True)
    for place, axes in enumerate(sheet.panels):
        layer, position = layers[place // len(shown)], shown[place % len(shown)]
        for tol, colour in zip(TOLERANCES, COLOURS, strict=False):
            of_panel = [one for one in runs if (one["layer"], one["tolerance"]) == (layer, tol)]
            for one in of_panel:
                at = [each[POSITIONS.index(position)] for each in one["differences"][str(tol)]]
                axes.plot(one["steps"], at, "o-", color=colour, markersize=3, label=f"tolerance {tol:g}")
            if of_panel:
                axes.axhline(tol, color=colour, linestyle=":", linewidth=1)
        axes.set(title=f"{layer}, product {position}", xlabel="training step", yscale="log")
        axes.label_outer()
        if place % len(shown) == 0:
            axes.set_ylabel("relative difference of logits")
    sheet.side_legend()
    return sheet.figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", choices=RECIPES, nargs="*", default=list(RECIPES), help="layers (all)")
    parser.add_argument("--tolerances", type=float, nargs="*", default=[0.1, 0.01], metavar="TOL", help="(0.1 0.01)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], metavar="N", help="seeds (0 1 2)")
    parser.add_argument("--rows", type=int, default=16, help="number of test sequences (16)")
    parser.add_argument("--runs", type=Path, default=Path("sweeps/gaps"), help="folder of the runs (sweeps/gaps)")
    parser.add_argument("--measure", action="store_true", help="train nothing")
    args = parser.parse_args()
    came_from, runs = origin(), []
    results = RESULTS / "gaps.json"
    for layer, tol, seed in product(args.layers, args.tolerances, args.seeds):
        folder = args.runs / f"{layer},tol={tol:g},seed={seed}"
        if not args.measure:
            trained(layer, tol, seed, folder)
        own = {"layer": layer, "tolerance": tol, "seed": seed, "machine": came_from["machine"]}
        runs += [own | measured(Run(folder), args.rows)]
    runs = with_earlier(runs, results)
    came_from["command"] = f"python -m benchmarks.gaps --rows {args.rows}"
    found = record(results, {"positions": POSITIONS, "runs": runs, **came_from})
    picture(draw(found["runs"]), RESULTS / "gaps.png")


if __name__ == "__main__":
    main()
