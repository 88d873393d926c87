"""How deep a value read from a file may be nested: what walks over it later is recursive."""

from __future__ import annotations

from typing import Any

DEEPEST = 32
"""Tables and lists in each other, at most."""


def check_depth(value: Any) -> None:
    """Raises ValueError if tables and lists are nested more than `DEEPEST` deep."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [inner for one in level for inner in _inside(one)]
    if level:
        raise ValueError(f"nested more than {DEEPEST} deep")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
