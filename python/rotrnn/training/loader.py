"""Selects the examples of each step, and loads them while the previous step runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from rotrnn._support.text import plural
from rotrnn.nn.layer import Array
from rotrnn.tasks import Batch, Split
from rotrnn.tasks.task import Index, shuffled
from rotrnn.training.parallel import ALONE, World
from rotrnn.training.recipe import Training

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: its multiples by 0, 1, 2, ... are well spread modulo 2^64, for any number of
them."""


def batch_order(n: int, seed: int, epoch: int) -> Array:
    """Returns the order of n examples in an epoch, counted from 0. (Tasks split their data with epoch 0 of
    `shuffled`.)"""
    return shuffled(n, seed, epoch + 1)


class Part(NamedTuple):
    """A process's share of a part of a batch, and the positions (B,) of its sequences in that part."""

    batch: Batch
    places: Index


class Loader:
    """Loads the batches of a training split. Each batch is cut into `training.accumulate` parts, and each part is
    shared among the processes of a world; only this process's share is loaded.

    Each epoch has a new order, and its last incomplete batch is dropped. A `fresh` split is read in order, from a start
    that depends on `training.seed`. While a step is computed, a thread loads the next batch.
    """

    def __init__(self, split: Split, training: Training, world: World = ALONE) -> None:
        self.split, self.training, self.world = split, training, world
        self.batches = len(split) // training.batch
        if not self.batches:
            raise ValueError(
                f"training.batch is {training.batch}, expected at most the {plural(len(split), 'example')} of the split"
            )
        if (least := training.batch // training.accumulate) < world.size:
            parts = f" in {training.accumulate} parts" * (training.accumulate > 1)
            raise ValueError(
                f"training.batch is {training.batch}{parts}, {plural(least, 'example')} at a time, "
                f"expected at least one for each of {world.size} processes"
            )
        self._start = self.batches * (training.seed * GOLDEN % 2**64) >> 64
        self._order: tuple[int, Array] | None = None
        self._thread = ThreadPoolExecutor(1, "rotrnn-loader")
        self._next: tuple[int, Future[list[Part]]] | None = None

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
        """Returns this process's share of the batch of a step, in parts, and starts to load the next batch."""
        there = self._next
        future = there[1] if there is not None and there[0] == step else self._submit(step)
        self._next = step + 1, self._submit(step + 1)
        return future.result()

    def _submit(self, step: int) -> Future[list[Part]]:
        return self._thread.submit(self._make, np.array_split(self.index(step), self.training.accumulate))

    def _make(self, parts: list[Index]) -> list[Part]:
        places = [np.array_split(np.arange(len(part)), self.world.size)[self.world.rank] for part in parts]
        return [
            Part(self.split.batch(part[own], self.training.dtype), own) for part, own in zip(parts, places, strict=True)
        ]

    def close(self) -> None:
        """Stops the thread."""
        self._thread.shutdown(cancel_futures=True)
