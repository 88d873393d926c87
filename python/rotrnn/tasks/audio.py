"""WAV files by the standard library."""

from __future__ import annotations

import os
import re
import struct
import wave
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import open_file

FORMATS = {
    2: "ADPCM", 3: "floating-point numbers", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3", 65534: "extensible",
}  # fmt: skip
"""Formats of samples that are not read, by their number in the header."""


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
    try:
        with open_file(path) as whole, wave.open(whole, "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            n = file.getnframes()  # a number of the header, whatever the file's size
            read = n if most is None else min(n, most)
            there = os.fstat(whole.fileno()).st_size // max(1, width * channels)
            content = file.readframes(min(read, there + 1))  # a request takes its memory before it reads
    except (wave.Error, EOFError, RuntimeError, struct.error) as error:  # the last two if a chunk's size is damaged
        if found := re.match(r"unknown (?:format: (\d+)|extended format)", str(error)):
            number = int(found[1] or 65534)
            got = f"samples in the format {number}" + (f" ({FORMATS[number]})" if number in FORMATS else "")
            raise ValueError(f"{path}: has {got}, expected integers (PCM) of 8, 16, 24 or 32 bits") from error
        raise ValueError(
            f"{path}: is not a WAV file, or is truncated: {str(error) or 'it ends in its header'}"
        ) from error
    if not 1 <= width <= 4:
        raise ValueError(f"{path}: has {8 * width} bits a sample, expected 8, 16, 24 or 32")
    expected = read * width * channels
    if len(content) != expected:
        raise ValueError(f"{path}: is truncated, with {len(content)} bytes of audio, expected {expected}")
    return Recording(channels, 8 * width, rate, n, content)
