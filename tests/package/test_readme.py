"""README and docs: examples run as printed, links resolve, every layer and task has a row, numbers are recorded."""

from __future__ import annotations

import json
import pydoc
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from benchmarks import report
from rotrnn import cli
from rotrnn.nn.registry import GROUPS, LAYERS
from rotrnn.tasks import TASKS
from rotrnn.tasks.word_problem import group

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
EVERY = [
    README,
    *PAGES,
    *sorted(DOCS.glob("layers/*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("benchmarks/results/**/*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    """A page's examples in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_readmes_example_learns() -> None:
    names: dict[str, Any] = {}
    (example,) = blocks(README, "python")
    exec(example, names)
    before = np.mean((names["y"] - names["target"]) ** 2)
    y, _ = names["layer"].forward(names["params"], names["x"])
    assert np.mean((y - names["target"]) ** 2) < before


@pytest.mark.whole
def test_the_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its assertions are in it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(DOCS / "guide.md", "python"):
        exec(example, names)
    assert names["drawn"].shape == (4, 20)
    assert (tmp_path / "state.safetensors").exists()
    assert (tmp_path / "runs" / "guide" / "result.json").exists()


def test_a_step_for_those_who_come_from_elsewhere() -> None:
    """Its assertion is in it; the blocks in "py" are PyTorch's."""
    (example,) = blocks(DOCS / "coming-from.md", "python")
    exec(example, {})


def test_models_that_travel_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks in "py" need files or packages of others: tests/hub."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(DOCS / "models.md", "python"):
        exec(example, names)
    assert names["drawn"].shape == (2, 20)
    assert (tmp_path / "folder" / "config.json").exists()


def test_one_time_of_the_build() -> None:
    text = README.read_text(encoding="utf-8") + (DOCS / "guide.md").read_text(encoding="utf-8")
    found = re.findall(r"builds it in about (\w+) minutes|takes about (\w+) minutes on two idle cores", text)
    assert [one or other for one, other in found] == ["two", "two"]


def test_dtypes_of_tokens() -> None:
    """As guide.md and c.md have them."""
    settings = rotrnn.ModelSettings(layer="lru", d_model=4, n_layers=1)
    model = rotrnn.build_model(settings, {"d_state": 2}, head="language", vocab=5, n_classes=5)
    params = model.init(np.random.default_rng(0))
    for dtype in np.typecodes["AllInteger"]:
        tokens = np.ones((2, 3), dtype)
        refused = tokens.dtype == np.uint64
        for call in (partial(model.forward, params), model.stream(params, batch=2).push):
            with pytest.raises(TypeError, match="inputs has dtype uint64") if refused else nullcontext():
                call(tokens)
    header = ROOT / "include" / "rotrnn.h"
    if header.exists():  # a wheel is tested without it
        text = header.read_text(encoding="utf-8")
        assert len(re.findall(r"rotrnn_push_tokens\w*\(rotrnn_stream \*stream, const int32_t \*input", text)) == 2
    assert "any dtype but\nuint64" in (DOCS / "guide.md").read_text(encoding="utf-8")
    assert "tokens are `int32_t`" in (DOCS / "c.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["rope_memory", "selective_rotrnn", "wrope_memory"])
def test_the_example_of_a_layer(name: str) -> None:
    """Its assertions are in it."""
    (example,) = blocks(DOCS / "layers" / f"{name}.md", "python")
    exec(example, {})


def test_every_python_example_is_run() -> None:
    """A page with new ones needs a test."""
    assert {page.name for page in [README, *PAGES, *DOCS.glob("layers/*.md")] if blocks(page, "python")} == {
        "README.md",
        "c.md",  # tests/lib/test_lib.py
        "coming-from.md",
        "data.md",
        "gpu.md",  # tests/cuda/test_arrays_on_harness.py
        "guide.md",
        "jax.md",  # tests/with_jax/test_jax_page.py
        "mistakes.md",  # test_mistakes.py
        "models.md",
        "own-layers.md",
        "processes.md",  # tests/training/test_split.py
        "pytorch.md",  # tests/pytorch/test_torch_docs.py
        "rope_memory.md",
        "selective_rotrnn.md",
        "tasks.md",
        "wrope_memory.md",
    }


def test_the_rule_of_products(capsys: pytest.CaptureFixture[str]) -> None:
    """Its targets are those of the task for the same elements."""
    (example,) = blocks(DOCS / "tasks.md", "python")
    exec(example, {})
    printed = list(map(int, capsys.readouterr().out.split()))
    assert printed == group("A5").states(np.array([[1, 2, 30]]))[0].tolist()


@pytest.mark.whole
def test_a_layer_and_a_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, from the module to the table; every command is a process of its own, and so are the sweep's runs."""
    page = DOCS / "own-layers.md"
    module, program, recurrence, checks = blocks(page, "python")
    (recipe,), (commands,) = blocks(page, "toml"), blocks(page, "sh")
    exec(checks, {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(rotrnn.LAYERS, "leaky", None)  # the page sets it; in the end it is gone
    for example in (program, recurrence):
        exec(compile(example, page, "exec", dont_inherit=True), {})  # annotations are evaluated, as on the page
    (tmp_path / "my_experiment.py").write_text(module, encoding="utf-8")
    (tmp_path / "majority.toml").write_text(recipe, encoding="utf-8")
    told = []
    for line in commands.splitlines():
        process = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        told.append(process.stdout)
    assert told[0].endswith(told[1])
    results = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in (tmp_path / "sweeps" / "majority").glob("seed=[01]/result.json")
    ]
    assert len(results) == 2
    assert all(one["test"]["best"]["accuracy"] > 0.9 for one in results)  # chance is a half
    assert "test, best parameters: loss" in told[2]


@pytest.mark.whole
def test_own_data_from_files_to_forecasts_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the page as printed; the recipe for a few steps."""
    monkeypatch.chdir(tmp_path)
    page, rng = DOCS / "data.md", np.random.default_rng(0)
    sold = [f"{t},{100 + t + 20 * np.sin(t * np.pi / 6) + rng.standard_normal():.3f}" for t in range(120)]
    Path("sales.csv").write_text("\n".join(["month,sold", *sold]) + "\n", encoding="utf-8")
    names: dict[str, Any] = {}
    for example in blocks(page, "python"):
        if "pandas" not in example:  # tests/with_pandas/test_tables.py runs it
            exec(example, names)
    assert names["forecaster"].score(np.array(names["sold"][-24:])) > 0  # a rise of 12 a year is easily told
    assert names["shop"].score(names["visits"][200:], covariates=names["known"][200:]) > 0.7  # most is in `known`
    assert list(names["several"].predict(1)) == ["north", "south"]
    assert names["classifier"].score(names["x"][200:], names["y"][200:]) > 0.7  # chance is a half
    assert names["logits"].argmax() == (names["classifier"].predict(names["x"][200:201]) == "up")
    rows = [f"{i // 9},{rng.standard_normal()},{rng.standard_normal()},{i // 9 % 3 > 1}" for i in range(900)]
    Path("sensors.csv").write_text("\n".join(["machine,temperature,pressure,fault", *rows]) + "\n", encoding="utf-8")
    (recipe,), (commands, later), (rules,) = (blocks(page, kind) for kind in ("toml", "sh", "py"))
    Path("sensors.toml").write_text(recipe, encoding="utf-8")
    describe, train = (shlex.split(line, comments=True)[1:] for line in commands.splitlines())
    assert cli.main(describe) == 0
    assert cli.main([*train, "--set", "training.steps=20", "--set", "training.eval_every=10"]) == 0
    assert Path("runs", "sensors", "result.json").exists()
    Path("new.csv").write_text("\n".join(["machine,temperature,pressure,fault", *rows[:54]]) + "\n", encoding="utf-8")
    for line in later.splitlines():
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0
    exec(rules, names)
    assert (len(names["task"].test), set(names["task"].labels)) == (6, {"True", "False"})


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Relative links of a page: path and anchor."""
    for target in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    ):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name_of(page)} links to {path}"
        # Sources move, and are not among what is tested with the wheel
        assert target.resolve().relative_to(ROOT).parts[0] not in ("python", "csrc", "cuda"), (
            f"{name_of(page)} links to {path}"
        )
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


REQUESTS = ROOT / "benchmarks" / "results" / "requests.md"
ITEMS = [
    line.strip("| ").split(" | ")
    for line in REQUESTS.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| item |", "| --- |"))
]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[0])
def test_a_request_has_its_thread_its_test_and_its_page(item: list[str]) -> None:
    """Threads by repository and number; names that are there; tests that are there; a page that the links of the cell
    lead to, two at most from the guide."""
    _, threads, calls, tests, pages = item
    assert re.fullmatch(
        r"(?:(?:, )?\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/\1/(?:issues|pull)/\2\))+", threads
    ), threads
    for name in re.findall(r"`(rotrnn(?:\.\w+)+)", calls):
        assert name.startswith(("rotrnn.torch", "rotrnn.jax")) or pydoc.locate(name) is not None, name
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named
    for path, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path}::{test}"
    way = [(REQUESTS.parent / path.partition("#")[0]).resolve() for path in re.findall(r"\]\((\S+)\)", pages)]
    assert way[0] == DOCS / "guide.md"
    assert len(way) <= 3
    for page, following in pairwise(way):
        assert following in {(page.parent / path).resolve() for path, _ in links(page)}, f"{page} -> {following}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_one_that_a_site_can_take(page: Path) -> None:
    """One title, on the first line; no HTML but the markers of written parts; linked from both lists of pages."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    assert re.findall(r"^# ", prose, re.MULTILINE) == ["# "]
    assert text.startswith("# ")
    assert set(re.findall(r"<[!a-zA-Z/][^>]*>", prose)) <= {report.BEGIN, report.END}
    for index in (README, DOCS / "README.md"):
        assert page.name == "README.md" or page.resolve() in {
            (index.parent / path).resolve() for path, _ in links(index)
        }


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= 9000


@pytest.mark.parametrize(("page", "names"), [(DOCS / "layers.md", LAYERS), (DOCS / "tasks.md", TASKS)])
def test_every_layer_and_task_is_named(page: Path, names: dict[str, Any]) -> None:
    text = page.read_text(encoding="utf-8")
    ours = [name for name, kind in names.items() if kind.__module__.startswith("rotrnn.")]  # tests register others
    assert not [name for name in ours if f"`{name}`" not in text]


def test_the_readmes_table_names_every_layer() -> None:
    """Once each."""
    _, _, behind = README.read_text(encoding="utf-8").partition("| name | layer |\n")
    rows = behind.partition("\n\n")[0].splitlines()[1:]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])) == sorted(LAYERS)


def test_layers_are_grouped_as_the_command_line_groups_them() -> None:
    found: dict[str, list[str]] = {}
    for line in (DOCS / "layers.md").read_text(encoding="utf-8").partition("Which one to begin with")[0].splitlines():
        if title := re.match(r"\| \*\*(.+?)\*\*", line):
            found[title[1]] = []
        elif found and line.startswith("|"):
            found[list(found)[-1]] += re.findall(r"\[`(\w+)`\]", line.split("|")[1])
    assert found == {title: list(group) for title, group in GROUPS.items()}


def test_numbers_of_speed_are_those_of_the_recorded_run() -> None:
    """python -m benchmarks.report writes them."""
    recorded = json.loads((ROOT / "benchmarks" / "results" / "bench.json").read_text(encoding="utf-8"))
    for page, text in ((README, report.headline(recorded)), (DOCS / "benchmarks.md", report.tables(recorded))):
        assert f"{report.BEGIN}\n\n{text}\n\n{report.END}" in page.read_text(encoding="utf-8")
