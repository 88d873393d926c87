"""The page and the example run as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch

import notebooks
import rotrnn

ROOT = Path(__file__).parents[2]


def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its assertions are in it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8"), re.DOTALL
    ):
        exec(example, names)
    assert names["logits"].shape == (4, 50, 10)


def test_the_page_for_those_who_come_from_pytorch() -> None:
    """Its step in PyTorch learns, and the weights of an LSTM give the same outputs, to rounding."""
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    step, weights = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    torch.manual_seed(0)
    x = torch.randn(16, 30, 8)
    names: dict[str, Any] = {"torch": torch, "x": x, "target": torch.tanh(x.cumsum(1) / 5)}
    exec(step, names)
    assert names["loss"].item() < names["target"].var().item()
    layer = rotrnn.LSTM(d_model=8, d_state=16)
    names["params"] = layer.init(np.random.default_rng(0))
    exec(weights, names)
    y, _ = layer.forward(names["params"], x.numpy())
    h = names["lstm"](x)[0].detach().numpy()
    # each of 30 steps rounds sums of 24 terms by u each, gates do not enlarge that, and C, below 1, sums 16 of them
    np.testing.assert_allclose(y, h @ names["params"]["C"].T, rtol=0, atol=30 * 24 * 2**-24 * 16)


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
