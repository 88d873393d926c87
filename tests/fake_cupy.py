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
import strict
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

    def set(self, value: Any, stream: Any = None) -> None:
        strict.synchronise()
        assert value.dtype == self.dtype
        assert value.shape == self.shape
        self._host[...] = value

    def get(self, stream: Any = None) -> Any:
        return self.on_host()


class Stream:
    """Captures what is done, to do it again: with the same arrays, and numbers as they were."""

    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        strict.synchronise()

    def begin_capture(self) -> None:
        strict.RECORD = []

    def end_capture(self) -> Graph:
        assert strict.RECORD is not None
        made, strict.RECORD = Graph(strict.RECORD), None
        return made


class Graph:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def launch(self, stream: Stream) -> None:
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for to, value in zip(*map(_several, (result, again)), strict=True):
                if isinstance(to, np.ndarray):
                    to[...] = value


def _several(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class MemoryPool:
    """Its memory is new each time; arrays of a graph are kept by the calls that use them."""

    def malloc(self, size: int) -> Memory:
        return alloc(size)


class Kernels:
    """Those of the harness, which are captured as other functions are, with the counter of then."""

    counter: Any = None

    def __init__(self, module: Any) -> None:
        self.module = module

    def use_counter(self, counter: Any) -> None:
        self.counter = counter
        self.module.use_counter(counter)

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self.module.kernels, name)

        def call(**arguments: Any) -> None:
            kernel(**arguments)
            counter = self.counter

            def again(**arguments: Any) -> None:
                self.use_counter(counter)
                kernel(**arguments)
                self.use_counter(None)

            if strict.RECORD is not None:
                strict.RECORD.append((again, (), arguments, None))

        return call


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
    if strict.RECORD is not None and not isinstance(value, ndarray):
        strict.synchronise()
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
        getDeviceProperties=lambda number: {"name": b"harness", "major": 9, "minor": 0},
        driverGetVersion=lambda: 13000,
        memGetInfo=lambda: (1 << 30, 2 << 30),
    )
    made.__dict__.update(
        ndarray=ndarray,
        empty=empty,
        asarray=asarray,
        asnumpy=lambda array: array.on_host(),
        from_dlpack=lambda value: value.__dlpack__(),
        get_default_memory_pool=MemoryPool,
        __version__="14.2.0",
        cuda=SimpleNamespace(
            alloc=alloc,
            runtime=runtime,
            get_current_stream=Stream,
            Stream=Stream,
            MemoryPool=MemoryPool,
            using_allocator=lambda allocator: contextlib.nullcontext(),
            set_allocator=lambda allocator: None,
        ),
    )
    return made


@contextlib.contextmanager
def gpu(**failures: Any) -> Iterator[None]:
    """Within the block, there is a GPU: the harness."""
    names = ("cupy", "rotrnn._cuda")
    before = {name: sys.modules.get(name) for name in names}
    harness = load()
    proxy = Kernels(harness)
    kernels: Any = SimpleNamespace(
        kernels=proxy,
        connect=harness.connect,
        precision=harness.precision,
        use_precision=harness.use_precision,
        use_counter=proxy.use_counter,
    )
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

        harness.connect(STRICT, Memory, lambda: 0, "")
        del rotrnn._cuda  # type: ignore[attr-defined]
        if own is not None:
            rotrnn._cuda = own  # type: ignore[attr-defined]
        for name, value in before.items():
            if value is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = value
