"""The programs of examples/c: they write what the Python stream gives, and refuse what they cannot read."""

from __future__ import annotations

import functools
import os
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import librotrnn
import rotrnn
from librotrnn import ROOT, Array
from rotrnn.nn.layer import astype
from rotrnn.tasks import Digits

pytestmark = pytest.mark.skipif(
    not (ROOT / "csrc").exists() or not shutil.which("make"), reason="needs the sources, and make"
)
SANITIZED = "-fsanitize" in os.environ.get("LIB_CFLAGS", "")
SOURCES = ROOT / "examples" / "c"
FOLDER = Path(librotrnn.FOLDER).with_name("examples")
NAMES = ("complete", "effect", "digits")


@functools.cache
def program(name: str) -> str:
    librotrnn.make("programs", makefile="examples/c/Makefile", EXAMPLES=str(FOLDER))
    return str(ROOT / FOLDER / name)


def run(name: str, *arguments: str | bytes | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    env["ASAN_OPTIONS"] = "detect_leaks=0"  # a program that ends with an error leaves its memory to the system
    words = [one if isinstance(one, bytes) else str(one) for one in arguments]
    done = subprocess.run([program(name), *words], input=given, capture_output=True, env=env)
    assert done.returncode in (0, 1, 2), done.stderr  # not a signal, nor a sanitizer
    assert b"Sanitizer" not in done.stderr
    assert bool(done.stderr) == (done.returncode != 0)
    return done


def file_of(name: str) -> Path:
    return SOURCES / f"{name}.safetensors"


@functools.cache
def script(name: str) -> dict[str, Any]:
    """What a training script defines."""
    return runpy.run_path(str(SOURCES / f"{name}.py"))


@pytest.mark.parametrize("name", NAMES)
def test_models_are_small(name: str) -> None:
    assert file_of(name).stat().st_size <= 200_000


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_a_model_of_that_form(name: str, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    subprocess.run([sys.executable, SOURCES / f"{name}.py", "--steps", "2", "--out", out], check=True)
    assert rotrnn.load(out).model == rotrnn.load(file_of(name)).model


@pytest.mark.skipif(not sys.platform.startswith("linux") or not shutil.which("strip"), reason="as Linux has programs")
@pytest.mark.skipif(SANITIZED, reason="the sanitizer takes room")
@pytest.mark.parametrize("name", NAMES)
def test_programs_are_small(name: str, tmp_path: Path) -> None:
    subprocess.run(["strip", "-o", tmp_path / name, program(name)], check=True)
    assert (tmp_path / name).stat().st_size <= 300_000


# ---- complete ----


def drawn(temperature: float, seed: int) -> Callable[[Array], int]:
    """The draws of complete.c: SplitMix64, and the inverse of the distribution function."""
    mask, state = 2**64 - 1, seed

    def draw(logits: Array) -> int:
        nonlocal state
        if temperature == 0:
            return int(logits.argmax())
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        share = ((z ^ z >> 31) >> 11) * 2.0**-53
        weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
        return int((np.cumsum(weights) > share * weights.sum()).argmax())

    return draw


def completed(prompt: bytes, count: int, draw: Callable[[Array], int]) -> bytes:
    """A text that goes on as the Python stream says."""
    model, params = rotrnn.load(file_of("complete"))
    stream = model.stream(params)
    given = np.frombuffer(b"\n" + prompt, np.uint8).astype(np.int64)
    logits = stream.push(np.where(given < 128, given, ord("?"))[None])[0, -1]
    text = []
    for _ in range(count):
        text.append(draw(logits))
        logits = stream.push(np.array(text[-1:]))[0]
    return bytes(text)


@pytest.mark.parametrize(("temperature", "seed"), [(0, 0), (0.5, 1), (1, 2**40 + 3)])
def test_a_text_is_that_of_the_python_stream(temperature: float, seed: int) -> None:
    """Two logits, or a sum of weights and a draw, would have to agree to rounding, some 1e-6, for another character."""
    for prompt in ("The gradient of", "", "naïve"):
        done = run("complete", "-t", str(temperature), "-s", str(seed), file_of("complete"), "120", prompt.encode())
        expected = completed(prompt.encode(), 120, drawn(temperature, seed))
        assert done.stdout == expected + b"\n"


def test_the_seed_and_standard_input() -> None:
    arguments = (file_of("complete"), "80")
    texts = [run("complete", "-s", seed, *arguments, "A layer").stdout for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    assert run("complete", "-s", "1", *arguments, given=b"A layer").stdout == texts[0]
    assert run("complete", file_of("complete"), "0", "x").stdout == b"\n"


@pytest.mark.parametrize(
    "arguments",
    ["", "MODEL", "MODEL -1 x", "MODEL 1e10 x", "MODEL 5x x", "MODEL 1.7 x", "MODEL 5 x y", "-t -1 MODEL 5 x",
     "-t nan MODEL 5 x", "-t", "-s 1.5e300 MODEL 5 x", "-s 1.5 MODEL 5 x", "-q MODEL 5 x"],
)  # fmt: skip
def test_complete_tells_its_usage(arguments: str) -> None:
    done = run("complete", *(str(file_of("complete")) if one == "MODEL" else one for one in arguments.split()))
    assert done.returncode == 2
    assert b"usage: complete" in done.stderr
    assert not done.stdout


# ---- every program ----


def with_model(name: str, model: Path, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """The program, called as it should be, with any file as its model."""
    sound = folder / "sound.wav"
    sound.write_bytes(wav(np.zeros(4, np.float32)))
    return run(name, model, *{"complete": ["3", "x"], "effect": [sound, folder / "out.wav"], "digits": []}[name])


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_not_its_model(name: str, tmp_path: Path) -> None:
    assert with_model(name, file_of(name), tmp_path).returncode == 0
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file_of(name).read_bytes()[:-1])
    for other in (tmp_path / "none", tmp_path, cut, *(file_of(one) for one in NAMES if one != name)):
        done = with_model(name, other, tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"{name}: ".encode())
        assert not done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="as Linux has a full disk")
@pytest.mark.parametrize(
    ("name", "arguments", "given"),
    [("complete", ["3", "x"], ""), ("digits", [], "3 " * 64)],
    ids=["complete", "digits"],
)
def test_output_that_cannot_be_written_is_an_error(name: str, arguments: list[str], given: str) -> None:
    with open("/dev/full", "wb") as full:
        command = [program(name), str(file_of(name)), *arguments]
        done = subprocess.run(command, input=given.encode(), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: the ".encode())
    assert done.stderr.endswith(b" cannot be written\n")


# ---- effect ----


def wav(samples: Array, rate: int = 48_000, channels: int = 1, before: bytes = b"", extensible: bool = False) -> bytes:
    """A WAV file of int16 or float32 samples; `before` are chunks before the samples."""
    kind, width = (1, 2) if samples.dtype == np.int16 else (3, 4)
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * width * channels, width * channels, 8 * width)
    if extensible:
        form = struct.pack("<H", 0xFFFE) + form[2:] + struct.pack("<HHIH14x", 22, 8 * width, 4, kind)
    data = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    chunks = struct.pack("<4sI", b"fmt ", len(form)) + form + before + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks


def heard(path: Path) -> Array:
    """The samples of a file that effect wrote, whose whole head is as it should be."""
    content = path.read_bytes()
    samples = np.frombuffer(content[44:], "<f4")
    assert content == wav(samples)
    return samples


def played(folder: Path, content: bytes) -> tuple[Array, str]:
    (folder / "in.wav").write_bytes(content)
    done = run("effect", file_of("effect"), folder / "in.wav", folder / "out.wav")
    assert done.returncode == 0, done.stderr
    return heard(folder / "out.wav"), done.stdout.decode()


def test_the_effect_is_the_python_stream(tmp_path: Path) -> None:
    """To rounding: as many roundings in another order, and transitions that are computed in double precision, err less
    than four times as much as the Python stream in float32; 2^-22 is two roundings of the last sum."""
    model, params = rotrnn.load(file_of("effect"))
    x = script("effect")["sounds"](np.random.default_rng(7), 1, 5000)[0].astype(np.float32)
    expected = model.stream(astype(params, np.float64)).push(x[None, :, None].astype(np.float64))[0, :, 0]
    single = model.stream(params).push(x[None, :, None])[0, :, 0]
    got, table = played(tmp_path, wav(x))
    assert got.shape == x.shape
    bound = 4 * np.abs(single - expected).max() + 2.0**-22 * np.abs(expected).max()
    assert np.abs(got - expected).max() <= bound
    rows = [[float(word) for word in line.split()] for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == [32, 64, 128, 256, 512]
    for block, deadline, median, worst, missed in rows:
        assert deadline == pytest.approx(1e6 * block / 48_000, abs=0.06)
        assert 0 < median <= worst
        assert (missed > 0) == (worst > deadline) or abs(worst - deadline) < 0.2  # printed to a tenth
        assert 0 <= missed <= np.ceil(5000 / block)


def test_the_effect_imitates_the_filter(tmp_path: Path) -> None:
    """On sounds that it did not learn from. Silence has an error of 0 dB, and the best linear filter, which was made
    for these very sounds, is worse: the distortion was learnt."""
    names = script("effect")
    x = names["sounds"](np.random.default_rng(8), 12, 4000).astype(np.float32)
    wanted = names["ladder"](x.astype(np.float64))
    got = np.stack([played(tmp_path, wav(one))[0] for one in x])
    linear = names["error_db"](names["best_linear"](x.astype(np.float64), wanted), wanted)
    assert names["error_db"](got, wanted) < linear - 6 < -20


def test_forms_of_wav_files(tmp_path: Path) -> None:
    """The same samples as integers, as floats, with a chunk of odd size in between, and in the extensible form."""
    integers = np.random.default_rng(0).integers(-(2**15), 2**15, 700).astype(np.int16)
    floats = integers.astype(np.float32) / 2**15
    expected, _ = played(tmp_path, wav(integers))
    odd = struct.pack("<4sI", b"LIST", 3) + b"abc\0"
    others = wav(floats), wav(integers, before=odd), wav(integers, extensible=True), wav(floats, extensible=True)
    for content in others:
        assert np.array_equal(played(tmp_path, content)[0], expected)
    for count in (0, 1, 31, 33):
        assert np.array_equal(played(tmp_path, wav(floats[:count]))[0], expected[:count])


def test_another_rate_is_reported(tmp_path: Path) -> None:
    """And the samples are the same, because a model knows no rate."""
    rate = script("effect")["RATE"]
    x = np.sin(np.arange(100, dtype=np.float32))
    expected, table = played(tmp_path, wav(x))
    assert "samples a second" not in table
    (tmp_path / "in.wav").write_bytes(wav(x, 44_100))
    done = run("effect", file_of("effect"), tmp_path / "in.wav", tmp_path / "out.wav")
    assert f"in.wav has 44100 samples a second: the model learnt from {rate}" in done.stdout.decode()
    assert (tmp_path / "out.wav").read_bytes() == wav(expected, 44_100)


def test_wav_files_that_are_not_right(tmp_path: Path) -> None:
    sound, silence = np.linspace(-1, 1, 6, dtype=np.float32), np.zeros(4, np.float32)
    whole = wav(sound)
    cases = {
        "not a WAV file": [b"", b"RIFF", b"\0" * 100, whole[:8] + b"AVI " + whole[12:]],
        "says its format": [whole[:16] + b"\xff\xff\xff\xff" + whole[20:], whole[:12], whole[:16] + b"\0" + whole[17:]],
        "chunk of samples": [whole[:-1], whole[:36], whole[:40] + b"\xff\xff\xff\x7f" + whole[44:]],
        "several channels": [wav(sound, channels=2), wav(sound, channels=0)],
        "another kind": [whole[:34] + b"\x18" + whole[35:], whole[:20] + b"\x07" + whole[21:]],
        "within a sample": [whole[:40] + b"\x17" + whole[41:]],
        "rate of 0": [wav(sound, rate=0)],
        "not numbers": [wav(np.where(silence == 0, np.float32(bad), silence)) for bad in (np.nan, np.inf)],
    }
    (tmp_path / "out.wav").write_bytes(b"before")
    for words, contents in cases.items():
        for content in contents:
            (tmp_path / "in.wav").write_bytes(content)
            done = run("effect", file_of("effect"), tmp_path / "in.wav", tmp_path / "out.wav")
            assert done.returncode == 1
            assert words in done.stderr.decode()
    assert (tmp_path / "out.wav").read_bytes() == b"before"


def test_every_byte_of_a_head_changed_and_every_length(tmp_path: Path) -> None:
    """The program ends by itself, whatever the file says; with the sanitizers it reads nothing beyond it."""
    whole = wav(np.linspace(-1, 1, 6, dtype=np.float32))
    rng = np.random.default_rng(0)
    changed = [whole[:i] + bytes([whole[i] ^ 1 << int(rng.integers(8))]) + whole[i + 1 :] for i in range(44)]
    for content in [*changed, *(whole[:size] for size in range(0, len(whole), 3))]:
        (tmp_path / "in.wav").write_bytes(content)
        run("effect", file_of("effect"), tmp_path / "in.wav", tmp_path / "out.wav")


def test_files_that_the_effect_cannot_read_or_write(tmp_path: Path) -> None:
    (tmp_path / "in.wav").write_bytes(wav(np.zeros(4, np.float32)))
    for source, target in (("none", "out.wav"), (".", "out.wav"), ("in.wav", "none/out.wav"), ("in.wav", ".")):
        done = run("effect", file_of("effect"), tmp_path / source, tmp_path / target)
        assert done.returncode == 1
        assert b"cannot be" in done.stderr
    assert run("effect", file_of("effect")).returncode == 2


# ---- digits ----


@pytest.mark.slow
def test_digits_are_those_of_the_python_stream(tmp_path: Path) -> None:
    """All images of the test split, as they are: pixels from 0 to 16. Six decimals are printed."""
    model, params = rotrnn.load(file_of("digits"))
    Digits().write(tmp_path)
    table = np.loadtxt(tmp_path / "digits_test.csv", delimiter=",", skiprows=1)
    images, labels = table[:, :-1], table[:, -1]
    done = run("digits", file_of("digits"), given="\n".join(" ".join(map(str, one)) for one in images).encode())
    rows = np.array([[float(word) for word in line.split()] for line in done.stdout.splitlines()])
    logits, _ = model.forward(astype(params, np.float64), images[..., None])
    expected = np.exp(logits - logits.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    assert np.abs(rows[:, 1:] - expected).max() < 1e-4  # logits of some 10 in float32
    assert np.array_equal(rows[:, 0], rows[:, 1:].argmax(1))
    assert np.mean(rows[:, 0] == labels) >= 0.96


@pytest.mark.parametrize("given", ["1 2 3", "x", "17 " * 64, "-1 " * 64, "nan " * 64, "0 " * 65])
def test_numbers_that_are_no_images(given: str) -> None:
    done = run("digits", file_of("digits"), given=given.encode())
    assert done.returncode == 1
    assert b"expected images of 64 numbers" in done.stderr
    assert run("digits").returncode == 2
