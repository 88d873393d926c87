"""`_cuda_host`, the kernels of cuda/ on the host (host_device.h), for arrays that look like a GPU's (strict.py)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cases.table import Case
from rotrnn.devices.device import HOST
from strict import STRICT, kernels_of, poisoned, to_device, to_host, unwrap

ROOT = Path(__file__).parents[1]
EPS = np.finfo(np.float64).eps


class Memory:
    """A workspace, as CuPy's allocator returns it; uninitialised numbers are NaN."""

    def __init__(self, size: int) -> None:
        self.array = poisoned((size,), "u1")
        self.ptr = self.array.data.ptr


def built(target: str, **environment: str) -> Path:
    """Builds what `tests/cuda/build.py` calls `target`, unless it is up to date. Returns its path."""
    env = os.environ | environment
    env.pop("LD_PRELOAD", None)  # a sanitizer is for the tests, not for compilers
    folder = ROOT / env.get("HARNESS", "build/harness")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:  # test processes wait for one that builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, str(ROOT / "tests" / "cuda" / "build.py"), target]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return ROOT / done.stdout.strip().splitlines()[-1]


@functools.cache
def load(target: str = "module", **environment: str) -> Any:
    """Returns the module `_cuda_host`; it is built first, unless it is up to date."""
    spec = importlib.util.spec_from_file_location("_cuda_host", built(target, **environment))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.connect(STRICT, Memory, lambda: 0, "")
    return module


@contextlib.contextmanager
def on_harness(seed: int = 1) -> Iterator[Any]:
    """Within the block, the strict device has the CUDA kernels, whose threads run in an order drawn by `seed`."""
    before = os.environ.get("ROT_HOST_SEED")
    os.environ["ROT_HOST_SEED"] = str(seed)
    module = load()
    try:
        with kernels_of(module):
            yield module
    finally:
        if before is None:
            del os.environ["ROT_HOST_SEED"]
        else:
            os.environ["ROT_HOST_SEED"] = before


class Recorder:
    """The CPU's kernels for the strict device; keeps which were called, and whether on complex numbers."""

    def __init__(self) -> None:
        self.called: set[tuple[str, bool]] = set()

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(HOST.kernels, name)

        def call(**arguments: Any) -> Any:
            plain = {key: unwrap(value) for key, value in arguments.items()}
            self.called.add((name, any(np.iscomplexobj(value) for value in plain.values())))
            return kernel(**plain)

        return call


def called_by(case: Case) -> set[tuple[str, bool]]:
    """Returns the kernels that a row of the table calls."""
    recorder = Recorder()
    args = {name: to_device(value) for name, value in case.make(np.random.default_rng(0)).items()}
    with kernels_of(SimpleNamespace(kernels=recorder)):
        outputs = case.forward(args)
        case.backward(args, outputs, tuple(to_device(np.ones_like(to_host(out))) for out in outputs))
    return recorder.called


def few(cases: list[Case], count: int) -> list[Case]:
    """Returns the rows that call a kernel which fewer than `count` rows before them call; ragged rows come first."""
    chosen, calls = [], Counter[tuple[str, bool]]()
    for case in sorted(cases, key=lambda case: case.lengths is None):
        called = called_by(case)
        if any(calls[one] < count for one in called):
            chosen.append(case)
            calls.update(called)
    return chosen
