"""What all loaders of published data sets share: where their files are, and the arrays prepared from them."""

from __future__ import annotations

import errno
import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from rotrnn._support.files import locked
from rotrnn.tasks.download import fetch, unpack
from rotrnn.tasks.prepared import Arrays, Store, prepared
from rotrnn.tasks.task import Shape, Task


class Release(NamedTuple):
    """Where a data set was published, and where its files lie.

    Parameters
    ----------
    urls : dict
        Address of an archive, or of each file, and its hash ("md5:...", "sha256:..."), None where none is published.
    marks : tuple of str
        Files or folders of which a folder with the data has one.
    places : tuple of str
        Where that folder may lie in `data_dir`, the first that is there.
    inner : str, optional
        Folder of the archive that holds the data; None where the files come without an archive.
    home : str, optional
        Where what is downloaded goes; None for the first of `places`.
    """

    urls: dict[str, str | None]
    marks: tuple[str, ...]
    places: tuple[str, ...]
    inner: str | None
    home: str | None = None


def lra(folder: str, *marks: str) -> Release:
    """A folder of the archive of Long Range Arena, which holds ListOps, Retrieval and Pathfinder (google-research/
    long-range-arena; no hash is published).

    The archive has a second pathfinder128 in its outer lra_release, of which early versions could not be learned: where
    that is `data_dir`, or the folder above, the inner one is found, as published code has it.
    """
    inner = f"lra_release/lra_release/{folder}"
    url = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    return Release({url: None}, marks, (inner, f"lra_release/{folder}", folder, "."), inner, home=folder)


def find(name: str, release: Release, data_dir: str, download: bool) -> Path:
    """The folder with the files of a release; downloaded where it is not in `data_dir` and `download` is on.

    Raises
    ------
    ValueError
        `data_dir` is empty.
    FileNotFoundError
        The files are not there, and `download` is off.
    """
    expected = f"expected a folder with {' or '.join(release.marks)}"
    if not data_dir:
        raise ValueError(f"{name}: data_dir is '', {expected}; download = true fetches the data there")
    found = _find(release, data_dir)
    if found is None and not download:
        places = ", ".join(str(Path(data_dir, place)) for place in release.places)
        raise FileNotFoundError(f"{name}: nothing is in {places}; {expected}, or download = true to fetch the data")
    if found is None:
        with locked(data_dir):
            found = _find(release, data_dir) or _download(release, data_dir)
    return found


def _find(release: Release, data_dir: str) -> Path | None:
    places = (Path(data_dir, place) for place in release.places)
    return next((place for place in places if any((place / mark).exists() for mark in release.marks)), None)


def _download(release: Release, data_dir: str) -> Path:
    target = Path(data_dir, release.home or release.places[0])
    for url, known_hash in release.urls.items():
        if release.inner is None:
            fetch(url, known_hash, target)
        else:
            unpack(fetch(url, known_hash, data_dir), release.inner, target)
    return target


@dataclass(frozen=True)
class Released(ABC):
    """Settings of a data set that is read from the files it was published in.

    Parameters
    ----------
    data_dir : str
        Folder with the published files, or one above it.
    download : bool
        Fetch the files into `data_dir` where they are not there.
    cache_dir : str
        Folder for the arrays that are prepared from the files, once; .rotrnn in `data_dir` where none is given.
    """

    data_dir: str = ""
    download: bool = False
    cache_dir: str = ""

    release: ClassVar[Release]

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """As in `rotrnn.tasks.task.Settings`."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Examples in "train", "val" and "test" of what was published."""

    @abstractmethod
    def load(self) -> Task:
        """The task; its arrays are prepared the first time."""

    def stand_in(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes random data of the released format and full length, `examples` in each part: to try a recipe with.

        ValueError for less than two, one of each class, or one to train with and one to validate with; and where the
        folder holds such data already.
        """
        if examples < 2:
            raise ValueError(
                f"{type(self).__name__}: the stand-in is to have {examples} example(s), expected 2 at least"
            )
        if (there := _find(self.release, os.fspath(folder))) is not None:
            raise ValueError(
                f"{type(self).__name__}: {there} holds such data already, expected a folder without: random data are "
                "to take nothing's place"
            )
        self.write_random(folder, examples)

    @abstractmethod
    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """The files of `stand_in`."""

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Raises ValueError: published files are read, not written."""
        raise ValueError(
            f"{type(self).__name__}: is read from published files and not written (asked to, into {folder}); "
            "random data of their format come from --stand-in"
        )

    def folder(self) -> Path:
        """The folder with the files, as `find`."""
        return find(type(self).__name__, self.release, self.data_dir, self.download)

    def prepare(self, name: str, files: Iterable[Path], make: Callable[[Store], None]) -> Arrays:
        """The arrays that `make` makes of `files`, by `prepare`: `name` says which, of several settings."""
        return prepare(type(self).__name__, self.data_dir, self.cache_dir, name, files, make)


def prepare(
    task: str, data_dir: str, cache_dir: str, name: str, files: Iterable[Path], make: Callable[[Store], None]
) -> Arrays:
    """The arrays that `make` makes of `files`, by `prepared`, in `cache_dir` or, where that is '', in `data_dir`.

    In `cache_dir`, which may be that of several folders of data, they are called after `data_dir` too.
    """
    folder = Path(cache_dir or Path(data_dir, ".rotrnn"))
    if cache_dir:
        name += "-" + hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    try:
        return prepared(folder, name, {"files": fingerprint(files)}, make)
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if not denied or not Path(os.path.abspath(error.filename or folder)).is_relative_to(folder.absolute()):
            raise
        raise OSError(
            f"{task}: prepared data cannot be written to {folder} ({error.strerror}); "
            "set cache_dir to a folder for them"
        ) from error


def fingerprint(files: Iterable[Path]) -> str:
    """SHA-256 of the names, sizes and times of files, and of those in folders: another one when any was changed."""
    digest = hashlib.sha256()
    for path in files:
        if path.is_dir():
            with os.scandir(path) as entries:
                found = sorted((f"{path.name}/{one.name}", one.stat()) for one in entries)
        else:
            found = [(f"{path.parent.name}/{path.name}", path.stat())]
        for name, about in found:
            digest.update(f"{name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def compare(name: str, found: dict[str, int], published: dict[str, int]) -> bool:
    """Whether counts are those of the published data set; a warning tells where they are not.

    They may well be a part of it, so this is no error; ValueError where there is nothing of a kind.
    """
    for key, count in found.items():
        if not count:
            raise ValueError(f"{name}: {key} is 0, expected {published[key]} as published, or fewer")
    other = [f"{key} {found[key]} instead of {count}" for key, count in published.items() if found[key] != count]
    if other:
        warnings.warn(f"{name}: this is not the whole published data set: {', '.join(other)}", stacklevel=3)
    return not other
