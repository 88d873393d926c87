"""Calls of the kernels from bytes: `one` decodes them to a call of `rotrnn._cpu.kernels`, for door.c.

An input that is all zeros is a good call of the first kernel. Each argument takes a byte that says how it is: as the
list of kernels has it, or of another dtype, size, layout or type, or missing. Any exception that Python code can catch
is a good answer; a crash is not.
"""

from __future__ import annotations

import re
import runpy
import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn import _cpu

LISTING = runpy.run_path(str(Path(__file__).parents[2] / "csrc" / "generate.py"))
LISTED = LISTING["read"](LISTING["LIST"].read_text(encoding="utf-8"))
KERNELS = LISTED.kernels
NUMBERS = (2, 1, 3, 0, 4, 5, 8, 17, 33, -1, 64, 130, 2**31, 2**62, 2**63 - 1, -(2**63), 2**63, 2**32 - 1, 2**40, -2)
FIXED = {"int64": "i8", "uint8": "u1", "uint16": "u2", "float64": "f8"}
REALS = (0.5, 0.0, 1.0, -1.0, 1e-8, float("nan"), float("inf"), 1e308)
ODD = (None, "text", 1.5, [], np.zeros(3), np.zeros((), np.int64), object())
DTYPES = ("f4", "f8", "c8", "c16", "i8", "u1", ">f8", "O", "U1")
MOST = 1 << 16
"""Numbers in an array; a call that needs more gets a wrong one."""
PATIENCE = 1.0
"""Second of the processor after which a call is stopped by a signal: it may ask for 2^31 iterations, which is no fault.
A kernel that no signal stops is one, which libFuzzer's own timeout finds."""


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _mixer(form: int, R: int, D: int) -> tuple[bool, bool, int]:
    """Whether a mixer has vectors, or else is a Kronecker product; and its columns."""
    return form <= _cpu.MIXER["low_rank"], form == _cpu.MIXER["kronecker"], D // R if R else 0


def mixer_vectors(form: int, R: int, D: int) -> int:
    vectors, kronecker, columns = _mixer(form, R, D)
    if form == _cpu.MIXER["matrix"]:
        return R * D
    if form == _cpu.MIXER["rotation"]:
        return R * (D // 2)
    return R * D if vectors else _triangle(R) + _triangle(columns) if kronecker else columns * _triangle(R)


def mixer_gains(form: int, R: int, D: int) -> int:
    vectors, kronecker, columns = _mixer(form, R, D)
    if form in (_cpu.MIXER["matrix"], _cpu.MIXER["rotation"]):
        return 0
    return R if vectors else R + columns if kronecker else columns


def mixer_ready(form: int, R: int, D: int) -> int:
    vectors, kronecker, columns = _mixer(form, R, D)
    if vectors:
        return R * (D + 1)
    if form in (_cpu.MIXER["matrix"], _cpu.MIXER["rotation"]):
        return R * D
    return 2 * (R * (R + 1) + columns * (columns + 1)) if kronecker else columns * (2 * R * R + 1)


FUNCTIONS: dict[str, Any] = {
    f"{name}_{value.upper()}": getattr(_cpu, name)[value] for name, values in LISTED.enums.items() for value in values
}
FUNCTIONS |= {
    "mixer_vectors": mixer_vectors,
    "mixer_gains": mixer_gains,
    "mixer_ready": mixer_ready,
    "tiles": lambda T, tile: -(-T // tile) if tile > 0 else -1,
    "pathfinder_bars": lambda contour, n, each: 2 * contour + n * each,
    "gates_of": lambda cell: {_cpu.CELL["lstm"]: 4, _cpu.CELL["gru"]: 3}.get(cell, 1),
    "SELECTIVE_TILE": _cpu.SELECTIVE_TILE,
    "SSD_CHUNK": _cpu.SSD_CHUNK,
    "DELTA_TILE": _cpu.DELTA_TILE,
    "DPLR_TILE": _cpu.DPLR_TILE,
    "SAMPLED_TILE": _cpu.SAMPLED_TILE,
}


@cache
def _compiled(part: str) -> Any:
    """A part of a shape, a C expression, as Python's."""
    return compile(re.sub(r"^(.+) \? (.+) : (.+)$", r"(\2) if \1 else (\3)", part), part, "eval")


def _size(shape: tuple[str, ...], numbers: dict[str, int]) -> int:
    """Returns the number of elements of a shape; 1 if they are too many, or there is no such number."""
    size = 1
    for part in shape:
        size *= int(eval(_compiled(part), FUNCTIONS, numbers))
    return size if 0 <= size <= MOST else 1


class Bytes:
    """The bytes of an input, one after the other; then zeros."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def next(self) -> int:
        self.place += 1
        return self.data[self.place - 1] if self.place <= len(self.data) else 0

    def of(self, options: Any) -> Any:
        return options[self.next() % len(options)]

    def rest(self, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Returns `count` of the remaining bytes, repeated if there are too few."""
        left = np.frombuffer(self.data[self.place :] or b"\0", np.uint8)
        return np.resize(left, count)


def _array(source: Bytes, dtype: str, size: int, how: int) -> Any:
    if how == 1:
        dtype = source.of(DTYPES)
    size = {2: size + 1, 3: max(size - 1, 0), 4: 0}.get(how, size)
    if dtype in ("O", "U1"):
        return np.zeros(size, dtype)
    room = np.zeros(size * 3 * np.dtype(dtype).itemsize + 1, np.uint8)
    if how == 5:  # unaligned
        array = room[1 : 1 + size * np.dtype(dtype).itemsize].view(dtype)
    else:
        array = np.zeros(3 * size, dtype)[::3] if how == 6 else np.zeros(size, dtype)
    small = source.rest(size).astype(np.int64) if size else np.zeros(0, np.int64)
    if np.dtype(dtype).kind == "i":
        array[...] = np.where(small < 200, small % 9, np.resize(np.array([-1, 2**63 - 1, 2**40, 100]), size))
    elif np.dtype(dtype).kind == "u":
        array[...] = small
    else:
        array[...] = np.where(small < 250, small / 128 - 1, np.nan)
    if how == 7:
        array.flags.writeable = False
    return array


def call_of(data: bytes) -> tuple[Any, dict[str, Any]]:
    """Returns a kernel of the list, and arguments for it."""
    source = Bytes(data)
    kernel = KERNELS[source.next() % len(KERNELS)]
    dtype = source.of(("f4", "f8", "c8", "c16"))
    numbers: dict[str, int] = {}
    for one in kernel.every():
        if one.kind == "int":
            limit = int(one.range[1]) + 1 if (getattr(one, "range", None) or ("", ""))[1].isdecimal() else 0
            byte = source.next()
            numbers[one.name] = byte % limit if limit and byte < 240 else NUMBERS[byte % len(NUMBERS)]
    if kernel.name == "pathfinder":  # an image that cannot be drawn takes a tenth of a second
        numbers["n"] = min(numbers["n"], 1)
    given: dict[str, Any] = {}
    for one in kernel.every():
        how = source.next() if one.kind != "int" else 0
        if how >= 250:
            if how > 252:
                given[one.name] = source.of(ODD)
            continue
        if one.kind == "int":
            given[one.name] = numbers[one.name]
        elif one.kind == "float":
            given[one.name] = REALS[how % len(REALS)]
        elif one.optional and how % 16 == 8:
            given[one.name] = None
        elif how % 16 == 9 and given:
            given[one.name] = list(given.values())[how // 16 % len(given)]
        else:
            size = _size(one.shape, numbers)
            given[one.name] = _array(source, FIXED.get(one.dtype, dtype), size, how % 16)
    if source.next() > 250:
        given["more"] = 1
    return kernel, given


class Stopped(Exception):
    """A call took too long."""


def _stop(*_: Any) -> None:
    raise Stopped


signal.signal(signal.SIGVTALRM, _stop)


def one(data: bytes) -> None:
    """Makes the call."""
    kernel, given = call_of(data)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
        try:
            getattr(_cpu.kernels, kernel.name)(**given)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except Exception:
        return
