"""Shared behaviour of all loaders: prepared once, again when files change; stand-in data; the command."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

from rotrnn.cli import main
from rotrnn.tasks import TASKS, Released
from rotrnn.training.loop import train
from rotrnn.training.recipe import read_recipe

pytestmark = pytest.mark.filterwarnings("ignore:.*not the whole published data set")

KINDS = {name: kind for name, kind in TASKS.items() if issubclass(kind, Released)}
LENGTH = {"imdb": 4096, "aan": 4000, "cifar": 1024, "mnist": 784, "fashion_mnist": 784, "speech_commands": 16_000}
EXAMPLES = 12


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Writes a folder of random data for each task."""
    folder = tmp_path_factory.mktemp("stand_ins")
    for name in KINDS:
        assert main(["data", name, "--stand-in", str(EXAMPLES), "--out", str(folder / name)]) == 0
    return folder


@pytest.fixture
def data(stand_ins, tmp_path):
    """Copies the folder of a task."""
    return lambda name: shutil.copytree(stand_ins / name, tmp_path / name)


def arrays(task):
    return [array for split in (task.train, task.val, task.test) for array in split.batch(np.arange(len(split)))[:2]]


def same(one, other):
    return all(a.shape == b.shape and (a == b).all() for a, b in zip(arrays(one), arrays(other), strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_the_shape_is_known_without_the_data(data, name):
    task, shape = KINDS[name](data_dir=str(data(name))).load(), KINDS[name]().shape
    assert (task.n_classes, task.n_features, task.head) == (shape.n_classes, shape.n_features, shape.head)
    published = {"imdb": 135, "aan": 98}.get(name)
    assert shape.vocab == published
    assert (task.vocab is None) == (published is None)


@pytest.mark.parametrize("name", KINDS)
def test_the_least_stand_in(tmp_path, name):
    """Two examples can be read; one cannot, because there are two classes or two splits."""
    settings = {"max_length": 10} if name in ("imdb", "aan") else {}
    with pytest.raises(
        ValueError, match=f"{KINDS[name].__name__}: the stand-in data have 1 example.*expected at least 2"
    ):
        KINDS[name](**settings).stand_in(tmp_path, 1)
    assert not any(tmp_path.iterdir())
    KINDS[name](**settings).stand_in(tmp_path, 2)
    assert len(KINDS[name](**settings, data_dir=str(tmp_path)).load().test) in (2, 5)  # of CIFAR five files


def test_every_loader_is_here():
    assert set(KINDS) == set(LENGTH)


@pytest.mark.parametrize("name", KINDS)
def test_a_recipe_trains_on_stand_in_data_of_full_length(data, tmp_path, name):
    recipe = read_recipe(
        {
            "task": {"name": name, "data_dir": str(data(name))},
            "model": {"layer": "lru", "d_model": 4, "n_layers": 1},
            "layer": {"d_state": 4},
            "training": {"batch": 4, "steps": 2},
        }
    )
    task = recipe.task.load()
    assert task.train.batch(np.arange(4)).inputs.shape[-1 if task.vocab else 1] == LENGTH[name]
    result = train(recipe, tmp_path / "run", progress=False)
    assert result["steps"] == 2


@pytest.mark.parametrize("name", KINDS)
def test_prepared_once_and_anew_when_a_file_changes(data, monkeypatch, name):
    folder, kind = data(name), KINDS[name]
    first = kind(data_dir=str(folder)).load()
    with monkeypatch.context() as patch:  # preparing again would fail
        patch.setattr("rotrnn.tasks.prepared.Store.array", None)
        assert same(kind(data_dir=str(folder)).load(), first)
    every = sorted(path for path in folder.rglob("*") if path.is_file() and ".rotrnn" not in path.parts)
    content = {path: path.read_bytes() for path in every}
    os.utime(every[0], (1, 1))
    os.utime(every[-1], (1, 1))
    assert same(kind(data_dir=str(folder)).load(), first)
    kind(**({"max_length": 100} if name in ("imdb", "aan") else {})).write_random(folder, EXAMPLES + 3)
    again = kind(data_dir=str(folder)).load()
    assert len(again.test) == EXAMPLES + 3
    assert all(path.exists() for path in content)


@pytest.mark.parametrize("name", KINDS)
def test_where_the_data_cannot_be_written_to(data, monkeypatch, tmp_path, name):
    folder, kind = data(name), KINDS[name]

    def read_only(path):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("rotrnn.tasks.prepared.locked", read_only)
        with pytest.raises(
            OSError, match=rf"{kind.__name__}: .* {re.escape(str(folder))}/\.rotrnn \(Read-only.*; set cache_dir"
        ):
            kind(data_dir=str(folder)).load()
    elsewhere = kind(data_dir=str(folder), cache_dir=str(tmp_path / "cache")).load()
    assert not (folder / ".rotrnn").exists()
    assert (tmp_path / "cache").exists()
    beside = kind(data_dir=str(folder)).load()
    assert same(elsewhere, beside)
    monkeypatch.setattr("rotrnn.tasks.prepared.locked", read_only)
    assert same(kind(data_dir=str(folder)).load(), beside)  # prepared data are only read


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_incomplete_data_of_a_killed_process_are_prepared_again(data, name):
    folder, kind = data(name), KINDS[name]
    script = (
        "import os, signal, sys; from rotrnn.tasks import TASKS; from rotrnn.tasks.prepared import Store\n"
        "array = Store.array\n"
        "def killed(store, name, shape, dtype):\n"
        "    if name.startswith('test'):\n"
        "        store.flush()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return array(store, name, shape, dtype)\n"
        "Store.array = killed\n"
        f"TASKS['{name}'](data_dir=sys.argv[1]).load()"
    )
    assert subprocess.run([sys.executable, "-c", script, str(folder)]).returncode == -9
    left = os.listdir(folder / ".rotrnn")
    assert [name for name in left if not name.startswith(".")] == []
    assert len(left) == 2  # the lock, and half of the arrays
    task = kind(data_dir=str(folder)).load()
    assert len(task.test) == EXAMPLES
    assert [name for name in os.listdir(folder / ".rotrnn") if name.startswith(".")] == [".lock"]


@pytest.mark.parametrize("name", KINDS)
def test_prepared_arrays_of_another_kind_are_named(data, name):
    """Sizes and manifest are right, what the files hold is not."""
    folder = data(name)
    KINDS[name](data_dir=str(folder)).load()
    (place,) = [path for path in (folder / ".rotrnn").iterdir() if path.is_dir()]
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    for path in place.glob("*.npy"):
        content = path.read_bytes()
        for array in (np.zeros((1, 2, 3, 4)), np.zeros(3, "S4")):
            np.save(path, array)
            sizes = {**manifest["files"], path.name: path.stat().st_size}
            (place / "manifest.json").write_text(json.dumps({**manifest, "files": sizes}), encoding="utf-8")
            with pytest.raises(
                ValueError,
                match=rf"{re.escape(str(path))}: is an array .*; remove {re.escape(str(place))} to prepare it again",
            ):
                KINDS[name](data_dir=str(folder)).load()
        path.write_bytes(content)
        (place / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "aan",
            "tsv_data/new_aan_pairs.eval.tsv",
            b"",
            "AAN: val is 0 in .*tsv_data, expected 18090 as published, or fewer",
        ),
        (
            "speech_commands",
            "speech_commands_v0.02/testing_list.txt",
            b"",
            r"SpeechCommands: test is 0 in .*v0\.02, expected 11005",
        ),
    ],
)
def test_a_part_without_examples(data, name, file, content, message):
    folder = data(name)
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        KINDS[name](data_dir=str(folder)).load()


def test_two_readings_of_the_same_texts_do_not_replace_one_another(data):
    folder = data("imdb")
    for _ in range(2):
        assert KINDS["imdb"](data_dir=str(folder)).load().vocab == 98
        assert KINDS["imdb"](data_dir=str(folder), tokens="bytes").load().vocab == 257
    assert len([name for name in os.listdir(folder / ".rotrnn") if name.startswith("imdb")]) == 2


@pytest.mark.parametrize("name", KINDS)
def test_published_data_are_not_written(stand_ins, tmp_path, name, capsys):
    assert main(["data", name, "--out", str(tmp_path), "--set", f"data_dir={stand_ins / name}"]) == 2
    assert "is read from published files and cannot be written" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_the_command_describes_them(data, capsys):
    folder = data("imdb")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["data", "imdb", "--set", f"data_dir={folder}"]) == 0
    seen = capsys.readouterr()
    assert "imdb: 2 classes, 98 token ids\nthere is one split for validation and test: val is test\n" in seen.out
    assert "rotrnn: warning: IMDB: this is not the whole published data set: train/neg 6 instead of 12500" in seen.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["listops", "--stand-in", "3", "--out", "x"], "--stand-in: listops needs no files, expected one of imdb, aan"),
        (["imdb", "--stand-in", "3"], "--stand-in 3: expected a positive number and a folder, --out DIR"),
        (["imdb", "--stand-in", "0", "--out", "x"], "--stand-in 0: expected a positive number"),
        (
            ["imdb"],
            "IMDB: data_dir is '', expected a folder with train/neg or train-00000-of-00001.parquet; "
            "download = true downloads the data to it",
        ),
        (["aan", "--set", "data_dir=none"], "AAN: no data in none/lra_release/lra_release/tsv_data, none/lra_"),
    ],
)
def test_errors_of_the_command(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments]) == 2
    assert re.match(rf"rotrnn: error: {re.escape(message)}", capsys.readouterr().err)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", KINDS)
def test_random_data_replace_nothing(data, name):
    folder = data(name)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["data", name, "--stand-in", "4", "--out", str(folder)]) == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_file_that_cannot_be_read_is_not_blamed_on_the_cache(data, tmp_path, monkeypatch):
    folder = data("imdb")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(folder / "aclImdb" / "test" / "neg" / "0_1.txt"))

    monkeypatch.setattr("rotrnn.tasks.prepared.Store.array", lambda store, *_: denied(store))
    with pytest.raises(PermissionError, match=r"Permission denied: '.*0_1\.txt'"):
        KINDS["imdb"](data_dir=str(folder), cache_dir=str(tmp_path / "cache")).load()
