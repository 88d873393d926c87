"""The page and the example run as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its assertions are in it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.DOTALL):
        exec(example, names)
    assert names["logits"].shape == (4, 50, 10)


def test_the_example_learns() -> None:
    command = [sys.executable, str(ROOT / "examples" / "torch_loop.py"), "--steps", "200"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    *losses, last = run.stdout.splitlines()
    assert [line.partition(":")[0] for line in losses] == ["step 100", "step 200"]
    assert float(last.removeprefix("test accuracy ").removesuffix(" %")) > 40, run.stdout  # chance is 10


def test_the_quick_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.torch", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    names = {json.loads(line)["name"] for line in run.stdout.splitlines()}
    assert {"rotrnn, module", "lru, module"} <= names
    assert torch.__version__
