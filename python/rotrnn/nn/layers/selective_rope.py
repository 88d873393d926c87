"""Selective RoPE: angles that depend on the input, for layers whose keys and queries turn by them (2025)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rotrnn.nn.instructions import Affine, Conv, Dense, Frequencies, Rates, Reshape, RMSNorm
from rotrnn.nn.layer import Array
from rotrnn.nn.program import Builder, Register

PAIRS = "halves"
"""Which lanes turn together (`rotrnn.ops.turn`)."""
TAPS = 4
"""The taps of the convolution of angles, in the released code."""
UNIT_EPS = 1e-6
"""Added to the squared length of a vector before it is normalised, in the released codes."""


def check_rope(layer: Any, heads: str) -> None:
    """Checks `rope_base`, `rope_rank` and `rope_bias` of a layer. `heads` is the name of its number of keys."""
    name, count = type(layer).__name__, getattr(layer, heads)
    layer.check_sizes("rope_rank")
    if layer.rope_base is None:
        for setting in ("rope_rank", "rope_bias"):
            value, default = getattr(layer, setting), type(layer).__dataclass_fields__[setting].default
            if value != default:
                raise ValueError(f"{name}: {setting}={value!r}, expected {default} without rope_base")
        return
    if not 1 <= layer.rope_base < math.inf:
        raise ValueError(f"{name}: rope_base={layer.rope_base!r}, expected a number from 1, or None")
    if layer.d_state % 2:
        raise ValueError(f"{name}: d_state={layer.d_state}, expected an even number with rope_base")
    if layer.d_model % count:
        raise ValueError(f"{name}: {heads}={count}, expected a divisor of d_model={layer.d_model} with rope_base")


def rope_shapes(layer: Any, heads: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parameters, none without `rope_base`."""
    if layer.rope_base is None:
        return {}
    angles, rank = heads * layer.d_state // 2, layer.rope_rank
    shapes: dict[str, tuple[int, ...]] = {"rope_down": (rank, layer.d_model), "rope_up": (angles, rank)}
    shapes["rope_conv"] = (angles, TAPS)
    return shapes | ({"rope_bias": (angles,)} if layer.rope_bias else {})


def initial_rope(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """Returns the initial value of one of these parameters."""
    return np.zeros(shape) if name == "rope_bias" else rng.uniform(-1, 1, shape) / np.sqrt(shape[1])


def rope_angles(p: Builder, layer: Any, heads: int) -> Register:
    """Writes the angles by which a step turns the keys and queries of each head, (heads, d_state / 2)."""
    D = layer.d_model
    unit = p(RMSNorm(UNIT_EPS * heads / D, math.sqrt(heads / D)), p(Reshape((heads, D // heads)), p.x))
    paths = p(Dense(), p(Dense(), p(Reshape((D,)), unit), "rope_down"), "rope_up")
    shift = p(Affine(-1), p(Rates(), "rope_bias")) if layer.rope_bias else None
    angles: Register = p(Reshape((heads, layer.d_state // 2)), p(Conv(), paths, "rope_conv", shift))
    return angles if layer.rope_base == 1 else p(Frequencies(float(layer.rope_base)), angles)
