"""Runs the notebooks of this folder and stores their outputs in them, so that they can be read without running.

python examples/notebooks.py [NAME ...]

Those in folders need packages of their own, and are run by name: pytorch/torch_loop.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
VARIES = "varies"
"""Tag of a cell whose output is not the same text on every machine, but for its numbers."""
KEPT = ("image/png", "text/markdown", "text/plain")
"""Forms of an output, of which the first that is there is kept."""


def executed(path: Path, folder: Path, first: str = "") -> Any:
    """Returns the notebook `path` with the outputs of a new kernel that works in `folder`. The code `first` runs before
    its cells."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name="python3", timeout=600, resources=where, store_widget_state=False).execute()
    del notebook.cells[0]
    for count, cell in enumerate((one for one in notebook.cells if one.cell_type == "code"), 1):
        cell.execution_count = count
        cell.outputs = joined([kept(one, count) for one in cell.outputs if one.get("name") != "stderr"])
        for one in cell.outputs:
            if "text" in one:  # the folder has another name in each run
                one.text = re.sub(rf"{re.escape(str(folder))}/(tmp\w+/)?", "", one.text)
        cell.metadata.pop("execution", None)  # times of day
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def kept(output: Any, count: int) -> Any:
    """Returns an output in one form only, numbered as its cell."""
    if "data" in output:
        kind = next(kind for kind in KEPT if kind in output.data)
        output.data, output.metadata = {kind: output.data[kind]}, {}
    if output.output_type == "execute_result":
        output.execution_count = count
    return output


def joined(outputs: list[Any]) -> list[Any]:
    """Returns the outputs with printed pieces joined to one text."""
    found: list[Any] = []
    for one in outputs:
        if found and found[-1].output_type == one.output_type == "stream":
            found[-1].text += one.text
        else:
            found.append(one)
    return found


def shown(cell: Any) -> list[str]:
    """Returns what of a cell's outputs is the same on every machine: their forms, and of texts all but the numbers and
    the spaces, which follow the numbers' lengths. Of a cell that is tagged `VARIES` it is the forms alone."""
    found = []
    for one in cell.outputs:
        kind, text = next(iter(one.data.items())) if "data" in one else (one.output_type, one.get("text", ""))
        varies = kind == "image/png" or VARIES in cell.metadata.get("tags", ())
        words = re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", text)
        found.append(kind if varies else f"{kind}: {' '.join(re.sub('-+', '-', words).split())}")
    return found


def pictures(notebook: Any) -> list[bytes]:
    """Returns the pictures in the outputs, as PNG files."""
    data = (one.get("data", {}).get("image/png") for cell in notebook.cells for one in cell.get("outputs", []))
    return [base64.b64decode(one) for one in data if one is not None]


def main(names: list[str]) -> None:
    for path in [HERE / f"{name}.ipynb" for name in names] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TMPDIR"] = folder  # where notebooks keep their runs
            notebook = executed(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
