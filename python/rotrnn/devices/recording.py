"""Recorded work: kernels and other operations of a device that run once, and are then repeated as a whole.

While a thread records, nothing may depend on numbers on the device, or on lengths, which may differ each time.
Checks of values are left out (whoever repeats the work makes them before), a loss stays where it is, and arrays that
are copied from the host are constants. Work that cannot be recorded raises `NotRecordable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rotrnn.devices.device import Array, Device


class NotRecordable(RuntimeError):
    """The work looks at numbers that only the device has, or that change."""


Again = Callable[[], Array]
"""Repeats the body of a loop. Returns its result, on the host."""

Drive = Callable[[Again, int], None]
"""Decides on the host how often the body of a loop is repeated, at a step of random numbers."""


@dataclass
class Recording:
    """The data of recorded work: the arrays on the device that were copied from the host, and its loops."""

    constants: dict[Any, Array] = field(default_factory=dict)
    complete: bool = False
    """Whether the constants are: the work has run once."""
    cut: Callable[[Callable[[], Array], Drive], None] | None = None
    """Records the body of a loop by itself; None while the work is only tried."""

    def loop(self, body: Callable[[], Array], drive: Drive) -> None:
        """Does `body` as often as the host wants, when the work is repeated: ``drive(again, step)``.

        `body` changes arrays in place, and returns an array on the device that the host looks at.
        """
        if self.cut is None:
            body()
        else:
            self.cut(body, drive)

    def constant(self, value: Array, copy: Callable[[Array], Array]) -> Array:
        """Returns the copy of a host array, made by `copy` when it is first needed."""
        key = (value.shape, value.dtype.str, value.tobytes())
        if key not in self.constants:
            if self.complete:
                raise NotRecordable("an array on the host differs from the time before")
            self.constants[key] = copy(value)
        return self.constants[key]


_NOW: ContextVar[Recording | None] = ContextVar("recording", default=None)


def recording() -> Recording | None:
    """Returns the recording that the calling thread makes, or None."""
    return _NOW.get()


@contextmanager
def recorded(one: Recording) -> Iterator[None]:
    """Within the block, the thread's work belongs to a recording."""
    token = _NOW.set(one)
    try:
        yield
    finally:
        _NOW.reset(token)


class RecordedLengths:
    """Lengths of sequences (B,) whose numbers are in an array on the device, and others each time.

    It stands for `CheckedLengths`, but is no array: whoever looks at its numbers on the host raises `NotRecordable`.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, there: Array, T: int) -> None:
        self.there, self.shape, self.fits = there, there.shape, (there.shape[0], T)

    def on(self, device: Device) -> Array:
        return self.there

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotRecordable("the lengths of sequences are read on the host")

    __array__ = __array_ufunc__ = __array_function__ = __getitem__ = __iter__ = __getattr__ = _refuse
