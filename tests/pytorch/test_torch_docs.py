"""The page and the example run as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

import notebooks
import rotrnn

ROOT = Path(__file__).parents[2]


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its assertions are in it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.DOTALL):
        exec(example, names)
    assert names["logits"].shape == (4, 50, 10)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "pytorch").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_not_old(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its assertions are in it."""
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    ours = f"import rotrnn\nassert rotrnn.__file__ == {rotrnn.__file__!r}, rotrnn.__file__"
    stored, fresh = nbformat.read(path, as_version=4), notebooks.executed(path, tmp_path, ours)
    for one, other in zip(stored.cells, fresh.cells, strict=True):
        if one.cell_type == "code":
            assert notebooks.shown(one) == notebooks.shown(other), f"{path.name} is old: make notebooks\n{one.source}"


def test_the_quick_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.torch", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    names = {json.loads(line)["name"] for line in run.stdout.splitlines()}
    assert {"rotrnn, module", "lru, module"} <= names
    assert torch.__version__
