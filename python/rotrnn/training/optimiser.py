"""AdamW with parameter groups, as in the published recipes of LRU, RotRNN, S4 and S5."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

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
"""AdamW's state: "m.<name>" and "v.<name>" for the flattened name of every parameter."""

GROUPS = {
    "global": (False, True),
    "global, no decay": (False, False),
    "recurrent": (True, False),
    "recurrent, decay": (True, True),
}
"""Group -> (whether it has the recurrent learning rate, whether it has weight decay)."""

RECURRENT = "recurrent"
"""An entry of `no_decay` that stands for every parameter with the recurrent learning rate."""

GroupOf = Callable[[str], str]
"""Returns the group of a parameter from its flattened name."""


class NonFinite(FloatingPointError):
    """A loss, gradient or parameter is infinite or not a number."""


@dataclass(frozen=True)
class AdamW:
    """The [optimiser] section: AdamW (Loshchilov and Hutter 2019) with a learning-rate schedule (`learning_rate`).

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

    def __post_init__(self) -> None:
        settle(self)
        if not self.lr > 0:
            raise ValueError(f"AdamW: lr is {self.lr}, expected a positive number")
        for key in ("recurrent_factor", "weight_decay", "clip", "warmup", "floor"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"AdamW: {key} is {getattr(self, key)}, expected a nonnegative number")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"AdamW: betas is {self.betas}, expected two numbers in [0, 1)")
        if not self.eps > 0:
            raise ValueError(f"AdamW: eps is {self.eps}, expected a positive number")
        if self.schedule not in SCHEDULES:
            expected = f"one of {', '.join(SCHEDULES)}{alike(self.schedule, SCHEDULES)}"
            raise ValueError(f"AdamW: schedule is '{self.schedule}', expected {expected}")

    def init(self, params: Params) -> Moments:
        """Returns moments of zero."""
        Boundary("AdamW.init").one_of("params", params, dict)
        _check_arrays("AdamW.init", "params", dict(flatten(params)))
        arrays = [(name, array) for name, array in flatten(params) if is_parameter(name)]
        return {f"{moment}.{name}": np.zeros_like(array) for moment in "mv" for name, array in arrays}

    def rate(self, group: str, step: int, steps: int) -> float:
        """Returns the learning rate of a group at update number `step` (from 0) of `steps`."""
        recurrent, _ = _kind_of("AdamW.rate: group", group)
        rate = learning_rate(step, steps, self.lr, self.warmup, self.schedule, self.floor)
        return rate * self.recurrent_factor if recurrent else rate

    def decay(self, group: str) -> float:
        """Returns the weight decay of a group, not yet multiplied by the learning rate."""
        _, decays = _kind_of("AdamW.decay: group", group)
        return self.weight_decay if decays else 0.0

    def grouping(self, is_recurrent: Callable[[str], bool]) -> GroupOf:
        """Returns the function that maps a parameter's name to its group. `is_recurrent` is the model's.

        TypeError if it is not a function.
        """
        if not callable(is_recurrent):
            got = type(is_recurrent).__name__
            raise TypeError(
                f"AdamW.grouping: is_recurrent is {an(got)}, expected a function of a name: model.is_recurrent"
            )
        names = {kind: group for group, kind in GROUPS.items()}

        def group_of(name: str) -> str:
            recurrent = is_recurrent(name) if self.recurrent is None else _matches(name, self.recurrent)
            exempt = _matches(name, self.no_decay) or (recurrent and RECURRENT in self.no_decay)
            return names[recurrent, not exempt]

        return group_of

    def update(
        self,
        params: Params,
        grads: Params,
        moments: Moments,
        group_of: GroupOf,
        step: int,
        steps: int,
    ) -> float:
        """Updates `params` and `moments` in place. Returns the norm of all gradients before clipping.

        Parameters without a gradient stay as they are.

        Raises
        ------
        ValueError
            `grads` has a name that `params` or `moments` do not have, or not in this shape, `group_of` returns a name
            other than the four groups, or `step` is not in [0, `steps`). Nothing is updated.
        TypeError
            An array has another dtype, or not its parameter's. Nothing is updated.
        NonFinite
            A gradient is not finite; the error names the first one in the order of the backward pass, and nothing is
            updated. Or a parameter or second moment is not finite after the update; the error names it.
        """
        args = Boundary("AdamW.update")
        for key, value in (("params", params), ("grads", grads), ("moments", moments)):
            args.one_of(key, value, dict)
        if not callable(group_of):
            raise TypeError(f"AdamW.update: group_of is {an(type(group_of).__name__)}, expected a function of a name")
        steps = args.integer("steps", steps, 1)
        step = args.integer("step", step, 0, steps - 1)
        arrays = dict(flatten(params))
        gradients = dict(flatten(grads))
        _check_arrays("AdamW.update", "params", arrays)
        _check_arrays("AdamW.update", "grads", gradients)
        gradients = {name: in_order(gradient) for name, gradient in gradients.items()}
        for name in gradients:
            if name not in arrays or f"m.{name}" not in moments or f"v.{name}" not in moments:
                where = "moments" if name in arrays else "params"
                raise ValueError(f"AdamW.update: grads has {name}, expected only names that {where} has too")
        _check_arrays(
            "AdamW.update",
            "moments",
            {f"{kind}.{name}": moments[f"{kind}.{name}"] for name in gradients for kind in "mv"},
        )
        groups = {name: group_of(name) for name in gradients}
        for name, gradient in gradients.items():
            _kind_of("AdamW.update: group_of", groups[name])
            array, m, v = arrays[name], moments[f"m.{name}"], moments[f"v.{name}"]
            if not array.shape == m.shape == v.shape == gradient.shape:
                shapes = f"params {array.shape}, moments {m.shape} and {v.shape}, grads {gradient.shape}"
                raise ValueError(f"AdamW.update: {name} has shapes {shapes}, expected one shape")
            if not array.dtype == m.dtype == v.dtype == gradient.dtype:
                dtypes = f"params {array.dtype}, moments {m.dtype} and {v.dtype}, grads {gradient.dtype}"
                raise TypeError(f"AdamW.update: {name} has dtypes {dtypes}, expected one dtype")
            if not is_writeable(array) or not is_writeable(m) or not is_writeable(v):
                raise ValueError(f"AdamW.update: {name} is read-only in params or moments, expected arrays to update")
        ready = {}
        for name, gradient in gradients.items():
            try:
                ready[name] = optim.adamw_ready(arrays[name], moments[f"m.{name}"], moments[f"v.{name}"], gradient)
            except (TypeError, ValueError) as error:
                for inner, outer in (("param", "params "), ("m", "moments m."), ("v", "moments v.")):
                    rename(error, f"adamw: {inner} ", f"AdamW.update: {outer}{name} ")
                rename(error, "adamw: ", f"AdamW.update: {name}: ")
                raise
        norms = norms_by_name(dict(reversed(gradients.items())))
        check_finite("gradient", norms, group_of)
        size = math.hypot(*norms.values())
        scale = self.clip / size if 0 < self.clip < size else 1.0
        rates = {group: self.rate(group, step, steps) for group in GROUPS}
        room = empty((2 * len(gradients),), np.float64, like=next(iter(gradients.values()), None))
        for i, (name, update) in enumerate(ready.items()):
            group = groups[name]
            update(
                norms=room[2 * i : 2 * i + 2],
                lr=rates[group],
                beta1=self.betas[0],
                beta2=self.betas[1],
                eps=self.eps,
                decay=self.decay(group),
                scale=scale,
                step=step + 1,
            )
        pairs = to_host(room).reshape(-1, 2)  # norms of each parameter and of its second moment
        updated = {name: (float(p), float(v)) for name, (p, v) in zip(gradients, pairs, strict=True)}
        after = norms_by_name({name: array for name, array in arrays.items() if name not in updated})
        after = {name: updated[name][0] if name in updated else after[name] for name in arrays}
        check_finite("parameter", after, group_of)
        check_finite("the optimiser's second moment of", {name: v for name, (_, v) in updated.items()}, group_of)
        return size


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


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a part of the flattened name matches one of the patterns."""
    return any(fnmatchcase(part, pattern) for part in name.split(".") for pattern in patterns)


def norms_by_name(arrays: dict[str, Array]) -> dict[str, float]:
    """Returns the norm of each array. On a device, all of them are waited for once."""
    return dict(zip(arrays, optim.norms_of(list(arrays.values())), strict=True))


def check_finite(what: str, norms: dict[str, float], group_of: GroupOf) -> None:
    """Raises NonFinite for the first array whose norm is not finite."""
    for name, size in norms.items():
        if not math.isfinite(size):
            group = f"group {group_of(name)}" if is_parameter(name) else "a buffer"
            raise NonFinite(f"{what} {name} ({group}) is not finite, its norm is {size}")


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


def describe_groups(optimiser: AdamW, params: Params, group_of: GroupOf, steps: int) -> tuple[Group, ...]:
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
