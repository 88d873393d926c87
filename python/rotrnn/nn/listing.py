"""A model as a list of lines, which the C library and ONNX run: streaming inference without the model's classes.

Each part of a model appends its lines (`Module.emit`):

    def emit(self, to: Listing, params: Params, x: int) -> int:
        z = to("GELU", x)
        return to("Dense", z, params["w"], params["bias"])

A line is an instruction with its inputs: registers, which are numbers, and arrays, which do not depend on time. A
register holds an array (B, T, ...). Register 0 is the encoder's output, then come the outputs of the lines in order.

Arrays are the model's parameters or computed from them: a discretisation, a rotation, a folded projection. They are
computed in float64 (`exact`) and stored in the dtype of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rotrnn._cpu import LINES
from rotrnn._support.text import alike, an
from rotrnn.ops.boundary import Array

DERIVED = "program."
"""Prefix of the names of arrays that are not parameters."""
INSTRUCTIONS: dict[str, Any] = {}
"""The instructions of the package by name (`rotrnn.nn.program.Instruction` adds them)."""


class Unlisted(ValueError):
    """A part of a model has no form as lines."""


class Line(NamedTuple):
    """An instruction with its settings. Inputs are registers, names of arrays, or None where one is not given. `layer`
    is the kind of the layer whose block has the line, for messages; `shapes` and `states`, if known, are as in
    `rotrnn.nn.program.Line`."""

    op: str
    inputs: tuple[int | str | None, ...]
    outputs: tuple[int, ...]
    settings: dict[str, Any]
    layer: str
    shapes: tuple[Any, ...]
    states: tuple[Any, ...]


class Listing:
    """Lines that are appended one by one, and the arrays that they read, by name.

    ``listing(op, *inputs, **settings)`` appends a line, and returns the register of its output, or a tuple of `outputs`
    registers. If the line is an instruction of programs and the shapes of its inputs are known, its number of outputs,
    shapes, states and missing settings follow from the instruction (`Instruction.listed`), unless `shapes` are given.

    Raises TypeError or ValueError, with the `writer` of the line, for an unknown instruction, an input that is neither
    a register nor an array, and for inputs or settings that do not fit the instruction.
    """

    def __init__(self, leaves: Mapping[str, Array]) -> None:
        self.lines: list[Line] = []
        self.arrays: dict[str, Array] = {}
        self.layer = "model"
        self.writer = ""
        """The `emit` of a program's instruction that is writing lines, for messages."""
        self.shapes: dict[int, Any] = {}
        """Shapes of registers without (B, T), where they are known: in programs."""
        self.dtype = np.result_type(*leaves.values())
        self._known = {id(leaf): (name, leaf) for name, leaf in leaves.items()}
        self._count = 1

    def __call__(
        self,
        op: str,
        *inputs: Any,
        outputs: int | None = None,
        shapes: tuple[Any, ...] | None = None,
        states: tuple[Any, ...] = (),
        **settings: Any,
    ) -> Any:
        title = self.writer or f"{self.layer}.emit"
        if not isinstance(op, str) or (op not in INSTRUCTIONS and op not in LINES and "." not in op):
            likely = alike(op, (*INSTRUCTIONS, *LINES)) if isinstance(op, str) else ""
            raise ValueError(
                f"{title}: got the line {op!r:.80}, expected the name of an instruction, as 'Tanh'{likely}"
            )
        for one in inputs:
            if one is not None and not (0 <= one < self._count if isinstance(one, int) else hasattr(one, "shape")):
                got = repr(one) if isinstance(one, int | str) else an(type(one).__name__)
                raise TypeError(f"{title}: {op}: an input is {got}, expected a register, an array or None")
        if op in INSTRUCTIONS and shapes is None and all(i in self.shapes for i in inputs if isinstance(i, int)):
            return INSTRUCTIONS[op].listed(self, title, outputs, inputs, settings)
        given = tuple(one if one is None or isinstance(one, int) else self.array(one) for one in inputs)
        made = tuple(range(self._count, self._count + (outputs or 1)))
        self._count += len(made)
        self.lines.append(Line(op, given, made, settings, self.layer, shapes or (), states))
        return made if outputs else made[0]

    def array(self, value: Array) -> str:
        """Returns the name of an array that a line reads."""
        if id(value) not in self._known:
            stored = np.ascontiguousarray(value, self.dtype)
            self._known[id(value)] = f"{DERIVED}{sum(one.startswith(DERIVED) for one in self.arrays)}", value
            self.arrays[self._known[id(value)][0]] = stored
        name, leaf = self._known[id(value)]
        self.arrays.setdefault(name, leaf)
        return name

    def exact(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters in float64, from which arrays are computed. A parameter that is read directly remains the
        parameter."""
        wide = {}
        for name, leaf in params.items():
            wide[name] = leaf.astype(np.float64, copy=False)
            if id(leaf) in self._known and wide[name] is not leaf:
                own, original = self._known[id(leaf)]
                self._known[id(wide[name])] = own, wide[name]
                self.arrays.setdefault(own, original)
        return wide
