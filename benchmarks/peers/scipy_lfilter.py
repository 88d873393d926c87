"""SciPy's lfilter, one channel after the other: the recurrence as an IIR filter. It has no gradient."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from benchmarks.peers.problem import Scan, Trial


def scan(problem: Scan) -> Trial:
    a, x, _ = problem
    h = np.empty_like(x)
    one = np.ones(1, np.float32)
    filters = [np.array([1, -a_n], np.float32) for a_n in a]

    def step() -> np.ndarray:
        for n, denominator in enumerate(filters):
            h[..., n] = lfilter(one, denominator, x[..., n])
        return h

    return Trial(step, lambda h: {"h": h})
