"""The README's examples run as printed, and the first one's update lowers the loss; every layer is in its table."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.registry import LAYERS

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """Returns the README's examples in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_examples_run_and_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, second, _ = blocks("python")
    exec(first, names)
    before = np.mean((names["y"] - names["target"]) ** 2)
    y, _ = names["layer"].forward(names["params"], names["x"])
    assert np.mean((y - names["target"]) ** 2) < before
    exec(second, names)
    np.testing.assert_allclose(names["last"], names["logits"][:, 30], rtol=0, atol=1e-5)  # float32, two blocks
    assert names["drawn"].shape == (4, 20)
    assert (tmp_path / "state.safetensors").exists()


def test_every_layer_is_named() -> None:
    text = README.read_text()
    assert not [name for name in LAYERS if f"`{name}`" not in text]


def test_a_layer_and_a_task_of_ones_own(tmp_path: Path) -> None:
    """Runs the printed example from the module to the table. Every command, and every run of the sweep, is a separate
    process."""
    (tmp_path / "my_experiment.py").write_text(blocks("python")[2])
    (recipe,) = blocks("toml")
    (tmp_path / "majority.toml").write_text(recipe)
    (commands,) = (text for text in blocks("sh") if "majority.toml" in text)
    told = []
    for line in commands.splitlines():
        process = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        told.append(process.stdout)
    assert told[0].endswith(told[1])
    results = [
        json.loads(path.read_text()) for path in (tmp_path / "sweeps" / "majority").glob("seed=[01]/result.json")
    ]
    assert len(results) == 2
    assert all(one["test"]["best"]["accuracy"] > 0.9 for one in results)  # chance is a half
    assert "test, best parameters: loss" in told[2]
