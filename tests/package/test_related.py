"""Which tests `make check` runs for a change (tests/related.py)."""

from __future__ import annotations

import pytest

from related import AREAS, ROOT, names, related

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
    ("files", "calls"),
    [
        ([], []),
        (["csrc/kernels/scan.c", "csrc/include/steps.h"], [["tests/ops"]]),
        (["csrc/lib/run.c", "python/rotrnn/models/head.py"], [["tests/lib", "tests/models"]]),
        (
            ["csrc/module/door.c", "python/rotrnn/ops/turn.py"],
            [
                ["tests/package/test_checks.py", "tests/package/test_kernel_list.py", "tests/ops/test_bad_input.py"],
                ["tests/ops", "-k", "turn"],
            ],
        ),
        (
            ["csrc/kernels/scan.c", "python/rotrnn/nn/layers/rg_lru.py", "python/rotrnn/ops/turn.py"],
            [
                ["tests/ops", "-k", "diagonal_scan or rotation_scan or scan or turn"],
                ["tests/nn", "-k", "rg_lru or rglru"],
            ],
        ),
        (["python/rotrnn/nn/layers/linear.py", "python/rotrnn/nn/layers/lru.py"], [["tests/nn"]]),
        (["docs/guide.md", "README.md"], [["tests/package"]]),
        (["tests/ops/test_scan.py"], [["tests/ops/test_scan.py"]]),
        (["tests/ops/test_scan.py", "tests/cases/ops.py"], [["tests/ops", "tests/nn"]]),
        (["tests/strict.py"], [["tests/package", "tests/nn"]]),
        (["cuda/scan.cu"], []),
        (["tests/ops/test_that_is_gone.py"], []),
    ],
)
def test_related(files: list[str], calls: list[list[str]]) -> None:
    assert related(files) == calls


def test_the_names_of_an_op_or_layer_are_in_tests() -> None:
    """A file of one op or layer finds tests by its name; no name is one that no test has."""
    files = [one for folder in ("ops", "nn/layers") for one in (ROOT / "python/rotrnn" / folder).glob("*.py")]
    texts = [path.read_text(encoding="utf-8").lower() for path in (ROOT / "tests").glob("[cno][anp]*/**/*.py")]
    for path in sorted(files):
        found = names(path.relative_to(ROOT).as_posix())
        assert not found or any(name in text for name in found for text in texts), path
    assert len([path for path in files if names(path.relative_to(ROOT).as_posix())]) > 40
