"""Published files, fetched once: resumable, held to their hash, and unpacked whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import warnings
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from rotrnn._support.files import atomic_file
from rotrnn._support.platform import sync_all, synced

TIMEOUT = 60  # seconds without a byte
CHUNK = 2**16  # what a connection that breaks may lose


def fetch(url: str, known_hash: str | None, folder: str | os.PathLike[str]) -> Path:
    """The file at `url`, in `folder` under the last part of its name: fetched where it is not there yet.

    A download that broke off is taken up where it ended, if the server still has the same file.

    Parameters
    ----------
    known_hash : str, optional
        "md5:..." or "sha256:..." as its publisher gives it. Where none is published, a warning tells the SHA-256 of
        what came, which is kept beside the file (NAME.sha256) and expected from then on.

    Raises
    ------
    ImportError
        Without pooch.
    OSError
        The connection broke, or the server has no such file.
    ValueError
        What came has another hash. Nothing is kept of it.
    """
    try:
        import pooch
    except ImportError as error:
        raise ImportError("download: needs pooch, which is not installed; pip install 'rotrnn[data]'") from error
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / url.rpartition("/")[2]
    record = path.with_name(path.name + ".sha256")
    expected = known_hash
    if expected is None and record.exists():
        expected = f"sha256:{record.read_text().split()[0]}"
    try:
        pooch.retrieve(url, expected, path.name, folder, downloader=Resuming(path))
    except ValueError as error:  # pooch names the file and both hashes
        raise ValueError(f"{url}: {error}") from error
    if expected is None:
        found = pooch.file_hash(str(path))
        with atomic_file(record) as file:
            file.write(f"{found}  {path.name}\n".encode())
        warnings.warn(f"{url}: no hash is published for it; what came has sha256:{found}", stacklevel=2)
    return path


class Resuming:
    """A downloader for `pooch.retrieve` that keeps what it has of `path` when it breaks off, and goes on from there.

    Beside `path` lie .NAME.part and .NAME.part.tag, the server's mark (ETag or date) of the version it is a part of.
    """

    def __init__(self, path: Path) -> None:
        self.part = path.with_name(f".{path.name}.part")
        self.tag = path.with_name(f".{path.name}.part.tag")

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        with open(self.part, "ab") as file:
            try:
                self.fetch(url, file)
            except requests.RequestException as error:
                if error.response is not None:  # not found, forbidden, ...
                    raise OSError(f"{url}: {error}") from error
                have = os.path.getsize(self.part)
                raise OSError(
                    f"{url}: the connection broke with {have} bytes here ({error}); the next try goes on from there"
                ) from error
            os.replace(self.part, output_file)
        self.tag.unlink(missing_ok=True)

    def fetch(self, url: str, file: Any) -> None:
        """Appends to the open part what it lacks."""
        import requests

        headers = {"Accept-Encoding": "identity"}
        have = file.seek(0, os.SEEK_END)
        if have and self.tag.exists():
            headers |= {"Range": f"bytes={have}-", "If-Range": self.tag.read_text()}
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                self.tag.unlink()
                return self.fetch(url, file)
            response.raise_for_status()
            resumed = response.status_code == requests.codes.partial_content
            if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                got = response.headers.get("Content-Range")
                raise OSError(f"{url}: the server sent the range {got!r}, expected bytes {have}- as asked for")
            if not resumed:
                have = 0
                file.truncate(0)
                self.tag.unlink(missing_ok=True)
                tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
                if tag and not tag.startswith("W/"):
                    self.tag.write_text(tag)
            size = response.headers.get("Content-Length")
            total = None if size is None else have + int(size)
            bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, disable=None, desc=url.rpartition("/")[2])
            with bar:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
            if total is not None and file.tell() != total:
                raise requests.ConnectionError(f"{file.tell()} of {total} bytes came")


def unpack(archive: str | os.PathLike[str], inner: str, place: str | os.PathLike[str]) -> None:
    """Unpacks the folder `inner` of a .tar.gz ("." for all of it) as the folder `place`, which must not be there yet.

    It takes that name only when the whole archive was read. Only files and folders are unpacked, and a name or link in
    it that leads outside is refused.

    Raises
    ------
    ValueError
        The archive is cut short or damaged, holds a name that leads outside, or no such folder; the error names it.
    """
    place = Path(place)
    temporary = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # a killed process's
    temporary.mkdir(parents=True)
    try:
        with open(archive, "rb") as file:
            size = os.path.getsize(archive)
            with tqdm.wrapattr(file, "read", size, disable=None, desc=f"unpacking {Path(archive).name}") as packed:
                _unpack(gzip.GzipFile(fileobj=packed), inner, temporary)
        if not (temporary / inner).is_dir():
            raise ValueError(f"there is no folder {inner} in it")
        sync_all()  # a hundred thousand files at once
        os.replace(temporary / inner, place)
        synced(place.parent)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise ValueError(f"{archive}: not unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unpack(plain: gzip.GzipFile, inner: str, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise ImportError("unpack: needs tarfile's extraction filters, which came with Python 3.11.4")
    with tarfile.open(fileobj=plain, mode="r|") as tar:
        for member in tar:
            tarfile.data_filter(member, str(folder))  # raises for what leads outside
            if (member.isfile() or member.isdir()) and PurePosixPath(member.name).is_relative_to(inner):
                tar.extract(member, folder, filter="data")
    while plain.read(2**20):  # tarfile takes an archive that is cut behind a member for whole, gzip does not
        pass
