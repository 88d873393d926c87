"""Provenance of a run: versions, processor, threads, and the commit of the source tree."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn import _cpu
from rotrnn._support.platform import cores, processor

PACKAGE = Path(__file__).parents[1]


def session() -> dict[str, Any]:
    """Returns start time and command of this process, and its `versions`, as JSON values."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        **versions(),
    }


def versions() -> dict[str, Any]:
    """Returns everything besides the recipe that the bits of a run, or its speed, may depend on.

    "commit" is the commit of the source tree that rotrnn is imported from, with "-dirty" if tracked files are modified;
    None if rotrnn is installed.
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "rotrnn": version("rotrnn"),
        "commit": _commit(PACKAGE),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "compiler": _cpu.COMPILER,
        "simd": _cpu.simd(),
        "threads": _cpu.threads(),
        "cores": cores(),
        "processor": processor(),
        "system": platform.platform(),
    }


def _commit(package: Path) -> str | None:
    """Returns the commit of the package's repository. A package in a virtual environment may lie inside an unrelated
    repository; it is not tracked there, and the result is None."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
