"""ONNX graphs that are written node by node, with loops over time, and the functions that layers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rotrnn.nn.layer import Array

Step = Callable[["Graph", list[str], list[str]], tuple[list[str], list[str]]]
"""Of (states, inputs) of a step, the names of (states, outputs) after it."""


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

    def axes(self, *axes: int) -> str:
        """Axes, or other integers, as a constant."""
        return self.constant(axes, np.int64)

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


def conv(g: Graph, x: str, taps: Array, bias: Array | None) -> str:
    """The causal depthwise convolution, whose last tap is for the newest step, as a sum: onnxruntime has no Conv in
    float64."""
    count = taps.shape[1]
    padded = g.op("Pad", x, g.axes(0, count - 1, 0, 0, 0, 0))
    y = g.constant(0 if bias is None else bias)
    for k, w in enumerate(taps.T):
        end = k + 1 - count or np.iinfo(np.int64).max  # as many steps as x has
        given = g.op("Slice", padded, g.axes(k), g.axes(end), g.axes(1))
        y = g.op("Add", y, g.op("Mul", given, g.constant(w)))
    return y


def silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def gelu(g: Graph, x: str) -> str:
    """Its tanh form."""
    cube = g.op("Mul", g.op("Mul", x, g.op("Mul", x, x)), g.constant(0.044715))
    inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.constant(np.sqrt(2 / np.pi))))
    return g.op("Mul", g.op("Mul", x, g.constant(0.5)), g.op("Add", inner, g.constant(1)))


def rms_norm(g: Graph, x: str, scale: Array, eps: float) -> str:
    square = g.op("ReduceMean", g.op("Mul", x, x), g.axes(-1))
    root = g.op("Sqrt", g.op("Add", square, g.constant(eps)))
    return g.op("Mul", g.op("Div", x, root), g.constant(scale))
