"""A small classifier of every layer, and a step of its training on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from rotrnn import AdamW, Context, ModelSettings, build_model
from rotrnn.nn.layer import astype, flatten
from strict import to_device

SETTINGS: dict[str, dict[str, Any]] = {
    "rotrnn": {"d_state": 8, "heads": 2},
    "rnn": {"d_state": 8},
    "lstm": {"d_state": 8},
    "attention": {"heads": 2},
    "selective_rotrnn": {"d_state": 8, "heads": 2},
    "rope_memory": {"d_state": 4, "length": 16},
    "wrope_memory": {"d_state": 4, "length": 16},
}
B, T, CLASSES = 3, 9, 4


def classifier(layer: str, n_layers: int, **more: Any) -> Any:
    settings = ModelSettings(layer=layer, d_model=8, n_layers=n_layers, **more)
    return build_model(settings, SETTINGS.get(layer, {"d_state": 4}), head="classifier", vocab=5, n_classes=CLASSES)


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
