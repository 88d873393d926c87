"""The stand-in for CuPy (fake_cupy.py) promises no more than CuPy has: names, arguments, and NumPy's functions.

These tests need CuPy, but no GPU.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fake_cupy
import strict
from cases import ON_DEVICES
from rotrnn import Context
from rotrnn.nn import LAYERS
from small_models import training_step
from strict import to_device, to_host

cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)


def signature_of(function: Any) -> inspect.Signature:
    """The signature of a function, or of one compiled by Cython, whose docstring begins with it."""
    try:
        return inspect.signature(function)
    except ValueError:
        line = (function.__doc__ or "").strip().splitlines()[0]
        text = re.fullmatch(r"[\w.]+\((.*)\)( -> .*)?", line)
        assert text is not None, f"{function}: {line}"
        parameters, kind = [], inspect.Parameter.POSITIONAL_OR_KEYWORD
        for one in re.split(r",\s*(?![^(\[]*[)\]])", text[1]):
            name, given, _ = one.partition("=")
            default = None if given else inspect.Parameter.empty
            if name.startswith("**"):
                parameters.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
            elif name.startswith("*"):
                if len(name) > 1:
                    parameters.append(inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL))
                kind = inspect.Parameter.KEYWORD_ONLY
            elif name not in ("", "/"):
                parameters.append(inspect.Parameter(name.split()[-1], kind, default=default))
        return inspect.Signature(parameters)


def bind(path: str, function: Any, required: Iterable[Any], optional: Iterable[str]) -> None:
    """Checks that a function takes arguments: required ones by place, optional ones by name."""
    try:
        signature_of(function).bind(*required, **dict.fromkeys(optional))
    except TypeError as error:
        raise AssertionError(f"{path}{signature_of(function)}: {error}") from error


def offered(place: Any, real: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """What the stand-in has: path, what it is there, and what it is in CuPy."""
    for name, one in vars(place).items():
        if name.startswith("__") or name == "nccl":  # which is not there without its library
            continue
        assert hasattr(real, name), f"CuPy has no {path}.{name}"
        there = getattr(real, name)
        yield f"{path}.{name}", one, there
        if isinstance(one, SimpleNamespace | ModuleType):
            yield from offered(one, there, f"{path}.{name}")


METHODS = (
    *("Stream.is_capturing", "Stream.synchronize", "Stream.begin_capture", "Stream.end_capture", "Graph.launch"),
    *("Stream.record", "Stream.wait_event", "Event.record", "Event.synchronize"),
    *("MemoryPool.malloc", "MemoryPool.free_all_blocks", "MemoryPool.total_bytes"),
)


def test_cupy_has_what_the_stand_in_offers() -> None:
    """Every function takes what is given to the stand-in's: required arguments by place, the others by name."""
    found = {path: (here, there) for path, here, there in offered(fake_cupy.module(), cupy, "cupy")}
    for name in METHODS:
        kind, _, method = name.partition(".")
        found[name] = getattr(getattr(fake_cupy, kind), method), getattr(getattr(cupy.cuda, kind), method)
    for name in ("set", "get"):
        found[f"ndarray.{name}"] = getattr(fake_cupy.ndarray, name), getattr(cupy.ndarray, name)
    bound = 0
    for path, (here, there) in found.items():
        if not callable(here) or path in ("cupy.ndarray", "cupy.cuda.runtime.CUDARuntimeError"):
            continue
        parameters = inspect.signature(here).parameters.values()
        required = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
        optional = [one.name for one in parameters if one.default is not one.empty]
        bind(path, there, required, optional)
        bound += 1
    assert bound > 25
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)


def test_a_wrong_argument_would_be_found() -> None:
    for function, wrong in ((cupy.asnumpy, {"flow": None}), (cupy.cuda.Graph.launch, {"at": None})):
        with pytest.raises(TypeError):
            signature_of(function).bind(0, **wrong)


@pytest.fixture(scope="module")
def calls() -> set[tuple[Any, str, int, tuple[str, ...]]]:
    """What the table of cases and a training step of every layer ask of device arrays: object, name, number of
    arguments, and keywords."""
    seen: set[tuple[Any, str, int, tuple[str, ...]]] = set()
    perform = strict.perform

    def watching(kind: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)  # first: a ufunc's __call__ has its class as __objclass__
        owner = owner if isinstance(owner, np.ufunc) else getattr(function, "__objclass__", None) or owner
        module = getattr(function, "__module__", None)
        seen.add((owner if owner is not None else module, function.__name__, len(args), tuple(kwargs)))
        return perform(kind, function, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict, "perform", watching)
        for layer in LAYERS:
            for fused in (True, False):
                training_step(layer, Context(np.array([9, 4, 0]), train=True, fused=fused), True, 1, dropout=0.1)
        for case in ON_DEVICES:
            args = {name: to_device(value) for name, value in case.make(np.random.default_rng(0)).items()}
            outputs = case.forward(args)
            case.backward(args, outputs, tuple(to_device(np.ones_like(to_host(out))) for out in outputs))
    return seen


def test_cupy_has_the_functions_that_are_called(calls: set[tuple[Any, str, int, tuple[str, ...]]]) -> None:
    bound = ufuncs = 0
    for owner, name, count, keywords in calls:
        if isinstance(owner, np.ufunc):  # a ufunc's method
            there = getattr(cupy, owner.__name__)
            if name == "__call__":
                assert {*keywords} <= {"out", "dtype", "casting"}, f"{owner.__name__}: CuPy's takes no {keywords}"
                ufuncs += 1
            else:
                there = getattr(there, name)
        elif owner is np.ndarray:
            there = getattr(cupy.ndarray, name)
        elif isinstance(owner, str) and owner.startswith("numpy"):
            inner = owner.split(".")[1:] if owner in ("numpy.fft", "numpy.linalg") else []
            there = getattr(functools.reduce(getattr, inner, cupy), name)
        else:
            continue  # of Python's operators
        if not isinstance(there, cupy.ufunc):
            bind(f"{owner}.{name}", there, range(count), [one for one in keywords if one != "like"])
        bound += 1
    assert bound > 40
    assert ufuncs > 20
