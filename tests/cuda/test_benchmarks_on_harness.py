"""The benchmarks of a GPU, on the stand-in for one; and the script that runs them part by part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fake_cupy
from benchmarks import gpu

ROOT = Path(__file__).parents[2]


def test_quick_runs_are_written_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    with fake_cupy.gpu():
        for arguments in ("products", "scan", "jax", "steps listops tf32"):
            with (parts / f"{arguments.replace(' ', '-')}.jsonl").open("w") as file, monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", file)
                patch.setattr(sys, "argv", ["gpu", *arguments.split(), "--quick"])
                patch.setitem(sys.modules, "jax", None)  # as if it were not installed
                gpu.main()
    (parts / "cases-0.txt").write_text("==== 5 passed in 2 s ====\n")
    gpu.report(tmp_path)
    text = (tmp_path / "gpu.md").read_text()
    assert "| 64 | " in text
    assert "| listops | tf32 | " in text
    assert "- cases-0: 5 passed in 2 s" in text
    rows = json.loads((tmp_path / "gpu.json").read_text())
    assert [one["subject"] for one in rows] == ["products"] * 3 + ["scan"] * 2 + ["steps"]
    assert all(one["seconds"] > 0 for one in rows)
    assert (tmp_path / "gpu.png").stat().st_size > 1000


def run(folder: Path, command: str, limit: int = 60) -> tuple[int, str]:
    """Exit code and output of the stage `speed` with another command instead of a module's."""
    env = {**os.environ, "OUT": str(folder), "PYTHON": "true", "RUN": command, "BUILD": "0", "LIMIT": str(limit)}
    done = subprocess.run([str(ROOT / "benchmarks" / "gpu.sh"), "speed"], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_part_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    assert run(tmp_path, "echo", limit=5) == (2, "more is to do: call it again\n")
    code, text = run(tmp_path, "false")
    assert code == 1
    assert "scan.jsonl: exit code 1" in text
    code, text = run(tmp_path, "echo")
    assert code == 0
    assert "lstm.jsonl: exit code 0" in text
    assert (tmp_path / "parts" / "scan.jsonl").read_text() == "-m benchmarks.gpu scan\n"
    assert run(tmp_path, "false") == (0, "")
