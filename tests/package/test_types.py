"""Type checkers know the public names: mypy --strict and pyright accept what docs/ show, and refuse what is wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rotrnn
from package.test_readme import DOCS, README, ROOT, blocks

pytestmark = pytest.mark.whole

PAGES = [README, *(DOCS / f"{name}.md" for name in ("guide", "coming-from", "data", "models", "own-layers"))]

RIGHT = """
import numpy as np
import numpy.typing as npt
import rotrnn

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, 8))
a = np.full(8, 0.9)
layer = rotrnn.LRU(d_model=8, d_state=16)
params = layer.init(rng)
settings = rotrnn.ModelSettings(layer="lru", d_model=8, n_layers=1)
model = rotrnn.build_model(settings, layer, n_features=8, n_classes=2)
writer = rotrnn.build_model(settings, layer, head="language", vocab=4, n_classes=4)
stream = writer.stream(params)
recipe = rotrnn.load_recipe("digits-lru")
asked = bool(rng.integers(2))
shape: tuple[int, ...] = rotrnn.ops.diagonal_scan(a, x).shape
shape = rotrnn.diagonal_scan(a, x).shape  # deprecated, and known
either = rotrnn.ops.diagonal_scan(a, x, return_state=asked)
h, last = rotrnn.ops.rotation_scan(a[:4], None, x, return_state=True, reverse=True)
y, after, carries = rotrnn.ops.ssd_scan(x, x, a, x, x, return_state=True, return_carries=True)
tokens: npt.NDArray[np.int64] = writer.sample(params, np.zeros((1, 1), np.int64), 3)
"""

WRONG = """
rotrnn.LRRU(d_model=8, d_state=16)
rotrnn.nn.LRRU(8, 16)
rotrnn.ops.diagonal_scam(a, x)
rotrnn.tasks.Digts()
rotrnn.plot
rotrnn.LRU(d_model="eight", d_state=16)
rotrnn.LRU(d_model=8, d_sate=16)
rotrnn.RotRNN(8)
layer.foward(params, x)
layer.forward(x)
layer.backward(params, x)
rotrnn.ops.diagonal_scan(a)
rotrnn.ops.diagonal_scan(a, x, retrun_state=True)
rotrnn.ops.diagonal_scan(a, x, return_state=True).shape
rotrnn.ops.diagonal_scan(a, x, widow=3)
rotrnn.ops.diagonal_scan_backward(x, a, x).dz
rotrnn.ops.selective_scan(x, x, a, x, x, return_carries=True).shape
rotrnn.ops.causal_conv(x, x, window=3)
rotrnn.ops.dense(x, x, x, x)
rotrnn.build_model(settings, layer, head="language", n_features=8)
model.sample(params, x, 3)
model.loss(x)
writer.targets(tokens).labels
rotrnn.Context(trian=True)
rotrnn.AdamW(learning_rate=1e-2)
stream.push(x, lenghts=None)
rotrnn.train(recipe, "runs/x", progres=False)
rotrnn.load(3)
"""
"""Each of these lines is an error."""


def names() -> list[str]:
    """The public names, where they are found."""
    modules = {"rotrnn": rotrnn, "rotrnn.nn": rotrnn.nn, "rotrnn.ops": rotrnn.ops, "rotrnn.tasks": rotrnn.tasks}
    modules |= {"rotrnn.plots": rotrnn.plots, "rotrnn.estimators": rotrnn.estimators}
    modules |= {"rotrnn.testing": rotrnn.testing}
    return [f"{place}.{name}" for place, module in modules.items() for name in module.__all__]


def write(folder: Path) -> list[str]:
    """Writes the programs that are checked, and returns their files."""
    programs = {f"{page.stem.lower().replace('-', '_')}_page": "\n".join(blocks(page, "python")) for page in PAGES}
    programs["right"], programs["wrong"] = RIGHT, RIGHT + WRONG.lstrip()
    programs["known"] = "import rotrnn\n" + "".join(f"reveal_type({name})\n" for name in names())
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return [f"{name}.py" for name in programs]


def check_errors(found: dict[str, dict[int, str]]) -> None:
    """Checks that the errors, file -> line -> message, are those of the wrong lines."""
    first = len(RIGHT.splitlines()) + 1
    expected = {first + i: line for i, line in enumerate(WRONG.strip().splitlines())}
    wrong = found.pop("wrong.py", {})
    assert not found
    assert not wrong.keys() - expected.keys(), wrong
    assert [line for number, line in expected.items() if number not in wrong] == []


def test_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    files = write(tmp_path)
    # a page uses a name for one thing after the other, as people do in a notebook
    how = ["--strict", "--allow-redefinition", "--no-error-summary", "--config-file=", "--cache-dir", "cache"]
    how += ["--disable-error-code", "import-untyped"]  # pandas and scikit-learn, of which there need be no stubs
    ran = subprocess.run([sys.executable, "-m", "mypy", *how, *files], cwd=tmp_path, capture_output=True, text=True)
    assert not ran.stderr
    found: dict[str, dict[int, str]] = {}
    for file, number, message in re.findall(r"^(.+?\.py):(\d+): error: (.*)$", ran.stdout, re.MULTILINE):
        found.setdefault(file, {})[int(number)] = message
    check_errors(found)
    known = re.findall(r'^known.py:(\d+): note: Revealed type is "(.*)"$', ran.stdout, re.MULTILINE)
    assert len(known) == len(names())
    assert [names()[int(number) - 2] for number, kind in known if kind == "Any"] == []


def test_pyright(tmp_path: Path) -> None:
    places = str(Path(sys.executable).parent), None  # None stands for PATH
    found_at = [shutil.which(name, path=place) for place in places for name in ("pyright", "basedpyright")]
    program = next(filter(None, found_at), None)
    if program is None:
        pytest.skip("pyright is not installed, nor basedpyright")
    settings = {
        "include": write(tmp_path),
        "typeCheckingMode": "standard",
        "reportPossiblyUnboundVariable": False,  # behind a loop, whose body has run
        "extraPaths": [str(ROOT / "python")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    how = ["--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    ran = subprocess.run([program, *how], capture_output=True, text=True, encoding="utf-8")
    found: dict[str, dict[int, str]] = {}
    for one in json.loads(ran.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).name, {})[one["range"]["start"]["line"] + 1] = one["message"]
    check_errors(found)
