"""The benchmarks run, print the documented form, and do not time wrong results."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as everything
from benchmarks import (
    adaptive,
    busy,
    expressive,
    fixed_points,
    forecasts,
    full_size,
    gaps,
    growth,
    recall,
    report,
    ssd,
    tiles,
    training,
)
from benchmarks.loading import SIZES
from benchmarks.measure import origin, seconds_in_turn
from benchmarks.peers import __main__ as peers
from benchmarks.peers.problem import ROUNDINGS, Size, error_bound
from benchmarks.record import record, text_of
from rotrnn import _cpu
from rotrnn.cli import _overrides, _parser
from rotrnn.nn.layer import form_leaves
from rotrnn.nn.registry import LAYERS
from rotrnn.tasks import Brackets, Digits, Recall, Released
from rotrnn.tasks.word_problem import group
from rotrnn.training.recipe import load_recipe
from rotrnn.training.run import Run
from rotrnn.training.sweep import parse_grid, parse_seeds, plan

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        not _cpu.KEEPS_MEMORY, reason="peers run under a limit of memory, in which a sanitizer's shadow finds no room"
    ),
]


def files() -> dict[Path, bytes]:
    """The path that a recorded run writes to."""
    results = [path for path in (ROOT / "benchmarks" / "results").rglob("*") if path.is_file()]
    pages = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
    return {path: path.read_bytes() for path in (*pages, *results)}


def quick_rows(module: str, *more: str) -> list[dict[str, Any]]:
    """The rows of a quick run of a benchmark, which records nothing."""
    before = files()
    command = [sys.executable, "-m", module, "--quick", "--json", *more]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert files() == before
    return [json.loads(line) for line in out.splitlines()]


def test_a_training_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of each run of one of the digits' sweeps, under a name of which docs/results.md shows a picture."""
    monkeypatch.setattr(training, "FOLDER", tmp_path / "results")
    arguments = "digits-lru --seeds 0..1 --set training.steps=1 --set model.n_layers=1"
    folder = training.sweep(arguments, tmp_path / "sweep", 2)
    name, drawn = "digits-normalise", tmp_path / "pictures"
    text = training.report(name, [f"rotrnn sweep {arguments}"], [folder], drawn)
    assert text.startswith(f"# {name}\n\n    rotrnn sweep {arguments}\n\n2 runs, ")
    assert "| digits-lru    | 2 " in text
    recorded = json.loads((tmp_path / "results" / f"{name}.json").read_text(encoding="utf-8"))
    (row,) = recorded["rows"]
    assert list(recorded["validation"]) == [f"sweep/seed={seed}" for seed in (0, 1)]
    assert all(one["step"] == [1] and len(one["val_accuracy"]) == 1 for one in recorded["validation"].values())
    assert row["seeds"] == [0, 1]
    assert len(row["best"]["accuracy"]["each"]) == 2
    assert text == training.page(name, json.loads((tmp_path / "results" / f"{name}.json").read_text(encoding="utf-8")))
    assert {"learning.png", "scores.png"} <= {path.name for path in drawn.iterdir()}
    assert [path.name for path in (tmp_path / "results").glob("*.png")] == [f"{name}-norms_over_training.png"]
    assert f"]({name}-norms_over_training.png)" in text
    assert training.report("digits", [], [folder], drawn).count("![") == 0  # nobody shows a picture of these


@pytest.mark.filterwarnings("ignore::rotrnn.NotConverged")
def test_gaps_are_measured_at_the_steps_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps, kept at each second: the copies are the checkpoints of those steps, the last the one of the end."""
    small = ("model.d_model=8", "layer.d_state=2", "training.batch=4", "task.samples=4000", "task.test=4")
    steps = ("training.steps=4", "training.eval_every=2", "task.test_length=20")
    monkeypatch.setattr(gaps, "SETTINGS", (*gaps.SETTINGS, *small, *steps))
    monkeypatch.setattr(gaps, "EVERY", 2)
    monkeypatch.setattr(gaps, "POSITIONS", (4, 16, 20))
    gaps.trained("bedouin", 0.1, 0, tmp_path / "run")
    run = Run(tmp_path / "run")
    recipe = run.load_recipe()
    assert gaps.kept(run) == [2, 4]
    assert [run.read(f"step-{step}", recipe)[1]["step"] for step in (2, 4)] == [2, 4]
    found = gaps.measured(run, 2)
    assert found["steps"] == [0, 2, 4]
    assert found["validation"][0] is None
    assert None not in found["validation"][1:]
    for each in found["differences"].values():
        assert np.array(each).shape == (3, 3)
        assert np.isfinite(each).all()
    assert found["test"] == run.read_json(run.result)["test"]["last"]["sequence_accuracy"]

    rows = [*fixed_points.iteration_rows(run, (4,), 5), *fixed_points.gradient_rows(run, 4)]
    assert len(rows) == 2 * (len(fixed_points.WAYS) + 4 + len(fixed_points.STEPS))
    grown = growth.row(run)
    assert [grown[name] for name in ("gradient", "steps", "seed")] == ["one_step", 4, 0]
    assert all(float(grown[f"length of y_{t}"]) > 0 for t in growth.PRODUCTS)
    found = list(adaptive.rows_of(run, 3, (8,)))
    assert [row["words"] for row in found] == [f"{share:g} % moves" for share in (0, 12.5, 25, 50, 100)] + [
        "powers of one"
    ]
    assert [row["moves"] for row in found[:-1]] == [0, 1, 2, 4, 8]
    assert len(adaptive.draw(found).axes) == len(adaptive.WAYS)


def test_words_of_powers_commute_and_the_order_of_others_matters() -> None:
    of = group("A5")
    rng = np.random.default_rng(0)
    powers = adaptive.words_of(adaptive.POWERS, 20, 9, of, rng)
    assert len({tuple(np.unique(row)) for row in powers}) > 1
    assert not adaptive.ordered(powers, of).any()
    assert (of.states(np.repeat(powers[:, :1], 5, 1))[:, -1] == 0).all()  # the largest order in A5 is 5
    assert not adaptive.ordered(adaptive.words_of(0.0, 2, 9, of, rng), of).any()
    words = adaptive.words_of(1.0, 50, 9, of, rng)
    assert (words != 0).all()
    share = adaptive.ordered(words, of)[:, 1:].mean()  # of pairs in A5, 5 in 60 commute: 5 classes
    assert abs(share - (1 - 5 / 60) * 60 / 59) < 4 * (1 / 12 / words[:, 1:].size) ** 0.5


def test_every_recorded_page_is_made_of_the_recorded_numbers() -> None:
    found = sorted(training.FOLDER.glob("*.json"))
    assert found
    assert {one.stem for one in found} == {one.stem for one in training.FOLDER.glob("*.md")}
    for path in found:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".md").read_text(encoding="utf-8") == training.page(path.stem, recorded), path
        assert all((path.parent / picture).exists() for picture in recorded["pictures"])
        assert recorded["majority"] == "" or recorded["majority"].startswith("Labels that are"), path


@pytest.mark.filterwarnings("ignore:.*another model.layer drops")
def test_the_commands_of_a_record_plan_its_runs() -> None:
    """As many runs, of as many steps; runs that failed have no steps in the record."""
    for path in sorted(training.FOLDER.glob("*.json")):
        recorded, planned = json.loads(path.read_text(encoding="utf-8")), []
        for command in recorded["commands"]:
            program, *words = shlex.split(command)
            assert program == "rotrnn"
            args = _parser().parse_args(words)
            if words[0] == "train":
                planned.append(load_recipe(args.recipe, _overrides(args, "steps")))
                continue
            seeds, grid = parse_seeds(args.seeds) if args.seeds else (), [parse_grid(one) for one in args.grid]
            runs = plan(args.recipe, seeds=seeds, grid=grid, variants=args.variant, overrides=_overrides(args, "steps"))
            planned += runs.values()
        rows = recorded["rows"]
        assert sum(row["done"] + row["failed"] + row["unfinished"] for row in rows) == len(planned), path.stem
        steps = [row["steps"] for row in rows for _ in range(row["done"])]
        assert Counter(steps) <= Counter(recipe.training.steps for recipe in planned), path.stem


def test_a_recorded_command_names_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks --record` was recorded of benchmarks.jax, and is no command."""
    monkeypatch.setattr(sys, "argv", ["jax.py", "--record"])
    for name, said in (("benchmarks.jax", "benchmarks.jax"), ("benchmarks.__main__", "benchmarks")):
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(name, None))
        assert origin()["command"] == f"python -m {said} --record"
    for path in (ROOT / "benchmarks" / "results").rglob("*.json"):
        for words in map(shlex.split, re.findall(r'"command":"(.*?)"', path.read_text(encoding="utf-8"))):
            if "-m" in words:
                module = words[words.index("-m") + 1]
                spec = find_spec(f"{module}.__main__" if module == "benchmarks" else module)
                assert spec is not None, path
                assert spec.origin is not None
                source = Path(spec.origin).read_text(encoding="utf-8")
                assert all(f'"{word}"' in source for word in words if word.startswith("--")), (path, words)


def test_every_record_has_the_form_that_record_writes() -> None:
    for path in (ROOT / "benchmarks" / "results").rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert text == text_of(json.loads(text)), path  # no NaN either, which JSON does not have


def test_a_record_has_a_line_for_each_entry_and_for_each_object_of_a_list(tmp_path: Path) -> None:
    value = {"machine": {"cores": 2}, "rows": [{"each": [1 / 3, 1e10 / 3], "of": {"B": 1}}, {"each": []}], "empty": {}}
    kept = record(tmp_path / "kept.json", value)
    text = (tmp_path / "kept.json").read_text(encoding="utf-8")
    rows = '{"each":[0.3333333,3333333000.0],"of":{"B":1}},\n{"each":[]}'
    assert text == f'{{\n"machine":{{\n"cores":2\n}},\n"rows":[\n{rows}\n],\n"empty":{{}}\n}}\n'
    assert kept == json.loads(text)


def test_the_majority_is_that_of_longer_sequences_too() -> None:
    """Brackets with multiplication: 0 is more frequent the longer the expression, and no answer scores below it."""
    task = Brackets(operators="+-*", test=400).load()
    batch = task.test.batch(np.arange(400))
    values = np.array([labels.max() for labels in batch.labels])
    whole, longer = (100 * np.mean(one == 0) for one in (values, values[batch.lengths > 39]))
    expected = f"brackets {whole:.1f} %, {longer:.1f} % of those longer than 39, scaled {(longer - 20) / 0.8:.1f}"
    assert training._share(task) == expected
    assert training._share(Digits().load()).startswith("digits ")


def test_speedups_are_those_of_two_recipes_each() -> None:
    rows = {"scifar-rnn": {"seconds_per_step": 9.0}, "scifar-lru": {"seconds_per_step": 3.0}}
    assert full_size.speedups(rows).splitlines()[-1] == "| scifar | 9.00 | 3.00 | 3.0 | 8.0 |"
    assert full_size.speedups({"scifar-lru": {"seconds_per_step": 3.0}}) == ""
    assert {f"{task}-{kind}" for task in full_size.TABLE_4 for kind in ("rnn", "lru")} <= set(full_size.RECIPES)


def test_recall_is_written_up_from_what_is_recorded(tmp_path: Path) -> None:
    """The page is that of the recorded numbers, and has a line for each variant of both recipes."""
    recorded = json.loads((recall.RESULTS / "recall.json").read_text(encoding="utf-8"))
    recall.write_up(recorded, tmp_path)
    page = (tmp_path / "recall.md").read_text(encoding="utf-8")
    assert page == (recall.RESULTS / "recall.md").read_text(encoding="utf-8")
    assert (tmp_path / "recall.png").stat().st_size > 0
    for name, rows in recorded["rows"].items():
        variants = {one.source.configuration for one in plan(f"{name}-small").values()}
        assert variants == {row["configuration"] for row in rows} <= set(recall.LOOKS)
        assert all(f"| {variant} " in page for variant in variants)
        assert {len(runs) for runs in recall.by_age(rows).values()} == {3}  # seeds that are far apart have no mean
    figure = recall.draw(recorded["rows"], {name: load_recipe(name) for name in recorded["rows"]})
    assert [len(axes.lines) for axes in figure.axes] == [3 * 12 + 3, 3 * 10 + 2]  # age L, guessing, RoPE at best


def test_no_label_of_a_bar_lies_on_the_line_at_one() -> None:
    recorded = json.loads((ROOT / "benchmarks" / "results" / "bench.json").read_text(encoding="utf-8"))
    for axes in report.chart(recorded["rows"]).axes:
        assert not [text.get_text() for text in axes.texts if 0.8 < text.get_position()[0] < 1]


def test_forecasts_are_written_up_from_what_is_recorded(tmp_path: Path) -> None:
    recorded = json.loads((forecasts.RESULTS / "forecasts.json").read_text(encoding="utf-8"))
    forecasts.write_up(recorded, tmp_path)
    page = (tmp_path / "forecasts.md").read_text(encoding="utf-8")
    assert page == (forecasts.RESULTS / "forecasts.md").read_text(encoding="utf-8")
    assert all(f"| {name} " in page for row in recorded["rows"] for name in row["errors"])


def test_what_rope_reaches_at_best() -> None:
    """The most frequent value of the states that are a multiple of L away, over all that these can be."""
    task = Recall(values=3, max_age=9, length=10, test_length=14)
    expected = []
    for age in range(10):
        shares = []
        for t in range(age, 14):
            alike = [k for k in range(t + 1) if (k - age) % 3 == 0]
            draws = list(itertools.product(range(3), repeat=len(alike)))
            shares.append(np.mean([np.bincount(draw).max() / len(alike) for draw in draws]))
        expected.append(np.mean(shares))
    np.testing.assert_allclose(recall.rope_at_best(task, 3), expected, rtol=1e-12)
    np.testing.assert_allclose(recall.rope_at_best(task, 14), 1)


def test_every_training_is_a_sweep() -> None:
    for arguments in (one for some in training.TRAININGS.values() for one in some):
        args = _parser().parse_args(["sweep", *arguments.split()])
        assert plan(args.recipe, grid=[parse_grid(one) for one in args.grid], variants=args.variant)


@pytest.mark.filterwarnings("ignore:.*another task.name drops")
def test_every_layer_is_in_the_table_of_what_layers_express() -> None:
    """Once, with a state of 512 numbers where its size is a setting."""
    listed = [layer for kind in expressive.KINDS for layer in kind.layers]
    for settings, _ in expressive.TASKS.values():
        args = _parser().parse_args(["sweep", expressive.NAME, *settings.split()])
        runs = plan(args.recipe, seeds=[0], overrides=args.set)
        assert sorted(name.split(",")[0] for name in runs) == sorted(listed)
    assert {one.model.layer for one in runs.values()} == set(LAYERS)
    of_another_size = {"rg_lru", "pd_ssm", "attention", "wrope_memory"}  # of channels, lanes, or steps
    for name, one in runs.items():
        state = form_leaves(one.build(one.task.load()).stack.blocks[0].layer.state_form)
        sizes = [of.lanes for of in state if of.kind != "integer"]
        # windows of convolutions, normalisers and the last input aside
        assert one.model.layer in of_another_size or 512 in (*sizes, sum(sizes)), (name, sizes)


def test_the_table_of_what_layers_express() -> None:
    """Means over lengths by their numbers of strings; the first of 16 products, and all 32."""
    row: dict[str, Any] = dict.fromkeys(
        ("configuration", "done", "failed", "unfinished", "seeds", "steps", "commits"), 1
    )
    row |= {"parameters": 5, "metric": "accuracy", "seconds": {"each": [1.0]}}
    curve = {"length": [3, 20, 21], "n": [1, 3, 2], "accuracy": [{"each": [1.0]}, {"each": [0.6]}, {"each": [0.25]}]}
    found = expressive.numbers(row | {"best": {"curve": curve}}, 20)
    assert found["as_trained"] == [pytest.approx(0.7)]
    assert found["longer"] == [0.25]
    curve = {
        "length": [15, 16, 31, 32],
        "n": [5] * 4,
        "sequence_accuracy": [{"each": [x]} for x in (1, 0.5, 0.5, 0.125)],
    }
    found = expressive.numbers(row | {"metric": "sequence_accuracy", "best": {"curve": curve}}, 16)
    assert (found["as_trained"], found["longer"]) == ([0.5], [0.125])
    rows = [found | {"configuration": "delta_net-4"}]
    text = expressive.page({"S5": {"circumstances": "1 run, 9 s.", "rows": rows}})
    assert "- S5: products right at every step. 1 run, 9 s.\n" in text
    assert (
        "| delta_net-4 | 5 | **yes** not run | not run | **yes** not run | **yes** not run | **yes** 50 / 12 |" in text
    )


def test_what_a_full_size_run_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of a recipe. A new measurement replaces its row and keeps the other rows."""
    monkeypatch.setattr(full_size, "STEPS", 2)
    monkeypatch.setattr(full_size, "WHOLE", 2)
    monkeypatch.setattr(full_size, "RESULTS", tmp_path)
    monkeypatch.setattr(full_size, "rows_of_child", lambda module, name, *rest: [full_size.measure(name)])
    monkeypatch.setattr(sys, "argv", ["full_size", "delayed-copy-minimal-lru"])
    full_size.main()
    (row,) = rows = json.loads((tmp_path / "full_size.json").read_text(encoding="utf-8"))
    assert row["steps_of_one_sequence"] == 2
    assert row["seconds"] >= row["steps"] * row["seconds_per_step"] > 0
    other = row | {"recipe": full_size.RECIPES[-1]}
    (tmp_path / "full_size.json").write_text(json.dumps([other, row | {"steps": 1}]), encoding="utf-8")
    monkeypatch.setattr(full_size, "measure", lambda name: row)
    full_size.main()
    assert json.loads((tmp_path / "full_size.json").read_text(encoding="utf-8")) == [*rows, other]
    assert (tmp_path / "full_size.md").read_text(encoding="utf-8").count("\n| ") == 3


def test_what_a_core_takes_for_generated_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a small recipe; the page that is there is that of the records."""
    full_size_page = (full_size.RESULTS / "full_size.md").read_text(encoding="utf-8")
    for name in ("full_size.json", "full_size_cores.json", "training"):
        (tmp_path / name).symlink_to(full_size.RESULTS / name)
    monkeypatch.setattr(full_size, "RESULTS", tmp_path)
    full_size.write_up()
    assert (tmp_path / "full_size.md").read_text(encoding="utf-8") == full_size_page
    monkeypatch.setattr(full_size, "WHOLE", 1)
    small = ["training.batch=4", "model.d_model=8", "model.n_layers=1", "layer.d_state=4"]
    recipe = load_recipe("word-problem-carry-delta-small", [*small, "layer.heads=2", "task.samples=2000"])
    monkeypatch.setattr(full_size, "generated", lambda name: recipe)
    row = full_size.measure_cores("word-problem lstm")
    assert (row["batch"], row["steps"]) == (4, 8000)
    assert row["float32"] > 0
    assert (row["bf16"] is None) == (_cpu.bf16_by() == "float32")
    assert full_size.table_of_cores([row]).splitlines()[-1].startswith("| A5 or S5, lstm | ")
    assert full_size.recorded_seconds("listops-lru") == pytest.approx(2 / 3.786137)  # two threads
    assert full_size.recorded_seconds("brackets lstm") is None


def test_runs_whose_data_are_generated_are_those_of_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in full_size.GENERATED:
        recipe = full_size.generated(name)
        assert not isinstance(recipe.task, Released)
        assert recipe.source.configuration.partition(",")[0] == name.partition(" ")[2]


def test_quick_run_of_pathfinder() -> None:
    rows = quick_rows("benchmarks.pathfinder")
    assert [row["resolution"] for row in rows] == [32, 64, 128, 256]
    for row in rows:
        assert row["threads"] == 1
        assert row["images/s"] == pytest.approx(1 / row["seconds"])
        if "speedup" in row:
            assert row["speedup"] == pytest.approx(row["original_seconds"] / row["seconds"])


def test_quick_run_at_uneven_times() -> None:
    """The layers that read intervals, each with both times."""
    rows = quick_rows("benchmarks.layers", "--uneven")
    assert {row["layer"] for row in rows} == {"linoss", "s4d", "s5"}
    assert all(row["seconds"] > 0 and row["limit"] == "even times" and row["limit_seconds"] > 0 for row in rows)


def test_quick_run_of_mamba2() -> None:
    """The scan and the layer have a row beside each limit."""
    rows = list(ssd.rows(1, 70, 8, 4, 0.02))
    assert [row["limit"] for row in rows] == ["products"] * 3 + ["mamba, N 16"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["seconds"] / row["limit_seconds"])


def test_quick_run_of_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way has its rows, and finds the same; the table and the picture have them."""
    monkeypatch.setattr(tiles, "RESULTS", tmp_path)
    monkeypatch.setattr(tiles, "WEIGHTS", {"initial": tiles.WEIGHTS["initial"]})
    rows = tiles.rows((4, 9), 0.02)
    assert [row["path"] for row in rows[:6]] == ["whole", "tile 64", "tile 16", "tile 4", "tile 1", "direct"]
    assert {row["T"] for row in rows} == {4, 9}
    for row in rows:
        assert row["converged"] == 1
        # the tolerance, 1e-3, of each of 9 tiles at most; lam is below 1 and |I - Q| (1 - lam) below 1/2
        assert row["apart"] <= 9 * 1e-3
        assert row["ns/token"] == pytest.approx(1e9 * row["seconds"] / (8 * row["T"]))
        assert row["iterations"] <= row["most"]
    tiles.write(rows)
    assert (tmp_path / "tiles.md").read_text(encoding="utf-8").count("\n| initial | ") == len(rows) == 12
    assert json.loads((tmp_path / "tiles.json").read_text(encoding="utf-8"))["results"] == json.loads(text_of(rows))
    assert (tmp_path / "tiles.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_that_are_not_kept_are_drawn_again(tmp_path: Path) -> None:
    before = files()
    for command in (["pathfinder", "--sheets"], ["pathfinder_cnn", "--draw"]):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        subprocess.run(
            [sys.executable, "-m", f"benchmarks.{command[0]}", command[1]], cwd=tmp_path, env=environment, check=True
        )
    assert {path.name for path in tmp_path.iterdir()} == {"pathfinder-32.png", "path-x.png", "pathfinder_cnn.png"}
    assert files() == before


def test_quick_run_of_a_convolutional_network() -> None:
    """Runs if PyTorch is installed; otherwise the error says what to install."""
    before = files()
    command = [sys.executable, "-m", "benchmarks.pathfinder_cnn", "--quick", "--json", "--epochs", "2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert files() == before
    if find_spec("torch") is None:
        assert run.returncode == 2
        assert "torch is not installed: pip install -e '.[peers]'" in run.stderr
        return
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["images"] == 2 * 4 * found["batch"]
    assert 0 <= found["test_accuracy"] <= 1
    assert "step     8/8 " in run.stderr


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Returns the rows of a quick run of all benchmarks."""
    return quick_rows("benchmarks")


def test_quick_run_goes_through_every_subject(rows: list[dict[str, Any]]) -> None:
    beside = {"scan", "layer", "block", "train_step", "length", "layers", "ops", "iteration", "stream"}
    assert {row["subject"] for row in rows} == {"machine", *beside, "peers"}
    for subject in ("layers", "stream"):
        assert [row["layer"] for row in rows if row["subject"] == subject] == list(LAYERS)
    for row in rows:
        if "error" in row:
            assert row["subject"] == "peers"
            assert "not installed" in row["error"]
            continue
        assert row["seconds"] > 0
        if "limit_seconds" in row:
            assert row["ratio"] == pytest.approx(row["seconds"] / row["limit_seconds"])


def test_every_peer_is_ours_within_rounding_or_not_installed(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if row["subject"] == "peers"]
    assert [(row["task"], row["peer"]) for row in found] == [
        (task, peer.label) for task, (ours, *others) in peers.TASKS.items() for peer in (*others, ours)
    ]
    timed = [row for row in found if "ratio" in row]
    assert "SciPy lfilter" in {row["peer"] for row in timed}  # SciPy is there wherever the tests are
    assert all(row["difference"] <= row["error_bound"] for row in timed)


def test_tables_hold_every_row(rows: list[dict[str, Any]]) -> None:
    machine = {"cpu": "cpu", "cores": 2, "simd": "avx512"}
    text = report.tables({"rows": rows, "machine": machine, "versions": {"numpy": "2", "jax": None}, "commit": "abc"})
    for row in rows:
        if row["subject"] == "peers":
            assert f"| {report.TASKS[row['task']]} | {row['peer']} |" in text
        elif row["subject"] == "length":
            assert f"| {row['T']:,} |" in text
        elif row["subject"] in ("layers", "stream"):
            assert f"| {row['layer']} |" in text
        elif row["subject"] in ("ops", "iteration"):
            assert f"| {row['name']} |" in text
        elif row["subject"] != "machine":
            assert f"| {report.label(row)} |" in text
    for table in text.split("\n\n"):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_subjects_measured_again_take_the_place_of_their_rows() -> None:
    def row(subject: str, seconds: float) -> dict[str, Any]:
        return {"subject": subject, "seconds": seconds}

    recorded = {"rows": [row("scan", 1), row("layers", 1), row("layers", 2), row("ops", 1)], "commit": "old"}
    new = {"rows": [row("layers", 3), row("stream", 3)], "commit": "new"}
    found = everything.among(recorded, new)
    assert found["rows"] == [row("scan", 1), row("layers", 3), row("ops", 1), row("stream", 3)]
    assert (found["commit"], found["later"]) == ("old", {"layers": "new", "stream": "new"})
    newest = everything.among(found, {"rows": [row("ops", 4)], "commit": "newest"})
    assert newest["later"] == {"layers": "new", "stream": "new", "ops": "newest"}
    assert newest["rows"][2] == row("ops", 4)


def test_the_readmes_rows_are_of_the_first_size_and_the_fastest_peer() -> None:
    recorded = json.loads((ROOT / "benchmarks" / "results" / "bench.json").read_text(encoding="utf-8"))
    limits, fastest = (table.splitlines()[2:] for table in report.headline(recorded).split("\n\n")[:2])
    assert [line.split(" | ")[0] for line in limits] == ["| scan, forward", "| training step of six blocks"]
    assert "D 128" in limits[1]
    for line, task in zip(fastest, ("scan gradient", "lru", "rotrnn"), strict=True):
        peers = [one for one in recorded["rows"] if one.get("task") == task and "ratio" in one]
        assert line.startswith(f"| {report.TASKS[task]} | ")
        assert line.endswith(f" | {min(one['ratio'] for one in peers):.1f} |")


def test_refresh_writes_between_the_markers_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    for text in ("one", "two"):
        report.refresh(readme, text)
        assert readme.read_text(encoding="utf-8") == f"before\n{report.BEGIN}\n\n{text}\n\n{report.END}\nafter\n"
    readme.write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="expected the markers"):
        report.refresh(readme, "text")


SIZE = Size(2, 64, 16, 32)
BOUND = error_bound(SIZE, ROUNDINGS)


@pytest.mark.parametrize(
    ("grad", "complaint"),
    [
        (np.array([1.0, 2 + 0.9 * BOUND]), None),
        (np.array([1.0, 2 + 3 * BOUND]), "differs by"),
        (np.array([1.0, np.nan]), "differs by inf"),
        (None, "answers"),
    ],
)
def test_a_time_counts_only_with_our_answer(tmp_path: Path, grad: np.ndarray | None, complaint: str | None) -> None:
    mine, theirs = tmp_path / "mine.npz", tmp_path / "theirs.npz"
    np.savez(mine, loss=np.array(1.0), grad=np.array([1.0, 2.0]))
    np.savez(theirs, loss=np.array(1.0), **({} if grad is None else {"grad": grad}))
    if complaint is None:
        assert peers.compare(theirs, mine, BOUND) == pytest.approx(0.9 * BOUND / np.sqrt(5))
    else:
        with pytest.raises(peers.Failed, match=complaint):
            peers.compare(theirs, mine, BOUND)


def test_what_a_peer_lacks_is_a_row_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = peers.TASKS["scan"][0]
    others = (
        peers.Peer("absent", "no_such_package", "nobody", "scan"),
        peers.Peer("broken", "rotrnn", "ours", "no_such_function"),
    )
    monkeypatch.setitem(peers.TASKS, "scan", (ours, *others))
    absent, broken, own = peers.contest("scan", SIZE, 0.02)
    assert "not installed" in absent["error"]
    assert "no_such_function" in broken["error"]
    assert own["seconds"] > 0
    huge = SIZE._replace(B=1 << 20, T=1 << 10)  # x and dh alone are 256 GiB
    with pytest.raises(peers.Failed, match="out of memory"):
        peers.Process(ours, "scan", huge, 0.02, tmp_path / "answer.npz")


def test_functions_take_turns_and_the_least_time_counts() -> None:
    calls: list[int] = []
    first, second = seconds_in_turn([lambda: calls.append(0), lambda: calls.append(1)], window=0.02)
    assert calls[:2] == [0, 1]
    turns = 1 + int(np.count_nonzero(np.diff(calls[2:])))
    assert turns >= 4  # two rounds at least
    assert 0 < first < 0.02
    assert 0 < second < 0.02


def test_quick_run_of_loading() -> None:
    rows = quick_rows("benchmarks.loading")
    assert [row["task"] for row in rows] == list(SIZES)
    for row in rows:
        assert row["ratio"] == row["seconds"] / row["limit_seconds"] > 0


def test_quick_run_beside_other_work() -> None:
    rows = quick_rows("benchmarks.busy")
    assert len(rows) == 2 * len(busy.SPINS) * (len(busy.LAYERS) + 1)
    for row in rows:
        ours = {"name": row["name"], "way": "rotrnn", "loops": row["loops"]}
        (one,) = (one for one in rows if ours.items() <= one.items())
        assert row["over"] == row["seconds"] / one["seconds"] > 0
