"""benchmarks/gpu.sh on the stand-in for a GPU, in a copy of the tree without git: every stage, as on a card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import cuda_harness
from benchmarks import gpu, gpu_checks, gpu_report
from cases import ON_DEVICES

ROOT = Path(__file__).parents[2]
SECONDS = {"smoke": 90, "speed": 150}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what travels to a machine with a GPU, and of what is built here."""
    folder = tmp_path_factory.mktemp("export") / "tree"
    for name in ("python", "tests", "benchmarks", "csrc", "cuda"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("results", "__pycache__"))
    shutil.copy2(ROOT / "setup.py", folder)
    cuda_harness.built("module")  # not within the time of a stage
    built = os.environ.get("HARNESS", "build/harness")
    (folder / built).parent.mkdir(exist_ok=True)
    (folder / built).symlink_to(ROOT / built)
    return folder


def run(export: Path, out: Path, stage: str, *recipe: str, **env: str) -> list[dict[str, Any]]:
    """Runs a stage. Returns the rows that it wrote."""
    there = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        **{"OUT": str(out), "QUICK": "1", "BUILD": "0", "WORKERS": "1", "PYTHON": sys.executable},
        **{"RUN": f"{sys.executable} tests/cuda/on_stand_in.py", **env},
    }
    command = ["bash", "benchmarks/gpu.sh", stage, str(SECONDS[stage]), *recipe]
    done = subprocess.run(command, cwd=export, env=there, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].endswith(" s: end: all was right"), done.stdout
    assert done.returncode == 0
    assert len(list(out.iterdir())) <= 8
    lines = [line for path in out.glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.whole
def test_smoke(export: Path, tmp_path: Path) -> None:
    rows = run(export, tmp_path, "smoke", "listops-lru")
    by_subject = {name: gpu_report.of(rows, name) for name in ("table", "grads", "limits", "scan", "steps")}
    assert all(by_subject.values()), by_subject
    assert not any(map(gpu_report.bad, by_subject["table"]))
    assert [one["bad"] for one in by_subject["grads"]] == [False] * 3
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert " rows, 0 bad\n" in text
    assert "| listops-lru | tf32 | [4, 24] | " in text
    for one in by_subject["steps"]:
        assert one["losses"] == pytest.approx(one["plain"], rel=1e-3)


@pytest.mark.whole
def test_speed_and_a_training_that_is_resumed(export: Path, tmp_path: Path) -> None:
    rows = run(export, tmp_path / "one", "speed", "listops-lru", KIT=str(tmp_path / "kit"))
    assert [one["name"] for one in gpu_report.of(rows, "steps")][:2] == ["listops-lru"] * 2
    assert "done: " in (tmp_path / "one" / "train.txt").read_text(encoding="utf-8")
    (tmp_path / "kit" / "runs" / "listops-lru" / "result.json").unlink()
    run(export, tmp_path / "two", "speed", "listops-lru", KIT=str(tmp_path / "kit"))
    assert "--resume" in (tmp_path / "two" / "log.txt").read_text(encoding="utf-8")
    assert "done: " in (tmp_path / "two" / "train.txt").read_text(encoding="utf-8")


def test_a_training_has_the_steps_that_there_is_time_for(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    rates = {"tf32": 100.0, "bf16": 200.0}
    path.write_text(
        "".join(json.dumps({"name": "listops-lru", "precision": p, "steps/s": r}) + "\n" for p, r in rates.items()),
        encoding="utf-8",
    )
    assert gpu.plan("listops-lru", 125, path) == "bf16 17400"
    assert gpu.plan("listops-lru", 1000, path) == "tf32 80000"
    with pytest.raises(SystemExit, match="has no steps of text-lru"):
        gpu.plan("text-lru", 100, path)


ROWS = {
    "table": {"subject": "table", "name": "gelu B=1", "kind": "f64", "ratio": 0.5, "same": True},
    "grads": {"subject": "grads", "name": "listops-lru", "precision": "tf32", "bad": False},
    "limits": {"subject": "limits", "name": "copy", "seconds": 1.0},
}
RUNS: list[tuple[str, dict[str, Any], bool]] = [
    ("", {}, True),
    ("limits", {"error": "no time was left", "skipped": True}, True),
    ("table", {"ratio": 2.0}, False),
    ("grads", {"bad": True}, False),
    ("limits", {"error": "OutOfMemoryError: no memory"}, False),
    ("nothing", {}, False),
    ("exit", {}, False),
]
"""The row that is another one, how, and whether all is right then; nothing runs, or what runs ends with an error."""


@pytest.mark.parametrize(("what", "change", "right"), RUNS)
def test_the_exit_code_and_the_last_line_say_whether_all_was_right(
    what: str, change: dict[str, Any], right: bool, tmp_path: Path
) -> None:
    rows = {name: one | (change if what == name else {}) for name, one in ROWS.items() if what != "nothing"}
    script = tmp_path / "run"
    prints = "".join(f"*{name}*) echo '{json.dumps(one)}' ;;\n" for name, one in rows.items())
    script.write_text(f'case "$*" in\n{prints}esac\n' + "exit 3\n" * (what == "exit"), encoding="utf-8")
    env = os.environ | {"OUT": str(tmp_path / "out"), "BUILD": "0", "PYTHON": sys.executable, "RUN": f"bash {script}"}
    command = ["bash", "benchmarks/gpu.sh", "smoke", "60"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == (0 if right else 1), done.stdout
    assert ("end: all was right" if right else "end: FAILED: ") in done.stdout.splitlines()[-1]


PYTHON312 = """#!/bin/sh
case "$*" in *build_ext*) echo "$@" > ../asked && touch build/gpu312/python/rotrnn/_cpu.cpython-312-new.so ;; esac
"""


def test_the_kit_is_built_beside_the_modules_of_an_editable_install(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for folder in ("benchmarks", "build/venv312/bin", "python/rotrnn", "python/rotrnn.egg-info"):
        (tree / folder).mkdir(parents=True)
    shutil.copy2(ROOT / "benchmarks" / "gpu.sh", tree / "benchmarks")
    python, own = tree / "build/venv312/bin/python", tree / "python/rotrnn/_cpu.cpython-312-own.so"
    python.write_text(PYTHON312, encoding="utf-8")
    python.chmod(0o755)
    own.touch()
    env = {name: value for name, value in os.environ.items() if name not in ("KIT", "OUT")}
    done = subprocess.run(["bash", "benchmarks/gpu.sh", "kit"], cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert own.exists()
    assert "--inplace" not in (tmp_path / "asked").read_text(encoding="utf-8")
    with tarfile.open(tree / "build/gpu-kit/kit.tar.xz") as kit:
        assert kit.getnames() == ["python/rotrnn/_cpu.cpython-312-new.so", "python/rotrnn.egg-info"]


SERVER = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for k, line in enumerate(sys.stdin):
    name, kind = json.loads(line)
    if name.startswith("diagonal_scan"):
        os._exit(9)
    if name.startswith("embedding"):
        time.sleep(60)
    print(json.dumps({"name": name, "kind": kind, "ratio": 0.5}), flush=True)
"""


def test_rows_that_hang_or_end_their_process_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    monkeypatch.setenv("RUN", f"{sys.executable} {tmp_path / 'server.py'}")
    monkeypatch.setattr(gpu_checks, "ROW_SECONDS", 0.5)
    first, _ = gpu_checks.firsts_first(ON_DEVICES)
    few = [case for case in first if case.name.split()[0] in ("diagonal_scan", "embedding", "gelu")]
    monkeypatch.setattr("cases.ON_DEVICES", few)
    rows = list(gpu_checks.table(60, 1))
    wrong = {one["name"].split()[0]: one["error"] for one in rows if "error" in one}
    assert wrong == {"diagonal_scan": "the process died: exit code 9", "embedding": "hangs after 0 s"}
    assert len(rows) == 2 * len(few)
    assert sum(one["rows"] for one in gpu_report.summed(rows)) == len(rows)
