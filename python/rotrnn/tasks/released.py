"""Shared code of the loaders of published data sets: locating the files, and preparing arrays from them."""

from __future__ import annotations

import errno
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from rotrnn._support.files import locked, whole_set
from rotrnn._support.settings import settle
from rotrnn._support.warn import warn
from rotrnn.tasks.download import Unavailable, fetch, forget, unpack
from rotrnn.tasks.prepared import Arrays, Forms, Store, check_forms, prepared
from rotrnn.tasks.task import Shape, Task


class Source(NamedTuple):
    """Addresses from which a data set is downloaded.

    Parameters
    ----------
    urls : dict
        Maps the address of an archive, or of each file, to its hash ("sha256:..."), or to None if no hash is
        published. The file that marks the data comes last: when it is there, all others are.
    inner : str, optional
        Folder of the archive that holds the data; None if the files are published without an archive.
    """

    urls: dict[str, str | None]
    inner: str | None = None


class Release(NamedTuple):
    """Where a data set was published, and where its files are found.

    Parameters
    ----------
    sources : tuple of Source
        They are tried in turn: the next one where one is not available, or sends other content.
    marks : tuple of str
        Names of files or folders. A folder that has one of them is taken to hold the data.
    places : tuple of str
        Possible locations of that folder in `data_dir`; the first one that exists is used.
    home : str, optional
        Folder in `data_dir` for the download; None for the first of `places`.
    """

    sources: tuple[Source, ...]
    marks: tuple[str, ...]
    places: tuple[str, ...]
    home: str | None = None


LRA = "https://storage.googleapis.com/long-range-arena/lra_release"


def lra(folder: str, *marks: str) -> Release:
    """Returns the `Release` of a folder of Long Range Arena's archive, which holds ListOps, Retrieval and Pathfinder
    (google-research/long-range-arena; no hash is published).

    The archive has a second pathfinder128 in its outer lra_release, early versions of which could not be learned. If
    `data_dir` is that outer folder, or the folder above it, the inner pathfinder128 is used, as in published code.
    """
    inner = f"lra_release/lra_release/{folder}"
    archive = Source({f"{LRA}.gz": None}, inner)
    return Release((archive,), marks, (inner, f"lra_release/{folder}", folder, "."), home=folder)


def find(name: str, release: Release, data_dir: str, download: bool) -> Path:
    """Returns the folder with the files of a release. If it is missing and `download` is True, it is downloaded.

    Raises
    ------
    ValueError
        `data_dir` is an empty string.
    FileNotFoundError
        The files are missing, and `download` is False.
    OSError, ValueError
        They cannot be downloaded, or have other hashes than published. The error has an entry for each source, and says
        where files that come from elsewhere belong.
    """
    expected = f"expected a folder with {' or '.join(release.marks)}"
    if not data_dir:
        raise ValueError(f"{name}: data_dir is '', {expected}; download = true downloads the data to it")
    there = found(release, data_dir)
    if there is None and not download:
        places = ", ".join(str(Path(data_dir, place)) for place in release.places)
        raise FileNotFoundError(f"{name}: no data in {places}; {expected}, or download = true to download the data")
    if there is None:
        with locked(data_dir):
            there = found(release, data_dir)
            if there is None:
                target = Path(data_dir, release.home or release.places[0])
                elsewhere = f". Files that you have from elsewhere are read from {target}, {expected}"
                try:
                    there = _download(release, data_dir, target)
                except OSError as error:
                    raise OSError(f"{name}: {error}{elsewhere}") from error
                except ValueError as error:
                    raise ValueError(f"{name}: {error}{elsewhere}") from error
    return there


def found(release: Release, data_dir: str) -> Path | None:
    """Returns the folder with the files of a release in `data_dir`; None if there is none."""
    places = (Path(data_dir, place) for place in release.places)
    return next((place for place in places if any((place / mark).exists() for mark in release.marks)), None)


def _download(release: Release, data_dir: str, target: Path) -> Path:
    """Downloads the data from the first source that has it."""
    refused: list[OSError | ValueError] = []
    tried: list[str] = []
    for source in release.sources:
        try:
            for url, known_hash in source.urls.items():
                if source.inner is None:
                    tried.append(url)
                    fetch(url, known_hash, target)
                else:
                    archive = fetch(url, known_hash, data_dir)
                    forget(tried, target)  # an archive becomes a new folder
                    unpack(archive, source.inner, target)
            return target
        except (Unavailable, ValueError) as error:
            refused.append(error)
    kind = OSError if all(isinstance(one, OSError) for one in refused) else ValueError
    raise kind("; ".join(map(str, refused))) from refused[-1]


@dataclass(frozen=True)
class Released(ABC):
    """Settings of a data set that is read from its published files.

    Parameters
    ----------
    data_dir : str
        Folder with the published files, or a folder above it.
    download : bool
        Download the files into `data_dir` if they are missing.
    cache_dir : str
        Folder for the arrays prepared from the files, which later calls map into memory. The default is the folder
        .rotrnn in `data_dir`.
    """

    data_dir: str = ""
    download: bool = False
    cache_dir: str = ""

    release: ClassVar[Release]

    def __post_init__(self) -> None:
        """Checks the types of the settings. A subclass with own checks calls this method first."""
        settle(self)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """See `rotrnn.tasks.task.Settings.shape`."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The published numbers of examples in "train", "val" and "test"."""

    @abstractmethod
    def load(self) -> Task:
        """Returns the task. The first call prepares its arrays."""

    def stand_in(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes random data in the released format and at full length, `examples` in each part, to try out a recipe.

        ValueError if `examples` is below two (one of each class, or one for training and one for validation), or if the
        folder already holds data of this kind.
        """
        if examples < 2:
            raise ValueError(
                f"{type(self).__name__}: the stand-in data have {examples} example(s), expected at least 2"
            )
        with whole_set(folder) as place:
            if (there := found(self.release, os.fspath(folder))) is not None:
                raise ValueError(
                    f"{type(self).__name__}: {there} already holds data of this kind, expected a folder without: "
                    "random data must not replace anything"
                )
            self.write_random(place, examples)

    @abstractmethod
    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes the files of `stand_in`."""

    def write(self, folder: str | os.PathLike[str]) -> Task:
        """Raises ValueError: published files are read, not written."""
        raise ValueError(
            f"{type(self).__name__}: is read from published files and cannot be written to {folder}; "
            "--stand-in writes random data in the published format"
        )

    def folder(self) -> Path:
        """Returns the folder with the files (see `find`)."""
        return find(type(self).__name__, self.release, self.data_dir, self.download)

    def whole(self, files: Iterable[Path], *, folders: bool = False) -> None:
        """Raises FileNotFoundError, which names all that are expected, unless each file (or folder) is there."""
        files = list(files)
        if missing := [path for path in files if not (path.is_dir() if folders else path.is_file())]:
            kind, expected = ("folder" if folders else "file"), ", ".join(str(path) for path in files)
            raise FileNotFoundError(f"{type(self).__name__}: {missing[0]} is no {kind}, expected {expected}")

    def prepare(self, name: str, files: Iterable[Path], make: Callable[[Store], None], forms: Forms) -> Arrays:
        """Returns the arrays that `make` prepares from `files` (see `prepare`).

        `name` identifies the arrays; it contains the settings that they depend on.
        """
        return prepare(type(self).__name__, self.data_dir, self.cache_dir, name, files, make, forms)


def prepare(
    task: str,
    data_dir: str,
    cache_dir: str,
    name: str,
    files: Iterable[Path],
    make: Callable[[Store], None],
    forms: Forms,
) -> Arrays:
    """Returns the arrays that `make` prepares from `files` (see `prepared`), kept in `cache_dir`, or in
    ``data_dir/.rotrnn`` if that is ''. They are checked against `forms`.

    Several data folders can share one `cache_dir`: the arrays' names there include a hash of `data_dir`.
    """
    folder = Path(cache_dir or Path(data_dir, ".rotrnn"))
    if cache_dir:
        name += "-" + hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]
    try:
        arrays = prepared(folder, name, {"files": fingerprint(files)}, make)
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if not denied or not Path(os.path.abspath(error.filename or folder)).is_relative_to(folder.absolute()):
            raise
        raise OSError(
            f"{task}: prepared data cannot be written to {folder} ({error.strerror}); "
            "set cache_dir to a writable folder"
        ) from error
    check_forms(folder / name, arrays, forms)
    return arrays


def fingerprint(files: Iterable[Path]) -> str:
    """Returns a SHA-256 of the names, sizes and times of files and of the files in folders, to detect changes."""
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


def compare(name: str, folder: Path, found: dict[str, int], published: dict[str, int]) -> bool:
    """Returns whether the counts in a folder equal the published data set's, and warns if not.

    A part of the data set is allowed, so this is not an error. ValueError if a count is zero.
    """
    for key, count in found.items():
        if not count:
            raise ValueError(f"{name}: {key} is 0 in {folder}, expected {published[key]} as published, or fewer")
    other = [f"{key} {found[key]} instead of {count}" for key, count in published.items() if found[key] != count]
    if other:
        warn(f"{name}: this is not the whole published data set: {', '.join(other)}")
    return not other
