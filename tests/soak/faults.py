"""Runs and sweeps that are stopped, on disks that fill, by clocks that go back, and two at once in one folder.

Each must end on the bytes of an uninterrupted run (docs/guarantees.md), whatever it takes to get there. A row with
seed S is the first one of `--seed S`.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import toy
from rotrnn.training.loop import train
from rotrnn.training.recipe import Recipe, load_recipe
from rotrnn.training.run import Run
from rotrnn.training.sweep import plan
from tests.soak.row import Row

SIGNALS = ("TERM", "INT", "HUP", "KILL", "QUIT", "USR1", "USR2", "ALRM", "PIPE", "XCPU")
KILLS = 4
"""Signals to a run, or a sweep, before it is left to end."""
PATIENCE = 120
"""Seconds within which each process must end."""
SETTINGS = ("task.delay=0.004", "training.eval_every=3", "training.checkpoint_every=2", "training.steps=60")


class Folder:
    """A temporary folder with a recipe, and its uninterrupted run, or those of a sweep of it."""

    def __init__(self, top: Path, seeds: tuple[int, ...] = ()) -> None:
        self.top, self.recipe_file, self.run = top, top / "run.toml", top / "run"
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir(parents=True)
        self.recipe_file.write_text(toy.RECIPE, encoding="utf-8")
        self.recipe_file.write_text(load_recipe(self.recipe_file, SETTINGS).text(), encoding="utf-8")
        runs: dict[str, Recipe] = {"": load_recipe(self.recipe_file)}
        if seeds:
            runs = plan(self.recipe_file, seeds=list(seeds))
        self.names = list(runs)
        for name, recipe in runs.items():
            train(recipe, top / "straight" / name, progress=False)

    def same(self, row: Row) -> None:
        """Expects the bytes of the uninterrupted runs, and no other files."""
        for name in self.names:
            here, straight = self.run / name, self.top / "straight" / name
            row.expect(sorted(os.listdir(here)) == sorted(os.listdir(straight)), f"other files: {os.listdir(here)}")
            row.expect(toy.contents(here) == toy.contents(straight), f"other bytes than an uninterrupted run {name}")


def start(*arguments: Any, limit: int | None = None, program: str = toy.__file__) -> subprocess.Popen[str]:
    """Starts `rotrnn` with the toy; `limit`: bytes at which a write to a file fails."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell puts behind

    command = [sys.executable, program, *map(str, arguments)]
    path = os.pathsep.join(filter(None, (str(Path(toy.__file__).parent), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=prepare, env=env
    )


def ended(row: Row, process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns exit code and output of a process, which must end, and say nothing of a bug."""
    try:
        out, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        row.expect(False, f"did not end within {PATIENCE} s")
    early = out.rstrip().endswith("KeyboardInterrupt")  # Ctrl-C while Python still imports the program
    row.expect(early or "Traceback" not in out, f"a traceback: {out[-2000:]}")
    return process.returncode, out


def resumed(row: Row, *arguments: Any) -> None:
    code, out = ended(row, start(*arguments))
    row.expect(code == 0, f"resuming ended with {code}: {out[-2000:]}")


def kills_of_runs(seed: int, top: Path, count: int) -> Iterator[Row]:
    """Signals at random moments, one after the other, to a run that is resumed each time; then it runs to its end."""
    folder = Folder(top)
    for k in range(0, count, KILLS):
        moment = random.Random(seed + k)
        signals = [moment.choice(SIGNALS) for _ in range(KILLS)]
        row = Row("kills of a run", " ".join(signals), seed + k)
        shutil.rmtree(folder.run, ignore_errors=True)
        arguments: tuple[Any, ...] = ("train", folder.recipe_file, "--out", folder.run)
        for name in signals:
            process = start(*arguments)
            before = moment.choice((0, 0, 1, 20))
            if before:  # after some more steps, else while it starts
                there = Run(folder.run).records() if Run(folder.run).log.exists() else []
                step = len([one for one in there if "grad_norm" in one]) + before
                while process.poll() is None and not _reached(folder.run, step):
                    time.sleep(0.002)
            time.sleep(moment.uniform(0, 0.1 if before else 1.5))
            process.send_signal(signal.Signals[f"SIG{name}"])
            code, out = ended(row, process)
            expected = (0, 130, -signal.Signals[f"SIG{name}"], 128 + signal.Signals[f"SIG{name}"])
            if name != "PIPE":  # Python ignores it: the run goes on to its end
                row.expect(code in expected or before == 0, f"{name}: exit code {code}: {out[-1000:]}")
            if (folder.run / "recipe.toml").exists():
                arguments = ("train", "--resume", folder.run)
        resumed(row, *arguments)
        folder.same(row)
        yield row


def _reached(run: Path, step: int) -> bool:
    log = run / "log.jsonl"
    return log.exists() and log.read_bytes().count(b"grad_norm") >= step


def kills_of_sweeps(seed: int, top: Path, count: int) -> Iterator[Row]:
    """The same for a sweep of three runs, two at a time; sometimes its runs get the signal too, or alone."""
    folder = Folder(top, (0, 1, 2))
    arguments = ("sweep", folder.recipe_file, "--seeds", "0..2", "--jobs", 2, "--out", folder.run)
    for k in range(0, count, KILLS):
        moment = random.Random(seed + k)
        signals = [moment.choice(SIGNALS) for _ in range(KILLS)]
        row = Row("kills of a sweep", " ".join(signals), seed + k)
        shutil.rmtree(folder.run, ignore_errors=True)
        for name in signals:
            process, number = start(*arguments), signal.Signals[f"SIG{name}"]
            time.sleep(moment.uniform(0.2, 3))
            whom = moment.choice(("sweep", "runs", "both"))
            victims = _children(process.pid) if whom != "sweep" else []
            if whom != "runs":
                process.send_signal(number)
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim, number)
            ended(row, process)
        for _ in range(2):  # runs that a signal ended count as failed, and are taken up again
            code, out = ended(row, start(*arguments, "--retry"))
        row.expect(code == 0, f"the sweep ended with {code}: {out[-2000:]}")
        folder.same(row)
        yield row


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


def full_disks(seed: int, top: Path, count: int) -> Iterator[Row]:
    """Writes that fail at a random byte of a file: one line says so, and the run can be resumed."""
    folder = Folder(top)
    largest = max(path.stat().st_size for path in (folder.top / "straight").iterdir())
    for k in range(count):
        row = Row("full disks", "a limit on each file", seed + k)
        limit = random.Random(row.seed).randrange(1, largest)
        row.case = f"files end at {limit} bytes"
        shutil.rmtree(folder.run, ignore_errors=True)
        code, out = ended(row, start("train", folder.recipe_file, "--out", folder.run, limit=limit))
        row.expect(code == 2 and "rotrnn: error: " in out, f"exit code {code}: {out[-1000:]}")
        row.expect("File too large" in out, f"does not say why: {out[-1000:]}")
        begun = (folder.run / "recipe.toml").exists()
        arguments = ("--resume", folder.run) if begun else (folder.recipe_file, "--out", folder.run)
        resumed(row, "train", *arguments)
        folder.same(row)
        yield row


@contextmanager
def small_disk(size: int, at: Path) -> Iterator[bool]:
    """Mounts a file system of `size` bytes in memory, if this process may."""
    at.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(at)], check=True)


def really_full_disks(seed: int, top: Path, count: int) -> Iterator[Row]:
    """A disk with room for a part of a run, until there is more: needs the right to mount."""
    folder = Folder(top)
    straight = folder.top / "straight"
    needed = sum(-(-path.stat().st_size // 4096) * 4096 for path in straight.iterdir())
    for k in range(count):
        row = Row("full disks", "", seed + k)
        size = 4096 * random.Random(row.seed).randrange(1, needed // 4096)
        row.case = f"a disk of {size} bytes"
        disk = folder.top / "disk"
        with small_disk(size, disk) as mounted:
            if not mounted:
                row.case = "a disk of its own: not allowed to mount, left out"
                yield row
                return
            code, out = ended(row, start("train", folder.recipe_file, "--out", disk / "run"))
            row.expect(code in (0, 2), f"exit code {code}: {out[-1000:]}")
            row.expect(code == 0 or "No space left on device" in out, f"does not say why: {out[-1000:]}")
            subprocess.run(["mount", "-o", f"remount,size={64 * 2**20}", str(disk)], check=True)
            begun = (disk / "run" / "recipe.toml").exists()
            arguments = ("--resume", disk / "run") if begun else (folder.recipe_file, "--out", disk / "run")
            if code:
                resumed(row, "train", *arguments)
            shutil.rmtree(folder.run, ignore_errors=True)
            shutil.copytree(disk / "run", folder.run)
        folder.same(row)
        yield row


def clocks(seed: int, top: Path, count: int) -> Iterator[Row]:
    """All clocks jump, also back, by up to years between two looks."""
    folder = Folder(top)
    for k in range(count):
        row = Row("clocks", "all of them jump", seed + k)
        shutil.rmtree(folder.run, ignore_errors=True)
        program = str(Path(__file__).with_name("jumping_clocks.py"))
        process = start(row.seed, "train", folder.recipe_file, "--out", folder.run, program=program)
        code, out = ended(row, process)
        row.expect(code == 0, f"exit code {code}: {out[-2000:]}")
        folder.same(row)
        yield row


def two_at_once(seed: int, top: Path, count: int) -> Iterator[Row]:
    """Two or three processes on one folder: one trains, the others are refused in words."""
    folder = Folder(top)
    for k in range(count):
        row = Row("one folder", "", seed + k)
        moment = random.Random(row.seed)
        number = moment.choice((2, 3))
        row.case = f"{number} processes"
        shutil.rmtree(folder.run, ignore_errors=True)
        processes = []
        for _ in range(number):
            processes.append(start("train", folder.recipe_file, "--out", folder.run))
            time.sleep(moment.choice((0, 0, moment.uniform(0, 0.5))))
        results = [ended(row, process) for process in processes]
        row.expect([code for code, _ in results].count(0) == 1, f"exit codes {[code for code, _ in results]}")
        for code, out in results:
            row.expect(code == 0 or (code == 2 and "rotrnn: error: " in out), f"exit code {code}: {out[-1000:]}")
        folder.same(row)
        yield row
