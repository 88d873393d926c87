"""docs/jax.md: its example runs as printed; its assertions are in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]


def test_the_example_lowers_its_loss() -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jax.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for example in examples:
        exec(example, names)
    assert np.array_equal(names["y"], names["lru"](names["params"], names["x"]))
    assert len(names["losses"]) == 30
