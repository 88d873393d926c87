"""A step of training on a GPU as one CUDA graph: forward, loss, backward, norm of the gradients and update.

Parameters, gradients and moments lie in one vector for each parameter group, so that the optimiser is one launch a
group. What changes from step to step (the batch, its lengths, learning rates, the step's number) is copied to arrays of
the graph before it runs; loss, accuracy and norms come back as one small array. If the gradients are not finite, the
update leaves everything as it is.

There is a graph for each shape of a batch; ragged ones are padded to a few lengths. A model that iterates to a fixed
point has several: the host looks how far the iteration is, and repeats the graph of a few iterations. A step that waits
for numbers in another place is not recorded, and runs operation by operation.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.cuda import Recorded
from rotrnn.models.model import IGNORED, SequenceModel
from rotrnn.nn.layer import Array, Context, Params, flatten, is_parameter, unflatten
from rotrnn.ops import optim
from rotrnn.ops.device import Device
from rotrnn.ops.recording import NotRecordable, RecordedLengths
from rotrnn.tasks import Batch
from rotrnn.training.optimiser import AdamW, GroupOf
from rotrnn.training.recipe import Recipe
from rotrnn.training.state import State

MOST_SHAPES = 8
"""Shapes of batches that have a graph of their own, and keep its memory; others run operation by operation."""

ALIGNED = 64
"""Arrays begin at multiples of this many numbers in their vector, as matrix products like them best."""

METRICS = ("loss", "right", "grad_norm")
"""What a step returns, before two norms for each group: of its parameters and of their second moments."""


@dataclass
class Group:
    """The vectors of a parameter group."""

    name: str
    parts: list[tuple[str, slice]]
    params: Array
    moments: tuple[Array, Array]
    grads: Array


def grouped(state: State, group_of: GroupOf, device: Device) -> list[Group]:
    """Moves the parameters and moments of a state to vectors, of which its arrays are then views."""
    arrays = {name: array for name, array in flatten(state.params) if is_parameter(name)}
    names: dict[str, list[str]] = {}
    for name in arrays:
        names.setdefault(group_of(name), []).append(name)
    groups, flat = [], dict(flatten(state.params))
    for group, members in names.items():
        parts, at = [], 0
        for name in members:
            parts.append((name, slice(at, at + arrays[name].size)))
            at += -(-arrays[name].size // ALIGNED) * ALIGNED
        vectors = [device.empty((at,), arrays[members[0]].dtype) for _ in range(4)]
        for vector in vectors:
            vector[...] = 0  # between the arrays, too: AdamW leaves zeros as they are
        for name, part in parts:
            for vector, store, key in zip(
                vectors, (flat, state.moments, state.moments), (name, f"m.{name}", f"v.{name}"), strict=False
            ):
                view = vector[part].reshape(arrays[name].shape)
                view[...] = store[key]
                store[key] = view
        p, m, v, g = vectors
        groups.append(Group(group, parts, p, (m, v), g))
    state.params = unflatten(flat)
    return groups


class Inputs:
    """What changes from step to step: the arrays that a graph reads, and what layers report."""

    def __init__(self, batch: Batch, groups: int, device: Device) -> None:
        inputs, labels = np.asarray(batch.inputs), np.asarray(batch.labels)
        self.inputs, self.labels = device.asarray(inputs), device.asarray(labels)
        self.lengths = None if batch.lengths is None else device.asarray(np.asarray(batch.lengths, np.int64))
        self.step = device.asarray(np.zeros(1, np.int64))
        self.rules = device.asarray(np.ones((groups, 4)))
        self.saved: Any = None
        """What forward saved when it was recorded: its reports are of the step that was taken last."""


class Recorder:
    """Takes the steps of a state by graphs."""

    def __init__(self, recipe: Recipe, model: SequenceModel, group_of: GroupOf, device: Device, state: State) -> None:
        self.recipe, self.model, self.device = recipe, model, device
        self.groups = grouped(state, group_of, device)
        self.graphs: dict[Any, tuple[Recorded, Inputs]] = {}
        self.recordable = recipe.training.accumulate == 1

    def advance(self, state: State, batch: Batch, places: npt.NDArray[np.int64]) -> dict[str, Any] | None:
        """Takes a step. Returns its metrics, with what layers report as "layers"; or None, with nothing done, if it
        cannot be recorded."""
        batch = padded(batch, self.model.time_axis)
        key = (batch.inputs.shape, batch.labels.shape, batch.lengths is None)
        if not self.recordable or (key not in self.graphs and len(self.graphs) == MOST_SHAPES):
            return None
        if key not in self.graphs:
            try:
                self.graphs[key] = self.record(state, batch, places)
            except NotRecordable as error:
                self.recordable = False
                warnings.warn(f"steps run operation by operation, not as one CUDA graph: {error}", stacklevel=2)
                return None
        graph, inputs = self.graphs[key]
        values: list[tuple[Array, Any]] = [(inputs.inputs, batch.inputs), (inputs.labels, batch.labels)]
        values += [(inputs.lengths, batch.lengths)] if inputs.lengths is not None else []
        values += [(inputs.step, np.array([state.step])), (inputs.rules, self.rules(state.step))]
        found = graph.repeat(*values).tolist()
        metrics: dict[str, Any] = dict(zip(METRICS, found, strict=False))
        return metrics | {"updated": float(np.sum(found[len(METRICS) :])), "layers": self.model.report(inputs.saved)}

    def rules(self, step: int) -> npt.NDArray[np.float64]:
        """Returns what AdamW needs at a step, for each group: rate and corrections of the moments (and a scale)."""
        optimiser, steps = self.recipe.optimiser, self.recipe.training.steps
        beta1, beta2 = optimiser.betas
        corrections = [1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1), 1.0]
        return np.array([[optimiser.rate(group.name, step, steps), *corrections] for group in self.groups])

    def record(self, state: State, batch: Batch, places: npt.NDArray[np.int64]) -> tuple[Recorded, Inputs]:
        """Records a step for batches of this shape. The steps that are taken to record it are taken back."""
        inputs = Inputs(batch, len(self.groups), self.device)
        arrays = [*dict(flatten(state.params)).values(), *state.moments.values()]
        before = [array.copy() for array in arrays]
        T = batch.inputs.shape[self.model.time_axis]
        lengths: Any = None if inputs.lengths is None else RecordedLengths(inputs.lengths, T)
        ctx = Context(lengths, train=True, seed=self.recipe.training.seed, places=places)
        try:
            return Recorded(lambda: self.step(state.params, inputs, ctx), inputs.step), inputs
        finally:
            for array, one in zip(arrays, before, strict=True):
                array[...] = one

    def step(self, params: Params, inputs: Inputs, ctx: Context) -> Array:
        """The work of a step; returns its metrics."""
        logits, inputs.saved = self.model.forward(params, inputs.inputs, ctx)
        found = self.model.loss(logits, inputs.labels, ctx.lengths)
        grads = dict(flatten(self.model.backward(params, inputs.saved, found.dlogits, None)))
        room = self.device.empty((len(METRICS) + 2 * len(self.groups),), np.dtype(np.float64))
        norms = self.device.empty((len(self.groups),), np.dtype(np.float64))
        for k, group in enumerate(self.groups):
            for name, part in group.parts:
                if name not in grads:
                    raise NotRecordable(f"{name} has no gradient")
                group.grads[part] = grads[name].reshape(-1)
            optim.norm_into(norms[k : k + 1], group.grads)
        size: Any = np.sqrt((norms * norms).sum())
        clip = self.recipe.optimiser.clip
        # not finite where the norm is not: then AdamW leaves everything as it is
        scale = (np.minimum(clip / np.maximum(size, clip), 1.0) if clip else 1.0) + 0.0 * size
        room[0], room[1], room[2] = found.mean, found.right.sum(), size
        for k, group in enumerate(self.groups):
            rule = inputs.rules[k].copy()
            rule[3] = scale
            at = len(METRICS) + 2 * k
            self.update(self.recipe.optimiser, group, rule, room[at : at + 2])
        return room

    def update(self, optimiser: AdamW, group: Group, rule: Array, norms: Array) -> None:
        m, v = group.moments
        optim.adamw_into(
            norms, group.params, m, v, group.grads, lr=0.0, step=1, beta1=optimiser.betas[0], beta2=optimiser.betas[1],
            eps=optimiser.eps, decay=optimiser.decay(group.name), scale=1.0, now=rule,
        )  # fmt: skip


def padded(batch: Batch, time: int = 1) -> Batch:
    """Returns a ragged batch, whose inputs have time on axis `time`, with padding up to the next of few lengths: a power
    of two, or 5, 6 or 7 eighths of one. Inputs there are zero, and labels of steps do not count."""
    if batch.lengths is None:
        return batch
    T = batch.inputs.shape[time]
    eighth = max(1 << max(T - 1, 1).bit_length() >> 3, 1)
    more = -T % eighth

    def longer(array: Array, axis: int, value: int) -> Array:
        return np.pad(array, [(0, more * (axis == one)) for one in range(array.ndim)], constant_values=value)

    labels = batch.labels if batch.labels.ndim == 1 else longer(batch.labels, 1, IGNORED)
    return batch._replace(inputs=longer(batch.inputs, time, 0), labels=labels)
