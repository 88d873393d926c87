"""Ctrl-C in the command `rotrnn` before `rotrnn.cli.main` handles it: from the import of this module on."""

from __future__ import annotations

import contextlib
import os
import sys
from types import TracebackType

INTERRUPTED = 130
"""The exit code that shells report of a program that Ctrl-C ended."""


def is_command() -> bool:
    """Returns whether this process is the command `rotrnn`, or `python -m rotrnn`."""
    words = [*sys.orig_argv, ""]
    module = words[words.index("-m") + 1] if "-m" in words else ""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    return module == "rotrnn" or program.removesuffix(".exe") == "rotrnn"


if is_command():
    _before = sys.excepthook

    def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Ends the process as `main` does after Ctrl-C, in a line; other errors keep their traceback."""
        if not issubclass(kind, KeyboardInterrupt):
            _before(kind, error, trace)
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody is there to be told
            sys.stderr.write("rotrnn: aborted\n")
        raise SystemExit(INTERRUPTED)

    sys.excepthook = _told
