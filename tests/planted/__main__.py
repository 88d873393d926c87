"""Plants each fault of faults.toml in a copy of the sources, and says which test finds it: `make planted`.

    python -m tests.planted                           # all: the first of the listed tests that fails for each
    python -m tests.planted --all --out benchmarks/results/planted.md     # every test function that fails
    python -m tests.planted carry_between_segments plot_of_columns
    python -m tests.planted window_age --all-tests    # the whole suite, and every test that fails

Nothing is changed in the source tree itself. build/planted has a copy of it with its objects, so only what a fault
changes is compiled; each fault has a copy of that in a temporary folder. A test that also fails without the fault does
not count. ROTRNN_ISA is avx2 unless it is set; where CC or CXX are given, they hold for all builds.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = ROOT / "build" / "planted"
COMPILED = ("csrc/", "include/")
"""What the extension module is made of."""
MODULE = ["setup.py", "-q", "build_ext", "--inplace", "--build-temp", "build/inplace"]
BESIDES = {"tests/cuda": ["tests/cuda/build.py"], "tests/lib": ["-c", "import librotrnn; librotrnn.make('lib')"]}
"""What tests of a folder would else build from nothing in each copy."""
SECONDS = 1200
"""A fault that makes a test hang is found when its file has run so long."""


@dataclass(frozen=True)
class Fault:
    """A change of one place of `file`, where `old` occurs once, and the test files that should find it.

    `select` is pytest's -k, for files that would take long; `isa` is the instruction set to build for.
    """

    name: str
    kind: str
    what: str
    file: str
    old: str
    new: str
    tests: Sequence[str]
    select: str = ""
    isa: str = "avx2"

    def plant(self, tree: Path) -> None:
        """Makes the change in a tree. ValueError unless there is exactly one place for it."""
        text = (tree / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has its old text {count} times, expected once")
        (tree / self.file).write_text(text.replace(self.old, self.new), encoding="utf-8")


def faults() -> list[Fault]:
    with open(Path(__file__).with_name("faults.toml"), "rb") as file:
        return [Fault(name, **settings) for name, settings in tomllib.load(file).items()]


def run(tree: Path, arguments: Sequence[str], isa: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a tree, with the package of that tree."""
    own = {
        "PYTHONPATH": f"{tree / 'python'}{os.pathsep}{tree / 'tests'}",
        "OMP_WAIT_POLICY": "passive",
    }
    environment = {**os.environ, **own, "ROTRNN_ISA": os.environ.get("ROTRNN_ISA", isa)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)


def build(tree: Path, isa: str, paths: Sequence[str]) -> str:
    """Compiles what is not up to date, for the tests in `paths`. Returns the compiler's message if it fails."""
    besides = [one for folder, one in BESIDES.items() if any(path in folder or folder in path for path in paths)]
    for arguments in (MODULE, *besides):
        if (done := run(tree, arguments, isa)).returncode:
            return (done.stdout + done.stderr)[-500:]
    return ""


def prepare(isa: str, paths: Sequence[str]) -> Path:
    """Returns the copy without a fault; what has not changed since the last time stays as it is."""
    tree = BASE / isa
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        source, copy = ROOT / name, tree / name
        if source.is_file() and not (copy.is_file() and copy.stat().st_mtime_ns == source.stat().st_mtime_ns):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    if message := build(tree, isa, paths):
        sys.exit(f"the sources without a fault cannot be built: {message}")
    return tree


def failed(tree: Path, fault: Fault, paths: Sequence[str], first: bool) -> list[str]:
    """Returns the ids of the tests that fail in a tree, or that the process ended in; with `first` one at most."""
    select = ["-k", fault.select] if fault.select else []
    options = ["-x"] * first + ["-vv", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *select]
    try:
        done = run(tree, ["-m", "pytest", *options, *paths], fault.isa)
    except subprocess.TimeoutExpired:
        return [f"{paths[0]} (hangs)"]
    if done.returncode < 0:  # ended by a signal, within the test that was named last
        return re.findall(r"^(tests/\S+::.*?) ?(?:Fatal Python error.*)?$", done.stdout, re.M)[-1:] or [paths[0]]
    return re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.M)


def find(fault: Fault, each: bool, everything: bool) -> tuple[list[str], float]:
    """Returns the tests that find a fault, of its listed files; with `each` the first case of every function, else the
    first of all."""
    began = time.monotonic()
    groups = [["tests"]] if everything else [[path] for path in fault.tests] if each else [list(fault.tests)]
    base = prepare(fault.isa, groups[0] if everything else fault.tests)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(base, tree, symlinks=True)
        fault.plant(tree)
        if fault.file.startswith(COMPILED) and (message := build(tree, fault.isa, [])):
            raise ValueError(f"{fault.name}: cannot be built: {message}")
        found = [one for group in groups for one in failed(tree, fault, group, not (each or everything))]
    seconds = time.monotonic() - began
    firsts = {one.partition("[")[0]: one for one in reversed(found)}
    found = list(reversed(firsts.values()))
    wrong = set(failed(base, fault, [one.partition(" (")[0] for one in found], False)) if found else set()
    return [one for one in found if one not in wrong], seconds


def table(rows: Sequence[tuple[Fault, list[str], float]]) -> str:
    """Returns a Markdown table. Files that were asked, and did not find the fault, are in the last column."""
    lines = ["| fault | kind | what | found by | by no test of | s |", "| --- | --- | --- | --- | --- | --- |"]
    for fault, found, seconds in rows:
        tests = "<br>".join(f"`{one.removeprefix('tests/')}`" for one in found) or "**nothing**"
        files = {one.partition("::")[0] for one in found}
        others = ", ".join(f"`{path.removeprefix('tests/')}`" for path in fault.tests if path not in files)
        lines.append(f"| {fault.name} | {fault.kind} | {fault.what} | {tests} | {others} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def alone(rows: Sequence[tuple[Fault, list[str], float]]) -> str:
    """Returns, for each test file, the faults that no other of the listed files finds."""
    of_file: dict[str, list[str]] = {}
    for fault, found, _ in rows:
        files = {one.partition("::")[0] for one in found}
        if len(files) == 1:
            of_file.setdefault(files.pop().removeprefix("tests/"), []).append(fault.name)
    return "".join(f"- `{file}`: {', '.join(names)}\n" for file, names in sorted(of_file.items()))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.planted", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of faults; default all")
    parser.add_argument("--all", action="store_true", help="every test function of the listed files that fails")
    parser.add_argument("--all-tests", action="store_true", help="every failing test of the whole suite")
    parser.add_argument("--out", type=Path, help="also writes the table, with commit and processor")
    args = parser.parse_args()
    known = {fault.name: fault for fault in faults()}
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"there is no fault {unknown[0]}; expected {', '.join(known)}")
    rows = []
    for name in args.names or known:
        found, seconds = find(known[name], args.all, args.all_tests)
        rows.append((known[name], found, seconds))
        print(f"{name}: {', '.join(found) or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print("\n" + table(rows))
    missed = [fault.name for fault, found, _ in rows if not found]
    if args.out:
        from rotrnn._support.provenance import versions

        facts, command = versions(), shlex.join(["python", "-m", "tests.planted", *sys.argv[1:]])
        head = f"`{command}` at commit {facts['commit']}, on {facts['processor']}, {facts['cores']} cores."
        sole = f"Of the files that were asked for a fault, these alone find it:\n\n{alone(rows)}"
        args.out.write_text(f"# Which test finds a planted fault\n\n{head}\n\n{table(rows)}\n{sole}", encoding="utf-8")
    print(f"{len(rows)} faults, {len(missed)} not found{': ' * bool(missed)}{', '.join(missed)}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
