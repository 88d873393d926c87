"""What continuous integration runs, and what has passed already.

    python .ci/steps.py run NAME        runs a step and, if it passes on what there is now, records that in .ci/passed
    python .ci/steps.py gate [SECONDS]  what every change must pass, then what is due, as far as the time goes
    python .ci/steps.py due [--strict]  prints the steps that have not passed on what there is now; strict: fails if any
    python .ci/steps.py of FILE...      prints the steps that a change of these files makes due

.ci/steps.toml lists the steps. A step is a rule `step-NAME` of the Makefile; `make NAME` is `run NAME`, but for the
steps that every change must pass, which `make` runs without a record. A line of .ci/passed says of a step: the hash of
its inputs and of its tools, the date, the seconds, and the processor. Inputs are the files that git knows under the
step's paths, and the step's rule with all of the Makefile that it names; of a tool, what it prints for --version
counts. The gate repeats one recorded step, drawn at random, so that no line stays that does not hold. Where it may (as
root, or by sudo), it installs the Debian packages of a step whose tools are missing.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import functools
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(os.environ.get("STEPS_ROOT", Path(__file__).parents[1]))
PASSED = ROOT / ".ci" / "passed"
GATE_SECONDS = 1200
OLD = 7  # days after which a step that is due fails the gate
SLOWER = 1.25, 2  # times the recorded seconds on the same processor, and seconds more, from which on a step is named
CHANGES = ("PYTEST_ADDOPTS", "SOAK", "TORCH", "JAX", "HARNESS_CASES", "HARNESS_SEEDS", "ROTRNN_ISA", "ROTRNN_SIMD")
"""Variables of the environment that change what a step does."""
ROOM = 1.5  # times the expected seconds that must be left before a step is begun


@dataclass(frozen=True)
class Step:
    """A row of steps.toml."""

    name: str
    inputs: tuple[str, ...]
    tools: tuple[str, ...]
    debian: tuple[str, ...]
    seconds: float
    always: bool


@dataclass(frozen=True)
class Line:
    """A line of .ci/passed."""

    name: str
    hash: str
    date: str
    seconds: float
    processor: str

    def __str__(self) -> str:
        return f"{self.name} {self.hash} {self.date} {self.seconds:.0f} {self.processor}"


def output(*command: str) -> str:
    """What a command prints, in the repository."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def read_steps() -> dict[str, Step]:
    """The steps, with the named groups of paths written out."""
    table = tomllib.loads((ROOT / ".ci" / "steps.toml").read_text(encoding="utf-8"))
    groups = table.pop("inputs", {})

    def paths(names: list[str]) -> list[str]:
        return [path for name in names for path in (paths(groups[name[1:]]) if name.startswith("@") else [name])]

    return {
        name: Step(
            name,
            tuple(dict.fromkeys(paths(row["inputs"]))),
            tuple(row.get("tools", ())),
            tuple(row.get("debian", ())),
            row["seconds"],
            row.get("always", False),
        )
        for name, row in table.items()
    }


def read_lines() -> dict[str, Line]:
    """What has passed, by step."""
    text = PASSED.read_text(encoding="utf-8") if PASSED.exists() else ""
    rows = re.findall(r"^([\w-]+) ([0-9a-f]{16}-[0-9a-f]{8}) (\d{4}-\d\d-\d\d) (\d+) (.+)$", text, re.MULTILINE)
    return {row[0]: Line(row[0], row[1], row[2], float(row[3]), row[4]) for row in rows}


def write_line(name: str, line: Line | None) -> None:
    """Writes a step's line to .ci/passed, in the order of names, or takes it away. Steps may end at the same time."""
    lock = os.open(PASSED.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = read_lines()
        lines.pop(name, None)
        lines |= {name: line} if line else {}
        scratch = PASSED.with_suffix(f".{os.getpid()}")
        scratch.write_text("".join(f"{lines[one]}\n" for one in sorted(lines) if one in read_steps()), encoding="utf-8")
        scratch.replace(PASSED)
    finally:
        os.close(lock)


@functools.cache
def makefile() -> dict[str, str]:
    """The definitions of the Makefile: of each variable, and the rules of each target."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Makefile").read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for one in re.finditer(r"^define (\w+)\n(?:(?!endef).*\n)*endef|^(?:export )?(\w+) *[?:+]?=.*", text, re.MULTILINE):
        found[one[1] or one[2]] = one[0]
    for one in re.finditer(r"^([^\s#=:][^=:\n]*):(?!=).*(?:\n[\t#].*)*", text, re.MULTILINE):
        for target in one[1].split():
            found[target] = found.get(target, "") + one[0] + "\n"
    return found


def rule_of(name: str) -> str:
    """A step's rule in the Makefile, with the rules and variables that it names, and those that these name."""
    known, names = makefile(), [f"step-{name}"]
    if names[0] not in known:
        raise SystemExit(f".ci/steps.py: the Makefile has no rule step-{name}")
    for one in names:  # grows
        words = dict.fromkeys(re.findall(r"[\w./-]+", known[one]))
        names += [word for word in words if word in known and word not in names]
    return "\n".join(known[one] for one in names)


def path_of(tool: str) -> str | None:
    """Where a tool is; CHROMIUM, say, may name another program than chromium."""
    return shutil.which(os.environ.get(tool.upper(), tool))


def version_of(tool: str) -> str:
    """What a tool prints for --version, or nothing if it is missing."""
    if (path := path_of(tool)) is None:
        return ""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return said.stdout or said.stderr


def missing_tools(step: Step) -> list[str]:
    return [tool for tool in step.tools if path_of(tool) is None]


def installer() -> list[str] | None:
    """The command that installs packages, or None where it is not there or not allowed."""
    if shutil.which("apt-get") is None or (os.geteuid() and shutil.which("sudo") is None):
        return None
    return ["sudo", "-n", "apt-get"] if os.geteuid() else ["apt-get"]


def can_run(step: Step) -> bool:
    """Whether a step's tools are here, or can be installed."""
    return not missing_tools(step) or (bool(step.debian) and installer() is not None)


def install_tools(step: Step) -> bool:
    """Installs the packages of a step whose tools are missing. Returns whether they are all here."""
    apt = installer()
    if missing_tools(step) and step.debian and apt:
        subprocess.run([*apt, "update", "-q"], check=False)
        subprocess.run([*apt, "install", "-q", "-y", "--no-install-recommends", *step.debian], check=False)
    return not missing_tools(step)


def files_of(step: Step) -> list[str]:
    """The files that git knows, or would add, under a step's paths."""
    listed = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *step.inputs)
    names = sorted(set(filter(None, listed.split("\0"))))
    if not names:
        raise SystemExit(f".ci/steps.py: {step.name} has no inputs under {' '.join(step.inputs)}")
    return names


def hash_of(step: Step) -> str:
    """The hash of a step's inputs, and after a dash that of its tools."""
    files = hashlib.sha256(json.dumps([step.inputs, rule_of(step.name)]).encode())
    for name in files_of(step):
        path = ROOT / name
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b"gone"
        files.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    tools = hashlib.sha256("\n".join(map(version_of, step.tools)).encode())
    return f"{files.hexdigest()[:16]}-{tools.hexdigest()[:8]}"


def holds(line: Line | None, step: Step) -> bool:
    """Whether a step has passed on what there is now; of tools that are not here, nothing can be said."""
    if line is None:
        return False
    now = hash_of(step)
    return line.hash == now or (bool(missing_tools(step)) and line.hash.split("-")[0] == now.split("-")[0])


@functools.cache
def processor() -> str:
    """The processor's name and its widest instruction set."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown processor"
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = set((re.search(r"^flags\s*: (.*)$", text, re.MULTILINE) or ["", ""])[1].split())
    widest = next((isa for isa in ("amx_bf16", "avx512f", "avx2") if isa in flags), "base")
    return f"{name[1] if name else 'unknown processor'}, {os.cpu_count()} cores, {widest}"


def make(step: Step, limit: float | None = None) -> tuple[int | None, float]:
    """Runs a step's rule. Returns its exit code, or None if it took longer than `limit`, and its seconds."""
    began = time.monotonic()
    process = subprocess.Popen(["make", f"step-{step.name}"], cwd=ROOT, start_new_session=limit is not None)
    code: int | None = None
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        pass
    finally:  # after Ctrl-C, too
        if process.poll() is None and limit is not None:
            os.killpg(process.pid, 9)
        process.wait()
    return code, time.monotonic() - began


def is_another_step() -> bool:
    """Whether make or the environment was told to do otherwise than the rule says: make soak SOAK=..., make -i, ..."""
    flags = os.environ.get("MAKEFLAGS", "")
    letters = "" if flags.startswith((" ", "-")) else flags.partition(" ")[0]
    return " -- " in flags or bool(set(letters) & set("intq")) or any(map(os.environ.get, CHANGES))


def attempt(step: Step, limit: float | None = None) -> tuple[int | None, float]:
    """Runs a step as `make` above does. That it passes is recorded, unless it was another step or its inputs changed
    while it ran. If it fails on what a line says that it has passed on, the line goes."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return make(step, limit)
    before = hash_of(step)
    code, seconds = make(step, limit)
    lines = read_lines()
    if code == 0 and not is_another_step():
        if hash_of(step) == before:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            write_line(step.name, Line(step.name, before, today, seconds, processor()))
        else:
            print(f"{step.name} passed, and its inputs changed meanwhile: not recorded", flush=True)
    elif code and step.name in lines and lines[step.name].hash == before:
        write_line(step.name, None)
    return code, seconds


def due_since(step: Step, lines: dict[str, Line]) -> datetime.date | None:
    """The day from which on a step is due: that of the first commit since its line that changed an input, or, if it has
    never passed, of the commit that brought it. None if it is not due."""
    line = lines.get(step.name)
    if holds(line, step):
        return None
    if line is None:
        which = ["-S", f"[{step.name}]", "--", ".ci/steps.toml"]
    elif line.hash.split("-")[0] == hash_of(step).split("-")[0]:
        return datetime.date.today()  # another machine's tools
    else:
        written = output(
            "git", "log", "-1", "--format=%H", "-S", f"{step.name} {line.hash}", "--", ".ci/passed"
        ).strip()
        since = [f"{written}..HEAD"] if written else ["--since", f"{line.date}T23:59:59Z"]
        which = [*since, "--", *step.inputs, "Makefile", ".ci/steps.toml"]
    days = output("git", "log", "--format=%cs", *which).split()
    return min(map(datetime.date.fromisoformat, days), default=datetime.date.today())


def due_steps() -> list[tuple[datetime.date, Step]]:
    """The steps that are due, those that were checked least recently first."""
    lines, found = read_lines(), []
    for step in read_steps().values():
        if not step.always and (since := due_since(step, lines)):
            found.append((since, step))
    return sorted(found, key=lambda one: (lines[one[1].name].date if one[1].name in lines else "", one[1].name))


def expected(step: Step, pace: float) -> float:
    """The seconds that a step is expected to take here."""
    line = read_lines().get(step.name)
    return line.seconds if line and line.processor == processor() else pace * (line.seconds if line else step.seconds)


class Gate:
    """What one call of the gate has run, with what it prints at the end."""

    def __init__(self, limit: float) -> None:
        self.limit, self.began = limit, time.monotonic()
        self.rows: list[tuple[float, str, str]] = []
        self.failed: list[str] = []
        self.pace = 1.0  # times the listed seconds that the steps of every change took

    def left(self) -> float:
        return self.limit - (time.monotonic() - self.began)

    def run(self, step: Step, why: str, limit: float | None = None) -> bool:
        """Runs a step. Returns whether it passed."""
        print(f"\n==== {step.name}: {why}", flush=True)
        line = read_lines().get(step.name)
        if not install_tools(step) and not step.always:
            self.rows.append((0.0, step.name, f"{why}: {' '.join(missing_tools(step))} could not be installed"))
            return False
        code, seconds = attempt(step, limit)
        said = "passed" if code == 0 else "no time" if code is None else "FAILED"
        if code == 0 and line and line.processor == processor() and seconds > SLOWER[0] * line.seconds + SLOWER[1]:
            said += f", slower than the {line.seconds:.0f} s of {line.date}"
        self.rows.append((seconds, step.name, f"{why}: {said}"))
        if code:
            self.failed.append(step.name)
        return code == 0

    def repeat_one(self, seed: int) -> None:
        """Runs a recorded step that is not due, for which there is time, drawn by the seed."""
        lines, steps = read_lines(), read_steps()
        done = [step for step in steps.values() if not step.always and can_run(step)]
        held = [step for step in done if holds(lines.get(step.name), step)]
        fit = [step for step in held if ROOM * expected(step, self.pace) < self.left()]
        if not fit:
            print(f"\nno recorded step is repeated: {len(held)} hold, and there is time for none", flush=True)
            return
        step = random.Random(seed).choice(fit)
        self.run(step, f"recorded on {lines[step.name].date}, repeated by seed {seed}", self.left())

    def run_due(self) -> None:
        """Runs what is due, as far as the time goes."""
        for since, step in due_steps():
            if can_run(step) and ROOM * expected(step, self.pace) < self.left():
                self.run(step, f"due since {since}", self.left())

    def end(self) -> int:
        """Prints the table of steps and the debt. Returns the exit code."""
        print()
        for seconds, name, how in self.rows:
            print(f"{seconds:6.0f} s  make {name:16} {how}")
        print(f"{time.monotonic() - self.began:6.0f} s  in all, on {processor()}")
        old = []
        for since, step in due_steps():
            if step.name not in self.failed:
                days = (datetime.date.today() - since).days
                how = f"about {expected(step, self.pace):.0f} s"
                how = how if can_run(step) else f"not here, without {' '.join(missing_tools(step))}"
                print(f"due: make {step.name}, since {since}; {how}")
                old += [step.name] if days > OLD and can_run(step) else []
        if old:
            print(f"due for more than {OLD} days: {' '.join(old)}; run `make NAME`, and commit .ci/passed")
        if self.failed:
            print(f"failed: {' '.join(self.failed)}")
        return int(bool(self.failed or old))


def gate(limit: float) -> int:
    """Runs the gate within `limit` seconds, of which what every change must pass may take more."""
    now = Gate(limit)
    steps = [step for step in read_steps().values() if step.always]
    for step in steps:
        if not now.run(step, "every change"):
            return now.end()
    now.pace = max(1.0, sum(row[0] for row in now.rows) / sum(step.seconds for step in steps))
    now.repeat_one(int(os.environ.get("GATE_SEED") or random.SystemRandom().randrange(10_000)))
    now.run_due()
    return now.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("names")
    commands.add_parser("run").add_argument("name")
    commands.add_parser("due").add_argument("--strict", action="store_true")
    commands.add_parser("of").add_argument("files", nargs="+", metavar="FILE")
    commands.add_parser("gate").add_argument("seconds", nargs="?", type=float, default=GATE_SECONDS)
    args = parser.parse_args()
    steps = read_steps()
    if args.command == "names":
        print(*steps)
    elif args.command == "run":
        if args.name not in steps:
            parser.error(f"no step {args.name!r}; steps: {' '.join(steps)}")
        if missing := missing_tools(steps[args.name]):
            parser.error(f"{args.name} needs {' '.join(missing)}; Debian: {' '.join(steps[args.name].debian) or '-'}")
        return attempt(steps[args.name])[0] or 0
    elif args.command == "gate":
        return gate(args.seconds)
    elif args.command == "of":
        known = set(
            filter(None, output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"))
        )
        if unknown := [file for file in args.files if file not in known]:
            parser.error(f"{' '.join(unknown)}: not a file of the repository, by its path from {ROOT}")
        print(*(step.name for step in steps.values() if not step.always and set(args.files) & set(files_of(step))))
    else:
        due = due_steps()
        for since, step in due:
            print(f"{step.name}: since {since}")
        return int(bool(due) and args.strict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
