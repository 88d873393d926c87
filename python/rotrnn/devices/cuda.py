"""GPUs: CuPy's arrays as a device, and work on it that is recorded. `rotrnn.cuda` has the public names.

Neither CuPy nor the kernels are imported before they are needed.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices import device as devices
from rotrnn.devices.device import Array, Device
from rotrnn.devices.recording import Drive, NotRecordable, Recording, recorded, recording

LEAST_GPU = (8, 0)
"""Compute capability of the oldest GPU that the kernels are built for (setup.py)."""

KEEPABLE = ("layer", "gated", "normed")
"""Arrays that a residual block can keep on a GPU (`rotrnn.ops.block.KEEPABLE`)."""

GPU_ARRAYS = (2, 13)
"""DLPack's kinds of device whose memory is a CUDA GPU's: kDLCUDA and kDLCUDAManaged."""


class DeviceError(RuntimeError):
    """There is no GPU that can be used, or it has failed; the message says why."""


def why_not() -> str | None:
    """Returns the reason why there is no GPU to compute on, or None if there is one."""
    try:
        _load()
    except DeviceError as error:
        return str(error)
    return None


def available() -> bool:
    """Returns whether arrays on a GPU can be used."""
    return why_not() is None


def device() -> Device:
    """Returns the device of CuPy's arrays. DeviceError, with the reason, if it cannot be used here."""
    return _load()


_LOADING = threading.RLock()


def _load() -> Device:
    with _LOADING:  # threads that made a device each would have arrays of two devices
        return _made()


@functools.cache
def _made() -> Device:
    try:
        from rotrnn import _cuda
    except ImportError as error:
        raise DeviceError(
            "rotrnn was built without its CUDA kernels: ROTRNN_CUDA=1 pip install ... builds them, by nvcc"
        ) from error
    try:
        import cupy
    except ImportError as error:
        raise DeviceError("a GPU is used through CuPy, which is not installed: pip install rotrnn[cuda13]") from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy has a class of its own for each library
        raise DeviceError(f"CUDA cannot be used: {error}") from error
    if not count:
        raise DeviceError("there is no CUDA GPU")
    found = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    if (found["major"], found["minor"]) < LEAST_GPU:
        raise DeviceError(f"the GPU has compute capability {found['major']}.{found['minor']}, expected at least 8.0")
    made = Device(
        "the GPU",
        cupy.ndarray,
        _cuda.kernels,
        lambda shape, dtype: cupy.empty(shape, dtype),
        functools.partial(_asarray, cupy),
        functools.partial(_to_host, cupy),
        view=functools.partial(_view, cupy),
        here=lambda: (cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr),
        tile=1,
        keepable=lambda: KEEPABLE,
        rounds=lambda: _cuda.precision() == "bf16",
        held=lambda: cupy.get_default_memory_pool().total_bytes(),
    )
    try:
        _cuda.connect(made, cupy.cuda.alloc, lambda: cupy.cuda.get_current_stream().ptr, _blas())
    except RuntimeError as error:  # built by a CUDA newer than the driver, or for other GPUs
        raise DeviceError(f"rotrnn's CUDA kernels do not run on this GPU: {error}") from error
    devices.register(made)
    return made


def _asarray(cupy: Any, value: Any) -> Any:
    """Returns a copy on the GPU of a host array; within a recording, of equal arrays the same copy."""
    if isinstance(value, cupy.ndarray):
        return cupy.asarray(value)
    one, copy = recording(), functools.partial(_copied, cupy)
    return copy(value) if one is None else one.constant(np.asarray(value), copy)


def _copied(cupy: Any, value: Any) -> Any:
    _refuse_capture(cupy, "an array of the host would be copied to the GPU")
    return cupy.asarray(value)


def _to_host(cupy: Any, array: Any) -> Any:
    """Returns a copy on the host of an array on the GPU."""
    _refuse_capture(cupy, "numbers on the GPU would be read")
    return cupy.asnumpy(array)


def _refuse_capture(cupy: Any, what: str) -> None:
    """Raises DeviceError if the current stream is being captured. CUDA would record a copy between the GPU and memory
    of the host that is soon another's."""
    if cupy.cuda.get_current_stream().is_capturing():
        raise DeviceError(f"the current stream is being captured, and {what}, which cannot be repeated")


class Piece(NamedTuple):
    """A part of recorded work: a CUDA graph. The graph of a loop is repeated by `drive`, which looks at `seen`."""

    graph: Any
    seen: Any = None
    drive: Drive | None = None


class Recorded:
    """Work on the GPU that was recorded as one CUDA graph: `repeat` runs it again, on the current contents of the
    arrays that it reads. It has its own memory, which stays.

    Work with loops whose length the host decides (`Recording.loop`) is recorded as several graphs: before a loop, its
    body, and after it.

    Parameters
    ----------
    work : callable
        Does the work, and returns an array on the GPU. It is called three times: twice to find its memory and
        constants, and once to be recorded, which does nothing.
    counter : array
        An int64 on the GPU that is added to the step of random numbers.
    stream : stream, optional
        Where the work is done; a new one if not given.

    Raises
    ------
    NotRecordable
        The work waits for the GPU, or for numbers that change.
    """

    def __init__(self, work: Callable[[], Any], counter: Array, stream: Any = None) -> None:
        device()
        import cupy

        from rotrnn import _cuda

        self.counter, self.belongings = counter, Recording()
        self.pieces: list[Piece] = []
        self.stream = cupy.cuda.Stream(non_blocking=True) if stream is None else stream
        self.pool = cupy.cuda.MemoryPool(self._allocate)
        cupy.cuda.get_current_stream().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()  # this pool cannot have them
        _cuda.use_counter(counter)
        try:
            with cupy.cuda.using_allocator(self.pool.malloc), self.stream, recorded(self.belongings):
                for _ in range(2):
                    work()
                    self.belongings.complete = True
                self.stream.synchronize()
                self.belongings.cut = self._cut
                self.stream.begin_capture()
                try:
                    self.result = work()
                    self.pieces.append(Piece(self.stream.end_capture()))
                except BaseException as error:  # Ctrl-C, too, must not leave the stream capturing
                    with suppress(Exception):  # the capture is broken
                        self.stream.end_capture()
                    self.close()
                    if isinstance(error, Exception):
                        raise NotRecordable(str(error)) from error
                    raise
        finally:
            _cuda.use_counter(None)
            self.stream.synchronize()

    def _allocate(self, size: int) -> Any:
        """Returns new memory for the pool. If there is none, the pool frees unused memory and tries again; but a graph
        uses memory that was freed while it was recorded."""
        import cupy

        try:
            return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if self.belongings.cut is None:
                raise
            raise MemoryError(f"the GPU gave no memory while work was recorded: {error}") from error

    def _cut(self, body: Callable[[], Any], drive: Drive) -> None:
        """Ends the graph before a loop, records the loop's body, and begins the graph after it."""
        self.pieces.append(Piece(self.stream.end_capture()))
        self.stream.begin_capture()
        seen = body()
        self.pieces.append(Piece(self.stream.end_capture(), seen, drive))
        self.stream.begin_capture()

    def repeat(self, *inputs: tuple[Any, Any]) -> npt.NDArray[Any]:
        """Does the work again, with pairs of (an array that it reads, its numbers on the host). Returns a copy of its
        result on the host, for which the GPU is waited for."""
        import cupy

        cupy.cuda.get_current_stream().synchronize()  # what the work reads may be written there
        step = 0
        for array, value in inputs:
            array.set(np.ascontiguousarray(value, array.dtype), stream=self.stream)
            step = int(value[0]) if array is self.counter else step
        self.launch(step)
        return self.result.get(stream=self.stream)

    def launch(self, step: int = 0) -> None:
        """Does the work again, in order on its stream, with the arrays' current contents; does not wait for it if it
        has no loop. `step` is the counter's number."""
        for piece in self.pieces:
            if piece.drive is None:
                piece.graph.launch(stream=self.stream)
            else:
                piece.drive(functools.partial(self._again, piece), step)

    def held(self) -> int:
        """Returns the bytes of its own memory."""
        return int(self.pool.total_bytes())

    def close(self) -> None:
        """Drops the graphs, so nothing can be launched. Its memory stays: to free it would wait for the
        GPU."""
        self.pieces.clear()

    def _again(self, piece: Piece) -> npt.NDArray[Any]:
        """Repeats the body of a loop. Waits for the GPU, and returns the value that the host looks at."""
        piece.graph.launch(stream=self.stream)
        return piece.seen.get(stream=self.stream)


def _blas() -> str:
    """Returns the path of cuBLAS, where CuPy finds it."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return str(load_nvidia_dynamic_lib("cublas").abs_path or "libcublas.so.13")
    except Exception:  # an error of its own if it is not there: then the system's loader looks for it
        return "libcublas.so.13"


def _view(cupy: Any, value: Any) -> Any:
    """Returns a GPU array of another library as a CuPy array of the same memory."""
    if hasattr(value, "__dlpack__"):
        return cupy.from_dlpack(value)
    return cupy.asarray(value)


def is_on_gpu(value: object) -> bool:
    """Returns whether a value is an array on a GPU: CuPy's, or one of another library."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "cupy":
        return hasattr(kind, "__cuda_array_interface__")
    if hasattr(kind, "__dlpack_device__"):
        return value.__dlpack_device__()[0] in GPU_ARRAYS  # type: ignore[attr-defined]
    return hasattr(kind, "__cuda_array_interface__")


def about() -> str:
    """Returns a line on kernels, CuPy, and the GPU or the reason why none is used."""
    reason = why_not()
    if reason is None:
        return describe()
    found = []
    for name, package in (("rotrnn._cuda", "kernels"), ("cupy", "CuPy")):
        try:
            version = getattr(importlib.import_module(name), "__version__", "built")
        except ImportError:
            version = "missing"
        found.append(f"{package} {version}")
    return f"not used ({', '.join(found)}): {reason}"


def describe() -> str:
    """Returns the name of the current GPU and the versions of CUDA's driver and of CuPy."""
    device()
    import cupy

    number = cupy.cuda.runtime.getDevice()
    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    version = cupy.cuda.runtime.driverGetVersion()
    text = name.decode() if isinstance(name, bytes) else str(name)
    return f"{text}, CUDA {version // 1000}.{version % 1000 // 10} and CuPy {cupy.__version__}"


devices.register_later("cuda", is_on_gpu, device)
