"""Which tests `make check` runs for a change: `python tests/related.py FILE...` prints calls of pytest, one a line.

A file of ops, of their kernels or of one layer stands for the tests of its area that have their names in theirs.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
REGISTRY = ROOT / "python/rotrnn/nn/registry.py"
AREAS = {
    "csrc/data/": ["tests/tasks"],
    "csrc/lib/": ["tests/lib", "tests/models"],
    "csrc/module/": [
        "tests/package/test_checks.py",
        "tests/package/test_kernel_list.py",
        "tests/ops/test_bad_input.py",
    ],
    "csrc/": ["tests/ops"],
    "cuda/": [],  # make harness
    "include/": ["tests/lib"],
    "python/rotrnn/_support/": ["tests/training"],
    "python/rotrnn/devices/": ["tests/nn/test_devices.py"],
    "python/rotrnn/estimators/": ["tests/training"],
    "python/rotrnn/jax.py": [],  # make test-jax
    "python/rotrnn/models/": ["tests/models"],
    "python/rotrnn/nn/": ["tests/nn"],
    "python/rotrnn/ops/": ["tests/ops"],
    "python/rotrnn/recipes/": ["tests/training/test_recipe.py", "tests/training/test_recipes_run.py"],
    "python/rotrnn/tasks/": ["tests/tasks"],
    "python/rotrnn/torch/": [],  # make test-torch
    "python/rotrnn/training/": ["tests/training"],
    "tests/cases/": ["tests/ops", "tests/nn"],
    "tests/cuda/": [],
    "tests/pytorch/": [],
    "tests/with_jax/": [],
    "tests/with_pandas/": [],
    "": ["tests/package"],
}
"""Tests by the beginning of a path; the longest one counts."""


def related(files: list[str]) -> list[list[str]]:
    """The calls of pytest for changed files. A file of tests stands for itself, a helper beside them for its folder."""
    whole: dict[str, None] = {}
    narrow: dict[str, set[str]] = {}
    for file in files:
        area = max((one for one in AREAS if file.startswith(one)), key=len)
        tests, words = AREAS[area], names(file)
        if not area and file.startswith("tests/"):
            path = ROOT / file
            tests = [file] if path.name.startswith("test_") else [path.parent.relative_to(ROOT).as_posix()]
            tests = ["tests/package", "tests/nn"] if tests == ["tests"] else tests
        for one in tests:
            if words:
                narrow.setdefault(one, set()).update(words)
            else:
                whole[one] = None
    every = [one for one in whole if (ROOT / one).exists() and not any(Path(two) in Path(one).parents for two in whole)]
    calls = [every] if every else []
    for one, words in narrow.items():
        if not {one, *map(str, Path(one).parents)} & whole.keys():
            calls.append([one, "-k", " or ".join(sorted(words))])
    return calls


def names(file: str) -> set[str]:
    """The names that tests of a file of one op or one layer have in theirs; none of another file."""
    path = ROOT / file
    if not path.is_file():
        return set()
    if file.startswith("csrc/kernels/") and path.suffix == ".c":
        return _of_kernels(path)
    if file.startswith("python/rotrnn/ops/"):
        return _of_ops(path)
    if file.startswith("python/rotrnn/nn/layers/") and f'"{path.stem}": ' in REGISTRY.read_text(encoding="utf-8"):
        return {path.stem, path.stem.replace("_", "")}
    return set()


def _of_ops(path: Path) -> set[str]:
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__" and isinstance(one.value, ast.List):
            public = ast.literal_eval(one.value)
            return {path.stem} | {name.removesuffix("_backward") for name in public if name.islower()}
    return set()


def _of_kernels(path: Path) -> set[str]:
    """The names of the ops whose files have a kernel of this file in quotes."""
    kernels = re.findall(r"\bKERNEL\((\w+)\)", path.read_text(encoding="utf-8"))
    ops = (ROOT / "python/rotrnn/ops").glob("*.py")
    found = [_of_ops(one) for one in ops if any(f'"{name}"' in one.read_text(encoding="utf-8") for name in kernels)]
    return {path.stem}.union(*found) if found else set()


if __name__ == "__main__":
    for call in related(sys.argv[1:]):
        print(shlex.join(call))
