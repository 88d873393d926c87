"""Models as ONNX graphs: one pass over whole sequences, whose recurrences are loops of the operator Scan.

The graph has the input "inputs", token ids (batch, time) int64 or features (batch, time, F), and the output "logits";
batch and time are free. Every sequence of a batch has the same length. `LAYERS` has the layers that can be said so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rotrnn._support.files import atomic_file, check_file
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.models.model import SequenceModel
from rotrnn.models.tagger import Tagger
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock
from rotrnn.nn.blocks.dense import Embedding
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import Activation, Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm, RMSNorm
from rotrnn.nn.blocks.pool import MeanPool
from rotrnn.nn.layer import Array, Params, flatten
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.layers.rnn import RNN
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.layers.selective import Mamba

OPSET, IR = 18, 8
"""Version 18 of the operators, and the file format that it came with, so that older programs read the files."""

Step = Callable[["Graph", list[str], list[str]], tuple[list[str], list[str]]]
"""Of (states, inputs) of a step, the names of (states, outputs) after it."""


def save_onnx(path: str | os.PathLike[str], model: SequenceModel, params: Params) -> None:
    """Writes a model as an ONNX file, in the dtype of its parameters; see `SequenceModel.save_onnx`."""
    check_file(f"{type(model).__name__}.save_onnx", path)
    try:
        import onnx
    except ImportError as error:
        raise ImportError("save_onnx: needs onnx, which is not installed; pip install 'rotrnn[onnx]'") from error
    model.check_params(params)
    if not isinstance(model, SequenceClassifier | Tagger):
        raise ValueError(f"save_onnx: the model is a {type(model).__name__}, expected a classifier or a tagger")
    graph = Graph(onnx.helper, np.result_type(*(leaf for _, leaf in flatten(params))))
    logits = graph.named("logits", _model(graph, model, params))
    free: list[str | int] = ["batch", "time"]
    tokens = isinstance(model.encoder, Embedding)
    shape = free if tokens else [*free, model.encoder.d_in]  # type: ignore[union-attr]
    inputs = graph.value("inputs", shape, np.int64 if tokens else graph.dtype)
    outputs = graph.value(logits, [*free[: 1 + isinstance(model, Tagger)], [*model.heads.values()][-1].d_out])
    whole = onnx.helper.make_graph(graph.nodes, "rotrnn", [inputs], [outputs], graph.constants)
    versions = [onnx.helper.make_opsetid("", OPSET)]
    made = onnx.helper.make_model(whole, opset_imports=versions, ir_version=IR, producer_name="rotrnn")
    onnx.checker.check_model(made)
    with atomic_file(path) as file:
        file.write(made.SerializeToString())


class Graph:
    """Nodes that are appended one by one, and their constants; a loop's body is a graph of its own with the constants
    of the one around it. Values are names."""

    def __init__(self, helper: Any, dtype: np.dtype[Any], outer: Graph | None = None) -> None:
        self.helper, self.dtype, self.outer = helper, dtype, outer
        self.nodes: list[Any] = []
        self.constants: list[Any] = outer.constants if outer else []
        self.count: list[int] = outer.count if outer else [0]

    def name(self) -> str:
        self.count[0] += 1
        return f"v{self.count[0]}"

    def named(self, name: str, value: str) -> str:
        """Gives a value another name."""
        self.nodes.append(self.helper.make_node("Identity", [value], [name]))
        return name

    def value(self, name: str, shape: Sequence[str | int] | None = None, dtype: Any = None) -> Any:
        kind = self.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype if dtype is None else dtype))
        return self.helper.make_tensor_value_info(name, kind, shape)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Appends an operator with one output."""
        name = self.name()
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, array: Any, dtype: Any = None) -> str:
        """A constant, in the graph's dtype unless another one is given."""
        value = np.ascontiguousarray(array, self.dtype if dtype is None else dtype)
        name = self.name()
        kind = self.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.constants.append(self.helper.make_tensor(name, kind, np.shape(array), value.tobytes(), raw=True))
        return name

    def dense(self, x: str, w: Array, bias: Array | None = None) -> str:
        y = self.op("MatMul", x, self.constant(w.T))
        return y if bias is None else self.op("Add", y, self.constant(bias))

    def cast(self, x: str, dtype: Any) -> str:
        return self.op("Cast", x, to=self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def scan(
        self, step: Step, sizes: Sequence[tuple[int, ...]], inputs: list[str], reverse: bool = False, wide: bool = False
    ) -> list[str]:
        """Returns the outputs (B, T, ...) of a loop over the time of `inputs`, whose states (B, *size) begin at 0. A
        `wide` loop runs in float64."""
        body = Graph(self.helper, np.dtype(np.float64) if wide else self.dtype, self)
        if body.dtype != self.dtype:
            inputs = [self.cast(one, body.dtype) for one in inputs]
        batch = self.op("Shape", inputs[0], start=0, end=1)
        starts = []
        for size in sizes:
            shape = self.op("Concat", batch, self.constant(size, np.int64), axis=0)
            zero = self.helper.make_tensor("", body.value("").type.tensor_type.elem_type, [1], [0.0])
            starts.append(self.op("ConstantOfShape", shape, value=zero))
        before, now = [body.name() for _ in starts], [body.name() for _ in inputs]
        after, given = step(body, before, now)
        ends = [body.op("Identity", one) for one in (*after, *given)]  # a value may be both a state and an output
        graph = self.helper.make_graph(
            body.nodes, self.name(), [body.value(one) for one in (*before, *now)], [body.value(one) for one in ends]
        )
        outputs = [self.name() for _ in ends]
        directions = [int(reverse)]
        self.nodes.append(
            self.helper.make_node(
                "Scan",
                [*starts, *inputs],
                outputs,
                body=graph,
                num_scan_inputs=len(inputs),
                scan_input_axes=[1] * len(inputs),
                scan_output_axes=[1] * len(given),
                scan_input_directions=directions * len(inputs),
                scan_output_directions=directions * len(given),
            )
        )
        outputs = outputs[len(starts) :]
        return outputs if body.dtype == self.dtype else [self.cast(one, self.dtype) for one in outputs]


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


def _rnn(g: Graph, layer: RNN, params: Params, x: str) -> str:
    activation = {"identity": "Identity", "tanh": "Tanh", "relu": "Relu"}[layer.activation]

    def step(body: Graph, states: list[str], now: list[str]) -> tuple[list[str], list[str]]:
        h = body.op(activation, body.op("Add", body.dense(states[0], params["A"]), now[0]))
        return [h], [h]

    z, y = g.dense(x, params["B"]), g.op("Mul", x, g.constant(params["D"]))
    for reverse, name in enumerate(("C", "C_reverse")[: 1 + layer.bidirectional]):
        (h,) = g.scan(step, [(layer.d_state,)], [z], bool(reverse))
        y = g.op("Add", y, g.dense(h, params[name]))
    return y


def _min_gru(g: Graph, layer: MinGRU, params: Params, x: str) -> str:
    z = g.op("Sigmoid", g.dense(x, params["W_z"], params["b_z"]))
    candidate = g.op("Mul", z, g.dense(x, params["W_c"], params["b_c"]))
    kept = g.op("Sub", g.constant(1), g.op("Mul", z, g.constant(2)) if layer.negative else z)

    def step(body: Graph, states: list[str], now: list[str]) -> tuple[list[str], list[str]]:
        h = body.op("Add", body.op("Mul", now[0], states[0]), now[1])
        return [h], [h]

    (h,) = g.scan(step, [(layer.d_state,)], [kept, candidate])
    return g.dense(h, params["W_out"])


def _mamba(g: Graph, layer: Mamba, params: Params, x: str) -> str:
    _no_window(layer)
    inner, R, S = layer.inner, layer.rank, layer.d_state
    (w, w_gate), (bias, b_gate) = layer._halves(params)
    value, gate = g.dense(x, w, bias), g.dense(x, w_gate, b_gate)
    u = _silu(g, _conv(g, params, value) if layer.d_conv else value)
    d, B, C = (g.dense(u, w) for w in np.split(params["x_proj"], (R, R + S)))
    delta = g.op("Softplus", g.dense(d, params["dt_proj"], params["dt_bias"]))
    A = g.constant(layer.prepare(params))
    last, middle = g.constant([-1], np.int64), g.constant([1], np.int64)

    def step(body: Graph, states: list[str], now: list[str]) -> tuple[list[str], list[str]]:
        u_t, delta_t, B_t, C_t = now
        decay = body.op("Exp", body.op("Mul", body.op("Unsqueeze", delta_t, last), A))
        if layer.negative:
            decay = body.op("Sub", body.op("Mul", decay, body.constant(2)), body.constant(1))
        given = body.op(
            "Mul", body.op("Unsqueeze", body.op("Mul", delta_t, u_t), last), body.op("Unsqueeze", B_t, middle)
        )
        h = body.op("Add", body.op("Mul", decay, states[0]), given)
        return [h], [body.op("ReduceSum", body.op("Mul", h, body.op("Unsqueeze", C_t, middle)), last, keepdims=0)]

    (y,) = g.scan(step, [(inner, S)], [u, delta, B, C])
    y = g.op("Add", y, g.op("Mul", u, g.constant(params["D"])))
    return g.dense(g.op("Mul", y, _silu(g, gate)), params["out_proj"], params.get("out_bias"))


def _griffin(g: Graph, layer: Griffin, params: Params, x: str) -> str:
    gate = g.dense(x, params["griffin_gate_w"], params["griffin_gate_bias"])
    value = g.dense(x, params["griffin_value_w"], params["griffin_value_bias"])
    read = _layer(g, layer.layer, params, _conv(g, params, value, "griffin_"))
    return g.dense(g.op("Mul", _gelu(g, gate), read), params["griffin_out_w"], params["griffin_out_bias"])


def _conv(g: Graph, params: Params, x: str, names: str = "") -> str:
    """The causal depthwise convolution, whose last tap is that of the newest step, as a sum: onnxruntime has no Conv in
    float64."""
    taps, time = params[names + "conv_w"].shape[1], g.constant([1], np.int64)
    padded = g.op("Pad", x, g.constant([0, taps - 1, 0, 0, 0, 0], np.int64))
    y = g.constant(params.get(names + "conv_bias", 0))
    for k, w in enumerate(params[names + "conv_w"].T):
        end = k + 1 - taps or np.iinfo(np.int64).max  # as many steps as x has
        given = g.op("Slice", padded, *(g.constant([at], np.int64) for at in (k, end)), time)
        y = g.op("Add", y, g.op("Mul", given, g.constant(w)))
    return y


def _silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def _no_window(layer: Any) -> None:
    if layer.window is not None:
        raise ValueError(f"save_onnx: a {type(layer).__name__} has window={layer.window}, expected None")


LAYERS: dict[type, Callable[..., str]] = {
    LinearRecurrence: _linear,
    S4D: _s4d,
    RNN: _rnn,
    MinGRU: _min_gru,
    Mamba: _mamba,
    Griffin: _griffin,
}


def _layer(g: Graph, layer: Any, params: Params, x: str) -> str:
    for kind, build in LAYERS.items():
        if isinstance(layer, kind):
            return build(g, layer, params, x)
    raise ValueError(
        f"save_onnx: the model has a {type(layer).__name__}, expected LRU, S5, RotRNN, RopeMemory, {_KINDS}"
    )


_KINDS = ", ".join(kind.__name__ for kind in LAYERS if kind is not LinearRecurrence)


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
        square = g.op("ReduceMean", g.op("Mul", x, x), g.constant([-1], np.int64))
        root = g.op("Sqrt", g.op("Add", square, g.constant(norm.eps)))
        return g.op("Mul", g.op("Div", x, root), g.constant(params["scale"]))
    raise _unknown(norm)


def _gelu(g: Graph, x: str) -> str:
    """Its tanh form."""
    cube = g.op("Mul", g.op("Mul", x, g.op("Mul", x, x)), g.constant(0.044715))
    inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.constant(np.sqrt(2 / np.pi))))
    return g.op("Mul", g.op("Mul", x, g.constant(0.5)), g.op("Add", inner, g.constant(1)))


def _end(g: Graph, gate: Any, params: Params, x: str) -> str:
    if isinstance(gate, Dropout):
        return x
    z = _gelu(g, x)
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
        z = _gelu(g, g.dense(normed, own["up"]["w"], own["up"]["bias"]))
        if block.feed_forward.gated:
            z = g.op("Mul", z, g.dense(normed, own["value"]["w"], own["value"]["bias"]))
        return g.op("Add", x, g.dense(z, own["down"]["w"], own["down"]["bias"]))
    if not isinstance(block, ResidualBlock):
        raise _unknown(block)
    z = _norm(g, block.norm, params["norm"], x) if block.prenorm else x
    z = _end(g, block.gate, params.get("gate", {}), _layer(g, block.layer, params["layer"], z))
    y = g.op("Add", x, z)
    return y if block.prenorm else _norm(g, block.norm, params["norm"], y)


def _model(g: Graph, model: SequenceClassifier | Tagger, params: Params) -> str:
    own = params["encoder"]
    if isinstance(model.encoder, Embedding):
        x = g.op("Add", g.op("Gather", g.constant(own["table"]), "inputs"), g.constant(own["bias"]))
    else:
        x = g.dense("inputs", own["w"], own["bias"])
    for i, block in enumerate(model.stack.blocks):
        x = _block(g, block, params["blocks"][str(i)], x)
    if model.norm is not None:
        x = _norm(g, model.norm, params["norm"], x)
    if isinstance(model, Tagger):
        head = model.head_params(params)
    else:
        head = params["head"]
        mean = isinstance(model.pool, MeanPool)
        time = g.constant([1] if mean else -1, np.int64)
        x = g.op("ReduceMean", x, time, keepdims=0) if mean else g.op("Gather", x, time, axis=1)
    return g.dense(x, head["w"], head["bias"])


def _unknown(part: Any) -> ValueError:
    return ValueError(f"save_onnx: the model has a {type(part).__name__}, which has no form in ONNX here")
