"""Reads and writes folders of Pathfinder images in Long Range Arena's released layout: one level of one resolution.

Such a folder holds ``imgs/<batch>/sample_<i>.png`` and ``metadata/<batch>.npy``. The latter is text with one line per
image and the columns `COLUMNS`. Of copies, lines of the columns `FEW` alone are read, too, and pictures in colour.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.extras import needed
from rotrnn._support.files import atomic_file, locked, open_npy, read_file, write_text
from rotrnn._support.json import from_json, to_json
from rotrnn._support.platform import synced
from rotrnn._support.progress import bar
from rotrnn.tasks.prepared import Arrays, Forms, Store
from rotrnn.tasks.released import Release, lra, prepare
from rotrnn.tasks.task import Index

BATCH = 1000
"""Number of images that `write_level` puts into one folder."""

EMPTY = 32, 6, "imgs/0/sample_172.png"
"""Resolution, contour length and name of the one image that was published as an empty file. It is skipped, as in other
implementations."""

SETTINGS = "pathfinder.json"  # file in which `write_level` keeps the settings of a folder
MAGIC = b"\x93NUMPY"
LAST_CHARACTER = 0x10FFFF

COLUMNS = {
    "folder": r"imgs/\w+",
    "file": r"\w+\.png",
    "index": r"\d+",
    "label": r"[01]",
    "continuity": r"\d+(\.\d+)?",
    "contour length": r"\d+",
    "distractor length": r"\d+",
    "paddle length": r"\d+",
    "paddle thickness": r"\d+(\.\d+)?",
    "paddle margin": r"\d+",
    "paddle contrasts": r"\d+",
}
"""The columns of a line of metadata, each with the pattern of its values."""

FEW = "folder", "file", "label"
"""The columns that are needed."""

MODES = "L", "RGB", "RGBA", "P"
"""Pillow's modes of pictures of eight bits, whose grey is read, as S4 and S5 do."""

_EXPECTED = {"folder": "imgs/ and a name", "file": "the name of a .png file", "label": "0 or 1"}


def _pillow() -> Any:
    with needed("Pathfinder: image files need Pillow", "'rotrnn[data]'"):
        from PIL import Image
    return Image


# ---- reading ----


class Sample(NamedTuple):
    """An image that is listed in a line of metadata."""

    path: Path
    label: int
    listed: str  # file and line that list it

    def read(self, pillow: Any, side: int) -> npt.NDArray[np.uint8]:
        """Returns the pixels.

        Raises
        ------
        FileNotFoundError
            The file is missing.
        ValueError
            The file is not a complete PNG image of eight bits and `side` x `side` pixels.
        """
        got = None
        try:
            content = io.BytesIO(read_file(self.path))  # Pillow asks a file for as many bytes as its header says
            with pillow.open(content, formats=["PNG"]) as image:
                if image.mode not in MODES or image.size != (side, side):
                    got = f"has mode {image.mode} and {' x '.join(map(str, image.size))} pixels"
                else:
                    return np.asarray(image.convert("L"))
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"is missing, but listed in {self.listed}", str(self.path)) from None
        except Exception as error:  # a damaged image may raise anything
            got = f"is not a complete image ({error})" if self.path.stat().st_size else "is empty"
            raise ValueError(f"{self.path}: {got}, expected a PNG file ({self.listed})") from None
        raise ValueError(
            f"{self.path}: {got}, expected 8 bits (mode {' or '.join(MODES)}) and {side} x {side} ({self.listed})"
        )


def level_release(resolution: int, contour_length: int) -> Release:
    """Returns the `Release` of the level whose contours have `contour_length` paddles."""
    level = "curv_baseline" if contour_length == 6 else f"curv_contour_length_{contour_length}"
    release = lra(f"pathfinder{resolution}/{level}", "metadata")
    return release._replace(places=(*release.places, level))


def read_level(folder: Path, resolution: int, contour_length: int, data_dir: str, cache_dir: str = "") -> Arrays:
    """Returns memory-mapped "pixels" (n, resolution, resolution) and "labels" (n,) uint8. The first call prepares them.

    Images are ordered by batch number, then by line of metadata. `EMPTY` is skipped.

    Parameters
    ----------
    folder : Path
        Folder that holds the folders imgs and metadata.
    data_dir, cache_dir : str
        Where the arrays are stored, as in `rotrnn.tasks.released.prepare`.

    Raises
    ------
    FileNotFoundError, ValueError
        An image is missing, or a line of metadata or an image is malformed; the error names the file and the line.
    """
    files = sorted((folder / "metadata").glob("[!.]*.npy"), key=_batch)
    if not files:
        raise ValueError(f"{folder / 'metadata'}: holds no .npy files, expected one for each batch of images")

    def make(store: Store) -> None:
        samples = list(_samples(folder, files, contour_length))
        samples = [sample for sample in samples if not _published_empty(folder, sample, resolution, contour_length)]
        pixels = store.array("pixels", (len(samples), resolution, resolution), np.uint8)
        store.array("labels", (len(samples),), np.uint8)[:] = [sample.label for sample in samples]
        pillow = _pillow()
        with ThreadPoolExecutor() as pool:
            read = pool.map(lambda sample: sample.read(pillow, resolution), samples)
            for i, one in enumerate(bar(read, desc=str(folder), total=len(samples), unit="image")):
                pixels[i] = one

    name = f"pathfinder{resolution}-{contour_length}"
    images = sorted(path for path in (folder / "imgs").glob("[!.]*") if path.is_dir())
    forms: Forms = {"pixels": ("u1", "images", resolution, resolution), "labels": ("u1", "images")}
    return prepare("Pathfinder", data_dir, cache_dir, name, [*files, *images], make, forms)


def _published_empty(folder: Path, sample: Sample, resolution: int, contour_length: int) -> bool:
    known = (resolution, contour_length, sample.path.relative_to(folder).as_posix()) == EMPTY
    return known and sample.path.is_file() and not sample.path.stat().st_size


def _batch(path: Path) -> int:
    if not path.stem.isdecimal():
        raise ValueError(f"{path}: is named {path.name}, expected the number of a batch, then .npy")
    return int(path.stem)


def _samples(folder: Path, files: Iterable[Path], contour_length: int) -> Iterator[Sample]:
    """Yields all images listed in the metadata. ValueError if one is listed twice, or if `write_level` did not
    finish."""
    listed: dict[Path, str] = {}
    for path in files:
        lines = _lines(path)
        columns = FEW if lines and lines[0].count(" ") + 1 == len(FEW) else tuple(COLUMNS)
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number}"
            try:
                sample = _sample(folder, line, columns, contour_length, where)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if sample.path in listed:
                raise ValueError(f"{where}: lists {sample.path} again, after {listed[sample.path]}")
            listed[sample.path] = where
            yield sample
    if (folder / SETTINGS).exists() and (count := _settings(folder)["images"]) != len(listed):
        raise ValueError(f"{folder}: has {len(listed)} of {count} images; write the remaining ones first")


def _lines(path: Path) -> list[str]:
    """Returns the lines of a metadata file: text, as released, or an array of strings, as the original script writes
    it."""
    content = read_file(path)
    if content.startswith(MAGIC):
        table = open_npy(path)
        if table.ndim != 2 or table.dtype.kind not in "SU":
            raise ValueError(f"{path}: is an array {table.shape} of {table.dtype}, expected rows of strings")
        if table.dtype.kind == "S":
            rows = np.char.decode(table, "utf-8", "backslashreplace")
        else:
            rows = np.require(table, "=U", ["C"])
            if rows.size and rows.view(np.uint32).max() > LAST_CHARACTER:  # NumPy would make broken texts of them
                raise ValueError(f"{path}: is not an array of strings, but has numbers beyond Unicode")
        return [" ".join(row) for row in rows.tolist()]
    lines = content.decode("utf-8", "backslashreplace").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _sample(folder: Path, line: str, columns: tuple[str, ...], contour_length: int, where: str) -> Sample:
    found = line.split(" ")
    if len(found) != len(columns):
        raise ValueError(f"has {len(found)} column(s), expected {len(columns)}: {', '.join(columns)}")
    values = dict(zip(columns, found, strict=True))
    for name, value in values.items():
        if not re.fullmatch(COLUMNS[name], value, re.ASCII):
            raise ValueError(f"{name} is {value!r}, expected {_EXPECTED.get(name, 'a number')}")
    if (length := values.get("contour length")) is not None and int(length) != contour_length:
        raise ValueError(f"contour length is {length}, expected {contour_length}, the setting contour_length")
    return Sample(folder / values["folder"] / values["file"], int(values["label"]), where)


# ---- writing ----


def write_level(
    folder: str | os.PathLike[str],
    settings: dict[str, Any],
    draw: Callable[[Index], Iterable[tuple[npt.NDArray[np.uint8], str]]],
) -> None:
    """Writes ``settings["images"]`` images, `BATCH` per folder. A later call resumes after the last complete batch.

    The folder of a batch is renamed into place when all its images are on disk; then its metadata are written. A batch
    without metadata is ignored. So a kill at any moment leaves only complete batches, and `read_level` checks that all
    are there.

    Parameters
    ----------
    settings : dict
        Everything that the images depend on, as JSON values; stored in the folder.
    draw : function
        Returns, for the given image numbers, the pixels and the text of the metadata line from the label on.

    Raises
    ------
    ValueError
        The folder holds other images, or another process is writing to it.
    """
    with locked(folder, "another process is writing images here"):
        _write_level(Path(folder), settings, draw)


def _write_level(
    folder: Path, settings: dict[str, Any], draw: Callable[[Index], Iterable[tuple[npt.NDArray[np.uint8], str]]]
) -> None:
    pillow = _pillow()
    for part in ("imgs", "metadata"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    _claim(folder, settings)
    for left in (folder / "imgs").glob(".*.tmp"):
        shutil.rmtree(left)
    count = settings["images"]
    with ThreadPoolExecutor() as pool:
        for batch in bar(range(-(-count // BATCH)), desc=str(folder), unit="batch"):
            metadata = folder / "metadata" / f"{batch}.npy"
            if metadata.exists():
                continue
            first, place = batch * BATCH, folder / "imgs" / str(batch)
            drawn = list(draw(np.arange(first, min(first + BATCH, count))))
            temporary = place.with_name(f".{batch}.{os.getpid()}.tmp")
            temporary.mkdir()
            paths = [temporary / f"sample_{i}.png" for i in range(len(drawn))]
            list(pool.map(lambda path, one: _save(pillow, path, one[0]), paths, drawn))
            synced(temporary)
            shutil.rmtree(place, ignore_errors=True)  # it has no metadata: an earlier call was interrupted here
            os.replace(temporary, place)
            synced(place.parent)
            with atomic_file(metadata) as file:
                for i, (path, (_, text)) in enumerate(zip(paths, drawn, strict=True)):
                    file.write(f"imgs/{batch} {path.name} {i} {text}\n".encode())


def _save(pillow: Any, path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    pillow.fromarray(pixels).save(path, "PNG")
    synced(path)


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Stores the settings in the folder. ValueError if the folder holds images with other settings."""
    if (folder / SETTINGS).exists():
        there = _settings(folder)
        others = [f"{key} is {there.get(key)}" for key, value in settings.items() if there.get(key) != value]
        if others:
            wanted = ", ".join(f"{key} {value}" for key, value in settings.items())
            raise ValueError(f"{folder}: holds other images ({', '.join(others)}), expected {wanted}, or a new folder")
    elif any(any((folder / part).iterdir()) for part in ("imgs", "metadata")):
        raise ValueError(f"{folder}: holds images from another source (it has no {SETTINGS}), expected a new folder")
    else:
        write_text(folder / SETTINGS, to_json(settings, indent=1))


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        settings = from_json(read_file(path))
        return {"images": settings["images"], **settings}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: is damaged ({error!r}), expected the settings of the images") from None
