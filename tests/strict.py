"""A test device on the CPU: arrays that raise on every silent conversion, with the CPU's kernels.

A `StrictArray` is no NumPy array and never becomes one. `numpy.asarray` of it, arithmetic or a NumPy function with it
and a plain array, and a plain array given to a kernel are errors, as they are on a GPU (CuPy), or would be slow there.
Its numbers reach the host by `float`, `int`, `bool`, `item`, `tolist`, `nonzero` and indexing by a mask alone. Each
would wait for a GPU: these synchronisations are counted by the function of the package that asks for them.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

import rotrnn
from rotrnn.devices import cuda
from rotrnn.devices.device import HOST, Device, register
from rotrnn.devices.recording import RecordedLengths
from rotrnn.ops.boundary import CheckedLengths

PACKAGE = str(Path(rotrnn.__file__).parent)
SYNCHRONISATIONS: Counter[str] = Counter()


class SilentConversion(TypeError):
    """A NumPy array and a StrictArray were mixed, or one would have been converted to the other."""


def synchronise() -> None:
    """Counts a synchronisation, by the innermost line of the package that asked for it. None may be captured."""
    if RECORD is not None:
        raise RuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    where = "the caller"
    if frame is not None:
        path = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
        where = f"{path}: {frame.f_code.co_qualname}"
    SYNCHRONISATIONS[where] += 1


def unwrap(value: Any) -> Any:
    """Returns (nested) arguments with every StrictArray replaced by its host array; raises for plain NumPy arrays."""
    if isinstance(value, StrictArray):
        return value._host
    if isinstance(value, CheckedLengths | RecordedLengths):
        return value.on(STRICT)._host  # type: ignore[attr-defined]
    if isinstance(value, np.ndarray):
        raise SilentConversion(f"a plain array of shape {value.shape} and dtype {value.dtype} among StrictArrays")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(unwrap, value))
    if isinstance(value, list | tuple):
        return type(value)(map(unwrap, value))
    if isinstance(value, dict):
        return {key: unwrap(one) for key, one in value.items()}
    return value


RECORD: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] | None = None
"""While a stand-in for a GPU captures work (fake_cupy.py): what was called with which host arrays, and its result."""


def perform(kind: type[StrictArray], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function with host arrays. Returns its result with arrays of this kind."""
    name = getattr(function, "__name__", "")
    if "initial" in kwargs and name in ("max", "min", "amax", "amin"):
        raise TypeError(f"CuPy's {name} has no argument initial")
    if "device" in kwargs:
        raise TypeError(f"CuPy's {name} has no argument device, which NumPy passes on")
    if "out" in kwargs and name in ("fft", "ifft", "rfft", "irfft"):
        raise TypeError(f"CuPy's {name} has no argument out")
    if any(isinstance(one, np.ndarray) and one.dtype in (np.longdouble, np.clongdouble) for one in args):
        raise TypeError("CuPy has no extended precision")
    if RECORD is not None and name in ("einsum", "matmul", "dot", "tensordot", "inner", "vdot"):
        raise RuntimeError(f"CuPy's {name} calls cuBLAS, which it refuses while the stream is capturing")
    if RECORD is not None and name in ("concatenate", "stack") and len(args[0]) > 8:
        raise RuntimeError(f"CuPy's {name} of more than 8 arrays copies from the host, which cannot be captured")
    result = function(*args, **kwargs)
    if isinstance(result, np.generic):
        result = np.array(result)
    if RECORD is not None:
        RECORD.append((function, args, kwargs, result))
    return wrap(result, kind)


def wrap(value: Any, kind: type[StrictArray]) -> Any:
    """The inverse of `unwrap`, for results, with arrays of this kind. NumPy scalars stay on the device, too."""
    if isinstance(value, np.ndarray | np.generic):
        return kind(np.asarray(value))
    if isinstance(value, list | tuple):
        return type(value)(wrap(one, kind) for one in value)
    return value


class StrictArray(NDArrayOperatorsMixin):
    """An array of the test device; see the docstring of the module."""

    __slots__ = ("_host",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self._host = host

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise SilentConversion(f"a StrictArray of shape {self.shape} was about to become a plain array")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        host = {key: unwrap(one) for key, one in kwargs.items()}
        return perform(type(self), getattr(ufunc, method), *map(unwrap, inputs), **host)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in (np.nonzero, np.flatnonzero, np.argwhere, np.unique, np.array_equal, np.allclose):
            synchronise()
        return perform(type(self), function, *unwrap(args), **unwrap(kwargs))

    # ---- methods that wait for the device ----

    def _number(self, kind: Any) -> Any:
        synchronise()
        return kind(self._host)

    def __float__(self) -> float:
        return float(self._number(float))

    def __int__(self) -> int:
        return int(self._number(int))

    def __index__(self) -> int:
        return int(self._number(int))

    def __bool__(self) -> bool:
        return bool(self._number(bool))

    def __complex__(self) -> complex:
        return complex(self._number(complex))

    def item(self, *args: Any) -> Any:
        synchronise()
        return self._host.item(*args)

    def tolist(self) -> Any:
        synchronise()
        return self._host.tolist()

    def on_host(self) -> Any:
        synchronise()
        return self._host.copy()

    def nonzero(self) -> Any:
        synchronise()
        return wrap(self._host.nonzero(), type(self))

    # ---- methods that do not wait ----

    @property
    def data(self) -> Address:
        return Address(self._host)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=0)

    @property
    def flags(self) -> Flags:
        return Flags(self._host)

    def _key(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(one, StrictArray) and one.dtype == bool for one in keys):
            synchronise()  # only the device knows the number of selected elements
        return unwrap(key)

    def __getitem__(self, key: Any) -> Any:
        return perform(type(self), operator.getitem, self._host, self._key(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        perform(
            type(self), operator.setitem, self._host, unwrap(key), unwrap(value)
        )  # a mask is no wait here: nothing depends on how many there are

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[Any]:
        return (wrap(one, type(self)) for one in self._host)

    def __repr__(self) -> str:
        return f"StrictArray(shape={self.shape}, dtype={self.dtype})"


def _passed_on(name: str) -> Any:
    return property(lambda self: getattr(self._host, name))


def _wrapped(name: str) -> Any:
    def assign(self: StrictArray, value: Any) -> None:
        perform(type(self), setattr, self._host, name, unwrap(value))

    return property(lambda self: wrap(getattr(self._host, name), type(self)), assign)


def _method(name: str) -> Any:
    def call(self: StrictArray, *args: Any, **kwargs: Any) -> Any:
        return perform(type(self), getattr(type(self._host), name), self._host, *unwrap(args), **unwrap(kwargs))

    return call


for _name in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides"):
    setattr(StrictArray, _name, _passed_on(_name))
for _name in ("T", "real", "imag", "flat"):
    setattr(StrictArray, _name, _wrapped(_name))
for _name in (
    *("all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "copy", "cumprod", "cumsum", "diagonal"),
    *("dot", "fill", "max", "mean", "min", "prod", "ravel", "repeat", "reshape", "squeeze", "sum", "swapaxes", "take"),
    *("trace", "transpose", "var", "view"),
):
    setattr(StrictArray, _name, _method(_name))


class Address:
    """Where an array's numbers are, as CuPy's arrays say it: an empty one has no address."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.ptr = host.__array_interface__["data"][0] if host.size else 0


class Flags:
    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.c_contiguous, self.f_contiguous = host.flags.c_contiguous, host.flags.f_contiguous


class StrictKernels:
    """The CPU's kernels, which accept only StrictArrays; or those of another module that takes them as they are."""

    other: Any = None
    precision: Any = None  # of that module

    def __getattr__(self, name: str) -> Any:
        if self.other is not None:
            return getattr(self.other, name)
        kernel = getattr(HOST.kernels, name)
        return lambda **arguments: kernel(**{key: unwrap(value) for key, value in arguments.items()})


def to_device(value: Any) -> Any:
    """Returns nested params, or an array, on the test device."""
    if isinstance(value, dict):
        return {key: to_device(one) for key, one in value.items()}
    return StrictArray(np.array(value)) if isinstance(value, np.ndarray) else value


def to_host(value: Any) -> Any:
    """The inverse of `to_device`, for use in tests; it does not count as a synchronisation."""
    if isinstance(value, dict):
        return {key: to_host(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(*map(to_host, value)) if hasattr(value, "_fields") else type(value)(map(to_host, value))
    return value._host if isinstance(value, StrictArray) else value


def poisoned(shape: tuple[int, ...], dtype: Any) -> StrictArray:
    """Returns a new array whose numbers are NaN, or -1: uninitialised memory may hold anything."""
    host = np.empty(shape, dtype)
    host.reshape(-1).view(np.uint8)[:] = 0xFF
    return StrictArray(host)


KERNELS = StrictKernels()
STRICT = Device(
    "the strict device",
    StrictArray,
    KERNELS,  # type: ignore[arg-type]
    poisoned,  # type: ignore[arg-type]
    lambda array: StrictArray(np.array(array)),  # type: ignore[return-value,arg-type]
    lambda array: array.on_host(),  # type: ignore[attr-defined]
    tile=1,  # as a GPU's
    keepable=lambda: cuda.KEEPABLE[:1] if KERNELS.precision is None else cuda.KEEPABLE,  # the CPU's, or CUDA's kernels
    rounds=lambda: KERNELS.precision is not None and KERNELS.precision() == "bf16",
)
register(STRICT)


@contextlib.contextmanager
def kernels_of(module: Any) -> Iterator[None]:
    """Within the block, the strict device has the kernels of this module instead of the CPU's."""
    before = KERNELS.other, KERNELS.precision
    KERNELS.other, KERNELS.precision = module.kernels, getattr(module, "precision", None)
    try:
        yield
    finally:
        KERNELS.other, KERNELS.precision = before


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the synchronisations within the block."""
    SYNCHRONISATIONS.clear()
    yield SYNCHRONISATIONS
