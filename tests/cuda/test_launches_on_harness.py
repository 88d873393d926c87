"""Steps that are launched before the one before them has ended: pinned buffers, metrics read late, and what fails then.

The stand-in for a GPU does what a stream is given as late as CUDA may (fake_cupy.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_training_on_harness import losses, parameters
from test_training_on_harness import recipe_of as whole_recipe_of

import fake_cupy
from fake_cupy import Event, Failures, Stream
from rotrnn._support.checkpoint import read_checkpoint
from rotrnn.devices import cuda
from rotrnn.devices.recording import recording
from rotrnn.nn.layer import flatten, is_parameter
from rotrnn.training.estimate import trial
from rotrnn.training.log import Log
from rotrnn.training.loop import Trainer, train
from rotrnn.training.optimiser import NonFinite
from rotrnn.training.recipe import Recipe
from rotrnn.training.run import Run
from rotrnn.training.state import State
from rotrnn.training.step import Stepper
from rotrnn.training.transfer import Feed, Results
from strict import counted, to_host


def recipe_of(name: str, *more: str) -> Recipe:
    return whole_recipe_of(name, "model.n_layers=1", *more)


# ---- buffers ----


Plant = Callable[[pytest.MonkeyPatch, Feed], None]
"""Breaks something before the first step."""


def fed(steps: int, plant: Plant | None = None, *, reads: bool = True) -> tuple[list[Any], Any]:
    """What steps of a graph find in inputs that are sent to it, each result read a step late; and the sum of all inputs
    that the graph makes on the GPU. If the host `reads` no results, it is as far ahead as the buffers let it be."""
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        import cupy

        stream, found = cupy.cuda.Stream(non_blocking=True), []
        values = [{"x": np.arange(5.0) + 10 * k, "n": np.array([k])} for k in range(steps)]
        feed, total = Feed(values[0], stream), cuda.device().asarray(np.zeros(5))

        def work() -> Any:
            total[...] = total + feed.arrays["x"]
            return feed.arrays["x"] * feed.arrays["n"]

        graph = cuda.Recorded(work, feed.arrays["n"], stream)
        results = Results(graph.result, stream)
        total[...] = 0.0
        if plant is not None:
            plant(patch, feed)
        for k, value in enumerate(values):
            feed.send(value)
            graph.launch(k)
            results.take()
            if k and reads:
                found.append(results.read(k - 1))
        if reads:
            found.append(results.read(steps - 1))
        stream.synchronize()
        return found, to_host(total)


def right(steps: int) -> tuple[list[Any], Any]:
    xs = [np.arange(5.0) + 10 * k for k in range(steps)]
    return [x * k for k, x in enumerate(xs)], np.sum(xs, 0)


def skip(kind: type, method: str, of: Callable[[Feed], list[Any]]) -> Plant:
    """Plants a fault: this method does nothing for some objects."""

    def plant(patch: pytest.MonkeyPatch, feed: Feed) -> None:
        objects, done = of(feed), getattr(kind, method)
        patch.setattr(kind, method, lambda self, *more: None if self in objects else done(self, *more))

    return plant


FAULTS = {
    "a step does not wait for its inputs": skip(Stream, "wait_event", lambda feed: [feed.stream]),
    "inputs are copied over those that a step still has to read": skip(
        Stream, "wait_event", lambda feed: [feed.copies]
    ),
    "pinned memory is written while it is copied": skip(
        Event, "synchronize", lambda feed: [one.copied for one in feed._buffers]
    ),
}


@pytest.mark.parametrize("reads", [True, False])
def test_every_step_finds_its_inputs(reads: bool) -> None:
    (found, total), (expected, whole) = fed(7, reads=reads), right(7)
    np.testing.assert_array_equal(total, whole)
    if reads:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """By another sum, NaN for the most part, or by the stand-in."""
    try:
        _, total = fed(4, FAULTS[fault], reads=False)
    except AssertionError as error:
        assert "pinned memory was written while a copy still read it" in str(error)  # noqa: PT017
    else:
        assert not np.array_equal(total, right(4)[1])


def test_results_that_are_not_waited_for_are_found() -> None:
    """Read too early, they are of another step, or NaN."""

    def plant(patch: pytest.MonkeyPatch, feed: Feed) -> None:
        patch.setattr(Event, "synchronize", lambda self: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "send", waiting(Feed.send))
        found, _ = fed(5, plant)
    assert not np.array_equal(found, right(5)[0])


def waiting(send: Any) -> Any:
    """Sends when all copies have ended, so that the planted fault is that of results alone."""

    def sent(self: Feed, values: Any) -> None:
        self.copies.finish(self.copies.given)
        send(self, values)

    return sent


# ---- metrics ----


def test_a_step_is_read_when_the_next_is_launched() -> None:
    """The only waits of a step: for the results of the one before, and for a pinned buffer that was long copied."""
    recipe = recipe_of("listops-lru", "training.steps=20")
    with fake_cupy.gpu(), trial(recipe, 8, "cuda") as (trainer, state):
        assert trainer.stepper.advance(state) == []
        for step in range(1, 12):  # until all shapes of batches have been recorded
            assert [one["step"] for one in trainer.stepper.advance(state)] == [step]
        with counted() as waits:
            for step in range(12, 18):
                (one,) = trainer.stepper.advance(state)
                assert list(one) == ["loss", "accuracy", "step", "lr", "grad_norm", "seconds"]
                assert one["step"] == step
        assert dict(waits) == {"training/transfer.py: Feed.send": 6, "training/transfer.py: Results.read": 6}
        assert [one["step"] for one in trainer.stepper.settle(state)] == [18]
        assert trainer.stepper.settle(state) == []


def test_the_log_is_that_of_the_cpu(tmp_path: Path) -> None:
    """Also where shapes alternate, evaluations and checkpoints come in between, and dropout counts the steps."""
    recipe = recipe_of("listops-lru", "training.steps=9", "training.eval_every=4", "training.checkpoint_every=3")
    train(recipe, tmp_path / "cpu", progress=False)
    with fake_cupy.gpu():
        train(recipe, tmp_path / "gpu", progress=False, device="cuda")
    for here, there in zip(Run(tmp_path / "cpu").records(), Run(tmp_path / "gpu").records(), strict=True):
        assert list(here) == list(there)
        for key, value in here.items():
            if key not in ("seconds", "elapsed", "peak_memory"):
                assert there[key] == pytest.approx(value, rel=1e-6), (here["step"], key)


def learned(state: State) -> dict[str, Any]:
    """What updates change: parameters and moments. (A forward pass moves the buffers, on the CPU too.)"""
    params = {name: array for name, array in flatten(state.params) if is_parameter(name)}
    return {name: to_host(array) for name, array in (params | state.moments).items()}


def steps_of(trainer: Trainer, state: State, after: Callable[[], None] = lambda: None) -> None:
    for _ in range(6):
        trainer.stepper.advance(state)
        after()


def test_what_is_not_finite_is_told_with_its_own_step_and_the_state_stays(tmp_path: Path) -> None:
    """The parameters overflow in step 2, when step 3 has been launched: it does nothing."""
    recipe = recipe_of("listops-lru", "optimiser.lr=1e300", "optimiser.clip=0.0", "optimiser.warmup=0")
    states, messages = [], []
    for device in ("cpu", "cuda"):
        with fake_cupy.gpu(), trial(recipe, 8, device) as (trainer, state), np.errstate(all="ignore"):
            with pytest.raises(NonFinite) as caught:
                steps_of(trainer, state)
            messages.append(str(caught.value).split(":")[0])
            states.append((state.step, learned(state)))
    assert messages[0] == messages[1]
    assert states[0][0] == states[1][0]
    for name, here in states[0][1].items():
        scale = np.max(np.abs(here), initial=0)  # 1e-9: as in test_training_on_harness
        np.testing.assert_allclose(states[1][1][name], here, rtol=0, atol=1e-9 * scale, err_msg=name)


def test_a_loss_of_one_batch_that_is_not_finite(tmp_path: Path) -> None:
    """The batch of step 3 alone is at fault: step 4 would go well, but does not begin to change the state."""
    recipe = recipe_of("listops-lru", "training.eval_every=100")
    states: list[dict[str, Any]] = []

    def keep() -> None:
        recorder.stream.synchronize()
        states.append({name: array.copy() for name, array in learned(state).items()})

    with fake_cupy.gpu(), trial(recipe, 8, "cuda") as (trainer, state):
        recorder = trainer.stepper.recorder
        assert recorder is not None
        inputs = recorder.work.inputs

        def spoiled(batch: Any, step: int, *more: Any) -> Any:
            values = inputs(batch, step, *more)
            return values | {"labels": np.full_like(values["labels"], 99)} if step == 2 else values

        recorder.work.inputs = spoiled  # type: ignore[method-assign]
        with pytest.raises(NonFinite, match="step 3: "):
            steps_of(trainer, state, after=keep)
        assert state.step == 2
        for name, array in learned(state).items():
            np.testing.assert_array_equal(array, states[1][name], err_msg=name)


def test_a_log_that_cannot_be_written_keeps_what_was_launched(tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru", "training.eval_every=100")
    train(recipe, tmp_path / "straight", progress=False)
    add = Log.add

    def full(self: Log, records: list[dict[str, Any]]) -> None:
        if any(one["step"] == 3 for one in records):
            raise OSError(28, "No space left on device")
        add(self, records)

    with fake_cupy.gpu():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Log, "add", full)
            with pytest.raises(OSError, match=r"log not written .*; the state after step 4 is saved"):
                train(recipe, tmp_path / "run", progress=False, device="cuda")
        train(recipe, tmp_path / "run", progress=False, resume=True, device="cuda")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "straight"), rtol=1e-9)


# ---- failures ----


def at_step(step: int, happens: Callable[[], None]) -> Any:
    """Stepper.advance, before which something happens at a step."""
    advance = Stepper.advance

    def advancing(self: Stepper, state: Any) -> Any:
        if state.step == step:
            happens()
        return advance(self, state)

    return advancing


def lose() -> None:
    Failures.lost = True


def out_of_memory() -> None:
    Failures.bytes = 0


def capture() -> None:
    """Another thread begins to capture, and so forbids this one to wait or to allocate."""
    Stream().begin_capture()


def test_ctrl_c_while_work_is_recorded_ends_the_capture() -> None:
    """What waits for the stream then would fail, and tell of a GPU that failed."""
    with fake_cupy.gpu():
        counter, stream = cuda.device().asarray(np.zeros(1, np.int64)), Stream()

        def work() -> Any:
            one = recording()
            if one is not None and one.cut is not None:  # it is recorded, not tried
                raise KeyboardInterrupt
            return counter

        with pytest.raises(KeyboardInterrupt):
            cuda.Recorded(work, counter, stream)
        assert not stream.is_capturing()
        stream.synchronize()


LOST = "cudaErrorLaunchFailure"
BUSY = "the current stream is being captured"
FAILURES: dict[str, tuple[Any, list[str], type[Exception], str]] = {
    "lost, in step 4": (lose, [], cuda.DeviceError, f"the GPU failed after step 3: {LOST}"),
    "lost, operation by operation": (
        lose, ["training.accumulate=2"], cuda.DeviceError, f"the GPU failed after step 3: {LOST}",
    ),
    "no memory within a step": (
        out_of_memory, ["training.accumulate=2"], MemoryError, "the GPU failed after step 3: Out of memory",
    ),
    "captured by another": (
        capture, ["training.accumulate=2"], cuda.DeviceError, f"the GPU failed after step 3: {BUSY}",
    ),
}  # fmt: skip


def check_resumes(recipe: Recipe, folder: Path, step: int) -> None:
    """The checkpoint is whole, and of this step; on the CPU the run ends where it would have."""
    assert read_checkpoint(Run(folder / "run").checkpoint("last"))[1]["step"] == step
    with pytest.warns(UserWarning, match="was trained with harness.* and this is"):
        train(recipe, folder / "run", progress=False, resume=True)
    train(recipe, folder / "straight", progress=False)
    np.testing.assert_allclose(losses(folder / "run"), losses(folder / "straight"), rtol=1e-9)
    there = parameters(folder / "straight")
    for key, value in parameters(folder / "run").items():
        np.testing.assert_allclose(value, there[key], rtol=0, atol=1e-6, err_msg=key)  # as in test_training_on_harness


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_says_its_cause_and_the_run_goes_on_on_the_cpu(name: str, tmp_path: Path) -> None:
    happens, settings, kind, message = FAILURES[name]
    recipe = recipe_of("listops-lru", "training.checkpoint_every=2", "training.eval_every=100", *settings)
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "advance", at_step(3, happens))
        with pytest.raises(kind, match=f"{message}.*; the last good checkpoint is .*last.safetensors"):
            train(recipe, tmp_path / "run", progress=False, device="cuda")
    check_resumes(recipe, tmp_path, 2)


@pytest.mark.parametrize("launch", [4, 5])
def test_an_asynchronous_failure_is_found_when_the_step_is_read(launch: int, tmp_path: Path) -> None:
    """Step 4 is read by its checkpoint, step 5 when step 6 has been launched. The message has the step before."""
    recipe = recipe_of("listops-lru", "training.checkpoint_every=2", "training.eval_every=100")
    with fake_cupy.gpu(at_launch=launch):
        message = f"the GPU failed after step {launch - 1}: {LOST}: .*; the last good checkpoint is"
        with pytest.raises(cuda.DeviceError, match=message):
            train(recipe, tmp_path / "run", progress=False, device="cuda")
    check_resumes(recipe, tmp_path, launch - 1 if launch % 2 else launch - 2)


def test_without_memory_for_a_recording(tmp_path: Path) -> None:
    """Nor for the step operation by operation; where there is some, see test_training_on_harness."""
    recipe = recipe_of("listops-lru")
    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "advance", at_step(0, out_of_memory))
        message = "the GPU failed after step 0: Out of memory allocating .*; there is no checkpoint yet"
        with pytest.warns(UserWarning, match="steps run operation"), pytest.raises(MemoryError, match=message):
            train(recipe, tmp_path / "run", progress=False, device="cuda")


@pytest.mark.parametrize("where", ["evaluate", "finish"])
def test_a_failure_beside_steps_is_told_like_one_in_them(where: str, tmp_path: Path) -> None:
    recipe = recipe_of("listops-lru")
    method = getattr(Trainer, where)

    def failing(self: Trainer, state: Any) -> Any:
        lose()
        return method(self, state)

    with fake_cupy.gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, where, failing)
        with pytest.raises(cuda.DeviceError, match=f"the GPU failed after step {3 if where == 'evaluate' else 6}: "):
            train(recipe, tmp_path / "run", progress=False, device="cuda")


def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    reason = RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")
    with fake_cupy.gpu(gpus=reason), pytest.raises(cuda.DeviceError, match=f"CUDA cannot be used: {reason}"):
        train(recipe_of("listops-lru"), tmp_path / "run", progress=False, device="cuda")
    assert not (tmp_path / "run").exists()
