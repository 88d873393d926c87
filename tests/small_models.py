"""Small layers, a small classifier of each, an instruction, checks of gradients, and a training step on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rotrnn import AdamW, Context, ModelSettings, Recurrent, build_model
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Array, Params, astype, flatten, is_parameter, unflatten
from rotrnn.nn.program import Call, Instruction
from rotrnn.nn.registry import LAYERS
from rotrnn.testing import central_differences
from strict import to_device

B, T, CLASSES = 3, 9, 4


@dataclass(frozen=True)
class Cube(Instruction):
    """``y = x^3``, an instruction of the user's own, which the C library does not have."""

    reads = ("x",)

    def forward(self, call: Call, x: Array) -> Array:
        y: Array = x**3
        return y

    def backward(self, call: Call, dy: Array, x: Array) -> Array:
        dx: Array = 3 * x**2 * dy
        return dx


def sizes_of(layer: str, d_state: int = 4, heads: int = 2, length: int = 16) -> dict[str, Any]:
    """Returns those of these sizes that the layer has."""
    sizes = {"d_state": d_state, "heads": heads, "length": length}
    return {name: size for name, size in sizes.items() if name in LAYERS[layer].__dataclass_fields__}


def exact(layer: str) -> dict[str, Any]:
    """Returns `sizes_of`, and for a layer with fixed points what finds them and their gradient to rounding."""
    iterates = hasattr(LAYERS[layer], "tol")
    return sizes_of(layer) | ({"gradient": "implicit", "tol": 1e-12, "max_iterations": 2000} if iterates else {})


def check_slope(layer: Recurrent, ctx: Context) -> None:
    """The gradient along a random direction of parameters and input is the slope, by central differences of steps s and
    s / 2, extrapolated: without the error that falls as s^2, which unit vectors of small keys make large. What is left
    falls as s^4, or is eps / s, some 1e-9 at s = 1e-5, or the tolerance of fixed points. Arguments whose gradient is an
    estimate stay where they are."""
    rng = np.random.default_rng(5)
    params = astype(layer.init(rng), np.float64)
    x = rng.standard_normal((2, 7, layer.d_model))
    y, saved = layer.forward(params, x, ctx)
    dy = rng.standard_normal(y.shape)
    dx, dparams, _ = layer.backward(params, saved, dy)
    assert dparams.keys() == params.keys() == layer.shapes.keys()
    v = {key: rng.standard_normal(value.shape) for key, value in params.items()}
    vx = rng.standard_normal(x.shape)
    for key in layer.estimated:
        if key == "x":
            vx[:] = 0
        elif key in v:
            v[key][:] = 0

    def f(s: float) -> float:
        moved = {key: value + s * v[key] for key, value in params.items()}
        return float(np.sum(dy * layer.forward(moved, x + s * vx, ctx)[0]))

    wide, narrow = ((f(s) - f(-s)) / (2 * s) for s in (1e-5, 5e-6))
    slope = (4 * narrow - wide) / 3
    terms = [np.sum(dx * vx), *(np.sum(dparams[key] * v[key]) for key in params)]
    assert abs(slope - sum(terms)) <= 1e-6 * max(1.0, *map(abs, terms))


def check_loss(model: SequenceModel, params: Params, inputs: Array, labels: Array, ctx: Context) -> None:
    """The gradient of the loss in every parameter, float64, is that of central differences."""
    every = dict(flatten(params))

    def of(trained: dict[str, Array]) -> tuple[Any, Any]:
        logits, saved = model.forward(unflatten(every | trained), inputs, ctx)
        return model.loss(logits, labels, ctx.lengths), saved

    def backward(trained: dict[str, Array], _: Any, dmean: tuple[Array, ...]) -> dict[str, Array]:
        loss, saved = of(trained)
        grads = model.backward(unflatten(every | trained), saved, loss.dlogits * dmean[0])
        return dict(flatten(grads))

    trained = {name: one for name, one in every.items() if is_parameter(name)}
    central_differences(lambda one: (np.array(of(one)[0].mean),), backward, trained, np.random.default_rng(2), "loss")


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
