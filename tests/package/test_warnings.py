"""Warnings name the line of the caller, whatever the depth of the call."""

from __future__ import annotations

import numpy as np
import pytest

import rotrnn
from rotrnn import ModelSettings, NotConverged, build_model


def test_a_layer_alone_in_a_model_and_in_a_stream_warns_at_the_line_of_the_call() -> None:
    settings = {"d_state": 2, "tol": 1e-12, "max_iterations": 1}
    layer = rotrnn.Bedouin(4, **settings)
    model = build_model(ModelSettings("bedouin", 4, 1), settings, head="tagger", n_features=4, n_classes=2)
    rng = np.random.default_rng(0)
    params, alone = model.init(rng), layer.init(rng)
    x = rng.standard_normal((2, 5, 4))
    stream = model.stream(params, 2)
    for call in (lambda: layer.forward(alone, x), lambda: model.forward(params, x), lambda: stream.push(x)):
        with pytest.warns(NotConverged) as caught:
            call()
        assert {one.filename for one in caught} == {__file__}
