"""The training loop. With one build, instruction set and NumPy, a run depends on its recipe and data alone: neither the
time, the threads, nor a kill and resume in between change a bit of its checkpoints.

Everything random has a key: the order of the data (seed, epoch), initial values (seed), dropout (seed, step, site).
Epoch and place in it follow from the step, which counts finished updates.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
from tqdm import tqdm

from rotrnn import _cpu
from rotrnn.nn.layer import Array, Context, Params, astype, flatten, is_parameter, unflatten
from rotrnn.ops import optim
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.tasks import Split, Task
from rotrnn.training.checkpoint import Facts, read_checkpoint, write_checkpoint
from rotrnn.training.optimiser import Moments, NonFinite, describe_groups, group_of, table
from rotrnn.training.recipe import Recipe, Training
from rotrnn.training.run import PARAMS, Run, check_recipe


class Model(Protocol):
    """What the loop needs of a model."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(self, params: Params, inputs: Array, ctx: Context) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dlogits: Array) -> Params: ...

    def is_recurrent(self, name: str) -> bool: ...

    def state_norms(self, params: Params, inputs: Array, ctx: Context) -> Array: ...


class Interrupted(KeyboardInterrupt):
    """Training stopped at a Ctrl-C, after its state was saved."""


class Metrics(NamedTuple):
    """Mean cross-entropy (nats) and share of right answers."""

    loss: float
    accuracy: float


@dataclass
class State:
    """All that training changes: what a checkpoint holds."""

    step: int
    params: Params
    moments: Moments
    best_step: int = 0
    best_accuracy: float = -1.0

    def arrays(self) -> dict[str, Array]:
        """Every array by the name it has in a checkpoint."""
        return {**{PARAMS + name: array for name, array in flatten(self.params)}, **self.moments}


def initial_state(model: Model, recipe: Recipe) -> State:
    """Initial values, drawn from (seed, 0, 1); the data of epoch e are ordered by (seed, e)."""
    rng = np.random.default_rng([recipe.training.seed, 0, 1])
    params = astype(model.init(rng), recipe.training.dtype)
    return State(0, params, recipe.optimiser.init(params))


def train(
    recipe: Recipe, folder: str | os.PathLike[str], *, resume: bool = False, progress: bool = True
) -> dict[str, Any]:
    """Trains a recipe in a folder of its own, and evaluates it on the test split.

    Writes what `Run` lists: at each evaluation "last" and, when validation accuracy is as high as ever, "best". The
    first Ctrl-C finishes the step, saves and raises; a second one aborts at once.

    Parameters
    ----------
    resume : bool
        Continue the run in `folder`, which must have the same recipe. It ends on the same bytes as a run that was
        never stopped; one that had ended is only evaluated again. Without it, the folder must hold no run.
    progress : bool
        Print evaluations, and a progress bar if standard error is a terminal.

    Returns
    -------
    dict
        What result.json holds: "steps", "best_step" and its "val_accuracy", "test" with the loss and accuracy of the
        "last" parameters and of the "best" by validation, and the number of "parameters".

    Raises
    ------
    ValueError
        The folder holds a run (or, to resume, another recipe's or none), or another process trains in it; the training
        split is smaller than a batch; a checkpoint is damaged.
    NonFinite
        The loss, a gradient or a parameter became infinite or not a number; the error names the step, the parameter
        and its group. The last checkpoint stays.
    Interrupted
        After Ctrl-C.
    OSError
        A file could not be written.
    """
    run = Run(Path(folder))
    with run.locked():
        if resume:
            _check_same(run.load_recipe(), recipe, run)
            run.clean()
        else:
            run.check_free()
        trainer = _Trainer(recipe, run, progress)
        if not resume:
            run.write(run.recipe, recipe.text())
        return trainer.train()


def evaluate(model: Model, params: Params, split: Split, training: Training) -> Metrics:
    """Loss and accuracy over a whole split, in evaluation mode."""
    loss = right = 0.0
    for first in range(0, len(split), training.batch):
        batch = split.batch(np.arange(first, min(first + training.batch, len(split))), training.dtype)
        logits, _ = model.forward(params, batch.inputs, Context(batch.lengths))
        loss += cross_entropy(logits, batch.labels)[0] * len(batch.labels)
        right += int(np.count_nonzero(logits.argmax(1) == batch.labels))
    return Metrics(loss / len(split), right / len(split))


def batch_order(n: int, seed: int, epoch: int) -> Array:
    """The order of n examples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(n)


class _Trainer:
    """One call of `train`: what stays the same while a state moves on."""

    def __init__(self, recipe: Recipe, run: Run, progress: bool) -> None:
        self.recipe, self.run, self.progress = recipe, run, progress
        self.training = recipe.training
        self.task: Task = recipe.task.load()
        self.model: Model = recipe.build(self.task)
        self.batches = len(self.task.train) // self.training.batch
        if not self.batches:
            there = len(self.task.train)
            raise ValueError(
                f"training.batch is {self.training.batch}, expected at most the {there} examples there are"
            )
        self._order: tuple[int, Array] | None = None

    # ---- a run ----

    def train(self) -> dict[str, Any]:
        state = self.load()
        self.say(table(describe_groups(self.recipe.optimiser, state.params, self.model.is_recurrent, self.steps)))
        records = self.run.cut_log(state.step)
        logged = max((record["step"] for record in records), default=0)
        if logged < state.step:
            self.say(f"note: {self.run.log} ends at step {logged}; the checkpoint goes on from step {state.step}")
        elapsed = max((record.get("elapsed", 0.0) for record in records), default=0.0)
        try:
            with open(self.run.log, "ab", buffering=0) as log:
                self.walk(state, log, time.monotonic() - elapsed)
        except NonFinite as error:
            last = self.run.checkpoint("last")
            kept = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
            raise NonFinite(f"{error}; {kept}") from error
        return self.finish(state)

    def walk(self, state: State, log: FileIO, started: float) -> None:
        """All steps from where `state` is."""
        disable = None if self.progress else True  # None: where standard error is no terminal
        with _Interrupt() as interrupt, tqdm(total=self.steps, initial=state.step, unit="step", disable=disable) as bar:
            while state.step < self.steps:
                seen = self.advance(state)
                self.add(log, seen)
                bar.set_postfix(loss=f"{seen['loss']:.4f}", accuracy=f"{seen['accuracy']:.3f}", refresh=False)
                bar.update()
                evaluated = _due(state.step, self.training.eval_every) or state.step == self.steps
                if evaluated:
                    found = self.evaluate(state)
                    self.add(log, {**found, "elapsed": round(time.monotonic() - started, 3)})
                    self.say(
                        f"step {state.step}/{self.steps}: training loss {seen['loss']:.4f}, "
                        f"validation loss {found['val_loss']:.4f}, accuracy {found['val_accuracy']:.4f}"
                    )
                stop = interrupt.asked
                if evaluated or stop or _due(state.step, self.training.checkpoint_every):
                    self.save(state, log)
                if stop or interrupt.asked:
                    where = f"stopped after step {state.step} of {self.steps}, all is saved"
                    raise Interrupted(f"{where}; to go on: rotrnn train --resume {self.run.folder}")

    @property
    def steps(self) -> int:
        return self.training.steps

    def say(self, text: str) -> None:
        if self.progress:
            tqdm.write(text)

    def load(self) -> State:
        """The state of the last checkpoint, or the initial one where there is none."""
        state = initial_state(self.model, self.recipe)
        last = self.run.checkpoint("last")
        if not last.exists():
            write_checkpoint(self.run.checkpoint("init"), _only_params(state), self.facts(state))
            return state
        arrays, facts = read_checkpoint(last, state.arrays())
        check_recipe(last, facts, self.recipe)
        params = unflatten({name: arrays[PARAMS + name] for name, _ in flatten(state.params)})
        moments = {name: arrays[name] for name in state.moments}
        for key, here in _machine().items():
            if facts[key] != here:
                self.say(f"note: trained with {key} {facts[key]} so far, now with {here}: last bits may differ")
        return State(facts["step"], params, moments, facts["best_step"], facts["best_accuracy"])

    def facts(self, state: State) -> Facts:
        return {
            "recipe": self.recipe.digest(),
            "step": state.step,
            "best_step": state.best_step,
            "best_accuracy": state.best_accuracy,
            **_machine(),
        }

    def add(self, log: FileIO, record: dict[str, Any]) -> None:
        """Appends a record to the log, where a killed process does not lose it."""
        try:
            line = json.dumps(record).encode() + b"\n"
            while line:  # what did not fit at once raises at the next try
                line = line[log.write(line) :]
        except OSError as error:
            last = self.run.checkpoint("last")
            kept = f"the last checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
            raise OSError(error.errno, f"log not written ({error.strerror}); {kept}", str(self.run.log)) from error

    def save(self, state: State, log: FileIO) -> None:
        """The log up to here is on disk before the checkpoint that counts on it."""
        os.fsync(log.fileno())
        try:
            write_checkpoint(self.run.checkpoint("last"), state.arrays(), self.facts(state))
        except ValueError as error:
            raise NonFinite(f"step {state.step}: {error}") from error

    def finish(self, state: State) -> dict[str, Any]:
        """Evaluates the last and the best parameters on the test split, and writes result.json."""
        best = self.run.load_params("best", self.recipe, _only_params(state))
        params = {"last": state.params, "best": best}
        test = {
            name: evaluate(self.model, one, self.task.test, self.training)._asdict() for name, one in params.items()
        }
        result = {
            "steps": state.step,
            "best_step": state.best_step,
            "val_accuracy": state.best_accuracy,
            "test": test,
            "parameters": sum(array.size for name, array in state.moments.items() if name.startswith("m.")),
        }
        self.run.write(self.run.result, json.dumps(result, indent=2) + "\n")
        for name, found in test.items():
            self.say(f"test, {name:>4} parameters: loss {found['loss']:.4f}, accuracy {found['accuracy']:.4f}")
        return result

    # ---- a step ----

    def batch_at(self, step: int) -> Array:
        """The examples of a step: epochs are ordered anew, the last partial batch of each is dropped."""
        epoch, place = divmod(step, self.batches)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, batch_order(len(self.task.train), self.training.seed, epoch)
        return self._order[1][place * self.training.batch :][: self.training.batch]

    def advance(self, state: State) -> dict[str, Any]:
        """One update in place; the record of it."""
        try:
            metrics, grads = self.gradients(state)
            size = self.recipe.optimiser.update(
                state.params, grads, state.moments, self.model.is_recurrent, state.step, self.steps
            )
        except NonFinite as error:
            raise NonFinite(f"step {state.step + 1}: {error}") from error
        lr = self.recipe.optimiser.rate("global", state.step, self.steps)
        state.step += 1
        return {**metrics._asdict(), "step": state.step, "lr": lr, "grad_norm": size}

    def gradients(self, state: State) -> tuple[Metrics, Params]:
        """Loss, accuracy and gradients of one batch: the means over its parts, weighted by their numbers of examples.

        Each part has dropout of its own: the key counts parts.
        """
        index = self.batch_at(state.step)
        total: dict[str, Array] = {}
        loss = right = 0.0
        for k, part in enumerate(np.array_split(index, self.training.accumulate)):
            batch = self.task.train.batch(part, self.training.dtype)
            key = state.step * self.training.accumulate + k
            ctx = Context(batch.lengths, train=True, seed=self.training.seed, step=key)
            logits, saved = self.model.forward(state.params, batch.inputs, ctx)
            part_loss, dlogits = cross_entropy(logits, batch.labels)
            loss += part_loss * len(part)
            right += int(np.count_nonzero(logits.argmax(1) == batch.labels))
            grads = self.model.backward(state.params, saved, dlogits * dlogits.dtype.type(len(part) / len(index)))
            for name, grad in flatten(grads):
                total[name] = total[name] + grad if name in total else grad
        if not math.isfinite(loss):
            raise NonFinite(f"the loss is {loss}; {self.suspect(state)}")
        return Metrics(loss / len(index), right / len(index)), unflatten(total)

    def suspect(self, state: State) -> str:
        """The parameter to look at first where finite parameters gave a loss that is not: the largest."""
        norms = {name: optim.norm(array) for name, array in flatten(state.params) if is_parameter(name)}
        name = max(norms, key=norms.__getitem__)
        group = group_of(name, self.model.is_recurrent)
        return f"the largest parameter is {name} (group {group}), its norm is {norms[name]:.3g}"

    # ---- an evaluation ----

    def evaluate(self, state: State) -> dict[str, Any]:
        """Validation of a state; the record of it. Keeps the parameters if they are the best so far."""
        val = self.task.val
        metrics = evaluate(self.model, state.params, val, self.training)
        if not math.isfinite(metrics.loss):
            raise NonFinite(f"step {state.step}: the validation loss is {metrics.loss}; {self.suspect(state)}")
        if metrics.accuracy >= state.best_accuracy:
            state.best_step, state.best_accuracy = state.step, metrics.accuracy
            write_checkpoint(self.run.checkpoint("best"), _only_params(state), self.facts(state))
        batch = val.batch(np.arange(min(self.training.batch, len(val))), self.training.dtype)
        norms = self.model.state_norms(state.params, batch.inputs, Context(batch.lengths))
        return {
            "step": state.step,
            "val_loss": metrics.loss,
            "val_accuracy": metrics.accuracy,
            "state_norms": [float(norm) for norm in norms.mean(1)],
        }


def _machine() -> Facts:
    """What of the machine a run's last bits depend on."""
    return {"simd": _cpu.simd(), "numpy": np.__version__}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _only_params(state: State) -> dict[str, Array]:
    return {name: array for name, array in state.arrays().items() if name.startswith(PARAMS)}


def _check_same(there: Recipe, recipe: Recipe, run: Run) -> None:
    if there.digest() == recipe.digest():
        return
    for section, table_there in there.tables().items():
        for key, value in table_there.items():
            ours = recipe.tables()[section].get(key)
            if value != ours:
                raise ValueError(
                    f"{run.folder}: {section}.{key} is {ours!r}, expected {value!r} as in the run's recipe"
                )


class _Interrupt:
    """Within the block, the first Ctrl-C sets `asked`, and the second raises KeyboardInterrupt."""

    asked = False

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self.before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        os.write(2, b"\nstopping after this step; Ctrl-C again aborts at once\n")
