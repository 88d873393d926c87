"""Each call that reads, writes, flushes or renames a file of a run fails in turn: the run ends with an error that names
a file of its folder, or goes on; what was saved before is there, and resumed it ends as if nothing had failed."""

from __future__ import annotations

import builtins
import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.training.loop import train
from rotrnn.training.recipe import Recipe, load_recipe
from toy import contents

pytestmark = pytest.mark.slow

KINDS = ("open", "write", "fsync", "replace", "read")


class Disk:
    """The calls of one kind on files in `folder`, of which number `fails` raises EIO; all of them are counted."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, kind: str, fails: int = -1) -> None:
        self.folder, self.fails, self.count = str(folder), fails, 0
        if kind in ("fsync", "replace"):
            patch.setattr(os, kind, self.failing(getattr(os, kind)))
        else:
            patch.setattr(builtins, "open", self.opening(kind, open))

    def failing(self, call: Callable[..., Any], *name: str) -> Callable[..., Any]:
        def instead(*given: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.fails + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), *name)
            return call(*given, **named)

        return instead

    def opening(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            if not str(path).startswith(self.folder):
                return call(path, mode, *given, **named)
            file = (self.failing(call, str(path)) if kind == "open" else call)(path, mode, *given, **named)
            if kind == ("read" if "r" in mode else "write"):
                setattr(file, kind, self.failing(getattr(file, kind)))
            return file

        return instead


def attempt(recipe: Recipe, folder: Path, kind: str, fails: int, resume: bool) -> tuple[int, str]:
    """Trains on such a disk. Returns how many calls there were, and the error."""
    error = ""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, folder, kind, fails)
        try:
            train(recipe, folder, resume=resume, progress=False)
        except OSError as caught:
            error = str(caught)
    return disk.count, error


def state(folder: Path) -> dict[str, Any]:
    """The files of a run; of the last checkpoint without the records that the log lacked when it was written."""
    arrays, facts = read_checkpoint(folder / "last.safetensors")
    facts.pop("unlogged", None)
    return contents(folder) | {"last.safetensors": ({name: one.tobytes() for name, one in arrays.items()}, facts)}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    path = tmp_path_factory.mktemp("toy") / "toy.toml"
    path.write_text(toy.RECIPE, encoding="utf-8")
    return load_recipe(path, ["training.steps=4", "training.eval_every=2"])


@pytest.mark.filterwarnings("ignore:.*tensorboard. cannot be written")
@pytest.mark.parametrize("resume", [False, True], ids=["from the start", "resumed"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_fails_in_turn(recipe: Recipe, kind: str, resume: bool, tmp_path: Path) -> None:
    train(recipe, tmp_path / "straight", progress=False)
    expected = state(tmp_path / "straight")
    half = tmp_path / "half"
    if resume:  # the second of two checkpoints cannot be written
        _, error = attempt(recipe, half, "replace", 7, False)
        assert "last.safetensors" in error
    for fails in itertools.count():
        folder = tmp_path / f"run {fails}"
        if resume:
            shutil.copytree(half, folder)
        count, error = attempt(recipe, folder, kind, fails, resume)
        assert bool(error) <= (str(folder) in error and "\n" not in error), error
        train(recipe, folder, resume=(folder / "recipe.toml").exists(), progress=False)
        assert state(folder) == expected
        if count <= fails:  # it did not come to that
            break
    assert fails
