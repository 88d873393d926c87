"""A cache of prepared arrays: a folder of .npy files that is created once, atomically, and then mapped into memory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import locked, open_npy, read_file, write_text
from rotrnn._support.json import from_json, to_json
from rotrnn._support.platform import allocate, synced

MANIFEST = "manifest.json"
FORMAT = 2

Arrays = dict[str, npt.NDArray[Any]]
Forms = dict[str, tuple[str | int, ...]]
"""Name of an array -> its dtype, then its sizes. The dtype is "u1", "i8", "f8" and the like, or "u" for unsigned
integers of any size. A size is a number, or a name that stands for the same number in every array."""


class Store:
    """Creates the arrays that `make`, the callback of `prepared`, fills in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._arrays: list[np.memmap[Any, Any]] = []

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns a new memory-mapped array of zeros."""
        path = self.folder / f"{name}.npy"
        array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
        allocate(path)
        self._arrays.append(array)
        return array

    def flush(self) -> None:
        for array in self._arrays:
            array.flush()
        self._arrays.clear()


def prepared(
    folder: str | os.PathLike[str], name: str, settings: dict[str, Any], make: Callable[[Store], None]
) -> Arrays:
    """Returns the arrays in ``folder/name``, read-only and memory-mapped. If they do not exist, `make` writes them.

    They are written under a temporary name, fsynced and renamed, together with a manifest of `settings` and the size of
    every file. So a kill at any moment leaves no incomplete folder under the final name. Arrays that were made with
    other settings are replaced. If another process is writing them, the call waits for it.

    Parameters
    ----------
    settings : dict
        Everything that the arrays depend on (for example sizes and times of the source files), as JSON values.
    make : function
        Fills the `Store` that it is called with.

    Raises
    ------
    ValueError
        The folder holds something else, or a file in it does not have the size that was written; the error names it.
    """
    place = Path(folder, name)
    wanted = from_json(to_json({"format": FORMAT, "settings": settings}))
    try:
        there = _current(place, wanted)
    except (ValueError, FileNotFoundError):  # another process may be replacing it right now
        there = None
    if there is not None:
        return there
    with locked(folder):
        return _current(place, wanted) or _make(place, wanted, make)


def _current(place: Path, wanted: dict[str, Any]) -> Arrays | None:
    if not place.exists():
        return None
    manifest = _manifest(place)
    if {key: manifest.get(key) for key in wanted} != wanted:
        return None
    arrays = _open(place, manifest["files"])
    return arrays if _manifest(place) == manifest else None


def _make(place: Path, wanted: dict[str, Any], make: Callable[[Store], None]) -> Arrays:
    temporary, stale = (place.with_name(f".{place.name}.{kind}") for kind in ("tmp", "stale"))
    for left in (temporary, stale):
        shutil.rmtree(left, ignore_errors=True)  # left by a killed process
    temporary.mkdir()
    try:
        store = Store(temporary)
        make(store)
        store.flush()
        files = {path.name: path.stat().st_size for path in sorted(temporary.glob("*.npy"))}
        for file in files:
            synced(temporary / file)
        write_text(temporary / MANIFEST, to_json({**wanted, "files": files, "id": os.urandom(8).hex()}, indent=2))
        if place.exists():  # `_manifest` has checked that it is a cache of rotrnn
            os.replace(place, stale)  # renamed as a whole: a half-removed folder would not be recognised
        os.replace(temporary, place)
        synced(place.parent)
        shutil.rmtree(stale, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return _open(place, files)


def _manifest(place: Path) -> dict[str, Any]:
    try:
        manifest = from_json(read_file(place / MANIFEST))
        if all(re.fullmatch(r"\w+\.npy", name) and type(size) is int for name, size in manifest["files"].items()):
            return dict(manifest)
    except (AttributeError, OSError, ValueError, LookupError, TypeError):
        pass
    raise ValueError(f"{place}: is not prepared data of rotrnn ({MANIFEST} is missing or damaged); remove it first")


def _open(place: Path, files: dict[str, int]) -> Arrays:
    for file, size in files.items():
        path = place / file
        there = path.stat().st_size if path.is_file() else None
        if there != size:
            got = "missing" if there is None else f"{there} bytes long"
            raise ValueError(f"{path}: is {got}, expected {size} bytes; remove {place} to prepare it again")
    try:
        return {Path(file).stem: open_npy(place / file) for file in files}
    except ValueError as error:
        raise ValueError(f"{error}; remove {place} to prepare it again") from error


def check_forms(place: Path, arrays: Arrays, forms: Forms) -> None:
    """Checks prepared arrays against their forms. ValueError if one is missing or has another form."""
    sizes: dict[str, int] = {}
    for name, (kind, *shape) in forms.items():
        path, again = place / f"{name}.npy", f"remove {place} to prepare it again"
        if name not in arrays:
            raise ValueError(f"{path}: is not listed in {place / MANIFEST}; {again}")
        array = arrays[name]
        fits = array.dtype.isnative and f"{array.dtype.kind}{array.dtype.itemsize}".startswith(str(kind))
        if not fits or array.ndim != len(shape):
            expected = f"{len(shape)} dimension(s) of {kind}"
            raise ValueError(f"{path}: is an array {array.shape} of {array.dtype}, expected {expected}; {again}")
        for got, want in zip(array.shape, shape, strict=True):
            size = sizes.setdefault(want, got) if isinstance(want, str) else want
            if got != size:
                raise ValueError(f"{path}: has shape {array.shape}, expected {size} for {want}; {again}")


def check_offsets(offsets: npt.NDArray[np.int64], rows: int, items: int) -> None:
    """Checks that prepared `offsets` divide `items` items into `rows` rows. ValueError, with their file, if not."""
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != items or (np.diff(offsets) < 0).any():
        file = getattr(offsets, "filename", "offsets")
        raise ValueError(f"{file}: expected {rows + 1} offsets that do not decrease, from 0 to {items}")
