"""Models as files: one safetensors file with the parameters, and in its metadata the settings of every part.

`SequenceModel.save` writes such a file, `load` reads it, here and in C (include/rotrnn.h). A part is an object of its
settings with its class as "kind"; parts in parts are nested as in the model:

    {"kind": "SequenceClassifier", "encoder": {"kind": "Dense", "d_in": 1, "d_out": 64}, "stack": {...}, ...}

The arrays have the names of the flattened parameters, "blocks.0.layer.nu_log". Beside the settings, the metadata have
the model as lines (`rotrnn.models.listing`), which the C library runs, with further arrays "program.0"; or, if a part
has no lines, a sentence that says so. There is no code in the file.
"""

from __future__ import annotations

import os
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn._support.files import check_file, check_folder, write_text
from rotrnn._support.json import to_json
from rotrnn._support.settings import current
from rotrnn._support.text import alike, an, nearest
from rotrnn._support.warn import warn
from rotrnn.models.listing import TIMED, listed
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense, Embedding, TiedDense
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import NORMS
from rotrnn.nn.blocks.pool import POOLS
from rotrnn.nn.layer import Array, Module, Params, flatten, unflatten
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.listing import DERIVED, Unlisted
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.boundary import Boundary, rename

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel

FORMAT = 1
CONFIG, WEIGHTS, OWN = "config.json", "model.safetensors", "rotrnn"
"""The files of a folder, and the model_type of folders of `save_folder`."""
PROGRAM = "program"
"""The key of the model as lines, or of the reason why there are none. In files of an earlier version,
layers have it, too."""
PARTS = (
    *(ResidualStack, ResidualBlock, FeedForwardBlock),
    *(Dense, TiedDense, Embedding, FeedForward, Activation, Dropout, Gate, Bidirectional, Griffin, StoredHistory),
    *(*NORMS.values(), *POOLS.values()),
)
HEADS: dict[str, type[Module]] = {}
"""The models that a file can name. They are defined above this module, and register by `loadable`."""
Kind = TypeVar("Kind", bound=type[Module])


def loadable(kind: Kind) -> Kind:
    """Adds a class of models to those that a file can name."""
    HEADS[kind.__name__] = kind
    return kind


class Loaded(NamedTuple):
    """A model, of the class that the file names, and its parameters, as `load` returns them."""

    model: Any
    params: Params


def load(path: str | os.PathLike[str]) -> Loaded:
    """Reads a model that `SequenceModel.save` wrote, on this machine or another: ``model, params = rotrnn.load(path)``.

    Layers of your own can be loaded when they are in `rotrnn.nn.registry.LAYERS`, as they must be for recipes.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is damaged, or is not a model's; a part in it is unknown or its settings are wrong; or an array is
        missing, of another shape, or not finite. The error names the file and the problem.
    """
    of_a_run = "of a run: rotrnn export RUN --out MODEL.safetensors writes such a file"
    if path and isinstance(path, str | os.PathLike) and Path(path, "recipe.toml").is_file():
        raise ValueError(f"{path}: is the folder {of_a_run}")
    check_file("load", path)
    arrays, facts = read_checkpoint(path)
    if "forecaster_format" in facts:
        raise ValueError(f"{path}: is a forecaster, not a model; rotrnn.estimators.Forecaster.load reads it")
    if "model" not in facts:
        run = Path(path).with_name("recipe.toml").is_file()
        hint = f"; this is a checkpoint {of_a_run}" if run else ""
        raise ValueError(f"{path}: is not a model, expected a file that a model's save wrote{hint}")
    if facts.get("model_format") != FORMAT:
        raise ValueError(f"{path}: has model_format {facts.get('model_format')!r:.20}, expected {FORMAT}")
    try:
        model = made(facts["model"], "model")
        if type(model) not in HEADS.values():
            raise ValueError(f"model is {an(type(model).__name__)}, expected one of {', '.join(HEADS)}")
        params = unflatten({name: one for name, one in arrays.items() if not name.startswith(DERIVED)})
        model.check_params(params)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return Loaded(replace(model, timed=facts.get(PROGRAM) == TIMED), params)


def save_model(
    path: str | os.PathLike[str],
    model: SequenceModel,
    params: Params,
    further: dict[str, Any] | None = None,
    *,
    timed: bool | None = None,
) -> None:
    """Writes a model and its parameters atomically, and `further` facts, which `load` leaves alone; see
    `SequenceModel.save`."""
    args = Boundary(f"{type(model).__name__}.save")
    if timed is not None:
        model = replace(model, timed=args.flag("timed", timed))
    if model.timed:
        try:
            model.check_dt(args)
        except NotImplementedError as error:
            rename(error, f"{args.op}: got dt", f"{args.op}: timed is True, for intervals dt")
            raise
    check_file(f"{type(model).__name__}.save", path)
    model.check_params(params)
    arrays, facts = contents(model, params)
    write_checkpoint(path, arrays, {**(further or {}), **facts})
    kinds = {one.dtype.name: name for name, one in reversed([*flatten(params)])}
    if len(kinds) > 1 and not isinstance(facts[PROGRAM], str):
        got = " and ".join(f"{name} is {kind}" for kind, name in sorted(kinds.items()))
        warn(f"{args.op}: {got}, which the C library refuses, expected one dtype: rotrnn.astype(params, np.float32)")


def save_folder(
    folder: str | os.PathLike[str], model: SequenceModel, params: Params, *, timed: bool | None = None
) -> None:
    """Writes a model and its parameters into a folder; see `SequenceModel.save_pretrained`."""
    check_folder("save_pretrained: folder", folder)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_model(path / WEIGHTS, model, params, timed=timed)
    names = {"model_type": OWN, "architectures": [type(model).__name__], "model_format": FORMAT}
    write_text(path / CONFIG, to_json({**names, "model": described(model)}, indent=2) + "\n")


def contents(model: SequenceModel, params: Params) -> tuple[dict[str, Array], dict[str, Any]]:
    """Returns the arrays and the facts of a model's file."""
    arrays, facts = dict(flatten(params)), {"model": described(model), "model_format": FORMAT}
    try:
        listing = listed(model, params)
    except Unlisted as error:
        return arrays, {**facts, PROGRAM: str(error)}
    derived = {name: one for name, one in listing.arrays.items() if name.startswith(DERIVED)}
    return arrays | derived, {**facts, PROGRAM: listing.described()}


def described(part: Any) -> Any:
    """Returns the settings of a part and of all parts in it, in the form of JSON."""
    if isinstance(part, tuple | list):
        return [described(one) for one in part]
    if not is_dataclass(part):
        return part
    kind: Any = type(part)
    name = kind.__name__
    if kinds().get(name) is not kind:
        raise ValueError(f"save: could not load {an(name)} again, expected a part of rotrnn or a layer in LAYERS")
    return {"kind": name, **{one.name: described(getattr(part, one.name)) for one in fields(part) if _kept(one)}}


def _kept(one: Field[Any]) -> bool:
    """Returns whether files have a field. Fields used only in training are in neither files nor the part's repr."""
    return one.init and one.repr


def made(value: Any, where: str) -> Any:
    """The inverse of `described`: returns the part of a JSON value at the place `where` of the file."""
    if isinstance(value, list):
        return tuple(made(one, f"{where}.{i}") for i, one in enumerate(value))
    if not isinstance(value, dict):
        return value
    classes, name = kinds(), value.get("kind")
    if not isinstance(name, str) or name not in classes:
        likely = alike(name, classes) if isinstance(name, str) else ""
        raise ValueError(f"{where} has kind {name!r:.80}, expected one of {', '.join(classes)}{likely}")
    known = [one.name for one in fields(classes[name]) if _kept(one)]  # type: ignore[arg-type]  # all are dataclasses
    settings = {key: made(one, f"{where}.{key}") for key, one in value.items() if key not in ("kind", PROGRAM)}
    settings = current(classes[name], settings)
    for key in settings:
        if key not in known:
            raise ValueError(f"{where}, {an(name)}, has {key!r:.80}, which is not a setting{nearest(key, known)}")
    try:
        return classes[name](**settings)
    except (TypeError, ValueError) as error:  # or a setting without a default is missing
        raise ValueError(f"{where}: {error}") from None


def kinds() -> dict[str, type[Module]]:
    """Returns the classes that a file can name. Layers are looked up at each call: users add their own."""
    return HEADS | {kind.__name__: kind for kind in (*PARTS, *LAYERS.values())}
