"""The documentation site: every public name is in its reference, every layer has a page, links are found if broken."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rotrnn
from rotrnn.nn.registry import LAYERS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
site: ModuleType = importlib.import_module("make_site")
sys.path.pop(0)

OURS = {name: kind for name, kind in LAYERS.items() if kind.__module__.startswith("rotrnn.")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    site.write_sources(folder)
    return folder


def test_every_public_name_is_in_the_reference_or_a_layers_page() -> None:
    names = {name for some in site.reference().values() for name in some}
    layers = {kind.__name__ for kind in OURS.values()}
    expected = {f"rotrnn.{name}" for name in rotrnn.__all__ if name not in layers | {"LAYERS"}}
    expected |= {f"rotrnn.plots.{name}" for name in rotrnn.plots.__all__}
    expected |= {f"rotrnn.ops.{name}" for name in rotrnn.ops.__all__ if name not in rotrnn.__all__}
    assert expected <= names
    assert all(inspect.getdoc(getattr(*_of(name))) for name in names)


def _of(name: str) -> tuple[ModuleType, str]:
    module, _, attribute = name.rpartition(".")
    return importlib.import_module(module), attribute


def test_pages_written_by_hand_are_those_of_layers() -> None:
    written = {path.stem for path in (ROOT / "docs" / "layers").glob("*.md")}
    assert written <= set(OURS)
    for name in written:
        text = (ROOT / "docs" / "layers" / f"{name}.md").read_text()
        assert text.startswith(f"# {OURS[name].__name__}\n")
        assert "$$" in text
        assert f"(layers/{name}.md)" in (ROOT / "docs" / "README.md").read_text()


@pytest.mark.parametrize("name", OURS)
def test_a_layers_page_has_its_docstring_and_a_loop(name: str, sources: Path) -> None:
    text = (sources / "docs" / "layers" / f"{name}.md").read_text()
    assert f".. autoclass:: rotrnn.{OURS[name].__name__}\n" in text
    loops = site.loops(OURS[name])
    assert all((ROOT / path).is_file() and f"{source}```" in text for path, source in loops)
    assert loops
    assert all("for " in source or "return " in source for _, source in loops)


def test_every_page_is_in_the_navigation(sources: Path) -> None:
    """But for the tables of recorded runs, which have a page of their own."""
    listed = set()
    for path in (sources / "index.md", sources / "recorded.md"):
        for block in re.findall(r"```{toctree}\n(.*?)```", path.read_text(), re.DOTALL):
            listed |= {line for line in block.splitlines() if line and not line.startswith(":")}
    pages = {path.relative_to(sources).with_suffix("").as_posix() for path in sources.rglob("*.md")} - {"index"}
    assert listed == pages
    assert {"docs/layers/lru", "reference/ops-scan", "examples/streaming", "docs/theory"} <= pages


def test_links_of_pages_lead_to_pages(sources: Path) -> None:
    for path in sources.rglob("*.md"):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for _, _, target in site.LINK.findall(text):
            file = target.partition("#")[0]
            assert "://" in target or not file or (path.parent / file).is_file(), f"{path}: {target}"


def test_pictures_of_notebooks_are_on_their_pages(sources: Path) -> None:
    text = (sources / "examples" / "first_steps.md").read_text()
    pictures = re.findall(r"!\[[^]]*\]\((first_steps-.*?\.png)\)", text)
    assert len(pictures) == 3
    assert all((sources / "examples" / one).read_bytes().startswith(b"\x89PNG") for one in pictures)


def test_broken_links_and_foreign_scripts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="one">A</h1><a href="b.html#two">b</a> <a href="#one">up</a> <a href="https://example.org/">far</a>'
    )
    (tmp_path / "b.html").write_text('<h2 id="two">B</h2><a href="a.html">a</a>')
    assert site.check(tmp_path) == ([], ["https://example.org/"])
    (tmp_path / "b.html").write_text(
        '<a href="a.html#three">a</a><a href="c.html">c</a><script src="https://example.org/x.js"></script>'
    )
    wrong, _ = site.check(tmp_path)
    assert wrong == [
        "a.html links to b.html#two, which has no such heading",
        "b.html loads https://example.org/x.js from another site",
        "b.html links to a.html#three, which has no such heading",
        "b.html links to c.html, which is not there",
    ]


def test_examples_in_docstrings_run() -> None:
    """Those of the modules with public names; other tests may run some of them, too."""
    found = {inspect.getmodule(getattr(*_of(name))) for some in site.reference().values() for name in some}
    attempted = 0
    for module in sorted(filter(None, found), key=lambda one: one.__name__):
        done = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert done.failed == 0, module.__name__
        attempted += done.attempted
    assert attempted >= 3
