"""The README's example runs as printed, and its update lowers the loss."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

README = Path(__file__).parent.parent / "README.md"


def test_example_runs_and_learns() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    before = np.mean((names["y"] - names["target"]) ** 2)
    y, _ = names["layer"].forward(names["params"], names["x"])
    assert np.mean((y - names["target"]) ** 2) < before
