"""Iterations and time of FixedPointRNN by the length of its tiles, beside whole sequences and the direct solver.

    python -m benchmarks.tiles [--json] [--quick]

The tokens are the 60 elements of the word problem of A5 at random, each with a random vector; the layer has its initial
weights, or transitions and gains that make the iteration hard. The tolerance is 1e-3, with 100 iterations at most.
Times are of forward and exact gradient, on OMP_NUM_THREADS threads, as ratios to the whole sequence in the same window.
The error of states is that to a direct solution in float64, by the largest. Results are written to
benchmarks/results/tiles.json, tiles.md and tiles.png.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import RESULTS, arguments, line, markdown, origin, row, seconds_in_turn
from benchmarks.record import picture, record
from rotrnn import _cpu
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import Params, astype
from rotrnn.nn.layers.fixed_point import FixedPointRNN
from rotrnn.plots.style import COLOURS, Sheet, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

D, N, RANK, B = 64, 128, 4, 8
WEIGHTS = {
    "initial": ((0.9, 0.999), 0.0),
    "lam from 0.2 to 0.9": ((0.2, 0.9), 0.0),
    "lam from 0.2 to 0.9, alpha near 0.9": ((0.2, 0.9), 2.2),
}
"""Range of the initial lam, and what is added to the logit of the gains alpha."""
TILES = (64, 16, 4, 1)
LENGTHS = (16, 50, 100, 200, 400)


def layer_of(weights: str) -> tuple[FixedPointRNN, Params]:
    """The layer that iterates over whole sequences, and its parameters; the first input channel is 1, for a bias."""
    lam, logit = WEIGHTS[weights]
    layer = FixedPointRNN(D, N, rank=RANK, lambda_init=lam, gradient="implicit", tol=1e-3)
    params = layer.init(np.random.default_rng(1))
    params["W_alpha"][:, 0] += np.float32(logit)
    return layer, params


def tokens(T: int) -> Array:
    """(B, T, D): random elements of A5."""
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((60, D), dtype=np.float32)
    vectors[:, 0] = 1
    return vectors[rng.integers(0, 60, (B, T))]


def both_ways(layer: FixedPointRNN, params: Params, x: Array) -> Callable[[], Any]:
    """Forward and exact gradient."""

    def run() -> None:
        y, saved = layer.forward(params, x)
        layer.backward(params, saved, y)

    return run


def rows(lengths: tuple[int, ...], window: float) -> list[dict[str, Any]]:
    """One row for each kind of weights, length and way."""
    found = []
    for weights in WEIGHTS:
        layer, params = layer_of(weights)
        ways = {"whole": layer, **{f"tile {tile}": replace(layer, tile=tile) for tile in TILES}}
        ways["direct"] = replace(layer, solver="direct")
        for T in lengths:
            x = tokens(T)
            exact = ways["direct"].forward(astype(params, np.float64), x.astype(np.float64))[1].iterate
            times = seconds_in_turn([both_ways(one, params, x) for one in ways.values()], window=window)
            for (way, one), seconds in zip(ways.items(), times, strict=True):
                _, saved = one.forward(params, x)
                report = saved.report
                more = {"weights": weights, "path": way, "limit": "whole", "B": B, "T": T, "D": D, "N": N, "rank": RANK}
                more |= {"ns/token": 1e9 * seconds / (B * T), "iterations": float(report.per_step.mean())}
                more |= {"most": int(report.iterations.max()), "converged": float(report.converged.mean())}
                more |= {"apart": float(np.abs(saved.iterate - exact).max() / np.abs(exact).max())}
                found.append(row(f"{weights}, T {T}", seconds, times[0], **more))
    return found


def table(results: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = ("weights", "T", "way", "iterations per step", "most", "converged", "error", "time / whole", "us per token")
    body = []
    for one in results:
        numbers = [f"{one['iterations']:.1f}", str(one["most"]), f"{100 * one['converged']:.0f} %"]
        numbers += [f"{one['apart']:.1e}", f"{one['ratio']:.2f}", f"{one['ns/token'] / 1e3:.1f}"]
        body.append([one["weights"], str(one["T"]), one["path"], *numbers])
    return markdown(head, body) + "\n"


@styled
def draw(results: list[dict[str, Any]]) -> Figure:
    """Draws iterations per step against length, for each kind of weights; hollow where not all sequences converged."""
    kinds = list(dict.fromkeys(one["weights"] for one in results))
    sheet = Sheet(None, 10.5, 3.2, len(kinds))
    for axes, weights in zip(sheet.panels, kinds, strict=True):
        own = [one for one in results if one["weights"] == weights]
        for way, colour in zip(dict.fromkeys(one["path"] for one in own), COLOURS, strict=False):
            points = [one for one in own if one["path"] == way]
            axes.plot(*zip(*((one["T"], one["iterations"]) for one in points), strict=True), color=colour, label=way)
            for one in points:
                face = colour if one["converged"] == 1 else "white"
                axes.plot(one["T"], one["iterations"], "o", color=colour, markerfacecolor=face, markersize=5)
        lengths = sorted({one["T"] for one in own})
        axes.set(xscale="log", title=weights, xlabel="length of the sequence")
        axes.set_xticks(lengths, lengths)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    sheet.panels[0].set_ylabel("iterations per step")
    sheet.title("Hollow: not all sequences converged", fontsize=8)
    sheet.side_legend()
    return sheet.figure


def write(results: list[dict[str, Any]]) -> None:
    run = record(RESULTS / "tiles.json", {**origin(), "results": results})
    results = run["results"]
    where = f"{run['machine']['cpu']}, {_cpu.threads()} threads, {_cpu.simd()}, commit {run['commit']}"
    about = f"FixedPointRNN, N {N}, rank {RANK}, B {B}, on A5's tokens; float32, tol 1e-3, 100 iterations at most"
    (RESULTS / "tiles.md").write_text(f"`{run['command']}`: {about}. {where}.\n\n{table(results)}", encoding="utf-8")
    picture(draw(results), RESULTS / "tiles.png")


def main() -> None:
    args = arguments(__doc__).parse_args()
    warnings.simplefilter("ignore", NotConverged)
    results = rows((4, 9), 0.02) if args.quick else rows(LENGTHS, 3.0)
    for one in results:
        counts = f"{one['iterations']:6.1f} iterations, {100 * one['converged']:.0f} % converged"
        print(json.dumps(one) if args.json else f"{line(one)}  {counts}, error {one['apart']:.0e}")
    if not args.quick:
        write(results)


if __name__ == "__main__":
    main()
