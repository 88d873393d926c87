"""AdamW over a model's parameters in two groups, as the published recipes of LRU, S5 and RotRNN have it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rotrnn.nn.layer import Array, Params, flatten, is_parameter
from rotrnn.ops import optim
from rotrnn.training.schedule import learning_rate, warmup_steps

Moments = dict[str, Array]
"""AdamW's state: "m.<name>" and "v.<name>" of every parameter's flattened name."""

GROUPS = ("global", "recurrent")


class NonFinite(FloatingPointError):
    """A loss, gradient or parameter that is infinite or not a number."""


@dataclass(frozen=True)
class AdamW:
    """The [optimiser] section: AdamW (Loshchilov and Hutter 2019) under a warm-up and half a cosine.

    Group "recurrent", the parameters that ``model.is_recurrent`` names, has the scheduled rate times
    `recurrent_factor` and no decay; group "global" is all the rest, norms and biases included.

    Parameters
    ----------
    lr : float
        Peak of the scheduled learning rate.
    recurrent_factor : float
        What the recurrent group's rate is of it.
    weight_decay : float
        Decoupled, so a step takes ``rate * weight_decay`` of a global parameter away.
    betas, eps
        As in the paper.
    clip : float
        Gradients whose norm over all parameters is larger are scaled down to it; 0 for never.
    warmup : float
        Below 1 a share of the steps, from 1 on their number.
    """

    lr: float = 1e-3
    recurrent_factor: float = 1.0
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 0.0
    warmup: float = 0.1

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr is {self.lr}, expected a positive number")
        for key in ("recurrent_factor", "weight_decay", "clip", "warmup"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key} is {getattr(self, key)}, expected a number from 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}, expected two numbers in [0, 1)")
        if not self.eps > 0:
            raise ValueError(f"eps is {self.eps}, expected a positive number")

    def init(self, params: Params) -> Moments:
        """Zero moments."""
        arrays = [(name, array) for name, array in flatten(params) if is_parameter(name)]
        return {f"{moment}.{name}": np.zeros_like(array) for moment in "mv" for name, array in arrays}

    def rate(self, group: str, step: int, steps: int) -> float:
        """Learning rate of a group at the update with number `step` (from 0) of `steps`."""
        return learning_rate(step, steps, self.lr, self.warmup) * (
            self.recurrent_factor if group == "recurrent" else 1.0
        )

    def decay(self, group: str) -> float:
        """Weight decay of a group, before the rate multiplies it."""
        return 0.0 if group == "recurrent" else self.weight_decay

    def update(
        self,
        params: Params,
        grads: Params,
        moments: Moments,
        is_recurrent: Callable[[str], bool],
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
        check_finite("gradient", norms, is_recurrent)
        size = math.hypot(*norms.values())
        scale = self.clip / size if 0 < self.clip < size else 1.0
        rates = {group: self.rate(group, step, steps) for group in GROUPS}
        updated = {}  # norms of the parameter and of its second moment
        for name, gradient in gradients.items():
            group = group_of(name, is_recurrent)
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
        check_finite("parameter", after, is_recurrent)
        check_finite("the optimiser's second moment of", {name: v for name, (_, v) in updated.items()}, is_recurrent)
        return size


def group_of(name: str, is_recurrent: Callable[[str], bool]) -> str:
    """The group of a parameter."""
    return "recurrent" if is_recurrent(name) else "global"


def check_finite(what: str, norms: dict[str, float], is_recurrent: Callable[[str], bool]) -> None:
    """Raises NonFinite for the first of the arrays whose norm is not finite."""
    for name, size in norms.items():
        if not math.isfinite(size):
            group = f"group {group_of(name, is_recurrent)}" if is_parameter(name) else "a buffer"
            raise NonFinite(f"{what} {name} ({group}) is not finite, its norm is {size}")


def check_parameters(what: str, params: Params, is_recurrent: Callable[[str], bool]) -> None:
    """Raises NonFinite for the first parameter that is not finite. Buffers are passed over: what they hold follows."""
    norms = {name: optim.norm(array) for name, array in flatten(params) if is_parameter(name)}
    check_finite(what, norms, is_recurrent)


class Group(NamedTuple):
    """One group: its parameters' names, how many numbers they are, and its rates and decay at the `steps` listed."""

    name: str
    parameters: tuple[str, ...]
    numbers: int
    steps: tuple[int, ...]
    lr: tuple[float, ...]
    decay: tuple[float, ...]


def describe_groups(
    optimiser: AdamW, params: Params, is_recurrent: Callable[[str], bool], steps: int
) -> tuple[Group, ...]:
    """The groups at step 0, at the end of the warm-up, and at the last step; `decay` is the share a step takes away."""
    at = (0, min(warmup_steps(steps, optimiser.warmup), steps - 1), steps - 1)
    arrays = {name: array for name, array in flatten(params) if is_parameter(name)}
    groups = []
    for group in GROUPS:
        names = tuple(name for name in arrays if group_of(name, is_recurrent) == group)
        lr = tuple(optimiser.rate(group, step, steps) for step in at)
        decay = tuple(optimiser.decay(group) * rate for rate in lr)
        groups.append(Group(group, names, sum(arrays[name].size for name in names), at, lr, decay))
    return tuple(groups)


def table(groups: tuple[Group, ...]) -> str:
    """The groups as text, one a line."""
    steps = groups[0].steps
    head = f"{'group':<10} {'arrays':>7} {'numbers':>10}   lr / decay at step {steps[0]}, {steps[1]} and {steps[2]}"
    rows = [
        f"{group.name:<10} {len(group.parameters):>7} {group.numbers:>10,}   "
        + "   ".join(f"{lr:.2e} / {decay:.2e}" for lr, decay in zip(group.lr, group.decay, strict=True))
        for group in groups
    ]
    return "\n".join([head, *rows])
