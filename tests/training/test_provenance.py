"""The provenance that a run records."""

from __future__ import annotations

import datetime
import hashlib
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import toy
from rotrnn import __version__, _cpu
from rotrnn._support import provenance
from rotrnn._support.json import to_json
from rotrnn.cli import main
from rotrnn.training.loop import Interrupted, Trainer, train
from rotrnn.training.recipe import load_recipe
from rotrnn.training.reevaluation import reevaluate
from rotrnn.training.results import collect, notes
from rotrnn.training.run import Run
from rotrnn.training.sweep import prepared


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    return load_recipe(tmp_path / "toy.toml")


def test_each_start_adds_a_session(tmp_path, recipe, monkeypatch):
    def interrupted(self, state, log):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", interrupted)
        with pytest.raises(Interrupted):
            train(recipe, tmp_path / "run", progress=False)
    train(recipe, tmp_path / "run", resume=True, progress=False)
    run = Run(tmp_path / "run")
    first, second = run.read_json(run.sessions)
    assert first["started"] <= second["started"]
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(first["started"])
    assert datetime.timedelta(-1) < age < datetime.timedelta(minutes=10)
    for one in (first, second):
        assert one["command"] == sys.argv
        assert (one["rotrnn"], one["numpy"], one["simd"]) == (__version__, np.__version__, _cpu.simd())
        assert one["threads"] == _cpu.threads() > 0 < one["cores"]
        assert one["processor"]
        assert one["blas"]


def git(folder, *arguments):
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_a_source_tree_alone(tmp_path, monkeypatch):
    """A package in a repository that does not track it, such as in a virtual environment, has no commit."""
    package = tmp_path / "python" / "rotrnn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    assert provenance.versions()["commit"] is None
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("", encoding="utf-8")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "other")
    assert provenance.versions()["commit"] is None
    git(tmp_path, "add", "python")
    git(tmp_path, "commit", "-qm", "package")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.versions()["commit"] == commit
    git(tmp_path, "tag", "v1")
    (package / "__init__.py").write_text("changed", encoding="utf-8")
    assert provenance.versions()["commit"] == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(Path(tmp_path, "nowhere")))
    assert provenance.versions()["commit"] is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [("[{", "JSON"), *((text, "a list of objects") for text in ("5", "null", '{"a": 1}', '"ab"', "[1]"))],
)
def test_a_damaged_list_of_sessions_is_told_once_and_counts_as_empty(tmp_path, recipe, content, expected):
    """No result depends on it: a run is resumed or goes on to more steps without it, and tables lack its commits."""
    result = train(recipe, tmp_path / "run", progress=False)
    more = replace(recipe, training=replace(recipe.training, steps=recipe.training.steps + 1))
    for name, use in (
        ("resumed", lambda folder: train(recipe, folder, resume=True, progress=False)),
        ("longer", lambda folder: train(more, folder, progress=False)),
        ("table", lambda folder: collect([Run(folder)])),
    ):
        run = Run(tmp_path / name)
        shutil.copytree(tmp_path / "run", run.folder)
        run.write(run.sessions, content)
        with warnings.catch_warnings(record=True, action="always") as caught:
            found = use(run.folder)
        (told,) = [str(one.message) for one in caught]
        assert re.fullmatch(
            rf"{re.escape(str(run.sessions))}: is damaged, expected {expected}.*; it counts as empty", told
        )
        if name == "table":
            assert found[0]
        else:
            assert len(run.read_json(run.sessions)) == 1
        assert name != "resumed" or found == result


OWN = """
[task]
name = "series"
path = "y.csv"
[model]
layer = "min_gru"
d_model = 2
n_layers = 1
norm = "layer"
[layer]
d_state = 2
[optimiser]
lr = 0.01
[training]
batch = 2
steps = 2
eval_every = 1
"""


def test_a_data_file_that_changed_is_told(tmp_path, monkeypatch):
    """To go on is refused, an evaluation warns; the same contents again, and a run of an older version, go on."""
    monkeypatch.chdir(tmp_path)
    whole = "y\n" + "".join(f"{(7 * t) % 11}\n" for t in range(40))
    (tmp_path / "y.csv").write_text(whole, encoding="utf-8")
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    recipe, run = load_recipe(tmp_path / "own.toml"), Run(tmp_path / "run")
    train(recipe, run.folder, progress=False)
    (started,) = run.read_json(run.sessions)
    assert started["data"] == hashlib.sha256(whole.encode()).hexdigest()
    (tmp_path / "y.csv").write_text(whole.replace("10", "9"), encoding="utf-8")
    was = started["data"][:16]
    told = (
        rf"{re.escape(str(tmp_path))}/y.csv: is not the file that the run was trained on: its SHA-256 is \w+, was {was}"
    )
    with pytest.raises(ValueError, match=f"^{told}; expected that file to go on, or another folder for the new data$"):
        train(recipe, run.folder, resume=True, progress=False)
    with pytest.warns(UserWarning, match=f"^{told}$"):
        reevaluate(run)
    with pytest.raises(ValueError, match="is not the file that the run was trained on"):  # and to more steps
        train(load_recipe(tmp_path / "own.toml", ["training.steps=3"]), run.folder, progress=False)
    (tmp_path / "y.csv").write_text(whole, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(recipe, run.folder, resume=True, progress=False)
        reevaluate(run)
    (tmp_path / "other.csv").write_text(whole, encoding="utf-8")
    with pytest.warns(
        UserWarning, match=r"^task\.path: scales, classes and features follow from the new file's training"
    ):
        reevaluate(run, overrides=[f"task.path={tmp_path / 'other.csv'}"])
    run.write(run.sessions, to_json([{key: one for key, one in started.items() if key != "data"}]))
    train(recipe, run.folder, resume=True, progress=False)


WORDS = """\
name = "word_problem"
group = "Z3"
length = 3
samples = 20
test_length = 4
test = 10
"""
EXPRESSIONS = """\
name = "listops"
train = 200
val = 4
test = 4
min_length = 4
max_length = 12
"""


@pytest.mark.parametrize(
    ("task", "names"),
    [(WORDS, ("Z3=3.csv", "Z3=4.csv")), (EXPRESSIONS, [f"basic_{one}.tsv" for one in ("train", "val", "test")])],
)  # fmt: skip
def test_changed_files_of_a_folder_are_told(tmp_path, task, names):
    """Their hash is over all of them, with their names alone: a moved folder goes on."""
    text = OWN.replace('name = "series"\npath = "y.csv"\n', task).replace("[model]", 'data_dir = "words"\n[model]')
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    here, moved = (f"task.data_dir={tmp_path / one}" for one in ("words", "moved"))
    recipe, run = load_recipe(tmp_path / "own.toml", [here]), Run(tmp_path / "run")
    replace(recipe.task, data_dir="").write(tmp_path / "words")
    train(recipe, run.folder, progress=False)
    (started,) = run.read_json(run.sessions)
    lines = [f"{hashlib.sha256((tmp_path / 'words' / one).read_bytes()).hexdigest()}  {one}\n" for one in names]
    assert started["data"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    (tmp_path / "words").rename(tmp_path / "moved")
    train(load_recipe(tmp_path / "own.toml", [moved]), run.folder, resume=True, progress=False)
    replace(recipe.task, data_dir="", seed=1).write(tmp_path / "moved")
    place = re.escape(", ".join([str(tmp_path / "moved" / names[0]), *names[1:]]))
    told = rf"{place}: are not the files of the run: their SHA-256 is \w+, was {started['data'][:16]}"
    with pytest.raises(ValueError, match=f"^{told}; expected"):
        train(load_recipe(tmp_path / "own.toml", [moved]), run.folder, resume=True, progress=False)
    with pytest.raises(ValueError, match=f"^{told}; expected"):
        train(load_recipe(tmp_path / "own.toml", [moved, "training.steps=3"]), run.folder, progress=False)
    with pytest.warns(UserWarning, match=f"^{told}$"):
        reevaluate(run)


def test_an_evaluation_on_another_folder_is_told(tmp_path, capsys):
    """If its files have other contents. The folder of the run is not read then."""
    (tmp_path / "own.toml").write_text(OWN.replace('name = "series"\npath = "y.csv"\n', WORDS), encoding="utf-8")
    here, same, other = (tmp_path / one for one in ("words", "same", "other"))
    recipe, run = load_recipe(tmp_path / "own.toml", [f"task.data_dir={here}"]), Run(tmp_path / "run")
    for folder, seed in ((here, 0), (same, 0), (other, 1)):
        replace(recipe.task, data_dir="", seed=seed).write(folder)
    train(recipe, run.folder, progress=False)
    (started,) = run.read_json(run.sessions)
    replace(recipe.task, data_dir="", seed=2).write(here)
    assert main(["eval", str(run.folder), "--set", f"task.data_dir={same}"]) == 0
    assert "SHA-256" not in capsys.readouterr().err
    told = rf"{re.escape(str(other))}/Z3=3.csv, Z3=4.csv: are not the files of the run: their SHA-256 is \w+, was "
    assert main(["eval", str(run.folder), "--set", f"task.data_dir={other}"]) == 0
    assert re.search(f"^rotrnn: warning: {told}{started['data'][:16]}$", capsys.readouterr().err, re.MULTILINE)
    with pytest.warns(UserWarning, match=f"^{told}") as warned:
        reevaluate(run, grid=[("task.data_dir", [str(same), str(other)])])
    assert len([one for one in warned if "SHA-256" in str(one.message)]) == 1


def test_runs_on_several_contents_of_a_file_are_told(tmp_path, monkeypatch):
    """By a sweep that is repeated after the file has changed, and below a table; runs on one file are not."""
    monkeypatch.chdir(tmp_path)
    whole = "y\n" + "".join(f"{(7 * t) % 11}\n" for t in range(40))
    (tmp_path / "y.csv").write_text(whole, encoding="utf-8")
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    recipes = {f"seed{i}": load_recipe(tmp_path / "own.toml", [f"training.seed={i}"]) for i in range(3)}
    runs = [Run(tmp_path / "sweep" / name) for name in recipes]
    for run, recipe in list(zip(runs, recipes.values(), strict=True))[:2]:
        train(recipe, run.folder, progress=False)

    def said():
        lines = []
        with prepared(recipes, tmp_path / "sweep", False, lines.append) as (_, todo):
            assert [run.folder.name for run in todo] == ["seed2"]
        return [line for line in lines if line.startswith("warning: ")]

    def noted():
        return [line for line in notes([one.row() for one in collect(runs[:2])]) if "contents" in line]

    assert (said(), noted()) == ([], [])
    (tmp_path / "y.csv").write_text(whole.replace("10", "9"), encoding="utf-8")
    (line,) = said()
    assert line.startswith(
        f"warning: 2 finished runs on other contents of {tmp_path}/y.csv than it has now, which stay"
    )
    shutil.rmtree(runs[1].folder)
    train(recipes["seed1"], runs[1].folder, progress=False)
    hashes = sorted(hashlib.sha256(one.encode()).hexdigest()[:16] for one in (whole, whole.replace("10", "9")))
    assert noted() == [f"trained on several contents of {tmp_path}/y.csv: SHA-256 {', '.join(hashes)}."]


def test_a_data_file_that_has_moved_may_be_linked(tmp_path, monkeypatch):
    """The error says so if the other file has the contents of the run's; with a link the run goes on."""
    monkeypatch.chdir(tmp_path)
    old, new = tmp_path / "y.csv", tmp_path / "moved.csv"
    old.write_text("y\n" + "".join(f"{(7 * t) % 11}\n" for t in range(40)), encoding="utf-8")
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    recipe = load_recipe(tmp_path / "own.toml")
    train(recipe, tmp_path / "run", progress=False)
    old.rename(new)
    other = load_recipe(tmp_path / "own.toml", ["task.path=moved.csv"])
    hint = f"; {new} has the same contents, so a link to it at {old} will do"
    with pytest.raises(ValueError, match=re.escape(hint) + "$"):
        train(other, tmp_path / "run", resume=True, progress=False)
    with new.open("a", encoding="utf-8") as file:
        file.write("3\n")
    with pytest.raises(ValueError, match=r"as in the run's recipe, which it keeps$"):
        train(other, tmp_path / "run", resume=True, progress=False)
    new.write_text("y\n" + "".join(f"{(7 * t) % 11}\n" for t in range(40)), encoding="utf-8")
    old.symlink_to(new)
    train(recipe, tmp_path / "run", resume=True, progress=False)
