"""The base of estimators: settings, training by a recipe, and checks of arguments."""

from __future__ import annotations

import copy
import inspect
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from rotrnn._support.files import check_folder
from rotrnn._support.settings import Unfit, fit
from rotrnn._support.text import alike, an
from rotrnn._support.warn import warn
from rotrnn.devices.cuda import DeviceError
from rotrnn.devices.device import HOST, named
from rotrnn.estimators.routing import METHODS, metadata_of, routing, setter
from rotrnn.models.build import MOST_LAYERS, MOST_WIDTH, ModelSettings, make_layer
from rotrnn.models.model import SequenceModel
from rotrnn.models.regressor import LOSSES, Regression, check_objective
from rotrnn.nn.layer import Context, Params, Recurrent, astype, moved
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.boundary import Boundary, on_host, rename
from rotrnn.tasks import Task
from rotrnn.tasks.arrays import Arrays, save_arrays
from rotrnn.tasks.frames import array_of, check_names, is_frame, is_missing, text_names
from rotrnn.tasks.frames import names as names_of
from rotrnn.tasks.own import HEADS, Sequences, SequenceSplit, check_range, check_span, intervals_of, joined
from rotrnn.tasks.rules import Scale
from rotrnn.tasks.task import Index, shuffled
from rotrnn.training.evaluation import logits_of
from rotrnn.training.loop import Interrupted, train
from rotrnn.training.optimiser import AdamW, Moments, NonFinite
from rotrnn.training.recipe import Recipe, Training, pick
from rotrnn.training.run import Run
from rotrnn.training.state import initial_state

Numbers = npt.NDArray[Any]
X = npt.ArrayLike | Sequence[npt.ArrayLike]
Method = TypeVar("Method", bound=Callable[..., Any])

DEFAULTS = {"length": 64}
"""Settings of layers that have no default, besides `d_state`, which is the width."""
BATCH = 256
"""Sequences of a prediction at a time."""
MOST_UPDATES = 2**31
"""Largest number of updates, and of evaluations to wait for."""


@dataclass
class Trained:
    """The state from which training goes on: the parameters for scaled numbers, the optimiser's moments, and the
    numbers of updates and of passes of `partial_fit`."""

    recipe: Recipe
    inputs: Scale
    outputs: Scale
    params: Params
    moments: Moments
    step: int = 0
    passes: int = 0


def all_or_nothing(method: Method) -> Method:
    """Returns a method of an estimator that changes none of its attributes if it fails or is stopped: what was fitted
    before stays whole. The method may set attributes, but not change their values in place."""

    @wraps(method)
    def whole(self: Any, *args: Any, **named: Any) -> Any:
        before = dict(vars(self))
        try:
            return method(self, *args, **named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return whole  # type: ignore[return-value]


class Estimator:
    """The base of the estimators: settings, and training by a recipe. They train in float32 and predict in float64.

    A `fit` or `partial_fit` that fails or is stopped changes no attribute: what was fitted before stays whole.

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
        Number of times that training sees each sequence (or window), at most. An epoch is as many updates as there are
        whole batches, and a single one where there are fewer sequences than a batch.
    batch_size : int
        Sequences per update; fewer if there are fewer.
    learning_rate, weight_decay : float
        Of AdamW, with a cosine schedule.
    validation_fraction : float
        Share of the data that is held out: the parameters that do best on it are kept. 0: the last parameters are kept.
        Each class has its share in it.
    patience : int, optional
        Training stops after this number of evaluations in a row, one an epoch, without improvement; a score equal to
        the best is none. None: never.
    random_state : int
        Seed of initial values, order, dropout and the held-out part: the same seed gives the same numbers.
    folder : path, optional
        New folder that keeps the run, with its log, checkpoints and data: `rotrnn plot FOLDER` draws it. One folder is
        one fit: leave it out in cross-validation and searches.
    verbose : bool
        Print evaluations and show progress.
    device : str
        "cpu" or "cuda", as of `rotrnn.train`.

    Attributes
    ----------
    n_features_in_ : int
        Number of features of a step.
    feature_names_in_ : array of texts
        Names of the columns of `x` in the fit, if `x` was a frame (n, time), whose columns are steps, or a list of
        frames (time_i, features). Later calls with frames raise ValueError if the names or their order differ. Arrays
        have no names: they give a warning then, as in a list with frames, and may have another number of steps.
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
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(f"{type(self).__name__}: {self._unknown(name)}")
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
        """Returns the names of all parameters: first the class's own, then the parameters of all estimators."""
        inits = (vars(kind)["__init__"] for kind in cls.__mro__[:-1] if "__init__" in vars(kind))
        arguments = (one for init in inits for one in inspect.signature(init).parameters.values())
        return list(dict.fromkeys(one.name for one in arguments if one.name != "self" and one.kind != one.VAR_KEYWORD))

    @classmethod
    def _unknown(cls, name: str) -> str:
        known = cls._names()
        return f"unknown setting {name!r}, expected one of {', '.join(known)}{alike(name, known)}"

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
                raise ValueError(f"{type(self).__name__}.set_params: {self._unknown(name)}")
        return self

    def __repr__(self) -> str:
        fresh = type(self)().get_params()  # compared as texts: == of arrays is an array
        changed = [f"{name}={one!r}" for name, one in self.get_params().items() if repr(one) != repr(fresh[name])]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for method in METHODS:
            if hasattr(cls, method) and metadata_of(cls, method):
                setattr(cls, f"set_{method}_request", setter(cls, method))

    def get_metadata_routing(self) -> Any:
        """Returns which metadata scikit-learn passes to which method, as ``set_fit_request(sample_weight=True)`` and
        others have set; scikit-learn calls this."""
        return routing(self)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "params_")

    def __sklearn_tags__(self) -> Any:
        """Returns the tags for scikit-learn, which calls this."""
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
        """Checks all settings, by the caller's names, before they are used."""
        args.integer("width", self.width, 1, MOST_WIDTH)
        args.integer("depth", self.depth, 1, MOST_LAYERS)
        args.integer("epochs", self.epochs, 1)
        args.integer("batch_size", self.batch_size, 1)
        args.number("learning_rate", self.learning_rate, positive=True)
        args.number("weight_decay", self.weight_decay)
        for name, share in (("dropout", self.dropout), ("validation_fraction", self.validation_fraction)):
            if not 0 <= number(share) < 1:
                raise ValueError(f"{args.op}: {name} is {share!r}, expected a number of at least 0, below 1")
        if self.patience is not None:
            args.integer("patience", self.patience, 1, MOST_UPDATES)
        args.integer("random_state", self.random_state, 0, 2**63 - 1)
        named(args.op, self.device)
        self._layer(args)
        if self.folder is not None and args.op.endswith(".fit"):
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

    def _recipe(self, call: str, task: Any, loaded: Task, class_weights: Any = None, **model: Any) -> Recipe:
        """Returns the recipe of these settings for a task. Errors name `call`."""
        args = Boundary(f"{type(self).__name__}.{call}")
        layer = self._layer(args)
        batch = min(int(self.batch_size), len(loaded.train))
        epoch = max(len(loaded.train) // batch, 1)
        epochs = args.integer("epochs", self.epochs, 1, MOST_UPDATES // epoch)
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
        of the block, and errors do not name it."""
        call = f"{type(self).__name__}.fit"
        made = tempfile.TemporaryDirectory(prefix="rotrnn-") if self.folder is None else nullcontext(self.folder)
        with made as folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(os.path.abspath(folder), "data.npz")
            try:
                yield path
            except ValueError as error:
                for place in (f"{path}:", "Series:", "save_arrays:"):
                    rename(error, place, f"{call}:")
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
        """Trains, and sets what is fitted. Scales become part of the encoder and of the head; `_params` serve
        predictions, in float64: in float32 a mean of many deviations would leave few digits, or none."""
        self.result_ = train(recipe, folder, progress=self.verbose, device=self.device)
        run = Run(Path(folder))
        self.model_: SequenceModel = recipe.build(loaded)
        params = run.load_params("last" if loaded.val is loaded.train else "best")
        arrays, facts = run.read("last", recipe)
        moments = {name: one for name, one in arrays.items() if name.startswith(("m.", "v."))}
        self._keep_settings()
        self._set(Trained(recipe, inputs, outputs, params, moments, facts["step"]))

    def _set(self, trained: Trained) -> None:
        """Sets what is fitted."""
        exact = scaled(self.model_, trained.params, trained.inputs, trained.outputs)
        self._params, self.params_ = astype(exact, np.float64), astype(exact, np.float32)
        self._trained, self.n_iter_ = trained, trained.step

    def _keep_settings(self) -> None:
        """Keeps the settings of this fit: what is fitted goes by them, whatever `set_params` changes later."""
        self._fitted = SimpleNamespace(**copy.deepcopy(self.get_params()))

    def _outputs(self, call: str, x: X, dt: X | None = None) -> Numbers:
        """Returns the model's outputs for sequences, in float64: in float32 they would differ in their last digits with
        the number of sequences in a call."""
        self._check_fitted(call)
        where = f"{type(self).__name__}.{call}"
        values, lengths, names = self._checked(where, x, True)
        self._check_dt(where, dt)
        times = intervals_of(where, dt, lengths, names if is_frame(x) else None)
        data = Sequences(values, lengths, np.zeros(len(lengths), np.int64), dt=times)
        split = SequenceSplit(data, np.arange(len(data)), Scale.none(values.shape[1]))
        rows = (np.arange(i, min(i + BATCH, len(data))) for i in range(0, len(data), BATCH))
        batches = ((split.batch(one, np.float64), split.intervals(one)) for one in rows)
        return np.concatenate([logits_of(self.model_, self._params, one, dt=times) for one, times in batches])

    def _checked(self, where: str, x: X, again: bool) -> tuple[Numbers, Index, tuple[str, ...] | None]:
        """Returns sequences with their lengths, as `sequences` does, and the names of their columns; a warning if some
        of a list have no names. `again`, after a fit, compares them with the fit: ValueError if names or the number of
        features differ, a warning if one of the two has no names."""
        names = text_names(where, x)
        fitted = getattr(self, "feature_names_in_", None) if again else None
        if names is not None and fitted is not None:
            check_names(where, names, fitted)
        values, lengths = sequences(where, x)
        if again:
            self._check_features(values, x)
        plain = ["X"] if names is None else []
        if names is not None and isinstance(x, list | tuple):
            plain = [f"X[{i}]" for i, one in enumerate(x) if names_of(one) is None]
        if plain and (fitted is not None or (not again and names is not None)):
            others = "fit was with feature names" if again else "others have them"
            expected = f"but {others}: its columns are not compared"
            warn(f"{where}: {plain[0]} does not have valid feature names, {expected}")
        elif again and fitted is None and names is not None:
            warn(f"{where}: X has feature names, but fit was without feature names")
        return values, lengths, names

    def _keep_features(self, data: Sequences) -> None:
        """Keeps the number of features of the first fit, and the names of the columns, if there are any."""
        self.n_features_in_ = data.values.shape[1]
        if data.names is not None:
            self.feature_names_in_ = np.array(data.names, object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_features(self, values: Numbers, x: X) -> None:
        """Raises ValueError if sequences (steps, F) have another number of features than the fit."""
        if values.shape[1] != self.n_features_in_:
            expected = f"is expecting {self.n_features_in_} features as input"
            one = "; [x] is one sequence" if getattr(x, "shape", ())[1:] == (self.n_features_in_,) else ""
            raise ValueError(f"X has {values.shape[1]} features, but {type(self).__name__} {expected} (per step){one}")

    def _check_dt(self, where: str, dt: X | None) -> None:
        """Raises ValueError if the fit had intervals and there are none, or the other way round, NotImplementedError if
        the layer takes none."""
        self.model_.check_timed(Boundary(where), dt)
        if dt is not None:
            self.model_.check_dt(Boundary(where))
            if not self.model_.timed:
                raise ValueError(f"{where}: got dt, expected None: fit had no intervals")

    def _begin(self, x: X, y: Any, sample_weight: Any, dt: X | None, *, numbers: bool, call: str = "fit") -> Sequences:
        """Checks the settings, and returns the sequences with targets (`targets_of`), weights and intervals, without
        the sequences of weight 0; weights that are all the same are None. Errors of x come before errors of y."""
        args = Boundary(f"{type(self).__name__}.{call}")
        self._check(args)
        again = call != "fit" and self.__sklearn_is_fitted__()
        values, lengths, names = self._checked(args.op, x, again)
        if again:
            self._check_dt(args.op, dt)
        elif dt is not None:
            self._layer(args).check_dt(args)
        labels = targets_of(args.op, y, numbers=numbers)
        if len(labels) != len(lengths):
            raise ValueError(f"{args.op}: y has {len(labels)} labels, expected {len(lengths)}, one for each sequence")
        check_span(f"{args.op}: X", values)
        if numbers:
            check_span(f"{args.op}: y", labels.reshape(len(labels), -1))
        weights = shares_of(args.op, sample_weight, len(lengths))
        times = intervals_of(args.op, dt, lengths, names if is_frame(x) else None)
        if weights is not None:
            there = weights > 0
            of_steps = np.repeat(there, lengths)
            values, times, lengths = values[of_steps], None if times is None else times[of_steps], lengths[there]
            labels, weights = labels[there], None if len(set(weights[there])) == 1 else weights[there]
        return Sequences(values, lengths, labels, weights=weights, names=names, dt=times)

    def _fit(self, data: Sequences, kind: str, scale: bool, class_weights: Any = None, **model: Any) -> None:
        """Fits sequences that are checked."""
        self._keep_features(data)
        held = self._share(len(data))
        with self._place() as path:
            dt = None if data.dt is None else np.split(data.dt, data.first[1:])
            save_arrays(path, np.split(data.values, data.first[1:]), data.labels, weights=data.weights, dt=dt)
            task = Arrays(
                str(path), kind=kind, val_fraction=held, test_fraction=0.0, seed=self.random_state, scale=scale,
                stratified=kind == "classification",
            )  # fmt: skip
            loaded = task.load()
            own = loaded.train
            assert isinstance(own, SequenceSplit)
            outputs = own.targets or Scale.none(loaded.n_classes)
            recipe = self._recipe("fit", task, loaded, class_weights, **model)
            self._train(recipe, path.parent, loaded, own.inputs, outputs)
        self.model_ = replace(self.model_, timed=data.dt is not None)

    def _partial_fit(
        self, data: Sequences, kind: str, scale: bool, outputs: int, class_weights: Any = None, **model: Any
    ) -> None:
        """Trains for one pass over sequences that are checked, from where the last pass, or `fit`, ended. The first
        pass decides settings and scales. A call that fails changes nothing."""
        every, numbers = np.arange(len(data)), kind == "regression"
        if self.__sklearn_is_fitted__():
            trained, net = copy.deepcopy(self._trained), self.model_
        else:
            F = data.values.shape[1]
            read = data.scale_of(data.values, every, marks=True) if scale else Scale.none(F)
            wanted = data.scale_of(data.labels, every) if scale and numbers else Scale.none(outputs)
            split = SequenceSplit(data, every, read)
            task = Task("arrays", split, split, split, outputs, None, F, head=HEADS[kind][False])
            recipe = self._recipe("partial_fit", Arrays(kind=kind), task, class_weights, **model)
            net = recipe.build(task)
            state = initial_state(net, recipe)
            trained = Trained(recipe, read, wanted, state.params, state.moments)
        # of a target that was constant so far, another number may come
        trained.outputs = Scale(trained.outputs.mean, trained.outputs.divisor)
        split = SequenceSplit(data, every, trained.inputs, trained.outputs if numbers else None)
        recipe, settings = trained.recipe, getattr(self, "_fitted", self)
        device = named(f"{type(self).__name__}.partial_fit", settings.device)
        optimiser = replace(recipe.optimiser, schedule="constant", warmup=0.0)
        group_of, seed = optimiser.grouping(net.is_recurrent), recipe.training.seed
        params, moments = moved(trained.params, device), moved(trained.moments, device)
        order = shuffled(len(data), seed, trained.passes + 1)
        for index in np.array_split(order, -(-len(data) // int(settings.batch_size))):
            batch, share = split.batch(index), split.weights(index)
            ctx = Context(batch.lengths, train=True, seed=seed, step=trained.step, dt=split.intervals(index))
            logits, saved = net.forward(params, device.asarray(batch.inputs), ctx)
            loss = net.loss(
                logits, device.asarray(batch.labels), batch.lengths, None if share is None else device.asarray(share)
            )
            try:
                if not math.isfinite(loss.mean):
                    raise NonFinite(f"the loss is {loss.mean}")
                grads = net.backward(params, saved, loss.dlogits, None)
                optimiser.update(params, grads, moments, group_of, trained.step, trained.step + 1)
            except NonFinite as error:
                raise NonFinite(f"{type(self).__name__}.partial_fit: step {trained.step + 1}: {error}") from error
            trained.step += 1
        trained.passes += 1
        trained.params, trained.moments = moved(params, HOST), moved(moments, HOST)
        if not self.__sklearn_is_fitted__():
            self._keep_features(data)
            self._keep_settings()
        self.model_ = replace(net, timed=net.timed or data.dt is not None)
        self._set(trained)


def number(value: Any) -> float:
    """Returns a number as it is, and NaN for anything else."""
    try:
        number: float = fit(value, float)
    except Unfit:
        return math.nan
    return number


def check_regression(args: Boundary, objective: str, quantiles: tuple[float, ...] | None) -> None:
    """Checks the two settings of a regression."""
    args.choice("objective", objective, LOSSES)
    if objective == "quantile" and quantiles is None:
        expected = "increasing numbers between 0 and 1, such as (0.1, 0.5, 0.9)"
        raise ValueError(f"{args.op}: quantiles is None with objective 'quantile', expected {expected}")
    try:
        check_objective(args.op, objective, fit(quantiles, tuple[float, ...] | None) or ())
    except Unfit:
        expected = "increasing numbers between 0 and 1, or None"
        raise ValueError(f"{args.op}: quantiles is {quantiles!r}, expected {expected}") from None


def scaled(model: SequenceModel, params: Params, inputs: Scale, outputs: Scale) -> Params:
    """Returns the parameters by which a model takes and returns unscaled numbers, from its parameters for scaled
    numbers.

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
        array = array_of(call, "X", x)
    elif isinstance(x, str) or not isinstance(x, Sequence):
        raise TypeError(f"{call}: X is {an(type(x).__name__)}, expected an array, or a list of arrays")
    given: Any = x if array is None else array
    listed = array is None or (array.dtype.kind == "O" and array.ndim == 1)
    if listed:
        given = [array_of(call, f"X[{i}]", one) for i, one in enumerate(given)]
        array = np.asarray(given) if len({one.shape for one in given}) == 1 else None
    if array is not None and array.ndim not in (2, 3):
        one = ": [x] is one sequence" if array.ndim == 1 else ""
        raise ValueError(
            f"{call}: Expected 2D array, (n, time), or 3D array, (n, time, features), got {array.ndim}D array instead. "
            f"Reshape your data{one}"
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

    def place(at: Sequence[int]) -> str:
        row = int(np.searchsorted(np.cumsum(lengths), at[0], side="right"))
        step = at[0] - int(lengths[:row].sum())
        columns = names_of(x[row] if isinstance(x, list | tuple) else x)
        feature = f"feature {at[1]}" if columns is None else f"column {columns[step if is_frame(x) else at[1]]!r}"
        return f": sequence {row}, step {step}, {feature}"

    values = _numbers(call, "X", values, place)
    _check_finite(call, "X", values, place)
    check_range(f"{call}: X", values)
    return values, lengths


def _check_finite(call: str, name: str, values: Numbers, place: Callable[[Sequence[int]], str]) -> None:
    """Raises ValueError, with the place of the first, if numbers are not finite."""
    if values.dtype.kind == "f" and len(wrong := np.argwhere(~np.isfinite(values))):
        what = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(f"{call}: Input {name} contains {what}{place(wrong[0].tolist())}")


def _numbers(call: str, name: str, array: Numbers, place: Callable[[Sequence[int]], str]) -> Numbers:
    """Returns an array as float64. TypeError or ValueError if it is complex or not of numbers, with the place of the
    first that is none."""
    if array.dtype.kind == "c":
        raise ValueError(f"{call}: Complex data not supported, {name} has dtype {array.dtype}")
    if array.dtype.kind not in "biufO":
        raise ValueError(f"{call}: {name} has dtype {array.dtype}, expected numbers")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        first = next(i for i in range(array.size) if not _converts(array.reshape(-1)[i : i + 1]))
        at = place([int(i) for i in np.unravel_index(first, array.shape)])
        raise kind(f"{call}: {name} has dtype {array.dtype}, expected numbers: {error}{at}") from error


def _converts(array: Numbers) -> bool:
    """Returns whether an array of objects holds numbers."""
    try:
        array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def targets_of(
    call: str,
    y: Any,
    *,
    numbers: bool,
    name: str = "y",
    columns: Sequence[Any] | None = None,
    row: Callable[[int], Any] = int,
) -> Numbers:
    """Returns y, the argument `name`, as an array (n,) or (n, K), in float64 if it has to be of `numbers`. TypeError or
    ValueError if it is None, complex, empty, not finite, or of another form; a place has the name of one of its
    `columns`, by default those of a frame y, and of a `row`, by default its number."""
    if y is None and name != "y":
        raise ValueError(f"{call}: {name} is None, expected numbers (n,) or (n, K)")
    if y is None:
        raise ValueError(f"{call}: requires y to be passed, but the target y is None")
    array = array_of(call, name, y) if numbers else on_host(call, name, y)
    known = getattr(y, "columns", None) if columns is None else columns

    def place(at: Sequence[int]) -> str:
        column = f", column {at[1] if known is None else known[at[1]]!r}" if len(at) == 2 else ""
        return f": row {row(at[0])}{column}" if len(at) else ""

    if numbers or array.dtype.kind == "c":
        array = _numbers(call, name, array, place)
    values = array
    if array.dtype.kind == "O":  # of labels of any kind
        values = np.array([_float_of(one) for one in array.flat]).reshape(array.shape)
    _check_finite(call, name, values, place)
    if array.ndim not in (1, 2):
        raise ValueError(f"{call}: {name} has shape {array.shape}, expected (n,) or (n, K)")
    if not array.size:
        raise ValueError(f"{call}: {name} is empty, of shape {array.shape}, expected at least one row and column")
    if numbers:
        check_range(f"{call}: {name}", array)
    return array


def _float_of(label: Any) -> float:
    """Returns a label that is a floating-point number, NaN for None and pandas' NA and NaT, and 0 for anything else."""
    if label is None or is_missing(label):
        return math.nan
    return float(label) if isinstance(label, float | np.floating) else 0.0


def truth_of(call: str, y: Any, found: Numbers, *, numbers: bool) -> Numbers:
    """Returns the targets of predictions, in their shape. ValueError if there are more or fewer."""
    array = targets_of(call, y, numbers=numbers)
    if len(array) != len(found) or array.size != found.size:
        raise ValueError(f"{call}: y has shape {array.shape}, expected {found.shape} as of the predictions")
    return array.reshape(found.shape)


def shares_of(call: str, given: Any, n: int) -> Numbers | None:
    """Returns weights of n sequences, checked; None without any."""
    if given is None:
        return None
    if (shape := on_host(call, "sample_weight", given).shape) != (n,):
        raise ValueError(f"{call}: sample_weight has shape {shape}, expected ({n},)")
    weights = targets_of(call, given, numbers=True, name="sample_weight")
    if weights.min() < 0:
        raise ValueError(f"{call}: sample_weight has {weights.min():g} as its least number, expected at least 0")
    if not weights.any():
        raise ValueError(f"{call}: sample_weight is zero for every sequence, expected a positive number for one")
    return weights


def rearranged(found: Numbers) -> Numbers:
    """Returns quantiles (..., Q) in order. Each is learnt alone, so that a lower one may lie above a higher one; in
    order their loss is never larger (Chernozhukov, Fernandez-Val and Galichon 2010, proposition 4)."""
    return np.sort(found, axis=-1)


def middle(quantiles: Sequence[float] | None) -> int:
    """Returns the index of the quantile nearest to the median, the first of two as near; 0 without any."""
    return int(np.argmin(np.abs(np.array(quantiles or (0.5,)) - 0.5).round(12)))  # 0.7 - 0.5 is less than 0.5 - 0.3
