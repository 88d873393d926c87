"""Loss and accuracies over a whole split and by length, and confusion matrices."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import device_of, to_host
from rotrnn.models.model import IGNORED, Loss, SequenceModel
from rotrnn.nn.layer import Array, Context, Params, flatten
from rotrnn.tasks import Batch, Split, Task
from rotrnn.tasks.task import PackedBatch
from rotrnn.training.parallel import ALONE, World

Found = dict[str, Any]
"""Results of an evaluation, as JSON values; see `Tally.found`."""
LARGEST = sys.float_info.max
COUNTS = ("n", "scaled_above", "curve")
"""Results that are not scores."""


def scaled(accuracy: float, chance: float) -> float:
    """Returns an accuracy on the scale where guessing is 0 and 1 stays 1."""
    return (accuracy - chance) / (1 - chance)


@dataclass
class Tally:
    """Sums over sequences. The sums over the parts of a split add up to those over the whole split. `metric`, `curve`,
    `bos`, `chance` and `scaled_above` are the task's."""

    metric: str = "accuracy"

    curve: str | None = None
    bos: bool = False
    chance: float | None = None
    scaled_above: int | None = None
    loss: float = 0.0
    reference: float = 0.0
    right: float = 0
    labels: float = 0
    right_sequences: float = 0
    sequences: int = 0
    by_length: dict[int, Counter[str]] = field(default_factory=dict)

    def add(self, found: Loss, lengths: npt.NDArray[np.int64], weights: npt.NDArray[np.float64] | None = None) -> None:
        """Adds the results of a batch; `lengths` (B,) are the lengths for a curve over "length". Accuracies are by the
        `weights` (B,) of sequences if given, as the loss is; curves count each sequence the same."""
        self.loss += found.mean * found.total
        if found.right is None:
            self.reference += found.reference * found.total
            self.labels += found.total
            self.sequences += len(found.counted)
            return
        # numbers per step, (B, T): a step with bits has several labels
        counted, right = (array.reshape(*array.shape[:2], -1).sum(2) for array in (found.counted, found.right))
        labels, rights = counted.sum(1), right.sum(1)
        whole = rights == labels
        share = np.ones(len(right), int) if weights is None else weights
        self.right += (share @ rights).item()
        self.labels += (share @ labels).item()
        self.right_sequences += (share @ whole).item()
        self.sequences += len(right)
        if self.curve == "length":
            for length in np.unique(lengths).tolist():
                one = lengths == length
                self._at(length, one.sum(), labels[one].sum(), rights[one].sum(), whole[one].sum())
        elif self.curve == "prefix":
            so_far = np.logical_and.accumulate(right == counted, axis=1)
            for t in range(self.bos, right.shape[1]):  # the answer at BOS does not count
                one = counted[:, t] > 0
                self._at(t + (not self.bos), one.sum(), counted[:, t].sum(), right[:, t].sum(), so_far[one, t].sum())

    def _at(self, length: int, n: int, labels: int, right: int, right_sequences: int) -> None:
        one = self.by_length.setdefault(length, Counter())
        one.update(n=int(n), labels=int(labels), right=int(right), right_sequences=int(right_sequences))

    def sums(self) -> list[Any]:
        """Returns all sums as JSON values."""
        by_length = [[length, dict(one)] for length, one in self.by_length.items()]
        return [self.loss, self.reference, self.right, self.labels, self.right_sequences, self.sequences, by_length]

    def add_sums(self, sums: list[Any]) -> None:
        """Adds the `sums` of another part."""
        loss, reference, right, labels, right_sequences, sequences, by_length = sums
        self.loss += loss
        self.reference += reference
        self.right += right
        self.labels += labels
        self.right_sequences += right_sequences
        self.sequences += sequences
        for length, one in by_length:
            self._at(length, **one)

    def found(self) -> Found:
        """Returns "loss" (nats per label), "accuracy" of labels, "sequence_accuracy" and the number "n" of sequences;
        with a chance also "scaled_accuracy", of the sequences longer than "scaled_above" if that is set and there are
        any; with a curve also "curve", the lists "length", "n", "accuracy" and "sequence_accuracy".

        For a regression, "loss" (per target), "skill" and "n": the skill is 1 - loss / (loss of predicting zero
        for every target), at most 1, and the lowest number if the loss is not finite. If every target is zero, it is 0,
        or 1 without a loss.
        """
        if self.metric == "skill":
            loss = self.loss / self.labels
            skill = 1 - self.loss / self.reference if self.reference else float(not self.loss)
            skill = skill if math.isfinite(loss) else -LARGEST
            return {"loss": loss, "skill": max(skill, -LARGEST), "n": self.sequences}
        found: Found = {
            "loss": self.loss / self.labels,
            "accuracy": self.right / self.labels,
            "sequence_accuracy": self.right_sequences / self.sequences,
            "n": self.sequences,
        }
        if self.chance is not None:
            right, labels = self.right, self.labels
            if self.scaled_above is not None:
                longer = [one for length, one in self.by_length.items() if length > self.scaled_above]
                right, labels = (sum(one[key] for one in longer) for key in ("right", "labels"))
                found["scaled_above"] = self.scaled_above
            if labels:
                found["scaled_accuracy"] = scaled(right / labels, self.chance)
        if self.curve is not None:
            rows = [(length, one) for length, one in sorted(self.by_length.items()) if one["n"]]
            found["curve"] = {
                "length": [length for length, _ in rows],
                "n": [one["n"] for _, one in rows],
                "accuracy": [one["right"] / one["labels"] if one["labels"] else 0.0 for _, one in rows],
                "sequence_accuracy": [one["right_sequences"] / one["n"] for _, one in rows],
            }
        return found


def evaluate(
    model: SequenceModel,
    params: Params,
    task: Task,
    split: Split,
    *,
    batch: int,
    dtype: npt.DTypeLike,
    world: World = ALONE,
    packed: bool = False,
) -> Found:
    """Returns loss and accuracies, or the skill, over a whole split of a task, in evaluation mode, `batch` sequences at
    a time, ragged ones as one `packed` row or with padding.

    With several processes, each evaluates some of the batches, and all return the results of the whole split.
    ValueError if no label of the split counts.
    """
    of_task = task.metric, task.curve, task.bos, task.chance, task.scaled_above
    tally = Tally(*of_task)
    for index in islice(chunks(len(split), batch), world.rank, None, world.size):
        one = split.batch(index, dtype)
        logits = logits_of(model, params, one, packed, split.intervals(index))
        weights, none = split.weights(index), np.zeros(one.labels.shape, bool)
        found = Loss(0.0, logits, none, None if task.is_regression else none, 0.0)  # of a batch without labels
        if model.count(one.labels, one.lengths):
            found = model.loss(logits, one.labels, one.lengths, weights)
        tally.add(found, split.curve_lengths(index, one), weights)
    whole = Tally(*of_task)
    for sums in world.tell(tally.sums()):
        whole.add_sums(sums)
    if not whole.labels:
        raise ValueError(f"evaluate: none of {len(split)} sequences has a label that counts, expected one that has")
    return whole.found()


def confusion(
    model: SequenceModel, params: Params, task: Task, split: Split, *, batch: int, dtype: npt.DTypeLike
) -> npt.NDArray[np.int64]:
    """Returns the confusion matrix (C, C) of a whole split: entry (i, j) counts labels of class i answered by j.

    Only labels that count are included. Bits have the two classes 0 and 1. A label whose answer is NaN is in no column.
    ValueError for a regression.
    """
    if task.is_regression:
        raise ValueError(f"confusion: {task.name} is a regression, expected a task with classes")
    counts = np.zeros((task.n_values, task.n_values), np.int64)
    for index in chunks(len(split), batch):
        one = split.batch(index, dtype)
        if not model.count(one.labels, one.lengths):
            continue
        logits = logits_of(model, params, one, dt=split.intervals(index))
        counted = model.loss(logits, one.labels, one.lengths, None).counted
        labels, answers = (array.reshape(counted.shape)[counted] for array in (one.labels, model.answers(logits)))
        answered = answers != IGNORED
        np.add.at(counts, (labels[answered], answers[answered]), 1)
    return counts


def inference_gap(model: SequenceModel, params: Params, inputs: Array) -> Array:
    """Returns the difference (T,) between the outputs of parallel and of sequential (stepwise) inference at each step.

    It is the maximum over sequences and channels of the last block's outputs, divided by the largest output of all
    steps ("Fixed-Point RNNs", Fig. 5, with steps instead of lengths, which is equivalent because a step depends only on
    previous steps). `inputs` are sequences without padding; the layers must run forward only.
    """
    x, _ = model.encoder.forward(params["encoder"], inputs)
    y, _ = model.stack.forward(params["blocks"], x)
    prepared, state, gap = model.stack.prepare(params["blocks"]), None, np.zeros(x.shape[1])
    for t in range(x.shape[1]):
        one, state = model.stack.step(params["blocks"], state, x[:, t], prepared)
        gap[t] = float(np.abs(one - y[:, t]).max()) if one.size else 0.0
    largest = float(np.abs(y).max()) if y.size else 0.0
    return gap / (largest or 1.0)


BOUNDS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0, math.inf)
"""Bounds of the bins of `contraction`: an iteration of a token contracts below 1."""


def contraction(model: SequenceModel, params: Params, split: Split, *, batch: int, dtype: npt.DTypeLike) -> list[Found]:
    """Returns how far the fixed points of a split's first batch are from contraction, for each block that iterates.

    "block" is its number; "tokens" their number; "shares" those with a norm |J_t| (`Recurrent.token_norms`) from each
    of BOUNDS to the next; "median", "largest" and "above" (the share above 1) of these norms; "iterations" of a step in
    the mean, "most" of a sequence, and "residual", the largest. ValueError if no block iterates.
    """
    index = np.arange(min(batch, len(split)))
    one, dt = split.batch(index, dtype), split.intervals(index)
    device = device_of(next((array for _, array in flatten(params)), None))
    ctx = Context(one.lengths, dt=None if dt is None else device.asarray(dt))
    _, saved = model.forward(params, device.asarray(one.inputs), ctx)
    reports, found = model.report(saved), []
    for block, norms in model.token_norms(saved).items():
        B, T = norms.shape
        lengths = np.full(B, T) if one.lengths is None else model.flat_lengths(np.asarray(one.lengths))
        norms = to_host(norms)[np.arange(T) < lengths[:, None]].astype(np.float64)
        counts = np.histogram(norms, BOUNDS)[0]
        found.append(
            {
                "block": block,
                "tokens": norms.size,
                "shares": (counts / max(norms.size, 1)).tolist(),
                "median": float(np.median(norms)),
                "largest": float(norms.max()),
                "above": float((norms > 1).mean()),
                "iterations": reports[f"{block}.iterations"],
                "most": reports[f"{block}.max_iterations"],
                "residual": reports[f"{block}.residual"],
            }
        )
    if not found:
        raise ValueError(f"contraction: {type(model).__name__} has no fixed points, expected a layer that iterates")
    return found


def logits_of(
    model: SequenceModel, params: Params, batch: Batch, packed: bool = False, dt: npt.NDArray[np.float64] | None = None
) -> Array:
    """Returns the logits of a batch, with intervals `dt` if given, in evaluation mode, on the CPU, computed where the
    parameters are. If it runs as one `packed` row, logits of padding are zero, too."""
    device = device_of(next((array for _, array in flatten(params)), None))
    row = batch.packed(model.stepwise, dt) if packed else PackedBatch(*batch, dt=dt)
    intervals = None if row.dt is None else device.asarray(row.dt)
    ctx = Context(row.lengths, cu_seqlens=row.cu_seqlens, dt=intervals)
    logits = to_host(model.forward(params, device.asarray(row.inputs), ctx)[0])
    if row.cu_seqlens is None or not model.stepwise:
        return logits
    whole = np.zeros((*batch.labels.shape[:2], logits.shape[2]), logits.dtype)
    whole[np.arange(whole.shape[1]) < np.diff(row.cu_seqlens)[:, None]] = logits[0]
    return whole


def chunks(n: int, size: int) -> Iterator[npt.NDArray[np.int64]]:
    for first in range(0, n, size):
        yield np.arange(first, min(first + size, n))
