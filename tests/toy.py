"""A task and a model small enough to train in milliseconds, with faults on demand; `python toy.py` runs `rotrnn` with
them."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from patience import PATIENCE
from rotrnn.models.model import Loss
from rotrnn.nn.layer import Array, Context, Params
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.tasks import TASKS, Task
from rotrnn.tasks.task import FeatureSplit
from rotrnn.training import recipe
from rotrnn.training.parallel import started
from rotrnn.training.run import Run

T, F, CLASSES = 5, 4, 3


@dataclass(frozen=True)
class Toy:
    """Noisy class means. The model sleeps `delay` seconds per training step and fails on demand; `fail_at` is for the
    second of several processes. It makes NaN and infinities from a step on, for so many steps."""

    size: int = 70
    delay: float = 0.0
    nan_at: int = -1
    blow_up_at: int = -1
    spoilt: int = 2**31
    crash_at: int = -1
    fail_at: int = -1

    def spoils(self, begin: int, step: int) -> bool:
        return 0 <= begin <= step < begin + self.spoilt

    def load(self) -> Task:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((CLASSES, F))

        def split(n: int) -> FeatureSplit:
            labels = rng.integers(0, CLASSES, n)
            return FeatureSplit(centres[labels][:, None] + rng.standard_normal((n, T, F)), labels)

        return ToyData("toy", split(self.size), split(30), split(30), CLASSES, None, F, self)


@dataclass(frozen=True)
class ToyData(Task):
    settings: Toy


@dataclass(frozen=True)
class ToyModel:
    """softmax(W (scale * mean of x) + bias); "scale" acts as the recurrent parameter, "running_mean" as a buffer."""

    settings: Toy

    def init(self, rng: np.random.Generator) -> Params:
        draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
        return {
            "blocks": {"0": {"layer": {"scale": draw(F)}, "norm": {"running_mean": np.zeros(F, np.float32)}}},
            "head": {"weight": draw(CLASSES, F), "bias": draw(CLASSES)},
        }

    def forward(self, params: Params, inputs: Array, ctx: Context) -> tuple[Array, Any]:
        mean = inputs.mean(1)
        if ctx.train:
            if self.settings.delay >= 1:
                print("asleep", file=sys.stderr, flush=True)  # what a test that interrupts a step waits for
            time.sleep(self.settings.delay)
            if ctx.step == self.settings.crash_at:
                os.kill(os.getpid(), signal.SIGABRT)
            buffer = params["blocks"]["0"]["norm"]["running_mean"]
            if started()[0] == 1 and ctx.step == self.settings.fail_at:
                raise RuntimeError("broken on demand")
            every = mean if ctx.gather is None else np.concatenate(ctx.gather(mean))
            buffer += np.asarray(0.1, buffer.dtype) * (every.mean(0) - buffer)
            mean = mean * mean.dtype.type(np.nan if self.settings.spoils(self.settings.nan_at, ctx.step) else 1)
        head = params["head"]
        logits = (params["blocks"]["0"]["layer"]["scale"] * mean) @ head["weight"].T + head["bias"]
        return logits, (mean, ctx.step)

    def backward(self, params: Params, saved: Any, dlogits: Array, gather: Any = None) -> Params:
        mean, step = saved
        scale = params["blocks"]["0"]["layer"]["scale"]
        dscale = (mean * (dlogits @ params["head"]["weight"])).sum(0)
        if self.settings.spoils(self.settings.blow_up_at, step):
            dscale = dscale / dscale.dtype.type(0)
        dhead = {"weight": dlogits.T @ (scale * mean), "bias": dlogits.sum(0)}
        return {"blocks": {"0": {"layer": {"scale": dscale}, "norm": {}}}, "head": dhead}

    def loss(self, logits: Array, labels: Array, lengths: Array | None, weights: Array | None) -> Loss:
        mean, dlogits = cross_entropy(logits, labels, sample_weights=weights)
        right = (logits.argmax(1) == labels)[:, None]
        return Loss(mean, dlogits, np.ones_like(right), right)

    def answers(self, logits: Array) -> Array:
        answers: Array = logits.argmax(1)
        return answers

    def eigenvalues(self, params: Params) -> list[Array]:
        return []

    def count(self, labels: Array, lengths: Array | None) -> int:
        return len(labels)

    def report(self, saved: Any) -> dict[str, float]:
        return {}

    def is_recurrent(self, name: str) -> bool:
        return name.endswith(".scale")

    def state_norms(self, params: Params, inputs: Array, ctx: Context) -> Array:
        return np.linalg.norm(inputs, axis=2).mean(0)[None]


build = recipe.Recipe.build
recipe.Recipe.build = lambda self, task: ToyModel(task.settings) if isinstance(task, ToyData) else build(self, task)
TASKS["toy"] = Toy

RECIPE = """
[task]
name = "toy"
[model]
layer = "lru"
d_model = 4
n_layers = 1
[layer]
d_state = 4
[optimiser]
lr = 0.05
recurrent_factor = 0.5
[training]
batch = 16
steps = 40
eval_every = 7
"""


def hold(step: int, after: str = os.environ.get("TOY_HOLD", "")) -> None:
    """Waits for Ctrl-C or SIGTERM, as the training loop catches them, or for a kill. TOY_HOLD says after which step, as
    "20", or as "20:1" for the second of several processes alone. A test that waits for a step and then sends a signal
    meets the run amid its steps, however long the test itself has to wait for a processor."""
    from rotrnn.training.loop import _Interrupt

    last, _, rank = after.partition(":")
    if last and step >= int(last) and started()[0] == int(rank or started()[0]):
        waiting = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        while isinstance(waiting, _Interrupt) and not waiting.asked:
            time.sleep(0.005)


def contents(folder: Path) -> dict[str, Any]:
    """Returns every file of a run, with the times removed from the log."""
    run = Run(folder)
    files: dict[str, Any] = {path.name: path.read_bytes() for path in run.files() if path != run.log}
    times = {"seconds": None, "elapsed": None, "peak_memory": None}
    return files | {"log": [{**record, **times} for record in run.records()]}


def wait_for_step(folder: Path, step: int) -> None:
    """Waits until the log has so many steps, to interrupt a process while it works: TOY_HOLD keeps it there."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (folder / "log.jsonl").exists() and (folder / "log.jsonl").read_bytes().count(b"grad_norm") >= step:
            return
        time.sleep(0.002)
    raise TimeoutError(f"no step {step} in {folder}")


def train_toy() -> int:
    """Runs `rotrnn` with this program's arguments. Returns the exit code."""
    from rotrnn import cli
    from rotrnn.training import sweep
    from rotrnn.training.step import Stepper

    def held(self: Stepper, state: Any) -> Any:
        hold(state.step)
        return advance(self, state)

    advance = Stepper.advance
    Stepper.advance = held  # type: ignore[method-assign]
    cli._can_draw = lambda: False  # a second a run
    sweep.COMMAND = (sys.executable, __file__)
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(train_toy())
