"""The training loop. On one kind of machine, with one instruction set and one version of NumPy, a run depends on its
recipe alone, and on the parameters that `training.init` names: neither the time, the number of threads, nor a kill and
resume in between change a bit of its checkpoints.

Everything random has a key: the order of the data (seed, epoch), initial values (seed), dropout (seed, step, site,
place in the batch). Epoch and place in it follow from the step, which counts finished updates.

Several processes (`rotrnn.training.parallel`) hold the same parameters and take the same steps, each from its share of
the batch. Results equal a single process up to rounding. Only the first process reads and writes files.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from rotrnn._support.files import check_folder, clean
from rotrnn._support.json import from_json, to_json
from rotrnn._support.platform import peak_memory
from rotrnn._support.progress import bar as progress_bar
from rotrnn._support.progress import say
from rotrnn._support.provenance import session
from rotrnn._support.text import an
from rotrnn._support.warn import warn
from rotrnn.devices import cuda
from rotrnn.devices.cuda import DeviceError
from rotrnn.devices.device import HOST, Device, named, to_host
from rotrnn.devices.precisions import precision
from rotrnn.nn.layer import Context, Params, astype, flatten, moved
from rotrnn.ops.boundary import Boundary
from rotrnn.tasks import Split, Task
from rotrnn.tasks.own import load_by
from rotrnn.tasks.rules import Rules, find_rules, made
from rotrnn.training.evaluation import COUNTS, Found, chunks, evaluate
from rotrnn.training.gpus import GPUs
from rotrnn.training.graph import Recorder, Work
from rotrnn.training.loader import Loader
from rotrnn.training.log import Log, Records, opened, timed
from rotrnn.training.memory import budget
from rotrnn.training.optimiser import AdamW, NonFinite, check_parameters, describe_groups, table
from rotrnn.training.parallel import ALONE, Fallen, World, world
from rotrnn.training.recipe import HERE, Recipe, recipe_of
from rotrnn.training.results import duration
from rotrnn.training.run import Run, data_of
from rotrnn.training.start import Start, read_start, same_start
from rotrnn.training.state import Checkpoints, State, arithmetic, checksum, initial_state, zero_rows
from rotrnn.training.step import Stepper, blaming


class Interrupted(KeyboardInterrupt):
    """Training stopped at a Ctrl-C, SIGTERM or SIGHUP, after its state was saved."""


def train(
    recipe: Recipe | dict[str, Any],
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
    among: World | None = None,
    device: str = "cpu",
    log: Records | None = None,
) -> dict[str, Any]:
    """Trains a recipe in its own folder, and evaluates it on the test split.

    Writes the files listed in `Run`: at each evaluation "last" and, when validation accuracy is as high as ever,
    "best". The first Ctrl-C, SIGTERM or SIGHUP (a closed terminal; not under nohup) finishes the step, saves and
    raises; a second one aborts at once. A run has a checkpoint two minutes after its start, and another five minutes
    after each, however far its next evaluation is: a kill, or a power failure, loses no more.

    Processes that an MPI launcher started train together, each on its share of every batch. Results equal a single
    process up to rounding, and have the same bits for the same number of processes. If one process fails, all end, and
    the last finished step is saved; on GPUs, one for each process, the last checkpoint stays.

    Parameters
    ----------
    recipe : Recipe, or dict
        As `load_recipe` returns it or, a dict, takes it.
    resume : bool
        Continue the run in `folder`, which must have the same recipe, from its last checkpoint or, without a
        checkpoint, from the start. It ends on the same bytes as an uninterrupted run on a machine of the same kind,
        with the same instruction set, NumPy version and number of processes. A warning names differences; with a
        different number of processes results agree up to rounding. A run that had ended is only evaluated again.
        Without `resume`, the folder must hold no run, except a finished run whose recipe differs only in fewer
        `training.steps`: it continues from its last step, with its optimiser's state. Updates up to there had the
        learning rate of a schedule over the old number of steps; later updates follow a schedule over the new number,
        whose rate is higher at first if the old schedule had reached its floor.
    progress : bool
        Print evaluations, and a progress bar if standard error is a terminal; else a line each minute with the
        remaining time, the first after ten seconds. If they cannot be printed there is a warning.
    among : World, optional
        The processes that train together. Default: the processes that this one was started with.
    device : str
        "cpu", or "cuda" for a GPU (`rotrnn.cuda`). A run may continue on a different device than it began on, with a
        warning; results then agree up to rounding.
    log : callable, optional
        ``log(record)`` is called with each record, a dict, when it is written to log.jsonl. A run that was killed
        repeats the steps after its last checkpoint; records that an earlier start had logged are not passed again. If
        the function raises an Exception there is a warning, and it is not called again. With several processes only the
        first calls it.

    Returns
    -------
    dict
        The contents of result.json: "steps"; the task's "metric", the split it "selected_on" ("test" if one part is for
        validation and test, "training" if test is the training data), "best_step" and its "best_score" there; "test"
        with the results of `evaluate` for the "last" and for the "best" parameters; and the number of "parameters".

    Raises
    ------
    TypeError
        `recipe`, `folder`, `among` or `log` is of another type.
    ValueError
        `resume` is neither True nor False. The folder is a file, or holds a run (or, to resume, another recipe's or
        none), or another process trains in it; the run that is to go on was trained on a data file (`path` of its task)
        with other contents; the training split is smaller than a batch; the data have intervals, and the layer takes
        none; a checkpoint is damaged; two processes have but one GPU; there is less memory than `training.memory` says.
        A new run that fails so before its first checkpoint leaves no file.
    NonFinite
        The loss, a gradient, a parameter or a moment became infinite or not a number, or too large for a layer; the
        error names the step and, if known, the parameter and its group. The last checkpoint stays.
    Interrupted
        After Ctrl-C, SIGTERM or SIGHUP.
    Fallen
        Another process failed.
    ImportError
        There are several processes, and no mpi4py.
    DeviceError
        `device` is "cuda", and no GPU can be used, or it failed, or there are several processes and no NCCL; the error
        says why. The last checkpoint stays.
    MemoryError
        The GPU has too little memory. The last checkpoint stays.
    OSError
        A file could not be written; the error names it. If it was the log, the state is saved.
    """
    args = Boundary("train")
    recipe = recipe_of("train", recipe)
    check_folder("train: folder", folder)
    resume = args.flag("resume", resume)
    if among is not None:
        args.one_of("among", among, World)
    if log is not None and not callable(log):
        raise TypeError(f"train: log is {an(type(log).__name__)}, expected a function of a record")
    place = named("train", device)
    run, among = Run(Path(folder)), world() if among is None else among
    with among.together(), run.locked(resume) if among.first else nullcontext():
        there = None
        if among.first:
            there, recipe = continued(run, recipe, resume)
            if there is not None:
                run.failed.unlink(missing_ok=True)
            clean(run.folder)
        if ends := among.tell(recipe.training.extended)[0]:
            recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, extended=tuple(ends)))
        run = Run(run.folder.absolute())  # even if the process, or the function `log`, changes directory
        among.agree("the recipe", recipe.digest())
        among.agree("arithmetic", arithmetic(recipe))
        with precision(recipe.training.precision), ExitStack() as stack:
            if place is not HOST and among.size > 1:
                among = stack.enter_context(GPUs(among))
            before = run.last_memory() if among.first and there is not None else None
            logged = run.last_logged() if among.first and there is not None else -1
            memory = budget(recipe.training.memory, place, among, among.tell(before)[0])
            rules = known_rules(run, recipe, among, among.first and there is not None)
            trainer = Trainer(recipe, run, progress and among.first, among, place, memory, log, logged, rules)
            if among.first:
                if there is None:
                    stack.enter_context(run.beginning())
                run.put(recipe, there)
                if rules is None and trainer.task.rules is not None:
                    run.write(run.rules, trainer.task.rules.text())
                facts = {"processes": among.size, "precision": recipe.training.precision}
                facts |= {"memory": memory, "memory_setting": recipe.training.memory, "logged": logged}
                facts |= {} if place is HOST else {"gpu": cuda.describe()}
                facts |= {} if (data := data_of(recipe.task)) is None else {"data": data}
                facts |= {} if trainer.start is None else {"init": trainer.start.facts()}
                run.add_session({**session(), **facts})
            return trainer.train()


SOON, MINUTE = 10.0, 60.0


class Remaining:
    """The remaining time in place of a bar: first after `SOON`, and then every `MINUTE`."""

    def __init__(self, step: int, steps: int) -> None:
        self.first, self.steps, self.began = step, steps, time.monotonic()
        self.due = self.began + SOON

    def after(self, step: int) -> str | None:
        """Returns the remaining time in words, from the steps so far with their evaluations, if it is due."""
        now = time.monotonic()
        if now < self.due or step == self.steps:
            return None
        self.due = now + MINUTE
        return duration((now - self.began) / (step - self.first) * (self.steps - step))


class Trainer:
    """One call of `train`: everything that stays the same while the state changes."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        progress: bool,
        among: World = ALONE,
        device: Device = HOST,
        memory: int | None = None,
        log: Records | None = None,
        logged: int = -1,
        rules: Rules | None = None,
    ) -> None:
        self.device = device
        self.log, self.logged = log, logged
        self.recipe, self.run, self.progress, self.world = recipe, run, progress, among
        self.training = recipe.training
        if not among.first:
            among.tell(None)  # data that the first one prepares are there for the others
        self.task: Task = load_by(recipe.task, rules)
        if among.first:
            among.tell(None)
        self.model = recipe.build(self.task)
        if self.task.train.carry:
            zero_rows(self.model, recipe)  # refuses a model without rows to carry on before the run's folder is written
        self.start: Start | None = None
        if among.first and self.training.init is not None and not run.checkpoint("last").exists():
            self.start = read_start(self.training.init, initial_state(self.model, recipe).params)
        self.group_of = recipe.optimiser.grouping(self.model.is_recurrent)
        self.loader = Loader(self.task.train, self.training, among)
        self.stepper = Stepper(recipe, self.model, self.loader, self.group_of, among, device, memory)
        self.checkpoints = Checkpoints(run, recipe, among, device)
        self.check_labels()

    def check_labels(self) -> None:
        """Raises ValueError if none of a split's labels counts: nothing would be learnt, or the run could not end."""
        for name, split in (("training", self.task.train), ("validation", self.task.val), ("test", self.task.test)):
            found = (split.batch(index) for index in chunks(len(split), self.training.batch))
            if not split.fresh and not any(self.model.count(one.labels, one.lengths) for one in found):
                got = f"none of the {len(split)} sequences for {name} has a label that counts"
                raise ValueError(f"train: {self.task.name}: {got}, expected at least one")

    # ---- a run ----

    def train(self) -> dict[str, Any]:
        state = self.checkpoints.load(self.initial_state())
        try:
            state.move(self.device)
            self.record(state)
            if self.start is not None:
                self.say(str(self.start))
            self.say(table(describe_groups(self.recipe.optimiser, state.params, self.group_of, self.steps)))
            if state.step == (self.training.extended or (0,))[-1] > 0:
                last, first = (self.rate(step) for step in (state.step - 1, state.step))
                over = f"the learning rate was {last:.3g} at the last step; the schedule over {self.steps} begins"
                self.say(f"goes on from step {state.step} to {self.steps}: {over} here with {first:.3g}")
            records = self.run.records() if self.world.first else []
            elapsed = max((record.get("elapsed", 0.0) for record in records), default=0.0)
            if self.task.selected_on == "training":
                self.say(f"{self.task.name} has no validation or test part: test is the training data")
            elif self.task.selected_on == "test":
                one = f"{self.task.name} has one part for validation and test"
                self.say(f"{one}: the best parameters are chosen on the test split")
            if self.world.first:
                self.warn_of_carry()
            with ExitStack() as stack:
                log = None
                if self.world.first:
                    every = self.training.eval_every
                    log = stack.enter_context(opened(self.run, records, every, self.log, self.logged))
                    if state.step == 0 and not records:
                        self.add(log, state, [{"step": 0, "state_norms": self.state_norms(state)}])
                self.walk(state, log, time.monotonic() - elapsed)
            return self.finish(state)
        except Fallen as error:
            raise Fallen(f"{error}; to go on: {self.resuming}") from error
        except NonFinite as error:
            if self.world.first:
                self.run.fail(str(error))
            raise NonFinite(f"{error}; {self.kept}") from error
        except (RuntimeError, MemoryError) as error:  # CuPy has classes of its own
            if self.device is HOST:
                raise
            kind = MemoryError if isinstance(error, MemoryError) else DeviceError
            raise kind(f"the GPU failed after step {state.step}: {error}; {self.kept}") from error
        finally:
            self.close()

    def initial_state(self) -> State:
        """The state before the first step."""
        state = initial_state(self.model, self.recipe)
        if self.start is not None:
            self.start.give(state.params)
        if self.task.train.carry:
            state.carried = zero_rows(self.model, self.recipe)
        return state

    def warn_of_carry(self) -> None:
        """Warns if sequences would go on only after the last step."""
        carry, steps = self.task.train.carry, self.training.steps
        if carry and carry.after >= steps - 1:  # step carry.after, counted from 0, is the last that begins anew
            after = f"task.carry_after is {carry.after}, training.steps is {steps}"
            warn(f"{after}: no sequence goes on (task.carry is {carry.chance})")

    def close(self) -> None:
        """Drops the graphs of steps, and ends the loader."""
        if self.stepper.recorder is not None:
            self.stepper.recorder.close()
        self.loader.close()

    def record(self, state: State) -> None:
        """Lets the steps of a state on a GPU be recorded as CUDA graphs."""
        plain = state.carried is None and not self.training.packed and not self.training.skip
        recordable = plain and isinstance(self.recipe.optimiser, AdamW)
        if self.device is not HOST and recordable:
            memory = self.stepper.memory
            work = Work(self.recipe, self.model, self.group_of, self.device, state, self.world, memory)
            self.stepper = dataclasses.replace(self.stepper, recorder=Recorder(work))

    def walk(self, state: State, log: Log | None, started: float) -> None:
        """All steps from where `state` is."""
        with (
            _Interrupt(self.world) as interrupt,
            progress_bar(total=self.steps, initial=state.step, unit="step", show=self.progress) as bar,
        ):
            saved, kept, remaining = None, time.monotonic(), Remaining(state.step, self.steps)
            while True:
                try:
                    late = time.monotonic() - kept > (FIRST if saved is None else OFTEN)
                    told = self.world.tell([interrupt.asked, late])
                    stop = any(asked for asked, _ in told)
                    if stop or state.step == self.steps or self.no_better(state):
                        break
                    seen = self.stepper.advance(state)
                    ends = (*(self.training.extended or ()), self.steps)
                    evaluated = _due(state.step, self.training.eval_every) or state.step in ends
                    saving = evaluated or _due(state.step, self.training.checkpoint_every) or told[0][1]
                    if saving:
                        seen += self.stepper.settle(state)
                except Fallen as error:  # the state is that of the last finished step
                    if self.device is not HOST:  # the GPU's part may wait for that process
                        raise
                    self.save(state, log)
                    raise Fallen(f"{error}; the state after step {state.step} is saved") from error
                records = list(seen)
                for one in seen:
                    shown = {key: f"{one[key]:.4g}" for key in ("loss", "accuracy") if key in one}
                    bar.set_postfix(shown, refresh=False)
                    bar.update()
                if bar.disable and (left := remaining.after(state.step)):
                    loss = f"training loss {seen[-1]['loss']:.4f}, " if seen else ""
                    self.say(f"step {state.step}/{self.steps}: {loss}about {left} to go")
                if evaluated:
                    found, seconds = timed(lambda: self.evaluate(state))
                    elapsed = round(time.monotonic() - started, 3)
                    records.append({**found, "seconds": seconds, "elapsed": elapsed, "peak_memory": peak_memory()})
                self.add(log, state, records)
                if saving:
                    self.save(state, log)
                    saved, kept = state.step, time.monotonic()
                if evaluated:
                    self.say(
                        f"step {state.step}/{self.steps}: training loss {seen[-1]['loss']:.4f}, "
                        f"validation loss {found['val_loss']:.4f}, {self.metric} {found[f'val_{self.task.metric}']:.4f}"
                    )
            if stop and saved != state.step:
                self.save(state, log)
        if stop:
            where = f"stopped after step {state.step} of {self.steps}, all is saved"
            raise Interrupted(f"{where}; to go on: {self.resuming}")

    @property
    def kept(self) -> str:
        """The files left by a failed run, in words."""
        last = self.run.checkpoint("last")
        return f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"

    @property
    def resuming(self) -> str:
        """The command that continues the run."""
        return f"rotrnn train --resume {self.run.folder}" + " --trust" * bool(self.recipe.modules)

    @property
    def steps(self) -> int:
        return self.training.steps

    def rate(self, step: int) -> float:
        """The learning rate of update number `step` (from 0)."""
        return self.recipe.optimiser.rate("global", step, self.training.total(step))

    @property
    def metric(self) -> str:
        """The task's, in words."""
        return self.task.metric.replace("_", " ")

    def say(self, text: str) -> None:
        if self.progress:
            say(text)

    def no_better(self, state: State) -> bool:
        """Returns whether `training.patience` evaluations brought no improvement. It follows from the state alone, so a
        resumed run ends at the same step."""
        return self.training.patience is not None and state.waited >= self.training.patience

    def save(self, state: State, log: Log | None) -> None:
        """The log up to here is on disk before the checkpoint that counts on it. Without log, another process saves."""
        self.add(log, state, self.stepper.settle(state))
        if log is None:
            return
        try:
            log.sync()
        except OSError as error:
            raise self.without_log(state, [], error) from error
        with blaming(state, state.step, self.group_of):
            self.checkpoints.write("last", state)

    def add(self, log: Log | None, state: State, records: list[dict[str, Any]]) -> None:
        """The records of a step to the log. Without log, another process writes it."""
        if log is None:
            return
        try:
            log.add(records)
        except OSError as error:
            raise self.without_log(state, records, error) from error

    def without_log(self, state: State, records: list[dict[str, Any]], error: OSError) -> OSError:
        """The error when the log cannot be written: the state is saved, with the records that the log lacks."""
        records = [*records, *self.stepper.settle(state)]
        try:
            self.checkpoints.write("last", state, unlogged=records)
            kept = f"the state after step {state.step} is saved, to be resumed"
        except (OSError, ValueError) as second:
            kept = f"nor could the state after step {state.step} be saved: {second}"
        return OSError(error.errno, f"log not written ({error.strerror}); {kept}", str(self.run.log))

    def finish(self, state: State) -> dict[str, Any]:
        """Evaluates the last and the best parameters on the test split, and writes result.json."""
        best = astype(moved(state.params, HOST), self.training.dtype)
        if self.world.first:
            best = self.run.load_params("best", state.params)
        self.world.share(dict(flatten(best)))
        params = {"last": state.params, "best": moved(best, self.device)}
        test = {"last": self.look(params["last"], self.task.test)}
        test["best"] = test["last"] if state.best_step == state.step else self.look(params["best"], self.task.test)
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
            self.run.write(self.run.result, to_json(result, indent=2) + "\n")
        for name, found in test.items():
            self.say(
                f"test, {name:>4} parameters: loss {found['loss']:.4f}, {self.metric} {found[self.task.metric]:.4f}"
            )
        return result

    # ---- an evaluation ----

    def look(self, params: Params, split: Split) -> Found:
        """The results of `evaluate` on a split."""
        how: Any = {key: getattr(self.training, key) for key in ("batch", "dtype", "packed")}
        return evaluate(self.model, params, self.task, split, world=self.world, **how)

    def evaluate(self, state: State) -> dict[str, Any]:
        """Validation of a state; the record of it. Keeps the parameters if they are the best so far.

        Training goes on if the loss is not finite but the parameters are: answers that are NaN count as wrong.
        """
        val = self.task.val
        if self.world.size > 1:
            self.world.agree("the checksum of the state", checksum(state))
        with blaming(state, state.step, self.group_of):
            found = self.look(state.params, val)
            if not math.isfinite(found["loss"]):
                here = f"the validation loss is {found['loss']}"
                check_parameters(f"{here}; parameter", state.params, self.group_of)
                if self.world.first:  # of a fixed point that has diverged, say: training may still find back
                    warn(f"step {state.step}: {here}, every parameter is finite", RuntimeWarning)
            score, first = found[self.task.metric], not state.best_step
            state.waited = 0 if first or score > state.best_score else state.waited + 1
            if first or score >= state.best_score:
                state.best_step, state.best_score = state.step, score
                if self.world.first:
                    self.checkpoints.write("best", state)
        record: dict[str, Any] = {"step": state.step}
        record |= {f"val_{name}": value for name, value in found.items() if name not in COUNTS}
        if self.world.first:
            record["state_norms"] = self.state_norms(state)
        return record

    def state_norms(self, state: State) -> list[float]:
        """The mean norm of each block's state over the first batch of the validation split."""
        val = self.task.val
        index = np.arange(min(self.training.batch, len(val)))
        batch, dt = val.batch(index, self.training.dtype), val.intervals(index)
        ctx = Context(batch.lengths, dt=None if dt is None else self.device.asarray(dt))
        norms = to_host(self.model.state_norms(state.params, self.device.asarray(batch.inputs), ctx))
        return [float(norm) for norm in norms.mean(1)]


FIRST, OFTEN = 120, 300
"""Seconds until the first checkpoint of a start, and between checkpoints, however far the next evaluation is."""


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


FREE = ("training", "memory")
"""The setting that changes no result, so it may change when a run continues."""


def continued(run: Run, recipe: Recipe, resume: bool) -> tuple[Recipe | None, Recipe]:
    """Returns the recipe of the run that goes on, None where a new one begins, and the recipe by which it does.

    A finished run goes on to more `training.steps`, without `resume` too. ValueError if any other setting differs.
    """
    ended = run.result.exists() and run.recipe.is_file()
    there = run.load_recipe() if resume or ended else None
    if there is not None:
        old, new = there.training, recipe.training
        longer = ended and new.steps > old.steps
        if longer or (new.steps == old.steps and new.extended is None):
            ends = there.longer(new.steps).training.extended if longer else old.extended
            recipe = dataclasses.replace(recipe, training=dataclasses.replace(new, extended=ends))
        begun = old.init is not None and new.init not in (None, old.init) and run.checkpoint("init").exists()
        if begun and same_start(run, str(new.init)):
            recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, init=old.init))
        try:
            check_same(there.longer(new.steps) if longer else there, recipe, run)
        except ValueError as error:
            raise ValueError(f"{error}{'' if resume else '; use another folder'}") from error
        if ended and (resume or longer) and not (last := run.checkpoint("last")).exists():
            what = "is missing although the run has ended; expected it there"
            raise ValueError(f"{last}: {what} (without {run.result.name} the run begins anew)")
        if longer:
            _, facts = run.read_last(there)  # an error before anything of the finished run is changed
            run.read("best", there)
            if old.patience is not None and facts["waited"] >= old.patience:
                ended_at = f"ended by training.patience after step {facts['step']}"
                raise ValueError(f"{run.folder}: {ended_at}, and has no more to take")
        if (resume or longer) and (wrong := run.changed_data(recipe.task)) is not None:
            raise ValueError(f"{wrong}; expected that file to go on, or another folder for the new data")
        if resume or longer:
            return there, recipe
    run.check_free()
    return None, recipe


def known_rules(run: Run, recipe: Recipe, among: World, goes_on: bool) -> Rules | None:
    """Returns the rules of own data by which a run goes on, read by the first process, for all; None for other data, a
    new run, and a run from before there were rules."""
    found = find_rules(run.folder) if goes_on else None
    text = among.tell(None if found is None else found.text())[0]
    return None if text is None else made(from_json(text))


def check_same(there: Recipe, recipe: Recipe, run: Run) -> None:
    """Raises ValueError, with the settings that differ, if a run would not follow its recipe."""
    if there.digest() == recipe.digest():
        return
    others = []
    for (section, old), new in zip(there.tables().items(), recipe.tables().values(), strict=True):
        for key in [*old, *(key for key in new if key not in old)]:
            free = section == "source" or (section == "task" and key in HERE) or (section, key) == FREE
            if old.get(key) != new.get(key) and not free:
                got, expected = (repr(table[key]) if key in table else "unset" for table in (new, old))
                others.append(f"{section}.{key} is {got}, expected {expected}")
    if others:
        old_path, path = (getattr(one.task, "path", None) for one in (there, recipe))
        same = old_path != path and (known := run.trained_on()) is not None and data_of(recipe.task) == known
        hint = f"; {path} has the same contents, so a link to it at {old_path} will do" if same else ""
        raise ValueError(f"{run.folder}: {'; '.join(others)} as in the run's recipe, which it keeps{hint}")
    raise ValueError(f"{run.folder}: the task's data are generated here and read from files there, or vice versa")


class _Interrupt:
    """Within the block, the first Ctrl-C, SIGTERM or SIGHUP sets `asked`, and the second raises KeyboardInterrupt.

    SIGHUP, of a terminal that was closed, is left alone if it is ignored, as under nohup.
    """

    asked = False

    def __init__(self, among: World) -> None:
        self.world = among
        self.before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            hangup = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
            numbers = {signal.SIGINT, signal.SIGTERM, hangup}
            if signal.getsignal(hangup) == signal.SIG_IGN:
                numbers.discard(hangup)
            self.before = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if number != signal.SIGINT:
            self.world.hurry()
        if self.world.first:
            with suppress(OSError):  # the terminal may be gone
                os.write(2, b"\nstopping after this step; Ctrl-C again aborts at once\n")
