"""A run's folder: its files, lock and log."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rotrnn._support.checkpoint import Facts, check_like, read_checkpoint
from rotrnn._support.files import locked, open_file, read_file, write_text
from rotrnn._support.json import from_json, to_json, with_nan
from rotrnn._support.toml import from_toml
from rotrnn._support.warn import warn
from rotrnn.models.build import sizes_of
from rotrnn.nn.layer import Params, flatten, unflatten
from rotrnn.nn.module import UNFIT
from rotrnn.ops.boundary import Array
from rotrnn.tasks import Task
from rotrnn.tasks.own import load_by, shape_of
from rotrnn.tasks.rules import RULES, find_rules
from rotrnn.tasks.task import Shape
from rotrnn.training.recipe import Recipe, load_recipe

PARAMS = "params."
PARAMETERS = ("init", "last", "best")
"""The checkpoints of a run."""
FACTS: dict[str, Any] = {"step": int, "best_step": int, "best_score": int | float, "arithmetic": list}
"""The facts that a run is resumed from."""
RESULT: dict[str, type] = {"metric": str, "selected_on": str, "best_step": int, "test": dict}
"""The keys that result.json must have."""
SHARES = ("accuracy", "sequence_accuracy")
"""Scores of result.json that are from 0 to 1."""


@dataclass(frozen=True)
class Run:
    """A run's folder.

    It holds recipe.toml, the complete recipe; log.jsonl, one JSON object per line; result.json, when the run has ended;
    and the checkpoints init, last (everything needed to resume) and best (parameters of the best evaluation). In
    addition there are sessions.json, the environment of each start, failed.json if the run ended with an error, and of
    a task of own data rules.json (`rotrnn.tasks.rules`).
    """

    folder: Path

    write = staticmethod(write_text)

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.toml"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def rules(self) -> Path:
        return self.folder / f"{RULES}.json"

    @property
    def sessions(self) -> Path:
        return self.folder / "sessions.json"

    @property
    def failed(self) -> Path:
        return self.folder / "failed.json"

    @property
    def board(self) -> Path:
        return self.folder / "tensorboard"

    def checkpoint(self, name: str) -> Path:
        """Returns the path of a checkpoint, one of `PARAMETERS`."""
        return self.folder / f"{name}.safetensors"

    def files(self) -> list[Path]:
        """Returns the files that are determined by the recipe."""
        checkpoints = [self.checkpoint(name) for name in PARAMETERS]
        return [self.recipe, self.log, self.result, *checkpoints]

    def load_recipe(self, overrides: Sequence[str] = (), *, trust: bool = False) -> Recipe:
        """Returns the recipe of the run; `trust` as for `rotrnn.load_recipe`. ValueError if there is no run in the
        folder."""
        self.check_there()
        return load_recipe(self.recipe, overrides, trust=trust)

    def check_there(self) -> None:
        """Raises ValueError if there is no run in the folder."""
        if not self.recipe.is_file():
            raise ValueError(f"{self.folder}: is not the folder of a run, expected a folder with a recipe.toml")

    def read(
        self, name: str, recipe: Recipe, like: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Array], Facts]:
        """Reads a checkpoint's arrays and facts. ValueError if it was written with another recipe, or as in
        `read_checkpoint`."""
        path = self.checkpoint(name)
        if name == "best" and not path.exists() and self.checkpoint("last").exists():
            way = "rotrnn eval, export and generate take the last parameters with --checkpoint last"
            raise FileNotFoundError(errno.ENOENT, f"there is no such file; {way}", str(path))
        arrays, facts = read_checkpoint(path, like)
        stated = self._stated()
        of_run = [one.digest(known) for one in (recipe, *recipe.before()) for known in (None, stated)]
        if facts.get("recipe") not in of_run:
            raise ValueError(f"{path}: was written with another recipe than {self.recipe}")
        return arrays, facts

    def read_last(self, recipe: Recipe, like: Mapping[str, Array] | None = None) -> tuple[dict[str, Array], Facts]:
        """Reads arrays and facts of the checkpoint last. ValueError if it lacks facts for resuming, or as in `read`.

        A run from before equal scores counted as no improvement has "waited" since its best step."""
        arrays, facts = self.read("last", recipe, like)
        path, steps = self.checkpoint("last"), recipe.training.steps
        history, unlogged = facts.get("arithmetic"), facts.get("unlogged", [])
        named = isinstance(history, list) and bool(history) and all(isinstance(one, str) for one in history)
        if not (_has(facts, FACTS) and named and isinstance(unlogged, list) and all(map(_is_record, unlogged))):
            raise ValueError(f"{path}: is not the state of a run, expected {', '.join(FACTS)} among its facts")
        if not 0 <= facts["best_step"] <= facts["step"] <= steps:
            where = f"step {facts['step']} and best_step {facts['best_step']}"
            raise ValueError(f"{path}: is at {where}, expected best_step <= step <= {steps}, the steps of the recipe")
        waited = facts.setdefault("waited", (facts["step"] - facts["best_step"]) // recipe.training.eval_every)
        if type(waited) is not int:
            raise ValueError(f"{path}: waited is {waited!r}, expected an integer")
        return arrays, facts

    def load_params(self, name: str, like: Params | None = None) -> Params:
        """Reads the parameters of a checkpoint, nested. ValueError if their names, shapes or dtypes differ from `like`,
        or as in `read`."""
        arrays, _ = self.read(name, self.load_recipe())
        params = {key.removeprefix(PARAMS): array for key, array in arrays.items() if key.startswith(PARAMS)}
        if like is not None:
            check_like(self.checkpoint(name), params, dict(flatten(like)))
        return unflatten_params(self.checkpoint(name), params)

    def shape(self, recipe: Recipe, name: str, params: Params) -> Shape:
        """Returns the shape of the run's task by the parameters of a checkpoint, without the data. ValueError if they
        are not the parameters of a model."""
        try:
            sizes = sizes_of(params, recipe.model)
        except ValueError as error:
            raise ValueError(f"{self.checkpoint(name)}: {error}") from error
        return Shape(**sizes, head=getattr(recipe.task, "head", None) or shape_of(recipe.task).head)

    @contextmanager
    def locked(self, resume: bool = False) -> Iterator[None]:
        """Locks the folder for this process, and creates it. ValueError if another process has the lock, or if `resume`
        is True and there is no run in it."""
        if resume:
            self.check_there()
        with locked(self.folder, "another process is training here"):
            yield

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Within the block a new run begins. If it ends by an error of code that gets values of another form before
        there is a checkpoint last, its files are removed: data and layer do not fit the recipe, or each other, and the
        folder is free for a recipe that does. Other errors leave the run, to be resumed."""
        try:
            yield
        except (*UNFIT, NotImplementedError):
            if not self.checkpoint("last").exists():
                shutil.rmtree(self.board, ignore_errors=True)
                for path in self.own():
                    with suppress(OSError):
                        path.unlink()
            raise

    def check_free(self) -> None:
        """Raises ValueError if the folder holds anything of a run."""
        if self.result.exists() and self.recipe.exists():
            way = "more training.steps extend it, or use another folder"
            raise ValueError(f"{self.folder}: already holds a run that is finished; {way}")
        for path in self.files():
            if path.exists():
                resume = "resume it (from the start if it has no checkpoint yet)"
                way = resume if path == self.recipe else f"put its {self.recipe.name} back"
                raise ValueError(f"{self.folder}: already holds a run ({path.name}); {way}, or use another folder")

    def put(self, recipe: Recipe, there: Recipe | None = None) -> None:
        """Writes the recipe. If the folder has the recipe `there`, only the paths of its data files, `training.memory`
        and the steps, where there are more, are updated; the result of a run that goes on to more is removed."""
        if there is None:
            self.write(self.recipe, recipe.moved().text())
        elif (new := there.moved(recipe)) != there:
            stated = self._stated()
            if new.training.extended != there.training.extended:
                self.result.unlink(missing_ok=True)
                stated["training"]["extended"] = list(new.training.extended or ())
            self.write(self.recipe, new.text(stated))

    def restore(self, recipe: Recipe) -> None:
        """Writes a damaged or missing recipe anew, and removes the result, so that resuming the run writes it again.
        ValueError if the checkpoint last was written with another recipe."""
        last = self.checkpoint("last")
        if last.exists() or self.result.exists():
            _, facts = read_checkpoint(last)
            if facts.get("recipe") != recipe.digest():
                what = f"is damaged or missing, and {last.name} was written with another recipe than this"
                raise ValueError(f"{self.recipe}: {what}; delete the folder, or use another (--out)")
            self.result.unlink(missing_ok=True)
        self.put(recipe)

    def _stated(self) -> dict[str, Any]:
        """Returns the sections of the recipe's file, which lacks settings that are newer than the run."""
        return from_toml(read_file(self.recipe).decode())

    def own(self) -> list[Path]:
        """Returns all files of the run."""
        return [*self.files(), self.rules, self.sessions, self.failed]

    def status(self) -> Literal["done", "failed", "unfinished"]:
        """Returns the status of the run."""
        if self.result.exists():
            return "done"
        return "failed" if self.failed.exists() else "unfinished"

    def drop_damaged_result(self) -> None:
        """Removes a result.json that cannot be read, so that resuming the run writes it again."""
        try:
            self.read_json(self.result)
        except ValueError:
            self.result.unlink()

    def fail(self, error: str, output: str = "") -> None:
        """Records that the run ended with an error; `output` is the end of its output."""
        self.write(self.failed, to_json({"error": error, "output": output}, indent=2) + "\n")

    def starts(self) -> list[dict[str, Any]]:
        """Returns the list in sessions.json. No result depends on it: a damaged one is told by a warning, and counts as
        empty."""
        try:
            found: list[dict[str, Any]] = self.read_json(self.sessions, [])
        except ValueError as error:
            _tell(f"{error}; it counts as empty")
            return []
        return found

    def add_session(self, session: dict[str, Any]) -> None:
        """Appends to the list in sessions.json."""
        self.write(self.sessions, to_json([*self.starts(), session], indent=2) + "\n")

    def trained_on(self) -> str | None:
        """Returns the hash of the data files (`data_of`) at the run's first start; None if sessions.json lacks it."""
        return next((one["data"] for one in self.starts() if isinstance(one.get("data"), str)), None)

    def changed_data(self, task: Any) -> str | None:
        """Returns a message if the data files of a task have changed since the run's first start; None if not, or
        if sessions.json does not say, as for runs of older versions."""
        known, now = self.trained_on(), data_of(task)
        if now is None or known is None or now == known:
            return None
        one = len(data_files(task)) == 1
        what = "is not the file that the run was trained on: its" if one else "are not the files of the run: their"
        return f"{place_of(task)}: {what} SHA-256 is {now:.16}, was {known:.16}"

    def load_task(self, settings: Any) -> Task:
        """Returns the task with these settings, the run's or others; of your own data, by the rules of the run. Warns
        if the data files are not the files of the run."""
        if (wrong := self.changed_data(settings)) is not None:
            warn(wrong)
        return load_by(settings, find_rules(self.folder))

    def last_memory(self) -> int | None:
        """Returns the bytes that the last start took by training.memory "auto", as sessions.json says; None if it does
        not."""
        last = (self.starts() or [{}])[-1]
        memory = last.get("memory") if last.get("memory_setting") == "auto" else None
        return memory if type(memory) is int and memory >= 0 else None

    def last_logged(self) -> int:
        """Returns the highest step of which any start wrote a record to the log; -1 if none did. The log itself may end
        before it, where a resumed run was stopped once more."""
        found = [one.get("logged") for one in self.starts()]
        found += [record["step"] for record in self.records()[-1:]]
        return max((one for one in found if type(one) is int), default=-1)

    def read_json(self, path: Path, default: Any = None) -> Any:
        """Reads a JSON file of the run; returns `default` if it does not exist. ValueError if it is damaged.

        A null stands for a number that is not finite and is read as NaN, except in sessions.json and failed.json.
        """
        if not path.exists():
            return default
        try:
            found = from_json(read_file(path))
        except ValueError as error:
            raise ValueError(f"{path}: is damaged, expected JSON ({error})") from error
        if path == self.result and (expected := _expected_of_result(found)):
            raise ValueError(f"{path}: is damaged, expected {expected}")
        if path == self.failed and not (isinstance(found, dict) and _has(found, {"error": str})):
            raise ValueError(f'{path}: is damaged, expected an object with "error"')
        if path == self.sessions and not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
            raise ValueError(f"{path}: is damaged, expected a list of objects")
        return found if path in (self.sessions, self.failed) else with_nan(found)

    def records(self) -> list[dict[str, Any]]:
        """Returns the records of the log. An incomplete last line, left by a kill, is ignored. ValueError if any other
        line is damaged."""
        if not self.log.exists():
            return []
        records = []
        for number, line in enumerate(read_file(self.log).split(b"\n")[:-1], 1):
            record = None
            with suppress(ValueError):
                record = from_json(line)
            if not _is_record(record):
                raise ValueError(f"{self.log}, line {number}: is damaged, expected a record with its step")
            records.append(with_nan(record))
        return records

    def cut_log(self, step: int, unlogged: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Removes the records after `step`, adds the missing records of `unlogged`, and returns the result."""
        records = [record for record in self.records() if record["step"] <= step]
        # compared as texts, since NaN does not equal itself, with sorted keys, as checkpoints have them
        kept = {to_json(record, sort_keys=True): record for record in records}
        for record in unlogged:
            kept.setdefault(to_json(record, sort_keys=True), with_nan(record))
        self.write(self.log, "".join(f"{to_json(record)}\n" for record in kept.values()))
        return list(kept.values())


def data_of(task: Any) -> str | None:
    """Returns the SHA-256 of the data file of a task; of several files, of a line for each as sha256sum prints it, with
    names for paths. None if a file is missing, or the task has none (`data_files`)."""
    files = data_files(task)
    if not files or not all(path.is_file() for path in files):
        return None
    hashes = []
    for path in files:
        with open_file(path) as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())  # type: ignore[arg-type]  # binary files fit
    lines = [f"{known}  {path.name}\n" for known, path in zip(hashes, files, strict=True)]
    return hashes[0] if len(files) == 1 else hashlib.sha256("".join(lines).encode()).hexdigest()


def data_files(task: Any) -> list[Path]:
    """Returns the data files of a task: its `path`, or what its method `data_files` returns; none of other tasks, whose
    data are generated or a folder."""
    if callable(listed := getattr(task, "data_files", None)):
        return [Path(path) for path in listed()]
    path = getattr(task, "path", None)
    return [Path(path)] if isinstance(path, str) and not Path(path).is_dir() else []


def place_of(task: Any) -> str:
    """Returns the data files of a task in words; "" if it has none."""
    return ", ".join(str(path) if i == 0 else path.name for i, path in enumerate(data_files(task)))


def unflatten_params(path: Path, flat: dict[str, Array]) -> Params:
    """Returns the nested parameters of a checkpoint. ValueError, with its path, if a name leads into another array."""
    try:
        return unflatten(flat)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


_tell = cache(warn)
"""Warns once in a process: the list of starts is read several times in each."""


def _has(found: dict[str, Any], keys: Mapping[str, Any]) -> bool:
    return all(isinstance(found.get(key), kind) and not isinstance(found[key], bool) for key, kind in keys.items())


def is_number(value: Any) -> bool:
    """Returns whether a JSON value is a number that float64 can hold; null stands for one that is not finite."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or type(value) is float


def _is_record(value: Any) -> bool:
    """Returns whether a JSON value is a record of the log: a step, numbers, and what the layers report."""
    if not isinstance(value, dict) or type(value.get("step")) is not int:
        return False
    value = dict(value)
    norms, layers = value.pop("state_norms", []), value.pop("layers", {})
    if not (isinstance(norms, list) and isinstance(layers, dict)):
        return False
    return all(map(is_number, (*value.values(), *norms, *layers.values())))


def _expected_of_result(value: Any) -> str:
    """Returns the flaw of a JSON value as the result of a run; an empty string if there is none."""
    keys = "an object with " + ", ".join(f'"{key}"' for key in RESULT)
    if not (isinstance(value, dict) and _has(value, RESULT)):
        return keys
    parameters = value.get("parameters", 0)
    if type(parameters) is not int or parameters < 0:
        return f'"parameters" to be an integer from 0, got {parameters!r:.80}'
    for one in (value["test"].get(name) for name in ("best", "last")):
        if not (isinstance(one, dict) and value["metric"] in one and is_number(one[value["metric"]])):
            return keys
        for share in SHARES:
            score = one.get(share)
            if not is_number(score) or (score is not None and (score < 0 or score > 1)):
                return f'"{share}" to be from 0 to 1, got {score!r:.80}'
    return ""
