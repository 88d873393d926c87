"""The documentation site: every public name is in its reference, every layer has a page, links are found if broken."""

from __future__ import annotations

import ast
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
from rotrnn.training.recipe import shipped

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
site: ModuleType = importlib.import_module("make_site")
formulas: ModuleType = importlib.import_module("formulas")
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
    expected |= {f"rotrnn.ops.{name}" for name in rotrnn.ops.__all__ if name not in rotrnn.__all__}
    assert expected <= names
    assert all(inspect.getdoc(getattr(*_of(name))) for name in names)


def test_every_public_module_is_in_the_reference_and_promised() -> None:
    """Of every other module that lists names: PyTorch and JAX need not be there."""
    stable = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    package = Path(rotrnn.__file__).parent
    assert set(site.PARTS) == {"estimators", "torch", "jax", "cuda", "plots", "tasks", "testing"}
    for name in site.PARTS:
        assert f"`rotrnn.{name}`" in stable
        file = package / name / "__init__.py" if (package / name).is_dir() else package / f"{name}.py"
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree)
        assert any(isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__" for one in tree.body)


def _of(name: str) -> tuple[ModuleType, str]:
    module, _, attribute = name.rpartition(".")
    return importlib.import_module(module), attribute


def test_pages_written_by_hand_are_those_of_layers() -> None:
    written = {path.stem for path in (ROOT / "docs" / "layers").glob("*.md")}
    assert written <= set(OURS)
    for name in written:
        text = (ROOT / "docs" / "layers" / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {OURS[name].__name__}\n")
        assert "$$" in text
        assert f"(layers/{name}.md)" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OURS)
def test_a_layers_page_has_its_docstring_and_a_loop(name: str, sources: Path) -> None:
    text = (sources / "docs" / "layers" / f"{name}.md").read_text(encoding="utf-8")
    assert f".. autoclass:: rotrnn.{OURS[name].__name__}\n" in text
    loops = site.loops(OURS[name])
    assert all((ROOT / path).is_file() and f"{source}```" in text for path, source in loops)
    assert loops
    assert all("for " in source or "return " in source for _, source in loops)


def test_the_layers_come_first_and_every_page_is_in_the_navigation(sources: Path) -> None:
    """But for the tables of recorded runs, which are on a page of links, and so not at the side."""
    index = (sources / "index.md").read_text(encoding="utf-8")
    assert index.count("\n## Layers\n") == 1
    assert index.index("\n## Layers\n") < index.index("\n![") < index.index("\n## Two commands\n")
    listed = set()
    for path in (sources / "index.md", sources / "docs" / "layers.md", sources / "reference" / "ops.md"):
        for block in re.findall(r"```{toctree}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            named = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {page for line in named for page in path.parent.glob(f"{line}.md")}
    pages = {
        path
        for path in sources.rglob("*.md")
        if not path.read_text(encoding="utf-8").startswith("---\norphan: true\n---")
    }
    assert listed == pages - {sources / "index.md"}
    recorded = set((sources / "benchmarks").rglob("*.md"))
    assert recorded
    assert not recorded & listed
    links = (sources / "recorded.md").read_text(encoding="utf-8")
    assert all(f"({path.relative_to(sources).as_posix()})" in links for path in recorded)


def test_recipes_are_in_the_reference(sources: Path) -> None:
    text = (sources / "reference" / "recipes.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` | " in text for name in shipped())
    assert ".. autoclass:: rotrnn.training.recipe.Training\n" in text


def test_links_of_pages_lead_to_pages(sources: Path) -> None:
    for path in sources.rglob("*.md"):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for _, _, target in site.LINK.findall(text):
            file = target.partition("#")[0]
            assert "://" in target or not file or (path.parent / file).is_file(), f"{path}: {target}"


def test_pictures_of_notebooks_are_on_their_pages(sources: Path) -> None:
    text = (sources / "examples" / "first_steps.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]*\]\((first_steps-.*?\.png)\)", text)
    assert len(pictures) == 3
    assert all((sources / "examples" / one).read_bytes().startswith(b"\x89PNG") for one in pictures)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h_t = a_t * h_{t-1} + x_t", r"h_t = a_t \odot h_{t -1} + x_t"),
        ("dh0 = conj(a_0) g_0", r"\mathrm{d}h_0 = \mathrm{conj} (a_0) g_0"),
        ("xi = sqrt(c (1 - gamma^2) / tr(B^T B))", r"\xi = \sqrt{c (1 - \gamma^2) / \mathrm{tr} (B^\top B)}"),
        ("h_t = sum_{k<L} a_t ... a_{t-k+1} x_{t-k}", r"h_t = \sum_{k <L} a_t \dots a_{t -k +1} x_{t -k}"),
        ("f_t = exp(log_f_t)", r"f_t = \exp (\log f_t)"),
        ("[I - (1 - lam_t)(I - Q_t)]^-1", r"[I - (1 - \lambda_t)(I - Q_t)]^{-1}"),
        ("<J v, w> = <v, J^T w>", r"\langle J v, w \rangle = \langle v, J^\top w \rangle"),
        ("x~_t = Q_t x_t,     B_re <= 1e-6", r"\tilde x_t = Q_t x_t, \quad B_{\mathrm{re}} \le 10^{-6}"),
    ],
)
def test_formulas_of_docstrings_are_set(text: str, expected: str) -> None:
    assert formulas.is_formula(text)
    assert formulas.tex(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "params[name]",
        "window=L",
        "rotrnn.ops.diagonal_scan(a_t, x)",
        "(dq, dk, dv_t)",
        "sum of dy_t",
        '["h_t"]',
        "h0",
        "2 ** x_t",
    ],
)
def test_code_of_docstrings_is_left_alone(text: str) -> None:
    assert not formulas.is_formula(text)


def test_examples_in_docstrings_run() -> None:
    """Those of the modules with public names; other tests may run some of them, too."""
    found = {inspect.getmodule(getattr(*_of(name))) for some in site.reference().values() for name in some}
    found |= {rotrnn.plots, rotrnn.tasks}
    attempted = 0
    for module in sorted(filter(None, found), key=lambda one: one.__name__):
        done = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert done.failed == 0, module.__name__
        attempted += done.attempted
    assert attempted >= 3
