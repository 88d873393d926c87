"""The page and the example run as printed."""

from __future__ import annotations

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
    command = [sys.executable, str(ROOT / "examples" / "torch_loop.py"), "--steps", "60"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, last = run.stdout.splitlines()
    assert first.startswith("step 60: loss ")
    assert float(last.removeprefix("test accuracy ").removesuffix(" %")) > 30, run.stdout  # chance is 10


def test_the_quick_benchmark_runs() -> None:
    command = [sys.executable, "-m", "benchmarks.torch", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert '"module"' in run.stdout
    assert torch.__version__
