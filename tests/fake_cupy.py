"""A stand-in for CuPy with the CUDA kernels of the harness: `rotrnn.cuda` works as with a GPU, on the host.

Its arrays refuse what CuPy's refuse (strict.py). It has what the package uses of CuPy and no more, with failures to be
injected.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

import rotrnn
import strict
from cuda_harness import Memory, load
from rotrnn.devices import cuda, precisions
from rotrnn.devices import device as devices
from rotrnn.devices.recording import recording
from strict import Address, StrictArray


class Pointer(Address):
    """Where an array's numbers are, and copies to there."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        super().__init__(host)
        self.host = host

    def copy_from_device_async(self, src: Pointer, size: int, stream: Stream) -> None:
        assert size == src.host.nbytes == self.host.nbytes
        stream.copy(self.host, src.host)


class ndarray(StrictArray):  # CuPy's own name
    __slots__ = ()
    __module__ = "cupy"
    __cuda_array_interface__ = property(lambda self: {"shape": self.shape})

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        super().__init__(host)
        ALLOCATORS[-1].__self__.count(host)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    @property
    def data(self) -> Pointer:
        return Pointer(self._host)

    def set(self, value: Any, stream: Stream | None = None) -> None:
        assert value.dtype == self.dtype
        assert value.shape == self.shape
        stream = stream or get_current_stream()
        stream.copy(self._host, value)
        if not is_pinned(value):  # then the copy has left it before the call returns
            stream.synchronize()

    def get(self, stream: Stream | None = None, out: Any = None, blocking: bool = True) -> Any:
        stream, out = stream or get_current_stream(), np.empty_like(self._host) if out is None else out
        stream.copy(out, self._host)
        if blocking or not is_pinned(out):
            stream.synchronize()
        return out


class Pinned(np.ndarray[Any, Any]):
    """Memory of the host that copies may read and write while the host goes on."""


def empty_pinned(shape: Any, dtype: Any = float) -> Pinned:
    Failures.check()
    host = np.empty(shape, dtype)
    host.reshape(-1).view(np.uint8)[:] = 0xFF
    return host.view(Pinned)


def is_pinned(array: Any) -> bool:
    return isinstance(array, Pinned)


class Stream:
    """What is to be done in order. It captures what is done, to do it again: with the same arrays, and numbers as then.

    Copies and graphs that it is given wait, as long as CUDA would allow it: until the host, or another stream that must
    wait for them, does. A copy poisons where it goes as soon as it may begin. So whoever reads there without having
    waited for it reads NaN, and whoever writes what it still reads is found. Other operations are done at once.
    """

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = id(self)
        self.waiting: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        self.done = self.given = 0
        STREAMS.add(self)

    def is_capturing(self) -> bool:
        return strict.RECORD is not None

    def __enter__(self) -> Stream:
        self.finish(self.given)
        CURRENT.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()

    def synchronize(self) -> None:
        strict.synchronise()
        self.finish(self.given)
        Failures.check()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        on, number = event.on, event.number
        if on is not None:
            self.give(lambda: on.done >= number, lambda: on.finish(number))

    def begin_capture(self) -> None:
        Failures.check()
        strict.RECORD = []

    def end_capture(self) -> Graph:
        assert strict.RECORD is not None
        made, strict.RECORD = Graph(strict.RECORD), None
        return made

    # ---- not CuPy's ----

    def give(self, begin: Callable[[], bool], end: Callable[[], None]) -> None:
        """Adds work: `begin` is called, perhaps again, when all before it is done, and returns whether it is done too;
        `end` does it."""
        Failures.check()
        self.given += 1
        self.waiting.append((begin, end))
        for stream in list(STREAMS):
            stream.proceed()

    def proceed(self) -> None:
        """Begins what may begin."""
        while self.waiting and self.waiting[0][0]():
            self.end()

    def end(self) -> None:
        self.waiting.popleft()
        self.done += 1

    def finish(self, number: int) -> None:
        """Does all work up to this number."""
        while self.done < number:
            begin, end = self.waiting[0]
            if not begin():
                end()
            self.end()

    def copy(self, to: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        then: list[bytes] = []

        def begin() -> bool:
            to.reshape(-1).view(np.uint8)[:] = 0xFF
            return False

        def end() -> None:
            if then and source.tobytes() != then[0]:
                raise AssertionError("pinned memory was written while a copy still read it")
            to[...] = source

        if is_pinned(source):
            then.append(source.tobytes())
        self.give(begin, end)


STREAMS: weakref.WeakSet[Stream] = weakref.WeakSet()
CURRENT = [Stream()]


def get_current_stream() -> Stream:
    return CURRENT[-1]


class Event:
    """A place in a stream; one that was never recorded is past."""

    def __init__(self) -> None:
        self.on: Stream | None = None
        self.number = 0

    def record(self, stream: Stream) -> None:
        Failures.check()
        self.on, self.number = stream, stream.given

    def synchronize(self) -> None:
        strict.synchronise()
        if self.on is not None:
            self.on.finish(self.number)
        Failures.check()


class Graph:
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def launch(self, stream: Stream | None = None) -> None:
        (stream or get_current_stream()).give(lambda: False, self.run)

    def run(self) -> None:
        Failures.launched()
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for to, value in zip(*map(_several, (result, again)), strict=True):
                if isinstance(to, np.ndarray):
                    to[...] = value


def _several(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class Communicator:
    """NCCL's, which waits for the others in MPI: two processes need two GPUs, the stand-in's."""

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:
        assert len(commId) == 128
        assert all(type(one) is int for one in commId)
        self.comm: Any = None
        self.recorded: weakref.WeakSet[Callable[[], None]] = weakref.WeakSet()  # what some graph still has of it
        if ndev > 1:
            from mpi4py import MPI

            self.comm = MPI.COMM_WORLD.Dup()

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        assert op == nccl.NCCL_SUM
        self.captured(lambda: self.sum(memory(sendbuf, count, datatype), memory(recvbuf, count, datatype)), stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        size = 1 if self.comm is None else self.comm.Get_size()
        source, to = memory(sendbuf, count, datatype), memory(recvbuf, size * count, datatype)
        self.captured(lambda: to.__setitem__(..., self.gathered(source).ravel()), stream)

    def destroy(self) -> None:
        assert not self.recorded, "NCCL would wait for ever: there is a graph in which it has a part"

    def abort(self) -> None:
        """Waits for graphs as NCCL does, but not where nothing else could end them."""
        if threading.current_thread() is threading.main_thread():
            self.destroy()
        while self.recorded:
            time.sleep(0.01)

    # ---- not NCCL's ----

    def captured(self, work: Callable[[], None], stream: int) -> None:
        Failures.check()
        assert stream == get_current_stream().ptr
        work()
        if strict.RECORD is not None:
            strict.RECORD.append((work, (), {}, None))
            self.recorded.add(work)

    def gathered(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        every = np.empty((1 if self.comm is None else self.comm.Get_size(), *x.shape), x.dtype)
        every[0] = x
        if self.comm is not None:
            self.comm.Allgather(x.copy(), every)
        return every

    def sum(self, source: np.ndarray[Any, Any], to: np.ndarray[Any, Any]) -> None:
        to[...] = self.gathered(source).sum(0)


nccl = SimpleNamespace(
    available=True,
    NcclCommunicator=Communicator,
    get_unique_id=lambda: tuple(range(-64, 64)),
    NCCL_SUM=0,
    NCCL_UINT8=1,
    NCCL_FLOAT32=7,
    NCCL_FLOAT64=8,
)


def memory(address: int, count: int, datatype: int) -> np.ndarray[Any, Any]:
    """What is at an address, which the caller keeps."""
    kinds = {nccl.NCCL_UINT8: ctypes.c_uint8, nccl.NCCL_FLOAT32: ctypes.c_float, nccl.NCCL_FLOAT64: ctypes.c_double}
    kind = kinds[datatype]
    return np.ctypeslib.as_array((kind * count).from_address(address))


class CUDARuntimeError(RuntimeError):
    """What CUDA says when there is no memory; CuPy's has a number, too."""


def new_memory(size: int) -> Memory:
    """Memory of the GPU that nobody has."""
    Failures.check()
    left = Failures.bytes if recording() is None else Failures.tried_bytes
    left = left if strict.RECORD is None else Failures.captured_bytes
    if left is not None and size > left:
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
    return Memory(size)


UNIT = 512
"""CuPy's pools give memory in multiples of so many bytes."""


class MemoryPool:
    """Its memory is new each time; arrays of a graph are kept by the calls that use them. As CuPy's, it frees what it
    keeps for later if there is no more.

    It counts the bytes of its arrays that somebody has, and what CuPy's would hold for them: the most that they were,
    as memory that is free again serves later arrays. What is captured was counted when it was tried.
    """

    every: ClassVar[weakref.WeakSet[MemoryPool]] = weakref.WeakSet()
    most = 0
    """The most bytes of all pools' arrays together."""

    def __init__(self, allocator: Any = new_memory) -> None:
        self.allocator = allocator
        self.used = self.total = 0
        self.counted: set[int] = set()
        MemoryPool.every.add(self)

    def count(self, host: np.ndarray[Any, Any]) -> None:
        owner = host if host.base is None else host.base
        if strict.RECORD is not None or not isinstance(owner, np.ndarray) or not owner.nbytes:
            return
        if not any(id(owner) in pool.counted for pool in MemoryPool.every):
            size = -(-owner.nbytes // UNIT) * UNIT
            self.counted.add(id(owner))
            self.used += size
            self.total = max(self.total, self.used)
            MemoryPool.most = max(MemoryPool.most, sum(pool.used for pool in MemoryPool.every))
            weakref.finalize(owner, self.free, id(owner), size)

    def free(self, owner: int, size: int) -> None:
        self.counted.discard(owner)
        self.used -= size

    def total_bytes(self) -> int:
        return self.total

    def malloc(self, size: int) -> Memory:
        try:
            memory: Memory = self.allocator(size)
        except CUDARuntimeError:
            self.free_all_blocks()
            try:
                memory = self.allocator(size)
            except CUDARuntimeError as error:
                raise MemoryError(f"Out of memory allocating {size:,} bytes") from error
        self.count(memory.array._host)
        return memory

    def free_all_blocks(self) -> None:
        assert strict.RECORD is None, "memory of the graph that is being captured was freed"
        self.total = self.used


DEFAULT_POOL = MemoryPool()
ALLOCATORS: list[Any] = [DEFAULT_POOL.malloc]
"""The current allocator is the last."""


def alloc(size: int) -> Memory:
    return ALLOCATORS[-1](size)  # type: ignore[no-any-return]


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    ALLOCATORS.append(allocator)
    try:
        yield
    finally:
        ALLOCATORS.pop()


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
    memory = alloc(math.prod(shape) * np.dtype(dtype).itemsize)
    return ndarray(np.ndarray(shape, dtype, memory.array._host))  # of NaN


def asarray(value: Any) -> ndarray:
    if strict.RECORD is not None and not isinstance(value, ndarray):
        strict.synchronise()
    return value if isinstance(value, ndarray) else ndarray(np.array(value, order="C"))


class Failures:
    """What goes wrong: the number of GPUs; the bytes that can still be had, those by work that is tried before it is
    captured, and those by work that is captured; the graph launch, counted from 1, that fails when the host has gone
    on. From then on every call fails."""

    gpus: int | Exception = 1
    bytes: int | None = None
    tried_bytes: int | None = None
    captured_bytes: int | None = None
    at_launch = 0
    launches = 0
    lost = False

    @classmethod
    def reset(cls) -> None:
        cls.gpus, cls.at_launch, cls.launches, cls.lost = 1, 0, 0, False
        cls.bytes = cls.tried_bytes = cls.captured_bytes = None

    @classmethod
    def check(cls) -> None:
        if cls.lost:
            raise RuntimeError("cudaErrorLaunchFailure: unspecified launch failure")

    @classmethod
    def launched(cls) -> None:
        cls.launches += 1
        cls.lost = cls.lost or cls.launches == cls.at_launch
        cls.check()


def get_device_count() -> int:
    if isinstance(Failures.gpus, Exception):
        raise Failures.gpus
    return Failures.gpus


def module() -> ModuleType:
    made = ModuleType("cupy")
    runtime = SimpleNamespace(
        getDeviceCount=get_device_count,
        getDevice=lambda: 0,
        setDevice=lambda number: None,
        deviceGetPCIBusId=lambda number: f"0000:{number:02X}:00.0",
        getDeviceProperties=lambda number: {"name": b"harness", "major": 9, "minor": 0},
        driverGetVersion=lambda: 13000,
        memGetInfo=lambda: (1 << 30, 2 << 30),
        CUDARuntimeError=CUDARuntimeError,
    )
    made.__dict__.update(
        ndarray=ndarray,
        empty=empty,
        asarray=asarray,
        asnumpy=lambda array: array.get(),
        from_dlpack=lambda value: value.__dlpack__(),
        get_default_memory_pool=lambda: DEFAULT_POOL,
        __version__="14.2.0",
        cuda=ModuleType("cupy.cuda"),
    )
    made.cuda.__dict__.update(
        alloc=alloc,
        runtime=runtime,
        get_current_stream=get_current_stream,
        Stream=Stream,
        Event=Event,
        MemoryPool=MemoryPool,
        Memory=new_memory,
        MemoryPointer=lambda memory, offset: memory,
        using_allocator=using_allocator,
        set_allocator=lambda allocator: None,
        nccl=nccl,
    )
    return made


@contextlib.contextmanager
def gpu(**failures: Any) -> Iterator[None]:
    """Within the block, there is a GPU: the harness."""
    names = ("cupy", "cupy.cuda", "cupyx", "rotrnn._cuda")
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
    cupyx = ModuleType("cupyx")
    cupyx.__dict__.update(empty_pinned=empty_pinned)
    cupy = module()
    sys.modules.update({"cupy": cupy, "cupy.cuda": cupy.cuda, "cupyx": cupyx, "rotrnn._cuda": kernels})
    own = rotrnn.__dict__.get("_cuda")
    rotrnn._cuda = kernels  # type: ignore[attr-defined]
    known = dict(devices._DEVICES)
    cuda._made.cache_clear()
    precisions._modules.cache_clear()
    for name, value in failures.items():
        setattr(Failures, name, value)
    try:
        yield
    finally:
        Failures.reset()
        strict.RECORD = None
        cuda._made.cache_clear()
        precisions._modules.cache_clear()
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
