"""What a layer, a part of a block, a block, a stack and a model share: calls that are checked once, at the outermost.

The call that a user makes checks its parameters, its input, lengths and state, and says what is wrong in its own name;
what it calls in turn is given a context that says so (`Context.checked`), and does not check again.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.settings import settle
from rotrnn.ops.boundary import COMPLEX, REAL, Boundary
from rotrnn.ops.device import is_array

P = ParamSpec("P")
R = TypeVar("R")
Array = npt.NDArray[Any]
Params = dict[str, Any]  # nested: name -> Array or Params
Gather = Callable[[Array], list[Array]]
State = Any
"""An array or a tuple of states, each array with the batch axis first; None is the state before the first step.
Real and complex leaves are differentiable; integer ones (positions) are not, their gradient is zero."""

BUFFERS = frozenset({"running_mean", "running_var"})
"""Names of entries of `params` that no gradient reaches: forward in training mode updates them in place."""


@dataclass(frozen=True)
class Context:
    """What a forward call is told besides its input.

    Parameters
    ----------
    lengths : (B,) int64, optional
        Valid steps of each sequence; what lies beyond is never read and is zero in every output.
    train : bool
        Batch statistics and dropout on.
    seed, step : int
        Key of the random numbers of this step (with `train`); the same key gives the same masks on any device.
    places : (B,) int64, optional
        Where each sequence stands in the batch that it is a part of, so that it has its own masks; 0..B-1 without.
    gather : callable, optional
        Where the batch is spread over several processes, ``gather(x)`` is the x (n, ...) of each of them, in their
        order, n its own; each calls it as often as the others, with the same dtype and sizes but n. What needs a whole
        batch (batch norm, quantiles of residuals) asks it. None where the batch is all here.
    fused : bool
        Run what can be fused (`rotrnn.nn.blocks.fused`) in one pass, which keeps little more than its input for
        backward; else part by part, keeping everything, the states of recurrences too. Results differ by rounding.
    """

    lengths: npt.NDArray[np.int64] | None = None
    train: bool = False
    seed: int = 0
    step: int = 0
    places: npt.NDArray[np.int64] | None = None
    gather: Gather | None = None
    fused: bool = True
    _checked: bool = field(default=False, repr=False, compare=False)

    def checked(self, lengths: npt.NDArray[np.int64] | None) -> Context:
        """This context, with checked lengths, for calls within a call that has checked all that it was given."""
        return replace(self, lengths=lengths, _checked=True)

    @property
    def is_checked(self) -> bool:
        """Whether a call around this one has checked parameters, input and lengths."""
        return self._checked


EVALUATION = Context()
TRUSTED = EVALUATION.checked(None)
"""As EVALUATION, for calls within a call that has checked its arguments."""


@dataclass(frozen=True)
class StateArray:
    """An array of a state: its name among several, its shape without the batch axis (None: any size), and its kind."""

    name: str
    shape: tuple[int | None, ...]
    kind: str = "real"
    """ "real", "complex" or "integer"."""

    @property
    def lanes(self) -> int | None:
        """Real numbers in it, of one sequence; None where that grows."""
        if None in self.shape:
            return None
        return math.prod(size or 0 for size in self.shape) * (2 if self.kind == "complex" else 1)


StateForm = StateArray | tuple[StateArray, ...]


class Module:
    """A function with parameters, whose calls are checked.

    Every `init`, `forward`, `backward`, `prepare` and `step` that a subclass defines is wrapped when the class is made:
    the wrapper checks what it is given by what the class says of itself (`shapes`, `modules`, `input_forms`, `letters`,
    `state_form`), then calls the method.
    """

    input_forms: ClassVar[tuple[str, ...]] = ("B T D",)
    """Shapes of the input, in letters, as `Boundary.array` takes them."""
    output_forms: ClassVar[tuple[str, ...]] = ("B T D",)
    input_kinds: ClassVar[Sequence[np.dtype[Any]]] = REAL
    letters: ClassVar[dict[str, str]] = {"D": "d_model"}
    """Letter -> the attribute that is its size, if there is one."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, wrap in _WRAPPERS.items():
            method = vars(cls).get(name)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                setattr(cls, name, wrap(method))

    def __post_init__(self) -> None:
        """The types of the settings; a subclass begins its own checks with this one."""
        settle(self)

    # ---- what a subclass says of itself ----

    conditioned: ClassVar[str | None] = None
    """A parameter that must meet more than to be finite: `condition` of it is a number, finite where it does, and
    `condition_message` says what is wrong where it does not."""

    def condition(self, value: Array) -> Any:
        return 0.0

    def condition_message(self, value: Array) -> str:
        return ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its own parameters."""
        return {}

    @property
    def modules(self) -> dict[str, Any]:
        """The modules whose parameters are a dict among its own, by their name there."""
        return {}

    @property
    def state_form(self) -> StateForm | None:
        """What its state is made of; None where it has none, or does not say."""
        return None

    def input_shape(self, saved: Any) -> tuple[int, ...] | None:
        """The shape of the input of the forward that saved this, where it is known."""
        x = getattr(saved, "x", None)
        return None if x is None else tuple(x.shape)

    # ---- checks ----

    def check_sizes(self, *names: str, least: int = 1) -> None:
        """Settings that must be whole numbers, at least `least`."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                expected = "a positive integer" if least == 1 else f"an integer from {least}"
                raise ValueError(f"{type(self).__name__}: {name}={value!r}, expected {expected}")

    def check_params(self, params: Params) -> None:
        """Parameters are all there, real, fit, and are finite: NaN in one would spread without a trace.

        One test tells whether all are finite, and only if it fails each is looked at.
        """
        arrays = [one for one in self.arrays(params) if one[1] not in BUFFERS]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total: Any = sum([one[3].sum() for one in arrays])
            total = sum([one[0].condition(one[3]) for one in arrays if one[1] == one[0].conditioned], start=total)
        if np.isfinite(total):
            return
        for owner, name, path, value in arrays:  # of finite numbers too the sum may be beyond what its dtype holds
            if not np.isfinite(value).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
                raise ValueError(f"{_title(owner, name, path)} is {value[at]} at {at}, expected finite numbers")
        for owner, name, path, value in arrays:
            if name == owner.conditioned and not np.isfinite(owner.condition(value)):
                raise ValueError(f"{_title(owner, name, path)} {owner.condition_message(value)}")

    def arrays(self, params: Params, path: str = "") -> list[tuple[Module, str, str, Array]]:
        """Every array of `params`, those of inner modules too, if they are there, real, and fit: whose it is, its name,
        the path to its module, and itself."""
        if not isinstance(params, dict):
            what = f"params of {path}" if path else "params"
            raise TypeError(f"{type(self).__name__}: {what} is a {type(params).__name__}, expected a dict")
        found: list[tuple[Module, str, str, Array]] = []
        for name, shape in self.shapes.items():
            value: Any = params.get(name)
            if not (is_array(value) and value.shape == shape and value.dtype in REAL):
                self._refuse(params, name, shape, path)
            found.append((self, name, path, value))
        for name, module in self.modules.items():
            if isinstance(module, Module):
                inner: Any = params.get(name)
                if inner is None and name not in params:
                    if module.has_parameters:
                        self._refuse(params, name, (), path)
                    inner = {}
                found += module.arrays(inner, f"{path}.{name}" if path else name)
        return found

    def _refuse(self, params: Params, name: str, shape: tuple[int, ...], path: str) -> None:
        """Says what is wrong with a parameter, if anything is."""
        title = _title(self, name, path)
        if name not in params:
            raise ValueError(f"{title} is missing, expected {', '.join([*self.shapes, *self.modules])}")
        value = params[name]
        if not is_array(value) or value.dtype.newbyteorder("=") not in REAL:
            got = f"dtype {value.dtype}" if is_array(value) else f"type {type(value).__name__}"
            raise TypeError(f"{title} has {got}, expected an array of float32 or float64")
        if value.shape != shape:
            raise ValueError(f"{title} has shape {value.shape}, expected {shape}")

    @property
    def has_parameters(self) -> bool:
        """Whether it has any of its own or in an inner module."""
        inner = (one for one in self.modules.values() if isinstance(one, Module))
        return bool(self.shapes) or any(one.has_parameters for one in inner)

    def boundary(self, method: str) -> Boundary:
        """The checks of a call of this method."""
        args = Boundary(f"{type(self).__name__}.{method}")
        self.bind_sizes(args)
        return args

    def bind_sizes(self, args: Boundary) -> None:
        """Binds the sizes that its settings fix, those of `letters`."""
        for letter, name in self.letters.items():
            size = getattr(self, name, None)
            if size is not None:
                args.bind(letter, size, name)

    def check_input(self, args: Boundary, name: str, x: Any) -> Any:
        """x, of one of `input_forms`."""
        return args.array(name, x, *self.input_forms, kinds=self.input_kinds)

    def check_context(self, args: Boundary, ctx: Context) -> Context:
        """The context with its lengths checked, for the calls within this one."""
        if ctx.lengths is not None and "T" not in args.size:
            raise ValueError(f"{args.op}: lengths were given with an input that has no axis of time")
        return TRUSTED if ctx is EVALUATION else ctx.checked(args.lengths(ctx.lengths))

    def check_streams(self, args: Boundary) -> None:
        """It can run step by step."""
        if getattr(self, "bidirectional", False):
            raise ValueError(f"{args.op}: a bidirectional layer cannot run step by step")

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        """A state, or a gradient of one (`name` begins with d), is as `state_form` says."""
        form = self.state_form
        if state is None or form is None:
            return
        if isinstance(form, StateArray):
            _check_leaf(args, name, state, form)
            return
        if not isinstance(state, tuple) or len(state) != len(form):
            got = f"a tuple of {len(state)}" if isinstance(state, tuple) else f"a {type(state).__name__}"
            names = ", ".join(one.name for one in form)
            raise TypeError(f"{args.op}: {name} is {got}, expected a tuple of {len(form)}: ({names})")
        for leaf, one in zip(state, form, strict=True):
            if leaf is not None:
                _check_leaf(args, f"{name}.{one.name}", leaf, one)


def _title(owner: Module, name: str, path: str) -> str:
    return f"{type(owner).__name__}: parameter {name}" + (f" of {path}" if path else "")


_DTYPES: dict[str, Sequence[np.dtype[Any]]] = {"real": REAL, "complex": COMPLEX}


def _check_leaf(args: Boundary, name: str, leaf: Any, form: StateArray) -> None:
    gradient = name.startswith("d")
    if not is_array(leaf):
        raise TypeError(f"{args.op}: {name} is a {type(leaf).__name__}, expected an array")
    if form.kind == "integer":
        if not gradient and leaf.dtype.kind not in "iu":
            raise TypeError(f"{args.op}: {name} has dtype {leaf.dtype}, expected an integer dtype")
    elif leaf.dtype.newbyteorder("=") not in _DTYPES[form.kind]:
        expected = " or ".join(str(kind) for kind in _DTYPES[form.kind])
        raise TypeError(f"{args.op}: {name} has dtype {leaf.dtype}, expected {expected}")
    shape = (args.size.get("B"), *form.shape)
    if leaf.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, leaf.shape, strict=True)):
        first = "B" if shape[0] is None else f"B={shape[0]}"
        rest = ["any" if size is None else str(size) for size in form.shape]
        expected = ", ".join([first, *rest]) + ("," if not rest else "")
        raise ValueError(f"{args.op}: {name} has shape {leaf.shape}, expected ({expected})")


# ---- wrappers ----


def _init(method: Any) -> Any:
    @functools.wraps(method)
    def init(self: Module, rng: Any) -> Params:
        if not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"{type(self).__name__}.init: rng is {rng!r} ({type(rng).__name__}), expected a "
                "numpy.random.Generator, as numpy.random.default_rng(0)"
            )
        params: Params = method(self, rng)
        return params

    return init


def _forward(method: Any) -> Any:
    name = _third(method)

    @functools.wraps(method)
    def forward(self: Any, params: Params, x: Any, ctx: Context = EVALUATION, *state: Any, **more: Any) -> Any:
        if not isinstance(ctx, Context):
            raise TypeError(f"{type(self).__name__}.forward: ctx is a {type(ctx).__name__}, expected a Context")
        if not ctx._checked:
            self.check_params(params)
            args = self.boundary("forward")
            x = self.check_input(args, name, x)
            ctx = self.check_context(args, ctx)
            self.check_state(args, "state", state[0] if state else more.get("state"))
        return method(self, params, x, ctx, *state, **more)

    return forward


def _backward(method: Any) -> Any:
    name = _third(method, 2)

    # what is handed on is popped, and passed without * or **: so no gradient is held longer than the method holds it
    takes = inspect.signature(method).parameters
    if "dstate" not in takes and "gather" not in takes:

        @functools.wraps(method)
        def backward(self: Any, params: Params, saved: Any, dy: Any) -> Any:
            given = [_check_backward(self, params, saved, name, dy, None)]
            del dy
            return method(self, params, saved, given.pop())

        return backward
    if "dstate" not in takes:

        @functools.wraps(method)
        def backward_of_spread(self: Any, params: Params, saved: Any, dy: Any, gather: Gather | None = None) -> Any:
            given = [_check_backward(self, params, saved, name, dy, None)]
            del dy
            return method(self, params, saved, given.pop(), gather)

        return backward_of_spread
    if "gather" not in takes:

        @functools.wraps(method)
        def backward_with_state(self: Any, params: Params, saved: Any, dy: Any, dstate: State = None) -> Any:
            given = [_check_backward(self, params, saved, name, dy, dstate)]
            del dy
            return method(self, params, saved, given.pop(), dstate)

        return backward_with_state

    @functools.wraps(method)
    def backward_with_both(
        self: Any, params: Params, saved: Any, dy: Any, dstate: State = None, gather: Gather | None = None
    ) -> Any:
        given = [_check_backward(self, params, saved, name, dy, dstate)]
        del dy
        return method(self, params, saved, given.pop(), dstate, gather)

    return backward_with_both


def _check_backward(self: Any, params: Params, saved: Any, name: str, dy: Any, dstate: State) -> Array:
    """dy, if it and all else that a backward was given fit."""
    self.arrays(params)
    expected = _saved_of(type(self).forward)
    if not isinstance(saved, expected):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        raise TypeError(
            f"{type(self).__name__}.backward: saved is a {type(saved).__name__}, expected the "
            f"{' or '.join(kind.__name__ for kind in kinds)} that forward returned"
        )
    args, shape = self.boundary("backward"), self.input_shape(saved)
    if shape is not None:
        for letter, size in zip("BT", shape, strict=False):
            args.bind(letter, size, "the forward call")
    if dy is None:
        raise TypeError(f"{args.op}: {name} is None, expected the gradient of what forward returned")
    self.check_state(args, "dstate", dstate)
    checked: Array = args.array(name, dy, *self.output_forms)
    return checked


def _prepare(method: Any) -> Any:
    @functools.wraps(method)
    def prepare(self: Any, params: Params) -> Any:
        self.check_params(params)
        return method(self, params)

    return prepare


def _step(method: Any) -> Any:
    @functools.wraps(method)
    def step(self: Any, params: Params, state: State, x_t: Any, prepared: Any = None) -> Any:
        args = self.boundary("step")
        self.check_streams(args)
        x_t = args.array("x_t", x_t, "B D")
        self.check_state(args, "state", state)
        if prepared is None:
            self.check_params(params)
        return method(self, params, state, x_t, prepared)

    return step


_WRAPPERS = {"init": _init, "forward": _forward, "backward": _backward, "prepare": _prepare, "step": _step}


def trusted(method: Callable[P, R]) -> Callable[P, R]:
    """A module's method without its checks, for calls within one that has made them.

    A method, not a partial: the call then hands its arguments over, and a gradient is gone as soon as it is used.
    """
    plain, owner = getattr(method, "__wrapped__", None), getattr(method, "__self__", None)
    return method if plain is None or not isinstance(owner, Module) else types.MethodType(plain, owner)


def _third(method: Any, place: int = 1) -> str:
    """The name of the argument after `params` (or `saved`), as the method has it."""
    return list(inspect.signature(method).parameters)[1 + place]


@functools.cache
def _saved_of(forward: Any) -> type | tuple[type, ...]:
    """What a forward is annotated to save, as `isinstance` takes it; object where it does not say."""
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
