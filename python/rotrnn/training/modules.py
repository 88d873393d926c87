"""Modules that a recipe imports: user-defined layers and tasks, available to every process that reads the recipe."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ADVICE = "; expected --trust"
"""Prefix of the advice in an error of `Untrusted`."""


class Untrusted(ValueError):
    """The recipe of a run names a module that this process has not imported."""


def locate(modules: Any, near: Path | None) -> list[str]:
    """Returns the modules of a recipe's ``import``, each as "FOLDER/module" with the absolute path of its folder.

    Parameters
    ----------
    modules : list of str
        Names of modules. A name may have a folder, "code/my_layers", relative to `near`. A module is searched in that
        folder, then in `near`, then in the working directory. If it is in none of them, an installed module is used and
        its name is returned without a folder.
    near : Path, optional
        Folder of the recipe's file.

    Raises
    ------
    ValueError
        `modules` is not a list of modules, or a module is not found.
    """
    if not (isinstance(modules, list) and all(isinstance(one, str) for one in modules)):
        raise ValueError(f'import is {modules!r}, expected a list of modules, such as ["my_layers"]')
    return [_locate(one, near or Path()) for one in modules]


def _locate(module: str, near: Path) -> str:
    folder, slash, name = module.rpartition("/")
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise ValueError(
            f'import: {module!r} is not a module name, expected one such as "my_layers" or "code/my_layers"'
        )
    places = [near / (folder or "/")] if slash else []
    places = list(dict.fromkeys(place.resolve() for place in (*places, near, Path())))
    for place in places:
        if _file(place, name) is not None:
            return f"{place.as_posix().rstrip('/')}/{name}"
    top = name.partition(".")[0]
    if top not in sys.modules and find_spec(top) is None:
        raise ValueError(
            f"import: there is no module {name!r} in {', '.join(map(str, places))}, and none is installed; "
            "expected it next to the recipe or in the working directory"
        )
    return name


def _file(folder: Path, name: str) -> Path | None:
    """Returns the file of a module or package in a folder; None if there is neither."""
    base = folder.joinpath(*name.split("."))
    files = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((file for file in files if file.is_file()), None)


def load(modules: list[str], trust: bool = True) -> None:
    """Imports modules given in the form that `locate` returns. A process imports each module once.

    Raises
    ------
    Untrusted
        `trust` is False, and a module is not imported yet. Nothing runs.
    ValueError
        A module raises an exception, or this process has already imported another module of that name.
    """
    for module in modules:
        folder, slash, name = module.rpartition("/")
        expected = _file(Path(folder or "/"), name) if slash else None
        if not trust and name not in sys.modules:
            ways = f"{ADVICE} if you trust this run, or in Python `import {name}` before"
            raise Untrusted(f"import: {module} is the name of a module, whose code would run{ways}")
        found = _import(module, folder, name) if trust else getattr(sys.modules[name], "__file__", None)
        if expected is not None and (found is None or not expected.samefile(found)):
            raise ValueError(
                f"import: {name!r} is already {found} in this process, expected {expected}; rename one of them"
            )


def _import(module: str, folder: str, name: str) -> str | None:
    """Imports a module and returns its file."""
    try:
        with _first(folder):
            return importlib.import_module(name).__file__
    except Exception as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__)[1:] if "importlib" not in one.filename]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise ValueError(f"import: {module} fails with {type(error).__name__}: {error}{where}") from error


@contextlib.contextmanager
def _first(folder: str) -> Iterator[None]:
    """Puts a folder first in ``sys.path`` within the block. Afterwards it is last: a module can still import from it
    later, but it hides no other module."""
    if not folder:
        yield
        return
    importlib.invalidate_caches()  # the file may be newer than the cached listing of its folder
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
