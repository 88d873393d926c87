"""Models as ONNX graphs: one pass over whole sequences, whose recurrences are loops of the operator Scan.

The graph has the input "inputs", token ids (batch, time) int64 or features (batch, time, F), and the output "logits";
batch and time are free. Every sequence of a batch has the same length. The graph follows from the
lines of the model (`rotrnn.models.listing`), each by its rule (`onnx_instructions.RULES`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rotrnn._support.files import atomic_file, check_file
from rotrnn._support.text import an
from rotrnn.models.files import HEADS
from rotrnn.models.listing import listed
from rotrnn.models.onnx_graph import Graph
from rotrnn.models.onnx_instructions import RULES
from rotrnn.nn.blocks.dense import Embedding
from rotrnn.nn.layer import Params, flatten
from rotrnn.nn.listing import Unlisted

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
        raise ValueError(f"save_onnx: the model is {an(type(model).__name__)}, expected a classifier or a tagger")
    graph = Graph(onnx.helper, np.result_type(*(leaf for _, leaf in flatten(params))))
    logits = graph.named("logits", _model(graph, model, params))
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


def _model(g: Graph, model: SequenceModel, params: Params) -> str:
    """Each line by its rule."""
    try:
        listing = listed(model, params)
    except Unlisted as error:
        raise ValueError(f"save_onnx: {error}") from error
    arrays = listing.arrays
    first, last = ([arrays[name] for name in names] for names in (listing.encoder, listing.head))
    if listing.tokens:
        x = g.op("Add", g.op("Gather", g.constant(first[0]), "inputs"), g.constant(first[1]))
    else:
        x = g.dense("inputs", *first)
    values: dict[Any, Any] = {None: None, 0: x, **arrays}
    for line in listing.lines:
        if line.op not in RULES:
            raise ValueError(f"save_onnx: the model has {an(line.layer)}, whose {line.op} has no form in ONNX here")
        found = RULES[line.op](g, line, *[values[one] for one in line.inputs])
        values.update(zip(line.outputs, found if isinstance(found, tuple) else (found,), strict=True))
    x = values[listing.y]
    if listing.pool == "mean":
        x = g.op("ReduceMean", x, g.axes(1), keepdims=0)
    elif listing.pool == "last":
        x = g.op("Gather", x, g.constant(-1, np.int64), axis=1)
    logits = g.dense(x, *last)
    if listing.cap is None:
        return logits
    cap = g.constant(listing.cap)
    return g.op("Mul", cap, g.op("Tanh", g.op("Div", logits, cap)))
