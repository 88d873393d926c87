"""Estimators with scikit-learn's conventions: `SequenceClassifier`, `SequenceRegressor` and `Forecaster`.

They train as recipes do (`rotrnn.train`), and scikit-learn need not be installed. What is fitted ends in "_". `model_`
and `params_` take and give numbers as they were given to `fit`: the scales of training are part of the parameters. In
float32, as `params_` are, this costs digits where a mean is many deviations from zero; predictions are in float64.
``est.model_.save(path, est.params_)`` and `rotrnn.load` carry them elsewhere, and ``est.model_.stream(est.params_)``
reads a sequence step by step.

`rotrnn.SequenceClassifier` is another class: the model that such an estimator fits.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rotrnn._support.checkpoint import check_like, read_checkpoint, write_checkpoint
from rotrnn._support.files import atomic_file, check_file, check_folder
from rotrnn._support.settings import Unfit, fit
from rotrnn._support.text import an
from rotrnn.devices.cuda import DeviceError
from rotrnn.devices.device import named
from rotrnn.models.build import MOST_LAYERS, MOST_WIDTH, ModelSettings, make_layer
from rotrnn.models.files import described, made
from rotrnn.models.model import SequenceModel
from rotrnn.models.regressor import LOSSES, Regression, StepRegressor, check_objective
from rotrnn.nn.layer import Params, Recurrent, astype, flatten, unflatten
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.boundary import Boundary, on_host, rename
from rotrnn.tasks import Task, frames
from rotrnn.tasks.arrays import Arrays, save_arrays
from rotrnn.tasks.lags import Lags, chosen
from rotrnn.tasks.own import Scale, Sequences, SequenceSplit, check_range, check_span, joined
from rotrnn.tasks.series import Form, Series
from rotrnn.tasks.task import Index
from rotrnn.training.evaluation import logits_of
from rotrnn.training.loop import Interrupted, train
from rotrnn.training.optimiser import AdamW, NonFinite
from rotrnn.training.recipe import Recipe, Training, check_causal, pick
from rotrnn.training.run import Run

Numbers = npt.NDArray[Any]
X = npt.ArrayLike | Sequence[npt.ArrayLike]

DEFAULTS = {"length": 64}
"""Settings of layers that have no default, besides `d_state`, which is the width."""
BATCH = 256
"""Sequences of a prediction at a time."""
OUTSIDE = 8
"""Number of the errors that are to lie outside an interval: more are of another time, with fewer it is by chance."""
FORMAT = 1
"""Version of the files of `Forecaster.save`."""
MOST_STEPS = 2**31
"""Largest number of updates, and of evaluations to wait for."""

__all__ = ["Estimator", "Forecaster", "SequenceClassifier", "SequenceRegressor"]


class Estimator:
    """What the estimators share: settings, and training by a recipe. They train in float32 and predict in float64.

    Parameters
    ----------
    layer : str or layer
        Recurrent layer of each block: a name in `rotrnn.LAYERS`, or a layer, whose `d_model` is then the width.
    layer_settings : dict, optional
        Settings of a layer given by name. `d_state` is the width if they do not say.
    width, depth : int
        Width and number of blocks.
    dropout : float
        Chance that a number within a block is set to zero in training.
    epochs : int
        Number of times that training sees each sequence (or window), at most.
    batch_size : int
        Sequences per update; fewer if there are fewer.
    learning_rate, weight_decay : float
        Of AdamW, with a cosine schedule.
    validation_fraction : float
        Share of the data that is held out: parameters that do best on it are kept. 0: the last ones are kept. Of
        classes, each has its share in it.
    patience : int, optional
        Training stops when so many evaluations in a row, one an epoch, brought nothing better. None: it does not.
    random_state : int
        Seed of initial values, order, dropout and the held-out part: the same seed gives the same numbers.
    folder : path, optional
        New folder that keeps the run, with its log, checkpoints and data: `rotrnn plot FOLDER` draws it. One folder is
        one fit: leave it out in cross-validation and searches.
    verbose : bool
        Print evaluations and show progress.
    device : str
        "cpu" or "cuda", as of `rotrnn.train`.
    """

    def __init__(
        self,
        layer: str | Recurrent = "lru",
        *,
        layer_settings: dict[str, Any] | None = None,
        width: int = 64,
        depth: int = 2,
        dropout: float = 0.0,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 4e-3,
        weight_decay: float = 0.01,
        validation_fraction: float = 0.1,
        patience: int | None = 20,
        random_state: int = 0,
        folder: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        device: str = "cpu",
    ) -> None:
        self.layer = layer
        self.layer_settings = layer_settings
        self.width = width
        self.depth = depth
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.folder = folder
        self.verbose = verbose
        self.device = device

    # ---- scikit-learn's conventions ----

    @classmethod
    def _names(cls) -> list[str]:
        """Returns the names of all parameters: those of the class, then those that all estimators have."""
        names = {name: None for kind in cls.__mro__[:-1] if "__init__" in vars(kind) for name in _arguments(kind)}
        return list(names)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns all settings by name. `deep` has no effect: no setting is an estimator."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Changes settings of the next fit by name, and by ``layer_settings__NAME`` one of the layer's: what is fitted
        keeps the settings of its fit. ValueError if there is none of that name."""
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if name in self._names():
                setattr(self, name, value)
            elif outer == "layer_settings" and inner:
                self.layer_settings = {**(self.layer_settings or {}), inner: value}
            else:
                known = ", ".join(self._names())
                raise ValueError(f"{type(self).__name__}.set_params: unknown setting {name!r}, expected one of {known}")
        return self

    def __repr__(self) -> str:
        fresh = type(self)()
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != getattr(fresh, name)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "params_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn, which calls this, wants to know."""
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(two_d_array=True, three_d_array=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=True), input_tags=inputs)

    def _check_fitted(self, call: str) -> None:
        if self.__sklearn_is_fitted__():
            return
        message = f"{type(self).__name__}.{call}: is not fitted yet, call fit first"
        try:
            from sklearn.exceptions import NotFittedError
        except ImportError:
            raise ValueError(message) from None
        raise NotFittedError(message)

    # ---- settings ----

    def _check(self, args: Boundary) -> None:
        """Checks all settings, by the names that the caller gave them, before anything is made of them."""
        args.integer("width", self.width, 1, MOST_WIDTH)
        args.integer("depth", self.depth, 1, MOST_LAYERS)
        args.integer("epochs", self.epochs, 1)
        args.integer("batch_size", self.batch_size, 1)
        args.number("learning_rate", self.learning_rate, positive=True)
        args.number("weight_decay", self.weight_decay)
        for name, share in (("dropout", self.dropout), ("validation_fraction", self.validation_fraction)):
            if not 0 <= _number(share) < 1:
                raise ValueError(f"{args.op}: {name} is {share!r}, expected a number of at least 0, below 1")
        if self.patience is not None:
            args.integer("patience", self.patience, 1, MOST_STEPS)
        args.integer("random_state", self.random_state, 0, 2**63 - 1)
        named(args.op, self.device)
        self._layer(args)
        if self.folder is not None:
            check_folder(f"{args.op}: folder", self.folder)
            if any(path.exists() for path in Run(Path(self.folder)).files()):
                expected = "a new folder for each fit; leave it out in cross-validation"
                raise ValueError(f"{args.op}: folder {str(self.folder)!r} already holds a run, expected {expected}")

    def _layer(self, args: Boundary) -> Recurrent:
        """Returns the layer of each block."""
        if isinstance(self.layer, Recurrent):
            if self.layer_settings:
                expected = "None with a layer that is given as an object"
                raise ValueError(f"{args.op}: layer_settings is {self.layer_settings!r}, expected {expected}")
            return self.layer
        if isinstance(self.layer, type):
            expected = f"a name, or a layer such as {self.layer.__name__}({self.width}, ...)"
            raise TypeError(f"{args.op}: layer is the class {self.layer.__name__}, expected {expected}")
        kind = pick(f"{args.op}: layer", self.layer, LAYERS)
        args.one_of("layer_settings", self.layer_settings or {}, dict)
        missing = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
        given = {key: value for key, value in {"d_state": self.width, **DEFAULTS}.items() if key in missing}
        try:
            return make_layer(self.layer, self.width, {**given, **(self.layer_settings or {})})
        except ValueError as error:
            raise ValueError(f"{args.op}: layer is {self.layer!r}, of width {self.width}: {error}") from error

    # ---- training ----

    def _recipe(self, task: Any, loaded: Task, class_weights: Any = None, **model: Any) -> Recipe:
        """Returns the recipe of these settings for a task."""
        args = Boundary(f"{type(self).__name__}.fit")
        layer = self._layer(args)
        batch = min(int(self.batch_size), len(loaded.train))
        epoch = max(len(loaded.train) // batch, 1)
        epochs = args.integer("epochs", self.epochs, 1, MOST_STEPS // epoch)
        name = next((name for name, kind in LAYERS.items() if type(layer) is kind), type(layer).__name__)
        settings = ModelSettings(
            name, layer.d_model, self.depth, norm="layer", dropout=self.dropout, final_norm=True, **model
        )
        training = Training(
            batch=batch,
            steps=epochs * epoch,
            eval_every=epoch if loaded.val is not loaded.train else epochs * epoch,
            seed=int(self.random_state),
            patience=int(self.patience) if self.patience is not None and loaded.val is not loaded.train else None,
            class_weights=class_weights,
        )
        optimiser = AdamW(lr=self.learning_rate, weight_decay=self.weight_decay, recurrent_factor=0.5, clip=1.0)
        return Recipe(task, settings, layer, optimiser, training)

    def _share(self, n: int) -> float:
        """Returns the share of n sequences or steps that is held out, 0 if it is less than half of one."""
        share = self.validation_fraction
        return share if round(share * n) else 0.0

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """Gives the file of the data, in the folder of the run. A folder that was not asked for is removed at the end
        of the block, and errors do not speak of it."""
        call = f"{type(self).__name__}.fit"
        made = tempfile.TemporaryDirectory(prefix="rotrnn-") if self.folder is None else nullcontext(self.folder)
        with made as folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(os.path.abspath(folder), "data.npz")
            try:
                yield path
            except ValueError as error:
                rename(error, f"{path}:", f"{call}:")
                rename(error, "Series:", f"{call}:")
                raise
            except (NonFinite, DeviceError, MemoryError) as error:
                what, _, kept = str(error).rpartition("; ")
                if self.folder is None and "checkpoint" in kept:
                    raise type(error)(f"{call}: {what}") from error.__cause__
                raise
            except Interrupted:
                if self.folder is None:
                    raise Interrupted(f"{call}: stopped, and nothing is kept without a folder") from None
                raise

    def _train(
        self, recipe: Recipe, folder: str | os.PathLike[str], loaded: Task, inputs: Scale, outputs: Scale
    ) -> None:
        """Trains, and sets what is fitted. Scales become part of the encoder and of the head; `_params` are those of
        predictions, in float64: in float32 a mean of many deviations would leave few digits, or none."""
        self.result_ = train(recipe, folder, progress=self.verbose, device=self.device)
        run = Run(Path(folder))
        self.model_: SequenceModel = recipe.build(loaded)
        params = run.load_params("last" if loaded.val is loaded.train else "best")
        exact = scaled(self.model_, params, inputs, outputs)
        self._params, self.params_ = astype(exact, np.float64), astype(exact, np.float32)
        self.n_iter_ = self.result_["steps"]
        self._keep_settings()

    def _keep_settings(self) -> None:
        """Keeps the settings of this fit: what is fitted goes by them, whatever `set_params` changes later."""
        self._fitted = SimpleNamespace(**copy.deepcopy(self.get_params()))

    def _outputs(self, call: str, x: X) -> Numbers:
        """Returns the model's outputs for sequences, in float64: in float32 they would differ in their last digits with
        the number of sequences in a call."""
        self._check_fitted(call)
        values, lengths = sequences(f"{type(self).__name__}.{call}", x)
        if values.shape[1] != self.n_features_in_:
            expected = f"is expecting {self.n_features_in_} features as input"
            one = "; x[None] is one sequence" if getattr(x, "shape", ())[1:] == (self.n_features_in_,) else ""
            raise ValueError(f"X has {values.shape[1]} features, but {type(self).__name__} {expected} (per step){one}")
        data = Sequences(values, lengths, np.zeros(len(lengths), np.int64))
        split = SequenceSplit(data, np.arange(len(data)), Scale.none(values.shape[1]))
        rows = (np.arange(i, min(i + BATCH, len(data))) for i in range(0, len(data), BATCH))
        return np.concatenate([logits_of(self.model_, self._params, split.batch(one, np.float64)) for one in rows])

    def _begin(
        self, x: X, y: Any, sample_weight: Any, *, numbers: bool
    ) -> tuple[Numbers, Index, Numbers, Numbers | None]:
        """Checks the settings, and returns `sequences`, the targets (`_targets`) and the weights, without the sequences
        of weight 0; weights that are all the same are None. What is wrong with x is said before what is with y."""
        args = Boundary(f"{type(self).__name__}.fit")
        self._check(args)
        values, lengths = sequences(args.op, x)
        labels = _targets(args.op, y, numbers=numbers)
        if len(labels) != len(lengths):
            raise ValueError(f"{args.op}: y has {len(labels)} labels, expected {len(lengths)}, one for each sequence")
        check_span(f"{args.op}: X", values)
        if numbers:
            check_span(f"{args.op}: y", labels.reshape(len(labels), -1))
        weights = _shares(args.op, sample_weight, len(lengths))
        if weights is not None:
            there = weights > 0
            values, lengths = values[np.repeat(there, lengths)], lengths[there]
            labels, weights = labels[there], None if len(set(weights[there])) == 1 else weights[there]
        return values, lengths, labels, weights

    def _fit(
        self,
        values: Numbers,
        lengths: Index,
        labels: Numbers,
        kind: str,
        scale: bool,
        weights: Numbers | None,
        class_weights: Any = None,
        **model: Any,
    ) -> None:
        """Fits sequences and labels that are checked, with positive weights."""
        self.n_features_in_ = values.shape[1]
        held = self._share(len(lengths))
        with self._place() as path:
            starts = np.cumsum(lengths)[:-1]
            save_arrays(path, np.split(values, starts), labels, weights=weights)
            task = Arrays(
                str(path), kind=kind, val_fraction=held, test_fraction=0.0, seed=self.random_state, scale=scale,
                stratified=kind == "classification",
            )  # fmt: skip
            loaded = task.load()
            own = loaded.train
            assert isinstance(own, SequenceSplit)
            outputs = own.targets or Scale.none(loaded.n_classes)
            recipe = self._recipe(task, loaded, class_weights, **model)
            self._train(recipe, path.parent, loaded, own.inputs, outputs)


def _plain(value: Any) -> Any:
    """Returns a setting in the form of JSON."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value.item() if isinstance(value, np.generic) else described(value)


def _number(value: Any) -> float:
    """Returns a number as it is, and NaN for anything else."""
    try:
        number: float = fit(value, float)
    except Unfit:
        return math.nan
    return number


def _check_objective(args: Boundary, objective: str, quantiles: tuple[float, ...] | None) -> None:
    """Checks the two settings of a regression."""
    args.choice("objective", objective, LOSSES)
    try:
        check_objective(args.op, objective, fit(quantiles, tuple[float, ...] | None) or ())
    except Unfit:
        expected = "increasing numbers between 0 and 1, or None"
        raise ValueError(f"{args.op}: quantiles is {quantiles!r}, expected {expected}") from None


def _arguments(kind: type) -> list[str]:
    named = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return [one.name for one in named if one.name != "self" and one.kind is not one.VAR_KEYWORD]


def scaled(model: SequenceModel, params: Params, inputs: Scale, outputs: Scale) -> Params:
    """Returns the parameters of a model that does with numbers as they are what it did with scaled ones.

    Of an encoder W x + b and a head V z + c these are ``W / s``, ``b - W (m / s)``, ``t V`` and ``t c + r``, with
    means m and r and deviations s and t of inputs and outputs. A target that was constant is so again: its t is 0.
    """
    encoder, head = dict(params["encoder"]), dict(params["head"])
    w = encoder["w"] / inputs.divisor
    encoder["bias"], encoder["w"] = encoder["bias"] - w @ inputs.mean, w
    levels = model.levels if isinstance(model, Regression) else 1
    mean, std = np.repeat(outputs.mean, levels), np.repeat(outputs.std, levels)
    head["w"], head["bias"] = head["w"] * std[:, None], head["bias"] * std + mean
    return {**params, "encoder": encoder, "head": head}


def sequences(call: str, x: X) -> tuple[Numbers, Index]:
    """Returns sequences one after the other, (steps, F) float64, and their lengths, from an array (n, T) or (n, T, F),
    or from a list of arrays (T_i,) or (T_i, F).

    Raises
    ------
    TypeError, ValueError
        x is sparse, complex, empty, not of numbers, not finite, or of another form.
    """
    if hasattr(x, "tocsr"):
        raise TypeError(f"{call}: X is a sparse array or matrix, expected a dense one, or a list of arrays")
    array: Numbers | None = None
    if hasattr(x, "__array__"):
        array = on_host(call, "X", x)
    elif isinstance(x, str) or not isinstance(x, Sequence):
        raise TypeError(f"{call}: X is {an(type(x).__name__)}, expected an array, or a list of arrays")
    given: Any = x if array is None else array
    listed = array is None or (array.dtype.kind == "O" and array.ndim == 1)
    if listed:
        given = [on_host(call, f"X[{i}]", one) for i, one in enumerate(given)]
        array = None if len({one.shape for one in given}) > 1 else np.asarray(given)
    if array is not None and array.ndim not in (2, 3):
        raise ValueError(
            f"{call}: Expected 2D array, (n, time), or 3D array, (n, time, features), got {array.ndim}D array instead. "
            "Reshape your data: x.reshape(1, -1) is one sequence"
        )
    if array is not None:
        n, T, *features = array.shape
        least = f"(shape={array.shape}) while a minimum of 1 is required."
        if not n:
            raise ValueError(f"{call}: Found array with 0 sample(s) {least}")
        if 0 in features or (not T and not features and not listed):  # of a table, scikit-learn calls columns so
            raise ValueError(f"{call}: Found array with 0 feature(s) {least}")
        values, lengths = array.reshape(n * T, *(features or [1])), np.full(n, T)
    else:
        values, lengths = joined(given, call, "X")
    if not lengths.all():
        raise ValueError(f"{call}: X[{int(np.argmin(lengths))}] has no steps, expected at least one")
    values = _numbers(call, "X", values)
    if not np.isfinite(values).all():
        what = "NaN" if np.isnan(values).any() else "infinity"
        step, feature = np.argwhere(~np.isfinite(values))[0]
        row = int(np.searchsorted(np.cumsum(lengths), step, side="right"))
        at = f"sequence {row}, step {step - lengths[:row].sum()}, feature {feature}"
        raise ValueError(f"{call}: Input X contains {what}: {at}")
    check_range(f"{call}: X", values)
    return values, lengths


def _numbers(call: str, name: str, array: Numbers) -> Numbers:
    """Returns an array as float64. TypeError or ValueError if it is complex or not of numbers."""
    if array.dtype.kind == "c":
        raise ValueError(f"{call}: Complex data not supported, {name} has dtype {array.dtype}")
    if array.dtype.kind not in "biufO":
        raise ValueError(f"{call}: {name} has dtype {array.dtype}, expected numbers")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{call}: {name} has dtype {array.dtype}, expected numbers: {error}") from error


def _targets(call: str, y: Any, *, numbers: bool, name: str = "y") -> Numbers:
    """Returns y, the argument `name`, as an array (n,) or (n, K), in float64 if it has to be of `numbers`. TypeError or
    ValueError if it is None, complex, empty, not finite, or of another form."""
    if y is None:
        raise ValueError(f"{call}: requires y to be passed, but the target y is None")
    array = on_host(call, name, y)
    if numbers or array.dtype.kind == "c":
        array = _numbers(call, name, array)
    values = array
    if array.dtype.kind == "O":  # of labels of any kind
        values = np.array([one for one in array.flat if one is None or isinstance(one, float | np.floating)], float)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"{call}: Input {name} contains {'NaN' if np.isnan(values).any() else 'infinity'}.")
    if array.ndim not in (1, 2):
        raise ValueError(f"{call}: {name} has shape {array.shape}, expected (n,) or (n, K)")
    if not array.size:
        raise ValueError(f"{call}: {name} is empty, of shape {array.shape}, expected at least one row and column")
    if numbers:
        check_range(f"{call}: {name}", array)
    return array


def _truth(call: str, y: Any, found: Numbers, *, numbers: bool) -> Numbers:
    """Returns the targets of predictions, in their shape. ValueError if there are more or fewer."""
    array = _targets(call, y, numbers=numbers)
    if len(array) != len(found) or array.size != found.size:
        raise ValueError(f"{call}: y has shape {array.shape}, expected {found.shape} as of the predictions")
    return array.reshape(found.shape)


def _shares(call: str, given: Any, n: int) -> Numbers | None:
    """Returns weights of n sequences, checked; None without any."""
    if given is None:
        return None
    if (shape := on_host(call, "sample_weight", given).shape) != (n,):
        raise ValueError(f"{call}: sample_weight has shape {shape}, expected ({n},)")
    weights = _targets(call, given, numbers=True, name="sample_weight")
    if weights.min() < 0:
        raise ValueError(f"{call}: sample_weight has {weights.min():g} as its least number, expected at least 0")
    if not weights.any():
        raise ValueError(f"{call}: sample_weight is zero for every sequence, expected a positive number for one")
    return weights


class SequenceClassifier(Estimator):
    """A class for each sequence, or several bits.

    `fit` takes x, an array (n, time) or (n, time, features) or a list of n arrays (time_i,) or (time_i, features), and
    y (n,), classes of any kind, or (n, K) with values 0 and 1 for K labels that do not exclude one another.

    Parameters
    ----------
    class_weight : "balanced" or dict, optional
        Weights of the classes in the loss: class -> weight (1 for others), or n / (C n_c) for the n_c of n training
        sequences that are of class c, where C classes occur. For several labels, "balanced" or a list with a weight of
        the ones of each.
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

    def fit(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fits to sequences and their classes. ValueError if they are of another form, or there is one class alone.

        `sample_weight` (n,), numbers of at least 0, weighs the sequences in the loss, the scales, a "balanced"
        `class_weight` and the scores on what is held out: weight 2 counts as two sequences, and a sequence of weight 0
        is left out. Only ratios matter.
        """
        call = f"{type(self).__name__}.fit"
        values, lengths, labels, weights = self._begin(x, y, sample_weight, numbers=False)
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
        self._fit(values, lengths, labels.astype(np.int64), kind, self.scale, weights, of_classes)
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
        if not isinstance(given, dict):
            if len(given) != (n := labels.shape[1] if self._several else len(self.classes_)):
                raise ValueError(f"{call}: class_weight has {len(given)} numbers, expected {n}, one for each")
            return tuple(map(float, given))
        if unknown := [one for one in given if one not in self.classes_]:
            raise ValueError(f"{call}: class_weight has {unknown[0]!r}, expected one of {self.classes_.tolist()}")
        return tuple(float(given.get(one, 1.0)) for one in self.classes_.tolist())

    def predict_log_proba(self, x: X) -> Numbers:
        """Returns the logarithms of `predict_proba`."""
        return self._log_proba("predict_log_proba", x)

    def _log_proba(self, call: str, x: X) -> Numbers:
        z = self._outputs(call, x)
        if self._several:
            return -np.logaddexp(0, -z)
        z -= z.max(1, keepdims=True)
        return np.asarray(z - np.log(np.exp(z).sum(1, keepdims=True)))

    def predict_proba(self, x: X) -> Numbers:
        """Returns probabilities (n, C) of the classes; for several labels (n, K), of the ones."""
        return np.asarray(np.exp(self._log_proba("predict_proba", x)))

    def predict(self, x: X) -> Numbers:
        """Returns the most probable class (n,) of each sequence; for several labels (n, K) of 0 and 1."""
        return self._predict("predict", x)

    def _predict(self, call: str, x: X) -> Numbers:
        z = self._outputs(call, x)
        return (z > 0).astype(np.int64) if self._several else np.asarray(self.classes_[z.argmax(1)])

    def score(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Returns the share of sequences of which every label is right, by the weights (n,) of sequences if given."""
        call, found = f"{type(self).__name__}.score", self._predict("score", x)
        right = found == _truth(call, y, found, numbers=False)
        return float(
            np.average(right.all(1) if self._several else right, weights=_shares(call, sample_weight, len(found)))
        )


class SequenceRegressor(Estimator):
    """Numbers for each sequence.

    `fit` takes x, an array (n, time) or (n, time, features) or a list of n arrays (time_i,) or (time_i, features), and
    y (n,) or (n, K).

    Parameters
    ----------
    objective : "mse", "mae" or "quantile"
        Loss of the scaled targets: squared or absolute error, or that of `quantiles` (`rotrnn.Regressor`).
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

    def fit(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fits to sequences and their targets. ValueError if they are of another form.

        `sample_weight` (n,), numbers of at least 0, weighs the sequences in the loss, the scales and the skill on what
        is held out: weight 2 counts as two sequences, and a sequence of weight 0 is left out. Only ratios matter.
        """
        values, lengths, targets, weights = self._begin(x, y, sample_weight, numbers=True)
        self._flat = targets.ndim == 1
        objective = {"objective": self.objective, "quantiles": self.quantiles}
        self._fit(values, lengths, targets, "regression", self.scale, weights, **objective)
        return self

    def _check(self, args: Boundary) -> None:
        super()._check(args)
        args.flag("scale", self.scale)
        _check_objective(args, self.objective, self.quantiles)

    def predict_quantiles(self, x: X) -> Numbers:
        """Returns predictions (n, K, Q), or (n, Q) after targets (n,), for each of the Q quantiles. ValueError with
        another objective."""
        self._check_fitted("predict_quantiles")
        if not self._fitted.quantiles:
            where = f"{type(self).__name__}.predict_quantiles: objective is {self._fitted.objective!r}"
            raise ValueError(f"{where}, expected a fit with objective 'quantile'")
        return self._quantiles("predict_quantiles", x)

    def _quantiles(self, call: str, x: X) -> Numbers:
        found = self._outputs(call, x)
        found = found.reshape(len(found), -1, len(self._fitted.quantiles or ()) or 1)
        return found[:, 0] if self._flat else found

    def predict(self, x: X) -> Numbers:
        """Returns predictions (n, K), or (n,) after targets (n,); of several quantiles, the one nearest to the
        median, the first of two as near."""
        return self._predict("predict", x)

    def _predict(self, call: str, x: X) -> Numbers:
        return np.asarray(self._quantiles(call, x)[..., middle(self._fitted.quantiles)])

    def score(self, x: X, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Returns the coefficient of determination R^2, the mean over the targets, by the weights (n,) of sequences if
        given. Of a target that is constant it is 1 if all predictions are right, else 0, as in scikit-learn."""
        call, found = f"{type(self).__name__}.score", self._predict("score", x)
        targets = _truth(call, y, found, numbers=True)
        weights = _shares(call, sample_weight, len(found))
        error = np.average((targets - found) ** 2, 0, weights)
        spread = np.average((targets - np.average(targets, 0, weights)) ** 2, 0, weights)
        return float(np.mean(np.where(spread > 0, 1 - error / np.where(spread > 0, spread, 1), error == 0)))


def middle(quantiles: Sequence[float] | None) -> int:
    """Returns the index of the quantile nearest to the median, the first of two as near; 0 without any."""
    return int(np.argmin(np.abs(np.array(quantiles or (0.5,)) - 0.5).round(12)))  # 0.7 - 0.5 is less than 0.5 - 0.3


def share_of(said: Numbers, wanted: Numbers) -> float:
    """Returns which share of corrections (origins, horizon, V), from 0 to 1, to add to forecasts whose targets less
    forecasts are `wanted`, NaN where there is none.

    It is ``b - 3 s``, of the least squares b of wanted on said, both less their means over origins: what is wrong by
    the same number all the time follows from the choice of the time, not from what the model read. s is the standard
    error of b, from sums over blocks of as many origins as the horizon, in which errors overlap. Corrections that help
    by chance where origins are few spoil what comes later, so three of them are taken off.
    """
    there = ~np.isnan(wanted)
    counts = np.maximum(there.sum(0), 1)
    x, y = (np.where(there, one - np.where(there, one, 0).sum(0) / counts, 0) for one in (said, wanted))
    square = float((x * x).sum())
    if not square:
        return 0.0
    b = float((x * y).sum()) / square
    scores = (x * (y - b * x)).sum((1, 2))
    blocks = np.array_split(scores, max(len(scores) // said.shape[1], 2))
    error = math.sqrt(sum(float(block.sum()) ** 2 for block in blocks)) / square
    return float(np.clip(b - 3 * error, 0, 1))


class Forecaster(Estimator):
    """The next numbers of a time series of one or several variables.

    `fit` takes a series y, (n,) or (n, V). The model reads it step by step and predicts, at every step, the next
    `horizon` steps at once (directly), as corrections of a linear forecast (`rotrnn.tasks.lags.Lags`), or of one that
    repeats the last `period` steps (`rotrnn.tasks.series.Form`). `predict` reads the series in a stream and takes what
    the model says at its end; for more steps than `horizon`, the stream reads the forecasts in turn (recursively).

    Parameters
    ----------
    horizon : int
        Number of steps that are predicted at once, and trained for.
    period : int
        What is corrected: 1 the forecast of the last number, 12 of monthly numbers that of the last year; 0: none, for
        a series that stays around its mean. With `linear`, the changes that the model reads are over a period, and the
        linear forecast may read three of a period of more than 12.
    levels : bool
        Read the numbers beside their changes over a period. Without them a trend may go on beyond what was seen.
    linear : bool
        Correct the ridge regression on the last 12, 24 or 36 steps, in closed form. Parts of the series that it was not
        fitted to choose its settings; then it is fitted to the whole. The first half of the held-out part decides
        which of the model's parameters are kept, and the whole of it which share of the corrections is added
        (`share_of`): 0 where the series is linear, or too short to tell, or nothing is held out. Quantiles need all of
        them, and the first half is then the whole. A series of fewer than some 40 steps is forecast as without a linear
        forecast.
    window : int
        Steps of the pieces of the series that training reads; 0: half of it, at most 256.
    objective, quantiles
        As of `SequenceRegressor`.
    layer, ...
        As of `Estimator`; `validation_fraction` is the last part of the series, a fifth if it is not given. `save` and
        `load` keep the whole; ``model_.save`` writes the corrections alone.

    Attributes
    ----------
    model_, params_
        A `rotrnn.StepRegressor` and its parameters, which read and predict what `form_` says, as it is.
    series_ : (n, V)
        The series.
    share_ : float
        Share of the corrections; the parameters contain it.
    errors_ : (n, horizon, V)
        Forecast minus number for the origins at which neither the linear forecast nor, in the held-out part, the model
        were fitted to these numbers; elsewhere NaN. `interval` of `predict` rests on them.
    """

    def __init__(
        self,
        layer: str | Recurrent = "lru",
        *,
        horizon: int = 1,
        period: int = 1,
        levels: bool = True,
        linear: bool = True,
        window: int = 0,
        objective: str = "mse",
        quantiles: tuple[float, ...] | None = None,
        validation_fraction: float = 0.2,
        **settings: Any,
    ) -> None:
        super().__init__(layer, validation_fraction=validation_fraction, **settings)
        self.horizon = horizon
        self.period = period
        self.levels = levels
        self.linear = linear
        self.window = window
        self.objective = objective
        self.quantiles = quantiles

    def fit(self, y: Any) -> Self:
        """Fits to a series (n,) or (n, V), an array or a frame of pandas or polars. ValueError if it is too short, not
        of finite numbers, or its dates do not increase."""
        self._check(Boundary(f"{type(self).__name__}.fit"))
        series, self._flat = self._series("fit", y)
        self._given = frames.kept(y)
        held = self._share(len(series))
        shared = self.linear and not self.quantiles  # then the later half decides the share
        with self._place() as path:
            with atomic_file(path) as file:
                np.savez(file, y=series)
            task = Series(
                str(path), horizon=self.horizon, period=self.period, levels=self.levels, linear=self.linear,
                window=self.window, val_fraction=held / (1 + shared), test_fraction=held * shared / 2,
            )  # fmt: skip
            loaded = task.load()
            own: Any = loaded.train
            check_span(f"{type(self).__name__}.fit: what is read of y", own.read)
            recipe = self._recipe(task, loaded, objective=self.objective, quantiles=self.quantiles)
            self._train(recipe, path.parent, loaded, own.inputs, own.targets)
        self.form_, self.series_ = own.form, series
        self._settle(own.steps, own.targets.divisor, shared)
        return self

    def _settle(self, train: int, divisor: Numbers, shared: bool) -> None:
        """Chooses the share of the corrections by what the model, trained on the first `train` steps, says of later
        ones, in units of `divisor` (horizon V,), keeps the errors, and fits the linear forecast to all steps."""
        y, form, line = self.series_, self.form_, self.form_.line
        n, V = y.shape
        self.share_, self.errors_ = 1.0, np.full((n, self._fitted.horizon, V), np.nan)
        if line is not None and (train < n or shared):  # else the errors of the model are not known
            self.errors_[:train] = line.errors
        if line is not None and train == n and shared:
            self.share_ = 0.0
            self._scale_corrections()
        if train < n:
            origins = np.arange(train - 1, n - 1)
            wanted = form.targets(y)[origins].reshape(-1, self._fitted.horizon, V)
            said = self._corrections(y, origins)[..., middle(self._fitted.quantiles)]
            if line is not None and shared:
                self.share_ = share_of(*(one / divisor.reshape(self._fitted.horizon, V) for one in (said, wanted)))
                self._scale_corrections()
            self.errors_[origins] = self.share_ * said - wanted
        if line is not None:
            self._refit(line)

    def _scale_corrections(self) -> None:
        """Makes the share part of the parameters."""
        outputs = self._fitted.horizon * self.series_.shape[1]
        part = Scale(np.zeros(outputs), np.full(outputs, self.share_))
        self._params = scaled(self.model_, self._params, Scale.none(self._params["encoder"]["w"].shape[1]), part)
        self.params_ = astype(self._params, np.float32)

    def _refit(self, line: Lags) -> None:
        """Chooses and fits the linear forecast again, by all steps: what the first ones told may not hold of the later
        ones. Where forecasts of some parts by the others are worse than naive ones, its weights say nothing: the line
        that there was stays if it is better than naive, else, without corrections, the naive forecast takes its
        place."""
        y, form = self.series_, self.form_
        naive = self._naive(y, np.arange(len(y)))
        naive -= form.targets(y).reshape(naive.shape) + form.base(y, np.arange(len(y)))

        def helps(errors: Numbers) -> bool:
            there = ~np.isnan(errors + naive)
            return bool(np.isfinite(errors[there]).all() and np.abs(errors[there]).sum() <= np.abs(naive[there]).sum())

        new = chosen(y, self._fitted.horizon, self._fitted.period)
        if new is not None and helps(new.errors):
            self.form_ = replace(form, line=new)
        elif not self.share_ and not helps(self.errors_):
            self.form_ = replace(form, line=None)
            self.errors_ = naive

    def _naive(self, y: Numbers, origins: Index) -> Numbers:
        """Returns what repeats the last period, or with period 0 the last number, (origins, horizon, V)."""
        form = self._fitted
        return Form(form.horizon, form.period or 1, form.levels).naive(y, origins, form.horizon)

    def _corrections(self, y: Numbers, origins: Index) -> Numbers:
        """Returns what the model says at origins of a series, (origins, horizon, V, Q)."""
        said = self.model_.stream(self._params).push(self.form_.inputs(y)[None])[0, origins]
        return np.asarray(said.reshape(len(origins), self._fitted.horizon, y.shape[1], -1))

    def _check(self, args: Boundary) -> None:
        super()._check(args)
        args.integer("horizon", self.horizon, 1)
        args.integer("period", self.period)
        args.integer("window", self.window)
        args.flag("linear", self.linear)
        if not (args.flag("levels", self.levels) or self.period):
            raise ValueError(f"{args.op}: levels is False with period 0, expected one of the two to read")
        _check_objective(args, self.objective, self.quantiles)
        check_causal(f"{args.op}: ", Series(), self._layer(args))

    def _series(self, call: str, y: Any) -> tuple[Numbers, bool]:
        """Returns a series (n, V), checked, and whether it was (n,)."""
        where, name = f"{type(self).__name__}.{call}", "after" if call == "predict" else "y"
        if call != "fit" and frames.is_frame(y):
            y = frames.ordered(where, name, y, self._given)
        given = frames.numbers_of(where, name, y) if frames.is_frame(y) else y
        array = _targets(where, given, numbers=True, name=name)
        if call != "fit" and array.reshape(len(array), -1).shape[1] != self.series_.shape[1]:
            expected = f"(n, {self.series_.shape[1]}) as of the series that was fitted"
            raise ValueError(f"{where}: {name} has shape {array.shape}, expected {expected}")
        return array.reshape(len(array), -1), array.ndim == 1

    def _check_quantiles(self, call: str, quantiles: bool) -> None:
        """Raises ValueError if quantiles are asked for, and there are none."""
        if quantiles and not self._fitted.quantiles:
            expected = "False, or a fit with objective 'quantile'"
            where = f"{type(self).__name__}.{call}: quantiles is {quantiles!r}"
            raise ValueError(f"{where} with objective {self._fitted.objective!r}, expected {expected}")

    def _shaped(self, forecasts: Numbers, quantiles: bool) -> Numbers:
        """Returns forecasts (..., V, Q) as they were asked for, without V if the series was (n,)."""
        found = forecasts if quantiles else forecasts[..., middle(self._fitted.quantiles)]
        at = -2 if quantiles else -1
        return np.asarray(found.take(0, at) if self._flat else found)

    def predict(
        self,
        steps: int | None = None,
        *,
        after: npt.ArrayLike | None = None,
        quantiles: bool = False,
        interval: float | None = None,
    ) -> Any:
        """Returns the forecast (steps,), or (steps, V), of what follows the series: an array, or of a frame such a
        frame with the index, or the column of dates, that follows, if it has equal steps (`rotrnn.tasks.frames`).
        Quantiles and intervals are arrays.

        Parameters
        ----------
        steps : int, optional
            Number of steps; `horizon` if not given. More than that are forecast from forecasts.
        after : series, optional
            Another series of the same variables to go on from, such as the fitted one with newer numbers at its end.
        quantiles : bool
            Return all quantiles, (..., Q); ValueError with another objective. Those beyond `horizon` are after
            forecasts of the middle one: their spread is then too small.
        interval : float, optional
            Return the ends (..., 2) of intervals that are to hold so large a share of what follows, for at most
            `horizon` steps: the forecast less and plus a quantile of its errors at recent origins, of which as many are
            taken as leave eight outside, 40 for 0.8 (split conformal prediction: Vovk et al. 2005, section 4.1). These
            are `errors_` and, where `after` begins with the fitted series, the errors since. The share holds on the
            average of steps that are like those before.
        """
        self._check_fitted("predict")
        self._check_quantiles("predict", quantiles)
        self._check_interval("predict", interval, quantiles)
        y = self.series_ if after is None else self._series("predict", after)[0]
        H, V = self._fitted.horizon, y.shape[1]
        steps = H if steps is None else Boundary(f"{type(self).__name__}.predict").integer("steps", steps, 1)
        if interval is not None and steps > H:
            expected = f"at most the horizon, {H}, with interval"
            raise ValueError(f"{type(self).__name__}.predict: steps is {steps}, expected {expected}")
        given = y
        stream, read = self.model_.stream(self._params), 0
        found: list[Numbers] = []
        while H * len(found) < steps:
            said = stream.push(self.form_.inputs(y)[None, read:])[0, -1].reshape(H, V, -1)
            found.append(self.form_.base(y, np.array([len(y) - 1]))[0, ..., None] + said)
            read, y = len(y), np.concatenate([y, found[-1][..., middle(self._fitted.quantiles)]])
        forecasts = np.concatenate(found)[:steps]
        if interval is not None:
            n = len(self.series_)
            goes_on = after is not None and np.array_equal(given[:n], self.series_)
            errors = self._errors(given, self._forecasts(given)) if goes_on else self.errors_
            width = self._spread("predict", errors, len(given) - 1 if goes_on else n - 1, interval)[:steps]
            return self._interval(forecasts, width)
        shaped, whole = self._shaped(forecasts, quantiles), self._given if after is None else after
        if not frames.is_frame(whole) or quantiles:
            return shaped
        return frames.like(frames.ordered("Forecaster.predict", "after", whole, self._given), shaped, self._given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole forecaster to one file, which `load` reads: settings, model, linear forecast, series and
        errors, in float64, so that it forecasts the same bits. It is a safetensors file with a checksum, and has no
        code. Dates are not in it: a loaded forecaster returns arrays, unless `after` is a frame.

        Raises
        ------
        ValueError
            It is not fitted, a layer is of your own and not in `rotrnn.LAYERS`, or columns have names that are neither
            texts nor integers.
        OSError
            The file cannot be written.
        """
        self._check_fitted("save")
        call = f"{type(self).__name__}.save"
        check_file(call, path)
        columns = frames.names(self._given)
        if wrong := [name for name in columns or () if not isinstance(name, str | int)]:
            raise ValueError(f"{call}: the series has the column {wrong[0]!r:.80}, expected a text or an integer")
        known, line = ~np.isnan(self.errors_), self.form_.line
        arrays = {"series": self.series_, "errors": np.where(known, self.errors_, 0), "known": known}
        arrays |= {f"params.{name}": one for name, one in flatten(self._params)}
        if line is not None:
            arrays |= {"line.mean": line.inputs.mean, "line.std": line.inputs.std}
            arrays |= {"line.weights": line.weights, "line.means": line.means}
        facts = {
            "settings": {name: _plain(value) for name, value in vars(self._fitted).items() if name != "folder"},
            "model": described(self.model_),
            "line": None if line is None else {"size": line.size, "penalty": line.penalty},
            "fitted": {"flat": self._flat, "share": self.share_, "columns": columns, "result": self.result_},
        }
        write_checkpoint(path, arrays, {"forecaster_format": FORMAT, "forecaster": facts})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a forecaster that `save` wrote. FileNotFoundError if there is no such file, ValueError if it is damaged
        or of another kind; the error names it."""
        check_file(f"{cls.__name__}.load", path)
        arrays, facts = read_checkpoint(path)
        if facts.get("forecaster_format") != FORMAT:
            raise ValueError(f"{path}: is not a forecaster, expected a file that Forecaster.save wrote")
        try:
            one = cls._read(arrays, facts["forecaster"])
            like = one._like()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        check_like(path, arrays, like)
        return one

    @classmethod
    def _read(cls, arrays: dict[str, Numbers], facts: dict[str, Any]) -> Self:
        """Returns the forecaster of a file."""
        settings, fitted, line = facts["settings"], facts["fitted"], facts["line"]
        quantiles, layer = settings["quantiles"], settings["layer"]
        settings["quantiles"] = None if quantiles is None else tuple(quantiles)
        settings["layer"] = layer if isinstance(layer, str) else made(layer, "layer")
        one = cls(**settings)
        one._check(Boundary(f"{cls.__name__}.load"))
        one._keep_settings()
        one.model_ = made(facts["model"], "model")
        if type(one.model_) is not StepRegressor:
            raise ValueError(f"model is {an(type(one.model_).__name__)}, expected a StepRegressor")
        prefix = "params."
        one._params = unflatten({name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)})
        one.model_.check_params(one._params)
        one.params_ = astype(one._params, np.float32)
        one.form_ = Form(one.horizon, one.period, one.levels)
        if line is not None:
            inputs = Scale(arrays["line.mean"], arrays["line.std"])
            of_line = line["size"], one.horizon, line["penalty"], inputs, arrays["line.weights"], arrays["line.means"]
            one.form_ = replace(one.form_, line=Lags(*of_line))
        one.series_, one.share_, one._flat = arrays["series"], float(fitted["share"]), bool(fitted["flat"])
        one.errors_ = np.where(arrays["known"], arrays["errors"], np.nan)
        one._given = one.series_ if fitted["columns"] is None else frames.Named(fitted["columns"])
        one.result_ = fitted["result"]
        one.n_iter_ = one.result_["steps"]
        return one

    def _like(self) -> dict[str, Numbers]:
        """Returns arrays of the shapes and dtypes that those of a file have."""
        n, V = self.series_.shape
        H, line = self._fitted.horizon, self.form_.line
        shapes: dict[str, tuple[int, ...]] = {"series": (n, V), "errors": (n, H, V)}
        if line is not None:
            L = line.size * V
            shapes |= {"line.mean": (L,), "line.std": (L,), "line.weights": (L, H * V), "line.means": (H * V,)}
        like = {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}
        like["known"] = np.broadcast_to(False, (n, H, V))
        return like | {f"params.{name}": one for name, one in flatten(self._params)}

    def _check_interval(self, call: str, interval: float | None, quantiles: bool) -> None:
        where = f"{type(self).__name__}.{call}: interval is {interval!r}"
        if interval is not None and not 0 < _number(interval) < 1:
            raise ValueError(f"{where}, expected a number between 0 and 1, or None")
        if interval is not None and quantiles:
            raise ValueError(f"{where} with quantiles, expected one of the two")

    def _forecasts(self, y: Numbers) -> Numbers:
        """Returns the forecasts of the middle quantile at every step of a series, (n, horizon, V)."""
        origins = np.arange(len(y))
        corrections = self._corrections(y, origins)[..., middle(self._fitted.quantiles)]
        return np.asarray(self.form_.base(y, origins) + corrections)

    def _errors(self, y: Numbers, forecasts: Numbers) -> Numbers:
        """Returns the errors (m, horizon, V) in a series that begins with the fitted one: `errors_`, and where they
        have no number because it ended, those of its forecasts; NaN where y ends."""
        n, m, H = len(self.series_), len(y), self._fitted.horizon
        at = np.arange(m)[:, None] + np.arange(1, H + 1)
        made = np.where(((n <= at) & (at < m))[..., None], forecasts - y[np.minimum(at, m - 1)], np.nan)
        made[:n] = np.where(np.isnan(self.errors_), made[:n], self.errors_)
        return made

    def _spread(self, call: str, errors: Numbers, origin: int, share: float) -> Numbers:
        """Returns the half widths (horizon, V) of intervals for an origin, by the errors that are known at it."""
        width = np.empty(errors.shape[1:])
        for h, v in np.ndindex(*width.shape):
            known = np.abs(errors[: max(origin - h, 0), h, v])
            known = np.sort(known[~np.isnan(known)][-math.ceil(OUTSIDE / (1 - share)) :])
            if not len(known):
                expected = f"None: no forecast {h + 1} steps ahead was held out (validation_fraction)"
                raise ValueError(f"{type(self).__name__}.{call}: interval is {share!r}, expected {expected}")
            if (place := math.ceil((len(known) + 1) * share)) > len(known):
                k, digits = len(known), 10 ** (len(str(len(known))) + 1)  # rounded down, so that it is one that holds
                most = f"at most {digits * k // (k + 1) / digits}: {k} errors are known {h + 1} steps ahead"
                raise ValueError(f"{type(self).__name__}.{call}: interval is {share!r}, expected {most}")
            width[h, v] = known[place - 1]
        return width

    def _interval(self, forecasts: Numbers, width: Numbers) -> Numbers:
        """Returns the ends of intervals about forecasts (..., V, Q)."""
        mid = forecasts[..., middle(self._fitted.quantiles)]
        return self._shaped(np.stack([mid - width, mid + width], -1), True)

    def backtest(
        self, y: npt.ArrayLike, *, quantiles: bool = False, interval: float | None = None
    ) -> tuple[Numbers, Numbers]:
        """Returns forecasts of a series y (m,) or (m, V) that follows the fitted one, from every step, and naive ones.

        Returns
        -------
        forecasts, naive : (m, horizon) or (m, horizon, V)
            In row i what is forecast of y[i], y[i + 1], ... when all before y[i] is known; naive is what `period`
            repeats. With `quantiles`, forecasts have a last axis Q; with `interval`, they are the ends of intervals, as
            of `predict`, by the errors that are known when y[i] is not.
        """
        self._check_fitted("backtest")
        self._check_quantiles("backtest", quantiles)
        self._check_interval("backtest", interval, quantiles)
        later, _ = self._series("backtest", y)
        found, naive = self._backtest(later)
        naive = naive[..., 0] if self._flat else naive
        if interval is None:
            return self._shaped(found, quantiles), naive
        n = len(self.series_)
        whole = np.concatenate([self.series_, later])
        errors = self._errors(whole, self._forecasts(whole))
        width = np.stack([self._spread("backtest", errors, n - 1 + i, interval) for i in range(len(later))])
        return self._interval(found, width), naive

    def _backtest(self, later: Numbers) -> tuple[Numbers, Numbers]:
        """Returns what `backtest` does, forecasts (m, horizon, V, Q) and naive ones (m, horizon, V), of (m, V)."""
        whole = np.concatenate([self.series_, later])
        origins = np.arange(len(self.series_) - 1, len(whole) - 1)
        found = self.form_.base(whole, origins)[..., None] + self._corrections(whole, origins)
        return found, self._naive(whole, origins)

    def score(self, y: npt.ArrayLike) -> float:
        """Returns the skill on a series that follows the fitted one: 1 - (mean absolute error) / (that of the naive
        forecast), over all steps and all of the horizon. 0 is as good as naive, 1 is perfect."""
        self._check_fitted("score")
        later, _ = self._series("score", y)
        found, naive = self._backtest(later)
        at = np.arange(len(later))[:, None] + np.arange(self._fitted.horizon)
        there, truth = at < len(later), later[np.minimum(at, len(later) - 1)]
        errors = [np.abs(one - truth)[there].mean() for one in (found[..., middle(self._fitted.quantiles)], naive)]
        return float(1 - errors[0] / errors[1]) if errors[1] else 0.0
