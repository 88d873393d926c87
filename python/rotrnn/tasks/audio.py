"""WAV files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import open_file

PCM, EXTENSIBLE = 1, 65534
FORMATS = {
    2: "ADPCM", 3: "floating-point numbers", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3",
    EXTENSIBLE: "extensible",
}  # fmt: skip
"""Formats of samples that are not read, by their number in the header."""
SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")
"""The end of an extensible format that begins with one of the numbers above."""
HEADER = 40
"""Number of bytes of the chunk "fmt " at most."""
NO_WAV = "is not a WAV file, or is truncated"


class Recording(NamedTuple):
    """The header of a WAV file, and its first frames as bytes."""

    channels: int
    bits: int
    rate: int
    frames: int
    content: bytes

    @property
    def samples(self) -> npt.NDArray[np.float32]:
        """Samples (frames, channels) from -1 to 1."""
        width = self.bits // 8
        raw = np.frombuffer(self.content, np.uint8).reshape(-1, width)
        if width == 1:  # unsigned
            return (raw.astype(np.float32) / np.float32(128) - np.float32(1)).reshape(-1, self.channels)
        wide = np.zeros((len(raw), 4), np.uint8)
        wide[:, 4 - width :] = raw  # the sign comes with the highest byte
        samples = wide.view("<i4").astype(np.float32) / np.float32(2**31)
        return samples.reshape(-1, self.channels)


def read_recording(path: str | os.PathLike[str], most: int | None = None) -> Recording:
    """Reads a WAV file of 8, 16, 24 or 32 bits, and `most` of its frames at most. ValueError if the file or its
    samples have another format, or it is truncated or damaged."""
    with open_file(path) as file:
        chunks = _chunks(file, path)
        chunk = next((file.read(min(size, HEADER)) for name, size in chunks if name == b"fmt "), b"")
        channels, rate, width = _form(chunk, path)
        size = next((size for name, size in chunks if name == b"data"), None)
        if size is None:
            raise ValueError(f"{path}: {NO_WAV}: it has no samples")
        frames = size // (width * channels)  # a number of the header, whatever the file's size
        expected = width * channels * (frames if most is None else min(frames, most))
        there = os.fstat(file.fileno()).st_size
        content = file.read(min(expected, there))  # a request takes its memory before it reads
    if len(content) != expected:
        raise ValueError(f"{path}: is truncated, with {len(content)} bytes of audio, expected {expected}")
    return Recording(channels, 8 * width, rate, frames, content)


def _chunks(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[tuple[bytes, int]]:
    """Yields the name of each chunk and the number of its bytes, with the file at the first of them."""
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise ValueError(f"{path}: {NO_WAV}: it does not begin with RIFF and WAVE")
    at, end = len(head), 8 + int.from_bytes(head[4:8], "little")
    while at < end and len(chunk := file.read(8)) == 8:
        name, size = struct.unpack("<4sI", chunk)
        yield name, size
        at += 8 + size + size % 2
        file.seek(at)


def _form(chunk: bytes, path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Returns the number of channels, the rate, and the number of bytes of a sample, by the chunk "fmt "."""
    if len(chunk) < 16:
        raise ValueError(f"{path}: {NO_WAV}: it ends in its header")
    number, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if number == EXTENSIBLE and chunk[26:40] == SUBFORMAT:
        (number,) = struct.unpack_from("<H", chunk, 24)
    if number != PCM:
        got = f"samples in the format {number}" + (f" ({FORMATS[number]})" if number in FORMATS else "")
        raise ValueError(f"{path}: has {got}, expected integers (PCM) of 8, 16, 24 or 32 bits")
    if not 1 <= bits <= 32:
        raise ValueError(f"{path}: has {bits} bits a sample, expected 8, 16, 24 or 32")
    if not channels:
        raise ValueError(f"{path}: {NO_WAV}: it has no channels")
    return channels, rate, -(-bits // 8)
