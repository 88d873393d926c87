"""Devices: which arrays are whose, and the kernels that take them.

An op looks at the type of the arrays it is given, once (`rotrnn.ops.boundary.Boundary`), and calls the kernels of the
device that has arrays of that type. NumPy's own dispatch (NEP 13, NEP 18) carries the arithmetic around them. The CPU
is the only device so far; `register` adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu

if TYPE_CHECKING:
    from rotrnn._cpu import Kernels

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Device:
    """Arrays of one type, and what works on them.

    Parameters
    ----------
    name : str
        For messages: "the CPU".
    array_type : type
        The type of its arrays, exactly.
    kernels : Kernels
        A function for each kernel of csrc/kernels.list, which takes such arrays by keyword. Lengths come as the
        `rotrnn.ops.boundary.CheckedLengths` of the host; a device other than the CPU takes their copy `on` it.
    empty : callable
        ``empty(shape, dtype)``, a new array whose numbers are not set.
    asarray : callable
        A NumPy array, on this device.
    to_host : callable
        The inverse, which waits for the device.
    """

    name: str
    array_type: type
    kernels: Kernels
    empty: Callable[[tuple[int, ...], npt.DTypeLike], Array]
    asarray: Callable[[Array], Array]
    to_host: Callable[[Array], Array]


HOST = Device("the CPU", np.ndarray, _cpu.kernels, _cpu.empty, np.asarray, np.asarray)

_DEVICES: dict[type, Device] = {np.ndarray: HOST}


def register(device: Device) -> None:
    """From here on, ops that are given arrays of ``device.array_type`` run on `device`."""
    _DEVICES[device.array_type] = device


def device_of(value: object) -> Device:
    """The device of an array; the CPU for what is no array yet (a list, a number) and for NumPy's subclasses."""
    return _DEVICES.get(type(value), HOST)


def is_array(value: object) -> TypeGuard[Array]:
    """Whether this is an array of some device."""
    return isinstance(value, np.ndarray) or type(value) in _DEVICES


def beside(array: Array, like: Array) -> Array:
    """Returns a NumPy array on the device of `like`: itself on the CPU, elsewhere a copy."""
    return device_of(like).asarray(array)


def to_host(array: Array) -> Array:
    """Returns an array as a NumPy array: itself on the CPU; elsewhere a copy, for which the device is waited for."""
    return device_of(array).to_host(array)


def contiguous(x: Array) -> Array:
    """Returns x if it is C-contiguous, else a copy that is."""
    return x if x.flags.c_contiguous else x.copy()


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike, like: Array | None = None) -> Array:
    """An array whose numbers are not set, on the device of `like`, or on the CPU.

    On the CPU as `numpy.empty`, in memory that is kept for the next array when this one is gone (csrc/module/pool.c).
    """
    return device_of(like).empty(shape, dtype)


def empty_like(x: Array) -> Array:
    """`empty` of the shape, dtype and device of x."""
    return device_of(x).empty(x.shape, x.dtype)
