"""The folder of a run: its files, its lock, its log."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rotrnn.checkpoint import Facts, check_like, read_checkpoint
from rotrnn.files import atomic_file
from rotrnn.nn.layer import Params, flatten, unflatten
from rotrnn.ops.boundary import Array
from rotrnn.training.recipe import Recipe, load_recipe

PARAMS = "params."


@dataclass(frozen=True)
class Run:
    """A run's folder: recipe.toml as resolved, log.jsonl with one JSON object a line, result.json once it has ended,
    and the checkpoints init, last (all that resuming needs) and best (parameters of the best evaluation)."""

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

    def checkpoint(self, name: str) -> Path:
        """The checkpoint "init", "last" or "best"."""
        return self.folder / f"{name}.safetensors"

    def files(self) -> list[Path]:
        """Every file that a run writes."""
        checkpoints = [self.checkpoint(name) for name in ("init", "last", "best")]
        return [self.recipe, self.log, self.result, *checkpoints]

    def load_recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe of the run; ValueError if there is no run in the folder."""
        if not self.recipe.is_file():
            raise ValueError(f"{self.folder}: no run is here, expected a folder with a recipe.toml")
        return load_recipe(self.recipe, overrides)

    def read(
        self, name: str, recipe: Recipe, like: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Array], Facts]:
        """A checkpoint's arrays and facts; ValueError if another recipe's run wrote it, or as `read_checkpoint`."""
        path = self.checkpoint(name)
        arrays, facts = read_checkpoint(path, like)
        if facts.get("recipe") != recipe.digest():
            raise ValueError(f"{path}: was written by another recipe than {self.recipe}")
        return arrays, facts

    def load_params(self, name: str, like: Params | None = None) -> Params:
        """The parameters in a checkpoint, nested; ValueError where they are not `like` those given, or as `read`."""
        arrays, _ = self.read(name, self.load_recipe())
        params = {key.removeprefix(PARAMS): array for key, array in arrays.items() if key.startswith(PARAMS)}
        if like is not None:
            check_like(self.checkpoint(name), params, dict(flatten(like)))
        return unflatten(params)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder and holds it for this process; ValueError while another process does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{self.folder}: another process is training here") from error
            yield

    def check_free(self) -> None:
        """Raises ValueError if the folder holds anything of a run."""
        for path in self.files():
            if path.exists():
                raise ValueError(
                    f"{self.folder}: holds a run already ({path.name}); resume it (from the start, where it has no "
                    "checkpoint yet), or take another folder"
                )

    def write(self, path: Path, text: str) -> None:
        """Writes a text file whole or not at all."""
        with atomic_file(path) as file:
            file.write(text.encode())

    def clean(self) -> None:
        """Removes what a killed process left half written."""
        for path in self.files():
            for temporary in self.folder.glob(f".{path.name}.*.tmp"):
                temporary.unlink()

    def records(self) -> list[dict[str, Any]]:
        """The log's records; a last line that a kill cut short is left out. ValueError if another line is damaged."""
        if not self.log.exists():
            return []
        records = []
        for number, line in enumerate(self.log.read_bytes().split(b"\n")[:-1], 1):
            try:
                records.append(json.loads(line))
                records[-1]["step"]
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{self.log}, line {number}: is damaged, expected a record with its step") from error
        return records

    def cut_log(self, step: int, unlogged: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Drops the records after `step`, adds those `unlogged` that are not there, and returns what is left."""
        records = [record for record in self.records() if record["step"] <= step]
        records += [record for record in unlogged if record not in records]
        self.write(self.log, "".join(json.dumps(record) + "\n" for record in records))
        return records
