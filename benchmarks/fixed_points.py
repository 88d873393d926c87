"""Bedouin's fixed points by iteration, accelerated or not, of whole sequences and by tiles, beside the direct solver;
and its gradients by one step, by several, and exactly.

    python -m benchmarks.fixed_points RUN... [--json] [--quick]

RUN is the folder of a run of a word problem with one block of Bedouin, one for each mixer. Random words go through it,
with the parameters before training and with the best; the longer ones only through the first run. The distance is that
of the layer's fixed point from the direct solution in float64, divided by the largest output. The tolerance is 1e-5,
and the limit 300 iterations. Gradients are those of the layer's parameters for a random gradient of its outputs, in
float64, with their cosine with the direct gradient. k steps are the first k terms of ``(I - J^T)^-1 = I + J^T +
(J^T)^2 + ..``, so one step is k = 1. Times are of one call. Writes benchmarks/results/fixed_points.md.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import RESULTS, arguments, markdown, origin
from rotrnn import _cpu
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import Context, Params, astype, trusted
from rotrnn.nn.layers.bedouin import Bedouin
from rotrnn.training.run import Run

Array = npt.NDArray[Any]

TOL, LIMIT, B = 1e-5, 300, 4
CHECKPOINTS = {"init": "before training", "best": "trained"}
LENGTHS = (50, 200)
GRADIENT_LENGTH = 16
STEPS = (2, 4, 8, 16)
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "whole, anderson": {"damping": "anderson"},
    "tiles of 16": {"tile": 16},
    "tiles of 16, anderson": {"tile": 16, "damping": "anderson"},
    "tokens": {"tile": 1},
    "tokens, anderson": {"tile": 1, "damping": "anderson"},
    "direct": {"solver": "direct"},
}


def layer_of(run: Run, name: str, T: int, words: int = B) -> tuple[Bedouin, Params, Array]:
    """The layer of the run's block, its parameters, and its input for random words of T elements (words, T, D)."""
    recipe = run.load_recipe(["layer.solver=direct"])
    model, params = recipe.build(recipe.task.shape), run.load_params(name)
    elements = np.random.default_rng(0).integers(0, recipe.task.shape.n_classes, (words, T))
    block = model.stack.blocks[0]
    _, saved = model.forward(params, elements, Context(fused=False))
    layer: Any = block.layer
    return layer, params["blocks"]["0"]["layer"], saved.blocks.blocks[0].layer.registers["x"]


def mixer_of(layer: Bedouin) -> str:
    """The mixer, and its number of vectors, factors or members, or the size of its blocks."""
    return layer.mixer if layer.mixer in ("kronecker", "orthogonal", "dense") else f"{layer.mixer} {layer.rank}"


def timed(function: Any, *given: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = function(*given)
    return time.perf_counter() - start, found


def iteration_rows(run: Run, lengths: tuple[int, ...], limit: int) -> Iterator[dict[str, Any]]:
    """A row for each kind of parameters, length and way."""
    for name, title in CHECKPOINTS.items():
        for T in lengths:
            layer, params, x = layer_of(run, name, T)
            exact = layer.forward(astype(params, np.float64), x.astype(np.float64))[1].iterate
            for way, settings in WAYS.items():
                one = replace(layer, **{"solver": "iteration", "tol": TOL, "max_iterations": limit, **settings})
                one.forward(params, x[:, :2])
                seconds, (_, saved) = timed(one.forward, params, x)
                report = saved.report
                yield {
                    "mixer": mixer_of(layer),
                    "parameters": title,
                    "T": T,
                    "way": way,
                    "iterations per step": round(float(report.per_step.mean()), 1),
                    "most": int(report.iterations.max()),
                    "converged": f"{100 * float(report.converged.mean()):.0f} %",
                    "distance": f"{float(np.abs(saved.iterate - exact).max() / np.abs(exact).max()):.0e}",
                    "ms": round(1e3 * seconds, 1),
                }


def flat(grads: Params) -> Array:
    return np.concatenate([grads[name].ravel() for name in sorted(grads)])


def gradient_rows(run: Run, T: int) -> Iterator[dict[str, Any]]:
    """A row for each kind of parameters and gradient, at the fixed point that the direct solver has found."""
    for name, title in CHECKPOINTS.items():
        layer, params, x = layer_of(run, name, T)
        params, x = astype(params, np.float64), x.astype(np.float64)
        y, saved = layer.forward(params, x)
        dy = np.random.default_rng(1).standard_normal(y.shape)

        ways = {"direct": replace(layer, gradient="implicit")}
        implicit = replace(layer, gradient="implicit", solver="iteration")
        tokens = {"tile": 1, "damping": "anderson", "tol": 1e-10, "max_iterations": LIMIT}
        ways["tokens, anderson"] = replace(implicit, **tokens)
        ways["one step"] = replace(layer, gradient="one_step")
        for k in STEPS:
            ways[f"{k} steps"] = replace(implicit, tol=1e-15, max_iterations=k - 1, damping="none")
        ways["implicit, whole"] = replace(implicit, tol=TOL, max_iterations=LIMIT)
        exact = None
        for way, layer in ways.items():
            seconds, found = timed(trusted(layer.backward), params, saved, dy)
            one = flat(found[1])
            exact = one if exact is None else exact
            cosine = float(one @ exact / np.linalg.norm(one) / np.linalg.norm(exact))
            size = float(np.linalg.norm(one) / np.linalg.norm(exact))
            yield {
                "mixer": mixer_of(layer),
                "parameters": title,
                "T": T,
                "gradient": way,
                "cosine": f"{cosine:.3f}",
                "size / direct": f"{size:.2g}",
                "ms": round(1e3 * seconds, 1),
            }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = list(rows[0])
    return markdown(head, ([str(one[name]) for name in head] for one in rows)) + "\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    args = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    runs, came_from = [Run(one) for one in args.runs], origin()
    lengths, limit = ((4, 9), 5) if args.quick else (LENGTHS, LIMIT)
    iterations = [row for i, run in enumerate(runs) for row in iteration_rows(run, lengths[: 1 if i else None], limit)]
    gradients = [row for run in runs for row in gradient_rows(run, 4 if args.quick else GRADIENT_LENGTH)]
    for one in (*iterations, *gradients):
        print(json.dumps(one) if args.json else "  ".join(f"{value:>24}" for value in one.values()))
    if not args.quick:
        layer, _, _ = layer_of(runs[0], "init", 1)
        where = f"{came_from['machine']['cpu']}, {_cpu.threads()} threads, {_cpu.simd()}, commit {came_from['commit']}"
        steps = ", ".join(f"{mixer_of(layer_of(run, 'init', 1)[0])} {run.last_logged()}" for run in runs)
        about = f"Bedouin, E {layer.width}, d_state {layer.d_state}, B {B}. Steps of training: {steps}. {where}."
        text = f"`python -m benchmarks.fixed_points RUN...`: {about}\n\n{table(iterations)}\n{table(gradients)}"
        (RESULTS / "fixed_points.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
