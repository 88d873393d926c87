"""`training.memory`: what it takes, what becomes of it, and that it changes no result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rotrnn._support import platform
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.training import memory
from rotrnn.training.loop import train
from rotrnn.training.memory import SHARE, budget
from rotrnn.training.recipe import Recipe, Training, load_recipe
from rotrnn.training.run import Run

SMALL = ("model.d_model=64", "model.n_layers=2", "layer.d_state=16", "training.batch=4", "training.eval_every=2")


def recipe_of(setting: str, steps: int = 2) -> Recipe:
    return load_recipe("digits-lru", [*SMALL, f"training.steps={steps}", f"training.memory={setting}"])


def test_a_run_ends_on_the_same_bytes_whatever_it_keeps(tmp_path: Path) -> None:
    ends = []
    for setting, resolved in (("least", 0), ("1000000", 1000000), ("auto", None)):
        run = Run(tmp_path / setting)
        train(recipe_of(setting), run.folder, progress=False)
        found = run.read_json(run.sessions)[0]["memory"]
        assert found == resolved if resolved is not None else found is None or found > 10**6
        ends.append(run.checkpoint("last").read_bytes())
    assert ends[0] == ends[1] == ends[2]


def test_a_resumed_run_keeps_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there is less memory by then; and a setting that is no number may change between."""
    run = Run(tmp_path / "run")

    def start(setting: str, available: int, resume: bool) -> int:
        monkeypatch.setattr(memory, "available_memory", lambda: available)
        train(recipe_of(setting), run.folder, progress=False, resume=resume)
        found: int = run.read_json(run.sessions)[-1]["memory"]
        return found

    assert start("auto", 4 * 10**9, False) == 4 * 10**9 // SHARE
    run.result.unlink()
    assert start("auto", 2 * 10**9, True) == 4 * 10**9 // SHARE
    assert start("auto", 10**8, True) == 10**8 // SHARE
    assert start("least", 10**8, True) == 0
    assert run.load_recipe().training.memory == "least"  # which a plain --resume and the worker of a sweep read
    assert start("auto", 10**9, True) == 10**9 // SHARE
    assert start("5000", 10**9, True) == 5000
    assert start("auto", 10**9, True) == 10**9 // SHARE
    for damaged in ("much", -5, True, [1]):
        run.sessions.write_text(json.dumps([{"memory": damaged, "memory_setting": "auto"}]), encoding="utf-8")
        assert start("auto", 10**9, True) == 10**9 // SHARE
    arrays, facts = read_checkpoint(run.checkpoint("last"))
    assert facts["step"] == 2
    assert all(np.isfinite(one).all() for one in arrays.values())


def test_more_than_there_is_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 999)
    with pytest.raises(ValueError, match=r"training.memory is 1000, expected at most 999, the bytes of memory"):
        train(recipe_of("1000"), tmp_path / "run", progress=False)
    monkeypatch.setattr(memory, "available_memory", lambda: None)  # nobody knows
    assert budget(1000) == 1000
    assert budget("auto") is None


@pytest.mark.parametrize("setting", ["most", "-1", "1.5", "true"])
def test_other_settings_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"memory is .*, expected "):
        recipe_of(setting)
    with pytest.raises(ValueError, match=r"Training: memory=True, expected a text or an integer"):
        Training(1, 1, memory=True)


def test_it_is_no_part_of_what_a_run_is() -> None:
    assert recipe_of("least").digest() == recipe_of("auto").digest()
    assert recipe_of("7").tables()["training"]["memory"] == 7


# ---- what is available ----


def test_limits_of_control_groups_hold_at_every_level(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)

    def limit(group: Path, most: str, used: int, idle: int) -> None:
        (group / "memory.max").write_text(f"{most}\n", encoding="utf-8")
        (group / "memory.current").write_text(f"{used}\n", encoding="utf-8")
        (group / "memory.stat").write_text(f"anon {used - idle}\ninactive_file {idle}\n", encoding="utf-8")

    limit(inner, "max", 70, 10)
    limit(tmp_path / "outer", "100", 70, 10)
    assert platform._left_in_groups(tmp_path, "0::/outer/inner\n") == [40]
    limit(inner, "90", 70, 10)
    assert platform._left_in_groups(tmp_path, "0::/outer/inner\n") == [30, 40]
    old = tmp_path / "memory" / "job"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("50", encoding="utf-8")
    (old / "memory.usage_in_bytes").write_text("20", encoding="utf-8")
    (old / "memory.stat").write_text("total_inactive_file 5\n", encoding="utf-8")
    assert platform._left_in_groups(tmp_path, "4:cpu,memory:/job\n3:pids:/job\n") == [35]


def test_available_memory_is_less_than_there_is() -> None:
    found = platform.available_memory()
    if sys.platform == "linux":
        total = next(
            line
            for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("MemTotal")
        )
        assert found is not None
        assert 0 < found < 1024 * int(total.split()[1])
    else:
        assert found is None


PEAK = """
import sys
from pathlib import Path
import numpy as np
import rotrnn
from rotrnn.nn.blocks.block import ResidualBlock, ResidualStack
from rotrnn.nn import BatchNorm, Gate
from rotrnn.nn.layers.lru import LRU

B, T, D = 8, 2000, 64
stack = ResidualStack(tuple(ResidualBlock(BatchNorm(D), LRU(D, 32), Gate(D)) for _ in range(4)))
params = stack.init(np.random.default_rng(0))

def peak():  # getrusage would count the parent's
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return 1024 * int(status["VmHWM"].split()[0])

def step(x, memory):
    y, saved = stack.forward(params, x, rotrnn.Context(train=True, memory=memory))
    stack.backward(params, saved, y)

x = np.random.default_rng(1).standard_normal((B, T, D)).astype(np.float32)
step(x[:1, :100], 0)
step(x, 0)
before = peak()
step(x, int(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.whole  # sanitizers hold freed memory back
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
@pytest.mark.parametrize("most", [0, 12 << 20, 1 << 40])
def test_a_step_takes_no_more_than_it_may(most: int) -> None:
    """Against the least, the peak grows by no more than the bytes allowed, a sixteenth more that the pool may hold
    (csrc/runtime/pool.c), and 2 MiB for what an allocator rounds up;
    with all the bytes by those of the sixteen (B, T, D) that four blocks can keep, and by more than half of these."""
    found = subprocess.run([sys.executable, "-c", PEAK, str(most)], check=True, capture_output=True, text=True)
    grown, whole = int(found.stdout), 4 * 4 * 8 * 2000 * 64 * 4
    assert grown <= min(most, whole) * 17 / 16 + (2 << 20)
    assert grown > whole / 2 or most < whole
