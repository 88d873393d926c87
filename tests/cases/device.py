"""A row of the table on another device than the CPU."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from cases.table import Case
from strict import StrictArray, to_device, to_host

EPS = np.finfo(np.float64).eps


def check_case(case: Case, running: AbstractContextManager[Any]) -> None:
    """Runs a row on the CPU and, within `running`, on the strict device: equal to rounding."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    args = case.make(rng)
    outputs = case.forward(args)
    cotangents = tuple(rng.standard_normal(out.shape).astype(out.dtype) for out in outputs)
    grads = case.backward(args, outputs, cotangents)
    there = {name: to_device(value) for name, value in args.items()}
    with running:
        outputs_there = case.forward(there)
        grads_there = case.backward(there, outputs_there, tuple(map(to_device, cotangents)))
    for got, expected in zip((*outputs_there, *grads_there.values()), (*outputs, *grads.values()), strict=True):
        assert isinstance(got, StrictArray)
        assert got.dtype == expected.dtype
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(to_host(got), expected, rtol=0, atol=8 * case.terms * EPS * scale)
