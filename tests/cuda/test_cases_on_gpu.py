"""Rows of the table of cases on a GPU, beside the CPU, as benchmarks/gpu.sh runs them.

Where there is no GPU, a row of each function runs on the stand-in for one, so that what runs them is tried.
GPU_ROWS=small takes a row for each function on a GPU, too. GPU_POOL=0 takes each array from the driver, so that
compute-sanitizer sees its end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

import fake_cupy
from benchmarks.gpu_checks import KINDS, check_row, firsts_first
from benchmarks.gpu_report import bad
from cases import ON_DEVICES
from cases.table import Case
from rotrnn.devices import cuda

HERE = cuda.available()
FIRST, OTHERS = firsts_first(ON_DEVICES)


@pytest.fixture(autouse=True, scope="module")
def gpu() -> Iterator[None]:
    there: Any = contextlib.nullcontext() if HERE else fake_cupy.gpu()
    with there:
        if os.environ.get("GPU_POOL") == "0":
            import cupy

            cupy.cuda.set_allocator(None)
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case", FIRST if not HERE or os.environ.get("GPU_ROWS") == "small" else FIRST + OTHERS, ids=lambda case: case.name
)
def test_a_case_on_the_gpu(case: Case, kind: str) -> None:
    row = check_row(case, kind)
    assert not bad(row), row
