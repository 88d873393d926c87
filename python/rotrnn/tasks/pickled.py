"""Reads arrays of bytes out of a pickle without running it.

A pickle is a program for a stack machine whose instructions can call anything. The machine here has only those
instructions that build integers, bytes, texts, lists, tuples and dictionaries. It imports nothing: the names by which
NumPy pickles an array of bytes stand for the few functions of this file, and any other name is refused. Memory and time
are proportional to the size of the pickle.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import an


class Refused(ValueError):
    """A pickle has operations that no pickle of arrays of bytes has."""


class PickledArray:
    """An array of bytes that a pickle builds; `array` is None until the pickle has set its state."""

    array: npt.NDArray[np.uint8] | None = None

    def set(self, data: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
        if dtype is not BYTE or not isinstance(data, bytes):
            raise Refused("it holds an array whose dtype is not bytes")
        try:
            self.array = np.frombuffer(data, np.uint8).reshape(shape, order=order)
        except (TypeError, ValueError, OverflowError) as error:
            raise Refused(f"it holds an array of a wrong shape ({error})") from None
        return self


BYTE = object()
"""Stands for the dtype uint8."""


class _Function:
    """The object for a name in a pickle. The pickle can only call it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


def _ndarray(*_: Any) -> None:
    raise Refused("it builds an array in another way than NumPy's pickles do")


def _reconstruct(*_: Any) -> PickledArray:
    """Returns an empty array, whose state follows: protocols 0 to 4."""
    return PickledArray()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    """Returns an array of protocol 5."""
    return PickledArray().set(data, dtype, shape, order)


def _dtype(name: Any, *_: Any) -> Any:
    if name not in ("u1", b"u1"):
        raise Refused("it holds an array whose dtype is not bytes")
    return BYTE


def _latin1(text: Any, encoding: Any) -> bytes:
    """Returns bytes as Python 3 pickles them for Python 2."""
    if encoding != "latin1" or not isinstance(text, str):
        raise Refused(f"it holds bytes in {encoding!r:.20}, expected 'latin1'")
    return text.encode("latin1")


_NAMES = {
    "numpy ndarray": _Function(_ndarray),
    "numpy dtype": _Function(_dtype),
    "_codecs encode": _Function(_latin1),
    # NumPy 2 renamed numpy.core to numpy._core
    **{f"numpy.{core}.multiarray _reconstruct": _Function(_reconstruct) for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": _Function(_from_buffer) for core in ("core", "_core")},
}


class _Machine:
    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.left = size
        """Number of bytes that the calls of the pickle may still create: the text of each is in the pickle once."""

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise Refused("it takes from an empty stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if not (self.stack and type(self.stack[-1]) is kind):
            raise Refused(f"it adds to something that is not {an(kind.__name__)}")
        return self.stack[-1]

    def popped(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def from_mark(self) -> list[Any]:
        """Takes the objects above the last mark."""
        if not self.marks:
            raise Refused("it takes from an empty stack")
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def update(self, items: list[Any]) -> None:
        table = self.top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):  # the hash of nested tuples may take forever
                raise Refused("it holds a dictionary whose keys are not texts")
            table[key] = value

    def name(self, name: str) -> None:
        if name not in _NAMES:
            raise Refused(f"it names {name.replace(' ', '.'):.80}, which is not allowed in such a file")
        self.stack.append(_NAMES[name])

    def call(self) -> None:
        function, arguments = self.popped(2)
        if not (isinstance(function, _Function) and isinstance(arguments, tuple)):
            raise Refused("it calls something that is not a function")
        self.left -= sum(len(one) for one in arguments if isinstance(one, str))
        if self.left < 0:
            raise Refused("it decodes the same text several times")
        try:
            self.stack.append(function.call(*arguments))
        except TypeError as error:  # another number of arguments
            raise Refused(str(error)) from None

    def build(self) -> None:
        (state,) = self.popped(1)
        target = self.stack[-1] if self.stack else None
        if isinstance(target, _Function):
            raise Refused("it sets the state of a function")
        if isinstance(target, PickledArray) and isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, data = state
            target.set(data, dtype, shape, "F" if fortran else "C")
        elif target is not BYTE:  # the state of this dtype holds no information
            raise Refused("it sets the state of something that is not an array")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(content: bytes) -> Any:
    """Returns the contents of a pickle of integers, texts, lists, dictionaries and arrays of bytes (`PickledArray`).

    The texts of Python 2 become bytes. ValueError if the pickle is damaged, or holds or does anything else.
    """
    machine = _Machine(len(content))
    stack, memo = machine.stack, machine.memo
    argument: Any
    for code, argument, _ in pickletools.genops(content):
        name = code.name
        if name in _VALUES:
            if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
                raise Refused("it holds an integer of more than 64 bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("STRING", "BINSTRING", "SHORT_BINSTRING"):
            stack.append(argument.encode("latin1"))
        elif name == "BYTEARRAY8":
            stack.append(bytes(argument))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            if not stack:
                raise Refused("it takes from an empty stack")
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            if argument not in memo:
                raise Refused(f"it takes {argument} from its memo, which is not there")
            stack.append(memo[argument])
        elif name == "MARK":
            machine.marks.append(len(stack))
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("LIST", "TUPLE"):
            items = machine.from_mark()
            stack.append(items if name == "LIST" else tuple(items))
        elif name == "DICT":
            items = machine.from_mark()
            stack.append({})
            machine.update(items)
        elif name in _TUPLES:
            stack.append(tuple(machine.popped(_TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = machine.popped(1) if name == "APPEND" else machine.from_mark()
            machine.top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            machine.update(machine.popped(2) if name == "SETITEM" else machine.from_mark())
        elif name == "GLOBAL":
            machine.name(argument)
        elif name == "STACK_GLOBAL":
            module, attribute = machine.popped(2)
            machine.name(f"{module} {attribute}" if type(module) is type(attribute) is str else "?")
        elif name == "REDUCE":
            machine.call()
        elif name == "BUILD":
            machine.build()
        elif name == "POP":
            machine.pop()
        elif name == "POP_MARK":
            machine.from_mark()
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise Refused(f"it has the instruction {name}, which is not allowed in such a file")
    return machine.pop()
