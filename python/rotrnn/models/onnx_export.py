"""Models as ONNX graphs: one pass over whole sequences, whose recurrences are loops of the operator Scan.

The graph has the input "inputs", token ids (batch, time) int64 or features (batch, time, F), and the output "logits";
batch and time are free. Every sequence of a batch has the same length. `LAYERS` has the layers that can be said so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rotrnn._support.files import atomic_file, check_file
from rotrnn.models.files import HEADS
from rotrnn.models.onnx_graph import Graph, gelu, rms_norm
from rotrnn.models.onnx_instructions import RULES
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock
from rotrnn.nn.blocks.dense import Embedding
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm, RMSNorm
from rotrnn.nn.blocks.pool import MeanPool
from rotrnn.nn.instructions import Inner
from rotrnn.nn.layer import Array, Params, flatten
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.program import Line, Programmed

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel

OPSET, IR = 18, 8
"""Version 18 of the operators, and the file format that it came with, so that older programs read the files."""


def save_onnx(path: str | os.PathLike[str], model: SequenceModel, params: Params) -> None:
    """Writes a model as an ONNX file, in the dtype of its parameters; see `SequenceModel.save_onnx`."""
    check_file(f"{type(model).__name__}.save_onnx", path)
    try:
        import onnx
    except ImportError as error:
        raise ImportError("save_onnx: needs onnx, which is not installed; pip install 'rotrnn[onnx]'") from error
    model.check_params(params)
    steps = isinstance(model, HEADS["Tagger"])
    if not steps and not isinstance(model, HEADS["SequenceClassifier"]):
        raise ValueError(f"save_onnx: the model is a {type(model).__name__}, expected a classifier or a tagger")
    graph = Graph(onnx.helper, np.result_type(*(leaf for _, leaf in flatten(params))))
    logits = graph.named("logits", _model(graph, model, params, steps))
    free: list[str | int] = ["batch", "time"]
    tokens = isinstance(model.encoder, Embedding)
    shape = free if tokens else [*free, model.encoder.d_in]  # type: ignore[union-attr]
    inputs = graph.value("inputs", shape, np.int64 if tokens else graph.dtype)
    outputs = graph.value(logits, [*free[: 1 + steps], [*model.heads.values()][-1].d_out])
    whole = onnx.helper.make_graph(graph.nodes, "rotrnn", [inputs], [outputs], graph.constants)
    versions = [onnx.helper.make_opsetid("", OPSET)]
    made = onnx.helper.make_model(whole, opset_imports=versions, ir_version=IR, producer_name="rotrnn")
    onnx.checker.check_model(made)
    with atomic_file(path) as file:
        file.write(made.SerializeToString())


# ---- layers: (graph, layer, params, x) -> y ----


def _rotated(g: Graph, a: Array, states: list[str], inputs: list[str]) -> list[str]:
    """a h + u for complex numbers, each a pair of values."""
    re, im = g.constant(a.real), g.constant(a.imag)
    h_re = g.op("Sub", g.op("Mul", re, states[0]), g.op("Mul", im, states[1]))
    h_im = g.op("Add", g.op("Mul", re, states[1]), g.op("Mul", im, states[0]))
    return [g.op("Add", h, u) for h, u in zip((h_re, h_im), inputs, strict=False)] + [h_im] * (2 - len(inputs))


def _linear(g: Graph, layer: LinearRecurrence, params: Params, x: str) -> str:
    _no_window(layer)
    w_in, a, w_out, skip = layer.fold(params).weights
    wide = layer.exact is not None  # states do not decay, and neither would their rounding
    a = layer.exact if layer.exact is not None else a
    inputs = [g.dense(x, w_in[0::2]), g.dense(x, w_in[1::2])]

    def step(body: Graph, states: list[str], now: list[str]) -> tuple[list[str], list[str]]:
        h = _rotated(body, a, states, now)
        return h, h

    y = g.op("Mul", x, g.constant(skip))
    for reverse, w in enumerate(w_out):
        h_re, h_im = g.scan(step, [a.shape, a.shape], inputs, bool(reverse), wide)
        for h, part in ((h_re, w[:, 0::2]), (h_im, w[:, 1::2])):
            y = g.op("Add", y, g.dense(h, part))
    return y


def _s4d(g: Graph, layer: S4D, params: Params, x: str) -> str:
    _no_window(layer)
    a, c, skip = layer.fold(params).weights
    y = g.op("Mul", x, g.constant(skip))
    last = g.constant([-1], np.int64)
    for reverse, readout in enumerate(c):

        def step(
            body: Graph, states: list[str], now: list[str], readout: Array = readout
        ) -> tuple[list[str], list[str]]:
            h = _rotated(body, a, states, [body.op("Unsqueeze", now[0], last)])
            read = [
                body.op("Mul", body.constant(one), part)
                for one, part in zip((readout.real, readout.imag), h, strict=True)
            ]
            return h, [body.op("ReduceSum", body.op("Sub", *read), last, keepdims=0)]

        (one,) = g.scan(step, [a.shape, a.shape], [x], bool(reverse))
        y = g.op("Add", y, one)
    return y


def _programmed(g: Graph, layer: Programmed, params: Params, x: str) -> str:
    """Each instruction by its rule; registers that depend on parameters alone are constants."""
    if hasattr(layer, "window"):
        _no_window(layer)
    program, values = layer.begun(params)
    values[0] = x
    for line in program.lines:
        rule = {**RULES, Inner: _inner}.get(type(line.instruction))
        if rule is None:
            kind, own = type(layer).__name__, type(line.instruction).__name__
            raise ValueError(f"save_onnx: the model has a {kind}, whose instruction {own} has no form in ONNX here")
        found = rule(g, line, *[values[place] for place in line.inputs])
        for place, value in zip(line.outputs, found if isinstance(found, tuple) else (found,), strict=True):
            values[place] = value
    y: str = values[program.y]
    return y


def _inner(g: Graph, line: Line, x: str, *params: Array) -> str:
    layer: Any = line.instruction
    return _layer(g, layer.layer, dict(zip(layer.layer.shapes, params, strict=True)), x)


def _no_window(layer: Any) -> None:
    if layer.window is not None:
        raise ValueError(f"save_onnx: a {type(layer).__name__} has window={layer.window}, expected None")


LAYERS: dict[type, Callable[..., str]] = {
    LinearRecurrence: _linear,
    S4D: _s4d,
    Programmed: _programmed,
}


def _layer(g: Graph, layer: Any, params: Params, x: str) -> str:
    for kind, build in LAYERS.items():
        if isinstance(layer, kind):
            return build(g, layer, params, x)
    expected = "LRU, S5, RotRNN, RopeMemory, S4D, or a layer that is a program, as RNN and Mamba are"
    raise ValueError(f"save_onnx: the model has a {type(layer).__name__}, expected {expected}")


# ---- the parts around them ----


def _norm(g: Graph, norm: Any, params: Params, x: str) -> str:
    if isinstance(norm, BatchNorm):
        gain = params["scale"] / np.sqrt(params["running_var"] + norm.eps)
        centred = g.op("Sub", x, g.constant(params["running_mean"]))
        return g.op("Add", g.op("Mul", centred, g.constant(gain)), g.constant(params["bias"]))
    if isinstance(norm, LayerNorm):
        scale, bias = g.constant(params["scale"]), g.constant(params["bias"])
        return g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=norm.eps)
    if isinstance(norm, RMSNorm):
        return rms_norm(g, x, params["scale"], norm.eps)
    raise _unknown(norm)


def _end(g: Graph, gate: Any, params: Params, x: str) -> str:
    if isinstance(gate, Dropout):
        return x
    z = gelu(g, x)
    if isinstance(gate, Activation):
        return z
    if isinstance(gate, Gate):
        share = g.op("Sigmoid", g.dense(z, params["gate"]["w"], params["gate"]["bias"]))
        value = {"half1": z, "half2": x}.get(gate.form) or g.dense(z, params["value"]["w"], params["value"]["bias"])
        return g.op("Mul", value, share)
    raise _unknown(gate)


def _block(g: Graph, block: Any, params: Params, x: str) -> str:
    if isinstance(block, FeedForwardBlock):
        x = _block(g, block.mixing, params, x)
        if not isinstance(block.feed_forward, FeedForward):
            raise _unknown(block.feed_forward)
        own = params["feed_forward"]
        normed = _norm(g, block.norm2, params["norm2"], x)
        z = gelu(g, g.dense(normed, own["up"]["w"], own["up"]["bias"]))
        if block.feed_forward.gated:
            z = g.op("Mul", z, g.dense(normed, own["value"]["w"], own["value"]["bias"]))
        return g.op("Add", x, g.dense(z, own["down"]["w"], own["down"]["bias"]))
    if not isinstance(block, ResidualBlock):
        raise _unknown(block)
    z = _norm(g, block.norm, params["norm"], x) if block.prenorm else x
    z = _end(g, block.gate, params.get("gate", {}), _layer(g, block.layer, params["layer"], z))
    y = g.op("Add", x, z)
    return y if block.prenorm else _norm(g, block.norm, params["norm"], y)


def _model(g: Graph, model: Any, params: Params, steps: bool) -> str:
    """The logits: of all `steps`, or of the pooled ones."""
    own = params["encoder"]
    if isinstance(model.encoder, Embedding):
        x = g.op("Add", g.op("Gather", g.constant(own["table"]), "inputs"), g.constant(own["bias"]))
    else:
        x = g.dense("inputs", own["w"], own["bias"])
    for i, block in enumerate(model.stack.blocks):
        x = _block(g, block, params["blocks"][str(i)], x)
    if model.norm is not None:
        x = _norm(g, model.norm, params["norm"], x)
    if steps:
        head = model.head_params(params)
    else:
        head = params["head"]
        mean = isinstance(model.pool, MeanPool)
        time = g.constant([1] if mean else -1, np.int64)
        x = g.op("ReduceMean", x, time, keepdims=0) if mean else g.op("Gather", x, time, axis=1)
    return g.dense(x, head["w"], head["bias"])


def _unknown(part: Any) -> ValueError:
    return ValueError(f"save_onnx: the model has a {type(part).__name__}, which has no form in ONNX here")
