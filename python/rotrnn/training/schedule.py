"""The learning rate over training: linear warm-up, then half a cosine."""

from __future__ import annotations

import math

FLOOR = 1e-7


def learning_rate(step: int, steps: int, peak: float, warmup: float = 0.1) -> float:
    """Learning rate of the update with number `step` (from 0) of `steps` (LRU, appendix C; RotRNN, appendix B.1).

    It rises linearly from 1e-7 at step 0 to `peak` at step W, and from there falls as half a cosine to 1e-7 at step
    `steps`, one past the last: ``1e-7 + (peak - 1e-7) (1 + cos(pi (step - W) / (steps - W))) / 2``.

    Parameters
    ----------
    warmup : float
        Below 1 the share of all steps that W is, rounded; from 1 on W itself.
    """
    warm = warmup_steps(steps, warmup)
    if step < warm:
        height = step / warm
    else:
        height = 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))) if steps > warm else 1.0
    return FLOOR + (peak - FLOOR) * height


def warmup_steps(steps: int, warmup: float) -> int:
    """The step at which the warm-up ends, at most `steps`."""
    return min(round(warmup * steps if warmup < 1 else warmup), steps)
