"""Models whose outputs are numbers: of a sequence, or of each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rotrnn.devices.device import beside
from rotrnn.devices.recording import recording
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.models.files import loadable
from rotrnn.models.model import Loss, SequenceModel
from rotrnn.models.tagger import Tagger
from rotrnn.nn.layer import Array
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.pointwise import loss_weights


def squared(error: Array, levels: Array) -> tuple[Array, Array]:
    """Returns e^2 and its derivative 2e."""
    return error * error, 2 * error


def absolute(error: Array, levels: Array) -> tuple[Array, Array]:
    """Returns |e| and its derivative, the sign of e, taken as 0 at 0."""
    return np.abs(error), np.sign(error)


def pinball(error: Array, levels: Array) -> tuple[Array, Array]:
    """Returns max((1 - q) e, -q e) and its derivative in e, for the levels q (Koenker and Bassett 1978).

    Its mean over targets is smallest where a share q of them lies below the prediction. The derivative is taken as 0 at
    e = 0.
    """
    slope = np.where(error > 0, 1 - levels, -levels) * np.abs(np.sign(error))
    return slope * error, slope


LOSSES: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "mse": squared,
    "mae": absolute,
    "quantile": pinball,
}
"""Losses of errors e = prediction - target: (value, derivative), elementwise."""


@dataclass(frozen=True)
class Regression(SequenceModel):
    """The base of models of K numbers: predictions (..., K), or (..., K Q) with Q quantiles, targets (..., K).

    The loss is the mean over the targets that count and over the quantiles, with the weight of each sequence if there
    is one, of ``(p - y)^2`` for "mse", ``|p - y|`` for
    "mae", and `pinball` for "quantile", whose prediction of target k and quantile q has the index ``k Q + q``. A target
    that is NaN does not count, nor does padding.
    """

    objective: str = field(default="mse", kw_only=True)
    quantiles: tuple[float, ...] = field(default=(), kw_only=True)

    targets_form: ClassVar[str]
    of_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        check_objective(name, self.objective, self.quantiles)
        *_, last = self.heads.values()
        if last.d_out % self.levels:
            expected = f"a multiple of {self.levels}, the number of quantiles"
            raise ValueError(f"{name}: the head has {last.d_out} outputs, expected {expected}")
        if self.class_weights is not None:
            raise ValueError(f"{name}: class_weights is {self.class_weights}, expected None: there are no classes")

    @property
    def levels(self) -> int:
        """The number Q of predictions for each target."""
        return len(self.quantiles) or 1

    def answers(self, logits: Array) -> Array:
        raise ValueError(f"{type(self).__name__}.answers: predictions are numbers, expected a model of classes")

    def loss(self, logits: Array, labels: Array, lengths: Array | None = None, weights: Array | None = None) -> Loss:
        """Returns the `Loss` of predictions `logits` for the targets `labels`. `weights` (B,), if given, multiply the
        terms of each sequence; the number of targets that the mean is divided by does not change.

        Targets that are NaN do not count. With a target for each step, steps from `lengths[b]` on in sequence b do not
        count either. Without `lengths` every step counts, also if `forward` was given lengths.
        """
        args = Boundary(f"{type(self).__name__}.loss")
        targets, counted = self._targets(args, labels, lengths)
        predictions = args.array("logits", logits, self.targets_form.replace("K", "C"))
        if predictions.shape[-1] != targets.shape[-1] * self.levels:
            expected = f"{targets.shape[-1] * self.levels}, {self.levels} for each of {targets.shape[-1]} targets"
            raise ValueError(f"{args.op}: logits has {predictions.shape[-1]} numbers, expected {expected}")
        number = predictions.dtype.type
        wanted = np.where(counted, targets.astype(predictions.dtype), number(0))[..., None]
        error = np.where(counted[..., None], predictions.reshape(*targets.shape, self.levels) - wanted, number(0))
        levels = beside(np.array(self.quantiles or (0.5,), predictions.dtype), predictions)
        total: Any = counted.sum(dtype=np.int64)
        if recording() is None and not total:
            raise ValueError(f"{args.op}: labels has none that counts, expected one that is not NaN")
        value, slope = LOSSES[self.objective](error, levels)
        zeros, _ = LOSSES[self.objective](-wanted, levels)
        if weights is not None:
            given: Any = loss_weights(args, "weights", weights, targets.shape[:1], predictions)
            share = given.reshape(-1, *[1] * (error.ndim - 1))
            value, slope, zeros = share * value, share * slope, share * zeros
        mean, reference = (one.sum(dtype=np.float64) / (total * self.levels) for one in (value, zeros))
        dlogits = (slope / (total * self.levels).astype(predictions.dtype)).reshape(predictions.shape)
        if recording() is None:
            mean, reference = float(mean), float(reference)
        return Loss(mean, dlogits, counted, None, reference)

    def count(self, labels: Array, lengths: Array | None = None) -> int:
        args = Boundary(f"{type(self).__name__}.count")
        return int(np.count_nonzero(self._targets(args, labels, lengths)[1]))

    def _targets(self, args: Boundary, labels: Array, lengths: Array | None) -> tuple[Array, Array]:
        """Returns the checked targets, and a mask of those that count."""
        targets = args.array("labels", labels, self.targets_form)
        counted: Array = ~np.isnan(targets)
        steps = args.lengths(lengths) if targets.ndim == 3 else None
        if steps is not None:
            there = steps.on(args.device)  # type: ignore[attr-defined]
            counted &= (args.device.asarray(np.arange(targets.shape[1])) < there[:, None])[..., None]
        return targets, counted


def check_objective(where: str, objective: str, quantiles: tuple[float, ...]) -> None:
    """Raises ValueError unless the objective is known, and has quantiles in (0, 1) that increase if it is for them."""
    if objective not in LOSSES:
        raise ValueError(f"{where}: objective is {objective!r}, expected one of {', '.join(LOSSES)}")
    if objective != "quantile" and quantiles:
        raise ValueError(f"{where}: quantiles is {quantiles} with objective {objective!r}, expected none")
    rising = all(low < high for low, high in zip((0, *quantiles), (*quantiles, 1), strict=True))
    if objective == "quantile" and not (quantiles and rising):
        raise ValueError(f"{where}: quantiles is {quantiles}, expected increasing numbers between 0 and 1")


@loadable
@dataclass(frozen=True)
class Regressor(Regression, SequenceClassifier):
    """K numbers per sequence: predictions (B, K), with Q quantiles (B, K Q); targets (B, K). See `Regression`."""

    targets_form: ClassVar[str] = "B K"


@loadable
@dataclass(frozen=True)
class StepRegressor(Regression, Tagger):
    """K numbers per step: predictions (B, T, K), with Q quantiles (B, T, K Q); targets (B, T, K). See `Regression`."""

    targets_form: ClassVar[str] = "B T K"
