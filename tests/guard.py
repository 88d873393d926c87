"""Kernels on guarded arrays: one access outside an array ends the process.

Each array of a call is copied to memory that ends (or begins) at a page which cannot be accessed. So a kernel that
reads or writes beyond the extents of csrc/kernels.list crashes, in the build that users have, on every instruction set.

    python tests/guard.py        # the table of cases, in float64, and all but layers in float32

Prints each kernel's name before it runs, so the last one is the one that crashed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
FORBIDDEN, ALLOWED = 0, 3  # PROT_NONE; PROT_READ | PROT_WRITE


def guarded(array: Any, at_end: bool) -> Any:
    """Returns a copy whose memory ends, or else begins, at a page that cannot be accessed."""
    pages = -(-array.nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page in (0, pages + 1):
        if protect(ctypes.c_void_p(address + page * PAGE), ctypes.c_size_t(PAGE), FORBIDDEN):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + (pages * PAGE - array.nbytes if at_end else 0)
    copy: Any = np.ndarray(array.shape, array.dtype, memory, start)
    copy[...] = array
    return copy


class GuardedKernels:
    """Kernels that run on guarded copies of their arrays, and copy back what they wrote."""

    def __init__(self, kernels: Any, at_end: bool, report: Any = None) -> None:
        self._kernels, self._at_end, self._report = kernels, at_end, report
        self.calls: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)

        def call(**arguments: Any) -> None:
            if self._report:
                self._report(name)
            self.calls.add(name)
            arrays = {key: np.asarray(value) for key, value in arguments.items() if isinstance(value, np.ndarray)}
            copies = {key: guarded(array, self._at_end) for key, array in arrays.items()}
            kernel(**{**arguments, **copies})
            for key, copy in copies.items():
                if arrays[key].flags.writeable:
                    arrays[key][...] = copy

        return call


@contextmanager
def guarded_kernels(at_end: bool, report: Any = None) -> Iterator[GuardedKernels]:
    """The CPU's kernels are guarded until the end of the context."""
    from rotrnn.devices.device import HOST

    before = HOST.kernels
    wrapped = GuardedKernels(before, at_end, report)
    object.__setattr__(HOST, "kernels", wrapped)
    try:
        yield wrapped
    finally:
        object.__setattr__(HOST, "kernels", before)


def main() -> None:
    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root), str(root / "tests")]
    from benchmarks.bits import cotangents_of, narrow
    from cases import CASES, LAYER_ROWS

    last = sys.stdout
    calls: set[str] = set()
    for at_end in (True, False):
        with guarded_kernels(at_end, lambda name: print(name, file=last, flush=True)) as kernels:
            ops = len(CASES) - len(LAYER_ROWS)
            for i, case in enumerate(CASES if at_end else CASES[:ops]):
                args = case.make(np.random.default_rng(0))
                for some in (args, {name: narrow(x) for name, x in args.items()})[: 1 + (at_end and i < ops)]:
                    outputs = case.forward(some)
                    case.backward(some, outputs, cotangents_of(np.random.default_rng(1), outputs))
        calls |= kernels.calls
    print("kernels:", *sorted(calls))


if __name__ == "__main__":
    main()
