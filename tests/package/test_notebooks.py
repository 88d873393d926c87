"""The notebooks run, each in its own kernel with this rotrnn, and are stored with the outputs of such a run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import nbformat
import pytest

import notebooks
import rotrnn

pytestmark = pytest.mark.whole

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
STORED = [*NOTEBOOKS, *sorted((Path(__file__).parents[2] / "examples" / "pytorch").glob("*.ipynb"))]
"""Those with outputs: with the notebooks that tests/pytorch runs."""
LARGEST = 200_000
"""Bytes of a notebook with its pictures."""


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_steps", "gradient_check", "lra_from_a_script", "streaming"]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_run_once_from_top_to_bottom(path: Path) -> None:
    """`make notebooks` stores it so: without warnings, times and paths, and small."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell.outputs) for cell in code) >= len(code) // 2
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
    for one in (one for cell in code for one in cell.outputs):
        assert one.get("name", "stdout") == "stdout"
        assert one.output_type != "error"
        assert len(one.get("data", {"": ""})) == 1
    assert path.stat().st_size < LARGEST
    assert "/tmp" not in path.read_text(encoding="utf-8")
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(json.loads(path.read_text(encoding="utf-8"))["metadata"]) == {"kernelspec", "language_info"}


def test_numbers_and_pictures_may_differ_and_words_may_not() -> None:
    def cell(text: str, **metadata: object) -> object:
        return nbformat.from_dict({"metadata": metadata, "outputs": [{"output_type": "stream", "text": text}]})

    same = notebooks.shown(cell("loss -1.2e-3 |  a\n--- 12,345"))
    assert same == notebooks.shown(cell("loss 17 | a\n------ 6"))
    assert same != notebooks.shown(cell("loss 17 | b\n--- 6"))
    assert same != notebooks.shown(cell("loss 17 | a\n--- 6 7"))
    varies = {"tags": [notebooks.VARIES]}
    assert notebooks.shown(cell("one", **varies)) == notebooks.shown(cell("two", **varies)) == ["stream"]


@pytest.mark.notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_not_old(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # where notebooks keep their runs, kernels their files
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # IPython asks for its encoding; pytest's has none if it is closed
    ours = f"import rotrnn\nassert rotrnn.__file__ == {rotrnn.__file__!r}, rotrnn.__file__"
    stored, fresh = nbformat.read(path, as_version=4), notebooks.executed(path, tmp_path, ours)
    assert (len(notebooks.pictures(fresh)) > 0) == ("%matplotlib inline" in path.read_text(encoding="utf-8"))
    for one, other in zip(stored.cells, fresh.cells, strict=True):
        if one.cell_type == "code":
            assert notebooks.shown(one) == notebooks.shown(other), f"{path.name} is old: make notebooks\n{one.source}"
