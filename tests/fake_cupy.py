"""A stand-in for CuPy with the CUDA kernels of the harness: `rotrnn.cuda` works as with a GPU, on the host.

Its arrays refuse what CuPy's refuse (strict.py). It has what the package uses of CuPy and no more, with failures to be
injected.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import rotrnn
from cuda_harness import Memory, load
from rotrnn import cuda
from rotrnn.ops import device as devices
from strict import StrictArray


class ndarray(StrictArray):  # CuPy's own name
    __slots__ = ()
    __module__ = "cupy"
    __cuda_array_interface__ = property(lambda self: {"shape": self.shape})

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Tensor:
    """An array of another library on the GPU: DLPack alone."""

    def __init__(self, array: ndarray, device: int = 2) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.array


def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    host = np.empty(shape, dtype)
    host.reshape(-1).view(np.uint8)[:] = 0xFF  # NaN
    return ndarray(host)


def asarray(value: Any) -> ndarray:
    return value if isinstance(value, ndarray) else ndarray(np.array(value, order="C"))


class Failures:
    """What goes wrong next: the number of GPUs, and the number of bytes that can still be had."""

    gpus: int | Exception = 1
    bytes: int | None = None


def get_device_count() -> int:
    if isinstance(Failures.gpus, Exception):
        raise Failures.gpus
    return Failures.gpus


def alloc(size: int) -> Memory:
    if Failures.bytes is not None and size > Failures.bytes:
        raise MemoryError(f"Out of memory allocating {size} bytes")
    return Memory(size)


def module() -> ModuleType:
    made = ModuleType("cupy")
    runtime = SimpleNamespace(
        getDeviceCount=get_device_count,
        getDevice=lambda: 0,
        getDeviceProperties=lambda number: {"name": b"harness"},
        driverGetVersion=lambda: 13000,
    )
    made.__dict__.update(
        ndarray=ndarray,
        empty=empty,
        asarray=asarray,
        asnumpy=lambda array: array.on_host(),
        from_dlpack=lambda value: value.__dlpack__(),
        __version__="14.2.0",
        cuda=SimpleNamespace(
            alloc=alloc, runtime=runtime, get_current_stream=lambda: SimpleNamespace(ptr=0), Stream=None
        ),
    )
    return made


@contextlib.contextmanager
def gpu(**failures: Any) -> Iterator[None]:
    """Within the block, there is a GPU: the harness."""
    names = ("cupy", "rotrnn._cuda")
    before = {name: sys.modules.get(name) for name in names}
    kernels = load()
    sys.modules.update({"cupy": module(), "rotrnn._cuda": kernels})
    own = rotrnn.__dict__.get("_cuda")
    rotrnn._cuda = kernels  # type: ignore[attr-defined]
    known = dict(devices._DEVICES)
    cuda._load.cache_clear()
    for name, value in failures.items():
        setattr(Failures, name, value)
    try:
        yield
    finally:
        Failures.gpus, Failures.bytes = 1, None
        cuda._load.cache_clear()
        devices._DEVICES.clear()
        devices._DEVICES.update(known)
        from strict import STRICT

        kernels.connect(STRICT, Memory, lambda: 0, "")
        del rotrnn._cuda  # type: ignore[attr-defined]
        if own is not None:
            rotrnn._cuda = own  # type: ignore[attr-defined]
        for name, value in before.items():
            if value is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = value
