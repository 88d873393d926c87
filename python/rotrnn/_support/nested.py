"""The depth to which a value from a file may be nested: later code walks over it recursively."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DEEPEST = 32
"""Tables and lists in each other, at most."""


def check_depth(value: Any) -> None:
    """Raises ValueError if tables and lists are nested more than `DEEPEST` deep."""
    level = _nested([value])
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _nested(one.values() if isinstance(one, dict) else one)]
    if level:
        raise ValueError(f"nested more than {DEEPEST} deep")


def _nested(values: Iterable[Any]) -> list[Any]:
    return [one for one in values if isinstance(one, dict | list)]
