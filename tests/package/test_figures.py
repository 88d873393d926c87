"""Figures of papers: what is missing is trained, what is there is drawn, and the table says both."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import toy
from rotrnn.cli import main
from rotrnn.plots import figures
from rotrnn.plots.figures import PaperFigure, Sweep, make, paper_figures
from rotrnn.tasks import Released
from rotrnn.training import sweep
from rotrnn.training.loop import Interrupted, train
from rotrnn.training.recipe import recipe_names
from rotrnn.training.run import Run

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "results" / "training"
KNOWN = {"learning", "scores", "length", "norms_over_training", "caps", "tolerances", "iterations", "inference"}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PaperFigure:
    """A figure of two runs of milliseconds, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "COMMAND", (sys.executable, toy.__file__))
    (tmp_path / "toy.toml").write_text(f"{toy.RECIPE}[sweep]\nseeds = [0, 1]\n[small]\n", encoding="utf-8")
    one = PaperFigure(
        "tiny",
        "Tiny, Fig. 1",
        (Sweep(("toy.toml",)),),
        (Sweep(("toy.toml",), set=("training.steps=8",)),),
        ("scores", "learning"),
        note="Of eight steps.",
    )
    other = PaperFigure("drawn", "Tiny, Fig. 2", command="python -m something")
    monkeypatch.setattr(figures, "paper_figures", lambda: {"tiny": one, "drawn": other})
    return one


def trained(one: PaperFigure, folder: Path) -> list[Run]:
    """The runs of a figure's small size, trained in this process."""
    ((_, runs),) = one.runs().items()
    for name, recipe in runs.items():
        train(recipe, folder / name, progress=False)
    return [Run(folder / name) for name in runs]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*") if path.is_file()}


def test_a_figure_from_an_empty_folder_and_again(tiny: PaperFigure, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "tiny"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-3:] == [f"figures/tiny/{name}" for name in ("figure.md", "learning.png", "scores.png")]
    page = Path(out[-3]).read_text(encoding="utf-8")
    assert page.startswith("# Tiny, Fig. 1\n\n    rotrnn figure tiny\n\nAt the small size. Of eight steps.\n\n| ")
    assert page.endswith("![learning](<learning.png>)\n![scores](<scores.png>)\n")
    runs = [Run(Path("figures", "tiny", "toy", f"seed={seed}")) for seed in (0, 1)]
    found = [one.read_json(one.result)["test"]["best"]["accuracy"] for one in runs]
    assert re.search(rf"\| 2 +\| {50 * sum(found):.2f} ± ", page)
    before, pictures = times(Path("figures", "tiny")), [Path(one).read_bytes() for one in out[-2:]]
    assert main(["figure", "tiny"]) == 0
    assert "ended: 2" in capsys.readouterr().out
    assert times(Path("figures", "tiny")) == before  # nothing was trained
    assert [Path(one).read_bytes() for one in out[-2:]] == pictures
    assert main(["figure", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["", figures.TOOK]
    assert [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[2:-2]] == [
        ["tiny", "2 of 2", "not recorded", "0 of 2", "Tiny, Fig. 1"],
        ["drawn", "", "", "", "Tiny, Fig. 2: python -m something"],
    ]


def test_a_figure_that_is_stopped_goes_on(tiny: PaperFigure) -> None:
    def stop(text: str) -> None:
        if text.startswith("[1/2]"):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        make("tiny", "out", say=stop)
    runs = [Run(Path("out", "toy", f"seed={seed}")) for seed in (0, 1)]
    assert [run.status() for run in runs] == ["done", "unfinished"]
    assert not Path("out", "figure.md").exists()
    before = times(Path("out"))
    make("tiny", "out", say=lambda text: None)
    assert [run.status() for run in runs] == ["done", "done"]
    after = times(Path("out"))
    assert all(after[path] == time for path, time in before.items() if "seed=0" in str(path))


def test_runs_elsewhere_are_drawn_without_training(tiny: PaperFigure, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tiny, Path("sweeps", "mine"))
    monkeypatch.setattr(sweep, "COMMAND", (sys.executable, "-c", "raise SystemExit('trained')"))
    said: list[str] = []
    page, *pictures = make("tiny", "out", places=["sweeps", "nowhere"], say=said.append)
    assert said == ["toy.toml: 2 runs taken from elsewhere"]
    assert [path.name for path in pictures] == ["learning.png", "scores.png"]
    assert {path.name for path in Path("out").iterdir()} == {page.name, "learning.png", "scores.png"}
    with pytest.raises(ValueError, match="nothing to draw"):
        make("tiny", "other", places=["sweeps"], seeds=[7], say=said.append)  # another seed is no run of those
    assert Run(Path("other", "toy", "seed=7")).status() == "failed"


def test_finished_runs_are_drawn_without_their_data(tiny: PaperFigure, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(task: Any, hint: str) -> None:
        raise FileNotFoundError("no data")

    trained(tiny, Path("sweeps", "mine"))
    monkeypatch.setattr("rotrnn.cli._check_files", missing)
    assert main(["figure", "tiny"]) == 0
    assert main(["figure", "tiny", "--seeds", "7"]) == 2
    assert not Path("figures", "tiny", "toy").exists()


def test_a_damaged_run_is_named_and_the_others_are_drawn(tiny: PaperFigure, capsys: pytest.CaptureFixture[str]) -> None:
    runs = trained(tiny, Path("figures", "tiny", "toy"))
    runs[1].result.write_text('{"metric": 3', encoding="utf-8")
    assert main(["figure", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "1 of 2 runs failed or cannot be read, figures/tiny/figure.md has the others; --retry resumes" in said
    page = Path("figures", "tiny", "figure.md").read_text(encoding="utf-8")
    assert "unreadable run 1 of 1, skipped: " in page
    assert "scores.png" in page
    assert main(["figure", "tiny", "--retry"]) == 0
    assert "unreadable" not in Path("figures", "tiny", "figure.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
def test_runs_are_evaluated_and_drawn_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on iterations in the test, and the plot of a single run."""
    settings = ("training.steps=2", "training.eval_every=1", "model.d_model=8", "model.n_layers=1", "layer.d_state=4")
    grid = "layer.max_iterations=1,4"
    plots: dict[str, Any] = {"plots": ("caps",), "each": ("inference",), "evaluate": grid}
    one = PaperFigure("limits", "Limits", small=(Sweep(("digits-fixed_point",), seeds=(0,), set=settings),), **plots)
    monkeypatch.setattr(figures, "paper_figures", lambda: {"limits": one})
    (run,) = trained(one, tmp_path / "runs")
    _, *pictures = make("limits", tmp_path / "out", places=[tmp_path / "runs"], say=lambda text: None)
    assert [path.name for path in pictures] == ["caps.png", "inference-seed=0.png"]
    points = json.loads((run.folder / "iterations.json").read_text(encoding="utf-8"))
    assert [one["point"] for one in points] == ["max_iterations=1", "max_iterations=4"]
    (run.folder / "iterations.json").write_text(json.dumps(points[:1]), encoding="utf-8")
    make("limits", tmp_path / "out", places=[tmp_path / "runs"], say=lambda text: None)  # evaluates once
    assert len(json.loads((run.folder / "iterations.json").read_text(encoding="utf-8"))) == 1


def test_settings_are_on_the_page(tiny: PaperFigure) -> None:
    said: list[str] = []
    page, *_ = make("tiny", "out", full=True, overrides=["training.steps=3"], seeds=[4], say=said.append)
    assert said[0] == "tiny: the figure has no seed 4; trained as --seeds asks"
    text = page.read_text(encoding="utf-8")
    assert "\n    rotrnn figure tiny --full --seeds 4 --set training.steps=3\n\nAt the size of the paper.\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "figure: expected NAME, or --list"),
        (["tin"], "figure is 'tin', expected one of tiny, drawn; did you mean tiny?"),
        (["drawn"], "figure: drawn is drawn by: python -m something"),
        (["tiny", "--set", "training.stepz=3"], "unknown key training.stepz"),
        (["tiny", "--out", "toy.toml"], "toy.toml"),
        (["tiny", "--out", "tiny.png"], "figure: folder is tiny.png, expected a folder, for the runs, the page and"),
        (["--list", "--runs", "nothere"], "figure: --runs nothere: there is no such folder"),
        (["tiny", "--runs", "nothere"], "figure: --runs nothere: there is no such folder"),
    ],
)
def test_bad_calls(tiny: PaperFigure, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("figures").exists()


def test_an_estimate_counts_every_run(tiny: PaperFigure, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(figures, "estimate", lambda recipe, steps, stand_in: type("", (), {"seconds": 90.0}))
    assert main(["figure", "tiny", "--estimate"]) == 0
    assert capsys.readouterr().out == "toy: 2 runs of 1 min 30 s\nin total 3 min 0 s, one run after the other\n"
    assert not Path("figures").exists()


# ---- figures.toml ----


@pytest.mark.filterwarnings("ignore:.*another .* drops")
@pytest.mark.parametrize("name", sorted(paper_figures()))
def test_a_figure_of_the_table(name: str) -> None:
    """Its sweeps can be planned, its plots exist, and the small size needs no files, but for Speech Commands."""
    one = paper_figures()[name]
    if one.command:
        assert not one.full
        return
    assert one.plots
    assert set(one.plots) | set(one.each) <= KNOWN
    for full in (False, True):
        runs = one.runs(full)
        assert set(runs) <= set(recipe_names())
        assert all(runs.values())
    needy = any(isinstance(recipe.task, Released) for some in one.runs().values() for recipe in some.values())
    assert needy == (name == "rotrnn-table2")


@pytest.mark.filterwarnings("ignore:.*another .* drops")
@pytest.mark.parametrize("name", sorted(name for name, one in paper_figures().items() if one.page))
def test_what_a_figure_took_is_what_was_recorded(name: str) -> None:
    """The seconds of the runs of the small size, each of which is on the page, which may have more seeds."""
    one = paper_figures()[name]
    took: dict[str, float] = {}
    for row in json.loads((RECORDED / f"{one.page}.json").read_text(encoding="utf-8"))["rows"]:
        each = row["seconds"].get("each", [row["seconds"]["mean"]] * row["done"])  # old records have only the mean
        for seed, seconds in zip(row["seeds"], each, strict=True):
            took[f"{row['configuration']},seed={seed}"] = seconds
    assert one.seconds == round(sum(took[label] for runs in one.runs().values() for label in runs))


def test_figures_whose_pages_have_more_seeds_say_what_they_took() -> None:
    assert all(paper_figures()[name].seconds for name in ("delta-A5", "carried-A5", "carried-S5"))


def test_figures_of_the_table_have_pages_in_the_documentation() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    named = set(re.findall(r"rotrnn figure (\w[\w-]*)", text)) - {"NAME"}
    assert named <= set(paper_figures())
    assert {name for name, one in paper_figures().items() if one.full} <= named
