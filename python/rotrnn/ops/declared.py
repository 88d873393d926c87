"""Ops as declared in csrc/kernels.list, the only list of arrays, sizes and results that C and Python share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rotrnn import _cpu

REAL = (np.dtype(np.float32), np.dtype(np.float64))
COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))

_PARTS = re.compile(r", (?![^()]*\))")  # between the parts of a shape, not between the arguments of a function
_VARYING = re.compile(r"(\w+) \? B : 1, \1 \? T : 1, (.+)")
_LAST = re.compile(r"(.+), (\w+) \? (\w+) : 1")


def complex_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the complex dtype whose real and imaginary parts have this dtype; a complex dtype itself."""
    return np.result_type(dtype, np.complex64)


def planes(x: Any) -> Any:
    """Views real numbers (..., 2N), pairs of a real and an imaginary part, as complex numbers (..., N)."""
    return x.view(complex_of(x.dtype))


def pairs(z: Any) -> Any:
    """The inverse of `planes`, as the kernels of real variants take complex numbers. Real numbers stay, and None."""
    return None if z is None else z.view(z.real.dtype)


class Form(NamedTuple):
    """An array that an op takes."""

    shapes: tuple[str, ...]
    """In dimension letters ("B T N"), one for each rank."""
    kinds: tuple[np.dtype[Any], ...]
    optional: bool
    paired: bool
    """Whether its complex numbers are pairs of real ones for the kernel."""


class Kernel(NamedTuple):
    """Sources of a kernel's arguments; each with its name in the list, then its name in Python."""

    arguments: list[str]
    arrays: list[tuple[str, str, bool]]
    sizes: list[tuple[str, Any]]
    varying: list[tuple[str, str, int]]
    """Flags that are set if an array is there and has this rank."""
    results: list[tuple[str, str, bool, bool, list[str]]]
    """Whether it is optional, whether its numbers are pairs, and its letters."""


class Declared:
    """The kernels of an op: which arrays they take and write, of which shapes and dtypes.

    >>> CONV = Declared("conv_forward", "conv_backward", taps="K", final="hT")
    >>> args = Boundary("causal_conv")
    >>> args.take(CONV, x=x, w=w, bias=bias, state=state, lengths=lengths)
    >>> y, hT = args.run("conv_forward", hT=return_state).values()

    `names` are the op's names for arrays (and their gradients), sizes and other parts of shapes in the list, or the
    number or constant that a size always equals. `forms` has all arrays that a kernel takes or writes; an array that is
    optional for some kernel is optional for the op. An array whose last axis is a real and an imaginary part is complex
    in Python, without that axis. A size that is a number, or follows from one letter (K-1, P+1, 4P, tiles), need not be
    bound.
    """

    def __init__(self, *kernels: str, **names: str | int) -> None:
        self._names = names
        self.forms: dict[str, Form] = {}
        self.derived: dict[str, tuple[str, Callable[[int], int], str]] = {}
        """Sizes that follow from a letter: the letter, the rule, and the text in errors."""
        if unknown := [one for one in kernels if one not in _cpu.LIST]:
            raise ImportError(f"rotrnn was built without the kernel {unknown[0]!r}: build it again, as by `make`")
        self.kernels = {one: self._kernel(*_cpu.LIST[one]) for one in kernels}
        self.plans: dict[Any, Any] = {}  # plans of earlier calls

    def _kernel(self, lane: bool, arguments: tuple[tuple[str, str, str, bool, bool], ...]) -> Kernel:
        kernel = Kernel([one[1] for one in arguments], [], [], [], [])
        letters = {word for _, _, shape, *_ in arguments for word in re.findall(r"\w+", shape)}
        for kind, name, text, of_call, optional in arguments:
            own = self._name(name)
            if kind == "int" and name in letters:
                letter = self._names.get(name, name)
                kernel.sizes.append((name, getattr(_cpu, str(letter), letter)))
            shapes, paired = self._shapes(text)
            if kind in ("read", "write") and of_call:
                kinds = COMPLEX if paired else REAL + COMPLEX if lane else REAL
                maybe = optional or (own in self.forms and self.forms[own].optional)
                self.forms[own] = Form(shapes, kinds, maybe, paired)
            if kind == "write" and of_call:
                kernel.results.append((name, own, optional, paired, shapes[-1].split()))
            if kind == "read":
                kernel.arrays.append((name, own, paired))
                if flag := _VARYING.fullmatch(text) or _LAST.fullmatch(text):
                    kernel.varying.append((flag[1 if flag.re is _VARYING else 2], own, len(shapes[1].split())))
        return kernel

    def _name(self, name: str) -> str:
        """The op's name of an array."""
        gradient = name[0] == "d" and name[1:] in self._names
        return f"d{self._names[name[1:]]}" if gradient else str(self._names.get(name, name))

    def _shapes(self, text: str) -> tuple[tuple[str, ...], bool]:
        """Returns the shapes that the list gives in C, and whether the numbers are pairs."""
        for part, own in self._names.items():
            text = text if part.isidentifier() else text.replace(part, str(own))
        text = re.sub(r"[A-Za-z_]\w*", lambda word: str(self._names.get(word[0], word[0])), text)
        varying, flagged = _VARYING.fullmatch(text), _LAST.fullmatch(text)
        whole = varying[2] if varying else flagged[1] if flagged else text
        *parts, last = (self._part(one) for one in _PARTS.split(whole))
        paired = last == "2"
        shape = " ".join(parts if paired else [*parts, last])
        more = f"B T {shape}" if varying else f"{shape} {flagged[3]}" if flagged else None
        return ((shape,) if more is None else (shape, more)), paired

    def _part(self, text: str) -> str:
        """Returns the letter of a part of a shape, and notes how it follows from another letter."""
        text = text.replace(" ", "")
        if tiles := re.fullmatch(r"tiles\((\w+),(\w+)\)", text):
            tile, text = int(getattr(_cpu, tiles[2], tiles[2])), "chunks" if "CHUNK" in tiles[2] else "tiles"
            self.derived[text] = tiles[1], lambda size: -(-size // tile), f" in {text} of {tile} steps"
            return text
        if text.isdigit():
            self.derived[text] = "", lambda _: int(text), ""
        elif one := re.fullmatch(r"(\w+)([+-]\d+)", text):
            self.derived[text] = one[1], int(one[2]).__add__, ""
        elif one := re.fullmatch(r"(\d+)\*(\w+)", text):
            text = one[1] + one[2]
            self.derived[text] = one[2], int(one[1]).__mul__, ""
        return text
