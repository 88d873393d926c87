"""Token ids that depend on the training split: symbols by frequency, after three special ids."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rotrnn.tasks.task import Batch, Index, Split, Task

PAD, UNKNOWN, EOS = 0, 1, 2
SPECIALS = 3


def ids_of(symbols: Index, size: int) -> Index:
    """Returns the id of each of `size` symbols. `symbols` are the vocabulary's symbols in the order of their ids."""
    ids = np.full(size, UNKNOWN, np.int64)
    ids[symbols] = SPECIALS + np.arange(len(symbols))
    return ids


@dataclass(frozen=True)
class Translated(Split):
    """A split in which id i of another split is replaced by ``ids[i]``."""

    split: Split
    ids: Index

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, index: Index, dtype: npt.DTypeLike = np.float32) -> Batch:
        """Returns the sequences at `index`."""
        batch = self.split.batch(index, dtype)
        return batch._replace(inputs=self.ids[batch.inputs])

    def curve_lengths(self, index: Index, batch: Batch) -> Index:
        """Returns the lengths of the original split."""
        return self.split.curve_lengths(index, batch)


def read_as(task: Task, other: Task) -> Task:
    """Returns `task` with the ids of the vocabulary of `other`, the run's task; symbols that are not in both become
    ``<unk>``. ValueError if only one of them has a vocabulary of its training split."""
    if task.symbols is None or other.symbols is None:
        tasks = f"task is set to {task.name}, and the run was trained on {other.name}"
        raise ValueError(
            f"{tasks}: only one of them has token ids of its training split, expected the run's task and kind of tokens"
        )
    if np.array_equal(task.symbols, other.symbols):
        return task
    size = 1 + int(max(task.symbols.max(initial=0), other.symbols.max(initial=0)))
    ids = np.concatenate([[PAD, UNKNOWN, EOS], ids_of(other.symbols, size)[task.symbols]])
    test = Translated(task.test, ids)
    val = test if task.val is task.test else Translated(task.val, ids)
    train = Translated(task.train, ids)
    return replace(task, train=train, val=val, test=test, vocab=other.vocab, symbols=other.symbols)
