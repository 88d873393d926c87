"""Prepared data: made once, memory-mapped, and never used when incomplete."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rotrnn._support.files import open_npy
from rotrnn.tasks.prepared import check_forms, check_offsets, prepared

SETTINGS = {"size": 3, "kind": "even"}


def maker(calls, value=2):
    def make(store):
        calls.append(value)
        store.array("x", (3, 2), np.int16)[:] = value
        store.array("y", (3,), np.float32)[:] = np.arange(3)

    return make


def test_made_once_then_mapped(tmp_path):
    calls = []
    for _ in range(2):
        arrays = prepared(tmp_path, "data", SETTINGS, maker(calls))
        np.testing.assert_array_equal(arrays["x"], np.full((3, 2), 2, np.int16))
        np.testing.assert_array_equal(arrays["y"], np.arange(3, dtype=np.float32))
        assert isinstance(arrays["x"], np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            arrays["x"][0] = 1
    assert calls == [2]
    assert sorted(os.listdir(tmp_path)) == [".lock", "data"]


def test_other_settings_make_it_anew(tmp_path):
    calls = []
    prepared(tmp_path, "data", SETTINGS, maker(calls))
    arrays = prepared(tmp_path, "data", {**SETTINGS, "size": 4}, maker(calls, 5))
    assert arrays["x"][0, 0] == 5
    assert calls == [2, 5]


def test_a_kill_while_what_is_stale_is_removed(tmp_path, monkeypatch):
    """The stale folder is renamed as a whole: a folder without its manifest would not be recognised as prepared
    data."""
    prepared(tmp_path, "data", SETTINGS, maker([]))
    remove = shutil.rmtree

    def killed(folder, **how):
        if Path(folder).exists():
            (Path(folder) / "manifest.json").unlink()
            raise KeyboardInterrupt
        remove(folder, **how)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path, "data", {"other": 1}, maker([]))
    made = []
    prepared(tmp_path, "data", SETTINGS, maker(made))
    assert made
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "data"]


def test_room_is_kept_before_anything_is_written(tmp_path):
    """Otherwise a write to mapped memory on a full disk would end the process with SIGBUS."""

    def make(store):
        store.array("x", (2**20,), np.uint8)
        assert os.stat(store.folder / "x.npy").st_blocks * 512 >= 2**20

    assert prepared(tmp_path, "data", SETTINGS, make)["x"].sum() == 0


def test_a_full_disk(tmp_path, monkeypatch):
    def full(descriptor, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.npy'"):
        prepared(tmp_path, "data", SETTINGS, maker([]))
    assert os.listdir(tmp_path) == [".lock"]


def test_what_another_process_replaces_while_it_is_opened(tmp_path, monkeypatch):
    """Other data replace the folder between reading manifest and arrays, or an array is gone: the result is as
    requested."""
    prepared(tmp_path, "data", SETTINGS, maker([]))
    load, replaced = np.load, []

    def late(path, **how):
        if not replaced:
            replaced.append(True)
            prepared(tmp_path, "data", {"other": 1}, maker([], 7))
        return load(path, **how)

    monkeypatch.setattr(np, "load", late)
    assert (prepared(tmp_path, "data", SETTINGS, maker([]))["x"] == 2).all()

    def missing(path, **how):
        if len(replaced) == 1:
            replaced.append(True)
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return load(path, **how)

    monkeypatch.setattr(np, "load", missing)
    assert (prepared(tmp_path, "data", SETTINGS, maker([]))["x"] == 2).all()


def test_an_error_leaves_nothing(tmp_path):
    def fails(store):
        store.array("x", (3,), np.int8)[:] = 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        prepared(tmp_path, "data", SETTINGS, fails)
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.slow
def test_incomplete_data_of_a_killed_process_are_not_used(tmp_path):
    script = (
        "import os, signal, sys; from rotrnn.tasks.prepared import prepared\n"
        "def make(store):\n"
        "    store.array('x', (3,), 'int8')[:] = 1\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"prepared(sys.argv[1], 'data', {SETTINGS!r}, make)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == -9
    calls = []
    prepared(tmp_path, "data", SETTINGS, maker(calls))
    assert calls == [2]
    assert sorted(os.listdir(tmp_path)) == [".lock", "data"]


@pytest.mark.slow
def test_a_second_process_waits_for_the_first(tmp_path):
    """A process that starts while another makes the arrays maps the result of the other: both print the id of the
    maker."""
    script = (
        "import os, sys, time; from rotrnn.tasks.prepared import prepared\n"
        "def make(store):\n"
        "    print('at work', flush=True)\n"
        "    sys.stdin.read()\n"
        "    store.array('x', (), 'int64')[...] = os.getpid()\n"
        "print('asks', flush=True)\n"
        f"print(prepared(sys.argv[1], 'data', {SETTINGS!r}, make)['x'])"
    )
    start = functools.partial(
        subprocess.Popen, [sys.executable, "-c", script, str(tmp_path)], text=True, stdin=-1, stdout=-1
    )
    with start() as first:
        assert [first.stdout.readline() for _ in range(2)] == ["asks\n", "at work\n"]
        with start() as second:
            assert second.stdout.readline() == "asks\n"
            assert first.communicate()[0] == second.communicate()[0] == f"{first.pid}\n"


def test_forms_are_checked(tmp_path):
    arrays = prepared(tmp_path, "data", SETTINGS, maker([]))
    place = tmp_path / "data"
    check_forms(place, arrays, {"x": ("i2", "rows", 2), "y": ("f", "rows")})
    for forms, message in (
        ({"z": ("u1", "rows")}, r"z\.npy: is not listed in .*manifest\.json; remove .*data to prepare it again"),
        ({"x": ("u", "rows", 2)}, r"x\.npy: is an array \(3, 2\) of int16, expected 2 dimension\(s\) of u; remove"),
        ({"x": ("i2", "rows")}, r"x\.npy: is an array \(3, 2\) of int16, expected 1 dimension\(s\) of i2"),
        ({"x": ("i2", "rows", 3)}, r"x\.npy: has shape \(3, 2\), expected 3 for 3"),
        ({"x": ("i2", "rows", "columns"), "y": ("f4", "columns")}, r"y\.npy: has shape \(3,\), expected 2 for columns"),
    ):
        with pytest.raises(ValueError, match=message):
            check_forms(place, arrays, forms)


@pytest.mark.parametrize("offsets", [[0, 2], [0, 2, 1, 4], [1, 2, 3, 4], [0, 1, 2, 5], [0, -1, 2, 4]])
def test_offsets_are_checked(tmp_path, offsets):
    check_offsets(np.array([0, 2, 2, 4]), 3, 4)
    np.save(tmp_path / "offsets.npy", offsets)
    with pytest.raises(ValueError, match=r"offsets\.npy: expected 4 offsets that do not decrease, from 0 to 4"):
        check_offsets(open_npy(tmp_path / "offsets.npy"), 3, 4)


def test_damaged_and_foreign_data_are_reported_and_kept(tmp_path):
    prepared(tmp_path, "data", SETTINGS, maker([]))
    path = tmp_path / "data" / "x.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"x\.npy: is 139 bytes long, expected 140 bytes; remove .*data to prepare it"):
        prepared(tmp_path, "data", SETTINGS, maker([]))
    path.unlink()
    with pytest.raises(ValueError, match=r"x\.npy: is missing, expected 140 bytes"):
        prepared(tmp_path, "data", SETTINGS, maker([]))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it", encoding="utf-8")
    with pytest.raises(ValueError, match="mine: is not prepared data of rotrnn"):
        prepared(tmp_path, "mine", SETTINGS, maker([]))
    assert (tmp_path / "mine" / "thesis.txt").read_text(encoding="utf-8") == "all of it"
