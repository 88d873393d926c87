"""Training on several GPUs: processes of MPI with the stand-in for a GPU each, and one for NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training_on_harness import losses, parameters, recipe_of

import fake_cupy
from patience import PATIENCE
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.devices import cuda
from rotrnn.devices.recording import NotRecordable, recording
from rotrnn.tasks.arrays import save_arrays
from rotrnn.training import gpus
from rotrnn.training.gpus import GPUs
from rotrnn.training.loop import train
from rotrnn.training.parallel import ALONE, World
from rotrnn.training.recipe import Recipe, load_recipe, read_recipe
from rotrnn.training.run import Run
from strict import to_host

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
SHORT = ["model.n_layers=1", "training.steps=4"]
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))


PROGRAM = """
import runpy, sys
import fake_cupy
from rotrnn.devices import cuda
{plant}
sys.argv[0] = "rotrnn"
with fake_cupy.gpu(gpus={gpus}):
    runpy.run_module("rotrnn", run_name="__main__", alter_sys=True)
"""


def started(folder: Path, recipe: Recipe, *, gpus: int = 2, plant: str = "") -> subprocess.CompletedProcess[str]:
    """`rotrnn train` of a recipe on two processes, started by MPI; `plant` is Python that breaks something before."""
    (folder / "recipe.toml").write_text(recipe.text(), encoding="utf-8")
    train = ["train", str(folder / "recipe.toml"), "--out", str(folder / "gpu"), "--device", "cuda"]
    command = [MPIEXEC, "-n", "2", sys.executable, "-c", PROGRAM.format(plant=plant, gpus=gpus), *train]
    path = os.pathsep.join(str(ROOT / one) for one in ("python", "tests", "."))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("settings", [[], ["training.accumulate=2"]], ids=["graphs", "operation by operation"])
def test_two_gpus_train_as_one_process_does(settings: list[str], tmp_path: Path) -> None:
    """With batch norm, whose statistics are those of the whole batch, and dropout, which counts places in it. The
    batch has an odd number of sequences."""
    recipe = recipe_of("listops-lru", *SHORT, "training.batch=5", *settings)
    train(recipe, tmp_path / "cpu", progress=False)
    done = started(tmp_path, recipe)
    assert done.returncode == 0, done.stderr
    assert "operation by operation" not in done.stderr
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)
    there = parameters(tmp_path / "cpu")
    for key, value in parameters(tmp_path / "gpu").items():
        np.testing.assert_allclose(value, there[key], rtol=0, atol=1e-6, err_msg=key)  # as in test_training_on_harness
    facts = read_checkpoint(Run(tmp_path / "gpu").checkpoint("last"))[1]
    assert facts["arithmetic"] == ["harness, CUDA 13.0 and CuPy 14.2.0 on 2 processes"]


def test_a_share_whose_sequences_have_one_length_is_padded_as_the_others(tmp_path: Path) -> None:
    """Of three sequences a process has two, which are ragged or not, and the other has one. Both must record a graph in
    the same step: NCCL's part in one would wait for the other for ever."""
    rng, path = np.random.default_rng(0), tmp_path / "data.npz"
    x = [rng.standard_normal((n, 2)) for n in rng.integers(2, 5, 24)]
    save_arrays(path, x, np.arange(24) % 3)
    tables = {
        "task": {"name": "arrays", "path": str(path), "val_fraction": 0.25, "test_fraction": 0.0},
        "model": {"layer": "lru", "d_model": 4, "n_layers": 1},
        "layer": {"d_state": 3},
        "training": {"batch": 3, "steps": 6, "eval_every": 6, "dtype": "float64"},
    }
    recipe = read_recipe(tables)
    train(recipe, tmp_path / "cpu", progress=False)
    done = started(tmp_path, recipe)
    assert done.returncode == 0, done.stderr
    assert "operation by operation" not in done.stderr
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)


def test_states_that_are_carried_on_go_between_gpus_as_they_are(tmp_path: Path) -> None:
    """They are complex, and the shares of three sequences differ in size: NCCL gathers neither."""
    small = ("task.group=S3", "task.length=5", "task.samples=200", "task.val_fraction=0.02", "task.test_length=6")
    own = ("model.layer=lru", "layer.d_state=4", "model.d_model=8", "model.n_layers=1", "optimiser.no_decay=[]")
    often = ("training.batch=3", "training.steps=4", "training.eval_every=2", "training.dtype=float64")
    with pytest.warns(match="another model.layer drops settings"):
        recipe = load_recipe("word-problem", [*small, *own, *often, "task.test=10", "task.carry=0.8"])
    train(recipe, tmp_path / "cpu", progress=False)
    done = started(tmp_path, recipe)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-7)
    there, found = parameters(tmp_path / "cpu"), parameters(tmp_path / "gpu")
    carried = [key for key in there if key.startswith("carried")]
    assert carried
    for key in carried:
        np.testing.assert_allclose(found[key], there[key], rtol=0, atol=1e-6, err_msg=key)


def test_two_processes_do_not_share_a_gpu(tmp_path: Path) -> None:
    done = started(tmp_path, recipe_of("listops-lru"), gpus=1)
    assert done.returncode != 0
    assert "processes 0 and 1 of 2 would share GPU 0000:00:00.0 of " in done.stderr
    assert "expected a GPU for each process" in done.stderr


FAILS = """
from rotrnn.training.parallel import world
launch, launches = fake_cupy.Graph.launch, []
def failing(self, stream):
    launches.append(stream)
    if world().rank == 1 and len(launches) == 4:
        raise RuntimeError("broken on demand")
    launch(self, stream)
fake_cupy.Graph.launch = failing
"""


@pytest.mark.parametrize("every", [2, 100])
def test_a_process_that_fails_ends_the_others_which_do_not_wait_for_it(every: int, tmp_path: Path) -> None:
    """It fails after all have told of the step, before it launches its part: that of the other would wait for ever.
    The checkpoint that is due after step 4 is not written, and the one before stays. The traceback keeps the graph that
    was to be launched, for which NCCL waits."""
    done = started(tmp_path, recipe_of("listops-lru", *SHORT, f"training.checkpoint_every={every}"), plant=FAILS)
    assert done.returncode != 0
    told = "rotrnn: error: process 1 of 2 failed: DeviceError: the GPU failed after step 3: broken on demand"
    assert told in done.stderr
    assert f"to go on: rotrnn train --resume {tmp_path / 'gpu'}\n" in done.stderr
    last = Run(tmp_path / "gpu").checkpoint("last")
    assert read_checkpoint(last)[1]["step"] == 3  # an evaluation's


KEEPS = """
from rotrnn.training.graph import Recorder
Recorder.close = lambda self: None
"""


def test_the_stand_in_finds_graphs_that_are_left_at_the_end(tmp_path: Path) -> None:
    """For which NCCL waits before it ends: `test_two_gpus_train_as_one_process_does` shows that there are none."""
    done = started(tmp_path, recipe_of("listops-lru", *SHORT), plant=KEEPS)
    assert done.returncode != 0
    assert "NCCL would wait for ever" in done.stderr


class Broken(Exception):
    """On demand."""


def recorded_sum(world: World) -> cuda.Recorded:
    """A graph in which NCCL has a part."""
    asarray = cuda.device().asarray
    x = asarray(np.zeros(3))

    def work() -> Any:
        world.add(x)
        return x

    return cuda.Recorded(work, asarray(np.zeros(1, np.int64)))


def test_after_a_failure_a_graph_that_is_left_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL ends when the graph does."""
    monkeypatch.setattr(gpus, "ABORT", 0.05)
    before = threading.active_count()
    with fake_cupy.gpu():
        with suppress(Broken), GPUs(ALONE) as world:
            graph = recorded_sum(world)
            raise Broken
        assert threading.active_count() == before + 1
        graph.close()
        for thread in set(threading.enumerate()) - {threading.main_thread()}:
            thread.join(10)
        assert threading.active_count() == before


def test_work_that_could_not_be_recorded_leaves_no_graph() -> None:
    """Also where a part of it was: what comes before a loop."""
    with fake_cupy.gpu(), GPUs(ALONE) as world:  # at whose end the stand-in looks
        x, counter = (cuda.device().asarray(np.zeros(1, kind)) for kind in (np.float64, np.int64))

        def work() -> Any:
            one = recording()
            assert one is not None

            def body() -> Any:
                if one.cut is not None:
                    raise Broken
                return x

            world.add(x)
            one.loop(body, lambda again, step: None)
            return x

        with pytest.raises(NotRecordable) as caught:
            cuda.Recorded(work, counter)
        assert isinstance(caught.value.__cause__, Broken)


class Lacking(World):
    """A world of two, whose second process is on another machine, where CuPy has no NCCL."""

    def tell(self, facts: object) -> list[object]:
        return [facts, False if isinstance(facts, bool) else ["another", "machine"]]


def test_without_nccl_the_error_says_what_to_install() -> None:
    with fake_cupy.gpu():
        cuda.device()
        with pytest.raises(cuda.DeviceError, match=r"CuPy does not find in process 1: pip install nvidia-nccl-cu13"):
            GPUs(Lacking())


def test_one_process_has_what_it_gives() -> None:
    """What a machine with one GPU can show of NCCL."""
    with fake_cupy.gpu():
        device = cuda.device()
        with GPUs(ALONE) as world:
            for dtype in (np.float32, np.float64):
                x = device.asarray(np.arange(6, dtype=dtype).reshape(2, 3))
                np.testing.assert_array_equal(to_host(world.gather(x)[0]), to_host(x))
                before = to_host(x).copy()
                world.add(x)
                np.testing.assert_array_equal(to_host(x), before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int64])
def test_gpus_gather_arrays_of_every_layout_and_dtype(dtype: Any) -> None:
    """As the CPU's processes do: for instance for a layer of one's own."""
    x = np.arange(12).reshape(3, 4).astype(dtype)
    with fake_cupy.gpu(), GPUs(ALONE) as world:
        for array in (x, x.T, x[:, ::2]):
            (found,) = world.gather(fake_cupy.ndarray(array))
            np.testing.assert_array_equal(to_host(found), array)
        if dtype not in (np.float32, np.float64):
            with pytest.raises(TypeError, match=f"add: x has dtype {np.dtype(dtype)}, expected float32 or float64"):
                world.add(fake_cupy.ndarray(x))
