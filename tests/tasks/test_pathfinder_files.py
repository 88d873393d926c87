"""Pathfinder's folders: reading released files, reporting malformed ones, and writing that survives a kill."""

import os
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patience import PATIENCE
from rotrnn._support.files import locked
from rotrnn.cli import main
from rotrnn.tasks import Pathfinder, pathfinder, pathfinder_files
from rotrnn.tasks.order import torch_random_order
from rotrnn.tasks.pathfinder_files import Sample, read_level

SMALL = {"resolution": 16, "contour_length": 3, "train": 24, "val": 4, "test": 4}
TESTED = {"train": 12, "val": 2, "test": 2}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(pathfinder_files, "BATCH", 10)


def files_of(folder):
    """Returns relative path -> bytes of all files that a write creates."""
    paths = (path for path in Path(folder).rglob("[!.]*") if path.is_file() and ".rotrnn" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def same(one, other):
    for name in ("train", "val", "test"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert len(ours) == len(theirs)
        for a, b in zip(ours.batch(np.arange(len(ours))), theirs.batch(np.arange(len(ours))), strict=True):
            np.testing.assert_array_equal(a, b)
        labels, lengths = theirs.labels_and_lengths(np.arange(len(ours)))
        np.testing.assert_array_equal(labels, ours.labels_and_lengths(np.arange(len(ours)))[0])
        assert set(lengths) == {ours.batch(np.arange(1)).inputs.shape[1]}


# ---- the released layout ----


def release(folder, batches, lines=None, side=32):
    """Writes a level in the published layout with random images; `lines` replaces the metadata of each batch."""
    rng = np.random.default_rng(0)
    pixels, labels = {}, {}
    for batch, count in batches.items():
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        text = b""
        for i in range(count):
            pixels[batch, i] = rng.integers(0, 256, (side, side), np.uint8)
            labels[batch, i] = int(rng.integers(2))
            Image.fromarray(pixels[batch, i]).save(folder / "imgs" / str(batch) / f"sample_{i}.png")
            text += b"imgs/%d sample_%d.png %d %d 1.0 14 4 2 0.5 1 1\n" % (batch, i, i, labels[batch, i])
        (folder / "metadata").mkdir(exist_ok=True)
        (folder / "metadata" / f"{batch}.npy").write_bytes(text if lines is None else lines)
    return pixels, labels


def test_a_released_level(tmp_path):
    """Batches are ordered by number, not by name; splits are parts of the random order."""
    level = tmp_path / "pathfinder32" / "curv_contour_length_14"
    pixels, labels = release(level, {10: 4, 2: 5, 0: 4, 1: 3})
    keys = [(batch, i) for batch, count in ((0, 4), (1, 3), (2, 5), (10, 4)) for i in range(count)]
    order = torch_random_order(16)
    for folder in (level, tmp_path / "pathfinder32", tmp_path):
        task = Pathfinder(**TESTED, data_dir=str(folder)).load()
        assert task.name == "pathfinder"
        for split, places in ((task.train, order[:12]), (task.val, order[12:14]), (task.test, order[14:])):
            batch = split.batch(np.arange(len(split)))
            wanted = np.stack([pixels[keys[i]] for i in places]).reshape(len(split), 1024, 1)
            np.testing.assert_allclose(
                batch.inputs, (wanted / 255 - 0.5) / 0.5, rtol=0, atol=1e-7
            )  # rounding to float32
            np.testing.assert_array_equal(batch.labels, [labels[keys[i]] for i in places])
    arrays = read_level(level, 32, 14, str(level))
    assert isinstance(arrays["pixels"], np.memmap)
    assert not arrays["pixels"].flags.writeable

    few = Pathfinder(train=3, val=1, test=2, data_dir=str(level)).load()  # parts from the ends of the order
    for split, places in ((few.train, order[:3]), (few.val, order[13:14]), (few.test, order[14:])):
        labels_there = split.batch(np.arange(len(split))).labels
        np.testing.assert_array_equal(labels_there, [labels[keys[i]] for i in places])
    with pytest.raises(ValueError, match=r"has 16 images, expected at least 17, train \+ val \+ test"):
        Pathfinder(train=13, val=2, test=2, data_dir=str(level)).load()


def test_prepared_once_and_anew_when_metadata_or_images_change(tmp_path, monkeypatch):
    release(tmp_path, {0: 4})
    task = Pathfinder(train=2, val=1, test=1, data_dir=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    before = task.load().train.batch(np.arange(2)).inputs
    (tmp_path / "metadata" / "._0.npy").write_bytes(b"what a Mac leaves")
    np.testing.assert_array_equal(task.load().train.batch(np.arange(2)).inputs, before)
    assert not (tmp_path / ".rotrnn").exists()
    for i in range(4):
        os.utime(tmp_path / "imgs" / "0" / f"sample_{i}.png", (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(Sample, "read", lambda *_: np.zeros((32, 32), np.uint8))
        assert (task.load().train.batch(np.arange(2)).inputs == -1).all()
    os.utime(tmp_path / "metadata" / "0.npy", (0, 0))
    np.testing.assert_array_equal(task.load().train.batch(np.arange(2)).inputs, before)
    (tmp_path / "imgs" / "0" / "sample_0.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.npy, line 1.*sample_0\.png"):
        task.load()


def test_easy_level_and_metadata_of_the_original_script(tmp_path):
    """curv_baseline; the original script writes metadata as NumPy arrays of strings."""
    level = tmp_path / "curv_baseline"
    release(level, {0: 4})
    text = (level / "metadata" / "0.npy").read_text(encoding="utf-8").replace(" 14 4 ", " 6 2 ")
    np.save(level / "metadata" / "0.npy", np.array([line.split() for line in text.splitlines()]))
    settings = {"contour_length": 6, "train": 2, "val": 1, "test": 1, "data_dir": str(tmp_path)}
    assert len(Pathfinder(**settings).load().train) == 2
    np.save(level / "metadata" / "0.npy", np.zeros((4, 11)))
    with pytest.raises(ValueError, match=r"0\.npy: is an array \(4, 11\) of float64, expected rows of strings"):
        Pathfinder(**settings).load()
    cells = np.array([line.encode().split() for line in text.splitlines()])
    np.save(level / "metadata" / "0.npy", cells)
    assert len(Pathfinder(**settings).load().train) == 2
    whole = (level / "metadata" / "0.npy").read_bytes()
    for content, message in (
        (whole.replace(b" 'shape'", b"( 'shape'"), "is not a .npy file"),  # what np.load raises is no ValueError
        (whole[:-3], "is not a .npy file, or is damaged"),
        (whole.replace(b"'|S", b"'|V"), "is an array"),
        (whole[:-2] + b"\xff1", r", line 4: paddle contrasts is '.*xff.*', expected a number"),
    ):
        (level / "metadata" / "0.npy").write_bytes(content)
        with pytest.raises(ValueError, match=rf"0\.npy:? ?{message}"):
            Pathfinder(**settings).load()
    np.save(level / "metadata" / "0.npy", np.array([[None]]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"0\.npy: is not a .npy file with items .* that are no Python objects"):
        Pathfinder(**settings).load()


def test_the_one_file_that_was_published_empty_is_left_out(tmp_path):
    """imgs/0/sample_172.png of the easy level at 32, which published loaders skip too; no other file is skipped."""
    level = tmp_path / "pathfinder32" / "curv_baseline"
    release(level, {0: 174}, b"".join(b"imgs/0 sample_%d.png %d 1 1.0 6 2 2 0.5 1 1\n" % (i, i) for i in range(174)))
    (level / "imgs" / "0" / "sample_172.png").write_bytes(b"")
    assert len(read_level(level, 32, 6, str(level))["labels"]) == 173
    (level / "imgs" / "0" / "sample_171.png").write_bytes(b"")
    os.utime(level / "metadata" / "0.npy", (0, 0))
    with pytest.raises(ValueError, match=r"sample_171\.png: is empty"):
        read_level(level, 32, 6, str(level))


def test_the_inner_copy_of_the_archive_is_found(tmp_path):
    """The archive has another pathfinder128 in its outer folder, early versions of which could not be learned."""
    outer, inner = (tmp_path / one / "pathfinder32" / "curv_contour_length_14" for one in ("a", "a/lra_release"))
    release(outer, {0: 5})
    release(inner, {0: 4})
    (tmp_path / "a").rename(tmp_path / "lra_release")
    for folder in (tmp_path, tmp_path / "lra_release", tmp_path / "lra_release" / "lra_release"):
        with pytest.raises(ValueError, match=r"/lra_release/lra_release/pathfinder32/.* has 4 images"):
            Pathfinder(data_dir=str(folder)).load()


GOOD = b"imgs/0 sample_0.png 0 1 1.0 14 4 2 0.5 1 1\n"
FEW = b"imgs/0 sample_0.png 1\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.replace(b"\n", b"\r\n")[:-2],
        lambda text: b"".join(b"%b %b %b\n" % (row[0], row[1], row[3]) for row in map(bytes.split, text.splitlines())),
    ],
)
def test_metadata_of_copies(tmp_path, change):
    """Other ends of lines, and the needed columns alone."""
    _, labels = release(tmp_path, {0: 5})
    path = tmp_path / "metadata" / "0.npy"
    path.write_bytes(change(path.read_bytes()))
    assert read_level(tmp_path, 32, 14, str(tmp_path))["labels"].tolist() == list(labels.values())


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_grey_pictures_saved_in_colour(tmp_path, mode):
    pixels, _ = release(tmp_path, {0: 2})
    for path in (tmp_path / "imgs" / "0").iterdir():
        Image.open(path).convert(mode).save(path)
    read = read_level(tmp_path, 32, 14, str(tmp_path))["pixels"]
    np.testing.assert_array_equal(read, list(pixels.values()))


def test_tenths_of_the_level_that_lacks_an_image(monkeypatch):
    """S4 and S5 take tenths of the 199,999 images, rounded down, for validation and test."""
    n = 199_999
    arrays = {"pixels": np.broadcast_to(np.uint8(0), (n, 32, 32)), "labels": np.zeros(n, np.uint8)}
    monkeypatch.setattr(pathfinder, "find", lambda *_: Path("there"))
    monkeypatch.setattr(pathfinder, "read_level", lambda *_: arrays)
    task = Pathfinder(contour_length=6, data_dir="there").load()
    order = torch_random_order(n)
    for split, part in zip((task.train, task.val, task.test), np.split(order, [160_001, 180_000]), strict=True):
        np.testing.assert_array_equal(split.order, part)
    with pytest.raises(ValueError, match="has 199999 images, expected at least 200001"):
        Pathfinder(contour_length=6, train=160_001, data_dir="there").load()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (GOOD[:19], r"line 1: has 2 column\(s\), expected 11: folder, file, index, label"),
        (GOOD + GOOD.replace(b"_0", b"_1")[:23], r"line 2: has 4 column\(s\), expected 11: folder"),
        (FEW + FEW.replace(b"_0", b"_1")[:-2], "line 2: label is '', expected 0 or 1"),
        (FEW + GOOD.replace(b"_0", b"_1"), r"line 2: has 11 column\(s\), expected 3: folder, file, label"),
        (
            GOOD + b"imgs/0 sample_1.png 1 0 1.0\n",
            r"line 2: has 5 column\(s\), expected 11: folder, file, index, label",
        ),
        (GOOD + b"\n", r"line 2: has 1 column\(s\), expected 11"),
        (GOOD[:-1] + b" 7\n", r"line 1: has 12 column\(s\), expected 11"),
        (GOOD.replace(b"0 1 1.0", b"0 2 1.0"), "line 1: label is '2', expected 0 or 1"),
        (GOOD.replace(b"0 1 1.0", b"0 1.0 1.0"), "line 1: label is '1.0', expected 0 or 1"),
        (GOOD.replace(b"0 1 1.0", b"x 1 1.0"), "line 1: index is 'x', expected a number"),
        (GOOD.replace(b"1.0", b"nan"), "line 1: continuity is 'nan', expected a number"),
        (GOOD.replace(b" 14 ", b" 9 "), "line 1: contour length is 9, expected 14, the setting contour_length"),
        (GOOD.replace(b"imgs/0", b"imgs/../0"), "line 1: folder is 'imgs/../0', expected imgs/ and a name"),
        (GOOD.replace(b"sample", b"../sample"), r"line 1: file is '\.\./sample_0\.png', expected the name of a \.png"),
        (GOOD.replace(b"sample", b"\xffsample"), r"line 1: file is '.*xffsample_0\.png', expected the name"),
        (GOOD + GOOD, r"line 2: lists .*sample_0\.png again, after .*0\.npy, line 1"),
        (GOOD + GOOD.replace(b"_0", b"_7"), r"sample_7\.png"),
    ],
)
def test_malformed_metadata(tmp_path, lines, message):
    release(tmp_path, {0: 2}, lines)
    metadata = re.escape(str(tmp_path / "metadata" / "0.npy"))
    expected = f"^{metadata}, {message}" if message.startswith("line") else f"{metadata}, line 2.*{message}"
    with pytest.raises((ValueError, FileNotFoundError), match=expected):
        read_level(tmp_path, 32, 14, str(tmp_path))
    assert not list(tmp_path.glob(".rotrnn/*pathfinder*"))


def damage(path, how):
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:300])
    elif how == "text":
        path.write_bytes(b"no image")
    elif how == "sixteen bits":
        Image.fromarray(np.zeros((32, 32), np.uint16)).save(path)
    elif how == "small":
        Image.new("L", (32, 31)).save(path)
    elif how == "jpeg":
        Image.new("L", (32, 32)).save(path, "JPEG")
    elif how in ("huge", "long"):  # a header that claims 60,000 x 60,000 pixels, or is short of some bytes
        content = bytearray(path.read_bytes())
        content[16:24] = struct.pack(">II", 60_000, 60_000)
        content[8:12] = struct.pack(">I", 13 if how == "huge" else 9)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", "is empty, expected a PNG file"),
        ("cut", "is not a complete image .*, expected a PNG file"),
        ("text", "is not a complete image .*, expected a PNG file"),
        ("huge", "is not a complete image .*, expected a PNG file"),
        ("long", "is not a complete image .*, expected a PNG file"),
        ("jpeg", "is not a complete image .*, expected a PNG file"),
        ("sixteen bits", r"has mode I;16 and 32 x 32 pixels, expected 8 bits \(mode L or RGB or RGBA or P\)"),
        ("small", "has mode L and 32 x 31 pixels, expected .* 32 x 32"),
    ],
)
def test_damaged_images(tmp_path, how, message):
    release(tmp_path, {0: 3})
    path = tmp_path / "imgs" / "0" / "sample_1.png"
    damage(path, how)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: {message}.*0\\.npy, line 2\\)$"):
        read_level(tmp_path, 32, 14, str(tmp_path))
    assert not list(tmp_path.glob(".rotrnn/*pathfinder*"))


def test_folders_that_hold_no_level(tmp_path):
    nothing = r"^Pathfinder: no data in .*pathfinder32/curv_contour_length_14, .*expected a folder with metadata"
    with pytest.raises(FileNotFoundError, match=nothing):
        Pathfinder(data_dir=str(tmp_path)).load()
    (tmp_path / "metadata").mkdir()
    with pytest.raises(ValueError, match=r"metadata: holds no \.npy files, expected one for each batch"):
        Pathfinder(data_dir=str(tmp_path)).load()
    release(tmp_path, {0: 1})
    (tmp_path / "metadata" / "0.npy").rename(tmp_path / "metadata" / "first.npy")
    with pytest.raises(ValueError, match=r"is named first\.npy, expected the number of a batch"):
        read_level(tmp_path, 32, 14, str(tmp_path))


# ---- writing ----


def test_what_is_written_is_what_is_drawn(tmp_path):
    task = Pathfinder(**SMALL, seed=5)
    same(task.write(tmp_path / "new" / "level"), task.load())
    same(Pathfinder(**SMALL, data_dir=str(tmp_path / "new" / "level")).load(), task.load())
    images = task.images(np.arange(32))
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        batch, place = divmod(i, 10)
        with Image.open(tmp_path / "new" / "level" / "imgs" / str(batch) / f"sample_{place}.png") as image:
            assert image.mode == "L"
            np.testing.assert_array_equal(np.asarray(image), pixels)
        line = (
            (tmp_path / "new" / "level" / "metadata" / f"{batch}.npy").read_text(encoding="utf-8").splitlines()[place]
        )
        assert line == f"imgs/{batch} sample_{place}.png {place} {label} 1.0 3 1 2 0.5 1 1"


def test_a_line_of_metadata_as_released(tmp_path):
    """The only published line of the released files (from the easy level at 32), except for the label."""
    Pathfinder(contour_length=6, train=1, val=1, test=1).write(tmp_path)
    line = (tmp_path / "metadata" / "0.npy").read_text(encoding="utf-8").splitlines()[0]
    assert re.fullmatch(r"imgs/0 sample_0\.png 0 [01] 1\.0 6 2 2 0\.5 1 1", line)


WRITE = """
import sys, time
from rotrnn.tasks import Pathfinder, pathfinder, pathfinder_files
pathfinder_files.BATCH = 10
save, saved = pathfinder_files._save, []
def slow(*args):
    save(*args)
    saved.append(args)
    time.sleep(0.01 if len(saved) < 150 else 3600)  # it is killed amid its work however late the kill comes
pathfinder_files._save = slow
Pathfinder(resolution=16, contour_length=3, train=180, val=10, test=10).write(sys.argv[1])
"""


def test_a_killed_write_is_resumed(tmp_path):
    """At any moment there are only complete batches, and the result of a second call equals that of a single call."""
    settings = {**SMALL, "train": 180, "val": 10, "test": 10}
    folder = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-c", WRITE, str(folder)], stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + PATIENCE
        while not (folder / "metadata" / "1.npy").exists():
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    there = len(list((folder / "metadata").glob("*.npy")))
    assert 2 <= there < 20
    with pytest.raises(ValueError, match=rf"killed: has {10 * there} of 200 images; write the remaining ones first"):
        read_level(folder, 16, 3, str(folder))
    (folder / "metadata" / "0.npy").unlink()  # as if killed between a batch's images and its metadata
    (folder / "imgs" / "0" / "sample_3.png").write_bytes(b"")
    (folder / "imgs" / ".7.1.tmp").mkdir()
    Pathfinder(**settings).write(folder)
    Pathfinder(**settings).write(tmp_path / "whole")
    assert files_of(folder) == files_of(tmp_path / "whole")
    assert len(files_of(folder)) == 200 + 20 + 1
    assert not list(folder.rglob("*.tmp"))


def test_two_processes_do_not_write_into_one_folder(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="another process is writing images here"):
        Pathfinder(**SMALL).write(tmp_path)


def test_folders_that_hold_other_images(tmp_path):
    Pathfinder(**SMALL).write(tmp_path / "a")
    before = files_of(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"a: holds other images \(seed is 0\), expected images 32, .*seed 1, or a new"
    ):
        Pathfinder(**SMALL, seed=1).write(tmp_path / "a")
    release(tmp_path / "b", {0: 1})
    with pytest.raises(ValueError, match=r"b: holds images from another source \(it has no pathfinder\.json\)"):
        Pathfinder(**SMALL).write(tmp_path / "b")
    (tmp_path / "a" / "pathfinder.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"pathfinder\.json: is damaged"):
        Pathfinder(**SMALL).write(tmp_path / "a")
    assert {**files_of(tmp_path / "a"), "pathfinder.json": before["pathfinder.json"]} == before
    with pytest.raises(ValueError, match=r"data_dir is '.*', expected none"):
        Pathfinder(**SMALL, data_dir=str(tmp_path)).write(tmp_path / "c")


def test_from_the_command_line(tmp_path, capsys):
    sets = [f"--set={key}={value}" for key, value in SMALL.items()]
    assert main(["data", "pathfinder", "--out", str(tmp_path), *sets]) == 0
    assert capsys.readouterr().out.startswith("pathfinder: 2 classes, 1 feature(s) per step\n")
    assert main(["data", "pathfinder", "--set", f"data_dir={tmp_path}", *sets]) == 0
    assert "line" not in capsys.readouterr().err
