"""Training on several GPUs: processes of MPI with the stand-in for a GPU each, and one for NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_training_on_harness import losses, parameters, recipe_of

import fake_cupy
from rotrnn import cuda
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.training.gpus import GPUs
from rotrnn.training.loop import train
from rotrnn.training.parallel import ALONE, World
from rotrnn.training.run import Run
from strict import to_host

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def started(folder: Path, *settings: str, gpus: int = 2, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """`rotrnn train` of the recipe in this folder, by MPI."""
    code = [sys.executable, str(ROOT / "tests" / "cuda" / "on_stand_in.py"), "-m", "rotrnn", "train"]
    more = [one for setting in settings for one in ("--set", setting)]
    command = [str(MPIEXEC), "-n", str(processes), *code, str(folder / "recipe.toml"), "--out", str(folder / "gpu")]
    path = os.pathsep.join(str(ROOT / one) for one in ("python", "tests", "tests/cuda", "."))
    env = os.environ | {"PYTHONPATH": path, "STAND_IN_GPUS": str(gpus), "OMP_NUM_THREADS": "1"}
    whole = [*command, "--device", "cuda", *more]
    return subprocess.run(whole, capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.mark.parametrize("settings", [[], ["training.accumulate=2"]], ids=["graphs", "operation by operation"])
def test_two_gpus_train_as_one_process_does(settings: list[str], tmp_path: Path) -> None:
    """With batch norm, whose statistics are those of the whole batch, and dropout, which counts places in it. The
    batch has an odd number of sequences."""
    recipe = recipe_of("listops-lru", "training.batch=5", *settings)
    train(recipe, tmp_path / "cpu", progress=False)
    (tmp_path / "recipe.toml").write_text(recipe.text())
    done = started(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "operation by operation" not in done.stderr
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=1e-9)
    there = parameters(tmp_path / "cpu")
    for key, value in parameters(tmp_path / "gpu").items():
        np.testing.assert_allclose(value, there[key], rtol=0, atol=1e-6, err_msg=key)  # as in test_training_on_harness
    facts = read_checkpoint(Run(tmp_path / "gpu").checkpoint("last"))[1]
    assert facts["arithmetic"] == ["harness, CUDA 13.0 and CuPy 14.2.0 on 2 processes"]


def test_two_processes_do_not_share_a_gpu(tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru")
    (tmp_path / "recipe.toml").write_text(recipe.text())
    done = started(tmp_path, gpus=1)
    assert done.returncode != 0
    assert "processes 0 and 1 of 2 would share GPU 0000:00:00.0 of " in done.stderr
    assert "expected a GPU for each process" in done.stderr


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
