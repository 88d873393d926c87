"""A layer as a program: a straight line of instructions, from which forward, backward, step and the state follow.

A layer of the base `Programmed` writes its program once (`rotrnn.nn.instructions` are the instructions):

    def program(self) -> Program:
        p = Builder(self)
        z = p(Sigmoid(), p(Dense(), p.x, "W_z", "b_z"))
        a = p(Affine(-1, 1), z)
        h = p(Scan(), a, p(Product(), z, p(Dense(), p.x, "W_c", "b_c")))
        return p.returns(p(Dense(), h, "W_out"), h=h)

The registers of a program are the input, the layer's parameters, and the outputs of its instructions. Forward runs the
instructions in order. Backward walks them in reverse, each by its own adjoint, and adds up the gradients of registers
that several instructions read. The program is known before any array is, so nothing is traced or taped:

- an instruction whose inputs are all parameters runs once for many steps (`prepare`), and its outputs are saved;
- forward saves the registers that adjoints read (`Instruction.reads`). Outputs of `light` instructions are recomputed,
  or saved in place of inputs as large;
- the state is the states of the instructions, in order.

Input and output are masked: padding beyond the lengths is never read, and is zero in y and in dx.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial
from itertools import accumulate, zip_longest
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import LINES
from rotrnn._support.text import an, nearest, plural
from rotrnn.devices.device import pooled
from rotrnn.nn.layer import (
    BUFFERS,
    EVALUATION,
    TRUSTED,
    Array,
    Context,
    Params,
    Recurrent,
    State,
    StateArray,
    StateForm,
    mask_steps,
    state_leaves,
    trusted,
)
from rotrnn.nn.listing import INSTRUCTIONS, Listing
from rotrnn.nn.module import UNFIT, named, nearer
from rotrnn.nn.packing import Group, PackedSaved, Segments, each, of_group, shapes_of, total
from rotrnn.nn.returned import check_array, dtypes_of, is_foreign, of_precision, read_only, writeable
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import mask_padding

Shape = tuple[int, ...]
PACKAGE = "rotrnn.nn.instructions."
"""The package whose instructions are named without a module."""


class Call:
    """The data of a call of an instruction beside its inputs: the context, its states, and values kept for its adjoint.

    `state` are the arrays of its state before x, None before the first step, and forward sets the arrays after x in
    `after`; outside of steps these may be `Grown`. Backward gets the gradients of `after` in `dafter`, None if nothing
    depends on them, and sets the gradients of `state` in `dbefore`. Forward may set `kept` for backward. `shapes` are
    the shapes of the inputs, `sizes` of the outputs, and `states` the declarations of the state's arrays. In a step of
    streaming inference, `stepping` is true, T is 1, and `prepared` is the result of `Instruction.prepare`.
    """

    stepping: bool = False
    prepared: Any = None
    after: tuple[Any, ...] = ()
    dafter: tuple[Any, ...] | None = None
    dbefore: tuple[Any, ...] = ()
    kept: Any = None
    y: Any = None

    def __init__(self, line: Line, ctx: Context, state: tuple[Any, ...] | None = None) -> None:
        self.shapes: tuple[Any, ...] = line.shapes
        self.sizes, self.states = line.sizes, line.states
        self.ctx, self.lengths, self.state = ctx, ctx.lengths, state


class Instruction:
    """A step of a program: a differentiable function of arrays (B, T, ...) and of parameters, with its adjoint.

    A subclass is a frozen dataclass of its settings. Its ``forward(call, *inputs)`` returns an array, or as many as
    `form` says; an input that the program does not give is None. ``backward(call, dy, *inputs)`` returns a gradient
    for each input, or one gradient for a single input. dy is a sequence if forward returns several arrays. A gradient
    that is None stands for zeros. Of the inputs that are not parameters, backward gets the inputs named in `reads`, and
    None for the others. Neither may write to its arguments: instructions outside the package get views that cannot be
    written to.

    Raises TypeError, when a subclass is defined, if its declarations do not fit each other, and TypeError or ValueError
    at a call, if an instruction outside the package returns something else than arrays of the declared shapes in the
    precision of its inputs.
    """

    form: ClassVar[str] = "... -> ..."
    """Shapes of the inputs in order, and of the outputs, without (B, T): letters that each stand for one size, numbers,
    multiples of a size, and "..." for any axes: ``"I; O I; O -> O"`` of Dense, ``"4N; 4N N -> N"`` of an LSTM. `shapes`
    checks further conditions."""
    takes: ClassVar[str] = ""
    """Names of the inputs of a forward that takes ``*inputs``, with "?" for those that may be missing."""
    states: ClassVar[str] = ""
    """Names and shapes of the arrays of its state, real, by the letters of `form`: ``"c 2 H; h H N P"``. `state`
    declares others."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """The inputs that are parameters, or depend on parameters alone; the others are not."""
    foldable: ClassVar[bool] = False
    """Whether it can also act on parameters alone: it then runs once for many steps."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The inputs that backward reads, by their names in forward; "y" is forward's output, or list of them, as
    ``call.y``."""
    along: ClassVar[bool] = False
    """Whether a step's output may depend on other steps without a state, as in reverse. With a state it always may. For
    a packed row, instructions along time get the sequences as a batch with lengths, all others the row itself."""
    light: ClassVar[bool] = False
    """Whether its output may be computed again for backward, and not saved: a copy, or a function of a number."""
    foreign: ClassVar[bool] = True
    """Whether it is from outside the package, so that its results are checked at each call."""
    forward: Any
    backward: Any

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.foreign = is_foreign(cls)
        if nearer(cls, "forward", "emit"):
            cls.emit = Instruction.emit  # type: ignore[method-assign]  # the base's lines do not fit
        if cls.__module__.startswith(PACKAGE):
            INSTRUCTIONS[cls.__name__] = cls
        if hasattr(cls, "forward"):
            _check_definition(cls)

    def shapes(self, *inputs: Any, **named: Any) -> tuple[Shape, ...]:
        """Returns the shapes of its outputs without (B, T), from the shapes of its inputs; parameters have all their
        axes. Raises ValueError where inputs do not fit."""
        sizes = self._sizes(inputs)
        return tuple(_of_sizes(form, sizes) for form in _forms(self.form)[1])

    def state(self, *inputs: Any, **named: Any) -> tuple[StateArray, ...]:
        """Returns the arrays of its state, from the shapes of its inputs."""
        sizes = self._sizes(inputs) if self.states else {}
        return tuple(StateArray(name, _of_sizes(form, sizes)) for name, form in _state_forms(self.states).items())

    def _sizes(self, inputs: tuple[Any, ...]) -> dict[str, Shape]:
        """Returns the sizes of the letters of `form`."""
        sizes: dict[str, Shape] = {}
        forms, _ = _forms(self.form)
        if not all(_fits(form, shape, sizes) for form, shape in zip(forms, inputs, strict=True) if shape is not None):
            named_forms = zip(taken(self), forms, strict=True)
            expected = (f"{name} ({', '.join(form.split())})" for name, form in named_forms)
            raise ValueError(f"expected {'; '.join(expected)}, one size for each letter")
        return sizes

    def together(self, ctx: Context) -> bool:
        """Whether a sequence's results depend on others of the batch (`Recurrent.together`)."""
        return False

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        """Checks its arrays of a state, or of a gradient of one (`name` begins with d), beyond their shapes."""

    def prepare(self, *inputs: Any, **named: Any) -> Any:
        """Returns values that many steps share, from its inputs; only parameters are given."""
        return None

    def emit(self, to: Listing, line: Line, *inputs: Any) -> Any:
        """Appends its lines for streaming inference (`rotrnn.nn.listing`). Inputs are registers and arrays; returns the
        register of its output, or a tuple."""
        kind: Any = type(self)
        about: Any = {"shapes": line.shapes, "states": tuple(one.shape for one in line.states)}
        outputs = len(line.outputs) if len(line.outputs) > 1 else None
        if not kind.__module__.startswith(PACKAGE):  # the library does not know it
            return to(f"{kind.__module__}.{kind.__name__}", *inputs, outputs=outputs, **about)
        settings = {one.name: getattr(self, one.name) for one in fields(kind)}
        return to(kind.__name__, *inputs, outputs=outputs, **about, **settings)

    @classmethod
    def listed(
        cls, to: Listing, title: str, outputs: int | None, inputs: tuple[Any, ...], settings: dict[str, Any]
    ) -> Any:
        """Appends its line with only these inputs and settings given: the others, shapes and states follow. A line of
        the library whose inputs and settings are not the instruction's, which has an `emit` then, stays as it is."""
        names, title = _taken(cls.takes, cls.forward), f"{title}: {cls.__name__}"
        if cls.emit is not Instruction.emit and cls.__name__ in LINES:
            return to(cls.__name__, *inputs, outputs=outputs, shapes=(), **settings)
        if len(inputs) > len(names) and not _starred(cls):
            raise TypeError(f"{title}: got {len(inputs)} inputs, expected {', '.join(names)}")
        try:
            made = cls(**settings)
        except TypeError as error:
            raise TypeError(f"{title}: settings do not fit: {error}") from error
        inputs += (None,) * (len(names) - len(inputs))
        for name, one in zip(names, inputs, strict=False):
            expected = "an array" if name in made.parameters else "a register"
            if (one is None and names[name]) or (one is not None and isinstance(one, int) == (expected == "an array")):
                got = "a register" if isinstance(one, int) else an(type(one).__name__)
                raise TypeError(f"{title}: {name} is {'None' if one is None else got}, expected {expected}")
        shapes = tuple(to.shapes[one] if isinstance(one, int) else getattr(one, "shape", None) for one in inputs)
        sizes, states = made.fitted(title, shapes)
        places = tuple(range(len(sizes)))
        found = made.emit(to, Line(cls.__name__, made, (), places, (), shapes, sizes, states, False), *inputs)
        to.shapes |= zip(found if isinstance(found, tuple) else (found,), sizes, strict=True)
        return found

    def fitted(self, title: str, shapes: tuple[Any, ...]) -> tuple[tuple[Shape, ...], tuple[StateArray, ...]]:
        """Returns the shapes of its outputs and the arrays of its state, from the shapes of its inputs. Raises
        ValueError, which begins with `title`, where inputs do not fit."""
        try:
            return self.shapes(*shapes), self.state(*shapes)
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{title}: got shapes {', '.join(map(str, shapes))}: {error}") from error


def _check_definition(kind: type[Instruction]) -> None:
    """Raises TypeError if the names, the sizes or the methods that an instruction declares do not fit each other."""
    title = kind.__name__
    for declared in ("takes", "form", "states"):
        if not isinstance(value := getattr(kind, declared), str | property):  # a property depends on settings
            raise TypeError(f"{title}: {declared} is {value!r}, expected a string")
    if isinstance(kind.states, str):
        arrays = [one.split()[0] for one in kind.states.split(";") if one.strip()]
        if len(arrays) > len({*arrays}):
            raise TypeError(f"{title}: states is {kind.states!r}, expected each name once, as 'h N; c N'")
    names, starred = _taken(kind.takes, kind.forward), _starred(kind)
    if not all(map(str.isidentifier, names)):
        raise TypeError(f"{title}: takes is {kind.takes!r}, expected names with spaces between, as 'a x'")
    if not names and not starred:
        raise TypeError(f"{title}: forward has no input, expected forward(self, call, x), with the inputs after call")
    for declared in ("reads", "parameters"):
        value, known = getattr(kind, declared), [*names, *(("y",) if declared == "reads" else ())]
        if isinstance(value, property):
            continue
        if not isinstance(value, tuple):
            raise TypeError(f"{title}: {declared} is {value!r}, expected a tuple of names, as ({known[0]!r},)")
        if unknown := [one for one in value if one not in known]:
            raise TypeError(f"{title}: {declared} has {unknown[0]!r}, expected names among {', '.join(known)}")
    if starred:
        return
    for method, first in (("backward", ("call", "dy")), ("emit", ("to", "line"))):
        if not hasattr(kind, method):  # it may be a base
            continue
        try:
            inspect.signature(getattr(kind, method)).bind(None, *first, *names)
        except TypeError as error:
            expected = ", ".join(("self", *first, *names))
            raise TypeError(f"{title}: {method} has other arguments ({error}), expected {expected}") from error
    if (kind.shapes is Instruction.shapes or "form" in vars(kind)) and isinstance(kind.form, str):
        if kind.form.count("->") != 1:
            raise TypeError(f"{title}: form is {kind.form!r}, expected inputs and outputs, as 'N; N -> N'")
        inputs, outputs = _forms(kind.form)
        if len(inputs) != len(names):
            got = f"{plural(len(inputs), 'input')}, expected {len(names)}, one each for {', '.join(names)}"
            raise TypeError(f"{title}: form {kind.form!r} has {got}")
        sizes = {_factor(axis)[1] for one in inputs for axis in one.split()}
        states = [] if isinstance(kind.states, property) else [*_state_forms(kind.states).values()]
        for where, forms in (("form", outputs), ("states", states)):
            if unknown := [one for form in forms for one in form.split() if _factor(one)[1] not in {*sizes, ""}]:
                got = f"{where} {getattr(kind, where)!r} has the size {unknown[0]!r}"
                raise TypeError(f"{title}: {got}, expected sizes of the inputs, {', '.join(inputs)}")


def _forms(form: str) -> tuple[list[str], list[str]]:
    """Returns the forms of the inputs and of the outputs."""
    inputs, outputs = ([one.strip() for one in part.split(";")] for part in form.split("->"))
    return inputs, outputs


def _state_forms(states: str) -> dict[str, str]:
    """Returns the forms of the arrays of a state by name."""
    named = (one.split(maxsplit=1) for one in states.split(";") if one.strip())
    return {name: " ".join(form) for name, *form in named}


def _fits(form: str, shape: Shape, sizes: dict[str, Shape]) -> bool:
    """Whether a shape has the letters' sizes, which are added to `sizes` if they are new."""
    letters, at = form.split(), 0
    for one in letters:
        count = len(shape) - len(letters) + 1 if one == "..." else 1
        times, letter = _factor(one)
        own = shape[at : at + count]
        if count < 0 or len(own) < count or (one != "..." and own[0] % times):
            return False
        own = own if one == "..." else (own[0] // times,)
        if sizes.setdefault(letter, own if letter else (1,)) != own:
            return False
        at += count
    return at == len(shape)


def _of_sizes(form: str, sizes: dict[str, Shape]) -> Shape:
    """Returns the shape of a form, from the sizes of its letters."""
    parts = (_factor(one) for one in form.split())
    try:
        return tuple(times * size for times, letter in parts for size in (sizes[letter] if letter else (1,)))
    except KeyError as error:
        raise ValueError(f"no given input has the size {error.args[0]} of {form}") from None


def _factor(axis: str) -> tuple[int, str]:
    """Returns the factor and the letter of an axis: 4 and "N" of "4N", 1 and "N" of "N", 2 and "" of "2"."""
    letter = axis.lstrip("0123456789")
    return int(axis.removesuffix(letter) or 1), letter


def taken(instruction: Instruction) -> dict[str, bool]:
    """Returns the names of an instruction's inputs, without those of a starred argument, and whether each must be
    given."""
    kind = type(instruction)
    return _taken(kind.takes, kind.forward)


@cache
def _taken(takes: str, forward: Any) -> dict[str, bool]:
    if takes:
        return {one.rstrip("?"): not one.endswith("?") for one in takes.split()}
    names = [one for one in inspect.signature(forward).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    return {one.name: one.default is one.empty for one in names[2:]}  # after self and call


def _starred(kind: type[Instruction]) -> bool:
    """Whether forward takes any number of inputs."""
    starred = any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(kind.forward).parameters.values())
    return starred and not kind.takes


MISSING = -1  # the last element of a list of registers, None


@dataclass(frozen=True, eq=False)
class Register:
    """A value of a program: its place among the registers, and its shape without (B, T); a parameter's whole shape."""

    place: int
    shape: Shape


@dataclass(frozen=True)
class Line:
    """An instruction with the places of its inputs and outputs; `read` are the inputs that its adjoint gets. MISSING
    stands for an input that is not given. `shapes` are of its inputs, `sizes` of its outputs. A line is `fixed` if all
    its inputs are: parameters, and outputs of fixed lines."""

    name: str
    instruction: Instruction
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    read: tuple[int, ...]
    shapes: tuple[Shape | None, ...]
    sizes: tuple[Shape, ...]
    states: tuple[StateArray, ...]
    fixed: bool

    @property
    def kind(self) -> str:
        """The name of the instruction's class."""
        return type(self.instruction).__name__

    @property
    def along(self) -> bool:
        """Whether it runs along time."""
        return bool(self.states) or self.instruction.along


@dataclass(frozen=True)
class Program:
    """The registers of a layer by name, its lines, and the place of its output. Register 0 is the input x, then come
    the `parameters`. `Programmed.registers` returns the registers that are `shown`; `given` are further inputs."""

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    all_lines: tuple[Line, ...]
    y: int
    shown: dict[str, Register]
    given: dict[str, Register]

    @cached_property
    def fixed_lines(self) -> tuple[Line, ...]:
        """The lines that depend on parameters alone."""
        return tuple(line for line in self.all_lines if line.fixed)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines that depend on the input."""
        return tuple(line for line in self.all_lines if not line.fixed)

    @cached_property
    def states(self) -> tuple[StateArray, ...]:
        """The arrays of the state; a name that several have is numbered."""
        states = [one for line in self.lines for one in line.states]
        names = [one.name for one in states]
        numbers = [names[:i].count(name) + 1 for i, name in enumerate(names)]
        return tuple(
            replace(one, name=f"{one.name}_{number}") if names.count(one.name) > 1 else one
            for one, number in zip(states, numbers, strict=True)
        )

    @cached_property
    def fixed_outputs(self) -> tuple[int, ...]:
        """The outputs of the fixed lines."""
        return tuple(place for line in self.fixed_lines for place in line.outputs)

    @cached_property
    def fixed(self) -> frozenset[int]:
        """The registers that depend on parameters alone."""
        return frozenset((MISSING, *range(1, 1 + len(self.parameters)), *self.fixed_outputs))

    @cached_property
    def kept(self) -> dict[str, int]:
        """The registers that forward saves: registers that adjoints read, or from which these are recomputed, and the
        outputs of the fixed lines. Outputs of a light line are saved in place of inputs that no other line reads, if
        they are no larger: parts in place of the whole."""
        read = {one.place for one in self.shown.values()}.union(*map(_read, self.lines))
        saved, readers, numbers = set(self.fixed_outputs), Counter[int](), dict.fromkeys(self.fixed, 0)
        for line in self.lines:
            readers.update(line.inputs)
            numbers |= zip(line.outputs, map(math.prod, line.sizes), strict=True)
        for line in reversed(self.lines):
            outputs, alone = read & set(line.outputs), {one for one in line.inputs if readers[one] == 1} - read - {0}
            if line.instruction.light and sum(numbers[one] for one in outputs) > sum(numbers[one] for one in alone):
                read |= set(line.inputs)
            else:
                saved |= outputs
        saved |= read & {0}
        return {self.names[place]: place for place in sorted(saved)}

    @cached_property
    def again(self) -> tuple[tuple[Line, ...], ...]:
        """For each line, the lines that are run again before its adjoint."""
        known, found = {*self.kept.values(), *self.fixed}, []
        for line in reversed(self.all_lines):
            found.append(self.missing(_read(line), known))
        return tuple(reversed(found))

    def missing(self, places: set[int], known: set[int]) -> tuple[Line, ...]:
        """Returns the lines that compute registers from `known` registers, and adds their outputs to `known`."""
        found: list[Line] = []
        for line in reversed(self.lines):
            if not (places - known).isdisjoint(line.outputs):
                found.append(line)
                places = places | set(line.inputs)
        known |= {place for line in found for place in line.outputs}
        return tuple(reversed(found))

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """For each line the registers that no later line reads and that are not saved."""
        last = {place: i for i, line in enumerate(self.lines) for place in (*line.inputs, *line.outputs)}
        stay = {0, self.y, *self.kept.values(), *self.fixed}
        return tuple(tuple(one for one in last if last[one] == i and one not in stay) for i in range(len(self.lines)))

    @cached_property
    def slices(self) -> tuple[slice | None, ...]:
        """For each line where its arrays are in a state."""
        ends = [0, *accumulate(len(line.states) for line in self.lines)]
        return tuple(slice(*ends[i : i + 2]) if line.states else None for i, line in enumerate(self.lines))

    @cached_property
    def checking(self) -> tuple[tuple[Instruction, slice], ...]:
        """The instructions that check more of a state than its form, and where their arrays are in it."""
        each = zip((line.instruction for line in self.lines), self.slices, strict=True)
        own = Instruction.check_state
        return tuple((one, at) for one, at in each if at is not None and type(one).check_state is not own)

    def run_packed(self, line: Line, values: list[Any], call: Call) -> None:
        """Runs a line for a packed row: by segments if it is along time."""
        segments = call.ctx.segments
        if segments is None or not line.along:
            _run(line, values, call)
        else:
            _run_packed(line, self.fixed, values, call, segments.as_one(line.instruction.together(call.ctx)))

    def split(self, state: State) -> list[tuple[Any, ...] | None]:
        """Returns for each line its arrays of a state, or of a gradient of it; None for lines without a state."""
        arrays = state if isinstance(state, tuple) else (state,)
        return [None if state is None or one is None else arrays[one] for one in self.slices]


class Builder:
    """Writes the program of a layer: ``p(instruction, *inputs)`` appends a line, and returns its output or outputs.

    An input is a register of this builder, or the name of a parameter. A name that the layer's `shapes` do not have (an
    optional bias) is left out, as None is. `x` is the layer's input.

    Raises TypeError or ValueError, which name the layer, the line and the input, where an input is something else, is a
    parameter where it may not be, is missing, or has a shape that does not fit.
    """

    def __init__(self, layer: Recurrent) -> None:
        self._title = f"{type(layer).__name__}.program"
        self._parameters = tuple(layer.shapes)
        self._names = ["x", *self._parameters]
        shapes = [(layer.d_model,), *layer.shapes.values()]
        self._registers = [Register(place, shape) for place, shape in enumerate(shapes)]
        self._fixed = {MISSING, *range(1, len(self._names))}  # registers that depend on parameters alone
        self._lines: list[Line] = []
        self._unknown: list[str] = []
        self._given: dict[str, Register] = {}
        self.x = self._registers[0]

    def given(self, name: str, width: int) -> Register:
        """Returns a register for a further input (B, T, width) of forward, which has no gradient, and which adjoints
        cannot read. Where forward gets none, and in steps of streaming inference, its value is None."""
        made = self._given[name] = Register(len(self._registers), (width,))
        self._registers.append(made)
        self._names.append(name)
        return made

    def __call__(self, instruction: Instruction, *inputs: Register | str | None) -> Any:
        if not isinstance(instruction, Instruction):
            raise TypeError(f"{self._title}: got {instruction!r:.80}, expected an instruction, as Dense()")
        count = sum(type(line.instruction) is type(instruction) for line in self._lines)
        kind = type(instruction)
        name = f"{kind.__name__}{1 + count}" if count else kind.__name__
        title = f"{self._title}: {name}"
        if lacking := [one for one in ("forward", "backward") if not hasattr(kind, one)]:
            raise TypeError(f"{title}: has no method {lacking[0]}, expected forward and backward")
        own = [one for one, what in inspect.get_annotations(kind).items() if "ClassVar" not in str(what)]
        if own and "__dataclass_fields__" not in vars(kind):
            raise TypeError(f"{title}: has the setting {own[0]} and is no dataclass, expected @dataclass(frozen=True)")
        names = taken(instruction)
        if len(inputs) > len(names) and not _starred(kind):
            raise TypeError(f"{title}: got {len(inputs)} inputs, expected {', '.join(names)}")
        given = [self._register(f"{title}: {one}", value) for one, value in zip_longest(names, inputs)]
        places = tuple(MISSING if one is None else one.place for one in given)
        fixed = instruction.foldable and self._fixed.issuperset(places)
        for one, register, value in zip_longest(names, given, inputs):
            if one is None:
                continue  # a starred input
            if register is None and names[one]:
                raise ValueError(f"{title}: {one} is {value!r}, expected a register, or a parameter of the layer")
            constant = register is not None and register.place in self._fixed
            if register is not None and constant != (fixed or one in instruction.parameters):
                got, expected = ("on parameters alone", "on x") if constant else ("on x", "on parameters alone")
                raise ValueError(f"{title}: {one} depends {got}, expected one that depends {expected}")
        shapes = tuple(None if one is None else one.shape for one in given)
        outputs, states = instruction.fitted(title, shapes)
        read = tuple(
            place if place in self._fixed or one in instruction.reads else MISSING
            for one, place in zip_longest(names, places)
        )
        made = tuple(Register(len(self._registers) + i, shape) for i, shape in enumerate(outputs))
        at = tuple(one.place for one in made)
        self._lines.append(Line(name, instruction, places, at, read, shapes, outputs, states, fixed))
        self._fixed |= set(at) if fixed else set()
        self._registers += made
        self._names += [name if len(made) == 1 else f"{name}_{i}" for i in range(len(made))]
        return made[0] if len(made) == 1 else made

    def _register(self, title: str, value: Any) -> Register | None:
        """Returns an input as a register; None if it is not given."""
        if isinstance(value, str):
            if value not in self._parameters:
                self._unknown.append(value)
                return None
            return self._registers[1 + self._parameters.index(value)]
        if value is None:
            return None
        if not isinstance(value, Register):
            raise TypeError(f"{title} is {an(type(value).__name__)}, expected a register, or the name of a parameter")
        if value.place >= len(self._registers) or self._registers[value.place] is not value:
            raise ValueError(f"{title} is a register of another program, expected one of this builder")
        return value

    def returns(self, y: Register, /, **shown: Register) -> Program:
        """Returns the program, whose output is y, of the layer's width. `Programmed.registers` returns the registers
        that are `shown` by these names; "h" is the layer's vector of hidden states. Raises ValueError if y has another
        shape, or if a line's output or a parameter is not read."""
        title = f"{self._title}: returns"
        for name, one in {"y": y, **shown}.items():
            if self._register(f"{title}: {name}", one) is None or isinstance(one, str):
                raise TypeError(f"{title}: {name} is {one!r}, expected a register")
        if y.shape != self.x.shape or y.place in self._fixed:
            what = "depends on parameters alone" if y.place in self._fixed else f"has shape {y.shape}"
            raise ValueError(f"{title}: y {what}, expected shape {self.x.shape}, as of x")
        read = {y.place, *(place for line in self._lines for place in line.inputs)}
        if idle := [line.name for line in self._lines if read.isdisjoint(line.outputs)]:
            raise ValueError(f"{title}: no line reads the output of {idle[0]}, and it is not y")
        if idle := [name for place, name in enumerate(self._parameters, 1) if place not in read]:
            unknown = f"; {', '.join(map(repr, self._unknown))} is no parameter" if self._unknown else ""
            raise ValueError(f"{title}: no line reads the parameter {idle[0]!r}{unknown}")
        return Program(tuple(self._names), self._parameters, tuple(self._lines), y.place, shown, self._given)


class Prepared(NamedTuple):
    """All registers, with values for those that depend on parameters alone, and the prepared values of each line."""

    registers: tuple[Any, ...]
    lines: tuple[Any, ...]


class Grown(NamedTuple):
    """An array of a state after x with one row for each step, of sequences with so many `steps` (B,). The last rows may
    belong to no sequence: the shape of what is saved must not depend on the count."""

    rows: Array
    steps: Array

    def trimmed(self) -> Array:
        """Returns the array, with as many rows as the longest sequence has steps."""
        most = int(self.steps.max(initial=0))
        return self.rows if most == self.rows.shape[1] else self.rows[:, :most].copy()


def _trimmed(state: Any) -> Any:
    if isinstance(state, Grown):
        return state.trimmed()
    return tuple(map(_trimmed, state)) if isinstance(state, tuple) else state


class ProgramSaved(NamedTuple):
    """Saved for backward: registers by name, the kept values of each line, the lengths, the `initial` state and the
    state `after` x, whose arrays may be `Grown`, and the segments of a packed row. The state after x is None for a
    bidirectional layer. For a packed row, a line along time keeps a `PackedSaved`."""

    registers: dict[str, Array]
    kept: dict[str, Any]
    lengths: npt.NDArray[np.int64] | None
    initial: State
    after: State
    segments: Segments | None = None

    @property
    def state(self) -> State:
        """The state after x."""
        return _trimmed(self.after)


@dataclass(frozen=True)
class Programmed(Recurrent):
    """A layer that is given by a program: a subclass declares its `shapes`, `init` and `program`."""

    packs: ClassVar[bool] = True

    @abstractmethod
    def program(self) -> Program:
        """Returns the layer's program."""

    @cached_property
    def _program(self) -> Program:
        program: Any = self.program()
        if not isinstance(program, Program):
            kind = type(self).__name__
            raise TypeError(
                f"{kind}.program: returned {an(type(program).__name__)}, expected the result of Builder.returns"
            )
        return program

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process writes its program anew."""
        return {name: value for name, value in vars(self).items() if name != "_program"}

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of the registers that the program shows (`registers`)."""
        return tuple(self._program.shown)

    @property
    def state_form(self) -> StateForm:
        states = self._program.states
        return states[0] if len(states) == 1 else states

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        super().check_state(args, name, state)
        if state is not None:
            for instruction, own in self._program.checking:
                instruction.check_state(args, name, state_leaves(state)[own])

    @property
    def hidden(self) -> StateArray:
        h = self._program.shown.get("h")
        return StateArray("y", (self.d_model,)) if h is None else StateArray("h", (math.prod(h.shape),))

    def hidden_states(self, saved: ProgramSaved) -> Array | None:
        shown = self._program.shown.get("h")
        if shown is None:
            return None
        h = saved.registers[self._program.names[shown.place]]
        return h.reshape(*h.shape[:2], math.prod(h.shape[2:]))

    @property
    def state_size(self) -> int | None:
        return self.state_lanes if "h" not in self._program.shown else self.hidden.lanes

    def prepare(self, params: Params) -> Prepared:
        """Returns the values that depend on the parameters alone."""
        program, values = self.begun(params, TRUSTED)
        return Prepared(
            tuple(values), tuple(line.instruction.prepare(*_given(line.inputs, values)) for line in program.lines)
        )

    def forward(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, ProgramSaved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call."""
        return self._forward(params, x, ctx, state, {})

    def _forward(
        self, params: Params, x: Array, ctx: Context, state: State, given: dict[str, Array | None]
    ) -> tuple[Array, ProgramSaved]:
        """Forward with further inputs by name (`Builder.given`)."""
        kept: dict[str, Any] = {}
        program, values = self.begun(params, ctx, kept)
        values[0] = mask_padding(x, ctx.lengths)
        for name, value in given.items():
            if value is not None:
                args, register = self.boundary("forward"), program.given[name]
                for letter, size in zip("BTN", (*x.shape[:2], *register.shape), strict=True):
                    args.bind(letter, size, "" if letter == "N" else "x")
                values[register.place] = mask_padding(args.array(name, value, "B T N"), ctx.lengths)
        after: list[Any] = []
        before, run = (state, _run) if ctx.segments is None else (ctx.segments.before(state), program.run_packed)
        for line, own, ends in zip(program.lines, program.split(before), program.ends, strict=True):
            call = Call(line, ctx, own)
            run(line, values, call)
            after += _of_states(line, call.after, "forward", "after")
            if call.kept is not None:
                kept[line.name] = call.kept
            for place in ends:
                values[place] = None
        registers = {name: values[place] for name, place in program.kept.items()}
        y, whole = mask_padding(values[program.y], ctx.lengths), self._whole(after)
        if ctx.segments is not None:
            whole = ctx.segments.after(whole)
        return y, ProgramSaved(registers, kept, ctx.lengths, before, whole, ctx.segments)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        return self.emitted(to, params, x)["y"]

    def emitted(self, to: Listing, params: Params, x: int) -> dict[str, int]:
        """Appends the lines that depend on the input; values that depend on parameters alone are computed. Returns the
        registers of the output, "y", and the shown registers, "h" as real lanes."""
        program, values = self.begun(to.exact(params))
        values[0] = x
        for line in program.lines:
            inputs, to.writer = _given(line.inputs, values), f"{type(line.instruction).__name__}.emit"
            to.shapes |= {i: shape for i, shape in zip(inputs, line.shapes, strict=True) if isinstance(i, int)}
            found = line.instruction.emit(to, line, *inputs)
            registers = found if isinstance(found, tuple) else (found,)
            if len(registers) != len(line.outputs) or not all(isinstance(one, int) for one in registers):
                count = len(line.outputs)
                expected = "the register of its output" if count == 1 else f"a tuple of {count} registers"
                raise TypeError(f"{to.writer}: returned {found!r:.80}, expected {expected}")
            for one, shape in zip(registers, line.sizes, strict=True):
                if to.shapes.setdefault(one, shape) != shape:
                    raise ValueError(f"{to.writer}: returned a register of shape {to.shapes[one]}, expected {shape}")
            for place, value in zip(line.outputs, registers, strict=True):
                values[place] = value
        to.writer = ""
        shown = {name: values[one.place] for name, one in program.shown.items()}
        if "h" in shown and len(program.shown["h"].shape) > 1:
            shown["h"] = to("Reshape", shown["h"], shape=(self.hidden.lanes,))
        return {"y": values[program.y], **shown}

    def step(self, params: Params, state: State, x_t: Array, prepared: Prepared | None = None) -> tuple[Array, State]:
        ready = trusted(self.prepare)(params) if prepared is None else prepared
        if not isinstance(ready, Prepared):
            kind, got = type(self).__name__, an(type(ready).__name__)
            raise TypeError(f"{kind}.step: prepared is {got}, expected the result of prepare(params)")
        program, values = self._program, [*ready.registers]
        values[0] = x_t[:, None]
        after: list[Any] = []
        for line, own, of_line in zip(program.lines, program.split(state), ready.lines, strict=True):
            call = Call(line, TRUSTED, own)
            call.stepping, call.prepared = True, of_line
            try:
                _run(line, values, call)
            except UNFIT as error:
                _blame(error, f"{type(self).__name__}.step: {line.name}", line)
                raise
            after += _of_states(line, call.after, "forward", "after")
        return values[program.y][:, 0], self._whole(after)

    def backward(
        self, params: Params, saved: ProgramSaved, dy: Array, dstate: State = None, dh: Array | None = None
    ) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, gradient of forward's `state`, or of a zero state if it was None). `dh` (B, T, N), if
        given by another module, is a further gradient of `hidden_states`."""
        ctx = TRUSTED if saved.lengths is None else TRUSTED.checked(saved.lengths)
        program, values = self._of_parameters(params)
        for name, place in program.kept.items():
            values[place] = saved.registers[name]
            if place not in program.fixed and values[place].shape[:2] != dy.shape[:2]:  # NumPy might broadcast it
                raise ValueError(f"{name} has shape {values[place].shape}, expected (B, T) of dy={dy.shape[:2]}")
        grads = Gradients(len(values), program.y, mask_padding(dy, saved.lengths))
        if dh is not None:
            h = program.shown["h"]
            grads.add(h.place, dh.reshape(*dh.shape[:2], *h.shape))
        if dstate is not None:
            for form, d, known in zip(program.states, state_leaves(dstate), state_leaves(saved.state), strict=True):
                if d is not None and None in form.shape and d.shape != known.shape:  # one row for each step
                    name = "dstate" if len(program.states) == 1 else f"dstate.{form.name}"
                    kind = type(self).__name__
                    raise ValueError(f"{kind}.backward: {name} has shape {d.shape}, expected {known.shape}")
        before: list[Any] = []
        if saved.segments is not None:
            dstate = saved.segments.after_backward(dstate)
        states, dstates = program.split(saved.initial), program.split(dstate)
        for line, again in zip(reversed(program.all_lines), reversed(program.again), strict=True):
            for light in again:
                _run(light, values, Call(light, ctx))
            call = Call(line, ctx)
            call.kept = saved.kept.get(line.name)
            if not line.fixed:
                call.state, call.dafter = states.pop(), dstates.pop()
            if "y" in line.instruction.reads:
                call.y = values[line.outputs[0]] if len(line.outputs) == 1 else _given(line.outputs, values)
            if not line.states and not grads.reach(line.outputs):
                continue  # nothing depends on it
            taken = [*map(grads.take, line.outputs)]
            adjoint = _adjoint if saved.segments is None or not line.along else partial(_packed_adjoint, program.fixed)
            try:
                found = adjoint(
                    line, call, dy.shape[:2], taken if len(taken) > 1 else taken[0], _given(line.read, values)
                )
            except UNFIT as error:
                title = f"{type(self).__name__}.backward: {line.name}"
                _explain(error, title, line)
                _blame(error, title, line)
                raise
            for place, d in zip(line.inputs, found, strict=True):
                if place != MISSING and d is not None:
                    grads.add(place, d)
            before[:0] = _of_states(line, call.dbefore, "backward", "dbefore")
        dx, *given = map(grads.take, range(1 + len(program.parameters)))
        dparams = {
            name: np.zeros_like(params[name]) if d is None else d
            for name, d in zip(program.parameters, given, strict=True)
            if name not in BUFFERS
        }
        whole = self._whole(before)
        if saved.segments is not None:
            whole = saved.segments.before_backward(whole)
        return np.zeros_like(dy) if dx is None else dx, dparams, whole

    def registers(
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None, *, names: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Returns the registers that the program shows, (B, T, ...) by name, or those of these `names`, from the lines
        that they need. They are zero beyond ``ctx.lengths``; a register that depends on parameters alone has no (B, T).
        Arguments and errors as in `forward`, and ValueError for a name that is not among `shown`."""
        if isinstance(names, str) or not isinstance(names, Sequence):
            got = f"{an(type(names).__name__)}, expected a list or tuple of names"
            raise TypeError(f"{type(self).__name__}.registers: names is {got}")
        if unknown := [name for name in names if name not in self.shown]:
            title = f"{type(self).__name__}.registers: names has {unknown[0]!r}, which the program does not show"
            raise ValueError(title + nearest(str(unknown[0]), self.shown))
        program, values = self.begun(params, ctx)
        values[0] = mask_padding(x, ctx.lengths)
        shown = {name: one.place for name, one in program.shown.items() if name in names or not names}
        needed = {line.name for line in program.missing({*shown.values()}, {0, *program.fixed})}
        before, run = (state, _run) if ctx.segments is None else (ctx.segments.before(state), program.run_packed)
        for line, own in zip(program.lines, program.split(before), strict=True):
            if line.name in needed:
                run(line, values, Call(line, ctx, own))
        return {
            name: values[place] if place in program.fixed else mask_steps(values[place], ctx.lengths)
            for name, place in shown.items()
        }

    def begun(
        self, params: Params, ctx: Context = TRUSTED, kept: dict[str, Any] | None = None
    ) -> tuple[Program, list[Any]]:
        """Returns the program and its registers, with values for the registers that depend on parameters alone. Arrays
        that their lines keep are added to `kept`."""
        program, values = self._of_parameters(params)
        for line in program.fixed_lines:
            call = Call(line, ctx)
            _run(line, values, call)
            if kept is not None and call.kept is not None:
                kept[line.name] = call.kept
        return program, values

    def _of_parameters(self, params: Params) -> tuple[Program, list[Any]]:
        """Returns the program and its registers, with values for the parameters."""
        program = self._program
        values: list[Any] = [None] * (len(program.names) + 1)
        for place, name in enumerate(program.parameters, 1):
            values[place] = params[name]
        return program, values

    def _whole(self, arrays: list[Any]) -> State:
        """Returns the state of the arrays of all instructions."""
        if getattr(self, "bidirectional", False):
            return None
        return arrays[0] if len(self._program.states) == 1 else tuple(arrays)


class Gradients:
    """The gradients of registers, added up. `take` returns the gradient of a register, which is then forgotten."""

    def __init__(self, count: int, place: int, d: Array) -> None:
        self._of: list[Any] = [None] * count
        self._of[place] = d
        self._own: set[int] = set()  # sums, which may be written to

    def add(self, place: int, d: Array) -> None:
        known = self._of[place]
        if known is None:
            self._of[place] = d
        elif place in self._own and known.dtype == d.dtype:
            np.add(known, d, out=known)
        else:
            self._of[place] = pooled(np.add, known, d)
            self._own.add(place)

    def take(self, place: int) -> Any:
        d, self._of[place] = self._of[place], None
        self._own.discard(place)
        return d

    def reach(self, outputs: tuple[int, ...]) -> bool:
        """Whether there is a gradient of any of these registers."""
        return any(self._of[place] is not None for place in outputs)


def _read(line: Line) -> set[int]:
    """Returns the registers that a line's adjoint reads."""
    own = {*line.outputs} if "y" in line.instruction.reads else set()
    return own | set(line.read)


def _explain(error: Exception, title: str, line: Line) -> None:
    """Re-raises an error of an adjoint that met None, with the names of the inputs that it does not get."""
    names, reads = taken(line.instruction), line.instruction.reads
    if named(error):
        return  # it is about what the adjoint takes or returns
    given = [*zip(names, line.inputs, line.read, strict=False), ("y", line.outputs[0], MISSING)]
    unread = [name for name, place, read in given if place != read and name not in reads]
    if unread and re.search(r"None|dtype object|0-dimensional|enough dimensions|many subscripts", str(error)):
        what = f"backward gets None for {', '.join(unread)}, which reads={reads!r} does not name"
        raise TypeError(f"{title}: {error}; {what}") from error


def _blame(error: Exception, title: str, line: Line) -> None:
    """Re-raises an error of an instruction outside the package with its name: its arguments are right."""
    if line.instruction.foreign and not named(error):
        what = str(error) if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {error}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{title}: {what}") from error


def _each(line: Line, method: str, found: Any, count: int) -> tuple[Any, ...]:
    """Returns the arrays that a method of a line's instruction returned. Raises TypeError if they are not so many."""
    arrays = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(arrays) != count:
        got = (
            an(type(found).__name__) if isinstance(found, dict) or np.isscalar(found) else plural(len(arrays), "array")
        )
        raise TypeError(f"{line.kind}.{method}: returned {'None' if found is None else got}, expected {count}")
    return arrays


def _of_states(line: Line, arrays: Any, method: str, name: str) -> tuple[Any, ...]:
    """Returns the arrays that a method of a line's instruction set in its call. Raises TypeError if they are not one
    for each array of the state."""
    if not isinstance(arrays, tuple | list) or len(arrays) != len(line.states):
        kind, names = type(line.instruction).__name__, ", ".join(one.name for one in line.states) or "none"
        got = plural(len(arrays), "array") if isinstance(arrays, tuple | list) else an(type(arrays).__name__)
        raise TypeError(f"{kind}.{method}: call.{name} is {got}, expected a tuple of one for each state: {names}")
    return tuple(arrays)


def _given(places: tuple[int, ...], values: list[Any]) -> list[Any]:
    return [*map(values.__getitem__, places)]


def _run_packed(line: Line, fixed: frozenset[int], values: list[Any], call: Call, segments: Segments) -> None:
    """Like `_run` for a line along time of a packed row: its segments are a batch for each group. `fixed` are the
    registers that depend on parameters alone, which all groups have in common."""
    runs, outputs = [], []
    for group in segments.groups:
        one = Call(line, call.ctx.unpacked(group), each(group.of, call.state))
        inputs = _of_group(line.inputs, fixed, _given(line.inputs, values), segments, group)
        outputs.append(_forward(line, one, inputs))
        one.after = _trimmed(one.after)
        runs.append(one)
    for place, parts in zip(line.outputs, zip(*outputs, strict=True), strict=True):
        values[place] = segments.packed(parts)
    newest = tuple(one.newest_last for one in line.states)
    call.kept = PackedSaved(segments, tuple(one.kept for one in runs), tuple(shapes_of(one.after) for one in runs))
    call.after = segments.collected([tuple(one.after) for one in runs], newest) if line.states else ()


def _packed_adjoint(
    fixed: frozenset[int], line: Line, call: Call, steps: Shape, dy: Any, read: list[Any]
) -> tuple[Any, ...]:
    """The adjoint of `_run_packed`, with the arguments of `_adjoint`."""
    segments = call.kept.segments
    newest = tuple(one.newest_last for one in line.states)
    found, before = [], []
    for group, kept, shapes in zip(segments.groups, call.kept.parts, call.kept.shapes, strict=True):
        one = Call(line, TRUSTED.unpacked(group), each(group.of, call.state))
        one.kept = kept
        if call.dafter is not None:
            one.dafter = of_group(group, call.dafter, shapes, newest)
        one.y, d = (_along(of, segments, group) for of in (call.y, dy))
        inputs = _of_group(line.read, fixed, read, segments, group)
        found.append(_adjoint(line, one, group.shape, d, inputs))
        before.append(_of_states(line, one.dbefore, "backward", "dbefore"))
    call.dbefore = segments.collected(before, newest) if line.states else ()
    return tuple(
        total(parts) if place in fixed or parts[0] is None else segments.packed(parts)
        for place, parts in zip(line.inputs, zip(*found, strict=True), strict=True)
    )


def _of_group(
    places: tuple[int, ...], fixed: frozenset[int], values: Sequence[Any], segments: Segments, group: Group
) -> list[Any]:
    """Returns a group's part of the registers of a packed row."""
    return [
        value if place in fixed else _along(value, segments, group) for place, value in zip(places, values, strict=True)
    ]


def _along(value: Any, segments: Segments, group: Group) -> Any:
    """Returns a group's part of an array along time, or of several, or None."""
    if isinstance(value, list):
        return [_along(one, segments, group) for one in value]
    return None if value is None else segments.batch(group, value)


def _run(line: Line, values: list[Any], call: Call) -> None:
    """Runs a line forward, and stores its outputs, which are neighbours."""
    first, count = line.outputs[0], len(line.outputs)
    values[first : first + count] = _forward(line, call, _given(line.inputs, values))


def _forward(line: Line, call: Call, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the outputs of a line. Those of an instruction outside the package are checked."""
    of, count = line.instruction, len(line.outputs)
    if not of.foreign:
        return _each(line, "forward", of.forward(call, *inputs), count)
    outputs = _each(line, "forward", of.forward(call, *map(read_only, inputs)), count)
    given = zip_longest(taken(of), inputs)
    along = [one.shape[:2] for name, one in given if one is not None and name not in of.parameters]
    steps: tuple[Any, ...] = () if line.fixed else next(iter(along), (None, None))
    dtypes = of_precision(dtypes_of((*inputs, *(call.state or ()))))
    for name, one, shape in zip(_numbered("an output", count), outputs, line.sizes, strict=True):
        check_array(f"{line.kind}.forward: returned {name}", one, (*steps, *shape), dtypes)
    after = _of_states(line, call.after, "forward", "after")
    for form, one in zip(line.states, after, strict=True):
        if not isinstance(one, Grown):
            check_array(f"{line.kind}.forward: set call.after of {form.name}", one, (steps[0], *form.shape), ())
    return tuple(map(writeable, outputs))


def _adjoint(line: Line, call: Call, steps: Shape, dy: Any, read: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the gradients of a line's inputs, whose inputs along time have (B, T)=`steps`. Those of an instruction
    outside the package are checked."""
    of = line.instruction
    if not of.foreign:
        return _each(line, "backward", of.backward(call, dy, *read), len(line.inputs))
    d = [*map(read_only, dy)] if isinstance(dy, list) else read_only(dy)
    grads = _each(line, "backward", of.backward(call, d, *map(read_only, read)), len(line.inputs))
    dys = dy if isinstance(dy, list) else [dy]
    dtypes = of_precision(dtypes_of((*dys, *read, *(call.state or ()), *(call.dafter or ()))))
    for i, (name, grad, one, shape) in enumerate(zip_longest(taken(of), grads, read, line.shapes)):
        if grad is None or shape is None:
            continue
        whole = shape if line.fixed or name in of.parameters else (*steps, *shape)
        own = dtypes if one is None else [kind for kind in dtypes if kind.kind == one.dtype.kind]
        check_array(f"{line.kind}.backward: returned the gradient of {name or f'input {i}'}", grad, whole, own)
    before = _of_states(line, call.dbefore, "backward", "dbefore")
    for form, one in zip(line.states, before, strict=True):
        if one is not None:
            check_array(f"{line.kind}.backward: set call.dbefore of {form.name}", one, (steps[0], *form.shape), ())
    return tuple(map(writeable, grads))


def _numbered(what: str, count: int) -> list[str]:
    return [what] if count == 1 else [f"{what.removeprefix('an ')} {i}" for i in range(count)]
