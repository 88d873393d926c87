"""Warnings at the caller's line, not at one of this package's."""

from __future__ import annotations

import sys
import warnings

INNER = ("rotrnn", "torch", "jax")
"""Packages whose lines call this one's."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside this package and the frameworks that run it, at whatever depth the call is.

    There a reader finds what to change, filters by module see the caller's, and a warning is shown once for each of the
    caller's lines. A callback of JAX may run on a thread of its own, which has no such line.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
