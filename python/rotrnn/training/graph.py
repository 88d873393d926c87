"""A step of training on a GPU as one CUDA graph: forward, loss, backward, norm of the gradients and update.

Parameters, gradients and moments lie in one vector each, group after group, which the optimiser updates by one kernel.
Inputs that change from step to step (the batch, its lengths, learning rates, the step's number) are copied to arrays of
the graph before it runs, and loss, accuracy and norms come back as one small array (transfer.py). The host reads them
when it has launched the next step, so the GPU never waits for it. If the loss, the gradients or updated numbers are not
finite, further steps change nothing until the host has seen it.

There is a graph for each shape of a batch; ragged ones are padded to a few lengths. A model that iterates to a fixed
point has several: the host checks the progress of the iteration, and repeats the graph of a few iterations. A step that
waits for numbers elsewhere is not recorded, and runs operation by operation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn._support.warn import warn
from rotrnn.devices.cuda import Recorded
from rotrnn.devices.device import Device
from rotrnn.devices.recording import NotRecordable, RecordedLengths
from rotrnn.models.model import IGNORED, SequenceModel
from rotrnn.nn.layer import Array, Context, Params, flatten, is_parameter, unflatten
from rotrnn.ops import optim
from rotrnn.ops.pointwise import count_steps
from rotrnn.tasks import Batch
from rotrnn.training.log import add_report
from rotrnn.training.optimiser import AdamW, GroupOf
from rotrnn.training.parallel import ALONE, World
from rotrnn.training.recipe import Recipe
from rotrnn.training.state import State
from rotrnn.training.transfer import Feed, Results

MOST_SHAPES = 8
"""Most shapes of batches with their own graph, which keeps its memory; others run operation by operation."""

METRICS = ("loss", "right", "grad_norm")
"""Results of a step, before two norms for each group: of its parameters and of their second moments."""


@dataclass
class Vectors:
    """All parameters, their moments and gradients, in vectors (n,) of one dtype. Groups lie one after another."""

    parts: dict[str, slice]
    groups: list[str]
    ends: Array
    params: Array
    moments: tuple[Array, Array]
    grads: Array


def vectors_of(state: State, group_of: GroupOf, device: Device) -> Vectors:
    """Moves the parameters and moments of a state to vectors; the state's arrays become views of these."""
    flat = dict(flatten(state.params))
    groups: dict[str, list[str]] = {}
    for name in filter(is_parameter, flat):
        groups.setdefault(group_of(name), []).append(name)
    parts: dict[str, slice] = {}
    at, ends = 0, []
    for members in groups.values():
        for name in members:
            parts[name] = slice(at, at + flat[name].size)
            at += optim.part_size(flat[name].size)
        ends.append(at)
    dtype = flat[next(iter(parts))].dtype  # training.dtype
    p, m, v, g = (device.empty((at,), dtype) for _ in range(4))
    for vector in (p, m, v, g):
        vector[...] = 0  # between the arrays, too: AdamW leaves zeros as they are
    for name, part in parts.items():
        for vector, store, key in ((p, flat, name), (m, state.moments, f"m.{name}"), (v, state.moments, f"v.{name}")):
            view = vector[part].reshape(store[key].shape)
            view[...] = store[key]
            store[key] = view
    state.params = unflatten(flat)
    return Vectors(parts, list(groups), device.asarray(np.array(ends)), p, (m, v), g)


class Work:
    """The computation of a step on a device: forward, loss, backward and update, with metrics in one small array."""

    def __init__(
        self,
        recipe: Recipe,
        model: SequenceModel,
        group_of: GroupOf,
        device: Device,
        state: State,
        world: World = ALONE,
        memory: int | None = None,
    ) -> None:
        self.recipe, self.model, self.world, self.memory = recipe, model, world, memory
        self.vectors = vectors_of(state, group_of, device)
        self.metrics = device.asarray(np.zeros(len(METRICS) + 2 * len(self.vectors.groups)))

    def inputs(
        self, batch: Batch, step: int, share: float, weights: npt.NDArray[np.float64] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Returns the inputs of `run` that change from step to step; this process has a `share` of all labels."""
        values = {"inputs": np.asarray(batch.inputs), "labels": np.asarray(batch.labels)}
        if batch.lengths is not None:
            values["lengths"] = np.asarray(batch.lengths, np.int64)
        if weights is not None:
            values["weights"] = weights
        return values | {"step": np.array([step]), "rules": self.rules(step), "share": np.array([share])}

    def rules(self, step: int) -> npt.NDArray[np.float64]:
        """Returns AdamW's numbers at a step, for each group: rate, corrections of the moments, and decay."""
        optimiser, steps = self.recipe.optimiser, self.recipe.training.total(step)
        assert isinstance(optimiser, AdamW)  # the loop records no other
        beta1, beta2 = optimiser.betas
        corrections = [1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1)]
        groups = self.vectors.groups
        return np.array([[optimiser.rate(one, step, steps), *corrections, optimiser.decay(one)] for one in groups])

    def context(self, inputs: dict[str, Array], places: npt.NDArray[np.int64]) -> Context:
        """Returns the context of `run` for inputs on the device."""
        T = inputs["inputs"].shape[self.model.time_axis]
        lengths: Any = RecordedLengths(inputs["lengths"], T) if "lengths" in inputs else None
        gather = self.world.gather if self.world.size > 1 else None
        seed = self.recipe.training.seed
        return Context(lengths, train=True, seed=seed, places=places, gather=gather, memory=self.memory)

    def run(self, params: Params, inputs: dict[str, Array], ctx: Context) -> Any:
        """Takes a step, and writes its metrics. Returns forward's `saved`."""
        logits, saved = self.model.forward(params, inputs["inputs"], ctx)
        found = self.model.loss(logits, inputs["labels"], ctx.lengths, inputs.get("weights"))
        dlogits, loss = found.dlogits, found.mean
        if self.world.size > 1:  # a mean over the labels of all processes
            dlogits, loss = dlogits * inputs["share"].astype(dlogits.dtype), loss * inputs["share"][0]
        grads = dict(flatten(self.model.backward(params, saved, dlogits, ctx.gather)))
        for name in self.vectors.parts:
            if name not in grads:
                raise NotRecordable(f"{name} has no gradient")
        optim.place_parts(self.vectors.grads, [grads[name] for name in self.vectors.parts])
        self.metrics[0], self.metrics[1] = loss, np.nan if found.right is None else found.right.sum()
        if self.world.size > 1:
            self.world.add(self.vectors.grads)
            self.world.add(self.metrics[:2])
        self._update(inputs["rules"])
        return saved

    def _update(self, rules: Array) -> None:
        """The optimiser's, of all parameters; writes the norms among the metrics."""
        by, of = self.recipe.optimiser, self.vectors
        assert isinstance(by, AdamW)
        optim.adamw_groups(
            self.metrics[2:], of.params, *of.moments, of.grads, of.ends, rules, self.metrics[:1],
            beta1=by.betas[0], beta2=by.betas[1], eps=by.eps, clip=by.clip,
        )  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """A launched step: its number from 0, the number of labels, the time, the number of its results, and the layers'
    reports."""

    step: int
    labels: int
    began: float
    results: int
    layers: dict[str, float]


@dataclass
class Step:
    """The step for batches of one shape: its graph, the inputs, and forward's `saved` from the recording, whose reports
    belong to the step launched last."""

    feed: Feed
    saved: Any = None
    graph: Recorded = field(init=False)


class Recorder:
    """Takes steps of `work` by graphs, on a stream of their own. `launched` are those not yet read."""

    def __init__(self, work: Work) -> None:
        import cupy

        self.work, self.model, self.world = work, work.model, work.world
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.results = Results(work.metrics, self.stream)
        self.steps: dict[Any, Step] = {}
        self.recordable = work.recipe.training.accumulate == 1
        self.launched: deque[Launched] = deque()
        self.ended = 0.0  # when a step was last found to have ended

    def launch(
        self, state: State, batch: Batch, places: npt.NDArray[np.int64], weights: npt.NDArray[np.float64] | None = None
    ) -> bool:
        """Launches a step, and does not wait for it. Returns False, with nothing done, if it cannot be recorded."""
        import cupy

        if not self.recordable:
            return False
        began = time.monotonic()
        labels, steps = self.model.count(batch.labels, batch.lengths), count_steps(batch.inputs.shape, batch.lengths)
        told = self.world.tell([labels, steps, batch.inputs.shape[self.model.time_axis], batch.lengths is not None])
        if not all(one[0] and one[1] for one in told):
            return False  # no other process to tell
        every = sum(one[0] for one in told)
        batch = padded(batch, self.model.time_axis, self.model.stepwise, [(T, ragged) for *_, T, ragged in told])
        key = (batch.inputs.shape, batch.labels.shape, batch.lengths is None)
        if key not in self.steps and len(self.steps) == MOST_SHAPES:
            return False
        values = self.work.inputs(batch, state.step, labels / every, weights)
        if key in self.steps:
            self.steps[key].feed.send(values)
        else:
            reason = ""
            try:
                self.steps[key] = self.record(state, values, places)
            except (NotRecordable, MemoryError) as error:
                reason = str(error)
            if reasons := [one for one in self.world.tell(reason) if one]:
                self.stream.synchronize()
                self.recordable = False
                self.steps.clear()  # and their memory
                warn(f"steps run operation by operation, not as one CUDA graph: {reasons[0]}")
                return False
        self.stream.wait_event(cupy.cuda.get_current_stream().record())  # parameters may have been written there
        self.steps[key].graph.launch(state.step)
        layers = self.reports(self.steps[key].saved, labels / every)
        self.launched.append(Launched(state.step, every, began, self.results.take(), layers))
        return True

    def close(self) -> None:
        """Drops the graphs; further steps are not launched. Waits for nothing, so that it can be called when the GPU
        has failed. NCCL ends only when no graph is left in which it has a part."""
        self.recordable = False
        for step in self.steps.values():
            step.graph.close()

    def reports(self, saved: Any, share: float) -> dict[str, float]:
        """Returns the layers' reports of a step, of which this process has a `share` of all labels."""
        total: dict[str, float] = {}
        for part, one in self.world.tell([share, self.model.report(saved)]):
            add_report(total, one, part)
        return total

    def read(self, step: Launched) -> dict[str, float]:
        """Returns the metrics of a launched step, for which the GPU is waited for, and the seconds that it took."""
        found = self.results.read(step.results).tolist()
        began, self.ended = max(step.began, self.ended), time.monotonic()
        metrics = dict(zip(METRICS, found, strict=False)) | {"updated": float(np.sum(found[len(METRICS) :]))}
        return metrics | {"seconds": self.ended - began}

    def record(self, state: State, values: dict[str, npt.NDArray[Any]], places: npt.NDArray[np.int64]) -> Step:
        """Records a step for batches of this shape. The steps that are taken to record it are taken back."""
        self.stream.synchronize()
        one, work = Step(Feed(values, self.stream)), self.work
        arrays = [*dict(flatten(state.params)).values(), *state.moments.values(), work.metrics]
        before = [array.copy() for array in arrays]
        inputs = one.feed.arrays
        ctx = work.context(inputs, places)

        def run() -> Array:
            one.saved = None  # otherwise the memory of the earlier run is kept as well
            one.saved = work.run(state.params, inputs, ctx)
            return work.metrics

        try:
            one.graph = Recorded(run, inputs["step"], self.stream)
        finally:
            for array, kept in zip(arrays, before, strict=True):
                array[...] = kept
        return one


def padded(batch: Batch, time: int, stepwise: bool, shares: Sequence[tuple[int, bool]]) -> Batch:
    """Returns a ragged batch, whose inputs have time on axis `time`, with padding up to the next of few lengths: a
    power of two, or 5, 6 or 7 eighths of one. Inputs there are zero, and labels, if they are `stepwise`, do not count.

    `shares` are the steps of each process's share, and whether it has lengths. If one has, or steps differ, all are
    padded, to the same length: all processes take the step by graphs of the same shape, and record them together.
    """
    T, own = max(steps for steps, _ in shares), batch.inputs.shape[time]
    if not any(ragged or steps < T for steps, ragged in shares):
        return batch
    eighth = max(1 << max(T - 1, 1).bit_length() >> 3, 1)
    more = T + -T % eighth - own

    def longer(array: Array, axis: int, value: int) -> Array:
        return np.pad(array, [(0, more * (axis == one)) for one in range(array.ndim)], constant_values=value)

    labels = longer(batch.labels, 1, IGNORED) if stepwise else batch.labels
    lengths = np.full(batch.inputs.shape[:time], own) if batch.lengths is None else batch.lengths
    return Batch(longer(batch.inputs, time, 0), labels, lengths)
