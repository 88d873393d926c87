"""Runs a model on sequences split over the processes of MPI, and compares with one process.

mpiexec -n PROCESSES python split_by_mpi.py TIME [FOLDER]

With FOLDER, process 3 fails, and the others write there what they were told. All wait for these files, since mpiexec
kills the processes that are left when one has failed.
"""

from __future__ import annotations

import sys
import time as clock
from pathlib import Path

import numpy as np

from patience import PATIENCE
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.nn.blocks.block import ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.gate import Gate
from rotrnn.nn.blocks.norm import BatchNorm
from rotrnn.nn.blocks.pool import MeanPool
from rotrnn.nn.layer import Context, astype, flatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.ops import split_lengths
from rotrnn.training.parallel import Fallen, World, world

B, D, STEPS = 4, 4, 30


def run(everyone: World, time: int, fail: bool) -> None:
    grid = everyone.grid(time)
    blocks = tuple(ResidualBlock(BatchNorm(D), LRU(D, d_state=8), Gate(D)) for _ in range(2))
    model = SequenceClassifier(Dense(2, D), ResidualStack(blocks), MeanPool(), Dense(D, 3))
    rng = np.random.default_rng(0)
    params = astype(model.init(rng), np.float64)
    x, dlogits = rng.standard_normal((B, STEPS, 2)), rng.standard_normal((B, 3))
    lengths = np.array([30, 17, 1, 9])

    cuts = np.linspace(0, 1, time + 1) ** 2 * STEPS  # unequal pieces
    first, last = (int(cuts[grid.time.rank + i]) for i in (0, 1))
    rows = np.array_split(np.arange(B), grid.rows)[grid.row]
    ctx = Context(split_lengths(lengths[rows], last - first, split=grid.time), train=True, gather=grid)
    if fail and everyone.rank == 3:
        raise ValueError("broken on demand")
    logits, saved = model.forward(params, x[rows, first:last], ctx)
    grads = everyone.total(dict(flatten(model.backward(params, saved, dlogits[rows] / time, grid))))

    expected, kept = model.forward(params, x, Context(lengths, train=True))
    # roundings as in test_split.py, for two blocks
    bound = 2 * (2 * B * STEPS + 6 * D + 8 * 8 + 10 * STEPS) * np.finfo(float).eps
    np.testing.assert_allclose(logits, expected[rows], rtol=0, atol=bound * np.abs(expected).max())
    whole = dict(flatten(model.backward(params, kept, dlogits)))
    largest = max(np.abs(grad).max() for grad in whole.values())
    for name, grad in whole.items():
        np.testing.assert_allclose(grads[name], grad, rtol=0, atol=bound * largest, err_msg=name)


if __name__ == "__main__":
    everyone, pieces = world(), int(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    try:
        with everyone.together():
            run(everyone, pieces, folder is not None)
    except Exception as error:
        if folder is not None:
            name = str(everyone.rank) if isinstance(error, Fallen) else "failed"
            (folder / f"{name}.part").write_text(str(error), encoding="utf-8")
            (folder / f"{name}.part").rename(folder / name)
            end = clock.monotonic() + PATIENCE
            while sum(not path.suffix for path in folder.iterdir()) < everyone.size and clock.monotonic() < end:
                clock.sleep(0.01)
        raise
    if everyone.first:
        print(f"{everyone.size} processes, {pieces} pieces: equal")
