"""Progress bars: in a notebook as a widget or a line below the cell, in a terminal as a line, elsewhere none."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from tqdm import tqdm


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
        return tqdm
    if find_spec("ipywidgets") is None:
        return Line
    from tqdm.notebook import tqdm as widget

    return widget


class Line(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar of text for notebooks, shown although standard error is no terminal."""

    def __init__(self, *args: Any, disable: bool | None = False, **options: Any) -> None:
        super().__init__(*args, disable=bool(disable), **options)
