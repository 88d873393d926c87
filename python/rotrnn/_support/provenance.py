"""What a program ran with: versions, processor, threads, and the commit of a source tree."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rotrnn
from rotrnn import __version__, _cpu
from rotrnn._support.platform import cores, processor


def session() -> dict[str, Any]:
    """When and as what this process was started, and the `versions` it runs with; what JSON can hold."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        **versions(),
    }


def versions() -> dict[str, Any]:
    """All that the bits of a run may depend on besides its recipe, and what its speed does.

    "commit" is that of the source tree that rotrnn is imported from, with "-dirty" where tracked files are changed;
    None where it is installed.
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "rotrnn": __version__,
        "commit": _commit(Path(rotrnn.__file__).parent),
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
    """A package in a virtual environment may lie in a repository that is not its own: it is not tracked there."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None
