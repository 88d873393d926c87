"""The README's examples run as printed, and the first one's update lowers the loss; every layer is in its table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rotrnn.nn.registry import LAYERS

README = Path(__file__).parent.parent / "README.md"


def test_examples_run_and_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, second = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
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
