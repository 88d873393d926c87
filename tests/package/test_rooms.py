"""The rooms of the house: what lies lower knows nothing of what lies higher (CONTRIBUTING.md, "The code")."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = [{"include", "runtime"}, {"kernels", "data"}, {"lib"}, {"module"}]
"""The folders of csrc, the lowest floor first. Only the highest includes Python.h."""


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not in a wheel")
def test_c_files_include_nothing_from_above() -> None:
    """So the kernels and the C library are built without Python and without the module."""
    height = {folder: i for i, floor in enumerate(FLOORS) for folder in floor}
    files = sorted((ROOT / "csrc").glob("*/*.[ch]"))
    assert {file.parent.name for file in files} == set(height)
    upward = []
    for file in files:
        room = file.parent.name
        for header in re.findall(r'^\s*#\s*include\s*[<"](.+?)[>"]', file.read_text("utf-8"), re.M):
            python = re.match(r"Python\.h|numpy/", header)
            # a header's own folder is searched first; others are those of the C library's interface, made, or of cuda/
            known = {one.parent.name for one in files if one.name == Path(header).name}
            lowest = room if room in known else min(known, key=height.__getitem__, default=room)
            if (python and height[room] < len(FLOORS) - 1) or height[lowest] > height[room]:
                upward.append(f"{room}/{file.name} includes {header}")
    assert not upward
