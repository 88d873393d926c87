"""The C library (include/rotrnn.h), built once, as Python classes over ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import subprocess
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rotrnn import _cpu

Array = npt.NDArray[Any]

ROOT = Path(__file__).parents[1]
FOLDER = os.environ.get("LIBROTRNN", "build/lib")
"""Where the library is built; another folder for another compiler (CC) or for sanitizers."""

OK, ARGUMENT, NO_FILE, NO_MEMORY, DAMAGED, UNSUPPORTED, FULL, MISMATCH = range(8)


class Error(ctypes.Structure):
    """rotrnn_error."""

    _fields_ = (("status", c_int), ("text", c_char * 248))


class Facts(ctypes.Structure):
    """rotrnn_facts."""

    _fields_ = (
        *((name, c_int) for name in ("reads_tokens", "is_double", "gives_each", "needs_capacity")),
        *((name, c_int64) for name in ("inputs", "outputs", "parameters")),
    )


class LibraryError(Exception):
    """A status of the library that is not ROTRNN_OK, and its sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


def make(*targets: str, makefile: str = "csrc/lib/Makefile", folder: str = FOLDER, **variables: str) -> Path:
    """Runs the library's Makefile, or another one that builds the library first. Returns the library's folder."""
    env = os.environ.copy()
    env.pop("LD_PRELOAD", None)  # a sanitizer is for the tests, not for compilers
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    settings = [f"{name}={value}" for name, value in {"LIB_BUILD": folder, **variables}.items()]
    with open(ROOT / folder / "lock", "w", encoding="utf-8") as lock:  # test processes wait for one that builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-s", "-j2", "-f", makefile, *targets, *settings]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / folder


@functools.cache
def library(folder: str = FOLDER, **variables: str) -> ctypes.CDLL:
    """Returns the shared library; it is built first, unless it is up to date."""
    lib = ctypes.CDLL(str(make("lib", folder=folder, **variables) / "librotrnn.so"))
    error, model = POINTER(Error), POINTER(c_void_p)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "version": (c_char_p, []),
        "error_text": (c_char_p, [c_int]),
        "model_open": (c_int, [model, c_char_p, error]),
        "model_read": (c_int, [model, c_void_p, c_size_t, error]),
        "model_open_bf16": (c_int, [model, c_char_p, error]),
        "model_read_bf16": (c_int, [model, c_void_p, c_size_t, error]),
        "model_free": (None, [c_void_p]),
        "model_facts": (Facts, [c_void_p]),
        "model_isa": (c_char_p, [c_void_p]),
        "stream_new": (c_int, [model, c_void_p, c_int64, c_int64, error]),
        "stream_free": (None, [c_void_p]),
        "stream_reset": (c_int, [c_void_p]),
        "sequence_reset": (c_int, [c_void_p, c_int64]),
        "stream_steps": (c_int64, [c_void_p]),
        "sequence_steps": (c_int64, [c_void_p, c_int64]),
        "sequence_unsettled": (c_int64, [c_void_p, c_int64]),
        "push_ragged": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
        **{f"push_{kind}": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]) for kind in PUSHES.values()},
        "state_size": (c_size_t, [c_void_p]),
        "state_save": (c_int, [c_void_p, c_void_p, c_size_t]),
        "state_load": (c_int, [c_void_p, c_void_p, c_size_t, error]),
        "sequence_size": (c_size_t, [c_void_p]),
        "sequence_save": (c_int, [c_void_p, c_int64, c_void_p, c_size_t]),
        "sequence_load": (c_int, [c_void_p, c_int64, c_void_p, c_size_t, error]),
    }
    for name, (result, arguments) in signatures.items():
        function = lib[f"rotrnn_{name}"]
        function.restype, function.argtypes = result, arguments
        setattr(lib, name, function)
    return lib


PUSHES = {
    (False, False): "features",
    (True, False): "tokens",
    (False, True): "features_double",
    (True, True): "tokens_double",
}
"""(reads tokens, double) -> what the push is called."""


class Model:
    """rotrnn_model, of a file's bytes, with its matrices in bfloat16 if `half`."""

    def __init__(self, content: bytes, lib: ctypes.CDLL | None = None, half: bool = False) -> None:
        self.lib, self.handle, error = lib or library(), c_void_p(), Error()
        read = self.lib.model_read_bf16 if half else self.lib.model_read
        status = read(byref(self.handle), content, len(content), byref(error))
        assert status == error.status
        assert bool(self.handle) == (status == OK)
        assert bool(error.text) == (status != OK)
        if status != OK:
            raise LibraryError(status, error.text.decode())
        self.facts = self.lib.model_facts(self.handle)

    def __del__(self) -> None:
        self.lib.model_free(self.handle)

    def stream(self, batch: int = 1, capacity: int | None = None) -> Stream:
        """A stream; by default with room for some hundred steps if the model needs a capacity."""
        return Stream(self, batch, (400 if self.facts.needs_capacity else 0) if capacity is None else capacity)


@contextlib.contextmanager
def its_instructions(model: Model) -> Iterator[None]:
    """Within the block the module computes by the instruction set that the library took, the best that the processor
    has, whatever ROTRNN_SIMD says."""
    name = model.lib.model_isa(model.handle).decode()
    if name not in _cpu.SIMD_AVAILABLE:
        pytest.skip(f"the module is built without {name}, which the library has")
    before = _cpu.use_simd(name)
    try:
        yield
    finally:
        _cpu.use_simd(before)


class Stream:
    """rotrnn_stream."""

    def __init__(self, model: Model, batch: int, capacity: int) -> None:
        lib = model.lib
        self.model, self.lib, self.batch, self.handle, error = model, lib, batch, c_void_p(), Error()
        status = self.lib.stream_new(byref(self.handle), model.handle, batch, capacity, byref(error))
        if status != OK:
            raise LibraryError(status, error.text.decode())
        facts = model.facts
        self.dtype = np.dtype(np.float64 if facts.is_double else np.float32)
        self.input_dtype = np.dtype(np.int32) if facts.reads_tokens else self.dtype
        self.function = getattr(lib, f"push_{PUSHES[bool(facts.reads_tokens), bool(facts.is_double)]}")

    def __del__(self) -> None:
        self.lib.stream_free(self.handle)

    def push(self, x: Array, lengths: Array | None = None) -> Array:
        """Reads x (B, T) or (B, T, F), or `lengths` (B,) steps of it; returns logits (B, T, C) or (B, C)."""
        x = np.ascontiguousarray(x, self.input_dtype)
        facts = self.model.facts
        shape = (self.batch, x.shape[1]) if facts.gives_each else (self.batch,)
        logits = np.full((*shape, facts.outputs), np.nan, self.dtype)
        at, n, to = x.ctypes.data, x.shape[1], logits.ctypes.data
        if lengths is None:
            status = self.function(self.handle, at, n, to)
        else:
            status = self.lib.push_ragged(self.handle, at, n, np.asarray(lengths, np.int64).ctypes.data, to)
        if status != OK:
            raise LibraryError(status, self.lib.error_text(status).decode())
        return logits

    def save(self, sequence: int | None = None) -> bytes:
        """The state of all sequences, or of one."""
        size = (self.lib.state_size if sequence is None else self.lib.sequence_size)(self.handle)
        state = ctypes.create_string_buffer(size)
        if sequence is None:
            assert self.lib.state_save(self.handle, state, size) == OK
        else:
            assert self.lib.sequence_save(self.handle, sequence, state, size) == OK
        return state.raw

    def load(self, state: bytes, sequence: int | None = None) -> None:
        error = Error()
        if sequence is None:
            status = self.lib.state_load(self.handle, state, len(state), byref(error))
        else:
            status = self.lib.sequence_load(self.handle, sequence, state, len(state), byref(error))
        assert status == error.status
        if status != OK:
            raise LibraryError(status, error.text.decode())
