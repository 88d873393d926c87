"""Iterations of fixed points against what a word needs: does a trained layer adapt its steps to the difficulty? The
Fixed-Point RNN paper, section 7, hopes so.

    python -m benchmarks.adaptive RUN [RUN ...] [--words 32]

RUN is the folder of a run of `benchmarks.gaps`, or of any word problem with one block of a fixed-point layer. Its words
have elements other than the identity ("moves") in a share of their places, at random; the identity asks for nothing,
and without moves nothing is asked. A second kind has powers of one element in all places: they commute with each other.
A step whose element does not commute with the product before it is one whose order matters. The model reads the words
of a kind in one pass and with a stop for each tile of 16 and for each token, at the tolerance of its training.

Writes adaptive.md, adaptive.json and adaptive.png to benchmarks/results.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.fixed_points import table
from benchmarks.measure import RESULTS, origin
from benchmarks.record import picture, record
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import Context
from rotrnn.plots.style import COLOURS, DASHES, Sheet, styled
from rotrnn.tasks.word_problem import Group, group
from rotrnn.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Words = npt.NDArray[np.int64]

LENGTHS = (16, 50)
SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
POWERS = "powers of one"
LIMIT = 1000
KEY = """Iterations a step at the tolerance of the training: of `whole` words, with a stop for each tile of 16,
and for each of the `tokens`; `most` of a whole word. Of the steps of a word, the elements of `moves` are not the
identity, and those of `ordered` steps do not commute with the product before them. `right`: the share of words whose
every product is right; `converged`: the share of all three ways."""
WAYS = {"whole": None, "tiles of 16": 16, "tokens": 1}


def words_of(kind: float | str, n: int, T: int, of: Group, rng: np.random.Generator) -> Words:
    """Returns words (n, T) of a kind: with a share of moves, or powers of an element of the largest order."""
    if kind == POWERS:
        powers = of.states(np.repeat(np.arange(of.order)[:, None], of.order, 1))
        orders = (powers == 0).argmax(1) + 1  # a^k is the identity for the first time
        chosen = rng.choice(np.flatnonzero(orders == orders.max()), n)
        return powers[chosen[:, None], rng.integers(0, orders.max(), (n, T))]
    moves = np.zeros((n, T), bool)
    moves[:, : round(float(kind) * T)] = True
    return np.where(rng.permuted(moves, axis=1), rng.integers(1, of.order, (n, T)), 0)


def ordered(words: Words, of: Group) -> npt.NDArray[np.bool_]:
    """Whether the element of a step and the product of the steps before do not commute (n, T)."""
    before = np.concatenate([np.zeros_like(words[:, :1]), of.states(words)[:, :-1]], 1)
    pairs = np.stack([before, words], -1).reshape(-1, 2)
    return (of.states(pairs)[:, 1] != of.states(pairs[:, ::-1])[:, 1]).reshape(words.shape)


def rows_of(run: Run, n: int, lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row for each length and kind of word, with the parameters after the last step."""
    recipe = run.load_recipe(["layer.solver=iteration", f"layer.max_iterations={LIMIT}"])
    model, params = recipe.build(recipe.task.shape), run.load_params("last")
    (block,) = model.stack.blocks
    layer: Any = block.layer
    own = params["blocks"]["0"]["layer"]
    of = group(recipe.task.group)  # type: ignore[attr-defined]
    for T in lengths:
        for kind in (*SHARES, POWERS):
            words = words_of(kind, n, T, of, np.random.default_rng(T))
            inputs = np.concatenate([np.full((n, 1), of.bos), words], 1)
            logits, saved = model.forward(params, inputs, Context(fused=False))
            x = saved.blocks.blocks[0].layer.registers["x"]
            reports = {way: replace(layer, tile=tile).forward(own, x)[1].report for way, tile in WAYS.items()}
            yield {
                "layer": recipe.model.layer,
                "tolerance": layer.tol,
                "seed": recipe.training.seed,
                "T": T,
                "words": kind if kind == POWERS else f"{100 * float(kind):g} % moves",
                "moves": float((words != 0).sum(1).mean()),
                "ordered": float(ordered(words, of).sum(1).mean()),
                "right": float((logits[:, 1:].argmax(2) == of.states(words)).all(1).mean()),
                **{way: float(report.per_step.mean()) for way, report in reports.items()},
                "most": int(reports["whole"].iterations.max()),
                "converged": float(np.mean([report.converged.mean() for report in reports.values()])),
            }


@styled
def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draws iterations against the number of moves, in the words of the first length: a panel for each way, a line for
    each run, and a cross for the powers."""
    T = rows[0]["T"]
    sheet = Sheet(None, 2.6 * len(WAYS) + 2.2, 2.8, len(WAYS), sharex=True)
    runs = list(dict.fromkeys((row["layer"], row["tolerance"], row["seed"]) for row in rows))
    colours, dashes = (
        dict(zip(dict.fromkeys(one[i] for one in runs), (COLOURS, DASHES)[i], strict=False)) for i in (0, 1)
    )
    for axes, way in zip(sheet.panels, WAYS, strict=True):
        for layer, tol, seed in runs:
            at = [
                row for row in rows if (row["layer"], row["tolerance"], row["seed"], row["T"]) == (layer, tol, seed, T)
            ]
            for marker, powers in (("o", False), ("x", True)):
                x, y = zip(*((row["moves"], row[way]) for row in at if (row["words"] == POWERS) == powers), strict=True)
                label = "powers of one" if powers else f"{layer}, {tol:g}"
                axes.plot(x, y, marker=marker, color=colours[layer], linestyle=dashes[tol], markersize=4, label=label)
        axes.set(title=way, xlabel=f"moves of {T} steps", ylim=(0, None))
    sheet.panels[0].set_ylabel("iterations a step")
    sheet.side_legend()
    return sheet.figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--words", type=int, default=32, help="words of each kind (32)")
    args = parser.parse_args()
    warnings.simplefilter("ignore", NotConverged)
    came_from = origin()
    rows = [row for run in args.runs for row in rows_of(Run(run), args.words, LENGTHS)]
    command = f"python -m benchmarks.adaptive RUN --words {args.words}"  # folders say nothing elsewhere
    found = record(RESULTS / "adaptive.json", {"rows": rows, **came_from, "command": command})
    shown = [
        {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in row.items()}
        for row in found["rows"]
    ]
    where = f"{came_from['machine']['cpu']}, commit {came_from['commit']}"
    text = f"`{command}`. {where}.\n\n{KEY}\n\n{table(shown)}"
    (RESULTS / "adaptive.md").write_text(text, encoding="utf-8")
    picture(draw(found["rows"]), RESULTS / "adaptive.png")


if __name__ == "__main__":
    main()
