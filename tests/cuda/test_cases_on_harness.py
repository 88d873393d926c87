"""Every row of the table of cases on the CUDA kernels, in the harness: equal to the CPU to rounding."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from cases import CASES
from cases.table import Case
from cuda_harness import on_harness
from strict import StrictArray, to_device, to_host

EPS = np.finfo(np.float64).eps
SEEDS = [int(seed) for seed in os.environ.get("HARNESS_SEEDS", "1").split()]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_on_the_cuda_kernels(case: Case, seed: int) -> None:
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    args = case.make(rng)
    outputs = case.forward(args)
    cotangents = tuple(rng.standard_normal(out.shape).astype(out.dtype) for out in outputs)
    grads = case.backward(args, outputs, cotangents)
    there = {name: to_device(value) for name, value in args.items()}
    with on_harness(seed):
        outputs_there = case.forward(there)
        grads_there = case.backward(there, outputs_there, tuple(map(to_device, cotangents)))
    for got, expected in zip((*outputs_there, *grads_there.values()), (*outputs, *grads.values()), strict=True):
        assert isinstance(got, StrictArray)
        assert got.dtype == expected.dtype
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(to_host(got), expected, rtol=0, atol=8 * case.terms * EPS * scale)
