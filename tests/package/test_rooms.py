"""The rooms of the house: what lies lower knows nothing of what lies higher (CONTRIBUTING.md, "The code")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rotrnn

ROOT = Path(__file__).parents[2]
FLOORS = [{"include", "runtime"}, {"kernels", "data"}, {"lib"}, {"module"}]
"""The folders of csrc, the lowest floor first. Only the highest includes Python.h."""


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not in a wheel")
def test_c_files_include_nothing_from_above() -> None:
    """So the kernels and the C library are built without Python and without the module."""
    height = {folder: i for i, floor in enumerate(FLOORS) for folder in floor}
    files = sorted((ROOT / "csrc").glob("*/*.[ch]"))
    assert {file.parent.name for file in files} == set(height)
    upward = []
    for file in files:
        room = file.parent.name
        for header in re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', file.read_text("utf-8"), re.M):
            python = re.match(r"Python\.h|numpy/", header)
            # a header's own folder is searched first; others are those of the C library's interface, made, or of cuda/
            known = {one.parent.name for one in files if one.name == Path(header).name}
            lowest = room if room in known else min(known, key=height.__getitem__, default=room)
            if (python and height[room] < len(FLOORS) - 1) or height[lowest] > height[room]:
                upward.append(f"{room}/{file.name} includes {header}")
    assert not upward


ROOMS = [
    ["_cpu", "_cuda", "_support"],
    ["devices"],
    ["ops"],
    ["tasks"],
    [
        *(
            "nn.listing",
            "nn.packing",
            "nn.returned",
            "nn.summary",
            "nn.module",
            "nn.layer",
            "nn.folded",
            "nn.scaling",
            "nn.spectrum",
        ),
        *("nn.instructions", "nn.program"),
    ],
    ["nn.fixed_points"],
    ["nn.layers"],
    ["nn.blocks"],
    ["nn"],  # its entrance, and lists of what is in it: one room with those above in the folder alone
    ["models"],
    ["models.io"],
    ["training"],
    ["plots", "testing"],
    ["cuda", ""],  # the public names
    ["cli", "__main__", "estimators", "jax", "torch"],
]
"""The modules and folders of rotrnn, the lowest floor first; a folder has what is in it and not in the list itself."""
HEIGHT = {name: i for i, floor in enumerate(ROOMS) for name in floor}
PACKAGE = Path(rotrnn.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in PACKAGE.rglob("*.py")
}
"""Name in the package -> file; the package itself is ""."""


def room(module: str) -> str:
    """The room of a module: itself or the folder around it, whichever the list has first."""
    parts = module.split(".")
    return next(name for n in range(len(parts), -1, -1) if (name := ".".join(parts[:n])) in HEIGHT)


def run_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports in a file, in functions too, but for those of type checkers, which are never run."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING":
            continue
        if isinstance(one, ast.Import | ast.ImportFrom):
            yield one
        yield from run_imports(one)


def imported(path: Path) -> set[str]:
    """The modules of rotrnn that a file imports."""
    names = set()
    for one in run_imports(ast.parse(path.read_text("utf-8"))):
        if isinstance(one, ast.Import):
            names |= {alias.name for alias in one.names}
        else:
            assert not one.level, f"{path}: imports are absolute"
            whole = [f"{one.module}.{alias.name}" for alias in one.names]
            known = (*(f"rotrnn.{name}" for name in MODULES), "rotrnn._cpu", "rotrnn._cuda")
            names |= {name if name in known else str(one.module) for name in whole}
    return {name.removeprefix("rotrnn").removeprefix(".") for name in names if name.split(".")[0] == "rotrnn"}


IMPORTS = {name: imported(path) for name, path in sorted(MODULES.items())}


def test_python_modules_import_nothing_from_above() -> None:
    upward = [
        f"{name or 'rotrnn'} imports {other or 'rotrnn'}"
        for name, others in IMPORTS.items()
        for other in sorted(others)
        if HEIGHT[room(other)] > HEIGHT[room(name)]
    ]
    assert not upward


def test_no_python_modules_import_each_other() -> None:
    """Modules that import none of those left are taken away, again and again: a circle stays."""
    left = {name: (others & MODULES.keys()) - {name} for name, others in IMPORTS.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left
