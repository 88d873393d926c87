"""Sweeps on the processes of MPI, and as array jobs of Slurm, whose `sbatch` is a stand-in that runs the array here."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy
from patience import PATIENCE
from rotrnn.cli import main
from rotrnn.training.crew import LOST, Crew, Remote, serve
from rotrnn.training.loop import train
from rotrnn.training.parallel import ALONE
from rotrnn.training.recipe import load_recipe
from rotrnn.training.run import Run
from rotrnn.training.slurm import check_options, script
from rotrnn.training.sweep import plan
from toy import contents, wait_for_step

pytestmark = pytest.mark.whole

MPIEXEC = Path(sys.executable).with_name("mpiexec")
SLOW = toy.RECIPE.replace('name = "toy"', 'name = "toy"\ndelay = 0.1')
VARIANTS = """
[sweep.variants]
nan = {"task.nan_at" = 20}
crash = {"task.crash_at" = 20}
fine = {"task.size" = 71}
"""


def written(folder, text=toy.RECIPE):
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---- MPI ----


def start(processes, *arguments, hold=""):
    """`hold`: the step at which the runs wait for a signal (toy.hold)."""
    command = [MPIEXEC, "-n", processes, sys.executable, toy.__file__, "sweep", *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOY_HOLD": str(hold)}
    return subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in what a shell puts behind
    )


def ended(process):
    """Returns exit code and output of a sweep that must end."""
    try:
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, out


@pytest.mark.parametrize("processes", [1, 3])
def test_processes_of_mpi_share_the_runs(tmp_path, processes):
    """The runs are those of a sweep without MPI, bit for bit, and one that fails or crashes stops no other."""
    path = written(tmp_path, toy.RECIPE + VARIANTS)
    code, out = ended(start(processes, path, "--seeds", "0..1", "--out", tmp_path / "sweep"))
    assert code == 2
    assert "6 runs in " in out
    assert out.count("rotrnn: error: 4 of 6 runs failed; --retry resumes the failed ones") == 1
    for seed in (0, 1):
        crashed, lost = (Run(tmp_path / "sweep" / f"{name},seed={seed}") for name in ("crash", "nan"))
        assert crashed.read_json(crashed.failed)["error"] == "ended by SIGABRT"
        assert lost.read_json(lost.failed)["error"].startswith("step 21: the loss is nan")
    assert len(re.findall(r"^\[\d/6\] fine,seed=\d: done after", out, re.M)) == 2
    alone = subprocess.run(
        [sys.executable, toy.__file__, "sweep", path, "--variant", "fine", "--seeds", "0", "--out", tmp_path / "alone"],
        capture_output=True,
    )
    assert alone.returncode == 0
    assert contents(tmp_path / "alone" / "fine,seed=0") == contents(tmp_path / "sweep" / "fine,seed=0")
    sessions = [Run(one.parent).read_json(one) for one in (tmp_path / "sweep").glob("*/sessions.json")]
    assert all(session["processes"] == 1 for runs in sessions for session in runs)


def test_runs_are_trained_at_the_same_time_and_ctrl_c_saves_every_one(tmp_path):
    options = (written(tmp_path, SLOW), "--seeds", "0..2", "--out", tmp_path / "sweep")
    process = start(3, *options, hold=20)
    for seed in range(3):  # none has ended when the last has begun
        wait_for_step(tmp_path / "sweep" / f"seed={seed}", 3)
    process.send_signal(signal.SIGINT)
    _, out = ended(process)
    assert "stopping 3 runs after this step" in out
    assert "rotrnn: stopped, every run is saved; to resume, repeat the same command" in out
    assert "Traceback" not in out
    for seed in range(3):
        run = Run(tmp_path / "sweep" / f"seed={seed}")
        assert run.checkpoint("last").exists()
        assert run.status() == "unfinished"
    code, out = ended(start(2, *options, "--jobs", "2"))
    assert code == 0, out
    assert all(Run(tmp_path / "sweep" / f"seed={seed}").status() == "done" for seed in range(3))


def test_a_process_of_mpi_that_is_killed_leaves_runs_that_resume(tmp_path):
    """mpiexec ends the others; the runs, whose standard input is closed, save and end by themselves."""
    options = (written(tmp_path, SLOW), "--seeds", "0..1", "--out", tmp_path / "sweep")
    process = start(2, *options, hold=20)
    for seed in (0, 1):
        wait_for_step(tmp_path / "sweep" / f"seed={seed}", 3)
    process.send_signal(signal.SIGTERM)
    ended(process)
    patience = time.monotonic() + PATIENCE
    while not all(Run(tmp_path / "sweep" / f"seed={seed}").checkpoint("last").exists() for seed in (0, 1)):
        assert time.monotonic() < patience
        time.sleep(0.05)
    code, out = ended(start(2, *options))
    assert code == 0, out
    assert all(Run(tmp_path / "sweep" / f"seed={seed}").status() == "done" for seed in (0, 1))


def test_an_error_before_the_first_run_ends_all_processes(tmp_path):
    code, out = ended(start(3, written(tmp_path), "--variant", "none", "--out", tmp_path / "sweep"))
    assert code == 2
    assert out.count("rotrnn: error: ") == 1
    assert "--variant is 'none', but the recipe has no [sweep.variants]" in out
    code, out = ended(start(2, written(tmp_path), "--device", "cuda", "--out", tmp_path / "sweep"))
    assert code == 2
    assert "rotrnn: error: sweep: --device cuda with 2 processes of MPI, expected cpu" in out
    code, out = ended(start(2, written(tmp_path), "--launcher", "slurm", "--out", tmp_path / "sweep"))
    assert code == 2
    assert "rotrnn: error: --launcher slurm: MPI started 2 processes, expected one" in out


# ---- Slurm ----

# a line that both a shell and Python read, since the path of Python may hold a space
STAND_IN = f"""#!/bin/sh
''''exec {shlex.quote(sys.executable)} "$0" "$@" # '''
# Submits an array job of Slurm as far as these scripts use it: runs its tasks one after the other, here and now.
import os, re, subprocess, sys
assert sys.argv[1:] == ["--parsable", "sweep.sbatch"], sys.argv
options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", open("sweep.sbatch").read(), re.M))
first, last = map(int, options["array"].partition("%")[0].split("-"))
for task in range(first, last + 1):
    log = open(options["output"].replace("%A", "71").replace("%a", str(task)), "a")
    env = os.environ | {{"SLURM_ARRAY_TASK_ID": str(task), "SLURM_CPUS_ON_NODE": "1"}}
    subprocess.run(["/bin/sh", "sweep.sbatch"], env=env, stdout=log, stderr=subprocess.STDOUT)
print("71;cluster")
"""


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Returns a function that puts a program named sbatch on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("rotrnn.training.sweep.COMMAND", (sys.executable, toy.__file__))

    def put(text):
        path = folder / "sbatch"
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return put


def test_an_array_job_trains_every_run_and_the_same_command_resumes(tmp_path, sbatch, capsys):
    sbatch(STAND_IN)
    (tmp_path / "a b").mkdir()
    path, folder = written(tmp_path / "a b", toy.RECIPE + VARIANTS), tmp_path / "a b" / "sw eep"
    command = ["sweep", str(path), "--out", str(folder), "--launcher", "slurm"]
    assert main([*command, "--jobs", "2", "--slurm-option", "time=2:00:00", "--slurm-option", "exclusive"]) == 0
    out = capsys.readouterr().out
    assert f"3 runs in {folder}, ended: 0\n" in out
    assert f"submitted 3 runs as job 71; when they have ended: rotrnn results {folder}\n" in out
    text = (folder / "sweep.sbatch").read_text(encoding="utf-8")
    assert "#SBATCH --array=0-2%2\n" in text
    assert "#SBATCH --time=2:00:00\n#SBATCH --exclusive\n" in text
    names = [f"{name},seed=0" for name in ("nan", "crash", "fine")]
    assert [Run(folder / name).status() for name in names] == ["failed", "unfinished", "done"]
    assert "the loss is nan" in (folder / "slurm-71_0.log").read_text(encoding="utf-8")
    assert (
        (folder / "slurm-71_2.log")
        .read_text(encoding="utf-8")
        .endswith("done: fine,seed=0; install matplotlib for rotrnn plot fine,seed=0\n")
    )
    assert main(command) == 0  # the crashed run is the only unfinished one
    assert "submitted 1 run as job 71" in capsys.readouterr().out
    assert "#SBATCH --array=0-0\n" in (folder / "sweep.sbatch").read_text(encoding="utf-8")
    before = contents(folder / "fine,seed=0")
    assert main([*command, "--retry", "--variant", "nan"]) == 0
    assert "submitted 1 run as job 71" in capsys.readouterr().out
    assert main([*command, "--variant", "fine"]) == 0  # nothing is left: the table, as without a launcher
    out = capsys.readouterr().out
    assert "1 run in " in out
    assert "submitted" not in out
    assert "| fine" in out
    assert contents(folder / "fine,seed=0") == before


def test_a_task_that_was_cut_off_resumes_to_the_same_bytes(tmp_path, sbatch, monkeypatch):
    """The script is run by hand, as Slurm would, with SIGTERM before its end: it reaches the run, which saves."""
    sbatch("#!/bin/sh\necho 1\n")
    path, folder = written(tmp_path, SLOW.replace("delay = 0.1", "delay = 0.02")), tmp_path / "sweep"
    assert main(["sweep", str(path), "--out", str(folder), "--launcher", "slurm"]) == 0
    env = os.environ | {"SLURM_ARRAY_TASK_ID": "0"}
    held = env | {"TOY_HOLD": "20"}
    task = subprocess.Popen(["/bin/sh", "sweep.sbatch"], cwd=folder, env=held, stderr=subprocess.PIPE, text=True)
    wait_for_step(folder / "seed=0", 5)
    task.terminate()
    _, said = task.communicate(timeout=PATIENCE)
    assert task.returncode == 130
    assert "stopped after step" in said
    assert Run(folder / "seed=0").status() == "unfinished"
    assert subprocess.run(["/bin/sh", "sweep.sbatch"], cwd=folder, env=env, capture_output=True).returncode == 0
    recipe = load_recipe(folder / "seed=0" / "recipe.toml")
    train(recipe, tmp_path / "straight", progress=False)
    assert contents(folder / "seed=0") == contents(tmp_path / "straight")


def test_an_sbatch_that_is_missing_or_fails(tmp_path, sbatch, capsys, monkeypatch):
    command = ["sweep", str(written(tmp_path)), "--out", str(tmp_path / "sweep"), "--launcher", "slurm"]
    sbatch("#!/bin/sh\necho 'sbatch: error: invalid partition specified: none' >&2\nexit 1\n")
    assert main(command) == 2
    error = "sbatch failed with exit code 1: sbatch: error: invalid partition specified: none"
    assert (
        f"rotrnn: error: --launcher slurm: {tmp_path}/sweep/sweep.sbatch is written, but {error}\n"
        in capsys.readouterr().err
    )
    for prints, said in {"exit": "nothing", "echo Submitted batch job": "'Submitted batch job'"}.items():
        sbatch(f"#!/bin/sh\n{prints}\n")
        assert main(command) == 2
        error = f"sbatch printed {said}, expected the number of a job, as --parsable asks for\n"
        assert f"sweep.sbatch is written, but {error}" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(command) == 2
    assert "sweep.sbatch is written, but there is no sbatch on the PATH, expected Slurm's" in capsys.readouterr().err
    assert Run(tmp_path / "sweep" / "seed=0").status() == "unfinished"


def test_launchers_and_options_that_there_are_not(tmp_path, capsys):
    command = ["sweep", str(written(tmp_path)), "--out", str(tmp_path / "sweep")]
    with pytest.raises(SystemExit):
        main([*command, "--launcher", "pbs"])
    assert "argument --launcher: invalid choice: 'pbs' (choose from" in capsys.readouterr().err
    assert main([*command, "--slurm-option", "time=1"]) == 2
    assert "--slurm-option time=1: expected --launcher slurm with it" in capsys.readouterr().err
    for option in ("--time=1", "time=", "a b", "time=1\n#SBATCH --x", ""):
        with pytest.raises(ValueError, match=r"--slurm-option .*: expected an option of sbatch without dashes"):
            check_options([option])
    for option, said in {
        "array=0-3": "sets --array itself",
        "arr=0-3": "sets --array itself",
        "chdir=/": "sets --chdir itself",
        "parsable": "sets --parsable itself",
        "test-only": "cannot submit with --test-only",
        "wait": "cannot submit with --wait",
        "wrap=ls": "cannot submit with --wrap",
    }.items():
        with pytest.raises(ValueError, match=f"^--slurm-option {option}: the sweep {said}, expected another option$"):
            check_options([option])
    check_options(["time=2:00:00", "wait-all-nodes=1", "exclusive", "comment=a b"])
    assert not (tmp_path / "sweep").exists()


def test_a_script_quotes_what_a_shell_would_read():
    options = ("comment=two words # 1", "gres=gpu:1", "exclusive")
    text = script("my sweep $HOME", [*plan("digits-lru", seeds=[0, 1]), "a=b;c'd"], None, "cuda", options)
    assert "#SBATCH --comment='two words # 1'\n#SBATCH --gres=gpu:1\n#SBATCH --exclusive\n" in text
    assert "#SBATCH --job-name=my_sweep_HOME\n#SBATCH --array=0-2\n" in text
    assert """set -- seed=0 seed=1 'a=b;c'"'"'d'\n""" in text
    assert text.endswith('train --resume "$1" --trust --device cuda\n')


# ---- what goes wrong in another process ----


class Wire:
    """The communicator of process 1, which is told these things, one at a time."""

    def __init__(self, *told):
        self.told, self.sent = list(told), []

    def iprobe(self, source=None):
        return bool(self.told) and (self.told[0] != ("leave",) or bool(self.sent))

    def recv(self, source=None):
        return self.told.pop(0)

    def send(self, what, dest):
        self.sent.append(what)


class Together:
    """A world of two processes on this machine."""

    rank = 1

    def __init__(self, comm):
        self.comm = comm

    def tell(self, facts):
        return [facts, facts]


class Gone:
    """A worker whose folder is gone when it has ended."""

    def __init__(self, run):
        self.run = run

    def has_ended(self):
        return True

    def end(self):
        self.run.fail("it crashed")
        return "failed", []


@pytest.mark.parametrize("where", ["at its start", "at its end"])
def test_process_0_hears_of_a_run_that_nothing_can_be_written_of(where, tmp_path, monkeypatch):
    """Process 0 would wait for ever for an answer; it raises the error instead, as a sweep without MPI does."""
    folder = str(tmp_path / "gone")

    def start(run):
        if where == "at its start":
            raise OSError("no processes are left")
        return Gone(run)

    monkeypatch.setattr("rotrnn.training.crew.here", lambda share, device: start)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    wire = Wire(("start", folder, 1, "cpu"), ("leave",))
    serve(Together(wire))
    ((name, how, more),) = wire.sent
    assert (name, how) == (folder, LOST)
    assert folder in more[0]
    crew = Crew(ALONE)
    crew.comm, crew.ended = Wire(), {folder: (how, more)}
    remote = Remote(crew, 1, 1, "cpu", Run(Path(folder)))
    assert remote.has_ended()
    with pytest.raises(OSError, match=rf"process 1: .*{re.escape(str(folder))}"):
        remote.end()
