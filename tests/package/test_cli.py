"""The command line: output, errors and help texts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import rotrnn
import toy
from rotrnn import _cpu, cuda
from rotrnn._support.command import is_command
from rotrnn._support.text import plural
from rotrnn.cli import main
from rotrnn.nn.registry import LAYERS
from rotrnn.training.optimiser import describe_groups, members, table
from rotrnn.training.recipe import load_recipe, shipped
from rotrnn.training.run import Run
from rotrnn.training.state import initial_state

pytestmark = pytest.mark.whole


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(toy.RECIPE, encoding="utf-8")
    return str(path)


@pytest.fixture
def run(tmp_path, recipe, capsys):
    folder = tmp_path / "run"
    assert main(["train", recipe, "--out", str(folder), "--no-plots"]) == 0
    capsys.readouterr()
    return str(folder)


def test_train_prints_its_groups_evaluations_and_results(tmp_path, recipe, capsys):
    assert (
        main(["train", recipe, "--out", str(tmp_path / "run"), "--steps", "20", "--set", "training.eval_every=5"]) == 0
    )
    out = capsys.readouterr().out
    assert "lr / decay at step 0, 2 and 19" in out
    assert "recurrent              1          4" in out
    assert out.count("validation loss") == 4
    assert "step 20/20: training loss" in out
    assert "test, last parameters: loss" in out
    assert f"plots: {tmp_path / 'run' / 'plots'}" in out
    names = ("learning", "norms", "norms_over_training", "confusion")
    assert {path.name for path in (tmp_path / "run" / "plots").iterdir()} == {f"{name}.png" for name in names}


def test_a_picture_that_cannot_be_drawn_is_a_warning_after_training(tmp_path, recipe, capsys, monkeypatch):
    """The run has ended and is whole: a script that looks at the exit code need not do it again."""

    def damaged(*_):
        raise RuntimeError("no font")

    monkeypatch.setattr("rotrnn.plots.plot", damaged)
    assert main(["train", recipe, "--out", str(tmp_path / "run")]) == 0
    expected = f"rotrnn: warning: no pictures: no font; try again with rotrnn plot {tmp_path / 'run'}\n"
    assert capsys.readouterr().err == expected
    assert (tmp_path / "run" / "result.json").exists()


def test_train_draws_nothing_where_it_is_not_to_or_cannot(tmp_path, recipe, capsys, monkeypatch):
    assert main(["train", recipe, "--out", str(tmp_path / "plain"), "--steps", "2", "--no-plots"]) == 0
    monkeypatch.setattr("rotrnn.cli._can_draw", lambda: False)
    assert main(["train", recipe, "--out", str(tmp_path / "run"), "--steps", "2"]) == 0
    assert f"done: {tmp_path / 'run'}; install matplotlib for rotrnn plot" in capsys.readouterr().out
    assert not [*tmp_path.glob("*/plots")]


def test_groups(capsys):
    """Counts, rates and decay at the three steps, and the parameters of each group."""
    assert main(["groups", "listops-lru-small", "--set", "model.n_layers=1"]) == 0
    said = capsys.readouterr().out
    recipe = load_recipe("listops-lru-small", ["model.n_layers=1"])
    model = recipe.build(recipe.task.shape)
    tables = describe_groups(
        recipe.optimiser,
        initial_state(model, recipe).params,
        recipe.optimiser.grouping(model.is_recurrent),
        recipe.training.steps,
    )
    assert said.startswith(f"{table(tables)}\n")
    for group in tables:
        assert f"\n{group.name}:\n{members(group)}\n" in said
    assert "blocks.*.layer.nu_log\n" in said.partition("\nrecurrent:\n")[2]


def test_train_in_the_default_folder(tmp_path, recipe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", recipe, "--seed", "3", "--steps", "5", "--no-plots"]) == 0
    assert Run(tmp_path / "runs" / "toy").load_recipe().training.seed == 3
    other = ["--set", "model.layer=rnn", "--set", "layer.d_state=4"]  # a folder is named by what ran
    assert main(["train", recipe, *other, "--steps", "5", "--no-plots"]) == 0
    assert Run(tmp_path / "runs" / "toy,layer=rnn").load_recipe().model.layer == "rnn"


def test_resume_a_finished_run_evaluates_again(run, recipe, capsys):
    result = Run(Path(run)).result
    before = result.read_bytes()
    result.unlink()
    assert main(["train", "--resume", run, "--no-plots"]) == 0
    assert result.read_bytes() == before
    assert main(["train", recipe, "--resume", run, "--no-plots"]) == 0
    assert main(["train", recipe, "--resume", run, "--steps", "30"]) == 2
    assert "training.steps is 30, expected 40" in capsys.readouterr().err


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_eval_agrees_with_the_result(run, capsys, checkpoint):
    assert main(["eval", run, "--checkpoint", checkpoint]) == 0
    with open(f"{run}/result.json", encoding="utf-8") as file:
        found = json.load(file)["test"][checkpoint]
    out = capsys.readouterr().out
    assert f"test, {checkpoint} parameters: loss {found['loss']:.4g}, accuracy {found['accuracy']:.4g}" in out


def test_data(tmp_path, capsys):
    small = [
        "--set",
        "train=20",
        "--set",
        "val=5",
        "--set",
        "test=5",
        "--set",
        "min_length=3",
        "--set",
        "max_length=30",
    ]
    assert main(["data", "listops", *small]) == 0
    text = capsys.readouterr().out
    assert "listops: 10 classes" in text
    assert main(["data", "listops", *small, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == text
    assert len((tmp_path / "basic_train.tsv").read_text(encoding="utf-8").splitlines()) == 21
    assert main(["data", "digits"]) == 0


def test_data_replaces_no_files(tmp_path, capsys):
    small = [f"--set={one}" for one in ("train=20", "val=5", "test=5", "min_length=5", "max_length=20")]
    out = str(tmp_path / "data")
    assert main(["data", "listops", *small, "--out", out]) == 0
    before = {path.name: path.read_bytes() for path in Path(out).iterdir()}
    for more in ([], [f"--set=data_dir={out}", "--set=train=2"]):
        assert main(["data", "listops", *small, *more, "--out", out]) == 2
        assert "already has files, which are not replaced; expected an empty folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path(out).iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        ["digits"],
        ["listops", *(f"--set={one}" for one in ("train=20", "val=5", "test=5", "min_length=5", "max_length=20"))],
        ["copy", "--set=train=5", "--set=val_each=1", "--set=test_each=1"],
        ["word_problem", "--set=samples=5", "--set=test=5", "--set=length=4", "--set=test_length=6"],
        ["cifar", "--stand-in=2"],
        ["imdb", "--stand-in=2", "--set=max_length=10"],
        ["aan", "--stand-in=2", "--set=max_length=10"],
        ["mnist", "--stand-in=2"],
        ["speech_commands", "--stand-in=2"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("killed", [False, True])
def test_data_that_a_stop_interrupts_are_written_by_the_same_command(tmp_path, monkeypatch, killed, command):
    """The stop is at the second file; a process that is killed does not clean up."""
    renamed: list[object] = []
    replace = os.replace

    def stopped(*paths):
        if renamed:
            raise KeyboardInterrupt
        renamed.append(paths)
        replace(*paths)

    data = ["data", *command, "--out"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopped)
        if killed:
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        assert main([*data, str(tmp_path / "stopped")]) == 130
    assert not visible(tmp_path / "stopped")
    for name in ("stopped", "whole"):
        assert main([*data, str(tmp_path / name)]) == 0
    assert visible(tmp_path / "stopped") == visible(tmp_path / "whole")


def visible(folder):
    """Returns the contents of the files that are not hidden, by their paths."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".unfinished" not in path.parts)
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_what_a_command_finds_is_written_beside_a_run_and_not_over_it(run, tmp_path, capsys):
    before = {path.name: path.read_bytes() for path in Path(run).iterdir() if path.is_file()}
    for name in ("recipe.toml", "log.jsonl", "result.json", "sessions.json", "failed.json", "best.safetensors"):
        for command in ("eval", "results"):
            assert main([command, run, "--out", f"{run}/{name}"]) == 2
            assert (
                f"--out {run}/{name}: is a file of the run in that folder, expected another name"
                in capsys.readouterr().err
            )
    for name in ("best.safetensors", "last.safetensors"):
        assert main(["export", run, "--out", f"{run}/{name}"]) == 2
        assert f"--out {run}/{name}: is a file of the run in that folder" in capsys.readouterr().err
    for out in (f"{tmp_path}/nowhere/found.json", run):
        assert main(["eval", run, "--out", out]) == 2
        assert f"--out {out}: expected a file in an existing folder" in capsys.readouterr().err
    assert main(["eval", run, "--out", f"{run}/found.json"]) == 0
    assert before == {path.name: path.read_bytes() for path in Path(run).iterdir() if path.name in before}


def test_a_folder_to_write_that_is_a_file(run, tmp_path, recipe, capsys):
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    for command in (["train", recipe], ["sweep", recipe], ["data", "digits"], ["plot", run]):
        assert main([*command, "--out", str(file)]) == 2
        assert f"error: --out {file}: is a file, expected a folder" in capsys.readouterr().err
        assert main([*command, "--out", f"{file}/below"]) == 2
        assert f"error: --out {file}/below: is below the file {file}, expected a folder" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "kept"


def test_a_mistyped_topic_is_guessed(capsys):
    assert main(["info", "digits-lruu"]) == 2
    assert capsys.readouterr().err.endswith("(model, optimiser, sgd, training); did you mean digits-lru?\n")
    assert main(["info", "digits-lru-small"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean digits-lru?\n")
    assert main(["train", "bracket-small"]) == 2
    assert capsys.readouterr().err.endswith("nor the path of a .toml file; did you mean brackets-small?\n")


def test_no_run_to_resume_makes_no_folder(tmp_path, recipe, capsys):
    assert main(["train", recipe, "--resume", str(tmp_path / "typo")]) == 2
    assert "typo: is not the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()
    assert main(["train", recipe, "--set", "source.note=\udcff", "--out", str(tmp_path / "typo")]) == 2
    assert "--set 'source.note=\\udcff': expected section.key=value in UTF-8" in capsys.readouterr().err


def test_what_is_no_model_but_a_runs_says_how_to_get_one(run):
    with pytest.raises(ValueError, match=r"is the folder of a run: rotrnn export RUN --out MODEL\.safetensors writes"):
        rotrnn.load(run)
    with pytest.raises(ValueError, match=r"is not a model, expected .*; this is a checkpoint of a run: rotrnn export"):
        rotrnn.load(Path(run, "best.safetensors"))


def test_what_the_terminal_cannot_show(run):
    out = subprocess.run(
        [sys.executable, toy.__file__, "results", run],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "Mean \\xb1 sample standard deviation" in out


def test_info(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for text in (
        "rotrnn",
        _cpu.COMPILER,
        _cpu.SIMD_AVAILABLE[-1],
        "OpenMP",
        "CUDA      " + cuda.about(),
        np.__version__,
        "BLAS",
    ):
        assert text in out
    assert f"threads   {_cpu.threads()}" in out
    assert main(["info", "recipes"]) == 0
    out = capsys.readouterr().out
    for name in shipped():
        assert re.search(rf"^{name}(, {name}-small)?\n    \S", out, re.M), name
        assert load_recipe(name).source.note in out
    assert "    published: bedouin-4 0.280 scaled; transformer 0.025 scaled; mamba 0.136 scaled\n" in out
    for topic, text in (
        ("language", "settings in [task]:"),
        ("language", 'head = "language": chosen by'),
        ("layers", "\n" + " " * (max(map(len, LAYERS)) + 2) + "state of a sequence: 2 d_state real numbers\n"),
        ("attention", "\nstate of a sequence: 2 d_model t real numbers after t steps\n"),
        ("lru", "\n  window = None   # forgets inputs older "),
        (
            "lru",
            "\n  gamma = True\n  history = {length, read = 'content', form = 'warped', window = None, heads = 1}   # ",
        ),
        ("lstm", "\n  bidirectional = False   # whether it runs in both directions of time\n  history = {length, "),
        ("model", "\nfinal_norm : bool\n"),
        ("model", "\nsettings in [model]:\n  layer\n  d_model\n  n_layers\n  norm = 'batch'\n"),
        ("optimiser", "\nsettings in [optimiser]:\n  lr = "),
        ("training", "\n  patience = None\n"),
        ("griffin", 'block = "griffin": as transformer'),
        ("classifier", 'head = "classifier": chosen by the task'),
        ("tasks", "\npathfinder "),
        ("brackets", "\n  modulus = 5\n"),
        ("brackets", f"\nrecipe brackets, with its own settings in [task]:\n{load_recipe('brackets').text()}"),
        ("pathx-s5", "\nresolution = 128\n"),
    ):
        assert main(["info", topic]) == 0
        assert text in capsys.readouterr().out
    assert main(["info", "nothing"]) == 2
    assert "TOPIC is 'nothing', expected layers, tasks, recipes, the name of one of them" in capsys.readouterr().err


READERS = ("train", "sweep", "estimate", "groups")
"""Commands that take the name of a recipe."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "expected a RECIPE, or --resume DIR"),
        (["train", "digits-rotnn"], "did you mean digits-rotrnn?"),
        (["info", "LRU"], "did you mean lru?"),
        (["train", "absent.toml"], "error: absent.toml: No such file"),
        (["train", "digits-rotrnn", "--set", "training.stepz=3"], "did you mean steps?"),
        (["train", "digits-rotrnn", "--set", "training.batch=100000"], "training.batch is 100000, expected at most"),
        (["train", "--resume", "."], "is not the folder of a run"),
        (["train", ""], "error: recipe is '', which is neither a recipe of the package nor"),
        *(([one, "/tmp"], "recipe is '/tmp', a folder, expected a name or a .toml file\n") for one in READERS),
        (["train", "digits-rotrnn", "--set", "steps"], "error: --set steps: expected section.key=value, such as"),
        (["sweep", "digits-rotrnn", "--grid", "layer.heads"], "error: --grid layer.heads: expected section.key=a,b"),
        (["sweep", "digits-lru", "--variant", "x"], "--variant is 'x', but the recipe has no [sweep.variants]"),
        (["generate", "run", "\udcff"], "error: generate: PROMPT is '\\udcff', expected a text in UTF-8"),
        (["eval", "."], "is not the folder of a run"),
        (["data", "digit"], "did you mean digits?"),
        (["data", "digits", "--set", "sead=3"], "unknown key digits.sead; did you mean seed?"),
        (["data", "digits", "--set", "seed"], "expected key=value"),
        (["data", "digits", "--set", "seed=x"], "digits.seed is 'x', expected an integer"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("rotrnn: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_without_files_a_stand_in_is_named_and_works(tmp_path, monkeypatch, capsys):
    """Every command that reads a released task says how to use random data, and this works."""
    monkeypatch.chdir(tmp_path)
    small = [*("--set", "model.d_model=4"), *("--set", "layer.d_state=16"), *("--set", "model.n_layers=1")]
    train = ["train", "image-rotrnn-small", "--steps", "1", "--set", "training.batch=2", *small]
    for set_to, told in (("", "data_dir is ''"), ("none", "no data in none/")):
        for command, hint in (
            (train, "rotrnn data cifar --stand-in --out DIR, then --set task.data_dir=DIR"),
            (["estimate", "image-rotrnn-small"], "--stand-in"),
            (["data", "cifar"], "--stand-in --out DIR"),
        ):
            place = "data_dir" if command[0] == "data" else "task.data_dir"
            assert main([*command, "--set", f"{place}={set_to}"]) == 2
            error = capsys.readouterr().err
            assert told in error
            assert error.endswith(f"; to try with random data: {hint}\n")
    assert main(["data", "cifar", "--stand-in", "--out", "DIR"]) == 0
    with pytest.warns(UserWarning, match="not the whole published data set"):
        load_recipe("image-rotrnn-small", ["task.data_dir=DIR"]).task.load()
    assert main([*train, "--set", "task.data_dir=DIR"]) == 0


def test_errors_of_a_run(run, recipe, capsys):
    assert main(["train", recipe, "--out", run]) == 2
    assert "already holds a run" in capsys.readouterr().err
    with open(f"{run}/best.safetensors", "r+b") as file:
        file.truncate(100)
    assert main(["eval", run]) == 2
    assert "best.safetensors: is truncated" in capsys.readouterr().err
    for command in set(READERS) - {"groups"}:  # which reads the folder of a run
        assert main([command, run]) == 2
        hint = f"this run's is {run}/recipe.toml, and rotrnn train --resume {run} goes on with it\n"
        assert capsys.readouterr().err.endswith(f"a folder, expected a name or a .toml file; {hint}")
    Path(run, "best.safetensors").unlink()
    for more in (["train", "--resume", run], ["eval", run]):
        assert main(more) == 2
        way = "rotrnn eval, export and generate take the last parameters with --checkpoint last\n"
        assert capsys.readouterr().err.endswith(f"best.safetensors: there is no such file; {way}")
    assert main(["eval", run, "--checkpoint", "last"]) == 0
    Path(run, "best.safetensors").mkdir()
    assert main(["eval", run]) == 2
    assert "best.safetensors: is a folder, expected a checkpoint" in capsys.readouterr().err


def test_errors_of_training(tmp_path, recipe, capsys):
    assert main(["train", recipe, "--out", str(tmp_path / "run"), "--set", "task.nan_at=20"]) == 2
    error = capsys.readouterr().err
    assert "rotrnn: error: step 21: the loss is nan" in error
    assert "last.safetensors" in error


def test_faults_of_the_program_come_out_whole(monkeypatch, recipe):
    def faulty(*args, **settings):
        raise fault

    monkeypatch.setattr("rotrnn.cli.train", faulty)
    for fault in (TypeError("a"), RuntimeError("b"), ZeroDivisionError("c"), KeyError("d")):
        with pytest.raises(type(fault)):
            main(["train", recipe])
    fault = MemoryError()
    assert main(["train", recipe]) == 2


def test_settings_that_allow_too_few_expressions(monkeypatch, capsys):
    monkeypatch.setattr("rotrnn.tasks.listops.PATIENCE", 1)
    assert main(["data", "listops", "--set", "max_depth=1"]) == 2
    assert "rotrnn: error: ListOps: found only 0 of 100000 distinct expressions" in capsys.readouterr().err


def test_warnings_are_one_line(monkeypatch, recipe, capsys):
    monkeypatch.setattr("rotrnn.cli.train", lambda *args, **settings: warnings.warn("bits may differ", stacklevel=1))
    assert main(["train", recipe, "--no-plots"]) == 0
    assert capsys.readouterr().err == "rotrnn: warning: bits may differ\n"


def test_only_the_first_process_prints_warnings(monkeypatch, capsys):
    monkeypatch.setattr("rotrnn.cli._train", lambda _: warnings.warn("bits may differ", stacklevel=1))
    monkeypatch.setenv("PMI_SIZE", "2")
    for rank, said in enumerate(("rotrnn: warning: bits may differ\n", "")):
        monkeypatch.setenv("PMI_RANK", str(rank))
        assert main(["train", "digits-lru"]) == 0
        assert capsys.readouterr().err == said


def test_a_file_does_not_shadow_a_shipped_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("digits-rotrnn").write_text("no recipe", encoding="utf-8")
    assert load_recipe("digits-rotrnn").task.seed == 0
    Path("mine").write_text(toy.RECIPE, encoding="utf-8")
    with pytest.raises(ValueError, match="recipe is 'mine', which is neither a recipe of the package nor"):
        load_recipe("mine")
    Path("mine").rename("own.toml")
    with pytest.raises(ValueError, match=r"recipe is 'own', which is neither .* file; did you mean own.toml\?$"):
        load_recipe("own")
    Path("own.toml").rename("mine")
    assert load_recipe("./mine").training.steps == 40


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="as Linux has a full disk")
@pytest.mark.parametrize("command", [["--version"], ["--help"], ["train", "--help"], ["info", "training"]])
def test_output_that_cannot_be_written_is_an_error(command, monkeypatch, capsys):
    """argparse's own texts, too, which are shorter and longer than what Python keeps before it writes."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(command) == 2
        assert capsys.readouterr().err == "rotrnn: error: [Errno 28] No space left on device\n"


INTERRUPTED_IMPORT = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
import rotrnn.cli
"""


@pytest.mark.parametrize("module", ["rotrnn._cpu", "rotrnn.training.slurm"])  # among the first, and the last ones
@pytest.mark.parametrize("program", ["rotrnn", "other"])
def test_an_interrupt_while_the_command_is_imported(tmp_path, program, module):
    (tmp_path / program).write_text(INTERRUPTED_IMPORT, encoding="utf-8")
    done = subprocess.run([sys.executable, str(tmp_path / program), module], capture_output=True, text=True)
    if program == "rotrnn":
        assert (done.returncode, done.stderr) == (130, "rotrnn: aborted\n")
    else:
        assert done.returncode not in (0, 130)
        assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("words", "program", "expected"),
    [
        (["python", "-P", "-m", "rotrnn", "train"], "-m", True),
        (["python", "/bin/rotrnn", "train"], "/bin/rotrnn", True),
        (["rotrnn.exe"], "rotrnn.exe", True),
        (["python", "-m", "pytest", "rotrnn"], "pytest", False),
        (["python", "-m"], "", False),
        (["python"], "", False),
    ],
)
def test_the_command_is_told_from_other_programs(monkeypatch, words, program, expected):
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.setattr(sys, "argv", [program])
    assert is_command() == expected


COMMANDS = "train sweep results eval export generate estimate data plot figure groups info"


@pytest.mark.parametrize("columns", [44, 80, 200])
@pytest.mark.parametrize("command", [[], *([one] for one in COMMANDS.split())])
def test_help(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "usage: rotrnn" in out
    assert ("examples:" in out) == bool(command)
    text, _, examples = out.partition("\n\n")[2].partition("examples:")  # usage has options that are longer
    assert max(map(len, text.splitlines())) <= columns
    assert max(map(len, examples.splitlines()), default=0) <= 125  # commands to be copied are not broken


@pytest.mark.parametrize("arguments", [["tain"], ["train", "a", "--stops", "3"], ["eval"], []])
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: rotrnn" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "\u00b2", "-1", "2.0", "", "many"])
def test_a_number_is_positive(text, capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "digits-lru", "--jobs", text])
    assert f"argument --jobs: {text!r} is not a positive integer" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["sweep", "digits-lru"], ["figure", "lru-ladder"]])
def test_no_seeds(command, capsys):
    """An empty variable of a shell; the command trained the seeds of the recipe."""
    assert main([*command, "--seeds", ""]) == 2
    assert capsys.readouterr().err == ("rotrnn: error: --seeds '': expected integers from 0, such as 0..2 or 0,3,5\n")


def test_an_evaluation_is_printed_before_its_file_fails(recipe, tmp_path, monkeypatch, capsys):
    """It may have taken hours, and was lost."""

    def full(path, _):
        raise OSError(28, "No space left on device", str(path))

    assert main(["train", recipe, "--out", str(tmp_path / "run"), "--steps", "2", "--no-plots"]) == 0
    monkeypatch.setattr("rotrnn.cli.write_text", full)
    capsys.readouterr()
    for more in ([], ["--grid", "training.label_smoothing=0,0.1"]):
        assert main(["eval", str(tmp_path / "run"), "--out", "a.json", *more]) == 2
        out, err = capsys.readouterr()
        assert out.startswith("test, best parameters")
        assert err.endswith("rotrnn: error: a.json: No space left on device\n")


def test_as_a_process():
    run = subprocess.run([sys.executable, "-m", "rotrnn", "eval", "no-such-run"], capture_output=True, text=True)
    assert run.returncode == 2
    assert (
        run.stderr == "rotrnn: error: no-such-run: is not the folder of a run, expected a folder with a recipe.toml\n"
    )


def test_one_is_no_plural():
    assert [plural(n, "run") for n in (0, 1, 2, 1234)] == ["0 runs", "1 run", "2 runs", "1,234 runs"]


def test_a_limit_of_threads_is_an_error_in_a_line(monkeypatch, capsys):
    def none_left(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("rotrnn.cli.train", none_left)
    assert main(["train", "digits-lru"]) == 2
    assert capsys.readouterr().err == (
        "rotrnn: error: can't start new thread: the system allows no more threads or processes (ulimit -u)\n"
    )


def test_an_error_moves_no_cursor(tmp_path, capsys):
    assert main(["results", str(tmp_path / "\x1b[2J")]) == 2
    assert r"\x1b[2J" in capsys.readouterr().err
