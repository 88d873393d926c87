"""Base class of layers, parts of blocks, blocks, stacks and models. It checks arguments once, in the outermost call.

The call that a user makes checks parameters, input, lengths and state, and errors name this call. Inner calls get a
context marked as checked (`Context.checked`), and do not check again. Results of the outermost call for later calls
(`saved`, `prepared`) are marked with the module (`mark`), and a module with other settings refuses them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import is_
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu
from rotrnn._cpu import MOST_NUMBERS
from rotrnn._support.settings import settle
from rotrnn._support.text import alike, an, nearest
from rotrnn.devices.device import is_array, is_plain
from rotrnn.devices.recording import recording
from rotrnn.nn.listing import Listing, Unlisted
from rotrnn.nn.packing import Group, PackedSaved, Segments, check_segments, stepwise
from rotrnn.nn.summary import BUFFERS as BUFFERS
from rotrnn.nn.summary import Part, Summarised, Summary, in_brief, summary
from rotrnn.ops.boundary import COMPLEX, INTEGERS, REAL, Boundary, rename
from rotrnn.ops.sampled import check_intervals, intervals
from rotrnn.ops.split import Ranks

P = ParamSpec("P")
R = TypeVar("R")
Array = npt.NDArray[Any]
Params = dict[str, Any]  # nested: name -> Array or Params
Gather = Callable[[Array], list[Array]]
Sizes = tuple[tuple[str, int], ...]
"""Letters of an input's shape, with their sizes."""
State = Any
"""An array or a tuple of states, with the batch axis first in each array. None is the state before the first step.
Real and complex leaves are differentiable. Integer leaves (positions) are not; their gradient is zero."""


@dataclass(frozen=True)
class Context:
    """The per-call context of forward: lengths, training mode, and the key of random numbers.

    Parameters
    ----------
    lengths : (B,) int64, optional
        Number of valid steps of each sequence. Padding beyond is never read, and is zero in every output.
    train : bool
        Training mode: use batch statistics and dropout.
    seed, step : int
        Key of the random numbers of this training step. The same key gives the same masks on any device.
    places : (B,) int64, optional
        Index of each sequence in the whole batch, which determines its masks. Default: 0..B-1.
    gather : callable, optional
        All-gather for a batch that is distributed over several processes: ``gather(x)`` returns the x (n, ...) of each
        process, in their order. n may differ between processes; dtype and other sizes must be equal, and every process
        must make the same number of calls. It is used for values of the whole batch (batch norm, quantiles of
        residuals). None if the batch is not distributed. If it has an attribute `time`, a `rotrnn.ops.Ranks`, the
        sequences are split as well, and inputs, lengths and outputs are this process's piece of time
        (`rotrnn.training.parallel.Grid`).
    fused : bool
        Run fusible parts (`rotrnn.nn.blocks.fused`) in one pass, which saves little more than the input for backward.
        If false, run them one by one and save everything, including the states of recurrences. Results agree up to
        rounding.
    memory : int, optional
        Bytes for arrays that the fused blocks of a stack keep instead of recomputing them in backward, the most useful
        first (`rotrnn.nn.blocks.fused.kept_by`). Results have the same bits. Default: in training half of the bytes of
        the blocks' inputs, which are saved anyway; else none. 0 is the least memory.
    cu_seqlens : (S + 1,) integers, optional
        Where the S sequences of a packed row begin and end: sequence s is steps ``cu_seqlens[s]`` to ``cu_seqlens[s +
        1] - 1`` of an input with B = 1. The first number is 0, the last T; a sequence may be empty. Results equal
        separate calls for each sequence, and states (S, ...) have a row for each. Not with `lengths`.
    reset : (B, T) bool, optional
        Where the state is zeroed just before a step, which cuts rows of any batch into sequences. A given state (B,
        ...) is the state before each row, and the state after a row belongs to its last sequence. Neither with
        `lengths` nor with `cu_seqlens`.
    dt : (B, T) floating-point numbers or integers, optional
        Samples at uneven times: the interval from the step before to each step, in units of the layer's own step size.
        Ones are even times. A layer in continuous time discretises each step with its step size times dt; other layers
        raise NotImplementedError. Intervals are finite and at least 0; padding is never read. With a state, a forward
        of one step is a step of streaming inference.
    """

    lengths: npt.NDArray[np.int64] | None = None
    train: bool = False
    seed: int = 0
    step: int = 0
    places: npt.NDArray[np.int64] | None = None
    gather: Gather | None = None
    fused: bool = True
    memory: int | None = None
    cu_seqlens: npt.NDArray[np.int64] | None = None
    reset: npt.NDArray[np.bool_] | None = None
    dt: Array | None = None
    _segments: Segments | None = field(default=None, repr=False, compare=False)
    _checked: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("train", "fused"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"Context: {name} is {getattr(self, name)!r}, expected True or False")
        for name in ("seed", "step", *(("memory",) if self.memory is not None else ())):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise ValueError(f"Context: {name} is {value!r}, expected an integer from 0")
        if self.seed >= 2**63:
            raise ValueError(f"Context: seed is {self.seed}, expected an integer from 0 to 2^63 - 1")
        if self.step >= 2**32:  # one word of a random counter
            raise ValueError(f"Context: step is {self.step}, expected an integer from 0 to 2^32 - 1")
        if self.gather is not None and not callable(self.gather):
            raise TypeError(f"Context: gather is {an(type(self.gather).__name__)}, expected a function or None")

    @property
    def split(self) -> Ranks | None:
        """The processes that share each sequence; None if sequences are not split."""
        return split_by(self.gather)

    @property
    def segments(self) -> Segments | None:
        """The checked segments of a packed row, in inner calls; None if nothing is packed."""
        return self._segments

    def checked(
        self, lengths: npt.NDArray[np.int64] | None, segments: Segments | None = None, dt: Array | None = None
    ) -> Context:
        """Returns this context with checked lengths or segments, and intervals, marked as checked for inner calls."""
        return replace(self, lengths=lengths, dt=dt, _segments=segments, _checked=True)

    def unpacked(self, group: Group) -> Context:
        """Returns the context of a group of segments (`rotrnn.nn.packing`), which is a batch with lengths."""
        dt = None if self.dt is None or self.segments is None else self.segments.batch(group, self.dt)
        return replace(self, lengths=group.lengths, dt=dt, places=None, cu_seqlens=None, reset=None, _segments=None)


def split_by(gather: Gather | None) -> Ranks | None:
    """Returns the processes that share each sequence, if a context's `gather` says that sequences are split."""
    return getattr(gather, "time", None)


EVALUATION = Context()
TRUSTED = EVALUATION.checked(None)
"""Like EVALUATION, but marked as checked, for inner calls."""


@dataclass(frozen=True)
class StateArray:
    """Declares an array of a state: its name (if there are several), its shape without the batch axis (None: any size),
    and its kind."""

    name: str
    shape: tuple[int | None, ...]
    kind: str = "real"
    """ "real", "complex" or "integer"."""
    newest_last: bool = False
    """For arrays that grow in time, if sequences of a batch differ in length: whether the last rows belong to the
    newest steps (else the first rows belong to the oldest)."""

    @property
    def lanes(self) -> int | None:
        """Number of real numbers in it per sequence; None if it grows in time."""
        if None in self.shape:
            return None
        return math.prod(size or 0 for size in self.shape) * (2 if self.kind == "complex" else 1)


StateForm = StateArray | tuple[StateArray, ...]


def nearer(kind: type, name: str, other: str) -> bool:
    """Returns whether a class inherits an attribute from a nearer base than another attribute."""
    has = [name in vars(base) for base in kind.__mro__]
    return any(has) and not any(other in vars(base) for base in kind.__mro__[: has.index(True) + 1])


class Module(Summarised):
    """Base class for functions with parameters, whose calls are checked.

    When a subclass is defined, its methods `init`, `forward`, `backward`, `backward_all` (of models), `prepare`,
    `fold`, `step`, `transitions`, `eigenvalues` and `registers` are wrapped. The wrapper checks the arguments against
    the declarations of the class (`shapes`, `modules`, `input_forms`, `letters`, `state_form`), and then calls the
    method.
    """

    input_forms: ClassVar[tuple[str, ...]] = ("B T D",)
    """Accepted shapes of the input, as letters in the form of `Boundary.array`."""
    output_forms: ClassVar[tuple[str, ...]] = ("B T D",)
    input_kinds: ClassVar[Sequence[np.dtype[Any]]] = REAL
    letters: ClassVar[dict[str, str]] = {"D": "d_model"}
    """Letter -> name of the attribute with its size, if there is one."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, wrap in _WRAPPERS.items():
            method = vars(cls).get(name)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                setattr(cls, name, wrap(method))
        for lines in ("emit", "emitted"):  # the base's lines would compute another function
            if nearer(cls, "forward", lines) or nearer(cls, "step", lines):
                setattr(cls, lines, getattr(Module, lines))
        if "__repr__" not in vars(cls):
            cls.__repr__ = Module.__repr__  # type: ignore[method-assign]  # or a dataclass writes its own

    def __repr__(self) -> str:
        """Returns the settings that differ from their default values, with successive equal parts shown once."""
        return f"{type(self).__qualname__}({own_settings(self, parts=True)})"

    def init(self, rng: np.random.Generator) -> Params:
        """Returns random parameters in float32, here those of its inner modules; `rotrnn.nn.astype` converts them to
        float64."""
        return {name: one.init(rng) for name, one in self.modules.items()}

    def emit(self, to: Listing, params: Params, x: int) -> int:
        """Appends its lines for streaming inference (`rotrnn.nn.listing`), and returns the register of its output, for
        the register x of its input. Raises `Unlisted` if it has no such form."""
        raise Unlisted(f"the model has {an(type(self).__name__)}, which has no program")

    def emitted(self, to: Listing, params: Params, x: int) -> dict[str, int]:
        """Appends its lines as `emit` does, and returns the registers of its output, "y", and, of a layer with a single
        vector of states (`Recurrent.hidden`), of these as real lanes, "h"."""
        return {"y": self.emit(to, params, x)}

    def summary(self) -> Summary:
        """Returns a table of its parts, their settings, shapes and numbers of parameters (`rotrnn.summary`)."""
        return summary(self)

    def _part(self) -> Part:
        arrays = {name: Part("", shape) for name, shape in self.shapes.items()}
        modules: dict[str, Part] = {name: one._part() for name, one in self.modules.items()}
        settings = own_settings(self, parts=not modules)  # the layer in another one has no row of its own
        return Part(type(self).__name__ + f"({settings})" * bool(settings), None, arrays | modules)

    def __post_init__(self) -> None:
        """Checks the types of the settings. A subclass with own checks calls this method first."""
        settle(self)

    # ---- declarations of a subclass ----

    conditioned: ClassVar[tuple[str, ...]] = ()
    """Parameters with a further condition: `condition` returns a number that is finite if it holds, and
    `condition_message` says what is wrong otherwise."""

    def condition(self, value: Array) -> Any:
        return 0.0

    def condition_message(self, value: Array) -> str:
        return ""

    recurrent: ClassVar[frozenset[str]] = frozenset()
    """Names of its own parameters that belong to a recurrence."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of its own parameters, without inner modules'."""
        return {}

    @property
    def modules(self) -> dict[str, Any]:
        """Returns the inner modules by name. Their parameters are a dict under this name in `params`."""
        return {}

    @property
    def state_form(self) -> StateForm | None:
        """Returns the arrays of its state; None if it has no state, or does not declare it."""
        return None

    def is_recurrent(self, name: str) -> bool:
        """Returns whether a parameter, by its name in `rotrnn.flatten`, belongs to a recurrence. Published recipes
        train such parameters with a factor on the learning rate and without weight decay.

        ValueError if there is no parameter of this name.
        """
        owner, own = self, str(name)
        while (inner := owner.modules.get(own.partition(".")[0])) is not None and "." in own:
            owner, own = inner, own.partition(".")[2]
            if not isinstance(owner, Module):
                return False
        shapes = owner.shapes
        if own not in shapes and (shapes or owner.modules):  # a module that declares nothing may have any
            expected = f"the name of a parameter, as of rotrnn.flatten{alike(str(name), names_of(self))}"
            raise ValueError(f"{type(self).__name__}.is_recurrent: name is {name!r:.80}, expected {expected}")
        return own in owner.recurrent

    @property
    def draws(self) -> bool:
        """Whether forward draws random numbers in training, by `Context.seed`. A class outside the package may."""
        own = type(self).__module__.partition(".")[0] == "rotrnn"
        return not own or any(getattr(one, "draws", True) for one in self.modules.values())

    # ---- checks ----

    def check_sizes(self, *names: str, least: int = 1) -> None:
        """Checks that settings are integers of at least `least`, and no more than can be addressed, or None or "auto"
        where their types allow this."""
        for name in names:
            value = getattr(self, name)
            if value is None or value == "auto":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                expected = "a positive integer" if least == 1 else f"an integer from {least}"
                expected += " or 'auto'" if isinstance(value, str) else ""
                raise ValueError(f"{type(self).__name__}: {name}={value!r}, expected {expected}")
            if value > MOST_NUMBERS:
                raise ValueError(
                    f"{type(self).__name__}: {name}={value!r}, expected at most 2^47, the addressable bytes"
                )

    def check_positive(self, *names: str) -> None:
        """Checks that settings are finite numbers above zero, or None where their types allow this."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise ValueError(f"{type(self).__name__}: {name}={value!r}, expected a positive number")

    def check_range(self, low: str, high: str) -> None:
        """Checks that two settings are the ends of a range of positive numbers."""
        least, most = getattr(self, low), getattr(self, high)
        if not 0 < least <= most < np.inf:
            got, expected = f"{low}={least!r}, {high}={most!r}", f"0 < {low} <= {high}, finite"
            raise ValueError(f"{type(self).__name__}: {got}, expected {expected}")

    def check_divisor(self, name: str, whole: int, what: str, value: int | None = None) -> None:
        """Checks that a setting, or the value that stands for it, divides a number that errors call `what`."""
        value = getattr(self, name) if value is None else value
        if whole % value:
            raise ValueError(f"{type(self).__name__}: {name}={getattr(self, name)}, expected a divisor of {what}")

    def check_choice(self, name: str, known: Collection[str]) -> None:
        """Checks that a setting is one of the known names."""
        value = getattr(self, name)
        if value not in tuple(known):
            expected = f"one of {', '.join(known)}{alike(str(value), known)}"
            raise ValueError(f"{type(self).__name__}: {name}={value!r}, expected {expected}")

    def check_parts(self, name: str, known: Collection[str]) -> None:
        """Checks that a setting is some of the known names, each at most once."""
        parts = tuple(getattr(self, name))
        if not set(parts) <= set(known) or len(set(parts)) < len(parts):
            expected = f"some of {', '.join(known)}, each once"
            raise ValueError(f"{type(self).__name__}: {name}={parts!r}, expected {expected}")

    def check_params(self, params: Params) -> None:
        """Checks that all parameters are present, real, of the right shape, and finite.

        One test shows whether all are finite; only if it fails, parameters are checked one by one.
        """
        arrays = [one for one in self.arrays(params) if one[1] not in BUFFERS]
        if recording() is not None:
            return
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total: Any = sum([one[3].sum() for one in arrays])
            total = sum([one[0].condition(one[3]) for one in arrays if one[1] in one[0].conditioned], start=total)
        if np.isfinite(total):
            return
        for owner, name, path, value in arrays:  # the sum of finite numbers may overflow
            if not np.isfinite(value).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
                raise ValueError(f"{_title(owner, name, path)} is {value[at]} at {at}, expected finite numbers")
        for owner, name, path, value in arrays:
            if name in owner.conditioned:
                with np.errstate(divide="ignore"):
                    met = np.isfinite(owner.condition(value))
                if not met:
                    raise ValueError(f"{_title(owner, name, path)} {owner.condition_message(value)}")

    def arrays(self, params: Params, path: str = "") -> list[tuple[Module, str, str, Array]]:
        """Checks that every array of `params`, inner modules' included, is present, real and of the right
        shape. Returns for each its module, its name, the path to the module, and the array."""
        if not isinstance(params, dict):
            what = f"params of {path}" if path else "params"
            kind = type(params).__name__
            raise TypeError(f"{type(self).__name__}: {what} is {an(kind)}, expected a dict (params come before inputs)")
        found: list[tuple[Module, str, str, Array]] = []
        shapes, modules = self.shapes, self.modules
        for name, shape in shapes.items():
            value: Any = params.get(name)
            if not (is_array(value) and value.shape == shape and value.dtype in REAL):
                self._refuse(params, name, shape, path)
            found.append((self, name, path, value))
        if len(params) > len(shapes) and (shapes or modules):  # a module that declares nothing may have any
            for name in params:
                if name not in shapes and name not in modules:
                    where = f"params of {path}" if path else "params"
                    likely = nearest(str(name), [*shapes, *modules])
                    raise ValueError(f"{type(self).__name__}: {where} has {name!r}, which is not a parameter{likely}")
        for name, module in modules.items():
            if isinstance(module, Module):
                inner: Any = params.get(name)
                if inner is None and name not in params:
                    if module.has_parameters:
                        self._refuse(params, name, (), path)
                    inner = {}
                found += module.arrays(inner, f"{path}.{name}" if path else name)
        return found

    def _refuse(self, params: Params, name: str, shape: tuple[int, ...], path: str) -> None:
        """Raises an error that describes what is wrong with a parameter, if anything is."""
        title = _title(self, name, path)
        if name not in params:
            raise ValueError(f"{title} is missing, expected {', '.join([*self.shapes, *self.modules])}")
        value = params[name]
        if not is_array(value) or value.dtype.newbyteorder("=") not in REAL:
            got = f"dtype {value.dtype}" if is_array(value) else f"type {type(value).__name__}"
            ways = " of NumPy: jax.tree.map(np.asarray, params), or rotrnn.jax.function for programs of JAX"
            more = ways if type(value).__module__.startswith("jax") else ""
            raise TypeError(f"{title} has {got}, expected an array of float32 or float64{more}")
        if value.shape != shape:
            raise ValueError(f"{title} has shape {value.shape}, expected {shape}")

    @property
    def has_parameters(self) -> bool:
        """Returns whether this module or an inner module has parameters."""
        inner = (one for one in self.modules.values() if isinstance(one, Module))
        return bool(self.shapes) or any(one.has_parameters for one in inner)

    def boundary(self, method: str) -> Boundary:
        """Returns the `Boundary` for a call of this method."""
        args = Boundary(f"{type(self).__name__}.{method}")
        self.bind_sizes(args)
        return args

    def bind_sizes(self, args: Boundary) -> None:
        """Binds the sizes of `letters`, which are fixed by the settings."""
        for letter, name in self.letters.items():
            size = getattr(self, name, None)
            if size is not None:
                args.bind(letter, size, name)

    def check_input(self, args: Boundary, name: str, x: Any) -> Any:
        """Returns x as an array of one of `input_forms`; token ids as a copy (`Boundary.integers`)."""
        if self.input_kinds is INTEGERS:
            return args.integers(name, x, *self.input_forms)
        return args.array(name, x, *self.input_forms, kinds=self.input_kinds)

    def check_context(self, args: Boundary, ctx: Context) -> Context:
        """Returns the context with checked lengths or segments, for inner calls."""
        if ctx.lengths is not None and "T" not in args.size:
            raise ValueError(f"{args.op}: lengths were given for an input without a time axis")
        if ctx.split is not None:
            self.check_split(args)
        if ctx.cu_seqlens is not None or ctx.reset is not None:
            if ctx.split is not None:
                raise ValueError(f"{args.op}: sequences are split over processes, expected no cu_seqlens and no reset")
            segments = check_segments(args, ctx.cu_seqlens, ctx.reset, ctx.lengths)
            return ctx.checked(None, segments, self._checked_dt(args, ctx))
        if ctx is EVALUATION:
            return TRUSTED
        lengths = args.lengths(ctx.lengths)
        return ctx.checked(lengths, None, self._checked_dt(args, ctx, lengths))

    def _checked_dt(self, args: Boundary, ctx: Context, lengths: npt.NDArray[np.int64] | None = None) -> Array | None:
        """Returns the intervals of a context, zero in padding."""
        if ctx.dt is None:
            return None
        if "T" not in args.size:
            raise ValueError(f"{args.op}: dt was given for an input without a time axis")
        if ctx.split is not None:
            raise NotImplementedError(f"{args.op}: sequences are split over processes, expected no dt")
        self.check_dt(args)
        return check_intervals(args, intervals(args, ctx.dt, "B T"), lengths)

    def check_dt(self, args: Boundary) -> None:
        """Checks that every layer takes intervals (`Context.dt`). Modules of each step alone need none."""
        for module in self.modules.values():
            if isinstance(module, Module):
                module.check_dt(args)

    def output_sizes(self, args: Boundary) -> Sizes:
        """Returns the sizes of an output of forward, whose arguments `args` has checked, by their letters."""
        sizes = {letter: args.size[letter] for letter in ("B", "T", "segments") if letter in args.size}
        if "segments" in sizes and not stepwise(self):
            sizes["B"] = sizes["segments"]  # an output for each sequence
        return tuple(sizes.items())

    def check_split(self, args: Boundary) -> None:
        """Checks that the module can run on split sequences, as modules that act on each step separately can."""
        for module in self.modules.values():
            if isinstance(module, Module):
                module.check_split(args)

    def check_streams(self, args: Boundary) -> None:
        """Checks that the module can run step by step (streaming inference)."""
        if getattr(self, "bidirectional", False):
            raise ValueError(
                f"{args.op}: a bidirectional layer cannot run step by step, expected one that runs forward"
            )

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        """Checks a state, or the gradient of a state (`name` begins with d), against `state_form`."""
        form = self.state_form
        if state is not None and form is not None:
            check_form(args, name, state, form)


def check_form(args: Boundary, name: str, state: State, form: StateForm) -> None:
    """Checks a state, or the gradient of a state (`name` begins with d), against its form."""
    if isinstance(form, StateArray):
        _check_leaf(args, name, state, form)
        return
    if not isinstance(state, tuple) or len(state) != len(form):
        got = f"a tuple of {len(state)}" if isinstance(state, tuple) else an(type(state).__name__)
        names = ", ".join(one.name for one in form)
        raise TypeError(f"{args.op}: {name} is {got}, expected a tuple of {len(form)}: ({names})")
    for leaf, one in zip(state, form, strict=True):
        if leaf is not None or not name.startswith("d"):  # a part of a gradient may be None
            _check_leaf(args, f"{name}.{one.name}", leaf, one)


def _title(owner: Module, name: str, path: str) -> str:
    return f"{type(owner).__name__}: parameter {name}" + (f" of {path}" if path else "")


_DTYPES: dict[str, Sequence[np.dtype[Any]]] = {"real": REAL, "complex": COMPLEX}


def _check_leaf(args: Boundary, name: str, leaf: Any, form: StateArray) -> None:
    gradient = name.startswith("d")
    if not is_array(leaf):
        raise TypeError(f"{args.op}: {name} is {an(type(leaf).__name__)}, expected an array")
    if form.kind == "integer":
        if not gradient and (leaf.dtype.kind not in "iu" or not np.can_cast(leaf.dtype, np.int64)):
            raise TypeError(f"{args.op}: {name} has dtype {leaf.dtype}, expected an integer dtype that int64 holds")
    elif leaf.dtype not in _DTYPES[form.kind] and leaf.dtype.newbyteorder("=") not in _DTYPES[form.kind]:
        expected = " or ".join(str(kind) for kind in _DTYPES[form.kind])
        raise TypeError(f"{args.op}: {name} has dtype {leaf.dtype}, expected {expected}")
    sequences = "segments" if "segments" in args.size else "B"
    shape = (args.size.get(sequences), *form.shape)
    if leaf.shape == shape:
        return
    if leaf.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, leaf.shape, strict=True)):
        letter = "S" if sequences == "segments" else "B"
        first = letter if shape[0] is None else f"{letter}={shape[0]}"
        rest = ["any" if size is None else str(size) for size in form.shape]
        expected = ", ".join([first, *rest]) + ("," if not rest else "")
        raise ValueError(f"{args.op}: {name} has shape {leaf.shape}, expected ({expected})")


def names_of(core: Module, prefix: str = "") -> tuple[str, ...]:
    """Returns the names of the parameters as in `flatten`: its own, then the names of each inner module."""
    names = [prefix + name for name in core.shapes]
    for name, module in core.modules.items():
        if isinstance(module, Module):
            names += names_of(module, f"{prefix}{name}.")
    return tuple(names)


# ---- settings as text ----

PLACES = frozenset({"site"})
"""Settings that key a part's random numbers (`build_model` numbers them); a short text leaves them out."""


def own_settings(module: Any, *, parts: bool = False) -> str:
    """Returns the settings of a module that differ from their default values, "d_model=8, d_state=16"; with `parts`,
    also the modules in it."""
    return ", ".join(
        f"{one.name}={_brief(value)}"
        for one in fields(module)
        if one.repr and one.name not in PLACES
        if not _same(value := getattr(module, one.name), one.default) and (parts or not _has_modules(value))
    )


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _has_modules(value: Any) -> bool:
    return isinstance(value, Module) or (isinstance(value, tuple) and any(map(_has_modules, value)))


def _brief(value: Any) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    groups = [(text, len(list(same))) for text, same in itertools.groupby(map(_brief, value))]
    if not _has_modules(value):
        groups = [(text, 1) for text, count in groups for _ in range(count)]
    inside = ", ".join(text if count == 1 else f"{count} x {text}" for text, count in groups)
    return f"({inside},)" if len(value) == 1 else f"({inside})"


def spelled_out(value: Any) -> str:
    """Returns all settings of a module and of its parts as text, the repr of dataclasses, which identifies the model of
    a saved state."""
    if isinstance(value, Module) and type(value).__repr__ is Module.__repr__:
        settings: Any = value  # a dataclass
        inside = (f"{one.name}={spelled_out(getattr(value, one.name))}" for one in fields(settings) if one.repr)
        return f"{type(value).__qualname__}({', '.join(inside)})"
    if type(value) is tuple:
        return "(" + ", ".join(map(spelled_out, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


# ---- results of one call for another ----


@functools.cache
def _marked(kind: type) -> Any:
    """Returns the subclass of a tuple type whose objects know the module that made them."""
    names = {"_module": None, "_precision": None, "_sizes": (), "_unmarked": kind, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), {**names, "__repr__": _marked_repr, "__reduce__": _reduce_marked})


def _reduce_marked(value: Any) -> tuple[Any, ...]:
    """Copies a marked tuple, also to another process, which creates the class again."""
    return _marked_again, (value._unmarked, tuple(value), value._module, value._precision, value._sizes)


def _marked_again(kind: type, parts: tuple[Any, ...], module: Module, precision: str, sizes: Sizes) -> Any:
    marked = tuple.__new__(_marked(kind), parts)
    marked._module, marked._precision, marked._sizes = module, precision, sizes
    return marked


def _marked_repr(value: Any) -> str:
    """One line, since the arrays may be large; `rotrnn.summary` has a row for each."""
    return f"<{type(value).__name__} of {type(value._module).__name__}: {in_brief(value)}>"


def unmarked(kind: type) -> type:
    """Returns the tuple type before `mark`."""
    return getattr(kind, "_unmarked", kind)


def maker_of(value: Any) -> Module | None:
    """Returns the module that made `saved`, or the result of `prepare`; None if unknown."""
    return getattr(value, "_module", None)


def mark(value: Any, module: Module, sizes: Sizes = ()) -> Any:
    """Marks a saved or prepared value with `module`, so that other modules refuse it, with the precision of the call,
    which backward must share, and with the sizes of its input, if known.

    Tuples and NamedTuples can be marked; the result is an equal one. Other values are returned as they are.
    """
    if not isinstance(value, tuple):
        return value
    return _marked_again(unmarked(type(value)), value, module, _cpu.precision(), sizes)


def _check_maker(op: str, name: str, value: Any, module: Module) -> None:
    """Checks that a module with these settings made `value`, where it is marked."""
    maker = maker_of(value)
    if maker is None or maker is module or maker == module:
        return
    kind, other = type(module).__name__, type(maker).__name__
    what = f"{other}, expected from {an(kind)}" if other != kind else f"{kind} with {_difference(module, maker)}"
    raise ValueError(f"{op}: {name} is from {an(what)}")


def _difference(mine: Any, other: Any, path: str = "") -> str:
    """Returns the first setting in which two modules differ."""
    pairs: list[tuple[str, Any, Any]] = []
    if type(mine) is type(other) and is_dataclass(mine):
        pairs = [(f".{one.name}", getattr(mine, one.name), getattr(other, one.name)) for one in fields(mine)]
    elif isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
        pairs = [(f"[{i}]", one, two) for i, (one, two) in enumerate(zip(mine, other, strict=True))]
    for name, one, two in pairs:
        if one != two:
            return _difference(one, two, path + name)
    return f"{path.removeprefix('.')}={other!r}, expected {mine!r}"


@functools.cache
def _arrays_in(kind: type) -> tuple[str, ...]:
    """Returns the names of the fields of a dataclass that may have arrays: none of a module."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) and not issubclass(kind, Module) else ()


PLAIN = (int, float, str, bool, type(None))
"""Types of settings in what a call saves."""


def in_order(tree: Any) -> Any:
    """Returns parameters, or the result of an earlier call, with every array C-contiguous, aligned and in native byte
    order, so that the bits of results do not depend on layouts: the tree itself if its arrays already are.

    Buffers stay as they are, because forward updates them in place.
    """
    kind = type(tree)
    if kind is np.ndarray:
        flags = tree.flags
        plain = flags.c_contiguous and flags.aligned and tree.dtype.isnative
        return tree if plain else tree.astype(tree.dtype.newbyteorder("="), order="C")
    if kind in PLAIN:
        return tree
    if isinstance(tree, dict):
        changed = {
            name: new for name, part in tree.items() if (new := in_order(part)) is not part and name not in BUFFERS
        }
        return tree | changed if changed else tree
    if isinstance(tree, tuple):
        parts = [in_order(part) for part in tree]
        return tree if all(map(is_, parts, tree)) else tuple.__new__(unmarked(type(tree)), parts)
    if names := _arrays_in(kind):  # type: ignore[arg-type]
        changed = {name: new for name in names if (new := in_order(part := getattr(tree, name))) is not part}
        return replace(tree, **changed) if changed else tree
    if is_array(tree) and not is_plain(tree):  # of another device, or a subclass
        return tree.astype(tree.dtype.newbyteorder("="), order="C")
    return tree


UNFIT = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors of code that gets values of another form."""
FOREIGN = "params or saved do not match the forward call"

_OF_AN_OP = re.compile(r"[a-z]\w*: ")
_OF_A_CALL = re.compile(r"[A-Z]\w*(\.\w+)?: ")


def named(error: BaseException) -> bool:
    """Returns whether an error names a class or a call of one, as "LRU.forward: ...", at the beginning."""
    return _OF_A_CALL.match(str(error)) is not None


class Unchecked:
    """A block whose errors are re-raised in terms of the outermost call, `method` of `owner`: `given` names the
    arguments with unchecked values. Errors that already name a call stay unchanged."""

    __slots__ = ("given", "method", "owner")

    def __init__(self, owner: object, method: str, given: str) -> None:
        self.owner, self.method, self.given = owner, method, given

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, UNFIT):
            return
        if named(error):
            return
        message = str(error)
        if not isinstance(error, TypeError | ValueError):
            message = f"{type(error).__name__}: {message}"
        raised = TypeError if isinstance(error, TypeError) else ValueError
        raise raised(f"{type(self.owner).__name__}.{self.method}: {self.given}: {message}") from error


# ---- wrappers ----


def _init(method: Any) -> Any:
    @functools.wraps(method)
    def init(self: Module, rng: Any) -> Params:
        if not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"{type(self).__name__}.init: rng is {rng!r} ({type(rng).__name__}), expected a "
                "numpy.random.Generator, as numpy.random.default_rng(0)"
            )
        for name, shape in self.shapes.items():
            if math.prod(shape) > MOST_NUMBERS:
                raise ValueError(f"{type(self).__name__}: parameter {name} of shape {shape} is too large to address")
        return method(self, rng)

    return init


def _along(method: Any) -> Any:
    """Wraps `forward`, and methods with its arguments. `x` is also taken by the method's own name for it."""
    call, name = method.__name__, _third(method)

    @functools.wraps(method)
    def along(self: Any, params: Params, x: Any = None, ctx: Context = EVALUATION, *state: Any, **more: Any) -> Any:
        x = more.pop(name, None) if x is None else x
        if not isinstance(ctx, Context):
            raise TypeError(f"{type(self).__name__}.{call}: ctx is {an(type(ctx).__name__)}, expected a Context")
        if ctx._checked:
            return method(self, params, x, ctx, *state, **more)
        self.check_params(params)
        args = self.boundary(call)
        x = self.check_input(args, name, x)
        ctx = self.check_context(args, ctx)
        self.check_state(args, "state", state[0] if state else more.get("state"))
        if state:
            state = in_order(state[0]), *state[1:]
        elif "state" in more:
            more["state"] = in_order(more["state"])
        try:
            result = method(self, in_order(params), x, ctx, *state, **more)
        except (TypeError, ValueError) as error:
            name_inputs(args.op, name, error)
            raise
        if call != "forward":
            return result
        y, saved = result
        return y, mark(saved, self, self.output_sizes(args))

    return along


def _spectrum(method: Any) -> Any:
    """Wraps `transitions` and `eigenvalues`. Methods with the arguments of forward are checked like forward; others,
    which take only params or are a user's own, check for themselves."""
    takes = inspect.signature(method).parameters
    if list(takes)[1:] != ["params", "x", "ctx", "state"]:
        return method
    along = _along(method)
    if takes["x"].default is inspect.Parameter.empty:
        return along

    @functools.wraps(method)
    def either(self: Any, params: Params, *given: Any, **named: Any) -> Any:
        return along(self, params, *given, **named) if given or named else method(self, params)

    return either


def name_inputs(op: str, name: str, error: Exception) -> None:
    """Re-raises an error of an inner op in terms of the call `op`, whose argument `name` holds token ids, if any."""
    rename(error, "embedding: ids", f"{op}: {name}")
    if _OF_AN_OP.match(str(error)):
        rename(error, "", f"{op}: ")


def _backward(method: Any) -> Any:
    """Wraps `backward` and `backward_all`. `dy` is also taken by the method's own name for it."""
    name, takes = _third(method, 2), inspect.signature(method).parameters.values()
    further = [one.name for one in takes if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)][4:]

    @functools.wraps(method)
    def backward(self: Any, params: Params, saved: Any, dy: Any = None, *more: Any, **named: Any) -> Any:
        given = [named.pop(name, None) if dy is None else dy]
        del dy  # popped below, so that it is freed as soon as the method no longer needs it
        if len(more) > len(further) or not named.keys() <= {*further[len(more) :]}:
            return method(self, params, saved, *given, *more, **named)  # which refuses them by name
        named.update(zip(further, more, strict=False))
        with Unchecked(self, "backward", FOREIGN):
            given.append(_check_backward(self, params, saved, name, given.pop(), named.get("dstate")))
            if named.get("dh") is not None:
                _check_hidden(self, saved, named["dh"])
            if "dstate" in named:
                named["dstate"] = in_order(named["dstate"])
            if named:
                return method(self, in_order(params), in_order(saved), given.pop(), **named)
            return method(self, in_order(params), in_order(saved), given.pop())  # ** keeps dy alive in Python 3.11

    return backward


def _check_backward(self: Any, params: Params, saved: Any, name: str, dy: Any, dstate: State) -> Array:
    """Checks the arguments of backward. Returns dy."""
    self.arrays(params)
    expected = _saved_of(type(self).forward)
    if not isinstance(saved, (expected, PackedSaved) if isinstance(expected, type) else (*expected, PackedSaved)):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        raise TypeError(
            f"{type(self).__name__}.backward: saved is {an(type(saved).__name__)}, expected the "
            f"{' or '.join(kind.__name__ for kind in kinds)} that forward returned"
        )
    args = self.boundary("backward")
    _check_maker(args.op, "saved", saved, self)
    made, now = getattr(saved, "_precision", None), _cpu.precision()
    if made is not None and made != now:
        raise ValueError(f"{args.op}: saved is of a forward in precision {made}, expected {now}, as set here")
    for letter, size in getattr(saved, "_sizes", ()):
        args.bind(letter, size, "the forward call")
    if dy is None:
        raise TypeError(f"{args.op}: {name} is None, expected the gradient of forward's output")
    self.check_state(args, "dstate", dstate)
    return args.array(name, dy, *self.output_forms)


def _check_hidden(self: Any, saved: Any, dh: Any) -> None:
    """Checks the gradient of `hidden_states`."""
    h, op = self.hidden_states(saved), f"{type(self).__name__}.backward"
    if h is None:
        raise ValueError(f"{op}: got dh, expected None: forward's result has no hidden states")
    shape, dtype = getattr(dh, "shape", None), getattr(dh, "dtype", None)
    if shape != h.shape or dtype is None or dtype.kind != h.dtype.kind:
        got = an(type(dh).__name__) if dtype is None else f"{tuple(dh.shape)} of {dtype}"
        raise ValueError(f"{op}: dh is {got}, expected {h.shape} of {h.dtype}, as hidden_states")


def _of_params(method: Any) -> Any:
    """Wraps `prepare` and `fold`."""

    @functools.wraps(method)
    def of_params(self: Any, params: Params) -> Any:
        self.check_params(params)
        try:
            return mark(in_order(method(self, in_order(params))), self)
        except (TypeError, ValueError) as error:
            name_inputs(f"{type(self).__name__}.{method.__name__}", "params", error)
            raise

    return of_params


def _step(method: Any) -> Any:
    @functools.wraps(method)
    def step(self: Any, params: Params, state: State, x_t: Any, prepared: Any = None) -> Any:
        args = self.boundary("step")
        self.check_streams(args)
        x_t = args.array("x_t", x_t, "B D")
        self.check_state(args, "state", state)
        if prepared is None:
            self.check_params(params)
        else:
            _check_maker(args.op, "prepared", prepared, self)
        with Unchecked(self, "step", "params, state or prepared do not fit"):
            if maker_of(prepared) is None:  # what `prepare` marked is in order
                prepared = in_order(prepared)
            return method(self, in_order(params), state, x_t, prepared)

    return step


_WRAPPERS = {
    **{"init": _init, "forward": _along, "prepare": _of_params, "fold": _of_params, "step": _step},
    **{"transitions": _spectrum, "eigenvalues": _spectrum, "registers": _along},
    **{"backward": _backward, "backward_all": _backward},
}
Module.init = _init(Module.init)  # type: ignore[method-assign]  # `__init_subclass__` wraps the methods of subclasses


def trusted(method: Callable[P, R]) -> Callable[P, R]:
    """Returns a module's method without its checks, for inner calls.

    It is a method and not a partial, so that no argument is kept alive by the caller and gradients are freed early.
    """
    plain, owner = getattr(method, "__wrapped__", None), getattr(method, "__self__", None)
    return method if plain is None or not isinstance(owner, Module) else types.MethodType(plain, owner)


def _third(method: Any, place: int = 1) -> str:
    """Returns the method's name for the argument after `params` (or `saved`), also where it takes any (``*args``).
    TypeError if it takes none there."""
    takes = inspect.signature(method).parameters.values()
    names = [one.name for one in takes if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    usual = ["self", "params", "x"] if place == 1 else ["self", "params", "saved", "dy"]
    if any(one.kind is one.VAR_POSITIONAL for one in takes):
        names += usual[len(names) :]
    if len(names) < len(usual):
        got = ", ".join(map(str, takes))
        raise TypeError(f"{method.__qualname__}: takes ({got}), expected ({', '.join(usual)}, ...)")
    return names[1 + place]


@functools.cache
def _saved_of(forward: Any) -> type | tuple[type, ...]:
    """Returns the type of `saved` from the annotation of forward, in the form for `isinstance`; object if there is
    none."""
    try:
        returned = typing.get_type_hints(forward).get("return")
    except NameError:
        return object
    parts = typing.get_args(returned)
    if typing.get_origin(returned) is not tuple or len(parts) != 2:
        return object
    saved = parts[1]
    kinds = typing.get_args(saved) if not isinstance(saved, type) and typing.get_origin(saved) is not tuple else [saved]
    found = tuple(typing.get_origin(kind) or kind for kind in kinds)
    return found if found and all(isinstance(kind, type) for kind in found) else object
