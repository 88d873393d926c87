"""Draws the pictures that README and docs show: from recorded numbers, by the examples, and of a training of seconds.

    python -m benchmarks.pictures [NAME ...] [--out DIR] [--short]

Each is written to DIR/NAME (benchmarks/results); `--short` takes fewer steps where a picture is computed. Pictures of
trainings whose records do not have what is drawn, other training/NAME-FIGURE.png, are drawn by
`python -m benchmarks.training NAME`, which trains.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import adaptive, curves, gaps, pathfinder, recall, report, sequential, tiles
from benchmarks.measure import RESULTS, ROOT
from benchmarks.record import picture
from rotrnn.plots import run_figures
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

sys.path.insert(0, str(ROOT / "examples"))

import lru_figures
import rotational_memory
import theory


def recorded(name: str) -> dict[str, Any]:
    """What a benchmark recorded."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def of_recall(short: bool) -> Figure:
    rows = recorded("recall")["rows"]
    return recall.draw(rows, {name: load_recipe(name) for name in rows})


def of_sequential(short: bool) -> Figure:
    found = recorded("sequential")
    return sequential.draw(found["curves"], tomllib.loads(found["recipe"])["task"]["length"])


def of_digits(figure: str, short: bool) -> Figure:
    """A figure of the recipe that the README trains."""
    with tempfile.TemporaryDirectory() as folder:
        train(
            load_recipe("digits-rotrnn", ["training.steps=4", "training.eval_every=2"] * short), folder, progress=False
        )
        return run_figures(folder)[figure]


PICTURES: dict[str, Callable[[bool], Figure]] = {
    "bench.png": lambda short: report.chart(recorded("bench")["rows"]),
    "digits-rotrnn-eigenvalues.png": partial(of_digits, "eigenvalues"),
    "digits-rotrnn-learning.png": partial(of_digits, "learning"),
    "adaptive.png": lambda short: adaptive.draw(recorded("adaptive")["rows"]),
    "gaps.png": lambda short: gaps.draw(recorded("gaps")["runs"]),
    "lru-figures.png": lru_figures.draw,
    "pathfinder-32.png": lambda short: pathfinder.sheet(32),
    "recall.png": of_recall,
    "rotational-memory.png": lambda short: rotational_memory.draw(3000 if short else 1_000_000),
    "sequential.png": of_sequential,
    "tiles.png": lambda short: tiles.draw(recorded("tiles")["results"]),
    **{f"training/{name}.png": lambda short, one=one: one() for name, one in curves.PICTURES.items()},
    **{f"theory/{name}.png": lambda short, one=one: one() for name, one in theory.PICTURES.items()},
}


def draw(name: str, folder: Path, short: bool = False) -> Path:
    """Draws a picture. Returns its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(PICTURES[name](short), path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; all, if none is given")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder (benchmarks/results)")
    parser.add_argument("--short", action="store_true", help="fewer steps: seconds in all")
    args = parser.parse_args()
    if unknown := set(args.names) - set(PICTURES):
        parser.error(f"NAME is {unknown.pop()}, expected some of {', '.join(PICTURES)}")
    for name in args.names or PICTURES:
        print(draw(name, args.out, args.short), flush=True)


if __name__ == "__main__":
    main()
