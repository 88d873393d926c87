"""Initial parameters of a run from another run, or from a saved model (`training.init`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rotrnn._support.text import plural
from rotrnn.models.files import load
from rotrnn.models.io.pretrained import read_folder
from rotrnn.nn.layer import Array, Params, flatten
from rotrnn.training.run import Run

SHOWN = 4
"""Names of arrays in a message, at most."""


class Start(NamedTuple):
    """The arrays at `path` that a run takes, because it has a parameter of the same name and shape. `new` are its other
    parameters, which keep their initial values, `left` the other arrays of `path`; both with their shapes."""

    path: str
    taken: dict[str, Array]
    new: dict[str, tuple[int, ...]]
    left: dict[str, tuple[int, ...]]

    def give(self, params: Params) -> None:
        """Overwrites the parameters of the run; each keeps its dtype."""
        for name, array in flatten(params):
            if name in self.taken:
                array[...] = self.taken[name]

    def facts(self) -> dict[str, Any]:
        """Returns where from and which, for sessions.json."""
        return {"path": self.path, "taken": list(self.taken), "new": list(self.new), "left": list(self.left)}

    def __str__(self) -> str:
        n = len(self.taken)
        parts = [f"training.init: {n} of {plural(n + len(self.new), 'array')} from {self.path}"]
        parts += [f"{what}: {_few(arrays)}" for what, arrays in (("new", self.new), ("left over", self.left)) if arrays]
        return "; ".join(parts)


def read_start(path: str, own: Params) -> Start:
    """Returns the arrays that a run with parameters `own` takes from a file of `SequenceModel.save`, from a folder that
    `rotrnn.from_pretrained` reads, or from a run: its best parameters or, before its first evaluation, its last.

    Raises
    ------
    OSError, ValueError
        It cannot be read, or has no array with the name and shape of one of `own`; the error names it.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"training.init: {path}: there is no such file or folder")
    try:
        there = dict(flatten(_read(Path(path))))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"training.init: {error}") from error
    except ValueError as error:
        raise ValueError(f"training.init: {error}") from error
    here = dict(flatten(own))
    fits = [name for name, array in here.items() if name in there and there[name].shape == array.shape]
    new, left = ({name: one.shape for name, one in of.items() if name not in fits} for of in (here, there))
    if not fits:
        raise ValueError(
            f"training.init: {path} has {_few(left)}; expected at least one array with the name and shape of one of "
            f"the model's: {_few(new)}"
        )
    return Start(path, {name: there[name] for name in fits}, new, left)


def same_start(run: Run, path: str) -> bool:
    """Returns whether the arrays at `path` are the initial parameters of a run that has begun, as far as the run takes
    them: the model that it began with may have moved. Errors as in `read_start`."""
    own = run.load_params("init")
    here, there = dict(flatten(own)), read_start(path, own).taken
    return all(np.array_equal(here[name], array.astype(here[name].dtype)) for name, array in there.items())


def _read(path: Path) -> Params:
    run = Run(path)
    if run.recipe.is_file():
        return run.load_params("best" if run.checkpoint("best").exists() else "last")
    return (read_folder(path) if path.is_dir() else load(path)).params


def _few(arrays: dict[str, tuple[int, ...]]) -> str:
    """Returns the first of some names, with their shapes."""
    names = [f"{name} {shape}" for name, shape in arrays.items()]
    return ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
