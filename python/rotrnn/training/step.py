"""A step of training: gradients of a batch in parts, over all processes, and one update of the optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.text import plural
from rotrnn._support.warn import warn
from rotrnn.devices.device import HOST, Device, beside, to_host
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Array, Context, Params, flatten, flatten_state, is_parameter, unflatten, unflatten_state
from rotrnn.nn.layer import State as Carried
from rotrnn.tasks.task import Index, PackedBatch
from rotrnn.training.graph import Recorder
from rotrnn.training.loader import Loader
from rotrnn.training.log import add_report
from rotrnn.training.optimiser import NonFinite, Unusable, check_finite, check_parameters, norms_by_name
from rotrnn.training.parallel import Fallen, World
from rotrnn.training.recipe import Recipe
from rotrnn.training.state import State


@dataclass(frozen=True)
class Stepper:
    """Takes steps, with the data that does not change. `group_of` gives a parameter's group by its name; parameters are
    on `device`, and batches are moved there. `memory` is the memory of each context (`rotrnn.nn.Context`)."""

    recipe: Recipe
    model: SequenceModel
    loader: Loader
    group_of: Callable[[str], str]
    world: World
    device: Device = HOST
    memory: int | None = None
    recorder: Recorder | None = None

    def advance(self, state: State) -> list[dict[str, Any]]:
        """One update in place. Returns the records of the steps that have ended since the last call: this step, or, if
        it was launched as a CUDA graph, earlier steps. `settle` returns the rest."""
        if self.launched(state):
            state.step += 1
            return self.settle(state, 1)
        records, began = self.settle(state), time.monotonic()
        optimiser, steps = self.recipe.optimiser, self.recipe.training.total(state.step)
        try:
            with blaming(state, state.step + 1, self.group_of), _kept(state.params):
                metrics, grads, carried = self.gradients(state)
                size = math.nan
                if grads:
                    size = optimiser.update(state.params, grads, state.moments, self.group_of, state.step, steps)
        except Unusable as error:
            if state.skipped == self.recipe.training.skip:
                after = f", after {plural(state.skipped, 'step')} left out in a row (training.skip)"
                raise Unusable(f"{error}{after * bool(state.skipped)}") from error
            state.skipped += 1
            warn(f"{error}; the step is left out", RuntimeWarning)
            metrics, size = {"loss": math.nan}, math.nan
        else:
            state.carried, state.skipped = carried, 0 if grads else state.skipped
        state.step += 1
        return [*records, self.record(state.step - 1, metrics, size, time.monotonic() - began)]

    def record(self, step: int, metrics: dict[str, Any], size: float, seconds: float) -> dict[str, Any]:
        """The record of the step that followed `step` others; `size` is the norm of its gradients."""
        lr = self.recipe.optimiser.rate("global", step, self.recipe.training.total(step))
        return {**metrics, "step": step + 1, "lr": lr, "grad_norm": size, "seconds": round(seconds, 6)}

    def held(self) -> int:
        """Returns the bytes of a GPU's memory that arrays and graphs of steps have; 0 on the CPU."""
        graphs = [] if self.recorder is None else self.recorder.steps.values()
        return self.device.held() + sum(one.graph.held() for one in graphs)

    def launched(self, state: State) -> bool:
        """Launches a step as one CUDA graph. Returns False where there is no recorder, or it cannot take this step."""
        if self.recorder is None:
            return False
        one, *others = self.loader.parts(state.step)
        return not others and one.dt is None and self.recorder.launch(state, one.batch, one.places, one.weights)

    def settle(self, state: State, but: int = 0) -> list[dict[str, Any]]:
        """Waits for all launched steps but so many, and returns their records.

        If one of them failed, `state.step` is put back to the last that did not. Where numbers were not finite the
        steps that were launched after it have left the state as it was.
        """
        records: list[dict[str, Any]] = []
        recorder = self.recorder
        if not but and recorder is not None and recorder.launched:
            self.world.tell(None)  # every process has launched its part
        while recorder is not None and len(recorder.launched) > but:
            one, now = recorder.launched.popleft(), state.step
            state.step = one.step
            try:
                with blaming(state, one.step + 1, self.group_of):
                    found = recorder.read(one)
                    self.check(state, found)
            except BaseException:
                recorder.launched.clear()
                raise
            state.step = now
            metrics = scores(found["loss"], found["right"] / one.labels)
            metrics |= {"layers": one.layers} if one.layers else {}
            records.append(self.record(one.step, metrics, found["grad_norm"], found["seconds"]))
        return records

    def check(self, state: State, found: dict[str, float]) -> None:
        """Raises NonFinite, with the cause, if a recorded step found or left numbers that are not finite."""
        if not math.isfinite(found["loss"]) or not math.isfinite(found["grad_norm"]):
            self.gradients(state)
            raise NonFinite(f"the loss is {found['loss']} and the norm of the gradients {found['grad_norm']}")
        if not math.isfinite(found["updated"]):
            check_parameters("parameter", state.params, self.group_of)
            raise NonFinite("a second moment of the optimiser is not finite")

    def gradients(self, state: State) -> tuple[dict[str, Any], Params, Carried]:
        """Loss, accuracy, what layers report, and gradients of one batch: means over its parts, weighted by labels; and
        the state to carry on, through which no gradient goes.

        Each part has its own dropout: the key counts parts. A batch in which no label counts has no gradients.
        """
        training = self.recipe.training
        parts = self.loader.parts(state.step)
        pack = training.packed
        batches = [
            one.batch.packed(self.model.stepwise, one.dt) if pack else PackedBatch(*one.batch, dt=one.dt)
            for one in parts
        ]
        counts = [self.model.count(batch.labels, batch.lengths) for batch in batches]
        every = np.array(self.world.tell(counts)).sum(0)  # of each part, whichever process has them
        labels = int(every.sum())
        total: dict[str, Array] = {}
        own_loss = own_right = 0.0
        own_reports: dict[str, float] = {}
        after = []
        for k, (part, batch, count) in enumerate(zip(parts, batches, counts, strict=True)):
            if not every[k] and part.new is None:
                continue
            ctx = Context(
                batch.lengths,
                train=True,
                seed=training.seed,
                step=state.step * training.accumulate + k,
                places=part.places if batch.cu_seqlens is None else None,
                gather=self.world.gather if self.world.size > 1 else None,
                memory=self.memory,
                cu_seqlens=batch.cu_seqlens,
                dt=None if batch.dt is None else self.device.asarray(batch.dt),
            )
            before = () if part.new is None else (begun(state.carried, part.rows, part.new),)
            logits, saved = self.model.forward(state.params, self.device.asarray(batch.inputs), ctx, *before)
            if before:
                after.append(saved.blocks.state)
            dlogits, share = np.zeros_like(logits), count / max(labels, 1)
            if count:
                weights = None if part.weights is None else self.device.asarray(part.weights)
                found = self.model.loss(logits, self.device.asarray(batch.labels), batch.lengths, weights)
                dlogits = found.dlogits * logits.dtype.type(share)
                own_loss += found.mean * count
                own_right += math.nan if found.right is None else int(np.count_nonzero(found.right))
            add_report(own_reports, self.model.report(saved), share)
            for name, grad in flatten(self.model.backward(state.params, saved, dlogits, ctx.gather)):
                total[name] = total[name] + grad if name in total else grad
        if not labels:
            return {"loss": math.nan}, {}, self.joined(state.carried, after)
        total = self.world.total(total)
        loss = right = 0.0
        reports: dict[str, float] = {}
        for one, two, layers in self.world.tell([own_loss, own_right, own_reports]):
            loss, right = loss + one, right + two
            add_report(reports, layers)
        if not math.isfinite(loss):
            check_parameters(f"the loss is {loss}; parameter", state.params, self.group_of)
            norms = norms_by_name(dict(reversed(total.items())))
            fine = f"the loss is {loss}, every parameter is finite"
            check_finite(f"{fine}; going backward, gradient", norms, self.group_of, Unusable)
            raise Unusable(f"the loss is {loss}, every parameter and gradient is finite")
        metrics = scores(loss / labels, right / labels)
        return metrics | ({"layers": reports} if reports else {}), unflatten(total), self.joined(state.carried, after)

    def joined(self, carried: Carried, parts: list[Carried]) -> Carried:
        """Returns the state of the whole batch from this process's share of each part; the leaves of `carried` say the
        dtypes. Between processes it goes by the host: shares may differ in size, and NCCL has no complex numbers."""
        flat = [dict(flatten_state(part)) for part in parts]
        whole = {}
        for name, leaf in flatten_state(carried):
            shares = [part[name].astype(leaf.dtype, copy=False) for part in flat]
            if self.world.size > 1 and leaf.size:
                every = [one for share in shares for one in self.world.gather(to_host(share))]
                shares = [self.device.asarray(np.concatenate(every))]
            whole[name] = np.concatenate(shares) if leaf.size else leaf
        return unflatten_state(whole)


def scores(loss: float, accuracy: float) -> dict[str, Any]:
    """Returns the record's numbers of a batch; for a regression accuracy is NaN."""
    return {"loss": loss} if math.isnan(accuracy) else {"loss": loss, "accuracy": accuracy}


def begun(carried: Carried, rows: Index, new: npt.NDArray[np.bool_]) -> Carried:
    """Returns the state of these rows, zeroed for rows that begin anew."""

    def leaf(one: Array) -> Array:
        own = one[beside(rows, one)]
        own[beside(new, one)] = 0
        return own

    return unflatten_state({name: leaf(one) for name, one in flatten_state(carried)})


@contextmanager
def blaming(state: State, step: int, group_of: Callable[[str], str]) -> Iterator[None]:
    """Names the step in what is raised as NonFinite, and the parameter if a layer or a file refused one. A ValueError
    before the first update is of data and layer that do not fit."""
    try:
        try:
            yield
        except ValueError as error:
            check_parameters("parameter", state.params, group_of)
            if not state.step:
                raise
            raise NonFinite(str(error)) from error
    except NonFinite as error:
        raise type(error)(f"step {step}: {error}") from error


@contextmanager
def _kept(params: Params) -> Iterator[None]:
    """Restores buffers, which forward updates, if another process fails within the block, or the step is unusable."""
    buffers = [(array, array.copy()) for name, array in flatten(params) if not is_parameter(name)]
    try:
        yield
    except (Fallen, Unusable):
        for array, before in buffers:
            array[...] = before
        raise
