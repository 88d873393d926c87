"""Sweeps: runs of one recipe over seeds, settings and variants, each in its own folder and process.

The state of a sweep is stored only in the folders of its runs, and each of them survives a kill. So a sweep that was
killed at any moment can be started again: it resumes, and its result equals the result of an uninterrupted sweep.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rotrnn._support.files import check_folder, clean, locked
from rotrnn._support.platform import cores, interrupt, killed
from rotrnn._support.progress import say as say_line
from rotrnn._support.text import nearest, plural
from rotrnn.devices.device import named
from rotrnn.nn.registry import LAYERS
from rotrnn.training.loop import Interrupted, check_same
from rotrnn.training.modules import Untrusted, load, locate
from rotrnn.training.parallel import LAUNCHERS
from rotrnn.training.recipe import (
    NO_SECTIONS,
    Recipe,
    change,
    check_dropped,
    layer_keys,
    parse_override,
    parse_value,
    pick,
    read_recipe,
    recipe_tables,
    replaced,
    warn_of_dropped,
)
from rotrnn.training.run import Run, data_of, place_of

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "rotrnn")
"""The command that trains a run; it is followed by the arguments of `rotrnn`. By -P no module of the working directory
takes the place of another."""
STOPPED = 130
"""The exit code of a run that stopped on request."""
POLL = 0.05
"""Seconds between two checks of the processes."""
MOST = 4096
"""Maximum number of runs of a sweep."""
LONG = 80
"""Maximum number of characters of a configuration's name in the name of its folder."""


@dataclass(frozen=True)
class Sweep:
    """The section [sweep] of a recipe. A sweep runs the product of its variants, its grid and its seeds.

    Parameters
    ----------
    seeds : tuple of int
        Values of training.seed. If empty, the recipe's own seed is used.
    grid : dict
        "section.key" -> the values of this setting.
    variants : dict
        Name -> settings "section.key" that change together, such as a row of an ablation.
    published : dict
        Name of a variant or a configuration ("rank=4") -> its published figure. If this table is missing, the accuracy
        in [source] applies to every run with the recipe's layer and task.
    keep : tuple of str
        Settings "layer.key" that a variant with another layer has in common with the recipe (or its small variant),
        unless it sets them itself; all others are reset. A setting that the recipe does not have is left out.
    """

    seeds: tuple[int, ...] = ()
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "training.seed" in (*self.grid, *(place for one in self.variants.values() for place in one)):
            raise ValueError("training.seed can only be varied by seeds, or seeds = [...] in [sweep]")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"the seeds are {list(self.seeds)}, expected distinct ones")

    def configurations(self) -> dict[str, list[list[tuple[str, Any]]]]:
        """Returns name -> changed settings: first the variant's, then the grid's."""
        for place, values in self.grid.items():
            if not values:
                raise ValueError(f"the grid of {place} has no values, expected at least one")
        variants = self.variants or {"": {}}
        count = len(variants) * math.prod(map(len, self.grid.values())) * max(1, len(self.seeds))
        if count > MOST:
            raise ValueError(f"the sweep has {count} runs, expected at most {MOST}")
        found = {}
        for (variant, settings), values in itertools.product(variants.items(), itertools.product(*self.grid.values())):
            chosen = list(zip(self.grid, values, strict=True))
            parts = [variant] if variant else []
            parts += [f"{_short(place, self.grid)}={_text(value)}" for place, value in chosen]
            name = ",".join(parts)
            if name in found:
                raise ValueError(f"two configurations of the sweep have the name {name}")
            found[name] = [list(settings.items()), chosen]
        return found


def read_sweep(tables: dict[str, Any]) -> Sweep:
    """Reads the sweep from a recipe's tables. ValueError if it is malformed."""
    own = tables.get("sweep", {})
    for key in own:
        if key not in ("seeds", "grid", "variants", "published", "keep"):
            raise ValueError(f"unknown key sweep.{key}; expected seeds, grid, variants, published or keep")
    seeds = own.get("seeds", ())
    listed = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if "seeds" in own and not listed:
        raise ValueError(f"sweep.seeds is {seeds!r}, expected a list of integers from 0, such as [0, 1, 2]")
    for key, kind, words in (
        ("grid", list, '"section.key" = [values]'),
        ("variants", dict, '[sweep.variants.NAME] with "section.key" = value'),
        ("published", (int, float, str), "NAME = a number or a string"),
    ):
        table = own.get(key, {})
        if not isinstance(table, dict):
            raise ValueError(f"sweep.{key} is {table!r}, expected {words}")
        for name, one in table.items():
            if not isinstance(one, kind) or one == []:
                raise ValueError(f"sweep.{key}.{name} is {one!r}, expected {words}")
    for name, settings in own.get("variants", {}).items():
        for place in settings:
            if "." not in place:
                raise ValueError(f"sweep.variants.{name} has the key '{place}', expected \"section.key\" in quotes")
    keep = own.get("keep", [])
    if not (isinstance(keep, list) and all(isinstance(one, str) and one.startswith("layer.") for one in keep)):
        raise ValueError(f'sweep.keep is {keep!r}, expected a list of settings "layer.key"')
    sweep = Sweep(
        tuple(seeds),
        {place: tuple(values) for place, values in own.get("grid", {}).items()},
        own.get("variants", {}),
        {name: str(figure) for name, figure in own.get("published", {}).items()},
        tuple(keep),
    )
    known = sweep.variants | sweep.configurations()
    for name in sweep.published:
        pick("sweep.published", name, known)
    return sweep


def parse_seeds(text: str) -> tuple[int, ...]:
    """Returns the seeds that the command line has as "0..2" (the last one included) or "0,3,5"."""
    with contextlib.suppress(ValueError):
        first, dots, last = text.partition("..")
        seeds = tuple(range(int(first), int(last) + 1)[: MOST + 1] if dots else map(int, text.split(",")))
        if seeds and min(seeds) >= 0:
            return seeds
    raise ValueError(f"--seeds {text or repr(text)}: expected integers from 0, such as 0..2 or 0,3,5")


def parse_grid(text: str) -> tuple[str, tuple[Any, ...]]:
    """Returns place and values that the command line has as "section.key=a,b"; commas in brackets separate none."""
    place, _ = parse_override(text, "--grid", "a,b")
    listed = text.partition("=")[2]
    values = parse_value(f"[{listed}]")
    if isinstance(values, list):
        return place, tuple(values)
    parts, depth = [""], 0
    for one in listed:
        depth += (one in "[{") - (one in "]}")
        parts = [*parts, ""] if one == "," and not depth else [*parts[:-1], parts[-1] + one]
    return place, tuple(map(parse_value, parts))


def as_grid(pairs: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, tuple[Any, ...]]:
    """Returns the grid from pairs ("section.key", values). ValueError if a key occurs twice."""
    grid: dict[str, tuple[Any, ...]] = {}
    for place, values in pairs:
        if place in grid:
            raise ValueError(f"grid {place} is given twice, expected all its values in one")
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
    """Returns the runs of a recipe's sweep: name of the folder -> recipe.

    Parameters
    ----------
    name : str or path
        As in `load_recipe`.
    seeds, grid : sequences
        Replace the recipe's seeds, and replace or add keys of its grid.
    variants : sequence of str
        The variants to run. If empty, all variants of the recipe are run.
    overrides : sequence of "section.key=value"
        Replace settings in every run, including those set by variants. Another layer or task becomes part of the run's
        name: "mamba,layer=mamba2".

    Raises
    ------
    ValueError
        As in `load_recipe`; or the section [sweep] is malformed (see `Sweep`), or two runs would be the same.
    """
    tables = recipe_tables(name)
    try:
        there = read_sweep(tables)
        _check_keep(tables, there.keep)
        if variants and not there.variants:
            raise ValueError(f"variants is {variants[0]!r}, but the recipe has no [sweep.variants]")
        chosen = {one: pick("variants", one, there.variants) for one in variants} or there.variants
        own = tables.get("training", {}).get("seed", 0)
        sweep = Sweep(tuple(seeds) or there.seeds or (own,), there.grid | as_grid(grid), chosen)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    changes = [parse_override(override) for override in overrides]
    for place, _ in changes:
        if place in (*sweep.grid, "training.seed"):
            instead = "seeds" if place == "training.seed" else "grid"
            raise ValueError(f"{name}: overrides {place}: the sweep varies this setting; use {instead}")
    runs: dict[str, Recipe] = {}
    digests: dict[str, str] = {}
    dropped = []
    again = {place for place, _ in changes} | sweep.grid.keys()
    for configuration, (variant, values) in sweep.configurations().items():
        for seed in sweep.seeds:
            label = _label(configuration, seed)
            one = copy.deepcopy({section: table for section, table in tables.items() if section not in NO_SECTIONS})
            try:
                source = one.setdefault("source", {})
                change(one, [*_settings(one, there.keep), *variant])
                if there.published:
                    source["accuracy"] = there.published.get(configuration.partition(",")[0], "")
                dropped.append(change(one, values))
                if configuration in there.published:
                    source["accuracy"] = there.published[configuration]
                title = ",".join([configuration] * bool(configuration) + replaced(one, changes))
                label = _label(title, seed)
                # values again, because a change may reset a section
                dropped.append(change(one, [*changes, *values, ("training.seed", seed)]))
                source |= {"recipe": Path(name).stem, "configuration": title}
                recipe = read_recipe(one)
                for lost in dropped[-2:]:
                    check_dropped(recipe, lost, again)
            except ValueError as error:
                raise ValueError(f"{name}, {label}: {error}") from error
            if (twin := digests.setdefault(recipe.digest(), label)) != label:
                raise ValueError(f"{name}: the runs {twin} and {label} would be the same")
            runs[label] = recipe
    warn_of_dropped(name, dropped, again)
    return runs


def _check_keep(tables: dict[str, Any], keep: Sequence[str]) -> None:
    """Raises ValueError if `keep` names a setting that the recipe's layer cannot have."""
    load(locate(tables.get("import", []), None))
    layer = tables.get("model", {}).get("layer")
    if layer not in LAYERS:  # reading the recipe says so
        return
    keys = layer_keys(LAYERS[layer])
    for place in keep:
        if (key := place.removeprefix("layer.")) not in keys:
            raise ValueError(f"sweep.keep: unknown key {place}{nearest(key, keys)}")


def _settings(tables: dict[str, Any], places: Sequence[str]) -> list[tuple[str, Any]]:
    """Returns the settings "section.key" that the tables have, with their values."""
    found = ((place, *place.split(".", 1)) for place in places)
    return [(place, tables[section][key]) for place, section, key in found if key in tables.get(section, {})]


def _short(place: str, places: dict[str, Any]) -> str:
    """Returns the last part of "section.key", or the whole if another of `places` has the same last part."""
    last = place.rpartition(".")[2]
    return last if sum(one.rpartition(".")[2] == last for one in places) == 1 else place


def _label(configuration: str, seed: int) -> str:
    """Returns the name of a run's folder."""
    return ",".join([_file_name(configuration)] * bool(configuration) + [f"seed={seed}"])


def _text(value: Any) -> str:
    return "-".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def _file_name(label: str) -> str:
    """Returns a folder name for a label: plain characters, with a hash of the label if any were replaced or cut off."""
    plain = re.sub(r"[^A-Za-z0-9.,=+_-]+", "_", label)[:LONG].lstrip(".")
    return plain if plain == label else f"{plain}~{hashlib.sha256(label.encode()).hexdigest()[:8]}"


# ---- running ----


class Working(Protocol):
    """A run that is being trained, here or on another machine."""

    run: Run

    def has_ended(self) -> bool: ...

    def ask_to_stop(self) -> None:
        """Lets the run finish its step and save."""

    def end(self) -> tuple[str, list[str]]:
        """Returns the outcome of a run that has ended ("done", "failed" or "stopped"), and its warnings."""

    def kill(self) -> None: ...


Place = Callable[[Run], Working]
"""Where one run at a time is trained: starts it."""


@dataclass
class Worker:
    """The process of a run. It stops as if by Ctrl-C when its standard input is closed: when this process asks it to
    stop, and when this process has ended for any reason."""

    run: Run
    process: subprocess.Popen[bytes]
    output: Any

    @classmethod
    def start(cls, run: Run, threads: int | None, device: str) -> Worker:
        environment = {"OMP_WAIT_POLICY": "passive", "PYTHONFAULTHANDLER": "1", **os.environ}
        for rank in LAUNCHERS:  # this process may be one of MPI's; a run of its own is not
            environment.pop(rank, None)
        if threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        output = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            [*COMMAND, "train", "--resume", str(run.folder), "--trust", "--until-eof", "--device", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=output,
            env=environment,
            # Ctrl-C reaches only this process, which then asks the worker to stop. In a session of its own a worker
            # would not heed `nice` beside those of others: Linux shares the cores among sessions
            process_group=0,
        )
        return cls(run, process, output)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stderr_tail(self) -> str:
        """Returns the end of the worker's standard error."""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - 10_000))
        return str(self.output.read().decode(errors="replace"))

    def end(self) -> tuple[str, list[str]]:
        """Records the outcome of an ended process, and returns it."""
        code, tail = self.process.wait(), self.stderr_tail()
        self.ask_to_stop()
        self.output.close()
        if self.run.status() == "unfinished" and code != STOPPED:
            lines = tail.strip().splitlines() or ["no message"]
            error = lines[-1].removeprefix("rotrnn: error: ")
            if code < 0:
                error = f"ended by {signal.Signals(-code).name}"
                if killed(code):
                    error += ", perhaps by the system because memory ran out"
            self.run.fail(error, tail)
        status = self.run.status()
        warned = dict.fromkeys(line for line in tail.splitlines() if line.startswith("rotrnn: warning: "))
        return "stopped" if status == "unfinished" else status, list(warned)


def stop_at_eof() -> None:
    """From now on the end of standard input interrupts this process like Ctrl-C. Used in the process of a `Worker`."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        interrupt()

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore SIGINT
    threading.Thread(target=watch, daemon=True).start()


def run_sweep(
    runs: dict[str, Recipe],
    folder: str | os.PathLike[str],
    *,
    jobs: int = 1,
    retry: bool = False,
    say: Any = say_line,
    device: str = "cpu",
    places: Sequence[Place] = (),
) -> list[Run]:
    """Trains the unfinished runs, `jobs` at a time, each in its own folder below `folder`.

    Finished runs are not touched, and neither are failed ones unless `retry` is True, which also evaluates runs again
    whose result.json or recipe.toml is damaged, or whose recipe.toml is missing. The others are resumed. A run that
    fails or crashes does not stop the others. With several jobs, each gets a share of the cores (OMP_NUM_THREADS),
    unless that variable is set. `device` is as in `train`. If there are `places`, runs are trained there instead of
    `jobs` at a time here.

    Raises
    ------
    DeviceError
        As in `train`.
    ValueError
        A folder holds a run of another recipe, or another process runs a sweep in `folder`.
    Interrupted
        After Ctrl-C, when every run has saved its state. A second Ctrl-C kills the runs, and unsaved steps are lost.
    """
    named("sweep", device)
    with prepared(runs, folder, retry, say) as (every, todo):
        _work(todo, places or [here(jobs, device)] * jobs, say)
    return every


def here(share: int, device: str) -> Callable[[Run], Worker]:
    """Returns this process as a place, one of `share` that share the cores."""
    return partial(Worker.start, threads=max(1, cores() // share) if share > 1 else None, device=device)


@contextlib.contextmanager
def prepared(
    runs: dict[str, Recipe], folder: str | os.PathLike[str], retry: bool, say: Any
) -> Iterator[tuple[list[Run], list[Run]]]:
    """Creates the folders of the runs of a sweep, and locks the sweep within the block. Yields all runs, and those that
    are to be trained."""
    check_folder("sweep: folder", folder)
    top = Path(folder)
    if (top / "recipe.toml").exists():
        raise ValueError(f"{top}: holds a run, expected a folder for a sweep, which has a subfolder for each run")
    with locked(top, "another sweep is running here"):
        clean(top)
        every = [Run(top / name) for name in runs]
        for run, recipe in zip(every, runs.values(), strict=True):
            _put(run, recipe, retry)
            if retry:
                run.drop_damaged_result()
        _tell_changed(every, list(runs.values()), say)
        todo = [run for run in every if run.status() == "unfinished" or (retry and run.status() == "failed")]
        say(f"{plural(len(every), 'run')} in {top}, ended: {len(every) - len(todo)}")
        yield every, todo


def _tell_changed(every: Sequence[Run], recipes: Sequence[Recipe], say: Any) -> None:
    """Says how many finished runs were trained on other contents of their data files than these have now."""
    now: dict[Any, str | None] = {}
    changed: dict[Any, int] = {}
    for run, recipe in zip(every, recipes, strict=True):
        path = place_of(recipe.task)
        known = run.trained_on() if run.status() == "done" else None
        if known is None:
            continue
        if path not in now:
            now[path] = data_of(recipe.task)
        if now[path] not in (None, known):
            changed[path] = changed.get(path, 0) + 1
    for path, count in changed.items():
        what = f"{plural(count, 'finished run')} on other contents of {path} than it has now"
        say(f"warning: {what}, which stay as they are; another folder (--out) has all runs on the same file")


def _put(run: Run, recipe: Recipe, retry: bool) -> None:
    """Creates a run's folder with its recipe, from which the run can be resumed. A damaged or missing recipe is written
    anew to `retry`; else the run fails."""
    check_folder("sweep: run", run.folder)
    if any(path.exists() for path in run.files()):
        try:
            there = run.load_recipe()
        except Untrusted:  # what `Worker` imports are the modules of this sweep's own recipe
            raise
        except ValueError:
            if retry:
                run.restore(recipe)
            return
        try:
            check_same(there, recipe, run)
            run.put(recipe, there)
        except ValueError as error:
            raise ValueError(f"{error}; the recipe has changed: use another folder (--out)") from error
    else:
        run.folder.mkdir(parents=True, exist_ok=True)
        run.put(recipe)


def _work(todo: list[Run], places: Sequence[Place], say: Any) -> None:
    waiting, working, ended = list(todo), list[_Started](), 0
    free = list(places)
    try:
        while waiting or working:
            for run in waiting[:]:
                if free and _free(run):
                    waiting.remove(run)
                    working += [_Started(free.pop(0), run)] if run.status() != "done" else []
            time.sleep(POLL)
            for one in _ended(working):
                ended += 1
                free.append(one.place)
                how, warned = one.work.end()
                run, took = one.work.run, time.monotonic() - one.at
                say(f"[{ended}/{len(todo)}] {run.folder.name}: {how} after {took:.0f} s{_outcome(run)}")
                for line in warned:
                    say(f"    {line}")
    except KeyboardInterrupt as error:
        say(f"stopping {plural(len(working), 'run')} after this step; Ctrl-C again kills them at once")
        _stop(working)
        raise Interrupted("stopped, every run is saved; to resume, repeat the same command") from error
    finally:
        for one in working:
            one.work.kill()


class _Started:
    """A run that was started at a place."""

    def __init__(self, place: Place, run: Run) -> None:
        self.place, self.work, self.at = place, place(run), time.monotonic()


def _outcome(run: Run) -> str:
    if run.status() == "done":
        result = run.read_json(run.result)
        metric = result["metric"]
        return f", test {metric.replace('_', ' ')} {result['test']['best'][metric]:.4f}"
    return f": {run.read_json(run.failed)['error']}" if run.status() == "failed" else ""


def _free(run: Run) -> bool:
    """Returns whether no process is training in the run's folder. A process left by a killed sweep saves and ends."""
    with contextlib.suppress(ValueError), run.locked():
        return True
    return False


def _ended(working: list[_Started]) -> Iterator[_Started]:
    """Removes the runs that have ended from the list, and yields them."""
    for one in [one for one in working if one.work.has_ended()]:
        working.remove(one)
        yield one


def _stop(working: list[_Started]) -> None:
    for one in working:
        one.work.ask_to_stop()
    while working:
        for one in _ended(working):
            one.work.end()
        time.sleep(POLL)
