"""A run's folder: its files, lock and log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rotrnn._support.checkpoint import Facts, check_like, read_checkpoint
from rotrnn._support.files import atomic_file, locked
from rotrnn.nn.layer import Params, flatten, unflatten
from rotrnn.ops.boundary import Array
from rotrnn.training.recipe import Recipe, load_recipe

PARAMS = "params."
RESULT: dict[str, type] = {"metric": str, "selected_on": str, "best_step": int, "test": dict}
"""The keys that result.json must have."""


@dataclass(frozen=True)
class Run:
    """A run's folder.

    It holds recipe.toml, the complete recipe; log.jsonl, one JSON object per line; result.json, when the run has ended;
    and the checkpoints init, last (everything needed to resume) and best (parameters of the best evaluation). In
    addition there are sessions.json, the environment of each start, and failed.json if the run ended with an error.
    """

    folder: Path

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
    def sessions(self) -> Path:
        return self.folder / "sessions.json"

    @property
    def failed(self) -> Path:
        return self.folder / "failed.json"

    def checkpoint(self, name: str) -> Path:
        """Returns the path of the checkpoint "init", "last" or "best"."""
        return self.folder / f"{name}.safetensors"

    def files(self) -> list[Path]:
        """Returns the files that are determined by the recipe."""
        checkpoints = [self.checkpoint(name) for name in ("init", "last", "best")]
        return [self.recipe, self.log, self.result, *checkpoints]

    def load_recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """Returns the recipe of the run. ValueError if there is no run in the folder."""
        self.check_there()
        return load_recipe(self.recipe, overrides)

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
        arrays, facts = read_checkpoint(path, like)
        if facts.get("recipe") != recipe.digest():
            raise ValueError(f"{path}: was written with another recipe than {self.recipe}")
        return arrays, facts

    def load_params(self, name: str, like: Params | None = None) -> Params:
        """Reads the parameters of a checkpoint, nested. ValueError if their names, shapes or dtypes differ from those
        of `like`, or as in `read`."""
        arrays, _ = self.read(name, self.load_recipe())
        params = {key.removeprefix(PARAMS): array for key, array in arrays.items() if key.startswith(PARAMS)}
        if like is not None:
            check_like(self.checkpoint(name), params, dict(flatten(like)))
        return unflatten(params)

    @contextmanager
    def locked(self, resume: bool = False) -> Iterator[None]:
        """Locks the folder for this process, and creates it. ValueError if another process has the lock, or if `resume`
        is True and there is no run in it."""
        if resume:
            self.check_there()
        with locked(self.folder, "another process is training here"):
            yield

    def check_free(self) -> None:
        """Raises ValueError if the folder holds anything of a run."""
        for path in self.files():
            if path.exists():
                raise ValueError(
                    f"{self.folder}: already holds a run ({path.name}); resume it (from the start if it has no "
                    "checkpoint yet), or use another folder"
                )

    def put(self, recipe: Recipe, there: Recipe | None = None) -> None:
        """Writes the recipe. If the folder has the recipe `there`, only the paths of its data files are updated."""
        new = recipe.moved() if there is None else there.moved(recipe)
        if there is None or new != there:
            self.write(self.recipe, new.text())

    def own(self) -> list[Path]:
        """Returns all files of the run."""
        return [*self.files(), self.sessions, self.failed]

    def write(self, path: Path, text: str) -> None:
        """Writes a text file atomically."""
        with atomic_file(path) as file:
            file.write(text.encode())

    def clean(self) -> None:
        """Removes temporary files left by a killed process."""
        for temporary in self.folder.glob(".*.tmp"):
            temporary.unlink()

    def status(self) -> Literal["done", "failed", "unfinished"]:
        """Returns the status of the run."""
        if self.result.exists():
            return "done"
        return "failed" if self.failed.exists() else "unfinished"

    def fail(self, error: str, output: str = "") -> None:
        """Records that the run ended with an error; `output` is the end of its output."""
        self.write(self.failed, json.dumps({"error": error, "output": output}, indent=2) + "\n")

    def add_session(self, session: dict[str, Any]) -> None:
        """Appends to the list in sessions.json."""
        self.write(self.sessions, json.dumps([*self.read_json(self.sessions, []), session], indent=2) + "\n")

    def read_json(self, path: Path, default: Any = None) -> Any:
        """Reads a JSON file of the run; returns `default` if it does not exist. ValueError if it is damaged."""
        if not path.exists():
            return default
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: is damaged, expected JSON ({error})") from error
        for name, keys in ((self.result, RESULT), (self.failed, {"error": str})):
            if path == name and not (isinstance(found, dict) and _has(found, keys)):
                expected = ", ".join(f'"{key}"' for key in keys)
                raise ValueError(f"{path}: is damaged, expected an object with {expected}")
        if path == self.sessions and not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
            raise ValueError(f"{path}: is damaged, expected a list of objects")
        return found

    def records(self) -> list[dict[str, Any]]:
        """Returns the records of the log. An incomplete last line, left by a kill, is ignored. ValueError if any other
        line is damaged."""
        if not self.log.exists():
            return []
        records = []
        for number, line in enumerate(self.log.read_bytes().split(b"\n")[:-1], 1):
            record = None
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
            texts = isinstance(record, dict) and any(isinstance(value, str) for value in record.values())
            if not isinstance(record, dict) or type(record.get("step")) is not int or texts:
                raise ValueError(f"{self.log}, line {number}: is damaged, expected a record with its step")
            records.append(record)
        return records

    def cut_log(self, step: int, unlogged: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Removes the records after `step`, adds those of `unlogged` that are missing, and returns the result."""
        records = [record for record in self.records() if record["step"] <= step]
        records += [record for record in unlogged if record not in records]
        self.write(self.log, "".join(json.dumps(record) + "\n" for record in records))
        return records


def _has(found: dict[str, Any], keys: Mapping[str, type]) -> bool:
    return all(isinstance(found.get(key), kind) for key, kind in keys.items())
