"""ONNX graphs, written node by node, with loops over time and functions that layers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rotrnn.nn.layer import Array

Step = Callable[["Graph", list[str], list[str]], tuple[list[str], list[str]]]
"""A step: from the names of (states, inputs) to the names of (states, outputs)."""
LIMIT = 2 * 10**9
"""Bytes of the constants of a graph: a file of protobuf has less than 2^31, with the nodes."""


class Graph:
    """Nodes that are appended one by one, and their constants; a loop's body is a separate graph with the constants of
    the surrounding graph. Values are names.

    States begin at zero, or, if the graph is `stateful`, are inputs "state_0", "state_1", ... of the graph with the
    output "next_state_0", ... A layer that reads all earlier steps has a state with an axis "past", whose size is their
    number in the pieces before, 0 at first. With `ragged`, the input "lengths" (batch,) int64 says how many steps each
    sequence has: the states are as after these, and backward in time, too, padding is not read.
    """

    def __init__(
        self,
        helper: Any,
        dtype: np.dtype[Any],
        outer: Graph | None = None,
        stateful: bool = False,
        ragged: bool = False,
    ) -> None:
        self.helper, self.dtype, self.outer = helper, dtype, outer
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = outer.constants if outer else {}
        self._given: dict[tuple[int, Any], tuple[Any, str]] = outer._given if outer else {}
        self.count: list[int] = outer.count if outer else [0]
        self.stateful, self.ragged = stateful, ragged
        self.before: list[Any] = []
        self.after: list[Any] = []
        self.layer = "model"
        """The layer whose block has the line that is written, for messages."""
        self._valid: str | None = None
        self._places: str | None = None

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
        """A constant, in the graph's dtype unless another one is given; the same one for the same array."""
        dtype = np.dtype(self.dtype if dtype is None else dtype)
        if (id(array), dtype) not in self._given:
            name = self.name()
            self.constants[name] = np.ascontiguousarray(array, dtype).reshape(np.shape(array))
            self._given[id(array), dtype] = array, name  # held, so that no other array has its id
        return self._given[id(array), dtype][1]

    def tensors(self) -> list[Any]:
        """Returns the constants that a node reads, for the file. ValueError if they are too large for one."""
        read = set(_names_read(self.nodes))
        constants = {name: value for name, value in self.constants.items() if name in read}
        if (size := sum(value.nbytes for value in constants.values())) >= LIMIT:
            got, expected = f"{size / 1e9:.1f} GB", f"less than {LIMIT / 1e9:g} GB, the limit of an ONNX file"
            raise ValueError(f"save_onnx: the model has {got}, expected {expected}")
        kind = self.helper.np_dtype_to_tensor_dtype
        return [
            self.helper.make_tensor(name, kind(value.dtype), value.shape, value.tobytes(), raw=True)
            for name, value in constants.items()
        ]

    def axes(self, *axes: int) -> str:
        """Axes, or other integers, as a constant."""
        return self.constant(axes, np.int64)

    def dense(self, x: str, w: Array, bias: Array | None = None) -> str:
        tied = (id(w), self.dtype) in self._given
        y = self.op("MatMul", x, self.op("Transpose", self.constant(w)) if tied else self.constant(w.T))
        return y if bias is None else self.op("Add", y, self.constant(bias))

    def cast(self, x: str, dtype: Any) -> str:
        return self.op("Cast", x, to=self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    # ---- states ----

    def state(self, like: str, size: Sequence[int | str], dtype: Any = None) -> str:
        """Returns a state (B, *size) before the first step, for as many sequences as in `like`."""
        if self.stateful:
            self.before.append(self.value(f"state_{len(self.before)}", ["batch", *size], dtype))
            return self.before[-1].name
        shape = self.op("Concat", self.op("Shape", like, start=0, end=1), self.constant(size, np.int64), axis=0)
        kind = self.value("", dtype=dtype).type.tensor_type.elem_type
        return self.op("ConstantOfShape", shape, value=self.helper.make_tensor("", kind, [1], [0]))

    def keep(self, value: str, size: Sequence[int | str], dtype: Any = None) -> None:
        """Outputs a state after the last step, in the order of `state`."""
        if self.stateful:
            self.after.append(self.value(f"next_state_{len(self.after)}", ["batch", *size], dtype))
            self.named(self.after[-1].name, value)

    def steps(self, x: str) -> str:
        """Returns the number of valid steps (B,) of x (B, T, ...)."""
        if self.ragged:
            return "lengths"
        return self.op("Expand", self.op("Shape", x, start=1, end=2), self.op("Shape", x, start=0, end=1))

    def places(self, x: str) -> str:
        """Returns the number of steps (B,) of each sequence before x (B, T, ...): a state, which all layers share."""
        if self._places is None:
            self._places = self.state(x, (), np.int64)
            self.keep(self.op("Add", self._places, self.steps(x)), (), np.int64)
        return self._places

    def range(self, x: str) -> str:
        """Returns the numbers (T,) of the steps of x (B, T, ...)."""
        count = self.op("Squeeze", self.op("Shape", x, start=1, end=2), self.axes(0))
        return self.op("Range", self.constant(0, np.int64), count, self.constant(1, np.int64))

    def valid(self, x: str) -> str:
        """Returns which steps of x (B, T, ...) are valid, (B, T)."""
        if self._valid is None:
            self._valid = self.op("Less", self.range(x), self.op("Unsqueeze", "lengths", self.axes(1)))
        return self._valid

    def masked(self, x: str) -> str:
        """Returns x (B, T, D) with zeros in padding. It may be NaN there, and 0 * NaN is NaN."""
        if not self.ragged:
            return x
        return self.op("Where", self.op("Unsqueeze", self.valid(x), self.axes(2)), x, self.constant(0))

    def ends(self, x: str, count: int, padding: int) -> str:
        """Returns, of x (B, T + padding, ...) whose first `padding` steps come before the sequences, the last `count`
        of each sequence, (B, count, ...)."""
        if not self.ragged:
            return self.op("Slice", x, self.axes(-count), self.axes(np.iinfo(np.int64).max), self.axes(1))
        first = self.op("Add", self.op("Unsqueeze", "lengths", self.axes(1)), self.axes(padding - count))
        places = self.op("Add", first, self.constant(np.arange(count), np.int64))
        return self.op("GatherND", x, self.op("Unsqueeze", places, self.axes(2)), batch_dims=1)

    def preceded(self, x: str, count: int, size: Sequence[int], dtype: Any = None) -> str:
        """Returns x (B, T, *size) after the `count` steps before it, (B, T + count, *size)."""
        size = (count, *size)
        whole = self.op("Concat", self.state(x, size, dtype), x, axis=1)
        self.keep(self.ends(whole, count, count), size, dtype)
        return whole

    def history(self, x: str, window: int | None, width: int) -> tuple[str, str, str]:
        """Returns the steps of x (B, T, width) after the earlier steps that it sees, the last ones of a `window` or
        all, (B, R, width); the ages (T, R) of these steps at each step of x, negative for later ones; and which of them
        a step of x sees, (B, T, R)."""
        places, rows = self.places(x), x
        if window is not None:
            rows = self.preceded(x, window - 1, (width,)) if window > 1 else x
        elif self.stateful:
            rows = self.op("Concat", self.state(x, ("past", width)), x, axis=1)
            last = rows
            if self.ragged:
                padding = self.op("Sub", "lengths", self.op("Shape", x, start=1, end=2))
                at = self.op("Add", self.op("Unsqueeze", padding, self.axes(1)), self.range(rows))
                at = self.op("Max", at, self.constant(0, np.int64))
                last = self.op("GatherND", rows, self.op("Unsqueeze", at, self.axes(2)), batch_dims=1)
            self.keep(last, ("past", width))
        steps, row = self.op("Unsqueeze", self.range(x), self.axes(1)), self.range(rows)
        before = self.op("Sub", self.op("Shape", rows, start=1, end=2), self.op("Shape", x, start=1, end=2))
        age = self.op("Sub", self.op("Add", steps, before), row)
        most = self.op("Add", self.op("Unsqueeze", places, self.axes(1, 2)), steps)
        if window is not None:
            most = self.op("Min", most, self.constant(window - 1, np.int64))
        known = self.op("GreaterOrEqual", age, self.constant(0, np.int64))
        return rows, age, self.op("And", known, self.op("LessOrEqual", age, most))

    def previous(self, x: str, size: Sequence[int], dtype: Any = None) -> str:
        """Returns for each step of x (B, T, *size) the step before it."""
        end = self.op("Shape", x, start=1, end=2)
        return self.op("Slice", self.preceded(x, 1, size, dtype), self.axes(0), end, self.axes(1))

    def running(self, x: str, size: Sequence[int], dtype: Any = None, turn: float | None = None) -> str:
        """Returns the sums of x (B, T, *size) over all steps so far. With `turn` a sum is kept as its remainder."""
        before = self.op("Unsqueeze", self.state(x, size, dtype), self.axes(1))
        sums = self.op("Add", self.op("CumSum", x, self.constant(1, np.int64)), before)
        if self.stateful:
            last = self.op("Squeeze", self.ends(self.op("Concat", before, sums, axis=1), 1, 1), self.axes(1))
            if turn is not None:
                last = self.op("Mod", last, self.constant(turn, dtype), fmod=1)
            self.keep(last, size, dtype)
        return sums

    def scan(
        self, step: Step, sizes: Sequence[tuple[int, ...]], inputs: list[str], reverse: bool = False, wide: bool = False
    ) -> list[str]:
        """Returns the outputs (B, T, ...) of a loop over the time of `inputs`, whose states are (B, *size). A `wide`
        loop runs in float64. Its states do not change at padding, if anything depends on it."""
        if reverse and self.stateful:
            raise ValueError(f"save_onnx: the {self.layer} reads sequences from their end, expected a causal model")
        body = Graph(self.helper, np.dtype(np.float64) if wide else self.dtype, self)
        if body.dtype != self.dtype:
            inputs = [self.cast(one, body.dtype) for one in inputs]
        starts = [self.state(inputs[0], size, body.dtype) for size in sizes]
        before, now = [body.name() for _ in starts], [body.name() for _ in inputs]
        after, given = step(body, before, now)
        values = [body.value(one) for one in (*before, *now)]
        if self.ragged and (self.stateful or reverse):
            inputs = [*inputs, self.valid(inputs[0])]
            values.append(body.value(body.name(), dtype=np.bool_))
            kept = []
            for old, new, size in zip(before, after, sizes, strict=True):
                here = body.op("Reshape", values[-1].name, body.axes(-1, *[1] * len(size)))
                kept.append(body.op("Where", here, new, old))
            after = kept
        ends = [body.op("Identity", one) for one in (*after, *given)]  # a value may be both a state and an output
        graph = self.helper.make_graph(body.nodes, self.name(), values, [body.value(one) for one in ends])
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
        for end, size in zip(outputs, sizes, strict=False):
            self.keep(end, size, body.dtype)
        outputs = outputs[len(starts) :]
        return outputs if body.dtype == self.dtype else [self.cast(one, self.dtype) for one in outputs]


def _names_read(nodes: Iterable[Any]) -> Iterator[str]:
    """Yields the values that nodes read, in the bodies of loops, too."""
    for node in nodes:
        yield from node.input
        for one in node.attribute:
            yield from _names_read(one.g.node)
            yield from (output.name for output in one.g.output)


def conv(g: Graph, x: str, taps: Array, bias: Array | None) -> str:
    """The causal depthwise convolution, whose last tap is for the newest step, as a sum: onnxruntime has no Conv in
    float64."""
    D, count = taps.shape
    padded = g.preceded(x, count - 1, (D,)) if count > 1 else x
    y = g.constant(0 if bias is None else bias)
    for k, w in enumerate(taps.T):
        end = k + 1 - count or np.iinfo(np.int64).max  # as many steps as x has
        given = g.op("Slice", padded, g.axes(k), g.axes(end), g.axes(1))
        y = g.op("Add", y, g.op("Mul", given, g.constant(w)))
    return y


def silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def softplus(g: Graph, x: str) -> str:
    """``max(x, 0) + log(1 + u)``, u = e^{-|x|}: in float64 onnxruntime's Softplus is log(1 + e^x) as it stands.

    ONNX has no log1p: log(1 + u) is ``u log(w) / (w - 1)`` with w = 1 + u as rounded, whose errors cancel, or u where
    w = 1 (Goldberg 1991, theorem 4).
    """
    if g.dtype == np.float32:
        return g.op("Softplus", x)
    one = g.constant(1)
    u = g.op("Exp", g.op("Neg", g.op("Abs", x)))
    w = g.op("Add", one, u)
    ratio = g.op("Div", g.op("Log", w), g.op("Sub", w, one))
    log = g.op("Where", g.op("Equal", w, one), u, g.op("Mul", u, ratio))
    return g.op("Add", g.op("Max", x, g.constant(0)), log)


def gelu(g: Graph, x: str) -> str:
    """Its tanh form."""
    cube = g.op("Mul", g.op("Mul", x, g.op("Mul", x, x)), g.constant(0.044715))
    inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.constant(np.sqrt(2 / np.pi))))
    return g.op("Mul", g.op("Mul", x, g.constant(0.5)), g.op("Add", inner, g.constant(1)))


def rms_norm(g: Graph, x: str, scale: Array, eps: float) -> str:
    """Of x divided by its largest number, or by 1 if that is larger: squares of numbers from 2^64 on overflow in
    float32."""
    size = g.op("Max", g.op("ReduceMax", g.op("Abs", x), g.axes(-1)), g.constant(1))
    x, least = g.op("Div", x, size), g.op("Div", g.constant(eps), g.op("Mul", size, size))
    square = g.op("ReduceMean", g.op("Mul", x, x), g.axes(-1))
    return g.op("Mul", g.op("Div", x, g.op("Sqrt", g.op("Add", square, least))), g.constant(scale))
