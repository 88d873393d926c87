"""The demo removes only its own runs. Training it is tested by `make demo`."""

import runpy
from pathlib import Path

import pytest

remove_runs = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "demo.py"))["remove_runs"]


def test_an_earlier_demo_is_removed_and_nothing_else(tmp_path):
    for name in ("digits-rotrnn", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").touch()
    remove_runs([tmp_path / "digits-rotrnn", tmp_path / "listops-rotrnn-small"])
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_folders_that_are_not_runs_are_kept(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").touch()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(SystemExit, match="thesis exists and is not a run"):
        remove_runs([tmp_path / "run", tmp_path / "thesis"])
    assert (tmp_path / "run").exists()
    assert (tmp_path / "thesis" / "chapter.tex").exists()
