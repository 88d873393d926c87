"""Inner loops of kernels, as `make resources` reads them from what nvdisasm prints."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def resources() -> Any:
    spec = importlib.util.spec_from_file_location("resources", Path(__file__).with_name("resources.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STEP = """        /*0120*/                   LDG.E.64.CONSTANT R2, desc[UR4][R2.64] ;
        /*0130*/                   FFMA R5, R2, R3, R5 ;
        /*0140*/              @!P3 FADD R5, R5, R3 ;
        /*0150*/                   STG.E desc[UR4][R8.64], R5 ;
"""
BRANCH = "        /*0160*/              @!P1 BRA `({}) ;\n"
DIVERGES = "        /*0110*/                   BSSY B1, `(.L_x_3) ;\n"
SPILL = "        /*0111*/                   LDL R7, [R1+0x4] ;\n"


def kernel(inner: str) -> str:
    """A loop of sixteen steps in another one, which diverges and has local memory."""
    head = ".text.walk:\n        /*0000*/                   LDC R1, c[0x0][0x28] ;\n.L_x_0:\n"
    outer = DIVERGES + SPILL + BRANCH.format(".L_x_0") + BRANCH.format(".L_x_9")
    return f"{head}.L_x_1:\n{inner}{STEP * 16}{BRANCH.format('.L_x_1')}{outer}.L_x_9:\n"


def test_the_innermost_loops_are_found(resources: Any) -> None:
    found = resources.loops_of(kernel("") + kernel(DIVERGES + SPILL).replace("walk", "other"))
    assert found == {"walk": [(65, 16, 16, 0, 0)], "other": [(67, 16, 16, 1, 1)]}


@pytest.mark.parametrize(
    ("inner", "loads", "most", "fault"),
    [
        ("", 1, 4.1, None),
        ("", 2, 8.2, None),
        ("", 1, 4.0, "4.1 instructions a step, expected at most 4.0"),
        (DIVERGES, 1, 5, "1 divergent branches in its inner loop, expected none"),
        (SPILL, 1, 5, "1 accesses of local memory in its inner loop, expected none"),
    ],
)
def test_faults_of_a_walk(resources: Any, inner: str, loads: int, most: float, fault: str | None) -> None:
    (one,) = resources.loops_of(kernel(inner))["walk"]
    assert list(resources.faults_of(one, loads, most)) == ([] if fault is None else [fault])


def test_a_walk_without_loads_in_flight_is_a_fault(resources: Any) -> None:
    assert list(resources.faults_of(resources.NO_LOOP, 1, 5)) == [
        "its inner loop has 0 loads, expected at least 8, which are in flight at once"
    ]


def test_the_table_has_every_kernel_and_every_reason(resources: Any) -> None:
    """Compiling takes minutes, so `make resources` is not run with every change: new files and kernels need it."""
    table = (resources.ROOT / resources.TABLE).read_text(encoding="utf-8")
    rows = {tuple(row.split(" | ")[:2]) for row in re.findall(r"(?m)^\| (\w+\.cu \| .*) \|$", table)}
    sources = {path.name: path.read_text(encoding="utf-8") for path in (resources.ROOT / "cuda").glob("*.cu")}
    files = {name for name, text in sources.items() if re.search(r"(?m)^KERNEL\(", text)}
    names = {(file, name) for file in files for name in re.findall(r"GLOBAL2?\([^()]*\)\s+(\w+)\(", sources[file])}
    assert sorted(files - {file for file, _ in rows}) == [], "files without a row: run make resources"
    assert sorted(names - {(file, kernel.partition("<")[0]) for file, kernel in rows}) == [], "kernels without a row"
    assert set(resources.EXPLAINED) <= rows, "reasons of kernels that are gone"
