"""Sphinx settings of the site that docs/site/make_site.py builds from the pages and docstrings of the repository.

Sphinx and not MkDocs, because numpydoc reads the sections of NumPy's docstrings as they are, and names in them become
links. Equations are MathML, which browsers draw without a script or a network, in a font that ziamath brings along.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import ziamath
from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.util.inspect import stringify_signature

from rotrnn import __version__

sys.path.insert(0, str(Path(__file__).parent))

from formulas import is_formula, tex

project = "rotrnn"
version = release = __version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "numpydoc", "sphinx_copybutton"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # links to headings are written as repository hosts make them
myst_dmath_double_inline = True

default_role = "py:obj"
autodoc_mock_imports = ["torch", "jax", "cupy", "rotrnn.torch.ops"]
autodoc_typehints = "none"  # process_signature writes them
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "furo"
html_title = "rotrnn"
html_math_renderer = "mathml"
html_static_path = ["_static", str(Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}

UNTOUCHED = re.compile(r"(``.+?``|`[^`]+`|^ *>>>.*?(?=^ *$|\Z)|(?<=\n\n)    .*?(?=\n\n|\Z))", re.DOTALL | re.MULTILINE)
"""Literals, names, examples, and paragraphs of equations, which are indented, in a docstring."""
SECTION = re.compile(r"^(Parameters|Raises|Returns)$")


def process_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Makes a docstring valid for Sphinx: in prose |h|, 2 * x and W_ are characters and not markup, prose after a list
    of parameters is a section of its own, formulas are set, and other equations keep their lines."""
    parts = UNTOUCHED.split("\n".join(lines))
    parts[::2] = [re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [_with_formulas(part) for part in parts[1::2]]
    found = "".join(parts).split("\n")
    inside, notes = False, False
    lines.clear()
    for i, line in enumerate(found):
        underlined = i + 1 < len(found) and re.fullmatch(r"-{3,}", found[i + 1]) is not None
        if underlined:
            inside = SECTION.match(line) is not None
        elif inside and line and not line.startswith(" ") and i and not found[i - 1] and not notes:
            lines += ["Notes", "-----"]
            inside, notes = False, True
        if line.startswith("    ") and not inside and i and not found[i - 1] and not line.lstrip().startswith(">>>"):
            lines += ["::", ""]
        lines.append(line)


def _with_formulas(part: str) -> str:
    """Sets a literal, or the lines of a paragraph of equations, if they are formulas."""
    if part.startswith("``"):
        text = " ".join(part.strip("`").split())
        return f":math:`{tex(text)}`" if is_formula(text) else part
    lines = part.strip().split("\n")
    if not part.startswith("    ") or not all(is_formula(line.strip()) for line in lines):
        return part
    return "\n\n".join(f".. math:: {tex(line.strip())}" for line in lines)


def process_signature(app: Any, what: str, name: str, thing: Any, *_: Any) -> tuple[str, str] | None:
    """Writes a signature with its types as the source has them, ArrayLike and not its expansion; of a function
    with overloads, the signature of its body, which has all arguments."""
    call = thing.__init__ if what == "class" and inspect.isfunction(thing.__init__) else thing
    try:
        found = inspect.signature(call)
    except (TypeError, ValueError):  # a property, or an exception
        return None
    given = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    given = [one.replace(default=...) if repr(one.default) == "<factory>" else one for one in given]
    text = stringify_signature(found.replace(parameters=given)).replace("npt.", "").replace("Ellipsis", "...")
    args, _, returns = text.partition(") -> ")
    return args + ")" * bool(returns), "" if returns == "None" else returns


def skip_member(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of NamedTuples, whose docstrings say nothing."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def visit_math(self: Any, node: Any) -> None:
    """Writes an equation in a line."""
    self.body.append(convert(node.astext()))
    raise SkipNode


def visit_math_block(self: Any, node: Any) -> None:
    """Writes an equation on lines of its own."""
    self.body.append(f'<div class="equation">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", process_docstring, priority=100)  # before numpydoc
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
