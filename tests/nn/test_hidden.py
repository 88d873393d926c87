"""Gradients of `hidden_states`, as `backward` takes them from a module over a layer."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import rotrnn
from rotrnn.models.build import make_layer
from rotrnn.nn.layer import Recurrent
from rotrnn.nn.registry import LAYERS
from rotrnn.testing import central_differences
from small_models import exact

D, T = 4, 7
WITH_HIDDEN = [name for name, kind in LAYERS.items() if "dh" in inspect.signature(kind.backward).parameters]


def small(name: str) -> Recurrent:
    layer: Recurrent = make_layer(name, D, exact(name))
    return layer


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("name", WITH_HIDDEN)
def test_a_gradient_of_hidden_states_is_added(name: str, packed: bool) -> None:
    layer, rng = small(name), np.random.default_rng(0)
    params = {key: value.astype(np.float64) for key, value in layer.init(rng).items()}
    x, ctx = rng.standard_normal((1, T, D)), rotrnn.Context(train=True, cu_seqlens=[0, 3, T] if packed else None)
    y, saved = layer.forward(params, x, ctx)
    h = layer.hidden_states(saved)
    if h is None:
        with pytest.raises(ValueError, match=r"backward: got dh, expected None: forward's result has no hidden"):
            layer.backward(params, saved, y, dh=y)
        return
    if "x" not in layer.estimated:
        errors = central_differences(
            lambda given: (layer.hidden_states(layer.forward(params, given["x"], ctx)[1]),),
            lambda given, outputs, dh: {"x": layer.backward(params, saved, np.zeros_like(y), dh=dh[0])[0]},
            {"x": x},
            rng,
        )
        assert max(errors.values()) <= 1e-6
    for wrong in (h[:, 1:], h.real if np.iscomplexobj(h) else h + 0j, "h"):
        with pytest.raises(ValueError, match=r"backward: dh is .*, expected \(1, 7, .*as hidden_states"):
            layer.backward(params, saved, y, dh=wrong)
