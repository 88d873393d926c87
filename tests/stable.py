"""Runs the tests in rounds, under settings that a machine or a shell may have: `make stable`.

    python tests/stable.py --rounds 3
    python tests/stable.py --runs busy,narrow tests/training -k resume

A round is one run for each row of `RUNS`, which together have every setting. A run has a copy of the sources, a virtual
environment and a build of its own in build/stable, a new order of tests, and new examples of Hypothesis; both follow
from its seed. To repeat a run: `--runs NAME --seed SEED`. Pythons are found as `python3.12` on PATH.

The log, build/stable/log.md, has a row for each run and the tests that failed in it. `--record` adds its rows to
benchmarks/results/stable.json, and writes the log of all that are there to stable.md: rounds of several days.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import resource
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
HERE = ROOT / "build" / "stable"
RECORD = ROOT / "benchmarks" / "results" / "stable.json"
PATIENCE = 4 * 3600
"""Seconds after which a run is taken to hang."""
GIB = 2**30
LOCALE = "de_DE.ISO-8859-1"  # a comma in numbers, and text that is not UTF-8
NOT_ROOT = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
ROOT_USER = ["unshare", "--user", "--map-root-user"]


FASTEST = "avx512" if "avx512bw" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split() else "avx2"
"""What ROTRNN_SIMD may name on this processor, of the kernels that every processor of its kind has."""


@dataclass(frozen=True)
class Run:
    """The settings of a run of the tests.

    `isa` is the fastest instruction set of the build, as if the processor had no faster one, and `simd` what
    ROTRNN_SIMD picks at run time ("" for the best). `memory` limits what a process may write to (RLIMIT_DATA): an
    allocation beyond it fails, as on a machine without the memory. RLIMIT_AS would also count addresses that are only
    reserved, which browsers take by the terabyte; a limit of a control group would kill the process. `threads` is
    OMP_NUM_THREADS, `columns` the width of the terminal that the environment tells of; with 0 it tells of none, and
    standard input is closed. `timezone` is written as POSIX does, which needs no files.
    """

    name: str
    python: str
    isa: str = "avx512"
    simd: str = ""
    cores: int = 2
    busy: int = 0
    root: bool = True
    folder: str = "sources"
    memory: int = 0
    locale: str = "C.UTF-8"
    timezone: str = "UTC0"
    umask: int = 0o022
    threads: str = ""
    columns: int = 80
    workers: int = 2

    def settings(self) -> str:
        """What differs from a shell on an idle machine, in words."""
        said = [
            f"Python {self.python}",
            f"built up to {self.isa}",
            f"ROTRNN_SIMD={self.simd}" if self.simd else "the best instructions",
            "AMX shown" if self.isa == "avx512" and not self.simd else "AMX hidden",
            f"{self.cores} core{'s' * (self.cores > 1)}",
            f"beside {self.busy} busy processes" if self.busy else "",
            "root" if self.root else "not root",
            f"in {self.folder!r}",
            f"{self.memory / GIB:.0f} GiB a process" if self.memory else "",
            self.locale,
            f"TZ={self.timezone}",
            f"umask {self.umask:03o}",
            f"OMP_NUM_THREADS={self.threads}" if self.threads else "",
            f"a terminal of {self.columns} columns" if self.columns else "no terminal",
        ]
        return ", ".join(filter(None, said))


RUNS = (
    Run("single", "3.11", cores=1, workers=0, columns=0, timezone="WEST12"),
    Run("busy", "3.12", simd=FASTEST, busy=4, root=False, locale=LOCALE, umask=0o077),
    Run("narrow", "3.13", isa="avx2", folder="a folder (1)", memory=4 * GIB, threads="3", columns=44),
    Run("plain", "3.11", isa="base", root=False, timezone="EAST-14", umask=0o002, threads="1", columns=0),
    Run("portable", "3.12", simd="base", locale=LOCALE, timezone="EST5EDT,M3.2.0,M11.1.0", threads="2"),
)


# ---- what a run needs ----


def python_of(version: str) -> str:
    """Returns a Python of this version: this one, or one on PATH."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return getattr(sys, "_base_executable", sys.executable)
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
        return found
    sys.exit(f"stable: there is no python{version} on PATH; with pyenv, set PYENV_VERSION to several versions")


def copy_sources(to: Path) -> bool:
    """Copies the files of the repository that differ from those in `to`. Returns whether the build is out of date."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
    names = {name for name in names if (ROOT / name).is_file()}
    record = to / "build" / "copied"
    before = set(record.read_text(encoding="utf-8").splitlines()) if record.exists() else set()
    changed = before - names
    for name in changed:
        (to / name).unlink(missing_ok=True)
    for name in names:
        source, target = ROOT / name, to / name
        if not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            changed.add(name)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("\n".join(sorted(names)), encoding="utf-8")
    return any(name.startswith(("csrc/", "include/", "setup.py", "pyproject.toml")) for name in changed)


def prepare(run: Run) -> Path:
    """Brings the sources, the environment and the build of a run up to date. Returns the folder of the sources."""
    folder = HERE / f"python{run.python}-{run.isa}" / run.folder  # runs may share it
    for one in (folder, folder.parent / "home", Path(f"{folder}.tmp")):
        one.mkdir(parents=True, exist_ok=True)
    installed = folder / ".venv" / "installed"
    if copy_sources(folder) or not installed.exists():
        installed.unlink(missing_ok=True)
        if not (folder / ".venv" / "bin" / "python").exists():
            subprocess.run([python_of(run.python), "-m", "venv", folder / ".venv"], check=True)
        pip = [
            str(folder / ".venv" / "bin" / "python"),
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "install",
        ]
        env = os.environ | {"ROTRNN_ISA": run.isa}
        subprocess.run([*pip, "setuptools>=77", "--editable", f"{folder}[plot,data,test]"], check=True, env=env)
        installed.touch()
    return folder


def environment(run: Run, folder: Path) -> dict[str, str]:
    """Only what the run's settings say, and what finds programs and compilers."""
    kept = {name: os.environ[name] for name in ("PATH", "CC", "CXX", "CHROMIUM") if name in os.environ}
    env = kept | {"HOME": str(folder.parent / "home"), "TMPDIR": f"{folder}.tmp"}
    env |= {"TZ": run.timezone, "LC_ALL": run.locale, "OMP_WAIT_POLICY": "passive"}
    if run.locale == LOCALE:
        env |= {"LOCPATH": str(HERE / "locales"), "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    if run.simd:
        env["ROTRNN_SIMD"] = run.simd
    if run.threads:
        env["OMP_NUM_THREADS"] = run.threads
    if run.columns:
        env |= {"TERM": "dumb", "COLUMNS": str(run.columns)}
    return env


def make_locale() -> None:
    """Few systems have it installed."""
    folder = HERE / "locales" / LOCALE
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        language, _, charset = LOCALE.partition(".")
        subprocess.run(["localedef", "-i", language, "-f", charset, folder], check=True)


@contextmanager
def busy(run: Run, cores: set[int]) -> Iterator[None]:
    """Within the block other processes want the run's cores."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(run.busy)]
    try:
        for one in others:
            os.sched_setaffinity(one.pid, cores)
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


# ---- running ----


def run_tests(run: Run, seed: int, arguments: list[str]) -> dict[str, Any]:
    """Runs the tests once. Returns the row of the log."""
    folder = prepare(run)
    report, output = (folder.parent / f"{run.name}.{kind}" for kind in ("xml", "txt"))
    report.unlink(missing_ok=True)
    cores = set(sorted(os.sched_getaffinity(0))[: run.cores])
    if len(cores) < run.cores:
        print(f"stable: {run.name} wants {run.cores} cores and has {len(cores)}")

    def limit() -> None:
        os.sched_setaffinity(0, cores)
        os.umask(run.umask)
        if not run.columns:
            os.close(0)
        if run.memory:
            resource.setrlimit(resource.RLIMIT_DATA, (run.memory, run.memory))

    is_root = os.geteuid() == 0
    wrapper = [] if is_root == run.root else ROOT_USER if run.root else NOT_ROOT
    order = ["-p", "randomly", f"--randomly-seed={seed}", "--hypothesis-profile=chance", f"--hypothesis-seed={seed}"]
    pytest = [str(folder / ".venv" / "bin" / "python"), "-m", "pytest", "-n", str(run.workers), *order]
    command = [*wrapper, *pytest, f"--junitxml={report}", "--tb=short", "-r", "fE", *arguments]
    began = time.monotonic()
    with busy(run, cores), open(output, "wb") as file, open(os.devnull, "rb") as nothing:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(run, folder),
            stdin=nothing,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=limit,
            start_new_session=True,  # no terminal that can be opened, and one group to end
        )
        try:
            code: int | str = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = "does not end"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    row = {"run": run.name, "settings": run.settings(), "seed": seed, "date": today, "commit": commit(), "code": code}
    row["arguments"] = shlex.join(arguments)
    row["processor"] = runpy.run_path(str(ROOT / ".ci" / "steps.py"))["processor"]()  # has what "best" and "shown" mean
    return row | {"minutes": round((time.monotonic() - began) / 60, 1)} | counted(report)


def commit() -> str:
    """The commit of the sources, with a + where they differ from it."""
    named = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    return named.stdout.strip()


def counted(report: Path) -> dict[str, Any]:
    """The counts of a report, and the tests that failed with the first line that says why."""
    found: dict[str, Any] = {"tests": 0, "skipped": 0, "failures": []}
    if not report.exists():
        return found
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        found["tests"] += int(suite.get("tests", 0))
        found["skipped"] += int(suite.get("skipped", 0))
        for case in suite.iter("testcase"):
            for kind in ("failure", "error"):
                if (one := case.find(kind)) is not None:
                    why = one.get("message", "").strip().partition("\n")[0].replace(f"{ROOT}/", "")
                    found["failures"].append((f"{case.get('classname')}::{case.get('name')}", why[:200]))
    return found


# ---- the log ----


def log_of(rows: list[dict[str, Any]]) -> str:
    """The log as a page."""
    lines = ["# The tests under other settings", "", "Written by `make stable`.", ""]
    lines += ["| run | settings | runs | without a failure |", "| --- | --- | --- | --- |"]
    for name, settings in dict.fromkeys((r["run"], r["settings"]) for r in rows):
        codes = [row["code"] for row in rows if (row["run"], row["settings"]) == (name, settings)]
        lines.append(f"| {name} | {settings} | {len(codes)} | {codes.count(0)} |")
    names = ("run", "commit", "date", "processor", "seed", "tests", "failed", "skipped", "minutes", "arguments")
    lines += ["", f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    for row in rows:
        ended = len(row["failures"]) or (0 if row["code"] in (0, 1) else f"pytest: {row['code']}")
        lines.append(f"| {' | '.join(str((row | {'failed': ended})[name]) for name in names)} |")
    failed = [(row, name, why) for row in rows for name, why in row["failures"]]
    if failed:
        lines += ["", "What failed:", ""]
        lines += [f"- {row['run']}, seed {row['seed']}: `{name}`: {why}" for row, name, why in failed]
    return "\n".join(lines) + "\n"


def record(row: dict[str, Any]) -> None:
    """Adds a row to those that are kept."""
    rows = [*(json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []), row]
    text = ",\n".join(json.dumps(one, separators=(",", ":")) for one in rows)
    RECORD.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    RECORD.with_suffix(".md").write_text(log_of(rows), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests in rounds, under other settings of machine and shell.")
    parser.add_argument("--rounds", type=int, default=1, help="default: 1")
    parser.add_argument("--runs", default=",".join(run.name for run in RUNS), help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="of the first run; those after it add one (default: random)")
    parser.add_argument("--record", action="store_true", help=f"add to {RECORD.relative_to(ROOT)} too")
    options, arguments = parser.parse_known_args()  # the others are pytest's
    named = {run.name: run for run in RUNS}
    if unknown := set(options.runs.split(",")) - set(named):
        parser.error(f"--runs: {', '.join(sorted(unknown))}, expected some of {', '.join(named)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and so its processes end too
    make_locale()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    rows: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        for name in options.runs.split(","):
            print(f"{name}, seed {seed}: {named[name].settings()}", flush=True)
            rows.append(run_tests(named[name], seed, arguments))
            seed += 1
            (HERE / "log.md").write_text(log_of(rows), encoding="utf-8")
            row = rows[-1]
            if options.record:
                record(row)
            print(f"    {row['tests']} tests, {len(row['failures'])} failed, exit code {row['code']}", flush=True)
            for test, why in row["failures"]:
                print(f"    {test}: {why}", flush=True)
    return int(any(row["code"] != 0 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
