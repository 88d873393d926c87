"""The models that are timed, and the ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import products, row, seconds_in_turn
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.nn.layer import Context
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.training.optimiser import AdamW

PATHS = {"fused": Context(train=True), "unfused": Context(train=True, fused=False)}
"""How a model can be run: time in tiles through the whole block, or op after op."""


class Size(NamedTuple):
    """Batch, time, width, real lanes of state, blocks."""

    B: int
    T: int
    D: int
    N: int
    n_layers: int


LISTOPS = Size(32, 2048, 128, 256, 6)
LARGE = Size(50, 1024, 512, 384, 6)
QUICK = Size(2, 128, 16, 32, 2)


def classifier(size: Size) -> SequenceClassifier:
    """The model of recipe listops-rotrnn at a size: batch norm, full GLU, mean pool, heads of 8 lanes."""
    settings = ModelSettings(layer="rotrnn", d_model=size.D, n_layers=size.n_layers)
    return build_model(settings, {"d_state": size.N, "heads": size.N // 8}, n_classes=10, vocab=18)


def training_step(size: Size, ctx: Context) -> Callable[[], None]:
    """A function that runs one training step: forward, backward and AdamW."""
    rng = np.random.default_rng(0)
    model = classifier(size)
    params = model.init(rng)
    optimiser = AdamW()
    moments, group_of = optimiser.init(params), optimiser.grouping(model.is_recurrent)
    tokens, labels = rng.integers(0, 18, (size.B, size.T)), rng.integers(0, 10, size.B)

    def run() -> None:
        logits, saved = model.forward(params, tokens, ctx)
        _, dlogits = cross_entropy(logits, labels)
        optimiser.update(params, model.backward(params, saved, dlogits), moments, group_of, 0, 100)

    return run


def beside_products(
    name: str, layer: Any, shapes: Sequence[tuple[int, int]], size: Size, window: float
) -> list[dict[str, Any]]:
    """Rows of a layer or block, forward and with backward: each of its paths in turn with its products by NumPy."""
    rng = np.random.default_rng(0)
    params = layer.init(rng)
    x, dy = rng.standard_normal((2, size.B, size.T, size.D), dtype=np.float32)

    def forward(ctx: Context) -> Callable[[], object]:
        return lambda: layer.forward(params, x, ctx)

    def both(ctx: Context) -> Callable[[], object]:
        return lambda: layer.backward(params, layer.forward(params, x, ctx)[1], dy)

    rows = []
    for what, run, backward in (("forward", forward, False), ("forward and backward", both, True)):
        multiply, flops = products(size.B * size.T, shapes, backward)
        *seconds, limit_s = seconds_in_turn([*map(run, PATHS.values()), multiply], window=window)
        for path, path_s in zip(PATHS, seconds, strict=True):
            rate = {"GFLOP/s": 1e-9 * flops / path_s}
            kind = {"path": path, **size._replace(n_layers=1)._asdict()}
            rows.append(row(f"{name} {what}", path_s, limit_s, limit="products alone", **rate, **kind))
    return rows
