"""Packages that some functions need and that may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(by: str, install: str) -> Iterator[None]:
    """Within the block, the error of an import says what needs the package, `by`, and what to `install`."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{by}, which is not installed; pip install {install}") from error
