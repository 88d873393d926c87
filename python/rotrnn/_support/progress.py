"""Progress bars: in a notebook as a widget or a line below the cell, in a terminal as a line, elsewhere none."""

from __future__ import annotations

import contextlib
import sys
from importlib.util import find_spec
from typing import Any

from tqdm import tqdm

from rotrnn._support.warn import warn

GONE = (OSError, ValueError, AttributeError)
"""Errors of writing to a display that is gone: a closed pipe or terminal, a full disk, a closed file, None."""


_lost: Any = ""
"""The standard output that could not be written last; initially a text."""


def say(text: str) -> None:
    """Prints a line on standard output, above the bars. Where that fails there is a warning, once for each standard
    output, and the work goes on."""
    global _lost
    try:
        tqdm.write(text)
        sys.stdout.flush()
    except GONE as error:
        if sys.stdout is not _lost:
            _lost = sys.stdout
            with contextlib.suppress(*GONE):  # so may standard error be
                warn(f"standard output cannot be written ({error}); the work goes on")


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook. Its standard error is no terminal, but is shown."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def bar(*args: Any, show: bool = True, **options: Any) -> Any:
    """Returns a progress bar: `tqdm`'s with these arguments, or one that shows nothing if not `show`.

    A notebook gets tqdm's widget if ipywidgets is installed, else a line of text. Where standard error is neither a
    notebook nor a terminal, nothing is shown.
    """
    return kind()(*args, disable=None if show else True, **options)


def kind() -> Any:
    """Returns the class of progress bars for where this process runs. With ``disable=None`` a bar is shown where
    someone sees it."""
    if not in_notebook():
        return Bar
    if find_spec("ipywidgets") is None:
        return Line
    from tqdm.notebook import tqdm as widget

    return widget


class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar that disappears when it cannot be shown, and never stops the counted work."""

    def __init__(self, *args: Any, disable: bool | None = False, **options: Any) -> None:
        super().__init__(*args, disable=not _terminal() if disable is None else disable, **options)

    def display(self, *args: Any, **options: Any) -> Any:
        try:
            return super().display(*args, **options)
        except GONE:
            self.disable = True

    def close(self) -> None:
        try:
            super().close()
        except GONE:
            self.disable = True


class Line(Bar):
    """A bar of text for notebooks, shown although standard error is no terminal."""

    def __init__(self, *args: Any, disable: bool | None = False, **options: Any) -> None:
        super().__init__(*args, disable=bool(disable), **options)


def _terminal() -> bool:
    """Whether standard error is a terminal."""
    try:
        return sys.stderr.isatty()
    except GONE:
        return False
