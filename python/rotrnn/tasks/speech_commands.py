"""Speech Commands: which of 35 words is spoken in one second of raw audio?"""

from __future__ import annotations

import os
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import atomic_file, read_file
from rotrnn.tasks.audio import read_recording
from rotrnn.tasks.prepared import Forms, Store
from rotrnn.tasks.released import Release, Released, Source, compare
from rotrnn.tasks.task import Batch, Index, Shape, Split, Task

# the hash is from TensorFlow Datasets (speech_commands/checksums.tsv) and torchaudio
ARCHIVE = "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
SHA256 = "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58"
WORDS = (
    *("bed", "cat", "down", "five", "forward", "go", "house", "left", "marvin", "no", "on", "right", "sheila", "tree"),
    *("up", "visual", "yes", "backward", "bird", "dog", "eight", "follow", "four", "happy", "learn", "nine", "off"),
    *("one", "seven", "six", "stop", "three", "two", "wow", "zero"),
)
"""The classes, in the order of S4 and S5."""

NOISE = "_background_noise_"
LISTS = {"val": "validation_list.txt", "test": "testing_list.txt"}
CLIPS = {"train": 84_843, "val": 9_981, "test": 11_005}
RATE = 16_000
SAMPLES = 16_000
FULL = 2**15  # int16 value of a sample of 1.0
EPSILON = 1e-5
NORMALISATIONS = ("step", "data")


@dataclass(frozen=True)
class SpeechCommands(Released):
    """Clips of one second (Warden 2018, version 0.02): 16,000 samples, zero-padded at the end, in 35 classes.

    The published files are ``<word>/<speaker>_nohash_<n>.wav`` (16 kHz, mono, 16 bits), validation_list.txt and
    testing_list.txt. The lines ``<word>/<file>`` of the lists name the clips of the validation and test splits; all
    others are for training. The parameters `data_dir`, `download` and `cache_dir` are documented in
    `rotrnn.tasks.released.Released`.

    Parameters
    ----------
    rate : int
        Sampling rate in Hz: 16000; or 8000, which takes every second sample without filtering, to test a model that was
        trained at 16000.
    normalise : str
        "step", as in S4 and S5: samples in [-1, 1] are divided by 2**15 a second time. Then, at each of the 16,000
        steps, their mean is subtracted and they are divided by their standard deviation + 1e-5. That deviation is so
        small that the result equals (x - mean) / (deviation + 0.328) in terms of the samples in [-1, 1], and the
        model's input has a deviation far below 1. "data" uses one mean and one deviation for all steps. Both are
        computed from the training clips.
    """

    rate: int = RATE
    normalise: str = "step"

    release: ClassVar[Release] = Release(
        (Source({ARCHIVE: SHA256}, "."),),
        marks=tuple(LISTS.values()),
        places=("speech_commands_v0.02", ".", "SpeechCommands/speech_commands_v0.02", "SpeechCommands"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate not in (RATE, RATE // 2):
            raise ValueError(f"SpeechCommands: rate is {self.rate}, expected {RATE} or {RATE // 2}")
        if self.normalise not in NORMALISATIONS:
            raise ValueError(
                f"SpeechCommands: normalise is {self.normalise!r}, expected one of {', '.join(NORMALISATIONS)}"
            )

    @property
    def shape(self) -> Shape:
        """35 classes, one feature."""
        return Shape(len(WORDS), None, 1)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of clips in the published lists."""
        return CLIPS

    def load(self) -> Task:
        """Returns the task. The first call prepares its arrays."""
        folder = self.folder()
        clips = _clips(folder)
        lists = {name: folder / file for name, file in LISTS.items()}

        def make(store: Store) -> None:
            for name, rows in _divided(clips, lists).items():
                labels = store.array(f"{name}_labels", (len(rows),), np.uint8)
                samples = store.array(f"{name}_samples", (len(rows), SAMPLES), np.int16)
                for i, clip in enumerate(rows):
                    labels[i] = WORDS.index(clip.split("/")[0])
                    sound = read_wav(clips[clip])
                    samples[i, : len(sound)] = sound
                if name == "train":
                    store.array("moments", (2, SAMPLES), np.float64)[:] = moments(samples)

        forms: Forms = {"moments": ("f8", 2, SAMPLES)}
        for name in CLIPS:
            forms |= {f"{name}_labels": ("u1", name), f"{name}_samples": ("i2", name, SAMPLES)}
        arrays = self.prepare("speech-commands", [*lists.values(), *clips.values()], make, forms)
        compare("SpeechCommands", folder, {name: len(arrays[f"{name}_labels"]) for name in CLIPS}, CLIPS)
        mean, deviation = arrays["moments"]
        if self.normalise == "step":
            scale = deviation + FULL * EPSILON
        else:
            n, overall = len(arrays["train_labels"]), mean.mean()
            variance = (deviation**2 * (n - 1) / n + (mean - overall) ** 2).mean()
            mean, scale = np.full((2, SAMPLES), [[overall], [np.sqrt(variance)]])

        def split(name: str) -> SpeechCommandsSplit:
            every = RATE // self.rate
            return SpeechCommandsSplit(arrays[f"{name}_samples"], arrays[f"{name}_labels"], mean, scale, every)

        return Task(
            "speech_commands", split("train"), split("val"), split("test"), **self.shape._asdict(), labels=WORDS
        )

    def write_random(self, folder: str | os.PathLike[str], examples: int) -> None:
        """Writes `examples` clips of noise for each split."""
        rng = np.random.default_rng(0)
        place = Path(folder, "speech_commands_v0.02")
        listed: dict[str, list[str]] = {name: [] for name in CLIPS}
        for i in range(examples):
            for number, names in enumerate(listed.values()):
                word = WORDS[i % len(WORDS)]
                names.append(f"{word}/{i:08x}_nohash_{number}.wav")
                (place / word).mkdir(parents=True, exist_ok=True)
                write_wav(place / names[-1], rng.integers(-FULL // 8, FULL // 8, SAMPLES, np.int16))
        for name, file in LISTS.items():
            with atomic_file(place / file) as out:
                out.write("".join(f"{clip}\n" for clip in listed[name]).encode())


@dataclass(frozen=True)
class SpeechCommandsSplit(Split):
    """Clips (n, 16000) int16, normalised when a batch is drawn. Only every `every`-th sample is used."""

    samples: npt.NDArray[np.int16]
    labels: npt.NDArray[np.uint8]
    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    every: int

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the clips at `index`: (B, 16000 / every, 1) in `dtype`, all of the same length."""
        steps = slice(None, None, self.every)
        x: npt.NDArray[Any] = self.samples[index][:, steps].astype(dtype)
        x /= np.asarray(FULL, dtype)
        x -= self.mean[steps].astype(dtype)
        x /= self.scale[steps].astype(dtype)
        return Batch(x[:, :, None], self.labels[index].astype(np.int64), None)


def moments(samples: npt.NDArray[np.int16], rows: int = 1024) -> npt.NDArray[np.float64]:
    """Returns mean and standard deviation (2, T) of samples (n, T) at each step, scaled to samples in [-1, 1].

    The deviation divides by n - 1, as in PyTorch. Sums of samples and of their squares are exact integers.
    """
    n = len(samples)
    total, squares = np.zeros((2, samples.shape[1]), np.int64)
    for i in range(0, n, rows):
        part = samples[i : i + rows].astype(np.int64)
        total += part.sum(0)
        squares += (part * part).sum(0)
    mean = total / max(1, n)
    variance = (squares - total * mean) / max(1, n - 1)
    return np.stack([mean, np.sqrt(np.maximum(variance, 0))]) / FULL


# ---- files ----


def _clips(folder: Path) -> dict[str, Path]:
    """Returns the path of every clip ``<word>/<file>``, in the order of `WORDS`, then by name.

    ValueError if the name of a folder with clips is not one of the words; others, such as the processed_data of S4 and
    S5, are left alone.
    """
    for path in sorted(folder.iterdir()):
        known = path.name.startswith(".") or path.name in (*WORDS, NOISE)
        if not known and path.is_dir() and any(path.glob("*.wav")):
            raise ValueError(f"{path}: is not a class, expected one of {', '.join(WORDS)}")
    words = (folder / word for word in WORDS)
    return {f"{word.name}/{path.name}": path for word in words for path in sorted(word.glob("[!.]*.wav"))}


def _divided(clips: dict[str, Path], lists: dict[str, Path]) -> dict[str, list[str]]:
    """Returns the clips of each split, in the order of `clips`.

    ValueError, with file and line, if a line of a list names no clip or repeats one.
    """
    where: dict[str, str] = {}
    for name, path in lists.items():
        for number, line in enumerate(read_file(path).splitlines(), 1):
            clip = line.decode(errors="backslashreplace")
            if clip not in clips:
                raise ValueError(f"{path}, line {number}: there is no clip {clip!r}")
            if clip in where:
                raise ValueError(f"{path}, line {number}: {clip} is already listed, for {where[clip]}")
            where[clip] = name
    return {name: [clip for clip in clips if where.get(clip, "train") == name] for name in CLIPS}


def read_wav(path: str | os.PathLike[str]) -> npt.NDArray[np.int16]:
    """Reads the samples of a published clip, at most 16,000. ValueError if the file has another format, is truncated or
    is damaged."""
    channels, bits, rate, n, content = read_recording(path, SAMPLES)
    if (channels, bits, rate) != (1, 16, RATE):
        raise ValueError(f"{path}: has {channels} channel(s) of {bits} bits at {rate} Hz, expected 1 of 16 at {RATE}")
    if n > SAMPLES:
        raise ValueError(f"{path}: has {n} samples, expected at most {SAMPLES}")
    return np.frombuffer(content, "<i2").astype(np.int16)


def write_wav(path: str | os.PathLike[str], samples: npt.NDArray[np.int16]) -> None:
    """The inverse of `read_wav`."""
    with atomic_file(path) as file, wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(samples.astype("<i2").tobytes())
