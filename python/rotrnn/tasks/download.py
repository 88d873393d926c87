"""Downloads of published files: resumable, checked against a hash, and unpacked completely or not at all."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from rotrnn._support import progress
from rotrnn._support.extras import needed
from rotrnn._support.files import open_file, read_file, write_text
from rotrnn._support.platform import regular, sync_all, synced
from rotrnn._support.warn import warn

TIMEOUT = 60  # seconds without a byte
CHUNK = 2**16  # bytes; at most this much is lost when a connection breaks
UNPACKED = 2**37  # most bytes that an archive may hold; Long Range Arena's, the largest, is packed 8 GB
HEADER = 2**13  # most bytes of an extended header in an archive: a path has 4,096. tarfile searches it in squared time
EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class Unavailable(OSError):
    """A server does not have a file, or does not answer."""


def fetch(url: str, known_hash: str | None, folder: str | os.PathLike[str]) -> Path:
    """Downloads `url` into `folder`, unless it is already there, and returns its path.

    The file is named after the last part of the address. An interrupted download is resumed if the server still has the
    same file.

    Parameters
    ----------
    known_hash : str, optional
        "sha256:...". If none is known, a warning reports the SHA-256 of the download. It is stored next to the file
        (NAME.sha256), and later downloads must match it.

    Raises
    ------
    ImportError
        pooch is not installed.
    Unavailable
        The server has no such file, or does not answer. An OSError.
    OSError
        The connection broke.
    ValueError
        The download has another hash. It is deleted.
    """
    with needed("download: needs pooch", "'rotrnn[data]'"):
        import pooch
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / url.rpartition("/")[2]
    record = path.with_name(path.name + ".sha256")
    expected = known_hash
    if expected is None and record.exists():
        known = re.match(rb"[0-9a-f]{64}\b", read_file(record))
        if known is None:
            raise ValueError(f"{record}: does not begin with a SHA-256; remove it to download {path.name} again")
        expected = f"sha256:{known[0].decode()}"
    try:
        pooch.retrieve(url, expected, path.name, folder, downloader=ResumingDownloader(path))
    except ValueError as error:  # pooch names the file and both hashes
        raise ValueError(f"{url}: {error}") from error
    if expected is None:
        found = pooch.file_hash(str(path))
        write_text(record, f"{found}  {path.name}\n")
        warn(f"{url}: no hash is published for it; the download has sha256:{found}")
    return path


def forget(urls: Iterable[str], folder: Path) -> None:
    """Removes what `fetch` has made of these addresses in a folder."""
    for name in (url.rpartition("/")[2] for url in urls):
        for one in (name, f"{name}.sha256", f".{name}.part", f".{name}.part.tag"):
            (folder / one).unlink(missing_ok=True)


class ResumingDownloader:
    """A downloader for `pooch.retrieve` that keeps a partial download of `path` and resumes it on the next call.

    Two files are kept next to `path`: .NAME.part, the bytes received so far, and .NAME.part.tag, the server's ETag or
    date of the version that they belong to.
    """

    def __init__(self, path: Path) -> None:
        self.part = path.with_name(f".{path.name}.part")
        self.tag = path.with_name(f".{path.name}.part.tag")

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        try:
            with open(self.part, "ab", opener=regular) as file:
                self.fetch(url, file)
        except requests.RequestException as error:
            have = os.path.getsize(self.part)
            if not have:
                self.part.unlink()
            if error.response is not None or not have:  # not found, forbidden, no server, ...
                raise Unavailable(f"{url}: {error}") from error
            raise OSError(
                f"{url}: the connection broke after {have} bytes ({error}); the next attempt resumes from there"
            ) from error
        os.replace(self.part, output_file)
        self.tag.unlink(missing_ok=True)

    def fetch(self, url: str, file: Any) -> None:
        """Appends the missing bytes to the open partial file."""
        import requests

        headers = {"Accept-Encoding": "identity"}
        have = file.seek(0, os.SEEK_END)
        if have and self.tag.exists():
            headers |= {"Range": f"bytes={have}-", "If-Range": read_file(self.tag).decode()}
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                self.tag.unlink()
                return self.fetch(url, file)
            response.raise_for_status()
            resumed = response.status_code == requests.codes.partial_content
            if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                got = response.headers.get("Content-Range")
                raise OSError(f"{url}: the server sent the range {got!r}, expected bytes {have}- as requested")
            if not resumed:
                have = 0
                file.truncate(0)
                self.tag.unlink(missing_ok=True)
                tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
                if tag and not tag.startswith("W/"):
                    write_text(self.tag, tag)
            size = response.headers.get("Content-Length")
            total = None if size is None else have + int(size)
            bar = progress.bar(total=total, initial=have, unit="B", unit_scale=True, desc=url.rpartition("/")[2])
            with bar:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
            if total is not None and file.tell() != total:
                raise requests.ConnectionError(f"received {file.tell()} of {total} bytes")


def unpack(archive: str | os.PathLike[str], inner: str, place: str | os.PathLike[str]) -> None:
    """Unpacks the folder `inner` of a .tar.gz ("." for all of it) as the folder `place`, which must not exist yet.

    The folder gets its name only after the whole archive has been read. Only files and folders are unpacked. A path or
    link that leads outside the folder is rejected.

    Raises
    ------
    ValueError
        The archive is truncated or damaged, has a path that leads outside, has no folder `inner`, or holds more than
        `UNPACKED` bytes. The error names the archive.
    OSError
        The files cannot be written, for example because the disk is full or a name is too long.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ImportError("unpack: needs tarfile's extraction filters, which Python has from 3.11.4 on")
    place = Path(place)
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    temporary.mkdir(parents=True)
    try:
        with open_file(archive) as file:
            size = os.path.getsize(archive)
            words = f"unpacking {Path(archive).name}"
            with progress.kind().wrapattr(file, "read", size, disable=None, desc=words) as packed:
                _unpack(gzip.GzipFile(fileobj=packed), inner, temporary)
        if not (temporary / inner).is_dir():
            raise ValueError(f"it has no folder {inner}")
        sync_all()  # one call for up to a hundred thousand files
        os.replace(temporary / inner, place)
        synced(place.parent)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise ValueError(f"{archive}: not unpacked: {error}") from error
        raise OSError(error.errno, f"not unpacked ({error.strerror or error})", str(archive)) from error
    except Exception as error:  # a damaged archive may raise anything
        raise ValueError(f"{archive}: not unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Member(tarfile.TarInfo):
    """A member whose extended header, such as a long name, has at most `HEADER` bytes: tarfile reads it at once."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:  # the method that tarfile has for subclasses
        if self.type in EXTENDED and not 0 <= self.size <= HEADER:
            raise ValueError(f"it has an extended header of {self.size} bytes, expected at most {HEADER}")
        return super()._proc_member(tar)  # type: ignore[misc]


def _unpack(plain: gzip.GzipFile, inner: str, folder: Path) -> None:
    left = UNPACKED
    with tarfile.open(fileobj=plain, mode="r|", tarinfo=_Member) as tar:
        for member in tar:
            tarfile.data_filter(member, str(folder))  # raises for a path that leads outside
            left -= member.size
            if left < 0:
                raise ValueError(f"it holds more than {UNPACKED} bytes")
            if (member.isfile() or member.isdir()) and PurePosixPath(member.name).is_relative_to(inner):
                tar.extract(member, folder, filter="data")
    while plain.read(2**20):  # tarfile does not notice an archive truncated right after a member; gzip does
        pass
