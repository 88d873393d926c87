"""Checkpoints: deterministic bytes, detection of every kind of damage, and no loss when writing fails."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint

ARRAYS = {
    "params.w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "params.scalar": np.array(0.5, np.float32),
    "params.wide": np.linspace(0, 1, 5),
    "params.none": np.zeros((0, 4), np.float32),
    "m.w": -np.arange(6, dtype=np.float32).reshape(2, 3),
}
FACTS = {"step": 12, "recipe": "digest", "best_accuracy": 0.1 + 0.2}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "last.safetensors"
    write_checkpoint(path, ARRAYS, FACTS)
    return path


def test_gives_back_what_was_written(path):
    arrays, facts = read_checkpoint(path, ARRAYS)
    assert facts == FACTS
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].flags.writeable
        np.testing.assert_array_equal(arrays[name], array)
    assert os.listdir(path.parent) == [path.name]


def test_same_content_gives_same_bytes(path, tmp_path):
    other = tmp_path / "other"
    write_checkpoint(
        other,
        {name: np.array(ARRAYS[name], order="F") for name in reversed(ARRAYS)},
        dict(reversed(FACTS.items())),
    )
    assert other.read_bytes() == path.read_bytes()
    write_checkpoint(other, {name: one.astype(one.dtype.newbyteorder(">")) for name, one in ARRAYS.items()}, FACTS)
    assert other.read_bytes() == path.read_bytes()


def test_any_changed_byte_is_found(path):
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"last\.safetensors: "):
            read_checkpoint(path)


def test_any_truncation_is_found(path):
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"last\.safetensors: is truncated"):
            read_checkpoint(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(ValueError, match="is truncated"):
        read_checkpoint(path)


def test_a_value_exchanged_inside_is_found(path):
    """Two arrays exchanged: a valid safetensors file, but not the one that was written."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    path.write_bytes(save({**ARRAYS, "m.w": ARRAYS["params.w"]}, metadata))
    with pytest.raises(ValueError, match="does not match its checksum"):
        read_checkpoint(path)


def without(name):
    return {key: array for key, array in ARRAYS.items() if key != name}


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({**ARRAYS, "params.more": np.zeros(2)}, "lacks params.more"),
        (without("m.w"), "has m.w, which is not expected"),
        ({**ARRAYS, "m.w": np.zeros((3, 2), np.float32)}, r"m.w has shape \(2, 3\) .* expected \(3, 2\)"),
        ({**ARRAYS, "m.w": np.zeros((2, 3))}, "m.w has shape .* and dtype float32, expected .* and float64"),
    ],
)
def test_what_is_not_expected(path, like, message):
    with pytest.raises(ValueError, match=rf"last\.safetensors: {message}"):
        read_checkpoint(path, like)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is truncated, or is not a safetensors"),
        (b"not a checkpoint at all", "is truncated, or is not a safetensors"),
        (save({"x": np.zeros(2)}), "is not a checkpoint of rotrnn"),
        (save({"x": np.zeros(2)}, {"rotrnn": ""}), "does not match its checksum"),
        (save({"x": np.zeros(2)}, {"rotrnn": "0" * 64 + " {}"}), "does not match its checksum"),
    ],
)
def test_files_that_are_not_checkpoints(path, data, message):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"last\.safetensors: .*{message}"):
        read_checkpoint(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(IsADirectoryError, match="is a folder, expected a checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_neither_written_nor_read(path, value, monkeypatch):
    before = path.read_bytes()
    bad = {**ARRAYS, "m.w": np.full((2, 3), value, np.float32)}
    with pytest.raises(ValueError, match=r"not written, because m\.w has values that are not finite"):
        write_checkpoint(path, bad, FACTS)
    assert path.read_bytes() == before

    monkeypatch.setattr(np, "isfinite", lambda x: np.ones_like(x, bool))
    write_checkpoint(path, bad, FACTS)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"m\.w has values that are not finite"):
        read_checkpoint(path)


FULL_DISK = """
import resource, sys
import numpy as np
from rotrnn._support.checkpoint import write_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    write_checkpoint(sys.argv[1], {"params.w": np.zeros(10_000)}, {})
except OSError as error:
    print(error)
"""


def test_a_full_disk_keeps_the_checkpoint_before(path):
    before = path.read_bytes()
    run = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert "not written (File too large); the file that was there is unchanged" in run.stdout
    assert str(path) in run.stdout
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_at_the_end_keeps_the_checkpoint_before(path, monkeypatch, call):
    def fail(*args):
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left on device"):
        write_checkpoint(path, {"params.w": np.zeros(3)}, {})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match=r"not written .*; no file was there before"):
        write_checkpoint(tmp_path / "no" / "such", ARRAYS, FACTS)


def test_a_file_that_may_not_be_on_disk_is_not_called_unchanged(path, monkeypatch):
    """The system may fail to sync the folder, after the file has its name."""
    write_checkpoint(path, {"x": np.zeros(2)}, {})

    def synced(folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("rotrnn._support.files.synced", synced)
    with pytest.raises(OSError, match=r"written, but perhaps not on disk \(Input/output error\)"):
        write_checkpoint(path, {"x": np.ones(2)}, {})
    assert read_checkpoint(path)[0]["x"].tolist() == [1, 1]
