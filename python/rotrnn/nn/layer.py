"""The layer protocol: a layer is a frozen dataclass of settings, and its parameters are a separate plain dict.

    params          = layer.init(rng)
    y, saved        = layer.forward(params, x, ctx)
    dx, dparams     = layer.backward(params, saved, dy)

A recurrent layer (`Recurrent`) also takes and returns a state, which is differentiable:

    y, saved        = layer.forward(params, x, ctx, state)          # saved.state is the state after x
    dx, dparams, dstate = layer.backward(params, saved, dy, dstate)
    y_t, state      = layer.step(params, state, x_t)                # one step of streaming inference
    prepared        = layer.prepare(params)                         # once, for many steps:
    y_t, state      = layer.step(params, state, x_t, prepared)

Forward over a whole sequence, forward in chunks, and single steps give the same results up to rounding, for any split.
Layers that iterate to a fixed point (FixedPointRNN, Bedouin, FPMamba) need ``solver="auto"`` or "direct" for it: a
tolerance for each token may add up along a sequence, and the fixed point of FPMamba is not unique.

`dparams` has the same nesting and names as `params`, without buffers (`BUFFERS`). Gradients are new arrays; nothing is
accumulated.
The outermost call checks its arguments, and errors name this call; inner calls do not check again
(`rotrnn.nn.module`). A layer declares what to check by `shapes`, `state_form` and the types of its settings.
`saved` may contain x and params without copying them: do not change them in place between forward and backward.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rotrnn._support.nested import DEEPEST
from rotrnn._support.text import an, nearest
from rotrnn.devices.device import Device, to_host
from rotrnn.nn.listing import Listing
from rotrnn.nn.module import BUFFERS as BUFFERS
from rotrnn.nn.module import EVALUATION as EVALUATION
from rotrnn.nn.module import TRUSTED as TRUSTED
from rotrnn.nn.module import Array as Array
from rotrnn.nn.module import Context as Context
from rotrnn.nn.module import Gather as Gather
from rotrnn.nn.module import Module as Module
from rotrnn.nn.module import Params as Params
from rotrnn.nn.module import State as State
from rotrnn.nn.module import StateArray as StateArray
from rotrnn.nn.module import StateForm as StateForm
from rotrnn.nn.module import Unchecked, check_form
from rotrnn.nn.module import split_by as split_by
from rotrnn.nn.module import trusted as trusted
from rotrnn.nn.packing import PackedSaved, Segments, each, of_group, shapes_of, total
from rotrnn.nn.returned import check_array, dtypes_of, is_foreign
from rotrnn.ops.boundary import Boundary


@runtime_checkable
class Layer(Protocol):
    """A function of each time step separately, with an explicit adjoint."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dy: Array) -> tuple[Array, Params]: ...

    def emit(self, to: Listing, params: Params, x: int) -> int: ...


REVERSE = "_reverse"
"""The suffix of parameters of the direction that runs backward in time."""


@dataclass(frozen=True)
class Recurrent(Module, ABC):
    """A recurrent layer with `d_model` input and output channels. Its parameters are a flat dict of arrays.

    Every layer has a line that describes it (`about`), a line with its source (`paper`), and the names of its
    `recurrent` parameters, which published recipes train with a factor on the learning rate and without weight decay.
    """

    about: ClassVar[str]
    paper: ClassVar[str]
    lanes: ClassVar[str] = ""
    """`state_lanes` as a formula of the settings, for a layer without a window and with default values for the settings
    that are not named; t is the number of steps so far."""
    removed: ClassVar[dict[str, Any]] = {}
    """Settings of earlier versions, with the value at which files may have them (``...`` for any)."""
    estimated: ClassVar[frozenset[str]] = frozenset()
    """Arguments of forward, parameters or "x", with a straight-through gradient, which is not a derivative."""

    packs: ClassVar[bool] = False
    """Whether its methods take packed rows (`Context.segments`). Otherwise these are unpacked around the methods."""

    d_model: int

    def __init_subclass__(cls, **more: Any) -> None:
        for name, check in _RESULTS.items():
            method = vars(cls).get(name)
            if is_foreign(cls) and inspect.isfunction(method):
                setattr(cls, name, _checked(method, check))
        for name, around in _UNPACKING.items():
            method = vars(cls).get(name)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                setattr(cls, name, around(method))
        super().__init_subclass__(**more)

    def __post_init__(self) -> None:
        """Checks d_model and the types of the settings. A subclass with own checks calls this method first."""
        super().__post_init__()
        self.check_sizes("d_model")

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parameters."""

    @abstractmethod
    def init(self, rng: np.random.Generator) -> Params:
        """Returns random initial parameters, float32."""

    @abstractmethod
    def forward(self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None) -> tuple[Array, Any]:
        """Returns (y (B, T, D), saved) for x (B, T, D). `state` is the state before x, `saved.state` the state after
        x."""

    @abstractmethod
    def backward(self, params: Params, saved: Any, dy: Array, dstate: State = None) -> tuple[Array, Params, State]:
        """Returns (dx, dparams, dstate). The last is the gradient of forward's `state`; if it was None, of the initial
        state."""

    @abstractmethod
    def step(self, params: Params, state: State, x_t: Array, prepared: Any = None) -> tuple[Array, State]:
        """Returns (y_t (B, D), state) for x_t (B, D), in evaluation mode; `prepared`, if given, is ``prepare(params)``.

        With `prepared`, the given state may be overwritten: continue from the returned state only.
        """

    def prepare(self, params: Params) -> Any:
        """Returns values that `step` needs and that do not depend on time. Call it once before many steps."""
        return None

    def report(self, saved: Any) -> dict[str, float]:
        """Returns numbers of a forward for the training log."""
        return {}

    def together(self, ctx: Context) -> bool:
        """Whether a sequence's results depend on others of the batch: a packed row then runs as one batch."""
        return False

    @property
    def core(self) -> Recurrent:
        """The layer itself; for a layer around another layer, the innermost layer."""
        return self

    @property
    def hidden(self) -> StateArray:
        """Describes the vectors h_t of `hidden_states`, which a `StoredHistory` over this layer stores. By default they
        are the outputs, for layers without a single vector of states."""
        return StateArray("y", (self.d_model,))

    def hidden_states(self, saved: Any) -> Array | None:
        """Returns h_t (B, T, N) of an unfused forward (`Context.fused`), if the layer has a single vector h_t; of a
        bidirectional layer, of the forward direction.

        A layer that describes it in `hidden` takes the gradient of these states as a further argument `dh` of
        ``trusted(layer.backward)``.
        """
        return None

    def state_norms(self, saved: Any) -> Array | None:
        """Returns |h_t| (B, T) of an unfused forward (`Context.fused`), if the layer has a single vector h_t."""
        h = self.hidden_states(saved)
        return None if h is None else np.linalg.norm(h, axis=-1)

    def token_norms(self, saved: Any) -> Array | None:
        """Returns the norms |J_t|_2 (B, T) of the maps that a layer iterates for its tokens; None for a layer that does
        not iterate. J_t is the derivative of F(y)_t by y_t at the fixed point, with the past held constant: an
        iteration of the token contracts where the norm is below 1.

        `saved` is what `forward` returns beside the output. The norms of padding, beyond ``ctx.lengths``, are zero; of
        packed sequences the norms are in the shape (1, T) of their row. Raises TypeError if `saved` is None.
        """
        return None

    @property
    def state_size(self) -> int | None:
        """Number of real numbers in the vector h_t of `state_norms`; a complex number counts as two. A norm divided by
        its root is comparable between layers of all kinds and sizes."""
        return self.state_lanes

    @property
    def state_lanes(self) -> int | None:
        """Number of real numbers in the state of a sequence; a complex number counts as two. None if the state grows in
        time, or the layer does not declare it. For a bidirectional layer, the number for one direction.

        `d_state` counts as the layer's paper does: complex states in some papers, real states in others. This number is
        comparable between layers.
        """
        lanes = [one.lanes for one in form_leaves(self.state_form) if one.kind != "integer"]
        return sum(one for one in lanes if one is not None) if lanes and None not in lanes else None

    @property
    def directions(self) -> tuple[str, ...]:
        """Name suffixes of the readouts: each direction has its own readout; other parameters are shared."""
        return ("", REVERSE) if getattr(self, "bidirectional", False) else ("",)

    def check_split(self, args: Boundary) -> None:
        raise ValueError(
            f"{args.op}: sequences are split over processes, which {type(self).__name__} does not support, "
            "expected LRU, RotRNN, S5 or RopeMemory"
        )

    def check_dt(self, args: Boundary) -> None:
        raise NotImplementedError(
            f"{args.op}: got dt, which {type(self).__name__} does not support, expected a layer in continuous time, "
            "S5, S4D or LinOSS with method='im'"
        )

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        if state is not None and getattr(self, "bidirectional", False):
            raise ValueError(f"{args.op}: a bidirectional layer takes no state, got one")
        super().check_state(args, name, state)


# ---- results of layers outside the package ----


def _checked(method: Any, check: Any) -> Any:
    """Wraps a method of a layer outside the package: its results are checked, and errors that it raises are told as its
    own."""
    if getattr(method, "__isabstractmethod__", False):
        return method
    name = method.__name__

    @functools.wraps(method)
    def checked(self: Recurrent, params: Params, *given: Any, **named: Any) -> Any:
        if name == "forward":  # no call around it tells its errors otherwise
            found = method(self, params, *given, **named)
        else:
            with Unchecked(self, name, "its own code, or arguments that do not fit"):
                found = method(self, params, *given, **named)
        check(self, params, found, *given, **named)
        return found

    return checked


def _parts(layer: Recurrent, method: str, found: Any, names: str) -> str:
    """Checks that a method returned a tuple of these parts. Returns the beginning of messages about them."""
    title = f"{type(layer).__name__}.{method}: returned"
    count = names.count(",") + 1
    if not isinstance(found, tuple) or len(found) != count:
        got = f"a tuple of {len(found)}" if isinstance(found, tuple) else an(type(found).__name__)
        raise TypeError(f"{title} {'None' if found is None else got}, expected {names}")
    return title


def _check_forward(
    layer: Recurrent, params: Params, found: Any, x: Array, ctx: Context = EVALUATION, *given: Any, **named: Any
) -> None:
    title = _parts(layer, "forward", found, "(y, saved)")
    y, saved = found
    check_array(f"{title} y", y, (*x.shape[:2], layer.d_model), dtypes_of((x, params, given, named)))
    if (state := getattr(saved, "state", None)) is not None:
        _check_state(layer, "forward", "state", state, None if ctx.segments else len(x))


def _check_backward(
    layer: Recurrent, params: Params, found: Any, saved: Any, dy: Array, *given: Any, **named: Any
) -> None:
    title = _parts(layer, "backward", found, "(dx, dparams, dstate)")
    dx, dparams, dstate = found
    dtypes = dtypes_of((dy, params, saved, given, named))
    check_array(f"{title} dx", dx, dy.shape, dtypes)
    if not isinstance(dparams, dict):
        got = "None" if dparams is None else an(type(dparams).__name__)
        raise TypeError(f"{title} dparams as {got}, expected a dict of arrays")
    shapes = layer.shapes
    for name, d in dparams.items():
        if name in shapes:
            check_array(f"{title} dparams[{name!r}]", d, shapes[name], dtypes)
        elif name not in layer.modules:
            raise ValueError(f"{title} dparams with {name!r}, which is not a parameter{nearest(str(name), shapes)}")
    if dstate is not None:
        _check_state(layer, "backward", "dstate", dstate, None if getattr(saved, "segments", None) else len(dy))


def _check_step(layer: Recurrent, params: Params, found: Any, state: State, x_t: Array, prepared: Any = None) -> None:
    title = _parts(layer, "step", found, "(y_t, state)")
    check_array(f"{title} y_t", found[0], x_t.shape, dtypes_of((x_t, params, state)))
    if form_leaves(layer.state_form):
        _check_state(layer, "step", "state", found[1], len(x_t))


_RESULTS = {"forward": _check_forward, "backward": _check_backward, "step": _check_step}


def _check_state(layer: Recurrent, method: str, name: str, state: State, B: int | None) -> None:
    """Checks a state of B sequences, or the gradient of one, that a method returned, if the layer declares its form."""
    if layer.state_form is None or getattr(layer, "bidirectional", False):
        return
    args = Boundary(f"{type(layer).__name__}.{method}: its result")
    if B is not None:
        args.bind("B", B, "the input")
    check_form(args, name, state, layer.state_form)


# ---- packed rows ----


def _forward(method: Any) -> Any:
    @functools.wraps(method)
    def forward(
        self: Recurrent,
        params: Params,
        x: Array,
        ctx: Context = EVALUATION,
        state: State = None,
        *more: Any,
        **named: Any,
    ) -> tuple[Array, Any]:
        if ctx.segments is None or (self.packs and ctx.dt is None):
            return method(self, params, x, ctx, state, *more, **named)
        segments = ctx.segments.as_one(self.together(ctx))
        calls = _calls(segments, x, ctx, state, *more, **named)
        runs = [method(self, params, *given, **further) for given, further in calls]
        saved = PackedSaved(segments, tuple(one for _, one in runs), (), newest_last(self.state_form))
        return segments.packed([y for y, _ in runs]), saved

    return forward


def _backward(method: Any) -> Any:
    @functools.wraps(method)
    def backward(
        self: Recurrent, params: Params, saved: Any, dy: Array, dstate: State = None, *more: Any, **named: Any
    ) -> tuple[Array, Params, State]:
        given = [dy]
        del dy  # so that it is freed as soon as the method no longer needs it
        if not isinstance(saved, PackedSaved):
            return method(self, params, saved, given.pop(), dstate, *more, **named)
        return _backward_of_groups(method, self, params, saved, given.pop(), dstate, **named)

    return backward


def _backward_of_groups(
    method: Any, layer: Recurrent, params: Params, saved: PackedSaved, dy: Array, dstate: State, **named: Any
) -> tuple[Array, Params, State]:
    segments, newest = saved.segments, saved.newest_last
    dstate, found = segments.after_backward(dstate), []
    for group, part in zip(segments.groups, saved.parts, strict=True):
        own = None if dstate is None else of_group(group, dstate, shapes_of(part.state), newest)
        along = {name: segments.batch(group, value) for name, value in named.items() if value is not None}
        found.append(method(layer, params, part, segments.batch(group, dy), own, **along))
    dparams = {name: total([one[1][name] for one in found]) for name in found[0][1]}
    before = segments.before_backward(segments.collected([one[2] for one in found], newest))
    return segments.packed([one[0] for one in found]), dparams, before


def _along(method: Any) -> Any:
    """Wraps methods with the arguments of forward, which return an array along time."""
    if list(inspect.signature(method).parameters)[1:] != ["params", "x", "ctx", "state"]:
        return method

    @functools.wraps(method)
    def along(self: Recurrent, params: Params, x: Any = None, ctx: Context = EVALUATION, state: State = None) -> Array:
        if x is None or ctx.segments is None or self.packs:
            return method(self, params, x, ctx, state)
        segments = ctx.segments.as_one(self.together(ctx))
        return segments.packed([method(self, params, *given) for given, _ in _calls(segments, x, ctx, state)])

    return along


def _of_saved(method: Any) -> Any:
    """Wraps methods of `saved` that return an array along time, or None."""

    @functools.wraps(method)
    def of_saved(self: Recurrent, saved: Any) -> Array | None:
        if saved is None:
            name = f"{type(self).__name__}.{method.__name__}"
            raise TypeError(f"{name}: saved is None, expected what forward returns beside the output")
        if not isinstance(saved, PackedSaved):
            return method(self, saved)
        parts = [method(self, one) for one in saved.parts]
        return None if parts[0] is None else saved.segments.packed(parts)

    return of_saved


_UNPACKING = {
    **{"forward": _forward, "backward": _backward, "hidden_states": _of_saved, "token_norms": _of_saved},
    **{"transitions": _along, "eigenvalues": _along},
}


def _calls(
    segments: Segments, x: Array, ctx: Context, state: State, *more: Any, **named: Any
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yields the arguments of forward, after the parameters, for each group of a packed row. Those after the state are
    arrays along time."""
    state = segments.before(state)
    for group in segments.groups:
        further, keywords = (
            [None if one is None else segments.batch(group, one) for one in of] for of in (more, named.values())
        )
        given = segments.batch(group, x), ctx.unpacked(group), each(group.of, state), *further
        yield given, dict(zip(named, keywords, strict=True))


def _check_dict(name: str, params: Any) -> None:
    if not isinstance(params, dict):
        raise TypeError(f"{name}: params is {an(type(params).__name__)}, expected a dict of arrays")


def flatten(params: Params, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Yields the leaves of nested params as ("block.0.norm.scale", array), in the dict's order. TypeError if `params`
    is no dict."""
    _check_dict("flatten", params)
    for name, value in params.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def unflatten(flat: dict[str, Array]) -> Params:
    """The inverse of `flatten`. ValueError if one name leads into another, as "a.b" into "a"."""
    params: Params = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        node = params
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ValueError(f"{name}: is inside another array")
        if leaf in node:
            raise ValueError(f"{name}: has other arrays inside")
        node[leaf] = value
    return params


def is_parameter(name: str) -> bool:
    """Returns whether a flattened name belongs to a trained parameter (and not to a buffer)."""
    return name.rsplit(".", 1)[-1] not in BUFFERS


def astype(params: Params, dtype: npt.DTypeLike) -> Params:
    """Returns the params with every array converted to `dtype`, float32 or float64. ValueError for another dtype,
    TypeError if params is not a dict."""
    _check_dict("astype", params)
    try:
        known = np.dtype(dtype) in (np.float32, np.float64)
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"astype: dtype is {dtype!r}, expected float32 or float64")
    return {
        name: astype(value, dtype) if isinstance(value, dict) else value.astype(dtype) for name, value in params.items()
    }


def mask_steps(values: Array, lengths: npt.NDArray[np.int64] | None) -> Array:
    """Returns values (B, T, ...) of any shape, with zeros beyond the lengths."""
    if lengths is None:
        return values
    inside = np.arange(values.shape[1]) < np.asarray(lengths)[:, None]
    return np.where(inside.reshape(*inside.shape, *[1] * (values.ndim - 2)), values, 0)


def spectrum(name: str, A: Array) -> Array:
    """Returns the eigenvalues (..., N), complex128, of real matrices (..., N, N). ValueError by the function `name` if
    a matrix is not finite."""
    if not np.isfinite(A).all():
        raise ValueError(f"{name}: the transitions are not finite, expected finite parameters, x and state")
    return np.linalg.eigvals(A.astype(np.float64)).astype(np.complex128)


def moved(params: Params, device: Device) -> Params:
    """Returns the params with every array copied to `device`, from the CPU or to it."""
    return {
        name: moved(value, device) if isinstance(value, dict) else device.asarray(to_host(value))
        for name, value in params.items()
    }


def zero_state(name: str, layer: Recurrent, batch: int, dtype: npt.DTypeLike) -> State:
    """Returns the state of a layer before the first step, as arrays of zeros. ValueError, with the layer's `name`, if
    it has none of a fixed size."""
    kinds = {"real": np.dtype(dtype), "complex": np.result_type(dtype, np.complex64), "integer": np.dtype(np.int64)}
    form, many = layer.state_form, getattr(layer, "bidirectional", False)
    leaves = form_leaves(form)
    if many or not leaves or any(None in one.shape for one in leaves):
        what = "is bidirectional" if many else "keeps every step" if leaves else "declares no state"
        kind = type(layer.core if many else layer).__name__
        raise ValueError(f"{name}: {kind} {what}, expected a layer with a state of fixed size")
    zeros = tuple(np.zeros((batch, *(size or 0 for size in one.shape)), kinds[one.kind]) for one in leaves)
    return zeros[0] if isinstance(form, StateArray) else zeros


def form_leaves(form: StateForm | None) -> tuple[StateArray, ...]:
    """Returns the arrays of a state's form."""
    return (form,) if isinstance(form, StateArray) else form or ()


def newest_last(form: StateForm | None) -> tuple[bool, ...] | bool:
    """Returns `StateArray.newest_last` of the arrays of a state's form, in its structure."""
    return form.newest_last if isinstance(form, StateArray) else tuple(one.newest_last for one in form or ())


def state_leaves(state: State) -> tuple[Any, ...]:
    """Returns the arrays of a layer's state."""
    return tuple(state) if isinstance(state, tuple) else (state,)


def split_state(layer: Recurrent, state: State, own: int) -> tuple[Any, ...]:
    """Returns (state of `layer`, `own` further arrays) of the state, or its gradient, of a layer around `layer`, whose
    state is the arrays of both. None stands for all of them."""
    if state is None:
        return (None,) * (1 + own)
    inner, rest = state[: len(state) - own], state[len(state) - own :]
    if all(one is None for one in inner):  # parts of a gradient may be None
        return None, *rest
    return inner[0] if isinstance(layer.state_form, StateArray) else tuple(inner), *rest


def flatten_state(state: State, name: str = "state") -> Iterator[tuple[str, Array]]:
    """Yields the leaves of a state as ("state.0.1", array). A single array gives ("state", array), None no leaves."""
    if isinstance(state, tuple):
        for i, one in enumerate(state):
            yield from flatten_state(one, f"{name}.{i}")
    elif state is not None:
        yield name, state


def unflatten_state(flat: dict[str, Array]) -> State:
    """The inverse of `flatten_state`. ValueError if the names do not belong to a state."""
    if not flat:
        return None
    if max(name.count(".") for name in flat) > DEEPEST:
        raise ValueError(f"a state is nested at most {DEEPEST} deep")
    nested = next(iter(unflatten(flat).values()))

    def tuples(node: Any) -> State:
        if not isinstance(node, dict):
            return node
        if node.keys() != {str(i) for i in range(len(node))}:
            raise ValueError(f"a state has the parts {', '.join(node)}, expected 0 to {len(node) - 1}")
        return tuple(tuples(node[str(i)]) for i in range(len(node)))

    return tuples(nested)
