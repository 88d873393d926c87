"""Fixed points of whole sequences beside fixed points of single tokens: Fig. 5 of the Fixed-Point RNN paper.

    python -m benchmarks.sequential RUN [--rows 64] [--out DIR]

RUN is the folder of a run of a word problem with a fixed-point layer. Its test sequences go through the model in one
pass, whose iteration stops at a tolerance, and token by token by `model.stream`, each token to the same tolerance, with
the parameters before training and with the best. What is drawn is the norm of the difference of the logits divided by
the norm of the latter, the mean over the sequences. A run with the direct solver is iterated here.

Writes sequential.json and sequential.png to benchmarks/results, or to DIR.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import RESULTS, origin
from benchmarks.record import picture, record
from rotrnn.plots.style import COLOURS, DASHES, GREY, Sheet, styled
from rotrnn.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOLERANCES = (0.1, 0.01, 0.001)
CHECKPOINTS = {"init": "before training", "best": "trained"}


def difference(run: Run, name: str, tol: float, rows: int) -> npt.NDArray[np.float64]:
    """Returns the difference (T,) with a checkpoint's parameters at a tolerance, relative to the token's logits."""
    recipe = run.load_recipe(["layer.solver=iteration", f"layer.tol={tol}", "layer.max_iterations=1000"])
    task = recipe.task.load()
    model, params = recipe.build(recipe.task.shape), run.load_params(name)
    inputs = task.test.batch(np.arange(rows)).inputs
    whole = model.forward(params, inputs)[0].astype(np.float64)
    stream = model.stream(params, len(inputs))
    tokens = np.concatenate([stream.push(inputs[:, t : t + 1]) for t in range(inputs.shape[1])], 1)
    return (np.linalg.norm(whole - tokens, axis=2) / np.linalg.norm(tokens, axis=2)).mean(0)


@styled
def draw(curves: dict[str, Any], trained_at: int) -> Figure:
    """Draws the differences against the position, dashed before training."""
    sheet = Sheet(None, 5.6, 3.6)
    axes = sheet.panels[0]
    for (name, title), dashes in zip(CHECKPOINTS.items(), (DASHES[1], DASHES[0]), strict=True):
        for tol, colour in zip(TOLERANCES, COLOURS, strict=False):
            axes.plot(curves[name][str(tol)], color=colour, linestyle=dashes, label=f"{title}, tolerance {tol:g}")
    axes.axvline(trained_at, color=GREY, linestyle=":", linewidth=1.2, label="length in training")
    axes.set(yscale="log", xlabel="position", ylabel="relative difference of logits")
    sheet.side_legend()
    return sheet.figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--rows", type=int, default=64, help="number of sequences (64)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results (benchmarks/results)")
    args = parser.parse_args()
    run, came_from = Run(args.run), origin()
    recipe = run.load_recipe()
    curves = {
        name: {str(tol): difference(run, name, tol, args.rows).tolist() for tol in TOLERANCES} for name in CHECKPOINTS
    }
    command = f"python -m benchmarks.sequential RUN --rows {args.rows}"  # the folder says nothing elsewhere
    found = {"recipe": recipe.text(), "curves": curves, **came_from, "command": command}
    found = record(args.out / "sequential.json", found)
    picture(draw(found["curves"], recipe.task.length), args.out / "sequential.png")  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
