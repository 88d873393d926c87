"""Which tests `make check` runs for a change: `python tests/related.py FILE...` prints paths for pytest."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def related(files: list[str]) -> list[str]:
    """The tests for changed files. A file of tests stands for itself, a helper beside them for its folder."""
    found: dict[str, None] = {}
    for file in files:
        area = max((one for one in AREAS if file.startswith(one)), key=len)
        tests = AREAS[area]
        if not area and file.startswith("tests/"):
            path = ROOT / file
            tests = [file] if path.name.startswith("test_") else [path.parent.relative_to(ROOT).as_posix()]
            tests = ["tests/package", "tests/nn"] if tests == ["tests"] else tests
        found |= dict.fromkeys(tests)
    return [one for one in found if (ROOT / one).exists() and not any(Path(two) in Path(one).parents for two in found)]


if __name__ == "__main__":
    print(*related(sys.argv[1:]))
