"""rotrnn on a GPU: CuPy's arrays as a device of every op, layer and model.

>>> import cupy, rotrnn                                    # doctest: +SKIP
>>> h = rotrnn.diagonal_scan(cupy.asarray(a), cupy.asarray(x))   # doctest: +SKIP

Ops run where their arrays are. Arrays of other libraries on a GPU (PyTorch, JAX, anything with ``__dlpack__`` or
``__cuda_array_interface__``) are read without a copy; results are CuPy arrays, which these libraries read in the same
way. Kernels run on CuPy's current stream and do not wait for it.

Nothing here is imported before it is needed: the package works without CuPy, without a driver and without a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.ops import device as devices
from rotrnn.ops.device import Array, Device
from rotrnn.ops.recording import NotRecordable, Recording, recorded, recording

LEAST_GPU = (8, 0)
"""Compute capability of the oldest GPU that the kernels are built for (setup.py)."""

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


@functools.cache
def _load() -> Device:
    try:
        from rotrnn import _cuda
    except ImportError as error:
        raise DeviceError(
            "rotrnn was built without its CUDA kernels: install a wheel that has them, or build it where nvcc is"
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
        cupy.asnumpy,
        view=functools.partial(_view, cupy),
        tile=1,
        rounds=lambda: _cuda.precision() == "bf16",
    )
    _cuda.connect(made, cupy.cuda.alloc, lambda: cupy.cuda.get_current_stream().ptr, _blas())
    devices.register(made)
    return made


def _asarray(cupy: Any, value: Any) -> Any:
    """Returns a copy on the GPU of a host array; within a recording, of equal arrays the same copy."""
    one = recording()
    if one is None or isinstance(value, cupy.ndarray):
        return cupy.asarray(value)
    return one.constant(np.asarray(value), cupy.asarray)


class Recorded:
    """Work on the GPU that was recorded as one CUDA graph: `repeat` does it again, with what the arrays that it reads
    hold then. Its memory is its own, and stays.

    Parameters
    ----------
    work : callable
        Does the work, and returns an array on the GPU. It is called three times: twice to find out what memory and
        which constants it takes, and once to be recorded, which does nothing.
    counter : array
        An int64 on the GPU that is added to the step of random numbers.

    Raises
    ------
    NotRecordable
        The work waits for the GPU, or for numbers that change.
    """

    def __init__(self, work: Callable[[], Any], counter: Array) -> None:
        device()
        import cupy

        from rotrnn import _cuda

        self.counter, self.belongings = counter, Recording()
        self.stream, self.pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        cupy.cuda.get_current_stream().synchronize()
        _cuda.use_counter(counter)
        try:
            with cupy.cuda.using_allocator(self.pool.malloc), self.stream, recorded(self.belongings):
                for _ in range(2):
                    work()
                    self.belongings.complete = True
                self.stream.synchronize()
                self.stream.begin_capture()
                try:
                    self.result = work()
                    self.graph = self.stream.end_capture()
                except Exception as error:
                    with suppress(Exception):  # the capture is broken
                        self.stream.end_capture()
                    raise NotRecordable(str(error)) from error
        finally:
            _cuda.use_counter(None)
            self.stream.synchronize()

    def repeat(self, *inputs: tuple[Any, Any]) -> npt.NDArray[Any]:
        """Does the work again, with pairs of (an array that it reads, its numbers on the host). Returns a copy of its
        result on the host, for which the GPU is waited for."""
        import cupy

        cupy.cuda.get_current_stream().synchronize()  # what the work reads may be written there
        for array, value in inputs:
            array.set(np.ascontiguousarray(value, array.dtype), stream=self.stream)
        self.graph.launch(stream=self.stream)
        found: npt.NDArray[Any] = self.result.get(stream=self.stream)
        return found


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


def describe() -> str:
    """Returns the name of the current GPU and the versions of CUDA's driver and of CuPy."""
    device()
    import cupy

    number = cupy.cuda.runtime.getDevice()
    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    version = cupy.cuda.runtime.driverGetVersion()
    text = name.decode() if isinstance(name, bytes) else str(name)
    return f"{text}, CUDA {version // 1000}.{version % 1000 // 10} and CuPy {cupy.__version__}"
