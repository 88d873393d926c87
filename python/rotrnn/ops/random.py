"""Counter-based random numbers: the generator of dropout and of all random choices (csrc/kernels/philox.c)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import HOST
from rotrnn.devices.recording import NotRecordable, recording
from rotrnn.ops.boundary import Boundary

Words = npt.NDArray[np.int64]


def philox(counter: npt.ArrayLike, seed: int | npt.ArrayLike) -> Words:
    """Philox-4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Returns four random 32-bit words for each counter. They are the same on every device and for any number of threads.

    Parameters
    ----------
    counter : (n, 4) int64
        Counters of four words, each from 0 to 2^32 - 1.
    seed : int from 0 to 2^64 - 1, or (n, 2) int64
        One key for all counters, or one key per counter as two words, lower word first.

    Returns
    -------
    words : (n, 4) int64
        Random words from 0 to 2^32 - 1.

    Raises
    ------
    ValueError
        Wrong shape, or a number out of range.
    """
    if recording() is not None:
        raise NotRecordable("random numbers are drawn on the host")
    counters = _words("counter", counter, 4)
    n = len(counters)
    if isinstance(seed, int | np.integer):
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"philox: seed is {seed}, expected 0 <= seed < 2^64")
        keys = np.tile(np.array([seed & 0xFFFFFFFF, seed >> 32], np.int64), (n, 1))
    else:
        keys = _words("seed", seed, 2)
        if len(keys) != n:
            raise ValueError(f"philox: seed has shape {keys.shape}, expected an integer or (n={n}, 2)")
    words = np.empty((n, 4), np.int64)
    HOST.kernels.philox(out=words, counter=counters, key=keys, n=n)
    return words


def _words(name: str, value: npt.ArrayLike, count: int) -> Words:
    args = Boundary("philox")
    args.bind(str(count), count, "the generator")
    array: Words = args.integers(name, value, f"n {count}")
    if array.size and not (array.min() >= 0 and array.max() < 1 << 32):
        raise ValueError(f"philox: {name} has {array.min()} to {array.max()}, expected words from 0 to 2^32 - 1")
    return array
