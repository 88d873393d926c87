"""Runs `rotrnn` with the toy, by clocks that jump: `python jumping_clocks.py SEED ARGUMENTS...`"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from toy import train_toy


def jumping(clock: Callable[[], float], rng: random.Random) -> Callable[[], float]:
    def look() -> float:
        return clock() + rng.choice((0.0, -1.0, 1.0)) * 10 ** rng.uniform(-3, 8)

    return look


if __name__ == "__main__":
    rng = random.Random(int(sys.argv.pop(1)))
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, jumping(getattr(time, name), rng))
    sys.exit(train_toy())
