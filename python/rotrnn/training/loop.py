"""The training loop. On one kind of machine, with one instruction set and one version of NumPy, a run depends on its
recipe alone: neither the time, the number of threads, nor a kill and resume in between change a bit of its checkpoints.

Everything random has a key: the order of the data (seed, epoch), initial values (seed), dropout (seed, step, site,
place in the batch). Epoch and place in it follow from the step, which counts finished updates.

Several processes (`rotrnn.training.parallel`) hold the same parameters and take the same steps, each from its share of
the batch: what they make of it is that of one process, to rounding. The first of them alone reads and writes files.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol, TypeVar

import numpy as np
from tqdm import tqdm

from rotrnn import _cpu
from rotrnn._support.checkpoint import Facts, write_checkpoint
from rotrnn._support.platform import peak_memory
from rotrnn._support.provenance import session
from rotrnn.models.model import Loss
from rotrnn.nn.layer import Array, Context, Params, astype, flatten, is_parameter, unflatten
from rotrnn.ops import optim
from rotrnn.tasks import Split, Task
from rotrnn.training.evaluation import Found, evaluate
from rotrnn.training.loader import Loader
from rotrnn.training.optimiser import Moments, NonFinite, check_finite, check_parameters, describe_groups, table
from rotrnn.training.parallel import ALONE, Fallen, World, world
from rotrnn.training.recipe import HERE, Recipe
from rotrnn.training.run import PARAMS, Run
from rotrnn.training.tensorboard import Board

T = TypeVar("T")


class Model(Protocol):
    """What the loop needs of a model."""

    def init(self, rng: np.random.Generator) -> Params: ...

    def forward(self, params: Params, inputs: Array, ctx: Context) -> tuple[Array, Any]: ...

    def backward(self, params: Params, saved: Any, dlogits: Array) -> Params: ...

    def loss(self, logits: Array, labels: Array, lengths: Array | None) -> Loss: ...

    def count(self, labels: Array, lengths: Array | None) -> int: ...

    def report(self, saved: Any) -> dict[str, float]: ...

    def is_recurrent(self, name: str) -> bool: ...

    def state_norms(self, params: Params, inputs: Array, ctx: Context) -> Array: ...


class Interrupted(KeyboardInterrupt):
    """Training stopped at a Ctrl-C or SIGTERM, after its state was saved."""


@dataclass
class State:
    """All that training changes: what a checkpoint holds."""

    step: int
    params: Params
    moments: Moments
    best_step: int = 0
    best_score: float = -1.0
    arithmetic: list[str] = field(default_factory=list)
    """Instruction set, NumPy version and, if several, number of processes that the run was trained with; more than one,
    in order, if they changed."""

    def arrays(self) -> dict[str, Array]:
        """Every array by the name it has in a checkpoint."""
        return {**{PARAMS + name: array for name, array in flatten(self.params)}, **self.moments}


def initial_state(model: Model, recipe: Recipe) -> State:
    """Initial values, drawn from (seed, 0, 1)."""
    rng = np.random.default_rng([recipe.training.seed, 0, 1])
    params = astype(model.init(rng), recipe.training.dtype)
    return State(0, params, recipe.optimiser.init(params))


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
    among: World | None = None,
) -> dict[str, Any]:
    """Trains a recipe in a folder of its own, and evaluates it on the test split.

    Writes what `Run` lists: at each evaluation "last" and, when validation accuracy is as high as ever, "best". The
    first Ctrl-C, or SIGTERM, finishes the step, saves and raises; a second one aborts at once.

    Processes that an MPI launcher started train together, each on its share of every batch: as one would to rounding,
    and to the same bits whenever there are as many. One that fails ends all, the last finished step saved.

    Parameters
    ----------
    resume : bool
        Continue the run in `folder`, which must have the same recipe, from its last checkpoint or, where it has none,
        from the start. It ends on the same bytes as a run that was never stopped, if the machine is of the same kind,
        with the same instruction set, NumPy version and number of processes (a warning tells where these are others;
        on another number of processes it goes on as before, to rounding); one that had
        ended is only evaluated again. Without it, the folder must hold no run.
    progress : bool
        Print evaluations, and a progress bar if standard error is a terminal.
    among : World, optional
        The processes that train together; those that this one was started with if not given.

    Returns
    -------
    dict
        What result.json holds: "steps"; the task's "metric", the split it "selected_on" ("test" where the data set has
        no validation part), "best_step" and its "best_score" there; "test" with what `evaluate` found for the "last"
        parameters and for the "best"; and the number of "parameters".

    Raises
    ------
    ValueError
        The folder holds a run (or, to resume, another recipe's or none), or another process trains in it; the training
        split is smaller than a batch; a checkpoint is damaged.
    NonFinite
        The loss, a gradient, a parameter or a moment became infinite or not a number, or too large for a layer; the
        error names the step and, where one is to blame, the parameter and its group. The last checkpoint stays.
    Interrupted
        After Ctrl-C or SIGTERM.
    Fallen
        Another process failed.
    ImportError
        There are several processes, and no mpi4py.
    OSError
        A file could not be written; the error names it. If it was the log, the state is saved.
    """
    run, among = Run(Path(folder)), world() if among is None else among
    with among.together(), run.locked(resume) if among.first else nullcontext():
        there = run.load_recipe() if among.first and resume else None
        if there is not None:
            check_same(there, recipe, run)
            run.clean()
            run.failed.unlink(missing_ok=True)
        elif among.first:
            run.check_free()
        among.agree("the recipe", recipe.digest())
        among.agree("arithmetic", _arithmetic())
        trainer = Trainer(recipe, run, progress and among.first, among)
        if among.first:
            run.put(recipe, there)
            run.add_session({**session(), "processes": among.size})
        return trainer.train()


class Trainer:
    """One call of `train`: what stays the same while a state moves on."""

    def __init__(self, recipe: Recipe, run: Run, progress: bool, among: World = ALONE) -> None:
        self.recipe, self.run, self.progress, self.world = recipe, run, progress, among
        self.training = recipe.training
        if not among.first:
            among.tell(None)  # data that the first one prepares are there for the others
        self.task: Task = recipe.task.load()
        if among.first:
            among.tell(None)
        self.model: Model = recipe.build(self.task)
        self.group_of = recipe.optimiser.grouping(self.model.is_recurrent)
        self.loader = Loader(self.task.train, self.training, among)
        self.board: Board

    # ---- a run ----

    def train(self) -> dict[str, Any]:
        state = self.load()
        self.say(table(describe_groups(self.recipe.optimiser, state.params, self.group_of, self.steps)))
        records = self.run.records() if self.world.first else []
        elapsed = max((record.get("elapsed", 0.0) for record in records), default=0.0)
        if self.task.selected_on == "test":
            self.say(f"{self.task.name} has no validation part: the best parameters are chosen on the test split")
        try:
            with ExitStack() as stack:
                log = None
                if self.world.first:
                    log = stack.enter_context(open(self.run.log, "ab", buffering=0))  # a buffer would fail on closing
                    self.board = stack.enter_context(closing(Board(self.run, records, self.training.eval_every)))
                self.walk(state, log, time.monotonic() - elapsed)
        except Fallen as error:
            raise Fallen(f"{error}; to go on: {self.resuming}") from error
        except NonFinite as error:
            if self.world.first:
                self.run.fail(str(error))
            last = self.run.checkpoint("last")
            kept = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
            raise NonFinite(f"{error}; {kept}") from error
        finally:
            self.loader.close()
        return self.finish(state)

    def walk(self, state: State, log: BinaryIO | None, started: float) -> None:
        """All steps from where `state` is."""
        disable = None if self.progress else True  # None: where standard error is no terminal
        with (
            _Interrupt(self.world) as interrupt,
            tqdm(total=self.steps, initial=state.step, unit="step", disable=disable) as bar,
        ):
            saved = None
            while True:
                try:
                    stop = any(self.world.tell(interrupt.asked))
                    if stop or state.step == self.steps:
                        break
                    seen, seconds = timed(lambda: self.advance(state))
                except Fallen as error:  # the state is that of the last finished step
                    self.save(state, log)
                    raise Fallen(f"{error}; the state after step {state.step} is saved") from error
                records = [{**seen, "seconds": seconds}]
                bar.set_postfix(loss=f"{seen['loss']:.4f}", accuracy=f"{seen['accuracy']:.3f}", refresh=False)
                bar.update()
                evaluated = _due(state.step, self.training.eval_every) or state.step == self.steps
                if evaluated:
                    found, seconds = timed(lambda: self.evaluate(state))
                    elapsed = round(time.monotonic() - started, 3)
                    records.append({**found, "seconds": seconds, "elapsed": elapsed, "peak_memory": peak_memory()})
                    self.say(
                        f"step {state.step}/{self.steps}: training loss {seen['loss']:.4f}, "
                        f"validation loss {found['val_loss']:.4f}, {self.metric} {found[f'val_{self.task.metric}']:.4f}"
                    )
                self.add(log, state, records)
                if evaluated or _due(state.step, self.training.checkpoint_every):
                    self.save(state, log)
                    saved = state.step
            if stop and saved != state.step:
                self.save(state, log)
        if stop:
            where = f"stopped after step {state.step} of {self.steps}, all is saved"
            raise Interrupted(f"{where}; to go on: {self.resuming}")

    @property
    def resuming(self) -> str:
        """The command that continues the run."""
        return f"rotrnn train --resume {self.run.folder}"

    @property
    def steps(self) -> int:
        return self.training.steps

    @property
    def metric(self) -> str:
        """The task's, in words."""
        return self.task.metric.replace("_", " ")

    def say(self, text: str) -> None:
        if self.progress:
            tqdm.write(text)

    def load(self) -> State:
        """The state of the last checkpoint, or the initial one where there is none; the first process's, in all."""
        state = initial_state(self.model, self.recipe)
        if self.world.first:
            state = self.read(state)
        facts = self.world.tell([state.step, state.best_step, state.best_score, state.arithmetic])
        state.step, state.best_step, state.best_score, state.arithmetic = facts[0]
        self.world.share(state.arrays())
        return state

    def read(self, state: State) -> State:
        """The state of the last checkpoint, or the initial one, `state`, where there is none."""
        last = self.run.checkpoint("last")
        here = _arithmetic(self.world.size)
        if not last.exists() and self.run.result.exists():
            raise ValueError(
                f"{last}: is missing although the run has ended; expected it there (without {self.run.result.name} the "
                "run begins anew)"
            )
        if not last.exists():
            state.arithmetic.append(here)
            write_checkpoint(self.run.checkpoint("init"), _only_params(state), self.facts(state))
            self.run.cut_log(0)
            return state
        arrays, facts = self.run.read("last", self.recipe, state.arrays())
        if facts["best_step"]:
            self.run.read("best", self.recipe)  # that it is missed at the end alone would be a pity
        records = self.run.cut_log(facts["step"], facts.get("unlogged", ()))
        logged = sum("loss" in record for record in records)
        if logged < facts["step"]:
            warnings.warn(f"{self.run.log}: tells {logged} of {facts['step']} steps, the others are lost", stacklevel=5)
        arithmetic = facts["arithmetic"]
        if arithmetic[-1] != here:
            change = f"{last}: was trained with {arithmetic[-1]}, and this is {here}"
            warnings.warn(f"{change}; the run may end on other bits than one that was never stopped", stacklevel=5)
            arithmetic = [*arithmetic, here]
        params = unflatten({name: arrays[PARAMS + name] for name, _ in flatten(state.params)})
        moments = {name: arrays[name] for name in state.moments}
        return State(facts["step"], params, moments, facts["best_step"], facts["best_score"], arithmetic)

    def facts(self, state: State) -> Facts:
        return {
            "recipe": self.recipe.digest(),
            "step": state.step,
            "best_step": state.best_step,
            "best_score": state.best_score,
            "arithmetic": state.arithmetic,
        }

    def save(self, state: State, log: BinaryIO | None) -> None:
        """The log up to here is on disk before the checkpoint that counts on it. Without log, another process saves."""
        if log is None:
            return
        try:
            os.fsync(log.fileno())
        except OSError as error:
            raise self.without_log(state, [], error) from error
        with self.blaming(state, state.step):
            write_checkpoint(self.run.checkpoint("last"), state.arrays(), self.facts(state))

    def add(self, log: BinaryIO | None, state: State, records: list[dict[str, Any]]) -> None:
        """Appends the records of a step to the log; a killed process does not lose them."""
        if log is None:
            return
        text = "".join(json.dumps(record) + "\n" for record in records).encode()
        try:
            while text:
                text = text[log.write(text) :]
        except OSError as error:
            raise self.without_log(state, records, error) from error
        self.board.add(records)

    def without_log(self, state: State, records: list[dict[str, Any]], error: OSError) -> OSError:
        """What to raise when the log cannot be written: the state is saved, and with it what the log lacks."""
        try:
            facts = {**self.facts(state), "unlogged": records}
            write_checkpoint(self.run.checkpoint("last"), state.arrays(), facts)
            kept = f"the state after step {state.step} is saved, to be resumed"
        except (OSError, ValueError) as second:
            kept = f"nor could the state after step {state.step} be saved: {second}"
        return OSError(error.errno, f"log not written ({error.strerror}); {kept}", str(self.run.log))

    def finish(self, state: State) -> dict[str, Any]:
        """Evaluates the last and the best parameters on the test split, and writes result.json."""
        best = astype(state.params, self.training.dtype)
        if self.world.first:
            best = self.run.load_params("best", state.params)
        self.world.share(dict(flatten(best)))
        params = {"last": state.params, "best": best}
        test = {name: self.look(one, self.task.test) for name, one in params.items()}
        result = {
            "steps": state.step,
            "metric": self.task.metric,
            "selected_on": self.task.selected_on,
            "best_step": state.best_step,
            "best_score": state.best_score,
            "test": test,
            "parameters": sum(array.size for name, array in state.moments.items() if name.startswith("m.")),
        }
        if self.world.first:
            self.run.write(self.run.result, json.dumps(result, indent=2) + "\n")
        for name, found in test.items():
            self.say(
                f"test, {name:>4} parameters: loss {found['loss']:.4f}, {self.metric} {found[self.task.metric]:.4f}"
            )
        return result

    # ---- a step ----

    def advance(self, state: State) -> dict[str, Any]:
        """One update in place; the record of it."""
        with self.blaming(state, state.step + 1):
            with _kept(state.params):
                metrics, grads = self.gradients(state)
            size = self.recipe.optimiser.update(
                state.params, grads, state.moments, self.group_of, state.step, self.steps
            )
        lr = self.recipe.optimiser.rate("global", state.step, self.steps)
        state.step += 1
        return {**metrics, "step": state.step, "lr": lr, "grad_norm": size}

    @contextmanager
    def blaming(self, state: State, step: int) -> Iterator[None]:
        """Names the step in what is raised as NonFinite, and the parameter if a layer or a file refused one."""
        try:
            try:
                yield
            except ValueError as error:
                check_parameters("parameter", state.params, self.group_of)
                raise NonFinite(str(error)) from error
        except NonFinite as error:
            raise NonFinite(f"step {step}: {error}") from error

    def gradients(self, state: State) -> tuple[dict[str, Any], Params]:
        """Loss, accuracy, what layers report, and gradients of one batch: means over its parts, weighted by labels.

        Each part has dropout of its own: the key counts parts.
        """
        parts = self.loader.parts(state.step)
        counts = [self.model.count(batch.labels, batch.lengths) for batch, _ in parts]
        every = np.array(self.world.tell(counts)).sum(0)  # of each part, whichever process has them
        labels = int(every.sum())
        total: dict[str, Array] = {}
        own_loss, own_right = 0.0, 0
        own_reports: dict[str, float] = {}
        for k, ((batch, places), count) in enumerate(zip(parts, counts, strict=True)):
            if not every[k]:
                continue
            ctx = Context(
                batch.lengths,
                train=True,
                seed=self.training.seed,
                step=state.step * self.training.accumulate + k,
                places=places,
                gather=self.world.gather if self.world.size > 1 else None,
            )
            logits, saved = self.model.forward(state.params, batch.inputs, ctx)
            dlogits, share = np.zeros_like(logits), count / labels
            if count:
                found = self.model.loss(logits, batch.labels, batch.lengths)
                dlogits = found.dlogits * logits.dtype.type(share)
                own_loss += found.mean * count
                own_right += int(np.count_nonzero(found.right))
            for name, value in self.model.report(saved).items():
                own_reports[name] = own_reports.get(name, 0.0) + share * value
            for name, grad in flatten(self.model.backward(state.params, saved, dlogits)):
                total[name] = total[name] + grad if name in total else grad
        total = self.world.total(total)
        loss = right = 0.0
        reports: dict[str, float] = {}
        for one, two, layers in self.world.tell([own_loss, own_right, own_reports]):
            loss, right = loss + one, right + two
            for name, value in layers.items():
                reports[name] = reports.get(name, 0.0) + value
        if not math.isfinite(loss):
            check_parameters(f"the loss is {loss}; parameter", state.params, self.group_of)
            norms = {name: optim.norm(grad) for name, grad in reversed(total.items())}
            fine = f"the loss is {loss}, every parameter is finite"
            check_finite(f"{fine}; going backward, gradient", norms, self.group_of)
            raise NonFinite(f"the loss is {loss}, every parameter and gradient is finite")
        metrics: dict[str, Any] = {"loss": loss / labels, "accuracy": right / labels}
        return metrics | ({"layers": reports} if reports else {}), unflatten(total)

    # ---- an evaluation ----

    def look(self, params: Params, split: Split) -> Found:
        """What `evaluate` finds on a split."""
        batch, dtype = self.training.batch, self.training.dtype
        return evaluate(self.model, params, self.task, split, batch=batch, dtype=dtype, world=self.world)

    def evaluate(self, state: State) -> dict[str, Any]:
        """Validation of a state; the record of it. Keeps the parameters if they are the best so far.

        A loss that is not finite is no end while the parameters are: answers that are NaN are wrong ones.
        """
        val = self.task.val
        if self.world.size > 1:
            self.world.agree("the checksum of the state", checksum(state))
        with self.blaming(state, state.step):
            found = self.look(state.params, val)
            if not math.isfinite(found["loss"]):
                here = f"the validation loss is {found['loss']}"
                check_parameters(f"{here}; parameter", state.params, self.group_of)
                if self.world.first:  # of a fixed point that has diverged, say: training may still find back
                    warnings.warn(f"step {state.step}: {here}, every parameter is finite", RuntimeWarning, stacklevel=2)
            if (score := found[self.task.metric]) >= state.best_score:
                state.best_step, state.best_score = state.step, score
                if self.world.first:
                    write_checkpoint(self.run.checkpoint("best"), _only_params(state), self.facts(state))
        record: dict[str, Any] = {"step": state.step}
        record |= {f"val_{name}": value for name, value in found.items() if name not in ("n", "curve")}
        if self.world.first:
            batch = val.batch(np.arange(min(self.training.batch, len(val))), self.training.dtype)
            norms = self.model.state_norms(state.params, batch.inputs, Context(batch.lengths))
            record["state_norms"] = [float(norm) for norm in norms.mean(1)]
        return record


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns, and the seconds it took."""
    began = time.monotonic()
    return work(), round(time.monotonic() - began, 6)


def _arithmetic(processes: int = 1) -> str:
    return f"{_cpu.simd()} and NumPy {np.__version__}" + f" on {processes} processes" * (processes > 1)


def checksum(state: State) -> int:
    """CRC-32 of all its arrays."""
    crc = 0
    for array in state.arrays().values():
        crc = zlib.crc32(array.tobytes(), crc)
    return crc


@contextmanager
def _kept(params: Params) -> Iterator[None]:
    """Puts buffers, which forward moves, back to where they were if another process fails within."""
    buffers = [(array, array.copy()) for name, array in flatten(params) if not is_parameter(name)]
    try:
        yield
    except Fallen:
        for array, before in buffers:
            array[...] = before
        raise


def _only_params(state: State) -> dict[str, Array]:
    return {name: array for name, array in state.arrays().items() if name.startswith(PARAMS)}


def check_same(there: Recipe, recipe: Recipe, run: Run) -> None:
    """Raises ValueError, with the first setting that differs, where a run would not be that of its recipe."""
    if there.digest() == recipe.digest():
        return
    for (section, old), new in zip(there.tables().items(), recipe.tables().values(), strict=True):
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) != new.get(key) and section != "source" and not (section == "task" and key in HERE):
                got, expected = (repr(table[key]) if key in table else "unset" for table in (new, old))
                raise ValueError(f"{run.folder}: {section}.{key} is {got}, expected {expected} as in the run's recipe")
    raise ValueError(f"{run.folder}: the task's data are made here and read from files there, or the other way round")


class _Interrupt:
    """Within the block, the first Ctrl-C or SIGTERM sets `asked`, and the second raises KeyboardInterrupt."""

    asked = False

    def __init__(self, among: World) -> None:
        self.world = among
        self.before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if number == signal.SIGTERM:
            self.world.hurry()
        if self.world.first:
            os.write(2, b"\nstopping after this step; Ctrl-C again aborts at once\n")
