"""JSON, written and read in this one place.

JSON has no NaN and no infinities: numbers that are not finite are written as null. Python's own module would write NaN,
which other readers refuse; so did older versions of rotrnn, and their files are still read.
"""

from __future__ import annotations

import json
import math
from typing import Any

from rotrnn._support.nested import DEEPEST, check_depth


def to_json(value: Any, **layout: Any) -> str:
    """Returns a value as JSON; `layout` is as in `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **layout)


def from_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text. ValueError if it is malformed, or nested more than `DEEPEST` deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None
    check_depth(value)
    return value


def with_nan(value: Any) -> Any:
    """Returns a value of `from_json` with NaN for null, for files in which null only stands for such numbers."""
    if isinstance(value, dict):
        return {key: with_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_nan(one) for one in value]
    return math.nan if value is None else value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
