"""Models as ONNX graphs, run by onnxruntime: the logits of `forward`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rotrnn.models.build import BLOCKS, ModelSettings, build_model
from rotrnn.models.onnx_export import IR, OPSET
from rotrnn.models.onnx_graph import Graph
from rotrnn.models.onnx_instructions import RULES
from rotrnn.models.tagger import LanguageModel
from rotrnn.nn.blocks.dense import TiedDense
from rotrnn.nn.layer import Context, astype, flatten, unflatten

B, T, D, F, V, C = 3, 23, 12, 4, 7, 5
N = {"d_state": 6}
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lru": ("lru", N),
    "lru, both": ("lru", {**N, "bidirectional": True}),
    "s5": ("s5", {**N, "bidirectional": True, "discretisation": "bilinear"}),
    "rotrnn": ("rotrnn", {**N, "heads": 2}),
    "rope_memory": ("rope_memory", {**N, "length": 30}),
    "s4d": ("s4d", N),
    "s4d, both": ("s4d", {**N, "bidirectional": True, "conjugate": False}),
    "rnn": ("rnn", N),
    "rnn, tanh": ("rnn", {**N, "activation": "tanh", "bidirectional": True}),
    "rnn, relu": ("rnn", {**N, "activation": "relu"}),
    "min_gru": ("min_gru", N),
    "min_gru, negative": ("min_gru", {**N, "negative": True}),
    "mamba": ("mamba", N),
    "mamba, other forms": ("mamba", {**N, "d_conv": 0, "bias": True}),
    "mamba, taps": ("mamba", {**N, "d_conv": 3, "conv_bias": False, "expand": 1, "negative": True}),
    "mamba2": ("mamba2", {**N, "d_head": 4, "groups": 2}),
    "mamba3": ("mamba3", {"d_state": 6, "d_head": 4, "groups": 2, "rate": "rational"}),
    "delta_net": ("delta_net", {**N, "heads": 2, "steps": 2, "gate": True, "output_gate": True}),
    "delta_net, selective rope": ("delta_net", {**N, "heads": 2, "rope_base": 50.0, "rope_bias": True}),
    "mlstm": ("mlstm", {**N, "heads": 2}),
    "slstm": ("slstm", {**N, "heads": 2}),
    "lstm": ("lstm", N),
    "gru": ("gru", N),
    "rg_lru": ("rg_lru", {"heads": 2}),
    "linoss": ("linoss", N),
    "linoss, damped": ("linoss", {**N, "method": "damped"}),
    "aussm": ("aussm", N),
    "slinoss": ("slinoss", {**N, "d_head": 4}),
    "pd_ssm": ("pd_ssm", N),
    "comba": ("comba", {**N, "heads": 2}),
    "rwkv7": ("rwkv7", {"heads": 2, "rank": 3}),
    "kda": ("kda", {**N, "heads": 2}),
    "gated_delta_net_2": ("gated_delta_net_2", {**N, "heads": 2}),
    "selective_rotrnn": ("selective_rotrnn", {**N, "heads": 2, "gamma": "input"}),
    "wrope_memory": ("wrope_memory", {**N, "length": 9}),
    "wrope_memory, window": ("wrope_memory", {**N, "length": 9, "window": 4, "form": "blend"}),
    "history of an LRU": ("lru", {**N, "history": {"length": 9, "heads": 2}}),
    "history of an LSTM": ("lstm", {**N, "history": {"length": 9, "read": "ages", "window": 5, "form": "reversed"}}),
    "attention": ("attention", {"heads": 6, "kv_heads": 3}),
    "attention, window": ("attention", {"heads": 2, "rotary": False, "window": 5}),
}
PARTS: dict[str, dict[str, Any]] = {
    **{block: {"block": block, "norm": "layer", "final_norm": True} for block in BLOCKS},
    **{f"{glu}, {norm}": {"glu": glu, "norm": norm} for glu, norm in (("half1", "rms"), ("half2", "batch"))},
    "gelu after": {"glu": "gelu", "prenorm": False, "norm_eps": 0.1},
    "last": {"pool": "last"},
}
GEMMA: dict[str, Any] = {"block": "griffin", "norm": "rms", "tied": True, "scale_embedding": True, "logit_cap": 2.0}


def model_of(layer: str, own: dict[str, Any], head: str = "classifier", tokens: bool = False, **settings: Any) -> Any:
    """A model, and its parameters in float32, each moved from its initial value."""
    reads = {"vocab": V} if tokens else {"n_features": F}
    classes = V if head == "language" else C
    model = build_model(ModelSettings(layer, D, 2, **settings), own, head=head, n_classes=classes, **reads)
    rng = np.random.default_rng(0)
    params = {name: one + 0.05 * rng.standard_normal(one.shape) for name, one in flatten(model.init(rng))}
    params = {name: np.abs(one) if name.endswith("running_var") else one for name, one in params.items()}
    return model, astype(unflatten(params), np.float32)


def inputs_of(model: Any, shape: tuple[int, int], dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(1)
    if hasattr(model.encoder, "vocab"):
        return rng.integers(0, V, shape)
    return rng.standard_normal((*shape, F)).astype(dtype)


def check(model: Any, params: Any, path: Path, dtype: Any = np.float32, tolerance: float = 1e-5) -> None:
    """One file for several shapes. Both err by roundings alone, of logits of size one or, of a linear RNN whose states
    grow, more."""
    model.save_onnx(path, params)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((B, T), (1, 1), (2, 40)):
        x = inputs_of(model, shape, dtype)
        expected, _ = model.forward(params, x)
        (got,) = session.run(["logits"], {"inputs": x})
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert np.ptp(expected) > 0.1
        assert np.abs(got - expected).max() <= tolerance * max(1, np.abs(expected).max())


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    check(*model_of(*LAYERS[name], head="tagger"), tmp_path / "m.onnx")


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str, tmp_path: Path) -> None:
    check(*model_of("lru", N, **PARTS[name]), tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["lru", "s4d", "rnn", "min_gru", "mamba"])
def test_double_precision(name: str, tmp_path: Path) -> None:
    """It shows that the two differ by roundings: 2^-53 here, and the same number of them."""
    model, params = model_of(*LAYERS[name], head="tagger")
    check(model, astype(params, np.float64), tmp_path / "m.onnx", np.float64, 1e-5 * 2.0**-28)


def test_heads_and_tokens(tmp_path: Path) -> None:
    for head, tokens in itertools.product(("classifier", "tagger", "bits"), (False, True)):
        check(*model_of("lru", N, head, tokens), tmp_path / "m.onnx")
    check(*model_of("rg_lru", {"heads": 2}, "language", True, **GEMMA), tmp_path / "m.onnx")
    model, params = model_of("min_gru", N, "language", True)
    check(model, params, tmp_path / "m.onnx")
    tied = LanguageModel(model.encoder, model.stack, TiedDense(D, V))
    del params["head"]["w"]
    check(tied, params, tmp_path / "m.onnx")


@pytest.mark.parametrize("head", ["tagger", "classifier"])
@pytest.mark.parametrize("name", [name for name, (_, own) in LAYERS.items() if "bidirectional" not in own])
def test_a_graph_streams_ragged_pieces(name: str, head: str, tmp_path: Path) -> None:
    """Pieces of ragged sequences, with the state of each, have the logits of the whole sequences, whatever is in their
    padding."""
    model, params = model_of(*LAYERS[name], head=head)
    model.save_onnx(tmp_path / "m.onnx", params, lengths=True, state=True)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    given = [one for one in session.get_inputs() if one.name.startswith("state_")]
    sizes = {"batch": 2, "past": 0}
    state = {one.name: np.zeros([sizes.get(size, size) for size in one.shape], kinds[one.type]) for one in given}
    x, pieces = inputs_of(model, (2, T)), np.array([[9, 0, 14], [5, 8, 2]])
    at, rows = np.zeros(2, int), [[], []]
    for lengths in pieces.T:
        piece = np.full((2, 14, F), np.nan, np.float32)
        for row in range(2):
            piece[row, : lengths[row]] = x[row, at[row] : at[row] + lengths[row]]
        logits, *after = session.run(None, {"inputs": piece, "lengths": lengths, **state})
        state, at = dict(zip(state, after, strict=True)), at + lengths
        for row in range(2):
            rows[row].append(logits[row, : lengths[row]] if head == "tagger" else logits[row])
    expected, _ = model.forward(params, x, Context(at))
    for row in range(2):
        got = np.concatenate(rows[row]) if head == "tagger" else rows[row][-1]
        whole = expected[row, : at[row]] if head == "tagger" else expected[row]
        assert np.abs(got - whole).max() <= 1e-5 * max(1, np.abs(expected).max())


LARGE: dict[str, tuple[Any, float, dict[str, Any]]] = {
    "lru, rms": (np.float32, 1e25, {"norm": "rms", "final_norm": True}),
    "lru, layer": (np.float32, 1e25, {"norm": "layer", "final_norm": True}),
    "delta_net": (np.float32, 1e25, {}),
    "mlstm": (np.float64, 1e6, {}),
    "slstm": (np.float64, 1e6, {}),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_inputs(name: str, tmp_path: Path) -> None:
    """Squares overflow in the first three rows; logarithms of gates are bounded in the last two. There memories are of
    size one beside logits of 1e6, so their errors show in float64 only."""
    dtype, size, settings = LARGE[name]
    model, params = model_of(*LAYERS[name.partition(",")[0]], head="tagger", **settings)
    params = astype(params, dtype)
    model.save_onnx(tmp_path / "m.onnx", params)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x = dtype(size) * inputs_of(model, (B, T), dtype)
    expected, _ = model.forward(params, x)
    (got,) = session.run(None, {"inputs": x})
    tolerance = 1e-5 * (1 if dtype == np.float32 else 2.0**-28)
    assert np.abs(got - expected).max() <= tolerance * max(1, np.abs(expected).max())


def test_a_memory_that_is_read_nowhere(tmp_path: Path) -> None:
    """q is 0, and e^-m, the least denominator, is 0 in float32: y is 0, not 0 / 0."""
    model, params = model_of(*LAYERS["mlstm"], head="tagger")
    for block in params["blocks"].values():
        block["layer"]["q_proj"][:] = 0
        block["layer"]["i_bias"][:] = 200
    check(model, params, tmp_path / "m.onnx")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softplus_keeps_its_digits(dtype: Any) -> None:
    """Of large numbers, and of the small values of negative ones: a few roundings."""
    graph = Graph(onnx.helper, np.dtype(dtype))
    names = [RULES[name](graph, None, "x") for name in ("Softplus", "LogSigmoid")]
    ends = [graph.value("x", [None])], [graph.value(name) for name in names]
    whole = onnx.helper.make_graph(graph.nodes, "g", *ends, graph.tensors())
    made = onnx.helper.make_model(whole, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR)
    x = np.r_[1e3, 710, -50, np.linspace(-40, 40, 81)].astype(dtype)
    found = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    for got, expected in zip(found, (np.logaddexp(0, x), -np.logaddexp(0, -x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=8 * np.finfo(dtype).eps, atol=0)


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    model, params = model_of("lru", N, tokens=True)
    for lengths in ({}, {"lengths": np.array([1, 3])}):
        model.save_onnx(tmp_path / "m.onnx", params, lengths=bool(lengths))
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
        for wrong in (-1, -V, np.iinfo(np.int64).min, V, np.iinfo(np.int64).max):
            with pytest.raises(Exception, match="indices element out of data bounds"):
                session.run(None, {"inputs": np.array([[1, 2, 3], [0, wrong, V - 1]]), **lengths})
        if lengths:
            session.run(None, {"inputs": np.array([[1, -1, V], [0, 2, V - 1]]), **lengths})


def test_the_file_says_what_it_takes(tmp_path: Path) -> None:
    model, params = model_of("lru", N)
    model.save_onnx(tmp_path / "m.onnx", params)
    graph = onnx.load(tmp_path / "m.onnx").graph
    shapes = [
        [one.dim_param or one.dim_value for one in value.type.tensor_type.shape.dim]
        for value in (graph.input[0], graph.output[0])
    ]
    assert shapes == [["batch", "time", F], ["batch", C]]


@pytest.mark.parametrize(("layer", "own", "message"), [
    ("liquid_s4", N, "the model has a LiquidS4, whose Products has no form in ONNX here"),
    ("lru", {**N, "window": 3}, "an LRU has a recurrence with window=3, expected None"),
    ("s4d", {**N, "window": 3}, "an S4D has a recurrence with window=3, expected None"),
])  # fmt: skip
def test_what_has_no_form_is_refused(layer: str, own: dict[str, Any], message: str, tmp_path: Path) -> None:
    model, params = model_of(layer, own)
    with pytest.raises(ValueError, match=f"^save_onnx: {message}"):
        model.save_onnx(tmp_path / "m.onnx", params)
    retrieval = build_model(ModelSettings("lru", D, 1), N, head="retrieval", n_classes=2, vocab=V)
    with pytest.raises(ValueError, match="save_onnx: the model is a Retrieval, expected a classifier or a tagger"):
        retrieval.save_onnx(tmp_path / "m.onnx", retrieval.init(np.random.default_rng(0)))
    assert not list(tmp_path.iterdir())
