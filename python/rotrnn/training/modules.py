"""Modules that a recipe imports: layers and tasks of one's own, known to every process that reads the recipe."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def locate(modules: Any, near: Path | None) -> list[str]:
    """The modules of a recipe's ``import``, each as "FOLDER/module" with the whole path of the folder it lies in.

    Parameters
    ----------
    modules : list of str
        Names of modules; a folder may go before, "code/my_layers", from `near`. A module is looked for in that folder,
        then in `near`, then in the working directory; one that is in none of them is left to what is installed.
    near : Path, optional
        Folder of the recipe's file.

    Raises
    ------
    ValueError
        This is no list of modules, or one of them is nowhere.
    """
    if not (isinstance(modules, list) and all(isinstance(one, str) for one in modules)):
        raise ValueError(f'import is {modules!r}, expected a list of modules, as ["my_layers"]')
    return [_locate(one, near or Path()) for one in modules]


def _locate(module: str, near: Path) -> str:
    folder, slash, name = module.rpartition("/")
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise ValueError(f'import: {module!r} is no module, expected a name as "my_layers" or "code/my_layers"')
    places = [near / (folder or "/")] if slash else []
    places = list(dict.fromkeys(place.resolve() for place in (*places, near, Path())))
    for place in places:
        if _file(place, name) is not None:
            return f"{place.as_posix().rstrip('/')}/{name}"
    top = name.partition(".")[0]
    if top not in sys.modules and find_spec(top) is None:
        raise ValueError(
            f"import: there is no module {name!r} in {', '.join(map(str, places))}, nor is one installed; "
            "expected it beside the recipe or in the working directory"
        )
    return name


def _file(folder: Path, name: str) -> Path | None:
    """The file of a module below a folder, or that of a package; None where there is neither."""
    base = folder.joinpath(*name.split("."))
    files = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((file for file in files if file.is_file()), None)


def load(modules: list[str]) -> None:
    """Imports modules as `locate` gives them, each once in a process.

    Raises
    ------
    ValueError
        A module fails when it runs, or this process has another one of its name.
    """
    for module in modules:
        folder, slash, name = module.rpartition("/")
        expected = _file(Path(folder or "/"), name) if slash else None
        try:
            with _first(folder):
                found = importlib.import_module(name).__file__
        except Exception as error:
            frames = [one for one in traceback.extract_tb(error.__traceback__)[1:] if "importlib" not in one.filename]
            where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
            raise ValueError(f"import: {module} fails with {type(error).__name__}: {error}{where}") from error
        if expected is not None and (found is None or not expected.samefile(found)):
            raise ValueError(f"import: {name!r} is {found} in this process, expected {expected}; rename one of them")


@contextlib.contextmanager
def _first(folder: str) -> Iterator[None]:
    """Within the block a folder comes first where modules are looked for; afterwards, for imports that a module makes
    later, it comes last, and hides no other."""
    if not folder:
        yield
        return
    importlib.invalidate_caches()  # the file may be younger than the last look into its folder
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
