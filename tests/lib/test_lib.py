"""The C library against the Python stream: every part, chunks, batches, states, and files that are not right."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import librotrnn
from librotrnn import Array, LibraryError, Model
from rotrnn import ModelSettings, build_model
from rotrnn.nn.layer import astype, flatten, unflatten

D, STEPS, BATCH = 12, 23, 3


class Case(NamedTuple):
    """A model: a layer with its settings, and settings of the model; the input is tokens, or features."""

    layer: str
    settings: dict[str, Any]
    model: dict[str, Any] = {}
    head: str = "tagger"
    tokens: bool = False


LINEAR = {"d_state": 10}
CASES = {
    "lru": Case("lru", LINEAR),
    "lru, real and imaginary": Case("lru", {**LINEAR, "form": "real_imag", "gamma": False}),
    "lru, exp": Case("lru", {**LINEAR, "form": "exp"}),
    "lru, stable exp": Case("lru", {**LINEAR, "form": "stable_exp"}),
    "s5": Case("s5", LINEAR),
    "s5, bilinear": Case("s5", {**LINEAR, "discretisation": "bilinear", "conjugate": False, "clip_eigs": True}),
    "s5, first order": Case("s5", {**LINEAR, "discretisation": "first_order", "step_scale": 2.0}),
    "rotrnn": Case("rotrnn", {"d_state": 16, "heads": 2}),
    "rotrnn, alpha": Case("rotrnn", {"d_state": 15, "heads": 3, "normalise": "alpha", "c": 0.5}),
    "rotrnn, heads of one": Case("rotrnn", {"d_state": 3, "heads": 3}),
    "rope_memory": Case("rope_memory", {**LINEAR, "length": 50}),
    "s4d": Case("s4d", {"d_state": 4}),
    "s4d, untied": Case("s4d", {"d_state": 3, "tied": False, "conjugate": False, "discretisation": "bilinear"}),
    "rnn": Case("rnn", LINEAR),
    "rnn, tanh": Case("rnn", {**LINEAR, "activation": "tanh"}),
    "rnn, relu": Case("rnn", {**LINEAR, "activation": "relu"}),
    "lstm": Case("lstm", LINEAR),
    "lstm, no projection": Case("lstm", {"d_state": D, "projection": False}),
    "min_gru": Case("min_gru", LINEAR),
    "mamba": Case("mamba", {"d_state": 5}, {"block": "plain"}),
    "mamba, other forms": Case("mamba", {"d_state": 5, "d_conv": 1, "dt_rank": 3, "bias": True, "conv_bias": False}),
    "mamba, no convolution": Case("mamba", {"d_state": 5, "d_conv": 0}),
    "half1": Case("lru", LINEAR, {"glu": "half1"}),
    "half2": Case("lru", LINEAR, {"glu": "half2", "norm": "layer"}),
    "gelu": Case("lru", LINEAR, {"glu": "gelu", "dropout": 0.1}),
    "norm after the sum": Case("lru", LINEAR, {"prenorm": False, "final_norm": True}),
    "layer norm": Case("lru", LINEAR, {"norm": "layer", "norm_eps": 0.3, "final_norm": True, "prenorm": False}),
    "transformer": Case("lru", LINEAR, {"block": "transformer", "norm": "layer"}),
    "tokens, mean": Case("lru", LINEAR, head="classifier", tokens=True),
    "last": Case("lru", LINEAR, {"pool": "last"}, head="classifier"),
    "bits": Case("lru", LINEAR, head="bits", tokens=True),
    "language": Case("min_gru", LINEAR, head="language", tokens=True),
}
each_case = pytest.mark.parametrize("name", CASES)
VOCABULARY, CLASSES = 7, 5


@functools.cache
def built(name: str) -> tuple[Any, Any, Array]:
    """The model of a case, its parameters in float64, each one moved from its initial value, and an input."""
    case, rng = CASES[name], np.random.default_rng(sorted(CASES).index(name))
    settings = ModelSettings(**{"layer": case.layer, "d_model": D, "n_layers": 2, **case.model})
    reads = {"vocab": VOCABULARY} if case.tokens else {"n_features": 4}
    classes = VOCABULARY if case.head == "language" else CLASSES
    model = build_model(settings, case.settings, head=case.head, n_classes=classes, **reads)
    params = {key: value + 0.1 * rng.standard_normal(value.shape) for key, value in flatten(model.init(rng))}
    params = {key: np.abs(value) if key.endswith("running_var") else value for key, value in params.items()}
    x = rng.integers(0, VOCABULARY, (BATCH, STEPS)) if case.tokens else rng.standard_normal((BATCH, STEPS, 4))
    return model, astype(astype(unflatten(params), np.float32), np.float64), x


def saved(folder: Path, model: Any, params: Any) -> bytes:
    path = folder / "model.safetensors"
    model.save(path, params)
    return path.read_bytes()


def stepped(stream: Any, x: Array) -> Array:
    """The logits of a Python stream that reads x one step at a time, (B, T, C)."""
    return np.stack([stream.push(x[:, t]) for t in range(x.shape[1])], 1)


def one_by_one(stream: librotrnn.Stream, x: Array) -> Array:
    """The same of a stream of the library."""
    return np.stack([stream.push(x[:, t : t + 1]).reshape(len(x), -1) for t in range(x.shape[1])], 1)


@each_case
def test_equals_the_python_stream_in_double(name: str, tmp_path: Path) -> None:
    """Two orders of the same sums. Each number passes through fewer than 2^13 roundings of 2^-53 each, on a path whose
    gain is below 2^8 for these small models, relative to the largest logit."""
    model, params, x = built(name)
    expected = stepped(model.stream(params, BATCH), x)
    got = one_by_one(Model(saved(tmp_path, model, params)).stream(BATCH), x)
    assert np.abs(got - expected).max() <= 2.0**-32 * np.abs(expected).max()


@each_case
def test_float32_errs_no_more_than_python(name: str, tmp_path: Path) -> None:
    """Against float64 both err by as many roundings, in another order; the library computes what does not depend on
    time in double. The largest error of some hundred numbers then differs by a small factor. 2^-22 of the largest logit
    is a few roundings, for the cases where Python happens to be exact."""
    model, params, x = built(name)
    single = astype(params, np.float32)
    expected = stepped(model.stream(params, BATCH), x if x.dtype.kind == "i" else x.astype(np.float32))
    error = np.abs(stepped(model.stream(single, BATCH), x.astype(np.float32) if x.dtype.kind == "f" else x) - expected)
    got = one_by_one(Model(saved(tmp_path, model, single)).stream(BATCH), x)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= 4 * error.max() + 2.0**-22 * np.abs(expected).max()
