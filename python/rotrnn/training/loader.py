"""Selects the examples of each step, and loads them while the previous step runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import plural
from rotrnn.nn.layer import Array
from rotrnn.ops.random import philox
from rotrnn.tasks import Batch, Split
from rotrnn.tasks.task import Index, shuffled
from rotrnn.training.parallel import ALONE, World
from rotrnn.training.recipe import Training

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: its multiples by 0, 1, 2, ... are well spread modulo 2^64, for any number of
them."""


CARRIED = 1
"""Third number of the Philox counters that say which rows begin anew."""


def batch_order(n: int, seed: int, epoch: int) -> Array:
    """Returns the order of n examples in an epoch, counted from 0. (Tasks split their data with epoch 0 of
    `shuffled`.)"""
    return shuffled(n, seed, epoch + 1)


class Part(NamedTuple):
    """A process's share of a part of a batch, the positions (B,) of its sequences in that part and in the whole batch,
    if the split carries states on, which of them begin anew, and the sequences' weights and intervals, if they have
    any."""

    batch: Batch
    places: Index
    rows: Index
    new: npt.NDArray[np.bool_] | None = None
    weights: npt.NDArray[np.float64] | None = None
    dt: npt.NDArray[np.float64] | None = None


class Loader:
    """Loads the batches of a training split. Each batch is cut into `training.accumulate` parts, and each part is
    shared among the processes of a world; only this process's share is loaded.

    Each epoch has a new order, and its last incomplete batch is dropped. A `fresh` split is read in order, from a start
    that depends on `training.seed`. While a step is computed, a thread loads the next batch.

    If the split carries states on (`Split.carry`), row r of a batch continues the sequence of row r of the last batch,
    with the example that it would have otherwise, or begins anew; both follow from the seed, the step and r.
    """

    def __init__(self, split: Split, training: Training, world: World = ALONE) -> None:
        self.split, self.training, self.world = split, training, world
        self.batches = len(split) // training.batch
        if not self.batches:
            raise ValueError(
                f"training.batch is {training.batch}, expected at most the {plural(len(split), 'example')} for training"
            )
        if (least := training.batch // training.accumulate) < world.size:
            parts = f" in {training.accumulate} parts" * (training.accumulate > 1)
            raise ValueError(
                f"training.batch is {training.batch}{parts}, {plural(least, 'example')} at a time, "
                f"expected at least one for each of {world.size} processes"
            )
        if training.packed and (split.carry or world.size > 1):
            other = "task.carry above 0" if split.carry else f"{world.size} processes"
            raise ValueError(f"training.packed is true with {other}, expected false: rows are padded there")
        if training.skip and split.carry:
            both = f"training.skip is {training.skip} with task.carry {split.carry.chance:g}"
            why = "after a step that is left out, rows would go on from the states of other sequences"
            raise ValueError(f"{both}, expected one of them to be 0: {why}")
        self._start = self.batches * (training.seed * GOLDEN % 2**64) >> 64
        self._order: tuple[int, Array] | None = None
        self._thread = ThreadPoolExecutor(1, "rotrnn-loader")
        self._loading: dict[int, Future[list[Part]]] = {}
        self._known: tuple[int, Index] | None = None

    def index(self, step: int) -> Index:
        """Returns the indices of the examples of a step."""
        size = self.training.batch
        if self.split.fresh:
            first = size * ((step + self._start) % self.batches)
            return np.arange(first, first + size)
        epoch, place = divmod(step, self.batches)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, batch_order(len(self.split), self.training.seed, epoch)
        return self._order[1][place * size :][:size]

    def parts(self, step: int) -> list[Part]:
        """Returns this process's share of the batch of a step, in parts, and starts to load the next batch. Both are
        kept until a later step is asked for: a step that a GPU could not launch asks twice."""
        self._loading = {one: self._loading.get(one) or self._submit(one) for one in (step, step + 1)}
        return self._loading[step].result()

    def _submit(self, step: int) -> Future[list[Part]]:
        return self._thread.submit(self._make, step)

    def _make(self, step: int) -> list[Part]:
        index, dtype = self.index(step), self.training.dtype
        before = self._before(step) if self.split.carry else None
        parts = []
        for of_part in np.array_split(np.arange(len(index)), self.training.accumulate):
            places = np.array_split(np.arange(len(of_part)), self.world.size)[self.world.rank]
            rows = of_part[places]
            weights = self.split.weights(index[rows])
            if before is None:
                batch, dt = self.split.batch(index[rows], dtype), self.split.intervals(index[rows])
                parts.append(Part(batch, places, rows, None, weights, dt))
            else:
                batch, _ = self.split.continued(index[rows], before[rows], dtype)
                parts.append(Part(batch, places, rows, before[rows] < 0, weights))
        return parts

    def new_rows(self, step: int) -> npt.NDArray[np.bool_]:
        """Returns which rows of the batch of a step begin anew."""
        rows = np.arange(self.training.batch)
        chance = self.split.carry.chance_at(step)
        if not chance:
            return np.full(len(rows), True)
        counter = np.zeros((len(rows), 4), np.int64)
        counter[:, 0], counter[:, 1], counter[:, 2] = rows, step, CARRIED
        return np.asarray(philox(counter, self.training.seed)[:, 0] >= chance * 2.0**32)

    def _before(self, step: int) -> Index:
        """Returns the data of the rows of a step about their sequences so far, -1 where they begin anew."""
        new = self.new_rows(step)
        if self._known is None or self._known[0] != step:
            waiting, first = ~new, step  # the first call: as far back as the oldest of the sequences begins
            while waiting.any():
                first -= 1
                waiting &= ~self.new_rows(first)
            known = np.full(len(new), -1)
            for s in range(first, step):
                known = self.split.continued(self.index(s), np.where(self.new_rows(s), -1, known))[1]
        else:
            known = self._known[1]
        before = np.where(new, -1, known)
        self._known = step + 1, self.split.continued(self.index(step), before)[1]
        return before

    def close(self) -> None:
        """Stops the thread."""
        self._thread.shutdown(cancel_futures=True)
