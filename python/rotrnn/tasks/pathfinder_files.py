"""Folders of Pathfinder images as Long Range Arena released them: reading and writing one level of one resolution.

Such a folder holds ``imgs/<batch>/sample_<i>.png`` and ``metadata/<batch>.npy``, which is text: a line an image, of the
columns `COLUMNS`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from rotrnn._support.files import atomic_file, locked
from rotrnn._support.platform import synced
from rotrnn.tasks.prepared import Arrays, Store
from rotrnn.tasks.released import Release, lra, prepare
from rotrnn.tasks.task import Index

BATCH = 1000
"""Images that `write_level` puts into a folder."""

EMPTY = 32, 6, "imgs/0/sample_172.png"
"""Resolution, contour length and name of the one image that was published as an empty file; others leave it out too."""

SETTINGS = "pathfinder.json"  # what `write_level` writes into a folder
MAGIC = b"\x93NUMPY"

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
"""What a line of metadata tells, and the pattern of it."""

_EXPECTED = {"folder": "imgs/ and a name", "file": "the name of a .png file", "label": "0 or 1"}


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Pathfinder: its files are images, which need Pillow, and it is not installed; pip install 'rotrnn[data]'"
        ) from error
    return Image


# ---- reading ----


class Sample(NamedTuple):
    """An image that a line of metadata lists."""

    path: Path
    label: int
    listed: str  # where

    def read(self, pillow: Any, side: int) -> npt.NDArray[np.uint8]:
        """Its pixels.

        Raises
        ------
        FileNotFoundError, ValueError
            It is not there, or no whole 8-bit grey PNG image of `side` x `side` pixels.
        """
        got = None
        try:
            with pillow.open(self.path, formats=["PNG"]) as image:
                if image.mode != "L" or image.size != (side, side):
                    got = f"is of mode {image.mode} and {' x '.join(map(str, image.size))} pixels"
                else:
                    return np.asarray(image)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"is missing, but listed in {self.listed}", str(self.path)) from None
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
            got = f"is no whole image ({error})" if self.path.stat().st_size else "is empty"
            raise ValueError(f"{self.path}: {got}, expected a PNG file ({self.listed})") from None
        raise ValueError(f"{self.path}: {got}, expected 8-bit grey (mode L) and {side} x {side} ({self.listed})")


def level_release(resolution: int, contour_length: int) -> Release:
    """Where the level of contours of so many paddles was published, and what it is called."""
    level = "curv_baseline" if contour_length == 6 else f"curv_contour_length_{contour_length}"
    release = lra(f"pathfinder{resolution}/{level}", "metadata")
    return release._replace(places=(*release.places, level))


def read_level(folder: Path, resolution: int, contour_length: int, data_dir: str, cache_dir: str = "") -> Arrays:
    """Memory-mapped "pixels" (n, resolution, resolution) and "labels" (n,) uint8, prepared the first time.

    Images are in the order of the numbers of their batches, and of the lines of metadata, but for `EMPTY`.

    Parameters
    ----------
    folder : Path
        With folders imgs and metadata.
    data_dir, cache_dir : str
        Where the arrays are put, as `rotrnn.tasks.released.prepare`.

    Raises
    ------
    FileNotFoundError, ValueError
        A line of metadata or an image is not as released; the error names file and line.
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
            for i, one in enumerate(tqdm(read, desc=str(folder), total=len(samples), unit="image", disable=None)):
                pixels[i] = one

    name = f"pathfinder{resolution}-{contour_length}"
    images = sorted(path for path in (folder / "imgs").glob("[!.]*") if path.is_dir())
    return prepare("Pathfinder", data_dir, cache_dir, name, [*files, *images], make)


def _published_empty(folder: Path, sample: Sample, resolution: int, contour_length: int) -> bool:
    known = (resolution, contour_length, sample.path.relative_to(folder).as_posix()) == EMPTY
    return known and sample.path.is_file() and not sample.path.stat().st_size


def _batch(path: Path) -> int:
    if not path.stem.isdecimal():
        raise ValueError(f"{path}: is named {path.name}, expected the number of a batch and .npy")
    return int(path.stem)


def _samples(folder: Path, files: Iterable[Path], contour_length: int) -> Iterator[Sample]:
    """All that the metadata list; ValueError where one is listed twice, or some are yet to be written."""
    listed: dict[Path, str] = {}
    for path in files:
        for number, line in enumerate(_lines(path), 1):
            where = f"{path}, line {number}"
            try:
                sample = _sample(folder, line, contour_length, where)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if sample.path in listed:
                raise ValueError(f"{where}: lists {sample.path} again, after {listed[sample.path]}")
            listed[sample.path] = where
            yield sample
    if (folder / SETTINGS).exists() and (count := _settings(folder)["images"]) != len(listed):
        raise ValueError(f"{folder}: has {len(listed)} of {count} images; write the rest of them first")


def _lines(path: Path) -> list[str]:
    """The lines of a file of metadata: text, as released, or an array of texts, as the original script writes."""
    content = path.read_bytes()
    if content.startswith(MAGIC):
        try:
            table = np.load(path, allow_pickle=False)
            if table.dtype.kind == "S":
                table = np.char.decode(table, "utf-8", "backslashreplace")
            rows = table.tolist()
        except Exception as error:  # a damaged header or text may raise anything
            raise ValueError(f"{path}: is no array of texts ({error})") from None
        if table.ndim != 2 or table.dtype.kind != "U":
            raise ValueError(f"{path}: is an array {table.shape} of {table.dtype}, expected rows of texts")
        return [" ".join(row) for row in rows]
    lines = content.decode("utf-8", "backslashreplace").split("\n")
    if lines.pop():
        raise ValueError(f"{path}, line {len(lines) + 1}: is cut, expected a newline at its end")
    return lines


def _sample(folder: Path, line: str, contour_length: int, where: str) -> Sample:
    columns = line.split(" ")
    if len(columns) != len(COLUMNS):
        raise ValueError(f"has {len(columns)} column(s), expected {len(COLUMNS)}: {', '.join(COLUMNS)}")
    values = dict(zip(COLUMNS, columns, strict=True))
    for name, value in values.items():
        if not re.fullmatch(COLUMNS[name], value, re.ASCII):
            raise ValueError(f"{name} is {value!r}, expected {_EXPECTED.get(name, 'a number')}")
    if int(values["contour length"]) != contour_length:
        raise ValueError(f"contour length is {values['contour length']}, expected {contour_length}, contour_length")
    return Sample(folder / values["folder"] / values["file"], int(values["label"]), where)


# ---- writing ----


def write_level(
    folder: str | os.PathLike[str],
    settings: dict[str, Any],
    draw: Callable[[Index], Iterable[tuple[npt.NDArray[np.uint8], str]]],
) -> None:
    """Writes ``settings["images"]`` images, `BATCH` a folder; a later call goes on after the last batch that is there.

    The images of a batch get their name together, when they are on disk, and then its metadata: without these they
    count for nothing. So a kill at any moment leaves whole batches, and `read_level` asks for all of them.

    Parameters
    ----------
    settings : dict
        All that the images depend on, as JSON can hold it; kept in the folder.
    draw : function
        The pixels of images by number, and what a line of metadata says from the label on.

    Raises
    ------
    ValueError
        The folder holds other images, or another process writes there.
    """
    with locked(folder, "another process writes images here"):
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
        for batch in tqdm(range(-(-count // BATCH)), desc=str(folder), unit="batch", disable=None):
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
            shutil.rmtree(place, ignore_errors=True)  # it has no metadata: a write ended here
            os.replace(temporary, place)
            synced(place.parent)
            with atomic_file(metadata) as file:
                for i, (path, (_, text)) in enumerate(zip(paths, drawn, strict=True)):
                    file.write(f"imgs/{batch} {path.name} {i} {text}\n".encode())


def _save(pillow: Any, path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    pillow.fromarray(pixels).save(path, "PNG")
    synced(path)


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Writes down what the folder is for; ValueError if that is something else."""
    if (folder / SETTINGS).exists():
        there = _settings(folder)
        others = [f"{key} is {there.get(key)}" for key, value in settings.items() if there.get(key) != value]
        if others:
            wanted = ", ".join(f"{key} {value}" for key, value in settings.items())
            raise ValueError(f"{folder}: holds other images ({', '.join(others)}), expected {wanted}, or a new folder")
    elif any(any((folder / part).iterdir()) for part in ("imgs", "metadata")):
        raise ValueError(f"{folder}: holds images of someone else (it has no {SETTINGS}), expected a new folder")
    else:
        with atomic_file(folder / SETTINGS) as file:
            file.write(json.dumps(settings, indent=1).encode())


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text())
        return {"images": settings["images"], **settings}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: is damaged ({error!r}), expected the settings of the images") from None
