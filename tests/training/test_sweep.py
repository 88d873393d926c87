"""Sweeps: their runs, resuming after any interruption, and independence of the runs."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy
from patience import PATIENCE
from rotrnn.cli import main
from rotrnn.tasks import CIFAR
from rotrnn.training.loop import train
from rotrnn.training.recipe import recipe_names, recipe_tables
from rotrnn.training.results import collect, find_runs
from rotrnn.training.run import Run
from rotrnn.training.sweep import parse_grid, parse_seeds, plan, run_sweep
from toy import contents, wait_for_step

pytestmark = pytest.mark.whole

SWEEP = """
[sweep]
seeds = [0, 1]
[sweep.grid]
"optimiser.lr" = [0.05, 0.01]
[sweep.variants.lru]
"layer.r_max" = 0.9
[sweep.variants.rotrnn]
"model.layer" = "rotrnn"
"layer.d_state" = 8
"layer.heads" = 2
[sweep.published]
lru = 61.1
"rotrnn,lr=0.01" = "0.9 of all"
"""


def written(folder, text=toy.RECIPE):
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- which runs ----


def test_the_runs_are_the_product_of_variants_grid_and_seeds(tmp_path):
    runs = plan(written(tmp_path, toy.RECIPE + SWEEP))
    assert list(runs) == [
        f"{variant},lr={lr},seed={seed}" for variant in ("lru", "rotrnn") for lr in (0.05, 0.01) for seed in (0, 1)
    ]
    for name, recipe in runs.items():
        assert recipe.model.layer == name.partition(",")[0]
        assert f"lr={recipe.optimiser.lr},seed={recipe.training.seed}" in name
        assert name == f"{recipe.source.configuration},seed={recipe.training.seed}"
        assert recipe.source.recipe == "toy"
    assert runs["lru,lr=0.05,seed=0"].layer.r_max == 0.9
    assert runs["rotrnn,lr=0.05,seed=0"].layer.heads == 2
    published = {name: recipe.source.accuracy for name, recipe in runs.items() if name.endswith("seed=1")}
    assert list(published.values()) == ["61.1", "61.1", "", "0.9 of all"]


def test_without_published_figures_that_of_the_recipe_stands(tmp_path):
    source = '[source]\naccuracy = "60.2"\n'
    runs = plan(written(tmp_path, toy.RECIPE + source), grid=[("optimiser.lr", [0.1, 0.2])])
    assert [recipe.source.accuracy for recipe in runs.values()] == ["60.2", "60.2"]
    runs = plan(written(tmp_path, toy.RECIPE + source + SWEEP))
    assert [recipe.source.accuracy for recipe in runs.values()] == ["61.1"] * 4 + ["", "", "0.9 of all", "0.9 of all"]


def test_published_figures_are_not_those_of_another_layer_or_task(tmp_path):
    path = written(tmp_path, toy.RECIPE + '[source]\naccuracy = "60.2"\n')
    layers = [("model.layer", ["lru", "s4d"])]

    def figures(name, **options):
        return [recipe.source.accuracy for recipe in plan(name, seeds=[0], **options).values()]

    assert figures(path, grid=layers, overrides=["layer.d_state=4"]) == ["60.2", ""]
    assert figures(path, overrides=["task.name=digits"]) == [""]
    path.write_text(
        toy.RECIPE + '[source]\naccuracy = "60.2"\n[sweep.variants]\na = {}\nb = {"model.layer" = "s4d"}\n',
        encoding="utf-8",
    )
    assert figures(path, overrides=["layer.d_state=4"]) == ["60.2", ""]
    path.write_text(toy.RECIPE + SWEEP, encoding="utf-8")
    assert figures(path, overrides=["task.name=digits"]) == [""] * 4
    assert figures(path, variants=["lru"], grid=layers, overrides=["layer.d_state=4"]) == ["61.1", "", "61.1", ""]
    assert figures(path, variants=["lru"], overrides=["model.layer=s4d", "layer.d_state=4"]) == ["", ""]
    named = '[sweep]\ngrid = {"model.layer" = ["lru", "s4d"]}\n[sweep.published]\n"layer=s4d" = 60.5\n'
    path.write_text(toy.RECIPE + named, encoding="utf-8")
    assert figures(path, overrides=["layer.d_state=4"]) == ["", "60.5"]


@pytest.mark.parametrize("name", [name for name in recipe_names() if "sweep" in recipe_tables(name)])
def test_every_sweep_of_the_package_has_runs(name):
    assert len(plan(name)) > 1


def test_options_replace_and_extend_what_the_recipe_says(tmp_path):
    path = written(tmp_path, toy.RECIPE + SWEEP)
    grid = [parse_grid("optimiser.lr=0.5"), parse_grid("training.batch=8,16")]
    runs = plan(path, seeds=parse_seeds("3..4"), grid=grid, variants=["lru"], overrides=["layer.r_max=0.8"])
    assert list(runs) == [f"lru,lr=0.5,batch={batch},seed={seed}" for batch in (8, 16) for seed in (3, 4)]
    assert {recipe.layer.r_max for recipe in runs.values()} == {0.8}
    assert list(plan(written(tmp_path), overrides=["training.steps=3"])) == ["seed=0"]


VARIANTS = """
[sweep.variants]
near = { "layer.r_max" = 0.9 }
far = { "layer.r_max" = 0.99 }
[sweep.published]
near = "61 %"
far = "62 %"
"""


def test_a_run_is_named_by_what_ran(tmp_path):
    """A table that says "near" of another layer, or beside a published figure, would be wrong in silence."""
    path = written(tmp_path, toy.RECIPE + VARIANTS)

    def names(*overrides, variants=("near",), **more):
        runs = plan(path, variants=variants, overrides=overrides, **more)
        return {name: (one.source.configuration, one.source.accuracy) for name, one in runs.items()}

    assert names() == {"near,seed=0": ("near", "61 %")}
    assert names("training.steps=3", "model.layer=lru", "layer.r_max=0.9") == names()  # as they are, or as all are
    other = names("model.layer=mamba2", "layer.d_state=8")
    assert other == {"near,layer=mamba2,seed=0": ("near,layer=mamba2", "")}
    lost = "near,layer=mamba2,seed=0: another model.layer drops layer.d_state, which the new one has as well"
    with pytest.raises(ValueError, match=rf"toy\.toml, {lost}; expected 1 value for it, layer\.d_state="):
        names("model.layer=mamba2")
    with pytest.raises(ValueError, match=r"layer=mamba2,seed=0: another model\.layer drops layer\.d_state"):
        names(grid=[parse_grid("model.layer=mamba2,lru")])


def test_settings_of_every_run_are_those_of_layers_and_tasks_in_the_grid_too():
    """Another layer or task resets its section before the section's keys are set."""
    overrides = ["layer.window=16", "layer.d_state=8", "layer.bidirectional=true", "task.val_fraction=0.3"]
    runs = plan("digits-lru", seeds=[0], grid=[("model.layer", ["lru", "s5"])], overrides=overrides)
    tables = [recipe.tables()["layer"] for recipe in runs.values()]
    assert [[table[key] for key in ("window", "d_state", "bidirectional")] for table in tables] == [[16, 8, True]] * 2
    runs = plan("digits-lru", seeds=[0], grid=[("task.name", ["digits", "mnist"])], overrides=overrides)
    assert [recipe.task.val_fraction for recipe in runs.values()] == [0.3, 0.3]
    runs = plan("digits-lru", seeds=[0], grid=[("layer.d_state", [8, 16])], overrides=["model.layer=s5"])
    assert [recipe.layer.d_state for recipe in runs.values()] == [8, 16]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1,2.5,true", (1, 2.5, True)),
        ("a.b=lru,rotrnn", ("lru", "rotrnn")),
        ("a.b=[0.9, 0.99],[0.5, 0.9]", ([0.9, 0.99], [0.5, 0.9])),
        ("a.b=", ()),
        ('a.b="x,y",z', ('"x', 'y"', "z")),
        ('a.b="x,y","z"', ("x,y", "z")),
        ("a.b=balanced,[1,2]", ("balanced", [1, 2])),
        ("a.b=[[1,2],[3]],none,{c=1,d=2}", ([[1, 2], [3]], "none", {"c": 1, "d": 2})),
    ],
)
def test_values_of_a_grid(text, values):
    assert parse_grid(text) == ("a.b", values)


def test_seeds():
    assert parse_seeds("0..2") == (0, 1, 2)
    assert parse_seeds("7") == (7,)
    assert parse_seeds("0,3,5") == (0, 3, 5)
    for text in ("2..0", "a", "-1", "1..", ""):
        with pytest.raises(ValueError, match=r"--seeds .*: expected integers from 0, such as"):
            parse_seeds(text)


def test_names_of_folders_are_plain_and_their_own(tmp_path):
    path = written(tmp_path, toy.RECIPE.replace('"lru"', '"rotrnn"').replace("d_state = 4", "d_state = 8\nheads = 2"))
    runs = plan(path, grid=[("layer.gamma_init", [[0.9, 0.99], [0.9, 0.999]])], seeds=[12])
    assert list(runs) == ["gamma_init=0.9-0.99,seed=12", "gamma_init=0.9-0.999,seed=12"]
    odd = ["a/b", "a b", "../x", "é" * 300, ".hidden"]
    sweep = "".join(f'[sweep.variants."{name}"]\n"training.steps" = {i + 1}\n' for i, name in enumerate(odd))
    names = list(plan(written(tmp_path, toy.RECIPE + sweep)))
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9.,=+_~-]{,110}", name) for name in names)


def test_keys_with_the_same_ending_are_distinguished(tmp_path):
    sweep = '[sweep.grid]\n"a.b.c" = [1]\n"a.c" = [2]\n"a.d" = [3]\n'
    with pytest.raises(ValueError, match=r"toy\.toml, a\.b\.c=1,a\.c=2,d=3,seed=0: unknown section"):
        plan(written(tmp_path, toy.RECIPE + sweep))


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("sead = 3", "unknown key sweep.sead; expected seeds, grid, variants, published or keep"),
        ("seeds = 3", r"sweep\.seeds is 3, expected a list of integers from 0"),
        ("seeds = []", r"sweep\.seeds is \[\], expected a list of integers from 0"),
        ("seeds = [2, 2]", r"the seeds are \[2, 2\], expected distinct ones"),
        ("seeds = [-1]", r"sweep\.seeds is \[-1\], expected a list of integers"),
        ("seeds = [true]", r"sweep\.seeds is \[True\], expected a list of integers"),
        ("grid = 3", r"sweep\.grid is 3, expected \"section\.key\" = \[values\]"),
        (
            'grid = {"layer.d_state" = 3, "optimiser.lr" = [0.1]}',
            r"sweep\.grid\.layer\.d_state is 3, expected \"section\.key\" = \[values\]$",
        ),
        ('grid = {"layer.d_state" = []}', r"sweep\.grid\.layer\.d_state is \[\], expected \"section\.key\" = \["),
        ("variants = [1]", r"sweep\.variants is \[1\], expected \[sweep\.variants\.NAME\]"),
        ("variants = {a = {}, b = 3}", r"sweep\.variants\.b is 3, expected \[sweep\.variants\.NAME\] with \"section"),
        (
            "variants.b.layer.d_state = 3",
            r"sweep\.variants\.b has the key 'layer', expected \"section\.key\" in quotes",
        ),
        ("keep = 3", r'sweep\.keep is 3, expected a list of settings "layer\.key"'),
        ('keep = ["training.steps"]', r"sweep\.keep is \['training\.steps'\], expected a list of settings"),
        ('keep = ["layer.d_state", "layer.xyz"]', r"sweep\.keep: unknown key layer\.xyz; expected one of d_state, bi"),
        ('keep = ["layer.d_stat"]', r"sweep\.keep: unknown key layer\.d_stat; did you mean d_state\?"),
        ('keep = ["layer.history.length"]', r"sweep\.keep: unknown key layer\.history\.length; "),
        ("published = {lru = [1]}", r"sweep\.published\.lru is \[1\], expected NAME = a number or a string"),
        ("published = {lru = 1}", r"sweep\.published is 'lru', expected one of"),
        ('grid = {"training.seed" = [1]}', r"training\.seed can only be varied by seeds"),
        ('variants.a = {"training.seed" = 1}', r"training\.seed can only be varied by seeds"),
        ('grid = {"layer.d_stat" = [1]}', "toy.toml, d_stat=1,seed=0: unknown key layer.d_stat; did you mean d_state"),
        ('grid = {"layer.d_state" = [1, "1"]}', "two configurations of the sweep have the name d_state=1"),
        ("variants = {a = {}, b = {}}", "the runs a,seed=0 and b,seed=0 would be the same"),
    ],
)
def test_malformed_sweeps(tmp_path, sweep, message):
    with pytest.raises(ValueError, match=message):
        plan(written(tmp_path, f"{toy.RECIPE}[sweep]\n{sweep}\n"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('"sweep.variants.rotrn" = {}', r'"sweep\.variants\.rotrn" .* one of lru, rotrnn; did you mean rotrnn\?'),
        ('"sweep.variants.lru.layer.r_max" = 0.1', r'"sweep\.variants\.lru\.layer\.r_max" changes no variant of '),
        ('"sweep.variants.lru" = 3', r"sweep\.variants\.lru is 3, expected \[sweep\.variants\.NAME\]"),
    ],
)
def test_variants_that_the_small_one_cannot_change(tmp_path, change, message):
    written(tmp_path, f"{toy.RECIPE}{SWEEP}[small]\n{change}\n")
    assert len(plan(tmp_path / "toy.toml")) == 8
    with pytest.raises(ValueError, match=rf"toy-small\.toml: .*{message}"):
        plan(tmp_path / "toy-small.toml")


def test_a_small_recipe_without_a_sweep_has_no_variant_to_change(tmp_path):
    written(tmp_path, f'{toy.RECIPE}[small]\n"sweep.variants.a" = {{}}\n')
    with pytest.raises(ValueError, match=r'toy-small\.toml: small: "sweep\.variants\.a" .*, where the sweep has none'):
        plan(tmp_path / "toy-small.toml")


def test_options_that_do_not_fit(tmp_path):
    path = written(tmp_path, toy.RECIPE + SWEEP)
    with pytest.raises(ValueError, match="variants is 'lrv', expected one of lru, rotrnn; did you mean lru"):
        plan(path, variants=["lrv"])
    for place, instead in (("optimiser.lr", "grid"), ("training.seed", "seeds")):
        with pytest.raises(ValueError, match=f"overrides {place}: the sweep varies this setting; use {instead}$"):
            plan(path, overrides=[f"{place}=1"])
    with pytest.raises(ValueError, match=r"toy\.toml: training\.seed can only be varied by seeds"):
        plan(path, grid=[parse_grid("training.seed=3")])
    with pytest.raises(ValueError, match=r": grid optimiser\.lr is given twice, expected all its values in one$"):
        plan(path, grid=[parse_grid("optimiser.lr=0.5"), parse_grid("optimiser.lr=0.1")])
    with pytest.raises(ValueError, match=r"the seeds are \[0, 1, 0\], expected distinct ones"):
        plan(path, seeds=parse_seeds("0,1,0"))
    for section in ("sweep", "small", "base"):
        with pytest.raises(ValueError, match=rf"unknown section \[{section}\]"):
            plan(path, overrides=[f"{section}.seeds=3"])
    with pytest.raises(ValueError, match=r"the grid of optimiser\.lr has no values, expected at least one"):
        plan(path, grid=[parse_grid("optimiser.lr=")])
    with pytest.raises(ValueError, match=r": variants is 'lru', but the recipe has no \[sweep\.variants\]"):
        plan(written(tmp_path, toy.RECIPE), variants=["lru"])


KEEP = """
[small]
"layer.d_state" = 2
[sweep]
keep = ["layer.d_state", "layer.bidirectional"]
[sweep.variants]
rnn = { "model.layer" = "rnn" }
wide = { "model.layer" = "rnn", "layer.d_state" = 7 }
lru = { "layer.r_max" = 0.9 }
"""


def test_variants_with_another_layer_keep_what_is_listed(tmp_path):
    """Also in the small variant, and unless they set it; what the recipe does not set is the layer's default."""
    written(tmp_path, toy.RECIPE + KEEP)
    for name, sizes in (("toy.toml", [4, 7, 4]), ("toy-small.toml", [2, 7, 2])):
        runs = list(plan(tmp_path / name).values())
        assert [one.model.layer for one in runs] == ["rnn", "rnn", "lru"]
        assert [one.layer.d_state for one in runs] == sizes
        assert not any(one.layer.bidirectional for one in runs)
    written(tmp_path, toy.RECIPE.replace("d_state = 4", "d_state = 4\nbidirectional = true") + KEEP)
    assert all(one.layer.bidirectional for one in plan(tmp_path / "toy.toml").values())


def test_settings_that_another_layer_drops_are_named_once(tmp_path, recwarn):
    path = written(tmp_path, toy.RECIPE.replace("d_state = 4", "d_state = 4\nr_max = 0.9"))
    layers = [("model.layer", ["lru", "rnn"])]
    with pytest.warns(UserWarning, match=r"toy.toml: another model.layer drops .* the old one: layer.r_max$") as caught:
        plan(path, grid=layers, seeds=[0, 1], overrides=["layer.d_state=3"])
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"another model.layer drops .*: layer.d_state, layer.r_max$"):
        plan(path, overrides=["model.layer=attention"])
    recwarn.clear()
    plan(written(tmp_path, toy.RECIPE + SWEEP))  # variants of a recipe say what they mean
    assert not recwarn


# ---- running ----


def start(*arguments, hold=""):
    """`hold`: the step at which the runs wait for a signal (toy.hold)."""
    return subprocess.Popen(
        [sys.executable, toy.__file__, "sweep", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TOY_HOLD": str(hold)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in what a shell puts behind
    )


def ended(process):
    """Returns exit code and output of a sweep."""
    out, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, out


def children(process):
    return [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    ]


def table(folder):
    """Returns the output of `results` for a sweep, without times and memory."""
    rows = [one.row() for one in collect(find_runs([folder]))]
    return [{**row, "steps_per_second": None, "seconds": None, "peak_memory": None} for row in rows]


def test_a_sweep_killed_at_any_moment_resumes_to_the_same_table(tmp_path):
    """Kills only the sweep, whose runs then stop by themselves; or kills it with all its runs."""
    text = toy.RECIPE.replace('name = "toy"', 'name = "toy"\ndelay = 0.004')
    path = written(tmp_path, text.replace("eval_every = 7", "eval_every = 3").replace("steps = 40", "steps = 80"))
    options = (path, "--seeds", "0..2", "--jobs", "2", "--out", tmp_path / "sweep")
    for name, recipe in plan(path, seeds=[0, 1, 2]).items():
        train(recipe, tmp_path / "straight" / name, progress=False)
    delays = [random.uniform(0, 0.1) for _ in range(2)]
    print(f"delays before the kills: {delays}")  # pytest shows it where the test fails
    for kill, delay in enumerate(delays):
        process = start(*options, hold=39 + 40 * kill)
        wait_for_step(tmp_path / "sweep" / f"seed={kill}", 10 + 40 * kill)
        time.sleep(delay)
        victims = children(process) if kill else []
        process.kill()
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        assert ended(process)[0] == -signal.SIGKILL
    code, out = ended(start(*options))
    assert code == 0, out
    assert table(tmp_path / "sweep") == table(tmp_path / "straight")
    for folder in (tmp_path / "straight").iterdir():
        assert contents(tmp_path / "sweep" / folder.name) == contents(folder)


def test_runs_that_fail_or_crash_are_reported_and_the_others_continue(tmp_path):
    variants = """
[sweep.variants]
nan = {"task.nan_at" = 20}
crash = {"task.crash_at" = 20}
fault = {"task.size" = 10}
fine = {"task.size" = 71}
"""
    path = written(tmp_path, toy.RECIPE + variants)
    options = (path, "--jobs", "2", "--out", tmp_path / "sweep")
    code, out = ended(start(*options))
    assert code == 2
    assert "4 runs in " in out
    assert "rotrnn: error: 3 of 4 runs failed; --retry resumes the failed ones" in out
    errors = {name: (Run(tmp_path / "sweep" / f"{name},seed=0")) for name in ("nan", "crash", "fault")}
    errors = {name: run.read_json(run.failed)["error"] for name, run in errors.items()}
    assert errors["nan"].startswith("step 21: the loss is nan")
    assert errors["crash"] == "ended by SIGABRT"
    assert errors["fault"] == "training.batch is 16, expected at most the 10 examples for training"
    for name, error in errors.items():
        assert f"{name},seed=0: failed after" in out
        assert f"failed: {name} ({name},seed=0): {error}" in out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("*/*")}
    assert ended(start(*options)) == (2, re.sub(r"^\[.*\n", "", out.replace("ended: 0", "ended: 4"), flags=re.M))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("*/*")}
    code, out = ended(start(*options, "--retry", "--variant", "nan"))
    assert code == 2
    assert "[1/1] nan,seed=0: failed after" in out
    sessions = [Run(tmp_path / "sweep" / f"{name},seed=0") for name in ("nan", "crash")]
    assert [len(run.read_json(run.sessions)) for run in sessions] == [2, 1]


def test_ctrl_c_saves_every_run(tmp_path):
    path = written(tmp_path, toy.RECIPE.replace('name = "toy"', 'name = "toy"\ndelay = 0.1'))
    options = (path, "--seeds", "0..1", "--jobs", "2", "--out", tmp_path / "sweep")
    process = start(*options, hold=20)
    for seed in (0, 1):
        wait_for_step(tmp_path / "sweep" / f"seed={seed}", 3)
    with pytest.raises(ValueError, match="another sweep is running here"):
        run_sweep({}, tmp_path / "sweep")
    workers = children(process)
    assert len({os.getpgid(one) for one in (process.pid, *workers)}) == 3  # a terminal's Ctrl-C is for a group
    assert {os.getsid(one) for one in workers} == {os.getsid(process.pid)}  # and `nice` works within a session
    process.send_signal(signal.SIGINT)
    code, out = ended(process)
    assert code == 130
    assert "stopping 2 runs after this step" in out
    assert "rotrnn: stopped, every run is saved; to resume, repeat the same command" in out
    for seed in (0, 1):
        run = Run(tmp_path / "sweep" / f"seed={seed}")
        assert run.checkpoint("last").exists()
        assert run.status() == "unfinished"
    code, out = ended(start(*options))
    assert code == 0
    assert all(Run(tmp_path / "sweep" / f"seed={seed}").status() == "done" for seed in (0, 1))


def test_another_recipe_under_the_same_names_is_refused(tmp_path):
    path = written(tmp_path)
    (tmp_path / "sweep").mkdir()
    train(plan(path)["seed=0"], tmp_path / "sweep" / "seed=0", progress=False)
    said = []
    run_sweep(plan(path), tmp_path / "sweep", say=said.append)
    assert said == [f"1 run in {tmp_path / 'sweep'}, ended: 1"]
    with pytest.raises(ValueError, match=r"steps is 50, expected 40 .*; the recipe has changed: use another folder"):
        run_sweep(plan(path, overrides=["training.steps=50"]), tmp_path / "sweep")
    with pytest.raises(ValueError, match="seed=0: holds a run, expected a folder for a sweep"):
        run_sweep(plan(path), tmp_path / "sweep" / "seed=0")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"sweep: folder .*file: is a file, expected a folder"):
        run_sweep(plan(path), tmp_path / "file")
    (tmp_path / "sweep" / "seed=1").touch()
    with pytest.raises(ValueError, match=r"sweep: run .*seed=1: is a file, expected a folder"):
        run_sweep(plan(path, seeds=[1]), tmp_path / "sweep")


def test_data_that_were_looked_for_elsewhere(tmp_path, monkeypatch, capsys):
    """Starting a sweep again with another data folder uses this folder."""
    monkeypatch.chdir(tmp_path)
    CIFAR().stand_in("right", 8)
    text = "--steps 1 --set training.batch=4 --set model.d_model=4 --set model.n_layers=1 --set training.eval_every=1"
    command = ["sweep", "image-lru-small", "--seeds", "0", *text.split(), "--out", "sweep", "--set"]
    assert main([*command, "task.data_dir=wrong"]) == 2
    assert "1 of 1 run failed" in capsys.readouterr().err
    assert main([*command, "task.data_dir=right", "--retry"]) == 0
    (run,) = find_runs([tmp_path / "sweep"])
    assert run.load_recipe().task.data_dir == str(tmp_path / "right")


def test_a_display_that_is_gone_does_not_kill_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stdout", gone)
    with pytest.warns(UserWarning, match="standard output cannot be written"):
        (run,) = run_sweep(plan(written(tmp_path), overrides=["training.steps=2"]), tmp_path / "sweep")
    assert run.status() == "done"


def test_retry_mends_a_damaged_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))
    command = ["sweep", str(written(tmp_path)), "--seeds", "0,1", "--steps", "2", "--out", str(tmp_path / "sweep")]
    assert main(command) == 0
    result = tmp_path / "sweep" / "seed=1" / "result.json"
    whole = json.loads(result.read_text(encoding="utf-8"))
    result.write_text(result.read_text(encoding="utf-8")[:40], encoding="utf-8")
    assert main(command) == 2
    assert "1 of 2 runs cannot be read; --retry mends a damaged result.json, and a" in capsys.readouterr().err
    assert main([*command, "--retry"]) == 0
    assert json.loads(result.read_text(encoding="utf-8"))["test"] == whole["test"]


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("finished", [True, False])
def test_retry_mends_a_damaged_or_missing_recipe(tmp_path, monkeypatch, capsys, finished, missing):
    """Without it the other runs go on; a run of another recipe is not taken for one of this."""
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))
    path, folder = written(tmp_path), tmp_path / "sweep"
    command = ["sweep", str(path), "--steps", "2", "--out", str(folder), "--seeds"]
    assert main([*command, "1"]) == 0
    run = Run(folder / "seed=1")
    whole = contents(run.folder)
    damage = run.recipe.unlink if missing else lambda: run.recipe.write_text("?", encoding="utf-8")
    damage()
    if not finished:
        run.result.unlink()
    assert main([*command, "0,1"]) == 2
    said = "1 of 2 runs cannot be read; --retry mends a" if finished else "1 of 2 runs failed; --retry resumes"
    assert said in capsys.readouterr().err
    assert Run(folder / "seed=0").status() == "done"
    assert main([*command, "1"]) == 2  # alone
    assert "--retry mends a damaged result.json, and a damaged or missing recipe.toml" in capsys.readouterr().err
    assert main([*command, "0,1", "--retry"]) == 0
    assert contents(run.folder) == whole
    damage()
    path.write_text(toy.RECIPE.replace("d_state = 4", "d_state = 8"), encoding="utf-8")
    assert main([*command, "1", "--retry"]) == 2
    assert "recipe.toml: is damaged or missing, and last.safetensors was written with" in capsys.readouterr().err
    assert not run.recipe.exists() if missing else run.recipe.read_text(encoding="utf-8") == "?"
    assert run.result.exists()


def test_steps_are_those_of_every_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))
    path = written(tmp_path, toy.RECIPE + '[sweep.variants]\na = {}\nb = {"training.steps" = 9}\n')
    assert main(["sweep", str(path), "--steps", "2", "--set", "training.seed=1", "--out", str(tmp_path / "no")]) == 2
    assert "the sweep varies this setting" in capsys.readouterr().err
    assert main(["sweep", str(path), "--steps", "2", "--variant", "b", "--out", str(tmp_path / "sweep")]) == 0
    assert Run(tmp_path / "sweep" / "b,seed=0").load_recipe().training.steps == 2
    assert main(["sweep", str(path), "--steps", "2", "--out", str(tmp_path / "sweep")]) == 2
    assert "a,seed=0 and b,seed=0 would be the same" in capsys.readouterr().err


def test_a_sweep_prints_its_own_runs_and_results_those_of_earlier_ones_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))
    path, folder = str(written(tmp_path)), str(tmp_path / "sweep")

    def rows(*arguments):
        assert main([*arguments]) == 0
        return re.findall(r"^\| (?:optimiser\.)?(lr=\S+)", capsys.readouterr().out, re.M)

    for lr in ("0.1", "0.2"):
        assert rows("sweep", path, "--grid", f"optimiser.lr={lr}", "--steps", "1", "--out", folder) == [f"lr={lr}"]
    assert rows("results", folder) == ["lr=0.1", "lr=0.2"]
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    words = " ".join(capsys.readouterr().out.split())  # the terminal's width decides about lines
    assert "results DIR` prints a table of all runs below DIR, including earlier sweeps" in words


def test_runs_share_the_cores_and_their_warnings_are_reported(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("rotrnn.training.sweep.cores", lambda: 6)
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))
    runs = plan(written(tmp_path), seeds=[0, 1], overrides=["training.steps=1"])
    (tmp_path / "sweep" / "seed=1").mkdir(parents=True)
    (tmp_path / "sweep" / "seed=1" / "tensorboard").write_text("in the way", encoding="utf-8")
    said = []
    run_sweep(runs, tmp_path / "sweep", jobs=2, say=said.append)
    (warned,) = (i for i, line in enumerate(said) if "rotrnn: warning: " in line)
    assert "seed=1: done after" in said[warned - 1]
    assert "seed=1/tensorboard: cannot be written" in said[warned]
    for name in runs:
        run = Run(tmp_path / "sweep" / name)
        assert run.read_json(run.sessions)[0]["threads"] == 3
