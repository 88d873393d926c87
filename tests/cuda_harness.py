"""`_cuda_host`, the kernels of cuda/ on the host (host_device.h), for arrays that look like a GPU's (strict.py)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strict import STRICT, kernels_of, poisoned

BUILD = Path(__file__).parent / "cuda" / "build.py"
FOLDER = Path(__file__).parents[1] / os.environ.get("HARNESS", "build/harness")


class Memory:
    """A workspace, as CuPy's allocator returns it; uninitialised numbers are NaN."""

    def __init__(self, size: int) -> None:
        self.array = poisoned((size,), "u1")
        self.ptr = self.array.data.ptr


@functools.cache
def load() -> Any:
    """Returns the module `_cuda_host`; it is built first, unless it is up to date."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:  # test processes wait for one that builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([sys.executable, str(BUILD)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = done.stdout.strip().splitlines()[-1]
    spec = importlib.util.spec_from_file_location("_cuda_host", BUILD.parents[2] / path)
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
