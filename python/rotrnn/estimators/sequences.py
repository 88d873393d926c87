"""Estimators of sequences: a class, or numbers, for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rotrnn.estimators.base import (
    Estimator,
    Numbers,
    X,
    all_or_nothing,
    check_regression,
    middle,
    rearranged,
    shares_of,
    targets_of,
    truth_of,
)
from rotrnn.nn.layer import Recurrent
from rotrnn.ops.boundary import Boundary


class SequenceClassifier(Estimator):
    """A class for each sequence, or several bits.

    `fit` takes x, an array (n, time) or (n, time, features) or a list of n arrays (time_i,) or (time_i, features), and
    y (n,), classes of any kind, or (n, K) with values 0 and 1 for K labels that do not exclude one another.

    Parameters
    ----------
    class_weight : "balanced" or dict, optional
        Weights of the classes in the loss: class -> weight (1 for others), or n / (C n_c) for the n_c of n training
        sequences that are of class c, where C classes occur. For several labels, "balanced" or a list with the weight
        of each label's ones.
    scale : bool
        Whether features are scaled in training (`rotrnn.tasks.Arrays`). The model takes numbers as they are.
    layer, ...
        As of `Estimator`.

    Attributes
    ----------
    classes_ : (C,) array
        The classes; for several labels [0, 1].
    model_, params_
        A `rotrnn.SequenceClassifier` or `rotrnn.MultiLabelClassifier`, and its parameters, for numbers as they are.
    """

    _estimator_type = "classifier"

    def __init__(
        self, layer: str | Recurrent = "lru", *, class_weight: Any = None, scale: bool = True, **settings: Any
    ) -> None:
        super().__init__(layer, **settings)
        self.class_weight = class_weight
        self.scale = scale

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_label=True)
        tags.target_tags.multi_output = True
        return tags

    @all_or_nothing
    def fit(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None, dt: X | None = None) -> Self:
        """Fits to sequences and their classes. ValueError if they are of another form, or there is one class alone.

        `sample_weight` (n,), numbers of at least 0, weighs the sequences in the loss, the scales, a "balanced"
        `class_weight` and the scores on what is held out: weight 2 counts as two sequences, and a sequence of weight 0
        is left out. Only ratios matter. `dt`, for samples at uneven times and layers that take it (`rotrnn.Context`),
        has the interval before each step, (n, time) or a list of n arrays (time_i,); calls after fit then take it, too.
        A frame (n, time) needs the columns of the frame x, in the same order; frames of a list have one column each.
        """
        call = f"{type(self).__name__}.fit"
        data = self._begin(x, y, sample_weight, dt, numbers=False)
        labels = data.labels
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        self._several = labels.ndim == 2
        if self._several:
            if not np.isin(labels, (0, 1)).all():
                raise ValueError(f"{call}: y (n, K) has {labels[~np.isin(labels, (0, 1))][0]}, expected 0 and 1")
            self.classes_ = np.array([0, 1])
        else:
            if labels.dtype.kind == "f" and (labels != np.floor(labels)).any():
                raise ValueError(f"{call}: Unknown label type: continuous. y has numbers that are no integers")
            try:
                self.classes_, labels = np.unique(labels, return_inverse=True)
            except TypeError as error:
                raise TypeError(f"{call}: y has labels of several types, expected one: {error}") from error
            if len(self.classes_) < 2:
                left = " where sample_weight is positive" if sample_weight is not None else ""
                raise ValueError(f"{call}: y has 1 class{left}, expected at least 2 classes")
        kind = "multilabel" if self._several else "classification"
        of_classes = self._weights(call, labels)
        self._fit(replace(data, labels=labels.astype(np.int64)), kind, self.scale, of_classes)
        return self

    @all_or_nothing
    def partial_fit(
        self,
        x: X,
        y: npt.ArrayLike,
        classes: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        dt: X | None = None,
    ) -> Self:
        """Trains for one pass over sequences and their classes, from where the last pass, or `fit`, ended.

        The learning rate is constant; AdamW's moments go on, after `fit` from its last update. The order of the
        sequences depends on `random_state` and the number of passes. The first call without a `fit` decides the scales,
        and the settings of the model; no part is held out, and no run is kept in `folder`.

        Parameters
        ----------
        classes : (C,), optional
            All classes that will come; required at the first call without a `fit`, except for several labels.

        Raises
        ------
        ValueError
            As `fit`; or a class is not among the classes of the first call, `classes` differs from them, the number of
            features or labels differs, or `class_weight` is "balanced" without a `fit`.
        NonFinite
            A gradient or parameter became infinite or not a number.
        """
        call, fitted = f"{type(self).__name__}.partial_fit", self.__sklearn_is_fitted__()
        data = self._begin(x, y, sample_weight, dt, numbers=False, call="partial_fit")
        labels = data.labels[:, 0] if data.labels.ndim == 2 and data.labels.shape[1] == 1 else data.labels
        several = labels.ndim == 2
        if not fitted and classes is None and not several:
            raise ValueError(f"{call}: classes must be passed on the first call to partial_fit")
        given = None if classes is None else _distinct(call, "classes", classes)
        known = self.classes_ if fitted else np.array([0, 1]) if several or given is None else given
        size = len(self._trained.outputs.mean) if fitted else 0
        if fitted and (several != self._several or (several and labels.shape[1] != size)):
            expected = f"(n, {size})" if self._several else "(n,)"
            raise ValueError(f"{call}: y has shape {labels.shape}, expected {expected} as at first")
        if given is not None and not np.array_equal(given, known):
            raise ValueError(f"{call}: classes is {classes!r:.80}, expected {known.tolist()!r:.80} as at first")
        if not (there := np.isin(labels, known)).all():
            wrong = labels[~there].tolist()[0]
            raise ValueError(f"{call}: y has {wrong!r:.80}, expected one of {known.tolist()!r:.80}")
        if not fitted:
            if len(known) < 2:
                raise ValueError(f"{call}: classes has 1 class, expected at least 2 classes")
            if isinstance(self.class_weight, str):
                raise ValueError(f"{call}: class_weight is 'balanced', expected numbers: more classes may come")
            self._several, self.classes_ = several, known
        kind, outputs = ("multilabel", labels.shape[-1]) if several else ("classification", len(known))
        codes = labels if several else np.searchsorted(known, labels)
        of_classes = None if fitted else self._weights(call, labels)
        self._partial_fit(replace(data, labels=codes.astype(np.int64)), kind, self.scale, outputs, of_classes)
        return self

    def _check(self, args: Boundary) -> None:
        super()._check(args)
        args.flag("scale", self.scale)
        given = self.class_weight
        if given is None or (isinstance(given, str) and given == "balanced"):
            return
        if not isinstance(given, dict | list | tuple | np.ndarray):
            raise ValueError(f"{args.op}: class_weight is {given!r}, expected 'balanced', a dict, or a list")
        for key, weight in given.items() if isinstance(given, dict) else enumerate(given):
            args.number(f"class_weight[{key!r}]", weight)

    def _weights(self, call: str, labels: Numbers) -> Any:
        """Returns `class_weight` in the form of a recipe."""
        given = self.class_weight
        if given is None or isinstance(given, str):
            return given
        if self._several and isinstance(given, dict):
            raise ValueError(f"{call}: class_weight is a dict, expected a list with the weight of each label")
        if isinstance(given, dict):
            if unknown := [one for one in given if one not in self.classes_]:
                raise ValueError(f"{call}: class_weight has {unknown[0]!r}, expected one of {self.classes_.tolist()}")
            given = [given.get(one, 1.0) for one in self.classes_.tolist()]
        if len(given) != (n := labels.shape[1] if self._several else len(self.classes_)):
            raise ValueError(f"{call}: class_weight has {len(given)} numbers, expected {n}, one for each")
        if not any(weights := tuple(map(float, given))):
            raise ValueError(f"{call}: class_weight is zero for all, expected a positive number for one")
        return weights

    def predict_log_proba(self, x: X, dt: X | None = None) -> Numbers:
        """Returns the logarithms of `predict_proba`."""
        return self._log_proba("predict_log_proba", x, dt)

    def _log_proba(self, call: str, x: X, dt: X | None) -> Numbers:
        z = self._outputs(call, x, dt)
        if self._several:
            return -np.logaddexp(0, -z)
        z -= z.max(1, keepdims=True)
        return np.asarray(z - np.log(np.exp(z).sum(1, keepdims=True)))

    def predict_proba(self, x: X, dt: X | None = None) -> Numbers:
        """Returns probabilities (n, C) of the classes; for several labels (n, K), of the ones."""
        return np.asarray(np.exp(self._log_proba("predict_proba", x, dt)))

    def predict(self, x: X, dt: X | None = None) -> Numbers:
        """Returns the most probable class (n,) of each sequence; for several labels (n, K) of 0 and 1."""
        return self._predict("predict", x, dt)

    def _predict(self, call: str, x: X, dt: X | None) -> Numbers:
        z = self._outputs(call, x, dt)
        return (z > 0).astype(np.int64) if self._several else np.asarray(self.classes_[z.argmax(1)])

    def score(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None, dt: X | None = None) -> float:
        """Returns the share of sequences of which every label is right, by the weights (n,) of sequences if given."""
        call, found = f"{type(self).__name__}.score", self._predict("score", x, dt)
        right = found == truth_of(call, y, found, numbers=False)
        return float(
            np.average(right.all(1) if self._several else right, weights=shares_of(call, sample_weight, len(found)))
        )


def _distinct(call: str, name: str, classes: Any) -> Numbers:
    """Returns the classes that are given as the argument `name`, in order. TypeError or ValueError if they are no array
    (C,) of one type."""
    array = targets_of(call, classes, numbers=False, name=name)
    if array.ndim != 1:
        raise ValueError(f"{call}: {name} has shape {array.shape}, expected (C,)")
    kinds = {isinstance(one, str) for one in (array.tolist() if hasattr(classes, "dtype") else classes)}
    try:
        if len(kinds) > 1:
            raise TypeError("texts and others")
        return np.unique(array)
    except TypeError as error:
        raise TypeError(f"{call}: {name} has labels of several types, expected one: {error}") from error


class SequenceRegressor(Estimator):
    """Numbers for each sequence.

    `fit` takes x, an array (n, time) or (n, time, features) or a list of n arrays (time_i,) or (time_i, features), and
    y (n,) or (n, K).

    Parameters
    ----------
    objective : "mse", "mae" or "quantile"
        Loss of the scaled targets: squared or absolute error, or the loss of `quantiles` (`rotrnn.Regressor`).
    quantiles : tuple of float, optional
        Increasing numbers between 0 and 1.
    scale : bool
        Whether features and targets are scaled in training (`rotrnn.tasks.Arrays`). The model takes numbers as they
        are.
    layer, ...
        As of `Estimator`.

    Attributes
    ----------
    model_, params_
        A `rotrnn.Regressor` and its parameters, for numbers as they are.
    """

    _estimator_type = "regressor"

    def __init__(
        self,
        layer: str | Recurrent = "lru",
        *,
        objective: str = "mse",
        quantiles: tuple[float, ...] | None = None,
        scale: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(layer, **settings)
        self.objective = objective
        self.quantiles = quantiles
        self.scale = scale

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.multi_output = True
        return tags

    @all_or_nothing
    def fit(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None, dt: X | None = None) -> Self:
        """Fits to sequences and their targets. ValueError if they are of another form.

        `sample_weight` (n,), numbers of at least 0, weighs the sequences in the loss, the scales and the skill on what
        is held out: weight 2 counts as two sequences, and a sequence of weight 0 is left out. Only ratios matter. `dt`
        as of `SequenceClassifier.fit`.
        """
        data = self._begin(x, y, sample_weight, dt, numbers=True)
        self._flat = data.labels.ndim == 1
        self._fit(data, "regression", self.scale, objective=self.objective, quantiles=self.quantiles)
        return self

    @all_or_nothing
    def partial_fit(
        self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None, dt: X | None = None
    ) -> Self:
        """Trains for one pass over sequences and their targets, as `SequenceClassifier.partial_fit` does. Scales, of
        targets too, are fixed by the first call or `fit`. ValueError as `fit`, or if the number of features or targets
        differs."""
        data = self._begin(x, y, sample_weight, dt, numbers=True, call="partial_fit")
        flat = data.labels.ndim == 1
        columns = data.labels.reshape(len(data), -1)
        if not self.__sklearn_is_fitted__():
            self._flat = flat
        elif (flat, columns.shape[1]) != (self._flat, len(self._trained.outputs.mean)):
            expected = "(n,)" if self._flat else f"(n, {len(self._trained.outputs.mean)})"
            raise ValueError(
                f"{type(self).__name__}.partial_fit: y has shape {data.labels.shape}, expected {expected} as at first"
            )
        objective: Any = {"objective": self.objective, "quantiles": self.quantiles}
        self._partial_fit(replace(data, labels=columns), "regression", self.scale, columns.shape[1], **objective)
        return self

    def _check(self, args: Boundary) -> None:
        super()._check(args)
        args.flag("scale", self.scale)
        check_regression(args, self.objective, self.quantiles)

    def predict_quantiles(self, x: X, dt: X | None = None) -> Numbers:
        """Returns predictions (n, K, Q), or (n, Q) after targets (n,), for each of the Q quantiles, in order.
        ValueError with another objective."""
        self._check_fitted("predict_quantiles")
        if not self._fitted.quantiles:
            where = f"{type(self).__name__}.predict_quantiles: objective is {self._fitted.objective!r}"
            raise ValueError(f"{where}, expected a fit with objective 'quantile'")
        return self._quantiles("predict_quantiles", x, dt)

    def _quantiles(self, call: str, x: X, dt: X | None) -> Numbers:
        found = self._outputs(call, x, dt)
        found = rearranged(found.reshape(len(found), -1, len(self._fitted.quantiles or ()) or 1))
        return found[:, 0] if self._flat else found

    def predict(self, x: X, dt: X | None = None) -> Numbers:
        """Returns predictions (n, K), or (n,) after targets (n,); of several quantiles, the one nearest to the
        median, the first of two as near."""
        return self._predict("predict", x, dt)

    def _predict(self, call: str, x: X, dt: X | None) -> Numbers:
        return np.asarray(self._quantiles(call, x, dt)[..., middle(self._fitted.quantiles)])

    def score(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None, dt: X | None = None) -> float:
        """Returns the coefficient of determination R^2, the mean over the targets, by the weights (n,) of sequences if
        given. Of a target that is constant it is 1 if all predictions are right, else 0, as in scikit-learn."""
        call, found = f"{type(self).__name__}.score", self._predict("score", x, dt)
        targets = truth_of(call, y, found, numbers=True)
        weights = shares_of(call, sample_weight, len(found))
        error = np.average((targets - found) ** 2, 0, weights)
        spread = np.average((targets - np.average(targets, 0, weights)) ** 2, 0, weights)
        return float(np.mean(np.where(spread > 0, 1 - error / np.where(spread > 0, spread, 1), error == 0)))
