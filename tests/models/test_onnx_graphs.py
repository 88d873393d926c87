"""Models as ONNX graphs, run step by step in NumPy by the reference of the package onnx: the logits of `forward`.

tests/hub/test_onnx.py runs more of them by onnxruntime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import rotrnn
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.onnx_graph import Graph
from rotrnn.models.onnx_instructions import RULES
from rotrnn.nn.blocks.dense import TiedDense
from rotrnn.nn.instructions import Dense, Sigmoid
from rotrnn.nn.instructions.recurrence import Recurrence
from rotrnn.nn.layer import Array, Context, astype, flatten, unflatten
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Builder, Line, Program
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
op_run = pytest.importorskip("onnx.reference.op_run")

N = {"d_state": 4}
LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lru": ({**N, "bidirectional": True}, {}),
    "s4d": (N, {"glu": "half1", "norm": "rms"}),
    "rnn": ({**N, "activation": "tanh", "bidirectional": True}, {"glu": "half2", "norm": "batch"}),
    "min_gru": ({**N, "negative": True}, {"glu": "gelu", "prenorm": False}),
    "mamba": ({**N, "d_conv": 3, "expand": 1, "negative": True}, {"norm": "layer"}),
    "mamba, norms": ({**N, "norm_eps": 1e-2}, {"norm": "rms"}),
    "mamba3": ({"d_state": 7, "groups": 2, "d_head": 4, "rate": "rational", "norm": True}, {"norm": "rms"}),
    "mamba3, ranks": ({**N, "groups": 2, "d_head": 4, "rank": 3}, {"norm": "rms"}),
    "mamba2": ({**N, "d_conv": 3, "groups": 2, "d_head": 4, "negative": True}, {"norm": "rms"}),
    "mamba2, rope": ({**N, "groups": 2, "d_head": 4, "rope_base": 9.0}, {"norm": "rms"}),
    "kda": ({**N, "heads": 2, "negative": True}, {}),
    "kda, fewer keys": ({**N, "heads": 4, "key_heads": 2, "lower_bound": -5.0}, {}),
    "gated_delta_net_2": ({**N, "heads": 2}, {"norm": "rms"}),
    "gated_delta_net_2, fewer keys": ({**N, "heads": 4, "key_heads": 2, "lower_bound": -5.0}, {}),
    "comba": ({**N, "heads": 2}, {}),
    "rwkv7": ({"heads": 2, "rank": 3, "gate_rank": 2}, {"norm": "layer"}),
    "delta_net": ({**N, "heads": 2, "steps": 2, "gate": True, "negative": True, "output_gate": True}, {}),
    "mlstm": ({**N, "heads": 2, "bias": True}, {"norm": "layer"}),
    "slstm": ({**N, "heads": 2, "forget": "exp"}, {"norm": "rms"}),
    "lstm": (N, {"glu": "half1"}),
    "gru": (N, {"glu": "half2"}),
    "linoss": ({**N, "method": "im"}, {"glu": "half1"}),
    "aussm": ({**N, "d_conv": 0}, {"norm": "rms"}),
    "slinoss": ({**N, "d_head": 4}, {"norm": "rms"}),
    "pd_ssm": ({**N, "dictionary": 3}, {"glu": "half1"}),
    "rg_lru": ({"heads": 2}, {"block": "griffin", "norm": "rms"}),
    "s5": (N, {"block": "griffin", "norm": "layer", "final_norm": True}),
    "selective_rotrnn": ({"d_state": 6, "heads": 2, "selectivity": 1.0}, {"norm": "rms"}),
    "selective_rotrnn, decays": ({"d_state": 6, "heads": 2, "gamma": "input"}, {"glu": "half1"}),
    "selective_rotrnn, bounded": ({"d_state": 4, "gamma": "input", "normalise": "bounded"}, {}),
    "wrope_memory": ({**N, "length": 5}, {"glu": "half1"}),
    "wrope_memory, window": ({**N, "length": 3, "window": 4, "form": "blend"}, {}),
    "wrope_memory, printed": ({**N, "length": 3, "window": 1, "form": "blend_printed"}, {}),
    "lru, content": ({**N, "history": {"length": 5, "heads": 2}}, {"norm": "layer"}),
    "rotrnn, ages": ({"d_state": 6, "history": {"length": 3, "read": "ages", "heads": 3, "form": "uniform"}}, {}),
    "lstm, ages": ({**N, "history": {"length": 9, "read": "ages", "form": "none", "window": 3}}, {"glu": "half1"}),
    "mamba, content": ({**N, "history": {"length": 5, "window": 4, "form": "reversed"}}, {"norm": "rms"}),
    "selective_rotrnn, sum": ({"d_state": 4, "history": {"length": 5, "read": "sum"}}, {"norm": "rms"}),
    "attention": ({"heads": 4, "kv_heads": 2}, {"block": "transformer", "norm": "layer"}),
    "attention, window": ({"heads": 2, "rotary": "half", "bias": True, "window": 3}, {}),
    "attention, selective rope": ({"heads": 2, "rotary": False, "rope_base": 9.0, "rope_bias": True}, {}),
}


class Scan(op_run.OpRun):  # type: ignore[misc, name-defined]
    """The operator along axis 1, in both directions, which that reference does not have."""

    op_domain = ""

    def need_context(self) -> bool:
        return True

    def _run(self, *args: Any, body: Any, context: dict[str, Any], num_scan_inputs: int, **named: Any) -> Any:
        states, inputs = list(args[:-num_scan_inputs]), args[-num_scan_inputs:]
        assert {*named["scan_input_axes"], *named["scan_output_axes"]} == {1}
        (reverse,) = {*named["scan_input_directions"], *named["scan_output_directions"]}
        outputs: dict[int, list[Any]] = {}
        steps = range(inputs[0].shape[1])
        for t in reversed(steps) if reverse else steps:
            given = [*states, *(one[:, t] for one in inputs)]
            found = body.run(None, {**context, **dict(zip(body.input_names, given, strict=True))})
            states, outputs[t] = found[: len(states)], found[len(states) :]
        return (*states, *(np.stack(one, 1) for one in zip(*(outputs[t] for t in steps), strict=True)))


@pytest.mark.parametrize("head", ["tagger", "classifier"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_graph_says_what_forward_says(layer: str, head: str, tmp_path: Path) -> None:
    own, settings = LAYERS[layer]
    if layer == "rg_lru" and head == "tagger":
        settings = settings | {"scale_embedding": True, "logit_cap": 2.0}
    reads = {"vocab": 6} if head == "tagger" else {"n_features": 3}
    model: Any = build_model(ModelSettings(layer.split(",")[0], 8, 1, **settings), own, head=head, n_classes=5, **reads)
    rng = np.random.default_rng(0)
    moved = {name: one + 0.05 * rng.standard_normal(one.shape) for name, one in flatten(model.init(rng))}
    moved = {name: np.abs(one) if name.endswith("running_var") else one for name, one in moved.items()}
    params = astype(unflatten(moved), np.float64)
    model.save_onnx(tmp_path / "m.onnx", params)
    x = rng.integers(0, 6, (2, 7)) if head == "tagger" else rng.standard_normal((2, 7, 3))
    expected, _ = model.forward(params, x)
    assert not unread(onnx.load(tmp_path / "m.onnx").graph)
    (got,) = reference.ReferenceEvaluator(str(tmp_path / "m.onnx"), new_ops=[Scan]).run(None, {"inputs": x})
    assert got.dtype == expected.dtype
    assert np.ptp(expected) > 0.1
    # Roundings of a few hundred sums are below 1e-13. A graph holds the eps of LayerNormalization, 1e-5, as float32, so
    # it is off by 3e-13, of variances that are not below 0.01
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10 * max(1, np.abs(expected).max()))


class Found(NamedTuple):
    """Results of `halved`."""

    y: Array
    hT: Array


class Grads(NamedTuple):
    """Results of `halved_backward`."""

    da: Array
    dx: Array
    dh0: Array


def halved(a: Array, x: Array, h0: Any = None, lengths: Any = None) -> Found:
    """``h_t = a_t h_{t-1} / 2 + x_t``, an op of the user's own."""
    return Found(*diagonal_scan(a / 2, x, h0, lengths=lengths, return_state=True))


def halved_backward(dy: Array, a: Array, y: Array, h0: Any = None, dhT: Any = None, lengths: Any = None) -> Grads:
    grads = diagonal_scan_backward(dy, a / 2, y, h0, dhT=dhT, lengths=lengths)
    return Grads(grads.da / 2, grads.dx, grads.dh0)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Halved(Recurrence):
    """A recurrence of the user's own, whose lines say no shapes, states or settings that follow from their inputs."""

    of = halved, halved_backward
    takes = "a x"
    form = "N; N -> N"
    states = "h N"
    reads = ("a", "y")

    def emit(self, to: Listing, line: Line, a: int, x: int) -> Any:
        return to("Scan", to("Affine", a, scale=0.5), x)


@dataclass(frozen=True)
class Own(MinGRU):
    """MinGRU with a recurrence of the user's own."""

    recurrence: ClassVar[Any] = Halved

    def program(self) -> Program:
        p = Builder(self)
        a = p(Sigmoid(), p(Dense(), p.x, "W_z", "b_z"))
        h = p(self.recurrence(), a, p(Dense(), p.x, "W_c", "b_c"))
        return p.returns(p(Dense(), h, "W_out"), h=h)


def of_own(monkeypatch: pytest.MonkeyPatch, recurrence: Any = Halved) -> tuple[Any, Any]:
    monkeypatch.setitem(rotrnn.LAYERS, "own", Own)
    monkeypatch.setattr(Own, "recurrence", recurrence)
    model = build_model(ModelSettings("own", 8, 2), {"d_state": 4}, head="tagger", n_classes=3, n_features=2)
    return model, astype(model.init(np.random.default_rng(0)), np.float64)


def test_lines_of_the_users_own_have_a_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shapes, states and the shift of the affine map follow; in two pieces, with a state."""
    model, params = of_own(monkeypatch)
    model.save_onnx(tmp_path / "m.onnx", params, state=True)
    session = reference.ReferenceEvaluator(str(tmp_path / "m.onnx"), new_ops=[Scan])
    x = np.random.default_rng(1).standard_normal((2, 7, 2))
    expected, _ = model.forward(params, x)
    state = {one.name: zeros_of(one, 2) for one in session.proto_.graph.input if one.name != "inputs"}
    assert [one.shape for one in state.values()] == [(2, 4), (2, 4)]
    for piece in (slice(3), slice(3, 7)):
        got, *after = session.run(None, {"inputs": x[:, piece], **state})
        state = dict(zip(state, after, strict=True))
        np.testing.assert_allclose(got, expected[:, piece], rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("emit", "line"),
    [
        (lambda self, to, line, a, x: to("Attention", a, a, x, heads=2, window=3), "Attention"),
        (lambda self, to, line, a, x: to("Rotary", x), "Rotary"),
        (lambda self, to, line, a, x: to("HoldScan", a, x), "HoldScan"),
    ],
)
def test_lines_that_do_not_fit_their_form_in_onnx_are_told(
    emit: Any, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lines without an instruction of the same inputs and settings, from which shapes could follow."""
    model, params = of_own(monkeypatch, type("Wrong", (Halved,), {"emit": emit}))
    message = (
        rf"^save_onnx: the model has an Own, whose line {line} does not fit its form in ONNX \(\w+Error: .*\), expe"
    )
    with pytest.raises(ValueError, match=message):
        model.save_onnx(tmp_path / "m.onnx", params)


def test_states_that_do_not_decay_are_in_double_precision(tmp_path: Path) -> None:
    """In float32 the rounding of the rotation and of each step would add up: to 6 times the package's error after 1,000
    steps. With double precision both have the rounding of a read-out in float32, of states of size sqrt(T)."""
    settings = ModelSettings("rope_memory", 4, 1, norm="layer", glu="gelu")
    own = {"d_state": 4, "length": 30, "bidirectional": True}
    model = build_model(settings, own, head="tagger", n_classes=3, n_features=2)
    params = model.init(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((1, 1000, 2)).astype(np.float32)
    model.save_onnx(tmp_path / "m.onnx", params)
    (got,) = reference.ReferenceEvaluator(str(tmp_path / "m.onnx"), new_ops=[Scan]).run(None, {"inputs": x})
    exact, _ = model.forward(astype(params, np.float64), x.astype(np.float64))
    package, _ = model.forward(params, x)
    assert got.dtype == np.float32
    assert np.abs(got - exact).max() <= 2 * np.abs(package - exact).max()


CAUSAL = {
    name: ({**own, "bidirectional": False} if "bidirectional" in own else own, settings)
    for name, (own, settings) in LAYERS.items()
}


@pytest.mark.parametrize("head", ["tagger", "classifier", "last"])
@pytest.mark.parametrize("layer", CAUSAL)
def test_a_graph_goes_on_from_its_state(layer: str, head: str, tmp_path: Path) -> None:
    """Three pieces of ragged sequences, one without a step, have the logits of whole sequences."""
    model, params = moved_model(layer, *CAUSAL[layer], head)
    path = tmp_path / "m.onnx"
    model.save_onnx(path, params, lengths=True, state=True)
    pieces = np.array([[3, 4, 2], [1, 0, 4], [4, 4, 4]])
    x = np.random.default_rng(1).standard_normal((3, 12, 3))
    session = reference.ReferenceEvaluator(str(path), new_ops=[Scan])
    graph = onnx.load(path).graph
    assert not unread(graph)
    before = {one.name: zeros_of(one, len(x)) for one in graph.input if one.name.startswith("state_")}
    at = np.zeros(3, int)
    rows: list[list[Any]] = [[], [], []]
    for lengths in pieces.T:
        given = np.full((3, 4, 3), np.nan)
        for row, (start, count) in enumerate(zip(at, lengths, strict=True)):
            given[row, :count] = x[row, start : start + count]
        given = np.nan_to_num(given, nan=7.0)  # what is padding counts for nothing
        logits, *after = session.run(None, {"inputs": given, "lengths": lengths, **before})
        assert [one.dtype for one in after] == [one.dtype for one in before.values()]
        before = dict(zip(before, after, strict=True))
        at += lengths
        for row, count in enumerate(lengths):
            rows[row].append(logits[row, :count] if head == "tagger" else logits[row])
    expected, _ = model.forward(params, x, Context(at))
    for row, steps in enumerate(at):
        got = np.concatenate(rows[row]) if head == "tagger" else rows[row][-1]
        whole = expected[row, :steps] if head == "tagger" else expected[row]
        np.testing.assert_allclose(got, whole, rtol=0, atol=1e-10 * max(1, np.abs(expected).max()))


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
def test_softplus_keeps_its_digits_in_double_precision() -> None:
    """Of large numbers, and of the small values of negative ones: a few roundings."""
    graph = Graph(onnx.helper, np.dtype(np.float64))
    names = [RULES[name](graph, None, "x") for name in ("Softplus", "LogSigmoid")]
    ends = [graph.value("x")], [graph.value(name) for name in names]
    whole = onnx.helper.make_graph(graph.nodes, "g", *ends, graph.tensors())
    x = np.r_[1e3, 710, -50, -1e3, np.linspace(-40, 40, 81)]
    found = reference.ReferenceEvaluator(onnx.helper.make_model(whole)).run(None, {"x": x})
    for got, expected in zip(found, (np.logaddexp(0, x), -np.logaddexp(0, -x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2.0**-50, atol=0)


def tokens_model(tied: bool = False) -> Any:
    model: Any = build_model(ModelSettings("lru", 8, 1), N, head="language", n_classes=6, vocab=6)
    params = model.init(np.random.default_rng(0))
    if tied:
        model = replace(model, head=TiedDense(8, 6))
        del params["head"]["w"]
    return model, astype(params, np.float64)


def test_a_tied_table_is_in_the_file_once(tmp_path: Path) -> None:
    model, params = tokens_model(tied=True)
    model.save_onnx(tmp_path / "m.onnx", params)
    tables = [one for one in onnx.load(tmp_path / "m.onnx").graph.initializer if sorted(one.dims) == [6, 8]]
    assert [list(one.dims) for one in tables] == [[6, 8]]
    ids = np.array([[0, 5, 3]])
    (got,) = reference.ReferenceEvaluator(str(tmp_path / "m.onnx"), new_ops=[Scan]).run(None, {"inputs": ids})
    np.testing.assert_allclose(got, model.forward(params, ids)[0], rtol=0, atol=1e-12)


def test_a_model_that_is_too_large_for_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, params = tokens_model()
    monkeypatch.setattr("rotrnn.models.onnx_graph.LIMIT", 1000)
    with pytest.raises(ValueError, match=r"^save_onnx: the model has 0.0 GB, expected less than 1e-06 GB, the li"):
        model.save_onnx(tmp_path / "m.onnx", params)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lengths", [False, True])
def test_a_graph_refuses_negative_ids_except_in_padding(lengths: bool, tmp_path: Path) -> None:
    model, params = tokens_model()
    model.save_onnx(tmp_path / "m.onnx", params, lengths=lengths)
    session = reference.ReferenceEvaluator(str(tmp_path / "m.onnx"), new_ops=[Scan])
    ids = np.array([[0, 1, 2], [3, -1, 5]])
    with pytest.raises(IndexError, match="out of bounds"):
        session.run(None, {"inputs": ids, **({"lengths": np.array([3, 2])} if lengths else {})})
    if lengths:
        (got,) = session.run(None, {"inputs": ids, "lengths": np.array([3, 1])})
        expected, _ = model.forward(params, ids, Context(np.array([3, 1])))
        np.testing.assert_allclose(got[1, :1], expected[1, :1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layer", "line"), [
    ("fixed_point", "FixedPoint"), ("bedouin", "MatrixFixedPoint"), ("fpmamba", "MatrixFixedPoint"),
])  # fmt: skip
def test_a_layer_that_iterates_is_refused_by_its_fixed_point(layer: str, line: str, tmp_path: Path) -> None:
    model = build_model(ModelSettings(layer, 8, 1), N, head="tagger", n_classes=3, n_features=2)
    with pytest.raises(ValueError, match=rf"^save_onnx: the model has an? \w+, whose {line} has no form in ONNX here$"):
        model.save_onnx(tmp_path / "m.onnx", model.init(np.random.default_rng(0)))


def test_a_graph_does_not_depend_on_the_byte_order(tmp_path: Path) -> None:
    model, params = moved_model("lru", N, {"norm": "batch"}, "tagger")
    for name, order in (("native", "="), ("big", ">")):
        given = unflatten({key: one.astype(one.dtype.newbyteorder(order)) for key, one in flatten(params)})
        model.save_onnx(tmp_path / name, given)
    assert (tmp_path / "big").read_bytes() == (tmp_path / "native").read_bytes()


@pytest.mark.parametrize("head", ["tagger", "classifier", "last"])
def test_a_bidirectional_graph_reads_no_padding(head: str, tmp_path: Path) -> None:
    model, params = moved_model("lru", *LAYERS["lru"], head)
    model.save_onnx(tmp_path / "m.onnx", params, lengths=True)
    x, lengths = np.random.default_rng(1).standard_normal((3, 6, 3)), np.array([6, 2, 0])
    (got,) = reference.ReferenceEvaluator(str(tmp_path / "m.onnx"), new_ops=[Scan]).run(
        None, {"inputs": x, "lengths": lengths}
    )
    expected, _ = model.forward(params, x, Context(lengths))
    valid = np.arange(6) < lengths[:, None] if head == "tagger" else slice(None)
    np.testing.assert_allclose(got[valid], expected[valid], rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="save_onnx: the LRU reads sequences from their end, expected a causal model"):
        model.save_onnx(tmp_path / "m.onnx", params, state=True)


def moved_model(layer: str, own: dict[str, Any], settings: dict[str, Any], head: str) -> Any:
    """Returns a model of features and its parameters in float64, each moved from its initial value."""
    pool = {} if head == "tagger" else {"pool": "last" if head == "last" else "mean"}
    model: Any = build_model(
        ModelSettings(layer.split(",")[0], 8, 2, **settings, **pool), own,
        head="tagger" if head == "tagger" else "classifier", n_classes=5, n_features=3,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    moved = {name: one + 0.05 * rng.standard_normal(one.shape) for name, one in flatten(model.init(rng))}
    moved = {name: np.abs(one) if name.endswith("running_var") else one for name, one in moved.items()}
    return model, astype(unflatten(moved), np.float64)


def unread(graph: Any) -> set[str]:
    """Returns the constants that no node reads, of which onnxruntime warns when it loads a graph."""
    graphs = [graph]
    for one in graphs:
        graphs += [attribute.g for node in one.node for attribute in node.attribute if attribute.HasField("g")]
    read = {name for one in graphs for node in one.node for name in node.input}
    return {one.name for one in graph.initializer} - read - {value.name for one in graphs for value in one.output}


def zeros_of(value: Any, batch: int) -> Any:
    """Returns the state before the first step, of an input of a graph."""
    kind = value.type.tensor_type
    shape = [one.dim_value or {"batch": batch, "past": 0}[one.dim_param] for one in kind.shape.dim]
    return np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
