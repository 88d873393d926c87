"""Learning-rate schedules: linear warm-up, followed by cosine decay, linear decay, or a constant rate."""

from __future__ import annotations

import math

from rotrnn.ops.boundary import Boundary

SCHEDULES = ("cosine", "linear", "constant", "s5")


def learning_rate(
    step: int, steps: int, peak: float, warmup: float = 0.1, schedule: str = "cosine", floor: float = 1e-7
) -> float:
    """Returns the learning rate of update number `step` (from 0) of `steps`: ``floor + (peak - floor) height``.

    The height rises linearly from 0 at step 0 to 1 at step W, the end of the warm-up. From there, with
    ``x = (step - W) / (steps - W)``, it depends on `schedule`:

    - "cosine": ``(1 + cos(pi x)) / 2`` (LRU, appendix D.2, with a floor of 1e-7);
    - "linear": ``1 - x``;
    - "constant": 1;
    - "s5": as in the released code of S5, and of minimal-LRU, which is based on it. It sets the rate after each update:
      the height is 1 at step 0, then ``step / W`` up to step W, and from there ``(1 + cos(pi x)) / 2`` with
      ``x = (step - 1) / (steps - W)``, at most 1. So the rate is at its floor for the last W - 1 steps.

    Parameters
    ----------
    warmup : float
        Below 1 it is W as a share of all steps, rounded; from 1 on it is W itself, or `steps` if that is less.

    Raises
    ------
    ValueError
        A number that is negative or not finite, `step` above `steps`, or a `schedule` that is none of these.
    """
    args = Boundary("learning_rate")
    args.choice("schedule", schedule, SCHEDULES)
    steps = args.integer("steps", steps, 1)
    step = args.integer("step", step, 0, steps)
    peak, warmup, floor = (args.number(*one) for one in (("peak", peak), ("warmup", warmup), ("floor", floor)))
    warm = warmup_steps(steps, warmup)
    late = schedule == "s5"
    if late and step == 0:
        height = 1.0
    elif step < warm:
        height = step / warm
    elif schedule == "constant" or steps == warm or (late and step == warm):
        height = 1.0
    else:
        x = min((step - 1) / (steps - warm), 1) if late else (step - warm) / (steps - warm)
        height = 1 - x if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * x))
    return floor + (peak - floor) * height


def warmup_steps(steps: int, warmup: float) -> int:
    """Returns the step at which the warm-up ends, at most `steps`."""
    return min(round(warmup * steps if warmup < 1 else warmup), steps)
