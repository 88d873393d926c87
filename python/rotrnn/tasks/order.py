"""PyTorch's random permutation, with which published code splits a data set."""

from __future__ import annotations

import numpy as np

from rotrnn.tasks.task import Index


def torch_random_order(n: int, seed: int = 42) -> Index:
    """Returns 0..n-1 in the order of PyTorch's ``randperm(n)`` on the CPU with a generator of that seed.

    PyTorch's random_split uses this order. The words of a Mersenne Twister drive a Fisher-Yates shuffle: item i is
    swapped with one of the items from i on. The loaders of S4, S5 and minimal-LRU split CIFAR-10 and Pathfinder this
    way, with seed 42 and the training split first.

    Raises
    ------
    ValueError
        `n` is not from 0 to 2**32 // 20 (PyTorch uses another method for larger n), or `seed` is not from 0 to
        2**64 - 1.
    """
    if not 0 <= n <= 2**32 // 20:
        raise ValueError(f"torch_random_order: n is {n}, expected an integer from 0 to {2**32 // 20}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"torch_random_order: seed is {seed}, expected an integer from 0 to 2**64 - 1")
    # NumPy guarantees that this legacy generator never changes (NEP 19). PyTorch seeds with the low 32 bits.
    words = np.frombuffer(np.random.RandomState(seed & 0xFFFFFFFF).bytes(4 * n), "<u4")
    steps = (words % np.arange(n, 0, -1, dtype=np.int64)).tolist()
    order = list(range(n))
    for i, step in enumerate(steps):
        order[i], order[i + step] = order[i + step], order[i]
    return np.array(order, np.int64)
