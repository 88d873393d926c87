"""Atomic file writes, and folder locks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rotrnn._support.platform import lock, synced


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file for writing that gets the name `path` only if the block ends without an error.

    The file is written next to `path` under a temporary name, fsynced and renamed. If anything goes wrong in between (a
    full disk, a kill), `path` is unchanged. An OSError while writing names `path`.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    synced(path.parent)


def clear(paths: Iterable[Path]) -> None:
    """Removes the files of a set before it is rewritten, so that an interruption cannot leave old files among new
    ones."""
    for path in paths:
        path.unlink(missing_ok=True)


def check_folder(name: str, folder: str | os.PathLike[str]) -> None:
    """Raises ValueError if `folder`, which may not exist yet, or one above it is a file. `name` is the argument."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{name} is a {type(folder).__name__}, expected the path of a folder")
    path = Path(folder)
    there = next((one for one in (path, *path.parents) if one.exists()), None)
    if there is not None and not there.is_dir():
        where = "is a file" if there == path else f"is below the file {there}"
        raise ValueError(f"{name} {path}: {where}, expected a folder")


@contextmanager
def locked(folder: str | os.PathLike[str], message: str | None = None) -> Iterator[None]:
    """Creates a folder and locks it for this process.

    If another process has the lock, it waits, or raises a ValueError with `message` if one is given. The lock is
    released however the process ends.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            lock(file, wait=message is None)
        except BlockingIOError as error:
            raise ValueError(f"{folder}: {message}") from error
        yield
