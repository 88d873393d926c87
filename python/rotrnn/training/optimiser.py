"""AdamW with parameter groups, as in the published recipes of LRU, RotRNN, S4 and S5."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rotrnn._support.settings import settle
from rotrnn._support.text import alike, an
from rotrnn.devices.device import empty, is_array, is_writeable, to_host
from rotrnn.nn.layer import Array, Params, flatten, is_parameter
from rotrnn.nn.module import in_order
from rotrnn.ops import optim
from rotrnn.ops.boundary import REAL, Boundary, rename
from rotrnn.training.schedule import SCHEDULES, learning_rate, warmup_steps

Moments = dict[str, Array]
"""The state of an optimiser: "m.<name>" and, of AdamW, "v.<name>" for the flattened name of every parameter."""

GROUPS = {
    "global": (False, True),
    "global, no decay": (False, False),
    "recurrent": (True, False),
    "recurrent, decay": (True, True),
}
"""Group -> (whether it has the recurrent learning rate, whether it has weight decay)."""
NAMES = {kind: group for group, kind in GROUPS.items()}

RECURRENT = "recurrent"
"""An entry of `no_decay` that stands for every parameter with the recurrent learning rate."""

GroupOf = Callable[[str], str]
"""Returns the group of a parameter from its flattened name."""


class NonFinite(FloatingPointError):
    """A loss, gradient or parameter is infinite or not a number."""


class Unusable(NonFinite):
    """A loss or gradient is; every parameter and moment is as before."""


class _Update(NamedTuple):
    """The checked arguments of an update. Arrays, groups, and kernels that are ready to update a parameter are by name;
    gradients, groups and kernels in the order of the gradients."""

    step: int
    steps: int
    arrays: dict[str, Array]
    gradients: dict[str, Array]
    groups: dict[str, str]
    ready: dict[str, Callable[..., None]]


class Optimiser:
    """The base of optimisers, with their schedule, groups and clipping. The settings are fields of the classes below;
    `AdamW` explains the settings that all have."""

    lr: float
    recurrent_factor: float
    weight_decay: float
    clip: float
    warmup: float
    schedule: str
    floor: float
    recurrent: tuple[str, ...] | None
    no_decay: tuple[str, ...]

    kept: ClassVar[str]
    """The moments of a parameter, a letter each; the norm of the last one is checked after an update."""
    last: ClassVar[str]
    """The name of the last moment in errors."""

    _ready: ClassVar[Callable[..., Callable[..., None]]]
    """The kernel with a parameter, its moments and its gradient (`rotrnn.ops.optim`)."""

    def _numbers(self, step: int) -> dict[str, Any]:
        """Returns the numbers that this optimiser's kernel alone takes, for update number `step` (from 1)."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        settle(self)
        name = type(self).__name__
        if not self.lr > 0:
            raise ValueError(f"{name}: lr is {self.lr}, expected a positive number")
        for key in ("recurrent_factor", "weight_decay", "clip", "warmup", "floor"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{name}: {key} is {getattr(self, key)}, expected a nonnegative number")
        if self.schedule not in SCHEDULES:
            expected = f"one of {', '.join(SCHEDULES)}{alike(self.schedule, SCHEDULES)}"
            raise ValueError(f"{name}: schedule is '{self.schedule}', expected {expected}")

    def init(self, params: Params) -> Moments:
        """Returns moments of zero."""
        call = f"{type(self).__name__}.init"
        Boundary(call).one_of("params", params, dict)
        _check_arrays(call, "params", dict(flatten(params)))
        arrays = [(name, array) for name, array in flatten(params) if is_parameter(name)]
        return {f"{moment}.{name}": np.zeros_like(array) for moment in self.kept for name, array in arrays}

    def rate(self, group: str, step: int, steps: int) -> float:
        """Returns the learning rate of a group at update number `step` (from 0) of `steps`."""
        recurrent, _ = _kind_of(f"{type(self).__name__}.rate: group", group)
        rate = learning_rate(step, steps, self.lr, self.warmup, self.schedule, self.floor)
        return rate * self.recurrent_factor if recurrent else rate

    def decay(self, group: str) -> float:
        """Returns the weight decay of a group, not yet multiplied by the learning rate."""
        _, decays = _kind_of(f"{type(self).__name__}.decay: group", group)
        return self.weight_decay if decays else 0.0

    def grouping(self, is_recurrent: Callable[[str], bool]) -> GroupOf:
        """Returns the function that maps a parameter's name to its group. `is_recurrent` is the model's.

        TypeError if it is not a function.
        """
        if not callable(is_recurrent):
            got = type(is_recurrent).__name__
            call = f"{type(self).__name__}.grouping"
            raise TypeError(f"{call}: is_recurrent is {an(got)}, expected a function of a name: model.is_recurrent")
        return partial(self._group_of, is_recurrent)  # which pickle takes, unlike an inner function

    def _group_of(self, is_recurrent: Callable[[str], bool], name: str) -> str:
        """Returns the group of a parameter; see `grouping`."""
        recurrent = is_recurrent(name) if self.recurrent is None else _matches(name, self.recurrent)
        exempt = _matches(name, self.no_decay) or (recurrent and RECURRENT in self.no_decay)
        return NAMES[recurrent, not exempt]

    def update(
        self, params: Params, grads: Params, moments: Moments, group_of: GroupOf, step: int, steps: int
    ) -> float:
        """Updates `params` and `moments` in place. Returns the norm of all gradients before clipping.

        Parameters without a gradient, such as frozen parts, stay as they are, and so do their moments. `params` and
        `moments` may therefore have more names than `grads`.

        Raises
        ------
        ValueError
            `grads` has a name that `params` or `moments` do not have, or not in this shape, `moments` has a kind of
            another optimiser, `group_of` returns a name other than the four groups, `step` is not in [0, `steps`), or
            an array to update cannot be written to, or shares memory with another one or a gradient. Nothing is
            updated.
        TypeError
            An array has another dtype, or not its parameter's, or another byte order. Nothing is updated.
        NonFinite
            A gradient is not finite; the error names the first one in the order of the backward pass, and nothing is
            updated. Or a parameter or second moment is not finite after the update; the error names it.
        """
        step, steps, arrays, gradients, groups, ready = self._checked(params, grads, moments, group_of, step, steps)
        norms = norms_by_name(dict(reversed(gradients.items())))
        check_finite("gradient", norms, group_of, Unusable)
        size = math.hypot(*norms.values())
        scale = self.clip / size if 0 < self.clip < size else 1.0
        rates = {group: self.rate(group, step, steps) for group in GROUPS}
        room = empty((2 * len(gradients),), np.float64, like=next(iter(gradients.values()), None))
        for i, (name, update) in enumerate(ready.items()):
            group = groups[name]
            update(
                norms=room[2 * i : 2 * i + 2],
                lr=rates[group],
                decay=self.decay(group),
                scale=scale,
                **self._numbers(step + 1),
            )
        pairs = to_host(room).reshape(-1, 2)  # norms of each parameter and of its last moment
        updated = {name: (float(p), float(v)) for name, (p, v) in zip(gradients, pairs, strict=True)}
        after = norms_by_name({name: array for name, array in arrays.items() if name not in updated})
        after = {name: updated[name][0] if name in updated else after[name] for name in arrays}
        check_finite("parameter", after, group_of)
        check_finite(f"the optimiser's {self.last} of", {name: v for name, (_, v) in updated.items()}, group_of)
        return size

    def _checked(
        self, params: Params, grads: Params, moments: Moments, group_of: GroupOf, step: int, steps: int
    ) -> _Update:
        """Checks the arguments of `update`."""
        call = f"{type(self).__name__}.update"
        args = Boundary(call)
        for key, value in (("params", params), ("grads", grads), ("moments", moments)):
            args.one_of(key, value, dict)
        if not callable(group_of):
            raise TypeError(f"{call}: group_of is {an(type(group_of).__name__)}, expected a function of a name")
        steps = args.integer("steps", steps, 1)
        step = args.integer("step", step, 0, steps - 1)
        arrays = dict(flatten(params))
        gradients = dict(flatten(grads))
        _check_arrays(call, "params", arrays)
        _check_arrays(call, "grads", gradients)
        gradients = {name: in_order(gradient) for name, gradient in gradients.items()}
        for name in gradients:
            if name not in arrays or any(f"{kind}.{name}" not in moments for kind in self.kept):
                where = "moments" if name in arrays else "params"
                raise ValueError(f"{call}: grads has {name}, expected only names that {where} has too")
        if others := [name for name in moments if str(name).partition(".")[0] not in [*self.kept]]:
            kinds = " and ".join(f"{kind}.<name>" for kind in self.kept)
            raise ValueError(f"{call}: moments has {others[0]}, expected {kinds}, as from {type(self).__name__}.init")
        own = {name: [moments[f"{kind}.{name}"] for kind in self.kept] for name in gradients}
        _check_arrays(
            call, "moments", {f"{kind}.{name}": moments[f"{kind}.{name}"] for name in own for kind in self.kept}
        )
        updated = {f"params {name}": arrays[name] for name in gradients}
        updated |= {
            f"moments {kind}.{name}": one for name in own for kind, one in zip(self.kept, own[name], strict=True)
        }
        for title, array in updated.items():
            if not array.dtype.isnative:
                expected = f"{array.dtype.newbyteorder('=')}, in the byte order of this machine"
                raise TypeError(f"{call}: {title} has dtype {array.dtype}, expected {expected}")
            if not is_writeable(array):
                raise ValueError(f"{call}: {title} is read-only, expected an array to update")
        groups = {name: group_of(name) for name in gradients}
        for name, gradient in gradients.items():
            _kind_of(f"{call}: group_of", groups[name])
            array = arrays[name]
            for what in ("shape", "dtype"):
                parts = ([array], own[name], [gradient])
                mine, theirs, other = ([getattr(one, what) for one in some] for some in parts)
                if len({*mine, *theirs, *other}) > 1:
                    told = f"params {mine[0]}, moments {' and '.join(map(str, theirs))}, grads {other[0]}"
                    kind = ValueError if what == "shape" else TypeError
                    raise kind(f"{call}: {name} has {what}s {told}, expected one {what}")
        _check_separate(call, updated, gradients)
        ready = {}
        for name, gradient in gradients.items():
            try:
                ready[name] = self._ready(arrays[name], *own[name], gradient)
            except (TypeError, ValueError) as error:
                op = type(self).__name__.lower()
                for inner, outer in (("param", "params "), *((kind, f"moments {kind}.") for kind in self.kept)):
                    rename(error, f"{op}: {inner} ", f"{call}: {outer}{name} ")
                rename(error, f"{op}: ", f"{call}: {name}: ")
                raise
        return _Update(step, steps, arrays, gradients, groups, ready)


@dataclass(frozen=True)
class AdamW(Optimiser):
    """The [optimiser] section: AdamW (Loshchilov and Hutter 2019) with a learning-rate schedule (`learning_rate`).
    With ``name = "sgd"`` it is `SGD`, which has `momentum` in place of `betas` and `eps`.

    Recurrent parameters have the scheduled rate times `recurrent_factor` and, unless `no_decay` is changed, no weight
    decay. All other parameters, including norms and biases, have the scheduled rate and weight decay.

    Parameters
    ----------
    lr : float
        Peak of the scheduled learning rate.
    recurrent_factor : float
        Learning rate of recurrent parameters relative to the scheduled rate.
    weight_decay : float
        Decoupled weight decay: a step subtracts ``rate * weight_decay`` times the parameter.
    betas, eps
        As in the paper.
    clip : float
        Maximum norm of the gradient over all parameters; a larger gradient is scaled down to it. 0 disables clipping.
    warmup : float
        Length of the warm-up: below 1 a share of all steps, from 1 on a number of steps.
    schedule : str
        One of `SCHEDULES`.
    floor : float
        Learning rate at the start and at the end of the schedule.
    recurrent : tuple of str, optional
        Parameters with the recurrent learning rate. The default is the parameters that the layer names. An entry
        matches a part of a parameter's name (of "blocks.0.layer.B_re": "B_re" or "layer"); ``*`` matches anything
        ("B_*").
    no_decay : tuple of str
        Parameters without weight decay, matched in the same way; "recurrent" stands for all recurrent parameters.
    """

    lr: float = 1e-3
    recurrent_factor: float = 1.0
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 0.0
    warmup: float = 0.1
    schedule: str = "cosine"
    floor: float = 1e-7
    recurrent: tuple[str, ...] | None = None
    no_decay: tuple[str, ...] = (RECURRENT,)

    kept: ClassVar[str] = "mv"
    last: ClassVar[str] = "second moment"
    _ready: ClassVar[Callable[..., Callable[..., None]]] = staticmethod(optim.adamw_ready)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"AdamW: betas is {self.betas}, expected two numbers in [0, 1)")
        if not self.eps > 0:
            raise ValueError(f"AdamW: eps is {self.eps}, expected a positive number")

    def _numbers(self, step: int) -> dict[str, Any]:
        return {"beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps, "step": step}


@dataclass(frozen=True)
class SGD(Optimiser):
    """The [optimiser] section with ``name = "sgd"``: gradient descent with momentum, as torch.optim.SGD defines it
    (without dampening and Nesterov's form), with the schedule and the groups of `AdamW`.

    With the gradient g, clipped, and the momentum buffer m, zero at first::

        m <- momentum m + g + weight_decay param
        param <- param - rate m

    Parameters
    ----------
    momentum : float
        In [0, 1); 0 is plain gradient descent.
    weight_decay : float
        Added to the gradient (L2), unlike AdamW's, so that it goes through the momentum.
    lr, ...
        As of `AdamW`.
    """

    lr: float = 1e-2
    momentum: float = 0.9
    recurrent_factor: float = 1.0
    weight_decay: float = 0.0
    clip: float = 0.0
    warmup: float = 0.1
    schedule: str = "cosine"
    floor: float = 1e-7
    recurrent: tuple[str, ...] | None = None
    no_decay: tuple[str, ...] = (RECURRENT,)

    kept: ClassVar[str] = "m"
    last: ClassVar[str] = "momentum"
    _ready: ClassVar[Callable[..., Callable[..., None]]] = staticmethod(optim.sgd_ready)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"SGD: momentum is {self.momentum}, expected a number in [0, 1)")

    def _numbers(self, step: int) -> dict[str, Any]:
        return {"momentum": self.momentum}


OPTIMISERS: dict[str, type[AdamW] | type[SGD]] = {"adamw": AdamW, "sgd": SGD}
"""The optimisers by the name in a recipe."""


def _kind_of(what: str, group: str) -> tuple[bool, bool]:
    if not isinstance(group, str) or group not in GROUPS:
        raise ValueError(f"{what} is {group!r}, expected one of: {'; '.join(GROUPS)}")
    return GROUPS[group]


def _check_arrays(call: str, argument: str, arrays: dict[str, Any]) -> None:
    for name, array in arrays.items():
        if not is_array(array):
            raise TypeError(f"{call}: {argument} has {name} of type {type(array).__name__}, expected an array")
        if array.dtype.newbyteorder("=") not in REAL:
            raise TypeError(f"{call}: {argument} has {name} of dtype {array.dtype}, expected float32 or float64")


def _check_separate(call: str, updated: dict[str, Array], gradients: dict[str, Array]) -> None:
    """Raises ValueError if an array to update shares memory with another one, as a parameter under two names does, or
    with a gradient. Arrays are C-contiguous, or refused later."""
    owners = {*map(_owner, updated.values())}
    if len(owners) == len(updated) and owners.isdisjoint(map(_owner, gradients.values())):
        return  # the usual case, without a look at addresses
    extents = [(*_extent(array), title, True) for title, array in updated.items()]
    extents += [(*_extent(array), f"grads {name}", False) for name, array in gradients.items()]
    reached = {True: (0, ""), False: (0, "")}  # where the memory of the arrays so far ends: to update, and gradients
    for start, end, title, changes in sorted(one for one in extents if one[0] < one[1]):
        for other in (True, False) if changes else (True,):
            if start < reached[other][0]:
                expected = "an array of its own for each name"
                raise ValueError(f"{call}: {title} shares memory with {reached[other][1]}, expected {expected}")
        reached[changes] = max(reached[changes], (end, title))


def _owner(array: Array) -> int:
    """Returns a number that stands for the object that owns an array's memory."""
    base = getattr(array, "base", None)
    return id(array if base is None else base)


def _extent(array: Array) -> tuple[int, int]:
    """Returns where the memory of a C-contiguous array begins and ends. Arrays of a device are only told apart as
    objects."""
    start = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else id(array)
    return start, start + (array.nbytes if isinstance(array, np.ndarray) else 1)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a part of the flattened name matches one of the patterns."""
    return any(fnmatchcase(part, pattern) for part in name.split(".") for pattern in patterns)


def norms_by_name(arrays: dict[str, Array]) -> dict[str, float]:
    """Returns the norm of each array. On a device, all of them are waited for once."""
    return dict(zip(arrays, optim.norms_of(list(arrays.values())), strict=True))


def check_finite(what: str, norms: dict[str, float], group_of: GroupOf, error: type[NonFinite] = NonFinite) -> None:
    """Raises NonFinite, or a kind of it, for the first array whose norm is not finite."""
    for name, size in norms.items():
        if not math.isfinite(size):
            group = f"group {group_of(name)}" if is_parameter(name) else "a buffer"
            raise error(f"{what} {name} ({group}) is not finite, its norm is {size}")


def check_parameters(what: str, params: Params, group_of: GroupOf) -> None:
    """Raises NonFinite for the first parameter that is not finite. Buffers are ignored: they follow from the
    parameters."""
    norms = norms_by_name({name: array for name, array in flatten(params) if is_parameter(name)})
    check_finite(what, norms, group_of)


class Group(NamedTuple):
    """A parameter group: names, total number of elements, and learning rates and decay at the steps `steps`."""

    name: str
    parameters: tuple[str, ...]
    numbers: int
    steps: tuple[int, ...]
    lr: tuple[float, ...]
    decay: tuple[float, ...]


def describe_groups(optimiser: Optimiser, params: Params, group_of: GroupOf, steps: int) -> tuple[Group, ...]:
    """Returns the groups that have parameters, at step 0, at the end of the warm-up, and at the last step.

    `decay` is the share of a parameter that a step subtracts. ValueError if an entry of `recurrent` or `no_decay`
    matches no parameter.
    """
    at = (0, min(warmup_steps(steps, optimiser.warmup), steps - 1), steps - 1)
    arrays = {name: array for name, array in flatten(params) if is_parameter(name)}
    for key in ("recurrent", "no_decay"):
        for pattern in getattr(optimiser, key) or ():
            if pattern != RECURRENT and not any(_matches(name, (pattern,)) for name in arrays):
                raise ValueError(f"optimiser.{key}: '{pattern}' matches no part of any parameter's name")
    groups = []
    for group in GROUPS:
        names = tuple(name for name in arrays if group_of(name) == group)
        if names:
            lr = tuple(optimiser.rate(group, step, steps) for step in at)
            decay = tuple(optimiser.decay(group) * rate for rate in lr)
            groups.append(Group(group, names, sum(arrays[name].size for name in names), at, lr, decay))
    return tuple(groups)


def table(groups: tuple[Group, ...]) -> str:
    """Formats the groups as text, one per line."""
    steps = groups[0].steps
    head = f"{'group':<16} {'arrays':>7} {'numbers':>10}   lr / decay at step {steps[0]}, {steps[1]} and {steps[2]}"
    rows = [
        f"{group.name:<16} {len(group.parameters):>7} {group.numbers:>10,}   "
        + "   ".join(f"{lr:.2e} / {decay:.2e}" for lr, decay in zip(group.lr, group.decay, strict=True))
        for group in groups
    ]
    return "\n".join([head, *rows])


def members(group: Group) -> str:
    """Formats the names of a group's parameters as text, one per line, with the number of blocks that have one."""
    blocks = Counter(re.sub(r"^blocks\.\d+\.", "blocks.*.", name) for name in group.parameters)
    return "\n".join(f"  {name}" + (f"  x {n}" if n > 1 else "") for name, n in blocks.items())
