"""Training on several processes: equal to one process, the same bits in every run, and the failure of a process.

Most worlds here are of threads, which exchange by a table and a barrier; the last tests start processes by mpiexec.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import toy
from patience import PATIENCE
from rotrnn import _cpu
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.cli import main
from rotrnn.nn.blocks.block import ResidualBlock, ResidualStack
from rotrnn.nn.blocks.gate import Gate
from rotrnn.nn.blocks.norm import BatchNorm
from rotrnn.nn.layer import Context, astype, flatten, unflatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.tasks import TASKS, Task
from rotrnn.tasks.task import Batch, Split
from rotrnn.training import loop, parallel
from rotrnn.training.loop import Interrupted, train
from rotrnn.training.parallel import Fallen, World
from rotrnn.training.recipe import load_recipe, read_recipe
from rotrnn.training.run import Run
from rotrnn.training.state import initial_state
from rotrnn.training.step import Stepper
from worlds import among

pytestmark = pytest.mark.whole

EPS = 2.0**-52


# ---- worlds ----


def test_what_processes_tell_each_other():
    def run(world):
        text = world.tell({"rank": world.rank, "numbers": [1.5, float("nan")] * (1000 * world.rank)})
        arrays = world.gather(np.full((world.rank, 3), world.rank, np.int64))
        shared = {"a": np.full(4, world.rank), "b": np.full((2, 2), 0.1 * world.rank)}
        world.share(shared)
        return text, arrays, shared

    for text, arrays, shared in among(3, run):
        assert [one["rank"] for one in text] == [0, 1, 2]
        assert [len(one["numbers"]) for one in text] == [0, 2000, 4000]
        assert [one.shape for one in arrays] == [(0, 3), (1, 3), (2, 3)]
        assert all((one == rank).all() for rank, one in enumerate(arrays))
        assert not shared["a"].any()
        assert not shared["b"].any()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2), ()])
def test_rows_are_gathered_whatever_is_in_them(size, shape):
    """Rows without numbers raised NumPy's "cannot reshape array of size 0"."""
    found = among(size, lambda world: world.gather(np.ones((3 - world.rank, *shape), np.float32)))
    for arrays in found:
        assert [one.shape for one in arrays] == [(3 - rank, *shape) for rank in range(size)]
        assert all(one.dtype == np.float32 and (one == 1).all() for one in arrays)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_total_is_added_in_the_order_of_the_processes(size):
    """Numbers of very different sizes, so that another order of the sum gives other bits."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(np.float32)

    given = [{"a": draw(4, 3), "b": draw(1)[0], "c": draw(0), "d": draw(8)} for _ in range(size)]
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
        try:
            with world.together():
                if world.rank == 2:
                    raise OSError("no space")
        except (OSError, Fallen) as error:
            return type(error)

    assert among(3, last) == [Fallen, Fallen, OSError]


def test_processes_out_of_step_are_reported():
    def run(world):
        try:
            with world.together():
                if world.rank:
                    world.tell(1)
                else:
                    world.gather(np.zeros(3))
        except RuntimeError as error:
            return str(error)

    assert all("out of step" in message for message in among(2, run))

    def disagree(world):
        with pytest.raises(ValueError, match=r"colour is 'red' in process 1, expected 'blue' as in process 0"):
            world.agree("colour", "red" if world.rank == 1 else "blue")
        return True

    assert all(among(3, disagree))


# ---- batch norm ----

B, T, D = 7, 9, 4
LENGTHS = np.array([9, 3, 1, 7, 0, 0, 5])
SHARES = {2: [slice(0, 4), slice(4, 7)], 3: [slice(0, 4), slice(4, 6), slice(6, 7)]}
"""The middle one of three processes has no valid step."""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("prenorm", [True, False])
def test_batch_norm_of_a_batch_that_is_spread(size, fused, prenorm):
    """A stack of two blocks with dropout: forward, running averages and backward equal those of the whole batch."""
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
        dx, dparams, _ = stack.backward(mine, saved, dy[own], gather=ctx.gather)
        if ctx.gather is not None:
            with pytest.raises(ValueError, match=r"BatchNorm\.backward: gather is None, expected forward's"):
                stack.backward(mine, saved, dy[own])
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
    """Random ragged sequences with random labels; `kind` is "classifier", "tagger", "bits" or "retrieval"."""

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
        """Example i depends only on i. For taggers and bits, every third example has no label that counts."""
        examples = [self.example(int(i)) for i in index]
        lengths = np.array([one[1] for one in examples])
        longest = lengths.max()
        cut = np.stack([one[0][..., :longest, :] for one in examples]).astype(dtype)
        labels = np.array(
            [one[2][:longest] if self.kind in ("tagger", "bits") else one[2] for one in examples], np.int64
        )
        return Batch(cut, labels, lengths)

    def example(self, i):
        rng = np.random.default_rng([self.seed, i])
        pair = (2,) if self.kind == "retrieval" else ()
        lengths = rng.integers(1, 13, pair)
        features = rng.standard_normal((*pair, 12, 2)) * (np.arange(12) < lengths[..., None])[..., None]
        if self.kind == "bits":
            inside = ((np.arange(12) < lengths) & (i % 3 != 0))[:, None]
            return features, lengths, np.where(inside & (rng.random((12, 3)) < 0.8), rng.integers(0, 2, (12, 3)), -1)
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
    "bits": {"task": {"kind": "bits"}, "training": {"batch": 7, "accumulate": 2}},
    "retrieval": {"task": {"kind": "retrieval"}},
    "tied": {
        "task": {
            **{"name": "word_problem", "group": "S3", "length": 5, "samples": 60, "test_length": 6, "test": 50},
            **{"shorter": "all", "count_padding": False},
        },
        "model": {"norm": "rms", "tied": True},
    },
    "fpmamba": {
        "model": {"layer": "fpmamba", "block": "plain", "n_layers": 1, "norm": "layer"},
        "layer": {"d_state": 2},
    },
}


@pytest.fixture(autouse=True)
def _noise(monkeypatch):
    monkeypatch.setitem(TASKS, "noise", Noise)


def recipe_of(changes, **training):
    """Returns a recipe with changed settings; those of the layer are replaced as a whole."""
    tables = {"task": {"name": "noise"}, **{name: dict(table) for name, table in SETTINGS.items()}}
    for section, table in changes.items():
        tables[section] = table if section == "layer" else tables[section] | table
    tables["training"] |= training
    return read_recipe(tables)


def last(folder):
    """Returns the arrays and facts of a run's last checkpoint."""
    return read_checkpoint(folder / "last.safetensors")


def carried(recipe, folder, monkeypatch):
    """Returns by which factor a difference of 2^-30 in the initial parameters of two runs grows until their end."""
    ends = []
    for nudge in (0.0, 2.0**-30):

        def nudged(model, recipe, nudge=nudge):
            state = initial_state(model, recipe)
            rng = np.random.default_rng(5)
            for _, array in flatten(state.params):
                array += nudge * rng.choice([-1, 1], array.shape)
            return state

        with monkeypatch.context() as patch:
            patch.setattr(loop, "initial_state", nudged)
            train(recipe, folder / str(nudge), progress=False)
        ends.append(last(folder / str(nudge))[0])
    names = [name for name in ends[0] if name.startswith("params.")]
    return max(np.abs(ends[1][name] - ends[0][name]).max() for name in names) / 2.0**-30


def rounding(recipe, folder, monkeypatch):
    """The largest difference after 20 steps that another order of sums can make.

    A sum over B T steps and over processes, of terms below one and some 100 roundings each, is off by (B T + 100) EPS.
    AdamW makes of it lr / eps times as much in a parameter, and each of 20 steps carries that as far as runs part that
    begin apart. `folder` / "0.0" holds the run of one process.
    """
    off = (8 * 12 + 100) * EPS * recipe.optimiser.lr / recipe.optimiser.eps
    bound = 20 * off * max(1.0, carried(recipe, folder, monkeypatch))
    assert bound < 1e-8
    return bound


def assert_close(folder, expected, bound):
    """Compares the last checkpoints of two runs."""
    got, wanted = last(folder)[0], last(expected)[0]
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("name", RUNS)
def test_several_train_as_one(tmp_path, monkeypatch, name):
    recipe = recipe_of(RUNS[name])
    bound = rounding(recipe, tmp_path, monkeypatch)
    expected = json.loads((tmp_path / "0.0" / "result.json").read_text(encoding="utf-8"))["test"]["last"]
    for size in (2, 3):
        folder = tmp_path / f"of {size}"
        results = among(size, partial(train_in, recipe, folder))
        assert all(result == results[0] for result in results)
        assert json.loads((folder / "result.json").read_text(encoding="utf-8")) == results[0]
        assert_close(folder, tmp_path / "0.0", bound)
        assert last(folder)[1]["arithmetic"][0].endswith(f" on {size} processes")
        found = results[0]["test"]["last"]
        # the loss of a label is steeper than its logits by 2 at most, and these than parameters by their inputs
        assert found.pop("loss") == pytest.approx(expected["loss"], rel=1000 * bound)
        assert found == {key: value for key, value in expected.items() if key != "loss"}
        assert worst(folder) == pytest.approx(worst(tmp_path / "0.0"), rel=1e-6)


def worst(folder):
    """Returns what layers that iterate report of the worst sequence of the first batch, where parameters are equal."""
    layers = Run(folder).records()[1].get("layers", {})
    return {name: value for name, value in layers.items() if name.endswith((".max_iterations", ".residual"))}


def train_in(recipe, folder, world, **settings):
    return train(recipe, folder, progress=False, among=world, **settings)


def contents(folder):
    """Returns the bytes of a run's files; from log and sessions, the fields of time and machine are removed."""
    files = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    timed = ("elapsed", "seconds", "peak_memory")
    return {**files, "log": [{k: v for k, v in record.items() if k not in timed} for record in records]}


def test_several_train_to_the_same_bits_each_time(tmp_path):
    recipe = recipe_of(RUNS["accumulated"], dtype="float32")
    for name in "ab":
        among(3, partial(train_in, recipe, tmp_path / name))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_ends_all_and_any_number_resume(tmp_path, monkeypatch, rank):
    """In step 10 one of two processes fails, when batch norm's averages have moved. The steps before are saved; as many
    processes go on to the same bits, another number to rounding."""
    recipe = recipe_of({})
    bound = rounding(recipe, tmp_path, monkeypatch)
    among(2, partial(train_in, recipe, tmp_path / "straight"))
    total, totals = World.total, [0, 0]

    def broken(self, arrays):
        totals[self.rank] += 1
        if self.rank == rank and totals[rank] == 10:
            raise OSError(5, "cannot be read", "the data")
        return total(self, arrays)

    def run(world):
        try:
            train_in(recipe, tmp_path / "broken", world)
        except (OSError, Fallen) as error:
            return error

    with monkeypatch.context() as patch:
        patch.setattr(World, "total", broken)
        errors = among(2, run)
    assert isinstance(errors[rank], OSError)
    assert isinstance(errors[1 - rank], Fallen)
    assert f"process {rank} of 2 failed: OSError: [Errno 5] cannot be read: 'the data'" in str(errors[1 - rank])
    if rank == 1:
        assert "the state after step 9 is saved; to go on: rotrnn train --resume" in str(errors[0])
    assert last(tmp_path / "broken")[1]["step"] == (9 if rank == 1 else 7)
    for size in (1, 2, 3):
        folder = tmp_path / f"by {size}"
        shutil.copytree(tmp_path / "broken", folder)
        if size == 2:
            among(2, partial(train_in, recipe, folder, resume=True))
            assert contents(folder) == contents(tmp_path / "straight")
            continue
        with pytest.warns(UserWarning, match=r"was trained with .* on 2 processes, and this is"):
            among(size, partial(train_in, recipe, folder, resume=True))
        assert_close(folder, tmp_path / "0.0", bound)


def test_what_does_not_fit_is_refused_by_all(tmp_path):
    def errors(recipe, resume=False):
        def run(world):
            try:
                one = recipe_of({}, seed=world.rank) if recipe is None else recipe
                train_in(one, tmp_path / "run", world, resume=resume)
            except (ValueError, Fallen) as error:
                return str(error)

        return among(3, run)

    few = "training.batch is 8 in 3 parts, 2 examples at a time, expected at least one for each of 3 processes"
    assert all(few in message for message in errors(recipe_of({}, accumulate=3)))
    assert all("the recipe is " in message for message in errors(None))
    assert all("is not the folder of a run" in message for message in errors(recipe_of({}), resume=True))
    assert not list((tmp_path / "run").glob("[!.]*"))


def test_processes_whose_parameters_part_are_stopped(tmp_path, monkeypatch):
    advance = Stepper.advance

    def drifting(self, state):
        if self.world.rank == 1 and state.step == 3:
            state.params["head"]["bias"][0] += 1e-9
        return advance(self, state)

    def run(world):
        with pytest.raises(ValueError, match=r"checksum of the state is .* in process 1, expected"):
            train_in(recipe_of({}), tmp_path / "run", world)
        return True

    monkeypatch.setattr(Stepper, "advance", drifting)
    assert all(among(2, run))


def test_ctrl_c_of_one_stops_all_after_the_same_step(tmp_path, monkeypatch):
    recipe = recipe_of({})
    among(2, partial(train_in, recipe, tmp_path / "straight"))
    advance = Stepper.advance
    asked = []

    class Asked(loop._Interrupt):
        def __enter__(self):
            asked.append(self)
            return self

    def interrupting(self, state):
        if self.world.rank == 1 and state.step == 4:
            next(one for one in asked if one.world is self.world)._ask(signal.SIGINT, None)
        return advance(self, state)

    def run(world):
        with pytest.raises(Interrupted, match="stopped after step 5 of 20, all is saved"):
            train_in(recipe, tmp_path / "run", world)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_Interrupt", Asked)
        patch.setattr(Stepper, "advance", interrupting)
        assert all(among(2, run))
    among(2, partial(train_in, recipe, tmp_path / "run", resume=True))
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")


# ---- how a world is found ----


@pytest.fixture
def launched(monkeypatch):
    """Sets the environment of a process started by a launcher, and restores it."""
    for names in parallel.LAUNCHERS.items():
        for name in names:
            monkeypatch.delenv(name, raising=False)

    def launch(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        return parallel.world.__wrapped__()

    return launch


def test_a_process_by_itself_needs_no_mpi(launched, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # makes importing it fail
    assert launched() is parallel.ALONE
    assert launched(PMI_RANK=0, PMI_SIZE=1) is parallel.ALONE


@pytest.mark.parametrize(("rank", "size"), parallel.LAUNCHERS.items())
def test_several_processes_without_mpi4py_say_what_to_install(launched, monkeypatch, rank, size):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"one of 4 processes started by MPI.*pip install 'rotrnn\[mpi\]'"):
        launched(**{rank: 3, size: 4})


def test_a_launcher_of_another_mpi_is_refused(launched, monkeypatch):
    alone = SimpleNamespace(Get_size=lambda: 1)
    fake = SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=alone, get_vendor=lambda: ("MPICH", (5, 0, 2))))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(), MPI=fake.MPI))
    with pytest.raises(ValueError, match=r"started 2 processes, but mpi4py sees 1: it uses MPICH"):
        launched(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)


# ---- processes ----

MPIEXEC = Path(sys.executable).with_name("mpiexec")
TOY = Path(toy.__file__)


def mpiexec(*arguments, processes=2, hold=""):
    """`hold`: the step at which they wait for a signal (toy.hold)."""
    command = [MPIEXEC, "-n", processes, sys.executable, TOY, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOY_HOLD": str(hold)}
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)


def ended(process):
    """Returns (exit code, standard output, standard error) of a process that must end."""
    try:
        said, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, said, error


def ranks(process):
    """Returns the ids of the processes that an mpiexec has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = dict(one.partition(b"=")[::2] for one in (folder / "environ").read_bytes().split(b"\0"))
            parents = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            launcher = Path("/proc", parents[1], "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            if b"PMI_RANK" in environment and int(launcher) == process.pid:
                found[int(environment[b"PMI_RANK"])] = int(folder.name)
    return [found[rank] for rank in sorted(found)]


def wait_for_step(folder, step):
    log, patience = folder / "log.jsonl", time.monotonic() + PATIENCE
    while not log.exists() or f'"step": {step},' not in log.read_text(encoding="utf-8"):
        assert time.monotonic() < patience
        time.sleep(0.01)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Returns a recipe and the folder of its uninterrupted run by two threads."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "slow.toml").write_text(toy.RECIPE, encoding="utf-8")
    recipe = load_recipe(folder / "slow.toml", ["task.delay=0.02", "training.checkpoint_every=2"])
    (folder / "slow.toml").write_text(recipe.text(), encoding="utf-8")
    among(2, partial(train_in, recipe, folder / "run"))
    return folder


def test_processes_of_mpi_end_on_the_bits_of_threads_and_all_can_be_killed(straight, tmp_path):
    """kill -9 of the second process: mpiexec ends the first, the last checkpoint remains, and two processes resume from
    it."""
    folder = tmp_path / "run"
    process = mpiexec("train", straight / "slow.toml", "--out", folder, hold=20)
    wait_for_step(folder, 9)
    os.kill(ranks(process)[1], signal.SIGKILL)
    code, said, _ = ended(process)
    assert code == signal.SIGKILL
    assert "Killed (signal 9)" in said
    assert 8 <= last(folder)[1]["step"] < 40
    code, _, error = ended(mpiexec("train", "--resume", folder))
    assert (code, error) == (0, "")
    assert contents(folder) == contents(straight / "run")
    assert [one["processes"] for one in json.loads((folder / "sessions.json").read_text(encoding="utf-8"))] == [2, 2]


def test_a_process_of_mpi_that_fails_ends_all_with_one_message(straight, tmp_path):
    folder = tmp_path / "run"
    settings = ["--set", "task.fail_at=9", "--set", "task.delay=0"]
    code, _, error = ended(mpiexec("train", straight / "slow.toml", "--out", folder, *settings))
    assert code != 0
    assert error.count("rotrnn: ") == 1
    told = "rotrnn: error: process 1 of 2 failed: RuntimeError: broken on demand; the state after step 9 is saved"
    assert f"{told}; to go on: rotrnn train --resume {folder}\n" in error
    assert last(folder)[1]["step"] == 9


def test_ctrl_c_to_mpiexec_stops_all(straight, tmp_path):
    folder = tmp_path / "run"
    process = mpiexec("train", straight / "slow.toml", "--out", folder, hold=20)
    wait_for_step(folder, 5)
    process.send_signal(signal.SIGINT)
    _, _, error = ended(process)
    step = last(folder)[1]["step"]
    assert f"rotrnn: stopped after step {step} of 40, all is saved" in error
    assert 5 <= step < 40
    assert "Traceback" not in error


def test_process_0_saves_when_asked_to_end_though_another_is_silent(straight, tmp_path):
    """What Open MPI does when a process dies: it sends SIGTERM to the others, shortly before SIGKILL."""
    folder = tmp_path / "run"
    settings = ["--set", "training.checkpoint_every=0"]
    process = mpiexec("train", straight / "slow.toml", "--out", folder, *settings, hold="20:1")
    wait_for_step(folder, 20)
    first, second = ranks(process)
    os.kill(second, signal.SIGSTOP)
    time.sleep(0.2)  # by now the first waits for the second, which holds; if it does not yet, the end is the same
    os.kill(first, signal.SIGTERM)
    code, _, error = ended(process)
    assert code != 0 or not _cpu.KEEPS_MEMORY  # mpiexec with a sanitizer in it loses the code
    step = last(folder)[1]["step"]
    assert f"another of the 2 processes did not answer; the state after step {step} is saved" in error
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["step"] == step


@pytest.mark.parametrize("command", [["estimate", "digits-lru"], ["eval", "runs/digits"]])
def test_only_train_and_sweep_are_programs_of_several(monkeypatch, capsys, command):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main(command) == 2
    assert "MPI started 2 processes, expected one: only train and sweep run on several" in capsys.readouterr().err
