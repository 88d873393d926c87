"""Builds the documentation site from the repository: its pages as they are, docstrings, notebooks, the tests' loops.

python docs/site/make_site.py [FOLDER]         # build/docs/html
python docs/site/make_site.py --sources FOLDER # only the sources for Sphinx

Pages of docs/ stay readable on a repository host, so nothing in them is for Sphinx alone. The site's additions are made
here: the navigation, a page of reference for each part of the package, and for each layer its docstring and the loop
over time that its tests compare it with, below the page of docs/layers/. Sphinx's warnings are errors, warnings of
links within the site that lead nowhere among them.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NAVIGATION = {
    "Start": "docs/README docs/guide docs/layers docs/coming-from docs/data docs/models docs/mistakes",
    "By task": "docs/command-line docs/tasks docs/pytorch docs/jax docs/own-layers docs/c docs/gpu docs/processes",
    "Notebooks": "examples/* examples/forecasts/* examples/pytorch/*",
    "Reference": "reference/*",
    "Theory and results": "docs/theory docs/results docs/benchmarks recorded",
    "Project": "docs/guarantees docs/stability CHANGELOG CONTRIBUTING SECURITY",
}
"""Headings of the navigation and their pages. Sphinx complains of a page that is in none of them."""
PARTS = ("estimators", "torch", "jax", "cuda", "plots", "tasks", "testing")
"""Modules of the package with a page of the reference each, of the names in their ``__all__``."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


# ---- contents ----


def reference() -> dict[str, list[str]]:
    """Returns the pages of the reference whose names are imported from rotrnn, file -> these names with their modules,
    "rotrnn.ops.diagonal_scan". Layers have pages of their own."""
    import rotrnn

    layers = {kind.__name__ for kind in rotrnn.nn.LAYERS.values()}
    pages: dict[str, list[str]] = {}
    for name in sorted(set(rotrnn.__all__) | set(rotrnn.ops.__all__), key=str.lower):
        module = "rotrnn" if name in rotrnn.__all__ else "rotrnn.ops"
        home = inspect.getmodule(getattr(importlib.import_module(module), name))
        place = getattr(home, "__name__", "")
        if name in layers or name == "LAYERS":
            continue
        if place.startswith("rotrnn.ops."):
            file = f"ops/{place.rpartition('.')[2]}"
        else:
            file = "parts-of-models" if name in rotrnn.nn.__all__ else "models-and-training"
        pages.setdefault(file, []).append(f"{module}.{name}")
    recipe = "rotrnn.training.recipe"
    return {**pages, "recipes": [f"{recipe}.Recipe", f"{recipe}.Training", f"{recipe}.Source"]}


def loops(kind: type) -> list[tuple[str, str]]:
    """Returns (file, source) of the loops over time that the tests hold a layer to."""
    from cases import LAYER_ROWS

    found: dict[str, tuple[str, str]] = {}
    for row in LAYER_ROWS:
        function: Any = inspect.unwrap(getattr(row.reference, "func", row.reference)) if row.reference else None
        if type(row.layer) is kind and inspect.isfunction(function) and function.__name__ != "<lambda>":
            path = Path(inspect.getsourcefile(function) or "").relative_to(ROOT)
            found[function.__name__] = (path.as_posix(), inspect.getsource(function))
    return list(found.values())


# ---- pages that are made ----


def layer_page(name: str, kind: type) -> str:
    """Returns the page of a layer: its page in docs/layers/, the docstring of the class, and the loops of the tests."""
    written = ROOT / "docs" / "layers" / f"{name}.md"
    text = written.read_text(encoding="utf-8") if written.exists() else f"# {kind.__name__}\n"
    text += f"\n## The class\n\n```{{eval-rst}}\n.. autoclass:: rotrnn.{kind.__name__}\n```\n"
    text += f"\nIts name in recipes and in `ModelSettings(layer=...)` is `{name}`.\n"
    for path, source in loops(kind):
        text += f"\n## Reference loop, `{path}`\n\nThe tests hold the layer, its states and its gradients to this.\n"
        text += f"\n```python\n{source}```\n"
    return text


def reference_page(file: str, names: list[str]) -> str:
    """Returns the page of these names; a page of ops has the name of their file."""
    text = f"# {file.removeprefix('ops/') if '/' in file else file.replace('-', ' ').capitalize()}\n\n```{{eval-rst}}\n"
    for name in names:
        module, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(module), attribute)
        kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
        text += f".. auto{kind}:: {name}\n"
    return text + "```\n"


def module_page(module: str) -> str:
    """Returns the page of a module: its docstring and the names of its ``__all__``."""
    directive = f".. automodule:: {module}\n   :members:\n   :inherited-members:"
    return f"# {module}\n\n```{{eval-rst}}\n{directive}\n```\n"


def recipes_table() -> str:
    """Returns the recipes of the package, with the first line of each."""
    from rotrnn.training.recipe import shipped

    rows = [f"| `{name}` | {text.splitlines()[0].lstrip('# ')} |\n" for name, text in sorted(shipped().items())]
    return "\n## Recipes of the package\n\n| name | what it runs |\n| --- | --- |\n" + "".join(rows)


def notebook_page(path: Path, folder: Path) -> str:
    """Returns a notebook with its stored outputs as a page; pictures are written into `folder`."""
    import base64

    lines = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        lines.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for place, one in enumerate(cell.get("outputs", [])):
            data = one.get("data", {"text/plain": one.get("text", "")})
            kind, value = next(iter(data.items()))
            if kind == "image/png":
                picture = folder / f"{path.stem}-{number}-{place}.png"
                picture.write_bytes(base64.b64decode(value))
                lines.append(f"![Output of the cell above]({picture.name})")
            else:
                value = "".join(value)
                lines.append(value if kind == "text/markdown" else f"```text\n{value}\n```")
    return "\n\n".join(lines) + "\n"


def index_page() -> str:
    """Returns the README, its layers first, with the navigation, which Sphinx shows at the side."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, picture = re.search(r"\n## Layers\n.*?(?=\n## )", text, re.DOTALL), text.index("\n![")  # which is below them
    if first is None:
        raise ValueError("README.md: has no section ## Layers, expected one, which comes first on the site")
    text = text[:picture] + first[0] + "\n## In seconds\n" + text[picture:].replace(first[0], "")
    return text + "".join(toctree(pages, f":caption: {caption}\n") for caption, pages in NAVIGATION.items())


def toctree(pages: str, options: str = "") -> str:
    """Returns Sphinx's list of the pages below this page; a * stands for any name."""
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n{options}\n" + "\n".join(pages.split()) + "\n```\n"


def write_sources(out: Path) -> None:
    """Writes Sphinx's sources, at the places of the pages in the repository, so that their links hold."""
    from rotrnn.nn.registry import LAYERS

    results = ROOT / "benchmarks" / "results"
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *results.rglob("*.md"), *results.rglob("*.png")]:
        if path != ROOT / "README.md":
            _copy(path, out / path.relative_to(ROOT))
    for name, kind in LAYERS.items():
        if kind.__module__.startswith("rotrnn."):
            _write(out / "docs" / "layers" / f"{name}.md", layer_page(name, kind))
    for file, names in reference().items():
        _write(out / "reference" / f"{file}.md", reference_page(file, names))
    for part in PARTS:
        _write(out / "reference" / f"rotrnn.{part}.md", module_page(f"rotrnn.{part}"))
    with (out / "reference" / "recipes.md").open("a") as page:
        page.write(recipes_table())
    with (out / "docs" / "layers.md").open("a") as page:
        page.write(toctree("layers/*"))
    listed = "```{toctree}\n:glob:\n:maxdepth: 2\n\nops/*\n```\n"
    about = "Forward and backward functions, a page for each file of rotrnn/ops."
    _write(out / "reference" / "ops.md", f"# Ops\n\n{about}\n\n{listed}")
    for path in (ROOT / "examples").rglob("*.ipynb"):
        page = out / path.relative_to(ROOT).with_suffix(".md")
        page.parent.mkdir(parents=True, exist_ok=True)
        _write(page, notebook_page(path, page.parent))
    recorded = sorted((out / "benchmarks").rglob("*.md"))
    for path in recorded:  # linked, but not in the navigation
        text = path.read_text(encoding="utf-8")
        title = "" if text.startswith("# ") else f"# {path.stem.replace('_', ' ').capitalize()}\n\n"
        path.write_text(f"---\norphan: true\n---\n\n{title}{text}", encoding="utf-8")
    listed = "".join(f"- [{path.stem}]({path.relative_to(out).as_posix()})\n" for path in recorded)
    _write(out / "recorded.md", f"# Recorded runs\n\nTables of all runs.\n\n{listed}")
    _write(out / "index.md", index_page())
    for path in out.rglob("*.md"):
        path.write_text(_links_of_the_site(path, out), encoding="utf-8")
    for name in ("conf.py", "formulas.py", "site.css"):
        _copy(Path(__file__).with_name(name), out / ("_static" if name.endswith("css") else "") / name)


def _links_of_the_site(path: Path, out: Path) -> str:
    """Returns a page whose links to files that are not on the site are their texts, and whose links to notebooks lead
    to their pages."""

    def mend(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        file, mark, anchor = target.partition("#")
        if "://" in target or not file:
            return found[0]
        file = "index.md" if (path.parent / file).resolve() == out / "README.md" else file.replace(".ipynb", ".md")
        if file == "index.md":
            file = os.path.relpath(out / "index.md", path.parent)
        there = (path.parent / file).is_file()
        return f"{picture}[{text}]({file}{mark}{anchor})" if there else text

    parts = re.split(r"(```.*?```)", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    parts[::2] = [LINK.sub(mend, part) for part in parts[::2]]
    return "".join(parts)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", action="store_true", help="write only what Sphinx reads")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "docs" / "html", metavar="FOLDER")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT / "python"), str(ROOT), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])  # of Sphinx
    out = args.out.resolve()
    if args.sources:
        return write_sources(out)
    sources = out.with_name(out.name + "-sources")
    for folder in (sources, out):
        shutil.rmtree(folder, ignore_errors=True)
    write_sources(sources)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", f"{out}-doctrees"]
    if (code := subprocess.run([*command, str(sources), str(out)], check=False).returncode) == 0:
        print(f"{args.out}/index.html")
    sys.exit(code)


if __name__ == "__main__":
    main()
