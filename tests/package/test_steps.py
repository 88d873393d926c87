"""The gate's steps (.ci/steps.py): what is recorded, what is due, what fails. In a small repository of its own."""

from __future__ import annotations

import datetime
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="the tests of an installed wheel have no steps")

STEPS = """
[inputs]
code = ["code"]
[check]
always = true
inputs = ["@code"]
seconds = 1
[first]
inputs = ["@code", "first"]
seconds = 1
[second]
inputs = ["second"]
seconds = 1
"""
MAKEFILE = """
.PHONY: first second step-check step-first step-second
first second:
\t@{python} {steps} run $@

step-check step-first step-second: step-%:
\t@echo $* >> ran
\t@test ! -e fails-$*
"""


class Repository:
    """A repository with three steps, committed a month ago."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"code": "1", "first": "1", "second": "1", ".ci/steps.toml": STEPS}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "Makefile").write_text(
            MAKEFILE.format(python=shlex.quote(sys.executable), steps=shlex.quote(str(ROOT / ".ci" / "steps.py"))),
            encoding="utf-8",
        )
        (folder / ".gitignore").write_text("ran\nfails-*\n", encoding="utf-8")
        self.git("init", "-q", "-b", "main")
        self.commit(days=30)

    def git(self, *arguments: str, **environment: str) -> None:
        identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, env=os.environ | environment, check=True)

    def commit(self, days: int) -> None:
        """Commits everything, so many days ago."""
        self.git("add", "-A")
        when = f"{datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"
        self.git("commit", "-q", "-m", "-", GIT_COMMITTER_DATE=when, GIT_AUTHOR_DATE=when)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = ("MAKE", "ROTRNN_", "GATE_", "HARNESS_", "PYTEST_")  # with which these steps would be others
        plain = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        env = plain | {"STEPS_ROOT": str(self.folder)} | environment
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)

    def steps(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, str(ROOT / ".ci" / "steps.py"), *arguments, **environment)

    def due(self) -> list[str]:
        return [line.partition(":")[0] for line in self.steps("due").stdout.splitlines()]

    def ran(self) -> list[str]:
        """The steps that have run since the last call."""
        path = self.folder / "ran"
        found = path.read_text(encoding="utf-8").split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def passed(self) -> dict[str, list[str]]:
        path = self.folder / ".ci" / "passed"
        return (
            {line.split()[0]: line.split() for line in path.read_text(encoding="utf-8").splitlines()}
            if path.exists()
            else {}
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_step_that_passed_is_due_when_an_input_changes(repository: Repository) -> None:
    assert repository.due() == ["first", "second"]
    for name in ("first", "second"):
        assert repository.run("make", name).returncode == 0
    assert repository.ran() == ["first", "second"]
    assert repository.due() == []
    (repository.folder / "first").write_text("2", encoding="utf-8")
    assert repository.due() == ["first"]
    (repository.folder / "first").write_text("1", encoding="utf-8")
    assert repository.due() == []  # the same inputs
    (repository.folder / "code").write_text("2", encoding="utf-8")
    (repository.folder / "second").unlink()
    (repository.folder / "second").mkdir()
    (repository.folder / "second" / "new").write_text("not known to git yet", encoding="utf-8")
    assert repository.due() == ["first", "second"]


def test_steps_that_end_together_are_all_recorded(repository: Repository) -> None:
    assert repository.run("make", "-j2", "first", "second").returncode == 0
    assert set(repository.passed()) == {"first", "second"}


def test_the_steps_of_a_file(repository: Repository) -> None:
    assert repository.steps("of", "code").stdout == "first\n"
    assert repository.steps("of", "second", "first").stdout == "first second\n"
    assert repository.steps("of", "Makefile").stdout == "\n"
    assert "cod: not a file of the repository" in repository.steps("of", "code", "cod").stderr


def test_another_rule_is_due(repository: Repository) -> None:
    assert repository.run("make", "first").returncode == 0
    makefile = repository.folder / "Makefile"
    before = makefile.read_text(encoding="utf-8")
    makefile.write_text(before + "\nother:\n\techo\n", encoding="utf-8")
    assert repository.due() == ["second"]
    for more in ("step-first: prepared\nprepared:\n\techo", "SLOW := 1\nstep-first: export OPTIONS = $(SLOW)"):
        makefile.write_text(f"{before}\n{more}\n", encoding="utf-8")
        assert "first" in repository.due()
        assert repository.run("make", "first").returncode == 0
        assert repository.due() == ["second"]
        makefile.write_text(
            f"{before}\n{more}\n".replace("echo", "echo 2").replace("SLOW := 1", "SLOW := 2"), encoding="utf-8"
        )
        assert "first" in repository.due()
    makefile.write_text(before, encoding="utf-8")
    makefile.write_text(
        makefile.read_text(encoding="utf-8").replace("step-check step-first step-second: step-%:", "step-%:"),
        encoding="utf-8",
    )
    failed = repository.steps("due")
    assert failed.returncode == 1
    assert failed.stderr == ".ci/steps.py: the Makefile has no rule step-first\n"


def test_what_fails_and_what_is_asked_for_otherwise_is_not_recorded(repository: Repository) -> None:
    (repository.folder / "fails-first").touch()
    assert repository.run("make", "first").returncode
    (repository.folder / "fails-first").unlink()
    assert repository.run("make", "first", "OPTIONS=--all").returncode == 0
    assert repository.passed() == {}
    assert repository.run("make", "first").returncode == 0
    name, both, day, _, *processor = repository.passed()["first"]
    assert name == "first"
    assert re.fullmatch("[0-9a-f]{16}-[0-9a-f]{8}", both)
    assert day == datetime.datetime.now(datetime.UTC).date().isoformat()
    assert processor


def test_a_step_that_make_was_told_to_run_otherwise_is_not_recorded(repository: Repository) -> None:
    (repository.folder / "fails-first").touch()
    assert repository.run("make", "-i", "first").returncode == 0
    (repository.folder / "fails-first").unlink()
    assert repository.run("make", "first", PYTEST_ADDOPTS="-k x").returncode == 0
    assert repository.passed() == {}


def test_a_step_that_fails_where_it_had_passed_loses_its_line(repository: Repository) -> None:
    assert repository.run("make", "first").returncode == 0
    (repository.folder / "fails-first").touch()
    assert repository.run("make", "first").returncode
    assert repository.passed() == {}
    assert repository.due() == ["first", "second"]


def test_what_is_no_line_is_left_out(repository: Repository) -> None:
    """As the marks of a conflict."""
    assert repository.run("make", "first").returncode == 0
    path = repository.folder / ".ci" / "passed"
    path.write_text(f"<<<<<<< HEAD\n{path.read_text(encoding='utf-8')}=======\n>>>>>>> other\n", encoding="utf-8")
    assert repository.due() == ["second"]


def test_without_git_a_step_runs_and_is_not_recorded(repository: Repository) -> None:
    (repository.folder / ".git").rename(repository.folder / "elsewhere")
    assert repository.run("make", "first").returncode == 0
    assert repository.ran() == ["first"]
    assert repository.passed() == {}


def test_inputs_that_change_while_a_step_runs_are_not_recorded(repository: Repository) -> None:
    makefile = repository.folder / "Makefile"
    makefile.write_text(
        makefile.read_text(encoding="utf-8").replace("\t@test", "\t@echo 2 > code\n\t@test"), encoding="utf-8"
    )
    found = repository.run("make", "first")
    assert "its inputs changed meanwhile: not recorded" in found.stdout
    assert repository.passed() == {}


def test_the_gate_runs_what_is_always_run_then_a_recorded_step_then_what_is_due(repository: Repository) -> None:
    assert repository.run("make", "first").returncode == 0
    repository.ran()
    found = repository.steps("gate", GATE_SEED="7")
    assert found.returncode == 0, found.stdout
    assert repository.ran() == ["check", "first", "second"]
    assert "repeated by seed 7: passed" in found.stdout
    assert sorted(repository.passed()) == ["check", "first", "second"]
    assert repository.steps("due", "--strict").returncode == 0


def test_a_line_that_does_not_hold_is_found(repository: Repository) -> None:
    """As if it were written by hand: the step fails, and its line says that it has passed on this."""
    for name in ("first", "second"):
        assert repository.run("make", name).returncode == 0
    for name in ("first", "second"):
        (repository.folder / f"fails-{name}").touch()
    found = repository.steps("gate")
    assert found.returncode == 1
    assert re.search("repeated by seed [0-9]+: FAILED", found.stdout)


def test_what_must_always_pass_ends_the_gate(repository: Repository) -> None:
    (repository.folder / "fails-check").touch()
    found = repository.steps("gate")
    assert found.returncode == 1
    assert repository.ran() == ["check"]
    assert "failed: check" in found.stdout


def test_what_there_is_no_time_for_is_a_debt_until_it_is_old(repository: Repository) -> None:
    """A step that never passed is due since its table was committed; one that did, since an input was."""
    for name in ("first", "second"):
        assert repository.run("make", name).returncode == 0
    repository.ran()
    passed = repository.folder / ".ci" / "passed"
    day = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=20)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    passed.write_text(passed.read_text(encoding="utf-8").replace(today, day.isoformat()), encoding="utf-8")
    repository.commit(days=20)  # with its lines; what came on this day before does not count
    (repository.folder / "first").write_text("2", encoding="utf-8")
    repository.commit(days=3)
    found = repository.steps("gate", "0")
    assert found.returncode == 0, found.stdout
    assert repository.ran() == ["check"]
    assert re.search("^due: make first, since ", found.stdout, re.MULTILINE)

    (repository.folder / "second").write_text("2", encoding="utf-8")
    repository.commit(days=9)
    found = repository.steps("gate", "0")
    assert found.returncode == 1
    assert "due for more than 7 days: second; " in found.stdout


def test_a_slower_step_is_named(repository: Repository) -> None:
    assert repository.steps("gate").returncode == 0
    makefile = repository.folder / "Makefile"
    makefile.write_text(
        makefile.read_text(encoding="utf-8").replace("\t@test", "\t@sleep 4\n\t@test"), encoding="utf-8"
    )
    found = repository.steps("gate", "0")
    assert re.search("every change: passed, slower than the 0 s of ", found.stdout)


def test_a_step_without_its_tools_says_what_to_install(repository: Repository) -> None:
    table = repository.folder / ".ci" / "steps.toml"
    table.write_text(
        table.read_text(encoding="utf-8") + 'tools = ["no-such-tool"]\ndebian = ["a-package"]\n', encoding="utf-8"
    )
    found = repository.run("make", "second")
    assert found.returncode
    assert "second needs no-such-tool; Debian: a-package" in found.stderr


def test_every_step_has_a_rule_and_inputs() -> None:
    text, table = (
        (ROOT / "Makefile").read_text(encoding="utf-8"),
        tomllib.loads((ROOT / ".ci" / "steps.toml").read_text(encoding="utf-8")),
    )
    groups = table.pop("inputs")
    listed = set()
    for kind in ("RECORDED", "ALWAYS"):
        found = re.search(rf"^{kind} := ((?:.*\\\n)*.*)$", text, re.MULTILINE)
        assert found
        listed |= set(found[1].replace("\\\n", " ").split())
    assert listed == set(table)
    for name in table:
        assert re.search(rf"^(?:step-[a-z-]+ )*step-{name}[ :]", text, re.MULTILINE), name
    for path in (path for paths in [*groups.values(), *(row["inputs"] for row in table.values())] for path in paths):
        assert path[1:] in groups if path.startswith("@") else any(ROOT.glob(path.removeprefix(":(glob)"))), path
