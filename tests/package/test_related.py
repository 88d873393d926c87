"""Which tests `make check` runs for a change (tests/related.py)."""

from __future__ import annotations

import pytest

from related import AREAS, ROOT, related

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="the tests of an installed wheel have no sources")


def test_every_area_and_its_tests_are_there() -> None:
    for area, tests in AREAS.items():
        assert (ROOT / area).exists(), area
        assert all((ROOT / one).exists() for one in tests), area
    for folder in ("csrc", "python/rotrnn"):
        parts = [one for one in (ROOT / folder).iterdir() if one.is_dir() and not one.name.startswith("__")]
        covered = [one.name for one in parts if f"{folder}/{one.name}/" in AREAS or folder == "csrc"]
        assert sorted({one.name for one in parts} - set(covered)) in ([], ["plots"])


@pytest.mark.parametrize(
    ("files", "tests"),
    [
        ([], []),
        (["csrc/kernels/scan.c", "csrc/include/steps.h"], ["tests/ops"]),
        (["csrc/lib/run.c", "python/rotrnn/models/head.py"], ["tests/lib", "tests/models"]),
        (
            ["csrc/module/door.c", "python/rotrnn/ops/scan.py"],
            ["tests/package/test_checks.py", "tests/package/test_kernel_list.py", "tests/ops"],
        ),
        (["docs/guide.md", "README.md"], ["tests/package"]),
        (["tests/ops/test_scan.py"], ["tests/ops/test_scan.py"]),
        (["tests/ops/test_scan.py", "tests/cases/ops.py"], ["tests/ops", "tests/nn"]),
        (["tests/strict.py"], ["tests/package", "tests/nn"]),
        (["cuda/scan.cu"], []),
        (["tests/ops/test_that_is_gone.py"], []),
    ],
)
def test_related(files: list[str], tests: list[str]) -> None:
    assert related(files) == tests
