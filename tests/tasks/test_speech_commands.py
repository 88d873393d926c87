"""Speech Commands on small files in the published format: splits, padding, statistics, and malformed files."""

from __future__ import annotations

import os
import re
import shutil
import struct
import wave

import numpy as np
import pytest

from rotrnn.tasks import SpeechCommands, describe
from rotrnn.tasks.speech_commands import WORDS, moments, read_wav

pytestmark = pytest.mark.filterwarnings("ignore:.*not the whole published data set")

rng = np.random.default_rng(0)
ORDER = (
    *("bed", "cat", "down", "five", "forward", "go", "house", "left", "marvin", "no", "on", "right", "sheila", "tree"),
    *("up", "visual", "yes", "backward", "bird", "dog", "eight", "follow", "four", "happy", "learn", "nine", "off"),
    *("one", "seven", "six", "stop", "three", "two", "wow", "zero"),
)


def write_clip(path, samples, *, channels=1, width=2, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())


@pytest.fixture(scope="module")
def clips():
    """Returns samples by name (three clips of each of four words, two of them short), and the listed clips by split."""
    names = [f"{word}/{i:08x}_nohash_{i}.wav" for word in ("zero", "bed", "wow", "happy") for i in range(3)]
    sizes = {"bed/00000001_nohash_1.wav": 11_146, "zero/00000000_nohash_0.wav": 1}
    some = {name: rng.integers(-(2**15), 2**15, sizes.get(name, 16_000), np.int16) for name in names}
    return some, {"validation": names[1::6], "testing": names[2::6]}


def write_folder(folder, clips):
    some, listed = clips
    for name, samples in some.items():
        write_clip(folder / name, samples)
    for name, names in listed.items():
        (folder / f"{name}_list.txt").write_text("".join(f"{one}\n" for one in names), encoding="utf-8")
    write_clip(folder / "_background_noise_" / "pink_noise.wav", np.zeros(70_000, np.int16))
    (folder / "README.md").write_text("about", encoding="utf-8")


def everything(split):
    return split.batch(np.arange(len(split)), np.float64)


def padded(samples):
    return np.concatenate([samples, np.zeros(16_000 - len(samples))]) / 2**15


@pytest.mark.parametrize(
    "inside", ["", "speech_commands_v0.02", "SpeechCommands", "SpeechCommands/speech_commands_v0.02"]
)
def test_partitions_and_labels(tmp_path, clips, inside):
    """Every clip is in exactly one split, ordered by class, then by name."""
    write_folder(tmp_path / inside, clips)
    with pytest.warns(UserWarning, match="train 8 instead of 84843, val 2 instead of 9981, test 2 instead of 11005"):
        task = SpeechCommands(data_dir=str(tmp_path), normalise="data").load()
    some, listed = clips
    for split, name in ((task.val, "validation"), (task.test, "testing"), (task.train, None)):
        others = [one for names in listed.values() for one in names]
        names = listed[name] if name else [one for one in some if one not in others]
        names = sorted(names, key=lambda one: (ORDER.index(one.split("/")[0]), one))
        assert everything(split).labels.tolist() == [ORDER.index(one.split("/")[0]) for one in names]
    assert len(task.train) + len(task.val) + len(task.test) == len(some)
    assert (task.n_classes, task.n_features, task.labels) == (35, 1, WORDS)
    assert WORDS == ORDER
    assert "speech_commands: 35 classes" in describe(task)


def split_names(clips):
    some, listed = clips
    others = [one for names in listed.values() for one in names]
    by_class = sorted(some, key=lambda one: (ORDER.index(one.split("/")[0]), one))
    return [one for one in by_class if one not in others], [one for one in by_class if one in listed["testing"]]


def test_the_published_normalisation(tmp_path, clips):
    """S5's normalisation: divided by 2**15 again, then normalised at each step with the epsilon, from the training
    clips."""
    write_folder(tmp_path, clips)
    task = SpeechCommands(data_dir=str(tmp_path)).load()
    train, test = split_names(clips)
    x = np.stack([padded(clips[0][name]) / 2**15 for name in train])
    mean, std = x.mean(0), x.std(0, ddof=1)
    for split, names in ((task.train, train), (task.test, test)):
        y = np.stack([padded(clips[0][name]) / 2**15 for name in names])
        batch = everything(split)
        assert batch.inputs.shape == (len(names), 16_000, 1)
        assert batch.lengths is None
        np.testing.assert_allclose(batch.inputs[:, :, 0], (y - mean) / (std + 1e-5), rtol=1e-9, atol=1e-12)
    assert 0 < everything(task.train).inputs.std() < 1  # uniform noise of deviation 0.58 becomes 0.58 / (0.58 + 0.33)


def test_normalisation_of_the_data_set(tmp_path, clips):
    write_folder(tmp_path, clips)
    task = SpeechCommands(data_dir=str(tmp_path), normalise="data").load()
    x = everything(task.train).inputs
    assert abs(x.mean()) <= 1e-12
    assert x.var() == pytest.approx(1, abs=1e-12)
    short = split_names(clips)[0].index("zero/00000000_nohash_0.wav")
    assert len(set(x[short, 1:, 0].tolist())) == 1  # zeros behind, at the end


def test_half_the_rate_is_every_second_sample(tmp_path, clips):
    write_folder(tmp_path, clips)
    for normalise in ("step", "data"):
        full = SpeechCommands(data_dir=str(tmp_path), normalise=normalise).load()
        half = SpeechCommands(data_dir=str(tmp_path), normalise=normalise, rate=8000).load()
        for ours, theirs in ((half.train, full.train), (half.test, full.test)):
            np.testing.assert_array_equal(everything(ours).inputs, everything(theirs).inputs[:, ::2])
            np.testing.assert_array_equal(everything(ours).labels, everything(theirs).labels)


def test_batch(tmp_path, clips):
    write_folder(tmp_path, clips)
    split = SpeechCommands(data_dir=str(tmp_path)).load().train
    batch = split.batch(np.array([3, 0, 3]))
    assert batch.inputs.dtype == np.float32
    whole = everything(split)
    eps = np.finfo(np.float32).eps  # of a quotient of about 1, and of the mean that is taken from the sample
    np.testing.assert_allclose(batch.inputs, whole.inputs[[3, 0, 3]], rtol=4 * eps, atol=8 * eps)
    assert batch.labels.tolist() == whole.labels[[3, 0, 3]].tolist()


def test_moments_are_exact(clips):
    """Over several parts of rows, compared with higher precision."""
    x = rng.integers(-(2**15), 2**15, (2500, 3), np.int16)
    x[:, 1] = -(2**15)
    wide = x.astype(np.longdouble) / 2**15
    mean, std = moments(x, rows=1000)
    np.testing.assert_allclose(mean, wide.mean(0).astype(float), rtol=0, atol=1e-15)
    np.testing.assert_allclose(std, wide.std(0, ddof=1).astype(float), rtol=1e-13, atol=1e-15)
    assert std[1] == 0
    assert moments(x[:1])[1].tolist() == [0, 0, 0]


# ---- malformed data ----


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"rate": 8000}, r"has 1 channel\(s\) of 16 bits at 8000 Hz, expected 1 of 16 at 16000"),
        ({"width": 1}, r"has 1 channel\(s\) of 8 bits at 16000 Hz"),
        ({"channels": 2}, r"has 2 channel\(s\) of 16 bits at 16000 Hz"),
        ({"width": 4}, r"has 1 channel\(s\) of 32 bits"),
        ({"size": 16_001}, "has 16001 samples, expected at most 16000"),
    ],
)
def test_clips_of_another_kind(tmp_path, clips, about, message):
    write_folder(tmp_path, clips)
    path = tmp_path / "bed" / "00000000_nohash_0.wav"
    write_clip(path, np.zeros(about.pop("size", 1000), np.int16), **about)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: {message}"):
        SpeechCommands(data_dir=str(tmp_path)).load()
    assert os.listdir(tmp_path / ".rotrnn") == [".lock"]


def test_cut_and_damaged_clips(tmp_path):
    path = tmp_path / "clip.wav"
    write_clip(path, rng.integers(-9, 9, 16_000, np.int16))
    whole = path.read_bytes()
    np.testing.assert_array_equal(read_wav(path), np.frombuffer(whole, "<i2", offset=44))
    for size in (0, 3, 20, 43, 44, 45, 1000, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            ValueError, match=rf"^{re.escape(str(path))}: is (not a WAV file, or is truncated: .|truncated, with)"
        ):
            read_wav(path)
    for content in (
        b"fLaC" + whole[4:],  # another format
        whole[:4] + struct.pack("<I", 20) + whole[8:],  # chunks that go on after the end of the file's own
        whole[:12] + b"fmtx" + struct.pack("<I", 2**31) + whole[20:],
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: is not a WAV file"):
            read_wav(path)
    path.write_bytes(whole[:20] + struct.pack("<H", 6) + whole[22:])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: has samples in the format 6 \(A-law\), expected "):
        read_wav(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bed/none.wav", "line 3: there is no clip 'bed/none.wav'"),
        ("bed/00000", "line 3: there is no clip 'bed/00000'"),  # a line cut in half
        ("", "line 3: there is no clip ''"),
        ("zebra/00000000_nohash_0.wav", "line 3: there is no clip 'zebra/"),
        ("../bed/00000000_nohash_0.wav", "line 3: there is no clip '../bed"),
        ("zero/00000001_nohash_1.wav", "line 3: zero/00000001_nohash_1.wav is already listed, for val"),
        (
            "zero/00000002_nohash_2.wav",
            "testing_list.txt, line 1: zero/00000002_nohash_2.wav is already listed, for val",
        ),
        ("caf\udcc3", r"line 3: there is no clip 'caf\\\\xc3'"),
    ],
)
def test_malformed_lists(tmp_path, clips, line, message):
    write_folder(tmp_path, clips)
    path = tmp_path / "validation_list.txt"
    path.write_bytes(path.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
    place = message if message.startswith("testing") else f"validation_list.txt, {message}"
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}/{place}"):
        SpeechCommands(data_dir=str(tmp_path)).load()


def test_unknown_class_folder_and_missing_list(tmp_path, clips):
    write_folder(tmp_path, clips)
    (tmp_path / "processed_data").mkdir()  # of S4 and S5
    (tmp_path / "processed_data" / "train.pt").write_bytes(b"")
    SpeechCommands(data_dir=str(tmp_path)).load()
    (tmp_path / "zebra").mkdir()
    (tmp_path / "zebra" / "0_nohash_0.wav").write_bytes(b"")
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(tmp_path))}/zebra: is not a class, expected one of bed, cat"
    ):
        SpeechCommands(data_dir=str(tmp_path)).load()
    shutil.rmtree(tmp_path / "zebra")
    (tmp_path / "testing_list.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"testing_list\.txt"):
        SpeechCommands(data_dir=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 11025}, "SpeechCommands: rate is 11025, expected 16000 or 8000"),
        ({"normalise": "none"}, "SpeechCommands: normalise is 'none', expected one of step, data"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        SpeechCommands(**settings)


@pytest.mark.filterwarnings("error")
def test_moments_of_no_clip():
    np.testing.assert_array_equal(moments(np.zeros((0, 5), np.int16)), np.zeros((2, 5)))
