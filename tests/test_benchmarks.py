"""The benchmarks run and print what their readers count on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["scan", "train_step"])
def test_quick_run_prints_json(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows
    for row in rows:
        assert row["ratio"] == pytest.approx(row["seconds"] / row["limit_seconds"])
        assert row["seconds"] > 0
