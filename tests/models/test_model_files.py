"""Models as files: what `save` writes, `load` gives again; what does not fit is refused with its place in the file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import rotrnn
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.models.build import BLOCKS, HEADS, ModelSettings, build_model
from rotrnn.models.files import described, made
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Params, astype, flatten, unflatten
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.registry import LAYERS
from small_models import classifier

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class OwnGRU(MinGRU):
    """A layer that is not one of rotrnn's."""


def model_of(head: str = "classifier", **settings: Any) -> SequenceModel:
    chosen = ModelSettings(layer="lru", d_model=6, n_layers=2, **settings)
    return build_model(chosen, {"d_state": 3}, head=head, n_classes=5, vocab=5)


def written(path: Path, model: SequenceModel, change: Any = None) -> Params:
    """Saves a model; with `change`, a function of the facts, writes the changed file as if it had been saved so."""
    params = model.init(np.random.default_rng(1))
    model.save(path, params)
    if change is not None:
        arrays, facts = read_checkpoint(path)
        change(facts)
        write_checkpoint(path, arrays, facts)
    return params


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: str, tmp_path: Path) -> None:
    model = classifier(layer, 2)
    params = astype(model.init(np.random.default_rng(1)), np.float64)
    model.save(tmp_path / "m", params)
    again, loaded = rotrnn.load(tmp_path / "m")
    assert again == model
    for (name, one), (same, other) in zip(sorted(flatten(params)), sorted(flatten(loaded)), strict=True):
        assert (name, one.dtype) == (same, other.dtype)
        assert np.array_equal(one, other)
    x = RNG.integers(0, 5, (2, 7))
    assert np.array_equal(model.forward(params, x)[0], again.forward(loaded, x)[0])


@pytest.mark.parametrize("settings", [
    *({"head": head} for head in HEADS),
    *({"block": block, "norm": "layer", "final_norm": True} for block in BLOCKS),
    {"glu": "half2", "dropout": 0.25, "dropout_over_time": True, "pool": "last", "norm_eps": 1e-3, "prenorm": False},
    {"glu": "gelu", "norm_momentum": 0.99},
])  # fmt: skip
def test_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(**settings)
    written(tmp_path / "m", model)
    assert rotrnn.load(tmp_path / "m").model == model


@pytest.mark.parametrize("engine", ["c", "python"])
def test_files_do_not_depend_on_the_byte_order(engine: str, tmp_path: Path) -> None:
    """Arrays of HDF5, netCDF and FITS may be big-endian."""
    model = model_of(norm="batch")
    params = model.init(RNG)
    big = unflatten({name: one.astype(one.dtype.newbyteorder(">")) for name, one in flatten(params)})
    for folder, given in (("native", params), ("big", big)):
        model.save_pretrained(tmp_path / folder, given)
        model.save(tmp_path / folder / "model", given)
        stream = model.stream(given, 2, engine)
        stream.push(np.array([[1, 2, 3], [4, 0, 1]]))
        stream.save(tmp_path / folder / "stream")
        (tmp_path / folder / "sequence").write_bytes(stream.get_sequence(1))
        stream.load(tmp_path / folder / "stream")
        stream.set_sequence(0, stream.get_sequence(1))
    for file in (tmp_path / "native").iterdir():
        assert (tmp_path / "big" / file.name).read_bytes() == file.read_bytes(), file.name
    assert equal(rotrnn.load(tmp_path / "big" / "model").params, params)


def test_two_dtypes_are_warned_of_for_the_c_library(tmp_path: Path) -> None:
    model = model_of()
    params = model.init(RNG)
    params["head"]["bias"] = params["head"]["bias"].astype(np.float64)
    message = (
        r"SequenceClassifier\.save: .* is float32 and head\.bias is float64, which the C library refuses, expected"
    )
    for write in (model.save, model.save_pretrained):
        with pytest.warns(UserWarning, match=message):
            write(tmp_path / write.__name__, params)
    assert equal(rotrnn.load(tmp_path / "save").params, params)


def equal(one: Params, two: Params) -> bool:
    pairs = zip(sorted(flatten(one)), sorted(flatten(two)), strict=True)
    return all(name == other and np.array_equal(x, y) for (name, x), (other, y) in pairs)


def test_bidirectional(tmp_path: Path) -> None:
    settings = ModelSettings(layer="min_gru", d_model=4, n_layers=1)
    model = build_model(settings, {"d_state": 3, "bidirectional": True}, n_classes=2, n_features=3)
    written(tmp_path / "m", model)
    assert rotrnn.load(tmp_path / "m").model == model


def test_other_readers_see_settings_and_arrays(tmp_path: Path) -> None:
    model = model_of()
    params = written(tmp_path / "m", model)
    with safe_open(tmp_path / "m", framework="numpy") as file:
        _, _, text = file.metadata()["rotrnn"].partition(" ")
        names = set(file.keys())
    layer = json.loads(text)["model"]["stack"]["blocks"][1]["layer"]
    assert (layer["kind"], layer["d_state"]) == ("LRU", 3)
    assert {name for name in names if not name.startswith("program.")} == {name for name, _ in flatten(params)}


def test_own_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(ModelSettings(layer="lru", d_model=4, n_layers=1), OwnGRU(4, 3), n_classes=2, n_features=1)
    params = model.init(np.random.default_rng(0))
    with pytest.raises(
        ValueError, match=r"save: could not load an OwnGRU again, expected a part of rotrnn or a layer in LAYERS"
    ):
        model.save(tmp_path / "m", params)
    assert not (tmp_path / "m").exists()
    monkeypatch.setitem(LAYERS, "own_gru", OwnGRU)
    model.save(tmp_path / "m", params)
    assert rotrnn.load(tmp_path / "m").model == model
    monkeypatch.delitem(LAYERS, "own_gru")
    with pytest.raises(ValueError, match=r"m: model\.stack\.blocks\.0\.layer has kind 'OwnGRU', expected one of"):
        rotrnn.load(tmp_path / "m")


def _block(facts: Any) -> Any:
    return facts["model"]["stack"]["blocks"][1]


def _layer(**settings: Any) -> Any:
    """A change of a layer's settings; None removes one."""

    def change(facts: Any) -> None:
        layer = _block(facts)["layer"]
        layer.update(settings)
        for name in [name for name, value in settings.items() if value is None]:
            del layer[name]

    return change


WRONG = {
    "no model": (lambda facts: facts.pop("model"), "is not a model, expected a file that a model's save wrote"),
    "format": (lambda facts: facts.update(model_format=2), "has model_format 2, expected 1"),
    "number": (lambda facts: facts.update(model=3), "model is an int, expected one of Tagger, BitTagger"),
    "part": (lambda facts: facts.update(model=facts["model"]["encoder"]), "model is an Embedding, expected one of"),
    "kind": (_layer(kind="LRV"), "layer has kind 'LRV', expected one of .*mean LRU"),
    "no kind": (_layer(kind=None), "blocks.1.layer has kind None"),
    "setting": (_layer(dstate=3), "an LRU, has 'dstate', which is not a setting.*d_state"),
    "missing": (_layer(d_state=None), "blocks.1.layer: .*missing.*d_state"),
    "type": (_layer(d_state="3"), "LRU: d_state='3', expected an integer"),
    "value": (lambda facts: _block(facts)["gate"].update(form="no"), "blocks.1.gate: .*form"),
    "plain": (lambda facts: _block(facts).update(layer=3), "layer=3"),
    "list": (lambda facts: facts["model"].update(stack=[]), "stack=\\(\\)"),
    "sizes": (_layer(d_state=4), "nu_log of blocks.1.layer has shape \\(3,\\), expected \\(4,\\)"),
    "fewer": (lambda facts: facts["model"]["stack"]["blocks"].pop(), "blocks has '1', which is not a parameter"),
    "more": (lambda facts: facts["model"]["stack"]["blocks"].append(_block(facts)), "parameter 2 of blocks is missing"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_files(wrong: str, tmp_path: Path) -> None:
    change, message = WRONG[wrong]
    written(tmp_path / "m", model_of(), change)
    with pytest.raises(ValueError, match=message) as raised:
        rotrnn.load(tmp_path / "m")
    assert str(raised.value).startswith(str(tmp_path / "m"))


def test_missing_and_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rotrnn.load(tmp_path / "none")
    with pytest.raises(TypeError, match="load: path is an int, expected the path of a file"):
        rotrnn.load(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"SequenceClassifier\.save: path is a dict, expected the path of a file"):
        model_of().save({}, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="encoder is missing"):
        model_of().save(tmp_path / "m", {})
    assert not list(tmp_path.iterdir())


def test_arrays_of_jax_are_told_how_numpy_takes_them(tmp_path: Path) -> None:
    model = model_of()
    params = model.init(RNG)
    array = type("ArrayImpl", (), {"__module__": "jaxlib._jax"})()
    with pytest.raises(TypeError, match=r"parameter bias of head has type ArrayImpl, .*jax\.tree\.map\(np\.asarray, p"):
        model.save(tmp_path / "m", {**params, "head": {**params["head"], "bias": array}})


def test_described_is_json() -> None:
    for layer in LAYERS:
        table = described(classifier(layer, 1))
        assert json.loads(json.dumps(table)) == table


def test_a_part_from_before_a_setting_was_removed() -> None:
    """Its file has the setting, and is read if it is at the value that is left."""
    for layer, own in (
        (rotrnn.Mamba(4), {"window": None}),
        (rotrnn.SelectiveRotRNN(4, 8), {"window": None, "gamma_spread": 0.25, "site": 2}),
    ):
        assert made(described(layer) | own, "model") == layer
        with pytest.raises(ValueError, match=r"model, .* has 'window', which is not a setting"):
            made(described(layer) | {"window": 3}, "model")
