"""Warnings at the caller's line, not at one of this package's."""

from __future__ import annotations

import os
import sys
import warnings

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside this package, of whatever depth the call is.

    There a reader finds what to change, filters by module see the caller's, and a warning is shown once for each of the
    caller's lines.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
