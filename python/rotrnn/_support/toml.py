"""TOML, read in this one place, with limits."""

from __future__ import annotations

import tomllib
from typing import Any

from rotrnn._support.nested import DEEPEST, check_depth

LARGEST = 2**18
"""Bytes of a file, at most."""
DOTS = 256
"""Dots in a line, at most: the time that a dotted key takes grows with the square of its parts."""


def from_toml(text: str) -> dict[str, Any]:
    """Returns the tables of a TOML text, which may begin with a byte-order mark, as some editors write it.

    Raises
    ------
    ValueError
        It is malformed, or beyond `LARGEST`, `DEEPEST` or `DOTS`.
    """
    text = text.removeprefix("\ufeff")
    if len(text) > LARGEST:
        raise ValueError(f"not valid TOML: has {len(text)} characters, expected at most {LARGEST}")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > DOTS:
            raise ValueError(f"not valid TOML: line {number} has {line.count('.')} dots, expected at most {DOTS}")
    try:
        tables = tomllib.loads(text)
        check_depth(tables)
    except RecursionError:
        raise ValueError(f"not valid TOML: nested more than {DEEPEST} deep") from None
    except ValueError as error:
        raise ValueError(f"not valid TOML: {error}") from error
    return tables
