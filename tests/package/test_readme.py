"""README and docs: examples run as printed, links resolve, every layer and task has a row, numbers are recorded."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import report
from rotrnn import cli
from rotrnn.nn.registry import GROUPS, LAYERS
from rotrnn.tasks import TASKS

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
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_readmes_example_learns() -> None:
    names: dict[str, Any] = {}
    (example,) = blocks(README, "python")
    exec(example, names)
    before = np.mean((names["y"] - names["target"]) ** 2)
    y, _ = names["layer"].forward(names["params"], names["x"])
    assert np.mean((y - names["target"]) ** 2) < before


def test_the_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its assertions are in it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(DOCS / "guide.md", "python"):
        exec(example, names)
    assert names["drawn"].shape == (4, 20)
    assert (tmp_path / "state.safetensors").exists()
    assert (tmp_path / "runs" / "guide" / "result.json").exists()


def test_models_that_travel_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks in "py" need files or packages of others: tests/hub."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(DOCS / "models.md", "python"):
        exec(example, names)
    assert names["drawn"].shape == (2, 20)
    assert (tmp_path / "folder" / "config.json").exists()


def test_every_python_example_is_run() -> None:
    """A page with new ones needs a test."""
    assert {page.name for page in [README, *PAGES] if blocks(page, "python")} == {
        "README.md",
        "data.md",
        "gpu.md",  # tests/cuda/test_arrays_on_harness.py
        "guide.md",
        "jax.md",  # tests/with_jax/test_jax_page.py
        "mistakes.md",  # test_mistakes.py
        "models.md",
        "own-layers.md",
        "processes.md",  # tests/training/test_split.py
        "pytorch.md",  # tests/pytorch/test_torch_docs.py
    }


def test_a_layer_and_a_task_of_ones_own(tmp_path: Path) -> None:
    """As printed, from the module to the table; every command is a process of its own, and so are the sweep's runs."""
    page = DOCS / "own-layers.md"
    (module, checks), (recipe,), (commands,) = (blocks(page, language) for language in ("python", "toml", "sh"))
    exec(checks, {})
    (tmp_path / "my_experiment.py").write_text(module)
    (tmp_path / "majority.toml").write_text(recipe)
    told = []
    for line in commands.splitlines():
        process = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        told.append(process.stdout)
    assert told[0].endswith(told[1])
    results = [
        json.loads(path.read_text()) for path in (tmp_path / "sweeps" / "majority").glob("seed=[01]/result.json")
    ]
    assert len(results) == 2
    assert all(one["test"]["best"]["accuracy"] > 0.9 for one in results)  # chance is a half
    assert "test, best parameters: loss" in told[2]


def test_own_data_from_files_to_forecasts_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the page as printed; the recipe for a few steps."""
    monkeypatch.chdir(tmp_path)
    page, rng = DOCS / "data.md", np.random.default_rng(0)
    sold = [f"{t},{100 + t + 20 * np.sin(t * np.pi / 6) + rng.standard_normal():.3f}" for t in range(120)]
    Path("sales.csv").write_text("\n".join(["month,sold", *sold]) + "\n")
    names: dict[str, Any] = {}
    for example in blocks(page, "python"):
        exec(example, names)
    assert names["forecaster"].score(np.array(names["sold"][-24:])) > 0  # a rise of 12 a year is easily told
    assert names["classifier"].score(names["x"][200:], names["y"][200:]) > 0.7  # chance is a half
    assert names["logits"].argmax() == (names["classifier"].predict(names["x"][200:201]) == "up")
    rows = [f"{i // 9},{rng.standard_normal()},{rng.standard_normal()},{i // 9 % 3 > 1}" for i in range(900)]
    Path("sensors.csv").write_text("\n".join(["machine,temperature,pressure,fault", *rows]) + "\n")
    (recipe,), (commands,) = blocks(page, "toml"), blocks(page, "sh")
    Path("sensors.toml").write_text(recipe)
    describe, train = (shlex.split(line, comments=True)[1:] for line in commands.splitlines())
    assert cli.main(describe) == 0
    assert cli.main([*train, "--set", "training.steps=20", "--set", "training.eval_every=10"]) == 0
    assert Path("runs", "sensors", "result.json").exists()


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Relative links of a page: path and anchor."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name_of(page)} links to {path}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_one_that_a_site_can_take(page: Path) -> None:
    """One title, on the first line; no HTML but the markers of written parts; linked from both lists of pages."""
    text = page.read_text()
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
    text = page.read_text()
    ours = [name for name, kind in names.items() if kind.__module__.startswith("rotrnn.")]  # tests register others
    assert not [name for name in ours if f"`{name}`" not in text]


def test_the_readme_names_layers_of_every_group() -> None:
    """Each of them is on docs/layers.md, since the README is short."""
    text = README.read_text()
    assert not [title for title, group in GROUPS.items() if not any(f"`{name}`" in text for name in group)]


def test_layers_are_grouped_as_the_command_line_groups_them() -> None:
    found: dict[str, list[str]] = {}
    for line in (DOCS / "layers.md").read_text().partition("Which one to begin with")[0].splitlines():
        if title := re.match(r"\| \*\*(.+?)\*\*", line):
            found[title[1]] = []
        elif found and line.startswith("|"):
            found[list(found)[-1]] += re.findall(r"\[`(\w+)`\]", line.split("|")[1])
    assert found == {title: list(group) for title, group in GROUPS.items()}


def test_numbers_of_speed_are_those_of_the_recorded_run() -> None:
    """python -m benchmarks.report writes them."""
    recorded = json.loads((ROOT / "benchmarks" / "results" / "bench.json").read_text())
    for page, text in ((README, report.headline(recorded)), (DOCS / "benchmarks.md", report.tables(recorded))):
        assert f"{report.BEGIN}\n\n{text}\n\n{report.END}" in page.read_text()
