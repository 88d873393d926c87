"""Sizes of a small layer of every kind, a small classifier of it, and a step of its training on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from rotrnn import AdamW, Context, ModelSettings, build_model
from rotrnn.nn.layer import astype, flatten
from rotrnn.nn.registry import LAYERS
from strict import to_device

B, T, CLASSES = 3, 9, 4


def sizes_of(layer: str, d_state: int = 4, heads: int = 2, length: int = 16) -> dict[str, Any]:
    """Returns those of these sizes that the layer has."""
    sizes = {"d_state": d_state, "heads": heads, "length": length}
    return {name: size for name, size in sizes.items() if name in LAYERS[layer].__dataclass_fields__}


def classifier(layer: str, n_layers: int, **more: Any) -> Any:
    settings = ModelSettings(layer=layer, d_model=8, n_layers=n_layers, **more)
    return build_model(settings, sizes_of(layer), head="classifier", vocab=5, n_classes=CLASSES)


def training_step(layer: str, ctx: Context, device: bool, n_layers: int, **more: Any) -> tuple[Any, Any]:
    """Forward, loss, backward and update of a classifier; (logits, parameters after it)."""
    model = classifier(layer, n_layers, **more)
    rng = np.random.default_rng(0)
    params = astype(model.init(rng), np.float64)
    tokens, labels = rng.integers(0, 5, (B, T)), rng.integers(0, CLASSES, B)
    if device:
        params, tokens, labels = to_device(params), to_device(tokens), to_device(labels)
    moments = {f"{kind}.{name}": np.zeros_like(value) for kind in "mv" for name, value in flatten(params)}
    logits, saved = model.forward(params, tokens, ctx)
    loss = model.loss(logits, labels)
    grads = model.backward(params, saved, loss.dlogits)
    AdamW(lr=1e-3).update(params, grads, moments, lambda name: "global", 0, 10)
    return logits, params
