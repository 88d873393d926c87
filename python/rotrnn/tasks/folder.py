"""Your own recordings or images as a task: a folder with a folder for each class."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rotrnn._support.extras import needed
from rotrnn._support.files import read_file
from rotrnn._support.warn import warn
from rotrnn.tasks.audio import read_recording
from rotrnn.tasks.columns import Numbers
from rotrnn.tasks.own import OwnData, Sequences

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Formats of images, whatever a file's name ends in: Pillow reads others by programs, PostScript by Ghostscript."""
AUDIO = (".wav",)
DEEP = re.compile(r"I;16[BLN]?")
"""Forms of a file's pixels, in Pillow's words, that are grey of 16 bits."""
MOST_PIXELS = 2**20
"""Of an image: each is a step of a sequence."""


@dataclass(frozen=True)
class Folder(OwnData):
    """Files in folders, each with the name of a class: ``path/CLASS/FILE``; see `rotrnn.tasks.own.OwnData`.

    Recordings (.wav, of 8, 16, 24 or 32 bits) are sequences of samples from -1 to 1, one feature per channel. Images
    (.png, .jpg and others, read by Pillow) are sequences of pixels in raster order from 0 to 1, one feature per channel
    (grey of up to 16 bits, or three of 8); others are refused, because Pillow would clip or round them, and so are
    images of several frames or pages. All files are read into memory; they may have different lengths. Each folder is a
    class and must have such a file; files of other kinds are left out with a warning. Names that begin with a dot are
    not read.

    Parameters
    ----------
    rate : int
        Sampling rate in Hz that recordings must have; 0: the rate of the first file. Another folder, read by the rules
        of a run, must have the rate of training.
    grey : bool
        Read images in grey. Otherwise in grey or in colour, like the first image.
    """

    rate: int = 0
    grey: bool = False

    files: ClassVar[str] = "a folder with a folder of .wav files or images for each class"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "classification" or self.per_step:
            got = f"kind is {self.kind!r} and per_step {self.per_step}"
            raise ValueError(f"Folder: {got}, expected 'classification' and False: folders are classes")
        if self.rate < 0:
            raise ValueError(f"Folder: rate is {self.rate}, expected a number of Hz, or 0")

    def read(self) -> Sequences:
        """Returns the sequences of all files, classes and files in the order of their names."""
        root = Path(self.path)
        if not root.is_dir():
            raise ValueError(f"Folder: path is {root}, a file, expected {self.files}")
        classes = sorted(one.name for one in _seen(root) if one.is_dir())
        if not classes:
            raise ValueError(f"{root}: has no folder, expected {self.files}")
        paths: list[tuple[Path, int]] = []
        left: list[Path] = []
        for label, name in enumerate(classes):
            there = sorted(_seen(root / name))
            own = [one for one in there if one.suffix.lower() in (*AUDIO, *IMAGES) and not one.is_dir()]
            if not own:
                got = f"{_some(there, root / name)} but no .wav file or image" if there else "nothing"
                raise ValueError(
                    f"{root / name}: has {got}, expected files of one class; move what is no class elsewhere"
                )
            paths += [(one, label) for one in own]
            left += [one for one in there if one not in own]
        if left:
            warn(f"{root}: leaves out {_some(left, root)}, expected .wav files or images")
        audio = paths[0][0].suffix.lower() in AUDIO
        if other := [path for path, _ in paths if (path.suffix.lower() in AUDIO) != audio]:
            raise ValueError(f"{other[0]}: expected {'a recording' if audio else 'an image'} as {paths[0][0]}")
        rate = (self.rate or read_recording(paths[0][0], 0).rate) if audio else 0
        read = self._recordings(rate) if audio else self._images()
        arrays = [read(path) for path, _ in paths]
        if wrong := [i for i, one in enumerate(arrays) if one.shape[1] != arrays[0].shape[1]]:
            got, expected = arrays[wrong[0]].shape[1], f"{arrays[0].shape[1]} as {paths[0][0]}"
            raise ValueError(f"{paths[wrong[0]][0]}: has {got} channel(s), expected {expected}")
        lengths, labels = [len(one) for one in arrays], [label for _, label in paths]
        if not all(lengths):
            raise ValueError(f"{paths[lengths.index(0)][0]}: is empty, expected at least one sample")
        values = np.concatenate(arrays)
        return Sequences(values, np.array(lengths), np.array(labels, np.int64), classes=tuple(classes), rate=rate)

    def _recordings(self, rate: int) -> Callable[[Path], Numbers]:
        def read(path: Path) -> Numbers:
            one = read_recording(path)
            if one.rate != rate:
                expected = "as the setting rate" if self.rate else "as the first file"
                raise ValueError(f"{path}: has {one.rate} Hz, expected {rate} {expected}")
            return one.samples

        return read

    def _images(self) -> Callable[[Path], Numbers]:
        with needed("Folder: image files need Pillow", "'rotrnn[data]'"):
            from PIL import Image
        mode = "L" if self.grey else ""

        def read(path: Path) -> Numbers:
            nonlocal mode
            content = io.BytesIO(read_file(path))  # Pillow asks a file for as many bytes as its header says
            try:
                with Image.open(content, formats=FORMATS) as image:
                    width, height = image.size
                    form = _form(image)
                    # a photograph may have a small copy of itself behind it (MPO)
                    moving = getattr(image, "is_animated", False) and image.format != "MPO"
                    deep = DEEP.fullmatch(form) is not None
                    known = deep or not (image.mode.startswith(("I", "F")) or ";16" in form)
                    if width * height <= MOST_PIXELS and known and not moving:
                        mode = mode or ("L" if deep or image.mode in ("1", "L", "LA") else "RGB")
                        pixels: Any = np.asarray(image if deep else image.convert(mode))
                        numbers = pixels.reshape(width * height, -1) / np.float32(65535 if deep else 255)
                        return np.repeat(numbers, 3, 1) if deep and mode == "RGB" else np.asarray(numbers)
            except Exception as error:  # a damaged image may raise anything
                raise ValueError(f"{path}: is not an image, or is damaged ({error})") from None
            if moving:
                raise ValueError(f"{path}: has several frames or pages, expected one image: save each as a file")
            if not known:
                raise ValueError(f"{path}: has pixels of the form {form!r}, expected 8 bits a channel, or 16 in grey")
            raise ValueError(f"{path}: has {width} x {height} pixels, expected at most {MOST_PIXELS:,}, each a step")

        return read


def _seen(folder: Path) -> list[Path]:
    """Returns what is in a folder, but for names that begin with a dot."""
    return [one for one in folder.iterdir() if not one.name.startswith(".")]


def _some(paths: Sequence[Path], root: Path) -> str:
    """Returns the first names, and how many more there are, in words."""
    names = ", ".join(str(one.relative_to(root)) for one in paths[:3])
    return f"{names} and {len(paths) - 3:,} more" if len(paths) > 3 else names


def _form(image: Any) -> str:
    """Returns the form of the pixels in an image's file, in Pillow's words: "L", "I;16B", "RGB;16B", "F;32F". The mode
    of the image itself may have fewer bits."""
    for tile in image.tile[:1]:
        form = tile[3] if isinstance(tile[3], str) else next(iter(tile[3] or ()), "")
        if isinstance(form, str) and form:
            return form
    return str(image.mode)
