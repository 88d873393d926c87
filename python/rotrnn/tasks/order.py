"""The random order by which published code splits a data set."""

from __future__ import annotations

import numpy as np

from rotrnn.tasks.task import Index


def torch_random_order(n: int, seed: int = 42) -> Index:
    """0..n-1 in the order of PyTorch's ``randperm(n)`` on the CPU with a generator of that seed: its random_split.

    The words of a Mersenne twister drive a shuffle of Fisher and Yates: item i changes places with one of those from i
    on. The loaders of S4, S5 and minimal-LRU split CIFAR-10 and Pathfinder so, with seed 42 and training first.

    Raises
    ------
    ValueError
        `n` is not from 0 to 2**32 // 20, up to where PyTorch draws so, or `seed` not from 0 to 2**64 - 1.
    """
    if not 0 <= n <= 2**32 // 20:
        raise ValueError(f"torch_random_order: n is {n}, expected an integer from 0 to {2**32 // 20}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"torch_random_order: seed is {seed}, expected an integer from 0 to 2**64 - 1")
    # NumPy keeps this old generator as it is for good (NEP 19); PyTorch seeds its own with the low half
    words = np.frombuffer(np.random.RandomState(seed & 0xFFFFFFFF).bytes(4 * n), "<u4")
    steps = (words % np.arange(n, 0, -1, dtype=np.int64)).tolist()
    order = list(range(n))
    for i, step in enumerate(steps):
        order[i], order[i + step] = order[i + step], order[i]
    return np.array(order, np.int64)
