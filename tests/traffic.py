"""Counts what work on a GPU moves and computes, launch by launch, in the harness (cuda/host_traffic.h)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import re
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import strict
from cuda_harness import load
from rotrnn.devices.recording import Recording, recorded
from rotrnn.models.retrieval import Retrieval
from rotrnn.tasks import Batch
from rotrnn.training.graph import Work
from rotrnn.training.recipe import Recipe
from rotrnn.training.state import initial_state
from strict import STRICT, kernels_of

Numbers = npt.NDArray[np.float64]


class Launch(NamedTuple):
    """What a kernel moves, or a function of runtime.h, or an operation of CuPy: bytes that are read and written, each
    once; bytes of all its loads and stores; flops of its products. `entry`: the entry of the list that launches it."""

    entry: str
    kernel: str
    read: int
    written: int
    requested: int
    flops: int

    @property
    def moved(self) -> int:
        return self.read + self.written


class Counted(ctypes.Structure):  # host_traffic.h's launch
    _fields_ = [("what", ctypes.c_void_p), *((name, ctypes.c_int64) for name in Launch._fields[2:])]


def short(name: str) -> str:
    """Returns a demangled kernel's name with its template's arguments."""
    name = re.sub(r"\(anonymous namespace\)::|^void |_f32_cuda|_c64_cuda", "", name)
    while (fewer := re.sub(r"\([^()]*\)", "", name)) != name:
        name = fewer
    return name.replace("::{lambda#1}", "").strip()


class Counter:
    """The module `_cuda_host` with kernels that count."""

    def __init__(self) -> None:
        self.kernels = Kernels(self)
        self.module = load("traffic", HARNESS="build/traffic", CC="gcc", CXX="g++")
        self.library = ctypes.CDLL(self.module.__file__)
        self.library.traffic_base.restype = ctypes.c_void_p
        self.library.traffic_stop.restype = ctypes.c_int64
        base = self.library.traffic_base()
        said = subprocess.run(["nm", "-C", self.module.__file__], capture_output=True, text=True, check=True).stdout
        symbols = (line.split(maxsplit=2) for line in said.splitlines() if line[0] != " ")
        self.names = {base + int(at, 16): short(name) for at, kind, name in symbols if kind in "tTW"}
        self.launches: list[Launch] = []

    @contextlib.contextmanager
    def counting(self, entry: str = "") -> Iterator[None]:
        """Within the block, launches are counted."""
        self.library.traffic_start()
        found = ctypes.POINTER(Counted)()
        try:
            yield
        finally:
            count = self.library.traffic_stop(ctypes.byref(found))
        for one in found[:count]:
            numbers = (getattr(one, name) for name in Launch._fields[2:])
            self.launches.append(Launch(entry, self.names[one.what], *numbers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class Kernels:
    """The module's entries, whose launches are counted."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self.counter.module.kernels, name)

        def call(**arguments: Any) -> None:
            with self.counter.counting(name):
                kernel(**arguments)

        return call


@functools.cache
def counter() -> Counter:
    return Counter()


def counted(work: Any) -> list[Launch]:
    """Runs work on the strict device. Returns its launches, and CuPy's operations between them."""
    one = counter()
    one.launches = []
    strict.RECORD = []
    try:
        with kernels_of(one), recorded(Recording()):
            work()
        return [*one.launches, *operations(strict.RECORD)]
    finally:
        strict.RECORD = None


# ---- a step of a recipe ----

NO_KERNELS = ("may_share_memory", "shape", "empty_like")


def operations(calls: list[Any]) -> Iterator[Launch]:
    """CuPy's operations, as one kernel each that reads its operands and writes its result; views are none."""
    for function, args, kwargs, result in calls:
        name = getattr(function, "__name__", str(function))
        name = function.__self__.__name__ if name == "__call__" else name  # of a ufunc
        given, made = arrays_of((args, kwargs)), arrays_of([result])
        if function is operator.setitem:
            to, where, value = args
            given, made = arrays_of([value]), [np.asarray(to[where])]
        elif "out" in kwargs:  # perhaps what it reads, too
            given = arrays_of(args)
        elif name in NO_KERNELS or any(np.may_share_memory(out, one) for out in made for one in given):
            continue
        read, written = (sum(one.nbytes for one in arrays) for arrays in (given, made))
        yield Launch("CuPy", name, read, written, read + written, 0)


def arrays_of(value: Any) -> list[Any]:
    """Returns the arrays in nested arguments."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for one in value for array in arrays_of(one)] if isinstance(value, list | tuple) else []


def step(recipe: Recipe, T: int, share: Numbers | None = None) -> list[Launch]:
    """A step of training (training/graph.py) of a batch of sequences of T steps, of which `share` (B,) are valid."""
    model, shape, B = recipe.build(recipe.task.shape), recipe.task.shape, recipe.training.batch
    rng, pairs = np.random.default_rng(0), (2,) if isinstance(model, Retrieval) else ()
    inputs: Any = rng.standard_normal((B, *pairs, T, shape.n_features or 1)).astype(np.float32)
    if shape.vocab is not None:
        inputs = rng.integers(0, shape.vocab, (B, *pairs, T))
    lengths = None if share is None else np.maximum(1, np.rint(share * T)).astype(np.int64).reshape(B, *pairs)
    state = initial_state(model, recipe)
    state.move(STRICT)
    work = Work(recipe, model, recipe.optimiser.grouping(model.is_recurrent), STRICT, state)
    values = work.inputs(Batch(inputs, rng.integers(0, shape.n_classes, B), lengths), 0, 1.0)
    given = {name: STRICT.asarray(value) for name, value in values.items()}
    ctx = work.context(given, np.arange(B))
    return counted(lambda: work.run(state.params, given, ctx))
