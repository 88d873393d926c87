"""AdamW over a model's parameters in groups, as the published recipes of LRU, RotRNN, S4 and S5 have them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from rotrnn.nn.layer import Array, Params, flatten, is_parameter
from rotrnn.ops import optim
from rotrnn.training.schedule import SCHEDULES, learning_rate, warmup_steps

Moments = dict[str, Array]
"""AdamW's state: "m.<name>" and "v.<name>" of every parameter's flattened name."""

GROUPS = {
    "global": (False, True),
    "global, no decay": (False, False),
    "recurrent": (True, False),
    "recurrent, decay": (True, True),
}
"""Group -> (whether its rate is the recurrent one, whether it decays)."""

RECURRENT = "recurrent"
"""Among what does not decay: every parameter with the recurrent rate."""

GroupOf = Callable[[str], str]
"""The group of a parameter by its flattened name."""


class NonFinite(FloatingPointError):
    """A loss, gradient or parameter that is infinite or not a number."""


@dataclass(frozen=True)
class AdamW:
    """The [optimiser] section: AdamW (Loshchilov and Hutter 2019) under a schedule (`learning_rate`).

    The recurrent parameters have the scheduled rate times `recurrent_factor` and, unless `no_decay` says other, no
    decay; all the rest, norms and biases included, has the scheduled rate and decays.

    Parameters
    ----------
    lr : float
        Peak of the scheduled learning rate.
    recurrent_factor : float
        What the recurrent group's rate is of it.
    weight_decay : float
        Decoupled, so a step takes ``rate * weight_decay`` of a parameter that decays away.
    betas, eps
        As in the paper.
    clip : float
        Gradients whose norm over all parameters is larger are scaled down to it; 0 for never.
    warmup : float
        Below 1 a share of the steps, from 1 on their number.
    schedule : str
        One of `SCHEDULES`.
    floor : float
        The rate that a schedule starts from and ends on.
    recurrent : tuple of str, optional
        Which parameters have the recurrent rate, instead of those that the layer names. A parameter is meant by any
        part of its name (of "blocks.0.layer.B_re": "B_re", "layer"), and ``*`` in it stands for anything ("B_*").
    no_decay : tuple of str
        Which parameters do not decay, in the same way; "recurrent" stands for all those.
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
        if not self.lr > 0:
            raise ValueError(f"lr is {self.lr}, expected a positive number")
        for key in ("recurrent_factor", "weight_decay", "clip", "warmup", "floor"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key} is {getattr(self, key)}, expected a number from 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}, expected two numbers in [0, 1)")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}, expected a positive number")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is '{self.schedule}', expected one of {', '.join(SCHEDULES)}")

    def init(self, params: Params) -> Moments:
        """Zero moments."""
        arrays = [(name, array) for name, array in flatten(params) if is_parameter(name)]
        return {f"{moment}.{name}": np.zeros_like(array) for moment in "mv" for name, array in arrays}

    def rate(self, group: str, step: int, steps: int) -> float:
        """Learning rate of a group at the update with number `step` (from 0) of `steps`."""
        recurrent, _ = GROUPS[group]
        rate = learning_rate(step, steps, self.lr, self.warmup, self.schedule, self.floor)
        return rate * self.recurrent_factor if recurrent else rate

    def decay(self, group: str) -> float:
        """Weight decay of a group, before the rate multiplies it."""
        _, decays = GROUPS[group]
        return self.weight_decay if decays else 0.0

    def grouping(self, is_recurrent: Callable[[str], bool]) -> GroupOf:
        """How parameters are grouped, where ``model.is_recurrent`` tells what the layers name."""
        names = {kind: group for group, kind in GROUPS.items()}

        def group_of(name: str) -> str:
            recurrent = is_recurrent(name) if self.recurrent is None else _meant(name, self.recurrent)
            spared = _meant(name, self.no_decay) or (recurrent and RECURRENT in self.no_decay)
            return names[recurrent, not spared]

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
        """Updates `params` and `moments` in place; returns the norm of all gradients, before clipping.

        Raises
        ------
        NonFinite
            Names the gradient that is not finite, the first in the order of the backward pass; nothing is updated
            then. Or the parameter or second moment that the update made so.
        """
        arrays = dict(flatten(params))
        gradients = dict(flatten(grads))
        norms = {name: optim.norm(gradient) for name, gradient in reversed(gradients.items())}
        check_finite("gradient", norms, group_of)
        size = math.hypot(*norms.values())
        scale = self.clip / size if 0 < self.clip < size else 1.0
        rates = {group: self.rate(group, step, steps) for group in GROUPS}
        updated = {}  # norms of the parameter and of its second moment
        for name, gradient in gradients.items():
            group = group_of(name)
            updated[name] = optim.adamw(
                arrays[name],
                moments[f"m.{name}"],
                moments[f"v.{name}"],
                gradient,
                lr=rates[group],
                beta1=self.betas[0],
                beta2=self.betas[1],
                eps=self.eps,
                decay=self.decay(group),
                scale=scale,
                step=step + 1,
            )
        after = {name: updated[name][0] if name in updated else optim.norm(array) for name, array in arrays.items()}
        check_finite("parameter", after, group_of)
        check_finite("the optimiser's second moment of", {name: v for name, (_, v) in updated.items()}, group_of)
        return size


def _meant(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a part of the flattened name is one of those listed."""
    return any(fnmatchcase(part, pattern) for part in name.split(".") for pattern in patterns)


def check_finite(what: str, norms: dict[str, float], group_of: GroupOf) -> None:
    """Raises NonFinite for the first of the arrays whose norm is not finite."""
    for name, size in norms.items():
        if not math.isfinite(size):
            group = f"group {group_of(name)}" if is_parameter(name) else "a buffer"
            raise NonFinite(f"{what} {name} ({group}) is not finite, its norm is {size}")


def check_parameters(what: str, params: Params, group_of: GroupOf) -> None:
    """Raises NonFinite for the first parameter that is not finite. Buffers are passed over: what they hold follows."""
    norms = {name: optim.norm(array) for name, array in flatten(params) if is_parameter(name)}
    check_finite(what, norms, group_of)


class Group(NamedTuple):
    """One group: its parameters' names, how many numbers they are, and its rates and decay at the `steps` listed."""

    name: str
    parameters: tuple[str, ...]
    numbers: int
    steps: tuple[int, ...]
    lr: tuple[float, ...]
    decay: tuple[float, ...]


def describe_groups(optimiser: AdamW, params: Params, group_of: GroupOf, steps: int) -> tuple[Group, ...]:
    """The groups that have parameters, at step 0, at the end of the warm-up, and at the last step.

    `decay` is the share that a step takes away. ValueError where what is listed as `recurrent` or `no_decay` means no
    parameter.
    """
    at = (0, min(warmup_steps(steps, optimiser.warmup), steps - 1), steps - 1)
    arrays = {name: array for name, array in flatten(params) if is_parameter(name)}
    for key in ("recurrent", "no_decay"):
        for pattern in getattr(optimiser, key) or ():
            if pattern != RECURRENT and not any(_meant(name, (pattern,)) for name in arrays):
                raise ValueError(f"optimiser.{key}: '{pattern}' is no part of any parameter's name")
    groups = []
    for group in GROUPS:
        names = tuple(name for name in arrays if group_of(name) == group)
        if names:
            lr = tuple(optimiser.rate(group, step, steps) for step in at)
            decay = tuple(optimiser.decay(group) * rate for rate in lr)
            groups.append(Group(group, names, sum(arrays[name].size for name in names), at, lr, decay))
    return tuple(groups)


def table(groups: tuple[Group, ...]) -> str:
    """The groups as text, one a line."""
    steps = groups[0].steps
    head = f"{'group':<16} {'arrays':>7} {'numbers':>10}   lr / decay at step {steps[0]}, {steps[1]} and {steps[2]}"
    rows = [
        f"{group.name:<16} {len(group.parameters):>7} {group.numbers:>10,}   "
        + "   ".join(f"{lr:.2e} / {decay:.2e}" for lr, decay in zip(group.lr, group.decay, strict=True))
        for group in groups
    ]
    return "\n".join([head, *rows])


def members(group: Group) -> str:
    """The names of a group's parameters as text, one a line, with how many blocks have one."""
    blocks = Counter(re.sub(r"^blocks\.\d+\.", "blocks.*.", name) for name in group.parameters)
    return "\n".join(f"  {name}" + (f"  x {n}" if n > 1 else "") for name, n in blocks.items())
