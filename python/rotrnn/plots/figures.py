"""Figures and tables of papers: what is trained for each, where its runs are, and its page of pictures and numbers.

figures.toml, in the package, lists them. Their runs come from sweeps: finished runs are never trained again, wherever
they are, and unfinished runs go on.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rotrnn._support.files import check_folder, write_text
from rotrnn._support.json import to_json
from rotrnn._support.progress import say as say_line
from rotrnn._support.text import plural
from rotrnn._support.toml import from_toml
from rotrnn._support.warn import warn
from rotrnn.plots.runs import GRIDS, comparison_figures, names_a_file, run_figures, write_figures
from rotrnn.training.estimate import estimate
from rotrnn.training.recipe import SMALL, Recipe, pick
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.results import collect, duration, find_runs, read_runs, render
from rotrnn.training.run import Run
from rotrnn.training.sweep import parse_grid, plan, run_sweep

TOOK = (
    "took: training times of all runs of the small size, summed, from the records in benchmarks/results/training. They "
    "ran on servers with two cores (AMD EPYC or Intel Xeon), partly beside other work or two runs at a time."
)
"""The meaning of a column of `listing`."""
EXAMPLES = 64
"""Examples of each split for an estimate."""
CAPS = GRIDS["caps"].file
"""The file of an evaluation with the grid of `PaperFigure.evaluate`, in the folder of its run."""


@dataclass(frozen=True)
class Sweep:
    """Recipes, and what `rotrnn sweep` is given with each."""

    recipes: tuple[str, ...]
    variants: tuple[str, ...] = ()
    grid: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    set: tuple[str, ...] = ()

    def plan(self, seeds: Sequence[int] = (), overrides: Sequence[str] = ()) -> dict[str, dict[str, Recipe]]:
        """Returns the runs of each recipe, as `plan`; `seeds` in place of the sweep's, `overrides` after its own."""
        how: dict[str, Any] = {"seeds": seeds or self.seeds, "variants": self.variants}
        how |= {"grid": list(self.grid.items()), "overrides": [*self.set, *overrides]}
        return {name: plan(name, **how) for name in self.recipes}

    def small(self) -> Sweep:
        return dataclasses.replace(self, recipes=tuple(f"{name}{SMALL}" for name in self.recipes))


@dataclass(frozen=True)
class PaperFigure:
    """An entry of figures.toml, which explains the keys; `full` and `small` are sweeps."""

    name: str
    title: str
    full: tuple[Sweep, ...] = ()
    small: tuple[Sweep, ...] = ()
    plots: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    evaluate: str = ""
    page: str = ""
    seconds: float | None = None
    note: str = ""
    command: str = ""

    def runs(
        self, full: bool = False, seeds: Sequence[int] = (), overrides: Sequence[str] = ()
    ) -> dict[str, dict[str, Recipe]]:
        """Returns for each recipe the runs that the figure needs: name of the folder -> recipe."""
        if self.command:
            raise ValueError(f"figure: {self.name} is drawn by: {self.command}")
        found: dict[str, dict[str, Recipe]] = {}
        for sweep in self.full if full else self.small:
            for name, runs in sweep.plan(seeds, overrides).items():
                found.setdefault(name, {}).update(runs)
        return found


@cache
def paper_figures() -> dict[str, PaperFigure]:
    """Returns the figures and tables of papers by name, as figures.toml has them."""
    tables = from_toml((resources.files("rotrnn") / "figures.toml").read_text("utf-8"))
    return {name: _read(name, table) for name, table in tables.items()}


def _read(name: str, table: dict[str, Any]) -> PaperFigure:
    def sweeps(key: str) -> tuple[Sweep, ...]:
        return tuple(Sweep(**_in_tuples(one)) for one in table.get(key, ()))

    full = sweeps("full")
    small = sweeps("small") or tuple(sweep.small() for sweep in full)
    return PaperFigure(name, **{**_in_tuples(table), "full": full, "small": small})


def _in_tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def finished(places: Sequence[str | os.PathLike[str]]) -> dict[str, Run]:
    """Returns the finished runs in or below these folders by the digest of their recipes; those that cannot be read are
    left out."""
    found: dict[str, Run] = {}
    for run in find_runs([place for place in places if Path(place).is_dir()]):
        try:
            if run.status() == "done":
                found.setdefault(run.load_recipe(trust=False).digest(), run)
        except (OSError, ValueError):
            continue
    return found


def listing(places: Sequence[str | os.PathLike[str]]) -> list[dict[str, str]]:
    """Returns a table of all figures: for each size how many runs are finished in or below these folders, of how many,
    and what the small size took where it was recorded."""
    elsewhere, rows = finished(places), []
    for name, one in paper_figures().items():
        cells = {"figure": name, "small": "", "took": "", "full": "", "what": one.title}
        if one.command:
            cells["what"] += f": {one.command}"
        else:
            for size in ("small", "full"):
                runs = [recipe for some in one.runs(size == "full").values() for recipe in some.values()]
                cells[size] = f"{sum(recipe.digest() in elsewhere for recipe in runs)} of {len(runs)}"
            cells["took"] = "not recorded" if one.seconds is None else duration(one.seconds)
        rows.append(cells)
    return rows


def cost(
    name: str, *, full: bool = False, overrides: Sequence[str] = (), seeds: Sequence[int] = (), steps: int = 10
) -> Iterator[tuple[str, int, float]]:
    """Estimates a figure: yields for each configuration its name, the number of its runs, and the seconds of one, from
    `steps` steps on a few examples (`estimate`)."""
    for some in pick("figure", name, paper_figures()).runs(full, seeds, overrides).values():
        groups: dict[str, list[Recipe]] = {}
        for recipe in some.values():
            groups.setdefault(f"{recipe.source.recipe} {recipe.source.configuration}".strip(), []).append(recipe)
        for label, recipes in groups.items():
            yield label, len(recipes), estimate(recipes[0], steps, stand_in=EXAMPLES).seconds


def make(
    name: str,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    places: Sequence[str | os.PathLike[str]] = (),
    seeds: Sequence[int] = (),
    overrides: Sequence[str] = (),
    jobs: int = 1,
    retry: bool = False,
    device: str = "cpu",
    say: Callable[[str], None] = say_line,
) -> list[Path]:
    """Trains the runs of a figure that are missing, draws them all, and writes its page.

    Parameters
    ----------
    name : str
        As in figures.toml.
    folder : path
        Where the runs are trained, in a folder for each recipe, and where the pictures and figure.md are written. A
        call after an interruption goes on; one after the end draws only.
    full : bool
        The size of the paper, in place of the small size.
    places : sequence of path
        Folders whose finished runs are taken as they are, if they have the recipe and seed of a run of the figure.
    seeds, overrides
        As in `plan`, for every sweep of the figure.
    jobs, retry, device
        As in `run_sweep`.

    Returns
    -------
    list of Path
        The page and the pictures.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        There is no such figure, or it is drawn by another command; as in `run_sweep`; or runs failed or cannot be read,
        which is raised when the others are drawn.
    Interrupted
        As in `run_sweep`.
    """
    check_folder("figure: folder", folder)
    if names_a_file(folder):
        raise ValueError(f"figure: folder is {folder}, expected a folder, for the runs, the page and its pictures")
    one, top = pick("figure", name, paper_figures()), Path(folder)
    if others := sorted(set(seeds) - _seeds(one.runs(full, (), overrides))):
        say(f"{name}: the figure has no seed {', '.join(map(str, others))}; trained as --seeds asks")
    there, runs = finished(places), list[Run]()
    for recipe_name, planned in one.runs(full, seeds, overrides).items():
        have = {label: there[digest] for label, recipe in planned.items() if (digest := recipe.digest()) in there}
        missing = {label: recipe for label, recipe in planned.items() if label not in have}
        if have:
            say(f"{recipe_name}: {plural(len(have), 'run')} taken from elsewhere")
        runs += have.values()
        if missing:
            own = top / Path(recipe_name).stem
            runs += run_sweep(missing, own, jobs=jobs, retry=retry, say=say, device=device)
    if one.evaluate:
        for run in runs:
            _evaluate(run, one.evaluate, device)
    pictures = _draw(one, runs, top)
    outcomes, unreadable = read_runs(runs)
    rows = [row.row() for row in collect(outcomes)]
    page = top / "figure.md"
    command = [one.name, *["--full"] * full, *(["--seeds", ",".join(map(str, seeds))] if seeds else [])]
    command += [part for override in overrides for part in ("--set", override)]
    size = "At the size of the paper." if full else f"At the small size. {one.note}".strip()
    head = f"# {one.title}\n\n    rotrnn figure {shlex.join(command)}\n\n{size}\n"
    shown = "".join(f"![{path.stem}](<{path.name}>)\n" for path in pictures)
    write_text(page, f"{head}\n{render(rows, unreadable=unreadable)}\n{shown}")
    if failed := sum(run.status() == "failed" for run in runs) + len(unreadable):
        raise ValueError(
            f"{failed} of {plural(len(runs), 'run')} failed or cannot be read, {page} has the others; "
            "--retry resumes failed runs and mends damaged ones"
        )
    return [page, *pictures]


def _seeds(runs: dict[str, dict[str, Recipe]]) -> set[int]:
    return {recipe.training.seed for some in runs.values() for recipe in some.values()}


def _evaluate(run: Run, grid: str, device: str) -> None:
    """Evaluates a finished run at each point of a grid, and writes what is found beside its results, once."""
    path = run.folder / CAPS
    if run.status() != "done" or path.exists():
        return
    found = reevaluate(run, grid=[parse_grid(grid)], device=device)
    write_text(path, to_json([{"point": point, **one} for point, one in found], indent=2) + "\n")


def _draw(one: PaperFigure, runs: Sequence[Run], top: Path) -> list[Path]:
    every = comparison_figures([run.folder for run in runs])
    chosen = {name: figure for name, figure in every.items() if name.partition("-")[0] in one.plots}
    if one.each:
        for run in runs:
            if run.status() == "done":
                alone = run_figures(run.folder)
                chosen |= {f"{name}-{run.folder.name}": alone[name] for name in one.each if name in alone}
    for name in (*one.plots, *one.each):
        if not any(there.partition("-")[0] == name for there in chosen):
            warn(f"{one.name}: the runs have no plot '{name}'")
    return write_figures(chosen, top)
