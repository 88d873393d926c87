"""Training on several processes: equal to one, the same bits each time, and what happens when one of them fails.

Most worlds here are of threads, which exchange by a table and a barrier; the last tests start processes by mpiexec.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import toy
from rotrnn.checkpoint import read_checkpoint
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.block import ResidualBlock, ResidualStack
from rotrnn.nn.gate import Gate
from rotrnn.nn.layer import Context, astype, flatten, unflatten
from rotrnn.nn.lru import LRU
from rotrnn.nn.norm import BatchNorm
from rotrnn.tasks import TASKS, Task
from rotrnn.tasks.task import Batch, Split
from rotrnn.training import loop, parallel
from rotrnn.training.evaluation import evaluate
from rotrnn.training.loader import Loader
from rotrnn.training.loop import initial_state, train
from rotrnn.training.parallel import Fallen, World
from rotrnn.training.recipe import read_recipe

EPS = 2.0**-52
PATIENCE = 60  # seconds after which a thread that waits in vain fails its test


class Threads(World):
    """One of the threads of this process that make a world."""

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

    def _copy(self, x, root):
        x[...] = self._all(x)[root]


def among(size, run):
    """What `run(world)` returns in each of the threads of a world."""
    table, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, Threads(rank, table, barrier)) for rank in range(size)]
    return [future.result() for future in futures]


# ---- worlds ----


def test_what_processes_tell_each_other():
    def run(world):
        text = world.tell({"rank": world.rank, "numbers": [1.5, float("nan")] * world.rank})
        arrays = world.gather(np.full((world.rank, 3), world.rank, np.int64))
        shared = {"a": np.full(4, world.rank), "b": np.full((2, 2), 0.1 * world.rank)}
        world.share(shared)
        return text, arrays, shared

    for text, arrays, shared in among(3, run):
        assert [one["rank"] for one in text] == [0, 1, 2]
        assert [len(one["numbers"]) for one in text] == [0, 2, 4]
        assert [one.shape for one in arrays] == [(0, 3), (1, 3), (2, 3)]
        assert all((one == rank).all() for rank, one in enumerate(arrays))
        assert not shared["a"].any()
        assert not shared["b"].any()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_total_is_added_in_the_order_of_the_processes(size):
    """Numbers of many sizes, so that another order gives other bits."""
    rng = np.random.default_rng(0)
    given = [
        {name: (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(np.float32) for name, shape in (("a", (4, 3)), ("b", ()), ("c", (0,)), ("d", (8,)))}
        for _ in range(size)
    ]
    for total in among(size, lambda world: world.total(given[world.rank])):
        for name in "abcd":
            expected = given[0][name]
            for other in given[1:]:
                expected = expected + other[name]
            np.testing.assert_array_equal(total[name], expected)
            assert total[name].dtype == np.float32


def test_what_one_raises_is_raised_in_all():
    def run(world):
        try:
            with world.together():
                world.tell(None)
                if world.rank == 1:
                    raise KeyError("the café")
                for _ in range(3):
                    world.gather(np.zeros(1))
        except Exception as error:
            return error

    zero, one, two = among(3, run)
    assert isinstance(one, KeyError)
    assert isinstance(zero, Fallen)
    assert str(zero) == str(two) == "process 1 of 3 failed: KeyError: 'the café'"


def test_all_may_fail_at_once_or_at_the_end():
    def run(world):
        with pytest.raises(ValueError, match=f"own {world.rank}"), world.together():
            raise ValueError(f"own {world.rank}")
        return True

    assert all(among(3, run))

    def last(world):
        with pytest.raises(OSError if world.rank == 2 else Fallen), world.together():
            if world.rank == 2:
                raise OSError("no space")
        return True

    assert all(among(3, last))


def test_processes_that_come_apart_are_told():
    def run(world):
        with pytest.raises(RuntimeError, match="come apart"), world.together():
            if world.rank:
                world.tell(1)
            else:
                world.gather(np.zeros(3))
        with pytest.raises(ValueError, match=r"colour is 'red' in process 1, expected 'blue' as in process 0"):
            world.agree("colour", "red" if world.rank == 1 else "blue")
        return True

    assert all(among(2, run))


# ---- batch norm ----

B, T, D = 7, 9, 4
LENGTHS = np.array([9, 3, 1, 7, 0, 0, 5])
SHARES = {2: [slice(0, 4), slice(4, 7)], 3: [slice(0, 4), slice(4, 6), slice(6, 7)]}
"""Of three, the middle one has no valid step at all."""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("prenorm", [True, False])
def test_batch_norm_of_a_batch_that_is_spread(size, fused, prenorm):
    """A stack of two blocks with dropout, forward, running averages and backward, against the whole batch."""
    rng = np.random.default_rng(0)
    blocks = [
        ResidualBlock(BatchNorm(D), LRU(D, d_state=3), Gate(D, dropout=0.3, over_time=bool(i), site=2 * i), prenorm)
        for i in range(2)
    ]
    stack = ResidualStack(tuple(blocks))
    params = astype(stack.init(rng), np.float64)
    x, dy = 1 + rng.standard_normal((2, B, T, D))
    whole = Context(LENGTHS, train=True, seed=1, step=2, fused=fused)

    def run(own, ctx):
        mine = unflatten({name: array.copy() for name, array in flatten(params)})
        y, saved = stack.forward(mine, x[own], ctx)
        dx, dparams, _ = stack.backward(mine, saved, dy[own])
        running = {name: array for name, array in flatten(mine) if "running" in name}
        return y, dx, dict(flatten(dparams)), running

    def one(world):
        own = SHARES[size][world.rank]
        places = np.arange(B)[own]
        return run(own, replace(whole, lengths=LENGTHS[own], places=places, gather=world.gather))

    y, dx, dparams, running = run(slice(None), whole)
    ys, dxs, several, runnings = zip(*among(size, one), strict=True)
    # statistics are sums of B T numbers in another order, divided by deviations of about one; two blocks of some
    # 6 D + 8 N + 10 T roundings each carry that on
    bound = 2 * (2 * B * T + 6 * D + 8 * 3 + 10 * T) * EPS
    np.testing.assert_allclose(np.concatenate(ys), y, rtol=0, atol=bound * np.abs(y).max())
    np.testing.assert_allclose(np.concatenate(dxs), dx, rtol=0, atol=bound * np.abs(dx).max())
    largest = max(np.abs(grad).max() for grad in dparams.values())
    for name, grad in dparams.items():
        np.testing.assert_allclose(sum(own[name] for own in several), grad, rtol=0, atol=bound * largest, err_msg=name)
    for name, average in running.items():
        np.testing.assert_allclose(runnings[0][name], average, rtol=0, atol=bound * np.abs(average).max())
        for other in runnings[1:]:
            np.testing.assert_array_equal(other[name], runnings[0][name])


def test_batch_norm_of_no_step_anywhere():
    norm = BatchNorm(D)

    def run(world):
        ctx = Context(np.zeros(2, np.int64), train=True, gather=world.gather)
        with pytest.raises(ValueError, match="BatchNorm: no process has a valid step"):
            norm.forward(norm.init(np.random.default_rng(0)), np.zeros((2, T, D)), ctx)
        return True

    assert all(among(2, run))


# ---- whole trainings ----


@dataclass(frozen=True)
class Noise:
    """Random sequences with random labels, ragged; of `kind` "classifier", "tagger" or "retrieval"."""

    kind: str = "classifier"

    def load(self) -> Task:
        curve = None if self.kind == "retrieval" else "length"
        make = lambda seed, n: NoiseSplit(self.kind, seed, n)  # noqa: E731
        return Task("noise", make(1, 40), make(2, 11), make(3, 9), 3, None, 2, head=self.kind, curve=curve)


@dataclass(frozen=True)
class NoiseSplit(Split):
    kind: str
    seed: int
    n: int

    def __len__(self):
        return self.n

    def batch(self, index, dtype=np.float32):
        """Example i depends on i alone; of taggers every third one has no label that counts."""
        examples = [self.example(int(i)) for i in index]
        lengths = np.array([one[1] for one in examples])
        longest = lengths.max()
        cut = np.stack([one[0][..., :longest, :] for one in examples]).astype(dtype)
        labels = np.array([one[2][:longest] if self.kind == "tagger" else one[2] for one in examples], np.int64)
        return Batch(cut, labels, lengths)

    def example(self, i):
        rng = np.random.default_rng([self.seed, i])
        pair = (2,) if self.kind == "retrieval" else ()
        lengths = rng.integers(1, 13, pair)
        features = rng.standard_normal((*pair, 12, 2)) * (np.arange(12) < lengths[..., None])[..., None]
        if self.kind != "tagger":
            return features, lengths, rng.integers(3)
        labels = np.where((np.arange(12) < lengths) & (i % 3 != 0), rng.integers(0, 3, 12), -1)
        return features, lengths, labels


SETTINGS = {
    "model": {"layer": "lru", "d_model": 4, "n_layers": 2, "dropout": 0.2},
    "layer": {"d_state": 3},
    "optimiser": {"lr": 0.01, "eps": 1e-3},
    "training": {"batch": 8, "steps": 20, "eval_every": 7, "dtype": "float64"},
}
RUNS = {
    "classifier": {},
    "accumulated": {"training": {"batch": 8, "accumulate": 2}},
    "uneven": {"training": {"batch": 7}, "model": {"dropout_over_time": True}},
    "tagger": {"task": {"kind": "tagger"}, "model": {"norm": "layer"}},
    "tagger, batch norm": {"task": {"kind": "tagger"}, "training": {"batch": 7, "accumulate": 2}},
    "retrieval": {"task": {"kind": "retrieval"}},
    "fpmamba": {"model": {"layer": "fpmamba", "block": "plain", "n_layers": 1, "norm": "layer"}, "layer": {"d_state": 2}},
}


@pytest.fixture(autouse=True)
def _noise(monkeypatch):
    monkeypatch.setitem(TASKS, "noise", Noise)


def recipe_of(changes, **training):
    """A recipe whose settings are changed key by key; a layer's are its own."""
    tables = {"task": {"name": "noise"}, **{name: dict(table) for name, table in SETTINGS.items()}}
    for section, table in changes.items():
        tables[section] = table if section == "layer" else tables[section] | table
    tables["training"] |= training
    return read_recipe(tables)


def last(folder):
    """The arrays of a run's last checkpoint, and its facts."""
    return read_checkpoint(folder / "last.safetensors")


def carried(recipe, folder, monkeypatch):
    """How much further apart two runs end than they began, of parameters that differ by 2^-30 at first."""
    params = []
    for nudge in (0.0, 2.0**-30):

        def nudged(model, recipe, nudge=nudge):
            state = initial_state(model, recipe)
            rng = np.random.default_rng(5)
            for _, array in flatten(state.params):
                array += nudge * rng.choice([-1, 1], array.shape)
            return state

        monkeypatch.setattr(loop, "initial_state", nudged)
        train(recipe, folder / str(nudge), progress=False)
        params.append({name: array for name, array in last(folder / str(nudge))[0].items() if name.startswith("params")})
    monkeypatch.undo()
    return max(np.abs(params[1][name] - array).max() for name, array in params[0].items()) / 2.0**-30


@pytest.mark.parametrize("name", RUNS)
def test_several_train_as_one(tmp_path, monkeypatch, name):
    """To rounding: a sum over B T steps and over processes, of terms below one and some 100 roundings each, is off by
    (B T + 100) EPS; AdamW makes of it lr / eps times as much in a parameter, and each of 20 steps carries that as far
    as runs part that began apart."""
    recipe = recipe_of(RUNS[name])
    per_step = recipe.optimiser.lr / recipe.optimiser.eps * (8 * 12 + 100) * EPS
    bound = 20 * per_step * max(1.0, carried(recipe, tmp_path, monkeypatch))
    monkeypatch.setitem(TASKS, "noise", Noise)
    one, expected = last(tmp_path / "0.0")[0], json.loads((tmp_path / "0.0" / "result.json").read_text())
    assert bound < 1e-8
    for size in (2, 3):
        folder = tmp_path / f"of {size}"
        results = among(size, lambda world: train(recipe, folder, progress=False, among=world))
        assert all(result == results[0] for result in results)
        assert json.loads((folder / "result.json").read_text()) == results[0]
        assert results[0]["test"]["last"].get("curve", {}).get("n") == expected["test"]["last"].get("curve", {}).get("n")
        several, facts = last(folder)
        assert facts["arithmetic"][0].endswith(f" on {size} processes")
        for key, array in one.items():
            np.testing.assert_allclose(several[key], array, rtol=0, atol=bound, err_msg=key)
        assert results[0]["test"]["last"]["loss"] == pytest.approx(expected["test"]["last"]["loss"], rel=1e-8)
        print(name, size, bound, max(np.abs(several[key] - array).max() for key, array in one.items()))
