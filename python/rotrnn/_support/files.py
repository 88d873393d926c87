"""Atomic writes of files and of sets of files, and folder locks."""

from __future__ import annotations

import io
import math
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from rotrnn._support.platform import lock, regular, synced
from rotrnn._support.text import an

HEADER = 2**16
"""Number of bytes of the header of a .npy file, at most."""
PIECE = 2**20
"""Number of bytes that `read_most` reads at a time."""
MEMBERS = 10_000
"""Number of arrays in a .npz file, at most."""
PER_BYTE = 1100
"""Most bytes of memory that contents may take for each byte of their file: deflate reaches some 1,030."""
AT_LEAST = 2**28
"""Bytes of memory that contents may take however small the file is."""
UNFINISHED = ".unfinished"
"""Folder of `whole_set`, with the files that are being written, and then the complete files that are being moved."""


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file for writing that gets the name `path` only if the block ends without an error.

    The file is written next to `path` under a temporary name, fsynced and renamed. If anything goes wrong in between (a
    full disk, a kill), `path` is unchanged. If `path` is a link, the file replaces the link, and the link's target is
    unchanged. An OSError while writing names `path`; it is `Unsynced` if the file has its name, but perhaps not on
    disk.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:  # never one that is there, such as a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # of a folder that cannot be written the first error says so
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    try:
        synced(path.parent)
    except OSError as error:
        raise Unsynced(error.errno, f"written, but perhaps not on disk ({error.strerror})", str(path)) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file in UTF-8, by `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text.encode())


class Unsynced(OSError):
    """A file has its new content, which a loss of power may undo."""


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a file in a folder that may belong to somebody else. OSError, which names the file, also if
    it is a pipe or a device, whose bytes may never end."""
    with open_file(path) as file:
        return file.read()


@contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file for reading, in a folder that may belong to somebody else; errors as in `read_file`."""
    with open(path, "rb", opener=regular) as file, naming(path):
        yield file


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds the path of an open file to errors of the system, which does not know it."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class Readable(Protocol):
    """An open binary file, or a decompressor of a file."""

    def read(self, size: int, /) -> bytes: ...


def read_most(file: Readable, most: int) -> bytes:
    """Returns the rest of an open file if it has at most `most` bytes, else its first `most` + 1 bytes.

    It is read in pieces, so memory is used only for existing bytes, whatever `most` is.
    """
    pieces, left = [], most + 1
    while left and (piece := file.read(min(left, PIECE))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def check_bytes(path: str | os.PathLike[str], taken: int) -> None:
    """Raises ValueError if the contents of a file take more memory than its size allows: `PER_BYTE` for each byte, or
    `AT_LEAST`.

    A table of one value, repeated, may be packed into a few bytes, and a long text may widen all cells of a column.
    """
    size = os.path.getsize(path)
    if taken > (most := max(AT_LEAST, PER_BYTE * size)):
        raise ValueError(
            f"{path}: would take {taken} bytes of memory, expected at most {most} for {size} bytes of file"
        )


def open_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Returns the array in a .npy file, read-only and mapped into memory.

    Raises
    ------
    ValueError
        The file is damaged or truncated, or holds Python objects or items without a size; the error names it.
    """
    with open_file(path) as file:
        begin = file.read(12)
    if begin[6:7] > b"\1" and int.from_bytes(begin[8:], "little") > HEADER:  # NumPy asks for as much before it looks
        raise ValueError(f"{path}: is not a .npy file, or is damaged (its header has more than {HEADER} bytes)")
    try:
        with open_file(path) as file:
            form = np.lib.format
            readers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
            _, _, dtype = readers[form.read_magic(file)](file)
        if dtype.itemsize and not dtype.hasobject:  # NumPy divides by the size of an item
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged header may raise anything
        raise ValueError(f"{path}: is not a .npy file, or is damaged ({error})") from None
    raise ValueError(f"{path}: is not a .npy file with items of at least one byte that are no Python objects")


def read_npz(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of a .npz file by name, read-only. No memory is taken for a missing array.

    Raises
    ------
    ValueError
        It is not a .npz file, is damaged, has more than `MEMBERS` arrays or Python objects, or is packed in another way
        than by NumPy, or more tightly than `check_bytes` allows; the error names it.
    """
    with open_file(path) as file:
        try:
            members = zipfile.ZipFile(file)
        except Exception as error:  # a damaged header may raise anything
            raise ValueError(f"{path}: is not a file .npz, or is damaged ({error})") from None
        listed = members.infolist()
        if len(listed) > MEMBERS:
            raise ValueError(f"{path}: has {len(listed)} arrays, expected at most {MEMBERS}")
        for one in listed:
            if (how := one.compress_type) not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                expected = "expected 0 or 8, as np.savez writes"
                raise ValueError(f"{path}: {one.filename} is packed by zip's method {how}, {expected}")
            if one.compress_size > (size := os.path.getsize(path)):
                raise ValueError(f"{path}: {one.filename} is said to have {one.compress_size} of its {size} bytes")
        check_bytes(path, sum(one.file_size for one in listed))
        try:
            return {one.filename.removesuffix(".npy"): _npy(members.read(one)) for one in listed}
        except Exception as error:
            raise ValueError(f"{path}: is not a file .npz, or is damaged ({error})") from None


def _npy(content: bytes) -> npt.NDArray[Any]:
    """Returns the array that the bytes of a .npy file are."""
    file, form = io.BytesIO(content), np.lib.format
    readers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    shape, by_columns, dtype = readers[form.read_magic(file)](file)
    size, left = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0 or size != left:
        raise ValueError(f"an array of {dtype} and shape {shape} in {left} bytes")
    flat = np.frombuffer(content, dtype, math.prod(shape), file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")


def clean(folder: Path) -> None:
    """Removes temporary files of `atomic_file` that a killed process left in a folder, which the caller has locked."""
    for temporary in folder.glob(".*.tmp"):
        if not temporary.is_dir():
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_set(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a new folder for files. If the block ends without an error, they are moved to `folder`, which is created
    if it is missing, and replace files of the same names there; otherwise `folder` stays as it was.

    After a kill, `folder` is as it was, too, or has some of the files if it came while they were moved (`half_moved`).
    The next call removes what the killed process was writing, or moves what it had completed. ValueError if another
    process is writing to `folder`.
    """
    folder = Path(folder)
    made = not folder.exists()
    work = folder / UNFINISHED
    new, done = work / "new", work / "done"
    for path in (work, new, done):
        if path.is_symlink():
            path.unlink()
    try:
        with locked(work, "another process is writing files here"):
            try:
                if done.exists():
                    _move(done, folder)
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir()
                yield new
                os.replace(new, done)
                for path in done.rglob("*"):  # an interruption must not leave old files among new ones
                    if path.is_file():
                        (folder / path.relative_to(done)).unlink(missing_ok=True)
                _move(done, folder)
                synced(folder)
            finally:
                if not done.exists():
                    shutil.rmtree(work, ignore_errors=True)
    finally:
        if made:
            with suppress(OSError):  # it holds the files
                folder.rmdir()


def _move(source: Path, target: Path) -> None:
    """Moves a file, or a folder: if `target` is a folder, its parts one by one."""
    if source.is_dir() and target.is_dir():
        for one in list(source.iterdir()):
            _move(one, target / one.name)
        source.rmdir()
    else:
        os.replace(source, target)


def half_moved(folder: str | os.PathLike[str]) -> bool:
    """Returns whether `whole_set` was killed while it moved files to a folder."""
    return Path(folder, UNFINISHED, "done").exists()


def check_folder(name: str, folder: str | os.PathLike[str]) -> None:
    """Raises ValueError if `folder`, which may not exist yet, or one above it is a file. `name` is the argument."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{name} is {an(type(folder).__name__)}, expected the path of a folder")
    if not os.fspath(folder):
        raise ValueError(f"{name} is empty, expected the path of a folder")
    path = Path(folder)
    there = next((one for one in (path, *path.parents) if one.exists()), None)
    if there is not None and not there.is_dir():
        where = "is a file" if there == path else f"is below the file {there}"
        raise ValueError(f"{name} {path}: {where}, expected a folder")


def check_file(call: str, path: str | os.PathLike[str]) -> None:
    """Raises TypeError or ValueError unless `path`, an argument of `call`, can be the path of a file, which may not
    exist yet."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{call}: path is {an(type(path).__name__)}, expected the path of a file")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError(f"{call}: path is {text!r:.80}, expected the path of a file")
    if Path(path).is_dir():
        raise ValueError(f"{call}: path is {text!r:.80}, a folder, expected the path of a file")


@contextmanager
def locked(folder: str | os.PathLike[str], message: str | None = None) -> Iterator[None]:
    """Creates a folder and locks it for this process.

    If another process has the lock, it waits, or raises a ValueError with `message` if one is given. With a message, a
    folder that was created is removed if the block raises an error and leaves nothing in it. The lock is released
    however the process ends.
    """
    folder = Path(folder)
    new = message is not None and not folder.exists()  # not where others wait for the file of the lock
    folder.mkdir(parents=True, exist_ok=True)
    with open(path := folder / ".lock", "ab", opener=regular) as file:
        try:
            lock(file, wait=message is None)
        except BlockingIOError as error:
            raise ValueError(f"{folder}: {message}") from error
        try:
            yield
        except BaseException:
            with suppress(OSError):  # another process may come in between
                if new and list(folder.iterdir()) == [path]:
                    path.unlink()
                    folder.rmdir()
            raise
