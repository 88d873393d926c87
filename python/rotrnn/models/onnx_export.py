"""Models as ONNX graphs: one pass over whole sequences, whose recurrences are loops of the operator Scan.

The graph has the input "inputs", token ids (batch, time) int64 or features (batch, time, F), and the output "logits";
batch and time are free. Lengths and states are optional inputs and outputs (`onnx_graph.Graph`). The
graph follows from the lines of the model (`rotrnn.models.listing`), each by its rule (`onnx_instructions.RULES`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rotrnn._support.extras import needed
from rotrnn._support.files import atomic_file, check_file
from rotrnn._support.text import an
from rotrnn.models.files import HEADS
from rotrnn.models.listing import listed
from rotrnn.models.onnx_graph import Graph
from rotrnn.models.onnx_instructions import RULES
from rotrnn.nn.blocks.dense import Embedding
from rotrnn.nn.layer import Params, flatten
from rotrnn.nn.listing import Unlisted
from rotrnn.ops.boundary import Boundary

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel

OPSET, IR = 18, 8
"""Version 18 of the operators, and the file format that it came with, so that older programs read the files."""


def save_onnx(
    path: str | os.PathLike[str], model: SequenceModel, params: Params, *, lengths: bool = False, state: bool = False
) -> None:
    """Writes a model as an ONNX file, in the dtype of its parameters; see `SequenceModel.save_onnx`."""
    check_file(f"{type(model).__name__}.save_onnx", path)
    for name, value in (("lengths", lengths), ("state", state)):
        Boundary("save_onnx").flag(name, value)
    if model.timed:
        raise ValueError("save_onnx: the model reads intervals dt, which ONNX does not have, expected save")
    with needed("save_onnx: needs onnx", "'rotrnn[onnx]'"):
        import onnx
    model.check_params(params)
    steps = isinstance(model, HEADS["Tagger"])
    if not steps and not isinstance(model, HEADS["SequenceClassifier"]):
        raise ValueError(f"save_onnx: the model is {an(type(model).__name__)}, expected a classifier or a tagger")
    dtype = np.result_type(*(leaf for _, leaf in flatten(params)))
    graph = Graph(onnx.helper, dtype, stateful=state, ragged=lengths)
    logits = graph.named("logits", _model(graph, model, params))
    free: list[str | int] = ["batch", "time"]
    tokens = isinstance(model.encoder, Embedding)
    shape = free if tokens else [*free, model.encoder.d_in]  # type: ignore[union-attr]
    inputs = [graph.value("inputs", shape, np.int64 if tokens else graph.dtype)]
    if lengths:
        inputs.append(graph.value("lengths", ["batch"], np.int64))
    outputs = [graph.value(logits, [*free[: 1 + steps], [*model.heads.values()][-1].d_out])]
    ends = [*inputs, *graph.before], [*outputs, *graph.after]
    whole = onnx.helper.make_graph(graph.nodes, "rotrnn", *ends, graph.tensors())
    versions = [onnx.helper.make_opsetid("", OPSET)]
    made = onnx.helper.make_model(whole, opset_imports=versions, ir_version=IR, producer_name="rotrnn")
    onnx.checker.check_model(made)
    with atomic_file(path) as file:
        file.write(made.SerializeToString())


def _model(g: Graph, model: SequenceModel, params: Params) -> str:
    """Each line by its rule."""
    try:
        listing = listed(model, params)
    except Unlisted as error:
        raise ValueError(f"save_onnx: {error}") from error
    arrays = listing.arrays
    first, last = ([arrays[name] for name in names] for names in (listing.encoder, listing.head))
    if listing.tokens:
        ids = g.op("Where", g.valid("inputs"), "inputs", g.constant(0, np.int64)) if g.ragged else "inputs"
        negative = g.op("Less", ids, g.constant(0, np.int64))  # Gather would take -1 as the last
        ids = g.op("Where", negative, g.constant(np.iinfo(np.int64).max, np.int64), ids)
        x = g.op("Add", g.op("Gather", g.constant(first[0]), ids), g.constant(first[1]))
    else:
        x = g.dense(g.masked("inputs"), *first)
    values: dict[Any, Any] = {None: None, 0: x, **arrays}
    for line in listing.lines:
        if line.op not in RULES:
            raise ValueError(f"save_onnx: the model has {an(line.layer)}, whose {line.op} has no form in ONNX here")
        g.layer = line.layer
        try:
            found = RULES[line.op](g, line, *[values[one] for one in line.inputs])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if str(error).startswith("save_onnx: "):
                raise
            why = f"{type(error).__name__}: {error}"  # in a line that a user wrote
            got = f"{an(line.layer)}, whose line {line.op} does not fit its form in ONNX ({why})"
            expected = f"the inputs, settings, shapes and states of lines that {line.op} itself writes"
            raise ValueError(f"save_onnx: the model has {got}, expected {expected}") from error
        values.update(zip(line.outputs, found if isinstance(found, tuple) else (found,), strict=True))
    x = values[listing.y]
    if listing.pool is not None:
        x = POOLS[listing.pool](g, x, len(last[0].T))
    logits = g.dense(x, *last)
    if listing.cap is None:
        return logits
    cap = g.constant(listing.cap)
    return g.op("Mul", cap, g.op("Tanh", g.op("Div", logits, cap)))


def _mean(g: Graph, x: str, width: int) -> str:
    """The mean over all steps so far."""
    if not (g.ragged or g.stateful):
        return g.op("ReduceMean", x, g.axes(1), keepdims=0)
    x = g.masked(x)
    new, count, before = g.steps(x), g.places(x), g.state(x, (width,))
    steps, seen = (g.op("Unsqueeze", g.cast(one, g.dtype), g.axes(1)) for one in (new, g.op("Add", count, new)))
    least = g.op("Max", seen, g.constant(1))
    total = g.op("ReduceSum", x, g.axes(1), keepdims=0)
    change = g.op("Div", g.op("Sub", total, g.op("Mul", steps, before)), least)
    mean = g.op("Add", before, change)
    g.keep(mean, (width,))
    return mean


def _last(g: Graph, x: str, width: int) -> str:
    """The last step so far; zero if there is none."""
    whole = g.preceded(x, 1, (width,)) if g.ragged or g.stateful else x
    padding = 1 if g.ragged or g.stateful else 0
    return g.op("Squeeze", g.ends(whole, 1, padding), g.axes(1))


POOLS = {"mean": _mean, "last": _last}
