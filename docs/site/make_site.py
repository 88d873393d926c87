"""Builds the documentation site from the repository: its pages as they are, docstrings, notebooks, the tests' loops.

python docs/site/make_site.py [FOLDER]         # build/docs/html
python docs/site/make_site.py --sources FOLDER # only what Sphinx reads

Pages of docs/ stay readable on a repository host, so nothing in them is for Sphinx alone. What the site adds is made
here: the navigation, a page of reference for each part of the package, and for each layer its docstring and the loop
over time that its tests hold it to, below what docs/layers/ says of it. Warnings are errors, and every link within the
site must lead somewhere; those out of it are listed in external_links.txt.
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
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
NAVIGATION: dict[str, list[str]] = {
    "Start": ["docs/README", "docs/guide", "docs/data", "docs/models", "docs/mistakes"],
    "By task": [
        *("docs/command-line", "docs/tasks", "docs/pytorch", "docs/jax", "docs/own-layers"),
        *("docs/c", "docs/gpu", "docs/processes", "examples/*", "examples/forecasts/*", "examples/pytorch/*"),
    ],
    "Theory": ["docs/layers", "docs/theory", "docs/layers/*"],
    "Reference": ["reference/*"],
    "Results": ["docs/results", "docs/benchmarks", "recorded"],
    "Project": ["docs/guarantees", "docs/stability", "CHANGELOG", "CONTRIBUTING", "SECURITY", "docs/*"],
}
"""Headings of the navigation and their pages, those of them that there are; a * stands for what is nowhere else."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


# ---- what there is to document ----


def reference() -> dict[str, list[str]]:
    """Returns the pages of the reference, title -> public names with their modules, "rotrnn.diagonal_scan". Layers have
    pages of their own."""
    import rotrnn

    layers = {kind.__name__ for kind in rotrnn.nn.LAYERS.values()}
    pages: dict[str, list[str]] = {"Models and training": [], "Parts of models": []}
    for name in sorted(set(rotrnn.__all__) | set(rotrnn.ops.__all__), key=str.lower):
        module = "rotrnn" if name in rotrnn.__all__ else "rotrnn.ops"
        home = inspect.getmodule(getattr(importlib.import_module(module), name))
        place = getattr(home, "__name__", "")
        if name in layers or name == "LAYERS":
            continue
        if place.startswith("rotrnn.ops."):
            title = f"Ops: {place.rpartition('.')[2].replace('_', ' ')}"
        else:
            title = "Parts of models" if name in rotrnn.nn.__all__ else "Models and training"
        pages.setdefault(title, []).append(f"{module}.{name}")
    for module, title in (("rotrnn.plots", "Plots"), ("rotrnn.tasks", "Tasks")):
        names = sorted(importlib.import_module(module).__all__, key=str.lower)
        pages[title] = [f"{module}.{name}" for name in names if not name.isupper()]
    return {title: names for title, names in sorted(pages.items()) if names}


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
    """Returns the page of a layer: what docs/layers/ has, the docstring of the class, and the loops of the tests."""
    written = ROOT / "docs" / "layers" / f"{name}.md"
    text = written.read_text() if written.exists() else f"# {kind.__name__}\n"
    text += f"\n## The class\n\n```{{eval-rst}}\n.. autoclass:: rotrnn.{kind.__name__}\n```\n"
    text += f"\nIts name in recipes and in `ModelSettings(layer=...)` is `{name}`.\n"
    for path, source in loops(kind):
        text += f"\n## Reference loop, `{path}`\n\nThe tests hold the layer, its states and its gradients to this.\n"
        text += f"\n```python\n{source}```\n"
    return text


def reference_page(title: str, names: list[str]) -> str:
    lines = [f"# {title}\n"]
    for name in names:
        module, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(module), attribute)
        kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
        lines.append(f"## {attribute}\n\n```{{eval-rst}}\n.. auto{kind}:: {name}\n```\n")
    return "\n".join(lines)


def notebook_page(path: Path, folder: Path) -> str:
    """Returns a notebook with its stored outputs as a page; pictures are written into `folder`."""
    import base64

    lines = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
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


def index_page(pages: set[str]) -> str:
    """Returns the README with the navigation, which Sphinx shows at the side."""
    text = (ROOT / "README.md").read_text()
    named = {page for some in NAVIGATION.values() for page in some}
    for caption, entries in NAVIGATION.items():
        chosen = []
        for entry in entries:
            inside = entry.removesuffix("*")
            rest = (page for page in sorted(pages) if page.startswith(inside) and "/" not in page[len(inside) :])
            chosen += [page for page in rest if page not in named] if entry.endswith("*") else [entry]
        chosen = [page for page in dict.fromkeys(chosen) if page in pages]
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(chosen) + "\n```\n"
    return text


def write_sources(out: Path) -> None:
    """Writes what Sphinx reads, at the places that the pages have in the repository, so that their links hold."""
    from rotrnn.nn.registry import LAYERS

    results = ROOT / "benchmarks" / "results"
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *results.rglob("*.md"), *results.rglob("*.png")]:
        if path != ROOT / "README.md":
            _copy(path, out / path.relative_to(ROOT))
    for name, kind in LAYERS.items():
        if kind.__module__.startswith("rotrnn."):
            _write(out / "docs" / "layers" / f"{name}.md", layer_page(name, kind))
    for title, names in reference().items():
        _write(out / "reference" / f"{re.sub(r'[^a-z0-9]+', '-', title.lower())}.md", reference_page(title, names))
    for path in (ROOT / "examples").rglob("*.ipynb"):
        page = out / path.relative_to(ROOT).with_suffix(".md")
        page.parent.mkdir(parents=True, exist_ok=True)
        _write(page, notebook_page(path, page.parent))
    recorded = sorted(path.relative_to(out).with_suffix("").as_posix() for path in (out / "benchmarks").rglob("*.md"))
    for page in recorded:
        path = out / f"{page}.md"
        if not path.read_text().startswith("# "):
            path.write_text(f"# {path.stem.replace('_', ' ').capitalize()}\n\n{path.read_text()}")
    listed = "\n".join(recorded)
    _write(out / "recorded.md", f"# Recorded runs\n\nTables of all runs.\n\n```{{toctree}}\n{listed}\n```\n")
    pages = {path.relative_to(out).with_suffix("").as_posix() for path in out.rglob("*.md")} - set(recorded)
    _write(out / "index.md", index_page(pages))
    for path in out.rglob("*.md"):
        path.write_text(_links_of_the_site(path, out))
    for name in ("conf.py", "site.css"):
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

    parts = re.split(r"(```.*?```)", path.read_text(), flags=re.DOTALL)
    parts[::2] = [LINK.sub(mend, part) for part in parts[::2]]
    return "".join(parts)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# ---- links ----


class Page(HTMLParser):
    """The anchors and links of a page, and what a browser loads to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if href := given.get("href"):
            (self.links if tag == "a" else self.loaded).append(href)
        if src := given.get("src"):
            self.loaded.append(src)


def check(html: Path) -> tuple[list[str], list[str]]:
    """Returns what is wrong with the links of a site, and its links to other sites."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(html.rglob("*.html"))}
    wrong, outside = [], set()
    for path, page in pages.items():
        name = path.relative_to(html.resolve())
        for target in page.loaded + page.links:
            if re.match(r"\w+:|//", target):
                if target in page.loaded and not target.startswith("data:"):
                    wrong.append(f"{name} loads {target} from another site")
                outside.add(target)
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            if not there.is_file():
                wrong.append(f"{name} links to {target}, which is not there")
            elif there in pages and unquote(anchor) not in pages[there].anchors:
                wrong.append(f"{name} links to {target}, which has no such heading")
    return wrong, sorted(outside)


def built(out: Path) -> Iterator[str]:
    """Builds the site into the folder `out`. Yields what is wrong with it."""
    sources = out.with_name(out.name + "-sources")
    shutil.rmtree(sources, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    write_sources(sources)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-d", f"{out}-doctrees", str(sources), str(out)]
    if subprocess.run(command, check=False).returncode != 0:
        yield "sphinx: there are warnings"
    wrong, outside = check(out)
    yield from wrong
    (out.parent / "external_links.txt").write_text("\n".join(outside) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", action="store_true", help="write only what Sphinx reads")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "docs" / "html", metavar="FOLDER")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT / "python"), str(ROOT), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])  # of Sphinx
    if args.sources:
        return write_sources(args.out.resolve())
    wrong = list(built(args.out.resolve()))
    print("\n".join(wrong) or f"{args.out}/index.html")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
