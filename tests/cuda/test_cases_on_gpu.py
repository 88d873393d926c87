"""Every row of the table of cases on a GPU: equal to the CPU to rounding, in both precisions, and to the bit each time.

Where there is no GPU they are skipped, with the reason. GPU_ROWS=small takes a row for each function, GPU_SHARD=k/n
every nth of these from the kth. GPU_POOL=0 takes each array from the driver, so that compute-sanitizer sees its end.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cases import CASES
from cases.table import Arrays, Case
from rotrnn import cuda


def rows() -> list[Case]:
    found = {case.name.split()[0]: case for case in reversed(CASES)}  # the first row of each
    cases = list(found.values()) if os.environ.get("GPU_ROWS") == "small" else list(CASES)
    k, n = map(int, os.environ.get("GPU_SHARD", "0/1").split("/"))
    return cases[k::n]


if reason := cuda.why_not():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def pool() -> Iterator[None]:
    if os.environ.get("GPU_POOL") != "0":
        yield
        return
    import cupy

    cupy.cuda.set_allocator(None)
    yield
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def narrow(x: Any) -> Any:
    return x.astype(np.complex64 if np.iscomplexobj(x) else np.float32)


def run(case: Case, args: Arrays, cotangents: tuple[Any, ...]) -> list[Any]:
    """Outputs and gradients of a case on the GPU, as arrays of the host."""
    device = cuda.device()
    there = {name: device.asarray(value) for name, value in args.items()}
    outputs = case.forward(there)
    grads = case.backward(there, outputs, tuple(map(device.asarray, cotangents)))
    found = [*outputs, *grads.values()]
    assert all(type(one) is device.array_type for one in found)
    return [device.to_host(one) for one in found]


@pytest.mark.parametrize("case", rows(), ids=lambda case: case.name)
def test_a_case_on_the_gpu(case: Case) -> None:
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    args = case.make(rng)
    outputs = case.forward(args)
    cotangents = tuple(rng.standard_normal(out.shape).astype(out.dtype) for out in outputs)
    expected = [*outputs, *case.backward(args, outputs, cotangents).values()]
    found = run(case, args, cotangents)
    compare(case, found, expected, 8 * case.terms * np.finfo(np.float64).eps)
    for again, one in zip(run(case, args, cotangents), found, strict=True):
        assert again.tobytes() == one.tobytes()


@pytest.mark.parametrize("case", rows(), ids=lambda case: case.name)
def test_a_case_on_the_gpu_in_float32(case: Case) -> None:
    """Beside float64 on the CPU, of the same rounded arguments."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    small = {name: narrow(value) for name, value in case.make(rng).items()}
    wide = {name: value.astype(np.result_type(value, np.float64)) for name, value in small.items()}
    outputs = case.forward(wide)
    cotangents = tuple(narrow(rng.standard_normal(out.shape)).astype(out.dtype) for out in outputs)
    expected = [*outputs, *case.backward(wide, outputs, cotangents).values()]
    narrowed = tuple(d if i in case.double else narrow(d) for i, d in enumerate(cotangents))
    compare(case, run(case, small, narrowed), expected, 4 * case.terms * np.finfo(np.float32).eps)


def compare(case: Case, found: list[Any], expected: list[Any], tolerance: float) -> None:
    for got, one in zip(found, expected, strict=True):
        scale = max(1.0, float(np.max(np.abs(one), initial=0.0)))
        np.testing.assert_allclose(got, one, rtol=0, atol=tolerance * scale)
