"""Worlds whose processes are threads of this one, which exchange by a table and a barrier."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from patience import PATIENCE
from rotrnn.training.parallel import World


class Threads(World):
    """A rank of a world whose ranks are threads of this process."""

    def __init__(self, rank: int, table: list, barrier: threading.Barrier) -> None:
        self.rank, self.size, self.table, self.barrier = rank, len(table), table, barrier

    def _all(self, x):
        self.table[self.rank] = x.copy()
        self.barrier.wait(PATIENCE)
        found = list(self.table)
        self.barrier.wait(PATIENCE)
        return found

    def _gather(self, x):
        return np.stack(self._all(x))

    def _exchange(self, x):
        return np.stack([one[self.rank] for one in self._all(x)])

    def _copy(self, x):
        x[...] = self._all(x)[0]

    def _part(self, group):
        groups = [one.item() for one in self._all(np.array(group))]
        members = [rank for rank, one in enumerate(groups) if one == group]
        if self.rank == members[0]:
            self.table[self.rank] = [None] * len(members), threading.Barrier(len(members))
        self.barrier.wait(PATIENCE)
        part = Threads(members.index(self.rank), *self.table[members[0]])
        self.barrier.wait(PATIENCE)
        return part


def among(size, run):
    """Returns the results of `run(world)` in the threads of a world, one for each rank."""
    table, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, Threads(rank, table, barrier)) for rank in range(size)]
    return [future.result() for future in futures]
