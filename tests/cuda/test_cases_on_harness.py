"""The table of cases on the CUDA kernels, in the harness: equal to the CPU to rounding.

HARNESS_SEEDS="1 2 3" runs every row under several orders of threads; HARNESS_CASES=2 runs only so many rows a kernel,
for sanitizers (`few` in cuda_harness.py has the rule).
"""

from __future__ import annotations

import os

import pytest

from cases import ON_DEVICES
from cases.device import check_case
from cases.table import Case
from cuda_harness import few, on_harness

SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]
COUNT = int(os.environ.get("HARNESS_CASES", "0"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", few(ON_DEVICES, COUNT) if COUNT else ON_DEVICES, ids=lambda case: case.name)
def test_a_case_on_the_cuda_kernels(case: Case, seed: int) -> None:
    check_case(case, on_harness(seed))
