"""Forward and backward as functions from arrays to new arrays, as ops of other libraries require.

    call = parse(describe(core, "float32"))            # by a text, because arguments of ops are tensors and plain data
    outputs, plan = call.forward(inputs)               # y, what backward needs, the state after x, running statistics
    kept = [outputs[i] for i in plan.kept]
    dx, dparams, dstate0 = call.backward(inputs, kept, dy, dstate)

The core is a layer, block, stack or model. No output is in the memory of an input or of another output. Inputs that
forward saves are therefore not among the outputs: backward is given the inputs again. The `Plan` says where each array
of `saved` is. It depends on shapes and dtypes alone (`rotrnn.nn.saved`), so a forward on zeros gives it, too.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rotrnn.devices.device import full, is_plain, is_writeable, named
from rotrnn.devices.precisions import precision
from rotrnn.models.files import described, made
from rotrnn.models.model import SequenceModel
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import Array, Context, State, flatten, is_parameter, unflatten
from rotrnn.nn.module import names_of
from rotrnn.nn.saved import Shape, Structure, arrays_of, flatten_saved, rebuilt
from rotrnn.ops.boundary import CheckedLengths

MOST_PLANS = 1000
"""The number of plans that a call keeps, for the latest shapes of batches."""
PROBES = ((2, 2), (3, 3), (2, 17), (3, 64), (2, 65), (3, 129), (5, 300))
"""Numbers of sequences and steps at which a `Call` finds the rules for the sizes of its outputs."""
GROUPS = (1, 16, 32, 64, 96, 128)
"""Numbers of steps in a tile or chunk, for each of which a layer may save an array."""


class Inputs(NamedTuple):
    """The inputs of a forward: arrays or tensors, or, as the key of a `Plan`, their shapes and dtypes."""

    x: Any
    params: Sequence[Any]
    """In the order of `Call.names`."""
    state: Sequence[Any]
    """The leaves of the state before x, or nothing."""
    lengths: Any
    dt: Any
    """Intervals (B, T) between samples at uneven times, or None; they have no gradient."""
    key: Any
    """Seed and step of random numbers, (2,) int64, in training; None in evaluation."""
    after: bool
    """Whether the state after x is an output."""
    device: str
    """ "cpu" or "cuda"."""

    def map(self, function: Callable[[Any], Any]) -> Inputs:
        """Returns these inputs with a function of each array in its place."""
        lengths, dt, key = (None if one is None else function(one) for one in (self.lengths, self.dt, self.key))
        params, state = tuple(map(function, self.params)), tuple(map(function, self.state))
        return Inputs(function(self.x), params, state, lengths, dt, key, self.after, self.device)

    def forms(self) -> Inputs:
        """Returns the shapes and dtypes of arrays."""
        return self.map(_shape)


class Form(NamedTuple):
    """Shape, strides in numbers, and dtype of an output."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class Plan(NamedTuple):
    """How the outputs of a forward are arranged."""

    structure: Structure
    places: list[int]
    """Where each array of `saved` is: an index into x, parameters, state before x, and outputs."""
    checked: dict[int, tuple[int, int]]
    """Which of them are lengths, and the sizes that these fit (`CheckedLengths`)."""
    kept: tuple[int, ...]
    """Indices of the outputs that backward needs."""
    host: tuple[int, ...]
    """Indices of the outputs that are on the host on every device: lengths."""
    forms: tuple[Form, ...]
    """Forms of the outputs: y, the saved arrays, the leaves of the state after x, and the buffers in training."""


class Size(NamedTuple):
    """A size of an output: `factor` times the number of sequences (if it is `by_batch`) times the number of groups of
    `group` steps (if it is not 0)."""

    factor: int
    by_batch: bool
    group: int

    def at(self, batch: Any, steps: Any) -> Any:
        """Returns the size for these numbers of sequences and steps, which may be symbolic."""
        size = self.factor * batch if self.by_batch else self.factor
        return size * ((steps + self.group - 1) // self.group) if self.group else size


class Gradients(NamedTuple):
    """Gradients of x (None for token ids), of the parameters in the order of `Call.trained`, and of the state's leaves
    before x (None for positions)."""

    dx: Array | None
    dparams: list[Array]
    dstate: list[Array | None]


def describe(core: Any, products: str) -> str:
    """Returns a core and its precision ("float32", ...) as a text, which `parse` reads.

    Raises
    ------
    ValueError
        A part is a class of your own that is not in `rotrnn.LAYERS`.
    """
    return json.dumps({"core": described(core), "precision": products})


@functools.cache
def parse(text: str) -> Call:
    """Returns the `Call` of a text of `describe`."""
    settings = json.loads(text)
    return Call(made(settings["core"], "core"), settings["precision"])


class Call:
    """A core and the precision of its products, as a pair of functions."""

    def __init__(self, core: Any, products: str) -> None:
        self.core, self.precision = core, products
        self.time_axis = getattr(core, "time_axis", 1)
        self.names = names_of(core)
        self.trained_at = [i for i, name in enumerate(self.names) if is_parameter(name)]
        self.trained = tuple(self.names[i] for i in self.trained_at)
        self.form = form_of(core)
        self.leaves = leaves_of(self.form, self.form)
        self._plans: dict[Inputs, Plan] = {}

    def forward(self, inputs: Inputs) -> tuple[list[Array], Plan]:
        """Returns the outputs and how they are arranged, which is kept for `plan`."""
        train = inputs.key is not None
        params = dict(zip(self.names, inputs.params, strict=True))
        buffers = [name for name in self.names if train and not is_parameter(name)]
        for name in buffers:
            params[name] = params[name].copy()  # forward updates them in place
        seed, step = inputs.key.tolist() if train else (0, 0)
        ctx = Context(inputs.lengths, train, seed, step, dt=inputs.dt)
        state = (filled(self.form, inputs.state),) if inputs.state else ()
        with precision(self.precision):
            y, saved = self.core.forward(unflatten(params), inputs.x, ctx, *state)
        outputs = Outputs(inputs.x, *inputs.params, *inputs.state)
        outputs.add(y)
        forms = inputs.forms()
        plan = self._plans.get(forms)
        structure = flatten_saved(saved)[1] if plan is None else plan.structure
        arrays = arrays_of(structure, saved)
        places = [outputs.place(array) for array in arrays]
        if inputs.after:  # some layers compute it on demand
            after = saved.blocks.state if isinstance(self.core, SequenceModel) else getattr(saved, "state", None)
            for leaf in leaves_of(self.form, after):
                outputs.add(leaf)
        for name in buffers:
            outputs.add(params[name])
        if plan is None or plan.places != places:
            checked = {i: one.fits for i, one in enumerate(arrays) if isinstance(one, CheckedLengths) and one.fits}
            lengths = [place for place, one in zip(places, arrays, strict=True) if isinstance(one, CheckedLengths)]
            kept, host = outputs.kept(places), outputs.kept(lengths)
            plan = Plan(structure, places, checked, kept, host, tuple(map(_form, outputs.arrays)))
            self._plans[forms] = plan
            if len(self._plans) > MOST_PLANS:
                del self._plans[next(iter(self._plans))]
        return outputs.arrays, plan

    def plan(self, forms: Inputs) -> Plan:
        """Returns the plan of forwards of these forms; if there is none yet, from a forward on zeros."""
        found = self._plans.get(forms)
        if found is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConverged)
                _, found = self.forward(self._zeros(forms))
        return found

    def open_plan(self, forms: Inputs, batch: bool, steps: bool) -> tuple[Plan, list[tuple[Size, ...] | None]] | None:
        """Returns a plan, and the sizes of its outputs for every number of sequences, if `batch`, and of `steps`.

        `forms` are the forms of a forward; open sizes in them are ignored. An output that is the same for all numbers
        has None, others are C-contiguous. Returns None if an output is not contiguous, or has sizes that no `Size`
        describes.
        """
        axis = self.time_axis
        now = forms.x.shape[0], forms.x.shape[axis]
        probes = dict.fromkeys((b if batch else now[0], t if steps else now[1]) for b, t in PROBES)
        plans = [self.plan(_sized(forms, axis, *probe)) for probe in probes]
        last = plans[-1]
        if any((one.places, one.kept, len(one.forms)) != (last.places, last.kept, len(last.forms)) for one in plans):
            return None
        found: list[tuple[Size, ...] | None] = []
        for each in zip(*(one.forms for one in plans), strict=True):
            if len(set(each)) == 1:
                found.append(None)
                continue
            if not all(_in_rows(form) and len(form.shape) == len(each[0].shape) for form in each):
                return None
            sizes = [
                _size_of(list(probes), list(values)) for values in zip(*(form.shape for form in each), strict=True)
            ]
            if None in sizes:
                return None
            found.append(tuple(one for one in sizes if one is not None))
        return last, found

    def _zeros(self, forms: Inputs) -> Inputs:
        """Returns inputs of these forms: zeros, initial parameters, and no padding."""
        array = named("rotrnn", forms.device).asarray
        params = dict(flatten(self.core.init(np.random.default_rng(0))))
        pairs = zip(self.names, forms.params, strict=True)
        lengths = key = None
        if forms.lengths is not None:
            shape, dtype = forms.lengths
            steps = forms.x.shape[self.time_axis]
            lengths = np.full(shape, steps) if dtype.kind in "iu" else np.zeros(shape, dtype)  # which forward refuses
        if forms.key is not None:
            key = np.zeros(*forms.key)
        return forms._replace(
            x=array(np.zeros(*forms.x)),
            params=[array(params[name].astype(one.dtype)) for name, one in pairs],
            state=[array(np.zeros(*one)) for one in forms.state],
            lengths=lengths,
            dt=None if forms.dt is None else array(np.zeros(*forms.dt)),
            key=key,
        )

    def backward(
        self, inputs: Inputs, kept: Sequence[Array], dy: Array, dstate: Sequence[Array | None] = ()
    ) -> Gradients:
        """Returns the gradients, C-contiguous, from the gradients of y and of the leaves of the state after x, if any.
        `kept` are the outputs of forward that its plan names."""
        plan = self.plan(inputs.forms())
        given = [inputs.x, *inputs.params, *inputs.state]
        there = dict(enumerate(given))
        there.update(zip([len(given) + i for i in plan.kept], kept, strict=True))
        params = unflatten(dict(zip(self.names, inputs.params, strict=True)))
        state: tuple[State, ...] = ()
        if any(one is not None for one in dstate):
            buffers = len(self.names) - len(self.trained) if inputs.key is not None else 0
            forms = plan.forms[len(plan.forms) - buffers - len(self.leaves) :]
            pairs = zip(dstate, forms, strict=False)
            whole = [full(form.shape, 0, form.dtype, like=dy) if one is None else one for one, form in pairs]
            state = (filled(self.form, whole),)
        backward = self.core.backward_all if isinstance(self.core, SequenceModel) else self.core.backward
        with precision(self.precision):
            arrays = [there[i] for i in plan.places]
            for i, fits in plan.checked.items():
                arrays[i] = CheckedLengths.of(arrays[i], *fits)
            dx, dparams, *dstate0 = backward(params, rebuilt(plan.structure, arrays), dy, *state)
        outputs = Outputs(dy, *(one for one in dstate if one is not None), *there.values())
        flat = dict(flatten(dparams))
        before = leaves_of(self.form, dstate0[0]) if inputs.state else []
        return Gradients(
            None if dx is None else outputs.add(_in_order(dx)),
            [outputs.add(_in_order(flat[name])) for name in self.trained],
            [None if one is None else outputs.add(_in_order(one)) for one in before],
        )


class Outputs:
    """Collects the outputs of a call; none shares memory with an input or another output."""

    def __init__(self, *inputs: Array) -> None:
        self.arrays: list[Array] = []
        self._n = len(inputs)
        self._places = {id(one): i for i, one in enumerate(inputs)}
        self._owners = {id(_owner(one)) for one in inputs}
        self._alive: list[Any] = list(inputs)  # an id belongs to an object only while it lives

    def add(self, array: Array) -> Array:
        """Adds an array, or a copy of it, and returns which."""
        owner = _owner(array)
        new = array.copy() if id(owner) in self._owners or not is_writeable(array) else array
        self._owners.add(id(owner if new is array else new))
        self._places.setdefault(id(array), self._n + len(self.arrays))
        self._alive.append(array)
        self.arrays.append(new)
        return new

    def place(self, array: Array) -> int:
        """Returns the index of an array among inputs and outputs; adds it if it is in neither."""
        if id(array) not in self._places:
            self.add(array)
        return self._places[id(array)]

    def kept(self, places: list[int]) -> tuple[int, ...]:
        """Returns the indices of the outputs at these places."""
        return tuple(sorted({place - self._n for place in places if place >= self._n}))


# ---- states: forms are nested like the states ----


def form_of(core: Any) -> Any:
    """Returns the form of the state: a `StateArray`, or a tuple of forms. None if there is no state to continue
    from."""
    if isinstance(core, SequenceModel):
        return form_of(core.stack) if core.time_axis == 1 else None  # pairs are not streamed
    if isinstance(core, ResidualStack):
        forms = tuple(form_of(block) for block in core.blocks)
        return None if None in forms else forms
    layer = core.layer if isinstance(core, ResidualBlock | FeedForwardBlock) else core
    return None if getattr(layer, "bidirectional", False) else layer.state_form


def leaves_of(form: Any, state: State) -> list[Any]:
    """Returns the leaves of a state of that form; the leaves of None are None."""
    if not isinstance(form, tuple):
        return [] if form is None else [state]
    parts = (None,) * len(form) if state is None else state
    return [leaf for one, part in zip(form, parts, strict=True) for leaf in leaves_of(one, part)]


def filled(form: Any, leaves: Sequence[Any]) -> State:
    """The inverse of `leaves_of`."""
    rest = iter(leaves)

    def state(form: Any) -> State:
        return tuple(map(state, form)) if isinstance(form, tuple) else next(rest)

    return state(form)


# ---- arrays ----


def _shape(array: Array) -> Shape:
    return Shape(tuple(array.shape), array.dtype)


def _form(array: Array) -> Form:
    return Form(array.shape, tuple(one // array.itemsize for one in array.strides), array.dtype)


def _in_rows(form: Form) -> bool:
    """Returns whether an output is C-contiguous."""
    pairs = zip(form.shape, form.strides, strict=True)
    return 0 in form.shape or all(
        n == 1 or stride == math.prod(form.shape[i + 1 :]) for i, (n, stride) in enumerate(pairs)
    )


def _sized(forms: Inputs, axis: int, batch: int, steps: int) -> Inputs:
    """Returns forms with other numbers of sequences and steps, the latter at an axis of x."""

    def rows(form: Shape) -> Shape:
        return form._replace(shape=(batch, *form.shape[1:]))

    sizes = list(forms.x.shape)
    sizes[0], sizes[axis] = batch, steps
    lengths = None if forms.lengths is None else rows(forms.lengths)
    dt = None if forms.dt is None else forms.dt._replace(shape=(batch, steps))
    x = forms.x._replace(shape=tuple(sizes))
    return forms._replace(x=x, state=tuple(map(rows, forms.state)), lengths=lengths, dt=dt)


def _size_of(probes: list[tuple[int, int]], values: list[int]) -> Size | None:
    """Returns the `Size` that has these values at these numbers of sequences and steps."""
    batch, steps = probes[-1]
    for by_batch in (False, True):
        for group in (0, *GROUPS):
            factor = values[-1] // max(1, Size(1, by_batch, group).at(batch, steps))
            size = Size(factor, by_batch, group)
            if [size.at(*probe) for probe in probes] == values:
                return size
    return None


def _owner(array: Any) -> Any:
    """Returns the object whose memory an array is in."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


def _in_order(array: Array) -> Array:
    return array if is_plain(array) else array.copy("C")
