"""Copies between the host and a graph on a GPU, made while the graph of the step before still runs.

They go through pinned memory, two buffers each way: one is written while the other is read. A stream of their own
brings inputs to the GPU; events say when a buffer may be used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import Array

BUFFERS = 2
"""Steps whose inputs or results are on the way: the one that runs, and the next."""

ALIGNED = 256
"""Arrays begin at multiples of this many bytes in their buffer, as in a GPU's allocator."""


class _Buffer:
    """Inputs on their way: pinned memory, where they go on the GPU, and when either is free again."""

    def __init__(self, size: int) -> None:
        import cupy
        import cupyx

        self.pinned = cupyx.empty_pinned((size,), np.uint8)
        self.staged = cupy.empty((size,), np.uint8)
        self.copied, self.used = cupy.cuda.Event(), cupy.cuda.Event()


class Feed:
    """The inputs of a graph, one block of memory on the GPU in which `arrays` lie.

    Parameters
    ----------
    values : mapping of arrays
        Inputs by name, with the shapes and dtypes of all steps. They are sent.
    stream : stream
        The graph's stream.
    """

    def __init__(self, values: Mapping[str, npt.NDArray[Any]], stream: Any) -> None:
        import cupy

        self.stream, self.copies = stream, cupy.cuda.Stream(non_blocking=True)
        self._places: dict[str, tuple[int, npt.NDArray[Any]]] = {}
        size = 0
        for name, value in values.items():
            self._places[name] = size, value
            size += -(-value.nbytes // ALIGNED) * ALIGNED
        self.block = cupy.empty((size,), np.uint8)
        self.arrays = self._views(self.block)
        self._buffers = [_Buffer(size) for _ in range(BUFFERS)]
        cupy.cuda.get_current_stream().synchronize()  # earlier users of this memory may still run
        self.send(values)

    def _views(self, block: Any) -> dict[str, Array]:
        return {
            name: block[at : at + like.nbytes].view(like.dtype).reshape(like.shape)
            for name, (at, like) in self._places.items()
        }

    def send(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copies the inputs of the next step, which is launched on the stream after this. Waits for nothing but the
        copy of the step before the last."""
        one = self._buffers[0]
        self._buffers = [*self._buffers[1:], one]
        one.copied.synchronize()
        for name, array in self._views(one.pinned).items():
            array[...] = values[name]
        self.copies.wait_event(one.used)
        one.staged.set(one.pinned, stream=self.copies)
        one.copied.record(self.copies)
        self.stream.wait_event(one.copied)
        self.block.data.copy_from_device_async(one.staged.data, one.pinned.nbytes, self.stream)
        one.used.record(self.stream)


class Results:
    """Copies of a small array, taken on a stream after each step and read later."""

    def __init__(self, array: Array, stream: Any) -> None:
        import cupy
        import cupyx

        self.array, self.stream = array, stream
        self._buffers = [
            (cupyx.empty_pinned(array.shape, array.dtype), cupy.cuda.Event()) for _ in range(BUFFERS)
        ]  # each is read before it is taken again
        self._taken = 0

    def take(self) -> int:
        """Starts a copy. Returns its number, for `read`."""
        pinned, done = self._buffers[self._taken % BUFFERS]
        self.array.get(stream=self.stream, out=pinned, blocking=False)  # type: ignore[attr-defined]
        done.record(self.stream)
        self._taken += 1
        return self._taken - 1

    def read(self, number: int) -> npt.NDArray[Any]:
        """Returns a copy, one of the last two, for which the GPU is waited for."""
        pinned, done = self._buffers[number % BUFFERS]
        done.synchronize()
        return pinned.copy()
