"""Files that are there whole or not at all, and folders that one process holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rotrnn._support.platform import lock, synced


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file open for writing that takes the name `path` only when the block has ended without an error.

    It is written beside its place under a temporary name, fsynced and renamed, so that whatever happens in between (a
    full disk, a kill) `path` stays as it was. An OSError of writing names `path`.
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
    """Removes the files of a set that is written anew, so that no stop leaves old ones beside new ones."""
    for path in paths:
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: str | os.PathLike[str], message: str | None = None) -> Iterator[None]:
    """Creates a folder and holds it for this process.

    While another process does, it waits, or raises a ValueError with the message if there is one. However a process
    ends, it holds nothing any more.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            lock(file, wait=message is None)
        except BlockingIOError as error:
            raise ValueError(f"{folder}: {message}") from error
        yield
