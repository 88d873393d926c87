"""Sweeps: the runs of one recipe over seeds, settings and variants, each in a folder and a process of its own.

What a sweep knows lies in the folders of its runs alone, each of which survives a kill: so a sweep that was killed at
any moment goes on when it is started again, and ends as one that never was.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rotrnn._support.files import locked
from rotrnn._support.platform import cores, interrupt, killed
from rotrnn._support.text import plural
from rotrnn.training.loop import Interrupted, check_same
from rotrnn.training.recipe import (
    NO_SECTIONS,
    Recipe,
    change,
    parse_override,
    parse_value,
    pick,
    read_recipe,
    recipe_tables,
)
from rotrnn.training.run import Run

COMMAND: tuple[str, ...] = (sys.executable, "-m", "rotrnn")
"""What trains a run, with the arguments of `rotrnn`."""
STOPPED = 130
"""The exit code of a run that stopped when it was asked to."""
POLL = 0.05
"""Seconds between two looks at the processes."""
LONG = 80
"""Characters of a configuration's name that its folder's keeps."""


@dataclass(frozen=True)
class Sweep:
    """The section [sweep] of a recipe: the product of its variants, its grid and its seeds is run.

    Parameters
    ----------
    seeds : tuple of int
        Values of training.seed; none: the recipe's own.
    grid : dict
        "section.key" -> the values that it takes.
    variants : dict
        Name -> settings "section.key" that change together, as a row of an ablation.
    published : dict
        Name of a variant or a configuration ("rank=4") -> the figure that its source gives. Where there is no such
        table, the accuracy in [source] is everyone's who has the recipe's layer and task.
    """

    seeds: tuple[int, ...] = ()
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "training.seed" in (*self.grid, *(place for one in self.variants.values() for place in one)):
            raise ValueError("training.seed is varied by seeds alone: --seeds, or seeds = [...] in [sweep]")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"the seeds are {list(self.seeds)}, expected each once")

    def configurations(self) -> dict[str, list[list[tuple[str, Any]]]]:
        """Name -> what is changed, in turn: the variant's settings, then the grid's."""
        for place, values in self.grid.items():
            if not values:
                raise ValueError(f"the grid of {place} has no values, expected one at least")
        variants = self.variants or {"": {}}
        found = {}
        for (variant, settings), values in itertools.product(variants.items(), itertools.product(*self.grid.values())):
            chosen = list(zip(self.grid, values, strict=True))
            parts = [variant] if variant else []
            parts += [f"{_short(place, self.grid)}={_text(value)}" for place, value in chosen]
            name = ",".join(parts)
            if name in found:
                raise ValueError(f"two configurations of the sweep are called {name}")
            found[name] = [list(settings.items()), chosen]
        return found


def read_sweep(tables: dict[str, Any]) -> Sweep:
    """The sweep in a recipe's tables; ValueError where it is none."""
    own = tables.get("sweep", {})
    for key in own:
        if key not in ("seeds", "grid", "variants", "published"):
            raise ValueError(f"unknown key sweep.{key}; expected seeds, grid, variants or published")
    seeds = own.get("seeds", [])
    if not (isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)):
        raise ValueError(f"sweep.seeds is {seeds!r}, expected a list of integers from 0, as [0, 1, 2]")
    for key, kind, words in (
        ("grid", list, '"section.key" = [values]'),
        ("variants", dict, '[sweep.variants.NAME] with "section.key" = value'),
        ("published", (int, float, str), "NAME = a number or a text"),
    ):
        table = own.get(key, {})
        if not (isinstance(table, dict) and all(isinstance(one, kind) and one != [] for one in table.values())):
            raise ValueError(f"sweep.{key} is {table!r}, expected {words}")
    sweep = Sweep(
        tuple(seeds),
        {place: tuple(values) for place, values in own.get("grid", {}).items()},
        own.get("variants", {}),
        {name: str(figure) for name, figure in own.get("published", {}).items()},
    )
    known = sweep.variants | sweep.configurations()
    for name in sweep.published:
        pick("sweep.published", name, known)
    return sweep


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds in "0..2", last one included, or "0,3,5"."""
    with contextlib.suppress(ValueError):
        first, dots, last = text.partition("..")
        seeds = tuple(range(int(first), int(last) + 1)) if dots else tuple(int(one) for one in text.split(","))
        if seeds and min(seeds) >= 0:
            return seeds
    raise ValueError(f"--seeds {text}: expected integers from 0, as 0..2 or 0,3,5")


def parse_grid(text: str) -> tuple[str, tuple[Any, ...]]:
    """The place and the values of "section.key=a,b"."""
    place, _ = parse_override(text)
    listed = text.partition("=")[2]
    values = parse_value(f"[{listed}]")
    return place, tuple(values if isinstance(values, list) else map(parse_value, listed.split(",")))


def as_grid(pairs: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, tuple[Any, ...]]:
    """The grid of ("section.key", values); ValueError where a key comes twice."""
    grid: dict[str, tuple[Any, ...]] = {}
    for place, values in pairs:
        if place in grid:
            raise ValueError(f"--grid {place} is given twice, expected all its values in one: {place}=a,b")
        grid[place] = tuple(values)
    return grid


def plan(
    name: str | os.PathLike[str],
    *,
    seeds: Sequence[int] = (),
    grid: Sequence[tuple[str, Sequence[Any]]] = (),
    variants: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> dict[str, Recipe]:
    """The runs of a recipe's sweep: name of the folder -> recipe.

    Parameters
    ----------
    name : str or path
        As `load_recipe` takes it.
    seeds, grid : sequences
        Replace the recipe's seeds, and the values of its grid's keys, or add keys to it.
    variants : sequence of str
        Those of the recipe's variants that are run; none: all.
    overrides : sequence of "section.key=value"
        Replace settings in every run, those of variants too.

    Raises
    ------
    ValueError
        As `load_recipe`; the section [sweep] is not as `Sweep` says; two runs would be the same.
    """
    tables = recipe_tables(name)
    try:
        there = read_sweep(tables)
        chosen = {one: pick("--variant", one, there.variants) for one in variants} or there.variants
        own = tables.get("training", {}).get("seed", 0)
        sweep = Sweep(tuple(seeds) or there.seeds or (own,), there.grid | as_grid(grid), chosen)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    changes = [parse_override(override) for override in overrides]
    for place, _ in changes:
        if place in (*sweep.grid, "training.seed"):
            instead = "--seeds" if place == "training.seed" else f"--grid {place}=..."
            raise ValueError(f"{name}: --set {place}: the sweep varies it; say {instead}")
    runs: dict[str, Recipe] = {}
    digests: dict[str, str] = {}
    for configuration, (variant, values) in sweep.configurations().items():
        for seed in sweep.seeds:
            label = ",".join([_file_name(configuration)] * bool(configuration) + [f"seed={seed}"])
            one = copy.deepcopy({section: table for section, table in tables.items() if section not in NO_SECTIONS})
            try:
                source = one.setdefault("source", {})
                change(one, variant)
                if there.published:
                    source["accuracy"] = there.published.get(configuration.partition(",")[0], "")
                change(one, values)
                if configuration in there.published:
                    source["accuracy"] = there.published[configuration]
                change(one, [*changes, *values, ("training.seed", seed)])  # values again, of what a change starts anew
                source |= {"recipe": Path(name).stem, "configuration": configuration}
                recipe = read_recipe(one)
            except ValueError as error:
                raise ValueError(f"{name}, {label}: {error}") from error
            if (twin := digests.setdefault(recipe.digest(), label)) != label:
                raise ValueError(f"{name}: the runs {twin} and {label} would be the same")
            runs[label] = recipe
    return runs


def _short(place: str, places: dict[str, Any]) -> str:
    """The last part of "section.key", unless another of `places` ends on it too."""
    last = place.rpartition(".")[2]
    return last if sum(one.rpartition(".")[2] == last for one in places) == 1 else place


def _text(value: Any) -> str:
    return "-".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def _file_name(label: str) -> str:
    """A label as the name of a folder: plain characters, and a hash of the whole where any other or too many went."""
    plain = re.sub(r"[^A-Za-z0-9.,=+_-]+", "_", label)[:LONG].lstrip(".")
    return plain if plain == label else f"{plain}~{hashlib.sha256(label.encode()).hexdigest()[:8]}"


# ---- running ----


@dataclass
class Worker:
    """The process of a run. It stops as at a Ctrl-C when its standard input ends: when it is asked to, and when this
    process is gone, whatever ended it."""

    run: Run
    process: subprocess.Popen[bytes]
    output: Any
    started: float

    @classmethod
    def start(cls, run: Run, threads: int | None) -> Worker:
        environment = {"OMP_WAIT_POLICY": "passive", "PYTHONFAULTHANDLER": "1", **os.environ}
        if threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        output = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            [*COMMAND, "train", "--resume", str(run.folder), "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then asks
        )
        return cls(run, process, output, time.monotonic())

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def said(self) -> str:
        """The end of what it wrote to standard error."""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - 10_000))
        return str(self.output.read().decode(errors="replace"))

    def end(self) -> tuple[str, list[str]]:
        """Records how an ended process ended, and says it: "done", "failed" or "stopped"; and what it warned of."""
        code, said = self.process.wait(), self.said()
        self.ask_to_stop()
        self.output.close()
        if self.run.status() == "unfinished" and code != STOPPED:
            lines = said.strip().splitlines() or ["no message"]
            error = lines[-1].removeprefix("rotrnn: error: ")
            if code < 0:
                error = f"ended by {signal.Signals(-code).name}"
                if killed(code):
                    error += ", perhaps by the system for its memory"
            self.run.fail(error, said)
        status = self.run.status()
        warned = dict.fromkeys(line for line in said.splitlines() if line.startswith("rotrnn: warning: "))
        return "stopped" if status == "unfinished" else status, list(warned)


def stop_at_eof() -> None:
    """From now on the end of standard input interrupts this process as Ctrl-C does; for what a `Worker` starts."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        interrupt()

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    threading.Thread(target=watch, daemon=True).start()


def run_sweep(
    runs: dict[str, Recipe],
    folder: str | os.PathLike[str],
    *,
    jobs: int = 1,
    retry: bool = False,
    say: Any = print,
) -> list[Run]:
    """Trains what is not done of `runs`, `jobs` at a time, each in a folder of its own below `folder`.

    Runs that have ended are left as they are, with failed ones too unless `retry`; the others go on where they were.
    A run that fails or crashes does not stop the rest. With several at a time each has its share of the cores
    (OMP_NUM_THREADS), unless that is set.

    Raises
    ------
    ValueError
        A folder holds a run of another recipe, or another process runs a sweep here.
    Interrupted
        After Ctrl-C, when every run has saved; a second one kills them, which loses what is not saved.
    """
    top = Path(folder)
    if (top / "recipe.toml").exists():
        raise ValueError(f"{top}: holds a run, expected a folder for a sweep, which holds those of its runs")
    with locked(top, "another sweep is at work here"):
        every = [Run(top / name) for name in runs]
        for run, recipe in zip(every, runs.values(), strict=True):
            _put(run, recipe)
        todo = [run for run in every if run.status() == "unfinished" or (retry and run.status() == "failed")]
        say(f"{plural(len(every), 'run')} in {top}, ended: {len(every) - len(todo)}")
        _work(todo, jobs, max(1, cores() // jobs) if jobs > 1 else None, say)
    return every


def _put(run: Run, recipe: Recipe) -> None:
    """A run's folder with its recipe, from which it can be resumed."""
    if run.recipe.exists():
        there = run.load_recipe()
        try:
            check_same(there, recipe, run)
            run.put(recipe, there)
        except ValueError as error:
            raise ValueError(f"{error}; the recipe has changed: take another folder (--out)") from error
    else:
        run.folder.mkdir(parents=True, exist_ok=True)
        run.check_free()
        run.put(recipe)


def _work(todo: list[Run], jobs: int, threads: int | None, say: Any) -> None:
    waiting, working, ended = list(todo), list[Worker](), 0
    try:
        while waiting or working:
            for run in waiting[:]:
                if len(working) < jobs and _free(run):
                    waiting.remove(run)
                    working += [Worker.start(run, threads)] if run.status() != "done" else []
            time.sleep(POLL)
            for worker in _ended(working):
                ended += 1
                took = time.monotonic() - worker.started
                how, warned = worker.end()
                say(f"[{ended}/{len(todo)}] {worker.run.folder.name}: {how} after {took:.0f} s{_outcome(worker.run)}")
                for line in warned:
                    say(f"    {line}")
    except KeyboardInterrupt as error:
        say(f"stopping {plural(len(working), 'run')} after this step; Ctrl-C again kills them at once")
        _stop(working)
        raise Interrupted("stopped, every run is saved; to go on, give the same command again") from error
    finally:
        for worker in working:
            worker.process.kill()
            worker.process.wait()


def _outcome(run: Run) -> str:
    if run.status() == "done":
        result = run.read_json(run.result)
        metric = result["metric"]
        return f", test {metric.replace('_', ' ')} {result['test']['best'][metric]:.4f}"
    return f": {run.read_json(run.failed)['error']}" if run.status() == "failed" else ""


def _free(run: Run) -> bool:
    """Whether no process trains here: one that was left by a killed sweep saves and ends."""
    with contextlib.suppress(ValueError), run.locked():
        return True
    return False


def _ended(working: list[Worker]) -> Iterator[Worker]:
    """Takes the workers out that have ended."""
    for worker in [worker for worker in working if worker.process.poll() is not None]:
        working.remove(worker)
        yield worker


def _stop(working: list[Worker]) -> None:
    for worker in working:
        worker.ask_to_stop()
    while working:
        for worker in _ended(working):
            worker.end()
        time.sleep(POLL)
