"""Devices: their array types and their kernels.

An op looks up the device once, from the type of its array arguments (`rotrnn.ops.boundary.Boundary`), and calls the
kernels of this device. Other arithmetic goes through NumPy's dispatch (NEP 13, NEP 18). The CPU is always there; a GPU
(`rotrnn.devices.cuda`) is made when an array on it is first met; `register` adds another device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu

if TYPE_CHECKING:
    from rotrnn._cpu import Kernels

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Device:
    """A type of arrays, and the functions that work on them.

    Parameters
    ----------
    name : str
        Name for messages, such as "the CPU".
    array_type : type
        The exact type of its arrays (not a base class).
    kernels : Kernels
        One function per kernel of csrc/kernels.list, which takes such arrays by keyword. Lengths are passed as
        `rotrnn.ops.boundary.CheckedLengths` on the host; another device uses ``lengths.on(device)``, their copy.
    empty : callable
        ``empty(shape, dtype)`` returns a new uninitialised array.
    asarray : callable
        Converts a NumPy array to an array on this device.
    to_host : callable
        The inverse, which waits for the device.
    view : callable
        Returns an array of another library on this device as an `array_type` with the same memory.
    here : callable
        Returns the current GPU and stream, to which a copy on this device belongs. Another stream does not wait for it.
    tile : int
        Number of steps between two states that the fused layers save for backward (csrc/kernels/block.c). The CPU's are
        a multiple of the matrix kernel's rows, and small enough for the L2 cache; 1 saves every state.
    keepable : callable
        Returns the names of the arrays that a residual block can keep for backward here (`rotrnn.ops.block.KEEPABLE`).
    rounds : callable
        Whether float32 calls of this thread save states and outputs of layers in bfloat16: in the precision "bf16".
    held : callable
        Returns the bytes of a GPU's memory that freed arrays have left for later arrays; 0 on the CPU.
    """

    name: str
    array_type: type
    kernels: Kernels
    empty: Callable[[tuple[int, ...], npt.DTypeLike], Array]
    asarray: Callable[[Array], Array]
    to_host: Callable[[Array], Array]
    view: Callable[[Any], Array] = lambda value: value
    here: Callable[[], Any] = lambda: None
    tile: int = 96
    keepable: Callable[[], tuple[str, ...]] = lambda: ("layer", "states", "products")
    rounds: Callable[[], bool] = lambda: False
    held: Callable[[], int] = lambda: 0


HOST = Device(
    "the CPU", np.ndarray, _cpu.kernels, _cpu.empty, np.asarray, np.asarray, rounds=lambda: _cpu.precision() == "bf16"
)

_DEVICES: dict[type, Device] = {np.ndarray: HOST}


class _Later(NamedTuple):
    """A device that is not made before it is needed."""

    owns: Callable[[object], bool]
    make: Callable[[], Device]


_LATER: dict[str, _Later] = {}
_PLAIN = (np.ndarray, np.generic, list, tuple, dict, int, float, complex, str, type(None))
"""Types that are never arrays on a GPU."""


def register(device: Device) -> None:
    """Adds a device: from now on, ops run on `device` if their arrays are of type ``device.array_type``."""
    _DEVICES[device.array_type] = device


def register_later(name: str, owns: Callable[[object], bool], make: Callable[[], Device]) -> None:
    """Adds a device that `make` registers and returns, when it is asked for by name, or when a value is met that it
    `owns`."""
    _LATER[name] = _Later(owns, make)


def device_of(value: object) -> Device:
    """Returns the device of an array. It is the CPU for values that are not arrays (lists, numbers) and for subclasses
    of NumPy arrays."""
    found = _DEVICES.get(type(value))
    if found is not None:
        return found
    if isinstance(value, _PLAIN):
        return HOST
    return next((one.make() for one in _LATER.values() if one.owns(value)), HOST)


def named(call: str, name: str) -> Device:
    """Returns the device "cpu" or "cuda", the argument `device` of a call. `rotrnn.cuda.DeviceError`, with the
    reason, if there is no GPU that can be used."""
    if name == "cpu":
        return HOST
    if name not in _LATER:
        raise ValueError(f"{call}: device is {name!r:.80}, expected {' or '.join(['cpu', *_LATER])}")
    return _LATER[name].make()


def is_array(value: object) -> TypeGuard[Array]:
    """Returns whether `value` is an array of a registered device. A masked array is not: its mask would be ignored."""
    if type(value) in _DEVICES or isinstance(value, np.ndarray):
        return not isinstance(value, np.ma.MaskedArray)
    return type(value) is device_of(value).array_type  # a GPU's, when the first is met


def beside(array: Array, like: Array) -> Array:
    """Returns a NumPy array on the device of `like`: itself on the CPU, elsewhere a copy."""
    return device_of(like).asarray(array)


def to_host(array: Array) -> Array:
    """Returns an array as a NumPy array: itself on the CPU; elsewhere a copy, for which the device is waited for."""
    return device_of(array).to_host(array)


def einsum(spec: str, x: Array, y: Array) -> Array:
    """Returns ``numpy.einsum(spec, x, y)``.

    On another device than the CPU it is a product and a sum, because CuPy's own may call libraries that cannot be
    recorded in a CUDA graph.
    """
    if device_of(x) is HOST:
        return np.einsum(spec, x, y)
    inputs, out = spec.split("->")
    letters = out + "".join(sorted(set(inputs) - set(out) - {","}))

    def spread(array: Array, names: str) -> Array:
        """Returns the array with an axis for every letter, of size 1 where it has none."""
        ordered = array.transpose([names.index(one) for one in letters if one in names])
        sizes = iter(ordered.shape)
        return ordered.reshape([next(sizes) if one in names else 1 for one in letters])

    left, right = inputs.split(",")
    product: Array = spread(x, left) * spread(y, right)
    return product.sum(tuple(range(len(out), len(letters))))


def is_writeable(x: Array) -> bool:
    """Returns whether an array may be written; arrays of devices other than the CPU always may."""
    return bool(getattr(x.flags, "writeable", True))


def is_plain(x: Array) -> bool:
    """Returns whether an array is C-contiguous and aligned, as a kernel needs it: on a GPU, where a complex number is
    read at once, to the size of its numbers."""
    aligned = getattr(x.flags, "aligned", None)
    if aligned is None:  # CuPy's arrays do not say; those of a device of one's own may have no address
        address = getattr(getattr(x, "data", None), "ptr", 0)
        aligned = not address or address % x.itemsize == 0
    return bool(x.flags.c_contiguous and aligned)


def contiguous(x: Array) -> Array:
    """Returns x if it is C-contiguous, else a copy that is."""
    if x.flags.c_contiguous:
        return x
    if not _large(x):
        return x.copy()
    copy = empty_like(x)
    copy[...] = x
    return copy


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike, like: Array | None = None) -> Array:
    """Returns an uninitialised array on the device of `like`, or on the CPU.

    On the CPU it is like `numpy.empty`, but freed memory is kept for later arrays (csrc/runtime/pool.c).
    """
    return device_of(like).empty(shape, dtype)


def pooled(function: np.ufunc, x: Any, z: Array) -> Array:
    """Returns ``function(x, z)`` of an array or number x and an array z as large as the result, on the CPU in memory as
    `empty` has it."""
    if _large(z) and type(x) in (np.ndarray, float, int):
        return function(x, z, out=empty(np.broadcast_shapes(np.shape(x), z.shape), np.result_type(x, z)))
    return function(x, z)


def concatenate(arrays: Sequence[Array], axis: int = -1) -> Array:
    """Returns ``numpy.concatenate(arrays, axis)``, on the CPU in memory as `empty` has it."""
    if not all(map(_large, arrays)):
        return np.concatenate(arrays, axis)
    shape = [*arrays[0].shape]
    shape[axis] = sum(one.shape[axis] for one in arrays)
    return np.concatenate(arrays, axis, out=empty(tuple(shape), np.result_type(*arrays)))


def _large(x: Array) -> bool:
    """Whether the memory of a NumPy array like x would be kept."""
    return type(x) is np.ndarray and x.nbytes >= KEPT_FROM


KEPT_FROM = 1 << 20
"""Bytes of the smallest array whose memory is kept (csrc/runtime/pool.c)."""


def full(shape: tuple[int, ...], value: complex, dtype: npt.DTypeLike, like: Array) -> Array:
    """Returns an array of equal numbers on the device of `like`.

    ``numpy.full`` and ``numpy.ones`` with ``like`` would pass an argument that CuPy rejects.
    """
    array = empty(shape, dtype, like)
    array[...] = value
    return array


def empty_like(x: Array) -> Array:
    """Returns an uninitialised array with the shape, dtype and device of x."""
    return device_of(x).empty(x.shape, x.dtype)
