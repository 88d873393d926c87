"""The notebooks run, each in its own kernel with this rotrnn, and are stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import rotrnn

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_steps", "gradient_check", "lra_from_a_script", "streaming"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert set(cell.metadata) == set()
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(json.loads(path.read_text())["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # where notebooks keep their runs, kernels their files
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    ours = f"import rotrnn\nassert rotrnn.__file__ == {rotrnn.__file__!r}, rotrnn.__file__"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ours))
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=300, resources=where).execute()
    pictures = sum("image/png" in out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", []))
    assert (pictures > 0) == ("%matplotlib inline" in path.read_text())
