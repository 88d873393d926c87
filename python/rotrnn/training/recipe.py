"""Recipes: all settings of a run in one TOML file, read into frozen dataclasses; every key and type is checked."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from rotrnn._support.files import naming, read_most
from rotrnn._support.nested import DEEPEST, check_depth
from rotrnn._support.settings import TOML, Unfit, current, describe, fit, hints_of, optional, settle
from rotrnn._support.text import alike, an, nearest, plural
from rotrnn._support.toml import LARGEST, from_toml
from rotrnn._support.warn import warn
from rotrnn.devices.precisions import PRECISIONS
from rotrnn.models.build import ModelSettings, build_model, make_layer
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Recurrent
from rotrnn.nn.layers.bidirectional import Bidirectional, has_directions
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.boundary import Boundary
from rotrnn.tasks import TASKS, Settings, Shape, Task
from rotrnn.tasks.task import balanced_weights
from rotrnn.training.modules import Untrusted, load, locate
from rotrnn.training.optimiser import OPTIMISERS, SGD, AdamW

Table = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """The [training] section.

    Parameters
    ----------
    batch : int
        Number of sequences per update.
    steps : int
        Total number of updates.
    eval_every : int
        Number of updates between evaluations on the validation split. There is always one after the last update. Each
        evaluation writes a checkpoint.
    checkpoint_every : int
        Number of updates between additional checkpoints; 0 for none. There is one at least every five minutes anyway,
        the first after two, when an update ends.
    accumulate : int
        Number of parts of a batch that are computed one after the other (gradient accumulation), to save memory. Batch
        norm sees one part at a time.
    seed : int
        Seed of initial values, order of the data, and dropout.
    dtype : str
        Dtype of parameters and arithmetic: "float32" or "float64".
    precision : str
        How products of float32 matrices round their operands (`rotrnn.precision`): "float32" (not at all), "tf32" or
        "bf16".
    memory : str or int
        Memory that the blocks may take to keep arrays instead of recomputing them in backward: a number of bytes,
        "least" for none, or "auto" for a share of the memory available when the run begins (`rotrnn.training.memory`).
        It changes no result, so a run may continue with another value.
    patience : int, optional
        Number of successive evaluations without improvement after which training stops; a score equal to the best is
        none. The schedule of the learning rate still spans all `steps`. Without it, all steps are taken.
    class_weights : "balanced" or list of float, optional
        Weights of the classes in the loss, in evaluations too (`rotrnn.ops.cross_entropy`), one for each class, or for
        each bit the weight of its ones. "balanced" takes n / (C n_c), where n_c of n training labels are of class c,
        and C classes occur; for bits the number of zeros divided by the number of ones.
    label_smoothing : float
        The share, in [0, 1), of each label that the loss spreads evenly over all classes (`rotrnn.ops.cross_entropy`,
        PyTorch's setting of that name), in evaluations too. For labels that are classes.
    packed : bool
        Run ragged batches, in evaluations too, as one packed row without padding (`rotrnn.Context.cu_seqlens`). Losses
        and gradients equal padded batches up to rounding. On a GPU steps are not recorded as graphs. Neither with
        several processes nor with `task.carry`.
    skip : int
        The most steps in a row that may be left out because their loss or a gradient is not finite while every
        parameter is. Such a step changes nothing but its number, is logged without a loss, and warns. With 0, the
        default, it ends the run. The count begins anew when a run is resumed. Not with `task.carry`. On a GPU steps are
        then not recorded as graphs.
    init : str, optional
        The folder of a run, or a model's file or folder, with whose parameters the run begins, as far as the model has
        the same names and shapes. Other parameters, for example a head for another number of classes, are drawn; the
        optimiser's state is new. The taken names are printed, and written to sessions.json. A path in a recipe's file
        is relative to it.
    extended : list of int, optional
        Earlier values of `steps`, of a run that ended there and then continued (`rotrnn train` with more `steps` writes
        it). Up to each value, the learning rate follows a schedule over that number of steps.
    """

    batch: int
    steps: int
    eval_every: int = 1000
    checkpoint_every: int = 0
    accumulate: int = 1
    seed: int = 0
    dtype: str = "float32"
    precision: str = "float32"
    memory: str | int = "auto"
    patience: int | None = None
    class_weights: str | tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    packed: bool = False
    skip: int = 0
    init: str | None = None
    extended: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        settle(self)
        for key, low, high in (
            ("batch", 1, 2**31),
            ("steps", 1, 2**31),
            ("eval_every", 1, 2**31),
            ("checkpoint_every", 0, 2**31),
            ("accumulate", 1, self.batch),
            ("seed", 0, 2**63 - 1),
            ("skip", 0, 2**31),
            *([("patience", 1, 2**31)] if self.patience is not None else []),
        ):
            if not low <= getattr(self, key) <= high:
                raise ValueError(f"Training: {key} is {getattr(self, key)}, expected an integer from {low} to {high}")
        if self.memory not in ("auto", "least") and (isinstance(self.memory, str) or self.memory < 0):
            raise ValueError(
                f"Training: memory is {self.memory!r}, expected 'auto', 'least' or a number of bytes, an integer from 0"
            )
        weights = self.class_weights
        if isinstance(weights, str) and weights != "balanced":
            raise ValueError(f"Training: class_weights is {weights!r}, expected 'balanced' or a list of numbers")
        if isinstance(weights, tuple) and not (all(one >= 0 for one in weights) and any(weights)):
            raise ValueError(f"Training: class_weights is {weights}, expected numbers of at least 0, one above 0")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"Training: label_smoothing is {self.label_smoothing}, expected a number in [0, 1)")
        if self.init is not None and not self.init.strip():
            raise ValueError(f"Training: init is {self.init!r}, expected the path of a run or a model")
        ends = (0, *(self.extended or ()), self.steps)
        if any(one >= after for one, after in pairwise(ends)):
            expected = f"expected rising numbers from 1 to {self.steps - 1}, below steps"
            raise ValueError(f"Training: extended is {self.extended}, {expected}")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"Training: dtype is '{self.dtype}', expected 'float32' or 'float64'")
        if self.precision not in PRECISIONS:
            raise ValueError(f"Training: precision is '{self.precision}', expected one of {', '.join(PRECISIONS)}")
        if self.precision != "float32" and self.dtype == "float64":
            raise ValueError(
                f"Training: precision is '{self.precision}' with dtype 'float64', expected 'float32': it is not rounded"
            )

    def total(self, step: int) -> int:
        """Returns the number of steps of the schedule that update number `step` (from 0) follows."""
        return next((one for one in self.extended or () if step < one), self.steps)


@dataclass(frozen=True)
class Source:
    """The [source] section: where the settings come from. It has no influence on the run and is shown in tables.

    `accuracy` is the published figure for exactly the recipe's layer and task. `small` marks a small variant, or a
    recipe based on a small variant: its published figure belongs to the full recipe. A sweep sets `recipe` and
    `configuration`: the recipe that it runs, and the name of this configuration.
    """

    paper: str = ""
    table: str = ""
    accuracy: str = ""
    note: str = ""
    recipe: str = ""
    configuration: str = ""
    small: bool = False


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the result of a run. `layer` is the recurrent layer of each block.

    `modules` are the modules that were imported for layer and task, as located by `rotrnn.training.modules`. Neither
    their code nor their location is part of the recipe.
    """

    task: Settings
    model: ModelSettings
    layer: Recurrent
    optimiser: AdamW | SGD
    training: Training
    source: Source = field(default_factory=Source)
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_causal("", self.task, self.layer)
        task: Any = self.task  # a relative `path` would mean another file where a run is read
        if (path := getattr(task, "path", "")) and isinstance(path, str) and not os.path.isabs(path):
            object.__setattr__(self, "task", dataclasses.replace(task, path=os.path.abspath(path)))
        init = self.training.init
        if init is not None and not os.path.isabs(init):
            object.__setattr__(self, "training", dataclasses.replace(self.training, init=os.path.abspath(init)))

    def build(self, task: Task | Shape) -> SequenceModel:
        """Returns the model for a loaded task, or for the shape of a task, without class weights. ValueError if they do
        not fit: the data have intervals, say, and a layer takes none."""
        model = build_model(
            self.model,
            self.layer,
            head=task.head,
            n_classes=task.n_classes,
            vocab=task.vocab,
            n_features=task.n_features,
        )
        timed = isinstance(task, Task) and task.timed
        if timed:
            _check_dt(self, model)
        weights = self.training.class_weights
        if isinstance(weights, str):
            of_run = task.rules.balanced if isinstance(task, Task) and task.rules is not None else None
            weights = of_run or (balanced_weights(task) if isinstance(task, Task) else None)
        smoothing = self.training.label_smoothing
        return dataclasses.replace(model, class_weights=weights, label_smoothing=smoothing, timed=timed)

    def tables(self) -> dict[str, Table]:
        """Returns the sections in the form that `read_recipe` takes, with all defaults filled in."""
        name = next(name for name, kind in TASKS.items() if type(self.task) is kind)
        return {
            "task": {"name": name, **_plain(self.task)},
            "model": _plain(self.model),
            "layer": _layer_table(self.layer),
            "optimiser": {**({"name": "sgd"} if isinstance(self.optimiser, SGD) else {}), **_plain(self.optimiser)},
            "training": _plain(self.training),
            "source": _plain(self.source),
        }

    def moved(self, other: Recipe | None = None) -> Recipe:
        """Returns this recipe with the settings of `other` (or its own) that a continued run may change:
        `training.memory`, more steps, and data paths, made absolute so that a run finds its files from any working
        directory."""
        training = (self if other is None else other).training
        task: Any = self.task if other is None else other.task
        places = {key: getattr(task, key) for key in HERE if hasattr(self.task, key)}
        absolute = {key: os.path.abspath(one) if one and isinstance(one, str) else one for key, one in places.items()}
        return dataclasses.replace(
            self,
            task=dataclasses.replace(cast(Any, self.task), **absolute),
            training=dataclasses.replace(
                self.training, memory=training.memory, steps=training.steps, extended=training.extended
            ),
        )

    def longer(self, steps: int) -> Recipe:
        """Returns the recipe of this run when it goes on to more steps."""
        ends = (*(self.training.extended or ()), self.training.steps)
        return dataclasses.replace(self, training=dataclasses.replace(self.training, steps=steps, extended=ends))

    def before(self) -> list[Recipe]:
        """Returns the recipes that a run had before it went on to more steps, in order."""
        ends = self.training.extended or ()
        pasts = [dataclasses.replace(self.training, steps=n, extended=ends[:i] or None) for i, n in enumerate(ends)]
        return [dataclasses.replace(self, training=one) for one in pasts]

    def text(self, stated: dict[str, Table] | None = None) -> str:
        """Returns the recipe as TOML. With `stated`, the sections of a file, only of the settings that are there."""
        modules = f"import = {_literal(self.modules)}\n\n" if self.modules else ""
        return modules + write_toml(self._stated(stated))

    def _stated(self, stated: dict[str, Table] | None) -> dict[str, Table]:
        tables = self.tables()
        if stated is None:
            return tables
        of_file, removed = stated.get("layer", {}), LAYERS[self.model.layer].removed
        tables["layer"] |= {key: value for key, value in of_file.items() if key in removed}
        return {name: _common(one, stated.get(name, {})) for name, one in tables.items()}

    def digest(self, stated: dict[str, Table] | None = None) -> str:
        """Returns a SHA-256 of all settings that influence its result. Of data paths it only includes whether there are
        any.

        With `stated`, the sections of a run's file, only of the settings there: for a run from before a setting
        existed, this is the digest that it was written with.
        """
        tables = {name: table for name, table in self._stated(stated).items() if name != "source"}
        task = tables["task"]
        files = "somewhere" if task.get("data_dir") or task.get("download") else ""
        tables["task"] = task | {key: {**HERE, "data_dir": files}[key] for key in HERE if key in task}
        if tables["task"].get("carry") == 0:  # nor of this section
            tables["task"] = {key: value for key, value in tables["task"].items() if key not in CARRY}
        before = {
            "precision": "float32",
            "packed": False,
            "label_smoothing": 0.0,
            "skip": 0,
        }  # runs from before there was a choice have this digest
        tables["training"] = {
            key: value for key, value in tables["training"].items() if key != "memory" and value != before.get(key)
        }
        return hashlib.sha256(write_toml(tables).encode()).hexdigest()


def _check_dt(recipe: Recipe, model: SequenceModel) -> None:
    """Raises ValueError if a layer of the model takes no intervals."""
    try:
        model.check_dt(Boundary("build"))
    except NotImplementedError as error:
        data = getattr(recipe.task, "path", "") or f"the task {type(recipe.task).__name__}"
        what = str(error).removeprefix("build: got dt")
        raise ValueError(f"model.layer is {recipe.model.layer!r}, but {data} has intervals dt{what}") from error


def check_causal(call: str, task: Any, layer: Recurrent) -> None:
    """Raises ValueError, which begins with `call`, if a task is causal and a layer sees later steps: it could read the
    answers. (A batch norm sees later steps only in training, through the mean and variance of a batch.)"""
    if getattr(task, "causal", False) and getattr(layer, "bidirectional", False):
        name = next((name for name, kind in TASKS.items() if type(task) is kind), type(task).__name__)
        why = f"the task '{name}' is causal, and the layer would read the steps after the one it answers"
        raise ValueError(f"{call}layer.bidirectional is True, expected False: {why}")


def _common(table: Table, stated: Table) -> Table:
    """Returns the settings of a table that another has, too, in its order."""
    return {
        key: _common(table[key], value) if isinstance(value, dict) and isinstance(table[key], dict) else table[key]
        for key, value in stated.items()
        if key in table
    }


HERE = {"data_dir": "", "download": False, "cache_dir": ""}
"""Settings of tasks that locate their files, which may move."""

CARRY = ("carry", "carry_after", "carry_rise")
"""Settings of tasks without effect if `carry` is 0."""


@cache
def shipped() -> dict[str, str]:
    """The recipes of the package: name -> TOML text."""
    folder = resources.files("rotrnn") / "recipes"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}


@cache
def recipe_names() -> list[str]:
    """Names for `load_recipe`: the recipes of the package, and their variants "NAME-small"."""
    return [name for one in shipped() for name in (one, one + SMALL) if name == one or "small" in recipe_tables(one)]


SMALL = "-small"
BASES = 8
"""Recipes in a chain of bases, at most."""
NO_SECTIONS = ("base", "small", "sweep")
"""Keys of a recipe's file besides the sections that `read_recipe` takes."""
FRESH = {"model": ("layer", "layer"), "task": ("name", "task")}
"""Section -> (key, section that is reset when the key changes): the settings of one layer, and its published results,
do not apply to another."""


Origin = str | os.PathLike[str] | dict[str, Any]
"""Name or path of a recipe, or the contents of its file."""


def load_recipe(name: Origin, overrides: Sequence[str] | dict[str, Any] = (), *, trust: bool = True) -> Recipe:
    """Loads the recipe of that name from the package, or the TOML file at that path (it ends in .toml or has a slash).

    A dict stands for the contents of such a file in the working directory, such as ``{"base": "digits-lru", "training":
    {"steps": 100}}``.

    A recipe may begin with ``base = "another"``. Its sections then change the base's sections, key by key. Another
    layer or task resets its section, and the published accuracy. The section [small] lists the settings that the
    variant "NAME-small" (of a file, "NAME-small.toml") changes, such as ``"model.d_model" = 64``.

    A recipe may also begin with ``import = ["my_layers"]``. These modules are imported before the sections are read and
    register layers and tasks (`rotrnn.LAYERS`, `rotrnn.tasks.TASKS`) under the names that the recipe uses. A module is
    searched next to the recipe's file, then in the working directory, then among installed modules. "code/my_layers"
    has a folder relative to the recipe's. The recipe of a run (`Recipe.text`) records the folders in which the modules
    were found.

    Parameters
    ----------
    overrides : sequence of "section.key=value", or dict of "section.key" to values
        Replace values of the file; a value in a text is TOML, or a text without quotes. Another ``model.layer`` or
        ``task.name`` resets its section too: keys that the new section also has must be set again, and a warning names
        the rest.
    trust : bool
        Import the modules that the recipe names. Otherwise none of their code runs: modules that this process has
        already imported are used, others are an error. Recipes of runs are read in this way, by `rotrnn.plots` too.

    Raises
    ------
    ValueError
        There is no such recipe, the file is not valid TOML, a module is not found or fails, another layer or task drops
        a setting that it has, too, or as in `read_recipe`.
    """
    if not isinstance(name, str | os.PathLike | dict):
        raise TypeError(
            f"load_recipe: name is {an(type(name).__name__)}, expected the name of a recipe, a path or a dict"
        )
    if not isinstance(overrides, list | tuple | dict) or not all(isinstance(one, str) for one in overrides):
        expected = "a list of 'section.key=value', or a dict of 'section.key'"
        raise TypeError(f"load_recipe: overrides is {overrides!r}, expected {expected}")
    tables = {section: table for section, table in recipe_tables(name).items() if section not in NO_SECTIONS}
    changes = [*overrides.items()] if isinstance(overrides, dict) else [parse_override(one) for one in overrides]
    dropped: dict[str, list[str]] = {}
    try:
        dropped = change(tables, changes)
        recipe = read_recipe(tables, trust)
        check_dropped(recipe, dropped)
    except Untrusted as error:
        raise Untrusted(f"{_title(name)}: {error}") from None
    except ValueError as error:
        lost = ((place, key) for place, keys in dropped.items() for key in keys)
        missing = (
            f"; another {place} drops {key}" for place, key in lost if str(error).startswith(f"{key} is missing")
        )
        raise ValueError(f"{_title(name)}: {error}{next(missing, '')}") from error
    warn_of_dropped(_title(name), [dropped])
    return recipe


def check_dropped(recipe: Recipe, dropped: dict[str, list[str]], again: Collection[str] = ()) -> None:
    """Raises ValueError if a change of layer or task dropped a setting (`change`) that the new layer or task also has
    and that is not set `again`: with its default, the size would differ from the recipe's."""
    known = {"model.layer": layer_keys(LAYERS[recipe.model.layer]), "task.name": list(hints_of(type(recipe.task)))}
    for place, keys in dropped.items():
        _check_lost(place, [one for one in keys if one not in again], known[place])


def _check_lost(place: str, dropped: Sequence[str], known: Collection[str]) -> None:
    if lost := [one for one in dropped if one.partition(".")[2] in known]:
        expected = f"expected {plural(len(lost), 'value')} for it, {', '.join(f'{one}=...' for one in lost)}"
        raise ValueError(f"another {place} drops {', '.join(lost)}, which the new one has as well; {expected}")


NAMING = {"task.name": "task", "model.layer": "layer"}
"""The settings that select layer and task, and their names in the name of a result."""


def replaced(tables: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> list[str]:
    """Returns "layer=mamba2" for a change of layer or task to another value: a result is named by the layer and task
    that ran."""
    found = {}
    for place, value in changes:
        section, _, key = place.partition(".")
        if place in NAMING and tables.get(section, {}).get(key) != value:
            found[place] = f"{NAMING[place]}={value}"
    return list(found.values())


def _title(name: Origin) -> str | os.PathLike[str]:
    """Returns the name of a recipe in messages."""
    return "recipe" if isinstance(name, dict) else name


def warn_of_dropped(
    name: str | os.PathLike[str], dropped: Sequence[dict[str, list[str]]], again: Collection[str] = ()
) -> None:
    """Warns of the settings that changes of layer or task dropped (`change`), but for those that are set `again`."""
    for place in dict.fromkeys(place for one in dropped for place in one):
        keys = dict.fromkeys(key for one in dropped for key in one.get(place, ()) if key not in again)
        if keys:
            what = f"another {place} drops settings of the old one"
            warn(f"{name}: {what}: {', '.join(keys)}")


def recipe_tables(name: Origin, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the content of a recipe's file, merged with its bases and the changes of "NAME-small". [sweep] is not
    taken from a base.

    `above` are the recipes that this recipe is a base of: at most `BASES`, and none of them twice.
    """
    if isinstance(name, dict):
        return _merged("recipe", _copied(name), Path(), above)
    if _is_file(name) and Path(name).is_dir():
        file = Path(name, "recipe.toml")
        hint = f"; this run's is {file}, and rotrnn train --resume {name} goes on with it" if file.is_file() else ""
        raise ValueError(f"recipe is {str(name)!r}, a folder, expected a name or a .toml file{hint}")
    whole = _whole(name)
    if whole is not None and "small" in (tables := recipe_tables(whole, above)):
        try:
            _check_small(tables["small"], tables.get("sweep", {}))
            change(tables, [*tables["small"].items(), ("source.small", True)])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        return tables
    text, near = _find(name)
    here = str(Path(name).resolve()) if near is not None else str(name)
    if here in above:
        raise ValueError(f"base is {str(name)!r}, which is based on this recipe; expected another")
    if len(above) > BASES:
        raise ValueError(f"base is {str(name)!r}, after {BASES} others; expected a chain of at most {BASES}")
    try:
        own = from_toml(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return _merged(name, own, near, (*above, here))


def _copied(tables: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe that is given as a dict, so that no change reaches the caller's own."""
    try:
        check_depth(tables)
    except ValueError as error:
        raise ValueError(f"recipe: {error}") from error
    for key in _keys(tables):
        if not isinstance(key, str):
            raise ValueError(f"recipe: key {key!r:.80} is {an(type(key).__name__)}, expected a text")
    return copy.deepcopy(tables)


def _keys(table: dict[Any, Any]) -> Iterator[Any]:
    for key, value in table.items():
        yield key
        if isinstance(value, dict):
            yield from _keys(value)


def _merged(
    name: str | os.PathLike[str], own: dict[str, Any], near: Path | None, above: tuple[str, ...]
) -> dict[str, Any]:
    """Returns the content of a recipe merged with its bases; `above` are the recipe itself and those above it."""
    try:
        tables: dict[str, Any] = {}
        if "base" in own:
            tables = _base_tables(own["base"], near, above)
            tables.pop("sweep", None)
            _unset_small(tables, "sweep")
        dropped = _merge(tables, "model", own["model"]) if "model" in own else []
        if dropped and "layer" not in own and (kind := LAYERS.get(str(own["model"]["layer"]))):
            _check_lost("model.layer", dropped, layer_keys(kind))
        if "task" in own:
            _merge(tables, "task", _placed(own["task"], "path", near))
        if "import" in own:
            modules = [*tables.get("import", []), *locate(own["import"], near)]
            tables["import"] = list(dict.fromkeys(modules))
        for section, table in own.items():
            if section not in ("base", "import", "model", "task"):
                _merge(tables, section, _placed(table, "init", near) if section == "training" else table)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    # a recipe that sets its layer in the same section drops keys on purpose
    described = ["layer."] if "layer" in own else []
    if tables.get("source", {}).get("small") or any(one.startswith("layer.") for one in own.get("small", {})):
        described.append("small.layer.")
    warn_of_dropped(name, [{"model.layer": [one for one in dropped if not one.startswith(tuple(described))]}])
    return tables


def _placed(table: Any, key: str, near: Path | None) -> Any:
    """Returns a section with the path that it has by this key, if any, relative to the folder of the recipe's file."""
    if near is None or not isinstance(table, dict) or not isinstance(path := table.get(key), str):
        return table
    if not path or _is_none(path):
        return table
    return {**table, key: os.path.abspath(near / path)}


def _whole(name: str | os.PathLike[str]) -> str | Path | None:
    """Returns the recipe whose small variant is `name`; None if `name` is itself a recipe, or not a variant."""
    path = Path(name)
    if _is_file(name):
        plain = path.with_stem(path.stem.removesuffix(SMALL))
        return plain if plain != path and not path.exists() and plain.exists() else None
    known, plain_name = shipped(), str(name).removesuffix(SMALL)
    return plain_name if str(name) not in known and plain_name in known else None


def _is_file(name: str | os.PathLike[str]) -> bool:
    return Path(name).suffix == ".toml" or os.sep in str(name)


def _find(name: str | os.PathLike[str]) -> tuple[str, Path | None]:
    """Returns the text of a recipe, and the folder of its file; None for a recipe of the package."""
    if not _is_file(name):
        known = shipped()
        if str(name) not in known:
            neither = "which is neither a recipe of the package nor the path of a .toml file"
            if Path(f"{name}.toml").is_file():
                raise ValueError(f"recipe is {str(name)!r}, {neither}; did you mean {name}.toml?")
            plain = str(name).removesuffix(SMALL)
            close = [plain] if plain in known else recipe_names()
            every = f"; expected one of {', '.join(known)}, or one of those with a small variant and {SMALL} behind it"
            raise ValueError(f"recipe is {str(name)!r}, {neither}{alike(str(name), close) or every}")
        return known[str(name)], None
    with open(name, "rb") as file, naming(name):
        content = read_most(file, LARGEST)
    if len(content) > LARGEST:
        raise ValueError(f"{name}: has more than {LARGEST} bytes, expected a recipe")
    try:
        return content.decode(), Path(name).parent
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not valid TOML: {error}") from error


def _base_tables(base: Any, near: Path | None, above: tuple[str, ...]) -> dict[str, Any]:
    """Returns the tables of a recipe's base."""
    if not isinstance(base, str):
        raise ValueError(f"base is {base!r}, expected the name of a recipe, or the path of a .toml file")
    try:
        return recipe_tables(near / base if near is not None and base.endswith(".toml") else base, above)
    except OSError as error:
        raise ValueError(f"base is {base!r}, which cannot be read: {error}") from error


def _merge(tables: dict[str, Any], section: str, own: Any) -> list[str]:
    """Merges a section of a recipe into the section inherited from its base. Returns as `_reset_section`."""
    if not isinstance(own, dict):
        raise ValueError(f"{section} is {own!r}, expected a section [{section}]")
    dropped = _reset_section(tables, section, own) if section in FRESH else []
    tables[section] = {**tables.get(section, {}), **own}
    return dropped


def _reset_section(tables: dict[str, Any], section: str, own: dict[str, Any]) -> list[str]:
    """Resets a section when its layer or task changes. Returns the settings that this drops, as "section.key", and as
    "small.section.key" the small variant's."""
    key, fresh = FRESH[section]
    there = tables.get(section, {})
    dropped = []
    if key in own and own[key] != there.get(key):
        dropped = [f"{fresh}.{one}" for one in tables.get(fresh, {}) if (fresh, one) != (section, key)]
        tables[fresh] = {key: own[key]} if fresh == section else {}
        tables.get("source", {}).pop("accuracy", None)
        dropped += [f"small.{one}" for one in _unset_small(tables, fresh)]
    return dropped


VARIANTS = "sweep.variants."


def _check_small(small: dict[str, Any], sweep: dict[str, Any]) -> None:
    """Raises ValueError if [small] changes a variant that the sweep does not have, such as a mistyped one."""
    variants = sweep.get("variants", {})
    if not isinstance(variants, dict):  # `change` says so
        return
    for place in small:
        if place.startswith(VARIANTS) and (name := place.removeprefix(VARIANTS)) not in variants:
            known = f"with one of {', '.join(variants)}" if variants else "where the sweep has none"
            form = f'"{VARIANTS}NAME" = {{ "section.key" = value }}'
            what = f'small: "{place}" changes no variant of the sweep'
            raise ValueError(f"{what}, expected {form}, {known}{alike(name, variants)}")


def _unset_small(tables: dict[str, Any], section: str) -> list[str]:
    """Removes the changes of the small variant in a section, and returns their places."""
    small = tables.get("small", {})
    gone = [where for where in small if where.startswith(f"{section}.")]
    for where in gone:
        del small[where]
    return gone


def change(tables: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, list[str]]:
    """Sets each ("section.key", value). A key may lead into a nested table, such as "layer.iteration.tolerance".

    Returns, for each change of layer or task, the settings that it dropped and that no other change sets again.
    """
    dropped: dict[str, list[str]] = {}
    for place, value in sorted(changes, key=lambda one: one[0] not in ("model.layer", "task.name")):
        section, dot, path = place.partition(".")
        if not (dot and section and path):
            raise ValueError(f"'{place}': expected section.key, such as training.steps")
        if section in FRESH:
            kept = {one for one, _ in changes}
            if gone := [one for one in _reset_section(tables, section, {path: value}) if one not in kept]:
                dropped[place] = gone
        table = tables.setdefault(section, {})
        *way, key = path.split(".")
        if len(way) > DEEPEST:
            raise ValueError(f"{place[:40]!r}...: is nested more than {DEEPEST} deep")
        for at, step in enumerate((None, *way)):
            table = table if step is None else table.setdefault(step, {})
            if not isinstance(table, dict):
                raise ValueError(f"'{place}': {'.'.join([section, *way[:at]])} is not a section")
        table[key] = value
    return dropped


def parse_override(
    override: str, name: str = "overrides", form: str = "value, such as training.steps=100"
) -> tuple[str, Any]:
    """Returns place and value of "section.key=value", which errors call by the `name` of its argument or option."""
    try:
        override.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} {override!a}: expected section.key=value in UTF-8") from None
    place, equals, text = override.partition("=")
    if not (equals and "." in place.strip(". ")):
        raise ValueError(f"{name} {override}: expected section.key={form}")
    return place.strip(), parse_value(text)


def recipe_of(call: str, recipe: Any) -> Recipe:
    """Returns an argument that is a recipe, or a dict as `load_recipe` takes it. TypeError in the name of `call`."""
    if isinstance(recipe, dict):
        return load_recipe(recipe)
    if not isinstance(recipe, Recipe):
        expected = "a Recipe, such as load_recipe returns, or a dict"
        raise TypeError(f"{call}: recipe is {an(type(recipe).__name__)}, expected {expected}")
    return recipe


def read_recipe(tables: dict[str, Any], trust: bool = True) -> Recipe:
    """Returns a recipe from its sections. "import" lists the modules to import first, in the form that `locate`
    returns; `trust` is as in `load_recipe`.

    Raises
    ------
    ValueError
        A section or key does not exist (the error suggests the nearest one), is missing, or has a value of another type
        or out of range. The error names section and key, the value it got and what is expected.
    """
    modules = locate(tables.get("import", []), None)
    sections = [one.name for one in dataclasses.fields(Recipe) if one.name != "modules"]
    for name, table in tables.items():
        if name == "import":
            continue
        if name not in sections:
            raise ValueError(f"unknown section [{name}]{nearest(name, [*sections, 'import'])}")
        if not isinstance(table, dict):
            raise ValueError(f"{name} is {table!r}, expected a section [{name}]")
    load(modules, trust)
    task = dict(tables.get("task", {}))
    if "name" not in task:
        raise ValueError(f"task.name is missing, expected one of {', '.join(TASKS)}")
    name = task.pop("name")
    kind = pick("task.name", name, TASKS)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"TASKS[{name!r}] is {kind!r:.80}, expected a frozen dataclass")
    model = build(ModelSettings, "model", tables.get("model", {}))
    optimiser = dict(tables.get("optimiser", {}))
    by = pick("optimiser.name", optimiser.pop("name", "adamw"), OPTIMISERS)
    return Recipe(
        build(kind, "task", task),
        model,
        _layer(model, tables.get("layer", {})),
        build(by, "optimiser", optimiser),
        build(Training, "training", tables.get("training", {})),
        build(Source, "source", tables.get("source", {})),
        tuple(modules),
    )


def _layer(model: ModelSettings, table: Table) -> Recurrent:
    """The layer of the [layer] section, by `make_layer`; d_model is the model's."""
    if "d_model" in table:
        raise ValueError("layer.d_model cannot be set: the layer's width is model.d_model")
    kind = LAYERS[model.layer]
    own = current(kind, table)
    around = {key: own.pop(key) for key in ("history", "bidirectional") if key in own and key not in hints_of(kind)}
    if _is_none(around.get("history")):
        del around["history"]
    if "bidirectional" in around:
        around["bidirectional"] = _convert(around["bidirectional"], bool, "layer.bidirectional")
    if isinstance(history := around.get("history"), dict):
        around["history"] = build(StoredHistory, "layer.history", history, "d_model", "layer", make=dict)
    make = partial(make_layer, model.layer, model.d_model)
    layer: Recurrent = build(kind, "layer", own, "d_model", make=lambda **settings: make(settings | around))
    return layer


def _layer_table(layer: Recurrent) -> Table:
    """The inverse of `_layer`."""
    if isinstance(layer, Bidirectional):
        return {**_layer_table(layer.layer), "bidirectional": True}
    table = _plain(layer)
    del table["d_model"]
    if isinstance(layer, StoredHistory):
        del table["layer"]
        return {**_layer_table(layer.layer), "history": table}
    return table


def build(kind: type[Any], section: str, table: Table, *given: str, make: Callable[..., Any] | None = None) -> Any:
    """The dataclass `kind` from the keys of a section, or what `make` returns for them; the fields `given` are no
    keys."""
    hints = hints_of(cast(Any, kind))
    fields = {one.name: one for one in dataclasses.fields(kind) if one.name not in given}
    for key in table:
        if key not in fields:
            raise ValueError(f"unknown key {section}.{key}{nearest(key, fields)}")
    for key, one in fields.items():
        if key not in table and one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise ValueError(f"{section}.{key} is missing, expected {describe(hints[key], TOML)}")
    values = {key: _convert(value, hints[key], f"{section}.{key}") for key, value in table.items()}
    try:
        return (make or kind)(**values)
    except ValueError as error:
        raise ValueError(f"section [{section}]: {str(error).removeprefix('Training: ')}") from error


def layer_keys(kind: type[Recurrent]) -> list[str]:
    """The keys that [layer] takes for a layer: its own settings, `bidirectional`, and the table `history`."""
    own = [one.name for one in dataclasses.fields(cast(Any, kind)) if one.name != "d_model"]
    return [*own, *([] if has_directions(kind) else ["bidirectional"]), "history"]


def _convert(value: Any, hint: Any, where: str) -> Any:
    """The value of a key, of the type of its field. The text none is None, which TOML does not have: a recipe and --set
    can then unset what a base sets. True and False are read as `rotrnn info` prints them."""
    if _is_none(value) and optional(hint):
        return None
    if hint is bool and value in ("True", "False"):
        return value == "True"

    def table(kind: type[Any], own: Table) -> Any:
        return build(kind, where, own)

    try:
        return fit(value, hint, table)
    except Unfit as error:
        expected = describe(error.hint, TOML)
        raise ValueError(f"{where}{error.where} is {error.value!r}, expected {expected}") from None


def _is_none(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "none"


def parse_value(text: str) -> Any:
    """The value of `text` in TOML; `text` itself if it is not TOML."""
    try:
        values = from_toml(f"value = {text}")
    except ValueError:
        return text.strip()
    return values["value"] if len(values) == 1 else text.strip()


def write_toml(tables: dict[str, Table]) -> str:
    """TOML of sections of plain values: texts, booleans, integers, floats, lists and tables of them; no None."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_literal(value)}" for key, value in table.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_literal(one) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_literal(one)}' for key, one in value.items() if one is not None)}}}"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(settings: Any) -> Table:
    """The fields of a dataclass that are not None, in order; of a dataclass in it, a table too."""
    fields = {one.name: getattr(settings, one.name) for one in dataclasses.fields(settings)}
    fields = {name: value for name, value in fields.items() if value is not None}
    return {name: _plain(value) if dataclasses.is_dataclass(value) else value for name, value in fields.items()}


def pick(what: str, name: Any, known: dict[str, Any]) -> Any:
    """The entry called `name`; otherwise a ValueError that lists the known names, and the nearest."""
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{what} is {name!r}, expected one of {', '.join(known)}{alike(str(name), known)}")
    return known[name]
