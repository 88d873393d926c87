"""The benchmark beside transformers runs, and does not time wrong results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.generate import table

ROOT = Path(__file__).parents[2]


def test_the_quick_benchmark_runs_and_its_table_is_written() -> None:
    command = [sys.executable, "-m", "benchmarks.generate", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    timed = [one for one in rows if "ratio" in one]
    assert [one["path"] for one in timed] == ["c", "python", "c", "python", "c"]
    assert all(one["difference"] <= one["error_bound"] < 1e-3 for one in timed)
    versions = {"transformers": "5", "torch": "2"}
    text = table({"rows": rows, "machine": {"cpu": "a", "simd": "b"}, "versions": versions, "commit": "c"})
    assert text.count("\n| prompt | 1 | ") == 2
