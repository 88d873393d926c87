"""Tables of results, compared with numbers written into the runs' folders."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import shutil
import statistics

import pytest

import toy
from rotrnn.cli import main
from rotrnn.training.loop import train
from rotrnn.training.recipe import load_recipe
from rotrnn.training.results import collect, duration, find_runs, markdown, render
from rotrnn.training.run import Run
from rotrnn.training.sweep import plan

BEST, LAST = (0.5, 0.75, 0.875), (0.25, 0.5, 1.0)
CURVE = {"length": [2, 5], "n": [3, 3], "accuracy": [1.0, 0.5], "sequence_accuracy": [0.75, 0.25]}
LOG = (
    {"step": 1, "loss": 2.0, "seconds": 0.5},
    {"step": 2, "loss": 1.0, "seconds": 1.5},
    {"step": 2, "val_loss": 1.5, "seconds": 2.0, "elapsed": 9.0, "peak_memory": 3 << 20},
)


def put(folder, name, recipe, best=None, last=None, **result):
    """Writes a run's folder as training does; the run is finished if scores are given."""
    run = Run(folder / name)
    run.folder.mkdir(parents=True)
    run.write(run.recipe, recipe.text())
    run.write(run.log, "".join(json.dumps(one) + "\n" for one in LOG))
    if best is not None:
        test = {
            at: {"loss": 1.0, "accuracy": score, "sequence_accuracy": score / 2, "n": 30, "curve": CURVE}
            for at, score in (("best", best), ("last", last))
        }
        result = {"metric": "accuracy", "selected_on": "validation", "best_step": 2, "parameters": 1234} | result
        result = {"steps": 2} | result
        run.write(run.result, json.dumps({**result, "test": test}))
    return run


@pytest.fixture
def runs(tmp_path):
    """A sweep over two rates. One has three finished seeds; the other has two finished ones, selected on the test
    split, a failed one and a missing one."""
    (tmp_path / "toy.toml").write_text(
        toy.RECIPE + '[sweep.published]\n"lr=0.2" = "61.1 % test"\n' + GRID, encoding="utf-8"
    )
    planned = plan(tmp_path / "toy.toml", seeds=[0, 1, 2, 3])
    for seed, best, last in zip((0, 1, 2), BEST, LAST, strict=True):
        name = f"lr=0.1,seed={seed}"
        put(tmp_path / "sweep", name, planned[name], best, last)
    for seed in (0, 1):
        name = f"lr=0.2,seed={seed}"
        put(tmp_path / "sweep", name, planned[name], 1.0, 0.5 + seed / 4, selected_on="test")
    put(tmp_path / "sweep", "lr=0.2,seed=2", planned["lr=0.2,seed=2"]).fail("step 3: the loss is nan")
    put(tmp_path / "sweep", "lr=0.2,seed=3", planned["lr=0.2,seed=3"])
    return tmp_path / "sweep"


GRID = '[sweep.grid]\n"optimiser.lr" = [0.1, 0.2]\n'


def rows(*folders, by=()):
    return [one.row() for one in collect(find_runs(folders), by)]


def test_means_deviations_and_costs(runs):
    first, second = rows(runs)
    assert (first["recipe"], first["configuration"]) == ("toy", "lr=0.1")
    assert (first["done"], first["failed"], first["unfinished"], first["seeds"]) == (3, 0, 0, [0, 1, 2])
    for name, scores in (("best", BEST), ("last", LAST)):
        expected = {"mean": statistics.fmean(scores), "sd": statistics.stdev(scores), "each": list(scores)}
        assert first[name]["accuracy"] == expected
    # sqrt(((1/2 - 17/24)^2 + (3/4 - 17/24)^2 + (7/8 - 17/24)^2) / 2)
    assert first["best"]["accuracy"]["sd"] == pytest.approx((14 / 24**2 * 3 / 2) ** 0.5)
    # two steps in two seconds, evaluations not counted
    assert first["steps_per_second"] == {"mean": 1.0, "sd": 0.0, "each": [1.0] * 3}
    assert first["seconds"] == {"mean": 4.0, "sd": 0.0, "each": [4.0] * 3}
    assert (first["peak_memory"], first["parameters"], first["published"]) == (3 << 20, 1234, None)
    assert (second["done"], second["failed"], second["unfinished"]) == (2, 1, 1)
    assert second["errors"] == {"lr=0.2,seed=2": "step 3: the loss is nan"}
    assert second["published"] == "61.1 % test"


def test_the_table(runs):
    head, _, first, second, *notes = render(rows(runs)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, first, second)]
    assert cells[0] == [
        *("configuration", "runs", "test length", "accuracy %, best", "accuracy %, last"),
        *("published", "parameters", "steps/s", "peak memory", "time"),
    ]
    each = ["50.0, 75.0, 87.5", "25.0, 50.0, 100.0"]
    assert cells[1] == ["lr=0.1", "3", "2 to 5", *each, "", "1,234", "1", "3 MiB", "4 s"]
    assert cells[2][:2] == ["lr=0.2", "2, 1 failed, 1 unfinished"]
    assert cells[2][3:6] == ["100.00 ± 0.00 †", "50.0, 75.0", "61.1 % test"]
    assert "† the best parameters were selected on the test split" in "\n".join(notes)
    assert "failed: lr=0.2 (lr=0.2,seed=2): step 3: the loss is nan" in notes
    assert "†" not in render(rows(runs / "lr=0.1,seed=0"))


def test_one_seed_has_no_deviation_and_none_no_numbers(runs):
    (row,) = rows(runs / "lr=0.1,seed=1")
    assert row["best"]["accuracy"] == {"mean": 0.75, "each": [0.75]}
    assert "| 75.00 " in render([row])
    (row,) = rows(runs / "lr=0.2,seed=3")
    assert row["best"] == {}
    assert "0, 1 unfinished" in render([row])


def test_runs_that_were_copied_elsewhere(runs, tmp_path):
    for i, run in enumerate(find_runs([runs])):
        shutil.copytree(run.folder, tmp_path / "elsewhere" / str(i % 2) / f"copy-{i}")
    without_names = [{**row, "errors": None} for row in rows(tmp_path / "elsewhere")]
    assert sorted(without_names, key=lambda row: row["configuration"]) == [
        {**row, "errors": None} for row in rows(runs)
    ]
    assert rows(runs / "lr=0.1,seed=1", runs / "lr=0.1,seed=1", runs) == rows(runs / "lr=0.1,seed=1", runs)


def test_runs_are_in_the_order_of_the_numbers_in_their_names(tmp_path):
    names = ["gru", "lr=1e-4,seed=0", "lr=0.001,seed=2", "lr=0.001,seed=10", "lstm,steps=4000", "lstm,steps=16000"]
    for name in sorted(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").touch()
    assert [run.folder.name for run in find_runs([tmp_path])] == names
    assert find_runs(str(tmp_path)) == find_runs(tmp_path) == find_runs([tmp_path])


def test_runs_of_one_recipe_and_seed_are_reported(runs, tmp_path):
    """The recipe does not record which data were in the folder."""
    shutil.copytree(runs / "lr=0.1,seed=1", tmp_path / "again")
    with pytest.warns(UserWarning, match="again: skipped, because it has the recipe and seed of .*lr=0.1,seed=1$"):
        rows(runs, tmp_path / "again")
    run = Run(tmp_path / "again")
    result = run.read_json(run.result)
    result["test"]["best"]["accuracy"] /= 2
    run.write(run.result, json.dumps(result))
    with pytest.warns(
        UserWarning, match="again: skipped, because it has the recipe and seed of .*lr=0.1,seed=1; its result is"
    ):
        assert len(rows(runs, tmp_path / "again")) == len(rows(runs))


def test_a_table_says_what_its_scores_are_of(tmp_path):
    """The length of prefixes, or the range of lengths; sizes where rows differ; of what the scaled accuracy is; and the
    fixed points that were not reached."""
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    wide = load_recipe(tmp_path / "toy.toml", ["model.d_model=8", "source.configuration=wide"])
    deep = load_recipe(tmp_path / "toy.toml", ["model.n_layers=3", "source.configuration=deep"])
    words = load_recipe("word-problem-small", ["source.configuration=words", "layer.tol=0.25", "model.d_model=8"])
    for name, recipe in (("wide", wide), ("deep", deep), ("words", words)):
        run = put(tmp_path / "runs", name, recipe, 0.5, 0.5)
        result = run.read_json(run.result)
        for found in result["test"].values():
            found["scaled_accuracy"] = 0.25
            if name == "wide":
                found["scaled_above"] = 2
            if name == "words":  # every prefix is one of all sequences
                found["curve"] = {**CURVE, "n": [30, 30]}
        run.write(run.result, json.dumps(result))
    run = Run(tmp_path / "runs" / "words")
    layers = [{"0.residual": residual, "1.residual": 0.125, "0.iterations": 9.0} for residual in (8.0, 0.5)]
    log = [{"step": i + 1, "loss": 1.0, "seconds": 1.0, "layers": one} for i, one in enumerate(layers)]
    run.write(run.log, "".join(json.dumps(one) + "\n" for one in log))
    found = {row["configuration"]: row for row in rows(tmp_path / "runs")}
    lengths = {"wide": "2 to 5", "deep": "2 to 5", "words": "5"}
    assert {name: row["test_length"] for name, row in found.items()} == lengths
    assert {name: (row["width"], row["blocks"]) for name, row in found.items()} == {
        "wide": (8, 1), "deep": (4, 3), "words": (8, 1),
    }  # fmt: skip
    assert found["words"]["residual"] == {"mean": 0.5, "each": [0.5]}  # at the end, the largest over blocks
    text = render(list(found.values()))
    assert [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")][:5] == [
        "configuration", "runs", "width", "blocks", "test length",
    ]  # fmt: skip
    assert "of the test sequences longer than 2, the longest in training, alone." in text
    assert "words: fixed points not reached: at the end of training the largest residual of a batch is 0.5, " in text
    assert "the tolerance 0.25." in text
    one = render([{**found["words"], "tol": 0.5}])
    assert "not reached" not in one
    assert "| width |" not in one
    assert "scaled: " not in one


def test_the_same_run_twice_counts_once(runs, tmp_path):
    shutil.copytree(runs / "lr=0.1,seed=1", tmp_path / "copy")
    (row,) = rows(tmp_path / "copy", runs / "lr=0.1,seed=1")
    assert (row["done"], row["seeds"]) == (1, [1])
    (tmp_path / "copy" / "result.json").unlink()  # one that has not ended, as after a sweep elsewhere
    assert rows(tmp_path / "copy", runs / "lr=0.1,seed=1") == [row]


def test_runs_without_a_sweep_are_named_by_their_differences(tmp_path):
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    for i, override in enumerate(("layer.r_max=0.5", "layer.r_max=0.6", "training.seed=7")):
        put(tmp_path / "runs", str(i), load_recipe(tmp_path / "toy.toml", [override]), 0.5, 0.5)
    assert [row["configuration"] for row in rows(tmp_path / "runs")] == [f"layer.r_max={r}" for r in (0.5, 0.6, 1.0)]
    assert [row["configuration"] for row in rows(tmp_path / "runs" / "1")] == ["task=toy,layer=lru"]


def test_a_setting_that_some_runs_do_not_have_is_unset(tmp_path):
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    for i, changes in enumerate([[], ["training.patience=1"]]):
        (recipe,) = plan(tmp_path / "toy.toml", overrides=changes).values()
        put(tmp_path / "runs", str(i), recipe, 0.5, 0.5)
    assert [row["configuration"] for row in rows(tmp_path / "runs")] == [
        "training.patience=unset",
        "training.patience=1",
    ]
    by = [row["configuration"] for row in rows(tmp_path / "runs", by=["training.patience"])]
    assert by == ["patience=unset", "patience=1"]
    with pytest.raises(ValueError, match=r"collect: by training\.patient: .* has no such setting"):
        rows(tmp_path / "runs", by=["training.patient"])


def test_recipes_are_named_where_there_are_several(runs, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(
            toy.RECIPE.replace("0.05", {"one": "0.1", "two": "0.3"}[name]), encoding="utf-8"
        )
        put(tmp_path / "more", name, plan(tmp_path / f"{name}.toml")["seed=0"], 0.5, 0.5)
    assert [row["configuration"] for row in rows(tmp_path / "more")] == ["one", "two"]
    names = [row["configuration"] for row in rows(tmp_path / "more" / "two", runs)]
    assert names == ["two", "toy lr=0.1", "toy lr=0.2"]


def test_published_figures_are_not_those_of_small_variants(runs, tmp_path):
    """A run by itself, a run of a sweep, and a run of a recipe that is based on a small variant."""
    (tmp_path / "mine.toml").write_text('base = "listops-lru-small"\n[layer]\nr_max = 0.5\n', encoding="utf-8")
    mine = plan(tmp_path / "mine.toml", seeds=[0])["seed=0"]
    swept = plan("listops-lru-small", seeds=[0])["seed=0"]
    old = dataclasses.replace(swept, source=dataclasses.replace(swept.source, small=False))
    for name, recipe in {"alone": load_recipe("listops-lru-small"), "swept": swept, "old": old, "mine": mine}.items():
        text = render(rows(put(tmp_path / "small", name, recipe, 0.5, 0.5).folder))
        assert "60.2 % test" in text
        assert "small variant: the published figures are those of the full recipe" in text
    whole = put(tmp_path / "whole", "0", load_recipe("listops-lru"), 0.5, 0.5)
    assert "60.2 % test" in render(rows(whole.folder))
    assert "small variant" not in render(rows(whole.folder)) + render(rows(runs))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(runs, loss):
    """A fixed point diverged on two test sets: accuracies are reported nevertheless."""
    for seed in (0, 1):
        run = Run(runs / f"lr=0.1,seed={seed}")
        result = run.read_json(run.result)
        result["test"]["best"]["loss"] = loss
        run.write(run.result, json.dumps(result))
    row = rows(runs)[0]
    assert math.isnan(row["best"]["loss"]["mean"])
    assert math.isnan(row["best"]["loss"]["sd"])
    assert row["best"]["accuracy"] == {"mean": statistics.fmean(BEST), "sd": statistics.stdev(BEST), "each": list(BEST)}
    for kind in (".md", ".csv", ".json"):
        assert render(rows(runs), kind)


def test_several_commits_are_reported(runs):
    folders = sorted(one.parent for one in runs.rglob("recipe.toml"))
    note = "trained with several commits of rotrnn"
    for folder, commit in zip(folders, [40 * "a"] * (len(folders) - 1) + [None], strict=True):
        (folder / "sessions.json").write_text(json.dumps([{"commit": commit}]), encoding="utf-8")
    assert note not in render(rows(runs))
    (folders[0] / "sessions.json").write_text(
        json.dumps([{"commit": 40 * "a"}, {"commit": 40 * "b"}]), encoding="utf-8"
    )
    assert f"{note}: aaaaaaaaaaaa, bbbbbbbbbbbb.\n" in render(rows(runs))


def test_published_remarks_are_below_the_table(runs):
    remark = "57.9 in the reproduction of another paper"
    text = render([{**row, "published": remark} for row in rows(runs)])
    assert text.count("| (1) ") == 2
    assert f"published, (1): {remark}" in text


def test_by_settings(runs):
    with pytest.warns(match=r"^layer=lru,.*: some of its runs have the same seed, and differ in optimiser.lr$"):
        (row,) = rows(runs, by=["model.layer", "optimiser.recurrent_factor"])
    assert row["configuration"] == "layer=lru,recurrent_factor=0.5"
    assert (row["done"], row["failed"], row["unfinished"]) == (5, 1, 1)
    assert len(rows(runs, by=["optimiser.lr"])) == 2
    with pytest.raises(ValueError, match=r"^collect: by layer.size: .* has no such setting"):
        rows(runs, by=["layer.size"])


@pytest.mark.parametrize("first", ["brackets", "toy"])
def test_by_settings_never_takes_tasks_or_metrics_together(tmp_path, first):
    """Runs with different scores: of two tasks, one of which has an additional number and a curve, and of two
    metrics."""
    brackets = load_recipe("brackets-small", ["model.layer=lru", "layer.d_state=4"])
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    for i, override in enumerate(("training.seed=1", "training.seed=2", "training.seed=3", "layer.r_max=0.5")):
        recipe = load_recipe(tmp_path / "toy.toml", [override])
        metric = "sequence_accuracy" if i == 1 else "accuracy"
        run = put(tmp_path / "toy", str(i), recipe, *([0.5, 0.25] if i != 2 else []), metric=metric, parameters=i)
        if i == 0:
            result = run.read_json(run.result)
            del result["test"]["best"]["curve"]
            run.write(run.result, json.dumps(result))
    run = put(tmp_path / "brackets", "0", brackets, 1.0, 1.0)
    result = run.read_json(run.result)
    for one in result["test"].values():
        one["scaled_accuracy"] = 0.75
    run.write(run.result, json.dumps(result))
    other = "toy" if first == "brackets" else "brackets"
    found = {row["configuration"]: row for row in rows(tmp_path / first, tmp_path / other, by=["model.layer"])}
    assert set(found) == {
        "task=brackets,layer=lru,metric=accuracy",
        "task=toy,layer=lru,metric=accuracy",
        "task=toy,layer=lru,metric=sequence_accuracy",
    }
    one, two = (found[f"task={task},layer=lru,metric=accuracy"] for task in ("brackets", "toy"))
    assert one["best"]["scaled_accuracy"] == {"mean": 0.75, "each": [0.75]}
    assert one["parameters"] == 1234
    assert (two["done"], two["unfinished"], two["seeds"], two["parameters"], two["steps"]) == (2, 1, [0, 1], None, 2)
    assert two["best"]["accuracy"] == {"mean": 0.5, "sd": 0.0, "each": [0.5, 0.5]}
    assert "curve" not in two["best"]
    assert "curve" in two["last"]
    assert "| 75.00 " in render(list(found.values()))
    names = [row["configuration"] for row in rows(tmp_path / "brackets", tmp_path / "toy" / "0", by=["task.name"])]
    assert names == ["name=brackets", "name=toy"]
    assert [row["configuration"] for row in rows(tmp_path / "toy" / "0", by=["model.layer"])] == ["layer=lru"]


def test_numbers_in_which_runs_differ_have_no_common_value(tmp_path):
    text = '[source]\naccuracy = "60.2"\n' + toy.RECIPE
    (tmp_path / "toy.toml").write_text(text, encoding="utf-8")
    for i, (override, selected_on) in enumerate((("layer.r_max=0.5", "validation"), ("source.accuracy=", "test"))):
        recipe = load_recipe(tmp_path / "toy.toml", [override, f"source.recipe=toy-{i}"])
        put(tmp_path / "runs", str(i), recipe, 0.5, 0.5, parameters=7, steps=i, selected_on=selected_on)
    (row,) = rows(tmp_path / "runs", by=["model.layer"])
    assert (row["parameters"], row["steps"], row["published"], row["selected_on"]) == (7, [0, 1], None, "test")
    assert row["recipe"] is None
    assert "| 7  " in render([row])


def test_only_shares_have_the_error_of_a_share(runs):
    row = rows(runs)[0]
    assert "a share p of them has the standard error" in render([row])
    assert "a share p of them" not in render([{**row, "metric": "skill"}])


def test_curves(runs):
    text = render(rows(runs), curve=True)
    head, _, *lines = text.split("\n\n")[0].splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")][:3] == [
        "length",
        "lr=0.1: accuracy %",
        "lr=0.1: sequences %",
    ]
    assert [cell.strip() for cell in lines[1].strip("|").split("|")][:3] == ["5", "50.00 ± 0.00", "25.00 ± 0.00"]
    table = list(csv.DictReader(io.StringIO(render(rows(runs), ".csv", curve=True))))
    assert len(table) == 8
    assert (table[1]["configuration"], table[1]["sequence_accuracy.mean"]) == ("lr=0.1", "0.25")


def test_csv_and_json_hold_all_numbers(runs):
    table = list(csv.DictReader(io.StringIO(render(rows(runs), ".csv"))))
    assert float(table[0]["best.accuracy.sd"]) == statistics.stdev(BEST)
    assert (table[0]["seeds"], table[1]["selected_on"], table[1]["failed"]) == ("0 1 2", "test", "1")
    assert json.loads(render(rows(runs), ".json")) == rows(runs)


def test_what_a_run_of_somebody_else_says_moves_no_cursor_and_computes_nothing(runs):
    row = {**rows(runs)[0], "configuration": "a\x1b[2Jb|c\n", "errors": {"=run": "\x1b]0;title\x07"}}
    text = render([row], unreadable=["\x9b1A"])
    assert text.replace("\n", "").isprintable()
    assert r"| a\x1b[2Jb\|c\n " in text
    assert r"failed: a\x1b[2Jb|c\n (=run): \x1b]0;title\x07" in text
    for formula in ("=1+1", "+1", "-1", "@SUM(A1)"):
        (cells,) = csv.DictReader(io.StringIO(render([{**row, "configuration": formula}], ".csv")))
        assert cells["configuration"] == f"'{formula}"
    assert float(cells["best.accuracy.mean"]) == row["best"]["accuracy"]["mean"]


def test_the_command(runs, tmp_path, capsys):
    assert main(["results", str(runs), "--out", str(tmp_path / "table.md")]) == 0
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text("utf-8") == render(rows(runs))
    assert main(["results", str(runs), "--curve", "--out", str(tmp_path / "curves.csv")]) == 0
    assert (tmp_path / "curves.csv").read_text("utf-8") == render(rows(runs), ".csv", curve=True)
    capsys.readouterr()
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "nowhere: is not the folder of a run, expected a folder with a recipe.toml"),
        ([str(runs), "--out", "table.txt"], "error: the end of --out is '.txt', expected .md, .csv or .json"),
        ([str(runs), "--by", "lr"], "error: --by lr: "),
    ):
        assert main(["results", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("rotrnn: error: ")
        assert message in error


def test_a_damaged_result_is_named(runs, tmp_path):
    (runs / "lr=0.1,seed=0" / "result.json").write_text('{"steps": 2', encoding="utf-8")
    with pytest.raises(ValueError, match=r"lr=0\.1,seed=0/result\.json: is damaged, expected JSON"):
        rows(runs)


@pytest.mark.parametrize("line", [
    "x", "3", "[]", '{"loss": 1.0}', '{"step": "x"}', '{"step": 1.5}', '{"step": true}', '{"step": 1, "elapsed": "x"}',
])  # fmt: skip
def test_a_malformed_line_of_the_log_is_named(runs, line):
    run = Run(runs / "lr=0.1,seed=0")
    run.log.write_text(f'{{"step": 1}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: is damaged, expected a record with its step"):
        run.cut_log(1)


SCORES = '{"accuracy": 0.5, "sequence_accuracy": 0.25, "scaled_accuracy": -3, "skill": -9, "loss": 5e9}'
WHOLE = (
    '{"metric": "accuracy", "selected_on": "test", "best_step": 1, "parameters": 7, '
    f'"test": {{"best": {SCORES}, "last": {SCORES}}}}}'
)


def test_scores_that_may_be_of_any_size(runs):
    (runs / "lr=0.1,seed=0" / "result.json").write_text(WHOLE, encoding="utf-8")
    assert rows(runs / "lr=0.1,seed=0")[0]["best"]["scaled_accuracy"]["mean"] == -3


@pytest.mark.parametrize("seconds", ["1e999", "null"])
def test_times_that_are_not_finite_are_not_shown(runs, seconds):
    run = Run(runs / "lr=0.1,seed=0")
    run.log.write_text(run.log.read_text("utf-8") + f'{{"step": 3, "seconds": {seconds}}}\n', encoding="utf-8")
    (row,) = rows(run.folder)
    assert row["seconds"] is None
    assert "lr=0.1" in render([row])


def test_numbers_that_no_table_can_show_are_named(runs):
    (runs / "lr=0.1,seed=0" / "result.json").write_text(
        WHOLE.replace('"skill"', '"scaled_above": [1], "skill"'), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"lr=0\.1,seed=0: result\.json or log\.jsonl is damaged"):
        rows(runs)


@pytest.mark.parametrize(
    ("name", "texts", "expected"),
    [
        (
            "result",
            ["{}", "[]", "3", '{"test": {}}', '{"metric": ["a"], "selected_on": "test", "best_step": 1, "test": {}}'],
            'an object with "metric", "selected_on", "best_step", "test"',
        ),
        (
            "result",
            [WHOLE.replace("7", one) for one in ("[]", "{}", "-1", "2.0", "null", "true", '"x"')],
            r'"parameters" to be an integer from 0, got ',
        ),
        ("result", [WHOLE.replace("0.5", one) for one in ("1.01", "-0.1")], r'"accuracy" to be from 0 to 1, got '),
        ("result", [WHOLE.replace("0.25", '"x"')], r'"sequence_accuracy" to be from 0 to 1, got \'x\''),
        ("failed", ["{}", "[]", "3", '{"error": 1}'], 'an object with "error"'),
    ],
)
def test_json_of_something_else_is_named(runs, name, texts, expected):
    path = runs / "lr=0.1,seed=0" / f"{name}.json"
    for text in texts:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{name}\.json: is damaged, expected {expected}"):
            rows(runs)


def test_json_that_is_too_deep_is_named(runs):
    for name in ("result.json", "log.jsonl"):
        path = runs / "lr=0.1,seed=0" / name
        whole = path.read_bytes()
        path.write_text("[" * 100_000 + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{name}.*is damaged"):
            rows(runs)
        path.write_bytes(whole)


RESULT = '{"metric": "accuracy", "selected_on": "validation", "best_step": 1}'
PART = '"test": {"best": {"accuracy": 1}}}'
DAMAGES = {
    "recipe.toml": ('[task]\nname = "to', "/recipe.toml: not valid TOML"),
    "log.jsonl": ('{"step": 1}\nx\n', "/log.jsonl, line 2: is damaged"),
    "result.json": (f"{RESULT[:-1]}, {PART}", "/result.json: is damaged, expected an object with"),
    "failed.json": ("{", "/failed.json: is damaged, expected JSON"),
}


def test_what_cannot_be_read_is_named_below_the_table_of_the_rest(runs, tmp_path, capsys):
    """A run for each kind of damage, a folder without a run, and a missing folder."""
    names = [f"lr=0.1,seed={seed}" for seed in (0, 1, 2)] + ["lr=0.2,seed=0"]
    for name, (file, (text, _)) in zip(names, DAMAGES.items(), strict=True):
        (runs / name / file).write_text(text, encoding="utf-8")
    (runs / "foreign").mkdir()
    (runs / "foreign" / "recipe.toml").write_text('[cake]\nflour = "500 g"\n', encoding="utf-8")
    folders = [str(runs), str(tmp_path / "nowhere")]
    assert main(["results", *folders, "--out", str(tmp_path / "table.md")]) == 0
    out = capsys.readouterr().out
    assert out == (tmp_path / "table.md").read_text("utf-8")
    told = [line for line in out.splitlines() if line.startswith("unreadable run ")]
    expected = [str(runs / name) + message for name, (_, message) in zip(names, DAMAGES.values(), strict=True)]
    expected = [
        f"{runs}/foreign/recipe.toml: unknown section [cake]",
        *expected,
        f"{tmp_path}/nowhere: is not the folder of a run",
    ]
    assert [line.startswith(f"unreadable run {i} of 6, skipped: ") for i, line in enumerate(told, 1)] == [True] * 6
    for line, message in zip(told, expected, strict=True):
        assert message in line
    (row,) = [line for line in out.splitlines() if line.startswith("| lr=0.2")]
    assert row.split("|")[2].strip() == "1, 1 failed, 1 unfinished"  # not the fourth, which is unreadable
    for name in ("lr=0.2,seed=1", "lr=0.2,seed=2", "lr=0.2,seed=3"):
        (runs / name / "recipe.toml").write_text("?", encoding="utf-8")
    assert main(["results", *folders]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("/recipe.toml: not valid TOML") == 4


def test_a_run_that_lost_its_recipe_is_named(runs, tmp_path, capsys):
    """Also of an unfinished run, by its checkpoint; a table that was written beside the runs is none."""
    lost = [runs / "lr=0.1,seed=1", runs / "lr=0.2,seed=3"]
    (lost[1] / "last.safetensors").touch()
    for folder in lost:
        (folder / "recipe.toml").unlink()
    (runs / "result.json").touch()
    assert main(["results", str(runs)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("unreadable run ")]
    expected = "is not the folder of a run, expected a folder with a recipe.toml"
    assert told == [f"unreadable run {i} of 2, skipped: {one}: {expected}" for i, one in enumerate(lost, 1)]
    (recipe,) = plan(tmp_path / "toy.toml", grid=[("optimiser.lr", [0.1])]).values()
    with pytest.raises(ValueError, match=r"already holds a run \(log\.jsonl\); put its recipe\.toml back, or use"):
        train(recipe, lost[1], progress=False)


def test_a_task_without_curves_says_so(tmp_path):
    (tmp_path / "toy.toml").write_text(toy.RECIPE, encoding="utf-8")
    train(plan(tmp_path / "toy.toml", overrides=["training.steps=3"])["seed=0"], tmp_path / "run", progress=False)
    (row,) = rows(tmp_path / "run")
    assert row["steps_per_second"]["mean"] > 0 < row["peak_memory"]
    with pytest.raises(ValueError, match=r"^render: curve: no finished run has a curve"):
        render([row], curve=True)


def test_durations():
    assert [duration(s) for s in (0.1234, 59.4, 60, 3599.6, 3600, 90061)] == [
        *("0.123 s", "59.4 s", "1 min 0 s", "1 h 0 min", "1 h 0 min", "1 d 1 h"),
    ]


def test_markdown_is_aligned():
    assert markdown([{"a": "1", "long": "x"}, {"a": "222", "long": ""}]) == (
        "| a   | long |\n|-----|------|\n| 1   | x    |\n| 222 |      |\n"
    )
